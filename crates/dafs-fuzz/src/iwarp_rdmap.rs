//! The payloads of RDMAP's own messages.

use dafs_wire::iwarp::rdmap::{ReadRequest, Terminate};

pub fn run(bytes: &[u8]) {
    if let Some(request) = ReadRequest::decode(bytes) {
        let mut again = Vec::new();
        request.encode(&mut again);
        assert_eq!(again, bytes);
    }
    if let Some(codes) = Terminate::decode(bytes) {
        let mut again = Vec::new();
        codes.encode(&mut again);
        assert_eq!(again[..2], bytes[..2]);
        assert!(!codes.to_string().is_empty());
    }
}
