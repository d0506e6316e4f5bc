//! The client, against a real server in this process and against a scripted one.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod asynchronous;
mod back;
mod batch;
mod cache;
mod chains;
mod counted;
mod credentials;
mod delegated;
mod fake;
mod files;
mod fsx;
mod given_up;
mod groups;
mod gss;
mod guide;
mod hints;
mod lent;
mod lost;
mod optimistic;
mod optimistic_remotely;
mod optimistic_small;
mod optimistic_ways;
mod overdue;
mod padding;
mod parts;
mod read_ahead;
mod reclaim;
mod recovered;
mod recovery;
mod scripted;
#[path = "../served/mod.rs"]
mod served;
mod session;
mod shared;
mod shown;
mod silent;
mod tokio;
mod undone;
mod users;
mod whole;
