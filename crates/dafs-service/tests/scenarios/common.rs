//! A service with a clock that stands still, records that survive a restart, and front ends that
//! only record the calls to them.

use dafs_service::{
    Caller, Client, ClientAddress, ClientKey, ClientRecord, ClientRecords, ExchangeId, Export,
    ExportOptions, Front, Handle, Host, Identity, LockChange, LockError, LockExtras, LockKind,
    LockOwner, LockRecord, LockRequest, Namespace, OpenClaim, OpenHow, OpenRequest, OpenTarget,
    Opened, Protection, RecordsError, Result, Service, ServiceConfig, ServiceError, Share, Squash,
    StateRef, Subject, Want,
};
use dafs_store::{CreateHow, Cred, DeviceKey, MemoryStore, OpenMode, SetAttr, Store, Wait};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::time::Duration;

pub(crate) const LEASE: Duration = Duration::from_secs(90);
pub(crate) const SECOND_NS: u64 = 1_000_000_000;
pub(crate) const LEASE_NS: u64 = 90 * SECOND_NS;

pub(crate) const READ: Share =
    Share { read: true, write: false, deny_read: false, deny_write: false };
pub(crate) const WRITE: Share = Share { read: false, write: true, ..READ };
pub(crate) const BOTH: Share = Share { write: true, ..READ };
pub(crate) const DENY_WRITE: Share = Share { deny_write: true, ..READ };
pub(crate) const MODE_READ: OpenMode = OpenMode { read: true, write: false };
pub(crate) const MODE_WRITE: OpenMode = OpenMode { read: false, write: true };

/// A call to a front end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Told {
    Recall(ClientKey, Handle, StateRef, bool),
    RecallLayout(ClientKey, Handle, StateRef),
    RecallLayouts(ClientKey, Option<Handle>),
    DeviceGone(ClientKey, DeviceKey),
    GetAttr(ClientKey, Handle, u64),
    LockAvailable(ClientKey, Handle, Vec<u8>),
    Gone(ClientKey),
}

#[derive(Default)]
pub(crate) struct Ear(Mutex<Vec<Told>>);

impl Ear {
    pub(crate) fn take(&self) -> Vec<Told> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }

    fn hear(&self, told: Told) {
        self.0.lock().unwrap().push(told);
    }
}

impl Front for Ear {
    fn recall(&self, client: ClientKey, handle: &Handle, state: StateRef, truncate: bool) {
        self.hear(Told::Recall(client, *handle, state, truncate));
    }

    fn recall_layout(
        &self,
        client: ClientKey,
        handle: &Handle,
        state: StateRef,
        _: dafs_store::LayoutForm,
    ) {
        self.hear(Told::RecallLayout(client, *handle, state));
    }

    fn recall_layouts(&self, client: ClientKey, of: Option<&Handle>, _: dafs_store::LayoutForm) {
        self.hear(Told::RecallLayouts(client, of.copied()));
    }

    fn device_gone(&self, client: ClientKey, key: &DeviceKey, _: dafs_store::LayoutForm) {
        self.hear(Told::DeviceGone(client, *key));
    }

    fn get_attr(&self, client: ClientKey, handle: &Handle, query: u64) {
        self.hear(Told::GetAttr(client, *handle, query));
    }

    fn lock_available(&self, client: ClientKey, handle: &Handle, owner: &[u8]) {
        self.hear(Told::LockAvailable(client, *handle, owner.to_vec()));
    }

    fn client_gone(&self, client: ClientKey) {
        self.hear(Told::Gone(client));
    }
}

/// Records that outlive a service. They can be made to fail.
#[derive(Clone, Default)]
pub(crate) struct Disk {
    pub(crate) records: Arc<Mutex<Vec<ClientRecord>>>,
    pub(crate) locks: Arc<Mutex<Vec<LockRecord>>>,
    pub(crate) broken: Arc<AtomicBool>,
    pub(crate) writes: Arc<AtomicUsize>,
    pub(crate) removals: Arc<AtomicUsize>,
    /// The next removal waits here, once when it begins and once more before it has an effect.
    pub(crate) removal: Arc<Mutex<Option<Arc<Barrier>>>>,
}

