//! The settings of a verbs adapter.

use super::error::VerbsError;
use super::limits;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// The device that an adapter uses. An adapter uses one device, because memory is registered with a
/// device.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum VerbsDevice {
    /// The first that has an active port, else the first.
    #[default]
    Any,
    /// The device of this name, as `rdma link` shows it.
    Named(String),
    /// The device whose interface has this address: for listeners. An unspecified address means
    /// [`Any`](VerbsDevice::Any).
    At(IpAddr),
    /// The device that leads to this address: for clients. The lookup takes up to two seconds.
    Towards(SocketAddr),
}

/// Settings of a [`VerbsAdapter`](super::VerbsAdapter).
#[derive(Debug, Clone)]
pub struct VerbsConfig {
    /// The device.
    pub device: VerbsDevice,
    /// Sends, writes and reads that the device holds for one connection; further ones wait in the
    /// provider.
    pub send_count_max: u32,
    /// Receives that may be posted on one connection. The device gets them all, because a message
    /// without a receive ends the connection.
    pub receive_count_max: u32,
    /// Reads of the peer in progress at a time (IRD), 1 to 128.
    pub inbound_reads_max: u8,
    /// Own reads in progress at a time (ORD), 1 to 128; further ones wait in the queue.
    pub outbound_reads_max: u8,
    /// Bytes of memory that stay registered after their region has ended, for the next registration
    /// of the same buffer.
    pub idle_registered_bytes_max: usize,
    /// Grants memory by memory windows where the device has those of type 2B. Otherwise each grant is a
    /// registration of its own.
    pub memory_windows: bool,
    /// Timeout for the set-up of a connection.
    pub handshake_timeout: Duration,
    /// Timeout for sending queued work after `disconnect`.
    pub linger_timeout: Duration,
    /// Concurrent connections, including those being set up.
    pub connection_count_max: usize,
    /// Concurrent set-ups of peers' connections.
    pub handshake_count_max: usize,
}

impl Default for VerbsConfig {
    fn default() -> Self {
        Self {
            device: VerbsDevice::Any,
            send_count_max: 256,
            receive_count_max: 512,
            inbound_reads_max: 32,
            outbound_reads_max: 32,
            idle_registered_bytes_max: 64 << 20,
            memory_windows: true,
            handshake_timeout: Duration::from_secs(10),
            linger_timeout: Duration::from_secs(5),
            connection_count_max: 65_536,
            handshake_count_max: 1024,
        }
    }
}

impl VerbsConfig {
    /// Settings for a listener at `address`.
    pub fn at(address: IpAddr) -> Self {
        Self { device: VerbsDevice::At(address), ..Self::default() }
    }

    /// Settings for connections to `address`.
    pub fn towards(address: SocketAddr) -> Self {
        Self { device: VerbsDevice::Towards(address), ..Self::default() }
    }

    /// Checks the settings against the limits of the provider.
    pub(super) fn check(&self) -> Result<(), VerbsError> {
        let reads = 1..=limits::READ_DEPTH_MAX;
        if !reads.contains(&self.inbound_reads_max) || !reads.contains(&self.outbound_reads_max) {
            let text = format!("reads at a time must be within 1 and {}", reads.end());
            return Err(VerbsError::Setting(text));
        }
        if self.send_count_max < 2 || self.receive_count_max == 0 {
            let text = "a connection needs room for two sends and a receive";
            return Err(VerbsError::Setting(text.to_owned()));
        }
        Ok(())
    }
}
