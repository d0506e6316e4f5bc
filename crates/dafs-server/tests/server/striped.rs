//! An export that is striped over three directories: through the server as any other, and by
//! clients that use the data servers themselves.

use super::common::{self, WRITE, address, any, commit, device, layout, pattern, scrape, session};
use dafs_dat::Address;
use dafs_dat::iwarp::{IwarpAdapter, IwarpConfig};
use dafs_nfs_client::{
    Connection, Create, Handle, Identity, NfsError, OpenFile, OpenOptions, Options, Session,
    connect, connect_over, exchange_id,
};
use dafs_rpc::client::Port;
use dafs_server::{
    AdminReply, AdminRequest, ClusterSecret, Config, DataProcess, DataRdma, DataServerConfig,
    ExportSource, NodeConfig, NodePlace, NodeReport, Server, ask_server,
};
use dafs_testkit::eventually;
use dafs_wire::nfs4::*;
use dafs_wire::xdr::{Decode, Decoder};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use tempfile::TempDir;

pub(crate) const UNIT: u64 = 4096;
const READ: u32 = 1;

pub(crate) fn config(base: &Path) -> Config {
    let directory = |name: &str| {
        let path = base.join(name);
        std::fs::create_dir_all(&path).unwrap();
        path
    };
    let node = |number: u32| NodeConfig {
        number,
        place: NodePlace::Directory {
            path: directory(&format!("node{number}")),
            listen: Some(any()),
            rdma: DataRdma::default(),
            dafs_listen: None,
            dafs_verbs: false,
        },
    };
    let mut config = common::config(directory("meta"), base.join("state"));
    config.exports[0].source = ExportSource::Striped {
        path: directory("meta"),
        unit_bytes: u32::try_from(UNIT).unwrap().try_into().unwrap(),
        copies: 1,
        nodes: (1..=3).map(node).collect(),
        cluster_secret: None,
    };
    config.listen = Vec::new();
    config.nfs.no_delegations = true;
    config
}

pub(crate) fn create(session: &Session, name: &[u8]) -> OpenFile {
    session.create(&session.root().unwrap(), name).unwrap()
}

fn open(session: &Session, name: &[u8]) -> OpenFile {
    let options = OpenOptions { create: Create::No, ..OpenOptions::default() };
    session.open(&session.root().unwrap(), name, &options).unwrap()
}

/// Checks the content of the file with a client without layouts. Returns its session and open.
#[track_caller]
fn content_is(server: &Server, bytes: &[u8]) -> (Session, OpenFile) {
    let client = session(server, b"plain");
    let file = open(&client, b"f");
    let (got, eof) = client.read(&file.handle, file.stateid, 0, 1 << 20).unwrap();
    assert!(got == bytes && eof);
    (client, file)
}

/// The placement of a file.
pub(crate) struct Place {
    stateid: Stateid,
    device: DeviceId,
    first: u64,
    pub(crate) handles: Vec<Handle>,
    /// The first address of each data server.
    servers: Vec<SocketAddr>,
    /// All addresses, with their networks.
    told: Vec<Vec<(String, SocketAddr)>>,
}

impl Place {
    fn at(&self, offset: u64) -> usize {
        ((offset / UNIT + self.first) % self.servers.len() as u64) as usize
    }
}

pub(crate) fn placement(
    session: &Session,
    file: &OpenFile,
    io_mode: u32,
) -> Result<Place, NfsError> {
    let (stateid, body) = layout(session, file, io_mode)?;
    let layout = FilesLayout::decode(&mut Decoder::new(&body)).unwrap();
    assert_eq!((layout.unit.unit_bytes(), layout.unit.dense()), (UNIT as u32, false));
    let first = u64::from(layout.first_stripe_index);
    let handles = layout.handles.iter().map(|handle| Handle(handle.0.to_vec())).collect();
    let body = device(session, layout.device)?;
    let device = FilesDevice::decode(&mut Decoder::new(&body)).unwrap();
    assert_eq!(device.stripe_indices, [0, 1, 2]);
    let told = device.servers.iter().map(|server| {
        let network = |told: &NetworkAddress<'_>| String::from_utf8(told.network.to_vec()).unwrap();
        server.0.iter().map(|told| (network(told), address(told.address))).collect()
    });
    let told: Vec<Vec<_>> = told.collect();
    let servers = told.iter().map(|told| told[0].1).collect();
    Ok(Place { stateid, device: layout.device, first, handles, servers, told })
}

