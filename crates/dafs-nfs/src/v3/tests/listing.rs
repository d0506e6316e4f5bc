//! READDIR and READDIRPLUS.

use super::*;
use dafs_wire::nfs3::{ReaddirArgs, ReaddirOk, ReaddirplusArgs, ReaddirplusOk};
use std::collections::BTreeMap;

type Page = (Vec<(Vec<u8>, u64)>, [u8; 8], bool, usize);

fn page(world: &World, cookie: u64, verifier: [u8; 8], count: u32) -> Result<Page, Status> {
    let root = world.root();
    let args = ReaddirArgs { dir: FileHandle(&root), cookie, verifier, count };
    let results = world.call(Procedure::Readdir, &args);
    match decode_results::<ReaddirOk<'_>, ObjectFailure>(&results).unwrap() {
        Ok(ok) => {
            let list = ok.entries.iter().map(|entry| (entry.name.to_vec(), entry.cookie));
            Ok((list.collect(), ok.verifier, ok.eof, results.len() - 4))
        }
        Err(failure) => Err(failure.status),
    }
}

fn page_plus(
    world: &World,
    (cookie, verifier): (u64, [u8; 8]),
    dir_count: u32,
    max_count: u32,
) -> Result<Page, Status> {
    let root = world.root();
    let args = ReaddirplusArgs { dir: FileHandle(&root), cookie, verifier, dir_count, max_count };
    let results = world.call(Procedure::Readdirplus, &args);
    match decode_results::<ReaddirplusOk<'_>, ObjectFailure>(&results).unwrap() {
        Ok(ok) => {
            for entry in ok.entries.iter() {
                let handle = entry.object.unwrap().0.to_vec();
                assert_eq!(entry.attributes, world.getattr(&handle).ok());
                assert_eq!(entry.attributes.map(|attr| attr.file_id), Some(entry.file_id));
            }
            let list = ok.entries.iter().map(|entry| (entry.name.to_vec(), entry.cookie));
            Ok((list.collect(), ok.verifier, ok.eof, results.len() - 4))
        }
        Err(failure) => Err(failure.status),
    }
}

fn full_world(count: usize) -> World {
    let world = World::new();
    (0..count).for_each(|n| drop(world.file(&format!("name-{n:04}"))));
    world
}

/// Reads all pages, and counts each name.
fn walk(mut next: impl FnMut(u64, [u8; 8]) -> Page) -> BTreeMap<Vec<u8>, u32> {
    let mut seen = BTreeMap::new();
    let (mut cookie, mut verifier) = (0, [0; 8]);
    loop {
        let (list, new_verifier, eof, _) = next(cookie, verifier);
        assert!(eof || !list.is_empty(), "no progress");
        for (name, at) in list {
            *seen.entry(name).or_default() += 1;
            cookie = at;
        }
        verifier = new_verifier;
        if eof {
            return seen;
        }
    }
}

#[test]
fn pages_of_every_size_show_every_name_once() {
    let world = full_world(60);
    let want: BTreeMap<Vec<u8>, u32> = (0..60)
        .map(|n| format!("name-{n:04}").into_bytes())
        .chain([b".".to_vec(), b"..".to_vec()])
        .map(|name| (name, 1))
        .collect();
    for count in [150, 200, 201, 1000, 4096, 65_536, u32::MAX] {
        let seen = walk(|cookie, verifier| {
            let page = page(&world, cookie, verifier, count).unwrap();
            assert!(page.3 <= count as usize, "{} bytes where {count} were asked for", page.3);
            page
        });
        assert_eq!(seen, want, "{count}");
        let seen = walk(|cookie, verifier| {
            let max_count = count.saturating_add(300);
            let page = page_plus(&world, (cookie, verifier), count, max_count).unwrap();
            assert!(page.3 <= max_count as usize);
            let names = page.0.iter().map(|(name, _)| readdir::entry_bytes(name));
            assert!(page.0.len() == 1 || names.sum::<usize>() <= count as usize);
            page
        });
        assert_eq!(seen, want, "{count}");
    }
}

