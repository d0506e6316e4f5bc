//! Which signals the program handles: those have to wait while a call is served.

use crate::next::{interpose, is_serving};
use crate::signals::will_handle;
use libc::{c_int, sighandler_t};

fn is_handler(handler: sighandler_t) -> bool {
    handler != libc::SIG_DFL && handler != libc::SIG_IGN
}

interpose! {
    fn sigaction(signal: c_int, action: *const libc::sigaction, before: *mut libc::sigaction) -> c_int, |pass| {
        if !is_serving() && action.as_ref().is_some_and(|action| is_handler(action.sa_sigaction)) {
            will_handle(signal);
        }
        pass()
    }
    fn signal(signal: c_int, handler: sighandler_t) -> sighandler_t, |pass| {
        if is_handler(handler) {
            will_handle(signal);
        }
        pass()
    }
    fn sysv_signal(signal: c_int, handler: sighandler_t) -> sighandler_t, |pass| {
        if is_handler(handler) {
            will_handle(signal);
        }
        pass()
    }
    fn __sysv_signal(signal: c_int, handler: sighandler_t) -> sighandler_t, |pass| {
        if is_handler(handler) {
            will_handle(signal);
        }
        pass()
    }
    fn bsd_signal(signal: c_int, handler: sighandler_t) -> sighandler_t, |pass| {
        if is_handler(handler) {
            will_handle(signal);
        }
        pass()
    }
    fn sigset(signal: c_int, handler: sighandler_t) -> sighandler_t, |pass| {
        if is_handler(handler) {
            will_handle(signal);
        }
        pass()
    }
}
