//! Data: inline and direct, scattered, with checksums, with wrong buffers, interrupted.

use crate::common::*;
use dafs_dat::Access;
use dafs_wire::dafs::{
    self, AttrMask, Attributes, Checksum, DirectBuffer, Reply, Request, SessionOptions, Stability,
    StateId, Status, XattrHow, checksum, decode_entries_direct,
};

#[test]
fn inline_data_comes_back_and_reads_end_at_the_end() {
    let (mut world, client, file) = World::with_file(Setup::default());
    let data = pattern(20_000, 1);
    world.write(client, file, 0, &data);
    assert_eq!(world.read(client, file), data);
    // Shortened to the size of a reply (DAFS O57).
    let answer = world.call(client, &read_inline(file, 0, u32::MAX));
    let Ok(Reply::ReadInline(reply)) = answer.reply() else { panic!() };
    assert!(!reply.eof && reply.data.len() < 16_384 && reply.data.len() > 16_000);
    assert_eq!(reply.data, &data[..reply.data.len()]);
    for (offset, count, expected, eof) in
        [(19_990, 100, 10, true), (20_000, 5, 0, true), (1 << 62, 5, 0, true), (3, 0, 0, false)]
    {
        let answer = world.call(client, &read_inline(file, offset, count));
        let Ok(Reply::ReadInline(reply)) = answer.reply() else { panic!("{:?}", answer.status()) };
        assert_eq!((reply.data.len(), reply.eof), (expected, eof), "at {offset}");
    }
    world.end();
}

#[test]
fn a_padded_write_is_taken_from_where_it_was_agreed() {
    let mut world = World::new(Setup::default());
    let options = SessionOptions { inline_write_header_size: 200, ..SessionOptions::default() };
    let client = world.session_with(2, "a", 1, options);
    let file = world.open(client, b"f");
    let data = pattern(5000, 2);
    let padded = |padded_to| {
        Request::WriteInline(dafs::WriteInline {
            fh: file.fh,
            state_id: file.id,
            offset: 7,
            stable: Stability::Unstable,
            padded_to,
            cache_hint: dafs::HintWord::NONE,
            data: &data,
        })
    };
    assert_eq!(written(&world.call(client, &padded(Some(256)))).count, 5000);
    assert_eq!(&world.read(client, file)[7..], data);
    // Padding to another offset looks like data of another length.
    assert_eq!(world.status(client, &padded(Some(200))), Status::Inval);
    // A message may also end before that place.
    let Request::WriteInline(args) = padded(Some(136)) else { unreachable!() };
    let short = Request::WriteInline(dafs::WriteInline { data: &data[..8], ..args });
    assert_eq!(world.status(client, &short), Status::Inval);
    assert_eq!(world.status(client, &Request::Null), Status::Ok);
    world.end();
}

#[test]
fn direct_data_goes_through_scattered_buffers() {
    both_ways(|maps| {
        let (mut world, client, file) = World::with_file(Setup { maps, ..Setup::default() });
        let data = pattern(1_000_000, 3);
        let memory = world.clients[client].memory(1_100_000);
        memory.set(&data);
        let buffers = [
            memory.direct(0, 300_001),
            memory.direct(5, 0),
            memory.direct(300_001, 1),
            memory.direct(300_002, 699_998),
        ];
        let request = write_direct(file, 0, 1_000_000, &buffers);
        assert_eq!(written(&world.call(client, &Request::WriteDirect(request))).count, 1_000_000);
        let target = world.clients[client].memory(1_000_000);
        let back =
            [target.direct(0, 77), target.direct(77, 900_000), target.direct(900_077, 99_923)];
        let answer = world.call(client, &read_direct(file, 0, 1_000_000, &back));
        assert_eq!(read_done(&answer), (1_000_000, false, Checksum::ZERO));
        assert!(target.bytes() == data);
        // Buffers longer than the request, at the end of the file.
        let answer = world.call(client, &read_direct(file, 999_990, 50, &back));
        assert_eq!(read_done(&answer), (10, true, Checksum::ZERO));
        assert_eq!(target.bytes()[..10], data[999_990..]);
        assert_eq!(target.bytes()[10..77], data[10..77], "nothing behind the end was touched");
        let answer = world.call(client, &read_direct(file, 2_000_000, 50, &back));
        assert_eq!(read_done(&answer), (0, true, Checksum::ZERO));
        world.end();
    });
}

