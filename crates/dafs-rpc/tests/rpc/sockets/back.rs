//! Callbacks over the connection that the client made.

use super::common::{Event, PROGRAM, Raw, Server, call, options, procedure, procedures, record};
use dafs_rpc::client::{BackRequest, RpcClient};
use dafs_rpc::server::Config;
use dafs_rpc::{AcceptStatus, CallbackError, Rejection, Reply};
use dafs_wire::rpc::{AuthFlavor, CallHeader};
use dafs_wire::xdr::Decoder;
use std::sync::mpsc::channel;
use std::time::Duration;

/// Makes the server send a callback; returns its token.
fn ask(client: &RpcClient, args: &[u8]) -> u64 {
    let token = client.call(procedure(procedures::CALL_BACK), args).unwrap();
    Decoder::new(&token).u64().unwrap()
}

fn echo(request: BackRequest) {
    assert_eq!(request.procedure.program, PROGRAM + 1);
    let answer = match request.args.len() {
        0 => Err(Rejection::Accept(AcceptStatus::SystemError)),
        _ => Ok(Reply::from_bytes(&request.args)),
    };
    request.answer(answer);
}

#[test]
fn a_client_that_waits_for_nothing_answers_too() {
    let server = Server::start(1, Config::default());
    let client = server.connect_with(options(), Some(Box::new(echo)));
    for round in 0..20u32 {
        let args = round.to_be_bytes();
        let token = ask(&client, &args);
        assert_eq!(server.event(), Event::BackReply(token, Ok(args.to_vec())));
    }
    let token = ask(&client, &[]);
    let failed = Err(CallbackError::NotDone(AcceptStatus::SystemError));
    assert_eq!(server.event(), Event::BackReply(token, failed));
    drop(client);
    assert_eq!(server.event(), Event::Disconnected);
}

#[test]
fn calls_in_both_directions_at_a_time() {
    const COUNT: usize = 400;
    // None of the answers may have come when the last call is made.
    let server = Server::start(2, Config { back_calls_max: COUNT, ..Config::default() });
    // Answers come from another thread.
    let (requests_in, requests) = channel();
    let answers = std::thread::spawn(move || requests.into_iter().for_each(echo));
    let requests_in = std::sync::Mutex::new(requests_in);
    let back = move |request| requests_in.lock().unwrap().send(request).unwrap();
    let client = server.connect_with(options(), Some(Box::new(back)));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for number in 0..COUNT as u32 / 4 {
                    ask(&client, &number.to_be_bytes());
                    let args = vec![number as u8; 40_000];
                    let got = client.call(procedure(procedures::ECHO), &args).unwrap();
                    assert!(got[..] == args);
                }
            });
        }
    });
    for _ in 0..COUNT {
        let event = server.event();
        assert!(matches!(&event, Event::BackReply(_, Ok(args)) if args.len() == 4), "{event:?}");
    }
    drop(client);
    answers.join().unwrap();
}

#[test]
fn a_client_without_handler_refuses() {
    let server = Server::start(1, Config::default());
    let client = server.connect();
    let token = ask(&client, b"args");
    client.call(procedure(procedures::NULL), &[]).unwrap();
    let refused = Err(CallbackError::NotDone(AcceptStatus::ProgramUnavailable));
    assert_eq!(server.event(), Event::BackReply(token, refused));
}

#[test]
fn the_call_back_is_a_proper_call() {
    let server = Server::start(1, Config::default());
    let mut raw = Raw::connect(&server);
    raw.send(&call(77, procedures::CALL_BACK, b"args"));
    assert_eq!(raw.reply().unwrap().0, 77);
    let back = raw.record().unwrap();
    let mut decoder = Decoder::new(&back);
    let header = CallHeader::decode(&mut decoder).unwrap();
    assert_eq!((header.program, header.version, header.procedure), (PROGRAM + 1, 1, 2));
    assert_eq!(header.credential.flavor, AuthFlavor::SYS);
    assert_eq!(decoder.rest(), b"args");
    // Denied: AUTH_ERROR, AUTH_TOOWEAK.
    raw.send(&record(&[header.xid, 1, 1, 1, 5], &[]));
    let Event::BackReply(77, Err(CallbackError::Denied(_))) = server.event() else { panic!() };
    // The same answer again has no callback.
    raw.send(&record(&[header.xid, 1, 0, 0, 0, 0], &[]));
    server.wait_for(|statistics| statistics.unasked == 1);
    raw.send(&call(78, procedures::CALL_BACK, b"args"));
    raw.reply().unwrap();
    let back = raw.record().unwrap();
    let xid = Decoder::new(&back).u32().unwrap();
    raw.send(&record(&[xid, 1, 9], &[]));
    assert_eq!(server.event(), Event::BackReply(78, Err(CallbackError::Malformed)));
}

#[test]
fn peers_that_never_answer_are_not_waited_for() {
    let config =
        Config { back_timeout: Duration::from_millis(50), back_calls_max: 2, ..Config::default() };
    let server = Server::start(1, config);
    let mut raw = Raw::connect(&server);
    for xid in 1..=3 {
        raw.send(&call(xid, procedures::CALL_BACK, &[]));
    }
    assert_eq!(server.event(), Event::BackReply(3, Err(CallbackError::TooMany)));
    let mut late = [server.event(), server.event()];
    late.sort_by_key(|event| matches!(event, Event::BackReply(2, _)));
    let timed_out = |token| Event::BackReply(token, Err(CallbackError::TimedOut));
    assert_eq!(late, [timed_out(1), timed_out(2)]);
    raw.send(&call(4, procedures::CALL_BACK, &[]));
    while raw.reply_or_call() != Some(4) {}
    // A callback that is outstanding when the connection ends fails with it, before the handler
    // learns of the end.
    drop(raw);
    assert!(matches!(server.event(), Event::BackReply(4, Err(_))));
    assert_eq!(server.event(), Event::Disconnected);
}
