//! The transports that can be tried on this host.

use super::addresses;
use super::devices::{Device, Kind};
use super::finding::{Finding, Measured};
use super::host::Host;
use super::transfer;
use dafs_dat::iwarp::{IwarpAdapter, IwarpConfig};
use dafs_dat::shm::{ShmAdapter, ShmConfig};
use dafs_dat::verbs::{VerbsAdapter, VerbsConfig, VerbsDevice, locked_memory_limit};
use dafs_dat::{Adapter, Address};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};

const TOPIC: &str = "transport";

pub(super) fn check(host: &Host, devices: &[Device]) -> Vec<Finding> {
    let mut findings = vec![check_shm(), check_iwarp()];
    findings.extend(devices.iter().map(|device| check_device(host, device)));
    findings.extend(choice(devices, locked_memory_limit()));
    findings
}

/// The devices that DAFS clients of this user choose by themselves.
fn choice(devices: &[Device], locked_bytes_max: Option<u64>) -> Option<Finding> {
    const NONE: &str = "DAFS clients choose no RDMA device by themselves";
    let fits = |device: &&Device| matches!(device.kind, Kind::Roce | Kind::InfiniBand);
    let names = |is_software: bool| {
        let devices = devices.iter().filter(fits);
        let devices = devices.filter(|device| device.is_software == is_software);
        let names: Vec<_> = devices.map(|device| device.name.as_str()).collect();
        names.join(", ")
    };
    let (adapters, soft) = (names(false), names(true));
    let finding = match locked_bytes_max {
        _ if devices.is_empty() => return None,
        _ if adapters.is_empty() && !soft.is_empty() => Finding::note(
            TOPIC,
            format!("{NONE}: {soft} works in software, and there is no adapter"),
            "they use iwarp, over any network; transport=verbs uses such a device all the same",
        ),
        _ if adapters.is_empty() => Finding::note(
            TOPIC,
            format!("{NONE}: there is none for RoCE or InfiniBand"),
            "they use iwarp, over any network",
        ),
        Some(bytes) => Finding::note(
            TOPIC,
            format!("{NONE}: this user may lock only {} KiB of memory", bytes >> 10),
            "ulimit -l unlimited, or in a systemd unit LimitMEMLOCK=infinity; transport=verbs uses a \
             device all the same",
        ),
        None => {
            let text = format!(
                "DAFS clients choose {adapters} by themselves where the server listens for devices \
                 (dafs serve --verbs), after shm and before iwarp"
            );
            Finding::ok(TOPIC, text)
        }
    };
    Some(finding)
}

fn check_shm() -> Finding {
    // The kernel picks the name: another user could have bound a fixed one.
    let name = String::new();
    finding(
        "shm",
        "within this host",
        try_transport(|| ShmAdapter::new(ShmConfig::default()), &Address::Shm(name)),
        "shared memory needs memfd_create, UNIX sockets in the abstract namespace and free \
         descriptors; sandboxes may forbid them",
    )
}

fn check_iwarp() -> Finding {
    let address = Address::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
    finding(
        "iwarp",
        "over 127.0.0.1",
        try_transport(|| IwarpAdapter::new(IwarpConfig::default()), &address),
        "see that the loopback network is up (ip link set lo up) and no filter is in the way",
    )
}

fn check_device(host: &Host, device: &Device) -> Finding {
    let name = &device.name;
    let address = device.network.as_ref().and_then(|network| addresses::of(host, network));
    let Some(address) = address else {
        return Finding::note(
            TOPIC,
            format!("verbs by {name} was not tried: its network device has no address"),
            "ip address add ADDRESS/LENGTH dev DEVICE",
        );
    };
    let config =
        || VerbsConfig { device: VerbsDevice::Named(name.clone()), ..VerbsConfig::default() };
    let listen = Address::Verbs(SocketAddr::new(address, 0));
    finding(
        "verbs",
        &format!("by {name}, to {address}"),
        try_transport(|| Ok(VerbsAdapter::open(config())?), &listen),
        "see above: this device, its files, the libraries and locked memory",
    )
}

