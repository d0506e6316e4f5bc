//! Several requests in one round trip, each executed only if the one before it has succeeded.

use crate::attributes::dap_attributes_t;
use crate::boundary::{call, call_plainly};
use crate::error::{DAP_E_BAD_HANDLE, DAP_E_CHAIN, DAP_E_TOO_MANY, Failure, code, invalid};
use crate::file::{File, file, stability};
use crate::handle::{dap_chain_t, dap_file_t, dap_session_t, tables};
use crate::limits::CHAIN_STEPS_MAX;
use crate::lock::range;
use crate::pointer::{Out, check_write, text};
use crate::session::{Session, session};
use crate::transfer::{copy_in, copy_out};
use dafs_client::{
    AccessMask, Error, FileHandle, LockRange, SplitPath, Stability, Step, StepIn, StepOn, Stepped,
};
use dafs_mem::Mutex;
use std::ffi::{c_char, c_void};
use std::sync::Arc;

/// The path begins at the object that the request before has found.
pub const DAP_CHAIN_FOUND: u32 = 1;

/// The object behind a chain handle: the requests, until they are sent.
pub(crate) struct Chain(Mutex<Option<Requests>>);

/// It does not prevent the closing of the session or of files: they are looked up again when it
/// runs.
struct Requests {
    session: dap_session_t,
    steps: Vec<ChainStep>,
}

/// A request with its arguments, and pointers to the places of its results.
enum ChainStep {
    Lookup { from: Option<FileHandle>, names: Vec<Vec<u8>> },
    Stat(*mut dap_attributes_t),
    Access(AccessMask),
    Read { of: dap_file_t, offset: u64, memory: *mut c_void, len: usize },
    Write { to: dap_file_t, offset: u64, data: Vec<u8>, stability: Stability },
    Lock { of: dap_file_t, range: LockRange },
    Unlock { of: dap_file_t, offset: u64, length: u64 },
    Mkdir { within: Option<FileHandle>, name: Vec<u8>, mode: u32 },
    Remove { within: Option<FileHandle>, name: Vec<u8> },
}

// SAFETY: the pointers are followed in dap_chain_run() only, whose caller promises that they are good.
unsafe impl Send for ChainStep {}

/// Begins a chain.
///
/// Threads: any.
///
/// # Safety
/// `chain` is null or good for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dap_chain_create(handle: dap_session_t, chain: *mut dap_chain_t) -> i32 {
    call_plainly(|| {
        // SAFETY: as the caller promises.
        let out = unsafe { Out::new(chain) }?;
        session(handle)?;
        let requests = Requests { session: handle, steps: Vec::new() };
        let id = tables().chains.add(Chain(Mutex::new(Some(requests))))?;
        out.set(dap_chain_t { id });
        Ok(())
    })
}

/// Adds a request; returns its index.
fn add(
    handle: dap_chain_t,
    step: impl FnOnce(&Session) -> Result<ChainStep, Failure>,
) -> Result<i64, Failure> {
    let chain = tables().chains.get(handle.id)?;
    let mut open = chain.0.lock();
    let requests = open.as_mut().ok_or_else(sent)?;
    if requests.steps.len() >= CHAIN_STEPS_MAX {
        return Err(Failure::new(DAP_E_TOO_MANY, "the chain has as many requests as it can have"));
    }
    let step = step(&*session(requests.session)?)?;
    requests.steps.push(step);
    Ok(requests.steps.len() as i64 - 1)
}

fn sent() -> Failure {
    Failure::new(DAP_E_BAD_HANDLE, "the chain has been sent already")
}

/// The open file of a handle. Handle 0 means the object that the chain has found.
fn on(handle: dap_file_t) -> Result<Option<Arc<File>>, Failure> {
    if handle.id == 0 { Ok(None) } else { file(handle).map(Some) }
}

/// The place of a path: its start, and its names.
///
/// # Safety
/// As [`text`].
unsafe fn place(
    session: &Session,
    path: *const c_char,
    flags: u32,
) -> Result<(Option<FileHandle>, Vec<Vec<u8>>), Failure> {
    let (from, path) = match flags {
        // SAFETY: as the caller promises.
        0 => unsafe { session.path(path) }.map(|(from, path)| (Some(from), path))?,
        // SAFETY: as above.
        DAP_CHAIN_FOUND => (None, unsafe { text(path) }?),
        _ => return Err(invalid("there is no such flag for a chain")),
    };
    let names = path.split(|&byte| byte == b'/').filter(|name| !matches!(*name, b"" | b"."));
    Ok((from, names.map(<[u8]>::to_vec).collect()))
}

