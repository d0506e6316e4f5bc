//! Metrics inside TLS.

use crate::common::{Running, any, config, data_server};
use crate::striped::far_with;
use crate::tls::Pki;
use dafs_server::{ClusterSecret, Config, DataProcess, Server, StartError};
use dafs_service::TransportSecurity;
use dafs_testkit::eventually;
use dafs_tls::ServerFiles;
use std::io::{Read, Write};
use std::net::TcpStream;
use tempfile::TempDir;

const REQUEST: &[u8] = b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n";

fn serve(pki: &Pki, least: TransportSecurity) -> Running {
    Running::new(|config: &mut Config| {
        config.tls = Some(pki.server_files());
        config.metrics_listen = Some(any());
        config.metrics_transport_security = least;
    })
}

fn connect(running: &Running) -> TcpStream {
    TcpStream::connect(running.server().metrics_address().unwrap()).unwrap()
}

/// The answer to a scraper inside TLS. More follows its request, which the server does not read.
fn secure_scrape(pki: &Pki, stream: TcpStream, with_own: bool) -> String {
    let mut stream = pki.shaking(stream, with_own);
    stream.write_all(&[REQUEST, &[b'x'; 5000]].concat()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("the end of TLS, and no reset");
    text
}

#[test]
fn scrapers_get_what_their_protection_allows() {
    let pki = Pki::new();
    for (least, strangers) in [(TransportSecurity::Tls, true), (TransportSecurity::Mtls, false)] {
        let running = serve(&pki, least);
        assert!(running.server().metrics_url().unwrap().starts_with("https://"));
        for with_own in [false, true] {
            let text = secure_scrape(&pki, connect(&running), with_own);
            let is_allowed = strangers || with_own;
            let status = if is_allowed { "HTTP/1.1 200" } else { "HTTP/1.1 403" };
            assert!(text.starts_with(status), "{least} {with_own}: {text}");
            assert_eq!(text.contains("# EOF"), is_allowed, "{text}");
        }
        refuses_clear_scrapes(connect(&running));
    }
}

fn refuses_clear_scrapes(mut clear: TcpStream) {
    clear.write_all(REQUEST).unwrap();
    let mut answer = Vec::new();
    let _ = clear.read_to_end(&mut answer);
    assert!(!answer.starts_with(b"HTTP"), "{answer:?}");
}

#[test]
fn metrics_of_data_servers_apart_are_protected_too() {
    let (dir, pki) = (TempDir::new().unwrap(), Pki::new());
    let (processes, config) = far_with(dir.path(), |data| {
        data.general.tls = Some(pki.server_files());
        data.general.metrics_listen = Some(any());
        data.general.metrics_transport_security = TransportSecurity::Mtls;
    });
    let server = Server::start(&config).unwrap();
    for process in &processes {
        let connect = || TcpStream::connect(process.metrics_address().unwrap()).unwrap();
        let text = secure_scrape(&pki, connect(), true);
        assert!(text.starts_with("HTTP/1.1 200") && text.contains("# EOF"), "{text}");
        let text = secure_scrape(&pki, connect(), false);
        assert!(text.starts_with("HTTP/1.1 403"), "{text}");
        refuses_clear_scrapes(connect());
    }
    server.stop();
    processes.into_iter().for_each(DataProcess::stop);
}

#[test]
fn half_handshakes_hold_up_no_scraper() {
    let pki = Pki::new();
    let running = serve(&pki, TransportSecurity::Mtls);
    let mut silent = Vec::new();
    for number in 0..50 {
        let mut stream = connect(&running);
        if number % 2 == 0 {
            // The head of a record that does not come.
            stream.write_all(&[22, 3, 1, 2, 0]).unwrap();
        }
        silent.push(stream);
    }
    assert!(secure_scrape(&pki, connect(&running), true).contains("# EOF"));
}

#[test]
fn metrics_follow_the_files_of_the_certificate() {
    let pki = Pki::new();
    let running = serve(&pki, TransportSecurity::Tls);
    let shown = || {
        let mut stream = pki.shaking(connect(&running), false);
        stream.write_all(REQUEST).unwrap();
        stream.read_to_end(&mut Vec::new()).unwrap();
        stream.conn.peer_certificates().unwrap()[0].clone().into_owned()
    };
    let before = shown();
    pki.renew();
    eventually("another certificate", || shown() != before);
}

#[test]
fn a_demand_of_tls_without_a_certificate_stops_the_start() {
    let (directory, state) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let demand = |config: &mut Config, least| {
        config.metrics_listen = Some(any());
        config.metrics_transport_security = least;
    };
    let mut config = config(directory.path().to_owned(), state.path().to_owned());
    demand(&mut config, TransportSecurity::Tls);
    let error = Server::start(&config).map(Server::stop).unwrap_err();
    assert!(matches!(error, StartError::MetricsWithoutTls { .. }), "{error}");

    let secret = directory.path().join("secret");
    ClusterSecret::make(&secret).unwrap();
    let data_server = |least, tls| {
        let mut config = data_server(directory.path().join("data"), &secret);
        demand(&mut config.general, least);
        config.general.tls = tls;
        DataProcess::start(config).map(DataProcess::stop).unwrap_err()
    };
    let error = data_server(TransportSecurity::Tls, None);
    assert!(matches!(error, StartError::MetricsWithoutTls { .. }), "{error}");
    let pki = Pki::new();
    let files = ServerFiles { authorities: None, ..pki.server_files() };
    let error = data_server(TransportSecurity::Mtls, Some(files));
    assert!(matches!(error, StartError::MetricsWithoutAuthorities), "{error}");
}
