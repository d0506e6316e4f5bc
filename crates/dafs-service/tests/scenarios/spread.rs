//! A store in memory that claims to have its files on data servers, and records the requests about
//! them.

use dafs_store::Spread as How;
use dafs_store::{
    Capabilities, Cred, Device, DeviceKey, DeviceTrouble, FileCopy, FileId, FsId, LayoutForm,
    Layouts, MemoryOptions, MemoryStore, NfsAddresses, Packing, Placement, Result, SetAttr,
    SetTime, Store, StoreError, Stripes, Waits,
};
use dafs_testkit::stores::layer::{Layer, Layered};
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::time::Duration;

pub(crate) const DEVICE: DeviceKey = DeviceKey([9; 16]);
/// A client's report about it.
pub(crate) const FAILED: (DeviceKey, DeviceTrouble) = (DEVICE, DeviceTrouble::Failed);

/// The requests to the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asked {
    Commit(Option<u64>),
    RecoverSize,
    Forget,
    Report((DeviceKey, DeviceTrouble)),
}

#[derive(Default)]
pub(crate) struct Spread {
    inner: Arc<MemoryStore>,
    pub(crate) asked: Mutex<Vec<Asked>>,
    /// Data servers are unreachable.
    pub(crate) away: AtomicBool,
    /// Data servers may honour authorisations of an earlier run.
    pub(crate) unsettled: AtomicBool,
    /// The store says that it waits for data servers.
    pub(crate) waits: AtomicBool,
    /// Files are not on data servers.
    pub(crate) whole: AtomicBool,
    /// Files are copied to two data servers.
    pub(crate) copies: AtomicBool,
    pub(crate) epoch: AtomicU64,
    /// New placements name components by other handles.
    pub(crate) renamed: AtomicBool,
    /// A search for writes counts as a change.
    pub(crate) touches: AtomicBool,
    /// The next call waits here, once when it begins and once more before it ends.
    pub(crate) gate: Mutex<Option<Arc<Barrier>>>,
    /// How long each call takes.
    pub(crate) call_milliseconds: AtomicU64,
    pub(crate) sweeps: AtomicU64,
    /// Seconds for which data servers cache authorisations.
    pub(crate) grant_ttl_seconds: AtomicU64,
    pub(crate) moved: Mutex<Vec<FileId>>,
    pub(crate) gone: Mutex<Vec<DeviceKey>>,
    /// How far clients have written at data servers.
    pub(crate) reach: AtomicU64,
    /// Questions about clients that write at data servers, and the answers.
    pub(crate) write_recalls: Mutex<Vec<(FileId, bool)>>,
    pub(crate) without_writers: Mutex<Vec<bool>>,
}

impl Spread {
    pub(crate) fn new() -> Arc<Layered<Self>> {
        Self::over(MemoryOptions::default())
    }

    /// A second store.
    pub(crate) fn second() -> Arc<Layered<Self>> {
        let fs_id = FsId(*b"another mem fs  ");
        Self::over(MemoryOptions { fs_id, ..MemoryOptions::default() })
    }

    fn over(options: MemoryOptions) -> Arc<Layered<Self>> {
        let inner = Arc::new(MemoryStore::new(options));
        Arc::new(Layered::new(inner.clone(), Self { inner, ..Self::default() }))
    }

    /// Makes the next call wait until another thread has met it here twice.
    pub(crate) fn hold_next(&self) -> Arc<Barrier> {
        let gate = Arc::new(Barrier::new(2));
        *self.gate.lock().unwrap() = Some(gate.clone());
        gate
    }

    pub(crate) fn take_asked(&self) -> Vec<Asked> {
        std::mem::take(&mut *self.asked.lock().unwrap())
    }

    fn ask(&self, asked: Asked) -> Result<()> {
        self.asked.lock().unwrap().push(asked);
        let gate = self.gate.lock().unwrap().take();
        if let Some(gate) = gate {
            gate.wait();
            gate.wait();
        }
        std::thread::sleep(Duration::from_millis(self.call_milliseconds.load(Ordering::SeqCst)));
        if self.away.load(Ordering::SeqCst) { Err(StoreError::Busy) } else { Ok(()) }
    }
}

/// The name of a file at the data servers.
pub(crate) fn component(file: &FileId) -> Box<[u8]> {
    [b"component of ", &file.0[..]].concat().into()
}

