//! `dafs rm`: removes files, and with -r directories with all that is in them.
//!
//! Invariants
//! * No symlink is followed: what a name says is a symlink is removed as such.

use super::for_each;
use crate::failure::Failure;
use crate::limits::{REMOVE_BATCH, REMOVE_PASSES_MAX, TREE_DEPTH_MAX, WORKERS};
use crate::output::complain;
use crate::remote::{DirEntry, Error, Handle, Place, Remote, RemoteUrl, Status};
use crate::session::Sessions;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Remove files, and with -r directories
#[derive(Debug, clap::Args)]
pub(crate) struct Rm {
    /// What to remove
    #[arg(required = true)]
    urls: Vec<RemoteUrl>,
    /// Remove directories with all that is in them; symlinks are not followed
    #[arg(short, long)]
    recursive: bool,
    /// Be content if it does not exist
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
            Err(error) if self.force && error.status() == Some(Status::NoEnt) => return Ok(()),
            other => other.map_err(failed)?,
        };
        if attributes.is_directory() {
            if !self.recursive {
                return Err(Failure::Failed(format!("{url} is a directory; use rm -r")));
            }
            Tree { client }.empty(url, &attributes.handle, 0)?;
        }
        client.remove(&dir, &name).map_err(failed)
    }
}

/// A directory tree on its way out.
struct Tree<'a> {
    client: &'a Remote,
}

impl Tree<'_> {
    /// Removes all that is in a directory. What cannot be removed is reported, the rest goes on.
    fn empty(&self, url: &RemoteUrl, directory: &Handle, depth: usize) -> Result<(), Failure> {
        if depth >= TREE_DEPTH_MAX {
            return Err(Failure::Failed(format!("{url}: directories are nested too deeply")));
        }
        // Removing while a listing goes on may make it skip entries, so it is done again until
        // nothing is left.
        for _ in 0..REMOVE_PASSES_MAX {
            let mut listing = self.client.read_dir(directory);
            let (mut seen, mut failed) = (0, 0);
            loop {
                let batch: Result<Vec<DirEntry>, Error> =
                    listing.by_ref().take(REMOVE_BATCH).collect();
                let batch = batch.map_err(|error| Failure::remote(url, &error))?;
                if batch.is_empty() {
                    break;
                }
                seen += batch.len();
                failed += self.remove_batch(url, directory, &batch, depth)?;
            }
            if failed > 0 {
                return Err(Failure::Reported);
            }
            if seen == 0 {
                return Ok(());
            }
        }
        Err(Failure::Failed(format!("{url}: somebody adds files as fast as they are removed")))
    }

    /// Removes entries of a directory; returns how many could not be.
    fn remove_batch(
        &self,
        url: &RemoteUrl,
        directory: &Handle,
        batch: &[DirEntry],
        depth: usize,
    ) -> Result<usize, Failure> {
        let mut failed = 0;
        for entry in batch {
            let Some(attributes) = entry.attributes.as_ref().filter(|found| found.is_directory())
            else {
                continue;
            };
            let inside =
                url.join(&entry.name).map_err(|error| Failure::Usage(error.to_string()))?;
            match self.empty(&inside, &attributes.handle, depth + 1) {
                Ok(()) => {}
                Err(Failure::Failed(text)) => {
                    complain!("dafs: {text}");
                    failed += 1;
                }
                Err(Failure::Reported) => failed += 1,
                Err(other) => return Err(other),
            }
        }
        let next = AtomicUsize::new(0);
        // Each removal is a round trip, so several are under way.
        let work = || -> Result<usize, Failure> {
            let mut failed = 0;
            while let Some(entry) = batch.get(next.fetch_add(1, Ordering::Relaxed)) {
                match self.client.remove(directory, &entry.name) {
                    Ok(()) => {}
                    Err(error) if error.status() == Some(Status::NoEnt) => {}
                    Err(error) => {
                        let what = url.join(&entry.name).unwrap_or_else(|_| url.clone());
                        match Failure::remote(what, &error) {
                            Failure::Failed(text) => complain!("dafs: {text}"),
                            other => return Err(other),
                        }
                        failed += 1;
                    }
                }
            }
            Ok(failed)
        };
        let workers = WORKERS.min(batch.len());
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
        .map(|more| failed.max(more))
    }
}
