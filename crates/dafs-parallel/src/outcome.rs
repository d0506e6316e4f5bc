//! The result of a piece of a transfer whose parts went to several data servers.
//!
//! Invariants
//! * All parts have ended before a result is formed, so that the memory is the caller's again.
//! * Bytes reported done are done from the start of the piece without a gap, on every copy.

/// A successful part at a data server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moved<S> {
    /// Bytes, from the start.
    pub bytes: usize,
    /// A read reached the end of the file, as far as the data server knows it.
    pub eof: bool,
    /// The stability of the written data.
    pub stable: S,
    /// Counts losses of unstable data.
    pub verifier: [u8; 8],
}

/// The reason why a data server has not done its part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault<E> {
    /// It is known to be unreachable, and no request was sent.
    Unavailable,
    /// It has become unreachable.
    Unreachable,
    /// The request was sent and has failed.
    Failed(E),
    /// It has transferred fewer bytes than requested.
    Short,
}

/// The components with a failed part, and the reasons.
pub type Faults<E> = Vec<(usize, Fault<E>)>;

/// Sums up the parts of a piece of `piece_bytes` bytes, each with its component, length and result.
/// Returns the number of bytes done from the start, and the verifier of a time at which all their
/// data certainly existed. `stablest` is the stability of an empty transfer.
///
/// # Errors
/// The faults.
pub fn sum<S: Copy + Ord, E>(
    parts: impl ExactSizeIterator<Item = (usize, usize, Result<Moved<S>, Fault<E>>)>,
    write: bool,
    piece_bytes: usize,
    stablest: S,
) -> Result<Moved<S>, Faults<E>> {
    let mut all = Moved { bytes: 0, eof: false, stable: stablest, verifier: [u8::MAX; 8] };
    let mut faults = Vec::new();
    let (one, mut is_whole) = (parts.len() == 1, true);
    for (component, bytes, came) in parts {
        match came {
            Ok(moved) if write && !one && moved.bytes < bytes => {
                faults.push((component, Fault::Short));
            }
            Ok(moved) => {
                all.bytes += if is_whole { moved.bytes } else { 0 };
                is_whole &= moved.bytes == bytes;
                all.eof = moved.eof;
                all.stable = all.stable.min(moved.stable);
                // The verifier counts losses: the smallest one covers all data.
                all.verifier = all.verifier.min(moved.verifier);
            }
            Err(fault) => faults.push((component, fault)),
        }
    }
    if !faults.is_empty() {
        return Err(faults);
    }
    // With several copies, each is whole.
    Ok(Moved { bytes: all.bytes.min(piece_bytes), ..all })
}

#[cfg(test)]
mod tests {
    use super::*;

    type Part = (usize, usize, Result<Moved<u8>, Fault<&'static str>>);

    fn part(component: usize, asked: usize, bytes: usize, stable: u8, verifier: u8) -> Part {
        let verifier = [verifier; 8];
        (component, asked, Ok(Moved { bytes, eof: false, stable, verifier }))
    }

    fn of(parts: Vec<Part>, write: bool) -> Result<Moved<u8>, Faults<&'static str>> {
        sum(parts.into_iter(), write, 100, 2)
    }

    #[test]
    fn a_read_ends_with_the_first_part_that_is_short() {
        let read = of(vec![part(0, 60, 60, 2, 0), part(1, 40, 30, 2, 0)], false).unwrap();
        assert_eq!(read.bytes, 90);
        let gap = of(vec![part(0, 60, 50, 2, 0), part(1, 40, 40, 2, 0)], false).unwrap();
        assert_eq!(gap.bytes, 50, "what is behind a gap does not count");
    }

    #[test]
    fn a_write_is_as_stable_as_its_least_stable_copy_and_as_whole() {
        let both = of(vec![part(0, 100, 100, 2, 9), part(1, 100, 100, 0, 3)], true).unwrap();
        assert_eq!((both.bytes, both.stable, both.verifier), (100, 0, [3; 8]));
        let short = of(vec![part(0, 100, 100, 2, 9), part(1, 100, 99, 2, 9)], true);
        assert_eq!(short, Err(vec![(1, Fault::Short)]));
        assert_eq!(of(vec![part(0, 100, 7, 2, 9)], true).unwrap().bytes, 7, "one goes on");
    }

    #[test]
    fn all_that_failed_is_told() {
        let failed = |component, fault| (component, 50, Err(fault));
        let parts = vec![
            failed(0, Fault::Unavailable),
            part(1, 50, 50, 2, 0),
            failed(2, Fault::Failed("no")),
        ];
        assert_eq!(of(parts, false), Err(vec![(0, Fault::Unavailable), (2, Fault::Failed("no"))]));
    }
}
