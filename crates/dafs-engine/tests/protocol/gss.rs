//! GSS in DAFS: rounds of a context, what is refused, proofs that end, exports that demand one.

use crate::common::*;
use dafs_dat::tls::TlsPeer;
use dafs_dat::{PeerInfo, PeerProcess};
use dafs_engine::GssAuth;
use dafs_gss::mechanism::{Initiate, Pending, ServiceName, Step, Wanted};
use dafs_gss::testing::{Toy, ToyInitiator};
use dafs_gss::token::Enctype;
use dafs_service::{
    Admits, ExportOptions, Flavour, Identities, LocalDirectory, Rule, Rules, TransportSecurity,
    UserOf,
};
use dafs_tls::Suite;
use dafs_wire::dafs::{
    self, AttrMask, AuthRequest, AuthResult, AuthType, ByteOrder, ConnectBind, Credential,
    ErrorBody, GssProcedure, GssService, Reply, Request, SecInfoEntry, SessionId, Status,
};
use std::sync::Arc;
use std::time::Duration;

const NOW_SECONDS: u64 = 1000;
const TICKET_SECONDS: u64 = 600;
const ANNA: u32 = 4711;

fn toy() -> Toy {
    Toy::new([7; 16], Enctype::Aes256Sha1)
}

fn service(name: &str) -> ServiceName {
    ServiceName::new(name, "server").unwrap()
}

fn initiator(user: &str, rounds: u8) -> ToyInitiator {
    toy().initiator(&format!("{user}@TOY"), rounds, NOW_SECONDS + TICKET_SECONDS)
}

fn gss(in_clear: bool) -> GssAuth {
    let rule = |user: &str, uid, trusted| Rule {
        pattern: format!("{user}@TOY").parse().unwrap(),
        user: UserOf::Number(uid, 100),
        trusted,
    };
    let rules = vec![rule("anna", ANNA, false), rule("bert", 4712, false), rule("proxy", 1, true)];
    let rules = Rules { rules, default_realm: None };
    GssAuth {
        acceptor: Arc::new(toy().acceptor(service("dafs"))),
        identities: Arc::new(Identities::new(rules, Box::new(LocalDirectory))),
        in_clear,
        time_seconds: || NOW_SECONDS,
    }
}

/// Processes of this host over TCP.
fn here(host: u32) -> PeerInfo {
    PeerInfo { is_local: true, ..stranger(host) }
}

/// Processes of this host over shared memory.
fn in_private(host: u32) -> PeerInfo {
    let process = Some(PeerProcess { pid: 1, uid: 2000 + host, gid: 7 });
    PeerInfo { process, is_local: true, ..PeerInfo::default() }
}

/// Clients of other hosts inside TLS; each host has another connection.
fn in_tls(host: u32) -> PeerInfo {
    in_tls_of(TransportSecurity::Tls, host)
}

fn in_tls_of(level: TransportSecurity, host: u32) -> PeerInfo {
    let (suite, subject, binding) = (Suite::Aes256, None, [host as u8; 32]);
    let tls = Some(Arc::new(TlsPeer { level, suite, subject, user: None, binding }));
    PeerInfo { tls, ..stranger(host) }
}

fn setup() -> Setup {
    Setup { gss: Some(gss(false)), mask: here, ..Setup::default() }
}

fn auth<'a>(procedure: GssProcedure, token: &'a [u8]) -> AuthRequest<'a> {
    AuthRequest::Gss { procedure, service: GssService::Auth, token }
}

