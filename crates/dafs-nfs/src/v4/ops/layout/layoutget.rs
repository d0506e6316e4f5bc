//! LAYOUTGET (RFC 8881 18.43): where a file's content lies. Whole files are told, whatever part is
//! asked for.

use super::{check_range, mode, of_files, of_layout};
use crate::v4::compound::{Compound, OpError, OpResult};
use crate::v4::stateid;
use dafs_service::{LayoutMode, LayoutRequest, ServiceError};
use dafs_store::{Packing, Placement};
use dafs_wire::nfs4::{
    ComponentHandle, DeviceId, FilesLayout, LAYOUT_FILES, Layout, LayoutBody, LayoutgetArgs,
    LayoutgetResult, Status, StripeUnit,
};
use dafs_wire::xdr::{Encode, Encoder};

/// What the result takes besides the body of its one layout, in bytes.
const AROUND_BODY_BYTES: usize = 64;

pub(in crate::v4::ops) fn layoutget(cx: &mut Compound<'_>, args: &LayoutgetArgs) -> OpResult {
    let handle = cx.current()?;
    of_files(cx, args.layout_type)?;
    let mode = mode(args.io_mode, false)?;
    check_range(args.offset, args.length)?;
    let least = args.length_min;
    let is_beyond = least != u64::MAX && args.offset.checked_add(least).is_none();
    if args.length < least || is_beyond {
        return Err(Status::Inval.into());
    }
    // The store may ask data servers.
    cx.may_wait()?;
    let state = stateid::reference(&cx.stateid(&args.stateid)?)?;
    let request = LayoutRequest { state, write: mode == LayoutMode::ReadWrite };
    // A layout that is entered is told, so the whole reply must have room for it.
    let room = cx.room().min(args.result_bytes_max as usize).saturating_sub(AROUND_BODY_BYTES);
    let placed = cx.shared.service.get_layout(cx.caller()?, &handle, request, &|placement| {
        body(placement).is_some_and(|body| body.len() <= room)
    });
    let granted = match placed {
        Ok(granted) => granted,
        Err(ServiceError::LayoutTryLater) => {
            // Nobody will call when there is one.
            cx.encoder().bool(false);
            return Err(OpError::WithBody(Status::LayoutTryLater));
        }
        Err(ServiceError::LayoutTooBig) => return Err(Status::TooSmall.into()),
        Err(error) => return Err(of_layout(error)),
    };
    // It fitted, so there is one.
    let body = body(&granted.placement).unwrap_or_default();
    let stateid = stateid::wire(granted.state);
    let layout = Layout {
        offset: 0,
        length: u64::MAX,
        io_mode: args.io_mode,
        content: LayoutBody { layout_type: LAYOUT_FILES, body: &body },
    };
    cx.encoder().value(&LayoutgetResult { return_on_close: true, stateid, layouts: vec![layout] });
    cx.set_current_stateid(stateid);
    Ok(())
}

/// The body of a layout; `None` where the unit cannot be told to clients.
fn body(placement: &Placement) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(128);
    let dense = placement.packing == Packing::Dense;
    let unit = StripeUnit::new(placement.unit_bytes.get(), dense)?;
    FilesLayout {
        device: DeviceId(placement.device.0),
        unit,
        first_stripe_index: placement.first_place,
        pattern_offset: 0,
        handles: placement.handles.iter().map(|handle| ComponentHandle(handle)).collect(),
    }
    .encode(&mut Encoder::new(&mut bytes));
    Some(bytes)
}
