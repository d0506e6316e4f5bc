//! Mounts with layout readers of their own distribute files by drivers that no layout of the server
//! knows: strips of different lengths, and groups within groups.
//!
//! The server keeps three whole copies of each file. The readers take these as the components of
//! one file.

use super::harness::{Bytes, Cluster, PATIENCE, content};
use crate::common::{encoded, filled, new_file, pattern};
use dafs_nfs_client::Handle;
use dafs_nfs_client::mount::layout::{
    AskDevice, Component, LayoutReader, NodeAddress, Spread, UnusableLayout,
};
use dafs_nfs_client::mount::{
    File, Mount, MountOptions, NfsUrl, OpenOptions, SetAttributes, StableHow,
};
use dafs_parallel::aggregation::{Aggregation, Nested, Packing, Striped, Variable};
use dafs_wire::nfs4::{
    DeviceError, FlexDevice, FlexLayout, FlexReturned, LAYOUT_FLEX_FILES, Stateid,
};
use dafs_wire::xdr::{Decode, Decoder};
use std::sync::Arc;
use std::time::{Duration, Instant};

const LEN: usize = 600_000;

/// Reads the layout of copies as that of a file that a driver distributes over them.
#[derive(Debug)]
struct Spreading(Arc<dyn Aggregation>);

impl LayoutReader for Spreading {
    fn layout_type(&self) -> u32 {
        LAYOUT_FLEX_FILES
    }

    fn read(
        &self,
        body: &[u8],
        _: &Handle,
        device: &mut AskDevice<'_>,
    ) -> Result<Spread, UnusableLayout> {
        let layout = FlexLayout::decode(&mut Decoder::new(body))?;
        let component = |copy: &dafs_wire::nfs4::FlexCopy<'_>| {
            let told = device(copy.device)?;
            let told = FlexDevice::decode(&mut Decoder::new(&told))?;
            Ok(Component {
                device: copy.device,
                addresses: NodeAddress::all(&told.server),
                handle: Handle(copy.handles[0].0.to_vec()),
                stateid: Some(copy.stateid),
            })
        };
        let copies = layout.mirrors.iter().flat_map(|mirror| &mirror.servers);
        let mut components = copies.map(component).collect::<Result<Vec<_>, UnusableLayout>>()?;
        components.sort_by(|one, other| one.addresses.cmp(&other.addresses));
        Ok(Spread::new(self.0.clone(), components))
    }

    fn returned(&self, _: Stateid, _: &[DeviceError]) -> Vec<u8> {
        encoded(&FlexReturned { errors: Vec::new(), stats: Vec::new() })
    }
}

fn mount_by(cluster: &Cluster, driver: Arc<dyn Aggregation>) -> Mount {
    let url = NfsUrl::parse(&format!("nfs://{}/?vers=4.2", cluster.address())).unwrap();
    let options = MountOptions {
        retry_timeout: PATIENCE,
        layout_readers: vec![Arc::new(Spreading(driver))],
        ..MountOptions::default()
    };
    Mount::connect(&url, &options).unwrap()
}

/// Makes a file of its full size: the server's size would be wrong when a component is taken for
/// the whole file.
fn create(mount: &Mount) -> File {
    let file = new_file(mount, "/f");
    let size = SetAttributes { size: Some(LEN as u64), ..SetAttributes::default() };
    file.set_attributes(&size).unwrap();
    file
}

