//! A client's directory of blocks that it reads by RDMA, and a server that plays by no rules: answers about
//! windows and segments, pages of any content, and reads.
//!
//! Checked: a read takes memory alone that the server has named, of the right kind; it brings no more bytes than
//! were asked for, in one piece; it is a hit with the entries that were known before, and with no others.

use crate::input::Input;
use dafs_client::core::{ExposeAnswer, RemoteBlocks};
use dafs_dat::{Instant, RemoteBuffer};
use dafs_wire::dafs::{ExposedKind, ExposedSegment, ExposedWindow, Seq, XExposeGetReply};

const WINDOW_BYTES: u64 = 2 << 20;
const PAGE_BYTES: usize = 4096;
const READ_BYTES_MAX: u32 = 64 << 10;

/// The most RDMA reads of data and of entries for one read.
const RUNS_MAX: usize = 4;
const CHECKS_MAX: usize = 2;

/// Longer than the client pauses between questions.
const STEP_NS: u64 = 3_000_000_000;

struct World<'a> {
    input: Input<'a>,
    blocks: RemoteBlocks,
    /// All segments that the server has named.
    named: Vec<ExposedSegment>,
    now_ns: u64,
}

impl World<'_> {
    /// A number that is small most of the time.
    fn number(&mut self) -> u32 {
        match self.input.byte() {
            byte @ 0..=250 => u32::from(byte % 4),
            _ => self.input.u32(),
        }
    }

    fn segment(&mut self) -> ExposedSegment {
        let kinds = [ExposedKind::Frames, ExposedKind::Index, ExposedKind::Life];
        let kind = kinds[usize::from(self.input.byte() % 3)];
        let (number, key) = (self.number(), self.number());
        let address = match self.input.byte() {
            0..=200 => u64::from(key) << 32,
            byte => u64::MAX - u64::from(byte) * 1000,
        };
        let bytes = match self.input.byte() {
            0..=200 => 1 << 20,
            _ => self.input.u32(),
        };
        ExposedSegment { address, number, key, bytes, kind }
    }

    fn answer(&mut self) {
        let window = u64::from(self.number());
        let (segments, windows) = (self.input.byte() % 6, self.input.byte() % 4);
        let segments: Vec<_> = (0..segments).map(|_| self.segment()).collect();
        let windows: Vec<_> = (0..windows)
            .map(|_| {
                let window = u64::from(self.number());
                ExposedWindow { window, segment: self.number(), page: self.number() }
            })
            .collect();
        let exposure = u64::from(self.input.byte() % 3);
        self.named.extend(&segments);
        let (windows, segments) = (Seq::new(&windows), Seq::new(&segments));
        let reply = XExposeGetReply { exposure, windows, segments, base: 0 };
        let answer = (self.input.byte() != 0).then(|| ExposeAnswer::of(&reply));
        self.blocks.ask(window, answer, Instant(self.now_ns));
    }

    fn fetch(&mut self) {
        let window = u64::from(self.number());
        let mut page = [0; PAGE_BYTES];
        for _ in 0..self.input.byte() % 8 {
            let at = usize::from(self.input.short()) % (PAGE_BYTES / 8) * 8;
            let word = self.input.take(8);
            page[at..at + word.len()].copy_from_slice(word);
        }
        if let Some(source) = self.blocks.fetch(window, &page, Instant(self.now_ns)) {
            assert_eq!(source.len as usize, PAGE_BYTES);
            self.check(ExposedKind::Index, source);
        }
    }

    fn check(&self, kind: ExposedKind, source: RemoteBuffer) {
        let is_inside = |segment: &ExposedSegment| {
            let end = source.address.checked_add(source.len.into());
            let end_of_segment = u128::from(segment.address) + u128::from(segment.bytes);
            (segment.kind, segment.key) == (kind, source.key)
                && source.address >= segment.address
                && end.is_some_and(|end| u128::from(end) <= end_of_segment)
        };
        assert!(self.named.iter().any(is_inside), "{source:?} was not named");
    }

    fn read(&mut self) {
        let offset = match self.input.byte() {
            byte @ 0..=250 => u64::from(byte % 4) * WINDOW_BYTES + u64::from(self.input.short()),
            byte => u64::MAX - u64::from(byte - 251) * 2000,
        };
        let len = 1 + self.input.u32() % READ_BYTES_MAX;
        let Some(read) = self.blocks.read((offset, len), Instant(self.now_ns)) else { return };
        let (data, checks) = (read.data(), read.checks());
        assert!(read.bytes() <= len && data.len() <= RUNS_MAX && checks.len() <= CHECKS_MAX);
        let mut done = 0;
        for (at, source) in data {
            assert_eq!(at, done);
            done += source.len;
            self.check(ExposedKind::Frames, source);
        }
        assert_eq!(done, read.bytes());
        let mut entries = read.entries();
        let checked: usize = checks.iter().map(|source| source.len as usize).sum();
        assert_eq!((checked, checked % 8), (entries.len(), 0));
        checks.into_iter().for_each(|source| self.check(ExposedKind::Index, source));
        assert!(self.blocks.is_hit(&read, &entries));
        let at = usize::from(self.input.short()) % entries.len();
        entries[at] ^= 1;
        assert!(!self.blocks.is_hit(&read, &entries), "an entry has changed");
        entries.truncate(at);
        assert!(!self.blocks.is_hit(&read, &entries), "an entry is missing");
    }
}

pub fn run(data: &[u8]) {
    let (blocks, named) = (RemoteBlocks::default(), Vec::new());
    let mut world = World { input: Input(data), blocks, named, now_ns: STEP_NS };
    while !world.input.is_empty() {
        world.now_ns += STEP_NS;
        match world.input.byte() % 4 {
            0 => world.answer(),
            1 => world.fetch(),
            _ => world.read(),
        }
    }
}
