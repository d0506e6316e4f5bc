//! DAFS with Kerberos: a real KDC, the system's library on both sides, over TCP and over shared memory.

use crate::common::Running;
use dafs_client::core::{Authenticator, Exchange, Fixed, Proof};
use dafs_client::{
    Authentication, Client, ConnectOptions, Create, DafsUrl, GssAuthenticator, GssCredentials,
    OpenOptions, ProofMethod, Stability, TransportChoice,
};
use dafs_gss::library::{Credentials, Initiator};
use dafs_gss::mechanism::{Initiate, ServiceName, Step, Wanted};
use dafs_server::KerberosConfig;
use dafs_service::{Flavour, Rule, Rules, UserOf};
use dafs_testkit::realm::{ENCTYPES, Realm};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

const TRANSPORTS: [&str; 2] = ["iwarp", "shm"];

fn inside(test: &str) -> Option<Realm> {
    let name = format!("kerberos_dafs::{test}");
    Realm::again(&name, &[("all", &ENCTYPES.map(|(_, name)| name))]).map(|(realm, _)| realm)
}

fn service(name: &str) -> ServiceName {
    ServiceName::new(name, "localhost").unwrap()
}

/// The user that Anna is on this host.
fn anna() -> u32 {
    let me = rustix::process::geteuid();
    if me.is_root() { 4711 } else { me.as_raw() }
}

/// A server whose export demands one of the flavours.
fn serve(realm: &Realm, flavours: &[Flavour]) -> Running {
    let running = Running::new(|config| {
        let rule = |user: &str, uid| Rule {
            pattern: format!("{user}@TEST.DAFS").parse().unwrap(),
            user: UserOf::Number(uid, 100),
            trusted: false,
        };
        let rules = Rules { rules: vec![rule("anna", anna())], default_realm: None };
        config.kerberos = Some(KerberosConfig {
            keytab: realm.path("server.keytab"),
            nfs: service("nfs"),
            dafs: service("dafs"),
            dafs_in_clear: false,
            rules,
        });
        config.exports[0].options.admits.flavours = flavours.to_vec();
    });
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(running.path(), Some(anna()), None).unwrap();
    }
    running
}

fn url(running: &Running, options: &str) -> DafsUrl {
    let port = running.server().addresses()[0].port();
    let mark = if options.is_empty() { "" } else { "?" };
    DafsUrl::parse(&format!("dafs://localhost:{port}/{mark}{options}")).unwrap()
}

fn keytab(realm: &Realm, user: &str) -> String {
    format!("sec=gss&keytab={}", realm.path(&format!("{user}.keytab")).display())
}

fn refusal(url: &DafsUrl, options: &ConnectOptions) -> String {
    Client::connect(url, options).map(drop).unwrap_err().to_string()
}

fn by(authenticator: impl Authenticator + 'static) -> ConnectOptions {
    let mut options = ConnectOptions::default();
    options.prove(Authentication::Custom(Arc::new(authenticator)));
    options
}

#[test]
fn a_principal_works_as_its_user_and_the_server_is_proven() {
    let test = "a_principal_works_as_its_user_and_the_server_is_proven";
    let Some(realm) = inside(test) else { return };
    let running = serve(&realm, &[Flavour::Krb5p, Flavour::Krb5]);
    let cache = realm.cache("anna");
    realm.kinit("anna", &cache, &[]);
    let principal = format!("{}&principal=anna@TEST.DAFS", keytab(&realm, "anna"));
    let tickets = [format!("sec=gss&ccache={cache}"), keytab(&realm, "anna"), principal];
    for (number, tickets) in tickets.iter().enumerate() {
        for transport in TRANSPORTS {
            let url = url(&running, &format!("{tickets}&transport={transport}"));
            let client = Client::connect(&url, &ConnectOptions::default()).unwrap();
            let proven = &client.session().proven;
            assert_eq!(proven.method, ProofMethod::Gss);
            assert_eq!(proven.name.as_deref(), Some("anna@TEST.DAFS"));
            let name = format!("{number}-{transport}");
            let options = OpenOptions::read_write().create(Create::New).mode(0o640);
            let file = client.open(format!("/{name}").as_bytes(), &options).unwrap();
            file.write_at(b"hers", 0, Stability::Unstable).unwrap();
            assert_eq!(std::fs::metadata(running.path().join(name)).unwrap().uid(), anna());
            client.disconnect().unwrap();
        }
    }
    // Each session has new authenticators, and the server has noted them all.
    let state = running.config.state_directory.as_ref().unwrap();
    let noted = std::fs::metadata(state.join("dafs-replays")).unwrap();
    assert_eq!(noted.mode() & 0o777, 0o600);
}

