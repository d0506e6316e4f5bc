//! Files of NFS servers, by nfs:// and nfs+rdma:// URLs.
//!
//! The calls are those on names and files of a session, by the client of `dafs-nfs-client`. A transfer
//! goes through registered memory of the file, piece by piece.

use crate::attributes::{
    DAP_NO_ID, DAP_TYPE_BLOCK, DAP_TYPE_CHARACTER, DAP_TYPE_DIRECTORY, DAP_TYPE_FIFO,
    DAP_TYPE_FILE, DAP_TYPE_SOCKET, DAP_TYPE_SYMLINK, dap_attributes_t, dap_time_t,
};
use crate::boundary::{call, call_plainly};
use crate::directory::dap_entry_t;
use crate::error::{
    DAP_E_CONNECT, DAP_E_INVALID, DAP_E_LOOP, DAP_E_LOST, DAP_E_NO_MEMORY, DAP_E_NOTDIR,
    DAP_E_OTHER, DAP_E_PROTOCOL, DAP_E_URL, DAP_E_WRITES_LOST, Failure, invalid, status_code,
};
use crate::file::{
    DAP_OPEN_CREATE, DAP_OPEN_EXCLUSIVE, DAP_OPEN_READ, DAP_OPEN_TRUNCATE, DAP_OPEN_WRITE,
    stability,
};
use crate::handle::{dap_mount_dir_t, dap_mount_file_t, dap_mount_t, tables};
use crate::limits::MOUNT_PIECE_BYTES;
use crate::names::follow;
use crate::pointer::{Out, text, utf8};
use crate::transfer::{source, target};
use dafs_client::{Error, Stability, Status};
use dafs_mem::{CheckedSlice, Mutex, Site};
use dafs_nfs_client::mount::{
    Attributes, Create, FileType, Follow, Memory, Mount, MountError, MountOptions, NfsUrl,
    OpenOptions, Owner, ReadDir, SetAttributes, StableHow, Time,
};
use std::ffi::{c_char, c_void};
use std::sync::Arc;

/// The object behind the handle of a mount.
pub(crate) struct Mounted {
    mount: Mount,
    /// The path of the URL.
    base: Vec<u8>,
}

/// The object behind the handle of a mount's file.
pub(crate) struct MountedFile {
    file: dafs_nfs_client::mount::File,
    /// Memory for transfers, while none uses it.
    memory: Mutex<Option<Memory>>,
}

/// The object behind the handle of a mount's directory.
pub(crate) struct MountedDirectory(Mutex<ReadDir>);

fn mounted(handle: dap_mount_t) -> Result<Arc<Mounted>, Failure> {
    tables().mounts.get(handle.id)
}

fn file(handle: dap_mount_file_t) -> Result<Arc<MountedFile>, Failure> {
    tables().mount_files.get(handle.id)
}

impl Mounted {
    /// The path from the root of the server.
    ///
    /// # Safety
    /// As [`text`].
    unsafe fn path(&self, path: *const c_char) -> Result<Vec<u8>, Failure> {
        // SAFETY: as the caller promises.
        let path = unsafe { text(path) }?;
        Ok(match path.first() {
            None => self.base.clone(),
            Some(b'/') => path.to_vec(),
            Some(_) => [&self.base[..], &b"/"[..], path].concat(),
        })
    }
}

impl MountedFile {
    fn memory(&self, bytes: usize) -> Result<Memory, Failure> {
        let kept = self.memory.lock().take();
        match kept.filter(|memory| memory.len() >= bytes) {
            Some(memory) => Ok(memory),
            None => Ok(self.file.mount().allocate(bytes)?),
        }
    }

    fn keep(&self, memory: Memory) {
        if !memory.is_spoiled() {
            *self.memory.lock() = Some(memory);
        }
    }

