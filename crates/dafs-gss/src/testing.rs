//! A mechanism for tests and simulations: contexts without Kerberos, from a secret that both sides know.
//!
//! It has what the protocols above meet with Kerberos: several rounds, an acceptor that proves itself or does
//! not, bindings, services, principals, tickets that end, and the same tokens for messages. It reads no file,
//! no clock and no random number, so a simulation repeats exactly.
//!
//! Invariants
//! * No end without the secret establishes a context, or changes a token on its way.
//! * Each context of an initiator has other keys, and so has each principal.

use crate::mechanism::{
    Accept, BAD_BINDINGS, Established, FAILURE, Failure, Initiate, Pending, Principal, ServiceName,
    Step, Wanted,
};
use crate::token::{Agreed, Enctype, Key, Keys, Role, Seed};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// A "realm" of this mechanism: all who know one secret.
#[derive(Clone, Copy)]
pub struct Toy {
    secret: [u8; 16],
    enctype: Enctype,
}

/// The accepting side for one service.
#[derive(Debug)]
pub struct ToyAcceptor {
    toy: Toy,
    service: ServiceName,
}

/// The initiating side for one principal.
#[derive(Debug)]
pub struct ToyInitiator {
    toy: Toy,
    principal: String,
    rounds: u8,
    end_time_seconds: u64,
    contexts: AtomicU64,
}

impl fmt::Debug for Toy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Toy({})", self.enctype)
    }
}

impl Toy {
    /// Makes a realm. Messages have tokens of this type.
    pub fn new(secret: [u8; 16], enctype: Enctype) -> Self {
        Self { secret, enctype }
    }

    /// Returns the accepting side for a service.
    pub fn acceptor(&self, service: ServiceName) -> ToyAcceptor {
        ToyAcceptor { toy: *self, service }
    }

    /// Returns the initiating side for a principal. It sends `rounds` tokens, at least one, to establish a
    /// context, and its "tickets" end at the given time.
    pub fn initiator(&self, principal: &str, rounds: u8, end_time_seconds: u64) -> ToyInitiator {
        let contexts = AtomicU64::new(1);
        let (principal, rounds) = (principal.to_owned(), rounds.max(1));
        ToyInitiator { toy: *self, principal, rounds, end_time_seconds, contexts }
    }

    /// Returns the keys of a principal's context by its number. The empty principal and number 0 are for the
    /// tokens that establish contexts.
    fn keys(&self, role: Role, principal: &str, context: u64) -> Keys {
        let mut bytes = [0; 32];
        bytes[..16].copy_from_slice(&self.secret);
        bytes[16..24].copy_from_slice(&self.secret[..8]);
        for (byte, number) in bytes.iter_mut().zip(context.to_be_bytes()) {
            *byte ^= number;
        }
        for (byte, hashed) in bytes[8..].iter_mut().zip(hashed(principal).to_be_bytes()) {
            *byte ^= hashed;
        }
        // INVARIANT: no type has longer keys than 32 bytes, and the slice has the length of this one's.
        let key = Key::new(self.enctype, &bytes[..self.enctype.key_len()]).expect("a fitting key");
        let agreed = Agreed { key, acceptor_subkey: false, role, sequence: 0 };
        Keys::new(&agreed, Seed::from_bytes(self.secret))
    }

    fn signed(&self, role: Role, mut token: Vec<u8>) -> Vec<u8> {
        let len = token.len();
        token.resize(len + self.enctype.mic_len(), 0);
        let (text, mic) = token.split_at_mut(len);
        // The room is exactly that of a MIC.
        let made = self.keys(role, "", 0).mic(&*text, mic);
        debug_assert_eq!(made, Ok(self.enctype.mic_len()));
        token
    }

