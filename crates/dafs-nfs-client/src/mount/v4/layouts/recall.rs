//! What the server asks for over the back channel (RFC 8881 20.3, 20.12), and the thread that does it.
//!
//! Invariants
//! * The handler waits for nobody: the thread that reads for all calls runs it.
//! * The thread ends with its mount.

use super::{FileLayout, Grant, Layouts};
use crate::back::BackHandler;
use crate::files::Handle;
use crate::mount::v4::client::Client;
use dafs_wire::nfs4::{CbLayoutrecallArgs, CbRecallAnyArgs, LayoutRecall, Status};
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};

/// What is to be given back.
#[derive(Debug, Default)]
pub(super) struct Recalled {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    work: VecDeque<Work>,
    stopped: bool,
}

#[derive(Debug)]
enum Work {
    File(Arc<FileLayout>, Arc<Grant>),
    /// Everything was given back that the server asked for: it waits to be told so.
    Said {
        layout_type: u32,
        of: Wide,
    },
}

/// More than a file (`layoutreturn_type4`).
#[derive(Debug)]
pub(super) enum Wide {
    /// The file system of this file.
    FileSystem(Handle),
    All,
}

impl Recalled {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, work: impl IntoIterator<Item = Work>) {
        self.queue().work.extend(work);
        self.changed.notify_all();
    }

    pub(super) fn stop(&self) {
        self.queue().stopped = true;
        self.changed.notify_all();
    }

    /// The next thing to do; `None` at the end.
    fn next(&self) -> Option<Work> {
        let mut queue = self.queue();
        loop {
            if queue.stopped {
                return None;
            }
            if let Some(work) = queue.work.pop_front() {
                return Some(work);
            }
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Answers the calls of the server.
pub(super) struct Recalls(Weak<Layouts>);

impl Recalls {
    pub(super) fn new(layouts: &Arc<Layouts>) -> Self {
        Self(Arc::downgrade(layouts))
    }
}

impl BackHandler for Recalls {
    fn recall_layout(&self, args: &CbLayoutrecallArgs<'_>) -> Status {
        let Some(layouts) = self.0.upgrade() else { return Status::NoMatchingLayout };
        match &args.recall {
            LayoutRecall::File(recalled) => {
                let file = layouts.known(&Handle(recalled.handle.to_vec()));
                let Some(file) = file else { return Status::NoMatchingLayout };
                let status = file.recall(recalled.stateid);
                if status == Status::Ok
                    && let Some((grant, _)) = file.held()
                {
                    layouts.recalled.add([Work::File(file, grant)]);
                }
                status
            }
            LayoutRecall::FileSystem(_) => layouts.recall_wide(args.layout_type, false),
            LayoutRecall::All => layouts.recall_wide(args.layout_type, true),
        }
    }

    /// Any layout can be had again, so all are given back.
    fn recall_any(&self, args: &CbRecallAnyArgs) -> Status {
        /// The first kind of object that is a layout (`RCA4_TYPE_MASK_FILE_LAYOUT`).
        const FILE_LAYOUT: u32 = 3;
        if (FILE_LAYOUT..32).any(|kind| args.kinds.contains(kind))
            && let Some(layouts) = self.0.upgrade()
        {
            layouts.recalled.add(layouts.work_of_all());
        }
        Status::Ok
    }
}

impl Layouts {
    fn work_of_all(&self) -> Vec<Work> {
        let held = |file: Arc<FileLayout>| {
            let (grant, _) = file.held()?;
            Some(Work::File(file, grant))
        };
        self.all().into_iter().filter_map(held).collect()
    }

    /// Which file system a file is on nobody here knows, so all layouts are given back.
    fn recall_wide(&self, layout_type: u32, all: bool) -> Status {
        let work = self.work_of_all();
        let of = match work.first() {
            Some(_) if all => Wide::All,
            Some(Work::File(file, _)) => Wide::FileSystem(file.handle.clone()),
            _ => return Status::NoMatchingLayout,
        };
        self.recalled.add(work);
        self.recalled.add([Work::Said { layout_type, of }]);
        Status::Ok
    }
}

/// Starts the thread that gives back what is recalled.
pub(super) fn start(layouts: &Arc<Layouts>, client: &Arc<Client>) -> std::io::Result<()> {
    let (layouts, client) = (layouts.clone(), Arc::downgrade(client));
    let thread = std::thread::Builder::new().name("dafs-nfs-layouts".to_owned());
    thread.spawn(move || {
        while let Some(work) = layouts.recalled.next() {
            let Some(client) = client.upgrade() else { return };
            match work {
                Work::File(file, grant) => layouts.give_back(&client, &file, &grant, None),
                Work::Said { layout_type, of } => super::give_back::say(&client, layout_type, &of),
            }
        }
    })?;
    Ok(())
}
