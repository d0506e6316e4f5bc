//! What differs by protocol between clients of data servers, as types; and a layout as all of them keep it.

use crate::{FileLayout, LayoutGrant, Plan};
use std::fmt::Debug;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The types of a protocol by which files are read and written at data servers.
pub trait Protocol: Debug + Sized + 'static {
    /// A file, as the metadata server calls it.
    type Handle: Debug;
    /// The state-id of a layout.
    type Name: Copy + Debug;
    /// A component at its data server.
    type Place: Debug;
    /// One way to a data server.
    type Address: Clone + Eq + std::hash::Hash;
    /// A data server.
    type Node: Debug;
    /// What a layout says beside its plan.
    type Terms: Debug;
    /// A transfer at data servers under way.
    type Flight;
    /// The locks of the client.
    type Lock<T: Default>: Lock<T>;
}

/// A mutex that is never found poisoned: what it protects is whole between any two steps.
pub trait Lock<T>: Default {
    /// Waits for the lock.
    fn hold(&self) -> MutexGuard<'_, T>;

    /// The same; `None` in a fork of the process that made it.
    fn hold_unless_forked(&self) -> Option<MutexGuard<'_, T>> {
        Some(self.hold())
    }
}

impl<T: Default> Lock<T> for Mutex<T> {
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
    /// What else it says.
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
