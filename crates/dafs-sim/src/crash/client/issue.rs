//! Chooses and submits operations.

use super::board::BoardAsk;
use super::job::{Job, Target};
use super::{Client, Flight};
use crate::crash::model::log::{Log, RECORD_BYTES_MAX, RECORD_BYTES_MIN};
use crate::crash::model::names::{Change, How, Place};
use crate::crash::model::slots::{SLOT_BYTES, SLOTS, Slots};
use crate::crash::model::vault::Ask;
use crate::crash::{DIRECTORIES, Shared};
use dafs_client::core::{BatchHints, ChainMember, ReadCall, Refused, WriteCall};
use dafs_dat::Instant;
use dafs_mem::Site;
use dafs_wire::dafs::{
    AppendDirect, AppendInline, Attributes, ChainFlags, Checksum, Close, Commit, Create,
    CreateMode, DeleteDisposition, FileHandle, HintWord, Link, Lookup, NewObject, ObjectType, Open,
    OpenClaim, Path, Remove, RemoveMode, Rename, Request, SetAttrInline, ShareAccess, ShareDeny,
    ShareKey, Stability, StateId, Verifier, checksum,
};
use std::time::Duration;

/// How often another operation is drawn when one does not apply.
const DRAWS: usize = 8;

/// Most bytes of an append inside a message.
const INLINE_APPEND_BYTES_MAX: usize = 2000;

/// The path of a target below the root.
pub(crate) fn path_of(number: usize, target: Target) -> Vec<u8> {
    match target {
        Target::Dir(dir) => format!("d{dir}").into_bytes(),
        Target::Data => Client::data_name(number),
        Target::Log => b"log".to_vec(),
        Target::Gate => Client::GATE.to_vec(),
    }
}

impl Client {
    /// Starts one operation if one applies.
    pub(super) fn issue(&mut self, shared: &mut Shared) -> Result<(), String> {
        if let Some(target) = self.wanted() {
            let busy = |flight: &Flight| flight.job == Job::Find(target);
            if self.flights.values().any(busy)
                || self.retries.iter().any(|(_, job)| *job == Job::Find(target))
            {
                self.next_action = shared.common.now + Duration::from_millis(1);
                return Ok(());
            }
            return self.submit(shared, Job::Find(target));
        }
        self.meddle(shared)?;
        self.remaining -= 1;
        shared.started += 1;
        shared.common.counts.started += 1;
        for _ in 0..DRAWS {
            let job = match self.rng.below(100) {
                0..22 => self.draw_change(),
                22..28 => self.draw_batch(shared).or_else(|| self.draw_change()),
                28..43 => self.draw_board(shared)?.or_else(|| self.draw_change()),
                43..55 => self.draw_visit(shared),
                55..75 => self.draw_append(shared),
                75..90 => self.draw_write(shared),
                90..94 => self.draw_read(),
                94..97 => self.draw_fence(shared),
                _ => Some(Job::Commit { covered: self.slots.uncommitted() }),
            };
            if let Some(job) = job {
                return self.submit(shared, job);
            }
        }
        Ok(())
    }

    /// The next target without a known handle.
    fn wanted(&self) -> Option<Target> {
        let dirs = (0..DIRECTORIES).filter(|dir| !self.handles.dirs.contains_key(dir));
        let data = self.handles.data.is_none().then_some(Target::Data);
        let log = self.handles.log.is_none().then_some(Target::Log);
        let gate = self.handles.gate.is_none().then_some(Target::Gate);
        dirs.map(Target::Dir).chain(data).chain(log).chain(gate).next()
    }

    fn draw_place(&mut self) -> Place {
        let dir = self.rng.below(DIRECTORIES.into()) as u8;
        Place { dir, name: self.rng.below(self.plan.names.into()) as u8 }
    }

