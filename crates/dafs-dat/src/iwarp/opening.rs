//! How an initiator begins to speak to a stranger.
//!
//! Linux siw sends its MPA reply before it starts to listen for data (`siw_accept`). A first FPDU
//! that arrives in between stays in its socket, unseen, until more data comes; and as the
//! responder of a request waits for it, none does. So this side waits a moment before it says its
//! first word, which is enough unless the other one is very busy; and when the word was said and
//! nothing at all comes back, it follows up with RDMA writes of nothing. Such a write names no
//! memory (RFC 5040 5.2.1), needs no receive, and is what peers say by themselves to be ready
//! (RFC 6581 9.2), but some adapters are said to dislike it, so it is kept for that case.
//!
//! Invariants
//! * Pure: what to do follows from what has been sent and heard when a timer runs out.
//! * A peer of our own, and whoever connected to us, is spoken to at once.
//! * The follow-ups are few, and there is none once the peer was heard.

use super::limits::{FIRST_WORD_DELAY_MS, NUDGE_AFTER_MS, NUDGE_COUNT_MAX};
use std::time::Duration;

/// How far the conversation is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Opening {
    /// There is nothing to be careful about, or not any more.
    Done,
    /// Nothing may be sent yet.
    Hold,
    /// The first word may have been said, and this many follow-ups were sent.
    Unheard(u32),
}

/// What to do when the timer has run out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Due {
    Nothing,
    /// Send what waits.
    Speak,
    /// Send a write of nothing.
    Nudge,
}

impl Opening {
    pub(crate) fn new(initiator: bool, stranger: bool) -> Self {
        if initiator && stranger { Opening::Hold } else { Opening::Done }
    }

    /// For one who waits for the first word of an initiator, but may itself be the one that has
    /// missed it.
    pub(crate) fn of_listener() -> Self {
        Opening::Unheard(0)
    }

    /// Whether sending has to wait.
    pub(crate) fn is_held(self) -> bool {
        self == Opening::Hold
    }

    /// When the next timer runs out, from now on; `None` if none is needed.
    pub(crate) fn next_timer(self) -> Option<Duration> {
        let ms = match self {
            Opening::Done => return None,
            Opening::Hold => FIRST_WORD_DELAY_MS,
            Opening::Unheard(nudges) => NUDGE_AFTER_MS << nudges,
        };
        Some(Duration::from_millis(ms))
    }

    /// The timer has run out; whether anything was `said` by this side, and anything `heard`.
    pub(crate) fn timer_ran_out(&mut self, said: bool, heard: bool) -> Due {
        match *self {
            Opening::Done => Due::Nothing,
            Opening::Hold => {
                *self = Opening::Unheard(0);
                Due::Speak
            }
            // What was not said until now will be heard: the peer has had its moment.
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
        for (initiator, stranger) in [(false, false), (false, true), (true, false)] {
            let opening = Opening::new(initiator, stranger);
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
    fn nobody_is_nudged_without_need() {
        for (said, heard) in [(false, false), (true, true)] {
            let mut opening = Opening::Unheard(0);
            assert_eq!(opening.timer_ran_out(said, heard), Due::Nothing);
            assert_eq!(opening, Opening::Done);
        }
    }
}
