//! Data that clients write at the data servers is visible to the others, and the reverse.

use super::harness::*;
use dafs_testkit::{Cached, eventually};
use dafs_wire::dafs::*;

/// Writes all of a file stripe by stripe, each at its data server.
fn write_stripes(data: &mut [Peer], place: &Place, file: File, bytes: &[u8]) {
    for (stripe, part) in bytes.chunks(UNIT).enumerate() {
        let offset = stripe * UNIT;
        let at = place.at(offset);
        let written = data[at].write(place.component(at, file), offset, part, Stability::Unstable);
        let written = written.unwrap();
        assert_eq!((written.count as usize, written.committed), (part.len(), Stability::Unstable));
        assert_eq!(data[at].commit(place.component(at, file)), written.verifier);
    }
}

fn stripes_by_hand(place: Where) {
    let cluster = Cluster::start(place, 1);
    let mut client = cluster.client("one");
    let file = client.peer.open(b"f");
    let place = client.layout_soon(file, LayoutMode::ReadWrite);
    assert_eq!(
        (place.kind, place.components.len(), place.servers.len()),
        (LayoutKind::Stripes, 3, 3)
    );
    let mut data = client.data(&place);
    let bytes = pattern(5 * UNIT + 10);
    write_stripes(&mut data, &place, file, &bytes);
    // A writer learns how far it has written, also without a commit.
    assert_eq!(client.peer.size(file), bytes.len() as u64);
    let beyond = client.commit_layout(file, &place, bytes.len() + 1);
    assert_eq!(beyond, Err(Status::Inval), "nobody wrote so far");
    assert_eq!(client.commit_layout(file, &place, bytes.len()), Ok(bytes.len() as u64));
    assert_eq!(client.peer.size(file), bytes.len() as u64);
    // A client without layouts reads the same through the server.
    let mut plain = cluster.deaf("plain");
    let other = plain.open(b"f");
    assert!(plain.read_all(other) == bytes);
    // A read ends at the end of its stripe and of the file. A hole at the end of a stripe reads as
    // zeros.
    let last = 5 * UNIT;
    let at = place.at(last);
    let own = place.component(at, file);
    assert_eq!(data[at].read(own, last, 100).unwrap(), (bytes[last..].to_vec(), true));
    plain.write(other, 9 * UNIT, b"end", Stability::DataSync).unwrap();
    let (at, hole) = (place.at(6 * UNIT), 6 * UNIT);
    let read = data[at].read(place.component(at, file), hole, 100).unwrap();
    assert_eq!(read, (vec![0; 100], false));
    let at = place.at(9 * UNIT);
    let read = data[at].read(place.component(at, file), 9 * UNIT, 100).unwrap();
    assert_eq!(read, (b"end".to_vec(), true));
    // A write that requests stability with attributes is answered with stability without them.
    let written = data[at].write(place.component(at, file), 9 * UNIT, b"END", Stability::FileSync);
    assert_eq!(written.unwrap().committed, Stability::DataSync);
    assert_eq!(plain.read(other, 9 * UNIT, 3).unwrap().0, b"END");
    assert_eq!(client.give_back(file, place.state_id, place.seqid), Status::Ok);
    assert_eq!(client.give_back(file, place.state_id, place.seqid), Status::StaleStateId);
    cluster.stop();
}

#[test]
fn a_client_writes_stripes_by_itself_and_others_read_them() {
    stripes_by_hand(Where::Local);
}

#[test]
fn the_same_at_data_servers_of_other_machines() {
    stripes_by_hand(Where::Remote);
}

