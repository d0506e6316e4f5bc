//! Users: the credentials that the calls of one session run under (DAFS 4.5).
//!
//! A call may name a user. The session registers the credential of that user before the first such
//! call leaves, keeps its handle, and names it in the header of each request of that user.
//!
//! ```text
//! call of user 1000   REGISTER_CRED -> handle 7   OPEN (7)   READ (7)
//! call of user 1001   RELEASE_CRED of the handle unused for longest, if the table is full
//!                     REGISTER_CRED -> handle 8   OPEN (8)
//! the server answers CRHAND_CONFLICT to a request with handle 7: it has lost that credential
//!                     REGISTER_CRED -> handle 9   the request once more, with 9
//! ```
//!
//! Invariants
//! * A request names a handle only on the connection on which it was registered, and while the server
//!   has the credential, as far as is known.
//! * A call whose user cannot be registered fails. It never runs with the rights of another user,
//!   nor with those of the session.
//! * A credential is released only while no unanswered request names it; that of the session's own
//!   user never is.
//! * One registration or release is outstanding at a time. Queued calls wait for it, so calls leave
//!   in their order.
//! * The table holds no more credentials than the server lets this client register.

use super::call::{Call, Done, Flight, Purpose, ReplyMessage, Task, Work};
use super::calls::Calls;
use super::config::CredentialIds;
use super::link::Link;
use super::session::SessionCore;
use super::submit::unsendable;
use crate::limits::{GROUPS_MAX, USERS_MAX};
use dafs_dat::Adapter;
use dafs_wire::dafs::{
    CredHandle, CredHandleBody, Credential, Outcome, Procedure, RegisterCred, Reply, Request, Seq,
    Status, decode_request,
};
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// A user that a trusted client acts for: numbers of the user, its group, and its supplementary
/// groups. A clone costs no copy.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct User(Arc<CredentialIds>);

impl User {
    /// A user with these numbers. Of the supplementary groups the first [`GROUPS_MAX`] count, so a
    /// user with more of them may have fewer rights than it has locally.
    pub fn new(uid: u32, gid: u32, groups: &[u32]) -> Self {
        let groups = groups[..groups.len().min(GROUPS_MAX)].to_vec();
        Self(Arc::new(CredentialIds { uid, gid, groups }))
    }

    /// The effective user of this process, with its groups.
    pub fn of_process() -> Self {
        (&crate::connect::process_ids()).into()
    }

    /// The numbers.
    pub fn ids(&self) -> &CredentialIds {
        &self.0
    }
}

impl From<&CredentialIds> for User {
    fn from(ids: &CredentialIds) -> Self {
        Self::new(ids.uid, ids.gid, &ids.groups)
    }
}

#[derive(Debug)]
struct Registered {
    handle: CredHandle,
    /// The time of the last request under it, by the table's own count.
    used: u64,
}

/// A request about the table that the server has not answered.
#[derive(Debug)]
enum Asked {
    Register(User),
    Release,
}

/// The registered users of a session.
#[derive(Debug)]
pub(crate) struct Users {
    /// The user of calls that name none; `None` for the one that the server derives itself.
    own: Option<User>,
    /// The server lets this client act for users.
    is_trusted: bool,
    registered: FxHashMap<User, Registered>,
    asked: Option<Asked>,
    /// The most credentials that the server keeps for this client.
    max: usize,
    time: u64,
}

/// The next step for a call of a user.
#[derive(Debug, PartialEq, Eq)]
enum Turn {
    /// It can be sent.
    Ready,
    /// It waits for an answer of the server.
    Waits,
    /// It waits until this user is registered.
    Register(User),
    /// It waits until this credential has made room.
    Release(CredHandle),
    /// It fails.
    Refused(Status),
}

impl Users {
    pub(super) fn new(own: Option<&CredentialIds>) -> Self {
        Self {
            own: own.map(User::from),
            is_trusted: false,
            registered: FxHashMap::default(),
            asked: None,
            max: USERS_MAX,
            time: 0,
        }
    }

    /// The user of calls that name none.
    pub(super) fn own(&self) -> Option<&User> {
        self.own.as_ref()
    }

    /// Takes over the server's limit; 0 says nothing.
    pub(super) fn limit(&mut self, max: u32) {
        self.max = match max {
            0 => USERS_MAX,
            max => usize::try_from(max).unwrap_or(USERS_MAX).min(USERS_MAX),
        };
    }

