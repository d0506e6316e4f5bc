//! The places of a file, and the division of its transfers.
//!
//! Invariants
//! * There is a place for each component of the driver.
//! * A transfer is cut into pieces without gap or overlap. Each lies within one unit of the layout,
//!   and within one request.

use crate::aggregation::{self, Aggregation};
use crate::limits::STRIPE_BYTES_MIN;
use std::ops::Range;
use std::sync::Arc;

/// The places of a file. `P` is a protocol's address of a component at its data server.
#[derive(Debug)]
pub struct Plan<P> {
    /// The mapping of bytes to components.
    pub driver: Arc<dyn Aggregation>,
    /// One place for each component of the driver.
    pub places: Vec<P>,
    /// The preferred copies for reads.
    pub preferred: Vec<usize>,
    /// Data is committed at the metadata server.
    pub commits_at_server: bool,
    /// The metadata server must learn of writes (LAYOUTCOMMIT).
    pub needs_layout_commit: bool,
    /// The longest read of one data server, in bytes.
    pub read_bytes_max: u32,
    /// The longest write to one data server, in bytes.
    pub write_bytes_max: u32,
}

/// A part of a transfer on one component.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cut {
    /// The component.
    pub component: usize,
    /// The range of the part in the transfer, in bytes.
    pub range: Range<usize>,
    /// The offset of its first byte in the component.
    pub component_offset: u64,
}

impl Cut {
    /// Divides it into requests of at most `bytes_max` bytes.
    pub fn requests(self, bytes_max: usize) -> impl Iterator<Item = Self> {
        let Self { component, range, component_offset } = self;
        let starts = range.clone().step_by(bytes_max.max(1));
        starts.map(move |start| Self {
            component,
            range: start..range.end.min(start.saturating_add(bytes_max.max(1))),
            component_offset: component_offset + (start - range.start) as u64,
        })
    }
}

impl<P> Plan<P> {
    /// The copy for the read number `turn`: the preferred ones take turns.
    pub fn copy_in_turn(&self, turn: usize) -> usize {
        let preferred = &self.preferred;
        preferred.get(turn % preferred.len().max(1)).copied().unwrap_or(0)
    }

    /// The copies to try when one cannot be read.
    pub fn other_copies(&self, copy: usize) -> impl Iterator<Item = usize> + use<P> {
        (0..self.driver.copies()).filter(move |&other| other != copy)
    }

    /// The parts of `len` bytes from `offset` on of one copy, by component.
    pub fn cuts(&self, copy: usize, offset: u64, len: usize) -> impl Iterator<Item = Cut> {
        let parts = aggregation::parts(&*self.driver, copy, offset, len as u64);
        parts.map(move |part| {
            // INVARIANT: it lies in the transfer, whose length fits.
            let start = (part.file_offset - offset) as usize;
            Cut {
                component: part.component,
                range: start..start + part.bytes as usize,
                component_offset: part.component_offset,
            }
        })
    }

    /// True if a transfer suits the layout: every part has an existing component, and the parts are
    /// not mostly short. The result is reliable only for a driver that was checked as a whole.
    pub fn suits(&self, offset: u64, len: usize) -> bool {
        let most = len as u64 / STRIPE_BYTES_MIN + 2;
        (0..self.driver.copies()).all(|copy| {
            let mut left = most;
            self.cuts(copy, offset, len).all(|cut| {
                let is_left = left > 0;
                left = left.saturating_sub(1);
                is_left && cut.component < self.places.len()
            })
        })
    }

    /// The pieces of a transfer, in order, none longer than `bytes_max`: each is read from one
    /// component, or written to that and to the others with the same bytes.
    pub fn pieces(
        &self,
        copy: usize,
        offset: u64,
        len: usize,
        bytes_max: usize,
    ) -> impl Iterator<Item = Range<usize>> {
        let cuts = self.cuts(copy, offset, len);
        cuts.flat_map(move |cut| cut.requests(bytes_max)).map(|cut| cut.range)
    }
}

