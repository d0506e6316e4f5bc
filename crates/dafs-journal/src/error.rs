//! Errors of a log.

use std::io;
use thiserror::Error;

/// Why a log cannot be used. It was not changed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ScanError {
    /// The disk returns an error.
    #[error("cannot read {segment}: {error}")]
    Read {
        /// The segment or directory.
        segment: String,
        /// The reason.
        error: io::Error,
    },
    /// A file of another kind has the name of a segment.
    #[error(
        "{segment} is no journal: it begins with {found:02x?}; move it to another place if it is \
         not the server's"
    )]
    Foreign {
        /// The segment.
        segment: String,
        /// Its first bytes.
        found: Vec<u8>,
    },
    /// An earlier or later program has written it.
    #[error(
        "{segment} has version {found} and this program knows version {known}; start the \
         program that wrote it"
    )]
    OtherVersion {
        /// The segment.
        segment: String,
        /// Its version.
        found: u32,
        /// The version that can be read.
        known: u32,
    },
    /// The file is too short.
    #[error("{segment} was cut to {found} bytes of {expected}; {REMEDY}")]
    Truncated {
        /// The segment.
        segment: String,
        /// The least length in bytes.
        expected: u64,
        /// The length in bytes.
        found: u64,
    },
    /// Stable data is missing.
    #[error("{segment} is damaged at byte {offset}: {what}; {REMEDY}")]
    Damaged {
        /// The segment.
        segment: String,
        /// The position in bytes.
        offset: u64,
        /// The damage.
        what: String,
    },
    /// A segment is missing.
    #[error("{segment} is missing, and the one after it does not stand alone; {REMEDY}")]
    Missing {
        /// The segment.
        segment: String,
    },
}

/// The remedies for a log that has lost data.
const REMEDY: &str = "bring back a copy, or move the journal's directory to another place and say \
                      `dafs accept-loss journal` to start without it: then clients of the last run \
                      cannot learn what became of requests that were not answered, and are told so";

/// The log could not be written or made stable. It accepts no more records. The next start finds
/// out how much of it is stable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the journal cannot be written any more; restart the server when the disk works again")]
pub struct LogFailed;
