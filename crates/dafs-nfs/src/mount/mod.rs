//! MOUNT version 3 (RFC 1813 appendix I): gives clients of NFSv3 their first handle.
//!
//! Invariants
//! * A path is resolved component by component from the root of all exports, never compared as
//!   text. Symbolic links are followed only within their export.
//! * A caller learns only of exports that it may mount.
//! * A mount grants no right: every later request is checked by itself.

mod table;
mod walk;

pub(crate) use table::Mounts;

use crate::shared::NfsShared;
use crate::v3::Sender;
use crate::wire_handle;
use dafs_rpc::Reply;
use dafs_service::{Caller, Export, Flavour, Handle, NO_USER, ServiceError, TransportSecurity};
use dafs_store::{Cred, Kind, StoreError, Wait};
use dafs_wire::mount3::{HostName, Mounted, Path, Procedure, Status, encode_mounted};
use dafs_wire::nfs3::FileHandle;
use dafs_wire::rpc::AuthFlavor;
use dafs_wire::xdr::{Decode, Decoder, Encoder};

/// The outcome of a request.
pub(crate) enum Answer {
    /// The call has these results.
    Reply(Reply),
    /// The arguments are not XDR.
    Garbage,
    /// There is no such procedure.
    NoProcedure,
}

/// Executes a request.
pub(crate) fn call(shared: &NfsShared, sender: &Sender, procedure: u32, args: &[u8]) -> Answer {
    let Some(procedure) = Procedure::from_number(procedure) else { return Answer::NoProcedure };
    let mut reply = Reply::new();
    match procedure {
        Procedure::Null => {}
        Procedure::Mnt => match Path::decode(&mut Decoder::new(args)) {
            Ok(path) => mnt(shared, sender, path, &mut reply),
            Err(_) => return Answer::Garbage,
        },
        Procedure::Dump => dump(shared, sender, &mut reply.encoder()),
        Procedure::Umnt => match Path::decode(&mut Decoder::new(args)) {
            Ok(path) => shared.mounts.remove(sender.origin.address(), path.0),
            Err(_) => return Answer::Garbage,
        },
        Procedure::UmntAll => shared.mounts.remove_all(sender.origin.address()),
        Procedure::Export => exports(shared, sender, &mut reply.encoder()),
    }
    Answer::Reply(reply)
}

/// The number of a flavour. For Kerberos it is a pseudo-flavour (RFC 2623 5).
fn number(flavour: Flavour) -> u32 {
    let number = match flavour {
        Flavour::None => AuthFlavor::NONE,
        Flavour::Sys => AuthFlavor::SYS,
        Flavour::Krb5 => AuthFlavor::KRB5,
        Flavour::Krb5i => AuthFlavor::KRB5I,
        Flavour::Krb5p => AuthFlavor::KRB5P,
    };
    number.0
}

fn mnt(shared: &NfsShared, sender: &Sender, path: Path<'_>, reply: &mut Reply) {
    match mount(shared, sender, path) {
        Ok((handle, flavors)) => {
            let bytes = wire_handle::encode(&handle);
            encode_mounted(&mut reply.encoder(), FileHandle(&bytes), &flavors);
            shared.mounts.add(sender.origin.host(), sender.origin.address(), path.0);
        }
        Err(status) => reply.encoder().u32(status.number()),
    }
}

/// Resolves a path to a directory, and the flavours to use it with.
fn mount(
    shared: &NfsShared,
    sender: &Sender,
    path: Path<'_>,
) -> Result<(Handle, Vec<u32>), Status> {
    let service = &shared.service;
    let client = service.stateless_client();
    let Sender { who, now_ns, .. } = sender;
    let (subject, wait) = (sender.subject(), Wait::Never);
    // A claim is worth nothing at an export that demands proofs, so the first walk is nobody's.
    let nobody = Cred::new(NO_USER, NO_USER);
    let caller = Caller { client, cred: &nobody, subject, wait, now_ns: *now_ns };
    let mut found = walk::follow(service, caller, path.0);
    let reached = found.as_ref().map_or_else(|unresolved| unresolved.handle, |found| found.handle);
    let is_admitted = service
        .namespace()
        .export(&reached)
        .is_ok_and(|export| sender.origin.admitted(export, who.flavour));
    if is_admitted {
        found = walk::follow(service, Caller { cred: &who.cred, ..caller }, path.0);
    }
    let reached = found.as_ref().map_or_else(|unresolved| unresolved.handle, |found| found.handle);
    let namespace = service.namespace();
    let export = namespace.export(&reached).map_err(status_of)?;
    // Stock clients ask for the handle in the clear before they use it in TLS. It opens nothing by itself.
    let origin = sender.origin.with_security(TransportSecurity::Mtls);
    let flavors: Vec<u32> = shared.flavours(&origin, export).map(number).collect();
    if flavors.is_empty() {
        shared.note_refusal(&sender.origin, export);
        // A refused caller does not learn which names exist.
        return Err(Status::Acces);
    }
    sender.connection.establish();
    let found = found.map_err(|unresolved| status_of(unresolved.error))?;
    // The root of all exports has no attributes here, but is a directory.
    if found.attr.is_some_and(|attr| attr.kind != Kind::Directory) {
        return Err(Status::NotDir);
    }
    Ok((found.handle, flavors))
}

fn status_of(error: ServiceError) -> Status {
    match error {
        ServiceError::Store(StoreError::NotFound | StoreError::Stale | StoreError::MovedOut) => {
            Status::NoEnt
        }
        // A loop of symbolic links gets the same status, as in Linux.
        ServiceError::Store(StoreError::Access | StoreError::Symlink) => Status::Acces,
        ServiceError::Store(StoreError::NotOwner) => Status::Perm,
        ServiceError::Store(StoreError::NotDirectory) => Status::NotDir,
        ServiceError::Store(StoreError::NameTooLong) => Status::NameTooLong,
        // The bytes cannot be a name.
        ServiceError::Store(StoreError::Invalid) => Status::Inval,
        ServiceError::Store(StoreError::Io) => Status::Io,
        _ => Status::ServerFault,
    }
}

/// Lists mounts of the caller's host. A caller on this host gets those of all hosts.
fn dump(shared: &NfsShared, sender: &Sender, encoder: &mut Encoder<'_>) {
    let own = sender.origin.address();
    let all = own.to_canonical().is_loopback();
    shared.mounts.each(|host, path| {
        if all || host == own {
            let text = host.to_canonical().to_string();
            encoder.bool(true);
            encoder.value(&Mounted { host: HostName(text.as_bytes()), path: Path(path) });
        }
    });
    encoder.bool(false);
}

/// Lists the exports that the caller may mount, with their networks.
fn exports(shared: &NfsShared, sender: &Sender, encoder: &mut Encoder<'_>) {
    let namespace = shared.service.namespace();
    let may_mount = |export: &Export| shared.flavours(&sender.origin, export).next().is_some();
    let mut exports: Vec<_> = namespace.exports().filter(|export| may_mount(export)).collect();
    exports.sort_by(|a, b| a.name().cmp(b.name()));
    for export in exports {
        let path = format!("/{}", export.name());
        encoder.bool(true);
        encoder.value(&Path(path.as_bytes()));
        for network in &export.options().admits.networks {
            encoder.bool(true);
            encoder.value(&HostName(network.to_string().as_bytes()));
        }
        encoder.bool(false);
    }
    encoder.bool(false);
}
