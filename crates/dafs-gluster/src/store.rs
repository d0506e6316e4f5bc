//! The operations of the store by the calls of libgfapi.

use crate::attr::change;
use crate::file::GlusterFile;
use crate::limits::{
    ACCESS_PAUSE, MOVED_BIT, OTHERS_TRIES_MAX, OWNER_TRIES_MAX, PARENT_TRIES_MAX, PATH_BYTES_MAX,
    PRIVILEGE_BITS, UNIT_BYTES,
};
use crate::sys::{Gfid, Handle, Object};
use crate::{GlusterStore, server};
use dafs_store::backend::{MODE_BITS, check_regular};
use dafs_store::inode::{EXECUTE, Ids, Inode, InodeFs, Known, READ, WRITE, allows, flags};
use dafs_store::{
    AclSupport, Attr, Capabilities, Cred, FileId, Kind, LayoutForm, Layouts, LocalChanges,
    OpenFile, OpenMode, Result, SetAttr, SetTime, StoreError, Waits,
};
use std::sync::Arc;

/// The attribute by which a brick returns the path of a directory from the root of the volume.
const PATH: &[u8] = b"glusterfs.ancestry.path";

/// True if only the owner may make a change of attributes.
fn is_of_owner(wish: &SetAttr) -> bool {
    let times = [wish.atime, wish.mtime];
    let owners = wish.mode.is_some() || wish.uid.is_some() || wish.gid.is_some();
    owners || times.iter().any(|time| matches!(time, Some(SetTime::To(_))))
}

/// Rejects a change of attributes before any part of it is made. The bricks check each part again.
fn check_change(cred: &Cred, known: &Attr, wish: &SetAttr) -> Result<()> {
    if cred.uid == 0 || cred.uid == known.uid {
        return Ok(());
    }
    if is_of_owner(wish) {
        return Err(StoreError::NotOwner);
    }
    let now = wish.atime.is_some() || wish.mtime.is_some();
    if now && !allows(cred, known, WRITE) { Err(StoreError::Access) } else { Ok(()) }
}

/// Returns the rights of the mode that an open needs.
fn rights(mode: OpenMode) -> u32 {
    let right = |wanted: bool, right| if wanted { right } else { 0 };
    right(mode.read, READ) | right(mode.write, WRITE)
}

/// True if the owner and the mode allow a change of attributes. An owner may give an object only a
/// group of their own.
fn may_change(cred: &Cred, known: &Attr, wish: &SetAttr) -> bool {
    wish.uid.is_none_or(|uid| uid == known.uid)
        && wish.gid.is_none_or(|gid| cred.is_in(gid))
        && check_change(cred, known, wish).is_ok()
}

/// Retries a request that a brick refuses although the mode allows it. In a race, a brick may just
/// have got to know the object, because another thread makes it or looks it up. Until the brick has
/// read its owner, it treats the object as owned by root and closed to all others. An ACL may refuse
/// others than the owner for good, so they are refused sooner.
fn patiently<T>(cred: &Cred, known: &Attr, want: u32, ask: impl FnMut() -> Result<T>) -> Result<T> {
    let tries = if cred.uid == known.uid { OWNER_TRIES_MAX } else { OTHERS_TRIES_MAX };
    repeat(tries, |error| error == StoreError::Access && allows(cred, known, want), ask)
}

/// Retries a change of attributes like [`patiently`]. To such a brick the caller is not the owner.
fn change_patiently(
    cred: &Cred,
    object: &Object,
    wish: &SetAttr,
    ask: impl FnMut() -> Result<()>,
) -> Result<()> {
    let is_passing = |error: StoreError| {
        matches!(error, StoreError::Access | StoreError::NotOwner)
            && object.stat().is_ok_and(|known| may_change(cred, &known, wish))
    };
    let tries = if is_of_owner(wish) { OWNER_TRIES_MAX } else { OTHERS_TRIES_MAX };
    repeat(tries, is_passing, ask)
}

