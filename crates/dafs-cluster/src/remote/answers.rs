//! The metadata server's answers to a data server.

use super::{Metadata, Shared};
use crate::link::{Answers, Pace};
use crate::refusal::{of_service, of_store};
use crate::time;
use dafs_mem::VolatileSlice;
use dafs_service::{Flavour, ForeignUse, Identity, NfsCaller, ServiceError, StateId, StateRef};
use dafs_store::StoreError;
use dafs_store::node::ComponentId;
use dafs_wire::cluster::{Answer, Call, StateUse};
use std::net::Ipv6Addr;
use std::sync::Arc;
use std::time::Duration;

pub(super) struct MetadataAnswers {
    pub(super) node: Arc<Shared>,
}

impl MetadataAnswers {
    fn check(
        &self,
        metadata: &dyn Metadata,
        wanted: &StateUse<'_>,
    ) -> dafs_service::Result<Option<Duration>> {
        // Before the check: a later `drop_grants` must know of this question.
        let mut state = self.node.lock();
        state.asked = state.asked.max(time::now());
        drop(state);
        let known = ["none", "sys", "text", "gss", "tls"];
        let mechanism = known.into_iter().find(|known| known.as_bytes() == wanted.mechanism);
        let mechanism = mechanism.ok_or(ServiceError::BadStateId)?;
        let identity = Identity { mechanism, principal: wanted.principal.to_vec() };
        let caller = match wanted.flavour {
            b"" => None,
            name => {
                let known = |flavour: &Flavour| flavour.name().as_bytes() == name;
                let flavour = Flavour::ALL.into_iter().find(known).ok_or(StoreError::Access)?;
                let address = Ipv6Addr::from(wanted.address).to_canonical();
                Some(NfsCaller { flavour, address, privileged: wanted.privileged })
            }
        };
        let security = std::str::from_utf8(wanted.security).ok();
        let security = security.and_then(|name| name.parse().ok()).ok_or(StoreError::Access)?;
        metadata.check(&ForeignUse {
            owner: wanted.owner,
            identity: &identity,
            component: wanted.handle,
            state: StateRef { id: StateId(wanted.state), seqid: wanted.seqid },
            write: wanted.write,
            caller,
            security,
            now_ns: dafs_dat::Instant::now().0,
        })
    }
}

impl Answers for MetadataAnswers {
    fn pace(&self, call: &Call<'_>) -> Pace {
        match call {
            Call::CheckState(_) => Pace::Quick,
            Call::ReadFile { .. } | Call::WriteFile { .. } => Pace::Others,
            _ => Pace::Device,
        }
    }

    fn answer<'s>(&self, call: &Call<'_>, space: &'s mut Vec<u8>) -> Answer<'s> {
        let Some(metadata) = self.node.metadata.get() else {
            return Answer::Refused(of_service(ServiceError::Delay));
        };
        let refused = |error| Answer::Refused(of_store(error));
        match call {
            Call::CheckState(wanted) => match self.check(&**metadata, wanted) {
                Ok(None) => Answer::Done,
                Ok(Some(age)) => {
                    Answer::DoneWithin { age_ns: age.as_nanos().try_into().unwrap_or(u64::MAX) }
                }
                Err(error) => Answer::Refused(of_service(error)),
            },
            Call::FileSize { component } => {
                metadata.size_of(&ComponentId(*component)).map_or_else(refused, Answer::Size)
            }
            Call::ReadFile { component, offset, len } => {
                space.resize(*len as usize, 0);
                let view = VolatileSlice::from_mut(space);
                match metadata.read(&ComponentId(*component), &[view], *offset) {
                    Ok(count) => Answer::Data(&space[..count]),
                    Err(error) => refused(error),
                }
            }
            Call::WriteFile { component, offset, data } => {
                space.extend_from_slice(data);
                let view = VolatileSlice::from_mut(space);
                let written = metadata.write(&ComponentId(*component), &[view], *offset);
                written.map_or_else(refused, |count| Answer::Written {
                    count: count as u32,
                    verifier: 0,
                })
            }
            _ => refused(StoreError::NotSupported),
        }
    }
}
