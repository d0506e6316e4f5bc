//! The addresses and credentials that an export admits.

use dafs_tls::TransportSecurity;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// A range of network addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddressRange {
    address: IpAddr,
    prefix_bits: u8,
}

impl AddressRange {
    /// Both loopback ranges.
    pub fn loopback() -> [Self; 2] {
        [
            Self { address: IpAddr::V4(Ipv4Addr::new(127, 0, 0, 0)), prefix_bits: 8 },
            Self { address: IpAddr::V6(Ipv6Addr::LOCALHOST), prefix_bits: 128 },
        ]
    }

    /// True when `address` lies inside.
    pub fn contains(&self, address: IpAddr) -> bool {
        let (own, other, width) = match (self.address, address.to_canonical()) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                (u128::from(own.to_bits()), u128::from(other.to_bits()), 32)
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => (own.to_bits(), other.to_bits(), 128),
            _ => return false,
        };
        let ignored = width - u32::from(self.prefix_bits);
        own.checked_shr(ignored).unwrap_or(0) == other.checked_shr(ignored).unwrap_or(0)
    }
}

impl AddressRange {
    /// Returns the same range, named by its first address.
    pub fn network(self) -> Self {
        let address = match self.address {
            IpAddr::V4(address) => {
                let ignored = 32 - u32::from(self.prefix_bits);
                let bits = address.to_bits().checked_shr(ignored).unwrap_or(0);
                IpAddr::V4(Ipv4Addr::from_bits(bits.checked_shl(ignored).unwrap_or(0)))
            }
            IpAddr::V6(address) => {
                let ignored = 128 - u32::from(self.prefix_bits);
                let bits = address.to_bits().checked_shr(ignored).unwrap_or(0);
                IpAddr::V6(Ipv6Addr::from_bits(bits.checked_shl(ignored).unwrap_or(0)))
            }
        };
        Self { address, ..self }
    }

    /// True when some address lies in both.
    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        self.contains(other.address) || other.contains(self.address)
    }
}

impl FromStr for AddressRange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let remedy =
            || format!("{text:?} is no address range; write 192.0.2.0/24 or 2001:db8::/32");
        let (address, bits) = text.split_once('/').map_or((text, None), |(a, b)| (a, Some(b)));
        let address: IpAddr = address.parse().map_err(|_| remedy())?;
        let width = if address.is_ipv4() { 32 } else { 128 };
        let prefix_bits = bits.map_or(Ok(width), |bits| bits.parse().map_err(|_| remedy()))?;
        if prefix_bits > width { Err(remedy()) } else { Ok(Self { address, prefix_bits }) }
    }
}

impl fmt::Display for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix_bits)
    }
}

/// The security flavour of an RPC call (RFC 5531 8.2; RFC 2203 and 2623 for those of Kerberos).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flavour {
    /// AUTH_NONE: no user.
    None,
    /// AUTH_SYS: user and groups, unproven.
    Sys,
    /// RPCSEC_GSS with Kerberos: the user is proven, the header is protected.
    Krb5,
    /// The same with a MIC over arguments and results.
    Krb5i,
    /// The same with arguments and results encrypted.
    Krb5p,
}

impl Flavour {
    /// All flavours, the weakest first.
    pub const ALL: [Self; 5] = [Self::None, Self::Sys, Self::Krb5, Self::Krb5i, Self::Krb5p];

    /// The name in configurations.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Sys => "sys",
            Self::Krb5 => "krb5",
            Self::Krb5i => "krb5i",
            Self::Krb5p => "krb5p",
        }
    }

    /// True if a caller proves its user, so that its port and address prove nothing more.
    pub fn is_proven(self) -> bool {
        !matches!(self, Self::None | Self::Sys)
    }
}

impl FromStr for Flavour {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|flavour| flavour.name() == text);
        found.ok_or_else(|| {
            format!("{text:?} is no security flavour; use {}", Self::ALL.map(Self::name).join(", "))
        })
    }
}

/// The callers that an export admits through the NFS front ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Admits {
    /// Networks of admitted callers.
    pub networks: Vec<AddressRange>,
    /// The admitted flavours, in the order of preference that clients are told. Callers with
    /// AUTH_NONE are the anonymous user, or the user whom the certificate of their connection names.
    pub flavours: Vec<Flavour>,
    /// Admits unproven callers from ports from 1024 up, which every user of the caller's host may
    /// use.
    pub unprivileged_ports: bool,
    /// The least protection of a connection. It holds for DAFS sessions, too.
    pub transport_security: TransportSecurity,
}

impl Default for Admits {
    fn default() -> Self {
        let networks = AddressRange::loopback().to_vec();
        let transport_security = TransportSecurity::None;
        let flavours = vec![Flavour::Sys];
        Self { networks, flavours, unprivileged_ports: false, transport_security }
    }
}

/// The protection of a DAFS session, as the exports see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionProof {
    /// Its client is vouched for by its host or by a password, or not at all.
    Unproven,
    /// Its client has proven a principal by GSS, on a channel that others may read and change.
    Proven,
    /// The same on a channel that no other user reaches.
    ProvenInPrivate,
}

impl SessionProof {
    /// The same proof for a channel that others may read and change.
    #[must_use]
    pub fn in_the_clear(self) -> Self {
        if self == Self::ProvenInPrivate { Self::Proven } else { self }
    }

    /// True if the session has what a flavour stands for.
    fn satisfies(self, flavour: Flavour) -> bool {
        match flavour {
            Flavour::None | Flavour::Sys => true,
            Flavour::Krb5 => self != Self::Unproven,
            Flavour::Krb5i | Flavour::Krb5p => self == Self::ProvenInPrivate,
        }
    }
}

