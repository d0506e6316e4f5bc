//! Every bound of the control connection, in one place.

use dafs_dat::connections::ConnectionLimits;
use std::time::Duration;

/// How long a data server believes what it was told of a state-id, from when it asked.
pub const STATE_BELIEF: Duration = Duration::from_secs(5);

/// When a metadata server is sure that a data server that it cannot reach believes nothing any more:
/// so long after the data server's last question. More than [`STATE_BELIEF`], because clocks run
/// differently and a use that was begun in time takes its time.
pub const STATE_BELIEF_OVER: Duration = Duration::from_secs(8);

/// State-ids that a data server remembers answers about.
pub(crate) const BELIEFS_MAX: usize = 1 << 16;

/// How often a data server asks about one use when what it hears is out of date at once.
pub(crate) const ASKS_MAX: u32 = 3;

/// Calls of one side that may be without an answer. Whoever sends more loses the connection.
pub(crate) const CALLS_MAX: usize = 32;

/// Threads of a connection that carry out what the peer asks for.
pub(crate) const WORKERS: usize = 4;

/// Of these, those that may wait for other data servers at once: the others' devices do not keep anybody
/// from a question about a file.
pub(crate) const SLOW_WORKERS: usize = WORKERS - 1;

/// How long a metadata server waits for an answer; devices may take their time.
pub(crate) const CALL_TIME: Duration = Duration::from_secs(60);

/// Requests of clients that wait for one data server at once, on their way through the metadata server.
pub(crate) const NODE_CALLS_MAX: usize = 8;

/// Requests of clients at a data server that wait for bytes of others at once.
pub(crate) const ELSEWHERE_MAX: usize = 4;

/// How long one more waits for its turn, and how long those before it may be without an answer.
pub(crate) const TURN_TIME: Duration = Duration::from_secs(1);

/// A data server that answers none of as many requests as may wait for it for so long is stuck.
pub(crate) const STUCK_TIME: Duration = Duration::from_secs(10);

/// How long a data server waits for an answer that takes no device.
pub(crate) const ASK_TIME: Duration = Duration::from_secs(10);

/// A peer says something at least so often.
pub(crate) const ALIVE_INTERVAL: Duration = Duration::from_secs(1);

/// A peer that was silent for so long, or took nothing for so long, is gone.
pub(crate) const SILENCE_MAX: Duration = Duration::from_secs(4);

/// How long it may take until both know each other.
pub(crate) const HELLO_TIME: Duration = Duration::from_secs(5);

/// Peers that are getting to know a data server at once, and those of them from one address; with one
/// more the first of the address with most of them is cut off.
pub(crate) const HELLOS: ConnectionLimits = ConnectionLimits { total: 16, per_address: 8 };

/// How long a data server waits for the end of what the last metadata server asked for, and then for
/// that of what clients were doing, before it turns the next one away.
pub(crate) const DRAIN_TIME: Duration = Duration::from_secs(2);

/// How long a metadata server waits before it connects again: at first, and at most.
pub(crate) const RECONNECT_MIN: Duration = Duration::from_millis(100);
/// See [`RECONNECT_MIN`].
pub(crate) const RECONNECT_MAX: Duration = Duration::from_secs(2);

const _: () = assert!(STATE_BELIEF.as_millis() * 3 / 2 <= STATE_BELIEF_OVER.as_millis());
const _: () = assert!(ALIVE_INTERVAL.as_millis() * 2 <= SILENCE_MAX.as_millis());
const _: () = assert!(DRAIN_TIME.as_millis() * 2 < HELLO_TIME.as_millis());
const _: () = assert!(TURN_TIME.as_millis() < STUCK_TIME.as_millis());
const _: () = assert!(STUCK_TIME.as_millis() < CALL_TIME.as_millis());
const _: () = assert!(ASK_TIME.as_millis() < CALL_TIME.as_millis());

/// The longest file with the mark of a directory.
pub(crate) const MARK_BYTES_MAX: usize = 512;
