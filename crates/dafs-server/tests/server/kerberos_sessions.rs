//! NFSv4.1 with Kerberos, as the client of a kernel uses it: a session of its machine, protected by
//! the machine's credential, whose users send their own requests.

use crate::common::Running;
use crate::kerberos::{CASES, Client};
use dafs_gss::mechanism::ServiceName;
use dafs_server::KerberosConfig;
use dafs_service::{Directory, Flavour, LocalDirectory, Pattern, Rule, Rules, UserOf};
use dafs_testkit::realm::Realm;
use dafs_wire::nfs4::*;
use dafs_wire::rpc::gss::Service;
use dafs_wire::xdr::{Decode, Decoder, Encode, Encoder};
use std::os::unix::fs::MetadataExt;

const NFS: (u32, u32) = (100_003, 4);

/// Sends a compound, and returns its results as bytes.
fn compound(client: &mut Client, service: Service, ops: &[Op<'_>]) -> Vec<u8> {
    let mut args = Vec::new();
    let mut encoder = Encoder::new(&mut args);
    CompoundArgs { tag: b"", minor_version: 1, op_count: ops.len() as u32 }.encode(&mut encoder);
    ops.iter().for_each(|op| op.encode(&mut encoder));
    client.call(NFS, limits::PROCEDURE_COMPOUND, service, &args).unwrap()
}

fn results(bytes: &[u8]) -> Vec<OpResult<'_>> {
    let mut decoder = Decoder::new(bytes);
    let head = CompoundResult::decode(&mut decoder).unwrap();
    (0..head.op_count).map(|_| OpResult::decode(&mut decoder).unwrap()).collect()
}

fn status(client: &mut Client, service: Service, ops: &[Op<'_>]) -> Status {
    results(&compound(client, service, ops)).last().unwrap().status
}

const ENFORCED: Bitmap = Bitmap::of(&[
    OpNum::BindConnToSession as u32,
    OpNum::ExchangeId as u32,
    OpNum::CreateSession as u32,
    OpNum::DestroySession as u32,
    OpNum::DestroyClientid as u32,
]);

fn exchange_id() -> Op<'static> {
    let ops = ProtectedOps { must_enforce: ENFORCED, must_allow: Bitmap::EMPTY };
    Op::ExchangeId(ExchangeIdArgs {
        owner: ClientOwner { verifier: Verifier([7; 8]), owner_id: b"machine" },
        flags: ExchangeFlags::empty(),
        state_protect: StateProtectArgs::MachineCredential(ops),
        implementation: None,
    })
}

fn create_session(client_id: u64, sequence: u32) -> Op<'static> {
    let channel = ChannelAttributes {
        request_bytes_max: 8192,
        response_bytes_max: 8192,
        response_bytes_max_cached: 4096,
        operations_max: 16,
        requests_max: 4,
        ..ChannelAttributes::default()
    };
    Op::CreateSession(CreateSessionArgs {
        client_id,
        sequence,
        flags: CreateSessionFlags::empty(),
        fore: channel,
        back: channel,
        callback_program: 0x4000_0000,
        security: vec![CallbackSecurity::None],
    })
}

fn sequence(session_id: SessionId, sequence_id: u32) -> Op<'static> {
    let (slot_id, highest_slot_id, cache_this) = (0, 0, true);
    Op::Sequence(SequenceArgs { session_id, sequence_id, slot_id, highest_slot_id, cache_this })
}

