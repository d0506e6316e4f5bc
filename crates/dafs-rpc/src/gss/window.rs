//! The replay window of a context (RFC 2203 section 5.3.3.1).
//!
//! Invariants
//! * Each number is fresh once: of several threads that claim it, one gets it.
//! * A number below the window is never fresh.
//! * Only a claim moves the window. Callers claim a number after they have verified the header that
//!   states it, so a forged number moves nothing.

use crate::limits::GSS_WINDOW;
use dafs_mem::Mutex;
use dafs_wire::rpc::gss::SEQUENCE_MAX;

const WORD_BITS: u32 = u64::BITS;
const WORDS: usize = (GSS_WINDOW / WORD_BITS) as usize;

/// The state of a sequence number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Freshness {
    /// No call had it.
    Fresh,
    /// A call had it.
    Seen,
    /// It is too old to tell.
    Below,
    /// It is above [`SEQUENCE_MAX`].
    TooLarge,
}

/// The sequence numbers of the calls in a context.
#[derive(Debug, Default)]
pub(super) struct Window(Mutex<Numbers>);

/// The highest number, and the ones that were seen among the last [`GSS_WINDOW`].
#[derive(Debug, Default)]
struct Numbers {
    /// None before the first call.
    highest: Option<u32>,
    /// One bit for each number, at the number modulo [`GSS_WINDOW`].
    seen: [u64; WORDS],
}

impl Window {
    /// Marks a fresh number as seen, and returns its state before.
    pub(super) fn claim(&self, number: u32) -> Freshness {
        self.0.lock().claim(number)
    }
}

impl Numbers {
    fn check(&self, number: u32) -> Freshness {
        if number > SEQUENCE_MAX {
            return Freshness::TooLarge;
        }
        match self.highest {
            Some(highest) if number <= highest => {
                let (word, bit) = place(number);
                if highest - number >= GSS_WINDOW {
                    Freshness::Below
                } else if self.seen[word] & bit != 0 {
                    Freshness::Seen
                } else {
                    Freshness::Fresh
                }
            }
            _ => Freshness::Fresh,
        }
    }

    fn claim(&mut self, number: u32) -> Freshness {
        let freshness = self.check(number);
        if freshness == Freshness::Fresh {
            self.move_to(number);
            let (word, bit) = place(number);
            self.seen[word] |= bit;
        }
        freshness
    }

    /// Moves the window up to a number, if it is above.
    fn move_to(&mut self, number: u32) {
        let before = self.highest.unwrap_or(number);
        let steps = number.saturating_sub(before);
        if steps >= GSS_WINDOW {
            self.seen = [0; WORDS];
        } else {
            for entering in before + 1..=before + steps {
                let (word, bit) = place(entering);
                self.seen[word] &= !bit;
            }
        }
        self.highest = Some(before.max(number));
    }
}

/// The word and the bit of a number.
fn place(number: u32) -> (usize, u64) {
    let at = number % GSS_WINDOW;
    ((at / WORD_BITS) as usize, 1 << (at % WORD_BITS))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;
    use std::sync::atomic::{AtomicU32, Ordering};

    /// All numbers ever seen.
    #[derive(Default)]
    struct Model(BTreeSet<u32>);

    impl Model {
        fn claim(&mut self, number: u32) -> Freshness {
            let highest = self.0.last().copied().unwrap_or(0);
            if number > SEQUENCE_MAX {
                Freshness::TooLarge
            } else if u64::from(number) + u64::from(GSS_WINDOW) <= u64::from(highest) {
                Freshness::Below
            } else if self.0.insert(number) {
                Freshness::Fresh
            } else {
                Freshness::Seen
            }
        }
    }

    /// Numbers that stay close, jump, and reach both ends.
    fn numbers() -> impl Strategy<Value = Vec<u32>> {
        let around = |middle: u32| middle.saturating_sub(1500)..middle.saturating_add(1500);
        prop_oneof![
            prop::collection::vec(0u32..3000, 1..300),
            prop::collection::vec(around(SEQUENCE_MAX), 1..300),
            prop::collection::vec(prop_oneof![0u32..5, 1020u32..1030, 2044u32..2052], 1..60),
            prop::collection::vec(prop_oneof![any::<u32>(), 0u32..2000], 1..60),
        ]
    }

    proptest! {
        #[test]
        fn the_window_is_that_of_the_model(numbers in numbers()) {
            let (window, mut model) = (Window::default(), Model::default());
            for number in numbers {
                let looked = window.0.lock().check(number);
                let want = model.claim(number);
                prop_assert_eq!((looked, window.claim(number)), (want, want));
            }
        }
    }

    #[test]
    fn the_last_of_the_window_is_in_it() {
        let window = Window::default();
        assert_eq!(window.claim(5000), Freshness::Fresh);
        assert_eq!(window.claim(5000 - GSS_WINDOW), Freshness::Below);
        assert_eq!(window.claim(5001 - GSS_WINDOW), Freshness::Fresh);
        assert_eq!(window.claim(5001 - GSS_WINDOW), Freshness::Seen);
        assert_eq!(window.claim(SEQUENCE_MAX + 1), Freshness::TooLarge);
        assert_eq!(window.claim(4999), Freshness::Fresh, "nothing moved");
        assert_eq!(window.claim(SEQUENCE_MAX), Freshness::Fresh);
        assert_eq!(window.claim(5001), Freshness::Below);
    }

    #[test]
    fn of_several_threads_one_gets_a_number() {
        const NUMBERS: u32 = 20_000;
        let window = Window::default();
        let claimed = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for number in 0..NUMBERS {
                        let fresh = window.claim(number) == Freshness::Fresh;
                        claimed.fetch_add(u32::from(fresh), Ordering::Relaxed);
                    }
                });
            }
        });
        // A thread may be a window behind the others; then it skips numbers that they have had.
        assert_eq!(claimed.into_inner(), NUMBERS);
    }
}
