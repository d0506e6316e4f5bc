//! What a client knows and decides that reads and writes files at data servers itself, by whatever
//! protocol it does so. No module knows a protocol or sends anything.
//!
//! | module | what it decides |
//! |---|---|
//! | [`aggregation`] | the ways in which files are spread over components, as arithmetic |
//! | [`plan`](Plan) | which bytes of a transfer go to which component, and the copies to go by |
//! | [`legs`](sum) | what came of the parts of a piece, taken together |
//! | [`state`](LayoutState) | the phases of the layout of one file, and what was written by it and is to be told |
//! | [`avoidance`](Avoidance) | for how long a data server is left alone that has failed |
//!
//! None of these waits, locks or looks at a clock. These do, for the threads of both clients:
//!
//! | module | what it does |
//! |---|---|
//! | [`protocol`](Protocol) | what differs between protocols: types and requests |
//! | [`file`](FileLayout) | the state of a file's layout under a lock |
//! | [`holder`](Holder) | the order in which a layout is asked for, committed by, told by and given back |
//! | [`nodes`](Nodes) | the data servers that a client has heard of |
//! | [`returns`](Returns) | what waits to be given back |
//!
//! Invariants
//! * A layout only says of a shorter way: there is always that through the server.

#![forbid(unsafe_code)]

pub mod aggregation;
mod avoidance;
mod file;
mod holder;
mod legs;
pub mod limits;
mod nodes;
mod plan;
mod protocol;
mod returns;
mod state;

pub use avoidance::Avoidance;
pub use file::FileLayout;
pub use holder::Holder;
pub use legs::{Fault, Faults, Moved, sum};
pub use nodes::Nodes;
pub use plan::{Cut, Plan, are_apart};
pub use protocol::{Act, Grant, Granted, Held, Lock, Protocol, Refusal, Untold};
pub use returns::{Returns, Work};
pub use state::{LayoutGrant, LayoutState, Recalled, Step, Want, Written};
