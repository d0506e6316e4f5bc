//! Random sequences of operations give the same answers in memory and on a local directory.

use crate::common;
use dafs_store::*;
use dafs_testkit::stores::*;
use proptest::prelude::*;
use std::sync::Arc;

const NONE: SetAttr =
    SetAttr { mode: None, uid: None, gid: None, size: None, atime: None, mtime: None };
const NAMES: u8 = 5;

/// One step. Numbers pick objects, directories and open files from those known so far.
#[derive(Debug, Clone)]
enum Step {
    Create { dir: usize, name: u8, how: u8, mode: u32, size: Option<u64> },
    Make { dir: usize, name: u8, kind: u8, mode: u32 },
    Link { object: usize, dir: usize, name: u8 },
    Remove { dir: usize, name: u8 },
    Rename { from_dir: usize, from: u8, to_dir: usize, to: u8 },
    Lookup { dir: usize, name: u8 },
    Parent { dir: usize },
    List { dir: usize, page: usize },
    Stat { object: usize },
    SetAttr { object: usize, mode: Option<u32>, size: Option<u64> },
    Readlink { object: usize },
    Open { object: usize, write: bool },
    Close { file: usize },
    Write { file: usize, offset: u64, len: usize, fill: u8 },
    Read { file: usize, offset: u64, len: usize },
    Cut { file: usize, size: u64 },
    Access { object: usize },
}

fn mode() -> impl Strategy<Value = u32> {
    // The owner mostly keeps the rights that later steps need.
    prop_oneof![4 => Just(0o755u32), 2 => Just(0o644), 1 => Just(0o1777), 1 => 0..0o10000u32]
}

fn size() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0u64), 0..10_000u64, 60_000..140_000u64]
}

fn step() -> impl Strategy<Value = Step> {
    let pick = || 0..64usize;
    let name = || 0..NAMES;
    prop_oneof![
        4 => (pick(), name(), 0..3u8, mode(), proptest::option::of(size())).prop_map(
            |(dir, name, how, mode, size)| Step::Create { dir, name, how, mode, size }),
        4 => (pick(), name(), 0..5u8, mode())
            .prop_map(|(dir, name, kind, mode)| Step::Make { dir, name, kind, mode }),
        2 => (pick(), pick(), name()).prop_map(|(object, dir, name)| Step::Link { object, dir, name }),
        3 => (pick(), name()).prop_map(|(dir, name)| Step::Remove { dir, name }),
        4 => (pick(), name(), pick(), name())
            .prop_map(|(from_dir, from, to_dir, to)| Step::Rename { from_dir, from, to_dir, to }),
        1 => (pick(), name()).prop_map(|(dir, name)| Step::Lookup { dir, name }),
        1 => pick().prop_map(|dir| Step::Parent { dir }),
        1 => (pick(), 1..4usize).prop_map(|(dir, page)| Step::List { dir, page }),
        1 => pick().prop_map(|object| Step::Stat { object }),
        1 => (pick(), proptest::option::of(mode()), proptest::option::of(size()))
            .prop_map(|(object, mode, size)| Step::SetAttr { object, mode, size }),
        1 => pick().prop_map(|object| Step::Readlink { object }),
        2 => (pick(), any::<bool>()).prop_map(|(object, write)| Step::Open { object, write }),
        1 => pick().prop_map(|file| Step::Close { file }),
        3 => (pick(), size(), 0..100_000usize, any::<u8>())
            .prop_map(|(file, offset, len, fill)| Step::Write { file, offset, len, fill }),
        2 => (pick(), size(), 0..200_000usize)
            .prop_map(|(file, offset, len)| Step::Read { file, offset, len }),
        1 => (pick(), size()).prop_map(|(file, size)| Step::Cut { file, size }),
        1 => pick().prop_map(|object| Step::Access { object }),
    ]
}

/// One store with the objects that it has returned, numbered alike on both sides.
struct Side {
    store: Arc<dyn Store>,
    cred: Cred,
    objects: Vec<FileId>,
    files: Vec<Arc<dyn OpenFile>>,
    verifiers: u64,
}

/// The visible result of an operation, without the parts that may differ.
#[derive(Debug, PartialEq)]
enum Shown {
    Nothing,
    Skipped,
    Flag(bool),
    /// The number of an object.
    Object(usize),
    Attr(String),
    Bytes(Vec<u8>),
    Count(usize),
    Names(Vec<(String, usize)>),
    Rights(AccessMask),
}

fn name(number: u8) -> Vec<u8> {
    vec![b'a' + number; usize::from(number) * 3 + 1]
}

fn shown(attr: &Attr) -> Shown {
    // Sizes and links of directories depend on the file system.
    let directory = attr.kind == Kind::Directory;
    let (size, links) = if directory { (0, 0) } else { (attr.size, attr.links) };
    let mode = if attr.kind == Kind::Symlink { 0 } else { attr.mode };
    Shown::Attr(format!("{:?} {mode:o} {} {size} {links}", attr.kind, attr.uid))
}

impl Side {
    fn new(store: Arc<dyn Store>, cred: Cred) -> Self {
        let objects = vec![store.root()];
        Self { store, cred, objects, files: Vec::new(), verifiers: 0 }
    }

    fn object(&self, number: usize) -> FileId {
        self.objects[number % self.objects.len()]
    }

    fn number(&mut self, id: FileId) -> usize {
        if let Some(number) = self.objects.iter().position(|known| *known == id) {
            return number;
        }
        self.objects.push(id);
        self.objects.len() - 1
    }

    fn file(&self, number: usize) -> Option<&Arc<dyn OpenFile>> {
        self.files.get(number % self.files.len().max(1))
    }

