//! A program that is not NFS: a table of words that clients fill and look up.
//!
//! `lookup serve ADDRESS`, `lookup set ADDRESS WORD MEANING`, `lookup get ADDRESS WORD`, and
//! `lookup measure`, which prints what a call costs the server.

use dafs_rpc::client::{Identity, Options, Procedure, RpcClient};
use dafs_rpc::server::{Config, Group};
use dafs_rpc::{AcceptStatus, Call, Handled, Handler, Reply, VersionRange};
use dafs_wire::xdr::{Decoder, XdrError};
use rustix::time::{ClockId, clock_gettime};
use std::collections::HashMap;
use std::collections::VecDeque;
use std::error::Error;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

const PROGRAM: u32 = 0x2000_0c0d;
const VERSION: u32 = 1;
const NULL: u32 = 0;
const SET: u32 = 1;
const GET: u32 = 2;
/// Bulk data: the argument says how many bytes.
const FILL: u32 = 3;

const WORD_BYTES_MAX: usize = 1024;
const FILL_BYTES_MAX: u32 = 1 << 20;

/// One for each reactor; all share the words.
struct Words(Arc<Mutex<HashMap<Vec<u8>, Vec<u8>>>>);

impl Words {
    fn serve(&self, call: &Call<'_>) -> Result<Handled, XdrError> {
        let mut args = Decoder::new(call.args);
        let mut reply = Reply::new();
        let mut words = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match call.procedure {
            NULL => {}
            SET => {
                let word = args.opaque(WORD_BYTES_MAX)?;
                let meaning = args.opaque(WORD_BYTES_MAX)?;
                words.insert(word.to_vec(), meaning.to_vec());
            }
            GET => {
                let meaning = words.get(args.opaque(WORD_BYTES_MAX)?);
                reply.encoder().bool(meaning.is_some());
                if let Some(meaning) = meaning {
                    reply.encoder().opaque(meaning);
                }
            }
            FILL => {
                let len = args.u32()?.min(FILL_BYTES_MAX) as usize;
                reply.encoder().count(len);
                let Ok(mut bulk) = reply.bulk(len) else {
                    return Ok(AcceptStatus::SystemError.into());
                };
                bulk.view().fill(0x5a);
                bulk.finish(len);
            }
            _ => return Ok(AcceptStatus::ProcedureUnavailable.into()),
        }
        Ok(reply.into())
    }
}

impl Handler for Words {
    type Message = ();

    fn call(&mut self, call: Call<'_>) -> Handled {
        match (call.program, call.version) {
            (PROGRAM, VERSION) => {
                self.serve(&call).unwrap_or_else(|_| AcceptStatus::GarbageArgs.into())
            }
            (PROGRAM, _) => {
                let range = VersionRange { low: VERSION, high: VERSION };
                AcceptStatus::ProgramMismatch(range).into()
            }
            _ => AcceptStatus::ProgramUnavailable.into(),
        }
    }
}

fn procedure(procedure: u32) -> Procedure {
    Procedure { program: PROGRAM, version: VERSION, procedure }
}

fn opaques(values: &[&str]) -> Vec<u8> {
    let mut args = Vec::new();
    let mut encoder = dafs_wire::xdr::Encoder::new(&mut args);
    values.iter().for_each(|value| encoder.opaque(value.as_bytes()));
    args
}

fn connect(address: SocketAddr) -> std::io::Result<RpcClient> {
    let identity = Identity::sys("example", 1000, 1000, &[]);
    RpcClient::connect(address, Options { identity, ..Options::default() }, None)
}

/// Calls again and again for a while, so many at a time, and prints what that costs.
fn measure(name: &str, depth: usize, number: u32, args: &[u8]) -> Result<(), Box<dyn Error>> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let group = Group::new(vec![listener], 1, Config::default())?;
    let reactor = group.reactor(|_| Words(Arc::default()))?;
    let server = std::thread::spawn(move || {
        reactor.run();
        let time = clock_gettime(ClockId::ThreadCPUTime);
        time.tv_sec as f64 * 1e6 + time.tv_nsec as f64 / 1e3
    });
    let client = connect(address)?;
    let start = Instant::now();
    let mut calls = 0u32;
    let mut pending = VecDeque::new();
    while start.elapsed() < Duration::from_secs(2) {
        // Half of the depth leaves at a time, as with a client of many threads.
        while pending.len() < depth {
            pending.push_back(client.queue(procedure(number), args)?);
        }
        for _ in 0..depth.div_ceil(2) {
            let Some(call) = pending.pop_front() else { break };
            call.wait()?;
            calls += 1;
        }
    }
    let wall = start.elapsed().as_secs_f64() * 1e6 / f64::from(calls);
    drop(pending);
    group.stop();
    let cpu = server.join().map_err(|_| "the reactor failed")? / f64::from(calls);
    println!("{name}, depth {depth}: {wall:.2} us, {cpu:.2} us of server CPU per call");
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["serve", address] => {
            let listener = TcpListener::bind(address)?;
            println!("serving on {}", listener.local_addr()?);
            let group = Group::new(vec![listener], 1, Config::default())?;
            group.reactor(|_| Words(Arc::default()))?.run();
        }
        ["set", address, word, meaning] => {
            let args = opaques(&[word, meaning]);
            connect(address.parse()?)?.call(procedure(SET), &args)?;
        }
        ["get", address, word] => {
            let results = connect(address.parse()?)?.call(procedure(GET), &opaques(&[word]))?;
            let mut results = Decoder::new(&results);
            match results.bool()? {
                true => println!("{}", String::from_utf8_lossy(results.opaque(WORD_BYTES_MAX)?)),
                false => println!("no such word"),
            }
        }
        ["measure"] => {
            for depth in [1, 32] {
                measure("nothing", depth, NULL, &[])?;
                measure("look-up", depth, GET, &opaques(&["word"]))?;
                measure("4 KiB of bulk data", depth, FILL, &4096u32.to_be_bytes())?;
            }
            measure("1 MiB of bulk data", 4, FILL, &FILL_BYTES_MAX.to_be_bytes())?;
        }
        _ => return Err("usage: lookup serve|set|get ADDRESS ..., or lookup measure".into()),
    }
    Ok(())
}