    fn draw_change(&mut self) -> Option<Job> {
        let (at, to) = (self.draw_place(), self.draw_place());
        let how = match self.rng.below(10) {
            0..6 => How::Guarded,
            6..9 => How::Exclusive(self.rng.bits()),
            _ => How::Unchecked,
        };
        let change = match self.rng.below(100) {
            0..35 => Change::Create { at, object: self.names.new_object(), how },
            35..45 => Change::MakeDirectory { at, object: self.names.new_object() },
            45..65 => Change::Remove { at },
            65..85 => Change::Rename { from: at, to },
            85..95 => Change::Link { from: at, to },
            _ => Change::SetMode { at, mode: 0o600 + self.rng.below(64) as u32 },
        };
        let fits = match change {
            Change::Rename { .. } => at != to,
            Change::Link { from, to } => {
                let file = self.names.get(from).is_some_and(|entry| !entry.is_directory);
                from != to && file && self.names.handle(from).is_some()
            }
            Change::SetMode { at, .. } => self.names.handle(at).is_some(),
            _ => true,
        };
        if !fits || !self.names.begin(&change) {
            return None;
        }
        let chained = matches!(change, Change::Create { .. }) && self.plan.chains;
        Some(if chained { Job::Chained(change) } else { Job::Names(change) })
    }

    fn draw_append(&mut self, shared: &mut Shared) -> Option<Job> {
        let direct = self.rng.chance(400_000);
        let most = if direct { RECORD_BYTES_MAX } else { INLINE_APPEND_BYTES_MAX };
        let len = RECORD_BYTES_MIN + self.rng.log_below((most - RECORD_BYTES_MIN) as u64) as usize;
        let record = shared.common.next_write();
        let gate = self.rng.chance(400_000).then(|| shared.gate.watch(self.number, record));
        let log = if gate.is_some() { &mut shared.gate.log } else { &mut shared.log };
        log.begin(record, len);
        Some(Job::Append { record, len, direct, gate })
    }

    fn draw_write(&mut self, shared: &mut Shared) -> Option<Job> {
        let slot = self.rng.below(SLOTS as u64) as usize;
        let stabilities = [Stability::Unstable, Stability::DataSync, Stability::FileSync];
        let stability = stabilities[self.rng.below(3) as usize];
        if !self.slots.begin(slot) {
            return None;
        }
        let write = shared.common.next_write();
        self.slots.begin_write(slot, write, shared.cuts);
        Some(Job::Write { slot, write, stability })
    }

    fn draw_read(&mut self) -> Option<Job> {
        let slot = self.rng.below(SLOTS as u64) as usize;
        self.slots.begin(slot).then_some(Job::Read { slot })
    }

    /// Retries later an operation that the server refused without running it.
    pub(super) fn again(&mut self, now: Instant, job: Job) {
        let steps = 100 + self.rng.log_below(20_000);
        self.retries.push((now + Duration::from_micros(10 * steps), job));
    }

    /// Submits an operation.
    pub(super) fn submit(&mut self, shared: &mut Shared, mut job: Job) -> Result<(), String> {
        let now = shared.common.now;
        self.ask_vault(shared, &mut job);
        if let Job::Append { record, gate: Some(watch), .. } = &mut job {
            *watch = shared.gate.watch(self.number, *record);
        }
        shared.common.note(|| format!("c{} asks {job:?}", self.number));
        match job {
            Job::Transfers(parts, hints) => return self.submit_transfers(shared, parts, hints),
            Job::Transfer(part) => {
                return self.submit_transfers(shared, vec![part], BatchHints::default());
            }
            _ => {}
        }
        let needs_memory = match &job {
            Job::Write { .. } | Job::Read { .. } | Job::Batch(_) => true,
            Job::Append { direct, .. } => *direct,
            Job::Board(ask) => *ask != BoardAsk::Close,
            Job::Guarded { ask: Ask::Read | Ask::Peek | Ask::Write(_), .. } => true,
            _ => false,
        };
        let piece = if needs_memory { self.pieces_free.pop() } else { None };
        if needs_memory && piece.is_none() {
            self.again(now, job);
            return Ok(());
        }
        self.last_tag += 1;
        let tag = self.last_tag;
        match self.send(shared, tag, &job, piece) {
            Some(Ok(())) => {
                let ends = shared.ends;
                if let Job::Chained(_) = job {
                    let (job, piece) = (Job::ChainedClose, None);
                    self.last_tag += 1;
                    self.flights.insert(self.last_tag, Flight { job, piece, ends, since: now });
                }
                self.flights.insert(tag, Flight { job, piece, ends, since: now });
                return Ok(());
            }
            Some(Err(Refused::ChainTooLong { .. })) if let Job::Chained(change) = job => {
                self.again(now, Job::Names(change));
            }
            Some(Err(Refused::Over(_) | Refused::Full)) | None => self.again(now, job),
            Some(Err(error)) => return Err(format!("{job:?} was not taken: {error}")),
        }
        self.pieces_free.extend(piece);
        Ok(())
    }

