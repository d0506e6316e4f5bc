//! The kernel's requests, each given to the module that carries it out.
//!
//! Invariants
//! * Each request is answered once. What an answer tells the kernel to remember is in the tables before
//!   it is sent.

use crate::content::{self, OpenFile};
use crate::convert::{self, errno};
use crate::handles::Handles;
use crate::limits::{
    BACKGROUND_REQUESTS, BLOCK_BYTES, NAME_BYTES_MAX, READ_AHEAD_BYTES, WRITE_BYTES_MAX,
};
use crate::listing::{Entry, OpenDirectory};
use crate::locking::{Locks, Wanted};
use crate::tree::{Caller, New, Outcome, Tree};
use dafs_client::{Attributes, SetAttributes, SpecialFile};
use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation,
    INodeNo, InitFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate,
    ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyLock, ReplyOpen,
    ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use std::cell::RefCell;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

thread_local! {
    /// Where a thread reads into before it answers; at most as long as the longest read.
    static READ_BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// A node is never known by the same number as another one that the kernel still remembers.
const GENERATION: Generation = Generation(0);

/// The file system.
#[derive(Debug)]
pub(crate) struct Server {
    tree: Tree,
    files: Handles<OpenFile>,
    directories: Handles<OpenDirectory>,
    locks: Arc<Locks>,
    /// How long the kernel may believe what it was told.
    belief: Duration,
}

fn caller(request: &Request) -> Caller {
    Caller { uid: request.uid(), gid: request.gid() }
}

impl Server {
    pub(crate) fn new(tree: Tree, belief: Duration) -> Self {
        Self {
            tree,
            files: Handles::default(),
            directories: Handles::default(),
            locks: Arc::default(),
            belief,
        }
    }

    fn file(&self, handle: FileHandle) -> Outcome<Arc<OpenFile>> {
        self.files.get(handle.0).ok_or(Errno::EBADF)
    }

    /// What the kernel is told of an object that it is going to remember.
    fn entered(&self, attributes: &Attributes) -> FileAttr {
        convert::attributes(self.tree.nodes.enter(attributes), attributes)
    }

    fn answer_entry(&self, outcome: Outcome<Attributes>, reply: ReplyEntry) {
        match outcome {
            Ok(found) => reply.entry(&self.belief, &self.entered(&found), GENERATION),
            Err(error) => reply.error(error),
        }
    }

    fn answer_attributes(&self, node: INodeNo, outcome: Outcome<Attributes>, reply: ReplyAttr) {
        match outcome {
            Ok(found) => reply.attr(&self.belief, &convert::attributes(node.0, &found)),
            Err(error) => reply.error(error),
        }
    }

    fn list(
        &self,
        node: INodeNo,
        handle: FileHandle,
        position: u64,
        take: impl FnMut(u64, Entry<'_>) -> bool,
    ) -> Outcome<()> {
        let directory = self.directories.get(handle.0).ok_or(Errno::EBADF)?;
        directory.read(node.0, position, take)
    }
}

fn answer(outcome: Outcome<()>, reply: ReplyEmpty) {
    match outcome {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(error),
    }
}

/// What there is, or how long it is if the program asks for that.
fn answer_bytes(outcome: Outcome<Vec<u8>>, size: u32, reply: ReplyXattr) {
    match outcome {
        Err(error) => reply.error(error),
        // Values are limited to what fits.
        Ok(bytes) if size == 0 => reply.size(bytes.len() as u32),
        Ok(bytes) if bytes.len() > size as usize => reply.error(Errno::ERANGE),
        Ok(bytes) => reply.data(&bytes),
    }
}

impl Filesystem for Server {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // What an older kernel does not have is done without.
        for wanted in [
            InitFlags::FUSE_POSIX_LOCKS,
            InitFlags::FUSE_FLOCK_LOCKS,
            InitFlags::FUSE_ATOMIC_O_TRUNC,
            InitFlags::FUSE_AUTO_INVAL_DATA,
            InitFlags::FUSE_DO_READDIRPLUS | InitFlags::FUSE_READDIRPLUS_AUTO,
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_ASYNC_DIO,
        ] {
            if let Err(missing) = config.add_capabilities(wanted) {
                tracing::debug!(?missing, "the kernel does not offer it");
            }
        }
        let refused = |_| io::Error::from_raw_os_error(libc::EINVAL);
        config.set_max_write(WRITE_BYTES_MAX).map_err(refused)?;
        config.set_max_background(BACKGROUND_REQUESTS).map_err(|_| refused(0))?;
        if let Err(most) = config.set_max_readahead(READ_AHEAD_BYTES) {
            config.set_max_readahead(most).map_err(refused)?;
        }
        Ok(())
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.answer_entry(self.tree.lookup(parent.0, name.as_bytes()), reply);
    }

    fn forget(&self, _request: &Request, node: INodeNo, lookups: u64) {
        self.tree.nodes.forget(node.0, lookups);
    }

    fn getattr(
        &self,
        _request: &Request,
        node: INodeNo,
        _handle: Option<FileHandle>,
        reply: ReplyAttr,
    ) {
        self.answer_attributes(node, self.tree.attributes(node.0), reply);
    }

    fn setattr(
        &self,
        _request: &Request,
        node: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        accessed: Option<TimeOrNow>,
        modified: Option<TimeOrNow>,
        _changed: Option<SystemTime>,
        handle: Option<FileHandle>,
        _created: Option<SystemTime>,
        _flags_changed: Option<SystemTime>,
        _backed_up: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let change = SetAttributes {
            mode: mode.map(|mode| mode & 0o7777),
            owner: uid,
            group: gid,
            size,
            accessed: accessed.map(convert::set_time),
            modified: modified.map(convert::set_time),
        };
        let open = handle.and_then(|handle| self.files.get(handle.0));
        let file = open.as_deref().map(|open| &open.file);
        self.answer_attributes(node, self.tree.set_attributes(node.0, file, &change), reply);
    }

    fn readlink(&self, _request: &Request, node: INodeNo, reply: ReplyData) {
        match self.tree.readlink(node.0) {
            Ok(text) => reply.data(&text),
            Err(error) => reply.error(error),
        }
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        device: u32,
        reply: ReplyEntry,
    ) {
        let (name, caller) = (name.as_bytes(), caller(request));
        let (major, minor) = convert::device_numbers(device);
        let kind = match mode & libc::S_IFMT {
            libc::S_IFBLK => SpecialFile::BlockDevice { major, minor },
            libc::S_IFCHR => SpecialFile::CharDevice { major, minor },
            libc::S_IFIFO => SpecialFile::Fifo,
            libc::S_IFSOCK => SpecialFile::Socket,
            libc::S_IFREG | 0 => {
                let options = content::options(OpenFlags(libc::O_WRONLY));
                let made = self.tree.create(parent.0, name, &options, true, mode, caller);
                return self.answer_entry(made.map(|(_, attributes)| attributes), reply);
            }
            _ => return reply.error(Errno::EINVAL),
        };
        let made = self.tree.make(parent.0, name, New::Special(kind), mode, caller);
        self.answer_entry(made, reply);
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        reply: ReplyEntry,
    ) {
        let name = name.as_bytes();
        let made = self.tree.make(parent.0, name, New::Directory, mode, caller(request));
        self.answer_entry(made, reply);
    }

    fn unlink(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        answer(self.tree.remove(parent.0, name.as_bytes()), reply);
    }

    fn rmdir(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        answer(self.tree.remove(parent.0, name.as_bytes()), reply);
    }

    fn symlink(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let new = New::Symlink(target.as_os_str().as_bytes());
        let made = self.tree.make(parent.0, name.as_bytes(), new, 0o777, caller(request));
        self.answer_entry(made, reply);
    }

    fn rename(
        &self,
        _request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let keeps_target = flags == RenameFlags::RENAME_NOREPLACE;
        if !keeps_target && !flags.is_empty() {
            return reply.error(Errno::EINVAL);
        }
        let (from, to) = ((parent.0, name.as_bytes()), (new_parent.0, new_name.as_bytes()));
        answer(self.tree.rename(from, to, keeps_target), reply);
    }

    fn link(
        &self,
        _request: &Request,
        node: INodeNo,
        new_parent: INodeNo,
        new_name: &OsStr,
        reply: ReplyEntry,
    ) {
        self.answer_entry(self.tree.link(node.0, new_parent.0, new_name.as_bytes()), reply);
    }

    fn open(&self, _request: &Request, node: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        match OpenFile::open(&self.tree, node.0, flags) {
            Ok(file) => {
                reply.opened(FileHandle(self.files.insert(file)), FopenFlags::empty());
            }
            Err(error) => reply.error(error),
        }
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let must_be_new = flags & libc::O_EXCL != 0;
        let flags = OpenFlags(flags);
        let (name, options) = (name.as_bytes(), content::options(flags));
        let made = self.tree.create(parent.0, name, &options, must_be_new, mode, caller(request));
        match made {
            Ok((file, attributes)) => {
                let entry = self.entered(&attributes);
                let handle = self.files.insert(OpenFile::new(entry.ino.0, file, flags));
                let handle = FileHandle(handle);
                reply.created(&self.belief, &entry, GENERATION, handle, FopenFlags::empty());
            }
            Err(error) => reply.error(error),
        }
    }

    fn read(
        &self,
        _request: &Request,
        _node: INodeNo,
        handle: FileHandle,
        offset: u64,
        len: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let file = match self.file(handle) {
            Ok(file) => file,
            Err(error) => return reply.error(error),
        };
        READ_BUFFER.with_borrow_mut(|buffer| match file.read(buffer, offset, len) {
            Ok(read) => reply.data(&buffer[..read]),
            Err(error) => reply.error(error),
        });
    }

    fn write(
        &self,
        _request: &Request,
        _node: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match self.file(handle).and_then(|file| file.write(data, offset)) {
            Ok(written) => reply.written(written),
            Err(error) => reply.error(error),
        }
    }

    fn flush(
        &self,
        _request: &Request,
        _node: INodeNo,
        handle: FileHandle,
        owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        let flushed = self.file(handle).and_then(|file| {
            let unlocked = self.locks.leave(file.node, owner.0);
            file.flush().and(unlocked)
        });
        answer(flushed, reply);
    }

    fn release(
        &self,
        _request: &Request,
        _node: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        let Some(file) = self.files.remove(handle.0) else { return reply.error(Errno::EBADF) };
        let unlocked = owner.map_or(Ok(()), |owner| self.locks.leave(file.node, owner.0));
        // Another thread that still reads is the last one and closes it.
        let closed = match Arc::into_inner(file) {
            Some(file) => file.file.close().map_err(|error| errno(&error)),
            None => Ok(()),
        };
        answer(closed.and(unlocked), reply);
    }

    fn fsync(
        &self,
        _request: &Request,
        _node: INodeNo,
        handle: FileHandle,
        _data_only: bool,
        reply: ReplyEmpty,
    ) {
        answer(self.file(handle).and_then(|file| file.sync()), reply);
    }

    fn opendir(&self, _request: &Request, node: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        match self.tree.handle(node.0) {
            Ok(handle) => {
                let directory = OpenDirectory::new(&self.tree.client, handle);
                let handle = FileHandle(self.directories.insert(directory));
                reply.opened(handle, FopenFlags::empty());
            }
            Err(error) => reply.error(error),
        }
    }

    fn readdir(
        &self,
        _request: &Request,
        node: INodeNo,
        handle: FileHandle,
        position: u64,
        mut reply: ReplyDirectory,
    ) {
        let listed = self.list(node, handle, position, |behind, entry| match entry {
            Entry::Dot(name, node) => {
                reply.add(INodeNo(node), behind, FileType::Directory, OsStr::from_bytes(name))
            }
            Entry::Named(name, attributes) => {
                let (number, kind) = match attributes {
                    Some(found) => (self.tree.nodes.number(found), convert::kind(found.kind)),
                    None => (UNKNOWN.0, FileType::RegularFile),
                };
                reply.add(INodeNo(number), behind, kind, OsStr::from_bytes(name))
            }
        });
        match listed {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(error),
        }
    }

    fn readdirplus(
        &self,
        _request: &Request,
        node: INodeNo,
        handle: FileHandle,
        position: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let mut entered = Vec::new();
        let listed = self.list(node, handle, position, |behind, entry| {
            let (name, number, attributes) = match entry {
                // The kernel takes no more than the number of these.
                Entry::Dot(name, node) => (name, INodeNo(node), no_attributes(FileType::Directory)),
                Entry::Named(name, Some(found)) => {
                    let attributes = self.entered(found);
                    (name, attributes.ino, attributes)
                }
                // Without a node in its attributes the kernel takes an entry as a name alone.
                Entry::Named(name, None) => (name, UNKNOWN, no_attributes(FileType::RegularFile)),
            };
            let name = OsStr::from_bytes(name);
            let is_full = reply.add(number, behind, name, &self.belief, &attributes, GENERATION);
            if attributes.ino.0 != 0 {
                match is_full {
                    true => self.tree.nodes.forget(attributes.ino.0, 1),
                    false => entered.push(attributes.ino.0),
                }
            }
            is_full
        });
        match listed {
            Ok(()) => reply.ok(),
            Err(error) => {
                entered.iter().for_each(|&node| self.tree.nodes.forget(node, 1));
                reply.error(error);
            }
        }
    }

    fn releasedir(
        &self,
        _request: &Request,
        _node: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.directories.remove(handle.0);
        reply.ok();
    }

    fn fsyncdir(
        &self,
        _request: &Request,
        _node: INodeNo,
        _handle: FileHandle,
        _data_only: bool,
        reply: ReplyEmpty,
    ) {
        // What changes names is stable when the server answers.
        reply.ok();
    }

    fn statfs(&self, _request: &Request, node: INodeNo, reply: ReplyStatfs) {
        let status = match self.tree.fs_status(node.0) {
            Ok(status) => status,
            Err(error) => return reply.error(error),
        };
        let blocks = |bytes: Option<u64>| bytes.unwrap_or(0) / u64::from(BLOCK_BYTES);
        reply.statfs(
            blocks(status.space_total),
            blocks(status.space_free),
            blocks(status.space_available),
            status.files_total.unwrap_or(0),
            status.files_free.unwrap_or(0),
            BLOCK_BYTES,
            status.name_bytes_max.unwrap_or(NAME_BYTES_MAX as u32),
            BLOCK_BYTES,
        );
    }

    fn setxattr(
        &self,
        _request: &Request,
        node: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        answer(self.tree.set_xattr(node.0, name.as_bytes(), value, flags), reply);
    }

    fn getxattr(
        &self,
        _request: &Request,
        node: INodeNo,
        name: &OsStr,
        size: u32,
        reply: ReplyXattr,
    ) {
        answer_bytes(self.tree.xattr(node.0, name.as_bytes()), size, reply);
    }

    fn listxattr(&self, _request: &Request, node: INodeNo, size: u32, reply: ReplyXattr) {
        answer_bytes(self.tree.xattr_names(node.0), size, reply);
    }

    fn removexattr(&self, _request: &Request, node: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        answer(self.tree.remove_xattr(node.0, name.as_bytes()), reply);
    }

    fn getlk(
        &self,
        request: &Request,
        _node: INodeNo,
        handle: FileHandle,
        owner: LockOwner,
        start: u64,
        end: u64,
        kind: i32,
        _process: u32,
        reply: ReplyLock,
    ) {
        let wanted = wanted(request, owner, start, end, kind);
        match self.file(handle).and_then(|file| self.locks.test(&file, &wanted)) {
            Ok(None) => reply.locked(0, 0, libc::F_UNLCK, 0),
            Ok(Some(holder)) => {
                let kind = if holder.exclusive { libc::F_WRLCK } else { libc::F_RDLCK };
                let last = i64::MAX as u64;
                let end = holder.offset.saturating_add(holder.length.saturating_sub(1)).min(last);
                // Who holds it may be a process of another host: it has no number here.
                reply.locked(holder.offset, end, kind, 0);
            }
            Err(error) => reply.error(error),
        }
    }

    fn setlk(
        &self,
        request: &Request,
        _node: INodeNo,
        handle: FileHandle,
        owner: LockOwner,
        start: u64,
        end: u64,
        kind: i32,
        _process: u32,
        sleep: bool,
        reply: ReplyEmpty,
    ) {
        let wanted = wanted(request, owner, start, end, kind);
        let file = match self.file(handle) {
            Ok(file) => file,
            Err(error) => return reply.error(error),
        };
        if kind == libc::F_UNLCK {
            return answer(self.locks.unlock(&file, &wanted), reply);
        }
        match self.locks.try_lock(&file, &wanted) {
            Err(Errno::EAGAIN) if sleep => {}
            other => return answer(other, reply),
        }
        let waiting = match Locks::wait(&self.locks) {
            Ok(waiting) => waiting,
            Err(error) => return reply.error(error),
        };
        let thread = std::thread::Builder::new().name("dafs-lock".into());
        // If there is no thread to be had, the answer is dropped, which tells the kernel EIO.
        let started = thread.spawn(move || answer(waiting.lock(&file, &wanted), reply));
        if let Err(error) = started {
            tracing::warn!(%error, "no thread to wait for a lock");
        }
    }
}

/// The number of what cannot be looked at.
const UNKNOWN: INodeNo = INodeNo(u64::MAX);

fn no_attributes(kind: FileType) -> FileAttr {
    let time = SystemTime::UNIX_EPOCH;
    FileAttr {
        ino: INodeNo(0),
        size: 0,
        blocks: 0,
        atime: time,
        mtime: time,
        ctime: time,
        crtime: time,
        kind,
        perm: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: BLOCK_BYTES,
        flags: 0,
    }
}

fn wanted(request: &Request, owner: LockOwner, start: u64, end: u64, kind: i32) -> Wanted {
    let exclusive = kind == libc::F_WRLCK;
    Wanted { owner: owner.0, start, end, exclusive, thread: request.pid() }
}
