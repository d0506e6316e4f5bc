//! The scan of a log at start.
//!
//! Invariants
//! * The scan writes nothing.
//! * Work is bounded by the size of the segments, for any content.

use crate::disk::{Disk, Spawn};
use crate::error::{LogFailed, ScanError};
use crate::format::{ALIGN, HEADER_BYTES, Head, Header, Kind, Record, Seal, VERSION};
use crate::limits::{SEARCH_EFFORT, SEGMENT_READ_BYTES_MAX};
use crate::log::Log;
use std::sync::Arc;

/// A log that was read, before it begins to write.
pub struct Recovery {
    disk: Arc<dyn Disk>,
    boot: [u8; 16],
    segments: Vec<u64>,
    next_segment: u64,
    next_sequence: u64,
    rebooted: bool,
}

/// The content of a segment.
struct Parsed<'a> {
    header: Header,
    records: Vec<Record<'a>>,
    /// The checkpoint is complete.
    complete: bool,
    /// The position behind the last record.
    end: usize,
    /// The number of the next record.
    next: u64,
}

struct Segment<'a> {
    seal: Seal,
    name: String,
    content: &'a [u8],
    boot: [u8; 16],
}

impl Recovery {
    /// Reads the log on `disk` and hands each record to `sink`, the checkpoint first. `boot`
    /// identifies the run of the system: within one run, no written data is ever lost.
    ///
    /// # Errors
    /// The error, its position, and the remedy.
    pub fn scan(
        disk: Arc<dyn Disk>,
        boot: [u8; 16],
        sink: &mut dyn FnMut(&[u8]),
    ) -> Result<Self, ScanError> {
        let failed = |segment: String| move |error| ScanError::Read { segment, error };
        let mut segments = disk.list().map_err(failed("the journal's directory".to_owned()))?;
        segments.sort_unstable();
        let next_segment = segments.last().map_or(1, |last| last + 1);
        let mut found = Self {
            disk: disk.clone(),
            boot,
            segments,
            next_segment,
            next_sequence: 1,
            rebooted: false,
        };
        for at in (0..found.segments.len()).rev() {
            let number = found.segments[at];
            let name = disk.name(number);
            let content = disk.read(number).map_err(failed(name.clone()))?;
            let seal = Seal { key: disk.key(), segment: number };
            let segment = Segment { seal, name, content: &content, boot };
            let parsed = segment.parse()?;
            if let Some(parsed) = &parsed {
                found.next_sequence = found.next_sequence.max(parsed.next);
                if parsed.complete {
                    found.rebooted = parsed.header.boot != boot;
                    let told = |kind| matches!(kind, Kind::Record | Kind::Checkpoint);
                    let records = parsed.records.iter().filter(|record| told(record.kind));
                    records.for_each(|record| sink(record.payload));
                    return Ok(found);
                }
            }
            let before = at.checked_sub(1).map(|at| found.segments[at]);
            if number > 1 && before != Some(number - 1) {
                let missing = disk.name(number - 1);
                return Err(match parsed {
                    // It was complete once, or the one before would not have been removed.
                    Some(parsed) => segment.damaged(
                        parsed.end as u64,
                        format!("its checkpoint is not whole, and {missing} is not there"),
                    ),
                    None => ScanError::Missing { segment: missing },
                });
            }
        }
        // No segment was ever complete, so no record was ever reported as stable.
        Ok(found)
    }

    /// True when the system has rebooted since the log was written, so that unstable writes may be
    /// missing, here and elsewhere.
    pub fn rebooted(&self) -> bool {
        self.rebooted
    }

    /// Begins to write, in segments of `segment_bytes`, most often
    /// [`SEGMENT_BYTES`](crate::SEGMENT_BYTES). `live` are the live records. They are stable when
    /// this returns, and the old segments are removed.
    ///
    /// # Errors
    /// The disk has failed. The old segments still exist then.
    pub fn start(
        self,
        segment_bytes: u64,
        spawn: Spawn,
        live: &mut dyn Iterator<Item = &[u8]>,
    ) -> Result<Arc<Log>, LogFailed> {
        let (segment, sequence) = (self.next_segment, self.next_sequence);
        let (disk, boot, old) = (self.disk, self.boot, self.segments);
        Log::begin(disk, boot, segment_bytes, spawn, segment, sequence, old, live)
    }
}