/// Repeats a request while `is_passing` says so of its error, with pauses that double.
fn repeat<T>(
    tries: usize,
    is_passing: impl Fn(StoreError) -> bool,
    mut ask: impl FnMut() -> Result<T>,
) -> Result<T> {
    let mut pause = ACCESS_PAUSE;
    for _ in 1..tries {
        match ask() {
            Err(error) if is_passing(error) => {
                std::thread::sleep(pause);
                pause *= 2;
            }
            done => return done,
        }
    }
    ask()
}

/// True if the file has setuid or setgid, which a write must clear.
fn is_privileged(attr: &Attr) -> bool {
    attr.mode & PRIVILEGE_BITS != 0
}

impl InodeFs for GlusterStore {
    type Inode = Object;

    const FILE_MODE_BITS: u32 = MODE_BITS & !MOVED_BIT;

    fn ids(&self) -> &Ids {
        &self.shared.ids
    }

    fn root_key(&self) -> Gfid {
        self.shared.root
    }

    fn features(&self) -> Capabilities {
        Capabilities {
            xattrs: true,
            acls: AclSupport::Mode,
            allocate: true,
            deallocate: true,
            holes: true,
            local_changes: LocalChanges::Unseen,
            waits: Waits::Always,
            layouts: self.shared.spread.as_ref().map(|_| LayoutForm::Stripes),
            layout_unit_bytes: self.shared.spread.as_ref().map_or(0, |_| UNIT_BYTES.get()),
            ..Capabilities::default()
        }
    }

    fn placements(&self) -> Option<&dyn Layouts> {
        self.shared.spread.as_ref().map(|_| self as &dyn Layouts)
    }

    fn find(&self, id: &FileId) -> Result<(Gfid, Result<Object>, Attr)> {
        self.shared.object(id)
    }

    /// Returns the parent of a directory. The library only knows the parents of objects that it has
    /// looked up by name, so a brick must return the path.
    fn above(&self, cred: &Cred, dir: &Object) -> Result<Gfid> {
        let gfid = dir.gfid()?;
        for _ in 0..PARENT_TRIES_MAX {
            let mut path = vec![0; PATH_BYTES_MAX];
            let len = dir.xattr(PATH, &mut path, &server())?;
            path.truncate(len);
            let names: Vec<_> = path
                .split(|&byte| byte == b'/' || byte == 0)
                .filter(|name| !name.is_empty())
                .collect();
            let Some((own, above)) = names.split_last() else {
                return Err(StoreError::NotFound);
            };
            let mut at = self.shared.mount.top()?;
            let mut found = Ok(());
            for name in above {
                match at.lookup(name, &server()) {
                    Ok(next) => at = next.inode,
                    Err(error) => found = Err(error),
                }
            }
            // In a race, another client may have moved it.
            let is_above = match at.lookup(own, &server()) {
                Ok(same) => found.is_ok() && same.key == gfid,
                Err(_) => false,
            };
            if is_above {
                let known = at.stat()?;
                return match allows(cred, &known, EXECUTE) {
                    true => at.gfid(),
                    false => Err(StoreError::Access),
                };
            }
        }
        Err(StoreError::Busy)
    }

    /// The bricks evaluate access control lists. One question is enough for a caller with all
    /// rights. A caller who has waited for the answer to it does not wait for the others.
    fn rights(
        &self,
        cred: &Cred,
        object: &Result<Object>,
        attr: &Attr,
        wanted: u32,
    ) -> Result<u32> {
        let may = |want: u32, waits: bool| {
            let Ok(object) = object else { return Ok(allows(cred, attr, want)) };
            if cred.uid == 0 {
                return Ok(allows(cred, attr, want));
            }
            let ask = || match object.allows(want as i32, cred) {
                Ok(true) => Ok(true),
                Ok(false) => Err(StoreError::Access),
                Err(error) => Err(error),
            };
            match if waits { patiently(cred, attr, want, ask) } else { ask() } {
                Err(StoreError::Access) => Ok(false),
                answer => answer,
            }
        };
        if wanted == 0 || may(wanted, true)? {
            return Ok(wanted);
        }
        let waits = !allows(cred, attr, wanted);
        let mut held = 0;
        for want in [READ, WRITE, EXECUTE] {
            if wanted & want != 0 && wanted != want && may(want, waits)? {
                held |= want;
            }
        }
        Ok(held)
    }

