//! Conversion of a layout and its devices into a plan.
//!
//! Invariants
//! * A plan names a data server with at least one address for each component of its driver.
//! * No two components are one file at one data server, except with sparse packing.

use crate::attributes::FileHandle;
use crate::error::Error;
use dafs_parallel::Plan;
use dafs_parallel::aggregation::{
    Aggregation, LayoutError, Packing, Replicated, Striped, UNIT_BYTES_MAX,
};
use dafs_parallel::limits::STRIPE_BYTES_MIN;
use dafs_wire::dafs::{
    LayoutKind, LayoutPacking, StateId, Status, XLayoutGetReply, XNodeInfoReply,
};
use std::net::SocketAddr;
use std::sync::Arc;
use thiserror::Error;

pub(super) use dafs_wire::dafs::DeviceId;

/// A set of data servers and the pattern in which they take turns.
#[derive(Debug)]
pub(super) struct Device {
    pattern: Arc<[u32]>,
    servers: Vec<Arc<[SocketAddr]>>,
    /// The ticket that authenticates this client to them.
    pub(super) ticket: Arc<[u8]>,
}

/// A layout as the server sent it.
#[derive(Debug)]
pub(super) struct LayoutReply {
    pub(super) state_id: StateId,
    pub(super) seqid: u32,
    kind: LayoutKind,
    packing: LayoutPacking,
    unit_bytes: u32,
    first_place: u32,
    components: Vec<(DeviceId, FileHandle)>,
}

/// A component at its data server.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    pub(super) device: DeviceId,
    pub(super) addresses: Arc<[SocketAddr]>,
    pub(super) ticket: Arc<[u8]>,
    pub(super) handle: FileHandle,
}

/// Why there is no layout, or no usable one. The file is then read and written through the server.
#[derive(Debug, Clone, Error)]
pub(crate) enum Unusable {
    #[error("a data server has no address that is understood here")]
    Address,
    #[error("the server could not be asked: {0}")]
    Asking(Error),
    #[error("it does not say what each component is called at its data server")]
    Component,
    #[error("it names more data servers than a client goes to")]
    Nodes,
    #[error("two of its components are one file at one data server")]
    Overlap,
    #[error("the server gives none: {0}")]
    Refused(Status),
    #[error("content cannot be spread as it says: {0}")]
    Spread(#[from] LayoutError),
    #[error("its stripes of {0} bytes are too short to be asked for one by one")]
    Unit(u32),
}

impl From<Error> for Unusable {
    fn from(error: Error) -> Self {
        match error.status() {
            Some(status) => Self::Refused(status),
            None => Self::Asking(error),
        }
    }
}

impl Device {
    /// Decodes the server's description of a device.
    pub(super) fn read(told: &XNodeInfoReply<'_>) -> Result<Self, Unusable> {
        let addresses = |addresses: dafs_wire::dafs::Seq<'_, &[u8]>| {
            let text = |address: &[u8]| std::str::from_utf8(address).ok()?.parse().ok();
            let known: Arc<[SocketAddr]> = addresses.iter().filter_map(text).collect();
            if known.is_empty() { Err(Unusable::Address) } else { Ok(known) }
        };
        let servers = told.servers.iter().map(|server| addresses(server.addresses));
        Ok(Self {
            pattern: told.pattern.iter().collect(),
            servers: servers.collect::<Result<_, _>>()?,
            ticket: told.ticket.into(),
        })
    }
}

impl LayoutReply {
    pub(super) fn new(reply: &XLayoutGetReply<'_>) -> Self {
        let components = reply.components.iter();
        Self {
            state_id: reply.state_id,
            seqid: reply.seqid,
            kind: reply.kind,
            packing: reply.packing,
            unit_bytes: reply.unit_bytes,
            first_place: reply.first_place,
            components: components.map(|component| (component.device, component.fh)).collect(),
        }
    }

