//! The replies of one session in use.

use super::{EndedSession, Entry};

/// Bytes that an entry may keep allocated while it is empty.
const SPARE_BYTES_MAX: usize = 512;

/// The latest reply of one stream.
#[derive(Debug, Default)]
struct Latest {
    /// The number of its reply among all that were sent. 0 before the first.
    number: u64,
    sequence: u16,
    procedure: u32,
    kept: bool,
    bytes: Vec<u8>,
}

impl Latest {
    fn forget(&mut self) {
        self.kept = false;
        if self.bytes.capacity() > SPARE_BYTES_MAX {
            self.bytes = Vec::new();
        }
    }
}

/// The replies of a session in use: the latest of each stream that is to be kept.
#[derive(Debug)]
pub struct SessionReplies {
    little_endian: bool,
    streams: Vec<Latest>,
    /// Replies sent so far.
    sent: u64,
    /// Replies that the client is known to have received. Replies arrive in order, so a request on
    /// a stream proves the receipt of the stream's last reply and of all that were sent before it.
    received: u64,
}

impl SessionReplies {
    /// Makes an empty set, for a session in this byte order.
    pub fn new(little_endian: bool) -> Self {
        Self { little_endian, streams: Vec::new(), sent: 0, received: 0 }
    }

    /// Notes that a new request has arrived on a stream, while `streams` are in use. Frees the
    /// replies that the client has received: the stream's entry, and those of streams that are no
    /// longer in use (DAFS 12).
    pub fn request(&mut self, stream: u16, streams: u16) {
        let Some(latest) = self.streams.get_mut(usize::from(stream)) else { return };
        self.received = self.received.max(latest.number);
        latest.forget();
        while self.streams.len() > usize::from(streams)
            && self.streams.last().is_some_and(|latest| latest.number <= self.received)
        {
            self.streams.pop();
        }
    }

    /// Notes that the reply to a request is about to be sent. `bytes` is the message if it is to be
    /// kept.
    pub fn reply(&mut self, stream: u16, sequence: u16, procedure: u32, bytes: Option<&[u8]>) {
        let index = usize::from(stream);
        if self.streams.len() <= index {
            self.streams.resize_with(index + 1, Latest::default);
        }
        self.sent += 1;
        let latest = &mut self.streams[index];
        latest.number = self.sent;
        latest.forget();
        if let Some(bytes) = bytes {
            (latest.sequence, latest.procedure, latest.kept) = (sequence, procedure, true);
            latest.bytes.clear();
            latest.bytes.extend_from_slice(bytes);
        }
    }

    /// The number of entries that are kept now.
    pub fn len(&self) -> usize {
        self.streams.iter().filter(|latest| latest.kept).count()
    }

    /// Bytes of the replies that are kept now.
    pub fn len_bytes(&self) -> usize {
        let kept = self.streams.iter().filter(|latest| latest.kept);
        kept.map(|latest| latest.bytes.len()).sum()
    }

    /// True when no entry is kept.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Turns the replies into those of an ended session, whose work has stopped.
    pub fn freeze(self) -> EndedSession {
        let kept = self.streams.into_iter().enumerate().filter(|(_, latest)| latest.kept);
        let entry = |(stream, latest): (usize, Latest)| Entry {
            stream: stream as u16,
            sequence: latest.sequence,
            procedure: latest.procedure,
            bytes: latest.bytes.into(),
        };
        EndedSession { little_endian: self.little_endian, entries: kept.map(entry).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(replies: SessionReplies) -> Vec<(u16, u16, u32)> {
        let ended = replies.freeze();
        ended.entries.iter().map(|e| (e.stream, e.sequence, e.procedure)).collect()
    }

    #[test]
    fn the_latest_kept_reply_of_each_stream_is_found() {
        let mut replies = SessionReplies::new(true);
        replies.request(0, 8);
        replies.reply(0, 1, 117, Some(b"one"));
        replies.request(3, 8);
        replies.reply(3, 1, 143, Some(b"two"));
        replies.request(0, 8);
        replies.reply(0, 2, 117, Some(b"three"));
        assert_eq!(replies.len(), 2);
        assert_eq!(kept(replies), [(0, 2, 117), (3, 1, 143)]);
    }

    /// Otherwise a request whose sequence number has wrapped would be taken for an older one.
    #[test]
    fn a_request_that_is_not_kept_ends_the_entry_before_it() {
        let mut replies = SessionReplies::new(true);
        replies.reply(0, 1, 117, Some(b"one"));
        replies.request(0, 8);
        assert!(replies.is_empty());
        replies.reply(0, 2, 132, None);
        assert!(kept(replies).is_empty());
    }

    #[test]
    fn an_expired_stream_keeps_its_entry_until_the_client_has_it() {
        let mut replies = SessionReplies::new(false);
        replies.reply(0, 1, 117, Some(b"first"));
        replies.reply(2, 1, 117, Some(b"expiring"));
        replies.reply(1, 1, 132, None);
        // Only two streams are left. This request proves the first reply alone.
        replies.request(0, 2);
        assert_eq!(replies.len(), 1);
        replies.reply(0, 2, 132, None);
        // This one was sent after the reply on stream 1, which came behind that on stream 2.
        replies.request(1, 2);
        assert!(replies.is_empty());
        assert_eq!(replies.streams.len(), 2, "the memory is given back");
    }

    #[test]
    fn long_replies_are_not_kept_allocated() {
        let mut replies = SessionReplies::new(true);
        replies.reply(0, 1, 148, Some(&[7; 16_000]));
        replies.request(0, 1);
        assert_eq!(replies.streams[0].bytes.capacity(), 0);
    }
}
