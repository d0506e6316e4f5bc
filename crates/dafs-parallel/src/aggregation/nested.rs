//! Groups of components in turn, each with a mapping of its own.

use super::{Aggregation, COMPONENTS_MAX, LayoutError, OFFSET_MAX, Place, UNIT_BYTES_MAX};
use std::sync::Arc;

/// Stripes go to groups in turn. A group maps its stripes as if they were a file. Components are
/// numbered through all groups, in order.
#[derive(Debug, Clone)]
pub struct Nested {
    unit_bytes: u64,
    groups: Vec<Arc<dyn Aggregation>>,
    /// The first component of each group.
    first: Vec<usize>,
    copies: usize,
}

impl Nested {
    /// Groups that get `unit_bytes` at a time.
    ///
    /// # Errors
    /// `Unit`, `Components`; `Copies` if the groups have different numbers of copies.
    pub fn new(unit_bytes: u64, groups: Vec<Arc<dyn Aggregation>>) -> Result<Self, LayoutError> {
        if !(1..=UNIT_BYTES_MAX).contains(&unit_bytes) {
            return Err(LayoutError::Unit);
        }
        let mut first = Vec::with_capacity(groups.len());
        let mut components = 0usize;
        for group in &groups {
            first.push(components);
            components = components.saturating_add(group.components());
        }
        if !(1..=COMPONENTS_MAX).contains(&components) {
            return Err(LayoutError::Components);
        }
        let copies = groups.first().map_or(0, |group| group.copies());
        if groups.iter().any(|group| group.copies() != copies) {
            return Err(LayoutError::Copies);
        }
        Ok(Self { unit_bytes, groups, first, copies })
    }
}

impl Aggregation for Nested {
    fn components(&self) -> usize {
        let last = self.groups.len() - 1;
        self.first[last] + self.groups[last].components()
    }

    fn copies(&self) -> usize {
        self.copies
    }

    fn locate(&self, offset: u64, copy: usize) -> Place {
        let count = self.groups.len() as u64;
        let (stripe, within) = (offset / self.unit_bytes, offset % self.unit_bytes);
        let group = (stripe % count) as usize;
        let place = self.groups[group].locate(stripe / count * self.unit_bytes + within, copy);
        Place {
            component: self.first[group] + place.component,
            run_bytes: place.run_bytes.min(self.unit_bytes - within),
            ..place
        }
    }

    fn origin(&self, component: usize, offset: u64) -> Option<u64> {
        let group = self.first.partition_point(|&first| first <= component).checked_sub(1)?;
        let inner = self.groups[group].origin(component - self.first[group], offset)?;
        self.of_group(group, inner)
    }

    fn implied_size(&self, component: usize, bytes: u64) -> u64 {
        let group = self.first.partition_point(|&first| first <= component).saturating_sub(1);
        let inner = self.groups[group].implied_size(component - self.first[group], bytes);
        let last = inner.checked_sub(1).and_then(|last| self.of_group(group, last));
        last.map_or(0, |last| last + 1)
    }
}

impl Nested {
    /// The byte of the file at `inner` of a group's stripes.
    fn of_group(&self, group: usize, inner: u64) -> Option<u64> {
        let (turn, within) = (inner / self.unit_bytes, inner % self.unit_bytes);
        let stripe = turn.checked_mul(self.groups.len() as u64)?.checked_add(group as u64)?;
        let origin = stripe.checked_mul(self.unit_bytes)?.checked_add(within)?;
        (origin <= OFFSET_MAX).then_some(origin)
    }
}
