//! How many calls a peer may have in flight (RFC 8166 section 3.3.1), and how many receives must
//! be posted for that.
//!
//! Invariants
//! * Posted receives and calls in hand are never fewer than the calls that the peer may have in
//!   flight and the replies that this side waits for together.
//! * At least one call is always granted.
//! * What was granted and is taken back stays usable for a peer that does not know it yet. With each
//!   answer, which tells it, one call less can be in flight.

/// The credits of one connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Credits {
    /// Calls that the peer is told it may have in flight.
    granted: u32,
    /// Calls that it may have in flight as far as it knows; not fewer.
    usable: u32,
    /// What the peer said last that it would like.
    wanted: u32,
    /// Receives that are posted.
    posted: u32,
    /// Calls that have arrived and are not answered.
    in_hand: u32,
    /// Calls in the other direction that are not answered.
    back: u32,
    /// Calls answered since the last raise or look at the clock.
    answered: u32,
    /// Calls answered since the clock was last looked at, and how often they were few.
    recent: u32,
    quiet_ticks: u32,
}

/// So often must few calls have been answered from one look at the clock to the next before credits
/// are taken back.
const QUIET_TICKS: u32 = 10;

impl Credits {
    /// Before anything has arrived.
    pub(super) fn new(granted: u32) -> Self {
        Self {
            granted: granted.max(1),
            usable: granted.max(1),
            wanted: 1,
            posted: 0,
            in_hand: 0,
            back: 0,
            answered: 0,
            recent: 0,
            quiet_ticks: 0,
        }
    }

    pub(super) fn granted(&self) -> u32 {
        self.granted
    }

    pub(super) fn usable(&self) -> u32 {
        self.usable
    }

    pub(super) fn in_hand(&self) -> u32 {
        self.in_hand
    }

    /// Receives that are missing.
    pub(super) fn missing(&self) -> u32 {
        (self.usable + self.back).saturating_sub(self.posted + self.in_hand)
    }

    /// A receive has been posted.
    pub(super) fn post(&mut self) {
        self.posted += 1;
    }

    /// A receive is no longer posted.
    pub(super) fn arrive(&mut self) {
        debug_assert!(self.posted > 0, "a message without a receive");
        self.posted = self.posted.saturating_sub(1);
    }

    /// A call has arrived, whose sender would like to have so many in flight.
    pub(super) fn begin(&mut self, wanted: u32) {
        self.in_hand += 1;
        self.wanted = wanted;
    }

    /// A call is about to be answered, or will never be.
    pub(super) fn end(&mut self) {
        debug_assert!(self.in_hand > 0, "an answer to no call");
        self.in_hand = self.in_hand.saturating_sub(1);
        self.usable = self.granted.max(self.usable - 1);
        self.answered = self.answered.saturating_add(1);
        self.recent = self.recent.saturating_add(1);
    }

    /// A call in the other direction is about to be sent.
    pub(super) fn begin_back(&mut self) {
        self.back += 1;
    }

    /// The answer to one has arrived.
    pub(super) fn end_back(&mut self) {
        self.back = self.back.saturating_sub(1);
    }

    /// What may be granted next: twice as many for somebody who uses what there is, up to `max`.
    pub(super) fn aim(&self, max: u32) -> u32 {
        let used = self.answered >= self.granted;
        let goal = if used { self.granted.saturating_mul(2) } else { self.granted };
        goal.min(self.wanted).min(max).max(self.granted)
    }

    /// Grants so many from now on. The receives for them are posted before anything is sent.
    pub(super) fn raise(&mut self, granted: u32) {
        debug_assert!(granted >= self.granted);
        self.granted = granted;
        self.usable = self.usable.max(granted);
        self.answered = 0;
    }

    /// Looks at how much was used since the last time. Half of what a peer does not use for long is
    /// taken back, down to `min`.
    pub(super) fn tick(&mut self, min: u32) {
        self.answered = 0;
        let few = std::mem::take(&mut self.recent) < self.granted / 4;
        self.quiet_ticks = if few { self.quiet_ticks + 1 } else { 0 };
        if self.quiet_ticks >= QUIET_TICKS {
            self.quiet_ticks = 0;
            self.granted = (self.granted / 2).max(min).min(self.granted);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(credits: &mut Credits) -> u32 {
        let missing = credits.missing();
        (0..missing).for_each(|_| credits.post());
        missing
    }

    #[test]
    fn each_call_is_followed_by_one_receive() {
        let mut credits = Credits::new(4);
        assert_eq!(fill(&mut credits), 4);
        for _ in 0..3 {
            credits.arrive();
            credits.begin(128);
            assert_eq!(credits.missing(), 0);
        }
        credits.end();
        assert_eq!(fill(&mut credits), 1);
        assert_eq!((credits.in_hand(), credits.granted()), (2, 4));
    }

    #[test]
    fn who_uses_its_credits_gets_more_up_to_its_wish() {
        let mut credits = Credits::new(4);
        let mut granted = Vec::new();
        for _ in 0..200 {
            fill(&mut credits);
            credits.arrive();
            credits.begin(50);
            credits.end();
            let aim = credits.aim(64);
            if aim > credits.granted() {
                credits.raise(aim);
                granted.push(aim);
            }
        }
        assert_eq!(granted, [8, 16, 32, 50]);
        credits.begin(0);
        credits.end();
        assert_eq!(credits.aim(64), 50);
        assert_eq!(Credits::new(0).granted(), 1);
    }

    #[test]
    fn what_is_not_used_is_taken_back_in_time() {
        let mut credits = Credits::new(64);
        fill(&mut credits);
        let serve = |credits: &mut Credits, calls| {
            for _ in 0..calls {
                credits.arrive();
                credits.begin(64);
                credits.end();
                fill(credits);
            }
        };
        for _ in 0..100 {
            serve(&mut credits, 16);
            credits.tick(4);
        }
        assert_eq!((credits.granted(), credits.posted), (64, 64));
        (0..10).for_each(|_| credits.tick(4));
        assert_eq!((credits.granted(), credits.posted), (32, 64));
        (0..100).for_each(|_| credits.tick(4));
        serve(&mut credits, 59);
        assert_eq!((credits.granted(), credits.posted), (4, 5));
        serve(&mut credits, 9);
        assert_eq!((credits.granted(), credits.posted), (4, 4));
    }

    #[test]
    fn what_is_no_call_costs_the_peer_nothing_that_it_may_use() {
        let mut credits = Credits::new(64);
        fill(&mut credits);
        (0..100).for_each(|_| credits.tick(4));
        // An answer to a call back.
        credits.begin_back();
        fill(&mut credits);
        credits.arrive();
        credits.end_back();
        // Something obsolete.
        credits.arrive();
        fill(&mut credits);
        assert_eq!((credits.granted(), credits.posted), (4, 64));
    }

    #[test]
    fn a_call_back_needs_a_receive_of_its_own() {
        let mut credits = Credits::new(2);
        fill(&mut credits);
        credits.begin_back();
        assert_eq!(fill(&mut credits), 1);
        credits.arrive();
        credits.end_back();
        assert_eq!(credits.missing(), 0);
    }
}
