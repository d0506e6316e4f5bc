//! Unstable writes of callers that keep the data until it is stable, and so need no open file to
//! watch it for them.

use crate::attributes::FileHandle;
use crate::buffer::IoBuffer;
use crate::client::Client;
use crate::error::Result;
use crate::file::File;
use crate::span::Span;
use crate::uncommitted::Uncommitted;
use dafs_wire::dafs::{Commit, Request, Verifier};
use std::ops::Range;
use std::sync::Arc;

/// The state of written data at the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteState {
    /// It is stable.
    Stable,
    /// A COMMIT that is sent later makes it stable if the answer has this verifier (DAFS 13.2);
    /// another verifier means that the data is gone.
    Unstable(Verifier),
    /// Some of the data is gone already: the server's verifier changed while it was written.
    Lost,
}

/// The state of writes whose data the caller keeps.
#[derive(Debug, Clone, Default)]
pub(crate) struct Retained {
    /// The writes through the server.
    pub(crate) through: Arc<Uncommitted>,
    /// The writes at data servers.
    pub(crate) at_data_servers: Arc<Uncommitted>,
    /// The server's verifier before the first of them, if it is known.
    pub(crate) verifier: Option<Verifier>,
}

impl Retained {
    fn write_state(&self, client: &Client, handle: &FileHandle) -> WriteState {
        let (through, direct) = (self.through.write_state(), self.at_data_servers.write_state());
        let Some(layouts) = client.layouts() else { return through };
        if let WriteState::Unstable(verifier) = through {
            layouts.server_told(verifier);
        }
        together((through, self.verifier), direct, || layouts.verifier_of(handle))
    }
}

/// Combines the states of both ways. `known` is the server's verifier from before, and `losses`
/// returns the current verifier of data servers.
fn together(
    (through, known): (WriteState, Option<Verifier>),
    direct: WriteState,
    losses: impl Fn() -> Verifier,
) -> WriteState {
    match (through, direct) {
        (WriteState::Lost, _) | (_, WriteState::Lost) => WriteState::Lost,
        (WriteState::Stable, WriteState::Stable) => WriteState::Stable,
        (WriteState::Unstable(server), WriteState::Stable) => {
            WriteState::Unstable(both(server, losses()))
        }
        (WriteState::Unstable(server), WriteState::Unstable(direct)) => {
            WriteState::Unstable(both(server, direct))
        }
        // The server's verifier is included only to match the answer of `commit`.
        (WriteState::Stable, WriteState::Unstable(direct)) => {
            known.map_or(WriteState::Lost, |server| WriteState::Unstable(both(server, direct)))
        }
    }
}

/// Combines the verifiers of the server and of data servers: it equals the server's while data
/// servers have lost nothing.
fn both(server: Verifier, direct: Verifier) -> Verifier {
    let mut all = server.0;
    all.iter_mut().zip(direct.0).for_each(|(byte, other)| *byte ^= other);
    Verifier(all)
}

impl File {
    /// Writes all of `range` of `buffer` at `offset`, and returns the state of the data. The open
    /// file does not watch it: neither [`File::commit`] nor [`File::close`] reports its loss.
    ///
    /// # Errors
    /// The server's answer.
    pub fn write_retained(
        &self,
        buffer: &IoBuffer,
        range: Range<usize>,
        offset: u64,
    ) -> Result<WriteState> {
        self.client().shared().check_process()?;
        let span = Span { buffer, range, offset };
        let _used = self.before_write(&span);
        let verifier = self.client().layouts().and_then(|layouts| layouts.server_verifier());
        let retained = Retained { verifier, ..Retained::default() };
        let written = crate::transfer::write_watched(self.opened(), &span, &retained);
        written.map(|_| retained.write_state(self.client(), self.handle()))
    }
}

impl Client {
    /// Makes all writes to the file stable, of all clients; at data servers only those of this
    /// client, through files that are open. Returns the verifier of the writes that are stable now.
    ///
    /// # Errors
    /// The server's answer.
    pub fn commit(&self, handle: &FileHandle) -> Result<Verifier> {
        let direct = match self.layouts() {
            Some(layouts) => Some((layouts, layouts.commit_of(self.shared(), handle)?)),
            None => None,
        };
        let request = Request::Commit(Commit { fh: *handle, offset: 0, count: 0 });
        let server = self.ask(&request, |reply| Some(reply.commit()?.verifier))?;
        let Some((layouts, direct)) = direct else { return Ok(server) };
        layouts.server_told(server);
        Ok(both(server, direct))
    }

    /// The number of restarts of the server that were detected since the session began; each may
    /// have lost unstable data.
    pub fn restarts(&self) -> u64 {
        self.shared().restarts_heard()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVER: Verifier = Verifier([7; 8]);
    const NONE: Verifier = Verifier([0; 8]);
    const ONE: Verifier = Verifier([0, 0, 0, 0, 0, 0, 0, 1]);

    #[test]
    fn a_loss_on_either_way_changes_the_verifier_of_a_commit() {
        use WriteState::{Lost, Stable, Unstable};
        let now = |through, direct, losses| together((through, Some(SERVER)), direct, || losses);
        assert_eq!(now(Stable, Stable, ONE), Stable);
        // Without a loss at data servers the combined verifier is the server's.
        assert_eq!(now(Unstable(SERVER), Stable, NONE), Unstable(SERVER));
        assert_eq!(now(Stable, Unstable(NONE), NONE), Unstable(SERVER));
        assert_eq!(now(Unstable(SERVER), Unstable(NONE), NONE), Unstable(SERVER));
        assert_eq!(both(SERVER, NONE), SERVER);
        // A loss there since the write, and one before it.
        assert_ne!(now(Stable, Unstable(NONE), ONE), Unstable(both(SERVER, ONE)));
        assert_eq!(now(Stable, Unstable(ONE), ONE), Unstable(both(SERVER, ONE)));
        assert_eq!(now(Unstable(SERVER), Stable, ONE), Unstable(both(SERVER, ONE)));
        // A loss at the server.
        assert_ne!(now(Stable, Unstable(NONE), NONE), Unstable(both(Verifier([8; 8]), NONE)));
        assert_eq!(now(Lost, Unstable(NONE), NONE), Lost);
        assert_eq!(now(Unstable(SERVER), Lost, NONE), Lost);
        assert_eq!(together((Stable, None), Unstable(NONE), || NONE), Lost);
    }
}
