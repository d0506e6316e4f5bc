//! Dispatch of the kernel's requests to the modules that carry them out.
//!
//! Invariants
//! * Each request is answered once. State that an answer makes the kernel remember is in the tables
//!   before it is sent.

mod delegated;
mod files;
mod lists;
mod locks;
mod reads;
#[cfg(test)]
mod tests;

use crate::callers::Callers;
use crate::changes::Changes;
use crate::convert;
use crate::delegated::Delegated;
use crate::handles::Handles;
use crate::kept::RetainedFiles;
use crate::kernel::{
    self, Agreed, Change, Device, Entry, Errno, LockWanted, NodeId, Operation, Request, Room,
    attributes, entry,
};
use crate::limits::{BLOCK_BYTES, NAME_BYTES_MAX, SPACE_UNKNOWN_BYTES};
use crate::listing::OpenDirectory;
use crate::locking::Locks;
use crate::nodes::generation;
use crate::rights::{PlainFiles, changes_nothing};
use crate::tree::{New, Outcome, Tree};
use crate::{content::OpenFile, limits};
use dafs_client::{Attributes, IoBuffer, SpecialFile, User, acting_as};
pub(crate) use reads::Handed;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

/// The file system.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) plain: PlainFiles,
    pub(crate) device: Device,
    /// The parameters negotiated with the kernel.
    pub(crate) agreed: Agreed,
    pub(crate) tree: Tree,
    pub(crate) files: Handles<OpenFile>,
    pub(crate) directories: Handles<OpenDirectory>,
    pub(crate) locks: Arc<Locks>,
    /// Unstable writes, retained until they are stable.
    pub(crate) kept: RetainedFiles,
    /// Files cached under delegations.
    pub(crate) delegated: Delegated,
    /// Recent changes of this mount.
    pub(crate) changes: Changes,
    /// The users of programs, if the mount acts as each of them.
    callers: Option<Callers>,
    /// Reads that were handed over to the thread that drives the client.
    pub(crate) handed: Handed,
    /// The timeout of the kernel's cache.
    pub(crate) cache_timeout: Duration,
}

/// The way a request is answered.
enum Answer {
    /// The request has no answer.
    None,
    /// Another thread answers it.
    Later,
    Body(Vec<u8>),
    /// The first bytes of the data buffer.
    Data(usize),
}

impl From<()> for Answer {
    fn from((): ()) -> Self {
        Self::Body(Vec::new())
    }
}

impl From<Vec<u8>> for Answer {
    fn from(body: Vec<u8>) -> Self {
        Self::Body(body)
    }
}

impl Server {
    pub(crate) fn new(device: Device, agreed: Agreed, tree: Tree, cache_timeout: Duration) -> Self {
        Self {
            plain: PlainFiles::default(),
            device,
            agreed,
            tree,
            files: Handles::default(),
            directories: Handles::default(),
            locks: Arc::default(),
            kept: RetainedFiles::default(),
            delegated: Delegated::default(),
            changes: Changes::default(),
            callers: None,
            handed: Handed::default(),
            cache_timeout,
        }
    }

    /// The same, which acts as the user of each program if `is_wanted`, and if the server trusts the
    /// client to act for users.
    pub(crate) fn acting_for_callers(mut self, is_wanted: bool) -> Self {
        if is_wanted && self.tree.client.session().trusted {
            self.callers = Some(Callers::new(self.cache_timeout));
            self.tree.makes_as_caller = true;
            self.delegated.judge_users();
        }
        self
    }

    /// The user that a request runs as; `None` for that of the session.
    fn user_of(&self, request: &Request<'_>) -> Option<User> {
        let callers = self.callers.as_ref()?;
        match &request.operation {
            Operation::Read { handle, .. }
            | Operation::Write { handle, .. }
            | Operation::Sync { handle }
            | Operation::Flush { handle, .. }
            | Operation::Release { handle, .. }
            | Operation::Seek { handle, .. }
            | Operation::TestLock(LockWanted { handle, .. })
            | Operation::Lock { wanted: LockWanted { handle, .. }, .. }
            | Operation::SetAttributes(Change { handle: Some(handle), size: Some(_), .. }) => {
                match self.user_of_file(*handle) {
                    Some(user) => user,
                    None => callers.user(request.caller, request.thread),
                }
            }
            Operation::ReadDirectory { handle, .. } => match self.directories.get(*handle) {
                Some(directory) => directory.user.clone(),
                None => callers.user(request.caller, request.thread),
            },
            Operation::Forget(_)
            | Operation::ReleaseDirectory { .. }
            | Operation::Interrupt { .. }
            | Operation::Init { .. }
            | Operation::Destroy => None,
            _ => callers.user(request.caller, request.thread),
        }
    }

