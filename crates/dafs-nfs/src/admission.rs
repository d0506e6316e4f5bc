//! Who a caller is, and which exports it may reach.
//!
//! A caller of AUTH_SYS only claims to be somebody. What makes that worth anything is where it calls
//! from: a port below 1024 belongs to root of the caller's host, and of processes on this host the
//! kernel knows the user. Connections for RDMA come from any port, so that other hosts that use it are
//! let in only where an export allows unprivileged ports.
//!
//! Invariants
//! * A process of this host that is neither root's nor the server's own user's acts as its own
//!   user, whatever it claims.
//! * A server that cannot act as other users lends its own rights to nobody of this host but its own
//!   user and root.

use dafs_rpc::Credential;
use dafs_service::{Export, Flavour, Host, NO_USER};
use dafs_store::Cred;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// Ports from here on can be had by every user of a host.
const UNPRIVILEGED_PORT_MIN: u16 = 1024;

/// Finds the user and main group of the process of this host that connected from an address.
pub type FindOwner = Arc<dyn Fn(SocketAddr) -> Option<(u32, u32)> + Send + Sync>;

/// What admission depends on.
#[derive(Clone)]
pub struct Admission {
    /// Looks at this host's processes.
    pub find_owner: FindOwner,
    /// The user that the server runs as.
    pub own_uid: u32,
}

impl std::fmt::Debug for Admission {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Admission").field("own_uid", &self.own_uid).finish_non_exhaustive()
    }
}

/// What the place that a connection comes from says about its callers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trust {
    /// They are believed.
    Believed,
    /// They are this user, with this group.
    Known(u32, u32),
    /// They may be anybody of their host.
    Anybody,
    /// They are of this host, and would borrow the server's rights.
    Refused,
}

/// Where a connection comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Origin {
    address: IpAddr,
    trust: Trust,
}

/// Who calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Who {
    /// With whose rights.
    pub cred: Cred,
    /// How that was said.
    pub flavour: Flavour,
}

impl Admission {
    /// Looks at where a connection comes from, once for each. `process` is who is at the other end,
    /// with its main group, if the transport has it from the kernel.
    pub fn origin(&self, peer: SocketAddr, process: Option<(u32, u32)>) -> Origin {
        let address = peer.ip().to_canonical();
        let trust = if let Some(process) = process {
            self.trust(process)
        } else if peer.port() < UNPRIVILEGED_PORT_MIN {
            Trust::Believed
        } else if !address.is_loopback() {
            Trust::Anybody
        } else {
            (self.find_owner)(peer).map_or(Trust::Anybody, |owner| self.trust(owner))
        };
        Origin { address, trust }
    }

    /// What a user of this host is worth.
    fn trust(&self, (uid, gid): (u32, u32)) -> Trust {
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
    /// Where it is.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// Whose share of what all have in common callers from here take: that of their user, if they are
    /// users of this host, or else of their host.
    pub fn host(&self) -> Host {
        match self.trust {
            Trust::Known(uid, _) => Host::User(uid),
            _ => Host::of(self.address),
        }
    }

    /// Whether callers from here are who they are, whatever they claim.
    pub fn is_certain(&self) -> bool {
        matches!(self.trust, Trust::Known(..))
    }

    /// Who calls over a connection from here with this credential.
    pub fn who(&self, credential: &Credential<'_>) -> Who {
        match (credential, self.trust) {
            (Credential::Sys(_), Trust::Known(uid, gid)) => {
                Who { cred: Cred::new(uid, gid), flavour: Flavour::Sys }
            }
            (Credential::Sys(sys), _) => {
                let groups: Arc<[u32]> = Arc::from(&*sys.groups);
                Who { cred: Cred { uid: sys.uid, gid: sys.gid, groups }, flavour: Flavour::Sys }
            }
            _ => Who { cred: Cred::new(NO_USER, NO_USER), flavour: Flavour::None },
        }
    }

    /// Whether a caller from here may reach an export.
    pub fn admitted(&self, export: &Export, flavour: Flavour) -> bool {
        let privileged = match self.trust {
            Trust::Believed | Trust::Known(..) => true,
            Trust::Anybody => false,
            Trust::Refused => return false,
        };
        export.options().admits.admits(self.address, flavour, privileged)
    }

    /// Why no caller from here may reach an export; `None` if some may.
    pub(crate) fn refusal(&self, export: &Export) -> Option<Refusal> {
        let flavours = [Flavour::Sys, Flavour::None];
        if flavours.iter().any(|&flavour| self.admitted(export, flavour)) {
            return None;
        }
        let admits = &export.options().admits;
        let by_port = |flavour: &Flavour| admits.admits(self.address, *flavour, true);
        Some(match self.trust {
            Trust::Refused => Refusal::Rights,
            _ if flavours.iter().any(by_port) => Refusal::Port,
            _ => Refusal::Network,
        })
    }
}

/// Why nobody of a place is let in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Refusal {
    /// The address is not one of the export's.
    Network,
    /// Any user of the host may have the port.
    Port,
    /// A user of this host would borrow the server's rights.
    Rights,
}

