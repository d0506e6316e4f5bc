//! A mount that acts as the user of each program.

use super::{Mounted, STUCK};
use crate::kernel::{Caller, Change, Errno, NodeId, Operation, Request};
use crate::nodes::ROOT;
use crate::tree::Outcome;
use dafs_client::{User, acting_as};
use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::time::Instant;

const ANNA: Caller = Caller { uid: 1234, gid: 1234 };
const BERT: Caller = Caller { uid: 1235, gid: 1235 };
const NOBODY_ELSE: Caller = Caller { uid: 0, gid: 0 };

/// A mount of a directory for all users; none where the server cannot act as several.
fn mounted() -> Option<Mounted> {
    if std::fs::metadata("/proc/self").unwrap().uid() != 0 {
        println!("needs root, so that the server can act as several users");
        return None;
    }
    let mounted = Mounted::for_callers();
    std::fs::set_permissions(mounted.served.path(), Permissions::from_mode(0o1777)).unwrap();
    Some(mounted)
}

impl Mounted {
    fn carry_out(&self, caller: Caller, node: NodeId, operation: Operation<'_>) -> Outcome<()> {
        let request = Request { unique: 1, node, caller, thread: 0, operation };
        self.server.attempt(&request, None).map(drop)
    }

    /// The node of a file of this user and mode.
    fn file(&self, name: &str, owner: Caller, mode: u32) -> NodeId {
        let path = self.served.path().join(name);
        std::fs::write(&path, b"data").unwrap();
        chown(&path, Some(owner.uid), Some(owner.gid)).unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        self.server.tree.nodes.enter(&self.server.tree.lookup(ROOT, name.as_bytes()).unwrap())
    }

    fn open_as(&self, caller: Caller, node: NodeId) -> Outcome<()> {
        self.carry_out(caller, node, Operation::Open { flags: libc::O_RDONLY })
    }
}

#[test]
fn what_is_cached_for_one_user_opens_nothing_for_another() {
    let Some(mounted) = mounted() else { return };
    let node = mounted.file("private", ANNA, 0o600);
    let handle = mounted.server.tree.handle(node).unwrap();
    assert_eq!(mounted.open_as(ANNA, node), Ok(()));
    // The delegation may come with a later open, when the back-control channel is there.
    let until = Instant::now() + STUCK;
    while !mounted.server.delegated.has_promised() {
        assert!(Instant::now() < until, "no delegation comes");
        assert_eq!(mounted.open_as(ANNA, node), Ok(()));
    }
    assert_eq!(mounted.open_as(BERT, node), Err(Errno::EACCES));
    assert_eq!(mounted.open_as(Caller { gid: 1234, ..BERT }, node), Err(Errno::EACCES));
    // Root is not squashed here.
    assert_eq!(mounted.open_as(NOBODY_ELSE, node), Ok(()));
    // The server learns of a deferred open in the middle of another user's request.
    let bert = User::new(BERT.uid, BERT.gid, &[]);
    acting_as(Some(&bert), || mounted.server.redeem_all(&handle));
    assert!(!mounted.server.delegated.has_promised());
    let users: Vec<_> =
        mounted.server.files.all().into_iter().map(|(_, file)| file.user.clone()).collect();
    let anna = Some(User::new(ANNA.uid, ANNA.gid, &[]));
    assert!(users.iter().filter(|user| **user == anna).count() >= 2, "{users:?}");
    assert!(!users.contains(&Some(bert)));
}

#[test]
fn what_a_user_makes_is_made_as_that_user() {
    let Some(mounted) = mounted() else { return };
    for (caller, name) in [(ANNA, &b"of anna"[..]), (BERT, b"of bert"), (NOBODY_ELSE, b"of root")] {
        let create = Operation::Create { name, flags: libc::O_RDWR, mode: 0o600 };
        assert_eq!(mounted.carry_out(caller, ROOT, create), Ok(()));
        let path = mounted.served.path().join(std::str::from_utf8(name).unwrap());
        let found = std::fs::metadata(path).unwrap();
        assert_eq!(
            (found.uid(), found.gid(), found.mode() & 0o7777),
            (caller.uid, caller.gid, 0o600)
        );
    }
    // In a sticky directory only the owner takes a name away.
    let remove = || Operation::Remove { name: b"of anna", is_directory: false };
    assert!(matches!(mounted.carry_out(BERT, ROOT, remove()), Err(Errno::EACCES | Errno::EPERM)));
    assert_eq!(mounted.carry_out(ANNA, ROOT, remove()), Ok(()));
    let directory = || Operation::MakeDirectory { name: b"below", mode: 0o700 };
    assert_eq!(mounted.carry_out(ANNA, ROOT, directory()), Ok(()));
    let below = mounted.server.tree.lookup(ROOT, b"below").unwrap();
    let below = mounted.server.tree.nodes.enter(&below);
    let lookup = |caller| mounted.carry_out(caller, below, Operation::Lookup { name: b"name" });
    assert_eq!(lookup(BERT), Err(Errno::EACCES));
    assert_eq!(lookup(ANNA).err().map(Errno::number), Some(libc::ENOENT));
}

#[test]
fn an_open_file_is_used_as_its_opener() {
    let Some(mut mounted) = mounted() else { return };
    let node = mounted.file("shared", ANNA, 0o666);
    let flags = libc::O_RDWR;
    assert_eq!(mounted.carry_out(ANNA, node, Operation::Open { flags }), Ok(()));
    let (number, open) = mounted.server.files.all().pop().unwrap();
    assert_eq!(open.user, Some(User::new(ANNA.uid, ANNA.gid, &[])));
    drop(open);
    let path = mounted.served.path().join("shared");
    std::fs::set_permissions(&path, Permissions::from_mode(0o0)).unwrap();
    mounted.write(number, 0, b"DATA");
    for operation in [
        Operation::Sync { handle: number },
        Operation::Flush { handle: number, owner: 5 },
        Operation::Release { handle: number, owner: None },
    ] {
        assert_eq!(mounted.carry_out(BERT, node, operation), Ok(()));
    }
    assert_eq!(std::fs::read(&path).unwrap(), b"DATA");
    assert_eq!(mounted.open_as(BERT, node), Err(Errno::EACCES));
    // A number that is no open file lends no rights, least of all those of the session.
    let change = Change { handle: Some(number), size: Some(1), ..Change::default() };
    let cut = mounted.carry_out(BERT, node, Operation::SetAttributes(change));
    assert!(matches!(cut, Err(Errno::EACCES | Errno::EPERM)), "{cut:?}");
    assert_eq!(std::fs::read(&path).unwrap(), b"DATA");
}
