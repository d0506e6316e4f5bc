//! The sizes and times of a world.

use std::time::Duration;

/// The server's host number.
pub(crate) const SERVER_HOST: u32 = 1;

/// The host of the final audit's session.
pub(crate) const AUDITOR_HOST: u32 = 1000;

/// The host of the first client; the others follow.
pub(crate) const FIRST_CLIENT_HOST: u32 = 10;

/// Files that every client uses.
pub(crate) const SHARED_FILES: usize = 3;

/// Names in a client's own top directory; small, so that they collide.
pub(crate) const TOP_NAMES: u64 = 7;

/// Names in a directory below it.
pub(crate) const INNER_NAMES: u64 = 4;

/// Most concurrent transfers of a session with a buffer of their own.
pub(crate) const SLOTS: usize = 8;

/// Bytes of one such buffer.
pub(crate) const SLOT_BYTES: usize = 24 << 10;

/// Bytes of the one large buffer; more than one staging chunk of the server.
pub(crate) const LARGE_SLOT_BYTES: usize = 300 << 10;

/// Offsets of ordinary transfers stay below this.
pub(crate) const OFFSET_MAX: u64 = 64 << 10;

/// The same in worlds of small files, so that these are not longer most of the time.
pub(crate) const SMALL_OFFSET_MAX: u64 = 32 << 10;

/// Memory in which a server shows blocks of files: in most worlds, and in those where it is scarce.
pub(crate) const EXPOSED_BYTES: usize = 4 << 20;
pub(crate) const EXPOSED_BYTES_TIGHT: usize = 1 << 20;

/// The first blocks of a file, which optimistic reads are about.
pub(crate) const OPTIMISTIC_BLOCKS: u64 = 6;

/// Optimistic reads among the operations of a client, in a million.
pub(crate) const OPTIMISTIC_PPM: u32 = 600_000;

/// Steps of 10 microseconds that a server runs between two steps of a reader, at most.
pub(crate) const SERVE_STEPS_MAX: u64 = 300;

/// The interval at which a server looks for changes that bypass it.
pub(crate) const LOOK_INTERVAL: Duration = Duration::from_millis(200);

/// The lease period of the simulated server. It is short, so that leases do expire.
pub(crate) const LEASE: Duration = Duration::from_secs(6);

/// Memory regions that an idle server may keep: its pools of replies and staging chunks.
pub(crate) const SERVER_REGIONS_MAX: usize = 4;

/// The simulated time after which a world starts no more operations.
pub(crate) const WORLD_TIME_MAX: Duration = Duration::from_secs(600);

/// The simulated time that a calm world may take to come to rest.
pub(crate) const REST_TIME_MAX: Duration = Duration::from_secs(300);

/// Most steps of one world. More mean a livelock.
pub(crate) const STEPS_MAX: u64 = 2_000_000;

/// Most steps without progress of time. More mean a busy loop.
pub(crate) const STILL_STEPS_MAX: u64 = 10_000;
