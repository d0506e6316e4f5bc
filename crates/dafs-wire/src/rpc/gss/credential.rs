//! The credential of a call (RFC 2203 section 5.2.2, 5.3.1).
//!
//! Invariants
//! * A credential that creates a context has no handle, sequence number or service to rely on.

use super::{HANDLE_BYTES_MAX, Service, VERSION};
use crate::rpc::AuthStatus;
use crate::xdr::{Decoder, Encode, Encoder, XdrError};
use thiserror::Error;

/// The numbers of `rpc_gss_proc_t`.
const DATA: u32 = 0;
const INIT: u32 = 1;
const CONTINUE_INIT: u32 = 2;
const DESTROY: u32 = 3;

/// The body of a credential of flavor [`crate::rpc::AuthFlavor::RPCSEC_GSS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Credential<'a> {
    /// A call of the program (RPCSEC_GSS_DATA).
    Data(Protected<'a>),
    /// The first request for a new context (RPCSEC_GSS_INIT).
    Init,
    /// A further request for the same context (RPCSEC_GSS_CONTINUE_INIT).
    ContinueInit {
        /// The handle from the reply to the request before.
        handle: &'a [u8],
    },
    /// The end of a context (RPCSEC_GSS_DESTROY). It is protected like a call.
    Destroy(Protected<'a>),
}

/// The fields of a credential in an established context.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Protected<'a> {
    /// The name that the server gave the context.
    pub handle: &'a [u8],
    /// The sequence number. One above [`super::SEQUENCE_MAX`] decodes, because the server must
    /// first verify the header (RFC 2203 section 5.3.3.1).
    pub sequence: u32,
    /// The protection of the bodies.
    pub service: Service,
}

/// The reason why a credential is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CredentialError {
    /// The bytes are not those of a credential.
    #[error("the credential is malformed: {0}")]
    Malformed(#[from] XdrError),
    /// A version other than [`VERSION`].
    #[error("version {0} of RPCSEC_GSS is not supported, only {VERSION}")]
    Version(u32),
    /// A procedure that version 1 does not have, such as RPCSEC_GSS_BIND_CHANNEL (RFC 5403).
    #[error("{0} is no procedure of RPCSEC_GSS version 1")]
    Procedure(u32),
    /// An undefined service.
    #[error("{0} is no service of RPCSEC_GSS")]
    Service(u32),
    /// A request for a new context that has a handle.
    #[error("a request for a new context has a handle of {0} bytes")]
    HandleOfInit(usize),
}

impl CredentialError {
    /// The status to answer.
    pub const fn status(self) -> AuthStatus {
        match self {
            Self::Procedure(_) => AuthStatus::RejectedCredential,
            _ => AuthStatus::BadCredential,
        }
    }
}

impl<'a> Credential<'a> {
    /// Decodes the whole body of a credential.
    ///
    /// # Errors
    /// See [`CredentialError`].
    pub fn from_body(body: &'a [u8]) -> Result<Self, CredentialError> {
        let mut decoder = Decoder::new(body);
        let version = decoder.u32()?;
        if version != VERSION {
            return Err(CredentialError::Version(version));
        }
        let procedure = decoder.u32()?;
        let sequence = decoder.u32()?;
        let service = decoder.u32()?;
        let handle = decoder.opaque(HANDLE_BYTES_MAX)?;
        decoder.finish()?;
        let protected = || match Service::from_u32(service) {
            Some(service) => Ok(Protected { handle, sequence, service }),
            None => Err(CredentialError::Service(service)),
        };
        // The sequence number and service of requests for a context have no meaning.
        match procedure {
            DATA => protected().map(Self::Data),
            INIT if handle.is_empty() => Ok(Self::Init),
            INIT => Err(CredentialError::HandleOfInit(handle.len())),
            CONTINUE_INIT => Ok(Self::ContinueInit { handle }),
            DESTROY => protected().map(Self::Destroy),
            other => Err(CredentialError::Procedure(other)),
        }
    }
}

