//! Open files.

use crate::attributes::{Attributes, FileHandle, SetAttributes, Stability};
use crate::buffer::IoBuffer;
use crate::cache::{CacheUse, DirectUse, Effect};
use crate::client::Client;
use crate::convert;
use crate::delegation::Granted;
use crate::driver::Driver;
use crate::error::{Error, Result};
use crate::group::{GroupState, OperationId};
use crate::hint::RidingHint;
use crate::layouts::LayoutUse;
use crate::limits::SYMLINKS_FOLLOWED_MAX;
use crate::open::{Create, OpenOptions};
use crate::opened::Opened;
use crate::operations::GroupedKind;
use crate::optimistic::Optimistic;
use crate::outcome::CommitWatch;
use crate::path::{Follow, Place};
use crate::span::Span;
use crate::uncommitted::Uncommitted;
use dafs_mem::CheckedSlice;
use dafs_wire::dafs as wire;
use dafs_wire::dafs::{AccessPattern, Procedure, Reply, Request, StateId, Status, Verifier};
use dafs_wire::path::SplitPath;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Numbers the opens of this process, so that each has an owner of its own and the CLOSE of one
/// never ends another (DAFS 10.1).
pub(crate) static OPENS: AtomicU64 = AtomicU64::new(1);

/// An open file. Dropping it closes it without waiting for the server, unless it uses data servers:
/// then transfers under way there complete before, and the last open of a file commits there, so
/// that the server can learn of it. [`File::close`] reports errors of that.
#[derive(Debug)]
pub struct File {
    opened: Arc<Opened>,
    /// The open's owner at the server.
    owner: u64,
    /// Restarts of the server that the session had seen when the file was opened.
    restarts: u64,
    /// Its share in the client's cache, if there is one.
    cached: Option<CacheUse>,
    closed: bool,
}

impl Client {
    /// Opens the file at `path`, from the root of the server. Symbolic links are followed.
    ///
    /// # Errors
    /// The server's answer.
    pub fn open(&self, path: &[u8], options: &OpenOptions) -> Result<File> {
        self.open_from(&self.root(), path, options)
    }

    /// Opens the file at `path`, from a directory. Symbolic links are followed, except by
    /// [`Create::New`] and [`Create::Exclusive`].
    ///
    /// # Errors
    /// The server's answer.
    pub fn open_from(&self, dir: &FileHandle, path: &[u8], options: &OpenOptions) -> Result<File> {
        let Place { mut dir, mut name } = self.place_to_open(dir, path, options)?;
        for _ in 0..=SYMLINKS_FOLLOWED_MAX {
            match self.open_at(&dir, &name, options) {
                Err(error)
                    if error.status() == Some(Status::Symlink)
                        && matches!(options.create, Create::Never | Create::IfMissing) => {}
                other => return other,
            }
            // The name is a symbolic link: go on at its target, which may not exist yet.
            let text = self.readlink(&self.lookup(&dir, &name)?)?;
            Place { dir, name } = self.place_to_open(&dir, &text, options)?;
        }
        Err(Error::SymlinkLoop(SYMLINKS_FOLLOWED_MAX))
    }

    /// The directory and name of the file at `path`. A path that asks for a directory names no
    /// file: NOTDIR if the object is none, ISDIR if it is one or if it should be created.
    fn place_to_open(&self, dir: &FileHandle, path: &[u8], options: &OpenOptions) -> Result<Place> {
        let split = SplitPath::of(path);
        if !split.name.is_empty() {
            if !split.wants_directory {
                return self.resolve_parent_from(dir, path);
            }
            let is_made = options.create != Create::Never && !split.ends_in_dots();
            self.resolve_from(dir, if is_made { split.parent } else { path }, Follow::Yes)?;
        }
        let is_new = matches!(options.create, Create::New | Create::Exclusive);
        let status = if is_new && split.is_nameless() { Status::Exist } else { Status::IsDir };
        Err(Error::Status { procedure: Procedure::Open, status })
    }