/// Opens sessions with the data servers of a placement, as the client of that name.
pub(crate) fn data_sessions(place: &Place, owner: &[u8]) -> Vec<Session> {
    let options = Options { minor_version: 1, back_slots: 0, ..Options::new(owner) };
    place.servers.iter().map(|&address| connect(address, &options).unwrap()).collect()
}

#[test]
fn files_are_read_and_written_through_the_server_and_outlive_it() {
    let dir = TempDir::new().unwrap();
    let bytes = pattern(7 * UNIT as usize + 99, 1);
    let server = Server::start(&config(dir.path())).unwrap();
    let client = session(&server, b"plain");
    let file = create(&client, b"f");
    let written = client.write(&file.handle, file.stateid, 0, &bytes, StableHow::FileSync).unwrap();
    assert_eq!((written.count as usize, written.committed), (bytes.len(), StableHow::FileSync));
    client.close(&file).unwrap();
    server.stop();
    assert_eq!(std::fs::metadata(dir.path().join("meta/f")).unwrap().len(), bytes.len() as u64);
    assert!(std::fs::read(dir.path().join("meta/f")).unwrap().iter().all(|&byte| byte == 0));
    let server = Server::start(&config(dir.path())).unwrap();
    content_is(&server, &bytes);
    server.stop();
}

#[test]
fn clients_reach_the_stripes_by_themselves() {
    let dir = TempDir::new().unwrap();
    let server = Server::start(&config(dir.path())).unwrap();
    let client = session(&server, b"pnfs");
    let file = create(&client, b"f");
    let place = placement(&client, &file, WRITE).unwrap();
    let data = data_sessions(&place, b"pnfs");
    let bytes = pattern(5 * UNIT as usize + 10, 1);
    for (stripe, part) in bytes.chunks(UNIT as usize).enumerate() {
        let offset = stripe as u64 * UNIT;
        let at = place.at(offset);
        let handle = &place.handles[at];
        let written =
            data[at].write(handle, file.stateid, offset, part, StableHow::FileSync).unwrap();
        assert_eq!((written.count as usize, written.committed), (part.len(), StableHow::DataSync));
        // Each handle is valid only at its own data server.
        let other = (at + 1) % 3;
        let refused = data[other].read(handle, file.stateid, offset, 1);
        assert_eq!(refused.unwrap_err().status(), Some(Status::BadHandle));
    }
    // A writer learns how far it has written, also without a commit.
    assert_eq!(client.stat(&file.handle).unwrap().size, bytes.len() as u64);
    commit(&client, &file, place.stateid, bytes.len() as u64 - 1).unwrap();
    assert_eq!(client.stat(&file.handle).unwrap().size, bytes.len() as u64);
    // A client without layouts reads the same through the server.
    let (plain, other) = content_is(&server, &bytes);
    // The reverse, with a hole at the end of a component.
    let end = bytes.len() as u64;
    plain.write(&other.handle, other.stateid, end + 3 * UNIT, b"end", StableHow::Unstable).unwrap();
    let hole = 6 * UNIT;
    let at = place.at(hole);
    let read = data[at].read(&place.handles[at], file.stateid, hole, 100).unwrap();
    assert_eq!(read, (vec![0; 100], false));
    server.stop();
}

