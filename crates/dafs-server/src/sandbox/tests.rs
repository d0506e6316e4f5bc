//! The policies of configurations.

use super::*;
use crate::config::KerberosConfig;
use dafs_sandbox::{Kernel, Means};
use dafs_service::{Admits, ExportOptions, TransportSecurity};
use dafs_tls::ServerFiles;

fn user() -> Surroundings {
    Surroundings {
        working_directory: PathBuf::from("/here"),
        home: Some(PathBuf::from("/users/anna")),
        ..Surroundings::default()
    }
}

fn root() -> Surroundings {
    Surroundings { is_root: true, by_handle: true, ..user() }
}

fn of_file(file: &str) -> Config {
    let mut config = Config::for_directory(PathBuf::from("/srv/export"));
    config.file = Some(PathBuf::from(file));
    config.exports_of_file = true;
    config
}

fn paths(rules: &[FileRule], access: Access) -> Vec<&str> {
    let own = rules.iter().filter(|rule| rule.access == access);
    own.map(|rule| rule.path.to_str().unwrap()).collect()
}

fn full(config: &Config) -> (Vec<FileRule>, Ports) {
    let policy = policy_of_server(config, Strength::Full, Path::new("/state"), &user());
    match (policy.files, policy.network) {
        (Part::Confined(files), Part::Confined(ports)) => (files, ports),
        open => panic!("{open:?}"),
    }
}

#[test]
fn the_default_takes_nothing_that_a_server_may_need() {
    assert_eq!(choice(None, None, &root()), None);
    assert_eq!(choice(None, Some("CephFS"), &user()), None);
    let handles = Surroundings { by_handle: true, ..user() };
    assert_eq!(choice(None, None, &handles), None);
    let chosen = choice(None, None, &user());
    assert_eq!(chosen, Some((Strength::Default, Level::IfPossible)));
    // A reload may name other directories.
    let state = Path::new("/state");
    let of = |config: &Config| policy_of_server(config, Strength::Default, state, &user());
    let policy = of(&of_file("/etc/dafs/dafs.toml"));
    assert_eq!(policy.files, Part::Open(Reason::Reload));
    assert_eq!(policy.network, Part::Open(Reason::Reload));
    let policy = of(&Config::for_directory(PathBuf::from("/srv/export")));
    assert!(matches!(policy.files, Part::Confined(_)), "{policy:?}");
    // The administrator's choice counts for everybody.
    let chosen = choice(Some(Sandbox::Required), Some("CephFS"), &root());
    assert_eq!(chosen, Some((Strength::Full, Level::Required)));
    assert_eq!(choice(Some(Sandbox::Off), None, &user()), None);
}

#[test]
fn a_folder_is_granted_only_if_it_has_nothing_else() {
    let check = |file: &str, granted: &str| {
        let (files, _) = full(&of_file(file));
        assert_eq!(paths(&files, Access::Read), [granted], "{file}");
        assert_eq!(paths(&files, Access::Change), ["/srv/export", "/state"]);
    };
    check("/etc/dafs/dafs.toml", "/etc/dafs");
    check("/etc/dafs.toml", "/etc/dafs.toml");
    check("/users/anna/dafs.toml", "/users/anna/dafs.toml");
    check("/users/anna/dafs/dafs.toml", "/users/anna/dafs");
    // Beside an export there may be its neighbours.
    check("/srv/dafs.toml", "/srv/dafs.toml");
    check("dafs.toml", "/here");
    check("./conf/dafs.toml", "/here/conf");
    // "x/.." and symlinks hide no export.
    let files = |file: &str, export: &str| {
        let mut config = of_file(file);
        config.exports[0].source = ExportSource::Directory(PathBuf::from(export));
        let (files, _) = full(&config);
        paths(&files, Access::Read).concat()
    };
    assert_eq!(files("/place/conf/a", "/place/conf/../export"), "/place/conf");
    assert_eq!(files("/place/a", "/place/conf/../export"), "/place/a");
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    std::fs::create_dir_all(path("real/export")).unwrap();
    std::os::unix::fs::symlink("real", path("link")).unwrap();
    assert_eq!(files(&path("link/a"), &path("real/export")), path("link/a"));
}

#[test]
fn a_symlink_is_granted_with_its_target() {
    let dir = tempfile::tempdir().unwrap();
    let dir = std::fs::canonicalize(dir.path()).unwrap();
    let path = |name: &str| dir.join(name).to_str().unwrap().to_owned();
    std::fs::create_dir_all(path("live/x")).unwrap();
    std::fs::create_dir_all(path("archive/x")).unwrap();
    std::fs::write(path("archive/x/chain1.pem"), "").unwrap();
    let link = path("live/x/chain.pem");
    std::os::unix::fs::symlink("../../archive/x/chain1.pem", &link).unwrap();
    let (files, _) = full(&of_file(&link));
    assert_eq!(paths(&files, Access::Read), [path("archive/x"), path("live/x")]);
}

