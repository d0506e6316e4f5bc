//! The Kerberos of a server's configuration: its keytab, its name, its clock and its ports.

use super::finding::Finding;
use super::host::Host;
use dafs_gss::keytab::{self, Entry};
use dafs_gss::library::Acceptor;
use dafs_server::{Config, KerberosConfig};
use dafs_service::{Identities, LocalDirectory, Rules};
use std::net::ToSocketAddrs as _;

const TOPIC: &str = "kerberos";

/// rpc.gssd of Linux's client establishes contexts for a mount over RDMA here, whatever its other options.
const NFS_PORT: u16 = 2049;

/// Files that exist while a daemon keeps the clock right.
const CLOCK_SIGNS: [&str; 4] = [
    "run/systemd/timesync/synchronized",
    "run/chrony/chronyd.pid",
    "run/ntpd.pid",
    "run/openntpd/ntpd.pid",
];

pub(super) fn check(host: &Host, config: &Config) -> Vec<Finding> {
    let Some(kerberos) = &config.kerberos else {
        let fix = "if users should prove who they are: write [kerberos] with keytab = \"FILE\"";
        return vec![Finding::note(TOPIC, "the configuration does not use Kerberos", fix)];
    };
    [keys(kerberos), vec![name(kerberos), clock(host)], ports(config)].concat()
}

/// Says who a principal or the user of a certificate is, and by which rule.
pub(super) fn explain(config: &Config, name: &str) -> Vec<Finding> {
    let say = |topic, rules| {
        let identities = Identities::new(rules, Box::new(LocalDirectory));
        Finding::ok(topic, identities.explain(name))
    };
    let rules = || Rules { rules: config.certificate_users.clone(), default_realm: None };
    let has_certificates = !config.certificate_users.is_empty();
    let certificate = has_certificates.then(|| say("certificate", rules()));
    let principal = config.kerberos.as_ref().map(|it| say("principal", it.rules.clone()));
    let findings: Vec<Finding> = principal.into_iter().chain(certificate).collect();
    if !findings.is_empty() {
        return findings;
    }
    let fix = "write [kerberos] with keytab = \"FILE\" first";
    vec![Finding::problem("principal", "the configuration does not use Kerberos", fix)]
}

/// The two parts of the service's name, such as `nfs@HOST`.
fn service_and_host(kerberos: &KerberosConfig) -> (&str, &str) {
    let name = kerberos.nfs.as_str();
    name.split_once('@').unwrap_or((name, ""))
}

fn keys(kerberos: &KerberosConfig) -> Vec<Finding> {
    let path = kerberos.keytab.display();
    let (service, host) = service_and_host(kerberos);
    // The finding of the library says why a file cannot be read.
    let entries = keytab::read(&kerberos.keytab).ok();
    let entries = entries.and_then(|entries| judge(&format!("{service}/{host}@"), &entries));
    let service = match Acceptor::new(&kerberos.keytab, &kerberos.nfs) {
        Ok(_) => Finding::ok(TOPIC, format!("{path} has keys of {}", kerberos.nfs)),
        Err(error) => Finding::problem(
            TOPIC,
            error.to_string(),
            format!("look at it with: klist -k -e {path}"),
        ),
    };
    entries.into_iter().chain([service]).collect()
}

/// Judges the entries of the service, whose principals begin with `prefix`.
fn judge(prefix: &str, entries: &[Entry]) -> Option<Finding> {
    let own: Vec<&Entry> =
        entries.iter().filter(|entry| entry.principal.starts_with(prefix)).collect();
    if own.is_empty() {
        let mut others: Vec<&str> = entries.iter().map(|entry| &*entry.principal).collect();
        others.dedup();
        let text = format!("the keytab has no key of {prefix}REALM, but of {}", others.join(", "));
        let fix = "set host in [kerberos] to the name in the keytab, or add the key: kadmin ktadd";
        return (!others.is_empty()).then(|| Finding::problem(TOPIC, text, fix));
    }
    let latest = own.iter().map(|entry| entry.version).max()?;
    if own.iter().any(|entry| entry.version == latest && entry.is_usable()) {
        return None;
    }
    Some(Finding::problem(
        TOPIC,
        format!(
            "no key of {prefix}REALM has an encryption type with AES (17 to 20), so no client gets in"
        ),
        "let the KDC make such keys (msDS-SupportedEncryptionTypes in Active Directory), and write the keytab anew",
    ))
}