    fn read(&self, target: CheckedSlice<'_>, offset: u64) -> Result<usize, Failure> {
        let mut done = 0;
        while done < target.len() {
            let len = (target.len() - done).min(MOUNT_PIECE_BYTES);
            let memory = self.memory(len)?;
            let piece = memory.slice(0..len).ok_or_else(outside)?;
            let moved = self.file.read(piece, at(offset, done)?)?;
            let (to, from) = (target.slice(done, moved), memory.view().slice(0, moved));
            let (Some(to), Some(from)) = (to, from) else { return Err(outside()) };
            to.copy_from(from, Site::ClientStaging).map_err(Error::from)?;
            self.keep(memory);
            done += moved;
            if moved < len {
                break;
            }
        }
        Ok(done)
    }

    fn write(
        &self,
        source: CheckedSlice<'_>,
        offset: u64,
        stable: StableHow,
    ) -> Result<usize, Failure> {
        let mut done = 0;
        while done < source.len() {
            let len = (source.len() - done).min(MOUNT_PIECE_BYTES);
            let memory = self.memory(len)?;
            let (from, to) = (source.slice(done, len), memory.view().slice(0, len));
            let (Some(from), Some(to)) = (from, to) else { return Err(outside()) };
            from.copy_to(to, Site::ClientStaging).map_err(Error::from)?;
            let piece = memory.slice(0..len).ok_or_else(outside)?;
            done += self.file.write(piece, at(offset, done)?, stable)?.bytes;
            self.keep(memory);
        }
        Ok(done)
    }
}

fn outside() -> Failure {
    invalid("the range leaves the memory")
}

fn at(offset: u64, done: usize) -> Result<u64, Failure> {
    offset.checked_add(done as u64).ok_or_else(|| invalid("the range lies beyond the largest file"))
}

fn options(flags: u32, mode: u32) -> Result<OpenOptions, Failure> {
    let known = DAP_OPEN_READ | DAP_OPEN_WRITE | DAP_OPEN_CREATE | DAP_OPEN_EXCLUSIVE;
    let has = |flag| flags & flag != 0;
    if flags & !(known | DAP_OPEN_TRUNCATE) != 0 {
        return Err(invalid("a mount has no such flag for opening"));
    }
    if !has(DAP_OPEN_READ | DAP_OPEN_WRITE) {
        return Err(invalid("a file is opened for reading, writing or both"));
    }
    if mode > 0o7777 {
        return Err(invalid("a mode has bits beyond 07777"));
    }
    if has(DAP_OPEN_TRUNCATE) && !has(DAP_OPEN_WRITE) {
        return Err(invalid("only a file that is opened for writing can be cut"));
    }
    let create = match (has(DAP_OPEN_CREATE), has(DAP_OPEN_EXCLUSIVE)) {
        (true, true) => Create::New,
        (true, false) => Create::IfMissing,
        (false, true) => return Err(invalid("only a file that is made can be made exclusively")),
        (false, false) => Create::No,
    };
    let (read, write) = (has(DAP_OPEN_READ), has(DAP_OPEN_WRITE));
    Ok(OpenOptions { read, write, create, truncate: has(DAP_OPEN_TRUNCATE), mode })
}

impl From<MountError> for Failure {
    fn from(error: MountError) -> Self {
        let code = match &error {
            MountError::Argument(_) => DAP_E_INVALID,
            MountError::Connect { .. }
            | MountError::Kerberos(_)
            | MountError::NotExported { .. }
            | MountError::TooWeak { .. }
            | MountError::WrongFlavour { .. } => DAP_E_CONNECT,
            MountError::Lost { .. } | MountError::OpenLost(_) => DAP_E_LOST,
            MountError::Memory(_) => DAP_E_NO_MEMORY,
            MountError::Protocol(_) | MountError::Rejected(_) => DAP_E_PROTOCOL,
            // The numbers of DAFS are those of NFS where the meaning is the same.
            MountError::Refused { status, .. } => match Status::from_u32(status.code()) {
                Status::Unknown(_) => DAP_E_OTHER,
                status => status_code(status),
            },
            MountError::SymlinkLoop(_) => DAP_E_LOOP,
            MountError::Url(_) => DAP_E_URL,
            MountError::WritesLost => DAP_E_WRITES_LOST,
            _ => DAP_E_OTHER,
        };
        Self::new(code, error.to_string())
    }
}

