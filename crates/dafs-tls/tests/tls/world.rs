//! Authorities, certificates of all kinds, and two ends that shake hands.

use dafs_tls::pki::Authority;
use dafs_tls::{
    Channel, ClientFiles, ClientSide, Established, Handshake, HandshakeError, OpenError, Opened,
    Opener, Progress, Protocol, ServerFiles, ServerSide, TransportSecurity, sealed_bytes,
};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, ExtendedKeyUsagePurpose,
    IsCa, Issuer, KeyPair, KeyUsagePurpose, OtherNameValue, RevokedCertParams, SanType,
    SerialNumber, date_time_ymd,
};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// The time of all tests, in seconds since 1970.
pub(crate) const NOW: u64 = 1_800_000_000;

/// Seconds of a day.
pub(crate) const DAY: u64 = 86_400;

/// A folder with an authority, and the ends that trust it.
pub(crate) struct World {
    directory: tempfile::TempDir,
    pub(crate) authority: Authority,
}

/// PEM of a certificate and its key.
pub(crate) struct Pair {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

/// A fault of a client's certificate.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flaw {
    None,
    Ended,
    NotYet,
    NoPurpose,
    ServerPurpose,
}

impl World {
    pub(crate) fn new(name: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        Self { directory, authority: Authority::create(name, NOW).unwrap() }
    }

    /// The world that tests share.
    pub(crate) fn shared() -> &'static Self {
        static WORLD: OnceLock<World> = OnceLock::new();
        WORLD.get_or_init(|| Self::new("the CA"))
    }

    /// Writes a file of mode 0600 whose name does not matter.
    fn put(&self, text: &str) -> PathBuf {
        let directory = tempfile::tempdir_in(self.directory.path()).unwrap().keep();
        let path = directory.join("file.pem");
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        path
    }

    pub(crate) fn server_files(&self, policy: TransportSecurity) -> ServerFiles {
        let names = ["nas.example".to_owned(), "192.0.2.7".to_owned()];
        let pair = self.authority.server(&names, NOW).unwrap();
        ServerFiles {
            certificate: self.put(&pair.certificate),
            key: self.put(&pair.key),
            authorities: Some(self.put(self.authority.certificate())),
            revocations: None,
            policy,
        }
    }

    pub(crate) fn server(&self, policy: TransportSecurity) -> Arc<ServerSide> {
        Arc::new(self.server_files(policy).load(NOW).unwrap())
    }

    /// A server that knows revocation lists.
    pub(crate) fn server_with_lists(&self, lists: &str) -> Arc<ServerSide> {
        let mut files = self.server_files(TransportSecurity::Mtls);
        files.revocations = Some(self.put(lists));
        Arc::new(files.load(NOW).unwrap())
    }

    /// A client that trusts this authority.
    pub(crate) fn client(&self, pair: Option<&Pair>) -> Arc<ClientSide> {
        Arc::new(self.client_files(pair).load(NOW).unwrap())
    }

    /// A client that was configured when its certificate was good: later its own configuration
    /// would refuse the certificate.
    pub(crate) fn client_of_its_time(&self, pair: Option<&Pair>) -> Arc<ClientSide> {
        let files = self.client_files(pair);
        let times = [NOW, NOW - 50 * DAY, NOW + 50 * DAY];
        Arc::new(times.into_iter().find_map(|now| files.load(now).ok()).unwrap())
    }

    fn client_files(&self, pair: Option<&Pair>) -> ClientFiles {
        ClientFiles {
            authorities: self.put(self.authority.certificate()),
            revocations: None,
            certificate: pair.map(|pair| self.put(&pair.certificate)),
            key: pair.map(|pair| self.put(&pair.key)),
        }
    }

    pub(crate) fn issuer(&self) -> Issuer<'static, KeyPair> {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(rcgen::DnType::CommonName, self.name());
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        Issuer::new(params, KeyPair::from_pem(self.authority.key()).unwrap())
    }

    fn name(&self) -> String {
        let own = dafs_tls::Certificate::read(&self.authority.certificate_der()).unwrap();
        own.subject().strip_prefix("CN=").unwrap().to_owned()
    }

    /// A client's certificate with a serial number.
    pub(crate) fn client_pair(&self, serial: u8, flaw: Flaw) -> Pair {
        self.client_pair_of(serial, flaw, &[])
    }

    /// The same with names of users.
    pub(crate) fn client_pair_of(&self, serial: u8, flaw: Flaw, users: &[&str]) -> Pair {
        let at = |seconds: u64| date_time_ymd(1970, 1, 1) + Duration::from_secs(seconds);
        let mut params = CertificateParams::default();
        (params.not_before, params.not_after) = match flaw {
            Flaw::Ended => (at(NOW - 100 * DAY), at(NOW - DAY)),
            Flaw::NotYet => (at(NOW + DAY), at(NOW + 100 * DAY)),
            _ => (at(NOW - DAY), at(NOW + 100 * DAY)),
        };
        params.serial_number = Some(SerialNumber::from_slice(&[serial]));
        params.subject_alt_names = vec![SanType::DnsName("host7.example".try_into().unwrap())];
        params.subject_alt_names.extend(users.iter().map(|user| {
            let value = OtherNameValue::Utf8String((*user).to_owned());
            SanType::OtherName((vec![1, 3, 6, 1, 4, 1, 2238, 1, 1, 1], value))
        }));
        params.extended_key_usages = match flaw {
            Flaw::NoPurpose => Vec::new(),
            Flaw::ServerPurpose => vec![ExtendedKeyUsagePurpose::ServerAuth],
            _ => vec![ExtendedKeyUsagePurpose::ClientAuth],
        };
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer()).unwrap().pem();
        Pair { certificate, key: key.serialize_pem() }
    }

    /// A revocation list with these serial numbers.
    pub(crate) fn revocations(&self, serials: &[u8]) -> String {
        let at = |seconds: u64| date_time_ymd(1970, 1, 1) + Duration::from_secs(seconds);
        let revoked = |serial: &u8| RevokedCertParams {
            serial_number: SerialNumber::from_slice(&[*serial]),
            revocation_time: at(NOW - 60),
            reason_code: None,
            invalidity_date: None,
        };
        let list = CertificateRevocationListParams {
            this_update: at(NOW - 60),
            next_update: at(NOW + DAY),
            crl_number: SerialNumber::from_slice(&[1]),
            issuing_distribution_point: None,
            revoked_certs: serials.iter().map(revoked).collect(),
            key_identifier_method: rcgen::KeyIdMethod::Sha256,
        };
        list.signed_by(&self.issuer()).unwrap().pem().unwrap()
    }
}