fn client_auth(auth: AuthRequest<'_>) -> Request<'_> {
    Request::ClientAuth(dafs::ClientAuth { auth })
}

/// The first token of a context, and its state.
fn first(initiator: &ToyInitiator) -> (Pending, Vec<u8>) {
    first_for(initiator, "dafs")
}

fn first_for(initiator: &ToyInitiator, name: &str) -> (Pending, Vec<u8>) {
    first_bound(initiator, name, None)
}

fn first_bound(
    initiator: &ToyInitiator,
    name: &str,
    bindings: Option<&[u8]>,
) -> (Pending, Vec<u8>) {
    let target = service(name);
    let wanted = Wanted { target: &target, mutual: true, bindings };
    match initiator.initiate(None, &wanted, &[]) {
        Step::Continue { pending, token } => (pending, token),
        other => panic!("{other:?}"),
    }
}

/// The next token, or `None` when the server has proven itself with this one.
fn next(initiator: &ToyInitiator, pending: Pending, token: &[u8]) -> Option<(Pending, Vec<u8>)> {
    let target = service("dafs");
    let wanted = Wanted { target: &target, mutual: true, bindings: None };
    match initiator.initiate(Some(pending), &wanted, token) {
        Step::Continue { pending, token } => Some((pending, token)),
        Step::Done(done) => {
            assert!(done.mutual);
            None
        }
        Step::Failed(failure) => panic!("{failure}"),
    }
}

/// The result of a proof in an answer, also in one with an error.
fn result_of(answer: &Answer) -> AuthResult<'_> {
    match answer.reply() {
        Ok(Reply::ClientAuth(reply)) => reply.auth,
        Ok(Reply::ClientConnectAuth(reply)) => reply.auth,
        Ok(Reply::ConnectBind(reply)) => reply.auth,
        Ok(other) => panic!("{other:?}"),
        Err(_) => match answer.error_body() {
            ErrorBody::ClientAuth(body) => body.auth,
            ErrorBody::ClientConnectAuth(body) => body.auth,
            other => panic!("{other:?}: {:?}", answer.status()),
        },
    }
}

fn token_of(answer: &Answer) -> Vec<u8> {
    match result_of(answer) {
        AuthResult::Gss { token, .. } => token.to_vec(),
        other => panic!("{other:?}"),
    }
}

/// Proves a principal on a connection, in its first message or after it. Returns the last answer.
fn prove(world: &mut World, client: usize, user: &str, rounds: u8, at_once: bool) -> Answer {
    let initiator = initiator(user, rounds);
    let (mut pending, token) = first(&initiator);
    let name = format!("client of {user}");
    let mut answer = if at_once {
        world.call(client, &connect_by(&name, 1, PLAIN, auth(GssProcedure::Init, &token)))
    } else {
        assert_eq!(world.status(client, &client_connect(&name, 1, PLAIN)), Status::Ok);
        world.call(client, &client_auth(auth(GssProcedure::Init, &token)))
    };
    while answer.status() == Status::GssContinueInit {
        let (state, token) = next(&initiator, pending, &token_of(&answer)).unwrap();
        pending = state;
        answer = world.call(client, &client_auth(auth(GssProcedure::ContinueInit, &token)));
    }
    if answer.status() == Status::Ok {
        assert!(next(&initiator, pending, &token_of(&answer)).is_none(), "the server is proven");
    }
    answer
}

/// A session of a principal.
fn session(world: &mut World, host: u32, user: &str) -> (usize, SessionId) {
    let client = world.connect(host);
    let answer = prove(world, client, user, 1, true);
    let Ok(Reply::ClientConnectAuth(reply)) = answer.reply() else { panic!("{answer:?}") };
    (client, reply.session_id)
}

fn owner(world: &mut World, client: usize) -> Vec<u8> {
    let file = world.open(client, b"f");
    let get = dafs::GetAttrInline { fh: file.fh, attributes: AttrMask::OWNER };
    let answer = world.call(client, &Request::GetAttrInline(get));
    let Ok(Reply::GetAttrInline(reply)) = answer.reply() else { panic!("{answer:?}") };
    reply.attributes.owner.unwrap().to_vec()
}

#[test]
fn a_principal_is_proven_in_as_many_rounds_as_it_takes() {
    for (rounds, at_once) in [(1, true), (1, false), (3, true), (3, false)] {
        let mut world = World::new(setup());
        let client = world.connect(2);
        assert_eq!(prove(&mut world, client, "anna", rounds, at_once).status(), Status::Ok);
        assert_eq!(owner(&mut world, client), ANNA.to_string().into_bytes());
        let ask = Request::ServerAuth(dafs::ServerAuth { auth_type: AuthType::Gss });
        assert_eq!(world.status(client, &ask), Status::Ok, "both are proven already");
        world.end();
    }
}

