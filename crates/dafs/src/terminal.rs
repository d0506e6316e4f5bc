//! The terminal while a password is typed.

use std::io;
use std::os::fd::AsRawFd;

/// Runs `read` with the echo of standard input switched off, and back to what it was after it.
pub(crate) fn without_echo<T>(read: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let descriptor = io::stdin().as_raw_fd();
    // SAFETY: termios is plain data for which all zero is valid; the call fills it.
    let mut before: libc::termios = unsafe { std::mem::zeroed() };
    // SAFETY: `before` is valid for the call.
    if unsafe { libc::tcgetattr(descriptor, &mut before) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut quiet = before;
    quiet.c_lflag &= !libc::ECHO;
    set(descriptor, &quiet)?;
    let result = read();
    set(descriptor, &before)?;
    result
}

fn set(descriptor: i32, settings: &libc::termios) -> io::Result<()> {
    // SAFETY: `settings` is valid for the call.
    match unsafe { libc::tcsetattr(descriptor, libc::TCSAFLUSH, settings) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
