//! Listing directories.
//!
//! A cookie is the kernel's position after the entry plus 3, so that 0, 1 and 2 stay reserved. The
//! kernel's positions run from 0 to 2^63-1, so cookies run from 3 to 2^63+2.
//!
//! A listing in pages continues the stream that the last page left, so that its cost is linear. A
//! stream belongs to one caller. It drops prefetched entries when the directory has changed.
//!
//! Each entry with attributes takes one `statx`. Its id is remembered from an earlier listing
//! (`known`), or takes one more call.
//!
//! Mount points below the export are listed by name, with neither id nor attributes. A lookup of
//! them fails with `CrossDevice`.

use super::export::{Export, mount_of, stat_fd, stat_name};
use super::ident::Caller;
use super::node::Node;
use super::sys;
use crate::limits::DIRECTORY_STREAMS_MAX;
use dafs_mem::Mutex;
use dafs_store::backend::COOKIE_FIRST;
use dafs_store::{Attr, Cred, DirEntry, FileId, Result, StoreError};
use rustix::fs::{OFlags, SeekFrom, Statx, Timespec};
use rustix::io::Errno;
use rustix::time::ClockId;
use std::collections::VecDeque;
use std::ffi::CStr;
use std::os::fd::{AsFd, OwnedFd};

/// One record of the kernel's listing.
pub(super) struct RawEntry<'a> {
    pub(super) name: &'a [u8],
    /// The name once more, as system calls take it.
    c_name: &'a CStr,
    ino: u64,
    position: i64,
    /// The offset of the next record in the buffer.
    end: usize,
}

/// The record at `start` of what `getdents64` filled.
fn entry_at(buffer: &[u8], start: usize) -> Option<RawEntry<'_>> {
    const NAME: usize = 19;
    let record = buffer.get(start..)?;
    let ino = u64::from_ne_bytes(record.get(..8)?.try_into().ok()?);
    let position = i64::from_ne_bytes(record.get(8..16)?.try_into().ok()?);
    let len = usize::from(u16::from_ne_bytes(record.get(16..18)?.try_into().ok()?));
    let c_name = CStr::from_bytes_until_nul(record.get(NAME..len)?).ok()?;
    Some(RawEntry { name: c_name.to_bytes(), c_name, ino, position, end: start + len })
}

/// All records of a buffer.
pub(super) fn entries(buffer: &[u8]) -> impl Iterator<Item = RawEntry<'_>> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let entry = entry_at(buffer, at)?;
        at = entry.end;
        Some(entry)
    })
}

/// The cookie of a position, and back.
fn cookie_of(position: i64) -> Result<u64> {
    u64::try_from(position).map(|position| position + COOKIE_FIRST).map_err(|_| StoreError::Io)
}

fn position_of(cookie: u64) -> Result<u64> {
    match cookie.checked_sub(COOKIE_FIRST) {
        Some(position) if i64::try_from(position).is_ok() => Ok(position),
        None if cookie == 0 => Ok(0),
        _ => Err(StoreError::BadCookie),
    }
}

/// A listing in progress.
struct Stream {
    fd: OwnedFd,
    dir: FileId,
    cred: Cred,
    /// The cookie after which `at` continues.
    cookie: u64,
    buffer: Vec<u8>,
    at: usize,
    /// The directory's change attribute from before `buffer` was filled.
    filled_at_change: u64,
    /// True if a sweep has found the stream waiting.
    idle: bool,
}

/// Listings that wait for their next page.
pub(super) struct Streams {
    waiting: Mutex<VecDeque<Stream>>,
}

impl Streams {
    pub(super) fn new() -> Self {
        Self { waiting: Mutex::new(VecDeque::new()) }
    }

    pub(super) fn clear(&self) {
        let streams = std::mem::take(&mut *self.waiting.lock());
        drop(streams);
    }

    /// Drops listings that have waited since the last call.
    pub(super) fn sweep(&self) {
        let mut waiting = self.waiting.lock();
        let (idle, used) = waiting.drain(..).partition::<Vec<_>, _>(|stream| stream.idle);
        waiting.extend(used.into_iter().map(|stream| Stream { idle: true, ..stream }));
        drop(waiting);
        drop(idle);
    }

