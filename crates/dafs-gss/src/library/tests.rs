//! Contexts between the library and itself, in a realm with a KDC.

use super::reference::Reference;
use super::sys::{Context, Gss, Kind, Usage, flag};
use super::*;
use crate::enctype::Enctype;
use crate::limits::ACCEPTS_AT_ONCE;
use crate::mechanism::{Accept as _, BAD_BINDINGS, Initiate as _, ServiceName, Wanted};
use dafs_testkit::realm::{ENCTYPES, REALM, Realm};
use std::path::PathBuf;

/// All encryption types.
fn all() -> [&'static str; 4] {
    ENCTYPES.map(|(_, name)| name)
}

fn service(name: &str, host: &str) -> ServiceName {
    ServiceName::new(name, host).unwrap()
}

/// Runs a test of this module in a realm.
fn inside(test: &str) -> Option<Realm> {
    let name = format!("library::tests::{test}");
    Realm::again(&name, &[("all", &all())]).map(|(realm, _)| realm)
}

fn acceptor(realm: &Realm, name: &str) -> Acceptor {
    Acceptor::new(&realm.path("server.keytab"), &service(name, "localhost")).unwrap()
}

/// An initiator with a ticket of a user, in a cache of its own.
fn initiator(realm: &Realm, user: &str) -> Initiator {
    let cache = realm.cache(&format!("cache-{user}"));
    realm.kinit(user, &cache, &[]);
    Initiator::new(Credentials::Cache(cache)).unwrap()
}

/// The two ends of an established context, the initiator first.
type Ends = (Box<Established>, Box<Established>);

struct Want<'a> {
    target: ServiceName,
    mutual: bool,
    /// Bindings of the initiator and of the acceptor.
    bindings: (Option<&'a [u8]>, Option<&'a [u8]>),
}

impl Want<'_> {
    fn new(target: &str, mutual: bool) -> Self {
        Self { target: service(target, "localhost"), mutual, bindings: (None, None) }
    }
}

/// Carries tokens between both sides until each has its context, or one fails.
fn establish(from: &Initiator, to: &Acceptor, want: &Want<'_>) -> Result<Ends, Failure> {
    let wanted = Wanted { target: &want.target, mutual: want.mutual, bindings: want.bindings.0 };
    let (mut ours, mut theirs) = (None, None);
    let (mut state, mut other) = (None, None);
    let mut token = Vec::new();
    while ours.is_none() || theirs.is_none() {
        if ours.is_none() {
            match from.initiate(state.take(), &wanted, &token) {
                Step::Continue { pending, token: next } => {
                    (state, token) = (Some(pending), next);
                }
                Step::Done(mut done) => {
                    token = done.token.take().unwrap_or_default();
                    ours = Some(done);
                }
                Step::Failed(failure) => return Err(failure),
            }
        }
        if theirs.is_none() {
            match to.accept(other.take(), &token, want.bindings.1) {
                Step::Continue { pending, token: next } => {
                    (other, token) = (Some(pending), next);
                }
                Step::Done(mut done) => {
                    token = done.token.take().unwrap_or_default();
                    theirs = Some(done);
                }
                Step::Failed(failure) => return Err(failure),
            }
        }
    }
    Ok((ours.unwrap(), theirs.unwrap()))
}

/// Both ends understand each other's messages.
fn check(ends: &Ends) {
    let (mine, yours) = (&ends.0.keys, &ends.1.keys);
    for (from, to) in [(mine, yours), (yours, mine)] {
        let message = &b"a message of some length"[..];
        let (mut token, mut opened) = ([0; 128], [0; 128]);
        let len = from.seal(message, &mut token).unwrap();
        let len = to.open(&token[..len], &mut opened).unwrap();
        assert_eq!(&opened[..len], message);
        let len = from.mic(message, &mut token).unwrap();
        to.verify_mic(message, &token[..len]).unwrap();
    }
}

