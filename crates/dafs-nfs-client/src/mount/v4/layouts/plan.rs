//! Conversion of layouts of any type into checked plans. The readers of this crate are in `files`
//! and `flexible`; programs may have some of their own.
//!
//! Invariants
//! * A plan names a data server with at least one address for each component of its driver.
//! * No two components are one file at one data server.
//! * The number of devices that the client asks about for a layout is bounded.

use super::files::FilesReader;
use super::flexible::FlexibleReader;
use crate::files::Handle;
use crate::mount::layout::{AskDevice, Component, LayoutReader, Spread, UnusableLayout};
use crate::mount::limits::{
    DRIVER_SAMPLE_BYTES, LAYOUT_DEVICES_MAX, TRANSFER_BYTES_MAX, TRANSFER_BYTES_MIN,
};
use dafs_parallel::aggregation::{Aggregation, COMPONENTS_MAX, LayoutError};
use dafs_parallel::limits::STRIPE_BYTES_MIN;
use dafs_wire::nfs4::DeviceId;
use dafs_wire::nfs4::limits::FILE_HANDLE_BYTES_MAX;
use std::sync::Arc;

/// The readers of layouts, the preferred one first: those of the program, then those of this crate.
pub(super) fn readers(own: &[Arc<dyn LayoutReader>]) -> Vec<Arc<dyn LayoutReader>> {
    let built_in: [Arc<dyn LayoutReader>; 2] = [Arc::new(FilesReader), Arc::new(FlexibleReader)];
    own.iter().cloned().chain(built_in).collect()
}

/// The places of a file.
pub(super) type Plan = dafs_parallel::Plan<Component>;

/// Reads a layout of a file by its reader, and checks the result.
pub(super) fn plan(
    reader: &dyn LayoutReader,
    body: &[u8],
    file: &Handle,
    device: &mut AskDevice<'_>,
) -> Result<Plan, UnusableLayout> {
    let mut left = LAYOUT_DEVICES_MAX;
    let mut device = |id: DeviceId| {
        left = left.checked_sub(1).ok_or(UnusableLayout::Devices)?;
        device(id)
    };
    checked(reader.read(body, file, &mut device)?)
}

fn checked(spread: Spread) -> Result<Plan, UnusableLayout> {
    let Spread { driver, components: places, preferred_copies: preferred, .. } = spread;
    if !(1..=COMPONENTS_MAX).contains(&driver.components()) {
        return Err(LayoutError::Components.into());
    }
    let is_named = |place: &Component| (1..=FILE_HANDLE_BYTES_MAX).contains(&place.handle.0.len());
    if places.len() != driver.components() || !places.iter().all(is_named) {
        return Err(UnusableLayout::Component);
    }
    if places.iter().any(|place| place.addresses.is_empty()) {
        return Err(UnusableLayout::Address);
    }
    let names = places.iter().map(|place| (&place.addresses, &place.handle.0));
    if !dafs_parallel::are_apart(names) {
        return Err(UnusableLayout::Overlap);
    }
    let copies = driver.copies();
    let are_there = !preferred.is_empty() && preferred.iter().all(|&copy| copy < copies);
    if !(1..=places.len()).contains(&copies) || !are_there {
        return Err(UnusableLayout::Copies);
    }
    let bytes_max = |asked: u32| match asked {
        0..TRANSFER_BYTES_MIN => Err(UnusableLayout::Transfers(asked)),
        _ => Ok(asked.min(TRANSFER_BYTES_MAX)),
    };
    let (read_bytes_max, write_bytes_max) =
        (bytes_max(spread.read_bytes_max)?, bytes_max(spread.write_bytes_max)?);
    (0..copies).try_for_each(|copy| check_start(&*driver, copy))?;
    Ok(Plan {
        driver,
        places,
        preferred,
        commits_at_server: spread.commits_at_server,
        needs_layout_commit: spread.needs_layout_commit,
        read_bytes_max,
        write_bytes_max,
    })
}

