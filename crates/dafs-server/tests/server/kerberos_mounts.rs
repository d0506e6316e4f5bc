//! Mounts of this client with Kerberos: a real KDC, the system's library on both sides.

use crate::common::{Running, any, filled, pattern};
use dafs_gss::mechanism::ServiceName;
use dafs_mem::Site;
use dafs_nfs_client::mount::{
    Create, Follow, Mount, MountError, MountOptions, NfsUrl, OpenOptions, StableHow,
};
use dafs_server::{Config, ExportSource, KerberosConfig};
use dafs_service::{Flavour, Pattern, Rule, Rules, UserOf};
use dafs_testkit::realm::Realm;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const CASES: &[(&str, &[&str])] = &[(
    "all",
    &[
        "aes256-cts-hmac-sha384-192",
        "aes128-cts-hmac-sha256-128",
        "aes256-cts-hmac-sha1-96",
        "aes128-cts-hmac-sha1-96",
    ],
)];

const FLAVOURS: [(&str, Flavour); 3] =
    [("krb5", Flavour::Krb5), ("krb5i", Flavour::Krb5i), ("krb5p", Flavour::Krb5p)];

fn realm(test: &str) -> Option<Realm> {
    Realm::again(&format!("kerberos_mounts::{test}"), CASES).map(|(realm, _)| realm)
}

/// The local user that anna is.
fn anna() -> u32 {
    match rustix::process::geteuid() {
        root if root.is_root() => 4711,
        own => own.as_raw(),
    }
}

/// A server whose export takes these flavours.
fn served(realm: &Realm, flavours: &[Flavour]) -> Running {
    served_with(realm, flavours, |_| {})
}

fn served_with(realm: &Realm, flavours: &[Flavour], change: impl FnOnce(&mut Config)) -> Running {
    let server = Running::new(|config| {
        let pattern: Pattern = "anna@TEST.DAFS".parse().unwrap();
        let rule = Rule { pattern, user: UserOf::Number(anna(), 100), trusted: false };
        let rules = Rules { rules: vec![rule], default_realm: None };
        let keytab = realm.path("server.keytab");
        let [nfs, dafs] = ["nfs", "dafs"].map(|name| ServiceName::new(name, "localhost").unwrap());
        config.kerberos = Some(KerberosConfig { keytab, nfs, dafs, dafs_in_clear: false, rules });
        config.exports[0].options.admits.flavours = flavours.to_vec();
        change(config);
    });
    own(server.path());
    server
}

/// Gives a directory to anna, if this is root.
fn own(path: &Path) {
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(path, Some(anna()), None).unwrap();
    }
}

fn url(server: &Running, query: &str) -> NfsUrl {
    let port = server.server().nfs_addresses()[0].port();
    NfsUrl::parse(&format!("nfs://localhost:{port}/?{query}")).unwrap()
}

fn keytab(realm: &Realm) -> String {
    format!("keytab={}", realm.path("anna.keytab").display())
}

fn options() -> MountOptions {
    MountOptions { retry_timeout: Duration::from_secs(30), ..MountOptions::default() }
}

fn refusal(url: &NfsUrl) -> MountError {
    Mount::connect(url, &options()).unwrap_err()
}

/// Writes a file, and reads it again.
fn use_files(mount: &Mount, server: &Running, name: &str, len: usize) {
    let bytes = pattern(len, 7);
    let memory = filled(mount, &bytes);
    let create = OpenOptions::read_write().create(Create::New);
    let file = mount.open(name.as_bytes(), &create).unwrap();
    file.write(memory.whole(), 0, StableHow::Unstable).unwrap();
    file.commit().unwrap();
    let back = mount.allocate(len).unwrap();
    assert_eq!(file.read(back.whole(), 0).unwrap(), len);
    assert!(back.view().to_vec(Site::Inspect) == bytes, "{name}: other bytes came back");
    file.close().unwrap();
    let path = server.path().join(name);
    assert!(std::fs::read(&path).unwrap() == bytes, "{name}: other bytes were written");
    assert_eq!(std::fs::metadata(path).unwrap().uid(), anna());
}

/// All versions with all flavours, as the only ones that the export takes.
fn use_all(realm: &Realm, url: impl Fn(&Running, &str) -> NfsUrl) {
    for (name, flavour) in FLAVOURS {
        let server = served(realm, &[flavour]);
        for version in ["3", "4.1", "4.2"] {
            let query = format!("vers={version}&sec={name}&{}", keytab(realm));
            let mount = Mount::connect(&url(&server, &query), &options()).unwrap();
            assert_eq!(mount.security().name(), name);
            assert_eq!(mount.principal().as_deref(), Some("anna@TEST.DAFS"));
            for len in [1, 100, 5000, 300_001, 8 << 20] {
                use_files(&mount, &server, &format!("{version}-{len}"), len);
            }
            let root = mount.resolve(b"/", Follow::Yes).unwrap();
            assert!(mount.read_dir(&root.handle).count() >= 5);
        }
    }
}

