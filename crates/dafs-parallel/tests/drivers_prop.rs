//! Every driver against a plain file: data written in parts is read back, at any offset, from any
//! copy; places map back; sizes are found.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use dafs_parallel::aggregation::{
    Aggregation, LayoutError, Nested, OFFSET_MAX, Packing, Replicated, Striped, Variable, parts,
    size,
};
use proptest::prelude::*;
use std::sync::Arc;

fn packing() -> impl Strategy<Value = Packing> {
    prop_oneof![Just(Packing::Sparse), Just(Packing::Dense)]
}

fn striped() -> impl Strategy<Value = Arc<dyn Aggregation>> {
    let round =
        (1u64..40, 1usize..6, 0usize..6, packing()).prop_map(|(unit, servers, first, packing)| {
            Striped::round_robin(unit, servers, first % servers, packing).unwrap()
        });
    let cyclic = (1u64..40, proptest::collection::vec(0u32..4, 1..9), 0usize..9, packing())
        .prop_map(|(unit, pattern, first, packing)| {
            let first = first % pattern.len();
            Striped::cyclic(unit, pattern.into(), 4, first, packing).unwrap()
        });
    prop_oneof![round, cyclic].prop_map(|driver| Arc::new(driver) as Arc<dyn Aggregation>)
}

fn variable() -> impl Strategy<Value = Arc<dyn Aggregation>> {
    proptest::collection::vec((0usize..4, 1u64..50), 1..8).prop_map(|mut turn| {
        // All components occur.
        let mut seen: Vec<usize> = turn.iter().map(|&(component, _)| component).collect();
        seen.sort_unstable();
        seen.dedup();
        for (component, _) in &mut turn {
            *component = seen.binary_search(component).unwrap();
        }
        Arc::new(Variable::new(&turn).unwrap()) as Arc<dyn Aggregation>
    })
}

fn driver() -> impl Strategy<Value = Arc<dyn Aggregation>> {
    prop_oneof![striped(), variable()].prop_recursive(2, 12, 3, |inner| {
        let nested = (1u64..60, proptest::collection::vec(inner.clone(), 1..4)).prop_filter_map(
            "groups with unlike copies",
            |(unit, groups)| {
                let nested = Nested::new(unit, groups).ok()?;
                Some(Arc::new(nested) as Arc<dyn Aggregation>)
            },
        );
        let replicated = proptest::collection::vec(inner, 1..3).prop_map(|mirrors| {
            Arc::new(Replicated::new(mirrors).unwrap()) as Arc<dyn Aggregation>
        });
        prop_oneof![nested, replicated]
    })
}

/// Components as plain vectors.
struct Disk<'a> {
    by: &'a dyn Aggregation,
    components: Vec<Vec<u8>>,
}

impl<'a> Disk<'a> {
    fn new(by: &'a dyn Aggregation) -> Self {
        Self { by, components: vec![Vec::new(); by.components()] }
    }

    fn write(&mut self, offset: u64, data: &[u8]) {
        for copy in 0..self.by.copies() {
            for part in parts(self.by, copy, offset, data.len() as u64) {
                let component = &mut self.components[part.component];
                let (at, len) = (part.component_offset as usize, part.bytes as usize);
                if component.len() < at + len {
                    component.resize(at + len, 0);
                }
                let from = (part.file_offset - offset) as usize;
                component[at..at + len].copy_from_slice(&data[from..from + len]);
            }
        }
    }

    fn read(&self, copy: usize, offset: u64, bytes: u64) -> Vec<u8> {
        let mut read = Vec::new();
        for part in parts(self.by, copy, offset, bytes) {
            let component = &self.components[part.component];
            let at = part.component_offset as usize;
            read.extend((at..at + part.bytes as usize).map(|at| component.get(at).unwrap_or(&0)));
        }
        read
    }
}

