//! Behaviour of optional features: ranges of files, copies, extended attributes, access control.

use super::*;
use dafs_store::*;

const KIB64: u64 = 64 * 1024;

pub fn holes_and_data_are_found(w: &World) {
    let file = w.create(&w.root(), "f").file;
    assert_eq!(file.seek(0, SeekWhat::Data), Err(StoreError::PastEnd));
    assert_eq!(file.seek(0, SeekWhat::Hole), Err(StoreError::PastEnd));
    write(&*file, 0, b"head").unwrap();
    write(&*file, 4 * KIB64, b"tail").unwrap();
    file.set_size(8 * KIB64).unwrap();
    assert_eq!(file.seek(1, SeekWhat::Data), Ok(Some(1)));
    for past in [8 * KIB64, u64::MAX, 1 << 63] {
        assert_eq!(file.seek(past, SeekWhat::Data), Err(StoreError::PastEnd), "{past}");
        assert_eq!(file.seek(past, SeekWhat::Hole), Err(StoreError::PastEnd), "{past}");
    }
    if !w.store.capabilities().holes || file.attr().unwrap().space_used >= 8 * KIB64 {
        return skipped("no holes on this file system");
    }
    let hole = file.seek(0, SeekWhat::Hole).unwrap().unwrap();
    assert!((4..=KIB64).contains(&hole), "{hole}");
    assert_eq!(file.seek(hole, SeekWhat::Hole), Ok(Some(hole)));
    let data = file.seek(hole, SeekWhat::Data).unwrap().unwrap();
    assert!(hole < data && data <= 4 * KIB64, "{data}");
    assert_eq!(file.seek(7 * KIB64, SeekWhat::Data), Ok(None));
    assert_eq!(file.seek(7 * KIB64, SeekWhat::Hole), Ok(Some(7 * KIB64)));
}

pub fn space_is_set_aside_and_given_back(w: &World) {
    let created = w.create(&w.root(), "f");
    let file = &created.file;
    write(&**file, 0, b"text").unwrap();
    match file.allocate(KIB64, KIB64) {
        Err(StoreError::NotSupported) => return skipped("no allocation on this file system"),
        other => other.unwrap(),
    }
    let attr = file.attr().unwrap();
    assert_eq!(attr.size, 2 * KIB64, "allocating makes the file longer");
    assert!(attr.space_used >= KIB64, "{}", attr.space_used);
    let mut content = b"text".to_vec();
    content.resize(2 * KIB64 as usize, 0);
    assert_eq!(read(&**file, 0, content.len() + 5).unwrap(), content);
    write(&**file, 0, &vec![7; 2 * KIB64 as usize]).unwrap();
    let before = file.attr().unwrap();
    file.deallocate(10, KIB64).unwrap();
    let after = file.attr().unwrap();
    assert_eq!(after.size, 2 * KIB64);
    assert_ne!(after.change, before.change);
    let bytes = read(&**file, 0, 2 * KIB64 as usize).unwrap();
    assert!(bytes[10..10 + KIB64 as usize].iter().all(|&b| b == 0));
    assert_eq!((bytes[9], bytes[10 + KIB64 as usize]), (7, 7));
    file.deallocate(KIB64, 1 << 50).unwrap();
    assert_eq!(file.attr().unwrap().size, 2 * KIB64);
    for refused in [file.allocate(0, 0), file.deallocate(5, 0)] {
        assert_eq!(refused, Err(StoreError::Invalid));
    }
    assert_eq!(file.allocate(u64::MAX, 2), Err(StoreError::Invalid));
    assert_eq!(file.deallocate(1, u64::MAX), Err(StoreError::Invalid));
    assert_eq!(file.allocate(u64::MAX / 2, 2), Err(StoreError::FileTooBig));
    let reader = w.store.open(&w.cred, &created.id, READ).unwrap();
    assert_eq!(reader.allocate(0, 1), Err(StoreError::Access));
    assert_eq!(reader.deallocate(0, 1), Err(StoreError::Access));
}

