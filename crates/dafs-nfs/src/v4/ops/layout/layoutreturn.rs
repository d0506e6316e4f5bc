//! LAYOUTRETURN (RFC 8881 18.44): returns the layouts of a file, of a file system, or all.

use super::{check_range, count_uses, form, hear_errors, mode, of_layout, use_of};
use crate::v4::compound::context::OpContext;
use crate::v4::stateid;
use crate::v4::status::OpResult;
use dafs_store::LayoutForm;
use dafs_wire::nfs4::{
    FlexReturned, LayoutReturn, LayoutreturnArgs, LayoutreturnResult, Stateid, Status,
};
use dafs_wire::xdr::{Decode, Decoder};

/// Return types that cover more than a file (`layoutreturn_type4`).
const OF_FILE_SYSTEM: u32 = 2;
const OF_ALL: u32 = 3;

pub(in crate::v4::ops) fn layoutreturn(
    cx: &mut OpContext<'_>,
    args: &LayoutreturnArgs<'_>,
) -> OpResult {
    let form = form(cx, args.layout_type)?;
    let mode = mode(args.io_mode, true)?;
    let service = cx.service();
    if args.reclaim {
        // Layouts of the last run ended with it. Their holders return them during grace.
        return match service.clients.in_grace() {
            true => answer(cx, None),
            false => Err(Status::NoGrace.into()),
        };
    }
    match &args.returned {
        LayoutReturn::File(returned) => {
            let handle = cx.current()?;
            if form == LayoutForm::Copies {
                hear(cx, &returned.stateid, returned.body)?;
            }
            check_range(returned.offset, returned.length)?;
            let state = cx.state(&returned.stateid)?;
            let range = (returned.offset, returned.length);
            let left = service.layouts.return_one(cx.caller()?, &handle, state, mode, range);
            answer(cx, left.map_err(of_layout)?.map(stateid::wire))
        }
        LayoutReturn::Wider(OF_FILE_SYSTEM) => {
            let handle = cx.current()?;
            cx.may_wait()?;
            service.layouts.return_many(cx.caller()?, Some(&handle), form, mode);
            answer(cx, None)
        }
        LayoutReturn::Wider(OF_ALL) => {
            cx.may_wait()?;
            service.layouts.return_many(cx.caller()?, None, form, mode);
            answer(cx, None)
        }
        LayoutReturn::Wider(_) => Err(Status::Inval.into()),
    }
}

/// Handles a client's report on data servers.
fn hear(cx: &mut OpContext<'_>, stateid: &Stateid, body: &[u8]) -> OpResult {
    let told = FlexReturned::decode(&mut Decoder::new(body)).map_err(|_| Status::BadXdr)?;
    let errors: Vec<_> = told.errors.iter().flat_map(|range| &range.errors).copied().collect();
    hear_errors(cx, stateid, &errors)?;
    let uses: Vec<_> = told.stats.iter().map(|told| use_of(told.device, &told.update)).collect();
    if uses.is_empty() {
        return Ok(());
    }
    // An operation that runs again from its start repeats its report, which counts once.
    count_uses(cx, stateid, &uses)
}

fn answer(cx: &mut OpContext<'_>, stateid: Option<Stateid>) -> OpResult {
    cx.encoder().value(&LayoutreturnResult { stateid });
    if let Some(stateid) = stateid {
        cx.set_current_stateid(stateid);
    }
    Ok(())
}
