//! From this host, or from a server, to a server: small files, each sent in one round trip, with many of
//! them under way. One of a server is read in one round trip, too.
//!
//! Invariants
//! * A file that needs more than one round trip, or fails, is copied as long ones are. So errors are those
//!   of long files.

use super::{Object, Put};
use crate::copy::error::Outcome;
use crate::copy::local::{self, Parent};
use crate::copy::pieces::Worker;
use crate::copy::report::Copied;
use crate::copy::source::Folder;
use crate::copy::temporary::temporary_name;
use crate::copy::view::Trouble;
use crate::remote::{Attributes, Error, Handle, NewFile, ObjectType, PendingFile, Remote};
use rustix::fs::fstat;
use rustix::io::{Errno, pread};
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;

/// A file under way.
#[derive(Debug)]
pub(super) struct Small {
    pending: PendingFile,
    bytes: u64,
}

/// A file that has been read.
struct Read {
    data: Vec<u8>,
    attributes: Attributes,
}

impl Put<'_> {
    /// Begins to send a small file; `None` for others.
    pub(super) fn begin_small(
        &self,
        object: &Object<'_>,
        original: &Attributes,
    ) -> Outcome<Option<Small>> {
        self.report.go_on()?;
        let bytes_max = self.client.small_bytes_max();
        if self.needs_more() || !is_small(original, bytes_max) {
            return Ok(None);
        }
        let read = match &object.directory.local {
            Folder::Local(directory) => read_here(directory, &object.name, bytes_max),
            Folder::Remote(server, directory) => {
                let name = object.name.as_bytes();
                read_there(server, (directory, name), original).map_err(Trouble::from)
            }
        };
        match read.map_err(|error| object.failed(&error))? {
            Some(read) => self.send_small(object, &read),
            None => Ok(None),
        }
    }

    /// Begins to send a small file of this host with one name, without a look at its attributes before it
    /// is open. `None` for others, and for one that cannot be read.
    pub(super) fn begin_unseen(&self, object: &Object<'_>) -> Outcome<Option<Small>> {
        self.report.go_on()?;
        let Folder::Local(directory) = &object.directory.local else { return Ok(None) };
        if self.needs_more() {
            return Ok(None);
        }
        match read_here(directory, &object.name, self.client.small_bytes_max()) {
            Ok(Some(read)) => self.send_small(object, &read),
            _ => Ok(None),
        }
    }

    /// True if a copy takes more than one round trip.
    fn needs_more(&self) -> bool {
        self.options.verify || self.options.sync || self.options.xattrs
    }

    fn send_small(&self, object: &Object<'_>, read: &Read) -> Outcome<Option<Small>> {
        let Read { data, attributes } = read;
        let bytes = data.len() as u64;
        let begun = self.client.begin_new_file(&NewFile {
            dir: &object.directory.handle,
            temporary_name: temporary_name().as_bytes(),
            name: object.target_name(),
            data,
            attributes: &self.final_attributes(attributes),
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

/// Reads a file of this host; `None` if it is not small, or has several names.
fn read_here(
    directory: &Parent,
    name: &OsString,
    bytes_max: usize,
) -> Result<Option<Read>, Trouble> {
    let source = local::open_for_reading(directory, name)?;
    let attributes = Attributes::of_stat(&fstat(&source)?);
    if !is_small(&attributes, bytes_max) || attributes.links > 1 {
        return Ok(None);
    }
    // One byte more tests for the end. Files of /proc say that they are empty, and some have content
    // only for a read at their start.
    let size = attributes.size as usize;
    let mut data = vec![0; 1 + if size == 0 { bytes_max } else { size }];
    let count = read_full(&source, &mut data, size)?;
    if count < size || count == data.len() {
        return Ok(None);
    }
    data.truncate(count);
    Ok(Some(Read { data, attributes }))
}

/// Reads a file of a server; `None` if that takes more than one round trip.
fn read_there(
    server: &Remote,
    (directory, name): (&Handle, &[u8]),
    original: &Attributes,
) -> Result<Option<Read>, Error> {
    let size = original.size as usize;
    if size >= server.start_bytes_max() {
        return Ok(None);
    }
    // One byte beyond the size tests for the end.
    let Some(pending) = server.begin_start(directory, name, size + 1)? else { return Ok(None) };
    let start = match pending.wait() {
        Ok(start) => start,
        Err(error) if error.is_fatal() => return Err(error),
        Err(_) => return Ok(None),
    };
    // Another file may have taken the name since it was listed.
    let is_it = start.is_whole && start.handle == original.handle && start.data.len() == size;
    Ok(is_it.then(|| Read { data: start.data, attributes: original.clone() }))
}

/// Reads until `data` is full or the file ends; returns the number of bytes. A read that was to go beyond
/// `size`, the length of the file, and ends there has met the end.
fn read_full(source: &OwnedFd, data: &mut [u8], size: usize) -> Result<usize, Errno> {
    let mut count = 0;
    while count < data.len() {
        match pread(source, &mut data[count..], count as u64) {
            Ok(0) => break,
            Ok(more) => {
                count += more;
                if count == size {
                    break;
                }
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(count)
}

/// True for a file without holes that fits, and whose set-id bits the server need not be asked for.
fn is_small(original: &Attributes, bytes_max: usize) -> bool {
    original.kind == ObjectType::Regular
        && original.size <= bytes_max as u64
        && original.space_used >= original.size
        && original.mode & 0o6000 == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn a_file_is_read_to_its_end_whatever_its_length_was() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        for bytes in [0, 1, 2048] {
            std::fs::write(&path, vec![7; bytes]).unwrap();
            let file: OwnedFd = File::open(&path).unwrap().into();
            for size in [bytes, 1000, 3000] {
                let mut data = vec![0; 2049];
                assert_eq!(read_full(&file, &mut data, size), Ok(bytes), "{size}");
                assert!(data[..bytes].iter().all(|byte| *byte == 7));
            }
        }
    }
}
