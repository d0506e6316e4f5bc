//! A test engine whose components have no holes: a metadata server that has names and sizes, and
//! data servers that keep the bytes of one file in memory.

use super::harness::{PATIENCE, Server};
use dafs_mem::{Site, VolatileSlice};
use dafs_nfs_client::mount::{
    Create, Mount, MountOptions, NfsUrl, OpenOptions, SetAttributes, StableHow as Stable,
};
use dafs_service::{DataRole, Export, ForeignStates, ForeignUse, Service, ServiceConfig};
use dafs_store::{
    Attr, Capabilities, DataFile, DataFiles, Device, DeviceKey, FILE_ID_BYTES, FileId, FsId,
    FsStat, Kind, LayoutForm, Layouts, MemoryOptions, MemoryStore, NfsAddresses, OpenFile, Packing,
    PartOfFile, Placement, Result, Spread, Stability, Store, StoreError, Stripes, TimeSpec, Wait,
};
use dafs_testkit::stores::layer::{Layer, Layered};
use dafs_wire::nfs4::*;
use dafs_wire::xdr::{Decode, Decoder};
use std::any::Any;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const UNIT: usize = 4096;
const LEN: usize = 37 * UNIT + 100;
const DEVICE: DeviceKey = DeviceKey([9; 16]);
const COMPONENTS: FsId = FsId([8; 16]);

/// The data server of each place. The first data server has two components.
const PATTERN: [u32; 4] = [0, 1, 0, 2];

/// The place of the first stripe.
const FIRST: usize = 3;

/// Returns the component of a place.
fn component(place: usize) -> FileId {
    FileId([place as u8 + 1; FILE_ID_BYTES])
}

/// The store of names and sizes.
struct Names {
    inner: Arc<MemoryStore>,
    servers: Vec<SocketAddr>,
}

impl Layouts for Names {
    fn placement(&self, _: &FileId, _: bool) -> Result<Option<Placement>> {
        let fs = Export::fs_of(&COMPONENTS, "");
        let handle = |place| [&fs.0[..], &component(place).0[..]].concat().into();
        let spread = Spread::Stripes(Stripes {
            device: DEVICE,
            first_place: FIRST as u32,
            unit_bytes: NonZeroU32::new(UNIT as u32).unwrap(),
            packing: Packing::Dense,
            handles: (0..PATTERN.len()).map(handle).collect(),
        });
        Ok(Some(Placement { epoch: 1, spread }))
    }

    fn device(&self, key: &DeviceKey) -> Option<Device> {
        let over_tcp = |address: &SocketAddr| NfsAddresses::over_tcp(vec![*address]);
        let servers = self.servers.iter().map(over_tcp).collect();
        (*key == DEVICE).then_some(Device { pattern: PATTERN.to_vec(), servers })
    }

    fn devices(&self) -> Vec<DeviceKey> {
        vec![DEVICE]
    }

    /// Files have their size before any write.
    fn commit(&self, file: &FileId, end: Option<u64>) -> Result<u64> {
        let size = self.inner.getattr(file)?.size;
        if end.is_some_and(|end| end > size) { Err(StoreError::Invalid) } else { Ok(size) }
    }

    fn recover_size(&self, _: &FileId) -> Result<()> {
        Ok(())
    }

    fn drop_grants(&self, _: &FileId) -> Result<()> {
        Ok(())
    }

    fn take_moved(&self, _: &mut dyn FnMut(FileId)) {}
}

impl Layer for Names {
    fn capabilities(&self, below: Capabilities) -> Capabilities {
        let (layouts, layout_unit_bytes) = (Some(LayoutForm::Stripes), UNIT as u32);
        Capabilities { layouts, layout_unit_bytes, ..below }
    }

    fn layouts(&self) -> Option<&dyn Layouts> {
        Some(self)
    }
}

/// A component.
struct Component {
    id: FileId,
    bytes: Mutex<Vec<u8>>,
    read_bytes: AtomicU64,
    written_bytes: AtomicU64,
}

impl Component {
    fn new(place: usize) -> Arc<Self> {
        let (bytes, read_bytes, written_bytes) = Default::default();
        Arc::new(Self { id: component(place), bytes, read_bytes, written_bytes })
    }
}

impl OpenFile for Component {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn id(&self) -> FileId {
        self.id
    }