fn try_transport<A: Adapter + 'static>(
    make: impl Fn() -> io::Result<A>,
    listen: &Address,
) -> Result<Measured, String> {
    let adapter = || -> Result<Box<dyn Adapter>, String> {
        let made = make().map_err(|error| format!("it cannot be set up: {error}"))?;
        Ok(Box::new(made))
    };
    transfer::measure(adapter()?, adapter()?, listen)
}

fn finding(
    transport: &str,
    place: &str,
    result: Result<Measured, String>,
    fix: &'static str,
) -> Finding {
    match result {
        Ok(measured) => {
            let Measured {
                round_trip_microseconds: round_trip,
                write_mebibytes_per_second: write,
                read_mebibytes_per_second: read,
            } = measured;
            let text = format!(
                "{transport} {place} works: round trip {round_trip:.1} us, RDMA write {write:.0} \
                 MiB/s, read {read:.0} MiB/s, both ends in one thread"
            );
            Finding { measured: Some(measured), ..Finding::ok(TOPIC, text) }
        }
        Err(error) => {
            Finding::problem(TOPIC, format!("{transport} {place} does not work: {error}"), fix)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::devices;
    use super::super::finding::Level;
    use super::super::host::fake::Fake;
    use super::*;

    #[test]
    fn both_transports_work_here() {
        for finding in check(&Fake::new().host(), &[]) {
            assert_eq!(finding.level, Level::Ok, "{finding}");
            let measured = finding.measured.unwrap();
            assert!(measured.read_mebibytes_per_second > 0.0);
        }
    }

    #[test]
    fn a_device_without_an_address_is_not_tried() {
        let fake = Fake::new();
        fake.file("sys/class/infiniband/siw0/node_type", "4: RNIC");
        fake.file("sys/class/infiniband/siw0/parent", "eth7");
        let host = fake.host();
        let finding = check_device(&host, &devices::find(&host)[0]);
        assert_eq!(finding.level, Level::Note);
        assert!(finding.text.contains("siw0 was not tried"), "{finding}");
    }

    #[test]
    fn the_devices_that_clients_choose_are_named() {
        let device = |name: &str, kind| {
            let name = name.to_owned();
            let is_software = !name.starts_with("mlx5");
            let (network, ports, verbs_file) = (None, Vec::new(), None);
            Device { name, kind, is_software, network, ports, verbs_file }
        };
        let (adapter, rxe) = (device("mlx5_0", Kind::Roce), device("rxe0", Kind::Roce));
        let siw = device("siw0", Kind::Iwarp);
        assert_eq!(choice(&[], None), None);
        let found = choice(&[siw.clone(), rxe.clone(), adapter.clone()], None).unwrap();
        assert_eq!(found.level, Level::Ok);
        assert!(found.text.contains("choose mlx5_0 by themselves"), "{found}");
        let found = choice(&[adapter], Some(8 << 20)).unwrap();
        assert!(found.text.contains("only 8192 KiB"), "{found}");
        for locked_bytes_max in [None, Some(8 << 20)] {
            let found = choice(&[siw.clone(), rxe.clone()], locked_bytes_max).unwrap();
            assert_eq!(found.level, Level::Note);
            assert!(found.text.contains("choose no RDMA device by themselves: rxe0"), "{found}");
        }
        assert!(choice(&[siw], None).unwrap().text.contains("there is none for RoCE"));
    }

    #[test]
    fn a_transport_that_does_not_work_says_why() {
        let result = try_transport(
            || ShmAdapter::new(ShmConfig::default()),
            &Address::Tcp("127.0.0.1:1".parse().unwrap()),
        );
        let finding = finding("shm", "here", result, "a remedy");
        assert_eq!(finding.level, Level::Problem);
        assert!(finding.text.contains("cannot listen on 127.0.0.1:1"), "{finding}");
    }
}
