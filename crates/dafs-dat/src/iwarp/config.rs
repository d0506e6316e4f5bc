//! The settings of an iWARP adapter.

use super::limits;
use crate::tls::ClientTls;
use dafs_tls::RECORDS_BEFORE_END;
use std::io;
use std::time::Duration;

/// Settings of an [`IwarpAdapter`](super::IwarpAdapter).
#[derive(Debug, Clone)]
pub struct IwarpConfig {
    /// Requests CRC32C on every FPDU. It is also used when the peer asks. The sender computes it
    /// before it sends the data. An application that changes a buffer in flight, one of its own or
    /// one that the peer reads, breaks the connection.
    pub crc: bool,
    /// The largest FPDU sent to a peer with this implementation, in bytes.
    pub fpdu_bytes_max: usize,
    /// The largest FPDU sent to a peer with another implementation, in bytes. `None` keeps each
    /// within one TCP segment, as hardware adapters require.
    pub foreign_fpdu_bytes_max: Option<usize>,
    /// Announces this implementation to peers, so that FPDUs may be large. Without it the adapter
    /// looks like any other iWARP implementation.
    pub announce: bool,
    /// Reads of the peer in progress at a time (IRD), at most 128.
    pub inbound_reads_max: u16,
    /// Own reads in progress at a time (ORD), at most 128; further ones wait in the queue.
    pub outbound_reads_max: u16,
    /// Timeout for the set-up of a connection.
    pub handshake_timeout: Duration,
    /// Timeout for sending queued work after `disconnect`, and then for the peer to close its side.
    pub linger_timeout: Duration,
    /// Concurrent connections, including those being set up.
    pub connection_count_max: usize,
    /// Concurrent set-ups of peers' connections.
    pub handshake_count_max: usize,
    /// Other code in this process may close file descriptors of the adapter, as a library must
    /// expect of its program: see [`Adapter::is_intact`](crate::Adapter::is_intact).
    pub guarded: bool,
    /// The demand of TLS on the connections that this adapter begins. For those of peers see
    /// [`IwarpAdapter::serve_tls`](super::IwarpAdapter::serve_tls).
    pub tls: Option<ClientTls>,
    /// Records of TLS in one direction after which the responder ends a connection, behind a reply:
    /// at most 2^23. Either end does it at half as many again.
    pub records_max: u64,
}

impl Default for IwarpConfig {
    fn default() -> Self {
        Self {
            crc: false,
            fpdu_bytes_max: limits::OWN_FPDU_BYTES,
            foreign_fpdu_bytes_max: None,
            announce: true,
            inbound_reads_max: 32,
            outbound_reads_max: 32,
            handshake_timeout: Duration::from_secs(10),
            linger_timeout: Duration::from_secs(5),
            connection_count_max: 65_536,
            handshake_count_max: 1024,
            guarded: false,
            tls: None,
            records_max: RECORDS_BEFORE_END,
        }
    }
}

impl IwarpConfig {
    /// Checks the settings against the limits of the provider.
    pub(crate) fn check(&self) -> io::Result<()> {
        let fpdu = limits::FPDU_BYTES_MIN..=limits::FPDU_BYTES_MAX;
        let bad = |text: String| Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        for bytes in [Some(self.fpdu_bytes_max), self.foreign_fpdu_bytes_max].into_iter().flatten()
        {
            if !fpdu.contains(&bytes) {
                let (min, max) = (fpdu.start(), fpdu.end());
                return bad(format!("an FPDU size of {bytes} bytes is not within {min} to {max}"));
            }
        }
        let reads = 1..=limits::READ_DEPTH_MAX;
        if !reads.contains(&self.inbound_reads_max) || self.outbound_reads_max > *reads.end() {
            return bad(format!("reads at a time must be within 1 and {}", reads.end()));
        }
        if !(1..=RECORDS_BEFORE_END).contains(&self.records_max) {
            return bad(format!("records must be within 1 and {RECORDS_BEFORE_END}"));
        }
        Ok(())
    }
}
