//! NFSv3 and MOUNT with Kerberos, as a stock client uses them: a real KDC, the system's library on
//! both sides, and calls that are made by hand, over TCP and RDMA.

mod rdma;

use self::rdma::Rdma;
use crate::common::{Running, pattern};
use dafs_gss::library::{Credentials, Initiator};
use dafs_gss::mechanism::{Initiate, ServiceName, Step, Wanted};
use dafs_gss::token::{Keys, Parts};
use dafs_server::KerberosConfig;
use dafs_service::{Flavour, Pattern, Rule, Rules, TransportSecurity, UserOf};
use dafs_testkit::realm::Realm;
use dafs_wire::rpc::gss::{
    Credential, InitArgs, InitResults, IntegrityBody, PrivacyBody, Protected, ProtectedData,
    Service,
};
use dafs_wire::rpc::{
    AcceptStatus, AuthFlavor, CallHeader, FragmentMark, OpaqueAuth, ReplyHeader, ReplyStatus,
};
use dafs_wire::xdr::{Decoder, Encode, Encoder};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

const MOUNT: (u32, u32) = (100_005, 3);
const NFS: (u32, u32) = (100_003, 3);
const ACCES: u32 = 13;

/// A connection over TCP, in the clear or in TLS.
pub(crate) trait Line: Read + Write {}

impl<T: Read + Write> Line for T {}

/// A connection to the server.
enum Way {
    Tcp(Box<dyn Line>),
    Rdma(Box<Rdma>),
}

impl Way {
    /// Sends a message, and returns the reply.
    fn send(&mut self, message: &[u8]) -> Vec<u8> {
        match self {
            Self::Tcp(stream) => {
                stream.write_all(&FragmentMark::whole(message.len()).unwrap().to_bytes()).unwrap();
                stream.write_all(message).unwrap();
                receive(stream)
            }
            Self::Rdma(rdma) => rdma.send(message),
        }
    }
}

/// A client with a context.
pub(crate) struct Client {
    way: Way,
    handle: Vec<u8>,
    keys: Option<Keys>,
    sequence: u32,
}

impl Client {
    pub(crate) fn new(
        server: SocketAddr,
        realm: &Realm,
        user: &str,
        service: &ServiceName,
    ) -> Self {
        Self::over(Way::Tcp(Box::new(TcpStream::connect(server).unwrap())), realm, user, service)
    }

    /// Establishes a context over this connection.
    fn over(way: Way, realm: &Realm, user: &str, service: &ServiceName) -> Self {
        let (path, principal) = (realm.path(&format!("{user}.keytab")), None);
        let initiator = Initiator::new(Credentials::Keytab { path, principal }).unwrap();
        let mut client = Self { way, handle: Vec::new(), keys: None, sequence: 0 };
        let wanted = Wanted { target: service, mutual: true, bindings: None };
        let Step::Continue { pending, token } = initiator.initiate(None, &wanted, &[]) else {
            panic!("no token")
        };
        let args = InitArgs { token: &token }.encoded();
        let reply = client.send(NFS, 0, Credential::Init, &args);
        let (_, results) = accepted(&reply).unwrap();
        let answer: InitResults<'_> = Decoder::new(results).value().unwrap();
        let InitResults::Complete { handle, token, .. } = answer else { panic!("{answer:?}") };
        client.handle = handle.to_vec();
        let Step::Done(done) = initiator.initiate(Some(pending), &wanted, token) else {
            panic!("the server did not prove itself")
        };
        client.keys = Some(done.keys);
        client
    }

    /// Sends a call, and returns its reply.
    fn send(
        &mut self,
        (program, version): (u32, u32),
        procedure: u32,
        credential: Credential<'_>,
        body: &[u8],
    ) -> Vec<u8> {
        let credential = credential.encoded();
        let header = CallHeader {
            xid: 100 + self.sequence,
            program,
            version,
            procedure,
            credential: OpaqueAuth { flavor: AuthFlavor::RPCSEC_GSS, body: &credential },
            verifier: OpaqueAuth::NONE,
        };
        let mut message = header.encoded();
        if let Some(keys) = &self.keys {
            message.truncate(header.bytes_to_verifier());
            let mut mic = vec![0; keys.enctype().mic_len()];
            keys.mic(&message[..], &mut mic).unwrap();
            let verifier = OpaqueAuth { flavor: AuthFlavor::RPCSEC_GSS, body: &mic };
            Encoder::new(&mut message).value(&verifier);
        }
        message.extend_from_slice(body);
        self.way.send(&message)
    }

