//! The random number generator behind every seeded choice.

/// A small seeded generator (SplitMix64). This crate has its own, so that a seed means the same
/// world with any version of any library. Never used for secrets.
#[derive(Debug, Clone)]
pub struct SimRng(u64);

impl SimRng {
    /// A generator whose sequence follows from `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`; 0 when `bound` is 0. The bias of the multiplication is below bound /
    /// 2^64, which is negligible here.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(bound)) >> 64) as u64
    }

    /// A number from `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low).saturating_add(1))
    }

    /// True with a probability of `ppm` in a million.
    pub fn chance(&mut self, ppm: u32) -> bool {
        // A rate of zero must not draw a number, so that switching off one fault leaves the rest of
        // a world unchanged.
        ppm > 0 && self.below(1_000_000) < u64::from(ppm)
    }

    /// A number up to `max` whose order of magnitude is evenly spread: small ones are common.
    pub fn log_below(&mut self, max: u64) -> u64 {
        let bits = u64::from(u64::BITS - max.leading_zeros());
        let width = self.between(0, bits);
        let ceiling = if width >= 64 { u64::MAX } else { (1u64 << width).wrapping_sub(1) };
        self.below(ceiling.min(max).saturating_add(1))
    }

    /// An independent generator for a part of the world.
    pub fn fork(&mut self) -> SimRng {
        SimRng::new(self.bits())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_fixes_the_sequence_and_bounds_hold() {
        let (mut a, mut b) = (SimRng::new(7), SimRng::new(7));
        for _ in 0..1000 {
            assert_eq!(a.bits(), b.bits());
            assert!(a.below(10) < 10);
            b.below(10);
            assert!((3..=5).contains(&a.between(3, 5)));
            b.between(3, 5);
            assert!(a.log_below(1000) <= 1000);
            b.log_below(1000);
        }
        assert_eq!(a.below(0), 0);
        assert!(!a.chance(0));
        assert!(a.chance(1_000_000));
    }
}