    pub(super) fn trust(&mut self, is_trusted: bool) {
        self.is_trusted = is_trusted;
    }

    /// Forgets all registrations, and the unanswered request: they end with their connection.
    pub(super) fn forget_all(&mut self) {
        self.registered.clear();
        self.asked = None;
    }

    /// The handle under which a call is sent; `None` when its user is not registered.
    pub(super) fn handle(&mut self, user: Option<&User>) -> Option<CredHandle> {
        let Some(named) = user.or(self.own.as_ref()) else { return Some(CredHandle::SESSION) };
        self.time += 1;
        match self.registered.get_mut(named) {
            Some(known) => {
                known.used = self.time;
                Some(known.handle)
            }
            None if user.is_none() => Some(CredHandle::SESSION),
            None => None,
        }
    }

    /// True when a call can be sent as far as its user is concerned.
    pub(super) fn is_ready(&self, user: Option<&User>) -> bool {
        match user.or(self.own.as_ref()) {
            None => true,
            Some(named) => {
                self.registered.contains_key(named) || user.is_none() && !self.is_trusted
            }
        }
    }

    fn turn(&self, user: Option<&User>, is_in_flight: impl Fn(CredHandle) -> bool) -> Turn {
        let named = match user.or(self.own.as_ref()) {
            Some(named) if !self.is_ready(user) => named,
            _ => return Turn::Ready,
        };
        if !self.is_trusted {
            return Turn::Refused(Status::NotAuthorized);
        }
        if self.asked.is_some() {
            return Turn::Waits;
        }
        if self.registered.len() < self.max {
            return Turn::Register(named.clone());
        }
        let mut others = self.others().peekable();
        if others.peek().is_none() {
            return Turn::Refused(Status::NoCreds);
        }
        let idle = others.filter(|known| !is_in_flight(known.handle));
        match idle.min_by_key(|known| known.used) {
            Some(known) => Turn::Release(known.handle),
            // An answer to one of them comes.
            None => Turn::Waits,
        }
    }

    /// Those that can make room. Requests that the session makes for itself, such as batches, need its
    /// own credential at any time.
    fn others(&self) -> impl Iterator<Item = &Registered> {
        let others = self.registered.iter().filter(|(user, _)| self.own.as_ref() != Some(*user));
        others.map(|(_, known)| known)
    }

    pub(super) fn registered(&mut self, user: User, handle: CredHandle) {
        // A handle denotes one user: that of the latest answer.
        self.revoked(handle);
        self.time += 1;
        self.registered.insert(user, Registered { handle, used: self.time });
    }

    /// Forgets a credential that the server refuses.
    fn revoked(&mut self, handle: CredHandle) {
        self.registered.retain(|_, known| known.handle != handle);
    }

    /// True when a call that names `user` runs as `who`.
    fn is(&self, user: Option<&User>, who: &User) -> bool {
        user.or(self.own.as_ref()) == Some(who)
    }
}

impl SessionCore {
    /// Names the user of the next submission; `None` for the session's own. It holds for that
    /// submission alone. Data servers do not judge users.
    pub fn act_as(&mut self, user: Option<User>) {
        let own = self.link.users.own();
        let is_other = |user: &User| own != Some(user) && !self.link.config.is_data_server;
        self.calls.acting = user.filter(is_other);
    }

    /// Lets the first queued call name its user; false while it waits for the server. Calls whose
    /// users are refused end here.
    pub(super) fn admit_first(&mut self, adapter: &mut dyn Adapter) -> bool {
        while let Some(call) = self.calls.waiting.front() {
            let user = call.user.clone();
            match self.take_turn(adapter, user.as_ref()) {
                Ok(is_ready) => return is_ready,
                Err(status) => {
                    let named = user.as_ref().or(self.link.users.own()).cloned();
                    if let Some(named) = named {
                        self.refuse_calls(&named, status);
                    }
                }
            }
        }
        true
    }

