//! A data server's cache of authorisations, by state-id. No I/O, no clock.
//!
//! Invariants
//! * The lifetime of an entry starts when its question was sent. So it expires at the data server
//!   before the metadata server counts it as expired, however long the answer took.
//! * An answer is ignored if its question was sent before the component was forgotten, or if its
//!   entry would have expired already.
//! * An authorisation may hold only for sessions that are younger than some moment. Of several
//!   moments the latest counts.
//! * An authorisation holds for the state-id's sequence numbers up to that of the question. The
//!   data server asks again about later ones. So a client has one entry for each state-id, for any
//!   number of sequence numbers.

use crate::limits::{GRANT_TTL, GRANTS_MAX};
use dafs_store::node::ComponentId;
use rustc_hash::FxHashMap;
use std::time::Duration;

/// A client and its intended use, as one string of bytes.
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
    /// How often the component was forgotten during questions.
    generation: u64,
    /// The authorised uses.
    uses: FxHashMap<Use, Yes>,
    /// When expired uses are removed next.
    swept: Duration,
}

#[derive(Debug, Clone, Copy)]
struct Yes {
    until: Duration,
    /// The last sequence number that is known to be valid.
    seqid: u32,
    /// The earliest creation time of a session that may use it.
    made: Option<Duration>,
}

/// An authorisation, with the earliest creation time of a session that may use it.
pub(crate) type Made = Option<Duration>;

impl Known {
    fn is_unused(&self) -> bool {
        self.asking == 0 && self.uses.is_empty()
    }

    /// Removes expired uses. Returns their number.
    fn drop_over(&mut self, now: Duration) -> usize {
        let before = self.uses.len();
        self.uses.retain(|_, yes| now < yes.until);
        before - self.uses.len()
    }
}

/// The cache of a data server. All times are of one clock.
#[derive(Debug, Default)]
pub(crate) struct Grants {
    components: FxHashMap<ComponentId, Known>,
    count: usize,
}

impl Grants {
    /// Returns the cached authorisation of a use, if there is one.
    pub(crate) fn allow(
        &self,
        component: &ComponentId,
        (wanted, seqid): (&[u8], u32),
        now: Duration,
    ) -> Option<Made> {
        let known = self.components.get(component).and_then(|known| known.uses.get(wanted))?;
        (now < known.until && seqid <= known.seqid).then_some(known.made)
    }

    /// Notes that a question about a component is sent now. Each question has to be
    /// [ended](Self::answered).
    pub(crate) fn ask(&mut self, component: ComponentId, now: Duration) -> Question {
        let known = self.components.entry(component).or_default();
        known.asking += 1;
        Question { component, generation: known.generation, asked: now }
    }

