//! Directory reads of programs: streams of `opendir`, and `getdents64`.
//!
//! Invariants
//! * A stream of ours begins with a mark that no stream of the C library begins with: that has its
//!   descriptor there, which is a small number.

use crate::attributes::entry_type;
use crate::descriptor::Kind;
use crate::failure::{Errno, Result};
use crate::limits::DIRECTORY_ENTRIES_MAX;
use crate::session;
use crate::table::{self, Description};
use dafs_client::{DirEntry, Status};
use libc::{c_int, c_long, dirent64};
use std::sync::Arc;

/// The first word of a stream of ours.
const MARK: u64 = 0xdaf5_d14e_c70a_57e4;

/// The structure behind a `DIR *` of ours.
#[repr(C)]
pub(crate) struct Stream {
    mark: u64,
    fd: c_int,
    at: usize,
    entries: Option<Arc<Vec<DirEntry>>>,
    current: dirent64,
}

/// All entries of a directory. The entries "." and ".." are made here and come first.
fn list(description: &Description) -> Result<Arc<Vec<DirEntry>>> {
    if description.record.kind != Kind::Directory {
        return Err(Errno(libc::ENOTDIR));
    }
    let client = session::client(description.record.mount)?;
    let handle = &description.record.handle;
    // The kernel reports a removed directory as empty.
    let own = client.attributes(handle).map_err(|error| match error.status() {
        Some(Status::Stale) => Errno(libc::ENOENT),
        _ => error.into(),
    })?;
    // The parent of the server's root is the root itself.
    let above = client.parent(handle).and_then(|parent| client.attributes(&parent));
    let above = above.unwrap_or_else(|_| own.clone());
    let mut entries = vec![
        DirEntry { name: b".".to_vec(), attributes: Some(own) },
        DirEntry { name: b"..".to_vec(), attributes: Some(above) },
    ];
    for entry in client.read_dir(handle) {
        if entries.len() >= DIRECTORY_ENTRIES_MAX {
            return Err(Errno(libc::EOVERFLOW));
        }
        entries.push(entry?);
    }
    Ok(Arc::new(entries))
}

fn number(entry: &DirEntry) -> u64 {
    // Zero would mark a deleted entry.
    entry.attributes.as_ref().map_or(1, |attributes| attributes.file_id.max(1))
}

fn kind(entry: &DirEntry) -> u8 {
    entry.attributes.as_ref().map_or(libc::DT_UNKNOWN, |attributes| entry_type(attributes.kind))
}

impl Stream {
    /// The stream, if this library has made it.
    ///
    /// # Safety
    /// `stream` is one of the C library's or ours, not closed yet, and used by one thread at a
    /// time.
    pub(crate) unsafe fn of<'a>(stream: *mut libc::DIR) -> Option<&'a mut Self> {
        let ours = stream.cast::<Self>();
        if ours.is_null() {
            return None;
        }
        // SAFETY: either kind is longer than the mark and aligned for it.
        if unsafe { stream.cast::<u64>().read() } != MARK {
            return None;
        }
        // SAFETY: it has our mark, so it is ours.
        Some(unsafe { &mut *ours })
    }

    pub(crate) fn open(fd: c_int) -> Result<*mut libc::DIR> {
        let description = table::get(fd).ok_or(Errno(libc::EBADF))?;
        if description.record.kind != Kind::Directory {
            return Err(Errno(libc::ENOTDIR));
        }
        // SAFETY: all zero is a valid value of this plain structure.
        let current = unsafe { std::mem::zeroed() };
        let stream = Self { mark: MARK, fd, at: 0, entries: None, current };
        Ok(Box::into_raw(Box::new(stream)).cast())
    }

    /// Closes a stream; returns its descriptor, which is still open.
    ///
    /// # Safety
    /// As for [`Stream::of`]; it is ours and is not used afterwards.
    pub(crate) unsafe fn end(stream: *mut libc::DIR) -> c_int {
        // SAFETY: it came out of a box, and the caller gives it back.
        let mut stream = unsafe { Box::from_raw(stream.cast::<Self>()) };
        stream.mark = 0;
        stream.fd
    }

    pub(crate) fn fd(&self) -> c_int {
        self.fd
    }

    pub(crate) fn tell(&self) -> c_long {
        self.at as c_long
    }

    pub(crate) fn seek(&mut self, at: c_long) {
        self.at = usize::try_from(at).unwrap_or(0);
        if self.at == 0 {
            // rewinddir(3) requires a fresh listing.
            self.entries = None;
        }
    }

    /// The next entry; null at the end.
    pub(crate) fn next(&mut self) -> Result<*mut dirent64> {
        let entries = match &self.entries {
            Some(entries) => entries.clone(),
            None => {
                let description = table::get(self.fd).ok_or(Errno(libc::EBADF))?;
                let found = match list(&description) {
                    // The C library treats this as the end, too.
                    Err(Errno(libc::ENOENT)) => Arc::default(),
                    found => found?,
                };
                self.entries.insert(found).clone()
            }
        };
        let Some(entry) = entries.get(self.at) else { return Ok(std::ptr::null_mut()) };
        self.at += 1;
        let current = &mut self.current;
        current.d_ino = number(entry);
        current.d_off = self.at as i64;
        current.d_type = kind(entry);
        current.d_reclen = size_of::<dirent64>() as u16;
        // A name has at most 255 bytes; the client checks that when it receives it.
        let count = entry.name.len().min(current.d_name.len() - 1);
        for (to, from) in current.d_name.iter_mut().zip(&entry.name[..count]) {
            *to = *from as libc::c_char;
        }
        current.d_name[count] = 0;
        Ok(current)
    }
}

/// Fills `target` as `getdents64` does, from the entry at the descriptor's offset.
pub(crate) fn fill(description: &Description, fd: c_int, target: &mut [u8]) -> Result<usize> {
    const NAME_AT: usize = std::mem::offset_of!(dirent64, d_name);
    let _held = description.offset.lock();
    let start = usize::try_from(table::seek(description, fd, 0, libc::SEEK_CUR)?).unwrap_or(0);
    let known = description.entries.lock().clone().filter(|_| start != 0);
    let entries = match known {
        Some(entries) => entries,
        None => {
            let entries = list(description)?;
            *description.entries.lock() = Some(entries.clone());
            entries
        }
    };
    let (mut at, mut used) = (start, 0);
    while let Some(entry) = entries.get(at) {
        let length = (NAME_AT + entry.name.len() + 1).next_multiple_of(8);
        let Some(room) = target.get_mut(used..used + length) else { break };
        room.fill(0);
        room[..8].copy_from_slice(&number(entry).to_ne_bytes());
        room[8..16].copy_from_slice(&(at as i64 + 1).to_ne_bytes());
        room[16..18].copy_from_slice(&(length as u16).to_ne_bytes());
        room[18] = kind(entry);
        room[NAME_AT..NAME_AT + entry.name.len()].copy_from_slice(&entry.name);
        used += length;
        at += 1;
    }
    if used == 0 && at < entries.len() {
        return Err(Errno(libc::EINVAL));
    }
    let _ = table::seek(description, fd, at as i64, libc::SEEK_SET);
    Ok(used)
}
