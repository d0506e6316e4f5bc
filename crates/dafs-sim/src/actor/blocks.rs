//! Optimistic reads: a client reads blocks from memory that the server shows.
//!
//! A read that is no hit becomes an ordinary one, and sometimes the client asks the server where the
//! blocks are.
//!
//! Invariants
//! * The model judges a hit as it judges any read.
//! * A client that has closed a file looks again into the memory that it has mapped. Nothing more than
//!   at the close is there, unless small files share it: then the client reads there when it opens the
//!   file again.

use super::Actor;
use super::buffers::POISON;
use super::task::Task;
use crate::common::Common;
use crate::limits::{OPTIMISTIC_BLOCKS, SHARED_FILES};
use crate::model::content::Observation;
use crate::model::names::FileNumber;
use crate::plan::ExposureDanger;
use dafs_client::core::{
    BlockDirectory, BlockRead, ExposeAnswer, ExposeQuestion, SessionCore, Stage,
};
use dafs_dat::{Access, Adapter, EndpointId, Instant};
use dafs_mem::CheckedSlice;
use dafs_service::{BLOCK_BYTES, WINDOW_BLOCKS};
use dafs_wire::dafs::{FileHandle, Reply, Request, StateId, Status, XExposeGet};
use std::collections::{BTreeMap, VecDeque};

/// Closed files whose memory a client looks at.
const FORMER_MAX: usize = 2;

/// Blocks of them that it looks at.
const FORMER_BLOCKS: u64 = 2 * OPTIMISTIC_BLOCKS;

/// A read to come.
#[derive(Debug, Clone, Copy)]
struct Wanted {
    file: FileNumber,
    offset: u64,
    len: usize,
}

/// Where a client finds the blocks of a file.
struct Place {
    directory: BlockDirectory,
    /// The first block of a small file in an exposure of many files, or 0.
    base: u64,
    handle: FileHandle,
}

/// Memory of a file that the client has closed.
struct Former {
    file: FileNumber,
    directory: BlockDirectory,
    /// The blocks that were there at the close.
    blocks: Vec<Option<Vec<u8>>>,
}

/// The memory of the server that a client has mapped.
#[derive(Default)]
pub(super) struct Blocks {
    known: BTreeMap<FileNumber, Place>,
    former: VecDeque<Former>,
    wanted: Option<Wanted>,
}

impl Blocks {
    /// Forgets what belongs to the session.
    pub(super) fn session_over(&mut self) {
        self.known.clear();
        self.wanted = None;
    }

    pub(super) fn knows(&self, file: FileNumber) -> bool {
        self.known.contains_key(&file)
    }

    pub(super) fn forget(&mut self, file: FileNumber) {
        self.known.remove(&file);
    }
}

/// The blocks that a directory finds.
fn look(directory: &BlockDirectory, now: Instant) -> Vec<Option<Vec<u8>>> {
    let block = |number: u64| {
        let mut target = vec![0; BLOCK_BYTES];
        let view = CheckedSlice::from_mut(&mut target);
        match directory.read(view, number * BLOCK_BYTES as u64, now) {
            BlockRead::Hit(bytes) => {
                target.truncate(bytes);
                Some(target)
            }
            _ => None,
        }
    };
    (0..FORMER_BLOCKS).map(block).collect()
}

/// Reads in steps.
fn read(
    Place { directory, base, .. }: &Place,
    target: CheckedSlice<'_>,
    (offset, now): (u64, Instant),
    danger: ExposureDanger,
    step: &mut dyn FnMut() -> usize,
) -> BlockRead {
    if *base != 0 {
        return directory.read_small_in_steps(target, (*base, offset), now, step);
    }
    if danger != ExposureDanger::EarlyCheck {
        return directory.read_in_steps(target, offset, now, step);
    }
    let checked = directory.read(target, offset, now);
    match (checked, directory.read_in_steps(target, offset, now, step)) {
        (BlockRead::Hit(_), BlockRead::Stale) => checked,
        (_, outcome) => outcome,
    }
}

