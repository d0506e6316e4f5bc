//! Chains: requests that leave in one piece, each of which may take the handle or state-id that
//! those before it have found (DAFS 8).
//!
//! Members are calls like all others, with tags of their own. This module has the state that they
//! share.
//!
//! Invariants
//! * The members of a chain are sent back to back, when there are credits for all of them.
//! * All members complete together, in their order, when the last of them is over.
//! * After a loss, the remaining members are sent again as a chain of their own: the handle and
//!   state-id of members that are known to be done are filled in.

use super::call::{Call, Done, Due, Purpose, Refused, ReplyMessage, Task, Work};
use super::calls::Calls;
use super::failure::Failure;
use super::link::Link;
use super::memory::Pieces;
use super::rewrite::{Nameless, Names};
use super::submit::{Outgoing, SendError, count_data, padded, unsendable};
use super::timers::unless_silent;
use super::users::User;
use dafs_dat::Adapter;
use dafs_mem::Site;
use dafs_wire::dafs::{
    ByteOrder, ChainFlags, Class, ClientId, FileHandle, Outcome, Procedure, Reply, Request,
    RequestHeader, StateId, Status, chain_handle, chain_state_id, decode_request, encode_request,
};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;

/// A request of a chain.
#[derive(Debug, Clone, Copy)]
pub struct ChainMember<'a> {
    /// The caller's tag; no other call in flight may have it.
    pub tag: u64,
    /// The request. It must not name memory for direct transfer.
    pub request: Request<'a>,
    /// The values that it takes from those before it: `FH`, `STATEID`, both or none.
    pub takes: ChainFlags,
}

#[derive(Debug)]
struct Member {
    tag: u64,
    procedure: Procedure,
    takes: ChainFlags,
    saved: bool,
    /// It is sent without one before it.
    first: bool,
    /// The request as the application made it.
    bytes: Vec<u8>,
    /// Its end, and the run of the server that reported it.
    done: Option<(Done, ClientId)>,
}

impl Member {
    /// True when the server has carried it out.
    fn is_executed(&self) -> bool {
        matches!(&self.done, Some((Done::Answered(reply), _)) if reply.status.is_ok())
    }
}

/// A chain that is not over.
#[derive(Debug)]
pub(crate) struct Chain {
    members: Vec<Member>,
    /// Members that are not over.
    left: usize,
    /// A part of it has been sent on a connection.
    sent: bool,
}

/// The chains of a session.
#[derive(Debug, Default)]
pub(crate) struct Chains {
    last: u64,
    chains: FxHashMap<u64, Chain>,
    /// The place of each member: chain and index.
    places: FxHashMap<u64, (u64, usize)>,
}

/// The effect of a call's end on its chain.
#[derive(Debug)]
pub(crate) enum Ended {
    /// It belongs to no chain.
    Alone(Done),
    /// Other members are not over.
    Pending,
    /// It was the last one.
    Chain(Chain),
}

/// Handle and state-id that a member hands on (DAFS O30).
#[derive(Debug, Clone, Copy, Default)]
struct Passed {
    fh: Option<FileHandle>,
    state_id: Option<StateId>,
}

impl Passed {
    /// Fills in the values that a request takes; false when they are not known.
    fn fill(&self, takes: ChainFlags, request: &mut Request<'_>) -> bool {
        let mut known = true;
        if takes.contains(ChainFlags::FH)
            && let Some(place) = chain_handle(request)
        {
            self.fh.map_or_else(|| known = false, |fh| *place = fh);
        }
        if takes.contains(ChainFlags::STATEID)
            && let Some(place) = chain_state_id(request)
        {
            self.state_id.map_or_else(|| known = false, |state_id| *place = state_id);
        }
        known
    }

    /// Records the values of a request that has been carried out.
    fn go_on(&mut self, request: &mut Request<'_>, reply: &ReplyMessage) {
        self.fh = chain_handle(request).copied().or(self.fh);
        let state_id = chain_state_id(request).copied().filter(|id| *id != StateId::ZERO);
        self.state_id = state_id.or(self.state_id);
        let Ok(Outcome::Ok(found)) = reply.decode() else { return };
        let produced = match found {
            Reply::Lookup(found) => found.fh,
            Reply::LookupP(found) | Reply::OpenAttr(found) | Reply::GetRootHandle(found) => {
                found.fh
            }
            Reply::Create(found) => found.fh,
            Reply::Open(found) => {
                self.state_id = Some(found.state_id);
                found.fh
            }
            _ => return,
        };
        self.fh = Some(produced);
    }
}