impl Encode for Credential<'_> {
    fn encode(&self, encoder: &mut Encoder<'_>) {
        // Some servers check the service of requests for a context, too.
        let created = |handle| Protected { handle, sequence: 0, service: Service::None };
        let (procedure, fields) = match *self {
            Self::Data(fields) => (DATA, fields),
            Self::Init => (INIT, created(&[])),
            Self::ContinueInit { handle } => (CONTINUE_INIT, created(handle)),
            Self::Destroy(fields) => (DESTROY, fields),
        };
        debug_assert!(fields.handle.len() <= HANDLE_BYTES_MAX, "an over-long handle");
        encoder.u32(VERSION);
        encoder.u32(procedure);
        encoder.u32(fields.sequence);
        encoder.u32(fields.service.to_u32());
        encoder.opaque(fields.handle);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rpc::limits::AUTH_BODY_BYTES_MAX;
    use proptest::prelude::*;

    fn body(words: [u32; 4], handle: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut encoder = Encoder::new(&mut bytes);
        words.iter().for_each(|&word| encoder.u32(word));
        encoder.opaque(handle);
        bytes
    }

    #[test]
    fn the_layout_is_that_of_the_rfc() {
        let fields = Protected { handle: b"abcde", sequence: 7, service: Service::Privacy };
        let bytes = Credential::Data(fields).encoded();
        let want = [
            [0, 0, 0, 1], // version
            [0, 0, 0, 0], // RPCSEC_GSS_DATA
            [0, 0, 0, 7], // seq_num
            [0, 0, 0, 3], // rpc_gss_svc_privacy
            [0, 0, 0, 5], // handle
            *b"abcd",
            *b"e\0\0\0",
        ];
        assert_eq!(bytes, want.concat());
        assert_eq!(Credential::from_body(&bytes), Ok(Credential::Data(fields)));
        assert_eq!(Credential::Init.encoded(), body([1, 1, 0, 1], b""));
        assert_eq!(Credential::Destroy(fields).encoded(), body([1, 3, 7, 3], b"abcde"));
    }

    #[test]
    fn the_fault_decides_the_status() {
        let check = |words, handle: &[u8], error: CredentialError, status| {
            assert_eq!(Credential::from_body(&body(words, handle)), Err(error));
            assert_eq!(error.status(), status);
        };
        let bad = AuthStatus::BadCredential;
        check([0, 0, 1, 1], b"h", CredentialError::Version(0), bad);
        // RFC 5403 and RFC 7861.
        check([2, 4, 1, 1], b"h", CredentialError::Version(2), bad);
        check([3, 0, 1, 1], b"h", CredentialError::Version(3), bad);
        let rejected = AuthStatus::RejectedCredential;
        check([1, 4, 1, 1], b"h", CredentialError::Procedure(4), rejected);
        check([1, 0, 1, 0], b"h", CredentialError::Service(0), bad);
        check([1, 3, 1, 4], b"h", CredentialError::Service(4), bad);
        check([1, 1, 0, 1], b"h", CredentialError::HandleOfInit(1), bad);
        // The service of a request for a context is not looked at.
        assert_eq!(Credential::from_body(&body([1, 1, 9, 9], b"")), Ok(Credential::Init));
        let handle = &b"h"[..];
        let further = body([1, 2, 9, 9], handle);
        assert_eq!(Credential::from_body(&further), Ok(Credential::ContinueInit { handle }));
        let mut longer = body([1, 0, 1, 1], b"h");
        longer.extend_from_slice(&[0; 4]);
        let trailing = CredentialError::Malformed(XdrError::Trailing(4));
        assert_eq!(Credential::from_body(&longer), Err(trailing));
        assert_eq!(trailing.status(), bad);
    }

    #[test]
    fn the_longest_handle_fills_a_credential() {
        let handle = &[7; HANDLE_BYTES_MAX][..];
        let bytes = Credential::ContinueInit { handle }.encoded();
        assert_eq!(bytes.len(), AUTH_BODY_BYTES_MAX);
        assert_eq!(Credential::from_body(&bytes), Ok(Credential::ContinueInit { handle }));
        let longer = body([1, 0, 1, 1], &[7; HANDLE_BYTES_MAX + 1]);
        assert!(matches!(Credential::from_body(&longer), Err(CredentialError::Malformed(_))));
    }

    proptest! {
        #[test]
        fn any_credential_survives_and_no_piece_of_it_is_one(
            procedure in 0u32..4,
            sequence in any::<u32>(),
            service in 1u32..4,
            handle in proptest::collection::vec(any::<u8>(), 0..=HANDLE_BYTES_MAX),
        ) {
            let service = Service::from_u32(service).unwrap();
            let fields = Protected { handle: &handle, sequence, service };
            let credential = match procedure {
                DATA => Credential::Data(fields),
                INIT => Credential::Init,
                CONTINUE_INIT => Credential::ContinueInit { handle: &handle },
                _ => Credential::Destroy(fields),
            };
            let bytes = credential.encoded();
            prop_assert_eq!(Credential::from_body(&bytes), Ok(credential));
            for end in 0..bytes.len() {
                prop_assert!(Credential::from_body(&bytes[..end]).is_err());
            }
        }

        #[test]
        fn any_bytes_decode_or_have_a_status(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            if let Err(error) = Credential::from_body(&bytes) {
                prop_assert!(!error.to_string().is_empty() && error.status().to_u32() <= 2);
            }
        }
    }
}
