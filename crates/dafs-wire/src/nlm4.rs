//! Network lock manager, version 4 (X/Open C702 chapter 10; RFC 1813 appendix II): byte-range locks
//! and share reservations of NFSv3 clients. Only the synchronous procedures are here: over TCP no
//! client needs the others.
//!
//! Invariants
//! * Decoding allocates nothing.
//! * A decoded value encodes to bytes that decode to the same value.

use crate::nfs3::field::{numbers, record};
use crate::xdr::{Decode, Decoder, Encode, Encoder, XdrError, no_such};

/// The RPC program.
pub const PROGRAM: u32 = 100_021;

/// The version of the program that goes with NFSv3: its offsets have 64 bits.
pub const VERSION: u32 = 4;

/// The longest name of a host, in bytes (LM_MAXSTRLEN).
pub const NAME_BYTES_MAX: usize = 1024;

/// The longest cookie, handle or owner, in bytes (MAXNETOBJ_SZ).
pub const OBJECT_BYTES_MAX: usize = 1024;

numbers! {
    /// Procedure numbers.
    pub enum Procedure {
        Null = 0, "NLM4_NULL";
        Test = 1, "NLM4_TEST";
        Lock = 2, "NLM4_LOCK";
        Cancel = 3, "NLM4_CANCEL";
        Unlock = 4, "NLM4_UNLOCK";
        Granted = 5, "NLM4_GRANTED";
        Share = 20, "NLM4_SHARE";
        Unshare = 21, "NLM4_UNSHARE";
        NmLock = 22, "NLM4_NM_LOCK";
        FreeAll = 23, "NLM4_FREE_ALL";
    }
}

numbers! {
    /// The outcome of a request (nlm4_stats).
    pub enum Status {
        Granted = 0,
        Denied = 1,
        DeniedNoLocks = 2,
        Blocked = 3,
        DeniedGracePeriod = 4,
        DeadLock = 5,
        ReadOnly = 6,
        StaleHandle = 7,
        TooBig = 8,
        Failed = 9,
    }
}

numbers! {
    /// The access that a share reservation denies to others (fsh4_mode).
    pub enum Deny {
        None = 0,
        Read = 1,
        Write = 2,
        Both = 3,
    }
}

numbers! {
    /// The access that a share reservation is for (fsh4_access).
    pub enum Access {
        None = 0,
        Read = 1,
        Write = 2,
        Both = 3,
    }
}

macro_rules! codec {
    ($($name:ident)*) => { $(
        impl Decode<'_> for $name {
            fn decode(decoder: &mut Decoder<'_>) -> Result<Self, XdrError> {
                let number = decoder.u32()?;
                Self::from_number(number).ok_or_else(|| no_such(stringify!($name), number))
            }
        }

        impl Encode for $name {
            fn encode(&self, encoder: &mut Encoder<'_>) {
                encoder.u32(self.number());
            }
        }
    )* };
}

codec! { Status Deny Access }

/// Bytes that only their sender understands, at most [`OBJECT_BYTES_MAX`] (netobj).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NetObject<'a>(pub &'a [u8]);

impl<'a> Decode<'a> for NetObject<'a> {
    fn decode(decoder: &mut Decoder<'a>) -> Result<Self, XdrError> {
        decoder.opaque(OBJECT_BYTES_MAX).map(Self)
    }
}

impl Encode for NetObject<'_> {
    fn encode(&self, encoder: &mut Encoder<'_>) {
        encoder.opaque(self.0);
    }
}

/// The name of a host, of at most [`NAME_BYTES_MAX`] bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostName<'a>(pub &'a [u8]);

impl<'a> Decode<'a> for HostName<'a> {
    fn decode(decoder: &mut Decoder<'a>) -> Result<Self, XdrError> {
        decoder.opaque(NAME_BYTES_MAX).map(Self)
    }
}

impl Encode for HostName<'_> {
    fn encode(&self, encoder: &mut Encoder<'_>) {
        encoder.opaque(self.0);
    }
}

