//! Recovery decides if a logged change without a known reply has happened.
//!
//! No other logged change can have touched the same names or file in between. So their present
//! state is either the one before the change or the result of the change. An append also excludes
//! changes without a record, from the record of its offset to that of its end. If there is no
//! record of the end, all data behind that offset belongs to the append. It may be the whole
//! append, its beginning, or the file system's view of data that had not reached the disk. Recovery
//! draws no conclusion from such data. Only a process that changes the export, bypassing the
//! server, can have written other data there. Data beyond the length of the append must come from
//! such a process, and stays.

use super::Effect;
use super::intent::{Intent, Maker, find, has_all, is_set_later, look, server};
use crate::handle::Handle;
use dafs_mem::VolatileSlice;
use dafs_store::{FileId, Kind, OpenMode, SetAttr, Store, StoreError, Wait};

/// Bytes that are read at once.
const PIECE_BYTES: usize = 1 << 18;

/// The verdict on a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Happened(Effect),
    /// There is no trace of it, or only a part that a retry completes.
    Not,
    /// Another client has changed the same, before or after it.
    InDoubt,
}

/// The verdict without the effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    Happened,
    Not,
    InDoubt,
}

impl Outcome {
    /// Turns doubt into `Not` if the object is not newer than before the change: then the foreign
    /// trace is from before, and later changes were lost with the power.
    pub(super) fn if_newer(
        self,
        store: &dyn Store,
        object: &FileId,
        before: u64,
    ) -> Result<Self, StoreError> {
        Ok(match self {
            Self::InDoubt if look(store, object)?.is_some_and(|now| now.change <= before) => {
                Self::Not
            }
            outcome => outcome,
        })
    }

    fn with(self, effect: Effect) -> Verdict {
        match self {
            Self::Happened => Verdict::Happened(effect),
            Self::Not => Verdict::Not,
            Self::InDoubt => Verdict::InDoubt,
        }
    }
}

fn file_at(store: &dyn Store, dir: &Handle, name: &[u8]) -> Result<Option<FileId>, StoreError> {
    Ok(find(store, dir, name)?.map(|(file, _)| file))
}

impl Intent {
    /// Decides if the change has happened, and removes the rest of a partial one.
    ///
    /// # Errors
    /// The store cannot be read. Then the result is not known.
    pub(super) fn judge(&self, store: &dyn Store) -> Result<Verdict, StoreError> {
        let happened = |did: bool, effect: Effect| {
            if did { Verdict::Happened(effect) } else { Verdict::Not }
        };
        Ok(match self {
            Self::Make { dir, dir_before, name, kind, old, empties, attr, maker } => {
                let found = find(store, dir, name)?;
                let Some((file, now)) = found else { return Ok(Verdict::Not) };
                let outcome = match old {
                    // A named attribute is made by the same request as a file, and has no
                    // attributes of its own.
                    None if (now, *kind) == (Kind::NamedAttr, Kind::Regular) => Outcome::Happened,
                    None if now == *kind => complete(store, &file, now, attr, maker)?,
                    Some(old) if *empties && old.file == file && old.size != 0 => {
                        match store.getattr(&file)?.size {
                            0 => Outcome::Happened,
                            // Writers do not wait, so it may have been empty in between.
                            _ => Outcome::InDoubt.if_newer(store, &file, old.change)?,
                        }
                    }
                    _ => Outcome::Not,
                };
                let object = Handle { fs: dir.fs, file };
                let (created, dir_before) = (old.is_none(), *dir_before);
                outcome.with(Effect::Made { dir: *dir, object, created, dir_before })
            }
            Self::Remove { dir, dir_before, name, old } => {
                let did = old.is_some() && file_at(store, dir, name)? != *old;
                happened(did, Effect::Removed { dir: *dir, dir_before: *dir_before })
            }
            Self::Rename { from_dir, from_before, from, to_dir, to_before, to, source, target } => {
                let (at_from, at_to) =
                    (file_at(store, from_dir, from)?, file_at(store, to_dir, to)?);
                let outcome = match source {
                    None => Outcome::Not,
                    Some(_) if at_from == *source => Outcome::Not,
                    Some(_) if at_to == *source => Outcome::Happened,
                    // The target that would have been replaced is there.
                    Some(_) if target.is_some() && at_to == *target => Outcome::Not,
                    Some(_) => Outcome::InDoubt.if_newer(store, &from_dir.file, *from_before)?,
                };
                let effect = Effect::Renamed {
                    from_dir: *from_dir,
                    from_before: *from_before,
                    to_dir: *to_dir,
                    to_before: *to_before,
                };
                outcome.with(effect)
            }
            Self::Link { source, dir, dir_before, name, exists } => {
                let did = !exists && file_at(store, dir, name)? == Some(source.file);
                let (source, dir, dir_before) = (*source, *dir, *dir_before);
                happened(did, Effect::Linked { source, dir, dir_before })
            }
            Self::SetAttr { file, attributes } => {
                attributes.judge(store, &file.file)?.with(Effect::AttrSet { file: *file })
            }
            Self::SetXattr { file, xattr } => {
                xattr.judge(store, &file.file)?.with(Effect::AttrSet { file: *file })
            }
            Self::Write { file, offset, len, digest } => {
                let did = digest.is_some() && digest_of(store, file, *offset, *len)? == *digest;
                happened(did, Effect::Written { file: *file, len: *len })
            }
            Self::Append { file, offset, len, digest } => {
                return judge_append(store, file, *offset, *len, *digest);
            }
        })
    }
}