fn time(time: Time) -> dap_time_t {
    dap_time_t { seconds: time.seconds, nanoseconds: time.nanoseconds, reserved: 0 }
}

impl From<&Attributes> for dap_attributes_t {
    fn from(of: &Attributes) -> Self {
        let id = |owner: &Owner| owner.id().unwrap_or(DAP_NO_ID);
        Self {
            kind: match of.kind {
                FileType::Directory | FileType::AttributeDirectory => DAP_TYPE_DIRECTORY,
                FileType::BlockDevice => DAP_TYPE_BLOCK,
                FileType::CharacterDevice => DAP_TYPE_CHARACTER,
                FileType::Symlink => DAP_TYPE_SYMLINK,
                FileType::Socket => DAP_TYPE_SOCKET,
                FileType::Fifo => DAP_TYPE_FIFO,
                _ => DAP_TYPE_FILE,
            },
            mode: of.mode,
            links: of.links,
            owner: id(&of.owner),
            group: id(&of.group),
            reserved: 0,
            size: of.size,
            space_used: of.space_used,
            file_id: of.file_id,
            change: of.change,
            device_major: of.device.0.into(),
            device_minor: of.device.1.into(),
            accessed: time(of.accessed),
            modified: time(of.modified),
            changed: time(of.changed),
            created: of.created.map_or_else(dap_time_t::default, time),
        }
    }
}

/// Mounts the NFS server of a connection string: nfs://HOST[:PORT]/PATH[?OPTION=VALUE&...] over
/// TCP, nfs+rdma:// over RDMA. The options are those of the command dafs, such as vers=3, 4.1 or
/// 4.2, and sec=krb5. The user and the groups are those of the process.
///
/// Paths given to other functions begin at PATH, or at the server's root if they begin with a
/// slash; the empty path is PATH itself. While the server is away, calls wait for two minutes and
/// then fail with DAP_E_LOST. dap_limit_thread() does not bound them.
///
/// Threads: any. All threads may use one mount at the same time.
///
/// # Safety
/// `url` is a text or null, `mount` null or good for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dap_mount(url: *const c_char, mount: *mut dap_mount_t) -> i32 {
    call_plainly(|| {
        // SAFETY: as the caller promises.
        let (url, out) = unsafe { (utf8(url)?, Out::new(mount)?) };
        let url = NfsUrl::parse(url).map_err(MountError::from)?;
        let mount = Mount::connect(&url, &MountOptions::default())?;
        let base = url.path().to_vec();
        out.set(dap_mount_t { id: tables().mounts.add(Mounted { mount, base })? });
        Ok(())
    })
}

/// Ends a mount. Its open files go on until they are closed.
///
/// Threads: DAP_E_BUSY while another thread is in a call that names the mount.
#[unsafe(no_mangle)]
pub extern "C" fn dap_unmount(mount: dap_mount_t) -> i32 {
    call_plainly(|| tables().mounts.remove(mount.id, |_| Ok(())).map(drop))
}

/// Opens the file at `path`. `flags` are DAP_OPEN_READ, _WRITE, _CREATE, _EXCLUSIVE and _TRUNCATE;
/// `mode` is that of a new file.
///
/// Threads: any. All threads may use one file at the same time.
///
/// # Safety
/// `path` is a text or null, `file` null or good for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dap_mount_open(
    handle: dap_mount_t,
    path: *const c_char,
    flags: u32,
    mode: u32,
    file: *mut dap_mount_file_t,
) -> i32 {
    call_plainly(|| {
        let mounted = mounted(handle)?;
        // SAFETY: as the caller promises.
        let (out, path) = unsafe { (Out::new(file)?, mounted.path(path)?) };
        let file = mounted.mount.open(&path, &options(flags, mode)?)?;
        let opened = MountedFile { file, memory: Mutex::new(None) };
        out.set(dap_mount_file_t { id: tables().mount_files.add(opened)? });
        Ok(())
    })
}

