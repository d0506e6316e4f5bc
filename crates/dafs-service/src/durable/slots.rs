//! Support for a front end whose sessions persist: its clients retry a request on the session of
//! the earlier run, with the same number (RFC 8881 2.10.6.5).
//!
//! Invariants
//! * An entry that is forgotten here was answered: if a crash brings its record back, no client
//!   asks for its numbers.

use super::ledger::Kept;
use super::{Durability, Durable};
use crate::client::Client;
use crate::durable;

impl Durable {
    /// True if replies to all changes of clients are kept, in every export, and there is room for
    /// those of another session.
    pub fn keeps_all_replies(&self) -> bool {
        let namespace = self.exports.namespace();
        let keeps = |options: &crate::ExportOptions| {
            options.read_only || options.durable_replies != Durability::Off
        };
        self.journal.get().is_some_and(|journal| journal.lock().has_room())
            && namespace.exports().all(|export| keeps(export.options()))
            && namespace.exports().any(|export| !export.options().read_only)
    }

    /// Forgets the entries of a session of this run by their streams: their client has the replies.
    pub fn forget_answers(&self, session: &[u8; 8], streams: impl Iterator<Item = u16>) {
        let Some(journal) = self.journal.get() else { return };
        let mut ledger = journal.lock();
        for stream in streams {
            ledger.remove(session, stream);
        }
    }

    /// Forgets the sessions of other instances of a client: it has restarted and asks for none of
    /// their replies. Clients of another principal with its name, or of another host, do not count.
    /// `mechanism` is that of the front end's sessions.
    pub fn forget_other_runs(&self, client: &Client, mechanism: &str) {
        let Some(journal) = self.journal.get() else { return };
        // Earlier versions kept the address also of users of this host.
        let (host, earlier) = (client.host().host().to_bytes(), client.earlier_hosts());
        let other = |session: &durable::Session| {
            session.mechanism == mechanism
                && session.principal == client.identity().principal
                && session.client == client.name()
                && (session.host == host || earlier.contains(&session.host))
                && session.verifier != client.verifier()
        };
        let other = |kept: &Kept| kept.recovered && kept.session.as_ref().is_some_and(other);
        let ledger = journal.lock();
        let sessions = ledger.sessions.iter().filter(|(_, kept)| other(kept));
        let ids: Vec<_> = sessions.map(|(id, _)| *id).collect();
        drop(ledger);
        ids.iter().for_each(|id| self.forget_session(id));
    }
}
