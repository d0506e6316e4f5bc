//! Behaviour of file content, attributes and named attributes.

use super::*;
use dafs_mem::VolatileSlice;
use dafs_store::*;

pub fn content_reads_back(w: &World) {
    let file = w.create(&w.root(), "f").file;
    assert_eq!(read(&*file, 0, 10), Ok(vec![]));
    assert_eq!(write(&*file, 0, b"hello, world"), Ok(12));
    assert_eq!(write(&*file, 7, b"stores"), Ok(6));
    assert_eq!(read(&*file, 0, 100).unwrap(), b"hello, stores");
    assert_eq!(read(&*file, 5, 3).unwrap(), b", s");
    assert_eq!(read(&*file, 13, 5), Ok(vec![]));
    assert_eq!(read(&*file, 1 << 40, 5), Ok(vec![]));
    // There is no data, at any distance from the end.
    for offset in [1 << 63, (1 << 63) - 1, (1 << 63) - 3, u64::MAX] {
        assert_eq!(read(&*file, offset, 5).unwrap(), b"");
    }
    assert_eq!(write(&*file, u64::MAX, b"x"), Err(StoreError::FileTooBig));
    assert_eq!(file.attr().unwrap().size, 13);
}

pub fn vectors_scatter_and_gather(w: &World) {
    let file = w.create(&w.root(), "f").file;
    let mut parts: Vec<Vec<u8>> = (0..1500).map(|i| vec![i as u8; i % 7]).collect();
    let whole = parts.concat();
    let views: Vec<_> = parts.iter_mut().map(|part| VolatileSlice::from_mut(part)).collect();
    let wrote = file.write_at(&views, 3, Stability::Data, Wait::Allowed);
    assert_eq!(wrote, Ok(whole.len()));
    let mut back: Vec<Vec<u8>> = (0..1500).map(|i| vec![0xee; (i + 3) % 7]).collect();
    let views: Vec<_> = back.iter_mut().map(|part| VolatileSlice::from_mut(part)).collect();
    let got = file.read_at(&views, 3, Wait::Allowed).unwrap();
    assert_eq!(got, whole.len().min(back.iter().map(Vec::len).sum()));
    assert_eq!(back.concat()[..got], whole[..got]);
}

pub fn far_writes_leave_holes(w: &World) {
    let file = w.create(&w.root(), "f").file;
    let far = 5 << 30;
    assert_eq!(write(&*file, far, b"end"), Ok(3));
    let attr = file.attr().unwrap();
    assert_eq!(attr.size, far + 3);
    if w.store.capabilities().holes {
        assert!(attr.space_used < 1 << 20, "{}", attr.space_used);
    }
    assert_eq!(read(&*file, 1 << 20, 4096).unwrap(), vec![0; 4096]);
    file.set_size(2).unwrap();
    file.set_size(6).unwrap();
    assert_eq!(read(&*file, 0, 10).unwrap(), [0; 6]);
}

pub fn stability_and_waiting_do_not_change_content(w: &World) {
    let created = w.create(&w.root(), "f");
    for (at, stability) in
        [Stability::Unstable, Stability::Data, Stability::File].iter().enumerate()
    {
        let mut bytes = *b"x";
        let views = [VolatileSlice::from_mut(&mut bytes)];
        assert_eq!(created.file.write_at(&views, at as u64, *stability, Wait::Allowed), Ok(1));
    }
    let mut bytes = *b"yy";
    let views = [VolatileSlice::from_mut(&mut bytes)];
    match created.file.write_at(&views, 3, Stability::Unstable, Wait::Never) {
        Ok(2) => {}
        Err(StoreError::WouldBlock) => assert_eq!(write(&*created.file, 3, b"yy"), Ok(2)),
        other => panic!("{other:?}"),
    }
    created.file.commit(0, 0).unwrap();
    created.file.commit(1, 2).unwrap();
    for advice in [
        CacheAdvice::WillNeed,
        CacheAdvice::Sequential,
        CacheAdvice::Random,
        CacheAdvice::Normal,
        CacheAdvice::Keep,
        CacheAdvice::LeaveFirst,
        CacheAdvice::DontNeed,
    ] {
        for (offset, len) in [(0, 0), (1, 2), (4, 1 << 40), (1 << 40, 5)] {
            created.file.advise(offset, len, advice).unwrap();
        }
        let advised = created.file.advise(u64::MAX, 1, advice);
        assert_eq!(advised, Err(StoreError::Invalid), "{advice:?}");
    }
    let mut bytes = [0; 8];
    match created.file.read_at(&[VolatileSlice::from_mut(&mut bytes)], 0, Wait::Never) {
        Ok(5) => assert_eq!(&bytes[..5], b"xxxyy"),
        Err(StoreError::WouldBlock) => {}
        other => panic!("{other:?}"),
    }
    assert_eq!(read(&*created.file, 0, 9).unwrap(), b"xxxyy");
}

