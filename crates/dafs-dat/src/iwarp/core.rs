//! The state that all connections of an adapter share while one of them is served.

use super::config::IwarpConfig;
use super::limits::STAGING_BYTES;
use super::receive::Inbound;
use super::records::BLOCK_BYTES;
use super::sys::Epoll;
use super::transmit::Finished;
use crate::descriptors::Watch;
use crate::keys::KeySource;
use crate::{Completion, EndpointId, Event, Operation, RegionTable, WorkStatus};
use std::io;

/// The shared part of an adapter.
pub(super) struct Core {
    pub(super) config: IwarpConfig,
    /// The settings inside TLS, which checks what CRC would.
    pub(super) secure_config: IwarpConfig,
    pub(super) watch: Watch,
    pub(super) epoll: Epoll,
    pub(super) regions: RegionTable,
    pub(super) keys: KeySource,
    /// Staging area for small arrivals; empty again after each connection's turn.
    pub(super) staging: Box<[u8]>,
    /// Block for records of TLS; empty without TLS.
    block: Vec<u8>,
    /// Events to return by the next poll.
    pub(super) events: Vec<Event>,
    /// Reused list of received items of a turn.
    pub(super) inbound: Vec<Inbound>,
    /// Reused list of sent items of a turn.
    pub(super) finished: Vec<Finished>,
    /// Connections with work to send.
    pub(super) dirty: Vec<u64>,
    /// Connections that wait for room in their socket.
    pub(super) blocked_count: usize,
    /// The connection whose socket was last found to be its own in this turn.
    pub(super) checked: Option<u64>,
    /// Reads that peers with grants have requested.
    pub(super) granted_reads: u64,
}

impl Core {
    pub(super) fn new(config: IwarpConfig) -> io::Result<Self> {
        let watch = if config.guarded { Watch::new() } else { Watch::default() };
        let secure_config = IwarpConfig { crc: false, ..config.clone() };
        Ok(Self {
            config,
            secure_config,
            epoll: Epoll::new(&watch)?,
            watch,
            regions: RegionTable::new(),
            keys: KeySource::new(),
            staging: vec![0; STAGING_BYTES].into_boxed_slice(),
            block: Vec::new(),
            events: Vec::new(),
            inbound: Vec::new(),
            finished: Vec::new(),
            dirty: Vec::new(),
            blocked_count: 0,
            checked: None,
            granted_reads: 0,
        })
    }

    /// The settings of a connection.
    pub(super) fn config_of(&self, is_secure: bool) -> &IwarpConfig {
        if is_secure { &self.secure_config } else { &self.config }
    }

    /// Lends the block for records of TLS to a connection's turn. A turn that panicked has lost it.
    pub(super) fn take_block(&mut self) -> Vec<u8> {
        let mut block = std::mem::take(&mut self.block);
        block.resize(BLOCK_BYTES, 0);
        block
    }

    pub(super) fn give_block(&mut self, block: Vec<u8>) {
        self.block = block;
    }

    pub(super) fn complete(
        &mut self,
        id: u64,
        work: u64,
        operation: Operation,
        status: WorkStatus,
    ) {
        let endpoint = EndpointId(id);
        let invalidated = None;
        let completion = Completion { endpoint, work, operation, status, invalidated };
        self.events.push(Event::Completion(completion));
    }

    pub(super) fn received(&mut self, id: u64, work: u64, bytes: u32, invalidated: Option<u32>) {
        let (endpoint, operation) = (EndpointId(id), Operation::Receive);
        let status = WorkStatus::Ok(bytes);
        let completion = Completion { endpoint, work, operation, status, invalidated };
        self.events.push(Event::Completion(completion));
    }
}