#[test]
fn a_reactor_makes_few_listings_in_a_turn() {
    let mut world = full_world(300);
    let root = world.root();
    let (cookie, verifier, count) = (0, [0; 8], 20_000);
    let dir = FileHandle(&root);
    let plain = ReaddirArgs { dir, cookie, verifier, count: 300_000 };
    let plus = ReaddirplusArgs { dir, cookie, verifier, dir_count: count, max_count: count };
    let (plain, plus) = (bytes(&plain), bytes(&plus));
    for (procedure, args, most) in
        [(Procedure::Readdirplus, &plus, 2), (Procedure::Readdir, &plain, 60)]
    {
        world.sender.now_ns += 1;
        let here = (0..100).filter(|xid| {
            let (sender, args) = (world.sender.clone(), Args::plain(args));
            matches!(call(&world.shared, sender, *xid, procedure.number(), args), Answer::Reply(_))
        });
        let here = here.count();
        assert!((1..=most).contains(&here), "{here} of {procedure:?}");
    }
}

#[test]
fn limits_are_used_to_the_last_byte() {
    let world = full_world(3);
    let whole = page(&world, 0, [0; 8], u32::MAX).unwrap();
    assert_eq!(whole.0.len(), 5);
    let exact = page(&world, 0, [0; 8], whole.3 as u32).unwrap();
    assert_eq!((exact.0.len(), exact.2), (5, true));
    let less = page(&world, 0, [0; 8], whole.3 as u32 - 1).unwrap();
    assert_eq!((less.0.len(), less.2), (4, false));
}

#[test]
fn a_reply_too_small_for_an_entry_is_refused() {
    let world = full_world(1);
    for count in [0, 1, 100, 130] {
        assert_eq!(page(&world, 0, [0; 8], count), Err(Status::TooSmall), "{count}");
        let plus = page_plus(&world, (0, [0; 8]), u32::MAX, count);
        assert_eq!(plus, Err(Status::TooSmall), "{count}");
    }
    // A small limit for names alone still allows one entry.
    let (list, _, eof, _) = page_plus(&world, (0, [0; 8]), 0, 4096).unwrap();
    assert_eq!((list.len(), eof), (1, false));
}

#[test]
fn cookies_need_their_verifier_and_a_meaning() {
    let world = full_world(3);
    let (list, verifier, _, _) = page(&world, 0, [0; 8], 4096).unwrap();
    assert_eq!(list[0], (b".".to_vec(), 1));
    assert_eq!(list[1], (b"..".to_vec(), 2));
    for (at, (_, cookie)) in list.iter().enumerate() {
        let rest = page(&world, *cookie, verifier, 4096).unwrap().0;
        assert_eq!(rest, list[at + 1..]);
        assert_eq!(page(&world, *cookie, [0; 8], 4096), Err(Status::BadCookie));
    }
    // For an unknown cookie the server returns an error or the end. It returns no entry twice, and
    // does not panic.
    for cookie in [u64::MAX, 1 << 63, 1 << 40] {
        match page(&world, cookie, verifier, 4096) {
            Ok((list, _, eof, _)) => assert!(list.is_empty() && eof, "{cookie}"),
            Err(status) => assert_eq!(status, Status::BadCookie),
        }
    }
}

#[test]
fn names_that_go_do_not_disturb_a_listing() {
    let world = full_world(40);
    let root = world.root();
    let (list, verifier, _, _) = page(&world, 0, [0; 8], 600).unwrap();
    let (last, cookie) = list.last().unwrap().clone();
    world.remove(&root, std::str::from_utf8(&last).unwrap()).unwrap();
    let (rest, _, eof, _) = page(&world, cookie, verifier, 65_536).unwrap();
    assert!(eof);
    assert_eq!(list.len() + rest.len(), 42);
}

#[test]
fn only_directories_are_listed() {
    let world = World::new();
    let file = world.file("f");
    let args = ReaddirArgs { dir: FileHandle(&file), cookie: 0, verifier: [0; 8], count: 4096 };
    let failure = failure::<ObjectFailure>(&world.call(Procedure::Readdir, &args)).status;
    assert_eq!(failure, Status::NotDir);
}