/// Decides if a new object of the logged name and kind is the one of this change. If so, attributes
/// that it lacks, because the server crashed before it set them, are set with the maker's rights.
/// The object counts as the maker's if it has the owner of the maker's objects, and is not older
/// than its directory was at the intent. Objects that others have made or moved there are not
/// changed.
fn complete(
    store: &dyn Store,
    file: &FileId,
    kind: Kind,
    wish: &SetAttr,
    maker: &Maker,
) -> Result<Outcome, StoreError> {
    let found = store.getattr(file)?;
    let owner = store.owner_of_new(&maker.cred);
    // Only the superuser can give objects away.
    let is_owned = found.uid == owner || owner == 0 && Some(found.uid) == wish.uid;
    if !is_owned || found.btime.is_some_and(|born| born < maker.since) {
        return Ok(Outcome::Not);
    }
    let wish = match kind {
        Kind::Symlink => SetAttr { mode: None, ..*wish },
        _ => *wish,
    };
    // Others have changed attributes since that were set at the creation and differ now.
    if !is_set_later(&wish) || has_all(&found, &wish) {
        return Ok(Outcome::Happened);
    }
    // It was given away, or belonged to another user from the beginning: the superuser does not
    // change it.
    if found.uid != owner {
        return Ok(Outcome::InDoubt);
    }
    match store.setattr(&maker.cred, file, &wish, None) {
        // A user's quota does not keep the server from starting.
        Err(StoreError::Io) => Err(StoreError::Io),
        Err(error) => {
            tracing::warn!(%error, ?file, "a new object has not got all its attributes");
            Ok(Outcome::InDoubt)
        }
        Ok(_) => Ok(Outcome::Happened),
    }
}

fn judge_append(
    store: &dyn Store,
    file: &Handle,
    offset: u64,
    len: u64,
    digest: u32,
) -> Result<Verdict, StoreError> {
    let attr = match store.getattr(&file.file) {
        Err(StoreError::Stale | StoreError::MovedOut | StoreError::BadHandle) => {
            return Ok(Verdict::Not);
        }
        attr => attr?,
    };
    let end = offset.saturating_add(len);
    if attr.size <= offset {
        return Ok(Verdict::Not);
    }
    // It may be complete, and others may have seen it.
    if attr.size >= end && digest_of(store, file, offset, len)? == Some(digest) {
        return Ok(Verdict::Happened(Effect::Appended { file: *file, offset, len }));
    }
    if attr.size > end {
        tracing::warn!(
            file = ?file.file, offset, len, size = attr.size,
            "an append was in progress when the server ended, and another process changed the file \
            since; it stays as it is"
        );
        return Ok(Verdict::InDoubt);
    }
    // An append is atomic (DAFS 13.3), so a part of it is removed.
    let cut = SetAttr { size: Some(offset), ..SetAttr::default() };
    store.setattr(&server(), &file.file, &cut, None)?;
    store.commit_names(&[file.file])?;
    tracing::info!(bytes = attr.size - offset, "rolled back an append that was half done");
    Ok(Verdict::Not)
}

/// Returns the digest of a range. `None` when the file is shorter, or gone.
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
