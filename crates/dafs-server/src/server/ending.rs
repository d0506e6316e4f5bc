//! The end of a server, by itself or for one that takes over.
//!
//! Invariants
//! * A server that takes over begins when all calls that may change the state are over, however long a
//!   disk takes. A call may go from lane to lane, and wait for the journal between them.
//! * Checks of passwords and look-ups of users change no state and keep no file of it open. So one that never
//!   ends delays nobody for long: its thread ends with the process. Look-ups of names of owners are calls like
//!   others for some time; then their compounds go on without the names.

use super::Server;
use super::data::DataServer;
use super::nfs::NfsServer;
use crate::hand_over::Released;
use crate::limits::{LOOK_UP_STOP_TIME, STOP_TIME};
use dafs_engine::{Reactor, ThreadPool};
use dafs_nfs::NfsShared;
use dafs_nfs::limits::USERS_LANE;
use std::sync::Arc;
use std::time::Instant;

impl Server {
    /// Ends connections in order and waits for the threads.
    pub fn stop(mut self) {
        self.stop_threads(false);
    }

    /// Ends as `stop` does, for a server that takes over. rpcbind goes on to name this one to clients.
    /// Returns what holds for that server, too.
    pub fn release(mut self) -> Released {
        self.nfs.iter_mut().for_each(NfsServer::stay_registered);
        // A late write could undo one of that server, so it does not start before all calls are over.
        self.stop_threads(true);
        let is_cached = self.administration.as_ref().is_some_and(|own| own.is_cached_by_system());
        let is_kept = is_cached && !self.service.has_lost_data();
        let write_verifier = is_kept.then(|| self.write_verifier.current());
        Released { write_verifier, states: self.service.clients.state_digests() }
    }

    fn stop_threads(&mut self, waits_for_all: bool) {
        self.gate.shut();
        // The threads that use the others end first.
        drop((self.metrics.take(), self.admin.take(), self.admin_port.take()));
        let nfs = self.nfs.take().map(|nfs| nfs.shared.clone());
        if let Some(nfs) = &nfs {
            nfs.end_copies();
        }
        // A slow client delays each for some time, so all of them begin now.
        self.data.iter().for_each(DataServer::begin_stop);
        self.data.clear();
        drop(self.tls.take());
        Reactor::stop(&mut self.reactors);
        drop(self.device_mark.take());
        self.clocks.clear();
        // Clients that have mapped memory find nothing there.
        self.service.stop_exposure();
        self.finish_calls(nfs, waits_for_all);
        self.service.clients.settle_records();
        drop(self.request_log.take());
    }

    fn finish_calls(&mut self, nfs: Option<Arc<NfsShared>>, waits_for_all: bool) {
        let (pools, proofs) = (std::mem::take(&mut self.pools), self.proofs.take());
        let has_names = || nfs.as_ref().is_some_and(|nfs| nfs.looks_up_names());
        let give_up_names = || nfs.iter().for_each(|nfs| nfs.give_up_names());
        let names = (has_names, give_up_names);
        let have_ended = finish(&pools, names, waits_for_all);
        if let Some(journal) = self.journal.take() {
            // The last answers of its threads let compounds go on.
            drop(journal);
            if have_ended {
                finish(&pools, names, waits_for_all);
            }
        }
        let look_ups = |pool: &Arc<ThreadPool>| {
            pool.finish_lanes(LOOK_UP_STOP_TIME, |lane| lane == USERS_LANE)
        };
        let hangs = !pools.iter().all(look_ups)
            || proofs.is_some_and(|pool| !pool.finish(LOOK_UP_STOP_TIME));
        if hangs {
            tracing::warn!(
                "the look-up of a user or the check of a password hangs: it is given up"
            );
        }
        Reactor::drop_results(&self.reactors);
    }
}

