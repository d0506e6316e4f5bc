//! Clients that are back after an orderly hand-over, with all that they held.
//!
//! Invariants
//! * A client counts as complete when its state is the one that it held when the former server ended:
//!   then it has nothing left to reclaim, and need not say so.
//! * A digest stands for a client and its state. One that is unknown here, such as that of another
//!   version, costs time alone: the client is awaited as after a crash.
//! * Clients with layouts have none, because what they wrote is still to be told.

use super::name_of;
use crate::client::{Client, Clients, Holding};
use crate::limits::STATE_DIGESTED_MAX;
use crate::records::ClientRecord;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Clients {
    /// Returns a digest of each client that need not say when it has reclaimed all, with its state. The
    /// server calls it at an orderly end, when no request is served any more.
    pub fn state_digests(&self) -> Vec<u64> {
        let (mut digests, mut room) = (Vec::new(), STATE_DIGESTED_MAX);
        for client in self.without_completion() {
            // One that was still reclaiming may do so at the next server, too.
            if let Some((digest, pieces)) = self.digest(&client, room)
                && !self.awaits(&client)
            {
                digests.push(digest);
                room -= pieces;
            }
        }
        digests
    }

    /// Takes the digests of the former server, before any client comes. Grace ends when all clients hold again
    /// what they held there, or have completed their reclaims.
    pub fn expect_states(&self, digests: Vec<u64>) {
        self.grace.expects.store(!digests.is_empty(), Ordering::Relaxed);
        self.grace.lock().expected = digests.into_iter().collect();
    }

    /// Waits no more for clients that hold all that they held before. Looks at all state of the awaited ones,
    /// so it is not for each tick.
    pub(crate) fn find_returned(&self) {
        if !self.grace.expects.load(Ordering::Relaxed) || !self.in_grace() {
            return;
        }
        for client in self.without_completion().into_iter().filter(|client| self.awaits(client)) {
            let digest = self.digest(&client, STATE_DIGESTED_MAX);
            let is_back = digest.is_some_and(|(it, _)| self.grace.lock().expected.contains(&it));
            if is_back {
                self.count_complete(&client);
            }
        }
    }

    fn without_completion(&self) -> Vec<Arc<Client>> {
        let clients = self.lock();
        let own = clients.by_key.values().filter(|client| client.kind().is_recorded_with_state());
        own.cloned().collect()
    }

    /// True if grace waits for this client to reclaim.
    fn awaits(&self, client: &Client) -> bool {
        let is_its = |record: &ClientRecord| record.is_of(client);
        self.in_grace() && self.grace.lock().waiting.get(&name_of(client)).is_some_and(is_its)
    }

    /// Returns a digest of a client and its state, and the number of pieces of that. `None` if it holds
    /// nothing, more than `max` pieces, or layouts.
    fn digest(&self, client: &Client, max: usize) -> Option<(u64, usize)> {
        let held = self.holdings(client.key(), max + 1).ok().filter(|held| held.len() <= max)?;
        let mut pieces = Vec::with_capacity(held.len());
        for piece in held {
            pieces.push(match piece {
                Holding::Layout { .. } => return None,
                Holding::Lock { ranges, .. } if ranges.is_empty() => continue,
                Holding::Lock { handle, owner, mut ranges } => {
                    ranges.sort_unstable();
                    digest_of(&Holding::Lock { handle, owner, ranges })
                }
                Holding::Delegation { handle, kind, .. } => {
                    digest_of(&Holding::Delegation { handle, kind, recalled: false })
                }
                open @ Holding::Open { .. } => digest_of(&open),
            });
        }
        pieces.sort_unstable();
        let client = (client.kind(), client.name(), client.verifier());
        (!pieces.is_empty()).then(|| (digest_of(&(client, &pieces)), pieces.len()))
    }
}

/// A hash without a key, so that two processes agree on it.
fn digest_of(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}
