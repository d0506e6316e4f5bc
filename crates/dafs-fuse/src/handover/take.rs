//! The process that takes a mount over.

use super::socket::{CONNECTED, GO_ON, TAKEN, address, check, greet, receive, receive_with, send};
use super::state::{Codec as _, Introduction, OwnerState, State};
use crate::content::{self, OpenFile};
use crate::delegated;
use crate::kernel::Device;
use crate::limits::{HANDOVER_FILL, HANDOVER_MEETING, HANDOVER_PAUSE, LOCK_WAITERS_MAX};
use crate::listing::OpenDirectory;
use crate::mounting::MountOptions;
use crate::serve::Server;
use crate::session::Session;
use crate::tree::Tree;
use dafs_client::{
    Client, ClientIdentity, File, LockError, LockRange, OpenOptions, Status, User, acting_as,
};
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};
use thiserror::Error;

/// The reason why a mount could not be taken over. The process that has it goes on.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TakeOverError {
    /// There is no process, or it does not answer.
    #[error("the process that serves the mount does not hand it over: {0}")]
    Process(#[from] io::Error),
    /// The mount has another source than expected.
    #[error("it is mounted from {0}")]
    Source(String),
    /// The server does not grant all the state that the former process had.
    #[error("the server does not give what is in use: {0}")]
    Server(String),
    /// The process sent an invalid message.
    #[error("what the process that serves the mount tells makes no sense")]
    Malformed,
}

impl From<dafs_client::Error> for TakeOverError {
    fn from(error: dafs_client::Error) -> Self {
        Self::Server(error.to_string())
    }
}

impl From<LockError> for TakeOverError {
    fn from(error: LockError) -> Self {
        Self::Server(error.to_string())
    }
}

/// A mount that was taken over.
pub(crate) struct Taken {
    pub(crate) session: Arc<Session>,
    /// The connection to the former process, until that ends.
    pub(crate) former: UnixStream,
}

/// Takes the mount that the kernel calls `device`. `connect` connects as the same client as the
/// former process.
pub(crate) fn take<E: From<TakeOverError>>(
    device: &str,
    options: &MountOptions,
    connect: impl FnOnce(ClientIdentity) -> Result<Client, E>,
) -> Result<Taken, E> {
    let (stream, introduction) = meet(device, HANDOVER_MEETING)?;
    if introduction.source != options.source.as_bytes() {
        let source = String::from_utf8_lossy(&introduction.source).into_owned();
        return Err(TakeOverError::Source(source).into());
    }
    let client = connect(introduction.identity)?;
    let (state, device) = tables(&stream)?;
    let tree = Tree::new(client, introduction.root);
    let server = Server::new(device, state.agreed, tree, options.cache_timeout)
        .acting_for_callers(options.callers);
    let server = Arc::new(server);
    // The other process goes on by itself after a timeout: state that this one opened or locked
    // after that would be orphaned.
    let filled = dafs_client::within(HANDOVER_FILL, || fill(&server, &state));
    let session = Arc::new(Session::new(server.clone(), options.threads));
    // Steps that can fail come before the other process ends.
    let prepared = filled.and_then(|()| Ok(session.prepare()?));
    let taken = prepared.and_then(|()| agree(&stream));
    if let Err(error) = taken {
        let _ = send(&stream, error.to_string().as_bytes());
        // The opens belong to the other process as well: closing them here would close them there.
        std::mem::forget((server, session));
        return Err(error.into());
    }
    // The kernel interrupts a request once.
    state.given_up.iter().for_each(|unique| server.locks.give_up(*unique));
    for request in state.waiting {
        if let Err(error) = server.answer_lock(request, true) {
            server.device.answer(request.unique, Err(error));
        }
    }
    Ok(Taken { session, former: stream })
}

/// Connects to the process that serves the mount. Right after a hand-over the former process ends, and
/// the present one listens only then, so attempts are repeated for `patience`.
fn meet(device: &str, patience: Duration) -> Result<(UnixStream, Introduction), TakeOverError> {
    let until = Instant::now() + patience;
    loop {
        match introduced(device) {
            Err(TakeOverError::Process(error)) if may_change(&error) && Instant::now() < until => {
                std::thread::sleep(HANDOVER_PAUSE);
            }
            met => return met,
        }
    }
}

/// True if no process listens, or the one that did ends.
fn may_change(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionRefused, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionRefused | ConnectionReset | UnexpectedEof)
}

fn introduced(device: &str) -> Result<(UnixStream, Introduction), TakeOverError> {
    let stream = UnixStream::connect_addr(&address(device)?)?;
    check(&stream)?;
    greet(&stream)?;
    let introduction = Introduction::decode(&receive(&stream)?);
    Ok((stream, introduction.map_err(|_| TakeOverError::Malformed)?))
}

fn tables(stream: &UnixStream) -> Result<(State, Device), TakeOverError> {
    send(stream, CONNECTED)?;
    let (state, device) = receive_with(stream)?;
    let state = State::decode(&state).map_err(|_| TakeOverError::Malformed)?;
    if !state.agreed.is_known() {
        let reason = "it has agreed with the kernel on more than this version knows";
        send(stream, reason.as_bytes())?;
        return Err(io::Error::other(reason).into());
    }
    Ok((state, Device::new(device.ok_or(TakeOverError::Malformed)?)))
}