    /// The user of an open file, if there is one of this number.
    fn user_of_file(&self, number: u64) -> Option<Option<User>> {
        let open = || self.files.get(number).map(|file| file.user.clone());
        let deferred = || self.delegated.deferred(number).map(|deferred| deferred.user);
        // The server may come to know a deferred open between the two looks.
        open().or_else(deferred).or_else(open)
    }

    /// Carries out the request that was received, and answers it.
    pub(crate) fn carry_out(self: &Arc<Self>, room: &mut Room, bytes: usize) {
        let is_unsafe = room.is_unsafe();
        let (request, data) = match room.request(bytes) {
            Ok(request) => request,
            Err(Some(unique)) => return self.device.answer(unique, Err(Errno::EINVAL)),
            Err(None) => {
                return tracing::warn!(bytes, "the kernel sent something that is no request");
            }
        };
        let unique = request.unique;
        let transfers =
            matches!(request.operation, Operation::Read { .. } | Operation::Write { .. });
        let outcome = match transfers && is_unsafe {
            true => Err(Errno::EIO),
            false => self.attempt(&request, Some(data)),
        };
        match &outcome {
            Ok(Answer::None | Answer::Later) => {}
            Ok(Answer::Body(body)) => self.device.answer(unique, Ok(body)),
            Ok(Answer::Data(bytes)) => match data.slice(0, *bytes) {
                Some(data) => self.device.answer_data(unique, data),
                None => self.device.answer(unique, Err(Errno::EIO)),
            },
            Err(error) => self.device.answer(unique, Err(*error)),
        }
        if transfers && outcome.is_err() {
            room.give_up();
        }
    }

    /// Carries out a request that transfers no data, and answers it.
    pub(crate) fn carry_out_alone(self: &Arc<Self>, request: &[u8]) {
        let request = match Request::parse(request) {
            Ok(request) => request,
            Err(Some(unique)) => return self.device.answer(unique, Err(Errno::EINVAL)),
            Err(None) => return,
        };
        match self.attempt(&request, None) {
            Ok(Answer::None | Answer::Later) => {}
            Ok(Answer::Body(body)) => self.device.answer(request.unique, Ok(&body)),
            Ok(Answer::Data(_)) => self.device.answer(request.unique, Err(Errno::EIO)),
            Err(error) => self.device.answer(request.unique, Err(error)),
        }
    }

    fn attempt(
        self: &Arc<Self>,
        request: &Request<'_>,
        data: Option<&mut IoBuffer>,
    ) -> Outcome<Answer> {
        let user = self.user_of(request);
        let work = || acting_as(user.as_ref(), || self.dispatch(request, user.as_ref(), data));
        let work = AssertUnwindSafe(work);
        let done = std::panic::catch_unwind(work).unwrap_or_else(|_| {
            // The panic message is on standard error.
            tracing::error!(operation = ?request.operation, "a request ended in a panic");
            Err(Errno::EIO)
        });
        self.note_change(request);
        done
    }

    /// Records changes that a request has made, or may have. Writes to an open file are recorded at
    /// its close.
    fn note_change(&self, request: &Request<'_>) {
        let node = request.node;
        match &request.operation {
            Operation::Symlink { name, .. }
            | Operation::MakeNode { name, .. }
            | Operation::MakeDirectory { name, .. }
            | Operation::Create { name, .. }
            | Operation::Remove { name, .. } => self.note_name(node, name),
            Operation::Rename { name, to, new_name, .. } => {
                self.note_name(node, name);
                self.note_name(*to, new_name);
            }
            Operation::Link { source, name } => {
                self.note_name(node, name);
                self.note_change_of(*source);
            }
            Operation::SetAttributes(_)
            | Operation::SetXattr { .. }
            | Operation::RemoveXattr { .. } => self.note_change_of(node),
            _ => {}
        }
    }