#[cfg(test)]
mod tests {
    use super::*;
    use dafs_service::{Admits, ExportOptions};
    use dafs_store::{MemoryOptions, MemoryStore};

    fn export(admits: Admits) -> Export {
        let store = Arc::new(MemoryStore::new(MemoryOptions::default()));
        Export::new("", store, ExportOptions { admits, ..ExportOptions::default() })
    }

    fn admission(own_uid: u32) -> Admission {
        // Each port belongs to the user of that number.
        Admission { find_owner: Arc::new(|peer| Some((peer.port().into(), 100))), own_uid }
    }

    fn sys(uid: u32) -> Credential<'static> {
        let (machine, groups) = (&b"host"[..], dafs_rpc::Groups::default());
        Credential::Sys(dafs_rpc::AuthSys { stamp: 0, machine, uid, gid: 7, groups })
    }

    #[test]
    fn a_local_user_is_itself_whatever_it_claims() {
        let export = export(Admits::default());
        let origin = admission(0).origin("127.0.0.1:2000".parse().unwrap(), None);
        assert!(origin.admitted(&export, Flavour::Sys));
        assert_eq!(origin.who(&sys(0)).cred, Cred::new(2000, 100));
        let kernel = admission(0).origin("127.0.0.1:800".parse().unwrap(), None);
        assert!(kernel.admitted(&export, Flavour::Sys));
        assert_eq!(kernel.who(&sys(5)).cred.uid, 5);
    }

    #[test]
    fn an_unprivileged_server_serves_no_other_local_user() {
        let export = export(Admits { unprivileged_ports: true, ..Admits::default() });
        let admits = |port: u16| {
            let peer = SocketAddr::from(([127, 0, 0, 1], port));
            admission(3000).origin(peer, None).admitted(&export, Flavour::Sys)
        };
        assert!(admits(3000) && !admits(2000));
    }

    #[test]
    fn a_process_that_the_kernel_names_is_that_user_whatever_its_port() {
        let export = export(Admits::default());
        for port in [1, 65_535] {
            let peer = SocketAddr::from(([127, 0, 0, 1], port));
            let user = admission(0).origin(peer, Some((4000, 100)));
            assert_eq!(user.who(&sys(0)).cred, Cred::new(4000, 100));
            assert!(user.admitted(&export, Flavour::Sys));
            let root = admission(3000).origin(peer, Some((0, 0)));
            assert_eq!(root.who(&sys(5)).cred.uid, 5);
            let other = admission(3000).origin(peer, Some((4000, 100)));
            assert_eq!(other.refusal(&export), Some(Refusal::Rights));
        }
    }

    #[test]
    fn a_refusal_has_a_reason() {
        let networks = vec!["192.0.2.0/24".parse().unwrap()];
        let open = export(Admits { networks, ..Admits::default() });
        let from = |text: &str| admission(0).origin(text.parse().unwrap(), None);
        assert_eq!(from("192.0.2.1:1023").refusal(&open), None);
        assert_eq!(from("192.0.2.1:20049").refusal(&open), Some(Refusal::Port));
        assert_eq!(from("192.0.3.1:20049").refusal(&open), Some(Refusal::Network));
        assert_eq!(from("192.0.3.1:1023").refusal(&open), Some(Refusal::Network));
    }

    #[test]
    fn strangers_need_a_network_and_a_port() {
        let networks = vec!["192.0.2.0/24".parse().unwrap()];
        let closed = export(Admits::default());
        let open = export(Admits { networks, ..Admits::default() });
        let from = |text: &str| admission(0).origin(text.parse().unwrap(), None);
        assert!(from("192.0.2.1:1023").admitted(&open, Flavour::Sys));
        assert!(!from("192.0.2.1:1024").admitted(&open, Flavour::Sys));
        assert!(!from("192.0.3.1:1023").admitted(&open, Flavour::Sys));
        assert!(!from("192.0.2.1:1023").admitted(&closed, Flavour::Sys));
        assert!(!from("192.0.2.1:1023").admitted(&open, Flavour::None));
    }

    #[test]
    fn callers_that_say_nothing_are_nobody() {
        let origin = admission(0).origin("192.0.2.1:1000".parse().unwrap(), None);
        let who = origin.who(&Credential::None);
        assert_eq!((who.cred, who.flavour), (Cred::new(NO_USER, NO_USER), Flavour::None));
    }
}
