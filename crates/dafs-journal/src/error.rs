//! What can be wrong with a log.

use std::io;
use thiserror::Error;

/// Why a log cannot be used. Nothing was changed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ScanError {
    /// The disk refuses.
    #[error("cannot read {segment}: {error}")]
    Read {
        /// Which segment or directory.
        segment: String,
        /// Why.
        error: io::Error,
    },
    /// Something else has the name of a segment.
    #[error(
        "{segment} is no journal: it begins with {found:02x?}; move it to another place if it is \
         not the server's"
    )]
    Foreign {
        /// Which segment.
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
        /// Which segment.
        segment: String,
        /// Its version.
        found: u32,
        /// The one that can be read.
        known: u32,
    },
    /// The file ends too early.
    #[error("{segment} was cut to {found} bytes of {expected}; {REMEDY}")]
    Truncated {
        /// Which segment.
        segment: String,
        /// How long it must be at least, in bytes.
        expected: u64,
        /// How long it is, in bytes.
        found: u64,
    },
    /// What was stable is not there any more.
    #[error("{segment} is damaged at byte {offset}: {what}; {REMEDY}")]
    Damaged {
        /// Which segment.
        segment: String,
        /// Where, in bytes.
        offset: u64,
        /// What was found.
        what: String,
    },
    /// A segment is not there.
    #[error("{segment} is missing, and the one after it does not stand alone; {REMEDY}")]
    Missing {
        /// Which segment.
        segment: String,
    },
}

/// What can be done about a log that has lost something.
const REMEDY: &str = "bring back a copy, or move the journal's directory to another place and say \
                      `dafs accept-loss journal` to start without it: then clients of the last run \
                      cannot learn what became of requests that were not answered, and are told so";

/// The log could not be written or made stable. It takes nothing more: what is stable is not known,
/// and will be found out at the next start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the journal cannot be written any more; restart the server when the disk works again")]
pub struct LogFailed;
