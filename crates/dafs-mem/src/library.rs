//! Libraries that are loaded at run time: a table of addresses for each.
//!
//! Notes
//! * A library is loaded when it is first needed, and never unloaded, because its threads may still
//!   run.

use std::ffi::{CStr, CString, c_void};
use std::fmt;

/// A library, in the words of error messages.
#[derive(Debug, PartialEq, Eq)]
pub struct Library {
    /// The file system that is used by it.
    pub file_system: &'static str,
    /// The name of the library.
    pub name: &'static str,
    /// The Debian package of the library.
    pub package: &'static str,
    /// The name of its file, with the version of its interface.
    pub file: &'static CStr,
    /// A version that is known to work.
    pub version: &'static str,
}

/// The reason why a library cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unavailable {
    /// The library is not installed, or cannot be loaded, for this reason.
    Missing(&'static Library, String),
    /// The library lacks this function.
    TooOld(&'static Library, &'static str),
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(Library { file_system, name, package, .. }, why) => write!(
                f,
                "{file_system} needs the library {name}, which cannot be loaded; install it \
                 (Debian: apt install {package}): {why}"
            ),
            Self::TooOld(Library { name, version, .. }, function) => write!(
                f,
                "the installed {name} is too old: it has no function {function}; {version} is \
                 known to work"
            ),
        }
    }
}

impl std::error::Error for Unavailable {}

/// A loaded library.
#[derive(Debug)]
pub struct Loaded(&'static Library, *mut c_void);

impl Library {
    /// Loads the file of the library.
    ///
    /// # Errors
    /// [`Unavailable::Missing`].
    ///
    /// # Safety
    /// The initialisers of the library may run at any time, in any thread.
    pub unsafe fn load(&'static self) -> Result<Loaded, Unavailable> {
        // SAFETY: the name ends with a zero; the caller vouches for the library's initialisers.
        let library =
            unsafe { libc::dlopen(self.file.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if !library.is_null() {
            return Ok(Loaded(self, library));
        }
        // SAFETY: after a failure this is a text that ends with a zero, or null.
        let why = unsafe {
            let text = libc::dlerror();
            match text.is_null() {
                true => String::new(),
                false => CStr::from_ptr(text).to_string_lossy().into_owned(),
            }
        };
        Err(Unavailable::Missing(self, why))
    }
}

impl Loaded {
    /// Returns the address of a function, not null. Of several versions it is the newest, as for a
    /// program that is linked with the library.
    ///
    /// # Errors
    /// [`Unavailable::TooOld`].
    pub fn address(&self, function: &'static str) -> Result<*mut c_void, Unavailable> {
        let lacks = Unavailable::TooOld(self.0, function);
        let Ok(symbol) = CString::new(function) else { return Err(lacks) };
        // SAFETY: the library is loaded for ever, the name ends with a zero.
        let address = unsafe { libc::dlsym(self.1, symbol.as_ptr()) };
        if address.is_null() { Err(lacks) } else { Ok(address) }
    }
}

/// Makes a table of the functions of a [`Library`]: the table's name, the library, and the functions
/// as in its header. The table's `get` loads the library with the first call.
///
/// # Safety
/// The initialisers of the library may run at any time, and the types are those of its header. The
/// word `unsafe` before the table's name says that the user of the macro has made sure of both.
#[macro_export]
macro_rules! library {
    (
        unsafe $table:ident, $library:expr;
        $(fn $function:ident($($argument:ty),* $(,)?) $(-> $answer:ty)?;)*
    ) => {
        /// Addresses of functions, with the types of the library's header.
        pub(super) struct $table {
            $(pub(super) $function: unsafe extern "C" fn($($argument),*) $(-> $answer)?,)*
        }

        impl $table {
            fn load() -> std::result::Result<Self, $crate::Unavailable> {
                static LIBRARY: $crate::Library = $library;
                // SAFETY: the user of the macro vouches for the library.
                let loaded = unsafe { LIBRARY.load() }?;
                Ok(Self {
                    $($function: {
                        let address = loaded.address(stringify!($function))?;
                        // SAFETY: a function's address, not null, of the type that the header of
                        // this library gives the function of this name, by the word of the macro's
                        // user.
                        unsafe {
                            std::mem::transmute::<
                                *mut std::ffi::c_void,
                                unsafe extern "C" fn($($argument),*) $(-> $answer)?,
                            >(address)
                        }
                    },)*
                })
            }

            /// Returns the functions of the library, which the first call loads.
            pub(super) fn get() -> std::result::Result<&'static Self, $crate::Unavailable> {
                static TABLE: std::sync::OnceLock<
                    std::result::Result<$table, $crate::Unavailable>,
                > = std::sync::OnceLock::new();
                TABLE.get_or_init(Self::load).as_ref().map_err(Clone::clone)
            }
        }
    };
}
