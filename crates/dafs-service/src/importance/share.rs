//! Shares of a scarce supply among sessions, by weight: weighted max-min fairness.
//!
//! DAFS sessions share credits, and NFSv4.1 sessions share the memory of cached replies. Both front
//! ends hand the same numbers in: what there is, and for each session its weight, the least that the
//! protocol needs, and what it wants.
//!
//! Invariants
//! * The decision depends on its arguments alone: no clock, no lock, no table.
//! * All parts together fit the supply, unless the least parts alone exceed it.
//! * Each session gets at least its least part, whatever its weight and the weights of others.
//! * A session that gets less than it wants gets no less for its weight than any other session gets
//!   above its least part. So what one leaves goes to the others.

use super::Weight;

/// Binary places of a [`Level`] behind the point.
const FRACTION_BITS: u32 = 16;

/// The most that one session can want. It keeps sums within 64 bits for 2^23 sessions.
const WANTED_MAX: u64 = 1 << 40;

/// The claim of one session to the supply, in units of the supply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claim {
    /// Its weight.
    pub weight: Weight,
    /// The part that it keeps in any case.
    pub least: u64,
    /// The part that it would use. Above 2^40 it counts as that.
    pub wanted: u64,
}

/// The units of the supply for each unit of weight, while the supply is too small for all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Level(u64);

impl Level {
    /// Returns the part of a session that may grow without bound: at least `least`.
    pub fn allowance(self, weight: Weight, least: u64) -> u64 {
        let part = (u128::from(self.0) * u128::from(weight.get())) >> FRACTION_BITS;
        u64::try_from(part).unwrap_or(u64::MAX).max(least)
    }

    /// Returns the part of a claim. A claim for less than its least part gets what it wants.
    pub fn part(self, claim: &Claim) -> u64 {
        self.allowance(claim.weight, claim.least).min(claim.wanted.min(WANTED_MAX))
    }

    /// Returns a number that stands for the level, never `u64::MAX`.
    pub fn to_bits(self) -> u64 {
        self.0
    }

    /// Returns the level of [`to_bits`](Self::to_bits).
    pub fn from_bits(bits: u64) -> Self {
        Self(bits.min(u64::MAX - 1))
    }
}

