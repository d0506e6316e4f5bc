//! Arguments and results of context creation (RFC 2203 section 5.2.2, 5.2.3).
//!
//! Invariants
//! * Results that failed carry no handle, no window and no token.

use super::{HANDLE_BYTES_MAX, TOKEN_BYTES_MAX};
use crate::xdr::{Decode, Decoder, Encode, Encoder, XdrError};

/// `GSS_S_COMPLETE` (RFC 2744 section 3.9.1).
const COMPLETE: u32 = 0;
/// `GSS_S_CONTINUE_NEEDED`.
const CONTINUE_NEEDED: u32 = 1;

/// The arguments of RPCSEC_GSS_INIT and RPCSEC_GSS_CONTINUE_INIT (`rpc_gss_init_arg`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InitArgs<'a> {
    /// The token of the initiator, at most [`TOKEN_BYTES_MAX`] bytes.
    pub token: &'a [u8],
}

impl<'a> InitArgs<'a> {
    /// Decodes the arguments of a call.
    ///
    /// # Errors
    /// When they are malformed or the token is too long. The server answers `GARBAGE_ARGS`.
    pub fn from_args(args: &'a [u8]) -> Result<Self, XdrError> {
        let mut decoder = Decoder::new(args);
        let token = decoder.opaque(TOKEN_BYTES_MAX)?;
        decoder.finish()?;
        Ok(Self { token })
    }
}

impl Encode for InitArgs<'_> {
    fn encode(&self, encoder: &mut Encoder<'_>) {
        debug_assert!(self.token.len() <= TOKEN_BYTES_MAX, "an over-long token");
        encoder.opaque(self.token);
    }
}

/// The results of context creation (`rpc_gss_init_res`), by their major status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InitResults<'a> {
    /// The acceptor has the context (`GSS_S_COMPLETE`).
    Complete {
        /// The name of the context.
        handle: &'a [u8],
        /// The minor status, which the mechanism defines.
        minor: u32,
        /// The sequence numbers below the highest one that the server still takes.
        window: u32,
        /// The last token of the acceptor; empty if the initiator needs none.
        token: &'a [u8],
    },
    /// The acceptor needs another token (`GSS_S_CONTINUE_NEEDED`).
    Continue {
        /// The name of the context.
        handle: &'a [u8],
        /// The minor status.
        minor: u32,
        /// The token for the initiator.
        token: &'a [u8],
    },
    /// The acceptor refuses (RFC 2203 section 5.2.3.1).
    Failed {
        /// The major status (RFC 2744 section 3.9.1), neither 0 nor 1.
        major: u32,
        /// The minor status.
        minor: u32,
    },
}

impl<'a> Decode<'a> for InitResults<'a> {
    fn decode(decoder: &mut Decoder<'a>) -> Result<Self, XdrError> {
        let handle = decoder.opaque(HANDLE_BYTES_MAX)?;
        let major = decoder.u32()?;
        let minor = decoder.u32()?;
        let window = decoder.u32()?;
        let token = decoder.opaque(TOKEN_BYTES_MAX)?;
        Ok(match major {
            COMPLETE => Self::Complete { handle, minor, window, token },
            CONTINUE_NEEDED => Self::Continue { handle, minor, token },
            _ => Self::Failed { major, minor },
        })
    }
}

impl Encode for InitResults<'_> {
    fn encode(&self, encoder: &mut Encoder<'_>) {
        let none = &[][..];
        let (handle, major, minor, window, token) = match *self {
            Self::Complete { handle, minor, window, token } => {
                (handle, COMPLETE, minor, window, token)
            }
            Self::Continue { handle, minor, token } => (handle, CONTINUE_NEEDED, minor, 0, token),
            Self::Failed { major, minor } => (none, major, minor, 0, none),
        };
        debug_assert!(handle.len() <= HANDLE_BYTES_MAX && token.len() <= TOKEN_BYTES_MAX);
        encoder.opaque(handle);
        encoder.u32(major);
        encoder.u32(minor);
        encoder.u32(window);
        encoder.opaque(token);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_layout_is_that_of_the_rfc() {
        let results = InitResults::Complete { handle: b"abc", minor: 2, window: 9, token: b"t" };
        let bytes = results.encoded();
        let want = [
            [0, 0, 0, 3],
            *b"abc\0", // handle
            [0, 0, 0, 0],
            [0, 0, 0, 2], // gss_major, gss_minor
            [0, 0, 0, 9], // seq_window
            [0, 0, 0, 1],
            *b"t\0\0\0", // gss_token
        ];
        assert_eq!(bytes, want.concat());
        assert_eq!(Decoder::new(&bytes).value(), Ok(results));
        assert_eq!(InitArgs { token: b"t" }.encoded(), want[5..].concat());
    }

    #[test]
    fn a_failure_has_statuses_alone() {
        let mut bytes =
            InitResults::Complete { handle: b"abc", minor: 2, window: 9, token: b"t" }.encoded();
        bytes[8..12].copy_from_slice(&0x000d_0000u32.to_be_bytes());
        let failed = InitResults::Failed { major: 0x000d_0000, minor: 2 };
        assert_eq!(Decoder::new(&bytes).value(), Ok(failed));
        assert_eq!(failed.encoded()[..12], [0, 0, 0, 0, 0, 13, 0, 0, 0, 0, 0, 2]);
        assert_eq!(failed.encoded().len(), 20);
    }

    #[test]
    fn tokens_are_bounded() {
        let longest = vec![5; TOKEN_BYTES_MAX];
        let args = InitArgs { token: &longest };
        assert_eq!(InitArgs::from_args(&args.encoded()), Ok(args));
        let mut bytes = Vec::new();
        Encoder::new(&mut bytes).opaque(&vec![5; TOKEN_BYTES_MAX + 1]);
        assert!(matches!(InitArgs::from_args(&bytes), Err(XdrError::TooLong { .. })));
        let trailing = [args.encoded(), vec![0; 4]].concat();
        assert_eq!(InitArgs::from_args(&trailing), Err(XdrError::Trailing(4)));
    }

    proptest! {
        #[test]
        fn any_results_survive_and_no_piece_of_them_is_some(
            handle in proptest::collection::vec(any::<u8>(), 0..40),
            token in proptest::collection::vec(any::<u8>(), 0..100),
            (major, minor, window) in (0u32..4, any::<u32>(), any::<u32>()),
        ) {
            let (handle, token) = (&handle[..], &token[..]);
            let results = match major {
                COMPLETE => InitResults::Complete { handle, minor, window, token },
                CONTINUE_NEEDED => InitResults::Continue { handle, minor, token },
                _ => InitResults::Failed { major, minor },
            };
            let bytes = results.encoded();
            let mut decoder = Decoder::new(&bytes);
            prop_assert_eq!(decoder.value(), Ok(results));
            prop_assert_eq!(decoder.finish(), Ok(()));
            for end in 0..bytes.len() {
                prop_assert!(Decoder::new(&bytes[..end]).value::<InitResults<'_>>().is_err());
            }
        }
    }
}
