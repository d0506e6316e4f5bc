//! Negotiates the channels of a session (RFC 8881 18.36.3).
//!
//! Invariants
//! * No granted value is larger than the requested one, or than the server's limits.
//! * A channel that cannot carry even the smallest request or reply is refused.

use crate::limits::*;
use crate::v4::callback::BackCredential;
use dafs_wire::nfs4::{AuthSysParameters, CallbackSecurity, ChannelAttributes, Status};
use dafs_wire::xdr::{Encode, Encoder};

/// Returns the limits of a fore channel.
///
/// # Errors
/// `TooSmall` for sizes that no message fits into, `Inval` for zero slots or operations.
pub(super) fn fore(wanted: &ChannelAttributes) -> Result<ChannelAttributes, Status> {
    if wanted.request_bytes_max < REQUEST_BYTES_MIN
        || wanted.response_bytes_max < RESPONSE_BYTES_MIN
    {
        return Err(Status::TooSmall);
    }
    if wanted.requests_max == 0 || wanted.operations_max == 0 {
        return Err(Status::Inval);
    }
    Ok(ChannelAttributes {
        header_pad_bytes: 0,
        request_bytes_max: wanted.request_bytes_max.min(REQUEST_BYTES_MAX),
        response_bytes_max: wanted.response_bytes_max.min(RESPONSE_BYTES_MAX),
        response_bytes_max_cached: wanted.response_bytes_max_cached.min(RESPONSE_CACHED_BYTES_MAX),
        operations_max: wanted.operations_max.min(OPERATIONS_MAX),
        requests_max: wanted.requests_max.min(SLOTS_INITIAL_MAX),
        rdma_ird: None,
    })
}

/// Returns the limits of a back channel. The client sets them, because it is the server of that
/// channel. Zero slots mean that there is no back channel.
///
/// # Errors
/// `TooSmall` when no callback fits.
pub(super) fn back(wanted: &ChannelAttributes) -> Result<ChannelAttributes, Status> {
    if wanted.request_bytes_max < BACK_REQUEST_BYTES_MIN
        || wanted.response_bytes_max < BACK_RESPONSE_BYTES_MIN
        || wanted.operations_max < BACK_OPERATIONS_MIN
    {
        return Err(Status::TooSmall);
    }
    Ok(ChannelAttributes {
        header_pad_bytes: 0,
        requests_max: wanted.requests_max.min(BACK_SLOTS_MAX),
        rdma_ird: None,
        ..*wanted
    })
}

/// Returns the first credential of the client's list that this server can use. The server has none
/// for RPCSEC_GSS.
pub(super) fn credential(offered: &[CallbackSecurity<'_>]) -> Option<BackCredential> {
    offered.iter().find_map(|security| match security {
        CallbackSecurity::None => Some(BackCredential::None),
        CallbackSecurity::Sys(parameters) => Some(BackCredential::Sys(body(parameters))),
        CallbackSecurity::Gss(_) => None,
    })
}

fn body(parameters: &AuthSysParameters<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    parameters.encode(&mut Encoder::new(&mut bytes));
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted() -> ChannelAttributes {
        ChannelAttributes {
            header_pad_bytes: 512,
            request_bytes_max: u32::MAX,
            response_bytes_max: u32::MAX,
            response_bytes_max_cached: u32::MAX,
            operations_max: u32::MAX,
            requests_max: u32::MAX,
            rdma_ird: Some(7),
        }
    }

    #[test]
    fn the_server_keeps_to_its_limits_and_the_clients() {
        let got = fore(&wanted()).unwrap();
        assert_eq!(got.request_bytes_max, REQUEST_BYTES_MAX);
        assert_eq!(got.response_bytes_max_cached, RESPONSE_CACHED_BYTES_MAX);
        assert_eq!((got.requests_max, got.operations_max), (SLOTS_INITIAL_MAX, OPERATIONS_MAX));
        assert_eq!((got.header_pad_bytes, got.rdma_ird), (0, None));
        let modest = ChannelAttributes {
            request_bytes_max: 512,
            response_bytes_max: 400,
            response_bytes_max_cached: 10,
            operations_max: 4,
            requests_max: 1,
            ..ChannelAttributes::default()
        };
        assert_eq!(fore(&modest), Ok(modest));
    }

    #[test]
    fn channels_on_which_nothing_fits_are_refused() {
        let small = ChannelAttributes { request_bytes_max: 20, ..wanted() };
        assert_eq!(fore(&small), Err(Status::TooSmall));
        assert_eq!(back(&small), Err(Status::TooSmall));
        let small = ChannelAttributes { response_bytes_max: 0, ..wanted() };
        assert_eq!(fore(&small), Err(Status::TooSmall));
        assert_eq!(back(&small), Err(Status::TooSmall));
        let few = ChannelAttributes { operations_max: 1, ..wanted() };
        assert_eq!(back(&few), Err(Status::TooSmall));
        assert!(fore(&few).is_ok());
        let none = ChannelAttributes { requests_max: 0, ..wanted() };
        assert_eq!(fore(&none), Err(Status::Inval));
    }

    #[test]
    fn the_first_credential_that_can_be_used_is_taken() {
        let gss =
            dafs_wire::nfs4::GssCallbackHandles { service: 1, from_server: b"", from_client: b"" };
        let gss = CallbackSecurity::Gss(gss);
        assert_eq!(credential(&[]), None);
        assert_eq!(credential(std::slice::from_ref(&gss)), None);
        assert_eq!(credential(&[gss, CallbackSecurity::None]), Some(BackCredential::None));
    }
}