/// Opens and locks everything that the former process had.
fn fill(server: &Server, state: &State) -> Result<(), TakeOverError> {
    let sense = |is_new: bool| if is_new { Ok(()) } else { Err(TakeOverError::Malformed) };
    let client = &server.tree.client;
    for (node, handle, lookups) in &state.nodes {
        sense(server.tree.nodes.take_over(*node, *handle, *lookups))?;
    }
    server.files.begin_at(state.next_file);
    for file in &state.files {
        let options = content::options(file.flags).truncate(false);
        let open = || client.open_as(&file.handle, &options, file.open_owner);
        let Some(open) = opened_again(file.user.as_ref(), open)? else {
            tracing::warn!(number = file.number, "an open file is lost");
            continue;
        };
        if delegated::writes(file.flags) {
            server.delegated.begin_write(file.handle);
        }
        let open = OpenFile::new(server.home(), file.node, open, (file.flags, file.user.clone()));
        if file.is_lost {
            open.lose();
        }
        sense(server.files.take_over(file.number, open))?;
    }
    for directory in &state.directories {
        let of = (directory.handle, directory.user.clone());
        let open = OpenDirectory::resume(client, of, &directory.listing, &server.changes);
        sense(server.directories.take_over(directory.number, open))?;
    }
    for owner in &state.owners {
        let Some(open) = opened_again(owner.user.as_ref(), || open_to_lock(client, owner))? else {
            tracing::warn!(process = owner.process, "the locks of a process are lost");
            continue;
        };
        let open = acting_as(owner.user.as_ref(), || lock(open, owner))?;
        let name = (owner.name, owner.process);
        server.locks.take_over(owner.node, name, open, owner.handles.clone());
    }
    sense(state.waiting.len() <= LOCK_WAITERS_MAX)
}

/// Opens as the user, or as the session: rights may have changed since the server let the user open
/// it, and an open file stays open as far as the server lets the session have it. Returns `None` if
/// the server refuses both. One user must not keep all others from a newer version.
fn opened_again<T>(
    user: Option<&User>,
    open: impl Fn() -> dafs_client::Result<T>,
) -> dafs_client::Result<Option<T>> {
    let is_refusal = |error: &dafs_client::Error| {
        user.is_some() && matches!(error.status(), Some(Status::Acces | Status::Perm))
    };
    let mut opened = acting_as(user, &open);
    if opened.as_ref().is_err_and(is_refusal) {
        opened = open();
    }
    match opened {
        Err(error) if is_refusal(&error) => {
            tracing::debug!(%error, "the server does not give what was open");
            Ok(None)
        }
        other => other.map(Some),
    }
}

/// The open of an owner, and true if it can write.
fn open_to_lock(client: &Client, owner: &OwnerState) -> dafs_client::Result<(File, bool)> {
    // This owner has it open already; the access mode of that open was not recorded.
    let open = |way: OpenOptions, may_write| {
        let opened = client.open_as(&owner.handle, &way.direct(true), owner.open_owner);
        opened.map(|open| (open, may_write))
    };
    open(OpenOptions::read_write(), true)
        .or_else(|_| open(OpenOptions::read(), false))
        .or_else(|_| open(OpenOptions::write(), true))
}

/// Locks what the owner had locked.
fn lock((open, may_write): (File, bool), owner: &OwnerState) -> Result<(File, bool), LockError> {
    for &(offset, length, exclusive) in &owner.locks {
        let range = if exclusive { LockRange::exclusive() } else { LockRange::shared() };
        if let Err(error) = open.try_lock(&range.bytes(offset, length)) {
            std::mem::forget(open);
            return Err(error);
        }
    }
    Ok((open, may_write))
}

/// From here on the mount belongs to this process, and to no other one.
fn agree(stream: &UnixStream) -> Result<(), TakeOverError> {
    send(stream, TAKEN)?;
    if receive(stream)? != GO_ON {
        return Err(TakeOverError::Malformed);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use dafs_client::FileHandle;
    use std::os::unix::net::UnixListener;

    #[test]
    fn a_process_is_met_that_listens_when_the_former_one_has_ended() {
        let device = format!("test-{}", std::process::id());
        let identity = ClientIdentity { name: vec![1], verifier: [2; 8], next_owner: 3 };
        let root = FileHandle::ZERO;
        let introduction = Introduction { identity, root, source: b"dafs://h/".to_vec() };
        let at = address(&device).unwrap();
        let ends = UnixListener::bind_addr(&at).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // It is gone between the connection and its hello.
                drop(ends.accept().unwrap());
                drop(ends);
                let present = UnixListener::bind_addr(&at).unwrap();
                let (stream, _) = present.accept().unwrap();
                greet(&stream).unwrap();
                send(&stream, &introduction.encode()).unwrap();
            });
            let (_, told) = meet(&device, Duration::from_secs(60)).unwrap();
            assert_eq!(told, introduction);
        });
        assert!(matches!(
            meet(&device, Duration::ZERO),
            Err(TakeOverError::Process(error)) if error.kind() == io::ErrorKind::ConnectionRefused
        ));
    }
}
