//! What can be set on a verbs adapter.

use super::error::VerbsError;
use super::limits;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// Which of the machine's devices an adapter uses. It uses one for all that it does, because memory
/// is registered with a device.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum VerbsDevice {
    /// The first that has an active port, else the first.
    #[default]
    Any,
    /// The one of this name, as `rdma link` shows it.
    Named(String),
    /// The one whose interface has this address: for listeners. An unspecified address stands for
    /// [`Any`](VerbsDevice::Any).
    At(IpAddr),
    /// The one that leads to this address: for clients. Finding out takes up to two seconds.
    Towards(SocketAddr),
}

/// Settings of a [`VerbsAdapter`](super::VerbsAdapter).
#[derive(Debug, Clone)]
pub struct VerbsConfig {
    /// The device.
    pub device: VerbsDevice,
    /// Sends, writes and reads that the device holds for one connection; what is posted beyond
    /// waits in the provider.
    pub send_count_max: u32,
    /// Receives that may be posted on one connection. They are all handed to the device, because a
    /// message that finds none there ends the connection.
    pub receive_count_max: u32,
    /// Reads of the peer answered at a time (IRD), 1 to 128.
    pub inbound_reads_max: u8,
    /// Reads of ours outstanding at a time (ORD), 1 to 128; further ones wait in the queue.
    pub outbound_reads_max: u8,
    /// Bytes of memory that stay registered after their region has ended, for the next time the
    /// same buffer is registered.
    pub idle_registered_bytes_max: usize,
    /// How long the set-up of a connection may take.
    pub handshake_timeout: Duration,
    /// How long a connection that was told to end may take to hand over what is queued.
    pub linger_timeout: Duration,
    /// Connections at a time, those being set up included.
    pub connection_count_max: usize,
    /// Connections being set up by peers at a time.
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
