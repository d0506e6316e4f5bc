//! WRITE at a data server (RFC 8881 13.7, 18.32).
//!
//! Invariants
//! * The reply never claims more stability than the data has. The metadata server has the size of
//!   the file, so the answer is never FILE_SYNC4, and the client sends LAYOUTCOMMIT.

use super::check;
use crate::v4::compound::context::OpContext;
use crate::v4::ops::write_data;
use crate::v4::status::OpResult;
use dafs_service::DataRole;
use dafs_store::{DataUse, Stability};
use dafs_wire::nfs4::{StableHow, Status, WriteArgs};

pub(super) fn write<'a>(cx: &mut OpContext<'a>, role: &DataRole, args: &WriteArgs<'a>) -> OpResult {
    let handle = cx.current()?;
    let data = cx.args().view(args.data).ok_or(Status::BadXdr)?;
    cx.may_wait()?;
    let file = role.files.open(&handle.file)?;
    let _use = DataUse::begin(&*file);
    check(cx, role, &handle, &args.stateid, true)?;
    if args.offset.checked_add(args.data.len() as u64).is_none() {
        return Err(Status::Inval.into());
    }
    let served = file.served_bytes(args.offset, args.data.len())?;
    let data = data.slice(0, served).ok_or(Status::ServerFault)?;
    let (stability, committed) = match args.stable {
        StableHow::Unstable => (Stability::Unstable, StableHow::Unstable),
        StableHow::DataSync | StableHow::FileSync => (Stability::Data, StableHow::DataSync),
    };
    write_data(cx, &*file, data, args.offset, (stability, committed))
}
