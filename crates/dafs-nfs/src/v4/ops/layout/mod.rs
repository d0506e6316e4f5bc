//! Parallel NFS at the metadata server (RFC 8881 12, 13, 18.40 - 18.44; RFC 7862 15.6, 15.7): files
//! layouts for stripes, and flexible files (RFC 8435) for copies.
//!
//! Invariants
//! * A file system has one layout type, that of its store's form: a client that met two would choose
//!   one for all files.
//! * A layout that is entered is told: its size on the wire is known before.

mod layoutcommit;
mod layouterror;
mod layoutget;
mod layoutreturn;

pub(super) mod device;

pub(super) use layoutcommit::layoutcommit;
pub(super) use layouterror::{layouterror, layoutstats};
pub(super) use layoutget::layoutget;
pub(super) use layoutreturn::layoutreturn;

use dafs_service::{DeviceUse, LayoutMode, Moved, ServiceError};
use dafs_store::{DeviceKey, DeviceTrouble, LayoutForm, StoreError};
use dafs_wire::nfs4::{
    DeviceError, DeviceId, FlexLatency, FlexUpdate, LAYOUT_FILES, LAYOUT_FLEX_FILES, OpNum,
    Stateid, Status,
};

use crate::v4::compound::{Compound, OpError, OpResult};
use crate::v4::stateid;

/// A client had errors at data servers. Those that keep it from writing count before it hears that they
/// were heard: what it writes from then on is not there.
fn hear_errors(cx: &mut Compound<'_>, stateid: &Stateid, errors: &[DeviceError]) -> OpResult {
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
    // The store asks data servers, and the disk.
    cx.may_wait()?;
    let handle = cx.current()?;
    let state = stateid::reference(&cx.stateid(stateid)?)?;
    let service = cx.shared.service.clone();
    service.report_layout(cx.caller()?, &handle, state, &devices).map_err(of_layout)
}

/// Counts what a client says that it did at data servers by a layout of the current file.
fn count_uses(cx: &mut Compound<'_>, stateid: &Stateid, told: &[DeviceUse]) -> OpResult {
    let handle = cx.current()?;
    let state = stateid::reference(&cx.stateid(stateid)?)?;
    let service = cx.shared.service.clone();
    service.count_direct_use(cx.caller()?, &handle, state, told).map_err(of_layout)
}

/// What was done at a device that has flexible files.
fn use_of(device: DeviceId, update: &FlexUpdate<'_>) -> DeviceUse {
    let moved = |of: &FlexLatency| Moved { operations: of.completed, bytes: of.completed_bytes };
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

/// The form that a layout type tells. Refuses those that are not known here, and all where no export
/// has any.
fn form(cx: &Compound<'_>, layout_type: u32) -> Result<LayoutForm, Status> {
    if !cx.shared.service.has_layouts() {
        return Err(Status::NotSupp);
    }
    let known = [LayoutForm::Stripes, LayoutForm::Copies];
    let mut known = known.into_iter().filter(|&form| self::layout_type(form) == layout_type);
    known.next().ok_or(Status::UnknownLayoutType)
}

/// The layout type that tells a form.
pub(in crate::v4) fn layout_type(form: LayoutForm) -> u32 {
    match form {
        LayoutForm::Stripes => LAYOUT_FILES,
        LayoutForm::Copies => LAYOUT_FLEX_FILES,
    }
}

/// The mode of a request; `any` where it may stand for both.
fn mode(number: u32, any: bool) -> Result<LayoutMode, Status> {
    match number {
        1 => Ok(LayoutMode::Read),
        2 => Ok(LayoutMode::ReadWrite),
        3 if any => Ok(LayoutMode::Any),
        _ => Err(Status::BadIoMode),
    }
}

/// Refuses ranges that are empty or go beyond the last byte there can be (RFC 8881 18.43.3). All
/// ones stand for the end of the file.
fn check_range(offset: u64, length: u64) -> Result<(), Status> {
    let fits = length == u64::MAX || offset.checked_add(length).is_some();
    if length != 0 && fits { Ok(()) } else { Err(Status::Inval) }
}

/// Statuses where layouts have rules of their own.
fn of_layout(error: ServiceError) -> OpError {
    match error {
        // Directories have none (RFC 8881 table 6).
        ServiceError::Store(StoreError::BadType) => OpError::Status(Status::WrongType),
        error => crate::v4::status::without_perm(error),
    }
}
