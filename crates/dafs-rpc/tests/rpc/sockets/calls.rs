//! Calls that succeed.

use super::common::{Raw, Server, call, options, pattern, procedure, procedures, record, sum};
use crate::peer::success;
use dafs_dat::Wake;
use dafs_mem::Site;
use dafs_rpc::client::{
    CallError, Locate, Located, Memory, Options, Pending, Request, RpcClient, SendData,
};
use dafs_rpc::server::Config;
use dafs_rpc::{AcceptStatus, Reply};
use dafs_wire::xdr::Decoder;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

fn bulk_len(len: usize) -> [u8; 4] {
    (len as u32).to_be_bytes()
}

#[test]
fn calls_and_rejections() {
    let server = Server::start(1, Config::default());
    let client = server.connect();
    assert!(client.call(procedure(procedures::NULL), &[]).unwrap().is_empty());
    assert_eq!(client.call(procedure(procedures::ECHO), b"args").unwrap()[..], *b"args");
    let unknown = client.call(procedure(999), &[]).unwrap_err();
    assert_eq!(unknown, CallError::NotDone(AcceptStatus::ProcedureUnavailable));
    let garbage = client.call(procedure(procedures::BULK), &[1]).unwrap_err();
    assert_eq!(garbage, CallError::NotDone(AcceptStatus::GarbageArgs));
    let who = client.call(procedure(procedures::WHO), &[]).unwrap();
    let mut who = Decoder::new(&who);
    assert_eq!(who.opaque(99), Ok(&b"tester"[..]));
    assert_eq!([who.u32(), who.u32(), who.u32(), who.u32()], [Ok(1000), Ok(100), Ok(4), Ok(24)]);
    let nobody = server.connect_with(Options::default(), None);
    let who = nobody.call(procedure(procedures::WHO), &[]).unwrap();
    assert_eq!(Decoder::new(&who).opaque(99), Ok(&b"nobody"[..]));
}

#[test]
fn data_that_lies_apart_is_sent_in_its_place() {
    let server = Server::start(1, Config::default());
    let client = server.connect();
    for (len, cut) in [(0, 4), (5, 0), (70_001, 6), (70_000, 8)] {
        let memory = client.allocate(len + 10).unwrap();
        memory.view().slice(10, len).unwrap().copy_from(&pattern(len), Site::Inspect);
        let args = [&[1, 2, 3, 4][..], &bulk_len(len), &[5, 6, 7, 8]].concat();
        let (head, tail) = args.split_at(cut);
        let args = [head, &[], tail];
        let data = SendData { position: 8, memory: memory.slice(10..10 + len).unwrap() };
        let echo = procedure(procedures::ECHO);
        let request = Request { data: Some(data), ..Request::new(echo, &args, len + 20) };
        let results = client.submit_request(&request).unwrap().wait().unwrap();
        let mut want = [&[1, 2, 3, 4][..], &bulk_len(len), &pattern(len)].concat();
        want.resize(want.len().next_multiple_of(4), 0);
        want.extend_from_slice(&[5, 6, 7, 8]);
        assert_eq!(results[..], want);
    }
    let memory = client.allocate(4).unwrap().whole();
    for position in [0, 6, 12] {
        let data = Some(SendData { position, memory: memory.clone() });
        let request = Request { data, ..Request::new(procedure(procedures::ECHO), &[&[0; 8]], 99) };
        assert!(matches!(client.submit_request(&request), Err(CallError::Request(_))));
    }
}

/// The position of the data in the results of `BULK`.
fn locate_bulk(results: &[u8]) -> Option<Located> {
    let len = Decoder::new(results).u32().ok()? as usize;
    Some(Located { position: 4, len })
}

fn bulk(client: &RpcClient, memory: &Memory, len: usize, locate: Option<Locate>) -> Pending {
    let (args, sinks) = (bulk_len(len), [memory.slice(0..len).unwrap()]);
    let args = [&args[..]];
    let request =
        Request { sinks: &sinks, locate, ..Request::new(procedure(procedures::BULK), &args, 16) };
    client.queue_request(&request).unwrap()
}

fn check_bulk(pending: Pending, memory: &Memory, len: usize) {
    let results = pending.wait().unwrap();
    let mut decoder = results.decoder();
    let data = decoder.payload(len).unwrap();
    assert_eq!(decoder.finish(), Ok(()));
    let sink = memory.slice(0..len).unwrap();
    assert_eq!(sink.take(data), len);
    assert!(sink.view().to_vec(Site::Inspect) == pattern(len), "{len} bytes differ");
    sink.view().fill(0xee);
}

