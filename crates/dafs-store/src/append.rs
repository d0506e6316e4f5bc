//! A write at the end of a file, all or nothing, out of what every open file can do.

use crate::{OpenFile, Result, Stability, StoreError, Wait};
use dafs_mem::VolatileSlice;

/// Somebody who notes, where it outlives the process, what an append is about to do and has done.
pub trait AppendWitness: Send + Sync {
    /// The data will go to `offset`, the end of the file. Nothing was written yet, and nothing is
    /// when this fails.
    ///
    /// # Errors
    /// When it cannot be noted; whether it was is not known then.
    fn placed(&self, offset: u64) -> Result<()>;

    /// The data is there, as stable as it was asked for, or (`false`) the file is as it was, and that
    /// is stable.
    ///
    /// # Errors
    /// When it cannot be noted; whether it was is not known then.
    fn ended(&self, appended: bool) -> Result<()>;
}

/// How an append has failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AppendFailure {
    /// The file is as it was, and its witness knows that.
    Undone(StoreError),
    /// What the file holds behind its old end, and what the witness has noted, do not agree for
    /// certain. Somebody is to find out before anything else is written to the file.
    Unknown(StoreError),
}

impl AppendFailure {
    /// What went wrong first.
    pub fn error(self) -> StoreError {
        match self {
            Self::Undone(error) | Self::Unknown(error) => error,
        }
    }
}

/// What [`OpenFile::append`] does. Nobody else changes the size of the file meanwhile.
pub(crate) fn append<F: OpenFile + ?Sized>(
    file: &F,
    views: &[VolatileSlice<'_>],
    stability: Stability,
) -> Result<u64> {
    let end = file.attr()?.size;
    append_at(file, views, stability, end).map(|()| end).map_err(|failure| failure.error())
}

/// As [`append`], before the eyes of a witness. Nobody else changes the file until it returns.
///
/// # Errors
/// What became of the file and of what the witness knows.
pub fn append_before(
    file: &dyn OpenFile,
    views: &[VolatileSlice<'_>],
    stability: Stability,
    witness: &dyn AppendWitness,
) -> std::result::Result<u64, AppendFailure> {
    use AppendFailure::{Undone, Unknown};
    let end = file.attr().map_err(Undone)?.size;
    witness.placed(end).map_err(Unknown)?;
    match append_at(file, views, stability, end) {
        Ok(()) => witness.ended(true).map_err(Unknown).map(|()| end),
        Err(Undone(error)) => {
            // What is left of it could come back with a loss of power.
            let noted = file.sync().and_then(|()| witness.ended(false));
            Err(if noted.is_ok() { Undone(error) } else { Unknown(error) })
        }
        Err(unknown) => Err(unknown),
    }
}

fn append_at<F: OpenFile + ?Sized>(
    file: &F,
    views: &[VolatileSlice<'_>],
    stability: Stability,
    end: u64,
) -> std::result::Result<(), AppendFailure> {
    let written = write_all(file, views, end).and_then(|()| match stability {
        Stability::Unstable => Ok(()),
        Stability::Data => file.commit(end, 0),
        Stability::File => file.sync(),
    });
    // When cutting it fails as well, the first error is still the one to tell.
    written.map_err(|error| match file.set_size(end) {
        Ok(()) => AppendFailure::Undone(error),
        Err(_) => AppendFailure::Unknown(error),
    })
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
