//! The terminal while a password is typed.
//!
//! Invariants
//! * The echo is restored whatever ends the input, a signal included.

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::io;
use std::os::fd::AsRawFd;

/// Runs `read` with the echo of standard input switched off, and restores it afterwards.
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
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    let watch = signals.handle();
    std::thread::spawn(move || {
        if let Some(signal) = signals.forever().next() {
            // The process ends either way.
            let _ = set(descriptor, &before);
            std::process::exit(128 + signal);
        }
    });
    set(descriptor, &quiet)?;
    let result = read();
    watch.close();
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
