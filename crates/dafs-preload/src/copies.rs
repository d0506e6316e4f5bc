//! Copies between served files and descriptors of the kernel.

use crate::descriptor::kernel;
use crate::failure::{Errno, Result};
use crate::limits::COPY_BYTES_MAX;
use crate::table::Description;
use dafs_mem::CheckedSlice;
use libc::c_int;
use std::sync::Arc;

/// A source or target of a copy: a served file, or a descriptor of the kernel.
pub(crate) enum End {
    Served(Arc<Description>),
    Other,
}

/// One end of a copy: its descriptor, and an offset that replaces the descriptor's own.
pub(crate) struct CopyEnd<'a> {
    pub(crate) fd: c_int,
    pub(crate) end: End,
    pub(crate) offset: Option<&'a mut i64>,
}

impl CopyEnd<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> Result<usize> {
        let read = match (&self.end, &mut self.offset) {
            (End::Served(from), None) => {
                return from.read(self.fd, &[CheckedSlice::from_mut(bytes)]);
            }
            (End::Served(from), Some(offset)) => {
                from.read_vectored(&[CheckedSlice::from_mut(bytes)], **offset)?
            }
            (End::Other, None) => {
                // SAFETY: fills the slice.
                return moved(unsafe {
                    libc::syscall(libc::SYS_read, self.fd, bytes.as_mut_ptr(), bytes.len())
                });
            }
            // SAFETY: fills the slice.
            (End::Other, Some(at)) => moved(unsafe {
                libc::syscall(libc::SYS_pread64, self.fd, bytes.as_mut_ptr(), bytes.len(), **at)
            })?,
        };
        if let Some(offset) = &mut self.offset {
            **offset += read as i64;
        }
        Ok(read)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        // SAFETY: a source is only copied from.
        let source = unsafe { CheckedSlice::from_ref(bytes) };
        let written = match (&self.end, &mut self.offset) {
            (End::Served(to), None) => return to.write(self.fd, &[source]),
            (End::Served(to), Some(offset)) => to.write_vectored(&[source], **offset)?,
            (End::Other, None) => {
                // SAFETY: reads the slice.
                return moved(unsafe {
                    libc::syscall(libc::SYS_write, self.fd, bytes.as_ptr(), bytes.len())
                });
            }
            // SAFETY: reads the slice.
            (End::Other, Some(at)) => moved(unsafe {
                libc::syscall(libc::SYS_pwrite64, self.fd, bytes.as_ptr(), bytes.len(), **at)
            })?,
        };
        if let Some(offset) = &mut self.offset {
            **offset += written as i64;
        }
        Ok(written)
    }

    /// Moves the offset back over bytes that were read and could not be written.
    fn give_back(&mut self, bytes: usize) {
        match &mut self.offset {
            Some(offset) => **offset -= bytes as i64,
            None => drop(kernel::seek(self.fd, -(bytes as i64), libc::SEEK_CUR)),
        }
    }
}

fn moved(returned: libc::c_long) -> Result<usize> {
    usize::try_from(returned).map_err(|_| Errno::last())
}

/// Copies up to `count` bytes; returns the number copied.
pub(crate) fn copy(mut from: CopyEnd<'_>, mut to: CopyEnd<'_>, count: usize) -> Result<usize> {
    // Bytes read from a pipe could not be put back if the write fails.
    if from.offset.is_none() && kernel::seek(from.fd, 0, libc::SEEK_CUR).is_err() {
        return Err(Errno(libc::EINVAL));
    }
    let mut bytes = vec![0; count.min(COPY_BYTES_MAX)];
    let read = from.read(&mut bytes)?;
    let mut done = 0;
    while done < read {
        match to.write(&bytes[done..read]) {
            Ok(written) => done += written,
            Err(error) => {
                from.give_back(read - done);
                return if done == 0 { Err(error) } else { Ok(done) };
            }
        }
    }
    Ok(done)
}
