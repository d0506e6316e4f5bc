//! Calls and answers after the handshake. Both sides send calls on one connection.

use super::{
    DATA_BYTES_MAX, FLAVOUR_BYTES_MAX, HANDLE_BYTES_MAX, MECHANISM_BYTES_MAX, OWNER_BYTES_MAX,
    PRINCIPAL_BYTES_MAX, SECURITY_BYTES_MAX,
};
use crate::xdr::{Decode, Decoder, Encode, Encoder, XdrError};

/// A client's use of a component, with the client's identity and state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateUse<'a> {
    /// The client's owner string.
    pub owner: &'a [u8],
    /// The mechanism by which the client was authenticated.
    pub mechanism: &'a [u8],
    /// The authenticated principal.
    pub principal: &'a [u8],
    /// The component's handle, as in the layout.
    pub handle: &'a [u8],
    /// The state-id.
    pub state: u64,
    /// The version of the state.
    pub seqid: u32,
    /// True if it wants to write.
    pub write: bool,
    /// The name of the RPC security flavour of the client's call; empty for one of DAFS.
    pub flavour: &'a [u8],
    /// The IPv6 address that an NFS call came from, a mapped one for IPv4; zero for one of DAFS.
    pub address: [u8; 16],
    /// True if the port, or the kernel of the data server's host, vouches for the caller.
    pub privileged: bool,
    /// The protection of the client's connection, as in the configuration: `none`, `tls` or `mtls`.
    pub security: &'a [u8],
}

impl<'a> Decode<'a> for StateUse<'a> {
    fn decode(d: &mut Decoder<'a>) -> Result<Self, XdrError> {
        Ok(Self {
            owner: d.opaque(OWNER_BYTES_MAX)?,
            mechanism: d.opaque(MECHANISM_BYTES_MAX)?,
            principal: d.opaque(PRINCIPAL_BYTES_MAX)?,
            handle: d.opaque(HANDLE_BYTES_MAX)?,
            state: d.u64()?,
            seqid: d.u32()?,
            write: d.bool()?,
            flavour: d.opaque(FLAVOUR_BYTES_MAX)?,
            address: *d.fixed()?,
            privileged: d.bool()?,
            security: d.opaque(SECURITY_BYTES_MAX)?,
        })
    }
}

impl Encode for StateUse<'_> {
    fn encode(&self, e: &mut Encoder<'_>) {
        e.opaque(self.owner);
        e.opaque(self.mechanism);
        e.opaque(self.principal);
        e.opaque(self.handle);
        e.u64(self.state);
        e.u32(self.seqid);
        e.bool(self.write);
        e.opaque(self.flavour);
        e.fixed(&self.address);
        e.bool(self.privileged);
        e.opaque(self.security);
    }
}

/// Advice about the future use of a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RangeAdvice {
    /// Read it ahead.
    WillNeed,
    /// Keep it like other data.
    Keep,
    /// Drop it before other data.
    LeaveFirst,
    /// Drop it now.
    DontNeed,
}

impl<'a> Decode<'a> for RangeAdvice {
    fn decode(d: &mut Decoder<'a>) -> Result<Self, XdrError> {
        Ok(match d.u32()? {
            1 => Self::WillNeed,
            2 => Self::Keep,
            3 => Self::LeaveFirst,
            4 => Self::DontNeed,
            value => return Err(XdrError::UnknownValue { what: "advice", value }),
        })
    }
}

impl Encode for RangeAdvice {
    fn encode(&self, e: &mut Encoder<'_>) {
        e.u32(match self {
            Self::WillNeed => 1,
            Self::Keep => 2,
            Self::LeaveFirst => 3,
            Self::DontNeed => 4,
        });
    }
}

