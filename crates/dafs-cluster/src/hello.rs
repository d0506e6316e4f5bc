//! The handshake of a metadata server and a data server, without any I/O. See `dafs_wire::cluster`
//! for the order of messages.
//!
//! Invariants
//! * The MAC of each side covers its role, the channel binding of the TLS connection, both random
//!   numbers and all messages before it. That of the metadata server also covers the message with
//!   it. So neither can be made from the other, nor from those of another connection.
//! * The data server proves its own secret, and the metadata server answers with the same one. So
//!   while the secret of the cluster changes, the metadata server has to accept the one that the
//!   data server proves. Another one opens no data server, even one whose handles are accepted.

use crate::mark::Mark;
use crate::secret::{ClusterSecret, Secret, Secrets};
use crate::tls::Binding;
use dafs_wire::cluster::{Challenge, Hello, Join, Joined, Membership, Refusal, VERSION};
use dafs_wire::xdr::{Decode, Decoder, Encode, Encoder, XdrError};
use std::net::SocketAddr;
use thiserror::Error;

/// Why the two cannot work together.
#[derive(Debug, Error)]
pub(crate) enum HelloError {
    #[error("what answers there is no data server of this version: {0}")]
    Xdr(#[from] XdrError),
    #[error(
        "the other side has another cluster secret, or a third one is between the two: give both the same \
         file, and let them connect directly"
    )]
    Secret,
    #[error("the data server speaks another version of the control program")]
    Version,
    #[error("the directory there belongs to another node, or to another store")]
    OtherNode,
    #[error(
        "the directory there is empty, but this node has held files: is its file system mounted? If it \
         is lost and files have copies, run `dafs cluster replace`"
    )]
    Empty,
    #[error("the directory there is not the one that this node was used with: is it a copy?")]
    OtherDirectory,
    #[error(
        "the directory there has gone back in time, as by a restored snapshot or backup: what was written \
         since is not in it. Put the newer one back. If that is lost and files have copies, run `dafs \
         cluster replace`"
    )]
    Older,
    #[error("the data server cannot use its directory, or let clients in; its log says why")]
    Failed,
    #[error("the data server is still busy with what it was asked for before")]
    Busy,
}

impl From<Refusal> for HelloError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Version => Self::Version,
            Refusal::OtherNode => Self::OtherNode,
            Refusal::Empty => Self::Empty,
            Refusal::OtherDirectory => Self::OtherDirectory,
            Refusal::Failed => Self::Failed,
            Refusal::Busy => Self::Busy,
            Refusal::Older => Self::Older,
        }
    }
}

/// A data server's description of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Member {
    pub(crate) mark: Mark,
    pub(crate) run: u64,
    pub(crate) addresses: Vec<SocketAddr>,
    pub(crate) rdma_addresses: Vec<SocketAddr>,
    pub(crate) dafs_addresses: Vec<SocketAddr>,
}

/// The things that a MAC covers.
struct Transcript {
    secrets: Secrets,
    binding: Binding,
    hello: Vec<u8>,
    nonce: [u8; 32],
}

const METADATA: &[u8] = b"metadata server";
const DATA: &[u8] = b"data server";

impl Transcript {
    fn parts<'p>(&'p self, side: &'p [u8], with: &'p [u8]) -> [&'p [u8]; 5] {
        [side, &self.binding, &self.hello, &self.nonce, with]
    }

    /// Returns the MAC of a side over the messages so far, and its message with the MAC.
    fn mac(&self, secret: Secret, side: &[u8], with: &[u8]) -> [u8; 32] {
        secret.mac(b"hello in TLS", &self.parts(side, with))
    }

    /// Returns the accepted secret with which a side has made its MAC.
    fn verify(&self, side: &[u8], with: &[u8], mac: &[u8; 32]) -> Result<Secret, HelloError> {
        let parts = self.parts(side, with);
        let is_right = |secret: &Secret| secret.verify(b"hello in TLS", &parts, mac);
        self.secrets.accepted().find(is_right).ok_or(HelloError::Secret)
    }
}

