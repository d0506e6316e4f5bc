//! Appends: the server chooses the offset, the end of the file at that moment (DAFS 13.3).
//!
//! Invariants
//! * An append is one request and atomic; it is never cut into pieces.
//! * The server never carries an append out twice. After a lost connection the client asks it for
//!   the outcome; if the server does not know, the caller gets [`Error::InDoubt`].

use crate::attributes::Stability;
use crate::buffer::IoBuffer;
use crate::cache::Effect;
use crate::core::{Piece, ReplyMessage};
use crate::driver::Driver;
use crate::error::{Error, Result};
use crate::file::File;
use crate::group::{GroupState, OperationId};
use crate::limits::STAGING_BYTES;
use crate::operations::GroupedKind;
use crate::outcome;
use crate::pending::Pending;
use crate::span::OUTSIDE;
use crate::transfer::{put_staging, take_staging};
use dafs_mem::{CheckedSlice, Site};
use dafs_wire::dafs::{AppendDirect, AppendInline, Outcome, Reply, Request};
use std::fmt::Display;
use std::ops::Range;
use std::sync::Arc;

impl File {
    /// Writes all of `source` at the end of the file and returns its offset there. No data of
    /// another writer lies in between, and the data is stable when this returns: `stability` says
    /// which kind of stable and is not `Unstable`. Long data is staged; [`File::append_from`]
    /// avoids that.
    ///
    /// # Errors
    /// The server's answer, with nothing written: WRITE_TOOBIG for more than
    /// [`FsStatus::append_bytes_max`](crate::FsStatus::append_bytes_max).
    pub fn append(&self, source: &[u8], stability: Stability) -> Result<u64> {
        check(stability)?;
        if source.is_empty() || self.client().shared().appends_inline(source.len())? {
            return self.client().ask(&self.append_inline(source, stability), offset);
        }
        // SAFETY: a source is only copied from.
        self.append_staged(unsafe { CheckedSlice::from_ref(source) }, stability)
    }

    /// As [`File::append`], out of memory that may be unmapped meanwhile. No data is copied to it.
    ///
    /// # Errors
    /// As [`File::append`], and [`Error::BadMemory`], with nothing written.
    pub fn append_checked(&self, source: CheckedSlice<'_>, stability: Stability) -> Result<u64> {
        check(stability)?;
        if self.client().shared().appends_inline(source.len())? {
            return self.append(&source.to_vec(Site::ClientStaging)?, stability);
        }
        self.append_staged(source, stability)
    }

    fn append_staged(&self, source: CheckedSlice<'_>, stability: Stability) -> Result<u64> {
        let shared = self.client().shared();
        let staged = source.len() <= STAGING_BYTES;
        let buffer =
            if staged { take_staging(shared)? } else { self.client().buffer(source.len())? };
        let view = buffer.slice(0, source.len()).ok_or(OUTSIDE)?;
        if let Err(gone) = source.copy_to(view, Site::ClientStaging) {
            if staged {
                put_staging(shared, buffer);
            }
            return Err(gone.into());
        }
        // After an error the server may still be reading the buffer; then it is not used again.
        let offset = self.append_from(&buffer, 0..source.len(), stability)?;
        if staged {
            put_staging(shared, buffer);
        }
        Ok(offset)
    }

    /// As [`File::append`], with the data in `range` of `buffer`.
    ///
    /// # Errors
    /// As [`File::append`].
    pub fn append_from(
        &self,
        buffer: &IoBuffer,
        range: Range<usize>,
        stability: Stability,
    ) -> Result<u64> {
        let shared = self.client().shared();
        self.with_append(buffer, range, stability, |request, piece| {
            let _used = self.client().before(|| Effect::of(request, false));
            appended(&shared.call_with(request, piece)?, shared.server_name())
        })
    }