fn name(kerberos: &KerberosConfig) -> Finding {
    let (_, host) = service_and_host(kerberos);
    if (host, 0).to_socket_addrs().is_ok_and(|mut addresses| addresses.next().is_some()) {
        return Finding::ok(TOPIC, format!("{host}, the name of this server, has an address"));
    }
    Finding::note(
        TOPIC,
        format!("{host}, the name of this server, has no address here"),
        "clients must mount by this name: add it to the DNS or to /etc/hosts",
    )
}

fn clock(host: &Host) -> Finding {
    if CLOCK_SIGNS.iter().any(|path| host.exists(path)) {
        return Finding::ok(TOPIC, "a daemon keeps the clock right");
    }
    Finding::note(
        TOPIC,
        "no daemon seems to keep the clock right, and Kerberos refuses clocks that differ by 5 minutes",
        "if the host does not do it for this machine: apt install systemd-timesyncd, or chrony",
    )
}

fn ports(config: &Config) -> Vec<Finding> {
    let has_rdma = !config.nfs.rdma().is_empty() || !config.nfs.rdma_verbs_listen.is_empty();
    let has_port = config.nfs.listen.iter().any(|address| address.port() == NFS_PORT);
    if !has_rdma || has_port {
        return Vec::new();
    }
    vec![Finding::note(
        TOPIC,
        "NFS is served over RDMA but not at TCP port 2049, where Linux's rpc.gssd looks for it",
        "let nfs.listen have an address with port 2049",
    )]
}

#[cfg(test)]
mod tests {
    use super::super::finding::Level;
    use super::super::host::fake::Fake;
    use super::*;

    fn entry(principal: &str, enctype: u16, version: u32) -> Entry {
        Entry { principal: principal.to_owned(), enctype, version }
    }

    #[test]
    fn keys_of_another_name_or_another_type_are_problems() {
        let judge = |entries: &[Entry]| judge("nfs/a@", entries).map(|finding| finding.text);
        assert_eq!(judge(&[entry("nfs/a@R", 18, 2)]), None);
        assert_eq!(judge(&[entry("nfs/a@R", 23, 2), entry("nfs/a@R", 17, 2)]), None);
        assert_eq!(judge(&[]), None, "the library says that the file is empty");
        let wrong = judge(&[entry("nfs/b@R", 18, 2), entry("host/b@R", 18, 2)]).unwrap();
        assert!(wrong.contains("of nfs/b@R, host/b@R"), "{wrong}");
        let old = judge(&[entry("nfs/a@R", 18, 1), entry("nfs/a@R", 23, 2)]).unwrap();
        assert!(old.contains("no client gets in"), "{old}");
    }

    #[test]
    fn a_daemon_that_keeps_the_clock_is_seen() {
        let fake = Fake::new();
        assert_eq!(clock(&fake.host()).level, Level::Note);
        fake.file("run/chrony/chronyd.pid", "7");
        assert_eq!(clock(&fake.host()).level, Level::Ok);
    }

    #[test]
    fn rpc_gssd_needs_port_2049() {
        let mut config = Config::for_directory("/".into());
        config.nfs.rdma_listen = Some(vec![([127, 0, 0, 1], 20049).into()]);
        assert_eq!(ports(&config).len(), 1);
        config.nfs.listen = vec![([127, 0, 0, 1], 2049).into()];
        assert_eq!(ports(&config), []);
    }
}