/// Returns the administrators' reports on all data servers.
pub(crate) fn reports(base: &Path) -> Vec<NodeReport> {
    match ask_server(&base.join("state"), &AdminRequest::Nodes).unwrap() {
        AdminReply::Nodes(nodes) => nodes,
        _ => panic!("no nodes"),
    }
}

/// Returns the administrators' report on the data server of a placement.
fn report(base: &Path, address: SocketAddr) -> NodeReport {
    reports(base).into_iter().find(|node| node.addresses == [address]).unwrap()
}

#[test]
fn the_wrong_data_server_serves_requests_and_counts_them() {
    let dir = TempDir::new().unwrap();
    let mut config = config(dir.path());
    config.metrics_listen = Some("127.0.0.1:0".parse().unwrap());
    let server = Server::start(&config).unwrap();
    let client = session(&server, b"pnfs");
    let file = create(&client, b"f");
    let place = placement(&client, &file, WRITE).unwrap();
    let data = data_sessions(&place, b"pnfs");
    let bytes = pattern(6 * UNIT as usize, 1);
    // The second round goes to the node that has the stripe before.
    let first = place.at(0);
    for (stripe, part) in bytes.chunks(UNIT as usize).enumerate() {
        let offset = stripe as u64 * UNIT;
        let at = if stripe < 3 { place.at(offset) } else { (place.at(offset) + 2) % 3 };
        let handle = &place.handles[at];
        let written = data[at].write(handle, file.stateid, offset, part, StableHow::FileSync);
        let written = written.unwrap();
        assert_eq!((written.count as usize, written.committed), (part.len(), StableHow::DataSync));
    }
    commit(&client, &file, place.stateid, bytes.len() as u64 - 1).unwrap();
    let _plain = content_is(&server, &bytes);
    for (data, handle) in data.iter().zip(&place.handles) {
        let read = data.read(handle, file.stateid, 9, 100).unwrap();
        assert_eq!(read, (bytes[9..109].to_vec(), false));
    }
    let name = format!("/{}", config.exports[0].name);
    for (at, &address) in place.servers.iter().enumerate() {
        let indirect = UNIT + if at == first { 0 } else { 100 };
        let wanted = (100, 2 * UNIT, indirect);
        // The counter may change after the answer.
        eventually("the bytes are counted", || {
            let node = report(dir.path(), address);
            (node.read_bytes, node.written_bytes, node.indirect_bytes) == wanted
        });
        let text = scrape(server.metrics_address().unwrap());
        let number = report(dir.path(), address).number;
        for (counter, value) in [("read", 100), ("written", 2 * UNIT), ("indirect", indirect)] {
            let line = format!(
                "dafs_data_node_{counter}_bytes_total{{export=\"{name}\",node=\"{number}\"}} {value}\n"
            );
            assert!(text.contains(&line), "{line}{text}");
        }
        let sum = format!("dafs_data_indirect_bytes_total {}\n", 3 * UNIT + 200);
        assert!(text.contains(&sum), "{sum}{text}");
    }
    server.stop();
}

#[test]
fn each_data_server_is_a_server_of_its_own() {
    let dir = TempDir::new().unwrap();
    let here = Server::start(&config(dir.path())).unwrap();
    let client = session(&here, b"pnfs");
    let file = create(&client, b"f");
    let mut servers = placement(&client, &file, WRITE).unwrap().servers;
    servers.push(here.nfs_addresses()[0]);
    let (processes, far) = far(dir.path().join("far").as_path());
    let server = Server::start(&far).unwrap();
    servers.push(server.nfs_addresses()[0]);
    servers.extend(processes.iter().map(DataProcess::nfs_address));
    // They answer when they know their identity.
    let told = |address: &SocketAddr| {
        let options = Options { minor_version: 1, ..Options::new(b"who") };
        let connection = Connection::open(*address, options.identity.clone()).unwrap();
        let told = exchange_id(&connection, &options, ExchangeFlags::empty()).unwrap();
        (told.server_owner, told.server_scope)
    };
    let told: Vec<_> = servers.iter().map(told).collect();
    let (owners, scopes): (BTreeSet<_>, BTreeSet<_>) = told.iter().cloned().unzip();
    assert_eq!((owners.len(), scopes.len()), (8, 8), "{told:?}");
    server.stop();
    here.stop();
    processes.into_iter().for_each(DataProcess::stop);
}

