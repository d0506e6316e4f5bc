//! Changes with durable replies: the server crashes at every step of every kind of change, with a
//! store that has lost or kept unstable changes.

#[path = "durable/answers.rs"]
mod answers;
#[path = "durable/appends.rs"]
mod appends;
#[path = "durable/attributes.rs"]
mod attributes;
#[path = "durable/change_locks.rs"]
mod change_locks;
#[path = "durable/foreign.rs"]
mod foreign;
#[path = "durable/guards.rs"]
mod guards;

use dafs_journal::sim::SimDisk;
use dafs_mem::VolatileSlice;
use dafs_service::durable::{
    Answer, Change, Durability, Effect, Execution, Intended, JournalConfig, JournalStatistics,
    LoggedChange, MaskedMode, Notify, Session, Settled, digest,
};
use dafs_service::{
    Caller, Client, Export, ExportOptions, Handle, Identity, Namespace, NoReply, RemoveMode,
    RequestKey, Sender, Service, ServiceConfig, ServiceError, Squash, StateRef, Subject,
};
use dafs_store::{
    Ace, AceFlags, AceKind, AceMask, AceWho, Acl, AppendWitness, CreateHow, Cred, ExportSecret,
    FileId, Kind, MemoryOptions, MemoryStore, NewObject, OpenFile, OpenMode, SetAttr, SetTime,
    SetXattr, Stability, Store, StoreError, TimeSpec, Wait,
};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

const NONE: SetAttr =
    SetAttr { mode: None, uid: None, gid: None, size: None, atime: None, mtime: None };
const SESSION: [u8; 8] = *b"session1";
const RETENTION_NS: u64 = 3_700_000_000_000;

type Job = Box<dyn FnOnce() + Send>;