/// Refuses a driver that makes no sense at the start of a copy, or that cuts it into parts too
/// short for a request each.
fn check_start(driver: &dyn Aggregation, copy: usize) -> Result<(), UnusableLayout> {
    let (mut offset, mut runs) = (0, 0);
    while offset < DRIVER_SAMPLE_BYTES {
        let place = driver.locate(offset, copy);
        let is_there = place.component < driver.components() && place.run_bytes > 0;
        if !is_there || driver.origin(place.component, place.offset) != Some(offset) {
            return Err(UnusableLayout::Driver);
        }
        runs += 1;
        if runs > DRIVER_SAMPLE_BYTES / STRIPE_BYTES_MIN {
            return Err(UnusableLayout::Unit(offset / (runs - 1)));
        }
        offset = offset.saturating_add(place.run_bytes);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mount::layout::NodeAddress;
    use dafs_parallel::aggregation::{Packing, Place, Replicated, Striped, Variable};

    /// Returns components with one handle at as many data servers.
    fn components(count: u8) -> Vec<Component> {
        let component = |number| Component {
            device: DeviceId([number; 16]),
            addresses: vec![NodeAddress { socket: ([10, 0, 0, number], 2049).into(), rdma: false }],
            handle: Handle(b"file".to_vec()),
            stateid: None,
        };
        (0..count).map(component).collect()
    }

    fn three(unit_bytes: u64) -> Arc<dyn Aggregation> {
        Arc::new(Striped::round_robin(unit_bytes, 3, 0, Packing::Dense).unwrap())
    }

    fn good() -> Spread {
        Spread::new(three(4096), components(3))
    }

    fn refused(spread: Spread) -> UnusableLayout {
        checked(spread).unwrap_err()
    }

    #[test]
    fn the_plan_of_a_reader_is_followed_as_far_as_possible() {
        let plan = checked(good()).unwrap();
        assert_eq!(
            (plan.read_bytes_max, plan.write_bytes_max),
            (TRANSFER_BYTES_MAX, TRANSFER_BYTES_MAX)
        );
        let variable = Variable::new(&[(0, 100), (1, 100_000), (2, 20_000)]).unwrap();
        checked(Spread { driver: Arc::new(variable), ..good() }).unwrap();
    }

    #[test]
    fn components_are_counted_named_and_apart() {
        let few = Spread { components: components(2), ..good() };
        assert!(matches!(refused(few), UnusableLayout::Component));
        let many = Spread { components: components(4), ..good() };
        assert!(matches!(refused(many), UnusableLayout::Component));
        let changed = |change: fn(&mut Component)| {
            let mut spread = good();
            change(&mut spread.components[1]);
            refused(spread)
        };
        let handle = |len| move |component: &mut Component| component.handle.0 = vec![1; len];
        let mut long = good();
        handle(FILE_HANDLE_BYTES_MAX + 1)(&mut long.components[1]);
        assert!(matches!(refused(long), UnusableLayout::Component));
        assert!(matches!(changed(|one| one.handle.0.clear()), UnusableLayout::Component));
        assert!(matches!(changed(|one| one.addresses.clear()), UnusableLayout::Address));
        let first = |one: &mut Component| *one = components(1).remove(0);
        assert!(matches!(changed(first), UnusableLayout::Overlap));
    }

    #[test]
    fn copies_and_transfers_have_bounds() {
        for preferred_copies in [vec![], vec![0, 1]] {
            let spread = Spread { preferred_copies, ..good() };
            assert!(matches!(refused(spread), UnusableLayout::Copies));
        }
        let two = Arc::new(Replicated::new(vec![three(4096), three(4096)]).unwrap());
        assert!(checked(Spread::new(two, components(6))).is_ok());
        let short = Spread { write_bytes_max: TRANSFER_BYTES_MIN - 1, ..good() };
        assert!(matches!(refused(short), UnusableLayout::Transfers(4095)));
    }

    /// A driver with a wrong mapping.
    #[derive(Debug)]
    struct Wrong(Place);

    impl Aggregation for Wrong {
        fn components(&self) -> usize {
            3
        }

        fn locate(&self, _: u64, _: usize) -> Place {
            self.0
        }

        fn origin(&self, _: usize, offset: u64) -> Option<u64> {
            Some(offset)
        }
    }

    #[test]
    fn a_driver_that_makes_no_sense_is_found_out() {
        let place = Place { component: 0, offset: 0, run_bytes: 4096 };
        for place in [
            Place { component: 3, ..place },
            Place { run_bytes: 0, ..place },
            // The same place for every offset.
            place,
        ] {
            let spread = Spread { driver: Arc::new(Wrong(place)), ..good() };
            assert!(matches!(refused(spread), UnusableLayout::Driver), "{place:?}");
        }
        let short = Spread { driver: three(64), ..good() };
        assert!(matches!(refused(short), UnusableLayout::Unit(64)));
    }

    #[test]
    fn so_many_devices_are_asked_about_and_no_more() {
        #[derive(Debug)]
        struct Curious(usize);

        impl LayoutReader for Curious {
            fn layout_type(&self) -> u32 {
                1
            }

            fn read(
                &self,
                _: &[u8],
                _: &Handle,
                device: &mut AskDevice<'_>,
            ) -> Result<Spread, UnusableLayout> {
                (0..self.0).try_for_each(|_| device(DeviceId([1; 16])).map(drop))?;
                Ok(good())
            }
        }

        let planned = |devices| {
            let file = Handle(b"file".to_vec());
            plan(&Curious(devices), &[], &file, &mut |_| Ok([].into()))
        };
        assert!(planned(LAYOUT_DEVICES_MAX).is_ok());
        assert!(matches!(planned(LAYOUT_DEVICES_MAX + 1), Err(UnusableLayout::Devices)));
    }
}
