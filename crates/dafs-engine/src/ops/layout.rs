//! X_LAYOUT_GET, X_LAYOUT_COMMIT, X_LAYOUT_RETURN and X_NODE_INFO: layouts for clients that read
//! and write at data servers. Recalls go over the back-control channel (`back`).
//!
//! Invariants
//! * A granted layout reaches the client: its size on the wire is checked before, and so is that
//!   all its data servers serve DAFS.
//! * Work that may wait for data servers or for the disk runs on the pool.

use crate::engine::convert;
use crate::engine::request::{Call, Context, Done};
use dafs_service::{
    Caller, Handle, LayoutGranted, LayoutMode, LayoutRequest, Service, ServiceError, StateRef,
};
use dafs_store::{DeviceKey, DeviceTrouble, LayoutForm, Packing, Placement, Spread};
use dafs_wire::dafs::{
    self, FileHandle, HEADER_BYTES, LayoutComponent, LayoutKind, LayoutPacking, LayoutScope,
    LayoutServer, Reply, Seq, Status, XLayoutCommit, XLayoutCommitReply, XLayoutGet,
    XLayoutGetReply, XLayoutReturn, XNodeInfo, XNodeInfoReply,
};
use std::cell::Cell;

/// Length of the fixed part of a reply to X_LAYOUT_GET, and of the count of its list, in bytes.
const AROUND_COMPONENTS_BYTES: usize = HEADER_BYTES + 32 + 8;

/// Length of an element of that list, in bytes.
const COMPONENT_BYTES: usize = 80;

const WHOLE: (u64, u64) = (0, u64::MAX);

fn status(error: ServiceError) -> Status {
    match error {
        ServiceError::LayoutUnavailable | ServiceError::BadLayout => Status::XNoLayout,
        ServiceError::RecallConflict => Status::XLayoutRecalled,
        ServiceError::LayoutTryLater => Status::Delay,
        ServiceError::LayoutTooBig => Status::TooSmall,
        ServiceError::OldStateId => Status::OldStateId,
        error => convert::status(error),
    }
}

fn trouble(status: Status) -> DeviceTrouble {
    match status {
        Status::NoSpc | Status::DQuot => DeviceTrouble::Full,
        _ => DeviceTrouble::Failed,
    }
}

/// Encodes a placement without state-id. `None` if a component's name is none of DAFS.
fn told(placement: &Placement) -> Option<(XLayoutGetReply<'static>, Vec<LayoutComponent>)> {
    let component = |device: &DeviceKey, name: &[u8]| {
        let (fs, file) = name.split_first_chunk()?;
        let fh = FileHandle { fs: *fs, file: *<&[u8; 48]>::try_from(file).ok()? };
        Some(LayoutComponent { device: device.0, fh })
    };
    let copies = XLayoutGetReply {
        state_id: dafs::StateId::ZERO,
        seqid: 0,
        kind: LayoutKind::Copies,
        packing: LayoutPacking::Sparse,
        unit_bytes: 0,
        first_place: 0,
        components: Seq::empty(),
    };
    match &placement.spread {
        Spread::Stripes(stripes) => {
            let components = stripes.handles.iter().map(|name| component(&stripes.device, name));
            let packing = match stripes.packing {
                Packing::Sparse => LayoutPacking::Sparse,
                Packing::Dense => LayoutPacking::Dense,
            };
            let (unit_bytes, first_place) = (stripes.unit_bytes.get(), stripes.first_place);
            let kind = LayoutKind::Stripes;
            let reply = XLayoutGetReply { kind, packing, unit_bytes, first_place, ..copies };
            Some((reply, components.collect::<Option<_>>()?))
        }
        Spread::Copies(all) => {
            let components = all.iter().map(|copy| component(&copy.device, &copy.handle));
            Some((copies, components.collect::<Option<_>>()?))
        }
    }
}

/// Gets a layout that fits into a message of `room` bytes.
fn get(
    service: &Service,
    caller: Caller<'_>,
    handle: &Handle,
    request: LayoutRequest,
    room: usize,
) -> Result<LayoutGranted, ServiceError> {
    let reachable = Cell::new(true);
    let fits = |placement: &Placement| {
        let known = |key| service.layouts.device_for(caller.client, &key).is_ok();
        reachable.set(told(placement).is_some() && placement.devices().all(known));
        let bytes = AROUND_COMPONENTS_BYTES + COMPONENT_BYTES * placement.handles().count();
        reachable.get() && bytes <= room
    };
    match service.layouts.get(caller, handle, request, &fits) {
        Err(ServiceError::LayoutTooBig) if !reachable.get() => Err(ServiceError::LayoutUnavailable),
        outcome => outcome,
    }
}

pub(crate) fn layout_get(cx: &mut Context<'_>, call: &Call, args: &XLayoutGet) -> Done {
    let handle = convert::handle(&args.fh);
    // Sessions prove no user to data servers, so they move such data here.
    if cx.service().namespace().export(&handle).is_ok_and(|at| at.options().admits.demands_proof())
    {
        return Err(status(ServiceError::LayoutUnavailable));
    }
    let state = StateRef::from(convert::state_id(args.state_id));
    let write = args.mode == dafs::LayoutMode::ReadWrite;
    let request = LayoutRequest { state, write, form: None };
    let room = cx.response_bytes_max();
    cx.call_elsewhere(
        call,
        &handle,
        move |service, caller| get(service, caller, &handle, request, room),
        |cx, call, granted| {
            let LayoutGranted { state, placement } = granted.map_err(status)?;
            // It was checked before it was granted.
            let (reply, components) = told(&placement).ok_or(Status::ServerFault)?;
            let reply = XLayoutGetReply {
                state_id: convert::wire_state_id(state.id),
                seqid: state.seqid,
                components: Seq::new(&components),
                ..reply
            };
            cx.reply(call, &Reply::XLayoutGet(reply))
        },
    )
}

