//! Sessions, for administrators.

use super::administration::Administration;
use crate::admin::SessionReport;
use dafs_engine::SessionFacts;
use dafs_nfs::NfsSessionFacts;
use dafs_service::{Client, ClientInfo, ClientKey};
use std::collections::HashMap;

type Infos<'a> = HashMap<ClientKey, &'a ClientInfo>;

impl Administration {
    /// Returns all sessions, those of DAFS clients first.
    pub(super) fn sessions(&self) -> Vec<SessionReport> {
        let now_ns = dafs_dat::Instant::now().0;
        let clients = self.service.clients.info(now_ns);
        let clients: Infos<'_> = clients.iter().map(|info| (info.client.key(), info)).collect();
        let mut dafs = self.survey();
        dafs.sort_by_key(|facts| (facts.client.key(), facts.age_seconds, facts.id));
        let nfs = self.nfs.as_ref().map(|nfs| nfs.session_facts(now_ns));
        let mut nfs = nfs.unwrap_or_default();
        nfs.sort_by_key(|facts| (facts.client.key(), facts.age_seconds, facts.id));
        let dafs = dafs.iter().map(|facts| of_dafs(facts, &clients));
        dafs.chain(nfs.iter().map(|facts| of_nfs(facts, &clients))).collect()
    }

    /// Returns the reactors' information on their sessions.
    pub(super) fn survey(&self) -> Vec<SessionFacts> {
        self.registry.survey()
    }
}

fn text(bytes: &[u8]) -> String {
    bytes.escape_ascii().to_string()
}

/// Returns a report that names the client and counts its state.
fn of_client(client: &Client, clients: &Infos<'_>) -> SessionReport {
    let info = clients.get(&client.key());
    SessionReport {
        client: client.key().0,
        name: text(client.name()),
        opens: info.map_or(0, |info| info.opens as u64),
        locks: info.map_or(0, |info| info.locks as u64),
        delegations: info.map_or(0, |info| info.delegations as u64),
        ..SessionReport::default()
    }
}

fn of_dafs(facts: &SessionFacts, clients: &Infos<'_>) -> SessionReport {
    SessionReport {
        front_end: "dafs".to_owned(),
        session: format!("{:016x}", u64::from_be_bytes(facts.id)),
        fence_id: (!facts.fence_id.is_empty()).then(|| text(&facts.fence_id)),
        peer: facts.peer.clone(),
        transport: facts.transport.to_owned(),
        trusted: facts.trusted,
        checksums: facts.checksums,
        age_seconds: facts.age_seconds,
        credits: facts.credits,
        weight: facts.weight,
        share: facts.share,
        in_flight: facts.in_flight,
        replies: facts.replies.map(|(count, _)| count as u64),
        replies_bytes: facts.replies.map(|(_, bytes)| bytes as u64),
        ..of_client(&facts.client, clients)
    }
}

fn of_nfs(facts: &NfsSessionFacts, clients: &Infos<'_>) -> SessionReport {
    let number = |slots| u16::try_from(slots).unwrap_or(u16::MAX);
    SessionReport {
        front_end: "nfs4".to_owned(),
        session: format!("{:032x}", u128::from_be_bytes(facts.id)),
        peer: facts.client.peer(),
        age_seconds: facts.age_seconds,
        credits: number(facts.slots),
        weight: facts.weight,
        share: facts.share.map(number),
        in_flight: number(facts.in_flight),
        replies: Some(facts.cached as u64),
        replies_bytes: Some(facts.cached_bytes as u64),
        ..of_client(&facts.client, clients)
    }
}
