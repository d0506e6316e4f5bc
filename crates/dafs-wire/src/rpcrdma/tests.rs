//! Headers and private data: messages of the Linux client, round trips, hostile bytes.

use super::*;
use crate::xdr::{Encode, XdrError};
use proptest::collection::vec;
use proptest::prelude::*;
use smallvec::smallvec;

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

fn problem(words_of_header: &[u32]) -> HeaderProblem {
    Header::decode(&words(words_of_header)).unwrap_err().problem
}

const XID: u32 = 0x0e08_1fce;
const SEGMENT: Segment =
    Segment { handle: 0x9106_2e01, length: 0x1090, offset: 0x0e08_1fce_450b_c000 };

#[test]
fn the_null_call_of_linux() {
    let mut bytes = words(&[XID, 1, 0x80, 0, 0, 0, 0]);
    bytes.extend(words(&[XID, 0, 2, 0x0001_86a3, 4, 0, 0, 0, 0, 0]));
    let header = Header { xid: XID, credits: 128, body: Body::Message(Chunks::default()) };
    assert_eq!(Header::decode(&bytes), Ok((header.clone(), limits::HEADER_BYTES_MIN)));
    assert_eq!(header.encoded(), bytes[..28]);
}

#[test]
fn the_exchange_id_call_of_linux_has_a_reply_chunk() {
    let bytes = words(&[
        XID,
        1,
        0x80,
        0,
        0,
        0,
        1,
        1,
        0x9106_2e01,
        0x1090,
        0x0e08_1fce,
        0x450b_c000,
        XID,
        0,
    ]);
    let reply = Chunk { segments: smallvec![SEGMENT] };
    assert_eq!(reply.len(), 0x1090);
    let chunks = Chunks { reply: Some(reply), ..Chunks::default() };
    let header = Header { xid: XID, credits: 128, body: Body::Message(chunks) };
    assert_eq!(Header::decode(&bytes), Ok((header.clone(), 48)));
    assert_eq!(header.encoded(), bytes[..48]);
}

#[test]
fn all_lists_in_their_order() {
    let read = ReadSegment { position: 0x90, segment: SEGMENT };
    let write = Chunk { segments: smallvec![SEGMENT, SEGMENT] };
    let chunks = Chunks {
        reads: smallvec![read, read],
        writes: smallvec![write, Chunk::default()],
        reply: Some(Chunk::default()),
    };
    let header = Header { xid: 1, credits: 2, body: Body::NoMessage(chunks) };
    let segment = [0x9106_2e01, 0x1090, 0x0e08_1fce, 0x450b_c000];
    let lists: [&[u32]; 9] = [
        &[1, 1, 2, 1],
        &[1, 0x90],
        &segment,
        &[1, 0x90],
        &segment,
        &[0, 1, 2],
        &segment,
        &segment,
        &[1, 0, 0, 1, 0],
    ];
    assert_eq!(header.encoded(), words(&lists.concat()));
}

#[test]
fn errors_and_done_are_read() {
    let version = HeaderFault::Version { low: 1, high: 2 };
    for (body, tail) in [
        (Body::Done, &[3][..]),
        (Body::Error(version), &[4, 1, 1, 2]),
        (Body::Error(HeaderFault::Chunk), &[4, 2]),
    ] {
        let header = Header { xid: 7, credits: 9, body };
        let bytes = words(&[&[7, 1, 9], tail].concat());
        assert_eq!(header.encoded(), bytes);
        assert_eq!(Header::decode(&bytes), Ok((header, bytes.len())));
    }
}

#[test]
fn another_version_is_answered_with_ours() {
    for version in [0, 2, u32::MAX] {
        let error = Header::decode(&words(&[5, version])).unwrap_err();
        assert_eq!(error.xid, Some(5));
        assert_eq!(error.fault, Some(HeaderFault::Version { low: 1, high: 1 }));
        assert_eq!(error.problem, HeaderProblem::Version(version));
    }
}

