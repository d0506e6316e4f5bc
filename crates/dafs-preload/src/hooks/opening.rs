//! `open` and its relatives, temporary files, `close` and `dup`.

use super::{At, at, by_descriptor, by_path, bytes, give, named_number, served_file, taken};
use crate::config;
use crate::descriptor::kernel;
use crate::failure::{Errno, Result};
use crate::files;
use crate::location::{self, Location};
use crate::next::{interpose, is_internal, is_serving, serve};
use crate::streams;
use crate::table;
use crate::watch;
use dafs_client::descriptors;
use libc::{AT_FDCWD, c_char, c_int, c_uint, mode_t};

/// Opens a path if it is served.
///
/// # Safety
/// As [`bytes`].
pub(super) unsafe fn open_at(
    dir: c_int,
    path: *const c_char,
    flags: c_int,
    mode: mode_t,
    pass: impl FnOnce() -> c_int,
) -> c_int {
    let pass = || watch::open(pass);
    // SAFETY: the caller's promise.
    let text = unsafe { bytes(path) };
    if let Some(number) = named_number(text).filter(|number| table::may_know(*number))
        && !is_internal()
    {
        if is_serving() {
            return serve(|| Err(Errno(libc::EDEADLK)));
        }
        if let Some(description) = served_file(number) {
            return serve(|| files::open_again(&description, flags));
        }
    }
    // SAFETY: the caller's promise.
    unsafe { by_path!(dir, path, pass, |location| files::open(&location, flags, mode)) }
}

/// Makes a temporary file by the program's template, if that is served.
///
/// # Safety
/// `template` is a C string that may be written.
unsafe fn temporary(
    template: *mut c_char,
    suffix: c_int,
    pass: impl FnOnce() -> c_int,
    make: impl FnMut(&Location) -> Result<c_int>,
) -> c_int {
    let mut make = make;
    // SAFETY: the caller's promise.
    match unsafe { at(AT_FDCWD, template) } {
        At::Local => pass(),
        At::Invalid(errno) => serve(|| Err(errno)),
        At::Served(_) => serve(|| {
            let suffix = usize::try_from(suffix).map_err(|_| Errno(libc::EINVAL))?;
            // SAFETY: the caller's promise; no other slice of it is alive.
            let text = unsafe {
                std::slice::from_raw_parts_mut(template.cast::<u8>(), libc::strlen(template))
            };
            files::open_temporary(text, suffix, |name| match location::find(AT_FDCWD, name)? {
                Some(location) => make(&location),
                None => Err(Errno(libc::ENOENT)),
            })
        }),
    }
}

fn exclusively(flags: c_int) -> impl FnMut(&Location) -> Result<c_int> {
    let flags = flags & !libc::O_ACCMODE | libc::O_RDWR | libc::O_CREAT | libc::O_EXCL;
    move |location| files::open(location, flags, 0o600)
}

