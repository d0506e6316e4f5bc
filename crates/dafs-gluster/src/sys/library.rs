//! A library that is loaded at run time: the table of its addresses.

use super::Unavailable;
use libc::c_void;
use std::ffi::CStr;

/// Makes the table of the functions of a library: the table's name, the name of the library's file,
/// the functions as in its header. Of several versions of a function it takes the newest, like a
/// program that is linked with the library.
macro_rules! library {
    (
        $table:ident, $file:literal;
        $(fn $function:ident($($argument:ty),* $(,)?) $(-> $answer:ty)?;)*
    ) => {
        /// Addresses of functions, with the types of the library's header.
        pub(super) struct $table {
            $(pub(super) $function: unsafe extern "C" fn($($argument),*) $(-> $answer)?,)*
        }

        impl $table {
            /// Loads the library, and never unloads it, because its threads may still run.
            pub(super) fn open() -> std::result::Result<Self, $crate::sys::Unavailable> {
                let library = $crate::sys::library::open($file)?;
                Ok(Self {
                    $($function: {
                        let symbol = concat!(stringify!($function), "\0");
                        // SAFETY: the library is open, the name ends with a zero.
                        let address = unsafe { libc::dlsym(library, symbol.as_ptr().cast()) };
                        if address.is_null() {
                            let function = stringify!($function);
                            return Err($crate::sys::Unavailable::TooOld { function });
                        }
                        // SAFETY: a function's address, not null, of the type that the header of
                        // this library gives the function of this name.
                        unsafe {
                            std::mem::transmute::<
                                *mut libc::c_void,
                                unsafe extern "C" fn($($argument),*) $(-> $answer)?,
                            >(address)
                        }
                    },)*
                })
            }
        }
    };
}

pub(super) use library;

/// Loads the file of a library.
pub(super) fn open(file: &CStr) -> Result<*mut c_void, Unavailable> {
    // SAFETY: the name ends with a zero; the library's initialisers have no requirements.
    let library = unsafe { libc::dlopen(file.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if !library.is_null() {
        return Ok(library);
    }
    // SAFETY: after a failure this is a text that ends with a zero, or null.
    let why = unsafe {
        let text = libc::dlerror();
        match text.is_null() {
            true => String::new(),
            false => CStr::from_ptr(text).to_string_lossy().into_owned(),
        }
    };
    Err(Unavailable::Missing { why })
}
