//! Opening, making and closing files.

use super::{Answer, Server};
use crate::content::{self, Home, OpenFile};
use crate::delegated::{only_reads, writes};
use crate::kernel::{NodeId, OpenHow, Request, created, entry, opened};
use crate::limits::KEPT_ATTEMPTS_MAX;
use crate::rights::Changer;
use crate::tree::Outcome;
use dafs_client::{Attributes, IoBuffer, SetAttributes, User};
use std::sync::Arc;

impl Server {
    pub(super) fn file(&self, handle: u64) -> Outcome<Arc<OpenFile>> {
        self.files.get(handle).map_or_else(|| self.redeemed(handle), Ok)
    }

    /// The tables of open files.
    pub(crate) fn home(&self) -> Home<'_> {
        Home { kept: &self.kept, locks: &self.locks }
    }

    pub(super) fn open(
        self: &Arc<Self>,
        request: &Request<'_>,
        flags: i32,
        user: Option<User>,
    ) -> Outcome<Answer> {
        if only_reads(flags) {
            return self.open_to_read(request, flags, user);
        }
        let changing = self.changing(self.tree.handle(request.node)?);
        // A change by root clears no bits.
        let clears = request.caller.uid != 0 && self.callers.is_none();
        let taker = clears.then(|| Changer::of(request));
        let file = OpenFile::open(&self.tree, self.home(), request.node, (flags, user), taker)?;
        if writes(flags) {
            changing.go_on();
        }
        let how = how(&file);
        Ok(opened(self.files.insert(file), how).into())
    }

    /// True when a file is open for writing.
    pub(super) fn is_written(&self, node: NodeId) -> bool {
        self.files.all().iter().any(|(_, file)| file.node == node && file.writes())
    }

    pub(super) fn make_file(
        &self,
        request: &Request<'_>,
        name: &[u8],
        mode: u32,
    ) -> Outcome<Answer> {
        let options = content::options(libc::O_WRONLY);
        let (node, caller) = (request.node, request.caller);
        let (_, attributes) = self.tree.create(node, name, &options, true, mode, caller)?;
        Ok(entry(&self.entry(&attributes)).into())
    }

    pub(super) fn create(
        &self,
        request: &Request<'_>,
        name: &[u8],
        (flags, mode): (i32, u32),
        user: Option<User>,
    ) -> Outcome<Answer> {
        let must_be_new = flags & libc::O_EXCL != 0;
        let options = content::options(flags);
        let (node, caller) = (request.node, request.caller);
        let (file, attributes) =
            self.tree.create(node, name, &options, must_be_new, mode, caller)?;
        let entry = self.entry(&attributes);
        if writes(flags) {
            self.changing(attributes.handle).go_on();
        }
        let file = OpenFile::new(self.home(), entry.attributes.node, file, (flags, user));
        let how = how(&file);
        Ok(created(&entry, self.files.insert(file), how).into())
    }

    pub(super) fn write(
        &self,
        handle: u64,
        data: &mut IoBuffer,
        len: u32,
        offset: Option<u64>,
    ) -> Outcome<u32> {
        let file = self.file(handle)?;
        // Through an open that has locks, if there is one: once they are lost the server refuses
        // the write, also as a retransmission.
        let through = self.locks.writer(file.node)?;
        let written = file.write(through.as_ref(), data, len, offset);
        self.locks.check(file.node).and(written)
    }

    /// Changes attributes, the size among them.
    pub(super) fn set_attributes(
        &self,
        node: NodeId,
        open: Option<u64>,
        change: &SetAttributes,
    ) -> Outcome<Attributes> {
        let Some(size) = change.size else {
            self.tree.set_attributes(node, None, change)?;
            return self.look(|| self.tree.attributes(node));
        };
        let through = self.locks.writer(node)?;
        let open = open.and_then(|handle| self.files.get(handle)).map(|open| open.file.clone());
        let through = through.or(open);
        let set = || self.tree.set_attributes(node, through.as_deref(), change);
        match self.kept.find(&self.tree.handle(node)?) {
            Some(kept) => kept.resize(size, set)?,
            None => set()?,
        }
        self.look(|| self.tree.attributes(node))
    }

    /// The attributes that `ask` gets from the server, after all lost writes were retransmitted.
    pub(super) fn look(&self, ask: impl Fn() -> Outcome<Attributes>) -> Outcome<Attributes> {
        let mut found = ask()?;
        for _ in 0..KEPT_ATTEMPTS_MAX {
            // A restarted server may have returned an earlier size.
            match self.kept.find(&found.handle) {
                Some(kept) if kept.is_in_doubt() => kept.settle_after_restart()?,
                _ => break,
            }
            found = ask()?;
        }
        Ok(found)
    }

    /// Makes writes to the file stable, through any open: programs rely on that, and the kernel
    /// writes dirty pages through any of them.
    pub(super) fn sync(&self, handle: u64) -> Outcome<()> {
        let file = self.file(handle)?;
        file.kept.settle().and(file.told())
    }

    /// Makes writes stable when an open file is closed.
    fn settle(&self, file: &OpenFile) -> Outcome<()> {
        if file.writes() { file.kept.settle() } else { Ok(()) }
    }

    /// A descriptor of it is closed.
    pub(super) fn flush(&self, handle: u64, owner: u64) -> Outcome<Answer> {
        self.delegated.used(handle);
        if let Some(deferred) = self.delegated.deferred(handle) {
            // It releases the locks that the process has through others.
            let node = deferred.node;
            if !self.locks.holds(node, owner) {
                return Ok(().into());
            }
            let leave = || self.locks.leave(node, owner);
            let unlocked = match self.kept.find(&deferred.handle) {
                Some(kept) => kept.unlock(leave).1,
                None => leave(),
            };
            return unlocked.map(Answer::from);
        }
        let file = self.file(handle)?;
        // An owner without locks releases nothing that others rely on.
        let (stable, unlocked) = match self.locks.holds(file.node, owner) {
            true => file.kept.unlock(|| self.locks.leave(file.node, owner)),
            false => (self.settle(&file), Ok(())),
        };
        let stable = if file.writes() { stable } else { Ok(()) };
        // A process may close a duplicate and ignore the error, as when a child ends: only `fsync`
        // counts as a report.
        stable.and(file.tell()).and(unlocked).map(Answer::from)
    }

    pub(super) fn release(&self, handle: u64, owner: Option<u64>) -> Outcome<Answer> {
        self.delegated.closed(handle);
        // A deferred open that the server never knew has no reads and no locks.
        if self.delegated.settle(handle, || ()) {
            return Ok(().into());
        }
        let file = self.file(handle)?;
        // Pages that were written back since the last descriptor was closed. Only other users of
        // the file can still get an error.
        let node = file.node;
        let owner = owner.filter(|owner| self.locks.holds(node, *owner));
        let others = self.locks.closed(node, handle);
        let (stable, unlocked) = match owner.is_some() || !others.is_empty() {
            true => file.kept.unlock(|| {
                let left = owner.map_or(Ok(()), |owner| self.locks.leave(node, owner));
                left.and(self.locks.leave_closed(node, &others))
            }),
            false => (self.settle(&file), Ok(())),
        };
        if file.writes() {
            // As long as it is open, its attributes are asked for each time.
            self.changes.file(file.file.handle());
        }
        self.files.remove(handle);
        // Another thread that still reads is the last user and closes it.
        let (is_written, file_handle) = (writes(file.flags), *file.file.handle());
        let closed = Arc::into_inner(file).map_or(Ok(()), OpenFile::close);
        if is_written {
            self.delegated.end_write(&file_handle);
        }
        stable.and(closed).and(unlocked).map(Answer::from)
    }
}

/// The kernel caches no content of a file that is opened for appending: it would append at its
/// cached size.
fn how(file: &OpenFile) -> OpenHow {
    OpenHow { direct: file.appends(), ..OpenHow::default() }
}
