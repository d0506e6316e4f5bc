//! A client's directory of blocks, and the memory of a server that plays by no rules: answers about
//! windows and segments, memory of any content, and reads.
//!
//! Checked: a hit has only bytes that the server has mapped, and the bytes behind it stay as they were;
//! a read in steps finds the same, and so does a read of a small file unless it leads behind its part.

use crate::input::Input;
use dafs_client::core::{BlockDirectory, BlockRead, ExposeAnswer, ExposeQuestion};
use dafs_dat::{Instant, RemoteBuffer, RemoteWindow};
use dafs_mem::{Buffer, CheckedSlice, Site};
use dafs_wire::dafs::{ExposedKind, ExposedSegment, ExposedWindow, Seq, XExposeGetReply};
use std::sync::Arc;

const NOW: Instant = Instant(5_000_000_000);

/// Memory of the server in bytes, and the unmapped bytes in front of it and behind.
const MAPPED: [usize; 3] = [4096, 8192, 12_388];
const EDGE: usize = 1024;

/// The bytes of unmapped memory, and of memory that no read has reached. A mapped byte is below 128.
const UNMAPPED: u8 = 0xee;
const UNREAD: u8 = 0xdd;

const WINDOW_BYTES: u64 = 2 << 20;
const READ_BYTES_MAX: usize = 9000;

/// The blocks of a small file, and their bytes.
const PART_BLOCKS: u64 = 16;
const PART_BYTES: u64 = PART_BLOCKS * 4096;

struct World<'a> {
    input: Input<'a>,
    memory: [Arc<Buffer>; 3],
    directory: Option<BlockDirectory>,
}

impl World<'_> {
    fn choose(&mut self, count: usize) -> usize {
        usize::from(self.input.byte()) % count
    }

    /// A number that is small most of the time.
    fn number(&mut self) -> u32 {
        match self.input.byte() {
            byte @ 0..=250 => u32::from(byte % 5),
            _ => self.input.u32(),
        }
    }

    fn segment(&mut self) -> ExposedSegment {
        let kinds = [ExposedKind::Frames, ExposedKind::Index, ExposedKind::Life];
        let kind = kinds[self.choose(3)];
        let (number, key) = (self.number(), self.choose(4));
        // A part of the memory, all of it, or more.
        let (address, bytes) = match self.input.byte() {
            0..=199 => (0, MAPPED.get(key).map_or(0, |bytes| *bytes as u32)),
            _ => (u64::from(self.input.short() / 8 * 8), u32::from(self.input.short())),
        };
        ExposedSegment { address, number, key: key as u32, bytes, kind }
    }

    fn window(&mut self) -> ExposedWindow {
        ExposedWindow { window: self.number().into(), segment: self.number(), page: self.number() }
    }

    fn answer(&mut self) {
        let (segments, windows) = (self.choose(6), self.choose(4));
        let segments: Vec<_> = (0..segments).map(|_| self.segment()).collect();
        let windows: Vec<_> = (0..windows).map(|_| self.window()).collect();
        let exposure = self.choose(3) as u64;
        let (windows, segments) = (Seq::new(&windows), Seq::new(&segments));
        let reply = XExposeGetReply { exposure, windows, segments, base: 0 };
        let answer = ExposeAnswer::of(&reply);
        let (exposure, connection) = (self.choose(3) as u64, 1 + self.choose(2) as u64);
        let (known, windows) = (self.number(), 0..=2);
        let question = ExposeQuestion { exposure, known, connection, windows };
        let memory = &self.memory;
        let map = |RemoteBuffer { key, address, len }: RemoteBuffer| {
            let (buffer, mapped) = (memory.get(key as usize)?, MAPPED.get(key as usize)?);
            let (at, len) = (usize::try_from(address).ok()?, len as usize);
            let view = buffer.slice(EDGE, *mapped)?.slice(at, len)?;
            // SAFETY: the range lies inside the buffer, which the window keeps alive, and is writable.
            Some(unsafe { RemoteWindow::read_only(view.as_ptr(), len, buffer.clone()) })
        };
        (self.directory, _) = BlockDirectory::after(self.directory.take(), answer, &question, map);
    }

    /// Changes a word of mapped memory.
    fn change(&mut self) {
        let number = self.choose(MAPPED.len());
        let at = usize::from(self.input.short()) % (MAPPED[number] / 8) * 8;
        let bytes: Vec<u8> = self.input.take(8).iter().map(|byte| byte & 0x7f).collect();
        let word = self.memory[number].slice(EDGE + at, bytes.len()).unwrap();
        word.copy_from(&bytes, Site::Inspect);
    }

    fn read(&mut self) {
        let offset = match self.input.byte() {
            byte @ 0..=250 => {
                u64::from(byte % 3) * WINDOW_BYTES + u64::from(self.input.short() % 32_768)
            }
            byte => u64::MAX - u64::from(byte - 251) * 2000,
        };
        let len = 1 + usize::from(self.input.short()) % READ_BYTES_MAX;
        let step = 1 + usize::from(self.input.short()) % 5000;
        let Some(directory) = &self.directory else { return };
        let mut target = vec![UNREAD; len];
        let outcome = directory.read(CheckedSlice::from_mut(&mut target), offset, NOW);
        let mut again = vec![UNREAD; len];
        let view = CheckedSlice::from_mut(&mut again);
        assert_eq!(directory.read_in_steps(view, offset, NOW, || step), outcome);
        assert!(target == again);
        let (part, inside) = (offset / PART_BYTES, offset % PART_BYTES);
        let (mut small, place) = (vec![UNREAD; len], (part * PART_BLOCKS, inside));
        let found = directory.read_small(CheckedSlice::from_mut(&mut small), place, NOW);
        if inside + len as u64 <= PART_BYTES {
            assert!(found == outcome && small == target);
        } else if let BlockRead::Hit(bytes) = found {
            assert!(found == outcome && inside + (bytes as u64) < PART_BYTES);
        }
        let read = match outcome {
            BlockRead::Hit(bytes) => bytes,
            BlockRead::Stale => panic!("no entry has changed"),
            _ => return,
        };
        assert!(directory.is_alive(NOW));
        assert!(target[..read].iter().all(|byte| *byte < 128), "unmapped bytes");
        assert!(target[read..].iter().all(|byte| *byte == UNREAD), "bytes behind the end");
    }
}

/// Memory whose life page says that the server lives, wherever that is.
fn memory(mapped: usize) -> Arc<Buffer> {
    let buffer = Buffer::zeroed(mapped + 2 * EDGE).unwrap();
    buffer.view().fill(UNMAPPED);
    let inside = buffer.slice(EDGE, mapped).unwrap();
    inside.fill(0);
    inside.slice(0, 16).unwrap().fill(1);
    Arc::new(buffer)
}

pub fn run(data: &[u8]) {
    let mut world = World { input: Input(data), memory: MAPPED.map(memory), directory: None };
    while !world.input.is_empty() {
        match world.input.byte() % 4 {
            0 => world.answer(),
            1 | 2 => world.change(),
            _ => world.read(),
        }
    }
}
