//! NFS in TLS (RFC 9289): mounts of this project's client, a foreign client, and exports that demand
//! it.

use crate::common::{Running, filled, pattern, scrape};
use dafs_client::{Client, ConnectOptions, DafsUrl, TransportChoice};
use dafs_mem::Site;
use dafs_nfs_client::mount::{
    Create, Mount, MountError, MountOptions, NfsUrl, OpenOptions, StableHow,
};
use dafs_server::Config;
use dafs_service::TransportSecurity;
use dafs_tls::ServerFiles;
use dafs_tls::pki::{Folder, Made, Use};
use dafs_wire::nfs4::Status;
use dafs_wire::rpc::{AuthFlavor, CallHeader, FragmentMark, OpaqueAuth};
use dafs_wire::xdr::Encode;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tempfile::TempDir;

/// An authority, a server's certificate and a client's.
pub(crate) struct Pki {
    _directory: TempDir,
    folder: Folder,
    server: Made,
    client: Made,
}

impl Pki {
    pub(crate) fn new() -> Self {
        let directory = TempDir::new().unwrap();
        let now = now_seconds();
        let folder = Folder::create(&directory.path().join("pki"), "CA", now).unwrap();
        let names = ["localhost", "127.0.0.1"].map(str::to_owned);
        let server = folder.add_server(&names, now).unwrap();
        let client = folder.add_client(&["host7".to_owned()], now).unwrap();
        Self { _directory: directory, folder, server, client }
    }

    pub(crate) fn server_files(&self) -> ServerFiles {
        ServerFiles {
            certificate: self.server.certificate.clone(),
            key: self.server.key.clone(),
            authorities: Some(self.folder.authority_files().certificate),
            revocations: None,
            policy: TransportSecurity::Tls,
        }
    }

    /// The options of a URL that demand this.
    pub(crate) fn options(&self, least: TransportSecurity) -> String {
        let authority = self.folder.authority_files().certificate;
        match least {
            TransportSecurity::Mtls => self.options_of(&self.client),
            _ => format!("xprtsec={least}&ca={}", authority.display()),
        }
    }

    /// A client's certificate for this user.
    pub(crate) fn client_of(&self, user: &str) -> Made {
        let (stem, names) = (user.replace('@', "-"), ["host8".to_owned()]);
        self.folder.issue(Use::Client, &stem, &names, Some(user), now_seconds()).unwrap()
    }

    /// The options of a URL that demand `mtls` with this certificate.
    pub(crate) fn options_of(&self, own: &Made) -> String {
        let authority = self.folder.authority_files().certificate;
        let (certificate, key) = (own.certificate.display(), own.key.display());
        format!("xprtsec=mtls&ca={}&cert={certificate}&key={key}", authority.display())
    }

    /// A foreign client inside TLS.
    pub(crate) fn foreign(&self, server: SocketAddr) -> StreamOwned<ClientConnection, TcpStream> {
        self.foreign_as(server, None)
    }

    /// The same, with this certificate.
    pub(crate) fn foreign_as(
        &self,
        server: SocketAddr,
        own: Option<&Made>,
    ) -> StreamOwned<ClientConnection, TcpStream> {
        let mut stream = TcpStream::connect(server).unwrap();
        stream.write_all(&null(7)).unwrap();
        let mut answer = [0; 36];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(answer[24..32], *b"STARTTLS");
        self.shaking_as(stream, own)
    }

    /// A foreign client that begins its handshake with the first use, with a certificate if
    /// `with_own`.
    pub(crate) fn shaking(
        &self,
        stream: TcpStream,
        with_own: bool,
    ) -> StreamOwned<ClientConnection, TcpStream> {
        self.shaking_as(stream, with_own.then_some(&self.client))
    }

