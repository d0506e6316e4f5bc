//! Tokens of a GSS context (RFC 4121) from a peer that may send anything, also good tokens that were changed.
//!
//! The input chooses the type and a way: raw bytes as a token; or a message that one side seals or signs, and
//! changes to its token on the way.
//!
//! Checked: no panic; a token that no key has made opens nothing and leaves no plain text; an unchanged token
//! yields its message.

use crate::input::Input;
use dafs_gss::token::{Agreed, Enctype, Key, Keys, Role, Seed};

/// Raw bytes meet a key of their own: a fuzzer may have seen a good token of the other way.
const RAW: u8 = 0x44;
const MADE: u8 = 0x33;

fn keys(enctype: Enctype, role: Role, byte: u8) -> Keys {
    let key = Key::new(enctype, &[byte; 32][..enctype.key_len()]).unwrap();
    let agreed = Agreed { key, acceptor_subkey: false, role, sequence: 1 };
    Keys::new(&agreed, Seed::from_bytes([5; 16]))
}

pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let choice = input.byte();
    let enctype = Enctype::ALL[usize::from(choice % 4)];
    if choice & 4 == 0 {
        raw(&keys(enctype, Role::Acceptor, RAW), input.0);
        return;
    }
    let (from, to) = (keys(enctype, Role::Initiator, MADE), keys(enctype, Role::Acceptor, MADE));
    let is_sealed = choice & 8 != 0;
    let len = usize::from(input.short()) % 5000;
    let message: Vec<u8> = (0..len).map(|at| at as u8).collect();
    let mut token = vec![0; enctype.sealed_len(len)];
    let made = if is_sealed {
        from.seal(&message[..], &mut token)
    } else {
        from.mic(&message[..], &mut token)
    };
    token.truncate(made.unwrap());
    let good = token.clone();
    change(&mut token, &mut input);
    if is_sealed {
        let mut out = vec![0; token.len()];
        match to.open(&token[..], &mut out) {
            Ok(len) => assert!(out[..len] == message && turned_back(&token) == good),
            Err(_) => assert!(token != good && out.iter().all(|&byte| byte == 0)),
        }
    } else {
        assert_eq!(to.verify_mic(&message[..], &token).is_ok(), token == good);
    }
}

/// Offers bytes that no key has made.
fn raw(to: &Keys, bytes: &[u8]) {
    let mut out = vec![0; bytes.len()];
    assert!(to.open(bytes, &mut out).is_err());
    assert!(out.iter().all(|&byte| byte == 0));
    for cut in [16, 28, 32, 40] {
        let (mic, message) = bytes.split_at(cut.min(bytes.len()));
        assert!(to.verify_mic(message, mic).is_err());
    }
}

/// Changes bytes, cuts, extends and rotates.
fn change(token: &mut Vec<u8>, input: &mut Input<'_>) {
    while !input.is_empty() && !token.is_empty() {
        let (what, at) = (input.byte(), usize::from(input.short()) % token.len());
        match what % 4 {
            0 => token[at] ^= input.byte(),
            1 => token.truncate(at),
            2 => token.extend_from_slice(input.take(at % 64)),
            _ if token.len() > 16 => {
                let by = u16::from_be_bytes([token[6], token[7]]);
                let more = input.byte();
                let Some(sum) = by.checked_add(u16::from(more)) else { continue };
                token[6..8].copy_from_slice(&sum.to_be_bytes());
                let body = token.len() - 16;
                token[16..].rotate_right(usize::from(more) % body);
            }
            _ => {}
        }
    }
}

/// Returns a wrap token without its rotation, which is not authenticated.
fn turned_back(token: &[u8]) -> Vec<u8> {
    let mut token = token.to_vec();
    let by = usize::from(u16::from_be_bytes([token[6], token[7]]));
    let body = token.len() - 16;
    token[16..].rotate_left(by % body);
    token[6..8].fill(0);
    token
}
