//! Random operations on one file of a striped store, for property tests.

use super::striped::{UNIT, UNIT64};
use proptest::prelude::*;

#[derive(Debug, Clone)]
pub(crate) enum Step {
    Write { offset: u64, len: usize, seed: u8 },
    Truncate(u64),
    Read { offset: u64, len: usize },
    Reopen,
}

pub(crate) fn steps() -> impl Strategy<Value = Vec<Step>> {
    let offset = 0..6 * UNIT64;
    let step = prop_oneof![
        4 => (offset.clone(), 1..3 * UNIT as usize, any::<u8>())
            .prop_map(|(offset, len, seed)| Step::Write { offset, len, seed }),
        1 => (0..8 * UNIT64).prop_map(Step::Truncate),
        3 => (offset, 1..4 * UNIT as usize).prop_map(|(offset, len)| Step::Read { offset, len }),
        1 => Just(Step::Reopen),
    ];
    proptest::collection::vec(step, 1..24)
}
