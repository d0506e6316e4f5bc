//! The identity of a caller, and the exports that it may reach.
//!
//! AUTH_SYS only claims a user. The claim is worth as much as the address of the caller. A port
//! below 1024 belongs to root of the caller's host. For a process on this host the kernel names the
//! user. RDMA connections come from any port. So other hosts that use RDMA are admitted only where
//! an export allows unprivileged ports.
//!
//! If the certificate of a connection names a user, AUTH_SYS and AUTH_NONE stand for that user
//! ([`certificate`](crate::certificate)). Addresses and ports are judged as for others.
//!
//! Invariants
//! * The port proves nothing about a process of this host, where the kernel may let any user bind
//!   it. A process whose user the kernel does not name is refused.
//! * A process of this host that runs neither as root nor as the server's own user acts as its own
//!   user, whatever it claims, or as the principal that it proves to be.
//! * A server that cannot act as other users serves only root and its own user on this host,
//!   because others would borrow the server's rights.

use dafs_rpc::{CallerProcess, Credential};
use dafs_service::{
    ClientAddress, Export, Flavour, Host, NO_USER, Namespace, NfsCaller, Subject, TransportSecurity,
};
use dafs_store::Cred;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

/// Every user of a host can bind ports from here on.
const UNPRIVILEGED_PORT_MIN: u16 = 1024;

/// The settings that admission depends on.
#[derive(Debug, Clone, Copy)]
pub struct Admission {
    /// The user that the server runs as.
    pub own_uid: u32,
}

/// The trust in the callers of a connection, by its origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trust {
    /// The claims of its callers are believed.
    Believed,
    /// Its callers are this user, with this group.
    Known(u32, u32),
    /// Its callers may be any user of their host.
    Anybody,
    /// Its callers are on this host, and would borrow the server's rights.
    Refused,
    /// Its callers are on this host, and the kernel does not name their user.
    Unknown,
}

/// The origin of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Origin {
    address: IpAddr,
    is_local: bool,
    /// The user of this host that the kernel names.
    user: Option<u32>,
    trust: Trust,
    /// The protection of the connection, which may grow by TLS.
    security: TransportSecurity,
}

/// An authenticated caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallerIdentity {
    /// The credential that the caller acts with.
    pub cred: Cred,
    /// The flavour of RPC authentication.
    pub flavour: Flavour,
    /// The name that the caller has proven, as its mechanism exports it. With a flavour that proves nothing it is
    /// the user whom the certificate of the connection names.
    pub principal: Option<Arc<[u8]>>,
}

impl CallerIdentity {
    /// A caller without a proven name.
    pub fn unproven(cred: Cred, flavour: Flavour) -> Self {
        Self { cred, flavour, principal: None }
    }
}

impl Admission {
    /// Determines the origin of a connection in the clear, once for each connection.
    pub fn origin(&self, peer: SocketAddr, process: CallerProcess) -> Origin {
        let trust = match process {
            CallerProcess::Known(process) => self.trust(process.uid, process.gid),
            CallerProcess::Unknown => Trust::Unknown,
            CallerProcess::Elsewhere if peer.port() < UNPRIVILEGED_PORT_MIN => Trust::Believed,
            CallerProcess::Elsewhere => Trust::Anybody,
        };
        let is_local = process != CallerProcess::Elsewhere;
        let user = match process {
            CallerProcess::Known(process) => Some(process.uid),
            _ => None,
        };
        let (address, security) = (peer.ip().to_canonical(), TransportSecurity::None);
        Origin { address, is_local, user, trust, security }
    }

    /// Returns the trust in a user of this host.
    fn trust(&self, uid: u32, gid: u32) -> Trust {
        if uid == 0 || uid == self.own_uid {
            Trust::Believed
        } else if self.own_uid == 0 {
            Trust::Known(uid, gid)
        } else {
            Trust::Refused
        }
    }
}

impl Origin {
    /// The same origin with this protection of its connection.
    #[must_use]
    pub fn with_security(self, security: TransportSecurity) -> Self {
        Self { security, ..self }
    }

    /// The protection of the connection.
    pub fn security(&self) -> TransportSecurity {
        self.security
    }

