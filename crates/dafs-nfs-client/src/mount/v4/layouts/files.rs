//! The files layout (RFC 8881 13): stripes in a repeated pattern.

use crate::files::Handle;
use crate::mount::layout::{
    AskDevice, Component, LayoutReader, NodeAddress, Spread, UnusableLayout,
};
use dafs_parallel::aggregation::{Aggregation, Packing, Striped};
use dafs_parallel::limits::STRIPE_BYTES_MIN;
use dafs_wire::nfs4::{FilesDevice, FilesLayout, LAYOUT_FILES};
use dafs_wire::xdr::{Decode, Decoder};
use std::sync::Arc;

#[derive(Debug)]
pub(super) struct FilesReader;

impl LayoutReader for FilesReader {
    fn layout_type(&self) -> u32 {
        LAYOUT_FILES
    }

    fn read(
        &self,
        body: &[u8],
        file: &Handle,
        device: &mut AskDevice<'_>,
    ) -> Result<Spread, UnusableLayout> {
        let layout = FilesLayout::decode(&mut Decoder::new(body))?;
        let unit_bytes = u64::from(layout.unit.unit_bytes());
        if unit_bytes < STRIPE_BYTES_MIN {
            return Err(UnusableLayout::Unit(unit_bytes));
        }
        if layout.pattern_offset != 0 {
            return Err(UnusableLayout::PatternOffset);
        }
        let told = device(layout.device)?;
        let FilesDevice { stripe_indices, servers } =
            FilesDevice::decode(&mut Decoder::new(&told))?;
        let packing = if layout.unit.dense() { Packing::Dense } else { Packing::Sparse };
        let first = layout.first_stripe_index as usize;
        let pattern: Arc<[u32]> = stripe_indices.into();
        let mut driver =
            Striped::cyclic(unit_bytes, pattern.clone(), servers.len(), first, packing)?;
        // The handle of the file at the data server (RFC 8881 13.3).
        let name = |component: usize| match (packing, &layout.handles[..]) {
            (Packing::Sparse, []) => Ok(file.clone()),
            (Packing::Sparse, [one]) => Ok(Handle(one.0.to_vec())),
            (_, all) if all.len() == driver.components() => Ok(Handle(all[component].0.to_vec())),
            _ => Err(UnusableLayout::Component),
        };
        let component = |component: usize| {
            let addresses = NodeAddress::all(&servers[driver.server(component)]);
            let handle = name(component)?;
            Ok(Component { device: layout.device, addresses, handle, stateid: None })
        };
        let components = (0..driver.components()).map(component);
        let mut components = components.collect::<Result<Vec<_>, UnusableLayout>>()?;
        if packing == Packing::Sparse {
            let (folded, apart) = fold(&pattern, components);
            driver = Striped::cyclic(unit_bytes, folded, apart.len(), first, packing)?;
            components = apart;
        }
        let commits_at_server = layout.unit.commits_through_mds();
        Ok(Spread { commits_at_server, ..Spread::new(Arc::new(driver), components) })
    }
}