impl Disk {
    fn check(&self) -> std::result::Result<(), RecordsError> {
        match self.broken.load(Ordering::Relaxed) {
            true => Err(RecordsError::new("the disk is broken")),
            false => Ok(()),
        }
    }

    pub(crate) fn owners(&self) -> Vec<Vec<u8>> {
        let mut owners: Vec<_> =
            self.records.lock().unwrap().iter().map(|record| record.owner.clone()).collect();
        owners.sort();
        owners
    }
}

impl ClientRecords for Disk {
    fn load(&self) -> std::result::Result<Vec<ClientRecord>, RecordsError> {
        self.check()?;
        Ok(self.records.lock().unwrap().clone())
    }

    fn put(&self, record: &ClientRecord) -> std::result::Result<(), RecordsError> {
        self.check()?;
        let mut records = self.records.lock().unwrap();
        self.writes.fetch_add(1, Ordering::Relaxed);
        records.retain(|old| (old.kind, &old.owner) != (record.kind, &record.owner));
        records.push(record.clone());
        Ok(())
    }

    fn remove(&self, gone: &[ClientRecord]) -> std::result::Result<(), RecordsError> {
        self.check()?;
        self.removals.fetch_add(1, Ordering::Relaxed);
        let stop = self.removal.lock().unwrap().take();
        if let Some(stop) = stop {
            stop.wait();
            stop.wait();
        }
        let same = |old: &ClientRecord| {
            let name = |record: &ClientRecord| (record.kind, record.owner.clone(), record.verifier);
            gone.iter().any(|gone| name(gone) == name(old))
        };
        self.records.lock().unwrap().retain(|old| !same(old));
        Ok(())
    }

    fn load_locks(&self) -> std::result::Result<Vec<LockRecord>, RecordsError> {
        self.check()?;
        Ok(self.locks.lock().unwrap().clone())
    }

    fn change_locks(&self, changes: &[LockChange]) -> std::result::Result<(), RecordsError> {
        self.check()?;
        let mut locks = self.locks.lock().unwrap();
        for change in changes {
            let (number, put) = match change {
                LockChange::Put(record) => (record.number, Some(record.clone())),
                LockChange::Remove(number) => (*number, None),
            };
            locks.retain(|old| old.number != number);
            locks.extend(put);
        }
        Ok(())
    }
}

pub(crate) struct World {
    pub(crate) service: Service,
    store: Arc<dyn Store>,
    pub(crate) disk: Disk,
    pub(crate) ear: Arc<Ear>,
    pub(crate) now_ns: Cell<u64>,
    runs: u32,
    pub(crate) root: Handle,
    pub(crate) cred: Cred,
    /// The host of new clients.
    pub(crate) host: Cell<Host>,
}

impl World {
    pub(crate) fn new() -> Self {
        Self::over(Arc::new(MemoryStore::default()))
    }

    pub(crate) fn over(store: Arc<dyn Store>) -> Self {
        let disk = Disk::default();
        let service = start(&store, &disk, 1, SECOND_NS);
        let root = service.root();
        let (ear, cred) = (Arc::default(), Cred::new(0, 0));
        let (now_ns, host) = (Cell::new(SECOND_NS), Cell::default());
        Self { service, store, disk, ear, now_ns, runs: 1, root, cred, host }
    }

    /// A server with this limit of open files.
    pub(crate) fn with_files_max(files_max: usize) -> Self {
        let world = Self::new();
        let config = ServiceConfig { files_max, ..ServiceConfig::new(LEASE, 1) };
        Self { service: start_with(config, &world.store, &world.disk, SECOND_NS), ..world }
    }

    /// Serves the files under these names, read-only or not.
    pub(crate) fn serve(&self, exports: &[(&str, bool)]) {
        let export = |&(name, read_only): &(&str, bool)| {
            let options = ExportOptions { read_only, squash: Squash::None, ..Default::default() };
            Export::new(name, self.store.clone(), options)
        };
        let exports = exports.iter().map(export).collect();
        self.service.replace_namespace(Namespace::new(exports).unwrap());
    }

