//! Authentication of clients: the password file, trust by address, and tokens of GSS (`gss.rs`).
//!
//! Invariants
//! * A password is compared by a memory-hard hash only, and never logged or stored.
//! * The check of an unknown user takes as long as that of a wrong password.
//! * The number of checks of wrong passwords is limited for each host, and for each name from a
//!   host.
//! * A password is accepted only where no other host can read it, or where the configuration has its
//!   danger sentence.
//! * A client that has proven a user acts for no other, unless a rule for principals or
//!   certificates says so. The password file has no such rules.
//! * A client whose certificate names a user acts as that user, unless it proves another one. Its
//!   address gives it no trust.
//! * AUTH_NONE is accepted only from trusted addresses, from processes of this host whose user the
//!   kernel vouches for, or where the configuration has its danger sentence (DAFS O28).

use crate::auth_failures::{AuthFailures, Failed};
use crate::gss::{GssAuth, GssProof};
use crate::limits::LOGGED_NAME_BYTES_MAX;
use crate::password_file::{NewUsers, PasswordFileError, UserChanges, Users};
use crate::passwords::Passwords;
use dafs_dat::{Instant, PeerInfo, PeerProcess};
use dafs_mem::RwLock;
use dafs_service::{AddressRange, Identities, Identity, Known, NO_USER, Origin};
use dafs_store::Cred;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The mechanism of an [`Identity`] by a password.
pub const BY_PASSWORD: &str = "text";

/// The configuration of authentication.
#[derive(Debug, Clone, Default)]
pub struct AuthConfig {
    /// Addresses whose clients may choose their users themselves, unless they prove one.
    pub trusted: Vec<AddressRange>,
    /// Users and their password hashes, for authentication TEXT.
    pub password_file: Option<PathBuf>,
    /// The server's own identity, if it has one.
    pub own_identity: Option<OwnIdentity>,
    /// The configuration has the danger sentence.
    pub allow_unauthenticated_remote_clients: bool,
    /// Passwords are accepted in clear text from other hosts.
    pub clear_passwords: bool,
    /// The means to check tokens of GSS, if they are accepted.
    pub gss: Option<GssAuth>,
    /// The users whom certificates of clients name.
    pub certificates: Option<Arc<Identities>>,
}

/// The identity that the server shows to clients that ask for it (SERVER_AUTH with TEXT). It
/// travels in clear text, so it distinguishes two servers and proves little.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnIdentity {
    /// A name.
    pub id: String,
    /// A password that clients compare.
    pub password: String,
}

/// An accepted authentication.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Admission {
    /// Mechanism and principal.
    pub identity: Identity,
    /// The credential of requests that name none.
    pub cred: Cred,
    /// The client may choose users itself.
    pub trusted: bool,
    /// The proof, if it is one by GSS.
    pub gss: Option<GssProof>,
}

impl Admission {
    /// Returns the part that is kept once the client has been told.
    pub(crate) fn without_token(&self) -> Self {
        let mut kept = self.clone();
        if let Some(proof) = &mut kept.gss {
            proof.token = Vec::new();
        }
        kept
    }
}

/// A client's proof of identity.
#[derive(Debug, Clone)]
pub enum Proof {
    /// None.
    None,
    /// A name and a password.
    Text {
        /// The name.
        user: Vec<u8>,
        /// The password.
        password: Vec<u8>,
    },
}

/// Decides if a client is admitted, and with which credential.
#[derive(Debug)]
pub struct Authenticator {
    users: RwLock<Arc<Users>>,
    password_file: Option<PathBuf>,
    trusted: Vec<AddressRange>,
    strangers_allowed: bool,
    own_uid: u32,
    own_identity: Option<OwnIdentity>,
    /// Requests can run as other users. Otherwise all run as the server's user.
    privileged: bool,
    passwords: Passwords,
    failures: AuthFailures,
    checks: AtomicU64,
    clear_passwords: bool,
    gss: Option<GssAuth>,
    certificates: Option<Arc<Identities>>,
}

/// The reason why a proof was not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotProven {
    /// It is wrong.
    Wrong,
    /// It was not checked, because too many others from that origin have been wrong.
    TooMany,
}