/// A root, an authority below it, and a client of that authority.
pub(crate) struct Chain {
    pub(crate) root: String,
    /// The client with both certificates of its chain.
    pub(crate) pair: Pair,
    /// The client with its own certificate alone.
    pub(crate) alone: Pair,
}

impl Chain {
    pub(crate) fn new() -> Self {
        let at = |seconds: u64| date_time_ymd(1970, 1, 1) + Duration::from_secs(seconds);
        let params = |name: &str| {
            let mut params = CertificateParams::default();
            params.distinguished_name = rcgen::DistinguishedName::new();
            params.distinguished_name.push(rcgen::DnType::CommonName, name);
            (params.not_before, params.not_after) = (at(NOW - DAY), at(NOW + DAY));
            params
        };
        let authority = |name: &str| {
            let mut params = params(name);
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
            params
        };
        let way = || {
            let mut params = authority("middle");
            params.not_after = at(NOW + DAY / 2);
            params
        };
        let (root_key, middle_key) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
        let root = authority("root").self_signed(&root_key).unwrap().pem();
        let root_issuer = Issuer::new(authority("root"), root_key);
        let middle = way().signed_by(&middle_key, &root_issuer).unwrap().pem();
        let middle_issuer = Issuer::new(way(), middle_key);
        let key = KeyPair::generate().unwrap();
        let mut client = params("host");
        client.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let own = client.signed_by(&key, &middle_issuer).unwrap().pem();
        let pair = |certificate: String| Pair { certificate, key: key.serialize_pem() };
        Self { root, pair: pair(format!("{own}{middle}")), alone: pair(own) }
    }
}

