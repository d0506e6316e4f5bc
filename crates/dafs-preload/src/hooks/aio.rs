//! POSIX asynchronous I/O. A request about a served file completes before the submitting call
//! returns. The result is stored as the C library stores it, because its own functions (`aio_error`
//! and the others) read the control block alone.

use super::served_file;
use crate::failure::Errno;
use crate::limits::AIO_BLOCKS_MAX;
use crate::next::{interpose, serve};
use crate::table::Description;
use crate::watch;
use libc::{c_int, c_void, off_t, size_t, ssize_t};
use std::sync::Arc;

/// The program's choice of notification: `struct sigevent`.
#[repr(C)]
struct Event {
    value: *mut c_void,
    signal: c_int,
    notify: c_int,
    function: Option<extern "C" fn(*mut c_void)>,
    attributes: *const libc::pthread_attr_t,
    rest: [u64; 4],
}

/// `struct aiocb` of the C library on 64-bit Linux, which is part of its binary interface.
#[repr(C)]
struct Block {
    fd: c_int,
    operation: c_int,
    priority: c_int,
    bytes: *mut c_void,
    count: size_t,
    event: Event,
    next: *mut c_void,
    absolute_priority: c_int,
    policy: c_int,
    error: c_int,
    returned: ssize_t,
    offset: off_t,
    reserved: [u8; 32],
}

const _: () = assert!(size_of::<Event>() == 64 && size_of::<Block>() == size_of::<libc::aiocb>());

const LIO_READ: c_int = 0;
const LIO_WRITE: c_int = 1;
const LIO_WAIT: c_int = 0;

extern "C" fn in_thread(event: *mut c_void) -> *mut c_void {
    // SAFETY: a box that was given to this thread alone.
    let (function, value) =
        *unsafe { Box::from_raw(event.cast::<(extern "C" fn(*mut c_void), *mut c_void)>()) };
    function(value);
    std::ptr::null_mut()
}

/// Notifies the program of a completion.
///
/// # Safety
/// The event is as the program's call requires.
unsafe fn tell(event: &Event) {
    match event.notify {
        libc::SIGEV_SIGNAL => {
            let value = libc::sigval { sival_ptr: event.value };
            // SAFETY: a signal to this process itself.
            unsafe { libc::sigqueue(libc::getpid(), event.signal, value) };
        }
        libc::SIGEV_THREAD => {
            let Some(function) = event.function else { return };
            let work = Box::into_raw(Box::new((function, event.value))).cast();
            let mut thread = 0;
            // SAFETY: the attributes are null or the program's; the work is the thread's.
            unsafe {
                if libc::pthread_create(&mut thread, event.attributes, in_thread, work) == 0 {
                    libc::pthread_detach(thread);
                }
            }
        }
        _ => {}
    }
}

/// Performs the request of a control block, and stores the result in it.
///
/// # Safety
/// The block and its bytes are as the program's call requires.
unsafe fn perform(file: &Arc<Description>, block: &mut Block, work: Operation) {
    let before = Errno::last();
    let done: ssize_t = serve(|| {
        // SAFETY: the caller's promise.
        let moved = unsafe {
            match work {
                Operation::Read => {
                    let target = super::io::target(block.bytes, block.count);
                    file.read_vectored(&[target], block.offset)?
                }
                Operation::Write => {
                    let source = super::io::source(block.bytes, block.count);
                    match file.appends(block.fd)? {
                        true => file.write(block.fd, &[source])?,
                        false => file.write_vectored(&[source], block.offset)?,
                    }
                }
                Operation::Sync => file.sync().map(|()| 0)?,
            }
        };
        Ok(moved as ssize_t)
    });
    block.returned = done;
    block.error = if done < 0 { Errno::last().0 } else { 0 };
    before.set();
    // SAFETY: the caller's promise.
    unsafe { tell(&block.event) };
}

#[derive(Clone, Copy)]
enum Operation {
    Read,
    Write,
    Sync,
}

