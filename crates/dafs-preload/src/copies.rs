//! Copies between what is served and descriptors of the kernel's.

use crate::descriptor::kernel;
use crate::failure::{Errno, Result};
use crate::limits::COPY_BYTES_MAX;
use crate::table::Description;
use dafs_mem::CheckedSlice;
use libc::c_int;
use std::sync::Arc;

/// Where a copy reads from or writes to: a served file, or a descriptor of the kernel's.
pub(crate) enum End {
    Served(Arc<Description>),
    Other,
}

/// One end of a copy: its descriptor, and an offset that stands in place of the descriptor's.
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

    /// Goes back over what was read and could not be written.
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

/// Copies up to `count` bytes; returns how many.
pub(crate) fn copy(mut from: CopyEnd<'_>, mut to: CopyEnd<'_>, count: usize) -> Result<usize> {
    // What comes out of a pipe could not be given back if it cannot be written.
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
