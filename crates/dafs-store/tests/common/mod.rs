//! What the tests of the stores share: worlds to run in, and short forms of the calls.
#![allow(dead_code, reason = "each test binary uses its part")]

#[path = "copies.rs"]
pub(crate) mod copies;
#[path = "nodes.rs"]
pub(crate) mod nodes;
#[path = "striped.rs"]
pub(crate) mod striped;

use dafs_mem::VolatileSlice;
use dafs_store::*;
use std::sync::Arc;
use tempfile::TempDir;

pub(crate) const READ_WRITE: OpenMode = OpenMode { read: true, write: true };
pub(crate) const READ: OpenMode = OpenMode { read: true, write: false };
pub(crate) const WRITE: OpenMode = OpenMode { read: false, write: true };

/// Set in the child that runs a test binary again without privileges.
const AGAIN: &str = "DAFS_STORE_TEST_AGAIN";
const NOBODY: u32 = 65_534;

/// A store and a caller who owns its root.
pub(crate) struct World {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) cred: Cred,
    pub(crate) dir: Option<TempDir>,
}

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// The user that runs the tests.
pub(crate) fn me() -> Cred {
    Cred::new(rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw())
}

pub(crate) fn skipped(reason: &str) {
    println!("SKIPPED: {reason}");
}

/// The same for want of what scripts/setup.sh installs: a failure where CI runs.
pub(crate) fn missing(reason: &str) {
    assert!(std::env::var("CI").as_deref() != Ok("true"), "CI skips nothing: {reason}");
    skipped(reason);
}

pub(crate) fn secret() -> ExportSecret {
    ExportSecret::from_bytes(*b"a test's secret.")
}

/// Opens a store as a server does, with all the descriptors that it can get.
pub(crate) fn open_posix(dir: &TempDir) -> PosixStore {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, rustix::process::Rlimit { current: limit.maximum, ..limit })
        .unwrap();
    PosixStore::open(dir.path(), PosixOptions::new(secret())).unwrap()
}

impl World {
    pub(crate) fn memory() -> Option<Self> {
        let cred = Cred::new(1000, 100);
        let options = MemoryOptions { root_owner: (1000, 100), ..MemoryOptions::default() };
        Some(Self { store: Arc::new(MemoryStore::new(options)), cred, dir: None })
    }

    /// A temporary directory, called by whoever runs the tests.
    pub(crate) fn posix() -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        Some(Self { store: Arc::new(open_posix(&dir)), cred: me(), dir: Some(dir) })
    }

    /// A temporary directory that belongs to an ordinary caller of a privileged server.
    pub(crate) fn posix_other_user() -> Option<Self> {
        if !is_root() {
            skipped("acting as another user needs root");
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::chown(dir.path(), Some(1000), Some(100)).unwrap();
        let cred = Cred::new(1000, 100);
        Some(Self { store: Arc::new(open_posix(&dir)), cred, dir: Some(dir) })
    }

    /// Content on three directories, called by whoever runs the tests.
    pub(crate) fn striped() -> Option<Self> {
        Some(Self::spread(1, me()))
    }

    /// The same for an ordinary caller of a privileged server.
    pub(crate) fn striped_other_user() -> Option<Self> {
        Self::spread_for_other_user(1)
    }

    /// Each file on two of three directories, called by whoever runs the tests.
    pub(crate) fn copied() -> Option<Self> {
        Some(Self::spread(2, me()))
    }

    /// The same for an ordinary caller of a privileged server.
    pub(crate) fn copied_other_user() -> Option<Self> {
        Self::spread_for_other_user(2)
    }

    fn spread(copies: usize, cred: Cred) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let meta = dir.path().join("meta");
        std::fs::create_dir(&meta).unwrap();
        if cred.uid != me().uid {
            std::os::unix::fs::chown(&meta, Some(cred.uid), Some(cred.gid)).unwrap();
        }
        let nodes = (1..=3).map(|number| striped::node(dir.path(), number)).collect();
        let store = Arc::new(striped::open_copies(dir.path(), nodes, copies));
        Self { store, cred, dir: Some(dir) }
    }

    fn spread_for_other_user(copies: usize) -> Option<Self> {
        if !is_root() {
            skipped("acting as another user needs root");
            return None;
        }
        Some(Self::spread(copies, Cred::new(1000, 100)))
    }

    pub(crate) fn root(&self) -> FileId {
        self.store.root()
    }

    pub(crate) fn create(&self, dir: &FileId, name: &str) -> Created {
        let attr = SetAttr { mode: Some(0o644), ..SetAttr::default() };
        let how = CreateHow::Guarded;
        self.store.create(&self.cred, dir, name.as_bytes(), how, &attr, READ_WRITE).unwrap()
    }

    pub(crate) fn mkdir(&self, dir: &FileId, name: &str) -> FileId {
        let attr = SetAttr { mode: Some(0o755), ..SetAttr::default() };
        self.make(dir, name, NewObject::Directory, &attr).unwrap().id
    }

    pub(crate) fn make(
        &self,
        dir: &FileId,
        name: &str,
        object: NewObject<'_>,
        attr: &SetAttr,
    ) -> Result<Made> {
        self.store.make(&self.cred, dir, name.as_bytes(), object, attr)
    }

    pub(crate) fn lookup(&self, dir: &FileId, name: &str) -> Result<FileId> {
        self.store.lookup(&self.cred, dir, name.as_bytes()).map(|(id, _)| id)
    }

    pub(crate) fn remove(&self, dir: &FileId, name: &str) -> Result<DirChange> {
        self.store.remove(&self.cred, dir, name.as_bytes())
    }

    pub(crate) fn rename(
        &self,
        from_dir: &FileId,
        from: &str,
        to_dir: &FileId,
        to: &str,
    ) -> Result<()> {
        self.store.rename(&self.cred, from_dir, from.as_bytes(), to_dir, to.as_bytes()).map(|_| ())
    }

    /// All names of a directory, in order of the names.
    pub(crate) fn names(&self, dir: &FileId) -> Vec<String> {
        let mut names = Vec::new();
        let end = self.store.readdir(&self.cred, dir, 0, false, &mut |entry| {
            names.push(String::from_utf8_lossy(entry.name).into_owned());
            true
        });
        assert_eq!(end, Ok(true));
        names.sort();
        names
    }
}

