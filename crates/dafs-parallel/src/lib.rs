//! What a client knows and decides that reads and writes files at data servers itself, by whatever
//! protocol it does so. Nothing here waits, locks, looks at a clock or sends anything.
//!
//! | module | what it decides |
//! |---|---|
//! | [`aggregation`] | the ways in which files are spread over components, as arithmetic |
//! | [`plan`](Plan) | which bytes of a transfer go to which component, and the copies to go by |
//! | [`legs`](sum) | what came of the parts of a piece, taken together |
//! | [`state`](LayoutState) | the phases of the layout of one file, and what was written by it and is to be told |
//! | [`avoidance`](Avoidance) | for how long a data server is left alone that has failed |
//!
//! Invariants
//! * A layout only says of a shorter way: there is always that through the server.

#![forbid(unsafe_code)]

pub mod aggregation;
mod avoidance;
mod legs;
pub mod limits;
mod plan;
mod state;

pub use avoidance::Avoidance;
pub use legs::{Fault, Faults, Moved, sum};
pub use plan::{Cut, Plan, are_apart};
pub use state::{LayoutGrant, LayoutState, Recalled, Step, Want, Written};
