//! The types and requests by which protocols differ, and the layout as every client keeps it.

use crate::{Fault, FileLayout, Holder, LayoutGrant, Plan, Written};
use std::fmt::{Debug, Display};
use std::hash::Hash;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A protocol by which files are read and written at data servers: its types, and the requests that
/// [`Holder`] needs, whose errors are the server's. Each client implements it for its `Layouts`.
pub trait Protocol: Debug + Sized + 'static {
    /// A file, as the metadata server calls it.
    type Handle: Debug;
    /// The state-id of a layout.
    type Name: Copy + Debug;
    /// A component at its data server.
    type Place: Debug;
    /// One way to a data server.
    type Address: Clone + Debug + Eq + Hash;
    /// A data server.
    type Node: Debug;
    /// The terms of a layout beside its plan.
    type Terms: Debug;
    /// A transfer at data servers under way.
    type Flight: Debug;
    /// Work of the recall thread beside LAYOUTRETURN.
    type Work: Debug + PartialEq;
    /// The locks of the client.
    type Lock<T: Debug + Default>: Lock<T>;
    /// The connection with the metadata server.
    type Server;
    /// Why there is no layout, or it is of no use.
    type Unusable: Display;
    /// Why the server did not do something.
    type Error: Display;
    /// An error at a data server, for the metadata server.
    type Report: Clone + Debug + PartialEq;
    /// A COMMIT under way at a data server.
    type Commit;

    /// Data that was written is gone.
    const WRITES_LOST: Self::Error;

    /// The layout of a file, with the server that gives it.
    fn at<'a>(&'a self, server: &'a Self::Server, file: &'a FileLayout<Self>) -> Holder<'a, Self> {
        Holder { client: self, server, file }
    }

    /// The number of a layout's state-id, and what else it consists of.
    fn parts(name: &mut Self::Name) -> (&mut u32, &[u8]);

    /// Asks for a layout for writing, only to tell what was written; `held` is the name of one for reading.
    fn ask_to_tell(
        at: &Holder<'_, Self>,
        held: Option<Self::Name>,
    ) -> Result<Granted<Self>, Self::Unusable>;

    /// The meaning of a refusal, if it was the server that refused the layout.
    fn refusal(at: &Holder<'_, Self>, why: &Self::Unusable, to_tell: bool) -> Option<Refusal>;

    /// There is no layout to tell by what was written; an error if it may be told later.
    fn without_layout(why: Self::Unusable) -> Result<(), Self::Error>;

    /// Pauses between attempts to get a layout, `long` ones where the server gives none for now: each call waits,
    /// and says whether there is time for one more.
    fn pauses(
        at: &Holder<'_, Self>,
        long: bool,
    ) -> impl FnMut() -> Result<bool, Self::Error> + use<Self>;

    /// Waits until a transfer has been answered.
    fn settle(flight: &Self::Flight);

    /// Begins to commit what a component has of the file.
    fn begin_commit(at: &Holder<'_, Self>, grant: &Grant<Self>, component: usize) -> Self::Commit;

    /// Gives the verifier of that; `None` if the data server cannot commit.
    fn finish_commit(
        at: &Holder<'_, Self>,
        grant: &Grant<Self>,
        component: usize,
        commit: Self::Commit,
    ) -> Option<[u8; 8]>;

    /// Commits all of the file at the metadata server, for layouts that say so. Gives its verifier.
    fn commit_at_server(_at: &Holder<'_, Self>) -> Option<[u8; 8]> {
        None
    }

    /// Tells the server what was written (LAYOUTCOMMIT). Gives the size of the file, if it is told.
    fn layout_commit(
        at: &Holder<'_, Self>,
        grant: &Grant<Self>,
        name: Self::Name,
        written: Written,
    ) -> Result<Option<u64>, Self::Error>;

    /// The meaning of an error of LAYOUTCOMMIT.
    fn untold(error: &Self::Error) -> Untold;

    /// True if the server knows already of all that was written, and of the file's end.
    fn is_known(_at: &Holder<'_, Self>, _written: Written) -> Result<bool, Self::Error> {
        Ok(false)
    }

    /// The error where other threads return the layout again and again before LAYOUTCOMMIT.
    fn put_off(at: &Holder<'_, Self>) -> Self::Error;

    /// Gives the layout back (LAYOUTRETURN).
    fn layout_return(
        at: &Holder<'_, Self>,
        grant: &Grant<Self>,
        name: Self::Name,
        errors: &[Self::Report],
    ) -> Result<(), Self::Error>;

    /// Reports errors at data servers before LAYOUTRETURN. True if the server knows of them then: it still takes a
    /// LAYOUTCOMMIT by that layout.
    fn report_before(_at: &Holder<'_, Self>, _errors: &[Self::Report]) -> bool {
        false
    }

    /// The report to the server of a failure at a data server; none of a failure that passes by itself.
    fn report(
        at: &Holder<'_, Self>,
        grant: &Grant<Self>,
        failed: (usize, &Fault<Self::Error>),
        act: Act,
    ) -> Option<Self::Report>;

    /// Does something whatever time its thread has left.
    fn unhurried<T>(work: impl FnOnce() -> T) -> T {
        work()
    }

    /// Does something in the midst of which the program is not asked whether to stop.
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
    /// The one that is held already, for reading, is still known to the server.
    pub kept: bool,
    /// There may be one soon.
    pub passing: bool,
}

/// The meaning of the server's refusal of LAYOUTCOMMIT.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Untold {
    /// It does not know the layout any more.
    LayoutLost,
    /// The data servers do not have what they have acknowledged.
    WritesLost,
    /// Something else.
    Other,
}

/// A mutex that is never found poisoned: what it protects is whole between any two steps.
pub trait Lock<T>: Debug + Default {
    /// Waits for the lock.
    fn hold(&self) -> MutexGuard<'_, T>;

    /// The same; `None` in a fork of the process that made it.
    fn hold_unless_forked(&self) -> Option<MutexGuard<'_, T>> {
        Some(self.hold())
    }
}

