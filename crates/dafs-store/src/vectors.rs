//! Lists of views, and transfers that continue in the middle of them.

use crate::{Result, StoreError};
use dafs_mem::VolatileSlice;

/// Repeats a transfer until all is done, no more data comes, or an error ends it. After some
/// progress it returns the count instead of the error.
pub fn continued(
    views: &[VolatileSlice<'_>],
    offset: u64,
    transfer: impl FnMut(&[VolatileSlice<'_>], u64) -> std::io::Result<usize>,
) -> Result<usize> {
    let (done, error) = transferred(views, offset, transfer);
    match error {
        Some(error) if done == 0 => Err(error),
        _ => Ok(done),
    }
}

/// Does the same where a short count means the end of the data: it returns an error even after some
/// progress.
pub fn continued_to_end(
    views: &[VolatileSlice<'_>],
    offset: u64,
    transfer: impl FnMut(&[VolatileSlice<'_>], u64) -> std::io::Result<usize>,
) -> Result<usize> {
    match transferred(views, offset, transfer) {
        (_, Some(error)) => Err(error),
        (done, None) => Ok(done),
    }
}

/// Returns the number of transferred bytes, and the error that has ended the transfer.
fn transferred(
    views: &[VolatileSlice<'_>],
    offset: u64,
    mut transfer: impl FnMut(&[VolatileSlice<'_>], u64) -> std::io::Result<usize>,
) -> (usize, Option<StoreError>) {
    let wanted: usize = views.iter().map(VolatileSlice::len).sum();
    let mut done = 0;
    let mut rest;
    let mut left = views;
    while done < wanted {
        let Some(at) = offset.checked_add(done as u64) else {
            return (done, Some(StoreError::FileTooBig));
        };
        match transfer(left, at) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(error) => return (done, Some(error.into())),
        }
        if done < wanted {
            rest = after(views, done);
            left = &rest;
        }
    }
    (done, None)
}

/// Returns the views without their first `skip` bytes.
pub fn after<'a>(views: &[VolatileSlice<'a>], mut skip: usize) -> Vec<VolatileSlice<'a>> {
    let mut rest = Vec::with_capacity(views.len());
    for view in views {
        let cut = skip.min(view.len());
        skip -= cut;
        rest.extend(view.slice(cut, view.len() - cut).filter(|part| !part.is_empty()));
    }
    rest
}

/// Returns the first `keep` bytes of the views.
pub fn before<'a>(views: &[VolatileSlice<'a>], mut keep: usize) -> Vec<VolatileSlice<'a>> {
    let mut first = Vec::with_capacity(views.len());
    for view in views {
        let len = keep.min(view.len());
        keep -= len;
        first.extend(view.slice(0, len).filter(|part| !part.is_empty()));
    }
    first
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    /// Transfers two bytes, then fails.
    fn torn(views: &[VolatileSlice<'_>], offset: u64) -> io::Result<usize> {
        assert!(!views.is_empty());
        if offset == 10 { Ok(2) } else { Err(io::Error::from_raw_os_error(libc::EIO)) }
    }

    #[test]
    fn an_error_behind_the_first_bytes_is_hidden_only_from_those_who_come_again() {
        let mut bytes = [0; 4];
        let views = [VolatileSlice::from_mut(&mut bytes)];
        assert_eq!(continued(&views, 10, torn), Ok(2));
        assert_eq!(continued(&views, 12, torn), Err(StoreError::Io));
        assert_eq!(continued_to_end(&views, 10, torn), Err(StoreError::Io));
        assert_eq!(continued_to_end(&views, 10, |_, at| Ok(usize::from(at < 13))), Ok(3));
    }
}
