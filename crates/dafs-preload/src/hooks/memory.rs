//! Mapped files: the content is read into anonymous memory of the process. Changes of such maps are
//! intercepted.

use super::{must_be_file, served_file};
use crate::failure::{Errno, Mapping, Result};
use crate::limits::{MAPPED_BYTES_MAX, PAGE_BYTES};
use crate::maps::{self, Map, Pages, pages};
use crate::next::{interpose, is_internal, serve};
use crate::report;
use crate::table::Description;
use crate::watch;
use dafs_mem::CheckedSlice;
use libc::{c_int, c_void, off_t, size_t};

/// `madvise` values that `libc` lacks: drop also locked pages, and guard pages.
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
        // Other processes could not see writes to such a map.
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
    let map = || {
        // SAFETY: the caller's promise.
        let at = unsafe { libc::syscall(libc::SYS_mmap, address, bytes, both, flags, -1, 0_i64) };
        Mapping(if at == -1 { libc::MAP_FAILED } else { at as *mut c_void })
    };
    let at = placed(fixed(address, bytes, flags), map).ok_or(Errno(libc::ENOMEM))?.0;
    if at == libc::MAP_FAILED {
        return Err(Errno::last());
    }
    let whole = pages(at as usize, bytes);
    // Maps that the C library has unmapped internally.
    maps::forget(&whole);
    // SAFETY: the mapping is new and of whole pages.
    let target = unsafe { std::slice::from_raw_parts_mut(at.cast::<u8>(), whole.len()) };
    if let Err(errno) = file.read_vectored(&[CheckedSlice::from_mut(target)], offset) {
        // SAFETY: the mapping is ours, and not published.
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
    if !maps::note(whole, Map { is_shared: shared, is_written }) {
        // SAFETY: as above.
        unsafe { libc::munmap(at, bytes) };
        return Err(Errno(libc::ENOMEM));
    }
    Ok(Mapping(at))
}

/// The place that the program has chosen for a map, which replaces earlier maps there.
fn fixed(address: *mut c_void, bytes: size_t, flags: c_int) -> Option<Pages> {
    let replaces = flags & libc::MAP_FIXED != 0;
    replaces.then(|| pages(address as usize, bytes))
}

/// Has `pass` replace a range. The old maps there are forgotten first, before another thread can
/// use the new ones, and restored if the kernel fails. `None` if there is no memory to note it.
fn placed(place: Option<Pages>, pass: impl FnOnce() -> Mapping) -> Option<Mapping> {
    let Some(place) = place.filter(maps::may_hold) else { return Some(pass()) };
    let taken = maps::take(&place)?;
    let at = pass();
    if at.0 == libc::MAP_FAILED {
        let errno = Errno::last();
        maps::put_back(taken);
        errno.set();
    }
    Some(at)
}

/// Maps memory that belongs to no served file.
fn mapped_elsewhere(
    place: Option<Pages>,
    bytes: size_t,
    pass: impl FnOnce() -> Mapping,
) -> Mapping {
    if is_internal() {
        return pass();
    }
    let Some(at) = placed(place, pass) else { return serve(|| Err(Errno(libc::ENOMEM))) };
    if at.0 != libc::MAP_FAILED {
        maps::forget(&pages(at.0 as usize, bytes));
    }
    at
}

/// True if memory may belong to our maps. Takes no lock if it lies apart from them.
fn may_be_ours(pages: &Pages) -> bool {
    maps::may_hold(pages) && !is_internal()
}

/// Changes the protection of memory, unless a map does not allow it.
fn protected(
    address: *mut c_void,
    bytes: size_t,
    protection: c_int,
    pass: impl FnOnce() -> c_int,
) -> c_int {
    let pages = pages(address as usize, bytes);
    if protection & libc::PROT_WRITE == 0 || !may_be_ours(&pages) {
        return pass();
    }
    if maps::with(|maps| maps.within(&pages).any(|(_, map)| map.is_shared)) {
        // The file is open for reading only.
        return serve(|| Err(Errno(libc::EACCES)));
    }
    let done = pass();
    if done == 0 {
        maps::with(|maps| maps.write(&pages));
    }
    done
}