impl<'a> Segment<'a> {
    /// Parses the segment. `None` when it was made and not used yet.
    fn parse(&self) -> Result<Option<Parsed<'a>>, ScanError> {
        let found = self.content.len() as u64;
        let header = match Header::decode(self.content) {
            // Files get their names when they have their full length.
            Head::Blank if self.content.len() < HEADER_BYTES => {
                let (segment, expected) = (self.name.clone(), HEADER_BYTES as u64);
                return Err(ScanError::Truncated { segment, expected, found });
            }
            Head::Known(header) if header.segment == self.seal.segment => header,
            Head::Known(_) | Head::Blank => {
                return self.check_tail(HEADER_BYTES, None, true).map(|()| None);
            }
            Head::Other(found) => {
                let segment = self.name.clone();
                return Err(ScanError::OtherVersion { segment, found, known: VERSION });
            }
            Head::Foreign => {
                let found = self.content[..self.content.len().min(8)].to_vec();
                return Err(ScanError::Foreign { segment: self.name.clone(), found });
            }
            Head::Damaged => return Err(self.damaged(0, "the header does not match its checksum")),
        };
        if header.key_sum != 0 && header.key_sum != self.seal.key_sum() {
            return Err(self.damaged(56, "the journal's key is not the one that sealed it"));
        }
        if found < header.len_bytes {
            let (segment, expected) = (self.name.clone(), header.len_bytes);
            return Err(ScanError::Truncated { segment, expected, found });
        }
        if found > SEGMENT_READ_BYTES_MAX {
            return Err(self.damaged(header.len_bytes, "it is too long"));
        }
        let (end, next) = (HEADER_BYTES, header.first);
        let mut parsed = Parsed { header, records: Vec::new(), complete: false, end, next };
        while let Some(record) = Record::decode(&self.seal, self.content, parsed.end, &mut 0) {
            if record.sequence != parsed.next || record.stable >= record.sequence {
                break;
            }
            let wrong = match record.kind {
                Kind::Record | Kind::Confirmation => !parsed.complete,
                Kind::Checkpoint | Kind::CheckpointEnd => parsed.complete,
            };
            if wrong {
                return Err(self.damaged(parsed.end as u64, "records are out of order"));
            }
            parsed.complete |= record.kind == Kind::CheckpointEnd;
            parsed.next += 1;
            parsed.end += Record::room(record.payload.len());
            parsed.records.push(record);
        }
        let rebooted = parsed.header.boot != self.boot;
        self.check_tail(parsed.end, Some(parsed.next), rebooted)?;
        Ok(Some(parsed))
    }

    /// Checks the rest of a segment from `offset`, where no record can be read. `expected` is the
    /// number of the record there, if it is known. Later records distinguish damage from a torn
    /// tail.
    fn check_tail(
        &self,
        offset: usize,
        expected: Option<u64>,
        rebooted: bool,
    ) -> Result<(), ScanError> {
        let (mut at, mut effort) = (offset.next_multiple_of(ALIGN), 0);
        let effort_max = (self.content.len() as u64).saturating_mul(SEARCH_EFFORT);
        let mut lost = expected;
        while at < self.content.len() {
            if self.content[at..].iter().take(ALIGN).all(|&byte| byte == 0) {
                at += ALIGN;
                continue;
            }
            if effort > effort_max {
                let what = "what follows looks like records and is none";
                return Err(self.damaged(offset as u64, what));
            }
            let later = Record::decode(&self.seal, self.content, at, &mut effort)
                .filter(|record| expected.is_none_or(|expected| record.sequence > expected));
            let Some(later) = later else {
                at += ALIGN;
                continue;
            };
            // Without a header, the first record that is found gives the first number of the
            // segment.
            let first = *lost.get_or_insert(later.sequence);
            if later.stable >= first || !rebooted {
                let what = format!(
                    "record {first} cannot be read, and record {} at byte {at} comes after it",
                    later.sequence
                );
                return Err(self.damaged(offset as u64, what));
            }
            at += Record::room(later.payload.len());
        }
        Ok(())
    }

    fn damaged(&self, offset: u64, what: impl Into<String>) -> ScanError {
        ScanError::Damaged { segment: self.name.clone(), offset, what: what.into() }
    }
}
