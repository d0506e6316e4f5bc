//! Credits: the calls that a peer may have in flight (RFC 8166 section 3.3.1), and the receives
//! that must be posted for them.
//!
//! Invariants
//! * Posted receives and calls in hand are never fewer than the calls that the peer may have in
//!   flight plus the outstanding callbacks.
//! * At least one credit is always granted.
//! * A revoked credit stays usable for a peer that does not know of it yet. Each answer announces
//!   the new grant, and then one call less can be in flight.

/// The credits of one connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Credits {
    /// Credits that the server announces to the peer.
    granted: u32,
    /// Calls that the peer may still have in flight, as far as it knows; not fewer than `granted`.
    usable: u32,
    /// The credits that the peer requested last.
    wanted: u32,
    /// Posted receives.
    posted: u32,
    /// Calls that have arrived and are not answered.
    in_hand: u32,
    /// Outstanding callbacks.
    back: u32,
    /// Calls answered since the last raise or tick.
    answered: u32,
    /// Calls answered since the last tick, and the number of consecutive ticks with few.
    recent: u32,
    quiet_ticks: u32,
}

/// Consecutive ticks with few answered calls before credits are revoked.
const QUIET_TICKS: u32 = 10;

impl Credits {
    /// The state before anything has arrived.
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

    /// Receives to post.
    pub(super) fn missing(&self) -> u32 {
        (self.usable + self.back).saturating_sub(self.posted + self.in_hand)
    }

    /// Records that a receive has been posted.
    pub(super) fn post(&mut self) {
        self.posted += 1;
    }

    /// Records that a receive has been consumed.
    pub(super) fn arrive(&mut self) {
        debug_assert!(self.posted > 0, "a message without a receive");
        self.posted = self.posted.saturating_sub(1);
    }

    /// Records a call whose sender requests `wanted` credits.
    pub(super) fn begin(&mut self, wanted: u32) {
        self.in_hand += 1;
        self.wanted = wanted;
    }

    /// Records that a call is about to be answered, or will never be.
    pub(super) fn end(&mut self) {
        debug_assert!(self.in_hand > 0, "an answer to no call");
        self.in_hand = self.in_hand.saturating_sub(1);
        self.usable = self.granted.max(self.usable - 1);
        self.answered = self.answered.saturating_add(1);
        self.recent = self.recent.saturating_add(1);
    }

    /// Records that a callback is about to be sent.
    pub(super) fn begin_back(&mut self) {
        self.back += 1;
    }

    /// Records the answer to a callback.
    pub(super) fn end_back(&mut self) {
        self.back = self.back.saturating_sub(1);
    }

    /// The next grant: twice as many for a peer that uses its credits, up to `max`.
    pub(super) fn aim(&self, max: u32) -> u32 {
        let used = self.answered >= self.granted;
        let goal = if used { self.granted.saturating_mul(2) } else { self.granted };
        goal.min(self.wanted).min(max).max(self.granted)
    }

    /// Grants `granted` credits from now on. The caller posts their receives before it sends the
    /// next message.
    pub(super) fn raise(&mut self, granted: u32) {
        debug_assert!(granted >= self.granted);
        self.granted = granted;
        self.usable = self.usable.max(granted);
        self.answered = 0;
    }

    /// Checks how many credits were used since the last tick. If a peer leaves most of them unused
    /// for long, half are revoked, down to `min`.
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
    fn a_client_that_uses_its_credits_gets_more() {
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
    fn unused_credits_are_taken_back_in_time() {
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
    fn a_message_that_is_no_call_costs_no_credit() {
        let mut credits = Credits::new(64);
        fill(&mut credits);
        (0..100).for_each(|_| credits.tick(4));
        // The answer to a callback.
        credits.begin_back();
        fill(&mut credits);
        credits.arrive();
        credits.end_back();
        // An obsolete message.
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