    /// Opens the file called `name` in a directory. A symbolic link is an error: SYMLINK.
    ///
    /// # Errors
    /// The server's answer.
    pub fn open_at(&self, dir: &FileHandle, name: &[u8], options: &OpenOptions) -> Result<File> {
        let path = [crate::names::component(name)?];
        let mut attributes = options.attributes;
        if options.truncate && options.create == Create::IfMissing {
            attributes.size = Some(0);
        }
        let text = convert::OwnerText::new(&attributes);
        let initial = text.attributes(&attributes);
        let create = match options.create {
            Create::Never => None,
            Create::IfMissing => Some(wire::CreateMode::Unchecked { attributes: initial }),
            Create::New => Some(wire::CreateMode::Guarded { attributes: initial }),
            Create::Exclusive => {
                Some(wire::CreateMode::Exclusive { verifier: Verifier(crate::random()) })
            }
        };
        let claim = wire::OpenClaim::Null { dir: *dir, path: wire::Path::new(&path) };
        let file = self.open_claimed(claim, create, options)?;
        // An exclusive create carries its verifier in place of the attributes (DAFS 10.1), and only
        // an unchecked create truncates an existing file.
        let mut after = SetAttributes::default();
        if options.create == Create::Exclusive {
            after = options.attributes;
        }
        if options.truncate && options.create == Create::Never {
            after.size = Some(0);
        }
        if !after.is_empty() {
            file.set_attributes(&after)?;
        }
        Ok(file)
    }

    /// Opens a file that is known by its handle, even if it has been renamed or removed. The
    /// options to create and to truncate are ignored.
    ///
    /// # Errors
    /// The server's answer: `Stale` when the file is gone.
    pub fn open_handle(&self, handle: &FileHandle, options: &OpenOptions) -> Result<File> {
        // An empty path names the object itself.
        let claim = wire::OpenClaim::Null { dir: *handle, path: wire::Path::new(&[]) };
        self.open_claimed(claim, None, options)
    }

    /// Opens the object that a claim names.
    pub(crate) fn open_claimed(
        &self,
        claim: wire::OpenClaim<'_>,
        create: Option<wire::CreateMode<'_>>,
        options: &OpenOptions,
    ) -> Result<File> {
        let owner = OPENS.fetch_add(1, Ordering::Relaxed);
        self.open_owned(claim, create, options, owner)
    }

    /// Opens the object that a claim names, for this owner.
    pub(crate) fn open_owned(
        &self,
        claim: wire::OpenClaim<'_>,
        create: Option<wire::CreateMode<'_>>,
        options: &OpenOptions,
        owner: u64,
    ) -> Result<File> {
        let wants = self.cache().is_some_and(|cache| cache.wants_at_open()) && !options.direct;
        let (mut file, granted) = self.open_granted(claim, create, options, owner, wants)?;
        file.enter_cache(granted, options);
        if options.pattern != AccessPattern::Normal {
            // A hint that the server does not take is worth no failed open.
            let _ = file.cache_hint(0, 0, options.pattern, wire::HintWord::NONE);
        }
        Ok(file)
    }

    /// As [`open_owned`](Self::open_owned), bypassing the cache. The caller, who `wants` a
    /// delegation, gets the one granted.
    pub(crate) fn open_granted(
        &self,
        claim: wire::OpenClaim<'_>,
        create: Option<wire::CreateMode<'_>>,
        options: &OpenOptions,
        owner: u64,
        wants: bool,
    ) -> Result<(File, Option<Granted>)> {
        let delete_disposition = match options.deny_delete {
            true => wire::DeleteDisposition::Deny,
            false => wire::DeleteDisposition::DontCare,
        };
        let request = Request::Open(wire::Open {
            claim,
            create,
            delete_disposition,
            owner: &owner.to_be_bytes(),
            share_access: options.access,
            share_deny: options.deny,
            share_key: options.share_key,
        });
        // Dirty data of the cache precedes the truncation, and no cached content of the file
        // survives it.
        let cuts = matches!(create, Some(wire::CreateMode::Unchecked { attributes })
            if attributes.object_size.is_some());
        if cuts {
            drop(self.before(|| Effect::ReadAny));
        }
        let reply = self.shared().call_open(&request, wants)?;
        let (handle, state_id, granted) = self.shared().taken(&reply, |reply| {
            reply.open().map(|opened| (opened.fh, opened.state_id, Granted::of(opened)))
        })?;
        if cuts {
            drop(self.before(|| Effect::Change(handle, 0..u64::MAX)));
        }
        let opened = Opened {
            client: self.clone(),
            handle,
            state_id,
            access: options.access,
            writes: Arc::default(),
            layout: LayoutUse::default(),
            hint: RidingHint::new(options.hint),
            optimistic: Optimistic::default(),
        };
        let file = File {
            opened: Arc::new(opened),
            owner,
            restarts: self.stats().restarts,
            cached: None,
            closed: false,
        };
        Ok((file, granted.filter(|_| wants)))
    }
}

