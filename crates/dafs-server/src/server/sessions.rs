//! Sessions, for administrators.

use super::administration::Administration;
use crate::admin::SessionReport;
use dafs_engine::SessionFacts;
use dafs_service::{ClientInfo, ClientKey};
use std::collections::HashMap;

impl Administration {
    /// Returns all sessions of DAFS clients.
    pub(super) fn sessions(&self) -> Vec<SessionReport> {
        let clients = self.service.clients.info(dafs_dat::Instant::now().0);
        let clients: HashMap<ClientKey, &ClientInfo> =
            clients.iter().map(|info| (info.client.key(), info)).collect();
        let mut facts = self.survey();
        facts.sort_by_key(|facts| (facts.client.key(), facts.age_seconds, facts.id));
        let report = |facts: &SessionFacts| {
            let info = clients.get(&facts.client.key());
            let text = |bytes: &[u8]| bytes.escape_ascii().to_string();
            SessionReport {
                session: format!("{:016x}", u64::from_be_bytes(facts.id)),
                client: facts.client.key().0,
                name: text(facts.client.name()),
                fence_id: (!facts.fence_id.is_empty()).then(|| text(&facts.fence_id)),
                peer: facts.peer.clone(),
                transport: facts.transport.to_owned(),
                trusted: facts.trusted,
                checksums: facts.checksums,
                age_seconds: facts.age_seconds,
                credits: facts.credits,
                in_flight: facts.in_flight,
                replies: facts.replies.map(|(count, _)| count as u64),
                replies_bytes: facts.replies.map(|(_, bytes)| bytes as u64),
                opens: info.map_or(0, |info| info.opens as u64),
                locks: info.map_or(0, |info| info.locks as u64),
                delegations: info.map_or(0, |info| info.delegations as u64),
            }
        };
        facts.iter().map(report).collect()
    }

    /// Returns the reactors' information on their sessions.
    pub(super) fn survey(&self) -> Vec<SessionFacts> {
        self.registry.survey()
    }
}