    /// Sends an operation. `None` if it cannot be sent now.
    fn send(
        &mut self,
        shared: &Shared,
        tag: u64,
        job: &Job,
        piece: Option<usize>,
    ) -> Option<Result<(), Refused>> {
        let now = shared.common.now;
        match job {
            Job::OpenVault { vault } => self.send_open_vault(now, tag, *vault),
            Job::Guarded { visit, ask, .. } => {
                let kind = shared.vaults[visit.vault].kind;
                self.send_guarded(now, tag, (*visit, *ask, kind), piece)
            }
            Job::Find(target) => {
                let dir = self.session.as_ref()?.info().root;
                let name = path_of(self.number, *target);
                let path: [&[u8]; 1] = [&name];
                self.call(now, tag, &Request::Lookup(Lookup { dir, path: Path::new(&path) }))
            }
            Job::Names(change) => self.send_change(now, tag, change, false),
            Job::Chained(change) => self.send_change(now, tag, change, true),
            Job::ChainedClose => None,
            Job::Close { handle, state, .. } => {
                let request = Request::Close(Close { fh: *handle, state_id: *state });
                self.call(now, tag, &request)
            }
            Job::Write { slot, write, stability } => {
                let from = self.piece(piece?, SLOT_BYTES)?;
                let offset = Slots::offset(*slot);
                from.view().copy_from(&write.bytes(offset, SLOT_BYTES), Site::Inspect);
                let (handle, state_id) = (self.handles.data?, StateId::ZERO);
                let (stability, delegation) = (*stability, None);
                let call = WriteCall {
                    handle,
                    state_id,
                    offset,
                    stability,
                    from,
                    delegation,
                    hint: HintWord::NONE,
                };
                let session = self.session.as_mut()?;
                Some(session.submit_write(&mut self.adapter, now, tag, call, None))
            }
            Job::Read { slot } => {
                let into = self.piece(piece?, SLOT_BYTES)?;
                into.view().fill(0xdb);
                let (handle, state_id) = (self.handles.data?, StateId::ZERO);
                let call = ReadCall {
                    handle,
                    state_id,
                    offset: Slots::offset(*slot),
                    into,
                    hint: HintWord::NONE,
                };
                let session = self.session.as_mut()?;
                Some(session.submit_read(&mut self.adapter, now, tag, call, None))
            }
            Job::Batch(parts) => self.send_batch(now, tag, parts, (piece?, shared.danger)),
            Job::Transfers(..) | Job::Transfer(_) => None,
            Job::OpenBoard { number, writes } => self.send_open_board(now, tag, (*number, *writes)),
            Job::Board(ask) => self.send_board(now, tag, *ask, piece),
            Job::Return(delegation) => self.send_return(now, tag, *delegation),
            Job::Commit { .. } => {
                let fh = self.handles.data?;
                self.call(now, tag, &Request::Commit(Commit { fh, offset: 0, count: 0 }))
            }
            Job::Fence { client, admit, .. } => self.send_fence(now, tag, (*client, *admit)),
            Job::Append { record, len, direct, gate } => {
                let data = Log::record(*record, *len);
                let file = if gate.is_some() { self.handles.gate } else { self.handles.log };
                let (fh, state_id) = (file?, StateId::ZERO);
                let stable = Stability::FileSync;
                if !direct {
                    let request = Request::AppendInline(AppendInline {
                        fh,
                        state_id,
                        stable,
                        padded_to: None,
                        cache_hint: HintWord::NONE,
                        data: &data,
                    });
                    return self.call(now, tag, &request);
                }
                let from = self.piece(piece?, *len)?;
                from.view().copy_from(&data, Site::Inspect);
                let session = self.session.as_mut()?;
                let direct_checksum =
                    if session.info().checksums { checksum(&data) } else { Checksum::default() };
                let request = Request::AppendDirect(AppendDirect {
                    fh,
                    state_id,
                    stable,
                    byte_count: *len as u32,
                    cache_hint: HintWord::NONE,
                    direct_checksum,
                    buffer: from.direct_buffer(),
                });
                Some(session.submit(&mut self.adapter, now, tag, &request, Some(from), None))
            }
        }
    }

