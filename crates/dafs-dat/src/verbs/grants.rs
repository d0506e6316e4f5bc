//! Memory that the peer of one connection may read.
//!
//! Where the device has memory windows of type 2B, a grant is a window: it serves the queue pair to
//! which it is bound, and all windows of a buffer share one registration. Elsewhere only the domain
//! separates connections. So a connection that is to have grants gets a domain of its own, and each grant
//! is a registration there, which counts against the limit on locked memory again.
//!
//! Invariants
//! * A key is handed out when the device accepts it.
//! * The end of a grant returns when the device refuses its key. Windows end before their queue pair.
//! * The device keeps the pages of granted memory, whatever becomes of their mapping.

use super::adapter::VerbsAdapter;
use super::limits;
use super::memory::{Grant, Held};
use super::sys::Domain;
use super::teardown::End;
use super::window::Window;
use crate::{ConnectError, DisconnectReason, Instant, MemoryRegion, RegionId, RegisterError};
use dafs_mem::Buffer;
use std::io;
use std::sync::Arc;
use std::time::Duration;

impl VerbsAdapter {
    /// The domain of a connection that is to have grants, if it needs its own.
    pub(super) fn domain_for_grants(&mut self) -> Result<Option<Arc<Domain>>, ConnectError> {
        let device = self.chosen.device;
        if self.chosen.has_windows && !std::mem::replace(&mut self.has_tried_windows, true) {
            // A device may have them, and its driver not.
            let tried = device.domain().and_then(|domain| Window::new(&domain).map(drop));
            if let Err(error) = tried {
                tracing::info!(%error, "no memory windows; each grant is a registration");
                self.chosen.has_windows = false;
            }
        }
        if self.chosen.has_windows || !self.chosen.may_grant() {
            return Ok(None);
        }
        Ok(Some(Arc::new(device.domain()?)))
    }

    pub(super) fn add_grant(&mut self, id: u64, buffer: &Arc<Buffer>) -> Option<MemoryRegion> {
        // The bind of a window would wait for a device that was removed.
        if self.is_removed || !self.chosen.may_grant() {
            return None;
        }
        let has_windows = self.chosen.has_windows;
        let connection = self.connection_mut(id)?;
        if !connection.is_open() || !connection.is_usable() {
            return None;
        }
        let granted = match connection.own_domain.clone() {
            _ if buffer.is_empty() => return None,
            Some(own) => self.memory.grant_in(&own, buffer),
            None if has_windows => self.grant_window(id, buffer),
            None => return None,
        };
        let region = match granted {
            Ok(region) => region,
            Err(error) => {
                // The peer goes on without.
                let is_limit = matches!(error, RegisterError::LockedMemory { .. });
                if is_limit && !std::mem::replace(&mut self.has_told_limit, true) {
                    tracing::warn!(
                        %error,
                        "no more memory is granted to peers: connections keep half of the limit"
                    );
                } else {
                    tracing::debug!(%error, "memory is not granted to a peer");
                }
                return None;
            }
        };
        let Some(connection) = self.connection_mut(id) else {
            self.memory.deregister(region.id);
            return None;
        };
        connection.grants.push(region.id);
        Some(region)
    }

    /// Ends a grant, also after the end of its connection.
    pub(super) fn end_grant(&mut self, id: u64, region: RegionId) {
        if let Some(connection) = self.connection_mut(id) {
            connection.grants.retain(|known| *known != region);
        }
        self.memory.deregister(region);
    }

    fn grant_window(
        &mut self,
        id: u64,
        buffer: &Arc<Buffer>,
    ) -> Result<MemoryRegion, RegisterError> {
        let domain = self.connection_mut(id).ok_or_else(not_connected)?.domain;
        let (window, shared) = self.memory.window(domain, buffer)?;
        let key = window.key();
        if let Err(error) = self.bind(id, &window, &shared) {
            // Before its registration.
            drop(window);
            return Err(error.into());
        }
        let grant = Grant::Window { _window: window, _shared: shared };
        Ok(self.memory.add_grant(buffer, key, grant))
    }

    /// Binds a window to the queue pair of a connection, and waits until the device has done so. That
    /// takes a device as long as its part of a registration does, and depends on no peer: a bind does not
    /// begin behind messages that the peer has still to acknowledge.
    fn bind(&mut self, id: u64, window: &Window, shared: &Held) -> io::Result<()> {
        self.hand_over();
        self.reap();
        let connection = self.connection_mut(id).ok_or_else(not_connected)?;
        if !connection.is_open() {
            return Err(not_connected());
        }
        if !connection.is_sent() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let place = (shared.buffer.as_ptr() as u64, shared.buffer.len() as u64);
        let operands = (window, &shared.registration.registration);
        connection.cm.post_bind(id, operands, place, connection.is_written)?;
        connection.sends.push_back(None);
        let until = Instant::now() + Duration::from_secs(limits::BIND_SECONDS);
        loop {
            self.reap();
            let connection = self.connection_mut(id).ok_or_else(not_connected)?;
            if !connection.is_open() {
                return Err(not_connected());
            }
            if connection.sends.is_empty() {
                return Ok(());
            }
            if Instant::now() >= until {
                let text = "the RDMA device binds no memory window";
                self.end(id, End::Because(DisconnectReason::Lost(text.to_owned())));
                return Err(io::Error::new(io::ErrorKind::TimedOut, text));
            }
            // A device in software needs the CPU.
            std::thread::yield_now();
        }
    }
}

fn not_connected() -> io::Error {
    io::ErrorKind::NotConnected.into()
}