#[test]
fn impossible_lists_of_buffers_are_refused() {
    both_ways(|maps| {
        let (mut world, client, file) = World::with_file(Setup { maps, ..Setup::default() });
        world.write(client, file, 0, &pattern(1000, 4));
        let memory = world.clients[client].memory(4096);
        let short = [memory.direct(0, 10), memory.direct(10, 10)];
        assert_eq!(world.status(client, &read_direct(file, 0, 21, &short)), Status::Inval);
        let request = Request::WriteDirect(write_direct(file, 0, 21, &short));
        assert_eq!(world.status(client, &request), Status::Inval);
        assert_eq!(world.status(client, &read_direct(file, 0, 1, &[])), Status::Inval);
        let many = vec![memory.direct(0, 1); 65];
        assert_eq!(world.status(client, &read_direct(file, 0, 1, &many)), Status::Inval);
        let request = Request::WriteDirect(write_direct(file, 0, 1, &many));
        assert_eq!(world.status(client, &request), Status::Inval);
        let large = [memory.direct(0, u32::MAX), memory.direct(0, u32::MAX)];
        let request = Request::WriteDirect(write_direct(file, 0, (4 << 20) + 1, &large));
        assert_eq!(world.status(client, &request), Status::WriteTooBig);
        let answer = world.call(client, &read_direct(file, 0, 0, &[]));
        assert_eq!(read_done(&answer).0, 0);
        let answer = world.call(client, &Request::WriteDirect(write_direct(file, 0, 0, &[])));
        assert_eq!(written(&answer).count, 0);
        assert_eq!(world.read(client, file), pattern(1000, 4));
        world.end();
    });
}

#[test]
fn a_long_read_is_shortened() {
    let limits = dafs_engine::SessionLimits { transfer_bytes_max: 1 << 16, ..Default::default() };
    let (mut world, client, file) = World::with_file(Setup { limits, ..Setup::default() });
    world.write(client, file, 0, &pattern(100_000, 5));
    let memory = world.clients[client].memory(100_000);
    let answer = world.call(client, &read_direct(file, 0, 100_000, &[memory.direct(0, 100_000)]));
    assert_eq!(read_done(&answer), (1 << 16, false, Checksum::ZERO));
    world.end();
}

#[test]
fn forged_and_foreign_memory_ends_the_connection_and_nothing_else() {
    both_ways(|maps| {
        let mut world = World::new(Setup { maps, ..Setup::default() });
        let honest = world.session(2, "honest");
        let file = world.open(honest, b"f");
        world.write(honest, file, 0, &pattern(5000, 6));
        let secret = world.clients[honest].memory(4096);
        secret.set(b"secret");
        type Aim = Box<dyn Fn(&mut Client) -> DirectBuffer>;
        let mut aims: Vec<(&str, Aim)> = Vec::new();
        aims.push((
            "forged",
            Box::new(|c| {
                let own = c.memory(4096).direct(0, 100);
                DirectBuffer { context: own.context ^ 0x5555, ..own }
            }),
        ));
        aims.push(("past the end", Box::new(|c| c.memory(4096).direct(4000, 100))));
        aims.push(("before the start", Box::new(|c| c.memory(4096).direct(u64::MAX, 100))));
        aims.push((
            "wrapping",
            Box::new(|c| DirectBuffer { address: u64::MAX - 10, ..c.memory(4096).direct(0, 100) }),
        ));
        aims.push(("another domain", Box::new(|c| c.foreign_memory(4096).direct(0, 100))));
        let stolen = secret.direct(0, 100);
        aims.push(("another session", Box::new(move |_| stolen)));
        aims.push((
            "no right",
            Box::new(|c| c.memory_with(4096, Access::LOCAL_WRITE).direct(0, 100)),
        ));
        for (what, aim) in aims {
            for write in [false, true] {
                let thief = world.session(3, "thief");
                let own = world.open(thief, b"g");
                let buffer = [aim(&mut world.clients[thief])];
                world.write(thief, own, 0, &pattern(200, 7));
                let request = if write {
                    Request::WriteDirect(write_direct(own, 0, 100, &buffer))
                } else {
                    read_direct(own, 0, 100, &buffer)
                };
                // The reply to a read may be under way before the damage is found.
                let answer = world.try_call(thief, &request);
                assert!(!write || answer.is_none(), "{what}");
                world.settle();
                assert!(world.clients[thief].closed.is_some(), "{what}, write {write}");
            }
        }
        assert_eq!(secret.bytes()[..6], *b"secret");
        assert_eq!(world.read(honest, file), pattern(5000, 6));
        let other = world.open(honest, b"g");
        assert_eq!(world.read(honest, other), pattern(200, 7), "no stolen byte was written");
        assert_eq!(world.counts().connections, 1);
        assert_eq!(world.counts().chunks, 0);
        world.end();
    });
}

