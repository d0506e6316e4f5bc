//! The test cluster, and worlds in it: each test has its own directory.

use dafs_cephfs::{CephOptions, CephStore, DataPlace, DataServerOptions, Told};
use dafs_store::*;
use dafs_testkit::engines::{self, EngineCluster};
use dafs_testkit::stores::{self, World, missing};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, OnceLock};

/// Names a running cluster by its configuration.
const RUNNING: &str = "DAFS_TEST_CEPH_CONF";

struct Cluster {
    config: PathBuf,
    _running: Option<EngineCluster>,
    /// The root of the file system, to make directories in.
    top: CephStore,
}

pub(crate) fn options(config: &Path, root: &str, identity: &str, mounts: usize) -> CephOptions {
    CephOptions {
        config: Some(config.to_path_buf()),
        user: None,
        keyring: None,
        file_system: None,
        root: root.to_owned(),
        identity: identity.to_owned(),
        secret: stores::secret(),
        mounts,
        data_servers: Vec::new(),
        data_keys: None,
        told: Told::Placement,
        data_fs: |fs| *fs,
    }
}

fn cluster() -> Option<&'static Cluster> {
    static CLUSTER: OnceLock<Option<Cluster>> = OnceLock::new();
    let start = || {
        let (config, running) = match std::env::var_os(RUNNING) {
            Some(config) => (PathBuf::from(config), None),
            None => {
                let running = engines::cephfs()?;
                (PathBuf::from(&running.description), Some(running))
            }
        };
        assert!(config.is_file(), "the cluster does not start: {}", config.display());
        let name = format!("test-top-{}", std::process::id());
        let top = CephStore::open(&options(&config, "/", &name, 1)).unwrap();
        Some(Cluster { config, _running: running, top })
    };
    CLUSTER.get_or_init(start).as_ref()
}

/// A store of a fresh directory that belongs to the caller. Its options open it again.
pub(crate) fn fresh(mounts: usize, cred: &Cred) -> Option<(CephStore, CephOptions)> {
    let Some(cluster) = cluster() else {
        missing("no CephFS to test with");
        return None;
    };
    let name = stores::fresh_directory(&cluster.top, cred);
    let options = options(&cluster.config, &format!("/{name}"), &name, mounts);
    Some((CephStore::open(&options).unwrap(), options))
}

/// A world for the suites, with root or an ordinary user as its caller.
pub(crate) fn world(mounts: usize, ordinary: bool) -> Option<World> {
    let cred = if ordinary { Cred::new(1000, 100) } else { Cred::new(0, 0) };
    let store = Arc::new(fresh(mounts, &cred)?.0);
    unmount_apart(store.clone());
    Some(World { store, cred, dir: None })
}

/// Unmounts when the test is over, without keeping it waiting: libcephfs gives the last capability of
/// a mount back at its next tick, of which there is one a second.
fn unmount_apart(store: Arc<CephStore>) {
    std::thread::spawn(move || {
        while Arc::strong_count(&store) > 1 {
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    });
}

/// A store with a data server next to all daemons. Its options open it again.
pub(crate) fn served() -> Option<(CephStore, CephOptions)> {
    let (store, mut options) = fresh(1, &stores::me())?;
    drop(store);
    let addresses = NfsAddresses::over_tcp(vec!["127.0.0.1:1".parse().unwrap()]);
    let place = DataPlace::Here { addresses, network: None };
    options.data_servers = vec![DataServerOptions { place, daemons: vec![0, 1, 2] }];
    Some((CephStore::open(&options).unwrap(), options))
}

/// Returns the file's id at data servers.
pub(crate) fn placed(store: &CephStore, id: &FileId) -> FileId {
    let placement = store.layouts().unwrap().placement(id, true).unwrap().unwrap();
    let Spread::Stripes(stripes) = placement.spread else { panic!("stripes") };
    FileId(stripes.handles[0][16..].try_into().unwrap())
}

/// Returns the bytes that clients have read from all storage daemons; `None` without access to their
/// counters.
pub(crate) fn bytes_read() -> Option<u64> {
    let sockets = std::fs::read_dir(cluster()?.config.parent()?.join("run")).ok()?;
    let sockets = sockets.map(|entry| entry.unwrap().path());
    let is_daemon = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        name.starts_with("osd.") && name.ends_with(".asok")
    };
    let counted = |socket: PathBuf| -> Option<u64> {
        let mut dump = Command::new("ceph");
        let output = dump.arg("--admin-daemon").arg(socket).args(["perf", "dump", "osd"]).output();
        let text = String::from_utf8(output.ok()?.stdout).ok()?;
        let (_, rest) = text.split_once("\"op_r_out_bytes\":")?;
        rest.split([',', '}', '\n']).next()?.trim().parse().ok()
    };
    let counts: Vec<_> = sockets.filter(is_daemon).map(counted).collect();
    if counts.is_empty() { None } else { counts.into_iter().sum() }
}

/// The MDS is stopped while this guard lives.
pub(crate) struct Frozen(String);

impl Frozen {
    pub(crate) fn begin() -> Self {
        let config = cluster().unwrap().config.to_str().unwrap().as_bytes();
        let is_server = |pid: &str| {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let mut words = line.split(|&byte| byte == 0);
            words.next().is_some_and(|name| name.ends_with(b"ceph-mds"))
                && words.any(|word| word == config)
        };
        let mut pids = std::fs::read_dir("/proc").unwrap().filter_map(|entry| {
            let pid = entry.unwrap().file_name().into_string().unwrap();
            is_server(&pid).then_some(pid)
        });
        let frozen = Self(pids.next().expect("a metadata server"));
        frozen.signal("-STOP");
        frozen
    }

    fn signal(&self, signal: &str) {
        assert!(Command::new("kill").args([signal, &self.0]).status().unwrap().success());
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        self.signal("-CONT");
    }
}
