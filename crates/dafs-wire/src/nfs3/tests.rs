//! Messages laid out by hand from RFC 1813, and properties of the codecs.

use super::*;
use crate::xdr::{Decode, Decoder, Encode, Encoder};
use proptest::prelude::*;

/// The bytes of big-endian words.
fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

#[track_caller]
fn check_golden<'a, T: Decode<'a> + Encode + PartialEq + std::fmt::Debug>(
    bytes: &'a [u8],
    value: T,
) {
    let mut decoder = Decoder::new(bytes);
    assert_eq!(T::decode(&mut decoder).as_ref(), Ok(&value));
    assert_eq!(decoder.finish(), Ok(()));
    assert_eq!(value.encoded(), bytes);
    for len in 0..bytes.len() {
        assert!(T::decode(&mut Decoder::new(&bytes[..len])).is_err(), "cut at {len}");
    }
}

const ATTRIBUTES: Attributes = Attributes {
    file_type: FileType::Directory,
    mode: 0o755,
    links: 3,
    uid: 1000,
    gid: 100,
    size: 0x1_0000_0002,
    used: 4096,
    device: (8, 1),
    file_system: 0x0a0b_0c0d_0102_0304,
    file_id: 99,
    atime: Time { seconds: 1, nanoseconds: 2 },
    mtime: Time { seconds: 3, nanoseconds: 4 },
    ctime: Time { seconds: 5, nanoseconds: 6 },
};

const ATTRIBUTE_WORDS: [u32; 21] = [
    2,
    0o755,
    3,
    1000,
    100,
    1,
    2,
    0,
    4096,
    8,
    1,
    0x0a0b_0c0d,
    0x0102_0304,
    0,
    99,
    1,
    2,
    3,
    4,
    5,
    6,
];

#[test]
fn procedures_have_their_numbers() {
    for (number, procedure) in (0..).zip(Procedure::ALL) {
        assert_eq!(procedure.number(), number);
        assert_eq!(Procedure::from_number(number), Some(procedure));
    }
    assert_eq!(Procedure::from_number(22), None);
    assert_eq!(Procedure::from_number(u32::MAX), None);
}

#[test]
fn attributes_are_84_bytes_in_the_order_of_the_rfc() {
    check_golden(&words(&ATTRIBUTE_WORDS), ATTRIBUTES);
    let mut other = words(&ATTRIBUTE_WORDS);
    for bad in [0, 8, u32::MAX] {
        other[..4].copy_from_slice(&bad.to_be_bytes());
        assert!(Attributes::decode(&mut Decoder::new(&other)).is_err());
    }
}

#[test]
fn names_are_padded_and_handles_bounded() {
    let bytes = b"\0\0\0\x02\xaa\xbb\0\0\0\0\0\x05hello\0\0\0";
    check_golden(bytes, DirOpArgs { dir: FileHandle(&[0xaa, 0xbb]), name: b"hello" });
    let mut long = words(&[65]);
    long.extend([0; 68]);
    assert!(FileHandle::decode(&mut Decoder::new(&long)).is_err());
}

#[test]
fn setattr_has_a_union_for_each_attribute_and_for_the_guard() {
    let new = SetAttributes {
        mode: Some(0o600),
        size: Some(7),
        atime: SetTime::ToServer,
        mtime: SetTime::ToClient(Time { seconds: 10, nanoseconds: 20 }),
        ..SetAttributes::default()
    };
    let object = FileHandle(&[1, 2, 3, 4]);
    let guard = Some(Time { seconds: 8, nanoseconds: 9 });
    let mut bytes = words(&[4, 0x0102_0304, 1, 0o600, 0, 0, 1, 0, 7, 1, 2, 10, 20]);
    let without = [bytes.clone(), words(&[0])].concat();
    bytes.extend(words(&[1, 8, 9]));
    check_golden(&bytes, SetattrArgs { object, new, guard });
    check_golden(&without, SetattrArgs { object, new, guard: None });
}

#[test]
fn reads_and_writes() {
    let file = FileHandle(b"file");
    let head = [&words(&[4])[..], b"file"].concat();
    let read = [head.clone(), words(&[1, 2, 3])].concat();
    check_golden(&read, ReadArgs { file, offset: 0x1_0000_0002, count: 3 });
    let write = [head, words(&[0, 5, 3, 2, 3]), b"abc\0".to_vec()].concat();
    let args =
        WriteArgs { file, offset: 5, count: 3, stable: Stability::FileSync, data: b"abc".into() };
    check_golden(&write, args);
    let mut bad = write.clone();
    bad[23] = 3;
    assert!(WriteArgs::decode(&mut Decoder::new(&bad)).is_err());
    // Data that claims to be longer than the record.
    let mut bad = write;
    bad[24..28].copy_from_slice(&u32::MAX.to_be_bytes());
    assert!(WriteArgs::decode(&mut Decoder::new(&bad)).is_err());
}

