//! The library's own messages, to compare ours with.

use super::sys::{Bytes, Context, Output, RawContext};
use dafs_mem::{Library, library};
use std::ffi::c_int;

// SAFETY: the initialisers of the library have no requirements; the types are those of gssapi.h.
library! {
    unsafe Messages, Library {
        file_system: "Kerberos",
        name: "libgssapi_krb5",
        package: "libgssapi-krb5-2",
        file: c"libgssapi_krb5.so.2",
        version: "1.19",
    };
    fn gss_get_mic(*mut u32, RawContext, u32, *const Bytes, *mut Bytes) -> u32;
    fn gss_unwrap(
        *mut u32, RawContext, *const Bytes, *mut Bytes, *mut c_int, *mut u32,
    ) -> u32;
    fn gss_verify_mic(*mut u32, RawContext, *const Bytes, *const Bytes, *mut u32) -> u32;
    fn gss_wrap(
        *mut u32, RawContext, c_int, u32, *const Bytes, *mut c_int, *mut Bytes,
    ) -> u32;
}

/// A context whose messages the library makes.
pub(super) struct Reference(pub(super) Context);

impl Reference {
    fn filled(
        &mut self,
        call: impl FnOnce(&Messages, *mut u32, RawContext, *mut Bytes) -> u32,
    ) -> Vec<u8> {
        let gss = self.0.gss();
        let (mut minor, mut output) = (0, Output::new(gss));
        let major = call(Messages::get().unwrap(), &raw mut minor, *self.0.raw(), output.as_mut());
        gss.check(major, minor).unwrap();
        output.to_vec()
    }

    pub(super) fn mic(&mut self, message: &[u8]) -> Vec<u8> {
        let message = Bytes::of(message);
        self.filled(|library, minor, context, output| {
            // SAFETY: an established context, and addresses of values that outlive the call.
            unsafe { (library.gss_get_mic)(minor, context, 0, &raw const message, output) }
        })
    }

    pub(super) fn verify(&mut self, message: &[u8], mic: &[u8]) {
        let (message, mic, mut qop) = (Bytes::of(message), Bytes::of(mic), 0);
        self.filled(|library, minor, context, _| {
            // SAFETY: an established context, and addresses of values that outlive the call.
            unsafe {
                (library.gss_verify_mic)(
                    minor,
                    context,
                    &raw const message,
                    &raw const mic,
                    &raw mut qop,
                )
            }
        });
    }

    pub(super) fn wrap(&mut self, message: &[u8]) -> Vec<u8> {
        let (message, mut sealed) = (Bytes::of(message), 0);
        let token = self.filled(|library, minor, context, output| {
            // SAFETY: an established context, and addresses of values that outlive the call.
            unsafe {
                (library.gss_wrap)(
                    minor,
                    context,
                    1,
                    0,
                    &raw const message,
                    &raw mut sealed,
                    output,
                )
            }
        });
        assert_ne!(sealed, 0);
        token
    }

    pub(super) fn unwrap(&mut self, token: &[u8]) -> Vec<u8> {
        let (token, mut sealed, mut qop) = (Bytes::of(token), 0, 0);
        let message = self.filled(|library, minor, context, output| {
            // SAFETY: an established context, and addresses of values that outlive the call.
            unsafe {
                (library.gss_unwrap)(
                    minor,
                    context,
                    &raw const token,
                    output,
                    &raw mut sealed,
                    &raw mut qop,
                )
            }
        });
        assert_ne!(sealed, 0);
        message
    }
}