#[test]
fn tokens_are_taken_on_the_pool_and_one_at_a_time() {
    let mut world = World::new(setup());
    let client = world.connect(2);
    assert_eq!(world.status(client, &client_connect("c", 1, PLAIN)), Status::Ok);
    world.hold_jobs = true;
    let (_, token) = first(&initiator("anna", 1));
    let request = client_auth(auth(GssProcedure::Init, &token));
    let waiting = world.clients[client].post(&request);
    world.settle();
    assert_eq!(world.jobs(), 1);
    assert_eq!(world.status(client, &request), Status::IllegalState);
    world.hold_jobs = false;
    assert_eq!(world.wait(client, waiting).unwrap().status(), Status::Ok);
    world.end();
}

#[test]
fn a_refusal_has_the_status_of_gss_and_leaves_nothing() {
    let mut world = World::new(setup());
    let stranger = Toy::new([8; 16], Enctype::Aes256Sha1).initiator("anna@TOY", 1, u64::MAX);
    let target = service("dafs");
    let one_sided = Wanted { target: &target, mutual: false, bindings: None };
    let Step::Done(done) = initiator("anna", 1).initiate(None, &one_sided, &[]) else { panic!() };
    let tokens = [
        ("of another secret", first(&stranger).1),
        ("for another service", first_for(&initiator("anna", 1), "nfs").1),
        ("without mutual authentication", done.token.unwrap()),
        ("of nothing", b"token".to_vec()),
    ];
    for (what, token) in &tokens {
        for at_once in [true, false] {
            let client = world.connect(2);
            let auth = auth(GssProcedure::Init, token);
            let answer = if at_once {
                world.call(client, &connect_by("c", 1, PLAIN, auth))
            } else {
                assert_eq!(world.status(client, &client_connect("c", 1, PLAIN)), Status::Ok);
                world.call(client, &client_auth(auth))
            };
            assert_eq!(answer.status(), Status::NotAuthorized, "{what}");
            let AuthResult::Gss { major, token, .. } = result_of(&answer) else { panic!("{what}") };
            assert!(major != 0 && token.is_empty(), "{what}");
            assert_eq!(world.status(client, &Request::Null), Status::NotAuthenticated, "{what}");
        }
    }
    world.end();
}

#[test]
fn attempts_are_counted_and_their_rounds_are_not() {
    let mut world = World::new(setup());
    let client = world.connect(2);
    assert_eq!(prove(&mut world, client, "anna", 8, false).status(), Status::Ok);
    let client = world.connect(2);
    assert_eq!(prove(&mut world, client, "anna", 9, true).status(), Status::NotAuthorized);
    // With the one above these are all that there are.
    assert_eq!(world.status(client, &client_connect("c", 1, PLAIN)), Status::IllegalState);
    let (_, token) = first(&initiator("bert", 2));
    for _ in 0..7 {
        let answer = world.call(client, &client_auth(auth(GssProcedure::Init, &token)));
        assert_eq!(answer.status(), Status::GssContinueInit);
    }
    let dropped = world.try_call(client, &client_auth(auth(GssProcedure::Init, &token)));
    assert!(dropped.is_none());
    world.end();
}

