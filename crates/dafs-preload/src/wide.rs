//! Wide characters on streams of ours. Streams of `fopencookie` are byte streams for good: the C
//! library's own wide functions crash on them, or drop their data. These functions convert the
//! bytes read to characters, and the characters written to bytes.
//!
//! Invariants
//! * A stream of ours has no orientation: bytes and wide characters may follow each other.
//! * A character begins and ends within one call, and no state is kept between calls. The encodings
//!   of locales in use today need none.

use crate::failure::{Errno, Failed, Result};
use crate::streams;
use libc::{EOF, FILE, c_char, c_int, size_t, wchar_t};
use std::cell::RefCell;
use std::ffi::{CStr, CString};

/// A character that was read or written, or `WEOF`.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct Character(pub(crate) u32);

impl Failed for Character {
    const FAILED: Self = Self(u32::MAX);
}

/// `mbstate_t`, of which all zero is the state between two characters.
#[repr(C)]
struct State(u64);

/// Most bytes of a character: `MB_LEN_MAX`.
const CHARACTER_BYTES_MAX: usize = 16;

/// Most bytes of a transliteration, such as "EUR".
const STAND_IN_BYTES_MAX: usize = 64;

/// Bytes that are gathered before a write.
const PIECE_BYTES: usize = 1024;

unsafe extern "C" {
    fn flockfile(stream: *mut FILE);
    fn funlockfile(stream: *mut FILE);
    fn getc_unlocked(stream: *mut FILE) -> c_int;
    fn open_wmemstream(text: *mut *mut wchar_t, length: *mut size_t) -> *mut FILE;
    fn mbrtowc(to: *mut wchar_t, from: *const c_char, bytes: size_t, state: *mut State) -> size_t;
    fn wcrtomb(to: *mut c_char, from: wchar_t, state: *mut State) -> size_t;
    fn mbsinit(state: *const State) -> c_int;
}

/// A stream locked by this thread.
struct Held(*mut FILE);

impl Held {
    /// # Safety
    /// An open stream.
    unsafe fn new(stream: *mut FILE) -> Self {
        // SAFETY: the caller's promise.
        unsafe { flockfile(stream) };
        Self(stream)
    }

    /// The next character. `None` at the end, also inside a character.
    fn get(&self) -> Option<wchar_t> {
        let (mut state, mut found) = (State(0), 0);
        let (mut bytes, mut count) = ([0; CHARACTER_BYTES_MAX], 0);
        while count < bytes.len() {
            // SAFETY: an open stream whose lock is held.
            let byte = match unsafe { getc_unlocked(self.0) } {
                EOF => return None,
                byte => byte as u8,
            };
            bytes[count] = byte;
            count += 1;
            let byte = byte as c_char;
            // SAFETY: one byte, and variables of ours.
            let used = unsafe { mbrtowc(&mut found, &byte, 1, &mut state) };
            match used {
                // SAFETY: as above.
                0 | 1 if unsafe { mbsinit(&state) } != 0 => return Some(found),
                // The character has more bytes.
                _ if used == size_t::MAX - 1 => {}
                _ => break,
            }
        }
        // Invalid bytes are pushed back, as in the C library.
        for byte in bytes[..count].iter().rev() {
            // SAFETY: an open stream whose lock is held.
            unsafe { libc::ungetc((*byte).into(), self.0) };
        }
        streams::set_error(self.0, true);
        Errno(libc::EILSEQ).set();
        None
    }

    fn put(&self, bytes: &[u8]) -> bool {
        // SAFETY: reads the slice; an open stream.
        bytes.is_empty()
            || unsafe { libc::fwrite(bytes.as_ptr().cast(), 1, bytes.len(), self.0) } == bytes.len()
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // SAFETY: taken by this thread, which has not given it back.
        unsafe { funlockfile(self.0) };
    }
}

/// The bytes of a character.
struct Encoded {
    bytes: [u8; STAND_IN_BYTES_MAX],
    count: usize,
}

impl Encoded {
    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.count]
    }
}

/// The bytes of a character, or of its transliteration if the locale lacks it. Allocates nothing
/// for a character of the locale: some programs write character by character.
fn encode(character: wchar_t) -> Result<Encoded> {
    const { assert!(STAND_IN_BYTES_MAX >= CHARACTER_BYTES_MAX) };
    let (mut bytes, mut state) = ([0_u8; STAND_IN_BYTES_MAX], State(0));
    // SAFETY: there is room for the longest character.
    match unsafe { wcrtomb(bytes.as_mut_ptr().cast(), character, &mut state) } {
        size_t::MAX => stand_in(character),
        count => Ok(Encoded { bytes, count }),
    }
}

/// A converter of characters to transliterations in an encoding.
struct StandIns {
    codes: CString,
    how: libc::iconv_t,
}

impl StandIns {
    /// Opens the converter for the encoding of the locale.
    fn open(codes: &CStr) -> Result<Self> {
        let none = Errno(libc::EILSEQ);
        let to = CString::new([codes.to_bytes(), b"//TRANSLIT"].concat()).map_err(|_| none)?;
        // SAFETY: C strings.
        let how = unsafe { libc::iconv_open(to.as_ptr(), c"WCHAR_T".as_ptr()) };
        if how.addr() == usize::MAX {
            return Err(none);
        }
        Ok(Self { codes: codes.to_owned(), how })
    }

    fn find(&mut self, character: wchar_t) -> Result<Encoded> {
        let (mut bytes, mut room) = ([0_u8; STAND_IN_BYTES_MAX], STAND_IN_BYTES_MAX);
        let (mut from, mut count) =
            ((&raw const character).cast_mut().cast(), size_of::<wchar_t>());
        let mut next = bytes.as_mut_ptr().cast();
        // SAFETY: reads the character and writes what there is room for.
        match unsafe { libc::iconv(self.how, &mut from, &mut count, &mut next, &mut room) } {
            size_t::MAX => Err(Errno(libc::EILSEQ)),
            _ => Ok(Encoded { bytes, count: STAND_IN_BYTES_MAX - room }),
        }
    }
}

