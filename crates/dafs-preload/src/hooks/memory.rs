//! Mapping files: the content is read into memory of the process's own.

use super::{known, must_be_file};
use crate::failure::{Errno, Mapping, Result};
use crate::limits::MAPPED_BYTES_MAX;
use crate::next::{interpose, serve};
use crate::report;
use crate::table::Description;
use libc::{c_int, c_void, off_t, size_t};

/// # Safety
/// As `mmap`: with `MAP_FIXED`, nothing of the program's that is still wanted is there.
unsafe fn map(
    file: &Description,
    address: *mut c_void,
    bytes: size_t,
    protection: c_int,
    flags: c_int,
    offset: off_t,
) -> Result<Mapping> {
    must_be_file(file)?;
    if !file.record.reads() {
        return Err(Errno(libc::EACCES));
    }
    let refuse = || {
        report::refused("mmap", &file.record.shown);
        Err(Errno(libc::ENODEV))
    };
    let shared = flags & libc::MAP_TYPE != libc::MAP_PRIVATE;
    if shared && (protection & libc::PROT_WRITE != 0 || file.record.writes()) {
        // What is written there could not be seen by anybody else.
        return refuse();
    }
    if offset < 0 || offset % 4096 != 0 || bytes == 0 {
        return Err(Errno(libc::EINVAL));
    }
    if bytes > MAPPED_BYTES_MAX {
        return refuse();
    }
    let kept = flags & (libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE | libc::MAP_32BIT);
    let flags = kept | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let both = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: the caller's promise.
    let at = unsafe { libc::syscall(libc::SYS_mmap, address, bytes, both, flags, -1, 0_i64) };
    if at == -1 {
        return Err(Errno::last());
    }
    let at = at as *mut c_void;
    // SAFETY: the mapping is new and so long.
    let target = unsafe { std::slice::from_raw_parts_mut(at.cast::<u8>(), bytes) };
    if let Err(errno) = file.read_vectored(&mut [target], offset) {
        // SAFETY: the mapping is ours; nobody has seen it.
        unsafe { libc::munmap(at, bytes) };
        return Err(errno);
    }
    // SAFETY: as above.
    if protection != both && unsafe { libc::mprotect(at, bytes, protection) } != 0 {
        let errno = Errno::last();
        // SAFETY: as above.
        unsafe { libc::munmap(at, bytes) };
        return Err(errno);
    }
    Ok(Mapping(at))
}

interpose! {
    fn mmap(address: *mut c_void, bytes: size_t, protection: c_int, flags: c_int, fd: c_int, offset: off_t) -> Mapping, |pass| {
        match known(fd) {
            Some(file) if flags & libc::MAP_ANONYMOUS == 0 => {
                serve(|| map(&file, address, bytes, protection, flags, offset))
            }
            _ => pass(),
        }
    }
    fn mmap64(address: *mut c_void, bytes: size_t, protection: c_int, flags: c_int, fd: c_int, offset: off_t) -> Mapping, |pass| {
        match known(fd) {
            Some(file) if flags & libc::MAP_ANONYMOUS == 0 => {
                serve(|| map(&file, address, bytes, protection, flags, offset))
            }
            _ => pass(),
        }
    }
}