    fn read_at(&self, views: &[VolatileSlice<'_>], offset: u64, _: Wait) -> Result<usize> {
        let bytes = self.bytes.lock().unwrap();
        let mut rest = bytes.get(offset as usize..).unwrap_or_default();
        let before = rest.len();
        for view in views {
            let count = view.copy_from(&rest[..rest.len().min(view.len())], Site::Sim);
            rest = &rest[count..];
        }
        let count = before - rest.len();
        self.read_bytes.fetch_add(count as u64, Ordering::SeqCst);
        Ok(count)
    }

    fn write_at(
        &self,
        views: &[VolatileSlice<'_>],
        offset: u64,
        _: Stability,
        _: Wait,
    ) -> Result<usize> {
        let mut bytes = self.bytes.lock().unwrap();
        let mut at = offset as usize;
        for view in views {
            let len = bytes.len().max(at + view.len());
            bytes.resize(len, 0);
            bytes[at..at + view.len()].copy_from_slice(&view.to_vec(Site::Sim));
            at += view.len();
        }
        let count = at - offset as usize;
        self.written_bytes.fetch_add(count as u64, Ordering::SeqCst);
        Ok(count)
    }

    fn commit(&self, _: u64, _: u64) -> Result<()> {
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    /// Attributes of a component. A data server does not know most of them.
    fn attr(&self) -> Result<Attr> {
        let time = TimeSpec::default();
        Ok(Attr {
            kind: Kind::Regular,
            mode: 0,
            links: 1,
            uid: 0,
            gid: 0,
            size: 0,
            space_used: 0,
            file_id: 1,
            raw_device: (0, 0),
            atime: time,
            mtime: time,
            ctime: time,
            btime: None,
            change: 0,
        })
    }
}

impl PartOfFile for Component {}

impl DataFile for Component {
    fn use_begins(&self) -> u64 {
        0
    }

    fn use_ends(&self, _: u64) {}

    fn served_bytes(&self, _: u64, len: usize) -> Result<usize> {
        Ok(len)
    }

    /// At its end a client asks the metadata server.
    fn file_size(&self) -> Result<Option<u64>> {
        Ok(Some(self.bytes.lock().unwrap().len() as u64))
    }
}

/// The components of one data server.
struct Components(Vec<Arc<Component>>);

impl DataFiles for Components {
    fn fs_id(&self) -> FsId {
        COMPONENTS
    }

    fn open(&self, id: &FileId) -> Result<Arc<dyn DataFile>> {
        let found = self.0.iter().find(|component| component.id == *id);
        found.map(|found| found.clone() as Arc<dyn DataFile>).ok_or(StoreError::BadHandle)
    }

    fn indirect_bytes(&self) -> u64 {
        0
    }

    fn space(&self) -> Result<FsStat> {
        Err(StoreError::NotSupported)
    }
}

/// A role whose metadata server checks uses, when there is one.
#[derive(Default)]
struct Judge(Mutex<Option<Arc<Service>>>);

impl ForeignStates for Judge {
    fn check(&self, wanted: &ForeignUse<'_>) -> dafs_service::Result<Option<Duration>> {
        let service = self.0.lock().unwrap().clone().unwrap();
        service.layouts.vouch(wanted)
    }

    fn size(&self, _: &FileId) -> std::result::Result<u64, StoreError> {
        panic!("components know their ends")
    }
}

struct Cluster {
    components: Vec<Arc<Component>>,
    server: Server,
    _data_servers: Vec<Server>,
}

impl Cluster {
    fn start() -> Self {
        let judge = Arc::<Judge>::default();
        let components: Vec<_> = (0..PATTERN.len()).map(Component::new).collect();
        let data_server = |number: u32| {
            let own = components.iter().zip(PATTERN).filter(|(_, server)| *server == number);
            let files = Arc::new(Components(own.map(|(own, _)| own.clone()).collect()));
            Server::start_data_server(DataRole { files, states: judge.clone() })
        };
        let data_servers: Vec<_> = (0..3).map(data_server).collect();
        let servers = data_servers.iter().map(|server| server.address).collect();
        let inner = Arc::new(MemoryStore::new(MemoryOptions::default()));
        let store = Layered::new(inner.clone(), Names { inner, servers });
        let mut config = ServiceConfig::new(Duration::from_secs(60), 7);
        config.grace_time = Duration::ZERO;
        let server = Server::start_over(config, Arc::new(store));
        *judge.0.lock().unwrap() = Some(server.shared.service.clone());
        Self { components, server, _data_servers: data_servers }
    }

    fn mount(&self) -> Mount {
        let url = NfsUrl::parse(&format!("nfs://{}/?vers=4.2", self.server.address)).unwrap();
        let options = MountOptions { retry_timeout: PATIENCE, ..MountOptions::default() };
        Mount::connect(&url, &options).unwrap()
    }

    /// Returns the bytes that the data servers have read and written.
    fn moved_bytes(&self) -> (u64, u64) {
        let sum = |of: fn(&Component) -> &AtomicU64| {
            self.components.iter().map(|component| of(component).load(Ordering::SeqCst)).sum()
        };
        (sum(|of| &of.read_bytes), sum(|of| &of.written_bytes))
    }
}

/// Finds a byte of the file, by RFC 8881 13.4.4: its place in the pattern and the offset there.
fn place_of(offset: usize) -> (usize, usize) {
    let (stripe_unit_number, within) = (offset / UNIT, offset % UNIT);
    let place = (stripe_unit_number + FIRST) % PATTERN.len();
    let relative_offset = stripe_unit_number / PATTERN.len() * UNIT + within;
    (place, relative_offset)
}

#[test]
fn the_server_tells_that_components_have_no_holes_and_what_each_is_called() {
    let cluster = Cluster::start();
    let session = cluster.server.session(b"asks");
    let file = session.create(&session.root().unwrap(), b"f").unwrap();
    let args = LayoutgetArgs {
        signal_available: false,
        layout_type: LAYOUT_FILES,
        io_mode: 2,
        offset: 0,
        length: u64::MAX,
        length_min: UNIT as u64,
        stateid: file.stateid,
        result_bytes_max: 4096,
    };
    let asked = session.call(|compound| {
        let handle = Op::Putfh(PutfhArgs { handle: &file.handle.0 });
        compound.op(&handle).op(&Op::Layoutget(args));
    });
    let mut results = asked.unwrap();
    let body = results.skip(&[OpNum::Putfh]).unwrap().take(OpNum::Layoutget).unwrap();
    let ResultBody::Layoutget(granted) = body else { panic!("{body:?}") };
    let body = granted.layouts[0].content.body;
    let layout = FilesLayout::decode(&mut Decoder::new(body)).unwrap();
    assert_eq!((layout.unit.dense(), layout.unit.unit_bytes()), (true, UNIT as u32));
    assert_eq!((layout.first_stripe_index, layout.handles.len()), (FIRST as u32, PATTERN.len()));
    let names = layout.handles.iter().map(|handle| handle.0[handle.0.len() - 1]);
    assert_eq!(names.collect::<Vec<_>>(), [1, 2, 3, 4], "one for each place of the pattern");
}

#[test]
fn bytes_lie_at_data_servers_where_the_standard_wants_them_densely() {
    let cluster = Cluster::start();
    let mount = cluster.mount();
    let file = mount.open(b"/f", &OpenOptions::read_write().create(Create::New)).unwrap();
    let size = SetAttributes { size: Some(LEN as u64), ..SetAttributes::default() };
    file.set_attributes(&size).unwrap();
    let bytes: Vec<u8> = (0..LEN).map(|at| ((at / 7) ^ (at / UNIT * 31)) as u8).collect();
    let memory = mount.allocate(LEN).unwrap();
    let mut moved_bytes = 0;
    // A read from the middle of a stripe to the end, and then of the whole file.
    for from in [5 * UNIT + 1000, 0] {
        memory.view().copy_from(&bytes, Site::Inspect);
        let piece = memory.slice(from..LEN).unwrap();
        assert_eq!(file.write(piece, from as u64, Stable::Unstable).unwrap().bytes, LEN - from);
        moved_bytes += (LEN - from) as u64;
    }
    file.commit().unwrap();
    assert_eq!(cluster.moved_bytes(), (0, moved_bytes), "none through the metadata server");
    let mut expected = vec![Vec::new(); PATTERN.len()];
    for (offset, &byte) in bytes.iter().enumerate() {
        let (place, at) = place_of(offset);
        let component: &mut Vec<u8> = &mut expected[place];
        component.resize(component.len().max(at + 1), 0);
        component[at] = byte;
    }
    for (place, expected) in expected.iter().enumerate() {
        assert!(*cluster.components[place].bytes.lock().unwrap() == *expected, "place {place}");
    }
    // Another client reads, from an offset within a stripe.
    let other = cluster.mount();
    let file = other.open(b"/f", &OpenOptions::read()).unwrap();
    let memory = other.allocate(LEN).unwrap();
    let mut read_bytes = 0;
    for range in [0..LEN, 3 * UNIT - 10..30 * UNIT + 10, LEN - 50..LEN] {
        let view = memory.slice(range.clone()).unwrap();
        assert_eq!(file.read(view, range.start as u64).unwrap(), range.len());
        let found = memory.view().slice(range.start, range.len()).unwrap().to_vec(Site::Inspect);
        assert!(found == bytes[range.clone()], "{range:?}");
        read_bytes += range.len() as u64;
    }
    assert_eq!(cluster.moved_bytes(), (read_bytes, moved_bytes));
}