/// Refuses a path that demands a directory (POSIX 4.13), because a chain does not check the type of
/// the object that it finds.
///
/// # Safety
/// As [`text`].
unsafe fn check_end(path: *const c_char) -> Result<(), Failure> {
    // SAFETY: as the caller promises.
    match SplitPath::of(unsafe { text(path) }?).wants_directory {
        true => Err(invalid(
            "a chain does not see whether a name is of a directory; leave out what is behind it",
        )),
        false => Ok(()),
    }
}

/// As [`place`], for one name.
///
/// # Safety
/// As [`text`].
unsafe fn name(
    session: &Session,
    path: *const c_char,
    flags: u32,
) -> Result<(Option<FileHandle>, Vec<u8>), Failure> {
    // SAFETY: as the caller promises.
    let (within, mut names) = unsafe { place(session, path, flags) }?;
    match (names.pop(), names.is_empty()) {
        (Some(name), true) => Ok((within, name)),
        _ => Err(invalid(
            "this takes one name; look the directory up first, and use DAP_CHAIN_FOUND",
        )),
    }
}

/// Adds a lookup by up to 64 names. Later requests work on the object found. `path` begins as other
/// paths do, or with DAP_CHAIN_FOUND at the object that the request before has found. Symbolic
/// links are not followed. Its result is 0. Returns its index in the chain.
///
/// Threads: any.
///
/// # Safety
/// `path` is a text or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dap_chain_lookup(
    handle: dap_chain_t,
    path: *const c_char,
    flags: u32,
) -> i64 {
    call(|| {
        add(handle, |session| {
            // SAFETY: as the caller promises.
            let (from, names) = unsafe {
                check_end(path)?;
                place(session, path, flags)?
            };
            if names.is_empty() {
                return Err(invalid("there is no name to look up"));
            }
            Ok(ChainStep::Lookup { from, names })
        })
    })
}

/// Adds a request for the attributes of the object found, which dap_chain_run() stores in
/// `attributes`. Its result is 0. Returns its index in the chain.
///
/// Threads: any.
///
/// # Safety
/// `attributes` is null, or good for one struct until the chain has been run.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dap_chain_stat(
    handle: dap_chain_t,
    attributes: *mut dap_attributes_t,
) -> i64 {
    call(|| {
        // SAFETY: as the caller promises.
        let _place = unsafe { Out::new(attributes) }?;
        add(handle, |_| Ok(ChainStep::Stat(attributes)))
    })
}

/// Adds a check for the rights in `wanted` (DAP_ACCESS_...) of the caller on the object found; its
/// result is the set of rights that the caller has. Returns its index in the chain.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn dap_chain_access(handle: dap_chain_t, wanted: u32) -> i64 {
    call(|| {
        let mask = AccessMask::from_bits(wanted & 0x3f).filter(|mask| mask.bits() == wanted);
        let mask = mask.ok_or(invalid("there is no such right"))?;
        add(handle, |_| Ok(ChainStep::Access(mask)))
    })
}

/// Adds a read of an open file, or with the handle 0 of the object found: of no more than a message
/// holds (8000 bytes always fit). dap_chain_run() stores the data in `memory`. Its result is the
/// number of bytes, fewer only at the end of the file. Returns its index in the chain.
///
/// Threads: any.
///
/// # Safety
/// `memory` is null, unmapped, or good for `len` bytes that no other thread uses until the chain
/// has run.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dap_chain_read(
    handle: dap_chain_t,
    of: dap_file_t,
    memory: *mut c_void,
    len: usize,
    offset: u64,
) -> i64 {
    call(|| {
        check_write(memory, len)?;
        on(of)?;
        add(handle, |session| {
            fits(len, session.client.step_read_bytes_max())?;
            Ok(ChainStep::Read { of, offset, memory, len })
        })
    })
}

