//! Credits under pressure: each session aims at a share by its weight (DAFS 7).
//!
//! Invariants
//! * The shares come from all sessions of a transport at once, so that they fit what there is.
//! * Every session keeps one credit (DAFS 7), whatever the weights are.
//! * Only a reply changes credits. A session that sends nothing gives nothing back.

use super::connection::{Connection, Phase};
use super::request::Context;
use super::{Engine, Port};
use crate::limits::{CREDITS_RESERVED_SHARE, CREDITS_SHARED_TIME, SessionLimits};
use dafs_dat::Instant;
use dafs_service::{Claim, Importance, Level, SessionFrom, Weight, divide};
use std::net::Ipv4Addr;

/// The division of one transport's credits.
#[derive(Debug)]
pub(super) struct CreditShares {
    /// The level while sessions want more than there is.
    pub(super) level: Option<Level>,
    /// When the shares are computed again, at the latest.
    due: Instant,
    /// A session has begun or ended since.
    pub(super) is_stale: bool,
    /// The claims of the last division, kept for their memory.
    claims: Vec<Claim>,
}

impl Default for CreditShares {
    fn default() -> Self {
        Self { level: None, due: Instant(0), is_stale: false, claims: Vec::new() }
    }
}

/// The weight of a connection's session, and the version of the rules that gave it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Weighed {
    pub(super) weight: Weight,
    /// `None` before the session was weighed.
    version: Option<u64>,
}

impl Connection {
    /// Weighs its session, unless the same rules did already.
    pub(super) fn weigh(&mut self, importance: &Importance) {
        let version = Some(importance.version());
        if self.weighed.version == version {
            return;
        }
        let Some(session) = &self.session else { return };
        let Some(proven) = &session.proven else { return };
        let is_local = self.peer.is_local || self.peer.process.is_some();
        let address = match self.peer.address {
            _ if is_local => Some(Ipv4Addr::LOCALHOST.into()),
            address => address.map(|address| address.ip()),
        };
        let (user, client) = (proven.admission.cred.uid, &*session.client_name);
        let weight = importance.weigh(&SessionFrom { user, address, client });
        self.weighed = Weighed { weight, version };
    }

    /// Returns the share of its session, while credits are scarce.
    pub(super) fn share(&self, limits: &SessionLimits, level: Option<Level>) -> Option<u16> {
        let part = level?.part(&self.credits.claim(limits, self.weighed.weight));
        Some(u16::try_from(part).unwrap_or(u16::MAX))
    }

    /// Returns the credits that its session is asked to give back.
    pub(super) fn owed(&self, limits: &SessionLimits, level: Option<Level>) -> u16 {
        let share = self.share(limits, level).filter(|_| self.phase == Phase::Ready);
        share.map_or(0, |share| self.credits.nreq.saturating_sub(share))
    }
}

impl Context<'_> {
    /// Has the session that has just begun weighed, and the credits divided again.
    pub(super) fn begin_share(&mut self) {
        self.connection.weigh(&self.shared.service.importance);
        self.link.shares.is_stale = true;
    }
}

impl Engine {
    /// Divides the credits of each transport that has too few.
    pub(super) fn share_credits(&mut self, now: Instant) {
        let (limits, importance) = (&self.shared.limits, &self.shared.service.importance);
        let supply = limits.credits_total_max - limits.credits_total_max / CREDITS_RESERVED_SHARE;
        for Port { link, connections, .. } in &mut self.ports {
            let shares = &mut link.shares;
            let is_short = shares.level.is_some() || link.credits > supply;
            if !is_short || !shares.is_stale && now < shares.due {
                continue;
            }
            shares.claims.clear();
            let mut others = 0;
            for connection in connections.values_mut() {
                if connection.phase == Phase::Ready {
                    connection.weigh(importance);
                    shares.claims.push(connection.credits.claim(limits, connection.weighed.weight));
                } else {
                    others += usize::from(connection.credits.nreq);
                }
            }
            shares.level = divide(supply.saturating_sub(others) as u64, &shares.claims);
            shares.due = now + CREDITS_SHARED_TIME;
            shares.is_stale = false;
        }
    }
}
