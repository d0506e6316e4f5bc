//! `dafs top`: for the administrator of a running server.
//!
//! `activity.rs` has the work of an interval, `screen.rs` and `tables.rs` the full screen without a
//! terminal, `display.rs` the terminal, `plain.rs` lines.

mod activity;
mod display;
mod latency;
mod plain;
mod screen;
mod tables;

use super::admin::{Place, other_answer};
use crate::failure::Failure;
use crate::output::{print, say_json};
use activity::{Activity, Look};
use dafs_server::{AdminReply, AdminRequest};
use std::time::{Duration, Instant};

/// Show the work of a running server on a full screen: clients, exports, open files, data servers
///
/// The screen has throughput, durations of requests, credits, CPU and load, and tables; h shows the keys. Without
/// a terminal, and with --count, --once or --json, each interval is printed: the requests of clients, the
/// busiest first, and optimistic reads.
///
/// Optimistic reads are no requests, so the server counts none: the client that reads does. The files and
/// blocks are those that they can read, and the requests are those for these files that were sent all the same.
#[derive(Debug, clap::Args)]
pub(crate) struct Top {
    #[command(flatten)]
    place: Place,
    /// Seconds of one interval
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=3600))]
    seconds: u32,
    /// Print so many intervals; without end if left out
    #[arg(long, value_name = "N")]
    count: Option<u32>,
    /// Print one interval, as --count 1 does
    #[arg(long, conflicts_with = "count")]
    once: bool,
    /// Most clients to print
    #[arg(long, value_name = "N", default_value_t = 20)]
    clients: usize,
    /// Print one JSON object per interval
    #[arg(long)]
    json: bool,
}

impl Top {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        let interval = Duration::from_secs(self.seconds.into());
        let mut left = if self.once { Some(1) } else { self.count };
        if left.is_none() && !self.json && display::is_usable() {
            return display::run(&self.place, interval);
        }
        let mut before = look(&self.place)?;
        while left != Some(0) {
            std::thread::sleep(interval);
            let after = look(&self.place)?;
            self.show(&Activity::between(&before, &after))?;
            before = after;
            left = left.map(|left| left - 1);
        }
        Ok(())
    }

    fn show(&self, activity: &Activity) -> Result<(), Failure> {
        if self.json {
            return say_json(activity);
        }
        if display::is_usable() {
            // The top left corner of an empty screen.
            print("\x1b[H\x1b[2J")?;
        }
        plain::show(activity, self.clients)
    }
}

/// Asks a server for its counts.
fn look(place: &Place) -> Result<Look, Failure> {
    let time = Instant::now();
    let AdminReply::Status(status) = place.ask(&AdminRequest::Status)? else {
        return Err(other_answer());
    };
    let AdminReply::Clients(clients) = place.ask(&AdminRequest::Clients)? else {
        return Err(other_answer());
    };
    let AdminReply::Sessions(sessions) = place.ask(&AdminRequest::Sessions)? else {
        return Err(other_answer());
    };
    let AdminReply::Nodes(nodes) = place.ask(&AdminRequest::Nodes)? else {
        return Err(other_answer());
    };
    let AdminReply::Exposed(exposed) = place.ask(&AdminRequest::Exposed)? else {
        return Err(other_answer());
    };
    Ok(Look { time, status, clients, sessions, nodes, exposed })
}
