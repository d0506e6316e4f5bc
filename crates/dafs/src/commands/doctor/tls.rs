//! The certificates of a server's configuration, and the kernel's part in TLS.

use super::finding::Finding;
use dafs_server::Config;
use dafs_tls::SubjectName;
use dafs_tls::ktls;
use std::net::IpAddr;

const TOPIC: &str = "tls";

/// Days before its end from which on a certificate is a problem.
const WARNING_DAYS: i64 = 30;

/// Judges the table `[tls]` of a configuration at this time, since 1970.
pub(super) fn check(config: &Config, now_seconds: u64) -> Vec<Finding> {
    let Some(files) = &config.tls else {
        let text = "the configuration has no table [tls], so clients cannot use TLS";
        return vec![Finding::note(TOPIC, text, "if you need it: dafs pki init --help")];
    };
    let side = match files.load(now_seconds) {
        Ok(side) => side,
        Err(error) => {
            let fix = "correct the file: the server does not start with it";
            return vec![Finding::problem(TOPIC, error.to_string(), fix)];
        }
    };
    let path = files.certificate.display();
    let days = side.identity().days_left(now_seconds);
    let mut findings = vec![match days < WARNING_DAYS {
        true => Finding::problem(
            TOPIC,
            format!("the certificate in {path} ends in {days} days"),
            "renew it: dafs pki server FOLDER NAME --renew; a running server takes it by itself",
        ),
        false => Finding::ok(TOPIC, format!("the certificate in {path} is valid for {days} days")),
    }];
    let listen: Vec<IpAddr> = config.nfs.listen.iter().map(|address| address.ip()).collect();
    findings.extend(names(side.identity().names(), &listen));
    findings.push(match ktls::available() {
        Ok(()) => Finding::ok(TOPIC, "the kernel protects the records of TLS"),
        Err(reason) => Finding::note(
            TOPIC,
            format!("the server itself protects the records of TLS: {reason}"),
            "nothing breaks; with the kernel's TLS the server copies less",
        ),
    });
    findings
}

/// Judges the names of a certificate against the addresses that the server listens on.
fn names(names: &[SubjectName], listen: &[IpAddr]) -> Vec<Finding> {
    if names.is_empty() {
        let text = "the certificate has no subject alternative name, so no client accepts it";
        return vec![Finding::problem(TOPIC, text, "make another: dafs pki server FOLDER NAME")];
    }
    let told: Vec<String> = names.iter().map(SubjectName::to_string).collect();
    let mut findings = Vec::new();
    for wildcard in told.iter().filter(|name| name.contains('*')) {
        findings.push(Finding::problem(
            TOPIC,
            format!("no NFS client accepts the wildcard {wildcard} of the certificate"),
            "name the host in full: dafs pki server FOLDER NAME",
        ));
    }
    let is_known = |address: &IpAddr| told.iter().any(|name| *name == address.to_string());
    let concrete = listen.iter().filter(|address| !address.is_unspecified());
    for address in concrete.filter(|address| !is_known(address)) {
        findings.push(Finding::note(
            TOPIC,
            format!(
                "clients that mount {address} refuse the certificate, which is for {}",
                told.join(", ")
            ),
            "let them mount a name of it, or make one with the address: dafs pki server",
        ));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::finding::Level;
    use super::*;
    use dafs_tls::pki::{Folder, Use};
    use dafs_tls::{ServerFiles, TransportSecurity};

    const NOW: u64 = 1_800_000_000;
    const DAY: u64 = 86_400;

    #[test]
    fn ends_and_names_are_judged() {
        let home = tempfile::tempdir().unwrap();
        let folder = Folder::create(&home.path().join("pki"), "CA", NOW).unwrap();
        let hosts = ["nas".to_owned(), "192.0.2.1".to_owned()];
        let made = folder.issue(Use::Server, "nas", &hosts, None, NOW).unwrap();
        let mut config = Config::for_directory(home.path().to_owned());
        assert_eq!(check(&config, NOW)[0].level, Level::Note);
        config.tls = Some(ServerFiles {
            certificate: made.certificate,
            key: made.key,
            authorities: None,
            revocations: None,
            policy: TransportSecurity::Tls,
        });
        config.nfs.listen = vec!["192.0.2.1:2049".parse().unwrap()];
        let levels = |config: &Config, now| {
            check(config, now).iter().map(|finding| finding.level).collect::<Vec<_>>()
        };
        assert_eq!(levels(&config, NOW)[0], Level::Ok);
        assert_eq!(levels(&config, NOW).len(), 2);
        assert_eq!(levels(&config, NOW + 368 * DAY)[0], Level::Problem);
        assert_eq!(levels(&config, NOW + 400 * DAY), [Level::Problem]);
        config.nfs.listen.push("192.0.2.2:2049".parse().unwrap());
        assert_eq!(levels(&config, NOW)[1], Level::Note);
        assert_eq!(names(&[], &[])[0].level, Level::Problem);
        let wild = SubjectName::Dns("*.example.org".to_owned());
        assert_eq!(names(&[wild], &[])[0].level, Level::Problem);
    }
}
