//! The names of owners in the operations of a compound.
//!
//! Invariants
//! * An operation that needs an unknown name ends before it has changed anything, and runs again
//!   when the name was looked up in the lane of the database of users. No thread waits meanwhile.
//! * After a failure, or some time, the other names of a job count as failed. However a job ends, its
//!   operation goes on.
//! * A job keeps no state of the server open: only the operations that wait for it do. The database may
//!   hang, and a server that ends lets them go on without the names. From then on no operation waits.

use super::context::OpContext;
use crate::limits::{OWNER_LOOKUPS_MAX, OWNER_LOOKUPS_NS};
use crate::v4::attr::owner::{Names, Unknown};
use crate::v4::attr::set::{self, Change, Purpose};
use crate::v4::journal::Gate;
use crate::v4::status::{OpError, OpResult};
use dafs_mem::Mutex;
use dafs_rpc::gss::Origin;
use dafs_service::durable::Notify;
use dafs_service::{OwnerNames, OwnerQuery};
use dafs_store::Capabilities;
use dafs_wire::nfs4::Fattr;
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::Arc;

impl<'a> OpContext<'a> {
    /// Returns the names of owners as this caller sees them.
    pub(crate) fn names(&self) -> Names<'a> {
        let gss = self.shared.gss();
        let known = gss.and_then(|gss| gss.owners.as_deref());
        Names::new(known, self.call.now_ns, self.call.who.flavour.is_proven())
    }

    /// Decodes attributes that the caller sets.
    ///
    /// # Errors
    /// Those of [`set::parse`]. `Later` while names are looked up.
    pub(crate) fn attributes(
        &mut self,
        fattr: &Fattr<'_>,
        capabilities: &Capabilities,
        purpose: Purpose,
    ) -> Result<Change, OpError> {
        let names = self.names();
        let change = set::parse(fattr, self.minor, capabilities, purpose, &names)?;
        self.await_names(names)?;
        Ok(change)
    }

    /// Has names looked up that the operation did not know.
    ///
    /// # Errors
    /// `Later` when the operation has to run again with them.
    pub(crate) fn await_names(&mut self, names: Names<'_>) -> OpResult {
        let Unknown { missing, old } = names.into_unknown();
        if !old.is_empty() {
            self.look_up(old, || ());
        }
        if missing.is_empty() {
            return Ok(());
        }
        let gate = Gate::new(self.shared);
        let number = self.shared.name_look_ups.begin(missing.clone(), gate.notify());
        self.frame.names = Some(gate);
        if self.shared.name_look_ups.are_given_up() {
            self.shared.give_up_names();
            return Err(OpError::Later);
        }
        let shared = Arc::downgrade(self.shared);
        self.look_up(missing, move || {
            if let Some(shared) = shared.upgrade() {
                shared.name_look_ups.end(number);
            }
        });
        Err(OpError::Later)
    }

    fn look_up(&self, queries: FxHashSet<OwnerQuery>, done: impl FnOnce() + Send + 'static) {
        let Some(gss) = self.shared.gss() else { return done() };
        let Some(owners) = gss.owners.clone() else { return done() };
        let options = self.shared.options().clone();
        let lookup = Lookup {
            owners,
            queries: queries.into_iter().collect(),
            clock_ns: move || options.clock_ns(),
            done: Some(done),
        };
        let job = move || lookup.run();
        gss.acceptor.run(Origin::of_address(self.call.peer.ip()), Box::new(job));
    }
}

/// The look-ups that operations wait for.
#[derive(Default)]
pub(crate) struct LookUps(Mutex<Table>);

#[derive(Default)]
struct Table {
    /// No operation waits any more.
    given_up: bool,
    last: u64,
    awaited: FxHashMap<u64, Awaited>,
}

/// A look-up that an operation waits for.
struct Awaited {
    queries: FxHashSet<OwnerQuery>,
    /// Lets the operation go on. `None` while it does.
    go_on: Option<Notify>,
}

impl LookUps {
    /// True if operations wait.
    pub(crate) fn is_any(&self) -> bool {
        !self.0.lock().awaited.is_empty()
    }

    /// True if operations that need names go on without them.
    fn are_given_up(&self) -> bool {
        self.0.lock().given_up
    }

    /// Notes an operation that waits. Returns the number of its look-up.
    fn begin(&self, queries: FxHashSet<OwnerQuery>, go_on: Notify) -> u64 {
        let mut table = self.0.lock();
        table.last += 1;
        let number = table.last;
        table.awaited.insert(number, Awaited { queries, go_on: Some(go_on) });
        number
    }

    /// Lets an operation go on, unless it does already.
    fn end(&self, number: u64) {
        let mut table = self.0.lock();
        let go_on = table.awaited.get_mut(&number).and_then(|awaited| awaited.go_on.take());
        drop(table);
        let Some(go_on) = go_on else { return };
        go_on(Ok(()));
        // The pool has its job now, so the end of the server waits for one or the other.
        self.0.lock().awaited.remove(&number);
    }

    /// Lets all operations go on, with names that count as failed. So do those that come later.
    pub(crate) fn give_up(&self, owners: &OwnerNames, now_ns: u64) {
        let mut table = self.0.lock();
        table.given_up = true;
        let queries = table.awaited.values().flat_map(|awaited| awaited.queries.iter().cloned());
        let queries: Vec<OwnerQuery> = queries.collect();
        let numbers: Vec<u64> = table.awaited.keys().copied().collect();
        drop(table);
        queries.into_iter().for_each(|query| owners.give_up(query, now_ns));
        numbers.into_iter().for_each(|number| self.end(number));
    }
}