    /// Serves all files by these rules, and squashes nobody.
    pub(crate) fn serve_by(&self, options: ExportOptions) {
        self.serve_squashing(ExportOptions { squash: Squash::None, ..options });
    }

    /// Serves all files by these rules.
    pub(crate) fn serve_squashing(&self, options: ExportOptions) {
        let export = Export::new("", self.store.clone(), options);
        self.service.replace_namespace(Namespace::new(vec![export]).unwrap());
    }

    /// The server crashes and starts again.
    pub(crate) fn restart(&mut self) {
        self.restart_with(|config| config);
    }

    /// The server crashes and starts again with another configuration.
    pub(crate) fn restart_with(&mut self, change: impl FnOnce(ServiceConfig) -> ServiceConfig) {
        self.runs += 1;
        let config = change(ServiceConfig::new(LEASE, self.runs));
        self.service = start_with(config, &self.store, &self.disk, self.now_ns.get());
    }

    pub(crate) fn pass(&self, nanoseconds: u64) {
        self.now_ns.set(self.now_ns.get() + nanoseconds);
        self.service.tick(self.now_ns.get());
        self.fence();
    }

    /// Sends data servers all due requests.
    pub(crate) fn fence(&self) {
        self.service
            .layouts
            .stores_to_fence()
            .iter()
            .for_each(|store| self.service.layouts.fence_some(store));
    }

    /// Lets time pass, in which these clients send a request.
    pub(crate) fn pass_with(&self, present: &[&Arc<Client>], nanoseconds: u64) {
        present.iter().for_each(|client| client.renew(self.now_ns.get() + nanoseconds));
        self.pass(nanoseconds);
    }

    pub(crate) fn caller<'a>(&'a self, client: &'a Arc<Client>) -> Caller<'a> {
        Caller {
            client,
            cred: &self.cred,
            subject: Subject::Server,
            wait: Wait::Never,
            now_ns: self.now_ns.get(),
        }
    }

    pub(crate) fn patient<'a>(&'a self, client: &'a Arc<Client>) -> Caller<'a> {
        Caller { wait: Wait::Allowed, ..self.caller(client) }
    }

    pub(crate) fn exchange(&self, name: &str, verifier: u8) -> Arc<Client> {
        let request = ExchangeId { host: self.host.get(), ..exchange_id(name, verifier) };
        self.service.clients.exchange_id(&request, self.now_ns.get()).unwrap().client
    }

    /// A client with a session and a back channel that has not completed its reclaims.
    pub(crate) fn returning(&self, name: &str, verifier: u8) -> Arc<Client> {
        let key = self.exchange(name, verifier).key();
        let client = self.service.clients.confirm(key, self.now_ns.get()).unwrap();
        client.session_started();
        client.set_front(Arc::<Ear>::downgrade(&self.ear));
        self.service.set_back_channel(&client, true);
        client
    }

    /// An NFS client that may open files and get delegations.
    pub(crate) fn nfs(&self, name: &str) -> Arc<Client> {
        let client = self.returning(name, 1);
        self.service.clients.reclaim_complete(&client).unwrap();
        client
    }

    pub(crate) fn dafs(&self, name: &str) -> Arc<Client> {
        let client = self.instance(name, 1);
        self.service.clients.record(&client);
        client
    }

    /// An instance of a DAFS client that is not recorded yet.
    pub(crate) fn instance(&self, name: &str, verifier: u64) -> Arc<Client> {
        let identity = Identity { mechanism: "none", principal: Vec::new() };
        let (host, now_ns) = (self.host.get(), self.now_ns.get());
        let registered =
            self.service.register_client(name.as_bytes(), verifier, identity, host, now_ns);
        registered.unwrap().client
    }

    /// Makes new clients come from the user of this number.
    pub(crate) fn come_from(&self, user: u32) {
        self.host.set(Host::User(user));
    }