#[test]
fn direct_checksums_are_made_and_compared_before_anything_is_written() {
    both_ways(|maps| {
        let mut world = World::new(Setup { maps, ..Setup::default() });
        let client = world.session_with(2, "a", 1, CHECKED);
        let file = world.open(client, b"f");
        let data = pattern(600_001, 8);
        let memory = world.clients[client].memory(700_000);
        memory.set(&data);
        let buffers = [memory.direct(0, 300_000), memory.direct(300_000, 400_000)];
        let wrong = write_direct(file, 0, 600_001, &buffers);
        let writes = world.disk.writes();
        assert_eq!(world.status(client, &Request::WriteDirect(wrong)), Status::ChkSum);
        assert_eq!(world.disk.writes(), writes);
        assert!(world.read(client, file).is_empty());
        let right = dafs::WriteDirect { direct_checksum: checksum(&data), ..wrong };
        assert_eq!(written(&world.call(client, &Request::WriteDirect(right))).count, 600_001);
        assert!(world.read(client, file) == data);
        let target = world.clients[client].memory(700_000);
        let buffers = [target.direct(0, 1), target.direct(1, 699_999)];
        let answer = world.call(client, &read_direct(file, 0, 700_000, &buffers));
        assert_eq!(read_done(&answer), (600_001, true, checksum(&data)));
        world.end();
    });
}

/// Buffer space beyond the written bytes must not count: it is never fetched.
#[test]
fn a_checked_write_from_large_buffers_needs_room_for_its_bytes_alone() {
    both_ways(|maps| {
        let mut world = World::new(Setup { maps, ..Setup::default() });
        let client = world.session_with(2, "a", 1, CHECKED);
        let file = world.open(client, b"f");
        let memory = world.clients[client].memory(64 << 20);
        let data = pattern(1000, 9);
        memory.set(&data);
        let buffers = [memory.direct(0, 64 << 20)];
        let request = write_direct(file, 0, 1000, &buffers);
        let request = dafs::WriteDirect { direct_checksum: checksum(&data), ..request };
        assert_eq!(written(&world.call(client, &Request::WriteDirect(request))).count, 1000);
        world.end();
    });
}

