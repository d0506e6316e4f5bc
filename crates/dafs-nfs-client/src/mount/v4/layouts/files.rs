//! The files layout (RFC 8881 13): stripes in a pattern that repeats.

use super::plan::{LayoutReader, Place, Plan, Unusable, addresses, check_apart};
use crate::files::Handle;
use crate::mount::limits::TRANSFER_BYTES_MAX;
use dafs_layout::{Aggregation, Packing, Striped};
use dafs_parallel::limits::STRIPE_BYTES_MIN;
use dafs_wire::nfs4::{DeviceError, DeviceId, FilesDevice, FilesLayout, LAYOUT_FILES, Stateid};
use dafs_wire::xdr::{Decode, Decoder};
use std::sync::Arc;

#[derive(Debug)]
pub(super) struct FilesReader;

impl LayoutReader for FilesReader {
    fn layout_type(&self) -> u32 {
        LAYOUT_FILES
    }

    fn plan(
        &self,
        body: &[u8],
        file: &Handle,
        device: &mut dyn FnMut(DeviceId) -> Result<Arc<[u8]>, Unusable>,
    ) -> Result<Plan, Unusable> {
        let layout = FilesLayout::decode(&mut Decoder::new(body))?;
        let unit_bytes = u64::from(layout.unit.unit_bytes());
        if unit_bytes < STRIPE_BYTES_MIN {
            return Err(Unusable::Unit(unit_bytes));
        }
        if layout.pattern_offset != 0 {
            return Err(Unusable::PatternOffset);
        }
        let told = device(layout.device)?;
        let FilesDevice { stripe_indices, servers } =
            FilesDevice::decode(&mut Decoder::new(&told))?;
        let packing = if layout.unit.dense() { Packing::Dense } else { Packing::Sparse };
        let first = layout.first_stripe_index as usize;
        let driver =
            Striped::cyclic(unit_bytes, stripe_indices.into(), servers.len(), first, packing)?;
        let servers = servers.iter().map(addresses).collect::<Result<Vec<_>, _>>()?;
        let components = driver.components();
        // What the file is called there (RFC 8881 13.3).
        let name = |component: usize| match (packing, &layout.handles[..]) {
            (Packing::Sparse, []) => Ok(file.clone()),
            (Packing::Sparse, [one]) => Ok(Handle(one.0.to_vec())),
            (_, all) if all.len() == components => Ok(Handle(all[component].0.to_vec())),
            _ => Err(Unusable::Component),
        };
        let place = |component: usize| {
            let addresses = servers[driver.server(component)].clone();
            let handle = name(component)?;
            Ok(Place { device: layout.device, addresses, handle, stateid: None })
        };
        let places = (0..components).map(place).collect::<Result<Vec<_>, Unusable>>()?;
        if packing == Packing::Dense {
            check_apart(&places)?;
        }
        Ok(Plan {
            driver: Arc::new(driver),
            places,
            preferred: vec![0],
            commits_at_server: layout.unit.commits_through_mds(),
            is_told: true,
            read_bytes_max: TRANSFER_BYTES_MAX,
            write_bytes_max: TRANSFER_BYTES_MAX,
        })
    }