    /// Returns the address of the peer.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// Returns the host whose share of common resources callers from here take. For users of this
    /// host it is their user.
    pub fn host(&self) -> Host {
        self.user.map_or_else(|| Host::of(self.client_address().ip), Host::User)
    }

    /// Returns the address that identifies a client. All addresses of this host count as one.
    pub fn client_address(&self) -> ClientAddress {
        let ip = if self.is_local { Ipv4Addr::LOCALHOST.into() } else { self.address };
        ClientAddress { ip, privileged: self.is_privileged() }
    }

    /// True if the port, or the kernel of this host, vouches for callers from here.
    fn is_privileged(&self) -> bool {
        matches!(self.trust, Trust::Believed | Trust::Known(..))
    }

    /// Returns a caller from here, for the metadata server that judges it.
    pub(crate) fn nfs_caller(&self, flavour: Flavour) -> NfsCaller {
        NfsCaller { flavour, address: self.address, privileged: self.is_privileged() }
    }

    /// Returns the subject that fences see for a client of this name that calls from here.
    pub(crate) fn subject<'a>(&self, owner: Option<&'a [u8]>) -> Subject<'a> {
        Subject::Nfs { owner, address: self.address, host: self.host() }
    }

    /// Returns the origin by which the scheduler shares turns among callers.
    pub(crate) fn of_turns(&self) -> dafs_service::Origin {
        let here = || dafs_service::Origin::host(self.client_address().ip);
        self.user.map_or_else(here, dafs_service::Origin::User)
    }

    /// True if the kernel vouches for the user of callers from here, whatever they claim.
    pub fn is_certain(&self) -> bool {
        matches!(self.trust, Trust::Known(..))
    }

    /// Returns the caller of a connection from here with this credential.
    pub fn who(&self, credential: &Credential<'_>) -> CallerIdentity {
        match (credential, self.trust) {
            (Credential::Sys(_), Trust::Known(uid, gid)) => {
                CallerIdentity::unproven(Cred::new(uid, gid), Flavour::Sys)
            }
            (Credential::Sys(sys), _) => {
                let groups: Arc<[u32]> = Arc::from(&*sys.groups);
                let cred = Cred { uid: sys.uid, gid: sys.gid, groups };
                CallerIdentity::unproven(cred, Flavour::Sys)
            }
            _ => CallerIdentity::unproven(Cred::new(NO_USER, NO_USER), Flavour::None),
        }
    }

    /// True if a caller from here may reach an export.
    pub fn admitted(&self, export: &Export, flavour: Flavour) -> bool {
        let privileged = match self.trust {
            Trust::Believed | Trust::Known(..) => true,
            Trust::Anybody => false,
            Trust::Refused | Trust::Unknown => return false,
        };
        export.options().admits.is_secure_enough(self.security)
            && export.options().admits.admits(self.address, flavour, privileged)
    }

    /// Returns an export to name in a refusal, if callers from here may reach no export at all.
    /// Such callers get no state in the server. Those that prove their names need no privileged
    /// port.
    pub(crate) fn refused<'a>(&self, namespace: &'a Namespace, proven: bool) -> Option<&'a Export> {
        let mut exports =
            namespace.exports().map(|export| (&**export, self.refusal_of(export, proven)));
        let (first, refusal) = exports.next()?;
        refusal?;
        let others: Vec<_> = exports.collect();
        if others.iter().any(|(_, refusal)| refusal.is_none()) {
            return None;
        }
        // An export whose address rule matches gives a more useful reason than one whose rule does
        // not.
        let near = others.iter().find(|(_, refusal)| *refusal != Some(Refusal::Network));
        let is_far = refusal == Some(Refusal::Network);
        Some(near.filter(|_| is_far).map_or(first, |(export, _)| *export))
    }

    /// Returns the reason why no caller from here may use an export. `None` if some may.
    pub(crate) fn refusal(&self, export: &Export) -> Option<Refusal> {
        let flavours = export.options().admits.flavours.iter();
        if flavours.clone().any(|flavour| self.admitted(export, *flavour)) {
            return None;
        }
        self.refusal_of(export, false).or(Some(Refusal::Port))
    }

    /// Returns the reason why unproven or proven callers from here may not reach an export.
    pub(crate) fn refusal_of(&self, export: &Export, proven: bool) -> Option<Refusal> {
        let admits = &export.options().admits;
        let reaches = |privileged| admits.reaches(self.address, proven, privileged);
        match self.trust {
            Trust::Refused => Some(Refusal::Rights),
            Trust::Unknown => Some(Refusal::Owner),
            _ if reaches(true) && !admits.is_secure_enough(self.security) => {
                Some(Refusal::Transport(admits.transport_security))
            }
            Trust::Believed | Trust::Known(..) if reaches(true) => None,
            Trust::Anybody if reaches(false) => None,
            _ if reaches(true) => Some(Refusal::Port),
            _ => Some(Refusal::Network),
        }
    }
}

