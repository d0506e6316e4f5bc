//! The link to a server: one connection at a time, replaced when it is lost.
//!
//! Invariants
//! * One thread at a time connects; a thread whose lost connection another thread has replaced
//!   takes the new one.
//! * A connection that was lost as soon as it was made is not replaced without a pause: a server
//!   may accept each and answer none.
//! * Memory of the link serves all its connections, before and after a loss.
//! * A peer that has never answered and ends connections, or sends invalid answers, is no NFS
//!   server: the caller gets that error at once. The peer has as long for its first answer as for
//!   connecting.

use super::error::{MountError, Result};
use super::kerberos::Login;
use super::limits::PAUSE_MAX;
use super::options::MountOptions;
use super::retry_timer::RetryTimer;
use super::route::Route;
use super::security::SecurityFlavour;
use super::url::NfsVersion;
use crate::back::{BackChannel, BackChannels};
use dafs_mem::Mutex;
use dafs_rpc::client::{CallError, Identity, Memory, Pending, Procedure, Results, RpcClient};
use dafs_rpc::{AcceptStatus, AuthStatus, GssService, RejectStatus};
use dafs_wire::{nfs3, nfs4};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// The link to a server.
#[derive(Debug)]
pub(crate) struct Link {
    route: Route,
    login: Login,
    /// The options, with the identity at this server.
    options: MountOptions,
    /// The server has answered a call.
    has_answered: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// The number of the connection, which grows with each.
    number: u64,
    rpc: RpcClient,
    since: Instant,
    /// The handlers of the server's calls, where it may call.
    back: Option<Arc<BackChannels>>,
}

/// One connection of a link.
#[derive(Debug, Clone)]
pub(crate) struct Connected {
    pub(crate) number: u64,
    pub(crate) rpc: RpcClient,
}

impl Link {
    /// Connects for the first time, as this user.
    pub(crate) fn new(mut route: Route, options: &MountOptions, login: Login) -> Result<Self> {
        let identity = login.identity(&route)?;
        let options = MountOptions { identity, ..options.clone() };
        let rpc = route.choose(&options).map_err(|reason| MountError::Connect {
            server: route.server().clone(),
            reason: reason.into(),
        })?;
        Ok(Self {
            route,
            login,
            options,
            has_answered: AtomicBool::new(false),
            state: Mutex::new(State { number: 1, rpc, since: Instant::now(), back: None }),
        })
    }

    /// Makes the first security context, if the user is to be proven. So the user learns at once
    /// why there is none.
    pub(crate) fn establish(&self, version: NfsVersion) -> Result<()> {
        if self.flavour() == SecurityFlavour::Sys {
            return Ok(());
        }
        let mut null = null_of(version);
        let (mut retry_timer, mut connected) = (self.retry_timer(), self.connected());
        loop {
            match connected.rpc.establish(null) {
                Ok(()) => {
                    self.note_answer();
                    return Ok(());
                }
                Err(CallError::NotDone(AcceptStatus::ProgramMismatch(_)))
                    if null.version == nfs4::limits::VERSION =>
                {
                    null = null_of(NfsVersion::V3);
                }
                Err(error) if is_loss(&error) => {
                    connected = self.reconnect(&connected, &error, &mut retry_timer)?;
                }
                Err(error) => return Err(self.rejected(error)),
            }
        }
    }

    /// Ends the security context at the server, if there is one.
    pub(crate) fn farewell(&self, version: NfsVersion) {
        self.connected().rpc.end_context(null_of(version));
    }

    /// The server as the user named it.
    pub(crate) fn server(&self) -> &Arc<str> {
        self.route.server()
    }

    pub(crate) fn route(&self) -> &Route {
        &self.route
    }

    pub(crate) fn options(&self) -> &MountOptions {
        &self.options
    }

    /// The RPC options for another connection to the same host.
    pub(crate) fn rpc_options(&self) -> dafs_rpc::client::Options {
        self.route.rpc_options(&self.options)
    }

