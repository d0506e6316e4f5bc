//! Tests on files of real and simulated stores, changed in every way and restored.

use super::*;
use crate::hosts::Host;
use crate::limits::UNDO_BYTES_PER_LOCK_MAX;
use dafs_posix::{PosixOptions, PosixStore};
use dafs_store::{
    CopyRange, CreateHow, Cred, ExportSecret, FsId, MemoryStore, OpenMode, SetAttr, Store,
};
use proptest::prelude::*;

const BOTH: OpenMode = OpenMode { read: true, write: true };
const SIZE: usize = 100_000;

struct World {
    /// Contains the logs, and the file where that is on disk.
    dir: tempfile::TempDir,
    store: Box<dyn Store>,
    cred: Cred,
    key: Handle,
    original: Vec<u8>,
    writers: Arc<Writers>,
}

impl World {
    fn new(posix: bool) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let exported = dir.path().join("exported");
        std::fs::create_dir(&exported).unwrap();
        let own = std::fs::metadata(&exported).unwrap();
        let cred = Cred::new(
            std::os::unix::fs::MetadataExt::uid(&own),
            std::os::unix::fs::MetadataExt::gid(&own),
        );
        let store: Box<dyn Store> = match posix {
            true => {
                let options = PosixOptions::new(ExportSecret::from_bytes([5; 16]));
                Box::new(PosixStore::open(&exported, options).unwrap())
            }
            false => Box::new(MemoryStore::default()),
        };
        let cred = if posix { cred } else { Cred::new(0, 0) };
        let (how, none) = (CreateHow::Guarded, SetAttr::default());
        let made = store.create(&cred, &store.root(), b"f", how, &none, BOTH).unwrap();
        let mut original: Vec<u8> = (0..SIZE).map(|at| (at / 7) as u8).collect();
        made.file.write_at(&[view(&mut original)], 0, Stability::Unstable, Wait::Allowed).unwrap();
        let key = Handle { fs: FsId([1; 16]), file: made.id };
        let world = Self { dir, store, cred, key, original, writers: Arc::new(Writers::new()) };
        world.undo().open(&world.logs()).unwrap();
        world
    }

    /// Begins with a lock that has overwritten so many bytes.
    fn written(posix: bool, bytes: usize) -> Self {
        let mut world = Self::new(posix);
        world.begin();
        apply(&mut world, &Change::Write(10, bytes));
        world
    }

    fn logs(&self) -> PathBuf {
        self.dir.path().join("logs")
    }

    fn undo(&self) -> &Undo {
        &self.writers.undo
    }

    fn plain(&self) -> Arc<dyn OpenFile> {
        self.store.open(&self.cred, &self.key.file, BOTH).unwrap()
    }

    /// The file as a front end has it.
    fn file(&self) -> Arc<dyn OpenFile> {
        self.writers.count(self.key, BOTH, self.plain())
    }

    fn begin(&self) {
        self.try_begin(b"owner").unwrap();
    }

    fn try_begin(&self, owner: &[u8]) -> Result<()> {
        self.begin_in(self.undo(), owner, self.plain(), |_| true)
    }

    fn begin_in(
        &self,
        undo: &Undo,
        owner: &[u8],
        file: Arc<dyn OpenFile>,
        is_held: impl FnOnce(&Entry) -> bool,
    ) -> Result<()> {
        let holder = (holder(owner), Host::Unknown);
        undo.begin(self.key, holder, false, file, &self.writers, is_held)
    }

    /// Kills and restarts the server.
    fn restart(&mut self) -> std::result::Result<(), UndoError> {
        self.writers = Arc::new(Writers::new());
        self.undo().open(&self.logs()).map(drop)
    }

    fn roll_back(&self) {
        let entry = self.undo().find(&self.key).unwrap();
        let open = || self.store.open(&self.cred, &self.key.file, BOTH);
        self.undo().roll_back(&entry, &self.writers, open).unwrap();
    }

    fn content(&self) -> Vec<u8> {
        let file = self.plain();
        let mut bytes = vec![0; file.attr().unwrap().size as usize];
        let len = file.read_at(&[view(&mut bytes)], 0, Wait::Allowed).unwrap();
        assert_eq!(len, bytes.len());
        bytes
    }

    fn assert_untouched(&self) {
        assert!(self.content() == self.original);
        assert!(self.undo().is_empty());
        assert_eq!(std::fs::read_dir(self.logs()).unwrap().count(), 0, "no log is left");
        assert_eq!(self.undo().room.bytes(), 0);
    }
}