#[test]
fn a_token_belongs_to_its_context_and_its_session() {
    let mut world = World::new(setup());
    let [one, other] = [2, 3].map(|host| world.connect(host));
    let (anna, bert) = (initiator("anna", 2), initiator("bert", 2));
    for (client, name) in [(one, "one"), (other, "other")] {
        assert_eq!(world.status(client, &client_connect(name, 1, PLAIN)), Status::Ok);
    }
    let (pending, token) = first(&anna);
    let more = world.call(one, &client_auth(auth(GssProcedure::Init, &token)));
    let (_, second) = next(&anna, pending, &token_of(&more)).unwrap();
    // No context is on the way there, and then another one.
    let relayed = client_auth(auth(GssProcedure::ContinueInit, &second));
    assert_eq!(world.status(other, &relayed), Status::IllegalState);
    let (_, token) = first(&bert);
    let more = world.call(other, &client_auth(auth(GssProcedure::Init, &token)));
    assert_eq!(more.status(), Status::GssContinueInit);
    assert_eq!(world.status(other, &relayed), Status::NotAuthorized);
    assert_eq!(world.status(other, &relayed), Status::IllegalState, "it is gone");
    assert_eq!(world.status(one, &relayed), Status::Ok);
    world.end();
}

/// An attacker between client and server has a connection of his own with either of them.
#[test]
fn a_token_relayed_from_another_connection_of_tls_proves_nothing() {
    let mut world = World::new(Setup { mask: in_tls, ..setup() });
    let client = world.connect(2);
    assert_eq!(world.status(client, &client_connect("c", 1, PLAIN)), Status::Ok);
    let anna = initiator("anna", 1);
    for bindings in [None, Some([3; 32])] {
        let bindings = bindings.as_ref().map(|bindings| &bindings[..]);
        let (_, token) = first_bound(&anna, "dafs", bindings);
        let answer = world.call(client, &client_auth(auth(GssProcedure::Init, &token)));
        assert_eq!(answer.status(), Status::NotAuthorized, "{bindings:?}");
    }
    let (_, token) = first_bound(&anna, "dafs", Some(&[2; 32]));
    let answer = world.call(client, &client_auth(auth(GssProcedure::Init, &token)));
    assert_eq!(answer.status(), Status::Ok);
    assert_eq!(owner(&mut world, client), ANNA.to_string().into_bytes());
    // Renewal, by another principal and with another connection's token.
    for (user, binding) in [("bert", [2; 32]), ("anna", [3; 32])] {
        let (_, token) = first_bound(&initiator(user, 1), "dafs", Some(&binding));
        let again = client_auth(auth(GssProcedure::Init, &token));
        assert_eq!(world.status(client, &again), Status::NotAuthorized, "{user}");
    }
    assert_eq!(owner(&mut world, client), ANNA.to_string().into_bytes(), "it never changes");
    world.end();
}

#[test]
fn a_channel_inside_tls_is_bound_by_a_token_of_its_own() {
    let mut world = World::new(Setup { mask: in_tls, ..setup() });
    let (client, anna) = (world.connect(2), initiator("anna", 1));
    let (_, token) = first_bound(&anna, "dafs", Some(&[2; 32]));
    let request = connect_by("c", 1, PLAIN, auth(GssProcedure::Init, &token));
    let answer = world.call(client, &request);
    let Ok(Reply::ClientConnectAuth(reply)) = answer.reply() else { panic!("{answer:?}") };
    let id = reply.session_id;
    // The mask gives connections of one host one binding.
    let channel = world.connect_as(2, 2, ByteOrder::Little);
    for (user, binding) in [("anna", [3; 32]), ("bert", [2; 32])] {
        let (_, token) = first_bound(&initiator(user, 1), "dafs", Some(&binding));
        assert_eq!(world.status(channel, &bind(id, &token)), Status::NotAuthorized, "{user}");
    }
    let (_, token) = first_bound(&anna, "dafs", Some(&[2; 32]));
    assert_eq!(world.status(channel, &bind(id, &token)), Status::Ok);
    world.end();
}

