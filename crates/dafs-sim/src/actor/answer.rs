//! Compares answers with the models.

use super::names::{link_text, parse_name};
use super::task::{Listing, Task};
use super::{Actor, OpenRecord};
use crate::common::Common;
use crate::model::content::{Observation, Tick};
use crate::model::names::{Change, Entry, FileNumber, Place, Refusal};
use dafs_client::core::{Done, ReplyMessage};
use dafs_mem::Site;
use dafs_wire::dafs::{
    Attributes, CommitReply, DirEntry, ObjectType, ReadDirInlineReply, ReadLinkInline, Reply,
    Request, Stability, StateId, Status,
};

type Answer<'a> = Result<Reply<'a>, Status>;

/// Maps a status to the model's reason for a refusal.
fn refusal(status: Status) -> Option<Refusal> {
    Some(match status {
        Status::Exist => Refusal::Exists,
        Status::IsDir => Refusal::IsDirectory,
        Status::NotDir => Refusal::NotDirectory,
        Status::NotEmpty => Refusal::NotEmpty,
        Status::NoEnt => Refusal::NotFound,
        _ => return None,
    })
}

impl Actor {
    /// Handles the answer to an operation.
    pub(super) fn answered(
        &mut self,
        common: &mut Common,
        task: Task,
        done: Done,
    ) -> Result<(), String> {
        match done {
            Done::Read { bytes, end_of_file } => self.read_done(common, &task, bytes, end_of_file),
            Done::Written { bytes, committed, verifier } => {
                common.check_verifier(verifier)?;
                self.write_done(common, &task, bytes, committed)
            }
            Done::Refused { status, .. } => self.data_refused(common, &task, status),
            Done::Answered(reply) => self.reply(common, task, &reply),
            Done::InDoubt(_) | Done::Lost(_) => Ok(()),
        }
    }

    fn succeeded(&self, common: &mut Common, what: impl FnOnce() -> String) {
        common.counts.succeeded += 1;
        let number = self.number;
        common.note(|| format!("c{number} {}", what()));
    }

    fn read_done(
        &mut self,
        common: &mut Common,
        task: &Task,
        bytes: u32,
        eof: bool,
    ) -> Result<(), String> {
        let &Task::Read { file, begin, offset, asked, slot, .. } = task else {
            return Err("answered as a read".to_owned());
        };
        let end = common.tick();
        common.end_read(begin);
        common.counts.bytes_read += u64::from(bytes);
        self.succeeded(common, || format!("read {bytes} of {task:?}, end {eof}"));
        let Some(buffers) = &mut self.buffers else { return Ok(()) };
        let data = buffers
            .piece(slot, bytes as usize)
            .map(|piece| piece.view().to_vec(Site::Inspect))
            .ok_or_else(|| format!("{bytes} bytes were read into less memory"))?;
        buffers.give_back(slot, asked as usize);
        common.digest.bytes(&data);
        let seen = Observation { begin, end, offset, asked, bytes: &data, eof };
        common.files[file].model.check_read(seen)
    }

    fn write_done(
        &mut self,
        common: &mut Common,
        task: &Task,
        bytes: u32,
        committed: Stability,
    ) -> Result<(), String> {
        let &Task::Write { file, change, len, slot, stability, .. } = task else {
            return Err("answered as a write".to_owned());
        };
        let tick = common.tick();
        common.counts.bytes_written += u64::from(bytes);
        self.succeeded(common, || format!("wrote {bytes} of {task:?}"));
        if let Some(buffers) = &mut self.buffers {
            buffers.give_back(slot, len as usize);
        }
        common.files[file].model.done(change, tick, bytes.into());
        common.prune(file);
        if u64::from(bytes) > len || (bytes == 0 && len > 0) {
            return Err(format!("{bytes} of {len} bytes were written"));
        }
        if (committed as u32) < stability as u32 {
            return Err(format!("{stability:?} was asked and {committed:?} given"));
        }
        Ok(())
    }

