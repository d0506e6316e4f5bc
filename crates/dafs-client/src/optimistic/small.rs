//! Small files, whose blocks lie together in memory of the server: what a client knows of them stays when
//! it closes them. So a file that it opens again is read without a request.
//!
//! An open reads once from most small files. So the reads of a file are counted over all of its opens,
//! and the second one that misses asks where it is. When its open ends before the answer comes, a later
//! miss of any file takes that.
//!
//! Of the reads into long buffers one counts in each open. So a program that reads each of many files once,
//! up to its end, has none of them shown.
//!
//! Invariants
//! * A place is of a file as long as its exposure lasts, and is used only under an open of the file.
//! * Memory that was shown on another connection than the present one is not read.
//! * A server that shows no small files is asked about them by first reads of opens once in some seconds.

use super::Asked;
use crate::attributes::FileHandle;
use crate::core::{BlockDirectory, BlockRead, Done, ExposeAnswer, ExposeQuestion, WINDOW_BLOCKS};
use crate::fork::{ForkMutex, ForkRwLock};
use crate::limits::{
    OPTIMISTIC_ASK_PAUSE_MAX, OPTIMISTIC_ASK_PAUSE_MIN, OPTIMISTIC_LEFT_QUESTIONS_MAX,
    OPTIMISTIC_MISSED_FILES_MAX, OPTIMISTIC_SHARED_EXPOSURES_MAX, OPTIMISTIC_SMALL_FILES_MAX,
};
use dafs_dat::{Instant, RemoteBuffer, RemoteWindow};
use dafs_mem::CheckedSlice;
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::time::Duration;

/// The exposures that small files share, by number, and the places of files there.
#[derive(Debug, Default)]
struct Known {
    exposures: FxHashMap<u64, BlockDirectory>,
    /// The exposure of each file, and the first block of the file there.
    files: FxHashMap<FileHandle, (u64, u64)>,
    /// The exposure that the server has named last, for each file system.
    last: FxHashMap<[u8; 16], u64>,
}

/// A pause after questions, which doubles while they bring nothing new.
#[derive(Debug, Clone, Copy, Default)]
struct Pace {
    next: Instant,
    pause: Duration,
}

impl Pace {
    fn went(&mut self, now: Instant, is_new: bool) {
        self.pause = match is_new {
            true => OPTIMISTIC_ASK_PAUSE_MIN,
            false => (self.pause * 2).clamp(OPTIMISTIC_ASK_PAUSE_MIN, OPTIMISTIC_ASK_PAUSE_MAX),
        };
        self.next = now + self.pause;
    }
}

/// A file that reads have missed.
#[derive(Debug, Clone, Copy, Default)]
struct MissedFile {
    /// The server exposes it alone.
    is_alone: bool,
    pace: Pace,
}

#[derive(Debug, Default)]
struct Missed {
    files: FxHashMap<FileHandle, MissedFile>,
    /// The pace of questions by first reads of opens, while they bring no place of a small file.
    vain: Pace,
    /// The questions under way of opens that have ended, in the order of these ends.
    left: VecDeque<(FileHandle, Asked)>,
}

/// The decision about a question after a read that was no hit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    /// The client asks now.
    Ask,
    /// It does not ask.
    Wait,
    /// The file is exposed alone, or may be: its open decides.
    Alone,
}

/// The content of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Told {
    /// The place of a small file.
    Small,
    /// An exposure of the file alone.
    Alone,
    /// None.
    Nothing,
}

/// The places of small files that a client knows.
#[derive(Debug, Default)]
pub(crate) struct SmallFiles {
    known: ForkRwLock<Known>,
    /// Its lock is held for moments alone.
    missed: ForkMutex<Missed>,
}

