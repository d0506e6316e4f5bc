//! The operations on files. A file has one operation or a few related ones: [`dispatch`] names
//! the file of each. For example, CLOSE is in `delegation.rs`, and RENAME in `remove.rs`.
//!
//! Invariants
//! * An operation touches the context and the service, never the slot or the engine.
//! * An operation appends its result body only when it has succeeded, unless the protocol gives its
//!   failure a body.
//! * Current file handle and state-id change only when the operation has succeeded (RFC 8881
//!   16.2.3.1).
//! * An operation that must wait returns before it has changed any object, because it runs again
//!   from its start.

mod access;
mod commit;
mod copy;
mod create;
mod delegation;
mod getattr;
mod layout;
mod link;
mod lock;
mod lookup;
mod name;
pub(crate) mod offload;
mod open;
mod open_reply;
mod read;
mod read_plus;
mod readdir;
mod remove;
mod setattr;
mod space;
mod verify;
mod write;
mod xattr;

pub(in crate::v4) use write::write_data;

use super::compound::context::OpContext;
use super::status::{OpError, OpResult};
use dafs_service::{Handle, ServiceError};
use dafs_store::{DirChange, Kind, StoreError};
use dafs_wire::nfs4::{ChangeInfo, Op, Status};

/// Runs an operation on files.
pub(crate) fn dispatch<'a>(cx: &mut OpContext<'a>, op: &Op<'a>, rest: &[u8]) -> OpResult {
    match op {
        Op::Access(args) => access::access(cx, args),
        Op::Close(args) => delegation::close(cx, args),
        Op::Commit(args) => commit::commit(cx, args),
        Op::Create(args) => create::create(cx, args),
        Op::Delegreturn(args) => delegation::delegreturn(cx, args),
        Op::Getattr(args) => getattr::getattr(cx, args, rest),
        Op::Getdeviceinfo(args) => layout::device::getdeviceinfo(cx, args),
        Op::Getdevicelist(args) => layout::device::getdevicelist(cx, args),
        Op::Layoutcommit(args) => layout::layoutcommit(cx, args),
        Op::Layouterror(args) => layout::layouterror(cx, args),
        Op::Layoutget(args) => layout::layoutget(cx, args),
        Op::Layoutreturn(args) => layout::layoutreturn(cx, args),
        Op::Layoutstats(args) => layout::layoutstats(cx, args),
        Op::Link(args) => link::link(cx, args),
        Op::Lock(args) => lock::lock(cx, args),
        Op::Lockt(args) => lock::lockt(cx, args),
        Op::Locku(args) => lock::locku(cx, args),
        Op::Lookup(args) => lookup::lookup(cx, args),
        Op::Lookupp(_) => lookup::lookupp(cx),
        Op::Nverify(args) => verify::nverify(cx, args),
        Op::Open(args) => open::open(cx, args),
        Op::Openattr(args) => lookup::openattr(cx, args),
        Op::OpenDowngrade(args) => delegation::open_downgrade(cx, args),
        Op::Read(args) => read::read(cx, args),
        Op::Readdir(args) => readdir::readdir(cx, args),
        Op::Readlink(_) => getattr::readlink(cx),
        Op::Remove(args) => remove::remove(cx, args),
        Op::Rename(args) => remove::rename(cx, args),
        Op::Setattr(args) => setattr::setattr(cx, args),
        Op::Verify(args) => verify::verify(cx, args),
        Op::Write(args) => write::write(cx, args),
        Op::Allocate(args) => space::allocate(cx, args),
        Op::Clone(args) => space::clone(cx, args),
        Op::Copy(args) => copy::copy(cx, args),
        Op::Deallocate(args) => space::deallocate(cx, args),
        Op::IoAdvise(args) => space::io_advise(cx, args),
        Op::OffloadCancel(args) => copy::offload_cancel(cx, args),
        Op::OffloadStatus(args) => copy::offload_status(cx, args),
        Op::ReadPlus(args) => read_plus::read_plus(cx, args),
        Op::Seek(args) => space::seek(cx, args),
        Op::Getxattr(args) => xattr::getxattr(cx, args),
        Op::Listxattrs(args) => xattr::listxattrs(cx, args),
        Op::Removexattr(args) => xattr::removexattr(cx, args),
        Op::Setxattr(args) => xattr::setxattr(cx, args),
        _ => Err(Status::NotSupp.into()),
    }
}

/// Converts the change of a directory.
pub(crate) fn change_info(change: DirChange) -> ChangeInfo {
    ChangeInfo { atomic: change.atomic, before: change.before, after: change.after }
}

/// Returns the kind of an object. It does not change, so no other client and no data server is
/// asked.
///
/// # Errors
/// Those of a read of its attributes.
pub(crate) fn kind_of(cx: &OpContext<'_>, handle: &Handle) -> Result<Kind, OpError> {
    Ok(cx.service().getattr(handle)?.kind)
}

/// Returns the status for an object that is no directory where one is needed, for operations that
/// distinguish symbolic links (RFC 8881 15.1.2.8).
pub(crate) fn not_a_directory(cx: &OpContext<'_>, handle: &Handle, error: ServiceError) -> OpError {
    if error == ServiceError::Store(StoreError::NotDirectory) {
        match kind_of(cx, handle) {
            Ok(Kind::Symlink) => return OpError::Status(Status::Symlink),
            Ok(_) => return OpError::Status(Status::NotDir),
            Err(error) => return error,
        }
    }
    OpError::from(error)
}

/// Checks that an object of this kind holds data.
///
/// # Errors
/// `IsDir`, `Symlink` or `WrongType` (RFC 8881 15.1.2).
pub(crate) fn holds_data(kind: Kind) -> Result<(), Status> {
    match kind {
        Kind::Regular | Kind::NamedAttr => Ok(()),
        Kind::Directory | Kind::AttrDirectory => Err(Status::IsDir),
        Kind::Symlink => Err(Status::Symlink),
        Kind::BlockDevice | Kind::CharDevice | Kind::Socket | Kind::Fifo => Err(Status::WrongType),
    }
}
