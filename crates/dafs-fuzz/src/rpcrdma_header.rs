//! The header of RPC-over-RDMA.
//!
//! Checked: no panic, bounded lists, exact lengths; what decodes is the same bytes when it is
//! encoded again; what is refused names the transaction that the message begins with, and can be
//! answered in a way that is understood and not answered again.

use dafs_wire::rpcrdma::{Body, Header, limits};
use dafs_wire::xdr::Encode;

pub fn run(data: &[u8]) {
    match Header::decode(data) {
        Ok((header, len)) => {
            assert_eq!(header.encoded(), data[..len]);
            assert_eq!(header.encoded_bytes(), len);
            if let Body::Message(chunks) | Body::NoMessage(chunks) = header.body {
                let moved = chunks.writes.iter().chain(&chunks.reply);
                let named = moved.map(|chunk| 1 + chunk.segments.len()).sum::<usize>();
                assert!(chunks.reads.len() + named <= limits::SEGMENTS_MAX);
            }
        }
        Err(error) => {
            let xid = data.first_chunk().map(|bytes| u32::from_be_bytes(*bytes));
            assert_eq!(error.xid, xid);
            assert!(!error.to_string().is_empty());
            if let Some(fault) = error.fault {
                // INVARIANT, the one that is checked here: a fault to report has the XID to report it by.
                let xid = error.xid.expect("a reported fault has an XID");
                let answer = Header { xid, credits: 1, body: Body::Error(fault) };
                let bytes = answer.encoded();
                assert_eq!(Header::decode(&bytes), Ok((answer, bytes.len())));
            }
        }
    }
}
