//! The peer: a socket, and what it sends at set-up.

use super::world::{SECRET, World};
use crate::input::Input;
use dafs_wire::iwarp::mpa::{DafsBlock, Enhanced, Frame, FrameKind};
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU32, Ordering};

/// A fresh address for every run, or the ports of one would all wait for their time after the
/// close.
pub fn fresh_address() -> SocketAddr {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let number = NEXT.fetch_add(1, Ordering::Relaxed) % 0x00ff_fffd + 1;
    SocketAddr::new(Ipv4Addr::from(0x7f00_0000 | number).into(), 0)
}

/// The set-up frame that the input describes, and whether it asks for CRC.
pub fn frame(input: &mut Input<'_>, request: bool) -> (Vec<u8>, bool) {
    let choice = input.byte();
    if choice == 0xff {
        let len = usize::from(input.byte());
        return (input.take(len).to_vec(), false);
    }
    let flags = input.byte();
    let words = Enhanced {
        ird: u16::from(input.byte()),
        ord: u16::from(input.byte() % 64),
        peer_to_peer: flags & 0x08 != 0,
        rtr_empty: flags & 0x10 != 0,
        rtr_write: flags & 0x20 != 0,
        rtr_read: flags & 0x40 != 0,
    };
    let len = usize::from(input.byte() % 64);
    let mut data = input.take(len).to_vec();
    if flags & 0x80 != 0 {
        let dafs_block = DafsBlock { large_fpdu: choice & 0x20 != 0, crc: false };
        data.extend_from_slice(&dafs_block.encode());
    }
    let frame = Frame {
        kind: if request { FrameKind::Request } else { FrameKind::Reply },
        markers: flags & 0x07 == 1,
        crc: flags & 0x04 != 0,
        reject: flags & 0x07 == 2,
        revision: if choice & 0x03 == 3 { choice >> 4 & 0x03 } else { 2 },
        enhanced: (choice & 0x0c != 0).then_some(words),
        private_data: &data,
    };
    let mut bytes = Vec::new();
    frame.encode(&mut bytes).expect("little private data");
    (bytes, frame.crc)
}

/// Pieces of a stream that are as small as the input wants them.
const PIECES_MAX: usize = 100;
/// The size of the further ones, in bytes.
const REST_PIECE_BYTES: usize = 16 * 1024;

/// The other side of the connection.
pub struct Peer {
    /// `None` when it was closed.
    stream: Option<TcpStream>,
    /// Bytes from the adapter.
    heard: Vec<u8>,
}

impl Peer {
    pub fn connect(address: SocketAddr) -> Self {
        Self::new(TcpStream::connect(address).expect("a listener on this host"))
    }

    /// Waits for a connection that `start` begins.
    pub fn accept(start: impl FnOnce(SocketAddr)) -> Self {
        let listener = TcpListener::bind(fresh_address()).expect("an address of this host");
        start(listener.local_addr().expect("it is bound"));
        Self::new(listener.accept().expect("a connection within this host").0)
    }

    fn new(stream: TcpStream) -> Self {
        stream.set_nonblocking(true).expect("a plain socket");
        stream.set_nodelay(true).expect("a plain socket");
        Self { stream: Some(stream), heard: Vec::new() }
    }

    /// Sends bytes in pieces; the adapter has a turn after each.
    pub fn send(&mut self, mut bytes: &[u8], cuts: &[u8], world: &mut World) {
        // Beyond some pieces the rest would only cost time.
        let pieces = cuts.iter().cycle().take(PIECES_MAX).map(|&cut| 1 + usize::from(cut).pow(2));
        for piece in pieces.chain(std::iter::repeat(REST_PIECE_BYTES)) {
            if bytes.is_empty() {
                return;
            }
            let size = piece.min(bytes.len());
            let Some(stream) = &mut self.stream else { return };
            match stream.write(&bytes[..size]) {
                Ok(sent) => bytes = &bytes[sent..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                // The adapter has had enough.
                Err(_) => return,
            }
            world.turn();
            self.listen();
        }
    }

    /// Takes in what the adapter has sent. Returns whether there was anything.
    pub fn listen(&mut self) -> bool {
        let Some(stream) = &mut self.stream else { return false };
        let mut bytes = [0; 16 * 1024];
        let mut any = false;
        while let Ok(read @ 1..) = stream.read(&mut bytes) {
            self.heard.extend_from_slice(&bytes[..read]);
            any = true;
        }
        any
    }

    /// Ends its stream in order.
    pub fn finish(&mut self) {
        if let Some(stream) = &self.stream {
            let _ = stream.shutdown(Shutdown::Write);
        }
    }

    /// Vanishes. Unread bytes turn the close into a reset.
    pub fn reset(&mut self) {
        self.stream = None;
    }

    /// Checks that no secret byte was sent.
    pub fn check(&mut self) {
        let secret = SECRET.repeat(4);
        assert!(!self.heard.windows(secret.len()).any(|part| part == secret), "a secret was told");
    }
}
