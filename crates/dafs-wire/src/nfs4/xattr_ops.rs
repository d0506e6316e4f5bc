//! Extended attributes: GETXATTR, SETXATTR, LISTXATTRS, REMOVEXATTR (RFC 8276 8.4).

use super::codec::{xdr_enum, xdr_field, xdr_struct};
use super::limits::XATTR_NAMES_MAX;
use super::types::ChangeInfo;

xdr_struct! {
    /// Arguments of GETXATTR (RFC 8276 8.4.1).
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct GetxattrArgs<'a> {
        /// The name, without a prefix.
        pub name: &'a [u8],
    }
}

xdr_struct! {
    /// Results of GETXATTR (RFC 8276 8.4.1).
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct GetxattrResult<'a> {
        /// The value.
        pub value: &'a [u8],
    }
}

xdr_enum! {
    closed
    /// Whether the attribute may, must not or has to exist (`setxattr_option4`).
    pub enum SetxattrOption {
        /// It may.
        Either = 0,
        /// It must not.
        Create = 1,
        /// It has to.
        Replace = 2,
    }
}

xdr_struct! {
    /// Arguments of SETXATTR (RFC 8276 8.4.2).
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct SetxattrArgs<'a> {
        /// Whether it may exist.
        pub option: SetxattrOption,
        /// The name, without a prefix.
        pub name: &'a [u8],
        /// The value.
        pub value: &'a [u8],
    }
}

xdr_struct! {
    /// Results of SETXATTR (RFC 8276 8.4.2).
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct SetxattrResult {
        /// How the file's change attribute moved.
        pub change: ChangeInfo,
    }
}

xdr_struct! {
    /// Arguments of LISTXATTRS (RFC 8276 8.4.3).
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct ListxattrsArgs {
        /// Where to go on; 0 at the start.
        pub cookie: u64,
        /// The most bytes of the result.
        pub result_bytes_max: u32,
    }
}

xdr_struct! {
    /// Results of LISTXATTRS (RFC 8276 8.4.3).
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct ListxattrsResult<'a> {
        /// Where to go on.
        pub cookie: u64,
        /// The names, without a prefix.
        pub names: Vec<&'a [u8]> [max XATTR_NAMES_MAX],
        /// Whether the last name is the last there is.
        pub eof: bool,
    }
}

xdr_struct! {
    /// Arguments of REMOVEXATTR (RFC 8276 8.4.4).
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct RemovexattrArgs<'a> {
        /// The name, without a prefix.
        pub name: &'a [u8],
    }
}

xdr_struct! {
    /// Results of REMOVEXATTR (RFC 8276 8.4.4).
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct RemovexattrResult {
        /// How the file's change attribute moved.
        pub change: ChangeInfo,
    }
}
