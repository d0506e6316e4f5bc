//! Users whom certificates of clients name: whatever a call claims, it acts as the user of its connection.

use crate::common::Running;
use crate::tls::{Pki, mount, quick, read, write};
use crate::tls_data::{STRIPE, cluster, make_stripes_long, written_there};
use dafs_client::{Client, ConnectOptions, Create, DafsUrl, OpenOptions};
use dafs_mem::Mutex;
use dafs_nfs_client::mount::{Mount, NfsUrl};
use dafs_server::{DataProcess, Server};
use dafs_service::{Rule, TransportSecurity, UserOf};
use dafs_testkit::eventually;
use dafs_testkit::stores::{is_root, skipped};
use dafs_tls::pki::Made;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt};
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;

const ANNA: &str = "anna@example.org";
const BERT: &str = "bert@example.org";

/// The anonymous user of an export.
const NOBODY: u32 = 65534;

/// A server that does not run as root acts as its own user alone.
fn cannot_act_as_others() -> bool {
    if !is_root() {
        skipped("a server acts as other users only as root");
    }
    !is_root()
}

pub(crate) fn rule(user: &str, uid: u32) -> Rule {
    Rule { pattern: user.parse().unwrap(), user: UserOf::Number(uid, 100), trusted: false }
}

fn rules() -> Vec<Rule> {
    vec![rule(ANNA, 4711), rule(BERT, 4712)]
}

/// A server whose one export is open to all users with a certificate.
fn serve(pki: &Pki) -> Running {
    let running = Running::new(|config| {
        config.tls = Some(pki.server_files());
        config.certificate_users = rules();
        config.lease_time = Duration::from_secs(3600);
        config.exports[0].options.admits.transport_security = TransportSecurity::Mtls;
    });
    std::fs::set_permissions(running.path(), PermissionsExt::from_mode(0o777)).unwrap();
    running
}

fn owner(running: &Running, name: &str) -> u32 {
    std::fs::metadata(running.path().join(name)).unwrap().uid()
}