    /// Calls, and returns the results, or `None` if the call was denied.
    pub(crate) fn call(
        &mut self,
        program: (u32, u32),
        procedure: u32,
        service: Service,
        args: &[u8],
    ) -> Option<Vec<u8>> {
        self.sequence += 1;
        let (sequence, handle) = (self.sequence, self.handle.clone());
        let credential = Credential::Data(Protected { handle: &handle, sequence, service });
        let plain = [&sequence.to_be_bytes()[..], args].concat();
        let keys = self.keys.as_ref().unwrap();
        let mut body = Vec::new();
        let mut encoder = Encoder::new(&mut body);
        match service {
            Service::None => encoder.raw(args),
            Service::Integrity => {
                let mut mic = vec![0; keys.enctype().mic_len()];
                keys.mic(&plain[..], &mut mic).unwrap();
                encoder.opaque(&plain);
                encoder.opaque(&mic);
            }
            Service::Privacy => {
                let mut token = vec![0; keys.enctype().sealed_len(plain.len())];
                keys.seal(&plain[..], &mut token).unwrap();
                PrivacyBody { token: &token }.encode(&mut encoder);
            }
        }
        let reply = self.send(program, procedure, credential, &body);
        let (verifier, results) = accepted(&reply)?;
        let keys = self.keys.as_ref().unwrap();
        keys.verify_mic(&sequence.to_be_bytes()[..], verifier).unwrap();
        let mut opened = vec![0; results.len()];
        let content = match service {
            Service::None => return Some(results.to_vec()),
            Service::Integrity => {
                let body = IntegrityBody::from_bytes(results).unwrap();
                keys.verify_mic(Parts::new(&[body.covered()]), body.mic()).unwrap();
                body.content()
            }
            Service::Privacy => {
                let body = PrivacyBody::from_bytes(results).unwrap();
                let len = keys.open(body.token, &mut opened).unwrap();
                ProtectedData::from_bytes(&opened[..len]).unwrap()
            }
        };
        assert_eq!(content.sequence, sequence);
        Some(content.data.to_vec())
    }

    /// Makes a file, and returns the status of NFSv3.
    fn create(&mut self, service: Service, root: &[u8], name: &str) -> u32 {
        let mut args = Vec::new();
        let mut encoder = Encoder::new(&mut args);
        encoder.opaque(root);
        encoder.opaque(name.as_bytes());
        // UNCHECKED, a mode, and nothing else.
        [0, 1, 0o640, 0, 0, 0, 0, 0].into_iter().for_each(|word| encoder.u32(word));
        status(&self.call(NFS, 8, service, &args).unwrap())
    }

    /// Writes bytes to a file of this name, and reads them.
    fn write_and_read(&mut self, service: Service, root: &[u8], name: &str, bytes: &[u8]) {
        let mut args = Vec::new();
        let mut encoder = Encoder::new(&mut args);
        encoder.opaque(root);
        encoder.opaque(name.as_bytes());
        let results = self.call(NFS, 3, service, &args).unwrap();
        let mut decoder = Decoder::new(&results);
        assert_eq!(decoder.u32().unwrap(), 0, "LOOKUP");
        let file = decoder.opaque(64).unwrap().to_vec();
        let mut args = Vec::new();
        let mut encoder = Encoder::new(&mut args);
        encoder.opaque(&file);
        // The offset, the length, UNSTABLE.
        [0, 0, bytes.len() as u32, 0].into_iter().for_each(|word| encoder.u32(word));
        encoder.opaque(bytes);
        assert_eq!(status(&self.call(NFS, 7, service, &args).unwrap()), 0, "WRITE");
        let mut args = Vec::new();
        let mut encoder = Encoder::new(&mut args);
        encoder.opaque(&file);
        [0, 0, bytes.len() as u32].into_iter().for_each(|word| encoder.u32(word));
        let results = self.call(NFS, 6, service, &args).unwrap();
        assert_eq!(status(&results), 0, "READ");
        // The data is last.
        assert!(results.ends_with(bytes), "other bytes were read");
    }

