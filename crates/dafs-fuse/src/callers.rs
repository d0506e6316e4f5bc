//! The users of programs, for a mount that acts as each of them.
//!
//! The kernel passes user and group of a request. Supplementary groups are those of the thread that
//! waits for the answer, from `/proc`.
//!
//! Invariants
//! * A request runs with no group that its thread has not, or had not [`GROUPS_AGE_MAX`] ago.
//! * A thread whose groups cannot be read has none. Neither has one that is another user than the
//!   request: its number may have passed on to another thread.
//! * The table is bounded.

use crate::kernel::Caller;
use crate::limits::{CALLERS_MAX, GROUPS_AGE_MAX};
use dafs_client::User;
use dafs_mem::Mutex;
use rustc_hash::FxHashMap;
use std::time::{Duration, Instant};

/// The users of threads that have called lately.
#[derive(Debug)]
pub(crate) struct Callers {
    known: Mutex<FxHashMap<(Caller, u32), (User, Instant)>>,
    age_max: Duration,
}

impl Callers {
    /// Users are remembered for as long as the kernel caches attributes, or for a shorter time.
    pub(crate) fn new(cache_timeout: Duration) -> Self {
        Self { known: Mutex::default(), age_max: cache_timeout.min(GROUPS_AGE_MAX) }
    }

    /// The user that a request of a thread runs as; `None` for root, who has the session.
    pub(crate) fn user(&self, caller: Caller, thread: u32) -> Option<User> {
        self.user_with(caller, thread, |thread| groups_of(caller, thread))
    }

    fn user_with(
        &self,
        caller: Caller,
        thread: u32,
        groups: impl FnOnce(u32) -> Vec<u32>,
    ) -> Option<User> {
        if caller == (Caller { uid: 0, gid: 0 }) {
            return None;
        }
        let (key, now) = ((caller, thread), Instant::now());
        if let Some((user, since)) = self.known.lock().get(&key)
            && now.duration_since(*since) < self.age_max
        {
            return Some(user.clone());
        }
        let user = User::new(caller.uid, caller.gid, &groups(thread));
        let mut known = self.known.lock();
        if known.len() >= CALLERS_MAX {
            known.clear();
        }
        known.insert(key, (user.clone(), now));
        Some(user)
    }
}

/// The supplementary groups of a thread of this process's name space, while it is the caller.
fn groups_of(caller: Caller, thread: u32) -> Vec<u32> {
    let status = std::fs::read_to_string(format!("/proc/{thread}/status")).unwrap_or_default();
    match is_of(&status, caller) {
        true => groups_in(&status).collect(),
        false => Vec::new(),
    }
}

/// True if a thread with this status uses files as the caller.
fn is_of(status: &str, caller: Caller) -> bool {
    // Real, effective, saved and file-system id.
    let id = |name: &str| {
        let ids = status.lines().find_map(|line| line.strip_prefix(name))?;
        ids.split_ascii_whitespace().nth(3)?.parse::<u32>().ok()
    };
    id("Uid:") == Some(caller.uid) && id("Gid:") == Some(caller.gid)
}

/// The supplementary groups in the status of a thread, as `/proc` has it.
pub(crate) fn groups_in(status: &str) -> impl Iterator<Item = u32> {
    let groups = status.lines().find_map(|line| line.strip_prefix("Groups:")).unwrap_or_default();
    groups.split_ascii_whitespace().filter_map(|number| number.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANNA: Caller = Caller { uid: 1000, gid: 100 };

    #[test]
    fn the_groups_of_a_thread_are_read() {
        let groups = |status| groups_in(status).collect::<Vec<_>>();
        let status = "Name:\tcat\nGid:\t7\t7\t7\t7\nGroups:\t4 24 1000 \nNStgid:\t5\n";
        assert_eq!(groups(status), [4, 24, 1000]);
        assert!(groups("Groups:\t \n").is_empty() && groups("").is_empty());
        assert!(groups_of(ANNA, 0).is_empty(), "a thread of another name space");
        let own = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let thread = rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        assert_eq!(groups_of(Caller { uid, gid }, thread), groups(&own));
        assert!(groups_of(Caller { uid: uid + 1, gid }, thread).is_empty(), "it is another user");
    }

    #[test]
    fn a_thread_is_known_by_its_file_system_ids() {
        let status = "Name:\tcat\nUid:\t0\t0\t0\t1000\nGid:\t0\t0\t0\t100\nGroups:\t5 \n";
        assert!(is_of(status, ANNA));
        for other in [Caller { uid: 0, ..ANNA }, Caller { gid: 0, ..ANNA }] {
            assert!(!is_of(status, other) && !is_of("", other), "{other:?}");
        }
    }

    #[test]
    fn a_user_is_known_by_its_thread_and_for_a_while() {
        let callers = Callers::new(Duration::from_secs(3600));
        let first = callers.user_with(ANNA, 7, |_| vec![5]).unwrap();
        assert_eq!(first, User::new(1000, 100, &[5]));
        assert_eq!(callers.user_with(ANNA, 7, |_| vec![6]).as_ref(), Some(&first));
        assert_ne!(callers.user_with(ANNA, 8, |_| vec![6]).as_ref(), Some(&first));
        let bert = Caller { uid: 1001, ..ANNA };
        assert_eq!(callers.user_with(bert, 7, |_| vec![6]), Some(User::new(1001, 100, &[6])));
        assert_eq!(callers.user(Caller { uid: 0, gid: 0 }, 7), None);
        assert!(callers.user(Caller { uid: 0, gid: 5 }, 0).is_some(), "a group of its own");
        for thread in 0..2 * CALLERS_MAX as u32 {
            callers.user_with(ANNA, thread, |_| Vec::new());
            assert!(callers.known.lock().len() <= CALLERS_MAX);
        }
        let forgetful = Callers::new(Duration::ZERO);
        forgetful.user_with(ANNA, 7, |_| vec![5]);
        assert_eq!(forgetful.user_with(ANNA, 7, |_| Vec::new()), Some(User::new(1000, 100, &[])));
    }
}
