//! Records of results, with their bulk data.

use super::*;
use dafs_mem::Site;
use dafs_wire::rpc::{ReplyStatus, VersionRange};
use dafs_wire::xdr::Decoder;

fn record(reply: &Reply, skip: usize) -> Vec<u8> {
    let mut parts = Parts::new();
    reply.gather(skip, &mut parts);
    parts.iter().flat_map(|part| part.to_vec(Site::Inspect)).collect()
}

fn add_bulk(reply: &mut Reply, len_max: usize, data: &[u8]) {
    let mut bulk = reply.bulk(len_max).unwrap();
    bulk.view().copy_from(data, Site::Inspect);
    bulk.finish(data.len());
}

#[test]
fn results_with_bulk_data_are_one_record() {
    let mut reply = Reply::new();
    reply.encoder().u32(7);
    add_bulk(&mut reply, 4096, b"small"); // in the head
    reply.encoder().u32(8);
    let mark = reply.mark();
    add_bulk(&mut reply, 1 << 20, &[9; 70_001]); // in a block
    reply.encoder().u32(9);
    reply.truncate_to(mark);
    add_bulk(&mut reply, 1 << 20, &[5; 70_001]);
    reply.encoder().u32(10);
    let mut want = b"\0\0\0\x07small\0\0\0\0\0\0\x08".to_vec();
    want.extend_from_slice(&[5; 70_001]);
    want.extend_from_slice(b"\0\0\0\0\0\0\x0a");
    assert_eq!(reply.len(), want.len());
    assert_eq!(reply.to_bytes(), want);

    reply.seal(0x0102_0304);
    let all = record(&reply, 0);
    assert_eq!(all.len(), reply.record_bytes());
    let mark = FragmentMark::from_bytes(*all.first_chunk().unwrap());
    assert_eq!(mark, FragmentMark::whole(all.len() - 4).unwrap());
    let mut decoder = Decoder::new(&all[4..]);
    let header: ReplyHeader<'_> = decoder.value().unwrap();
    assert_eq!(header, ReplyHeader::accepted(0x0102_0304, AcceptStatus::Success));
    assert_eq!(decoder.rest(), want);
    for skip in [1, 28, 40, 41, 70_000, all.len() - 1, all.len()] {
        assert_eq!(record(&reply, skip), all[skip..]);
    }
    assert_eq!(Reply::from_bytes(&want).to_bytes(), want);
}

#[test]
fn bulk_space_that_is_not_finished_leaves_no_trace() {
    let mut reply = Reply::new();
    reply.encoder().u32(7);
    for len in [100, 100_000] {
        reply.bulk(len).unwrap().view().fill(1);
        add_bulk(&mut reply, len, b"");
    }
    assert_eq!(reply.to_bytes(), [0, 0, 0, 7]);
}

#[test]
fn a_head_that_has_grown_is_not_used_for_bulk_data() {
    let mut reply = Reply::new();
    (0..HEAD_BYTES).for_each(|_| reply.encoder().u32(1));
    add_bulk(&mut reply, 16, b"data");
    assert_eq!(reply.pieces.len(), 1);
    assert_eq!(reply.to_bytes()[4 * HEAD_BYTES..], *b"data");
}

#[test]
fn bytes_of_an_earlier_reply_stay_in_the_room() {
    let fill = || {
        let mut earlier = Reply::new();
        earlier.set_front(&[0xee; FRONT_BYTES_MAX]);
        assert_eq!(record(&earlier, 0).len(), FRAGMENT_MARK_BYTES + FRONT_BYTES_MAX);
    };
    fill();
    let mut plain = Reply::from_bytes(b"args");
    plain.seal(7);
    fill();
    let mut fronted = Reply::from_bytes(b"args");
    fronted.set_front(&[1; SUCCESS_HEADER_BYTES + 20]);
    fill();
    let whole = Reply::record(|encoder| encoder.u32(5));
    for (reply, len) in [(plain, 32), (fronted, 52), (whole, 8)] {
        let bytes = record(&reply, 0);
        assert_eq!((bytes.len(), reply.record_bytes()), (len, len));
        assert!(!bytes.contains(&0xee));
        let mut message = 0;
        reply.message(true, |part| {
            if let Part::Head(bytes) = part {
                message += bytes.len();
            }
        });
        assert_eq!(message, len - FRAGMENT_MARK_BYTES);
    }
}

#[test]
fn refusals_carry_their_status() {
    let range = VersionRange { low: 3, high: 4 };
    let rejection = Rejection::Accept(AcceptStatus::ProgramMismatch(range));
    let all = record(&Reply::refusal(&rejection.header(5)), 0);
    assert_eq!(all[..4], [0x80, 0, 0, 32]);
    let header: ReplyHeader<'_> = Decoder::new(&all[4..]).value().unwrap();
    assert_eq!(header.xid, 5);
    let ReplyStatus::Accepted { status, .. } = header.status else { panic!() };
    assert_eq!(status, AcceptStatus::ProgramMismatch(range));
}