#[test]
fn creates_and_special_files() {
    let place = DirOpArgs { dir: FileHandle(b"dir1"), name: b"n" };
    let head = b"\0\0\0\x04dir1\0\0\0\x01n\0\0\0".to_vec();
    let nothing = SetAttributes::default();
    let exclusive = [head.clone(), words(&[2]), b"verifier".to_vec()].concat();
    check_golden(&exclusive, CreateArgs { place, how: CreateHow::Exclusive(*b"verifier") });
    let guarded = [head.clone(), words(&[1, 0, 0, 0, 0, 0, 0])].concat();
    check_golden(&guarded, CreateArgs { place, how: CreateHow::Guarded(nothing) });
    let bad = [head.clone(), words(&[3, 0, 0, 0, 0, 0, 0])].concat();
    assert!(CreateArgs::decode(&mut Decoder::new(&bad)).is_err());
    let object = MknodObject::CharDevice { attributes: nothing, device: (1, 3) };
    let device = [head.clone(), words(&[4, 0, 0, 0, 0, 0, 0, 1, 3])].concat();
    check_golden(&device, MknodArgs { place, object });
    let fifo = [head.clone(), words(&[7, 0, 0, 0, 0, 0, 0])].concat();
    check_golden(&fifo, MknodArgs { place, object: MknodObject::Fifo(nothing) });
    let regular = [head, words(&[1])].concat();
    check_golden(&regular, MknodArgs { place, object: MknodObject::Other(1) });
}