impl<T: Debug + Default> Lock<T> for Mutex<T> {
    fn hold(&self) -> MutexGuard<'_, T> {
        self.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A layout.
#[derive(Debug)]
pub struct Grant<P: Protocol> {
    /// Where the file lies.
    pub plan: Plan<P::Place>,
    /// The data server of each component.
    pub nodes: Vec<Arc<P::Node>>,
    /// It is for writing, too.
    pub write: bool,
    /// Its further terms.
    pub terms: P::Terms,
    /// Grows with every read, so that copies take turns.
    turn: AtomicUsize,
}

impl<P: Protocol> Grant<P> {
    /// A layout with this plan.
    pub fn new(
        plan: Plan<P::Place>,
        nodes: Vec<Arc<P::Node>>,
        write: bool,
        terms: P::Terms,
    ) -> Arc<Self> {
        Arc::new(Self { plan, nodes, write, terms, turn: AtomicUsize::new(0) })
    }

    /// The copy to read from next: the best ones take turns.
    pub fn next_copy(&self) -> usize {
        self.plan.copy_in_turn(self.turn.fetch_add(1, Ordering::Relaxed))
    }
}

impl<P: Protocol> LayoutGrant for Grant<P> {
    fn is_for_writing(&self) -> bool {
        self.write
    }

    fn is_told(&self) -> bool {
        self.plan.is_told
    }
}

/// A layout that the server has just granted, and what came with it.
#[derive(Debug)]
pub struct Granted<P: Protocol> {
    /// The layout.
    pub grant: Arc<Grant<P>>,
    /// Its state-id.
    pub name: P::Name,
    /// The size of the file, if the server told.
    pub size: Option<u64>,
}

/// The layout of a file that is to be given back.
pub type Held<P> = (Arc<FileLayout<P>>, Arc<Grant<P>>);
