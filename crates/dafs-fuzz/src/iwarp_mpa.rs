//! MPA set-up frames and the block behind the private data: what decodes encodes to the same.

use dafs_wire::iwarp::mpa::{DafsBlock, Decoded, Frame, FrameKind};

pub fn run(bytes: &[u8]) {
    for kind in [FrameKind::Request, FrameKind::Reply] {
        match Frame::decode(kind, bytes) {
            Ok(Decoded::Frame(frame, used)) => {
                assert!(used <= bytes.len());
                let mut again = Vec::new();
                frame.encode(&mut again).expect("what was decoded is not too long");
                assert_eq!(again.len(), used);
                assert_eq!(Frame::decode(kind, &again), Ok(Decoded::Frame(frame, used)));
                let (data, dafs_block) = DafsBlock::split(frame.private_data);
                if let Some(dafs_block) = dafs_block {
                    let whole = [data, &dafs_block.encode()].concat();
                    assert_eq!(DafsBlock::split(&whole), (data, Some(dafs_block)));
                }
            }
            Ok(Decoded::Need(need)) => assert!(need > bytes.len() && need <= 20 + 512),
            Err(_) => {}
        }
    }
}
