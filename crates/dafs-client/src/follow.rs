//! Reads that nobody waits for: what is to follow them is called by whichever thread drives the client, so
//! that no other one has to be woken for it.

use crate::buffer::IoBuffer;
use crate::cache::Use;
use crate::error::Result;
use crate::file::File;
use crate::operations::Then;
use crate::outcome::moved;
use std::ops::Range;

/// What one read has brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadPart {
    /// Bytes read, which may be fewer than asked for.
    pub bytes: usize,
    /// Whether the file ends behind them.
    pub is_end: bool,
}

impl File {
    /// Reads into `range` of `buffer` from `offset`, and calls `then` with the buffer and what was read, or
    /// the server's answer that nothing was, as [`submit_read`](Self::submit_read) yields it: which may be
    /// less than asked for, or DELAY. `then` is called once, by whichever thread drives the client at that
    /// moment: it holds up all others, so that it must not wait for anything, least of all for this client,
    /// nor for a lock that a thread may have while it calls this client. What it panics with is reported
    /// and ends nothing else. The client lives until it has been called.
    ///
    /// If another thread drives the client this returns at once, else when no such read is left; the caller
    /// drives until then. That is for threads that serve requests one by one, of which some do nothing but
    /// pass answers on while the others take requests.
    ///
    /// # Errors
    /// A range outside the buffer, too many operations, a session that is over. `then` is not called.
    pub fn read_then(
        &self,
        buffer: IoBuffer,
        range: Range<usize>,
        offset: u64,
        then: impl FnOnce(IoBuffer, Result<ReadPart>) + Send + 'static,
    ) -> Result<()> {
        drop(self.before(|| Use::Look(*self.handle())));
        let call = self.opened().read_call(&buffer, range, offset)?;
        let shared = self.client().shared();
        let server = shared.server_name().clone();
        let then = Then::new(move |done| {
            let part = |moved: crate::pending::Moved| ReadPart {
                bytes: moved.bytes,
                is_end: moved.end_of_file,
            };
            then(buffer, moved(done, &server).map(part));
        });
        shared.start_followed(|driver, tag| driver.submit_read(tag, call), then)
    }
}
