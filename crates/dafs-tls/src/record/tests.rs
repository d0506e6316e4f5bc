//! Records between two ends with the same keys.

use super::*;
use crate::keys::Side;
use crate::limits::RECORD_BYTES_MAX;
use proptest::prelude::*;

fn channel(side: Side, suite: Suite, sequence: u64) -> Channel {
    Channel::new(TrafficKeys::of_test(side, suite, sequence))
}

fn pair(suite: Suite) -> (Sealer, Opener) {
    (channel(Side::Client, suite, 0).sealer, channel(Side::Server, suite, 0).opener)
}

/// Opens all records of a stream.
fn open_all(opener: &mut Opener, stream: &mut [u8]) -> Result<Vec<u8>, OpenError> {
    let mut plain = Vec::new();
    let mut rest = stream;
    while !rest.is_empty() {
        let bytes = Opener::record_bytes(rest)?.expect("whole headers");
        let (record, behind) = rest.split_at_mut(bytes);
        if let Opened::Data(data) = opener.open(record)? {
            plain.extend_from_slice(data);
        }
        rest = behind;
    }
    Ok(plain)
}

/// A record of any content type with padding, under number `sequence`.
fn raw_record(sequence: u64, kind: u8, plain: &[u8], padding: usize) -> Vec<u8> {
    let keys = TrafficKeys::of_test(Side::Client, Suite::Aes128, sequence);
    let mut cipher = Cipher::new(&keys.send);
    let mut inner = plain.to_vec();
    inner.push(kind);
    inner.resize(inner.len() + padding, 0);
    let body_bytes = inner.len() + TAG_BYTES;
    let [high, low] = (body_bytes as u16).to_be_bytes();
    let head = [23, 3, 3, high, low];
    let nonce = cipher.next_nonce();
    cipher.key.seal_in_place_append_tag(nonce, Aad::from(head), &mut inner).unwrap();
    [&head[..], &inner].concat()
}

#[test]
fn data_of_every_length_comes_out() {
    for suite in [Suite::Aes128, Suite::Aes256] {
        let (mut sealer, mut opener) = pair(suite);
        for bytes in [0, 1, 2, 100, 16_383, 16_384, 16_385, 32_768, 100_000] {
            let plain: Vec<u8> = (0..bytes).map(|at| (at * 7 % 251) as u8).collect();
            let mut out = vec![0; sealed_bytes(bytes)];
            assert_eq!(sealer.seal(&[&plain], &mut out), Ok(out.len()));
            assert!(bytes < 32 || !out.windows(32).any(|window| window == &plain[..32]));
            assert_eq!(open_all(&mut opener, &mut out), Ok(plain));
        }
        assert_eq!(sealer.records(), opener.records());
        assert_eq!(sealer.records(), 1 + 1 + 1 + 1 + 1 + 2 + 2 + 7);
    }
}

#[test]
fn a_record_in_its_place_is_the_same_record() {
    let plain = [5; 1000];
    let (mut first, _) = pair(Suite::Aes128);
    let (mut second, mut opener) = pair(Suite::Aes128);
    let mut apart = vec![0; sealed_bytes(plain.len())];
    first.seal(&[&plain], &mut apart).unwrap();
    let mut place = vec![0; plain.len() + OVERHEAD_BYTES];
    place[HEADER_BYTES..HEADER_BYTES + plain.len()].copy_from_slice(&plain);
    second.seal_in_place(&mut place).unwrap();
    assert_eq!(apart, place);
    assert_eq!(open_all(&mut opener, &mut place), Ok(plain.to_vec()));
    let mut short = vec![0; OVERHEAD_BYTES - 1];
    assert!(matches!(second.seal_in_place(&mut short), Err(SealError::NoRoom { .. })));
    let mut long = vec![0; OVERHEAD_BYTES + PLAIN_BYTES_MAX + 1];
    assert!(matches!(second.seal_in_place(&mut long), Err(SealError::NoRoom { .. })));
    assert_eq!(second.records(), 1);
}

#[test]
fn every_bit_flip_is_refused_and_stays_refused() {
    let (mut sealer, _) = pair(Suite::Aes256);
    let mut record = vec![0; sealed_bytes(40)];
    sealer.seal(&[&[9; 40]], &mut record).unwrap();
    for at in 0..record.len() {
        for bit in 0..8 {
            let (_, mut opener) = pair(Suite::Aes256);
            let mut changed = record.clone();
            changed[at] ^= 1 << bit;
            assert!(opener.open(&mut changed).is_err(), "byte {at} bit {bit}");
            let mut honest = record.clone();
            assert_eq!(opener.open(&mut honest), Err(OpenError::Ended));
        }
    }
}