/// There are more transfers at once than chunks. With checksums each needs all of its own at once.
#[test]
fn transfers_wait_their_turn_for_staging_and_all_complete() {
    for checked in [false, true] {
        for slow in [false, true] {
            let mut world = World::new(Setup::default());
            let options = if checked { CHECKED } else { SessionOptions::default() };
            let client = world.session_with(2, "a", 1, options);
            world.clients[client].desired = 64;
            for _ in 0..8 {
                world.status(client, &Request::Null);
            }
            assert!(world.clients[client].credits >= 40);
            let size = 4 << 20;
            let data = pattern(size, 10);
            let memory = world.clients[client].memory_of(&data);
            let target = world.clients[client].memory(size);
            let files: Vec<File> = (0..6u8).map(|n| world.open(client, &[b'a' + n])).collect();
            world.disk.set_slow(slow);
            let sum = if checked { checksum(&data) } else { Checksum::ZERO };
            let from = [memory.direct(0, size as u32)];
            let mut streams = Vec::new();
            for file in &files {
                let request = write_direct(*file, 0, size as u32, &from);
                let request = dafs::WriteDirect { direct_checksum: sum, ..request };
                for _ in 0..2 {
                    streams.push(world.clients[client].post(&Request::WriteDirect(request)));
                }
            }
            for stream in streams {
                let answer = world.wait(client, stream).unwrap();
                assert_eq!(written(&answer).count, size as u32, "checked {checked} slow {slow}");
            }
            let to = [target.direct(0, size as u32)];
            let mut streams = Vec::new();
            for file in files.iter().chain(&files) {
                let request = read_direct(*file, 0, size as u32, &to);
                streams.push(world.clients[client].post(&request));
            }
            for stream in streams {
                let answer = world.wait(client, stream).unwrap();
                assert_eq!(read_done(&answer), (size as u32, false, sum));
            }
            assert!(target.bytes() == data);
            world.settle();
            assert_eq!((world.counts().chunks, world.counts().pending), (0, 0));
            world.end();
        }
    }
}

/// A reply with "end of file" where the disk has failed would make a client truncate its copy.
#[test]
fn an_error_in_the_middle_of_a_read_is_no_end_of_file() {
    both_ways(|maps| {
        for slow in [false, true] {
            let (mut world, client, file) = World::with_file(Setup { maps, ..Setup::default() });
            world.write(client, file, 0, &pattern(400_000, 11));
            world.disk.set_bad_from(5000);
            world.disk.set_slow(slow);
            let answer = world.call(client, &read_inline(file, 0, 8000));
            let Ok(Reply::ReadInline(reply)) = answer.reply() else { panic!() };
            assert_eq!((reply.data.len(), reply.eof), (5000, false), "inline, slow {slow}");
            assert_eq!(world.status(client, &read_inline(file, 5000, 8000)), Status::Io);
            let memory = world.clients[client].memory(400_000);
            let buffers = [memory.direct(0, 400_000)];
            let answer = world.call(client, &read_direct(file, 0, 400_000, &buffers));
            assert_eq!(read_done(&answer), (5000, false, Checksum::ZERO), "direct, slow {slow}");
            assert_eq!(world.status(client, &read_direct(file, 5000, 9, &buffers)), Status::Io);
            world.disk.set_bad_from(300_000);
            let answer = world.call(client, &read_direct(file, 0, 400_000, &buffers));
            assert_eq!(read_done(&answer), (300_000, false, Checksum::ZERO));
            world.end();
        }
    });
}

#[test]
fn a_write_says_how_much_was_written() {
    both_ways(|maps| {
        for slow in [false, true] {
            let (mut world, client, file) = World::with_file(Setup { maps, ..Setup::default() });
            world.disk.set_bad_from(300_000);
            world.disk.set_slow(slow);
            let memory = world.clients[client].memory(600_000);
            let buffers = [memory.direct(0, 600_000)];
            let request = write_direct(file, 0, 600_000, &buffers);
            assert_eq!(written(&world.call(client, &Request::WriteDirect(request))).count, 300_000);
            let request = write_direct(file, 300_000, 600_000, &buffers);
            assert_eq!(world.status(client, &Request::WriteDirect(request)), Status::Io);
            let answer = world.call(client, &write_inline(file, 299_000, &[1; 4000]));
            assert_eq!(written(&answer).count, 1000);
            assert_eq!(world.status(client, &write_inline(file, 300_000, &[1; 10])), Status::Io);
            assert_eq!(
                world.status(client, &write_inline(file, u64::MAX - 3, &[1; 10])),
                Status::Io
            );
            world.disk.set_bad_from(u64::MAX);
            let status = world.status(client, &write_inline(file, u64::MAX - 3, &[1; 10]));
            assert!(!status.is_ok(), "beyond the longest file");
            world.end();
        }
    });
}

