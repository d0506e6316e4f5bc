//! The cautious opening of an initiator to a peer of another implementation.
//!
//! Linux siw sends its MPA reply before it starts to watch for data (`siw_accept`), a race. A first
//! FPDU that arrives in between stays unseen in its socket until more data comes. No more comes if
//! the initiator waits for the answer to its request: a deadlock. So this side delays its first
//! FPDU for a moment, which is enough unless the peer is very busy. If no answer arrives after that
//! FPDU, this side follows up with zero-length RDMA writes (nudges). Such a write names no memory
//! (RFC 5040 5.2.1) and needs no receive. Peers send one as a ready-to-receive frame (RFC 6581
//! 9.2). Some adapters are said to dislike it, so it is reserved for this case.
//!
//! Invariants
//! * Pure code: the action follows from the data sent and received when a timer expires.
//! * A peer of this implementation, and a peer that initiated the connection, gets its first FPDU
//!   at once.
//! * The nudges are few, and none is sent after the peer was heard.

use super::limits::{FIRST_WORD_DELAY_MS, NUDGE_AFTER_MS, NUDGE_COUNT_MAX};
use std::time::Duration;

/// The state of the opening.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Opening {
    /// No caution is needed, or none any more.
    Done,
    /// Sending is on hold.
    Hold,
    /// The first FPDU may have been sent, and no answer has arrived; the number of nudges so far.
    Unheard(u32),
}

/// The action when the timer has expired.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Due {
    Nothing,
    /// Send queued work.
    Speak,
    /// Send a zero-length write.
    Nudge,
}

impl Opening {
    pub(crate) fn new(initiator: bool, foreign: bool) -> Self {
        if initiator && foreign { Opening::Hold } else { Opening::Done }
    }

    /// The opening of a responder, which waits for the first FPDU of an initiator but may have
    /// missed it.
    pub(crate) fn of_listener() -> Self {
        Opening::Unheard(0)
    }

    /// True while sending is on hold.
    pub(crate) fn is_held(self) -> bool {
        self == Opening::Hold
    }

    /// Time until the next timer expires; `None` if none is needed.
    pub(crate) fn next_timer(self) -> Option<Duration> {
        let ms = match self {
            Opening::Done => return None,
            Opening::Hold => FIRST_WORD_DELAY_MS,
            Opening::Unheard(nudges) => NUDGE_AFTER_MS << nudges,
        };
        Some(Duration::from_millis(ms))
    }

    /// Handles the timer; `said` and `heard` state whether this side has sent and received an FPDU.
    pub(crate) fn timer_ran_out(&mut self, said: bool, heard: bool) -> Due {
        match *self {
            Opening::Done => Due::Nothing,
            Opening::Hold => {
                *self = Opening::Unheard(0);
                Due::Speak
            }
            // An FPDU that was not sent until now will be seen: the peer has had its moment.
            Opening::Unheard(nudges) if !said || heard || nudges == NUDGE_COUNT_MAX => {
                *self = Opening::Done;
                Due::Nothing
            }
            Opening::Unheard(nudges) => {
                *self = Opening::Unheard(nudges + 1);
                Due::Nudge
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_initiator_waits_and_only_for_strangers() {
        for (initiator, foreign) in [(false, false), (false, true), (true, false)] {
            let opening = Opening::new(initiator, foreign);
            assert_eq!((opening, opening.next_timer()), (Opening::Done, None));
        }
        assert!(Opening::new(true, true).is_held());
    }

    #[test]
    fn a_silent_peer_is_nudged_a_few_times_ever_more_rarely() {
        let mut opening = Opening::new(true, true);
        let mut last = opening.next_timer().unwrap();
        assert_eq!(opening.timer_ran_out(false, false), Due::Speak);
        for _ in 0..NUDGE_COUNT_MAX {
            let next = opening.next_timer().unwrap();
            assert!(next > last);
            last = next;
            assert_eq!(opening.timer_ran_out(true, false), Due::Nudge);
        }
        assert_eq!(opening.timer_ran_out(true, false), Due::Nothing);
        assert_eq!(opening.next_timer(), None);
    }

    #[test]
    fn a_timer_without_need_sends_nothing() {
        for (said, heard) in [(false, false), (true, true)] {
            let mut opening = Opening::Unheard(0);
            assert_eq!(opening.timer_ran_out(said, heard), Due::Nothing);
            assert_eq!(opening, Opening::Done);
        }
    }
}
