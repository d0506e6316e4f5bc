//! Whether a change that was announced, and whose reply is not known, has happened.
//!
//! Nothing else that was announced can have touched the same names or file in between, so what is
//! there now is either what was there before or what the change made of it. An append excludes even
//! those who announce nothing, from the record of its place to that of its end: what is behind that
//! place, when there is no record of the end, is of the append alone, whether all of it is there, its
//! beginning, or what a file system shows of data that had not reached the disk. Nothing is concluded
//! from what such data looks like. Only somebody who changes the export behind the server's back can
//! have put something else there; what is longer than the append must be of such a one, and stays.

use super::Effect;
use super::intent::{Intent, Maker, find, has_all, is_set_later, look, server};
use crate::handle::Handle;
use dafs_mem::VolatileSlice;
use dafs_store::{FileId, Kind, OpenMode, SetAttr, Store, StoreError, Wait};

/// Bytes that are read at once.
const PIECE_BYTES: usize = 1 << 18;

/// What has become of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Happened(Effect),
    /// There is no trace of it, or only a part of it that is as good as done again.
    Not,
    /// Somebody else has changed the same, before or after it.
    InDoubt,
}

/// The same without the effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    Happened,
    Not,
    InDoubt,
}

impl Outcome {
    /// What is not newer than it was before the change shows no doubtful trace of it: what seems to be
    /// somebody else's is from before, and what came after it was lost with the power.
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
    /// Finds out what has become of the change, and takes away what is left of one that was half
    /// done.
    ///
    /// # Errors
    /// When the store cannot be read; then nothing is known.
    pub(super) fn judge(&self, store: &dyn Store) -> Result<Verdict, StoreError> {
        let happened = |did: bool, effect: Effect| {
            if did { Verdict::Happened(effect) } else { Verdict::Not }
        };
        Ok(match self {
            Self::Make { dir, dir_before, name, kind, old, empties, attr, maker } => {
                let found = find(store, dir, name)?;
                let Some((file, now)) = found else { return Ok(Verdict::Not) };
                let outcome = match old {
                    // A named attribute is made by the same request as a file, and has no attributes
                    // of its own.
                    None if (now, *kind) == (Kind::NamedAttr, Kind::Regular) => Outcome::Happened,
                    None if now == *kind => complete(store, &file, now, attr, maker)?,
                    Some(old) if *empties && old.file == file && old.size != 0 => {
                        match store.getattr(&file)?.size {
                            0 => Outcome::Happened,
                            // Who writes is not kept waiting, so it may have been empty in between.
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
                    // What would have been replaced is there.
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

/// Whether a new object of the announced name and kind is the one that was to be made; then what it
/// was to have and lacks, because the server ended between the two, is set with its maker's rights. It
/// is his if it belongs to whom his objects belong, and is not older than its place was when he
/// announced it: what others have made or brought there is neither his nor touched.
fn complete(
    store: &dyn Store,
    file: &FileId,
    kind: Kind,
    wish: &SetAttr,
    maker: &Maker,
) -> Result<Outcome, StoreError> {
    let found = store.getattr(file)?;
    let owner = store.owner_of_new(&maker.cred);
    // Only the superuser gives objects away.
    let is_owned = found.uid == owner || owner == 0 && Some(found.uid) == wish.uid;
    if !is_owned || found.btime.is_some_and(|born| born < maker.since) {
        return Ok(Outcome::Not);
    }
    let wish = match kind {
        Kind::Symlink => SetAttr { mode: None, ..*wish },
        _ => *wish,
    };
    // What it got with its making, others have changed since if it is not there.
    if !is_set_later(&wish) || has_all(&found, &wish) {
        return Ok(Outcome::Happened);
    }
    // It was given away, or has been another's from the beginning: the superuser sets nothing on that.
    if found.uid != owner {
        return Ok(Outcome::InDoubt);
    }
    match store.setattr(&maker.cred, file, &wish, None) {
        // Nobody's quota keeps the server from starting.
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
    // It may be there as a whole, and others may have seen it.
    if attr.size >= end && digest_of(store, file, offset, len)? == Some(digest) {
        return Ok(Verdict::Happened(Effect::Appended { file: *file, offset, len }));
    }
    if attr.size > end {
        tracing::warn!(
            file = ?file.file, offset, len, size = attr.size,
            "an append was under way when the server ended, and the file was changed since by \
             somebody else; it is left as it is"
        );
        return Ok(Verdict::InDoubt);
    }
    // All or nothing (DAFS 13.3): what is there of it goes.
    let cut = SetAttr { size: Some(offset), ..SetAttr::default() };
    store.setattr(&server(), &file.file, &cut, None)?;
    store.commit_names(&[file.file])?;
    tracing::info!(bytes = attr.size - offset, "took back an append that was half done");
    Ok(Verdict::Not)
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
