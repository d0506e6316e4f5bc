//! What a data server believes of state-ids, and for how long. No I/O, no clock.
//!
//! Invariants
//! * A belief counts from when the question was sent, so it is over at the data server before the
//!   metadata server takes it for over, however long the answer took.
//! * An answer to a question that was sent before its component was forgotten means nothing, nor does
//!   one that comes when what it says is over.
//! * A yes may hold only for what comes by sessions that are younger than something. Of several the
//!   latest moment counts.
//! * A yes holds for the state-id's sequence numbers up to the one that was asked about; later ones are
//!   asked about anew. So a client has one belief for each state-id, however many numbers it shows.

use crate::limits::{BELIEFS_MAX, STATE_BELIEF};
use dafs_store::node::ComponentId;
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
    /// What may be done.
    uses: FxHashMap<Use, Yes>,
    /// When those that are over are looked for next.
    swept: Duration,
}

#[derive(Debug, Clone, Copy)]
struct Yes {
    until: Duration,
    /// The last sequence number that is known to be good.
    seqid: u32,
    /// When a session has to have been made, or later.
    made: Option<Duration>,
}

/// A yes, and when a session has to have been made, or later.
pub(crate) type Made = Option<Duration>;

impl Known {
    fn is_unused(&self) -> bool {
        self.asking == 0 && self.uses.is_empty()
    }

    /// Drops what is over. How many that were.
    fn drop_over(&mut self, now: Duration) -> usize {
        let before = self.uses.len();
        self.uses.retain(|_, yes| now < yes.until);
        before - self.uses.len()
    }
}

/// The beliefs of a data server. Times are of one clock.
#[derive(Debug, Default)]
pub(crate) struct Beliefs {
    components: FxHashMap<ComponentId, Known>,
    count: usize,
}

impl Beliefs {
    /// Whether a use is believed to be allowed, and from when on.
    pub(crate) fn allow(
        &self,
        component: &ComponentId,
        (wanted, seqid): (&[u8], u32),
        now: Duration,
    ) -> Option<Made> {
        let known = self.components.get(component).and_then(|known| known.uses.get(wanted))?;
        (now < known.until && seqid <= known.seqid).then_some(known.made)
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
        (wanted, seqid): (Use, u32),
        yes: Option<Made>,
        now: Duration,
    ) -> bool {
        let Question { component, generation, asked } = question;
        let Some(known) = self.components.get_mut(&component) else { return false };
        assert!(known.asking > 0, "a question is answered once");
        known.asking -= 1;
        let current = known.generation == generation && now < asked + STATE_BELIEF;
        if now >= known.swept {
            known.swept = now + STATE_BELIEF;
            self.count -= known.drop_over(now);
        }
        if current && let Some(made) = yes {
            let before = known.uses.len();
            let fresh = Yes { until: asked + STATE_BELIEF, seqid, made };
            let yes = known.uses.entry(wanted).or_insert(fresh);
            *yes = Yes {
                until: fresh.until.max(yes.until),
                seqid: seqid.max(yes.seqid),
                made: made.max(yes.made),
            };
            self.count += known.uses.len() - before;
        }
        self.tidy(&component);
        if self.count > BELIEFS_MAX {
            self.make_room(now);
        }
        current
    }

