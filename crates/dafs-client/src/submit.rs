//! Reads, writes and commits that are started and waited for later, through the server or at data
//! servers.

use crate::attributes::Stability;
use crate::buffer::IoBuffer;
use crate::cache::{DirectUse, Effect};
use crate::driver::Driver;
use crate::error::Result;
use crate::file::File;
use crate::layouts::{Flight, begin_read, begin_write};
use crate::pending::Pending;
use crate::span::Span;
use std::ops::Range;
use std::sync::Arc;

impl File {
    /// Starts a read into `range` of `buffer`. Yields the bytes read, which may be fewer than
    /// asked: at the end of the file, or because the range is longer than
    /// [`Client::read_bytes_max`](crate::Client::read_bytes_max).
    ///
    /// A busy server may answer with DELAY: nothing was read, and the read can be submitted again.
    /// The blocking calls retry by themselves.
    ///
    /// It is sent at once if no other operation is in flight, or if a later one has to wait for a
    /// credit; else with the next call that waits or polls.
    /// [`Client::flush`](crate::Client::flush) sends it in any case. Requests to data
    /// servers are sent at once. A read that needs no request
    /// ([`ConnectOptions::optimistic`](crate::ConnectOptions::optimistic)) is over when this returns.
    ///
    /// # Errors
    /// A range outside the buffer, too many operations, a session that is over.
    pub fn submit_read(
        &self,
        buffer: &IoBuffer,
        range: Range<usize>,
        offset: u64,
    ) -> Result<Pending<usize>> {
        // Dirty data of the cache is written back before it is read elsewhere.
        drop(self.before(|| Effect::Read(*self.handle())));
        let span = Span { buffer, range, offset };
        let first = span.first(self.client().read_bytes_max());
        if let Some(transfer) = begin_read(self.opened(), &first) {
            let flight = Flight::new(transfer, None);
            return Ok(Pending::at_data_servers(self.client().shared(), flight));
        }
        self.start_read(&span)
    }

    /// As [`submit_read`](Self::submit_read), never at data servers.
    pub(crate) fn read_at_server(&self, span: &Span<'_>) -> Result<Pending<usize>> {
        drop(self.before(|| Effect::Read(*self.handle())));
        self.start_read(span)
    }

    fn start_read(&self, span: &Span<'_>) -> Result<Pending<usize>> {
        let call = self.opened().read_call(span)?;
        Pending::read(self.client().shared(), self.opened().start_read(call))
    }

    /// Starts a write of `range` of `buffer`. Yields the bytes written, which may be fewer than
    /// asked; the caller writes the rest. Sent as [`File::submit_read`].
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
        let span = Span { buffer, range, offset };
        let used = self.before_write(&span).map(Arc::new);
        let first = span.first(self.client().write_bytes_max());
        if let Some(transfer) = begin_write(self.opened(), &first, stability) {
            let flight = Flight::new(transfer, used);
            return Ok(Pending::at_data_servers(self.client().shared(), flight));
        }
        self.start_write(&span, stability, used)
    }

    /// As [`submit_write`](Self::submit_write), always through the server.
    pub(crate) fn write_at_server(
        &self,
        span: &Span<'_>,
        stability: Stability,
    ) -> Result<Pending<usize>> {
        let used = self.before_write(span).map(Arc::new);
        self.start_write(span, stability, used)
    }

    fn start_write(
        &self,
        span: &Span<'_>,
        stability: Stability,
        used: Option<Arc<DirectUse>>,
    ) -> Result<Pending<usize>> {
        let call = self.opened().write_call(span, stability)?;
        let writes = self.opened().watch(stability);
        Pending::submit(self.client().shared(), |driver, tag| {
            driver.submit_write(tag, call, writes)?;
            driver.keep(tag, used);
            Ok(())
        })
    }

    /// Starts to make `len` bytes from `offset` stable (0: to the end of the file). Writes that are
    /// in flight now are not covered. Before it returns, it writes back dirty data of the client's
    /// cache and commits at data servers, and waits for both. Sent as [`File::submit_read`].
    ///
    /// Taking the result reports a loss that the COMMIT found, as
    /// [`Error::WritesLost`](crate::Error::WritesLost). If the result is dropped, the next commit
    /// reports it.
    ///
    /// # Errors
    /// As [`File::submit_read`], and those of the write-back;
    /// [`Error::WritesLost`](crate::Error::WritesLost) for data that data servers have lost.
    pub fn submit_commit(&self, offset: u64, len: u64) -> Result<Pending<()>> {
        self.client().shared().check_process()?;
        let (request, watch) = self.watched_commit(offset, len)?;
        let start = |driver: &mut Driver, tag| driver.submit(tag, &request, None);
        let tell = move |done, server: &Arc<str>| watch.judge(done, server);
        Pending::submit_to(self.client().shared(), start, tell)
    }
}