#[test]
fn state_is_judged_by_the_metadata_server() {
    let dir = TempDir::new().unwrap();
    let server = Server::start(&config(dir.path())).unwrap();
    let client = session(&server, b"pnfs");
    let file = create(&client, b"f");
    let refused = placement(&client, &file, READ | WRITE).map_err(|error| error.status());
    assert_eq!(refused.err(), Some(Some(Status::BadIoMode)));
    let place = placement(&client, &file, WRITE).unwrap();
    let at = place.at(0);
    let own = data_sessions(&place, b"pnfs");
    let write = |session: &Session, stateid| {
        let written = session.write(&place.handles[at], stateid, 0, b"data", StableHow::Unstable);
        written.map(|written| written.count).map_err(|error| error.status().unwrap())
    };
    assert_eq!(write(&own[at], file.stateid), Ok(4));
    let strange = Stateid { other: [9; 12], ..file.stateid };
    assert_eq!(write(&own[at], strange), Err(Status::BadStateId));
    let stranger = data_sessions(&place, b"somebody");
    assert_eq!(write(&stranger[at], file.stateid), Err(Status::BadStateId), "not its client");
    assert!(write(&stranger[at], Stateid::ANONYMOUS).is_err(), "it has no layout");
    client.close(&file).unwrap();
    assert!(write(&own[at], file.stateid).is_err(), "the open is gone");
    // Clients access files from before through the server.
    std::fs::write(dir.path().join("meta/old"), b"from before").unwrap();
    let old = open(&client, b"old");
    let refused = placement(&client, &old, READ).map_err(|error| error.status());
    assert_eq!(refused.err(), Some(Some(Status::LayoutUnavailable)));
    let (got, _) = client.read(&old.handle, old.stateid, 0, 100).unwrap();
    assert_eq!(got, b"from before");
    server.stop();
}

#[test]
fn a_node_that_is_not_mounted_is_not_taken_for_an_empty_one() {
    let dir = TempDir::new().unwrap();
    Server::start(&config(dir.path())).unwrap().stop();
    let (node, away) = (dir.path().join("node2"), dir.path().join("away"));
    std::fs::rename(&node, &away).unwrap();
    let error = Server::start(&config(dir.path())).err().unwrap().to_string();
    assert!(error.contains("mounted"), "{error}");
    std::fs::remove_dir(&node).unwrap();
    std::fs::rename(&away, &node).unwrap();
    Server::start(&config(dir.path())).unwrap().stop();
}

/// Copies all of a directory.
fn copy(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &to);
        } else {
            std::fs::copy(entry.path(), to).unwrap();
        }
    }
}

#[test]
fn an_older_state_of_a_node_is_not_taken_for_the_newest() {
    let dir = TempDir::new().unwrap();
    let write = |bytes: &[u8], open: fn(&Session, &[u8]) -> OpenFile| {
        let server = Server::start(&config(dir.path())).unwrap();
        let client = session(&server, b"plain");
        let file = open(&client, b"f");
        client.write(&file.handle, file.stateid, 0, bytes, StableHow::FileSync).unwrap();
        server.stop();
    };
    write(&[b'a'; 3 * UNIT as usize], create);
    let [node, older, newest] = ["node2", "older", "newest"].map(|name| dir.path().join(name));
    copy(&node, &older);
    write(&[b'b'; 3 * UNIT as usize], open);
    std::fs::rename(&node, &newest).unwrap();
    std::fs::rename(&older, &node).unwrap();
    let error = Server::start(&config(dir.path())).err().unwrap().to_string();
    assert!(error.contains("node2 has gone back in time"), "{error}");
    std::fs::remove_dir_all(&node).unwrap();
    std::fs::rename(&newest, &node).unwrap();
    let server = Server::start(&config(dir.path())).unwrap();
    content_is(&server, &[b'b'; 3 * UNIT as usize]);
    server.stop();
}

