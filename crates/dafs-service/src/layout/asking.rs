//! The threads that ask a store about its files now, of which there are few.
//!
//! Invariants
//! * At most one search for the end of a file is under way at a time, and few searches of one store.
//!   Each host leaves some of these to others ([`has_share`]).
//! * A search serves callers that came before it began. An earlier search may have asked a data server
//!   before that had the last writes of a caller.
//! * A caller waits at most twice as long as a search may take: for the end of an earlier one, and for
//!   one that serves it. Few callers of one store wait for searches of others, and each host leaves
//!   some of these places to others. More callers wait for a moment.

use super::ends::Unknown;
use super::searchers::Searchers;
use crate::handle::Handle;
use crate::hosts::{Host, has_share};
use crate::limits::{END_TURN_TIME, ENDS_ASKED_MAX, ENDS_AWAITED_MAX};
use dafs_mem::{Condvar, Mutex};
use dafs_store::StoreError;
use rustc_hash::FxHashMap;
use std::io;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// The outcome of a search.
pub(super) type Found = Result<(), StoreError>;

/// The threads that ask a store now. Taken from a line under the table's lock.
#[derive(Default)]
pub(super) struct Asking {
    /// Held by the thread that makes data servers drop authorisations.
    pub(super) turn: Mutex<()>,
    /// Those that search for ends of files.
    pub(super) searchers: Arc<Searchers>,
    ends: Mutex<Ends>,
    /// Notified at the end of each search.
    ended: Condvar,
}

/// The searches for ends of files.
#[derive(Default)]
struct Ends {
    searches: FxHashMap<Handle, Arc<Search>>,
    /// The number of searches that have begun so far.
    begun: u64,
    /// The hosts of the callers that may wait for searches of others.
    patient: Vec<Host>,
}

struct Search {
    /// Counts the searches of the store, from 1 on.
    number: u64,
    since: Instant,
    /// The host of the client for which it began.
    host: Host,
    /// Its outcome. A search that ends without one served no caller.
    found: OnceLock<Found>,
}

impl Ends {
    /// Begins a search. `None` if one is under way for this file, or too many are for other files,
    /// of all clients or of those of this host.
    fn begin(&mut self, key: Handle, host: Host) -> Option<Arc<Search>> {
        let own = self.searches.values().filter(|search| search.host == host).count();
        let has_room = has_share(own, self.searches.len(), ENDS_ASKED_MAX);
        if !has_room || self.searches.contains_key(&key) {
            return None;
        }
        self.begun += 1;
        let (number, since, found) = (self.begun, Instant::now(), OnceLock::new());
        let search = Arc::new(Search { number, since, host, found });
        self.searches.insert(key, search.clone());
        Some(search)
    }

    /// True if the search for the end of this file, or every search, has taken longer than it may.
    fn is_slow(&self, key: &Handle, answer_time: Duration) -> bool {
        let is_slow = |search: &Arc<Search>| search.since.elapsed() >= answer_time;
        let of_all = !self.searches.is_empty() && self.searches.values().all(is_slow);
        of_all || self.searches.get(key).is_some_and(is_slow)
    }
}

impl Asking {
    /// Returns the outcome of a search for the end of a file that has begun since the call. `begin`
    /// hands a new search to another thread. A search may take `answer_time`.
    ///
    /// # Errors
    /// `Crowded`, `Away`.
    pub(super) fn found(
        self: &Arc<Self>,
        (key, host): (Handle, Host),
        answer_time: Duration,
        begin: impl FnOnce(EndAsked) -> io::Result<()>,
    ) -> Result<Found, Unknown> {
        let mut waiter = Waiter::new(self, host);
        let mut begin = Some(begin);
        let mut serving: Option<Arc<Search>> = None;
        let come = Instant::now();
        let mut ends = self.ends.lock();
        let missed = ends.begun;
        loop {
            if let Some(found) = serving.as_ref().and_then(|search| search.found.get()) {
                return Ok(*found);
            }
            let running = ends.searches.get(&key).map(|search| (search.number, search.since));
            let until = match running {
                Some((number, since)) if begin.is_none() || waiter.is_patient(&mut ends) => {
                    let is_known = serving.as_ref().is_some_and(|known| known.number == number);
                    if number > missed && !is_known {
                        serving = ends.searches.get(&key).cloned();
                    }
                    (since + answer_time).min(come + 2 * answer_time)
                }
                None if begin.is_none() => return Err(Unknown::Away),
                None => match ends.begin(key, host) {
                    Some(search) => {
                        drop(ends);
                        let asking = self.clone();
                        let asked = EndAsked { asking, key, search: search.clone() };
                        if let Some(begin) = begin.take() {
                            begin(asked).map_err(|_| Unknown::Crowded)?;
                        }
                        serving = Some(search);
                        ends = self.ends.lock();
                        continue;
                    }
                    None => come + END_TURN_TIME,
                },
                Some(_) => come + END_TURN_TIME,
            };
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let is_slow = ends.is_slow(&key, answer_time);
                return Err(if is_slow { Unknown::Away } else { Unknown::Crowded });
            }
            (ends, _) = self.ended.wait_timeout(ends, left);
        }
    }
}