/// A call. The metadata server sends those up to `Counters`, the data server the others.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "offsets, sizes and lengths in bytes")]
pub enum Call<'a> {
    /// Reads bytes of a component; a short result ends at the end of the component.
    Read { component: [u8; 16], offset: u64, len: u32 },
    /// Writes to a component and creates it if it does not exist; `stable` data survives a crash.
    Write { component: [u8; 16], offset: u64, stable: bool, data: &'a [u8] },
    /// Makes a component stable.
    Commit { component: [u8; 16] },
    /// Truncates a component.
    Cut { component: [u8; 16], size: u64 },
    /// Asks for the size of a component.
    Size { component: [u8; 16] },
    /// Removes a component.
    Remove { component: [u8; 16] },
    /// Asks for the space for components.
    Space,
    /// Drops cached authorisations for a component and waits for the uses that they have allowed.
    RevokeAuthorisation { component: [u8; 16] },
    /// Asks for the components that clients have requested since the last such call but that do not
    /// exist there. The answer is a list of their names.
    MissingComponents,
    /// Gives advice about a range of a component; a length of 0 reaches to its end. Done means that
    /// the data server follows it.
    Advise { component: [u8; 16], offset: u64, len: u64, advice: RangeAdvice },
    /// Asks for a hash of bytes of a component, and for the number of these bytes that it has.
    Digest { component: [u8; 16], offset: u64, len: u32 },
    /// Asks for the counters of clients' use.
    Counters,
    /// Asks whether a client may use a component.
    CheckState(StateUse<'a>),
    /// Asks for the size of the file of a component.
    FileSize { component: [u8; 16] },
    /// Reads bytes of the component's file, from whichever node holds them.
    ReadFile { component: [u8; 16], offset: u64, len: u32 },
    /// Writes to that file, on whichever node holds the bytes; stable when answered.
    WriteFile { component: [u8; 16], offset: u64, data: &'a [u8] },
}

impl<'a> Decode<'a> for Call<'a> {
    fn decode(d: &mut Decoder<'a>) -> Result<Self, XdrError> {
        let number = d.u32()?;
        Ok(match number {
            1 => Self::Read { component: *d.fixed()?, offset: d.u64()?, len: length(d)? },
            2 => Self::Write {
                component: *d.fixed()?,
                offset: d.u64()?,
                stable: d.bool()?,
                data: d.opaque(DATA_BYTES_MAX)?,
            },
            3 => Self::Commit { component: *d.fixed()? },
            4 => Self::Cut { component: *d.fixed()?, size: d.u64()? },
            5 => Self::Size { component: *d.fixed()? },
            6 => Self::Remove { component: *d.fixed()? },
            7 => Self::Space,
            8 => Self::RevokeAuthorisation { component: *d.fixed()? },
            9 => Self::CheckState(d.value()?),
            10 => Self::FileSize { component: *d.fixed()? },
            11 => Self::ReadFile { component: *d.fixed()?, offset: d.u64()?, len: length(d)? },
            12 => Self::WriteFile {
                component: *d.fixed()?,
                offset: d.u64()?,
                data: d.opaque(DATA_BYTES_MAX)?,
            },
            13 => Self::MissingComponents,
            14 => Self::Counters,
            15 => Self::Advise {
                component: *d.fixed()?,
                offset: d.u64()?,
                len: d.u64()?,
                advice: d.value()?,
            },
            16 => Self::Digest { component: *d.fixed()?, offset: d.u64()?, len: length(d)? },
            value => return Err(XdrError::UnknownValue { what: "a call", value }),
        })
    }
}

impl Encode for Call<'_> {
    fn encode(&self, e: &mut Encoder<'_>) {
        let mut named = |number, component: &[u8; 16]| {
            e.u32(number);
            e.fixed(component);
        };
        match self {
            Self::Read { component, offset, len } => {
                named(1, component);
                e.u64(*offset);
                e.u32(*len);
            }
            Self::Write { component, offset, stable, data } => {
                named(2, component);
                e.u64(*offset);
                e.bool(*stable);
                e.opaque(data);
            }
            Self::Commit { component } => named(3, component),
            Self::Cut { component, size } => {
                named(4, component);
                e.u64(*size);
            }
            Self::Size { component } => named(5, component),
            Self::Remove { component } => named(6, component),
            Self::Space => e.u32(7),
            Self::RevokeAuthorisation { component } => named(8, component),
            Self::MissingComponents => e.u32(13),
            Self::Counters => e.u32(14),
            Self::Advise { component, offset, len, advice } => {
                named(15, component);
                e.u64(*offset);
                e.u64(*len);
                e.value(advice);
            }
            Self::Digest { component, offset, len } => {
                named(16, component);
                e.u64(*offset);
                e.u32(*len);
            }
            Self::CheckState(wanted) => {
                e.u32(9);
                e.value(wanted);
            }
            Self::FileSize { component } => named(10, component),
            Self::ReadFile { component, offset, len } => {
                named(11, component);
                e.u64(*offset);
                e.u32(*len);
            }
            Self::WriteFile { component, offset, data } => {
                named(12, component);
                e.u64(*offset);
                e.opaque(data);
            }
        }
    }
}