/// A client and a server of the shared world that speak RPC.
pub(crate) fn ends(policy: TransportSecurity, pair: Option<&Pair>) -> (Handshake, Handshake) {
    let world = World::shared();
    let client = Handshake::client(&world.client(pair), "nas.example", Protocol::Rpc, NOW);
    let server = Handshake::server(&world.server(policy), &[Protocol::Rpc], NOW);
    (client.unwrap(), server.unwrap())
}

/// How a handshake ended for each end; none if it still waits.
pub(crate) type Ends = (Option<Result<(), HandshakeError>>, Option<Result<(), HandshakeError>>);

/// Bytes on their way, in both directions.
#[derive(Default)]
pub(crate) struct Wires {
    pub(crate) to_server: Vec<u8>,
    pub(crate) to_client: Vec<u8>,
}

/// Lets one end step, and takes its output.
fn advance(end: &mut Handshake, wire: &mut Vec<u8>) -> Option<Result<(), HandshakeError>> {
    let outcome = match end.step() {
        Ok(Progress::Reading) => None,
        Ok(Progress::Done) => Some(Ok(())),
        Err(error) => Some(Err(error)),
    };
    wire.extend(end.take_output());
    outcome
}

/// Moves a piece of a wire to an end, as much as it takes. False if nothing moved.
fn carry(wire: &mut Vec<u8>, end: &mut Handshake, piece_bytes: usize) -> bool {
    let taken = end.feed(&wire[..piece_bytes.min(wire.len())]);
    wire.drain(..taken);
    taken > 0
}

/// Lets two ends shake hands over `wires`, in pieces of the sizes that `next` says.
pub(crate) fn shake(
    client: &mut Handshake,
    server: &mut Handshake,
    wires: &mut Wires,
    mut next: impl FnMut() -> usize,
) -> Ends {
    loop {
        let to_server = &mut wires.to_server;
        let at_client = advance(client, to_server);
        let at_server = advance(server, &mut wires.to_client);
        let down = carry(&mut wires.to_client, client, next());
        let up = carry(&mut wires.to_server, server, next());
        if !down && !up && !client.is_due() && !server.is_due() {
            return (at_client, at_server);
        }
    }
}

/// Shakes hands with large pieces, and expects success.
pub(crate) fn establish(
    mut client: Handshake,
    mut server: Handshake,
) -> (Established, Established) {
    let mut wires = Wires::default();
    let ends = shake(&mut client, &mut server, &mut wires, || 100_000);
    assert_eq!(ends, (Some(Ok(())), Some(Ok(()))));
    assert!(wires.to_client.is_empty() && wires.to_server.is_empty());
    (client.finish().unwrap(), server.finish().unwrap())
}

/// The channels of two established ends.
pub(crate) fn channels(ends: (Established, Established)) -> (Channel, Channel) {
    (Channel::new(ends.0.keys), Channel::new(ends.1.keys))
}

/// Sends data from one channel to the other.
pub(crate) fn send(
    from: &mut Channel,
    to: &mut Channel,
    data: &[u8],
) -> Result<Vec<u8>, OpenError> {
    let mut wire = vec![0; sealed_bytes(data.len())];
    from.sealer.seal(&[data], &mut wire).unwrap();
    open_all(to, &mut wire)
}

/// Opens all records of a wire, and returns their data.
pub(crate) fn open_all(to: &mut Channel, mut wire: &mut [u8]) -> Result<Vec<u8>, OpenError> {
    let mut data = Vec::new();
    while !wire.is_empty() {
        let bytes = Opener::record_bytes(wire)?.unwrap();
        let (record, rest) = wire.split_at_mut(bytes);
        match to.opener.open(record)? {
            Opened::Data(plain) => data.extend_from_slice(plain),
            Opened::Nothing | Opened::Closed => {}
        }
        wire = rest;
    }
    Ok(data)
}