    /// Takes the next step for a call of a user, for which there is a credit; true when the call
    /// can be sent.
    ///
    /// # Errors
    /// The status with which the call fails.
    pub(super) fn take_turn(
        &mut self,
        adapter: &mut dyn Adapter,
        user: Option<&User>,
    ) -> Result<bool, Status> {
        let flights = &self.link.conn.flights;
        let is_named = |handle| flights.iter().flatten().any(|flight| flight.credential == handle);
        match self.link.users.turn(user, is_named) {
            Turn::Ready => Ok(true),
            Turn::Waits => Ok(false),
            Turn::Refused(status) => Err(status),
            Turn::Register(user) => {
                let ids = user.ids();
                let groups = Seq::new(&ids.groups[..]);
                let credential = Credential::Id { uid: ids.uid, gid: ids.gid, groups };
                let request = Request::RegisterCred(RegisterCred { credential });
                // A user of more groups than a message has room for must not end the session.
                if self.link.encoded(&request).is_err() {
                    return Err(Status::NoCreds);
                }
                self.link.users.asked = Some(Asked::Register(user.clone()));
                self.send_own(adapter, Purpose::RegisterUser, &request);
                Ok(false)
            }
            Turn::Release(handle) => {
                // From here on no request names it.
                self.link.users.revoked(handle);
                self.link.users.asked = Some(Asked::Release);
                let request = Request::ReleaseCred(CredHandleBody { cred_handle: handle });
                self.send_own(adapter, Purpose::ReleaseUser, &request);
                Ok(false)
            }
        }
    }

    /// Processes the answer to a registration or a release.
    pub(super) fn on_user_reply(&mut self, reply: &ReplyMessage) {
        let users = &mut self.link.users;
        let Some(Asked::Register(user)) = users.asked.take() else { return };
        let status = match reply.decode() {
            // Handle 0 is that of the session's own user.
            Ok(Outcome::Ok(Reply::RegisterCred(answer)))
                if answer.cred_handle != CredHandle::SESSION =>
            {
                return users.registered(user, answer.cred_handle);
            }
            Ok(Outcome::Ok(_)) | Err(_) => Status::ServerFault,
            // Other sessions of this client have filled the table. If none here can make room, the
            // next call tries again: one of them may be that of a lost connection, which ends soon.
            Ok(Outcome::Error { status: Status::NoCreds, .. })
                if users.others().next().is_some() =>
            {
                users.max = users.registered.len();
                return;
            }
            Ok(Outcome::Error { status, .. }) => status,
        };
        tracing::warn!(uid = user.ids().uid, %status, "the server does not register a user");
        self.refuse_calls(&user, status);
        if let Some(recovery) = &mut self.recovery {
            recovery.refuse_user(&mut self.calls, &self.link, &user, status);
        }
    }

    /// Ends the queued calls of a user.
    fn refuse_calls(&mut self, user: &User, status: Status) {
        let (refused, rest): (Vec<Call>, Vec<Call>) = std::mem::take(&mut self.calls.waiting)
            .into_iter()
            .partition(|call| self.link.users.is(call.user.as_ref(), user));
        self.calls.waiting = rest.into();
        for call in refused {
            let done = self.calls.refused(&self.link, &call, status);
            self.finish(Purpose::Caller(call.tag), done);
        }
    }
}

impl Link {
    /// True when a call that names `user` runs as `who`.
    pub(super) fn is_call_of(&self, user: Option<&User>, who: &User) -> bool {
        self.users.is(user, who)
    }
}

impl Calls {
    /// The end of a call that is not sent, as if the server had answered with this status.
    fn refused(&self, link: &Link, call: &Call, status: Status) -> Done {
        let procedure = match &call.task {
            Task::Read(_) => return Done::Refused { procedure: Procedure::ReadDirect, status },
            Task::Write(_) => return Done::Refused { procedure: Procedure::WriteDirect, status },
            Task::Message { bytes, .. } => match decode_request(bytes, link.order, 0) {
                Ok((_, request)) => request.procedure(),
                // The chain has the request.
                Err(_) => self.chains.procedure(call.tag),
            },
        };
        link.reply_here(procedure, status)
            .map_or_else(|refused| Done::Lost(unsendable(refused)), Done::Answered)
    }