    /// GETATTR. Returns its status, or `None` if the call was denied.
    fn getattr(&mut self, service: Service, handle: &[u8]) -> Option<u32> {
        let mut args = Vec::new();
        Encoder::new(&mut args).opaque(handle);
        self.call(NFS, 1, service, &args).map(|results| status(&results))
    }
}

/// Reads a record.
fn receive(stream: &mut impl Read) -> Vec<u8> {
    let mut mark = [0; 4];
    stream.read_exact(&mut mark).unwrap();
    let mut record = vec![0; (u32::from_be_bytes(mark) & 0x7fff_ffff) as usize];
    stream.read_exact(&mut record).unwrap();
    record
}

fn status(results: &[u8]) -> u32 {
    Decoder::new(results).u32().unwrap()
}

/// The verifier and the results of a successful reply; `None` for a denied call.
fn accepted(reply: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut decoder = Decoder::new(reply);
    let header: ReplyHeader<'_> = decoder.value().unwrap();
    match header.status {
        ReplyStatus::Accepted { verifier, status: AcceptStatus::Success } => {
            Some((verifier.body, decoder.rest()))
        }
        ReplyStatus::Denied(_) => None,
        other => panic!("{other:?}"),
    }
}

/// Writes and reads the files of the test over RDMA, in the context of TCP.
fn files_over_rdma(client: &mut Client, rdma: Way, exported: &Path, root: &[u8]) {
    let tcp = std::mem::replace(&mut client.way, rdma);
    for (service, name) in [(Service::Privacy, "private"), (Service::Integrity, "whole")] {
        assert_eq!(client.getattr(service, root), Some(0));
        for len in [16, 100_000, 1 << 20] {
            client.write_and_read(service, root, name, &pattern(len, 7));
        }
        assert_eq!(std::fs::metadata(exported.join(name)).unwrap().len(), 1 << 20);
    }
    client.way = tcp;
}

pub(crate) const CASES: &[(&str, &[&str])] = &[(
    "all",
    &[
        "aes256-cts-hmac-sha384-192",
        "aes128-cts-hmac-sha256-128",
        "aes256-cts-hmac-sha1-96",
        "aes128-cts-hmac-sha1-96",
    ],
)];

