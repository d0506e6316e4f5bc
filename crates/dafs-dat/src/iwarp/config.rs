//! What can be set on an iWARP adapter.

use super::limits;
use std::io;
use std::time::Duration;

/// Settings of an [`IwarpAdapter`](super::IwarpAdapter).
#[derive(Debug, Clone)]
pub struct IwarpConfig {
    /// Ask for CRC32C on every FPDU. It is also used when the peer asks. It is computed before the
    /// data is sent, so an application that changes a buffer under way, its own or one that the
    /// peer reads, ends the connection by it.
    pub crc: bool,
    /// The largest FPDU sent to a peer of our own, in bytes.
    pub fpdu_bytes_max: usize,
    /// The largest FPDU sent to other peers, in bytes; `None` keeps each within one TCP segment,
    /// which adapters insist on.
    pub stranger_fpdu_bytes_max: Option<usize>,
    /// Tell peers that we are one of their own, so that FPDUs may be large. Off, the adapter looks
    /// like any other iWARP implementation.
    pub announce: bool,
    /// Reads of the peer answered at a time (IRD), at most 128.
    pub inbound_reads_max: u16,
    /// Reads of ours outstanding at a time (ORD), at most 128; further ones wait in the queue.
    pub outbound_reads_max: u16,
    /// How long the set-up of a connection may take.
    pub handshake_timeout: Duration,
    /// How long a connection that was told to end may take to hand over what is queued, and how
    /// long its socket then waits for the peer to close.
    pub linger_timeout: Duration,
    /// Connections at a time, those being set up included.
    pub connection_count_max: usize,
    /// Connections being set up by peers at a time.
    pub handshake_count_max: usize,
    /// Others in this process may close descriptors that are not theirs, as libraries must expect of
    /// the programs that they are in: see [`Adapter::is_intact`](crate::Adapter::is_intact).
    pub guarded: bool,
}

impl Default for IwarpConfig {
    fn default() -> Self {
        Self {
            crc: false,
            fpdu_bytes_max: limits::OWN_FPDU_BYTES,
            stranger_fpdu_bytes_max: None,
            announce: true,
            inbound_reads_max: 32,
            outbound_reads_max: 32,
            handshake_timeout: Duration::from_secs(10),
            linger_timeout: Duration::from_secs(5),
            connection_count_max: 65_536,
            handshake_count_max: 1024,
            guarded: false,
        }
    }
}

impl IwarpConfig {
    /// Checks the settings against the limits of the provider.
    pub(crate) fn check(&self) -> io::Result<()> {
        let fpdu = limits::FPDU_BYTES_MIN..=limits::FPDU_BYTES_MAX;
        let bad = |text: String| Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        for bytes in [Some(self.fpdu_bytes_max), self.stranger_fpdu_bytes_max].into_iter().flatten()
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
        Ok(())
    }
}
