//! The credentials that a client has registered (DAFS 4.5).
//!
//! Invariants
//! * A number is given again only after all others, so that a request which names a released
//!   credential is refused, and never runs as another user: it may have been sent before the
//!   release, or come from another session of the client.
//! * Equal credentials are kept once, with the number of sessions that have registered it.

use dafs_store::Cred;
use rustc_hash::FxHashMap;
use std::sync::Arc;

#[derive(Debug)]
struct Registered {
    cred: Arc<Cred>,
    count: u32,
}

/// The registered credentials of a client, by number.
#[derive(Debug, Default)]
pub(super) struct Credentials {
    by_number: FxHashMap<u32, Registered>,
    /// The number that was given last.
    last: u32,
}

impl Credentials {
    pub(super) fn register(&mut self, cred: Cred, max: usize) -> Option<u32> {
        let same = |(_, known): &(&u32, &mut Registered)| *known.cred == cred;
        if let Some((number, known)) = self.by_number.iter_mut().find(same) {
            known.count = known.count.checked_add(1)?;
            return Some(*number);
        }
        if self.by_number.len() >= max {
            return None;
        }
        loop {
            self.last = self.last.wrapping_add(1);
            // 0 denotes the credential of the session. Far fewer than all numbers are in use.
            if self.last != 0 && !self.by_number.contains_key(&self.last) {
                break;
            }
        }
        self.by_number.insert(self.last, Registered { cred: Arc::new(cred), count: 1 });
        Some(self.last)
    }

    pub(super) fn release(&mut self, number: u32) -> bool {
        let Some(known) = self.by_number.get_mut(&number) else { return false };
        known.count -= 1;
        if known.count == 0 {
            self.by_number.remove(&number);
        }
        true
    }

    pub(super) fn get(&self, number: u32) -> Option<Arc<Cred>> {
        Some(self.by_number.get(&number)?.cred.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_released_number_denotes_no_other_user() {
        let mut creds = Credentials::default();
        let (anna, bert) = (Cred::new(1, 1), Cred::new(2, 2));
        let first = creds.register(anna.clone(), 2).unwrap();
        assert_eq!(creds.register(anna.clone(), 2), Some(first), "equal ones are kept once");
        assert!(creds.release(first));
        assert_eq!(creds.get(first).as_deref(), Some(&anna), "another session has it still");
        assert!(creds.release(first) && !creds.release(first));
        assert!(creds.get(first).is_none());
        let second = creds.register(bert.clone(), 2).unwrap();
        assert_ne!(second, first);
        assert!(creds.get(first).is_none());
        let again = creds.register(anna, 2).unwrap();
        assert_ne!(again, first);
        assert_eq!(creds.register(Cred::new(3, 3), 2), None, "no more than agreed");
        assert!(creds.get(0).is_none() && !creds.release(0));
    }

    #[test]
    fn numbers_begin_again_and_pass_over_those_in_use() {
        let mut creds = Credentials::default();
        assert_eq!(creds.register(Cred::new(1, 1), 9), Some(1));
        creds.last = u32::MAX - 1;
        assert_eq!(creds.register(Cred::new(2, 2), 9), Some(u32::MAX));
        assert_eq!(creds.register(Cred::new(3, 3), 9), Some(2));
    }
}
