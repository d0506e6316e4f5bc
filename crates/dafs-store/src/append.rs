//! A write at the end of a file, all or nothing, out of what every open file can do.

use crate::{OpenFile, Result, Stability, StoreError, Wait};
use dafs_mem::VolatileSlice;

/// What [`OpenFile::append`] does. Nobody else changes the size of the file meanwhile.
pub(crate) fn append<F: OpenFile + ?Sized>(
    file: &F,
    views: &[VolatileSlice<'_>],
    stability: Stability,
) -> Result<u64> {
    let end = file.attr()?.size;
    let written = write_all(file, views, end).and_then(|()| match stability {
        Stability::Unstable => Ok(()),
        Stability::Data => file.commit(end, 0),
        Stability::File => file.sync(),
    });
    if let Err(error) = written {
        // When this fails as well, the first error is still the one to tell.
        let _ = file.set_size(end);
        return Err(error);
    }
    Ok(end)
}

fn write_all<F: OpenFile + ?Sized>(
    file: &F,
    views: &[VolatileSlice<'_>],
    offset: u64,
) -> Result<()> {
    let mut left: Vec<VolatileSlice<'_>> = views.to_vec();
    left.retain(|view| !view.is_empty());
    let mut at = offset;
    while !left.is_empty() {
        let count = file.write_at(&left, at, Stability::Unstable, Wait::Allowed)?;
        if count == 0 {
            // A store takes something or says why not.
            return Err(StoreError::Io);
        }
        at += count as u64;
        skip(&mut left, count);
    }
    Ok(())
}

/// Takes the first `count` bytes off the views.
fn skip(views: &mut Vec<VolatileSlice<'_>>, mut count: usize) {
    while let Some(first) = views.first().copied() {
        if count < first.len() {
            if let Some(rest) = first.slice(count, first.len() - count) {
                views[0] = rest;
            }
            return;
        }
        count -= first.len();
        views.remove(0);
    }
}
