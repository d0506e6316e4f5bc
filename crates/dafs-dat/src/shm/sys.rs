//! Memory files, mappings and sockets: the provider's system calls.
//!
//! Invariants
//! * A descriptor from a peer is mapped only after checks: it is a memory file of ordinary pages,
//!   sealed against shrinking, and long enough. So no access to the mapping can raise SIGBUS,
//!   whatever the peer does.
//! * Every descriptor is close-on-exec; every socket is non-blocking.

use super::limits::{
    CONNECTION_MAPPINGS_MAX, PACKET_BYTES_MAX, PEER_GROUPS, PEER_GROUPS_KERNEL_MAX,
    PEER_GROUPS_MAX, PEER_MAPPINGS_MAX,
};
use crate::descriptors::kept;
use crate::types::PeerProcess;
use dafs_mem::VolatileSlice;
use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// `TMPFS_MAGIC`: the file system of a memory file with ordinary pages. Huge-page files have
/// another number, and a fault in one can raise SIGBUS when the pool is empty.
const TMPFS_MAGIC: u64 = 0x0102_1994;

/// Makes a memory file of `bytes` (whole pages) that can no longer shrink or grow. The kernel gives
/// it mode 0777. With that mode any user with a read-only descriptor could open it again for
/// writing through `/proc/self/fd`.
pub(super) fn memory_file(name: &str, bytes: usize) -> io::Result<OwnedFd> {
    let file = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    let file = kept(file)?;
    rustix::fs::fchmod(&file, Mode::RUSR | Mode::WUSR)?;
    rustix::fs::ftruncate(&file, bytes as u64)?;
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(file)
}

