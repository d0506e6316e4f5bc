//! The data server's answers to its metadata server.

use super::{NodeCounters, Shared};
use crate::link::{Answers, Pace};
use crate::refusal::of_store;
use dafs_mem::VolatileSlice;
use dafs_store::node::{ComponentId, Digest, Node, NodeSpace};
use dafs_store::{Advised, CacheAdvice, Result, Stability, StoreError};
use dafs_wire::cluster::{Answer, Call, DATA_BYTES_MAX, RangeAdvice};
use std::sync::{Arc, Weak};

pub(super) struct DataAnswers {
    pub(super) node: Arc<dyn Node>,
    /// Weak, because the connection is a part of it.
    pub(super) shared: Weak<Shared>,
}

impl DataAnswers {
    fn carry_out<'s>(&self, call: &Call<'_>, space: &'s mut Vec<u8>) -> Result<Answer<'s>> {
        let node = &*self.node;
        match call {
            Call::Read { component, offset, len } => {
                space.resize(*len as usize, 0);
                let view = VolatileSlice::from_mut(space);
                let count = node.read(&ComponentId(*component), &[view], *offset)?;
                Ok(Answer::Data(&space[..count]))
            }
            Call::Write { component, offset, stable, data } => {
                space.extend_from_slice(data);
                let view = VolatileSlice::from_mut(space);
                let stability = if *stable { Stability::Data } else { Stability::Unstable };
                let component = ComponentId(*component);
                node.write(&component, &[view], *offset, stability).map(|written| Answer::Written {
                    count: written.count as u32,
                    verifier: written.verifier,
                })
            }
            Call::Digest { component, offset, len } => {
                let Digest { count, hash } =
                    node.digest(&ComponentId(*component), *offset, *len as usize)?;
                Ok(Answer::Digest { count: count as u32, hash })
            }
            Call::Commit { component } => {
                node.commit(&ComponentId(*component)).map(Answer::Verifier)
            }
            Call::Advise { component, offset, len, advice } => {
                match node.advise(&ComponentId(*component), *offset, *len, advice_of(*advice))? {
                    Advised::Followed => Ok(Answer::Done),
                    Advised::Ignored => Err(StoreError::NotSupported),
                }
            }
            Call::Cut { component, size } => {
                node.truncate(&ComponentId(*component), *size).map(|()| Answer::Done)
            }
            Call::Size { component } => node.size(&ComponentId(*component)).map(Answer::Size),
            Call::Remove { component } => {
                // So that no client makes it anew by a cached authorisation.
                self.drop_grants(&ComponentId(*component))?;
                node.remove(&ComponentId(*component)).map(|()| Answer::Done)
            }
            Call::Space => node.space().map(|NodeSpace { total, free, available }| Answer::Space {
                total,
                free,
                available,
            }),
            Call::Counters => {
                let shared = self.shared.upgrade().ok_or(StoreError::Busy)?;
                let NodeCounters { read_bytes: read, written_bytes: written, indirect_bytes } =
                    shared.counters();
                Ok(Answer::Counters { read, written, indirect: indirect_bytes })
            }
            Call::RevokeAuthorisation { component } => self.drop_grants(&ComponentId(*component)),
            Call::MissingComponents => {
                // Clients ask again for those that do not fit into an answer.
                let astray = node.take_astray()?;
                let astray = astray.iter().take(DATA_BYTES_MAX / size_of::<ComponentId>());
                astray.for_each(|component| space.extend_from_slice(&component.0));
                Ok(Answer::Data(space))
            }
            _ => Err(StoreError::NotSupported),
        }
    }

    fn drop_grants(&self, component: &ComponentId) -> Result<Answer<'static>> {
        let shared = self.shared.upgrade().ok_or(StoreError::Busy)?;
        // First, so that a use that begins now asks again.
        shared.grants.lock().forget(component);
        self.node.drop_grants(component).map(|()| Answer::Done)
    }
}

fn advice_of(advice: RangeAdvice) -> CacheAdvice {
    match advice {
        RangeAdvice::WillNeed => CacheAdvice::WillNeed,
        RangeAdvice::Keep => CacheAdvice::Keep,
        RangeAdvice::LeaveFirst => CacheAdvice::LeaveFirst,
        RangeAdvice::DontNeed => CacheAdvice::DontNeed,
    }
}

impl Answers for DataAnswers {
    fn pace(&self, _call: &Call<'_>) -> Pace {
        Pace::Device
    }

    fn answer<'s>(&self, call: &Call<'_>, space: &'s mut Vec<u8>) -> Answer<'s> {
        self.carry_out(call, space).unwrap_or_else(|error| Answer::Refused(of_store(error)))
    }
}