impl Authenticator {
    /// Reads the files that the configuration names.
    ///
    /// # Errors
    /// The line of the password file that cannot be used.
    pub fn new(config: &AuthConfig) -> Result<Self, PasswordFileError> {
        let users = config.password_file.as_deref().map(|path| Users::read(path, None));
        let users = users.transpose()?.unwrap_or_default();
        Ok(Self {
            users: RwLock::new(Arc::new(users)),
            password_file: config.password_file.clone(),
            trusted: config.trusted.clone(),
            strangers_allowed: config.allow_unauthenticated_remote_clients,
            own_uid: rustix::process::geteuid().as_raw(),
            own_identity: config.own_identity.clone(),
            privileged: rustix::process::geteuid().is_root(),
            passwords: Passwords::default(),
            failures: AuthFailures::default(),
            checks: AtomicU64::new(0),
            clear_passwords: config.clear_passwords,
            gss: config.gss.clone(),
            certificates: config.certificates.clone(),
        })
    }

    /// Returns the password file, if there is one.
    pub fn password_file(&self) -> Option<&Path> {
        self.password_file.as_deref()
    }

    /// Reads the password file again, for [`Authenticator::follow_users`].
    ///
    /// # Errors
    /// The line of the password file that cannot be used.
    pub fn read_users(&self) -> Result<NewUsers, PasswordFileError> {
        let last = self.users.read().clone();
        let users = self.password_file.as_deref().map(|path| Users::read(path, Some(&last)));
        Ok(NewUsers(users.transpose()?))
    }

    /// Admits these users from now on. Sessions of users that are gone, or act with other ids, are the caller's
    /// to end. A session that is about to begin ends by itself.
    pub fn follow_users(&self, new: NewUsers) -> UserChanges {
        let Some(new) = new.0 else { return UserChanges::default() };
        let mut users = self.users.write();
        let changes = new.changes_since(&users);
        *users = Arc::new(new);
        changes
    }

    /// True unless the admission is by a password and its user is gone or acts with other ids by now.
    pub(crate) fn still_admits(&self, admission: &Admission) -> bool {
        let identity = &admission.identity;
        identity.mechanism != BY_PASSWORD
            || self.users.read().have(&identity.principal, &admission.cred)
    }

    /// Returns the means to check tokens of GSS, if they are accepted from this peer. On a channel that others
    /// may read and change, a relayed token would admit them in the client's place. Inside TLS a token is bound
    /// to its connection.
    pub(crate) fn gss_for(&self, peer: &PeerInfo) -> Option<&GssAuth> {
        self.gss.as_ref().filter(|gss| gss.in_clear || peer.is_protected())
    }

    /// Returns the users of principals, if there are any.
    pub(crate) fn gss(&self) -> Option<&GssAuth> {
        self.gss.as_ref()
    }

    /// Returns the identity that the server shows to clients that ask for it.
    pub fn own_identity(&self) -> Option<&OwnIdentity> {
        self.own_identity.as_ref()
    }

    /// True when authentication TEXT is offered to this peer.
    pub fn allows_passwords(&self, peer: &PeerInfo) -> bool {
        self.has_users() && (self.clear_passwords || peer.is_protected())
    }

    fn has_users(&self) -> bool {
        !self.users.read().by_name.is_empty()
    }

    /// The same for a password that has come. One that other hosts could read is logged.
    pub(crate) fn takes_password(&self, peer: &PeerInfo) -> bool {
        let is_taken = self.allows_passwords(peer);
        if !is_taken && self.has_users() {
            tracing::warn!(
                %peer,
                "a password came in clear text over the network and was not checked; let the \
                 client use dafss://HOST/ or Kerberos, and change the password"
            );
        }
        is_taken
    }

    /// Frees memory that checks have not needed lately. Called about once a second.
    pub(crate) fn trim(&self, now: Instant) {
        self.passwords.trim(now);
    }

    /// Returns the number of password checks. Each takes tens of milliseconds.
    pub fn checks(&self) -> u64 {
        self.checks.load(Ordering::Relaxed)
    }