    fn check_change(&self, cred: &Cred, known: &Attr, wish: &mut SetAttr) -> Result<()> {
        check_change(cred, known, wish)?;
        // Bricks refuse the file's present group, too, to an owner who is not a member. A change of
        // the owner to the present one has the same effect.
        let foreign = cred.uid != 0 && !cred.is_in(known.gid);
        if foreign && wish.gid == Some(known.gid) {
            wish.gid = None;
            wish.uid = wish.uid.or(Some(known.uid));
        }
        change(wish).map(drop)
    }

    /// Changes the size as a caller, which clears setuid and setgid.
    fn resize(&self, cred: &Cred, object: &Object, known: &Attr, size: u64) -> Result<()> {
        patiently(cred, known, WRITE, || object.truncate(size, cred))?;
        if cred.uid != 0 && is_privileged(known) {
            crate::layouts::end_privilege(object, known.mode)?;
        }
        Ok(())
    }

    /// Sets attributes other than the size. The mode comes after a new owner, which clears some of
    /// its bits.
    fn set_attributes(&self, cred: &Cred, object: &Object, wish: &SetAttr) -> Result<()> {
        let SetAttr { mode, uid, gid, atime, mtime, size: _ } = *wish;
        let none = SetAttr::default();
        for part in [
            SetAttr { uid, gid, ..none },
            SetAttr { mode, ..none },
            SetAttr { atime, mtime, ..none },
        ] {
            let (stat, mask) = change(&part)?;
            if mask != 0 {
                change_patiently(cred, object, &part, || object.set_stat(stat, mask, cred))?;
            }
        }
        if mode.is_some_and(|mode| mode & PRIVILEGE_BITS != 0)
            && let Some(opens) = self.shared.opens().get(&object.gfid()?)
        {
            opens.note_privileged();
        }
        Ok(())
    }

    fn open_file(&self, cred: &Cred, id: &FileId, mode: OpenMode) -> Result<Arc<dyn OpenFile>> {
        let flags = flags(mode)?;
        let (gfid, object, attr) = self.shared.object(id)?;
        check_regular(attr.kind)?;
        let handle = match object {
            Ok(object) => {
                Arc::new(patiently(cred, &attr, rights(mode), || object.open(flags, cred))?)
            }
            // The file has no name any more, and no brick finds it; but it may be open here.
            Err(error) => {
                if !allows(cred, &attr, rights(mode)) {
                    return Err(StoreError::Access);
                }
                let known = self.shared.opens().get(&gfid).and_then(|opens| opens.handle(mode));
                known.ok_or(error)?
            }
        };
        let privileged = is_privileged(&attr);
        Ok(Arc::new(GlusterFile::new(&self.shared, gfid, mode, handle, cred, privileged)))
    }

    fn open_found(
        &self,
        cred: &Cred,
        found: Known<Object>,
        truncate: bool,
        mode: OpenMode,
    ) -> Result<Arc<dyn OpenFile>> {
        let Known { key, inode, attr } = found;
        if truncate {
            patiently(cred, &attr, WRITE, || inode.truncate(0, cred))?;
        }
        let flags = flags(mode)?;
        let handle = patiently(cred, &attr, rights(mode), || inode.open(flags, cred))?;
        let (handle, privileged) = (Arc::new(handle), is_privileged(&attr));
        Ok(Arc::new(GlusterFile::new(&self.shared, key, mode, handle, cred, privileged)))
    }

    /// On the file systems of bricks, the sync of a new file makes its name stable, too.
    fn sync_made(&self, _dir: &Object, _object: &Object, handle: &Handle) -> Result<()> {
        handle.sync()
    }

