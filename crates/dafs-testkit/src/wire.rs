//! A connection that breaks.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// A wire between a client and a server. It is cut after a number of bytes.
pub struct Wire {
    /// The address for clients.
    pub address: SocketAddr,
    /// The number of cuts.
    pub cuts: Arc<AtomicU64>,
    /// No bytes pass while this is locked.
    pub held: Arc<Mutex<()>>,
}

impl Wire {
    /// Starts a wire. `lengths` returns the number of bytes, in both directions together, after
    /// which the next connection is cut.
    pub fn new(
        server: SocketAddr,
        mut lengths: impl FnMut() -> Option<u64> + Send + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let cuts = Arc::new(AtomicU64::new(0));
        let counted = cuts.clone();
        let held = Arc::new(Mutex::new(()));
        let holds = held.clone();
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let (Ok(client), Ok(server)) = (client, TcpStream::connect(server)) else { return };
                client.set_nodelay(true).unwrap();
                server.set_nodelay(true).unwrap();
                let left = lengths().map(|bytes| Arc::new(AtomicU64::new(bytes)));
                for (from, to) in [(&client, &server), (&server, &client)] {
                    let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    let (left, counted) = (left.clone(), counted.clone());
                    let holds = holds.clone();
                    std::thread::spawn(move || {
                        let mut bytes = [0; 4096];
                        while let Ok(count @ 1..) = from.read(&mut bytes) {
                            let mut pass = count;
                            if let Some(left) = &left {
                                let spend = |left: u64| Some(left.saturating_sub(count as u64));
                                let before = left
                                    .fetch_update(Ordering::SeqCst, Ordering::SeqCst, spend)
                                    .unwrap();
                                pass = pass.min(before as usize);
                            }
                            drop(holds.lock());
                            if to.write_all(&bytes[..pass]).is_err() {
                                break;
                            }
                            if pass < count {
                                counted.fetch_add(1, Ordering::SeqCst);
                                break;
                            }
                        }
                        let _ = from.shutdown(Shutdown::Both);
                        let _ = to.shutdown(Shutdown::Both);
                    });
                }
            }
        });
        Self { address, cuts, held }
    }
}
