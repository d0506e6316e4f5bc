//! Reads, writes and commits that are started and waited for later, by the server or at data servers.

use crate::attributes::Stability;
use crate::buffer::IoBuffer;
use crate::cache::{DirectUse, Use};
use crate::driver::Driver;
use crate::error::Result;
use crate::file::File;
use crate::layouts::{Flight, begin_read, begin_write};
use crate::pending::Pending;
use std::ops::Range;
use std::sync::Arc;

impl File {
    /// Starts a read into `range` of `buffer`. Yields the bytes read, which may be fewer than
    /// asked: at the end of the file, or because the range is longer than
    /// [`Client::read_bytes_max`](crate::Client::read_bytes_max).
    ///
    /// A server that is short of room may answer with DELAY: nothing was read, and it can be
    /// submitted again. The blocking calls do that by themselves.
    ///
    /// It is sent at once if nothing else is in flight, else with the next call that waits or
    /// polls; [`Client::flush`](crate::Client::flush) sends it in any case. What goes to data servers is sent at once.
    ///
    /// # Errors
    /// A range outside the buffer, too many operations, a session that is over.
    pub fn submit_read(
        &self,
        buffer: &IoBuffer,
        range: Range<usize>,
        offset: u64,
    ) -> Result<Pending<usize>> {
        // What the cache has changed is written back before it is read elsewhere.
        drop(self.before(|| Use::Look(*self.handle())));
        let first = limited(&range, self.client().read_bytes_max());
        if let Some(beside) = begin_read(self.opened(), buffer, first, offset) {
            return Ok(Pending::beside(self.client().shared(), Flight::new(beside, None)));
        }
        self.start_read(buffer, range, offset)
    }

    /// The same, whoever else may have the data.
    pub(crate) fn read_at_server(
        &self,
        buffer: &IoBuffer,
        range: Range<usize>,
        offset: u64,
    ) -> Result<Pending<usize>> {
        drop(self.before(|| Use::Look(*self.handle())));
        self.start_read(buffer, range, offset)
    }

    fn start_read(
        &self,
        buffer: &IoBuffer,
        range: Range<usize>,
        offset: u64,
    ) -> Result<Pending<usize>> {
        let call = self.opened().read_call(buffer, range, offset)?;
        Pending::submit(self.client().shared(), |driver, tag| driver.submit_read(tag, call))
    }

    /// Starts a write of `range` of `buffer`. Yields the bytes written, which may be fewer than
    /// asked; the rest is the caller's to write. Sent as [`File::submit_read`].
    ///
    /// # Errors
    /// As [`File::submit_read`].
    pub fn submit_write(
        &self,
        buffer: &IoBuffer,
        range: Range<usize>,
        offset: u64,
        stability: Stability,
    ) -> Result<Pending<usize>> {
        let used = self.before_write(&range, offset).map(Arc::new);
        let first = limited(&range, self.client().write_bytes_max());
        if let Some(beside) = begin_write(self.opened(), buffer, first, offset, stability) {
            return Ok(Pending::beside(self.client().shared(), Flight::new(beside, used)));
        }
        self.start_write(buffer, range, offset, stability, used)
    }

    /// The same, whoever else may have the data.
    pub(crate) fn write_at_server(
        &self,
        buffer: &IoBuffer,
        range: Range<usize>,
        offset: u64,
        stability: Stability,
    ) -> Result<Pending<usize>> {
        let used = self.before_write(&range, offset).map(Arc::new);
        self.start_write(buffer, range, offset, stability, used)
    }

    fn start_write(
        &self,
        buffer: &IoBuffer,
        range: Range<usize>,
        offset: u64,
        stability: Stability,
        used: Option<Arc<DirectUse>>,
    ) -> Result<Pending<usize>> {
        let call = self.opened().write_call(buffer, range, offset, stability)?;
        let writes = self.opened().watch(stability);
        Pending::submit(self.client().shared(), |driver, tag| {
            driver.submit_write(tag, call, writes)?;
            driver.keep(tag, used);
            Ok(())
        })
    }

    /// Starts to make `len` bytes from `offset` stable (0: to the end of the file). Writes that are in flight
    /// now are not covered. What a client's cache keeps is written back before this returns, and what was written
    /// at data servers is made stable there: this waits for both. Sent as [`File::submit_read`].
    ///
    /// A loss that it finds is told by [`Error::WritesLost`](crate::Error::WritesLost) to whoever takes the result. If that is dropped,
    /// the next commit tells it.
    ///
    /// # Errors
    /// As [`File::submit_read`], and that of the writing back; [`Error::WritesLost`](crate::Error::WritesLost) for
    /// what data servers have lost.
    pub fn submit_commit(&self, offset: u64, len: u64) -> Result<Pending<()>> {
        self.client().shared().check_process()?;
        let (request, watch) = self.watched_commit(offset, len)?;
        let start = |driver: &mut Driver, tag| driver.submit(tag, &request, None);
        let tell = move |done, server: &Arc<str>| watch.judge(done, server);
        Pending::submit_to(self.client().shared(), start, tell)
    }
}

/// As much of a range as one request moves.
fn limited(range: &Range<usize>, bytes_max: usize) -> Range<usize> {
    range.start..range.end.min(range.start.saturating_add(bytes_max))
}