pub fn files_are_copied_and_cloned(w: &World) {
    let source = w.create(&w.root(), "source");
    let target = w.create(&w.root(), "target");
    let text: Vec<u8> = (0..3 * KIB64).map(|at| (at % 251) as u8).collect();
    write(&*source.file, 0, &text).unwrap();
    let copy = |from: u64, to: u64, len: u64| {
        let mut done = 0;
        while done < len {
            match target
                .file
                .copy_from(&*source.file, CopyRange::new(from + done, to + done, len - done))?
            {
                0 => break,
                copied => done += copied,
            }
        }
        Ok(done)
    };
    assert_eq!(copy(5, 100, 2 * KIB64), Ok(2 * KIB64));
    let got = read(&*target.file, 100, 3 * KIB64 as usize).unwrap();
    assert_eq!(got, text[5..][..2 * KIB64 as usize]);
    assert_eq!(copy(3 * KIB64 - 7, 0, 100), Ok(7), "the source ends");
    assert_eq!(copy(3 * KIB64, 0, 100), Ok(0));
    assert_eq!(copy(1 << 40, 0, 100), Ok(0));
    assert_eq!(copy(0, u64::MAX - 5, 100), Err(StoreError::Invalid));
    assert_eq!(copy(0, (1 << 63) - 5, 100), Err(StoreError::FileTooBig));
    let own = source.file.copy_from(&*source.file, CopyRange::new(0, 10, 11));
    assert_eq!(own, Err(StoreError::Invalid), "overlapping");
    assert_eq!(source.file.copy_from(&*source.file, CopyRange::new(0, 3 * KIB64, 9)), Ok(9));
    let reader = w.store.open(&w.cred, &target.id, READ).unwrap();
    assert_eq!(reader.copy_from(&*source.file, CopyRange::new(0, 0, 1)), Err(StoreError::Access));
    let writer = w.store.open(&w.cred, &source.id, WRITE).unwrap();
    assert_eq!(target.file.copy_from(&*writer, CopyRange::new(0, 0, 1)), Err(StoreError::Access));
    // Another store's files are copied through memory.
    let other = MemoryStore::new(MemoryOptions { root_owner: (7, 7), ..MemoryOptions::default() });
    let cred = Cred::new(7, 7);
    let (how, none) = (CreateHow::Guarded, SetAttr::default());
    let far = other.create(&cred, &other.root(), b"far", how, &none, READ_WRITE).unwrap().file;
    assert_eq!(far.copy_from(&*source.file, CopyRange::new(0, 0, 5000)), Ok(5000));
    assert_eq!(target.file.copy_from(&*far, CopyRange::new(1, 0, 9)), Ok(9));
    assert_eq!(read(&*target.file, 0, 9).unwrap(), text[1..10]);
    assert!(target.file.clone_range_from(&*far, CopyRange::new(0, 0, 0)).is_err());
    clones_share(w, &source, &target);
}

fn clones_share(w: &World, source: &Created, target: &Created) {
    let block = u64::from(w.store.capabilities().clone_block_bytes.max(1));
    let cloned = target.file.clone_range_from(&*source.file, CopyRange::new(0, 0, 0));
    if !w.store.capabilities().clone && cloned.is_err() {
        assert_eq!(cloned, Err(StoreError::NotSupported));
        return skipped("no clones on this file system");
    }
    cloned.unwrap();
    let size = source.file.attr().unwrap().size as usize;
    assert_eq!(read(&*target.file, 0, size), read(&*source.file, 0, size));
    write(&*target.file, 0, b"changed").unwrap();
    assert_ne!(read(&*source.file, 0, 7).unwrap(), b"changed", "but only until a change");
    let (from, to) = (block, KIB64 * 16);
    target.file.clone_range_from(&*source.file, CopyRange::new(from, to, KIB64)).unwrap();
    assert_eq!(target.file.attr().unwrap().size, to + KIB64);
    let got = read(&*target.file, to, KIB64 as usize);
    assert_eq!(got, read(&*source.file, from, KIB64 as usize));
    let beyond = target.file.clone_range_from(&*source.file, CopyRange::new(0, 0, 1 << 40));
    assert_eq!(beyond, Err(StoreError::Invalid));
    let reader = w.store.open(&w.cred, &target.id, READ).unwrap();
    assert_eq!(
        reader.clone_range_from(&*source.file, CopyRange::new(0, 0, 0)),
        Err(StoreError::Access)
    );
}

fn set(w: &World, id: &FileId, name: &[u8], value: &[u8], how: SetXattr) -> Result<DirChange> {
    w.store.set_xattr(&w.cred, id, name, value, how)
}