    /// Converts the layout into a plan. `device` looks a device up; the sizes bound each transfer.
    pub(super) fn plan(
        &self,
        device: &mut dyn FnMut(DeviceId) -> Result<Arc<Device>, Unusable>,
        (read_bytes_max, write_bytes_max): (u32, u32),
    ) -> Result<Plan<Place>, Unusable> {
        let (driver, places) = match self.kind {
            LayoutKind::Stripes => self.stripes(device)?,
            LayoutKind::Copies => self.copies(device)?,
        };
        let names = places.iter().map(|place| (&place.addresses, &place.handle));
        let is_sparse = self.kind == LayoutKind::Stripes && self.packing == LayoutPacking::Sparse;
        if !is_sparse && !dafs_parallel::are_apart(names) {
            return Err(Unusable::Overlap);
        }
        let preferred = (0..driver.copies()).collect();
        let (commits_at_server, needs_layout_commit) = (false, true);
        Ok(Plan {
            driver,
            places,
            preferred,
            commits_at_server,
            needs_layout_commit,
            read_bytes_max,
            write_bytes_max,
        })
    }

    fn stripes(
        &self,
        device: &mut dyn FnMut(DeviceId) -> Result<Arc<Device>, Unusable>,
    ) -> Result<(Arc<dyn Aggregation>, Vec<Place>), Unusable> {
        if u64::from(self.unit_bytes) < STRIPE_BYTES_MIN {
            return Err(Unusable::Unit(self.unit_bytes));
        }
        let (id, _) = *self.components.first().ok_or(Unusable::Component)?;
        if self.components.iter().any(|(other, _)| *other != id) {
            return Err(Unusable::Component);
        }
        let told = device(id)?;
        let packing = match self.packing {
            LayoutPacking::Sparse => Packing::Sparse,
            LayoutPacking::Dense => Packing::Dense,
        };
        let (unit, first) = (u64::from(self.unit_bytes), self.first_place as usize);
        let servers = told.servers.len();
        let driver = Striped::cyclic(unit, told.pattern.clone(), servers, first, packing)?;
        let handle = |component: usize| match &self.components[..] {
            [(_, one)] => Ok(*one),
            all if all.len() == driver.components() => Ok(all[component].1),
            _ => Err(Unusable::Component),
        };
        let place = |component: usize| {
            let addresses = told.servers[driver.server(component)].clone();
            let (ticket, handle) = (told.ticket.clone(), handle(component)?);
            Ok(Place { device: id, addresses, ticket, handle })
        };
        let places = (0..driver.components()).map(place).collect::<Result<_, Unusable>>()?;
        Ok((Arc::new(driver), places))
    }

