//! Records of the journal.

use super::bytes::{Reader, Writer};
use super::intent::Intent;
use super::{Effect, Session};
use crate::replies::{RequestKey, Sender};

/// The records of the journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Record {
    /// A session has begun to use the journal. An incomplete one has made a change without a
    /// record.
    Session { session: Session, incomplete: bool },
    /// A session and all records of its requests are not needed any more.
    Forgotten([u8; 8]),
    /// A change is about to be executed.
    Intent { about: About, intent: Intent },
    /// It was executed, with this reply.
    Reply { about: About, order_le: bool, bytes: Vec<u8> },
    /// Recovery found that it was executed.
    Happened { about: About, effect: Effect },
    /// It was executed and could not be made stable, as its client was told, or its result cannot
    /// be found out.
    Failed { about: About },
    /// It was not executed, or no client will ask for it.
    Dropped { op: u64 },
    /// An append is being executed, or has failed with an unknown result. The change itself may be
    /// forgotten. Only in checkpoints.
    Placed { about: About, intent: Intent },
}

/// The change of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct About {
    pub(super) op: u64,
    pub(super) key: RequestKey,
    /// The record must survive a loss of power.
    pub(super) power: bool,
}

/// Bits of a record: it must survive a loss of power; the sender of the request follows, which
/// earlier versions did not record.
const POWER: u8 = 1;
const SENDER: u8 = 2;

impl About {
    fn encode(&self, out: &mut Writer<'_>) {
        out.u64(self.op);
        out.raw(&self.key.session);
        out.u16(self.key.stream);
        out.u16(self.key.sequence);
        out.u32(self.key.procedure);
        let named = self.key.sender != Sender::OF_SESSION;
        let bit = |is_set: bool, bit: u8| if is_set { bit } else { 0 };
        out.u8(bit(self.power, POWER) | bit(named, SENDER));
        if named {
            out.raw(&self.key.sender.0);
        }
    }

    fn decode(from: &mut Reader<'_>) -> Option<Self> {
        let op = from.u64()?;
        let (session, stream, sequence) = (from.array()?, from.u16()?, from.u16()?);
        let procedure = from.u32()?;
        let bits = from.u8().filter(|bits| bits & !(POWER | SENDER) == 0)?;
        let sender = match bits & SENDER {
            0 => Sender::OF_SESSION,
            _ => Sender(from.array()?),
        };
        let key = RequestKey { session, stream, sequence, procedure, sender };
        Some(Self { op, key, power: bits & POWER != 0 })
    }
}

/// Writes the record of a session.
pub(super) fn put_session(session: &Session, incomplete: bool, out: &mut Vec<u8>) {
    let mut out = Writer(out);
    out.u8(if incomplete { 11 } else { 10 });
    out.bytes(&session.host);
    out.raw(&session.id);
    out.bytes(&session.client);
    out.raw(&session.verifier);
    out.bytes(session.mechanism.as_bytes());
    out.bytes(&session.principal);
}

/// Writes that a session is forgotten.
pub(super) fn put_forgotten(session: &[u8; 8], out: &mut Vec<u8>) {
    let mut out = Writer(out);
    out.u8(2);
    out.raw(session);
}

/// Writes an intent.
pub(super) fn put_intent(about: &About, intent: &Intent, out: &mut Vec<u8>) {
    let mut out = Writer(out);
    out.u8(3);
    about.encode(&mut out);
    intent.encode(&mut out);
}

/// Writes the offset of an append whose end is not known.
pub(super) fn put_placed(about: &About, intent: &Intent, out: &mut Vec<u8>) {
    let mut out = Writer(out);
    out.u8(8);
    about.encode(&mut out);
    intent.encode(&mut out);
}

/// Writes a reply.
pub(super) fn put_reply(about: &About, order_le: bool, bytes: &[u8], out: &mut Vec<u8>) {
    let mut out = Writer(out);
    out.u8(4);
    about.encode(&mut out);
    out.flag(order_le);
    out.bytes(bytes);
}

