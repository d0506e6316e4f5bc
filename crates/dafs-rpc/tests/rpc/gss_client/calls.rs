//! Calls that arrive.

use super::toy::*;
use dafs_mem::Site;
use dafs_rpc::client::{CallError, Located, Request, RpcClient, SendData};
use dafs_rpc::{AcceptStatus, GssService};
use dafs_wire::xdr::{Encoder, padded};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

fn opaque(data: &[u8]) -> Vec<u8> {
    let mut args = Vec::new();
    Encoder::new(&mut args).opaque(data);
    args
}

fn locate(results: &[u8]) -> Option<Located> {
    let len = results.first_chunk().map(|len| u32::from_be_bytes(*len) as usize)?;
    Some(Located { position: 4, len })
}

#[test]
fn arguments_and_results_of_any_length_arrive() {
    let hall = Hall::new(service());
    for protection in SERVICES {
        let served = Served::new(Some(&hall), protection);
        let initiator = anna(protection);
        let client = served.connect(&initiator);
        for len in [0, 1, 2, 3, 4, 100, 5_000, 70_000, 1 << 20, 3_000_001] {
            let data = pattern(len);
            let results = client.call(MIRROR, &opaque(&data)).unwrap();
            assert_eq!(mirrored(&results), data, "{protection:?}, {len} bytes");
        }
        assert_eq!(initiator.principal().as_deref(), Some("anna@TOY"));
        assert_eq!(initiator.contexts_made(), 1);
    }
}

#[test]
fn data_comes_from_and_goes_to_memory_of_the_caller() {
    let hall = Hall::new(service());
    for protection in SERVICES {
        let served = Served::new(Some(&hall), protection);
        use_memory(&served.connect(&anna(protection)), protection);
    }
}

/// As the test before, over RDMA.
#[test]
fn data_comes_and_goes_over_rdma() {
    let hall = Hall::new(service());
    for protection in SERVICES {
        let served = Served::new(Some(&hall), protection);
        let client = served.connect_rdma(&anna(protection));
        for len in [0, 1, 2, 3, 4, 100, 3_000, 3_600, 3_700, 4_000, 5_000, 20_000] {
            let data = pattern(len);
            let args = opaque(&data);
            let args = [&args[..]];
            let request = Request::new(MIRROR, &args, 8 + padded(len));
            let results = client.submit_request(&request).unwrap().wait().unwrap();
            assert_eq!(mirrored(&results), data, "{protection:?}, {len} bytes");
        }
        use_memory(&client, protection);
    }
}

fn use_memory(client: &RpcClient, protection: GssService) {
    for len in [1, 100, 5_000, 70_001, 2 << 20] {
        let memory = client.allocate(len).unwrap();
        memory.view().copy_from(&pattern(len), Site::Inspect);
        let count = (len as u32).to_be_bytes();
        let args = [&count[..]];
        // Several at a time, so that replies come together with others.
        let submit = |_| {
            let sinks = [client.allocate(len).unwrap().whole()];
            let request = Request {
                data: Some(SendData { position: 4, memory: memory.whole() }),
                sinks: &sinks,
                locate: Some(locate),
                ..Request::new(MIRROR, &args, 8)
            };
            (client.submit_request(&request).unwrap(), sinks)
        };
        let calls: Vec<_> = (0..5).map(submit).collect();
        for (call, [sink]) in calls {
            let results = call.wait().unwrap();
            let mut decoder = results.decoder();
            assert_eq!(sink.take(decoder.payload(8 << 20).unwrap()), len);
            assert_eq!(decoder.u32().unwrap(), 7, "{protection:?}, {len} bytes");
            assert!(sink.view().to_vec(Site::Inspect) == pattern(len), "{protection:?}, {len}");
        }
    }
}