/// True if a request has written less than it was to. That ends its chain as a failure does.
pub(crate) fn is_short_write(request: &Request<'_>, reply: &ReplyMessage) -> bool {
    let to_write = match request {
        Request::WriteInline(args) => args.data.len(),
        Request::WriteDirect(args) => args.byte_count as usize,
        _ => return false,
    };
    match reply.decode() {
        Ok(Outcome::Ok(Reply::WriteInline(found) | Reply::WriteDirect(found))) => {
            (found.count as usize) < to_write
        }
        _ => false,
    }
}

impl Chains {
    /// True when the call is a member of a chain.
    pub(crate) fn holds(&self, tag: u64) -> bool {
        !self.places.is_empty() && self.places.contains_key(&tag)
    }

    fn member(&self, tag: u64) -> Option<&Member> {
        let (chain, index) = self.places.get(&tag)?;
        self.chains.get(chain)?.members.get(*index)
    }

    /// True when the server was asked to keep the reply although the request changes nothing.
    pub(crate) fn is_saved(&self, tag: u64) -> bool {
        self.member(tag).is_some_and(|member| member.saved)
    }

    /// The procedure of a member.
    pub(super) fn procedure(&self, tag: u64) -> Procedure {
        self.member(tag).map_or(Procedure::Null, |member| member.procedure)
    }

    /// The request of a member.
    pub(crate) fn task(&self, tag: u64) -> Option<Task> {
        let bytes = self.member(tag)?.bytes.clone();
        Some(Task::Message { bytes, memory: Pieces::new() })
    }

    /// The number of queued calls, from the first, that leave in one piece; `None` when the first
    /// is in no chain.
    pub(crate) fn in_front(&self, waiting: &VecDeque<Call>) -> Option<usize> {
        if self.places.is_empty() {
            return None;
        }
        let (chain, _) = *self.places.get(&waiting.front()?.tag)?;
        let next = |call: &&Call| {
            let place = self.places.get(&call.tag);
            place.is_some_and(|(other, _)| *other == chain)
                && self.member(call.tag).is_some_and(|member| !member.first)
        };
        Some(1 + waiting.iter().skip(1).take_while(next).count())
    }

    /// Ends a member.
    pub(crate) fn end(&mut self, tag: u64, done: Done, server: ClientId) -> Ended {
        if self.places.is_empty() {
            return Ended::Alone(done);
        }
        let Some((id, index)) = self.places.get(&tag).copied() else { return Ended::Alone(done) };
        let Some(chain) = self.chains.get_mut(&id) else { return Ended::Alone(done) };
        let member = &mut chain.members[index];
        if member.done.is_none() {
            member.done = Some((done, server));
            chain.left -= 1;
        }
        if chain.left > 0 {
            return Ended::Pending;
        }
        for member in &chain.members {
            self.places.remove(&member.tag);
        }
        self.chains.remove(&id).map_or(Ended::Pending, Ended::Chain)
    }

    fn insert(&mut self, members: Vec<Member>) {
        self.last += 1;
        for (index, member) in members.iter().enumerate() {
            let old = self.places.insert(member.tag, (self.last, index));
            debug_assert!(old.is_none(), "a tag is used once at a time");
        }
        let left = members.len();
        self.chains.insert(self.last, Chain { members, left, sent: false });
    }
}

