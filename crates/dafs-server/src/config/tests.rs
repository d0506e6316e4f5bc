//! Tests of whole configuration files.

use super::*;
use dafs_service::Squash;

pub(super) fn load(text: &str) -> Result<Config, ConfigError> {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("data")).unwrap();
    let path = dir.path().join("dafs.toml");
    std::fs::write(&path, text).unwrap();
    Config::load(&path)
}

pub(super) const EXPORT: &str = "[[export]]\nname = \"data\"\npath = \"data\"\n";

#[test]
fn a_small_file_gets_safe_defaults() {
    let config = load(EXPORT).unwrap();
    assert_eq!(config.listen[0].port(), DEFAULT_PORT);
    assert!(config.listen[0].ip().is_loopback());
    assert_eq!(config.exports[0].options.squash, Squash::Root);
    config.check_exposure().unwrap();
}

#[test]
fn mistakes_are_named_with_their_remedy() {
    let check = |text: &str, expected: &str| {
        let error = load(text).unwrap_err().to_string();
        assert!(error.contains(expected), "{error:?} does not contain {expected:?}");
    };
    check("", "[[export]]");
    check("lissten = 3", "line 1");
    check(&format!("wake = \"often\"\n{EXPORT}"), "line 1");
    check(&format!("lease_time_seconds = 0\n{EXPORT}"), "use 1 to 3600");
    check(&format!("sandbox = \"yes\"\n{EXPORT}"), "\"yes\" is unknown; use \"required\"");
    check(&format!("sandbox = true\n{EXPORT}"), "line 1");
    check(&format!("listen = [\"nowhere\"]\n{EXPORT}"), "HOST:PORT");
    check(&format!("trusted = [\"10/8\"]\n{EXPORT}"), "192.0.2.0/24");
    check(&format!("verbs_listen = [\"nowhere\"]\n{EXPORT}"), "HOST:PORT");
    check(&format!("verbs_listen = [\"192.0.2.1:0\"]\n{EXPORT}"), "name the port");
    let device = "verbs_listen = [\"192.0.2.1:7\"]";
    let nfs = "[nfs]\nrdma_verbs_listen = [\"192.0.2.1:7\"]";
    check(&format!("{device}\n{nfs}\n{EXPORT}"), "in nfs.rdma_verbs_listen too");
    check(&format!("{EXPORT}squash = \"most\""), "\"most\" is unknown; use root, none or all");
    check(&format!("[nfs]\nlisten = [\"here\"]\n{EXPORT}"), "127.0.0.1:2049");
    check(&format!("[nfs]\nrdma_listen = [\"here\"]\n{EXPORT}"), "127.0.0.1:20049");
    check(&format!("[nfs]\nrdma_verbs_listen = [\"here\"]\n{EXPORT}"), "127.0.0.1:20049");
    let twice = "rdma_listen = [\"127.0.0.1:7\"]\nrdma_verbs_listen = [\"127.0.0.1:7\"]";
    check(&format!("[nfs]\n{twice}\n{EXPORT}"), "another port");
    check(&format!("[nfs]\ngrace_time_seconds = 9999\n{EXPORT}"), "0 to 3600");
    check(&format!("{EXPORT}networks = [\"10/8\"]"), "192.0.2.0/24");
    check(&format!("{EXPORT}security = [\"krb6\"]"), "use none, sys, krb5");
    check(&EXPORT.replace("\"data\"\n", "\"gone\"\n"), "is no directory");
    check(&format!("{EXPORT}{EXPORT}"), "line 5: export \"data\": name: another export");
    let named = |name: &str| EXPORT.replacen("\"data\"", &format!("{name:?}"), 1);
    check(&named("a/b"), "line 2: export \"a/b\": name: it cannot be the name of an export");
    check(&format!("{EXPORT}{}", named("")), "line 5: export \"\": name: an export without a name");
    check(&format!("{EXPORT}memory_bytes = 5"), "leave it out");
    check("[[export]]\nname = \"data\"", "memory_bytes = N");
    let ceph = "[[export]]\nname = \"c\"\nstore = \"cephfs\"\n";
    check(&ceph.replace("cephfs", "ceph"), "write \"cephfs\"");
    let gluster = "[[export]]\nname = \"g\"\nstore = \"glusterfs\"\n";
    let table = "[export.gluster]\nvolume = \"v\"\nservers = [\"h\"]\n";
    check(gluster, "with volume and servers");
    check(&format!("{EXPORT}{table}"), "or leave it");
    check(&format!("{ceph}{table}"), "or leave it");
    check(&format!("{gluster}path = \"data\"\n{table}"), "GlusterFS keeps the files");
    check(&format!("{gluster}durable_replies = \"crash\"\n{table}"), "GlusterFS are not kept");
    check(&format!("{gluster}{table}root = \"x\""), "\"/\" first");
    check(&format!("{gluster}{}", table.replace("\"h\"", "")), "servers = [\"HOST\"]");
    check(&format!("{gluster}{}", table.replace("\"h\"", "\"h:x\"")), "no HOST:PORT");
    check(&format!("{gluster}{}", table.replace("\"v\"", "\"a/b\"")), "volume list");
    let door = "[[export.gluster.data_server]]\nlisten = \"127.0.0.1:1\"\nbrick = \"h:/b\"\n";
    check(&format!("{gluster}{table}{door}{door}"), "h:/b is named by two");
    check(&format!("{gluster}{table}{}", door.replace("h:/b", "h")), "HOST:PATH");
    check(&format!("{gluster}{table}{}", door.replace("127.0.0.1", "0.0.0.0")), "that clients use");
    let far = door.replace("listen = \"127.0.0.1:1\"", "number = 1\ncontrol = \"h:7101\"");
    check(&format!("{gluster}{table}{far}"), "[cluster] with secret");
    check(&format!("{gluster}{table}{}", far.replace("h:7101", "h")), "\"HOST:PORT\"");
    check(&format!("{gluster}{table}{far}listen = \"127.0.0.1:1\""), "or number and control");
    check(&format!("{gluster}{table}{far}rdma_listen = \"127.0.0.1:2\""), "number and control");
    check(&format!("{gluster}{table}{door}rdma_listen = \"0.0.0.0:2\""), "that clients use");
    let other = far.replace("h:/b", "h:/c");
    check(&format!("{gluster}{table}{far}{other}"), "its own number");
    check(&format!("{EXPORT}[export.ceph]\nid = \"x\""), "write \"cephfs\"");
    check(&format!("{ceph}path = \"data\""), "leave it out");
    check(&format!("{ceph}durable_replies = \"crash\""), "CephFS are not kept");
    check(&format!("{ceph}[export.ceph]\nid = \"client.x\""), "without \"client.\"");
    check(&format!("{ceph}[export.ceph]\nconf = \"gone\""), "gone is not there");
    check(&format!("{ceph}[export.ceph]\nroot = \"x\""), "\"/\" first");
    let server = "[[export.ceph.data_server]]\nlisten = \"127.0.0.1:1\"\nosds = [0]\n";
    check(&format!("{ceph}{server}{server}"), "OSD 0 is named by two");
    check(&format!("{ceph}{}", server.replace("[0]", "[]")), "osds = [0, 1]");
    check(&format!("{ceph}{}", server.replace("127.0.0.1", "0.0.0.0")), "that clients use");
    let far = server.replace("listen = \"127.0.0.1:1\"", "number = 1\ncontrol = \"h:7101\"");
    check(&format!("{ceph}{far}"), "[cluster] with secret");
    check(&format!("{ceph}{far}network_namespace = \"x\""), "leave network_namespace out");
    let device = "rdma_verbs_listen = \"127.0.0.1:2\"\nnetwork_namespace = \"x\"";
    check(&format!("{ceph}{server}{device}"), "in the network of this process");
    check(&format!("{ceph}{}", far.replace("number = 1\n", "")), "or number and control");
    let node = "[[export.node]]\nnumber = 1\npath = \"data\"\n";
    check(&format!("{EXPORT}{node}{node}"), "its own number");
    check(&format!("{EXPORT}{}", node.replace("\"data\"", "\"gone\"")), "is no directory");
    check(&format!("{EXPORT}{node}listen = \"0.0.0.0:1\""), "that clients use");
    check(&format!("{EXPORT}{node}rdma_listen = \"127.0.0.1:2\""), "name listen too");
    let open = format!("{EXPORT}{node}listen = \"127.0.0.1:1\"\n");
    check(&format!("{open}rdma_listen = \"0.0.0.0:2\""), "that clients use");
    check(&format!("{open}rdma_verbs_listen = \"127.0.0.1:0\""), "name the port");
    let twice = "rdma_listen = \"127.0.0.1:2\"\nrdma_verbs_listen = \"127.0.0.1:2\"";
    check(&format!("{open}{twice}"), "another port");
    check(&format!("{open}dafs_verbs = true"), "name dafs_listen too");
    let far = "[[export.node]]\nnumber = 2\ncontrol = \"192.0.2.2:2052\"\n";
    check(&format!("{EXPORT}{far}"), "[cluster] with secret");
    let same = far.replace("number = 2", "number = 3");
    check(&format!("{EXPORT}{far}{same}"), "two have the same control");
    check(&format!("{EXPORT}{far}path = \"data\""), "or control =");
    check(&format!("{EXPORT}{far}listen = \"192.0.2.2:1\""), "leave listen out");
    check(&format!("{EXPORT}{far}rdma_listen = \"192.0.2.2:1\""), "leave listen out");
    check(&format!("{EXPORT}{}", far.replace(":2052", "")), "control = \"HOST:PORT\"");
    check(&format!("{EXPORT}[[export.node]]\nnumber = 1"), "path = \"DIRECTORY\"");
    check(&format!("{EXPORT}stripe_bytes = 100\n{node}"), "4096 to 1073741824");
    check(&format!("{EXPORT}stripe_bytes = 4096"), "[[export.node]]");
    check(&format!("{EXPORT}copies = 2"), "[[export.node]]");
    check(&format!("{EXPORT}copies = 2\n{node}"), "no more than there are nodes");
    check(&format!("{EXPORT}copies = 0\n{node}"), "use 1 to 8");
    check(&format!("{EXPORT}durable_replies = \"crash\"\n{node}"), "spread over nodes");
    check(&format!("{EXPORT}durable_replies = \"on\""), "off, crash or power");
    check(&format!("{EXPORT}shared_keys = \"on\""), "use advisory or strict");
    check(&format!("{EXPORT}optimistic = true\n{node}"), "one directory or in memory");
    check(&format!("{EXPORT}optimistic = \"remote\"\n{node}"), "one directory or in memory");
    check(&format!("{EXPORT}optimistic = \"everywhere\"\n"), "\"remote\" for others");
    check(&format!("{EXPORT}optimistic = 5\n"), "\"remote\" for others");
    check(&format!("optimistic_memory_bytes = 5\n{EXPORT}"), "1048576 or more");
    let memory = "[[export]]\nname = \"m\"\nmemory_bytes = 4096\n";
    check(&format!("{memory}durable_replies = \"crash\""), "do not outlive");
    check(
        &format!("danger_allow_unauthenticated_remote_clients = \"yes\"\n{EXPORT}"),
        DANGER_SENTENCE,
    );
    let clear =
        |sentence: &str| format!("danger_allow_dafs_passwords_in_clear = \"{sentence}\"\n{EXPORT}");
    check(&clear("yes"), CLEAR_PASSWORDS_SENTENCE);
    check(&clear(CLEAR_PASSWORDS_SENTENCE), "password_file = \"FILE\"");
}

