//! The functions of the C library that this library interposes.
//!
//! Variadic functions are declared here with all possible arguments. In the calling conventions of
//! x86-64 and of 64-bit ARM under Linux these arrive in the same places, and arguments that the
//! caller left out are not read.

mod aio;
mod directories;
mod exec;
mod exec_lists;
mod io;
mod memory;
mod names;
mod opening;
mod programs;
mod signals;
mod sockets;
mod spawn;
mod special;
mod stat;
mod streams;
mod threads;
mod walks;
mod wide;

use crate::config;
use crate::descriptor::Kind;
use crate::failure::{Errno, Result};
use crate::location::{self, Location};
use crate::next::{is_internal, is_serving, with_signals_deferred};
use crate::report;
use crate::table::{self, Description};
use crate::watch;
use dafs_client::Error;
use dafs_mem::{CheckedSlice, Site, VolatileSlice};
use libc::{c_char, c_int};
use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::sync::Arc;

/// The meaning of a path.
enum At {
    /// A path of this machine, for the C library.
    Local,
    /// A place on a server.
    Served(Location),
    /// It cannot be a path.
    Invalid(Errno),
}

/// The bytes of a C string.
///
/// # Safety
/// `text` is null or a C string that stays as it is for as long as the result is used.
unsafe fn bytes<'a>(text: *const c_char) -> &'a [u8] {
    // SAFETY: the caller's promise.
    if text.is_null() { b"" } else { unsafe { CStr::from_ptr(text) }.to_bytes() }
}

/// Reads a value from the program's memory: `EFAULT` at a bad address.
///
/// # Safety
/// Any memory at `from` holds such a value.
unsafe fn taken<T: Copy>(from: *const T) -> Result<T> {
    let mut value = MaybeUninit::<T>::uninit();
    // SAFETY: the caller's promise; the value is there when it has been copied whole.
    unsafe {
        let own = VolatileSlice::new(value.as_mut_ptr().cast(), size_of::<T>());
        let theirs = CheckedSlice::callers(from.cast_mut().cast(), size_of::<T>());
        theirs.copy_to(own, Site::ClientStaging).map_err(Error::from)?;
        Ok(value.assume_init())
    }
}

/// Writes a value to the program's memory: `EFAULT` at a bad address.
///
/// # Safety
/// Any memory at `to` is writable, and no other thread writes it meanwhile.
unsafe fn give<T: Copy>(to: *mut T, mut value: T) -> Result<()> {
    // SAFETY: the value, as bytes; the caller's promise.
    unsafe {
        let own = VolatileSlice::new((&raw mut value).cast(), size_of::<T>());
        let theirs = CheckedSlice::callers(to.cast(), size_of::<T>());
        theirs.copy_from(own, Site::ClientStaging).map_err(Error::from)?;
    }
    Ok(())
}

/// As [`give`], for text.
///
/// # Safety
/// As there, for as many bytes.
unsafe fn give_bytes(to: *mut c_char, text: &mut [u8]) -> Result<()> {
    // SAFETY: the caller's promise.
    let theirs = unsafe { CheckedSlice::callers(to.cast(), text.len()) };
    theirs.copy_from(VolatileSlice::from_mut(text), Site::ClientStaging).map_err(Error::from)?;
    Ok(())
}

/// Resolves a path that a program passes to a call.
///
/// # Safety
/// As [`bytes`].
unsafe fn at(dir: c_int, path: *const c_char) -> At {
    // SAFETY: the caller's promise.
    let found = unsafe { looked_at(dir, path) };
    if matches!(found, At::Local) {
        note_passed();
        if watch::is_on() {
            // SAFETY: the caller's promise.
            watch::named(unsafe { bytes(path) });
        }
    }
    found
}

/// Counts a call that goes to the C library.
fn note_passed() {
    if config::get().is_some() && !is_serving() {
        report::passed();
    }
}

/// As [`at`], for calls that the program has not made itself.
///
/// # Safety
/// As there.
unsafe fn looked_at(dir: c_int, path: *const c_char) -> At {
    let Some(config) = config::get() else { return At::Local };
    if is_internal() {
        return At::Local;
    }
    // SAFETY: the caller's promise.
    let path = unsafe { bytes(path) };
    // Without locks or allocation: the caller may be a signal handler that has interrupted any
    // code.
    if !location::may_be_served(config, dir, path) {
        return At::Local;
    }
    if is_serving() {
        return At::Invalid(Errno(libc::EDEADLK));
    }
    let before = Errno::last();
    let found = with_signals_deferred(|| location::find(dir, path));
    before.set();
    match found {
        Ok(Some(location)) => At::Served(location),
        Ok(None) => At::Local,
        Err(errno) => At::Invalid(errno),
    }
}

/// The open file of a descriptor that a program passes to a call, if it is served.
fn served_file(fd: c_int) -> Option<Arc<Description>> {
    if !table::may_know(fd) || config::get().is_none() {
        return None;
    }
    let before = Errno::last();
    let found = table::get(fd);
    before.set();
    found
}

/// The descriptor that a path below `/proc/self/fd` and the like names. Takes no lock and allocates
/// nothing.
fn named_number(path: &[u8]) -> Option<c_int> {
    match path {
        b"/dev/stdin" => Some(0),
        b"/dev/stdout" => Some(1),
        b"/dev/stderr" => Some(2),
        path => {
            let number = path
                .strip_prefix(b"/proc/self/fd/")
                .or_else(|| path.strip_prefix(b"/dev/fd/"))
                .or_else(|| path.strip_prefix(b"/proc/thread-self/fd/"))?;
            std::str::from_utf8(number).ok()?.parse().ok()
        }
    }
}

/// The open file of a path below `/proc/self/fd` and the like, if it is served.
fn named_descriptor(path: &[u8]) -> Option<Arc<Description>> {
    served_file(named_number(path)?)
}

/// Checks that a description is a file: only files can be read, written, locked and mapped.
fn must_be_file(description: &Description) -> Result<()> {
    match description.record.kind {
        Kind::File => Ok(()),
        Kind::Directory => Err(Errno(libc::EISDIR)),
        Kind::Place => Err(Errno(libc::EBADF)),
    }
}

/// Runs `$serve` with the place of `$path` from `$dir`, or passes the call on.
macro_rules! by_path {
    ($dir:expr, $path:expr, $pass:expr, |$location:ident| $serve:expr) => {
        match crate::hooks::at($dir, $path) {
            crate::hooks::At::Local => $pass(),
            crate::hooks::At::Served($location) => crate::next::serve(|| $serve),
            crate::hooks::At::Invalid(errno) => crate::next::serve(|| Err(errno)),
        }
    };
}

/// Runs `$serve` with the open file of `$fd`, or passes the call on.
macro_rules! by_descriptor {
    ($fd:expr, $pass:expr, |$description:ident| $serve:expr) => {
        match crate::hooks::served_file($fd) {
            None => $pass(),
            Some($description) => crate::next::serve(|| $serve),
        }
    };
}

pub(crate) use {by_descriptor, by_path};