#[test]
fn contexts_are_established_with_all_credentials() {
    let Some(realm) = inside("contexts_are_established_with_all_credentials") else { return };
    let now = || std::time::UNIX_EPOCH.elapsed().unwrap().as_secs();
    realm.kinit("anna", &realm.cache("default-cache"), &[]);
    let keytab = |principal: Option<&str>| Credentials::Keytab {
        path: realm.path("bert.keytab"),
        principal: principal.map(str::to_owned),
    };
    for (credentials, user) in [
        (Credentials::Default, "anna"),
        (Credentials::Cache(realm.cache("default-cache")), "anna"),
        (keytab(None), "bert"),
        (keytab(Some("bert@TEST.DAFS")), "bert"),
    ] {
        let from = Initiator::new(credentials.clone()).unwrap();
        for name in ["nfs", "dafs"] {
            let to = acceptor(&realm, name);
            for mutual in [false, true] {
                let ends = establish(&from, &to, &Want::new(name, mutual)).unwrap();
                check(&ends);
                assert_eq!([ends.0.mutual, ends.1.mutual], [mutual; 2]);
                for end in [&ends.0, &ends.1] {
                    assert_eq!(end.principal.display(), format!("{user}@{REALM}"));
                    let left = end.end_time_seconds - now();
                    assert!((3000..=3600).contains(&left), "{credentials:?}: {left} s");
                }
                assert_eq!(ends.0.principal, ends.1.principal);
            }
        }
    }
}

/// A cache of the same name is empty after its owner has gone.
#[test]
fn tickets_of_a_keytab_end_with_their_initiator() {
    let Some(realm) = inside("tickets_of_a_keytab_end_with_their_initiator") else { return };
    let nfs = acceptor(&realm, "nfs");
    let want = Want::new("nfs", false);
    let credentials = Credentials::Keytab { path: realm.path("bert.keytab"), principal: None };
    let bert = Initiator::new(credentials).unwrap();
    let name = bert.cache_name().unwrap();
    establish(&bert, &nfs, &want).unwrap();
    let again = Initiator::new(Credentials::Cache(name)).unwrap();
    establish(&again, &nfs, &want).unwrap();
    drop(bert);
    establish(&again, &nfs, &want).unwrap_err();
}

#[test]
fn an_acceptor_takes_tickets_for_its_own_service_only() {
    let Some(realm) = inside("an_acceptor_takes_tickets_for_its_own_service_only") else { return };
    let anna = initiator(&realm, "anna");
    for (ticket, asked) in [("dafs", "nfs"), ("nfs", "dafs"), ("host", "nfs")] {
        let failure = establish(&anna, &acceptor(&realm, asked), &Want::new(ticket, false));
        let failure = failure.unwrap_err();
        assert!(failure.remedy.is_some(), "{failure}");
    }
    let elsewhere = Want { target: service("nfs", "server.test.dafs"), ..Want::new("nfs", false) };
    establish(&anna, &acceptor(&realm, "nfs"), &elsewhere).unwrap_err();
}

#[test]
fn a_replayed_token_is_refused_where_it_is_the_whole_proof() {
    let Some(realm) = inside("a_replayed_token_is_refused_where_it_is_the_whole_proof") else {
        return;
    };
    let anna = initiator(&realm, "anna");
    let (keytab, cache) = (realm.path("server.keytab"), realm.path("replays"));
    let (nfs, dafs) = (service("nfs", "localhost"), service("dafs", "localhost"));
    let open = |service| Acceptor::refusing_replays(&keytab, service, &cache).unwrap();
    let (strict, restarted) = (open(&dafs), open(&dafs));
    let token = |target| {
        let wanted = Wanted { target, mutual: true, bindings: None };
        let Step::Continue { token, .. } = anna.initiate(None, &wanted, &[]) else {
            panic!("a token for the acceptor")
        };
        token
    };
    let takes = |acceptor: &Acceptor, token: &[u8]| match acceptor.accept(None, token, None) {
        Step::Done(_) => None,
        Step::Failed(failure) => Some(failure.to_string()),
        Step::Continue { .. } => panic!("another round"),
    };
    for _ in 0..ACCEPTS_AT_ONCE + 1 {
        let seen = token(&dafs);
        assert_eq!(takes(&strict, &seen), None);
        for again in [&strict, &restarted] {
            let refused = takes(again, &seen).unwrap();
            assert!(refused.contains("replay"), "{refused}");
        }
    }
    let seen = token(&nfs);
    let lax = acceptor(&realm, "nfs");
    assert_eq!([takes(&lax, &seen), takes(&lax, &seen)], [None, None]);
}

