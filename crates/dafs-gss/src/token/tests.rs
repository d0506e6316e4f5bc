//! Messages from one side to the other, and tokens that must be refused.

use super::*;
use dafs_mem::VolatileSlice;
use proptest::prelude::*;

/// Lengths at which something changes: blocks, pieces, the largest transfers.
fn lengths() -> impl Iterator<Item = usize> {
    let around = |at: usize| at - 34..at + 34;
    (0..=200)
        .chain(around(512))
        .chain(around(4096))
        .chain([65_535, 65_536, 65_537, 1_048_575, 1_048_576, 1_048_577, 1_048_600])
}

fn agreed(enctype: Enctype, role: Role, acceptor_subkey: bool) -> Agreed {
    let key = Key::new(enctype, &vec![0x5a; enctype.key_len()]).unwrap();
    Agreed { key, acceptor_subkey, role, sequence: 77 }
}

fn keys(enctype: Enctype, role: Role) -> Keys {
    Keys::new(&agreed(enctype, role, false), Seed::from_bytes([9; 16]))
}

/// Both sides of a context, the initiator first.
fn pair(enctype: Enctype) -> (Keys, Keys) {
    (keys(enctype, Role::Initiator), keys(enctype, Role::Acceptor))
}

fn text(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + at / 251) as u8).collect()
}

fn mic(keys: &Keys, message: &[u8]) -> Vec<u8> {
    let mut out = vec![0; keys.enctype().mic_len()];
    assert_eq!(keys.mic(message, &mut out), Ok(out.len()));
    out
}

fn seal(keys: &Keys, message: &[u8]) -> Vec<u8> {
    let mut out = vec![0; keys.enctype().sealed_len(message.len())];
    assert_eq!(keys.seal(message, &mut out), Ok(out.len()));
    out
}

/// Seals with filler and rotation, which `seal` never makes.
fn seal_oddly(keys: &Keys, message: &[u8], filler: u16, rotation: u16) -> Vec<u8> {
    let header = keys.send.wrap_header(filler, 5);
    let padding = vec![0xee; usize::from(filler)];
    let mut token = vec![0; keys.enctype().sealed_len(message.len() + padding.len())];
    let (start, body) = token.split_at_mut(HEADER_BYTES);
    start.copy_from_slice(&header);
    start[6..8].copy_from_slice(&rotation.to_be_bytes());
    let data = &mut (message, &padding[..]);
    keys.messages.seal(Plain { confounder: [3; 16], data, header }, body);
    let by = usize::from(rotation) % body.len();
    body.rotate_right(by);
    token
}

/// Opens a token. An error leaves only zeros.
fn open(keys: &Keys, token: &[u8]) -> Result<Vec<u8>, TokenError> {
    let (mut out, mut pieces) = (vec![0; token.len()], Vec::new());
    let opened = keys.open(token, &mut out);
    // In pieces it is the same.
    let again = keys.open_to(token, &mut |piece| pieces.extend_from_slice(piece));
    assert_eq!(again, opened);
    match opened {
        Ok(len) => {
            assert!(out[len..].iter().all(|&byte| byte == 0), "nothing beyond the data");
            out.truncate(len);
            assert!(pieces == out, "other bytes in pieces");
            Ok(out)
        }
        Err(error) => {
            assert!(out.iter().all(|&byte| byte == 0), "{error}: plain text after an error");
            Err(error)
        }
    }
}

#[test]
fn messages_of_all_lengths_pass_in_both_directions() {
    for enctype in Enctype::ALL {
        let (initiator, acceptor) = pair(enctype);
        for len in lengths() {
            let message = text(len);
            for (from, to) in [(&initiator, &acceptor), (&acceptor, &initiator)] {
                assert_eq!(to.verify_mic(&message[..], &mic(from, &message)), Ok(()));
                let token = seal(from, &message);
                assert_eq!(token.len(), enctype.sealed_len(len));
                assert_eq!(open(to, &token).as_ref(), Ok(&message), "{enctype} {len}");
            }
        }
    }
}

#[test]
fn messages_in_pieces_are_those_in_one_piece() {
    let message = text(9_000);
    let mut shared = message.clone();
    for enctype in Enctype::ALL {
        let (initiator, acceptor) = pair(enctype);
        for cut in [0, 1, 4, 15, 16, 17, 4095, 4096, 4097, 8999, 9000] {
            let (first, second) = message.split_at(cut);
            let parts = [first, &[], second];
            let mut out = vec![0; enctype.sealed_len(message.len())];
            initiator.seal(Parts::new(&parts), &mut out).unwrap();
            assert_eq!(open(&acceptor, &out).as_ref(), Ok(&message));
            let len = initiator.mic(Parts::new(&parts), &mut out).unwrap();
            assert_eq!(acceptor.verify_mic(&message[..], &out[..len]), Ok(()));
            let (first, second) = VolatileSlice::from_mut(&mut shared).split(cut);
            assert_eq!(acceptor.verify_mic((first, second), &out[..len]), Ok(()));
        }
        let mut token = seal(&initiator, &message);
        let mut out = vec![0; message.len()];
        let opened = acceptor.open(VolatileSlice::from_mut(&mut token), &mut out);
        assert_eq!((opened, &out), (Ok(message.len()), &message));
    }
}