impl Layouts for Spread {
    fn placement(&self, file: &FileId, _write: bool) -> Result<Option<Placement>> {
        if self.whole.load(Ordering::SeqCst) {
            return Ok(None);
        }
        let copy = |handle| FileCopy { device: DEVICE, handle };
        let named: Box<[u8]> = match self.renamed.load(Ordering::SeqCst) {
            true => [&b"another name of "[..], &file.0].concat().into(),
            false => component(file),
        };
        let spread = match self.copies.load(Ordering::SeqCst) {
            true => How::Copies(vec![copy(component(file)), copy(b"another".as_slice().into())]),
            false => How::Stripes(Stripes {
                device: DEVICE,
                first_place: 0,
                unit_bytes: NonZeroU32::new(65_536).unwrap(),
                packing: Packing::Sparse,
                handles: vec![named],
            }),
        };
        Ok(Some(Placement { epoch: self.epoch.load(Ordering::SeqCst), spread }))
    }

    fn device(&self, key: &DeviceKey) -> Option<Device> {
        let servers = vec![NfsAddresses::over_tcp(vec!["127.0.0.1:2049".parse().unwrap()])];
        (*key == DEVICE).then_some(Device { pattern: vec![0], servers })
    }

    fn devices(&self) -> Vec<DeviceKey> {
        vec![DEVICE]
    }

    fn commit(&self, file: &FileId, end: Option<u64>) -> Result<u64> {
        self.ask(Asked::Commit(end))?;
        let attr = self.inner.getattr(file)?;
        let Some(end) = end.filter(|&end| end > attr.size) else { return Ok(attr.size) };
        let change = SetAttr { size: Some(end), ..SetAttr::default() };
        self.inner.setattr(&Cred::new(0, 0), file, &change, None).map(|attr| attr.size)
    }

    fn recover_size(&self, file: &FileId) -> Result<()> {
        self.ask(Asked::RecoverSize)?;
        let reach = self.reach.load(Ordering::SeqCst);
        if self.inner.getattr(file)?.size < reach {
            let change = SetAttr { size: Some(reach), ..SetAttr::default() };
            self.inner.setattr(&Cred::new(0, 0), file, &change, None)?;
        }
        if self.touches.load(Ordering::SeqCst) {
            let change = SetAttr { mtime: Some(SetTime::Now), ..SetAttr::default() };
            self.inner.setattr(&Cred::new(0, 0), file, &change, None)?;
        }
        Ok(())
    }

    fn drop_grants(&self, _file: &FileId) -> Result<()> {
        self.ask(Asked::Forget)
    }

    fn grant_ttl(&self) -> Duration {
        Duration::from_secs(self.grant_ttl_seconds.load(Ordering::SeqCst))
    }

    fn old_grants_expired(&self) -> Result<()> {
        if self.unsettled.load(Ordering::SeqCst) { Err(StoreError::Busy) } else { Ok(()) }
    }

    fn take_moved(&self, sink: &mut dyn FnMut(FileId)) {
        self.moved.lock().unwrap().drain(..).for_each(sink);
    }

    fn take_gone(&self, sink: &mut dyn FnMut(DeviceKey)) {
        self.gone.lock().unwrap().drain(..).for_each(sink);
    }

    fn take_write_recalls(&self, sink: &mut dyn FnMut(FileId, bool) -> bool) {
        for (file, recall) in std::mem::take(&mut *self.write_recalls.lock().unwrap()) {
            let none = sink(file, recall);
            self.without_writers.lock().unwrap().push(none);
        }
    }

    fn report(&self, _file: &FileId, device: &DeviceKey, trouble: DeviceTrouble) -> Result<()> {
        self.ask(Asked::Report((*device, trouble)))
    }
}

impl Layer for Spread {
    fn capabilities(&self, below: Capabilities) -> Capabilities {
        Capabilities {
            layouts: Some(LayoutForm::Stripes),
            layout_unit_bytes: 65_536,
            waits: match self.waits.load(Ordering::SeqCst) {
                true => Waits::Data,
                false => Waits::Never,
            },
            ..below
        }
    }

    fn layouts(&self) -> Option<&dyn Layouts> {
        Some(self)
    }

    fn sweep(&self) {
        self.sweeps.fetch_add(1, Ordering::SeqCst);
    }
}
