//! Cache hints as Python writes them: words, or weights for reads and writes.

use dafs_client::{AccessPattern, HintWord, Likelihood};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// A hint argument.
#[derive(FromPyObject)]
pub(crate) enum Hint {
    /// The name of a common one.
    #[pyo3(transparent)]
    Named(String),
    /// Weights from 1 (surely not) to 7 (surely) for reads and for writes; 0 says nothing.
    #[pyo3(transparent)]
    Weights((u32, u32)),
}

/// Returns the word of a hint.
pub(crate) fn word(hint: Option<Hint>) -> PyResult<HintWord> {
    match hint {
        None => Ok(HintWord::NONE),
        Some(Hint::Named(name)) => match &*name {
            "done" => Ok(HintWord::DONE),
            "cached" => Ok(HintWord::CACHED),
            "again" => Ok(HintWord::AGAIN),
            _ => Err(wrong("hint is \"done\", \"cached\", \"again\" or a pair of weights")),
        },
        Some(Hint::Weights((read, write))) => {
            let weight = |weight| match weight {
                0 => Ok(None),
                weight => match Likelihood::from_weight(weight) {
                    None => Err(wrong("a weight is 0 to 7")),
                    likelihood => Ok(likelihood),
                },
            };
            Ok(HintWord { prefetch: false, read: weight(read)?, write: weight(write)? })
        }
    }
}

/// Returns the pattern of this name.
pub(crate) fn pattern(name: Option<&str>) -> PyResult<AccessPattern> {
    match name {
        None => Ok(AccessPattern::Normal),
        Some("sequential") => Ok(AccessPattern::Sequential),
        Some("random") => Ok(AccessPattern::Random),
        Some(_) => Err(wrong("pattern is \"sequential\" or \"random\"")),
    }
}

fn wrong(text: &'static str) -> PyErr {
    PyValueError::new_err(text)
}