    fn shaking_as(
        &self,
        stream: TcpStream,
        own: Option<&Made>,
    ) -> StreamOwned<ClientConnection, TcpStream> {
        let mut roots = RootCertStore::empty();
        let authority = self.folder.authority_files().certificate;
        roots.add(CertificateDer::from_pem_file(authority).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_root_certificates(roots);
        let config = if let Some(own) = own {
            let chain = vec![CertificateDer::from_pem_file(&own.certificate).unwrap()];
            let key = PrivateKeyDer::from_pem_file(&own.key).unwrap();
            builder.with_client_auth_cert(chain, key).unwrap()
        } else {
            builder.with_no_client_auth()
        };
        let name = ServerName::try_from("localhost").unwrap();
        StreamOwned::new(ClientConnection::new(Arc::new(config), name).unwrap(), stream)
    }

    /// Gives the server another certificate.
    pub(crate) fn renew(&self) {
        self.folder.renew_server(now_seconds()).unwrap();
    }
}

fn now_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

/// NULL of NFSv4 with this flavour.
fn null(flavor: u32) -> Vec<u8> {
    let credential = OpaqueAuth { flavor: AuthFlavor(flavor), body: &[] };
    let verifier = OpaqueAuth::NONE;
    let (program, version, procedure) = (100_003, 4, 0);
    let call = CallHeader { xid: 1, program, version, procedure, credential, verifier }.encoded();
    [&FragmentMark::whole(call.len()).unwrap().to_bytes()[..], &call].concat()
}

/// A server whose only export demands this.
fn serve(pki: &Pki, least: TransportSecurity) -> Running {
    Running::new(|config: &mut Config| {
        config.tls = Some(pki.server_files());
        config.exports[0].options.admits.transport_security = least;
        config.metrics_listen = Some("127.0.0.1:0".parse().unwrap());
    })
}

pub(crate) fn url(server: SocketAddr, path: &str, options: &str) -> NfsUrl {
    NfsUrl::parse(&format!("nfs://{server}{path}?{options}")).unwrap()
}

pub(crate) fn quick() -> MountOptions {
    MountOptions { retry_timeout: Duration::from_secs(3), ..MountOptions::default() }
}

pub(crate) fn mount(server: SocketAddr, options: &str) -> Result<Mount, MountError> {
    Mount::connect(&url(server, "/", options), &quick())
}

pub(crate) fn write(mount: &Mount, name: &str, data: &[u8]) -> Result<(), MountError> {
    let options = OpenOptions::read_write().create(Create::IfMissing).truncate(true);
    let file = mount.open(name.as_bytes(), &options)?;
    let memory = filled(mount, data);
    file.write(memory.whole(), 0, StableHow::FileSync)?;
    file.close()
}

pub(crate) fn read(mount: &Mount, name: &str, len: usize) -> Result<Vec<u8>, MountError> {
    let file = mount.open(name.as_bytes(), &OpenOptions::read())?;
    let memory = mount.allocate(len)?;
    let mut filled = 0;
    while filled < len {
        match file.read(memory.slice(filled..len).unwrap(), filled as u64)? {
            0 => break,
            count => filled += count,
        }
    }
    file.close()?;
    Ok(memory.view().to_vec(Site::Inspect)[..filled].to_vec())
}

#[test]
fn every_version_works_inside_tls() {
    use TransportSecurity::{Mtls, Tls};
    let pki = Pki::new();
    let server = serve(&pki, Mtls);
    let address = server.server().nfs_addresses()[0];
    for version in ["3", "4.1", "4.2"] {
        let mount = mount(address, &format!("vers={version}&{}", pki.options(Mtls))).unwrap();
        for (name, len) in [("small", 100), ("large", 3 << 20)] {
            let data = pattern(len, len as u64);
            write(&mount, name, &data).unwrap();
            assert!(std::fs::read(server.path().join(name)).unwrap() == data, "{version} {name}");
            assert!(read(&mount, name, len).unwrap() == data, "{version} {name}");
        }
    }
    // TLS without a certificate of the client is not enough.
    assert!(mount(address, &pki.options(Tls)).is_err());
    let metrics = scrape(server.server().metrics_address().unwrap());
    let count = |name: &str| {
        let line = metrics.lines().find(|line| line.starts_with(&format!("{name} "))).unwrap();
        line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap()
    };
    assert!(
        count("dafs_nfs_tls_mutual_total") >= 3
            && count("dafs_nfs_tls_connections_total") > count("dafs_nfs_tls_mutual_total")
    );
}

#[test]
fn an_export_that_demands_tls_is_closed_in_the_clear() {
    let pki = Pki::new();
    let server = serve(&pki, TransportSecurity::Tls);
    std::fs::write(server.path().join("secret"), b"x").unwrap();
    let address = server.server().nfs_addresses()[0];
    for version in ["3", "4.1", "4.2"] {
        let refused =
            mount(address, &format!("vers={version}")).and_then(|mount| read(&mount, "secret", 1));
        assert!(refused.is_err(), "{version}");
        let inside = format!("vers={version}&{}", pki.options(TransportSecurity::Tls));
        let got = mount(address, &inside).and_then(|mount| read(&mount, "secret", 1));
        assert_eq!(got.unwrap(), b"x");
    }
    // NULL is for everybody.
    let mut clear = TcpStream::connect(address).unwrap();
    clear.write_all(&null(0)).unwrap();
    clear.read_exact(&mut [0; 28]).unwrap();
    // RDMA has no TLS, nor has DAFS.
    let over_rdma = |server: &Running| {
        let rdma = server.server().nfs_rdma_addresses()[0];
        let url = NfsUrl::parse(&format!("nfs+rdma://{rdma}/?transport=iwarp")).unwrap();
        Mount::connect(&url, &quick()).and_then(|mount| read(&mount, "secret", 1))
    };
    let open = serve(&pki, TransportSecurity::None);
    std::fs::write(open.path().join("secret"), b"x").unwrap();
    assert_eq!(over_rdma(&open).unwrap(), b"x");
    let refused = over_rdma(&server).unwrap_err();
    // The server was reached, and has refused the calls.
    let is_refusal = match &refused {
        MountError::Refused { status, .. } => {
            matches!(status, Status::WrongSec | Status::Access | Status::Perm)
        }
        other => matches!(other, MountError::WrongFlavour { .. } | MountError::TooWeak { .. }),
    };
    assert!(is_refusal, "{refused:?}");
    // Shared memory is private.
    let dafs: DafsUrl = server.server().url().parse().unwrap();
    for (transport, is_let_in) in [(TransportChoice::Iwarp, false), (TransportChoice::Shm, true)] {
        let options = ConnectOptions { transport, ..ConnectOptions::default() };
        let opened = Client::connect(&dafs, &options).and_then(|client| {
            client.open(b"/secret", &dafs_client::OpenOptions::read()).map(|_| ())
        });
        assert_eq!(opened.is_ok(), is_let_in, "{transport:?}: {opened:?}");
    }
}

#[test]
fn a_client_that_loses_its_trust_loses_its_mount() {
    use TransportSecurity::Mtls;
    let (pki, other) = (Pki::new(), Pki::new());
    let server = serve(&pki, Mtls);
    let address = server.server().nfs_addresses()[0];
    // The client itself trusts the server all the time.
    let authority = pki.folder.authority_files().certificate;
    let kept = authority.with_extension("own");
    std::fs::copy(&authority, &kept).unwrap();
    let options = pki.options(Mtls).replace(authority.to_str().unwrap(), kept.to_str().unwrap());
    let mount = mount(address, &options).unwrap();
    write(&mount, "before", b"x").unwrap();
    // The files of the server change, without a restart.
    let own = std::fs::read(&authority).unwrap();
    std::fs::copy(other.folder.authority_files().certificate, &authority).unwrap();
    let start = Instant::now();
    while write(&mount, "after", b"x").is_ok() {
        assert!(start.elapsed() < Duration::from_secs(60), "the client is still trusted");
        std::thread::sleep(Duration::from_millis(20));
    }
    // A broken file changes nothing, and the right one is taken when it comes back.
    std::fs::write(&authority, b"").unwrap();
    std::thread::sleep(Duration::from_millis(50));
    std::fs::write(&authority, own).unwrap();
    while write(&mount, "again", b"x").is_err() {
        assert!(start.elapsed() < Duration::from_secs(120), "the client is not trusted again");
    }
}

#[test]
fn a_mount_with_tls_uses_no_server_that_has_lost_it() {
    use TransportSecurity::Tls;
    let pki = Pki::new();
    // A port that stays the same over restarts.
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut server = Running::new(|config| {
        config.tls = Some(pki.server_files());
        config.nfs.listen = vec![address];
    });
    let mount = mount(address, &pki.options(Tls)).unwrap();
    write(&mount, "one", b"x").unwrap();
    server.stop();
    server.config.tls = None;
    server.start();
    let error = write(&mount, "two", b"x").unwrap_err().to_string();
    assert!(error.contains("offers no TLS"), "{error}");
    assert!(!server.path().join("two").exists());
    server.stop();
    server.config.tls = Some(pki.server_files());
    server.start();
    write(&mount, "three", b"x").unwrap();
}