fn encoded(message: &impl Encode) -> Vec<u8> {
    let mut bytes = Vec::new();
    message.encode(&mut Encoder::new(&mut bytes));
    bytes
}

fn decoded<'a, T: Decode<'a>>(bytes: &'a [u8]) -> Result<T, XdrError> {
    let mut d = Decoder::new(bytes);
    let message = T::decode(&mut d)?;
    d.finish()?;
    Ok(message)
}

fn parsed(texts: Vec<&[u8]>) -> Result<Vec<SocketAddr>, XdrError> {
    let parse = |text: &[u8]| std::str::from_utf8(text).ok()?.parse().ok();
    let wrong = XdrError::UnknownValue { what: "an address", value: 0 };
    texts.into_iter().map(parse).collect::<Option<_>>().ok_or(wrong)
}

/// The metadata server's side.
pub(crate) struct Initiator {
    secrets: Secrets,
    binding: Binding,
    hello: Hello,
}

impl Initiator {
    pub(crate) fn new(
        (secret, binding): (&ClusterSecret, Binding),
        store: [u8; 16],
        number: u32,
        nonce: [u8; 32],
    ) -> Self {
        let hello = Hello { version: VERSION, store, number, nonce };
        Self { secrets: secret.now(), binding, hello }
    }

    /// The secrets that count until the end of the handshake.
    pub(crate) fn secrets(&self) -> Secrets {
        self.secrets
    }

    /// The first message.
    pub(crate) fn hello(&self) -> Hello {
        self.hello
    }

    /// Returns the next message, the answer to a challenge.
    pub(crate) fn join(
        &self,
        challenge: &[u8],
        membership: Membership,
    ) -> Result<Join, HelloError> {
        let Challenge { nonce, mac } = decoded(challenge)?;
        let (secrets, binding, hello) = (self.secrets, self.binding, encoded(&self.hello));
        let transcript = Transcript { secrets, binding, hello, nonce };
        let secret = transcript.verify(DATA, b"", &mac)?;
        Ok(Join { mac: transcript.mac(secret, METADATA, &encoded(&membership)), membership })
    }

    /// Checks the data server's answer. If the metadata server knows the directory, it does not
    /// trust the data server's claim about it.
    pub(crate) fn joined(answer: &[u8], membership: Membership) -> Result<Member, HelloError> {
        match decoded(answer)? {
            Joined::Refused(refusal) => Err(refusal.into()),
            Joined::Welcome {
                incarnation,
                joins,
                run,
                addresses,
                rdma_addresses,
                dafs_addresses,
            } => {
                let mark = Mark { incarnation, joins };
                mark.check(membership)?;
                let (addresses, rdma_addresses) = (parsed(addresses)?, parsed(rdma_addresses)?);
                let dafs_addresses = parsed(dafs_addresses)?;
                Ok(Member { mark, run, addresses, rdma_addresses, dafs_addresses })
            }
        }
    }
}

/// The data server's side, after the first message.
pub(crate) struct Responder {
    hello: Hello,
    transcript: Transcript,
}

impl Responder {
    pub(crate) fn new(
        (secret, binding): (&ClusterSecret, Binding),
        hello: &[u8],
        nonce: [u8; 32],
    ) -> Result<Self, HelloError> {
        let (secrets, sent) = (secret.now(), hello.to_vec());
        let transcript = Transcript { secrets, binding, hello: sent, nonce };
        Ok(Self { hello: decoded(hello)?, transcript })
    }

    /// The secret by which both ends prove themselves.
    pub(crate) fn secret(&self) -> Secret {
        self.transcript.secrets.own
    }

    pub(crate) fn challenge(&self) -> Challenge {
        let Transcript { nonce, secrets, .. } = self.transcript;
        Challenge { nonce, mac: self.transcript.mac(secrets.own, DATA, b"") }
    }