    /// True when a client at this address needs no proof.
    pub fn allows_none(&self, peer: &PeerInfo) -> bool {
        // A server that cannot act as other users would lend its own rights to them.
        let vouched_for = peer.process.is_some() && self.privileged;
        self.is_trusted_place(peer) || vouched_for || self.strangers_allowed
    }

    /// Returns the user whom the peer's certificate names, with the users of such names.
    pub(crate) fn certificate(&self, peer: &PeerInfo) -> Option<(Arc<Identities>, Arc<str>)> {
        Some((self.certificates.clone()?, peer.tls.as_ref()?.user.clone()?))
    }

    /// True if that is a user of this host, as far as it is known.
    pub(crate) fn takes_certificate(&self, peer: &PeerInfo) -> bool {
        let known = self.certificate(peer).and_then(|(users, user)| users.last_known(&user));
        known.is_some_and(|mapped| mapped.cred.is_some())
    }

    /// Accepts or refuses a client whose certificate names a user, who offers no other proof. The database of
    /// users may be asked, so call this where it blocks no other request.
    ///
    /// # Errors
    /// The reason why the client was not accepted.
    pub(crate) fn admit_user(
        &self,
        peer: &PeerInfo,
        (users, user): (&Identities, &str),
        now: Instant,
    ) -> Result<Admission, NotProven> {
        let mapped = match (users.resolve(user, now.0), users.known(user, now.0)) {
            (Ok(mapped), _) | (_, Known::Fresh(mapped) | Known::Stale(mapped)) => mapped,
            (Err(error), Known::Nothing) => {
                tracing::warn!(%error, "a client waits for the user of its certificate");
                return Err(NotProven::TooMany);
            }
        };
        let identity = Identity::of_certificate(user.as_bytes());
        let (cred, trusted) = match &mapped.cred {
            Some(cred) => (cred.clone(), mapped.trusted),
            None if self.allows_none(peer) => (Cred::new(NO_USER, NO_USER), false),
            None => {
                tracing::warn!(%peer, user, "a certificate was refused: no rule has a user for its name");
                return Err(NotProven::Wrong);
            }
        };
        Ok(Admission { identity, cred, trusted, gss: None })
    }

    /// Accepts or refuses a proof. The check of a password takes tens of milliseconds by design, so
    /// call this where it blocks no other request.
    pub fn admit(&self, peer: &PeerInfo, proof: &Proof) -> Option<Admission> {
        match proof {
            Proof::None => self.admit_none(peer),
            Proof::Text { user, password } => self.admit_text(peer, user, password),
        }
    }

    /// True when a proof that is offered at `now` may be checked now. The client of another one has
    /// to retry later.
    pub fn may_check(&self, origin: Origin, proof: &Proof, now: Instant) -> bool {
        match proof {
            Proof::None => true,
            Proof::Text { user, .. } => self.failures.may_check(origin, user, now),
        }
    }

    /// Does the same as [`Authenticator::admit`] for a proof that was offered at `now`, unless too
    /// many from that origin have been wrong since.
    ///
    /// # Errors
    /// The reason why the proof was not accepted. A wrong proof is logged.
    pub fn prove(
        &self,
        (peer, origin): (&PeerInfo, Origin),
        proof: &Proof,
        now: Instant,
    ) -> Result<Admission, NotProven> {
        if !self.may_check(origin, proof, now) {
            return Err(NotProven::TooMany);
        }
        let admission = self.admit(peer, proof);
        let user = match proof {
            Proof::None => &[][..],
            Proof::Text { user, .. } => user,
        };
        match &admission {
            Some(_) => self.failures.succeeded(origin, user),
            None => {
                // So few of them are checked that the log stays short.
                let Failed { failures, unchecked } = self.failures.failed(origin, user, now);
                let user = user[..user.len().min(LOGGED_NAME_BYTES_MAX)].escape_ascii();
                tracing::warn!(%peer, %user, failures, unchecked, "authentication failed");
            }
        }
        admission.ok_or(NotProven::Wrong)
    }

