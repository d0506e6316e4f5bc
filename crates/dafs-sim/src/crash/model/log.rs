//! The file to which all clients append: whole records, each once, and no other bytes.

use crate::pattern::WriteId;
use std::collections::BTreeMap;

/// Bytes before the data of a record: its number and its length.
const HEAD_BYTES: usize = 16;

/// Most bytes of a record.
pub(crate) const RECORD_BYTES_MAX: usize = 6000;

/// Least bytes of a record.
pub(crate) const RECORD_BYTES_MIN: usize = HEAD_BYTES + 1;

/// The known outcome of an append.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// Outstanding or lost.
    Open,
    /// It is at this offset.
    At(u64),
    /// It was refused.
    Refused,
}

/// All records ever appended.
#[derive(Debug, Default)]
pub(crate) struct Log {
    records: BTreeMap<WriteId, (usize, Fate)>,
}

impl Log {
    pub(crate) fn record(write: WriteId, len: usize) -> Vec<u8> {
        let mut bytes = write.bytes(0, len);
        bytes[..8].copy_from_slice(&write.0.to_le_bytes());
        bytes[8..16].copy_from_slice(&(len as u64).to_le_bytes());
        bytes
    }

    /// A record is about to be appended.
    pub(crate) fn begin(&mut self, write: WriteId, len: usize) {
        self.records.insert(write, (len, Fate::Open));
    }

    /// The append was answered with success.
    pub(crate) fn appended(&mut self, write: WriteId, offset: u64) {
        if let Some((_, fate)) = self.records.get_mut(&write) {
            *fate = Fate::At(offset);
        }
    }

    /// The append was refused and has no effect.
    pub(crate) fn refused(&mut self, write: WriteId) {
        if let Some((_, fate)) = self.records.get_mut(&write) {
            *fate = Fate::Refused;
        }
    }

    /// Compares with the whole file. Returns the offset of each record.
    pub(crate) fn check(&self, file: &[u8]) -> Result<BTreeMap<WriteId, usize>, String> {
        let mut found = BTreeMap::new();
        let mut at = 0;
        while at < file.len() {
            let word = |offset: usize| {
                let bytes = file.get(at + offset..at + offset + 8)?;
                Some(u64::from_le_bytes(bytes.try_into().ok()?))
            };
            let known = word(0).map(WriteId).and_then(|write| {
                let (len, fate) = self.records.get(&write)?;
                let same = file.get(at..at + len)? == Self::record(write, *len);
                same.then_some((write, *len, *fate))
            });
            let Some((write, len, fate)) = known else {
                return Err(format!("at {at} of {} the log has no record", file.len()));
            };
            if let Some(first) = found.insert(write, at) {
                return Err(format!("{write:?} is in the log at {first} and at {at}"));
            }
            match fate {
                Fate::At(answer) if answer != at as u64 => {
                    return Err(format!("{write:?} is at {at}, and {answer} was told"));
                }
                Fate::Refused => return Err(format!("{write:?} is at {at} and was refused")),
                _ => {}
            }
            at += len;
        }
        let missing = self
            .records
            .iter()
            .find(|(write, (_, fate))| matches!(fate, Fate::At(_)) && !found.contains_key(write));
        match missing {
            Some((write, fate)) => Err(format!("{write:?} is not in the log: {fate:?}")),
            None => Ok(found),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_whole_and_there_once() {
        let mut log = Log::default();
        let (one, two) = (Log::record(WriteId(1), 30), Log::record(WriteId(2), 40));
        log.begin(WriteId(1), 30);
        log.begin(WriteId(2), 40);
        log.check(&[]).unwrap();
        log.appended(WriteId(1), 40);
        log.check(&[two.clone(), one.clone()].concat()).unwrap();
        assert!(log.check(&one).is_err(), "another offset was told");
        assert!(log.check(&two).is_err(), "it is missing");
        assert!(log.check(&[two.clone(), one.clone(), one.clone()].concat()).is_err(), "twice");
        assert!(log.check(&[&two[..39], &[0], &one].concat()).is_err(), "torn");
        assert!(log.check(&[two.clone(), one.clone(), vec![0]].concat()).is_err(), "half");
    }
}
