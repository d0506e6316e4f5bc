//! The handshake of a metadata server and a data server, without any I/O. See `dafs_wire::cluster`
//! for the order of messages.
//!
//! Invariants
//! * The MAC of each side covers its role, both random numbers and all messages before it. That of
//!   the metadata server also covers the message with it. So neither can be made from the other,
//!   nor from those of an earlier connection. The last message of the data server is sealed.

use crate::mark::Mark;
use crate::seal::{Opener, Sealer};
use crate::secret::ClusterSecret;
use dafs_wire::cluster::{Challenge, Hello, Join, Joined, Membership, Refusal, VERSION};
use dafs_wire::xdr::{Decode, Decoder, Encode, Encoder, XdrError};
use std::net::SocketAddr;
use thiserror::Error;

/// Why the two cannot work together.
#[derive(Debug, Error)]
pub(crate) enum HelloError {
    #[error("what answers there is no data server of this version: {0}")]
    Xdr(#[from] XdrError),
    #[error("the other side has another cluster secret: give both the same file")]
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

/// The keys for the MACs of the records that follow.
pub(crate) struct Keys {
    pub(crate) sealer: Sealer,
    pub(crate) opener: Opener,
}

/// The messages that a MAC covers.
struct Transcript<'a> {
    secret: &'a ClusterSecret,
    hello: Vec<u8>,
    nonce: [u8; 32],
}

const METADATA: &[u8] = b"metadata server";
const DATA: &[u8] = b"data server";

impl Transcript<'_> {
    /// Returns the MAC of a side over the messages so far, and its message with the MAC.
    fn mac(&self, side: &[u8], with: &[u8]) -> [u8; 32] {
        self.secret.mac(b"hello", &[side, &self.hello, &self.nonce, with])
    }

    fn verify(&self, side: &[u8], with: &[u8], mac: &[u8; 32]) -> Result<(), HelloError> {
        let right = self.secret.verify(b"hello", &[side, &self.hello, &self.nonce, with], mac);
        if right { Ok(()) } else { Err(HelloError::Secret) }
    }

    fn keys(&self, own: &[u8], other: &[u8]) -> Keys {
        let key = |side| self.secret.derive(b"records", &[side, &self.hello, &self.nonce]);
        Keys { sealer: Sealer::new(key(own)), opener: Opener::new(key(other)) }
    }
}

pub(crate) fn encoded(message: &impl Encode) -> Vec<u8> {
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
pub(crate) struct Initiator<'a> {
    secret: &'a ClusterSecret,
    hello: Hello,
}

impl<'a> Initiator<'a> {
    pub(crate) fn new(
        secret: &'a ClusterSecret,
        store: [u8; 16],
        number: u32,
        nonce: [u8; 32],
    ) -> Self {
        Self { secret, hello: Hello { version: VERSION, store, number, nonce } }
    }

    /// The first message.
    pub(crate) fn hello(&self) -> Vec<u8> {
        encoded(&self.hello)
    }

    /// Returns the next message, the answer to a challenge.
    pub(crate) fn join(
        &self,
        challenge: &[u8],
        membership: Membership,
    ) -> Result<(Vec<u8>, Keys), HelloError> {
        let Challenge { nonce, mac } = decoded(challenge)?;
        let transcript = Transcript { secret: self.secret, hello: self.hello(), nonce };
        transcript.verify(DATA, b"", &mac)?;
        let join = Join { mac: transcript.mac(METADATA, &encoded(&membership)), membership };
        Ok((encoded(&join), transcript.keys(METADATA, DATA)))
    }

