//! TLS for the NFS front ends: certificates that follow their files, and handshakes on the pool.
//!
//! Invariants
//! * Handshakes run in a lane of the pool of their own, with a share of it for each host. Users are looked up in
//!   another one, and only the handshakes of those of whom nothing is known wait for it.
//! * Rules for users of certificates are in force before the first connection, and other rules before the
//!   connections of such users end.
//! * A file that cannot be used never replaces one that works, and the log says why, once.

use super::StartError;
use crate::config::Config;
use crate::limits::TLS_LOOK_INTERVAL;
use crate::metrics::{Source, counter};
use dafs_dat::connections::Origin;
use dafs_dat::tls::LookUp;
use dafs_nfs::limits::USERS_LANE;
use dafs_rpc::server::Statistics;
use dafs_rpc::tls::{Job, ServerTls};
use dafs_service::{Identities, Known, LocalDirectory, Owner, Place, Pool, Rule, Rules};
use dafs_store::vital;
use dafs_tls::{Reload, ReloadingServer, ServerFiles};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{SystemTime, UNIX_EPOCH};

/// The lane of the pool for the arithmetic of handshakes. The next one is that of Kerberos.
const LANE: u64 = u64::MAX - 1;

/// Days before the end of the certificate from which on the log warns.
const WARNING_DAYS: i64 = 30;

/// The users whom certificates of clients name.
#[derive(Clone)]
pub(super) struct Users {
    identities: Arc<Identities>,
    files: Arc<ReloadingServer>,
    pool: Arc<dyn Pool>,
}

impl Users {
    /// True if any certificate of a client counts: without authorities none does.
    pub(super) fn can_be_known(&self) -> bool {
        self.files.files().authorities.is_some()
    }

    /// Follows the rules of a configuration. Changed rules end the connections of users of certificates, which
    /// begin again under the new ones. Returns true if they have changed.
    pub(super) fn follow(&self, rules: &[Rule]) -> bool {
        let (has_rules, rules) = (!rules.is_empty(), of_rules(rules));
        let has_changed = *self.identities.rules() != rules;
        if has_changed {
            self.identities.replace_rules(rules);
            self.files.change_rules(has_rules);
        }
        has_changed
    }

    /// Has a host's job done, after the lookup of a user of whom nothing is known.
    fn look_up(&self, (host, name): (Origin, String), then: Job, now_ns: u64) {
        let then = match self.identities.known(&name, now_ns) {
            Known::Fresh(_) => return then(),
            Known::Stale(_) => {
                then();
                None
            }
            Known::Nothing => Some(then),
        };
        let identities = self.identities.clone();
        let job = move || {
            if let Err(error) = identities.resolve(&name, now_ns) {
                tracing::warn!(%error, "the user of a certificate");
            }
            if let Some(then) = then {
                then();
            }
        };
        self.pool.submit_to(place(USERS_LANE, host), Box::new(job));
    }
}

/// The place of a host's jobs in a lane.
fn place(lane: u64, host: Origin) -> Place {
    Place { lane, owner: Owner { origin: super::kerberos::turns(host), number: 0 } }
}

fn of_rules(rules: &[Rule]) -> Rules {
    Rules { rules: rules.to_vec(), default_realm: None }
}

/// The users of certificates by the rules of a configuration, for a server with TLS.
pub(super) fn identities(config: &Config) -> Option<Arc<Identities>> {
    let identities =
        || Identities::new(of_rules(&config.certificate_users), Box::new(LocalDirectory));
    config.tls.is_some().then(|| Arc::new(identities()))
}

/// TLS of a server, and the thread that looks at its files.
pub(super) struct Tls {
    shared: Arc<ServerTls>,
    users: Option<Users>,
    /// The thread ends when this is dropped.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Tls {
    /// Reads the files, and follows them from now on. The users of certificates are `identities`.
    ///
    /// # Errors
    /// The file, with the remedy.
    pub(super) fn start(
        files: &ServerFiles,
        identities: Option<Arc<Identities>>,
        pool: Arc<dyn Pool>,
    ) -> Result<Self, StartError> {
        let files = Arc::new(ReloadingServer::open(files.clone(), now_seconds())?);
        let users = identities.map(|identities| {
            let (files, pool) = (files.clone(), pool.clone());
            Users { identities, files, pool }
        });
        let run = move |host, job: Job| pool.submit_to(place(LANE, host), job);
        if users.as_ref().is_some_and(|users| !users.identities.rules().rules.is_empty()) {
            files.change_rules(true);
        }
        let look_up = users.clone().map(|users| -> LookUp {
            Box::new(move |host, name, then| {
                users.look_up((host, name), then, dafs_dat::Instant::now().0);
            })
        });
        let shared = ServerTls::with_users(files.clone(), Box::new(run), look_up);
        if let Err(reason) = shared.kernel() {
            tracing::info!(%reason, "this process protects the records of TLS");
        }
        warn_of_end(&files);
        let (stop, stopped) = channel();
        let thread = vital::spawn("dafs-tls-files".to_owned(), move || {
            while stopped.recv_timeout(TLS_LOOK_INTERVAL) == Err(RecvTimeoutError::Timeout) {
                look(&files);
            }
        })?;
        Ok(Self { shared, users, stop: Some(stop), thread: Some(thread) })
    }

