//! What commands print.
//!
//! Invariants
//! * A reader that goes away ends the command, quietly; it never makes it panic.

use crate::failure::Failure;
use std::fmt::Arguments;
use std::io::Write;

/// Prints a line of results; ends with [`Failure::OutputClosed`] when nobody reads them any more.
macro_rules! say {
    ($($text:tt)*) => { $crate::output::line(format_args!($($text)*)) };
}

/// Prints a line for whoever watches. Nobody may, and then there is nobody to tell that.
macro_rules! complain {
    ($($text:tt)*) => { $crate::output::remark(format_args!($($text)*)) };
}

pub(crate) use {complain, say};

pub(crate) fn line(text: Arguments<'_>) -> Result<(), Failure> {
    writeln!(std::io::stdout().lock(), "{text}")
        .map_err(|error| Failure::local("standard output", &error))
}

pub(crate) fn remark(text: Arguments<'_>) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}