/// A requested length of data.
fn length(d: &mut Decoder<'_>) -> Result<u32, XdrError> {
    match d.u32()? {
        len if len as usize > DATA_BYTES_MAX => Err(XdrError::TooLong { len, max: DATA_BYTES_MAX }),
        len => Ok(len),
    }
}

/// An answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "in bytes, but for verifiers")]
pub enum Answer<'a> {
    /// The call was executed, or the use is allowed.
    Done,
    /// Bytes.
    Data(&'a [u8]),
    /// Bytes written, with the write verifier.
    Written { count: u32, verifier: u64 },
    /// A write verifier.
    Verifier(u64),
    /// A size.
    Size(u64),
    /// Space.
    Space { total: u64, free: u64, available: u64 },
    /// An error number.
    Refused(u32),
    /// The use is allowed, with sessions of at most this age.
    DoneWithin { age_ns: u64 },
    /// Bytes that clients have read and written there since the start of the data server, and the
    /// part of them that lies on other nodes.
    Counters { read: u64, written: u64, indirect: u64 },
    /// The bytes of the range that the component has, and a hash of the whole range, with zeros for
    /// the others.
    Digest { count: u32, hash: [u8; 16] },
}

impl<'a> Decode<'a> for Answer<'a> {
    fn decode(d: &mut Decoder<'a>) -> Result<Self, XdrError> {
        Ok(match d.u32()? {
            0 => Self::Done,
            1 => Self::Data(d.opaque(DATA_BYTES_MAX)?),
            2 => Self::Written { count: d.u32()?, verifier: d.u64()? },
            3 => Self::Verifier(d.u64()?),
            4 => Self::Size(d.u64()?),
            5 => Self::Space { total: d.u64()?, free: d.u64()?, available: d.u64()? },
            6 => Self::Refused(d.u32()?),
            7 => Self::DoneWithin { age_ns: d.u64()? },
            8 => Self::Counters { read: d.u64()?, written: d.u64()?, indirect: d.u64()? },
            9 => Self::Digest { count: d.u32()?, hash: *d.fixed()? },
            value => return Err(XdrError::UnknownValue { what: "an answer", value }),
        })
    }
}

impl Encode for Answer<'_> {
    fn encode(&self, e: &mut Encoder<'_>) {
        match self {
            Self::Done => e.u32(0),
            Self::Data(data) => {
                e.u32(1);
                e.opaque(data);
            }
            Self::Written { count, verifier } => {
                e.u32(2);
                e.u32(*count);
                e.u64(*verifier);
            }
            Self::Verifier(verifier) => {
                e.u32(3);
                e.u64(*verifier);
            }
            Self::Size(size) => {
                e.u32(4);
                e.u64(*size);
            }
            Self::Space { total, free, available } => {
                e.u32(5);
                [total, free, available].into_iter().for_each(|bytes| e.u64(*bytes));
            }
            Self::Refused(why) => {
                e.u32(6);
                e.u32(*why);
            }
            Self::DoneWithin { age_ns } => {
                e.u32(7);
                e.u64(*age_ns);
            }
            Self::Counters { read, written, indirect } => {
                e.u32(8);
                [read, written, indirect].into_iter().for_each(|bytes| e.u64(*bytes));
            }
            Self::Digest { count, hash } => {
                e.u32(9);
                e.u32(*count);
                e.fixed(hash);
            }
        }
    }
}

