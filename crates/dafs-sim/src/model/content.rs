//! The possible contents of a file, derived from the answers of clients alone.
//!
//! A file is the history of its changes. A change begins when it is submitted and ends when it is
//! answered. A change whose connection broke is in doubt: any part of it may take effect at any
//! time until it is settled, when the server has dropped that connection. Times are ticks of one
//! counter for the whole world, so any two are ordered.
//!
//! Invariants
//! * A byte read is explained by a change that could have been the last one there: it began before
//!   the read ended. No answered change that covers the byte both began after it had ended and
//!   ended before the read began.
//! * Data seen by a read counts as written: a later read may not see an older state.

use crate::pattern::WriteId;

/// A point in the order of all events that clients see.
pub type Tick = u64;

/// Names a change of one file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ChangeId(u64);

/// Number of changes beyond which those that no read can see any more are dropped.
const CHANGES_BEFORE_PRUNING: usize = 32;

/// Bytes that must agree before a read counts as proof of which change it saw.
const PROOF_BYTES_MIN: usize = 16;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Effect {
    Write {
        write: WriteId,
        offset: u64,
        len: u64,
    },
    /// Bytes from here on are gone; they read as zero when the file grows again.
    Truncate {
        size: u64,
    },
}

impl Effect {
    /// The range whose bytes it determines.
    fn range(self) -> (u64, u64) {
        match self {
            Effect::Write { offset, len, .. } => (offset, offset + len),
            Effect::Truncate { size } => (size, u64::MAX),
        }
    }

    /// The size that the file has at least (write) or exactly (truncation) afterwards.
    fn reach(self) -> u64 {
        match self {
            Effect::Write { offset, len, .. } if len > 0 => offset + len,
            Effect::Truncate { size } => size,
            Effect::Write { .. } => 0,
        }
    }

    fn covers(self, from: u64, to: u64) -> bool {
        let range = self.range();
        range.0 <= from && to <= range.1
    }

    fn explains(self, position: u64, bytes: &[u8]) -> bool {
        match self {
            Effect::Write { write, .. } => write.matches(position, bytes),
            Effect::Truncate { .. } => bytes.iter().all(|byte| *byte == 0),
        }
    }
}

#[derive(Debug, Clone)]
struct Change {
    id: ChangeId,
    effect: Effect,
    begin: Tick,
    /// When it could take effect no more.
    end: Option<Tick>,
    /// It certainly took effect before `end`.
    certain: bool,
}

impl Change {
    fn is_before(&self, other: &Change) -> bool {
        self.end.is_some_and(|end| end < other.begin)
    }

    /// It certainly took effect before `tick`.
    fn certainly_before(&self, tick: Tick) -> bool {
        self.certain && self.end.is_some_and(|end| end < tick)
    }
}

/// A read's proof: at some time between its ticks, this range held the data of `source`. A change
/// that had ended before then can therefore not show there any more.
#[derive(Debug, Clone)]
struct Proof {
    source: ChangeId,
    begin: Tick,
    end: Tick,
    range: (u64, u64),
}

impl Proof {
    fn covers(&self, from: u64, to: u64) -> bool {
        self.range.0 <= from && to <= self.range.1
    }

    fn rules_out(&self, change: &Change) -> bool {
        self.source != change.id && change.end.is_some_and(|end| end < self.begin)
    }
}

/// A read to check.
#[derive(Debug, Clone, Copy)]
pub struct Observation<'a> {
    /// When it was submitted.
    pub begin: Tick,
    /// When it was answered.
    pub end: Tick,
    /// Where it began in the file.
    pub offset: u64,
    /// Bytes asked for.
    pub asked: u64,
    /// Bytes received.
    pub bytes: &'a [u8],
    /// True if the server reported the end of the file.
    pub eof: bool,
}

/// One file.
#[derive(Debug, Clone)]
pub struct FileModel {
    changes: Vec<Change>,
    proofs: Vec<Proof>,
    next: u64,
}

impl Default for FileModel {
    fn default() -> Self {
        Self::new()
    }
}

impl FileModel {
    /// An empty file.
    pub fn new() -> Self {
        let birth = Change {
            id: ChangeId(0),
            effect: Effect::Truncate { size: 0 },
            begin: 0,
            end: Some(0),
            certain: true,
        };
        Self { changes: vec![birth], proofs: Vec::new(), next: 1 }
    }

    fn begin(&mut self, begin: Tick, effect: Effect) -> ChangeId {
        let id = ChangeId(self.next);
        self.next += 1;
        self.changes.push(Change { id, effect, begin, end: None, certain: false });
        id
    }

    /// Begins a write.
    pub fn begin_write(&mut self, tick: Tick, write: WriteId, offset: u64, len: u64) -> ChangeId {
        self.begin(tick, Effect::Write { write, offset, len })
    }

