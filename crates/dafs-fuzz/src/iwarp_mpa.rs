//! MPA set-up frames and the block behind the private data: what decodes encodes to the same.

use dafs_wire::iwarp::mpa::{Decoded, Frame, FrameKind, Soft};

pub fn run(bytes: &[u8]) {
    for kind in [FrameKind::Request, FrameKind::Reply] {
        match Frame::decode(kind, bytes) {
            Ok(Decoded::Frame(frame, used)) => {
                assert!(used <= bytes.len());
                let mut again = Vec::new();
                frame.encode(&mut again).expect("what was decoded is not too long");
                assert_eq!(again.len(), used);
                assert_eq!(Frame::decode(kind, &again), Ok(Decoded::Frame(frame, used)));
                let (data, soft) = Soft::split(frame.private_data);
                if let Some(soft) = soft {
                    let whole = [data, &soft.encode()].concat();
                    assert_eq!(Soft::split(&whole), (data, Some(soft)));
                }
            }
            Ok(Decoded::Need(need)) => assert!(need > bytes.len() && need <= 20 + 512),
            Err(_) => {}
        }
    }
}
