//! Every limit of the shared-memory provider.

use std::time::Duration;

/// Bytes of one ring by default. Two of them and the two control pages make 40 KiB, the most that
/// an idle connection costs once all its pages have been used.
pub(super) const RING_BYTES_DEFAULT: u32 = 16 << 10;

/// The smallest ring, in bytes: one page, so that a mapping is whole pages.
pub(super) const RING_BYTES_MIN: u32 = 4 << 10;

/// The largest ring that the accepting side maps for a peer, in bytes.
pub(super) const RING_BYTES_MAX: u32 = 1 << 20;

/// Connections of one adapter, set-up included, by default.
pub(super) const CONNECTIONS_MAX_DEFAULT: usize = 4096;

/// Incoming connections of one adapter that are not yet accepted, by default.
pub(super) const PENDING_MAX_DEFAULT: usize = 1024;

/// Timeout for a peer's part of the set-up, by default.
pub(super) const HANDSHAKE_TIMEOUT_DEFAULT: Duration = Duration::from_secs(5);

/// Timeout of a graceful close, for the peer to take sent records.
pub(super) const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// Delay before a retry of a connect to a listener whose queue is full.
pub(super) const BACKLOG_RETRY: Duration = Duration::from_millis(2);

/// Pause of a listener after the process ran out of file descriptors.
pub(super) const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Timeout of these retries. The owner of the listener is unknown until then, and any user may have
/// bound the name.
pub(super) const BACKLOG_TIMEOUT: Duration = Duration::from_secs(1);

/// Length of the queue of a listening socket.
pub(super) const BACKLOG: i32 = 4096;

/// Incoming connections taken in one poll.
pub(super) const ACCEPTS_PER_POLL: usize = 64;

/// The longest packet on the control socket, in bytes.
pub(super) const PACKET_BYTES_MAX: usize = 256;

/// Packets taken from one control socket in one poll.
pub(super) const PACKETS_PER_POLL: usize = 32;

/// Control packets that wait for room in a socket. A further region takes the slow path.
pub(super) const PACKETS_QUEUED_MAX: usize = 4096;

/// Records taken from one ring in one poll, so that no connection starves the others.
pub(super) const RECORDS_PER_POLL: usize = 64;

/// Staged reads that one side may have outstanding at the other.
pub(super) const READS_OUTSTANDING_MAX: usize = 64;

/// Sends, writes and reads of one connection that wait for room.
pub(super) const QUEUED_WORK_MAX: usize = 1 << 16;

/// Receives posted on one connection.
pub(super) const RECEIVES_MAX: usize = 1 << 16;

/// Regions that one side shares with the other directly; they must fit the key slots of a page.
pub(super) const KEY_SLOTS: usize = 896;

/// Mappings that the kernel allows a process (default `vm.max_map_count`). Beyond them no mapping
/// succeeds, not even one for the allocator or a thread. So peers may only cause a part of them,
/// which all adapters of the process share.
const PROCESS_MAPPINGS: usize = 65_530;

/// Regions of peers that this process keeps mapped, including windows to them.
pub(super) const PEER_MAPPINGS_MAX: usize = PROCESS_MAPPINGS / 4;

/// Connections of this process at a time, each of them a mapping.
pub(super) const CONNECTION_MAPPINGS_MAX: usize = PROCESS_MAPPINGS / 2;

/// Mapped bytes of one peer's regions. The limit exceeds the range that all credits of a session
/// can name at a time (256 of 4 MiB). Pages that this process touches first are charged to it.
pub(super) const PEER_MAPPED_BYTES_MAX: usize = 2 << 30;

/// Shareable buffers of one adapter by default; each costs a file descriptor while it lives.
pub(super) const ARENAS_MAX_DEFAULT: usize = 1024;

/// Polls between two checks of the sockets while rings are busy.
pub(super) const POLLS_PER_LOOK: u32 = 128;

/// Sockets handled in one check.
pub(super) const REPORTS_PER_LOOK: usize = 64;

/// Time between two checks of the sockets, for callers with much work between two polls.
pub(super) const LOOK_INTERVAL: Duration = Duration::from_micros(20);

/// Polls without traffic after which a connection is no longer scanned.
pub(super) const IDLE_POLLS: u32 = 4096;

/// Polls without traffic after which a connection is not scanned again after a sleep.
pub(super) const IDLE_POLLS_AT_SLEEP: u32 = 64;

/// Connections that are always scanned while the adapter is awake, even if idle.
pub(super) const BUSY_MIN: usize = 16;

const _: () = {
    assert!(RING_BYTES_MIN.is_power_of_two() && RING_BYTES_MAX.is_power_of_two());
    assert!(RING_BYTES_DEFAULT.is_power_of_two() && RING_BYTES_DEFAULT >= RING_BYTES_MIN);
    assert!(KEY_SLOTS * 4 + 512 <= 4096);
};

/// Supplementary groups of a peer in the first query of the kernel; below, the kernel's limit
/// (`NGROUPS_MAX`).
pub(super) const PEER_GROUPS: usize = 32;
pub(super) const PEER_GROUPS_KERNEL_MAX: usize = 65_536;

/// Supplementary groups of a peer that count, because a server sets them for each operation.
pub(super) const PEER_GROUPS_MAX: usize = 1024;