#[test]
fn direct_transfers_are_judged_piece_by_piece() {
    let cluster = Cluster::start(Where::Local, 1);
    let mut client = cluster.client("one");
    let file = client.peer.open(b"f");
    let place = client.layout_soon(file, LayoutMode::ReadWrite);
    let mut data = client.data(&place);
    let bytes = pattern(UNIT);
    let at = place.at(0);
    let own = place.component(at, file);
    let memory = data[at].client.memory(2 * UNIT);
    memory.set(&bytes);
    let buffers = [memory.direct(0, 1000), memory.direct(1000, UNIT as u32 - 1000)];
    let write = WriteDirect {
        fh: own.fh,
        state_id: own.id,
        offset: 0,
        byte_count: UNIT as u32,
        stable: Stability::FileSync,
        cache_hint: HintWord::NONE,
        direct_checksum: Checksum::ZERO,
        buffers: Seq::new(&buffers),
    };
    let answer = data[at].call(&Request::WriteDirect(write));
    let Ok(Reply::WriteDirect(reply)) = answer.reply() else { panic!("{answer:?}") };
    assert_eq!((reply.count as usize, reply.committed), (UNIT, Stability::DataSync));
    assert_eq!(client.commit_layout(file, &place, UNIT), Ok(UNIT as u64));
    let buffers = [memory.direct(UNIT as u64, UNIT as u32)];
    let read = ReadDirect {
        fh: own.fh,
        state_id: own.id,
        offset: 0,
        byte_count: UNIT as u32,
        cache_hint: HintWord::NONE,
        buffers: Seq::new(&buffers),
    };
    let answer = data[at].call(&Request::ReadDirect(read));
    let Ok(Reply::ReadDirect(reply)) = answer.reply() else { panic!("{answer:?}") };
    assert_eq!(reply.bytes_read as usize, UNIT);
    assert!(memory.bytes()[UNIT..] == bytes);
    let other = StateId([9; 8]);
    let strange = Request::WriteDirect(WriteDirect { state_id: other, ..write });
    assert_eq!(data[at].status(&strange), Status::XNoLayout);
    let strange = Request::ReadDirect(ReadDirect { state_id: other, ..read });
    assert_eq!(data[at].status(&strange), Status::XNoLayout);
    cluster.stop();
}

#[test]
fn hints_at_data_servers_reach_their_cache() {
    for hosts in [Where::Local, Where::Remote] {
        let cluster = Cluster::start(hosts, 2);
        let mut client = cluster.client("one");
        let file = client.peer.open(b"f");
        let place = client.layout_soon(file, LayoutMode::ReadWrite);
        let mut data = client.data(&place);
        let bytes = pattern(2 * UNIT);
        for (at, data) in data.iter_mut().enumerate() {
            let own = place.component(at, file);
            data.write(own, 0, &bytes, Stability::DataSync).unwrap();
        }
        assert_eq!(client.commit_layout(file, &place, bytes.len()), Ok(bytes.len() as u64));
        let locals: Vec<_> = cluster.components().iter().map(|path| Cached::of(path)).collect();
        assert_eq!(locals.len(), 2);
        locals.iter().for_each(Cached::drop_all);
        if locals.iter().any(|local| local.bytes() > 0) {
            println!("SKIPPED: the file system keeps everything in memory");
            return;
        }
        for (word, stays) in [(HintWord::NONE, true), (HintWord::DONE, false)] {
            for (at, data) in data.iter_mut().enumerate() {
                let own = place.component(at, file);
                let read = Request::ReadInline(ReadInline {
                    fh: own.fh,
                    state_id: own.id,
                    offset: 0,
                    byte_count: bytes.len() as u32,
                    cache_hint: word,
                });
                assert_eq!(data.call(&read).status(), Status::Ok);
            }
            eventually("the components stay or leave", || {
                locals.iter().all(|local| (local.bytes() > 0) == stays)
            });
        }
        cluster.stop();
    }
}

#[test]
fn copies_are_written_whole_on_each() {
    let cluster = Cluster::start(Where::Local, 2);
    let mut client = cluster.client("one");
    let file = client.peer.open(b"f");
    let place = client.layout_soon(file, LayoutMode::ReadWrite);
    assert_eq!(
        (place.kind, place.components.len(), place.servers.len()),
        (LayoutKind::Copies, 2, 2)
    );
    let mut data = client.data(&place);
    let bytes = pattern(3 * UNIT);
    for (at, data) in data.iter_mut().enumerate() {
        // The state-id of the layout is accepted as well as that of the open.
        let shown = if at == 0 { file } else { File { id: place.state_id, ..file } };
        let written = data.write(place.component(at, shown), 0, &bytes, Stability::DataSync);
        assert_eq!(written.unwrap().count as usize, bytes.len());
    }
    assert_eq!(client.commit_layout(file, &place, bytes.len()), Ok(bytes.len() as u64));
    for (at, data) in data.iter_mut().enumerate() {
        let (read, eof) = data.read(place.component(at, file), 0, bytes.len() + 1).unwrap();
        assert!(eof && read == bytes);
    }
    assert_eq!(client.give_back(file, place.state_id, place.seqid), Status::Ok);
    let mut plain = cluster.deaf("plain");
    let other = plain.open(b"f");
    assert!(plain.read_soon(other, bytes.len()) == bytes);
    cluster.stop();
}