#[test]
fn rdma_clients_get_rdma_addresses_of_data_servers() {
    let dir = TempDir::new().unwrap();
    let mut config = config(dir.path());
    config.nfs.rdma_listen = Some(vec!["127.0.0.1:0".parse().unwrap()]);
    let ExportSource::Striped { nodes, .. } = &mut config.exports[0].source else {
        panic!("the source")
    };
    for node in nodes {
        let NodePlace::Directory { rdma, .. } = &mut node.place else { panic!("a directory") };
        rdma.soft = (node.number != 2).then(|| "127.0.0.1:0".parse().unwrap());
    }
    let server = Server::start(&config).unwrap();
    let options = Options { minor_version: 1, ..Options::new(b"both") };
    let port = Port::new(Box::new(IwarpAdapter::new(IwarpConfig::default()).unwrap())).unwrap();
    let by_rdma = |address: SocketAddr| {
        let identity = Identity::sys("both", 0, 0, &[]);
        let rpc = dafs_rpc::client::Options { identity, ..dafs_rpc::client::Options::default() };
        Connection::open_rdma(&port, &Address::Tcp(address), rpc).unwrap()
    };
    // Two connections of one client, each of which gets an answer of its own.
    let sessions = [
        connect(server.nfs_addresses()[0], &options).unwrap(),
        connect_over(by_rdma(server.nfs_rdma_addresses()[0]), &options).unwrap(),
    ];
    let file = create(&sessions[0], b"f");
    let tcp = placement(&sessions[0], &file, WRITE).unwrap();
    assert!(tcp.told.iter().all(|told| told.len() == 1 && told[0].0 == "tcp"), "{:?}", tcp.told);
    let again = open(&sessions[1], b"f");
    let rdma = placement(&sessions[1], &again, WRITE).unwrap();
    assert_eq!((rdma.device, &rdma.handles), (tcp.device, &tcp.handles), "the same data servers");
    let networks = rdma.told.iter().map(|told| told.iter().map(|told| &*told.0).collect());
    let networks: Vec<Vec<_>> = networks.collect();
    assert_eq!(networks, [vec!["rdma", "tcp"], vec!["tcp"], vec!["rdma", "tcp"]]);
    for (by_rdma, by_tcp) in rdma.told.iter().zip(&tcp.told) {
        assert_eq!(by_rdma.last(), by_tcp.last(), "for who cannot be there by RDMA");
    }
    // Writes over one of the transports are visible over the other.
    let bytes = pattern(3 * UNIT as usize, 1);
    let options = Options { back_slots: 0, ..options };
    let stripe = UNIT as usize;
    for (at, bytes) in (0..).map(|at| at * UNIT).zip(bytes.chunks(stripe)) {
        let node = rdma.at(at);
        let data = match &*rdma.told[node][0].0 {
            "rdma" => connect_over(by_rdma(rdma.servers[node]), &options).unwrap(),
            _ => connect(rdma.servers[node], &options).unwrap(),
        };
        let handle = &rdma.handles[node];
        data.write(handle, again.stateid, at, bytes, StableHow::Unstable).unwrap();
        let data = connect(tcp.servers[node], &options).unwrap();
        let (read, _) = data.read(handle, file.stateid, at, UNIT as u32).unwrap();
        assert!(read == bytes, "at {at}");
    }
    server.stop();
}

/// Returns the configuration of a data server of another machine.
fn far_config(base: &Path, number: u32, secret: &Path) -> DataServerConfig {
    let directory = base.join(format!("far{number}"));
    std::fs::create_dir(&directory).unwrap();
    DataServerConfig { dafs: None, ..common::data_server(directory, secret) }
}

