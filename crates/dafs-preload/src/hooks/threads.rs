//! Threads started while a call is served belong to this library: their calls go to the C library,
//! and they handle none of the program's signals.

use crate::next::{internal_from_now_on, interpose, is_serving};
use crate::signals;
use libc::{c_int, c_void, pthread_attr_t, pthread_t};

type Start = extern "C" fn(*mut c_void) -> *mut c_void;

/// The task of a thread of ours.
struct Work {
    start: Start,
    argument: *mut c_void,
}

extern "C" fn begin(work: *mut c_void) -> *mut c_void {
    // SAFETY: a box of such work, given to this thread alone.
    let work = unsafe { Box::from_raw(work.cast::<Work>()) };
    // Signals for bad memory stay unblocked: this thread moves the bytes of the program's calls.
    internal_from_now_on();
    (work.start)(work.argument)
}

type Create =
    unsafe extern "C" fn(*mut pthread_t, *const pthread_attr_t, Start, *mut c_void) -> c_int;

interpose! {
    fn pthread_create(
        thread: *mut pthread_t,
        attributes: *const pthread_attr_t,
        start: Start,
        argument: *mut c_void,
    ) -> c_int, |pass| {
        if !is_serving() {
            return pass();
        }
        static NEXT: crate::next::Next = crate::next::Next::new(c"pthread_create");
        let next = NEXT.get();
        if next.is_null() {
            return libc::ENOSYS;
        }
        let next = std::mem::transmute::<*mut c_void, Create>(next);
        let work = Box::into_raw(Box::new(Work { start, argument })).cast();
        let done = signals::without(|| next(thread, attributes, begin, work));
        if done != 0 {
            // The thread that would own it does not exist.
            drop(Box::from_raw(work.cast::<Work>()));
        }
        done
    }
}