#[test]
fn demanded_bindings_must_be_there_and_equal() {
    let Some(realm) = inside("demanded_bindings_must_be_there_and_equal") else { return };
    let (anna, nfs) = (initiator(&realm, "anna"), acceptor(&realm, "nfs"));
    let (one, other) = (Some(&b"tls-exporter:one"[..]), Some(&b"tls-exporter:two"[..]));
    for mutual in [false, true] {
        let with =
            |bindings| establish(&anna, &nfs, &Want { bindings, ..Want::new("nfs", mutual) });
        check(&with((one, one)).unwrap());
        check(&with((one, None)).unwrap());
        for bindings in [(one, other), (None, one)] {
            assert_eq!(with(bindings).unwrap_err().major, BAD_BINDINGS);
        }
    }
}

#[test]
fn refusals_tell_what_to_do() {
    let Some(realm) = inside("refusals_tell_what_to_do") else { return };
    let anna = initiator(&realm, "anna");
    let nobody = Initiator::new(Credentials::Cache(realm.cache("nothing"))).unwrap();
    let nfs = acceptor(&realm, "nfs");
    let text =
        |from: &Initiator, want: &Want<'_>| establish(from, &nfs, want).unwrap_err().to_string();
    let default = Initiator::new(Credentials::Default).unwrap();
    for without in [&nobody, &default] {
        let text = text(without, &Want::new("nfs", false));
        assert!(text.contains("get a ticket: kinit"), "{text}");
    }
    let unknown = Want { target: service("nfs", "unknown.test.dafs"), ..Want::new("nfs", false) };
    let text = text(&anna, &unknown);
    assert!(text.contains("kadmin addprinc -randkey SERVICE/HOST"), "{text}");

    // A keytab with keys of others, one that is none, one of another name for the client.
    let keys = |path: PathBuf| Acceptor::new(&path, &service("nfs", "localhost")).unwrap_err();
    let text = keys(realm.path("anna.keytab")).to_string();
    assert!(text.contains("put the keys of the service into the keytab"), "{text}");
    assert!(text.contains("nfs@localhost in "), "{text}");
    let text = keys(realm.path("kdc.conf")).to_string();
    assert!(text.contains("is no keytab"), "{text}");
    let other = Credentials::Keytab {
        path: realm.path("anna.keytab"),
        principal: Some("bert@TEST.DAFS".to_owned()),
    };
    let other = Initiator::new(other).unwrap();
    let failure = establish(&other, &nfs, &Want::new("nfs", false)).unwrap_err();
    assert!(failure.remedy.is_some(), "{failure}");
}

#[test]
fn a_ticket_that_has_ended_is_told() {
    let Some(realm) = inside("a_ticket_that_has_ended_is_told") else { return };
    let cache = realm.cache("short");
    realm.kinit("anna", &cache, &["-l", "1s"]);
    std::thread::sleep(std::time::Duration::from_secs(2));
    let anna = Initiator::new(Credentials::Cache(cache)).unwrap();
    let failure = establish(&anna, &acceptor(&realm, "nfs"), &Want::new("nfs", false));
    let text = failure.unwrap_err().to_string();
    assert!(text.contains("kinit"), "{text}");
}

/// Changes the configuration of this process before the first use of the library, which keeps what it has read.
fn reconfigure(from: &str, to: &str) {
    let path = std::env::var("KRB5_CONFIG").unwrap();
    let config = std::fs::read_to_string(&path).unwrap();
    assert!(config.contains(from));
    std::fs::write(&path, config.replace(from, to)).unwrap();
}

/// The acceptor tolerates a second, and the authenticator is older.
#[test]
fn clocks_that_differ_are_told() {
    let Some(realm) = inside("clocks_that_differ_are_told") else { return };
    reconfigure("[libdefaults]", "[libdefaults]\nclockskew = 1");
    let (anna, nfs) = (initiator(&realm, "anna"), acceptor(&realm, "nfs"));
    let target = service("nfs", "localhost");
    let wanted = Wanted { target: &target, mutual: false, bindings: None };
    let Step::Done(done) = anna.initiate(None, &wanted, &[]) else { panic!("a context") };
    std::thread::sleep(std::time::Duration::from_secs(3));
    let Step::Failed(failure) = nfs.accept(None, &done.token.unwrap(), None) else {
        panic!("an old authenticator is taken")
    };
    assert!(failure.to_string().contains("the clocks of the two hosts"), "{failure}");
}

