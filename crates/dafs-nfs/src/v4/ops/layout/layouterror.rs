//! LAYOUTERROR and LAYOUTSTATS (RFC 7862 15.6, 15.7): clients report errors and I/O at data
//! servers. If clients cannot write to a data server, this server goes on without it, if it can.
//! The other reports are for the administrator's log.

use super::{count_uses, form, hear_errors, of_layout, use_of};
use crate::v4::compound::context::OpContext;
use crate::v4::status::OpResult;
use dafs_service::{DeviceUse, IoCount, StateKind};
use dafs_store::{DeviceKey, LayoutForm};
use dafs_wire::nfs4::{FlexUpdate, IoInfo, LayouterrorArgs, LayoutstatsArgs, Stateid, Status};
use dafs_wire::xdr::{Decode, Decoder};

pub(in crate::v4::ops) fn layouterror(cx: &mut OpContext<'_>, args: &LayouterrorArgs) -> OpResult {
    check_layout(cx, &args.stateid)?;
    hear_errors(cx, &args.stateid, &args.errors)
}

pub(in crate::v4::ops) fn layoutstats(
    cx: &mut OpContext<'_>,
    args: &LayoutstatsArgs<'_>,
) -> OpResult {
    cx.current()?;
    let told = match form(cx, args.update.layout_type)? {
        LayoutForm::Stripes => DeviceUse {
            device: DeviceKey(args.device_id.0),
            read: moved(args.read),
            written: moved(args.write),
        },
        LayoutForm::Copies => {
            let update = FlexUpdate::decode(&mut Decoder::new(args.update.body));
            use_of(args.device_id, &update.map_err(|_| Status::BadXdr)?)
        }
    };
    count_uses(cx, &args.stateid, &[told])
}

fn moved(info: IoInfo) -> IoCount {
    IoCount { operations: info.count, bytes: info.bytes }
}

/// Checks that the state-id of a report is a layout of the current file.
fn check_layout(cx: &mut OpContext<'_>, wire: &Stateid) -> OpResult {
    let handle = cx.current()?;
    let state = cx.state(wire)?;
    let kind = cx.service().state.check_state(cx.caller()?, Some(&handle), state.id.into());
    match kind.map_err(of_layout)? {
        StateKind::Layout => Ok(()),
        StateKind::Open | StateKind::Lock | StateKind::Delegation => Err(Status::BadStateId.into()),
    }
}
