//! Steady traffic allocates no memory: the test counts the allocations of a reactor's thread while
//! it serves.

use crate::ALLOCATIONS;
use dafs_rpc::server::{Config, Group};
use dafs_rpc::{Call, Handled, Handler, Reply};
use dafs_wire::rpc::{AuthFlavor, AuthSys, CallHeader, FragmentMark, Groups, OpaqueAuth};
use dafs_wire::xdr::{Encode, Encoder};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

/// Answers with as much bulk data as there are arguments, and with the allocations so far.
struct Watched;

impl Handler for Watched {
    type Message = ();

    fn call(&mut self, call: Call<'_>) -> Handled {
        let mut reply = Reply::new();
        reply.encoder().u64(ALLOCATIONS.get());
        let len = call.args.len();
        if len > 0 {
            let mut bulk = reply.bulk(len).unwrap();
            bulk.view().fill(1);
            bulk.finish(len);
        }
        reply.into()
    }
}

fn call(args_bytes: usize) -> Vec<u8> {
    let mut body = Vec::new();
    let groups = Groups::new(&[1, 2, 3]).unwrap();
    let sys = AuthSys { stamp: 0, machine: b"machine", uid: 1, gid: 1, groups };
    sys.encode(&mut Encoder::new(&mut body));
    let credential = OpaqueAuth { flavor: AuthFlavor::SYS, body: &body };
    let (xid, program, version, procedure) = (1, 2, 3, 4);
    let verifier = OpaqueAuth::NONE;
    let header = CallHeader { xid, program, version, procedure, credential, verifier };
    let mut record = vec![0; 4];
    header.encode(&mut Encoder::new(&mut record));
    record.resize(record.len() + args_bytes, 0);
    let mark = FragmentMark::whole(record.len() - 4).unwrap();
    record[..4].copy_from_slice(&mark.to_bytes());
    record
}

/// Makes `count` calls; returns the allocations of the reactor at the last of them.
fn make(stream: &mut TcpStream, calls: &[u8], args_bytes: usize, count: usize) -> u64 {
    stream.write_all(calls).unwrap();
    let mut reply = vec![0; 4 + 24 + 8 + args_bytes];
    for _ in 0..count {
        stream.read_exact(&mut reply).unwrap();
    }
    u64::from_be_bytes(*reply[28..].first_chunk().unwrap())
}

#[test]
fn calls_cost_no_allocation_once_the_pools_are_filled() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let group = Group::new(vec![listener], 1, Config::default()).unwrap();
    let reactor = group.reactor(|_| Watched).unwrap();
    // Report the failure after the reactor has ended; a panic before would wait for it forever.
    let mut failure = None;
    std::thread::scope(|scope| {
        scope.spawn(|| reactor.run());
        let mut streams = [(); 3].map(|()| TcpStream::connect(address).unwrap());
        // Small calls, and reads whose data lies in the head of the reply.
        for args_bytes in [0, 4096] {
            let calls = call(args_bytes).repeat(32);
            let mut round = || {
                let all = streams.iter_mut().map(|stream| make(stream, &calls, args_bytes, 32));
                all.max().unwrap()
            };
            let mut before = (0..100).map(|_| round()).max().unwrap();
            // A call that arrives in two pieces allocates a little memory. The number of such calls
            // depends on the machine, so the quietest of some stretches counts.
            let mut quietest = u64::MAX;
            for _ in 0..20 {
                let after = (0..10).map(|_| round()).max().unwrap();
                quietest = quietest.min(after - before);
                before = after;
            }
            let calls = 10 * 3 * 32;
            if quietest >= calls / 4 {
                failure = Some(format!("{quietest} allocations for {calls} calls"));
            }
        }
        group.stop();
    });
    assert_eq!(failure, None);
}