/// Divides a supply among claims. `None` means that it suffices for all that is wanted.
pub fn divide(supply: u64, claims: &[Claim]) -> Option<Level> {
    let sum = |level: Level| claims.iter().map(|claim| level.part(claim)).sum::<u64>();
    let wanted = claims.iter().map(|claim| claim.wanted.min(WANTED_MAX));
    if wanted.clone().sum::<u64>() <= supply {
        return None;
    }
    // With a weight of 1 the greatest claim gets all that it wants at this level. The sum of the
    // parts grows with the level, so that halving finds the highest level that fits.
    let mut too_high = (wanted.max().unwrap_or(0) << FRACTION_BITS).saturating_add(1);
    let mut fits = 0;
    while too_high - fits > 1 {
        let middle = fits + (too_high - fits) / 2;
        if sum(Level(middle)) <= supply { fits = middle } else { too_high = middle }
    }
    Some(Level(fits))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn claim(weight: u32, least: u64, wanted: u64) -> Claim {
        Claim { weight: Weight::new(weight).unwrap(), least, wanted }
    }

    fn parts(supply: u64, claims: &[Claim]) -> Vec<u64> {
        let level = divide(supply, claims);
        let part =
            |claim: &Claim| level.map_or(claim.wanted.min(WANTED_MAX), |level| level.part(claim));
        claims.iter().map(part).collect()
    }

    #[test]
    fn a_supply_that_suffices_is_not_divided() {
        assert_eq!(divide(30, &[claim(100, 1, 10), claim(1, 1, 20)]), None);
        assert_eq!(divide(0, &[]), None);
    }

    #[test]
    fn weights_divide_what_is_scarce() {
        assert_eq!(parts(40, &[claim(300, 1, 100), claim(100, 1, 100)]), [30, 10]);
        assert_eq!(parts(40, &[claim(100, 1, 100); 4]), [10; 4]);
        // The first one leaves most of its part to the others.
        assert_eq!(
            parts(40, &[claim(9000, 1, 4), claim(200, 1, 99), claim(100, 1, 99)]),
            [4, 24, 12]
        );
    }

    #[test]
    fn the_least_stays_to_everybody() {
        let claims = [claim(10_000, 1, 1000), claim(1, 1, 1000), claim(1, 4, 1000)];
        assert_eq!(parts(100, &claims), [95, 1, 4]);
        // Where not even that fits, nothing else is given.
        assert_eq!(parts(3, &claims), [1, 1, 4]);
        // A session that wants less than the least gets what it wants.
        assert_eq!(parts(1, &[claim(5, 8, 2), claim(5, 8, 9)]), [2, 8]);
    }

    #[test]
    fn the_greatest_numbers_do_not_overflow() {
        let claims = [claim(10_000, 1, u64::MAX), claim(1, u64::MAX, u64::MAX)];
        assert_eq!(parts(u64::MAX, &claims), [WANTED_MAX; 2]);
        assert_eq!(parts(WANTED_MAX, &claims), [1, WANTED_MAX]);
        let level = Level::from_bits(u64::MAX);
        assert!(level.allowance(Weight::new(10_000).unwrap(), 1) > WANTED_MAX);
        assert_eq!(Level::from_bits(level.to_bits()), level);
    }

    fn claims() -> impl Strategy<Value = Vec<Claim>> {
        let weight = prop_oneof![Just(100), 1..=10_000_u32];
        let one =
            (weight, 0..20_u64, 0..400_u64).prop_map(|(w, least, wanted)| claim(w, least, wanted));
        prop::collection::vec(one, 1..40)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn parts_fit_and_are_fair(claims in claims(), supply in 0..4000_u64) {
            let parts = parts(supply, &claims);
            let least: u64 = claims.iter().map(|claim| claim.least.min(claim.wanted)).sum();
            prop_assert!(parts.iter().sum::<u64>() <= supply.max(least));
            for (claim, &part) in claims.iter().zip(&parts) {
                prop_assert!(part >= claim.least.min(claim.wanted) && part <= claim.wanted);
                if part == claim.wanted {
                    continue;
                }
                for (other, &others) in claims.iter().zip(&parts) {
                    // Rounding takes less than one unit.
                    let is_least = others <= other.least;
                    let mine = (part + 1) * u64::from(other.weight.get());
                    let theirs = others * u64::from(claim.weight.get());
                    prop_assert!(is_least || mine > theirs, "{claim:?} {part}, {other:?} {others}");
                }
            }
        }

        #[test]
        fn nothing_is_left_over_but_what_rounding_takes(claims in claims(), supply in 0..4000_u64) {
            let parts = parts(supply, &claims);
            let given: u64 = parts.iter().sum();
            let wanted: u64 = claims.iter().map(|claim| claim.wanted).sum();
            // At the next level each claim gets one unit more at most, and that does not fit.
            prop_assert!(given == wanted || given + claims.len() as u64 > supply);
        }

        #[test]
        fn more_weight_never_means_less(
            claims in claims(), supply in 0..4000_u64, at in 0..40_usize, more in 1..10_000_u32,
        ) {
            let at = at % claims.len();
            let before = parts(supply, &claims);
            let mut heavier = claims.clone();
            let weight = (claims[at].weight.get() + more).min(10_000);
            heavier[at].weight = Weight::new(weight).unwrap();
            let after = parts(supply, &heavier);
            // Rounding takes less than one unit.
            prop_assert!(after[at] + 1 >= before[at]);
            for other in (0..claims.len()).filter(|other| *other != at) {
                prop_assert!(after[other] <= before[other]);
            }
        }

        #[test]
        fn more_supply_takes_nothing_away(
            claims in claims(), supply in 0..4000_u64, more in 0..100_u64,
        ) {
            let (one, two) = (parts(supply, &claims), parts(supply + more, &claims));
            prop_assert!(one.iter().zip(&two).all(|(one, two)| one <= two));
        }
    }
}
