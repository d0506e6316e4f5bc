//! Files that clients share under delegations. A client caches reads, and writes back its cached
//! writes when the delegation is recalled or the file is closed.
//!
//! Invariants
//! * The client reads and writes its cache only under a delegation that it certainly holds.
//! * It returns a delegation only after writing back its cached writes, or after learning that they
//!   are lost.

use super::Client;
use super::job::Job;
use super::visit::content;
use crate::crash::model::log::Log;
use crate::crash::model::vault::{Content, Holder, VAULT_BYTES};
use crate::crash::{BOARDS, Danger, Shared};
use crate::model::content::Tick;
use crate::pattern::WriteId;
use dafs_client::core::{BackEvent, Done, Failure, ReadCall, Refused, ReplyMessage, WriteCall};
use dafs_dat::Instant;
use dafs_mem::Site;
use dafs_wire::dafs::{
    Close, DelegReturn, Delegation, DeleteDisposition, FileHandle, HintWord, Open, OpenClaim, Path,
    Reply, Request, ShareAccess, ShareDeny, ShareKey, Stability, StateId, Status,
};

/// Most steps before a client closes the file.
const STEPS_MAX: u64 = 12;

#[derive(Debug)]
pub(super) struct OpenBoard {
    number: usize,
    handle: FileHandle,
    state: StateId,
    writes: bool,
    held: Option<Held>,
    /// The cached content of the file, valid under the delegation.
    cached: Option<Content>,
    /// The cached write that the server does not have yet.
    dirty: Option<WriteId>,
    /// A request is outstanding.
    busy: bool,
    steps: u64,
    /// Number of the server's ends at the open.
    ends: u32,
}

#[derive(Debug, Clone, Copy)]
struct Held {
    name: StateId,
    writes: bool,
    recalled: bool,
}

/// A request about a board.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BoardAsk {
    Read { begin: Tick },
    Write(WriteId),
    WriteBack(WriteId),
    Close,
}

impl Client {
    /// The name of a board's file.
    pub(crate) fn board_name(board: usize) -> Vec<u8> {
        format!("board{board}").into_bytes()
    }

    fn keeper(&self) -> Holder {
        Holder { client: self.number, run: self.run }
    }

    /// Opens a board, or takes the next step with the open one.
    pub(super) fn draw_board(&mut self, shared: &mut Shared) -> Result<Option<Job>, String> {
        if !self.plan.boards || self.opening_board {
            return Ok(None);
        }
        let writes = self.rng.chance(600_000);
        let Some(board) = &mut self.board else {
            self.opening_board = true;
            let number = self.rng.below(BOARDS as u64) as usize;
            return Ok(Some(Job::OpenBoard { number, writes }));
        };
        let promised = self.session.as_ref().map_or(Instant(0), |s| s.promised_until());
        let certain = shared.common.now < promised;
        let held = board.held.filter(|held| !held.recalled);
        if board.busy || board.steps == 0 || (board.dirty.is_some() && !certain) {
            return Ok(None);
        }
        board.steps -= 1;
        let number = board.number;
        if writes && board.writes {
            let write = shared.common.next_write();
            let (by, tick) = (self.keeper(), shared.common.tick());
            let Some(board) = &mut self.board else { return Ok(None) };
            if held.is_some_and(|held| held.writes) && certain {
                shared.common.note(|| format!("c{} keeps {write:?}", by.client));
                shared.lock_counts.kept_writes += 1;
                (board.cached, board.dirty) = (Some(Some(write)), Some(write));
                shared.boards[number].kept(write, by, tick);
                return Ok(None);
            }
            // Never with another of its own writes outstanding.
            if board.dirty.is_some() {
                return Ok(None);
            }
            (board.busy, board.cached) = (true, None);
            shared.boards[number].sent(write, by, tick);
            return Ok(Some(Job::Board(BoardAsk::Write(write))));
        }
        let tick = shared.common.tick();
        if let Some(cached) = board.cached.filter(|_| held.is_some() && certain) {
            shared.lock_counts.cached_reads += 1;
            shared.common.note(|| format!("c{} has kept {cached:?}", self.number));
            let seen = shared.look_at_board(number, (tick, tick), cached);
            return seen.map(|()| None).map_err(|text| format!("c{}: {text}", self.number));
        }
        if board.dirty.is_some() {
            return Ok(None);
        }
        board.busy = true;
        Ok(Some(Job::Board(BoardAsk::Read { begin: tick })))
    }

