//! The types of an NFS layout.

use super::Layouts;
use crate::mount::layout::LayoutReader;
use dafs_wire::nfs4::Fsid;
use std::ops::Range;
use std::sync::Arc;

pub(crate) type Grant = dafs_parallel::Grant<Layouts>;
pub(super) type Granted = dafs_parallel::Granted<Layouts>;
pub(crate) type FileLayout = dafs_parallel::FileLayout<Layouts>;
pub(super) type At<'a> = dafs_parallel::Holder<'a, Layouts>;

/// The terms of a layout besides its plan.
#[derive(Debug)]
pub(crate) struct Terms {
    /// The bytes of the file that it covers.
    pub(super) range: Range<u64>,
    /// The file system of the file, if the server reported it.
    pub(super) fsid: Option<Fsid>,
    /// True if the layout ends with the last close.
    pub(super) return_on_close: bool,
    pub(super) reader: Arc<dyn LayoutReader>,
}

impl Terms {
    /// True if a transfer may go by the layout; otherwise it goes through the server (RFC 8881
    /// 12.5.1).
    pub(super) fn covers(&self, offset: u64, end: u64) -> bool {
        self.range.start <= offset && end <= self.range.end
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::files::Handle;
    use crate::mount::layout::Component;
    use crate::mount::v4::layouts::files::FilesReader;
    use dafs_parallel::aggregation::{Packing, Striped};
    use dafs_parallel::limits::LAYOUT_THRESHOLD_BYTES;
    use dafs_parallel::{Plan, Recalled, Want};
    use dafs_wire::nfs4::{DeviceId, Stateid};

    /// Makes a layout without data servers.
    pub(crate) fn grant(write: bool) -> Arc<Grant> {
        grant_of(write, None, &[])
    }

    /// Makes a layout of a file of a file system, with components on devices and without data
    /// servers.
    pub(crate) fn grant_of(write: bool, fsid: Option<Fsid>, devices: &[DeviceId]) -> Arc<Grant> {
        let driver = Striped::round_robin(4096, 1, 0, Packing::Sparse).unwrap();
        let place = |&device: &DeviceId| {
            let (addresses, handle, stateid) = (Vec::new(), Handle(vec![1]), None);
            Component { device, addresses, handle, stateid }
        };
        let plan = Plan {
            driver: Arc::new(driver),
            places: devices.iter().map(place).collect(),
            preferred: vec![0],
            commits_at_server: false,
            needs_layout_commit: true,
            read_bytes_max: 4096,
            write_bytes_max: 4096,
        };
        let (return_on_close, reader) = (true, Arc::new(FilesReader));
        let terms = Terms { range: 0..u64::MAX, fsid, return_on_close, reader };
        Grant::new(plan, Vec::new(), write, terms)
    }

    fn stateid(seqid: u32, name: u8) -> Stateid {
        Stateid { seqid, other: [name; 12] }
    }

    #[test]
    fn recalls_and_answers_may_overtake_each_other() {
        let file = FileLayout::new(Handle(vec![1]));
        let recall = |stateid| file.recall(Some(stateid));
        assert_eq!(recall(stateid(2, 1)), Recalled::Unknown);
        assert!(matches!(file.want(true, LAYOUT_THRESHOLD_BYTES, |_| true), Want::Ask(None)));
        // The grant is on its way.
        assert_eq!(recall(stateid(2, 1)), Recalled::Later);
        let grant = grant(true);
        let (name, size) = (stateid(1, 1), None);
        file.granted(&Granted { grant: grant.clone(), name, size });
        assert_eq!(recall(stateid(2, 9)), Recalled::Unknown, "of another layout");
        assert_eq!(recall(stateid(2, 1)), Recalled::Yes);
        assert_eq!(file.held().unwrap().1, stateid(2, 1), "the return is of the recall's number");
        // An older recall comes late and changes nothing.
        assert_eq!(recall(stateid(1, 1)), Recalled::Yes);
        assert_eq!(file.held().unwrap().1, stateid(2, 1));
        assert!(file.begin_return(&grant));
        assert_eq!(recall(stateid(3, 1)), Recalled::Yes, "it is on its way");
        assert!(!file.enter(&grant), "nothing more is sent");
        file.returned();
        assert!(!file.begin_return(&grant));
        assert_eq!(recall(stateid(3, 1)), Recalled::Unknown);
    }
}