/// Closes a file. Written data is stable only after dap_mount_commit(). The handle is closed
/// also after an error of the server.
///
/// Threads: DAP_E_BUSY while another thread is in a call that names the file.
#[unsafe(no_mangle)]
pub extern "C" fn dap_mount_close(handle: dap_mount_file_t) -> i32 {
    call_plainly(|| Ok(tables().mount_files.remove(handle.id, |_| Ok(()))?.file.close()?))
}

/// Reads up to `len` bytes from `offset`; returns the number of bytes, fewer only at the end of the
/// file.
///
/// Threads: any.
///
/// # Safety
/// `memory` is null, unmapped, or good for `len` bytes that no other thread uses meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dap_mount_read(
    handle: dap_mount_file_t,
    memory: *mut c_void,
    len: usize,
    offset: u64,
) -> i64 {
    call(|| {
        let file = file(handle)?;
        // SAFETY: as the caller promises.
        let target = unsafe { target(memory, len) }?;
        Ok(file.read(target, offset)? as i64)
    })
}

/// Writes `len` bytes at `offset`; returns `len`. `stable` is DAP_UNSTABLE, DAP_DATA_SYNC or
/// DAP_FILE_SYNC.
///
/// Threads: any.
///
/// # Safety
/// `memory` is null, unmapped, or good for `len` bytes that no other thread changes meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dap_mount_write(
    handle: dap_mount_file_t,
    memory: *const c_void,
    len: usize,
    offset: u64,
    stable: u32,
) -> i64 {
    call(|| {
        let file = file(handle)?;
        let stable = match stability(stable)? {
            Stability::Unstable => StableHow::Unstable,
            Stability::DataSync => StableHow::DataSync,
            Stability::FileSync => StableHow::FileSync,
        };
        // SAFETY: as the caller promises.
        let source = unsafe { source(memory, len) }?;
        Ok(file.write(source, offset, stable)? as i64)
    })
}

/// Makes stable what was written. DAP_E_WRITES_LOST: all writes since the last commit must be
/// repeated.
///
/// Threads: any. Covers the writes that had completed when it was called.
#[unsafe(no_mangle)]
pub extern "C" fn dap_mount_commit(handle: dap_mount_file_t) -> i32 {
    call_plainly(|| Ok(file(handle)?.file.commit().map(drop)?))
}

/// Attributes of an open file.
///
/// Threads: any.
///
/// # Safety
/// `attributes` is null or good for one struct.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dap_mount_fstat(
    handle: dap_mount_file_t,
    attributes: *mut dap_attributes_t,
) -> i32 {
    call_plainly(|| {
        // SAFETY: as the caller promises.
        let out = unsafe { Out::new(attributes) }?;
        out.set((&file(handle)?.file.attributes()?).into());
        Ok(())
    })
}

/// The attributes of the object at a path. `flags`: 0 or DAP_NO_FOLLOW.
///
/// Threads: any.
///
/// # Safety
/// `path` is a text or null, `attributes` null or good for one struct.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dap_mount_stat(
    handle: dap_mount_t,
    path: *const c_char,
    flags: u32,
    attributes: *mut dap_attributes_t,
) -> i32 {
    call_plainly(|| {
        let mounted = mounted(handle)?;
        // SAFETY: as the caller promises.
        let (out, path) = unsafe { (Out::new(attributes)?, mounted.path(path)?) };
        out.set((&mounted.mount.resolve(&path, follow(flags)?)?.attributes).into());
        Ok(())
    })
}

/// Makes a directory.
///
/// Threads: any.
///
/// # Safety
/// `path` is a text or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dap_mount_mkdir(
    handle: dap_mount_t,
    path: *const c_char,
    mode: u32,
) -> i32 {
    call_plainly(|| {
        let mounted = mounted(handle)?;
        // SAFETY: as the caller promises.
        let path = unsafe { mounted.path(path) }?;
        if mode > 0o7777 {
            return Err(invalid("a mode has bits beyond 07777"));
        }
        let place = mounted.mount.resolve_new_directory(&path)?;
        let attributes = SetAttributes { mode: Some(mode), ..SetAttributes::default() };
        Ok(mounted.mount.mkdir(&place.dir, &place.name, &attributes).map(drop)?)
    })
}

