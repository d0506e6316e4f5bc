//! How to connect and how to wait.

use crate::cache::CacheOptions;
use crate::core::{Authenticator, Exchange, Fixed, Proof};
use crate::error::{Error, Result};
use crate::gss::{GssAuthenticator, GssCredentials, Tell};
use crate::limits::{
    CONNECT_TIMEOUT, CREDITS_PROPOSED, INLINE_BYTES_DEFAULT, OPERATION_DEADLINE, RECOVERY_LIMIT,
};
use crate::successor::ClientIdentity;
use crate::url::DafsUrl;
pub use dafs_dat::WaitPolicy;
use dafs_dat::tls::ClientTls;
pub use dafs_tls::TransportSecurity;
use dafs_tls::{ClientFiles, Protocol, ReloadingClient};
pub use dafs_wire::dafs::ByteOrder;
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

/// The transport to use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum TransportChoice {
    /// Shared memory when the server runs on this host, an RDMA adapter when one leads to a server
    /// that listens there, too, else iWARP over TCP. [`ConnectOptions::rdma_devices`] says which
    /// devices may be chosen.
    #[default]
    Auto,
    /// iWARP over TCP.
    Iwarp,
    /// Shared memory.
    Shm,
    /// An RDMA device of this host.
    Verbs,
}

impl FromStr for TransportChoice {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        match name {
            "auto" => Ok(Self::Auto),
            "iwarp" => Ok(Self::Iwarp),
            "shm" => Ok(Self::Shm),
            "verbs" => Ok(Self::Verbs),
            _ => Err(Error::Argument("a transport is \"auto\", \"iwarp\", \"shm\" or \"verbs\"")),
        }
    }
}

/// The RDMA devices that [`TransportChoice::Auto`] may choose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum RdmaDevices {
    /// None.
    None,
    /// Adapters for RoCE or InfiniBand. The kernel handles each packet of a device in software (rxe),
    /// and no measurement shows that this is faster than iWARP over TCP.
    #[default]
    Adapters,
    /// rxe, too.
    All,
}

/// The transport in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum TransportKind {
    /// iWARP over TCP.
    Iwarp,
    /// Shared memory of one host.
    Shm,
    /// An RDMA device.
    Verbs,
    /// The simulated network of the tests.
    Sim,
}

impl fmt::Display for TransportKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Iwarp => "iwarp",
            Self::Shm => "shm",
            Self::Verbs => "verbs",
            Self::Sim => "sim",
        })
    }
}

/// The transport that a client uses, and the reason. Prints as one sentence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transport {
    /// The kind of transport.
    pub kind: TransportKind,
    /// The remote address, in the transport's notation.
    pub address: String,
    /// The reason for this choice.
    pub why: String,
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind, self.why)
    }
}

/// The demand of TLS below the transport. Every connection of the session has it, or is not used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsOptions {
    /// `Tls`, or `Mtls` to use only servers that verify their clients, too.
    pub least: TransportSecurity,
    /// The file with the authorities that vouch for the server; `None` for those of the system.
    pub authorities: Option<PathBuf>,
    /// The files with the certificate of this client and its key.
    pub own: Option<(PathBuf, PathBuf)>,
}

impl Default for TlsOptions {
    fn default() -> Self {
        Self { least: TransportSecurity::Tls, authorities: None, own: None }
    }
}

impl TlsOptions {
    /// Reads the files, for a server whose certificate has `name`.
    pub(crate) fn demand(&self, name: &str) -> Result<ClientTls, String> {
        let (certificate, key) = self.own.clone().unzip();
        let authorities = self.authorities.clone().unwrap_or_else(|| SYSTEM_AUTHORITIES.into());
        let files = ClientFiles { authorities, revocations: None, certificate, key };
        let files = ReloadingClient::open(files, dafs_dat::tls::now_seconds());
        let files = Arc::new(files.map_err(|error| error.to_string())?);
        Ok(ClientTls::new(files, name, self.least, Protocol::Dafs))
    }
}

/// The authorities that the system trusts, as Debian installs them.
const SYSTEM_AUTHORITIES: &str = "/etc/ssl/certs/ca-certificates.crt";