#[test]
fn secinfo_offers_what_is_accepted_on_the_channel() {
    let gss_entry = |service| SecInfoEntry::Gss {
        oid: &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x12, 0x01, 0x02, 0x02],
        qop: 0,
        service,
    };
    let all = [GssService::Privacy, GssService::Integrity, GssService::Auth].map(gss_entry);
    let cases: [(Mask, bool, &[SecInfoEntry<'_>]); 5] = [
        (in_tls, false, &all),
        (here, false, &all[2..]),
        (in_private, false, &all),
        (stranger, false, &[]),
        (stranger, true, &all[2..]),
    ];
    for (mask, in_clear, offered) in cases {
        let mut world = World::new(Setup { gss: Some(gss(in_clear)), mask, ..setup() });
        let client = world.connect(2);
        assert_eq!(world.status(client, &client_connect("c", 1, PLAIN)), Status::Ok);
        let answer = world.call(client, &Request::SecInfo);
        let Ok(Reply::SecInfo(reply)) = answer.reply() else { panic!() };
        let entries: Vec<_> = reply.entries.iter().collect();
        let entries: Vec<_> =
            entries.into_iter().filter(|entry| *entry != SecInfoEntry::None).collect();
        assert_eq!(entries, offered);
        for service in [GssService::Auth, GssService::Integrity, GssService::Privacy] {
            let binding = mask(2).binding().map(<[u8]>::to_vec);
            let (_, token) = first_bound(&initiator("anna", 2), "dafs", binding.as_deref());
            let auth = AuthRequest::Gss { procedure: GssProcedure::Init, service, token: &token };
            let status = world.status(client, &client_auth(auth));
            let accepted = offered.contains(&gss_entry(service));
            let wanted = if accepted { Status::GssContinueInit } else { Status::NotSupp };
            assert_eq!(status, wanted, "{service:?}");
        }
        world.end();
    }
}

fn bind(session_id: SessionId, token: &[u8]) -> Request<'_> {
    let auth = auth(GssProcedure::Init, token);
    Request::ConnectBind(ConnectBind { auth, ..bind_request(session_id) })
}

#[test]
fn a_channel_is_bound_by_the_principal_of_its_session() {
    let mut world = World::new(setup());
    let (_, id) = session(&mut world, 2, "anna");
    let channel = world.connect_as(2, 2, ByteOrder::Little);
    for (user, rounds, status) in
        [("bert", 1, Status::NotAuthorized), ("anna", 2, Status::NotAuthorized)]
    {
        let (_, token) = first(&initiator(user, rounds));
        assert_eq!(world.status(channel, &bind(id, &token)), status, "{user}");
    }
    let none = Request::ConnectBind(bind_request(id));
    assert_eq!(world.status(channel, &none), Status::NotAuthorized);
    let anna = initiator("anna", 1);
    let (pending, token) = first(&anna);
    let answer = world.call(channel, &bind(id, &token));
    assert_eq!(answer.status(), Status::Ok);
    assert!(next(&anna, pending, &token_of(&answer)).is_none());
    world.end();
}

#[test]
fn the_name_of_a_client_belongs_to_its_principal() {
    let mut world = World::new(Setup { mask: in_private, ..setup() });
    session(&mut world, 2, "anna");
    let (_, token) = first(&initiator("bert", 1));
    let thief = world.connect(3);
    let name = "client of anna";
    let by_gss = connect_by(name, 1, PLAIN, auth(GssProcedure::Init, &token));
    assert_eq!(world.status(thief, &by_gss), Status::ClIdInUse);
    assert_eq!(world.status(thief, &connect_auth(name, 2, PLAIN)), Status::ClIdInUse);
    world.end();
}

