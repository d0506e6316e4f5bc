//! Chains: several requests in one round trip, each of which may take the handle or state-id that
//! those before it have found (DAFS 8). With a chain, reading or creating a small file costs one
//! round trip.
//!
//! Invariants
//! * A request of unknown outcome is never reported as carried out, nor as not carried out.

use crate::attributes::{Attributes, FileHandle, SetAttributes, Stability};
use crate::cache::Effect;
use crate::client::Client;
use crate::convert;
use crate::core::{ReplyMessage, is_short_write};
use crate::error::{Error, Result};
use crate::file::OPENS;
use crate::names::component;
use crate::open::{Create, OpenOptions};
use crate::path::{COMPONENTS_PER_LOOKUP, Follow};
use dafs_mem::{Site, VolatileSlice};
use dafs_wire::dafs as wire;
use dafs_wire::dafs::{
    ChainFlags, Outcome, Procedure, READ_INLINE_REPLY_DATA_AT, Reply, Request, StateId, Status,
    WRITE_INLINE_DATA_AT,
};
use dafs_wire::path::SplitPath;
use std::sync::atomic::Ordering;

/// The values that a request takes from those before it in its chain, in place of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Takes {
    /// Neither the handle nor the state-id.
    #[default]
    Nothing,
    /// The handle.
    Handle,
    /// The state-id.
    StateId,
    /// The handle and the state-id.
    Both,
}

impl Takes {
    pub(crate) fn flags(self) -> ChainFlags {
        match self {
            Self::Nothing => ChainFlags::empty(),
            Self::Handle => ChainFlags::FH,
            Self::StateId => ChainFlags::STATEID,
            Self::Both => ChainFlags::FH | ChainFlags::STATEID,
        }
    }
}

/// Requests that are carried out in their order, each only if the one before it has succeeded.
#[derive(Debug, Clone)]
pub struct Chain<'a> {
    client: Client,
    members: Vec<(Request<'a>, ChainFlags)>,
}

impl<'a> Chain<'a> {
    /// Adds a request, which must not name memory for direct transfer.
    #[must_use]
    pub fn then(mut self, request: Request<'a>, takes: Takes) -> Self {
        self.members.push((request, takes.flags()));
        self
    }

    /// Sends it in one piece and waits for the answers: one for each request.
    ///
    /// # Errors
    /// The chain cannot be sent: [`Error::Argument`] when the requests do not form a chain (DAFS
    /// 8), as when one that changes the file system comes behind one that fetches;
    /// [`Error::ChainTooLong`]. The errors of single requests are in the result; behind the first
    /// failure, or the first short write, they are [`Error::ChainBroken`].
    pub fn run(&self) -> Result<Vec<Result<ReplyMessage>>> {
        let mut failed = None;
        let _used = self.client.before(|| self.effect());
        let mut results = self.client.shared().call_chain(&self.members)?;
        if results.iter().all(|result| matches!(result, Err(Error::Unsendable(_))))
            && !results.is_empty()
        {
            // The chain was accepted while the session reconnected, and there are fewer credits
            // now.
            let credits = self.client.stats().credits.into();
            return Err(Error::ChainTooLong { members: self.members.len(), credits });
        }
        for (index, result) in results.iter_mut().enumerate() {
            if let Ok(reply) = result
                && !reply.status().is_ok()
            {
                let (procedure, status) = (reply.procedure(), reply.status());
                *result = Err(match failed {
                    Some(member) if status == Status::ChainBroken => {
                        Error::ChainBroken { procedure, member }
                    }
                    _ => Error::Status { procedure, status },
                });
            }
            let ends = match result {
                Ok(reply) => is_short_write(&self.members[index].0, reply),
                Err(_) => true,
            };
            if ends {
                failed = failed.or(Some(index));
            }
        }
        Ok(results)
    }

