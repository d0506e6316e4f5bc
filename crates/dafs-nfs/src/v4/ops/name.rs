//! The rules for names of one component (RFC 8881 14 and 15.1.7).
//!
//! Names are bytes, as in the file systems below: NFSv4 clients must be able to open every name
//! that DAFS, NFSv3 or a local process can use. The attribute `fs_charset_cap` announces this (RFC
//! 8881 14.4), so bytes that are not UTF-8 are no error.

use dafs_store::NAME_BYTES_MAX;
use dafs_wire::nfs4::Status;

/// Refuses invalid names.
///
/// # Errors
/// `Inval` for an empty name, `NameTooLong`, `BadChar` for '/' and zero, `BadName` for "." and
/// "..".
#[inline]
pub(crate) fn check(name: &[u8]) -> Result<(), Status> {
    match name {
        [] => Err(Status::Inval),
        [b'.'] | [b'.', b'.'] => Err(Status::BadName),
        name if name.len() > NAME_BYTES_MAX => Err(Status::NameTooLong),
        name if name.iter().any(|&byte| byte == b'/' || byte == 0) => Err(Status::BadChar),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_bad_name_has_its_status() {
        let long = [b'a'; NAME_BYTES_MAX + 1];
        let cases: [(&[u8], _); 9] = [
            (b"", Err(Status::Inval)),
            (b".", Err(Status::BadName)),
            (b"..", Err(Status::BadName)),
            (b"a/b", Err(Status::BadChar)),
            (b"a\0", Err(Status::BadChar)),
            (&long, Err(Status::NameTooLong)),
            (&long[1..], Ok(())),
            (b"...", Ok(())),
            (b"\xff\xfe", Ok(())),
        ];
        for (name, expected) in cases {
            assert_eq!(check(name), expected, "{name:?}");
        }
    }
}
