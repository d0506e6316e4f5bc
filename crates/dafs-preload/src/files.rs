//! Opening, reading and writing.
//!
//! Invariants
//! * The file offset is that of the descriptor, in the kernel. A thread that reads and then sets it
//!   holds the description's lock in between. Processes that share an offset are not synchronised.

use crate::config;
use crate::descriptor::{self, Kind, Record, kernel};
use crate::failure::{Errno, Result};
use crate::life;
use crate::limits::{COPY_BYTES_MAX, IO_BYTES_MAX, TEMPORARY_TRIES_MAX};
use crate::location::{Last, Location};
use crate::table::{self, Description};
use crate::{attributes, locks, names, report, session, streams};
use dafs_client::posix;
use dafs_client::{Create, Error, File, FileHandle, Follow, OpenOptions, Stability, Status};
use dafs_mem::{CheckedSlice, Site};
use libc::{c_int, mode_t};
use std::sync::Arc;

/// Opens a place as `open` does.
pub(crate) fn open(location: &Location, flags: c_int, mode: mode_t) -> Result<c_int> {
    let flags = checked(flags)?;
    let number = session::number(location.mount);
    let client = session::client(number)?;
    let start = names::start(&client, location);
    let made = |kind, handle, file| {
        // The shown path resolves `..` lexically, which is wrong behind a symbolic link.
        let real = (kind == Kind::Directory && location.climbs()).then(|| names::real(location));
        let shown = match real {
            Some(Ok(names::Real { shown, .. })) => shown,
            _ => location.shown.clone(),
        };
        give_out(Record { mount: number, kind, handle, flags, shown }, flags, file)
    };
    if flags & libc::O_TMPFILE == libc::O_TMPFILE {
        let (_, dir) = names::find(location, Follow::Yes)?;
        let file =
            client.create_unlinked(&dir.handle, &open_options(flags).mode(names::masked(mode)))?;
        return made(Kind::File, *file.handle(), Some(file));
    }
    let creates = flags & libc::O_CREAT != 0 && flags & libc::O_PATH == 0;
    if creates && location.wants_directory() {
        // An open neither creates a directory nor a file of such a name (POSIX 4.13).
        let has_name = location.last() == Last::Name;
        if has_name {
            names::find(&location.parent(), Follow::Yes)?;
        } else if location.start_itself().is_none() {
            names::find(location, Follow::Yes)?;
        }
        let is_to_be_new = flags & libc::O_EXCL != 0 && !has_name;
        return Err(Errno(if is_to_be_new { libc::EEXIST } else { libc::EISDIR }));
    }
    let wants_directory = flags & libc::O_DIRECTORY != 0 || location.wants_directory();
    if flags & libc::O_PATH != 0 || (wants_directory && !creates) {
        let follow = if flags & libc::O_NOFOLLOW == 0 { Follow::Yes } else { Follow::No };
        let (_, found) = match (names::find(location, follow), location.start_itself()) {
            // A removed directory is still there for a path that starts in it.
            (Err(Errno(libc::ENOENT)), Some(handle)) => {
                return made(Kind::Directory, handle, None);
            }
            (found, _) => found?,
        };
        if wants_directory && !found.attributes.is_directory() {
            return Err(Errno(libc::ENOTDIR));
        }
        let kind = match found.attributes.is_directory() {
            true => Kind::Directory,
            false => Kind::Place,
        };
        if changes(flags) {
            return Err(Errno(libc::EISDIR));
        }
        return made(kind, found.handle, None);
    }
    // A truncated file is opened for writing, whatever the access mode.
    let mut how = match flags & (libc::O_TRUNC | libc::O_ACCMODE) {
        libc::O_TRUNC => OpenOptions::read_write(),
        _ => open_options(flags),
    };
    how = how.truncate(flags & libc::O_TRUNC != 0);
    if creates {
        let create = if flags & libc::O_EXCL != 0 { Create::New } else { Create::IfMissing };
        how = how.create(create).mode(names::masked(mode));
    }
    let opened = match flags & libc::O_NOFOLLOW {
        0 => client.open_from(&start, &location.path, &how),
        _ => {
            let place = names::place(&client, location, |_| libc::EISDIR)?;
            client.open_at(&place.dir, &place.name, &how)
        }
    };
    match opened {
        Ok(file) => made(Kind::File, *file.handle(), Some(file)),
        Err(error) if is_directory(&error) && !changes(flags) && flags & libc::O_CREAT == 0 => {
            let (_, found) = names::find(location, Follow::Yes)?;
            match found.attributes.is_directory() {
                true => made(Kind::Directory, found.handle, None),
                false => Err(error.into()),
            }
        }
        Err(error) => Err(names::missed(location, error)),
    }
}

