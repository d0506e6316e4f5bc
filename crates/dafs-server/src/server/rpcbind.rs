//! Registration with the rpcbind of this host, for NFSv3 clients that ask it for ports (RFC 1833
//! 2.2.1 and 3.2), and questions to the rpcbind of other hosts.

use dafs_rpc::client::{CallError, Options, Procedure, RpcClient};
use dafs_wire::xdr::{Decoder, Encoder};
use dafs_wire::{mount3, nfs_acl3, nfs3, nfs4, nlm4, nsm1};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

const PORT: u16 = 111;
const PROGRAM: u32 = 100_000;
/// The version whose entries have a port of TCP or UDP.
const VERSION_PORTS: u32 = 2;
/// The version whose entries have a network and an address.
const VERSION_ADDRESSES: u32 = 3;
const SET: u32 = 1;
const UNSET: u32 = 2;
/// GETPORT of version 2, GETADDR of version 3.
const GET: u32 = 3;
const TCP: u32 = 6;
const UDP: u32 = 17;

/// The longest address in a reply, in bytes.
const ADDRESS_BYTES_MAX: usize = 256;

/// The registered programs and versions. All are served at each address.
const PROGRAMS: [(u32, u32); 6] = [
    (nfs3::PROGRAM, nfs3::VERSION),
    (nfs4::limits::PROGRAM, nfs4::limits::VERSION),
    (mount3::PROGRAM, mount3::VERSION),
    (nfs_acl3::PROGRAM, nfs_acl3::VERSION),
    (nlm4::PROGRAM, nlm4::VERSION),
    (nsm1::PROGRAM, nsm1::VERSION),
];

/// The addresses of a server.
#[derive(Debug, Default)]
pub(super) struct Addresses<'a> {
    pub(super) tcp: &'a [SocketAddr],
    pub(super) rdma: &'a [SocketAddr],
    /// The port of the status monitor for datagrams.
    pub(super) monitor: Option<u16>,
}

/// The place of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// The protocol and its port.
    Port(u32, u16),
    /// The network and the address in it.
    Address(&'static str, SocketAddr),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry {
    program: u32,
    version: u32,
    place: Place,
}

impl Entry {
    /// The version of rpcbind's protocol that has such entries.
    fn protocol_version(&self) -> u32 {
        match self.place {
            Place::Port(..) => VERSION_PORTS,
            Place::Address(..) => VERSION_ADDRESSES,
        }
    }

    fn args(&self) -> Vec<u8> {
        let mut args = Vec::new();
        let mut encoder = Encoder::new(&mut args);
        encoder.u32(self.program);
        encoder.u32(self.version);
        match self.place {
            Place::Port(protocol, port) => {
                encoder.u32(protocol);
                encoder.u32(u32::from(port));
            }
            Place::Address(network, address) => {
                encoder.opaque(network.as_bytes());
                encoder.opaque(universal(address).as_bytes());
                encoder.opaque(b"");
            }
        }
        args
    }

    /// True if another program of the host may have the place of this one: the kernel's lock
    /// manager and rpc.statd, if the host is a client of NFSv3 itself.
    fn may_be_taken(&self) -> bool {
        matches!(self.program, nlm4::PROGRAM | nsm1::PROGRAM)
    }

    /// True if rpcbind takes such an entry from every server that it takes any from.
    fn is_plain(&self) -> bool {
        matches!(self.place, Place::Port(..)) && !self.may_be_taken()
    }
}

/// The entries of a server.
fn entries(addresses: &Addresses<'_>) -> Vec<Entry> {
    let find = |all: &[SocketAddr], v6| all.iter().find(|one| one.is_ipv6() == v6).copied();
    let tcp = addresses.tcp.first().map(|first| Place::Port(TCP, first.port()));
    let networks = [
        ("tcp6", find(addresses.tcp, true)),
        ("rdma", find(addresses.rdma, false)),
        ("rdma6", find(addresses.rdma, true)),
    ];
    let others = networks.into_iter().filter_map(|(name, at)| Some(Place::Address(name, at?)));
    let places = tcp.into_iter().chain(others);
    let entry = |place, (program, version)| Entry { program, version, place };
    let mut entries: Vec<_> =
        places.flat_map(|place| PROGRAMS.map(|program| entry(place, program))).collect();
    let monitor = addresses.monitor.map(|port| Place::Port(UDP, port));
    entries.extend(monitor.map(|place| entry(place, (nsm1::PROGRAM, nsm1::VERSION))));
    entries
}

