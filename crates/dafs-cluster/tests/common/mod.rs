//! A cluster in a directory.

use dafs_cluster::{
    ClusterSecret, DataNode, DataNodeConfig, DataNodeError, Metadata, NodeCounters, Opened,
    RemoteConfig, RemoteNode,
};
use dafs_mem::{Mutex, Site, VolatileSlice};
use dafs_service::{ForeignStates, ForeignUse, NfsCaller, ServiceError};
use dafs_store::node::ComponentId;
use dafs_store::{FileId, StoreError};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

pub(crate) const STORE: [u8; 16] = [4; 16];

/// The counters of clients at each data server.
pub(crate) const COUNTERS: NodeCounters =
    NodeCounters { read_bytes: 7, written_bytes: 8, indirect_bytes: 9 };

pub(crate) struct Cluster {
    root: tempfile::TempDir,
    /// Kept, so that a restarted data server is found there.
    control: TcpListener,
    pub(crate) addresses: Vec<SocketAddr>,
}

impl Cluster {
    pub(crate) fn new() -> Self {
        let root = tempfile::tempdir().expect("a directory");
        std::fs::create_dir(root.path().join("data")).expect("a directory");
        // The system keeps a port that was asked for when listening ends.
        let chosen = TcpListener::bind("127.0.0.1:0").expect("a listener");
        let address = chosen.local_addr().expect("its address");
        drop(chosen);
        let control = TcpListener::bind(address).expect("the same port");
        Self { root, control, addresses: vec!["192.0.2.1:2049".parse().expect("an address")] }
    }

    /// A cluster with a data server, and the connected node of the metadata server.
    pub(crate) fn joined() -> (Self, DataNode, RemoteNode) {
        let cluster = Self::new();
        let data = cluster.data();
        let node = cluster.node(&data);
        settled(|| node.status().connected);
        (cluster, data, node)
    }

    pub(crate) fn directory(&self) -> PathBuf {
        self.root.path().join("data")
    }

    pub(crate) fn memory(&self, number: u32) -> PathBuf {
        self.root.path().join(format!("memory-{number}"))
    }

    pub(crate) fn data(&self) -> DataNode {
        self.data_with(|_| Ok(())).expect("a data server")
    }

    /// A data server whose front end for clients may fail to open.
    pub(crate) fn data_with(
        &self,
        mut opened: impl FnMut(Opened) -> io::Result<()> + Send + 'static,
    ) -> Result<DataNode, DataNodeError> {
        // An earlier data server has ended listening.
        rustix::net::listen(&self.control, 128).expect("listening again");
        let config = DataNodeConfig {
            directory: self.directory(),
            secret: secret(1),
            listener: self.control.try_clone().expect("the listener"),
            addresses: self.addresses.clone(),
            rdma_addresses: vec!["192.0.2.1:20049".parse().expect("an address")],
            dafs_addresses: Vec::new(),
            opened: Box::new(move |directory, _judge| {
                let node = directory.node.clone();
                opened(directory)?;
                let counters = Box::new(|| COUNTERS);
                Ok(dafs_cluster::Answering { node, counters })
            }),
            lost: Box::new(|| {}),
        };
        DataNode::start(config)
    }

    pub(crate) fn node(&self, data: &DataNode) -> RemoteNode {
        self.node_numbered(data, 1)
    }

    pub(crate) fn node_numbered(&self, data: &DataNode, number: u32) -> RemoteNode {
        self.remote(data, 1, number, true)
    }

    /// A node of another cluster.
    pub(crate) fn stranger(&self, data: &DataNode) -> RemoteNode {
        self.remote(data, 9, 1, true)
    }

    /// A node whose files are in another file system.
    pub(crate) fn node_beside(&self, data: &DataNode) -> RemoteNode {
        self.remote(data, 1, 1, false)
    }

    fn remote(
        &self,
        data: &DataNode,
        secret_byte: u8,
        number: u32,
        holds_files: bool,
    ) -> RemoteNode {
        let (control, memory) = (data.address().to_string(), self.memory(number));
        let (secret, store) = (secret(secret_byte), STORE);
        let config = RemoteConfig { number, control, secret, store, memory, holds_files };
        RemoteNode::start(config).expect("a node")
    }
}

fn secret(byte: u8) -> Arc<ClusterSecret> {
    Arc::new(ClusterSecret::from_bytes([byte; 32]))
}

/// Waits until a condition holds that other threads bring about.
pub(crate) fn settled(holds: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < end, "it did not come about");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A metadata server with answers that the test sets.
pub(crate) struct Answering {
    questions: AtomicU32,
    refusal: Mutex<Option<ServiceError>>,
    caller: Mutex<Option<NfsCaller>>,
    age: Mutex<Option<Duration>>,
    written: Mutex<Vec<u8>>,
}

impl Answering {
    pub(crate) fn new() -> Arc<Self> {
        let (questions, refusal) = (AtomicU32::new(0), Mutex::default());
        let (age, caller) = (Mutex::default(), Mutex::default());
        Arc::new(Self { questions, refusal, caller, age, written: Mutex::default() })
    }

    pub(crate) fn questions(&self) -> u32 {
        self.questions.load(Ordering::SeqCst)
    }

    pub(crate) fn refuse(&self, why: Option<ServiceError>) {
        *self.refusal.lock() = why;
    }

    /// Limits the age of sessions.
    pub(crate) fn allow_younger(&self, age: Duration) {
        *self.age.lock() = Some(age);
    }

    /// The caller of the last question.
    pub(crate) fn caller(&self) -> Option<NfsCaller> {
        *self.caller.lock()
    }

    pub(crate) fn written(&self) -> Vec<u8> {
        self.written.lock().clone()
    }
}

impl ForeignStates for Answering {
    fn check(&self, wanted: &ForeignUse<'_>) -> dafs_service::Result<Option<Duration>> {
        assert_eq!((wanted.state.id.0, wanted.state.seqid), (7 << 32, 1));
        self.questions.fetch_add(1, Ordering::SeqCst);
        *self.caller.lock() = wanted.caller;
        let age = *self.age.lock();
        self.refusal.lock().map_or(Ok(age), Err)
    }

    fn size(&self, _component: &FileId) -> dafs_store::Result<u64> {
        Err(StoreError::NotSupported)
    }
}

impl Metadata for Answering {
    fn size_of(&self, _component: &ComponentId) -> dafs_store::Result<u64> {
        Ok(77)
    }

    fn read(
        &self,
        _component: &ComponentId,
        views: &[VolatileSlice<'_>],
        _offset: u64,
    ) -> dafs_store::Result<usize> {
        Ok(views[0].copy_from(b"elsewhere", Site::Sim))
    }

    fn write(
        &self,
        _component: &ComponentId,
        views: &[VolatileSlice<'_>],
        _offset: u64,
    ) -> dafs_store::Result<usize> {
        *self.written.lock() = views[0].to_vec(Site::Sim);
        Ok(views[0].len())
    }
}
