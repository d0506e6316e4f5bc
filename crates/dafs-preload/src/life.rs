//! The beginning and the end of a process, and its forks.

use crate::alarm::Alarm;
use crate::config::{self, Config};
use crate::descriptor::{self, Kind};
use crate::limits::{GOODBYE_TIME, OWN_DESCRIPTORS_MIN};
use crate::next::{internal, internal_with_clients, is_serving};
use crate::table::{self, Description};
use crate::{interrupt, names, report, session, streams, watch};
use dafs_client::{File, descriptors};
use dafs_mem::Mutex;
use std::ffi::c_int;
use std::panic::catch_unwind;
use std::sync::Arc;
use std::time::Duration;

#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".init_array")]
static AT_START: extern "C" fn() = start;

#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".fini_array")]
static AT_END: extern "C" fn() = end;

extern "C" fn start() {
    // If this fails, the program runs on, and its files are not served.
    let _ = catch_unwind(|| internal(begin));
}

fn begin() {
    watch::begin();
    let Some(config) = config::load() else { return };
    descriptors::keep_from(own_descriptors());
    report::prepare();
    names::learn_mask();
    // SAFETY: the handlers are functions of this library, which is never unloaded.
    unsafe { libc::pthread_atfork(Some(before_fork), Some(in_parent), Some(in_child)) };
    inherit(config);
    report::learn_errors();
    if let Some(directory) = std::env::var_os("DAFS_RUN_DIRECTORY") {
        let record = descriptor::Record::read(config, directory.as_encoded_bytes());
        table::set_working_directory(record.filter(|record| record.kind == Kind::Directory));
    }
}

/// The lowest number for descriptors of our sessions: above those that programs use, and below the
/// limit.
fn own_descriptors() -> c_int {
    // SAFETY: all zero is a valid value of this plain structure, which the call fills.
    let limit = unsafe {
        let mut limit: libc::rlimit = std::mem::zeroed();
        match libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) {
            0 => limit.rlim_cur,
            _ => 0,
        }
    };
    c_int::try_from(limit / 8 * 7).unwrap_or(c_int::MAX).clamp(3, OWN_DESCRIPTORS_MIN)
}

/// Takes over the open files that the parent program has passed on.
fn inherit(config: &'static Config) {
    let mut known: Vec<((u64, u64), Arc<Description>)> = Vec::new();
    for fd in descriptor::inherited() {
        let Ok(inode) = descriptor::kernel::inode(fd) else { continue };
        let description = match known.iter().find(|(other, _)| *other == inode) {
            Some((_, description)) => description.clone(),
            None => {
                let Some(record) = descriptor::recognise(config, fd) else { continue };
                let description = Description::new(record, inode, None);
                known.push((inode, description.clone()));
                description
            }
        };
        // A descriptor with too high a number fails safely.
        let _ = table::put(fd, description);
        streams::replaced(fd);
    }
}

extern "C" fn before_fork() {
    table::before_fork();
    streams::before_fork();
}

extern "C" fn in_parent() {
    streams::after_fork();
    table::after_fork_in_parent();
}

extern "C" fn in_child() {
    streams::after_fork();
    session::after_fork_in_child();
    interrupt::after_fork_in_child();
    // The child does not use the parent's sessions, and may close their descriptors.
    descriptors::release_all();
    report::keep();
    table::after_fork_in_child();
    report::clear();
}

extern "C" fn end() {
    leave(true);
}

/// Writes the report and ends the sessions in order, so that the servers need not notice. Files
/// used afterwards are opened anew.
pub(crate) fn leave(flush: bool) {
    if config::get().is_none() {
        return;
    }
    if flush {
        streams::write_out();
    }
    let _ = catch_unwind(|| {
        internal_with_clients(|| {
            report::tell();
            dafs_client::within(GOODBYE_TIME, || {
                for description in table::all() {
                    // Another thread may hold the lock and be using the file; its call then fails.
                    for file in [&description.file, &description.locked] {
                        if let Some(mut file) = file.try_lock() {
                            drop(file.take());
                        }
                    }
                }
                for client in session::take_all() {
                    let _ = client.disconnect();
                }
            });
        });
    });
}

/// Closes a file that no descriptor of this process represents any more.
pub(crate) fn last_use(description: Arc<Description>) -> crate::failure::Result<()> {
    let Some(description) = Arc::into_inner(description) else { return Ok(()) };
    let close = |file: &Mutex<Option<Arc<File>>>| match file.lock().take().and_then(Arc::into_inner)
    {
        Some(file) => Ok(file.close()?),
        None => Ok(()),
    };
    // The error of a write under the lock is reported first.
    let closed = close(&description.file);
    closed.and(close(&description.locked))
}

/// As [`leave`], for an end that must not wait. A signal handler may call `_exit` after it has
/// interrupted a thread that holds the locks needed here, the C library's allocator lock among
/// them.
pub(crate) fn goodbye(status: c_int) {
    if !session::is_any() || is_serving() {
        return;
    }
    let alarm = Alarm::set(GOODBYE_TIME + Duration::from_secs(1), status);
    leave(false);
    // The program's cleanup at its end is not limited.
    alarm.restore();
}
