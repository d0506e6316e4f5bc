//! The options of a session: what the server answers to a client's wishes (DAFS 4.4).
//!
//! Invariants
//! * Padded inline data begins at a multiple of [`INLINE_WRITE_ALIGNMENT_BYTES`] in the memory of every
//!   receive slot: its offset in the message and the size of a slot are such multiples.

use crate::limits::{
    INLINE_WRITE_ALIGNMENT_BYTES, INLINE_WRITE_HEADER_BYTES, MESSAGE_BYTES_MIN, SessionLimits,
};
use dafs_wire::dafs::{SessionOptions, Status, is_valid_inline_write_header_size};

/// Returns the size of messages for a client's request. 0 means no preference.
pub(super) fn message_bytes(wish: u32, max: u32) -> Result<u32, Status> {
    match wish {
        0 => Ok(max),
        wish if wish < MESSAGE_BYTES_MIN => Err(Status::Inval),
        // Receive slots are adjacent, so their size keeps messages aligned.
        wish => Ok(wish.min(max) & !7),
    }
}

/// Returns the server's final answer to a client's requested options (DAFS 4.4), with the initial
/// credits.
pub(super) fn negotiate(
    wish: &SessionOptions,
    limits: &SessionLimits,
) -> Result<(SessionOptions, u16), Status> {
    let max_request_size = message_bytes(wish.max_request_size, limits.request_bytes_max)?;
    // Receive slots are adjacent, so this keeps padded data aligned in each of them.
    let max_request_size = max_request_size & !(INLINE_WRITE_ALIGNMENT_BYTES - 1);
    let max_response_size = message_bytes(wish.max_response_size, limits.response_bytes_max)?;
    let initial = u32::from(limits.credits_initial);
    let credits = match wish.max_requests {
        0 => initial,
        wish => wish.min(initial),
    };
    let credits = u16::try_from(credits.max(1)).unwrap_or(limits.credits_initial);
    // DAFS O23: a multiple of 8, at least 136. A client without a wish gets ours.
    let wished = wish.inline_write_header_size;
    let is_usable = wished != 0 && is_valid_inline_write_header_size(wished);
    let aligned = wished.checked_next_multiple_of(INLINE_WRITE_ALIGNMENT_BYTES);
    let padding = aligned.filter(|&at| is_usable && at < max_request_size);
    let padding = padding.unwrap_or(INLINE_WRITE_HEADER_BYTES);
    let credentials = match wish.max_credentials {
        0 => limits.credentials_max,
        wish => wish.min(limits.credentials_max),
    };
    let options = SessionOptions {
        use_checksums: wish.use_checksums,
        use_response_cache: wish.use_response_cache,
        max_credentials: credentials,
        max_request_size,
        max_response_size,
        max_requests: u32::from(credits),
        inline_write_header_size: padding,
        use_back_control_channel: wish.use_back_control_channel,
        use_rdma_read_channel: false,
    };
    Ok((options, credits))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wish() -> SessionOptions {
        SessionOptions {
            use_checksums: true,
            use_response_cache: true,
            max_credentials: 0,
            max_request_size: 0,
            max_response_size: 5000,
            max_requests: 0,
            inline_write_header_size: 0,
            use_back_control_channel: true,
            use_rdma_read_channel: true,
        }
    }

    #[test]
    fn zero_means_the_servers_default() {
        let limits = SessionLimits::default();
        let (options, credits) = negotiate(&wish(), &limits).unwrap();
        assert_eq!(options.max_request_size, limits.request_bytes_max);
        assert_eq!(options.max_response_size, 5000);
        assert_eq!(credits, limits.credits_initial);
        assert!(options.use_checksums);
        assert!(!options.use_rdma_read_channel);
    }

    #[test]
    fn impossible_wishes_are_refused_or_replaced() {
        let limits = SessionLimits::default();
        let tiny = SessionOptions { max_response_size: 100, ..wish() };
        assert_eq!(negotiate(&tiny, &limits).unwrap_err(), Status::Inval);
        let many = SessionOptions { max_requests: 65_535, ..wish() };
        assert_eq!(negotiate(&many, &limits).unwrap().1, limits.credits_initial);
    }

    /// DAFS O23.
    #[test]
    fn padded_data_is_aligned_in_every_slot() {
        let ours = INLINE_WRITE_HEADER_BYTES;
        let wishes = [(0, ours), (136, 192), (137, ours), (200, 256), (512, 512), (1000, ours)];
        for (wished, agreed) in wishes.into_iter().chain([(u32::MAX - 7, ours)]) {
            let (inline_write_header_size, max_request_size) = (wished, 1030);
            let wish = SessionOptions { inline_write_header_size, max_request_size, ..wish() };
            let (options, _) = negotiate(&wish, &SessionLimits::default()).unwrap();
            assert_eq!(options.inline_write_header_size, agreed, "{wished}");
            assert_eq!(options.max_request_size, 1024);
        }
    }
}