/// A second descriptor of a memory file, which does not allow writing.
pub(super) fn read_only(file: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    kept(rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
}

/// Checks that a descriptor from a peer is safe to map for `bytes`. The error is worded for the
/// peer.
pub(super) fn check_memory_file(file: BorrowedFd<'_>, bytes: usize) -> Result<(), &'static str> {
    let system = rustix::fs::fstatfs(file).map_err(|_| "the descriptor is not a memory file")?;
    if system.f_type as u64 != TMPFS_MAGIC {
        return Err("the descriptor is not a memory file of ordinary pages");
    }
    let seals =
        rustix::fs::fcntl_get_seals(file).map_err(|_| "the descriptor is not a memory file")?;
    if !seals.contains(SealFlags::SHRINK) {
        return Err("the memory file is not sealed against shrinking");
    }
    let stat = rustix::fs::fstat(file).map_err(|_| "the descriptor is not a memory file")?;
    if u64::try_from(stat.st_size).unwrap_or(0) < bytes as u64 {
        return Err("the memory file is shorter than was said");
    }
    Ok(())
}

/// A limit of this process's mappings for one purpose.
#[derive(Debug)]
pub(super) struct Budget {
    used: AtomicUsize,
    max: usize,
}

/// The budget for regions of peers.
pub(super) static PEER_MAPPINGS: Budget = Budget::new(PEER_MAPPINGS_MAX);

/// The budget for the memory of connections.
pub(super) static CONNECTION_MAPPINGS: Budget = Budget::new(CONNECTION_MAPPINGS_MAX);

/// A budget that allows no mapping.
pub(super) static NO_MAPPINGS: Budget = Budget::new(0);

impl Budget {
    pub(super) const fn new(max: usize) -> Self {
        Self { used: AtomicUsize::new(0), max }
    }

    fn take(&'static self) -> io::Result<Share> {
        if self.used.fetch_add(1, Ordering::Relaxed) < self.max {
            return Ok(Share(self));
        }
        self.used.fetch_sub(1, Ordering::Relaxed);
        let text = format!("{} such mappings exist in this process, which is the limit", self.max);
        Err(io::Error::new(io::ErrorKind::QuotaExceeded, text))
    }
}

/// One mapping of a budget; dropping it returns the mapping to the budget.
#[derive(Debug)]
struct Share(&'static Budget);

impl Drop for Share {
    fn drop(&mut self) {
        self.0.used.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A shared mapping of a memory file, unmapped when dropped.
#[derive(Debug)]
pub(super) struct Mapping {
    ptr: *mut u8,
    len: usize,
    /// Counts the mapping for its whole lifetime.
    share: Option<Share>,
}

// SAFETY: the mapping is an address that stays valid until drop; every access goes through
// `VolatileSlice` or atomics.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `len` bytes of `file`, which this process has made or checked.
    pub(super) fn new(file: BorrowedFd<'_>, len: usize, writable: bool) -> io::Result<Self> {
        let mut protection = ProtFlags::READ;
        protection.set(ProtFlags::WRITE, writable);
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let ptr = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), len, protection, MapFlags::SHARED, file, 0)?
        };
        Ok(Self { ptr: ptr.cast(), len, share: None })
    }

    /// The same, within a budget.
    ///
    /// # Errors
    /// `QuotaExceeded` when the budget is used up.
    pub(super) fn within(
        budget: &'static Budget,
        file: BorrowedFd<'_>,
        len: usize,
        writable: bool,
    ) -> io::Result<Self> {
        let share = budget.take()?;
        let mut mapping = Self::new(file, len, writable)?;
        mapping.share = Some(share);
        Ok(mapping)
    }

    pub(super) fn ptr(&self) -> *mut u8 {
        self.ptr
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// A view of `len` bytes from `offset`.
    pub(super) fn view(&self, offset: usize, len: usize) -> Option<VolatileSlice<'_>> {
        // SAFETY: the mapping is valid for its whole length as long as `self` lives. One that was
        // made for reading is only read: `PeerRegions::find` decides whether a view may be written.
        unsafe { VolatileSlice::new(self.ptr, self.len) }.slice(offset, len)
    }

    /// The word at `offset`, which must be aligned and inside.
    pub(super) fn word32(&self, offset: usize) -> &AtomicU32 {
        // Between correct sides of a connection, no other access to the same bytes runs at the same
        // time. Control words are only accessed as atomics. Bytes of a ring are header words at one
        // time and copied payload at another, and the release store that hands a stretch of the
        // ring over, with its acquire load, lies between the two. A peer that breaks this tears
        // words, which are not trusted anyway.
        assert!(offset.is_multiple_of(4) && offset + 4 <= self.len);
        // SAFETY: aligned (the mapping is page aligned) and inside, checked above; mapped as long as
        // `self` lives. Every bit pattern is valid for an atomic, and no reference to data is made.
        unsafe { AtomicU32::from_ptr(self.ptr.add(offset).cast()) }
    }

    /// The word at `offset`, which must be aligned and inside.
    pub(super) fn word64(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && offset + 8 <= self.len);
        // SAFETY: aligned and inside, checked above, and mapped as long as `self` lives; an atomic, as in
        // `word32`.
        unsafe { AtomicU64::from_ptr(self.ptr.add(offset).cast()) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `new` and is unmapped once. A failure would leave it
        // mapped, which is harmless.
        let _ = unsafe { rustix::mm::munmap(self.ptr.cast(), self.len) };
    }
}

/// The address of an abstract name; an empty name lets the kernel choose.
fn address_of(name: &str) -> io::Result<SocketAddrUnix> {
    if name.is_empty() {
        return Ok(SocketAddrUnix::new_unnamed());
    }
    Ok(SocketAddrUnix::new_abstract_name(name.as_bytes())?)
}

fn socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    kept(rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

/// A socket that listens under an abstract name.
pub(super) fn listener(name: &str, backlog: i32) -> io::Result<OwnedFd> {
    let socket = socket()?;
    rustix::net::bind(&socket, &address_of(name)?)?;
    rustix::net::listen(&socket, backlog)?;
    Ok(socket)
}

/// The abstract name that a socket is bound to.
pub(super) fn name_of(socket: BorrowedFd<'_>) -> Option<String> {
    let address = SocketAddrUnix::try_from(rustix::net::getsockname(socket).ok()?).ok()?;
    String::from_utf8(address.abstract_name()?.to_vec()).ok()
}

/// Connects to a listener. `WouldBlock` means that its queue is full.
pub(super) fn connect(name: &str) -> io::Result<OwnedFd> {
    let socket = socket()?;
    if name.is_empty() {
        return Err(io::ErrorKind::AddrNotAvailable.into());
    }
    rustix::net::connect(&socket, &address_of(name)?)?;
    Ok(socket)
}

/// Accepts one connection from a listener.
pub(super) fn accept(listener: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    rustix::net::accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)
}

/// The process that opened the other end, as the kernel reports it. The process id is zero when
/// that process lies outside of this one's PID namespace.
pub(super) fn peer_process(socket: BorrowedFd<'_>) -> Option<PeerProcess> {
    let mut credentials = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to the struct, which is valid for any bytes.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut credentials).cast(),
            &mut len,
        )
    };
    (result == 0).then_some(PeerProcess {
        pid: credentials.pid,
        uid: credentials.uid,
        gid: credentials.gid,
    })
}

/// The supplementary groups of the process that opened the other end. If there are more than the
/// limit, those with the lowest numbers count. None where the kernel reports none.
pub(super) fn peer_groups(socket: BorrowedFd<'_>) -> Vec<u32> {
    /// The same constant on every supported processor (Linux 4.13).
    const SO_PEERGROUPS: libc::c_int = 59;
    let mut groups = vec![0_u32; PEER_GROUPS];
    // A process with more groups needs a second query.
    for _ in 0..2 {
        let mut len = size_of_val(groups.as_slice()) as libc::socklen_t;
        // SAFETY: the kernel writes at most `len` bytes to the list, which is as long.
        let result = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &mut len,
            )
        };
        let count = len as usize / size_of::<u32>();
        if result == 0 {
            if count > PEER_GROUPS_MAX {
                tracing::warn!(
                    "a process of this host has {count} groups; the first {PEER_GROUPS_MAX} count"
                );
            }
            groups.truncate(count.min(PEER_GROUPS_MAX));
            groups.shrink_to_fit();
            return groups;
        }
        if count <= groups.len() || count > PEER_GROUPS_KERNEL_MAX {
            break;
        }
        groups.resize(count, 0);
    }
    Vec::new()
}

