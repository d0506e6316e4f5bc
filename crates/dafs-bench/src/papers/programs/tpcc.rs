//! The transactions of TPC-C on Berkeley DB, by one process and by several.
//!
//! Invariants
//! * Each trial has tables of its own, the same at first, and an environment of its own at the client.
//! * After each trial the consistency conditions of TPC-C are checked on the server's files.

use super::berkeley::Task;
use super::stage::Stage;
use super::trials::Trial;
use crate::database;
use crate::fronts::Front;
use crate::report::Sample;
use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Warehouses, which are about 700 MB at full scale.
const WAREHOUSES: u64 = 8;

/// The items, and the customers of a district (TPC-C 1.2.1), and the fewest.
const ITEMS: u64 = 100_000;
const ITEMS_MIN: u64 = 100;
const CUSTOMERS: u64 = 3000;
const CUSTOMERS_MIN: u64 = 20;

/// The transactions of all processes of a trial, and the fewest.
const TRANSACTIONS: u64 = 3000;
const TRANSACTIONS_MIN: u64 = 60;

/// The part of the tables that fits the cache of Berkeley DB, and its least size.
const CACHE_PART: u64 = 7;
const CACHE_BYTES_MIN: u64 = 1 << 20;

const SOURCES: [&str; 3] = ["berkeley_tpcc", "berkeley_tpcc_work", "berkeley_tpcc_state"];

/// The folder of the tables.
const TABLES: &str = "tpcc";

/// The program and the tables that each trial begins with.
pub(super) struct Tpcc {
    program: PathBuf,
    folder: PathBuf,
    /// Warehouses, items, and the customers of a district.
    sizes: [String; 3],
    transactions: u64,
    pub(super) bytes: u64,
}

impl Tpcc {
    /// Builds the program and makes the tables in `folder`.
    pub(super) fn make(folder: &Path, scale: u64) -> Result<Self> {
        let program = database::build(folder, &SOURCES)?;
        let scaled = |count: u64, least: u64| (count * scale / 100).max(least);
        let sizes = [WAREHOUSES, scaled(ITEMS, ITEMS_MIN), scaled(CUSTOMERS, CUSTOMERS_MIN)];
        let sizes = sizes.map(|size| size.to_string());
        let transactions = scaled(TRANSACTIONS, TRANSACTIONS_MIN);
        let mut this = Self { program, folder: folder.to_owned(), sizes, transactions, bytes: 0 };
        let tables = folder.join(TABLES);
        std::fs::create_dir(&tables)?;
        this.call("make", &tables)?;
        for file in std::fs::read_dir(tables)? {
            this.bytes += file?.metadata()?.len();
        }
        // Each trial has a copy, for which there must be room.
        let copy = folder.join("copy");
        this.copy_tables(&copy)?;
        std::fs::remove_dir_all(copy)?;
        Ok(this)
    }

    fn call(&self, command: &str, tables: &Path) -> Result<()> {
        let mut program = Command::new(&self.program);
        let status = program.arg(command).arg(tables).args(&self.sizes).status()?;
        ensure!(status.success(), "TPC-C: {command} of the tables ended with {status}");
        Ok(())
    }

    /// The words of the program for a number of processes.
    fn words(&self, tables: &Path, home: &Path, processes: u64) -> Vec<String> {
        let mut words = vec!["run".to_owned(), tables.display().to_string()];
        words.extend_from_slice(&self.sizes);
        words.push(home.display().to_string());
        let cache_bytes = (self.bytes / CACHE_PART).max(CACHE_BYTES_MIN);
        words.extend([cache_bytes, processes, self.transactions].map(|number| number.to_string()));
        words
    }

    /// Runs the transactions by as many processes as the trial's step says, and checks the tables.
    pub(super) fn run(&self, trial: &Trial, front: &Front, stage: &Stage) -> Result<Sample> {
        let (tables, home) = (stage.export.join(TABLES), self.folder.join("environment"));
        for left in [&tables, &home].into_iter().filter(|folder| folder.exists()) {
            // By a trial that has failed.
            std::fs::remove_dir_all(left)?;
        }
        self.copy_tables(&tables)?;
        std::fs::create_dir(&home)?;
        let task = Task {
            words: self.words(&front.root.join(TABLES), &home, trial.step),
            operations: self.transactions,
            bytes: self.bytes,
        };
        let sample = stage.measure(front, &self.program, &task)?;
        self.call("check", &tables)?;
        for folder in [tables, home] {
            std::fs::remove_dir_all(folder)?;
        }
        Ok(sample)
    }

    fn copy_tables(&self, to: &Path) -> Result<()> {
        std::fs::create_dir(to)?;
        for file in std::fs::read_dir(self.folder.join(TABLES))? {
            let file = file?;
            let copy = to.join(file.file_name());
            std::fs::copy(file.path(), &copy).with_context(|| copy.display().to_string())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::process::Stdio;

    #[test]
    fn transactions_of_several_processes_keep_the_conditions_and_a_lost_write_breaks_them() {
        if let Some(reason) = database::missing() {
            println!("SKIPPED, {reason}");
            return;
        }
        let folder = tempfile::tempdir().expect("a folder");
        let tpcc = Tpcc::make(folder.path(), 1).expect("tables");
        let first = folder.path().join(TABLES);
        tpcc.call("check", &first).expect("the first content is consistent");
        for processes in [1, 3] {
            let (tables, home) = (folder.path().join("run"), folder.path().join("environment"));
            tpcc.copy_tables(&tables).expect("copied");
            std::fs::create_dir(&home).expect("a folder");
            let mut command = Command::new(&tpcc.program);
            command.args(tpcc.words(&tables, &home, processes)).stdin(Stdio::piped());
            let mut child = command.spawn().expect("it starts");
            let input = child.stdin.as_mut().expect("its input");
            input.write_all(b"go\nend\n").expect("it waits");
            assert!(child.wait().expect("it ends").success());
            tpcc.call("check", &tables).expect("all conditions hold");
            let warehouses = std::fs::read(tables.join("warehouse.db")).expect("a table");
            assert_ne!(warehouses, std::fs::read(first.join("warehouse.db")).expect("a table"));
            // Payments that reached all tables but one.
            std::fs::copy(first.join("warehouse.db"), tables.join("warehouse.db")).expect("copied");
            assert!(tpcc.call("check", &tables).is_err());
            for folder in [tables, home] {
                std::fs::remove_dir_all(folder).expect("removed");
            }
        }
    }

    #[test]
    fn the_cache_has_a_seventh_of_the_tables() {
        let tpcc = Tpcc {
            program: PathBuf::new(),
            folder: PathBuf::new(),
            sizes: ["8", "1000", "30"].map(str::to_owned),
            transactions: 60,
            bytes: 70 << 20,
        };
        let words = tpcc.words(Path::new("/data/tpcc"), Path::new("/home"), 2).join(" ");
        assert_eq!(words, "run /data/tpcc 8 1000 30 /home 10485760 2 60");
    }
}
