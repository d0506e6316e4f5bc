//! Connections that get TLS.

use super::super::common::{Event, PATIENCE, Raw, pattern, procedure, procedures, sum};
use super::{World, echo, probe, starttls};
use dafs_mem::Site;
use dafs_rpc::Reply;
use dafs_rpc::client::{CallError, Locate, Located, Request, RpcClient, SendData};
use dafs_rpc::tls::TransportSecurity::{self, Mtls, Tls};
use dafs_wire::xdr::Decoder;
use std::io::{Read, Write};

pub(super) fn security(client: &RpcClient) -> String {
    let told = client.call(procedure(procedures::SECURITY), &[]).unwrap();
    String::from_utf8(Decoder::new(&told).opaque(9).unwrap().to_vec()).unwrap()
}

#[test]
fn a_connection_is_as_secure_as_its_client_demands() {
    let world = World::new();
    assert_eq!(security(&world.server.connect()), "none");
    let mut clients = Vec::new();
    for least in [Tls, Mtls] {
        let client = world.connect(least);
        assert_eq!(security(&client), least.to_string());
        assert_eq!(client.call(procedure(procedures::ECHO), b"args").unwrap()[..], *b"args");
        clients.push(client);
    }
    let statistics = world.server.group.statistics();
    assert_eq!((statistics.tls_connections, statistics.tls_mutual), (2, 1));
    let is_kernel = u64::from(world.tls.kernel().is_ok());
    assert_eq!((statistics.tls_kernel, statistics.tls_failed), (2 * is_kernel, 0));
}

#[test]
fn large_and_small_calls_go_through_records() {
    let world = World::new();
    let client = world.connect(Tls);
    for len in [0, 1, 100, 16_300, 16_384, 16_385, 70_000, 1_000_000] {
        let data = pattern(len);
        let got = client.call(procedure(procedures::SUM), &data).unwrap();
        assert_eq!(got[..], sum(&data), "{len}");
        let got = client.call(procedure(procedures::SUM_LATER), &data).unwrap();
        assert_eq!(got[..], sum(&data), "{len}");
        let got = client.call(procedure(procedures::BULK), &(len as u32).to_be_bytes()).unwrap();
        assert!(Decoder::new(&got).opaque(len).unwrap() == pattern(len), "{len}");
        let memory = client.allocate(len).unwrap();
        memory.view().copy_from(&data, Site::Inspect);
        let args = [&(len as u32).to_be_bytes()[..]];
        let data = SendData { position: 4, memory: memory.whole() };
        let echo = procedure(procedures::SUM);
        let request = Request { data: Some(data), ..Request::new(echo, &args, 64) };
        let got = client.submit_request(&request).unwrap().wait().unwrap();
        let mut whole = [args[0], &pattern(len)].concat();
        whole.resize(whole.len().next_multiple_of(4), 0);
        assert_eq!(got[..], sum(&whole), "{len}");
    }
}

#[test]
fn data_of_results_goes_to_its_place() {
    const LEN: usize = 300_000;
    let world = World::new();
    let client = world.connect(Mtls);
    let locate: Locate = |_| Some(Located { position: 4, len: LEN });
    let memory = client.allocate(LEN).unwrap();
    let (args, sinks) = ([&(LEN as u32).to_be_bytes()[..]], [memory.whole()]);
    let bulk = procedure(procedures::BULK);
    let request = Request { sinks: &sinks, locate: Some(locate), ..Request::new(bulk, &args, 64) };
    let results = client.submit_request(&request).unwrap().wait().unwrap();
    let payload = results.decoder().payload(LEN).unwrap();
    assert_eq!(sinks[0].take(payload), LEN);
    assert!(memory.view().to_vec(Site::Inspect) == pattern(LEN));
}

#[test]
fn many_threads_share_a_connection() {
    let world = World::new();
    let client = world.connect(Tls);
    std::thread::scope(|scope| {
        for thread in 0..8_usize {
            let client = &client;
            scope.spawn(move || {
                for turn in 0..60_usize {
                    let data = pattern((thread * 7919 + turn * 997) % 10_000 * 4);
                    let which = [procedures::SUM, procedures::SUM_LATER][turn % 2];
                    let got = client.call(procedure(which), &data).unwrap();
                    assert_eq!(got[..], sum(&data));
                    let len = (thread + turn) * 1000 % 50_000;
                    let got = client.call(procedure(procedures::BULK), &(len as u32).to_be_bytes());
                    assert!(Decoder::new(&got.unwrap()).opaque(len).unwrap() == pattern(len));
                }
            });
        }
    });
}

