//! From a URL to a session: addresses, the choice of the transport, identity, opening.

mod again;

use crate::core::{CredentialIds, Failure, SessionConfig, SessionCore, Stage};
use crate::devices::{self, Choice};
use crate::driver::{Driver, Shared, Way};
use crate::error::{Error, Result};
use crate::file::OPENS;
use crate::limit::{self, Limit};
use crate::limits::{
    CONNECT_PAUSES, DEVICE_CONNECT_PAUSES, DEVICE_CONNECT_TIME, GROUPS_MAX, GSS_REQUEST_BYTES,
    SHM_RING_BYTES,
};
use crate::options::{
    Authentication, ConnectOptions, Credential, TWO_PROOFS, TWO_USERS, Transport, TransportChoice,
    TransportKind,
};
use crate::resolve::{self, Unresolved};
use crate::url::DafsUrl;
use crate::wakeup::Wakeup;
use dafs_dat::iwarp::{IwarpAdapter, IwarpConfig};
use dafs_dat::shm::{ShmAdapter, ShmConfig};
use dafs_dat::{Address, Instant, is_local, shm_socket_candidates};
use dafs_wire::dafs::Verifier;
use std::fmt::Display;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The effective options: values of the URL override those given.
pub(crate) fn options_of(url: &DafsUrl, options: &ConnectOptions) -> ConnectOptions {
    let of_url = |said: Option<Duration>, otherwise| match said {
        Some(Duration::ZERO) => None,
        Some(time) => Some(time),
        None => otherwise,
    };
    let (mut authentication, mut credential) =
        (options.authentication.clone(), options.credential.clone());
    if let (Some(credentials), Authentication::None) = (url.gss(), &authentication) {
        (authentication, credential) = (Authentication::Gss(credentials), Credential::Session);
    }
    ConnectOptions {
        authentication,
        credential,
        deadline: of_url(url.deadline(), options.deadline),
        recovery: of_url(url.recovery(), options.recovery),
        fence_id: url.fence_id().map(str::to_owned).or(options.fence_id.clone()),
        transport: url.transport().unwrap_or(options.transport),
        wait: url.wait().unwrap_or(options.wait),
        tls: url.tls().or(options.tls.clone()),
        danger_clear_passwords: url
            .danger_clear_passwords()
            .unwrap_or(options.danger_clear_passwords),
        checksums: url.checksums().unwrap_or(options.checksums),
        connect_timeout: url.connect_timeout().unwrap_or(options.connect_timeout),
        data_servers: url.data_servers().unwrap_or(options.data_servers),
        optimistic: url.optimistic().unwrap_or(options.optimistic),
        inline_padding: url.inline_padding().unwrap_or(options.inline_padding),
        ..options.clone()
    }
}

/// Opens a session with a data server of the server `metadata`, which only moves data.
pub(crate) fn open_data_server(
    address: SocketAddr,
    options: &ConnectOptions,
    metadata: &Arc<str>,
) -> Result<Arc<Shared>> {
    let (server, metadata) = (address.to_string().into(), Some(metadata.clone()));
    Target::new(server, options.clone(), metadata).open(&[address])
}

/// Opens a session with the server that `url` names. The options of the URL are in `options`
/// already.
pub(crate) fn open(url: &DafsUrl, options: &ConnectOptions) -> Result<Arc<Shared>> {
    if url.user().is_some() && matches!(options.authentication, Authentication::None) {
        // The author of the URL would expect to act as that user, and would act as this process.
        return Err(Error::Argument("the URL names a user, and nothing proves to be that user"));
    }
    let by_gss =
        matches!(options.authentication, Authentication::Gss(_) | Authentication::GssWith(_));
    let is_free = by_gss || matches!(options.authentication, Authentication::Custom(_));
    let wants_gss = url.gss().is_some();
    if wants_gss && !is_free || (wants_gss || by_gss) && url.user().is_some() {
        return Err(TWO_PROOFS);
    }
    if let (Some(user), Authentication::Text { id, .. }) = (url.user(), &options.authentication)
        && user != id
    {
        return Err(TWO_USERS);
    }
    // Done here, where waiting for the dynamic loader is allowed.
    dafs_mem::prepare_copies();
    let host = url.host();
    let server = if host.contains(':') {
        format!("[{host}]:{}", url.port())
    } else {
        format!("{host}:{}", url.port())
    };
    let target = Target::new(server.into(), options.clone(), None);
    target.open(&target.resolve(url)?)
}