/// The content of a record after the handshake.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "ids are those of the caller, which pairs answers with calls")]
pub enum Frame<'a> {
    /// A call.
    Call { id: u32, call: Call<'a> },
    /// The answer to a call.
    Answer { id: u32, answer: Answer<'a> },
    /// A keep-alive.
    Alive,
}

impl<'a> Decode<'a> for Frame<'a> {
    fn decode(d: &mut Decoder<'a>) -> Result<Self, XdrError> {
        Ok(match d.u32()? {
            0 => Self::Call { id: d.u32()?, call: d.value()? },
            1 => Self::Answer { id: d.u32()?, answer: d.value()? },
            2 => Self::Alive,
            value => return Err(XdrError::UnknownValue { what: "a frame", value }),
        })
    }
}

impl Encode for Frame<'_> {
    fn encode(&self, e: &mut Encoder<'_>) {
        match self {
            Self::Call { id, call } => {
                e.u32(0);
                e.u32(*id);
                e.value(call);
            }
            Self::Answer { id, answer } => {
                e.u32(1);
                e.u32(*id);
                e.value(answer);
            }
            Self::Alive => e.u32(2),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_back() {
        let component = [9; 16];
        let wanted = StateUse {
            owner: b"a client",
            mechanism: b"sys",
            principal: b"0",
            handle: &[7; 64],
            state: 1 << 40,
            seqid: 3,
            write: true,
            flavour: b"krb5p",
            address: [9; 16],
            privileged: true,
            security: b"mtls",
        };
        let calls = [
            Call::Read { component, offset: 1 << 50, len: 7 },
            Call::Write { component, offset: 5, stable: true, data: b"data" },
            Call::Commit { component },
            Call::Cut { component, size: 99 },
            Call::Size { component },
            Call::Remove { component },
            Call::Space,
            Call::RevokeAuthorisation { component },
            Call::MissingComponents,
            Call::Digest { component, offset: 1 << 41, len: 8 },
            Call::Counters,
            Call::Advise { component, offset: 6, len: 7, advice: RangeAdvice::WillNeed },
            Call::Advise { component, offset: 6, len: 7, advice: RangeAdvice::Keep },
            Call::Advise { component, offset: 6, len: 7, advice: RangeAdvice::LeaveFirst },
            Call::Advise { component, offset: 6, len: 0, advice: RangeAdvice::DontNeed },
            Call::CheckState(wanted),
            Call::FileSize { component },
            Call::ReadFile { component, offset: 4, len: DATA_BYTES_MAX as u32 },
            Call::WriteFile { component, offset: 4, data: b"" },
        ];
        let answers = [
            Answer::Done,
            Answer::Data(b"bytes"),
            Answer::Written { count: 5, verifier: 6 },
            Answer::Verifier(7),
            Answer::Size(8),
            Answer::Space { total: 3, free: 2, available: 1 },
            Answer::Refused(10),
            Answer::DoneWithin { age_ns: 1 << 40 },
            Answer::Counters { read: 1, written: 2, indirect: 3 },
            Answer::Digest { count: 4, hash: [5; 16] },
        ];
        let calls = calls.into_iter().map(|call| Frame::Call { id: 4, call });
        let answers = answers.into_iter().map(|answer| Frame::Answer { id: 5, answer });
        for frame in calls.chain(answers).chain([Frame::Alive]) {
            let bytes = frame.encoded();
            let mut d = Decoder::new(&bytes);
            assert_eq!(Frame::decode(&mut d).as_ref(), Ok(&frame));
            d.finish().expect("nothing else");
            for len in 0..bytes.len() {
                assert!(Frame::decode(&mut Decoder::new(&bytes[..len])).is_err(), "{frame:?}");
            }
        }
    }

    #[test]
    fn a_call_asks_for_no_more_than_fits_an_answer() {
        let (component, len) = ([0; 16], DATA_BYTES_MAX as u32 + 1);
        for call in
            [Call::Read { component, offset: 0, len }, Call::Digest { component, offset: 0, len }]
        {
            let bytes = call.encoded();
            assert!(Call::decode(&mut Decoder::new(&bytes)).is_err());
        }
    }
}