#[test]
fn an_export_gets_the_proof_that_it_demands() {
    let Some(realm) = inside("an_export_gets_the_proof_that_it_demands") else { return };
    let gss = keytab(&realm, "anna");
    for (flavour, over_tcp) in
        [(Flavour::Krb5, true), (Flavour::Krb5i, false), (Flavour::Krb5p, false)]
    {
        let running = serve(&realm, &[flavour]);
        for transport in TRANSPORTS {
            let transport = format!("transport={transport}");
            let unproven = refusal(&url(&running, &transport), &ConnectOptions::default());
            assert!(unproven.contains("add ?sec=gss"), "{unproven}");
            let proven = url(&running, &format!("{gss}&{transport}"));
            let result = Client::connect(&proven, &ConnectOptions::default());
            let admitted = over_tcp || transport.ends_with("shm");
            assert_eq!(result.is_ok(), admitted, "{flavour:?} {transport}");
        }
    }
}

/// Presents a token that was seen before.
struct Seen(Vec<u8>);

impl Authenticator for Seen {
    fn start(&self, _: Option<&[u8]>) -> Result<Box<dyn Exchange>, String> {
        let token = self.0.clone();
        Ok(Fixed::exchange(Proof::Gss { procedure: 1, service: 1, token }))
    }
}

#[test]
fn a_token_is_taken_once_and_for_its_service_alone() {
    let Some(realm) = inside("a_token_is_taken_once_and_for_its_service_alone") else { return };
    let mut running = serve(&realm, &[Flavour::Krb5]);
    let tickets = || Credentials::Keytab { path: realm.path("anna.keytab"), principal: None };
    let target = service("dafs");
    let wanted = Wanted { target: &target, mutual: true, bindings: None };
    let step = Initiator::new(tickets()).unwrap().initiate(None, &wanted, &[]);
    let Step::Continue { token, .. } = step else { panic!("{step:?}") };
    let once = by(Seen(token));
    let plain = url(&running, "");
    Client::connect(&plain, &once).unwrap();
    let again = refusal(&plain, &once);
    assert!(again.contains("NOT_AUTHORIZED"), "{again}");
    running.stop();
    running.start();
    let plain = url(&running, "");
    let restarted = refusal(&plain, &once);
    assert!(restarted.contains("NOT_AUTHORIZED"), "{restarted}");
    for other in ["nfs", "host"] {
        let initiator = Arc::new(Initiator::new(tickets()).unwrap());
        let error = refusal(&plain, &by(GssAuthenticator::by(initiator, service(other))));
        assert!(error.contains("NOT_AUTHORIZED"), "{other}: {error}");
    }
}

#[test]
fn a_keytab_without_keys_of_dafs_serves_nfs_alone() {
    let Some(realm) = inside("a_keytab_without_keys_of_dafs_serves_nfs_alone") else { return };
    let host = |name| ServiceName::new(name, "e18.test.dafs").unwrap();
    let running = Running::new(|config| {
        config.kerberos = Some(KerberosConfig {
            keytab: realm.path("e18.keytab"),
            nfs: host("nfs"),
            dafs: host("dafs"),
            dafs_in_clear: false,
            rules: Rules::default(),
        });
    });
    let plain = Client::connect(&url(&running, ""), &ConnectOptions::default()).unwrap();
    assert_eq!(plain.session().proven.method, ProofMethod::None);
    let refused = refusal(&url(&running, &keytab(&realm, "anna")), &ConnectOptions::default());
    assert!(refused.contains("does not accept this kind of proof"), "{refused}");
}

#[test]
fn without_a_ticket_there_is_no_session_and_a_remedy() {
    let Some(realm) = inside("without_a_ticket_there_is_no_session_and_a_remedy") else { return };
    let running = serve(&realm, &[Flavour::Krb5]);
    let usual = ConnectOptions::default();
    let none = refusal(&url(&running, &format!("sec=gss&ccache={}", realm.cache("none"))), &usual);
    assert!(none.contains("kinit"), "{none}");
    let cache = realm.cache("short");
    realm.kinit("anna", &cache, &["-l", "1s"]);
    std::thread::sleep(std::time::Duration::from_secs(2));
    let ended = refusal(&url(&running, &format!("sec=gss&ccache={cache}")), &usual);
    assert!(ended.contains("kinit"), "{ended}");
    let locked = Authentication::gss_callback(|| Err("the key ring is locked".into()));
    let mut options = ConnectOptions::default();
    options.prove(locked);
    let locked = refusal(&url(&running, ""), &options);
    assert!(locked.contains("the key ring is locked"), "{locked}");
    // A user without a rule is nobody.
    let mut options = ConnectOptions::default();
    let path = realm.path("bert.keytab");
    options.prove(Authentication::gss_callback(move || {
        Ok(GssCredentials::Keytab { path: path.clone(), principal: None })
    }));
    options.transport = TransportChoice::Iwarp;
    let bert = Client::connect(&url(&running, ""), &options).unwrap();
    assert_eq!(bert.session().proven.name.as_deref(), Some("bert@TEST.DAFS"));
    if rustix::process::geteuid().is_root() {
        let create = OpenOptions::read_write().create(Create::New);
        assert!(bert.open(b"/of-bert", &create).is_err());
    }
}