pub fn extended_attributes_are_kept(w: &World) {
    if !w.store.capabilities().xattrs {
        return skipped("no user.* attributes on this file system");
    }
    let id = w.create(&w.root(), "f").id;
    let get = |name: &[u8]| w.store.xattr(&w.cred, &id, name);
    assert_eq!(w.store.list_xattrs(&w.cred, &id), Ok(vec![]));
    assert_eq!(get(b"color"), Err(StoreError::NoXattr));
    assert_eq!(set(w, &id, b"color", b"red", SetXattr::Replace), Err(StoreError::NoXattr));
    let change = set(w, &id, b"color", b"red", SetXattr::Create).unwrap();
    assert_ne!(change.before, change.after);
    assert_eq!(w.store.getattr(&id).unwrap().change, change.after);
    assert_eq!(set(w, &id, b"color", b"blue", SetXattr::Create), Err(StoreError::Exists));
    assert_eq!(get(b"color").unwrap(), b"red");
    set(w, &id, b"color", b"", SetXattr::Replace).unwrap();
    assert_eq!(get(b"color").unwrap(), b"");
    let long = vec![b'v'; 2000];
    set(w, &id, b"a name/with. everything", &long, SetXattr::Either).unwrap();
    assert_eq!(get(b"a name/with. everything").unwrap(), long);
    let names = [b"a name/with. everything".to_vec(), b"color".to_vec()];
    assert_eq!(w.store.list_xattrs(&w.cred, &id).unwrap(), names);
    let change = w.store.remove_xattr(&w.cred, &id, b"color").unwrap();
    assert_ne!(change.before, change.after);
    assert_eq!(w.store.remove_xattr(&w.cred, &id, b"color"), Err(StoreError::NoXattr));
    assert_eq!(get(b"color"), Err(StoreError::NoXattr));
    let dir = w.mkdir(&w.root(), "d");
    set(w, &dir, b"x", b"y", SetXattr::Either).unwrap();
    assert_eq!(w.store.xattr(&w.cred, &dir, b"x").unwrap(), b"y");
}

pub fn bad_extended_attributes_are_refused(w: &World) {
    if !w.store.capabilities().xattrs {
        return skipped("no user.* attributes on this file system");
    }
    let id = w.create(&w.root(), "f").id;
    let both = |id: &FileId, name: &[u8]| {
        let read = w.store.xattr(&w.cred, id, name);
        (read.err(), set(w, id, name, b"v", SetXattr::Either).err())
    };
    for (name, error) in [
        (&b""[..], StoreError::Invalid),
        (b"a\0b", StoreError::Invalid),
        (&[b'n'; 251], StoreError::NameTooLong),
    ] {
        assert_eq!(both(&id, name), (Some(error), Some(error)), "{name:?}");
    }
    let huge = vec![0; XATTR_BYTES_MAX + 1];
    let refused = set(w, &id, b"huge", &huge, SetXattr::Either);
    assert_eq!(refused, Err(StoreError::XattrTooBig));
    let link = NewObject::Symlink(b"f");
    let link = w.make(&w.root(), "l", link, &SetAttr::default()).unwrap().id;
    let refused = both(&link, b"name");
    assert_eq!(refused, (Some(StoreError::NoXattr), Some(StoreError::NotSupported)));
    let fifo = w.make(&w.root(), "p", NewObject::Fifo, &SetAttr::default()).unwrap().id;
    assert_eq!(both(&fifo, b"name").1, Some(StoreError::NotSupported));
    assert_eq!(w.store.list_xattrs(&w.cred, &fifo), Ok(vec![]));
    w.remove(&w.root(), "p").unwrap();
    let stale = set(w, &fifo, b"name", b"v", SetXattr::Either);
    assert_eq!(stale, Err(StoreError::Stale));
    let mut forged = id;
    forged.0[5] ^= 1;
    let refused = both(&forged, b"name");
    assert_eq!(refused, (Some(StoreError::BadHandle), Some(StoreError::BadHandle)));
    assert_eq!(w.store.list_xattrs(&w.cred, &forged), Err(StoreError::BadHandle));
    assert_eq!(w.store.remove_xattr(&w.cred, &forged, b"n"), Err(StoreError::BadHandle));
    assert_eq!(w.store.acl(&forged), Err(StoreError::BadHandle));
    let acl = Acl::from_mode(0o600, false);
    assert_eq!(w.store.set_acl(&w.cred, &forged, &acl), Err(StoreError::BadHandle));
    let others = w.store.capabilities().local_changes != LocalChanges::Impossible;
    assert_eq!(w.store.watch(&forged, Watch::Changes).is_err(), others);
}