    /// Handles the refusal of a read or write.
    fn data_refused(
        &mut self,
        common: &mut Common,
        task: &Task,
        status: Status,
    ) -> Result<(), String> {
        match *task {
            Task::Read { file, begin, asked, slot, state, .. } => {
                common.end_read(begin);
                if let Some(buffers) = &mut self.buffers {
                    buffers.give_back(slot, asked as usize);
                }
                self.tolerate(common, Some(file), state, status)
            }
            Task::Write { file, change, len, slot, state, .. } => {
                if let Some(buffers) = &mut self.buffers {
                    buffers.give_back(slot, len as usize);
                }
                let tick = common.tick();
                if matches!(status, Status::Denied | Status::ShareDenied) {
                    common.files[file].model.refused(change);
                } else {
                    // Some of it may have been written before the error.
                    common.files[file].model.settled(change, tick);
                }
                self.tolerate(common, Some(file), state, status)
            }
            _ => Err(format!("refused as a transfer: {status}")),
        }
    }

    /// Returns true if an operation on a file may fail with this error, and notes its effect on the
    /// open.
    pub(super) fn tolerate(
        &mut self,
        common: &mut Common,
        file: Option<FileNumber>,
        state: StateId,
        status: Status,
    ) -> Result<(), String> {
        common.counts.refused += 1;
        let number = self.number;
        common.note(|| format!("c{number} is refused on file {file:?}: {status}"));
        let open = file.and_then(|file| self.opens.get(&file));
        let held = open.is_some_and(|open| !open.shaky && open.state == state);
        let fits = match status {
            Status::Delay | Status::Resource => true,
            Status::Denied | Status::ShareDenied | Status::Locked => common.denials,
            Status::Io => common.store_errors,
            Status::StaleStateId | Status::BadStateId | Status::Expired => {
                !held && state != StateId::ZERO
            }
            Status::Stale => !held && file.is_some_and(|file| self.may_be_gone(file)),
            _ => false,
        };
        if !fits {
            return Err(format!("refused with {status}"));
        }
        if matches!(status, Status::StaleStateId | Status::BadStateId | Status::Expired)
            && let Some(file) = file
            && self.opens.get(&file).is_some_and(|open| open.state == state)
        {
            self.opens.remove(&file);
        }
        Ok(())
    }

    /// Returns true if no change of the tree has happened since `version` or is under way.
    fn is_unchanged(&self, version: u64) -> bool {
        let changing = self.flights.values().any(|task| task.change().is_some());
        !changing && self.version == version && self.home.certain().is_some()
    }

    fn reply(
        &mut self,
        common: &mut Common,
        task: Task,
        message: &ReplyMessage,
    ) -> Result<(), String> {
        let outcome = message.decode().map_err(|error| error.to_string())?;
        let answer = outcome.into_result();
        if let Ok(reply) = &answer {
            self.succeeded(common, || format!("{task:?} answered {reply:?}"));
        }
        match task {
            Task::Null => answer.map(|_| ()).map_err(|status| format!("refused with {status}")),
            Task::Read { .. } | Task::Write { .. } => Err("answered as a message".to_owned()),
            Task::Close { .. }
            | Task::Truncate { .. }
            | Task::SetMode { .. }
            | Task::Stat { .. }
            | Task::Commit { .. } => self.file_reply(common, task, answer),
            Task::Expose { .. } => self.exposed(common, &task, answer),
            _ => self.tree_reply(common, task, answer),
        }
    }