/// The certificates of Anna, Bert, somebody without a rule and a machine; with the users that they are.
fn clients(pki: &Pki) -> [(&'static str, String, u32); 4] {
    let of = |user: &str| pki.options_of(&pki.client_of(user));
    let own = rustix::process::geteuid().as_raw();
    [
        ("anna", of(ANNA), 4711),
        ("bert", of(BERT), 4712),
        ("eve", of("root@elsewhere.org"), NOBODY),
        ("machine", pki.options(TransportSecurity::Mtls), own),
    ]
}

#[test]
fn calls_act_as_the_user_of_the_certificate_over_every_version_and_transport() {
    if cannot_act_as_others() {
        return;
    }
    let pki = Pki::new();
    let (running, clients) = (serve(&pki), clients(&pki));
    let tcp = running.server().nfs_addresses()[0];
    let rdma = running.server().nfs_rdma_addresses()[0];
    let over_rdma = |version: &str, options: &str| {
        let text = format!("nfs+rdma://{rdma}/?transport=iwarp&vers={version}&{options}");
        Mount::connect(&NfsUrl::parse(&text).unwrap(), &quick())
    };
    for version in ["3", "4.1", "4.2"] {
        for way in ["tcp", "rdma"] {
            for (user, options, uid) in &clients {
                let mounted = match way {
                    "tcp" => mount(tcp, &format!("vers={version}&{options}")),
                    _ => over_rdma(version, options),
                };
                let mounted = mounted.unwrap();
                let name = format!("{user}-{version}-{way}");
                write(&mounted, &name, b"mine").unwrap();
                assert_eq!(owner(&running, &name), *uid, "{name}");
                assert_eq!(read(&mounted, &name, 4).unwrap(), b"mine");
            }
            // The client claims to be root in all its calls. Only the machine is believed.
            let secret = format!("anna-{version}-{way}");
            let path = running.path().join(&secret);
            std::fs::set_permissions(path, PermissionsExt::from_mode(0o600)).unwrap();
            for (user, options, _) in &clients {
                let mounted = match way {
                    "tcp" => mount(tcp, &format!("vers={version}&{options}")),
                    _ => over_rdma(version, options),
                };
                let may = matches!(*user, "anna" | "machine");
                assert_eq!(read(&mounted.unwrap(), &secret, 4).is_ok(), may, "{user} {secret}");
            }
        }
    }
}

#[test]
fn sessions_of_dafs_act_as_the_user_of_the_certificate() {
    if cannot_act_as_others() {
        return;
    }
    let pki = Pki::new();
    let running = serve(&pki);
    let port = running.server().addresses()[0].port();
    for (user, options, uid) in clients(&pki).into_iter().take(3) {
        let url = format!("dafss://localhost:{port}/?{options}");
        let url = DafsUrl::parse(&url).unwrap();
        let client = Client::connect(&url, &ConnectOptions::default()).unwrap();
        let options = OpenOptions::read_write().create(Create::New).mode(0o640);
        drop(client.open(format!("/{user}").as_bytes(), &options).unwrap());
        assert_eq!(owner(&running, user), uid, "{user}");
        client.disconnect().unwrap();
    }
}

/// Returns a function that puts other rules into force.
fn reloading(running: &Running) -> impl Fn(Vec<Rule>) {
    let current = Arc::new(Mutex::new(running.config.clone()));
    let read_config = current.clone();
    running.server().set_read_config(Box::new(move || Ok(read_config.lock().clone())));
    move |rules| {
        current.lock().certificate_users = rules;
        running.server().reload().unwrap();
    }
}

/// NFSv4 clients begin anew at once: the lease of their old client id is an hour.
#[test]
fn clients_go_on_under_their_first_rule() {
    if cannot_act_as_others() {
        return;
    }
    let pki = Pki::new();
    let running = serve(&pki);
    let reload = reloading(&running);
    reload(Vec::new());
    let address = running.server().nfs_addresses()[0];
    let options = pki.options_of(&pki.client_of(ANNA));
    for version in ["3", "4.1", "4.2"] {
        let mounted = mount(address, &format!("vers={version}&{options}")).unwrap();
        write(&mounted, &format!("claimed-{version}"), b"x").unwrap();
        reload(rules());
        let name = format!("anna-{version}");
        write(&mounted, &name, b"x").unwrap();
        assert_eq!(owner(&running, &name), 4711, "{name}");
        drop(mounted);
        reload(Vec::new());
    }
}

#[test]
fn a_reload_changes_and_removes_rules() {
    if cannot_act_as_others() {
        return;
    }
    let pki = Pki::new();
    let running = serve(&pki);
    let reload = reloading(&running);
    let address = running.server().nfs_addresses()[0];
    let options = pki.options_of(&pki.client_of(ANNA));
    let own = rustix::process::geteuid().as_raw();
    let mounts = ["3", "4.2"].map(|version| {
        let mounted = mount(address, &format!("vers={version}&{options}")).unwrap();
        (version, mounted)
    });
    let machine = mount(address, &pki.options(TransportSecurity::Mtls)).unwrap();
    let steps = [
        ("first", rules(), 4711),
        ("other", vec![rule(ANNA, 4713)], 4713),
        ("removed", vec![rule(BERT, 4712)], NOBODY),
        ("back", rules(), 4711),
    ];
    for (step, rules, uid) in steps {
        reload(rules);
        for (version, mounted) in &mounts {
            let name = format!("{step}-{version}");
            write(mounted, &name, b"x").unwrap();
            assert_eq!(owner(&running, &name), uid, "{name}");
        }
        write(&machine, step, b"x").unwrap();
        assert_eq!(owner(&running, step), own, "{step}");
    }
    // Without any rule the names mean nothing. Sessions of NFSv4 belong to the user still.
    reload(Vec::new());
    write(&mounts[0].1, "claim", b"x").unwrap();
    assert_eq!(owner(&running, "claim"), own);
    assert!(write(&mounts[1].1, "taken", b"x").is_err());
}

#[test]
fn a_server_without_rules_ignores_the_names() {
    let pki = Pki::new();
    let running = Running::new(|config| {
        config.tls = Some(pki.server_files());
        config.exports[0].options.admits.transport_security = TransportSecurity::Mtls;
    });
    let own = rustix::process::geteuid().as_raw();
    let address = running.server().nfs_addresses()[0];
    for version in ["3", "4.2"] {
        let options = pki.options_of(&certificate(&pki, version));
        let mounted = mount(address, &format!("vers={version}&{options}")).unwrap();
        write(&mounted, version, b"x").unwrap();
        assert_eq!(owner(&running, version), own);
    }
}

fn certificate(pki: &Pki, version: &str) -> Made {
    pki.client_of(&format!("anna{version}@example.org"))
}

/// Such clients get no layouts, because data servers in processes of their own know no rules.
#[test]
fn data_of_users_of_certificates_moves_through_the_metadata_server() {
    for apart in [true, false] {
        let (dir, pki) = (TempDir::new().unwrap(), Pki::new());
        let (processes, mut config) = cluster(dir.path(), &pki, apart);
        make_stripes_long(&mut config);
        config.certificate_users = vec![rule(ANNA, rustix::process::geteuid().as_raw())];
        let server = Server::start(&config).unwrap();
        let data = crate::common::pattern(9 * STRIPE, 1);
        let round = |mounted: &Mount, name: &str| {
            write(mounted, name, &data).unwrap();
            assert!(read(mounted, name, data.len()).unwrap() == data);
            written_there(dir.path())
        };
        let connect = |options: String| {
            mount(server.nfs_addresses()[0], &format!("pnfs=yes&{options}")).unwrap()
        };
        let machine = connect(pki.options(TransportSecurity::Mtls));
        let least = data.len() as u64;
        eventually("data servers are used", || round(&machine, "f") >= least);
        drop(machine);
        let before = written_there(dir.path());
        let anna = connect(pki.options_of(&pki.client_of(ANNA)));
        for name in ["f", "g"] {
            assert_eq!(round(&anna, name), before, "{apart} {name}");
        }
        drop(anna);
        server.stop();
        processes.into_iter().for_each(DataProcess::stop);
    }
}
