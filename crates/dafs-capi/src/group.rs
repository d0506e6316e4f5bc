//! Asynchronous operations.

use crate::boundary::{call, call_plainly};
use crate::buffer::buffer;
use crate::error::{DAP_E_BUSY, Failure, code, invalid};
use crate::file::{file, stability};
use crate::handle::{dap_buffer_t, dap_file_t, dap_group_t, dap_session_t, tables};
use crate::limits::COMPLETIONS_MAX;
use crate::pointer::{Out, check_len, check_place};
use crate::session::session;
use dafs_client::{Completion, CompletionGroup, Error, Lent, OperationId};
use std::cell::RefCell;
use std::ffi::c_void;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Duration;

/// The object behind a group handle.
pub(crate) struct Group(pub(crate) CompletionGroup);

pub(crate) fn group(handle: dap_group_t) -> Result<Arc<Group>, Failure> {
    tables().groups.get(handle.id)
}

/// One completed operation.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct dap_completion_t {
    /// The caller's value from the submission.
    pub user_data: u64,
    /// Its name, from the submission.
    pub operation: u64,
    /// The bytes moved, which may be fewer than requested; 0 for a commit; the file offset of an
    /// append; or a negative DAP_E_...
    pub result: i64,
}

impl From<&Completion> for dap_completion_t {
    fn from(of: &Completion) -> Self {
        let result = match &of.result {
            Ok(bytes) => *bytes as i64,
            Err(error) => code(error).into(),
        };
        Self { user_data: of.user_data, operation: of.operation.to_u64(), result }
    }
}

thread_local! {
    /// Reused, so that a wait allocates no memory.
    static FETCHED: RefCell<Vec<Completion>> = const { RefCell::new(Vec::new()) };
}

/// Makes a completion group.
///
/// Threads: any. All threads may submit to one group and fetch from it at the same time.
///
/// # Safety
/// `group` is null or good for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dap_group_create(handle: dap_session_t, group: *mut dap_group_t) -> i32 {
    call_plainly(|| {
        // SAFETY: as the caller promises.
        let out = unsafe { Out::new(group) }?;
        let group = Group(session(handle)?.client.completion_group());
        out.set(dap_group_t { id: tables().groups.add(group)? });
        Ok(())
    })
}

/// Ends a group. DAP_E_BUSY while operations are outstanding in it; completions that have not been
/// fetched are dropped. Its descriptor is closed.
///
/// Threads: DAP_E_BUSY while another thread is in a call that names the group.
#[unsafe(no_mangle)]
pub extern "C" fn dap_group_free(handle: dap_group_t) -> i32 {
    call_plainly(|| {
        let idle = |group: &Group| match group.0.in_flight() {
            0 => Ok(()),
            _ => Err(Failure::new(DAP_E_BUSY, "operations are in flight in the group")),
        };
        tables().groups.remove(handle.id, idle).map(drop)
    })
}

/// # Safety
/// `operation` is null or good for a number.
unsafe fn tell(
    operation: *mut u64,
    submit: impl FnOnce() -> Result<OperationId, Failure>,
) -> Result<(), Failure> {
    // SAFETY: as the caller promises.
    let out = unsafe { Out::optional(operation) }?;
    let id = submit()?;
    if let Some(out) = out {
        out.set(id.to_u64());
    }
    Ok(())
}

/// Starts a read of `len` bytes from `offset` into a buffer, `at` bytes from its start. Its
/// completion comes to the group with `user_data`; its name is returned in `operation`, if that is
/// not null. The bytes read may be fewer than requested, also because of
/// dap_session_info_t.read_bytes_max.
///
/// It is sent at once if no other operation is outstanding, else with the next call that waits or
/// polls, or with dap_flush(). The memory must not be accessed until the completion has been
/// fetched.
///
/// Threads: any.
///
/// # Safety
/// `operation` is null or good for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dap_async_read(
    handle: dap_group_t,
    user_data: u64,
    of: dap_file_t,
    memory: dap_buffer_t,
    at: usize,
    len: usize,
    offset: u64,
    operation: *mut u64,
) -> i32 {
    call_plainly(|| {
        let (group, file, buffer) = (group(handle)?, file(of)?, buffer(memory)?);
        let range = buffer.part(at, len)?;
        let submit = || Ok(group.0.read(user_data, &file.0, &buffer.io, range, offset)?);
        // SAFETY: as the caller promises.
        unsafe { tell(operation, submit) }
    })
}