    /// The directory has another time, and perhaps another number of links.
    fn note_name(&self, dir: NodeId, name: &[u8]) {
        self.changes.name(dir, name);
        self.note_change_of(dir);
    }

    fn note_change_of(&self, node: NodeId) {
        if let Ok(handle) = self.tree.handle(node) {
            self.changes.file(&handle);
        }
    }

    fn dispatch(
        self: &Arc<Self>,
        request: &Request<'_>,
        user: Option<&User>,
        data: Option<&mut IoBuffer>,
    ) -> Outcome<Answer> {
        let (node, caller, tree) = (request.node, request.caller, &self.tree);
        let is_written = || self.is_written(node);
        let clears = self.callers.is_none();
        if clears && self.plain.before(request, tree, self.cache_timeout, is_written)? {
            self.delegated.changed(&tree.handle(node)?);
        }
        Ok(match &request.operation {
            Operation::Lookup { name } => self.entered(&self.look_up(node, name, user)?),
            Operation::Forget(nodes) => {
                nodes.iter().for_each(|(node, lookups)| self.forget(*node, *lookups));
                Answer::None
            }
            Operation::GetAttributes => self.told(node, &self.known_attributes(node)?),
            Operation::SetAttributes(change) => {
                if user.is_some() && changes_nothing(*change) && is_written() {
                    let found = self.look(|| tree.attributes(node))?;
                    if caller.uid != 0 && found.owner.id() != Some(caller.uid) {
                        // The kernel's only notice before a write: with that, the server clears
                        // setuid and setgid.
                        return Ok(self.told(node, &found));
                    }
                }
                let (open, change) = (change.handle, convert::set_attributes(change));
                // The permissions of a file are no matter of its existing opens.
                let changes_rights =
                    change.mode.is_some() || change.owner.is_some() || change.group.is_some();
                let _during = match changes_rights {
                    true => Some(self.changing_rights(tree.handle(node)?)),
                    false => None,
                };
                let changed = self.set_attributes(node, open, &change);
                self.delegated.changed(&tree.handle(node)?);
                self.told(node, &changed?)
            }
            Operation::ReadLink => tree.readlink(node)?.into(),
            Operation::Symlink { name, target } => {
                self.entered(&tree.make(node, name, New::Symlink(target), 0o777, caller)?)
            }
            Operation::MakeNode { name, mode, device } => {
                self.make_node(request, name, *mode, *device)?
            }
            Operation::MakeDirectory { name, mode } => {
                self.entered(&tree.make(node, name, New::Directory, *mode, caller)?)
            }
            Operation::Remove { name, is_directory } => {
                self.remove(node, name, *is_directory)?.into()
            }
            // The server always replaces; an operation that it cannot do atomically is refused.
            Operation::Rename { flags: 1.., .. } => return Err(Errno::EINVAL),
            Operation::Rename { name, to, new_name, .. } => {
                self.rename((node, name), (*to, new_name))?.into()
            }
            Operation::Link { source, name } => {
                let naming = self.delegated.naming();
                let linked = tree.link(*source, node, name);
                self.delegated.changed(&tree.handle(*source)?);
                drop(naming);
                self.entered(&linked?)
            }
            Operation::Open { flags } => self.open(request, *flags, user.cloned())?,
            Operation::Create { name, flags, mode } => {
                self.create(request, name, (*flags, *mode), user.cloned())?
            }
            Operation::Read { handle, offset, len } => {
                self.delegated.used(*handle);
                let file = self.file(*handle)?;
                match self.hand_over(&file, request.unique, *offset, *len)? {
                    true => Answer::Later,
                    false => {
                        let data = data.ok_or(Errno::EIO)?;
                        Answer::Data(self.read(&file, data, *offset, *len)?)
                    }
                }
            }
            Operation::Write { handle, offset, len, appends, .. } => {
                let offset = (!appends).then_some(*offset);
                let data = data.ok_or(Errno::EIO)?;
                kernel::written(self.write(*handle, data, *len, offset)?).into()
            }
            Operation::Space => self.space(node)?,
            Operation::Release { handle, owner } => self.release(*handle, *owner)?,
            Operation::Sync { handle } => self.sync(*handle)?.into(),
            Operation::SetXattr { name, value, flags } => {
                let set = tree.set_xattr(node, name, value, *flags);
                self.delegated.changed(&tree.handle(node)?);
                set?.into()
            }
            Operation::GetXattr { name, size } => bytes(tree.xattr(node, name)?, *size)?,
            Operation::ListXattr { size } => bytes(tree.xattr_names(node)?, *size)?,
            Operation::RemoveXattr { name } => {
                let removed = tree.remove_xattr(node, name);
                self.delegated.changed(&tree.handle(node)?);
                removed?.into()
            }
            Operation::Flush { handle, owner } => self.flush(*handle, *owner)?,
            Operation::OpenDirectory => self.open_directory(node, user.cloned())?,
            Operation::ReadDirectory { handle, position, len, with_attributes } => {
                self.list(node, *handle, *position, *len, *with_attributes)?
            }
            Operation::ReleaseDirectory { handle } => {
                self.directories.remove(*handle);
                ().into()
            }
            // Changes of names are stable when the server answers.
            Operation::SyncDirectory | Operation::Destroy => ().into(),
            Operation::TestLock(wanted) => self.test_lock(wanted)?,
            Operation::Lock { wanted, waits } => self.lock(request, wanted, *waits)?,
            Operation::Seek { handle, offset, hole } => {
                self.delegated.used(*handle);
                let open = self.file(*handle)?;
                let found = match hole {
                    true => open.file.seek_hole(*offset),
                    false => open.file.seek_data(*offset),
                };
                kernel::offset(found?.ok_or(Errno::ENXIO)?).into()
            }
            Operation::Interrupt { unique } => {
                self.locks.give_up(*unique);
                Answer::None
            }
            // INIT comes only once.
            Operation::Init { .. } => return Err(Errno::EIO),
            Operation::Unknown(_) => return Err(Errno::ENOSYS),
        })
    }