    /// Begins a change of the size.
    pub fn begin_truncate(&mut self, tick: Tick, size: u64) -> ChangeId {
        self.begin(tick, Effect::Truncate { size })
    }

    fn find(&mut self, id: ChangeId) -> Option<&mut Change> {
        self.changes.iter_mut().find(|change| change.id == id)
    }

    /// A change was answered with success. For a write, `count` bytes were written.
    pub fn done(&mut self, id: ChangeId, tick: Tick, count: u64) {
        if let Some(change) = self.find(id) {
            change.end = Some(tick);
            change.certain = true;
            if let Effect::Write { len, .. } = &mut change.effect {
                *len = count.min(*len);
            }
        }
    }

    /// A change was answered with an error and had no effect.
    pub fn refused(&mut self, id: ChangeId) {
        self.changes.retain(|change| change.id != id);
    }

    /// A change was not answered, and cannot take effect from `tick` on.
    pub fn settled(&mut self, id: ChangeId, tick: Tick) {
        if let Some(change) = self.find(id) {
            change.end = Some(tick);
        }
    }

    /// Drops changes that no read which begins at `oldest_read` or later can see.
    pub fn prune(&mut self, oldest_read: Tick) {
        if self.changes.len() + self.proofs.len() < CHANGES_BEFORE_PRUNING {
            return;
        }
        let all = self.changes.clone();
        // A truncation also bounds the size, which only a later truncation to less replaces.
        let replaces = |other: &Change, change: &Change| match (change.effect, other.effect) {
            (Effect::Truncate { .. }, Effect::Write { .. }) => false,
            _ => change.is_before(other) && other.certainly_before(oldest_read),
        };
        self.changes.retain(|change| {
            let (from, to) = change.effect.range();
            !all.iter().any(|other| replaces(other, change) && other.effect.covers(from, to))
        });
        // A certain change that began after the proof rules out the same changes as the proof.
        self.proofs.retain(|proof| {
            !all.iter().any(|other| {
                proof.end < other.begin
                    && other.certainly_before(oldest_read)
                    && other.effect.covers(proof.range.0, proof.range.1)
            })
        });
    }

    /// The smallest and the largest size that a request submitted at `begin` may be answered.
    pub fn size_bounds(&self, begin: Tick) -> (u64, u64) {
        let mut low = 0;
        let mut high = 0;
        for change in &self.changes {
            let reach = change.effect.reach();
            let truncations = || {
                self.changes.iter().filter_map(|other| match other.effect {
                    Effect::Truncate { size } if other.id != change.id => Some((other, size)),
                    _ => None,
                })
            };
            if change.certainly_before(begin) {
                let later = truncations().filter(|(other, _)| !other.is_before(change));
                let least = later.map(|(_, size)| size).min().unwrap_or(u64::MAX);
                low = low.max(reach.min(least));
            }
            let surely = truncations()
                .filter(|(other, _)| change.is_before(other) && other.certainly_before(begin));
            let most = surely.map(|(_, size)| size).min().unwrap_or(u64::MAX);
            high = high.max(reach.min(most));
        }
        (low, high)
    }

    /// Checks a size from the answer to a request submitted at `begin`.
    ///
    /// # Errors
    /// The bounds that the size violates.
    pub fn check_size(&self, begin: Tick, size: u64) -> Result<(), String> {
        let (low, high) = self.size_bounds(begin);
        if (low..=high).contains(&size) {
            return Ok(());
        }
        Err(format!("a size of {size} was told where only {low} to {high} can be"))
    }

    /// Checks a read, and remembers its proof.
    ///
    /// # Errors
    /// The bytes that cannot be explained, and the bytes possible there.
    pub fn check_read(&mut self, read: Observation<'_>) -> Result<(), String> {
        let count = read.bytes.len() as u64;
        let stop = read.offset + count;
        if count > read.asked {
            return Err(format!("{count} bytes came where {} were asked for", read.asked));
        }
        let (low, high) = self.size_bounds(read.begin);
        if count > 0 && stop > high {
            return Err(format!("bytes up to {stop} came from a file of at most {high} bytes"));
        }
        if read.eof && stop < low.min(read.offset + read.asked) {
            return Err(format!("the end was reported at {stop}, but the file has {low} bytes"));
        }
        if !read.eof && count < read.asked && stop >= high {
            return Err(format!("no end was reported at {stop} of at most {high} bytes"));
        }
        if !read.eof && count == 0 && read.asked > 0 {
            return Err("no byte came and no end was reported".to_owned());
        }
        for (from, to) in self.segments(read.offset, stop) {
            let bytes = &read.bytes[(from - read.offset) as usize..(to - read.offset) as usize];
            self.check_segment(read.begin, read.end, from, bytes)?;
        }
        Ok(())
    }

