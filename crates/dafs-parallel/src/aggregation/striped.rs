//! Stripes of one length in a repeated pattern (RFC 8881 13.4).

use super::{Aggregation, COMPONENTS_MAX, LayoutError, OFFSET_MAX, Place, UNIT_BYTES_MAX};
use std::sync::Arc;

/// The offset of a stripe in its component.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Packing {
    /// The same offset as in the file; there is a component for each server.
    Sparse,
    /// Stripes are contiguous, without holes; there is a component for each place of the pattern.
    Dense,
}

/// Stripes on servers in a repeated pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Striped {
    unit_bytes: u64,
    /// The server of each place.
    pattern: Arc<[u32]>,
    first_place: usize,
    packing: Packing,
    servers: usize,
}

impl Striped {
    /// Each of `servers` in turn, from `first` on.
    ///
    /// # Errors
    /// `Unit`, `Components`, `Pattern`.
    pub fn round_robin(
        unit_bytes: u64,
        servers: usize,
        first: usize,
        packing: Packing,
    ) -> Result<Self, LayoutError> {
        let pattern = (0..servers.min(COMPONENTS_MAX + 1)).filter_map(|at| u32::try_from(at).ok());
        Self::cyclic(unit_bytes, pattern.collect(), servers, first, packing)
    }

    /// The servers of a pattern, one after the other, from its place `first` on.
    ///
    /// # Errors
    /// `Unit`, `Components`, `Pattern`.
    pub fn cyclic(
        unit_bytes: u64,
        pattern: Arc<[u32]>,
        servers: usize,
        first: usize,
        packing: Packing,
    ) -> Result<Self, LayoutError> {
        if !(1..=UNIT_BYTES_MAX).contains(&unit_bytes) {
            return Err(LayoutError::Unit);
        }
        let counts = [servers, pattern.len()];
        if counts.iter().any(|count| !(1..=COMPONENTS_MAX).contains(count)) {
            return Err(LayoutError::Components);
        }
        if first >= pattern.len() || pattern.iter().any(|&server| server as usize >= servers) {
            return Err(LayoutError::Pattern);
        }
        Ok(Self { unit_bytes, pattern, first_place: first, packing, servers })
    }

    /// The server of a component.
    pub fn server(&self, component: usize) -> usize {
        match self.packing {
            Packing::Sparse => component,
            Packing::Dense => self.pattern[component] as usize,
        }
    }

    /// The place in the pattern of a stripe.
    fn place(&self, stripe: u64) -> usize {
        let places = self.pattern.len() as u64;
        ((stripe % places + self.first_place as u64) % places) as usize
    }
}

impl Aggregation for Striped {
    fn components(&self) -> usize {
        match self.packing {
            Packing::Sparse => self.servers,
            Packing::Dense => self.pattern.len(),
        }
    }

    fn locate(&self, offset: u64, _copy: usize) -> Place {
        let (stripe, within) = (offset / self.unit_bytes, offset % self.unit_bytes);
        let place = self.place(stripe);
        let run_bytes = self.unit_bytes - within;
        match self.packing {
            Packing::Sparse => Place { component: self.pattern[place] as usize, offset, run_bytes },
            Packing::Dense => {
                let turn = stripe / self.pattern.len() as u64;
                Place { component: place, offset: turn * self.unit_bytes + within, run_bytes }
            }
        }
    }

    fn origin(&self, component: usize, offset: u64) -> Option<u64> {
        match self.packing {
            Packing::Sparse => {
                let here = offset <= OFFSET_MAX && self.locate(offset, 0).component == component;
                here.then_some(offset)
            }
            Packing::Dense => {
                let places = self.pattern.len();
                if component >= places {
                    return None;
                }
                let (turn, within) = (offset / self.unit_bytes, offset % self.unit_bytes);
                let place = (component + places - self.first_place) % places;
                let stripe = turn.checked_mul(places as u64)?.checked_add(place as u64)?;
                let origin = stripe.checked_mul(self.unit_bytes)?.checked_add(within)?;
                (origin <= OFFSET_MAX).then_some(origin)
            }
        }
    }

    fn implied_size(&self, component: usize, bytes: u64) -> u64 {
        match self.packing {
            // The component has holes for the bytes of others, and ends with a byte of its own.
            Packing::Sparse => bytes.min(OFFSET_MAX),
            Packing::Dense => {
                let last = bytes.checked_sub(1).and_then(|last| self.origin(component, last));
                last.map_or(0, |last| last + 1)
            }
        }
    }
}
