//! Calls of RPCSEC_GSS with compounds of version 4.1, byte by byte: the cases GSS1 to GSS8 that the
//! suite pynfs has for version 4.0, and calls of several contexts.
//!
//! Each refused call has the SEQUENCE that is next. An honest call with that SEQUENCE follows: it would be
//! a false retry if the server had carried the attack out.

use super::toy::{self, Client, ToyKeys};
use super::{ALL, world};
use crate::common::*;
use dafs_rpc::client::Procedure;
use dafs_rpc::server::Config;
use dafs_rpc::{AcceptStatus, AuthStatus, AuthSys, Groups, LocalConnection, LocalEnding};
use dafs_service::Flavour;
use dafs_wire::nfs4::*;
use dafs_wire::rpc::gss::{Credential, InitArgs, InitResults, SEQUENCE_MAX, Service};
use dafs_wire::rpc::{
    AuthFlavor, CallHeader, FragmentMark, OpaqueAuth, RejectStatus, ReplyHeader, ReplyStatus,
};
use dafs_wire::xdr::{Decoder, Encode};

const SERVICES: [Service; 3] = [Service::None, Service::Integrity, Service::Privacy];
const COMPOUND: Procedure = Procedure {
    program: limits::PROGRAM,
    version: limits::VERSION,
    procedure: limits::PROCEDURE_COMPOUND,
};
pub(super) const ROOT: Op<'static> = Op::Putrootfh(PutrootfhArgs);
const BAD_CREDENTIAL: AuthStatus = AuthStatus::BadCredential;
const CREDENTIAL_PROBLEM: AuthStatus = AuthStatus::GssCredentialProblem;

/// A connection to a server, and a session.
pub(super) struct Wire {
    world: World,
    connection: LocalConnection,
    /// None before it was made.
    session: Option<Session>,
}

/// A context, and the number of its last call.
pub(super) struct Caller {
    client: Client,
    sequence: u32,
}

/// The words of a credential: version, procedure, sequence number, service.
fn credential([version, procedure, sequence, service]: [u32; 4], handle: &[u8]) -> Vec<u8> {
    let words = [version, procedure, sequence, service, handle.len() as u32];
    [&words.map(u32::to_be_bytes).concat()[..], handle].concat()
}

impl Caller {
    fn credential(&self, service: Service) -> Vec<u8> {
        Credential::Data(self.client.fields(self.sequence, service)).encoded()
    }

    /// The message of the next call.
    fn message(&mut self, service: Service, args: &[u8]) -> Vec<u8> {
        self.sequence += 1;
        let body = self.client.body(self.sequence, service, args);
        self.client.message_to(COMPOUND, &self.credential(service), &body)
    }
}

impl Wire {
    fn new() -> Self {
        Self::of(&ALL)
    }

    /// A server whose export takes these flavours.
    fn of(flavours: &[Flavour]) -> Self {
        Self::by(world(flavours).0, ("root@R", Service::Privacy), StateProtectArgs::None)
    }

    /// A server, and a client that this caller makes.
    pub(super) fn by(
        world: World,
        (name, service): (&str, Service),
        state_protect: StateProtectArgs<'_>,
    ) -> Self {
        let connection = LocalConnection::new(&world.reactor, 2, Config::default());
        let mut wire = Self { world, connection, session: None };
        let mut maker = wire.caller(1, name);
        let Op::ExchangeId(args) = exchange_id(b"client", 1) else { unreachable!() };
        let args = wire.world.encode(&[Op::ExchangeId(ExchangeIdArgs { state_protect, ..args })]);
        let answer = wire.answer(&mut maker, service, &args);
        let ResultBody::ExchangeId(exchanged) = answer.body(0) else { panic!() };
        let (client_id, sequence_id) = (exchanged.client_id, exchanged.sequence_id);
        let args = wire.world.encode(&[Op::CreateSession(create_session(client_id, sequence_id))]);
        let answer = wire.answer(&mut maker, service, &args);
        let ResultBody::CreateSession(created) = answer.body(0) else { panic!() };
        let (id, sequence) = (created.session_id, 0);
        wire.session = Some(Session { client_id, id, created, sequence });
        let complete = Op::ReclaimComplete(ReclaimCompleteArgs { one_fs: false });
        assert_eq!(wire.next(&mut maker, service, &[complete]).status(), Status::Ok);
        wire
    }