#[test]
fn a_read_head_is_what_the_result_begins_with() {
    let data = [7; 5];
    let ok =
        ReadOk { attributes: Some(ATTRIBUTES), count: 5, eof: true, data: data.as_slice().into() };
    let mut whole = Vec::new();
    encode_ok(&mut Encoder::new(&mut whole), &ok);
    assert_eq!(whole[..READ_HEAD_BYTES], read_head(&ATTRIBUTES, 5, true));
    assert_eq!(decode_results::<ReadOk<'_>, ObjectFailure>(&whole), Ok(Ok(ok)));
}

#[test]
fn directories_are_linked_lists() {
    let head = [words(&[0, 1]), words(&ATTRIBUTE_WORDS), b"verifier".to_vec()].concat();
    let bytes = [
        head,
        words(&[1, 0, 17, 1]),
        b"a\0\0\0".to_vec(),
        words(&[0, 3, 1]),
        words(&ATTRIBUTE_WORDS),
        words(&[1, 4]),
        b"hand".to_vec(),
        words(&[1, 0, 18, 1]),
        b"b\0\0\0".to_vec(),
        words(&[0, 4, 0, 0]),
        words(&[0, 1]),
    ]
    .concat();
    let result = decode_results::<ReaddirplusOk<'_>, ObjectFailure>(&bytes).unwrap().unwrap();
    let first = EntryPlus {
        file_id: 17,
        name: b"a",
        cookie: 3,
        attributes: Some(ATTRIBUTES),
        object: Some(FileHandle(b"hand")),
    };
    let second = EntryPlus { file_id: 18, name: b"b", cookie: 4, attributes: None, object: None };
    assert_eq!(result.entries.iter().collect::<Vec<_>>(), [first, second]);
    assert!(result.eof);
    let mut again = Vec::new();
    encode_ok(&mut Encoder::new(&mut again), &result);
    assert_eq!(again, bytes);
}

#[test]
fn failures_carry_what_their_procedure_says() {
    let mut bytes = Vec::new();
    encode_failure(&mut Encoder::new(&mut bytes), Status::Jukebox, &RenameResult::default());
    assert_eq!(bytes, words(&[10008, 0, 0, 0, 0]));
    let failure = Failure { status: Status::Jukebox, body: RenameResult::default() };
    assert_eq!(decode_results::<RenameResult, RenameResult>(&bytes), Ok(Err(failure)));
    let unknown_status = words(&[3]);
    assert!(decode_results::<GetattrOk, NoFailureBody>(&unknown_status).is_err());
    let trailing = words(&[2, 0]);
    assert!(decode_results::<GetattrOk, NoFailureBody>(&trailing).is_err());
}

/// If bytes decode to a value, the value encodes to the same length and decodes to the same value.
fn check_bytes<'a, T: Encode + Decode<'a> + PartialEq + std::fmt::Debug>(
    bytes: &'a [u8],
) -> Result<(), TestCaseError> {
    let mut decoder = Decoder::new(bytes);
    let Ok(value) = T::decode(&mut decoder) else { return Ok(()) };
    let again = value.encoded();
    prop_assert_eq!(again.len(), decoder.position());
    // The padding is the only part that may differ.
    let same = again.iter().zip(bytes).filter(|(a, b)| a != b).all(|(a, _)| *a == 0);
    prop_assert!(same);
    Ok(())
}

/// Words that are often small, as counts and union numbers are.
fn any_bytes() -> impl Strategy<Value = Vec<u8>> {
    let word = prop_oneof![4 => 0..3u32, 2 => 0..9u32, 1 => any::<u32>()];
    proptest::collection::vec(word, 0..64).prop_map(|list| words(&list))
}

prop_compose! {
    fn any_set_attributes()(
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        times: [Option<Option<(u32, u32)>>; 2],
    ) -> SetAttributes {
        let [atime, mtime] = times.map(|time| match time {
            None => SetTime::Keep,
            Some(None) => SetTime::ToServer,
            Some(Some((seconds, nanoseconds))) => SetTime::ToClient(Time { seconds, nanoseconds }),
        });
        SetAttributes { mode, uid, gid, size, atime, mtime }
    }
}

/// Checks that a value is what its bytes decode to.
macro_rules! check {
    ($type:ident, $value:expr) => {{
        let value: $type<'_> = $value;
        let bytes = value.encoded();
        let mut decoder = Decoder::new(&bytes);
        prop_assert_eq!($type::decode(&mut decoder), Ok(value));
        prop_assert_eq!(decoder.remaining(), 0);
    }};
}

proptest! {
    #[test]
    fn any_bytes_decode_to_what_encodes_alike(bytes in any_bytes()) {
        check_bytes::<SetattrArgs<'_>>(&bytes)?;
        check_bytes::<CreateArgs<'_>>(&bytes)?;
        check_bytes::<MknodArgs<'_>>(&bytes)?;
        check_bytes::<SymlinkArgs<'_>>(&bytes)?;
        check_bytes::<WriteArgs<'_>>(&bytes)?;
        check_bytes::<RenameArgs<'_>>(&bytes)?;
        check_bytes::<LinkArgs<'_>>(&bytes)?;
        check_bytes::<ReaddirplusArgs<'_>>(&bytes)?;
        check_bytes::<ReaddirOk<'_>>(&bytes)?;
        check_bytes::<ReaddirplusOk<'_>>(&bytes)?;
        check_bytes::<CreateOk<'_>>(&bytes)?;
        check_bytes::<LinkResult>(&bytes)?;
        check_bytes::<WriteOk>(&bytes)?;
        check_bytes::<FsInfoOk>(&bytes)?;
        check_bytes::<PathConfOk>(&bytes)?;
    }

    #[test]
    fn arguments_survive_the_wire(
        handle in proptest::collection::vec(any::<u8>(), 0..=64),
        name in proptest::collection::vec(any::<u8>(), 0..300),
        attributes in any_set_attributes(),
        guard: Option<(u32, u32)>,
        device: (u32, u32),
        numbers: (u64, u32, u32),
        verifier: [u8; 8],
    ) {
        let object = FileHandle(&handle);
        let place = DirOpArgs { dir: object, name: &name };
        let guard = guard.map(|(seconds, nanoseconds)| Time { seconds, nanoseconds });
        check!(SetattrArgs, SetattrArgs { object, new: attributes, guard });
        check!(CreateArgs, CreateArgs { place, how: CreateHow::Unchecked(attributes) });
        check!(MkdirArgs, MkdirArgs { place, attributes });
        check!(SymlinkArgs, SymlinkArgs { place, attributes, target: name.as_slice().into() });
        let object_made = MknodObject::BlockDevice { attributes, device };
        check!(MknodArgs, MknodArgs { place, object: object_made });
        check!(RenameArgs, RenameArgs { from: place, to: DirOpArgs { name: &handle, ..place } });
        check!(LinkArgs, LinkArgs { file: object, place });
        let (cookie, dir_count, max_count) = numbers;
        check!(ReaddirplusArgs, ReaddirplusArgs { dir: object, cookie, verifier, dir_count, max_count });
        let stable = Stability::DataSync;
        check!(WriteArgs, WriteArgs { file: object, offset: cookie, count: 9, stable, data: name.as_slice().into() });
    }
}
