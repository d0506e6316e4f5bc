//! The server's state beside its connections.

use dafs_wire::dafs::*;
use std::collections::{BTreeSet, HashMap};

/// A reply in the replay cache, for a client that reconnects.
#[derive(Debug, Clone)]
pub struct SavedReply {
    pub sequence: u16,
    pub procedure: Procedure,
    pub status: Status,
    pub body: Vec<u8>,
}

/// The server's state beside its connections.
pub struct Past {
    /// Replies by session and stream.
    pub kept: HashMap<SessionId, HashMap<u16, SavedReply>>,
    /// True when replies are kept at all.
    pub keeps: bool,
    /// No client can connect.
    pub deaf: bool,
    /// The run of the server.
    pub instance: u8,
    sessions: u64,
    pub session: SessionId,
    pub names: BTreeSet<Vec<u8>>,
    /// The number of requests that change state, by request.
    pub came: HashMap<Vec<u8>, u32>,
    /// Gives opens state-ids, counted from 1 in each run of the server.
    pub names_opens: bool,
    pub last_open: u8,
    /// The owners of open files.
    pub opens: HashMap<StateId, Vec<u8>>,
    /// The owners that have read.
    pub used: Vec<Vec<u8>>,
    /// Owner, offset, length, and true for a reclaimed lock.
    pub locks: Vec<(Vec<u8>, u64, u64, bool)>,
}

impl Default for Past {
    fn default() -> Self {
        Self {
            kept: HashMap::new(),
            keeps: true,
            deaf: false,
            instance: 2,
            sessions: 0,
            session: SessionId::ZERO,
            names: BTreeSet::new(),
            came: HashMap::new(),
            names_opens: false,
            last_open: 0,
            opens: HashMap::new(),
            used: Vec::new(),
            locks: Vec::new(),
        }
    }
}

impl Past {
    pub fn next_session(&mut self) -> SessionId {
        self.sessions += 1;
        self.session = SessionId(self.sessions.to_be_bytes());
        self.kept.insert(self.session, HashMap::new());
        self.session
    }

    pub fn open(&mut self, args: &Open<'_>) -> StateId {
        if !self.names_opens {
            return StateId::ZERO;
        }
        self.last_open += 1;
        let name = StateId([0, 0, 0, 0, 0, 0, 0, self.last_open]);
        self.opens.insert(name, args.owner.to_vec());
        name
    }

    pub fn note(&mut self, request: &Request<'_>) {
        let name = match request {
            Request::Create(args) => args.name,
            Request::Remove(args) => args.name,
            Request::AppendInline(args) => args.data,
            _ => return,
        };
        *self.came.entry(name.to_vec()).or_default() += 1;
    }

    pub fn keep(
        &mut self,
        header: &RequestHeader,
        procedure: Procedure,
        status: Status,
        body: &[u8],
    ) {
        if !self.keeps || !matches!(procedure.class(), Class::FsModifying | Class::LockModifying) {
            return;
        }
        let (sequence, body) = (header.seq_number, body.to_vec());
        if let Some(session) = self.kept.get_mut(&self.session) {
            session.insert(header.stream_id, SavedReply { sequence, procedure, status, body });
        }
    }

    pub fn find(&self, asked: &CheckResponse) -> Result<&SavedReply, Status> {
        let session = self.kept.get(&asked.session_id).ok_or(Status::UnknownSession)?;
        let kept = session.get(&asked.stream_id).ok_or(Status::NoXidMatch)?;
        let same = (kept.sequence, kept.procedure) == (asked.seq_number, asked.procedure);
        same.then_some(kept).ok_or(Status::NoXidMatch)
    }
}
