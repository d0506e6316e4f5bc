//! The knowledge and the decisions of a client that reads and writes files at data servers itself,
//! independent of the protocol. This crate does no I/O.
//!
//! These modules take no locks, never block and read no clock:
//!
//! | module | decision |
//! |---|---|
//! | [`aggregation`] | the arithmetic that maps files to components |
//! | [`plan`](Plan) | the component for each byte of a transfer, and the choice of a copy |
//! | [`outcome`](sum) | the result of a piece from those of its parts |
//! | [`state`](LayoutState) | the phases of a file's layout, and the writes that must be reported |
//! | [`backoff`](ServerBackoff) | the backoff of a failed data server |
//!
//! These modules lock, and wait, for the threads of both clients:
//!
//! | module | what it does |
//! |---|---|
//! | [`protocol`](Protocol) | the types and requests by which protocols differ |
//! | [`file`](FileLayout) | the state of a file's layout under a lock |
//! | [`holder`](Holder) | the order of LAYOUTGET, COMMIT, LAYOUTCOMMIT and LAYOUTRETURN |
//! | [`nodes`](Nodes) | the data servers that a client has heard of |
//! | [`returns`](Returns) | the queue of layouts to give back |
//!
//! [`vocabulary`](SetAttributes) has the words for files that mean the same in both clients.
//!
//! Invariants
//! * A layout is only an optimisation: I/O through the server always works.

#![forbid(unsafe_code)]

pub mod aggregation;
mod backoff;
mod file;
mod holder;
pub mod limits;
mod nodes;
mod outcome;
mod plan;
mod protocol;
mod returns;
mod state;
mod vocabulary;

pub use backoff::ServerBackoff;
pub use file::FileLayout;
pub use holder::Holder;
pub use nodes::Nodes;
pub use outcome::{Fault, Faults, Moved, sum};
pub use plan::{Cut, Plan, are_apart};
pub use protocol::{Act, Grant, Granted, Held, Lock, Protocol, Refusal, Untold};
pub use returns::{Returns, Work};
pub use state::{LayoutGrant, LayoutState, Recalled, Step, Want, Written};
pub use vocabulary::{Follow, Owner, SetAttributes, SpecialFile};