    pub(super) fn send_open_board(
        &mut self,
        now: Instant,
        tag: u64,
        (number, writes): (usize, bool),
    ) -> Option<Result<(), Refused>> {
        let dir = self.session.as_ref()?.info().root;
        let name = Self::board_name(number);
        let path: [&[u8]; 1] = [&name];
        let owner = format!("sharer {}", self.number);
        let request = Request::Open(Open {
            claim: OpenClaim::Null { dir, path: Path::new(&path) },
            create: None,
            delete_disposition: DeleteDisposition::DontCare,
            owner: owner.as_bytes(),
            share_access: if writes { ShareAccess::Both } else { ShareAccess::Read },
            share_deny: ShareDeny::None,
            share_key: ShareKey::None,
        });
        self.call(now, tag, &request)
    }

    pub(super) fn opened_board(
        &mut self,
        shared: &mut Shared,
        (number, writes): (usize, bool),
        message: &ReplyMessage,
    ) -> Result<(), String> {
        let outcome = message.decode().map_err(|error| error.to_string())?;
        let Ok(Reply::Open(reply)) = outcome.into_result() else {
            return Err(format!("the board was not opened: {}", message.status()));
        };
        let held = match reply.delegation {
            Delegation::None => None,
            Delegation::Read { state_id: name, recall: recalled, .. } => {
                Some(Held { name, writes: false, recalled })
            }
            Delegation::Write { state_id: name, recall: recalled, .. } => {
                Some(Held { name, writes: true, recalled })
            }
        };
        shared.lock_counts.delegations += u64::from(held.is_some());
        shared.common.note(|| format!("c{} has board {number} and {held:?}", self.number));
        self.opening_board = false;
        self.board = Some(OpenBoard {
            number,
            handle: reply.fh,
            state: reply.state_id,
            writes,
            held,
            cached: None,
            dirty: None,
            busy: false,
            steps: self.rng.between(1, STEPS_MAX),
            ends: shared.ends,
        });
        Ok(())
    }

    pub(super) fn send_board(
        &mut self,
        now: Instant,
        tag: u64,
        ask: BoardAsk,
        piece: Option<usize>,
    ) -> Option<Result<(), Refused>> {
        let OpenBoard { handle, state: state_id, held, .. } = *self.board.as_ref()?;
        let delegation = match ask {
            BoardAsk::WriteBack(_) => held.map(|held| held.name),
            _ => None,
        };
        match ask {
            BoardAsk::Read { .. } => {
                let into = self.piece(piece?, VAULT_BYTES)?;
                into.view().fill(0xdb);
                let call = ReadCall { handle, state_id, offset: 0, into, hint: HintWord::NONE };
                let session = self.session.as_mut()?;
                Some(session.submit_read(&mut self.adapter, now, tag, call, None))
            }
            BoardAsk::Write(write) | BoardAsk::WriteBack(write) => {
                let from = self.piece(piece?, VAULT_BYTES)?;
                from.view().copy_from(&Log::record(write, VAULT_BYTES), Site::Inspect);
                let stability = Stability::FileSync;
                let call = WriteCall {
                    handle,
                    state_id,
                    offset: 0,
                    stability,
                    from,
                    delegation,
                    hint: HintWord::NONE,
                };
                let session = self.session.as_mut()?;
                Some(session.submit_write(&mut self.adapter, now, tag, call, None))
            }
            BoardAsk::Close => self.call(now, tag, &Request::Close(Close { fh: handle, state_id })),
        }
    }

    pub(super) fn send_return(
        &mut self,
        now: Instant,
        tag: u64,
        state_id: StateId,
    ) -> Option<Result<(), Refused>> {
        self.call(now, tag, &Request::DelegReturn(DelegReturn { state_id }))
    }