    /// Handles the answer to a request about names.
    fn tree_reply(
        &mut self,
        common: &mut Common,
        task: Task,
        answer: Answer<'_>,
    ) -> Result<(), String> {
        match task {
            Task::FindHome | Task::FindDirectory { .. } | Task::Decide { .. } => {
                self.found(common, task, answer)
            }
            Task::FindFile { file, version } => match answer {
                Ok(Reply::Lookup(reply)) if self.is_unchanged(version) => {
                    common.check_handle(file, reply.fh)
                }
                Ok(_) => Ok(()),
                Err(_) if !self.is_unchanged(version) => Ok(()),
                Err(status) => self.tolerate(common, None, StateId::ZERO, status),
            },
            Task::Open { file, reads, writes, version } => {
                self.opened(common, file, (reads, writes), version, answer)
            }
            Task::Create { .. } | Task::Names { .. } => self.changed(common, &task, answer),
            Task::List(listing) => self.listed(common, listing, answer),
            Task::FindLink { number, version } => match answer {
                Ok(Reply::Lookup(reply)) if self.is_unchanged(version) => {
                    let request = Request::ReadLinkInline(ReadLinkInline { fh: reply.fh });
                    self.submit(common, Task::ReadLink { number, version }, &request).map(|_| ())
                }
                Ok(_) => Ok(()),
                Err(_) if !self.is_unchanged(version) => Ok(()),
                Err(status) => self.tolerate(common, None, StateId::ZERO, status),
            },
            Task::ReadLink { number, version } => match answer {
                Ok(Reply::ReadLinkInline(reply)) if reply.text == link_text(number) => Ok(()),
                Ok(other) => Err(format!("answered with {other:?}")),
                Err(Status::Stale) if !self.is_unchanged(version) => Ok(()),
                Err(status) => self.tolerate(common, None, StateId::ZERO, status),
            },
            _ => Err("answered as a request about names".to_owned()),
        }
    }

    /// Handles the answer to a request about a file by its handle.
    fn file_reply(
        &mut self,
        common: &mut Common,
        task: Task,
        answer: Answer<'_>,
    ) -> Result<(), String> {
        match task {
            Task::Close { file } => {
                match answer {
                    Ok(_) => self.closed(common, file),
                    Err(_) => self.blocks.forget(file),
                }
                let open = self.opens.remove(&file);
                let (state, shaky) = open.map_or((StateId::ZERO, true), |o| (o.state, o.shaky));
                match answer {
                    Ok(_) => Ok(()),
                    Err(Status::StaleStateId | Status::BadStateId | Status::Expired) if shaky => {
                        Ok(())
                    }
                    Err(Status::Stale) if shaky && self.may_be_gone(file) => Ok(()),
                    Err(status) => self.tolerate(common, None, state, status),
                }
            }
            Task::Truncate { file, change, state } => {
                let tick = common.tick();
                match answer {
                    Ok(_) => {
                        common.files[file].model.done(change, tick, 0);
                        common.prune(file);
                        Ok(())
                    }
                    Err(status) => {
                        common.files[file].model.refused(change);
                        self.tolerate(common, Some(file), state, status)
                    }
                }
            }
            Task::SetMode { file, mode } => match answer {
                Ok(_) => {
                    common.files[file].modes = [mode].into();
                    Ok(())
                }
                Err(status) => self.tolerate(common, Some(file), StateId::ZERO, status),
            },
            Task::Stat { file, begin, version, settled } => {
                common.end_read(begin);
                match answer {
                    Ok(Reply::GetAttrInline(reply)) => {
                        self.stated(common, file, begin, version, settled, &reply.attributes)
                    }
                    Ok(other) => Err(format!("answered with {other:?}")),
                    Err(status) => self.tolerate_stat(common, file, status),
                }
            }
            Task::Commit { file } => match answer {
                Ok(Reply::Commit(CommitReply { verifier })) => common.check_verifier(verifier),
                Ok(other) => Err(format!("answered with {other:?}")),
                Err(status) => self.tolerate_stat(common, file, status),
            },
            _ => Err("answered as a request about a file".to_owned()),
        }
    }

    /// Returns true if a request without a state-id may fail with this error: a file without a name
    /// may be gone for it even while the file is open.
    fn tolerate_stat(
        &mut self,
        common: &mut Common,
        file: FileNumber,
        status: Status,
    ) -> Result<(), String> {
        if status == Status::Stale && self.may_be_gone(file) {
            common.counts.refused += 1;
            return Ok(());
        }
        self.tolerate(common, Some(file), StateId::ZERO, status)
    }