interpose! {
    fn [open, open64](path: *const c_char, flags: c_int, mode: mode_t) -> c_int, |pass| {
        open_at(AT_FDCWD, path, flags, mode, pass)
    }
    fn [openat, openat64]
    (dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int, |pass| {
        open_at(dir, path, flags, mode, pass)
    }
    fn [__open_2, __open64_2](path: *const c_char, flags: c_int) -> c_int, |pass| {
        open_at(AT_FDCWD, path, flags, 0, pass)
    }
    fn [__openat_2, __openat64_2](dir: c_int, path: *const c_char, flags: c_int) -> c_int, |pass| {
        open_at(dir, path, flags, 0, pass)
    }
    fn [creat, creat64](path: *const c_char, mode: mode_t) -> c_int, |pass| {
        open_at(AT_FDCWD, path, libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC, mode, pass)
    }

    fn [mkstemp, mkstemp64](template: *mut c_char) -> c_int, |pass| {
        temporary(template, 0, pass, exclusively(0))
    }
    fn [mkostemp, mkostemp64](template: *mut c_char, flags: c_int) -> c_int, |pass| {
        temporary(template, 0, pass, exclusively(flags))
    }
    fn [mkstemps, mkstemps64](template: *mut c_char, suffix: c_int) -> c_int, |pass| {
        temporary(template, suffix, pass, exclusively(0))
    }
    fn [mkostemps, mkostemps64]
    (template: *mut c_char, suffix: c_int, flags: c_int) -> c_int, |pass| {
        temporary(template, suffix, pass, exclusively(flags))
    }
    fn mkdtemp(template: *mut c_char) -> *mut c_char, |pass| {
        let passed = std::cell::Cell::new(std::ptr::null_mut());
        let made = temporary(
            template,
            0,
            || {
                passed.set(pass());
                if passed.get().is_null() { -1 } else { 0 }
            },
            |location| crate::names::make_directory(location, 0o700).map(|()| 0),
        );
        if made == 0 { template } else { passed.get() }
    }

    fn close(fd: c_int) -> c_int, |pass| {
        watch::close(fd);
        if !descriptors::is_kept(fd) {
            return by_descriptor!(fd, pass, |_description| files::close(fd).map(|()| 0));
        }
        if !is_serving() {
            // The program has no such descriptor: it is one of this library's own.
            return serve(|| Err(Errno(libc::EBADF)));
        }
        descriptors::release(fd);
        pass()
    }
    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int, |pass| {
        watch::forget_from(c_int::try_from(first).unwrap_or(c_int::MAX));
        const KNOWN: c_int = 2 | 4;
        const CLOEXEC: c_int = 4;
        if is_serving() || config::get().is_none() || first > last || flags & !KNOWN != 0 || flags & CLOEXEC != 0 {
            return pass();
        }
        let limit = |fd: c_uint| c_int::try_from(fd).unwrap_or(c_int::MAX);
        close_all(limit(first), limit(last), flags)
    }
    fn closefrom(first: c_int) -> (), |pass| {
        watch::forget_from(first);
        if is_serving() || config::get().is_none() {
            pass();
        } else {
            close_all(first.max(0), c_int::MAX, 0);
        }
    }

    fn dup(fd: c_int) -> c_int, |pass| {
        let description = served_file(fd);
        let new = pass();
        watch::forget(new);
        if let (Some(description), 0..) = (description, new) {
            return serve(|| files::duplicated(&description, new));
        }
        new
    }
    fn dup2(fd: c_int, new: c_int) -> c_int, |pass| {
        onto(fd, new, pass)
    }
    fn dup3(fd: c_int, new: c_int, flags: c_int) -> c_int, |pass| {
        onto(fd, new, pass)
    }
    fn [fcntl, fcntl64](fd: c_int, command: c_int, argument: usize) -> c_int, |pass| {
        control(fd, command, argument, pass)
    }
}

/// Closes the program's descriptors from `first` to `last`.
fn close_all(first: c_int, last: c_int, flags: c_int) -> c_int {
    for fd in table::between(first, last) {
        if served_file(fd).is_some() {
            let _: c_int = serve(|| files::close(fd).map(|()| 0));
        }
    }
    serve(|| {
        let mut from = first;
        for ours in descriptors::kept_between(first, last) {
            if from < ours {
                kernel::close_range(from, ours - 1, flags)?;
            }
            from = ours + 1;
        }
        if from <= last {
            kernel::close_range(from, last, flags)?;
        }
        Ok(0)
    })
}

/// Makes `new` a duplicate of `fd`, if either is served.
fn onto(fd: c_int, new: c_int, pass: impl FnOnce() -> c_int) -> c_int {
    watch::forget(new);
    if fd == new || is_serving() {
        return pass();
    }
    if descriptors::is_kept(new) {
        // The kernel's error while another thread is about to use the number.
        return serve(|| Err(Errno(libc::EBUSY)));
    }
    let (source, target) = (served_file(fd), served_file(new));
    if source.is_none() && target.is_none() {
        return pass();
    }
    serve(|| {
        streams::restored(new);
        let exchanged = table::exchange(new, source, || match pass() {
            done @ 0.. => Ok(done),
            _ => Err(Errno::last()),
        });
        if known_now(new) {
            streams::replaced(new);
        }
        let (done, before) = exchanged?;
        files::overwritten(before);
        Ok(done)
    })
}

fn known_now(fd: c_int) -> bool {
    table::get(fd).is_some()
}

fn control(fd: c_int, command: c_int, argument: usize, pass: impl FnOnce() -> c_int) -> c_int {
    let Some(description) = served_file(fd) else {
        let done = pass();
        match command {
            libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => watch::forget(done),
            libc::F_SETLK | libc::F_SETLKW | libc::F_GETLK => watch::asked(fd),
            libc::F_OFD_SETLK | libc::F_OFD_SETLKW | libc::F_OFD_GETLK => watch::asked(fd),
            _ => {}
        }
        return done;
    };
    match command {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => {
            let new = pass();
            match new {
                0.. => serve(|| files::duplicated(&description, new)),
                failed => failed,
            }
        }
        libc::F_GETFL => serve(|| {
            let status = kernel::control(fd, libc::F_GETFL, 0)?;
            Ok(status & !libc::O_ACCMODE
                | description.record.flags & (libc::O_ACCMODE | libc::O_PATH))
        }),
        libc::F_SETFL => serve(|| {
            let status = argument as c_int & (libc::O_APPEND | libc::O_NONBLOCK);
            kernel::control(fd, libc::F_SETFL, status.into())
        }),
        libc::F_SETLK
        | libc::F_SETLKW
        | libc::F_GETLK
        | libc::F_OFD_SETLK
        | libc::F_OFD_SETLKW
        | libc::F_OFD_GETLK => serve(|| {
            let theirs = argument as *mut libc::flock;
            // SAFETY: these commands take such a structure of the program's.
            let mut lock = unsafe { taken(theirs)? };
            let done = crate::locks::control(&description, fd, command, &mut lock)?;
            if matches!(command, libc::F_GETLK | libc::F_OFD_GETLK) {
                // SAFETY: as above.
                unsafe { give(theirs, lock)? };
            }
            Ok(done)
        }),
        libc::F_GETFD | libc::F_SETFD => pass(),
        // A served file has no seals, leases, signals or pipes.
        _ => serve(|| {
            crate::report::refused("fcntl", &description.record.shown);
            Err(Errno(libc::EINVAL))
        }),
    }
}
