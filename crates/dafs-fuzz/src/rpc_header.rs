//! Headers and credentials of RPC messages.
//!
//! Checked: no panic; what decodes is the same after it has been encoded and decoded again; a call
//! that is refused names the number that the message begins with.

use dafs_wire::rpc::{AuthSys, CallError, CallHeader, FragmentMark, ReplyHeader, peek};
use dafs_wire::xdr::{Decode, Decoder, Encode};

pub fn run(data: &[u8]) {
    let number = peek(data).map(|(xid, _)| xid);
    match CallHeader::decode(&mut Decoder::new(data)) {
        Ok(header) => {
            assert_eq!(number, Ok(header.xid));
            let bytes = header.encoded();
            assert_eq!(CallHeader::decode(&mut Decoder::new(&bytes)), Ok(header));
            if let Ok(sys) = AuthSys::from_body(header.credential.body) {
                assert_eq!(AuthSys::from_body(&sys.encoded()), Ok(sys));
            }
        }
        Err(CallError::Rejected { xid, .. }) => assert_eq!(number, Ok(xid)),
        Err(_) => {}
    }
    if let Ok(header) = ReplyHeader::decode(&mut Decoder::new(data)) {
        assert_eq!(number, Ok(header.xid));
        assert_eq!(ReplyHeader::decode(&mut Decoder::new(&header.encoded())), Ok(header));
    }
    if let Some(mark) = data.first_chunk() {
        assert_eq!(FragmentMark::from_bytes(*mark).to_bytes(), *mark);
    }
}