/// Checks flags for conflicts, as Linux does before it resolves the path. Returns the flags that
/// count.
fn checked(flags: c_int) -> Result<c_int> {
    if flags & libc::O_PATH != 0 {
        return Ok(flags & (libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_CLOEXEC));
    }
    let temporary = flags & libc::O_TMPFILE == libc::O_TMPFILE;
    let both = libc::O_CREAT | libc::O_DIRECTORY;
    let is_wrong = flags & both == both
        || temporary && flags & libc::O_ACCMODE == libc::O_RDONLY
        || !temporary && flags & libc::O_TMPFILE & !libc::O_DIRECTORY != 0;
    if is_wrong { Err(Errno(libc::EINVAL)) } else { Ok(flags) }
}

/// True if the open allows changes, which no directory does.
fn changes(flags: c_int) -> bool {
    flags & libc::O_PATH == 0 && flags & (libc::O_ACCMODE | libc::O_TRUNC) != libc::O_RDONLY
}

/// The options for the flags of an open.
fn open_options(flags: c_int) -> OpenOptions {
    posix::open_options(flags).direct(flags & libc::O_DIRECT != 0)
}

/// True if an open may have failed because the path names a directory. The root has no name of its
/// own.
fn is_directory(error: &Error) -> bool {
    matches!(error, Error::Argument(_)) || error.status() == Some(Status::IsDir)
}

/// Opens the object of a descriptor again, as by its name below `/proc/self/fd`.
pub(crate) fn open_again(description: &Description, flags: c_int) -> Result<c_int> {
    let old = &description.record;
    let flags = checked(flags & !(libc::O_CREAT | libc::O_EXCL))?;
    let record = Record { flags, ..old.clone() };
    if old.kind == Kind::Directory && changes(flags) {
        return Err(Errno(libc::EISDIR));
    }
    if old.kind != Kind::File {
        return give_out(record, flags, None);
    }
    let file = session::client(old.mount)?.open_handle(&old.handle, &open_options(flags))?;
    if flags & libc::O_TRUNC != 0 {
        file.set_size(0)?;
    }
    give_out(record, flags, Some(file))
}

fn give_out(record: Record, flags: c_int, file: Option<File>) -> Result<c_int> {
    let config = config::get().ok_or(Errno(libc::EIO))?;
    let fd = descriptor::make(config, &record, flags)?;
    let description = Description::new(record, kernel::inode(fd)?, file.map(Arc::new));
    table::put(fd, description)?;
    streams::replaced(fd);
    Ok(fd)
}

/// Makes a file whose name is `template`, with random letters for the last six before `suffix`
/// bytes.
pub(crate) fn open_temporary(
    template: &mut [u8],
    suffix: usize,
    mut make: impl FnMut(&[u8]) -> Result<c_int>,
) -> Result<c_int> {
    const LETTERS: &[u8; 62] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
    let invalid = Errno(libc::EINVAL);
    let end = template.len().checked_sub(suffix).ok_or(invalid)?;
    let start = end.checked_sub(6).ok_or(invalid)?;
    if &template[start..end] != b"XXXXXX" {
        return Err(invalid);
    }
    for _ in 0..TEMPORARY_TRIES_MAX {
        let mut random = [0_u8; 6];
        // SAFETY: fills the array.
        unsafe { libc::getrandom(random.as_mut_ptr().cast(), random.len(), 0) };
        for (letter, random) in template[start..end].iter_mut().zip(random) {
            *letter = LETTERS[usize::from(random) % LETTERS.len()];
        }
        match make(template) {
            Err(Errno(libc::EEXIST)) => {}
            other => return other,
        }
    }
    Err(Errno(libc::EEXIST))
}

