//! An established context.
//!
//! Invariants
//! * No sequence number is used twice, and none above the maximum of RFC 2203.
//! * A call leaves with a number that is less than half a window below the highest one: a caller
//!   takes no number while the lowest one that has not left is half a window below it. So the
//!   server finds the number of each call in its window, and a call is protected once. The other
//!   half of the window is left for connections that overtake each other on the way.
//! * A context is not used after the end of its ticket, as the client's clock tells it. A new one
//!   has some time in any case: the server has just taken the ticket, so the client's clock is
//!   ahead.

use super::mechanism::{Established, InitiatorKeys};
use crate::client::error::CallError;
use crate::gss::MIC_BYTES_MAX;
use crate::limits::{
    GSS_CONTEXT_TIME_MAX, GSS_CONTEXT_TIME_MIN, GSS_RENEWAL_DIVISOR, GSS_RENEWAL_PAUSE_MIN,
    GSS_RENEWAL_TIME_MAX,
};
use crate::memory::source;
use dafs_mem::{Condvar, Mutex, VolatileSlice};
use dafs_wire::rpc::gss::SEQUENCE_MAX;
use std::collections::BTreeSet;
use std::time::Instant;

/// An established context.
#[derive(Debug)]
pub(super) struct Context {
    /// Its number among the contexts of the initiator.
    pub(super) number: u64,
    /// The name that the server gave it.
    pub(super) handle: Box<[u8]>,
    /// The sequence numbers below the highest one that the server still takes.
    pub(super) window: u32,
    pub(super) keys: Box<dyn InitiatorKeys>,
    pub(super) principal: Box<str>,
    numbers: Mutex<Numbers>,
    /// Notifies the callers that wait for a number.
    has_left: Condvar,
    /// The end of the ticket.
    end: Instant,
    /// The time from which a new context should be made.
    renewal: Instant,
}

/// The sequence numbers of a context.
#[derive(Debug)]
struct Numbers {
    next: u32,
    /// Those that were taken, and whose calls have not left.
    held: BTreeSet<u32>,
}

impl Context {
    pub(super) fn new(
        number: u64,
        handle: &[u8],
        window: u32,
        established: Established,
        now: Instant,
    ) -> Self {
        let Established { principal, remaining, keys } = established;
        let remaining = remaining.min(GSS_CONTEXT_TIME_MAX);
        let ahead = (remaining / GSS_RENEWAL_DIVISOR).min(GSS_RENEWAL_TIME_MAX);
        Self {
            number,
            handle: handle.into(),
            window,
            keys,
            principal: principal.into(),
            numbers: Mutex::new(Numbers { next: 1, held: BTreeSet::new() }),
            has_left: Condvar::new(),
            end: now + remaining.max(GSS_CONTEXT_TIME_MIN),
            renewal: now + remaining.saturating_sub(ahead).max(GSS_RENEWAL_PAUSE_MIN),
        }
    }

    /// Takes a sequence number; `None` when all are used up. The caller tells when the call has
    /// left, or will not. Waits until then for calls of other threads.
    ///
    /// # Errors
    /// [`CallError::TimedOut`].
    pub(super) fn take_sequence(&self, until: Instant) -> Result<Option<u32>, CallError> {
        let mut numbers = self.numbers.lock();
        while numbers.is_full(self.half_window()) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(CallError::TimedOut);
            }
            numbers = self.has_left.wait_timeout(numbers, left).0;
        }
        let sequence = numbers.next;
        if sequence > SEQUENCE_MAX {
            return Ok(None);
        }
        numbers.next += 1;
        numbers.held.insert(sequence);
        Ok(Some(sequence))
    }

    /// Notes that the call with this number has left, or will not.
    pub(super) fn has_left(&self, sequence: u32) {
        let mut numbers = self.numbers.lock();
        let was_full = numbers.is_full(self.half_window());
        numbers.held.remove(&sequence);
        if was_full && !numbers.is_full(self.half_window()) {
            drop(numbers);
            self.has_left.notify_all();
        }
    }

    /// Calls that may wait to leave, or for their replies, at a time.
    pub(super) fn half_window(&self) -> u32 {
        (self.window / 2).max(1)
    }

    /// True while calls can be made in the context.
    pub(super) fn is_usable(&self, now: Instant) -> bool {
        now < self.end && self.numbers.lock().next <= SEQUENCE_MAX
    }

    /// True when another context should take its place soon.
    pub(super) fn wants_renewal(&self, now: Instant) -> bool {
        // The numbers of one half last for years.
        now >= self.renewal || self.numbers.lock().next > SEQUENCE_MAX / 2
    }

    /// Verifies the MIC of one word, which is the verifier of a reply.
    pub(super) fn is_mic_of(&self, word: u32, mic: &[u8]) -> bool {
        self.keys.verify(&[source(&word.to_be_bytes())], mic).is_ok()
    }

    /// The MIC of the concatenated parts.
    pub(super) fn mic(&self, parts: &[VolatileSlice<'_>]) -> Mic {
        let mut mic = Mic { bytes: [0; MIC_BYTES_MAX], len: self.mic_bytes() };
        self.keys.mic(parts, &mut mic.bytes[..mic.len]);
        mic
    }

    pub(super) fn mic_bytes(&self) -> usize {
        let len = self.keys.mic_bytes();
        debug_assert!(len <= MIC_BYTES_MAX, "a mechanism with longer MICs");
        len.min(MIC_BYTES_MAX)
    }
}