    /// The retry timeout of an operation that begins now.
    pub(crate) fn retry_timer(&self) -> RetryTimer {
        RetryTimer::new(self.options.retry_timeout)
    }

    /// The current connection, which may be lost.
    pub(crate) fn connected(&self) -> Connected {
        let state = self.state.lock();
        Connected { number: state.number, rpc: state.rpc.clone() }
    }

    /// Replaces the lost connection.
    pub(crate) fn reconnect(
        &self,
        lost: &Connected,
        why: &CallError,
        retry_timer: &mut RetryTimer,
    ) -> Result<Connected> {
        if self.is_stranger(lost, why) {
            return Err(self.stranger(why));
        }
        // The server may be slow rather than unreachable; a late answer must not be mistaken for
        // the answer to the retry.
        lost.rpc.close();
        let mut reason = why.to_string();
        if self.is_young(lost) && !retry_timer.pause() {
            return Err(self.lost(&reason));
        }
        loop {
            {
                let mut state = self.state.lock();
                if state.number != lost.number {
                    return Ok(Connected { number: state.number, rpc: state.rpc.clone() });
                }
                if !retry_timer.is_over() {
                    match self.connect(&mut state) {
                        Ok(connected) => return Ok(connected),
                        Err(error) => reason = error,
                    }
                }
            }
            if !retry_timer.pause() {
                return Err(self.lost(&reason));
            }
        }
    }

    /// Waits for an answer.
    pub(crate) fn wait(&self, pending: Pending) -> Result<Results, CallError> {
        let pending = match self.has_answered.load(Ordering::Relaxed) {
            true => pending,
            false => pending.within(self.options.connect_timeout),
        };
        pending.wait()
    }

    /// Records that the server has answered a call, so it is an NFS server.
    pub(crate) fn note_answer(&self) {
        self.has_answered.store(true, Ordering::Relaxed);
    }

    /// The error for a call that failed without a loss. A refusal is an answer as well.
    pub(crate) fn rejected(&self, error: CallError) -> MountError {
        if matches!(error, CallError::NotDone(_) | CallError::Denied(_) | CallError::Chunks) {
            self.note_answer();
        }
        if let CallError::Denied(RejectStatus::Auth(AuthStatus::TooWeak)) = error {
            let (server, uses) = (self.server().clone(), self.flavour());
            let add = match uses {
                SecurityFlavour::Sys => "sec=krb5p, krb5i or krb5",
                _ => "another sec",
            };
            return MountError::TooWeak { server, uses, add };
        }
        MountError::rejected(error)
    }

    /// The flavour of the mount.
    pub(crate) fn flavour(&self) -> SecurityFlavour {
        match &self.options.identity {
            Identity::Gss(initiator) => match initiator.service() {
                GssService::None => SecurityFlavour::Krb5,
                GssService::Integrity => SecurityFlavour::Krb5i,
                GssService::Privacy => SecurityFlavour::Krb5p,
            },
            Identity::None | Identity::Sys(_) => SecurityFlavour::Sys,
        }
    }

    /// The error for a place where the server takes these flavours, and not that of the mount.
    pub(crate) fn wrong_flavour(&self, takes: &[SecurityFlavour]) -> MountError {
        let names: Vec<&str> = takes.iter().map(|flavour| flavour.name()).collect();
        // A user who is proven is not told to claim only.
        let is_proven = |flavour: &&SecurityFlavour| flavour.service().is_some();
        let best = match self.flavour() {
            SecurityFlavour::Sys => takes.first(),
            _ => takes.iter().find(is_proven).or(takes.first()),
        };
        let (names, remedy) = match best {
            Some(best) => (names.join(", "), format!("add sec={best} to the URL")),
            None => ("no flavour that this client has".to_owned(), "ask its operator".to_owned()),
        };
        MountError::WrongFlavour {
            server: self.server().clone(),
            takes: names.into(),
            uses: self.flavour(),
            remedy: remedy.into(),
        }
    }

