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

/// A transport and the address of the server on it.
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

/// A client with memory for one value. The client registers the memory once and uses it for all
/// calls.
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

    /// The memory of the next value to put, and of the last value that a get returned.
    pub(crate) fn memory(&self) -> VolatileSlice<'_> {
        self.memory.view()
    }

    /// Puts the first `len` bytes of the memory into the table; returns true if they replace
    /// another value.
    pub(crate) fn put(&self, key: &str, len: usize) -> Result<bool> {
        let value = self.memory.slice(0..len).ok_or("the value is too long")?;
        let mut args = Vec::new();
        let mut encoder = Encoder::new(&mut args);
        encoder.opaque(key.as_bytes());
        encoder.count(len);
        let args = [&args[..]];
        let request = Request {
            // The value follows its count, which is the last argument. A short value travels in the
            // message. The server fetches a long one by RDMA read; over TCP the client sends it
            // without a copy.
            data: Some(SendData { position: args[0].len(), memory: value }),
            ..Request::new(procedure(PUT), &args, 4)
        };
        let results = self.rpc.submit_request(&request)?.wait()?;
        Ok(results.decoder().bool()?)
    }

    /// Gets a value into the memory and returns its length.
    pub(crate) fn get(&self, key: &str) -> Result<Option<usize>> {
        let mut args = Vec::new();
        Encoder::new(&mut args).opaque(key.as_bytes());
        let (args, sinks) = ([&args[..]], [self.memory.whole()]);
        let request = Request {
            sinks: &sinks,
            locate: Some(locate_value),
            // The flag and the count; the value travels outside of the results.
            ..Request::new(procedure(GET), &args, 8)
        };
        let results = self.rpc.submit_request(&request)?.wait()?;
        let mut results = results.decoder();
        if !results.bool()? {
            return Ok(None);
        }
        // After this call the value lies in the memory, on every transport.
        Ok(Some(sinks[0].take(results.payload(VALUE_BYTES_MAX)?)))
    }

    /// Returns all keys, or as many as fit a list.
    pub(crate) fn list(&self) -> Result<Vec<String>> {
        // The results may be long but are not DDP-eligible. Over RDMA the client offers a reply
        // chunk, and the server writes the whole reply there if it does not fit a message.
        let request = Request::new(procedure(LIST), &[], LIST_BYTES_MAX);
        let results = self.rpc.submit_request(&request)?.wait()?;
        let mut results = results.decoder();
        let count = results.array_len(usize::MAX, 4)?;
        let key = |_| Ok(String::from_utf8_lossy(results.opaque(KEY_BYTES_MAX)?).into_owned());
        (0..count).map(key).collect()
    }

    /// Copies the first bytes of the memory.
    pub(crate) fn copy(&self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.memory.view().copy_to(&mut bytes, Site::Inspect);
        bytes
    }
}

/// Finds the value in the results of GET. A client over TCP needs it to read the value from the
/// socket straight into the memory.
fn locate_value(results: &[u8]) -> Option<Located> {
    let mut results = Decoder::new(results);
    let is_found = results.bool().ok()?;
    let len = results.u32().ok()? as usize;
    is_found.then_some(Located { position: results.position(), len })
}