    /// Takes the answer, an authorisation or a refusal. True if the answer may be used: an
    /// authorisation may have expired on its way.
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
        let current = known.generation == generation && now < asked + GRANT_TTL;
        if now >= known.swept {
            known.swept = now + GRANT_TTL;
            self.count -= known.drop_over(now);
        }
        if current && let Some(made) = yes {
            let before = known.uses.len();
            let fresh = Yes { until: asked + GRANT_TTL, seqid, made };
            let yes = known.uses.entry(wanted).or_insert(fresh);
            *yes = Yes {
                until: fresh.until.max(yes.until),
                seqid: seqid.max(yes.seqid),
                made: made.max(yes.made),
            };
            self.count += known.uses.len() - before;
        }
        self.tidy(&component);
        if self.count > GRANTS_MAX {
            self.make_room(now);
        }
        current
    }

    /// Expired entries are removed first.
    fn make_room(&mut self, now: Duration) {
        for known in self.components.values_mut() {
            self.count -= known.drop_over(now);
        }
        if self.count > GRANTS_MAX / 4 * 3 {
            self.drop_all();
        }
        self.components.retain(|_, known| !known.is_unused());
    }

    /// Removes all authorisations for a component.
    pub(crate) fn forget(&mut self, component: &ComponentId) {
        if let Some(known) = self.components.get_mut(component) {
            known.generation += 1;
            self.count -= std::mem::take(&mut known.uses).len();
            self.tidy(component);
        }
    }

    /// Removes all authorisations, because there may be another metadata server.
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

    fn allow(grants: &Grants, component: &ComponentId, number: u32, now: Duration) -> bool {
        let (wanted, seqid) = wanted(number);
        grants.allow(component, (&wanted, seqid), now).is_some()
    }

    fn learn(grants: &mut Grants, component: ComponentId, number: u32, now: Duration) {
        let question = grants.ask(component, now);
        assert!(grants.answered(question, wanted(number), YES, now));
    }

    #[test]
    fn a_grant_lives_from_the_question_on() {
        let mut grants = Grants::default();
        learn(&mut grants, ONE, 1, at(10));
        let end = at(10) + GRANT_TTL;
        assert!(allow(&grants, &ONE, 1, end - Duration::from_nanos(1)));
        assert!(!allow(&grants, &ONE, 1, end));
        assert!(!allow(&grants, &ONE, 2, at(10)));
        assert!(!allow(&grants, &TWO, 1, at(10)));
    }

    #[test]
    fn a_yes_that_was_long_under_way_is_not_acted_on() {
        let mut grants = Grants::default();
        let end = at(10) + GRANT_TTL;
        let question = grants.ask(ONE, at(10));
        assert!(!grants.answered(question, wanted(1), YES, end));
        assert!(!allow(&grants, &ONE, 1, end));
        assert_eq!(grants.len(), (0, 0));
        let question = grants.ask(ONE, at(10));
        assert!(grants.answered(question, wanted(1), YES, end - Duration::from_nanos(1)));
    }

    #[test]
    fn a_no_is_not_kept() {
        let mut grants = Grants::default();
        let question = grants.ask(ONE, at(0));
        assert!(grants.answered(question, wanted(1), None, at(0)));
        assert!(!allow(&grants, &ONE, 1, at(0)));
        assert_eq!(grants.len(), (0, 0));
    }

    #[test]
    fn answers_to_questions_before_a_drop_of_grants_are_void() {
        let mut grants = Grants::default();
        learn(&mut grants, ONE, 1, at(0));
        learn(&mut grants, TWO, 1, at(0));
        let question = grants.ask(ONE, at(0));
        grants.forget(&ONE);
        assert!(!allow(&grants, &ONE, 1, at(0)));
        assert!(allow(&grants, &TWO, 1, at(0)));
        let later = grants.ask(ONE, at(0));
        assert!(!grants.answered(question, wanted(2), YES, at(0)));
        assert!(!allow(&grants, &ONE, 2, at(0)));
        assert!(grants.answered(later, wanted(2), YES, at(0)));
        assert!(allow(&grants, &ONE, 2, at(0)));
        let question = grants.ask(TWO, at(0));
        grants.forget_all();
        assert!(!allow(&grants, &TWO, 1, at(0)));
        assert!(!grants.answered(question, wanted(3), YES, at(0)));
        assert_eq!(grants.len(), (0, 0));
    }

    #[test]
    fn a_yes_for_a_number_is_one_for_those_before_and_for_no_later_one() {
        let mut grants = Grants::default();
        for seqid in [3, 2] {
            let question = grants.ask(ONE, at(0));
            assert!(grants.answered(question, (wanted(1).0, seqid), YES, at(0)));
        }
        assert_eq!(grants.len(), (1, 1));
        for (seqid, good) in [(0, true), (2, true), (3, true), (4, false), (u32::MAX, false)] {
            let allowed = grants.allow(&ONE, (&wanted(1).0, seqid), at(0));
            assert_eq!(allowed.is_some(), good, "{seqid}");
        }
    }

    #[test]
    fn of_several_moments_that_sessions_have_to_be_younger_than_the_latest_counts() {
        let mut grants = Grants::default();
        let made = |grants: &Grants| grants.allow(&ONE, (&wanted(1).0, 1), at(9));
        for (said, known) in [(None, None), (Some(3), Some(3)), (Some(2), Some(3)), (None, Some(3))]
        {
            let question = grants.ask(ONE, at(9));
            assert!(grants.answered(question, wanted(1), Some(said.map(at)), at(9)));
            assert_eq!(made(&grants), Some(known.map(at)));
        }
    }

    #[test]
    fn expired_grants_make_room() {
        let mut grants = Grants::default();
        (0..10).for_each(|number| learn(&mut grants, ONE, number, at(0)));
        assert_eq!(grants.len(), (1, 10));
        learn(&mut grants, ONE, 11, at(0) + 2 * GRANT_TTL);
        assert_eq!(grants.len(), (1, 1));
        // Entries of components without recent questions are removed, too, and no others.
        let now = at(100);
        (0..GRANTS_MAX as u32 / 2).for_each(|number| learn(&mut grants, TWO, number, now));
        let later = now + GRANT_TTL - Duration::from_secs(1);
        (0..GRANTS_MAX as u32 / 2).for_each(|number| learn(&mut grants, ONE, number, later));
        learn(&mut grants, ONE, u32::MAX, now + GRANT_TTL);
        assert_eq!(grants.len(), (1, GRANTS_MAX / 2 + 1));
    }

    #[test]
    fn a_hostile_client_costs_bounded_memory_and_only_time_of_others() {
        let mut grants = Grants::default();
        let open = grants.ask(TWO, at(0));
        for number in 0..=GRANTS_MAX as u32 {
            learn(&mut grants, ONE, number, at(0));
        }
        assert_eq!(grants.len(), (1, 0));
        assert!(grants.answered(open, wanted(1), YES, at(0)));
        assert_eq!(grants.len(), (1, 1));
    }
}