    pub(super) fn call(
        &mut self,
        now: Instant,
        tag: u64,
        request: &Request<'_>,
    ) -> Option<Result<(), Refused>> {
        let session = self.session.as_mut()?;
        Some(session.submit(&mut self.adapter, now, tag, request, None, None))
    }

    /// Sends an OPEN, and a CLOSE of the opened file with the next tag.
    fn chain(&mut self, now: Instant, tag: u64, open: Request<'_>) -> Option<Result<(), Refused>> {
        let (fh, state_id) = (FileHandle::ZERO, StateId::ZERO);
        let close = Request::Close(Close { fh, state_id });
        let takes = ChainFlags::FH | ChainFlags::STATEID;
        let members = [
            ChainMember { tag, request: open, takes: ChainFlags::empty() },
            ChainMember { tag: tag + 1, request: close, takes },
        ];
        let session = self.session.as_mut()?;
        Some(session.submit_chain(&mut self.adapter, now, &members, None))
    }

    fn dir(&self, place: Place) -> Option<FileHandle> {
        self.handles.dirs.get(&place.dir).copied()
    }

    fn send_change(
        &mut self,
        now: Instant,
        tag: u64,
        change: &Change,
        chained: bool,
    ) -> Option<Result<(), Refused>> {
        let name = |place: Place| Client::name(self.number, place.name);
        match *change {
            Change::Create { at, how, .. } => {
                let attributes = Attributes { mode: Some(0o644), ..Attributes::default() };
                let create = match how {
                    How::Unchecked => CreateMode::Unchecked { attributes },
                    How::Guarded => CreateMode::Guarded { attributes },
                    How::Exclusive(bits) => {
                        CreateMode::Exclusive { verifier: Verifier(bits.to_be_bytes()) }
                    }
                };
                let name = name(at);
                let path: [&[u8]; 1] = [&name];
                let owner = format!("owner {}", self.number);
                let request = Request::Open(Open {
                    claim: OpenClaim::Null { dir: self.dir(at)?, path: Path::new(&path) },
                    create: Some(create),
                    delete_disposition: DeleteDisposition::DontCare,
                    owner: owner.as_bytes(),
                    share_access: ShareAccess::Both,
                    share_deny: ShareDeny::None,
                    share_key: ShareKey::None,
                });
                if chained { self.chain(now, tag, request) } else { self.call(now, tag, &request) }
            }
            Change::MakeDirectory { at, .. } => {
                let attributes = Attributes { mode: Some(0o755), ..Attributes::default() };
                let object = NewObject::Plain(ObjectType::Directory);
                let (dir, name) = (self.dir(at)?, name(at));
                let request = Create { dir, name: &name, object, attributes };
                self.call(now, tag, &Request::Create(request))
            }
            Change::Remove { at } => {
                let (dir, name) = (self.dir(at)?, name(at));
                let remove_mode = RemoveMode::Unchecked;
                self.call(now, tag, &Request::Remove(Remove { dir, name: &name, remove_mode }))
            }
            Change::Rename { from, to } => {
                let (old_name, new_name) = (name(from), name(to));
                let request = Request::Rename(Rename {
                    source_dir: self.dir(from)?,
                    target_dir: self.dir(to)?,
                    old_name: &old_name,
                    new_name: &new_name,
                });
                self.call(now, tag, &request)
            }
            Change::Link { from, to } => {
                let (source, target_dir) = (self.names.handle(from)?, self.dir(to)?);
                let name = name(to);
                self.call(now, tag, &Request::Link(Link { source, target_dir, name: &name }))
            }
            Change::SetMode { at, mode } => {
                let fh = self.names.handle(at)?;
                let attributes = Attributes { mode: Some(mode), ..Attributes::default() };
                let state_id = StateId::ZERO;
                let request = SetAttrInline { fh, state_id, attributes };
                self.call(now, tag, &Request::SetAttrInline(request))
            }
        }
    }
}