    /// The effect of its requests on file content.
    fn effect(&self) -> Effect {
        // No other open can know the file that the chain created last.
        let mut is_new = false;
        let mut what = Effect::None;
        for (request, flags) in &self.members {
            let takes = flags.contains(ChainFlags::FH);
            if !(takes && is_new) {
                what = what.and(Effect::of(request, takes));
            }
            match request {
                Request::Open(args) => {
                    use wire::CreateMode::{Exclusive, Guarded};
                    is_new = matches!(args.create, Some(Guarded { .. } | Exclusive { .. }));
                }
                Request::Lookup(_) | Request::LookupP(_) | Request::Create(_) => is_new = false,
                _ => {}
            }
        }
        what
    }

    /// As [`Chain::run`], for chains without side effects: requests that a lost connection leaves
    /// in doubt are retried, and so are those answered with DELAY.
    fn ask(&self) -> Result<Vec<ReplyMessage>> {
        self.client.shared().patiently(|| self.run()?.into_iter().collect())
    }
}

/// The start of a file, or all of it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct FileStart {
    /// The file.
    pub handle: FileHandle,
    /// Its first bytes.
    pub data: Vec<u8>,
    /// True when the file ends there; the server may not report the end if exactly the last byte
    /// was asked for.
    pub is_whole: bool,
}

impl Client {
    /// A chain without requests.
    pub fn chain<'a>(&self) -> Chain<'a> {
        Chain { client: self.clone(), members: Vec::new() }
    }

    /// The object called `name` in a directory and its attributes, in one round trip if the session
    /// has two credits at the moment. Symbolic links are not followed.
    ///
    /// # Errors
    /// The server's answer.
    pub fn lookup_attributes(
        &self,
        dir: &FileHandle,
        name: &[u8],
    ) -> Result<(FileHandle, Attributes)> {
        let path = [component(name)?];
        let get = wire::GetAttrInline { fh: *dir, attributes: convert::WANTED };
        let lookup = Request::Lookup(wire::Lookup { dir: *dir, path: wire::Path::new(&path) });
        let chain = self.chain().then(lookup, Takes::Nothing);
        let replies = match chain.then(Request::GetAttrInline(get), Takes::Handle).ask() {
            // A session that has just reconnected may have one credit, even while this waits.
            Err(Error::ChainTooLong { .. }) => {
                let handle = self.lookup(dir, name)?;
                return Ok((handle, self.attributes(&handle)?));
            }
            replies => replies?,
        };
        let handle = self.take(replies.first(), |reply| Some(reply.lookup()?.fh))?;
        let attributes = self.take(replies.get(1), |reply| {
            Some(convert::attributes(&reply.get_attr_inline()?.attributes, &handle))
        })?;
        Ok((handle, attributes))
    }

    /// Up to `bytes_max` bytes from the start of the file at `path`, without opening it: in one
    /// round trip if that fits a message and no symbolic link is on the way. Links are followed.
    /// Share reservations of others are respected; no reservation is made.
    ///
    /// # Errors
    /// The server's answer.
    pub fn read_file(&self, path: &[u8], bytes_max: usize) -> Result<FileStart> {
        self.read_file_from(&self.root(), path, bytes_max)
    }

    /// As [`Client::read_file`], from a directory.
    ///
    /// # Errors
    /// The server's answer.
    pub fn read_file_from(
        &self,
        dir: &FileHandle,
        path: &[u8],
        bytes_max: usize,
    ) -> Result<FileStart> {
        let mut start = match self.read_straight(dir, path, bytes_max) {
            Ok(Some(start)) => start,
            Ok(None) => {
                let handle = self.resolve_from(dir, path, Follow::Yes)?.handle;
                FileStart { handle, data: Vec::new(), is_whole: false }
            }
            Err(error) => return Err(error),
        };
        while !start.is_whole && start.data.len() < bytes_max {
            let offset = start.data.len() as u64;
            let request = self.read_request(&start.handle, offset, bytes_max - start.data.len());
            let asked = request.byte_count;
            start.is_whole = self.ask(&Request::ReadInline(request), |reply| {
                take_data(reply, asked, &mut start.data)
            })?;
        }
        Ok(start)
    }