fn view(bytes: &mut [u8]) -> VolatileSlice<'_> {
    VolatileSlice::from_mut(bytes)
}

fn holder(owner: &[u8]) -> Holder {
    Holder {
        name: b"client".to_vec(),
        verifier: [1; 8],
        mechanism: "none".to_owned(),
        principal: Vec::new(),
        owner: owner.to_vec(),
    }
}

/// A change of the file's content.
#[derive(Debug, Clone)]
enum Change {
    Write(u64, usize),
    Append(usize),
    Size(u64),
    Allocate(u64, u64),
    Deallocate(u64, u64),
    Copy { from: u64, to: u64, len: u64 },
    Restart,
}

fn change() -> impl Strategy<Value = Change> {
    let place = 0u64..150_000;
    let len = 1u64..50_000;
    prop_oneof![
        4 => (place.clone(), 1usize..50_000).prop_map(|(at, len)| Change::Write(at, len)),
        2 => (1usize..20_000).prop_map(Change::Append),
        2 => place.clone().prop_map(Change::Size),
        1 => (place.clone(), len.clone()).prop_map(|(at, len)| Change::Allocate(at, len)),
        1 => (place.clone(), len.clone()).prop_map(|(at, len)| Change::Deallocate(at, len)),
        1 => (place, 0u64..20_000, 0u64..20_000)
            .prop_map(|(to, from, len)| Change::Copy { from, to: to + 50_000, len }),
        1 => Just(Change::Restart),
    ]
}