/// A caller that needs the end of a file.
struct Waiter<'a> {
    asking: &'a Asking,
    host: Host,
    /// It may wait for searches of others.
    is_patient: bool,
}

impl<'a> Waiter<'a> {
    fn new(asking: &'a Asking, host: Host) -> Self {
        Self { asking, host, is_patient: false }
    }

    /// True if the caller may wait for a search of another one, from now on.
    fn is_patient(&mut self, ends: &mut Ends) -> bool {
        let own = ends.patient.iter().filter(|other| **other == self.host).count();
        if !self.is_patient && has_share(own, ends.patient.len(), ENDS_AWAITED_MAX) {
            ends.patient.push(self.host);
            self.is_patient = true;
        }
        self.is_patient
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        if !self.is_patient {
            return;
        }
        let mut ends = self.asking.ends.lock();
        if let Some(own) = ends.patient.iter().position(|host| *host == self.host) {
            ends.patient.swap_remove(own);
        }
    }
}

/// A search for the end of a file.
pub(super) struct EndAsked {
    asking: Arc<Asking>,
    key: Handle,
    search: Arc<Search>,
}

impl EndAsked {
    /// Begins a search for a client of a host. `None` if one is under way for this file, or too many
    /// are for other files of the store.
    pub(super) fn begin(asking: Arc<Asking>, key: Handle, host: Host) -> Option<Self> {
        let search = asking.ends.lock().begin(key, host)?;
        Some(Self { asking, key, search })
    }

    /// Ends the search with an outcome, for the callers that it serves.
    pub(super) fn end(self, found: Found) {
        // It has no outcome before.
        let _ = self.search.found.set(found);
    }
}