#[test]
fn stable_writes_and_commits_carry_the_verifier() {
    both_ways(|maps| {
        let (mut world, client, file) = World::with_file(Setup { maps, ..Setup::default() });
        let memory = world.clients[client].memory_of(&pattern(4096, 12));
        let buffers = [memory.direct(0, 4096)];
        for stable in [Stability::Unstable, Stability::DataSync, Stability::FileSync] {
            let request = dafs::WriteDirect { stable, ..write_direct(file, 0, 4096, &buffers) };
            let reply = written(&world.call(client, &Request::WriteDirect(request)));
            assert_eq!((reply.count, reply.committed), (4096, stable));
            assert_eq!(reply.verifier, WRITE_VERIFIER);
            let reply = written(&world.call(client, &write_stable(file, 4096, b"tail", stable)));
            assert_eq!((reply.count, reply.committed), (4, stable));
        }
        let commit = Request::Commit(dafs::Commit { fh: file.fh, offset: 0, count: 0 });
        let answer = world.call(client, &commit);
        let Ok(Reply::Commit(reply)) = answer.reply() else { panic!() };
        assert_eq!(reply.verifier, WRITE_VERIFIER);
        world.end();
    });
}

#[test]
fn attributes_listings_and_links_go_direct_into_small_buffers() {
    for order in [dafs::ByteOrder::Big, dafs::ByteOrder::Little] {
        let mut world = World::new(Setup::default());
        let client = world.connect_as(2, 1, order);
        world.call(client, &connect_auth("a", 1, SessionOptions::default()));
        let root = world.root();
        let file = world.open(client, b"f");
        let memory = world.clients[client].memory(8192);
        let wanted = AttrMask::OBJECT_SIZE.union(AttrMask::MODE).union(AttrMask::OWNER);
        let get = |byte_count| {
            Request::GetAttrDirect(dafs::GetAttrDirect {
                fh: file.fh,
                attributes: wanted,
                buffer: DirectBuffer { byte_count, ..memory.direct(0, 0) },
            })
        };
        assert_eq!(world.status(client, &get(200)), Status::Ok);
        let bytes = memory.bytes();
        let attributes = Attributes::decode_direct(&bytes[..200], order).unwrap();
        assert_eq!((attributes.mode, attributes.object_size), (Some(0o666), Some(0)));
        for short in [0, 1, 30] {
            assert_eq!(world.status(client, &get(short)), Status::TooSmall);
        }
        let set = Attributes { mode: Some(0o600), object_size: Some(77), ..Attributes::default() };
        let mut area = [0; 256];
        let len = set.encode_direct(&mut area, order).unwrap();
        memory.set(&area);
        let mut request = dafs::SetAttrDirect {
            fh: file.fh,
            state_id: file.id,
            direct_checksum: Checksum::ZERO,
            buffer: memory.direct(0, len as u32),
        };
        let answer = world.call(client, &Request::SetAttrDirect(request));
        let Ok(Reply::SetAttrDirect(reply)) = answer.reply() else { panic!() };
        assert_eq!(reply.attributes, set.valid());
        let now = crate::common::attributes(&mut world, client, file.fh).unwrap();
        assert_eq!((now.mode, now.size), (0o600, 77));
        request.buffer.byte_count = 9;
        assert_eq!(world.status(client, &Request::SetAttrDirect(request)), Status::Inval);
        request.buffer.byte_count = 0;
        assert_eq!(world.status(client, &Request::SetAttrDirect(request)), Status::Inval);
        request.buffer.byte_count = u32::MAX;
        assert_eq!(world.status(client, &Request::SetAttrDirect(request)), Status::Inval);
        for name in [b"one".as_slice(), b"two", b"three"] {
            world.open(client, name);
        }
        let small: Vec<DirectBuffer> = (0..50).map(|n| memory.direct(n * 10, 10)).collect();
        let list = |buffers, maxcount| {
            Request::ReadDirDirect(dafs::ReadDirDirect {
                fh: root,
                cookie: 0,
                cookieverf: dafs::Verifier::default(),
                dircount: 0,
                maxcount,
                attributes: AttrMask::FILE_ID,
                buffers: dafs::Seq::new(buffers),
            })
        };
        let answer = world.call(client, &list(&small, 4096));
        let Ok(Reply::ReadDirDirect(reply)) = answer.reply() else { panic!() };
        assert!(reply.eof);
        let bytes = memory.bytes();
        let entries = decode_entries_direct(&bytes, order).unwrap();
        let mut names: Vec<&[u8]> = entries.iter().map(|entry| entry.name).collect();
        names.sort_unstable();
        assert_eq!(names, [b"f".as_slice(), b"one", b"three", b"two"]);
        assert_eq!(world.status(client, &list(&small, 10)), Status::ReadDirNoSpc);
        assert_eq!(world.status(client, &list(&small[..1], 4096)), Status::ReadDirNoSpc);
        assert_eq!(world.status(client, &list(&[], 4096)), Status::ReadDirNoSpc);
        let link = Request::Create(dafs::Create {
            dir: root,
            name: b"link",
            object: dafs::NewObject::Symlink(b"where/to"),
            attributes: Attributes::default(),
        });
        let answer = world.call(client, &link);
        let Ok(Reply::Create(made)) = answer.reply() else { panic!("{:?}", answer.status()) };
        let text = Request::ReadLinkDirect(dafs::ReadLinkDirect {
            fh: made.fh,
            buffer: memory.direct(0, 64),
        });
        assert_eq!(world.status(client, &text), Status::Ok);
        let bytes = memory.bytes();
        assert_eq!(dafs::decode_text_direct(&bytes[..64], order).unwrap(), b"where/to");
        world.settle();
        assert_eq!(world.counts().chunks, 0);
        world.end();
    }
}

