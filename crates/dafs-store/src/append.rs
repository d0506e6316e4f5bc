//! An atomic write at the end of a file, made of the other operations of open files.

use crate::{OpenFile, Result, Stability, StoreError, Wait};
use dafs_mem::VolatileSlice;

/// Logs the intent and the outcome of an append, in a place that outlives the process.
pub trait AppendWitness: Send + Sync {
    /// Logs that the data will go to `offset`, the end of the file. No data was written yet, and
    /// none is written if this fails.
    ///
    /// # Errors
    /// When it cannot be logged. Then the log may or may not hold the intent.
    fn placed(&self, offset: u64) -> Result<()>;

    /// Logs the outcome: the data has been written with the wanted stability, or (`false`) the file
    /// is as before, and that is stable.
    ///
    /// # Errors
    /// When it cannot be logged. Then the log may or may not hold the outcome.
    fn ended(&self, appended: bool) -> Result<()>;
}

/// The state after a failed append.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AppendFailure {
    /// The file is as before, and its witness knows that.
    Undone(StoreError),
    /// The log may not agree with the data behind the old end of the file. It must be recovered
    /// before the file is written again.
    Unknown(StoreError),
}

impl AppendFailure {
    /// Returns the first error.
    pub fn error(self) -> StoreError {
        match self {
            Self::Undone(error) | Self::Unknown(error) => error,
        }
    }
}

/// Implements [`OpenFile::append`]. The caller prevents other changes of the size.
pub(crate) fn append<F: OpenFile + ?Sized>(
    file: &F,
    views: &[VolatileSlice<'_>],
    stability: Stability,
) -> Result<u64> {
    let end = file.attr()?.size;
    append_at(file, views, stability, end).map(|()| end).map_err(|failure| failure.error())
}

/// Appends like [`append`], and logs intent and outcome to a witness. The caller prevents all other
/// changes of the file.
///
/// # Errors
/// The state of the file and of the log.
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
            // A loss of power could bring the rest of the data back.
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
    // If the truncation fails as well, the caller still gets the first error.
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
            // A store writes at least one byte or returns an error.
            return Err(StoreError::Io);
        }
        at += count as u64;
        skip(&mut left, count);
    }
    Ok(())
}

/// Removes the first `count` bytes from the views.
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