    /// Checks the data server's answer. If the metadata server knows the directory, it does not
    /// trust the data server's claim about it.
    pub(crate) fn joined(record: &[u8], membership: Membership) -> Result<Member, HelloError> {
        match decoded(record)? {
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
pub(crate) struct Responder<'a> {
    hello: Hello,
    transcript: Transcript<'a>,
}

impl<'a> Responder<'a> {
    pub(crate) fn new(
        secret: &'a ClusterSecret,
        hello: &[u8],
        nonce: [u8; 32],
    ) -> Result<Self, HelloError> {
        let transcript = Transcript { secret, hello: hello.to_vec(), nonce };
        Ok(Self { hello: decoded(hello)?, transcript })
    }

    pub(crate) fn challenge(&self) -> Vec<u8> {
        let Transcript { nonce, .. } = self.transcript;
        encoded(&Challenge { nonce, mac: self.transcript.mac(DATA, b"") })
    }

    /// Returns the metadata server's request, after it has authenticated.
    pub(crate) fn wanted(&self, join: &[u8]) -> Result<(Wanted, Keys), HelloError> {
        let Join { mac, membership } = decoded(join)?;
        self.transcript.verify(METADATA, &encoded(&membership), &mac)?;
        let Hello { version, store, number, .. } = self.hello;
        let keys = self.transcript.keys(DATA, METADATA);
        Ok((Wanted { version, store, number, membership }, keys))
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

    fn secret(byte: u8) -> ClusterSecret {
        ClusterSecret::from_bytes([byte; 32])
    }

    #[test]
    fn two_with_one_secret_work_together() {
        let secret = secret(1);
        let initiator = Initiator::new(&secret, [2; 16], 3, [4; 32]);
        let responder = Responder::new(&secret, &initiator.hello(), [5; 32]).expect("a hello");
        let joined = initiator.join(&responder.challenge(), Membership::New);
        let (join, mut own) = joined.expect("a data server");
        let (wanted, mut other) = responder.wanted(&join).expect("a metadata server");
        let membership = Membership::New;
        assert_eq!(wanted, Wanted { version: VERSION, store: [2; 16], number: 3, membership });
        let addresses: Vec<&[u8]> = vec![b"192.0.2.1:2049"];
        let (mark, dafs_addresses) =
            (Mark { incarnation: [6; 16], joins: 5 }, vec![&b"[::1]:7070"[..]]);
        let Mark { incarnation, joins } = mark;
        let (run, rdma_addresses) = (7, vec![&b"192.0.2.1:20049"[..]]);
        let welcome =
            Joined::Welcome { incarnation, joins, run, addresses, rdma_addresses, dafs_addresses };
        let record = other.sealer.seal(&welcome);
        let record = own.opener.open(&record[4..]).expect("sealed for us");
        let other = Membership::Known { incarnation: [9; 16], joins };
        let joined = Initiator::joined(record, other);
        assert!(matches!(joined, Err(HelloError::OtherDirectory)));
        let later = Membership::Known { incarnation, joins: joins + 1 };
        assert!(matches!(Initiator::joined(record, later), Err(HelloError::Older)));
        let member = Initiator::joined(record, Membership::New).expect("welcome");
        assert_eq!(member.addresses, ["192.0.2.1:2049".parse().expect("an address")]);
        assert_eq!(member.rdma_addresses, ["192.0.2.1:20049".parse().expect("an address")]);
        assert_eq!(member.dafs_addresses, ["[::1]:7070".parse().expect("an address")]);
        assert_eq!((member.mark, member.run), (mark, 7));
    }

    #[test]
    fn a_peer_without_the_secret_learns_only_that() {
        let (one, two) = (secret(1), secret(2));
        let initiator = Initiator::new(&one, [2; 16], 3, [4; 32]);
        let stranger = Responder::new(&two, &initiator.hello(), [5; 32]).expect("a hello");
        let joined = initiator.join(&stranger.challenge(), Membership::New);
        assert!(matches!(joined, Err(HelloError::Secret)));
        let responder = Responder::new(&one, &initiator.hello(), [5; 32]).expect("a hello");
        // A reflected MAC of the data server, and one of another connection.
        let Challenge { mac, .. } = decoded(&responder.challenge()).expect("a challenge");
        let (other, _) = initiator
            .join(
                &Responder::new(&one, &initiator.hello(), [9; 32]).expect("a hello").challenge(),
                Membership::New,
            )
            .expect("a data server");
        let echo = encoded(&Join { mac, membership: Membership::New });
        for join in [echo, other] {
            assert!(matches!(responder.wanted(&join), Err(HelloError::Secret)));
        }
    }

    #[test]
    fn changes_on_the_way_are_noticed() {
        let secret = secret(1);
        let initiator = Initiator::new(&secret, [2; 16], 3, [4; 32]);
        let other = Initiator::new(&secret, [2; 16], 4, [4; 32]);
        let responder = Responder::new(&secret, &other.hello(), [5; 32]).expect("a hello");
        let joined = initiator.join(&responder.challenge(), Membership::New);
        assert!(matches!(joined, Err(HelloError::Secret)));
        let responder = Responder::new(&secret, &initiator.hello(), [5; 32]).expect("a hello");
        let known = Membership::Known { incarnation: [6; 16], joins: 1 };
        let (join, _) = initiator.join(&responder.challenge(), known).expect("a data server");
        let Join { mac, .. } = decoded(&join).expect("a join");
        let changed = encoded(&Join { mac, membership: Membership::New });
        assert!(matches!(responder.wanted(&changed), Err(HelloError::Secret)));
        responder.wanted(&join).expect("a metadata server");
    }
}