#[test]
fn many_threads_share_a_context_and_connections() {
    let hall = Hall::new(service());
    for protection in SERVICES {
        let served = Served::new(Some(&hall), protection);
        let initiator = anna(protection);
        let clients = [served.connect(&initiator), served.connect(&initiator)];
        std::thread::scope(|scope| {
            for number in 0..4 {
                let client = &clients[number % 2];
                scope.spawn(move || {
                    let data = pattern(number * 1000);
                    let args = opaque(&data);
                    for _ in 0..20 {
                        let calls: Vec<_> =
                            (0..10).map(|_| client.queue(MIRROR, &args).unwrap()).collect();
                        for call in calls {
                            assert_eq!(mirrored(&call.wait().unwrap()), data);
                        }
                    }
                });
            }
        });
        assert_eq!(initiator.contexts_made(), 1);
    }
}

#[test]
fn contexts_are_established_in_as_many_rounds_as_the_mechanism_needs() {
    let hall = Hall::new(service());
    for rounds in 1..=4 {
        for mutual in [false, true] {
            let served = Served::new(Some(&hall), GssService::Privacy);
            let initiator = anna_for(GssService::Privacy, rounds, mutual, 3600);
            let client = served.connect(&initiator);
            client.establish(MIRROR).unwrap();
            assert_eq!(served.calls.load(Ordering::SeqCst), 0, "a call for a context is none");
            let results = client.call(MIRROR, &opaque(b"data")).unwrap();
            assert_eq!(mirrored(&results), b"data", "{rounds} rounds, mutual: {mutual}");
        }
    }
}

#[test]
fn a_forgotten_context_is_replaced_and_the_call_carried_out_once() {
    let hall = Hall::new(service());
    for protection in SERVICES {
        let served = Served::new(Some(&hall), protection);
        let initiator = anna(protection);
        let client = served.connect(&initiator);
        client.establish(MIRROR).unwrap();
        for contexts in 2..5 {
            hall.forget();
            let before = served.calls.load(Ordering::SeqCst);
            // All of them are refused, and all use one new context.
            let data = pattern(1000);
            let args = opaque(&data);
            let calls: Vec<_> = (0..8).map(|_| client.submit(MIRROR, &[&args]).unwrap()).collect();
            for call in calls {
                assert_eq!(mirrored(&call.wait().unwrap()), data);
            }
            assert_eq!(served.calls.load(Ordering::SeqCst) - before, 8);
            assert_eq!(initiator.contexts_made(), contexts);
        }
    }
}

#[test]
fn an_ended_context_is_replaced_by_the_next_call() {
    let hall = Hall::new(service());
    let served = Served::new(Some(&hall), GssService::Integrity);
    let initiator = anna(GssService::Integrity);
    let client = served.connect(&initiator);
    client.call(MIRROR, &opaque(b"one")).unwrap();
    client.end_context(MIRROR);
    assert_eq!(initiator.principal(), None);
    client.end_context(MIRROR);
    client.call(MIRROR, &opaque(b"two")).unwrap();
    assert_eq!(initiator.contexts_made(), 2);
}

/// Calls go on all the time. A context that is not renewed is used for a minute.
#[test]
fn a_context_is_renewed_before_its_time_is_over() {
    let hall = Hall::new(service());
    let served = Served::new(Some(&hall), GssService::Privacy);
    let begun = Instant::now();
    // The toy's tickets all end at the same time, so the contexts are renewed ever faster.
    let initiator = anna_for(GssService::Privacy, 1, false, 3);
    let client = served.connect(&initiator);
    while initiator.contexts_made() < 3 {
        assert!(begun.elapsed() < Duration::from_secs(50), "made: {}", initiator.contexts_made());
        let results = client.call(MIRROR, &opaque(b"data")).unwrap();
        assert_eq!(mirrored(&results), b"data");
    }
}

#[test]
fn a_refusal_comes_as_it_is() {
    let hall = Hall::new(service());
    for protection in SERVICES {
        let served = Served::new(Some(&hall), protection);
        let client = served.connect(&anna(protection));
        let refused = client.call(REFUSE, &opaque(&pattern(padded(5)))).unwrap_err();
        assert_eq!(refused, CallError::NotDone(AcceptStatus::ProcedureUnavailable));
    }
}
