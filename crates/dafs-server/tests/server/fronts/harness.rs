//! A server on a directory of its own, and clients of all three kinds.

use crate::common::{Running, scrape};
use dafs_client::{Client, ConnectOptions, DafsUrl};
use dafs_nfs_client::v3::Client3;
use dafs_nfs_client::{
    BackHandler, Connection, Create, Delegation, Handle, Identity, NfsError, OpenFile, OpenOptions,
    Options, Session, add_connection, connect, connect_over, patiently,
};
use dafs_server::Config;
use dafs_service::ServiceCounts;
use dafs_wire::nfs4::{
    Attributes, CbGetattrArgs, CbNotifyLockArgs, CbRecallArgs, SetAttributes, Stateid, Status, Want,
};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Longer than any working operation takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Served {
    running: Running,
    pub(crate) url: DafsUrl,
    pub(crate) nfs: SocketAddr,
    pub(crate) rdma: SocketAddr,
}

impl Served {
    pub(crate) fn new() -> Self {
        Self::with(|_| {})
    }

    pub(crate) fn with(change: impl FnOnce(&mut Config)) -> Self {
        let running = Running::new(change);
        let url = DafsUrl::parse(&running.server().url()).unwrap();
        let nfs = running.server().nfs_addresses()[0];
        let rdma = running.server().nfs_rdma_addresses()[0];
        Self { running, url, nfs, rdma }
    }

    /// Returns the exported directory.
    pub(crate) fn path(&self) -> &Path {
        self.running.path()
    }

    /// Counts the server's state.
    pub(crate) fn counts(&self) -> ServiceCounts {
        self.running.server().service_counts()
    }

    /// Reads the metrics as Prometheus does.
    pub(crate) fn metrics(&self) -> String {
        scrape(self.running.server().metrics_address().unwrap())
    }

    pub(crate) fn dafs(&self) -> Client {
        Client::connect(&self.url, &ConnectOptions::default()).unwrap()
    }

    pub(crate) fn dafs_address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.url.port()))
    }

    pub(crate) fn dafs_with(&self, change: impl FnOnce(&mut ConnectOptions)) -> Client {
        let mut options = ConnectOptions::default();
        change(&mut options);
        Client::connect(&self.url, &options).unwrap()
    }

    pub(crate) fn v3(&self) -> (Client3, Handle) {
        let client = Client3::connect(self.nfs, Identity::sys("v3", 0, 0, &[])).unwrap();
        let root = client.mount("/").unwrap();
        (client, root)
    }

    /// Opens an NFSv4 session that ignores callbacks. Returns it with the root.
    pub(crate) fn v4(&self, owner: &[u8]) -> (Session, Handle) {
        let session = connect(self.nfs, &Options::new(owner)).unwrap();
        let root = session.root().unwrap();
        (session, root)
    }

    /// Opens an NFSv4 session that receives callbacks. Returns it with the root.
    pub(crate) fn v4_listening(&self, owner: &[u8]) -> (Session, Handle, Heard) {
        let identity = Options::new(owner).identity;
        self.v4_listening_over(Connection::open(self.nfs, identity).unwrap(), owner)
    }

    /// Does the same over an existing connection.
    pub(crate) fn v4_listening_over(
        &self,
        connection: Connection,
        owner: &[u8],
    ) -> (Session, Handle, Heard) {
        let (events, heard) = channel();
        let size = Arc::<Mutex<Option<(u64, u64)>>>::default();
        let ears = Arc::new(Ears { events: Mutex::new(events), size: size.clone() });
        let options = Options { back_handler: ears, ..Options::new(owner) };
        let session = connect_over(connection, &options).unwrap();
        let root = session.root().unwrap();
        (session, root, Heard { heard: Mutex::new(heard), size })
    }

    /// Adds a connection to a session.
    pub(crate) fn trunk(&self, session: &Session) {
        add_connection(session, self.nfs, Identity::sys("trunk", 0, 0, &[])).unwrap();
    }

    /// Stops the server and starts it again with its durable state, on other ports.
    pub(crate) fn restart(&mut self) {
        self.running.stop();
        let server = self.running.start();
        self.url = DafsUrl::parse(&server.url()).unwrap();
        self.nfs = server.nfs_addresses()[0];
        self.rdma = server.nfs_rdma_addresses()[0];
    }
}

