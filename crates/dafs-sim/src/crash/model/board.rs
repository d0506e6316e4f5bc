//! A file that all clients read and write, some of them from what they keep by right of a delegation.
//!
//! What is written is there for everybody as soon as the writer was told so, whether the server has it
//! or the writer keeps it: that is what a delegation promises.
//!
//! Invariants
//! * A client that keeps what it has written either hands it to the server or is told of its loss. What
//!   somebody else has read the file without is never handed over afterwards.

use super::vault::{Content, Holder};
use crate::model::content::Tick;
use crate::pattern::WriteId;

#[derive(Debug)]
struct Write {
    write: WriteId,
    by: Holder,
    begin: Tick,
    /// When its writer was told; nothing while it may come at any time, or never.
    end: Option<Tick>,
    /// When somebody has read it, at the earliest.
    seen: Option<Tick>,
    /// Its writer keeps it, and the server may not have it.
    kept: bool,
    /// Somebody was let in without it.
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

    /// A write is sent to the server.
    pub(crate) fn sent(&mut self, write: WriteId, by: Holder, tick: Tick) {
        self.begin(write, by, tick);
    }

    /// It was answered.
    pub(crate) fn done(&mut self, write: WriteId, tick: Tick) {
        let found = self.writes.iter_mut().find(|known| known.write == write);
        if let Some(known) = found {
            known.end = Some(tick);
        }
    }

    /// A client writes what it keeps.
    pub(crate) fn kept(&mut self, write: WriteId, by: Holder, tick: Tick) {
        let known = self.begin(write, by, tick);
        (known.end, known.kept) = (Some(tick), true);
    }

    /// The server has what a client has kept.
    pub(crate) fn written_back(&mut self, by: Holder) -> Result<(), String> {
        for known in self.writes.iter_mut().filter(|known| known.kept && known.by == by) {
            if known.condemned {
                return Err(format!("{known:?} is written back after others were let in"));
            }
            known.kept = false;
        }
        Ok(())
    }

    /// A client is told that what it has kept is lost, or is gone with it.
    pub(crate) fn lost(&mut self, by: Holder) {
        for known in self.writes.iter_mut().filter(|known| known.kept && known.by == by) {
            (known.kept, known.condemned) = (false, false);
            (known.end, known.seen) = (None, None);
        }
    }

    /// What is not stable may be gone.
    pub(crate) fn power_failed(&mut self) {
        for known in self.writes.iter_mut().filter(|known| known.end.is_none()) {
            known.seen = None;
        }
    }

    /// Somebody has read the file between two times. `may_lose` tells of whom the server may not have
    /// heard for so long that it lets others in.
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
    fn what_was_answered_is_read_until_it_is_replaced() {
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
    fn what_is_kept_is_there_for_all_or_told_to_be_lost() {
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