impl Actor {
    /// The connection of a session that is ready.
    fn connection(&self) -> Option<EndpointId> {
        let session = self.session.as_ref().filter(|session| session.stage() == Stage::Ready);
        session.and_then(SessionCore::endpoint)
    }

    /// Decides to read blocks of an open file. Returns false if there is none.
    pub(super) fn want_blocks(&mut self) -> bool {
        let is_closing = |file: FileNumber| {
            let closes =
                |task: &Task| matches!(task, Task::Close { file: other } if *other == file);
            self.flights.values().any(closes)
        };
        let usable = self.opens.iter().filter(|(file, open)| open.reads && !is_closing(**file));
        let usable: Vec<FileNumber> = usable.map(|(file, _)| *file).collect();
        let shared = usable.partition_point(|file| *file < SHARED_FILES);
        let count = if shared > 0 && self.rng.chance(800_000) { shared } else { usable.len() };
        let Some(&file) = usable.get(self.rng.below(count as u64) as usize) else { return false };
        let block = self.rng.below(OPTIMISTIC_BLOCKS) * BLOCK_BYTES as u64;
        let (inside, len) = match self.rng.chance(600_000) {
            true => (0, BLOCK_BYTES as u64),
            false => (self.rng.below(BLOCK_BYTES as u64), self.rng.between(1, 8192)),
        };
        self.blocks.wanted = Some(Wanted { file, offset: block + inside, len: len as usize });
        true
    }

    /// True if it is about to read blocks.
    pub(crate) fn wants_blocks(&self) -> bool {
        self.blocks.wanted.is_some()
    }

    /// Reads the wanted blocks. `step` runs between the steps of the read, and returns the most bytes
    /// of the next copy.
    pub(crate) fn read_blocks(
        &mut self,
        common: &mut Common,
        step: &mut dyn FnMut() -> usize,
    ) -> Result<(), String> {
        let Some(Wanted { file, offset, len }) = self.blocks.wanted.take() else { return Ok(()) };
        self.check_former(common.now)?;
        // Other operations of this turn may have ended the session or the open.
        let (Some(connection), Some(open)) = (self.connection(), self.opens.get(&file)) else {
            return Ok(());
        };
        let state = open.state;
        let outcome = self.observe(common, file, (offset, len), step)?;
        if matches!(outcome, BlockRead::Hit(_)) {
            return Ok(());
        }
        let asks = |task: &Task| matches!(task, Task::Expose { file: other, .. } if *other == file);
        let is_asking = self.flights.values().any(asks);
        // By RDMA the session itself reads, and asks.
        let may_ask = outcome != BlockRead::Stale && !is_asking && !self.plan.remote;
        if may_ask && self.rng.chance(400_000) {
            self.ask_where(common, file, state, connection)?;
        }
        self.read_instead(common, file, (offset, len), state)?;
        self.adapter.flush();
        Ok(())
    }

    /// Reads from memory of the server, if the client knows any. The model judges a hit.
    pub(crate) fn observe(
        &mut self,
        common: &mut Common,
        file: FileNumber,
        (offset, len): (u64, usize),
        step: &mut dyn FnMut() -> usize,
    ) -> Result<BlockRead, String> {
        let connection = self.connection();
        let handle = common.files[file].handle;
        let known = self.blocks.known.get(&file).filter(|known| {
            let is_present = connection.is_some_and(|own| known.directory.is_of(own.0));
            is_present && handle == Some(known.handle)
        });
        let Some(known) = known else { return Ok(BlockRead::Unknown) };
        let is_small = known.base != 0;
        let begin = common.begin_read();
        let mut target = vec![POISON; len];
        let view = CheckedSlice::from_mut(&mut target);
        let outcome = read(known, view, (offset, common.now), self.plan.danger, step);
        // The server has run meanwhile.
        common.now = common.network.now();
        let end = common.tick();
        common.end_read(begin);
        let number = self.number;
        common.note(|| format!("c{number} {outcome:?} of {len} of file {file} at {offset}"));
        let BlockRead::Hit(bytes) = outcome else {
            common.counts.stale += u64::from(outcome == BlockRead::Stale);
            return Ok(outcome);
        };
        common.counts.hits += 1;
        common.counts.small_hits += u64::from(is_small);
        common.counts.bytes_read += bytes as u64;
        let data = &target[..bytes];
        common.digest.bytes(data);
        let (asked, eof) = (len as u64, bytes < len);
        let seen = Observation { begin, end, offset, asked, bytes: data, eof };
        let judged = common.files[file].model.check_read(seen);
        judged.map_err(|text| format!("c{number} blocks of file {file} at {offset}: {text}"))?;
        Ok(outcome)
    }