#[test]
fn many_small_calls_of_one_turn_are_served() {
    let world = World::new();
    let client = world.connect(Tls);
    let pending: Vec<_> = (0..2000_u32)
        .map(|number| client.queue(procedure(procedures::ECHO), &number.to_be_bytes()).unwrap())
        .collect();
    for (number, pending) in (0_u32..).zip(pending) {
        assert_eq!(pending.wait().unwrap()[..], number.to_be_bytes());
    }
}

#[test]
fn callbacks_go_inside_tls() {
    let world = World::new();
    let answers = |request: dafs_rpc::client::BackRequest| {
        let reply = Reply::from_bytes(&[&request.args[..], b"!!!!"].concat());
        request.answer(Ok(reply));
    };
    let options = world.options(Mtls);
    let client = world.server.connect_with(options, Some(Box::new(answers)));
    let token = client.call(procedure(procedures::CALL_BACK), b"hear").unwrap();
    let token = Decoder::new(&token).u64().unwrap();
    assert_eq!(world.server.event(), Event::BackReply(token, Ok(b"hear!!!!".to_vec())));
}

#[test]
fn a_foreign_client_is_served_with_and_without_a_name_of_the_protocol() {
    let world = World::new();
    let cases: [(bool, &[&str]); 3] =
        [(false, &[]), (true, &["sunrpc"]), (true, &["h2", "sunrpc"])];
    for (with_own, alpn) in cases {
        let mut client = world.foreign_client(world.foreign(with_own, alpn));
        for xid in 1..5 {
            client.write_all(&echo(xid)).unwrap();
            let mut answer = [0; 4 + 24 + 4];
            client.read_exact(&mut answer).unwrap();
            assert_eq!((&answer[4..8], &answer[28..]), (&xid.to_be_bytes()[..], &b"ping"[..]));
        }
        let chosen = client.conn.alpn_protocol();
        assert_eq!(chosen, alpn.contains(&"sunrpc").then_some(&b"sunrpc"[..]));
        // The server ends with close_notify; a cut would be an error here.
        client.write_all(&super::call(9, procedures::CLOSE, &[])).unwrap();
        let mut rest = Vec::new();
        client.read_to_end(&mut rest).unwrap();
    }
}

#[test]
fn calls_in_flight_are_answered_before_tls_begins() {
    let world = World::new();
    let mut raw = Raw::connect(&world.server);
    raw.send(&super::call(1, procedures::HOLD, &[]));
    raw.send(&super::call(2, procedures::ECHO, b"ping"));
    assert_eq!(raw.reply().unwrap().0, 2);
    raw.send(&probe(3, 0));
    raw.0.set_read_timeout(Some(std::time::Duration::from_millis(50))).unwrap();
    assert!(raw.0.read(&mut [0]).is_err(), "STARTTLS overtook a reply");
    raw.0.set_read_timeout(Some(PATIENCE)).unwrap();
    let held = world.server.held.lock().unwrap().pop().unwrap();
    held.respond(Reply::new());
    assert_eq!(raw.reply().unwrap().0, 1);
    assert_eq!(raw.record().unwrap(), starttls(3));
    let mut client = super::shaking(raw.0, world.foreign(false, &[]));
    client.write_all(&echo(4)).unwrap();
    client.read_exact(&mut [0; 32]).unwrap();
}

#[test]
fn a_client_learns_why_a_server_is_refused() {
    let world = World::new();
    let refusal = |options| RpcClient::connect(world.server.address, options, None).unwrap_err();
    let least: TransportSecurity = Tls;
    let mut options = world.options(least);
    options.tls = Some(world.demand(least).for_name("other"));
    let error = refusal(options).to_string();
    assert!(error.contains("it is for other names (localhost), not for other"), "{error}");
    // A client of another authority.
    let other = World::new();
    let error = refusal(other.options(least)).to_string();
    assert!(error.contains("the peer's certificate is refused"), "{error}");
    world.server.wait_for(|statistics| statistics.tls_failed == 2);
}

#[test]
fn a_lost_connection_ends_the_calls() {
    let world = World::new();
    let client = world.connect(Tls);
    let pending = client.submit(procedure(procedures::HOLD), &[]).unwrap();
    client.call(procedure(procedures::NULL), &[]).unwrap();
    let _ = client.call(procedure(procedures::CLOSE), &[]);
    assert!(matches!(pending.wait(), Err(CallError::Disconnected(_))));
    assert!(client.broken().unwrap().contains("the server closed it"), "{:?}", client.broken());
}