#[test]
fn every_rotation_and_every_filler_is_turned_back() {
    for enctype in Enctype::ALL {
        let (initiator, acceptor) = pair(enctype);
        for len in [0, 1, 15, 16, 17, 33, 100] {
            let message = text(len);
            let body = enctype.sealed_len(len) - HEADER_BYTES;
            for rotation in (0..=2 * body + 1).chain([28, 65_535]) {
                let token = seal_oddly(&initiator, &message, 0, rotation as u16);
                assert_eq!(open(&acceptor, &token).as_ref(), Ok(&message), "{rotation}");
            }
            for filler in (0..=70).chain([4095, 4096, 4097, 65_535]) {
                for rotation in [0, 1, 28] {
                    let token = seal_oddly(&initiator, &message, filler, rotation);
                    assert_eq!(open(&acceptor, &token).as_ref(), Ok(&message), "{filler}");
                }
            }
        }
        let message = text(100_000);
        let token = seal_oddly(&initiator, &message, 16, 28 + 16);
        assert_eq!(open(&acceptor, &token).as_ref(), Ok(&message));
    }
}

#[test]
fn a_token_with_any_bit_turned_is_refused() {
    for enctype in Enctype::ALL {
        let (initiator, acceptor) = pair(enctype);
        let message = text(53);
        let (good_mic, good) = (mic(&initiator, &message), seal(&initiator, &message));
        for bit in 0..good_mic.len() * 8 {
            let mut token = good_mic.clone();
            token[bit / 8] ^= 1 << (bit % 8);
            assert!(acceptor.verify_mic(&message[..], &token).is_err(), "bit {bit}");
        }
        for bit in 0..message.len() * 8 {
            let mut message = message.clone();
            message[bit / 8] ^= 1 << (bit % 8);
            let verdict = acceptor.verify_mic(&message[..], &good_mic);
            assert_eq!(verdict, Err(TokenError::Checksum));
        }
        for bit in 0..good.len() * 8 {
            let mut token = good.clone();
            token[bit / 8] ^= 1 << (bit % 8);
            assert!(open(&acceptor, &token).is_err(), "{enctype} bit {bit}");
        }
    }
}

#[test]
fn cut_and_longer_tokens_are_refused() {
    for enctype in Enctype::ALL {
        let (initiator, acceptor) = pair(enctype);
        let message = text(40);
        let (good_mic, good) = (mic(&initiator, &message), seal(&initiator, &message));
        for len in 0..good_mic.len() {
            assert!(acceptor.verify_mic(&message[..], &good_mic[..len]).is_err());
        }
        for len in 0..good.len() {
            assert!(open(&acceptor, &good[..len]).is_err());
        }
        for more in 1..50 {
            let long = |token: &[u8]| [token, &vec![0; more]].concat();
            assert!(acceptor.verify_mic(&message[..], &long(&good_mic)).is_err());
            assert!(open(&acceptor, &long(&good)).is_err());
        }
    }
}

/// The outer extra count alone would let a stranger cut the data short.
#[test]
fn a_changed_extra_count_cuts_nothing_off() {
    for enctype in Enctype::ALL {
        let (initiator, acceptor) = pair(enctype);
        for filler in [0, 1, 16, 40] {
            let good = seal_oddly(&initiator, &text(80), filler, 0);
            for other in (0..=125).filter(|&other| other != filler) {
                let mut token = good.clone();
                token[4..6].copy_from_slice(&other.to_be_bytes());
                let refused = open(&acceptor, &token).unwrap_err();
                let early = usize::from(other) > 80 + usize::from(filler);
                let want = if early { TokenError::Malformed } else { TokenError::Header };
                assert_eq!(refused, want, "{other} for {filler}");
            }
        }
    }
}

