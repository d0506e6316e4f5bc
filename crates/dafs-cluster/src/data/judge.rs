//! The data server's questions to its metadata server: the rights of clients, the sizes of files,
//! and bytes on other nodes.

use super::{DataNode, Shared};
use crate::grants::Made;
use crate::limits::{ASK_TIME, ASKS_MAX, CALL_TIME};
use crate::refusal::{taken, to_service};
use crate::remote::{gather, scatter};
use crate::time;
use dafs_mem::VolatileSlice;
use dafs_service::{ForeignUse, ServiceError};
use dafs_store::node::{ComponentHandle, ComponentId, Elsewhere};
use dafs_store::{Result, Stability, StoreError};
use dafs_wire::cluster::{
    Answer, Call, DATA_BYTES_MAX, HANDLE_BYTES_MAX, MECHANISM_BYTES_MAX, OWNER_BYTES_MAX,
    PRINCIPAL_BYTES_MAX, StateUse,
};
use dafs_wire::xdr::{Encode, Encoder};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

/// Asks the metadata server. It lives as long as the data server.
#[derive(Clone)]
pub struct Judge {
    pub(super) shared: Arc<Shared>,
}

impl std::fmt::Debug for Judge {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Judge")
    }
}

impl DataNode {
    /// Returns the judge, for the front end of clients.
    pub fn judge(&self) -> Judge {
        Judge { shared: self.shared.clone() }
    }
}

impl Judge {
    /// Checks that a client may use a component. A write may come
    /// only by a session that is not older now than the returned age, if there is one. The caller
    /// calls it while the use [is counted](dafs_store::node::ComponentFile::begin_use).
    ///
    /// # Errors
    /// The metadata server's. `Delay` while it cannot be asked.
    pub fn check(
        &self,
        component: &ComponentId,
        wanted: &ForeignUse<'_>,
    ) -> dafs_service::Result<Option<Duration>> {
        let ForeignUse { owner, identity, component: handle, state, write, caller, .. } = *wanted;
        let security = wanted.security.to_string();
        let address = caller.map_or(Ipv6Addr::UNSPECIFIED, |caller| match caller.address {
            IpAddr::V4(address) => address.to_ipv6_mapped(),
            IpAddr::V6(address) => address,
        });
        let wanted = StateUse {
            owner,
            mechanism: identity.mechanism.as_bytes(),
            principal: &identity.principal,
            handle,
            state: state.id.0,
            seqid: state.seqid,
            write,
            flavour: caller.map_or("", |caller| caller.flavour.name()).as_bytes(),
            address: address.octets(),
            privileged: caller.is_some_and(|caller| caller.privileged),
            security: security.as_bytes(),
        };
        // The metadata server never issues a value that it could not read itself.
        if owner.len() > OWNER_BYTES_MAX
            || wanted.mechanism.len() > MECHANISM_BYTES_MAX
            || wanted.principal.len() > PRINCIPAL_BYTES_MAX
            || handle.len() > HANDLE_BYTES_MAX
        {
            return Err(ServiceError::BadStateId);
        }
        let mut key = Vec::new();
        // The sequence number is compared, and not a part of the key.
        StateUse { seqid: 0, ..wanted.clone() }.encode(&mut Encoder::new(&mut key));
        let seqid = state.seqid;
        let believed = self.shared.grants.lock().allow(component, (&key, seqid), time::now());
        if let Some(made) = believed {
            return Ok(age(made));
        }
        for _ in 0..ASKS_MAX {
            let question = self.shared.grants.lock().ask(*component, time::now());
            let answer =
                self.ask(Call::CheckState(wanted.clone()), ASK_TIME, |answer| match answer {
                    Answer::Done => Ok(None),
                    Answer::DoneWithin { age_ns } => Ok(Some(Duration::from_nanos(age_ns))),
                    Answer::Refused(number) => Err(to_service(number)),
                    _ => Err(ServiceError::Delay),
                });
            let answer = answer.unwrap_or(Err(ServiceError::Delay));
            // The time on the way counts as a later moment.
            let made = answer.map(|age| age.map(|age| time::now().saturating_sub(age)));
            let known = (key.as_slice().into(), seqid);
            let current =
                self.shared.grants.lock().answered(question, known, made.ok(), time::now());
            // A refusal may be out of date as well, but does no harm.
            if current || made.is_err() {
                return made.map(age);
            }
        }
        Err(ServiceError::Delay)
    }

    /// Returns the size of the file of a component.
    ///
    /// # Errors
    /// [`StoreError::Busy`] while it is not known.
    pub fn size(&self, component: &ComponentId) -> Result<u64> {
        let call = Call::FileSize { component: component.0 };
        self.take(call, ASK_TIME, |answer| match answer {
            Answer::Size(size) => Some(size),
            _ => None,
        })
    }

    fn take<T>(
        &self,
        call: Call<'_>,
        limit: Duration,
        take: impl FnOnce(Answer<'_>) -> Option<T>,
    ) -> Result<T> {
        self.ask(call, limit, |answer| taken(answer, take))?
    }

    fn ask<T>(
        &self,
        call: Call<'_>,
        limit: Duration,
        take: impl FnOnce(Answer<'_>) -> T,
    ) -> Result<T> {
        let link = self.shared.link.lock().clone();
        link.ok_or(StoreError::Busy)?.call(call, limit, take).map_err(|_| StoreError::Busy)
    }
}

impl Elsewhere for Judge {
    fn read(
        &self,
        handle: &ComponentHandle,
        views: &[VolatileSlice<'_>],
        offset: u64,
    ) -> Result<usize> {
        let wanted: usize = views.iter().map(VolatileSlice::len).sum();
        let len = wanted.min(DATA_BYTES_MAX);
        let component = handle.component.0;
        let call = Call::ReadFile { component, offset, len: len as u32 };
        let _turn = self.shared.elsewhere.enter()?;
        self.take(call, CALL_TIME, |answer| match answer {
            Answer::Data(data) if data.len() <= len => {
                scatter(data, views, 0);
                Some(data.len())
            }
            _ => None,
        })
    }

    /// The data is always stable then, because a commit here would not reach it.
    fn write(
        &self,
        handle: &ComponentHandle,
        views: &[VolatileSlice<'_>],
        offset: u64,
        _stability: Stability,
    ) -> Result<usize> {
        let wanted: usize = views.iter().map(VolatileSlice::len).sum();
        let _turn = self.shared.elsewhere.enter()?;
        let data = gather(views, 0, wanted.min(DATA_BYTES_MAX));
        let call = Call::WriteFile { component: handle.component.0, offset, data: &data };
        self.take(call, CALL_TIME, |answer| match answer {
            Answer::Written { count, .. } if count as usize <= data.len() => Some(count as usize),
            _ => None,
        })
    }
}

/// The age that a session may have now.
fn age(made: Made) -> Option<Duration> {
    made.map(|made| time::now().saturating_sub(made))
}
