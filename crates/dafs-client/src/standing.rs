//! Unstable writes of callers who keep the data until it is stable, and so need no open file to watch it
//! for them.

use crate::attributes::FileHandle;
use crate::buffer::IoBuffer;
use crate::client::Client;
use crate::error::Result;
use crate::file::File;
use crate::uncommitted::Uncommitted;
use dafs_wire::dafs::{Commit, Reply, Request, Verifier};
use std::ops::Range;
use std::sync::Arc;

/// How what was written stands with the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// It is stable.
    Stable,
    /// It is stable as soon as a COMMIT that is sent later is answered with this verifier (DAFS 13.2);
    /// one that is answered with another says that it is gone.
    Unstable(Verifier),
    /// Some of it is gone already: the server's verifier changed while it was written.
    Lost,
}

impl File {
    /// Writes all of `range` of `buffer` at `offset`, and tells what has to become of it. The open file does
    /// not watch it: neither [`File::commit`] nor [`File::close`] tells its loss.
    ///
    /// # Errors
    /// The server's answer.
    pub fn write_to_keep(
        &self,
        buffer: &IoBuffer,
        range: Range<usize>,
        offset: u64,
    ) -> Result<Standing> {
        let watched = Arc::<Uncommitted>::default();
        let _used = self.before_write(&range, offset);
        let written = crate::transfer::write_watched(self, buffer, range, offset, &watched);
        written.map(|_| watched.standing())
    }
}

impl Client {
    /// Makes all stable that has been written to the file, by whomever. Tells the verifier under which
    /// that was written which is stable now.
    ///
    /// # Errors
    /// The server's answer.
    pub fn commit(&self, handle: &FileHandle) -> Result<Verifier> {
        let request = Request::Commit(Commit { fh: *handle, offset: 0, count: 0 });
        self.ask(&request, |reply| match reply {
            Reply::Commit(reply) => Some(reply.verifier),
            _ => None,
        })
    }

    /// How often the server has been found to have restarted since the session began: what is unstable
    /// may have been lost then.
    pub fn restarts(&self) -> u64 {
        self.shared().restarts_heard()
    }
}
