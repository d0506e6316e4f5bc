//! The frame of every function of the library.

use crate::error::{DAP_E_INTERNAL, Failure, remember};
use std::cell::Cell;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

thread_local! {
    static LIMIT: Cell<Option<Duration>> = const { Cell::new(None) };
}

/// Sets the time limit of this thread's calls.
pub(crate) fn limit_thread(time: Option<Duration>) {
    LIMIT.set(time);
}

/// Does the work of a function and maps its failure, or a panic in it, to a code.
pub(crate) fn call(work: impl FnOnce() -> Result<i64, Failure>) -> i64 {
    let bounded = AssertUnwindSafe(|| match LIMIT.get() {
        Some(time) => dafs_client::within(time, work),
        None => work(),
    });
    match std::panic::catch_unwind(bounded) {
        Ok(Ok(value)) => value,
        Ok(Err(failure)) => remember(&failure),
        Err(_) => remember(&Failure::new(DAP_E_INTERNAL, "the library failed; please report this")),
    }
}

/// As [`call`], where success is 0.
pub(crate) fn call_plainly(work: impl FnOnce() -> Result<(), Failure>) -> i32 {
    let code = call(|| work().map(|()| 0));
    // INVARIANT: it is 0 or one of the codes, which all fit.
    i32::try_from(code).unwrap_or(DAP_E_INTERNAL)
}