    /// The user in the current security context, if there is one.
    pub(crate) fn principal(&self) -> Option<String> {
        match &self.options.identity {
            Identity::Gss(initiator) => initiator.principal(),
            Identity::None | Identity::Sys(_) => None,
        }
    }

    /// The same login at the server of another host.
    pub(crate) fn login(&self) -> &Login {
        &self.login
    }

    /// True when this connection was lost to a peer that seems to be no NFS server. One connection
    /// may end for other reasons.
    fn is_stranger(&self, lost: &Connected, why: &CallError) -> bool {
        let is_sure = match why {
            CallError::Malformed | CallError::TimedOut => true,
            CallError::Disconnected(_) => lost.number > 1,
            _ => false,
        };
        is_sure && !self.has_answered.load(Ordering::Relaxed)
    }

    /// The error for a peer that does not answer as an NFS server does.
    fn stranger(&self, why: &CallError) -> MountError {
        let reason = format!(
            "what was reached there does not answer as an NFS server does ({why}); check the port, \
             and that the server lets this host in"
        );
        MountError::Connect { server: self.server().clone(), reason: reason.into() }
    }

    /// True when a connection was made a short while ago, and none since.
    fn is_young(&self, connected: &Connected) -> bool {
        let state = self.state.lock();
        state.number == connected.number && state.since.elapsed() < PAUSE_MAX
    }

    /// Replaces the connection that `state` holds.
    fn connect(&self, state: &mut State) -> Result<Connected, String> {
        let rpc = self.route.connect(&self.options, state.back.as_ref())?;
        state.number += 1;
        state.since = Instant::now();
        state.rpc = rpc.clone();
        Ok(Connected { number: state.number, rpc })
    }

    /// Replaces a connection that is over, with a single attempt.
    pub(crate) fn revive(&self) -> Result<(), String> {
        let mut state = self.state.lock();
        match state.rpc.is_broken() {
            true => self.connect(&mut state).map(drop),
            false => Ok(()),
        }
    }

    /// Accepts calls of the server from now on, over a new connection.
    pub(crate) fn take_calls(&self) -> Result<()> {
        let mut state = self.state.lock();
        state.rpc.close();
        state.back = Some(Arc::default());
        let connected = self.connect(&mut state);
        connected.map(drop).map_err(|reason| MountError::Connect {
            server: self.server().clone(),
            reason: reason.into(),
        })
    }

    /// Answers calls of this session, and of no other.
    pub(crate) fn answer(&self, channel: Arc<BackChannel>) {
        if let Some(back) = &self.state.lock().back {
            back.set(channel);
        }
    }

    pub(crate) fn lost(&self, reason: &str) -> MountError {
        MountError::Lost {
            server: self.server().clone(),
            reason: reason.into(),
            after: self.options.retry_timeout,
        }
    }

    /// Memory for transfers.
    pub(crate) fn allocate(&self, bytes: usize) -> Result<Memory> {
        self.route.allocate(bytes).map_err(|error| MountError::Memory(error.to_string().into()))
    }

    /// Ends the connection.
    pub(crate) fn close(&self) {
        self.state.lock().rpc.close();
    }
}

/// The NULL procedure.
fn null_of(version: NfsVersion) -> Procedure {
    let (program, procedure) = (nfs4::limits::PROGRAM, nfs4::limits::PROCEDURE_NULL);
    let version = match version {
        NfsVersion::V3 => nfs3::VERSION,
        NfsVersion::V41 | NfsVersion::V42 => nfs4::limits::VERSION,
    };
    Procedure { program, version, procedure }
}

