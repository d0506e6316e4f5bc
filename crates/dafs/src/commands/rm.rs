//! `dafs rm`: removes files, and with -r directories with their contents.
//!
//! Invariants
//! * No symlink is followed: a symlink is removed itself.
//! * The path into a tree is kept on the heap, and each level of it by its name, so that the tree
//!   may be as deep as file systems allow.

use super::for_each;
use crate::failure::Failure;
use crate::limits::{REMOVALS_UNDER_WAY_MAX, REMOVE_BATCH, REMOVE_PASSES_MAX, WORKERS};
use crate::output::complain;
use crate::remote::{
    DirEntry, Error, Follow, Handle, PendingRemoval, Place, ReadDir, Remote, RemoteUrl, Status,
};
use crate::session::Sessions;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Remove files, and with -r directories
#[derive(Debug, clap::Args)]
pub(crate) struct Rm {
    /// The files
    #[arg(required = true)]
    urls: Vec<RemoteUrl>,
    /// Remove directories with their contents; symlinks are not followed
    #[arg(short, long)]
    recursive: bool,
    /// Succeed if it does not exist
    #[arg(short, long)]
    force: bool,
}

impl Rm {
    pub(crate) fn run(&self, sessions: &mut Sessions<'_>) -> Result<(), Failure> {
        if self.recursive {
            sessions.expect_many_threads();
        }
        for_each(&self.urls, |url| {
            let client = sessions.client(url)?;
            self.remove(&client, url)
        })
    }

    fn remove(&self, client: &Remote, url: &RemoteUrl) -> Result<(), Failure> {
        let failed = |error: Error| Failure::remote(url, &error);
        let found = client.resolve_parent(url.path()).and_then(|place| {
            let handle = client.lookup(&place.dir, &place.name)?;
            Ok((place, client.attributes(&handle)?))
        });
        let (Place { dir, name }, attributes) = match found {
            Err(error) if self.force && is_missing(client, url, &error) => return Ok(()),
            other => other.map_err(failed)?,
        };
        if attributes.is_directory() {
            if !self.recursive {
                return Err(Failure::Failed(format!("{url} is a directory; use rm -r")));
            }
            empty_directory(client, url, attributes.handle)?;
        }
        client.remove(&dir, &name).map_err(failed)
    }
}

/// Removes the contents of a directory. Failures are reported, and the rest goes on.
pub(crate) fn empty_directory(
    client: &Remote,
    url: &RemoteUrl,
    directory: Handle,
) -> Result<(), Failure> {
    Tree { client, top: url, way: Vec::new() }.empty(directory)
}

/// True if there is no object at a path, or a file where a directory would have to be.
fn is_missing(client: &Remote, url: &RemoteUrl, error: &Error) -> bool {
    match error.status() {
        Some(Status::NoEnt) => true,
        Some(Status::NotDir) => client
            .resolve(url.path(), Follow::Yes)
            .is_err_and(|error| error.status() == Some(Status::NotDir)),
        _ => false,
    }
}

/// A directory tree that is being removed.
struct Tree<'a> {
    client: &'a Remote,
    top: &'a RemoteUrl,
    /// The names from the top to the current directory.
    way: Vec<Vec<u8>>,
}

/// A directory that is being emptied.
struct Level {
    directory: Handle,
    listing: ReadDir,
    /// Entries of the listing, and how many of them have been checked for directories.
    batch: Vec<DirEntry>,
    looked: usize,
    /// Directories of the batch that could not be emptied.
    kept: usize,
    /// Counts of this pass through the directory.
    seen: usize,
    failed: usize,
    passes: usize,
}

/// The next step in a directory.
enum Step {
    /// Descend into a directory.
    Into(Vec<u8>, Handle),
    /// The directory is empty, or cannot be emptied.
    Done(Result<(), Failure>),
}