/// Writes that a change has happened.
pub(super) fn put_happened(about: &About, effect: &Effect, out: &mut Vec<u8>) {
    let mut out = Writer(out);
    out.u8(5);
    about.encode(&mut out);
    match effect {
        Effect::Made { dir, object, created, dir_before } => {
            out.u8(1);
            out.handle(dir);
            out.handle(object);
            out.flag(*created);
            out.u64(*dir_before);
        }
        Effect::Removed { dir, dir_before } => {
            out.u8(2);
            out.handle(dir);
            out.u64(*dir_before);
        }
        Effect::Renamed { from_dir, from_before, to_dir, to_before } => {
            out.u8(3);
            out.handle(from_dir);
            out.u64(*from_before);
            out.handle(to_dir);
            out.u64(*to_before);
        }
        Effect::Linked { source, dir, dir_before } => {
            out.u8(4);
            out.handle(source);
            out.handle(dir);
            out.u64(*dir_before);
        }
        Effect::AttrSet { file } => {
            out.u8(5);
            out.handle(file);
        }
        Effect::Written { file, len } => {
            out.u8(6);
            out.handle(file);
            out.u64(*len);
        }
        Effect::Appended { file, offset, len } => {
            out.u8(7);
            out.handle(file);
            out.u64(*offset);
            out.u64(*len);
        }
    }
}

/// Writes that a change could not be made stable.
pub(super) fn put_failed(about: &About, out: &mut Vec<u8>) {
    let mut out = Writer(out);
    out.u8(9);
    about.encode(&mut out);
}

/// Writes that a change was not executed.
pub(super) fn put_dropped(op: u64, out: &mut Vec<u8>) {
    let mut out = Writer(out);
    out.u8(6);
    out.u64(op);
}

fn effect(from: &mut Reader<'_>) -> Option<Effect> {
    Some(match from.u8()? {
        1 => Effect::Made {
            dir: from.handle()?,
            object: from.handle()?,
            created: from.flag()?,
            dir_before: from.u64()?,
        },
        2 => Effect::Removed { dir: from.handle()?, dir_before: from.u64()? },
        3 => Effect::Renamed {
            from_dir: from.handle()?,
            from_before: from.u64()?,
            to_dir: from.handle()?,
            to_before: from.u64()?,
        },
        4 => {
            Effect::Linked { source: from.handle()?, dir: from.handle()?, dir_before: from.u64()? }
        }
        5 => Effect::AttrSet { file: from.handle()? },
        6 => Effect::Written { file: from.handle()?, len: from.u64()? },
        7 => Effect::Appended { file: from.handle()?, offset: from.u64()?, len: from.u64()? },
        _ => return None,
    })
}

impl Record {
    /// Reads a record. `None` for one that no version of this program has written.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut from = Reader(bytes);
        let record = match from.u8()? {
            // Records without a host are of an earlier version.
            code @ (1 | 7 | 10 | 11) => {
                let session = Session {
                    host: if code < 10 { Vec::new() } else { from.bytes()?.to_vec() },
                    id: from.array()?,
                    client: from.bytes()?.to_vec(),
                    verifier: from.array()?,
                    mechanism: String::from_utf8(from.bytes()?.to_vec()).ok()?,
                    principal: from.bytes()?.to_vec(),
                };
                Self::Session { session, incomplete: matches!(code, 7 | 11) }
            }
            2 => Self::Forgotten(from.array()?),
            3 => Self::Intent {
                about: About::decode(&mut from)?,
                intent: Intent::decode(&mut from)?,
            },
            4 => Self::Reply {
                about: About::decode(&mut from)?,
                order_le: from.flag()?,
                bytes: from.bytes()?.to_vec(),
            },
            5 => Self::Happened { about: About::decode(&mut from)?, effect: effect(&mut from)? },
            6 => Self::Dropped { op: from.u64()? },
            9 => Self::Failed { about: About::decode(&mut from)? },
            8 => Self::Placed {
                about: About::decode(&mut from)?,
                intent: Intent::decode(&mut from)?,
            },
            _ => return None,
        };
        from.0.is_empty().then_some(record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::Identity;

    #[test]
    fn a_record_names_its_sender_and_those_of_earlier_versions_do_not() {
        let anna = Sender::of(&Identity { mechanism: "gss", principal: b"anna".to_vec() });
        for (sender, power) in
            [(anna, false), (anna, true), (Sender::OF_SESSION, false), (Sender::OF_SESSION, true)]
        {
            let key = RequestKey { session: [1; 8], stream: 2, sequence: 3, procedure: 4, sender };
            let about = About { op: 5, key, power };
            let mut bytes = Vec::new();
            put_failed(&about, &mut bytes);
            assert_eq!(Record::decode(&bytes), Some(Record::Failed { about }));
            let named = if sender == anna { 16 } else { 0 };
            assert_eq!(bytes.len(), 1 + 8 + 8 + 2 + 2 + 4 + 1 + named);
            let end = bytes.len() - 1 - named;
            for bits in 4..=u8::MAX {
                bytes[end] = bits;
                assert_eq!(Record::decode(&bytes), None);
            }
        }
    }
}