#[test]
fn unknown_procedures_are_answered() {
    // RDMA_MSGP has two more words and then lists; none of it is decoded.
    for procedure in [2, 5, u32::MAX] {
        let error = Header::decode(&words(&[5, 1, 1, procedure, 0, 0, 0, 0, 0])).unwrap_err();
        assert_eq!((error.xid, error.fault), (Some(5), Some(HeaderFault::Chunk)));
        assert_eq!(error.problem, HeaderProblem::Procedure(procedure));
    }
}

#[test]
fn nothing_answers_a_broken_error_or_half_a_transaction() {
    let unknown = Header::decode(&words(&[5, 1, 1, 4, 3])).unwrap_err();
    assert_eq!((unknown.xid, unknown.fault), (Some(5), None));
    assert_eq!(unknown.problem, HeaderProblem::ErrorCode(3));
    let short = Header::decode(&words(&[5, 1, 1, 4, 1, 1])).unwrap_err();
    assert_eq!((short.xid, short.fault), (Some(5), None));
    let nothing = Header::decode(&[0, 0, 0]).unwrap_err();
    assert_eq!((nothing.xid, nothing.fault), (None, None));
}

#[test]
fn every_cut_of_a_header_is_refused() {
    let chunk = Chunk { segments: smallvec![SEGMENT] };
    let chunks = Chunks {
        reads: smallvec![ReadSegment { position: 0, segment: SEGMENT }],
        writes: smallvec![chunk.clone()],
        reply: Some(chunk),
    };
    let bytes = Header { xid: 5, credits: 1, body: Body::Message(chunks) }.encoded();
    for len in 4..bytes.len() {
        let error = Header::decode(&bytes[..len]).unwrap_err();
        assert_eq!((error.xid, error.fault), (Some(5), Some(HeaderFault::Chunk)));
        assert!(matches!(error.problem, HeaderProblem::Xdr(XdrError::Truncated { .. })));
    }
}

#[test]
fn lists_are_bounded() {
    let head = [5, 1, 1, 0];
    let reads = |count: usize| [&head[..], &[1, 0, 1, 1, 0, 0].repeat(count), &[0, 0, 0]].concat();
    assert!(Header::decode(&words(&reads(limits::SEGMENTS_MAX))).is_ok());
    assert_eq!(problem(&reads(limits::SEGMENTS_MAX + 1)), HeaderProblem::TooManySegments);
    // Chunks without segments are bounded too, and all lists share the bound.
    let writes = |count: usize| [&head[..], &[0], &[1, 0].repeat(count), &[0, 0]].concat();
    assert!(Header::decode(&words(&writes(limits::SEGMENTS_MAX))).is_ok());
    assert_eq!(problem(&writes(limits::SEGMENTS_MAX + 1)), HeaderProblem::TooManySegments);
    let mut both = reads(limits::SEGMENTS_MAX);
    both.truncate(both.len() - 2);
    both.extend([1, 0, 0, 0]);
    assert_eq!(problem(&both), HeaderProblem::TooManySegments);
    let mut reply = words(&[5, 1, 1, 0, 0, 0, 1, limits::SEGMENTS_MAX as u32]);
    reply.resize(reply.len() + limits::SEGMENTS_MAX * limits::SEGMENT_BYTES, 0);
    let error = Header::decode(&reply).unwrap_err();
    assert_eq!(error.problem, HeaderProblem::TooManySegments);
}

#[test]
fn counts_that_the_message_cannot_hold_are_refused() {
    for count in [2, 0x1000_0000, u32::MAX] {
        let message = [5, 1, 1, 0, 0, 1, count, 1, 1, 0, 0, 0, 0, 0];
        assert!(matches!(problem(&message), HeaderProblem::Xdr(XdrError::Truncated { .. })));
    }
    assert_eq!(problem(&[5, 1, 1, 0, 2, 0, 0]), HeaderProblem::Xdr(XdrError::NotBool(2)));
}

#[test]
fn the_largest_lengths_add_up() {
    let huge = Segment { handle: 0, length: u32::MAX, offset: u64::MAX };
    let chunk = Chunk { segments: smallvec![huge; limits::SEGMENTS_MAX - 1] };
    assert_eq!(chunk.len(), u64::from(u32::MAX) * (limits::SEGMENTS_MAX as u64 - 1));
    let chunks = Chunks { reply: Some(chunk), ..Chunks::default() };
    let header = Header { xid: 1, credits: 1, body: Body::NoMessage(chunks) };
    assert_eq!(Header::decode(&header.encoded()).unwrap().0, header);
    assert!(Chunk::default().is_empty());
}

