//! A server that another one takes over.

use crate::common::{any, config, scrape};
use dafs_client::{
    Client, ConnectOptions, Create, DafsUrl, OpenOptions, Stability, TransportChoice,
};
use dafs_server::{
    AdminReply, AdminRequest, Config, ExportSource, Released, Server, Successor, TakeOver,
    TakeOverError, ask_server,
};
use std::io::{ErrorKind, Read};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A server that gives way.
struct Present {
    config: Config,
    server: Server,
    successors: Receiver<Successor>,
    _directories: [TempDir; 2],
}

impl Present {
    fn new() -> Self {
        Self::with(|_| {})
    }

    fn with(change: impl FnOnce(&mut Config)) -> Self {
        let directories = [TempDir::new().unwrap(), TempDir::new().unwrap()];
        let [files, state] = [0, 1].map(|number: usize| directories[number].path().to_owned());
        let mut config = config(files, state);
        change(&mut config);
        let server = Server::start(&config).unwrap();
        let successors = gives_way(&server);
        Self { config, server, successors, _directories: directories }
    }

    fn addresses(&self) -> Vec<SocketAddr> {
        [self.server.addresses(), self.server.nfs_addresses()].concat()
    }
}

fn gives_way(server: &Server) -> Receiver<Successor> {
    let (sender, successors) = channel();
    server.set_give_way(move |successor| sender.send(successor).unwrap());
    successors
}

/// Ends a server for the next one. Returns it if it had to start again.
fn end(
    config: Config,
    server: Server,
    successors: Receiver<Successor>,
) -> JoinHandle<Option<Server>> {
    std::thread::spawn(move || {
        let successor = successors.recv().unwrap();
        let sockets = server.sockets();
        let released = server.release();
        let fresh = Released::default;
        let again = || Server::start_on(&config, sockets.copies().unwrap(), fresh()).unwrap();
        (!successor.takes_over(released)).then(again)
    })
}

/// Returns the write verifier of a server.
fn verifier(server: &Server) -> [u8; 8] {
    let url = DafsUrl::parse(&server.url()).unwrap();
    let client = Client::connect(&url, &ConnectOptions::default()).unwrap();
    let options = OpenOptions::write().create(Create::IfMissing);
    let file = client.open(b"/file", &options).unwrap();
    let verifier = client.commit(file.handle()).unwrap();
    file.close().unwrap();
    client.disconnect().unwrap();
    verifier.0
}

fn is_served(server: &Server, config: &Config) {
    let state = config.state_directory.as_ref().unwrap();
    let reply = ask_server(state, &AdminRequest::Status).unwrap();
    assert!(matches!(reply, AdminReply::Status(_)), "{reply:?}");
    let url = DafsUrl::parse(&server.url()).unwrap();
    Client::connect(&url, &ConnectOptions::default()).unwrap();
    TcpStream::connect(server.nfs_addresses()[0]).unwrap();
}

#[test]
fn the_next_server_has_the_sockets_and_the_state() {
    let present = Present::new();
    let (addresses, verifier_before) = (present.addresses(), verifier(&present.server));
    let waiting = TcpStream::connect(addresses[1]).unwrap();
    let taking = TakeOver::ask(&present.config).unwrap();
    is_served(&present.server, &present.config);
    let other = TakeOver::ask(&present.config).err().unwrap();
    assert!(matches!(other, TakeOverError::Refused(_)), "{other}");
    let Present { config, server, successors, _directories } = present;
    let former = end(config.clone(), server, successors);
    let (next, taken) = taking.start(&config).unwrap();
    taken.confirm();
    assert!(former.join().unwrap().is_none());
    assert_eq!([next.addresses(), next.nfs_addresses()].concat(), addresses);
    is_served(&next, &config);
    assert_eq!(verifier(&next), verifier_before, "unstable data is in the system's cache");
    drop(waiting);
    // The next one gives way, too.
    let successors = gives_way(&next);
    let taking = TakeOver::ask(&config).unwrap();
    let former = end(config.clone(), next, successors);
    let (last, taken) = taking.start(&config).unwrap();
    taken.confirm();
    assert!(former.join().unwrap().is_none());
    is_served(&last, &config);
    assert_eq!(verifier(&last), verifier_before);
    last.stop();
    TcpStream::connect(addresses[0]).unwrap_err();
    assert_ne!(
        verifier(&Server::start(&config).unwrap()),
        verifier_before,
        "nothing was handed over"
    );
}

/// A client that only writes asks for nothing new.
#[test]
fn others_need_not_wait_for_the_end_of_grace() {
    let long = Duration::from_secs(900);
    let present = Present::with(|config| config.nfs.grace_time = Some(long));
    let url = DafsUrl::parse(&present.server.url()).unwrap();
    let connect = || Client::connect(&url, &ConnectOptions::default()).unwrap();
    let (writer, options) = (connect(), OpenOptions::write().create(Create::IfMissing));
    let file = writer.open(b"/held", &options).unwrap();
    let verifier_before = writer.commit(file.handle()).unwrap().0;
    let taking = TakeOver::ask(&present.config).unwrap();
    let Present { config, server, successors, _directories } = present;
    let former = end(config.clone(), server, successors);
    let (next, taken) = taking.start(&config).unwrap();
    taken.confirm();
    assert!(former.join().unwrap().is_none());
    file.write_at(b"more", 0, Stability::Unstable).unwrap();
    let other = connect();
    other.open(b"/new", &options).unwrap().close().unwrap();
    let verifier = other.commit(file.handle()).unwrap().0;
    assert_eq!(verifier, verifier_before, "no data of an open file was lost");
    file.close().unwrap();
    next.stop();
}

