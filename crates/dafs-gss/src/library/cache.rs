//! A cache of tickets in the memory of this process (MEMORY of libkrb5).
//!
//! Invariants
//! * The cache is destroyed with its owner. The library would keep it, and the keys in it, until the process
//!   ends.

use dafs_mem::{Library, library};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fmt;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering};

// SAFETY: the initialisers of the library have no requirements; the types are those of krb5.h.
library! {
    unsafe Functions, Library {
        file_system: "Kerberos",
        name: "libkrb5",
        package: "libkrb5-3",
        file: c"libkrb5.so.3",
        version: "1.19",
    };
    fn krb5_cc_destroy(*mut c_void, *mut c_void) -> c_int;
    fn krb5_cc_resolve(*mut c_void, *const c_char, *mut *mut c_void) -> c_int;
    fn krb5_free_context(*mut c_void);
    fn krb5_init_context(*mut *mut c_void) -> c_int;
}

/// Numbers the caches of this process.
static CACHES: AtomicU64 = AtomicU64::new(0);

/// A cache in memory; dropped, it is destroyed.
pub(super) struct MemoryCache(CString);

impl MemoryCache {
    /// Chooses a name. The library makes the cache when it is used.
    pub(super) fn new() -> Self {
        let number = CACHES.fetch_add(1, Ordering::Relaxed);
        // INVARIANT: a number and these letters have no zero byte.
        Self(CString::new(format!("MEMORY:dafs-{number}")).expect("a name without a zero byte"))
    }

    /// Returns the name.
    pub(super) fn name(&self) -> &CStr {
        &self.0
    }
}

impl Drop for MemoryCache {
    fn drop(&mut self) {
        // libgssapi_krb5 has loaded the library.
        if let Ok(library) = Functions::get() {
            destroy(library, &self.0);
        }
    }
}

impl fmt::Debug for MemoryCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MemoryCache({})", self.0.to_string_lossy())
    }
}

/// Destroys a cache. After a failure it stays.
fn destroy(library: &Functions, name: &CStr) {
    let (mut context, mut cache) = (null_mut(), null_mut());
    // SAFETY: the address of a place for the context; the library fills it if it returns 0.
    if unsafe { (library.krb5_init_context)(&raw mut context) } != 0 {
        return;
    }
    // SAFETY: a context of the library, a name that ends with a zero, and a place for the cache. A cache that
    // does not exist is made.
    let resolved = unsafe { (library.krb5_cc_resolve)(context, name.as_ptr(), &raw mut cache) };
    if resolved == 0 {
        // SAFETY: a cache of the library, which the call consumes. Others that use it share its counted memory.
        unsafe { (library.krb5_cc_destroy)(context, cache) };
    }
    // SAFETY: a context of the library, freed once, after all calls with it.
    unsafe { (library.krb5_free_context)(context) };
}