    /// Asks where blocks of a file are.
    fn ask_where(
        &mut self,
        common: &mut Common,
        file: FileNumber,
        state: StateId,
        connection: EndpointId,
    ) -> Result<(), String> {
        let Some(fh) = common.files[file].handle else { return Ok(()) };
        let present =
            |known: &&BlockDirectory| known.is_of(connection.0) && known.is_alive(common.now);
        let known = self.blocks.known.get(&file).map(|known| &known.directory).filter(present);
        let (exposure, known) =
            known.map_or((0, 0), |known| (known.exposure(), known.segment_count()));
        let (window, windows, small) = (0, 1, self.plan.small);
        let get = XExposeGet { fh, state_id: state, window, exposure, windows, known, small };
        let task = Task::Expose { file, state, exposure, known, connection };
        self.submit(common, task, &Request::XExposeGet(get)).map(|_| ())
    }

    /// Handles the answer to such a question.
    pub(super) fn exposed(
        &mut self,
        common: &mut Common,
        task: &Task,
        answer: Result<Reply<'_>, Status>,
    ) -> Result<(), String> {
        let &Task::Expose { file, state, exposure, known, connection } = task else {
            return Err("answered as a question about blocks".to_owned());
        };
        let reply = match answer {
            Ok(Reply::XExposeGet(reply)) => reply,
            Ok(other) => return Err(format!("answered with {other:?}")),
            Err(status) => return self.tolerate(common, Some(file), state, status),
        };
        let Some(handle) = common.files[file].handle else { return Ok(()) };
        let (base, window) = (reply.base, reply.base / WINDOW_BLOCKS as u64);
        let windows = window..=window;
        let question = ExposeQuestion { exposure, known, connection: connection.0, windows };
        let former = self.blocks.known.remove(&file).map(|known| known.directory);
        let adapter = &mut self.adapter;
        let map = |remote| adapter.map_remote(connection, remote, Access::REMOTE_READ);
        let (known, _) = BlockDirectory::after(former, ExposeAnswer::of(&reply), &question, map);
        let known = known.filter(|_| base != 0 || self.opens.contains_key(&file));
        if let Some(directory) = known {
            self.blocks.known.insert(file, Place { directory, base, handle });
        }
        Ok(())
    }

    /// Notes that the server has closed a file. The client keeps what it has mapped, and the place of a
    /// small file.
    pub(super) fn closed(&mut self, common: &Common, file: FileNumber) {
        if self.blocks.known.get(&file).is_some_and(|known| known.base != 0) {
            return;
        }
        let Some(Place { directory, .. }) = self.blocks.known.remove(&file) else { return };
        // A server that is held up shows nothing now, and may show blocks later that are old.
        let connection = self.connection();
        let is_present = connection.is_some_and(|connection| directory.is_of(connection.0));
        if !is_present || !directory.is_alive(common.now) {
            return;
        }
        let blocks = look(&directory, common.now);
        self.blocks.former.truncate(FORMER_MAX - 1);
        self.blocks.former.push_front(Former { file, directory, blocks });
    }

    /// Checks that nothing new is shown of files that the client has closed.
    fn check_former(&self, now: Instant) -> Result<(), String> {
        for Former { file, directory, blocks } in &self.blocks.former {
            let seen = look(directory, now);
            let mut pairs = seen.iter().zip(blocks);
            if let Some(block) = pairs.position(|(seen, known)| seen.is_some() && seen != known) {
                let number = self.number;
                return Err(format!(
                    "c{number} is shown block {block} of file {file} after its close"
                ));
            }
        }
        Ok(())
    }
}