#[test]
fn types_are_named_as_one_writes_them() {
    let check = |text: &str, expected: &str| {
        let error = load(text).unwrap_err().to_string();
        assert!(error.contains(expected), "{error:?} does not contain {expected:?}");
        assert!(error.contains("line "), "{error}");
    };
    check(&format!("listen = \"1.2.3.4:1\"\n{EXPORT}"), "write a list in brackets");
    check("[export]\nname = \"data\"\npath = \"data\"\n", "[[export]]");
    check(&format!("lease_time_seconds = \"30 days\"\n{EXPORT}"), "such as \"30s\"");
    check(&format!("lease_time_seconds = -1\n{EXPORT}"), "such as \"30s\"");
    check(&format!("lease_time_seconds = 1.5\n{EXPORT}"), "such as \"30s\"");
    check(&format!("optimistic_memory_bytes = \"4MB\"\n{EXPORT}"), "such as \"4MiB\"");
    check(&format!("optimistic_memory_bytes = [4]\n{EXPORT}"), "such as \"4MiB\"");
    check(&format!("threads = \"4s\"\n{EXPORT}"), "without a unit");
    check(&format!("threads = \"4\"\n{EXPORT}"), "without quotes");
    check(&format!("crc = \"yes\"\n{EXPORT}"), "true or false");
    check(&format!("password_file = 3\n{EXPORT}"), "in quotes");
}