    /// One chain of LOOKUP and READ; `None` if the path needs more than that.
    fn read_straight(
        &self,
        dir: &FileHandle,
        path: &[u8],
        bytes_max: usize,
    ) -> Result<Option<FileStart>> {
        let Some(names) = straight(path)? else { return Ok(None) };
        let lookup = Request::Lookup(wire::Lookup { dir: *dir, path: wire::Path::new(&names) });
        let read = self.read_request(dir, 0, bytes_max);
        let asked = read.byte_count;
        let chain = self.chain().then(lookup, Takes::Nothing);
        let replies = match chain.then(Request::ReadInline(read), Takes::Handle).ask() {
            Ok(replies) => replies,
            // There may be a link on the way or at its end, or the session has one credit.
            Err(Error::ChainTooLong { .. }) => return Ok(None),
            Err(error) if is_link(&error) => return Ok(None),
            Err(error) => return Err(error),
        };
        let handle = self.take(replies.first(), |reply| Some(reply.lookup()?.fh))?;
        let mut data = Vec::new();
        let is_whole = self.take(replies.get(1), |reply| take_data(reply, asked, &mut data))?;
        Ok(Some(FileStart { handle, data, is_whole }))
    }

    /// A READ of up to `bytes_max` bytes, cut to what one message holds.
    pub(crate) fn read_request(
        &self,
        fh: &FileHandle,
        offset: u64,
        bytes_max: usize,
    ) -> wire::ReadInline {
        let message_bytes = self.session().response_bytes as usize;
        let bytes = bytes_max.min(message_bytes.saturating_sub(READ_INLINE_REPLY_DATA_AT));
        let byte_count = u32::try_from(bytes.min(self.read_bytes_max())).unwrap_or(u32::MAX);
        wire::ReadInline {
            fh: *fh,
            state_id: StateId::ZERO,
            offset,
            byte_count,
            cache_hint: wire::HintWord::NONE,
        }
    }

    /// Makes the file `name` in a directory with `data` in it, which must not exist: in one round
    /// trip if the data fits a message and the session has a credit for each request at the moment.
    /// When it fails the file may be there, with less in it.
    ///
    /// # Errors
    /// The server's answer; EXIST if there is something of that name. [`Error::InDoubt`] when a
    /// connection was lost and the server does not know either.
    pub fn create_file(
        &self,
        dir: &FileHandle,
        name: &[u8],
        attributes: &SetAttributes,
        data: &[u8],
        stability: Stability,
    ) -> Result<FileHandle> {
        let path = [component(name)?];
        let text = convert::OwnerText::new(attributes);
        let owner = OPENS.fetch_add(1, Ordering::Relaxed).to_be_bytes();
        let open = Request::Open(wire::Open {
            claim: wire::OpenClaim::Null { dir: *dir, path: wire::Path::new(&path) },
            create: Some(wire::CreateMode::Guarded { attributes: text.attributes(attributes) }),
            delete_disposition: wire::DeleteDisposition::DontCare,
            owner: &owner,
            share_access: wire::ShareAccess::Write,
            share_deny: wire::ShareDeny::None,
            share_key: wire::ShareKey::None,
        });
        let room = (self.session().request_bytes as usize).saturating_sub(WRITE_INLINE_DATA_AT);
        let created = self.shared().patiently(|| self.create(open, room, data, stability));
        let mut replies = match created {
            // A session that has reconnected may have fewer credits than before.
            Err(Error::ChainTooLong { .. }) => {
                return self.create_in_steps(dir, name, attributes, data, stability);
            }
            created => created?,
        };
        let close = replies.pop();
        let Some(opened) = replies.first() else { return Err(self.shared().broken(&"no answer")) };
        let (fh, state_id) = match opened {
            Ok(reply) => self.take(Some(reply), |reply| {
                reply.open().map(|opened| (opened.fh, opened.state_id))
            })?,
            Err(error) => return Err(error.clone()),
        };
        let mut written = Ok(());
        let mut done = 0;
        for reply in &replies[1..] {
            written = reply.clone().and_then(|reply| {
                let asked = (data.len() - done).min(room);
                let count =
                    self.take(Some(&reply), |reply| Some(reply.write_inline()?.count as usize))?;
                done += asked;
                if count == asked { Ok(()) } else { Err(Error::WriteZero) }
            });
            if written.is_err() {
                break;
            }
        }
        match close {
            Some(Err(Error::ChainBroken { .. })) | None => {
                self.shared().close_file(wire::Close { fh, state_id });
                written?;
            }
            Some(closed) => {
                written?;
                closed?;
            }
        }
        Ok(fh)
    }

