//! Chains: requests that depend on requests sent before them (DAFS 8).
//!
//! The form of a request is checked when it arrives, against the request that arrived just before
//! it. Members run in the order of their arrival, each when the one before it has been answered.
//! Until then their messages stay in their receive slots. Requests behind a finished chain do not
//! wait for it.
//!
//! Invariants
//! * No request waits for a message that has not arrived, so a client without credits cannot make
//!   the server wait for it.
//! * At most one member of a chain runs, and none after one that failed or was refused.
//! * A write that has written less than it was to counts as one that failed, though its reply reports
//!   success: the client cannot write the rest before the next member runs.
//! * Only the youngest chain may get more members, and each other one has a member that runs or
//!   waits. So credits bound their number.

use super::request::{Call, Context};
use dafs_wire::dafs::{
    ChainFlags, Class, FileHandle, Procedure, Reply, Request, RequestHeader, StateId, Status,
    chain_handle, chain_state_id,
};
use std::collections::VecDeque;
use std::num::NonZeroU32;

/// Identifies a chain of a connection.
pub(super) type ChainId = NonZeroU32;

/// The dependency of the next request, by the flags of the last one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Next {
    /// The next request does not depend on the last one.
    #[default]
    Alone,
    /// The next request depends on the last one.
    Member,
    /// It is unknown, because the header of the last one was damaged.
    Unknown,
}

/// One chain.
#[derive(Debug, Default)]
struct Chain {
    id: u32,
    /// More members may come.
    open: bool,
    /// A bulk fetch has arrived.
    has_bulk_fetch: bool,
    /// A member that arrived was refused, so later ones are refused too.
    refused: bool,
    /// A member that ran has failed, or was a short write.
    broken: bool,
    /// Bytes that the running member is to write.
    to_write: u32,
    running: bool,
    waiting: VecDeque<Call>,
    /// The values that the next member may take.
    passed: Passed,
    /// The values that the running member passes on if it succeeds.
    used: Passed,
}

/// The current handle and state-id of a chain.
#[derive(Debug, Clone, Copy, Default)]
struct Passed {
    fh: Option<FileHandle>,
    state_id: Option<StateId>,
}

/// The chains of one connection.
#[derive(Debug, Default)]
pub(super) struct Chains {
    next: Next,
    chains: VecDeque<Chain>,
    last_id: u32,
    /// A member may be due to run.
    is_due: bool,
}

/// True if the flags of a request are invalid in any context.
fn is_malformed(flags: ChainFlags, procedure: Option<Procedure>) -> bool {
    let takes = flags.intersects(ChainFlags::FH | ChainFlags::STATEID);
    let saves = flags.contains(ChainFlags::SAVE);
    let class = procedure.map(Procedure::class);
    let is_never_chained = matches!(class, Some(Class::Special | Class::Callback));
    !ChainFlags::all().contains(flags)
        || takes && !flags.contains(ChainFlags::BACK)
        // DAFS O31. A batch has no state-id of its own either.
        || takes && procedure == Some(Procedure::BatchSubmit)
        || saves && (class != Some(Class::Simple) || !flags.contains(ChainFlags::FORW))
        || is_never_chained && flags.intersects(ChainFlags::FORW | ChainFlags::BACK)
}

impl Chains {
    /// Handles the arrival of a request. Returns its chain, if it is a member of one.
    ///
    /// # Errors
    /// `ChainForm` when it does not follow the rules, `ChainBroken` behind one that did not.
    pub(super) fn arrive(
        &mut self,
        header: &RequestHeader,
        procedure: Option<Procedure>,
    ) -> Result<Option<ChainId>, Status> {
        let flags = header.chain_flags;
        if flags.is_empty() && self.next == Next::Alone {
            return Ok(None);
        }
        let (forw, back) = (flags.contains(ChainFlags::FORW), flags.contains(ChainFlags::BACK));
        let expected =
            std::mem::replace(&mut self.next, if forw { Next::Member } else { Next::Alone });
        let is_member = back && expected == Next::Member;
        let mismatch = match expected {
            Next::Alone => back,
            Next::Member => !back,
            Next::Unknown => false,
        };
        if !is_member {
            self.close();
        }
        if !is_member && forw {
            self.begin();
        }
        let Some(chain) = self.chains.back_mut().filter(|chain| chain.open) else {
            return match () {
                () if mismatch || is_malformed(flags, procedure) => Err(Status::ChainForm),
                () if back => Err(Status::ChainBroken),
                () => Ok(None),
            };
        };
        let class = procedure.map(Procedure::class);
        let is_late = chain.has_bulk_fetch && class == Some(Class::FsModifying);
        let refusal = if mismatch || is_malformed(flags, procedure) || is_late {
            Some(Status::ChainForm)
        } else if chain.refused || back && !is_member {
            Some(Status::ChainBroken)
        } else {
            None
        };
        chain.has_bulk_fetch |= class == Some(Class::BulkFetch);
        chain.refused |= refusal.is_some();
        chain.open = forw;
        let id = ChainId::new(chain.id);
        let Some(refusal) = refusal else { return Ok(id) };
        self.tidy();
        Err(refusal)
    }