    /// Starts to append `range` of `buffer` to the file, as [`File::append_from`]; yields the
    /// offset of the data. The server may carry out several in flight in any order. Sent as
    /// [`File::submit_read`].
    ///
    /// # Errors
    /// As [`File::submit_read`], and as [`File::append_from`] for invalid arguments.
    pub fn submit_append(
        &self,
        buffer: &IoBuffer,
        range: Range<usize>,
        stability: Stability,
    ) -> Result<Pending<u64>> {
        self.with_append(buffer, range, stability, |request, piece| {
            let used = self.client().before(|| Effect::of(request, false)).map(Arc::new);
            let start = |driver: &mut Driver, tag| {
                driver.submit(tag, request, piece)?;
                driver.keep(tag, used);
                Ok(())
            };
            Pending::submit_to(self.client().shared(), start, outcome::appended)
        })
    }

    /// As [`append_from`](Self::append_from), for a group.
    pub(crate) fn append_in(
        &self,
        group: &Arc<GroupState>,
        user_data: u64,
        buffer: &IoBuffer,
        range: Range<usize>,
        stability: Stability,
    ) -> Result<OperationId> {
        self.with_append(buffer, range, stability, |request, piece| {
            let used = self.client().before(|| Effect::of(request, false)).map(Arc::new);
            let kind = GroupedKind::Append(user_data);
            self.client().shared().submit_in(group, kind, |driver, tag| {
                driver.submit(tag, request, piece)?;
                driver.keep(tag, used);
                Ok(())
            })
        })
    }

    /// Has `send` send the request for an append out of a buffer: short data travels inline, for
    /// one round trip, and longer data as the memory that the request names.
    fn with_append<T>(
        &self,
        buffer: &IoBuffer,
        range: Range<usize>,
        stability: Stability,
        send: impl FnOnce(&Request<'_>, Option<Piece>) -> Result<T>,
    ) -> Result<T> {
        check(stability)?;
        let shared = self.client().shared();
        let len = range.end.checked_sub(range.start).ok_or(OUTSIDE)?;
        let piece = shared.piece(buffer, range, 0, usize::MAX)?;
        if piece.len() as usize != len {
            return Err(Error::Argument("an append is longer than 4 GiB"));
        }
        if len == 0 || shared.appends_inline(len)? {
            let data = piece.checked().to_vec(Site::ClientStaging)?;
            return send(&self.append_inline(&data, stability), None);
        }
        send(&self.append_request(&piece, stability)?, Some(piece))
    }

    fn append_request(&self, piece: &Piece, stability: Stability) -> Result<Request<'static>> {
        Ok(Request::AppendDirect(AppendDirect {
            fh: *self.handle(),
            state_id: self.state_id(),
            stable: stability,
            byte_count: piece.len(),
            cache_hint: self.hint(),
            direct_checksum: self.client().shared().data_checksum(piece)?,
            buffer: piece.direct_buffer(),
        }))
    }

    fn append_inline<'a>(&self, source: &'a [u8], stability: Stability) -> Request<'a> {
        Request::AppendInline(AppendInline {
            fh: *self.handle(),
            state_id: self.state_id(),
            stable: stability,
            padded_to: None,
            cache_hint: self.hint(),
            data: source,
        })
    }
}

fn check(stability: Stability) -> Result<()> {
    match stability {
        Stability::Unstable => Err(Error::Argument("what is appended is always stable")),
        Stability::DataSync | Stability::FileSync => Ok(()),
    }
}

/// The offset of an append's data, by the answer to it.
pub(crate) fn appended(reply: &ReplyMessage, server: &Arc<str>) -> Result<u64> {
    let procedure = reply.procedure();
    let broken = |reason: &dyn Display| Error::Protocol {
        server: server.clone(),
        reason: reason.to_string().into(),
    };
    match reply.decode() {
        Ok(Outcome::Ok(found)) => {
            offset(&found).ok_or_else(|| broken(&"an answer of another procedure"))
        }
        Ok(Outcome::Error { status, .. }) => Err(Error::Status { procedure, status }),
        Err(error) => Err(broken(&error)),
    }
}

fn offset(reply: &Reply<'_>) -> Option<u64> {
    match reply {
        Reply::AppendInline(reply) | Reply::AppendDirect(reply) => Some(reply.offset),
        _ => None,
    }
}