pub fn lists_follow_the_mode_and_the_other_way_round(w: &World) {
    let (file, dir) = (w.create(&w.root(), "f").id, w.mkdir(&w.root(), "d"));
    for (id, directory) in [(file, false), (dir, true)] {
        for bits in [0o640, 0o4711, 0o606, 0o077, 0o000, 0o755] {
            let change = SetAttr { mode: Some(bits), ..SetAttr::default() };
            w.store.setattr(&w.cred, &id, &change, None).unwrap();
            let acl = w.store.acl(&id).unwrap();
            assert_eq!(acl, Acl::from_mode(bits, directory), "{bits:o}");
            let before = w.store.getattr(&id).unwrap();
            let other = Acl::from_mode(bits ^ 0o777, directory);
            w.store.set_acl(&w.cred, &id, &other).unwrap();
            let after = w.store.getattr(&id).unwrap();
            assert_eq!(after.mode & 0o777, bits & 0o777 ^ 0o777, "{bits:o}");
            assert_ne!(after.change, before.change);
            assert_eq!(w.store.acl(&id).unwrap(), other);
        }
    }
    let link = NewObject::Symlink(b"f");
    let link = w.make(&w.root(), "l", link, &SetAttr::default()).unwrap().id;
    let refused = w.store.set_acl(&w.cred, &link, &Acl::from_mode(0o600, false));
    assert_eq!(refused, Err(StoreError::NotSupported));
    let stranger = Cred::new(w.cred.uid + 1, w.cred.gid + 1);
    if w.cred.uid != 0 && is_root() {
        let refused = w.store.set_acl(&stranger, &file, &Acl::from_mode(0o666, false));
        assert_eq!(refused, Err(StoreError::NotOwner));
    }
}

fn allow(who: AceWho, mask: AceMask, flags: AceFlags) -> Ace {
    Ace { kind: AceKind::Allow, flags, mask, who }
}

pub fn named_users_and_inheritance_are_kept_where_they_can_be(w: &World) {
    let (file, dir) = (w.create(&w.root(), "f").id, w.mkdir(&w.root(), "d"));
    let read = AceMask::READ_DATA;
    let mut acl = Acl::from_mode(0o600, false);
    acl.entries.insert(1, allow(AceWho::User(4242), read, AceFlags::empty()));
    let done = w.store.set_acl(&w.cred, &file, &acl);
    if w.store.capabilities().acls == AclSupport::Mode {
        assert_eq!(done, Err(StoreError::NotSupported));
        assert_eq!(w.store.acl(&file).unwrap(), Acl::from_mode(0o644, false));
        return skipped("only modes here");
    }
    done.unwrap();
    assert_eq!(w.store.getattr(&file).unwrap().mode & 0o777, 0o640, "the mask counts as group");
    let kept = w.store.acl(&file).unwrap();
    assert_eq!(acl.as_kept(false).unwrap(), kept, "it can be told before it is set");
    let entry = kept.entries.iter().find(|ace| ace.who == AceWho::User(4242)).unwrap();
    assert!(entry.kind == AceKind::Allow && entry.mask.contains(read));
    w.store.set_acl(&w.cred, &file, &kept).unwrap();
    assert_eq!(w.store.acl(&file).unwrap(), kept);
    if w.store.capabilities().acls == AclSupport::Posix && is_root() {
        let (friend, stranger) = (Cred::new(4242, 4242), Cred::new(4243, 4243));
        let rights = |cred| w.store.access(cred, &file, AccessMask::READ).unwrap();
        assert_eq!((rights(&friend), rights(&stranger).is_empty()), (AccessMask::READ, true));
    }
    let inherit = AceFlags::FILE_INHERIT | AceFlags::DIRECTORY_INHERIT | AceFlags::INHERIT_ONLY;
    let mut acl = Acl::from_mode(0o700, true);
    acl.entries.push(allow(AceWho::Owner, read, inherit));
    acl.entries.push(allow(AceWho::NamedGroup(77), read, inherit));
    w.store.set_acl(&w.cred, &dir, &acl).unwrap();
    let child = w.create(&dir, "child").id;
    let inherited = w.store.acl(&child).unwrap();
    let group = inherited.entries.iter().find(|ace| ace.who == AceWho::NamedGroup(77)).unwrap();
    assert!(group.mask.contains(read));
    let kept = w.store.acl(&dir).unwrap();
    assert_eq!(acl.as_kept(true).unwrap(), kept);
    assert!(kept.entries.iter().any(|ace| ace.flags == inherit));
    w.store.set_acl(&w.cred, &dir, &Acl::from_mode(0o700, true)).unwrap();
    assert_eq!(w.store.acl(&dir).unwrap(), Acl::from_mode(0o700, true), "nothing is inherited now");
}

