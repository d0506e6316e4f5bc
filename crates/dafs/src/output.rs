//! The output of commands.
//!
//! Invariants
//! * A closed reader ends the command quietly, without a panic.

use crate::failure::Failure;
use serde::Serialize;
use std::fmt::Arguments;
use std::io::Write;

/// Prints a line of results. Returns [`Failure::OutputClosed`] when the reader has closed it.
macro_rules! say {
    ($($text:tt)*) => { $crate::output::line(format_args!($($text)*)) };
}

/// Prints a line to standard error, and ignores failures.
macro_rules! complain {
    ($($text:tt)*) => { $crate::output::remark(format_args!($($text)*)) };
}

pub(crate) use {complain, say};

pub(crate) fn line(text: Arguments<'_>) -> Result<(), Failure> {
    writeln!(std::io::stdout().lock(), "{text}")
        .map_err(|error| Failure::local("standard output", &error))
}

/// Prints text as it is.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    let mut output = std::io::stdout().lock();
    let printed = output.write_all(text.as_bytes()).and_then(|()| output.flush());
    printed.map_err(|error| Failure::local("standard output", &error))
}

/// Prints a value as a line of JSON.
pub(crate) fn say_json(value: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string(value).map_err(|error| Failure::Failed(error.to_string()))?;
    say!("{text}")
}

pub(crate) fn remark(text: Arguments<'_>) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}