/// Counts a request that the C library performs.
fn note(block: &Block, work: Operation) {
    let is_read = match work {
        Operation::Read => true,
        Operation::Write => false,
        Operation::Sync => return,
    };
    watch::submitted(block.fd, is_read, block.offset, block.bytes.addr(), block.count);
}

/// # Safety
/// As [`perform`].
unsafe fn one(block: *mut Block, work: Operation, pass: impl FnOnce() -> c_int) -> c_int {
    // SAFETY: the caller's promise.
    let Some(block) = (unsafe { block.as_mut() }) else { return pass() };
    let Some(file) = served_file(block.fd) else {
        note(block, work);
        return pass();
    };
    // SAFETY: the caller's promise.
    unsafe { perform(&file, block, work) };
    0
}

type List = unsafe extern "C" fn(c_int, *const *mut Block, c_int, *const Event) -> c_int;

/// The C library's own `lio_listio`.
///
/// # Safety
/// As `lio_listio` requires.
unsafe fn listio(
    mode: c_int,
    blocks: *const *mut Block,
    count: c_int,
    event: *const Event,
) -> c_int {
    static NEXT: crate::next::Next = crate::next::Next::new(c"lio_listio");
    let next = NEXT.get();
    if next.is_null() {
        Errno(libc::ENOSYS).set();
        return -1;
    }
    // SAFETY: the function of that name has this type; the caller's promise.
    unsafe { std::mem::transmute::<*mut c_void, List>(next)(mode, blocks, count, event) }
}

/// Performs the blocks of served files, and passes the others on.
///
/// # Safety
/// The arguments are as `lio_listio` requires.
unsafe fn list(
    mode: c_int,
    blocks: *const *mut Block,
    count: c_int,
    event: *const Event,
    pass: impl FnOnce() -> c_int,
) -> c_int {
    let count = match usize::try_from(count) {
        Ok(count) if !blocks.is_null() && count <= AIO_BLOCKS_MAX => count,
        _ => return pass(),
    };
    // SAFETY: the caller's promise.
    let blocks = unsafe { std::slice::from_raw_parts(blocks, count) };
    let (mut failed, mut ours, mut others) = (false, false, Vec::new());
    for &pointer in blocks {
        // SAFETY: the caller's promise: null or a block of its own.
        let Some(block) = (unsafe { pointer.as_mut() }) else { continue };
        let work = match block.operation {
            LIO_READ => Some(Operation::Read),
            LIO_WRITE => Some(Operation::Write),
            _ => None,
        };
        let Some(file) = served_file(block.fd) else {
            if let Some(work) = work {
                note(block, work);
            }
            others.push(pointer);
            continue;
        };
        ours = true;
        let Some(work) = work else { continue };
        // SAFETY: the caller's promise.
        unsafe { perform(&file, block, work) };
        failed |= block.error != 0;
    }
    if !ours {
        return pass();
    }
    let mut done = 0;
    if !others.is_empty() {
        // SAFETY: a list of the program's blocks, as the function wants it.
        done = unsafe { listio(mode, others.as_ptr(), others.len() as c_int, event) };
    } else if mode != LIO_WAIT
        // SAFETY: the caller's promise.
        && let Some(event) = unsafe { event.as_ref() }
    {
        // SAFETY: as above.
        unsafe { tell(event) };
    }
    if failed && mode == LIO_WAIT {
        Errno(libc::EIO).set();
        return -1;
    }
    done
}

interpose! {
    fn [aio_read, aio_read64]
    (block: *mut Block) -> c_int, |pass| { one(block, Operation::Read, pass) }
    fn [aio_write, aio_write64]
    (block: *mut Block) -> c_int, |pass| { one(block, Operation::Write, pass) }
    fn [aio_fsync, aio_fsync64]
    (how: c_int, block: *mut Block) -> c_int, |pass| { one(block, Operation::Sync, pass) }
    fn [lio_listio, lio_listio64]
    (mode: c_int, blocks: *const *mut Block, count: c_int, event: *const Event) -> c_int, |pass| {
        list(mode, blocks, count, event, pass)
    }
}