/// The reason for a transport of the network.
const ELSEWHERE: &str = "the server runs on another host";

/// The reason why one address did not work.
enum Attempt {
    /// No server listens there; another address or transport may do.
    Unreachable(String),
    /// The server was reached and the session was not opened.
    Refused(Failure),
    /// A server was there, and left before there was a connection.
    Left(String),
    /// The caller wants no further attempts.
    Stopped,
}

impl Attempt {
    fn unreachable(reason: impl Display) -> Self {
        Self::Unreachable(reason.to_string())
    }

    /// The same with more words where there was no server.
    fn explained(self, explain: impl FnOnce(String) -> String) -> Self {
        match self {
            Self::Unreachable(reason) => Self::Unreachable(explain(reason)),
            other => other,
        }
    }
}

struct Target {
    options: ConnectOptions,
    server: Arc<str>,
    /// The metadata server, for a session with a data server.
    metadata: Option<Arc<str>>,
    until: Instant,
    /// The whole timeout, from the beginning.
    after: Duration,
}

impl Target {
    fn new(server: Arc<str>, options: ConnectOptions, metadata: Option<Arc<str>>) -> Self {
        let (until, after) = (Instant::now() + options.connect_timeout, options.connect_timeout);
        let (until, after) = match Limit::current() {
            Some(limit) if limit.at < until && !limit::is_stopped() => (limit.at, limit.after),
            _ => (until, after),
        };
        Self { options, server, metadata, until, after }
    }

    fn open(&self, addresses: &[SocketAddr]) -> Result<Arc<Shared>> {
        let mut reasons = Vec::new();
        for address in addresses {
            match self.try_address(*address) {
                Ok(shared) => return Ok(shared),
                // The answer of a server that was reached is final.
                Err(Attempt::Refused(failure @ Failure::Protocol(_))) => {
                    return Err(self.error(&format_args!(
                        "what was reached there does not answer as a DAFS server does ({failure}); \
                         check the port"
                    )));
                }
                Err(Attempt::Refused(failure)) => return Err(self.error(&failure)),
                Err(Attempt::Stopped) => return Err(self.error(&"interrupted")),
                Err(Attempt::Unreachable(reason) | Attempt::Left(reason)) => reasons.push(reason),
            }
        }
        Err(self.error(&reasons.join("; ")))
    }

    fn error(&self, reason: &dyn Display) -> Error {
        Error::Connect { server: self.server.clone(), reason: reason.to_string().into() }
    }

    fn resolve(&self, url: &DafsUrl) -> Result<Vec<SocketAddr>> {
        let found = resolve::addresses(url.host(), url.port(), self.until);
        found.map_err(|unresolved| match unresolved {
            Unresolved::Failed(why) => self.error(&why),
            Unresolved::Stopped => self.error(&"interrupted"),
        })
    }

    fn try_address(&self, address: SocketAddr) -> Result<Arc<Shared>, Attempt> {
        match self.options.transport {
            _ if self.options.tls.is_some() => self.try_iwarp(address, "TLS is demanded".into()),
            TransportChoice::Iwarp => self.try_iwarp(address, "it was asked for".into()),
            TransportChoice::Shm => self.try_shm(address, "it was asked for").map_err(|attempt| {
                attempt.explained(|reason| {
                    format!(
                        "no server on this host offers shared memory for {address} ({reason}); \
                             use the iwarp transport for other hosts"
                    )
                })
            }),
            TransportChoice::Verbs => self.try_verbs(address, Choice::Asked).map_err(|attempt| {
                attempt.explained(|reason| {
                    format!(
                        "{address} was not reached by an RDMA device ({reason}); check that the \
                         server listens there with --verbs, or use the iwarp transport"
                    )
                })
            }),
            TransportChoice::Auto if is_local(address) => {
                match self.try_shm(address, "the server runs on this host") {
                    Err(Attempt::Unreachable(reason)) => self.try_iwarp(
                        address,
                        format!("the server on this host offers no shared memory ({reason})"),
                    ),
                    other => other,
                }
            }
            TransportChoice::Auto if devices::may_try(self.options.rdma_devices) => {
                match self.try_verbs(address, Choice::Automatic(self.options.rdma_devices)) {
                    Err(Attempt::Unreachable(reason)) => self.try_iwarp(
                        address,
                        format!("{ELSEWHERE}, and no RDMA device is of use ({reason})"),
                    ),
                    other => other,
                }
            }
            TransportChoice::Auto => self.try_iwarp(address, ELSEWHERE.into()),
        }
    }

