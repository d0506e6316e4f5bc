//! Weights of sessions, from the configuration to administrators and metrics.

use crate::common::{Running, any, scrape, session};
use dafs_client::{Client, ConnectOptions, DafsUrl};
use dafs_mem::Mutex;
use dafs_server::{AdminReply, AdminRequest, ask_server};
use dafs_service::{ImportanceRule, Weight};
use std::sync::Arc;

fn rule(user: Option<u32>, client: Option<&str>, weight: u32) -> ImportanceRule {
    let client = client.map(|text| text.parse().unwrap());
    ImportanceRule { user, network: None, client, weight: Weight::new(weight).unwrap() }
}

/// Returns protocol and weight of all sessions, in order.
fn weights(running: &Running) -> Vec<(String, u32)> {
    let state = running.config.state_directory.as_ref().unwrap();
    let AdminReply::Sessions(sessions) = ask_server(state, &AdminRequest::Sessions).unwrap() else {
        panic!("no sessions");
    };
    assert!(sessions.iter().all(|session| session.share.is_none()), "there is enough for all");
    assert!(sessions.iter().all(|session| session.credits > 0));
    let mut weights: Vec<_> =
        sessions.into_iter().map(|session| (session.front_end, session.weight)).collect();
    weights.sort();
    weights
}

fn gauge(running: &Running, name: &str) -> String {
    let text = scrape(running.server().metrics_address().unwrap());
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.unwrap_or_else(|| panic!("no {name} in {text}")).to_owned()
}

#[test]
fn administrators_see_weights_of_both_protocols_and_reload_them() {
    let own = rustix::process::geteuid().as_raw();
    let running = Running::new(|config| {
        config.importance = vec![
            rule(None, Some("db*"), 1000),
            rule(None, Some("batch"), 7),
            rule(Some(own), None, 50),
        ];
        config.metrics_listen = Some(any());
    });
    let nfs = ["db 1", "batch"].map(|name| session(running.server(), name.as_bytes()));
    let url = DafsUrl::parse(&running.server().url()).unwrap();
    let client = Client::connect(&url, &ConnectOptions::default()).unwrap();
    let seen = |weights: &[(&str, u32)]| -> Vec<(String, u32)> {
        weights.iter().map(|&(door, weight)| (door.to_owned(), weight)).collect()
    };
    assert_eq!(weights(&running), seen(&[("dafs", 50), ("nfs4", 7), ("nfs4", 1000)]));
    assert_eq!(gauge(&running, "dafs_nfs_important_sessions"), "1");
    assert_eq!(gauge(&running, "dafs_nfs_slots_owed"), "0");
    assert_eq!(gauge(&running, "dafs_important_sessions"), "0");
    assert_eq!(gauge(&running, "dafs_credits_owed"), "0");

    let current = Arc::new(Mutex::new(running.config.clone()));
    let read_config = current.clone();
    running.server().set_read_config(Box::new(move || Ok(read_config.lock().clone())));
    current.lock().importance = vec![rule(None, Some("b*"), 70), rule(None, Some("*"), 300)];
    running.server().reload().unwrap();
    assert_eq!(weights(&running), seen(&[("dafs", 300), ("nfs4", 70), ("nfs4", 300)]));
    client.disconnect().unwrap();
    drop(nfs);
}