#[test]
fn a_data_server_whose_metrics_cannot_be_had_does_not_start() {
    let dir = TempDir::new().unwrap();
    let secret = dir.path().join("secret");
    ClusterSecret::make(&secret).unwrap();
    let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut config = far_config(dir.path(), 1, &secret);
    // The node of its directory is not known yet.
    config.general.metrics_listen = Some(other.local_addr().unwrap());
    let error = DataProcess::start(config).map(DataProcess::stop).unwrap_err();
    assert!(error.to_string().contains("for metrics"), "{error}");
}

/// Starts three data servers as on other machines, and returns the configuration of their metadata
/// server.
fn far(base: &Path) -> (Vec<DataProcess>, Config) {
    far_with(base, |_| {})
}

/// The same with a change of the configuration of each data server.
pub(crate) fn far_with(
    base: &Path,
    change: impl Fn(&mut DataServerConfig),
) -> (Vec<DataProcess>, Config) {
    std::fs::create_dir_all(base).unwrap();
    let secret = base.join("secret");
    ClusterSecret::make(&secret).unwrap();
    let data = (1..=3).map(|number| {
        let mut config = far_config(base, number, &secret);
        change(&mut config);
        DataProcess::start(config).unwrap()
    });
    let data: Vec<_> = data.collect();
    let mut config = config(base);
    let ExportSource::Striped { nodes, cluster_secret, .. } = &mut config.exports[0].source else {
        panic!("the source")
    };
    *cluster_secret = Some(secret);
    for (node, data) in nodes.iter_mut().zip(&data) {
        node.place = NodePlace::Remote(data.control_address().to_string());
    }
    (data, config)
}

#[test]
fn data_servers_of_other_machines_serve_clients_by_leave_of_the_metadata_server() {
    let dir = TempDir::new().unwrap();
    let (processes, config) = far(dir.path());
    let server = Server::start(&config).unwrap();
    let client = session(&server, b"pnfs");
    let file = create(&client, b"f");
    // Until all nodes are there no client gets a layout.
    eventually("a layout", || placement(&client, &file, WRITE).is_ok());
    let place = placement(&client, &file, WRITE).unwrap();
    let addresses: Vec<_> = processes.iter().map(DataProcess::nfs_address).collect();
    assert_eq!(place.servers, addresses);
    let data = data_sessions(&place, b"pnfs");
    let bytes = pattern(5 * UNIT as usize + 10, 1);
    let write = |server: usize, stateid, offset: u64, part: &[u8]| {
        let handle = &place.handles[server];
        let written = data[server].write(handle, stateid, offset, part, StableHow::FileSync);
        written.map(|written| (written.count as usize, written.committed))
    };
    let strange = Stateid { other: [9; 12], ..file.stateid };
    let refused = write(0, strange, 0, b"data").unwrap_err();
    assert_eq!(refused.status(), Some(Status::BadStateId));
    let stranger = data_sessions(&place, b"somebody");
    let refused = stranger[0].write(&place.handles[0], file.stateid, 0, b"x", StableHow::Unstable);
    assert_eq!(refused.unwrap_err().status(), Some(Status::BadStateId), "not its client");
    for (stripe, part) in bytes.chunks(UNIT as usize).enumerate() {
        let offset = stripe as u64 * UNIT;
        // Every second one goes to a data server that does not have it.
        let at = (place.at(offset) + stripe % 2) % 3;
        let wanted = (part.len(), StableHow::DataSync);
        assert_eq!(write(at, file.stateid, offset, part).unwrap(), wanted);
    }
    eventually("the bytes are counted", || {
        let nodes: Vec<_> = addresses.iter().map(|&node| report(dir.path(), node)).collect();
        let written: u64 = nodes.iter().map(|node| node.written_bytes).sum();
        let indirect: u64 = nodes.iter().map(|node| node.indirect_bytes).sum();
        (written, indirect) == (bytes.len() as u64, 2 * UNIT + 10)
    });
    // A writer learns how far it has written, also without a commit.
    assert_eq!(client.stat(&file.handle).unwrap().size, bytes.len() as u64);
    commit(&client, &file, place.stateid, bytes.len() as u64 - 1).unwrap();
    let (plain, other) = content_is(&server, &bytes);
    // A hole in one component is not taken for one in the next, at any data server.
    let hole = 6 * UNIT;
    plain.write(&other.handle, other.stateid, 9 * UNIT, b"end", StableHow::Unstable).unwrap();
    for (data, handle) in data.iter().zip(&place.handles) {
        let read = data.read(handle, file.stateid, hole, 100).unwrap();
        assert_eq!(read, (vec![0; 100], false));
        let read = data.read(handle, file.stateid, 9 * UNIT, 100).unwrap();
        assert_eq!(read, (b"end".to_vec(), true));
    }
    server.stop();
    processes.into_iter().for_each(DataProcess::stop);
}

