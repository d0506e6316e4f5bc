//! Proof of identity by GSS: the exchange of tokens for `dafs@HOST` with a mechanism of `dafs_gss`, which is Kerberos
//! by the system's library (DAFS 4.5).
//!
//! Invariants
//! * The server must prove its own identity. A session with one that does not is not opened.
//! * Nothing is kept of an established context but the name of the principal and its end: no message of DAFS uses
//!   its keys.
//! * Tickets are looked for anew in each exchange, so renewed ones are used.

use crate::core::{Authenticator, Challenge, Exchange, Proof, ProofMethod, Proven};
use dafs_gss::library::Initiator;
use dafs_gss::mechanism::{Established, Initiate, Pending, ServiceName, Step, Wanted};
use dafs_mem::Mutex;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

/// The tickets to use: the default cache, a cache by its name, or a keytab.
pub use dafs_gss::library::Credentials as GssCredentials;

/// The name of the service.
const SERVICE: &str = "dafs";

/// INIT and CONTINUE_INIT (DAFS 4.5).
const PROCEDURES: [u32; 2] = [1, 2];

/// AUTH (DAFS 4.5): GSS proves identities, and protects no messages.
const SERVICE_AUTH: u32 = 1;

/// A function that tells which tickets to use.
pub(crate) type Tell = dyn Fn() -> Result<GssCredentials, String> + Send + Sync;

/// Authenticates by GSS.
pub struct GssAuthenticator {
    source: Source,
    target: ServiceName,
}

enum Source {
    /// The system's library, with the tickets that the function tells, and the last of these.
    Library(Arc<Tell>, Mutex<Option<(GssCredentials, Arc<dyn Initiate>)>>),
    Given(Arc<dyn Initiate>),
}

impl GssAuthenticator {
    /// Authenticates to the server on a host by Kerberos, with the tickets that `tell` names at each exchange.
    pub(crate) fn new(host: &str, tell: Arc<Tell>) -> Result<Self, String> {
        let target = ServiceName::new(SERVICE, host).map_err(|error| error.to_string())?;
        Ok(Self { source: Source::Library(tell, Mutex::default()), target })
    }

    /// Authenticates to a service by another mechanism, such as that of `dafs_gss::testing`.
    pub fn by(initiator: Arc<dyn Initiate>, target: ServiceName) -> Self {
        Self { source: Source::Given(initiator), target }
    }

    fn initiator(&self) -> Result<Arc<dyn Initiate>, String> {
        let (tell, last) = match &self.source {
            Source::Given(initiator) => return Ok(initiator.clone()),
            Source::Library(tell, last) => (tell, last),
        };
        // A panic would leave the session half connected.
        let told = std::panic::catch_unwind(AssertUnwindSafe(&**tell)).unwrap_or_else(|_| {
            Err("the function of this program that tells the credentials has panicked".into())
        })?;
        let mut last = last.lock();
        // With a keytab the library keeps the tickets that it has fetched.
        if let Some((credentials, initiator)) = &*last
            && *credentials == told
        {
            return Ok(initiator.clone());
        }
        let initiator = Initiator::new(told.clone()).map_err(|error| error.to_string())?;
        let initiator: Arc<dyn Initiate> = Arc::new(initiator);
        *last = Some((told, initiator.clone()));
        Ok(initiator)
    }
}

impl Authenticator for GssAuthenticator {
    fn start(&self, binding: Option<&[u8]>) -> Result<Box<dyn Exchange>, String> {
        let (initiator, target) = (self.initiator()?, self.target.clone());
        let binding = binding.map(Box::from);
        Ok(Box::new(Context { initiator, target, binding, state: State::New }))
    }

    /// The library may ask a KDC.
    fn may_wait(&self) -> bool {
        true
    }
}

/// A context on the way.
struct Context {
    initiator: Arc<dyn Initiate>,
    target: ServiceName,
    /// The channel binding of the connection.
    binding: Option<Box<[u8]>>,
    state: State,
}

enum State {
    New,
    Pending(Pending),
    /// The mechanism needs nothing more of the server.
    Done(Box<Established>),
    Over,
}

impl Context {
    /// Takes a token of the server; returns that for it.
    fn step(&mut self, token: &[u8]) -> Result<Option<Vec<u8>>, String> {
        let pending = match std::mem::replace(&mut self.state, State::Over) {
            State::New => None,
            State::Pending(pending) => Some(pending),
            State::Done(_) | State::Over => {
                return Err("the server asks for more tokens than the mechanism has".into());
            }
        };
        let wanted =
            Wanted { target: &self.target, mutual: true, bindings: self.binding.as_deref() };
        match self.initiator.initiate(pending, &wanted, token) {
            Step::Continue { pending, token } => {
                self.state = State::Pending(pending);
                Ok(Some(token))
            }
            Step::Done(mut done) => {
                let token = done.token.take();
                self.state = State::Done(done);
                Ok(token)
            }
            Step::Failed(failure) => Err(failure.to_string()),
        }
    }
}

