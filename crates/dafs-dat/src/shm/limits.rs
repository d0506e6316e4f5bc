//! Every limit of the shared-memory provider.

use std::time::Duration;

/// Bytes of one ring by default. Two of them and the two control pages make 40 KiB, which is what
/// an idle connection costs at most once every page of it has been used.
pub(super) const RING_BYTES_DEFAULT: u32 = 16 << 10;

/// The smallest ring, in bytes: one page, so that a mapping is whole pages.
pub(super) const RING_BYTES_MIN: u32 = 4 << 10;

/// The largest ring that the accepting side maps for a peer, in bytes.
pub(super) const RING_BYTES_MAX: u32 = 1 << 20;

/// Connections of one adapter, set-up included, by default.
pub(super) const CONNECTIONS_MAX_DEFAULT: usize = 4096;

/// Incoming connections of one adapter that are not yet accepted, by default.
pub(super) const PENDING_MAX_DEFAULT: usize = 1024;

/// How long a peer may take for its part of the set-up, by default.
pub(super) const HANDSHAKE_TIMEOUT_DEFAULT: Duration = Duration::from_secs(5);

/// How long an orderly close waits for the peer to take what was sent.
pub(super) const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// How long to wait before connecting again to a listener whose queue is full.
pub(super) const BACKLOG_RETRY: Duration = Duration::from_millis(2);

/// How long a listener rests after the process ran out of descriptors.
pub(super) const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How long to try that. Whose the listener is cannot be asked before, and anybody may have the name.
pub(super) const BACKLOG_TIMEOUT: Duration = Duration::from_secs(1);

/// Length of the queue of a listening socket.
pub(super) const BACKLOG: i32 = 4096;

/// Incoming connections taken in one poll.
pub(super) const ACCEPTS_PER_POLL: usize = 64;

/// The longest packet on the control socket, in bytes.
pub(super) const PACKET_BYTES_MAX: usize = 256;

/// Packets taken from one control socket in one poll.
pub(super) const PACKETS_PER_POLL: usize = 32;

/// Control packets that wait for room in a socket. A region too many is served by the slow path.
pub(super) const PACKETS_QUEUED_MAX: usize = 4096;

/// Records taken from one ring in one poll, so that no connection starves the others.
pub(super) const RECORDS_PER_POLL: usize = 64;

/// Staged reads that one side may have outstanding at the other.
pub(super) const READS_OUTSTANDING_MAX: usize = 64;

/// Sends, writes and reads of one connection that wait for room.
pub(super) const QUEUED_WORK_MAX: usize = 1 << 16;

/// Receives posted on one connection.
pub(super) const RECEIVES_MAX: usize = 1 << 16;

/// Regions that one side shows to the other directly; they have to fit the key slots of a page.
pub(super) const KEY_SLOTS: usize = 896;

/// Mappings that the kernel allows a process (`vm.max_map_count` as it comes). Beyond them nothing
/// can be mapped any more, not even memory for the allocator or a thread, so what peers drive is
/// kept to a part of them that all adapters of the process share.
const PROCESS_MAPPINGS: usize = 65_530;

/// Regions of peers that this process keeps mapped, windows to them included.
pub(super) const PEER_MAPPINGS_MAX: usize = PROCESS_MAPPINGS / 4;

/// Connections, each a mapping, that this process has at a time.
pub(super) const CONNECTION_MAPPINGS_MAX: usize = PROCESS_MAPPINGS / 2;

/// Bytes of one peer's regions that are mapped: more than all credits of a session can name at a
/// time (256 of 4 MiB), since pages that this process touches first are charged to it.
pub(super) const PEER_MAPPED_BYTES_MAX: usize = 2 << 30;

/// Shareable buffers of one adapter by default; each costs a file descriptor while it lives.
pub(super) const ARENAS_MAX_DEFAULT: usize = 1024;

/// Polls between two looks at the sockets while rings are busy.
pub(super) const POLLS_PER_LOOK: u32 = 128;

/// Sockets that one look takes care of.
pub(super) const REPORTS_PER_LOOK: usize = 64;

/// Time between two looks at the sockets, for callers who do much between two polls.
pub(super) const LOOK_INTERVAL: Duration = Duration::from_micros(20);

/// Polls without traffic after which a connection is no longer scanned.
pub(super) const IDLE_POLLS: u32 = 4096;

/// Polls without traffic after which a connection is not scanned again after a sleep.
pub(super) const IDLE_POLLS_AT_SLEEP: u32 = 64;

/// Connections that are always scanned while the adapter is awake, however idle.
pub(super) const BUSY_MIN: usize = 16;

const _: () = {
    assert!(RING_BYTES_MIN.is_power_of_two() && RING_BYTES_MAX.is_power_of_two());
    assert!(RING_BYTES_DEFAULT.is_power_of_two() && RING_BYTES_DEFAULT >= RING_BYTES_MIN);
    assert!(KEY_SLOTS * 4 + 512 <= 4096);
};

/// Supplementary groups of a peer that the kernel is asked for first, and the most that it has (`NGROUPS_MAX`).
pub(super) const PEER_GROUPS: usize = 32;
pub(super) const PEER_GROUPS_KERNEL_MAX: usize = 65_536;

/// Supplementary groups of a peer that count: a server sets them for each operation.
pub(super) const PEER_GROUPS_MAX: usize = 1024;
