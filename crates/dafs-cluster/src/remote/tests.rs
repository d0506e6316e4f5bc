//! The connection as others on the network meet it: who listens, repeats, or sits between.

use super::*;
use crate::data::{Answering, DataNode, DataNodeConfig};
use crate::tls::{self, Line, Secured, TlsError, framed};
use dafs_service::ForeignUse;
use dafs_store::FileId;
use dafs_wire::cluster::{Frame, HELLO_BYTES_MAX};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use tempfile::TempDir;

const ONE: ComponentId = ComponentId([1; 16]);
const LIMIT: Duration = Duration::from_secs(60);
/// How long a data server leaves a connection by an old secret.
const CHANGE_TIME: Duration = Duration::from_millis(50);
const MARKER: &[u8] = b"a content that nobody else may read";

fn settled(holds: impl Fn() -> bool) {
    let end = Instant::now() + LIMIT;
    while !holds() {
        assert!(Instant::now() < end, "it did not come about");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn secret() -> Arc<ClusterSecret> {
    Arc::new(ClusterSecret::from_bytes([1; 32]))
}

struct Cluster {
    root: TempDir,
    data: DataNode,
}

impl Cluster {
    fn new() -> Self {
        Self::with(|node| node)
    }

    /// With a data server whose calls are answered by what `answering` makes of its directory.
    fn with(answering: fn(Arc<dyn Node>) -> Arc<dyn Node>) -> Self {
        let root = tempfile::tempdir().unwrap();
        let directory = root.path().join("data");
        std::fs::create_dir(&directory).unwrap();
        let config = DataNodeConfig {
            directory,
            secret: secret(),
            listener: TcpListener::bind("127.0.0.1:0").unwrap(),
            addresses: vec!["192.0.2.1:2049".parse().unwrap()],
            rdma_addresses: Vec::new(),
            dafs_addresses: Vec::new(),
            opened: Box::new(move |opened, _judge| {
                let counters = Box::new(NodeCounters::default);
                Ok(Answering { node: answering(opened.node), counters })
            }),
            lost: Box::new(|| {}),
        };
        Self { root, data: DataNode::start_with(config, CHANGE_TIME).unwrap() }
    }

    /// A metadata server's node that connects to some address.
    fn node(&self, control: SocketAddr, records_max: u64) -> RemoteNode {
        let config = RemoteConfig {
            number: 1,
            control: control.to_string(),
            secret: secret(),
            store: [4; 16],
            memory: self.memory(),
            holds_files: true,
        };
        RemoteNode::start_with(config, records_max).unwrap()
    }

    fn memory(&self) -> PathBuf {
        self.root.path().join("memory")
    }

    /// The joins that the metadata server has recorded.
    fn joins(&self) -> u64 {
        match memory::recall(&self.memory()).unwrap() {
            dafs_wire::cluster::Membership::Known { joins, .. } => joins,
            other => panic!("{other:?}"),
        }
    }
}

/// Serves each connection to an address by a function, until the test ends.
fn between(
    target: SocketAddr,
    serve: impl Fn(TcpStream, TcpStream) + Send + 'static,
) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            serve(stream.unwrap(), TcpStream::connect(target).unwrap());
        }
    });
    address
}

/// Passes bytes on, and keeps them.
fn tap(mut from: TcpStream, mut to: TcpStream, kept: Arc<Mutex<Vec<u8>>>) {
    std::thread::spawn(move || {
        let mut bytes = [0; 4096];
        while let Ok(count @ 1..) = from.read(&mut bytes) {
            kept.lock().extend_from_slice(&bytes[..count]);
            if to.write_all(&bytes[..count]).is_err() {
                break;
            }
        }
        let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
    });
}

fn write(node: &RemoteNode, data: &[u8]) -> Result<()> {
    let mut data = data.to_vec();
    let wanted = data.len();
    let view = VolatileSlice::from_mut(&mut data);
    let written = node.write(&ONE, &[view], 0, Stability::Unstable)?;
    assert_eq!(written.count, wanted);
    Ok(())
}