#[test]
fn passwords_are_changed_in_a_folder_of_their_own_alone() {
    let access = |users: &str| {
        let mut config = Config::for_directory(PathBuf::from("/srv/export"));
        config.file = Some(PathBuf::from("/etc/dafs/dafs.toml"));
        config.auth.password_file = Some(PathBuf::from(users));
        let policy = policy_of_server(&config, Strength::Full, Path::new("/srv/state"), &user());
        let Part::Confined(rules) = policy.files else { panic!("files are open") };
        let folder = Path::new(users).parent().unwrap().to_owned();
        rules.into_iter().find(|rule| rule.path == folder).map(|rule| rule.access)
    };
    assert_eq!(access("/etc/dafs/users"), Some(Access::Read));
    assert_eq!(access("/etc/dafs/users.d/users"), Some(Access::Change));
    assert_eq!(access("/etc/users"), None, "the file alone");
}

#[test]
fn a_symlink_hides_no_other_file_beside_the_passwords() {
    let dir = tempfile::tempdir().unwrap();
    let dir = std::fs::canonicalize(dir.path()).unwrap();
    std::fs::create_dir(dir.join("conf")).unwrap();
    std::fs::write(dir.join("conf/dafs.toml"), "").unwrap();
    std::os::unix::fs::symlink("conf", dir.join("link")).unwrap();
    let mut config = of_file(dir.join("conf/dafs.toml").to_str().unwrap());
    config.auth.password_file = Some(dir.join("link/users"));
    let (files, _) = full(&config);
    assert_eq!(paths(&files, Access::Change), ["/srv/export", "/state"]);
}

#[test]
fn files_without_their_folders_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let dir = std::fs::canonicalize(dir.path()).unwrap();
    for folder in ["export", "conf"] {
        std::fs::create_dir(dir.join(folder)).unwrap();
    }
    let told = |file: &str| {
        let file = dir.join(file);
        std::fs::write(&file, "").unwrap();
        let mut config = Config::for_directory(dir.join("export"));
        config.auth.password_file = Some(file.clone());
        let (state, surroundings) = (dir.join("export"), user());
        let policy = policy_of_server(&config, Strength::Full, &state, &surroundings);
        without_folder(&policy, &surroundings) == [file]
    };
    assert!(told("users"));
    assert!(!told("conf/users"));
    // It is within what the server has anyway.
    assert!(!told("export/users"));
}

#[test]
fn an_error_of_a_start_names_the_sandbox_that_may_be_its_cause() {
    let given = || State::InForce(Means::Given);
    let open = || State::Open(Reason::Reload);
    let kernel = Kernel { landlock_abi: 7, seccomp: true };
    let (calls, privileges) = (given(), given());
    let report = Report { kernel, files: given(), network: open(), calls, privileges };
    let said = explain_start_in(Some(&report), "no key".to_owned());
    assert!(said.starts_with("no key") && said.contains("--sandbox off"), "{said}");
    // Open files and ports cause none.
    let report = Report { files: open(), ..report };
    assert_eq!(explain_start_in(Some(&report), "no key".to_owned()), "no key");
    assert_eq!(explain_start_in(None, "no key".to_owned()), "no key");
}

fn kerberos(keytab: &str) -> KerberosConfig {
    let host = Some("nas.example.org".to_owned());
    KerberosConfig::for_data_server(PathBuf::from(keytab), host).unwrap()
}

#[test]
fn keys_and_certificates_are_granted() {
    let mut config = Config::for_directory(PathBuf::from("/srv/export"));
    config.kerberos = Some(kerberos("/keys/nas.keytab"));
    config.tls = Some(ServerFiles {
        certificate: PathBuf::from("/certificates/nas.pem"),
        key: PathBuf::from("/private/nas.pem"),
        authorities: Some(PathBuf::from("/trust/ca.pem")),
        revocations: Some(PathBuf::from("/revoked/list.pem")),
        policy: TransportSecurity::None,
    });
    let (files, ports) = full(&config);
    let granted = ["/certificates", "/keys", "/private", "/revoked", "/trust"];
    assert_eq!(paths(&files, Access::Read), granted);
    // The Kerberos library asks name servers.
    assert!(ports.datagrams && ports.connect == [53].into(), "{ports:?}");
}