    /// Handles the arrival of a message with an untrusted header: the next request cannot depend on
    /// it.
    pub(super) fn arrive_damaged(&mut self) {
        self.next = Next::Unknown;
        self.close();
    }

    /// Closes the youngest chain to more members.
    fn close(&mut self) {
        if let Some(chain) = self.chains.back_mut() {
            chain.open = false;
        }
        self.tidy();
    }

    /// Removes the youngest chain if it is over.
    fn tidy(&mut self) {
        if self.chains.back().is_some_and(Chain::is_over) {
            self.chains.pop_back();
        }
    }

    fn begin(&mut self) {
        self.last_id = self.last_id.wrapping_add(1).max(1);
        self.chains.push_back(Chain { id: self.last_id, open: true, ..Chain::default() });
    }

    /// Adds a member that has arrived. Returns true when it may run at once, otherwise it waits
    /// here.
    fn admit(&mut self, id: ChainId, call: &Call) -> bool {
        let Some(chain) = self.get_mut(id) else { return false };
        if chain.running || !chain.waiting.is_empty() {
            chain.waiting.push_back(*call);
            return false;
        }
        chain.running = true;
        true
    }

    /// Takes the next member that is due.
    fn take_due(&mut self) -> Option<Call> {
        if !self.is_due {
            return None;
        }
        let due = self.chains.iter_mut().find(|chain| !chain.running && !chain.waiting.is_empty());
        let Some(chain) = due else {
            self.is_due = false;
            return None;
        };
        chain.running = true;
        chain.waiting.pop_front()
    }

    /// Handles the end of a member.
    pub(super) fn complete(&mut self, id: ChainId, is_ok: bool) {
        let Some(at) = self.chains.iter().position(|chain| chain.id == id.get()) else { return };
        let chain = &mut self.chains[at];
        chain.running = false;
        chain.broken |= !is_ok;
        let used = std::mem::take(&mut chain.used);
        chain.passed.fh = used.fh.or(chain.passed.fh);
        chain.passed.state_id = used.state_id.or(chain.passed.state_id);
        self.is_due |= !chain.waiting.is_empty();
        if chain.is_over() {
            self.chains.remove(at);
        }
    }

    /// Returns the request of a member, completed with values from earlier members. Notes the
    /// values that it passes on.
    ///
    /// # Errors
    /// `ChainBroken` when an earlier member has failed, `ChainForm` when there is no value to take.
    pub(super) fn inherit<'r>(
        &mut self,
        id: ChainId,
        flags: ChainFlags,
        mut request: Request<'r>,
    ) -> Result<Request<'r>, Status> {
        let chain = self.get_mut(id).ok_or(Status::ServerFault)?;
        if chain.broken {
            return Err(Status::ChainBroken);
        }
        if let Some(fh) = chain_handle(&mut request) {
            if flags.contains(ChainFlags::FH) {
                *fh = chain.passed.fh.ok_or(Status::ChainForm)?;
            }
            chain.used.fh = Some(*fh);
        }
        if let Some(state_id) = chain_state_id(&mut request) {
            if flags.contains(ChainFlags::STATEID) {
                *state_id = chain.passed.state_id.ok_or(Status::ChainForm)?;
            }
            // Zero means none.
            chain.used.state_id = Some(*state_id).filter(|id| *id != StateId::ZERO);
        }
        chain.to_write = match &request {
            Request::WriteInline(args) => args.data.len() as u32,
            Request::WriteDirect(args) => args.byte_count,
            _ => 0,
        };
        Ok(request)
    }

    /// Notes the values in the reply of the running member, and its end if that is a short write.
    pub(super) fn produce(&mut self, id: ChainId, reply: &Reply<'_>) {
        let Some(chain) = self.get_mut(id) else { return };
        let produced = match reply {
            Reply::Lookup(reply) => reply.fh,
            Reply::LookupP(reply) | Reply::OpenAttr(reply) | Reply::GetRootHandle(reply) => {
                reply.fh
            }
            Reply::Create(reply) => reply.fh,
            Reply::Open(reply) => {
                chain.used.state_id = Some(reply.state_id);
                reply.fh
            }
            Reply::WriteInline(reply) | Reply::WriteDirect(reply) => {
                chain.broken |= reply.count < chain.to_write;
                return;
            }
            _ => return,
        };
        chain.used.fh = Some(produced);
    }

    fn get_mut(&mut self, id: ChainId) -> Option<&mut Chain> {
        self.chains.iter_mut().find(|chain| chain.id == id.get())
    }
}

impl Chain {
    fn is_over(&self) -> bool {
        !self.open && !self.running && self.waiting.is_empty()
    }
}

impl Context<'_> {
    /// Executes a member of a chain that has just arrived, or keeps it until its turn.
    pub(super) fn member(&mut self, id: ChainId, call: &Call, bytes: &[u8]) {
        if self.connection.chains.admit(id, call) {
            let outcome = self.dispatch(call, bytes);
            self.finish(call, outcome);
        } else {
            self.deferred = true;
        }
    }

    pub(super) fn run_chains(&mut self) {
        while let Some(call) = self.connection.chains.take_due() {
            self.again(&call);
        }
    }
}