pub fn opens_keep_to_their_mode(w: &World) {
    let created = w.create(&w.root(), "f");
    let none = OpenMode { read: false, write: false };
    assert_eq!(w.store.open(&w.cred, &created.id, none).err(), Some(StoreError::Invalid));
    let reader = w.store.open(&w.cred, &created.id, READ).unwrap();
    assert_eq!(write(&*reader, 0, b"x"), Err(StoreError::Access));
    assert_eq!(reader.set_size(0), Err(StoreError::Access));
    let writer = w.store.open(&w.cred, &created.id, WRITE).unwrap();
    assert_eq!(write(&*writer, 0, b"x"), Ok(1));
    assert_eq!(read(&*writer, 0, 1), Err(StoreError::Access));
    assert_eq!((reader.id(), read(&*reader, 0, 1).unwrap()), (created.id, b"x".to_vec()));
}

pub fn attributes_change_one_by_one_and_together(w: &World) {
    let id = w.create(&w.root(), "f").id;
    let before = w.store.getattr(&id).unwrap();
    let set = |change: SetAttr| w.store.setattr(&w.cred, &id, &change, None);
    let attr = set(SetAttr { size: Some(1000), ..SetAttr::default() }).unwrap();
    assert_eq!((attr.size, attr.mode, attr.kind), (1000, 0o644, Kind::Regular));
    let attr = set(SetAttr { mode: Some(0o4711), ..SetAttr::default() }).unwrap();
    assert_eq!((attr.size, attr.mode), (1000, 0o4711));
    let early = SetTime::To(TimeSpec { seconds: -10, nanoseconds: 999_999_999 });
    let early = match set(SetAttr { mtime: Some(early), ..SetAttr::default() }) {
        Err(StoreError::Invalid) => {
            skipped("no times before 1970 on this file system");
            10
        }
        done => done.unwrap().mtime.seconds,
    };
    let times = [(1_000_000_000, 5), (early, 999_999_999)];
    let [atime, mtime] = times.map(|(seconds, nanoseconds)| TimeSpec { seconds, nanoseconds });
    let all = SetAttr {
        mode: Some(0o600),
        uid: Some(before.uid),
        gid: Some(before.gid),
        size: Some(7),
        atime: Some(SetTime::To(atime)),
        mtime: Some(SetTime::To(mtime)),
    };
    let attr = set(all).unwrap();
    assert_eq!((attr.size, attr.mode, attr.atime, attr.mtime), (7, 0o600, atime, mtime));
    assert_eq!(attr, w.store.getattr(&id).unwrap());
    let attr = set(SetAttr { mtime: Some(SetTime::Now), ..SetAttr::default() }).unwrap();
    assert_eq!(attr.atime, atime);
    assert!(attr.mtime.seconds > 1_600_000_000);
    assert_ne!(attr.change, before.change);
    let odd = TimeSpec { seconds: 0, nanoseconds: 1_000_000_000 };
    let bad = SetAttr { atime: Some(SetTime::To(odd)), ..SetAttr::default() };
    assert_eq!(set(bad), Err(StoreError::Invalid));
    let huge = SetAttr { size: Some(u64::MAX), ..SetAttr::default() };
    assert_eq!(set(huge), Err(StoreError::FileTooBig));
}