impl Description {
    /// The file, opened at the server now if this process has not used it yet.
    pub(crate) fn file(&self) -> Result<Arc<File>> {
        match self.record.kind {
            Kind::File => {}
            Kind::Directory => return Err(Errno(libc::EISDIR)),
            Kind::Place => return Err(Errno(libc::EBADF)),
        }
        let mut file = self.file.lock();
        if let Some(file) = &*file {
            return Ok(file.clone());
        }
        let client = session::client(self.record.mount)?;
        let opened =
            Arc::new(client.open_handle(&self.record.handle, &open_options(self.record.flags))?);
        *file = Some(opened.clone());
        Ok(opened)
    }

    fn stability(&self) -> Stability {
        let flags = self.record.flags;
        match (flags & libc::O_SYNC == libc::O_SYNC, flags & libc::O_DSYNC != 0) {
            (true, _) => Stability::FileSync,
            (_, true) => Stability::DataSync,
            _ => Stability::Unstable,
        }
    }

    pub(crate) fn size(&self) -> Result<u64> {
        let client = session::client(self.record.mount)?;
        Ok(client.attributes(&self.record.handle)?.size)
    }

    fn must_read(&self) -> Result<()> {
        match self.record.kind {
            Kind::Directory => Err(Errno(libc::EISDIR)),
            _ if self.record.reads() => Ok(()),
            _ => Err(Errno(libc::EBADF)),
        }
    }

    fn must_write(&self) -> Result<()> {
        if self.record.writes() { Ok(()) } else { Err(Errno(libc::EBADF)) }
    }

    pub(crate) fn read_at(&self, target: CheckedSlice<'_>, offset: u64) -> Result<usize> {
        self.must_read()?;
        let read = self.file()?.read_checked(first(target, IO_BYTES_MAX), offset)?;
        report::read(read);
        Ok(read)
    }

    pub(crate) fn write_at(&self, source: CheckedSlice<'_>, offset: u64) -> Result<usize> {
        self.must_write()?;
        let source = first(source, IO_BYTES_MAX);
        let written = self.file()?.write_checked(source, offset, self.stability())?;
        report::written(written);
        Ok(written)
    }

    /// Appends at the current end; returns the number of bytes and the new end of the file.
    fn append(&self, source: CheckedSlice<'_>) -> Result<(usize, u64)> {
        self.must_write()?;
        let file = self.file()?;
        // The server makes an append stable at once.
        let stability = match self.stability() {
            Stability::Unstable => Stability::DataSync,
            other => other,
        };
        let mut count = source.len().min(COPY_BYTES_MAX);
        let at = loop {
            match file.append_checked(first(source, count), stability) {
                // Writes less, as a write may.
                Err(error) if error.status() == Some(Status::WriteTooBig) && count > 4096 => {
                    count /= 2;
                }
                Err(error) if error.status() == Some(Status::NotSupp) => {
                    let end = self.size()?;
                    file.write_checked(first(source, count), end, self.stability())?;
                    break end;
                }
                other => break other?,
            }
        };
        report::written(count);
        Ok((count, at + count as u64))
    }