impl Numbers {
    /// True while another number would be too far above the lowest one that is held.
    fn is_full(&self, half_window: u32) -> bool {
        self.held.first().is_some_and(|lowest| self.next - lowest >= half_window)
    }
}

/// A MIC.
pub(super) struct Mic {
    bytes: [u8; MIC_BYTES_MAX],
    len: usize,
}

impl Mic {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::gss::BadToken;
    use std::time::Duration;

    /// Keys that protect nothing.
    #[derive(Debug)]
    struct NoKeys;

    impl InitiatorKeys for NoKeys {
        fn mic_bytes(&self) -> usize {
            4
        }

        fn mic(&self, _: &[VolatileSlice<'_>], mic: &mut [u8]) {
            mic.fill(7);
        }

        fn verify(&self, _: &[VolatileSlice<'_>], mic: &[u8]) -> Result<(), BadToken> {
            if mic == [7; 4] { Ok(()) } else { Err(BadToken) }
        }

        fn sealed_bytes(&self, plain_bytes: usize) -> usize {
            plain_bytes
        }

        fn seal(&self, _: &[VolatileSlice<'_>], token: &mut [u8]) {
            token.fill(7);
        }

        fn open(&self, _: &[u8], _: &mut dyn FnMut(&[u8])) -> Result<(), BadToken> {
            Err(BadToken)
        }
    }

    fn context(remaining: Duration, now: Instant) -> Context {
        let keys = Box::new(NoKeys);
        let established = Established { principal: "anna@R".to_owned(), remaining, keys };
        Context::new(1, b"handle", 8, established, now)
    }

    #[test]
    fn a_context_is_renewed_before_its_end_and_not_used_after_it() {
        let now = Instant::now();
        let after = |seconds| now + Duration::from_secs(seconds);
        // A quarter of the time, and five minutes at most, is left for the renewal.
        for (seconds, renewal) in [(100, 75), (36_000, 35_700)] {
            let context = context(Duration::from_secs(seconds), now);
            assert!(!context.wants_renewal(after(renewal - 1)), "{seconds}");
            assert!(context.wants_renewal(after(renewal)) && context.is_usable(after(renewal)));
            assert!(context.is_usable(after(seconds - 1)) && !context.is_usable(after(seconds)));
        }
        // The clock is ahead. A ticket that has just ended is not asked for again and again.
        let ended = context(Duration::ZERO, now);
        assert!(ended.is_usable(after(59)) && !ended.is_usable(after(60)));
        assert!(!ended.wants_renewal(now) && ended.wants_renewal(after(1)));
        let endless = context(Duration::MAX, now);
        assert!(endless.is_usable(after(3600)));
    }

    #[test]
    fn no_number_is_overtaken_by_half_the_window() {
        let now = Instant::now();
        let context = context(Duration::from_secs(60), now);
        let take = || context.take_sequence(now);
        for number in 1..=4 {
            assert_eq!(take(), Ok(Some(number)), "the window has 8 numbers");
        }
        // The first one is still held, however many others have left.
        (2..=4).for_each(|number| context.has_left(number));
        assert_eq!(take(), Err(CallError::TimedOut));
        context.has_left(1);
        (5..=8).for_each(|number| assert_eq!(take(), Ok(Some(number))));
        assert_eq!(take(), Err(CallError::TimedOut));
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| context.take_sequence(now + Duration::from_secs(600)));
            context.has_left(5);
            assert_eq!(waits.join().unwrap(), Ok(Some(9)));
        });
    }

    #[test]
    fn the_smallest_window_has_room_for_a_call() {
        let now = Instant::now();
        let context = Context { window: 0, ..context(Duration::from_secs(60), now) };
        assert_eq!(context.take_sequence(now), Ok(Some(1)));
        assert_eq!(context.take_sequence(now), Err(CallError::TimedOut));
        context.has_left(1);
        assert_eq!(context.take_sequence(now), Ok(Some(2)));
    }

    #[test]
    fn numbers_are_used_once_and_end_with_the_maximum() {
        let now = Instant::now();
        let context = context(Duration::from_secs(60), now);
        let take = || {
            let taken = context.take_sequence(now).unwrap();
            taken.inspect(|number| context.has_left(*number))
        };
        assert_eq!((take(), take()), (Some(1), Some(2)));
        context.numbers.lock().next = SEQUENCE_MAX;
        assert!(context.is_usable(now) && context.wants_renewal(now));
        assert_eq!(take(), Some(SEQUENCE_MAX));
        assert_eq!((take(), take()), (None, None));
        assert!(!context.is_usable(now));
    }
}
