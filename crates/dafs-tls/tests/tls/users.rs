//! Users whom certificates of clients name.

use crate::world::{Flaw, NOW, Pair, World, establish};
use dafs_tls::{
    Distrust, Facts, Handshake, Protocol, Reload, ReloadingServer, Standing, TransportSecurity,
};

/// Lets a client with this certificate connect.
fn connect(server: &ReloadingServer, pair: &Pair) -> Facts {
    let client = World::shared().client(Some(pair));
    let client = Handshake::client(&client, "nas.example", Protocol::Rpc, NOW).unwrap();
    let server = Handshake::server(&server.current(), &[Protocol::Rpc], NOW).unwrap();
    assert_eq!(server.user(), None, "the handshake has not begun");
    establish(client, server).1.facts
}

fn server() -> ReloadingServer {
    let files = World::shared().server_files(TransportSecurity::Tls);
    ReloadingServer::open(files, NOW).unwrap()
}

#[test]
fn a_name_counts_where_there_are_rules_for_it() {
    let (world, server) = (World::shared(), server());
    let named = world.client_pair_of(1, Flaw::None, &["anna@example.org"]);
    let plain = world.client_pair(2, Flaw::None);
    let of_another = World::new("another CA").client_pair_of(1, Flaw::None, &["root@example.org"]);
    for (has_rules, user) in [(false, None), (true, Some("anna@example.org")), (false, None)] {
        server.change_rules(has_rules);
        let peer = connect(&server, &named).peer.unwrap();
        assert_eq!((peer.user(), peer.is_verified()), (user, true));
        assert_eq!(connect(&server, &plain).peer.unwrap().user(), None);
        // No authority vouches for it.
        let peer = connect(&server, &of_another).peer.unwrap();
        assert_eq!((peer.user(), peer.is_verified()), (None, false));
    }
}

#[test]
fn several_names_or_a_malformed_one_make_a_certificate_count_as_none() {
    let (world, server) = (World::shared(), server());
    for users in
        [&["anna@example.org", "root@example.org"][..], &["anna"], &["a@b", "x"], &["a\0@b"]]
    {
        let pair = world.client_pair_of(1, Flaw::None, users);
        server.change_rules(false);
        assert_eq!(connect(&server, &pair).level(), TransportSecurity::Mtls);
        server.change_rules(true);
        let facts = connect(&server, &pair);
        assert_eq!(facts.level(), TransportSecurity::Tls, "{users:?}");
        let peer = facts.peer.unwrap();
        assert_eq!(peer.standing(), &Standing::Unverified(Distrust::UnclearUser));
        assert_eq!(peer.user(), None);
        // It does not become trusted later.
        assert!(server.current().still_trusts(&peer, NOW).is_err());
    }
}

#[test]
fn other_rules_end_connections_of_users_and_no_others() {
    let (world, server) = (World::shared(), server());
    let named = world.client_pair_of(1, Flaw::None, &["anna@example.org"]);
    let plain = connect(&server, &world.client_pair(2, Flaw::None)).peer.unwrap();
    for has_rules in [true, true, false] {
        let before = connect(&server, &named);
        let peer = before.peer.unwrap();
        assert_eq!(server.current().still_trusts(&peer, NOW), Ok(()));
        server.change_rules(has_rules);
        let side = server.current();
        assert!(before.generation < side.trust_generation(), "it is judged before its next call");
        assert_eq!(side.still_trusts(&peer, NOW), Err(Distrust::OtherRules));
        assert_eq!(side.still_trusts(&plain, NOW), Ok(()));
    }
    // The rules outlive a change of the files, and that changes no rules.
    server.change_rules(true);
    let peer = connect(&server, &named).peer.unwrap();
    assert_eq!(server.reload(NOW).unwrap(), Reload::Unchanged);
    assert_eq!(server.current().still_trusts(&peer, NOW), Ok(()));
    assert!(connect(&server, &named).peer.unwrap().user().is_some());
}

/// A connection whose certificate was not trusted at its handshake gets no user later, and no trust without it.
#[test]
fn a_client_that_names_a_user_is_trusted_from_its_handshake_or_never() {
    let world = World::shared();
    let mut files = world.server_files(TransportSecurity::Tls);
    let authorities = files.authorities.take();
    let bare = ReloadingServer::open(files.clone(), NOW).unwrap();
    bare.change_rules(true);
    let named = world.client_pair_of(1, Flaw::None, &["anna@example.org"]);
    let [named, plain] =
        [named, world.client_pair(2, Flaw::None)].map(|pair| connect(&bare, &pair).peer.unwrap());
    assert!(!named.is_verified() && !plain.is_verified());
    files.authorities = authorities;
    let whole = ReloadingServer::open(files, NOW).unwrap();
    assert_eq!(whole.current().still_trusts(&plain, NOW), Ok(()));
    whole.change_rules(true);
    assert_eq!(whole.current().still_trusts(&plain, NOW), Ok(()));
    assert_eq!(whole.current().still_trusts(&named, NOW), Err(Distrust::OtherRules));
}
