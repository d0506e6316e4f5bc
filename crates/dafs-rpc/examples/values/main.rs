//! A program that is not NFS: a table of large values, over TCP and direct access transports.
//!
//! `values serve TCP_ADDRESS RDMA_ADDRESS` serves on both; over shared memory a client on the same
//! host finds it by the RDMA address. `values put|get|list tcp|iwarp|shm ADDRESS ...` calls it;
//! `values measure` shows what the transports of this host do.

mod client;
mod protocol;
mod server;

use client::{Client, Transport};
use dafs_mem::Site;
use server::Server;
use std::error::Error;
use std::io::Write;
use std::time::{Duration, Instant};

const USAGE: &str = "usage: values serve TCP_ADDRESS RDMA_ADDRESS
       values put tcp|iwarp|shm ADDRESS KEY VALUE
       values get tcp|iwarp|shm ADDRESS KEY
       values list tcp|iwarp|shm ADDRESS
       values measure";

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let connect = |transport: &str, address: &str| {
        Client::connect(transport.parse::<Transport>()?, address.parse()?)
    };
    match args[..] {
        ["serve", tcp, rdma] => {
            let server = Server::start(tcp.parse()?, rdma.parse()?)?;
            println!("serving on {} and over RDMA on {}", server.tcp, server.rdma);
            server.join();
        }
        ["put", transport, address, key, value] => {
            let client = connect(transport, address)?;
            let len = client.memory().copy_from(value.as_bytes(), Site::Inspect);
            client.put(key, len)?;
        }
        ["get", transport, address, key] => {
            let client = connect(transport, address)?;
            let len = client.get(key)?.ok_or("there is no such key")?;
            std::io::stdout().write_all(&client.copy(len))?;
        }
        ["list", transport, address] => {
            connect(transport, address)?.list()?.iter().for_each(|key| println!("{key}"));
        }
        ["measure"] => measure()?,
        _ => return Err(USAGE.into()),
    }
    Ok(())
}

/// Gets values of several sizes over each transport, one at a time, and prints the time per call.
fn measure() -> Result<(), Box<dyn Error>> {
    let any = "127.0.0.1:0".parse()?;
    let server = Server::start(any, any)?;
    for transport in [Transport::Tcp, Transport::Iwarp, Transport::Shm] {
        let address = if transport == Transport::Tcp { server.tcp } else { server.rdma };
        let client = Client::connect(transport, address)?;
        for len in [4 << 10, 64 << 10, 1 << 20, 8 << 20] {
            client.put("key", len)?;
            let (start, mut calls) = (Instant::now(), 0);
            while start.elapsed() < Duration::from_secs(1) {
                client.get("key")?;
                calls += 1;
            }
            let time = start.elapsed().as_secs_f64() / f64::from(calls);
            let rate = len as f64 / time / 1e6;
            println!("{transport:?}: {len} bytes in {:.1} us, {rate:.0} MB/s", time * 1e6);
        }
    }
    Ok(())
}