#[test]
fn users_share_the_session_of_their_machine_and_cannot_end_it() {
    let test = "kerberos_sessions::users_share_the_session_of_their_machine_and_cannot_end_it";
    let Some((realm, _)) = Realm::again(test, CASES) else { return };
    let own = rustix::process::geteuid().as_raw();
    let nfs = ServiceName::new("nfs", "localhost").unwrap();
    let server = Running::new(|config| {
        let pattern: Pattern = "anna@TEST.DAFS".parse().unwrap();
        let rule = Rule { pattern, user: UserOf::Number(own, 100), trusted: false };
        let rules = Rules { rules: vec![rule], default_realm: None };
        let keytab = realm.path("server.keytab");
        let (nfs, dafs) = (nfs.clone(), ServiceName::new("dafs", "localhost").unwrap());
        config.kerberos = Some(KerberosConfig { keytab, nfs, dafs, dafs_in_clear: false, rules });
        config.nfs.domain = Some("test.dafs".into());
        let export = &mut config.exports[0];
        export.name = "data".to_owned();
        export.options.admits.flavours = vec![Flavour::Krb5p, Flavour::Krb5i];
    });
    let address = server.server().nfs_addresses()[0];
    // Principal bert stands for the machine. It is no user of the server.
    let mut machine = Client::new(address, &realm, "bert", &nfs);
    let mut anna = Client::new(address, &realm, "anna", &nfs);
    let whole = Service::Integrity;

    assert_eq!(status(&mut machine, Service::None, &[exchange_id()]), Status::Inval);
    let exchanged = compound(&mut machine, whole, &[exchange_id()]);
    let ResultBody::ExchangeId(exchanged) = results(&exchanged).remove(0).body else { panic!() };
    let ops = ProtectedOps { must_enforce: ENFORCED, must_allow: Bitmap::EMPTY };
    assert_eq!(exchanged.state_protect, StateProtectResult::MachineCredential(ops));
    let create = create_session(exchanged.client_id, exchanged.sequence_id);
    let create = std::slice::from_ref(&create);
    assert_eq!(status(&mut anna, Service::Privacy, create), Status::WrongCred);
    assert_eq!(status(&mut machine, Service::None, create), Status::WrongCred);
    let created = compound(&mut machine, whole, create);
    let ResultBody::CreateSession(created) = results(&created).remove(0).body else { panic!() };
    let id = created.session_id;
    let complete = Op::ReclaimComplete(ReclaimCompleteArgs { one_fs: false });
    assert_eq!(status(&mut machine, whole, &[sequence(id, 1), complete]), Status::Ok);

    // Each user acts for itself in the same session, and what is in the slot is its own.
    let look = |number| {
        let request = Attr::set(&[Attr::OwnerGroup]);
        let lookup = Op::Lookup(LookupArgs { name: b"data" });
        let getattr = Op::Getattr(GetattrArgs { request });
        [sequence(id, number), Op::Putrootfh(PutrootfhArgs), lookup, getattr]
    };
    let seen = compound(&mut anna, Service::Privacy, &look(2));
    assert_eq!(compound(&mut anna, Service::Privacy, &look(2)), seen, "a retry");
    assert_eq!(status(&mut machine, whole, &look(2)), Status::SeqFalseRetry);
    let ResultBody::Getattr(seen) = results(&seen).remove(3).body else { panic!() };
    let group = Attributes::decode(&seen.attributes).unwrap().owner_group.unwrap();
    let gid = std::fs::metadata(server.path()).unwrap().gid();
    let expected = match LocalDirectory.group_name(gid).unwrap() {
        Some(name) => format!("{name}@test.dafs"),
        None => gid.to_string(),
    };
    assert_eq!(std::str::from_utf8(group).unwrap(), expected);
    // The export demands more than a header that is protected.
    assert_eq!(status(&mut anna, Service::None, &look(3)), Status::WrongSec);

    let end = Op::DestroySession(DestroySessionArgs { session_id: id });
    let forget = Op::DestroyClientid(DestroyClientidArgs { client_id: exchanged.client_id });
    let last = [[end], [forget]];
    for ops in &last {
        assert_eq!(status(&mut anna, Service::Privacy, ops), Status::WrongCred);
        assert_eq!(status(&mut machine, Service::None, ops), Status::WrongCred);
    }
    for ops in &last {
        assert_eq!(status(&mut machine, whole, ops), Status::Ok);
    }
}