    /// Handles the outcome of a request about the board. Only delays are handled elsewhere.
    pub(super) fn board_done(
        &mut self,
        shared: &mut Shared,
        ask: BoardAsk,
        piece: Option<usize>,
        done: &Done,
    ) -> Result<(), String> {
        let by = self.keeper();
        let tick = shared.common.tick();
        let Some(board) = &mut self.board else { return Err("no board is open".to_owned()) };
        let (number, ends) = (board.number, board.ends);
        board.busy = false;
        let model = &mut shared.boards[number];
        let status = match (ask, done) {
            (BoardAsk::Read { begin }, Done::Read { bytes, .. }) => {
                let piece = piece.and_then(|piece| self.piece(piece, *bytes as usize));
                let data = piece.ok_or("more was read than there is memory for")?;
                let found = content(&data.view().to_vec(Site::Inspect))?;
                shared.common.note(|| format!("c{} reads {found:?}", by.client));
                if let Some(board) = &mut self.board {
                    board.cached = board.held.filter(|held| !held.recalled).map(|_| found);
                }
                shared.common.counts.succeeded += 1;
                return shared.look_at_board(number, (begin, tick), found);
            }
            (BoardAsk::Write(write), Done::Written { .. }) => {
                shared.common.counts.succeeded += 1;
                model.done(write, tick);
                return Ok(());
            }
            (BoardAsk::WriteBack(_), Done::Written { .. }) => {
                shared.common.counts.succeeded += 1;
                board.dirty = None;
                return model.written_back(by);
            }
            (BoardAsk::WriteBack(_), Done::Lost(Failure::DelegationLost)) => None,
            (_, Done::Refused { status, .. }) => Some(*status),
            (BoardAsk::Close, Done::Answered(message)) => Some(message.status()),
            (ask, done) => return Err(format!("{ask:?} is answered with {done:?}")),
        };
        if let BoardAsk::WriteBack(_) = ask {
            board.dirty = None;
            model.lost(by);
        }
        if ask == BoardAsk::Close {
            self.board = None;
        } else {
            // The server no longer has the open, so the cache is invalid.
            (board.steps, board.cached) = (0, None);
        }
        let gone = match status {
            None | Some(Status::Ok) => return Ok(()),
            Some(status) => {
                matches!(status, Status::StaleStateId | Status::BadStateId | Status::Expired)
            }
        };
        let may_be = ends != shared.ends || shared.leases.has_lapsed(self.number);
        if gone && may_be { Ok(()) } else { Err(format!("refused with {status:?}")) }
    }

    /// Handles recalls from the server, and takes the next step with the open board.
    pub(super) fn handle_recalls(&mut self, shared: &mut Shared) -> Result<(), String> {
        while let Some(event) = self.session.as_mut().and_then(|session| session.take_back_event())
        {
            shared.common.note(|| format!("c{} hears {event:?}", self.number));
            match event {
                BackEvent::Recall { delegation, .. } => self.recalled(shared, delegation)?,
                BackEvent::Lost { delegation } => self.lost_delegation(shared, delegation),
                BackEvent::Question { question, .. } => {
                    if let Some(session) = &mut self.session {
                        session.answer_question(&mut self.adapter, question, None);
                    }
                }
            }
        }
        let over = self.remaining == 0;
        let Some(board) = self.board.as_mut().filter(|board| !board.busy) else { return Ok(()) };
        let leaving = board.steps == 0 || over;
        let returning = board.held.filter(|held| leaving || held.recalled);
        if let Some(write) = board.dirty.filter(|_| leaving || returning.is_some()) {
            board.busy = true;
            return self.submit(shared, Job::Board(BoardAsk::WriteBack(write)));
        }
        if let Some(held) = returning {
            (board.held, board.cached) = (None, None);
            return self.submit(shared, Job::Return(held.name));
        }
        if leaving {
            board.busy = true;
            return self.submit(shared, Job::Board(BoardAsk::Close));
        }
        Ok(())
    }

    fn recalled(&mut self, shared: &mut Shared, delegation: StateId) -> Result<(), String> {
        shared.lock_counts.recalls += 1;
        let board = self.board.as_mut();
        let held = board.and_then(|board| board.held.as_mut().map(|held| (held, &mut board.dirty)));
        match held {
            Some((held, dirty)) if held.name == delegation => {
                match shared.danger {
                    // The client goes on using its cache.
                    Danger::StaleCache => return self.submit(shared, Job::Return(delegation)),
                    Danger::LostDirty => *dirty = None,
                    _ => {}
                }
                held.recalled = true;
                Ok(())
            }
            // The delegation came with an open that has no use for it.
            _ => self.submit(shared, Job::Return(delegation)),
        }
    }

    fn lost_delegation(&mut self, shared: &mut Shared, delegation: StateId) {
        let by = self.keeper();
        let Some(board) = &mut self.board else { return };
        if board.held.is_none_or(|held| held.name != delegation) {
            return;
        }
        (board.held, board.cached) = (None, None);
        // The outcome of a write-back under way is noted with its own answer.
        if !board.busy && board.dirty.take().is_some() {
            shared.boards[board.number].lost(by);
        }
    }

    /// The process has ended, and its cache is gone.
    pub(super) fn board_gone(&mut self, shared: &mut Shared) {
        let by = self.keeper();
        shared.boards.iter_mut().for_each(|board| board.lost(by));
        (self.board, self.opening_board) = (None, false);
    }
}
