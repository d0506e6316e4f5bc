//! A server whose files are striped over three data servers, in its process or as on other
//! machines, and clients of both.

use crate::common::{self, any, data_server};
use crate::striped::reports;
use dafs_dat::iwarp::{IwarpAdapter, IwarpConfig};
use dafs_dat::{Address, Instant};
use dafs_server::{
    ClusterSecret, Config, DataProcess, DataRdma, ExportSource, NodeConfig, NodePlace, Server,
};
use dafs_testkit::raw::{Answer, CallbackRequest, Client};
pub(crate) use dafs_testkit::requests::*;
use dafs_wire::dafs::*;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;

/// Bytes of a stripe.
pub(crate) const UNIT: usize = 4096;

/// Longer than any working operation takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// The places of the data servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Where {
    Local,
    Remote,
}

pub(crate) struct Cluster {
    pub(crate) server: Server,
    data: Vec<DataProcess>,
    dir: TempDir,
}

fn directory(base: &Path, name: &str) -> PathBuf {
    let path = base.join(name);
    std::fs::create_dir_all(&path).unwrap();
    path
}

impl Cluster {
    pub(crate) fn start(place: Where, copies: usize) -> Self {
        Self::with(place, copies, |_| {})
    }

    pub(crate) fn with(place: Where, copies: usize, change: impl FnOnce(&mut Config)) -> Self {
        let dir = TempDir::new().unwrap();
        let base = dir.path();
        let secret = base.join("secret");
        ClusterSecret::make(&secret).unwrap();
        let mut data = Vec::new();
        let nodes = (1..=3).map(|number| {
            let path = directory(base, &format!("node{number}"));
            let place = match place {
                Where::Local => NodePlace::Directory {
                    path,
                    listen: Some(any()),
                    rdma: DataRdma::default(),
                    dafs_listen: Some(any()),
                    dafs_verbs: false,
                },
                Where::Remote => {
                    data.push(DataProcess::start(data_server(path, &secret)).unwrap());
                    NodePlace::Remote(data.last().unwrap().control_address().to_string())
                }
            };
            NodeConfig { number, place }
        });
        let nodes = nodes.collect();
        let mut config = common::config(directory(base, "meta"), base.join("state"));
        config.exports[0].source = ExportSource::Striped {
            path: directory(base, "meta"),
            unit_bytes: u32::try_from(UNIT).unwrap().try_into().unwrap(),
            copies,
            nodes,
            cluster_secret: (place == Where::Remote).then_some(secret),
        };
        config.nfs.no_delegations = true;
        change(&mut config);
        let server = Server::start(&config).unwrap();
        server.set_read_config(Box::new(move || Ok(config.clone())));
        // A file has its copies on nodes that are connected when it is created.
        soon(|| reports(base).iter().all(|node| node.connected).then_some(()));
        Self { server, data, dir }
    }

    /// Opens a session without a back-control channel.
    pub(crate) fn deaf(&self, name: &str) -> Peer {
        self.session(name).0
    }

    fn session(&self, name: &str) -> (Peer, SessionId) {
        self.fenced_session(name, b"")
    }

    fn fenced_session(&self, name: &str, fence_id: &[u8]) -> (Peer, SessionId) {
        let mut peer = Peer::connect(self.server.addresses()[0]);
        let answer = peer.call(&connect_fenced(name, fence_id, 1, PLAIN, AuthRequest::None));
        let Ok(Reply::ClientConnectAuth(reply)) = answer.reply() else { panic!("{answer:?}") };
        let session = reply.session_id;
        (peer, session)
    }

    /// Opens a session with a back-control channel.
    pub(crate) fn client(&self, name: &str) -> Caller {
        self.client_with(name, b"")
    }

    pub(crate) fn client_with(&self, name: &str, fence_id: &[u8]) -> Caller {
        let (peer, session_id) = self.fenced_session(name, fence_id);
        let mut channel = Peer { client: peer.client.beside(2, ByteOrder::Little) };
        channel.until("a channel", |client| client.established);
        let bind = Request::ConnectBind(bind_request(session_id));
        assert_eq!(channel.status(&bind), Status::Ok);
        let call = channel.called();
        assert_eq!(call.request(), Request::BcNull);
        channel.client.answer(&call, 4, &Reply::BcNull);
        let mut caller = Caller { peer, channel, name: name.to_owned() };
        // After the answer to this request, the answer to the call has arrived, too.
        caller.channel.turn();
        assert_eq!(caller.peer.status(&Request::Null), Status::Ok);
        caller
    }

    /// Returns the file with the secret of the cluster.
    pub(crate) fn secret(&self) -> PathBuf {
        self.dir.path().join("secret")
    }

    /// Lets the data servers read that file again.
    pub(crate) fn data_servers_read_secret(&self) {
        self.data.iter().for_each(|data| assert!(data.read_secret().unwrap()));
    }