/// Removes a name other than a directory's.
///
/// Threads: any.
///
/// # Safety
/// `path` is a text or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dap_mount_remove(handle: dap_mount_t, path: *const c_char) -> i32 {
    call_plainly(|| {
        let mounted = mounted(handle)?;
        // SAFETY: as the caller promises.
        let path = unsafe { mounted.path(path) }?;
        let place = mounted.mount.resolve_parent(&path)?;
        Ok(mounted.mount.remove(&place.dir, &place.name)?)
    })
}

/// Removes an empty directory.
///
/// Threads: any.
///
/// # Safety
/// `path` is a text or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dap_mount_rmdir(handle: dap_mount_t, path: *const c_char) -> i32 {
    call_plainly(|| {
        let mounted = mounted(handle)?;
        // SAFETY: as the caller promises.
        let path = unsafe { mounted.path(path) }?;
        let place = mounted.mount.resolve_parent(&path)?;
        Ok(mounted.mount.rmdir(&place.dir, &place.name)?)
    })
}

/// Renames an object, and replaces a target of the same kind.
///
/// Threads: any.
///
/// # Safety
/// `from` and `to` are texts or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dap_mount_rename(
    handle: dap_mount_t,
    from: *const c_char,
    to: *const c_char,
) -> i32 {
    call_plainly(|| {
        let mounted = mounted(handle)?;
        // SAFETY: as the caller promises.
        let (from, to) = unsafe { (mounted.path(from)?, mounted.path(to)?) };
        let (from, to) = mounted.mount.resolve_rename(&from, &to)?;
        Ok(mounted.mount.rename(&from.dir, &from.name, &to.dir, &to.name)?)
    })
}

/// Begins to list the directory at `path`.
///
/// Threads: any.
///
/// # Safety
/// `path` is a text or null, `directory` null or good for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dap_mount_opendir(
    handle: dap_mount_t,
    path: *const c_char,
    directory: *mut dap_mount_dir_t,
) -> i32 {
    call_plainly(|| {
        let mounted = mounted(handle)?;
        // SAFETY: as the caller promises.
        let (out, path) = unsafe { (Out::new(directory)?, mounted.path(path)?) };
        let found = mounted.mount.resolve(&path, Follow::Yes)?;
        if !found.attributes.is_directory() {
            return Err(Failure::new(DAP_E_NOTDIR, "the object is no directory"));
        }
        let listing = MountedDirectory(Mutex::new(mounted.mount.read_dir(&found.handle)));
        out.set(dap_mount_dir_t { id: tables().mount_directories.add(listing)? });
        Ok(())
    })
}

/// Returns the next entry, without "." and "..": 1, or 0 at the end. An error ends the listing.
///
/// Threads: any; each entry goes to one of them.
///
/// # Safety
/// `entry` is null or good for one struct.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dap_mount_readdir(
    directory: dap_mount_dir_t,
    entry: *mut dap_entry_t,
) -> i32 {
    call(|| {
        // SAFETY: as the caller promises.
        let out = unsafe { Out::new(entry) }?;
        let listing = tables().mount_directories.get(directory.id)?;
        let next = listing.0.lock().next();
        let Some(found) = next.transpose()? else { return Ok(0) };
        out.set(dap_entry_t::of(&found.name, found.attributes.as_ref().map(Into::into))?);
        Ok(1)
    }) as i32
}

/// Ends a listing.
///
/// Threads: DAP_E_BUSY while another thread is in a call that names it.
#[unsafe(no_mangle)]
pub extern "C" fn dap_mount_closedir(directory: dap_mount_dir_t) -> i32 {
    call_plainly(|| tables().mount_directories.remove(directory.id, |_| Ok(())).map(drop))
}
