//! The keys of an established context, out of the library (gssapi_krb5.h, `gss_krb5_lucid_context_v1`).
//!
//! Invariants
//! * Exporting consumes the context. Its copy in the library's memory is erased and freed in any case.
//! * Only keys for AES leave this module; any other type is refused, and the reason names it.

use super::sys::{Context, Gss};
use crate::enctype::{Enctype, Key};
use crate::mechanism::{FAILURE, Failure};
use crate::token::{Agreed, Role};
use std::ffi::c_void;
use std::ptr::null_mut;

/// The version of the structure.
const VERSION: u32 = 1;

/// The messages of the context follow RFC 4121. The other protocol, 0, is RFC 1964, for older types.
const RFC_4121: u32 = 1;

/// `gss_krb5_lucid_key_t`.
#[repr(C)]
struct LucidKey {
    enctype: u32,
    length: u32,
    data: *const c_void,
}

/// `gss_krb5_rfc1964_keydata_t`.
#[repr(C)]
struct OldKeys {
    sign: u32,
    seal: u32,
    key: LucidKey,
}

/// `gss_krb5_cfx_keydata_t`.
#[repr(C)]
struct NewKeys {
    have_acceptor_subkey: u32,
    key: LucidKey,
    acceptor_subkey: LucidKey,
}

/// `gss_krb5_lucid_context_v1_t`.
#[repr(C)]
struct Lucid {
    version: u32,
    initiate: u32,
    end_time: u32,
    send_sequence: u64,
    receive_sequence: u64,
    protocol: u32,
    old: OldKeys,
    new: NewKeys,
}

/// The exported structure, which belongs to the library.
struct Export {
    gss: Gss,
    raw: *mut c_void,
}

impl Drop for Export {
    fn drop(&mut self) {
        let mut minor = 0;
        if !self.raw.is_null() {
            // SAFETY: a structure that the library has exported, freed once.
            unsafe { (self.gss.0.gss_krb5_free_lucid_sec_context)(&raw mut minor, self.raw) };
        }
    }
}

/// Takes the keys of an established context, and the end of its ticket in seconds since 1970.
pub(super) fn export(mut context: Context) -> Result<(Agreed, u64), Failure> {
    let gss = context.gss();
    let (mut minor, mut raw) = (0, null_mut());
    // SAFETY: an established context, which is its owner's alone; the library sets it to null when it has
    // consumed it.
    let major = unsafe {
        (gss.0.gss_krb5_export_lucid_sec_context)(
            &raw mut minor,
            context.raw(),
            VERSION,
            &raw mut raw,
        )
    };
    let export = Export { gss, raw };
    gss.check(major, minor)?;
    // SAFETY: the library has answered with a structure of the version that was asked for. It lives as long
    // as `export`, and nobody else knows it.
    let lucid = unsafe { export.raw.cast::<Lucid>().as_ref() };
    let lucid = lucid.filter(|lucid| lucid.version == VERSION).ok_or_else(|| {
        Failure::here(FAILURE, "libgssapi_krb5 exports contexts in another form than version 1")
    })?;
    Ok((agreed(lucid)?, u64::from(lucid.end_time)))
}

fn agreed(lucid: &Lucid) -> Result<Agreed, Failure> {
    if lucid.protocol != RFC_4121 {
        return Err(refused(lucid.old.key.enctype));
    }
    let acceptor_subkey = lucid.new.have_acceptor_subkey != 0;
    let key = if acceptor_subkey { &lucid.new.acceptor_subkey } else { &lucid.new.key };
    let enctype = Enctype::from_number(key.enctype)
        .filter(|enctype| enctype.key_len() == key.length as usize && !key.data.is_null());
    let Some(enctype) = enctype else { return Err(refused(key.enctype)) };
    // SAFETY: the library exports keys with their length, which was compared with that of their type.
    let bytes = unsafe { std::slice::from_raw_parts(key.data.cast::<u8>(), enctype.key_len()) };
    let key =
        Key::new(enctype, bytes).map_err(|error| Failure::here(FAILURE, &error.to_string()))?;
    let role = if lucid.initiate != 0 { Role::Initiator } else { Role::Acceptor };
    Ok(Agreed { key, acceptor_subkey, role, sequence: lucid.send_sequence })
}

fn refused(number: u32) -> Failure {
    let text =
        format!("the context has a key of encryption type {number}, and only AES is accepted");
    let remedy = "put aes256-cts-hmac-sha1-96 or aes256-cts-hmac-sha384-192 first in permitted_enctypes of \
                  krb5.conf, and give the service such keys at the KDC";
    Failure { remedy: Some(remedy), ..Failure::here(FAILURE, &text) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lucid(protocol: u32, enctype: u32, key: &[u8]) -> Lucid {
        let key = || LucidKey { enctype, length: key.len() as u32, data: key.as_ptr().cast() };
        let old = OldKeys { sign: 0, seal: 0, key: key() };
        let new = NewKeys { have_acceptor_subkey: 1, key: key(), acceptor_subkey: key() };
        Lucid {
            version: 1,
            initiate: 1,
            end_time: 9,
            send_sequence: 5,
            receive_sequence: 6,
            protocol,
            old,
            new,
        }
    }

    #[test]
    fn only_keys_for_aes_are_taken() {
        let good = agreed(&lucid(1, 18, &[1; 32])).unwrap();
        assert_eq!((good.role, good.sequence, good.acceptor_subkey), (Role::Initiator, 5, true));
        // DES, triple DES, RC4 and Camellia; the old protocol, also with a key for AES; a protocol that does not
        // exist; lengths that do not fit.
        for (protocol, enctype, len) in [
            (0, 3, 8),
            (0, 16, 24),
            (0, 23, 16),
            (0, 18, 32),
            (2, 18, 32),
            (1, 26, 32),
            (1, 18, 16),
            (1, 17, 32),
            (1, 18, 0),
        ] {
            let refused = agreed(&lucid(protocol, enctype, &vec![1; len])).unwrap_err();
            assert!(refused.to_string().contains(&format!("encryption type {enctype},")));
        }
    }

    /// The layout of the header, on a machine with 64-bit pointers.
    #[test]
    #[cfg(target_pointer_width = "64")]
    fn the_layout_is_that_of_the_header() {
        use std::mem::{offset_of, size_of};
        assert_eq!(size_of::<LucidKey>(), 16);
        assert_eq!(offset_of!(Lucid, send_sequence), 16);
        assert_eq!(offset_of!(Lucid, protocol), 32);
        assert_eq!(offset_of!(Lucid, old), 40);
        assert_eq!(offset_of!(Lucid, new), 64);
        assert_eq!(offset_of!(NewKeys, key), 8);
        assert_eq!(size_of::<Lucid>(), 104);
    }
}
