//! The server's calls over the back channel (RFC 8881 20.3, 20.12), and the thread that carries
//! them out.
//!
//! Invariants
//! * The handler never blocks, because it runs on the thread that reads the answers to all calls.
//! * Each layout is queued at most once, so the number of held layouts bounds the queue.
//! * While all layouts of a file system, or all there are, are given back, the client asks for
//!   none. So it holds none unknown to the server when it reports that they were given back.
//! * The thread ends with its mount.

use super::{FileLayout, Grant, Layouts};
use crate::back::BackHandler;
use crate::files::Handle;
use crate::mount::v4::client::Client;
use dafs_dat::confine::confined;
use dafs_parallel::{Held, Protocol, Recalled, Work};
use dafs_wire::nfs4::{
    CbLayoutrecallArgs, CbNotifyDeviceidArgs, CbRecallAnyArgs, DeviceChange, DeviceId, Fsid,
    LayoutRecall, Status,
};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

/// The final LAYOUTRETURN of a wide recall, for which the server waits.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Said {
    layout_type: u32,
    of: Wide,
}

/// The scope of a wide recall (`layoutreturn_type4`).
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Wide {
    /// The file system of this file.
    FileSystem(Handle),
    All,
}

/// The handler of the server's calls.
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
                match file.recall(Some(recalled.stateid)) {
                    Recalled::Later => Status::Delay,
                    Recalled::Unknown => Status::NoMatchingLayout,
                    // After OK the client has to give the layout back now.
                    Recalled::Yes => {
                        let held = file.held().map(|(grant, _)| (file, grant));
                        layouts.returns.add(held);
                        Status::Ok
                    }
                }
            }
            LayoutRecall::FileSystem(fsid) => layouts.recall_wide(args.layout_type, Some(*fsid)),
            LayoutRecall::All => layouts.recall_wide(args.layout_type, None),
        }
    }

    /// Gives all layouts back, because the client can get each of them again.
    fn recall_any(&self, args: &CbRecallAnyArgs) -> Status {
        /// The first kind of object that is a layout (`RCA4_TYPE_MASK_FILE_LAYOUT`).
        const FILE_LAYOUT: u32 = 3;
        if (FILE_LAYOUT..32).any(|kind| args.kinds.contains(kind))
            && let Some(layouts) = self.0.upgrade()
        {
            layouts.returns.add(layouts.held(|_| true));
        }
        Status::Ok
    }

    fn notify_devices(&self, args: &CbNotifyDeviceidArgs) -> Status {
        let Some(layouts) = self.0.upgrade() else { return Status::Ok };
        for change in &args.changes {
            let (layout_type, device_id, at_once) = match change {
                DeviceChange::Moved(moved) => (moved.layout_type, moved.device_id, moved.immediate),
                DeviceChange::Deleted(deleted) => (deleted.layout_type, deleted.device_id, true),
            };
            layouts.device_changed(layout_type, device_id, at_once);
        }
        Status::Ok
    }
}

impl Layouts {
    /// Returns the held layouts that are `wanted`.
    fn held(&self, wanted: impl Fn(&Grant) -> bool) -> Vec<Held<Self>> {
        let held = |file: Arc<FileLayout>| {
            let (grant, _) = file.held()?;
            wanted(&grant).then_some((file, grant))
        };
        self.all().into_iter().filter_map(held).collect()
    }

    /// Queues all layouts of a file system, or all there are, to be given back. A layout of an
    /// unknown file system counts as one of each.
    fn recall_wide(&self, layout_type: u32, fsid: Option<Fsid>) -> Status {
        // No thread asks for a layout from now on.
        self.wide.fetch_add(1, Ordering::SeqCst);
        if self.all().iter().any(|file| file.with(|state| state.is_asking())) {
            // The recall may have overtaken a grant.
            self.end_wide();
            return Status::Delay;
        }
        let is_there = |grant: &Grant| match (grant.terms.fsid, fsid) {
            (Some(own), Some(wanted)) => own == wanted,
            _ => true,
        };
        let held =
            self.held(|grant| grant.terms.reader.layout_type() == layout_type && is_there(grant));
        // A file of the file system names it.
        let named = held.iter().find(|(_, grant)| grant.terms.fsid == fsid).or(held.first());
        let of = match named {
            Some((file, _)) if fsid.is_some() => Wide::FileSystem(file.handle.clone()),
            Some(_) => Wide::All,
            None => {
                self.end_wide();
                return Status::NoMatchingLayout;
            }
        };
        self.returns.add(held);
        if self.returns.add_then(Said { layout_type, of }) {
            self.end_wide();
        }
        Status::Ok
    }

