//! DAFS replies: byte 0 chooses the byte order (bit 0) and whether magic and length are put right
//! (bit 1), byte 1 the procedure; the message follows.

use dafs_wire::dafs::*;

pub fn run(input: &[u8]) {
    let [choice, procedure, message @ ..] = input else { return };
    let order = if choice & 1 == 0 { ByteOrder::Big } else { ByteOrder::Little };
    let procedure = Procedure::ALL[*procedure as usize % Procedure::ALL.len()];
    let word = |value: u32| match order {
        ByteOrder::Big => value.to_be_bytes(),
        ByteOrder::Little => value.to_le_bytes(),
    };
    let mut message = message.to_vec();
    if choice & 2 != 0 && message.len() >= 40 {
        let length = message.len() as u32;
        message[..4].copy_from_slice(&word(REPLY_MAGIC));
        message[32..36].copy_from_slice(&word(length));
    }
    let Ok((header, outcome)) = decode_response(&message, order, procedure) else { return };
    let mut again = vec![0; message.len() * 16 + 4096];
    let encoded = match &outcome {
        Outcome::Ok(reply) => encode_response(&mut again, order, &header, reply),
        Outcome::Error { body, .. } => encode_error(&mut again, order, &header, procedure, body),
    };
    match encoded {
        Ok(bytes) => {
            let (_, decoded) = decode_response(&again[..bytes], order, procedure).unwrap();
            assert_eq!(decoded, outcome);
        }
        // Parts of a crafted message may share bytes, so it can need far more room than it takes.
        Err(error) => assert!(matches!(error, EncodeError::NoRoom { .. }), "{error}"),
    }
}