    fn take(&self, dir: &FileId, cookie: u64, cred: &Cred) -> Option<Stream> {
        let mut waiting = self.waiting.lock();
        let fits = |s: &Stream| {
            // The sink that ended the page may have taken or refused the last entry.
            let next = entry_at(&s.buffer, s.at).and_then(|e| cookie_of(e.position).ok());
            s.dir == *dir && s.cred == *cred && (s.cookie == cookie || next == Some(cookie))
        };
        let place = waiting.iter().position(fits)?;
        waiting.remove(place).map(|stream| Stream { idle: false, ..stream })
    }

    fn put(&self, stream: Stream) {
        let mut waiting = self.waiting.lock();
        let oldest =
            if waiting.len() >= DIRECTORY_STREAMS_MAX { waiting.pop_front() } else { None };
        waiting.push_back(stream);
        drop(waiting);
        drop(oldest);
    }
}

impl Stream {
    fn open(export: &Export, cred: &Cred, node: &Node, cookie: u64) -> Result<Self> {
        let fd = export.reopen(node, OFlags::RDONLY | OFlags::DIRECTORY)?;
        let mut stream = Self {
            fd,
            dir: node.id,
            cred: cred.clone(),
            cookie,
            buffer: Vec::new(),
            at: 0,
            filled_at_change: 0,
            idle: false,
        };
        stream.seek(cookie)?;
        Ok(stream)
    }

