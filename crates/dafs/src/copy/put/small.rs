//! From this host to the server: small files, each in one round trip, with many of them under way.
//!
//! Invariants
//! * A file that needs more than one round trip, or fails, is copied as long ones are. So errors are those
//!   of long files.

use super::{Object, Put};
use crate::copy::error::Outcome;
use crate::copy::local;
use crate::copy::pieces::Worker;
use crate::copy::report::Copied;
use crate::copy::temporary::temporary_name;
use crate::remote::{NewFile, PendingFile};
use rustix::fs::{FileType, Stat, fstat};
use rustix::io::{Errno, pread};
use std::os::fd::OwnedFd;

/// A file under way.
#[derive(Debug)]
pub(super) struct Small {
    pending: PendingFile,
    bytes: u64,
}

impl Put<'_> {
    /// Begins to send a small file; `None` for others.
    pub(super) fn begin_small(&self, object: &Object<'_>, stat: &Stat) -> Outcome<Option<Small>> {
        self.report.go_on()?;
        let bytes_max = self.client.small_bytes_max();
        let options = self.options;
        let is_more = options.verify || options.sync || options.xattrs;
        if is_more || !is_small(stat, bytes_max) {
            return Ok(None);
        }
        let source = local::open_for_reading(&object.directory.local, &object.name)
            .map_err(|error| object.here(error))?;
        let stat = fstat(&source).map_err(|error| object.here(error))?;
        if !is_small(&stat, bytes_max) {
            return Ok(None);
        }
        // One byte more tests for the end. Files of /proc say that they are empty, and some have content
        // only for a read at their start.
        let size = stat.st_size as usize;
        let mut data = vec![0; 1 + if size == 0 { bytes_max } else { size }];
        let count = read_full(&source, &mut data).map_err(|error| object.here(error))?;
        if count < size || count == data.len() {
            return Ok(None);
        }
        data.truncate(count);
        let bytes = count as u64;
        let begun = self.client.begin_new_file(&NewFile {
            dir: &object.directory.handle,
            temporary_name: temporary_name().as_bytes(),
            name: object.target_name(),
            data: &data,
            attributes: &self.final_attributes(&stat),
        });
        let pending = begun.map_err(|error| object.remote(&error))?;
        Ok(pending.map(|pending| Small { pending, bytes }))
    }

    /// Waits for the end of a small file.
    pub(super) fn end_small(
        &self,
        worker: &mut Worker<'_>,
        object: &Object<'_>,
        Small { pending, bytes }: Small,
    ) -> Outcome {
        match pending.wait() {
            Ok(()) => {
                self.report.add_bytes(bytes);
                self.report.add(Copied::File);
                Ok(())
            }
            Err(error) if error.is_fatal() => Err(object.remote(&error)),
            Err(_) => self.file(worker, object).map(drop),
        }
    }
}

/// Reads until `data` is full or the file ends; returns the number of bytes.
fn read_full(source: &OwnedFd, data: &mut [u8]) -> Result<usize, Errno> {
    let mut count = 0;
    while count < data.len() {
        match pread(source, &mut data[count..], count as u64) {
            Ok(0) => break,
            Ok(more) => count += more,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(count)
}

/// True for a file without holes that fits, and whose set-id bits the server need not be asked for.
fn is_small(stat: &Stat, bytes_max: usize) -> bool {
    let size = stat.st_size.unsigned_abs();
    FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
        && size <= bytes_max as u64
        && stat.st_blocks.unsigned_abs().saturating_mul(512) >= size
        && stat.st_mode & 0o6000 == 0
}
