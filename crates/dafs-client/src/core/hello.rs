//! The private data of the transport connection (DAFS 3.2, O29).

use super::config::SessionConfig;
use dafs_wire::dafs::{ByteOrder, REQUEST_MAGIC};

/// This connection is the operation channel.
const CHANNEL_OPERATION: u32 = 0x01;

/// This connection is the back-control channel, for calls of the server.
const CHANNEL_BACK_CONTROL: u32 = 0x02;

/// This connection is the optimistic channel, on which the client reads memory by RDMA: an extension.
const CHANNEL_OPTIMISTIC: u32 = 0x08;

/// The 16 bytes of private data of a session's first connection.
pub(crate) fn private_data(config: &SessionConfig) -> [u8; 16] {
    block(config, CHANNEL_OPERATION)
}

/// The private data of its back-control channel.
pub(crate) fn back_private_data(config: &SessionConfig) -> [u8; 16] {
    block(config, CHANNEL_BACK_CONTROL)
}

/// The private data of its optimistic channel.
pub(crate) fn optimistic_private_data(config: &SessionConfig) -> [u8; 16] {
    block(config, CHANNEL_OPTIMISTIC)
}

fn block(config: &SessionConfig, channel: u32) -> [u8; 16] {
    let word = |value: u32| match config.byte_order {
        ByteOrder::Big => value.to_be_bytes(),
        ByteOrder::Little => value.to_le_bytes(),
    };
    let mut block = [0; 16];
    block[..4].copy_from_slice(&word(REQUEST_MAGIC));
    block[4..8].copy_from_slice(&config.client_differentiator);
    block[8..12].copy_from_slice(&config.session_differentiator);
    block[12..].copy_from_slice(&word(channel));
    block
}