record! {
    /// A range of a file and its owner (nlm4_lock).
    pub struct Lock<'a> {
        /// The host of the owner.
        pub caller_name: HostName<'a>,
        /// The handle of the file.
        pub handle: NetObject<'a>,
        /// The owner, unique within the host together with `svid`.
        pub owner: NetObject<'a>,
        /// A number for the process of the owner.
        pub svid: u32,
        /// First byte.
        pub offset: u64,
        /// Length in bytes. 0 for all from `offset`.
        pub length: u64,
    }

    /// Arguments of LOCK and NM_LOCK (nlm4_lockargs).
    pub struct LockArgs<'a> {
        /// Returned in the result.
        pub cookie: NetObject<'a>,
        /// The caller waits for GRANTED if the range is locked.
        pub block: bool,
        /// For writing.
        pub exclusive: bool,
        /// The range.
        pub lock: Lock<'a>,
        /// The caller held it before the server's restart.
        pub reclaim: bool,
        /// The state number of the status monitor of the caller's host.
        pub state: u32,
    }

    /// Arguments of CANCEL (nlm4_cancargs).
    pub struct CancelArgs<'a> {
        /// Returned in the result.
        pub cookie: NetObject<'a>,
        /// As in the request that is cancelled.
        pub block: bool,
        /// As in the request that is cancelled.
        pub exclusive: bool,
        /// The range.
        pub lock: Lock<'a>,
    }

    /// Arguments of TEST and GRANTED (nlm4_testargs).
    pub struct TestArgs<'a> {
        /// Returned in the result.
        pub cookie: NetObject<'a>,
        /// For writing.
        pub exclusive: bool,
        /// The range.
        pub lock: Lock<'a>,
    }

    /// Arguments of UNLOCK (nlm4_unlockargs).
    pub struct UnlockArgs<'a> {
        /// Returned in the result.
        pub cookie: NetObject<'a>,
        /// The range.
        pub lock: Lock<'a>,
    }

    /// A lock that conflicts (nlm4_holder).
    pub struct Holder<'a> {
        /// For writing.
        pub exclusive: bool,
        /// The process of its owner.
        pub svid: u32,
        /// Its owner.
        pub owner: NetObject<'a>,
        /// First byte.
        pub offset: u64,
        /// Length in bytes. 0 for all from `offset`.
        pub length: u64,
    }

    /// The result of LOCK, CANCEL, UNLOCK and GRANTED (nlm4_res).
    pub struct LockResult<'a> {
        /// That of the arguments.
        pub cookie: NetObject<'a>,
        /// The outcome.
        pub status: Status,
    }

    /// Arguments of SHARE and UNSHARE (nlm4_shareargs).
    pub struct ShareArgs<'a> {
        /// Returned in the result.
        pub cookie: NetObject<'a>,
        /// The host of the owner.
        pub caller_name: HostName<'a>,
        /// The handle of the file.
        pub handle: NetObject<'a>,
        /// The owner.
        pub owner: NetObject<'a>,
        /// The access that others are denied.
        pub deny: Deny,
        /// The access that the owner wants.
        pub access: Access,
        /// The caller held it before the server's restart.
        pub reclaim: bool,
    }

    /// The result of SHARE and UNSHARE (nlm4_shareres).
    pub struct ShareResult<'a> {
        /// That of the arguments.
        pub cookie: NetObject<'a>,
        /// The outcome.
        pub status: Status,
        /// Without meaning.
        pub sequence: u32,
    }

    /// Arguments of FREE_ALL (nlm4_notify).
    pub struct FreeAllArgs<'a> {
        /// The host whose locks and reservations end.
        pub name: HostName<'a>,
        /// The state number of its status monitor.
        pub state: u32,
    }
}

/// The result of TEST (nlm4_testres).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TestResult<'a> {
    /// That of the arguments.
    pub cookie: NetObject<'a>,
    /// The outcome. `Ok(None)` is GRANTED and `Ok(Some(_))` DENIED; others name no holder.
    pub outcome: Result<Option<Holder<'a>>, Status>,
}

impl<'a> Decode<'a> for TestResult<'a> {
    fn decode(decoder: &mut Decoder<'a>) -> Result<Self, XdrError> {
        let cookie = decoder.value()?;
        let outcome = match decoder.value::<Status>()? {
            Status::Granted => Ok(None),
            Status::Denied => Ok(Some(decoder.value()?)),
            status => Err(status),
        };
        Ok(Self { cookie, outcome })
    }
}

