//! Extended attributes: GETXATTR, SETXATTR, LISTXATTRS, REMOVEXATTR (RFC 8276 8.4).

use super::codec::{xdr_enum, xdr_struct};
use super::limits::XATTR_NAMES_MAX;
use super::types::ChangeInfo;

xdr_struct! {
    /// Arguments of GETXATTR (RFC 8276 8.4.1).
    #[derive(Copy)]
    pub struct GetxattrArgs<'a> {
        /// The name, without a prefix.
        pub name: &'a [u8],
    }

    /// Results of GETXATTR (RFC 8276 8.4.1).
    #[derive(Copy)]
    pub struct GetxattrResult<'a> {
        /// The value.
        pub value: &'a [u8],
    }
}

xdr_enum! {
    closed
    /// The required existence of the attribute (`setxattr_option4`).
    pub enum SetxattrOption {
        /// It may exist.
        Either = 0,
        /// It must not exist.
        Create = 1,
        /// It must exist.
        Replace = 2,
    }
}

xdr_struct! {
    /// Arguments of SETXATTR (RFC 8276 8.4.2).
    #[derive(Copy)]
    pub struct SetxattrArgs<'a> {
        /// The required existence of the attribute.
        pub option: SetxattrOption,
        /// The name, without a prefix.
        pub name: &'a [u8],
        /// The value.
        pub value: &'a [u8],
    }

    /// Results of SETXATTR (RFC 8276 8.4.2).
    #[derive(Copy)]
    pub struct SetxattrResult {
        /// The change attribute of the file before and after.
        pub change: ChangeInfo,
    }

    /// Arguments of LISTXATTRS (RFC 8276 8.4.3).
    #[derive(Copy)]
    pub struct ListxattrsArgs {
        /// The cookie of the last entry; 0 starts at the beginning.
        pub cookie: u64,
        /// The most bytes of the result.
        pub result_bytes_max: u32,
    }

    /// Results of LISTXATTRS (RFC 8276 8.4.3).
    pub struct ListxattrsResult<'a> {
        /// The cookie for the next request.
        pub cookie: u64,
        /// The names, without a prefix.
        pub names: Vec<&'a [u8]> [max XATTR_NAMES_MAX],
        /// True if the last name is the last of all.
        pub eof: bool,
    }

    /// Arguments of REMOVEXATTR (RFC 8276 8.4.4).
    #[derive(Copy)]
    pub struct RemovexattrArgs<'a> {
        /// The name, without a prefix.
        pub name: &'a [u8],
    }

    /// Results of REMOVEXATTR (RFC 8276 8.4.4).
    #[derive(Copy)]
    pub struct RemovexattrResult {
        /// The change attribute of the file before and after.
        pub change: ChangeInfo,
    }
}