/// The identity on whose behalf requests are made, if the server trusts this client to name it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Credential {
    /// The effective user, group and supplementary groups of this process.
    #[default]
    Process,
    /// These ids.
    Ids {
        /// User id.
        uid: u32,
        /// Group id.
        gid: u32,
        /// Supplementary groups.
        groups: Vec<u32>,
    },
    /// The session's own credential, as the server derives it from the authentication.
    Session,
}

/// The way the client authenticates.
#[derive(Clone, Default)]
pub enum Authentication {
    /// Not at all; the server accepts it only from addresses that it trusts.
    #[default]
    None,
    /// A name and a password, in clear text inside the connection: see
    /// [`danger_clear_passwords`](ConnectOptions::danger_clear_passwords).
    Text {
        /// The name.
        id: String,
        /// The password.
        password: String,
    },
    /// By Kerberos, with these tickets, as the service `dafs` of the host in the URL demands. The client renews the
    /// proof before its end, with the tickets that are there then.
    Gss(GssCredentials),
    /// The same, with the tickets that a function tells.
    GssWith(GssSource),
    /// A mechanism of the caller's, which starts a fresh exchange at every connect.
    Custom(Arc<dyn Authenticator>),
}

/// A function that tells which tickets to use.
#[derive(Clone)]
pub struct GssSource(Arc<Tell>);

impl fmt::Debug for GssSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GssSource")
    }
}

impl Authentication {
    /// Authenticates as [`Text`](Self::Text) with the name and password that `tell` returns at
    /// every connect, also when a lost connection is replaced. So they need not stay in memory, and
    /// may change while the session lasts. An error of `tell` is shown to the user.
    ///
    /// The thread that connects calls it with the session locked: it must not use the client, and
    /// the whole session waits until it returns.
    pub fn callback<F>(tell: F) -> Self
    where
        F: Fn() -> Result<(String, String), String> + Send + Sync + 'static,
    {
        Self::Custom(Arc::new(Callback(tell)))
    }

    /// Authenticates as [`Gss`](Self::Gss) with the tickets that `tell` names at every exchange: at every connect,
    /// and whenever the proof is renewed. An error of `tell` is shown to the user.
    ///
    /// The thread that opens the session calls it, and for later connections and renewals one of the library, while
    /// the session goes on.
    pub fn gss_callback<F>(tell: F) -> Self
    where
        F: Fn() -> Result<GssCredentials, String> + Send + Sync + 'static,
    {
        Self::GssWith(GssSource(Arc::new(tell)))
    }

    /// The authenticator for the server on a host.
    pub(crate) fn authenticator(&self, host: &str) -> Arc<dyn Authenticator> {
        let gss = |tell: Arc<Tell>| -> Arc<dyn Authenticator> {
            match GssAuthenticator::new(host, tell) {
                Ok(gss) => Arc::new(gss),
                Err(reason) => Arc::new(Nothing(reason)),
            }
        };
        match self {
            Self::None => Arc::new(Fixed::new(Proof::None)),
            Self::Text { id, password } => {
                let (id, password) = (id.clone().into_bytes(), password.clone().into_bytes());
                Arc::new(Fixed::new(Proof::Text { id, password }))
            }
            Self::Gss(credentials) => {
                let credentials = credentials.clone();
                gss(Arc::new(move || Ok(credentials.clone())))
            }
            Self::GssWith(source) => gss(source.0.clone()),
            Self::Custom(custom) => custom.clone(),
        }
    }
}

/// There is no proof, for this reason.
struct Nothing(String);

impl Authenticator for Nothing {
    fn start(&self, _binding: Option<&[u8]>) -> Result<Box<dyn Exchange>, String> {
        Err(self.0.clone())
    }
}

/// Calls a function of the application's.
struct Callback<F>(F);