    /// Reads into several buffers from the offset of `fd`, and moves it.
    pub(crate) fn read(&self, fd: c_int, targets: &[CheckedSlice<'_>]) -> Result<usize> {
        self.must_read()?;
        let _held = self.offset.lock();
        let start = table::seek(self, fd, 0, libc::SEEK_CUR)?;
        let read = self.read_vectored(targets, start)?;
        self.moved_to(fd, start + read as i64);
        Ok(read)
    }

    pub(crate) fn read_vectored(&self, targets: &[CheckedSlice<'_>], offset: i64) -> Result<usize> {
        self.must_read()?;
        let offset = u64::try_from(offset).map_err(|_| Errno(libc::EINVAL))?;
        let mut all = 0;
        for target in targets {
            match self.read_at(*target, offset + all as u64) {
                Ok(read) => {
                    all += read;
                    if read < target.len() {
                        break;
                    }
                }
                // Bytes that earlier reads returned count.
                Err(_) if all != 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(all)
    }

    /// Writes several buffers at the offset of `fd`, or at the end, and moves it.
    pub(crate) fn write(&self, fd: c_int, sources: &[CheckedSlice<'_>]) -> Result<usize> {
        self.must_write()?;
        let _held = self.offset.lock();
        if self.appends(fd)? {
            return self.append_vectored(fd, sources);
        }
        let start = table::seek(self, fd, 0, libc::SEEK_CUR)?;
        let written = self.write_vectored(sources, start)?;
        self.moved_to(fd, start + written as i64);
        Ok(written)
    }

    /// Appends several buffers: atomically if they are short, in pieces otherwise.
    fn append_vectored(&self, fd: c_int, sources: &[CheckedSlice<'_>]) -> Result<usize> {
        let all: usize = sources.iter().map(CheckedSlice::len).sum();
        let mut done = 0;
        loop {
            let mut whole;
            let source = match sources {
                [one] => one.slice(done, one.len() - done).unwrap_or(*one),
                several => {
                    whole = gathered(several, done, COPY_BYTES_MAX)?;
                    CheckedSlice::from_mut(&mut whole)
                }
            };
            let (written, end) = match self.append(source) {
                // Bytes that earlier writes wrote count.
                Err(_) if done != 0 => return Ok(done),
                other => other?,
            };
            self.moved_to(fd, end as i64);
            done += written;
            if done >= all || written == 0 {
                return Ok(done);
            }
        }
    }

    /// True if writes go to the end.
    pub(crate) fn appends(&self, fd: c_int) -> Result<bool> {
        Ok(kernel::control(fd, libc::F_GETFL, 0)? & libc::O_APPEND != 0)
    }

    /// Sets the offset after a transfer. It ignores a failure: all descriptors have been closed
    /// meanwhile.
    fn moved_to(&self, fd: c_int, offset: i64) {
        let _ = table::seek(self, fd, offset, libc::SEEK_SET);
    }

    pub(crate) fn write_vectored(
        &self,
        sources: &[CheckedSlice<'_>],
        offset: i64,
    ) -> Result<usize> {
        self.must_write()?;
        let offset = u64::try_from(offset).map_err(|_| Errno(libc::EINVAL))?;
        let mut all = 0;
        for source in sources {
            match self.write_at(*source, offset + all as u64) {
                Ok(written) => all += written,
                Err(_) if all != 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(all)
    }

    pub(crate) fn seek(&self, fd: c_int, offset: i64, whence: c_int) -> Result<i64> {
        let _held = self.offset.lock();
        let invalid = Errno(libc::EINVAL);
        let target = match whence {
            libc::SEEK_SET => offset,
            libc::SEEK_CUR => table::seek(self, fd, 0, whence)?
                .checked_add(offset)
                .ok_or(Errno(libc::EOVERFLOW))?,
            _ if self.record.kind == Kind::Directory => return Err(invalid),
            libc::SEEK_END => {
                let size = i64::try_from(self.size()?).map_err(|_| Errno(libc::EOVERFLOW))?;
                size.checked_add(offset).ok_or(Errno(libc::EOVERFLOW))?
            }
            libc::SEEK_DATA | libc::SEEK_HOLE => {
                let nowhere = Errno(libc::ENXIO);
                let (file, offset) = (self.file()?, u64::try_from(offset).map_err(|_| nowhere)?);
                let found = match whence {
                    libc::SEEK_DATA => file.seek_data(offset)?,
                    _ => file.seek_hole(offset)?,
                };
                i64::try_from(found.ok_or(nowhere)?).map_err(|_| Errno(libc::EOVERFLOW))?
            }
            _ => return Err(invalid),
        };
        if target < 0 {
            return Err(invalid);
        }
        table::seek(self, fd, target, libc::SEEK_SET)
    }

    pub(crate) fn set_size(&self, size: i64) -> Result<()> {
        let size = u64::try_from(size).map_err(|_| Errno(libc::EINVAL))?;
        if !self.record.writes() {
            return Err(Errno(libc::EINVAL));
        }
        Ok(self.file()?.set_size(size)?)
    }

    pub(crate) fn sync(&self) -> Result<()> {
        match self.record.kind {
            // Commits all writes, also those of others: POSIX makes the file stable, not one
            // writer's data.
            Kind::File => Ok(self.file()?.commit(0, 0)?),
            // The server has made names stable before it answered.
            Kind::Directory => Ok(()),
            Kind::Place => Err(Errno(libc::EBADF)),
        }
    }
}

/// Makes the open files of a prefix stable.
pub(crate) fn sync_all(mount: usize) -> Result<()> {
    let of_it = |open: &Arc<Description>| open.record.mount == mount && open.record.writes();
    table::all().iter().filter(|open| of_it(open)).try_for_each(|open| open.sync())
}

/// Copies up to `bytes_max` bytes of several buffers, from offset `skipped`, into one.
fn gathered(sources: &[CheckedSlice<'_>], skipped: usize, bytes_max: usize) -> Result<Vec<u8>> {
    let (mut whole, mut skipped) = (Vec::new(), skipped);
    for source in sources {
        let start = skipped.min(source.len());
        skipped -= start;
        let count = (bytes_max - whole.len()).min(source.len() - start);
        if let Some(part) = source.slice(start, count) {
            whole.extend_from_slice(&part.to_vec(Site::ClientStaging).map_err(Error::from)?);
        }
    }
    Ok(whole)
}

/// The first `bytes` of memory, or all of it.
fn first(memory: CheckedSlice<'_>, bytes: usize) -> CheckedSlice<'_> {
    memory.slice(0, bytes).unwrap_or(memory)
}

/// Closes one descriptor.
pub(crate) fn close(fd: c_int) -> Result<()> {
    streams::restored(fd);
    let ((), before) = table::exchange(fd, None, || {
        kernel::close(fd);
        Ok(())
    })?;
    let description = before.ok_or(Errno(libc::EBADF))?;
    locks::closed(&description.record);
    life::last_use(description)
}

/// Notes a duplicate: the kernel has made `new`, which was free, a duplicate of `old`.
pub(crate) fn duplicated(old: &Arc<Description>, new: c_int) -> Result<c_int> {
    if let Err(errno) = table::put(new, old.clone()) {
        kernel::close(new);
        return Err(errno);
    }
    streams::replaced(new);
    Ok(new)
}

/// Cleans up after a descriptor that represented `before` has been overwritten.
pub(crate) fn overwritten(before: Option<Arc<Description>>) {
    if let Some(description) = before {
        locks::closed(&description.record);
        // There is no caller to report an error to.
        let _ = life::last_use(description);
    }
}

/// Opens a file and truncates it, by its name.
pub(crate) fn truncate(location: &Location, size: i64) -> Result<()> {
    let size = u64::try_from(size).map_err(|_| Errno(libc::EINVAL))?;
    if location.wants_directory() {
        names::find(location, Follow::Yes)?;
        return Err(Errno(libc::EISDIR));
    }
    let client = session::client(session::number(location.mount))?;
    let start = names::start(&client, location);
    let file = client.open_from(&start, &location.path, &OpenOptions::write());
    Ok(file.map_err(|error| names::missed(location, error))?.set_size(size)?)
}

/// Opens a file again for locks, with the widest access granted, under the name of this owner.
pub(crate) fn open_for_locks(mount: usize, handle: &FileHandle, owner: u64) -> Result<File> {
    let client = session::client(mount)?;
    for how in [OpenOptions::read_write(), OpenOptions::read()] {
        if let Ok(file) = client.open_as(handle, &how, owner) {
            return Ok(file);
        }
    }
    Ok(client.open_as(handle, &OpenOptions::write(), owner)?)
}

/// The attributes of a descriptor's object.
pub(crate) fn stat(description: &Description) -> Result<libc::stat> {
    let client = session::client(description.record.mount)?;
    Ok(attributes::stat(&client.attributes(&description.record.handle)?))
}