fn apply(world: &mut World, change: &Change) {
    let file = world.file();
    let new = |len: usize| vec![0xee; len];
    match *change {
        Change::Write(at, len) => {
            let mut bytes = new(len);
            let views = [view(&mut bytes)];
            assert_eq!(file.write_at(&views, at, Stability::Unstable, Wait::Allowed), Ok(len));
        }
        Change::Append(len) => {
            let mut bytes = new(len);
            file.append(&[view(&mut bytes)], Stability::Data).unwrap();
        }
        Change::Size(size) => file.set_size(size).unwrap(),
        // Some file systems do not support it.
        Change::Allocate(at, len) => drop(file.allocate(at, len)),
        Change::Deallocate(at, len) => drop(file.deallocate(at, len)),
        Change::Copy { from, to, len } => {
            file.copy_from(&*world.plain(), CopyRange::new(from, to, len)).unwrap();
        }
        Change::Restart => {
            world.restart().unwrap();
            world.begin();
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn whatever_is_done_is_undone(
        changes in prop::collection::vec(change(), 1..12),
        posix in any::<bool>(),
        killed in any::<bool>(),
    ) {
        let mut world = World::new(posix);
        world.begin();
        changes.iter().for_each(|change| apply(&mut world, change));
        if killed {
            world.restart().unwrap();
        }
        world.roll_back();
        world.assert_untouched();
    }
}

#[test]
fn a_committed_change_stays() {
    let mut world = World::written(true, 30);
    let changed = world.content();
    let entry = world.undo().find(&world.key).unwrap();
    world.undo().keep(&entry).unwrap();
    world.restart().unwrap();
    assert!(world.undo().is_empty());
    assert!(world.content() == changed);
}

#[test]
fn it_does_not_matter_for_whom_the_thread_worked_last() {
    let world = World::new(true);
    let work_for_somebody = || {
        // Refused or not, a thread of root keeps that identity.
        let (somebody, none) = (Cred::new(60_001, 60_001), SetAttr::default());
        let (root, how) = (world.store.root(), CreateHow::Guarded);
        drop(world.store.create(&somebody, &root, b"g", how, &none, BOTH));
    };
    let file = world.plain();
    work_for_somebody();
    let begun = world.begin_in(world.undo(), b"owner", file, |_| true);
    assert_eq!(begun, Ok(()));
    let entry = world.undo().find(&world.key).unwrap();
    work_for_somebody();
    assert_eq!(world.undo().keep(&entry), Ok(()));
    world.assert_untouched();
}

#[test]
fn one_holder_at_a_time_and_it_finds_its_own_again() {
    let mut world = World::written(false, 30);
    world.begin();
    let busy = Err(ServiceError::Store(StoreError::Busy));
    assert_eq!(world.try_begin(b"other"), busy);
    world.restart().unwrap();
    assert_eq!(world.try_begin(b"other"), busy);
    let entry = world.undo().find(&world.key).unwrap();
    assert!(entry.is_restored());
    world.begin();
    assert!(!entry.is_restored());
    // Until the file is restored, others overwrite no bytes that are not saved.
    entry.forfeit();
    assert_eq!(world.try_begin(b"owner"), busy);
    world.roll_back();
    world.assert_untouched();
    world.try_begin(b"other").unwrap();
}

/// The lock is lost between its grant and the start of its log.
#[test]
fn a_lock_that_was_lost_at_once_undoes_nothing() {
    let world = World::new(false);
    let begun = world.begin_in(world.undo(), b"owner", world.plain(), |entry| {
        assert!(world.undo().find(&world.key).is_some(), "whoever comes later sees it");
        assert!(!entry.is_forfeited());
        false
    });
    assert_eq!(begun, Err(ServiceError::Expired));
    world.assert_untouched();
}

/// Of two logs of a file only the last belongs to a lock that was not released.
#[test]
fn a_log_that_could_not_be_removed_is_not_put_back_over_a_later_one() {
    let mut world = World::written(false, 30);
    let log = Returning::of(world.logs().join("0.undo"));
    let entry = world.undo().find(&world.key).unwrap();
    world.undo().keep(&entry).unwrap();
    world.begin();
    let changed = world.content();
    log.come_back();
    apply(&mut world, &Change::Write(50_000, 30));
    world.restart().unwrap();
    world.roll_back();
    assert!(world.content() == changed);
    assert_eq!(std::fs::read_dir(world.logs()).unwrap().count(), 0);
}

#[test]
fn work_that_needs_the_disk_is_left_to_callers_that_may_wait() {
    let world = World::new(false);
    world.begin();
    let file = world.file();
    let mut bytes = [1; 100];
    let views = [view(&mut bytes)];
    let write = |at, wait| file.write_at(&views, at, Stability::Unstable, wait);
    assert_eq!(write(0, Wait::Never), Err(StoreError::WouldBlock));
    assert_eq!(write(0, Wait::Allowed), Ok(100));
    assert_eq!(write(50, Wait::Never), Ok(100), "that block is saved");
    assert_eq!(write(BLOCK_BYTES - 50, Wait::Never), Err(StoreError::WouldBlock));
    assert_eq!(write(SIZE as u64, Wait::Never), Ok(100), "behind the end nothing is saved");
}

#[test]
fn a_lock_keeps_so_much_and_no_more() {
    let world = World::new(false);
    // A file of holes, instead of one that is really so large.
    let size = UNDO_BYTES_PER_LOCK_MAX + (1 << 20);
    world.plain().set_size(size).unwrap();
    world.begin();
    let file = world.file();
    assert_eq!(file.set_size(0), Err(StoreError::NoSpace));
    assert_eq!(file.attr().unwrap().size, size, "nothing of it has happened");
    world.roll_back();
    assert_eq!(file.attr().unwrap().size, size);
    assert_eq!(world.undo().room.bytes(), 0);
}

#[test]
fn without_a_directory_nothing_is_promised() {
    let world = World::new(false);
    let begun = world.begin_in(&Undo::default(), b"o", world.plain(), |_| true);
    assert_eq!(begun, Err(ServiceError::NotSupported));
}

#[test]
fn a_file_that_is_gone_needs_nothing() {
    let mut world = World::written(true, 30);
    world.store.remove(&world.cred, &world.store.root(), b"f").unwrap();
    world.restart().unwrap();
    world.roll_back();
    assert!(world.undo().is_empty());
}

#[test]
fn a_damaged_log_stops_the_start_and_stays() {
    let mut world = World::written(true, 40_000);
    apply(&mut world, &Change::Write(70_000, 10));
    let path = world.logs().join("0.undo");
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[1000] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    let error = world.restart().unwrap_err();
    assert!(matches!(error, UndoError::Damaged { .. }));
    assert!(error.to_string().contains("0.undo"), "{error}");
    assert_eq!(std::fs::read(&path).unwrap(), bytes);
}

/// Keeps the content of a log, and puts it back under its name, as after a power failure before the
/// removal of the name was stable.
struct Returning(PathBuf, PathBuf);

impl Returning {
    fn of(log: PathBuf) -> Self {
        let aside = log.with_extension("aside");
        std::fs::hard_link(&log, &aside).unwrap();
        Self(log, aside)
    }

    fn come_back(self) {
        std::fs::rename(self.1, self.0).unwrap();
    }
}

#[test]
fn a_committed_change_stays_when_its_log_returns_without_the_list() {
    let mut world = World::written(true, 40_000);
    let changed = world.content();
    let log = Returning::of(world.logs().join("0.undo"));
    let entry = world.undo().find(&world.key).unwrap();
    world.undo().keep(&entry).unwrap();
    log.come_back();
    // The administrator's remedy for a damaged list.
    std::fs::remove_file(world.dir.path().join("logs.index")).unwrap();
    world.restart().unwrap();
    assert!(world.undo().is_empty());
    assert!(world.content() == changed);
    assert_eq!(std::fs::read_dir(world.logs()).unwrap().count(), 0);
}

#[test]
fn one_thrown_away_that_is_still_on_the_list_is_not_used() {
    let mut world = World::new(true);
    let list = world.dir.path().join("logs.index");
    world.begin();
    let listed = std::fs::read(&list).unwrap();
    apply(&mut world, &Change::Write(10, 30));
    let changed = world.content();
    let log = Returning::of(world.logs().join("0.undo"));
    let entry = world.undo().find(&world.key).unwrap();
    world.undo().keep(&entry).unwrap();
    log.come_back();
    std::fs::write(&list, listed).unwrap();
    world.restart().unwrap();
    assert!(world.undo().is_empty());
    assert!(world.content() == changed);
    world.restart().unwrap();
}

#[test]
fn an_older_list_and_an_older_log_are_told() {
    let mut world = World::new(true);
    let (list, path) = (world.dir.path().join("logs.index"), world.logs().join("0.undo"));
    let empty = std::fs::read(&list).unwrap();
    world.begin();
    let (bare, listed) = (std::fs::read(&path).unwrap(), std::fs::read(&list).unwrap());
    apply(&mut world, &Change::Write(10, 30));
    let (log, whole) = (std::fs::read(&path).unwrap(), std::fs::read(&list).unwrap());
    let mut refused = |file: &Path, old: &[u8], good: &[u8]| {
        std::fs::write(file, old).unwrap();
        let error = world.restart().map_err(|error| error.to_string()).unwrap_err();
        let name = file.file_name().unwrap().to_str().unwrap();
        assert!(error.contains(name) && error.contains("accept-loss undo.index"), "{error}");
        assert_eq!(std::fs::read(file).unwrap(), old);
        assert!(path.exists());
        std::fs::write(file, good).unwrap();
    };
    refused(&list, &empty, &whole);
    refused(&path, &bare, &log);
    // A log of the same lock, with fewer records than the list knows.
    std::fs::write(&list, listed).unwrap();
    world.restart().unwrap();
    world.roll_back();
    world.assert_untouched();
}

#[test]
fn a_symlink_leads_to_no_log() {
    let mut world = World::written(true, 30);
    let victim = world.dir.path().join("victim");
    for name in ["logs.index", "logs/0.undo", "logs"] {
        let path = world.dir.path().join(name);
        std::fs::rename(&path, &victim).unwrap();
        std::os::unix::fs::symlink(&victim, &path).unwrap();
        let before = std::fs::read(&victim).ok();
        let error = world.restart().unwrap_err().to_string();
        assert!(error.contains(name) && error.contains("is a symlink"), "{error}");
        if name == "logs.index" {
            undo_list_instance(&path).unwrap_err();
        }
        assert_eq!(std::fs::read(&victim).ok(), before);
        std::fs::remove_file(&path).unwrap();
        std::fs::rename(&victim, &path).unwrap();
    }
    // A new file replaces the link.
    std::fs::write(&victim, "precious").unwrap();
    std::fs::remove_file(world.dir.path().join("logs.index")).unwrap();
    for name in ["logs.index-new", "logs/1.new", "logs/1.copy"] {
        std::os::unix::fs::symlink(&victim, world.dir.path().join(name)).unwrap();
    }
    world.restart().unwrap();
    world.roll_back();
    world.begin();
    assert_eq!(std::fs::read(&victim).unwrap(), b"precious");
}

#[test]
fn a_log_that_is_lost_stops_the_start() {
    let mut world = World::written(true, 40_000);
    let (path, list) = (world.logs().join("0.undo"), world.dir.path().join("logs.index"));
    let (log, whole) = (std::fs::read(&path).unwrap(), std::fs::read(&list).unwrap());
    std::fs::remove_file(&path).unwrap();
    assert!(matches!(world.restart(), Err(UndoError::Missing(_))));
    // A log of another list.
    let other = World::new(false);
    other.begin();
    std::fs::copy(other.logs().join("0.undo"), &path).unwrap();
    assert!(matches!(world.restart(), Err(UndoError::Missing(_))));
    std::fs::write(&path, log).unwrap();
    std::fs::write(&list, b"").unwrap();
    assert!(matches!(world.restart(), Err(UndoError::List(_))));
    std::fs::write(&list, whole).unwrap();
    world.restart().unwrap();
    world.roll_back();
    world.assert_untouched();
}

/// The least that mkfs.xfs takes, and a little more. Blocks that are not written take no space.
const DISK_BYTES: u64 = 400 << 20;

/// Runs tests of this file again, with all their files on an XFS of their own. False where the
/// system does not allow it.
fn on_xfs(tests: &[&str]) -> bool {
    let dir = tempfile::tempdir().unwrap();
    let (disk, point) = (dir.path().join("disk"), dir.path().join("mounted"));
    std::fs::File::create(&disk).unwrap().set_len(DISK_BYTES).unwrap();
    std::fs::create_dir(&point).unwrap();
    let script = "mkfs.xfs -q \"$1\" && mount -o loop \"$1\" \"$2\" || exit 77
        export TMPDIR=$2; program=$3; shift 3; exec \"$program\" --exact --nocapture \"$@\"";
    let mut command = std::process::Command::new("unshare");
    command.args(["-m", "sh", "-c", script, "sh"]).arg(&disk).arg(&point);
    command.arg(std::env::current_exe().unwrap());
    let names = tests.iter().map(|test| format!("undo::tests::{test}"));
    let Ok(output) = command.args(names).env(ON_XFS, "1").output() else { return false };
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    if output.status.code() != Some(0) && !text.contains("running") {
        println!("SKIPPED: no XFS can be mounted here: {errors}");
        return false;
    }
    assert!(output.status.success(), "{text}\n{errors}");
    assert!(text.contains(&format!("{} passed", tests.len())), "{text}");
    true
}

const ON_XFS: &str = "DAFS_SERVICE_TEST_XFS";

/// The tests above cover this case by themselves where their files are on such a file system.
#[test]
fn a_file_system_with_reflinks_keeps_a_copy() {
    if std::env::var_os(ON_XFS).is_none() {
        on_xfs(&[
            "a_file_system_with_reflinks_keeps_a_copy",
            "whatever_is_done_is_undone",
            "a_committed_change_stays",
            "it_does_not_matter_for_whom_the_thread_worked_last",
            "a_file_that_is_gone_needs_nothing",
        ]);
        return;
    }
    let mut world = World::new(true);
    let names = |world: &World| {
        let found = std::fs::read_dir(world.logs()).unwrap();
        let mut names: Vec<_> = found.map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    // More than the log could save piece by piece.
    let size = UNDO_BYTES_PER_LOCK_MAX + 12_345;
    world.plain().set_size(size).unwrap();
    world.original.resize(size as usize, 0);
    world.begin();
    assert_eq!(names(&world), ["0.copy", "0.undo"]);
    let file = world.file();
    let mut bytes = [9; 100];
    let wrote = file.write_at(&[view(&mut bytes)], 50, Stability::Unstable, Wait::Never);
    assert!(matches!(wrote, Ok(100) | Err(StoreError::WouldBlock)), "nothing is to be saved");
    file.set_size(70).unwrap();
    file.append(&[view(&mut bytes)], Stability::Data).unwrap();
    drop(file);
    // A copy whose log was not made.
    std::fs::write(world.logs().join("7.copy"), b"").unwrap();
    world.restart().unwrap();
    assert_eq!(names(&world), ["0.copy", "0.undo"]);
    world.begin();
    assert_eq!(world.undo().room.bytes(), 0);
    world.roll_back();
    world.assert_untouched();
}