impl<F> Authenticator for Callback<F>
where
    F: Fn() -> Result<(String, String), String> + Send + Sync,
{
    fn start(&self, _binding: Option<&[u8]>) -> Result<Box<dyn Exchange>, String> {
        // A panic would leave the session half connected.
        let told = std::panic::catch_unwind(AssertUnwindSafe(&self.0));
        let (id, password) = told.unwrap_or_else(|_| {
            Err("the function of this program that tells user and password has panicked".into())
        })?;
        let (id, password) = (id.into_bytes(), password.into_bytes());
        Ok(Fixed::exchange(Proof::Text { id, password }))
    }
}

impl fmt::Debug for Authentication {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("None"),
            // The password stays out of logs.
            Self::Text { id, .. } => write!(f, "Text({id:?})"),
            Self::Gss(credentials) => write!(f, "Gss({credentials:?})"),
            Self::GssWith(_) => f.write_str("GssWith"),
            Self::Custom(_) => f.write_str("Custom"),
        }
    }
}

/// Everything about a connection that is not in the URL.
#[derive(Debug, Clone)]
pub struct ConnectOptions {
    /// The transport to use. A URL with `transport=`, `wait=`, `checksums=` or `connect-timeout=`
    /// overrides these options.
    pub transport: TransportChoice,
    /// The RDMA devices that [`TransportChoice::Auto`] may choose. With one of them its libraries are
    /// loaded into the process, and their descriptors are not protected from a program that closes
    /// all that are open.
    pub rdma_devices: RdmaDevices,
    /// The way threads wait.
    pub wait: WaitPolicy,
    /// The credential of requests.
    pub credential: Credential,
    /// The authentication of the session.
    pub authentication: Authentication,
    /// DAFS checksums over messages and data.
    pub checksums: bool,
    /// CRC32C on iWARP. TLS has checks of its own.
    pub crc: bool,
    /// TLS below iWARP; shared memory and RDMA devices are not used then. A `dafss://` URL overrides this.
    pub tls: Option<TlsOptions>,
    /// A password may leave this host in clear text. Otherwise it is sent inside TLS and to servers
    /// on this host only. A URL with `danger-clear-passwords=` overrides this.
    pub danger_clear_passwords: bool,
    /// The byte order of the session; the server follows the client (DAFS 2).
    pub byte_order: ByteOrder,
    /// Time for connecting and opening the session.
    pub connect_timeout: Duration,
    /// The time in which an operation must be answered; then it fails and the connection is given
    /// up. A procedure that waits for stable storage or for its turn in a queue has as long since
    /// the server's last answer to anything, and ten times as long in all. `None` waits as long as
    /// the transport does. A URL with `deadline=SECONDS` overrides this (0 for `None`);
    /// [`within`](crate::within) sets a shorter time for the calls of one thread.
    ///
    /// Over shared memory an operation on a buffer of [`Client::buffer`](crate::Client::buffer)
    /// that the server has received may end later, when the server has released the buffer.
    pub deadline: Option<Duration>,
    /// The time for replacing a lost connection, until the server answers the application again. In
    /// it the application sees only latency; each call keeps its deadline. `None` ends the session
    /// with its connection. A URL with `recovery=SECONDS` overrides this.
    pub recovery: Option<Duration>,
    /// Requests that may be outstanding, as proposed to the server.
    pub requests: u16,
    /// Reads and writes up to this many bytes travel inside messages where the transport does not
    /// map memory. 0 sends everything direct.
    pub inline_bytes: u32,
    /// Pads the data of writes and appends inside messages, so that it arrives aligned at the server
    /// (DAFS 13.1). Each such message is some hundred bytes longer. A URL with `inline-padding=`
    /// overrides this.
    pub inline_padding: bool,
    /// Names this client to the server across restarts of the session; `None` makes one of the
    /// host name, the process id and a random number.
    pub client_id: Option<String>,
    /// The client whose place this process takes ([`Client::identity`](crate::Client::identity));
    /// its name overrides `client_id`.
    pub identity: Option<ClientIdentity>,
    /// Caches file content in this process, as far as the server grants delegations; `None` sends
    /// every read and write to the server.
    pub cache: Option<CacheOptions>,
    /// Reads and writes at data servers, where the server grants layouts (pNFS). A URL with `pnfs=`
    /// overrides this. Off by default: the submission of an operation may then wait for the server
    /// and for data servers.
    pub data_servers: bool,
    /// Reads files without requests from memory that a server shows, where an export does so: reads of
    /// at most 64 KiB that the client's own cache has not, except in batches and chains. On the
    /// server's host the client maps the memory, and each hit costs one copy. Over iWARP and RDMA
    /// devices it reads by RDMA, over a second connection. Hits move no access time. A URL with
    /// `optimistic=` overrides this.
    pub optimistic: bool,
    /// The identity for fencing (DAFS 11). A URL with `fence-id=NAME` overrides this.
    pub fence_id: Option<String>,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        Self {
            transport: TransportChoice::default(),
            rdma_devices: RdmaDevices::default(),
            wait: WaitPolicy::default(),
            credential: Credential::default(),
            authentication: Authentication::default(),
            checksums: false,
            crc: false,
            tls: None,
            danger_clear_passwords: false,
            byte_order: ByteOrder::NATIVE,
            connect_timeout: CONNECT_TIMEOUT,
            deadline: Some(OPERATION_DEADLINE),
            recovery: Some(RECOVERY_LIMIT),
            requests: CREDITS_PROPOSED,
            inline_bytes: INLINE_BYTES_DEFAULT,
            inline_padding: false,
            client_id: None,
            identity: None,
            cache: None,
            data_servers: false,
            optimistic: false,
            fence_id: None,
        }
    }
}

