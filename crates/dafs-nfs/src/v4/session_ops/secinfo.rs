//! SECINFO and SECINFO_NO_NAME (RFC 8881 18.29, 18.45): the security flavours of an object.
//!
//! Both consume the current file handle (RFC 8881 2.6.3.1.1.8).
//!
//! Invariants
//! * Every flavour in an answer is accepted from the caller's origin, and all that are accepted are
//!   in it, in the order of the export's preference.

use crate::v4::compound::context::OpContext;
use crate::v4::status::{OpError, OpResult};
use dafs_service::{Caller, Flavour, Handle, NO_USER};
use dafs_store::Cred;
use dafs_wire::nfs4::{
    SecinfoArgs, SecinfoNoNameArgs, SecinfoResult, SecinfoStyle, Security, Status,
};
use dafs_wire::rpc::gss::KERBEROS_OID;

/// Returns the flavours for the object of a name in the current directory.
pub(crate) fn secinfo(cx: &mut OpContext<'_>, args: &SecinfoArgs<'_>) -> OpResult {
    let dir = cx.current_for_secinfo()?;
    let name = args.name;
    if name.is_empty() {
        return Err(Status::Inval.into());
    }
    if matches!(name, b"." | b"..") || name.contains(&b'/') || name.contains(&0) {
        return Err(Status::BadName.into());
    }
    let nobody = nobody();
    let resolved = cx.service().lookup(caller(cx, &nobody)?, &dir, [name]);
    let handle = resolved.map_err(|unresolved| OpError::from(unresolved.error))?.handle;
    answer(cx, &handle)
}

/// Returns the flavours for the current object or its parent.
pub(crate) fn secinfo_no_name(cx: &mut OpContext<'_>, args: &SecinfoNoNameArgs) -> OpResult {
    let current = cx.current_for_secinfo()?;
    let handle = match args.style {
        SecinfoStyle::Current => current,
        SecinfoStyle::Parent => {
            let nobody = nobody();
            cx.service().lookup_parent(caller(cx, &nobody)?, &current)?
        }
    };
    answer(cx, &handle)
}

fn nobody() -> Cred {
    Cred::new(NO_USER, NO_USER)
}

/// The caller that looks a name up. A claim is worth nothing where the export demands a proof.
fn caller<'a>(cx: &'a OpContext<'_>, nobody: &'a Cred) -> Result<Caller<'a>, OpError> {
    let caller = cx.caller()?;
    let cred = if cx.is_wrong_flavour() { nobody } else { caller.cred };
    Ok(Caller { cred, ..caller })
}

fn answer(cx: &mut OpContext<'_>, handle: &Handle) -> OpResult {
    let namespace = cx.service().namespace();
    let export = namespace.export(handle)?;
    let flavours = cx.shared().flavours(&cx.call().origin, export);
    let result = SecinfoResult { flavors: flavours.map(security).collect() };
    if result.flavors.is_empty() {
        cx.shared().note_refusal(&cx.call().origin, export);
        return Err(Status::Access.into());
    }
    cx.clear_current();
    cx.answer(&result)
}

fn security(flavour: Flavour) -> Security<'static> {
    let gss = |service| Security::Gss { mechanism: &KERBEROS_OID, quality: 0, service };
    match flavour {
        Flavour::None => Security::None,
        Flavour::Sys => Security::Sys,
        Flavour::Krb5 => gss(1),
        Flavour::Krb5i => gss(2),
        Flavour::Krb5p => gss(3),
    }
}
