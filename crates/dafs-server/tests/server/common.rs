//! Parts that several modules share: configurations, patterns, raw requests for NFS layouts.

use dafs_mem::Site;
use dafs_nfs_client::mount::{Create, File, Memory, Mount, OpenOptions};
use dafs_nfs_client::{NfsError, OpenFile, Options, Session, connect};
use dafs_server::{Config, DataRdma, DataServerConfig, Server};
use dafs_service::{Admits, Squash};
use dafs_wire::nfs4::*;
use dafs_wire::xdr::{Encode, Encoder};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;

/// A port of loopback that the system chooses.
pub(crate) fn any() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

/// Returns a configuration with one export and without a grace period.
pub(crate) fn config(directory: PathBuf, state: PathBuf) -> Config {
    let mut config = Config::for_directory(directory);
    config.exports[0].options.squash = Squash::None;
    config.listen = vec![any()];
    config.nfs.listen = vec![any()];
    config.nfs.grace_time = Some(Duration::ZERO);
    config.state_directory = Some(state);
    config.threads = 1;
    config
}

/// A server on a directory of its own.
pub(crate) struct Running {
    server: Option<Server>,
    pub(crate) config: Config,
    directory: TempDir,
    _state: TempDir,
}

impl Running {
    pub(crate) fn new(change: impl FnOnce(&mut Config)) -> Self {
        let (directory, state) = (TempDir::new().unwrap(), TempDir::new().unwrap());
        let mut config = config(directory.path().to_owned(), state.path().to_owned());
        config.nfs.rdma_listen = Some(vec![any()]);
        config.exports[0].options.admits.unprivileged_ports = true;
        change(&mut config);
        let server = Some(Server::start(&config).unwrap());
        Self { server, config, directory, _state: state }
    }

    /// Returns the exported directory.
    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    pub(crate) fn server(&self) -> &Server {
        self.server.as_ref().unwrap()
    }

    pub(crate) fn stop(&mut self) {
        if let Some(server) = self.server.take() {
            server.stop();
        }
    }

    /// Starts it again with its durable state, on other ports.
    pub(crate) fn start(&mut self) -> &Server {
        self.server.insert(Server::start(&self.config).unwrap())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Reads the metrics at an address as Prometheus does.
pub(crate) fn scrape(metrics: SocketAddr) -> String {
    let mut stream = TcpStream::connect(metrics).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

/// Returns the configuration of a data server as of another machine.
pub(crate) fn data_server(directory: PathBuf, secret: &Path) -> DataServerConfig {
    DataServerConfig {
        general: Config::for_directory(directory.clone()),
        directory,
        engine: None,
        cluster_secret: secret.to_owned(),
        control: any(),
        nfs: any(),
        rdma: DataRdma::default(),
        dafs: Some(any()),
        dafs_verbs: false,
        admits: Admits::default(),
    }
}

/// Opens a session of NFSv4.1.
pub(crate) fn session(server: &Server, owner: &[u8]) -> Session {
    let options = Options { minor_version: 1, ..Options::new(owner) };
    connect(server.nfs_addresses()[0], &options).unwrap()
}

/// Returns bytes that depend on their position.
pub(crate) fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    (0..len)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        })
        .collect()
}

pub(crate) fn new_file(mount: &Mount, name: &str) -> File {
    let options = OpenOptions::read_write().create(Create::New);
    mount.open(name.as_bytes(), &options).unwrap()
}

/// Returns memory of a mount with these bytes.
pub(crate) fn filled(mount: &Mount, bytes: &[u8]) -> Memory {
    let memory = mount.allocate(bytes.len()).unwrap();
    memory.view().copy_from(bytes, Site::Inspect);
    memory
}

pub(crate) fn encoded(value: &impl Encode) -> Vec<u8> {
    let mut bytes = Vec::new();
    value.encode(&mut Encoder::new(&mut bytes));
    bytes
}

/// LAYOUTIOMODE4_RW.
pub(crate) const WRITE: u32 = 2;

/// Returns the arguments that request a layout of a whole file.
pub(crate) fn whole_file(layout_type: u32, io_mode: u32, stateid: Stateid) -> LayoutgetArgs {
    LayoutgetArgs {
        signal_available: false,
        layout_type,
        io_mode,
        offset: 0,
        length: u64::MAX,
        length_min: 4096,
        stateid,
        result_bytes_max: 4096,
    }
}

/// Requests a layout of the type for files. Returns its state-id and its body.
pub(crate) fn layout(
    session: &Session,
    file: &OpenFile,
    io_mode: u32,
) -> Result<(Stateid, Vec<u8>), NfsError> {
    let get = Op::Layoutget(whole_file(LAYOUT_FILES, io_mode, file.stateid));
    let mut results = session.call(|compound| {
        compound.op(&Op::Putfh(PutfhArgs { handle: &file.handle.0 })).op(&get);
    })?;
    results.skip(&[OpNum::Putfh])?;
    let ResultBody::Layoutget(granted) = results.take(OpNum::Layoutget)? else { panic!() };
    Ok((granted.stateid, granted.layouts[0].content.body.to_vec()))
}

/// Requests the addresses of a device. Returns them in the encoding of the type for files.
pub(crate) fn device(session: &Session, device_id: DeviceId) -> Result<Vec<u8>, NfsError> {
    let args = GetdeviceinfoArgs {
        device_id,
        layout_type: LAYOUT_FILES,
        result_bytes_max: 4096,
        notifications: Bitmap::EMPTY,
    };
    let mut results = session.call(|compound| {
        compound.op(&Op::Getdeviceinfo(args));
    })?;
    let ResultBody::Getdeviceinfo(device) = results.take(OpNum::Getdeviceinfo)? else { panic!() };
    Ok(device.address.body.to_vec())
}

/// Commits a write by a layout up to its last byte.
pub(crate) fn commit(
    session: &Session,
    file: &OpenFile,
    stateid: Stateid,
    last: u64,
) -> Result<(), NfsError> {
    let args = LayoutcommitArgs {
        offset: 0,
        length: u64::MAX,
        reclaim: false,
        stateid,
        last_write_offset: Some(last),
        time_modify: None,
        update: LayoutBody { layout_type: LAYOUT_FILES, body: b"" },
    };
    let mut results = session.call(|compound| {
        compound.op(&Op::Putfh(PutfhArgs { handle: &file.handle.0 })).op(&Op::Layoutcommit(args));
    })?;
    results.skip(&[OpNum::Putfh, OpNum::Layoutcommit]).map(|_| ())
}

/// Parses a universal address of IPv4.
pub(crate) fn address(text: &[u8]) -> SocketAddr {
    let numbers: Vec<u16> =
        std::str::from_utf8(text).unwrap().split('.').map(|n| n.parse().unwrap()).collect();
    let [a, b, c, d, high, low] = numbers[..] else { panic!("{numbers:?}") };
    format!("{a}.{b}.{c}.{d}:{}", high * 256 + low).parse().unwrap()
}