    /// The users of certificates, for changes of their rules.
    pub(super) fn users(&self) -> Option<Users> {
        self.users.clone()
    }

    /// TLS for a group of reactors.
    pub(super) fn shared(&self) -> Arc<ServerTls> {
        self.shared.clone()
    }
}

impl Drop for Tls {
    fn drop(&mut self) {
        self.stop = None;
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread that follows the files of TLS had failed");
        }
    }
}

pub(super) const TLS: &[Source<Statistics>] = &[
    counter(
        "dafs_nfs_tls_connections_total",
        "NFS connections that began TLS",
        |now: &Statistics| now.tls_connections,
    ),
    counter(
        "dafs_nfs_tls_kernel_total",
        "NFS connections whose records the kernel protects",
        |now: &Statistics| now.tls_kernel,
    ),
    counter(
        "dafs_nfs_tls_mutual_total",
        "NFS connections of clients with a verified certificate",
        |now: &Statistics| now.tls_mutual,
    ),
    counter(
        "dafs_nfs_tls_failed_total",
        "NFS connections that TLS ended for an error",
        |now: &Statistics| now.tls_failed,
    ),
];

/// Takes changed files.
fn look(files: &ReloadingServer) {
    match files.follow(now_seconds()) {
        Ok(Reload::Unchanged) => {}
        Ok(Reload::Changed { generation }) => {
            let subject = files.current().identity().certificate().subject().to_owned();
            tracing::info!(generation, subject, "changed files of TLS are in use");
            warn_of_end(files);
        }
        Err(error) => {
            tracing::error!(%error, "changed files of TLS are not used, and the old ones stay");
        }
    }
}

fn warn_of_end(files: &ReloadingServer) {
    let days = files.current().identity().days_left(now_seconds());
    if days < WARNING_DAYS {
        tracing::warn!(days, "the certificate of this server ends soon, or has ended: renew it");
    }
}

pub(super) fn now_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;
    use dafs_mem::Mutex;
    use dafs_service::UserOf;
    use dafs_service::limits::IDENTITY_FRESH_NS;
    use dafs_tls::pki::Folder;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Keeps jobs.
    #[derive(Default)]
    struct Held(Mutex<Vec<(u64, Job)>>);

    impl Pool for Held {
        fn submit(&self, _: Job) {
            panic!("this is the lane of jobs that wait for nothing");
        }

        fn submit_to(&self, place: Place, job: Job) {
            self.0.lock().push((place.lane, job));
        }
    }

    #[test]
    fn only_the_handshake_of_an_unknown_user_waits_for_its_lookup() {
        let (directory, pool) = (tempfile::tempdir().unwrap(), Arc::<Held>::default());
        let folder = Folder::create(&directory.path().join("pki"), "CA", now_seconds()).unwrap();
        let made = folder.add_server(&["localhost".to_owned()], now_seconds()).unwrap();
        let files =
            ServerFiles { certificate: made.certificate, key: made.key, ..Default::default() };
        let files = Arc::new(ReloadingServer::open(files, now_seconds()).unwrap());
        let pattern = "*@example.org".parse().unwrap();
        let rules = [Rule { pattern, user: UserOf::Number(7, 7), trusted: false }];
        let identities = Arc::new(Identities::new(of_rules(&rules), Box::new(LocalDirectory)));
        let users = Users { identities: identities.clone(), files, pool: pool.clone() };
        let done = Arc::new(AtomicUsize::new(0));
        let look_up = |now_ns| {
            let done = done.clone();
            let then = Box::new(move || {
                done.fetch_add(1, Ordering::Relaxed);
            });
            users.look_up((Origin::Unknown, "anna@example.org".to_owned()), then, now_ns);
        };
        let done = || done.load(Ordering::Relaxed);
        let run_job = || {
            let (lane, job) = pool.0.lock().pop().unwrap();
            assert_eq!(lane, USERS_LANE);
            job();
        };
        // Nothing is known.
        look_up(0);
        assert_eq!(done(), 0);
        run_job();
        assert_eq!(done(), 1);
        // Known, and known from long ago.
        look_up(0);
        assert_eq!((done(), pool.0.lock().len()), (2, 0));
        let later = IDENTITY_FRESH_NS + 1;
        look_up(later);
        assert_eq!((done(), pool.0.lock().len()), (3, 1));
        run_job();
        assert_eq!(done(), 3);
        let known = identities.known("anna@example.org", later + IDENTITY_FRESH_NS);
        assert!(matches!(known, Known::Fresh(_)), "{known:?}");
    }
}