/// Mounts by a driver until the mount has a layout of the file. Just after the server has changed
/// all copies itself it may grant none, and a mount does not retry for some time.
fn open_direct(cluster: &Cluster, driver: &Arc<dyn Aggregation>) -> (Mount, File) {
    let end = Instant::now() + PATIENCE;
    loop {
        let mount = mount_by(cluster, driver.clone());
        let file = mount.open(b"/f", &OpenOptions::read_write()).unwrap();
        let before = cluster.server_bytes();
        let first = filled(&mount, &pattern(LEN / 2, 3));
        file.write(first.whole(), 0, StableHow::Unstable).unwrap();
        if cluster.server_bytes().since(before).written == 0 {
            return (mount, file);
        }
        assert!(Instant::now() < end);
        file.close().unwrap();
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Returns some ranges of the file, short ones and ones with many parts.
fn ranges() -> impl Iterator<Item = (usize, usize)> {
    let numbers = pattern(40 * 8, 77);
    let number = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().unwrap()) as usize;
    let ranges: Vec<_> = numbers
        .chunks(8)
        .map(|bytes| {
            let offset = number(&bytes[..4]) % (LEN - 1);
            let most = if bytes[7] % 2 == 0 { 100 } else { 150_000 };
            (offset, (1 + number(&bytes[4..]) % most).min(LEN - offset))
        })
        .collect();
    ranges.into_iter()
}

/// Returns the components of a file.
fn spread(driver: &dyn Aggregation, file: &[u8]) -> Vec<Vec<u8>> {
    let mut components = vec![Vec::new(); driver.components()];
    for part in dafs_parallel::aggregation::parts(driver, 0, 0, file.len() as u64) {
        let (from, at) = (part.file_offset as usize, part.component_offset as usize);
        let component: &mut Vec<u8> = &mut components[part.component];
        let end = at + part.bytes as usize;
        component.resize(component.len().max(end), 0);
        component[at..end].copy_from_slice(&file[from..from + part.bytes as usize]);
    }
    components
}

/// Checks that a driver writes and reads at data servers.
fn goes_by(driver: Arc<dyn Aggregation>) {
    let cluster = Cluster::with_copies(3);
    create(&mount_by(&cluster, driver.clone())).close().unwrap();
    let (mount, file) = open_direct(&cluster, &driver);
    let before = cluster.bytes();
    let mut bytes = pattern(LEN, 1);
    assert_eq!(
        file.write(filled(&mount, &bytes).whole(), 0, StableHow::Unstable).unwrap().bytes,
        LEN
    );
    let mut written_bytes = LEN as u64;
    for (number, (offset, len)) in ranges().enumerate() {
        let piece = pattern(len, 100 + number as u64);
        bytes[offset..offset + len].copy_from_slice(&piece);
        let memory = filled(&mount, &piece);
        let written = file.write(memory.whole(), offset as u64, StableHow::Unstable).unwrap();
        assert_eq!(written.bytes, len);
        written_bytes += len as u64;
    }
    file.commit().unwrap();
    let moved = cluster.since(&before);
    assert_eq!(moved.server, Bytes::default(), "{moved:?}");
    // The distribution of the driver.
    let expected = spread(&*driver, &bytes);
    let mut by_address: Vec<_> = (0..3).map(|at| (cluster.node_address(at), at)).collect();
    by_address.sort_unstable();
    for ((_, at), expected) in by_address.into_iter().zip(&expected) {
        let found = cluster.component_on(at);
        assert!(found[..expected.len()] == expected[..], "data server {at}");
    }
    let mut read_bytes = 0;
    for (offset, len) in ranges() {
        let memory = mount.allocate(len).unwrap();
        assert_eq!(file.read(memory.whole(), offset as u64).unwrap(), len);
        let found = memory.view().to_vec(dafs_mem::Site::Inspect);
        assert!(found == bytes[offset..offset + len], "{len} bytes from {offset} on");
        read_bytes += len as u64;
    }
    let moved = cluster.since(&before);
    assert_eq!(moved.direct(), Bytes { read: read_bytes, written: written_bytes });
    assert_eq!(moved.server, Bytes::default());
}

fn strips(turn: &[(usize, u64)]) -> Arc<dyn Aggregation> {
    Arc::new(Variable::new(turn).unwrap())
}

#[test]
fn strips_of_different_lengths_are_found_by_whoever_knows_them() {
    goes_by(strips(&[(0, 4096), (1, 20_000), (2, 7_000), (0, 9_001)]));
}

#[test]
fn groups_are_spread_in_ways_of_their_own() {
    let two = strips(&[(0, 5_000), (1, 12_000)]);
    let one = Arc::new(Striped::round_robin(8192, 1, 0, Packing::Dense).unwrap());
    goes_by(Arc::new(Nested::new(16 << 10, vec![two, one]).unwrap()));
}

#[test]
fn a_reader_of_no_use_is_done_without() {
    let cluster = Cluster::with_copies(3);
    // There are only three components.
    let mount = mount_by(&cluster, strips(&[(0, 8192), (1, 8192), (2, 8192), (3, 8192)]));
    let file = create(&mount);
    let before = cluster.bytes();
    let bytes = pattern(LEN, 2);
    file.write(filled(&mount, &bytes).whole(), 0, StableHow::Unstable).unwrap();
    file.commit().unwrap();
    assert!(content(&file, LEN) == bytes);
    let moved = cluster.since(&before);
    assert_eq!(moved.direct(), Bytes::default(), "{moved:?}");
    assert_eq!(moved.server, Bytes::both(LEN));
    file.close().unwrap();
    // A client without such a reader finds the same, as copies.
    let other = cluster.mount();
    let file = other.open(b"/f", &OpenOptions::read()).unwrap();
    assert!(content(&file, LEN) == bytes);
}
