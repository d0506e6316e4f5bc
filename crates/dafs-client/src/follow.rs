//! Reads with a continuation: the thread that drives the client calls it, so that no other thread
//! has to be woken.

use crate::buffer::IoBuffer;
use crate::cache::Effect;
use crate::error::Result;
use crate::file::File;
use crate::operations::Continuation;
use crate::optimistic::ReadStart;
use crate::outcome::moved;
use crate::span::Span;
use std::ops::Range;

/// The result of one read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadPart {
    /// Bytes read, which may be fewer than asked for.
    pub bytes: usize,
    /// True when the file ends behind them. It may be false there, too, if they are all that was asked
    /// for.
    pub is_end: bool,
}

impl File {
    /// Reads into `range` of `buffer` from `offset`, and calls `then` with the buffer and the
    /// result. As for [`submit_read`](Self::submit_read), the result may be less than asked for, or
    /// an error such as DELAY.
    ///
    /// `then` is called once, by the thread that drives the client at that moment, or by the caller
    /// before this returns. It delays all other operations, so it must not wait: not for this client,
    /// nor for a lock that another thread may hold while it calls this client. A panic in it is
    /// reported and ends nothing else. The client lives until `then` has been called.
    ///
    /// If another thread drives the client this returns at once, else when no such read is left;
    /// the caller drives until then. This suits threads that serve requests one by one: some pass
    /// answers on while the others take requests. A read that needs no request
    /// ([`ConnectOptions::optimistic`](crate::ConnectOptions::optimistic)) is over when this returns.
    ///
    /// # Errors
    /// A range outside the buffer, too many operations, a session that is over. `then` is not
    /// called.
    pub fn read_then(
        &self,
        buffer: IoBuffer,
        range: Range<usize>,
        offset: u64,
        then: impl FnOnce(IoBuffer, Result<ReadPart>) + Send + 'static,
    ) -> Result<()> {
        drop(self.before(|| Effect::Read(*self.handle())));
        let call = self.opened().read_call(&Span { buffer: &buffer, range, offset })?;
        let read = self.opened().start_read(call);
        let shared = self.client().shared();
        let server = shared.server_name().clone();
        let then = Continuation::new(move |done| {
            let part = |moved: crate::pending::Moved| ReadPart {
                bytes: moved.bytes,
                is_end: moved.end_of_file,
            };
            then(buffer, moved(done, &server).map(part));
        });
        match read {
            ReadStart::Hit(moved) => {
                then.call(moved.into_read());
                Ok(())
            }
            ReadStart::Request(call) => {
                shared.start_followed(|driver, tag| driver.submit_read(tag, call), then)
            }
        }
    }
}