#[test]
fn extended_attributes_are_set_whole_listed_and_read() {
    let mut world = World::new(Setup::default());
    let client = world.session_with(2, "a", 1, CHECKED);
    let file = world.open(client, b"f");
    let memory = world.clients[client].memory(100 << 10);
    let order = world.clients[client].order;
    let mut change = |value: Option<&[u8]>, how| {
        let attributes = Attributes {
            x_xattr_name: Some(b"a/b"),
            x_xattr_value: value,
            x_xattr_how: Some(how),
            ..Attributes::default()
        };
        let mut area = vec![0; 100 << 10];
        let len = attributes.encode_direct(&mut area, order).unwrap();
        memory.set(&area[..len]);
        let request = dafs::SetAttrDirect {
            fh: file.fh,
            state_id: StateId::ZERO,
            direct_checksum: checksum(&area[..len]),
            buffer: memory.direct(0, len as u32),
        };
        world.status(client, &Request::SetAttrDirect(request))
    };
    assert_eq!(change(Some(b"1"), XattrHow::Replace), Status::NoEnt);
    assert_eq!(change(Some(b"1"), XattrHow::Create), Status::Ok);
    assert_eq!(change(Some(b"2"), XattrHow::Create), Status::Exist);
    assert_eq!(change(Some(&[7; 70_000]), XattrHow::Either), Status::FBig);
    let get = |name: &'static [u8]| {
        let buffer = memory.direct(0, 64);
        Request::XGetXattr(dafs::XGetXattr { fh: file.fh, buffer, name })
    };
    assert_eq!(world.status(client, &get(b"a/b")), Status::Ok);
    assert_eq!(dafs::decode_text_direct(&memory.bytes(), order).unwrap(), b"1", "it is whole");
    assert_eq!(world.status(client, &get(b"a")), Status::NoEnt);
    let attributes = AttrMask::X_XATTR_NAMES | AttrMask::MODE;
    let list = Request::GetAttrInline(dafs::GetAttrInline { fh: file.fh, attributes });
    let answer = world.call(client, &list);
    let Ok(Reply::GetAttrInline(told)) = answer.reply() else { panic!() };
    let names: Vec<&[u8]> = told.attributes.x_xattr_names.unwrap().iter().collect();
    assert_eq!(names, [b"a/b"]);
    world.end();
}

