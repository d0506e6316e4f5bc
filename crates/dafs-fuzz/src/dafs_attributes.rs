//! Attribute blocks of files and file systems: byte 0 chooses the byte order (bit 0) and which of
//! the two (bit 1); the block follows.

use dafs_wire::dafs::*;

pub fn run(input: &[u8]) {
    let Some((choice, block)) = input.split_first() else { return };
    let order = if choice & 1 == 0 { ByteOrder::Big } else { ByteOrder::Little };
    let mut again = vec![0; block.len() * 16 + 4096];
    if choice & 2 == 0 {
        let Ok(attributes) = Attributes::decode_direct(block, order) else { return };
        assert!(attributes.included.contains(attributes.valid()));
        let Ok(bytes) = attributes.encode_direct(&mut again, order) else { return };
        assert_eq!(Attributes::decode_direct(&again[..bytes], order).unwrap(), attributes);
    } else {
        // File-system attributes have no direct form; they sit behind an offset of 8.
        let offset = match order {
            ByteOrder::Big => 8u32.to_be_bytes(),
            ByteOrder::Little => 8u32.to_le_bytes(),
        };
        let body = [&offset[..], &[0; 4], block].concat();
        let Ok(reply) = Reply::decode_body(Procedure::GetFsAttr, &body, order) else { return };
        let header = ResponseHeader::default();
        let Ok(bytes) = encode_response(&mut again, order, &header, &reply) else { return };
        let (_, outcome) = decode_response(&again[..bytes], order, Procedure::GetFsAttr).unwrap();
        assert_eq!(outcome, Outcome::Ok(reply));
    }
}
