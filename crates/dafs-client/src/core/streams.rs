//! Credits and streams of the operation channel (DAFS 7, O24, O25).
//!
//! Invariants
//! * At most `granted` requests are outstanding, each on a stream of its own below `granted` at
//!   the time it was sent.
//! * Every stream starts at sequence number 1 and counts up by one with each request, through
//!   65535 to 0; a stream that expired and comes back goes on where it stopped.
//! * `granted` follows `max(granted - 1, target)` with every reply and nothing else.

/// The credits and streams of a connection, and the next transaction ids.
#[derive(Debug)]
pub(crate) struct Streams {
    granted: u16,
    target: u16,
    limit: u16,
    outstanding: u16,
    next_sequence: Vec<u16>,
    busy: Vec<u64>,
}

/// A transaction id: stream and sequence number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Transaction {
    pub(crate) stream: u16,
    pub(crate) sequence: u16,
}

impl Streams {
    /// The state before the connect request: one credit. `limit` bounds the streams that are ever
    /// used.
    pub(crate) fn new(limit: u16) -> Self {
        let limit = limit.max(1);
        let words = usize::from(limit).div_ceil(64);
        Self {
            granted: 1,
            target: 1,
            limit,
            outstanding: 0,
            next_sequence: vec![1; usize::from(limit)],
            busy: vec![0; words],
        }
    }

    /// Requests that the server allows to be outstanding.
    pub(crate) fn granted(&self) -> u16 {
        self.granted
    }

    /// Requests outstanding.
    pub(crate) fn outstanding(&self) -> u16 {
        self.outstanding
    }

    /// The usable part of what the server grants.
    pub(crate) fn usable(&self) -> u16 {
        self.granted.min(self.limit)
    }

    /// True when the server wants fewer credits in use than there are.
    pub(crate) fn must_shrink(&self) -> bool {
        self.target < self.granted
    }

    /// True when a request may be sent.
    pub(crate) fn available(&self) -> bool {
        self.outstanding < self.usable()
    }

    /// The transaction that [`take`](Self::take) would yield.
    pub(crate) fn peek(&self) -> Option<Transaction> {
        if !self.available() {
            return None;
        }
        let (word, bits) = self.busy.iter().enumerate().find(|(_, word)| **word != u64::MAX)?;
        let stream = word * 64 + (!bits).trailing_zeros() as usize;
        // With fewer requests outstanding than usable streams, one below `usable` is idle, and
        // the lowest idle one is not above it.
        assert!(stream < usize::from(self.usable()), "an idle stream below the limit exists");
        Some(Transaction { stream: stream as u16, sequence: self.next_sequence[stream] })
    }

    /// Takes the lowest idle stream, so that the high ones are idle when they expire.
    pub(crate) fn take(&mut self) -> Option<Transaction> {
        let taken = self.peek()?;
        let stream = usize::from(taken.stream);
        self.busy[stream / 64] |= 1 << (stream % 64);
        self.outstanding += 1;
        self.next_sequence[stream] = taken.sequence.wrapping_add(1);
        Some(taken)
    }

    /// Records a reply on `stream`, with the server's target.
    pub(crate) fn replied(&mut self, stream: u16, target: u16) {
        let (word, bit) = (usize::from(stream) / 64, usize::from(stream) % 64);
        debug_assert!(self.busy[word] & (1 << bit) != 0);
        self.busy[word] &= !(1 << bit);
        self.outstanding -= 1;
        // A target of 0 would end the session; there is always at least one credit.
        self.target = target.max(1);
        self.granted = (self.granted - 1).max(self.target);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sequence_numbers_count_per_stream_and_wrap() {
        let mut streams = Streams::new(4);
        for expected in (1..=u16::MAX).chain([0, 1]) {
            let taken = streams.take().unwrap();
            assert_eq!(taken, Transaction { stream: 0, sequence: expected });
            assert!(streams.take().is_none());
            streams.replied(0, 1);
        }
    }

    #[test]
    fn rises_are_immediate_and_falls_are_one_per_reply() {
        let mut streams = Streams::new(16);
        streams.take().unwrap();
        streams.replied(0, 8);
        assert_eq!(streams.granted(), 8);
        for expected in [7, 6, 5, 4, 4] {
            streams.take().unwrap();
            streams.replied(0, 4);
            assert_eq!(streams.granted(), expected);
        }
        assert!(!streams.must_shrink());
    }

    #[test]
    fn a_busy_expired_stream_leaves_another_idle() {
        let mut streams = Streams::new(16);
        streams.take().unwrap();
        streams.replied(0, 4);
        for _ in 0..4 {
            streams.take().unwrap();
        }
        streams.replied(0, 2);
        assert_eq!(streams.granted(), 3);
        // Streams 1, 2 and 3 are busy; 3 has expired but counts.
        assert!(streams.take().is_none());
        streams.replied(1, 2);
        assert_eq!(streams.granted(), 2);
        assert!(streams.take().is_none());
        streams.replied(3, 2);
        assert_eq!(streams.take().unwrap().stream, 0);
        assert!(streams.take().is_none());
    }

    #[test]
    fn more_credits_than_we_can_use_are_left_alone() {
        let mut streams = Streams::new(2);
        streams.take().unwrap();
        streams.replied(0, u16::MAX);
        assert_eq!(streams.usable(), 2);
        streams.take().unwrap();
        streams.take().unwrap();
        assert!(streams.take().is_none());
    }

    proptest! {
        #[test]
        fn outstanding_never_exceeds_the_grant(
            steps in proptest::collection::vec((any::<bool>(), 0u16..90), 1..400),
        ) {
            let mut streams = Streams::new(70);
            let mut busy = Vec::new();
            for (send, number) in steps {
                if send {
                    if let Some(taken) = streams.take() {
                        prop_assert!(taken.stream < streams.granted());
                        prop_assert!(!busy.contains(&taken.stream));
                        busy.push(taken.stream);
                        prop_assert!(busy.len() <= usize::from(streams.granted()));
                    } else {
                        prop_assert!(busy.len() >= usize::from(streams.usable()));
                    }
                } else if !busy.is_empty() {
                    let stream = busy.swap_remove(usize::from(number) % busy.len());
                    let before = streams.granted();
                    streams.replied(stream, number);
                    prop_assert_eq!(streams.granted(), (before - 1).max(number.max(1)));
                }
            }
        }
    }
}