#[test]
fn direct_attributes_under_checksums_are_checked() {
    let mut world = World::new(Setup::default());
    let client = world.session_with(2, "a", 1, CHECKED);
    let file = world.open(client, b"f");
    let memory = world.clients[client].memory(4096);
    let order = world.clients[client].order;
    let set = Attributes { mode: Some(0o600), ..Attributes::default() };
    let mut area = [0; 256];
    let len = set.encode_direct(&mut area, order).unwrap();
    memory.set(&area);
    let wrong = dafs::SetAttrDirect {
        fh: file.fh,
        state_id: file.id,
        direct_checksum: Checksum([1; 4]),
        buffer: memory.direct(0, len as u32),
    };
    assert_eq!(world.status(client, &Request::SetAttrDirect(wrong)), Status::ChkSum);
    let right = dafs::SetAttrDirect { direct_checksum: checksum(&area[..len]), ..wrong };
    assert_eq!(world.status(client, &Request::SetAttrDirect(right)), Status::Ok);
    assert_eq!(attributes(&mut world, client, file.fh).unwrap().mode, 0o600);
    let get = Request::GetAttrDirect(dafs::GetAttrDirect {
        fh: file.fh,
        attributes: AttrMask::MODE,
        buffer: memory.direct(0, 200),
    });
    let answer = world.call(client, &get);
    let Ok(Reply::GetAttrDirect(reply)) = answer.reply() else { panic!() };
    assert_ne!(reply.direct_checksum, Checksum::ZERO);
    world.end();
}

#[test]
fn data_and_holes_are_found() {
    use dafs::SeekWhat::{Data, Hole};
    let (mut world, client, file) = World::with_file(Setup::default());
    const MIB: u64 = 1 << 20;
    world.write(client, file, MIB, &pattern(5, 1));
    world.write(client, file, 3 * MIB, &pattern(5, 1));
    for id in [file.id, StateId::ZERO] {
        let mut seek = |offset, what| {
            let request = Request::XSeek(dafs::XSeek { fh: file.fh, state_id: id, offset, what });
            let answer = world.call(client, &request);
            match answer.reply() {
                Ok(Reply::XSeek(reply)) => Ok((reply.offset, reply.eof)),
                _ => Err(answer.status()),
            }
        };
        assert_eq!(seek(0, Data), Ok((MIB, false)));
        assert_eq!(seek(0, Hole), Ok((0, false)));
        let (hole, eof) = seek(MIB, Hole).unwrap();
        assert!(hole > MIB + 4 && hole < 3 * MIB && !eof, "{hole}");
        assert_eq!(seek(hole, Data), Ok((3 * MIB, false)));
        assert_eq!(seek(3 * MIB, Hole), Ok((3 * MIB + 5, true)), "the end is a hole");
        for what in [Data, Hole] {
            assert_eq!(seek(3 * MIB + 5, what), Err(Status::Nxio));
        }
    }
    let size = Attributes { object_size: Some(9 * MIB), ..Attributes::default() };
    let args = dafs::SetAttrInline { fh: file.fh, state_id: file.id, attributes: size };
    assert_eq!(world.status(client, &Request::SetAttrInline(args)), Status::Ok);
    let at = dafs::XSeek { fh: file.fh, state_id: file.id, offset: 8 * MIB, what: Data };
    let answer = world.call(client, &Request::XSeek(at));
    assert_eq!(answer.reply(), Ok(Reply::XSeek(dafs::XSeekReply { offset: 9 * MIB, eof: true })));
    world.end();
}
