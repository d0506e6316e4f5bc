//! Metadata servers with invalid layouts: the client reads and writes files through them, and
//! limits its requests for layouts.

use super::harness::{Bytes, Cluster, UNIT, content, mount};
use super::tamper::{Lies, Tamper};
use crate::common::{encoded, filled, new_file, pattern};
use dafs_nfs_client::mount::StableHow;
use dafs_wire::nfs4::*;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Encodes the result of a LAYOUTGET with a layout of this type and body for a range.
fn granted(layout_type: u32, body: &[u8], (offset, length): (u64, u64)) -> Vec<u8> {
    let content = LayoutBody { layout_type, body };
    let layout = Layout { offset, length, io_mode: 2, content };
    let stateid = Stateid { seqid: 1, other: [9; 12] };
    encoded(&LayoutgetResult { return_on_close: true, stateid, layouts: vec![layout] })
}

const WHOLE: (u64, u64) = (0, u64::MAX);

fn files(unit: u32, first: u32) -> FilesLayout<'static> {
    FilesLayout {
        device: DeviceId([7; 16]),
        unit: StripeUnit(unit),
        first_stripe_index: first,
        pattern_offset: 0,
        handles: Vec::new(),
    }
}

fn device(layout_type: u32, body: &[u8]) -> Vec<u8> {
    let address = LayoutBody { layout_type, body };
    let notifications = Bitmap::of(&[NOTIFY_DEVICE_CHANGE, NOTIFY_DEVICE_DELETE]);
    encoded(&GetdeviceinfoResult { address, notifications })
}

const NOBODY: NetworkAddress<'static> =
    NetworkAddress { network: b"tcp", address: b"127.0.0.1.0.1" };

fn servers(indices: &[u32], count: usize) -> Vec<u8> {
    let servers = vec![DataServer(vec![NOBODY]); count];
    device(LAYOUT_FILES, &encoded(&FilesDevice { stripe_indices: indices.to_vec(), servers }))
}

/// The false answer.
#[derive(Default)]
struct Lie {
    /// The number of layouts that are refused before one is granted.
    refusals: AtomicUsize,
    layout: Option<Vec<u8>>,
    device: Option<Vec<u8>>,
    types: Option<Vec<u32>>,
}

impl Lies for Lie {
    fn layout(&self, _: &ResultBody<'_>) -> Option<Result<Vec<u8>, Status>> {
        let one_less = |left: usize| left.checked_sub(1);
        match self.refusals.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less) {
            Ok(_) => Some(Err(Status::UnknownLayoutType)),
            Err(_) => self.layout.clone().map(Ok),
        }
    }

    fn device(&self) -> Option<Result<Vec<u8>, Status>> {
        self.device.clone().map(Ok)
    }

    fn types(&self) -> Option<Vec<u32>> {
        self.types.clone()
    }
}

/// Writes and reads through a server with false answers. Returns the numbers of requests for
/// layouts and devices.
fn used(cluster: &Cluster, name: &str, lie: Lie) -> (usize, usize) {
    let tamper = Tamper::new(cluster.address(), lie);
    let mount = mount(tamper.address, "", true);
    let before = cluster.bytes();
    let file = new_file(&mount, name);
    let bytes = pattern(40 * UNIT, 1);
    let memory = filled(&mount, &bytes);
    for _ in 0..10 {
        let written = file.write(memory.whole(), 0, StableHow::Unstable).unwrap();
        assert_eq!((written.bytes, file.commit().unwrap()), (bytes.len(), written.verifier));
        assert!(content(&file, bytes.len()) == bytes, "{name}");
    }
    file.close().unwrap();
    let moved = cluster.since(&before);
    assert_eq!(moved.direct(), Bytes::default(), "{name}: {moved:?}");
    (tamper.layouts(), tamper.devices())
}