    fn found(&mut self, common: &mut Common, task: Task, answer: Answer<'_>) -> Result<(), String> {
        let handle = match answer {
            Ok(Reply::Lookup(reply)) => Ok(reply.fh),
            Ok(other) => return Err(format!("answered with {other:?}")),
            Err(status) => Err(status),
        };
        match (task, handle) {
            (Task::FindHome, Ok(handle)) => {
                let known = *self.home_handle.get_or_insert(handle);
                if known == handle { Ok(()) } else { Err("home has another handle".to_owned()) }
            }
            (Task::FindDirectory { name, version }, handle) => {
                if !self.is_unchanged(version) {
                    return Ok(());
                }
                let handle = handle.map_err(|status| format!("refused with {status}"))?;
                self.directories.insert(name, handle);
                Ok(())
            }
            (Task::Decide { place }, Ok(_)) => {
                self.version += 1;
                self.home.decide(|tree| tree.get(&place).is_some())
            }
            (Task::Decide { place }, Err(Status::NoEnt | Status::NotDir)) => {
                self.version += 1;
                self.home.decide(|tree| tree.get(&place).is_none())
            }
            (_, Ok(_)) => Ok(()),
            (_, Err(status)) => self.tolerate(common, None, StateId::ZERO, status),
        }
    }

    fn opened(
        &mut self,
        common: &mut Common,
        file: FileNumber,
        (reads, writes): (bool, bool),
        version: u64,
        answer: Answer<'_>,
    ) -> Result<(), String> {
        let shared = common.files[file].owner.is_none();
        let unchanged = shared || self.is_unchanged(version);
        match answer {
            Ok(Reply::Open(reply)) => {
                if unchanged {
                    common.check_handle(file, reply.fh)?;
                } else if common.files[file].handle != Some(reply.fh) {
                    // The name changed meanwhile and led to another file; leave that one alone.
                    return Ok(());
                }
                let shaky = !self.is_settled();
                let open = OpenRecord { state: reply.state_id, reads, writes, shaky };
                self.opens.insert(file, open);
                Ok(())
            }
            Ok(other) => Err(format!("answered with {other:?}")),
            Err(_) if !unchanged => Ok(()),
            Err(status) => self.tolerate(common, None, StateId::ZERO, status),
        }
    }

