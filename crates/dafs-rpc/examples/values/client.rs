//! The client: the same code over every transport.

use crate::protocol::{GET, KEY_BYTES_MAX, LIST, LIST_BYTES_MAX, PUT, VALUE_BYTES_MAX, procedure};
use dafs_dat::iwarp::{IwarpAdapter, IwarpConfig};
use dafs_dat::shm::{ShmAdapter, ShmConfig};
use dafs_dat::{Address, shm_socket_name};
use dafs_mem::{Site, VolatileSlice};
use dafs_rpc::client::{Located, Memory, Options, Port, Request, RpcClient, SendData};
use dafs_wire::xdr::{Decoder, Encoder};
use std::error::Error;
use std::net::SocketAddr;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// How to reach a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Transport {
    Tcp,
    Iwarp,
    Shm,
}

impl std::str::FromStr for Transport {
    type Err = String;

    fn from_str(name: &str) -> std::result::Result<Self, String> {
        match name {
            "tcp" => Ok(Self::Tcp),
            "iwarp" => Ok(Self::Iwarp),
            "shm" => Ok(Self::Shm),
            _ => Err(format!("{name} is not a transport; tcp, iwarp and shm are")),
        }
    }
}

/// A client with memory for one value, which is registered once and serves all calls.
pub(crate) struct Client {
    rpc: RpcClient,
    memory: Memory,
}

impl Client {
    pub(crate) fn connect(transport: Transport, server: SocketAddr) -> Result<Self> {
        let options = Options { record_bytes_max: VALUE_BYTES_MAX + 4096, ..Options::default() };
        let rpc = match transport {
            Transport::Tcp => RpcClient::connect(server, options, None)?,
            Transport::Iwarp => {
                let port = Port::new(Box::new(IwarpAdapter::new(IwarpConfig::default())?))?;
                RpcClient::connect_rdma(&port, &Address::Tcp(server), options, None)?
            }
            Transport::Shm => {
                let port = Port::new(Box::new(ShmAdapter::new(ShmConfig::default())?))?;
                let address = Address::Shm(shm_socket_name(server));
                RpcClient::connect_rdma(&port, &address, options, None)?
            }
        };
        let memory = rpc.allocate(VALUE_BYTES_MAX)?;
        Ok(Self { rpc, memory })
    }

    /// Where the next value that is put is made, and the last one that was got lies.
    pub(crate) fn memory(&self) -> VolatileSlice<'_> {
        self.memory.view()
    }

    /// Puts the first `len` bytes of the memory into the table; true if they replace another value.
    pub(crate) fn put(&self, key: &str, len: usize) -> Result<bool> {
        let value = self.memory.slice(0..len).ok_or("the value is too long")?;
        let mut args = Vec::new();
        let mut encoder = Encoder::new(&mut args);
        encoder.opaque(key.as_bytes());
        encoder.count(len);
        let args = [&args[..]];
        let request = Request {
            // It belongs right behind its count, which ends the arguments. A short value goes in
            // the message, a long one is read by the server, or sent from where it lies.
            data: Some(SendData { position: args[0].len(), memory: value }),
            ..Request::new(procedure(PUT), &args, 4)
        };
        let results = self.rpc.submit_request(&request)?.wait()?;
        Ok(results.decoder().bool()?)
    }

    /// Gets a value into the memory; returns its length.
    pub(crate) fn get(&self, key: &str) -> Result<Option<usize>> {
        let mut args = Vec::new();
        Encoder::new(&mut args).opaque(key.as_bytes());
        let (args, sinks) = ([&args[..]], [self.memory.whole()]);
        let request = Request {
            sinks: &sinks,
            locate: Some(locate_value),
            // The flag and the count; the value is not among the results.
            ..Request::new(procedure(GET), &args, 8)
        };
        let results = self.rpc.submit_request(&request)?.wait()?;
        let mut results = results.decoder();
        if !results.bool()? {
            return Ok(None);
        }
        // Whichever way it came, it is in the memory then.
        Ok(Some(sinks[0].take(results.payload(VALUE_BYTES_MAX)?)))
    }

    /// All keys, or as many as a list can have.
    pub(crate) fn list(&self) -> Result<Vec<String>> {
        // Results that may be long, but are nothing to be moved by itself: over RDMA the server
        // writes the whole reply to a place that is offered for it, if it is too long for a message.
        let request = Request::new(procedure(LIST), &[], LIST_BYTES_MAX);
        let results = self.rpc.submit_request(&request)?.wait()?;
        let mut results = results.decoder();
        let count = results.array_len(usize::MAX, 4)?;
        let key = |_| Ok(String::from_utf8_lossy(results.opaque(KEY_BYTES_MAX)?).into_owned());
        (0..count).map(key).collect()
    }

    /// A copy of the first bytes of the memory.
    pub(crate) fn copy(&self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.memory.view().copy_to(&mut bytes, Site::Inspect);
        bytes
    }
}

/// Where the results of GET have the value. Over TCP only this tells, and the value is read from
/// the socket to its place.
fn locate_value(results: &[u8]) -> Option<Located> {
    let mut results = Decoder::new(results);
    let is_found = results.bool().ok()?;
    let len = results.u32().ok()? as usize;
    is_found.then_some(Located { position: results.position(), len })
}
