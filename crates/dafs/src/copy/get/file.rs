//! From the server to this host: the content of a file.
//!
//! Invariants
//! * A copy ends where reading ends, not at the reported size. A source that was truncated
//!   meanwhile is an error.

use super::{Get, Object};
use crate::copy::content::local_digest;
use crate::copy::digest::Digest;
use crate::copy::error::{CopyError, Outcome};
use crate::copy::pieces::{Part, Worker, next_run};
use crate::copy::report::Copied;
use crate::copy::temporary::{Temporary, crosses_stable_step, resumable_name};
use crate::failure::Failure;
use crate::limits::{HOLE_BYTES, RESUME_BYTES};
use crate::remote::{Attributes, Error, File, Handle, OpenOptions, Time};
use dafs_mem::{VolatileSlice, pwritev2};
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};

impl Get<'_> {
    /// Copies a file under a temporary name and renames it when it is complete.
    pub(super) fn file(&self, worker: &mut Worker<'_>, object: &Object<'_>) -> Outcome {
        self.report.go_on()?;
        let registry = &self.report.temporaries;
        let directory = &object.directory;
        let mut attributes = object.attributes.clone();
        let (temporary, mut start) = match self.part_name(object) {
            Some(name) => Temporary::resume(registry, &directory.local, name),
            None => Temporary::create(registry, &directory.local).map(|made| (made, 0)),
        }
        .map_err(|error| object.here(error))?;
        // A file may have more content than its size says, as those of /proc have.
        let is_empty = attributes.size == 0
            && self
                .client
                .is_surely_empty(&directory.handle, object.source_name())
                .map_err(|error| object.remote(&error))?;
        if !is_empty {
            let source = self
                .client
                .open_at(&directory.handle, object.source_name(), &OpenOptions::read())
                .map_err(|error| object.remote(&error))?;
            if *source.handle() != attributes.handle || start > 0 {
                // Another file may have taken the name since it was listed.
                attributes = source.attributes().map_err(|error| object.remote(&error))?;
            }
            if start > 0 && state(&attributes) != state(&object.attributes) {
                start = 0;
                rustix::fs::ftruncate(temporary.file(), 0).map_err(|error| object.here(error))?;
            }
            let places = (&source, temporary.file().as_fd());
            if let Err(error) = self.content(worker, object, &attributes, places, start) {
                let is_lost = matches!(error, CopyError::Stop(Failure::Unreachable(_)));
                if is_lost && self.part_name(object).is_some() {
                    temporary.keep();
                }
                return Err(error);
            }
        }
        self.complete(object, temporary, &attributes)
    }

    /// Gives a copy that has its content its attributes and its name.
    pub(super) fn complete(
        &self,
        object: &Object<'_>,
        temporary: Temporary<'_>,
        attributes: &Attributes,
    ) -> Outcome {
        let file = temporary.file();
        if self.options.xattrs {
            self.xattrs(&attributes.handle, file, &object.source(), &object.path())?;
        }
        self.finish_open(file, attributes).map_err(|error| object.here(error))?;
        if self.options.sync {
            rustix::fs::fsync(file).map_err(|error| object.here(error))?;
        }
        temporary.rename(&object.name).map_err(|error| object.here(error))?;
        self.report.add(Copied::File);
        Ok(())
    }

    fn content(
        &self,
        worker: &mut Worker<'_>,
        object: &Object<'_>,
        attributes: &Attributes,
        (source, target): (&File, BorrowedFd<'_>),
        start: u64,
    ) -> Outcome {
        let sparse = attributes.space_used < attributes.size;
        let mut digest = Digest::new(self.options.verify);
        let mut ring = worker.ring(attributes.size)?;
        let failed = |error: &Error| object.remote(error);
        let (mut length, mut is_over) = (start, false);
        self.report.resumed(start);
        let resumable = self.part_name(object).is_some();
        while !is_over {
            let run = if sparse {
                next_run(source, length).map_err(|e| failed(&e))?
            } else {
                Some(start..u64::MAX)
            };
            let Some(run) = run else { break };
            digest.add_zeros(run.start - length);
            length = run.start;
            let mut take = |part: &Part| -> Outcome<bool> {
                let view = view(part);
                digest.add(view);
                if resumable && crosses_stable_step(part.offset, part.bytes) {
                    rustix::fs::fdatasync(target).map_err(|error| object.here(error))?;
                }
                write_part(target, view, part.offset, sparse)
                    .map_err(|error| object.here(error))?;
                length = part.offset + part.bytes as u64;
                self.report.add_bytes(part.bytes as u64);
                Ok(true)
            };
            let original = (source, attributes.size);
            is_over = ring.read_run(self.report, original, run, failed, |ring, part| {
                let taken = if part.bytes > 0 { take(&part) } else { Ok(true) };
                ring.give_back(part.piece);
                taken
            })?;
        }
        if length < attributes.size {
            let now = source.attributes().map_err(|e| failed(&e))?.size;
            // Data ends where reading ends, whatever the reported size; otherwise there is a hole.
            let end = if is_over { length } else { attributes.size.min(now).max(length) };
            digest.add_zeros(end - length);
            length = end;
            if now < attributes.size {
                self.report.book(Err(CopyError::Object(format!(
                    "{}: became shorter while it was copied; the copy has {length} bytes",
                    object.source()
                ))));
            }
        }
        if sparse {
            rustix::fs::ftruncate(target, length).map_err(|error| object.here(error))?;
        }
        if self.options.verify {
            let copy = local_digest(self.report, target, |error| object.here(error))?;
            if copy.value() != digest.value() {
                return Err(CopyError::Object(format!(
                    "{}: the copy differs from its source; check the disk, then copy again",
                    object.path().display()
                )));
            }
        }
        Ok(())
    }

    /// The name under which a later run finds the unfinished copy of a long file; `None` for others,
    /// which begin again.
    fn part_name(&self, object: &Object<'_>) -> Option<String> {
        let attributes = &object.attributes;
        let is_dense = attributes.space_used >= attributes.size;
        let is_long = attributes.size > RESUME_BYTES && is_dense;
        (self.policy.is_some() && is_long && !self.options.verify).then(|| {
            let path = object.directory.relative(&object.name);
            resumable_name((object.source().to_string(), path, state(attributes)))
        })
    }
}

