//! The types and requests by which protocols differ, and the layout that every client holds.

use crate::{Fault, FileLayout, Holder, LayoutGrant, Plan, Written};
use dafs_mem::Mutex;
use std::fmt::{Debug, Display};
use std::hash::Hash;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, MutexGuard};

/// A protocol by which a client reads and writes files at data servers: its types, and the requests
/// of [`Holder`], which return the server's errors. Each client implements it for its `Layouts`.
pub trait Protocol: Debug + Sized + 'static {
    /// The handle of a file at the metadata server.
    type Handle: Debug;
    /// The state-id of a layout.
    type Name: Copy + Debug;
    /// The address of a component at its data server.
    type Place: Debug;
    /// An address of a data server.
    type Address: Clone + Debug + Eq + Hash;
    /// A data server.
    type Node: Debug;
    /// The terms of a layout besides its plan.
    type Terms: Debug;
    /// An outstanding transfer at data servers.
    type Flight: Debug;
    /// Work of the recall thread besides LAYOUTRETURN.
    type Work: Debug + PartialEq;
    /// The locks of the client.
    type Lock<T: Debug + Default>: Lock<T>;
    /// The connection with the metadata server.
    type Server;
    /// The reason why there is no layout, or no usable one.
    type Unusable: Display;
    /// The reason why the server has not done something.
    type Error: Display;
    /// A report to the metadata server of an error at a data server.
    type Report: Clone + Debug + PartialEq;
    /// An outstanding COMMIT at a data server.
    type Commit;

    /// The error for written data that is gone.
    const WRITES_LOST: Self::Error;

    /// Returns the holder of a file's layout.
    fn at<'a>(&'a self, server: &'a Self::Server, file: &'a FileLayout<Self>) -> Holder<'a, Self> {
        Holder { client: self, server, file }
    }

    /// Splits a layout's state-id into its sequence number and the rest.
    fn parts(name: &mut Self::Name) -> (&mut u32, &[u8]);

    /// Ends the sessions with data servers that no layout names any more, without waiting for them.
    fn retire(nodes: Vec<Arc<Self::Node>>) {
        drop(nodes);
    }

    /// True if the file is open for writing, so that a layout can be requested for LAYOUTCOMMIT.
    fn has_writer(at: &Holder<'_, Self>) -> bool;

    /// Asks for a layout for writing, only for LAYOUTCOMMIT; `held` is the name of one for reading.
    fn ask_to_tell(
        at: &Holder<'_, Self>,
        held: Option<Self::Name>,
    ) -> Result<Granted<Self>, Self::Unusable>;

    /// The meaning of a refusal, if it was the server that refused the layout.
    fn refusal(at: &Holder<'_, Self>, why: &Self::Unusable, to_tell: bool) -> Option<Refusal>;

    /// Ends LAYOUTCOMMIT without a layout; an error if it may succeed later.
    fn without_layout(why: Self::Unusable) -> Result<(), Self::Error>;

    /// Returns the pause between attempts to get a layout, `long` where the server gives none for
    /// now. Each call sleeps, and returns whether there is time for another attempt.
    fn pauses(
        at: &Holder<'_, Self>,
        long: bool,
    ) -> impl FnMut() -> Result<bool, Self::Error> + use<Self>;

    /// Waits until a transfer has been answered.
    fn settle(flight: &Self::Flight);

    /// Sends a COMMIT to the data server of a component.
    fn begin_commit(at: &Holder<'_, Self>, grant: &Grant<Self>, component: usize) -> Self::Commit;

    /// Waits for the verifier of that; `None` if the data server cannot commit.
    fn finish_commit(
        at: &Holder<'_, Self>,
        grant: &Grant<Self>,
        component: usize,
        commit: Self::Commit,
    ) -> Option<[u8; 8]>;

    /// Commits the whole file at the metadata server, for layouts that say so. Returns its
    /// verifier.
    fn commit_at_server(_at: &Holder<'_, Self>) -> Option<[u8; 8]> {
        None
    }

    /// Sends LAYOUTCOMMIT. Returns the size of the file, if the server reports it.
    fn layout_commit(
        at: &Holder<'_, Self>,
        grant: &Grant<Self>,
        name: Self::Name,
        written: Written,
    ) -> Result<Option<u64>, Self::Error>;

    /// The meaning of an error of LAYOUTCOMMIT.
    fn untold(error: &Self::Error) -> Untold;

    /// True if the server already knows of all writes, and of the file's end.
    fn is_known(_at: &Holder<'_, Self>, _written: Written) -> Result<bool, Self::Error> {
        Ok(false)
    }

    /// The error if other threads repeatedly return the layout before LAYOUTCOMMIT.
    fn delayed(at: &Holder<'_, Self>) -> Self::Error;

    /// Returns the layout (LAYOUTRETURN).
    fn layout_return(
        at: &Holder<'_, Self>,
        grant: &Grant<Self>,
        name: Self::Name,
        errors: &[Self::Report],
    ) -> Result<(), Self::Error>;

    /// Reports errors at data servers before LAYOUTRETURN. True if the server knows of them then,
    /// and still takes a LAYOUTCOMMIT by that layout.
    fn report_before(_at: &Holder<'_, Self>, _errors: &[Self::Report]) -> bool {
        false
    }

    /// Returns the report to the server of a failure at a data server; none for a transient
    /// failure.
    fn report(
        at: &Holder<'_, Self>,
        grant: &Grant<Self>,
        failed: (usize, &Fault<Self::Error>),
        act: Act,
    ) -> Option<Self::Report>;

    /// Does something regardless of its thread's deadline.
    fn unhurried<T>(work: impl FnOnce() -> T) -> T {
        work()
    }

    /// Does something without a call of the program's stop callback.
    fn unstopped<T>(work: impl FnOnce() -> T) -> T {
        work()
    }
}

/// The request to a data server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Act {
    Read,
    Write,
    Commit,
}

/// The meaning of the server's refusal of a layout.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Refusal {
    /// The server still knows the layout that is held already, for reading.
    pub kept: bool,
    /// There may be a layout soon.
    pub passing: bool,
}

/// The meaning of the server's refusal of LAYOUTCOMMIT.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Untold {
    /// The server does not know the layout any more.
    LayoutLost,
    /// The data servers have lost acknowledged writes.
    WritesLost,
    /// Another error.
    Other,
}

