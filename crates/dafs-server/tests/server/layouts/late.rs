//! Late writes: they reach a data server long after their client has abandoned them.

use super::harness::*;
use dafs_wire::dafs::*;

/// A write of three bytes through the server.
type Write = fn(&mut Caller, File, usize, &[u8]);

fn inline(client: &mut Caller, file: File, offset: usize, data: &[u8], stable: Stability) {
    let answer = client.peer.patiently(&write_stable(file, offset as u64, data, stable));
    assert_eq!(written(&answer).count as usize, data.len());
}

fn unstable(client: &mut Caller, file: File, offset: usize, data: &[u8]) {
    inline(client, file, offset, data, Stability::Unstable);
}

fn stable(client: &mut Caller, file: File, offset: usize, data: &[u8]) {
    inline(client, file, offset, data, Stability::FileSync);
}

fn direct(client: &mut Caller, file: File, offset: usize, data: &[u8]) {
    let len = data.len() as u32;
    let memory = client.peer.client.memory_of(data);
    let buffers = [memory.direct(0, len)];
    let request = Request::WriteDirect(write_direct(file, offset as u64, len, &buffers));
    assert_eq!(written(&client.peer.patiently(&request)).count, len);
}

fn batch(client: &mut Caller, file: File, offset: usize, data: &[u8]) {
    let memory = client.peer.client.memory_of(data);
    let buffers = [memory.direct(0, data.len() as u32)];
    let chunks = [FileChunk {
        offset: offset as u64,
        byte_count: data.len() as u32,
        cache_hint: HintWord::NONE,
    }];
    let requests = [ReadWriteRequest {
        fh: file.fh,
        request_id: 1,
        state_id: file.id,
        rw_flag: ReadWrite::Write,
        chunks: Seq::new(&chunks),
        buffers: Seq::new(&buffers),
        direct_checksum: Checksum::ZERO,
    }];
    let requests = Seq::new(&requests);
    let batch = BatchSubmit { requests, usec_window: 0, num_completions: 0, synchronous: true };
    soon(|| {
        let answer = client.peer.call(&Request::BatchSubmit(batch));
        let Ok(Reply::BatchSubmit(reply)) = answer.reply() else { panic!("{answer:?}") };
        let done = reply.completions.iter().next().unwrap();
        if done.status == Status::Delay {
            return None;
        }
        assert_eq!((done.status, done.bytes_transferred as usize), (Status::Ok, data.len()));
        Some(())
    });
}

/// Writes over a session at a data server.
fn write(data: &mut Peer, file: File, offset: usize, bytes: &[u8]) -> Result<u32, Status> {
    soon(|| match data.write(file, offset, bytes, Stability::DataSync) {
        Err(Status::Delay) => None,
        done => Some(done.map(|reply| reply.count)),
    })
}

fn content(client: &mut Caller, file: File) -> Vec<u8> {
    client.peer.read_soon(file, 3)
}

const WRITES: [(&str, Write); 4] =
    [("inline", unstable), ("stable", stable), ("direct", direct), ("batch", batch)];

fn late_writes(place: Where) {
    let cluster = Cluster::start(place, 1);
    let mut client = cluster.client("late");
    let file = client.peer.open(b"f");
    stable(&mut client, file, 0, b"was");
    let place = client.layout_soon(file, LayoutMode::ReadWrite);
    let at = place.at(0);
    let own = place.component(at, file);
    let fresh = || Peer::with_ticket(place.servers[at], "late", &place.ticket).unwrap();
    for (how, through) in WRITES {
        let mut session = fresh();
        write(&mut session, own, 0, b"one").unwrap();
        assert_eq!(content(&mut client, file), b"one", "{how}");
        // Another write is on its way there, and its client has abandoned it.
        through(&mut client, file, 0, b"two");
        let late = write(&mut session, own, 0, b"old");
        assert_eq!((late, &*content(&mut client, file)), (Err(Status::XSessionOld), &b"two"[..]));
        // The old session may read, and a session that has begun since may write.
        assert_eq!(session.read_soon(own, 3), b"two");
        write(&mut fresh(), own, 0, b"six").unwrap();
        assert_eq!(content(&mut client, file), b"six", "{how}");
    }
    // A layout that was returned and granted again does not make the session younger.
    let mut session = fresh();
    write(&mut session, own, 0, b"one").unwrap();
    assert_eq!(client.give_back(file, place.state_id, place.seqid), Status::Ok);
    unstable(&mut client, file, 0, b"ten");
    client.layout_soon(file, LayoutMode::ReadWrite);
    let late = write(&mut session, own, 0, b"old");
    assert_eq!((late, &*content(&mut client, file)), (Err(Status::XSessionOld), &b"ten"[..]));
    cluster.stop();
}

#[test]
fn a_late_write_does_not_land_over_what_its_client_wrote_through_the_server_since() {
    late_writes(Where::Local);
}

#[test]
fn nor_does_it_at_data_servers_of_other_machines() {
    late_writes(Where::Remote);
}

#[test]
fn a_write_comes_after_what_was_sent_for_its_bytes_and_an_append_after_all() {
    let cluster = Cluster::start(Where::Local, 1);
    let mut client = cluster.client("late");
    let file = client.peer.open(b"f");
    let place = client.layout_soon(file, LayoutMode::ReadWrite);
    let mut data = client.data(&place);
    let mut refused = |client: &mut Caller| {
        let late = (0..3).map(|unit| {
            let at = place.at(unit * UNIT);
            let late = write(&mut data[at], place.component(at, file), unit * UNIT, b"old");
            late == Err(Status::XSessionOld)
        });
        let late: Vec<bool> = late.collect();
        data = client.data(&place);
        late
    };
    assert_eq!(refused(&mut client), [false; 3]);
    // Two pieces, on two data servers.
    unstable(&mut client, file, UNIT - 1, b"two");
    assert_eq!(refused(&mut client), [true, true, false]);
    // A session that has begun since may write.
    assert_eq!(refused(&mut client), [false; 3]);
    let append = Request::AppendInline(AppendInline {
        fh: file.fh,
        state_id: file.id,
        stable: Stability::FileSync,
        padded_to: None,
        cache_hint: HintWord::NONE,
        data: b"end",
    });
    assert_eq!(client.peer.patiently(&append).status(), Status::Ok);
    assert_eq!(refused(&mut client), [true; 3]);
    // Writes of another client do not matter.
    let mut other = cluster.client("other");
    let theirs = other.peer.open(b"f");
    unstable(&mut other, theirs, 0, b"two");
    assert_eq!(refused(&mut client), [false; 3]);
    cluster.stop();
}