    fn end_wide(&self) {
        self.wide.fetch_sub(1, Ordering::SeqCst);
    }

    /// True while a wide recall is carried out.
    pub(super) fn is_wide(&self) -> bool {
        self.wide.load(Ordering::SeqCst) > 0
    }

    /// Handles a change of a device. If the device is gone at once, the layouts that name it are
    /// queued to be given back. The next request for a layout learns the devices' new addresses.
    fn device_changed(&self, layout_type: u32, device_id: DeviceId, at_once: bool) {
        self.device_news.fetch_add(1, Ordering::SeqCst);
        self.devices.lock().remove(&(layout_type, device_id.0));
        if at_once {
            let uses = |grant: &Grant| {
                grant.terms.reader.layout_type() == layout_type
                    && grant.plan.places.iter().any(|place| place.device == device_id)
            };
            self.returns.add(self.held(uses));
        }
    }
}

/// Starts the recall thread.
pub(super) fn start(layouts: &Arc<Layouts>, client: &Arc<Client>) -> std::io::Result<()> {
    let (layouts, client) = (layouts.clone(), Arc::downgrade(client));
    let thread = std::thread::Builder::new().name("dafs-nfs-layouts".to_owned());
    thread.spawn(move || {
        while let Some(work) = layouts.returns.next() {
            let Some(client) = client.upgrade() else { return };
            // A panic of one must not keep others from being given back.
            let _ = confined(|| match work {
                Work::GiveBack((file, grant)) => layouts.at(&client, &file).give_back(&grant, &[]),
                Work::Next(Said { layout_type, of }) => {
                    super::give_back::say(&client, layout_type, &of);
                    layouts.end_wide();
                }
            });
        }
    })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mount::v4::layouts::file::Granted;
    use crate::mount::v4::layouts::file::tests::grant_of;
    use dafs_parallel::Want;
    use dafs_parallel::limits::LAYOUT_THRESHOLD_BYTES;
    use dafs_wire::nfs4::{
        Bitmap, DeviceDeleted, DeviceMoved, LAYOUT_FILES, LAYOUT_FLEX_FILES, Stateid,
    };

    fn fsid(major: u64) -> Fsid {
        Fsid { major, minor: 0 }
    }

    fn device(number: u8) -> DeviceId {
        DeviceId([number; 16])
    }

    /// Starts to ask for the layout of a file.
    fn asked(layouts: &Layouts, name: u8) -> Arc<FileLayout> {
        let file = layouts.file(&Handle(vec![name]));
        let want = file.want(true, LAYOUT_THRESHOLD_BYTES, |_| true);
        assert!(matches!(want, Want::Ask(None)));
        file
    }

    /// Holds layouts, given by the names of their files, their file systems and their devices.
    fn holding(held: &[(u8, Option<u64>, u8)]) -> (Arc<Layouts>, Recalls) {
        let layouts = Arc::new(Layouts::new(&[]));
        for &(name, of, number) in held {
            let grant = grant_of(true, of.map(fsid), &[device(number)]);
            let stateid = Stateid { seqid: 1, other: [name; 12] };
            let granted = Granted { grant, name: stateid, size: None };
            asked(&layouts, name).granted(&granted);
        }
        let recalls = Recalls::new(&layouts);
        (layouts, recalls)
    }

    fn recall(recalls: &Recalls, layout_type: u32, recall: LayoutRecall<'_>) -> Status {
        let args = CbLayoutrecallArgs { layout_type, io_mode: 3, changed: true, recall };
        recalls.recall_layout(&args)
    }

    /// Returns the queued work: the names of the files whose layouts are given back, and then the
    /// scopes of wide recalls.
    fn work(layouts: &Layouts) -> (Vec<u8>, Vec<Wide>) {
        let (mut files, mut said) = (Vec::new(), Vec::new());
        while let Some(work) = layouts.returns.try_next() {
            match work {
                Work::GiveBack((file, _)) if said.is_empty() => files.push(file.handle.0[0]),
                Work::GiveBack(..) => panic!("it is said before it is true"),
                Work::Next(Said { layout_type, of }) => {
                    assert_eq!(layout_type, LAYOUT_FILES);
                    said.push(of);
                    layouts.end_wide();
                }
            }
        }
        files.sort_unstable();
        (files, said)
    }

    #[test]
    fn of_a_file_system_goes_what_is_there_or_may_be() {
        let (layouts, recalls) = holding(&[(1, Some(7), 1), (2, Some(8), 1), (3, None, 1)]);
        let of = |number| LayoutRecall::FileSystem(fsid(number));
        assert_eq!(recall(&recalls, LAYOUT_FLEX_FILES, of(7)), Status::NoMatchingLayout);
        assert!(!layouts.is_wide());
        assert_eq!(recall(&recalls, LAYOUT_FILES, of(7)), Status::Ok);
        assert!(layouts.is_wide(), "none is asked for meanwhile");
        // The file that is certainly there names the file system.
        let of_first = Wide::FileSystem(Handle(vec![1]));
        assert_eq!(work(&layouts), (vec![1, 3], vec![of_first]));
        assert!(!layouts.is_wide());
        let (layouts, recalls) = holding(&[(1, Some(7), 1)]);
        assert_eq!(recall(&recalls, LAYOUT_FILES, of(8)), Status::NoMatchingLayout);
        assert_eq!(work(&layouts), (vec![], vec![]));
    }

    #[test]
    fn of_all_goes_everything_and_it_is_said_once() {
        let (layouts, recalls) = holding(&[(1, Some(7), 1), (2, Some(8), 1), (3, None, 1)]);
        for _ in 0..2 {
            assert_eq!(recall(&recalls, LAYOUT_FILES, LayoutRecall::All), Status::Ok);
        }
        assert_eq!(work(&layouts), (vec![1, 2, 3], vec![Wide::All]));
        assert!(!layouts.is_wide());
    }

    #[test]
    fn a_recall_of_many_waits_for_an_answer_that_may_tell_of_one_more() {
        let (layouts, recalls) = holding(&[(1, Some(7), 1)]);
        let file = asked(&layouts, 2);
        for of in [LayoutRecall::All, LayoutRecall::FileSystem(fsid(7))] {
            assert_eq!(recall(&recalls, LAYOUT_FILES, of), Status::Delay);
        }
        assert_eq!(work(&layouts), (vec![], vec![]));
        assert!(!layouts.is_wide());
        file.refused(true, true, false);
        assert_eq!(recall(&recalls, LAYOUT_FILES, LayoutRecall::All), Status::Ok);
        assert_eq!(work(&layouts).0, [1]);
    }

    #[test]
    fn a_recall_of_all_layouts_returns_all_and_reports_no_more() {
        let (layouts, recalls) = holding(&[(1, Some(7), 1), (2, Some(8), 2)]);
        let any = |kinds: &[u32]| {
            let args = CbRecallAnyArgs { objects_to_keep: 1, kinds: Bitmap::of(kinds) };
            assert_eq!(recalls.recall_any(&args), Status::Ok);
            work(&layouts)
        };
        assert_eq!(any(&[0, 1, 2]), (vec![], vec![]), "delegations are no layouts");
        assert_eq!(any(&[3]), (vec![1, 2], vec![]));
        // Layouts of flexible files for writing.
        assert_eq!(any(&[17]), (vec![1, 2], vec![]));
    }

    #[test]
    fn a_layout_of_a_deleted_device_is_returned_and_a_moved_device_is_asked_for() {
        let (layouts, recalls) = holding(&[(1, Some(7), 1), (2, Some(7), 2)]);
        let key = |number| (LAYOUT_FILES, device(number).0);
        let remember = |number| layouts.devices.lock().insert(key(number), [].into());
        let told = |change| {
            let _ = [1, 2].map(remember);
            let before = layouts.device_news.load(Ordering::SeqCst);
            let args = CbNotifyDeviceidArgs { changes: vec![change] };
            assert_eq!(recalls.notify_devices(&args), Status::Ok);
            assert_eq!(layouts.device_news.load(Ordering::SeqCst), before + 1);
            let known = [1, 2].map(|number| layouts.devices.lock().contains_key(&key(number)));
            (work(&layouts).0, known)
        };
        let moved = |layout_type, immediate| {
            let device_id = device(1);
            DeviceChange::Moved(DeviceMoved { layout_type, device_id, immediate })
        };
        assert_eq!(told(moved(LAYOUT_FILES, false)), (vec![], [false, true]));
        assert_eq!(told(moved(LAYOUT_FILES, true)), (vec![1], [false, true]));
        assert_eq!(told(moved(LAYOUT_FLEX_FILES, true)), (vec![], [true, true]));
        let (layout_type, device_id) = (LAYOUT_FILES, device(2));
        let deleted = DeviceChange::Deleted(DeviceDeleted { layout_type, device_id });
        assert_eq!(told(deleted), (vec![2], [true, false]));
    }
}