/// The results in notifications, with their names.
type Told = Arc<Mutex<Vec<(&'static str, Result<(), ServiceError>)>>>;

/// A store with the same content in every run, so that one that has lost a change can be rebuilt.
fn new_store() -> Arc<MemoryStore> {
    new_store_of(1 << 30)
}

fn new_store_of(bytes_max: u64) -> Arc<MemoryStore> {
    let options = MemoryOptions {
        clock: Arc::new(|| TimeSpec { seconds: 1, nanoseconds: 0 }),
        id_key: Some(ExportSecret::from_bytes([3; 16])),
        root_mode: 0o777,
        bytes_max,
        ..MemoryOptions::default()
    };
    let store = Arc::new(MemoryStore::new(options));
    let (cred, root) = (cred(), store.root());
    let mode = OpenMode { read: true, write: true };
    for name in ["old", "victim", "moved", "linked", "grown"] {
        let how = CreateHow::Guarded;
        let made = store.create(&cred, &root, name.as_bytes(), how, &NONE, mode).unwrap();
        write(&*made.file, 0, b"before");
    }
    let made = NewObject::Directory;
    store.make(&cred, &root, b"dir", made, &NONE).unwrap();
    store
}

fn cred() -> Cred {
    Cred::new(0, 0)
}

fn write(file: &dyn OpenFile, offset: u64, bytes: &[u8]) {
    let mut bytes = bytes.to_vec();
    let view = VolatileSlice::from_mut(&mut bytes);
    file.write_at(&[view], offset, Stability::Data, Wait::Allowed).unwrap();
}

struct World {
    store: Arc<MemoryStore>,
    service: Service,
    client: Arc<Client>,
    root: Handle,
    disk: Arc<SimDisk>,
    jobs: Arc<Mutex<VecDeque<Job>>>,
    told: Told,
    mode: Durability,
    boot: u8,
    cred: Cred,
    sequence: u16,
}

impl World {
    fn new(mode: Durability) -> Self {
        Self::with(mode, new_store())
    }

    fn with(mode: Durability, store: Arc<MemoryStore>) -> Self {
        let disk = Arc::new(SimDisk::new());
        let mut world = Self::over(mode, store, disk, 1);
        world.recover().unwrap();
        world.introduce(SESSION);
        world.run();
        world
    }

    fn over(mode: Durability, store: Arc<MemoryStore>, disk: Arc<SimDisk>, boot: u8) -> Self {
        let options = ExportOptions {
            squash: Squash::None,
            durable_replies: mode,
            ..ExportOptions::default()
        };
        let namespace = Namespace::new(vec![Export::new("", store.clone(), options)]).unwrap();
        let config = ServiceConfig::new(Duration::from_secs(30), u32::from(boot));
        let service = Service::new(config, namespace);
        let identity = Identity { mechanism: "none", principal: Vec::new() };
        let client =
            service.register_client(b"client", 7, identity, Default::default(), 0).unwrap().client;
        let (root, cred) = (service.root(), cred());
        let (jobs, told) = (Arc::default(), Arc::default());
        Self { store, service, client, root, disk, jobs, told, mode, boot, cred, sequence: 0 }
    }

    fn recover(&mut self) -> Result<dafs_service::durable::Recovered, String> {
        let jobs = self.jobs.clone();
        let journal = JournalConfig {
            disk: self.disk.clone(),
            boot: [self.boot; 16],
            segment_bytes: 16 << 10,
            spawn: Arc::new(move |job| jobs.lock().unwrap().push_back(job)),
        };
        self.service.durable.start_journal(journal, 0).map_err(|error| error.to_string())
    }

    fn introduce(&self, id: [u8; 8]) {
        let session = Session {
            id,
            host: Vec::new(),
            client: b"client".to_vec(),
            verifier: self.client.verifier(),
            mechanism: "none".to_owned(),
            principal: Vec::new(),
        };
        match self.service.durable.keep_session(&session, self.notify("known")) {
            Settled::Now => assert_ne!(self.mode, Durability::Power),
            Settled::Later => {
                self.run();
                assert_eq!(self.told(), [("known", Ok(()))]);
            }
        }
    }

    /// Runs jobs until there are none. Returns their number.
    fn run(&self) -> usize {
        let mut count = 0;
        loop {
            let job = self.jobs.lock().unwrap().pop_front();
            let Some(job) = job else { return count };
            job();
            count += 1;
        }
    }

    fn told(&self) -> Vec<(&'static str, Result<(), ServiceError>)> {
        std::mem::take(&mut *self.told.lock().unwrap())
    }

    fn notify(&self, name: &'static str) -> Notify {
        let told = self.told.clone();
        Box::new(move |done| told.lock().unwrap().push((name, done)))
    }

    fn caller(&self) -> Caller<'_> {
        let (client, cred) = (&self.client, &self.cred);
        Caller { client, subject: Subject::Server, cred, wait: Wait::Allowed, now_ns: 0 }
    }

    fn key(&self, stream: u16) -> RequestKey {
        let sender = Sender::of(&Identity { mechanism: "gss", principal: b"anna".to_vec() });
        RequestKey { session: SESSION, stream, sequence: self.sequence, procedure: 9, sender }
    }

    fn at(&self, name: &str) -> Option<Handle> {
        let found = self.store.lookup(&self.cred, &self.store.root(), name.as_bytes()).ok()?;
        Some(Handle { fs: self.root.fs, file: found.0 })
    }

    fn intend(&self, stream: u16, name: &'static str, change: &Change<'_>) -> Intended {
        let ready = self.notify(name);
        self.service.durable.intend(self.caller(), &self.key(stream), change, ready).unwrap()
    }

    /// Logs an intent and waits.
    fn op(&self, stream: u16, change: &Change<'_>) -> LoggedChange {
        match self.intend(stream, "go", change) {
            Intended::Ready(op) => op,
            Intended::Waiting(op) => {
                self.run();
                assert_eq!(self.told(), [("go", Ok(()))]);
                op
            }
            Intended::Unneeded => panic!("an intent is needed"),
        }
    }

    fn settle(&self, op: LoggedChange, reply: &[u8]) {
        match self.service.durable.settle(op, reply, true, self.notify("sent")) {
            Settled::Now => {}
            Settled::Later => {
                self.run();
                let mut told = self.told.lock().unwrap();
                let sent = told.iter().position(|(name, _)| *name == "sent").unwrap();
                assert_eq!(told.remove(sent), ("sent", Ok(())));
            }
        }
    }

    /// A file as the service returns it to clients without intents.
    fn open(&self, name: &str) -> Arc<dyn OpenFile> {
        let (file, need) = (self.at(name).unwrap(), OpenMode { read: false, write: true });
        self.service.opens.io_file(self.caller(), &file, StateRef::ANONYMOUS, need).unwrap()
    }

    /// Executes a logged append.
    fn append(&self, op: &LoggedChange, bytes: &[u8]) -> Result<u64, StoreError> {
        let (witness, mut bytes) = (op.witness().unwrap(), bytes.to_vec());
        let view = VolatileSlice::from_mut(&mut bytes);
        self.open("grown").append_witnessed(&[view], Stability::Data, &*witness)
    }

    fn statistics(&self) -> JournalStatistics {
        self.service.durable.journal_statistics().unwrap()
    }

    /// The answer that is known for the last request of a stream.
    fn kept_answer(&self, stream: u16) -> Option<Answer> {
        self.service.durable.kept_answer(&self.key(stream))
    }

    /// The same as `restart` with a store that has lost nothing.
    fn crash(self, power: bool) -> Self {
        let store = self.store.clone();
        self.restart(power, store)
    }

    /// Crashes the server, and with `power` the system. The unstable part of the journal's disk is
    /// lost, and the store becomes `store`.
    fn restart(self, power: bool, store: Arc<MemoryStore>) -> Self {
        let Self { disk, mode, boot, service, sequence, .. } = self;
        drop(service);
        if power {
            disk.cut_power(&mut || false);
        }
        let mut world = Self::over(mode, store, disk, boot + u8::from(power));
        world.sequence = sequence;
        world.recover().unwrap();
        world.run();
        world
    }
}