    fn session(&mut self) -> &mut Session {
        self.session.as_mut().unwrap()
    }

    pub(super) fn caller(&mut self, secret: u64, name: &str) -> Caller {
        let null = Procedure { procedure: 0, ..COMPOUND };
        let token = toy::ticket(0, secret, 200, name);
        let none = |_: &[u8]| (AuthFlavor::NONE, Vec::new());
        let body = InitArgs { token: &token }.encoded();
        let request = toy::message_to(null, &Credential::Init.encoded(), &body, none);
        let reply = self.send(&request).unwrap();
        let (_, results) = toy::accepted(&reply);
        let InitResults::Complete { handle, .. } = toy::init_results(results) else {
            panic!("no context")
        };
        let client = Client { keys: ToyKeys::initiator(secret), handle: handle.to_vec() };
        Caller { client, sequence: 0 }
    }

    fn send(&mut self, message: &[u8]) -> Result<Vec<u8>, LocalEnding> {
        let mark = FragmentMark::whole(message.len()).unwrap().to_bytes();
        let Self { world: World { reactor, handler, pool, now_ns, .. }, connection, .. } = self;
        connection.feed(reactor, handler, &[&mark, message].concat(), *now_ns)?;
        loop {
            let output = connection.take_output(usize::MAX, *now_ns);
            if let Some((_, reply)) = output.split_first_chunk::<4>() {
                return Ok(reply.to_vec());
            }
            let ran = pool.run();
            let events = reactor.take_events();
            assert!(ran + events.len() > 0, "no answer comes");
            for event in events {
                connection.apply(reactor, handler, event, *now_ns);
            }
        }
    }