#[test]
fn tokens_of_the_wrong_kind_are_refused() {
    for enctype in Enctype::ALL {
        let (initiator, acceptor) = pair(enctype);
        let message = text(64);
        let (sum, token) = (mic(&initiator, &message), seal(&initiator, &message));
        // Sent back to its sender.
        assert_eq!(initiator.verify_mic(&message[..], &sum), Err(TokenError::Direction));
        assert_eq!(open(&initiator, &token), Err(TokenError::Direction));
        // One kind for the other.
        assert!(acceptor.verify_mic(&message[..], &token).is_err());
        assert!(open(&acceptor, &sum).is_err());
        // Not sealed.
        let mut clear = token.clone();
        clear[2] &= !2;
        assert_eq!(open(&acceptor, &clear), Err(TokenError::NotSealed));
        // Another key of the context.
        let subkey = agreed(enctype, Role::Acceptor, true);
        let subkey = Keys::new(&subkey, Seed::from_bytes([1; 16]));
        assert_eq!(subkey.verify_mic(&message[..], &sum), Err(TokenError::Subkey));
        assert_eq!(open(&subkey, &token), Err(TokenError::Subkey));
        assert_eq!(open(&initiator, &seal(&subkey, &message)), Err(TokenError::Subkey));
        // Another context.
        for at in 0..enctype.key_len() {
            let mut other = vec![0x5a; enctype.key_len()];
            other[at] ^= 1;
            let key = Key::new(enctype, &other).unwrap();
            let agreed = Agreed { key, ..agreed(enctype, Role::Acceptor, false) };
            let other = Keys::new(&agreed, Seed::from_bytes([1; 16]));
            assert_eq!(other.verify_mic(&message[..], &sum), Err(TokenError::Checksum));
            assert_eq!(open(&other, &token), Err(TokenError::Checksum));
        }
    }
}

#[test]
fn output_without_room_is_refused_before_a_number_is_taken() {
    for enctype in Enctype::ALL {
        let (initiator, acceptor) = pair(enctype);
        let message = text(30);
        let needed = enctype.mic_len();
        let refused = initiator.mic(&message[..], &mut vec![0; needed - 1]);
        assert_eq!(refused, Err(TokenError::NoRoom { needed }));
        let needed = enctype.sealed_len(30);
        let refused = initiator.seal(&message[..], &mut vec![0; needed - 1]);
        assert_eq!(refused, Err(TokenError::NoRoom { needed }));
        let token = seal(&initiator, &message);
        assert_eq!(token[8..16], 77_u64.to_be_bytes());
        let refused = acceptor.open(&token[..], &mut [0; 29]);
        assert_eq!(refused, Err(TokenError::NoRoom { needed: 30 }));
    }
}

#[test]
fn threads_share_keys_and_take_each_number_once() {
    let (initiator, acceptor) = pair(Enctype::Aes128Sha1);
    let mut numbers: Vec<u64> = std::thread::scope(|scope| {
        let run = || -> Vec<u64> {
            let numbered = |at: usize| {
                let message = text(at);
                let token = seal(&initiator, &message);
                assert_eq!(open(&acceptor, &token), Ok(message));
                u64::from_be_bytes(token[8..16].try_into().unwrap())
            };
            (0..200).map(numbered).collect()
        };
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(run)).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    numbers.sort_unstable();
    assert_eq!(numbers, (77..877).collect::<Vec<_>>());
}

#[test]
fn confounders_differ_and_keys_show_nothing() {
    let (initiator, _) = pair(Enctype::Aes256Sha1);
    let tokens: std::collections::BTreeSet<Vec<u8>> =
        (0..100).map(|_| seal(&initiator, b"same")[16..32].to_vec()).collect();
    assert_eq!(tokens.len(), 100);
    assert_eq!(format!("{initiator:?}"), "Keys(aes256-cts-hmac-sha1-96 of the initiator)");
    assert_eq!(format!("{:?}", Seed::from_bytes([7; 16])), "Seed");
}

proptest! {
    /// Messages of any length in any pieces, and any bytes in the place of a token.
    #[test]
    fn any_message_passes_and_no_other_bytes_do(
        which in 0..4_usize,
        message in proptest::collection::vec(any::<u8>(), 0..300),
        cut in 0..300_usize,
        filler in 0..40_u16,
        rotation in any::<u16>(),
        noise in proptest::collection::vec(any::<u8>(), 0..200),
        keep in 0..64_usize,
    ) {
        let (initiator, acceptor) = pair(Enctype::ALL[which]);
        let (first, second) = message.split_at(cut.min(message.len()));
        let mut sum = vec![0; initiator.enctype().mic_len()];
        initiator.mic((first, second), &mut sum).unwrap();
        prop_assert_eq!(acceptor.verify_mic(&message[..], &sum), Ok(()));
        let token = seal_oddly(&initiator, &message, filler, rotation);
        prop_assert_eq!(open(&acceptor, &token), Ok(message.clone()));
        // The start of a good token, then noise.
        let forged = [&token[..keep.min(token.len())], &noise].concat();
        prop_assert!(forged == token || open(&acceptor, &forged).is_err());
        let forged = [&sum[..keep.min(sum.len())], &noise].concat();
        prop_assert!(forged == sum || acceptor.verify_mic(&message[..], &forged).is_err());
    }
}
