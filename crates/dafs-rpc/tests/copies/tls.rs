//! In TLS the server copies the first record of a large call, and parts of records between two
//! reads. The client copies what it seals, because its program may change it meanwhile.

use crate::alone;
use crate::sockets::{PROGRAM, Server, options, pattern, procedure, procedures, sum};
use dafs_mem::{Site, copied_bytes};
use dafs_rpc::client::{ClientTls, Options};
use dafs_rpc::server::Config;
use dafs_rpc::tls::{ServerTls, TransportSecurity};
use dafs_tls::pki::Folder;
use dafs_tls::{ClientFiles, ReloadingClient, ReloadingServer, ServerFiles};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

#[test]
fn records_are_opened_in_the_call_that_they_belong_to() {
    const CALLS: u64 = 20;
    const BYTES: u64 = 1 << 20;
    let _alone = alone();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let directory = tempfile::tempdir().unwrap();
    let folder = Folder::create(&directory.path().join("pki"), "CA", now).unwrap();
    let made = folder.add_server(&["localhost".to_owned()], now).unwrap();
    let authorities = folder.authority_files().certificate;
    let policy = TransportSecurity::Tls;
    let (certificate, key) = (made.certificate, made.key);
    let files = ServerFiles { certificate, key, authorities: None, revocations: None, policy };
    let files = Arc::new(ReloadingServer::open(files, now).unwrap());
    let tls = ServerTls::new(files, Box::new(|_, job| drop(std::thread::spawn(job))));
    if tls.kernel().is_ok() {
        eprintln!("skipped: the kernel opens the records, and no counter here sees it");
        return;
    }
    let server = Server::start_with_tls(1, Config::default(), Some(tls));
    let files = ClientFiles { authorities, ..ClientFiles::default() };
    let files = Arc::new(ReloadingClient::open(files, now).unwrap());
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
