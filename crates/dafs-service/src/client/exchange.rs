//! NFSv4.1 client ids: EXCHANGE_ID, its confirmation, DESTROY_CLIENTID (RFC 8881 18.35, 18.36,
//! 18.50).

use super::table::ClientTable;
use super::{Client, ClientAddress, ClientKey, ClientKind, Clients, Identity};
use crate::Result;
use crate::error::ServiceError;
use crate::hosts::Host;
use crate::limits::CLIENT_NAME_BYTES_MAX;
use crate::records::ClientRecord;
use dafs_store::Wait;
use std::sync::Arc;

/// The arguments of EXCHANGE_ID.
#[derive(Debug, Clone)]
pub struct ExchangeId<'a> {
    /// Its own name (co_ownerid).
    pub owner: &'a [u8],
    /// Differs between two runs of the client (co_verifier).
    pub verifier: [u8; 8],
    /// The sender's identity.
    pub identity: Identity,
    /// The host whose share the client takes.
    pub host: Host,
    /// The sender's address.
    pub address: ClientAddress,
    /// EXCHGID4_FLAG_UPD_CONFIRMED_REC_A: the request is about the confirmed record only.
    pub update: bool,
    /// How far the request is protected, and a new record is to be.
    pub protection: Protection,
}

/// The protection of a request about a client's record (RFC 8881 2.10.8.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Protection {
    /// Others may have changed its arguments.
    #[default]
    None,
    /// The sender has proven its name, and no one else has changed the arguments.
    Integral,
    /// The same, and a new record takes later requests about it only in this way (SP4_MACH_CRED).
    Demanded,
}

impl ExchangeId<'_> {
    fn verifier(&self) -> u64 {
        u64::from_be_bytes(self.verifier)
    }

    /// True if a record is that of the sender. Another instance of a client must call from an
    /// address of the client: without state protection any sender could claim to be one, and end
    /// the client's state.
    fn is_of(&self, client: &Client) -> bool {
        let same = client.verifier == self.verifier() || client.calls_from(&self.address);
        client.identity == self.identity && same
    }

    /// True if the sender only claims who it is, and comes from an address from which the client of
    /// the record, which has proven its name, has not called.
    fn only_claims(&self, client: &Client) -> bool {
        client.identity.is_proven()
            && !self.identity.is_proven()
            && !client.calls_from(&self.address)
    }

    /// True if the request is protected as the record demands.
    fn satisfies(&self, client: &Client) -> bool {
        !client.is_protected() || self.protection != Protection::None
    }

    /// True if a record of an earlier run of the server is that of the sender.
    fn is_of_record(&self, record: &ClientRecord) -> bool {
        let same = record.verifier == self.verifier || self.address.may_be_recorded(&record.host);
        let satisfies = !record.is_protected() || self.protection != Protection::None;
        record.is_by(&self.identity) && same && satisfies
    }
}

/// The result of EXCHANGE_ID.
#[derive(Debug, Clone)]
pub struct Exchanged {
    /// The record.
    pub client: Arc<Client>,
    /// True when it is confirmed already (EXCHGID4_FLAG_CONFIRMED_R).
    pub confirmed: bool,
}

