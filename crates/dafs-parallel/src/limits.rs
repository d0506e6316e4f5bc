//! Bounds of clients that go to data servers.

use std::time::Duration;

/// What is read or written of a file through the server before its layout is asked for, in bytes: a
/// small file is done with by then.
pub const LAYOUT_THRESHOLD_BYTES: u64 = 64 << 10;

/// After this time a layout is asked for again that was given back on demand, or could not be had just then.
pub const LAYOUT_PAUSE_SHORT: Duration = Duration::from_millis(500);

/// After this time a layout is asked for again that the server does not have, or that is of no use.
pub const LAYOUT_PAUSE_LONG: Duration = Duration::from_secs(30);

/// The shortest stripes that are worth a request each, in bytes.
pub const STRIPE_BYTES_MIN: u64 = 4 << 10;

/// Data servers that a client keeps connections to; files on further ones are used through the server.
pub const DATA_SERVERS_MAX: usize = 256;

/// A data server that could not be reached is tried again after this time, and after twice as long each
/// time, up to the second one.
pub const NODE_PAUSE_MIN: Duration = Duration::from_secs(1);
/// The longest time that a data server is left alone.
pub const NODE_PAUSE_MAX: Duration = Duration::from_secs(60);

/// How long connecting to a data server may take: there is another way.
pub const NODE_CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long an answer of a data server may take.
pub const NODE_ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

const _: () = assert!(LAYOUT_PAUSE_SHORT.as_millis() <= LAYOUT_PAUSE_LONG.as_millis());
const _: () = assert!(NODE_PAUSE_MIN.as_millis() <= NODE_PAUSE_MAX.as_millis());