/// A mutex that ignores poison: what it protects is whole between any two steps.
pub trait Lock<T>: Debug + Default {
    /// Waits for the lock.
    fn hold(&self) -> MutexGuard<'_, T>;

    /// The same; `None` in a fork of the process that made the lock.
    fn hold_unless_forked(&self) -> Option<MutexGuard<'_, T>> {
        Some(self.hold())
    }
}

impl<T: Debug + Default> Lock<T> for Mutex<T> {
    fn hold(&self) -> MutexGuard<'_, T> {
        self.lock()
    }
}

/// A granted layout.
#[derive(Debug)]
pub struct Grant<P: Protocol> {
    /// The places of the file.
    pub plan: Plan<P::Place>,
    /// The data server of each component.
    pub nodes: Vec<Arc<P::Node>>,
    /// True if it is for writing, too.
    pub write: bool,
    /// Further terms.
    pub terms: P::Terms,
    /// Grows with every read, so that copies take turns.
    turn: AtomicUsize,
}

impl<P: Protocol> Grant<P> {
    /// Makes a layout with this plan.
    pub fn new(
        plan: Plan<P::Place>,
        nodes: Vec<Arc<P::Node>>,
        write: bool,
        terms: P::Terms,
    ) -> Arc<Self> {
        Arc::new(Self { plan, nodes, write, terms, turn: AtomicUsize::new(0) })
    }

    /// The copy for the next read: the preferred ones take turns.
    pub fn next_copy(&self) -> usize {
        self.plan.copy_in_turn(self.turn.fetch_add(1, Ordering::Relaxed))
    }
}

impl<P: Protocol> LayoutGrant for Grant<P> {
    fn is_for_writing(&self) -> bool {
        self.write
    }

    fn needs_layout_commit(&self) -> bool {
        self.plan.needs_layout_commit
    }
}

/// A layout that the server has just granted, with the rest of the answer.
#[derive(Debug)]
pub struct Granted<P: Protocol> {
    /// The layout.
    pub grant: Arc<Grant<P>>,
    /// Its state-id.
    pub name: P::Name,
    /// The size of the file, if the server reported it.
    pub size: Option<u64>,
}

/// The layout of a file, to be given back.
pub type Held<P> = (Arc<FileLayout<P>>, Arc<Grant<P>>);