impl File {
    /// The client it was opened with.
    pub fn client(&self) -> &Client {
        &self.opened.client
    }

    /// Takes part in the client's cache, if there is one.
    pub(crate) fn enter_cache(&mut self, granted: Option<Granted>, options: &OpenOptions) {
        if let Some(cache) = self.client().cache() {
            self.cached = Some(cache.enter(self, granted, options));
        }
    }

    pub(crate) fn writes(&self) -> &Arc<Uncommitted> {
        &self.opened.writes
    }

    /// Writes back dirty data of the cache.
    pub(crate) fn write_back(&self) -> Result<()> {
        self.cached.as_ref().map_or(Ok(()), CacheUse::write_back)
    }

    /// Locks everything of the file that has a lock.
    #[cfg(test)]
    pub(crate) fn hold(&self) -> impl Sized {
        (self.cached.as_ref().map(CacheUse::hold), self.opened.writes.hold())
    }

    #[cfg(test)]
    pub(crate) fn cached_file(&self) -> Arc<crate::cache::CachedFile> {
        self.cached.as_ref().map(CacheUse::file).cloned().unwrap_or_else(|| panic!("no cache"))
    }

    /// Called before the file is used bypassing the cache.
    pub(crate) fn before(&self, what: impl FnOnce() -> Effect) -> Option<DirectUse> {
        self.cached.as_ref().and_then(|cached| cached.before(&what()))
    }

    pub(crate) fn before_write(&self, span: &Span<'_>) -> Option<DirectUse> {
        let (offset, len) = (span.offset, span.range.len() as u64);
        self.before(|| Effect::Change(self.opened.handle, offset..offset.saturating_add(len)))
    }

    /// The open's owner at the server.
    pub(crate) fn owner(&self) -> u64 {
        self.owner
    }

    /// The part of the open that transfers use, and that may outlive the file.
    pub(crate) fn opened(&self) -> &Arc<Opened> {
        &self.opened
    }

    pub(crate) fn state_id(&self) -> StateId {
        self.opened.state_id
    }

    /// Checks that it was opened with this client, so that a request of that client may name it.
    ///
    /// # Errors
    /// [`Error::ForeignFile`].
    pub(crate) fn check_of(&self, client: &Client) -> Result<()> {
        if self.client().is_same(client) { Ok(()) } else { Err(Error::ForeignFile) }
    }

    /// Its handle.
    pub fn handle(&self) -> &FileHandle {
        &self.opened.handle
    }

    /// Reads into `target` from `offset` until it is full or the file ends; returns the bytes
    /// read. The data is staged through a registered buffer; [`File::read_into`] avoids that.
    ///
    /// # Errors
    /// The server's answer. Bytes before the failing part may have been read.
    pub fn read_at(&self, target: &mut [u8], offset: u64) -> Result<usize> {
        self.read_checked(CheckedSlice::from_mut(target), offset)
    }

    /// As [`File::read_at`], into memory that may be unmapped meanwhile.
    ///
    /// # Errors
    /// As [`File::read_at`], and [`Error::BadMemory`].
    pub fn read_checked(&self, target: CheckedSlice<'_>, offset: u64) -> Result<usize> {
        match &self.cached {
            Some(cached) => cached.read(self, target, offset),
            None => crate::transfer::read_slice(self, target, offset),
        }
    }

    /// Writes all of `source` at `offset`; returns its length. Staged as in [`File::read_at`].
    ///
    /// # Errors
    /// The server's answer. Bytes before the failing part may have been written.
    pub fn write_at(&self, source: &[u8], offset: u64, stability: Stability) -> Result<usize> {
        // SAFETY: a source is only copied from.
        self.write_checked(unsafe { CheckedSlice::from_ref(source) }, offset, stability)
    }

    /// As [`File::write_at`], out of memory that may be unmapped meanwhile. No data is copied to
    /// it.
    ///
    /// # Errors
    /// As [`File::write_at`], and [`Error::BadMemory`]: bytes before the missing part may have been
    /// written.
    pub fn write_checked(
        &self,
        source: CheckedSlice<'_>,
        offset: u64,
        stability: Stability,
    ) -> Result<usize> {
        match &self.cached {
            Some(cached) => cached.write(self, source, offset, stability),
            None => crate::transfer::write_slice(self, source, offset, stability),
        }
    }