    /// [`Client::create_file`] for a session that has not the credits for a chain of it.
    fn create_in_steps(
        &self,
        dir: &FileHandle,
        name: &[u8],
        attributes: &SetAttributes,
        data: &[u8],
        stability: Stability,
    ) -> Result<FileHandle> {
        let options = OpenOptions::write().create(Create::New).attributes(*attributes).direct(true);
        let file = self.open_at(dir, name, &options)?;
        file.write_at(data, 0, stability)?;
        let handle = *file.handle();
        file.close()?;
        Ok(handle)
    }

    /// The chain of [`Client::create_file`]. Fails only if nothing was done.
    fn create(
        &self,
        open: Request<'_>,
        room: usize,
        data: &[u8],
        stability: Stability,
    ) -> Result<Vec<Result<ReplyMessage>>> {
        let (fh, state_id) = (self.root(), StateId::ZERO);
        let mut chain = self.chain().then(open, Takes::Nothing);
        let mut offset = 0;
        for piece in data.chunks(room.max(1)) {
            let write = wire::WriteInline {
                fh,
                state_id,
                offset,
                stable: stability,
                padded_to: None,
                cache_hint: wire::HintWord::NONE,
                data: piece,
            };
            chain = chain.then(Request::WriteInline(write), Takes::Both);
            offset += piece.len() as u64;
        }
        let chain = chain.then(Request::Close(wire::Close { fh, state_id }), Takes::Both);
        let results = chain.run()?;
        match results.first() {
            Some(Err(error)) => Err(error.clone()),
            _ => Ok(results),
        }
    }

    /// Extracts a value from the answer to a member of a chain.
    pub(crate) fn take<T>(
        &self,
        reply: Option<&ReplyMessage>,
        take: impl FnOnce(&Reply<'_>) -> Option<T>,
    ) -> Result<T> {
        match reply.map(ReplyMessage::decode) {
            Some(Ok(Outcome::Ok(found))) => take(&found)
                .ok_or_else(|| self.shared().broken(&"an answer that does not fit its request")),
            Some(Err(error)) => Err(self.shared().broken(&error)),
            _ => Err(self.shared().broken(&"a chain was answered in part")),
        }
    }
}

/// The names of a path, for one LOOKUP of all of them. `None` if it needs more than that.
///
/// # Errors
/// A name that cannot be one.
pub(crate) fn straight(path: &[u8]) -> Result<Option<Vec<&[u8]>>> {
    if SplitPath::of(path).wants_directory {
        return Ok(None);
    }
    let mut names = Vec::new();
    for name in path.split(|&byte| byte == b'/') {
        match name {
            b"" | b"." => {}
            b".." => return Ok(None),
            name => names.push(component(name)?),
        }
    }
    let fits = (1..=COMPONENTS_PER_LOOKUP).contains(&names.len());
    Ok(fits.then_some(names))
}

/// Adds the data of a READ of `asked` bytes to `data`; yields true at the end of the file. `None`
/// when the server answered with too much, or with no progress.
pub(crate) fn take_data(reply: &Reply<'_>, asked: u32, data: &mut Vec<u8>) -> Option<bool> {
    let Reply::ReadInline(reply) = reply else { return None };
    let stuck = reply.data.is_empty() && !reply.eof && asked > 0;
    if stuck || reply.data.len() > asked as usize {
        return None;
    }
    let start = data.len();
    data.resize(start + reply.data.len(), 0);
    VolatileSlice::from_mut(&mut data[start..]).copy_from(reply.data, Site::ClientInlineRead);
    Some(reply.eof)
}

/// True when the answer may be due to a symbolic link.
pub(crate) fn is_link(error: &Error) -> bool {
    match error {
        Error::Status { procedure: Procedure::ReadInline, status } => {
            matches!(status, Status::Symlink | Status::Inval)
        }
        Error::Status { status, .. } => matches!(status, Status::Symlink | Status::NotDir),
        _ => false,
    }
}
