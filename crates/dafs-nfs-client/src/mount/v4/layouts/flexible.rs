//! The flexible file layout (RFC 8435): copies of a file, each in stripes or whole. The client uses
//! only tightly coupled data servers, which accept state-ids of the metadata server. With others it
//! would need a different user for each mode of access.

use crate::files::Handle;
use crate::mount::layout::{
    AskDevice, Component, LayoutReader, NodeAddress, Spread, UnusableLayout,
};
use crate::mount::limits::TRANSFER_BYTES_MIN;
use dafs_parallel::aggregation::{Aggregation, Packing, Replicated, Striped, UNIT_BYTES_MAX};
use dafs_parallel::limits::STRIPE_BYTES_MIN;
use dafs_wire::nfs4::{
    DeviceError, FlexCopy, FlexDevice, FlexError, FlexLayout, FlexMirror, FlexReturned,
    LAYOUT_FLEX_FILES, Stateid,
};
use dafs_wire::xdr::{Decode, Decoder, Encode, Encoder};
use rustc_hash::FxHashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

/// Writes need no LAYOUTCOMMIT (`FF_FLAGS_NO_LAYOUTCOMMIT`).
const NO_LAYOUTCOMMIT: u32 = 1;

#[derive(Debug)]
pub(super) struct FlexibleReader;

/// A data server as its device describes it.
#[derive(Debug, Clone)]
struct Known {
    addresses: Vec<NodeAddress>,
    /// The index of the version in use.
    version: usize,
    read_bytes_max: u32,
    write_bytes_max: u32,
}

impl Known {
    fn read(told: &[u8]) -> Result<Self, UnusableLayout> {
        let device = FlexDevice::decode(&mut Decoder::new(told))?;
        let is_spoken = |version: &dafs_wire::nfs4::FlexVersion| {
            version.version == 4
                && matches!(version.minor_version, 1 | 2)
                && version.tightly_coupled
                && version.read_bytes_max.min(version.write_bytes_max) >= TRANSFER_BYTES_MIN
        };
        let version = device.versions.iter().position(is_spoken).ok_or(UnusableLayout::Version)?;
        let spoken = device.versions[version];
        Ok(Self {
            addresses: NodeAddress::all(&device.server),
            version,
            read_bytes_max: spoken.read_bytes_max,
            write_bytes_max: spoken.write_bytes_max,
        })
    }
}

impl LayoutReader for FlexibleReader {
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
        let mut known: FxHashMap<[u8; 16], Known> = FxHashMap::default();
        let copies = layout.mirrors.iter().flat_map(|mirror| &mirror.servers);
        for copy in copies.clone() {
            if let Entry::Vacant(unknown) = known.entry(copy.device.0) {
                unknown.insert(Known::read(&device(copy.device)?)?);
            }
        }
        let components = copies.map(|copy| component(copy, &known[&copy.device.0]));
        let components = components.collect::<Result<Vec<_>, _>>()?;
        let mirrors = layout.mirrors.iter().map(|mirror| spread(layout.stripe_unit_bytes, mirror));
        let driver = Replicated::new(mirrors.collect::<Result<Vec<_>, _>>()?)?;
        let least = |of: fn(&Known) -> u32| known.values().map(of).min().unwrap_or(0);
        Ok(Spread {
            driver: Arc::new(driver),
            components,
            preferred_copies: preferred(&layout.mirrors),
            commits_at_server: false,
            needs_layout_commit: layout.flags & NO_LAYOUTCOMMIT == 0,
            read_bytes_max: least(|known| known.read_bytes_max),
            write_bytes_max: least(|known| known.write_bytes_max),
        })
    }

    fn returned(&self, stateid: Stateid, errors: &[DeviceError]) -> Vec<u8> {
        let errors = match errors {
            [] => Vec::new(),
            errors => {
                vec![FlexError { offset: 0, length: u64::MAX, stateid, errors: errors.to_vec() }]
            }
        };
        let mut bytes = Vec::new();
        let returned = FlexReturned { errors, stats: Vec::new() };
        returned.encode(&mut Encoder::new(&mut bytes));
        bytes
    }
}

fn component(copy: &FlexCopy<'_>, known: &Known) -> Result<Component, UnusableLayout> {
    // There is a handle for each version that the data server speaks, or one for all.
    let handle = match &copy.handles[..] {
        [one] => Some(one),
        all => all.get(known.version),
    };
    let handle = Handle(handle.ok_or(UnusableLayout::Component)?.0.to_vec());
    let addresses = known.addresses.clone();
    Ok(Component { device: copy.device, addresses, handle, stateid: Some(copy.stateid) })
}

/// Returns the mapping of a copy: always sparse (RFC 8435 6).
fn spread(
    unit_bytes: u64,
    mirror: &FlexMirror<'_>,
) -> Result<Arc<dyn Aggregation>, UnusableLayout> {
    let servers = mirror.servers.len();
    let unit_bytes = match servers {
        1 => UNIT_BYTES_MAX,
        _ if unit_bytes < STRIPE_BYTES_MIN => return Err(UnusableLayout::Unit(unit_bytes)),
        _ => unit_bytes,
    };
    Ok(Arc::new(Striped::round_robin(unit_bytes, servers, 0, Packing::Sparse)?))
}