    /// Reads into `range` of `buffer` from `offset` until it is full or the file ends; returns the
    /// bytes read. Long reads are cut into pieces of which several are in flight.
    ///
    /// # Errors
    /// The server's answer.
    pub fn read_into(&self, buffer: &IoBuffer, range: Range<usize>, offset: u64) -> Result<usize> {
        drop(self.before(|| Effect::Read(self.opened.handle)));
        crate::transfer::read_buffer(self, &Span { buffer, range, offset })
    }

    /// Writes all of `range` of `buffer` at `offset`; returns its length.
    ///
    /// # Errors
    /// The server's answer.
    pub fn write_from(
        &self,
        buffer: &IoBuffer,
        range: Range<usize>,
        offset: u64,
        stability: Stability,
    ) -> Result<usize> {
        let span = Span { buffer, range, offset };
        let _used = self.before_write(&span);
        crate::transfer::write_buffer(self, &span, stability)
    }

    /// As [`submit_read`](Self::submit_read), for a group.
    pub(crate) fn read_in(
        &self,
        group: &Arc<GroupState>,
        user_data: u64,
        span: &Span<'_>,
    ) -> Result<OperationId> {
        drop(self.before(|| Effect::Read(self.opened.handle)));
        let read = self.opened.start_read(self.opened.read_call(span)?);
        let kind = GroupedKind::Transfer(user_data);
        self.client().shared().submit_in(group, kind, |driver, tag| driver.start_read(tag, read))
    }

    /// As [`submit_write`](Self::submit_write), for a group.
    pub(crate) fn write_in(
        &self,
        group: &Arc<GroupState>,
        user_data: u64,
        span: &Span<'_>,
        stability: Stability,
    ) -> Result<OperationId> {
        let used = self.before_write(span).map(Arc::new);
        let call = self.opened.write_call(span, stability)?;
        let writes = self.opened.watch(stability);
        let start = |driver: &mut Driver, tag| {
            driver.submit_write(tag, call, writes)?;
            driver.keep(tag, used);
            Ok(())
        };
        self.client().shared().submit_in(group, GroupedKind::Transfer(user_data), start)
    }

    /// As [`commit`](Self::commit), for a group.
    pub(crate) fn commit_in(
        &self,
        group: &Arc<GroupState>,
        user_data: u64,
        offset: u64,
        len: u64,
    ) -> Result<OperationId> {
        let (request, watch) = self.watched_commit(offset, len)?;
        let kind = GroupedKind::Commit(user_data, watch);
        self.opened
            .client
            .shared()
            .submit_in(group, kind, |driver, tag| driver.submit(tag, &request, None))
    }

    /// Writes back dirty data of the cache, and returns the COMMIT of `len` bytes (0: all) and the
    /// watch that judges its answer.
    pub(crate) fn watched_commit(
        &self,
        offset: u64,
        len: u64,
    ) -> Result<(Request<'static>, CommitWatch)> {
        self.write_back()?;
        self.commit_at_data_servers()?;
        let (request, whole) = self.commit_request(offset, len);
        let (writes, mark) = (self.opened.writes.clone(), self.opened.writes.mark());
        let lost = self.cached.as_ref().and_then(CacheUse::lost);
        Ok((request, CommitWatch { writes, mark, whole, lost }))
    }

    /// The COMMIT of `len` bytes (0: all), and true if it covers the whole file.
    fn commit_request(&self, offset: u64, len: u64) -> (Request<'static>, bool) {
        // A range that does not fit the field is widened to the end of the file.
        let count = u32::try_from(len).unwrap_or(0);
        let request = wire::Commit { fh: self.opened.handle, offset, count };
        (Request::Commit(request), (offset, count) == (0, 0))
    }