#[test]
fn every_flavour_carries_files_by_every_version() {
    let Some(realm) = realm("every_flavour_carries_files_by_every_version") else { return };
    use_all(&realm, url);
}

#[test]
fn every_flavour_carries_files_over_rdma() {
    let Some(realm) = realm("every_flavour_carries_files_over_rdma") else { return };
    for transport in ["iwarp", "shm"] {
        use_all(&realm, |server, query| {
            let port = server.server().nfs_rdma_addresses()[0].port();
            let text = format!("nfs+rdma://localhost:{port}/?transport={transport}&{query}");
            NfsUrl::parse(&text).unwrap()
        });
    }
}

#[test]
fn a_mount_without_tickets_says_what_to_do() {
    let Some(realm) = realm("a_mount_without_tickets_says_what_to_do") else { return };
    let server = served(&realm, &[Flavour::Krb5p]);
    let said = |query: &str| refusal(&url(&server, query)).to_string();
    let nothing = realm.cache("nothing");
    for version in ["3", "4.2"] {
        let text = said(&format!("vers={version}&sec=krb5p&ccache={nothing}"));
        assert!(text.contains("get a ticket: kinit"), "{text}");
    }
    // The default cache has none either.
    let text = said("sec=krb5p");
    assert!(text.contains("get a ticket: kinit"), "{text}");
    let text = said("sec=krb5p&keytab=/no/such/file");
    assert!(text.contains("does not exist"), "{text}");
    let other = format!("sec=krb5p&{}&principal=bert@TEST.DAFS", keytab(&realm));
    assert!(matches!(refusal(&url(&server, &other)), MountError::Kerberos(_)));

    let ended = realm.cache("ended");
    realm.kinit("anna", &ended, &["-l", "1s"]);
    std::thread::sleep(Duration::from_secs(2));
    let text = said(&format!("sec=krb5p&ccache={ended}"));
    assert!(text.contains("kinit"), "{text}");

    // The realm has no service of this name.
    let port = server.server().nfs_addresses()[0].port();
    let by_address = format!("nfs://127.0.0.1:{port}/?sec=krb5p&{}", keytab(&realm));
    let text = refusal(&NfsUrl::parse(&by_address).unwrap()).to_string();
    assert!(text.contains("the KDC does not know this service"), "{text}");
    assert!(text.contains("nfs@127.0.0.1"), "{text}");
}

/// The realm knows the service, and the server is another one.
#[test]
fn a_server_without_the_key_of_its_name_is_told() {
    let Some(realm) = realm("a_server_without_the_key_of_its_name_is_told") else { return };
    let server = served_with(&realm, &[Flavour::Krb5], |config| {
        let nfs = ServiceName::new("nfs", "server.test.dafs").unwrap();
        config.kerberos.as_mut().unwrap().nfs = nfs;
    });
    let error = refusal(&url(&server, &format!("sec=krb5&{}", keytab(&realm))));
    assert!(error.to_string().contains("the server does not accept the ticket"), "{error}");
    let without = Running::new(|_| {});
    let error = refusal(&url(&without, &format!("sec=krb5&{}", keytab(&realm))));
    assert!(error.to_string().contains("configured for Kerberos"), "{error}");
}

#[test]
fn a_refused_flavour_is_told_with_those_that_the_server_takes() {
    let test = "a_refused_flavour_is_told_with_those_that_the_server_takes";
    let Some(realm) = realm(test) else { return };
    let (open, strict) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let server = served_with(&realm, &[Flavour::Sys], |config| {
        config.exports[0].name = "open".to_owned();
        config.exports[0].source = ExportSource::Directory(open.path().to_owned());
        let mut export = config.exports[0].clone();
        export.name = "strict".to_owned();
        export.source = ExportSource::Directory(strict.path().to_owned());
        export.options.admits.flavours = vec![Flavour::Krb5p, Flavour::Krb5i];
        config.exports.push(export);
    });
    let keytab = keytab(&realm);
    for version in ["4.1", "4.2"] {
        for (security, uses) in [("".to_owned(), "sys"), (format!("&sec=krb5&{keytab}"), "krb5")] {
            let url = url(&server, &format!("vers={version}{security}"));
            // The directory above both exports takes the flavours of both.
            let found = Mount::connect(&url, &options())
                .and_then(|mount| mount.resolve(b"/strict", Follow::Yes).map(drop));
            let error = found.unwrap_err().to_string();
            assert!(error.contains("krb5p, krb5i here"), "{error}");
            assert!(error.contains(&format!("this mount uses {uses}; add sec=krb5p")), "{error}");
        }
        let url = url(&server, &format!("vers={version}&sec=krb5i&{keytab}"));
        let mount = Mount::connect(&url, &options()).unwrap();
        mount.resolve(b"/strict", Follow::Yes).unwrap();
    }
    let third = |path: &str, more: &str| {
        let url = url(&server, &format!("vers=3{more}")).with_path(path.as_bytes()).unwrap();
        Mount::connect(&url, &options())
    };
    let error = third("/strict", "").unwrap_err().to_string();
    assert!(error.contains("takes krb5p, krb5i here"), "{error}");
    third("/open", "").unwrap();
    third("/strict", &format!("&sec=krb5p&{keytab}")).unwrap();

    // A server that takes nothing else refuses everything else.
    let server = served(&realm, &[Flavour::Krb5p]);
    for version in ["3", "4.2"] {
        let error = refusal(&url(&server, &format!("vers={version}"))).to_string();
        assert!(error.contains("add sec=krb5p"), "{error}");
    }
}

