//! The libraries for RDMA devices, and their drivers for each device.

use super::devices::Device;
use super::finding::Finding;
use super::host::Host;

/// The default search path of the loader.
const PLAIN: [&str; 5] = ["lib64", "usr/lib64", "usr/local/lib", "lib", "usr/lib"];

/// Directories that contain one directory for each kind of processor.
const BY_PROCESSOR: [&str; 2] = ["usr/lib", "lib"];

const PACKAGES: &str = "Debian, Ubuntu: apt install libibverbs1 librdmacm1 ibverbs-providers; \
                        Fedora, RHEL: dnf install libibverbs librdmacm";

pub(super) fn check(host: &Host, devices: &[Device]) -> Vec<Finding> {
    const TOPIC: &str = "rdma library";
    let bad = if devices.is_empty() { Finding::note } else { Finding::problem };
    let library = |name: &str| match find(host, name) {
        Some(path) => Finding::ok(TOPIC, format!("{name} is /{path}")),
        None => bad(
            TOPIC,
            format!("{name} is not installed, so the transport verbs cannot be used"),
            PACKAGES.to_owned(),
        ),
    };
    let mut findings = vec![library("libibverbs.so.1"), library("librdmacm.so.1")];
    if find(host, "libibverbs.so.1").is_some() {
        findings.extend(check_drivers(host, devices));
    }
    findings
}

fn find(host: &Host, name: &str) -> Option<String> {
    let directories = PLAIN.iter().map(|directory| (*directory).to_owned());
    let path = |directory: String| format!("{directory}/{name}");
    directories.chain(by_processor(host)).map(path).find(|path| host.exists(path))
}

/// Directories such as /usr/lib/x86_64-linux-gnu.
fn by_processor(host: &Host) -> impl Iterator<Item = String> {
    BY_PROCESSOR.into_iter().flat_map(|directory| {
        let names = host.list(directory).into_iter();
        names.filter(|name| name.contains("-linux-")).map(move |name| format!("{directory}/{name}"))
    })
}

/// The drivers by name: those configured and those installed.
fn drivers(host: &Host) -> Vec<String> {
    let configured = host.list("etc/libibverbs.d").into_iter().filter_map(|file| {
        let text = host.read(&format!("etc/libibverbs.d/{file}"))?;
        let name = text.lines().find_map(|line| line.trim().strip_prefix("driver "))?;
        Some(name.trim().rsplit('/').next()?.to_owned())
    });
    let plain = PLAIN.iter().map(|directory| (*directory).to_owned());
    let installed = plain.chain(by_processor(host)).flat_map(|directory| {
        let files = host.list(&format!("{directory}/libibverbs")).into_iter();
        files.filter_map(|file| {
            let (name, _) = file.strip_prefix("lib")?.split_once("-rdmav")?;
            Some(name.to_owned())
        })
    });
    let mut names: Vec<String> = configured.chain(installed).collect();
    names.sort_unstable();
    names.dedup();
    names
}

fn check_drivers(host: &Host, devices: &[Device]) -> Vec<Finding> {
    const TOPIC: &str = "rdma driver";
    let drivers = drivers(host);
    let lacks = |device: &&Device| {
        let soft = ["siw", "rxe"].into_iter().find(|kind| device.name.starts_with(kind));
        soft.is_some_and(|kind| !drivers.iter().any(|driver| driver == kind))
    };
    if let Some(device) = devices.iter().find(lacks) {
        let text = format!("libibverbs has no driver for {}", device.name);
        return vec![Finding::problem(TOPIC, text, PACKAGES)];
    }
    if drivers.is_empty() {
        let bad = if devices.is_empty() { Finding::note } else { Finding::problem };
        let text = "libibverbs has no driver for any device".to_owned();
        return vec![bad(TOPIC, text, PACKAGES.to_owned())];
    }
    vec![Finding::ok(TOPIC, format!("libibverbs has drivers for {}", drivers.join(", ")))]
}

#[cfg(test)]
mod tests {
    use super::super::devices;
    use super::super::finding::Level;
    use super::super::host::fake::Fake;
    use super::*;

    fn levels(fake: &Fake) -> Vec<(Level, String)> {
        let host = fake.host();
        let findings = check(&host, &devices::find(&host));
        findings.into_iter().map(|finding| (finding.level, finding.text)).collect()
    }

    #[test]
    fn a_missing_library_matters_only_with_a_device() {
        let fake = Fake::new();
        assert!(levels(&fake).iter().all(|(level, _)| *level == Level::Note));
        fake.file("sys/class/infiniband/siw0/node_type", "4: RNIC");
        assert!(levels(&fake).iter().all(|(level, _)| *level == Level::Problem));
    }

    #[test]
    fn a_soft_device_needs_its_driver() {
        let fake = Fake::new();
        let library = "usr/lib/x86_64-linux-gnu";
        fake.file(&format!("{library}/libibverbs.so.1"), "");
        fake.file(&format!("{library}/librdmacm.so.1"), "");
        fake.file(&format!("{library}/libibverbs/libmlx5-rdmav34.so"), "");
        fake.file("etc/libibverbs.d/rxe.driver", "driver rxe\n");
        fake.file("sys/class/infiniband/rxe0/node_type", "1: CA");
        let found = levels(&fake);
        assert!(found.iter().all(|(level, _)| *level == Level::Ok), "{found:?}");
        assert!(found[2].1.ends_with("mlx5, rxe"), "{found:?}");
        fake.file("sys/class/infiniband/siw0/node_type", "4: RNIC");
        assert_eq!(
            levels(&fake)[2],
            (Level::Problem, "libibverbs has no driver for siw0".to_owned())
        );
    }
}