impl Drop for EndAsked {
    fn drop(&mut self) {
        self.asking.ends.lock().searches.remove(&self.key);
        self.asking.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dafs_store::{FILE_ID_BYTES, FileId, FsId};
    use std::sync::mpsc::channel;

    const HOUR: Duration = Duration::from_secs(3600);

    fn key(number: u8) -> Handle {
        Handle { fs: FsId([1; 16]), file: FileId([number; FILE_ID_BYTES]) }
    }

    fn begin(asking: &Arc<Asking>, number: u8, host: u32) -> Option<EndAsked> {
        EndAsked::begin(asking.clone(), key(number), Host::User(host))
    }

    fn wait_until(is_so: impl Fn() -> bool) {
        while !is_so() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn few_searches_are_under_way_and_one_for_each_file() {
        let asking = Arc::<Asking>::default();
        let mut asked: Vec<_> = (1..=ENDS_ASKED_MAX as u8)
            .map(|number| begin(&asking, number, number.into()).unwrap())
            .collect();
        assert!(begin(&asking, 100, 100).is_none());
        asked.pop();
        assert!(begin(&asking, 1, 100).is_none(), "another thread does already");
        assert!(begin(&asking, 100, 100).is_some());
        drop(asked);
        assert!(asking.ends.lock().searches.is_empty());
    }

    #[test]
    fn a_host_leaves_searches_to_others() {
        let asking = Arc::<Asking>::default();
        let own: Vec<_> = (0..100).filter_map(|number| begin(&asking, number, 1)).collect();
        assert_eq!(own.len(), ENDS_ASKED_MAX / 2);
        assert!(begin(&asking, 200, 2).is_some());
    }

    #[test]
    fn a_search_is_slow_after_its_time_and_none_is_when_there_is_none() {
        let asking = Arc::<Asking>::default();
        let is_slow = |number, time| asking.ends.lock().is_slow(&key(number), time);
        assert!(!is_slow(1, Duration::ZERO));
        let first = begin(&asking, 1, 1);
        assert!(is_slow(1, Duration::ZERO) && !is_slow(1, HOUR));
        assert!(is_slow(2, Duration::ZERO) && !is_slow(2, HOUR), "there will be room soon");
        drop(first);
        assert!(!is_slow(1, Duration::ZERO));
    }

    /// The data server has seen the last writes of the callers when the next search asks, and perhaps
    /// not when the first one did.
    #[test]
    fn callers_share_the_next_search_and_not_an_earlier_one() {
        let asking = Arc::<Asking>::default();
        let earlier = begin(&asking, 1, 1).unwrap();
        let (begun, begins) = channel();
        std::thread::scope(|scope| {
            let call = |host| {
                let (asking, begun) = (asking.clone(), begun.clone());
                scope.spawn(move || {
                    asking.found((key(1), Host::User(host)), HOUR, |asked| {
                        begun.send(asked).unwrap();
                        Ok(())
                    })
                })
            };
            let callers = [1, 1, 2].map(call);
            wait_until(|| asking.ends.lock().patient.len() == callers.len());
            earlier.end(Err(StoreError::Io));
            let next = begins.recv().unwrap();
            // The list, the search itself and all callers have it.
            wait_until(|| Arc::strong_count(&next.search) == 2 + callers.len());
            assert!(begins.try_recv().is_err(), "one search is enough");
            next.end(Ok(()));
            for caller in callers {
                assert!(matches!(caller.join().unwrap(), Ok(Ok(()))));
            }
        });
        assert!(asking.ends.lock().patient.is_empty());
    }

    #[test]
    fn few_callers_wait_for_searches_of_others() {
        let asking = Arc::<Asking>::default();
        let earlier = begin(&asking, 1, 1);
        let mut waiters: Vec<_> =
            (0..ENDS_AWAITED_MAX).map(|_| Waiter::new(&asking, Host::User(1))).collect();
        let patient = waiters.iter_mut().map(|waiter| waiter.is_patient(&mut asking.ends.lock()));
        assert_eq!(patient.filter(|is_patient| *is_patient).count(), ENDS_AWAITED_MAX / 2);
        let ask = |host| {
            asking.found((key(1), Host::User(host)), HOUR, |_| panic!("one search at a time"))
        };
        assert!(matches!(ask(1), Err(Unknown::Crowded)));
        assert!(Waiter::new(&asking, Host::User(2)).is_patient(&mut asking.ends.lock()));
        drop(waiters);
        assert!(asking.ends.lock().patient.is_empty());
        drop(earlier);
    }

    #[test]
    fn a_caller_does_not_wait_for_a_search_that_has_taken_its_time() {
        let asking = Arc::<Asking>::default();
        let _hangs = begin(&asking, 1, 1);
        let caller = (key(1), Host::User(2));
        let found = asking.found(caller, Duration::ZERO, |_| panic!("one search at a time"));
        assert!(matches!(found, Err(Unknown::Away)));
    }

    #[test]
    fn a_search_without_a_thread_ends_at_once() {
        let asking = Arc::<Asking>::default();
        let caller = (key(1), Host::User(1));
        let found = asking.found(caller, HOUR, |_| Err(io::ErrorKind::WouldBlock.into()));
        assert!(matches!(found, Err(Unknown::Crowded)));
        // The thread has panicked.
        assert!(matches!(asking.found(caller, HOUR, |_| Ok(())), Err(Unknown::Away)));
        let found = asking.found(caller, HOUR, |asked| {
            asked.end(Ok(()));
            Ok(())
        });
        assert!(matches!(found, Ok(Ok(()))));
        assert!(asking.ends.lock().searches.is_empty());
    }
}
