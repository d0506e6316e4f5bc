//! Bounds of clients that use data servers.

use std::time::Duration;

/// Bytes of a file that are read or written through the server before its layout is requested: a
/// small file needs none.
pub const LAYOUT_THRESHOLD_BYTES: u64 = 64 << 10;

/// Time before a retry of LAYOUTGET, after a recalled layout was returned or LAYOUTGET failed
/// temporarily.
pub const LAYOUT_PAUSE_SHORT: Duration = Duration::from_millis(500);

/// Time before a retry of LAYOUTGET, if the server has no layout or its layout is useless.
pub const LAYOUT_PAUSE_LONG: Duration = Duration::from_secs(30);

/// The shortest stripes that are worth a request each, in bytes.
pub const STRIPE_BYTES_MIN: u64 = 4 << 10;

/// Most data servers with a connection; files on further ones are used through the server.
pub const DATA_SERVERS_MAX: usize = 256;

/// First backoff of an unreachable data server. It doubles with each failure, up to the second
/// limit.
pub const NODE_PAUSE_MIN: Duration = Duration::from_secs(1);
/// The longest backoff of a data server.
pub const NODE_PAUSE_MAX: Duration = Duration::from_secs(60);

/// Timeout of connecting to a data server: the path through the server still works.
pub const NODE_CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Timeout of a data server's answer.
pub const NODE_ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

const _: () = assert!(LAYOUT_PAUSE_SHORT.as_millis() <= LAYOUT_PAUSE_LONG.as_millis());
const _: () = assert!(NODE_PAUSE_MIN.as_millis() <= NODE_PAUSE_MAX.as_millis());
