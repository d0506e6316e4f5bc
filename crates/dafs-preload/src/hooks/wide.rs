//! The wide functions of `stdio`, for streams of ours. The unlocked variants take the lock as well,
//! which a thread that already has it does not notice.

// The tests interpose nothing.
#[cfg(not(test))]
mod lists;

use super::exec::next;
use super::io::check;
use super::served_file;
use crate::failure::Errno;
use crate::next::{interpose, serve};
use crate::report;
use crate::streams::{self, is_ours_and_wide};
use crate::wide::{self, Character};
use libc::{FILE, c_int, c_void, size_t, wchar_t};

/// A `va_list`, which both machines hand over by its address.
type List = *mut c_void;

type Print = unsafe extern "C" fn(*mut FILE, *const wchar_t, List) -> c_int;
type PrintChecked = unsafe extern "C" fn(*mut FILE, c_int, *const wchar_t, List) -> c_int;

unsafe extern "C" {
    fn wcslen(text: *const wchar_t) -> size_t;
}

fn input() -> *mut FILE {
    streams::current(0)
}

fn output() -> *mut FILE {
    streams::current(1)
}

/// # Safety
/// An open stream.
unsafe fn get(stream: *mut FILE, pass: impl FnOnce() -> Character) -> Character {
    // SAFETY: the caller's promise.
    if is_ours_and_wide(stream) { unsafe { wide::get(stream) } } else { pass() }
}

/// # Safety
/// An open stream.
unsafe fn put(
    character: wchar_t,
    stream: *mut FILE,
    pass: impl FnOnce() -> Character,
) -> Character {
    if !is_ours_and_wide(stream) {
        return pass();
    }
    // SAFETY: the caller's promise.
    match unsafe { wide::put(&[character], stream) } {
        true => Character(character as u32),
        false => Character(u32::MAX),
    }
}

/// # Safety
/// The arguments are as `fgetws` wants them.
unsafe fn get_line(
    to: *mut wchar_t,
    room: c_int,
    stream: *mut FILE,
    pass: impl FnOnce() -> *mut wchar_t,
) -> *mut wchar_t {
    // SAFETY: the caller's promise.
    if is_ours_and_wide(stream) { unsafe { wide::get_line(to, room, stream) } } else { pass() }
}

/// # Safety
/// The arguments are as `fputws` wants them.
unsafe fn put_text(text: *const wchar_t, stream: *mut FILE, pass: impl FnOnce() -> c_int) -> c_int {
    if !is_ours_and_wide(stream) {
        return pass();
    }
    // SAFETY: the caller's promise.
    let written = unsafe { wide::put(std::slice::from_raw_parts(text, wcslen(text)), stream) };
    if written { 1 } else { -1 }
}

/// # Safety
/// The arguments are as `vfwprintf` wants them.
unsafe fn print(
    stream: *mut FILE,
    format: *const wchar_t,
    list: List,
    pass: impl FnOnce() -> c_int,
) -> c_int {
    if !is_ours_and_wide(stream) {
        return pass();
    }
    let next = next!(c"vfwprintf" as Print);
    // SAFETY: the caller's promise, for a stream of the C library's.
    unsafe { wide::print(stream, |memory| next(memory, format, list)) }
}

/// # Safety
/// The arguments are as `__vfwprintf_chk` wants them.
unsafe fn print_checked(
    stream: *mut FILE,
    flag: c_int,
    format: *const wchar_t,
    list: List,
    pass: impl FnOnce() -> c_int,
) -> c_int {
    if !is_ours_and_wide(stream) {
        return pass();
    }
    let next = next!(c"__vfwprintf_chk" as PrintChecked);
    // SAFETY: as above.
    unsafe { wide::print(stream, |memory| next(memory, flag, format, list)) }
}

/// Formatted reads would use the C library's own stream.
///
/// # Safety
/// An open stream.
unsafe fn scan(name: &'static str, stream: *mut FILE, pass: impl FnOnce() -> c_int) -> c_int {
    if !is_ours_and_wide(stream) {
        return pass();
    }
    // SAFETY: the caller's promise.
    let file = served_file(unsafe { libc::fileno(stream) });
    report::refused(name, file.as_ref().map_or(b"", |file| &file.record.shown));
    serve(|| Err(Errno(libc::EOPNOTSUPP)))
}

interpose! {
    fn [fgetwc, fgetwc_unlocked, getwc, getwc_unlocked](stream: *mut FILE) -> Character, |pass| {
        get(stream, pass)
    }
    fn [getwchar, getwchar_unlocked]() -> Character, |pass| {
        get(input(), pass)
    }
    fn [fgetws, fgetws_unlocked]
    (to: *mut wchar_t, room: c_int, stream: *mut FILE) -> *mut wchar_t, |pass| {
        get_line(to, room, stream, pass)
    }
    fn [__fgetws_chk, __fgetws_unlocked_chk]
    (to: *mut wchar_t, size: size_t, room: c_int, stream: *mut FILE) -> *mut wchar_t, |pass| {
        check(usize::try_from(room).unwrap_or(0), size);
        get_line(to, room, stream, pass)
    }
    fn ungetwc(character: Character, stream: *mut FILE) -> Character, |pass| {
        if is_ours_and_wide(stream) { wide::unget(character, stream) } else { pass() }
    }
    fn fwide(stream: *mut FILE, orientation: c_int) -> c_int, |pass| {
        // A stream of ours has any orientation.
        if is_ours_and_wide(stream) { orientation.signum() } else { pass() }
    }

    fn [fputwc, fputwc_unlocked, putwc, putwc_unlocked]
    (character: wchar_t, stream: *mut FILE) -> Character, |pass| {
        put(character, stream, pass)
    }
    fn [putwchar, putwchar_unlocked](character: wchar_t) -> Character, |pass| {
        put(character, output(), pass)
    }
    fn [fputws, fputws_unlocked](text: *const wchar_t, stream: *mut FILE) -> c_int, |pass| {
        put_text(text, stream, pass)
    }
    fn vfwprintf(stream: *mut FILE, format: *const wchar_t, list: List) -> c_int, |pass| {
        print(stream, format, list, pass)
    }
    fn vwprintf(format: *const wchar_t, list: List) -> c_int, |pass| {
        print(output(), format, list, pass)
    }
    fn __vfwprintf_chk(stream: *mut FILE, flag: c_int, format: *const wchar_t, list: List) -> c_int, |pass| {
        print_checked(stream, flag, format, list, pass)
    }
    fn __vwprintf_chk(flag: c_int, format: *const wchar_t, list: List) -> c_int, |pass| {
        print_checked(output(), flag, format, list, pass)
    }

    fn [vfwscanf, __isoc99_vfwscanf, __isoc23_vfwscanf]
    (stream: *mut FILE, format: *const wchar_t, list: List) -> c_int, |pass| {
        scan("vfwscanf", stream, pass)
    }
    fn [vwscanf, __isoc99_vwscanf, __isoc23_vwscanf]
    (format: *const wchar_t, list: List) -> c_int, |pass| {
        scan("vwscanf", input(), pass)
    }
}
