//! The server: one table behind TCP, iWARP and shared memory.

use crate::protocol::{
    GET, KEY_BYTES_MAX, LIST, LIST_BYTES_MAX, NULL, PROGRAM, PUT, VALUE_BYTES_MAX, VERSION,
};
use dafs_dat::iwarp::{IwarpAdapter, IwarpConfig};
use dafs_dat::shm::{ShmAdapter, ShmConfig};
use dafs_dat::{Adapter, Address, shm_socket_name};
use dafs_mem::{Mutex, Site};
use dafs_rpc::server::{Config, Group};
use dafs_rpc::{AcceptStatus, Call, Handled, Handler, Reply, VersionRange};
use dafs_wire::xdr::{Payload, XdrError};
use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;

type Table = Arc<Mutex<BTreeMap<Vec<u8>, Arc<[u8]>>>>;

/// The handler of one reactor; all handlers share the table.
struct Values(Table);

impl Values {
    fn serve(&self, call: &Call<'_>) -> Result<Handled, XdrError> {
        // The decoder knows which argument data the transport moved outside of the message. The
        // reply knows which results the caller wants placed.
        let mut args = call.decoder();
        let mut reply = call.reply();
        let mut table = self.0.lock();
        match call.procedure {
            NULL => {}
            PUT => {
                let key = args.opaque(KEY_BYTES_MAX)?.to_vec();
                let value = match args.payload(VALUE_BYTES_MAX)? {
                    Payload::Here(value) => value.to_vec(),
                    // The caller may still write to this memory, so copy the value before it is
                    // used.
                    Payload::Moved(moved) => {
                        let data = call.data(&moved).and_then(|data| data.slice(0, moved.len));
                        let Some(data) = data else {
                            return Ok(AcceptStatus::SystemError.into());
                        };
                        data.to_vec(Site::MemoryStore)
                    }
                };
                args.finish()?;
                reply.encoder().bool(table.insert(key, value.into()).is_some());
            }
            GET => {
                let value = table.get(args.opaque(KEY_BYTES_MAX)?).cloned();
                args.finish()?;
                reply.encoder().bool(value.is_some());
                if let Some(value) = value {
                    reply.encoder().count(value.len());
                    // Over shared memory this is the caller's own memory. On other transports the
                    // data leaves from it without another copy.
                    let Ok(mut place) = reply.bulk(value.len()) else {
                        return Ok(AcceptStatus::SystemError.into());
                    };
                    place.view().copy_from(&value, Site::MemoryStore);
                    place.finish(value.len());
                }
            }
            LIST => {
                list(&mut reply, table.keys());
            }
            _ => return Ok(AcceptStatus::ProcedureUnavailable.into()),
        }
        Ok(reply.into())
    }
}

fn list<'k>(reply: &mut Reply, keys: impl Iterator<Item = &'k Vec<u8>>) {
    let mut left = LIST_BYTES_MAX - 4;
    let keys: Vec<_> = keys
        .take_while(|key| {
            let bytes = 4 + key.len().next_multiple_of(4);
            let fits = bytes <= left;
            left -= if fits { bytes } else { 0 };
            fits
        })
        .collect();
    reply.encoder().count(keys.len());
    keys.into_iter().for_each(|key| reply.encoder().opaque(key));
}

impl Handler for Values {
    type Message = ();

    /// Values need not be joined with the rest of the arguments.
    fn takes_moved_data(&self, program: u32, version: u32, procedure: u32) -> bool {
        (program, version, procedure) == (PROGRAM, VERSION, PUT)
    }

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

/// A running server.
pub(crate) struct Server {
    group: Group,
    pub(crate) tcp: SocketAddr,
    /// The address for RDMA: iWARP, and shared memory for clients on this host.
    pub(crate) rdma: SocketAddr,
    threads: Vec<JoinHandle<()>>,
}

impl Server {
    /// Listens on two addresses. They must differ, because iWARP runs over TCP.
    pub(crate) fn start(tcp: SocketAddr, rdma: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(tcp)?;
        let tcp = listener.local_addr()?;

        let mut iwarp = IwarpAdapter::new(IwarpConfig::default())?;
        let bound = iwarp.listen(&Address::Tcp(rdma))?;
        let rdma = match iwarp.listener_address(bound) {
            Some(Address::Tcp(address)) => address,
            _ => rdma,
        };
        let mut shm = ShmAdapter::new(ShmConfig::default())?;
        shm.listen(&Address::Shm(shm_socket_name(rdma)))?;

        // Over TCP a value comes in one record.
        let config = Config { record_bytes_max: VALUE_BYTES_MAX + 4096, ..Config::default() };
        let group = Group::new(vec![listener], 2, config)?;
        let table = Table::default();
        let over_tcp = group.reactor(|_| Values(table.clone()))?;
        let adapters: Vec<Box<dyn Adapter>> = vec![Box::new(iwarp), Box::new(shm)];
        let over_rdma = group.rdma_reactor(adapters, |_| Values(table.clone()))?;
        let threads =
            vec![std::thread::spawn(|| over_tcp.run()), std::thread::spawn(|| over_rdma.run())];
        Ok(Self { group, tcp, rdma, threads })
    }

    /// Waits until the server is stopped.
    pub(crate) fn join(mut self) {
        self.wait();
    }

    fn wait(&mut self) {
        for thread in self.threads.drain(..) {
            // The panic of a reactor has been reported already.
            let _ = thread.join();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.group.stop();
        self.wait();
    }
}
