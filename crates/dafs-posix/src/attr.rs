//! Attributes: conversion from the kernel's form, changes, and access checks.
//!
//! Decisions
//! * A mode for a symlink is ignored, as by other file servers: Linux does not use it.
//! * A change sets the size, then owner and group, then the mode, then times. A change of the owner
//!   clears setuid; a change of the size clears setuid and sets times.

use super::export::{Export, stat_fd};
use super::ident::Caller;
use super::node::Node;
use super::sys;
use dafs_store::backend::{FILE_BYTES_MAX, MODE_BITS};
use dafs_store::{AccessMask, Attr, Cred, Kind, Result, SetAttr, SetTime, StoreError, TimeSpec};
use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, Statx, StatxFlags, Timespec, Timestamps, Uid,
};
use rustix::fs::{StatxTimestamp, UTIME_NOW, UTIME_OMIT};
use rustix::io::Errno;
use rustix::path::DecInt;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

/// Returns the kind of an object.
pub(super) fn kind(stat: &Statx) -> Result<Kind> {
    match FileType::from_raw_mode(u32::from(stat.stx_mode)) {
        FileType::RegularFile => Ok(Kind::Regular),
        FileType::Directory => Ok(Kind::Directory),
        FileType::BlockDevice => Ok(Kind::BlockDevice),
        FileType::CharacterDevice => Ok(Kind::CharDevice),
        FileType::Symlink => Ok(Kind::Symlink),
        FileType::Socket => Ok(Kind::Socket),
        FileType::Fifo => Ok(Kind::Fifo),
        FileType::Unknown => Err(StoreError::BadType),
    }
}

fn time(stamp: StatxTimestamp) -> TimeSpec {
    TimeSpec { seconds: stamp.tv_sec, nanoseconds: stamp.tv_nsec }
}

/// Converts the kernel's attributes, with this change attribute.
pub(super) fn attr(stat: &Statx, change: u64) -> Result<Attr> {
    Ok(Attr {
        kind: kind(stat)?,
        mode: u32::from(stat.stx_mode) & MODE_BITS,
        links: stat.stx_nlink,
        uid: stat.stx_uid,
        gid: stat.stx_gid,
        size: stat.stx_size,
        space_used: stat.stx_blocks.saturating_mul(512),
        file_id: stat.stx_ino,
        raw_device: (stat.stx_rdev_major, stat.stx_rdev_minor),
        atime: time(stat.stx_atime),
        mtime: time(stat.stx_mtime),
        ctime: time(stat.stx_ctime),
        btime: (stat.stx_mask & StatxFlags::BTIME.bits() != 0).then(|| time(stat.stx_btime)),
        change,
    })
}

fn timespec(set: Option<SetTime>) -> Result<Timespec> {
    Ok(match set {
        None => Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        Some(SetTime::Now) => Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
        Some(SetTime::To(time)) if time.nanoseconds < 1_000_000_000 => {
            Timespec { tv_sec: time.seconds, tv_nsec: i64::from(time.nanoseconds) }
        }
        Some(SetTime::To(_)) => return Err(StoreError::Invalid),
    })
}

impl Export {
    /// Changes attributes of an object as the caller. `before` holds its current attributes. `cut`
    /// changes the size through an open file, if the caller has one.
    pub(super) fn change_attr(
        &self,
        caller: &Caller,
        cred: &Cred,
        (node, before): (&Node, &Statx),
        change: &SetAttr,
        cut: Option<&dyn Fn(u64) -> Result<()>>,
    ) -> Result<()> {
        let times = Timestamps {
            last_access: timespec(change.atime)?,
            last_modification: timespec(change.mtime)?,
        };
        self.check_change(cred, node.kind, (before.stx_uid, before.stx_gid), change)?;
        if let Some(size) = change.size {
            match cut {
                Some(cut) => cut(size)?,
                None => self.truncate(caller, node, size)?,
            }
        }
        // Also for unchanged values: the kernel then updates the ctime and clears setuid and
        // setgid.
        if change.uid.is_some() || change.gid.is_some() {
            let (uid, gid) = (change.uid.map(Uid::from_raw), change.gid.map(Gid::from_raw));
            rustix::fs::chownat(node, c"", uid, gid, AtFlags::EMPTY_PATH)?;
        }
        if let Some(mode) = change.mode {
            self.set_mode(caller, node, mode)?;
        }
        if change.atime.is_some() || change.mtime.is_some() {
            self.set_times(caller, node, &times)?;
        }
        Ok(())
    }

    /// Rejects a change early that a later step would reject, so that no change is applied in part.
    /// `owner` is the user and group of the object.
    fn check_change(
        &self,
        cred: &Cred,
        kind: Kind,
        owner: (u32, u32),
        change: &SetAttr,
    ) -> Result<()> {
        if let Some(size) = change.size {
            match kind {
                Kind::Regular => {}
                Kind::Directory => return Err(StoreError::IsDirectory),
                _ => return Err(StoreError::Invalid),
            }
            if size > FILE_BYTES_MAX {
                return Err(StoreError::FileTooBig);
            }
        }
        if change.uid == Some(u32::MAX) || change.gid == Some(u32::MAX) {
            return Err(StoreError::Invalid);
        }
        if !self.identity.switches() || cred.uid == 0 {
            return Ok(());
        }
        let sets_time = |set| matches!(set, Some(SetTime::To(_)));
        let owner_only = change.mode.is_some_and(|_| kind != Kind::Symlink)
            || change.uid.is_some()
            || change.gid.is_some()
            || sets_time(change.atime)
            || sets_time(change.mtime);
        let own_group = |gid| gid == owner.1 || cred.is_in(gid);
        if (owner_only && cred.uid != owner.0)
            || change.uid.is_some_and(|uid| uid != owner.0)
            || change.gid.is_some_and(|gid| !own_group(gid))
        {
            return Err(StoreError::NotOwner);
        }
        Ok(())
    }