pub(crate) fn write(file: &dyn OpenFile, offset: u64, bytes: &[u8]) -> Result<usize> {
    let mut bytes = bytes.to_vec();
    let views = [VolatileSlice::from_mut(&mut bytes)];
    file.write_at(&views, offset, Stability::Unstable, Wait::Allowed)
}

pub(crate) fn read(file: &dyn OpenFile, offset: u64, len: usize) -> Result<Vec<u8>> {
    let mut bytes = vec![0xee; len];
    let got = file.read_at(&[VolatileSlice::from_mut(&mut bytes)], offset, Wait::Allowed)?;
    bytes.truncate(got);
    Ok(bytes)
}

/// Runs this test binary again as an ordinary user. Tests that do such things are named
/// `everything_again_...` and left out.
pub(crate) fn run_again_without_privileges() {
    use std::os::unix::process::CommandExt;
    let program = std::env::current_exe().unwrap();
    let mut command = std::process::Command::new(program);
    command.uid(NOBODY).gid(NOBODY);
    run_again(command);
}

/// Runs this test binary again as root without the capability to open objects by handle, which is
/// what root in a container is.
pub(crate) fn run_again_as_root_in_a_container() {
    let program = std::env::current_exe().unwrap();
    let mut command = std::process::Command::new("setpriv");
    command.arg("--bounding-set=-dac_read_search,-sys_admin").arg(program);
    run_again(command);
}

fn run_again(mut command: std::process::Command) {
    if std::env::var_os(AGAIN).is_some() {
        return;
    }
    if !is_root() {
        return skipped("giving up privileges needs some");
    }
    command.args(["--skip", "everything_again", "--nocapture"]).env(AGAIN, "1").current_dir("/");
    match command.output() {
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stdout);
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "run again:\n{text}\n{errors}");
            assert!(text.contains("test result: ok"), "{text}");
        }
        Err(error) => skipped(&format!("cannot run the tests again: {error}")),
    }
}

/// Runs one test again in a mount namespace of its own and tells whether this is that run. Skips
/// where the system does not let it.
pub(crate) fn in_own_mounts(test: &str) -> bool {
    const INSIDE: &str = "DAFS_STORE_TEST_MOUNTS";
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    if !is_root() {
        skipped("mounting needs root");
        return false;
    }
    let possible = std::process::Command::new("unshare").args(["-m", "true"]).status();
    if !possible.is_ok_and(|status| status.success()) {
        skipped("no own mount namespace: unshare(1) is missing or not allowed");
        return false;
    }
    let program = std::env::current_exe().unwrap();
    let mut command = std::process::Command::new("unshare");
    command.arg("-m").arg(program).args(["--exact", test, "--nocapture"]).env(INSIDE, "1");
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}\n{errors}");
    assert!(text.contains("1 passed"), "{text}");
    print!("{text}");
    false
}

/// Mounts something; tells whether that worked.
pub(crate) fn mount(arguments: &[&str]) -> bool {
    let output = std::process::Command::new("mount").args(arguments).output();
    match output {
        Ok(output) if output.status.success() => true,
        Ok(output) => {
            skipped(&format!("mount: {}", String::from_utf8_lossy(&output.stderr)));
            false
        }
        Err(error) => {
            skipped(&format!("mount: {error}"));
            false
        }
    }
}
