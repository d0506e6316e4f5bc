//! Host name resolution that takes no longer than the caller waits.
//!
//! Invariants
//! * The system's resolver has no timeout, so it runs on a thread of its own. A thread without a
//!   waiter ends by itself. There are at most [`LOOKUPS_MAX`] of these threads; a further caller
//!   waits until one of them ends.
//! * The threads of a process are not counted in its forks, where they do not exist.

use crate::limit;
use crate::limits::LOOKUPS_MAX;
use dafs_dat::Instant;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

/// The number of lookups under way in the lower half, the process that counts them in the upper
/// half.
static LOOKUPS: AtomicU64 = AtomicU64::new(0);

/// The interval at which a caller looks whether a thread has ended.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// The reason why there are no addresses.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Unresolved {
    /// The error in words.
    Failed(String),
    /// The caller wants no further attempts.
    Stopped,
}

/// The addresses of a host, of which there is at least one.
pub(crate) fn addresses(
    host: &str,
    port: u16,
    until: Instant,
) -> Result<Vec<SocketAddr>, Unresolved> {
    if let Ok(address) = host.parse::<IpAddr>() {
        return Ok(vec![(address, port).into()]);
    }
    let host = host.to_owned();
    look_up(until, move || (host.as_str(), port).to_socket_addrs().map(Iterator::collect))
}

/// One of the threads, until it ends.
struct Lookup;

impl Lookup {
    fn begin() -> Option<Self> {
        let process = u64::from(std::process::id()) << 32;
        let one_more = |lookups: u64| {
            let count = if lookups >> 32 == process >> 32 { lookups & 0xffff_ffff } else { 0 };
            (count < LOOKUPS_MAX as u64).then_some(process | (count + 1))
        };
        let begun = LOOKUPS.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more);
        begun.is_ok().then_some(Self)
    }

    /// Waits until there is room for a lookup.
    fn begin_until(until: Instant) -> Result<Self, Unresolved> {
        loop {
            if let Some(lookup) = Self::begin() {
                return Ok(lookup);
            }
            let left = until.since(Instant::now());
            if left.is_zero() {
                let why = "too many host names are being looked up, and no answer comes";
                return Err(Unresolved::Failed(why.to_owned()));
            }
            if limit::is_stopped_in(left.min(LOOK_AGAIN), std::thread::sleep) {
                return Err(Unresolved::Stopped);
            }
        }
    }
}

impl Drop for Lookup {
    fn drop(&mut self) {
        // It was begun in this process: threads do not live on in a fork.
        LOOKUPS.fetch_sub(1, Ordering::Relaxed);
    }
}

fn look_up(
    until: Instant,
    resolver: impl FnOnce() -> std::io::Result<Vec<SocketAddr>> + Send + 'static,
) -> Result<Vec<SocketAddr>, Unresolved> {
    let failed = |why: &dyn std::fmt::Display| Unresolved::Failed(why.to_string());
    let lookup = Lookup::begin_until(until)?;
    let (tell, told) = sync_channel(1);
    let thread = std::thread::Builder::new().name("dafs-resolver".into());
    thread
        .spawn(move || {
            let _lookup = lookup;
            // The caller may have gone.
            let _ = tell.send(resolver());
        })
        .map_err(|error| failed(&error))?;
    loop {
        let now = Instant::now();
        if now >= until {
            return Err(failed(&"the resolver of this host does not answer; check the host name"));
        }
        let mut answer = Err(RecvTimeoutError::Timeout);
        let wait = |time: Duration| answer = told.recv_timeout(time);
        let is_stopped = limit::is_stopped_in(until.since(now), wait);
        return match answer {
            Ok(Ok(found)) if found.is_empty() => Err(failed(&"the host name has no address")),
            Ok(Ok(found)) => Ok(found),
            Ok(Err(error)) => Err(failed(&format_args!("{error}; check the host name"))),
            Err(RecvTimeoutError::Disconnected) => {
                Err(failed(&"the host name cannot be looked up"))
            }
            Err(RecvTimeoutError::Timeout) if is_stopped => Err(Unresolved::Stopped),
            Err(RecvTimeoutError::Timeout) => continue,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A resolver that blocks until the sender is dropped.
    fn silent() -> (std::sync::mpsc::Sender<()>, impl FnOnce() -> std::io::Result<Vec<SocketAddr>>)
    {
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let resolver = move || {
            let _ = ended.recv();
            Ok(Vec::new())
        };
        (end, resolver)
    }

    #[test]
    fn a_resolver_that_does_not_answer_keeps_nobody_longer_than_wanted() {
        let (_end, resolver) = silent();
        let until = Instant::now() + Duration::from_millis(50);
        let Err(Unresolved::Failed(why)) = look_up(until, resolver) else {
            panic!("nobody has answered")
        };
        assert!(why.contains("does not answer"), "{why}");
    }

    #[test]
    fn a_stopped_caller_does_not_wait_for_the_resolver() {
        let (_end, resolver) = silent();
        let until = Instant::now() + Duration::from_secs(3600);
        let found = limit::interruptible(|| true, || look_up(until, resolver));
        assert_eq!(found, Err(Unresolved::Stopped));
    }

    #[test]
    fn many_at_once_are_all_answered() {
        let all = LOOKUPS_MAX + 36;
        let barrier = std::sync::Barrier::new(all);
        let address: SocketAddr = "192.0.2.1:7".parse().unwrap();
        crate::served::in_threads(all, |_| {
            barrier.wait();
            let until = Instant::now() + Duration::from_secs(60);
            let found = look_up(until, move || {
                std::thread::sleep(Duration::from_millis(50));
                Ok(vec![address])
            });
            assert_eq!(found, Ok(vec![address]));
        });
    }

    #[test]
    fn names_and_addresses_are_found() {
        let until = Instant::now() + Duration::from_secs(60);
        let found = |host: &str| addresses(host, 7, until).unwrap();
        assert_eq!(found("127.0.0.1"), ["127.0.0.1:7".parse().unwrap()]);
        assert_eq!(found("::1"), ["[::1]:7".parse().unwrap()]);
        assert!(found("localhost").iter().all(|address| address.ip().is_loopback()));
        assert!(matches!(addresses("no such host", 7, until), Err(Unresolved::Failed(_))));
    }
}