    /// The record to update when a batch write is answered, with the current verifier. The answer
    /// does not name one, and a verifier from before the write detects every loss. A write of no
    /// bytes asks the server for it.
    pub(crate) fn watch_batch(&self) -> Result<(Arc<Uncommitted>, Verifier)> {
        self.client().shared().check_process()?;
        let verifier = match self.opened.writes.verifier() {
            Some(verifier) => verifier,
            None => {
                let nothing = Request::WriteInline(wire::WriteInline {
                    fh: self.opened.handle,
                    state_id: self.opened.state_id,
                    offset: 0,
                    stable: Stability::Unstable,
                    padded_to: None,
                    cache_hint: wire::HintWord::NONE,
                    data: &[],
                });
                let verifier =
                    self.client().ask(&nothing, |reply| Some(reply.write_inline()?.verifier))?;
                self.opened.writes.written(verifier);
                verifier
            }
        };
        Ok((self.opened.writes.clone(), verifier))
    }

    /// Makes `len` bytes from `offset` stable (0: to the end of the file).
    ///
    /// # Errors
    /// The server's answer; [`Error::WritesLost`] when unstable data that was written through this
    /// open file is gone: everything since its last COMMIT must be written again.
    pub fn commit(&self, offset: u64, len: u64) -> Result<()> {
        self.client().shared().check_process()?;
        self.write_back()?;
        self.commit_at_data_servers()?;
        let (request, whole) = self.commit_request(offset, len);
        let mark = self.opened.writes.mark();
        let verifier = self.client().ask(&request, |reply| Some(reply.commit()?.verifier))?;
        if self.opened.writes.committed(mark, verifier, whole) {
            Ok(())
        } else {
            // The cache may hold data that the server has lost.
            if let Some(cached) = &self.cached {
                cached.forget();
            }
            Err(Error::WritesLost)
        }
    }

    /// Attributes of the file, even after its last name is gone.
    ///
    /// # Errors
    /// The server's answer.
    pub fn attributes(&self) -> Result<Attributes> {
        self.client().attributes(&self.opened.handle)
    }

    /// Changes attributes under this open, so that a caller who may write can change the size.
    ///
    /// # Errors
    /// The server's answer.
    pub fn set_attributes(&self, change: &SetAttributes) -> Result<()> {
        let state_id = if change.size.is_some() { self.opened.state_id } else { StateId::ZERO };
        self.client().set_attributes_with(&self.opened.handle, state_id, change)
    }

    /// Truncates the file or extends it with zeros.
    ///
    /// # Errors
    /// The server's answer.
    pub fn set_size(&self, size: u64) -> Result<()> {
        self.set_attributes(&SetAttributes { size: Some(size), ..SetAttributes::default() })
    }

    /// Detects the loss of unstable data that was written through this open file, which is possible
    /// when the server has restarted. It costs nothing when the server has not; else it is a
    /// [`commit`](Self::commit). Only a commit or the close detects data that a data server has
    /// lost by itself.
    ///
    /// # Errors
    /// As [`commit`](Self::commit): after [`Error::WritesLost`] everything since the last one must
    /// be written again.
    pub fn check_writes(&self) -> Result<()> {
        self.client().shared().check_process()?;
        let restarted = self.client().stats().restarts != self.restarts;
        if self.opened.writes.is_in_doubt(restarted) { self.commit(0, 0) } else { Ok(()) }
    }

    /// Closes the file.
    ///
    /// # Errors
    /// The server's answer; [`Error::WritesLost`] when the server has restarted and has lost
    /// unstable data. The file is closed then.
    pub fn close(mut self) -> Result<()> {
        let written = self.leave_cache();
        let writes = written.and(self.leave_layout()).and(self.check_writes());
        self.closed = true;
        let request = Request::Close(self.close_arguments());
        let done = self.client().ask(&request, |reply| matches!(reply, Reply::Close).then_some(()));
        if let Err(Error::Deadline { .. } | Error::NotSent { .. }) = done {
            // The caller gets the error, and the close is sent again when the server is back.
            self.client().shared().close_file(self.close_arguments());
        }
        done.and(writes)
    }

    /// Writes back dirty data of the file, and leaves the cache.
    fn leave_cache(&mut self) -> Result<()> {
        self.cached.take().map_or(Ok(()), CacheUse::leave)
    }

    fn close_arguments(&self) -> wire::Close {
        wire::Close { fh: self.opened.handle, state_id: self.opened.state_id }
    }
}

impl Drop for File {
    fn drop(&mut self) {
        if !self.closed {
            // A caller that wants to know of errors uses `close`.
            let _ = self.leave_cache();
            let _ = self.leave_layout();
            self.client().shared().close_file(self.close_arguments());
        }
    }
}
