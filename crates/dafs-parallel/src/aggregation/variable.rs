//! Strips of different lengths in turn.

use super::{Aggregation, COMPONENTS_MAX, LayoutError, OFFSET_MAX, Place, UNIT_BYTES_MAX};

/// A repeated turn of strips, each with a length and a component; components have no holes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Variable {
    strips: Vec<Strip>,
    turn_bytes: u64,
    /// For each component, its bytes in one turn.
    shares: Vec<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Strip {
    component: usize,
    /// Its begin in the turn, and in the component's share of the turn.
    in_turn: u64,
    in_share: u64,
    bytes: u64,
}

impl Variable {
    /// A turn of strips (component and bytes). Components are numbered from 0, without gaps.
    ///
    /// # Errors
    /// `Unit`, `Components`, `Pattern`.
    pub fn new(turn: &[(usize, u64)]) -> Result<Self, LayoutError> {
        if !(1..=COMPONENTS_MAX).contains(&turn.len()) {
            return Err(LayoutError::Components);
        }
        let components =
            turn.iter().map(|&(component, _)| component).max().map_or(0, |max| max + 1);
        if components > turn.len() {
            return Err(LayoutError::Pattern);
        }
        let mut shares = vec![0; components];
        let mut turn_bytes = 0;
        let mut strips = Vec::with_capacity(turn.len());
        for &(component, bytes) in turn {
            if !(1..=UNIT_BYTES_MAX).contains(&bytes) {
                return Err(LayoutError::Unit);
            }
            let in_share = shares[component];
            strips.push(Strip { component, in_turn: turn_bytes, in_share, bytes });
            shares[component] += bytes;
            turn_bytes += bytes;
        }
        if shares.contains(&0) {
            return Err(LayoutError::Pattern);
        }
        Ok(Self { strips, turn_bytes, shares })
    }
}

impl Aggregation for Variable {
    fn components(&self) -> usize {
        self.shares.len()
    }

    fn locate(&self, offset: u64, _copy: usize) -> Place {
        let (turn, within) = (offset / self.turn_bytes, offset % self.turn_bytes);
        let after = self.strips.partition_point(|strip| strip.in_turn <= within);
        let strip = self.strips[after - 1];
        let into = within - strip.in_turn;
        Place {
            component: strip.component,
            offset: turn * self.shares[strip.component] + strip.in_share + into,
            run_bytes: strip.bytes - into,
        }
    }

    fn origin(&self, component: usize, offset: u64) -> Option<u64> {
        let share = *self.shares.get(component)?;
        let (turn, within) = (offset / share, offset % share);
        let mut own = self.strips.iter().filter(|strip| strip.component == component);
        let strip = own.find(|strip| within < strip.in_share + strip.bytes)?;
        let start = turn.checked_mul(self.turn_bytes)?.checked_add(strip.in_turn)?;
        let origin = start.checked_add(within - strip.in_share)?;
        (origin <= OFFSET_MAX).then_some(origin)
    }
}