#[test]
fn a_restarted_server_gets_new_contexts() {
    let Some(realm) = realm("a_restarted_server_gets_new_contexts") else { return };
    for version in ["3", "4.2"] {
        let mut server = served(&realm, &[Flavour::Krb5p]);
        let address = server.server().nfs_addresses()[0];
        server.config.nfs.listen = vec![address];
        server.config.listen = vec![any()];
        let query = format!("vers={version}&sec=krb5p&{}", keytab(&realm));
        let mount = Mount::connect(&url(&server, &query), &options()).unwrap();
        let create = OpenOptions::read_write().create(Create::New);
        let file = mount.open(b"file", &create).unwrap();
        let memory = filled(&mount, &pattern(1 << 20, 3));
        file.write(memory.whole(), 0, StableHow::FileSync).unwrap();
        for round in 1..4_u64 {
            server.stop();
            server.start();
            file.write(memory.whole(), round << 20, StableHow::FileSync).unwrap();
        }
        file.close().unwrap();
        let found = std::fs::read(server.path().join("file")).unwrap();
        assert!(found == pattern(1 << 20, 3).repeat(4), "version {version}");
    }
}

/// Tickets of three seconds: from a keytab the client gets new ones by itself.
#[test]
fn writes_go_on_beyond_the_end_of_a_ticket() {
    let Some(realm) = realm("writes_go_on_beyond_the_end_of_a_ticket") else { return };
    realm.admin("modprinc -maxlife 3seconds anna\n");
    let server = served(&realm, &[Flavour::Krb5i]);
    for version in ["3", "4.2"] {
        let query = format!("vers={version}&sec=krb5i&{}", keytab(&realm));
        let mount = Mount::connect(&url(&server, &query), &options()).unwrap();
        let create = OpenOptions::read_write().create(Create::New);
        let file = mount.open(version.as_bytes(), &create).unwrap();
        let bytes = pattern(100_000, 5);
        let memory = filled(&mount, &bytes);
        let (begun, mut written) = (Instant::now(), 0);
        while begun.elapsed() < Duration::from_secs(7) {
            file.write(memory.whole(), written, StableHow::Unstable).unwrap();
            written = (written + 100_000) % 10_000_000;
        }
        file.commit().unwrap();
        file.close().unwrap();
        let found = std::fs::read(server.path().join(version)).unwrap();
        assert!(found.chunks(100_000).all(|chunk| chunk == bytes));
    }
}

/// From a cache the client takes what the user has put there.
#[test]
fn a_cache_is_read_again_when_its_ticket_has_ended() {
    let Some(realm) = realm("a_cache_is_read_again_when_its_ticket_has_ended") else { return };
    let server = served(&realm, &[Flavour::Krb5p]);
    let cache = realm.cache("short");
    realm.kinit("anna", &cache, &["-l", "2s"]);
    let query = format!("vers=4.2&sec=krb5p&ccache={cache}");
    let mount = Mount::connect(&url(&server, &query), &options()).unwrap();
    let create = OpenOptions::read_write().create(Create::New);
    let file = mount.open(b"file", &create).unwrap();
    let memory = filled(&mount, &pattern(1000, 5));
    let error = loop {
        if let Err(error) = file.write(memory.whole(), 0, StableHow::Unstable) {
            break error;
        }
    };
    assert!(matches!(error, MountError::Kerberos(_)), "{error}");
    assert!(error.to_string().contains("kinit"), "{error}");
    realm.kinit("anna", &cache, &[]);
    file.write(memory.whole(), 0, StableHow::Unstable).unwrap();
    file.close().unwrap();
}