    /// Rejects attributes that the caller could not give to a new object in `dir`.
    pub(super) fn check_wish(
        &self,
        cred: &Cred,
        dir: &Node,
        kind: Kind,
        wish: &SetAttr,
    ) -> Result<()> {
        timespec(wish.atime)?;
        timespec(wish.mtime)?;
        // The kernel decides if the group comes from the directory.
        let group = match wish.gid {
            Some(_) => stat_fd(dir.as_fd())?.stx_gid,
            None => cred.gid,
        };
        let owner = (cred.uid, group);
        self.check_change(cred, kind, owner, wish)
    }

    fn truncate(&self, _caller: &Caller, node: &Node, size: u64) -> Result<()> {
        let fd = self.reopen(node, OFlags::WRONLY | OFlags::NONBLOCK)?;
        Ok(rustix::fs::ftruncate(&fd, size)?)
    }

    /// Sets the permission bits, setuid, setgid and sticky.
    pub(super) fn set_mode(&self, _caller: &Caller, node: &Node, mode: u32) -> Result<()> {
        if node.kind == Kind::Symlink {
            return Ok(());
        }
        let mode = mode & MODE_BITS;
        if !self.no_fchmodat2.load(Ordering::Relaxed) {
            match sys::change_mode(node.as_fd(), mode) {
                // Before Linux 6.6, and in old sandboxes.
                Err(Errno::NOSYS | Errno::OPNOTSUPP) => {
                    self.no_fchmodat2.store(true, Ordering::Relaxed);
                }
                other => return Ok(other?),
            }
        }
        let name = DecInt::from_fd(node);
        let mode = Mode::from_raw_mode(mode);
        Ok(rustix::fs::chmodat(&self.own_descriptors, name, mode, AtFlags::empty())?)
    }

    /// Sets times; the entries may be "now" or "unchanged".
    pub(super) fn set_times(&self, _: &Caller, node: &Node, times: &Timestamps) -> Result<()> {
        match rustix::fs::utimensat(node, c"", times, AtFlags::EMPTY_PATH) {
            // Before Linux 5.8 there was no AT_EMPTY_PATH here.
            Err(Errno::INVAL) => {
                let name = DecInt::from_fd(node);
                Ok(rustix::fs::utimensat(&self.own_descriptors, name, times, AtFlags::empty())?)
            }
            other => Ok(other?),
        }
    }

    /// Returns those of the `wanted` rights that the kernel grants to the thread's identity.
    pub(super) fn allowed(
        &self,
        _caller: &Caller,
        cred: &Cred,
        (node, stat): (&Node, &Statx),
        wanted: AccessMask,
    ) -> Result<AccessMask> {
        let change = AccessMask::MODIFY | AccessMask::EXTEND | AccessMask::DELETE;
        let mut wanted = wanted & AccessMask::all();
        if self.read_only {
            wanted -= change;
        }
        wanted -= if node.kind == Kind::Directory {
            AccessMask::EXECUTE
        } else {
            AccessMask::LOOKUP | AccessMask::DELETE
        };
        // If no class may execute, no caller may, not even root, and no list overrides that.
        if node.kind != Kind::Directory && stat.stx_mode & 0o111 == 0 {
            wanted -= AccessMask::EXECUTE;
        }
        let mut granted = AccessMask::empty();
        let groups = [
            (AccessMask::READ, libc::R_OK),
            (change, libc::W_OK),
            (AccessMask::LOOKUP | AccessMask::EXECUTE, libc::X_OK),
        ];
        let may = |mode| match sys::may_access(node.as_fd(), mode) {
            Ok(()) => Ok(true),
            Err(Errno::ACCESS | Errno::PERM | Errno::ROFS) => Ok(false),
            Err(errno) => Err(StoreError::from(errno)),
        };
        let asked = groups.map(|(rights, mode)| (wanted & rights, mode));
        let asked = asked.into_iter().filter(|(rights, _)| !rights.is_empty());
        // The mode predicts most answers. One call asks for all rights that it grants. The rest are
        // asked for one by one, because a list or a capability may grant more.
        let foretold = self.foretell(cred, node.kind, stat);
        let likely: i32 = asked.clone().fold(0, |all, (_, mode)| all | mode & foretold);
        let likely = if likely != 0 && may(likely)? { likely } else { 0 };
        for (rights, mode) in asked {
            if likely & mode != 0 || may(mode)? {
                granted |= rights;
            }
        }
        Ok(granted)
    }

    /// Returns the rights that the mode alone grants to a caller.
    fn foretell(&self, cred: &Cred, kind: Kind, stat: &Statx) -> i32 {
        let mode = u32::from(stat.stx_mode);
        if !self.identity.switches() {
            return (mode >> 6 & 7) as i32;
        }
        cred.rights(kind, mode, stat.stx_uid, stat.stx_gid) as i32
    }
}