/// Sends one packet, with a descriptor if there is one.
pub(super) fn send(
    socket: BorrowedFd<'_>,
    packet: &[u8],
    descriptor: Option<BorrowedFd<'_>>,
) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = descriptor.map(|descriptor| [descriptor]);
    if let Some(descriptors) = &descriptors {
        control.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    rustix::net::sendmsg(socket, &[IoSlice::new(packet)], &mut control, flags).map(|_| ())
}

/// A received packet.
pub(super) struct Packet {
    pub(super) bytes: [u8; PACKET_BYTES_MAX],
    pub(super) len: usize,
    pub(super) descriptor: Option<OwnedFd>,
    /// True if it has more bytes or descriptors than any packet of this protocol.
    pub(super) truncated: bool,
    /// True if a descriptor was lost, most likely because this process has too many.
    pub(super) descriptor_lost: bool,
}

/// Receives one packet. A length of zero means that the peer has closed.
pub(super) fn receive(socket: BorrowedFd<'_>) -> Result<Packet, Errno> {
    match receive_once(socket) {
        // A peer that closes while packets of this side are unread resets the connection. The
        // kernel reports that once, before the packets that the peer sent, such as its reason.
        Err(Errno::CONNRESET) => receive_once(socket),
        other => other,
    }
}

fn receive_once(socket: BorrowedFd<'_>) -> Result<Packet, Errno> {
    let mut packet = Packet {
        bytes: [0; PACKET_BYTES_MAX],
        len: 0,
        descriptor: None,
        truncated: false,
        descriptor_lost: false,
    };
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let message = rustix::net::recvmsg(
        socket,
        &mut [IoSliceMut::new(&mut packet.bytes)],
        &mut control,
        flags,
    )?;
    packet.len = message.bytes;
    packet.truncated = message.flags.contains(ReturnFlags::TRUNC);
    packet.descriptor_lost = message.flags.contains(ReturnFlags::CTRUNC);
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = part {
            for descriptor in descriptors {
                // A second descriptor (alignment leaves room for one) is closed at once.
                packet.truncated |= packet.descriptor.is_some();
                packet.descriptor = Some(
                    kept(descriptor)
                        .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::MFILE))?,
                );
            }
        }
    }
    Ok(packet)
}

/// A second handle to the same descriptor.
pub(super) fn duplicate(descriptor: &impl AsFd) -> io::Result<OwnedFd> {
    kept(descriptor.as_fd().try_clone_to_owned()?)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Runs `work` in a thread of another user: for the kernel, user ids belong to threads.
    pub(in crate::shm) fn as_another_user<T: Send>(work: impl FnOnce() -> T + Send) -> T {
        let user = rustix::process::Uid::from_raw(1234);
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                rustix::thread::set_thread_res_uid(user, user, user).unwrap();
                work()
            });
            thread.join().unwrap()
        })
    }

    #[test]
    fn the_groups_of_a_peer_are_told_up_to_a_bound() {
        let pair = |groups: &[u32]| {
            let groups: Vec<_> =
                groups.iter().copied().map(rustix::thread::Gid::from_raw).collect();
            std::thread::scope(|scope| {
                let thread = scope.spawn(|| {
                    // As user ids, groups belong to threads.
                    rustix::thread::set_thread_groups(&groups).unwrap();
                    let (flags, kind) = (SocketFlags::CLOEXEC, SocketType::SEQPACKET);
                    rustix::net::socketpair(AddressFamily::UNIX, kind, flags, None).unwrap()
                });
                thread.join().unwrap()
            })
        };
        if !rustix::process::geteuid().is_root() {
            println!("SKIPPED: only root can have other groups");
            return;
        }
        for count in [0, 3, PEER_GROUPS + 1, PEER_GROUPS_MAX, PEER_GROUPS_KERNEL_MAX] {
            let groups: Vec<u32> = (5000..5000 + count as u32).collect();
            let told = &groups[..count.min(PEER_GROUPS_MAX)];
            assert_eq!(peer_groups(pair(&groups).0.as_fd()), told);
        }
    }

    #[test]
    fn another_user_with_a_read_only_descriptor_cannot_write() {
        let file = memory_file("mode-test", 4096).unwrap();
        let shown = read_only(file.as_fd()).unwrap();
        let stat = rustix::fs::fstat(&shown).unwrap();
        assert_eq!(Mode::from_raw_mode(stat.st_mode), Mode::RUSR | Mode::WUSR);
        if !rustix::process::geteuid().is_root() {
            println!("SKIPPED the second half: only root can become another user");
            return;
        }
        let path = format!("/proc/self/fd/{}", shown.as_raw_fd());
        let again = as_another_user(|| rustix::fs::open(path, OFlags::RDWR, Mode::empty()));
        assert_eq!(again.err(), Some(Errno::ACCESS));
    }
}