    /// Queues a call again whose credential the server did not know, once: the call was not
    /// executed. Returns it if it was answered otherwise, or cannot be sent again.
    pub(super) fn send_anew(
        &mut self,
        link: &mut Link,
        flight: Flight,
        status: Status,
    ) -> Option<Flight> {
        if status != Status::CrHandConflict || flight.credential == CredHandle::SESSION {
            return Some(flight);
        }
        link.users.revoked(flight.credential);
        let is_kept = !matches!(&flight.work, Work::Message { bytes, .. } if bytes.is_empty());
        match flight.purpose {
            Purpose::Caller(tag)
                if is_kept
                    && !flight.renewed
                    && !self.chains.holds(tag)
                    && self.orphans.of(tag).is_none() =>
            {
                let Flight { deadline: due, user, work, maybe_done, .. } = flight;
                let task = work.into_task();
                let call = Call { tag, due, task, maybe_done, user, renewed: true };
                // Behind those that were sent before it.
                let at = self.waiting.iter().take_while(|other| other.renewed).count();
                self.waiting.insert(at, call);
                None
            }
            _ => Some(flight),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(uid: u32) -> User {
        User::new(uid, uid, &[])
    }

    fn trusted(max: u32) -> Users {
        let mut users = Users::new(None);
        users.trust(true);
        users.limit(max);
        users
    }

    #[test]
    fn the_credential_unused_for_longest_makes_room_unless_a_request_names_it() {
        let mut users = trusted(2);
        let never = |_| false;
        assert_eq!(users.turn(Some(&user(1)), never), Turn::Register(user(1)));
        for number in [1, 2] {
            users.registered(user(number), CredHandle(number));
        }
        assert_eq!(users.handle(Some(&user(1))), Some(CredHandle(1)));
        assert_eq!(users.turn(Some(&user(1)), never), Turn::Ready);
        assert_eq!(users.turn(Some(&user(3)), never), Turn::Release(CredHandle(2)));
        let second = |handle| handle == CredHandle(2);
        assert_eq!(users.turn(Some(&user(3)), second), Turn::Release(CredHandle(1)));
        assert_eq!(users.turn(Some(&user(3)), |_| true), Turn::Waits);
        users.revoked(CredHandle(2));
        assert_eq!(users.turn(Some(&user(3)), never), Turn::Register(user(3)));
        users.asked = Some(Asked::Register(user(3)));
        assert_eq!(users.turn(Some(&user(4)), never), Turn::Waits);
        assert_eq!(users.turn(None, never), Turn::Ready);
    }

    #[test]
    fn nobody_acts_as_the_session_instead() {
        let own = CredentialIds { uid: 7, gid: 7, groups: Vec::new() };
        let mut users = Users::new(Some(&own));
        // The server derives the session's own user, and no other.
        assert!(users.is_ready(None) && !users.is_ready(Some(&user(1))));
        assert_eq!(users.handle(None), Some(CredHandle::SESSION));
        assert_eq!(users.handle(Some(&user(1))), None);
        let refused = Turn::Refused(Status::NotAuthorized);
        assert_eq!(users.turn(Some(&user(1)), |_| false), refused);
        users.trust(true);
        assert!(!users.is_ready(None), "it was not registered yet");
        assert_eq!(users.turn(None, |_| false), Turn::Register(User::from(&own)));
        users.registered(User::from(&own), CredHandle(5));
        assert_eq!(users.handle(None), Some(CredHandle(5)));
        users.forget_all();
        assert_eq!(users.handle(Some(&user(1))), None);
    }

    #[test]
    fn the_credential_of_the_session_makes_no_room() {
        let own = CredentialIds { uid: 7, gid: 7, groups: Vec::new() };
        let mut users = Users::new(Some(&own));
        users.trust(true);
        users.limit(2);
        users.registered(User::from(&own), CredHandle(1));
        users.registered(user(1), CredHandle(2));
        assert_eq!(users.turn(Some(&user(2)), |_| false), Turn::Release(CredHandle(2)));
        users.limit(1);
        users.revoked(CredHandle(2));
        let refused = Turn::Refused(Status::NoCreds);
        assert_eq!(users.turn(Some(&user(2)), |_| false), refused, "nothing would ever end a wait");
        assert_eq!(users.turn(None, |_| false), Turn::Ready);
    }

    #[test]
    fn a_handle_denotes_one_user() {
        let mut users = trusted(8);
        users.registered(user(1), CredHandle(1));
        users.registered(user(2), CredHandle(1));
        assert_eq!(users.handle(Some(&user(1))), None);
        assert_eq!(users.handle(Some(&user(2))), Some(CredHandle(1)));
    }

    #[test]
    fn groups_distinguish_users() {
        let mut users = trusted(8);
        users.registered(User::new(1, 1, &[5]), CredHandle(1));
        assert!(!users.is_ready(Some(&user(1))));
        let many: Vec<u32> = (0..2 * GROUPS_MAX as u32).collect();
        assert_eq!(User::new(1, 1, &many).ids().groups.len(), GROUPS_MAX);
    }
}
