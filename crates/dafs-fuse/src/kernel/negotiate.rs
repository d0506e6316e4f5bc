//! Negotiation with the kernel, in the first request and its answer.

use super::answer::Writer;
use super::errno::Errno;
use super::page::page_bytes;
use crate::limits::{BACKGROUND_REQUESTS, READ_AHEAD_BYTES, WRITE_BYTES_MAX};

/// The version of the protocol that the mount implements.
const MAJOR: u32 = 7;
const MINOR: u32 = 36;

/// Older kernels (before Linux 4.20) lack features that the mount needs.
const MINOR_LEAST: u32 = 28;

// Capability flags.
const ASYNC_READ: u32 = 1;
const POSIX_LOCKS: u32 = 1 << 1;
const ATOMIC_TRUNCATION: u32 = 1 << 3;
const BIG_WRITES: u32 = 1 << 5;
const WHOLE_FILE_LOCKS: u32 = 1 << 10;
const DROP_CHANGED_CONTENT: u32 = 1 << 12;
const LIST_WITH_ATTRIBUTES: u32 = 1 << 13;
const LIST_WITH_ATTRIBUTES_AUTO: u32 = 1 << 14;
const ASYNC_DIRECT: u32 = 1 << 15;
const PARALLEL_DIRECTORIES: u32 = 1 << 18;
const MAX_PAGES: u32 = 1 << 22;
const TAKE_RIGHTS_AWAY: u32 = 1 << 28;

const HAS_MORE_FLAGS: u32 = 1 << 30;

// Among the second ones.
const MAP_DIRECT: u32 = 1 << 4;

const WANTED: u32 = ASYNC_READ
    | POSIX_LOCKS
    | ATOMIC_TRUNCATION
    | BIG_WRITES
    | WHOLE_FILE_LOCKS
    | DROP_CHANGED_CONTENT
    | LIST_WITH_ATTRIBUTES
    | LIST_WITH_ATTRIBUTES_AUTO
    | ASYNC_DIRECT
    | PARALLEL_DIRECTORIES
    | MAX_PAGES
    | TAKE_RIGHTS_AWAY
    | HAS_MORE_FLAGS;

/// The kernel's offer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Offer {
    pub(crate) major: u32,
    pub(crate) minor: u32,
    /// The most that it reads ahead, in bytes.
    pub(crate) read_ahead: u32,
    pub(crate) flags: u32,
    /// The second 32 of them, if the first ones say that there are any.
    pub(crate) more_flags: u32,
}

/// The negotiated parameters, for the life of the mount, also after a handover.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Agreed {
    /// The version of the protocol, below [`MAJOR`].
    pub(crate) minor: u32,
    /// The longest write that the kernel sends.
    pub(crate) write_bytes: u32,
    pub(crate) flags: u32,
    pub(crate) more_flags: u32,
}

impl Agreed {
    /// True when this process supports the parameters that another process has negotiated.
    pub(crate) fn is_known(&self) -> bool {
        (MINOR_LEAST..=MINOR).contains(&self.minor)
            && self.write_bytes <= WRITE_BYTES_MAX
            && self.flags & !WANTED == 0
            && self.more_flags & !MAP_DIRECT == 0
    }
}

/// The answer to an acceptable offer, and the negotiated parameters.
///
/// # Errors
/// The kernel is too old.
pub(crate) fn accept(offer: &Offer) -> Result<(Vec<u8>, Agreed), Errno> {
    if offer.major != MAJOR || offer.minor < MINOR_LEAST {
        return Err(Errno::EPROTO);
    }
    let has_more = offer.flags & HAS_MORE_FLAGS != 0;
    let agreed = Agreed {
        minor: offer.minor.min(MINOR),
        write_bytes: WRITE_BYTES_MAX,
        // Capabilities that an older kernel lacks are not used.
        flags: offer.flags & WANTED,
        more_flags: if has_more { offer.more_flags & MAP_DIRECT } else { 0 },
    };
    let mut writer = Writer::default();
    writer.u32(MAJOR);
    writer.u32(MINOR);
    writer.u32(offer.read_ahead.min(READ_AHEAD_BYTES));
    writer.u32(agreed.flags);
    writer.u16(BACKGROUND_REQUESTS);
    writer.u16(BACKGROUND_REQUESTS / 4 * 3);
    writer.u32(agreed.write_bytes);
    // The granularity of times is a nanosecond.
    writer.u32(1);
    writer.u16(pages_max(page_bytes()));
    writer.u16(0);
    writer.u32(agreed.more_flags);
    (0..7).for_each(|_| writer.u32(0));
    Ok((writer.0, agreed))
}

/// The most pages of a transfer, by the size of the kernel's pages in bytes: no transfer exceeds
/// the buffers.
fn pages_max(page_bytes: usize) -> u16 {
    let pages = WRITE_BYTES_MAX as usize / page_bytes;
    u16::try_from(pages.max(1)).unwrap_or(u16::MAX)
}

/// The answer to a kernel of a later major version, which then retries with ours.
pub(crate) fn refuse_version(offer: &Offer) -> Option<Vec<u8>> {
    (offer.major > MAJOR).then(|| {
        let mut writer = Writer::default();
        writer.u32(MAJOR);
        writer.u32(MINOR);
        writer.0
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(major: u32, minor: u32) -> Offer {
        Offer { major, minor, read_ahead: 1 << 17, flags: POSIX_LOCKS | 1 << 31, more_flags: !0 }
    }

    #[test]
    fn nothing_is_taken_that_was_not_offered_or_is_not_wanted() {
        let (answer, agreed) = accept(&offer(7, 45)).unwrap();
        assert_eq!((agreed.minor, agreed.flags, agreed.more_flags), (MINOR, POSIX_LOCKS, 0));
        assert_eq!(answer.len(), 64);
        assert_eq!(answer[8..12], (1_u32 << 17).to_ne_bytes());
        assert_eq!(answer[12..16], POSIX_LOCKS.to_ne_bytes());
        assert_eq!(answer[32..], [0; 32]);
    }

    #[test]
    fn an_unknown_agreement_is_not_taken_over() {
        let agreed = |change: fn(&mut Agreed)| {
            let mut agreed = accept(&offer(7, 31)).unwrap().1;
            change(&mut agreed);
            agreed.is_known()
        };
        assert!(agreed(|_| ()));
        assert!(!agreed(|agreed| agreed.write_bytes += 1));
        // Write-back, for one.
        assert!(!agreed(|agreed| agreed.flags |= 1 << 16));
        assert!(!agreed(|agreed| agreed.more_flags |= 1));
        assert!(!agreed(|agreed| agreed.minor = MINOR + 1));
    }

    #[test]
    fn a_transfer_fits_whatever_the_size_of_a_page() {
        assert_eq!((pages_max(4096), pages_max(65536), pages_max(2 << 20)), (256, 16, 1));
    }

    #[test]
    fn other_versions_are_refused_or_begin_again() {
        assert_eq!(accept(&offer(7, 27)), Err(Errno::EPROTO));
        assert_eq!(accept(&offer(6, 45)), Err(Errno::EPROTO));
        assert_eq!(refuse_version(&offer(7, 45)), None);
        assert_eq!(refuse_version(&offer(8, 0)).map(|answer| answer.len()), Some(8));
    }
}