/// Starts a write of `len` bytes at `offset` from a buffer, as dap_async_read() does. `stable` is
/// DAP_UNSTABLE, DAP_DATA_SYNC or DAP_FILE_SYNC. The bytes written may be fewer than requested; the
/// caller has to write the rest.
///
/// Threads: any.
///
/// # Safety
/// `operation` is null or good for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dap_async_write(
    handle: dap_group_t,
    user_data: u64,
    of: dap_file_t,
    memory: dap_buffer_t,
    at: usize,
    len: usize,
    offset: u64,
    stable: u32,
    operation: *mut u64,
) -> i32 {
    call_plainly(|| {
        let (group, file, buffer) = (group(handle)?, file(of)?, buffer(memory)?);
        let (range, stable) = (buffer.part(at, len)?, stability(stable)?);
        let submit = || Ok(group.0.write(user_data, &file.0, &buffer.io, range, offset, stable)?);
        // SAFETY: as the caller promises.
        unsafe { tell(operation, submit) }
    })
}

/// # Safety
/// As dap_lend().
unsafe fn lend(group: &Group, memory: *mut c_void, len: usize) -> Result<Lent, Failure> {
    check_len(len)?;
    if memory.is_null() {
        return Err(invalid("a pointer is null"));
    }
    // SAFETY: as the caller promises.
    Ok(unsafe { group.0.client().lend(memory.cast(), len) }?)
}

/// As dap_async_read(), into any memory, which is lent as by dap_lend().
///
/// Threads: any.
///
/// # Safety
/// As dap_lend().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dap_async_read_memory(
    handle: dap_group_t,
    user_data: u64,
    of: dap_file_t,
    memory: *mut c_void,
    len: usize,
    offset: u64,
    operation: *mut u64,
) -> i32 {
    call_plainly(|| {
        let (group, file) = (group(handle)?, file(of)?);
        // SAFETY: as the caller promises.
        let lent = unsafe { lend(&group, memory, len) }?;
        let submit = || Ok(group.0.read(user_data, &file.0, &lent.buffer, lent.range, offset)?);
        // SAFETY: as the caller promises.
        unsafe { tell(operation, submit) }
    })
}

/// As dap_async_write(), from any memory that may be written, too; it is lent as by dap_lend().
///
/// Threads: any.
///
/// # Safety
/// As dap_lend().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dap_async_write_memory(
    handle: dap_group_t,
    user_data: u64,
    of: dap_file_t,
    memory: *mut c_void,
    len: usize,
    offset: u64,
    stable: u32,
    operation: *mut u64,
) -> i32 {
    call_plainly(|| {
        let (group, file, stable) = (group(handle)?, file(of)?, stability(stable)?);
        // SAFETY: as the caller promises.
        let lent = unsafe { lend(&group, memory, len) }?;
        let (buffer, range) = (lent.buffer, lent.range);
        let submit = || Ok(group.0.write(user_data, &file.0, &buffer, range, offset, stable)?);
        // SAFETY: as the caller promises.
        unsafe { tell(operation, submit) }
    })
}

/// Starts to make `len` bytes from `offset` stable; 0 and 0 for all. Outstanding writes are not
/// covered.
///
/// Threads: any.
///
/// # Safety
/// `operation` is null or good for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dap_async_commit(
    handle: dap_group_t,
    user_data: u64,
    of: dap_file_t,
    offset: u64,
    len: u64,
    operation: *mut u64,
) -> i32 {
    call_plainly(|| {
        let (group, file) = (group(handle)?, file(of)?);
        // SAFETY: as the caller promises.
        unsafe { tell(operation, || Ok(group.0.commit(user_data, &file.0, offset, len)?)) }
    })
}

/// Starts to write `len` bytes of a buffer from `at` on at the end of the file, as
/// dap_append_buffer() does; its completion has the offset. The server may execute outstanding
/// appends in any order.
///
/// Threads: any.
///
/// # Safety
/// `operation` is null or good for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dap_async_append(
    handle: dap_group_t,
    user_data: u64,
    of: dap_file_t,
    memory: dap_buffer_t,
    at: usize,
    len: usize,
    stable: u32,
    operation: *mut u64,
) -> i32 {
    call_plainly(|| {
        let (group, file, buffer) = (group(handle)?, file(of)?, buffer(memory)?);
        let (range, stable) = (buffer.part(at, len)?, stability(stable)?);
        let submit = || Ok(group.0.append(user_data, &file.0, &buffer.io, range, stable)?);
        // SAFETY: as the caller promises.
        unsafe { tell(operation, submit) }
    })
}

/// As dap_async_append(), from any memory that may be written, too; it is lent as by dap_lend().
///
/// Threads: any.
///
/// # Safety
/// As dap_lend().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dap_async_append_memory(
    handle: dap_group_t,
    user_data: u64,
    of: dap_file_t,
    memory: *mut c_void,
    len: usize,
    stable: u32,
    operation: *mut u64,
) -> i32 {
    call_plainly(|| {
        let (group, file, stable) = (group(handle)?, file(of)?, stability(stable)?);
        // SAFETY: as the caller promises.
        let lent = unsafe { lend(&group, memory, len) }?;
        let submit = || Ok(group.0.append(user_data, &file.0, &lent.buffer, lent.range, stable)?);
        // SAFETY: as the caller promises.
        unsafe { tell(operation, submit) }
    })
}

