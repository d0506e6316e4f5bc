//! The RPC-over-RDMA client over the simulated network. The input chooses its calls, and the answers
//! of a server that may say anything, in any order, as often as it likes.
//!
//! Checked: no panic; a call that is answered was; results are read without a panic and never as
//! longer than what they were given; nothing is left when the client is gone.

use crate::input::Input;
use crate::rpcrdma_steps::spoil;
use dafs_dat::{Address, RemoteBuffer};
use dafs_rpc::client::{Options, Pending, Port, Procedure, Request, RpcClient, SendData};
use dafs_testkit_rpc::net::{Net, SERVER_HOST};
use dafs_testkit_rpc::peer::{self, Message, success, words};
use dafs_testkit_rpc::program;
use dafs_testkit_rpc::raw::Raw;
use dafs_wire::rpcrdma::{Body, Header, HeaderFault};
use dafs_wire::xdr::Payload;

const HOST: u32 = 9;
const STEPS_MAX: usize = 64;
const MEMORY_BYTES: usize = 12_000;
/// Registrations that stay with a port: memory for long messages of each size.
const REGIONS_KEPT_MAX: usize = 64;

fn submit(input: &mut Input<'_>, client: &RpcClient) -> Option<Pending> {
    let shape = input.byte();
    let memory = client.allocate(MEMORY_BYTES).ok()?;
    let lens = [0, 4000, 8000].map(|at| at..at + usize::from(input.short()) % 4000);
    let [data, first, second] = lens.map(|range| memory.slice(range).expect("inside"));
    let args = vec![0x11; usize::from(input.short()) % 9000 / 4 * 4 + 4];
    let pieces: &[&[u8]] = &[&args];
    let procedure = Procedure { program: program::PROGRAM, version: 1, procedure: 1 };
    let mut request = Request::new(procedure, pieces, usize::from(input.short()) % 9000);
    if shape & 1 != 0 {
        request.data = Some(SendData { position: 4, memory: data });
    }
    let sinks = [first, second];
    request.sinks = &sinks[..usize::from(shape >> 1 & 0x03).min(2)];
    client.submit_request(&request).ok()
}

/// An answer to a message, as the input wants it.
fn answer(input: &mut Input<'_>, server: &mut Raw, message: &Message) {
    let shape = input.byte();
    let xid = message.header.xid.wrapping_add(u32::from(shape == 0xff));
    let mut chunks = match &message.header.body {
        Body::Message(chunks) | Body::NoMessage(chunks) => chunks.clone(),
        _ => return,
    };
    if shape & 1 == 0 {
        chunks.reads.clear();
    }
    for chunk in chunks.writes.iter_mut().chain(&mut chunks.reply) {
        for segment in &mut chunk.segments {
            let whole = *segment;
            segment.length = match input.byte() {
                0 => 0,
                1 => segment.length.wrapping_add(1),
                part => (segment.length / 255).saturating_mul(part.into()),
            };
            if segment.length <= whole.length && segment.length <= 4000 && shape & 2 != 0 {
                let memory = server.memory(4000);
                memory.put(0, &success(xid, &[]));
                let (key, address) = (whole.handle, whole.offset);
                server.write(&memory, RemoteBuffer { key, address, len: segment.length });
                server.deregister(&memory);
            }
        }
    }
    let body = match shape >> 2 & 0x07 {
        0 | 1 => Body::NoMessage(chunks),
        2 => Body::Error(HeaderFault::Chunk),
        3 => Body::Done,
        _ => Body::Message(chunks),
    };
    let header = Header { xid, credits: input.byte().into(), body };
    let mut rpc = success(xid, &[]);
    let len = input.short() % 64;
    rpc.extend(words(&[len.into()]));
    rpc.resize(rpc.len() + usize::from(input.byte()), 0x22);
    let mut bytes = peer::message(&header, &rpc);
    if shape & 0x40 != 0 {
        spoil(input, &mut bytes);
    }
    server.send(&bytes);
}

pub fn run(bytes: &[u8]) {
    let mut input = Input(bytes);
    let mut net = Net::without_server();
    let mut server = Raw::new(&net, SERVER_HOST);
    server.listen();
    let port = Port::new(Box::new(net.network.adapter(HOST))).expect("a descriptor");
    let options = Options { credits: 1 + u32::from(input.byte() % 8), ..Options::default() };
    let client = RpcClient::begin_rdma(&port, &Address::Sim(SERVER_HOST), options, None, 100);
    let client = client.expect("a listener");
    net.settle_with(&mut [&mut server], |now| port.poll(now));
    let mut pending = Vec::new();
    let mut seen = Vec::new();
    for _ in 0..STEPS_MAX {
        if input.is_empty() || client.is_broken() || !server.is_up() {
            break;
        }
        let step = input.byte();
        match step & 0x07 {
            0 | 1 => pending.extend(submit(&mut input, &client)),
            2..5 if !seen.is_empty() => {
                let at = usize::from(step >> 3) % seen.len();
                let message: &Message = &seen[at];
                answer(&mut input, &mut server, message);
            }
            5 if step >> 3 == 0 && !pending.is_empty() => drop(pending.remove(0)),
            6 => {
                let len = usize::from(input.byte());
                server.send(input.take(len));
            }
            _ => {}
        }
        net.settle_with(&mut [&mut server], |now| port.poll(now));
        seen.extend(server.inbox.drain(..));
    }
    for pending in pending.drain(..).filter(Pending::is_answered) {
        let Ok(results) = pending.wait() else { continue };
        let mut decoder = results.decoder();
        while let Ok(payload) = decoder.payload(usize::MAX) {
            match payload {
                Payload::Here(data) => assert!(data.len() <= results.len()),
                Payload::Moved(moved) => assert!(moved.len <= MEMORY_BYTES),
            }
        }
    }
    drop(client);
    net.settle_with(&mut [&mut server], |now| port.poll(now));
    assert!(net.network.region_count(HOST) <= REGIONS_KEPT_MAX);
}