    /// Returns the metadata server's request, after it has authenticated.
    pub(crate) fn wanted(&self, join: &[u8]) -> Result<Wanted, HelloError> {
        let Join { mac, membership } = decoded(join)?;
        let answered = self.transcript.verify(METADATA, &encoded(&membership), &mac)?;
        if answered != self.transcript.secrets.own {
            return Err(HelloError::Secret);
        }
        let Hello { version, store, number, .. } = self.hello;
        Ok(Wanted { version, store, number, membership })
    }
}

/// The request of a metadata server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) version: u32,
    pub(crate) store: [u8; 16],
    pub(crate) number: u32,
    pub(crate) membership: Membership,
}

#[cfg(test)]
mod tests {
    use super::*;

    const BINDING: Binding = [8; 32];

    fn secret(byte: u8) -> ClusterSecret {
        ClusterSecret::from_bytes([byte; 32])
    }

    /// The metadata server's end for a node, on a connection.
    fn initiator(secret: &ClusterSecret, binding: Binding, number: u32) -> Initiator {
        Initiator::new((secret, binding), [2; 16], number, [4; 32])
    }

    /// The data server's end for that hello, on a connection.
    fn responder(secret: &ClusterSecret, binding: Binding, initiator: &Initiator) -> Responder {
        let hello = encoded(&initiator.hello());
        Responder::new((secret, binding), &hello, [5; 32]).expect("a hello")
    }

    fn join(
        initiator: &Initiator,
        responder: &Responder,
        membership: Membership,
    ) -> Result<Join, HelloError> {
        initiator.join(&encoded(&responder.challenge()), membership)
    }

    #[test]
    fn two_with_one_secret_work_together() {
        let secret = secret(1);
        let initiator = initiator(&secret, BINDING, 3);
        let responder = responder(&secret, BINDING, &initiator);
        let membership = Membership::New;
        let join = join(&initiator, &responder, membership).expect("a data server");
        let wanted = responder.wanted(&encoded(&join)).expect("a metadata server");
        assert_eq!(wanted, Wanted { version: VERSION, store: [2; 16], number: 3, membership });
        let addresses: Vec<&[u8]> = vec![b"192.0.2.1:2049"];
        let (mark, dafs_addresses) =
            (Mark { incarnation: [6; 16], joins: 5 }, vec![&b"[::1]:7070"[..]]);
        let Mark { incarnation, joins } = mark;
        let (run, rdma_addresses) = (7, vec![&b"192.0.2.1:20049"[..]]);
        let welcome =
            Joined::Welcome { incarnation, joins, run, addresses, rdma_addresses, dafs_addresses };
        let answer = encoded(&welcome);
        let other = Membership::Known { incarnation: [9; 16], joins };
        let joined = Initiator::joined(&answer, other);
        assert!(matches!(joined, Err(HelloError::OtherDirectory)));
        let later = Membership::Known { incarnation, joins: joins + 1 };
        assert!(matches!(Initiator::joined(&answer, later), Err(HelloError::Older)));
        let member = Initiator::joined(&answer, Membership::New).expect("welcome");
        assert_eq!(member.addresses, ["192.0.2.1:2049".parse().expect("an address")]);
        assert_eq!(member.rdma_addresses, ["192.0.2.1:20049".parse().expect("an address")]);
        assert_eq!(member.dafs_addresses, ["[::1]:7070".parse().expect("an address")]);
        assert_eq!((member.mark, member.run), (mark, 7));
    }

    #[test]
    fn a_peer_without_the_secret_learns_only_that() {
        let (one, two) = (secret(1), secret(2));
        let initiator = initiator(&one, BINDING, 3);
        let stranger = responder(&two, BINDING, &initiator);
        let joined = join(&initiator, &stranger, Membership::New);
        assert!(matches!(joined, Err(HelloError::Secret)));
        let responder = responder(&one, BINDING, &initiator);
        // A reflected MAC of the data server, and one for another random number.
        let Challenge { mac, .. } = responder.challenge();
        let hello = encoded(&initiator.hello());
        let other = Responder::new((&one, BINDING), &hello, [9; 32]).expect("a hello");
        let other = join(&initiator, &other, Membership::New).expect("a data server");
        for join in [Join { mac, membership: Membership::New }, other] {
            let wanted = responder.wanted(&encoded(&join));
            assert!(matches!(wanted, Err(HelloError::Secret)));
        }
    }

