//! VERIFY and NVERIFY (RFC 8881 18.15, 18.31): attributes are equal when their encodings are. While the
//! name of an owner cannot be looked up, attributes that differ may be equal, so the answer is DELAY.

use super::getattr::check_request;
use crate::v4::attr::get::{self, Object};
use crate::v4::attr::supported;
use crate::v4::compound::context::OpContext;
use crate::v4::status::{OpError, OpResult, without_perm};
use dafs_wire::nfs4::{Attr, Fattr, Status, VerifyArgs};
use dafs_wire::xdr::{Decode, Decoder, Encoder};

pub(crate) fn verify(cx: &mut OpContext<'_>, args: &VerifyArgs<'_>) -> OpResult {
    if is_same(cx, &args.attributes)? { Ok(()) } else { Err(Status::NotSame.into()) }
}

pub(crate) fn nverify(cx: &mut OpContext<'_>, args: &VerifyArgs<'_>) -> OpResult {
    if is_same(cx, &args.attributes)? { Err(Status::Same.into()) } else { Ok(()) }
}

fn is_same(cx: &mut OpContext<'_>, theirs: &Fattr<'_>) -> Result<bool, OpError> {
    let handle = cx.current()?;
    let names = cx.names();
    let (service, caller, minor, _) = cx.split()?;
    let attr = service.delegations.attributes(caller, &handle).map_err(without_perm)?;
    let capabilities = service.capabilities(&handle).map_err(without_perm)?;
    let mask = theirs.mask;
    if mask.contains(Attr::RdattrError) || check_request(mask).is_err() {
        return Err(Status::Inval.into());
    }
    if !mask.is_subset_of(supported(minor, &capabilities, Some(&attr))) {
        return Err(Status::AttrNotSupp.into());
    }
    let mounted_on_file_id = service.namespace().mounted_on(&handle);
    let object = Object { service, caller, minor, names: &names, handle, attr, mounted_on_file_id };
    let mut ours = Vec::new();
    get::encode(&mut Encoder::new(&mut ours), &object, mask).map_err(without_perm)?;
    let has_failed = names.has_failed();
    cx.await_names(names)?;
    let ours = Fattr::decode(&mut Decoder::new(&ours))?;
    match ours.values == theirs.values {
        false if has_failed => Err(Status::Delay.into()),
        is_same => Ok(is_same),
    }
}