    /// A request to open a file, created if it is missing, that wants no delegation.
    pub(crate) fn plain<'a>(
        &'a self,
        name: &'a str,
        owner: &'a str,
        share: Share,
    ) -> OpenRequest<'a> {
        let how = OpenHow::Create(CreateHow::Unchecked, SetAttr::default());
        let want = Want { kind: dafs_service::WantKind::None, ..Want::default() };
        let request =
            OpenRequest::by_name(&self.root, name.as_bytes(), owner.as_bytes(), share, how);
        OpenRequest { want, ..request }
    }

    pub(crate) fn open(&self, client: &Arc<Client>, name: &str, share: Share) -> Result<Opened> {
        self.service.opens.open(self.caller(client), &self.plain(name, "owner", share))
    }

    /// Opens a file for a client that may wait.
    pub(crate) fn open_patiently(
        &self,
        client: &Arc<Client>,
        name: &str,
        share: Share,
    ) -> Result<Opened> {
        self.service.opens.open(self.patient(client), &self.plain(name, "owner", share))
    }

    pub(crate) fn reclaim(
        &self,
        client: &Arc<Client>,
        handle: &Handle,
        share: Share,
    ) -> Result<Opened> {
        self.reclaim_by(self.caller(client), handle, share)
    }

    pub(crate) fn reclaim_by(
        &self,
        caller: Caller<'_>,
        handle: &Handle,
        share: Share,
    ) -> Result<Opened> {
        let request = OpenRequest {
            target: OpenTarget::Handle(handle),
            claim: OpenClaim::Previous(None),
            how: OpenHow::Existing,
            ..self.plain("", "owner", share)
        };
        self.service.opens.open(caller, &request)
    }

    pub(crate) fn lock(
        &self,
        client: &Arc<Client>,
        opened: &Opened,
        owner: &str,
        range: (u64, u64),
        kind: LockKind,
    ) -> std::result::Result<StateRef, LockError> {
        let request = lock_request(new_owner(opened, owner.as_bytes()), range, kind);
        self.service.locks.lock(self.caller(client), opened.state.handle(), &request)
    }

    pub(crate) fn close(&self, client: &Arc<Client>, opened: &Opened) {
        let state = opened.state.reference();
        self.service.opens.close(self.patient(client), opened.state.handle(), state).unwrap();
    }
}

/// The owner of a first lock under an open.
pub(crate) fn new_owner<'a>(opened: &Opened, owner: &'a [u8]) -> LockOwner<'a> {
    LockOwner::New { open: opened.state.reference(), owner }
}

/// A request for a plain lock that does not wait.
pub(crate) fn lock_request(
    owner: LockOwner<'_>,
    (offset, length): (u64, u64),
    kind: LockKind,
) -> LockRequest<'_> {
    let (wait, reclaim, extras) = (false, false, LockExtras::default());
    LockRequest { owner, offset, length, kind, wait, reclaim, extras }
}

/// A host of a network.
pub(crate) fn from(last: u8) -> ClientAddress {
    ClientAddress { ip: [192, 0, 2, last].into(), privileged: true }
}

pub(crate) fn exchange_id(name: &str, verifier: u8) -> ExchangeId<'_> {
    let identity = Identity { mechanism: "sys", principal: b"0".to_vec() };
    let (host, address) = (Host::default(), from(1));
    let (owner, verifier) = (name.as_bytes(), [verifier; 8]);
    let protection = Protection::None;
    ExchangeId { owner, verifier, identity, host, address, update: false, protection }
}

fn start(store: &Arc<dyn Store>, disk: &Disk, instance: u32, now_ns: u64) -> Service {
    start_with(ServiceConfig::new(LEASE, instance), store, disk, now_ns)
}

fn start_with(config: ServiceConfig, store: &Arc<dyn Store>, disk: &Disk, now_ns: u64) -> Service {
    let options = ExportOptions { squash: Squash::None, ..ExportOptions::default() };
    let export = Export::new("", store.clone(), options);
    let namespace = Namespace::new(vec![export]).unwrap();
    Service::with_records(config, namespace, Box::new(disk.clone()), now_ns).unwrap()
}

/// The error of a call that must fail.
#[track_caller]
pub(crate) fn error<T>(result: Result<T>) -> ServiceError {
    match result {
        Ok(_) => panic!("this had to fail"),
        Err(error) => error,
    }
}
