//! The checksum of a whole content, on this host and on a server. Holes are not read.

use super::digest::Digest;
use super::error::{CopyError, Outcome};
use super::pieces::{Ring, next_run};
use super::report::Report;
use crate::limits::PIECE_BYTES;
use crate::remote::{Error, File};
use rustix::fs::{SeekFrom, fstat, seek};
use rustix::io::Errno;
use std::os::fd::BorrowedFd;

/// The checksum of a file of this host. `failed` says which file it is.
pub(super) fn local_digest(
    report: &Report,
    file: BorrowedFd<'_>,
    failed: impl Fn(Errno) -> CopyError,
) -> Outcome<Digest> {
    let mut digest = Digest::new(true);
    let size = fstat(file).map_err(&failed)?.st_size.unsigned_abs();
    let mut memory = vec![0; PIECE_BYTES];
    let mut offset = 0;
    while offset < size {
        let data = match seek(file, SeekFrom::Data(offset)) {
            Ok(data) => data,
            Err(Errno::NXIO) => size,
            // A file system without holes has only data.
            Err(_) => offset,
        };
        digest.add_zeros(data - offset);
        offset = data;
        report.go_on()?;
        match rustix::io::pread(file, memory.as_mut_slice(), offset) {
            Ok(0) => break,
            Ok(count) => {
                digest.add_bytes(&memory[..count]);
                offset += count as u64;
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(failed(error)),
        }
    }
    Ok(digest)
}

/// The checksum of the first `size` bytes of a file on a server, and how many of them there are.
pub(super) fn remote_digest(
    report: &Report,
    ring: &mut Ring<'_, '_>,
    file: &File,
    size: u64,
    failed: impl Fn(&Error) -> CopyError,
) -> Outcome<(Digest, u64)> {
    let failed = |error: Error| failed(&error);
    let attributes = file.attributes().map_err(failed)?;
    let sparse = attributes.space_used < size;
    let (mut digest, mut length) = (Digest::new(true), 0);
    while length < size {
        let rest = Some(length..size);
        let run = if sparse { next_run(file, length).map_err(failed)? } else { rest };
        let Some(run) = run.filter(|run| run.start < size) else {
            // It ends in a hole.
            digest.add_zeros(attributes.size.saturating_sub(length));
            length = length.max(attributes.size);
            break;
        };
        digest.add_zeros(run.start - length);
        length = run.start;
        let end = run.end.min(size);
        let mut next = length;
        loop {
            while next < end
                && let Some(piece) = ring.take()
            {
                let bytes = (end - next).min(ring.piece_bytes() as u64) as usize;
                ring.read(file, piece, next, bytes).map_err(failed)?;
                next += bytes as u64;
            }
            let Some(part) = ring.next_read(file, size).map_err(failed)? else { break };
            if let Some(view) = part.piece.slice(0, part.bytes) {
                digest.add(view);
            }
            length += part.bytes as u64;
            ring.give_back(part.piece);
            report.pace(part.bytes as u64);
            report.go_on()?;
        }
        if length < end {
            break;
        }
    }
    Ok((digest, length))
}
