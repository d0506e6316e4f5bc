//! RPC-with-TLS (RFC 9289): this crate's client, a foreign client (rustls), and attackers.

mod attacks;
mod calls;
mod gss;

use super::common::{PROGRAM, Raw, Server, call, options, record};
use dafs_rpc::client::{ClientTls, Options, RpcClient};
use dafs_rpc::gss::Acceptor;
use dafs_rpc::server::Config;
use dafs_rpc::tls::{ServerTls, TransportSecurity};
use dafs_tls::pki::{Folder, Made};
use dafs_tls::{ClientFiles, ReloadingClient, ReloadingServer, ServerFiles};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// AUTH_TLS.
const AUTH_TLS: u32 = 7;

pub(super) fn now_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

/// An authority, and a server with a certificate for `localhost`.
struct World {
    _directory: tempfile::TempDir,
    folder: Folder,
    client: Made,
    tls: Arc<ServerTls>,
    server: Server,
}

impl World {
    fn new() -> Self {
        Self::with(Config::default())
    }

    fn with(config: Config) -> Self {
        Self::with_gss(config, None)
    }

    fn with_gss(config: Config, gss: Option<Arc<dyn Acceptor>>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let now = now_seconds();
        let folder = Folder::create(&directory.path().join("pki"), "CA", now).unwrap();
        let made = folder.add_server(&["localhost".to_owned()], now).unwrap();
        let client = folder.add_client(&["host7".to_owned()], now).unwrap();
        let files = ServerFiles {
            certificate: made.certificate,
            key: made.key,
            authorities: Some(folder.authority_files().certificate),
            revocations: None,
            policy: TransportSecurity::Tls,
        };
        let files = Arc::new(ReloadingServer::open(files, now).unwrap());
        let tls = ServerTls::new(files, Box::new(|_, job| drop(std::thread::spawn(job))));
        let server = Server::start_with_gss(2, config, Some(tls.clone()), gss);
        Self { _directory: directory, folder, client, tls, server }
    }

    /// The demand of a client, which may have a certificate.
    fn demand(&self, least: TransportSecurity) -> ClientTls {
        self.demand_by(least, self.folder.authority_files().certificate)
    }

    /// The same, by these authorities.
    fn demand_by(&self, least: TransportSecurity, authorities: PathBuf) -> ClientTls {
        let own = (least == TransportSecurity::Mtls).then_some(&self.client);
        let files = ClientFiles {
            authorities,
            revocations: None,
            certificate: own.map(|made| made.certificate.clone()),
            key: own.map(|made| made.key.clone()),
        };
        let files = Arc::new(ReloadingClient::open(files, now_seconds()).unwrap());
        ClientTls::new(files, "localhost", least, (PROGRAM, 1))
    }

    /// A file of the same authority for a client alone.
    fn own_authorities(&self) -> PathBuf {
        let path = self.folder.authority_files().certificate;
        let own = path.with_extension("own");
        std::fs::copy(path, &own).unwrap();
        own
    }

    fn options(&self, least: TransportSecurity) -> Options {
        Options { tls: Some(self.demand(least)), ..options() }
    }

    fn connect(&self, least: TransportSecurity) -> RpcClient {
        self.server.connect_with(self.options(least), None)
    }

    /// The configuration of a foreign client, with a certificate if `with_own`.
    fn foreign(&self, with_own: bool, alpn: &[&str]) -> ClientConfig {
        let mut roots = RootCertStore::empty();
        let authority = self.folder.authority_files().certificate;
        roots.add(CertificateDer::from_pem_file(authority).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_root_certificates(roots);
        let mut config = if with_own {
            let chain = vec![CertificateDer::from_pem_file(&self.client.certificate).unwrap()];
            let key = PrivateKeyDer::from_pem_file(&self.client.key).unwrap();
            builder.with_client_auth_cert(chain, key).unwrap()
        } else {
            builder.with_no_client_auth()
        };
        config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
        config
    }

    /// A foreign client that has asked for TLS and begins its handshake with the first use.
    fn foreign_client(&self, config: ClientConfig) -> StreamOwned<ClientConnection, TcpStream> {
        let mut raw = Raw::connect(&self.server);
        raw.send(&probe(5, 0));
        assert_eq!(raw.record().unwrap(), starttls(5));
        shaking(raw.0, config)
    }
}

fn shaking(stream: TcpStream, config: ClientConfig) -> StreamOwned<ClientConnection, TcpStream> {
    let name = ServerName::try_from("localhost").unwrap();
    StreamOwned::new(ClientConnection::new(Arc::new(config), name).unwrap(), stream)
}

/// A call with the flavour AUTH_TLS.
fn probe(xid: u32, procedure: u32) -> Vec<u8> {
    record(&[xid, 0, 2, PROGRAM, 1, procedure, AUTH_TLS, 0, 0, 0], &[])
}

/// The answer that lets TLS begin, without its record mark.
fn starttls(xid: u32) -> Vec<u8> {
    let words = [xid, 1, 0, 0, 8_u32].into_iter().flat_map(u32::to_be_bytes);
    words.chain(*b"STARTTLS").chain([0; 4]).collect()
}

/// The answer AUTH_ERROR with AUTH_BADCRED, without its record mark.
fn bad_credential(xid: u32) -> Vec<u8> {
    [xid, 1, 1, 1, 1].iter().flat_map(|word: &u32| word.to_be_bytes()).collect()
}

/// A call in the clear that returns its arguments.
fn echo(xid: u32) -> Vec<u8> {
    call(xid, super::common::procedures::ECHO, b"ping")
}