    /// The answer about an object that the kernel is going to remember.
    fn entry(&self, attributes: &Attributes) -> Entry {
        let node = self.tree.nodes.enter(attributes);
        let generation = generation(node, &attributes.handle);
        let attributes = convert::attributes(node, attributes);
        Entry { attributes, generation, cache_timeout: self.cache_timeout }
    }

    fn entered(&self, attributes: &Attributes) -> Answer {
        entry(&self.entry(attributes)).into()
    }

    fn told(&self, node: NodeId, found: &Attributes) -> Answer {
        attributes(&convert::attributes(node, found), self.cache_timeout).into()
    }

    fn make_node(
        &self,
        request: &Request<'_>,
        name: &[u8],
        mode: u32,
        device: u32,
    ) -> Outcome<Answer> {
        let (major, minor) = convert::device_numbers(device);
        let kind = match mode & libc::S_IFMT {
            libc::S_IFBLK => SpecialFile::BlockDevice { major, minor },
            libc::S_IFCHR => SpecialFile::CharDevice { major, minor },
            libc::S_IFIFO => SpecialFile::Fifo,
            libc::S_IFSOCK => SpecialFile::Socket,
            libc::S_IFREG | 0 => return self.make_file(request, name, mode),
            _ => return Err(Errno::EINVAL),
        };
        let (node, caller) = (request.node, request.caller);
        Ok(self.entered(&self.tree.make(node, name, New::Special(kind), mode, caller)?))
    }

    fn space(&self, node: NodeId) -> Outcome<Answer> {
        let status = self.tree.fs_status(node)?;
        // A server that does not report space has plenty.
        let blocks =
            |bytes: Option<u64>| bytes.unwrap_or(SPACE_UNKNOWN_BYTES) / u64::from(BLOCK_BYTES);
        let numbers = [
            blocks(status.space_total),
            blocks(status.space_free),
            blocks(status.space_available),
            status.files_total.unwrap_or(0),
            status.files_free.unwrap_or(0),
        ];
        let name_bytes_max = status.name_bytes_max.unwrap_or(NAME_BYTES_MAX as u32);
        Ok(kernel::space(numbers, BLOCK_BYTES, name_bytes_max).into())
    }
}

/// The value, or its length if the program asks for that.
fn bytes(found: Vec<u8>, size: u32) -> Outcome<Answer> {
    const { assert!(limits::XATTR_BYTES_MAX <= u32::MAX as usize) };
    match size as usize {
        0 => Ok(kernel::size(found.len() as u32).into()),
        size if found.len() > size => Err(Errno::ERANGE),
        _ => Ok(found.into()),
    }
}
