//! A client on RDMA allocates no memory in steady traffic.

use crate::{ALLOCATIONS, peer};
use dafs_rpc::client::{Options, Port, Procedure, Request, RpcClient, SendData};
use dafs_rpc::server::{Config, Group};
use dafs_rpc::{AcceptStatus, Call, Handled, Handler};
use dafs_wire::xdr::Payload;
use std::collections::VecDeque;

const LEN: usize = 50_000;

/// Takes data and returns data.
struct Program;

impl Handler for Program {
    type Message = ();

    fn call(&mut self, call: Call<'_>) -> Handled {
        let mut reply = call.reply();
        let mut args = call.decoder();
        match (call.procedure, args.payload(LEN)) {
            (1, Ok(Payload::Here(data))) => {
                reply.encoder().count(data.len());
                let Ok(mut place) = reply.bulk(data.len()) else {
                    return AcceptStatus::SystemError.into();
                };
                place.view().copy_from(data, dafs_mem::Site::Inspect);
                place.finish(data.len());
            }
            (2, Ok(Payload::Here(data))) => reply.encoder().opaque(data),
            _ => return AcceptStatus::GarbageArgs.into(),
        }
        reply.into()
    }
}

#[test]
fn steady_calls_allocate_nothing() {
    for is_shm in [false, true] {
        let adapter = if is_shm { peer::shm } else { peer::iwarp };
        let mut listening = adapter();
        let wanted = if is_shm { peer::any_shm() } else { peer::any_iwarp() };
        let bound = listening.listen(&wanted).unwrap();
        let address = listening.listener_address(bound).unwrap();
        let group = Group::new(Vec::new(), 1, Config::default()).unwrap();
        let reactor = group.rdma_reactor(vec![listening], |_| Program).unwrap();
        let server = std::thread::spawn(move || reactor.run());
        let port = Port::new(adapter()).unwrap();
        let client = RpcClient::connect_rdma(&port, &address, Options::default(), None).unwrap();
        let memory = client.allocate(2 * LEN).unwrap();
        let source = memory.slice(0..LEN).unwrap();
        let sinks = [memory.slice(LEN..2 * LEN).unwrap()];
        let mut pending = VecDeque::with_capacity(8);
        let procedure = |procedure| Procedure { program: 1, version: 1, procedure };
        let (large, small) =
            ((LEN as u32).to_be_bytes(), [&8u32.to_be_bytes()[..], &[0; 8]].concat());
        let mut round = || {
            // Data both ways, all of it in chunks.
            let args = [&large[..]];
            let data = Some(SendData { position: 4, memory: source.clone() });
            let request = Request { data, sinks: &sinks, ..Request::new(procedure(1), &args, 4) };
            let results = client.submit_request(&request).unwrap().wait().unwrap();
            assert_eq!(sinks[0].take(results.decoder().payload(LEN).unwrap()), LEN);
            // A long reply.
            let data = Some(SendData { position: 4, memory: source.clone() });
            let request = Request { data, ..Request::new(procedure(2), &args, LEN + 4) };
            assert_eq!(client.submit_request(&request).unwrap().wait().unwrap().len(), LEN + 4);
            // Small calls, several at a time.
            for _ in 0..8 {
                pending.push_back(client.queue(procedure(2), &small).unwrap());
            }
            for pending in pending.drain(..) {
                assert_eq!(pending.wait().unwrap()[..], small);
            }
        };
        (0..200).for_each(|_| round());
        // A queue grows with the longest burst so far, which depends on the machine; that comes to
        // an end.
        let mut stretch = || {
            let before = ALLOCATIONS.get();
            (0..200).for_each(|_| round());
            ALLOCATIONS.get() - before
        };
        let stretches: Vec<_> = (0..20).map(|_| stretch()).take_while(|count| *count > 0).collect();
        drop(client);
        group.stop();
        server.join().unwrap();
        assert!(
            stretches.len() < 20,
            "{stretches:?} allocations for 2000 calls each, shm: {is_shm}"
        );
    }
}
