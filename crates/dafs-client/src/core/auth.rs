//! Proof of identity (DAFS 4.5), behind an interface that mechanisms with several rounds can join.

use std::fmt;

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
    /// The token for the next round.
    pub token: Vec<u8>,
}

/// A source of proofs; one client asks it afresh for every session.
pub trait Authenticator: Send + Sync {
    /// The first proof of a session.
    ///
    /// # Errors
    /// The reason why there is none, for the user.
    fn begin(&self) -> Result<Proof, String>;

    /// The next proof, when the server asks for another round.
    ///
    /// # Errors
    /// The reason why the exchange cannot go on, for the user.
    fn next(&self, challenge: &Challenge) -> Result<Proof, String>;
}

/// One fixed proof.
pub(crate) struct Fixed(pub(crate) Proof);

impl Authenticator for Fixed {
    fn begin(&self) -> Result<Proof, String> {
        Ok(self.0.clone())
    }

    fn next(&self, _challenge: &Challenge) -> Result<Proof, String> {
        Err("the server asks for another round of authentication, which this method has not".into())
    }
}
