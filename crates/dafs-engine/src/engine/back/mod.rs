//! Calls of the server to its clients, over back-control channels (DAFS 4.2, 13.2).
//!
//! A back-control channel is a connection of its own, accepted by any reactor. So calls on it
//! travel as [`Mail`] through the inbox of that reactor.
//!
//! Invariants
//! * No function here waits, and mail is posted without a lock of the service held.
//! * A call that does not reach its client is reported to the service: a recall as failed, a query
//!   as unanswered.

mod channel;
mod front;

pub(super) use channel::{Back, is_reply};
pub(super) use front::BackFront;

use super::convert;
use super::registry::Registry;
use super::shown::Showing;
use super::survey::Answer;
use super::work::{Arrival, JobDone};
use crate::inbox::Inbox;
use crate::ops::batch::Submission;
use dafs_dat::EndpointId;
use dafs_service::{Client, Handle, Service, StateRef};
use dafs_store::LayoutForm;
use dafs_wire::dafs::{
    AttrMask, BatchCompletions, BcRecall, CompletionNotification, FileHandle, GetAttrInline,
    LayoutScope, Procedure, Request, Seq, StateId, XBcLayoutRecall,
};
use std::sync::Arc;

/// The attributes that BC_GETATTR requests (DAFS 6).
const ASKED: AttrMask =
    AttrMask(AttrMask::CHANGE.0 | AttrMask::TIME_MODIFY.0 | AttrMask::OBJECT_SIZE.0);

/// A call to a client.
#[derive(Debug)]
pub(crate) enum Callback {
    /// BC_NULL: checks that the client listens.
    Null,
    /// BC_RECALL: recalls a delegation.
    Recall { client: Arc<Client>, handle: Handle, state: StateRef, truncate: bool },
    /// X_BC_LAYOUT_RECALL: recalls a layout.
    RecallLayout { client: Arc<Client>, handle: Handle, state: StateRef },
    /// X_BC_LAYOUT_RECALL of all layouts in one form, of an object's file system or of the client.
    RecallLayouts { client: Arc<Client>, of: Option<Handle>, form: LayoutForm },
    /// BC_GETATTR: asks the holder of a write delegation for size and change attribute.
    GetAttr { client: Arc<Client>, handle: Handle, query: u64 },
    /// BC_BATCH_COMPLETION: reports finished requests of batches.
    Completions(Vec<CompletionNotification>),
}

impl Callback {
    fn procedure(&self) -> Procedure {
        self.request().procedure()
    }

    fn request(&self) -> Request<'_> {
        match self {
            Self::Null => Request::BcNull,
            Self::Recall { handle, state, truncate, .. } => Request::BcRecall(BcRecall {
                fh: convert::file_handle(handle),
                state_id: convert::wire_state_id(state.id),
                truncate: *truncate,
            }),
            Self::RecallLayout { handle, state, .. } => Request::XBcLayoutRecall(XBcLayoutRecall {
                fh: convert::file_handle(handle),
                state_id: convert::wire_state_id(state.id),
                seqid: state.seqid,
                scope: LayoutScope::File,
            }),
            Self::RecallLayouts { of, .. } => Request::XBcLayoutRecall(XBcLayoutRecall {
                fh: of.as_ref().map_or(FileHandle::ZERO, convert::file_handle),
                state_id: StateId::ZERO,
                seqid: 0,
                scope: if of.is_some() { LayoutScope::FileSystem } else { LayoutScope::All },
            }),
            Self::GetAttr { handle, .. } => Request::BcGetAttr(GetAttrInline {
                fh: convert::file_handle(handle),
                attributes: ASKED,
            }),
            Self::Completions(list) => {
                Request::BcBatchCompletion(BatchCompletions { completions: Seq::new(list) })
            }
        }
    }

    /// Handles a call whose channel is gone. There may be another one by now.
    fn lost(self, service: &Service, registry: &Registry) {
        let client = match &self {
            Self::Recall { client, .. }
            | Self::RecallLayout { client, .. }
            | Self::RecallLayouts { client, .. } => Some(client.clone()),
            Self::GetAttr { .. } | Self::Null | Self::Completions(_) => None,
        };
        self.failed(service);
        if let Some(client) = client {
            channel::say_elsewhere(service, registry, &client);
        }
    }

    /// Handles a call that could not be made, or was not understood.
    fn failed(self, service: &Service) {
        match self {
            // A client that loses its channel submits requests again whose end it does not know.
            Self::Null | Self::Completions(_) => {}
            Self::Recall { client, state, .. } => {
                service.delegations.recall_failed(client.key(), state)
            }
            Self::RecallLayout { client, state, .. } => {
                service.layouts.recall_failed(client.key(), state);
            }
            Self::RecallLayouts { client, of, form } => {
                service.layouts.wide_recall_failed(client.key(), of.as_ref(), form);
            }
            Self::GetAttr { client, query, .. } => {
                service.delegations.attr_answer(&client, query, None)
            }
        }
    }
}

/// A message of a reactor to a connection of another one, or of its own.
#[derive(Debug)]
pub(crate) enum Mail {
    /// Call the client.
    Call(Callback),
    /// Execute a batch.
    Batch(Box<Submission>),
    /// Execute one request of a batch first.
    Start(u64),
    /// Drop the requests of batches that were cancelled.
    Canceled,
    /// All work for an ended session has stopped.
    Settled,
    /// Report the session to an administrator.
    Survey(Answer),
    /// Show segments of exposed memory on this channel.
    Show(Box<Showing>),
    /// End the connection, for this reason.
    Leave(&'static str),
}

impl Mail {
    /// Handles mail whose connection is gone.
    pub(super) fn undeliverable(self, service: &Service, registry: &Registry) {
        match self {
            Self::Call(callback) => callback.lost(service, registry),
            Self::Batch(_) | Self::Start(_) | Self::Canceled => {}
            Self::Settled | Self::Survey(_) | Self::Leave(_) => {}
            Self::Show(showing) => showing.refuse(),
        }
    }
}

/// A connection of any reactor.
#[derive(Debug, Clone)]
pub(crate) struct Address {
    inbox: Arc<Inbox<JobDone>>,
    port: u32,
    endpoint: EndpointId,
}

impl Address {
    pub(super) fn new(inbox: &Arc<Inbox<JobDone>>, port: u32, endpoint: EndpointId) -> Self {
        Self { inbox: inbox.clone(), port, endpoint }
    }

    pub(crate) fn post(&self, mail: Mail) {
        let (port, endpoint) = (self.port, self.endpoint);
        self.inbox.push(JobDone(Arrival::Mail { port, endpoint, mail }));
    }

    pub(super) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inbox, &other.inbox)
            && (self.port, self.endpoint) == (other.port, other.endpoint)
    }
}
