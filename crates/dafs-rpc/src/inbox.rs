//! The inbox of a reactor, for commands and messages from other threads.
//!
//! Invariants
//! * A thread that adds a command and finds the reactor asleep wakes it. The reactor announces that
//!   it sleeps, then checks the inbox, then sleeps: no wake-up is lost.

use crate::answer::AnswerTo;
use crate::call::{CallerProcess, ConnectionId};
use crate::call_chunks::CallChunks;
use crate::reply::{Rejection, Reply};
use crate::tls::Stepped;
use dafs_dat::connections::Admitted;
use dafs_mem::Mutex;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A command for a reactor.
#[derive(Debug)]
pub(crate) enum Command {
    /// The answer to a deferred call.
    Answer {
        connection: ConnectionId,
        to: AnswerTo,
        answer: Result<Reply, Rejection>,
        held_bytes: usize,
        call_chunks: Option<Arc<CallChunks>>,
    },
    /// A deferred call will not be answered.
    Forget { connection: ConnectionId, held_bytes: usize },
    /// Send a callback to the peer.
    CallBack { connection: ConnectionId, call: CallbackRequest },
    /// End a connection.
    Close { connection: ConnectionId },
    /// A handshake of TLS has made a step.
    Shaken { connection: ConnectionId, stepped: Box<Stepped> },
    /// Serve a connection that another reactor accepted.
    Adopt { stream: Arc<OwnedFd>, peer: (SocketAddr, CallerProcess), admitted: Arc<Admitted> },
}

impl Command {
    /// The connection that the command addresses.
    pub(crate) fn connection(&self) -> Option<ConnectionId> {
        match self {
            Self::Answer { connection, .. }
            | Self::Forget { connection, .. }
            | Self::CallBack { connection, .. }
            | Self::Shaken { connection, .. }
            | Self::Close { connection } => Some(*connection),
            Self::Adopt { .. } => None,
        }
    }
}

/// A callback to a peer that is a client of this server (RFC 8881 section 2.10.3.1).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallbackRequest {
    /// The program, such as the one that CREATE_SESSION named.
    pub program: u32,
    /// The version of the program.
    pub version: u32,
    /// The procedure.
    pub procedure: u32,
    /// The body of an AUTH_SYS credential in XDR; AUTH_NONE if absent.
    pub auth_sys: Option<Vec<u8>>,
    /// The arguments in XDR.
    pub args: Vec<u8>,
    /// Returned with the answer.
    pub token: u64,
}

/// A queue of commands from other threads to one reactor.
#[derive(Debug)]
pub(crate) struct Inbox {
    commands: Mutex<Vec<Command>>,
    /// True when there may be commands here, or messages for the handler.
    full: AtomicBool,
    asleep: AtomicBool,
    waker: OwnedFd,
}

impl Inbox {
    pub(crate) fn new() -> io::Result<Self> {
        let flags = rustix::event::EventfdFlags::NONBLOCK | rustix::event::EventfdFlags::CLOEXEC;
        Ok(Self {
            commands: Mutex::default(),
            full: AtomicBool::new(false),
            asleep: AtomicBool::new(false),
            waker: rustix::event::eventfd(0, flags)?,
        })
    }

    pub(crate) fn push(&self, command: Command) {
        self.commands.lock().push(command);
        self.notify();
    }

    /// Announces that there is something to take.
    pub(crate) fn notify(&self) {
        // Sequentially consistent, as in `fall_asleep`: two threads each set one flag and then read
        // the other. At least one of them sees the other's.
        self.full.store(true, Ordering::SeqCst);
        if self.asleep.load(Ordering::SeqCst) {
            self.wake();
        }
    }

    /// Wakes the reactor even if the inbox is empty.
    pub(crate) fn wake(&self) {
        // The only possible failure is a full counter, and then the descriptor is readable already.
        let _ = rustix::io::write(&self.waker, &1u64.to_ne_bytes());
    }

    /// Returns true when there may be something to take, and resets the flag.
    #[inline]
    pub(crate) fn check(&self) -> bool {
        self.full.load(Ordering::Relaxed) && self.full.swap(false, Ordering::SeqCst)
    }

    /// Moves the commands into `commands`, which must be empty.
    pub(crate) fn take(&self, commands: &mut Vec<Command>) {
        debug_assert!(commands.is_empty(), "commands of an earlier turn were not handled");
        std::mem::swap(&mut *self.commands.lock(), commands);
    }

    /// Announces that the reactor is going to sleep; returns false when it must not.
    pub(crate) fn fall_asleep(&self) -> bool {
        self.asleep.store(true, Ordering::SeqCst);
        if self.full.load(Ordering::SeqCst) {
            self.asleep.store(false, Ordering::SeqCst);
            return false;
        }
        true
    }

    /// Says that the reactor is awake.
    pub(crate) fn awake(&self) {
        self.asleep.store(false, Ordering::SeqCst);
    }

    /// Resets the descriptor after it woke the reactor.
    pub(crate) fn acknowledge(&self) {
        let _ = rustix::io::read(&self.waker, &mut [0; 8]);
    }

    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.waker.as_fd()
    }
}

/// Sends messages to the handler of one reactor, from any thread.
pub struct Injector<M> {
    inbox: Arc<Inbox>,
    messages: Arc<Mutex<Vec<M>>>,
}

impl<M> Injector<M> {
    pub(crate) fn new(inbox: Arc<Inbox>) -> Self {
        Self { inbox, messages: Arc::default() }
    }

    /// Queues a message; the reactor passes it to the handler's `message`. It has no effect once
    /// the reactor has ended.
    pub fn send(&self, message: M) {
        self.messages.lock().push(message);
        self.inbox.notify();
    }

    /// Returns the event descriptor on which the reactor sleeps. A write to it wakes the reactor.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.inbox.descriptor()
    }

    pub(crate) fn take(&self, messages: &mut Vec<M>) {
        debug_assert!(messages.is_empty(), "messages of an earlier turn were not handled");
        std::mem::swap(&mut *self.messages.lock(), messages);
    }
}

impl<M> Clone for Injector<M> {
    fn clone(&self) -> Self {
        Self { inbox: self.inbox.clone(), messages: self.messages.clone() }
    }
}

impl<M> std::fmt::Debug for Injector<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Injector")
    }
}