/// Checks that the server would accept the members as a chain, and finds those whose replies it
/// must keep.
pub(super) fn form(members: &[ChainMember<'_>]) -> Result<(), Refused> {
    let mut fetched = false;
    for (index, member) in members.iter().enumerate() {
        let procedure = member.request.procedure();
        let class = procedure.class();
        if matches!(class, Class::Special | Class::Callback) {
            return Err(Refused::ChainForm("one of them can only be sent alone"));
        }
        if fetched && class == Class::FsModifying {
            return Err(Refused::ChainForm("one that changes the file system follows a fetch"));
        }
        fetched |= class == Class::BulkFetch;
        if !(ChainFlags::FH | ChainFlags::STATEID).contains(member.takes) {
            return Err(Refused::ChainForm("only a handle and a state-id can be taken over"));
        }
        if !member.takes.is_empty() && (index == 0 || procedure == Procedure::BatchSubmit) {
            return Err(Refused::ChainForm("one takes over what there is not"));
        }
    }
    Ok(())
}

impl Calls {
    /// Queues the members of a chain.
    pub(super) fn add_chain(
        &mut self,
        link: &mut Link,
        members: &[ChainMember<'_>],
        due: Due,
        user: Option<&User>,
    ) -> Result<(), Refused> {
        let mut kept = Vec::with_capacity(members.len());
        for (index, member) in members.iter().enumerate() {
            let procedure = member.request.procedure();
            let mut later = members[index + 1..].iter().map(|next| next.request.procedure());
            let modifying =
                |next: Procedure| matches!(next.class(), Class::FsModifying | Class::LockModifying);
            kept.push(Member {
                tag: member.tag,
                procedure,
                takes: member.takes,
                saved: procedure.class() == Class::Simple && later.any(modifying),
                first: index == 0,
                bytes: link.encoded(&member.request)?,
                done: None,
            });
        }
        for member in &kept {
            let task = Task::Message { bytes: Vec::new(), memory: Pieces::new() };
            let (tag, user) = (member.tag, user.cloned());
            let call = Call { tag, due, task, maybe_done: false, user, renewed: false };
            self.wait(link, call);
        }
        if !kept.is_empty() {
            self.chains.insert(kept);
        }
        Ok(())
    }

    /// Sends the first `count` queued calls, which are a chain, or ends them; false when there are
    /// not enough credits now.
    ///
    /// # Errors
    /// The connection has failed. The members that were not sent are queued again.
    pub(super) fn send_chain(
        &mut self,
        link: &mut Link,
        adapter: &mut dyn Adapter,
        count: usize,
    ) -> Result<bool, Failure> {
        let credits = usize::from(link.conn.streams.usable());
        if count <= credits && !link.conn.has_room_for(count) {
            return Ok(false);
        }
        let calls: Vec<Call> = self.waiting.drain(..count).collect();
        if count > credits {
            // There were more credits when the chain was accepted.
            let failure = unsendable(Refused::ChainTooLong { members: count, credits });
            for call in calls {
                self.finish(link, Purpose::Caller(call.tag), Done::Lost(failure.clone()));
            }
            return Ok(true);
        }
        // All are encoded before the first leaves: the server waits for the members that were
        // announced.
        let mut requests = Vec::with_capacity(count);
        let mut calls = calls.into_iter().peekable();
        while let Some(call) = calls.peek() {
            match self.named(link, call.tag) {
                Ok(request) => requests.extend(calls.next().map(|call| (call, request))),
                Err(done) => {
                    let mut done = Some(done);
                    for call in calls.by_ref() {
                        let done = done.take().unwrap_or_else(|| self.broken_here(link, call.tag));
                        self.finish(link, Purpose::Caller(call.tag), done);
                    }
                }
            }
        }
        let count = requests.len();
        let mut requests = requests.into_iter().enumerate();
        while let Some((index, (call, bytes))) = requests.next() {
            let more = index + 1 < count;
            match self.send_member(link, adapter, &call, bytes, (index > 0, more)) {
                Ok(()) => {}
                Err(SendError::Ended(done)) => self.finish(link, Purpose::Caller(call.tag), done),
                Err(SendError::Refused(refused)) => {
                    let done = Done::Lost(unsendable(refused));
                    self.finish(link, Purpose::Caller(call.tag), done);
                }
                Err(SendError::Lost(failure)) => {
                    // Recovery has the members that were sent.
                    let rest: Vec<Call> = requests.map(|(_, (call, _))| call).collect();
                    rest.into_iter().rev().for_each(|call| self.waiting.push_front(call));
                    return Err(failure);
                }
            }
        }
        Ok(true)
    }

    /// The request of a member, with the current names of its objects.
    fn named(&self, link: &mut Link, tag: u64) -> Result<Vec<u8>, Done> {
        let lost = |refused: Refused| Done::Lost(unsendable(refused));
        let Some(member) = self.chains.member(tag) else { return Err(Done::Lost(Failure::Closed)) };
        if link.stats.recoveries == 0 {
            return Ok(member.bytes.clone());
        }
        let (procedure, order) = (member.procedure, link.order);
        let (_, request) = decode_request(&member.bytes, order, 0)
            .map_err(|error| Done::Lost(Failure::protocol(error)))?;
        let (delegations, server) = (&self.delegations, link.info.client_id);
        let names = Names { memory: &[], opens: &self.opens, delegations, server };
        let (header, out) = (RequestHeader::default(), &mut link.scratch);
        match names.apply(&request, |request| encode_request(out, order, &header, request)) {
            Ok(Ok(bytes)) => Ok(link.scratch[..bytes].to_vec()),
            Ok(Err(error)) => Err(lost(error.into())),
            Err(Nameless::Memory(failure)) => Err(Done::Lost(failure)),
            Err(Nameless::Open(status)) => {
                Err(link.reply_here(procedure, status).map_or_else(lost, Done::Answered))
            }
        }
    }

    fn broken_here(&self, link: &Link, tag: u64) -> Done {
        let procedure = self.chains.procedure(tag);
        link.reply_here(procedure, Status::ChainBroken)
            .map_or_else(|refused| Done::Lost(unsendable(refused)), Done::Answered)
    }

    fn send_member(
        &mut self,
        link: &mut Link,
        adapter: &mut dyn Adapter,
        call: &Call,
        bytes: Vec<u8>,
        (back, forw): (bool, bool),
    ) -> Result<(), SendError> {
        let (_, request) = decode_request(&bytes, link.order, 0)
            .map_err(|error| Refused::Over(Failure::protocol(error)))?;
        let procedure = request.procedure();
        let user = call.user.clone();
        let mut header = link.next_header(procedure, user.as_ref())?;
        // One copy from the chain to send it, which is kept with the outstanding requests unless it
        // has other names than the application gave.
        let is_renamed = link.stats.recoveries > 0;
        count_data(&request, &[Site::ClientKept]);
        count_data(&request, if is_renamed { &[Site::ClientKept] } else { &[] });
        count_data(&request, &[Site::ClientInlineWrite; 2]);
        if let Some(member) = self.chains.member(call.tag) {
            header.chain_flags.set(ChainFlags::BACK, back);
            header.chain_flags.set(ChainFlags::FORW, forw);
            header.chain_flags.set(ChainFlags::SAVE, forw && member.saved);
            header.chain_flags |= if back { member.takes } else { ChainFlags::empty() };
        }
        if let Some((id, _)) = self.chains.places.get(&call.tag)
            && let Some(chain) = self.chains.chains.get_mut(id)
        {
            chain.sent = true;
        }
        let request = padded(&request, link.padding_of(&request));
        let encoded = encode_request(&mut link.scratch, link.order, &header, &request)?;
        let kept = match link.config.recovery {
            None => None,
            Some(_) if is_renamed => self.chains.task(call.tag),
            Some(_) => Some(Task::Message { bytes, memory: Pieces::new() }),
        };
        let work = match kept {
            Some(Task::Message { bytes, memory }) => Work::Message { bytes, memory },
            _ => Work::own(),
        };
        let (purpose, bytes) = (Purpose::Caller(call.tag), encoded);
        let due = unless_silent(call.due, link.answered_at);
        let (data, renewed) = (None, call.renewed);
        let message =
            Outgoing { purpose, due, procedure, header, work, bytes, data, user, renewed };
        link.transmit(adapter, message).map_err(SendError::Lost)
    }

    /// True when an answer is noted as soon as it comes. The effect of a member may depend on the
    /// answers to those before it, which may come later; an OPEN is noted at once.
    pub(crate) fn notes_now(&self, purpose: Purpose, procedure: Procedure) -> bool {
        match purpose {
            Purpose::Caller(tag) => procedure == Procedure::Open || !self.chains.holds(tag),
            _ => true,
        }
    }

    /// Completes a chain whose members are all over.
    pub(super) fn finish_chain(&mut self, link: &Link, chain: Chain) {
        let mut passed = Passed::default();
        for member in chain.members {
            let Some((mut done, server)) = member.done else { continue };
            if let Done::Answered(reply) = &mut done
                && let Ok((_, mut request)) = decode_request(&member.bytes, link.order, 0)
            {
                passed.fill(member.takes, &mut request);
                if member.procedure != Procedure::Open && link.config.recovery.is_some() {
                    self.take_note_of(link, &request, reply, server, None);
                }
                if reply.status.is_ok() {
                    passed.go_on(&mut request, reply);
                }
            }
            self.complete(member.tag, done);
        }
    }

    /// Called when the fate of every request that was sent on the lost connection is known:
    /// computes the remainder of each chain, which is queued again, in its order.
    pub(super) fn mend_chains(&mut self, link: &Link) {
        let mut over = Vec::new();
        for chain in self.chains.chains.values_mut().filter(|chain| chain.sent) {
            over.extend(chain.mend(link.order));
            chain.sent = false;
        }
        for (tag, broken) in over {
            let done = if broken {
                self.broken_here(link, tag)
            } else {
                let procedure = self.chains.member(tag).map(|member| member.procedure);
                Done::InDoubt(procedure.unwrap_or(Procedure::Null))
            };
            self.waiting.retain(|call| call.tag != tag);
            self.finish(link, Purpose::Caller(tag), done);
        }
    }
}

impl Chain {
    /// Makes the remainder a chain of its own. Yields the members that end here, each with true if
    /// it is known not to have been carried out.
    fn mend(&mut self, order: ByteOrder) -> Vec<(u64, bool)> {
        let mut passed = Passed::default();
        // The way the chain ended before this member, and true when one before it is sent again.
        let (mut ended, mut linked) = (None, false);
        let mut over = Vec::new();
        for index in 0..self.members.len() {
            let (head, behind) = self.members.split_at_mut(index + 1);
            let member = &mut head[index];
            match &member.done {
                Some((Done::Answered(reply), _)) if reply.status.is_ok() => {
                    if let Ok((_, mut request)) = decode_request(&member.bytes, order, 0) {
                        passed.fill(member.takes, &mut request);
                        passed.go_on(&mut request, reply);
                        // The server has executed none behind it.
                        ended = ended.or(is_short_write(&request, reply).then_some(true));
                    }
                    continue;
                }
                Some((Done::Answered(_), _)) => ended = ended.or(Some(true)),
                Some(_) => ended = ended.or(Some(false)),
                None => {}
            }
            if member.done.is_some() {
                continue;
            }
            if let Some(broken) = ended {
                over.push((member.tag, broken));
                continue;
            }
            if linked {
                // It stays behind the one that is sent again.
                continue;
            }
            // Later members that were carried out prove that this one was, too, and only its answer
            // is lost. A fetch is not repeated without the lock under which it was made.
            let executed = behind.iter().any(Member::is_executed);
            let unlocked = behind.iter().any(|later| {
                later.is_executed() && later.procedure.class() == Class::LockModifying
            });
            let fetch = member.procedure.class() == Class::BulkFetch;
            let filled = match decode_request(&member.bytes, order, 0) {
                Ok((_, mut request)) => {
                    let known = passed.fill(member.takes, &mut request);
                    let mut bytes = vec![0; member.bytes.len()];
                    let header = RequestHeader::default();
                    let encoded = encode_request(&mut bytes, order, &header, &request);
                    (known && encoded.is_ok()).then_some(bytes)
                }
                Err(_) => None,
            };
            let Some(bytes) = filled.filter(|_| !(fetch && unlocked)) else {
                over.push((member.tag, false));
                // The members behind it are in doubt as well, unless they are over.
                ended = Some(false);
                continue;
            };
            member.bytes = bytes;
            member.takes = ChainFlags::empty();
            member.first = true;
            if executed {
                passed = Passed::default();
            } else {
                linked = true;
            }
        }
        over
    }
}
