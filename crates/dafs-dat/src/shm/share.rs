//! The regions that this side shares with a peer, and the control packets of a connection.
//!
//! Invariants
//! * A key is in its slot before the peer learns of the slot, and is removed from it before
//!   `deregister` returns.
//! * Sharing a region is only an optimisation: the ring reaches all memory that cannot be shared. It
//!   does not reach granted regions, which are in no domain of a connection.

use super::arena::Arena;
use super::conn::{Conn, Stage};
use super::limits::{KEY_SLOTS, PACKETS_PER_POLL, PACKETS_QUEUED_MAX};
use super::packet::{Packet, RegionPacket};
use super::sys::{self, Budget};
use crate::descriptors::Watch;
use crate::error::DisconnectReason;
use crate::types::{Access, ProtectionDomain};
use dafs_mem::Buffer;
use rustc_hash::FxHashMap;
use rustix::io::Errno;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// A registration that can be shared with peers.
#[derive(Debug)]
pub(super) struct Shareable {
    pub(super) domain: ProtectionDomain,
    pub(super) key: u32,
    pub(super) access: Access,
    pub(super) buffer: Arc<Buffer>,
}

/// The slots in use on one connection.
#[derive(Debug, Default)]
pub(super) struct SharedRegions {
    slots: FxHashMap<u32, u16>,
    free: Vec<u16>,
    next: u16,
}

impl SharedRegions {
    fn take_slot(&mut self, key: u32) -> Option<u16> {
        let slot = self.free.pop().or_else(|| {
            let fresh = self.next;
            ((fresh as usize) < KEY_SLOTS).then(|| {
                self.next += 1;
                fresh
            })
        })?;
        self.slots.insert(key, slot);
        Some(slot)
    }

    fn release(&mut self, key: u32) -> Option<u16> {
        let slot = self.slots.remove(&key)?;
        self.free.push(slot);
        Some(slot)
    }
}

impl Conn {
    /// Shares a region with the peer, if its memory is shareable and a slot is free. Returns true if
    /// it is shared.
    pub(super) fn share(&mut self, region: &Shareable) -> bool {
        let Some(arena) = Arena::of(&region.buffer) else { return false };
        if !matches!(self.stage, Stage::Open) || self.packets.len() >= PACKETS_QUEUED_MAX {
            return false;
        }
        let Ok(file) = arena.descriptor(region.access) else { return false };
        let Some(slot) = self.shared_regions.take_slot(region.key) else { return false };
        self.control.set_key(slot, region.key);
        let packet = Packet::Region(RegionPacket {
            key: region.key,
            slot,
            access: region.access,
            address: region.buffer.as_ptr() as u64,
            len: region.buffer.len() as u64,
        });
        self.packets.push_back((packet.encode(), Some(file)));
        self.send_packets();
        true
    }

    /// Withdraws a region. The peer can no longer use it when this returns, except for a copy in
    /// progress.
    pub(super) fn withdraw(&mut self, key: u32) {
        if let Some(slot) = self.shared_regions.release(key) {
            self.control.set_key(slot, 0);
            self.packets.push_back((Packet::Withdraw { key }.encode(), None));
            self.send_packets();
        }
    }

    /// Sends queued packets as far as the socket takes them.
    pub(super) fn send_packets(&mut self) {
        while let (Some(socket), Some((bytes, file))) = (&self.socket, self.packets.front()) {
            if !socket.is_ours() {
                self.lost(Watch::LOST);
                return self.packets.clear();
            }
            match sys::send(socket.as_fd(), bytes, file.as_ref().map(AsFd::as_fd)) {
                Ok(()) => {
                    if file.is_some() {
                        self.control.count_region_packet();
                    }
                    self.packets.pop_front();
                }
                // The kernel also limits how many descriptors are in flight at a time.
                Err(Errno::AGAIN | Errno::TOOMANYREFS | Errno::NOBUFS) => return,
                Err(error) => {
                    self.lost(&error.to_string());
                    self.packets.clear();
                }
            }
        }
    }