#[test]
fn a_session_goes_on_with_another_proof_of_its_principal_alone() {
    let mut world = World::new(setup());
    let (client, _) = session(&mut world, 2, "anna");
    let status = |world: &mut World, user: &str| {
        let (_, token) = first(&initiator(user, 1));
        world.status(client, &client_auth(auth(GssProcedure::Init, &token)))
    };
    assert_eq!(status(&mut world, "bert"), Status::NotAuthorized);
    let password = client_auth(AuthRequest::None);
    assert_eq!(world.status(client, &password), Status::NotAuthorized);
    assert_eq!(owner(&mut world, client), ANNA.to_string().into_bytes(), "it is who it was");
    // The end of the ticket, and a minute for clocks that differ.
    world.pass(Duration::from_secs(TICKET_SECONDS + 50));
    assert_eq!(world.status(client, &Request::Null), Status::Ok);
    world.pass(Duration::from_secs(20));
    for ended in [Request::Null, Request::GetRootHandle] {
        assert_eq!(world.status(client, &ended), Status::NotAuthenticated);
    }
    assert_eq!(world.status(client, &Request::SecInfo), Status::Ok);
    assert_eq!(status(&mut world, "bert"), Status::NotAuthorized);
    assert_eq!(world.status(client, &Request::Null), Status::NotAuthenticated);
    assert_eq!(status(&mut world, "anna"), Status::Ok);
    assert_eq!(world.status(client, &Request::Null), Status::Ok);
    // Requests of a client whose proof has ended renew no lease.
    world.pass(Duration::from_secs(TICKET_SECONDS + 61));
    assert_eq!(world.status(client, &Request::Null), Status::NotAuthenticated);
    world.pass(LEASE + Duration::from_secs(1));
    assert!(world.clients[client].closed.is_some());
    world.end();
}

#[test]
fn credentials_of_principals_are_for_clients_that_a_rule_trusts() {
    let mut world = World::new(setup());
    let register = |credential| Request::RegisterCred(dafs::RegisterCred { credential });
    let (anna, _) = session(&mut world, 2, "anna");
    for credential in [Credential::Gss(b"bert@TOY"), Credential::Name(b"bert@TOY")] {
        assert_eq!(world.status(anna, &register(credential)), Status::NotAuthorized);
    }
    let (proxy, _) = session(&mut world, 3, "proxy");
    for unknown in [&b"root@EVIL"[..], b"anna", b"anna\0@TOY", b"", &[b'a'; 5000]] {
        let status = world.status(proxy, &register(Credential::Gss(unknown)));
        assert_eq!(status, Status::NotAuthorized, "{}", unknown.escape_ascii());
    }
    assert_eq!(world.status(proxy, &register(Credential::Gss(b"\xff@TOY"))), Status::Inval);
    let answer = world.call(proxy, &register(Credential::Gss(b"anna@TOY")));
    let Ok(Reply::RegisterCred(reply)) = answer.reply() else { panic!("{answer:?}") };
    world.clients[proxy].cred = reply.cred_handle.0;
    assert_eq!(owner(&mut world, proxy), ANNA.to_string().into_bytes());
    world.end();
}

fn export(flavours: &[Flavour]) -> ExportOptions {
    let admits = Admits { flavours: flavours.to_vec(), ..Admits::default() };
    ExportOptions { admits, ..ExportOptions::default() }
}

#[test]
fn exports_get_the_proof_that_they_demand() {
    let exports = || {
        vec![
            ("open", export(&[Flavour::Sys])),
            ("proven", export(&[Flavour::Krb5p, Flavour::Krb5])),
            ("private", export(&[Flavour::Krb5p])),
        ]
    };
    let cases: [(Mask, bool, [bool; 3]); 4] = [
        (in_private, false, [true, false, false]),
        (here, true, [true, true, false]),
        (in_private, true, [true, true, true]),
        (
            |host| PeerInfo { sim_host: Some(host), ..PeerInfo::default() },
            false,
            [true, false, false],
        ),
    ];
    for (mask, proves, admitted) in cases {
        let mut world = World::new(Setup { exports: exports(), mask, ..setup() });
        let client = match proves {
            true => session(&mut world, 2, "anna").0,
            false => world.session(2, "c"),
        };
        let root = world.root();
        for (name, admitted) in ["open", "proven", "private"].into_iter().zip(admitted) {
            let wanted = if admitted { Status::Ok } else { Status::WrongSec };
            let path = [name.as_bytes()];
            assert_eq!(world.status(client, &lookup(root, &path)), wanted, "{name}");
            let path = [name.as_bytes(), b"f"];
            let opened = world.open_with(client, &open_request(root, &path, b"o")).map(drop);
            assert_eq!(opened, if admitted { Ok(()) } else { Err(Status::WrongSec) }, "{name}");
            // A handle that another client has told.
            let namespace = world.service.namespace();
            let export = namespace.exports().find(|export| export.name() == name).unwrap();
            let fh = dafs::FileHandle { fs: export.root().fs.0, file: export.root().file.0 };
            let got = attributes(&mut world, client, fh).map(drop);
            assert_eq!(got, if admitted { Ok(()) } else { Err(Status::WrongSec) }, "{name}");
        }
        world.end();
    }
}