proptest! {
    #[test]
    fn a_reader_finds_the_written_bytes(
        by in driver(),
        writes in proptest::collection::vec((0u64..2000, 1usize..500), 1..8),
    ) {
        let mut disk = Disk::new(&*by);
        let mut file = Vec::new();
        for (number, &(offset, len)) in writes.iter().enumerate() {
            let data: Vec<u8> = (0..len).map(|at| (number * 37 + at * 11 + 1) as u8).collect();
            let end = offset as usize + len;
            if file.len() < end {
                file.resize(end, 0);
            }
            file[offset as usize..end].copy_from_slice(&data);
            disk.write(offset, &data);
            let sizes: Vec<u64> = disk.components.iter().map(|c| c.len() as u64).collect();
            prop_assert_eq!(size(&*by, &sizes), file.len() as u64);
        }
        for copy in 0..by.copies() {
            prop_assert_eq!(&disk.read(copy, 0, file.len() as u64), &file);
        }
    }

    #[test]
    fn places_come_back(by in driver(), offset in prop_oneof![0u64..5000, 0..=OFFSET_MAX]) {
        for copy in 0..by.copies() {
            let place = by.locate(offset, copy);
            prop_assert!(place.component < by.components());
            prop_assert!(place.run_bytes > 0);
            prop_assert_eq!(by.origin(place.component, place.offset), Some(offset));
            // A run is contiguous.
            let ahead = (place.run_bytes - 1).min(OFFSET_MAX - offset);
            let last = by.locate(offset + ahead, copy);
            prop_assert_eq!(last.component, place.component);
            prop_assert_eq!(last.offset, place.offset + ahead);
        }
    }

    #[test]
    fn any_place_is_of_one_byte_at_most(by in driver(), component in 0usize..30, offset: u64) {
        let component = component % by.components();
        if let Some(origin) = by.origin(component, offset) {
            prop_assert!(origin <= OFFSET_MAX);
            let places = (0..by.copies()).map(|copy| by.locate(origin, copy));
            let here = places.filter(|place| (place.component, place.offset) == (component, offset));
            prop_assert_eq!(here.count(), 1);
        }
        prop_assert!(by.implied_size(component, offset) <= OFFSET_MAX + 1);
    }

    #[test]
    fn parts_are_as_long_as_they_can_be(by in striped(), offset in 0u64..500, bytes in 1u64..900) {
        let cut: Vec<_> = parts(&*by, 0, offset, bytes).collect();
        prop_assert_eq!(cut.iter().map(|part| part.bytes).sum::<u64>(), bytes);
        for pair in cut.windows(2) {
            prop_assert_eq!(pair[0].file_offset + pair[0].bytes, pair[1].file_offset);
            let follows = pair[0].component == pair[1].component
                && pair[0].component_offset + pair[0].bytes == pair[1].component_offset;
            prop_assert!(!follows);
        }
    }
}

#[test]
fn the_arithmetic_of_the_rfc() {
    // RFC 8881 13.4.4: dense, three servers; stripe 4 is the second one of server 1.
    let dense = Striped::round_robin(4096, 3, 0, Packing::Dense).unwrap();
    let place = dense.locate(4 * 4096 + 5, 0);
    assert_eq!((place.component, place.offset, place.run_bytes), (1, 4096 + 5, 4091));
    let sparse = Striped::round_robin(4096, 3, 2, Packing::Sparse).unwrap();
    let place = sparse.locate(4 * 4096 + 5, 0);
    assert_eq!((place.component, place.offset), (0, 4 * 4096 + 5));
    // A server that has two places of a dense pattern has two components.
    let twice = Striped::cyclic(10, vec![0, 1, 1].into(), 2, 0, Packing::Dense).unwrap();
    assert_eq!(twice.components(), 3);
    assert_eq!((twice.server(1), twice.server(2)), (1, 1));
}

#[test]
fn an_impossible_driver_is_refused() {
    use LayoutError::{Components, Copies, Pattern, Unit};
    let round = |unit, servers, first| Striped::round_robin(unit, servers, first, Packing::Sparse);
    assert_eq!(round(0, 3, 0), Err(Unit));
    assert_eq!(round(u64::MAX, 3, 0), Err(Unit));
    assert_eq!(round(1, 0, 0), Err(Components));
    assert_eq!(round(1, usize::MAX, 0), Err(Components));
    assert_eq!(round(1, 3, 3), Err(Pattern));
    let cyclic = Striped::cyclic(1, vec![0, 3].into(), 3, 0, Packing::Dense);
    assert_eq!(cyclic, Err(Pattern));
    assert_eq!(Variable::new(&[]), Err(Components));
    assert_eq!(Variable::new(&[(0, 0)]), Err(Unit));
    assert_eq!(Variable::new(&[(1, 5)]), Err(Pattern));
    assert_eq!(Variable::new(&[(usize::MAX - 1, 5)]), Err(Pattern));
    assert_eq!(Replicated::new(Vec::new()).err(), Some(Copies));
    assert_eq!(Nested::new(5, Vec::new()).err(), Some(Components));
    let one: Arc<dyn Aggregation> = Arc::new(round(1, 1, 0).unwrap());
    let two: Arc<dyn Aggregation> =
        Arc::new(Replicated::new(vec![one.clone(), one.clone()]).unwrap());
    assert_eq!(Nested::new(5, vec![one, two]).err(), Some(Copies));
}