impl Exchange for Context {
    fn prove(&mut self, challenge: Option<&Challenge>) -> Result<Proof, String> {
        let token = self.step(challenge.map_or(&[], |challenge| &challenge.token))?;
        let token = token.ok_or("the server asks for a token that the mechanism does not have")?;
        let procedure = PROCEDURES[usize::from(challenge.is_some())];
        Ok(Proof::Gss { procedure, service: SERVICE_AUTH, token })
    }

    fn accepted(&mut self, answer: &Challenge) -> Result<Proven, String> {
        if matches!(self.state, State::Pending(_)) {
            self.step(&answer.token).map_err(|reason| {
                format!("the server at {} did not prove who it is: {reason}", self.target)
            })?;
        }
        match &self.state {
            State::Done(done) if done.mutual => {
                let now = UNIX_EPOCH.elapsed().unwrap_or_default();
                let left = Duration::from_secs(done.end_time_seconds).saturating_sub(now);
                let name = Some(done.principal.display().to_owned());
                Ok(Proven { method: ProofMethod::Gss, name, left: Some(left) })
            }
            _ => Err(format!("the server at {} did not prove who it is", self.target)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dafs_gss::mechanism::Accept;
    use dafs_gss::testing::{Toy, ToyAcceptor};
    use dafs_gss::token::Enctype;

    fn service() -> ServiceName {
        ServiceName::new("dafs", "server").unwrap()
    }

    fn toy(secret: u8) -> Toy {
        Toy::new([secret; 16], Enctype::Aes256Sha1)
    }

    /// An exchange up to the acceptor's last answer.
    fn run(rounds: u8, acceptor: &ToyAcceptor) -> (Box<dyn Exchange>, Challenge) {
        let initiator = Arc::new(toy(3).initiator("anna@TOY", rounds, u64::MAX >> 32));
        let mut exchange = GssAuthenticator::by(initiator, service()).start(None).unwrap();
        let (mut challenge, mut state) = (None, None);
        for round in 1.. {
            let proof = exchange.prove(challenge.as_ref()).unwrap();
            let Proof::Gss { procedure, service: 1, token } = proof else { panic!("{proof:?}") };
            assert_eq!(procedure, if round == 1 { 1 } else { 2 });
            let token = match acceptor.accept(state.take(), &token, None) {
                Step::Continue { pending, token } => {
                    state = Some(pending);
                    token
                }
                Step::Done(done) => {
                    assert_eq!(round, rounds);
                    let token = done.token.unwrap();
                    return (exchange, Challenge { token, ..Challenge::default() });
                }
                Step::Failed(failure) => panic!("{failure}"),
            };
            challenge = Some(Challenge { major: 1, minor: 0, token });
        }
        unreachable!()
    }

    #[test]
    fn an_exchange_has_as_many_rounds_as_its_mechanism() {
        for rounds in 1..4 {
            let (mut exchange, answer) = run(rounds, &toy(3).acceptor(service()));
            let proven = exchange.accepted(&answer).unwrap();
            assert_eq!(proven.name.as_deref(), Some("anna@TOY"));
            assert_eq!(proven.method, ProofMethod::Gss);
            assert!(proven.left.is_some());
        }
    }

    #[test]
    fn a_server_that_proves_nothing_is_refused() {
        let acceptor = toy(3).acceptor(service());
        for spoil in [
            |_: &mut Vec<u8>| Vec::new(),
            |token: &mut Vec<u8>| token.split_off(1),
            |token: &mut Vec<u8>| {
                token[0] ^= 1;
                std::mem::take(token)
            },
        ] {
            let (mut exchange, mut answer) = run(1, &acceptor);
            answer.token = spoil(&mut answer.token);
            let reason = exchange.accepted(&answer).unwrap_err();
            assert!(reason.contains("did not prove who it is"), "{reason}");
            assert!(exchange.prove(Some(&answer)).is_err(), "there is no second attempt");
        }
    }

    #[test]
    fn a_function_that_tells_credentials_may_fail() {
        let refused = |tell: Arc<Tell>| {
            let authenticator = GssAuthenticator::new("server", tell).unwrap();
            authenticator.start(None).map(drop).unwrap_err()
        };
        assert_eq!(refused(Arc::new(|| Err("locked".into()))), "locked");
        assert!(refused(Arc::new(|| panic!("none"))).contains("has panicked"));
        assert!(GssAuthenticator::new("no host", Arc::new(|| Err(String::new()))).is_err());
    }
}