    /// Tries an RDMA device. A session that has chosen it by itself goes on over TCP when the device,
    /// or that of the server, is gone.
    fn try_verbs(&self, address: SocketAddr, choice: Choice) -> Result<Arc<Shared>, Attempt> {
        let way = |why: &str| -> Result<Way, Attempt> {
            let adapter = devices::open(address, choice, self.options.connect_timeout)
                .map_err(Attempt::unreachable)?;
            let why = format!("{why} {}", devices::describe(adapter.device()));
            let transport =
                Transport { kind: TransportKind::Verbs, address: address.to_string(), why };
            Ok(Way { adapter: Box::new(adapter), address: Address::Verbs(address), transport })
        };
        match choice {
            Choice::Asked => self.open_again(&DEVICE_CONNECT_PAUSES, || way("it was asked for:")),
            Choice::Automatic(_) => {
                let way = way(&format!("{ELSEWHERE} and listens for"))?;
                let lost =
                    "an RDMA device carried the session, and does not lead to the server now";
                let spare = self.iwarp(address, lost.to_owned())?;
                // TCP needs time, too.
                let limit = DEVICE_CONNECT_TIME.min(self.until.since(Instant::now()) / 2);
                self.open_session(way, Some(limit), Some(spare))
            }
        }
    }

    fn try_shm(&self, address: SocketAddr, why: &str) -> Result<Arc<Shared>, Attempt> {
        let mut reasons: Vec<String> = Vec::new();
        for name in shm_socket_candidates(address) {
            let usual = ShmConfig::default();
            let shareable_buffers_max = match self.is_data_server() {
                // The client redoes a transfer that it gives up at a data server, in the same
                // memory, so the data server must not reach it any more.
                true => 0,
                false => usual.shareable_buffers_max,
            };
            let way = || -> Result<Way, Attempt> {
                let adapter = ShmAdapter::new(ShmConfig {
                    handshake_timeout: self.options.connect_timeout,
                    guarded: true,
                    shareable_buffers_max,
                    ring_bytes: SHM_RING_BYTES,
                    ..usual
                })
                .map_err(Attempt::unreachable)?;
                let (address, why) = (name.clone(), why.to_owned());
                let transport = Transport { kind: TransportKind::Shm, address, why };
                let address = Address::Shm(name.clone());
                Ok(Way { adapter: Box::new(adapter), address, transport })
            };
            match self.open_again(&CONNECT_PAUSES, way) {
                Err(Attempt::Unreachable(reason)) if reasons.contains(&reason) => {}
                Err(Attempt::Unreachable(reason)) => reasons.push(reason),
                other => return other,
            }
        }
        Err(Attempt::Unreachable(reasons.join("; ")))
    }

    fn try_iwarp(&self, address: SocketAddr, why: String) -> Result<Arc<Shared>, Attempt> {
        let way = || self.iwarp(address, why.clone());
        self.open_again(&CONNECT_PAUSES, way).map_err(|attempt| {
            attempt.explained(|reason| {
                format!(
                    "{address}: {reason}; check that the server runs and listens for DAFS there"
                )
            })
        })
    }

