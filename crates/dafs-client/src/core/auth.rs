//! Proof of identity (DAFS 4.5), behind an interface that mechanisms with several rounds can join.

use std::fmt;
use std::time::Duration;

/// A proof of identity that the client presents.
#[derive(Clone, PartialEq, Eq)]
pub enum Proof {
    /// No proof.
    None,
    /// A name and a password in clear text.
    Text {
        /// The name.
        id: Vec<u8>,
        /// The password.
        password: Vec<u8>,
    },
    /// A token of a GSS mechanism.
    Gss {
        /// INIT is 1, CONTINUE_INIT is 2.
        procedure: u32,
        /// AUTH 1, INTEGRITY 2, PRIVACY 3.
        service: u32,
        /// The token.
        token: Vec<u8>,
    },
}

impl fmt::Debug for Proof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Passwords and tokens stay out of logs.
        f.write_str(match self {
            Self::None => "None",
            Self::Text { .. } => "Text",
            Self::Gss { .. } => "Gss",
        })
    }
}

/// The server's answer to a proof.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Challenge {
    /// The mechanism's major status.
    pub major: u32,
    /// The mechanism's minor status.
    pub minor: u32,
    /// The token for the next round, or the last one.
    pub token: Vec<u8>,
}

/// The identity that a client has proven.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Proven {
    /// The method.
    pub method: ProofMethod,
    /// The name of the user or the principal.
    pub name: Option<String>,
    /// The time until the proof ends and another one is needed, if it ends.
    pub left: Option<Duration>,
}

/// The method by which a client proves its identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum ProofMethod {
    /// Nothing is proven. The server knows the address of the client, and on its own host the user of the process.
    #[default]
    None,
    /// A name and a password.
    Password,
    /// A context of GSS, such as one of Kerberos.
    Gss,
}

impl fmt::Display for ProofMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::Password => "password",
            Self::Gss => "gss",
        })
    }
}

/// A source of proofs; one client asks it afresh for every session, and for each other channel of a session.
pub trait Authenticator: Send + Sync {
    /// Begins a run of the mechanism, for a connection with this channel binding (RFC 5056), if it has
    /// one. A mechanism that can bind its proofs to it must do so.
    ///
    /// # Errors
    /// The reason why there is no proof, for the user.
    fn start(&self, binding: Option<&[u8]>) -> Result<Box<dyn Exchange>, String>;

    /// True if the first proof of an exchange may wait for other machines. Then it is made without the session's
    /// lock: by the thread that opens the session, and later by one of the library.
    fn may_wait(&self) -> bool {
        false
    }
}

/// One run of a mechanism with a server.
pub trait Exchange: Send {
    /// The next proof: the first one without a challenge, others when the server asks for another round.
    ///
    /// # Errors
    /// The reason why the exchange cannot go on, for the user.
    fn prove(&mut self, challenge: Option<&Challenge>) -> Result<Proof, String>;

    /// The server has accepted the last proof. A mechanism by which the server proves its own identity, too,
    /// checks that here.
    ///
    /// # Errors
    /// The reason why the server is not the right one, for the user.
    fn accepted(&mut self, answer: &Challenge) -> Result<Proven, String>;
}

/// One fixed proof.
pub struct Fixed(Proof);

impl Fixed {
    /// An exchange that consists of this proof.
    pub fn exchange(proof: Proof) -> Box<dyn Exchange> {
        Box::new(Self(proof))
    }

    /// An authenticator that always presents this proof.
    pub(crate) fn new(proof: Proof) -> Self {
        Self(proof)
    }
}

impl Authenticator for Fixed {
    fn start(&self, _binding: Option<&[u8]>) -> Result<Box<dyn Exchange>, String> {
        Ok(Self::exchange(self.0.clone()))
    }
}

impl Exchange for Fixed {
    fn prove(&mut self, challenge: Option<&Challenge>) -> Result<Proof, String> {
        if challenge.is_some() {
            let reason =
                "the server asks for another round of authentication, which this method has not";
            return Err(reason.into());
        }
        Ok(self.0.clone())
    }

    fn accepted(&mut self, _answer: &Challenge) -> Result<Proven, String> {
        let name = |id: &[u8]| Some(String::from_utf8_lossy(id).into_owned());
        Ok(match &self.0 {
            Proof::None => Proven::default(),
            Proof::Text { id, .. } => {
                Proven { method: ProofMethod::Password, name: name(id), left: None }
            }
            Proof::Gss { .. } => Proven { method: ProofMethod::Gss, name: None, left: None },
        })
    }
}

impl fmt::Debug for Fixed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fixed({:?})", self.0)
    }
}