#[test]
fn bytes_and_times_may_have_units() {
    let text = "lease_time_seconds = \"1min\"\nslow_operation_ms = \"2s\"\n\
                optimistic_memory_bytes = \"64MiB\"\n[nfs]\ngrace_time_seconds = \"90s\"\n\
                [limits]\ntransfer_bytes = \"1MiB\"\n[[export]]\nname = \"m\"\n\
                memory_bytes = \"1GiB\"\n";
    let config = load(text).unwrap();
    assert_eq!(config.lease_time, Duration::from_secs(60));
    assert_eq!(config.slow_operation, Some(Duration::from_secs(2)));
    assert_eq!(config.optimistic_memory_bytes, 64 << 20);
    assert_eq!(config.nfs.grace_time, Some(Duration::from_secs(90)));
    assert_eq!(config.limits.transfer_bytes_max, 1 << 20);
    let ExportSource::Memory { bytes_max } = &config.exports[0].source else { panic!("{text}") };
    assert_eq!(*bytes_max, 1 << 30);
    let beyond = load(&format!("lease_time_seconds = \"2h\"\n{EXPORT}")).unwrap_err();
    assert!(beyond.to_string().contains("line 1: lease_time_seconds: use 1 to 3600"), "{beyond}");
    let beyond = load(&format!("{EXPORT}[limits]\ntransfer_bytes = \"8GiB\"\n")).unwrap_err();
    assert!(beyond.to_string().contains("use 65536 to 67108864"), "{beyond}");
}

