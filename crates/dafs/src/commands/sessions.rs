//! `dafs sessions`: for the administrator of a running server.

use super::admin::{Place, other_answer};
use crate::failure::Failure;
use crate::output::{say, say_json};
use dafs_server::{AdminReply, AdminRequest, SessionReport};

/// Show the sessions of a running server, with DAFS and NFSv4.1, and the state of each
#[derive(Debug, clap::Args)]
pub(crate) struct Sessions {
    #[command(flatten)]
    place: Place,
    /// Print one JSON object per session
    #[arg(long)]
    json: bool,
}

impl Sessions {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        let AdminReply::Sessions(sessions) = self.place.ask(&AdminRequest::Sessions)? else {
            return Err(other_answer());
        };
        if self.json {
            return sessions.iter().try_for_each(say_json);
        }
        say!(
            "{:>16} {:>16} {:<9} {:>7} {:>7} {:>6} {:>6} {:>9} {:>7} {:>6} {:>6} {:>6} {:<12} peer, name",
            "session",
            "client",
            "transport",
            "age",
            "credits",
            "share",
            "weight",
            "in flight",
            "replies",
            "opens",
            "locks",
            "deleg.",
            "fence id"
        )?;
        sessions.iter().try_for_each(show)
    }
}

fn show(session: &SessionReport) -> Result<(), Failure> {
    let number = |count: Option<u64>| count.map_or_else(|| "-".to_owned(), |it| it.to_string());
    let transport =
        if session.transport.is_empty() { &session.front_end } else { &session.transport };
    say!(
        "{:>16} {:016x} {:<9} {:>6}s {:>7} {:>6} {:>6} {:>9} {:>7} {:>6} {:>6} {:>6} {:<12} {}, {}",
        session.session,
        session.client,
        transport,
        session.age_seconds,
        session.credits,
        number(session.share.map(u64::from)),
        session.weight,
        session.in_flight,
        number(session.replies),
        session.opens,
        session.locks,
        session.delegations,
        session.fence_id.as_deref().unwrap_or("-"),
        session.peer,
        session.name,
    )
}