/// Fetches completions by `fetch`, which appends at most as many as it is told.
///
/// # Safety
/// `completions` is null or good for `max` structs.
unsafe fn fetch(
    group: &Group,
    completions: *mut dap_completion_t,
    max: usize,
    fetch: impl FnOnce(&mut Vec<Completion>, usize) -> Result<usize, Error>,
) -> Result<i64, Failure> {
    if completions.is_null() || !completions.is_aligned() || max == 0 {
        return Err(invalid("there is no place for completions"));
    }
    let max = max.min(COMPLETIONS_MAX);
    // Before completions are fetched that could not be returned.
    check_place(completions.cast(), size_of::<dap_completion_t>())?;
    let mut fetched = FETCHED.try_with(RefCell::take).unwrap_or_default();
    fetched.clear();
    let result = fetch(&mut fetched, max);
    let bytes = fetched.len() * size_of::<dap_completion_t>();
    if let Err(fault) = check_place(completions.cast(), bytes) {
        group.0.put_back(fetched);
        return Err(fault);
    }
    for (at, completion) in fetched.iter().enumerate() {
        // SAFETY: as the caller promises; there are at most `max`.
        unsafe { completions.add(at).write(completion.into()) };
    }
    let count = fetched.len() as i64;
    fetched.clear();
    let _ = FETCHED.try_with(|place| place.replace(fetched));
    match result {
        // Completions that have been fetched are returned, also when they are fewer than requested.
        Err(error) if count == 0 => Err(error.into()),
        _ => Ok(count),
    }
}

/// Waits until `min` completions have come, or no operation is outstanding any more, or
/// `milliseconds` have passed (negative: no timeout), and returns up to `max`, which are at most
/// 4096. `min` is 1 for any, a number for some, SIZE_MAX for as many as fit. With 0 for either it
/// polls once. Returns the number of completions: 0 when no operation was outstanding;
/// DAP_E_TIMED_OUT when none has come in time; DAP_E_FAULT when there is no memory for those that
/// have come, which the next call returns.
///
/// Threads: any. When several wait for one group, each completion goes to one of them.
///
/// # Safety
/// `completions` is null or good for `max` structs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dap_io_wait(
    handle: dap_group_t,
    completions: *mut dap_completion_t,
    max: usize,
    min: usize,
    milliseconds: i64,
) -> i64 {
    call(|| {
        let group = group(handle)?;
        let time = u64::try_from(milliseconds).ok().map(Duration::from_millis);
        let wait = |fetched: &mut Vec<_>, max| group.0.wait_up_to(fetched, min, max, time);
        // SAFETY: as the caller promises.
        unsafe { fetch(&group, completions, max, wait) }
    })
}

/// Returns up to `max` completions that have come, and their number, without waiting. It makes only
/// the system calls that the transport needs. Over TCP each poll tries to receive. Over shared
/// memory there are three kinds: one call to wake a sleeping server; a check, at each 128th poll or
/// after 20 microseconds, whether the server has gone; and three about the program's signal
/// handlers, at each sixteenth copy to or from its own memory.
///
/// Threads: any.
///
/// # Safety
/// `completions` is null or good for `max` structs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dap_io_poll(
    handle: dap_group_t,
    completions: *mut dap_completion_t,
    max: usize,
) -> i64 {
    call(|| {
        let group = group(handle)?;
        // SAFETY: as the caller promises.
        unsafe {
            fetch(&group, completions, max, |fetched, max| Ok(group.0.poll_up_to(fetched, max)))
        }
    })
}

/// The number of outstanding operations of a group, without completions that wait to be fetched.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn dap_io_in_flight(handle: dap_group_t) -> i64 {
    call(|| Ok(group(handle)?.0.in_flight() as i64))
}

/// Cancels an operation if the server cannot access its memory now: 1 if it is cancelled. 0 if it is
/// with the server, which is asked to take it out if it has not begun. Its completion comes in any
/// case: DAP_E_CANCELED says that nothing of it has happened or will happen, unless the connection
/// was lost meanwhile. A server without that request finishes the operation.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn dap_io_cancel(handle: dap_group_t, operation: u64) -> i32 {
    call(|| Ok(group(handle)?.0.cancel(OperationId::from_u64(operation)).into())) as i32
}

/// Asks the server to begin with a transfer of an asynchronous batch without further delay.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn dap_io_expedite(handle: dap_group_t, operation: u64) -> i32 {
    call_plainly(|| Ok(group(handle)?.0.expedite(OperationId::from_u64(operation))?))
}

/// A descriptor that is readable while completions wait to be fetched, for poll() and epoll. It
/// must not be read or closed. From the first call on a thread of the library drives the group's
/// operations.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn dap_group_descriptor(handle: dap_group_t) -> i32 {
    call(|| Ok(group(handle)?.0.descriptor()?.as_raw_fd().into())) as i32
}
