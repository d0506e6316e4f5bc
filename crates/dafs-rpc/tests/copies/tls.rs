//! In TLS the server copies the first record of a large call, and parts of records between two
//! reads. The client copies what it seals, because its program may change it meanwhile.

use crate::alone;
use crate::sockets::{
    PATIENCE, PROGRAM, Raw, Server, call, options, pattern, procedure, procedures, record, sum,
};
use dafs_mem::{Site, copied_bytes};
use dafs_rpc::client::{ClientTls, Options};
use dafs_rpc::server::Config;
use dafs_rpc::tls::{ServerTls, TransportSecurity};
use dafs_tls::pki::Folder;
use dafs_tls::{ClientFiles, ReloadingClient, ReloadingServer, ServerFiles};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, Stream};
use std::io::{Read as _, Write as _};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A server whose records this process opens. None where the kernel does, which no counter here
/// sees.
fn server() -> Option<(tempfile::TempDir, Folder, Server)> {
    let now = now_seconds();
    let directory = tempfile::tempdir().unwrap();
    let folder = Folder::create(&directory.path().join("pki"), "CA", now).unwrap();
    let made = folder.add_server(&["localhost".to_owned()], now).unwrap();
    let policy = TransportSecurity::Tls;
    let (certificate, key) = (made.certificate, made.key);
    let files = ServerFiles { certificate, key, authorities: None, revocations: None, policy };
    let files = Arc::new(ReloadingServer::open(files, now).unwrap());
    let tls = ServerTls::new(files, Box::new(|_, job| drop(std::thread::spawn(job))));
    if tls.kernel().is_ok() {
        eprintln!("skipped: the kernel opens the records");
        return None;
    }
    Some((directory, folder, Server::start_with_tls(1, Config::default(), Some(tls))))
}

fn now_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

#[test]
fn records_are_opened_in_the_call_that_they_belong_to() {
    const CALLS: u64 = 20;
    const BYTES: u64 = 1 << 20;
    let _alone = alone();
    let Some((_directory, folder, server)) = server() else { return };
    let authorities = folder.authority_files().certificate;
    let files = ClientFiles { authorities, ..ClientFiles::default() };
    let files = Arc::new(ReloadingClient::open(files, now_seconds()).unwrap());
    let tls = ClientTls::new(files, "localhost", TransportSecurity::Tls, (PROGRAM, 1));
    let client = server.connect_with(Options { tls: Some(tls), ..options() }, None);
    let data = pattern(BYTES as usize);
    let call =
        || assert_eq!(client.call(procedure(procedures::SUM), &data).unwrap()[..], sum(&data));
    call();
    let staged = || copied_bytes(Site::RpcStaging) + copied_bytes(Site::RpcDeferred);
    let (before, records_before) = (staged(), copied_bytes(Site::TlsRecord));
    (0..CALLS).for_each(|_| call());
    let (staged, records) = (staged() - before, copied_bytes(Site::TlsRecord) - records_before);
    assert!(staged < CALLS * BYTES / 16, "{staged} bytes of calls copied");
    // All of it at the client, and at the server at most a record of each read.
    assert!(records < CALLS * BYTES * 3 / 2, "{records} bytes of records copied");
}

#[test]
fn a_part_of_a_record_is_kept_once_and_put_back_once() {
    const PART_BYTES: usize = 1000;
    let _alone = alone();
    let Some((_directory, folder, server)) = server() else { return };
    let mut raw = Raw::connect(&server);
    raw.send(&record(&[1, 0, 2, PROGRAM, 1, 0, 7, 0, 0, 0], &[]));
    raw.record().unwrap();
    let mut roots = RootCertStore::empty();
    let authority = folder.authority_files().certificate;
    roots.add(CertificateDer::from_pem_file(authority).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from("localhost").unwrap();
    let mut tls = ClientConnection::new(Arc::new(config), name).unwrap();
    tls.complete_io(&mut raw.0).unwrap();
    let (before, mut sealed) = (copied_bytes(Site::TlsRecord), Vec::new());
    tls.writer().write_all(&call(2, procedures::SUM, &[3; 5000])).unwrap();
    tls.write_tls(&mut sealed).unwrap();
    raw.send(&sealed[..PART_BYTES]);
    let copied = || (copied_bytes(Site::TlsRecord) - before) as usize;
    let start = Instant::now();
    while copied() == 0 {
        assert!(start.elapsed() < PATIENCE, "nothing was kept");
        std::thread::sleep(Duration::from_millis(1));
    }
    raw.send(&sealed[PART_BYTES..]);
    let mut reply = [0; 28 + 16];
    Stream::new(&mut tls, &mut raw.0).read_exact(&mut reply).unwrap();
    assert_eq!(reply[28..], sum(&[3; 5000]));
    assert_eq!(copied(), 2 * PART_BYTES);
}
