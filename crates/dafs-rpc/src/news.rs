//! Keeps events that a peer can repeat from filling the log.
//!
//! Invariants
//! * For any number of events, the same thing is news at most once a minute. The memory is bounded,
//!   and while it is full nothing else is news.

use crate::limits::{NEWS_KEPT_MAX, NEWS_SILENCE};
use dafs_mem::Mutex;
use rustc_hash::FxHashMap;
use std::hash::Hash;

/// Things that were logged lately, with the times in nanoseconds.
#[derive(Debug)]
pub struct News<K>(Mutex<FxHashMap<K, u64>>);

impl<K> Default for News<K> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Hash + Eq> News<K> {
    /// True if the thing should be logged now: it was not in the last minute. `now_ns` is the time
    /// of any clock, in nanoseconds.
    pub fn is_news(&self, thing: K, now_ns: u64) -> bool {
        let silence_ns = NEWS_SILENCE.as_nanos() as u64;
        let lately = |at_ns: &u64| now_ns.saturating_sub(*at_ns) < silence_ns;
        let mut logged = self.0.lock();
        if logged.get(&thing).is_some_and(lately) {
            return false;
        }
        if logged.len() >= NEWS_KEPT_MAX {
            logged.retain(|_, at_ns| lately(at_ns));
        }
        if logged.len() >= NEWS_KEPT_MAX {
            return false;
        }
        logged.insert(thing, now_ns);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thing_is_news_once_a_minute_and_only_so_many_are() {
        let news = News::default();
        let silence_ns = NEWS_SILENCE.as_nanos() as u64;
        assert!(news.is_news((0, "port"), 0));
        assert!(!news.is_news((0, "port"), silence_ns - 1));
        assert!(news.is_news((0, "network"), 1));
        assert!(news.is_news((0, "port"), silence_ns));
        let many = (1..1000).filter(|host| news.is_news((*host, "port"), silence_ns));
        assert_eq!(many.count(), NEWS_KEPT_MAX - 2);
        let later_ns = 2 * silence_ns;
        assert!(news.is_news((5000, "port"), later_ns));
        assert_eq!(news.0.lock().len(), 1);
    }
}