    /// The way to a server over TCP.
    fn iwarp(&self, address: SocketAddr, why: String) -> Result<Way, Attempt> {
        let tls = self.options.tls.as_ref().map(|tls| tls.demand(&self.name_of(address)));
        let adapter = IwarpAdapter::new(IwarpConfig {
            crc: self.options.crc,
            tls: tls.transpose().map_err(Attempt::unreachable)?,
            handshake_timeout: self.options.connect_timeout,
            guarded: true,
            ..IwarpConfig::default()
        })
        .map_err(Attempt::unreachable)?;
        let transport = Transport { kind: TransportKind::Iwarp, address: address.to_string(), why };
        Ok(Way { adapter: Box::new(adapter), address: Address::Tcp(address), transport })
    }

    /// True if the session only moves data.
    fn is_data_server(&self) -> bool {
        self.metadata.is_some()
    }

    /// The name in the certificate of a server: that of the URL. A data server is known by its
    /// address alone; on the metadata server's host it has that host's name.
    fn name_of(&self, address: SocketAddr) -> String {
        let is_at = |host: &str| {
            let found = resolve::addresses(host, address.port(), self.until).unwrap_or_default();
            found.iter().any(|found| found.ip() == address.ip())
        };
        match self.metadata.as_deref().map(host_of) {
            Some(host) if is_at(host) => host.to_owned(),
            Some(_) => address.ip().to_string(),
            None => host_of(&self.server).to_owned(),
        }
    }

    /// Connects and opens a session. A `limit` is the time for connecting alone, where the caller has
    /// another way to the server. Then opening takes half of the time that is left, and a loss of the
    /// connection is no answer. `spare` is that way, for a session that has been opened.
    fn open_session(
        &self,
        way: Way,
        limit: Option<Duration>,
        spare: Option<Way>,
    ) -> Result<Arc<Shared>, Attempt> {
        let Way { mut adapter, address, transport } = way;
        let start = Instant::now();
        let connected_until = limit.map_or(self.until, |limit| self.until.min(start + limit));
        let opened_until = limit.map_or(self.until, |_| start + self.until.since(start) / 2);
        let config = self.session_config(transport.kind);
        let core = SessionCore::connect(&mut *adapter, config, &address, start)
            .map_err(Attempt::unreachable)?;
        let mut driver = Driver::new(adapter, core, self.server.clone(), self.options.deadline);
        let bell = Wakeup::new().map_err(Attempt::unreachable)?;
        let mut established = false;
        loop {
            let now = Instant::now();
            driver.progress(now);
            established |=
                driver.core().stage() != Stage::Connecting && driver.core().stage() != Stage::Over;
            match (driver.core().stage(), driver.core().failure()) {
                (Stage::Ready, _) => break,
                (_, Some(failure)) => {
                    let is_answer = established && (limit.is_none() || !failure.is_passing());
                    return Err(match failure {
                        failure if is_answer => Attempt::Refused(failure.clone()),
                        Failure::Lost(reason) if limit.is_none() => {
                            Attempt::Left(reason.to_string())
                        }
                        failure => Attempt::unreachable(failure),
                    });
                }
                _ => {}
            }
            if let Some(order) = driver.begin_proof(now) {
                driver.give_proof(order.prepare());
                continue;
            }
            let until = if established { opened_until } else { connected_until };
            if now >= until {
                let after = if until == self.until { self.after } else { until.since(start) };
                return Err(Attempt::unreachable(format_args!("no answer within {after:?}")));
            }
            let adapter = driver.adapter();
            adapter.flush();
            if matches!(adapter.arm(), Ok(true))
                && let Some(descriptor) = adapter.descriptor()
            {
                let sleeper = bell.sleeper(descriptor);
                let until = driver.next_timeout().map_or(until, |at| at.min(until));
                let stopped = limit::is_stopped_in(until.since(now), |time| {
                    sleeper.sleep(Some(time));
                });
                if stopped {
                    return Err(Attempt::Stopped);
                }
            }
        }
        Shared::new(driver, self.options.wait, transport, spare).map_err(Attempt::unreachable)
    }

