//! Open files.
//!
//! Invariants
//! * Data that the server has acknowledged as unstable is either committed under the verifier that
//!   it was written under, or its loss is reported.

use super::attributes::{Attributes, SetAttributes};
use super::error::{MountError, Result};
use super::open::{Direction, Keeper, Moved, Open, Transfer};
use super::options::OpenOptions;
use super::path::{Follow, component};
use super::pending::{Parts, PendingRead, PendingWrite, check_not_empty, least_stable};
use super::reader::Reader;
use super::url::NfsVersion;
use super::{Create, Handle, Mount};
use dafs_mem::Mutex;
use dafs_rpc::client::MemorySlice;
use dafs_wire::nfs4::{SeekWhat, StableHow, Status};
use dafs_wire::path::SplitPath;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// An open file. Clones share it; it is closed with the last of them, or by [`File::close`].
#[derive(Debug, Clone)]
pub struct File {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    mount: Mount,
    open: Arc<Open>,
    closed: AtomicBool,
    unstable: Mutex<Unstable>,
}

/// The record of unstable data that has not been committed.
#[derive(Debug, Default)]
struct Unstable {
    /// The verifier under which each server took it.
    server: Option<[u8; 8]>,
    data_servers: Option<[u8; 8]>,
    /// The combined verifier that the caller knows.
    told: [u8; 8],
}

impl Unstable {
    fn is_empty(&self) -> bool {
        self.server.is_none() && self.data_servers.is_none()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if !self.closed.load(Ordering::Relaxed) {
            // There is no caller to report an error to.
            let _ = self.mount.protocol().close(&self.open);
        }
    }
}

impl Mount {
    /// Opens the file at `path`; creates it if the options say so. Symbolic links are followed.
    ///
    /// # Errors
    /// The server's answer.
    pub fn open(&self, path: &[u8], options: &OpenOptions) -> Result<File> {
        let split = SplitPath::of(path);
        if options.create != Create::No && split.wants_directory && !split.ends_in_dots() {
            // OPEN cannot create a directory, and a directory is no file.
            self.resolve(split.parent, Follow::Yes)?;
            return Err(MountError::Refused { operation: "OPEN", status: Status::IsDir });
        }
        if let Some(opened) = self.open_by_name(path, options) {
            return opened;
        }
        // The last component may be a link, and an open by name does not follow it.
        match (options.create, self.resolve(path, Follow::Yes)) {
            (Create::No | Create::IfMissing, Ok(found)) => {
                let options = OpenOptions { create: Create::No, ..*options };
                self.open_handle(&found.handle, &options)
            }
            (Create::No, Err(error)) => Err(error),
            (_, Err(error)) if error.status() != Some(Status::NoEnt) => Err(error),
            (Create::New, _) | (_, Err(_)) => {
                let place = self.resolve_parent(path)?;
                self.open_at(&place.dir, &place.name, options)
            }
        }
    }

    /// Opens a file by its name, without a lookup of the name. `None` if the server refuses that, and may
    /// permit an open of what a lookup finds: a link, or an existing file where none can be created.
    /// NFSv3 has no opens, and its CREATE may need a right that an existing file does not.
    fn open_by_name(&self, path: &[u8], options: &OpenOptions) -> Option<Result<File>> {
        let split = SplitPath::of(path);
        if self.version() == NfsVersion::V3 || split.wants_directory || split.name.is_empty() {
            return None;
        }
        let place = match self.resolve_parent(path) {
            Ok(place) => place,
            Err(error) => return Some(Err(error)),
        };
        match self.open_at(&place.dir, &place.name, options) {
            Err(error) if error.status().is_some_and(|why| !is_final(why, options.create)) => None,
            opened => Some(opened),
        }
    }

    /// Opens a file by its name in a directory; creates it if the options say so.
    ///
    /// # Errors
    /// The server's answer; SYMLINK for a link.
    pub fn open_at(&self, dir: &Handle, name: &[u8], options: &OpenOptions) -> Result<File> {
        Ok(self.file(self.protocol().open(dir, component(name)?, options)?))
    }

    /// Opens a file by its handle. It is not created.
    ///
    /// # Errors
    /// The server's answer.
    pub fn open_handle(&self, file: &Handle, options: &OpenOptions) -> Result<File> {
        if options.create != Create::No {
            return Err(MountError::Argument("a file cannot be made from a handle"));
        }
        Ok(self.file(self.protocol().open_handle(file, options)?))
    }

    fn file(&self, open: Arc<Open>) -> File {
        let closed = AtomicBool::new(false);
        let mount = self.clone();
        File { inner: Arc::new(Inner { mount, open, closed, unstable: Mutex::default() }) }
    }
}