#[test]
fn proven_users_work_by_the_flavours_of_the_export() {
    let test = "kerberos::proven_users_work_by_the_flavours_of_the_export";
    let Some((realm, _)) = Realm::again(test, CASES) else { return };
    let is_root = rustix::process::geteuid().is_root();
    let anna = if is_root { 4711 } else { rustix::process::geteuid().as_raw() };
    let nfs = ServiceName::new("nfs", "localhost").unwrap();
    let server = Running::new(|config| {
        let pattern: Pattern = "anna@TEST.DAFS".parse().unwrap();
        let rule = Rule { pattern, user: UserOf::Number(anna, 100), trusted: false };
        let rules = Rules { rules: vec![rule], default_realm: None };
        let keytab = realm.path("server.keytab");
        let dafs = ServiceName::new("dafs", "localhost").unwrap();
        let nfs = nfs.clone();
        config.kerberos = Some(KerberosConfig { keytab, nfs, dafs, dafs_in_clear: false, rules });
        let export = &mut config.exports[0];
        export.name = "data".to_owned();
        export.options.admits.flavours = vec![Flavour::Krb5p, Flavour::Krb5i];
    });
    if is_root {
        std::os::unix::fs::chown(server.path(), Some(anna), None).unwrap();
    }
    let address = server.server().nfs_addresses()[0];
    let mut client = Client::new(address, &realm, "anna", &nfs);

    let mut path = Vec::new();
    Encoder::new(&mut path).opaque(b"/data");
    let mounted = client.call(MOUNT, 1, Service::Integrity, &path).unwrap();
    let mut decoder = Decoder::new(&mounted);
    assert_eq!(decoder.u32().unwrap(), 0, "the mount was refused");
    let root = decoder.opaque(64).unwrap().to_vec();
    let flavors: Vec<u32> = (0..decoder.u32().unwrap()).map(|_| decoder.u32().unwrap()).collect();
    assert_eq!(flavors, [390_005, 390_004]);

    for (service, name) in [(Service::Privacy, "private"), (Service::Integrity, "whole")] {
        assert_eq!(client.create(service, &root, name), 0, "{name}");
        assert_eq!(std::fs::metadata(server.path().join(name)).unwrap().uid(), anna);
        assert_eq!(client.getattr(service, &root), Some(0));
    }
    let rdma = || Way::Rdma(Box::new(Rdma::new(server.server().nfs_rdma_addresses()[0])));
    files_over_rdma(&mut client, rdma(), server.path(), &root);
    let mut other = Client::over(rdma(), &realm, "anna", &nfs);
    assert_eq!(other.create(Service::Privacy, &root, "over RDMA"), 0);
    // The export demands more than a header that is protected.
    assert_ne!(client.getattr(Service::None, &root), Some(0));
    // A user without a rule is nobody.
    let mut bert = Client::new(address, &realm, "bert", &nfs);
    assert_eq!(bert.getattr(Service::Privacy, &root), Some(0));
    if is_root {
        assert_eq!(bert.create(Service::Privacy, &root, "of bert"), ACCES);
    }
    // A context of one user is no context of another: its MICs are others.
    bert.handle.clone_from(&client.handle);
    assert_eq!(bert.getattr(Service::Privacy, &root), None);
    assert_claims_are_refused(address, &root);
}

/// Without a context there is nothing.
fn assert_claims_are_refused(address: SocketAddr, root: &[u8]) {
    let mut sys = Vec::new();
    let header = CallHeader {
        xid: 1,
        program: NFS.0,
        version: NFS.1,
        // FSSTAT. GETATTR of the root is open to claims.
        procedure: 18,
        credential: OpaqueAuth { flavor: AuthFlavor::SYS, body: &[0; 20] },
        verifier: OpaqueAuth::NONE,
    };
    header.encode(&mut Encoder::new(&mut sys));
    Encoder::new(&mut sys).opaque(root);
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(&FragmentMark::whole(sys.len()).unwrap().to_bytes()).unwrap();
    stream.write_all(&sys).unwrap();
    let reply = receive(&mut stream);
    let refused = accepted(&reply).is_none_or(|(_, results)| status(results) != 0);
    assert!(refused, "a claim was believed");
}