/// An address as rpcbind writes it (RFC 5665 5.2.3.3).
fn universal(address: SocketAddr) -> String {
    let [high, low] = address.port().to_be_bytes();
    format!("{}.{high}.{low}", address.ip())
}

/// The port in such an address.
fn port_of(universal: &[u8]) -> Option<u16> {
    let text = std::str::from_utf8(universal).ok()?;
    let (rest, low) = text.rsplit_once('.')?;
    let (_, high) = rest.rsplit_once('.')?;
    Some(u16::from_be_bytes([high.parse().ok()?, low.parse().ok()?]))
}

/// The entries of one server. They are removed when this is dropped.
pub(super) struct Registration {
    entries: Vec<Entry>,
}

impl Registration {
    /// Registers the addresses, in place of entries that an earlier server left there. On a host
    /// without rpcbind it writes to the log, and the server starts all the same.
    pub(super) fn make(addresses: &Addresses<'_>) -> Option<Self> {
        let (all, mut made) = (entries(addresses), Vec::new());
        let outcome = connect(Ipv4Addr::LOCALHOST.into()).map_err(|error| error.to_string());
        let outcome = outcome.and_then(|rpcbind| {
            // All before any: to remove one for TCP removes that for UDP.
            for entry in &all {
                change(&rpcbind, UNSET, entry)?;
            }
            for entry in &all {
                if change(&rpcbind, SET, entry)? {
                    made.push(*entry);
                } else if entry.is_plain() {
                    return Err("it refused; is the server root?".to_owned());
                }
            }
            Ok(())
        });
        match outcome {
            Ok(()) => warn_of_refused(all.iter().filter(|entry| !made.contains(entry))),
            Err(error) => tracing::warn!("NFS is not registered with rpcbind: {error}"),
        }
        // Those made before an error are removed at the end, too.
        (!made.is_empty()).then_some(Self { entries: made })
    }

    /// Leaves the entries where they are.
    pub(super) fn leave(mut self) {
        self.entries.clear();
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if self.entries.is_empty() {
            return;
        }
        let outcome = connect(Ipv4Addr::LOCALHOST.into()).map_err(|error| error.to_string());
        let outcome = outcome.and_then(|rpcbind| {
            self.entries.iter().try_for_each(|entry| change(&rpcbind, UNSET, entry).map(drop))
        });
        if let Err(error) = outcome {
            tracing::warn!("NFS could not be taken out of rpcbind: {error}");
        }
    }
}

/// Writes to the log, once for each remedy, that rpcbind has refused entries. The others stay.
fn warn_of_refused<'a>(refused: impl Iterator<Item = &'a Entry>) {
    let (ports, networks): (Vec<&Entry>, Vec<&Entry>) =
        refused.partition(|entry| matches!(entry.place, Place::Port(..)));
    if let Some(first) = ports.first() {
        tracing::warn!(
            program = first.program,
            "another program of this host serves locks of NFSv3, perhaps for its own mounts \
             of other servers; NFSv3 clients of this server mount with nolock"
        );
    }
    if let Some(first) = networks.first() {
        tracing::warn!(
            program = first.program, place = ?first.place,
            "rpcbind refuses an entry; NFSv3 clients of that network mount with port= and mountport="
        );
    }
}

/// The settings for calls to other programs of this host and of clients.
pub(super) fn options() -> Options {
    let timeout = Duration::from_secs(2);
    Options { connect_timeout: timeout, call_timeout: timeout, ..Options::default() }
}

fn connect(host: IpAddr) -> io::Result<RpcClient> {
    let address = SocketAddr::new(host, PORT);
    RpcClient::connect(address, options(), None)
        .map_err(|error| io::Error::new(error.kind(), format!("rpcbind at {address}: {error}")))
}