/// One kind of change.
struct Case {
    name: &'static str,
    /// The logged change, and its execution.
    change: for<'a> fn(&'a World, &'a [Handle]) -> Change<'a>,
    execute: fn(&World, &LoggedChange),
    /// True if the change is in the store.
    applied: fn(&World) -> bool,
    /// True for the effect that must be known then.
    effect: fn(&Effect) -> bool,
    /// The store itself makes it stable.
    stable_at_once: bool,
}

const CHMOD: SetAttr = SetAttr { mode: Some(0o640), ..NONE };
const EMPTY: SetAttr = SetAttr { size: Some(0), ..NONE };

fn waiting(intended: Intended) -> LoggedChange {
    let Intended::Waiting(op) = intended else { panic!("it has to wait") };
    op
}

/// Two changes wait to empty files, of which `begin` begins the first. Another client exchanges the
/// files' names. Then each change holds the file that its name leads to, and no other.
fn empty_exchanged(world: &World, begin: impl FnOnce(&Change<'_>) -> Intended) {
    let (root, store) = (world.root, world.store.clone());
    let files = [world.at("old").unwrap(), world.at("victim").unwrap()];
    let chmod = |file| Change::SetAttr { file, change: &CHMOD, masked: None, acl: None };
    let others = [(0, &files[0]), (1, &files[1])].map(|(n, file)| world.op(n, &chmod(file)));
    let one = waiting(begin(&Change::Create { dir: &root, name: b"old", attr: &EMPTY }));
    let two = Change::Create { dir: &root, name: b"victim", attr: &EMPTY };
    let two = waiting(world.intend(3, "two", &two));
    for (from, to) in [("old", "aside"), ("victim", "old"), ("aside", "victim")] {
        let (dir, from, to) = (&root.file, from.as_bytes(), to.as_bytes());
        store.rename(&world.cred, dir, from, dir, to).unwrap();
    }
    others.into_iter().for_each(|op| world.settle(op, b"set"));
    world.run();
    let mut told = world.told();
    told.sort_unstable_by_key(|(name, _)| *name);
    assert_eq!(told, [("one", Ok(())), ("two", Ok(()))]);
    let third = waiting(world.intend(4, "third", &chmod(&files[1])));
    drop(two);
    world.run();
    assert!(world.told().is_empty());
    drop(one);
    world.run();
    assert_eq!(world.told(), [("third", Ok(()))]);
    drop(third);
}

fn size(world: &World, name: &str) -> u64 {
    world.store.getattr(&world.at(name).unwrap().file).unwrap().size
}

const CASES: &[Case] = &[
    Case {
        name: "create",
        change: |_, at| Change::Create { dir: &at[0], name: b"new", attr: &NONE },
        execute: |w, _| {
            let (how, mode) = (CreateHow::Guarded, OpenMode { read: true, write: true });
            let root = w.store.root();
            drop(w.store.create(&w.cred, &root, b"new", how, &NONE, mode).unwrap());
        },
        applied: |w| w.at("new").is_some(),
        effect: |effect| matches!(effect, Effect::Made { created: true, .. }),
        stable_at_once: false,
    },
    Case {
        name: "empty",
        change: |_, at| Change::Create { dir: &at[0], name: b"old", attr: &EMPTY },
        execute: |w, _| {
            let file = w.at("old").unwrap().file;
            w.store.setattr(&w.cred, &file, &EMPTY, None).unwrap();
        },
        applied: |w| size(w, "old") == 0,
        effect: |effect| matches!(effect, Effect::Made { created: false, .. }),
        stable_at_once: false,
    },
    Case {
        name: "make",
        change: |_, at| Change::Make {
            dir: &at[0],
            name: b"new",
            kind: Kind::Symlink,
            attr: &NONE,
        },
        execute: |w, _| {
            let object = NewObject::Symlink(b"to");
            w.service.make(w.caller(), &w.root, b"new", object, &NONE).unwrap();
        },
        applied: |w| w.at("new").is_some(),
        effect: |effect| matches!(effect, Effect::Made { created: true, .. }),
        stable_at_once: false,
    },
    Case {
        name: "remove",
        change: |_, at| Change::Remove { dir: &at[0], name: b"victim" },
        execute: |w, _| {
            let mode = RemoveMode::Unchecked;
            w.service.remove(w.caller(), &w.root, b"victim", mode).unwrap();
        },
        applied: |w| w.at("victim").is_none(),
        effect: |effect| matches!(effect, Effect::Removed { .. }),
        stable_at_once: false,
    },
    Case {
        name: "rename over another",
        change: |_, at| Change::Rename {
            from_dir: &at[0],
            from: b"moved",
            to_dir: &at[0],
            to: b"victim",
        },
        execute: |w, _| {
            let root = w.root;
            w.service.rename(w.caller(), &root, b"moved", &root, b"victim").unwrap();
        },
        applied: |w| w.at("moved").is_none(),
        effect: |effect| matches!(effect, Effect::Renamed { .. }),
        stable_at_once: false,
    },
    Case {
        name: "link",
        change: |_, at| Change::Link { source: &at[1], dir: &at[0], name: b"new" },
        execute: |w, _| {
            let source = w.at("linked").unwrap();
            w.service.link(w.caller(), &source, &w.root, b"new").unwrap();
        },
        applied: |w| w.at("new").is_some(),
        effect: |effect| matches!(effect, Effect::Linked { .. }),
        stable_at_once: false,
    },
    Case {
        name: "set attributes",
        change: |_, at| Change::SetAttr { file: &at[1], change: &CHMOD, masked: None, acl: None },
        execute: |w, _| {
            let file = w.at("linked").unwrap().file;
            w.store.setattr(&w.cred, &file, &CHMOD, None).unwrap();
        },
        applied: |w| w.store.getattr(&w.at("linked").unwrap().file).unwrap().mode == 0o640,
        effect: |effect| matches!(effect, Effect::AttrSet { .. }),
        stable_at_once: false,
    },
    Case {
        name: "set an extended attribute",
        change: |_, at| Change::SetXattr {
            file: &at[1],
            name: b"color",
            value: Some(digest(0, b"red")),
            how: SetXattr::Create,
        },
        execute: |w, _| {
            let (file, how) = (w.at("linked").unwrap(), SetXattr::Create);
            w.service.set_xattr(w.caller(), &file, b"color", b"red", how).unwrap();
        },
        applied: |w| {
            let file = w.at("linked").unwrap();
            w.service.xattr(w.caller(), &file, b"color").is_ok_and(|value| value == b"red")
        },
        effect: |effect| matches!(effect, Effect::AttrSet { .. }),
        stable_at_once: false,
    },
    Case {
        name: "write",
        change: |_, at| Change::Write {
            file: &at[2],
            offset: 3,
            len: 5,
            stability: Stability::Data,
            digest: Some(digest(0, b"after")),
        },
        execute: |w, _| {
            let mode = OpenMode { read: true, write: true };
            let file = w.at("grown").unwrap().file;
            write(&*w.store.open(&w.cred, &file, mode).unwrap(), 3, b"after");
        },
        applied: |w| size(w, "grown") == 8,
        effect: |effect| matches!(effect, Effect::Written { len: 5, .. }),
        stable_at_once: true,
    },
    Case {
        name: "append",
        change: |_, at| Change::Append { file: &at[2], len: 5, digest: digest(0, b"after") },
        execute: |w, op| assert_eq!(w.append(op, b"after"), Ok(6)),
        applied: |w| size(w, "grown") == 11,
        effect: |effect| matches!(effect, Effect::Appended { offset: 6, len: 5, .. }),
        stable_at_once: true,
    },
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Until {
    Announced,
    Intended,
    Executed,
    Stable,
    Settled,
}

#[test]
fn every_change_has_happened_or_has_not_wherever_the_server_dies() {
    use Until::*;
    for case in CASES {
        for mode in [Durability::Crash, Durability::Power] {
            for until in [Announced, Intended, Executed, Stable, Settled] {
                for power in [false, true] {
                    for kept in [false, true] {
                        die(case, mode, until, power, kept);
                    }
                }
            }
        }
    }
}

/// Executes a change up to a step, crashes the server, and compares the known result with the
/// store.
fn die(case: &Case, mode: Durability, until: Until, power: bool, kept: bool) {
    let world = World::new(mode);
    let what = format!("{} {mode:?} {until:?} power {power} kept {kept}", case.name);
    let at = [world.root, world.at("linked").unwrap(), world.at("grown").unwrap()];
    let change = (case.change)(&world, &at);
    let mut ops = Vec::new();
    if until == Until::Announced {
        match world.intend(0, "go", &change) {
            Intended::Ready(op) | Intended::Waiting(op) => ops.push(op),
            Intended::Unneeded => panic!("{what}"),
        }
    } else {
        let op = world.op(0, &change);
        if until > Until::Intended {
            (case.execute)(&world, &op);
            assert!((case.applied)(&world), "{what}");
        }
        match until {
            Until::Stable => {
                // The journal fails between the change's objects and the reply.
                if mode == Durability::Power && !case.stable_at_once {
                    let ready = world.notify("sent");
                    assert_eq!(
                        world.service.durable.settle(op, b"reply", true, ready),
                        Settled::Later
                    );
                    world.disk.fail_after(Some(0));
                    world.run();
                    let failed = Err(StoreError::Io.into());
                    assert_eq!(world.told(), [("sent", failed)], "{what}");
                    world.disk.fail_after(None);
                } else {
                    ops.push(op);
                }
            }
            Until::Settled => world.settle(op, b"reply"),
            _ => ops.push(op),
        }
    }
    // The process is gone, so no destructor reports the change as not executed.
    ops.into_iter().for_each(std::mem::forget);
    // Stable changes are not lost. Without a loss of power, unstable ones are not lost either.
    let stable = case.stable_at_once || mode == Durability::Power && until >= Until::Stable;
    let lost = power && !kept && !(stable && until >= Until::Executed);
    let store = if lost { new_store() } else { world.store.clone() };
    let key = world.key(0);
    let world = world.restart(power, store);
    let applied = (case.applied)(&world);
    assert_eq!(applied, !lost && until >= Until::Executed, "{what}");
    let answer = world.service.durable.kept_answer(&key);
    if power && mode == Durability::Crash {
        assert_eq!(answer, None, "{what}: nothing is promised");
        return;
    }
    match &answer {
        None => assert!(!applied, "{what}: happened and is not known"),
        Some(Answer::Reply { bytes, order_le: true }) => {
            assert!(applied && bytes == b"reply" && until == Until::Settled, "{what}");
        }
        Some(Answer::Happened(effect)) => {
            assert!(applied && (case.effect)(effect), "{what}: {effect:?}");
        }
        Some(answer) => panic!("{what}: {answer:?}"),
    }
    if until == Until::Settled && !power {
        assert!(matches!(answer, Some(Answer::Reply { .. })), "{what}");
    }
    // A known result does not depend on the file system any more.
    let world = world.restart(false, new_store());
    assert_eq!(world.service.durable.kept_answer(&key), answer, "{what}");
    let session = world.service.durable.kept_session(&SESSION).unwrap();
    assert!(session.is_of(&world.client));
    assert_eq!(world.service.durable.kept_answer(&RequestKey { sequence: 5, ..key }), None);
    let bert = Sender::of(&Identity { mechanism: "gss", principal: b"bert".to_vec() });
    assert_eq!(world.service.durable.kept_answer(&RequestKey { sender: bert, ..key }), None);
}

impl PartialOrd for Until {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some((*self as u8).cmp(&(*other as u8)))
    }
}

#[test]
fn conflicting_changes_go_one_after_the_other() {
    for mode in [Durability::Crash, Durability::Power] {
        let world = World::new(mode);
        let create = Change::Create { dir: &world.root, name: b"x", attr: &NONE };
        let remove = Change::Remove { dir: &world.root, name: b"x" };
        let other = Change::Remove { dir: &world.root, name: b"old" };
        let first = world.op(0, &create);
        let Intended::Waiting(second) = world.intend(1, "second", &remove) else { panic!() };
        let Intended::Waiting(third) = world.intend(2, "third", &create) else { panic!() };
        // A change of another object does not wait.
        drop(world.op(3, &other));
        assert!(world.told().is_empty());
        (CASES[0].execute)(&world, &first);
        world.settle(first, b"created");
        world.run();
        assert_eq!(world.told(), [("second", Ok(()))]);
        // The second is given up, so it was not executed.
        drop(second);
        world.run();
        assert_eq!(world.told(), [("third", Ok(()))]);
        drop(third);
        world.run();
        let held = world.statistics();
        assert_eq!(held.in_flight, 0);
        let store = world.store.clone();
        let keys = [world.key(0), world.key(1), world.key(2), world.key(3)];
        let world = world.restart(false, store);
        let known = keys.map(|key| world.service.durable.kept_answer(&key).is_some());
        assert_eq!(known, [true, false, false, false]);
    }
}

/// An open that empties a file is a change of the file, too. Appenders wait for it, so their data
/// is not taken as evidence that the file was not emptied.
#[test]
fn emptying_and_other_changes_of_a_file_go_one_after_the_other() {
    for mode in [Durability::Crash, Durability::Power] {
        let world = World::new(mode);
        let (root, file) = (world.root, world.at("grown").unwrap());
        let append = Change::Append { file: &file, len: 5, digest: digest(0, b"after") };
        let empty = Change::Create { dir: &root, name: b"grown", attr: &EMPTY };
        let first = world.op(0, &empty);
        let Intended::Waiting(second) = world.intend(1, "second", &append) else { panic!() };
        let Intended::Waiting(third) = world.intend(2, "third", &empty) else { panic!() };
        world.run();
        assert!(world.told().is_empty());
        let cut = |world: &World| world.store.setattr(&world.cred, &file.file, &EMPTY, None);
        cut(&world).unwrap();
        world.settle(first, b"emptied");
        world.run();
        assert_eq!(world.told(), [("second", Ok(()))]);
        assert_eq!(world.append(&second, b"after"), Ok(0));
        world.settle(second, b"appended");
        world.run();
        assert_eq!(world.told(), [("third", Ok(()))]);
        cut(&world).unwrap();
        drop(third);
        assert_eq!(world.statistics().in_flight, 0);
        // The reverse: it waits for the file after it has got the name.
        let first = world.op(3, &append);
        let Intended::Waiting(second) = world.intend(4, "second", &empty) else { panic!() };
        let Intended::Waiting(third) = world.intend(5, "third", &append) else { panic!() };
        world.run();
        assert!(world.told().is_empty());
        drop(first);
        world.run();
        assert_eq!(world.told(), [("second", Ok(()))]);
        drop(second);
        assert_eq!(world.told(), [("third", Ok(()))]);
        drop(third);
        assert_eq!(world.statistics().in_flight, 0);
    }
}

#[test]
fn one_sync_of_the_journal_and_one_of_the_directory_serve_many() {
    let world = World::new(Durability::Power);
    let before = (world.disk.syncs(), world.statistics());
    let names: Vec<_> = (0..16).map(|n| format!("n{n}")).collect();
    let mut ops = Vec::new();
    for (stream, name) in (0..).zip(&names) {
        let change = Change::Create { dir: &world.root, name: name.as_bytes(), attr: &NONE };
        let Intended::Waiting(op) = world.intend(stream, "go", &change) else { panic!() };
        ops.push(op);
    }
    assert_eq!(world.run(), 1);
    assert_eq!(world.told().len(), 16);
    assert_eq!(world.disk.syncs() - before.0, 1);
    for (op, name) in ops.into_iter().zip(&names) {
        let object = NewObject::Directory;
        world.store.make(&world.cred, &world.store.root(), name.as_bytes(), object, &NONE).unwrap();
        let settled = world.service.durable.settle(op, b"reply", false, world.notify("sent"));
        assert_eq!(settled, Settled::Later);
    }
    assert_eq!(world.run(), 1);
    assert_eq!(world.told().len(), 16);
    let after = world.statistics();
    assert_eq!((after.rounds - before.1.rounds, after.committed - before.1.committed), (1, 16));
    assert_eq!(world.disk.syncs() - before.0, 1);
}

#[test]
fn only_the_latest_change_of_a_stream_is_known_and_nothing_of_a_forgotten_session() {
    let mut world = World::new(Durability::Crash);
    world.introduce(*b"session2");
    // Far more than a segment holds.
    for sequence in 0..500 {
        world.sequence = sequence;
        let op = world.op(4, &Change::Remove { dir: &world.root, name: b"nothing" });
        world.settle(op, &sequence.to_le_bytes());
        world.run();
    }
    let key = world.key(4);
    let world = world.crash(false);
    let reply = Answer::Reply { bytes: 499u16.to_le_bytes().to_vec(), order_le: true };
    assert_eq!(world.service.durable.kept_answer(&key), Some(reply));
    assert_eq!(world.service.durable.kept_answer(&RequestKey { sequence: 498, ..key }), None);
    assert!(world.service.durable.kept_session(b"session2").is_some());
    world.service.durable.forget_session(&SESSION);
    let world = world.crash(false);
    assert!(world.service.durable.kept_session(&SESSION).is_none());
    assert!(world.service.durable.kept_answer(&key).is_none());
    assert!(world.service.durable.kept_session(b"session2").is_some());
    world.service.tick(RETENTION_NS);
    assert_eq!(world.statistics().sessions, 0);
}
