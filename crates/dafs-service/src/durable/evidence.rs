//! Whether a change that was announced, and whose reply is not known, has happened.
//!
//! Nothing else that was announced can have touched the same names or file in between, so what is
//! there now is either what was there before or what the change made of it.

use super::Effect;
use super::intent::{Intent, find, has_all, server};
use crate::handle::Handle;
use dafs_mem::VolatileSlice;
use dafs_store::{FileId, Kind, OpenMode, SetAttr, Store, StoreError, Wait};

/// Bytes that a device writes as one.
const SECTOR_BYTES: usize = 512;

/// Bytes that are read at once.
const PIECE_BYTES: usize = 1 << 18;

/// What has become of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Happened(Effect),
    /// There is no trace of it.
    Not,
}

fn file_at(store: &dyn Store, dir: &Handle, name: &[u8]) -> Result<Option<FileId>, StoreError> {
    Ok(find(store, dir, name)?.map(|(file, _)| file))
}

impl Intent {
    /// Finds out what has become of the change, and takes away what is left of one that was half
    /// done.
    ///
    /// # Errors
    /// When the store cannot be read; then nothing is known.
    pub(super) fn judge(&self, store: &dyn Store, rebooted: bool) -> Result<Verdict, StoreError> {
        let happened = |did: bool, effect: Effect| {
            if did { Verdict::Happened(effect) } else { Verdict::Not }
        };
        Ok(match self {
            Self::Make { dir, dir_before, name, kind, old, empties, .. } => {
                let found = find(store, dir, name)?;
                let Some((file, now)) = found else { return Ok(Verdict::Not) };
                let did = match old {
                    // A named attribute is made by the same request as a file.
                    None => now == *kind || (now, *kind) == (Kind::NamedAttr, Kind::Regular),
                    Some(old) if *empties && old.file == file => {
                        let attr = store.getattr(&file)?;
                        attr.size == 0 && attr.change != old.change
                    }
                    Some(_) => false,
                };
                let object = Handle { fs: dir.fs, file };
                let (created, dir_before) = (old.is_none(), *dir_before);
                happened(did, Effect::Made { dir: *dir, object, created, dir_before })
            }
            Self::Remove { dir, dir_before, name, old } => {
                let did = old.is_some() && file_at(store, dir, name)? != *old;
                happened(did, Effect::Removed { dir: *dir, dir_before: *dir_before })
            }
            Self::Rename { from_dir, from_before, from, to_dir, to_before, to, source } => {
                let did = source.is_some()
                    && file_at(store, to_dir, to)? == *source
                    && file_at(store, from_dir, from)? != *source;
                let effect = Effect::Renamed {
                    from_dir: *from_dir,
                    from_before: *from_before,
                    to_dir: *to_dir,
                    to_before: *to_before,
                };
                happened(did, effect)
            }
            Self::Link { source, dir, dir_before, name, exists } => {
                let did = !exists && file_at(store, dir, name)? == Some(source.file);
                let (source, dir, dir_before) = (*source, *dir, *dir_before);
                happened(did, Effect::Linked { source, dir, dir_before })
            }
            Self::SetAttr { file, before, change } => {
                let did = match store.getattr(&file.file) {
                    Ok(attr) => attr.change != *before && has_all(&attr, change),
                    Err(StoreError::Stale | StoreError::BadHandle) => false,
                    Err(error) => return Err(error),
                };
                happened(did, Effect::AttrSet { file: *file })
            }
            Self::Write { file, offset, len, digest } => {
                let did = digest.is_some() && digest_of(store, file, *offset, *len)? == *digest;
                happened(did, Effect::Written { file: *file, len: *len })
            }
            Self::Append { file, offset, len, digest } => {
                return judge_append(store, file, *offset, *len, *digest, rebooted);
            }
        })
    }
}

fn judge_append(
    store: &dyn Store,
    file: &Handle,
    offset: u64,
    len: u64,
    digest: Option<u32>,
    rebooted: bool,
) -> Result<Verdict, StoreError> {
    let attr = match store.getattr(&file.file) {
        Err(StoreError::Stale | StoreError::BadHandle) => return Ok(Verdict::Not),
        attr => attr?,
    };
    let end = offset.saturating_add(len);
    if attr.size >= end {
        let happened = |offset| Verdict::Happened(Effect::Appended { file: *file, offset, len });
        // What was not stable may be missing behind a size that is there.
        let torn = rebooted && attr.size == end && has_zeros(store, file, offset, len)?;
        if digest.is_none() && !torn {
            return Ok(happened(offset));
        }
        // Somebody who announces nothing, such as an NFS client, may have written to the end between
        // the announcement and the append.
        for offset in [offset, attr.size - len] {
            if digest.is_some() && digest_of(store, file, offset, len)? == digest {
                return Ok(happened(offset));
            }
        }
        if !torn {
            return Ok(Verdict::Not);
        }
        // Nobody was told of it: its reply would be in the journal.
    }
    if attr.size > offset {
        // All or nothing (DAFS 13.3): the beginning of it goes.
        let cut = SetAttr { size: Some(offset), ..SetAttr::default() };
        store.setattr(&server(), &file.file, &cut, None)?;
        store.commit_names(&[file.file])?;
        tracing::info!(bytes = attr.size - offset, "took back an append that was half done");
    }
    Ok(Verdict::Not)
}

/// Whether some sector of a range holds nothing but zeros, as one does that was never written.
fn has_zeros(store: &dyn Store, file: &Handle, offset: u64, len: u64) -> Result<bool, StoreError> {
    let mode = OpenMode { read: true, write: false };
    let open = store.open(&server(), &file.file, mode)?;
    let mut buffer = [0; SECTOR_BYTES];
    let (mut at, end) = (offset, offset.saturating_add(len));
    while at < end {
        let rest = SECTOR_BYTES - (at % SECTOR_BYTES as u64) as usize;
        let piece = rest.min(usize::try_from(end - at).unwrap_or(rest));
        let view = VolatileSlice::from_mut(&mut buffer[..piece]);
        let read = open.read_at(&[view], at, Wait::Allowed)?;
        if read == 0 || buffer[..read].iter().all(|byte| *byte == 0) {
            return Ok(true);
        }
        at += read as u64;
    }
    Ok(false)
}

/// The digest of a range; `None` when the file ends before it does, or is gone.
fn digest_of(
    store: &dyn Store,
    file: &Handle,
    offset: u64,
    len: u64,
) -> Result<Option<u32>, StoreError> {
    let mode = OpenMode { read: true, write: false };
    let open = match store.open(&server(), &file.file, mode) {
        Ok(open) => open,
        Err(StoreError::Io) => return Err(StoreError::Io),
        Err(_) => return Ok(None),
    };
    let mut buffer = vec![0; PIECE_BYTES.min(usize::try_from(len).unwrap_or(PIECE_BYTES))];
    let (mut digest, mut done) = (0, 0);
    while done < len {
        let piece = buffer.len().min(usize::try_from(len - done).unwrap_or(usize::MAX));
        let view = VolatileSlice::from_mut(&mut buffer[..piece]);
        let read = open.read_at(&[view], offset + done, Wait::Allowed)?;
        if read == 0 {
            return Ok(None);
        }
        digest = super::digest(digest, &buffer[..read]);
        done += read as u64;
    }
    Ok(Some(digest))
}
