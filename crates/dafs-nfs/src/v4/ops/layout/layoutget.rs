//! LAYOUTGET (RFC 8881 18.43): grants a layout of the whole file, for any requested part.

use super::{check_range, form, mode, of_layout};
use crate::limits::LAYOUT_STATS_SECONDS;
use crate::v4::compound::context::OpContext;
use crate::v4::stateid;
use crate::v4::status::{OpError, OpResult};
use dafs_service::{LayoutMode, LayoutRequest, ServiceError, StateRef};
use dafs_store::{FileCopy, Packing, Placement, Spread};
use dafs_wire::nfs4::{
    ComponentHandle, DeviceId, FilesLayout, FlexCopy, FlexLayout, FlexMirror, Layout, LayoutBody,
    LayoutgetArgs, LayoutgetResult, Stateid, Status, StripeUnit,
};
use dafs_wire::xdr::{Encode, Encoder};

/// The user for reads at a data server that does not know this server's state (RFC 8435 2.2.1). Our
/// data servers ask this server for the client and its rights, so this user owns no file.
const READER: &[u8] = b"65533";
const WRITER: &[u8] = b"65534";
const GROUP: &[u8] = b"65534";

/// Bytes of the result besides the body of its one layout.
const AROUND_BODY_BYTES: usize = 64;

pub(in crate::v4::ops) fn layoutget(cx: &mut OpContext<'_>, args: &LayoutgetArgs) -> OpResult {
    let handle = cx.current()?;
    let form = form(cx, args.layout_type)?;
    let mode = mode(args.io_mode, false)?;
    check_range(args.offset, args.length)?;
    let least = args.length_min;
    let is_beyond = least != u64::MAX && args.offset.checked_add(least).is_none();
    if args.length < least || is_beyond {
        return Err(Status::Inval.into());
    }
    // Data servers have no rules for users of certificates, so the data of their connections moves here. That of proven
    // users does, too: their client may have state that was opened by claims on another connection.
    if cx.call().user.is_some() {
        return Err(of_layout(ServiceError::LayoutUnavailable));
    }
    // The store may ask data servers.
    cx.may_wait()?;
    let state = cx.state(&args.stateid)?;
    let write = mode == LayoutMode::ReadWrite;
    let request = LayoutRequest { state, write, form: Some(form) };
    // A granted layout must reach the client, so the whole reply must have room for it.
    let room = cx.room().min(args.result_bytes_max as usize).saturating_sub(AROUND_BODY_BYTES);
    let placed = cx.service().layouts.get(cx.caller()?, &handle, request, &|placement| {
        body(placement, mode, StateRef::ANONYMOUS).is_some_and(|body| body.len() <= room)
    });
    let granted = match placed {
        Ok(granted) => granted,
        Err(ServiceError::LayoutTryLater) => {
            // The server does not notify the client when a layout becomes available.
            cx.encoder().bool(false);
            return Err(OpError::WithBody(Status::LayoutTryLater));
        }
        Err(ServiceError::LayoutTooBig) => return Err(Status::TooSmall.into()),
        Err(error) => return Err(of_layout(error)),
    };
    // The size was checked before, so there is a body.
    let body = body(&granted.placement, mode, granted.state).unwrap_or_default();
    let stateid = stateid::wire(granted.state);
    let layout = Layout {
        offset: 0,
        length: u64::MAX,
        io_mode: args.io_mode,
        content: LayoutBody { layout_type: args.layout_type, body: &body },
    };
    cx.set_current_stateid(stateid);
    cx.answer(&LayoutgetResult { return_on_close: true, stateid, layouts: vec![layout] })
}

/// Returns the body of a layout with this state-id. `None` where the stripe unit cannot be encoded.
fn body(placement: &Placement, mode: LayoutMode, state: StateRef) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(256);
    let mut e = Encoder::new(&mut bytes);
    match &placement.spread {
        Spread::Stripes(stripes) => {
            let dense = stripes.packing == Packing::Dense;
            let layout = FilesLayout {
                device: DeviceId(stripes.device.0),
                unit: StripeUnit::new(stripes.unit_bytes.get(), dense)?,
                first_stripe_index: stripes.first_place,
                pattern_offset: 0,
                handles: stripes.handles.iter().map(|handle| ComponentHandle(handle)).collect(),
            };
            layout.encode(&mut e);
        }
        Spread::Copies(copies) => {
            // Data servers identify the layout without its seqid, which changes with each grant.
            let stateid = stateid::wire(StateRef { seqid: 0, ..state });
            let user = if mode == LayoutMode::Read { READER } else { WRITER };
            let mirror = |copy| FlexMirror { servers: vec![server_of(copy, user, stateid)] };
            let layout = FlexLayout {
                stripe_unit_bytes: 0,
                mirrors: copies.iter().map(mirror).collect(),
                flags: 0,
                stats_hint_seconds: LAYOUT_STATS_SECONDS,
            };
            layout.encode(&mut e);
        }
    }
    Some(bytes)
}

fn server_of<'a>(copy: &'a FileCopy, user: &'a [u8], stateid: Stateid) -> FlexCopy<'a> {
    FlexCopy {
        device: DeviceId(copy.device.0),
        efficiency: 1,
        stateid,
        handles: vec![ComponentHandle(&copy.handle)],
        user,
        group: GROUP,
    }
}
