//! The private data that both ends of an RPC-over-RDMA connection exchange at set-up (RFC 8797).
//!
//! Checked: no panic; what is found is the same after it has been encoded; sizes are within what
//! the format can tell.

use dafs_wire::rpcrdma::{PrivateData, limits};

pub fn run(data: &[u8]) {
    let Some(told) = PrivateData::find(data) else { return };
    let bytes = told.encode();
    assert_eq!(PrivateData::find(&bytes), Some(told));
    // Other flags of the peer are not ours to repeat.
    assert_eq!(bytes[..5], data[..5]);
    assert_eq!(bytes[5], data[5] & 1);
    assert_eq!(bytes[6..], data[6..8]);
    for size in [told.send_bytes, told.receive_bytes] {
        assert!(
            (limits::INLINE_BYTES_DEFAULT..=limits::INLINE_BYTES_MAX).contains(&(size as usize))
        );
    }
}
