//! Tracks the signals that the program handles: their handlers must wait while a call is served.

use crate::next::{interpose, is_internal};
use crate::signals::set_handled;
use libc::{c_int, sighandler_t};

fn is_handler(handler: sighandler_t) -> bool {
    handler != libc::SIG_DFL && handler != libc::SIG_IGN
}

/// Notes a change of a signal's disposition by `pass`: a new handler before it can run, the removal
/// of one after it is done.
fn changed<T>(
    signal: c_int,
    is_handled: bool,
    pass: impl FnOnce() -> T,
    is_done: impl FnOnce(&T) -> bool,
) -> T {
    if is_handled {
        set_handled(signal, true);
    }
    let done = pass();
    if !is_handled && is_done(&done) {
        set_handled(signal, false);
    }
    done
}

fn by_handler(
    signal: c_int,
    handler: sighandler_t,
    pass: impl FnOnce() -> sighandler_t,
) -> sighandler_t {
    // `SIG_HOLD` of `sigset`, which only blocks.
    const HOLD: sighandler_t = 2;
    match handler {
        HOLD => pass(),
        handler => changed(signal, is_handler(handler), pass, |done| *done != libc::SIG_ERR),
    }
}

interpose! {
    fn sigaction(signal: c_int, action: *const libc::sigaction, before: *mut libc::sigaction) -> c_int, |pass| {
        match action.as_ref() {
            Some(action) if !is_internal() => {
                changed(signal, is_handler(action.sa_sigaction), pass, |done| *done == 0)
            }
            _ => pass(),
        }
    }
    fn [signal, sysv_signal, __sysv_signal, bsd_signal, sigset]
    (signal: c_int, handler: sighandler_t) -> sighandler_t, |pass| {
        by_handler(signal, handler, pass)
    }
}
