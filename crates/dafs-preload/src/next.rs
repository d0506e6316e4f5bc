//! The functions of the C library behind ours, and the frame that every one of ours runs in.
//!
//! Invariants
//! * While a call is served, calls that this library itself makes go to the C library. What a handler
//!   asks for then, or whoever has left the served call by `siglongjmp`, fails if it is ours; it is never
//!   looked for on this machine.
//! * While a call is served, or a lock of ours is held, no signal handler of the program's runs in
//!   that thread, and the thread is not cancelled: both have to wait until it is done.
//! * A served call leaves `errno` alone unless it fails, and never unwinds.

use crate::failure::{Errno, Failed, Result};
pub(crate) use crate::signals::quietly;
use crate::signals::{Touches, with_no_fault};
use crate::{interrupt, report};
use std::cell::Cell;
use std::ffi::{CStr, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicPtr, Ordering};

/// A function behind one of ours, looked for at its first use.
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
    /// True while this thread makes calls of this library's own, to files of this machine.
    static ASIDE: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread is at work for a call already: then what it calls is our own doing, or a
/// signal handler's that must not wait for us.
pub(crate) fn is_serving() -> bool {
    SERVING.get()
}

/// Whether a call of this thread's certainly is this library's own.
pub(crate) fn is_aside() -> bool {
    ASIDE.get()
}

/// Runs what serves a call.
pub(crate) fn serve<T: Failed>(work: impl FnOnce() -> Result<T>) -> T {
    let before = Errno::last();
    if is_serving() {
        // A handler for a fault of the machine, which cannot be kept waiting.
        Errno(libc::EDEADLK).set();
        return T::FAILED;
    }
    let done = quietly(|| {
        SERVING.set(true);
        let work = || interrupt::watched(work);
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

/// Has what `work` calls reach the C library, as when a call is served. No handler of the program's for a
/// fault runs meanwhile: what it asks for would be taken for ours, and all that follows if it leaves.
pub(crate) fn aside<T>(work: impl FnOnce() -> T) -> T {
    aside_with(Touches::Own, work)
}

/// As [`aside`], for what sends to a server or waits for one: it may move the bytes of other threads' calls, and
/// memory that is not there is to be an error of theirs.
pub(crate) fn aside_with_clients<T>(work: impl FnOnce() -> T) -> T {
    aside_with(Touches::Programs, work)
}

/// As [`aside_with_clients`], for all the life of a thread of ours, in which no handler of the program's runs.
pub(crate) fn aside_from_now_on() {
    SERVING.set(true);
    ASIDE.set(true);
}

fn aside_with<T>(touches: Touches, work: impl FnOnce() -> T) -> T {
    if is_aside() {
        return work();
    }
    with_no_fault(touches, || {
        let before = SERVING.replace(true);
        ASIDE.set(true);
        let done = work();
        ASIDE.set(false);
        SERVING.set(before);
        done
    })
}

/// Functions that stand before those of the C library. `|pass|` names a closure that calls the
/// function behind with the same arguments. The bodies may do what the C function's contract lets
/// it do with its arguments.
macro_rules! interpose {
    ($(
        fn $name:ident($($argument:ident: $type:ty),* $(,)?) -> $out:ty, |$pass:ident| $body:block
    )*) => { $(
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
    )* };
}
pub(crate) use interpose;

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;

    /// What the handler has found: not run, aside, not aside.
    static FOUND: AtomicU32 = AtomicU32::new(0);

    extern "C" fn looks(_signal: libc::c_int) {
        FOUND.store(if is_aside() { 1 } else { 2 }, Ordering::Relaxed);
    }

    #[test]
    fn a_fault_leaves_nothing_aside() {
        // SAFETY: the handler only looks; the signal is one for this thread that nobody else uses.
        unsafe { libc::signal(libc::SIGSYS, looks as *const () as usize) };
        let inside = aside(|| {
            // SAFETY: takes no memory.
            unsafe { libc::raise(libc::SIGSYS) };
            FOUND.load(Ordering::Relaxed)
        });
        assert_eq!((inside, FOUND.load(Ordering::Relaxed)), (0, 2));
    }
}