fn has_marker(bytes: &[u8]) -> bool {
    bytes.windows(MARKER.len()).any(|window| window == MARKER)
}

#[test]
fn an_observer_reads_nothing_and_a_recording_is_of_no_use() {
    let cluster = Cluster::new();
    let (up, down) = (Arc::<Mutex<Vec<u8>>>::default(), Arc::<Mutex<Vec<u8>>>::default());
    let kept = (up.clone(), down.clone());
    let way = between(cluster.data.address(), move |client, server| {
        tap(client.try_clone().unwrap(), server.try_clone().unwrap(), kept.0.clone());
        tap(server, client, kept.1.clone());
    });
    let node = cluster.node(way, u64::MAX);
    settled(|| node.status().connected && cluster.data.is_connected());
    write(&node, MARKER).unwrap();
    let mut read = vec![0; MARKER.len()];
    node.read(&ONE, &[VolatileSlice::from_mut(&mut read)], 0).unwrap();
    assert_eq!(read, MARKER);
    // The same message in the clear would have been found.
    let call = Call::Write { component: ONE.0, offset: 0, stable: false, data: MARKER };
    assert!(has_marker(&framed(&Frame::Call { id: 0, call }, MARKER.len())));
    assert!(up.lock().len() > MARKER.len() && !has_marker(&up.lock()));
    assert!(down.lock().len() > MARKER.len() && !has_marker(&down.lock()));
    // The recording of the metadata server gets no answer behind the hello of TLS.
    let joins = cluster.joins();
    let recording = up.lock().clone();
    let mut replay = TcpStream::connect(cluster.data.address()).unwrap();
    replay.set_read_timeout(Some(LIMIT)).unwrap();
    let _ = replay.write_all(&recording);
    let mut answer = Vec::new();
    let _ = replay.read_to_end(&mut answer);
    assert!(answer.len() < down.lock().len());
    assert_eq!((node.size(&ONE), cluster.joins()), (Ok(MARKER.len() as u64), joins));
}

/// Has TLS with both ends, and passes the messages of both on unchanged. True if the metadata server goes
/// on after the answer of the data server.
fn pass_on(client: &TcpStream, server: &TcpStream) -> std::result::Result<bool, TlsError> {
    let line = |stream| Line { stream, end: Instant::now() + LIMIT };
    let (left, right) = (&mut line(client), &mut line(server));
    let Secured { sender: mut to_left, receiver: mut from_left, .. } =
        tls::accept(&tls::server_side()?, left)?;
    let Secured { sender: mut to_right, receiver: mut from_right, .. } = tls::connect(right)?;
    let room = |body: &[u8]| [&[0; 4][..], body].concat();
    to_right.send(room(from_left.receive(HELLO_BYTES_MAX, left)?.body()), right)?;
    to_left.send(room(from_right.receive(HELLO_BYTES_MAX, right)?.body()), left)?;
    Ok(from_left.receive(HELLO_BYTES_MAX, left).is_ok())
}

/// A node that computes digests of more bytes than were asked for.
struct Liar;

impl Node for Liar {
    fn number(&self) -> u32 {
        1
    }

    fn addresses(&self) -> Vec<SocketAddr> {
        Vec::new()
    }

    fn digest(&self, _: &ComponentId, offset: u64, len: usize) -> Result<Digest> {
        match offset {
            0 => Err(StoreError::Io),
            _ => Ok(Digest { count: len + 1, hash: [0; 16] }),
        }
    }

    fn size(&self, _: &ComponentId) -> Result<u64> {
        Ok(0)
    }

    fn drop_grants(&self, _: &ComponentId) -> Result<()> {
        Ok(())
    }
}

/// A comparison of copies would take it for a damaged disk.
#[test]
fn a_wrong_answer_is_no_error_of_a_device() {
    let cluster = Cluster::with(|_| Arc::new(Liar));
    let node = cluster.node(cluster.data.address(), u64::MAX);
    settled(|| node.status().connected);
    assert_eq!(node.digest(&ONE, 0, 100), Err(StoreError::Io));
    assert_eq!(node.digest(&ONE, 1, 100), Err(StoreError::Malformed));
}