/// Returns the copies that the server prefers for reads.
fn preferred(mirrors: &[FlexMirror<'_>]) -> Vec<usize> {
    let worth = |mirror: &FlexMirror<'_>| mirror.servers.iter().map(|copy| copy.efficiency).min();
    let best = mirrors.iter().map(worth).max().flatten();
    let numbered = mirrors.iter().enumerate();
    numbered.filter(|(_, mirror)| worth(mirror) == best).map(|(copy, _)| copy).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mount::limits::LAYOUT_DEVICES_MAX;
    use crate::mount::v4::layouts::plan::{Plan, plan as planned};
    use dafs_parallel::aggregation::LayoutError;
    use dafs_wire::nfs4::{ComponentHandle, DataServer, DeviceId, FlexVersion, NetworkAddress};

    const VERSION: FlexVersion = FlexVersion {
        version: 4,
        minor_version: 1,
        read_bytes_max: 1 << 20,
        write_bytes_max: 1 << 19,
        tightly_coupled: true,
    };

    fn encoded(value: &impl Encode) -> Vec<u8> {
        let mut bytes = Vec::new();
        value.encode(&mut Encoder::new(&mut bytes));
        bytes
    }

    fn copy(device: u8, efficiency: u32, handle: &'static [u8]) -> FlexCopy<'static> {
        FlexCopy {
            device: DeviceId([device; 16]),
            efficiency,
            stateid: Stateid { seqid: 0, other: [7; 12] },
            handles: vec![ComponentHandle(handle)],
            user: b"1",
            group: b"1",
        }
    }

    fn layout(unit: u64, mirrors: &[&[FlexCopy<'static>]]) -> FlexLayout<'static> {
        let mirror = |servers: &&[FlexCopy<'static>]| FlexMirror { servers: servers.to_vec() };
        let mirrors = mirrors.iter().map(mirror).collect();
        FlexLayout { stripe_unit_bytes: unit, mirrors, flags: 0, stats_hint_seconds: 0 }
    }

    /// Makes a plan of a layout, whose devices have the addresses of their numbers.
    fn plan_with(
        layout: &FlexLayout<'_>,
        versions: &[FlexVersion],
    ) -> Result<Plan, UnusableLayout> {
        let mut device = |id: DeviceId| {
            let text = format!("10.0.0.{}.8.1", id.0[0]);
            let address = NetworkAddress { network: b"tcp", address: text.as_bytes() };
            let server = DataServer(vec![address]);
            Ok(encoded(&FlexDevice { server, versions: versions.to_vec() }).into())
        };
        planned(&FlexibleReader, &encoded(layout), &Handle(vec![]), &mut device)
    }

    fn plan(layout: &FlexLayout<'_>) -> Result<Plan, UnusableLayout> {
        plan_with(layout, &[VERSION])
    }

    #[test]
    fn copies_are_whole_or_striped_and_the_best_are_read() {
        let whole = plan(&layout(0, &[&[copy(1, 1, b"a")], &[copy(2, 9, b"a")]])).unwrap();
        assert_eq!((whole.driver.copies(), whole.driver.components()), (2, 2));
        assert_eq!((whole.preferred, whole.read_bytes_max), (vec![1], 1 << 20));
        assert_eq!(whole.write_bytes_max, 1 << 19);
        assert_eq!(whole.places[1].addresses[0].socket.to_string(), "10.0.0.2:2049");
        let first = [copy(1, 1, b"a"), copy(2, 1, b"a")];
        let second = [copy(3, 1, b"a"), copy(4, 1, b"a")];
        let striped = plan(&layout(8192, &[&first, &second])).unwrap();
        let at = |offset, copy| striped.driver.locate(offset, copy).component;
        assert_eq!([at(0, 0), at(8192, 0), at(0, 1), at(8192, 1)], [0, 1, 2, 3]);
        assert_eq!(striped.preferred, [0, 1]);
    }

    #[test]
    fn an_impossible_layout_is_refused_with_its_reason() {
        let same = plan(&layout(0, &[&[copy(1, 1, b"a")], &[copy(1, 1, b"a")]]));
        assert!(matches!(same, Err(UnusableLayout::Overlap)));
        assert!(plan(&layout(0, &[&[copy(1, 1, b"a")], &[copy(1, 1, b"b")]])).is_ok());
        let none = plan(&layout(0, &[]));
        assert!(matches!(none, Err(UnusableLayout::Spread(LayoutError::Copies))));
        let empty = plan(&layout(0, &[&[]]));
        assert!(matches!(empty, Err(UnusableLayout::Unit(0))), "{empty:?}");
        let short = plan(&layout(64, &[&[copy(1, 1, b"a"), copy(2, 1, b"a")]]));
        assert!(matches!(short, Err(UnusableLayout::Unit(64))));
        let nameless = FlexCopy { handles: vec![], ..copy(1, 1, b"a") };
        let nameless = plan(&layout(0, &[&[nameless]]));
        assert!(matches!(nameless, Err(UnusableLayout::Component)));
        for version in [
            FlexVersion { tightly_coupled: false, ..VERSION },
            FlexVersion { version: 3, minor_version: 0, ..VERSION },
            FlexVersion { read_bytes_max: 0, ..VERSION },
        ] {
            let unknown = plan_with(&layout(0, &[&[copy(1, 1, b"a")]]), &[version]);
            assert!(matches!(unknown, Err(UnusableLayout::Version)));
        }
        let many: Vec<_> = (0..=LAYOUT_DEVICES_MAX as u8).map(|at| copy(at, 1, b"a")).collect();
        assert!(matches!(plan(&layout(8192, &[&many])), Err(UnusableLayout::Devices)));
    }

    #[test]
    fn errors_go_with_a_return() {
        let error = DeviceError {
            device_id: DeviceId([1; 16]),
            status: dafs_wire::nfs4::Status::Nxio,
            op: 38,
        };
        let stateid = Stateid { seqid: 3, other: [7; 12] };
        let bytes = FlexibleReader.returned(stateid, &[error]);
        let read = FlexReturned::decode(&mut Decoder::new(&bytes)).unwrap();
        assert_eq!(read.errors[0].errors, [error]);
    }
}
