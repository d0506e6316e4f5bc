//! The comparison of two trees: `dafs check`.
//!
//! Invariants
//! * Nothing is changed.
//! * Two trees are the same only if all of both could be read.

use super::content::{local_digest, remote_digest};
use super::error::{CopyError, Outcome, here, remote};
use super::filter::Filter;
use super::local;
use super::pieces::{Pieces, Worker};
use super::queue::{self, Queue};
use super::report::Report;
use super::sync::is_same_time;
use super::temporary::is_temporary_name;
use super::view::{Opened, Tree, Trouble};
use super::watched;
use crate::failure::Failure;
use crate::output::complain;
use crate::remote::{Attributes, DirEntry, Error, ObjectType, OpenOptions};
use crate::show::readable;
use rustix::io::Errno;
use serde_json::json;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Rules of a comparison.
#[derive(Debug)]
pub(crate) struct Rules {
    pub(crate) filter: Filter,
    /// Compare times in place of contents.
    pub(crate) quick: bool,
    /// Print each difference as a JSON object.
    pub(crate) json: bool,
}

/// A comparison of two trees.
struct Check<'a> {
    trees: [&'a Tree; 2],
    rules: &'a Rules,
    report: &'a Report,
    differences: AtomicU64,
    compared: AtomicU64,
}

/// A file of both trees.
struct Pair {
    directories: Arc<[Opened; 2]>,
    path: Vec<u8>,
    name: Vec<u8>,
    size: u64,
}

/// A directory of both trees.
struct Level {
    directories: Arc<[Opened; 2]>,
    path: Vec<u8>,
    ours: std::vec::IntoIter<DirEntry>,
    theirs: BTreeMap<Vec<u8>, DirEntry>,
}

/// Compares two directories and prints each difference.
///
/// # Errors
///
/// They differ, or a part of them could not be read.
pub(crate) fn run(trees: [(&Tree, Opened); 2], rules: &Rules) -> Result<(), Failure> {
    let [(ours, our_top), (theirs, their_top)] = trees;
    let counts = (AtomicU64::new(0), AtomicU64::new(0));
    let (report, result) = watched(None, |report| {
        let check = Check {
            trees: [ours, theirs],
            rules,
            report,
            differences: AtomicU64::new(0),
            compared: AtomicU64::new(0),
        };
        check.compare(Arc::new([our_top, their_top]));
        counts.0.store(check.differences.into_inner(), Ordering::Relaxed);
        counts.1.store(check.compared.into_inner(), Ordering::Relaxed);
        Ok(())
    })?;
    report.clear();
    report.result().and(result)?;
    let (differences, compared) = (counts.0.into_inner(), counts.1.into_inner());
    if report.is_shown() {
        complain!("{compared} objects compared, {differences} differences");
    }
    if differences > 0 { Err(Failure::Reported) } else { Ok(()) }
}