/// Sets or removes one entry. Returns false when rpcbind refuses, does not speak the version for such
/// entries, or there was none to remove.
fn change(rpcbind: &RpcClient, procedure: u32, entry: &Entry) -> Result<bool, String> {
    let version = entry.protocol_version();
    let what = Procedure { program: PROGRAM, version, procedure };
    let results = match rpcbind.call(what, &entry.args()) {
        Ok(results) => results,
        Err(CallError::NotDone(_)) => return Ok(false),
        Err(error) => return Err(error.to_string()),
    };
    Decoder::new(&results).bool().map_err(|error| error.to_string())
}

/// Asks a host for the port of a program over TCP.
///
/// # Errors
/// The host does not answer, or has no such program.
pub(super) fn port_at(host: IpAddr, program: u32, version: u32) -> io::Result<u16> {
    let rpcbind = connect(host)?;
    let place = match host {
        IpAddr::V4(_) => Place::Port(TCP, 0),
        IpAddr::V6(_) => Place::Address("tcp6", SocketAddr::new(host, 0)),
    };
    let entry = Entry { program, version, place };
    let what = Procedure { program: PROGRAM, version: entry.protocol_version(), procedure: GET };
    let results = rpcbind.call(what, &entry.args()).map_err(io::Error::other)?;
    let mut decoder = Decoder::new(&results);
    let port = match place {
        Place::Port(..) => decoder.u32().map(|port| u16::try_from(port).ok()),
        Place::Address(..) => decoder.opaque(ADDRESS_BYTES_MAX).map(port_of),
    };
    let port = port.map_err(io::Error::other)?.filter(|port| *port != 0);
    port.ok_or_else(|| io::Error::other(format!("{host} has no program {program}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_ends_with_its_port() {
        let text = |address: &str| universal(address.parse().unwrap());
        assert_eq!(text("192.0.2.1:2049"), "192.0.2.1.8.1");
        assert_eq!(text("[2001:db8::1]:20049"), "2001:db8::1.78.81");
        assert_eq!(port_of(b"192.0.2.1.8.1"), Some(2049));
        assert_eq!(port_of(b"::.78.81"), Some(20_049));
        for wrong in [&b""[..], b"1", b"1.256", b"::.1.256", b"a.b", b"\xff.1.1"] {
            assert_eq!(port_of(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn each_network_has_all_programs() {
        let tcp: Vec<SocketAddr> = vec!["0.0.0.0:2049".parse().unwrap()];
        let rdma: Vec<SocketAddr> =
            vec!["192.0.2.1:20049".parse().unwrap(), "[::]:20049".parse().unwrap()];
        let all = entries(&Addresses { tcp: &tcp, rdma: &rdma, monitor: Some(2049) });
        assert_eq!(all.len(), 3 * PROGRAMS.len() + 1);
        let of = |program| all.iter().filter(move |entry| entry.program == program);
        let places: Vec<Place> = of(nsm1::PROGRAM).map(|entry| entry.place).collect();
        let expected = [
            Place::Port(TCP, 2049),
            Place::Address("rdma", rdma[0]),
            Place::Address("rdma6", rdma[1]),
            Place::Port(UDP, 2049),
        ];
        assert_eq!(places, expected);
        assert!(of(nlm4::PROGRAM).all(Entry::may_be_taken));
        assert!(!of(nfs3::PROGRAM).any(Entry::may_be_taken));
        // Without one of the others the server goes on.
        let plain: Vec<u32> =
            all.iter().filter(|entry| entry.is_plain()).map(|entry| entry.program).collect();
        let expected = [nfs3::PROGRAM, nfs3::PROGRAM, mount3::PROGRAM, nfs_acl3::PROGRAM];
        assert_eq!(plain, expected);
        assert!(entries(&Addresses::default()).is_empty());
    }

    #[test]
    fn entries_have_their_bytes() {
        let entry = |place| Entry { program: 1, version: 2, place }.args();
        assert_eq!(entry(Place::Port(TCP, 2049)), b"\0\0\0\x01\0\0\0\x02\0\0\0\x06\0\0\x08\x01");
        let address = "192.0.2.1:2049".parse().unwrap();
        let expected = b"\0\0\0\x01\0\0\0\x02\0\0\0\x04rdma\0\0\0\x0d192.0.2.1.8.1\0\0\0\0\0\0\0";
        assert_eq!(entry(Place::Address("rdma", address)), expected);
    }
}
