//! X_EXPOSE_GET, an extension: where the client finds blocks of a file in memory of the server.
//!
//! Invariants
//! * Only an open that allows reading gets an answer that names memory, and memory of its file alone.
//! * Only windows inside the file get a page, so a client without much to read takes little memory. If it asks
//!   for more windows than one read needs, they get pages while memory is not scarce, or pages are a small part
//!   of the file's memory.
//! * Only a session that may speak for any user is told of an exposure that small files share.
//! * The reply fits one message. A client asks again for the segments that did not fit. The count of
//!   segments that it knows covers those that have left the file, too, so it may be told of a known one
//!   once more.

use crate::engine::convert;
use crate::engine::request::{Call, Context, Done};
use crate::engine::shown::ShownBy;
use crate::exposed::{ExposedMemory, Segment};
use crate::ops::read::READ;
use crate::ops::security;
use dafs_service::{BLOCK_BYTES, ExposedFile, SmallFile, SmallPart, WINDOW_BLOCKS};
use dafs_wire::dafs::{
    EXPOSED_WINDOWS_MAX, ExposedSegment, ExposedWindow, HEADER_BYTES, Reply, Request, Seq, Status,
    XExposeGet, XExposeGetReply,
};
use std::sync::Arc;

/// Bytes of the reply without its lists, which have a count of 8 bytes each.
const FIXED_BYTES: usize = HEADER_BYTES + 24 + 2 * 8;

/// Length of a window and of a segment in the reply, in bytes.
const WINDOW_BYTES: usize = 16;
const SEGMENT_BYTES: usize = 24;

/// The windows that one optimistic read needs at most. A client that asks for more may want the others later.
const NEEDED_WINDOWS_MAX: u32 = 2;

/// The bytes of a file that one window covers.
const COVERED_BYTES: u64 = (WINDOW_BLOCKS * BLOCK_BYTES) as u64;

pub(crate) fn expose_get(cx: &mut Context<'_>, call: &Call, args: &XExposeGet) -> Done {
    let asked = args.windows as usize;
    // A client may ask for the place of a small file alone.
    let least = usize::from(!args.small);
    if !(least..=EXPOSED_WINDOWS_MAX).contains(&asked) {
        return Err(Status::Inval);
    }
    let (handle, id) = (convert::handle(&args.fh), convert::state_id(args.state_id));
    let (Some(by), Some(memory)) = (cx.shown_by(), cx.exposed_memory()) else {
        return reply(cx, call, 0, &[], &[]);
    };
    if by == ShownBy::Reads && !cx.has_optimistic_channel() {
        return reply(cx, call, 0, &[], &[]);
    }
    if args.small && cx.is_trusted() {
        let small = cx.call_service(call, |service, caller| {
            service.expose_small(caller, &handle, id, by.is_remote())
        })?;
        match small {
            SmallFile::Other => {}
            SmallFile::Hidden => return reply(cx, call, 0, &[], &[]),
            SmallFile::Shown { exposure, part, page } => {
                let (segment, page) = (page.segment.into(), page.page.into());
                let window = ExposedWindow { window: part.window(), segment, page };
                return small_file(cx, call, (args, &*memory, by), &exposure, (part, window));
            }
        }
    }
    if asked == 0 {
        return reply(cx, call, 0, &[], &[]);
    }
    let exposed = cx.call_service(call, |service, caller| {
        service.expose(caller, &handle, id, by.is_remote())
    })?;
    let Some(exposed) = exposed else { return reply(cx, call, 0, &[], &[]) };
    // Later changes of the rules end the exposure.
    security::check_exports(cx, &Request::XExposeGet(*args))?;
    let (file, open) = cx.io_file(call, &args.fh, args.state_id, READ, (0, 0))?;
    let size = file.attr().map_err(convert::store_status)?.size;
    let room = cx.response_bytes_max().saturating_sub(FIXED_BYTES);
    let windows = windows(cx, args, &exposed, (size, room));
    // Another exposure has none of the segments that the client knows.
    let known = if args.exposure == exposed.id() { args.known as usize } else { 0 };
    let most = room.saturating_sub(windows.len() * WINDOW_BYTES) / SEGMENT_BYTES;
    let exposure = exposed.id();
    match (by, open) {
        (ShownBy::Mapping, _) => {
            let segments = mapped(cx, &memory, &exposed, (known, most));
            reply(cx, call, exposure, &windows, &segments)
        }
        (ShownBy::Reads, Some(open)) => {
            let segments = exposed.segments(known, first_of(&memory, most));
            let then = move |cx: &mut Context<'_>, call: &Call, segments: &[ExposedSegment]| {
                reply(cx, call, exposure, &windows, segments)
            };
            cx.show_on_channel(call, (segments, exposure), Some(&open), then)
        }
        (ShownBy::Reads, None) => reply(cx, call, 0, &[], &[]),
    }
}

