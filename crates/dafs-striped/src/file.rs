//! Open files of a striped store.

use super::record::{Piece, Record};
use super::shown;
use super::slots::Slot;
use super::state::{FileState, Place};
use crate::limits::AHEAD_STRIPES_MAX;
use dafs_mem::VolatileSlice;
use dafs_store::backend::{
    after, before, check_advice, check_size, check_write, copy_pieces, seek_dense,
};
use dafs_store::{
    Advised, Attr, CacheAdvice, CopyRange, FileId, OpenFile, OpenMode, Result, SeekWhat, Stability,
    StoreError, WILL_NEED_BYTES_MAX, Wait, WholeFile,
};
use std::any::Any;
use std::sync::Arc;

/// An open of a file.
pub(super) struct StripedFile {
    /// The open of the metadata file, with the caller's rights.
    meta: Arc<dyn OpenFile>,
    state: Arc<FileState>,
    mode: OpenMode,
}

impl StripedFile {
    pub(super) fn new(meta: Arc<dyn OpenFile>, state: Arc<FileState>, mode: OpenMode) -> Self {
        if mode.write {
            state.note_writer(&meta);
        }
        Self { meta, state, mode }
    }

    /// Reads pieces one after the other. Bytes that components lack read as zeros.
    fn read_pieces(
        &self,
        record: &Record,
        views: &[VolatileSlice<'_>],
        offset: u64,
    ) -> Result<usize> {
        let wanted: usize = views.iter().map(VolatileSlice::len).sum();
        let size = self.meta.attr()?.size;
        let there = usize::try_from(size.saturating_sub(offset)).unwrap_or(usize::MAX);
        let _server = self.state.shared().as_server()?;
        let mut done = 0;
        for Piece { place, offset, len } in record.pieces(offset, wanted.min(there)) {
            let part = before(&after(views, done), len);
            let node = match self.state.slot(record, place) {
                Ok(slot) => slot.node.clone(),
                Err(_) if done > 0 => break,
                Err(error) => return Err(error),
            };
            match node.read(&record.component, &part, offset) {
                Ok(count) => after(&part, count).iter().for_each(|view| view.fill(0)),
                Err(_) if done > 0 => break,
                Err(error) => return Err(error.of_node()),
            }
            done += len;
        }
        Ok(done)
    }

    /// Writes pieces one after the other, and returns the number of written bytes.
    fn write_pieces(
        &self,
        record: &Record,
        views: &[VolatileSlice<'_>],
        offset: u64,
        stability: Stability,
    ) -> Result<usize> {
        let wanted: usize = views.iter().map(VolatileSlice::len).sum();
        let shared = self.state.shared();
        let _server = shared.as_server()?;
        let moving = self.state.moving();
        let mut done = 0;
        for Piece { place, offset, len } in record.pieces(offset, wanted) {
            let part = before(&after(views, done), len);
            let slot = match self.state.slot(record, place) {
                Ok(slot) => slot,
                Err(_) if done > 0 => break,
                Err(error) => return Err(error),
            };
            let _in_order = moving.as_ref().and_then(|moving| moving.take_turn(place));
            match slot.node.write(&record.component, &part, offset, stability) {
                Ok(written) => {
                    shared.note_verifier(&slot, written.verifier);
                    if let Some(moving) = &moving {
                        let part = before(&part, written.count);
                        moving.follow(record, place, &part, offset);
                    }
                    done += written.count;
                    if written.count < len {
                        break;
                    }
                }
                // An error of a sync is reported once by the system, so a short count must not hide
                // it.
                Err(StoreError::Io) if stability != Stability::Unstable => {
                    return Err(StoreError::Io);
                }
                Err(_) if done > 0 => break,
                Err(error) => return Err(error.of_node()),
            }
        }
        Ok(done)
    }

    fn write_striped(
        &self,
        record: &Record,
        views: &[VolatileSlice<'_>],
        offset: u64,
        stability: Stability,
    ) -> Result<usize> {
        let written = self.write_pieces(record, views, offset, stability);
        let count = written.inspect_err(|_| self.state.set_loose())?;
        // If the size cannot be extended, data beyond it must be truncated before the file grows.
        let extended = self.state.extend(&*self.meta, offset + count as u64);
        extended.inspect_err(|_| self.state.set_loose())?;
        self.make_stable(stability)?;
        Ok(count)
    }

    /// Gives advice to the nodes with the content, by few calls each. Advice that no node follows is
    /// ignored.
    fn advise_nodes(
        &self,
        record: &Record,
        offset: u64,
        len: u64,
        advice: CacheAdvice,
    ) -> Result<Advised> {
        let size = self.meta.attr()?.size;
        let end = if len == 0 { size } else { offset.saturating_add(len).min(size) };
        let bytes = match end.checked_sub(offset).filter(|bytes| *bytes > 0) {
            None => return Ok(Advised::Followed),
            Some(bytes) => bytes,
        };
        let whole = |place| (place, offset, bytes);
        let pieces = |bytes| record.pieces(offset, usize::try_from(bytes).unwrap_or(usize::MAX));
        let parts: Vec<_> = match (record.whole, advice) {
            // All readers begin with the same copy.
            (Some(_), CacheAdvice::WillNeed) => record.fresh().take(1).map(whole).collect(),
            (Some(_), _) => record.fresh().map(whole).collect(),
            // A node would read the holes between its stripes ahead, too.
            (None, CacheAdvice::WillNeed) => pieces(bytes.min(WILL_NEED_BYTES_MAX))
                .take(AHEAD_STRIPES_MAX)
                .map(|piece| (piece.place, piece.offset, piece.len as u64))
                .collect(),
            // As many stripes as nodes, one behind the other, are on different nodes.
            (None, _) => {
                pieces(bytes).take(record.nodes.len()).map(|piece| whole(piece.place)).collect()
            }
        };
        let _server = self.state.shared().as_server()?;
        let (mut followed, mut away) = (Advised::Ignored, Vec::new());
        for (place, offset, len) in parts {
            if away.contains(&place) {
                continue;
            }
            let slot = self.state.slot(record, place);
            let advise = |slot: Arc<Slot>| slot.node.advise(&record.component, offset, len, advice);
            match slot.and_then(advise) {
                Ok(Advised::Followed) => followed = Advised::Followed,
                Ok(Advised::Ignored) => {}
                // A node that is away has forgotten its cache, or will be read from later.
                Err(_) => away.push(place),
            }
        }
        Ok(followed)
    }

    /// Makes the metadata of stable data stable.
    fn make_stable(&self, stability: Stability) -> Result<()> {
        match stability {
            Stability::Unstable => Ok(()),
            Stability::Data => self.state.commit_meta(&*self.meta),
            Stability::File => self.state.sync_meta(&*self.meta),
        }
    }

    /// Makes content on nodes stable. False if the content is not on nodes.
    fn commit_nodes(&self) -> Result<bool> {
        let place = self.state.enter()?;
        match &*place {
            Place::Striped(record) if record.whole.is_some() => {
                drop(place);
                self.state.commit_copies()?;
            }
            Place::Striped(record) => self.state.commit_stripes(record)?,
            _ => return Ok(false),
        }
        Ok(true)
    }
}

impl OpenFile for StripedFile {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn id(&self) -> FileId {
        self.state.id()
    }

    fn read_at(&self, views: &[VolatileSlice<'_>], offset: u64, wait: Wait) -> Result<usize> {
        if !self.mode.read {
            return Err(StoreError::Access);
        }
        let place = match wait {
            Wait::Allowed => self.state.enter()?,
            Wait::Never => self.state.try_enter().ok_or(StoreError::WouldBlock)?,
        };
        match &*place {
            Place::Striped(_) if wait == Wait::Never => Err(StoreError::WouldBlock),
            Place::Striped(record) if record.whole.is_some() => {
                self.state.read_copies(record, self.meta.attr()?.size, views, offset)
            }
            Place::Striped(record) => self.read_pieces(record, views, offset),
            _ => self.meta.read_at(views, offset, wait),
        }
    }

    fn write_at(
        &self,
        views: &[VolatileSlice<'_>],
        offset: u64,
        stability: Stability,
        wait: Wait,
    ) -> Result<usize> {
        if check_write(self.mode, views, offset)? == 0 {
            return Ok(0);
        }
        if wait == Wait::Never {
            let place = self.state.try_enter().ok_or(StoreError::WouldBlock)?;
            return match &*place {
                Place::Here => self.meta.write_at(views, offset, stability, wait),
                _ => Err(StoreError::WouldBlock),
            };
        }
        loop {
            let place = self.state.enter()?;
            match &*place {
                Place::Striped(record) if record.whole.is_some() => {
                    drop(place);
                    let count = self.state.write_copies(&*self.meta, views, offset, stability)?;
                    self.make_stable(stability)?;
                    return Ok(count);
                }
                Place::Striped(record) => {
                    return self.write_striped(record, views, offset, stability);
                }
                Place::Here => return self.meta.write_at(views, offset, stability, wait),
                Place::Nowhere | Place::Unknown => {}
            }
            drop(place);
            self.state.place()?;
        }
    }

    fn commit(&self, offset: u64, len: u64) -> Result<()> {
        if self.commit_nodes()? {
            self.state.commit_meta(&*self.meta)
        } else {
            self.meta.commit(offset, len)
        }
    }

    fn sync(&self) -> Result<()> {
        self.commit_nodes()?;
        self.state.sync_meta(&*self.meta)
    }

    fn attr(&self) -> Result<Attr> {
        self.meta.attr().map(shown)
    }
}

impl WholeFile for StripedFile {
    /// Clients share the open components of nodes, so a pattern counts only for content that is
    /// here.
    fn advise(&self, offset: u64, len: u64, advice: CacheAdvice) -> Result<Advised> {
        check_advice(offset, len)?;
        let place = self.state.enter()?;
        match &*place {
            Place::Striped(_) if advice.is_pattern() => Ok(Advised::Ignored),
            Place::Striped(record) => {
                let record = record.clone();
                // A slow node holds up no change of the file.
                drop(place);
                self.advise_nodes(&record, offset, len, advice)
            }
            Place::Here => self.meta.advise(offset, len, advice),
            Place::Nowhere | Place::Unknown => Ok(Advised::Ignored),
        }
    }

    fn set_size(&self, size: u64) -> Result<()> {
        check_size(self.mode, size)?;
        self.state.set_size(&*self.meta, size)
    }

    fn seek(&self, offset: u64, what: SeekWhat) -> Result<Option<u64>> {
        let place = self.state.enter()?;
        match &*place {
            Place::Striped(_) => seek_dense(self.meta.attr()?.size, offset, what),
            _ => self.meta.seek(offset, what),
        }
    }

    fn allocate(&self, _offset: u64, _len: u64) -> Result<()> {
        Err(StoreError::NotSupported)
    }

    fn deallocate(&self, _offset: u64, _len: u64) -> Result<()> {
        Err(StoreError::NotSupported)
    }

    fn copy_from(&self, source: &dyn OpenFile, range: CopyRange) -> Result<u64> {
        copy_pieces(self, source, range).map_err(StoreError::of_node)
    }

    fn clone_range_from(&self, _source: &dyn OpenFile, _range: CopyRange) -> Result<()> {
        Err(StoreError::NotSupported)
    }
}