fn posix(entries: &[(PosixTag, u8)]) -> PosixAcl {
    let entries: Vec<_> = entries.iter().map(|&(tag, bits)| PosixEntry { tag, bits }).collect();
    PosixAcl::from_entries(&entries).unwrap()
}

pub fn posix_lists_keep_their_masks_and_follow_the_mode(w: &World) {
    use PosixTag::{Group, Mask, NamedGroup, Other, Owner, User};
    let (file, dir) = (w.create(&w.root(), "f").id, w.mkdir(&w.root(), "d"));
    let set = |id: &FileId, lists: &PosixAcls| w.store.set_posix_acls(&w.cred, id, lists);
    let mode = |id: &FileId| w.store.getattr(id).unwrap().mode & 0o777;
    set(&file, &PosixAcls::from_mode(0o604)).unwrap();
    assert_eq!(mode(&file), 0o604);
    assert_eq!(w.store.posix_acls(&file), Ok(PosixAcls::from_mode(0o604)));
    let default = Some(PosixAcl::from_mode(0o700));
    let handed_down = PosixAcls { default, ..PosixAcls::from_mode(0o600) };
    assert_eq!(set(&file, &handed_down), Err(StoreError::Invalid));
    let list = |mask| {
        let named = [(User(4242), 6), (Group, 4), (NamedGroup(77), 5)];
        let all = [(Owner, 6)].into_iter().chain(named).chain([(Mask, mask), (Other, 0)]);
        PosixAcls { access: posix(&all.collect::<Vec<_>>()), default: None }
    };
    let done = set(&file, &list(4));
    if w.store.capabilities().acls == AclSupport::Mode {
        assert_eq!(done, Err(StoreError::NotSupported));
        assert_eq!(mode(&file), 0o604);
        return skipped("only modes here");
    }
    done.unwrap();
    assert_eq!((mode(&file), w.store.posix_acls(&file)), (0o640, Ok(list(4))));
    // A change of the mode changes the mask, and the entries come to life again.
    let change = SetAttr { mode: Some(0o670), ..SetAttr::default() };
    w.store.setattr(&w.cred, &file, &change, None).unwrap();
    assert_eq!(w.store.posix_acls(&file), Ok(list(7)));
    if is_root() {
        let friend = Cred::new(4242, 4242);
        let rights =
            || w.store.access(&friend, &file, AccessMask::READ | AccessMask::MODIFY).unwrap();
        assert_eq!(rights(), AccessMask::READ | AccessMask::MODIFY);
        set(&file, &list(4)).unwrap();
        assert_eq!(rights(), AccessMask::READ);
        if w.cred.uid != 0 {
            let refused = w.store.set_posix_acls(&friend, &file, &list(7));
            assert_eq!(refused, Err(StoreError::NotOwner));
        }
    }
    let lists = PosixAcls { default: Some(list(6).access), ..PosixAcls::from_mode(0o700) };
    set(&dir, &lists).unwrap();
    assert_eq!(w.store.posix_acls(&dir), Ok(lists));
    let child = w.create(&dir, "child").id;
    assert_eq!(w.store.posix_acls(&child).unwrap().access.entries().len(), 6);
    set(&dir, &PosixAcls::from_mode(0o700)).unwrap();
    assert_eq!(w.store.posix_acls(&dir), Ok(PosixAcls::from_mode(0o700)));
}