impl Check<'_> {
    fn compare(&self, top: Arc<[Opened; 2]>) {
        let pieces = self.trees.map(|tree| tree.remote.as_ref().map(Pieces::new));
        queue::run(
            self.report,
            |queue| self.report.book(self.walk(queue, top)),
            |queue| {
                let workers = pieces.each_ref();
                let mut workers = workers.map(|pieces| pieces.as_ref().map(Worker::new));
                while let Some(pair) = queue.pop() {
                    self.report.book(self.contents(&mut workers, &pair));
                }
            },
        );
    }

    /// Walks through both trees, depth first.
    fn walk(&self, queue: &Queue<'_, Pair>, top: Arc<[Opened; 2]>) -> Outcome {
        let mut levels = vec![self.level(top, Vec::new())?];
        while let Some(level) = levels.last_mut() {
            self.report.go_on()?;
            let Some(entry) = level.ours.next() else {
                for (name, entry) in std::mem::take(&mut level.theirs) {
                    let path = [&level.path[..], &name].concat();
                    if !self.leaves_out(&path, &entry) {
                        self.differs("only in the second", &path)?;
                    }
                }
                levels.pop();
                continue;
            };
            let path = [&level.path[..], &entry.name].concat();
            let other = level.theirs.remove(&entry.name);
            if self.leaves_out(&path, &entry) {
                continue;
            }
            let Some(other) = other else {
                self.differs("only in the first", &path)?;
                continue;
            };
            let (Some(one), Some(two)) = (&entry.attributes, &other.attributes) else {
                let text = format!("{}: another file system is mounted there", readable(&path));
                self.report.book(Err(CopyError::Object(text)));
                continue;
            };
            self.compared.fetch_add(1, Ordering::Relaxed);
            let directories = level.directories.clone();
            if one.is_directory() && two.is_directory() {
                match self.enter(&directories, &path, &entry.name, [one, two]) {
                    Ok(inner) => levels.push(inner),
                    Err(error) => self.report.book(Err(error)),
                }
                continue;
            }
            let outcome = self.objects(&directories, &path, &entry.name, [one, two]);
            match outcome {
                Ok(Some(size)) => queue.push(Pair { directories, path, name: entry.name, size }),
                Ok(None) => {}
                Err(error) => self.report.book(Err(error)),
            }
        }
        Ok(())
    }

    /// Compares all but the contents of files. Returns the size of a file whose content is to be
    /// compared.
    fn objects(
        &self,
        directories: &[Opened; 2],
        path: &[u8],
        name: &[u8],
        both: [&Attributes; 2],
    ) -> Outcome<Option<u64>> {
        let [one, two] = both;
        if one.kind != two.kind {
            return self.differs("type", path).map(|()| None);
        }
        match one.kind {
            ObjectType::Regular if one.size != two.size => self.differs("size", path)?,
            ObjectType::Regular if !self.rules.quick => return Ok(Some(one.size)),
            ObjectType::Regular => {
                let times = one.modified.zip(two.modified);
                if !times.is_some_and(|(one, two)| is_same_time(one, two)) {
                    self.differs("time", path)?;
                }
            }
            ObjectType::Symlink => {
                let text = |side: usize| {
                    self.trees[side]
                        .readlink(&directories[side], name, both[side])
                        .map_err(|error| self.trouble(side, path, &error))
                };
                if text(0)? != text(1)? {
                    self.differs("link", path)?;
                }
            }
            ObjectType::BlockDevice | ObjectType::CharDevice
                if one.raw_device != two.raw_device =>
            {
                self.differs("device", path)?;
            }
            _ => {}
        }
        Ok(None)
    }

    fn enter(
        &self,
        directories: &[Opened; 2],
        path: &[u8],
        name: &[u8],
        both: [&Attributes; 2],
    ) -> Outcome<Level> {
        let open = |side: usize| {
            let opened = self.trees[side].enter(&directories[side], name, both[side]);
            opened.map_err(|error| self.trouble(side, path, &error))
        };
        self.level(Arc::new([open(0)?, open(1)?]), [path, b"/"].concat())
    }

    fn level(&self, directories: Arc<[Opened; 2]>, path: Vec<u8>) -> Outcome<Level> {
        let list = |side: usize| {
            let listed = self.trees[side].list(&directories[side]);
            listed.map_err(|error| self.trouble(side, &path, &error))
        };
        let ours = list(0)?.into_iter();
        let theirs = list(1)?.into_iter().map(|entry| (entry.name.clone(), entry)).collect();
        Ok(Level { directories, path, ours, theirs })
    }

    fn leaves_out(&self, path: &[u8], entry: &DirEntry) -> bool {
        let is_directory = entry.attributes.as_ref().is_some_and(Attributes::is_directory);
        is_temporary_name(&entry.name)
            || (!self.rules.filter.is_empty() && self.rules.filter.leaves_out(path, is_directory))
    }

    fn trouble(&self, side: usize, path: &[u8], error: &Trouble) -> CopyError {
        let path = path.strip_suffix(b"/").unwrap_or(path);
        match self.trees[side].failure(path, error) {
            Failure::Failed(text) => CopyError::Object(text),
            other => CopyError::Stop(other),
        }
    }

    /// Prints a difference.
    fn differs(&self, what: &str, path: &[u8]) -> Outcome {
        self.differences.fetch_add(1, Ordering::Relaxed);
        if self.rules.json {
            let path = String::from_utf8_lossy(path);
            return self.report.print(&json!({ "difference": what, "path": path }).to_string());
        }
        self.report.print(&format!("{what}: {}", readable(path)))
    }

    fn contents(&self, workers: &mut [Option<Worker<'_>>; 2], pair: &Pair) -> Outcome {
        let [ours, theirs] = workers;
        let one = self.digest(0, ours.as_mut(), pair)?;
        let two = self.digest(1, theirs.as_mut(), pair)?;
        self.report.add_bytes(pair.size);
        if one == two { Ok(()) } else { self.differs("content", &pair.path) }
    }

    /// The length and the checksum of one of the files.
    fn digest(
        &self,
        side: usize,
        worker: Option<&mut Worker<'_>>,
        pair: &Pair,
    ) -> Outcome<(u64, Option<u64>)> {
        let tree = self.trees[side];
        let what = || tree.top.join(&pair.path);
        match (&pair.directories[side], &tree.remote, worker) {
            (Opened::Remote(directory), Some(client), Some(worker)) => {
                let failed = |error: &Error| remote(what(), error);
                let file = client.open_at(directory, &pair.name, &OpenOptions::read());
                let file = file.map_err(|error| failed(&error))?;
                let mut ring = worker.ring(pair.size)?;
                let (sum, length) =
                    remote_digest(self.report, &mut ring, &file, pair.size, failed)?;
                Ok((length, sum.value()))
            }
            (Opened::Local(directory), ..) => {
                let failed = |error: Errno| here(what(), error);
                let name = OsString::from_vec(pair.name.clone());
                let file = local::open_for_reading(directory, &name).map_err(failed)?;
                let sum = local_digest(self.report, file.as_fd(), failed)?;
                Ok((pair.size, sum.value()))
            }
            (Opened::Remote(_), ..) => Ok((0, None)),
        }
    }
}
