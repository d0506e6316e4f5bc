//! A file that all clients read and write, some of them through a cache under a delegation.
//!
//! A write is visible to all clients as soon as its writer has the answer, whether the server has
//! the data or the writer caches it: a delegation promises that.
//!
//! Invariants
//! * A client with a cached write either writes it back or learns of its loss. A write that another
//!   client's read has missed is never written back afterwards.

use super::vault::{Content, Holder};
use crate::model::content::Tick;
use crate::pattern::WriteId;

#[derive(Debug)]
struct Write {
    write: WriteId,
    by: Holder,
    begin: Tick,
    /// When its writer had the answer. `None` while it may take effect at any time, or never.
    end: Option<Tick>,
    /// The end of the earliest read that saw it.
    seen: Option<Tick>,
    /// Its writer caches it, and the server may not have it.
    kept: bool,
    /// The server granted conflicting access without it.
    condemned: bool,
}

/// The model of the file.
#[derive(Debug, Default)]
pub(crate) struct Board {
    writes: Vec<Write>,
}

impl Board {
    fn begin(&mut self, write: WriteId, by: Holder, tick: Tick) -> &mut Write {
        let (end, seen) = (None, None);
        self.writes.push(Write {
            write,
            by,
            begin: tick,
            end,
            seen,
            kept: false,
            condemned: false,
        });
        let last = self.writes.len() - 1;
        &mut self.writes[last]
    }

    /// A client sends a write to the server.
    pub(crate) fn sent(&mut self, write: WriteId, by: Holder, tick: Tick) {
        self.begin(write, by, tick);
    }

    /// The server answers the write.
    pub(crate) fn done(&mut self, write: WriteId, tick: Tick) {
        let found = self.writes.iter_mut().find(|known| known.write == write);
        if let Some(known) = found {
            known.end = Some(tick);
        }
    }

    /// A client writes to its cache.
    pub(crate) fn kept(&mut self, write: WriteId, by: Holder, tick: Tick) {
        let known = self.begin(write, by, tick);
        (known.end, known.kept) = (Some(tick), true);
    }

    /// The server has received a client's cached write.
    pub(crate) fn written_back(&mut self, by: Holder) -> Result<(), String> {
        for known in self.writes.iter_mut().filter(|known| known.kept && known.by == by) {
            if known.condemned {
                return Err(format!("{known:?} is written back after others were let in"));
            }
            known.kept = false;
        }
        Ok(())
    }

    /// A client learns that its cached write is lost, or ends.
    pub(crate) fn lost(&mut self, by: Holder) {
        for known in self.writes.iter_mut().filter(|known| known.kept && known.by == by) {
            (known.kept, known.condemned) = (false, false);
            (known.end, known.seen) = (None, None);
        }
    }

    /// Unsynced writes may be lost.
    pub(crate) fn power_failed(&mut self) {
        for known in self.writes.iter_mut().filter(|known| known.end.is_none()) {
            known.seen = None;
        }
    }

    /// Checks a read between two ticks. `may_lose` is true for clients that have been silent for so
    /// long that the server may grant conflicting access.
    pub(crate) fn read(
        &mut self,
        (begin, end): (Tick, Tick),
        content: Content,
        may_lose: impl Fn(Holder) -> bool,
    ) -> Result<(), String> {
        let place = self.writes.iter().position(|known| Some(known.write) == content);
        let written = match (content, place) {
            (None, _) => Some(0),
            (Some(_), Some(place)) => self.writes[place].end,
            (Some(write), None) => return Err(format!("nobody has written {write:?} here")),
        };
        if let Some(written) = written {
            let newer = |known: &Write| {
                let there = [known.end, known.seen].into_iter().flatten().min();
                written < known.begin && there.is_some_and(|there| there < begin)
            };
            for known in self.writes.iter_mut().filter(|known| newer(known)) {
                if !known.kept || !may_lose(known.by) {
                    return Err(format!("{content:?} is read, and {known:?} is newer"));
                }
                known.condemned = true;
            }
        }
        if let Some(place) = place {
            let known = &mut self.writes[place];
            known.seen = Some(known.seen.map_or(end, |seen| seen.min(end)));
        }
        Ok(())
    }

    /// Compares with the file, in the end.
    pub(crate) fn check(&mut self, content: Content, tick: Tick) -> Result<(), String> {
        self.read((tick, tick), content, |_| false)?;
        match self.writes.iter().find(|known| known.kept) {
            Some(known) => Err(format!("{known:?} was neither written back nor told to be lost")),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Holder = Holder { client: 0, run: 1 };
    const TWO: Holder = Holder { client: 1, run: 1 };
    const FIRST: Content = Some(WriteId(1));
    const SECOND: Content = Some(WriteId(2));

    #[test]
    fn an_answered_write_is_read_until_it_is_replaced() {
        let mut board = Board::default();
        board.sent(WriteId(1), ONE, 1);
        board.read((2, 3), None, |_| false).unwrap();
        board.read((2, 3), FIRST, |_| false).unwrap();
        assert!(board.read((4, 5), None, |_| false).is_err(), "reads do not go back");
        board.done(WriteId(1), 6);
        board.sent(WriteId(2), TWO, 7);
        board.done(WriteId(2), 9);
        board.read((8, 10), FIRST, |_| false).unwrap();
        assert!(board.read((10, 11), FIRST, |_| false).is_err());
        assert!(board.check(FIRST, 12).is_err());
        board.check(SECOND, 12).unwrap();
        assert!(board.check(Some(WriteId(3)), 12).is_err());
    }

    #[test]
    fn a_kept_write_is_seen_by_all_or_reported_lost() {
        let mut board = Board::default();
        board.kept(WriteId(1), ONE, 1);
        assert!(board.read((2, 3), None, |_| false).is_err());
        board.read((2, 3), None, |_| true).unwrap();
        assert!(board.written_back(ONE).is_err());
        assert!(board.check(None, 4).is_err(), "it was not told");
        board.lost(ONE);
        board.check(None, 5).unwrap();
        board.kept(WriteId(2), TWO, 6);
        board.written_back(TWO).unwrap();
        assert!(board.read((7, 8), None, |_| true).is_err());
        board.check(SECOND, 9).unwrap();
    }
}