    /// Those that are over go first.
    fn make_room(&mut self, now: Duration) {
        for known in self.components.values_mut() {
            self.count -= known.drop_over(now);
        }
        if self.count > BELIEFS_MAX / 4 * 3 {
            self.drop_all();
        }
        self.components.retain(|_, known| !known.is_unused());
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
        if self.components.get(component).is_some_and(Known::is_unused) {
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
    const YES: Option<Made> = Some(None);

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn wanted(number: u32) -> (Use, u32) {
        (number.to_be_bytes().into(), 1)
    }

    fn allow(beliefs: &Beliefs, component: &ComponentId, number: u32, now: Duration) -> bool {
        let (wanted, seqid) = wanted(number);
        beliefs.allow(component, (&wanted, seqid), now).is_some()
    }

    fn learn(beliefs: &mut Beliefs, component: ComponentId, number: u32, now: Duration) {
        let question = beliefs.ask(component, now);
        assert!(beliefs.answered(question, wanted(number), YES, now));
    }

    #[test]
    fn a_yes_is_believed_for_a_while_from_when_it_was_asked_for() {
        let mut beliefs = Beliefs::default();
        learn(&mut beliefs, ONE, 1, at(10));
        let end = at(10) + STATE_BELIEF;
        assert!(allow(&beliefs, &ONE, 1, end - Duration::from_nanos(1)));
        assert!(!allow(&beliefs, &ONE, 1, end));
        assert!(!allow(&beliefs, &ONE, 2, at(10)));
        assert!(!allow(&beliefs, &TWO, 1, at(10)));
    }

    #[test]
    fn a_yes_that_was_long_under_way_is_not_acted_on() {
        let mut beliefs = Beliefs::default();
        let end = at(10) + STATE_BELIEF;
        let question = beliefs.ask(ONE, at(10));
        assert!(!beliefs.answered(question, wanted(1), YES, end));
        assert!(!allow(&beliefs, &ONE, 1, end));
        assert_eq!(beliefs.len(), (0, 0));
        let question = beliefs.ask(ONE, at(10));
        assert!(beliefs.answered(question, wanted(1), YES, end - Duration::from_nanos(1)));
    }

    #[test]
    fn a_no_is_not_kept() {
        let mut beliefs = Beliefs::default();
        let question = beliefs.ask(ONE, at(0));
        assert!(beliefs.answered(question, wanted(1), None, at(0)));
        assert!(!allow(&beliefs, &ONE, 1, at(0)));
        assert_eq!(beliefs.len(), (0, 0));
    }

    #[test]
    fn what_was_asked_before_a_component_was_forgotten_means_nothing() {
        let mut beliefs = Beliefs::default();
        learn(&mut beliefs, ONE, 1, at(0));
        learn(&mut beliefs, TWO, 1, at(0));
        let question = beliefs.ask(ONE, at(0));
        beliefs.forget(&ONE);
        assert!(!allow(&beliefs, &ONE, 1, at(0)));
        assert!(allow(&beliefs, &TWO, 1, at(0)));
        let later = beliefs.ask(ONE, at(0));
        assert!(!beliefs.answered(question, wanted(2), YES, at(0)));
        assert!(!allow(&beliefs, &ONE, 2, at(0)));
        assert!(beliefs.answered(later, wanted(2), YES, at(0)));
        assert!(allow(&beliefs, &ONE, 2, at(0)));
        let question = beliefs.ask(TWO, at(0));
        beliefs.forget_all();
        assert!(!allow(&beliefs, &TWO, 1, at(0)));
        assert!(!beliefs.answered(question, wanted(3), YES, at(0)));
        assert_eq!(beliefs.len(), (0, 0));
    }

    #[test]
    fn a_yes_for_a_number_is_one_for_those_before_and_for_no_later_one() {
        let mut beliefs = Beliefs::default();
        for seqid in [3, 2] {
            let question = beliefs.ask(ONE, at(0));
            assert!(beliefs.answered(question, (wanted(1).0, seqid), YES, at(0)));
        }
        assert_eq!(beliefs.len(), (1, 1));
        for (seqid, good) in [(0, true), (2, true), (3, true), (4, false), (u32::MAX, false)] {
            let allowed = beliefs.allow(&ONE, (&wanted(1).0, seqid), at(0));
            assert_eq!(allowed.is_some(), good, "{seqid}");
        }
    }

    #[test]
    fn of_several_moments_that_sessions_have_to_be_younger_than_the_latest_counts() {
        let mut beliefs = Beliefs::default();
        let made = |beliefs: &Beliefs| beliefs.allow(&ONE, (&wanted(1).0, 1), at(9));
        for (said, known) in [(None, None), (Some(3), Some(3)), (Some(2), Some(3)), (None, Some(3))]
        {
            let question = beliefs.ask(ONE, at(9));
            assert!(beliefs.answered(question, wanted(1), Some(said.map(at)), at(9)));
            assert_eq!(made(&beliefs), Some(known.map(at)));
        }
    }

    #[test]
    fn what_is_over_makes_room() {
        let mut beliefs = Beliefs::default();
        (0..10).for_each(|number| learn(&mut beliefs, ONE, number, at(0)));
        assert_eq!(beliefs.len(), (1, 10));
        learn(&mut beliefs, ONE, 11, at(0) + 2 * STATE_BELIEF);
        assert_eq!(beliefs.len(), (1, 1));
        // That of components that nobody asks about any more, too, and nothing else.
        let now = at(100);
        (0..BELIEFS_MAX as u32 / 2).for_each(|number| learn(&mut beliefs, TWO, number, now));
        let later = now + STATE_BELIEF - Duration::from_secs(1);
        (0..BELIEFS_MAX as u32 / 2).for_each(|number| learn(&mut beliefs, ONE, number, later));
        learn(&mut beliefs, ONE, u32::MAX, now + STATE_BELIEF);
        assert_eq!(beliefs.len(), (1, BELIEFS_MAX / 2 + 1));
    }

    #[test]
    fn a_hostile_client_costs_bounded_memory_and_nobody_anything_else_than_time() {
        let mut beliefs = Beliefs::default();
        let open = beliefs.ask(TWO, at(0));
        for number in 0..=BELIEFS_MAX as u32 {
            learn(&mut beliefs, ONE, number, at(0));
        }
        assert_eq!(beliefs.len(), (1, 0));
        assert!(beliefs.answered(open, wanted(1), YES, at(0)));
        assert_eq!(beliefs.len(), (1, 1));
    }
}
