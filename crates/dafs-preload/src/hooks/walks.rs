//! `scandir`, `glob`, `ftw` and `nftw`. The C library walks directories by internal calls that
//! cannot be interposed. These hooks use calls that can, for served and other paths alike.

use super::{At, at, bytes};
use crate::config;
use crate::failure::Errno;
use crate::limits::WALK_DEPTH_MAX;
use crate::next::{interpose, is_internal, is_serving, serve};
use libc::{AT_FDCWD, DIR, c_char, c_int, c_void, dirent64, size_t, stat};
use std::ffi::{CStr, CString};

type Choose = Option<unsafe extern "C" fn(*const dirent64) -> c_int>;
type Compare = Option<unsafe extern "C" fn(*const c_void, *const c_void) -> c_int>;

/// # Safety
/// As [`bytes`].
unsafe fn is_here(dir: c_int, path: *const c_char) -> bool {
    // SAFETY: the caller's promise.
    matches!(unsafe { at(dir, path) }, At::Served(_))
}

/// # Safety
/// The arguments are as `scandir` wants them; `stream` is open and is closed here.
unsafe fn scan(
    stream: *mut DIR,
    to: *mut *mut *mut dirent64,
    choose: Choose,
    compare: Compare,
) -> c_int {
    let mut found: Vec<*mut dirent64> = Vec::new();
    // SAFETY: the caller's promise; an entry stays as it is until the next is read.
    let mut failed = unsafe {
        loop {
            Errno(0).set();
            let entry = libc::readdir64(stream);
            if entry.is_null() {
                break Errno::last();
            }
            if choose.is_some_and(|choose| choose(entry) == 0) {
                continue;
            }
            let copy = libc::malloc(size_of::<dirent64>()).cast::<dirent64>();
            if copy.is_null() {
                break Errno(libc::ENOMEM);
            }
            std::ptr::copy_nonoverlapping(entry, copy, 1);
            found.push(copy);
        }
    };
    // SAFETY: the list is given to the program in memory that it can free, or is freed.
    unsafe {
        libc::closedir(stream);
        let list = libc::malloc(found.len().max(1) * size_of::<*mut dirent64>());
        if list.is_null() {
            failed = Errno(libc::ENOMEM);
        }
        if failed != Errno(0) {
            found.iter().for_each(|entry| libc::free(entry.cast()));
            libc::free(list);
            failed.set();
            return -1;
        }
        let list = list.cast::<*mut dirent64>();
        std::ptr::copy_nonoverlapping(found.as_ptr(), list, found.len());
        if compare.is_some() {
            libc::qsort(list.cast(), found.len(), size_of::<*mut dirent64>(), compare);
        }
        *to = list;
    }
    found.len() as c_int
}

/// # Safety
/// As [`scan`].
unsafe fn scan_path(
    (dir, path): (c_int, *const c_char),
    to: *mut *mut *mut dirent64,
    choose: Choose,
    compare: Compare,
    pass: impl FnOnce() -> c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        if !is_here(dir, path) {
            return pass();
        }
        let fd = libc::openat(dir, path, libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC);
        if fd < 0 {
            return -1;
        }
        let stream = libc::fdopendir(fd);
        if stream.is_null() { -1 } else { scan(stream, to, choose, compare) }
    }
}

/// The structure of `glob`; with `GLOB_ALTDIRFUNC` it calls the functions in it.
#[repr(C)]
struct Glob {
    count: size_t,
    paths: *mut *mut c_char,
    reserved: size_t,
    flags: c_int,
    closedir: unsafe extern "C" fn(*mut DIR) -> c_int,
    readdir: unsafe extern "C" fn(*mut DIR) -> *mut dirent64,
    opendir: unsafe extern "C" fn(*const c_char) -> *mut DIR,
    lstat: unsafe extern "C" fn(*const c_char, *mut stat) -> c_int,
    stat: unsafe extern "C" fn(*const c_char, *mut stat) -> c_int,
}

const GLOB_ALTDIRFUNC: c_int = 1 << 9;

type Complain = Option<unsafe extern "C" fn(*const c_char, c_int) -> c_int>;
type GlobCall = unsafe extern "C" fn(*const c_char, c_int, Complain, *mut Glob) -> c_int;

/// # Safety
/// The arguments are as `glob` wants them.
unsafe fn glob_with_ours(
    pattern: *const c_char,
    flags: c_int,
    complain: Complain,
    result: *mut Glob,
    pass: impl FnOnce() -> c_int,
) -> c_int {
    static NEXT: crate::next::Next = crate::next::Next::new(c"glob");
    let next = NEXT.get();
    let own = flags & GLOB_ALTDIRFUNC != 0;
    if config::get().is_none() || is_internal() || own || result.is_null() || next.is_null() {
        return pass();
    }
    // SAFETY: the caller's promise.
    let place = unsafe { at(AT_FDCWD, pattern) };
    // Otherwise an unresolvable path would only match nothing.
    if let (true, At::Invalid(errno)) = (is_serving(), place) {
        errno.set();
        return libc::GLOB_ABORTED;
    }
    // SAFETY: the structure is the program's and has room for these; the function of that name has
    // this type. The given functions are the hooks, which pass on calls for other streams.
    unsafe {
        (*result).closedir = libc::closedir;
        (*result).readdir = libc::readdir64;
        (*result).opendir = libc::opendir;
        (*result).lstat = libc::lstat;
        (*result).stat = stat;
        std::mem::transmute::<*mut c_void, GlobCall>(next)(
            pattern,
            flags | GLOB_ALTDIRFUNC,
            complain,
            result,
        )
    }
}