/// A connection has the user of its certificate, and a context inside it has its own principal.
#[test]
fn a_proven_user_keeps_its_name_in_the_connection_of_another() {
    let test = "kerberos::a_proven_user_keeps_its_name_in_the_connection_of_another";
    let Some((realm, _)) = Realm::again(test, CASES) else { return };
    let me = rustix::process::geteuid();
    let [anna, bert] = [4711, 4712].map(|uid| if me.is_root() { uid } else { me.as_raw() });
    let nfs = ServiceName::new("nfs", "localhost").unwrap();
    let pki = crate::tls::Pki::new();
    let server = Running::new(|config| {
        let rules = vec![crate::tls_users::rule("anna@TEST.DAFS", anna)];
        let rules = Rules { rules, default_realm: None };
        let keytab = realm.path("server.keytab");
        let (nfs, dafs) = (nfs.clone(), ServiceName::new("dafs", "localhost").unwrap());
        config.kerberos = Some(KerberosConfig { keytab, nfs, dafs, dafs_in_clear: false, rules });
        config.tls = Some(pki.server_files());
        // A rule for one kind of name is none for the other.
        config.certificate_users = vec![
            crate::tls_users::rule("anna@TEST.DAFS", 0),
            crate::tls_users::rule("bert@example.org", bert),
        ];
        let export = &mut config.exports[0];
        export.name = "data".to_owned();
        export.options.admits.flavours = vec![Flavour::Krb5, Flavour::Sys];
        export.options.admits.transport_security = TransportSecurity::Mtls;
    });
    std::fs::set_permissions(server.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777))
        .unwrap();
    let address = server.server().nfs_addresses()[0];
    let own = pki.client_of("bert@example.org");
    let line = pki.foreign_as(address, Some(&own));
    let mut client = Client::over(Way::Tcp(Box::new(line)), &realm, "anna", &nfs);
    let mut path = Vec::new();
    Encoder::new(&mut path).opaque(b"/data");
    let mounted = client.call(MOUNT, 1, Service::None, &path).unwrap();
    let mut decoder = Decoder::new(&mounted);
    assert_eq!(decoder.u32().unwrap(), 0, "the mount was refused");
    let root = decoder.opaque(64).unwrap().to_vec();
    for round in 0..2 {
        let (proven, claimed) = (format!("proven {round}"), format!("claimed {round}"));
        assert_eq!(client.create(Service::None, &root, &proven), 0);
        assert_eq!(std::fs::metadata(server.path().join(proven)).unwrap().uid(), anna);
        // A claim of root beside it is the user of the certificate.
        let header = CallHeader {
            xid: 7 + round,
            program: NFS.0,
            version: NFS.1,
            procedure: 8,
            credential: OpaqueAuth { flavor: AuthFlavor::SYS, body: &[0; 20] },
            verifier: OpaqueAuth::NONE,
        };
        let mut message = header.encoded();
        let mut encoder = Encoder::new(&mut message);
        encoder.opaque(&root);
        encoder.opaque(claimed.as_bytes());
        [0, 1, 0o640, 0, 0, 0, 0, 0].into_iter().for_each(|word| encoder.u32(word));
        let reply = client.way.send(&message);
        assert_eq!(status(accepted(&reply).unwrap().1), 0);
        assert_eq!(std::fs::metadata(server.path().join(claimed)).unwrap().uid(), bert);
    }
}

#[test]
fn proven_users_work_inside_tls() {
    let test = "kerberos::proven_users_work_inside_tls";
    let Some((realm, _)) = Realm::again(test, CASES) else { return };
    let own = rustix::process::geteuid().as_raw();
    let nfs = ServiceName::new("nfs", "localhost").unwrap();
    let pki = crate::tls::Pki::new();
    let server = Running::new(|config| {
        let pattern: Pattern = "anna@TEST.DAFS".parse().unwrap();
        let rule = Rule { pattern, user: UserOf::Number(own, 100), trusted: false };
        let rules = Rules { rules: vec![rule], default_realm: None };
        let keytab = realm.path("server.keytab");
        let (nfs, dafs) = (nfs.clone(), ServiceName::new("dafs", "localhost").unwrap());
        config.kerberos = Some(KerberosConfig { keytab, nfs, dafs, dafs_in_clear: false, rules });
        config.tls = Some(pki.server_files());
        let export = &mut config.exports[0];
        export.name = "data".to_owned();
        export.options.admits.flavours = vec![Flavour::Krb5];
        export.options.admits.transport_security = TransportSecurity::Tls;
    });
    let address = server.server().nfs_addresses()[0];
    let mut path = Vec::new();
    Encoder::new(&mut path).opaque(b"/data");
    let mut inside = Client::over(Way::Tcp(Box::new(pki.foreign(address))), &realm, "anna", &nfs);
    let mounted = inside.call(MOUNT, 1, Service::None, &path).unwrap();
    let mut decoder = Decoder::new(&mounted);
    assert_eq!(decoder.u32().unwrap(), 0, "the mount was refused");
    let root = decoder.opaque(64).unwrap().to_vec();
    assert_eq!(inside.create(Service::None, &root, "whole"), 0);
    // A context may be made in the clear, and nothing may be done with it there.
    let mut outside = Client::new(address, &realm, "anna", &nfs);
    assert_ne!(outside.getattr(Service::None, &root), Some(0));
    // Inside, the context of the other connection is as good.
    inside.handle = outside.handle;
    (inside.keys, inside.sequence) = (outside.keys, outside.sequence);
    assert_eq!(inside.getattr(Service::None, &root), Some(0));
}