    fn copies(
        &self,
        device: &mut dyn FnMut(DeviceId) -> Result<Arc<Device>, Unusable>,
    ) -> Result<(Arc<dyn Aggregation>, Vec<Place>), Unusable> {
        let (mut copies, mut places) = (Vec::new(), Vec::new());
        for &(id, handle) in &self.components {
            let told = device(id)?;
            let [addresses] = &told.servers[..] else { return Err(Unusable::Component) };
            let whole = Striped::round_robin(UNIT_BYTES_MAX, 1, 0, Packing::Sparse)?;
            copies.push(Arc::new(whole) as Arc<dyn Aggregation>);
            let (addresses, ticket) = (addresses.clone(), told.ticket.clone());
            places.push(Place { device: id, addresses, ticket, handle });
        }
        Ok((Arc::new(Replicated::new(copies)?), places))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: DeviceId = [1; 16];

    fn handle(number: u8) -> FileHandle {
        FileHandle { fs: [9; 16], file: [number; 48] }
    }

    fn told(
        kind: LayoutKind,
        packing: LayoutPacking,
        components: &[(DeviceId, u8)],
    ) -> LayoutReply {
        let components = components.iter().map(|(device, file)| (*device, handle(*file)));
        let (state_id, seqid, unit_bytes) = (StateId([1; 8]), 1, 65536);
        let components = components.collect();
        LayoutReply { state_id, seqid, kind, packing, unit_bytes, first_place: 1, components }
    }

    /// A device with so many data servers, which take turns.
    fn device(servers: u16) -> Arc<Device> {
        let address = |port: u16| Arc::from([SocketAddr::from(([10, 0, 0, 1], 1 + port))]);
        let servers: Vec<_> = (0..servers).map(address).collect();
        let pattern = (0..servers.len() as u32).collect();
        Arc::new(Device { pattern, servers, ticket: Arc::from(*b"ticket") })
    }

    fn plan(told: &LayoutReply, servers: u16) -> Result<Plan<Place>, Unusable> {
        told.plan(&mut |_| Ok(device(servers)), (1 << 20, 1 << 20))
    }

    use LayoutKind::{Copies, Stripes};
    use LayoutPacking::{Dense, Sparse};

    #[test]
    fn stripes_lie_where_the_pattern_says_under_the_names_that_are_told() {
        let one = plan(&told(Stripes, Sparse, &[(ONE, 5)]), 3).unwrap();
        let at = |offset| one.driver.locate(offset, 0).component;
        assert_eq!([at(0), at(65536), at(2 * 65536), at(3 * 65536)], [1, 2, 0, 1]);
        assert!(one.places.iter().all(|place| place.handle == handle(5)));
        let own = plan(&told(Stripes, Dense, &[(ONE, 5), (ONE, 6), (ONE, 7)]), 3).unwrap();
        assert_eq!((own.places[2].handle, own.places[2].addresses[0].port()), (handle(7), 3));
    }

    /// RFC 8881 13.4.4: the offset of a stripe follows from the number of stripes before it in its
    /// component.
    #[test]
    fn stripes_of_a_component_without_holes_follow_one_another() {
        let components = [(ONE, 5), (ONE, 6), (ONE, 7)];
        let plan = plan(&told(Stripes, Dense, &components), 3).unwrap();
        let (unit, places, first) = (65536, components.len(), 1);
        for (offset, len) in [(0, 7 * unit), (100_000, 300_001), (5 * unit - 1, 2)] {
            let mut end = 0;
            for cut in plan.cuts(0, offset as u64, len) {
                assert_eq!(cut.range.start, end);
                end = cut.range.end;
                for at in [cut.range.start, end - 1] {
                    let (stripe, within) = ((offset + at) / unit, (offset + at) % unit);
                    let there = cut.component_offset as usize + at - cut.range.start;
                    let expected = ((stripe + first) % places, stripe / places * unit + within);
                    assert_eq!((cut.component, there), expected);
                }
            }
            assert_eq!(end, len);
        }
    }

    #[test]
    fn copies_are_whole() {
        let both = plan(&told(Copies, Sparse, &[(ONE, 5), ([2; 16], 6)]), 1).unwrap();
        assert_eq!((both.driver.copies(), both.driver.locate(1 << 40, 1).component), (2, 1));
    }

    #[test]
    fn a_senseless_layout_is_refused_with_its_reason() {
        let of = |told: &LayoutReply, servers| plan(told, servers).unwrap_err();
        let refused = of(&told(Stripes, Sparse, &[]), 3);
        assert!(matches!(refused, Unusable::Component));
        let refused = of(&told(Stripes, Sparse, &[(ONE, 1), (ONE, 2)]), 3);
        assert!(matches!(refused, Unusable::Component));
        let refused = of(&told(Stripes, Sparse, &[(ONE, 1), ([2; 16], 2)]), 2);
        assert!(matches!(refused, Unusable::Component));
        let refused = of(&told(Stripes, Sparse, &[(ONE, 1)]), 1);
        assert!(matches!(refused, Unusable::Spread(LayoutError::Pattern)), "first place 1 of 1");
        let short = LayoutReply { unit_bytes: 64, ..told(Stripes, Sparse, &[(ONE, 1)]) };
        assert!(matches!(of(&short, 3), Unusable::Unit(64)));
        let refused = of(&told(Copies, Sparse, &[(ONE, 1), (ONE, 1)]), 1);
        assert!(matches!(refused, Unusable::Overlap));
        let refused = of(&told(Copies, Sparse, &[(ONE, 1)]), 2);
        assert!(matches!(refused, Unusable::Component));
        let refused = of(&told(Copies, Sparse, &[]), 1);
        assert!(matches!(refused, Unusable::Spread(LayoutError::Copies)));
    }
}
