//! An authority for tests, with a server and a client.

// Each test program is a crate of its own and uses a part of this one.
#![allow(dead_code, unreachable_pub)]
// A helper of tests fails the test.
#![allow(clippy::unwrap_used)]

use dafs_dat::iwarp::{IwarpAdapter, IwarpConfig};
use dafs_dat::tls::{ClientTls, ServerTls, now_seconds};
use dafs_tls::pki::{Folder, Made};
use dafs_tls::{
    ClientFiles, Protocol, ReloadingClient, ReloadingServer, ServerFiles, TransportSecurity,
};
use std::path::PathBuf;
use std::sync::Arc;

/// The files of an authority.
pub struct Pki {
    _directory: tempfile::TempDir,
    pub folder: Folder,
    pub client: Made,
    /// The authorities that clients trust.
    pub trusted: PathBuf,
    pub files: Arc<ReloadingServer>,
    pub host: Arc<ServerTls>,
}

impl Pki {
    /// An authority, and a server with a certificate for `localhost`.
    pub fn new() -> Self {
        let (directory, now) = (tempfile::tempdir().unwrap(), now_seconds());
        let folder = Folder::create(&directory.path().join("pki"), "CA", now).unwrap();
        let made = folder.add_server(&["localhost".to_owned()], now).unwrap();
        let client = folder.add_client(&["host7".to_owned()], now).unwrap();
        let trusted = directory.path().join("trusted.pem");
        std::fs::copy(folder.authority_files().certificate, &trusted).unwrap();
        let files = ServerFiles {
            certificate: made.certificate,
            key: made.key,
            authorities: Some(folder.authority_files().certificate),
            revocations: None,
            policy: TransportSecurity::Tls,
        };
        let files = Arc::new(ReloadingServer::open(files, now).unwrap());
        let run = Box::new(|_, job| drop(std::thread::spawn(job)));
        let host = ServerTls::new(files.clone(), run);
        Self { _directory: directory, folder, client, trusted, files, host }
    }

    /// The demand of a client on a server of this name, with the client's certificate for `Mtls`.
    pub fn demand(&self, least: TransportSecurity, name: &str, protocol: Protocol) -> ClientTls {
        let own = (least == TransportSecurity::Mtls).then_some(&self.client);
        let files = ClientFiles {
            authorities: self.trusted.clone(),
            revocations: None,
            certificate: own.map(|made| made.certificate.clone()),
            key: own.map(|made| made.key.clone()),
        };
        let files = Arc::new(ReloadingClient::open(files, now_seconds()).unwrap());
        ClientTls::new(files, name, least, protocol)
    }

    /// An adapter whose connections demand this.
    pub fn client(&self, least: TransportSecurity) -> IwarpAdapter {
        let tls = Some(self.demand(least, "localhost", Protocol::Dafs));
        IwarpAdapter::new(IwarpConfig { tls, ..IwarpConfig::default() }).unwrap()
    }

    /// An adapter that serves DAFS inside TLS and in the clear.
    pub fn server(&self, config: IwarpConfig) -> IwarpAdapter {
        let mut adapter = IwarpAdapter::new(config).unwrap();
        adapter.serve_tls(self.host.clone(), Protocol::Dafs).unwrap();
        adapter
    }
}
