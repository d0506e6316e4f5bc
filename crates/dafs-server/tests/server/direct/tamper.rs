//! A relay between a client and its metadata server that changes the server's answers about layouts
//! and devices, like a broken or malicious server.

use dafs_wire::nfs4::{
    Attributes, CompoundResult, Fattr, GetattrResult, OpNum, OpResult, ResultBody, Status,
};
use dafs_wire::xdr::{Decode, Decoder, Encode, Encoder};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// The false answers. `None` keeps the server's answer.
pub(crate) trait Lies: Send + Sync + 'static {
    /// Replaces the server's layout `told`.
    fn layout(&self, _told: &ResultBody<'_>) -> Option<Result<Vec<u8>, Status>> {
        None
    }
    fn device(&self) -> Option<Result<Vec<u8>, Status>> {
        None
    }
    /// Replaces the layout types of the file system.
    fn types(&self) -> Option<Vec<u32>> {
        None
    }
    /// True if the answer to these operations is lost, with its connection.
    fn loses(&self, _ops: &[OpNum]) -> bool {
        false
    }
}

pub(crate) struct Tamper {
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    lies: Box<dyn Lies>,
    layouts: AtomicUsize,
    devices: AtomicUsize,
    /// The operations of all answered compounds.
    compounds: Mutex<Vec<Vec<OpNum>>>,
    over: AtomicBool,
}

impl Tamper {
    pub(crate) fn new(server: SocketAddr, lies: impl Lies) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            lies: Box::new(lies),
            layouts: AtomicUsize::new(0),
            devices: AtomicUsize::new(0),
            compounds: Mutex::default(),
            over: AtomicBool::new(false),
        });
        let accepting = shared.clone();
        std::thread::spawn(move || {
            for client in listener.incoming() {
                if accepting.over.load(Ordering::SeqCst) {
                    return;
                }
                let (Ok(client), Ok(server)) = (client, TcpStream::connect(server)) else {
                    continue;
                };
                client.set_nodelay(true).unwrap();
                server.set_nodelay(true).unwrap();
                let (from, to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                std::thread::spawn(move || pass(from, to));
                let shared = accepting.clone();
                std::thread::spawn(move || shared.answer(server, client));
            }
        });
        Self { address, shared }
    }

    /// Returns the number of requests for a layout.
    pub(crate) fn layouts(&self) -> usize {
        self.shared.layouts.load(Ordering::SeqCst)
    }

    /// Returns the answered compounds with this operation.
    pub(crate) fn compounds(&self, with: OpNum) -> Vec<Vec<OpNum>> {
        let compounds = self.shared.compounds.lock().unwrap();
        compounds.iter().filter(|ops| ops.contains(&with)).cloned().collect()
    }

    /// Returns the number of requests for a device.
    pub(crate) fn devices(&self) -> usize {
        self.shared.devices.load(Ordering::SeqCst)
    }
}

impl Drop for Tamper {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::SeqCst);
        // Wakes the thread that accepts.
        let _ = TcpStream::connect(self.address);
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream) {
    // Either may have ended already.
    let _ = (std::io::copy(&mut from, &mut to), to.shutdown(Shutdown::Both));
}

/// A successful RPC reply without a verifier, behind its number.
const SUCCESS: [u8; 20] = [0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

impl Shared {
    fn answer(&self, mut server: TcpStream, mut client: TcpStream) {
        let mut mark = [0; 4];
        while server.read_exact(&mut mark).is_ok() {
            let mut record = vec![0; (u32::from_be_bytes(mark) & 0x7fff_ffff) as usize];
            if server.read_exact(&mut record).is_err() {
                break;
            }
            if record.get(4..24) == Some(&SUCCESS) {
                if let Some(results) = self.changed(&record[24..]) {
                    record.truncate(24);
                    record.extend(results);
                }
                let compounds = self.compounds.lock().unwrap();
                if compounds.last().is_some_and(|ops| self.lies.loses(ops)) {
                    break;
                }
            }
            let mark = (record.len() as u32 | 0x8000_0000).to_be_bytes();
            if client.write_all(&mark).and_then(|()| client.write_all(&record)).is_err() {
                break;
            }
        }
        let _ = (server.shutdown(Shutdown::Both), client.shutdown(Shutdown::Both));
    }

    /// Changes the results of a compound about layouts.
    fn changed(&self, results: &[u8]) -> Option<Vec<u8>> {
        let mut d = Decoder::new(results);
        let head = CompoundResult::decode(&mut d).ok()?;
        let (mut out, mut status, mut is_changed) = (Vec::new(), head.status, false);
        let mut ops = Vec::new();
        for _ in 0..head.op_count {
            let result = OpResult::decode(&mut d).ok()?;
            ops.extend(OpNum::from_u32(result.number));
            match self.lie(&result) {
                Some((said, lie)) => {
                    (status, is_changed) = (said, true);
                    out.extend(lie);
                }
                None => result.encode(&mut Encoder::new(&mut out)),
            }
        }
        self.compounds.lock().unwrap().push(ops);
        is_changed.then(|| {
            let mut all = Vec::new();
            CompoundResult { status, ..head }.encode(&mut Encoder::new(&mut all));
            all.extend(out);
            all
        })
    }

    fn lie(&self, result: &OpResult<'_>) -> Option<(Status, Vec<u8>)> {
        let body = match OpNum::from_u32(result.number)? {
            OpNum::Layoutget => {
                self.layouts.fetch_add(1, Ordering::SeqCst);
                self.lies.layout(&result.body)?
            }
            OpNum::Getdeviceinfo => {
                self.devices.fetch_add(1, Ordering::SeqCst);
                self.lies.device()?
            }
            OpNum::Getattr => Ok(self.attributes(&result.body)?),
            _ => return None,
        };
        let mut out = Vec::new();
        let mut e = Encoder::new(&mut out);
        e.u32(result.number);
        let status = body.as_ref().err().copied().unwrap_or(Status::Ok);
        status.encode(&mut e);
        out.extend(body.unwrap_or_default());
        Some((status, out))
    }

    /// Changes attributes that contain layout types.
    fn attributes(&self, body: &ResultBody<'_>) -> Option<Vec<u8>> {
        let ResultBody::Getattr(told) = body else { return None };
        let mut attributes = Attributes::decode(&told.attributes).ok()?;
        attributes.fs_layout_types.as_mut()?.numbers = self.lies.types()?;
        let values = attributes.to_values();
        let mut out = Vec::new();
        let attributes = Fattr { mask: attributes.mask(), values: &values };
        GetattrResult { attributes }.encode(&mut Encoder::new(&mut out));
        Some(out)
    }
}