    fn admit_none(&self, peer: &PeerInfo) -> Option<Admission> {
        if !self.allows_none(peer) {
            return None;
        }
        let (cred, principal) = match peer.process {
            // The kernel vouches for the user of a local process, so this user is its principal.
            Some(PeerProcess { uid, gid, .. }) => (
                Cred { uid, gid, groups: peer.groups.as_slice().into() },
                uid.to_string().into_bytes(),
            ),
            None => (Cred::new(65534, 65534), Vec::new()),
        };
        let identity = Identity { mechanism: "none", principal };
        Some(Admission { identity, cred, trusted: self.is_trusted(peer), gss: None })
    }

    fn admit_text(&self, peer: &PeerInfo, user: &[u8], password: &[u8]) -> Option<Admission> {
        if !self.allows_passwords(peer) {
            return None;
        }
        let users = self.users.read().clone();
        let known = users.by_name.get(user);
        let hash = known.map(|user| &user.hash).or(users.decoy.as_ref())?;
        self.checks.fetch_add(1, Ordering::Relaxed);
        let right = self.passwords.is_right(password, hash);
        let known = known.filter(|_| right)?;
        let identity = Identity { mechanism: BY_PASSWORD, principal: user.to_vec() };
        Some(Admission { identity, cred: known.cred.clone(), trusted: false, gss: None })
    }

    fn is_trusted(&self, peer: &PeerInfo) -> bool {
        self.certificate(peer).is_none() && self.is_trusted_place(peer)
    }