    /// Handles the answer to a change of the tree.
    fn changed(
        &mut self,
        common: &mut Common,
        task: &Task,
        answer: Answer<'_>,
    ) -> Result<(), String> {
        let Some(change) = task.change().cloned() else { return Ok(()) };
        self.version += 1;
        let was = self.home.certain().cloned();
        let told = match answer {
            Ok(_) => Ok(()),
            Err(status) => match refusal(status) {
                Some(refusal) => Err(refusal),
                None => return self.tolerate(common, None, StateId::ZERO, status),
            },
        };
        common.counts.refused += u64::from(told.is_err());
        self.home.answered(&change, told)?;
        let directory = |place: &Place| {
            was.as_ref().is_some_and(|tree| tree.get(place) == Some(&Entry::Directory))
        };
        match (&change, answer) {
            (Change::Create(_, file), Ok(Reply::Open(reply))) => {
                common.check_handle(*file, reply.fh)?;
                let shaky = false;
                let open = OpenRecord { state: reply.state_id, reads: true, writes: true, shaky };
                self.opens.insert(*file, open);
            }
            (Change::MakeDirectory(place), Ok(Reply::Create(reply))) => {
                self.directories.insert(place.name, reply.fh);
            }
            (Change::Remove(place), Ok(_)) if directory(place) => {
                self.directories.remove(&place.name);
            }
            (Change::Rename(from, to), Ok(_)) if directory(from) && from != to => {
                self.directories.remove(&to.name);
                if let Some(handle) = self.directories.remove(&from.name) {
                    self.directories.insert(to.name, handle);
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn stated(
        &mut self,
        common: &mut Common,
        file: FileNumber,
        begin: Tick,
        version: u64,
        settled: bool,
        attributes: &Attributes<'_>,
    ) -> Result<(), String> {
        let record = &common.files[file];
        let Attributes { object_type, mode, num_links, object_size, filehandle, .. } = *attributes;
        if object_type != Some(ObjectType::Regular) || filehandle != record.handle {
            return Err(format!("type {object_type:?}, handle {filehandle:?}"));
        }
        let size = object_size.ok_or("no size was told")?;
        record.model.check_size(begin, size)?;
        let setting =
            |task: &Task| matches!(task, Task::SetMode { file: other, .. } if *other == file);
        let mode = mode.ok_or("no mode was told")?;
        if settled && !self.flights.values().any(setting) && !record.modes.contains(&mode) {
            return Err(format!("mode {mode:o} where only {:?} can be", record.modes));
        }
        if record.owner.is_some()
            && self.is_unchanged(version)
            && let Some(tree) = self.home.certain()
            && num_links.map(|links| links as usize) != Some(tree.links(file))
        {
            return Err(format!("{num_links:?} links, not {}", tree.links(file)));
        }
        Ok(())
    }

    fn listed(
        &mut self,
        common: &mut Common,
        mut listing: Listing,
        answer: Answer<'_>,
    ) -> Result<(), String> {
        let reply: ReadDirInlineReply<'_> = match answer {
            Ok(Reply::ReadDirInline(reply)) => reply,
            Ok(other) => return Err(format!("answered with {other:?}")),
            Err(_) if !self.is_unchanged(listing.version) => return Ok(()),
            Err(status) => return self.tolerate(common, None, StateId::ZERO, status),
        };
        let mut last = listing.cookie;
        for entry in reply.entries.iter() {
            let DirEntry { cookie, name, attributes } = entry;
            last = cookie;
            let name = parse_name(name).ok_or_else(|| format!("a name {name:?} was listed"))?;
            // A name that moves during the listing may appear twice.
            let twice = !listing.seen.insert(name) && self.is_unchanged(listing.version);
            if cookie <= 2 || twice {
                return Err(format!("name {name} was listed with cookie {cookie}, twice: {twice}"));
            }
            if self.is_unchanged(listing.version) {
                self.check_entry(common, &Place { dir: listing.dir, name }, &attributes)?;
            }
        }
        if !reply.eof {
            if last == listing.cookie {
                return Err("a page without an entry is not the last".to_owned());
            }
            listing.cookie = last;
            listing.verifier = reply.cookieverf;
            return self.list_page(common, listing).map(|_| ());
        }
        if !self.is_unchanged(listing.version) {
            return Ok(());
        }
        let Some(tree) = self.home.certain() else { return Ok(()) };
        let expected: std::collections::BTreeSet<u8> =
            tree.list(listing.dir).keys().copied().collect();
        if expected == listing.seen {
            return Ok(());
        }
        Err(format!("directory {:?} lists {:?}, not {expected:?}", listing.dir, listing.seen))
    }

    fn check_entry(
        &self,
        common: &Common,
        place: &Place,
        attributes: &Attributes<'_>,
    ) -> Result<(), String> {
        let Some(tree) = self.home.certain() else { return Ok(()) };
        let entry = tree.get(place).ok_or_else(|| format!("{place:?} was listed"))?;
        let (kind, handle) = match entry {
            Entry::File(file) => (ObjectType::Regular, common.files[*file].handle),
            Entry::Directory => (ObjectType::Directory, None),
            Entry::Symlink(_) => (ObjectType::Symlink, None),
        };
        let right = attributes.object_type == Some(kind)
            && (handle.is_none() || attributes.filehandle == handle);
        if right { Ok(()) } else { Err(format!("{place:?} is {entry:?}, not {attributes:?}")) }
    }
}