#[test]
fn a_man_in_the_middle_is_refused() {
    let cluster = Cluster::new();
    let passed = Arc::new(AtomicBool::new(false));
    let told = passed.clone();
    let way = between(cluster.data.address(), move |client, server| {
        if pass_on(&client, &server).is_ok_and(|goes_on| !goes_on) {
            told.store(true, Ordering::SeqCst);
        }
    });
    let node = cluster.node(way, u64::MAX);
    settled(|| passed.load(Ordering::SeqCst));
    settled(|| node.status().trouble.contains("a third one is between the two"));
    assert!(!node.status().connected && !cluster.data.is_connected());
    assert_eq!(write(&node, MARKER), Err(StoreError::Busy));
    // The two work together without it.
    drop(node);
    let node = cluster.node(cluster.data.address(), u64::MAX);
    settled(|| node.status().connected);
}

#[test]
fn peers_without_tls_are_refused_with_the_remedy() {
    let cluster = Cluster::new();
    // A metadata server of an earlier version.
    let mut old = TcpStream::connect(cluster.data.address()).unwrap();
    let hello = dafs_wire::cluster::Hello { version: 4, store: [4; 16], number: 1, nonce: [0; 32] };
    let mut hello = framed(&hello, 0);
    let len = hello.len() as u32 - 4;
    hello[..4].copy_from_slice(&len.to_be_bytes());
    old.write_all(&hello).unwrap();
    old.set_read_timeout(Some(LIMIT)).unwrap();
    let mut answer = Vec::new();
    let _ = old.read_to_end(&mut answer);
    assert_eq!(answer, [0; 4]);
    // A data server of an earlier version.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let node = cluster.node(listener.local_addr().unwrap(), u64::MAX);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut length = [0; 4];
            stream.unwrap().read_exact(&mut length).unwrap();
            assert!(u32::from_be_bytes(length) as usize > HELLO_BYTES_MAX, "it would wait");
        }
    });
    settled(|| node.status().trouble.contains("give all servers of the cluster the same version"));
    assert!(!node.status().connected);
}

