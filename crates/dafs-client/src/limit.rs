//! How long a thread lets the calls that it makes take.

use dafs_dat::Instant;
use std::cell::Cell;
use std::time::Duration;

thread_local! {
    static LIMIT: Cell<Option<Limit>> = const { Cell::new(None) };
}

/// When the calls of a thread have to be over, and after which time that is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limit {
    pub(crate) at: Instant,
    pub(crate) after: Duration,
}

impl Limit {
    /// That of this thread.
    pub(crate) fn current() -> Option<Self> {
        LIMIT.get()
    }
}

/// Lets all calls that `work` makes on this thread, of whatever client, take no longer than `time` in
/// all. One that is not over by then returns [`Error::NotSent`] if the server has certainly not done
/// it, and [`Error::Deadline`] if it may have, or may yet; the session goes on for others. Within
/// another limit the earlier end counts.
///
/// No operation of a call that has returned can reach memory of the caller's any more; that may cost
/// the connection, see [`Error::Deadline`]. Registered memory over shared memory is the exception to the
/// time: a server of this host whose process is stopped may still reach it, so that such a transfer returns
/// when the session is given up only. What was started without waiting for it, as by
/// [`File::submit_read`], goes on when `work` is over.
///
/// Without this a call waits for as long as [`ConnectOptions::deadline`] says. What was written through
/// the client's cache is written back by that alone, so that a short limit loses no data.
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

/// For what the client does for itself while it happens to have the thread of a caller.
pub(crate) fn without<T>(work: impl FnOnce() -> T) -> T {
    with(None, work)
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
        let caught = std::panic::catch_unwind(|| within(Duration::from_secs(5), || panic!("out")));
        assert!(caught.is_err() && after().is_none());
    }
}
