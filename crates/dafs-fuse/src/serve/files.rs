//! Opening, making and closing files.

use super::{Answer, Server};
use crate::content::{self, OpenFile};
use crate::kernel::{Errno, OpenHow, Request, created, entry, opened};
use crate::tree::Outcome;
use std::sync::Arc;

impl Server {
    pub(super) fn file(&self, handle: u64) -> Outcome<Arc<OpenFile>> {
        self.files.get(handle).ok_or(Errno::EBADF)
    }

    pub(super) fn open(&self, request: &Request<'_>, flags: i32) -> Outcome<Answer> {
        // Of what root changes, nothing is taken.
        let keeps_bits = request.caller.uid == 0;
        let file = OpenFile::open(&self.tree, request.node, flags, keeps_bits)?;
        let how = how(&file);
        Ok(opened(self.files.insert(file), how).into())
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
        flags: i32,
        mode: u32,
    ) -> Outcome<Answer> {
        let must_be_new = flags & libc::O_EXCL != 0;
        let options = content::options(flags);
        let (node, caller) = (request.node, request.caller);
        let (file, attributes) =
            self.tree.create(node, name, &options, must_be_new, mode, caller)?;
        let entry = self.entry(&attributes);
        let file = OpenFile::new(entry.attributes.node, file, flags);
        let how = how(&file);
        Ok(created(&entry, self.files.insert(file), how).into())
    }

    /// Makes stable what was written to the file, through whatever open file: programs rely on that, and
    /// the kernel writes what was changed in memory through any of them.
    pub(super) fn sync(&self, handle: u64) -> Outcome<()> {
        let file = self.file(handle)?;
        let all = self.files.all();
        let others = all.iter().map(|(_, other)| other).filter(|other| other.node == file.node);
        let others: Vec<_> = others.filter(|other| !Arc::ptr_eq(other, &file)).collect();
        let mut done = file.told();
        for other in others.iter().copied().chain([&file]) {
            if let Err(error) = other.commit() {
                others.iter().for_each(|other| other.lose());
                done = Err(error);
            }
        }
        done
    }

    /// A descriptor of it is closed.
    pub(super) fn flush(&self, handle: u64, owner: u64) -> Outcome<Answer> {
        let file = self.file(handle)?;
        let stable = file.commit();
        let unlocked = self.locks.leave(file.node, owner);
        stable.and(file.told()).and(unlocked).map(Answer::from)
    }

    pub(super) fn release(&self, handle: u64, owner: Option<u64>) -> Outcome<Answer> {
        let file = self.file(handle)?;
        let unlocked = owner.map_or(Ok(()), |owner| self.locks.leave(file.node, owner));
        let unlocked = unlocked.and(self.locks.release(file.node, handle));
        // Pages that were written back since the last descriptor was closed. Nobody is told any more,
        // but those who have it open; who makes the file stable meanwhile finds it still.
        let stable = file.commit();
        self.files.remove(handle);
        if stable.is_err() {
            let all = self.files.all();
            let others = all.iter().filter(|(_, other)| other.node == file.node);
            others.for_each(|(_, other)| other.lose());
        }
        // Another thread that still reads is the last one and closes it.
        let closed = Arc::into_inner(file).map_or(Ok(()), OpenFile::close);
        closed.and(unlocked).map(Answer::from)
    }
}

/// The kernel keeps nothing of a file that is appended to: it would take the end that it knows for the
/// end of the file.
fn how(file: &OpenFile) -> OpenHow {
    OpenHow { direct: file.appends() }
}
