//! Every bound of the control connection, in one place.

use dafs_dat::connections::ConnectionLimits;
use dafs_store::node::DIGEST_BYTES_MAX;
use dafs_wire::cluster::DATA_BYTES_MAX;
use std::time::Duration;

/// How long a data server caches an authorisation, from the time of its question.
pub const GRANT_TTL: Duration = Duration::from_secs(5);

/// How long after a data server's last question the metadata server counts all its cached
/// authorisations as expired, if it cannot reach it. This is more than [`GRANT_TTL`], because
/// clocks run at different speeds and a use that was begun in time takes some time.
pub const GRANT_TTL_MAX: Duration = Duration::from_secs(8);

/// Authorisations that a data server caches.
pub(crate) const GRANTS_MAX: usize = 1 << 16;

/// How often a data server asks about one use when the answer is out of date at once.
pub(crate) const ASKS_MAX: u32 = 3;

/// Unanswered calls of one side. A side that sends more loses the connection.
pub(crate) const CALLS_MAX: usize = 32;

/// Threads of a connection that execute the peer's calls.
pub(crate) const WORKERS: usize = 4;

/// Those of them that may wait for other data servers at once. So a slow device of another node
/// does not delay a question about a file.
pub(crate) const SLOW_WORKERS: usize = WORKERS - 1;

/// How long a metadata server waits for an answer, which may need a device.
pub(crate) const CALL_TIME: Duration = Duration::from_secs(60);

/// How long a question for the space of a data server waits for the first answer to another one. A node
/// without an answer counts as one like the others.
pub(crate) const SPACE_TIME: Duration = Duration::from_secs(1);

/// Requests of clients that wait for one data server at once, through the metadata server.
pub(crate) const NODE_CALLS_MAX: usize = 8;

/// Requests of clients at a data server that wait at once for bytes on other nodes.
pub(crate) const ELSEWHERE_MAX: usize = 4;

/// How long a further request waits for its turn, and how long those before it may be unanswered.
pub(crate) const TURN_TIME: Duration = Duration::from_secs(1);

/// Advice that a data server may have unanswered, and the time that more waits before it is ignored.
pub(crate) const ADVICE_CALLS_MAX: usize = 2;
pub(crate) const ADVICE_TURN_TIME: Duration = Duration::from_millis(200);

/// A data server that answers none of its requests for so long, while the most requests wait for
/// it, counts as stuck.
pub(crate) const STUCK_TIME: Duration = Duration::from_secs(10);

/// How long a data server waits for an answer that needs no device.
pub(crate) const ASK_TIME: Duration = Duration::from_secs(10);

/// The longest interval between two messages of a peer.
pub(crate) const ALIVE_INTERVAL: Duration = Duration::from_secs(1);

/// A peer that has sent or accepted no data for so long is gone.
pub(crate) const SILENCE_MAX: Duration = Duration::from_secs(4);

/// The time limit of the handshake.
pub(crate) const HELLO_TIME: Duration = Duration::from_secs(5);

/// Records of TLS that are sealed for one call of the socket, and for which there is a receive
/// buffer.
pub(crate) const SEND_RECORDS: usize = 4;
/// See [`SEND_RECORDS`].
pub(crate) const RECEIVE_RECORDS: usize = 4;

/// How long calls are held up before a connection with spent keys is replaced, while earlier ones are
/// under way.
pub(crate) const RENEWAL_HOLD: Duration = Duration::from_secs(1);

/// Peers that are in the handshake at once, in total and from one address. When one more comes, the
/// oldest is closed, of the address with most of them.
pub(crate) const HELLOS: ConnectionLimits = ConnectionLimits { total: 16, per_address: 8 };

/// How long a data server waits for the end of the last metadata server's requests, and then for
/// that of clients' uses, before it refuses the next one.
pub(crate) const DRAIN_TIME: Duration = Duration::from_secs(2);

/// How long a data server leaves a connection to the metadata server that was made by a secret which it does not
/// accept any more. The metadata server replaces it without an interruption.
pub(crate) const LINK_CHANGE_TIME: Duration = Duration::from_secs(60);

/// How long a metadata server waits before it connects again: the least, and the most.
pub(crate) const RECONNECT_MIN: Duration = Duration::from_millis(100);
/// See [`RECONNECT_MIN`].
pub(crate) const RECONNECT_MAX: Duration = Duration::from_secs(2);

const _: () = assert!(GRANT_TTL.as_millis() * 3 / 2 <= GRANT_TTL_MAX.as_millis());
const _: () = assert!(ALIVE_INTERVAL.as_millis() * 2 <= SILENCE_MAX.as_millis());
const _: () = assert!(DRAIN_TIME.as_millis() * 2 < HELLO_TIME.as_millis());
const _: () = assert!(TURN_TIME.as_millis() < STUCK_TIME.as_millis());
const _: () = assert!(STUCK_TIME.as_millis() < CALL_TIME.as_millis());
const _: () = assert!(DIGEST_BYTES_MAX <= DATA_BYTES_MAX);
const _: () = assert!(ASK_TIME.as_millis() < CALL_TIME.as_millis());

/// The longest file with a directory's mark.
pub(crate) const MARK_BYTES_MAX: usize = 512;