impl Drop for StandIns {
    fn drop(&mut self) {
        // SAFETY: opened once, and not used any more.
        unsafe { libc::iconv_close(self.how) };
    }
}

thread_local! {
    /// Cached, because opening is slow, and a text that the locale cannot represent needs it for
    /// many characters.
    static STAND_INS: RefCell<Option<StandIns>> = const { RefCell::new(None) };
}

/// The transliteration that the C library's own streams write for a character that the locale
/// lacks.
fn stand_in(character: wchar_t) -> Result<Encoded> {
    // SAFETY: a C string until the locale changes.
    let codes = unsafe { CStr::from_ptr(libc::nl_langinfo(libc::CODESET)) };
    let kept = STAND_INS.try_with(|kept| {
        // A signal handler may have interrupted a user of the cache.
        let mut kept = kept.try_borrow_mut().ok()?;
        if kept.as_ref().is_none_or(|kept| *kept.codes != *codes) {
            *kept = Some(StandIns::open(codes).ok()?);
        }
        Some(kept.as_mut()?.find(character))
    });
    match kept {
        Ok(Some(found)) => found,
        // The thread may be ending.
        _ => StandIns::open(codes)?.find(character),
    }
}

/// # Safety
/// An open stream of ours.
pub(crate) unsafe fn get(stream: *mut FILE) -> Character {
    // SAFETY: the caller's promise.
    let held = unsafe { Held::new(stream) };
    held.get().map_or(Character::FAILED, |found| Character(found as u32))
}

/// `fgetws`: up to `room` characters with the zero at their end.
///
/// # Safety
/// An open stream of ours, and so much room at `to`.
pub(crate) unsafe fn get_line(to: *mut wchar_t, room: c_int, stream: *mut FILE) -> *mut wchar_t {
    let Some(last) = usize::try_from(room).ok().and_then(|room| room.checked_sub(1)) else {
        return std::ptr::null_mut();
    };
    // SAFETY: the caller's promise.
    let held = unsafe { Held::new(stream) };
    let had_failed = streams::set_error(stream, false);
    let mut count = 0;
    while count < last {
        let Some(found) = held.get() else { break };
        // SAFETY: the caller's promise.
        unsafe { to.add(count).write(found) };
        count += 1;
        if found == '\n' as wchar_t {
            break;
        }
    }
    let has_failed = streams::set_error(stream, false);
    streams::set_error(stream, had_failed || has_failed);
    if last != 0 && (count == 0 || has_failed && Errno::last().0 != libc::EAGAIN) {
        return std::ptr::null_mut();
    }
    // SAFETY: the caller's promise.
    unsafe { to.add(count).write(0) };
    to
}

/// # Safety
/// An open stream of ours.
pub(crate) unsafe fn unget(character: Character, stream: *mut FILE) -> Character {
    if character.0 == Character::FAILED.0 {
        return Character::FAILED;
    }
    let Ok(encoded) = encode(character.0 as wchar_t) else { return Character::FAILED };
    // SAFETY: the caller's promise.
    let held = unsafe { Held::new(stream) };
    for (before, byte) in encoded.bytes().iter().rev().enumerate() {
        // SAFETY: as above, for a stream whose lock is held.
        unsafe {
            if libc::ungetc((*byte).into(), held.0) == EOF {
                // Half a character is not pushed back.
                for _ in 0..before {
                    getc_unlocked(held.0);
                }
                return Character::FAILED;
            }
        }
    }
    character
}

/// Writes characters; false if some are not written, with `errno` set.
///
/// # Safety
/// An open stream of ours.
pub(crate) unsafe fn put(text: &[wchar_t], stream: *mut FILE) -> bool {
    // SAFETY: the caller's promise.
    let held = unsafe { Held::new(stream) };
    let (mut piece, mut count) = ([0_u8; PIECE_BYTES], 0);
    for character in text {
        let encoded = match encode(*character) {
            Ok(encoded) => encoded,
            Err(errno) => {
                if held.put(&piece[..count]) {
                    streams::set_error(stream, true);
                    errno.set();
                }
                return false;
            }
        };
        if count + encoded.count > piece.len() {
            if !held.put(&piece[..count]) {
                return false;
            }
            count = 0;
        }
        piece[count..count + encoded.count].copy_from_slice(encoded.bytes());
        count += encoded.count;
    }
    held.put(&piece[..count])
}

/// `wprintf` and its relatives: `format` writes to a memory stream of the C library.
///
/// # Safety
/// An open stream of ours.
pub(crate) unsafe fn print(stream: *mut FILE, format: impl FnOnce(*mut FILE) -> c_int) -> c_int {
    let (mut text, mut length) = (std::ptr::null_mut(), 0);
    // SAFETY: the variables live until the stream is closed.
    let memory = unsafe { open_wmemstream(&mut text, &mut length) };
    if memory.is_null() {
        return -1;
    }
    let printed = format(memory);
    let errno = Errno::last();
    // SAFETY: closed here, and not used again; then the text is there, of that length.
    let written = unsafe {
        let closed = libc::fclose(memory) == 0 && !text.is_null();
        let written = closed && put(std::slice::from_raw_parts(text, length), stream);
        libc::free(text.cast());
        written
    };
    match (printed, written) {
        (0.., true) => printed,
        (0.., false) => -1,
        // The text before the error is written all the same.
        _ => {
            errno.set();
            -1
        }
    }
}