    /// The next compound of the session.
    fn args(&mut self, ops: &[Op<'_>]) -> Vec<u8> {
        let sequence_id = self.session().sequence + 1;
        let args = SequenceArgs { sequence_id, ..self.session().sequence_args() };
        self.world.encode(&with_sequence(args, ops))
    }

    /// Sends a compound, which must get an answer.
    fn answer(&mut self, caller: &mut Caller, service: Service, args: &[u8]) -> Answer {
        let message = caller.message(service, args);
        let reply = self.send(&message).unwrap();
        Answer(caller.client.results(caller.sequence, service, &reply))
    }

    /// Sends the next compound of the session.
    pub(super) fn next(&mut self, caller: &mut Caller, service: Service, ops: &[Op<'_>]) -> Answer {
        let args = self.args(ops);
        self.session().sequence += 1;
        self.answer(caller, service, &args)
    }

    /// Sends the next compound of the session, for a user that claims its number.
    fn claim(&mut self, uid: u32, ops: &[Op<'_>]) -> Answer {
        let args = self.args(ops);
        self.session().sequence += 1;
        let (machine, groups) = (&b"client"[..], Groups::default());
        let sys = AuthSys { stamp: 0, machine, uid, gid: uid, groups }.encoded();
        let header = CallHeader {
            xid: 78,
            program: COMPOUND.program,
            version: COMPOUND.version,
            procedure: COMPOUND.procedure,
            credential: OpaqueAuth { flavor: AuthFlavor::SYS, body: &sys },
            verifier: OpaqueAuth::NONE,
        };
        let reply = self.send(&[header.encoded(), args].concat()).unwrap();
        Answer(toy::accepted(&reply).1.to_vec())
    }

    /// A compound that must be carried out.
    fn call(&mut self, caller: &mut Caller, service: Service) {
        let answer = self.next(caller, service, &[ROOT, Op::Getfh(GetfhArgs)]);
        assert_eq!(answer.status(), Status::Ok);
    }

    /// The arguments of a compound that must not be carried out.
    fn evil(&mut self) -> Vec<u8> {
        self.args(&[])
    }

    fn status_of(&mut self, message: &[u8]) -> ReplyStatus<'static> {
        let reply = self.send(message).unwrap();
        let header: ReplyHeader<'_> = Decoder::new(&reply).value().unwrap();
        match header.status {
            ReplyStatus::Denied(status) => ReplyStatus::Denied(status),
            ReplyStatus::Accepted { status, .. } => {
                ReplyStatus::Accepted { verifier: OpaqueAuth::NONE, status }
            }
        }
    }

    /// Sends a call that must be refused, and then an honest one.
    fn refused(&mut self, caller: &mut Caller, message: &[u8], status: AuthStatus) {
        let denied = ReplyStatus::Denied(RejectStatus::Auth(status));
        assert_eq!(self.status_of(message), denied);
        self.call(caller, Service::Integrity);
    }

    /// The same for arguments that must be garbage.
    fn garbage(&mut self, caller: &mut Caller, message: &[u8]) {
        let verifier = OpaqueAuth::NONE;
        let status = AcceptStatus::GarbageArgs;
        assert_eq!(self.status_of(message), ReplyStatus::Accepted { verifier, status });
        self.call(caller, Service::Integrity);
    }
}

/// GSS1: the reply of version 4.0 is dropped. A server of version 4.1 loses no request on a
/// connection that lives on (RFC 8881 2.9.2), so it ends the connection.
#[test]
fn an_old_sequence_number_ends_the_connection() {
    let mut wire = Wire::new();
    let mut caller = wire.caller(5, "anna@R");
    for (number, service) in (3..).zip(SERVICES) {
        wire.call(&mut caller, service);
        caller.sequence -= 1;
        let message = caller.message(service, &wire.evil());
        assert!(wire.send(&message).is_err());
        // The context is none of the connection's.
        wire.connection = LocalConnection::new(&wire.world.reactor, number, Config::default());
        wire.call(&mut caller, service);
    }
}

/// GSS2 and GSS4.
#[test]
fn arguments_with_another_number_or_checksum_are_garbage() {
    let mut wire = Wire::new();
    let mut caller = wire.caller(5, "anna@R");
    for service in [Service::Integrity, Service::Privacy] {
        caller.sequence += 1;
        let body = caller.client.body(caller.sequence + 1, service, &wire.evil());
        let message = caller.client.message_to(COMPOUND, &caller.credential(service), &body);
        wire.garbage(&mut caller, &message);
        let mut message = caller.message(service, &wire.evil());
        // Three bytes of padding end the message.
        let last = message.len() - 4;
        message[last] ^= 1;
        wire.garbage(&mut caller, &message);
    }
}

/// GSS3.
#[test]
fn a_verifier_of_other_bytes_is_refused() {
    let mut wire = Wire::new();
    let mut caller = wire.caller(5, "anna@R");
    for service in SERVICES {
        caller.sequence += 1;
        let body = caller.client.body(caller.sequence, service, &wire.evil());
        let keys = ToyKeys::initiator(5);
        let message = toy::message_to(COMPOUND, &caller.credential(service), &body, |covered| {
            use dafs_rpc::gss::MessageKeys;
            let mut mic = vec![0; keys.mic_bytes()];
            keys.mic(&[covered, b"x"], &mut mic);
            (AuthFlavor::RPCSEC_GSS, mic)
        });
        caller.sequence -= 1;
        wire.refused(&mut caller, &message, CREDENTIAL_PROBLEM);
    }
}

/// GSS5, GSS7 and GSS8, each with a good verifier. An unknown procedure gets AUTH_REJECTEDCRED, upon
/// which Linux makes a new context; pynfs wants AUTH_BADCRED.
#[test]
fn unknown_words_of_a_credential_are_refused() {
    let mut wire = Wire::new();
    let mut caller = wire.caller(5, "anna@R");
    let of = |at: usize, values: [u32; 4], status| values.map(|value| (at, value, status));
    let versions = of(0, [0, 2, 3, 1024], BAD_CREDENTIAL);
    let procedures = of(1, [4, 5, 1024, u32::MAX], AuthStatus::RejectedCredential);
    let services = of(3, [0, 4, 5, 1024], BAD_CREDENTIAL);
    for (at, value, status) in [versions, procedures, services].concat() {
        let mut words = [1, 0, caller.sequence + 1, 1];
        words[at] = value;
        let credential = credential(words, &caller.client.handle);
        let message = caller.client.message_to(COMPOUND, &credential, &wire.evil());
        wire.refused(&mut caller, &message, status);
    }
}

/// GSS6.
#[test]
fn a_sequence_number_above_the_highest_is_refused() {
    let mut wire = Wire::new();
    let mut caller = wire.caller(5, "anna@R");
    for sequence in [SEQUENCE_MAX + 1, u32::MAX] {
        let credential = credential([1, 0, sequence, 1], &caller.client.handle);
        let message = caller.client.message_to(COMPOUND, &credential, &wire.evil());
        wire.refused(&mut caller, &message, AuthStatus::GssContextProblem);
    }
}

#[test]
fn contexts_of_one_session_are_told_apart() {
    let mut wire = Wire::new();
    let mut callers =
        [(5, "anna@R"), (6, "root@R")].map(|(secret, name)| wire.caller(secret, name));
    // Each has numbers of its own.
    for service in SERVICES {
        for caller in &mut callers {
            wire.call(caller, service);
            wire.call(caller, service);
        }
    }
    let [anna, root] = &mut callers;
    for service in SERVICES {
        // The handle of one under the verifier of the other.
        let credential = Credential::Data(root.client.fields(root.sequence + 1, service)).encoded();
        let body = anna.client.body(root.sequence + 1, service, &wire.evil());
        let message = anna.client.message_to(COMPOUND, &credential, &body);
        wire.refused(anna, &message, CREDENTIAL_PROBLEM);
        wire.call(root, service);
        // The body of one under the header of the other.
        if service != Service::None {
            root.sequence += 1;
            let body = anna.client.body(root.sequence, service, &wire.evil());
            let message = root.client.message_to(COMPOUND, &root.credential(service), &body);
            wire.garbage(anna, &message);
            wire.call(root, service);
        }
    }
}

pub(super) fn open<'a>(name: &'a [u8], mode: &'a [u8; 4]) -> Op<'a> {
    let attributes = Fattr { mask: Attr::set(&[Attr::Mode]), values: mode };
    Op::Open(OpenArgs {
        seqid: 0,
        share_access: ShareAccess(ShareAccess::BOTH | Want::None.number()),
        share_deny: DENY_NONE,
        owner: StateOwner { client_id: 0, owner: b"owner" },
        how: OpenHow::Unchecked(attributes),
        claim: OpenClaim::Null(name),
    })
}

/// Claims and contexts on one connection and in one session: each call has its own caller.
#[test]
fn each_call_has_its_own_caller() {
    let mut wire = Wire::new();
    let mut anna = wire.caller(5, "anna@R");
    let private = &[0, 0, 1, 0o200];
    for service in SERVICES {
        // The top directory is root's.
        let answer = wire.next(&mut anna, service, &[ROOT, open(b"a", private)]);
        assert_eq!(answer.status(), Status::Access);
        let ops = [ROOT, open(b"f", private), Op::Getfh(GetfhArgs)];
        let answer = wire.claim(0, &ops);
        let ResultBody::Open(opened) = answer.body(2) else { panic!() };
        let ResultBody::Getfh(found) = answer.body(3) else { panic!() };
        // Nor does the state-id of another user help.
        let put = Op::Putfh(PutfhArgs { handle: found.handle });
        let read = |stateid| Op::Read(ReadArgs { stateid, offset: 0, count: 1 });
        let ops = [put, read(opened.stateid)];
        assert_eq!(wire.claim(0, &ops).status(), Status::Ok);
        assert_eq!(wire.next(&mut anna, service, &ops).status(), Status::Access);
        assert_eq!(wire.claim(1000, &ops).status(), Status::Access);
    }
}

/// An export of krb5p takes no call of the same context with less protection, nor a claim behind it.
#[test]
fn a_lowered_service_is_refused_by_the_export() {
    let mut wire = Wire::of(&[Flavour::Krb5p]);
    let mut root = wire.caller(5, "root@R");
    let ops = [ROOT, Op::Getattr(GetattrArgs { request: Attr::set(&[Attr::Mode]) })];
    assert_eq!(wire.next(&mut root, Service::Privacy, &ops).status(), Status::Ok);
    for service in [Service::None, Service::Integrity] {
        assert_eq!(wire.next(&mut root, service, &ops).status(), Status::WrongSec);
    }
    assert_eq!(wire.next(&mut root, Service::Privacy, &ops).status(), Status::Ok);
}