    /// The creator of a file with setuid or setgid may write it without clearing these bits.
    fn open_made(
        &self,
        cred: &Cred,
        made: Known<Object>,
        mode: OpenMode,
        handle: Handle,
    ) -> Arc<dyn OpenFile> {
        Arc::new(GlusterFile::new(&self.shared, made.key, mode, Arc::new(handle), cred, false))
    }

    fn link_name(&self, cred: &Cred, id: &FileId, dir: &Object, name: &[u8]) -> Result<()> {
        let (_, target, attr) = self.shared.object(id)?;
        if attr.kind == Kind::Directory {
            return Err(StoreError::IsDirectory);
        }
        let target = target?;
        match dir.lookup(name, cred) {
            Ok(_) => return Err(StoreError::Exists),
            Err(StoreError::NotFound) => {}
            Err(error) => return Err(error),
        }
        dir.link(&target, name, cred)
    }

    fn remove_name(
        &self,
        cred: &Cred,
        dir: &Object,
        name: &[u8],
        _kind: Option<Kind>,
    ) -> Result<()> {
        dir.remove(name, cred)
    }

    /// GlusterFS does not update the ctime after a change of an extended attribute, so the atime is
    /// set to its present value, which does.
    fn note_xattr(&self, object: &Object, before: &Attr) -> Result<()> {
        let atime = Some(SetTime::To(before.atime));
        let (stat, mask) = change(&SetAttr { atime, ..SetAttr::default() })?;
        object.set_stat(stat, mask, &server())
    }

    /// Makes regular files stable. GlusterFS has no call that makes the names in a directory
    /// stable. They become stable when the file systems of the bricks write them, or with the sync
    /// of a file that was made later.
    fn sync_names(&self, ids: &[FileId]) -> Result<()> {
        for id in ids {
            let (_, object, attr) = match self.shared.object(id) {
                Err(StoreError::Stale) => continue,
                found => found?,
            };
            if attr.kind == Kind::Regular {
                object?.open(libc::O_RDONLY, &server())?.sync()?;
            }
        }
        Ok(())
    }

    fn space(&self, object: Result<Object>) -> Result<libc::statvfs> {
        object.or_else(|_| self.shared.mount.top())?.statfs()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dafs_store::backend::nameless;

    #[test]
    fn only_what_the_mode_allows_is_asked_for_again() {
        let known = |mode| Attr { uid: 7, gid: 7, mode, ..nameless(Kind::Regular) };
        let mut asked = 0;
        let mut refused = |times: usize, uid, mode| {
            asked = 0;
            let got = patiently(&Cred::new(uid, 7), &known(mode), READ | WRITE, || {
                asked += 1;
                if asked <= times { Err(StoreError::Access) } else { Ok(()) }
            });
            (got, asked)
        };
        assert_eq!(refused(0, 7, 0o600), (Ok(()), 1));
        assert_eq!(refused(2, 7, 0o600), (Ok(()), 3));
        assert_eq!(refused(99, 7, 0o600), (Err(StoreError::Access), OWNER_TRIES_MAX));
        assert_eq!(refused(99, 8, 0o660), (Err(StoreError::Access), OTHERS_TRIES_MAX));
        assert_eq!(refused(2, 7, 0o400), (Err(StoreError::Access), 1));
    }

    #[test]
    fn a_change_that_the_owner_may_not_make_is_asked_for_once() {
        let known = Attr { uid: 7, gid: 7, mode: 0o602, ..nameless(Kind::Regular) };
        let none = SetAttr::default();
        let may = |uid, wish: SetAttr| may_change(&Cred::new(uid, 7), &known, &wish);
        assert!(may(7, SetAttr { mode: Some(0o600), ..none }));
        assert!(may(7, SetAttr { uid: Some(7), gid: Some(7), ..none }));
        assert!(!may(7, SetAttr { uid: Some(8), ..none }), "only root gives a file away");
        assert!(!may(7, SetAttr { gid: Some(8), ..none }), "a group of others");
        assert!(!may(8, SetAttr { mode: Some(0o600), ..none }));
        let now = SetAttr { mtime: Some(SetTime::Now), ..none };
        assert!(may(7, now) && !may(8, now), "the group of the file may not write");
    }
}