    fn returned(&self, _: Stateid, _: &[DeviceError]) -> Vec<u8> {
        Vec::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dafs_layout::LayoutError;
    use dafs_wire::nfs4::{ComponentHandle, DataServer, NetworkAddress, StripeUnit};
    use dafs_wire::xdr::Encode;

    fn encoded(value: &impl Encode) -> Vec<u8> {
        let mut bytes = Vec::new();
        value.encode(&mut dafs_wire::xdr::Encoder::new(&mut bytes));
        bytes
    }

    fn layout(unit: StripeUnit, handles: &[&'static [u8]]) -> FilesLayout<'static> {
        let handles = handles.iter().map(|handle| ComponentHandle(handle)).collect();
        let device = DeviceId([1; 16]);
        FilesLayout { device, unit, first_stripe_index: 1, pattern_offset: 0, handles }
    }

    fn device(indices: &[u32], servers: &[&'static [u8]]) -> FilesDevice<'static> {
        let server = |address: &&'static [u8]| match address.is_empty() {
            true => DataServer(Vec::new()),
            false => DataServer(vec![NetworkAddress { network: b"tcp", address }]),
        };
        let servers = servers.iter().map(server).collect();
        FilesDevice { stripe_indices: indices.to_vec(), servers }
    }

    fn plan(layout: &FilesLayout<'_>, device: &FilesDevice<'_>) -> Result<Plan, Unusable> {
        let told: Arc<[u8]> = encoded(device).into();
        let file = Handle(b"file".to_vec());
        FilesReader.plan(&encoded(layout), &file, &mut |_| Ok(told.clone()))
    }

    const THREE: [&[u8]; 3] = [b"10.0.0.1.8.1", b"10.0.0.2.8.1", b"10.0.0.3.8.1"];
    const SPARSE: StripeUnit = StripeUnit(65536);
    const DENSE: StripeUnit = StripeUnit(65536 | 1);

    #[test]
    fn places_are_named_as_the_standard_says() {
        let device = device(&[0, 1, 2], &THREE);
        let names = |handles: &[&'static [u8]], unit| {
            let plan = plan(&layout(unit, handles), &device)?;
            Ok(plan.places.into_iter().map(|place| place.handle.0).collect::<Vec<_>>())
        };
        assert_eq!(names(&[], SPARSE).unwrap(), [b"file"; 3]);
        assert_eq!(names(&[b"one"], SPARSE).unwrap(), [b"one"; 3]);
        assert_eq!(names(&[b"a", b"b", b"c"], SPARSE).unwrap(), [b"a", b"b", b"c"]);
        assert_eq!(names(&[b"a", b"b", b"c"], DENSE).unwrap(), [b"a", b"b", b"c"]);
        let few: Result<_, Unusable> = names(&[b"a", b"b"], SPARSE);
        assert!(matches!(few, Err(Unusable::Component)));
        assert!(matches!(names(&[b"a"], DENSE), Err(Unusable::Component)));
        assert!(matches!(names(&[], DENSE), Err(Unusable::Component)));
    }

    #[test]
    fn bytes_are_found_where_the_pattern_begins() {
        let plan = plan(&layout(SPARSE, &[]), &device(&[0, 1, 2], &THREE)).unwrap();
        let at = |offset| plan.driver.locate(offset, 0).component;
        assert_eq!([at(0), at(65536), at(2 * 65536), at(3 * 65536)], [1, 2, 0, 1]);
        assert_eq!(plan.places[2].addresses[0].socket.to_string(), "10.0.0.3:2049");
    }

    #[test]
    fn what_cannot_be_is_refused_with_its_reason() {
        let good = device(&[0, 1, 2], &THREE);
        let short = plan(&layout(StripeUnit(64), &[]), &good);
        assert!(matches!(short, Err(Unusable::Unit(64))), "{short:?}");
        let none = plan(&layout(StripeUnit(0), &[]), &good);
        assert!(matches!(none, Err(Unusable::Unit(0))));
        let nobody = plan(&layout(SPARSE, &[]), &device(&[0], &[]));
        assert!(matches!(nobody, Err(Unusable::Spread(LayoutError::Components))));
        let no_pattern = plan(&layout(SPARSE, &[]), &device(&[], &THREE));
        assert!(matches!(no_pattern, Err(Unusable::Spread(LayoutError::Components))));
        let outside = plan(&layout(SPARSE, &[]), &device(&[0, 3], &THREE));
        assert!(matches!(outside, Err(Unusable::Spread(LayoutError::Pattern))));
        let first = FilesLayout { first_stripe_index: 3, ..layout(SPARSE, &[]) };
        assert!(matches!(plan(&first, &good), Err(Unusable::Spread(LayoutError::Pattern))));
        let later = FilesLayout { pattern_offset: 65536, ..layout(SPARSE, &[]) };
        assert!(matches!(plan(&later, &good), Err(Unusable::PatternOffset)));
        let nowhere = plan(&layout(SPARSE, &[]), &device(&[0, 1], &[THREE[0], b""]));
        assert!(matches!(nowhere, Err(Unusable::Address)));
        let twice = device(&[0, 0, 1], &THREE);
        let same = plan(&layout(DENSE, &[b"a", b"a", b"b"]), &twice);
        assert!(matches!(same, Err(Unusable::Overlap)));
        assert!(plan(&layout(DENSE, &[b"a", b"b", b"a"]), &twice).is_ok());
        let cut = FilesReader.plan(&[0; 10], &Handle(vec![]), &mut |_| Err(Unusable::Devices));
        assert!(matches!(cut, Err(Unusable::Malformed(_))));
    }
}