impl Clients {
    /// EXCHANGE_ID in all its nine cases (RFC 8881 18.35.5). A new record holds no state until
    /// [`confirm`](Self::confirm). Without that it is dropped after one lease.
    ///
    /// A restarted client that comes from another address is another principal (case 3) until its
    /// lease is over. A request that only claims who sends it takes the name of a client that has
    /// proven its own from no other address, as long as there is a record. The protection of a
    /// confirmed record does not change: a request that asks for another one finds the record as it
    /// is.
    ///
    /// # Errors
    /// `ClientInUse` (case 3, and after a restart of the server also for a client that grace waits
    /// for), `NoClient` (case 7), `NotSame` (case 8), `NotPrincipal` (case 9). `WrongCredential`
    /// for a protected record in cases 2, 5, 6 and 9 when the request is not protected. `Resource`
    /// when the name is too long. `Delay` when the disk fails.
    pub fn exchange_id(&self, request: &ExchangeId<'_>, now_ns: u64) -> Result<Exchanged> {
        if request.owner.len() > CLIENT_NAME_BYTES_MAX {
            return Err(ServiceError::Resource);
        }
        let verifier = request.verifier();
        let other = |client: &Arc<Client>| {
            let is_own = request.is_of(client) && request.satisfies(client);
            let may_take = !request.update && !is_own && !request.only_claims(client);
            may_take && self.is_over(client, now_ns)
        };
        let mut table = self.lock();
        let away = table.nfs.get(request.owner).and_then(|owner| owner.confirmed.clone());
        if let Some(away) = away.filter(other) {
            // Its lease is over and another client asks for its name: its state ends, and its
            // durable record first.
            drop(table);
            self.end_lease(&away, now_ns)?;
            table = self.lock();
        }
        let confirmed = table.nfs.get(request.owner).and_then(|owner| owner.confirmed.clone());
        let known = |client| Ok(Exchanged { client, confirmed: true });
        let displaced = match confirmed {
            None if request.update => return Err(ServiceError::NoClient),
            Some(old) if request.update => {
                if old.verifier != verifier {
                    return Err(ServiceError::NotSame);
                }
                if !request.satisfies(&old) {
                    return Err(ServiceError::WrongCredential);
                }
                if old.identity != request.identity {
                    return Err(match old.is_protected() {
                        true => ServiceError::WrongCredential,
                        false => ServiceError::NotPrincipal,
                    });
                }
                return known(old);
            }
            Some(old) if !request.is_of(&old) => {
                if self.is_in_use(&old) || request.only_claims(&old) {
                    return Err(ServiceError::ClientInUse);
                }
                // It holds no state, so the name goes to the new principal.
                Some(old)
            }
            Some(old) if !request.satisfies(&old) => return Err(ServiceError::WrongCredential),
            Some(old) if old.verifier == verifier => return known(old),
            // A restarted client: both records live until the new one is confirmed.
            Some(_) | None => None,
        };
        let owner = (ClientKind::Nfs, request.owner.to_vec());
        if self.awaits_another(owner, |record| request.is_of_record(record)) {
            return Err(ServiceError::ClientInUse);
        }
        if let Some(old) = &displaced {
            table.drop_record(old);
        }
        let (identity, host) = (request.identity.clone(), request.host);
        let client = table.enter_unconfirmed(request.owner, verifier, identity, host, now_ns);
        client.add_address(request.address);
        if request.protection == Protection::Demanded {
            client.protect();
        }
        drop(table);
        if let Some(old) = displaced {
            self.forget_record(&old);
            self.release(&old);
        }
        Ok(Exchanged { client, confirmed: false })
    }

    /// Finds the record of a key, confirmed or not.
    ///
    /// # Errors
    /// `StaleClientId` when there is none.
    pub fn find(&self, key: ClientKey) -> Result<Arc<Client>> {
        let table = self.lock();
        let client = table.by_key.get(&key).filter(|client| client.kind == ClientKind::Nfs);
        client.cloned().ok_or(ServiceError::StaleClientId)
    }

    /// Confirms a client, because it has used its key (CREATE_SESSION). From now on its record is
    /// the one of this name. Its lease starts, and the state of an older instance is released. For
    /// a record that is confirmed already nothing happens. May wait for the disk when it replaces
    /// an instance or has to make room.
    ///
    /// # Errors
    /// `StaleClientId` when there is no such record. `Resource` when its host has its share of
    /// clients. `Delay` when the disk fails.
    pub fn confirm(&self, key: ClientKey, now_ns: u64) -> Result<Arc<Client>> {
        let newcomer = |table: &ClientTable| {
            let client = table.by_key.get(&key).filter(|client| !client.is_confirmed())?;
            let owner = table.nfs.get(&client.name);
            let is_known = owner.is_some_and(|owner| owner.confirmed.is_some());
            (!is_known).then(|| client.host().host())
        };
        let mut table = self.with_room(newcomer, now_ns, Wait::Allowed)?;
        let client = table.by_key.get(&key).filter(|client| client.kind == ClientKind::Nfs);
        let client = client.cloned().ok_or(ServiceError::StaleClientId)?;
        client.renew(now_ns);
        if client.is_confirmed() {
            return Ok(client);
        }
        let old = table.confirm(&client);
        drop(table);
        if let Some(old) = old {
            // A failure does no harm: the record names the old verifier, and only a client with
            // that verifier may reclaim by it.
            self.forget_record(&old);
            let released = self.release(&old);
            tracing::info!(client = %old.name.escape_ascii(), released, "client has restarted");
        }
        self.confirmed(&client);
        Ok(client)
    }

    /// Removes a client that has no session and no state left (DESTROY_CLIENTID).
    ///
    /// # Errors
    /// `StaleClientId` when there is none, `ClientIdBusy` while it has a session or state.
    pub fn destroy(&self, key: ClientKey) -> Result<()> {
        let mut table = self.lock();
        let client = table.by_key.get(&key).filter(|client| client.kind == ClientKind::Nfs);
        let client = client.cloned().ok_or(ServiceError::StaleClientId)?;
        if self.is_in_use(&client) {
            return Err(ServiceError::ClientIdBusy);
        }
        table.drop_record(&client);
        drop(table);
        self.forget_record(&client);
        // It may have opened a file since the check.
        self.release(&client);
        Ok(())
    }

    /// True while it has a session or holds state.
    fn is_in_use(&self, client: &Client) -> bool {
        client.sessions() > 0 || self.state.lock().holds_anything(client.key)
    }
}
