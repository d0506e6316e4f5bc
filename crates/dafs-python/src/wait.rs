//! Waiting without Python's lock.
//!
//! Invariants
//! * While a call waits, Python's signal handlers run. When one raises, as that of ^C does, the call ends as
//!   when its time is over, so that nothing reaches its memory any more, and that is what it raises.
//! * What a handler has raised is never lost: if the call has ended well after all, it comes next.

use pyo3::prelude::*;
use std::cell::{Cell, RefCell};
use std::ffi::{c_int, c_void};
use std::time::{Duration, Instant};

thread_local! {
    static LIMIT: Cell<Option<Instant>> = const { Cell::new(None) };
    /// What a signal handler has raised while a call of this thread waited.
    static RAISED: RefCell<Option<PyErr>> = const { RefCell::new(None) };
}

/// How long something waits before it looks whether Python has a signal to handle.
pub(crate) const SIGNAL_CHECK_PERIOD: Duration = Duration::from_millis(200);

/// Runs what may wait for the server: without Python's lock, and no longer than this thread's limit.
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
        // Signals are not handled there, and whoever asks for Python's lock while that ends never returns.
        false => limited(),
    });
    if RAISED.with_borrow(Option::is_some) {
        // Unless the error of the call is to be raised, in place of which this is taken.
        // SAFETY: Python's lock is held; the function takes no argument.
        unsafe { pyo3::ffi::Py_AddPendingCall(Some(raise_next), std::ptr::null_mut()) };
    }
    done
}

/// Whether this is the thread that handles signals: that in which the process began, or goes on after a
/// fork.
fn is_main_thread() -> bool {
    // SAFETY: both calls only tell numbers.
    unsafe { libc::gettid() == libc::getpid() }
}

/// Has Python handle its signals; whether one of them is to end what this thread waits for.
fn is_interrupted() -> bool {
    if let Some(Err(raised)) = Python::try_attach(|py| py.check_signals()) {
        RAISED.set(Some(raised));
    }
    // A call that the handler has made may have left it.
    RAISED.with_borrow(Option::is_some)
}

/// What a signal handler has raised while the last call waited.
pub(crate) fn raised() -> Option<PyErr> {
    RAISED.take()
}

/// Raises it where no call has; Python calls this in its main thread, which alone handles signals.
extern "C" fn raise_next(_nothing: *mut c_void) -> c_int {
    let Some(raised) = raised() else { return 0 };
    Python::try_attach(|py| raised.restore(py)).map_or(0, |()| -1)
}

/// Drops what may wait for others, without Python's lock.
pub(crate) fn drop_detached<T: Send>(value: T) {
    let mut value = Some(value);
    // At the very end there is no Python any more, and nobody else to wait.
    Python::try_attach(|py| py.detach(|| value.take()));
    drop(value);
}

/// A time in seconds as Python gives it; `None` when it is longer than anybody waits.
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

/// A moment that is `time` seconds away; `None` is never.
fn moment(time: Option<f64>) -> PyResult<Option<Instant>> {
    let Some(time) = time else { return Ok(None) };
    Ok(seconds(time)?.and_then(|time| Instant::now().checked_add(time)))
}

/// How long to wait now, towards a moment: a period after which to look for signals, at most.
pub(crate) fn slice(until: Option<Instant>) -> Duration {
    until.map_or(SIGNAL_CHECK_PERIOD, |until| {
        until.saturating_duration_since(Instant::now()).min(SIGNAL_CHECK_PERIOD)
    })
}

/// Limits the calls of this thread, `None` for not at all. Returns the seconds that were left of the
/// limit before, for who restores it.
#[pyfunction]
#[pyo3(signature = (time))]
pub(crate) fn set_limit(time: Option<f64>) -> PyResult<Option<f64>> {
    let new = moment(time)?;
    let now = Instant::now();
    let old = LIMIT.replace(new);
    Ok(old.map(|old| old.saturating_duration_since(now).as_secs_f64()))
}