#[test]
fn rdma_is_beside_the_port_of_nfs_unless_something_else_is_said() {
    let rdma = |nfs: &str| {
        let nfs = load(&format!("[nfs]\n{nfs}\n{EXPORT}")).unwrap().nfs;
        (nfs.rdma(), nfs.is_on())
    };
    let address = |text: &str| text.parse::<SocketAddr>().unwrap();
    let both = "listen = [\"192.0.2.1:2049\", \"127.0.0.1:2050\"]";
    assert_eq!(rdma(both), (vec![address("192.0.2.1:20049")], true));
    assert_eq!(rdma(&format!("{both}\nrdma_listen = []")), (vec![], true));
    let other = "rdma_listen = [\"127.0.0.1:7\"]";
    assert_eq!(rdma(other), (vec![address("127.0.0.1:7")], true));
    let verbs = "rdma_verbs_listen = [\"192.0.2.1:20049\"]";
    assert_eq!(rdma(verbs), (vec![], true));
    assert_eq!(rdma(""), (vec![], false));
}

#[test]
fn a_link_local_address_has_a_zone() {
    let address = parse_listen("[fe80::1%lo]:7").unwrap();
    let SocketAddr::V6(address) = address else { panic!("{address}") };
    assert!(address.scope_id() > 0 && address.port() == 7, "{address}");
    assert_eq!(address.ip().to_string(), "fe80::1");
    assert!(parse_listen("[fe80::1%none-such]:7").is_err());
    assert!(parse_listen("[fe80::1%lo]").is_err());
}

#[test]
fn an_open_door_must_be_meant() {
    let open = format!("listen = [\"0.0.0.0:0\"]\n{EXPORT}");
    let error = load(&open).unwrap().check_exposure().unwrap_err();
    assert!(matches!(error, ConfigError::Unauthenticated { .. }));
    assert!(error.to_string().contains("dafs.toml line 1: listen: 0.0.0.0:0"), "{error}");
    let meant =
        format!("danger_allow_unauthenticated_remote_clients = \"{DANGER_SENTENCE}\"\n{open}");
    load(&meant).unwrap().check_exposure().unwrap();
    let passwords = format!("password_file = \"users\"\n{open}");
    let config = load(&passwords).unwrap();
    config.check_exposure().unwrap();
    assert!(config.has_passwords_for_this_host_only());
    let sentence =
        format!("danger_allow_dafs_passwords_in_clear = \"{CLEAR_PASSWORDS_SENTENCE}\"\n");
    let config = load(&format!("{sentence}{passwords}")).unwrap();
    assert!(config.auth.clear_passwords && !config.has_passwords_for_this_host_only());
    let trusting = format!("trusted = [\"10.0.0.0/8\"]\n{passwords}");
    assert!(load(&trusting).unwrap().check_exposure().is_err());
}
