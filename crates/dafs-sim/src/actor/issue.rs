//! Chooses and submits operations on file content, opens and attributes.

use super::task::{Listing, Slot, Task};
use super::{Actor, names};
use crate::common::Common;
use crate::limits::{
    LARGE_SLOT_BYTES, OFFSET_MAX, OPTIMISTIC_PPM, SHARED_FILES, SLOT_BYTES, SMALL_OFFSET_MAX,
};
use crate::model::names::{FileNumber, Place};
use crate::plan::ExposureDanger;
use dafs_client::core::{ReadCall, Refused, WriteCall};
use dafs_mem::Site;
use dafs_wire::dafs::{
    AttrMask, Attributes, Close, Commit, FileHandle, GetAttrInline, HintWord, Lookup, Open,
    OpenClaim, Path, Request, SetAttrInline, ShareAccess, ShareDeny, ShareKey, Stability, StateId,
};

/// The attributes that a client asks for.
pub(crate) const STAT: AttrMask = AttrMask(
    AttrMask::OBJECT_TYPE.0
        | AttrMask::MODE.0
        | AttrMask::NUM_LINKS.0
        | AttrMask::OBJECT_SIZE.0
        | AttrMask::FILEHANDLE.0,
);

/// How often another operation is drawn when one does not apply.
const DRAWS: usize = 6;