/// Adds a write to an open file, or with the handle 0 to the object found: of no more than a
/// message holds (8000 bytes always fit). `stable` is DAP_DATA_SYNC or DAP_FILE_SYNC. The data is
/// copied now. Its result is the number of bytes. Returns its index in the chain.
///
/// Threads: any.
///
/// # Safety
/// `memory` is null, unmapped, or good for `len` bytes that no other thread changes meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dap_chain_write(
    handle: dap_chain_t,
    to: dap_file_t,
    memory: *const c_void,
    len: usize,
    offset: u64,
    stable: u32,
) -> i64 {
    call(|| {
        let stability = stability(stable)?;
        on(to)?;
        if stability == Stability::Unstable {
            return Err(invalid("what a chain writes must be stable"));
        }
        add(handle, |session| {
            fits(len, session.client.step_write_bytes_max())?;
            // SAFETY: as the caller promises.
            let data = unsafe { copy_in(memory, len) }?;
            Ok(ChainStep::Write { to, offset, data, stability })
        })
    })
}

fn fits(len: usize, max: usize) -> Result<(), Failure> {
    match len <= max {
        true => Ok(()),
        false => Err(invalid("more than a message holds")),
    }
}

/// Adds a lock request, which does not wait for other locks. `flags` are as for dap_lock(). Its
/// result is 0. Returns its index in the chain.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn dap_chain_lock(
    handle: dap_chain_t,
    of: dap_file_t,
    offset: u64,
    length: u64,
    flags: u32,
) -> i64 {
    call(|| {
        let range = range(offset, length, flags)?;
        file(of)?;
        add(handle, |_| Ok(ChainStep::Lock { of, range }))
    })
}

/// Adds an unlock. Its result is 0. Returns its index in the chain.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn dap_chain_unlock(
    handle: dap_chain_t,
    of: dap_file_t,
    offset: u64,
    length: u64,
) -> i64 {
    call(|| {
        file(of)?;
        add(handle, |_| Ok(ChainStep::Unlock { of, offset, length }))
    })
}

/// Adds a mkdir; later requests work on the new directory. `path` is one name, in the session's
/// directory or, with DAP_CHAIN_FOUND, in the directory found. Its result is 0. Returns its index
/// in the chain.
///
/// Threads: any.
///
/// # Safety
/// `path` is a text or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dap_chain_mkdir(
    handle: dap_chain_t,
    path: *const c_char,
    flags: u32,
    mode: u32,
) -> i64 {
    call(|| {
        add(handle, |session| {
            // SAFETY: as the caller promises.
            let (within, name) = unsafe { name(session, path, flags) }?;
            if mode > 0o7777 {
                return Err(invalid("a mode has bits beyond 07777"));
            }
            Ok(ChainStep::Mkdir { within, name, mode })
        })
    })
}

/// Adds the removal of a name, or of an empty directory. `path` is as for dap_chain_mkdir(). Its
/// result is 0. Returns its index in the chain.
///
/// Threads: any.
///
/// # Safety
/// `path` is a text or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dap_chain_remove(
    handle: dap_chain_t,
    path: *const c_char,
    flags: u32,
) -> i64 {
    call(|| {
        add(handle, |session| {
            // SAFETY: as the caller promises.
            let (within, name) = unsafe {
                check_end(path)?;
                name(session, path, flags)?
            };
            Ok(ChainStep::Remove { within, name })
        })
    })
}

/// Sends a chain, waits for it, and closes its handle. `results` has an element for each request:
/// the result that its function documents, or a negative DAP_E_...; DAP_E_CHAIN behind the first
/// that failed. If this fails no request was sent: DAP_E_INVALID if the requests form no chain,
/// DAP_E_CHAIN if the session does not have a credit for each at the moment. The requests form no
/// chain if a write, mkdir or remove follows a request that reads content or attributes (locks may
/// come anywhere), or if the first works on an object found.
///
/// Threads: DAP_E_BUSY while another thread is in a call that names the chain.
///
/// # Safety
/// `results` is null or as long as said, and so are the places given to dap_chain_read() and
/// dap_chain_stat().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dap_chain_run(handle: dap_chain_t, results: *mut i64) -> i32 {
    call_plainly(|| {
        let Requests { session: of, steps } = take(handle)?;
        let session = session(of)?;
        check_write(results.cast(), steps.len() * size_of::<i64>())?;
        for step in &steps {
            match step {
                ChainStep::Read { memory, len, .. } => check_write(*memory, *len)?,
                ChainStep::Stat(out) => check_write(out.cast(), size_of::<dap_attributes_t>())?,
                _ => {}
            }
        }
        let names = steps.iter().map(ChainStep::names).collect::<Vec<_>>();
        let files = steps.iter().map(ChainStep::file).collect::<Result<Vec<_>, Failure>>()?;
        let asked = steps.iter().zip(names.iter().zip(&files));
        let asked: Vec<_> =
            asked.map(|(step, (names, file))| step.step(names, file.as_deref())).collect();
        for (place, result) in session.client.run_steps(&asked)?.into_iter().enumerate() {
            let result = match result {
                // SAFETY: as the caller promises, and found writable above.
                Ok(done) => unsafe { steps[place].tell(done) },
                // The present connection has no room for it, but has for those before it.
                Err(Error::Unsendable(_)) => DAP_E_CHAIN.into(),
                Err(error) => code(&error).into(),
            };
            // SAFETY: found writable above, and the caller keeps it.
            unsafe { results.add(place).write_unaligned(result) };
        }
        Ok(())
    })
}