#[test]
fn results_are_read_to_their_place() {
    let server = Server::start(1, Config::default());
    let lens = [0, 1, 100, 4096, 20_001, 100_000, 1 << 20];
    let client = &server.connect();
    std::thread::scope(|scope| {
        for thread in 0..3 {
            scope.spawn(move || {
                let memories: Vec<_> = (0..8).map(|_| client.allocate(1 << 20).unwrap()).collect();
                for round in 0..10 {
                    // Every third one has no locator, so its data comes inside the results.
                    let locate = |i: usize| (i % 3 != thread).then_some(locate_bulk as Locate);
                    let pending: Vec<_> = memories
                        .iter()
                        .enumerate()
                        .map(|(i, memory)| {
                            let len = lens[(i * 3 + round + thread) % lens.len()];
                            (bulk(client, memory, len, locate(i)), memory, len)
                        })
                        .collect();
                    for (pending, memory, len) in pending {
                        check_bulk(pending, memory, len);
                    }
                }
            });
        }
    });
}

/// The record with the reply to a call.
fn reply(call: &[u8], results: &[u8]) -> Vec<u8> {
    let xid = u32::from_be_bytes(call[4..8].try_into().unwrap());
    record(&[], &success(xid, results))
}

/// A client whose server is a socket of the test.
fn raw_server() -> (RpcClient, TcpStream) {
    let raw = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = RpcClient::connect(raw.local_addr().unwrap(), Options::default(), None).unwrap();
    (client, raw.accept().unwrap().0)
}

#[test]
fn a_server_that_lies_about_its_data_writes_only_where_it_may() {
    let (client, mut stream) = raw_server();
    let memory = client.allocate(100_000).unwrap();
    memory.view().fill(7);
    // The announced length, and the sent length.
    for (told, sent) in [(50, 20), (50_000, 100), (50_000, 49_996), (50_001, 60_000), (9, 8)] {
        let pending = bulk(&client, &memory, 50_000, Some(locate_bulk));
        let mut call = [0; 48];
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| pending.wait());
            stream.read_exact(&mut call).unwrap();
            let results = [&bulk_len(told)[..], &vec![1; sent]].concat();
            stream.write_all(&reply(&call, &results)).unwrap();
            match waiter.join().unwrap() {
                // Data that exceeds the sink stays in the results.
                Ok(results) => {
                    assert!(told > 50_000);
                    assert!(results.decoder().payload(50_000).is_err());
                }
                Err(error) => assert_eq!(error, CallError::Malformed, "{told} {sent}"),
            }
        });
    }
    let behind = memory.view().slice(50_000, 50_000).unwrap().to_vec(Site::Inspect);
    assert!(behind == [7; 50_000]);
}

#[test]
fn data_of_a_call_that_was_given_up_is_not_written() {
    let (client, mut stream) = raw_server();
    let memory = client.allocate(100_000).unwrap();
    let given_up = bulk(&client, &memory, 100_000, Some(locate_bulk));
    let waiting = client.submit(procedure(procedures::NULL), &[]).unwrap();
    let mut calls = [0; 44 + 4 + 44];
    stream.read_exact(&mut calls).unwrap();
    let data = [&bulk_len(100_000)[..], &[1; 100_000]].concat();
    let (first, second) = (reply(&calls[..], &data), reply(&calls[48..], b"done"));
    stream.write_all(&first[..50_000]).unwrap();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| waiting.wait().unwrap());
        // The thread that waits for the other call reads what has come.
        while memory.view().slice(20_000, 1).unwrap().to_vec(Site::Inspect) == [0] {
            std::thread::yield_now();
        }
        drop(given_up);
        memory.view().fill(7);
        stream.write_all(&first[50_000..]).unwrap();
        stream.write_all(&second).unwrap();
        assert_eq!(waiter.join().unwrap()[..], *b"done");
    });
    assert!(memory.view().to_vec(Site::Inspect) == [7; 100_000]);
}

#[test]
fn a_handler_that_panics_costs_one_call() {
    let server = Server::start(1, Config::default());
    let client = server.connect();
    let failed = client.call(procedure(procedures::PANIC), &[]).unwrap_err();
    assert_eq!(failed, CallError::NotDone(AcceptStatus::SystemError));
    client.call(procedure(procedures::NULL), &[]).unwrap();
}

