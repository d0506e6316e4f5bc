//! Sessions of clients whose certificate names a user.

use crate::common::*;
use dafs_dat::PeerInfo;
use dafs_dat::tls::TlsPeer;
use dafs_service::limits::IDENTITY_FRESH_NS;
use dafs_service::{Identities, Known, LocalDirectory, Rule, Rules, TransportSecurity, UserOf};
use dafs_tls::Suite;
use dafs_wire::dafs::{
    self, AttrMask, AuthRequest, ByteOrder, ConnectBind, Credential, Reply, Request, SecInfoEntry,
    Seq, SessionId, Status,
};
use std::sync::Arc;
use std::time::Duration;

/// The user of each host's certificate. There is no rule for eve; host 9 has no such name.
fn user(host: u32) -> Option<Arc<str>> {
    let name = match host {
        2 | 3 => "anna@example.org",
        4 => "bert@example.org",
        5 => "eve@elsewhere.org",
        6 => "proxy@example.org",
        _ => return None,
    };
    Some(name.into())
}

fn in_tls(host: u32, peer: PeerInfo) -> PeerInfo {
    let (level, suite, subject) = (TransportSecurity::Mtls, Suite::Aes256, None);
    let (user, binding) = (user(host), [host as u8; 32]);
    PeerInfo { tls: Some(Arc::new(TlsPeer { level, suite, subject, user, binding })), ..peer }
}

/// Clients of other hosts, whose addresses give them no trust.
fn strangers(host: u32) -> PeerInfo {
    in_tls(host, stranger(host))
}

/// Clients whose addresses are trusted.
fn trusted(host: u32) -> PeerInfo {
    in_tls(host, PeerInfo { sim_host: Some(host), ..PeerInfo::default() })
}

fn setup(mask: Mask) -> Setup {
    let rule = |user: &str, uid, trusted| Rule {
        pattern: format!("{user}@example.org").parse().unwrap(),
        user: UserOf::Number(uid, 100),
        trusted,
    };
    let rules =
        vec![rule("anna", 4711, false), rule("bert", 4712, false), rule("proxy", 4713, true)];
    let rules = Rules { rules, default_realm: None };
    let certificates = Some(Arc::new(Identities::new(rules, Box::new(LocalDirectory))));
    Setup { certificates, mask, ..Setup::default() }
}

/// The owner of a new file of this client.
fn owner(world: &mut World, client: usize, name: &[u8]) -> u32 {
    let file = world.open(client, name);
    let get = dafs::GetAttrInline { fh: file.fh, attributes: AttrMask::OWNER };
    let answer = world.call(client, &Request::GetAttrInline(get));
    let Ok(Reply::GetAttrInline(reply)) = answer.reply() else { panic!("{answer:?}") };
    std::str::from_utf8(reply.attributes.owner.unwrap()).unwrap().parse().unwrap()
}

fn register(world: &mut World, client: usize) -> Status {
    let credential = Credential::Id { uid: 0, gid: 0, groups: Seq::new(&[]) };
    world.status(client, &Request::RegisterCred(dafs::RegisterCred { credential }))
}

#[test]
fn a_session_without_a_proof_acts_as_the_user_of_its_certificate() {
    for mask in [strangers as Mask, trusted] {
        let mut world = World::new(setup(mask));
        for (host, uid) in [(2, 4711), (4, 4712), (6, 4713)] {
            let client = world.session(host, &format!("client {host}"));
            assert_eq!(owner(&mut world, client, format!("{host}").as_bytes()), uid);
            // A trusted address lets none of them be root; a rule does.
            let status = if host == 6 { Status::Ok } else { Status::NotAuthorized };
            assert_eq!(register(&mut world, client), status);
        }
        world.end();
    }
}

#[test]
fn a_user_without_a_rule_is_nobody_where_claims_are_taken_and_refused_elsewhere() {
    let mut world = World::new(setup(trusted));
    let eve = world.session(5, "eve");
    assert_eq!(owner(&mut world, eve, b"of eve"), 65534);
    assert_eq!(register(&mut world, eve), Status::NotAuthorized);
    // A client without such a name claims its user.
    let machine = world.session(9, "machine");
    assert_eq!(register(&mut world, machine), Status::Ok);
    world.end();
    let mut world = World::new(setup(strangers));
    for host in [5, 9] {
        let client = world.connect(host);
        let request = connect_auth("c", 1, dafs::SessionOptions::default());
        assert_eq!(world.status(client, &request), Status::NotAuthorized, "{host}");
    }
    world.end();
}

#[test]
fn a_session_belongs_to_the_user_of_its_certificate() {
    let mut world = World::new(setup(trusted));
    let anna = world.connect(2);
    let request = connect_auth("name", 1, dafs::SessionOptions::default());
    let answer = world.call(anna, &request);
    let Ok(Reply::ClientConnectAuth(reply)) = answer.reply() else { panic!("{answer:?}") };
    let id = reply.session_id;
    world.open(anna, b"f");
    // The name of the client, by others.
    for host in [4, 5, 9] {
        let other = world.connect(host);
        assert_ne!(world.status(other, &request), Status::Ok, "{host}");
    }
    let bind = |id: SessionId| {
        Request::ConnectBind(ConnectBind { auth: AuthRequest::None, ..bind_request(id) })
    };
    for (host, status) in [
        (4, Status::NotAuthorized),
        (5, Status::NotAuthorized),
        (9, Status::NotAuthorized),
        (3, Status::Ok),
    ] {
        let channel = world.connect_as(host, 2, ByteOrder::Little);
        assert_eq!(world.status(channel, &bind(id)), status, "{host}");
    }
    world.end();
}

#[test]
fn users_are_looked_up_on_the_pool_and_told_by_secinfo() {
    let mut world = World::new(setup(strangers));
    let client = world.connect(2);
    assert_eq!(world.status(client, &client_connect("c", 1, PLAIN)), Status::Ok);
    world.hold_jobs = true;
    let request = Request::ClientAuth(dafs::ClientAuth { auth: AuthRequest::None });
    let waiting = world.clients[client].post(&request);
    world.settle();
    assert_eq!(world.jobs(), 1);
    world.hold_jobs = false;
    assert_eq!(world.wait(client, waiting).unwrap().status(), Status::Ok);
    for (host, is_offered) in [(3, true), (5, false), (9, false)] {
        let client = world.connect(host);
        assert_eq!(world.status(client, &client_connect("d", 1, PLAIN)), Status::Ok);
        let answer = world.call(client, &Request::SecInfo);
        let Ok(Reply::SecInfo(reply)) = answer.reply() else { panic!() };
        assert_eq!(reply.entries.iter().any(|entry| entry == SecInfoEntry::None), is_offered);
    }
    world.end();
}

#[test]
fn secinfo_hides_from_nobody_that_a_user_should_be_looked_up_again() {
    let setup = setup(strangers);
    let users = setup.certificates.clone().unwrap();
    let mut world = World::new(setup);
    users.resolve("anna@example.org", 0).unwrap();
    world.pass(Duration::from_nanos(IDENTITY_FRESH_NS + 1));
    let client = world.connect(2);
    assert_eq!(world.status(client, &client_connect("c", 1, PLAIN)), Status::Ok);
    let answer = world.call(client, &Request::SecInfo);
    let Ok(Reply::SecInfo(reply)) = answer.reply() else { panic!("{answer:?}") };
    assert!(reply.entries.iter().any(|entry| entry == SecInfoEntry::None));
    let known = users.known("anna@example.org", IDENTITY_FRESH_NS + 2);
    assert!(matches!(known, Known::Stale(_)), "{known:?}");
    world.end();
}
