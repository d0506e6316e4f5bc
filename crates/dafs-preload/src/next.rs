//! The C library's functions behind ours, and the frame in which each of ours runs.
//!
//! Invariants
//! * While a call is served, this library's own calls go to the C library. Calls of a signal
//!   handler then, or of code that has left the served call by `siglongjmp`, fail if they are for a
//!   served path; they never reach this machine's files.
//! * While a call is served, or a lock of ours is held, no signal handler of the program runs in
//!   that thread, and the thread is not cancelled: both are deferred.
//! * A served call leaves `errno` alone unless it fails, and never unwinds.

use crate::failure::{Errno, Failed, Result};
pub(crate) use crate::signals::with_signals_deferred;
use crate::signals::{Touches, with_no_fault};
use crate::{acting, interrupt, report};
use std::cell::Cell;
use std::ffi::{CStr, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicPtr, Ordering};

/// A function behind one of ours, looked up at its first use.
pub(crate) struct Next {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Next {
    pub(crate) const fn new(name: &'static CStr) -> Self {
        Self { name, found: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// Null where the C library has no such function.
    pub(crate) fn get(&self) -> *mut c_void {
        let found = self.found.load(Ordering::Relaxed);
        if !found.is_null() {
            return found;
        }
        // SAFETY: a name that ends with a zero byte; any thread may ask.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.found.store(found, Ordering::Relaxed);
        found
    }
}

thread_local! {
    /// True while this thread serves a call.
    static SERVING: Cell<bool> = const { Cell::new(false) };
    /// True while this thread makes calls of this library to files of this machine.
    static INTERNAL: Cell<bool> = const { Cell::new(false) };
}

/// True if this thread serves a call: further calls are our own, or those of a signal handler that
/// must not wait for us.
pub(crate) fn is_serving() -> bool {
    SERVING.get()
}

/// True if the calls of this thread certainly are this library's own.
pub(crate) fn is_internal() -> bool {
    INTERNAL.get()
}

/// Runs `work`, which serves a call.
pub(crate) fn serve<T: Failed>(work: impl FnOnce() -> Result<T>) -> T {
    let before = Errno::last();
    if is_serving() {
        // A handler for a hardware fault, which cannot be deferred.
        Errno(libc::EDEADLK).set();
        return T::FAILED;
    }
    let done = with_signals_deferred(|| {
        SERVING.set(true);
        let work = || acting::as_caller(|| interrupt::watched(work));
        let done = catch_unwind(AssertUnwindSafe(work)).unwrap_or(Err(Errno(libc::EIO)));
        SERVING.set(false);
        done
    });
    report::served();
    match done {
        Ok(value) => {
            before.set();
            value
        }
        Err(errno) => {
            errno.set();
            T::FAILED
        }
    }
}

/// Runs `work` with its calls going to the C library, as when a call is served. No handler of the
/// program for a fault runs meanwhile: its calls would be taken for ours, and so would all later
/// ones if it jumped out.
pub(crate) fn internal<T>(work: impl FnOnce() -> T) -> T {
    internal_with(Touches::Own, work)
}

/// As [`internal`], for work that sends to a server or waits for one. It may move the bytes of
/// other threads' calls, and bad memory must be an error of those calls.
pub(crate) fn internal_with_clients<T>(work: impl FnOnce() -> T) -> T {
    internal_with(Touches::Programs, work)
}

/// As [`internal_with_clients`], for the whole life of a thread of ours, in which no handler of the
/// program runs.
pub(crate) fn internal_from_now_on() {
    SERVING.set(true);
    INTERNAL.set(true);
}

fn internal_with<T>(touches: Touches, work: impl FnOnce() -> T) -> T {
    if is_internal() {
        return work();
    }
    with_no_fault(touches, || {
        let before = SERVING.replace(true);
        INTERNAL.set(true);
        let done = work();
        INTERNAL.set(false);
        SERVING.set(before);
        done
    })
}

/// Functions that interpose those of the C library. `|pass|` names a closure that calls the
/// function behind with the same arguments. The bodies may use the arguments as the C function's
/// contract allows. Functions with names in brackets have one body; each passes to its own name.
macro_rules! interpose {
    ($(
        fn $names:tt ($($argument:ident: $type:ty),* $(,)?) -> $out:ty, |$pass:ident| $body:block
    )*) => {
        $( $crate::next::interposed!($names ($($argument: $type),*) -> $out, |$pass| $body); )*
    };
}

macro_rules! interposed {
    ([$($name:ident),*] $arguments:tt -> $out:ty, |$pass:ident| $body:block) => {
        $( $crate::next::interposed!($name $arguments -> $out, |$pass| $body); )*
    };
    ($name:ident ($($argument:ident: $type:ty),*) -> $out:ty, |$pass:ident| $body:block) => {
        #[cfg_attr(not(test), unsafe(no_mangle))]
        #[allow(unused_unsafe, non_snake_case, clippy::allow_attributes, reason = "one form for all")]
        unsafe extern "C" fn $name($($argument: $type),*) -> $out {
            #[allow(unused_variables, reason = "few never pass")]
            let $pass = || -> $out {
                const NAME: &std::ffi::CStr =
                    match std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                        Ok(name) => name,
                        Err(_) => panic!("a name without zero bytes"),
                    };
                static NEXT: $crate::next::Next = $crate::next::Next::new(NAME);
                let next = NEXT.get();
                if next.is_null() {
                    $crate::failure::Errno(libc::ENOSYS).set();
                    return <$out as $crate::failure::Failed>::FAILED;
                }
                // SAFETY: the symbol of that name is a C function of this type, called with the
                // arguments that the program gave.
                unsafe {
                    std::mem::transmute::<*mut std::ffi::c_void, unsafe extern "C" fn($($type),*) -> $out>(
                        next,
                    )($($argument),*)
                }
            };
            // SAFETY: the program keeps the contract of the C function.
            unsafe { $body }
        }
    };
}
pub(crate) use {interpose, interposed};

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;

    /// The observation of the handler: not run, internal, not internal.
    static FOUND: AtomicU32 = AtomicU32::new(0);

    extern "C" fn looks(_signal: libc::c_int) {
        FOUND.store(if is_internal() { 1 } else { 2 }, Ordering::Relaxed);
    }

    #[test]
    fn a_fault_leaves_no_thread_internal() {
        // SAFETY: the handler only reads; no other code uses this signal.
        unsafe { libc::signal(libc::SIGSYS, looks as *const () as usize) };
        let inside = internal(|| {
            // SAFETY: takes no memory.
            unsafe { libc::raise(libc::SIGSYS) };
            FOUND.load(Ordering::Relaxed)
        });
        assert_eq!((inside, FOUND.load(Ordering::Relaxed)), (0, 2));
    }
}
