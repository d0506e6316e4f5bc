//! The payloads of RDMAP's own messages.

#![no_main]

use dafs_wire::iwarp::rdmap::{ReadRequest, Terminate};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
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
});