/// The position of an object in a walk.
#[repr(C)]
struct Where {
    /// Offset of its name in the path.
    base: c_int,
    level: c_int,
}

const PHYSICALLY: c_int = 1;
const ONE_FILE_SYSTEM: c_int = 2;
const FROM_WITHIN: c_int = 4;
const DEPTH_FIRST: c_int = 8;
const ACTIONS: c_int = 16;

const FILE: c_int = 0;
const DIRECTORY: c_int = 1;
const UNREADABLE_DIRECTORY: c_int = 2;
const UNKNOWN: c_int = 3;
const LINK: c_int = 4;
const DIRECTORY_AFTERWARDS: c_int = 5;
const LINK_TO_NOTHING: c_int = 6;

/// The answers of a program's function with `FTW_ACTIONRETVAL`.
const SKIP_SUBTREE: c_int = 2;
const SKIP_SIBLINGS: c_int = 3;

type OldVisit = unsafe extern "C" fn(*const c_char, *const stat, c_int) -> c_int;
type Visit = unsafe extern "C" fn(*const c_char, *const stat, c_int, *mut Where) -> c_int;

#[derive(Clone, Copy)]
enum Visitor {
    Old(OldVisit),
    New(Visit),
}

struct Walk {
    visitor: Visitor,
    flags: c_int,
    device: u64,
    /// The directories above, so that links to them are not followed in circles.
    above: Vec<(u64, u64)>,
}

impl Walk {
    /// # Safety
    /// The visitor is the program's function for this.
    unsafe fn visit(&self, path: &CStr, found: &stat, kind: c_int, level: usize) -> c_int {
        let base = path.to_bytes().iter().rposition(|&byte| byte == b'/').map_or(0, |at| at + 1);
        let mut place = Where { base: base as c_int, level: level as c_int };
        // SAFETY: the caller's promise.
        unsafe {
            match self.visitor {
                Visitor::New(visit) => visit(path.as_ptr(), found, kind, &mut place),
                // An `ftw` function knows no more kinds than these.
                Visitor::Old(visit) => {
                    let kind = if kind == LINK_TO_NOTHING { UNKNOWN } else { kind };
                    visit(path.as_ptr(), found, kind)
                }
            }
        }
    }

    /// Visits an object and its children. A result other than zero ends the walk; with
    /// `FTW_ACTIONRETVAL` it may select how to go on.
    ///
    /// # Safety
    /// As [`Walk::visit`].
    unsafe fn enter(&mut self, path: &CStr, level: usize) -> c_int {
        // SAFETY: all zero is a valid value of this plain structure.
        let mut found: stat = unsafe { std::mem::zeroed() };
        let physically = self.flags & PHYSICALLY != 0;
        // SAFETY: a C string and a structure to fill.
        let kind = unsafe {
            let look = if physically { libc::lstat } else { stat };
            if look(path.as_ptr(), &mut found) == 0 {
                match found.st_mode & libc::S_IFMT {
                    libc::S_IFDIR => DIRECTORY,
                    libc::S_IFLNK => LINK,
                    _ => FILE,
                }
            } else if !physically && libc::lstat(path.as_ptr(), &mut found) == 0 {
                LINK_TO_NOTHING
            } else if level == 0 {
                return -1;
            } else {
                UNKNOWN
            }
        };
        let itself = (found.st_dev, found.st_ino);
        if level == 0 {
            self.device = found.st_dev;
        }
        if self.flags & ONE_FILE_SYSTEM != 0 && kind != UNKNOWN && found.st_dev != self.device {
            return 0;
        }
        if kind != DIRECTORY {
            // SAFETY: the caller's promise.
            return unsafe { self.visit(path, &found, kind, level) };
        }
        if !physically && self.above.contains(&itself) {
            return 0;
        }
        if level >= WALK_DEPTH_MAX {
            Errno(libc::ENAMETOOLONG).set();
            return -1;
        }
        // SAFETY: a C string.
        let stream = unsafe { libc::opendir(path.as_ptr()) };
        if stream.is_null() {
            // Only unreadable directories are skipped, or other errors would hide parts of the
            // tree.
            if Errno::last() != Errno(libc::EACCES) {
                return -1;
            }
            // SAFETY: the caller's promise.
            return unsafe { self.visit(path, &found, UNREADABLE_DIRECTORY, level) };
        }
        self.above.push(itself);
        // SAFETY: the caller's promise; the stream is open and closed by this.
        let done = unsafe { self.walk(path, &found, stream, level) };
        self.above.pop();
        done
    }

