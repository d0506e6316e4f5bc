//! A byte-level client of the shared-memory protocol, so that it can break every rule. It declares
//! offsets and numbers itself, which also pins the format.

use dafs_dat::Address;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType,
};
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) const RING: usize = 4096;
pub(crate) const MEMORY: usize = 8192 + 2 * RING;

/// Offsets in connection memory, from the initiator's side.
pub(crate) const OWN_HEAD: usize = 0;
pub(crate) const OUT_RING: usize = 8192;

/// A record header: mark, "last" bit, kind, bytes of words and payload.
pub(crate) fn header(kind: u64, bytes: u64) -> u64 {
    0xDA75 << 48 | 1 << 40 | kind << 32 | bytes
}

pub(crate) const MESSAGE: u64 = 1;
pub(crate) const WRITE: u64 = 2;
pub(crate) const READ: u64 = 3;
pub(crate) const READ_DATA: u64 = 4;

pub(crate) fn memory_file(bytes: usize, seals: SealFlags) -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create("hostile", flags).unwrap();
    rustix::fs::ftruncate(&file, bytes as u64).unwrap();
    rustix::fs::fcntl_add_seals(&file, seals).unwrap();
    file
}

pub(crate) fn hello(ring_bytes: u32) -> Vec<u8> {
    let mut packet = b"\x01DAFSSHM\x01".to_vec();
    packet.extend_from_slice(&ring_bytes.to_ne_bytes());
    packet.extend_from_slice(b"private");
    packet
}

pub(crate) fn region(key: u32, slot: u16, access: u8, address: u64, len: u64) -> Vec<u8> {
    let mut packet = vec![6, access];
    packet.extend_from_slice(&slot.to_ne_bytes());
    packet.extend_from_slice(&key.to_ne_bytes());
    packet.extend_from_slice(&address.to_ne_bytes());
    packet.extend_from_slice(&len.to_ne_bytes());
    packet
}

pub(crate) struct Raw {
    socket: OwnedFd,
    memory: *mut u8,
}

impl Raw {
    pub(crate) fn new(address: &Address) -> Self {
        let Address::Shm(name) = address else { panic!("{address}") };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
                .unwrap();
        let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
        rustix::net::connect(&socket, &address).unwrap();
        Self { socket, memory: std::ptr::null_mut() }
    }

    /// A client that has sent a valid hello.
    pub(crate) fn greet(address: &Address) -> Self {
        let mut raw = Self::new(address);
        let file = memory_file(MEMORY, SealFlags::SHRINK);
        raw.map(&file);
        raw.send(&hello(RING as u32), &[file.as_fd()]).unwrap();
        raw
    }

    pub(crate) fn map(&mut self, file: &OwnedFd) {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping touches no existing memory; tests leave it mapped.
        let mapped = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), MEMORY, protection, MapFlags::SHARED, file, 0)
        };
        self.memory = mapped.unwrap().cast();
    }

    pub(crate) fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && offset < MEMORY);
        // SAFETY: aligned and inside the mapping of MEMORY bytes.
        unsafe { AtomicU64::from_ptr(self.memory.add(offset).cast()) }
    }

    pub(crate) fn put(&self, offset: usize, word: u64) {
        self.word(offset).store(word, Ordering::SeqCst);
    }

    pub(crate) fn send(&self, packet: &[u8], files: &[BorrowedFd<'_>]) -> Result<usize, Errno> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(files));
        }
        let flags = SendFlags::NOSIGNAL;
        rustix::net::sendmsg(&self.socket, &[IoSlice::new(packet)], &mut control, flags)
    }

    /// The kinds and texts of the packets that have arrived; an empty one means the end.
    pub(crate) fn packets(&self) -> Vec<(u8, String)> {
        let mut packets = Vec::new();
        loop {
            let mut bytes = [0; 512];
            match rustix::net::recv(&self.socket, &mut bytes, RecvFlags::DONTWAIT) {
                Ok((0, _)) => {
                    packets.push((0, String::new()));
                    return packets;
                }
                Ok((len, _)) => {
                    let text = String::from_utf8_lossy(&bytes[1..len]).into_owned();
                    packets.push((bytes[0], text));
                }
                Err(Errno::AGAIN) => return packets,
                Err(Errno::CONNRESET) => {}
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// The packets that have arrived up to the end of the socket, which is the last one. A process
    /// that another test starts holds a copy of the other end until it executes its program.
    pub(crate) fn packets_to_end(&self) -> Vec<(u8, String)> {
        let mut packets = self.packets();
        while packets.last().is_none_or(|(kind, _)| *kind != 0) {
            let mut readable = [PollFd::new(&self.socket, PollFlags::IN)];
            let timeout = Timespec { tv_sec: 60, tv_nsec: 0 };
            let ready = rustix::event::poll(&mut readable, Some(&timeout)).unwrap();
            assert_ne!(ready, 0, "the socket stays open");
            packets.extend(self.packets());
        }
        packets
    }
}
