//! Moves file data between files and messages, for every version of NFS.

use dafs_mem::{Site, VolatileSlice};
use dafs_rpc::Reply;
use dafs_store::{OpenFile, Result, Stability, StoreError, Wait};

/// The largest piece that is handed to a file at once where waiting is not allowed. EXT4 looks at all
/// blocks of a large folio of the page cache in each call, so long calls cost less.
const PIECE_BYTES: usize = 1 << 20;

/// Fills the view from `offset` on, up to the end of the file. With `Wait::Never`, returns
/// [`StoreError::WouldBlock`] when not all of it is in memory.
pub(crate) fn read_all(
    file: &dyn OpenFile,
    view: VolatileSlice<'_>,
    offset: u64,
    wait: Wait,
) -> Result<usize> {
    let mut done = 0;
    while done < view.len() {
        let Some(rest) = view.slice(done, view.len() - done) else { break };
        match file.read_at(&[rest], offset.saturating_add(done as u64), wait) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(StoreError::WouldBlock) => return Err(StoreError::WouldBlock),
            Err(error) if done == 0 => return Err(error),
            // The data before the error is good. The client gets the error when it reads on.
            Err(_) => break,
        }
    }
    Ok(done)
}

/// Wraps data of a message, to be written to a file.
pub(crate) fn source(data: &[u8]) -> VolatileSlice<'_> {
    // SAFETY: the bytes stay borrowed for as long as the view lives. It only goes to `write_all`,
    // and a write to a file only reads from its views.
    unsafe { VolatileSlice::new(data.as_ptr().cast_mut(), data.len()) }
}

/// Writes all of `data` to `offset`, or the part before an error. With `Wait::Never`, returns
/// [`StoreError::WouldBlock`] when the file does not take all at once. Then the caller writes the
/// same data again.
pub(crate) fn write_all(
    file: &dyn OpenFile,
    data: VolatileSlice<'_>,
    offset: u64,
    stability: Stability,
    wait: Wait,
) -> Result<usize> {
    let piece_bytes_max = if wait == Wait::Never { PIECE_BYTES } else { data.len() };
    let mut done = 0;
    while done < data.len() {
        let piece = (data.len() - done).min(piece_bytes_max);
        let Some(rest) = data.slice(done, piece) else { break };
        match file.write_at(&[rest], offset.saturating_add(done as u64), stability, wait) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(StoreError::WouldBlock) => return Err(StoreError::WouldBlock),
            // The system reports lost data once only.
            Err(StoreError::Io) if stability != Stability::Unstable => return Err(StoreError::Io),
            Err(error) if done == 0 => return Err(error),
            // The written part stays. The client gets the error when it writes on.
            Err(_) => break,
        }
    }
    Ok(done)
}

/// Appends the text of a symbolic link to results that have its length already.
pub(crate) fn place_text(reply: &mut Reply, text: &[u8]) -> std::io::Result<()> {
    let mut space = reply.bulk(text.len())?;
    space.view().copy_from(text, Site::NfsText);
    space.finish(text.len());
    Ok(())
}