    fn verified<'a>(&self, role: Role, token: &'a [u8]) -> Result<&'a [u8], Failure> {
        let defective = || Failure::defective("this is no token of the toy mechanism");
        let len = token.len().checked_sub(self.enctype.mic_len()).ok_or_else(defective)?;
        let (text, mic) = token.split_at(len);
        self.keys(role, "", 0).verify_mic(text, mic).map_err(|_| defective())?;
        Ok(text)
    }

    fn established(
        &self,
        role: Role,
        hello: &Hello,
        token: Option<Vec<u8>>,
    ) -> Result<Step, Failure> {
        let name = hello.principal.as_bytes().to_vec();
        let principal = Principal::new(name.clone(), name)
            .ok_or_else(|| Failure::here(FAILURE, "the principal has no good name"))?;
        let keys = self.keys(role, &hello.principal, hello.context);
        let Hello { end_time_seconds, mutual, .. } = *hello;
        Ok(Step::Done(Box::new(Established { token, principal, mutual, end_time_seconds, keys })))
    }
}

/// A hash of a name (FNV-1a).
fn hashed(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// The content of an initiator's token.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Hello {
    context: u64,
    end_time_seconds: u64,
    round: u8,
    rounds: u8,
    mutual: bool,
    target: String,
    principal: String,
    bindings: Option<Vec<u8>>,
}

impl Hello {
    fn encoded(&self) -> Vec<u8> {
        let mut bytes = b"toy".to_vec();
        bytes.extend(self.context.to_be_bytes());
        bytes.extend(self.end_time_seconds.to_be_bytes());
        let bound = self.bindings.is_some();
        bytes.extend([self.round, self.rounds, u8::from(self.mutual), u8::from(bound)]);
        let bindings = self.bindings.as_deref().unwrap_or_default();
        for text in [self.target.as_bytes(), self.principal.as_bytes(), bindings] {
            bytes.extend((text.len() as u32).to_be_bytes());
            bytes.extend(text);
        }
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.strip_prefix(b"toy")?;
        let (context, bytes) = bytes.split_first_chunk()?;
        let (end, bytes) = bytes.split_first_chunk()?;
        let (&[round, rounds, mutual, bound], mut rest) = bytes.split_first_chunk()?;
        let mut text = || {
            let (len, after) = rest.split_first_chunk()?;
            let (text, after) = after.split_at_checked(u32::from_be_bytes(*len) as usize)?;
            rest = after;
            Some(text.to_vec())
        };
        let (target, principal, bindings) = (text()?, text()?, text()?);
        rest.is_empty().then_some(Self {
            context: u64::from_be_bytes(*context),
            end_time_seconds: u64::from_be_bytes(*end),
            round,
            rounds,
            mutual: mutual != 0,
            target: String::from_utf8(target).ok()?,
            principal: String::from_utf8(principal).ok()?,
            bindings: (bound != 0).then_some(bindings),
        })
    }
}

impl ToyAcceptor {
    fn step(
        &self,
        pending: Option<Pending>,
        token: &[u8],
        bindings: Option<&[u8]>,
    ) -> Result<Step, Failure> {
        let defective = || Failure::defective("this is no token of the toy mechanism");
        let hello =
            Hello::decode(self.toy.verified(Role::Acceptor, token)?).ok_or_else(defective)?;
        let before = match pending {
            None => 0,
            Some(pending) => {
                let before = pending.into_state::<Hello>().ok_or_else(defective)?;
                let same = Hello { round: before.round, ..hello.clone() };
                if same != before {
                    return Err(defective());
                }
                before.round
            }
        };
        if hello.round != before + 1 || hello.round > hello.rounds {
            return Err(defective());
        }
        if hello.target != self.service.as_str() {
            return Err(Failure::here(FAILURE, "the token is for another service"));
        }
        if bindings.is_some() && hello.bindings.as_deref() != bindings {
            return Err(Failure::here(BAD_BINDINGS, "the context is not bound to its channel"));
        }
        let answer = self.toy.signed(Role::Acceptor, vec![hello.round]);
        if hello.round < hello.rounds {
            return Ok(Step::Continue { pending: Pending::new(hello), token: answer });
        }
        self.toy.established(Role::Acceptor, &hello, hello.mutual.then_some(answer))
    }
}

impl Accept for ToyAcceptor {
    fn accept(&self, pending: Option<Pending>, token: &[u8], bindings: Option<&[u8]>) -> Step {
        self.step(pending, token, bindings).unwrap_or_else(Step::Failed)
    }
}