#[test]
fn records_are_neither_repeated_nor_left_out() {
    let (mut sealer, mut opener) = pair(Suite::Aes128);
    let mut seal = || {
        let mut record = vec![0; sealed_bytes(3)];
        sealer.seal(&[b"abc"], &mut record).unwrap();
        record
    };
    let (first, second, third) = (seal(), seal(), seal());
    assert!(opener.open(&mut first.clone()).is_ok());
    assert_eq!(opener.open(&mut first.clone()), Err(OpenError::Damaged));
    let (_, mut opener) = pair(Suite::Aes128);
    assert!(opener.open(&mut first.clone()).is_ok());
    assert_eq!(opener.open(&mut third.clone()), Err(OpenError::Damaged));
    assert_eq!(opener.open(&mut second.clone()), Err(OpenError::Ended));
}

#[test]
fn padding_is_taken_off() {
    let (_, mut opener) = pair(Suite::Aes128);
    let mut padded = raw_record(0, content::APPLICATION_DATA, &[1, 0, 2, 0], 50);
    assert_eq!(opener.open(&mut padded), Ok(Opened::Data(&mut [1, 0, 2, 0])));
    let mut zeros = raw_record(1, 0, &[0; 20], 5);
    assert_eq!(opener.open(&mut zeros), Err(OpenError::NotTls));
}

#[test]
fn lengths_are_bounded() {
    let (_, mut opener) = pair(Suite::Aes128);
    let mut largest = raw_record(0, content::APPLICATION_DATA, &[1; PLAIN_BYTES_MAX], 239);
    assert_eq!(largest.len(), RECORD_BYTES_MAX);
    assert!(
        matches!(opener.open(&mut largest), Ok(Opened::Data(data)) if data.len() == PLAIN_BYTES_MAX)
    );
    let mut long = raw_record(1, content::APPLICATION_DATA, &[1; PLAIN_BYTES_MAX + 1], 0);
    assert_eq!(opener.open(&mut long), Err(OpenError::Length));
    assert_eq!(Opener::record_bytes(&[23, 3, 3, 0x41]), Ok(None));
    assert_eq!(Opener::record_bytes(&[23, 3, 3, 0x41, 0]), Ok(Some(RECORD_BYTES_MAX)));
    assert_eq!(Opener::record_bytes(&[23, 3, 3, 0x41, 1]), Err(OpenError::Length));
    assert_eq!(Opener::record_bytes(&[23, 3, 3, 0, 16]), Err(OpenError::Length));
    for head in [
        [22, 3, 3, 0, 50],
        [21, 3, 3, 0, 50],
        [20, 3, 3, 0, 50],
        [23, 3, 1, 0, 50],
        [0x80, 0, 0, 0, 50],
    ] {
        assert_eq!(Opener::record_bytes(&head), Err(OpenError::NotTls));
    }
    let mut cut = raw_record(0, content::APPLICATION_DATA, &[1; 30], 0);
    cut.pop();
    let (_, mut opener) = pair(Suite::Aes128);
    assert_eq!(opener.open(&mut cut), Err(OpenError::Length));
}

#[test]
fn a_flood_of_empty_records_ends() {
    let (_, mut opener) = pair(Suite::Aes128);
    let mut number = 0;
    let mut next = |plain: &[u8]| {
        number += 1;
        raw_record(number - 1, content::APPLICATION_DATA, plain, 0)
    };
    for _ in 0..EMPTY_RECORDS_MAX {
        assert_eq!(opener.open(&mut next(&[])), Ok(Opened::Nothing));
    }
    assert_eq!(opener.open(&mut next(&[7])), Ok(Opened::Data(&mut [7])));
    for _ in 0..EMPTY_RECORDS_MAX {
        assert_eq!(opener.open(&mut next(&[])), Ok(Opened::Nothing));
    }
    assert_eq!(opener.open(&mut next(&[])), Err(OpenError::Empty));
}

#[test]
fn close_notify_and_cuts_are_told_apart() {
    let (mut sealer, mut opener) = pair(Suite::Aes128);
    assert_eq!(opener.end(0), End::Cut);
    assert_eq!(opener.end(7), End::CutInRecord);
    let mut record = sealer.close(Alert::CLOSE_NOTIFY).unwrap();
    assert_eq!(opener.open(&mut record), Ok(Opened::Closed));
    assert_eq!(opener.end(0), End::Closed);
    assert_eq!(opener.open(&mut record), Err(OpenError::Ended));
    assert_eq!(sealer.seal(&[b"more"], &mut [0; 100]), Err(SealError::Closed));
    assert_eq!(sealer.close(Alert::CLOSE_NOTIFY), Err(SealError::Closed));
}

#[test]
fn alerts_reach_the_other_end() {
    let (mut sealer, mut opener) = pair(Suite::Aes128);
    let mut record = sealer.close(Alert::BAD_RECORD_MAC).unwrap();
    let error = opener.open(&mut record).unwrap_err();
    assert_eq!(error, OpenError::Control(ControlError::PeerAlert(Alert::BAD_RECORD_MAC)));
    assert_eq!(error.alert(), None);
    assert_eq!(opener.end(0), End::Cut);
}