impl ConnectOptions {
    /// Authenticates, and acts as the user proven, even on a server that would trust this process
    /// to be another one.
    pub fn prove(&mut self, authentication: Authentication) {
        self.authentication = authentication;
        self.credential = Credential::Session;
    }

    /// Authenticates by password as `user`, or as the user that `url` names. Without user and
    /// password there is no authentication.
    ///
    /// # Errors
    /// [`Error::Argument`] for a user without a password, a password without a user, or two
    /// different users.
    pub fn prove_by_password(
        &mut self,
        url: &DafsUrl,
        user: Option<&str>,
        password: Option<String>,
    ) -> Result<()> {
        if user.zip(url.user()).is_some_and(|(user, of_url)| user != of_url) {
            return Err(TWO_USERS);
        }
        match (user.or(url.user()), password) {
            (Some(id), Some(password)) => {
                self.prove(Authentication::Text { id: id.to_owned(), password });
                Ok(())
            }
            (None, None) => Ok(()),
            (Some(_), None) => Err(Error::Argument("there is a user and no password")),
            (None, Some(_)) => {
                Err(Error::Argument("there is a password and no user: dafs://USER@HOST/"))
            }
        }
    }
}

/// The author of the URL would expect to act as the user that it names.
pub(crate) const TWO_USERS: Error =
    Error::Argument("the URL names a user, and another one is to be proven; leave one of them out");

/// Kerberos tells who the user is.
pub(crate) const TWO_PROOFS: Error = Error::Argument(
    "the URL says sec=gss, and a user or a password is given, too; leave one of them out",
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_authenticated_user_acts_as_that_user() {
        let with = |url: &str, user, password: Option<&str>| {
            let mut options = ConnectOptions::default();
            let url = DafsUrl::parse(url).unwrap();
            options.prove_by_password(&url, user, password.map(str::to_owned))?;
            let id = match options.authentication {
                Authentication::Text { id, .. } => Some(id),
                _ => None,
            };
            Ok::<_, Error>((id, options.credential))
        };
        let anna = (Some("anna".to_owned()), Credential::Session);
        assert_eq!(with("dafs://anna@host/", None, Some("secret")).unwrap(), anna);
        assert_eq!(with("dafs://anna@host/", Some("anna"), Some("secret")).unwrap(), anna);
        assert_eq!(with("dafs://host/", Some("anna"), Some("secret")).unwrap(), anna);
        assert!(with("dafs://bert@host/", Some("anna"), Some("secret")).is_err());
        assert_eq!(with("dafs://host/", None, None).unwrap(), (None, Credential::Process));
        assert!(with("dafs://anna@host/", None, None).is_err());
        assert!(with("dafs://host/", None, Some("secret")).is_err());
    }
}