/// Lets a server read its configuration again, with another network of its only export.
fn reloading(server: &Server, config: &Config) -> impl Fn(&Server, &str) + use<> {
    let present = Arc::new(Mutex::new(config.clone()));
    let read = present.clone();
    server.set_read_config(Box::new(move || Ok(read.lock().unwrap().clone())));
    move |server, network| {
        let networks = vec![network.parse().unwrap()];
        present.lock().unwrap().exports[0].options.admits.networks = networks;
        server.reload().unwrap();
    }
}

#[test]
fn a_reload_of_networks_holds_at_data_servers_of_this_process() {
    let dir = TempDir::new().unwrap();
    let config = config(dir.path());
    let server = Server::start(&config).unwrap();
    let admit = reloading(&server, &config);
    let client = session(&server, b"pnfs");
    let file = create(&client, b"f");
    let place = placement(&client, &file, WRITE).unwrap();
    let data = data_sessions(&place, b"pnfs");
    let (at, options) = (place.at(0), Options { minor_version: 1, ..Options::new(b"another") });
    let write =
        || data[at].write(&place.handles[at], file.stateid, 0, b"data", StableHow::Unstable);
    let connects = || connect(place.servers[at], &options).is_ok();
    assert!(write().is_ok() && connects());
    admit(&server, "192.0.2.0/24");
    assert!(write().is_err() && !connects(), "an open file with a layout, and a new client");
    admit(&server, "127.0.0.0/8");
    assert!(write().is_ok() && connects());
    server.stop();
}

#[test]
fn a_reload_of_networks_holds_at_data_servers_of_other_machines() {
    let dir = TempDir::new().unwrap();
    let (processes, config) = far(dir.path());
    let server = Server::start(&config).unwrap();
    let admit = reloading(&server, &config);
    let client = session(&server, b"pnfs");
    let file = create(&client, b"f");
    eventually("a layout", || placement(&client, &file, WRITE).is_ok());
    let place = placement(&client, &file, WRITE).unwrap();
    let data = data_sessions(&place, b"pnfs");
    let write = |at: usize| {
        let handle = &place.handles[at];
        let written = data[at].write(handle, file.stateid, 0, b"data", StableHow::Unstable);
        written.map(|_| ()).map_err(|error| error.status())
    };
    assert_eq!(write(0), Ok(()));
    admit(&server, "192.0.2.0/24");
    assert_eq!(write(1), Err(Some(Status::Access)), "nobody has asked there before");
    eventually("the cached authorisation has expired", || write(0) == Err(Some(Status::Access)));
    admit(&server, "127.0.0.0/8");
    assert_eq!((write(0), write(1)), (Ok(()), Ok(())));
    server.stop();
    processes.into_iter().for_each(DataProcess::stop);
}