#[test]
fn every_way_of_waiting_works() {
    for wake in [Wake::Adaptive, Wake::Sleep, Wake::Poll] {
        let server = Server::start(1, Config { wake, ..Config::default() });
        let client = server.connect();
        for number in 0..100u32 {
            let args = number.to_be_bytes();
            assert_eq!(client.call(procedure(procedures::ECHO), &args).unwrap()[..], args);
            assert_eq!(client.call(procedure(procedures::ECHO_LATER), &args).unwrap()[..], args);
        }
    }
}

#[test]
fn many_calls_at_a_time_over_several_connections_and_threads() {
    let server = Server::start(2, Config::default());
    std::thread::scope(|scope| {
        for _ in 0..3 {
            let client = server.connect();
            for thread in 0..3u32 {
                let client = client.clone();
                scope.spawn(move || {
                    for round in 0..20u32 {
                        let mut calls = Vec::new();
                        for number in 0..32u32 {
                            let args = [thread, round, number].map(u32::to_be_bytes).concat();
                            let echo = [procedures::ECHO, procedures::ECHO_LATER];
                            let echo = procedure(echo[number as usize % 2]);
                            let call = match number % 3 {
                                0 => client.submit(echo, &[&args]),
                                _ => client.queue(echo, &args),
                            };
                            calls.push((call.unwrap(), args));
                        }
                        for (call, args) in calls {
                            assert_eq!(call.wait().unwrap()[..], args);
                        }
                    }
                });
            }
        }
    });
    server.wait_for(|statistics| statistics.connections == 0);
    server.wait_for(|statistics| statistics.calls == 3 * 3 * 20 * 32);
    assert_eq!(server.group.statistics().accepted, 3);
}

#[test]
fn answers_come_in_any_order() {
    let server = Server::start(1, Config::default());
    let mut raw = Raw::connect(&server);
    raw.send(&[call(1, procedures::HOLD, &[]), call(2, procedures::NULL, &[])].concat());
    assert_eq!(raw.reply().unwrap().0, 2);
    raw.send(&call(3, procedures::HOLD, &[]));
    raw.send(&call(4, procedures::DROP, &[]));
    raw.send(&call(5, procedures::NULL, &[]));
    assert_eq!(raw.reply().unwrap().0, 5);
    let mut held: Vec<_> = std::mem::take(&mut *server.held.lock().unwrap());
    held.pop().unwrap().respond(Reply::from_bytes(b"late"));
    let (xid, _, results) = raw.reply().unwrap();
    assert_eq!((xid, &results[..]), (3, &b"late"[..]));
    held.pop().unwrap().reject(dafs_rpc::Rejection::Accept(AcceptStatus::SystemError));
    assert_eq!(raw.reply().unwrap().0, 1);
}

#[test]
fn large_records_go_both_ways() {
    let server = Server::start(1, Config::default());
    let client = server.connect();
    for len in [0usize, 1, 4095, 4096, 4097, 16 << 10, 100_001, 256 << 10, 1 << 20] {
        let data = pattern(len.next_multiple_of(4));
        let got = client.call(procedure(procedures::SUM), &data).unwrap();
        assert_eq!(got[..], sum(&data));
        let got = client.call(procedure(procedures::SUM_LATER), &data).unwrap();
        assert_eq!(got[..], sum(&data));
        let got = client.call(procedure(procedures::BULK), &bulk_len(len)).unwrap();
        assert_eq!(Decoder::new(&got).opaque(len), Ok(&pattern(len)[..]));
    }
}

#[test]
fn pipelined_large_records_do_not_wait_for_each_other() {
    // Neither side can send everything before the other reads.
    let config = Config { output_bytes_max: 2 << 20, ..Config::default() };
    let server = Server::start(1, config);
    let client = server.connect();
    let data = pattern(1 << 20);
    let calls: Vec<_> = (0..32)
        .map(|_| client.submit(procedure(procedures::ECHO), &[&data[..400_000], &data[400_000..]]))
        .collect();
    for call in calls {
        assert!(call.unwrap().wait().unwrap()[..] == data);
    }
}

