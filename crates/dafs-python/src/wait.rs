//! Waiting without the GIL.
//!
//! Invariants
//! * Python's signal handlers run while a call waits. When one raises, as that of ^C does, the call
//!   ends as at its timeout, so that its memory is not accessed any more. The call then raises that
//!   exception.
//! * An exception of a handler is never lost: if the call has succeeded after all, it is raised
//!   next.

use pyo3::prelude::*;
use std::cell::{Cell, RefCell};
use std::ffi::{c_int, c_void};
use std::time::{Duration, Instant};

thread_local! {
    static LIMIT: Cell<Option<Instant>> = const { Cell::new(None) };
    /// The exception of a signal handler that ran while a call of this thread waited.
    static RAISED: RefCell<Option<PyErr>> = const { RefCell::new(None) };
}

/// Time that a wait lasts before it checks for Python's signals.
pub(crate) const SIGNAL_CHECK_PERIOD: Duration = Duration::from_millis(200);

/// Runs `work`, which may wait for the server, without the GIL, and no longer than this thread's
/// limit.
pub(crate) fn blocking<T: Send>(py: Python<'_>, work: impl FnOnce() -> T + Send) -> T {
    let limit = LIMIT.get();
    let limited = || match limit {
        Some(limit) => {
            let left = limit.saturating_duration_since(Instant::now());
            dafs_client::within(left, work)
        }
        None => work(),
    };
    let done = py.detach(|| match is_main_thread() {
        true => dafs_client::interruptible(is_interrupted, limited),
        // This thread handles no signals, and a thread that requests the GIL at interpreter
        // shutdown never returns.
        false => limited(),
    });
    if RAISED.with_borrow(Option::is_some) {
        // Unless an error of the call is raised: this exception then replaces it.
        // SAFETY: the GIL is held; the function takes no argument.
        unsafe { pyo3::ffi::Py_AddPendingCall(Some(raise_next), std::ptr::null_mut()) };
    }
    done
}

/// True for the thread that handles signals: the one in which the process began, or goes on after a
/// fork.
fn is_main_thread() -> bool {
    // SAFETY: both calls only return numbers.
    unsafe { libc::gettid() == libc::getpid() }
}

/// Lets Python handle its signals. Returns true if one of them ends the wait of this thread.
fn is_interrupted() -> bool {
    if let Some(Err(raised)) = Python::try_attach(|py| py.check_signals()) {
        RAISED.set(Some(raised));
    }
    // A call made by the handler may have left it.
    RAISED.with_borrow(Option::is_some)
}

/// The exception of a signal handler that ran while the last call waited.
pub(crate) fn raised() -> Option<PyErr> {
    RAISED.take()
}

/// Raises the exception if no call has; Python calls this in its main thread, which alone handles
/// signals.
extern "C" fn raise_next(_nothing: *mut c_void) -> c_int {
    let Some(raised) = raised() else { return 0 };
    Python::try_attach(|py| raised.restore(py)).map_or(0, |()| -1)
}

/// Drops, without the GIL, a value whose destructor may wait.
pub(crate) fn drop_detached<T: Send>(value: T) {
    let mut value = Some(value);
    // At interpreter shutdown there is no Python any more, and no other thread to wait.
    Python::try_attach(|py| py.detach(|| value.take()));
    drop(value);
}

/// A time in seconds, from Python; `None` if it is practically unlimited.
pub(crate) fn seconds(seconds: f64) -> PyResult<Option<Duration>> {
    if seconds.is_nan() || seconds < 0.0 {
        return Err(pyo3::exceptions::PyValueError::new_err("a time is negative or no number"));
    }
    Ok(Duration::try_from_secs_f64(seconds).ok())
}

/// As [`moment`], but not after this thread's limit.
pub(crate) fn limited(time: Option<f64>) -> PyResult<Option<Instant>> {
    Ok([moment(time)?, LIMIT.get()].into_iter().flatten().min())
}

/// The time `time` seconds from now; `None` is never.
fn moment(time: Option<f64>) -> PyResult<Option<Instant>> {
    let Some(time) = time else { return Ok(None) };
    Ok(seconds(time)?.and_then(|time| Instant::now().checked_add(time)))
}

/// The length of one wait towards a time: at most the period between checks for signals.
pub(crate) fn slice(until: Option<Instant>) -> Duration {
    until.map_or(SIGNAL_CHECK_PERIOD, |until| {
        until.saturating_duration_since(Instant::now()).min(SIGNAL_CHECK_PERIOD)
    })
}

/// Limits the calls of this thread, `None` for no limit. Returns the seconds left of the former
/// limit, so that a caller can restore it.
#[pyfunction]
#[pyo3(signature = (time))]
pub(crate) fn set_limit(time: Option<f64>) -> PyResult<Option<f64>> {
    let new = moment(time)?;
    let now = Instant::now();
    let old = LIMIT.replace(new);
    Ok(old.map(|old| old.saturating_duration_since(now).as_secs_f64()))
}