    /// Wakes the peer if it sleeps, and sends queued packets again that the socket did not take. A
    /// full fence is required before this call.
    pub(super) fn ring_doorbell(&mut self) {
        if !self.packets.is_empty() {
            self.send_packets();
        }
        if !self.control.take_peer_sleep(self.published) {
            self.unlooked |= self.published;
            return;
        }
        self.unlooked = false;
        let Some(socket) = &self.socket else { return };
        if !socket.is_ours() {
            return self.lost(Watch::LOST);
        }
        match sys::send(socket.as_fd(), super::packet::DOORBELL_BYTES, None) {
            // A full socket is readable at the other end, so the peer is awake already.
            Ok(()) | Err(Errno::AGAIN) => {}
            Err(error) => self.lost(&error.to_string()),
        }
    }

    /// Checks before a sleep that the program has not closed the socket; without it no event could
    /// end the sleep.
    pub(super) fn look_at_socket(&mut self) {
        if !std::mem::take(&mut self.unlooked) {
            return;
        }
        if self.socket.as_ref().is_some_and(|socket| !socket.is_ours()) {
            self.lost(Watch::LOST);
        }
    }

    /// Records that the peer is gone, unless the socket holds a better reason. Region packets in
    /// the socket are of no use any more, so none may be mapped.
    fn lost(&mut self, text: &str) {
        let reason = match self.read_packets(&sys::NO_MAPPINGS) {
            Ok(()) => DisconnectReason::Lost(text.to_owned()),
            Err(reason) => reason,
        };
        self.end.get_or_insert(reason);
    }

    /// True if the peer has sent region packets that were not read yet.
    pub(super) fn region_packets_wait(&self) -> bool {
        self.control.peer_region_packets() != self.region_packets_seen
    }

    /// Reads the packets in the socket of an open connection. `mappings` is the budget for mapping
    /// the peer's regions.
    pub(super) fn read_packets(
        &mut self,
        mappings: &'static Budget,
    ) -> Result<(), DisconnectReason> {
        for _ in 0..PACKETS_PER_POLL {
            let Some(socket) = self.socket.as_ref().filter(|_| self.end.is_none()) else {
                return Ok(());
            };
            if !socket.is_ours() {
                return Err(DisconnectReason::Lost(Watch::LOST.to_owned()));
            }
            let packet = match sys::receive(socket.as_fd()) {
                Ok(packet) => packet,
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => continue,
                Err(error) => return Err(DisconnectReason::Lost(error.to_string())),
            };
            if packet.len == 0 {
                self.end = Some(DisconnectReason::Lost("the peer process has gone".to_owned()));
                return Ok(());
            }
            let protocol = |text: &str| DisconnectReason::Protocol(text.to_owned());
            if packet.truncated {
                return Err(protocol("a control packet that is too long"));
            }
            let message = Packet::decode(&packet.bytes[..packet.len]).map_err(protocol)?;
            if packet.descriptor_lost {
                // The ring reaches a region that cannot be mapped here.
                tracing::warn!(peer = %self.peer, "no file descriptor left for a peer's memory");
                if matches!(message, Packet::Region(_)) {
                    self.region_packets_seen = self.region_packets_seen.wrapping_add(1);
                    continue;
                }
            }
            self.take_packet(message, packet.descriptor, mappings).map_err(protocol)?;
        }
        Ok(())
    }

    fn take_packet(
        &mut self,
        packet: Packet,
        file: Option<OwnedFd>,
        mappings: &'static Budget,
    ) -> Result<(), &'static str> {
        match packet {
            Packet::Doorbell => {}
            Packet::Region(region) => {
                self.region_packets_seen = self.region_packets_seen.wrapping_add(1);
                let file = file.ok_or("a region without its memory file")?;
                self.regions.add(region, file, mappings)?;
            }
            Packet::Withdraw { key } => self.regions.remove(key),
            Packet::Close => self.end = Some(DisconnectReason::Peer),
            Packet::Terminate { text } => self.end = Some(DisconnectReason::Terminated(text)),
            Packet::Hello { .. }
            | Packet::Accept { .. }
            | Packet::Reject { .. }
            | Packet::Refuse { .. } => return Err("a set-up packet on an open connection"),
        }
        Ok(())
    }
}