/// True if an open of what a lookup finds would be refused as well.
fn is_final(why: Status, create: Create) -> bool {
    match create {
        // The name must not be there.
        Create::New => true,
        Create::No if why == Status::NoEnt => true,
        // The client has waited already.
        Create::No | Create::IfMissing => matches!(why, Status::Delay | Status::Grace),
    }
}

impl File {
    /// The mount that it belongs to.
    pub fn mount(&self) -> &Mount {
        &self.inner.mount
    }

    /// Its handle.
    pub fn handle(&self) -> &Handle {
        &self.inner.open.handle
    }

    /// Its attributes.
    ///
    /// # Errors
    /// The server's answer.
    pub fn attributes(&self) -> Result<Attributes> {
        self.mount().attributes(self.handle())
    }

    /// Changes attributes.
    ///
    /// # Errors
    /// The server's answer.
    pub fn set_attributes(&self, new: &SetAttributes) -> Result<()> {
        if new.is_empty() {
            return Ok(());
        }
        self.mount().protocol().set_attributes(self.handle(), Some(&self.inner.open), new)
    }

    /// Reads from `offset` into memory, as much as it holds.
    ///
    /// # Errors
    /// The server's answer.
    pub fn read(&self, memory: MemorySlice, offset: u64) -> Result<usize> {
        self.submit_read(memory, offset)?.wait()
    }

    /// Begins to read from `offset` into memory, as much as it holds.
    ///
    /// Any number of transfers may be started before the first is waited for; when the server takes
    /// no more at a time, starting another waits for the oldest.
    ///
    /// # Errors
    /// [`MountError::Argument`]; [`MountError::Lost`] or [`MountError::OpenLost`] when recovery
    /// fails.
    pub fn submit_read(&self, memory: MemorySlice, offset: u64) -> Result<PendingRead> {
        let parts = self.submit(memory, offset, Direction::Read)?;
        Ok(PendingRead { file: self.clone(), parts })
    }

    /// Writes memory at `offset`.
    ///
    /// # Errors
    /// As [`PendingWrite::wait`].
    pub fn write(
        &self,
        memory: MemorySlice,
        offset: u64,
        stable: StableHow,
    ) -> Result<super::Written> {
        self.submit_write(memory, offset, stable)?.wait()
    }

    /// Starts to write memory at `offset`. The memory must not change until that is over.
    ///
    /// # Errors
    /// As [`File::submit_read`].
    pub fn submit_write(
        &self,
        memory: MemorySlice,
        offset: u64,
        stable: StableHow,
    ) -> Result<PendingWrite> {
        let parts = self.submit(memory, offset, Direction::Write(stable))?;
        Ok(PendingWrite { file: self.clone(), parts, stable })
    }

    /// Commits everything that was written to stable storage.
    ///
    /// # Errors
    /// The server's answer; [`MountError::WritesLost`] when the server has restarted since, so that
    /// data which was acknowledged as unstable may be lost: the caller has to write everything
    /// since the last commit again.
    pub fn commit(&self) -> Result<[u8; 8]> {
        let before = std::mem::take(&mut *self.inner.unstable.lock());
        let at_server = before.server.is_some() || before.is_empty();
        let committed = match self.mount().protocol().commit(self.handle(), at_server) {
            Ok(committed) => committed,
            Err(error) => {
                let mut unstable = self.inner.unstable.lock();
                if unstable.is_empty() {
                    unstable.told = before.told;
                }
                unstable.server = unstable.server.or(before.server);
                unstable.data_servers = unstable.data_servers.or(before.data_servers);
                return Err(error);
            }
        };
        let is_other = |before: Option<[u8; 8]>, now| before.is_some_and(|before| before != now);
        if is_other(before.server, committed.server)
            || is_other(before.data_servers, committed.data_servers)
        {
            return Err(MountError::WritesLost);
        }
        Ok(if before.is_empty() { committed.server } else { before.told })
    }

    /// True while the server has acknowledged data that it may still lose.
    pub fn is_unstable(&self) -> bool {
        !self.inner.unstable.lock().is_empty()
    }

    /// The start of data at `offset` or behind it; `None` if there is none up to the end of the
    /// file. A server that does not report holes reports all as data: before version 4.2 none does.
    ///
    /// # Errors
    /// The server's answer.
    pub fn seek_data(&self, offset: u64) -> Result<Option<u64>> {
        self.seek(offset, SeekWhat::Data)
    }

    /// The start of a hole at `offset` or behind it; the end of the file counts as one. `None` for
    /// an offset there or behind it.
    ///
    /// # Errors
    /// The server's answer.
    pub fn seek_hole(&self, offset: u64) -> Result<Option<u64>> {
        self.seek(offset, SeekWhat::Hole)
    }

