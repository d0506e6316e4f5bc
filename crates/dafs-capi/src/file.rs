//! Open files.

use crate::attributes::{dap_attributes_t, dap_set_attributes_t};
use crate::boundary::call_plainly;
use crate::error::{Failure, invalid};
use crate::handle::{dap_file_t, dap_session_t, tables};
use crate::pointer::{Out, array};
use crate::session::session;
use dafs_client::{AccessPattern, Create, HintWord, OpenOptions, ShareDeny, Stability};
use std::ffi::c_char;
use std::sync::Arc;

/// The object behind a file handle.
pub(crate) struct File(pub(crate) dafs_client::File);

pub(crate) fn file(handle: dap_file_t) -> Result<Arc<File>, Failure> {
    tables().files.get(handle.id)
}

/// Opens for reading.
pub const DAP_OPEN_READ: u32 = 0x1;
/// Opens for writing.
pub const DAP_OPEN_WRITE: u32 = 0x2;
/// Makes the file if it does not exist.
pub const DAP_OPEN_CREATE: u32 = 0x4;
/// With DAP_OPEN_CREATE: fails if the file exists, unless this very call has made it.
pub const DAP_OPEN_EXCLUSIVE: u32 = 0x8;
/// Truncates the file to length 0.
pub const DAP_OPEN_TRUNCATE: u32 = 0x10;
/// Denies other opens for reading.
pub const DAP_OPEN_DENY_READ: u32 = 0x20;
/// Denies other opens for writing.
pub const DAP_OPEN_DENY_WRITE: u32 = 0x40;
/// Denies removal while it is open.
pub const DAP_OPEN_DENY_DELETE: u32 = 0x80;
/// Bypasses the session's cache.
pub const DAP_OPEN_DIRECT: u32 = 0x100;
/// Shares the file only with opens of the same key; see dap_open_with_key().
const WITH_KEY: u32 = 0x200;
/// With dap_open_with_key(): excludes everybody without the key, too.
pub const DAP_OPEN_STRICT_KEY: u32 = 0x400;
/// The file will be used from front to back.
pub const DAP_OPEN_SEQUENTIAL: u32 = 0x800;
/// The file will be used at random places.
pub const DAP_OPEN_RANDOM: u32 = 0x1000;
/// Data that is read or written will not be used again: DAP_HINT_DONE rides on each transfer.
pub const DAP_OPEN_ONCE: u32 = 0x2000;
/// The program, or the session's cache, keeps what is read or written: DAP_HINT_CACHED rides on each
/// transfer.
pub const DAP_OPEN_CACHED: u32 = 0x4000;

/// All flags of opens.
const FLAGS: u32 = (DAP_OPEN_CACHED << 1) - 1;

/// A write that a later dap_commit() makes stable.
pub const DAP_UNSTABLE: u32 = 0;
/// A write whose data is stable when it completes.
pub const DAP_DATA_SYNC: u32 = 1;
/// A write whose data and attributes are stable when it completes.
pub const DAP_FILE_SYNC: u32 = 2;

pub(crate) fn stability(number: u32) -> Result<Stability, Failure> {
    match number {
        DAP_UNSTABLE => Ok(Stability::Unstable),
        DAP_DATA_SYNC => Ok(Stability::DataSync),
        DAP_FILE_SYNC => Ok(Stability::FileSync),
        _ => Err(invalid("a stability is 0, 1 or 2")),
    }
}

fn options(flags: u32, mode: u32, key: u64) -> Result<OpenOptions, Failure> {
    let has = |flag| flags & flag != 0;
    if flags & !FLAGS != 0 {
        return Err(invalid("there is no such flag for opening"));
    }
    let mut options = match (has(DAP_OPEN_READ), has(DAP_OPEN_WRITE)) {
        (true, true) => OpenOptions::read_write(),
        (true, false) => OpenOptions::read(),
        (false, true) => OpenOptions::write(),
        (false, false) => return Err(invalid("a file is opened for reading, writing or both")),
    };
    if has(DAP_OPEN_CREATE) {
        if mode > 0o7777 {
            return Err(invalid("a mode has bits beyond 07777"));
        }
        let create = if has(DAP_OPEN_EXCLUSIVE) { Create::Exclusive } else { Create::IfMissing };
        options = options.create(create).mode(mode);
    } else if has(DAP_OPEN_EXCLUSIVE) {
        return Err(invalid("only a file that is made can be made exclusively"));
    }
    if has(DAP_OPEN_TRUNCATE) && !has(DAP_OPEN_WRITE) {
        return Err(invalid("only a file that is opened for writing can be cut"));
    }
    options = match (has(WITH_KEY), has(DAP_OPEN_STRICT_KEY)) {
        (true, true) => options.strict_share_key(key),
        (true, false) => options.share_key(key),
        (false, true) => return Err(invalid("dap_open_with_key() gives the key that is strict")),
        (false, false) => options,
    };
    options = match (has(DAP_OPEN_SEQUENTIAL), has(DAP_OPEN_RANDOM)) {
        (true, true) => return Err(invalid("a file is used in one pattern")),
        (true, false) => options.pattern(AccessPattern::Sequential),
        (false, true) => options.pattern(AccessPattern::Random),
        (false, false) => options,
    };
    options = match (has(DAP_OPEN_ONCE), has(DAP_OPEN_CACHED)) {
        (true, true) => return Err(invalid("what is used once is not kept")),
        (true, false) => options.hint(HintWord::DONE),
        (false, true) => options.hint(HintWord::CACHED),
        (false, false) => options,
    };
    Ok(options
        .truncate(has(DAP_OPEN_TRUNCATE))
        .direct(has(DAP_OPEN_DIRECT))
        .deny_delete(has(DAP_OPEN_DENY_DELETE))
        .deny(match (has(DAP_OPEN_DENY_READ), has(DAP_OPEN_DENY_WRITE)) {
            (true, true) => ShareDeny::Both,
            (true, false) => ShareDeny::Read,
            (false, true) => ShareDeny::Write,
            (false, false) => ShareDeny::None,
        }))
}