#[test]
fn a_connection_whose_keys_are_spent_is_replaced_and_no_call_fails() {
    const CALLERS: u64 = 4;
    const CALLS: u64 = 100;
    let cluster = Cluster::new();
    let node = cluster.node(cluster.data.address(), 40);
    settled(|| node.status().connected);
    let first = cluster.joins();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let call = |caller: u64| {
            let component = ComponentId([caller as u8 + 1; 16]);
            for at in 0..CALLS {
                let mut data = (caller << 32 | at).to_be_bytes();
                let views = [VolatileSlice::from_mut(&mut data)];
                let written = node.write(&component, &views, at * 8, Stability::Unstable);
                assert_eq!(written.map(|written| written.count), Ok(8));
                assert_eq!(node.size(&component), Ok((at + 1) * 8));
                assert_eq!(node.drop_grants(&component), Ok(()));
            }
        };
        scope.spawn(|| {
            while !done.load(Ordering::SeqCst) {
                assert!(node.is_reachable(), "the node is away");
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let callers: Vec<_> =
            (0..CALLERS).map(|caller| scope.spawn(move || call(caller))).collect();
        let ended = callers.into_iter().all(|caller| caller.join().is_ok());
        done.store(true, Ordering::SeqCst);
        assert!(ended);
    });
    assert!(cluster.joins() >= first + 3, "from {first} to {}", cluster.joins());
}

#[test]
fn a_connection_ends_with_the_secret_by_which_it_was_made() {
    let (old, new, one) = ([1; 32], [9; 32], ClusterSecret::from_bytes);
    let cluster = Cluster::new();
    let node = cluster.node(cluster.data.address(), u64::MAX);
    settled(|| node.status().connected);
    let joins = cluster.joins();
    let follow = |read: &ClusterSecret| {
        assert!(node.shared.config.secret.follow(read));
        node.follow_secret();
    };
    for read in [one(old).accepting(new), one(new).accepting(old)] {
        assert!(cluster.data.follow_secret(&read));
        follow(&read);
        assert_eq!((write(&node, MARKER), cluster.joins()), (Ok(()), joins));
    }
    follow(&one(new));
    settled(|| cluster.joins() > joins);
    settled(|| node.status().connected);
    write(&node, MARKER).unwrap();
}

/// One that knows the old secret alone may be between the two, and keep the metadata server away.
#[test]
fn a_data_server_leaves_no_connection_by_the_old_secret() {
    let (old, new, one) = ([1; 32], [9; 32], ClusterSecret::from_bytes);
    let cluster = Cluster::new();
    let node = cluster.node(cluster.data.address(), u64::MAX);
    settled(|| node.status().connected);
    for read in [one(old).accepting(new), one(new).accepting(old)] {
        assert!(cluster.data.follow_secret(&read));
        std::thread::sleep(2 * CHANGE_TIME);
        assert_eq!((cluster.data.is_connected(), write(&node, MARKER)), (true, Ok(())));
    }
    let joins = cluster.joins();
    assert!(cluster.data.follow_secret(&one(new)));
    settled(|| !cluster.data.is_connected());
    settled(|| !node.status().connected && node.status().trouble.contains("secret"));
    assert!(node.shared.config.secret.follow(&one(new)));
    settled(|| node.status().connected);
    assert!(cluster.joins() > joins);
    write(&node, MARKER).unwrap();
}

#[test]
fn calls_do_not_wait_for_a_new_connection_that_fails() {
    let cluster = Cluster::new();
    let is_first = AtomicBool::new(true);
    let way = between(cluster.data.address(), move |client, server| {
        if is_first.swap(false, Ordering::SeqCst) {
            tap(client.try_clone().unwrap(), server.try_clone().unwrap(), Arc::default());
            tap(server, client, Arc::default());
        }
    });
    let node = cluster.node(way, 40);
    settled(|| node.status().connected);
    let mut calls = (0..1000).map(|_| node.size(&ONE));
    assert!(calls.any(|size| size == Err(StoreError::Busy)));
    settled(|| node.status().trouble.contains("ended the connection"));
    assert!(!node.status().connected);
}

/// Knows no state, and learns a size when the gate opens.
struct Slow {
    begun: AtomicBool,
    gate: Mutex<mpsc::Receiver<()>>,
}

impl ForeignStates for Slow {
    fn check(&self, _wanted: &ForeignUse<'_>) -> dafs_service::Result<Option<Duration>> {
        Err(dafs_service::ServiceError::BadStateId)
    }

    fn size(&self, _component: &FileId) -> Result<u64> {
        Err(StoreError::NotSupported)
    }
}

impl Metadata for Slow {
    fn size_of(&self, _component: &ComponentId) -> Result<u64> {
        self.begun.store(true, Ordering::SeqCst);
        let _ = self.gate.lock().recv();
        Ok(7)
    }
}

#[test]
fn calls_of_a_lost_connection_end_before_the_next_one() {
    let (open, gate) = mpsc::channel();
    let slow = Arc::new(Slow { begun: AtomicBool::new(false), gate: Mutex::new(gate) });
    let cluster = Cluster::new();
    let node = cluster.node(cluster.data.address(), u64::MAX);
    node.answer_by(slow.clone());
    settled(|| node.status().connected);
    let judge = cluster.data.judge();
    let asked = std::thread::spawn(move || judge.size(&ONE));
    settled(|| slow.begun.load(Ordering::SeqCst));
    node.rejoin();
    assert_eq!(asked.join().unwrap(), Err(StoreError::Busy));
    // Longer than it takes to connect.
    let end = Instant::now() + Duration::from_millis(500);
    while Instant::now() < end {
        assert!(!node.status().connected, "the question is still under way");
        std::thread::sleep(Duration::from_millis(5));
    }
    open.send(()).unwrap();
    settled(|| node.status().connected);
}
