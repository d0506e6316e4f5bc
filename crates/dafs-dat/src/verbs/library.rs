//! Loads libibverbs and librdmacm when the first adapter is opened, so that programs start without
//! them.
//!
//! Invariants
//! * A loaded library stays loaded: other threads may run its code.
//! * Symbols are resolved without a version, which yields the default version; the old versions
//!   that libibverbs also carries have other structures.

use super::error::VerbsError;
use super::ffi;
use std::ffi::{CStr, CString, c_void};
use std::sync::OnceLock;

/// The file name of a library, and its Debian package.
#[derive(Debug, Clone, Copy)]
struct Name {
    file: &'static str,
    package: &'static str,
}

const VERBS: Name = Name { file: "libibverbs.so.1", package: "libibverbs1" };
const CM: Name = Name { file: "librdmacm.so.1", package: "librdmacm1" };

/// One open library.
struct Handle {
    name: Name,
    handle: *mut c_void,
}

impl Handle {
    fn open(name: Name) -> Result<Self, VerbsError> {
        let missing =
            |detail| VerbsError::NoLibrary { library: name.file, package: name.package, detail };
        let file = CString::new(name.file).map_err(|error| missing(error.to_string()))?;
        // SAFETY: a terminated name. Opening a library runs its constructors; these two libraries
        // may be opened at any time.
        let handle = unsafe { libc::dlopen(file.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
        if handle.is_null() { Err(missing(last_error())) } else { Ok(Self { name, handle }) }
    }

    fn symbol(&self, symbol: &'static CStr) -> Result<*mut c_void, VerbsError> {
        // SAFETY: the handle is open and stays so; the name is terminated.
        let address = unsafe { libc::dlsym(self.handle, symbol.as_ptr()) };
        if address.is_null() {
            let symbol = symbol.to_str().unwrap_or_default();
            return Err(VerbsError::NoSymbol { library: self.name.file, symbol });
        }
        Ok(address)
    }
}

/// The text of the last dlopen failure.
fn last_error() -> String {
    // SAFETY: the text is terminated and valid until this thread's next call of the family.
    unsafe {
        let text = libc::dlerror();
        if text.is_null() {
            return "no reason given".to_owned();
        }
        CStr::from_ptr(text).to_string_lossy().into_owned()
    }
}

macro_rules! library {
    ($($from:ident { $($field:ident: $kind:ident = $symbol:literal,)* })*) => {
        /// The functions of both libraries.
        pub(super) struct Library {
            $($(pub(super) $field: ffi::$kind,)*)*
        }

        impl Library {
            fn resolve(verbs: &Handle, cm: &Handle) -> Result<Self, VerbsError> {
                let library = |name: &str| if name == "verbs" { verbs } else { cm };
                Ok(Self {
                    $($($field: {
                        let address = library(stringify!($from)).symbol($symbol)?;
                        // SAFETY: the symbol of this name has this type in every release of the
                        // library's major version.
                        unsafe { std::mem::transmute::<*mut c_void, ffi::$kind>(address) }
                    },)*)*
                })
            }
        }
    };
}

library! {
    verbs {
        alloc_pd: AllocPd = c"ibv_alloc_pd",
        dealloc_pd: DeallocPd = c"ibv_dealloc_pd",
        reg_mr: RegMr = c"ibv_reg_mr",
        dereg_mr: DeregMr = c"ibv_dereg_mr",
        create_comp_channel: CreateCompChannel = c"ibv_create_comp_channel",
        destroy_comp_channel: DestroyCompChannel = c"ibv_destroy_comp_channel",
        create_cq: CreateCq = c"ibv_create_cq",
        destroy_cq: DestroyCq = c"ibv_destroy_cq",
        get_cq_event: GetCqEvent = c"ibv_get_cq_event",
        ack_cq_events: AckCqEvents = c"ibv_ack_cq_events",
        query_device: QueryDevice = c"ibv_query_device",
        query_port: QueryPort = c"ibv_query_port",
        query_qp: QueryQp = c"ibv_query_qp",
        get_async_event: GetAsyncEvent = c"ibv_get_async_event",
        ack_async_event: AckAsyncEvent = c"ibv_ack_async_event",
        fork_init: ForkInit = c"ibv_fork_init",
        status_text: StatusText = c"ibv_wc_status_str",
    }
    cm {
        get_devices: GetDevices = c"rdma_get_devices",
        create_event_channel: CreateEventChannel = c"rdma_create_event_channel",
        destroy_event_channel: DestroyEventChannel = c"rdma_destroy_event_channel",
        create_id: CreateId = c"rdma_create_id",
        destroy_id: DestroyId = c"rdma_destroy_id",
        bind_addr: BindAddr = c"rdma_bind_addr",
        resolve_addr: ResolveAddr = c"rdma_resolve_addr",
        resolve_route: ResolveRoute = c"rdma_resolve_route",
        create_qp: CreateQp = c"rdma_create_qp",
        destroy_qp: DestroyQp = c"rdma_destroy_qp",
        connect: Connect = c"rdma_connect",
        accept: Connect = c"rdma_accept",
        listen: Listen = c"rdma_listen",
        reject: Reject = c"rdma_reject",
        notify: Notify = c"rdma_notify",
        disconnect: Disconnect = c"rdma_disconnect",
        get_cm_event: GetCmEvent = c"rdma_get_cm_event",
        ack_cm_event: AckCmEvent = c"rdma_ack_cm_event",
    }
}

impl Library {
    fn open(verbs: Name, cm: Name) -> Result<Self, VerbsError> {
        Self::resolve(&Handle::open(verbs)?, &Handle::open(cm)?)
    }

    /// Returns the libraries, and loads them on first use. A failure is not cached: the package may
    /// be installed while the program runs.
    pub(super) fn get() -> Result<&'static Library, VerbsError> {
        static LIBRARY: OnceLock<Library> = OnceLock::new();
        super::fork::check()?;
        if let Some(library) = LIBRARY.get() {
            return Ok(library);
        }
        let library = Self::open(VERBS, CM)?;
        super::fork::watch();
        super::command_thread::start()?;
        // SAFETY: a call without arguments, before any registration, as required. It has no effect
        // where the kernel copies pinned pages at a fork; on older kernels it keeps registered
        // memory out of children. Its failure only means that forking stays unsafe.
        unsafe { (library.fork_init)() };
        Ok(LIBRARY.get_or_init(|| library))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_names_its_package() {
        let nowhere = Name { file: "libibverbs-is-not-here.so.1", package: "libibverbs1" };
        let error = Library::open(nowhere, CM).err().unwrap();
        assert!(matches!(error, VerbsError::NoLibrary { .. }));
        let text = error.to_string();
        assert!(text.contains("libibverbs-is-not-here.so.1"), "{text}");
        assert!(text.contains("apt install libibverbs1"), "{text}");
    }

    #[test]
    fn a_library_without_a_symbol_is_named() {
        // The C library can be loaded and has none of the functions.
        let other = Name { file: "libc.so.6", package: "libc6" };
        let text = Library::open(other, other).err().unwrap().to_string();
        assert!(text.contains("libc.so.6") && text.contains("ibv_alloc_pd"), "{text}");
    }
}