/// A received callback.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Event {
    Recall(Stateid, Handle),
    LockFree(Vec<u8>),
    Asked,
}

/// Reports callbacks to the test.
struct Ears {
    events: Mutex<Sender<Event>>,
    /// Change attribute and size for the answer to CB_GETATTR.
    size: Arc<Mutex<Option<(u64, u64)>>>,
}

impl Ears {
    fn tell(&self, event: Event) {
        // The test may be over already.
        let _ = self.events.lock().unwrap().send(event);
    }
}

impl BackHandler for Ears {
    fn recall(&self, args: &CbRecallArgs<'_>) -> Status {
        self.tell(Event::Recall(args.stateid, Handle(args.handle.to_vec())));
        Status::Ok
    }

    fn getattr(&self, _: &CbGetattrArgs<'_>) -> Result<Attributes<'static>, Status> {
        self.tell(Event::Asked);
        let (change, size) = self.size.lock().unwrap().ok_or(Status::BadHandle)?;
        Ok(Attributes { change: Some(change), size: Some(size), ..Attributes::default() })
    }

    fn notify_lock(&self, args: &CbNotifyLockArgs<'_>) -> Status {
        self.tell(Event::LockFree(args.owner.owner.to_vec()));
        Status::Ok
    }
}

/// Received callbacks.
pub(crate) struct Heard {
    heard: Mutex<Receiver<Event>>,
    size: Arc<Mutex<Option<(u64, u64)>>>,
}

impl Heard {
    /// Waits for the next callback.
    #[track_caller]
    pub(crate) fn next(&self) -> Event {
        self.heard.lock().unwrap().recv_timeout(PATIENCE).expect("no callback came")
    }

    /// True if no callback is left that was not taken.
    pub(crate) fn is_silent(&self) -> bool {
        self.heard.lock().unwrap().try_recv().is_err()
    }

    /// Sets change attribute and size for later answers to CB_GETATTR.
    pub(crate) fn tell_size(&self, change: u64, size: u64) {
        *self.size.lock().unwrap() = Some((change, size));
    }

    /// Waits for the recall of this delegation.
    #[track_caller]
    pub(crate) fn recalled(&self, delegation: &Delegation) {
        match self.next() {
            Event::Recall(stateid, _) => assert_eq!(stateid.other, delegation.stateid.other),
            other => panic!("{other:?} instead of a recall"),
        }
    }

    /// Returns the delegation on a thread when it is recalled, while `work` runs. Fails if it was
    /// not recalled.
    #[track_caller]
    pub(crate) fn while_returning<T>(
        &self,
        session: &Session,
        file: &OpenFile,
        work: impl FnOnce() -> T + Send,
    ) -> T
    where
        T: Send,
    {
        let delegation = file.delegation.expect("a delegation");
        std::thread::scope(|scope| {
            let work = scope.spawn(work);
            self.recalled(&delegation);
            session.return_delegation(&file.handle, delegation.stateid).unwrap();
            work.join().unwrap()
        })
    }
}

/// Opens a file with a want for a delegation, and makes it if it is missing. A delegation that was
/// recalled a moment ago is not granted again at once, so new names are best.
pub(crate) fn open_wanting(
    session: &Session,
    root: &Handle,
    name: &[u8],
    access: u32,
    want: Want,
) -> OpenFile {
    let new = SetAttributes { mode: Some(0o666), ..SetAttributes::default() };
    let options = OpenOptions {
        access: access | want.number(),
        create: Create::Unchecked(new),
        ..OpenOptions::default()
    };
    patiently(|| session.open(root, name, &options)).unwrap()
}

/// Returns the options to open an existing file.
pub(crate) fn existing(access: u32, deny: u32) -> OpenOptions<'static> {
    OpenOptions { access: access | Want::None.number(), deny, ..OpenOptions::default() }
}

/// Returns the status of an error that has one.
#[track_caller]
pub(crate) fn refused<T: std::fmt::Debug>(result: Result<T, NfsError>) -> Status {
    result.unwrap_err().status().unwrap()
}