    fn seek(&mut self, cookie: u64) -> Result<()> {
        let position = position_of(cookie)?;
        self.buffer.clear();
        self.at = 0;
        self.cookie = cookie;
        match rustix::fs::seek(&self.fd, SeekFrom::Start(position)) {
            Ok(_) => Ok(()),
            Err(Errno::INVAL | Errno::OVERFLOW) => Err(StoreError::BadCookie),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Moves a waiting stream to the position after `cookie`.
    fn resume(&mut self, export: &Export, cookie: u64) -> Result<()> {
        let stat = stat_fd(self.fd.as_fd())?;
        if export.changes.value(&self.dir, &stat) != self.filled_at_change {
            return self.seek(cookie);
        }
        if self.cookie != cookie
            && let Some(entry) = entry_at(&self.buffer, self.at)
        {
            self.at = entry.end;
            self.cookie = cookie;
        }
        Ok(())
    }

    /// Fetches more entries; false at the end.
    fn fill(&mut self, export: &Export) -> Result<bool> {
        self.filled_at_change = export.changes.value(&self.dir, &stat_fd(self.fd.as_fd())?);
        self.at = 0;
        match sys::read_directory(self.fd.as_fd(), &mut self.buffer) {
            Ok(()) => Ok(!self.buffer.is_empty()),
            Err(Errno::NOENT) => Err(StoreError::Stale),
            Err(errno) => Err(errno.into()),
        }
    }
}

impl Export {
    /// Passes the entries after a cookie to the sink. True at the end of the directory.
    pub(super) fn list(
        &self,
        _caller: &Caller,
        cred: &Cred,
        node: &Node,
        cookie: u64,
        with_attr: bool,
        sink: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<bool> {
        position_of(cookie)?;
        let begun = rustix::time::clock_gettime(ClockId::RealtimeCoarse);
        let waiting = if cookie == 0 { None } else { self.streams.take(&node.id, cookie, cred) };
        let mut stream = match waiting {
            Some(mut stream) => {
                stream.resume(self, cookie)?;
                stream
            }
            None => Stream::open(self, cred, node, cookie)?,
        };
        loop {
            if stream.at >= stream.buffer.len() && !stream.fill(self)? {
                return Ok(true);
            }
            let entry = entry_at(&stream.buffer, stream.at).ok_or(StoreError::Io)?;
            let (name, end, cookie) = (entry.name, entry.end, cookie_of(entry.position)?);
            if name != b"." && name != b".." {
                let object = if with_attr {
                    self.entry_object(node, &stream.fd, entry.c_name, begun)
                } else {
                    None
                };
                if !sink(DirEntry { name, cookie, file_id: entry.ino, object }) {
                    self.streams.put(stream);
                    return Ok(false);
                }
            }
            stream.at = end;
            stream.cookie = cookie;
        }
    }

    /// Returns id and attributes of an entry. `None` if it vanished, is a mount point, or is not
    /// accessible. The listing began at `begun` by the kernel's coarse clock.
    fn entry_object(
        &self,
        node: &Node,
        dir: &OwnedFd,
        name: &CStr,
        begun: Timespec,
    ) -> Option<(FileId, Attr)> {
        let stat = stat_name(dir.as_fd(), name).ok()?;
        let id = self.entry_id(dir, name, &stat, begun)?;
        if let Some(index) = &self.index {
            index.learn(id, node.id, name.to_bytes());
        }
        Some((id, super::attr::attr(&stat, self.tell_listed(&id, &stat)).ok()?))
    }

    fn entry_id(
        &self,
        dir: &OwnedFd,
        name: &CStr,
        stat: &Statx,
        begun: Timespec,
    ) -> Option<FileId> {
        // The same object may be mounted on the entry. Then it is not shown.
        let is_here = self.mount_id.is_some() && mount_of(stat) == self.mount_id;
        if is_here && let Some(id) = self.known_ids.find(stat) {
            return Some(id);
        }
        let handle = sys::name_to_handle(dir.as_fd(), name).ok()?;
        let id = self.id_of(stat, handle).ok()?;
        if is_here && let Some((handle, _)) = &handle {
            self.known_ids.remember(begun, stat, handle, id);
        }
        Some(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::known::FILE_SYSTEMS;
    use crate::{PosixOptions, PosixStore};
    use dafs_store::{ExportSecret, Store};
    use rustix::fs::{Mode, StatxFlags};
    use std::collections::BTreeMap;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::sync::Arc;

    fn now() -> Timespec {
        rustix::time::clock_gettime(ClockId::RealtimeCoarse)
    }

    /// Waits until whatever changes from now on gets another time. Returns a time at which all files
    /// of a test are old.
    fn later() -> Timespec {
        let begun = now();
        while now() == begun {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        Timespec { tv_sec: i64::MAX / 2, tv_nsec: 0 }
    }

    /// Lists the root as at this time. Returns the ids of the entries with ids, and the number of
    /// handles that it asked the kernel for.
    fn listed(export: &Export, begun: Timespec) -> (BTreeMap<String, FileId>, u32) {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::openat(&export.root, c".", flags, Mode::empty()).unwrap();
        let (mut found, mut buffer) = (BTreeMap::new(), Vec::new());
        let before = sys::HANDLES_ASKED.get();
        loop {
            sys::read_directory(dir.as_fd(), &mut buffer).unwrap();
            if buffer.is_empty() {
                return (found, sys::HANDLES_ASKED.get() - before);
            }
            for entry in entries(&buffer).filter(|entry| !matches!(entry.name, b"." | b"..")) {
                let object = export.entry_object(&export.root, &dir, entry.c_name, begun);
                let name = String::from_utf8(entry.name.to_vec()).unwrap();
                found.extend(object.map(|(id, _)| (name, id)));
            }
        }
    }

    /// Lists the root, compares the ids with those of lookups, and returns the handles asked for.
    fn listed_well(store: &PosixStore, begun: Timespec) -> u32 {
        let cred =
            Cred::new(rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let (found, asked) = listed(&store.export, begun);
        for (name, id) in &found {
            let (looked_up, _) = store.lookup(&cred, &store.root(), name.as_bytes()).unwrap();
            assert_eq!(looked_up, *id, "{name}");
        }
        asked
    }

    /// Opens a store in memory, if possible.
    fn store() -> (tempfile::TempDir, PosixStore) {
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let options = PosixOptions::new(ExportSecret::from_bytes([7; 16]));
        let store = PosixStore::open(dir.path(), options).unwrap();
        (dir, store)
    }

    #[test]
    fn an_entry_takes_one_system_call_once_its_id_is_known() {
        let (dir, store) = store();
        let (path, export) = (|name: &str| dir.path().join(name), &store.export);
        let kind = rustix::fs::fstatfs(&export.root).unwrap().f_type as u64;
        let stat = stat_fd(export.root.as_fd()).unwrap();
        let has_birth = stat.stx_mask & StatxFlags::BTIME.bits() != 0;
        let remembers = FILE_SYSTEMS.contains(&kind) && has_birth && mount_of(&stat).is_some();
        let calls = |count: u32| if remembers { count } else { 4 };
        let soon = now();
        fs::write(path("file"), "x").unwrap();
        fs::hard_link(path("file"), path("other name")).unwrap();
        fs::create_dir(path("directory")).unwrap();
        symlink("file", path("symlink")).unwrap();
        assert_eq!([soon, soon].map(|begun| listed_well(&store, begun)), [4, 4], "too young");
        // The two names of the file share its id.
        assert_eq!(listed_well(&store, later()), calls(3));
        assert_eq!(listed_well(&store, later()), calls(0));
        fs::set_permissions(path("directory"), fs::Permissions::from_mode(0o700)).unwrap();
        assert_eq!(listed_well(&store, later()), calls(1), "another ctime");
        let (ids, asked) = listed(export, later());
        assert_eq!(asked, calls(0));
        assert_eq!(ids["file"], ids["other name"]);
        assert_ne!(ids["file"], ids["symlink"]);
    }

    #[test]
    fn a_name_of_another_object_never_keeps_its_id() {
        let (dir, store) = store();
        let path = |name: &str| dir.path().join(name);
        let mut seen = Vec::new();
        for round in 0..20 {
            fs::write(path("new"), "x").unwrap();
            if round % 4 == 3 {
                // Some file systems give the next file the number of this one.
                fs::remove_file(path("f")).unwrap();
            }
            fs::rename(path("new"), path("f")).unwrap();
            listed_well(&store, now());
            listed_well(&store, later());
            let (ids, _) = listed(&store.export, later());
            assert!(!seen.contains(&ids["f"]), "{round}");
            seen.push(ids["f"]);
        }
    }

    #[test]
    fn an_object_gets_another_ctime_with_each_name_that_it_loses() {
        let (dir, store) = store();
        let path = |name: &str| dir.path().join(name);
        let ctime = || {
            let stat = stat_name(store.export.root.as_fd(), c"kept").unwrap();
            (stat.stx_ctime.tv_sec, stat.stx_ctime.tv_nsec)
        };
        fs::write(path("kept"), "x").unwrap();
        for way in ["remove", "move", "replace"] {
            fs::hard_link(path("kept"), path("f")).unwrap();
            let before = ctime();
            later();
            let lost = match way {
                "remove" => fs::remove_file(path("f")),
                "move" => fs::rename(path("f"), path("away")),
                _ => fs::write(path("new"), "").and_then(|()| fs::rename(path("new"), path("f"))),
            };
            lost.unwrap();
            assert_ne!(ctime(), before, "{way}");
        }
    }

    #[test]
    fn an_object_is_not_shown_on_the_mount_of_another() {
        let (dir, mut store) = store();
        fs::write(dir.path().join("f"), "x").unwrap();
        assert_eq!(listed(&store.export, later()).0.len(), 1);
        let export = Arc::get_mut(&mut store.export).unwrap();
        export.mount_id = export.mount_id.map(|ours| ours + 1);
        assert_eq!(listed(&store.export, later()).0.len(), 0);
    }

    #[test]
    fn cookies_and_positions_map_one_to_one() {
        for position in [0, 1, 2, 3, i64::MAX - 1, i64::MAX] {
            let cookie = cookie_of(position).unwrap();
            assert!(cookie > 2);
            assert_eq!(position_of(cookie), Ok(position.cast_unsigned()));
        }
        assert_eq!(position_of(0), Ok(0));
        for bad in [1, 2, (1 << 63) + 3, u64::MAX] {
            assert_eq!(position_of(bad), Err(StoreError::BadCookie), "{bad}");
        }
        assert_eq!(cookie_of(-1), Err(StoreError::Io));
    }

    #[test]
    fn a_cut_record_ends_the_listing() {
        let mut buffer = Vec::new();
        buffer.extend(7u64.to_ne_bytes());
        buffer.extend(9i64.to_ne_bytes());
        buffer.extend(24u16.to_ne_bytes());
        buffer.extend(b"\x08name\0");
        assert_eq!(entries(&buffer).count(), 1);
        assert_eq!(entries(&buffer).next().unwrap().name, b"name");
        for len in 0..buffer.len() {
            assert_eq!(entries(&buffer[..len]).count(), 0, "{len}");
        }
    }
}