impl ToyInitiator {
    fn step(
        &self,
        pending: Option<Pending>,
        wanted: &Wanted<'_>,
        token: &[u8],
    ) -> Result<Step, Failure> {
        let defective = || Failure::defective("this is no token of the toy mechanism");
        let hello = match pending {
            None => Hello {
                context: self.contexts.fetch_add(1, Ordering::Relaxed),
                end_time_seconds: self.end_time_seconds,
                round: 1,
                rounds: self.rounds,
                mutual: wanted.mutual,
                target: wanted.target.as_str().to_owned(),
                principal: self.principal.clone(),
                bindings: wanted.bindings.map(<[u8]>::to_vec),
            },
            Some(pending) => {
                let hello = pending.into_state::<Hello>().ok_or_else(defective)?;
                if self.toy.verified(Role::Initiator, token)? != [hello.round] {
                    return Err(defective());
                }
                if hello.round == hello.rounds {
                    return self.toy.established(Role::Initiator, &hello, None);
                }
                Hello { round: hello.round + 1, ..hello }
            }
        };
        let token = self.toy.signed(Role::Initiator, hello.encoded());
        if hello.round == hello.rounds && !hello.mutual {
            return self.toy.established(Role::Initiator, &hello, Some(token));
        }
        Ok(Step::Continue { pending: Pending::new(hello), token })
    }
}