/// # Safety
/// As that of the functions that call it.
unsafe fn open(
    handle: dap_session_t,
    path: *const c_char,
    options: &OpenOptions,
    file: *mut dap_file_t,
) -> Result<(), Failure> {
    let session = session(handle)?;
    // SAFETY: as the caller promises.
    let (out, (from, path)) = unsafe { (Out::new(file)?, session.path(path)?) };
    let opened = session.client.open_from(&from, path, options)?;
    out.set(dap_file_t { id: tables().files.add(File(opened))? });
    Ok(())
}

/// Opens the file at `path`. `flags` are DAP_OPEN_...; `mode` is that of a new file.
///
/// Threads: any. All threads may use one file at the same time.
///
/// # Safety
/// `path` is a text or null, `file` null or good for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dap_open(
    handle: dap_session_t,
    path: *const c_char,
    flags: u32,
    mode: u32,
    file: *mut dap_file_t,
) -> i32 {
    call_plainly(|| {
        let flags = if flags & WITH_KEY == 0 { flags } else { u32::MAX };
        // SAFETY: as the caller promises.
        unsafe { open(handle, path, &options(flags, mode, 0)?, file) }
    })
}

/// As dap_open(), shared only with opens of the same key: DAP_E_KEY_MISMATCH while the file is open
/// under another one. Opens without a key are not affected, unless the server's export has strict
/// keys. With DAP_OPEN_STRICT_KEY they are in every export: DAP_E_KEY_MISMATCH while the file is
/// open without a key, and until dap_close() clients of DAFS and NFS without the key are refused.
/// That needs the right to write the file: else DAP_E_ACCES. DAP_E_INVAL from a server without that.
///
/// Threads: any.
///
/// # Safety
/// As dap_open().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dap_open_with_key(
    handle: dap_session_t,
    path: *const c_char,
    flags: u32,
    mode: u32,
    key: u64,
    file: *mut dap_file_t,
) -> i32 {
    call_plainly(|| {
        // SAFETY: as the caller promises.
        unsafe { open(handle, path, &options(flags | WITH_KEY, mode, key)?, file) }
    })
}

/// Closes a file. The handle is closed also after DAP_E_WRITES_LOST or a missing answer of the
/// server, but not after DAP_E_BUSY. Wait for outstanding operations of a group before.
///
/// Threads: DAP_E_BUSY while another thread is in a call that names the file.
#[unsafe(no_mangle)]
pub extern "C" fn dap_close(handle: dap_file_t) -> i32 {
    call_plainly(|| Ok(tables().files.remove(handle.id, |_| Ok(()))?.0.close()?))
}

/// Attributes of an open file.
///
/// Threads: any.
///
/// # Safety
/// `attributes` is null or good for one struct.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dap_fstat(handle: dap_file_t, attributes: *mut dap_attributes_t) -> i32 {
    call_plainly(|| {
        // SAFETY: as the caller promises.
        let out = unsafe { Out::new(attributes) }?;
        out.set((&file(handle)?.0.attributes()?).into());
        Ok(())
    })
}

/// Changes attributes of an open file.
///
/// Threads: any.
///
/// # Safety
/// `change` is null or one struct.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dap_fset_attributes(
    handle: dap_file_t,
    change: *const dap_set_attributes_t,
) -> i32 {
    call_plainly(|| {
        // SAFETY: as the caller promises.
        let change = unsafe { array(change, 1, 1) }?[0].parse()?;
        Ok(file(handle)?.0.set_attributes(&change)?)
    })
}

/// Truncates a file, or extends it with zeros.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn dap_truncate(handle: dap_file_t, size: u64) -> i32 {
    call_plainly(|| Ok(file(handle)?.0.set_size(size)?))
}

/// Makes `len` bytes from `offset` stable; 0 and 0 for all. DAP_E_WRITES_LOST: all writes since the
/// last commit must be repeated.
///
/// Threads: any. Covers the writes that had completed when it was called.
#[unsafe(no_mangle)]
pub extern "C" fn dap_commit(handle: dap_file_t, offset: u64, len: u64) -> i32 {
    call_plainly(|| Ok(file(handle)?.0.commit(offset, len)?))
}