pub fn sizes_change_through_an_open(w: &World) {
    let created = w.create(&w.root(), "f");
    let other = w.create(&w.root(), "g");
    let cut = SetAttr { size: Some(5), mode: Some(0o400), ..SetAttr::default() };
    let attr = w.store.setattr(&w.cred, &created.id, &cut, Some(&*created.file)).unwrap();
    assert_eq!((attr.size, attr.mode), (5, 0o400));
    // The open still may, with any mode.
    let cut = SetAttr { size: Some(3), ..SetAttr::default() };
    let attr = w.store.setattr(&w.cred, &created.id, &cut, Some(&*created.file)).unwrap();
    assert_eq!(attr.size, 3);
    let wrong = w.store.setattr(&w.cred, &created.id, &cut, Some(&*other.file));
    assert_eq!(wrong, Err(StoreError::Invalid));
    let reader = w.store.open(&w.cred, &created.id, READ).unwrap();
    let refused = w.store.setattr(&w.cred, &created.id, &cut, Some(&*reader));
    assert_eq!(refused, Err(StoreError::Access));
}

pub fn every_mode_bit_survives(w: &World) {
    for (at, bits) in
        [0, 0o7777, 0o4755, 0o2711, 0o1777, 0o6000, 0o111, 0o222, 0o444].iter().enumerate()
    {
        let attr = SetAttr { mode: Some(*bits), ..SetAttr::default() };
        let name = format!("file{at}");
        let how = CreateHow::Guarded;
        let made =
            w.store.create(&w.cred, &w.root(), name.as_bytes(), how, &attr, READ_WRITE).unwrap();
        assert_eq!(made.attr.mode, *bits, "{bits:o}");
        let dir = w.make(&w.root(), &format!("dir{at}"), NewObject::Directory, &attr).unwrap();
        assert_eq!(dir.attr.mode, *bits, "{bits:o}");
        let fifo = w.make(&w.root(), &format!("fifo{at}"), NewObject::Fifo, &attr).unwrap();
        assert_eq!(fifo.attr.mode, *bits, "{bits:o}");
        let again = SetAttr { mode: Some(0o7777 ^ bits), ..SetAttr::default() };
        let attr = w.store.setattr(&w.cred, &dir.id, &again, None).unwrap();
        assert_eq!(attr.mode, 0o7777 ^ bits, "{bits:o}");
    }
}

pub fn symlinks_have_times_but_no_mode(w: &World) {
    let link = NewObject::Symlink(b"nowhere/at all");
    let made = w.make(&w.root(), "l", link, &SetAttr::default()).unwrap();
    assert_eq!((made.attr.kind, made.attr.size), (Kind::Symlink, 14));
    let time = TimeSpec { seconds: 77, nanoseconds: 0 };
    let change =
        SetAttr { mode: Some(0o600), mtime: Some(SetTime::To(time)), ..SetAttr::default() };
    let attr = w.store.setattr(&w.cred, &made.id, &change, None).unwrap();
    assert_eq!((attr.mtime, attr.mode), (time, made.attr.mode));
    assert_eq!(w.store.readlink(&w.cred, &made.id).unwrap(), b"nowhere/at all");
    let cut = SetAttr { size: Some(0), ..SetAttr::default() };
    assert_eq!(w.store.setattr(&w.cred, &made.id, &cut, None), Err(StoreError::Invalid));
}

pub fn a_new_owner_counts_also_when_it_is_the_old_one(w: &World) {
    let bits = SetAttr { mode: Some(0o6755), ..SetAttr::default() };
    let how = CreateHow::Guarded;
    let file = w.store.create(&w.cred, &w.root(), b"f", how, &bits, READ_WRITE).unwrap();
    let dir = w.make(&w.root(), "d", NewObject::Directory, &bits).unwrap();
    let (uid, gid) = (Some(file.attr.uid), Some(file.attr.gid));
    let owners = [(uid, gid), (uid, None), (None, gid)];
    for (uid, gid) in owners {
        w.store.setattr(&w.cred, &file.id, &bits, None).unwrap();
        let again = SetAttr { uid, gid, ..SetAttr::default() };
        let set = |id| w.store.setattr(&w.cred, id, &again, None).unwrap();
        let before = w.store.getattr(&file.id).unwrap();
        assert_eq!((before.mode, set(&file.id).mode), (0o6755, 0o755));
        assert_eq!(set(&dir.id).mode, 0o6755, "that of a directory is not for running it");
        // The clock of a file system has ticks.
        let moved = (0..100_000).any(|_| set(&file.id).ctime > before.ctime);
        assert!(moved, "{again:?}");
        assert_ne!(w.store.getattr(&file.id).unwrap().change, before.change);
    }
}

