//! Requests carried out with a server in this process, without a kernel.

mod callers;

use super::{Answer, Server};
use crate::kernel::{Agreed, Caller, Device, Errno, LockWanted, NodeId, Operation, Request};
use crate::limits::{HANDED_READ_BYTES_MAX, HANDED_READS_MAX, WRITE_BYTES_MAX, XATTR_BYTES_MAX};
use crate::locking::Wanted;
use crate::nodes::ROOT;
use crate::tree::{Outcome, Tree};
use dafs_client::{Client, ConnectOptions, DafsUrl, IoBuffer, TransportChoice};
use dafs_mem::Site;
use dafs_testkit::{Served, Wire, eventually, pattern};
use std::fs::File;
use std::net::SocketAddr;
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A timeout that is reached only by a deadlock.
const STUCK: Duration = Duration::from_secs(20);

/// All bytes of a file.
const LAST: u64 = i64::MAX as u64;

/// A request by root.
fn request(unique: u64, node: NodeId, operation: Operation<'_>) -> Request<'_> {
    Request { unique, node, caller: Caller { uid: 0, gid: 0 }, thread: 0, operation }
}

fn connect(address: SocketAddr) -> Client {
    let url = DafsUrl::parse(&format!("dafs://{address}/")).unwrap();
    let transport = TransportChoice::Iwarp;
    Client::connect(&url, &ConnectOptions { transport, ..ConnectOptions::default() }).unwrap()
}

/// A mount, perhaps over a wire that can be held.
struct Mounted {
    served: Served,
    wire: Option<Wire>,
    server: Arc<Server>,
    room: IoBuffer,
    /// The receiver of answers.
    kernel: UnixDatagram,
}

impl Mounted {
    fn new() -> Self {
        let served = Served::new();
        let wire = Wire::new(served.address, || None);
        let client = connect(wire.address);
        Self::of(served, client, Some(wire), false)
    }

    fn without_wire() -> Self {
        let served = Served::new();
        let client = connect(served.address);
        Self::of(served, client, None, false)
    }

    /// A mount over shared memory of a server that shows its files.
    fn optimistic() -> Self {
        let served = Served::with(|setup| setup.optimistic = true);
        let url = DafsUrl::parse(&served.url()).unwrap();
        let transport = TransportChoice::Shm;
        let options = ConnectOptions { transport, optimistic: true, ..ConnectOptions::default() };
        let client = Client::connect(&url, &options).unwrap();
        Self::of(served, client, None, false)
    }

    /// A mount that acts as the user of each request.
    fn for_callers() -> Self {
        let served = Served::new();
        let client = connect(served.address);
        Self::of(served, client, None, true)
    }

    fn of(served: Served, client: Client, wire: Option<Wire>, callers: bool) -> Self {
        let room = client.buffer(WRITE_BYTES_MAX as usize).unwrap();
        let tree = Tree::new(client.clone(), client.root());
        let (kernel, device) = UnixDatagram::pair().unwrap();
        kernel.set_read_timeout(Some(STUCK)).unwrap();
        let device = Device::new(device.into());
        // Attributes must not become stale only because this machine is slow.
        let cache_timeout = Duration::from_secs(3600);
        let server = Server::new(device, Agreed::default(), tree, cache_timeout);
        let server = Arc::new(server.acting_for_callers(callers));
        Self { served, wire, server, room, kernel }
    }

    /// The number of an open file, which is created if it does not exist.
    fn open(&self, name: &str, flags: i32) -> u64 {
        File::options().append(true).create(true).open(self.served.path().join(name)).unwrap();
        let found = self.server.tree.lookup(ROOT, name.as_bytes()).unwrap();
        let node = self.server.tree.nodes.enter(&found);
        let before: Vec<u64> = self.server.files.all().iter().map(|(number, _)| *number).collect();
        let operation = Operation::Open { flags };
        let answer = self.server.open(&request(1, node, operation), flags, None);
        assert!(answer.is_ok());
        let is_new = |number: &u64| !before.contains(number);
        let all = self.server.files.all().into_iter().map(|(number, _)| number);
        all.filter(is_new).max().expect("it is open")
    }

    fn write(&mut self, handle: u64, offset: u64, bytes: &[u8]) {
        self.room.view().copy_from(bytes, Site::Inspect);
        let len = bytes.len() as u32;
        assert_eq!(self.server.write(handle, &mut self.room, len, Some(offset)), Ok(len));
    }

    fn lock(&self, handle: u64, owner: u64) {
        let file = self.server.file(handle).unwrap();
        let wanted = Wanted { owner, start: 0, end: LAST, exclusive: true, process: 77 };
        self.server.locks.try_lock(&file, handle, &wanted).unwrap();
    }

    /// Runs `work` while the server does not answer.
    fn while_away<T>(&self, work: impl FnOnce(&Arc<Server>) -> T) -> T {
        let held = self.wire.as_ref().unwrap().held.lock().unwrap();
        let done = dafs_client::within(Duration::from_millis(50), || work(&self.server));
        drop(held);
        done
    }

    /// Lets the server carry out a read; its answer if it has one at once.
    fn read(&mut self, handle: u64, unique: u64, offset: u64, len: u32) -> Outcome<Option<usize>> {
        let operation = Operation::Read { handle, offset, len };
        match self.server.attempt(&request(unique, ROOT, operation), Some(&mut self.room))? {
            Answer::Data(bytes) => Ok(Some(bytes)),
            Answer::Later => Ok(None),
            _ => panic!("an answer of another kind"),
        }
    }

    /// The next answer to the kernel: the request's number, an error number or zero, and data.
    fn told(&self) -> (u64, i32, Vec<u8>) {
        let mut bytes = vec![0; 2 * HANDED_READ_BYTES_MAX];
        let len = self.kernel.recv(&mut bytes).unwrap();
        assert_eq!(bytes[..4], (len as u32).to_ne_bytes());
        let error = i32::from_ne_bytes(bytes[4..8].try_into().unwrap());
        let unique = u64::from_ne_bytes(bytes[8..16].try_into().unwrap());
        (unique, -error, bytes[16..len].to_vec())
    }

    fn is_kept(&self, handle: u64) -> bool {
        !self.server.file(handle).unwrap().kept.is_empty()
    }
}

#[test]
fn a_close_without_locks_releases_no_lock_of_others() {
    let mut mounted = Mounted::new();
    let writer = mounted.open("file", libc::O_RDWR);
    mounted.lock(writer, 1);
    mounted.write(writer, 0, b"data");
    // Each of them while the server is unreachable, so that no write can be made stable.
    let reader = mounted.open("file", libc::O_RDONLY);
    let other = mounted.open("file", libc::O_RDWR);
    let closed = mounted.while_away(|server| server.flush(reader, 2));
    assert!(closed.is_ok(), "who only reads waits for nobody");
    let closed = mounted.while_away(|server| server.flush(other, 3).map(drop));
    assert_eq!(closed, Err(Errno::ETIMEDOUT), "it may have written");
    assert!(mounted.is_kept(writer));
    let wanted = LockWanted {
        handle: other,
        owner: 3,
        start: 0,
        end: LAST,
        kind: libc::F_UNLCK,
        process: 77,
    };
    let node = mounted.server.file(other).unwrap().node;
    let request = request(2, node, Operation::Lock { wanted, waits: false });
    let unlocked = mounted.while_away(|server| server.lock(&request, &wanted, false).map(drop));
    assert_eq!(unlocked, Ok(()), "it has nothing to give up");
    assert!(mounted.is_kept(writer));
    let released = mounted.while_away(|server| server.release(reader, None).map(drop));
    assert_eq!(released, Err(Errno::ETIMEDOUT), "nor does the server hear of it");
    assert!(mounted.is_kept(writer));
    // All of it is there, and no loss is reported.
    mounted.server.sync(writer).unwrap();
    assert!(!mounted.is_kept(writer));
    assert_eq!(std::fs::read(mounted.served.path().join("file")).unwrap(), b"data");
}

#[test]
fn an_owner_that_has_unlocked_all_in_parts_is_none_any_more() {
    let mounted = Mounted::new();
    let handle = mounted.open("file", libc::O_RDWR);
    let file = mounted.server.file(handle).unwrap();
    mounted.lock(handle, 1);
    assert!(mounted.server.locks.holds(file.node, 1) && !mounted.server.locks.holds(file.node, 2));
    for (start, end) in [(0, 99), (100, LAST)] {
        let part = Wanted { owner: 1, start, end, exclusive: true, process: 77 };
        mounted.server.locks.unlock(&file, &part).unwrap();
    }
    assert!(!mounted.server.locks.holds(file.node, 1));
    mounted.server.locks.for_each(|_, _, _, _| panic!("its open stays"));
}

#[test]
fn a_close_releases_locks_even_if_its_data_is_lost() {
    let mut mounted = Mounted::new();
    let writer = mounted.open("file", libc::O_RDWR);
    mounted.lock(writer, 1);
    mounted.write(writer, 0, b"data");
    let closed = mounted.while_away(|server| server.flush(writer, 1).map(drop));
    assert_eq!(closed, Err(Errno::ETIMEDOUT));
    let file = mounted.server.file(writer).unwrap();
    assert!(!mounted.server.locks.holds(file.node, 1));
    // The server has not lost it.
    mounted.server.sync(writer).unwrap();
    assert_eq!(std::fs::read(mounted.served.path().join("file")).unwrap(), b"data");
}

/// The entries of a listing: names, each with the number of its node if it has attributes.
fn told(mut listing: &[u8]) -> Vec<(Vec<u8>, u64)> {
    let number = |at: &[u8]| u64::from_ne_bytes(at[..8].try_into().unwrap());
    let mut all = Vec::new();
    while !listing.is_empty() {
        let entry = &listing[128..];
        let len = u32::from_ne_bytes(entry[16..20].try_into().unwrap()) as usize;
        all.push((entry[24..24 + len].to_vec(), number(listing)));
        listing = &listing[128 + (24 + len).next_multiple_of(8)..];
    }
    all
}

#[test]
fn a_listing_does_not_tell_what_a_directory_was_before_something_was_made_in_it() {
    let mounted = Mounted::new();
    let server = &mounted.server;
    std::fs::create_dir(mounted.served.path().join("below")).unwrap();
    std::fs::write(mounted.served.path().join("file"), "").unwrap();
    server.open_directory(ROOT, None).unwrap();
    let (number, _) = server.directories.all().remove(0);
    let list = |position, len| match server.list(ROOT, number, position, len, true).unwrap() {
        Answer::Body(body) => told(&body),
        _ => panic!("no listing"),
    };
    // There is only room for the first two, and the others are fetched already.
    assert_eq!(list(0, 400), [(b".".to_vec(), 0), (b"..".to_vec(), 0)]);
    let node = server.tree.nodes.enter(&server.tree.lookup(ROOT, b"below").unwrap());
    let operation = Operation::MakeDirectory { name: b"new", mode: 0o755 };
    assert!(server.attempt(&request(1, node, operation), None).is_ok());
    let rest = list(2, 4096);
    let node = |name: &[u8]| rest.iter().find(|(known, _)| known == name).unwrap().1;
    assert_eq!(node(b"below"), 0, "it has one more link, and another time");
    assert_ne!(node(b"file"), 0);
}

#[test]
fn short_reads_are_answered_by_whoever_drives_and_long_ones_are_not() {
    let mut mounted = Mounted::new();
    let content = pattern(5 * HANDED_READ_BYTES_MAX + 100);
    std::fs::write(mounted.served.path().join("file"), &content).unwrap();
    let handle = mounted.open("file", libc::O_RDONLY);
    let short = HANDED_READ_BYTES_MAX as u32;
    for (unique, offset, len) in [(1, 0, 4096), (2, 77, short), (3, 5 * u64::from(short), short)] {
        assert_eq!(mounted.read(handle, unique, offset, len), Ok(None));
        let wanted =
            &content[offset as usize..content.len().min((offset + u64::from(len)) as usize)];
        assert_eq!(mounted.told(), (unique, 0, wanted.to_vec()));
    }
    // Behind the end of the file.
    assert_eq!(mounted.read(handle, 4, 1 << 30, 4096), Ok(None));
    assert_eq!(mounted.told(), (4, 0, Vec::new()));
    assert_eq!(mounted.read(handle, 5, 0, short + 1), Ok(Some(short as usize + 1)));
}

#[test]
fn reads_of_what_the_server_shows_need_no_request() {
    const SHORT: u32 = HANDED_READ_BYTES_MAX as u32;
    let mut mounted = Mounted::optimistic();
    let content = pattern(8 * HANDED_READ_BYTES_MAX + 100);
    std::fs::write(mounted.served.path().join("file"), &content).unwrap();
    let handle = mounted.open("file", libc::O_RDONLY);
    let client = mounted.server.tree.client.clone();
    let mut unique = 0;
    eventually("all reads are hits", || {
        let (before, hits) = (client.stats(), client.optimistic_stats().hits);
        for (offset, len) in [(0, 4096), (77, SHORT), (8 * u64::from(SHORT), SHORT)] {
            unique += 1;
            assert_eq!(mounted.read(handle, unique, offset, len), Ok(None));
            let start = offset as usize;
            let wanted = &content[start..content.len().min(start + len as usize)];
            assert_eq!(mounted.told(), (unique, 0, wanted.to_vec()));
        }
        // A longer one is not handed over.
        unique += 1;
        let long = 2 * SHORT;
        assert_eq!(mounted.read(handle, unique, 4096, long), Ok(Some(long as usize)));
        let found = mounted.room.slice(0, long as usize).unwrap().to_vec(Site::Inspect);
        assert!(found == content[4096..4096 + long as usize]);
        let after = client.stats();
        let asked = after.answered - before.answered - (after.nulls - before.nulls);
        (asked, client.optimistic_stats().hits - hits) == (0, 4)
    });
    assert!(mounted.server.handed.wait(Instant::now() + STUCK));
}

#[test]
fn a_reader_after_a_restart_sees_the_written_bytes() {
    let mut mounted = Mounted::without_wire();
    let handle = mounted.open("file", libc::O_RDWR);
    mounted.write(handle, 0, b"written");
    mounted.served.stop();
    mounted.served.start();
    // The first one detects the restart, and is repeated; no data is in doubt afterwards.
    for unique in 1..3 {
        assert_eq!(mounted.read(handle, unique, 0, 100), Ok(None));
        assert_eq!(mounted.told(), (unique, 0, b"written".to_vec()));
        assert!(mounted.server.handed.wait(Instant::now() + STUCK));
    }
    assert!(!mounted.is_kept(handle), "it was written again and made stable");
}

#[test]
fn reads_that_were_handed_over_are_waited_for_and_not_more_than_there_may_be() {
    let mut mounted = Mounted::new();
    std::fs::write(mounted.served.path().join("file"), b"content").unwrap();
    let handle = mounted.open("file", libc::O_RDONLY);
    let held = mounted.wire.as_ref().unwrap().held.clone();
    let held = held.lock().unwrap();
    // The calls have no time to wait for the answer.
    let mut count = 0;
    let (file, time) = (mounted.server.file(handle).unwrap(), Duration::from_millis(1));
    while dafs_client::within(time, || mounted.server.hand_over(&file, count, 0, 100)).unwrap() {
        count += 1;
    }
    assert_eq!(count, HANDED_READS_MAX as u64);
    assert!(!mounted.server.handed.wait(Instant::now() + Duration::from_millis(50)));
    drop(held);
    let mut all: Vec<u64> = (0..count)
        .map(|_| {
            let (unique, error, data) = mounted.told();
            assert_eq!((error, &data[..]), (0, &b"content"[..]));
            unique
        })
        .collect();
    all.sort_unstable();
    assert!(all.into_iter().eq(0..count));
    assert!(mounted.server.handed.wait(Instant::now() + STUCK));
    assert_eq!(mounted.read(handle, 0, 0, 100), Ok(None));
}

#[test]
fn an_extended_attribute_is_replaced_as_a_whole_or_not_at_all() {
    let mounted = Mounted::without_wire();
    mounted.open("file", libc::O_RDONLY);
    let tree = &mounted.server.tree;
    let node = tree.nodes.enter(&tree.lookup(ROOT, b"file").unwrap());
    tree.set_xattr(node, b"user.note", b"first", 0).unwrap();
    // More than EXT4 takes; a file system that takes it keeps all of it.
    let long = vec![b'x'; XATTR_BYTES_MAX];
    for (name, before) in [(&b"user.note"[..], Some(&b"first"[..])), (b"user.new", None)] {
        let set = tree.set_xattr(node, name, &long, 0);
        let now = tree.xattr(node, name).ok();
        let wanted = if set.is_ok() { Some(&long[..]) } else { before };
        assert_eq!(now.as_deref(), wanted);
    }
    let set = |name: &[u8], flags| tree.set_xattr(node, name, b"2nd", flags);
    assert_eq!(set(b"user.note", libc::XATTR_CREATE), Err(Errno::EEXIST));
    assert_eq!(set(b"user.none", libc::XATTR_REPLACE), Err(Errno::ENODATA));
    let both = libc::XATTR_CREATE | libc::XATTR_REPLACE;
    assert_eq!(set(b"user.note", both), Err(Errno::EEXIST));
    assert_eq!(set(b"user.none", both), Err(Errno::ENODATA));
    assert_eq!(set(b"user.note", libc::XATTR_REPLACE), Ok(()));
    assert_eq!(tree.xattr(node, b"user.note").unwrap(), b"2nd");
}

#[test]
fn dots_and_slashes_mean_nothing_in_the_name_of_an_extended_attribute() {
    let mounted = Mounted::without_wire();
    mounted.open("file", libc::O_RDONLY);
    let tree = &mounted.server.tree;
    let node = tree.nodes.enter(&tree.lookup(ROOT, b"file").unwrap());
    let names = [&b"user.."[..], b"user...", b"user.a/b", b"user./"];
    for name in names {
        tree.set_xattr(node, name, name, libc::XATTR_CREATE).unwrap();
        assert_eq!(tree.xattr(node, name).unwrap(), name);
    }
    let listed = tree.xattr_names(node).unwrap();
    let listed: Vec<&[u8]> = listed.split(|&byte| byte == 0).collect();
    assert!(names.iter().all(|name| listed.contains(name)), "{listed:?}");
    for name in names {
        tree.remove_xattr(node, name).unwrap();
        assert_eq!(tree.xattr(node, name), Err(Errno::ENODATA));
    }
    assert_eq!(tree.xattr_names(node).unwrap(), b"");
}

/// As with all that a read needs to be handed over: it has not begun, and the thread that has
/// received it can carry it out.
#[test]
fn a_read_that_cannot_be_handed_over_is_left_to_who_has_received_it() {
    let mut mounted = Mounted::new();
    std::fs::write(mounted.served.path().join("file"), b"content").unwrap();
    let handle = mounted.open("file", libc::O_RDONLY);
    let file = mounted.server.file(handle).unwrap();
    let buffer = file.file.client().buffer(1).unwrap();
    let held = mounted.wire.as_ref().unwrap().held.clone();
    let held = held.lock().unwrap();
    // As many as may wait for the server.
    let mut waiting = Vec::new();
    while let Ok(read) = file.file.submit_read(&buffer, 0..1, 0) {
        waiting.push(read);
    }
    assert_eq!(mounted.server.hand_over(&file, 1, 0, 100), Ok(false));
    assert!(mounted.server.handed.wait(Instant::now()), "it has given its place back");
    drop(held);
    assert!(waiting.into_iter().all(|read| read.wait().is_ok()));
    drop(file);
    // It was not answered before.
    assert_eq!(mounted.read(handle, 2, 0, 100), Ok(None));
    assert_eq!(mounted.told(), (2, 0, b"content".to_vec()));
}

#[test]
fn a_finished_read_has_left_the_file() {
    let mounted = Mounted::new();
    std::fs::write(mounted.served.path().join("file"), b"content").unwrap();
    let handle = mounted.open("file", libc::O_RDONLY);
    let wire = mounted.wire.as_ref().unwrap().held.clone();
    let file = mounted.server.file(handle).unwrap();
    for unique in 0..50 {
        let held = wire.lock().unwrap();
        // Another thread drives the client when the answer comes.
        let time = Duration::from_millis(1);
        let handed = dafs_client::within(time, || mounted.server.hand_over(&file, unique, 0, 100));
        assert_eq!(handed, Ok(true));
        drop(held);
        assert_eq!(mounted.told(), (unique, 0, b"content".to_vec()));
        assert_eq!(Arc::strong_count(&file), 2, "the table has it, and this test");
    }
}