    /// # Safety
    /// As [`Walk::visit`]; `stream` is open and is closed here.
    unsafe fn walk(&mut self, path: &CStr, found: &stat, stream: *mut DIR, level: usize) -> c_int {
        let mut names: Vec<Vec<u8>> = Vec::new();
        let depth_first = self.flags & DEPTH_FIRST != 0;
        // SAFETY: an entry stays as it is until the next is read.
        let failed = unsafe {
            loop {
                Errno(0).set();
                let entry = libc::readdir64(stream);
                if entry.is_null() {
                    break Errno::last();
                }
                let name = CStr::from_ptr((*entry).d_name.as_ptr()).to_bytes();
                if name != b"." && name != b".." {
                    names.push(name.to_vec());
                }
            }
        };
        // SAFETY: it was opened for this.
        unsafe { libc::closedir(stream) };
        if failed != Errno(0) {
            failed.set();
            return -1;
        }
        if !depth_first {
            // SAFETY: the caller's promise.
            match unsafe { self.visit(path, found, DIRECTORY, level) } {
                0 => {}
                SKIP_SUBTREE if self.flags & ACTIONS != 0 => return 0,
                other => return other,
            }
        }
        for name in names {
            let mut below = path.to_bytes().to_vec();
            if below.last() != Some(&b'/') {
                below.push(b'/');
            }
            below.extend_from_slice(&name);
            let Ok(below) = CString::new(below) else { continue };
            // SAFETY: the caller's promise.
            match unsafe { self.enter(&below, level + 1) } {
                0 => {}
                SKIP_SUBTREE if self.flags & ACTIONS != 0 => {}
                SKIP_SIBLINGS if self.flags & ACTIONS != 0 => break,
                other => return other,
            }
        }
        match depth_first {
            // SAFETY: the caller's promise.
            true => unsafe { self.visit(path, found, DIRECTORY_AFTERWARDS, level) },
            false => 0,
        }
    }
}

/// # Safety
/// The arguments are as `nftw` wants them.
unsafe fn walk(
    path: *const c_char,
    visitor: Visitor,
    flags: c_int,
    pass: impl FnOnce() -> c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    if !unsafe { is_here(AT_FDCWD, path) } {
        return pass();
    }
    if flags & FROM_WITHIN != 0 {
        // SAFETY: the caller's promise.
        crate::report::refused("nftw", unsafe { bytes(path) });
        return serve(|| Err(Errno(libc::EOPNOTSUPP)));
    }
    // SAFETY: the caller's promise.
    let Ok(path) = CString::new(unsafe { bytes(path) }) else { return -1 };
    let mut walk = Walk { visitor, flags, device: 0, above: Vec::new() };
    // SAFETY: the caller's promise.
    match unsafe { walk.enter(&path, 0) } {
        SKIP_SUBTREE | SKIP_SIBLINGS if flags & ACTIONS != 0 => 0,
        done => done,
    }
}

interpose! {
    fn [scandir, scandir64]
    (path: *const c_char, to: *mut *mut *mut dirent64, choose: Choose, compare: Compare) -> c_int, |pass| {
        scan_path((AT_FDCWD, path), to, choose, compare, pass)
    }
    fn [scandirat, scandirat64]
    (dir: c_int, path: *const c_char, to: *mut *mut *mut dirent64, choose: Choose, compare: Compare) -> c_int, |pass| {
        scan_path((dir, path), to, choose, compare, pass)
    }
    fn [glob, glob64]
    (pattern: *const c_char, flags: c_int, complain: Complain, result: *mut Glob) -> c_int, |pass| {
        glob_with_ours(pattern, flags, complain, result, pass)
    }
    fn [ftw, ftw64](path: *const c_char, visit: OldVisit, descriptors: c_int) -> c_int, |pass| {
        walk(path, Visitor::Old(visit), 0, pass)
    }
    fn [nftw, nftw64]
    (path: *const c_char, visit: Visit, descriptors: c_int, flags: c_int) -> c_int, |pass| {
        walk(path, Visitor::New(visit), flags, pass)
    }
    fn [fts_open, fts64_open]
    (paths: *const *const c_char, options: c_int, compare: Order) -> *mut c_void, |pass| {
        refused_tree(paths, pass)
    }
}

type Order = Option<unsafe extern "C" fn(*mut *const c_void, *mut *const c_void) -> c_int>;

/// The C library walks such trees by internal calls that cannot be interposed: it would see this
/// machine's files.
///
/// # Safety
/// The paths are null or a list of C strings that ends with null.
unsafe fn refused_tree(
    paths: *const *const c_char,
    pass: impl FnOnce() -> *mut c_void,
) -> *mut c_void {
    let mut next = paths;
    // SAFETY: the caller's promise.
    unsafe {
        while !next.is_null() && !(*next).is_null() {
            if is_here(AT_FDCWD, *next) {
                crate::report::refused("fts_open", bytes(*next));
                return serve(|| Err(Errno(libc::EOPNOTSUPP)));
            }
            next = next.add(1);
        }
    }
    pass()
}
