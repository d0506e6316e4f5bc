//! DAFS requests: byte 0 chooses the byte order (bit 0) and whether magic and length are put right
//! (bit 1); the message follows.

use dafs_wire::dafs::{ByteOrder, EncodeError, decode_request, encode_request, seal, verify};

const PADDING: u32 = 256;

pub fn run(input: &[u8]) {
    let Some((choice, message)) = input.split_first() else { return };
    let order = if choice & 1 == 0 { ByteOrder::Big } else { ByteOrder::Little };
    let word = |value: u32| match order {
        ByteOrder::Big => value.to_be_bytes(),
        ByteOrder::Little => value.to_le_bytes(),
    };
    let mut message = message.to_vec();
    if choice & 2 != 0 && message.len() >= 40 {
        let length = message.len() as u32;
        message[..4].copy_from_slice(&word(0x4441_4653));
        message[36..40].copy_from_slice(&word(length));
    }
    seal(&mut message);
    assert_eq!(verify(&message), message.len() >= 28);
    let Ok((header, request)) = decode_request(&message, order, PADDING) else { return };
    // Parts of a crafted message may share bytes, so it can need far more room than it takes.
    let mut again = vec![0; message.len() * 16 + 4096];
    match encode_request(&mut again, order, &header, &request) {
        Ok(bytes) => {
            let (_, decoded) = decode_request(&again[..bytes], order, PADDING).unwrap();
            assert_eq!(decoded, request);
        }
        Err(error) => assert!(matches!(error, EncodeError::NoRoom { .. }), "{error}"),
    }
}
