//! X_EXPOSE_GET, an extension: where the client finds blocks of a file in memory of the server.
//!
//! Invariants
//! * Only an open that allows reading gets an answer that names memory.
//! * The reply fits one message. A client asks again for the segments that did not fit.

use crate::engine::convert;
use crate::engine::request::{Call, Context, Done};
use crate::ops::security;
use dafs_wire::dafs::{
    EXPOSED_WINDOWS_MAX, ExposedWindow, HEADER_BYTES, Reply, Request, Seq, Status, XExposeGet,
    XExposeGetReply,
};

/// Bytes of the reply without its lists, which have a count of 8 bytes each.
const FIXED_BYTES: usize = HEADER_BYTES + 16 + 2 * 8;

/// Bytes of a window and of a segment in the reply.
const WINDOW_BYTES: usize = 16;
const SEGMENT_BYTES: usize = 24;

pub(crate) fn expose_get(cx: &mut Context<'_>, call: &Call, args: &XExposeGet) -> Done {
    let asked = args.windows as usize;
    if !(1..=EXPOSED_WINDOWS_MAX).contains(&asked) {
        return Err(Status::Inval);
    }
    let (handle, id) = (convert::handle(&args.fh), convert::state_id(args.state_id));
    let nothing = XExposeGetReply { exposure: 0, windows: Seq::empty(), segments: Seq::empty() };
    let Some(memory) = cx.exposed_memory() else {
        return cx.reply(call, &Reply::XExposeGet(nothing));
    };
    let is_remote = cx.is_peer_remote();
    let exposed =
        cx.call_service(call, |service, caller| service.expose(caller, &handle, id, is_remote))?;
    let Some(exposed) = exposed else { return cx.reply(call, &Reply::XExposeGet(nothing)) };
    // Later changes of the rules end the exposure.
    security::check_exports(cx, &Request::XExposeGet(*args))?;
    let room = cx.response_bytes_max().saturating_sub(FIXED_BYTES);
    // Half of the room is for segments.
    let numbers = (args.window..u64::MAX).take(asked.min(room / 2 / WINDOW_BYTES));
    let windows: Vec<_> = numbers
        .map_while(|window| {
            let page = exposed.page(window)?;
            Some(ExposedWindow { window, segment: page.segment.into(), page: page.page.into() })
        })
        .collect();
    // Another exposure has none of the segments that the client knows. The life page is the first.
    let known = if args.exposure == exposed.id() { args.known as usize } else { 0 };
    let life = memory.segment(0).filter(|_| known == 0);
    let own = exposed.segments(known.saturating_sub(1));
    let own = own.into_iter().map_while(|number| memory.segment(number));
    let most = room.saturating_sub(windows.len() * WINDOW_BYTES) / SEGMENT_BYTES;
    let segments: Vec<_> = life.into_iter().chain(own).take(most).collect();
    let segments = cx.show(&segments);
    let (windows, segments) = (Seq::new(&windows), Seq::new(&segments));
    let reply = XExposeGetReply { exposure: exposed.id(), windows, segments };
    cx.reply(call, &Reply::XExposeGet(reply))
}