/// Merges entries of one data server with the same handle into one component. With sparse packing,
/// different bytes of the file lie at different offsets of it.
fn fold(pattern: &[u32], components: Vec<Component>) -> (Arc<[u32]>, Vec<Component>) {
    let mut apart: Vec<Component> = Vec::with_capacity(components.len());
    let mut known = Vec::with_capacity(components.len());
    for component in components {
        let at = apart.iter().position(|other| *other == component).unwrap_or(apart.len());
        if at == apart.len() {
            apart.push(component);
        }
        // INVARIANT: components are no more than servers, whose numbers fit into patterns.
        known.push(at as u32);
    }
    (pattern.iter().map(|&server| known[server as usize]).collect(), apart)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mount::v4::layouts::plan::{Plan, plan as planned};
    use dafs_parallel::aggregation::LayoutError;
    use dafs_wire::nfs4::{ComponentHandle, DataServer, DeviceId, NetworkAddress, StripeUnit};
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

    fn plan(layout: &FilesLayout<'_>, device: &FilesDevice<'_>) -> Result<Plan, UnusableLayout> {
        let told: Arc<[u8]> = encoded(device).into();
        let file = Handle(b"file".to_vec());
        planned(&FilesReader, &encoded(layout), &file, &mut |_| Ok(told.clone()))
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
        let few: Result<_, UnusableLayout> = names(&[b"a", b"b"], SPARSE);
        assert!(matches!(few, Err(UnusableLayout::Component)));
        assert!(matches!(names(&[b"a"], DENSE), Err(UnusableLayout::Component)));
        assert!(matches!(names(&[], DENSE), Err(UnusableLayout::Component)));
    }

    #[test]
    fn bytes_are_found_where_the_pattern_begins() {
        let plan = plan(&layout(SPARSE, &[]), &device(&[0, 1, 2], &THREE)).unwrap();
        let at = |offset| plan.driver.locate(offset, 0).component;
        assert_eq!([at(0), at(65536), at(2 * 65536), at(3 * 65536)], [1, 2, 0, 1]);
        assert_eq!(plan.places[2].addresses[0].socket.to_string(), "10.0.0.3:2049");
    }

    #[test]
    fn an_impossible_layout_is_refused_with_its_reason() {
        let good = device(&[0, 1, 2], &THREE);
        let short = plan(&layout(StripeUnit(64), &[]), &good);
        assert!(matches!(short, Err(UnusableLayout::Unit(64))), "{short:?}");
        let none = plan(&layout(StripeUnit(0), &[]), &good);
        assert!(matches!(none, Err(UnusableLayout::Unit(0))));
        let nobody = plan(&layout(SPARSE, &[]), &device(&[0], &[]));
        assert!(matches!(nobody, Err(UnusableLayout::Spread(LayoutError::Components))));
        let no_pattern = plan(&layout(SPARSE, &[]), &device(&[], &THREE));
        assert!(matches!(no_pattern, Err(UnusableLayout::Spread(LayoutError::Components))));
        let outside = plan(&layout(SPARSE, &[]), &device(&[0, 3], &THREE));
        assert!(matches!(outside, Err(UnusableLayout::Spread(LayoutError::Pattern))));
        let first = FilesLayout { first_stripe_index: 3, ..layout(SPARSE, &[]) };
        assert!(matches!(plan(&first, &good), Err(UnusableLayout::Spread(LayoutError::Pattern))));
        let later = FilesLayout { pattern_offset: 65536, ..layout(SPARSE, &[]) };
        assert!(matches!(plan(&later, &good), Err(UnusableLayout::PatternOffset)));
        let nowhere = plan(&layout(SPARSE, &[]), &device(&[0, 1], &[THREE[0], b""]));
        assert!(matches!(nowhere, Err(UnusableLayout::Address)));
        let twice = device(&[0, 0, 1], &THREE);
        let same = plan(&layout(DENSE, &[b"a", b"a", b"b"]), &twice);
        assert!(matches!(same, Err(UnusableLayout::Overlap)));
        assert!(plan(&layout(DENSE, &[b"a", b"b", b"a"]), &twice).is_ok());
        let no_device = &mut |_| Err(UnusableLayout::Devices);
        let cut = planned(&FilesReader, &[0; 10], &Handle(vec![]), no_device);
        assert!(matches!(cut, Err(UnusableLayout::Malformed(_))));
    }

    #[test]
    fn a_data_server_that_is_named_twice_has_one_component_of_a_sparse_file() {
        let device = device(&[0, 1, 2], &[THREE[0], THREE[1], THREE[0]]);
        let one = plan(&layout(SPARSE, &[]), &device).unwrap();
        let at = |plan: &Plan, stripe: u64| plan.driver.locate(stripe * 65536, 0).component;
        assert_eq!(
            (one.places.len(), [0, 1, 2, 3].map(|stripe| at(&one, stripe))),
            (2, [1, 0, 0, 1])
        );
        assert_eq!(one.driver.locate(2 * 65536, 0).offset, 2 * 65536);
        let names = plan(&layout(SPARSE, &[b"a", b"b", b"c"]), &device).unwrap();
        assert_eq!((names.places.len(), at(&names, 1)), (3, 2), "it has two files");
    }
}
