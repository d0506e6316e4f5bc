//! Recalls of layouts over the back-control channel, and the thread that gives recalled layouts
//! back.
//!
//! Invariants
//! * The thread that drives the session answers a recall at once: nothing here waits for a server.
//! * Each layout is queued at most once, so the number of held layouts bounds the queue.
//! * The thread ends with its client.

use super::Layouts;
use super::file::{FileLayout, Name};
use crate::attributes::FileHandle;
use crate::driver::Shared;
use crate::fork::ForkMutex;
use dafs_dat::confine::confined;
use dafs_parallel::limits::LAYOUT_THRESHOLD_BYTES;
use dafs_parallel::{Protocol, Recalled, Returns, Work};
use dafs_wire::dafs::{LayoutScope, Status, XBcLayoutRecall};
use rustc_hash::FxHashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

/// The open files that have layouts, and the queue of layouts to give back.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// The files, each with the number of open files that use it.
    files: ForkMutex<FxHashMap<FileHandle, (Arc<FileLayout>, usize)>>,
    returns: Returns<Layouts>,
    /// True if the recall thread was started.
    started: AtomicBool,
    /// The number of files, to be read without the lock.
    used: AtomicUsize,
}

/// The callback by which the session answers recalls.
#[derive(Debug, Clone)]
pub(crate) struct Recalls(Arc<Known>);

impl Recalls {
    /// Answers a recall of the server.
    pub(crate) fn recalled(&self, args: &XBcLayoutRecall) -> Status {
        let name = Name { state_id: args.state_id, seqid: args.seqid };
        match args.scope {
            LayoutScope::File => match self.0.find(&args.fh) {
                Some(file) => self.0.recalled([file], Some(name)),
                None => Status::NotFound,
            },
            LayoutScope::FileSystem => {
                let files = self.0.all().into_iter();
                self.0.recalled(files.filter(|file| file.handle.fs == args.fh.fs), None)
            }
            LayoutScope::All => self.0.recalled(self.0.all(), None),
        }
    }

    /// True if the server may recall anything.
    pub(crate) fn are_expected(&self) -> bool {
        self.0.are_used()
    }
}

impl Known {
    /// Adds an open file to the users of a layout.
    pub(super) fn attach(&self, handle: &FileHandle) -> Arc<FileLayout> {
        let mut files = self.files.lock_here();
        let new = || {
            let file = FileLayout::new(*handle);
            // The open file has transferred this much already.
            file.with(|state| state.count(LAYOUT_THRESHOLD_BYTES));
            (Arc::new(file), 0)
        };
        let (file, users) = files.entry(*handle).or_insert_with(new);
        *users += 1;
        let file = file.clone();
        self.used.store(files.len(), Ordering::Relaxed);
        file
    }

    /// Removes an open file from the users of a layout; true if it was the last. The caller then
    /// gives the layout back, and the server can recall it until [`Self::forget`].
    pub(super) fn detach(&self, file: &Arc<FileLayout>) -> bool {
        let mut files = self.files.lock_here();
        let Some((_, users)) = files.get_mut(&file.handle) else { return false };
        *users = users.saturating_sub(1);
        *users == 0
    }

    /// Drops the entry of a file, unless an open file uses it again.
    pub(super) fn forget(&self, handle: &FileHandle) {
        let mut files = self.files.lock_here();
        if files.get(handle).is_some_and(|(_, users)| *users == 0) {
            files.remove(handle);
            self.used.store(files.len(), Ordering::Relaxed);
        }
    }

    pub(super) fn find(&self, handle: &FileHandle) -> Option<Arc<FileLayout>> {
        self.files.lock_here().get(handle).map(|(file, _)| file.clone())
    }

    pub(super) fn all(&self) -> Vec<Arc<FileLayout>> {
        self.files.lock_here().values().map(|(file, _)| file.clone()).collect()
    }

    pub(super) fn are_used(&self) -> bool {
        self.used.load(Ordering::Relaxed) > 0
    }

    /// Queues the layouts of these files to be given back. The status is NOT_FOUND if none is held.
    fn recalled(
        &self,
        files: impl IntoIterator<Item = Arc<FileLayout>>,
        name: Option<Name>,
    ) -> Status {
        let mut status = Status::NotFound;
        for file in files {
            match file.recall(name) {
                // The answer with the layout is still on its way, and the server retries the
                // recall.
                Recalled::Later => return Status::Delay,
                Recalled::Unknown => {}
                Recalled::Yes => {
                    status = Status::Ok;
                    self.returns.add(file.held().map(|(grant, _)| (file, grant)));
                }
            }
        }
        status
    }

    pub(super) fn stop(&self) {
        self.returns.stop();
    }
}

impl Layouts {
    /// Registers for recalls at the session, and starts the recall thread.
    pub(super) fn listen(self: &Arc<Self>, shared: &Arc<Shared>) -> crate::Result<()> {
        // Every caller registers before it asks for a layout, whichever of them starts the thread.
        shared.hear_recalls(Recalls(self.known.clone()))?;
        if self.known.started.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        let (known, layouts) = (self.known.clone(), Arc::downgrade(self));
        let session = Arc::downgrade(shared);
        let thread = std::thread::Builder::new().name("dafs-layouts".to_owned());
        let started = thread.spawn(move || run(&known, &layouts, &session));
        if let Err(error) = started {
            self.known.started.store(false, Ordering::Relaxed);
            return Err(crate::Error::Memory(error.to_string().into()));
        }
        Ok(())
    }
}