/// Names that are to be looked up. Those that are left at the end count as failed, also if the job
/// has panicked or was never run.
struct Lookup<C: Fn() -> u64, D: FnOnce()> {
    owners: Arc<OwnerNames>,
    queries: Vec<OwnerQuery>,
    clock_ns: C,
    done: Option<D>,
}

impl<C: Fn() -> u64, D: FnOnce()> Lookup<C, D> {
    fn run(mut self) {
        let end_ns = (self.clock_ns)().saturating_add(OWNER_LOOKUPS_NS);
        for _ in 0..OWNER_LOOKUPS_MAX {
            let Some(query) = self.queries.last() else { return };
            let now_ns = (self.clock_ns)();
            if now_ns >= end_ns || !self.owners.resolve(query, now_ns) {
                return;
            }
            self.queries.pop();
        }
        // The operation asks for the others when it runs again.
        self.queries.clear();
    }
}

impl<C: Fn() -> u64, D: FnOnce()> Drop for Lookup<C, D> {
    fn drop(&mut self) {
        let now_ns = (self.clock_ns)();
        for query in self.queries.drain(..) {
            self.owners.give_up(query, now_ns);
        }
        if let Some(done) = self.done.take() {
            done();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dafs_service::{Directory, LocalUser, OwnerAnswer, OwnerKind};
    use std::io;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// Counts questions. It fails at user 2, and panics at user 3.
    #[derive(Debug)]
    struct Toy(Arc<AtomicU64>);

    impl Directory for Toy {
        fn user(&self, _: &str) -> io::Result<Option<LocalUser>> {
            Ok(None)
        }

        fn uid(&self, _: &str) -> io::Result<Option<u32>> {
            Ok(None)
        }

        fn gid(&self, _: &str) -> io::Result<Option<u32>> {
            Ok(None)
        }

        fn user_name(&self, uid: u32) -> io::Result<Option<String>> {
            self.0.fetch_add(1, Ordering::SeqCst);
            assert!(uid != 3, "a database that panics");
            if uid == 2 { Err(io::ErrorKind::Other.into()) } else { Ok(Some(uid.to_string())) }
        }

        fn group_name(&self, _: u32) -> io::Result<Option<String>> {
            Ok(None)
        }
    }

    /// Looks users up, each in so many nanoseconds. Returns the questions that were asked, and what
    /// is known of each user then.
    fn look_up(users: &[u32], each_ns: u64) -> (u64, Vec<OwnerAnswer<Arc<str>>>) {
        let asked = Arc::new(AtomicU64::new(0));
        let owners = Arc::new(OwnerNames::new("a.org", Box::new(Toy(asked.clone()))));
        let user = |uid: &u32| OwnerQuery::Name(OwnerKind::User, *uid);
        let (clock, ended) = (asked.clone(), Arc::new(AtomicU64::new(0)));
        let end = ended.clone();
        let lookup = Lookup {
            owners: owners.clone(),
            // The last is asked first.
            queries: users.iter().rev().map(user).collect(),
            clock_ns: move || clock.load(Ordering::SeqCst) * each_ns,
            done: Some(move || {
                end.fetch_add(1, Ordering::SeqCst);
            }),
        };
        let run = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| lookup.run()));
        assert_eq!(run.is_err(), users.contains(&3));
        assert_eq!(ended.load(Ordering::SeqCst), 1, "the operation goes on");
        let answer = |uid: &u32| owners.name(OwnerKind::User, *uid, 0);
        (asked.load(Ordering::SeqCst), users.iter().map(answer).collect())
    }

    fn name(uid: u32) -> OwnerAnswer<Arc<str>> {
        OwnerAnswer::Found { value: uid.to_string().into(), is_old: false }
    }

    #[test]
    fn after_a_failure_nothing_more_is_asked() {
        use OwnerAnswer::Failed;
        assert_eq!(look_up(&[1, 4], 0), (2, vec![name(1), name(4)]));
        for fails in [2, 3] {
            assert_eq!(look_up(&[1, fails, 4], 0), (2, vec![name(1), Failed, Failed]));
        }
        assert_eq!(look_up(&[1, 4, 5], OWNER_LOOKUPS_NS / 2), (2, vec![name(1), name(4), Failed]));
    }

    #[test]
    fn a_job_is_bounded() {
        let users: Vec<u32> = (4..).take(OWNER_LOOKUPS_MAX + 1).collect();
        let (asked, known) = look_up(&users, 0);
        assert_eq!(asked, OWNER_LOOKUPS_MAX as u64);
        let missing = known.iter().filter(|answer| **answer == OwnerAnswer::Missing);
        assert_eq!(missing.count(), 1);
    }

    /// Else each turn of the operation would cost the time of a job.
    #[test]
    fn a_job_that_fails_gives_up_more_names_than_it_may_ask_for() {
        let many: Vec<u32> = (4..).take(2 * OWNER_LOOKUPS_MAX).collect();
        for (first, each_ns) in [(2, 0), (3, 0), (4, OWNER_LOOKUPS_NS)] {
            let (asked, known) = look_up(&[&[first], &many[1..]].concat(), each_ns);
            assert_eq!(asked, 1);
            let failed = known.iter().filter(|answer| **answer == OwnerAnswer::Failed);
            assert_eq!(failed.count(), if first == 4 { many.len() - 1 } else { many.len() });
        }
    }
}