#[test]
fn a_call_that_is_not_answered_times_out_and_frees_its_place() {
    let server = Server::start(1, Config::default());
    let options = Options { call_timeout: Duration::from_millis(50), calls_max: 2, ..options() };
    let client = server.connect_with(options, None);
    for _ in 0..4 {
        let error = client.call(procedure(procedures::DROP), &[]).unwrap_err();
        assert_eq!(error, CallError::TimedOut);
    }
    let a = client.submit(procedure(procedures::DROP), &[]).unwrap();
    let b = client.submit(procedure(procedures::DROP), &[]).unwrap();
    let c = client.submit(procedure(procedures::DROP), &[]).map(|_| ()).unwrap_err();
    assert_eq!(c, CallError::TooMany);
    drop((a, b));
    assert!(!client.is_broken());
    client.submit(procedure(procedures::NULL), &[]).unwrap().wait().unwrap();
}

#[test]
fn the_end_of_a_connection_fails_its_calls() {
    let server = Server::start(1, Config::default());
    let client = server.connect();
    let hold = client.submit(procedure(procedures::HOLD), &[]).unwrap();
    client.submit(procedure(procedures::CLOSE), &[]).unwrap();
    assert!(matches!(hold.wait(), Err(CallError::Disconnected(_))));
    assert!(client.is_broken());
    let after = client.call(procedure(procedures::NULL), &[]);
    assert!(matches!(after, Err(CallError::Disconnected(_))));
    // An answer to a connection that has ended is discarded.
    let held = server.held.lock().unwrap().pop().unwrap();
    held.respond(Reply::new());
    let client = server.connect();
    client.call(procedure(procedures::NULL), &[]).unwrap();
    let hold = client.submit(procedure(procedures::HOLD), &[]).unwrap();
    client.close();
    assert!(matches!(hold.wait(), Err(CallError::Disconnected(_))));
}

#[test]
fn a_server_that_stops_sends_its_answers_first() {
    let server = Server::start(2, Config::default());
    let client = server.connect();
    let call = client.submit(procedure(procedures::HOLD), &[]).unwrap();
    client.call(procedure(procedures::NULL), &[]).unwrap();
    let held = server.held.lock().unwrap().pop().unwrap();
    server.group.stop();
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(20));
        held.respond(Reply::from_bytes(b"last"));
    });
    assert_eq!(call.wait().unwrap()[..], *b"last");
    assert!(matches!(
        client.call(procedure(procedures::NULL), &[]),
        Err(CallError::Disconnected(_))
    ));
    server.wait_for(|statistics| statistics.connections == 0);
}

#[test]
fn replies_arrive_although_the_server_stops_and_the_client_sends_on() {
    const BULK_BYTES: usize = 256 << 10;
    let server = Server::start(1, Config::default());
    let mut raw = Raw::connect(&server);
    // Most of the reply waits in the server's socket.
    rustix::net::sockopt::set_socket_recv_buffer_size(&raw.0, 16 << 10).unwrap();
    raw.send(&call(1, procedures::BULK, &(BULK_BYTES as u32).to_be_bytes()));
    raw.0.read_exact(&mut [0; 32]).unwrap();
    server.group.stop();
    server.wait_for(|statistics| statistics.connections == 0);
    raw.send(&call(2, procedures::NULL, &[]));
    let mut rest = Vec::new();
    raw.0.read_to_end(&mut rest).expect("the end, and no reset");
    assert!(rest == pattern(BULK_BYTES));
}

#[test]
fn nothing_of_a_call_that_was_given_up_follows_when_the_connection_has_ended() {
    const CALL_BYTES: usize = 64 << 10;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    // Most of the data waits on the client's side.
    rustix::net::sockopt::set_socket_recv_buffer_size(&listener, 4096).unwrap();
    let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    rustix::net::sockopt::set_socket_send_buffer_size(&stream, 16 * CALL_BYTES).unwrap();
    let client = RpcClient::from_stream(stream, options(), None).unwrap();
    let (mut server, _) = listener.accept().unwrap();
    let submit = || client.submit(procedure(procedures::ECHO), &[&[7; CALL_BYTES]]).unwrap();
    let given_up = [submit(), submit()];
    drop(given_up);
    client.close();
    server.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let (mut bytes, mut all) = (vec![0; CALL_BYTES], 0);
    let end = loop {
        match server.read(&mut bytes) {
            Ok(0) => panic!("it has ended as if all had been sent, with {all} bytes"),
            Ok(read) => all += read,
            Err(error) => break error,
        }
    };
    assert_eq!(end.kind(), std::io::ErrorKind::ConnectionReset);
    assert!(all < CALL_BYTES, "{all}");
}