/// Even if the owner is not a member of it.
pub fn an_owner_may_name_the_present_group(w: &World) {
    if w.cred.uid == 0 || !is_root() {
        return;
    }
    let id = w.create(&w.root(), "f").id;
    let set = |cred: &Cred, change: SetAttr| w.store.setattr(cred, &id, &change, None);
    let none = SetAttr::default();
    let others = SetAttr { gid: Some(w.cred.gid + 1), ..none };
    set(&Cred::new(0, 0), others).unwrap();
    set(&w.cred, SetAttr { mode: Some(0o4755), ..none }).unwrap();
    assert_eq!(set(&w.cred, others).unwrap().mode, 0o755);
    let another = SetAttr { gid: Some(w.cred.gid + 2), ..none };
    assert_eq!(set(&w.cred, another), Err(StoreError::NotOwner));
    let stranger = Cred::new(w.cred.uid + 1, w.cred.gid + 1);
    let uid = SetAttr { uid: Some(w.cred.uid), ..none };
    assert_eq!(set(&stranger, others), Err(StoreError::NotOwner));
    assert_eq!(set(&stranger, uid), Err(StoreError::NotOwner));
    assert_eq!(w.store.getattr(&id).unwrap().gid, w.cred.gid + 1);
}

pub fn rights_follow_the_mode(w: &World) {
    if w.cred.uid == 0 {
        return;
    }
    let all = AccessMask::all();
    let id = w.create(&w.root(), "f").id;
    let set = |id: &FileId, mode: u32| {
        let change = SetAttr { mode: Some(mode), ..SetAttr::default() };
        w.store.setattr(&w.cred, id, &change, None).unwrap();
        w.store.access(&w.cred, id, all).unwrap()
    };
    let write = AccessMask::MODIFY | AccessMask::EXTEND;
    assert_eq!(set(&id, 0o400), AccessMask::READ);
    assert_eq!(w.store.open(&w.cred, &id, WRITE).err(), Some(StoreError::Access));
    assert_eq!(set(&id, 0o200), write);
    assert_eq!(w.store.open(&w.cred, &id, READ).err(), Some(StoreError::Access));
    assert_eq!(set(&id, 0o100), AccessMask::EXECUTE);
    assert_eq!(set(&id, 0o077), AccessMask::empty());
    assert_eq!(w.store.access(&w.cred, &id, AccessMask::empty()), Ok(AccessMask::empty()));
    let dir = w.mkdir(&w.root(), "d");
    assert_eq!(set(&dir, 0o300), write | AccessMask::DELETE | AccessMask::LOOKUP);
    let listed = w.store.readdir(&w.cred, &dir, 0, false, &mut |_| true);
    assert_eq!(listed, Err(StoreError::Access));
    w.create(&dir, "x");
    assert_eq!(set(&dir, 0o400), AccessMask::READ);
    assert_eq!(w.lookup(&dir, "x"), Err(StoreError::Access));
    let mut seen = Vec::new();
    let end = w.store.readdir(&w.cred, &dir, 0, true, &mut |entry| {
        seen.push((entry.name.to_vec(), entry.object));
        true
    });
    assert_eq!((end, seen), (Ok(true), vec![(b"x".to_vec(), None)]));
    assert_eq!(set(&dir, 0o500), AccessMask::READ | AccessMask::LOOKUP);
    assert_eq!(w.remove(&dir, "x").err(), Some(StoreError::Access));
    set(&dir, 0o700);
}

