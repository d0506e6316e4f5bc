//! From the server to this host: small files, each in one round trip, with many of them under way.
//!
//! Invariants
//! * A file that needs more than one round trip, or fails, is copied as long ones are. So errors are those
//!   of long files.

use super::file::write_part;
use super::{Get, Object};
use crate::copy::error::Outcome;
use crate::copy::pieces::Worker;
use crate::copy::temporary::Temporary;
use crate::remote::{FileStart, ObjectType, PendingStart};
use dafs_mem::VolatileSlice;
use std::os::fd::AsFd;

/// A file under way.
#[derive(Debug)]
pub(super) struct Small(PendingStart);

impl Get<'_> {
    /// Begins to read a small file; `None` for others.
    pub(super) fn begin_small(&self, object: &Object<'_>) -> Outcome<Option<Small>> {
        self.report.go_on()?;
        let (size, bytes_max) = (object.attributes.size, self.client.start_bytes_max());
        let is_file = object.attributes.kind == ObjectType::Regular;
        if !is_file || self.options.verify || size >= bytes_max as u64 {
            return Ok(None);
        }
        let (directory, name) = (&object.directory.handle, object.source_name());
        // One byte beyond the size tests for the end.
        let begun = self.client.begin_start(directory, name, size as usize + 1);
        Ok(begun.map_err(|error| object.remote(&error))?.map(Small))
    }

    /// Waits for a small file and makes the copy.
    pub(super) fn end_small(
        &self,
        worker: &mut Worker<'_>,
        object: &Object<'_>,
        Small(pending): Small,
    ) -> Outcome {
        let size = object.attributes.size;
        // Another file may have taken the name since it was listed. A file with other content than its
        // size says may have more for a longer read, as those of /proc have.
        let is_it = |start: &FileStart| {
            start.is_whole
                && start.handle == object.attributes.handle
                && start.data.len() as u64 == size
        };
        match pending.wait() {
            Ok(start) if is_it(&start) => self.store(object, start.data),
            Err(error) if error.is_fatal() => Err(object.remote(&error)),
            _ => self.file(worker, object),
        }
    }

    /// Makes the copy of a file with this content.
    fn store(&self, object: &Object<'_>, mut data: Vec<u8>) -> Outcome {
        self.report.go_on()?;
        let (attributes, bytes) = (&object.attributes, data.len() as u64);
        let temporary = Temporary::create(&self.report.temporaries, &object.directory.local)
            .map_err(|error| object.here(error))?;
        let file = temporary.file();
        let is_sparse = attributes.space_used < bytes;
        write_part(file.as_fd(), VolatileSlice::from_mut(&mut data), 0, is_sparse)
            .map_err(|error| object.here(error))?;
        if is_sparse {
            rustix::fs::ftruncate(file, bytes).map_err(|error| object.here(error))?;
        }
        self.report.add_bytes(bytes);
        self.complete(object, temporary, attributes)
    }
}