#[test]
fn layouts_that_make_no_sense_are_done_without() {
    let cluster = Cluster::new();
    let good = || Some(granted(LAYOUT_FILES, &encoded(&files(4096, 0)), WHOLE));
    let layout = |unit, first| Some(granted(LAYOUT_FILES, &encoded(&files(unit, first)), WHOLE));
    let (three, none) = (|| Some(servers(&[0, 1, 2], 3)), Lie::default);
    for (name, lie, asked) in [
        ("/short", Lie { layout: layout(64, 0), device: three(), ..none() }, (1, 0)),
        ("/nothing", Lie { layout: layout(0, 0), device: three(), ..none() }, (1, 0)),
        ("/first", Lie { layout: layout(4096, 3), device: three(), ..none() }, (1, 1)),
        ("/empty", Lie { layout: good(), device: Some(servers(&[0], 0)), ..none() }, (1, 1)),
        ("/outside", Lie { layout: good(), device: Some(servers(&[0, 4], 3)), ..none() }, (1, 1)),
        ("/pattern", Lie { layout: good(), device: Some(servers(&[], 3)), ..none() }, (1, 1)),
        ("/cut", Lie { layout: Some(granted(LAYOUT_FILES, &[0; 9], WHOLE)), ..none() }, (1, 0)),
        ("/other", Lie { layout: Some(granted(99, &[0; 99], WHOLE)), ..none() }, (1, 0)),
    ] {
        assert_eq!(used(&cluster, name, lie), asked, "{name}");
    }
}

#[test]
fn layouts_of_short_ranges_are_not_asked_for_without_end() {
    let cluster = Cluster::new();
    let lie = |range| Lie {
        layout: Some(granted(LAYOUT_FILES, &encoded(&files(4096, 0)), range)),
        device: Some(servers(&[0, 1, 2], 3)),
        ..Lie::default()
    };
    assert_eq!(used(&cluster, "/nothing", lie((0, 0))), (1, 0));
    assert_eq!(used(&cluster, "/beyond", lie((1, u64::MAX - 1))), (1, 0));
    // There is a layout, and it does not cover the read and written bytes.
    assert_eq!(used(&cluster, "/short", lie((0, 4096))), (1, 1));
}

#[test]
fn copies_that_are_one_are_not_written_twice() {
    let cluster = Cluster::new();
    let copy = |handle: &'static [u8]| FlexCopy {
        device: DeviceId([7; 16]),
        efficiency: 1,
        stateid: Stateid { seqid: 0, other: [9; 12] },
        handles: vec![ComponentHandle(handle)],
        user: b"1",
        group: b"1",
    };
    let flex = |handles: &[&'static [u8]]| {
        let mirror = |handle: &&'static [u8]| FlexMirror { servers: vec![copy(handle)] };
        let mirrors = handles.iter().map(mirror).collect();
        let layout = FlexLayout { stripe_unit_bytes: 0, mirrors, flags: 0, stats_hint_seconds: 0 };
        granted(LAYOUT_FLEX_FILES, &encoded(&layout), WHOLE)
    };
    let version = FlexVersion {
        version: 4,
        minor_version: 1,
        read_bytes_max: 1 << 20,
        write_bytes_max: 1 << 20,
        tightly_coupled: true,
    };
    let body = encoded(&FlexDevice { server: DataServer(vec![NOBODY]), versions: vec![version] });
    let device = Some(device(LAYOUT_FLEX_FILES, &body));
    let lie = |handles| Lie {
        refusals: AtomicUsize::new(1),
        layout: Some(flex(handles)),
        device: device.clone(),
        types: Some(vec![LAYOUT_FLEX_FILES]),
    };
    // The files layout is refused, so the client requests the file system's other layout type.
    assert_eq!(used(&cluster, "/one", lie(&[b"a", b"a"])), (2, 1));
    assert_eq!(used(&cluster, "/none", lie(&[])), (2, 0));
}

#[test]
fn data_servers_that_are_not_there_cost_little() {
    let cluster = Cluster::new();
    let layout = Some(granted(LAYOUT_FILES, &encoded(&files(4096, 0)), WHOLE));
    let lie = Lie { layout, device: Some(servers(&[0, 1, 2], 3)), ..Lie::default() };
    let begun = std::time::Instant::now();
    let (layouts, devices) = used(&cluster, "/f", lie);
    // At most one request after each pause.
    let pauses = 2 * begun.elapsed().as_secs() as usize + 2;
    assert!(layouts <= 2 * pauses && devices == 1, "{layouts} {devices}");
}