/// The reason why callers of an origin are refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Refusal {
    /// The export does not admit the address.
    Network,
    /// Any user of the host may have bound the port.
    Port,
    /// A user of this host would borrow the server's rights.
    Rights,
    /// The kernel does not name the user of a process on this host.
    Owner,
    /// The export demands this protection of connections.
    Transport(TransportSecurity),
}

#[cfg(test)]
mod tests {
    use super::*;
    use dafs_rpc::PeerProcess;
    use dafs_service::{Admits, ExportOptions};
    use dafs_store::{MemoryOptions, MemoryStore};

    fn export(admits: Admits) -> Export {
        let store = Arc::new(MemoryStore::new(MemoryOptions::default()));
        Export::new("", store, ExportOptions { admits, ..ExportOptions::default() })
    }

    fn local(uid: u32) -> CallerProcess {
        CallerProcess::Known(PeerProcess { pid: 0, uid, gid: 100 })
    }

    fn from(text: &str, own_uid: u32, process: CallerProcess) -> Origin {
        Admission { own_uid }.origin(text.parse().unwrap(), process)
    }

    fn from_afar(text: &str) -> Origin {
        from(text, 0, CallerProcess::Elsewhere)
    }

    fn sys(uid: u32) -> Credential<'static> {
        let (machine, groups) = (&b"host"[..], dafs_rpc::Groups::default());
        Credential::Sys(dafs_rpc::AuthSys { stamp: 0, machine, uid, gid: 7, groups })
    }

    #[test]
    fn a_local_user_is_itself_whatever_it_claims() {
        let export = export(Admits::default());
        // A port below 1024 does not make it root.
        for address in ["127.0.0.1:2000", "127.0.0.1:800"] {
            let origin = from(address, 0, local(2000));
            assert!(origin.admitted(&export, Flavour::Sys));
            assert_eq!(origin.who(&sys(0)).cred, Cred::new(2000, 100));
            let kernel = from(address, 0, local(0));
            assert_eq!([origin.host(), kernel.host()], [2000, 0].map(Host::User));
            assert!(kernel.admitted(&export, Flavour::Sys));
            assert_eq!(kernel.who(&sys(5)).cred.uid, 5);
            // It may be any user, so it is refused.
            let unknown = from(address, 0, CallerProcess::Unknown);
            assert_eq!(unknown.refusal(&export), Some(Refusal::Owner));
        }
    }

    #[test]
    fn an_unprivileged_server_serves_no_other_local_user() {
        let export = export(Admits { unprivileged_ports: true, ..Admits::default() });
        let admits =
            |uid: u32| from("127.0.0.1:1", 3000, local(uid)).admitted(&export, Flavour::Sys);
        assert!(admits(3000) && admits(0) && !admits(2000));
    }

    #[test]
    fn a_process_that_the_kernel_names_is_that_user_whatever_its_port() {
        let export = export(Admits::default());
        for address in ["127.0.0.1:1", "127.0.0.1:65535"] {
            let user = from(address, 0, local(4000));
            assert_eq!(user.who(&sys(0)).cred, Cred::new(4000, 100));
            assert!(user.admitted(&export, Flavour::Sys));
            let root = from(address, 3000, local(0));
            assert_eq!(root.who(&sys(5)).cred.uid, 5);
            let other = from(address, 3000, local(4000));
            assert_eq!(other.refusal(&export), Some(Refusal::Rights));
        }
    }

    #[test]
    fn a_refusal_has_a_reason() {
        let networks = vec!["192.0.2.0/24".parse().unwrap()];
        let open = export(Admits { networks, ..Admits::default() });
        assert_eq!(from_afar("192.0.2.1:1023").refusal(&open), None);
        assert_eq!(from_afar("192.0.2.1:20049").refusal(&open), Some(Refusal::Port));
        assert_eq!(from_afar("192.0.3.1:20049").refusal(&open), Some(Refusal::Network));
        assert_eq!(from_afar("192.0.3.1:1023").refusal(&open), Some(Refusal::Network));
    }

    #[test]
    fn a_proof_makes_up_for_a_port_only_where_the_export_takes_proofs() {
        let networks = vec!["192.0.2.0/24".parse().unwrap()];
        let with = |flavours| Admits { flavours, networks: networks.clone(), ..Admits::default() };
        let refusals = |admits, address| {
            let (export, origin) = (export(admits), from_afar(address));
            [false, true].map(|proven| origin.refusal_of(&export, proven))
        };
        let port = Some(Refusal::Port);
        let both = || with(vec![Flavour::Sys, Flavour::Krb5]);
        assert_eq!(refusals(both(), "192.0.2.1:2000"), [port, None]);
        assert_eq!(refusals(both(), "192.0.2.1:1000"), [None, None]);
        assert_eq!(refusals(both(), "192.0.3.1:1000"), [Some(Refusal::Network); 2]);
        assert_eq!(refusals(with(vec![Flavour::Sys]), "192.0.2.1:2000"), [port, port]);
    }

    #[test]
    fn an_export_that_demands_tls_admits_no_connection_without() {
        use TransportSecurity::{Mtls, None as Clear, Tls};
        let networks = vec!["192.0.2.0/24".parse().unwrap()];
        let with = |transport_security, flavours| {
            export(Admits {
                networks: networks.clone(),
                flavours,
                transport_security,
                ..Admits::default()
            })
        };
        let origin = from_afar("192.0.2.1:1000");
        for (least, enough) in [(Clear, [true; 3]), (Tls, [false, true, true])] {
            let export = with(least, vec![Flavour::Sys]);
            let admitted = [Clear, Tls, Mtls]
                .map(|security| origin.with_security(security).admitted(&export, Flavour::Sys));
            assert_eq!(admitted, enough);
        }
        // Neither a proof nor being on this host makes up for it.
        let strict = with(Mtls, vec![Flavour::Sys, Flavour::Krb5p]);
        let refused = Some(Refusal::Transport(Mtls));
        for security in [Clear, Tls] {
            let origin = origin.with_security(security);
            assert!(!origin.admitted(&strict, Flavour::Krb5p));
            assert_eq!(
                [false, true].map(|proven| origin.refusal_of(&strict, proven)),
                [refused; 2]
            );
            assert_eq!(origin.refusal(&strict), refused);
        }
        let local = from("192.0.2.1:1000", 0, local(0));
        assert_eq!(local.refusal(&strict), refused);
        // A stranger does not learn of it.
        let stranger = from_afar("192.0.3.1:1000");
        assert_eq!(stranger.refusal(&strict), Some(Refusal::Network));
    }

    #[test]
    fn strangers_need_a_network_and_a_port() {
        let networks = vec!["192.0.2.0/24".parse().unwrap()];
        let closed = export(Admits::default());
        let open = export(Admits { networks, ..Admits::default() });
        assert!(from_afar("192.0.2.1:1023").admitted(&open, Flavour::Sys));
        assert!(!from_afar("192.0.2.1:1024").admitted(&open, Flavour::Sys));
        assert!(!from_afar("192.0.3.1:1023").admitted(&open, Flavour::Sys));
        assert!(!from_afar("192.0.2.1:1023").admitted(&closed, Flavour::Sys));
        assert!(!from_afar("192.0.2.1:1023").admitted(&open, Flavour::None));
    }

    #[test]
    fn callers_that_say_nothing_are_nobody() {
        let origin = from_afar("192.0.2.1:1000");
        let who = origin.who(&Credential::None);
        assert_eq!((who.cred, who.flavour), (Cred::new(NO_USER, NO_USER), Flavour::None));
    }
}