    /// Cuts a range at the begins and ends of changes.
    fn segments(&self, from: u64, to: u64) -> Vec<(u64, u64)> {
        let mut edges = vec![from, to];
        for change in &self.changes {
            let (begin, end) = change.effect.range();
            edges.extend([begin, end].into_iter().filter(|edge| (from..to).contains(edge)));
        }
        for proof in &self.proofs {
            let range = [proof.range.0, proof.range.1];
            edges.extend(range.into_iter().filter(|edge| (from..to).contains(edge)));
        }
        edges.sort_unstable();
        edges.dedup();
        edges.windows(2).map(|pair| (pair[0], pair[1])).collect()
    }

    fn check_segment(
        &mut self,
        begin: Tick,
        end: Tick,
        from: u64,
        bytes: &[u8],
    ) -> Result<(), String> {
        let to = from + bytes.len() as u64;
        let covering: Vec<&Change> =
            self.changes.iter().filter(|change| change.effect.covers(from, to)).collect();
        let proofs: Vec<&Proof> =
            self.proofs.iter().filter(|p| p.end < begin && p.covers(from, to)).collect();
        let replaced = |change: &Change| {
            covering.iter().any(|other| change.is_before(other) && other.certainly_before(begin))
                || proofs.iter().any(|proof| proof.rules_out(change))
        };
        let possible: Vec<&Change> =
            covering.iter().copied().filter(|change| !replaced(change)).collect();
        let whole: Vec<&&Change> =
            possible.iter().filter(|change| change.effect.explains(from, bytes)).collect();
        if let [only] = whole[..] {
            // A single possibility needs no proof.
            if bytes.len() >= PROOF_BYTES_MIN && possible.len() > 1 {
                self.proofs.push(Proof { source: only.id, begin, end, range: (from, to) });
            }
            return Ok(());
        }
        if !whole.is_empty() {
            return Ok(());
        }
        for (index, byte) in bytes.iter().enumerate() {
            let position = from + index as u64;
            let explained =
                possible.iter().any(|change| change.effect.explains(position, &[*byte]));
            if !explained {
                let end = (index + 16).min(bytes.len());
                return Err(describe(position, &bytes[index..end], &possible, &self.changes));
            }
        }
        Ok(())
    }
}

