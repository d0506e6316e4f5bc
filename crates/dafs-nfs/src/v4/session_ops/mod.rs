//! Operations on clients, sessions, file handles and state-ids as such. None uses a file, or the
//! engine. SEQUENCE alone takes a slot.

pub(super) mod bind;
mod channel;
pub(super) mod create_session;
pub(super) mod destroy;
pub(super) mod exchange_id;
pub(super) mod handles;
pub(super) mod reclaim;
pub(super) mod secinfo;
pub(super) mod sequence;
pub(super) mod stateids;