/// The entries of the directory of exports, and if their attributes and file numbers are told.
fn listed(world: &mut World, client: usize) -> Vec<(Vec<u8>, bool, bool)> {
    let readdir = dafs::ReadDirInline {
        fh: world.root(),
        cookie: 0,
        cookieverf: dafs::Verifier::default(),
        dircount: 0,
        maxcount: 4096,
        attributes: AttrMask::MODE | AttrMask::FILE_ID,
    };
    let answer = world.call(client, &Request::ReadDirInline(readdir));
    let Ok(Reply::ReadDirInline(reply)) = answer.reply() else { panic!("{answer:?}") };
    let told = |entry: dafs::DirEntry<'_>| {
        let dafs::Attributes { mode, file_id, .. } = entry.attributes;
        (entry.name.to_vec(), mode.is_some(), file_id.is_some())
    };
    reply.entries.iter().map(told).collect()
}

#[test]
fn a_session_in_clear_does_not_enter_a_strict_export() {
    let exports = || {
        let mut strict = export(&[Flavour::Sys]);
        strict.admits.transport_security = TransportSecurity::Tls;
        let mut mutual = export(&[Flavour::Sys]);
        mutual.admits.transport_security = TransportSecurity::Mtls;
        vec![("mutual", mutual), ("open", export(&[Flavour::Sys])), ("strict", strict)]
    };
    let clear: Mask = |host| PeerInfo { sim_host: Some(host), ..PeerInfo::default() };
    let tls: Mask = |host| PeerInfo { sim_host: Some(host), ..in_tls(host) };
    let mtls: Mask =
        |host| PeerInfo { sim_host: Some(host), ..in_tls_of(TransportSecurity::Mtls, host) };
    let cases = [
        (clear, false, false),
        (tls, true, false),
        (mtls, true, true),
        (in_private as Mask, true, true),
    ];
    for (mask, is_private, is_mutual) in cases {
        let mut world = World::new(Setup { exports: exports(), mask, ..setup() });
        let client = world.session(2, "c");
        let root = world.root();
        let wanted = |is_served| if is_served { Status::Ok } else { Status::Acces };
        for (name, wanted) in [
            (&b"open"[..], Status::Ok),
            (b"strict", wanted(is_private)),
            (b"mutual", wanted(is_mutual)),
        ] {
            assert_eq!(world.status(client, &lookup(root, &[name])), wanted);
            let opened = world.open_with(client, &open_request(root, &[name, b"f"], b"o"));
            assert_eq!(opened.err().unwrap_or(Status::Ok), wanted);
        }
        let expected = [(&b"mutual"[..], is_mutual), (b"open", true), (b"strict", is_private)];
        let expected = expected.map(|(name, is_told)| (name.to_vec(), is_told, true));
        assert_eq!(listed(&mut world, client), expected);
        world.end();
    }
}

#[test]
fn exports_that_demand_proof_have_no_layouts() {
    let exports = vec![("", export(&[Flavour::Krb5p]))];
    let mut world = World::new(Setup { exports, mask: in_private, ..setup() });
    let (client, _) = session(&mut world, 2, "anna");
    let root = world.root();
    let open = world.open_with(client, &open_request(root, &[b"f"], b"o")).unwrap();
    let get = dafs::XLayoutGet { fh: open.fh, state_id: open.id, mode: dafs::LayoutMode::Read };
    assert_eq!(world.status(client, &Request::XLayoutGet(get)), Status::XNoLayout);
    world.end();
}