pub(crate) fn layout_commit(cx: &mut Context<'_>, call: &Call, args: &XLayoutCommit) -> Done {
    let handle = convert::handle(&args.fh);
    let state = StateRef { id: convert::state_id(args.state_id), seqid: args.seqid };
    let (reclaim, end) = (args.reclaim, (args.end > 0).then_some(args.end));
    cx.call_elsewhere(
        call,
        &handle,
        move |service, caller| {
            service.layouts.commit(caller, &handle, state, reclaim, end)?;
            service.getattr(&handle)
        },
        |cx, call, attr| {
            let attr = attr.map_err(status)?;
            let reply = XLayoutCommitReply { size: attr.size, change: attr.change };
            cx.reply(call, &Reply::XLayoutCommit(reply))
        },
    )
}

pub(crate) fn layout_return(cx: &mut Context<'_>, call: &Call, args: &XLayoutReturn<'_>) -> Done {
    let handle = convert::handle(&args.fh);
    let state = StateRef { id: convert::state_id(args.state_id), seqid: args.seqid };
    let scope = args.scope;
    for error in args.errors {
        tracing::debug!(status = %error.status, "a client had an error at a data server");
    }
    let writing = args.errors.iter().filter(|error| error.writing);
    let failed: Vec<_> =
        writing.map(|error| (DeviceKey(error.device), trouble(error.status))).collect();
    cx.call_elsewhere(
        call,
        &handle,
        move |service, caller| give_back(service, caller, (&handle, state), scope, &failed),
        |cx, call, outcome| {
            outcome.map_err(status)?;
            cx.reply(call, &Reply::XLayoutReturn)
        },
    )
}

pub(crate) fn node_info(cx: &mut Context<'_>, call: &Call, args: &XNodeInfo) -> Done {
    let key = DeviceKey(args.device);
    let told = cx.call_service_raw(call, |service, caller| {
        service.layouts.device_for(caller.client, &key)
    })?;
    let told = told.map_err(|_| Status::NoEnt)?;
    let owned: Vec<Vec<String>> = told
        .servers
        .iter()
        .map(|addresses| addresses.iter().map(ToString::to_string).collect())
        .collect();
    let texts: Vec<Vec<&[u8]>> =
        owned.iter().map(|addresses| addresses.iter().map(String::as_bytes).collect()).collect();
    let servers = texts.iter().map(|addresses| LayoutServer { addresses: Seq::new(addresses) });
    let servers: Vec<_> = servers.collect();
    let reply = XNodeInfoReply {
        pattern: Seq::new(&told.device.pattern),
        servers: Seq::new(&servers),
        ticket: &told.ticket,
    };
    cx.reply(call, &Reply::XNodeInfo(reply))
}

/// Handles returned layouts. Write errors take effect before the client gets its answer, so the
/// failed data server gets none of its later writes.
fn give_back(
    service: &Service,
    caller: Caller<'_>,
    (handle, state): (&Handle, StateRef),
    scope: LayoutScope,
    failed: &[(DeviceKey, DeviceTrouble)],
) -> Result<(), ServiceError> {
    let of = match scope {
        LayoutScope::File => {
            if !failed.is_empty() {
                service.layouts.report(caller, handle, state, failed)?;
            }
            let left = service.layouts.return_one(caller, handle, state, LayoutMode::Any, WHOLE)?;
            debug_assert!(left.is_none(), "the whole was given back");
            return Ok(());
        }
        LayoutScope::FileSystem => Some(handle),
        LayoutScope::All => None,
    };
    for form in [LayoutForm::Stripes, LayoutForm::Copies] {
        service.layouts.return_many(caller, of, form, LayoutMode::Any);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use dafs_store::Stripes;

    #[test]
    fn it_is_told_how_components_are_packed_and_what_each_is_called() {
        for (packing, wire) in
            [(Packing::Sparse, LayoutPacking::Sparse), (Packing::Dense, LayoutPacking::Dense)]
        {
            let handles = [3, 4].map(|name| Box::from([name; 64]));
            let spread = Spread::Stripes(Stripes {
                device: DeviceKey([9; 16]),
                first_place: 1,
                unit_bytes: 4096.try_into().unwrap(),
                packing,
                handles: handles.to_vec(),
            });
            let (reply, components) = told(&Placement { epoch: 1, spread }).unwrap();
            assert_eq!((reply.kind, reply.packing), (LayoutKind::Stripes, wire));
            assert_eq!((reply.unit_bytes, reply.first_place), (4096, 1));
            let names = components.iter().map(|one| (one.device, one.fh.fs[0], one.fh.file[47]));
            assert_eq!(names.collect::<Vec<_>>(), [([9; 16], 3, 3), ([9; 16], 4, 4)]);
        }
    }
}