    fn session_config(&self, kind: TransportKind) -> SessionConfig {
        let options = &self.options;
        let (name, verifier) = match &options.identity {
            Some(identity) => {
                OPENS.fetch_max(identity.next_owner, Ordering::Relaxed);
                (identity.name.clone(), Verifier(identity.verifier))
            }
            None => {
                let name = options.client_id.clone().unwrap_or_else(default_client_id);
                (name.into_bytes(), Verifier(crate::random()))
            }
        };
        let mut config = SessionConfig::new(name, verifier);
        config.client_differentiator = crate::random();
        config.session_differentiator = crate::random();
        config.fence_id = options.fence_id.as_deref().map(|id| id.as_bytes().to_vec());
        config.authenticator = options.authentication.authenticator(host_of(&self.server));
        if matches!(options.authentication, Authentication::Gss(_) | Authentication::GssWith(_)) {
            config.request_bytes = config.request_bytes.max(GSS_REQUEST_BYTES);
        }
        config.credential = credential(&options.credential);
        config.byte_order = options.byte_order;
        config.checksums = options.checksums;
        config.recovery = options.recovery;
        config.requests = options.requests.max(1);
        config.inline_bytes = options.inline_bytes;
        config.pad_writes = options.inline_padding;
        config.always_direct = kind == TransportKind::Shm;
        // Where memory can be mapped, threads read there without the session.
        config.optimistic = options.optimistic && kind != TransportKind::Shm;
        config.device_answers_reads = kind == TransportKind::Verbs;
        config.shares_identity = options.identity.is_some();
        config.is_data_server = self.is_data_server();
        // A data server's ticket is of use for one device, and has the form of a password.
        config.clear_passwords = options.danger_clear_passwords || self.is_data_server();
        config
    }
}

fn default_client_id() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let number = u64::from_ne_bytes(crate::random());
    format!("{}-{}-{number:016x}", host.trim(), std::process::id())
}

