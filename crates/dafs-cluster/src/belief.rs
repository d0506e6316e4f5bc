//! What a data server believes of state-ids, and for how long. No I/O, no clock.
//!
//! Invariants
//! * A belief counts from when the question was sent, so it is over at the data server before the
//!   metadata server takes it for over, however long the answer took.
//! * An answer to a question that was sent before its component was forgotten means nothing, nor does
//!   one that comes when what it says is over.

use crate::limits::{BELIEFS_MAX, STATE_BELIEF};
use dafs_store::striped::ComponentId;
use rustc_hash::FxHashMap;
use std::time::Duration;

/// Who wants to do what, as one string of bytes.
pub(crate) type Use = Box<[u8]>;

/// A question that was sent.
#[derive(Debug)]
pub(crate) struct Question {
    component: ComponentId,
    generation: u64,
    asked: Duration,
}

#[derive(Debug, Default)]
struct Known {
    /// Questions without an answer.
    asking: u32,
    /// How often the component was forgotten while there were any.
    generation: u64,
    /// What may be done, and until when.
    uses: FxHashMap<Use, Duration>,
}

/// The beliefs of a data server. Times are of one clock.
#[derive(Debug, Default)]
pub(crate) struct Beliefs {
    components: FxHashMap<ComponentId, Known>,
    count: usize,
}

impl Beliefs {
    /// Whether a use is believed to be allowed.
    pub(crate) fn allow(&self, component: &ComponentId, wanted: &[u8], now: Duration) -> bool {
        let known = self.components.get(component);
        known.and_then(|known| known.uses.get(wanted)).is_some_and(|&until| now < until)
    }

    /// A question about a component is sent now. It has to be [ended](Self::answered).
    pub(crate) fn ask(&mut self, component: ComponentId, now: Duration) -> Question {
        let known = self.components.entry(component).or_default();
        known.asking += 1;
        Question { component, generation: known.generation, asked: now }
    }

    /// The answer has come, a yes or something else. True if it means something: not when it was so
    /// long under way that a yes is over already.
    pub(crate) fn answered(
        &mut self,
        question: Question,
        wanted: Use,
        yes: bool,
        now: Duration,
    ) -> bool {
        let Question { component, generation, asked } = question;
        let Some(known) = self.components.get_mut(&component) else { return false };
        assert!(known.asking > 0, "a question is answered once");
        known.asking -= 1;
        let current = known.generation == generation && now < asked + STATE_BELIEF;
        if current && yes && known.uses.insert(wanted, asked + STATE_BELIEF).is_none() {
            self.count += 1;
        }
        self.tidy(&component);
        if self.count > BELIEFS_MAX {
            self.drop_all();
        }
        current
    }

    /// Nothing is believed of a component any more.
    pub(crate) fn forget(&mut self, component: &ComponentId) {
        if let Some(known) = self.components.get_mut(component) {
            known.generation += 1;
            self.count -= std::mem::take(&mut known.uses).len();
            self.tidy(component);
        }
    }

    /// Nothing is believed any more: another metadata server may be there.
    pub(crate) fn forget_all(&mut self) {
        self.components.values_mut().for_each(|known| known.generation += 1);
        self.drop_all();
    }

    fn drop_all(&mut self) {
        self.components.values_mut().for_each(|known| known.uses = FxHashMap::default());
        self.components.retain(|_, known| known.asking > 0);
        self.count = 0;
    }

    fn tidy(&mut self, component: &ComponentId) {
        let unused = |known: &Known| known.asking == 0 && known.uses.is_empty();
        if self.components.get(component).is_some_and(unused) {
            self.components.remove(component);
        }
    }

    #[cfg(test)]
    fn len(&self) -> (usize, usize) {
        (self.components.len(), self.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: ComponentId = ComponentId([1; 16]);
    const TWO: ComponentId = ComponentId([2; 16]);

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn wanted(number: u32) -> Use {
        number.to_be_bytes().into()
    }

    fn learn(beliefs: &mut Beliefs, component: ComponentId, number: u32, now: Duration) {
        let question = beliefs.ask(component, now);
        assert!(beliefs.answered(question, wanted(number), true, now));
    }

    #[test]
    fn a_yes_is_believed_for_a_while_from_when_it_was_asked_for() {
        let mut beliefs = Beliefs::default();
        learn(&mut beliefs, ONE, 1, at(10));
        let end = at(10) + STATE_BELIEF;
        assert!(beliefs.allow(&ONE, &wanted(1), end - Duration::from_nanos(1)));
        assert!(!beliefs.allow(&ONE, &wanted(1), end));
        assert!(!beliefs.allow(&ONE, &wanted(2), at(10)));
        assert!(!beliefs.allow(&TWO, &wanted(1), at(10)));
    }

    #[test]
    fn a_yes_that_was_long_under_way_is_not_acted_on() {
        let mut beliefs = Beliefs::default();
        let end = at(10) + STATE_BELIEF;
        let question = beliefs.ask(ONE, at(10));
        assert!(!beliefs.answered(question, wanted(1), true, end));
        assert!(!beliefs.allow(&ONE, &wanted(1), end));
        assert_eq!(beliefs.len(), (0, 0));
        let question = beliefs.ask(ONE, at(10));
        assert!(beliefs.answered(question, wanted(1), true, end - Duration::from_nanos(1)));
    }

    #[test]
    fn a_no_is_not_kept() {
        let mut beliefs = Beliefs::default();
        let question = beliefs.ask(ONE, at(0));
        assert!(beliefs.answered(question, wanted(1), false, at(0)));
        assert!(!beliefs.allow(&ONE, &wanted(1), at(0)));
        assert_eq!(beliefs.len(), (0, 0));
    }

    #[test]
    fn what_was_asked_before_a_component_was_forgotten_means_nothing() {
        let mut beliefs = Beliefs::default();
        learn(&mut beliefs, ONE, 1, at(0));
        learn(&mut beliefs, TWO, 1, at(0));
        let question = beliefs.ask(ONE, at(0));
        beliefs.forget(&ONE);
        assert!(!beliefs.allow(&ONE, &wanted(1), at(0)));
        assert!(beliefs.allow(&TWO, &wanted(1), at(0)));
        let later = beliefs.ask(ONE, at(0));
        assert!(!beliefs.answered(question, wanted(2), true, at(0)));
        assert!(!beliefs.allow(&ONE, &wanted(2), at(0)));
        assert!(beliefs.answered(later, wanted(2), true, at(0)));
        assert!(beliefs.allow(&ONE, &wanted(2), at(0)));
        let question = beliefs.ask(TWO, at(0));
        beliefs.forget_all();
        assert!(!beliefs.allow(&TWO, &wanted(1), at(0)));
        assert!(!beliefs.answered(question, wanted(3), true, at(0)));
        assert_eq!(beliefs.len(), (0, 0));
    }

    #[test]
    fn a_hostile_client_costs_bounded_memory_and_nobody_anything_else_than_time() {
        let mut beliefs = Beliefs::default();
        let open = beliefs.ask(TWO, at(0));
        for number in 0..=BELIEFS_MAX as u32 {
            learn(&mut beliefs, ONE, number, at(0));
        }
        assert_eq!(beliefs.len(), (1, 0));
        assert!(beliefs.answered(open, wanted(1), true, at(0)));
        assert_eq!(beliefs.len(), (1, 1));
    }
}
