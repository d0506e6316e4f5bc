//! Lists of views: how transfers go on in the middle of them.

use crate::{Result, StoreError};
use dafs_mem::VolatileSlice;

/// Repeats a transfer until everything is done, nothing more comes, or an error ends it. Progress
/// hides an error.
pub fn continued(
    views: &[VolatileSlice<'_>],
    offset: u64,
    mut transfer: impl FnMut(&[VolatileSlice<'_>], u64) -> std::io::Result<usize>,
) -> Result<usize> {
    let wanted: usize = views.iter().map(VolatileSlice::len).sum();
    let mut done = 0;
    let mut rest;
    let mut left = views;
    while done < wanted {
        let at = offset.checked_add(done as u64).ok_or(StoreError::FileTooBig)?;
        match transfer(left, at) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(_) if done > 0 => break,
            Err(error) => return Err(error.into()),
        }
        if done < wanted {
            rest = after(views, done);
            left = &rest;
        }
    }
    Ok(done)
}

/// The views without their first `skip` bytes.
pub(crate) fn after<'a>(views: &[VolatileSlice<'a>], mut skip: usize) -> Vec<VolatileSlice<'a>> {
    let mut rest = Vec::with_capacity(views.len());
    for view in views {
        let cut = skip.min(view.len());
        skip -= cut;
        rest.extend(view.slice(cut, view.len() - cut).filter(|part| !part.is_empty()));
    }
    rest
}

/// The first `keep` bytes of the views.
pub(crate) fn before<'a>(views: &[VolatileSlice<'a>], mut keep: usize) -> Vec<VolatileSlice<'a>> {
    let mut first = Vec::with_capacity(views.len());
    for view in views {
        let len = keep.min(view.len());
        keep -= len;
        first.extend(view.slice(0, len).filter(|part| !part.is_empty()));
    }
    first
}
