//! The start of a connection: its requested channel, and the receive for its first message.

use super::connection::{Channel, Connection};
use super::{Link, Tag};
use crate::limits::FIRST_MESSAGE_BYTES;
use dafs_dat::{ConnectError, Instant, PeerInfo, RequestId};
use dafs_service::Owner;
use dafs_wire::dafs::REQUEST_MAGIC;
use std::io;

/// Reads the channel that a connection requests from the 16 bytes of its private data (DAFS 3.2,
/// O29).
pub(super) fn channel(private_data: &[u8]) -> Result<Channel, &'static str> {
    let Some(block) = private_data.first_chunk::<16>() else {
        return Err("the private data is not that of DAFS");
    };
    let word = |at: usize| [block[at], block[at + 1], block[at + 2], block[at + 3]];
    let magic = REQUEST_MAGIC.to_be_bytes();
    let channel = if word(0) == magic {
        u32::from_be_bytes(word(12))
    } else if word(0) == REQUEST_MAGIC.to_le_bytes() {
        u32::from_le_bytes(word(12))
    } else {
        return Err("the private data is not that of DAFS");
    };
    match channel {
        0x01 => Ok(Channel::Operation),
        0x02 => Ok(Channel::BackControl),
        0x04 => Err("RDMA-read channels are not offered"),
        0x08 => Ok(Channel::Optimistic),
        _ => Err("unknown channel type"),
    }
}

/// Accepts a connection and posts the receive for its first message.
pub(super) fn accept(
    link: &mut Link,
    request: RequestId,
    peer: (PeerInfo, Owner),
    channel: Channel,
    now: Instant,
) -> Result<Connection, ConnectError> {
    let adapter = &mut *link.adapter;
    let endpoint = match channel {
        Channel::Optimistic => adapter.accept_isolated(request, link.domain, &[])?,
        Channel::Operation | Channel::BackControl => adapter.accept(request, link.domain, &[])?,
    };
    let mut connection = Connection::new(endpoint, peer, channel, now);
    let no_memory = |error: dafs_dat::RegisterError| io::Error::other(error.to_string());
    let grown = connection.receives.grow(adapter, link.domain, 1, FIRST_MESSAGE_BYTES as usize);
    let posted = grown.map_err(no_memory).and_then(|()| {
        // INVARIANT: one slot was just added.
        let (slot, segment) = connection.receives.take().expect("a slot was just added");
        let work = Tag::Receive(slot).pack();
        adapter.post_receive(endpoint, work, segment).map_err(io::Error::other)
    });
    if let Err(error) = posted {
        adapter.abort(endpoint);
        connection.receives.release(adapter);
        return Err(error.into());
    }
    connection.credits.posted = 1;
    Ok(connection)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_data_names_the_channel_in_either_order() {
        let mut block = [0; 16];
        block[..4].copy_from_slice(b"DAFS");
        block[15] = 1;
        assert_eq!(channel(&block), Ok(Channel::Operation));
        block[..4].copy_from_slice(b"SFAD");
        assert!(channel(&block).is_err());
        block[12] = 2;
        block[15] = 0;
        assert_eq!(channel(&block), Ok(Channel::BackControl));
        block[12] = 8;
        assert_eq!(channel(&block), Ok(Channel::Optimistic));
        assert!(channel(&block[..15]).is_err());
        assert!(channel(b"NFS, or something else").is_err());
    }
}