impl Encode for TestResult<'_> {
    fn encode(&self, encoder: &mut Encoder<'_>) {
        encoder.value(&self.cookie);
        match &self.outcome {
            Ok(None) => encoder.value(&Status::Granted),
            Ok(Some(holder)) => {
                encoder.value(&Status::Denied);
                encoder.value(holder);
            }
            Err(status) => encoder.value(status),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The bytes of a value, which must decode to it, and to nothing when some are missing.
    fn bytes<T: Encode>(value: &T, decodes: impl Fn(&[u8]) -> Option<bool>) -> Vec<u8> {
        let bytes = value.encoded();
        assert_eq!(decodes(&bytes), Some(true));
        for len in 0..bytes.len() {
            assert_eq!(decodes(&bytes[..len]), None, "{len}");
        }
        bytes
    }

    fn lock() -> Lock<'static> {
        let (caller_name, handle) = (HostName(b"h"), NetObject(b"fh"));
        Lock { caller_name, handle, owner: NetObject(b"o"), svid: 7, offset: 1, length: 0 }
    }

    #[test]
    fn a_lock_request_has_its_bytes() {
        let args = LockArgs {
            cookie: NetObject(b"c"),
            block: true,
            exclusive: false,
            lock: lock(),
            reclaim: false,
            state: 3,
        };
        let seen =
            bytes(&args, |bytes| Some(LockArgs::decode(&mut Decoder::new(bytes)).ok()? == args));
        let expected = b"\0\0\0\x01c\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\x01h\0\0\0\0\0\0\x02fh\0\0\
            \0\0\0\x01o\0\0\0\0\0\0\x07\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x03";
        assert_eq!(seen, expected);
    }

    #[test]
    fn a_test_names_the_holder_only_of_a_conflict() {
        let cookie = NetObject(b"");
        let holder =
            Holder { exclusive: true, svid: 1, owner: NetObject(b"o"), offset: 2, length: 3 };
        for outcome in [Ok(None), Ok(Some(holder)), Err(Status::DeniedGracePeriod)] {
            let result = TestResult { cookie, outcome };
            let seen = bytes(&result, |bytes| {
                Some(TestResult::decode(&mut Decoder::new(bytes)).ok()? == result)
            });
            assert_eq!(seen.len() > 8, outcome.is_ok_and(|holder| holder.is_some()));
        }
    }

    #[test]
    fn what_is_too_long_or_unknown_is_refused() {
        let long = [0; OBJECT_BYTES_MAX + 4];
        let object = |len: u32| [&len.to_be_bytes()[..], &long].concat();
        assert!(NetObject::decode(&mut Decoder::new(&object(1024))).is_ok());
        assert!(NetObject::decode(&mut Decoder::new(&object(1025))).is_err());
        assert!(HostName::decode(&mut Decoder::new(&object(1025))).is_err());
        assert!(NetObject::decode(&mut Decoder::new(&object(u32::MAX))).is_err());
        assert!(Deny::decode(&mut Decoder::new(&[0, 0, 0, 4])).is_err());
        assert_eq!(Procedure::from_number(6), None);
    }

    proptest! {
        #[test]
        fn shares_come_back(
            cookie in prop::collection::vec(any::<u8>(), 0..20),
            owner in prop::collection::vec(any::<u8>(), 0..40),
            (deny, access) in (0..4_u32, 0..4_u32),
            reclaim in any::<bool>(),
        ) {
            let args = ShareArgs {
                cookie: NetObject(&cookie),
                caller_name: HostName(&owner),
                handle: NetObject(&cookie),
                owner: NetObject(&owner),
                deny: Deny::from_number(deny).unwrap(),
                access: Access::from_number(access).unwrap(),
                reclaim,
            };
            let bytes = args.encoded();
            prop_assert_eq!(ShareArgs::decode(&mut Decoder::new(&bytes)), Ok(args));
        }

        #[test]
        fn no_bytes_are_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = LockArgs::decode(&mut Decoder::new(&bytes));
            let _ = TestResult::decode(&mut Decoder::new(&bytes));
            let _ = ShareArgs::decode(&mut Decoder::new(&bytes));
            let _ = FreeAllArgs::decode(&mut Decoder::new(&bytes));
        }
    }
}