#[test]
fn the_private_data_of_linux() {
    let bytes = [0xf6, 0xab, 0x0e, 0x18, 1, 1, 3, 3];
    let told = PrivateData { remote_invalidation: true, send_bytes: 4096, receive_bytes: 4096 };
    assert_eq!(PrivateData::find(&bytes), Some(told));
    assert_eq!(told.encode(), bytes);
    // A block of this implementation follows.
    assert_eq!(PrivateData::find(&[&bytes[..], b"SOFT\0\0\0\0"].concat()), Some(told));
    assert_eq!(PrivateData::find(&bytes[..7]), None);
    assert_eq!(PrivateData::find(&[0xf6, 0xab, 0x0e, 0x18, 2, 1, 3, 3]), None);
    assert_eq!(PrivateData::find(&[0xf6, 0xab, 0x0e, 0x19, 1, 1, 3, 3]), None);
    assert_eq!(PrivateData::find(&[]), None);
}

#[test]
fn private_data_rounds_down() {
    for (bytes, told) in [(0, 1024), (1023, 1024), (2047, 1024), (262_144, 262_144)] {
        let sent =
            PrivateData { remote_invalidation: false, send_bytes: bytes, receive_bytes: 1024 };
        assert_eq!(PrivateData::find(&sent.encode()).unwrap().send_bytes, told);
    }
    let most = PrivateData { remote_invalidation: false, send_bytes: 1, receive_bytes: u32::MAX };
    let read = PrivateData::find(&most.encode()).unwrap();
    assert_eq!(read.receive_bytes as usize, limits::INLINE_BYTES_MAX);
}

fn segments() -> impl Strategy<Value = Segment> {
    any::<(u32, u32, u64)>().prop_map(|(handle, length, offset)| Segment { handle, length, offset })
}

fn chunk() -> impl Strategy<Value = Chunk> {
    vec(segments(), 0..9).prop_map(|segments| Chunk { segments: segments.into() })
}

fn lists() -> impl Strategy<Value = Chunks> {
    let read = (any::<u32>(), segments())
        .prop_map(|(position, segment)| ReadSegment { position, segment });
    (vec(read, 0..9), vec(chunk(), 0..5), proptest::option::of(chunk())).prop_map(
        |(reads, writes, reply)| Chunks { reads: reads.into(), writes: writes.into(), reply },
    )
}

fn body() -> impl Strategy<Value = Body> {
    prop_oneof![
        lists().prop_map(Body::Message),
        lists().prop_map(Body::NoMessage),
        Just(Body::Done),
        Just(Body::Error(HeaderFault::Chunk)),
        any::<(u32, u32)>().prop_map(|(low, high)| Body::Error(HeaderFault::Version { low, high })),
    ]
}

proptest! {
    #[test]
    fn written_values_are_read_back(xid: u32, credits: u32, body in body(), message: Vec<u8>) {
        let header = Header { xid, credits, body };
        let mut bytes = header.encoded();
        prop_assert_eq!(bytes.len(), header.encoded_bytes());
        let len = bytes.len();
        bytes.extend(message);
        prop_assert_eq!(Header::decode(&bytes), Ok((header, len)));
    }

    #[test]
    fn small_words_reach_every_branch(tail in vec(0u32..6, 0..64)) {
        let bytes = words(&[&[7, 1], &tail[..]].concat());
        match Header::decode(&bytes) {
            Ok((header, len)) => prop_assert_eq!(header.encoded(), &bytes[..len]),
            Err(error) => prop_assert_eq!(error.xid, Some(7)),
        }
    }

    #[test]
    fn any_bytes_are_judged(bytes: Vec<u8>) {
        if let Ok((header, len)) = Header::decode(&bytes) {
            prop_assert_eq!(header.encoded(), &bytes[..len]);
        }
        if let Some(told) = PrivateData::find(&bytes) {
            prop_assert_eq!(PrivateData::find(&told.encode()), Some(told));
        }
    }
}