pub fn named_attributes_behave_as_files(w: &World) {
    let base = w.create(&w.root(), "f");
    let dir = match w.store.attr_dir(&w.cred, &base.id) {
        Ok(dir) => dir,
        Err(StoreError::NotSupported) => {
            return skipped("no user.* attributes on this file system");
        }
        Err(error) => panic!("{error}"),
    };
    assert_eq!(w.store.getattr(&dir).unwrap().kind, Kind::AttrDirectory);
    assert_eq!(w.names(&dir), Vec::<String>::new());
    let color = w.create(&dir, "color");
    assert_eq!((color.created, color.attr.kind, color.attr.size), (true, Kind::NamedAttr, 0));
    assert_eq!(write(&*color.file, 0, b"red"), Ok(3));
    assert_eq!(write(&*color.file, 5, b"blue"), Ok(4));
    assert_eq!(read(&*color.file, 1, 100).unwrap(), b"ed\0\0blue");
    color.file.commit(0, 0).unwrap();
    assert_eq!(w.lookup(&dir, "color"), Ok(color.id));
    assert_eq!(w.store.getattr(&color.id).unwrap().size, 9);
    assert_eq!(w.lookup(&dir, "shape"), Err(StoreError::NotFound));
    let cut = SetAttr { size: Some(2), ..SetAttr::default() };
    assert_eq!(w.store.setattr(&w.cred, &color.id, &cut, None).unwrap().size, 2);
    let open = w.store.open(&w.cred, &color.id, READ).unwrap();
    assert_eq!(read(&*open, 0, 10).unwrap(), b"re");
    for name in ["a", "b", "c"] {
        w.create(&dir, name);
    }
    let guarded = w.store.create(&w.cred, &dir, b"a", CreateHow::Guarded, &cut, READ_WRITE);
    assert_eq!(guarded.err(), Some(StoreError::Exists));
    let empty = SetAttr { size: Some(0), ..SetAttr::default() };
    let again = w.store.create(&w.cred, &dir, b"color", CreateHow::Unchecked, &empty, READ_WRITE);
    let again = again.unwrap();
    assert_eq!((again.created, again.attr.size, again.id), (false, 0, color.id));
    assert_eq!(w.names(&dir), ["a", "b", "c", "color"]);
    let mut paged = Vec::new();
    let mut cookie = 0;
    loop {
        let mut taken = None;
        let end = w.store.readdir(&w.cred, &dir, cookie, true, &mut |entry| {
            if taken.is_some() {
                return false;
            }
            assert_eq!(entry.object.unwrap().1.kind, Kind::NamedAttr);
            taken = Some((entry.name.to_vec(), entry.cookie));
            true
        });
        let Some((name, next)) = taken else { break };
        paged.push(name);
        cookie = next;
        if end.unwrap() {
            break;
        }
    }
    paged.sort();
    assert_eq!(paged, [&b"a"[..], b"b", b"c", b"color"]);
    w.remove(&dir, "color").unwrap();
    assert_eq!(w.lookup(&dir, "color"), Err(StoreError::NotFound));
    assert_eq!(w.remove(&dir, "color").err(), Some(StoreError::NotFound));
    assert_eq!(w.store.parent(&w.cred, &dir), Ok(base.id));
    let link = w.make(&w.root(), "l", NewObject::Symlink(b"f"), &SetAttr::default()).unwrap();
    assert_eq!(w.store.attr_dir(&w.cred, &link.id), Err(StoreError::NotSupported));
    let (how, sized) = (CreateHow::Guarded, SetAttr { size: Some(3), ..SetAttr::default() });
    let shut = OpenMode { read: false, write: false };
    let refused = w.store.create(&w.cred, &dir, b"sized", how, &sized, shut);
    assert_eq!(refused.err(), Some(StoreError::Invalid));
    assert_eq!(w.lookup(&dir, "sized"), Err(StoreError::NotFound), "a refused open leaves nothing");
    let made = w.store.create(&w.cred, &dir, b"sized", how, &sized, READ).unwrap();
    assert_eq!((made.attr.size, read(&*made.file, 0, 9).unwrap()), (3, vec![0; 3]));
    let sub = w.make(&dir, "sub", NewObject::Directory, &SetAttr::default());
    assert_eq!(sub.err(), Some(StoreError::NotSupported));
}