/// Waits for the calls in the pools, and for look-ups of names while there are some. Their work keeps the
/// records open, and the next server would find them locked. Returns false if it has given some up.
///
/// `names` tells if calls wait for such look-ups, and lets these go on without the names.
fn finish(
    pools: &[Arc<ThreadPool>],
    (has_names, give_up_names): (impl Fn() -> bool, impl Fn()),
    waits_for_all: bool,
) -> bool {
    let is_call = |lane: u64| lane != USERS_LANE || has_names();
    let submitted = || pools.iter().map(|pool| pool.submitted()).sum::<u64>();
    let began = Instant::now();
    loop {
        let before = submitted();
        let have_ended = pools.iter().all(|pool| pool.finish_lanes(STOP_TIME, is_call));
        // Without a new job, no lane had one after its turn in this round.
        if have_ended && submitted() == before {
            return true;
        }
        if began.elapsed() >= STOP_TIME {
            tracing::warn!("blocking calls are still under way after {STOP_TIME:?}");
            if !waits_for_all {
                return false;
            }
            give_up_names();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop_threads(false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use dafs_journal::Workers;
    use dafs_service::{Owner, Place, Pool};
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::sync::mpsc::channel;
    use std::time::Duration;
    use tempfile::TempDir;

    /// The time that a part of a call takes.
    const PART: Duration = Duration::from_millis(30);

    /// Makes the configuration of a server, whose directories live as long as the second value.
    fn config() -> (Config, [TempDir; 2]) {
        let directories = [(); 2].map(|()| TempDir::new().unwrap());
        let mut config = Config::for_directory(directories[0].path().to_owned());
        config.state_directory = Some(directories[1].path().to_owned());
        config.listen = vec!["127.0.0.1:0".parse().unwrap()];
        (config, directories)
    }

    /// A call that looks up names between its parts.
    struct Parts {
        pool: Arc<ThreadPool>,
        look_ups: Arc<AtomicUsize>,
        is_over: Arc<AtomicBool>,
    }

    impl Parts {
        /// Begins a part, behind which so many are left.
        fn begin(self, left: u32) {
            let (pool, look_ups) = (self.pool.clone(), self.look_ups.clone());
            let is_look_up = left % 2 == 1;
            look_ups.fetch_add(usize::from(is_look_up), Ordering::SeqCst);
            let job = move || {
                std::thread::sleep(PART);
                if left == 0 {
                    self.is_over.store(true, Ordering::SeqCst);
                } else {
                    self.begin(left - 1);
                }
                look_ups.fetch_sub(usize::from(is_look_up), Ordering::SeqCst);
            };
            let lane = if is_look_up { USERS_LANE } else { 0 };
            pool.submit_to(Place { lane, owner: Owner::SERVER }, Box::new(job));
        }
    }

    #[test]
    fn a_call_is_waited_for_in_all_lanes_that_it_goes_to() {
        let (pool, look_ups) = (Arc::new(ThreadPool::new()), Arc::<AtomicUsize>::default());
        let is_over = Arc::<AtomicBool>::default();
        let call =
            Parts { pool: pool.clone(), look_ups: look_ups.clone(), is_over: is_over.clone() };
        call.begin(6);
        let names = (|| look_ups.load(Ordering::SeqCst) > 0, || ());
        assert!(finish(&[pool], names, true));
        assert!(is_over.load(Ordering::SeqCst));
    }

    /// The thread that hangs is not waited for, and what the call does without the names is.
    #[test]
    fn a_call_goes_on_without_names_that_are_never_told() {
        let (pool, is_over) = (Arc::new(ThreadPool::new()), Arc::<AtomicBool>::default());
        let (answer, never) = channel::<()>();
        let look_up = move || {
            let _ = never.recv();
        };
        pool.submit_to(Place { lane: USERS_LANE, owner: Owner::SERVER }, Box::new(look_up));
        let waits = AtomicBool::new(true);
        let give_up_names = || {
            if waits.swap(false, Ordering::SeqCst) {
                let ended = is_over.clone();
                pool.submit(Box::new(move || {
                    std::thread::sleep(PART);
                    ended.store(true, Ordering::SeqCst);
                }));
            }
        };
        let names = (|| waits.load(Ordering::SeqCst), give_up_names);
        assert!(finish(std::slice::from_ref(&pool), names, true));
        assert!(is_over.load(Ordering::SeqCst));
        drop(answer);
    }

    /// It is in no lane meanwhile.
    #[test]
    fn a_call_that_waits_for_the_journal_is_waited_for() {
        let (config, _directories) = config();
        let mut server = Server::start(&config).unwrap();
        let (journal, is_over) =
            (Workers::start("journal", 1).unwrap(), Arc::<AtomicBool>::default());
        let (pool, ended) = (server.pools[0].clone(), is_over.clone());
        let rest = move || {
            std::thread::sleep(PART);
            ended.store(true, Ordering::SeqCst);
        };
        let spawn = journal.spawn();
        spawn(Box::new(move || {
            // Longer than all other parts of the end.
            std::thread::sleep(20 * PART);
            pool.submit(Box::new(rest));
        }));
        server.journal = Some(journal);
        let _released = server.release();
        assert!(is_over.load(Ordering::SeqCst));
    }

    /// The C library may ask a directory service on a machine that is gone.
    #[test]
    fn a_look_up_that_never_ends_delays_no_other_server() {
        let (config, _directories) = config();
        let server = Server::start(&config).unwrap();
        let (answer, never) = channel::<()>();
        let place = Place { lane: USERS_LANE, owner: Owner::SERVER };
        server.pools[0].submit_to(
            place,
            Box::new(move || {
                let _ = never.recv();
            }),
        );
        let (done, released) = channel();
        let ends = std::thread::spawn(move || {
            let released = server.release();
            done.send(()).unwrap();
            released
        });
        let ended = released.recv_timeout(Duration::from_secs(60));
        let next = ended.is_ok().then(|| {
            Server::start_on(&config, crate::Sockets::default(), ends.join().unwrap()).unwrap()
        });
        drop(answer);
        next.expect("it waits for the look-up").stop();
    }
}
