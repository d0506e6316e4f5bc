//! A short run of calls of all kinds. The test cuts its connection at every moment: after every
//! step, and after every byte that matters in either direction.

use super::caller::Caller;
use super::net::{Net, SERVER_HOST};
use super::program::procedures;
use dafs_dat::sim::{Direction, SimFaults, SimNetwork, SimRng};
use dafs_rpc::client::Options;
use dafs_rpc::server::Config;

const HOST: u32 = 10;

/// Connects a client and starts all its calls.
fn begin(net: &mut Net) -> Caller {
    let options = Options { credits: 4, ..Options::default() };
    let mut caller = Caller::new(&net.network, HOST, options, true);
    connect(net, &mut caller);
    calls(&mut caller, 1);
    caller
}

fn connect(net: &mut Net, caller: &mut Caller) {
    caller.connect();
    let port = caller.port.clone();
    net.settle_with(&mut [], |now| port.poll(now));
    assert!(caller.client().is_some_and(dafs_rpc::client::RpcClient::is_connected));
}

fn calls(caller: &mut Caller, first: u32) {
    let client = caller.client().cloned().unwrap();
    let kinds = [
        (procedures::NULL, 0, 0, false),
        (procedures::SINK, 5_000, 0, true),
        (procedures::SINK, 9_000, 0, false),
        (procedures::SINK_APART, 6_001, 0, true),
        (procedures::SOURCE, 7_003, 0, true),
        (procedures::SOURCE_TWICE, 5_000, 6_000, true),
        (procedures::WORDS, 9_000, 0, false),
        (procedures::SINK_LATER, 5_000, 0, true),
        (procedures::SOURCE_LATER, 5_000, 0, true),
    ];
    for (number, (procedure, len, second, with_memory)) in (first..).zip(kinds) {
        caller.submit(&client, number, procedure, len, second, with_memory);
    }
}

/// Runs one step of server, network and client. Returns false when no event is left.
fn step(net: &mut Net, caller: &mut Caller) -> bool {
    caller.poll(net.now(), &net.program);
    let served = net.serve_once();
    if !net.program.account().held.is_empty() {
        net.program.release(0);
        return true;
    }
    caller.poll(net.now(), &net.program);
    served || net.travel()
}

/// After the cut: every call has ended, a new connection works, and at the end only the client's
/// staging memory is left. Returns the number of its registrations.
fn finish(net: &mut Net, mut caller: Caller) -> usize {
    while step(net, &mut caller) {}
    assert_eq!(caller.under_way(), 0, "calls without an answer");
    connect(net, &mut caller);
    calls(&mut caller, 1_000_000);
    while step(net, &mut caller) {}
    assert_eq!(caller.under_way(), 0);
    assert!((1_000_000..1_000_009).skip(1).all(|number| net.program.done(number) == 1));
    caller.close();
    caller.forget_memory();
    while step(net, &mut caller) {}
    net.assert_idle(32);
    net.network.region_count(HOST)
}

#[test]
fn a_cut_after_any_step_is_survived() {
    for maps in [false, true] {
        let world = || {
            let net = Net::calm(11);
            net.network.map_memory(maps);
            net
        };
        let mut net = world();
        let mut caller = begin(&mut net);
        let mut steps = 0;
        while step(&mut net, &mut caller) {
            steps += 1;
        }
        assert!(caller.under_way() == 0 && caller.tally.answered == 9, "{:?}", caller.tally);
        let kept = finish(&mut net, caller);
        for cut in 0..steps {
            let mut net = world();
            let mut caller = begin(&mut net);
            for _ in 0..cut {
                step(&mut net, &mut caller);
            }
            for endpoint in net.network.endpoints(SERVER_HOST) {
                net.network.lose(endpoint);
            }
            assert!(finish(&mut net, caller) <= kept);
        }
    }
}

#[test]
fn a_cut_after_any_byte_is_survived() {
    for direction in [Direction::Outgoing, Direction::Incoming] {
        let (mut bytes, mut kept) = (0, Vec::new());
        loop {
            let mut net = Net::calm(12);
            let mut caller = begin(&mut net);
            let endpoint = net.network.endpoints(HOST)[0];
            net.network.cut_after(endpoint, direction, bytes);
            while step(&mut net, &mut caller) {}
            let survived = caller.tally.lost == 0;
            kept.push(finish(&mut net, caller));
            if survived {
                break;
            }
            // Every byte around the heads of messages, fewer inside data.
            bytes += if bytes % 600 < 40 { 3 } else { 71 };
            assert!(bytes < 1 << 20, "the cut never comes");
        }
        assert!(bytes > 10_000, "{bytes}");
        // The last one was not cut.
        assert_eq!(kept.iter().max(), kept.last());
    }
}

#[test]
fn a_server_whose_connections_all_break_stays_as_it_was() {
    // So little memory that calls stop if each connection leaks some of it.
    let config =
        Config { pending_bytes_max: 40 << 10, waiting_bytes_max: 80 << 10, ..Config::default() };
    let mut net = Net::new(SimNetwork::new(13, SimFaults::none()), config);
    let mut rng = SimRng::new(13);
    let options = Options { credits: 4, ..Options::default() };
    let mut caller = Caller::new(&net.network, HOST, options, true);
    for round in 0..300 {
        connect(&mut net, &mut caller);
        calls(&mut caller, 1 + 100 * round);
        for _ in 0..rng.below(150) {
            step(&mut net, &mut caller);
        }
        for endpoint in net.network.endpoints(SERVER_HOST) {
            net.network.lose(endpoint);
        }
        while step(&mut net, &mut caller) {}
        assert_eq!(caller.under_way(), 0);
    }
    assert!(caller.tally.lost > 500 && caller.tally.answered > 500, "{:?}", caller.tally);
    finish(&mut net, caller);
}
