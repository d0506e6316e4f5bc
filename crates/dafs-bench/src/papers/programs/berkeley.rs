//! Programs on Berkeley DB: their files, and their work in a trial.
//!
//! Invariants
//! * Every record that is read is compared with the expected one (`applications/berkeley_db.c`).
//! * Each trial is a process of its own, whose cache is empty at first.

use super::trials::{Database, Door, Trial};
use crate::database;
use anyhow::{Result, ensure};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The cache of [`Database::Sizes`].
const CACHE_BYTES: u64 = 190 << 20;

/// The cache and the table of [`Database::Counts`].
const COLD_CACHE_BYTES: u64 = 50 << 20;
const COLD_TABLE_BYTES: u64 = 191 << 20;

/// A queue. The client reads ahead from the fifth MiB on, so that a small one would tell nothing.
const QUEUE_BYTES: u64 = 64 << 20;
const QUEUE_BYTES_MIN: u64 = 16 << 20;

/// Berkeley DB has no smaller cache.
const CACHE_BYTES_MIN: u64 = 1 << 20;

/// The space of a record in a table, with the overhead of pages, and its value.
const RECORD_BYTES: u64 = 1096;
const VALUE_BYTES: u64 = 1000;

/// The fewest lookups of a trial.
const LOOKUPS_MIN: u64 = 10;

/// The memory of [`Database::Sizes`], in percent of its cache: 256 MB beside 190 MB. On top comes the
/// memory of the program and of its session.
const MEMORY_PERCENT: u64 = 135;
const PROGRAM_BYTES: u64 = 48 << 20;

/// The program and its files.
pub(super) struct Berkeley {
    pub(super) program: PathBuf,
    scale: u64,
}

/// The work of the program in a trial.
pub(super) struct Task {
    pub(super) words: Vec<String>,
    pub(super) operations: u64,
    pub(super) bytes: u64,
}

impl Berkeley {
    /// Builds the program in `folder`, and makes the files of the trials in `files`.
    pub(super) fn make(
        folder: &Path,
        files: &Path,
        trials: &BTreeSet<Trial>,
        scale: u64,
    ) -> Result<Self> {
        let this = Self { program: database::build(folder, &database::LOOKUPS_PROGRAM)?, scale };
        for trial in trials {
            let Some(database) = trial.work.database() else { continue };
            let file = files.join(file_name(database, trial.step));
            if !file.exists() {
                this.make_file(database, trial.step, &file)?;
            }
        }
        Ok(this)
    }

    fn make_file(&self, database: Database, step: u64, file: &Path) -> Result<()> {
        let records = self.records(database, step).to_string();
        let mut command = Command::new(&self.program);
        match database {
            Database::Sizes | Database::Counts => command.arg("make").arg(file).arg(records),
            Database::Queue => command.arg("fill").arg(file).arg(records).arg(step.to_string()),
        };
        let status = command.status()?;
        ensure!(status.success(), "{} was not made: {status}", file.display());
        Ok(())
    }

    /// The memory of the client of [`Database::Sizes`].
    pub(super) fn memory_bytes(&self) -> u64 {
        self.cache_bytes(Database::Sizes) * MEMORY_PERCENT / 100 + PROGRAM_BYTES
    }

    fn scaled(&self, bytes: u64) -> u64 {
        (bytes * self.scale / 100).max(CACHE_BYTES_MIN)
    }

    fn cache_bytes(&self, database: Database) -> u64 {
        match database {
            Database::Sizes => self.scaled(CACHE_BYTES),
            Database::Counts => self.scaled(COLD_CACHE_BYTES),
            Database::Queue => CACHE_BYTES_MIN,
        }
    }

    fn records(&self, database: Database, step: u64) -> u64 {
        match database {
            Database::Sizes => self.cache_bytes(database) * step / 100 / RECORD_BYTES,
            Database::Counts => self.scaled(COLD_TABLE_BYTES) / RECORD_BYTES,
            Database::Queue => self.scaled(QUEUE_BYTES).max(QUEUE_BYTES_MIN) / step,
        }
    }

    /// The task of a step through a door, with the files in `root`.
    pub(super) fn task(&self, database: Database, step: u64, door: Door, root: &Path) -> Task {
        let file = root.join(file_name(database, step)).display().to_string();
        let (records, cache) = (self.records(database, step), self.cache_bytes(database));
        let (command, numbers, operations, bytes) = match database {
            // Each record is looked up twice on average, after once in which the cache warms up.
            Database::Sizes => ("look", vec![2 * records, records], 2 * records, VALUE_BYTES),
            Database::Counts => {
                let count = (step * self.scale / 100).max(LOOKUPS_MIN);
                ("look", vec![count, 0], count, VALUE_BYTES)
            }
            Database::Queue => {
                let is_open_for_writing = u64::from(door == Door::RunPlain);
                ("walk", vec![step, is_open_for_writing], records, step)
            }
        };
        let mut words = vec![command.to_owned(), file, records.to_string(), cache.to_string()];
        words.extend(numbers.iter().map(u64::to_string));
        Task { words, operations, bytes: operations * bytes }
    }
}

/// The name of a step's file.
pub(super) fn file_name(database: Database, step: u64) -> String {
    match database {
        Database::Sizes => format!("table-{step}.db"),
        Database::Counts => "table.db".to_owned(),
        Database::Queue => format!("queue-{step}.db"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(database: Database, step: u64, door: Door, scale: u64) -> (String, u64) {
        let berkeley = Berkeley { program: PathBuf::new(), scale };
        let task = berkeley.task(database, step, door, Path::new("/data"));
        (task.words.join(" "), task.bytes)
    }

    #[test]
    fn tables_have_the_sizes_of_the_paper_at_full_scale() {
        let (words, bytes) = task(Database::Sizes, 270, Door::Run, 100);
        // 513 MiB beside a cache of 190 MiB.
        assert_eq!(words, "look /data/table-270.db 490802 199229440 981604 490802");
        assert_eq!(bytes, 981_604_000);
        let (words, _) = task(Database::Counts, 3000, Door::Mount, 100);
        assert_eq!(words, "look /data/table.db 182735 52428800 3000 0");
        let berkeley = Berkeley { program: PathBuf::new(), scale: 100 };
        assert_eq!(berkeley.memory_bytes() >> 20, 256 + 48);
    }

    #[test]
    fn small_scales_keep_a_cache_and_a_queue_that_is_read_ahead() {
        let (words, _) = task(Database::Counts, 1000, Door::Run, 1);
        assert_eq!(words, "look /data/table.db 1827 1048576 10 0");
        let (words, bytes) = task(Database::Queue, 8000, Door::Run, 1);
        assert_eq!(words, "walk /data/queue-8000.db 2097 1048576 8000 0");
        assert_eq!(bytes, 16_776_000);
        let (words, _) = task(Database::Queue, 8000, Door::RunPlain, 1);
        assert!(words.ends_with(" 8000 1"), "{words}");
    }
}