/// True when the connection failed, so that the call can be retried over another one.
pub(crate) fn is_loss(error: &CallError) -> bool {
    matches!(
        error,
        CallError::Disconnected(_)
            | CallError::Malformed
            | CallError::TimedOut
            | CallError::Unverified
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::sync::atomic::AtomicUsize;
    use std::time::Duration;

    fn link_to(url: &crate::mount::NfsUrl, options: &MountOptions) -> Link {
        let login = Login::Fixed(options.identity.clone());
        Link::new(Route::new(url, 1 << 20), options, login).unwrap()
    }

    #[test]
    fn a_server_that_takes_each_connection_and_ends_it_is_not_flooded() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (taken, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::SeqCst) {
                    drop(listener.accept().unwrap());
                    taken.fetch_add(1, Ordering::SeqCst);
                }
            });
            let options = MountOptions {
                reserved_port: false,
                retry_timeout: Duration::from_millis(300),
                ..MountOptions::default()
            };
            let url = format!("nfs://{address}/").parse().unwrap();
            let link = link_to(&url, &options);
            link.note_answer();
            let why = CallError::Disconnected("it was".to_owned());
            let (mut retry_timer, mut connected) = (link.retry_timer(), link.connected());
            let lost = loop {
                match link.reconnect(&connected, &why, &mut retry_timer) {
                    Ok(again) => connected = again,
                    Err(error) => break error,
                }
            };
            assert!(matches!(lost, MountError::Lost { .. }), "{lost}");
            is_over.store(true, Ordering::SeqCst);
            drop(std::net::TcpStream::connect(address).unwrap());
        });
        // Doubling pauses leave time for few attempts; the first one is made at once.
        let taken = taken.into_inner();
        assert!((1..20).contains(&taken), "{taken} connections");
    }

    #[test]
    fn a_refusal_is_an_answer() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let options = MountOptions { reserved_port: false, ..MountOptions::default() };
        let url = format!("nfs://{}/", listener.local_addr().unwrap()).parse().unwrap();
        let link = link_to(&url, &options);
        let second = Connected { number: 2, ..link.connected() };
        let why = CallError::Disconnected("it was".to_owned());
        // A call that was not sent is no answer.
        drop(link.rejected(CallError::TooMany));
        assert!(link.is_stranger(&second, &why));
        drop(link.rejected(CallError::NotDone(AcceptStatus::ProgramUnavailable)));
        assert!(!link.is_stranger(&second, &why));
    }

    #[test]
    fn a_server_of_another_protocol_is_reported_at_once() {
        use crate::mount::Mount;
        use std::io::{Read, Write};
        for (says, query) in [
            (&b"SSH-2.0-OpenSSH\r\n"[..], ""),
            (b"HTTP/1.1 400 Bad Request\r\n\r\n", "?vers=4.1"),
            (b"", "?vers=4.2"),
            (b"", "?vers=3"),
        ] {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap();
            std::thread::spawn(move || {
                while let Ok((mut stream, _)) = listener.accept() {
                    let _ = stream.read(&mut [0; 100]);
                    let _ = stream.write_all(says);
                }
            });
            let options = MountOptions {
                reserved_port: false,
                retry_timeout: Duration::from_secs(5),
                ..MountOptions::default()
            };
            let url = format!("nfs://{address}/{query}").parse().unwrap();
            let error = Mount::connect(&url, &options).unwrap_err();
            assert!(matches!(error, MountError::Connect { .. }), "{query}: {error}");
            assert!(error.to_string().contains("check the port"), "{query}: {error}");
        }
    }

    #[test]
    fn a_silent_server_costs_one_connect_timeout() {
        use crate::mount::Mount;
        for query in ["", "?vers=4.1", "?vers=3"] {
            // Connections are made, and nothing accepts them.
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let options = MountOptions {
                reserved_port: false,
                connect_timeout: Duration::from_millis(100),
                ..MountOptions::default()
            };
            let url = format!("nfs://{}/{query}", listener.local_addr().unwrap()).parse().unwrap();
            // With the usual timeout for an answer it would be lost instead.
            let error = Mount::connect(&url, &options).unwrap_err();
            assert!(matches!(error, MountError::Connect { .. }), "{query}: {error}");
            assert!(error.to_string().contains("check the port"), "{query}: {error}");
        }
    }
}
