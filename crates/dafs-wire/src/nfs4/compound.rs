//! The heads of compounds. They are COMPOUND (RFC 8881 16.2) and CB_COMPOUND (RFC 8881 20.2).
//!
//! Invariants
//! * Only the head is decoded here; operations are decoded one by one, so a large count costs
//!   nothing.

use super::codec::xdr_struct;
use super::limits::TAG_BYTES_MAX;
use super::status::Status;

xdr_struct! {
    /// The head of the arguments of COMPOUND; `op_count` operations follow.
    #[derive(Copy)]
    pub struct CompoundArgs<'a> {
        /// A comment, which the reply echoes.
        pub tag: &'a [u8] [max TAG_BYTES_MAX],
        /// The minor version.
        pub minor_version: u32,
        /// The number of operations, as the client states it, unchecked.
        pub op_count: u32,
    }

    /// The head of the results of COMPOUND; `op_count` results follow.
    #[derive(Copy)]
    pub struct CompoundResult<'a> {
        /// The status of the last executed operation.
        pub status: Status,
        /// The comment of the request.
        pub tag: &'a [u8] [max TAG_BYTES_MAX],
        /// The number of results.
        pub op_count: u32,
    }

    /// The head of the arguments of CB_COMPOUND; `op_count` operations follow.
    #[derive(Copy)]
    pub struct CbCompoundArgs<'a> {
        /// A comment, which the reply echoes.
        pub tag: &'a [u8] [max TAG_BYTES_MAX],
        /// The minor version.
        pub minor_version: u32,
        /// Not used in 4.1.
        pub callback_ident: u32,
        /// The number of operations, as the server states it, unchecked.
        pub op_count: u32,
    }
}

/// The head of the results of CB_COMPOUND has the form of [`CompoundResult`].
pub type CbCompoundResult<'a> = CompoundResult<'a>;