    /// Returns the files of components on the nodes.
    pub(crate) fn components(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        let mut inside = |path: &Path| {
            let entries = std::fs::read_dir(path).into_iter().flatten();
            found.extend(entries.map(|entry| entry.unwrap().path()));
        };
        for number in 1..=3 {
            let node = std::fs::read_dir(self.dir.path().join(format!("node{number}"))).unwrap();
            node.for_each(|entry| inside(&entry.unwrap().path()));
        }
        found
    }

    pub(crate) fn stop(self) {
        self.server.stop();
        self.data.into_iter().for_each(DataProcess::stop);
    }
}

/// One connection.
pub(crate) struct Peer {
    pub(crate) client: Client,
}

impl Peer {
    fn connect(address: SocketAddr) -> Self {
        let adapter = Box::new(IwarpAdapter::new(IwarpConfig::default()).unwrap());
        let client = Client::connect_to(adapter, Address::Tcp(address), 1, ByteOrder::Little);
        let mut peer = Self { client };
        peer.until("a connection", |client| client.established);
        peer
    }

    /// Opens a session with a data server.
    pub(crate) fn with_ticket(
        address: SocketAddr,
        name: &str,
        ticket: &[u8],
    ) -> Result<Self, Status> {
        let mut peer = Self::connect(address);
        let auth = AuthRequest::Text { id: b"x-ticket", password: ticket };
        match peer.status(&connect_by(name, 1, PLAIN, auth)) {
            Status::Ok => Ok(peer),
            status => Err(status),
        }
    }

    /// Returns true if any event was handled.
    pub(crate) fn turn(&mut self) -> bool {
        self.client.poll(Instant::now())
    }

    fn until(&mut self, what: &str, done: impl Fn(&Client) -> bool) {
        let end = std::time::Instant::now() + PATIENCE;
        while !done(&self.client) {
            if !self.turn() {
                std::thread::sleep(Duration::from_micros(200));
            }
            assert!(self.client.closed.is_none(), "{what}: {:?}", self.client.closed);
            assert!(std::time::Instant::now() < end, "never: {what}");
        }
    }

    pub(crate) fn call(&mut self, request: &Request<'_>) -> Answer {
        let stream = self.client.post(request);
        self.until(request.procedure().name(), |client| client.has_answer(stream));
        self.client.take_answer(stream).unwrap()
    }

    pub(crate) fn status(&mut self, request: &Request<'_>) -> Status {
        self.call(request).status()
    }

    /// Returns the next call of the server on this channel.
    pub(crate) fn called(&mut self) -> CallbackRequest {
        self.until("a call", |client| !client.calls.is_empty());
        self.client.calls.remove(0)
    }

    /// Retries a request as long as it is delayed.
    pub(crate) fn patiently(&mut self, request: &Request<'_>) -> Answer {
        soon(|| Some(self.call(request)).filter(|answer| answer.status() != Status::Delay))
    }

    pub(crate) fn open(&mut self, name: &[u8]) -> File {
        self.open_delegated(name).0
    }

    /// Opens a file, and returns it with its write delegation, if it got one.
    pub(crate) fn open_delegated(&mut self, name: &[u8]) -> (File, Option<StateId>) {
        let root = self.call(&Request::GetRootHandle);
        let Ok(Reply::GetRootHandle(root)) = root.reply() else { panic!() };
        let answer = self.call(&Request::Open(open_request(root.fh, &[name], b"owner")));
        let Ok(Reply::Open(reply)) = answer.reply() else { panic!("{answer:?}") };
        let delegation = match reply.delegation {
            Delegation::Write { state_id, .. } => Some(state_id),
            _ => None,
        };
        (File { fh: reply.fh, id: reply.state_id }, delegation)
    }

    pub(crate) fn close(&mut self, file: File) {
        assert_eq!(self.status(&close(file)), Status::Ok);
    }

    pub(crate) fn size(&mut self, file: File) -> u64 {
        let attributes = AttrMask::OBJECT_SIZE;
        let answer = self.call(&Request::GetAttrInline(GetAttrInline { fh: file.fh, attributes }));
        let Ok(Reply::GetAttrInline(reply)) = answer.reply() else { panic!("{answer:?}") };
        reply.attributes.object_size.unwrap()
    }

    /// Returns bytes and end-of-file flag of a read.
    pub(crate) fn read(
        &mut self,
        file: File,
        offset: usize,
        len: usize,
    ) -> Result<(Vec<u8>, bool), Status> {
        let answer = self.call(&read_inline(file, offset as u64, len as u32));
        match answer.reply()? {
            Reply::ReadInline(reply) => Ok((reply.data.to_vec(), reply.eof)),
            other => panic!("{other:?}"),
        }
    }

    /// Reads all of a file.
    pub(crate) fn read_all(&mut self, file: File) -> Vec<u8> {
        let mut all = Vec::new();
        loop {
            let (part, eof) = self.read(file, all.len(), 8192).unwrap();
            all.extend_from_slice(&part);
            if eof || part.is_empty() {
                return all;
            }
        }
    }

    /// Reads all of a file that may be in use by others for a while.
    pub(crate) fn read_soon(&mut self, file: File, len: usize) -> Vec<u8> {
        let read =
            soon(|| Some(self.read(file, 0, len)).filter(|read| *read != Err(Status::Delay)));
        read.unwrap().0
    }

