//! Parallel NFS at the metadata server (RFC 8881 12, 13, 18.40 - 18.44; RFC 7862 15.6, 15.7): files
//! layouts for stripes, and flexible files (RFC 8435) for copies.
//!
//! Invariants
//! * A file system has one layout type, that of its store's form. A client that sees two types
//!   would choose one for all files.
//! * A granted layout reaches the client: its size on the wire is checked before.

mod layoutcommit;
mod layouterror;
mod layoutget;
mod layoutreturn;

pub(super) mod device;

pub(super) use layoutcommit::layoutcommit;
pub(super) use layouterror::{layouterror, layoutstats};
pub(super) use layoutget::layoutget;
pub(super) use layoutreturn::layoutreturn;

use dafs_service::{DeviceUse, IoCount, LayoutMode, ServiceError};
use dafs_store::{DeviceKey, DeviceTrouble, LayoutForm, StoreError};
use dafs_wire::nfs4::{DeviceError, DeviceId, FlexLatency, FlexUpdate, OpNum, Stateid, Status};

use crate::v4::attr;
use crate::v4::compound::context::OpContext;
use crate::v4::status::{OpError, OpResult};

/// Handles a client's errors at data servers. Write errors take effect before the client gets its
/// answer, so the failed data server gets none of its later writes.
fn hear_errors(cx: &mut OpContext<'_>, stateid: &Stateid, errors: &[DeviceError]) -> OpResult {
    let client = cx.caller()?.client.name().escape_ascii().to_string();
    for DeviceError { status, op, .. } in errors {
        tracing::debug!(client, ?status, op, "a client had an error at a data server");
    }
    let of_writing = [OpNum::Commit as u32, OpNum::Write as u32];
    let writing = errors.iter().filter(|error| of_writing.contains(&error.op));
    let devices: Vec<_> =
        writing.map(|error| (DeviceKey(error.device_id.0), trouble(error.status))).collect();
    if devices.is_empty() {
        return Ok(());
    }
    // The store asks data servers, and writes to disk.
    cx.may_wait()?;
    let handle = cx.current()?;
    let state = cx.state(stateid)?;
    cx.service().layouts.report(cx.caller()?, &handle, state, &devices).map_err(of_layout)
}

/// Counts the I/O that a client reports for a layout of the current file.
fn count_uses(cx: &mut OpContext<'_>, stateid: &Stateid, told: &[DeviceUse]) -> OpResult {
    let handle = cx.current()?;
    let state = cx.state(stateid)?;
    cx.service().layouts.count_direct_use(cx.caller()?, &handle, state, told).map_err(of_layout)
}

/// Converts the reported I/O at a device with flexible files.
fn use_of(device: DeviceId, update: &FlexUpdate<'_>) -> DeviceUse {
    let moved = |of: &FlexLatency| IoCount { operations: of.completed, bytes: of.completed_bytes };
    DeviceUse {
        device: DeviceKey(device.0),
        read: moved(&update.read),
        written: moved(&update.write),
    }
}

fn trouble(status: Status) -> DeviceTrouble {
    match status {
        Status::NoSpc | Status::DQuot => DeviceTrouble::Full,
        _ => DeviceTrouble::Failed,
    }
}

/// Returns the form of a layout type. Refuses unknown types, and all types where no export has
/// layouts.
fn form(cx: &OpContext<'_>, layout_type: u32) -> Result<LayoutForm, Status> {
    if !cx.service().layouts.exist() {
        return Err(Status::NotSupp);
    }
    let known = [LayoutForm::Stripes, LayoutForm::Copies];
    let mut known = known.into_iter().filter(|&form| attr::layout_type(form) == layout_type);
    known.next().ok_or(Status::UnknownLayoutType)
}

/// Returns the mode of a request. `any` allows the value for both modes.
fn mode(number: u32, any: bool) -> Result<LayoutMode, Status> {
    match number {
        1 => Ok(LayoutMode::Read),
        2 => Ok(LayoutMode::ReadWrite),
        3 if any => Ok(LayoutMode::Any),
        _ => Err(Status::BadIoMode),
    }
}

/// Refuses ranges that are empty or go beyond the largest offset (RFC 8881 18.43.3). All ones stand
/// for the end of the file.
fn check_range(offset: u64, length: u64) -> Result<(), Status> {
    let fits = length == u64::MAX || offset.checked_add(length).is_some();
    if length != 0 && fits { Ok(()) } else { Err(Status::Inval) }
}

/// Returns the outcome for an error of a layout operation.
fn of_layout(error: ServiceError) -> OpError {
    match error {
        // Directories have none (RFC 8881 table 6).
        ServiceError::Store(StoreError::BadType) => OpError::Status(Status::WrongType),
        error => crate::v4::status::without_perm(error),
    }
}