impl Initiate for ToyInitiator {
    fn initiate(&self, pending: Option<Pending>, wanted: &Wanted<'_>, token: &[u8]) -> Step {
        self.step(pending, wanted, token).unwrap_or_else(Step::Failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const END_SECONDS: u64 = 5000;

    fn nfs() -> ServiceName {
        ServiceName::new("nfs", "server").unwrap()
    }

    fn toy() -> Toy {
        Toy::new([3; 16], Enctype::Aes256Sha384)
    }

    /// Establishes a context; the number of tokens that were sent, and both ends.
    fn establish(
        from: &dyn Initiate,
        to: &dyn Accept,
        wanted: &Wanted<'_>,
        bindings: Option<&[u8]>,
    ) -> Result<(u32, Box<Established>, Box<Established>), Failure> {
        let (mut state, mut other, mut token) = (None, None, Vec::new());
        let (mut ours, mut theirs, mut sent) = (None, None, 0);
        while ours.is_none() || theirs.is_none() {
            if ours.is_none() {
                match from.initiate(state.take(), wanted, &token) {
                    Step::Continue { pending, token: next } => {
                        (state, token) = (Some(pending), next)
                    }
                    Step::Done(mut done) => {
                        token = done.token.take().unwrap_or_default();
                        ours = Some(done);
                    }
                    Step::Failed(failure) => return Err(failure),
                }
                sent += u32::from(!token.is_empty());
            }
            if theirs.is_none() {
                match to.accept(other.take(), &token, bindings) {
                    Step::Continue { pending, token: next } => {
                        (other, token) = (Some(pending), next)
                    }
                    Step::Done(mut done) => {
                        token = done.token.take().unwrap_or_default();
                        theirs = Some(done);
                    }
                    Step::Failed(failure) => return Err(failure),
                }
                sent += u32::from(!token.is_empty());
            }
        }
        Ok((sent, ours.unwrap(), theirs.unwrap()))
    }

    #[test]
    fn contexts_need_as_many_rounds_as_asked_for() {
        let target = nfs();
        let acceptor = toy().acceptor(nfs());
        for rounds in 1..=4 {
            for mutual in [false, true] {
                let initiator = toy().initiator("anna@TOY", rounds, END_SECONDS);
                let wanted = Wanted { target: &target, mutual, bindings: None };
                let (sent, ours, theirs) = establish(&initiator, &acceptor, &wanted, None).unwrap();
                assert_eq!(sent, u32::from(rounds) * 2 - u32::from(!mutual));
                assert_eq!(theirs.principal.display(), "anna@TOY");
                assert_eq!(theirs.end_time_seconds, END_SECONDS);
                assert_eq!([ours.mutual, theirs.mutual], [mutual; 2]);
                let mut mic = [0; 40];
                ours.keys.mic(&b"call"[..], &mut mic).unwrap();
                assert_eq!(theirs.keys.verify_mic(&b"call"[..], &mic), Ok(()));
                let (_, other, _) = establish(&initiator, &acceptor, &wanted, None).unwrap();
                other.keys.mic(&b"call"[..], &mut mic).unwrap();
                assert!(theirs.keys.verify_mic(&b"call"[..], &mic).is_err(), "other keys");
            }
        }
    }

    #[test]
    fn keys_of_two_principals_differ_and_no_secret_is_printed() {
        let (target, acceptor) = (nfs(), toy().acceptor(nfs()));
        let wanted = Wanted { target: &target, mutual: false, bindings: None };
        let [anna, bert] = ["anna@TOY", "bert@TOY"].map(|name| {
            let initiator = toy().initiator(name, 1, END_SECONDS);
            assert!(!format!("{initiator:?}").contains("3, 3"), "{initiator:?}");
            establish(&initiator, &acceptor, &wanted, None).unwrap()
        });
        let mut mic = [0; 40];
        anna.1.keys.mic(&b"call"[..], &mut mic).unwrap();
        assert_eq!(anna.2.keys.verify_mic(&b"call"[..], &mic), Ok(()));
        assert!(bert.2.keys.verify_mic(&b"call"[..], &mic).is_err());
    }

    #[test]
    fn strangers_other_services_and_other_channels_are_refused() {
        let (target, mutual) = (nfs(), false);
        let wanted = Wanted { target: &target, mutual, bindings: Some(b"channel") };
        let anna = toy().initiator("anna@TOY", 1, END_SECONDS);
        let acceptor = toy().acceptor(nfs());
        let run = |from: &dyn Initiate, to: &dyn Accept, bindings| {
            establish(from, to, &wanted, bindings).map(|_| ()).map_err(|failure| failure.major)
        };
        assert_eq!(run(&anna, &acceptor, Some(b"channel")), Ok(()));
        assert_eq!(run(&anna, &acceptor, None), Ok(()));
        assert_eq!(run(&anna, &acceptor, Some(b"another")), Err(BAD_BINDINGS));
        let dafs = toy().acceptor(ServiceName::new("dafs", "server").unwrap());
        assert_eq!(run(&anna, &dafs, None), Err(FAILURE));
        let stranger = Toy::new([4; 16], Enctype::Aes256Sha384).initiator("anna@TOY", 1, 1);
        assert!(run(&stranger, &acceptor, None).is_err());
    }

    #[test]
    fn changed_and_cut_tokens_are_refused() {
        let target = nfs();
        let wanted = Wanted { target: &target, mutual: true, bindings: None };
        let anna = toy().initiator("anna@TOY", 2, END_SECONDS);
        let acceptor = toy().acceptor(nfs());
        let Step::Continue { token, .. } = anna.initiate(None, &wanted, &[]) else {
            panic!("a token for the acceptor")
        };
        for len in 0..token.len() {
            assert!(matches!(acceptor.accept(None, &token[..len], None), Step::Failed(_)));
        }
        for bit in 0..token.len() * 8 {
            let mut token = token.clone();
            token[bit / 8] ^= 1 << (bit % 8);
            assert!(matches!(acceptor.accept(None, &token, None), Step::Failed(_)));
        }
        // The first round twice.
        let Step::Continue { pending, .. } = acceptor.accept(None, &token, None) else {
            panic!("another round")
        };
        assert!(matches!(acceptor.accept(Some(pending), &token, None), Step::Failed(_)));
    }

    #[test]
    fn a_round_belongs_to_its_context() {
        let target = nfs();
        let wanted = Wanted { target: &target, mutual: false, bindings: None };
        let anna = toy().initiator("anna@TOY", 2, END_SECONDS);
        let acceptor = toy().acceptor(nfs());
        let [first, second] = [(); 2].map(|()| {
            let Step::Continue { pending, token } = anna.initiate(None, &wanted, &[]) else {
                panic!("a token for the acceptor")
            };
            let Step::Continue { pending: other, token } = acceptor.accept(None, &token, None)
            else {
                panic!("another round")
            };
            let Step::Done(done) = anna.initiate(Some(pending), &wanted, &token) else {
                panic!("the last token")
            };
            (other, done.token.unwrap())
        });
        assert!(matches!(acceptor.accept(Some(first.0), &second.1, None), Step::Failed(_)));
        assert!(matches!(acceptor.accept(Some(second.0), &second.1, None), Step::Done(_)));
    }
}