#[test]
fn a_kdc_that_does_not_answer_is_told() {
    let Some(realm) = inside("a_kdc_that_does_not_answer_is_told") else { return };
    reconfigure(&std::fs::read_to_string(realm.path("port")).unwrap(), "1");
    let credentials = Credentials::Keytab { path: realm.path("anna.keytab"), principal: None };
    let anna = Initiator::new(credentials).unwrap();
    let failure = establish(&anna, &acceptor(&realm, "nfs"), &Want::new("nfs", false));
    let text = failure.unwrap_err().to_string();
    assert!(text.contains("no KDC answers"), "{text}");
}

#[test]
fn new_keys_in_the_keytab_are_used_at_once() {
    let Some(realm) = inside("new_keys_in_the_keytab_are_used_at_once") else { return };
    let (anna, nfs) = (initiator(&realm, "anna"), acceptor(&realm, "nfs"));
    let old = establish(&anna, &nfs, &Want::new("nfs", false)).unwrap();
    let (keytab, new) = (realm.path("server.keytab"), realm.path("new.keytab"));
    realm.admin(&format!("ktadd -k {} nfs/localhost\n", new.display()));
    let bert = initiator(&realm, "bert");
    // A ticket with the new key, and a keytab without it.
    let failure = establish(&bert, &nfs, &Want::new("nfs", false)).unwrap_err();
    assert!(failure.remedy.is_some(), "{failure}");
    std::fs::rename(new, keytab).unwrap();
    check(&establish(&bert, &nfs, &Want::new("nfs", false)).unwrap());
    check(&old);
}

#[test]
fn hostile_tokens_open_nothing() {
    let Some(realm) = inside("hostile_tokens_open_nothing") else { return };
    let (anna, nfs) = (initiator(&realm, "anna"), acceptor(&realm, "nfs"));
    let target = service("nfs", "localhost");
    let wanted = Wanted { target: &target, mutual: true, bindings: None };
    let Step::Continue { token, .. } = anna.initiate(None, &wanted, &[]) else {
        panic!("a token for the acceptor")
    };
    // No replay cache says no: the sender of a replay does not have the keys.
    for _ in 0..2 {
        assert!(matches!(nfs.accept(None, &token, None), Step::Done(_)));
    }
    for len in 0..token.len() {
        assert!(matches!(nfs.accept(None, &token[..len], None), Step::Failed(_)), "{len}");
    }
    for at in 0..token.len() {
        let mut token = token.clone();
        token[at] ^= 0x10;
        if let Step::Done(done) = nfs.accept(None, &token, None) {
            assert_eq!(done.principal.display(), "anna@TEST.DAFS", "byte {at}");
        }
    }
    for token in [vec![0; 65_537], vec![0x60; 65_536], vec![0xff; 100]] {
        assert!(matches!(nfs.accept(None, &token, None), Step::Failed(_)));
    }
    // States of another side or of nobody.
    let Step::Continue { pending, .. } = anna.initiate(None, &wanted, &[]) else {
        panic!("a token for the acceptor")
    };
    assert!(matches!(nfs.accept(Some(pending), &token, None), Step::Failed(_)));
    assert!(matches!(nfs.accept(Some(Pending::new(5)), &token, None), Step::Failed(_)));
    assert!(matches!(anna.initiate(None, &wanted, &token), Step::Failed(_)));
}

#[test]
fn one_acceptor_serves_many_threads() {
    let Some(realm) = inside("one_acceptor_serves_many_threads") else { return };
    let (anna, nfs) = (initiator(&realm, "anna"), acceptor(&realm, "nfs"));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for mutual in [false, true].repeat(10) {
                    check(&establish(&anna, &nfs, &Want::new("nfs", mutual)).unwrap());
                }
            });
        }
    });
}