/// Answers with the place of a small file.
fn small_file(
    cx: &mut Context<'_>,
    call: &Call,
    (args, memory, by): (&XExposeGet, &ExposedMemory, ShownBy),
    exposed: &ExposedFile,
    (part, window): (SmallPart, ExposedWindow),
) -> Done {
    // Later changes of the rules end the exposure.
    security::check_exports(cx, &Request::XExposeGet(*args))?;
    cx.io_file(call, &args.fh, args.state_id, READ, (0, 0))?;
    let known = if args.exposure == exposed.id() { args.known as usize } else { 0 };
    let room = cx.response_bytes_max().saturating_sub(FIXED_BYTES + WINDOW_BYTES);
    let most = room / SEGMENT_BYTES;
    let (exposure, base) = (exposed.id(), part.base());
    let then = move |cx: &mut Context<'_>, call: &Call, segments: &[ExposedSegment]| {
        let windows = [window];
        let (windows, segments) = (Seq::new(&windows), Seq::new(segments));
        cx.reply(call, &Reply::XExposeGet(XExposeGetReply { exposure, windows, segments, base }))
    };
    if by == ShownBy::Mapping {
        let segments = mapped(cx, memory, exposed, (known, most));
        return then(cx, call, &segments);
    }
    let segments = exposed.segments(known, first_of(memory, most));
    cx.show_on_channel(call, (segments, exposure), None, then)
}

/// Finds segments: at most so many, because an exposure may have thousands and is locked meanwhile.
fn first_of(memory: &ExposedMemory, most: usize) -> impl FnMut(u16) -> Option<Arc<Segment>> {
    let mut rest = most;
    move |number| {
        rest = rest.checked_sub(1)?;
        memory.segment(number)
    }
}

/// Shows segments of an exposure to a client that maps them, at most so many and without those that it
/// knows.
fn mapped(
    cx: &mut Context<'_>,
    memory: &ExposedMemory,
    exposed: &ExposedFile,
    (known, most): (usize, usize),
) -> Vec<ExposedSegment> {
    // The life page is the first.
    let life = memory.segment(0).filter(|_| known == 0);
    let own = exposed.segments(known.saturating_sub(1), first_of(memory, most));
    let segments: Vec<_> = life.into_iter().chain(own).take(most).collect();
    cx.show(&segments)
}

/// Returns the pages of the windows that the client asks for, as far as they are inside the file, fit
/// half of the room, and there is memory.
fn windows(
    cx: &Context<'_>,
    args: &XExposeGet,
    exposed: &ExposedFile,
    (size, room): (u64, usize),
) -> Vec<ExposedWindow> {
    let inside = args.window..size.div_ceil(COVERED_BYTES);
    let numbers = inside.take((args.windows as usize).min(room / 2 / WINDOW_BYTES));
    let are_needed = args.windows <= NEEDED_WINDOWS_MAX;
    let (mut windows, mut lacks_pages) = (Vec::new(), false);
    for window in numbers {
        let page = if are_needed { exposed.page(window) } else { exposed.spare_page(window) };
        let Some(page) = page else {
            // Windows behind it may have pages already.
            lacks_pages = true;
            continue;
        };
        let (segment, page) = (page.segment.into(), page.page.into());
        windows.push(ExposedWindow { window, segment, page });
    }
    if lacks_pages {
        cx.make_room_for(exposed);
    }
    windows
}

fn reply(
    cx: &mut Context<'_>,
    call: &Call,
    exposure: u64,
    windows: &[ExposedWindow],
    segments: &[ExposedSegment],
) -> Done {
    let (windows, segments, base) = (Seq::new(windows), Seq::new(segments), 0);
    cx.reply(call, &Reply::XExposeGet(XExposeGetReply { exposure, windows, segments, base }))
}