    /// Each end may be one step of the change ahead of the other.
    #[test]
    fn the_secret_changes_in_steps_that_need_no_stop() {
        let (old, new) = ([1; 32], [2; 32]);
        let one = ClusterSecret::from_bytes;
        let steps = [one(old), one(old).accepting(new), one(new).accepting(old), one(new)];
        let work_together = |metadata: &ClusterSecret, data: &ClusterSecret| {
            let initiator = initiator(metadata, BINDING, 3);
            let responder = responder(data, BINDING, &initiator);
            let join = join(&initiator, &responder, Membership::New)?;
            responder.wanted(&encoded(&join))
        };
        for (at, metadata) in steps.iter().enumerate() {
            for (to, data) in steps.iter().enumerate() {
                let joined = work_together(metadata, data);
                assert!(joined.is_ok() || at.abs_diff(to) > 1, "{at} {to}");
            }
        }
        for (metadata, data) in [(0, 3), (3, 0)] {
            let refused = work_together(&steps[metadata], &steps[data]);
            assert!(matches!(refused, Err(HelloError::Secret)));
        }
    }

    #[test]
    fn a_metadata_server_answers_with_the_secret_that_was_proved() {
        let (old, new, one) = ([1; 32], [2; 32], ClusterSecret::from_bytes);
        let both = one(new).accepting(old);
        let initiator = initiator(&both, BINDING, 3);
        let responder = responder(&both, BINDING, &initiator);
        let membership = Membership::New;
        let wanted = |secret: &ClusterSecret| {
            let (own, with) = (secret.now().own, encoded(&membership));
            let mac = responder.transcript.mac(own, METADATA, &with);
            responder.wanted(&encoded(&Join { mac, membership }))
        };
        wanted(&one(new)).expect("a metadata server");
        assert!(matches!(wanted(&one(old)), Err(HelloError::Secret)));
    }

    /// A secret that is taken out during a handshake counts until its end.
    #[test]
    fn a_handshake_ends_with_the_secrets_with_which_it_began() {
        let secret = secret(1);
        let initiator = initiator(&secret, BINDING, 3);
        let responder = responder(&secret, BINDING, &initiator);
        assert!(secret.follow(&ClusterSecret::from_bytes([2; 32])));
        let join = join(&initiator, &responder, Membership::New).expect("a data server");
        responder.wanted(&encoded(&join)).expect("a metadata server");
    }

    /// A man in the middle passes all messages on unchanged, from one TLS connection to another.
    #[test]
    fn both_ends_refuse_what_was_said_on_another_connection() {
        let secret = secret(1);
        let left = initiator(&secret, BINDING, 3);
        let right = responder(&secret, [9; 32], &left);
        let joined = join(&left, &right, Membership::New);
        assert!(matches!(joined, Err(HelloError::Secret)));
        // Even if the metadata server did not verify the challenge.
        let careless = responder(&secret, BINDING, &left);
        let passed_on = join(&left, &careless, Membership::New).expect("a data server");
        assert!(matches!(right.wanted(&encoded(&passed_on)), Err(HelloError::Secret)));
    }

    #[test]
    fn changes_on_the_way_are_noticed() {
        let secret = secret(1);
        let own = initiator(&secret, BINDING, 3);
        let other = responder(&secret, BINDING, &initiator(&secret, BINDING, 4));
        assert!(matches!(join(&own, &other, Membership::New), Err(HelloError::Secret)));
        let responder = responder(&secret, BINDING, &own);
        let known = Membership::Known { incarnation: [6; 16], joins: 1 };
        let join = join(&own, &responder, known).expect("a data server");
        let changed = Join { membership: Membership::New, ..join };
        assert!(matches!(responder.wanted(&encoded(&changed)), Err(HelloError::Secret)));
        responder.wanted(&encoded(&join)).expect("a metadata server");
    }
}
