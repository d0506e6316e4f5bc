//! Timeouts and interruption of the calls that a thread makes.

use crate::limits::STOP_PERIOD;
use dafs_dat::Instant;
use std::cell::Cell;
use std::time::Duration;

thread_local! {
    static LIMIT: Cell<Option<Limit>> = const { Cell::new(None) };
    static STOP: Cell<Option<Stop>> = const { Cell::new(None) };
}

/// A callback that may interrupt the calls of a thread.
#[derive(Debug, Clone, Copy)]
struct Stop {
    ask: fn() -> bool,
    /// When the callback first asked to stop.
    said: Option<Instant>,
}

/// The time at which the calls of a thread must be over, and the timeout that it came from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limit {
    pub(crate) at: Instant,
    pub(crate) after: Duration,
}

impl Limit {
    /// The limit of this thread.
    pub(crate) fn current() -> Option<Self> {
        match STOP.get() {
            Some(Stop { said: Some(at), .. }) => Some(Self { at, after: Duration::ZERO }),
            _ => LIMIT.get(),
        }
    }
}

/// Limits all calls that `work` makes on this thread, of any client, to `time` in all. A call that
/// is not over by then returns [`Error::NotSent`] if the server has certainly not done it, and
/// [`Error::Deadline`] if it may have, or may yet; the session goes on for others. Within another
/// limit the earlier end counts.
///
/// After a call has returned, none of its operations can reach memory of the caller's any more;
/// that may cost the connection, see [`Error::Deadline`]. Operations that were started without
/// waiting, as by [`File::submit_read`], go on when `work` is over.
///
/// Two kinds of transfers may take longer than `time`. Over shared memory a server of this host
/// whose process is stopped may still reach a registered buffer, so that such a transfer returns
/// only when the session is given up.
///
/// The client also completes the rest of transfers at data servers when a file is closed, or when a
/// data server fails, as [`ConnectOptions::deadline`] says.
///
/// Without this a call waits for as long as [`ConnectOptions::deadline`] says. That deadline alone
/// limits the write-back of the client's cache, so that a short limit loses no data.
///
/// ```no_run
/// # let url = dafs_client::DafsUrl::parse("dafs://server/")?;
/// # let client = dafs_client::Client::connect(&url, &Default::default())?;
/// use std::time::Duration;
/// let found = dafs_client::within(Duration::from_secs(1), || client.read_file(b"/file", 4096));
/// # Ok::<(), dafs_client::Error>(())
/// ```
///
/// [`ConnectOptions::deadline`]: crate::ConnectOptions::deadline
/// [`Error::Deadline`]: crate::Error::Deadline
/// [`Error::NotSent`]: crate::Error::NotSent
/// [`File::submit_read`]: crate::File::submit_read
pub fn within<T>(time: Duration, work: impl FnOnce() -> T) -> T {
    let new = Limit { at: Instant::now() + time, after: time };
    let limit = LIMIT.get().filter(|outer| outer.at <= new.at).unwrap_or(new);
    with(Some(limit), work)
}

/// Lets the calls that `work` makes on this thread be interrupted. While one waits, the client
/// calls `stop` several times a second, without a lock of its own. Once `stop` returns true, this
/// call and all that follow in `work` end as if the time of [`within`] was over. It is for programs
/// whose users may interrupt them.
///
/// Only waiting for a server is interrupted. A call that waits for the cache's write-back ends with
/// that. A call that asks for the layout of a file, or commits one, does so first.
pub fn interruptible<T>(stop: fn() -> bool, work: impl FnOnce() -> T) -> T {
    stoppable(Some(Stop { ask: stop, said: None }), work)
}

/// True when calls of this thread can be interrupted, and have not been yet.
pub(crate) fn can_be_stopped() -> bool {
    matches!(STOP.get(), Some(Stop { said: None, .. }))
}

/// Asks the callback whether this thread's calls are to stop. No lock may be held.
pub(crate) fn is_stopped() -> bool {
    let Some(stop) = STOP.get() else { return false };
    if stop.said.is_some() {
        return true;
    }
    // The callback may make calls itself.
    let said = stoppable(None, stop.ask).then(Instant::now);
    STOP.set(Some(Stop { said, ..stop }));
    said.is_some()
}

/// Runs work during which the callback is not called. Work that was interrupted before stays so.
pub(crate) fn unstopped<T>(work: impl FnOnce() -> T) -> T {
    match can_be_stopped() {
        true => stoppable(None, work),
        false => work(),
    }
}

/// True when the calls of this thread have no time left.
pub(crate) fn is_over() -> bool {
    Limit::current().is_some_and(|limit| limit.at <= Instant::now())
}

/// Sleeps for up to `time`, which is long, and asks the callback meanwhile; true if it is to stop.
pub(crate) fn is_stopped_in(time: Duration, sleep: impl FnOnce(Duration)) -> bool {
    match STOP.get() {
        None => {
            sleep(time);
            false
        }
        Some(Stop { said: Some(_), .. }) => true,
        Some(Stop { said: None, .. }) => {
            sleep(time.min(STOP_PERIOD));
            is_stopped()
        }
    }
}

/// Runs internal work of the client on a caller's thread, without the caller's limit.
pub(crate) fn without<T>(work: impl FnOnce() -> T) -> T {
    stoppable(None, || with(None, work))
}

fn stoppable<T>(stop: Option<Stop>, work: impl FnOnce() -> T) -> T {
    struct Back(Option<Stop>);
    impl Drop for Back {
        fn drop(&mut self) {
            STOP.set(self.0);
        }
    }
    let _back = Back(STOP.replace(stop));
    work()
}

fn with<T>(limit: Option<Limit>, work: impl FnOnce() -> T) -> T {
    struct Back(Option<Limit>);
    impl Drop for Back {
        fn drop(&mut self) {
            LIMIT.set(self.0);
        }
    }
    let _back = Back(LIMIT.replace(limit));
    work()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_earlier_end_counts_and_the_outer_limit_comes_back() {
        let after = || Limit::current().map(|limit| limit.after.as_secs());
        assert_eq!(after(), None);
        within(Duration::from_secs(5), || {
            assert_eq!(within(Duration::from_secs(9), after), Some(5));
            assert_eq!(within(Duration::from_secs(1), after), Some(1));
            assert_eq!(without(after), None);
            assert_eq!(after(), Some(5));
        });
        interruptible(
            || true,
            || {
                assert_eq!(after(), None);
                assert!(unstopped(|| !is_stopped()));
                assert!(without(|| !is_stopped()) && is_stopped() && is_stopped());
                assert!(unstopped(is_stopped), "it has been said");
                assert_eq!(after(), Some(0));
                assert_eq!(without(after), None);
                // The interruption holds for all that follows.
                assert!(is_stopped_in(Duration::MAX, |_| panic!("asleep")));
            },
        );
        assert!(after().is_none() && !is_stopped());
        let caught = std::panic::catch_unwind(|| within(Duration::from_secs(5), || panic!("out")));
        assert!(caught.is_err() && after().is_none());
    }
}
