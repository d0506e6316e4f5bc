//! Mapping files: the content is read into memory of the process's own; and what programs do to their maps.

use super::{known, must_be_file};
use crate::failure::{Errno, Mapping, Result};
use crate::limits::{MAPPED_BYTES_MAX, PAGE_BYTES};
use crate::maps::{self, Map, pages};
use crate::next::{interpose, is_aside, serve};
use crate::report;
use crate::table::Description;
use libc::{c_int, c_void, off_t, size_t};

/// `madvise` beside what `libc` knows: drop also what is locked, and guard pages.
const MADV_DONTNEED_LOCKED: c_int = 24;
const MADV_GUARD_INSTALL: c_int = 102;

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
    let whole = pages(at as usize, bytes);
    // What was there before, if the program chose the place.
    maps::forget(&whole);
    // SAFETY: the mapping is new and of whole pages.
    let target = unsafe { std::slice::from_raw_parts_mut(at.cast::<u8>(), whole.len()) };
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
    let is_written = protection & libc::PROT_WRITE != 0;
    maps::note(whole, Map { is_shared: shared, is_written });
    Ok(Mapping(at))
}

/// Notes that memory which is not ours has been mapped.
fn mapped_elsewhere(at: &Mapping, bytes: size_t) {
    if at.0 != libc::MAP_FAILED && !is_aside() {
        maps::forget(&pages(at.0 as usize, bytes));
    }
}

/// Whether memory may be of our maps; asks for no lock if there are none.
fn may_be_ours() -> bool {
    !maps::are_none() && !is_aside()
}

/// Whether our maps may be given other protection.
fn may_protect(address: *mut c_void, bytes: size_t, protection: c_int) -> Result<()> {
    if protection & libc::PROT_WRITE == 0 {
        return Ok(());
    }
    maps::with(|maps| {
        let ours = maps.within(&pages(address as usize, bytes));
        if ours.iter().any(|(_, map)| map.is_shared) {
            // The file is open for reading only.
            return Err(Errno(libc::EACCES));
        }
        for (part, map) in ours {
            maps.take(&part);
            maps.put(part, Map { is_written: true, ..map });
        }
        Ok(())
    })
}

/// What advice means to our maps: that they are to be left alone, an error, or nothing (`None`).
fn advised(address: *mut c_void, bytes: size_t, advice: c_int) -> Option<Result<c_int>> {
    let drops = matches!(advice, libc::MADV_DONTNEED | MADV_DONTNEED_LOCKED);
    // What the kernel does to memory without a file only.
    let is_for_others = matches!(
        advice,
        libc::MADV_FREE | libc::MADV_REMOVE | libc::MADV_WIPEONFORK | MADV_GUARD_INSTALL
    );
    if !drops && !is_for_others {
        return None;
    }
    let pages = pages(address as usize, bytes);
    maps::with(|maps| {
        let ours = maps.within(&pages);
        if ours.is_empty() {
            return None;
        }
        // It would be read again as it is in the file, and so it still is if nobody has written there.
        let stays = maps.cover(&pages) && ours.iter().all(|(_, map)| !map.is_written);
        Some(if drops && stays { Ok(0) } else { Err(Errno(libc::EINVAL)) })
    })
}

/// Moves or cuts a map. What it grows by would be of no file: programs must bear that there is no room for
/// a larger one, and map anew.
fn remapped(
    old: (*mut c_void, size_t),
    new_bytes: size_t,
    flags: c_int,
    pass: impl FnOnce() -> Mapping,
) -> Mapping {
    let before = pages(old.0 as usize, old.1);
    let new = pages(old.0 as usize, new_bytes);
    let ours = maps::with(|maps| maps.within(&before));
    if !ours.is_empty() && (new.len() > before.len() || flags & libc::MREMAP_DONTUNMAP != 0) {
        report::refused("mremap", b"");
        return serve(|| Err(Errno(libc::ENOMEM)));
    }
    let taken = maps::with(|maps| maps.take(&before));
    let at = pass();
    let (errno, is_moved) = (Errno::last(), at.0 != libc::MAP_FAILED);
    let to = if is_moved { pages(at.0 as usize, new_bytes) } else { before.clone() };
    maps::with(|maps| {
        maps.take(&to);
        for (part, map) in taken {
            let (first, last) = (part.start - before.start, part.end - before.start);
            maps.put(to.start + first..(to.start + last).min(to.end), map);
        }
    });
    errno.set();
    at
}

interpose! {
    fn mmap(address: *mut c_void, bytes: size_t, protection: c_int, flags: c_int, fd: c_int, offset: off_t) -> Mapping, |pass| {
        match known(fd) {
            Some(file) if flags & libc::MAP_ANONYMOUS == 0 => {
                serve(|| map(&file, address, bytes, protection, flags, offset))
            }
            _ => {
                let at = pass();
                mapped_elsewhere(&at, bytes);
                at
            }
        }
    }
    fn mmap64(address: *mut c_void, bytes: size_t, protection: c_int, flags: c_int, fd: c_int, offset: off_t) -> Mapping, |pass| {
        match known(fd) {
            Some(file) if flags & libc::MAP_ANONYMOUS == 0 => {
                serve(|| map(&file, address, bytes, protection, flags, offset))
            }
            _ => {
                let at = pass();
                mapped_elsewhere(&at, bytes);
                at
            }
        }
    }    fn munmap(address: *mut c_void, bytes: size_t) -> c_int, |pass| {
        if may_be_ours() && (address as usize).is_multiple_of(PAGE_BYTES) {
            // Before another thread can have the same addresses.
            maps::forget(&pages(address as usize, bytes));
        }
        pass()
    }
    fn mprotect(address: *mut c_void, bytes: size_t, protection: c_int) -> c_int, |pass| {
        if may_be_ours() && let Err(errno) = may_protect(address, bytes, protection) {
            return serve(|| Err(errno));
        }
        pass()
    }
    fn madvise(address: *mut c_void, bytes: size_t, advice: c_int) -> c_int, |pass| {
        match if may_be_ours() { advised(address, bytes, advice) } else { None } {
            Some(answer) => serve(|| answer),
            None => pass(),
        }
    }
    fn mremap(old: *mut c_void, old_bytes: size_t, new_bytes: size_t, flags: c_int, to: *mut c_void) -> Mapping, |pass| {
        match may_be_ours() {
            true => remapped((old, old_bytes), new_bytes, flags, pass),
            false => pass(),
        }
    }
}