/// The former server may have accepted a connection and not have answered yet.
#[test]
fn clients_that_connect_meanwhile_are_not_refused() {
    let present = Present::new();
    let url = DafsUrl::parse(&present.server.url()).unwrap();
    let (over, began) = (AtomicBool::new(false), Instant::now());
    let Present { config, server, successors, _directories } = present;
    let last = std::thread::scope(|scope| {
        let (mut server, mut successors) = (server, successors);
        for transport in [TransportChoice::Iwarp, TransportChoice::Shm].repeat(2) {
            let (url, over) = (&url, &over);
            scope.spawn(move || {
                let options = ConnectOptions { transport, ..ConnectOptions::default() };
                while !over.load(Ordering::Relaxed) && began.elapsed() < Duration::from_secs(60) {
                    Client::connect(url, &options).unwrap();
                }
            });
        }
        for _ in 0..5 {
            let taking = TakeOver::ask(&config).unwrap();
            let former = end(config.clone(), server, successors);
            let (next, taken) = taking.start(&config).unwrap();
            taken.confirm();
            assert!(former.join().unwrap().is_none());
            successors = gives_way(&next);
            server = next;
        }
        over.store(true, Ordering::Relaxed);
        server
    });
    last.stop();
}

#[test]
fn the_ports_for_administrators_and_metrics_are_opened_again() {
    let mut present = Present::with(|config| {
        (config.admin_listen, config.metrics_listen) = (Some(any()), Some(any()));
    });
    let url = present.server.admin_url().unwrap();
    present.config.admin_listen = url.strip_prefix("http://").unwrap().parse().ok();
    present.config.metrics_listen = present.server.metrics_address();
    let taking = TakeOver::ask(&present.config).unwrap();
    let Present { config, server, successors, _directories } = present;
    let former = end(config.clone(), server, successors);
    let (next, taken) = taking.start(&config).unwrap();
    taken.confirm();
    assert!(former.join().unwrap().is_none());
    assert_eq!(next.admin_url(), Some(url));
    assert!(scrape(config.metrics_listen.unwrap()).contains("dafs_"));
    is_served(&next, &config);
}

#[test]
fn the_former_server_starts_again_when_the_next_one_cannot() {
    let present = Present::new();
    let (addresses, verifier_before) = (present.addresses(), verifier(&present.server));
    let occupied = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut wrong = present.config.clone();
    wrong.metrics_listen = Some(occupied.local_addr().unwrap());
    let taking = TakeOver::ask(&wrong).unwrap();
    let Present { config, server, successors, _directories } = present;
    let former = end(config.clone(), server, successors);
    let error = taking.start(&wrong).err().unwrap().to_string();
    assert!(error.contains("metrics"), "{error}");
    let again = former.join().unwrap().unwrap();
    assert_eq!([again.addresses(), again.nfs_addresses()].concat(), addresses);
    is_served(&again, &config);
    assert_ne!(
        verifier(&again),
        verifier_before,
        "the next one may have met a failure of the disk"
    );
}

/// A client that it had served would find a change of its own gone, or done by nobody.
#[test]
fn a_server_whose_start_fails_serves_no_client() {
    let present = Present::new();
    let addresses = present.addresses();
    let Present { config, server, successors: _, _directories } = present;
    let sockets = server.sockets();
    server.stop();
    let waiting: Vec<_> = addresses.iter().map(|it| TcpStream::connect(it).unwrap()).collect();
    let occupied = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = occupied.local_addr().ok();
    let [mut metrics, mut administrators] = [config.clone(), config.clone()];
    (metrics.metrics_listen, administrators.admin_listen) = (taken, taken);
    for wrong in [metrics, administrators] {
        let started = Server::start_on(&wrong, sockets.copies().unwrap(), Released::default());
        assert!(started.is_err());
    }
    for mut stream in &waiting {
        stream.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        // Signals of other tests interrupt reads.
        let error = loop {
            match stream.read(&mut [0]) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                ended => break ended.expect_err("it was taken from the queue and closed"),
            }
        };
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
    }
    let next = Server::start_on(&config, sockets.copies().unwrap(), Released::default()).unwrap();
    is_served(&next, &config);
}

/// A node may lose data between two servers, and the next one would not know.
#[test]
fn the_write_verifier_changes_where_nodes_have_the_data() {
    let base = TempDir::new().unwrap();
    let mut config = crate::striped::config(base.path());
    config.listen = vec![any()];
    let server = Server::start(&config).unwrap();
    let (verifier_before, successors) = (verifier(&server), gives_way(&server));
    let taking = TakeOver::ask(&config).unwrap();
    let former = end(config.clone(), server, successors);
    let (next, taken) = taking.start(&config).unwrap();
    taken.confirm();
    assert!(former.join().unwrap().is_none());
    assert_ne!(verifier(&next), verifier_before);
    next.stop();
}

#[test]
fn a_process_that_cannot_take_over_changes_nothing() {
    let present = Present::new();
    let mut config = present.config.clone();
    config.auth.password_file = Some(PathBuf::from("/nowhere/users"));
    assert!(matches!(TakeOver::ask(&config).err(), Some(TakeOverError::Start(_))));
    let mut config = present.config.clone();
    config.exports[0].source = ExportSource::Memory { bytes_max: 1 << 20 };
    assert!(matches!(TakeOver::ask(&config).err(), Some(TakeOverError::InMemory(_))));
    let (mut config, empty) = (present.config.clone(), TempDir::new().unwrap());
    config.state_directory = Some(empty.path().to_owned());
    assert!(matches!(TakeOver::ask(&config).err(), Some(TakeOverError::NoServer { .. })));
    // It ends when it has the sockets.
    drop(TakeOver::ask(&present.config).unwrap());
    assert!(present.successors.recv_timeout(Duration::from_millis(200)).is_err());
    is_served(&present.server, &present.config);
}