fn run(known: &Known, layouts: &Weak<Layouts>, session: &Weak<Shared>) {
    while let Some(Work::GiveBack((file, grant))) = known.returns.next() {
        let (Some(layouts), Some(shared)) = (layouts.upgrade(), session.upgrade()) else { return };
        // The server revokes a layout whose return fails by a panic; others are still given back.
        let _ = confined(|| layouts.at(&shared, &file).give_back(&grant, &[]));
        // These may be the last references, whose drop stops this thread.
        drop((layouts, shared));
    }
}

#[cfg(test)]
mod tests {
    use super::super::file::{Grant, Granted};
    use super::*;
    use dafs_parallel::aggregation::{Packing, Striped};
    use dafs_parallel::{Plan, Want};
    use dafs_wire::dafs::StateId;

    fn handle(fs: u8, file: u8) -> FileHandle {
        FileHandle { fs: [fs; 16], file: [file; 48] }
    }

    /// Starts to ask for the layout of a file.
    fn asked(known: &Known, handle: FileHandle) -> Arc<FileLayout> {
        let file = known.attach(&handle);
        assert!(matches!(file.want(true, 1, |_| true), Want::Ask(None)));
        file
    }

    /// Grants a layout without data servers.
    fn granted(file: &FileLayout) {
        let driver = Arc::new(Striped::round_robin(4096, 1, 0, Packing::Sparse).unwrap());
        let plan = Plan {
            driver,
            places: Vec::new(),
            preferred: vec![0],
            commits_at_server: false,
            needs_layout_commit: true,
            read_bytes_max: 4096,
            write_bytes_max: 4096,
        };
        let grant = Grant::new(plan, Vec::new(), true, 0);
        let name = Name { state_id: StateId([file.handle.file[0]; 8]), seqid: 1 };
        file.granted(&Granted { grant, name, size: None });
    }

    /// Holds layouts of files in two file systems.
    fn holding() -> (Recalls, Arc<Known>) {
        let known = Arc::<Known>::default();
        for (fs, file) in [(1, 1), (1, 2), (2, 3)] {
            granted(&asked(&known, handle(fs, file)));
        }
        (Recalls(known.clone()), known)
    }

    fn args(scope: LayoutScope, fh: FileHandle, state: u8) -> XBcLayoutRecall {
        XBcLayoutRecall { fh, state_id: StateId([state; 8]), seqid: 2, scope }
    }

    /// Returns the files whose layouts are queued to be given back.
    fn work(known: &Known) -> Vec<u8> {
        let mut files = Vec::new();
        while let Some(Work::GiveBack((file, _))) = known.returns.try_next() {
            files.push(file.handle.file[0]);
        }
        files.sort_unstable();
        files
    }

    #[test]
    fn a_recall_takes_one_layout_or_those_of_a_file_system_or_all() {
        let (recalls, known) = holding();
        let recalled = |scope, fh, state| {
            let status = recalls.recalled(&args(scope, fh, state));
            (status, work(&known))
        };
        assert_eq!(recalled(LayoutScope::File, handle(1, 2), 2), (Status::Ok, vec![2]));
        let other = recalled(LayoutScope::File, handle(1, 2), 1);
        assert_eq!(other, (Status::NotFound, vec![]), "of another name");
        let unknown = recalled(LayoutScope::File, handle(1, 9), 9);
        assert_eq!(unknown, (Status::NotFound, vec![]));
        // Any object identifies its file system.
        assert_eq!(recalled(LayoutScope::FileSystem, handle(1, 9), 0), (Status::Ok, vec![1, 2]));
        let none = recalled(LayoutScope::FileSystem, handle(3, 1), 0);
        assert_eq!(none, (Status::NotFound, vec![]));
        assert_eq!(recalled(LayoutScope::All, handle(0, 0), 0), (Status::Ok, vec![1, 2, 3]));
    }

    #[test]
    fn a_layout_recalled_twice_is_returned_once() {
        let (recalls, known) = holding();
        for (scope, fh) in [
            (LayoutScope::File, handle(1, 1)),
            (LayoutScope::FileSystem, handle(1, 1)),
            (LayoutScope::All, handle(1, 1)),
        ] {
            assert_eq!(recalls.recalled(&args(scope, fh, 1)), Status::Ok);
        }
        assert_eq!(work(&known), [1, 2, 3]);
    }

    #[test]
    fn a_recall_waits_for_an_answer_that_may_tell_of_what_it_is_about() {
        let (recalls, known) = holding();
        let file = asked(&known, handle(2, 4));
        for (scope, fh) in [
            (LayoutScope::File, handle(2, 4)),
            (LayoutScope::FileSystem, handle(2, 9)),
            (LayoutScope::All, handle(0, 0)),
        ] {
            assert_eq!(recalls.recalled(&args(scope, fh, 4)), Status::Delay);
        }
        let elsewhere = args(LayoutScope::FileSystem, handle(1, 9), 0);
        assert_eq!(recalls.recalled(&elsewhere), Status::Ok);
        granted(&file);
        let there = args(LayoutScope::FileSystem, handle(2, 9), 0);
        assert_eq!(recalls.recalled(&there), Status::Ok);
        let mut files = work(&known);
        files.dedup();
        assert_eq!(files, [1, 2, 3, 4]);
    }
}
