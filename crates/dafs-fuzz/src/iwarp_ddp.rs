//! DDP segment headers: what decodes encodes to the same, apart from reserved bits.

use dafs_wire::iwarp::ddp::{self, Header};

pub fn run(bytes: &[u8]) {
    let need = ddp::fpdu_header_bytes(bytes);
    match Header::decode(bytes) {
        Ok(None) => assert!(bytes.len() < need.max(ddp::TAGGED_FPDU_HEADER_BYTES)),
        Ok(Some(header)) => {
            let mut again = Vec::new();
            header.encode(&mut again);
            assert_eq!(again.len(), need);
            assert_eq!(again[..2], bytes[..2]);
            assert_eq!(again[4..], bytes[4..need]);
            assert_eq!(Header::decode(&again), Ok(Some(header)));
        }
        Err(_) => {}
    }
}