    fn run(&mut self, step: &Step) -> Result<Shown> {
        let (store, cred) = (self.store.clone(), self.cred.clone());
        match *step {
            Step::Create { dir, name: n, how, mode, size } => {
                // Each verifier is used once, because a read of a file may change one that is kept
                // in its times.
                self.verifiers += 1;
                let verifier = self.verifiers.to_be_bytes();
                let how =
                    [CreateHow::Unchecked, CreateHow::Guarded, CreateHow::Exclusive(verifier)]
                        [usize::from(how)];
                let attr = SetAttr { mode: Some(mode), size, ..NONE };
                let dir = self.object(dir);
                let created = store.create(&cred, &dir, &name(n), how, &attr, READ_WRITE)?;
                self.number(created.id);
                self.files.push(created.file);
                Ok(Shown::Flag(created.created))
            }
            Step::Make { dir, name: n, kind, mode } => {
                let object = match kind {
                    0 | 1 => NewObject::Directory,
                    2 => NewObject::Symlink(b"target"),
                    3 => NewObject::Fifo,
                    _ => NewObject::Socket,
                };
                let attr = SetAttr { mode: Some(mode), ..NONE };
                let made = store.make(&cred, &self.object(dir), &name(n), object, &attr)?;
                self.number(made.id);
                Ok(shown(&made.attr))
            }
            Step::Link { object, dir, name: n } => store
                .link(&cred, &self.object(object), &self.object(dir), &name(n))
                .map(|_| Shown::Nothing),
            Step::Remove { dir, name: n } => {
                store.remove(&cred, &self.object(dir), &name(n)).map(|_| Shown::Nothing)
            }
            Step::Rename { from_dir, from, to_dir, to } => {
                let (from_dir, to_dir) = (self.object(from_dir), self.object(to_dir));
                store.rename(&cred, &from_dir, &name(from), &to_dir, &name(to))?;
                Ok(Shown::Nothing)
            }
            Step::Lookup { dir, name: n } => {
                let (id, _) = store.lookup(&cred, &self.object(dir), &name(n))?;
                Ok(Shown::Object(self.number(id)))
            }
            Step::Parent { dir } => {
                let id = store.parent(&cred, &self.object(dir))?;
                Ok(Shown::Object(self.number(id)))
            }
            Step::List { dir, page } => self.list(dir, page),
            Step::Stat { object } => store.getattr(&self.object(object)).map(|attr| shown(&attr)),
            Step::SetAttr { object, mode, size } => {
                let change = SetAttr { mode, size, ..NONE };
                store.setattr(&cred, &self.object(object), &change, None).map(|attr| shown(&attr))
            }
            Step::Readlink { object } => {
                store.readlink(&cred, &self.object(object)).map(Shown::Bytes)
            }
            Step::Open { object, write } => {
                let mode = if write { READ_WRITE } else { READ };
                self.files.push(store.open(&cred, &self.object(object), mode)?);
                Ok(Shown::Nothing)
            }
            Step::Close { file } => {
                if !self.files.is_empty() {
                    self.files.swap_remove(file % self.files.len());
                }
                Ok(Shown::Nothing)
            }
            Step::Write { file, offset, len, fill } => match self.file(file) {
                Some(file) => write(&**file, offset, &vec![fill; len]).map(Shown::Count),
                None => Ok(Shown::Skipped),
            },
            Step::Read { file, offset, len } => match self.file(file) {
                Some(file) => read(&**file, offset, len).map(Shown::Bytes),
                None => Ok(Shown::Skipped),
            },
            Step::Cut { file, size } => match self.file(file) {
                Some(file) => file.set_size(size).map(|()| Shown::Nothing),
                None => Ok(Shown::Skipped),
            },
            Step::Access { object } => {
                store.access(&cred, &self.object(object), AccessMask::all()).map(Shown::Rights)
            }
        }
    }

    fn list(&mut self, dir: usize, page: usize) -> Result<Shown> {
        let (store, cred, dir) = (self.store.clone(), self.cred.clone(), self.object(dir));
        let (mut entries, mut cookie) = (Vec::new(), 0);
        loop {
            let mut count = 0;
            let end = store.readdir(&cred, &dir, cookie, true, &mut |entry| {
                let name = String::from_utf8_lossy(entry.name).into_owned();
                entries.push((name, entry.object.map(|(id, _)| id)));
                cookie = entry.cookie;
                count += 1;
                count < page
            })?;
            if end {
                break;
            }
        }
        entries.sort();
        let number = |(name, id): (String, Option<FileId>)| {
            let number = id.map_or(usize::MAX, |id| self.number(id));
            (name, number)
        };
        Ok(Shown::Names(entries.into_iter().map(number).collect()))
    }
}

fn compare(steps: &[Step], posix: World) {
    let owner = posix.cred.clone();
    let options = MemoryOptions {
        root_owner: (owner.uid, owner.gid),
        root_mode: posix.store.getattr(&posix.root()).unwrap().mode,
        ..MemoryOptions::default()
    };
    let mut memory = Side::new(Arc::new(MemoryStore::new(options)), owner.clone());
    let mut local = Side::new(posix.store.clone(), owner);
    for (at, step) in steps.iter().enumerate() {
        let (expected, got) = (memory.run(step), local.run(step));
        assert_eq!(got, expected, "posix left, memory right, step {at}: {step:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 150,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn memory_and_posix_agree(steps in proptest::collection::vec(step(), 1..80)) {
        common::world().into_iter().for_each(|world| compare(&steps, world));
    }

    #[test]
    fn memory_and_posix_agree_for_other_users(steps in proptest::collection::vec(step(), 1..80)) {
        common::world_of_other_user().into_iter().for_each(|world| compare(&steps, world));
    }
}