#[test]
fn a_data_server_has_its_secret_its_keys_and_name_servers() {
    let address = |text: &str| text.parse::<SocketAddr>().unwrap();
    let mut config = DataServerConfig {
        directory: PathBuf::from("/node"),
        engine: None,
        cluster_secret: PathBuf::from("/secrets/cluster"),
        control: address("192.0.2.1:7000"),
        nfs: address("192.0.2.1:7001"),
        rdma: DataRdma::default(),
        dafs: None,
        dafs_verbs: false,
        admits: Admits::default(),
        general: Config::for_directory(PathBuf::from("/node")),
    };
    let of = |config: &DataServerConfig| {
        let policy = policy_of_data_server(config, &user());
        match (policy.files, policy.network) {
            (Part::Confined(files), Part::Confined(ports)) => (files, ports),
            open => panic!("{open:?}"),
        }
    };
    let (files, ports) = of(&config);
    assert_eq!(paths(&files, Access::Read), ["/secrets"]);
    assert!(ports.connect.is_empty() && !ports.datagrams, "{ports:?}");
    config.general.kerberos = Some(kerberos("/keys/nas.keytab"));
    let (files, ports) = of(&config);
    assert_eq!(paths(&files, Access::Read), ["/keys", "/secrets"]);
    assert_eq!(ports.bind, [7000, 7001].into());
    assert!(ports.datagrams && ports.connect == [53].into(), "{ports:?}");
}

#[test]
fn devices_are_open_where_a_listener_needs_one() {
    let mut config = Config::for_directory(PathBuf::from("/srv/export"));
    let devices = |config: &Config| {
        policy_of_server(config, Strength::Full, Path::new("/state"), &user()).devices
    };
    assert!(!devices(&config));
    let address = "192.0.2.1:20490".parse().unwrap();
    config.verbs_listen = vec![address];
    assert!(devices(&config));
    config.verbs_listen.clear();
    let place = NodePlace::Directory {
        path: PathBuf::from("/node"),
        listen: Some(address),
        rdma: DataRdma::default(),
        dafs_listen: Some(address),
        dafs_verbs: true,
    };
    config.exports[0].source = ExportSource::Striped {
        path: PathBuf::from("/names"),
        unit_bytes: std::num::NonZeroU32::MIN,
        copies: 1,
        nodes: vec![NodeConfig { number: 1, place }],
        cluster_secret: None,
    };
    assert!(devices(&config));
}

#[test]
fn ports_are_those_of_the_configuration() {
    let mut config = Config::for_directory(PathBuf::from("/srv/export"));
    let address = |text: &str| text.parse::<SocketAddr>().unwrap();
    config.listen = vec![address("127.0.0.1:20490")];
    config.nfs.listen = vec![address("127.0.0.1:2049")];
    config.metrics_listen = Some(address("127.0.0.1:9469"));
    let (_, ports) = full(&config);
    assert_eq!(ports.bind, [2049, 9469, 20_049, 20_490].into());
    assert!(ports.connect.is_empty() && !ports.datagrams);
    config.nfs.rpcbind = true;
    let (_, ports) = full(&config);
    assert_eq!(ports.connect, [111].into());
    assert!(ports.clients && ports.datagrams);
}

#[test]
fn nodes_are_granted_with_their_ports_and_directories() {
    let address = |text: &str| text.parse::<SocketAddr>().unwrap();
    let rdma = DataRdma { soft: Some(address("192.0.2.1:7002")), verbs: None };
    let here = NodePlace::Directory {
        path: PathBuf::from("/node"),
        listen: Some(address("192.0.2.1:7001")),
        rdma,
        dafs_listen: Some(address("192.0.2.1:7003")),
        dafs_verbs: false,
    };
    let places = [here, NodePlace::Remote("[2001:db8::1]:7101".to_owned())];
    let nodes = places.into_iter().zip(1..).map(|(place, number)| NodeConfig { number, place });
    let mut config = Config::for_directory(PathBuf::new());
    config.exports[0].options = ExportOptions::default();
    config.exports[0].source = ExportSource::Striped {
        path: PathBuf::from("/names"),
        unit_bytes: std::num::NonZeroU32::MIN,
        copies: 1,
        nodes: nodes.collect(),
        cluster_secret: Some(PathBuf::from("/etc/dafs/secret")),
    };
    let (files, ports) = full(&config);
    assert_eq!(paths(&files, Access::Change), ["/names", "/node", "/state"]);
    assert_eq!(paths(&files, Access::Read), ["/etc/dafs"]);
    assert!([7001, 7002, 7003].iter().all(|port| ports.bind.contains(port)), "{ports:?}");
    assert_eq!(ports.connect, [53, 7101].into());
    assert!(ports.datagrams);
}
