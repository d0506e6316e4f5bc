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

/// What becomes of writes whose data is kept.
#[derive(Debug, Clone, Default)]
pub(crate) struct Kept {
    /// Of those through the server.
    pub(crate) through: Arc<Uncommitted>,
    /// Of those at data servers.
    pub(crate) beside: Arc<Uncommitted>,
    /// That of the server before the first of them, if it is known.
    pub(crate) verifier: Option<Verifier>,
}

impl Kept {
    fn standing(&self, client: &Client, handle: &FileHandle) -> Standing {
        let (through, beside) = (self.through.standing(), self.beside.standing());
        let Some(layouts) = client.layouts() else { return through };
        if let Standing::Unstable(verifier) = through {
            layouts.server_told(verifier);
        }
        together((through, self.verifier), beside, || layouts.verifier_of(handle))
    }
}

/// How what went both ways stands. `known` is the server's verifier of before, and `losses` tells that of data
/// servers of now.
fn together(
    (through, known): (Standing, Option<Verifier>),
    beside: Standing,
    losses: impl Fn() -> Verifier,
) -> Standing {
    match (through, beside) {
        (Standing::Lost, _) | (_, Standing::Lost) => Standing::Lost,
        (Standing::Stable, Standing::Stable) => Standing::Stable,
        (Standing::Unstable(server), Standing::Stable) => {
            Standing::Unstable(both(server, losses()))
        }
        (Standing::Unstable(server), Standing::Unstable(beside)) => {
            Standing::Unstable(both(server, beside))
        }
        // The server's is needed only so that what a COMMIT tells is the same.
        (Standing::Stable, Standing::Unstable(beside)) => {
            known.map_or(Standing::Lost, |server| Standing::Unstable(both(server, beside)))
        }
    }
}

/// The verifier of a server and data servers together: that of the server while data servers have lost
/// nothing.
fn both(server: Verifier, beside: Verifier) -> Verifier {
    let mut all = server.0;
    all.iter_mut().zip(beside.0).for_each(|(byte, other)| *byte ^= other);
    Verifier(all)
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
        self.client().shared().check_process()?;
        let _used = self.before_write(&range, offset);
        let verifier = self.client().layouts().and_then(|layouts| layouts.server_verifier());
        let kept = Kept { verifier, ..Kept::default() };
        let written = crate::transfer::write_watched(self.opened(), buffer, range, offset, &kept);
        written.map(|_| kept.standing(self.client(), self.handle()))
    }
}

impl Client {
    /// Makes all stable that has been written to the file, by whomever; at data servers by this client, through
    /// files that are open. Tells the verifier under which that was written which is stable now.
    ///
    /// # Errors
    /// The server's answer.
    pub fn commit(&self, handle: &FileHandle) -> Result<Verifier> {
        let beside = match self.layouts() {
            Some(layouts) => Some((layouts, layouts.commit_of(self.shared(), handle)?)),
            None => None,
        };
        let request = Request::Commit(Commit { fh: *handle, offset: 0, count: 0 });
        let server = self.ask(&request, |reply| match reply {
            Reply::Commit(reply) => Some(reply.verifier),
            _ => None,
        })?;
        let Some((layouts, beside)) = beside else { return Ok(server) };
        layouts.server_told(server);
        Ok(both(server, beside))
    }

    /// How often the server has been found to have restarted since the session began: what is unstable
    /// may have been lost then.
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
    fn what_was_lost_on_either_way_has_another_verifier_than_a_commit_tells() {
        use Standing::{Lost, Stable, Unstable};
        let now = |through, beside, losses| together((through, Some(SERVER)), beside, || losses);
        assert_eq!(now(Stable, Stable, ONE), Stable);
        // While nothing was lost there, that of the server is that of all.
        assert_eq!(now(Unstable(SERVER), Stable, NONE), Unstable(SERVER));
        assert_eq!(now(Stable, Unstable(NONE), NONE), Unstable(SERVER));
        assert_eq!(now(Unstable(SERVER), Unstable(NONE), NONE), Unstable(SERVER));
        assert_eq!(both(SERVER, NONE), SERVER);
        // A loss there since the write, and one before it.
        assert_ne!(now(Stable, Unstable(NONE), ONE), Unstable(both(SERVER, ONE)));
        assert_eq!(now(Stable, Unstable(ONE), ONE), Unstable(both(SERVER, ONE)));
        assert_eq!(now(Unstable(SERVER), Stable, ONE), Unstable(both(SERVER, ONE)));
        // The server's own.
        assert_ne!(now(Stable, Unstable(NONE), NONE), Unstable(both(Verifier([8; 8]), NONE)));
        assert_eq!(now(Lost, Unstable(NONE), NONE), Lost);
        assert_eq!(now(Unstable(SERVER), Lost, NONE), Lost);
        assert_eq!(together((Stable, None), Unstable(NONE), || NONE), Lost);
    }
}
