//! Several copies of the same bytes.

use super::{Aggregation, COMPONENTS_MAX, LayoutError, Place};
use std::sync::Arc;

/// Copies of a file, each with a mapping of its own to components of its own. Components are
/// numbered through all copies, in order.
#[derive(Debug, Clone)]
pub struct Replicated {
    mirrors: Vec<Arc<dyn Aggregation>>,
    /// The first component of each mirror.
    first: Vec<usize>,
    /// The first copy of each mirror.
    first_copy: Vec<usize>,
}

impl Replicated {
    /// A copy for each of these mappings; one with several copies counts as several.
    ///
    /// # Errors
    /// `Copies`, `Components`.
    pub fn new(mirrors: Vec<Arc<dyn Aggregation>>) -> Result<Self, LayoutError> {
        let (mut first, mut first_copy) = (Vec::new(), Vec::new());
        let (mut components, mut copies) = (0usize, 0usize);
        for mirror in &mirrors {
            first.push(components);
            first_copy.push(copies);
            components = components.saturating_add(mirror.components());
            copies = copies.saturating_add(mirror.copies());
        }
        if copies == 0 {
            return Err(LayoutError::Copies);
        }
        if !(1..=COMPONENTS_MAX).contains(&components) {
            return Err(LayoutError::Components);
        }
        Ok(Self { mirrors, first, first_copy })
    }

    fn mirror_of(&self, component: usize) -> usize {
        self.first.partition_point(|&first| first <= component).saturating_sub(1)
    }
}

impl Aggregation for Replicated {
    fn components(&self) -> usize {
        let last = self.mirrors.len() - 1;
        self.first[last] + self.mirrors[last].components()
    }

    fn copies(&self) -> usize {
        let last = self.mirrors.len() - 1;
        self.first_copy[last] + self.mirrors[last].copies()
    }

    fn locate(&self, offset: u64, copy: usize) -> Place {
        let mirror = self.first_copy.partition_point(|&first| first <= copy).saturating_sub(1);
        let place = self.mirrors[mirror].locate(offset, copy - self.first_copy[mirror]);
        Place { component: self.first[mirror] + place.component, ..place }
    }

    fn origin(&self, component: usize, offset: u64) -> Option<u64> {
        let mirror = self.mirror_of(component);
        self.mirrors[mirror].origin(component - self.first[mirror], offset)
    }

    fn implied_size(&self, component: usize, bytes: u64) -> u64 {
        let mirror = self.mirror_of(component);
        self.mirrors[mirror].implied_size(component - self.first[mirror], bytes)
    }
}
