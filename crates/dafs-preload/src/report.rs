//! What was served and what passed by, told when the program ends.

use crate::config;
use crate::descriptor::kernel;
use dafs_client::descriptors;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

static SERVED: AtomicU64 = AtomicU64::new(0);
static PASSED: AtomicU64 = AtomicU64::new(0);
static REFUSED: AtomicU64 = AtomicU64::new(0);
static READ_BYTES: AtomicU64 = AtomicU64::new(0);
static WRITTEN_BYTES: AtomicU64 = AtomicU64::new(0);

pub(crate) fn served() {
    SERVED.fetch_add(1, Relaxed);
}

/// Standard error as it was at the start: many programs close theirs before they end.
static STANDARD_ERROR: OnceLock<File> = OnceLock::new();

/// Keeps what the report needs.
pub(crate) fn prepare() {
    let wanted = config::get().and_then(|config| config.report.as_deref());
    if wanted.is_none_or(|target| target.as_os_str() != "-") {
        return;
    }
    let Ok(fd) = kernel::control(2, libc::F_DUPFD_CLOEXEC, 3) else { return };
    // SAFETY: a new descriptor that belongs to nobody else.
    if let Ok(fd) = descriptors::kept(unsafe { OwnedFd::from_raw_fd(fd) }) {
        let _ = STANDARD_ERROR.set(fd.into());
    }
}

/// Keeps the program's hands off what is needed here.
pub(crate) fn keep() {
    if let Some(file) = STANDARD_ERROR.get() {
        descriptors::note(file.as_raw_fd());
    }
}

/// A path or descriptor that is somebody else's.
pub(crate) fn passed() {
    PASSED.fetch_add(1, Relaxed);
}

/// Something that cannot be done with a served file.
pub(crate) fn refused() {
    REFUSED.fetch_add(1, Relaxed);
}

pub(crate) fn read(bytes: usize) {
    READ_BYTES.fetch_add(bytes as u64, Relaxed);
}

pub(crate) fn written(bytes: usize) {
    WRITTEN_BYTES.fetch_add(bytes as u64, Relaxed);
}

/// A fork has done nothing yet.
pub(crate) fn clear() {
    for count in [&SERVED, &PASSED, &REFUSED, &READ_BYTES, &WRITTEN_BYTES] {
        count.store(0, Relaxed);
    }
}

/// Tells it where the user wants it: a line per process. Once.
pub(crate) fn tell() {
    let Some(target) = config::get().and_then(|config| config.report.as_deref()) else { return };
    let take = |count: &AtomicU64| count.swap(0, Relaxed);
    let (served, passed, refused) = (take(&SERVED), take(&PASSED), take(&REFUSED));
    let (read, written) = (take(&READ_BYTES), take(&WRITTEN_BYTES));
    if served == 0 && passed == 0 {
        return;
    }
    let program = std::env::args_os().next().unwrap_or_default();
    let line = format!(
        "dafs run: {}[{}]: served {served} calls, {read} bytes read, {written} bytes written, \
         {refused} refused; {passed} calls passed by\n",
        program.display(),
        std::process::id(),
    );
    // A report that cannot be written is no reason to disturb the program.
    let _ = match target.as_os_str().as_encoded_bytes() {
        b"-" => match STANDARD_ERROR.get() {
            Some(mut file) => file.write_all(line.as_bytes()),
            None => Ok(()),
        },
        _ => OpenOptions::new()
            .append(true)
            .create(true)
            .open(target)
            .and_then(|mut file| file.write_all(line.as_bytes())),
    };
}