impl Actor {
    /// Starts one operation, or ends the session.
    pub(super) fn issue(&mut self, common: &mut Common) -> Result<(), String> {
        common.counts.started += 1;
        if self.home.certain().is_none() && self.is_settled() {
            let deciding = |task: &Task| matches!(task, Task::Decide { .. });
            if !self.flights.values().any(deciding) {
                return self.decide(common);
            }
        }
        if self.plan.optimistic
            && self.rng.chance(OPTIMISTIC_PPM)
            && (self.want_blocks() || self.open(common)?)
        {
            return Ok(());
        }
        for _ in 0..DRAWS {
            let started = match self.rng.below(1000) {
                0..220 => self.read(common)?,
                220..440 => self.write(common)?,
                440..480 => self.truncate(common)?,
                480..540 => self.stat(common)?,
                540..570 => self.commit(common)?,
                570..650 => self.open(common)?,
                650..690 => self.close(common)?,
                690..780 => self.change_names(common)?,
                780..850 => self.create(common)?,
                850..910 => self.list(common)?,
                910..930 => self.set_mode(common)?,
                930..950 => self.read_link(common)?,
                950..975 => self.find_file(common)?,
                975..985 => self.null(common)?,
                985..995 => self.hang_up(common),
                _ => {
                    self.kill(common);
                    true
                }
            };
            if started {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Ends the session, with or without an orderly disconnect.
    fn hang_up(&mut self, common: &mut Common) -> bool {
        let now = common.now;
        let in_order = self.rng.chance(700_000);
        common.note(|| format!("c{} hangs up, in order: {in_order}", self.number));
        if let Some(session) = &mut self.session {
            if in_order {
                session.close(&mut self.adapter, now);
            } else {
                session.abort(&mut self.adapter);
            }
        }
        true
    }

    /// Submits a request. A request that fails at once because the session has ended is lost.
    pub(super) fn submit(
        &mut self,
        common: &mut Common,
        task: Task,
        request: &Request<'_>,
    ) -> Result<bool, String> {
        common.note(|| format!("c{} {task:?}", self.number));
        let deadline = Some(self.plan.deadline);
        let tag = self.remember(task);
        let Some(session) = &mut self.session else { return self.taken(common, tag, None) };
        let adapter = &mut self.adapter;
        let taken = session.submit(adapter, common.now, tag, request, None, deadline);
        self.taken(common, tag, Some(taken))
    }

    fn taken(
        &mut self,
        common: &mut Common,
        tag: u64,
        taken: Option<Result<(), Refused>>,
    ) -> Result<bool, String> {
        match taken {
            Some(Ok(())) => Ok(true),
            Some(Err(Refused::Over(_))) | None => {
                if let Some(task) = self.flights.remove(&tag) {
                    self.lost(common, task);
                }
                Ok(true)
            }
            Some(Err(error)) => Err(format!("a call was not taken: {error}")),
        }
    }

    /// The session's first handle.
    pub(super) fn root(&self) -> FileHandle {
        self.session.as_ref().map_or(FileHandle::ZERO, |session| session.info().root)
    }

    /// Picks a file for an operation, and its handle.
    fn pick_file(&mut self, common: &Common) -> Option<(FileNumber, FileHandle)> {
        let shared = self.rng.chance(500_000);
        let mine = |file: &FileNumber| common.files[*file].owner == Some(self.number);
        let certain = self.home.certain();
        let usable = |file: &FileNumber| {
            let named = certain.is_some_and(|tree| tree.links(*file) > 0);
            named || self.opens.get(file).is_some_and(|open| !open.shaky)
        };
        let count = common.files.len();
        let all: Vec<FileNumber> = if shared {
            (0..SHARED_FILES).collect()
        } else {
            (SHARED_FILES..count).filter(mine).filter(usable).collect()
        };
        let file = *all.get(self.rng.below(all.len() as u64) as usize)?;
        Some((file, common.files[file].handle?))
    }

    /// The state-id to use: that of a fitting open, or the anonymous one.
    fn state_for(&mut self, file: FileNumber, reads: bool) -> StateId {
        let anonymous = self.rng.chance(200_000);
        match self.opens.get(&file) {
            Some(open) if if reads { open.reads } else { open.writes } => {
                let removed = self.may_be_gone(file);
                if anonymous && !removed { StateId::ZERO } else { open.state }
            }
            _ => StateId::ZERO,
        }
    }

    /// True when the file may have no name any more.
    pub(super) fn may_be_gone(&self, file: FileNumber) -> bool {
        if file < SHARED_FILES {
            return false;
        }
        let changing = self.flights.values().any(|task| task.change().is_some());
        changing || self.home.candidates().any(|tree| tree.links(file) == 0)
    }

    /// The bound of offsets and sizes.
    fn offset_max(&self) -> u64 {
        if self.plan.small { SMALL_OFFSET_MAX } else { OFFSET_MAX }
    }

    fn extent(&mut self) -> (u64, usize) {
        let large = self.rng.chance(30_000);
        let aligned = self.rng.chance(400_000);
        let most = if large { LARGE_SLOT_BYTES } else { SLOT_BYTES };
        let mut offset = self.rng.below(self.offset_max());
        let mut len = if large {
            self.rng.between(SLOT_BYTES as u64, most as u64)
        } else {
            self.rng.log_below(most as u64)
        };
        if aligned {
            offset = offset / 4096 * 4096;
            len = (len / 4096 * 4096).max(4096).min(most as u64);
        }
        (offset, len as usize)
    }

    fn take_slot(&mut self, len: usize) -> Option<Slot> {
        self.buffers.as_mut()?.take(len)
    }

    fn read(&mut self, common: &mut Common) -> Result<bool, String> {
        let Some((file, handle)) = self.pick_file(common) else { return Ok(false) };
        let (offset, len) = self.extent();
        let Some(slot) = self.take_slot(len) else { return Ok(false) };
        let state = self.state_for(file, true);
        self.read_into(common, (file, handle), (offset, len), slot, state)
    }

    /// Reads bytes that a hit would have brought.
    pub(super) fn read_instead(
        &mut self,
        common: &mut Common,
        file: FileNumber,
        (offset, len): (u64, usize),
        state: StateId,
    ) -> Result<bool, String> {
        let Some(handle) = common.files[file].handle else { return Ok(false) };
        let Some(slot) = self.take_slot(len) else { return Ok(false) };
        self.read_into(common, (file, handle), (offset, len), slot, state)
    }

    fn read_into(
        &mut self,
        common: &mut Common,
        (file, handle): (FileNumber, FileHandle),
        (offset, len): (u64, usize),
        slot: Slot,
        state: StateId,
    ) -> Result<bool, String> {
        let begin = common.begin_read();
        let task = Task::Read { file, begin, offset, asked: len as u64, slot, state };
        common.note(|| format!("c{} {task:?}", self.number));
        let tag = self.remember(task);
        let piece = self.buffers.as_ref().and_then(|buffers| buffers.piece(slot, len));
        let (Some(session), Some(into)) = (&mut self.session, piece) else {
            return self.taken(common, tag, None);
        };
        let call = ReadCall { handle, state_id: state, offset, into, hint: HintWord::NONE };
        let deadline = Some(self.plan.deadline);
        let taken = session.submit_read(&mut self.adapter, common.now, tag, call, deadline);
        self.taken(common, tag, Some(taken))
    }

    fn write(&mut self, common: &mut Common) -> Result<bool, String> {
        let Some((file, handle)) = self.pick_file(common) else { return Ok(false) };
        let (offset, len) = self.extent();
        let Some(slot) = self.take_slot(len) else { return Ok(false) };
        let state = self.state_for(file, false);
        let stabilities = [Stability::Unstable, Stability::DataSync, Stability::FileSync];
        let stability = stabilities[self.rng.below(3) as usize];
        let write = common.next_write();
        let tick = common.tick();
        let change = common.files[file].model.begin_write(tick, write, offset, len as u64);
        let task = Task::Write { file, change, len: len as u64, slot, state, stability };
        common.note(|| format!("c{} {task:?} at {offset} of {write:?}", self.number));
        let tag = self.remember(task);
        let piece = self.buffers.as_ref().and_then(|buffers| buffers.piece(slot, len));
        let (Some(session), Some(from)) = (&mut self.session, piece) else {
            return self.taken(common, tag, None);
        };
        from.view().copy_from(&write.bytes(offset, len), Site::Inspect);
        let (state_id, delegation) = (state, None);
        let call = WriteCall {
            handle,
            state_id,
            offset,
            stability,
            from,
            delegation,
            hint: HintWord::NONE,
        };
        let deadline = Some(self.plan.deadline);
        let taken = session.submit_write(&mut self.adapter, common.now, tag, call, deadline);
        self.taken(common, tag, Some(taken))
    }

    fn truncate(&mut self, common: &mut Common) -> Result<bool, String> {
        let Some((file, fh)) = self.pick_file(common) else { return Ok(false) };
        let size = self.rng.below(self.offset_max());
        let state_id = self.state_for(file, false);
        let tick = common.tick();
        let change = common.files[file].model.begin_truncate(tick, size);
        let attributes = Attributes { object_size: Some(size), ..Attributes::default() };
        let request = Request::SetAttrInline(SetAttrInline { fh, state_id, attributes });
        common.note(|| format!("c{} truncates file {file} to {size}", self.number));
        self.submit(common, Task::Truncate { file, change, state: state_id }, &request)
    }

    fn stat(&mut self, common: &mut Common) -> Result<bool, String> {
        let Some((file, fh)) = self.pick_file(common) else { return Ok(false) };
        let begin = common.begin_read();
        let settled = self.is_settled();
        let task = Task::Stat { file, begin, version: self.version, settled };
        self.submit(common, task, &Request::GetAttrInline(GetAttrInline { fh, attributes: STAT }))
    }

    fn commit(&mut self, common: &mut Common) -> Result<bool, String> {
        let Some((file, fh)) = self.pick_file(common) else { return Ok(false) };
        let offset = self.rng.below(OFFSET_MAX);
        let count = self.rng.log_below(OFFSET_MAX) as u32;
        self.submit(common, Task::Commit { file }, &Request::Commit(Commit { fh, offset, count }))
    }

    fn set_mode(&mut self, common: &mut Common) -> Result<bool, String> {
        let Some((file, fh)) = self.pick_file(common) else { return Ok(false) };
        let busy =
            |task: &Task| matches!(task, Task::SetMode { file: other, .. } if *other == file);
        if file < SHARED_FILES || !self.is_settled() || self.flights.values().any(busy) {
            return Ok(false);
        }
        let mode = [0o600, 0o640, 0o644, 0o700][self.rng.below(4) as usize];
        common.files[file].modes.insert(mode);
        let attributes = Attributes { mode: Some(mode), ..Attributes::default() };
        let request =
            Request::SetAttrInline(SetAttrInline { fh, state_id: StateId::ZERO, attributes });
        self.submit(common, Task::SetMode { file, mode }, &request)
    }

    fn null(&mut self, common: &mut Common) -> Result<bool, String> {
        self.submit(common, Task::Null, &Request::Null)
    }

    /// The directory and the path by which a file can be found now.
    fn path_of(&self, file: FileNumber) -> Option<(FileHandle, Vec<Vec<u8>>)> {
        if file < SHARED_FILES {
            return Some((self.root(), vec![b"shared".to_vec(), format!("s{file}").into_bytes()]));
        }
        let place = self.home.certain()?.files().get(&file)?.clone();
        Some((self.home_handle?, names::path(&place)))
    }

    fn open(&mut self, common: &mut Common) -> Result<bool, String> {
        let count = common.files.len() as u64;
        let file = self.rng.below(if self.rng.clone().chance(500_000) {
            SHARED_FILES as u64
        } else {
            count
        }) as usize;
        let owner = common.files[file].owner;
        let busy = |task: &Task| {
            task.file() == Some(file)
                && matches!(task, Task::Open { .. } | Task::Close { .. } | Task::Create { .. })
        };
        if owner.is_some_and(|owner| owner != self.number)
            || self.opens.contains_key(&file)
            || self.flights.values().any(busy)
        {
            return Ok(false);
        }
        let Some((dir, path)) = self.path_of(file) else { return Ok(false) };
        let accesses = [ShareAccess::Read, ShareAccess::Write, ShareAccess::Both];
        let share_access = accesses[self.rng.below(3) as usize];
        let denies = self.rng.chance(20_000);
        common.denials |= denies;
        let path: Vec<&[u8]> = path.iter().map(Vec::as_slice).collect();
        let name = format!("owner {}", self.number);
        let request = Request::Open(Open {
            claim: OpenClaim::Null { dir, path: Path::new(&path) },
            create: None,
            delete_disposition: dafs_wire::dafs::DeleteDisposition::DontCare,
            owner: name.as_bytes(),
            share_access,
            share_deny: if denies { ShareDeny::Write } else { ShareDeny::None },
            share_key: ShareKey::None,
        });
        let (reads, writes) = (share_access.reads(), share_access.writes());
        let task = Task::Open { file, reads, writes, version: self.version };
        self.submit(common, task, &request)
    }

    fn close(&mut self, common: &mut Common) -> Result<bool, String> {
        let files: Vec<FileNumber> = self.opens.keys().copied().collect();
        let Some(&file) = files.get(self.rng.below(files.len() as u64) as usize) else {
            return Ok(false);
        };
        // No other operation may use the open, or its answer could not be predicted.
        if self.flights.values().any(|task| task.file() == Some(file)) {
            return Ok(false);
        }
        let (Some(open), Some(fh)) = (self.opens.get(&file), common.files[file].handle) else {
            return Ok(false);
        };
        if self.plan.danger == ExposureDanger::GrantStays && self.blocks.knows(file) {
            // The server does not learn of it.
            self.opens.remove(&file);
            self.closed(common, file);
            return Ok(true);
        }
        let request = Request::Close(Close { fh, state_id: open.state });
        self.submit(common, Task::Close { file }, &request)
    }

    pub(super) fn find_file(&mut self, common: &mut Common) -> Result<bool, String> {
        let file = self.rng.below(common.files.len() as u64) as usize;
        if common.files[file].owner.is_some_and(|owner| owner != self.number) {
            return Ok(false);
        }
        let Some((dir, path)) = self.path_of(file) else { return Ok(false) };
        let path: Vec<&[u8]> = path.iter().map(Vec::as_slice).collect();
        let request = Request::Lookup(Lookup { dir, path: Path::new(&path) });
        self.submit(common, Task::FindFile { file, version: self.version }, &request)
    }

    fn list(&mut self, common: &mut Common) -> Result<bool, String> {
        let Some(tree) = self.home.certain() else { return Ok(false) };
        let inner: Vec<u8> = tree.directories().into_iter().collect();
        let dir = inner.get(self.rng.below(1 + inner.len() as u64) as usize).copied();
        let listing = Listing {
            dir,
            cookie: 0,
            verifier: dafs_wire::dafs::Verifier::ZERO,
            seen: Default::default(),
            version: self.version,
        };
        self.list_page(common, listing)
    }

    /// The handle of a directory of the client's own tree. Submits the lookup if it is not known.
    pub(super) fn directory(
        &mut self,
        common: &mut Common,
        dir: Option<u8>,
    ) -> Result<Option<FileHandle>, String> {
        let known = match dir {
            None => self.home_handle,
            Some(name) => self.directories.get(&name).copied(),
        };
        if known.is_some() {
            return Ok(known);
        }
        let (Some(home), Some(name)) = (self.home_handle, dir) else {
            if !self.flights.values().any(|task| matches!(task, Task::FindHome)) {
                let name = Actor::home_name(self.number);
                let path: [&[u8]; 1] = [&name];
                let request = Request::Lookup(Lookup { dir: self.root(), path: Path::new(&path) });
                self.submit(common, Task::FindHome, &request)?;
            }
            return Ok(None);
        };
        let path = names::name(name);
        let path: [&[u8]; 1] = [&path];
        let request = Request::Lookup(Lookup { dir: home, path: Path::new(&path) });
        self.submit(common, Task::FindDirectory { name, version: self.version }, &request)?;
        Ok(None)
    }

    /// Looks up a place at which the candidates differ.
    fn decide(&mut self, common: &mut Common) -> Result<(), String> {
        let candidates: Vec<_> = self.home.candidates().cloned().collect();
        let [one, other] = &candidates[..] else { return Ok(()) };
        let places = one.places().chain(other.places());
        let differs = |place: &&Place| one.get(place).is_some() != other.get(place).is_some();
        let place = places.into_iter().find(differs).cloned();
        let place = place.ok_or("the model has two candidates with the same names")?;
        let Some(dir) = self.directory(common, None)? else { return Ok(()) };
        let path = names::path(&place);
        let path: Vec<&[u8]> = path.iter().map(Vec::as_slice).collect();
        let request = Request::Lookup(Lookup { dir, path: Path::new(&path) });
        self.submit(common, Task::Decide { place }, &request)?;
        Ok(())
    }
}
