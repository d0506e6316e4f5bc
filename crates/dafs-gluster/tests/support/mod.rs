//! The test cluster, and worlds in it: each test has its own directory.
#![allow(dead_code, reason = "each test binary uses its part")]

use dafs_gluster::{DataPlace, DataServerOptions, GlusterData, GlusterOptions, GlusterStore};
use dafs_store::*;
use dafs_testkit::engines::{self, EngineCluster};
use dafs_testkit::stores::{self, World, missing};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

pub(crate) struct Cluster {
    /// The directory; brick N is in `N/brick`.
    pub(crate) dir: PathBuf,
    pub(crate) server: String,
    _running: EngineCluster,
    /// The root of the volume, to make directories in.
    top: GlusterStore,
}

pub(crate) fn options(server: &str, root: &str) -> GlusterOptions {
    GlusterOptions {
        volume: "dist".to_owned(),
        servers: vec![(server.to_owned(), None)],
        root: root.to_owned(),
        secret: stores::secret(),
        data_servers: Vec::new(),
        data_keys: None,
        data_fs: |fs| *fs,
    }
}

pub(crate) fn cluster() -> Option<&'static Cluster> {
    static CLUSTER: OnceLock<Option<Cluster>> = OnceLock::new();
    let start = || {
        let running = engines::glusterfs()?;
        let (dir, server) = running.description.split_once(' ').expect("the cluster has started");
        let (dir, server) = (PathBuf::from(dir), server.to_owned());
        let top = GlusterStore::open(&options(&server, "/")).unwrap();
        Some(Cluster { dir, server, _running: running, top })
    };
    let cluster = CLUSTER.get_or_init(start).as_ref();
    if cluster.is_none() {
        missing("no GlusterFS to test with");
    }
    cluster
}

/// A store of a fresh directory that belongs to the caller. Its options open it again.
pub(crate) fn fresh(cred: &Cred) -> Option<(GlusterStore, GlusterOptions)> {
    let cluster = cluster()?;
    let name = stores::fresh_directory(&cluster.top, cred);
    let options = options(&cluster.server, &format!("/{name}"));
    Some((GlusterStore::open(&options).unwrap(), options))
}

/// A world for the suites, with root or an ordinary user as its caller.
pub(crate) fn world(ordinary: bool) -> Option<World> {
    let cred = if ordinary { Cred::new(1000, 100) } else { Cred::new(0, 0) };
    let (store, _) = fresh(&cred)?;
    Some(World { store: Arc::new(store), cred, dir: None })
}

/// A store, and the data servers of its directory.
pub(crate) fn served() -> Option<(GlusterStore, Vec<Arc<GlusterData>>)> {
    let cluster = cluster()?;
    let (_, mut options) = fresh(&stores::me())?;
    let net = cluster.server.strip_suffix(".1").unwrap();
    options.data_servers = (1..=3)
        .map(|number| DataServerOptions {
            place: DataPlace::Here(NfsAddresses::over_tcp(vec![
                format!("127.0.0.1:{number}").parse().unwrap(),
            ])),
            brick: format!("{net}.{number}:{}/{number}/brick", cluster.dir.display()),
        })
        .collect();
    let store = GlusterStore::open(&options).unwrap();
    let servers = store.data_servers();
    Some((store, servers))
}

/// Returns the data server of the file's placement, and the file's id there.
pub(crate) fn placed(store: &GlusterStore, id: &FileId) -> (usize, FileId) {
    let placement = store.layouts().unwrap().placement(id, true).unwrap().unwrap();
    let Spread::Stripes(stripes) = placement.spread else { panic!("stripes") };
    let device = store.layouts().unwrap().device(&stripes.device).unwrap();
    assert_eq!((device.pattern.len(), device.servers.len(), stripes.handles.len()), (1, 1, 1));
    let (_, file) = stripes.handles[0].split_at(16);
    let at = usize::from(device.servers[0].tcp[0].port()) - 1;
    (at, FileId(file.try_into().unwrap()))
}

/// A new file of the store's owner.
pub(crate) fn make(store: &GlusterStore, name: &str) -> Created {
    let (cred, attr, how) = (stores::me(), SetAttr::default(), CreateHow::Guarded);
    store.create(&cred, &store.root(), name.as_bytes(), how, &attr, stores::READ_WRITE).unwrap()
}