/// The message about a byte without an explanation.
fn describe(position: u64, bytes: &[u8], possible: &[&Change], all: &[Change]) -> String {
    let mut text = format!("bytes {bytes:02x?} at {position} are explained by nothing;");
    for change in possible {
        text += &format!(" possible: {:?} {:?}..{:?};", change.effect, change.begin, change.end);
    }
    let old = all.iter().find(|change| match change.effect {
        Effect::Write { write, .. } => write.matches(position, bytes),
        _ => false,
    });
    match old {
        Some(old) => text + &format!(" they are those of {:?}, which was replaced", old.effect),
        None => text + " they are of no write of this file",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read<'a>(begin: Tick, end: Tick, offset: u64, bytes: &'a [u8]) -> Observation<'a> {
        let asked = bytes.len() as u64;
        Observation { begin, end, offset, asked, bytes, eof: false }
    }

    fn content(write: u64, offset: u64, len: usize) -> Vec<u8> {
        WriteId(write).bytes(offset, len)
    }

    #[test]
    fn an_answered_write_must_be_seen_until_it_is_replaced() {
        let mut file = FileModel::new();
        let first = file.begin_write(1, WriteId(1), 0, 100);
        file.done(first, 2, 100);
        file.check_read(read(3, 4, 20, &content(1, 20, 80))).unwrap();
        assert!(file.check_read(read(3, 4, 20, &[0; 80])).is_err());
        let second = file.begin_write(5, WriteId(2), 50, 100);
        // The write is outstanding: either content may be seen, byte by byte.
        file.check_read(read(6, 7, 60, &content(1, 60, 30))).unwrap();
        file.check_read(read(6, 7, 60, &content(2, 60, 30))).unwrap();
        file.done(second, 8, 100);
        assert!(file.check_read(read(9, 10, 60, &content(1, 60, 30))).is_err());
        let mut both = content(1, 0, 50);
        both.extend(content(2, 50, 100));
        file.check_read(read(9, 10, 0, &both)).unwrap();
        assert!(file.check_read(read(9, 10, 0, &content(3, 0, 150))).is_err());
        assert!(file.check_read(read(9, 10, 0, &[both.clone(), vec![0]].concat())).is_err());
    }

    #[test]
    fn a_write_in_doubt_may_show_until_it_is_replaced_after_it_is_settled() {
        let mut file = FileModel::new();
        let doubt = file.begin_write(1, WriteId(1), 0, 64);
        let later = file.begin_write(3, WriteId(2), 0, 64);
        file.done(later, 4, 64);
        for id in [2, 1, 2, 1] {
            // Concurrent reads prove nothing about each other.
            file.check_read(read(5, 50, 0, &content(id, 0, 64))).unwrap();
        }
        assert!(file.check_read(read(5, 6, 0, &[0; 64])).is_err());
        file.settled(doubt, 60);
        let last = file.begin_write(61, WriteId(3), 0, 64);
        file.done(last, 62, 64);
        assert!(file.check_read(read(63, 64, 0, &content(1, 0, 64))).is_err());
    }

    #[test]
    fn reads_do_not_go_back() {
        let mut file = FileModel::new();
        let old = file.begin_write(1, WriteId(1), 0, 64);
        file.done(old, 2, 64);
        let doubt = file.begin_write(3, WriteId(2), 0, 64);
        file.settled(doubt, 10);
        file.check_read(read(11, 12, 0, &content(1, 0, 64))).unwrap();
        assert!(file.check_read(read(13, 14, 0, &content(2, 0, 64))).is_err());
    }

    #[test]
    fn a_write_answered_short_counts_only_as_far_as_it_went() {
        let mut file = FileModel::new();
        let write = file.begin_write(1, WriteId(1), 0, 100);
        file.done(write, 2, 40);
        assert_eq!(file.size_bounds(3), (40, 40));
        let refused = file.begin_write(3, WriteId(2), 0, 100);
        file.refused(refused);
        file.check_read(read(4, 5, 0, &content(1, 0, 40))).unwrap();
        assert!(file.check_read(read(4, 5, 0, &content(2, 0, 40))).is_err());
    }

    #[test]
    fn truncation_leaves_zeros_and_bounds_the_size() {
        let mut file = FileModel::new();
        let write = file.begin_write(1, WriteId(1), 0, 100);
        file.done(write, 2, 100);
        let cut = file.begin_truncate(3, 10);
        assert_eq!(file.size_bounds(4), (10, 100));
        file.done(cut, 5, 0);
        assert_eq!(file.size_bounds(6), (10, 10));
        let grow = file.begin_truncate(7, 50);
        file.done(grow, 8, 0);
        assert_eq!(file.size_bounds(9), (50, 50));
        let mut expected = content(1, 0, 10);
        expected.extend([0; 40]);
        file.check_read(read(9, 10, 0, &expected)).unwrap();
        assert!(file.check_read(read(9, 10, 0, &content(1, 0, 50))).is_err());
        file.check_size(9, 50).unwrap();
        assert!(file.check_size(9, 49).is_err());
    }

    #[test]
    fn ends_of_files_are_checked() {
        let mut file = FileModel::new();
        let write = file.begin_write(1, WriteId(1), 0, 100);
        file.done(write, 2, 100);
        let end = content(1, 90, 10);
        let at_end = Observation { asked: 50, eof: true, ..read(3, 4, 90, &end) };
        file.check_read(at_end).unwrap();
        assert!(file.check_read(Observation { eof: false, ..at_end }).is_err());
        let early = content(1, 0, 10);
        assert!(
            file.check_read(Observation { asked: 50, eof: true, ..read(3, 4, 0, &early) }).is_err()
        );
        file.check_read(Observation { asked: 50, eof: true, ..read(3, 4, 200, &[]) }).unwrap();
    }

    #[test]
    fn pruning_changes_no_verdict() {
        let mut rng = dafs_dat::sim::SimRng::new(9);
        let mut file = FileModel::new();
        let mut kept = FileModel::new();
        let mut tick = 0;
        for number in 1..400 {
            tick += 3;
            let (offset, len) = (rng.below(64) * 16, (1 + rng.below(32)) * 16);
            for model in [&mut file, &mut kept] {
                let id = if number % 9 == 0 {
                    model.begin_truncate(tick, offset)
                } else {
                    model.begin_write(tick, WriteId(number), offset, len)
                };
                match number % 5 {
                    0 => model.settled(id, tick + 1),
                    _ => model.done(id, tick + 1, len),
                }
            }
            file.prune(tick + 2);
            assert_eq!(file.size_bounds(tick + 2), kept.size_bounds(tick + 2));
            let (offset, asked) = (rng.below(1000), 16);
            let candidate = WriteId(number - rng.below(number.min(30))).bytes(offset, asked);
            let seen = Observation { eof: false, ..read(tick + 2, tick + 2, offset, &candidate) };
            let verdict = file.clone().check_read(seen).is_ok();
            assert_eq!(verdict, kept.clone().check_read(seen).is_ok());
        }
        assert!(file.changes.len() < kept.changes.len() / 2);
    }
}