/// True if all names differ, so that no two components are the same.
pub fn are_apart<N: Ord>(names: impl IntoIterator<Item = N>) -> bool {
    let mut names: Vec<_> = names.into_iter().collect();
    names.sort_unstable();
    names.windows(2).all(|pair| pair[0] != pair[1])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::aggregation::{Packing, Replicated, Striped};

    fn plan(driver: impl Aggregation + 'static, preferred: &[usize]) -> Plan<()> {
        Plan {
            places: vec![(); driver.components()],
            driver: Arc::new(driver),
            preferred: preferred.to_vec(),
            commits_at_server: false,
            needs_layout_commit: true,
            read_bytes_max: 4096,
            write_bytes_max: 4096,
        }
    }

    fn stripes(packing: Packing) -> Striped {
        Striped::round_robin(4096, 3, 1, packing).unwrap()
    }

    #[test]
    fn a_transfer_is_cut_where_the_file_is_and_where_requests_end() {
        let plan = plan(stripes(Packing::Dense), &[0]);
        let cuts: Vec<_> = plan.cuts(0, 4000, 9000).collect();
        let cut = |component, range, component_offset| Cut { component, range, component_offset };
        assert_eq!(
            cuts,
            [
                cut(1, 0..96, 4000),
                cut(2, 96..4192, 0),
                cut(0, 4192..8288, 0),
                cut(1, 8288..9000, 4096)
            ]
        );
        let short: Vec<_> = cuts[1].clone().requests(3000).collect();
        assert_eq!(short, [cut(2, 96..3096, 0), cut(2, 3096..4192, 3000)]);
        let pieces: Vec<_> = plan.pieces(0, 4000, 9000, 3000).collect();
        assert_eq!(pieces[..3], [0..96, 96..3096, 3096..4192]);
        assert!(pieces.windows(2).all(|pair| pair[0].end == pair[1].start));
        assert_eq!(pieces.last().unwrap().end, 9000);
        assert_eq!(plan.pieces(0, 0, 10, 0).count(), 10, "no bound of nothing loops for ever");
    }

    #[test]
    fn the_best_copies_take_turns_and_all_others_are_ways_around_one() {
        let copy = || Arc::new(stripes(Packing::Sparse)) as Arc<dyn Aggregation>;
        let plan = plan(Replicated::new(vec![copy(), copy(), copy()]).unwrap(), &[2, 1]);
        assert_eq!([0, 1, 2].map(|turn| plan.copy_in_turn(turn)), [2, 1, 2]);
        assert_eq!(plan.other_copies(1).collect::<Vec<_>>(), [0, 2]);
        let found = plan.cuts(2, 0, 100).map(|cut| cut.component).collect::<Vec<_>>();
        assert_eq!(found, [2 * 3 + 1]);
    }

    /// A driver of parts of one length, on a component of this number.
    #[derive(Debug)]
    struct Odd(u64, usize);

    impl Aggregation for Odd {
        fn components(&self) -> usize {
            2
        }

        fn locate(&self, offset: u64, _: usize) -> aggregation::Place {
            // Each part is far from the one before.
            aggregation::Place { component: self.1, offset: 7 * offset, run_bytes: self.0 }
        }

        fn origin(&self, _: usize, offset: u64) -> Option<u64> {
            Some(offset / 7)
        }
    }

    #[test]
    fn transfers_that_a_driver_cuts_into_crumbs_go_elsewhere() {
        assert!(plan(stripes(Packing::Dense), &[0]).suits(4000, 9000));
        assert!(plan(Odd(4096, 1), &[0]).suits(0, 1 << 20));
        assert!(!plan(Odd(4096, 2), &[0]).suits(0, 1 << 20), "there is no such component");
        assert!(!plan(Odd(100, 1), &[0]).suits(0, 1 << 20));
        assert!(!plan(Odd(0, 1), &[0]).suits(0, 1 << 20), "nor does it loop for ever");
    }

    #[test]
    fn equal_names_are_found_wherever_they_are() {
        assert!(are_apart([("a", 1), ("b", 1), ("a", 2)]));
        assert!(!are_apart([("a", 1), ("b", 1), ("a", 1)]));
    }
}