impl Tree<'_> {
    /// Removes the contents of a directory. Failures are reported, and the rest goes on.
    fn empty(&mut self, directory: Handle) -> Result<(), Failure> {
        let mut levels = vec![self.level(directory)];
        loop {
            let Some(level) = levels.last_mut() else { return Ok(()) };
            match self.step(level)? {
                Step::Into(name, inner) => {
                    self.way.push(name);
                    levels.push(self.level(inner));
                }
                Step::Done(done) => {
                    levels.pop();
                    let Some(above) = levels.last_mut() else { return done };
                    self.way.pop();
                    match done {
                        Ok(()) => {}
                        Err(Failure::Failed(text)) => {
                            complain!("dafs: {text}");
                            above.kept += 1;
                        }
                        Err(Failure::Reported) => above.kept += 1,
                        Err(other) => return Err(other),
                    }
                }
            }
        }
    }

    fn level(&self, directory: Handle) -> Level {
        Level {
            directory,
            listing: self.client.read_dir(&directory),
            batch: Vec::new(),
            looked: 0,
            kept: 0,
            seen: 0,
            failed: 0,
            passes: 0,
        }
    }

    /// The URL of the current directory.
    fn url(&self) -> RemoteUrl {
        match self.way.is_empty() {
            true => self.top.clone(),
            false => self.top.join(&self.way.join(&b'/')).unwrap_or_else(|_| self.top.clone()),
        }
    }

    /// Goes on with a directory until it finds a subdirectory to descend into.
    fn step(&self, level: &mut Level) -> Result<Step, Failure> {
        loop {
            while let Some(entry) = level.batch.get(level.looked) {
                level.looked += 1;
                if let Some(found) = entry.attributes.as_ref().filter(|found| found.is_directory())
                {
                    return Ok(Step::Into(entry.name.clone(), found.handle));
                }
            }
            let failed = self.remove_batch(&level.directory, &level.batch)?;
            level.failed += failed.max(std::mem::take(&mut level.kept));
            level.seen += level.batch.len();
            let batch: Result<Vec<DirEntry>, Error> =
                level.listing.by_ref().take(REMOVE_BATCH).collect();
            level.batch = match batch {
                Ok(batch) => batch,
                Err(error) => match Failure::remote(self.url(), &error) {
                    failed @ Failure::Failed(_) => return Ok(Step::Done(Err(failed))),
                    other => return Err(other),
                },
            };
            level.looked = 0;
            if !level.batch.is_empty() {
                continue;
            }
            if level.failed > 0 {
                return Ok(Step::Done(Err(Failure::Reported)));
            }
            if level.seen == 0 {
                return Ok(Step::Done(Ok(())));
            }
            // Removals during a listing may make it skip entries, so it is repeated until it is
            // empty.
            level.passes += 1;
            if level.passes == REMOVE_PASSES_MAX {
                let text =
                    format!("{}: somebody adds files as fast as they are removed", self.url());
                return Ok(Step::Done(Err(Failure::Failed(text))));
            }
            level.seen = 0;
            level.listing = self.client.read_dir(&level.directory);
        }
    }

    /// Removes entries of a directory; returns the number of failures.
    fn remove_batch(&self, directory: &Handle, batch: &[DirEntry]) -> Result<usize, Failure> {
        let next = AtomicUsize::new(0);
        let (workers, under_way_max) = match self.client.small_under_way_max() {
            0 => (WORKERS.min(batch.len()), 1),
            most => (1, most.min(REMOVALS_UNDER_WAY_MAX)),
        };
        // Each removal is a round trip, so several are outstanding.
        let work = || -> Result<usize, Failure> {
            let mut failed = 0;
            let mut under_way: VecDeque<(&DirEntry, PendingRemoval)> = VecDeque::new();
            loop {
                if under_way.len() < under_way_max
                    && let Some(entry) = batch.get(next.fetch_add(1, Ordering::Relaxed))
                {
                    under_way.push_back((entry, self.client.begin_remove(directory, &entry.name)));
                    continue;
                }
                let Some((entry, removal)) = under_way.pop_front() else { return Ok(failed) };
                match removal.wait() {
                    Ok(()) => {}
                    Err(error) if error.status() == Some(Status::NoEnt) => {}
                    Err(error) => {
                        let url = self.url();
                        let what = url.join(&entry.name).unwrap_or(url);
                        match Failure::remote(what, &error) {
                            Failure::Failed(text) => complain!("dafs: {text}"),
                            other => return Err(other),
                        }
                        failed += 1;
                    }
                }
            }
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = (1..workers).map(|_| scope.spawn(work)).collect();
            let mut result = work();
            for thread in threads {
                // INVARIANT: the closure above does not panic.
                let other = thread.join().unwrap_or(Err(Failure::Reported));
                result = result.and_then(|failed| Ok(failed + other?));
            }
            result
        })
    }
}