impl Admits {
    /// True if callers must prove their users: no other flavour is admitted.
    pub fn demands_proof(&self) -> bool {
        !self.flavours.is_empty() && self.flavours.iter().all(|flavour| flavour.is_proven())
    }

    /// True if a DAFS session has what the flavours demand. Networks and ports are rules for the NFS
    /// front ends alone.
    pub fn admits_session(&self, proof: SessionProof) -> bool {
        !self.demands_proof() || self.flavours.iter().any(|flavour| proof.satisfies(*flavour))
    }

    /// Returns rules that admit every caller that one of `all` admits, and some more: each property
    /// is the union over `all`. They serve a directory that leads to all of them and holds nothing
    /// itself.
    pub(crate) fn any_of<'a>(all: impl Iterator<Item = &'a Self>) -> Self {
        let nobody = Self {
            networks: Vec::new(),
            flavours: Vec::new(),
            unprivileged_ports: false,
            transport_security: TransportSecurity::Mtls,
        };
        all.fold(nobody, |mut any, one| {
            any.networks.extend(&one.networks);
            for flavour in &one.flavours {
                if !any.flavours.contains(flavour) {
                    any.flavours.push(*flavour);
                }
            }
            any.unprivileged_ports |= one.unprivileged_ports;
            any.transport_security = any.transport_security.min(one.transport_security);
            any
        })
    }

    /// True if a connection of this protection is enough.
    pub fn is_secure_enough(&self, security: TransportSecurity) -> bool {
        security >= self.transport_security
    }

    /// True if a caller of this flavour at this address is admitted. `privileged` says that the
    /// port, or the kernel of this host, vouches for the caller.
    pub fn admits(&self, address: IpAddr, flavour: Flavour, privileged: bool) -> bool {
        self.flavours.contains(&flavour) && self.reaches(address, flavour.is_proven(), privileged)
    }

    /// True if callers at this address, proven or not, may use some flavour.
    pub fn reaches(&self, address: IpAddr, proven: bool, privileged: bool) -> bool {
        let is_proof_enough = proven && self.flavours.iter().any(|flavour| flavour.is_proven());
        !self.flavours.is_empty()
            && (privileged || self.unprivileged_ports || is_proof_enough)
            && self.networks.iter().any(|range| range.contains(address))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_compare_by_prefix() {
        let range: AddressRange = "192.0.2.0/24".parse().unwrap();
        assert!(range.contains("192.0.2.255".parse().unwrap()));
        assert!(range.contains("::ffff:192.0.2.1".parse().unwrap()));
        assert!(!range.contains("192.0.3.0".parse().unwrap()));
        let all: AddressRange = "::/0".parse().unwrap();
        assert!(all.contains("2001:db8::1".parse().unwrap()));
        assert!(!all.contains("127.0.0.1".parse().unwrap()));
    }

    #[test]
    fn a_session_needs_what_one_of_the_flavours_stands_for() {
        use SessionProof::{Proven, ProvenInPrivate, Unproven};
        let with = |flavours: &[Flavour]| {
            let admits = Admits { flavours: flavours.to_vec(), ..Admits::default() };
            [Unproven, Proven, ProvenInPrivate].map(|proof| admits.admits_session(proof))
        };
        assert_eq!(with(&[]), [true; 3], "an export without NFS");
        assert_eq!(with(&[Flavour::Sys]), [true; 3]);
        assert_eq!(with(&[Flavour::Krb5p, Flavour::Sys]), [true; 3]);
        assert_eq!(with(&[Flavour::Krb5p, Flavour::Krb5]), [false, true, true]);
        assert_eq!(with(&[Flavour::Krb5i]), [false, false, true]);
        assert_eq!(with(&[Flavour::Krb5p]), [false, false, true]);
    }

    #[test]
    fn a_directory_of_exports_is_as_open_as_the_most_open_export() {
        let with = |transport_security| Admits { transport_security, ..Admits::default() };
        let least = |all: &[TransportSecurity]| {
            let all: Vec<_> = all.iter().map(|level| with(*level)).collect();
            Admits::any_of(all.iter()).transport_security
        };
        use TransportSecurity::{Mtls, None, Tls};
        assert_eq!(least(&[Mtls, Tls]), Tls);
        assert_eq!(least(&[Mtls, None, Tls]), None);
        assert_eq!(least(&[Mtls]), Mtls);
        let enough = |least| [None, Tls, Mtls].map(|level| with(least).is_secure_enough(level));
        assert_eq!(enough(None), [true; 3]);
        assert_eq!(enough(Tls), [false, true, true]);
        assert_eq!(enough(Mtls), [false, false, true]);
    }

    #[test]
    fn by_default_only_this_host_is_admitted() {
        let admits = Admits::default();
        let (here, there) = ("127.0.0.1".parse().unwrap(), "192.0.2.1".parse().unwrap());
        assert!(admits.admits(here, Flavour::Sys, true));
        assert!(!admits.admits(here, Flavour::Sys, false));
        assert!(!admits.admits(here, Flavour::None, true));
        assert!(!admits.admits(there, Flavour::Sys, true));
        let proven = Admits { flavours: vec![Flavour::Krb5i], ..Admits::default() };
        assert!(proven.admits(here, Flavour::Krb5i, false));
        assert!(
            ![Flavour::Sys, Flavour::Krb5, Flavour::Krb5p]
                .map(|it| proven.admits(here, it, true))
                .contains(&true)
        );
        let open = Admits { networks: vec!["192.0.2.0/24".parse().unwrap()], ..admits };
        assert!(open.admits(there, Flavour::Sys, true) && !open.admits(here, Flavour::Sys, true));
    }
}