/// The effect of advice on our maps: success without an effect, an error, or none of our business
/// (`None`).
fn advised(address: *mut c_void, bytes: size_t, advice: c_int) -> Option<Result<c_int>> {
    let drops = matches!(advice, libc::MADV_DONTNEED | MADV_DONTNEED_LOCKED);
    // Advice for memory without a file only.
    let is_for_others = matches!(
        advice,
        libc::MADV_FREE | libc::MADV_REMOVE | libc::MADV_WIPEONFORK | MADV_GUARD_INSTALL
    );
    let pages = pages(address as usize, bytes);
    if !drops && !is_for_others || !may_be_ours(&pages) {
        return None;
    }
    maps::with(|maps| {
        maps.within(&pages).next()?;
        // Unwritten pages still hold the content of the file: they stay.
        let stays = maps.cover(&pages) && maps.within(&pages).all(|(_, map)| !map.is_written);
        Some(if drops && stays { Ok(0) } else { Err(Errno(libc::EINVAL)) })
    })
}

/// Unmaps memory. The notes about it are restored if the kernel fails.
fn unmapped(address: *mut c_void, bytes: size_t, pass: impl FnOnce() -> c_int) -> c_int {
    let pages = pages(address as usize, bytes);
    if !(address as usize).is_multiple_of(PAGE_BYTES) || !may_be_ours(&pages) {
        return pass();
    }
    // Before another thread can get the same addresses.
    let Some(taken) = maps::take(&pages) else { return serve(|| Err(Errno(libc::ENOMEM))) };
    let done = pass();
    if done != 0 {
        let errno = Errno::last();
        maps::put_back(taken);
        errno.set();
    }
    done
}

/// Moves or shrinks a map. Growth fails with `ENOMEM`, because the kernel would add zeros and not
/// the file's content. Programs must handle that, and map anew.
fn remapped(
    old: (*mut c_void, size_t),
    (to, new_bytes): (*mut c_void, size_t),
    flags: c_int,
    pass: impl FnOnce() -> Mapping,
) -> Mapping {
    let moves = flags & libc::MREMAP_FIXED != 0;
    let place = moves.then(|| pages(to as usize, new_bytes));
    let before = pages(old.0 as usize, old.1);
    let new = pages(old.0 as usize, new_bytes);
    let is_ours = || maps::with(|maps| maps.within(&before).next().is_some());
    if !may_be_ours(&before) || !is_ours() {
        return mapped_elsewhere(place, new_bytes, pass);
    }
    if new.len() > before.len() || flags & libc::MREMAP_DONTUNMAP != 0 {
        report::refused("mremap", b"");
        return serve(|| Err(Errno(libc::ENOMEM)));
    }
    // The notes about pages that stay in place stay valid all the time.
    let leaves = if moves { before.clone() } else { new.end..before.end };
    let Some(taken) = maps::take(&leaves) else { return serve(|| Err(Errno(libc::ENOMEM))) };
    let Some(at) = placed(place, pass) else {
        maps::put_back(taken);
        return serve(|| Err(Errno(libc::ENOMEM)));
    };
    let errno = Errno::last();
    if at.0 == libc::MAP_FAILED {
        maps::put_back(taken);
    } else if moves {
        let to = pages(at.0 as usize, new_bytes);
        for (part, map) in taken {
            let (first, last) = (part.start - before.start, part.end - before.start);
            let part = to.start + first..(to.start + last).min(to.end);
            if !part.is_empty() {
                maps::note(part, map);
            }
        }
    }
    errno.set();
    at
}

interpose! {
    fn [mmap, mmap64]
    (address: *mut c_void, bytes: size_t, protection: c_int, flags: c_int, fd: c_int, offset: off_t) -> Mapping, |pass| {
        match served_file(fd) {
            Some(file) if flags & libc::MAP_ANONYMOUS == 0 => {
                serve(|| map(&file, address, bytes, protection, flags, offset))
            }
            _ => {
                let at = mapped_elsewhere(fixed(address, bytes, flags), bytes, pass);
                if at.0 != libc::MAP_FAILED && flags & libc::MAP_ANONYMOUS == 0 {
                    watch::mapped(fd, bytes);
                }
                at
            }
        }
    }
    fn munmap(address: *mut c_void, bytes: size_t) -> c_int, |pass| {
        unmapped(address, bytes, pass)
    }
    fn mprotect(address: *mut c_void, bytes: size_t, protection: c_int) -> c_int, |pass| {
        protected(address, bytes, protection, pass)
    }
    fn madvise(address: *mut c_void, bytes: size_t, advice: c_int) -> c_int, |pass| {
        match advised(address, bytes, advice) {
            Some(answer) => serve(|| answer),
            None => pass(),
        }
    }
    fn mremap(old: *mut c_void, old_bytes: size_t, new_bytes: size_t, flags: c_int, to: *mut c_void) -> Mapping, |pass| {
        remapped((old, old_bytes), (to, new_bytes), flags, pass)
    }
}