/// An original in its present state: the file, and all that shows a change of its content.
fn state(attributes: &Attributes) -> (Handle, u64, u64, Option<Time>) {
    (attributes.handle, attributes.change, attributes.size, attributes.modified)
}

fn view(part: &Part) -> VolatileSlice<'_> {
    // INVARIANT: a part has at most as many bytes as its piece.
    part.piece.slice(0, part.bytes).unwrap_or_else(|| part.piece.view())
}

/// Writes a part of a file; of a sparse one, only blocks that are not zero.
pub(super) fn write_part(
    target: BorrowedFd<'_>,
    view: VolatileSlice<'_>,
    offset: u64,
    sparse: bool,
) -> io::Result<()> {
    if !sparse {
        return write_all(target, view, offset);
    }
    let (mut at, mut start) = (0, 0);
    let mut result = Ok(());
    // Each step of the scan is one block; a run of blocks with content is written at once.
    view.scan(|block| {
        debug_assert!(block.len() <= HOLE_BYTES);
        if result.is_ok() && block.iter().fold(0, |all, byte| all | byte) == 0 {
            result = write_run(target, view, start..at, offset);
            start = at + block.len();
        }
        at += block.len();
    });
    result.and_then(|()| write_run(target, view, start..at, offset))
}

fn write_run(
    target: BorrowedFd<'_>,
    view: VolatileSlice<'_>,
    run: Range<usize>,
    offset: u64,
) -> io::Result<()> {
    match view.slice(run.start, run.len()) {
        Some(run_view) if !run.is_empty() => write_all(target, run_view, offset + run.start as u64),
        _ => Ok(()),
    }
}

fn write_all(target: BorrowedFd<'_>, view: VolatileSlice<'_>, offset: u64) -> io::Result<()> {
    let mut done = 0;
    while let Some(rest) = view.slice(done, view.len() - done).filter(|rest| !rest.is_empty()) {
        match pwritev2(target, &[rest], offset + done as u64, 0) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => done += written,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{FileExt, MetadataExt};

    #[test]
    fn zeros_of_a_sparse_file_take_no_space() {
        let file = tempfile::tempfile().unwrap();
        let mut bytes = vec![0; 20 * HOLE_BYTES + 5];
        bytes[3 * HOLE_BYTES] = 1;
        bytes[4 * HOLE_BYTES + 9] = 2;
        *bytes.last_mut().unwrap() = 3;
        let expected = bytes.clone();
        write_part(file.as_fd(), VolatileSlice::from_mut(&mut bytes), 0, true).unwrap();
        let mut back = vec![9; expected.len()];
        file.read_exact_at(&mut back, 0).unwrap();
        assert!(back == expected);
        assert!(file.metadata().unwrap().blocks() * 512 < expected.len() as u64 / 2);
    }
}