#[test]
fn a_key_update_ends_the_connection() {
    let (_, mut opener) = pair(Suite::Aes128);
    let mut update = raw_record(0, content::HANDSHAKE, &[24, 0, 0, 1, 0], 0);
    let error = opener.open(&mut update).unwrap_err();
    assert_eq!(error, OpenError::Control(ControlError::KeyUpdate));
    assert_eq!(error.alert(), Some(Alert::CLOSE_NOTIFY));
}

#[test]
fn records_are_counted_and_end() {
    let mut channel = channel(Side::Client, Suite::Aes128, 7);
    let mut out = vec![0; sealed_bytes(1)];
    channel.sealer.seal(&[b"x"], &mut out).unwrap();
    assert_eq!((channel.sealer.records(), channel.opener.records()), (8, 7));
    assert!(channel.opener.open(&mut out).is_ok());
    assert_eq!(channel.opener.records(), 8);

    let mut channel = self::channel(Side::Client, Suite::Aes128, RECORDS_MAX - 1);
    let mut two = vec![0; sealed_bytes(PLAIN_BYTES_MAX + 1)];
    let data = vec![1; PLAIN_BYTES_MAX + 1];
    assert_eq!(channel.sealer.seal(&[&data], &mut two), Err(SealError::Spent));
    assert_eq!(channel.sealer.seal(&[b"x"], &mut out), Ok(out.len()));
    assert_eq!(channel.sealer.seal(&[b"x"], &mut two), Err(SealError::Spent));
    assert!(channel.opener.open(&mut out).is_ok());
    assert_eq!(channel.opener.open(&mut out), Err(OpenError::Spent));
}

#[test]
fn a_block_that_is_too_small_is_left_alone() {
    let (mut sealer, _) = pair(Suite::Aes128);
    let mut out = vec![0; sealed_bytes(10) - 1];
    let needed_bytes = sealed_bytes(10);
    assert_eq!(sealer.seal(&[&[1; 10]], &mut out), Err(SealError::NoRoom { needed_bytes }));
    assert!(out.iter().all(|byte| *byte == 0));
    assert_eq!(sealer.records(), 0);
}

#[test]
fn both_ends_may_be_used_by_other_threads() {
    fn is_send<T: Send>() {}
    is_send::<Channel>();
    is_send::<TrafficKeys>();
}

proptest! {
    #[test]
    fn chunks_are_sealed_in_order(
        lengths in proptest::collection::vec(0usize..20_000, 0..6),
        suite in prop_oneof![Just(Suite::Aes128), Just(Suite::Aes256)],
    ) {
        let chunks: Vec<Vec<u8>> = lengths
            .iter()
            .enumerate()
            .map(|(index, length)| (0..*length).map(|at| (at + index * 31) as u8).collect())
            .collect();
        let views: Vec<&[u8]> = chunks.iter().map(Vec::as_slice).collect();
        let whole = chunks.concat();
        let (mut sealer, mut opener) = pair(suite);
        let mut out = vec![0; sealed_bytes(whole.len())];
        prop_assert_eq!(sealer.seal(&views, &mut out), Ok(out.len()));
        prop_assert_eq!(open_all(&mut opener, &mut out), Ok(whole));
    }
}

#[test]
fn data_goes_elsewhere_as_it_comes_out_in_place() {
    let (mut sealer, mut opener) = pair(Suite::Aes256);
    let plain: Vec<u8> = (0..5000).map(|at| (at * 7 % 251) as u8).collect();
    let mut record = vec![0; sealed_bytes(plain.len())];
    sealer.seal(&[&plain], &mut record).unwrap();
    let mut out = vec![0; plain.len() + 1];
    assert_eq!(opener.open_apart(&record, &mut out), Ok(Opened::Data(&mut plain.clone())));
    // Padding is no data, and a record of another type is none.
    let padded = raw_record(0, 23, b"data", 9);
    let mut opener = channel(Side::Server, Suite::Aes128, 0).opener;
    let mut out = [0; 14];
    assert_eq!(opener.open_apart(&padded, &mut out), Ok(Opened::Data(&mut b"data".to_vec())));
    let goodbye = raw_record(1, 21, &[1, 0], 0);
    assert_eq!(opener.open_apart(&goodbye, &mut [0; 3]), Ok(Opened::Closed));
    assert_eq!(opener.open_apart(&goodbye, &mut [0; 3]), Err(OpenError::Ended));
    // A wrong place, and a wrong tag.
    for (change, room, error) in [(0, 13, OpenError::Length), (1, 14, OpenError::Damaged)] {
        let mut record = raw_record(0, 23, b"data", 9);
        *record.last_mut().unwrap() ^= change;
        let mut opener = channel(Side::Server, Suite::Aes128, 0).opener;
        assert_eq!(opener.open_apart(&record, &mut vec![0; room]), Err(error));
        assert_eq!(opener.open_apart(&record, &mut [0; 14]), Err(OpenError::Ended));
    }
}