/// Closes the handle of a chain without sending it.
///
/// Threads: DAP_E_BUSY while another thread is in a call that names the chain.
#[unsafe(no_mangle)]
pub extern "C" fn dap_chain_discard(handle: dap_chain_t) -> i32 {
    call_plainly(|| take(handle).map(drop))
}

fn take(handle: dap_chain_t) -> Result<Requests, Failure> {
    let chain = tables().chains.remove(handle.id, |_| Ok(()))?;
    chain.0.into_inner().ok_or_else(sent)
}

impl ChainStep {
    fn names(&self) -> Vec<&[u8]> {
        match self {
            Self::Lookup { names, .. } => names.iter().map(Vec::as_slice).collect(),
            _ => Vec::new(),
        }
    }

    /// The open file of the request.
    fn file(&self) -> Result<Option<Arc<File>>, Failure> {
        match self {
            Self::Read { of, .. } | Self::Write { to: of, .. } => on(*of),
            Self::Lock { of, .. } | Self::Unlock { of, .. } => file(*of).map(Some),
            _ => Ok(None),
        }
    }

    fn step<'a>(&'a self, names: &'a [&'a [u8]], file: Option<&'a File>) -> Step<'a> {
        let within = |dir: &Option<FileHandle>| dir.map_or(StepIn::Found, StepIn::Directory);
        let on = file.map_or(StepOn::Found, |file| StepOn::File(&file.0));
        match (self, file) {
            (Self::Lookup { from, .. }, _) => Step::Lookup { from: within(from), names },
            (Self::Access(mask), _) => Step::Access(*mask),
            (Self::Read { offset, len, .. }, _) => Step::Read { on, offset: *offset, bytes: *len },
            (Self::Write { offset, data, stability, .. }, _) => {
                Step::Write { on, offset: *offset, data, stability: *stability }
            }
            (Self::Lock { range, .. }, Some(file)) => Step::Lock { file: &file.0, range: *range },
            (Self::Unlock { offset, length, .. }, Some(file)) => {
                Step::Unlock { file: &file.0, offset: *offset, length: *length }
            }
            (Self::Mkdir { within: dir, name, mode }, _) => {
                Step::MakeDirectory { within: within(dir), name, mode: *mode }
            }
            (Self::Remove { within: dir, name }, _) => Step::Remove { within: within(dir), name },
            // Locks have a file, as `file` has checked.
            (Self::Stat(_) | Self::Lock { .. } | Self::Unlock { .. }, _) => Step::Attributes,
        }
    }

    /// Stores the result in its place, and returns the number to report.
    ///
    /// # Safety
    /// The places are writable, and the caller of the library keeps them.
    unsafe fn tell(&self, done: Stepped) -> i64 {
        match (self, done) {
            (Self::Read { memory, len, .. }, Stepped::Read(mut data)) => {
                data.truncate(*len);
                // SAFETY: as the caller promises.
                match unsafe { copy_out(&mut data, memory.cast()) } {
                    Ok(()) => data.len() as i64,
                    Err(failure) => failure.code.into(),
                }
            }
            (Self::Stat(out), Stepped::Attributes(attributes)) => {
                // SAFETY: as the caller promises.
                unsafe { out.write_unaligned((&*attributes).into()) };
                0
            }
            (_, Stepped::Access(mask)) => mask.bits().into(),
            (_, Stepped::Written(bytes)) => bytes as i64,
            _ => 0,
        }
    }
}