/// Both raw ends of a context with keys of one type.
fn raw_ends(realm: &Realm, number: &str, mutual: bool) -> (Context, Context) {
    let (gss, cache) = (Gss::get().unwrap(), realm.cache("raw"));
    realm.kinit("anna", &cache, &[]);
    let target = gss.import(&format!("nfs@e{number}.test.dafs"), Kind::HostBasedService).unwrap();
    let keytab = realm.path(&format!("e{number}.keytab")).display().to_string();
    let text = |text: String| std::ffi::CString::new(text).unwrap();
    let (keytab, cache) = (text(format!("FILE:{keytab}")), text(cache));
    let store = [(c"keytab", keytab.as_c_str()), (c"rcache", c"none:")];
    let server = gss.acquire(Usage::Accept, None, &store).unwrap();
    let client = gss.acquire(Usage::Initiate, None, &[(c"ccache", cache.as_c_str())]).unwrap();
    let flags = flag::CONFIDENTIALITY | flag::INTEGRITY | if mutual { flag::MUTUAL } else { 0 };
    let (mut from, mut to) = (Context::new(gss), Context::new(gss));
    let first = from.initiate(Some(&client), &target, flags, &[], None).unwrap();
    let answer = to.accept(&server, &first.token, None).unwrap();
    assert!(answer.is_complete && first.is_complete != mutual);
    if mutual {
        from.initiate(Some(&client), &target, flags, &answer.token, None).unwrap();
    }
    (from, to)
}

/// Our tokens and the library's are read by each other, of all types, in both directions.
#[test]
fn tokens_are_those_of_the_library() {
    let cases = ENCTYPES.map(|(number, name)| (number.to_string(), [name]));
    let cases: Vec<_> =
        cases.iter().map(|(case, names)| (case.as_str(), names.as_slice())).collect();
    let name = "library::tests::tokens_are_those_of_the_library";
    let Some((realm, number)) = Realm::again(name, &cases) else { return };
    for (mutual, we_accept) in [(false, false), (false, true), (true, false), (true, true)] {
        let (from, to) = raw_ends(&realm, &number, mutual);
        let (theirs, ours) = if we_accept { (from, to) } else { (to, from) };
        let (agreed, _) = lucid::export(ours).unwrap();
        assert_eq!(agreed.acceptor_subkey, mutual);
        let enctype = agreed.key.enctype();
        assert_eq!(enctype.number().to_string(), number);
        let ours = Keys::new(&agreed, Seed::random().unwrap());
        compare(enctype, &ours, &mut Reference(theirs));
    }
}

fn compare(enctype: Enctype, ours: &Keys, theirs: &mut Reference) {
    let lengths = (0..=66).chain([4_080, 4_096, 4_113, 65_535, 65_536, 65_537, 1_048_576]);
    let mut out = vec![0; 1_100_000];
    for len in lengths {
        let message: Vec<u8> = (0..len).map(|at| (at * 7 + at / 255) as u8).collect();
        ours.verify_mic(&message[..], &theirs.mic(&message)).unwrap();
        let token = theirs.wrap(&message);
        assert_eq!(token.len(), enctype.sealed_len(len));
        let opened = ours.open(&token[..], &mut out).unwrap();
        assert_eq!(&out[..opened], message, "{enctype} {len}");

        let mic = ours.mic(&message[..], &mut out).unwrap();
        theirs.verify(&message, &out[..mic]);
        let sealed = ours.seal(&message[..], &mut out).unwrap();
        assert_eq!(theirs.unwrap(&out[..sealed]), message, "{enctype} {len}");
    }
}

/// Keys of other types than AES leave the library no way into a context. (The library refuses DES and RC4 by
/// itself, so the type here is one that it has and that is not ours.)
#[test]
fn other_types_are_refused_with_a_reason() {
    let name = "library::tests::other_types_are_refused_with_a_reason";
    let camellia = "camellia256-cts-cmac";
    let mut names = all().to_vec();
    names.insert(0, camellia);
    let Some((realm, _)) = Realm::again(name, &[("camellia", &names)]) else { return };
    let host = "camellia.test.dafs";
    realm.admin(&format!(
        "addprinc -randkey -e aes256-cts:normal nfs/{host}\n\
         ktadd -norandkey -k {} nfs/{host}\n\
         setstr nfs/{host} session_enctypes {camellia}\n",
        realm.path("server.keytab").display()
    ));
    let nfs = Acceptor::new(&realm.path("server.keytab"), &service("nfs", host)).unwrap();
    let want = Want { target: service("nfs", host), ..Want::new("nfs", false) };
    let text = establish(&initiator(&realm, "anna"), &nfs, &want).unwrap_err().to_string();
    assert!(text.contains("encryption type 26, and only AES"), "{text}");
}