/// The host in a server's name as the user gives it, `HOST:PORT` or `[ADDRESS]:PORT`.
fn host_of(server: &str) -> &str {
    let host = server.rsplit_once(':').map_or(server, |(host, _)| host);
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

fn credential(credential: &Credential) -> Option<CredentialIds> {
    match credential {
        Credential::Process => Some(process_ids()),
        Credential::Ids { uid, gid, groups } => {
            Some(CredentialIds { uid: *uid, gid: *gid, groups: groups.clone() })
        }
        Credential::Session => None,
    }
}

/// The effective ids of this process.
pub(crate) fn process_ids() -> CredentialIds {
    let mut groups = vec![0; GROUPS_MAX];
    // SAFETY: the calls take no memory but the list, which is valid for its length.
    let (uid, gid, count) = unsafe {
        let count = libc::getgroups(groups.len() as libc::c_int, groups.as_mut_ptr());
        (libc::geteuid(), libc::getegid(), count)
    };
    // With more groups than the list holds the call fails, and none are sent.
    groups.truncate(usize::try_from(count).unwrap_or(0));
    CredentialIds { uid, gid, groups }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::WaitPolicy;
    use crate::served::{Served, Wire};
    use dafs_wire::dafs::{Request, Status};

    #[test]
    fn a_session_goes_on_by_its_other_way() {
        let served = Served::new();
        // The first connection breaks after the session was opened, and no other one leads through.
        let mut lengths = [Some(40_000)].into_iter();
        let wire = Wire::new(served.address, move || lengths.next().unwrap_or(Some(0)));
        let target = Target::new("host:1".into(), ConnectOptions::default(), None);
        let way = |address: SocketAddr| match target.iwarp(address, address.to_string()) {
            Ok(way) => way,
            Err(_) => panic!("no adapter"),
        };
        let opened = target.open_session(way(wire.address), None, Some(way(served.address)));
        let shared = opened.unwrap_or_else(|_| panic!("no session"));
        assert_eq!(shared.transport().why, wire.address.to_string());
        while shared.transport().why != served.address.to_string() {
            let reply = shared.call(&Request::Null).unwrap();
            assert_eq!(reply.status(), Status::Ok);
        }
        assert_eq!(shared.call(&Request::Null).unwrap().status(), Status::Ok);
        assert_eq!(shared.stats().restarts, 0);
    }

    #[test]
    fn a_loss_is_no_answer_where_another_way_is_left() {
        let served = Served::new();
        // It breaks between the connection and the session.
        let wire = Wire::new(served.address, || Some(250));
        let target = Target::new("host:1".into(), ConnectOptions::default(), None);
        for (limit, is_answer) in [(None, true), (Some(Duration::from_secs(60)), false)] {
            let way = target.iwarp(wire.address, String::new()).unwrap_or_else(|_| panic!());
            match target.open_session(way, limit, None) {
                Err(Attempt::Refused(_)) => assert!(is_answer),
                Err(Attempt::Unreachable(_)) => assert!(!is_answer),
                _ => panic!("a session, or an interruption"),
            }
        }
    }

    #[test]
    fn a_url_goes_before_options_in_all_that_it_says() {
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        let given = ConnectOptions {
            transport: TransportChoice::Shm,
            wait: WaitPolicy::Sleep,
            checksums: true,
            connect_timeout: Duration::from_secs(1),
            deadline: seconds(2),
            recovery: seconds(3),
            fence_id: Some("options".into()),
            ..ConnectOptions::default()
        };
        let both = |options: &str| {
            let url = DafsUrl::parse(&format!("dafs://host/{options}")).unwrap();
            let target = Target::new("host".into(), options_of(&url, &given), None);
            let config = target.session_config(TransportKind::Iwarp);
            let fence_id = config.fence_id.clone().unwrap();
            (target.options.clone(), config.recovery, config.checksums, fence_id)
        };
        let (options, recovery, checksums, fence_id) = both("");
        assert_eq!((options.transport, options.wait), (TransportChoice::Shm, WaitPolicy::Sleep));
        assert_eq!((Some(options.connect_timeout), options.deadline), (seconds(1), seconds(2)));
        assert_eq!((recovery, checksums, &fence_id[..]), (seconds(3), true, &b"options"[..]));
        let (options, recovery, checksums, fence_id) = both(
            "?transport=iwarp&wait=poll&checksums=no&connect-timeout=10&deadline=20&recovery=30\
             &fence-id=url",
        );
        assert_eq!((options.transport, options.wait), (TransportChoice::Iwarp, WaitPolicy::Poll));
        assert_eq!((Some(options.connect_timeout), options.deadline), (seconds(10), seconds(20)));
        assert_eq!((recovery, checksums, &fence_id[..]), (seconds(30), false, &b"url"[..]));
        assert!(!options.inline_padding && both("?inline-padding=yes").0.inline_padding);
        let (options, ..) = both("?sec=gss&ccache=FILE:/tmp/c");
        assert!(matches!(options.authentication, Authentication::Gss(_)));
        assert_eq!(options.credential, Credential::Session, "the server says who the client is");
        let (options, recovery, ..) = both("?deadline=0&recovery=0");
        assert_eq!((options.deadline, recovery), (None, None));
    }

    #[test]
    fn a_url_with_gss_takes_no_other_proof() {
        for (server, host) in [("h:1", "h"), ("[::1]:20490", "::1"), ("10.0.0.1:7", "10.0.0.1")] {
            assert_eq!(host_of(server), host);
        }
        let url = DafsUrl::parse("dafs://anna@127.0.0.1:1/?sec=gss").unwrap();
        let with = |url: &DafsUrl, options: &ConnectOptions| {
            open(url, &options_of(url, options)).map(drop).unwrap_err()
        };
        assert!(matches!(with(&url, &ConnectOptions::default()), Error::Argument(_)));
        let url = DafsUrl::parse("dafs://127.0.0.1:1/?sec=gss").unwrap();
        let mut text = ConnectOptions::default();
        text.prove(Authentication::Text { id: "anna".into(), password: "secret".into() });
        assert!(matches!(with(&url, &text), Error::Argument(_)));
    }

    #[test]
    fn a_user_in_the_url_must_be_proven() {
        let url = DafsUrl::parse("dafs://anna@127.0.0.1:1/").unwrap();
        let refused = open(&url, &ConnectOptions::default()).map(drop).unwrap_err();
        assert!(matches!(refused, Error::Argument(_)), "{refused}");
        let mut options = ConnectOptions::default();
        options.prove_by_password(&url, None, Some("secret".into())).unwrap();
        let refused = open(&url, &options).map(drop).unwrap_err();
        assert!(matches!(refused, Error::Connect { .. }), "{refused}");
    }
}
