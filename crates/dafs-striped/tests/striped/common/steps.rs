//! Random operations on one file of a striped store, for property tests.

use super::striped::{UNIT, UNIT64, pattern};
use dafs_store::{OpenFile, StoreError};
use dafs_testkit::stores::{read, write};
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

/// Runs a step other than a reopen on a file and on its model. With `may_refuse` the store may refuse
/// it, or a part of it, because nodes are unreachable. False if it refused a write.
pub(crate) fn run(step: Step, file: &dyn OpenFile, model: &mut Vec<u8>, may_refuse: bool) -> bool {
    match step {
        Step::Write { offset, len, seed } => {
            let bytes = pattern(len, seed);
            let written = write(file, offset, &bytes);
            assert!(written == Ok(len) || may_refuse, "{written:?}");
            let Ok(count) = written else {
                assert_eq!(written, Err(StoreError::Busy));
                return false;
            };
            let end = offset as usize + count;
            model.resize(model.len().max(end), 0);
            model[offset as usize..end].copy_from_slice(&bytes[..count]);
        }
        Step::Truncate(size) => {
            file.set_size(size).unwrap();
            model.resize(size as usize, 0);
        }
        Step::Read { offset, len } => {
            let rest = &model[model.len().min(offset as usize)..];
            match read(file, offset, len) {
                Ok(got) => {
                    assert!(got.len() == len.min(rest.len()) || may_refuse);
                    assert_eq!(got, &rest[..got.len()]);
                }
                Err(error) => assert!(error == StoreError::Busy && may_refuse, "{error}"),
            }
        }
        Step::Reopen => {}
    }
    true
}