    pub(crate) fn write(
        &mut self,
        file: File,
        offset: usize,
        data: &[u8],
        stable: Stability,
    ) -> Result<WriteReply, Status> {
        let answer = self.call(&write_stable(file, offset as u64, data, stable));
        match answer.reply()? {
            Reply::WriteInline(reply) => Ok(reply),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn commit(&mut self, file: File) -> Verifier {
        let answer = self.call(&Request::Commit(Commit { fh: file.fh, offset: 0, count: 0 }));
        let Ok(Reply::Commit(reply)) = answer.reply() else { panic!("{answer:?}") };
        reply.verifier
    }
}

/// The placement of a file.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    pub(crate) state_id: StateId,
    pub(crate) seqid: u32,
    pub(crate) kind: LayoutKind,
    first: usize,
    pub(crate) components: Vec<LayoutComponent>,
    pattern: Vec<u32>,
    pub(crate) servers: Vec<SocketAddr>,
    pub(crate) ticket: Vec<u8>,
}

impl Place {
    /// Returns the index of the server that has the stripe at an offset.
    pub(crate) fn at(&self, offset: usize) -> usize {
        self.pattern[(self.first + offset / UNIT) % self.pattern.len()] as usize
    }

    /// Returns the component at a data server, with the state-id of `file`.
    pub(crate) fn component(&self, server: usize, file: File) -> File {
        File { fh: self.components[server].fh, id: file.id }
    }
}

/// A client with a back-control channel.
pub(crate) struct Caller {
    pub(crate) peer: Peer,
    pub(crate) channel: Peer,
    pub(crate) name: String,
}

impl Caller {
    /// Requests the layout of a file.
    pub(crate) fn layout(&mut self, file: File, mode: LayoutMode) -> Result<Place, Status> {
        let get = Request::XLayoutGet(XLayoutGet { fh: file.fh, state_id: file.id, mode });
        let answer = self.peer.call(&get);
        let Reply::XLayoutGet(reply) = answer.reply()? else { panic!() };
        let components: Vec<_> = reply.components.iter().collect();
        let mut place = Place {
            state_id: reply.state_id,
            seqid: reply.seqid,
            kind: reply.kind,
            first: reply.first_place as usize,
            components,
            pattern: Vec::new(),
            servers: Vec::new(),
            ticket: Vec::new(),
        };
        match place.kind {
            LayoutKind::Stripes => {
                assert_eq!(reply.unit_bytes as usize, UNIT);
                assert_eq!(reply.packing, LayoutPacking::Sparse);
                self.learn(place.components[0].device, &mut place);
            }
            LayoutKind::Copies => {
                let devices: Vec<_> = place.components.iter().map(|c| c.device).collect();
                devices.into_iter().for_each(|device| self.learn(device, &mut place));
            }
        }
        Ok(place)
    }

    /// Requests a layout until all data servers are connected.
    pub(crate) fn layout_soon(&mut self, file: File, mode: LayoutMode) -> Place {
        soon(|| self.layout(file, mode).ok())
    }

    fn learn(&mut self, device: DeviceId, place: &mut Place) {
        let answer = self.peer.call(&Request::XNodeInfo(XNodeInfo { device }));
        let Ok(Reply::XNodeInfo(reply)) = answer.reply() else { panic!("{answer:?}") };
        place.pattern = reply.pattern.iter().collect();
        place.ticket = reply.ticket.to_vec();
        for server in reply.servers {
            let address = server.addresses.first().unwrap();
            place.servers.push(std::str::from_utf8(address).unwrap().parse().unwrap());
        }
    }

    /// Opens sessions with all data servers of a placement.
    pub(crate) fn data(&self, place: &Place) -> Vec<Peer> {
        let to = |&address| Peer::with_ticket(address, &self.name, &place.ticket).unwrap();
        place.servers.iter().map(to).collect()
    }

    pub(crate) fn commit_layout(
        &mut self,
        file: File,
        place: &Place,
        end: usize,
    ) -> Result<u64, Status> {
        let answer = self.peer.call(&Request::XLayoutCommit(XLayoutCommit {
            fh: file.fh,
            state_id: place.state_id,
            seqid: place.seqid,
            reclaim: false,
            end: end as u64,
        }));
        match answer.reply()? {
            Reply::XLayoutCommit(reply) => Ok(reply.size),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn give_back(&mut self, file: File, state_id: StateId, seqid: u32) -> Status {
        let (fh, scope) = (file.fh, LayoutScope::File);
        let back = XLayoutReturn { fh, state_id, seqid, scope, errors: Seq::empty() };
        self.peer.status(&Request::XLayoutReturn(back))
    }
}

/// Repeats a query until there is an answer.
#[track_caller]
pub(crate) fn soon<T>(mut ask: impl FnMut() -> Option<T>) -> T {
    let end = std::time::Instant::now() + PATIENCE;
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(std::time::Instant::now() < end, "never");
        std::thread::sleep(Duration::from_millis(20));
    }
}

pub(crate) fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 / 5) as u8).collect()
}