    fn seek(&self, offset: u64, what: SeekWhat) -> Result<Option<u64>> {
        let is_hole = what == SeekWhat::Hole;
        let is_dense = match self.mount().protocol().seek(&self.inner.open, offset, what) {
            Ok(None) if is_hole => false,
            Err(error) if error.status() == Some(Status::NotSupp) => true,
            Err(error) if error.status() == Some(Status::Nxio) => return Ok(None),
            other => return other,
        };
        let size = self.attributes()?.size;
        let found = if is_dense && !is_hole { offset } else { size };
        Ok((offset < size).then_some(found))
    }

    /// A reader from `offset` to the end, in pieces of `piece_bytes`. Up to `read_ahead` pieces are
    /// under way while the caller uses one; of short files fewer. With 0 there is no read-ahead.
    ///
    /// # Errors
    /// [`MountError::Memory`].
    pub fn reader(&self, offset: u64, piece_bytes: usize, read_ahead: u32) -> Result<Reader> {
        Reader::new(self.clone(), offset, piece_bytes, read_ahead)
    }

    /// Closes the file. Written data is not committed.
    ///
    /// # Errors
    /// The server's answer; the file is closed anyway.
    pub fn close(self) -> Result<()> {
        if self.inner.closed.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        self.mount().protocol().close(&self.inner.open)
    }

    fn submit(&self, memory: MemorySlice, offset: u64, direction: Direction) -> Result<Parts> {
        check_not_empty(&memory)?;
        if offset.checked_add(memory.len() as u64).is_none() {
            return Err(MountError::Argument("the range goes beyond what a file can hold"));
        }
        let open = self.inner.open.clone();
        self.mount().protocol().begin(Transfer { open, offset, memory, direction })
    }

    /// Its size when it was opened, if that is known.
    pub(crate) fn known_size(&self) -> Option<u64> {
        self.inner.open.known_size()
    }

    /// One transfer within the server's limits, from beginning to end.
    fn transfer(&self, memory: MemorySlice, offset: u64, direction: Direction) -> Result<Moved> {
        let open = self.inner.open.clone();
        let transfer = Transfer { open, offset, memory, direction };
        self.mount().protocol().submit(transfer)?.wait()
    }

    /// Reads the rest after a short read; returns the bytes in all.
    pub(crate) fn read_rest(
        &self,
        memory: &MemorySlice,
        offset: u64,
        first: Moved,
    ) -> Result<usize> {
        let (mut done, mut eof) = (first.bytes, first.eof);
        while !eof && done < memory.len() {
            let Some(rest) = memory.slice(done..memory.len()) else { break };
            let moved = self.transfer(rest, offset + done as u64, Direction::Read)?;
            // Reading nothing before the end of the file would loop for ever.
            eof = moved.eof || moved.bytes == 0;
            done += moved.bytes;
        }
        Ok(done)
    }

    /// Writes the rest after a short write.
    pub(crate) fn write_rest(
        &self,
        memory: &MemorySlice,
        offset: u64,
        stable: StableHow,
        first: Moved,
    ) -> Result<Moved> {
        let mut all = Moved { verifier: self.note(&first)?, ..first };
        while all.bytes < memory.len() {
            if all.bytes == 0 {
                return Err(MountError::WriteZero);
            }
            let Some(rest) = memory.slice(all.bytes..memory.len()) else { break };
            let direction = Direction::Write(stable);
            let moved = self.transfer(rest, offset + all.bytes as u64, direction)?;
            all.verifier = self.note(&moved)?;
            if moved.bytes == 0 {
                return Err(MountError::WriteZero);
            }
            all.bytes += moved.bytes;
            all.stable = least_stable(all.stable, moved.stable);
        }
        Ok(all)
    }

    /// Records the verifier of unstable data; returns the one for the caller. When it has changed,
    /// earlier unstable data is lost, and this write is the first under the new one.
    fn note(&self, moved: &Moved) -> Result<[u8; 8]> {
        if moved.stable != StableHow::Unstable {
            return Ok(moved.verifier);
        }
        let mut unstable = self.inner.unstable.lock();
        let is_first = unstable.is_empty();
        let before = match moved.keeper {
            Keeper::Server => unstable.server.replace(moved.verifier),
            Keeper::DataServers => unstable.data_servers.replace(moved.verifier),
        };
        let is_lost = before.is_some_and(|before| before != moved.verifier);
        if is_first || is_lost {
            unstable.told = moved.verifier;
        }
        if is_lost { Err(MountError::WritesLost) } else { Ok(unstable.told) }
    }
}