    fn is_trusted_place(&self, peer: &PeerInfo) -> bool {
        if peer.sim_host.is_some() {
            return true;
        }
        let own = |uid: u32| uid == 0 || uid == self.own_uid;
        if peer.process.is_some_and(|process| own(process.uid)) {
            return true;
        }
        let Some(address) = peer.address else { return false };
        // A range of a network is about other hosts. Any user of this host may have its address
        // there.
        if peer.is_local && !address.ip().to_canonical().is_loopback() {
            return false;
        }
        self.trusted.iter().any(|range| range.contains(address.ip()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::password_file::{password_line, replace_password_line};
    use dafs_dat::tls::TlsPeer;
    use std::os::unix::fs::PermissionsExt;

    fn authenticator(lines: &str, mode: u32) -> Result<Authenticator, PasswordFileError> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("users");
        std::fs::write(&path, lines).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        let password_file = Some(path);
        let config = AuthConfig { password_file, clear_passwords: true, ..AuthConfig::default() };
        Authenticator::new(&config)
    }

    fn peer(address: &str) -> PeerInfo {
        PeerInfo { address: Some(address.parse().unwrap()), ..PeerInfo::default() }
    }

    fn text(user: &str, password: &str) -> Proof {
        Proof::Text { user: user.into(), password: password.into() }
    }

    #[test]
    fn passwords_admit_their_user_only() {
        let line = password_line("anna", 1000, 100, &[7, 8], b"secret");
        let auth = authenticator(&format!("# users\n{line}\n"), 0o600).unwrap();
        let far = peer("192.0.2.1:999");
        let admission = auth.admit(&far, &text("anna", "secret")).unwrap();
        assert_eq!(admission.cred, Cred { uid: 1000, gid: 100, groups: [7, 8].into() });
        assert!(!admission.trusted);
        assert!(auth.admit(&far, &text("anna", "Secret")).is_none());
        assert!(auth.admit(&far, &text("bert", "secret")).is_none());
        assert!(auth.admit(&far, &Proof::None).is_none());
        // An address alone proves no identity, not even one of this host.
        assert!(auth.admit(&peer("127.0.0.1:5"), &Proof::None).is_none());
    }

    #[test]
    fn users_come_and_go_while_the_server_runs() {
        let dir = tempfile::tempdir().unwrap();
        let password_file = Some(dir.path().join("users"));
        let path = password_file.clone().unwrap();
        let line = password_line("anna", 1000, 100, &[], b"secret");
        replace_password_line(&path, "anna", Some(&line)).unwrap();
        let config = AuthConfig { password_file, clear_passwords: true, ..AuthConfig::default() };
        let auth = Authenticator::new(&config).unwrap();
        let far = peer("192.0.2.1:999");
        let read_again = || auth.follow_users(auth.read_users().unwrap());
        let admission = auth.admit(&far, &text("anna", "secret")).unwrap();
        assert!(auth.still_admits(&admission));
        assert_eq!(read_again(), UserChanges::default());
        let line = password_line("bert", 1001, 100, &[], b"other");
        replace_password_line(&path, "bert", Some(&line)).unwrap();
        assert!(read_again().ended.is_empty());
        assert!(auth.admit(&far, &text("bert", "other")).is_some());
        replace_password_line(&path, "anna", None).unwrap();
        assert_eq!(read_again().ended, [b"anna".to_vec()].into());
        assert!(!auth.still_admits(&admission) && auth.allows_passwords(&far));
        assert!(auth.admit(&far, &text("anna", "secret")).is_none());
        // A file that cannot be used changes no user.
        std::fs::write(&path, "nonsense").unwrap();
        assert!(auth.read_users().is_err());
        assert!(auth.admit(&far, &text("bert", "other")).is_some());
    }

    #[test]
    fn no_password_is_taken_that_other_hosts_can_read() {
        let line = password_line("anna", 1000, 100, &[], b"secret");
        let mut auth = authenticator(&line, 0o600).unwrap();
        let (level, suite) = (dafs_service::TransportSecurity::Tls, dafs_tls::Suite::Aes128);
        let tls = TlsPeer { level, suite, subject: None, user: None, binding: [0; 32] };
        let process = Some(PeerProcess { pid: 1, uid: 4242, gid: 5 });
        let far = peer("192.0.2.1:999");
        let cases = [
            (far.clone(), false),
            (PeerInfo { tls: Some(tls.into()), ..far.clone() }, true),
            (PeerInfo { is_local: true, ..far.clone() }, true),
            (PeerInfo { process, ..PeerInfo::default() }, true),
        ];
        let proof = text("anna", "secret");
        assert!(auth.admit(&far, &proof).is_some(), "the danger sentence allows it");
        auth.clear_passwords = false;
        for (peer, is_allowed) in cases {
            assert_eq!(auth.allows_passwords(&peer), is_allowed, "{peer:?}");
            assert_eq!(auth.admit(&peer, &proof).is_some(), is_allowed);
            assert_eq!(auth.takes_password(&peer), is_allowed);
        }
    }

    #[test]
    fn a_local_process_is_who_the_kernel_says() {
        let auth = authenticator("", 0o600).unwrap();
        let process = |uid| PeerInfo {
            process: Some(PeerProcess { pid: 1, uid, gid: 5 }),
            groups: vec![6, 7],
            ..PeerInfo::default()
        };
        let own = rustix::process::geteuid().as_raw();
        assert!(auth.admit(&process(own), &Proof::None).unwrap().trusted);
        let other = auth.admit(&process(4242), &Proof::None);
        if own == 0 {
            let other = other.unwrap();
            assert!(!other.trusted);
            let Cred { uid, gid, groups } = other.cred;
            assert_eq!((uid, gid, &*groups), (4242, 5, &[6, 7][..]));
        } else {
            // This server could only serve them as itself.
            assert!(other.is_none());
        }
    }

    #[test]
    fn a_trusted_network_is_one_of_other_hosts() {
        let trusted = vec!["192.0.2.0/24".parse().unwrap()];
        let auth = Authenticator::new(&AuthConfig { trusted, ..AuthConfig::default() }).unwrap();
        let own = PeerInfo { is_local: true, ..peer("192.0.2.1:999") };
        // This host has an address there, and any of its users may connect by it.
        assert!(auth.admit(&own, &Proof::None).is_none());
        let process = Some(PeerProcess { pid: 0, uid: 4242, gid: 5 });
        let user = PeerInfo { process, ..own };
        assert!(auth.admit(&user, &Proof::None).is_none_or(|admission| !admission.trusted));
        assert!(auth.admit(&peer("192.0.2.1:999"), &Proof::None).unwrap().trusted);
    }

    #[test]
    fn a_bad_file_names_its_line() {
        let error = authenticator("\nanna:x:1::h\n", 0o600).unwrap_err().to_string();
        assert!(error.contains("line 2") && error.contains("dafs passwd"), "{error}");
        let error = authenticator("", 0o644).unwrap_err().to_string();
        assert!(error.contains("chmod 600"), "{error}");
    }
}