impl SmallFiles {
    /// Reads from a file at a known place. `None` if there is none.
    pub(super) fn read(
        &self,
        file: &FileHandle,
        (target, offset): (CheckedSlice<'_>, u64),
        (now, connection): (Instant, u64),
    ) -> Option<BlockRead> {
        // Another thread may be taking an answer of the server.
        let known = self.known.try_read()?;
        let (exposure, base) = known.files.get(file)?;
        let directory = known.exposures.get(exposure)?;
        let is_present = directory.is_of(connection);
        is_present.then(|| directory.read_small(target, (*base, offset), now))
    }

    /// True if the first block of a file is absent because the file has changed, or for another block. Then
    /// the server has nothing new to tell.
    pub(super) fn is_absent(&self, file: &FileHandle, connection: u64) -> bool {
        let Some(known) = self.known.try_read() else { return false };
        let Some((exposure, base)) = known.files.get(file) else { return false };
        let directory = known.exposures.get(exposure);
        directory.is_some_and(|known| known.is_of(connection) && known.was_shown(*base))
    }

    /// Notes that a read was no hit: the first one of its open, or a later one.
    pub(super) fn missed(&self, file: &FileHandle, is_first: bool, now: Instant) -> Turn {
        let mut missed = self.missed.lock_here();
        let is_paused = is_first && now < missed.vain.next;
        match missed.files.get(file) {
            Some(known) if known.is_alone => Turn::Alone,
            Some(known) if now >= known.pace.next && !is_paused => Turn::Ask,
            Some(_) => Turn::Wait,
            None => {
                if missed.files.len() >= OPTIMISTIC_MISSED_FILES_MAX {
                    missed.files.clear();
                }
                missed.files.insert(*file, MissedFile::default());
                Turn::Wait
            }
        }
    }

    /// Notes that the client asks about a file.
    pub(super) fn asks(&self, file: &FileHandle, now: Instant) {
        if let Some(known) = self.missed.lock_here().files.get_mut(file) {
            known.pace.next = now + known.pace.pause.max(OPTIMISTIC_ASK_PAUSE_MIN);
        }
    }

    /// Keeps a question whose open ends before its answer is taken. Not in a fork.
    pub(super) fn leave(&self, file: FileHandle, asked: Asked) {
        let Ok(mut missed) = self.missed.lock() else { return };
        if missed.left.len() >= OPTIMISTIC_LEFT_QUESTIONS_MAX {
            missed.left.pop_front();
        }
        missed.left.push_back((file, asked));
    }

    /// Takes the first of these questions, and its answer, if that has come.
    pub(super) fn take_left(&self) -> Option<(FileHandle, Asked, Done)> {
        let mut missed = self.missed.lock_here();
        let done = missed.left.front()?.1.take()?;
        let (file, asked) = missed.left.pop_front()?;
        Some((file, asked, done))
    }

    /// Notes the answer to a question about a file, after the first read of an open or a later one.
    pub(super) fn answered(
        &self,
        file: &FileHandle,
        (told, is_new): (Told, bool),
        is_first: bool,
        now: Instant,
    ) {
        let mut missed = self.missed.lock_here();
        match told {
            Told::Small => missed.vain = Pace::default(),
            Told::Alone | Told::Nothing if is_first => missed.vain.went(now, false),
            Told::Alone | Told::Nothing => {}
        }
        if let Some(known) = missed.files.get_mut(file) {
            known.is_alone = told == Told::Alone;
            known.pace.went(now, is_new);
        }
    }

    /// The exposure to name in a question about a file, and the number of its segments that the client
    /// knows.
    pub(super) fn question(
        &self,
        file: &FileHandle,
        (now, connection): (Instant, u64),
    ) -> (u64, u32) {
        let known = self.known.read_here();
        let directory = known.last.get(&file.fs).and_then(|last| known.exposures.get(last));
        let usable = directory.filter(|known| known.is_of(connection) && known.is_alive(now));
        usable.map_or((0, 0), |directory| (directory.exposure(), directory.segment_count()))
    }

    /// Takes the place of a small file out of an answer. Returns true if it is new.
    pub(super) fn take(
        &self,
        file: &FileHandle,
        answer: ExposeAnswer,
        question: &ExposeQuestion,
        map: impl FnMut(RemoteBuffer) -> Option<RemoteWindow>,
    ) -> bool {
        let (exposure, base, connection) = (answer.exposure, answer.base, question.connection);
        let mut known = self.known.write_here();
        let known = &mut *known;
        let former = known.exposures.remove(&exposure);
        let window = base / WINDOW_BLOCKS;
        let windows = window..=window;
        let question = ExposeQuestion { windows, ..question.clone() };
        let (directory, is_new) = BlockDirectory::after(former, answer, &question, map);
        let Some(directory) = directory else { return false };
        known.forget(file, exposure, connection);
        known.exposures.insert(exposure, directory);
        let place = (exposure, base);
        let before = known.files.insert(*file, place);
        is_new || before != Some(place)
    }
}

impl Known {
    /// Forgets what is over when a file is in this exposure: the former one of its file system, which has
    /// one at a time, and those of other connections.
    fn forget(&mut self, file: &FileHandle, exposure: u64, connection: u64) {
        if self.last.len() >= OPTIMISTIC_SHARED_EXPOSURES_MAX {
            self.last.clear();
        }
        let former = self.last.insert(file.fs, exposure).filter(|former| *former != exposure);
        self.exposures
            .retain(|number, directory| Some(*number) != former && directory.is_of(connection));
        if self.exposures.len() >= OPTIMISTIC_SHARED_EXPOSURES_MAX {
            self.exposures.clear();
        }
        if former.is_some() || self.files.len() >= OPTIMISTIC_SMALL_FILES_MAX {
            let exposures = &self.exposures;
            let is_known = |number: &u64| *number == exposure || exposures.contains_key(number);
            self.files.retain(|_, (number, _)| is_known(number));
        }
        if self.files.len() >= OPTIMISTIC_SMALL_FILES_MAX {
            self.files.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::Failure;
    use crate::operations::Mailbox;

    fn file(number: u64) -> FileHandle {
        let mut file = [0; 48];
        file[..8].copy_from_slice(&number.to_ne_bytes());
        FileHandle { fs: [1; 16], file }
    }

    #[test]
    fn the_second_read_asks_in_whichever_open_it_is() {
        let (small, one, other) = (SmallFiles::default(), file(7), file(8));
        let now = Instant(1_000_000_000);
        assert_eq!(small.missed(&one, true, now), Turn::Wait);
        assert_eq!(small.missed(&one, true, now), Turn::Ask, "another open");
        assert_eq!(small.missed(&other, true, now), Turn::Wait);
        assert_eq!(small.missed(&other, false, now), Turn::Ask, "the same open");
        small.answered(&one, (Told::Small, true), true, now);
        assert_eq!(small.missed(&one, true, now), Turn::Wait);
        let later = now + OPTIMISTIC_ASK_PAUSE_MIN;
        assert_eq!(small.missed(&one, true, later), Turn::Ask);
        small.answered(&other, (Told::Alone, true), false, now);
        assert_eq!(small.missed(&other, true, later), Turn::Alone);
    }

    #[test]
    fn first_reads_ask_a_server_without_small_files_less_and_less() {
        let small = SmallFiles::default();
        let mut asked = 0;
        for step in 0..2000_u64 {
            // Each file is opened twice and read once each time, within 10 seconds in all.
            let now = Instant(1_000_000_000 + step * 5_000_000);
            let file = file(step / 2);
            if small.missed(&file, true, now) == Turn::Ask {
                asked += 1;
                small.answered(&file, (Told::Nothing, false), true, now);
            }
        }
        assert!((5..20).contains(&asked), "{asked}");
        let now = Instant(20_000_000_000);
        assert_eq!(small.missed(&file(7), false, now), Turn::Ask, "a later read of an open");
        small.answered(&file(7), (Told::Small, true), false, now);
        assert_eq!(small.missed(&file(8), true, now), Turn::Ask, "it shows some now");
    }

    #[test]
    fn answers_come_to_a_client_whose_opens_have_ended() {
        let small = SmallFiles::default();
        let leave = |number: usize| {
            let question = ExposeQuestion { exposure: 0, known: 0, connection: 1, windows: 0..=0 };
            let (outcome, answer) = (BlockRead::Unknown, Mailbox::default());
            let asked = Asked {
                question,
                needed: 0..=0,
                was_known: false,
                outcome,
                is_first: true,
                is_long: false,
                answer: answer.clone(),
            };
            small.leave(file(number as u64), asked);
            answer
        };
        let taken = || small.take_left().map(|(file, ..)| file);
        let answers = [7, 8].map(leave);
        assert_eq!(taken(), None);
        for answer in &answers {
            *answer.lock_here() = Some(Done::Lost(Failure::Closed));
        }
        assert_eq!([taken(), taken(), taken()], [Some(file(7)), Some(file(8)), None]);
        let answers: Vec<_> = (0..=OPTIMISTIC_LEFT_QUESTIONS_MAX).map(leave).collect();
        for answer in &answers {
            *answer.lock_here() = Some(Done::Lost(Failure::Closed));
        }
        assert_eq!(taken(), Some(file(1)), "the oldest one was dropped");
    }

    #[test]
    fn the_files_that_were_missed_are_bounded() {
        let small = SmallFiles::default();
        for number in 0..3 * OPTIMISTIC_MISSED_FILES_MAX as u64 {
            small.missed(&file(number), true, Instant(0));
        }
        assert!(small.missed.lock_here().files.len() <= OPTIMISTIC_MISSED_FILES_MAX);
    }
}
