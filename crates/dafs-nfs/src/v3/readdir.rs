//! READDIR and READDIRPLUS (RFC 1813 3.3.16, 3.3.17): moves entries from the store into the reply.
//!
//! Invariants
//! * A result is never longer than the client's limit. A limit that cannot hold a single entry is
//!   refused, so every call makes progress.
//! * Cookies 1 and 2 stand behind "." and "..". Higher cookies are the store's, and stay valid
//!   while their entry exists, also across changes of other entries and restarts of the server. So
//!   one verifier suffices for all.

use super::lookup::{directory, parent};
use super::{Args, Context, Done, Stop, args, attributes};
use crate::limits::{READDIR_LOOK_BYTES_MAX, TRANSFER_BYTES_MAX};
use crate::wire_handle;
use dafs_rpc::Reply;
use dafs_service::{EntryObject, Handle};
use dafs_store::{Attr, Wait};
use dafs_wire::nfs3::{
    Entry, EntryPlus, FileHandle, ObjectFailure, ReaddirArgs, ReaddirplusArgs, Status,
    VERIFIER_BYTES,
};
use dafs_wire::xdr::padded;

/// The verifier of every cookie.
const COOKIE_VERIFIER: [u8; VERIFIER_BYTES] = *b"dafsdir1";

/// The cookie behind ".".
const COOKIE_SELF: u64 = 1;

/// The cookie behind "..".
const COOKIE_PARENT: u64 = 2;

/// Bytes behind the entries: the end of the list, and the eof flag.
const TAIL_BYTES: usize = 4 + 4;

/// Returns the bytes of an entry without attributes and handle: the list flag, file id, name and
/// cookie.
pub(super) fn entry_bytes(name: &[u8]) -> usize {
    4 + 8 + 4 + padded(name.len()) + 8
}

/// A listing under way: its position and its limits.
struct Listing {
    dir: Handle,
    cookie: u64,
    /// Bytes left for entries, without attributes and handles.
    dir_bytes_left: usize,
    /// Bytes left in all.
    bytes_left: usize,
    plus: bool,
    /// Entries that were written.
    count: usize,
}

impl Listing {
    /// Writes an entry if it fits. The first entry needs only to fit into the whole.
    fn push(
        &mut self,
        reply: &mut Reply,
        name: &[u8],
        cookie: u64,
        file_id: u64,
        object: Option<(Handle, Attr)>,
    ) -> bool {
        let dir_bytes = entry_bytes(name);
        if self.count > 0 && dir_bytes > self.dir_bytes_left {
            return false;
        }
        let mark = reply.mark();
        let before = reply.len();
        let mut encoder = reply.encoder();
        encoder.bool(true);
        if self.plus {
            let handle = object.as_ref().map(|(handle, _)| wire_handle::encode(handle));
            encoder.value(&EntryPlus {
                file_id,
                name,
                cookie,
                attributes: object.map(|(handle, attr)| attributes(&handle.fs, &attr)),
                object: handle.as_ref().map(|bytes| FileHandle(bytes)),
            });
        } else {
            encoder.value(&Entry { file_id, name, cookie });
        }
        let bytes = reply.len() - before;
        if bytes > self.bytes_left {
            reply.truncate_to(mark);
            return false;
        }
        self.bytes_left -= bytes;
        self.dir_bytes_left = self.dir_bytes_left.saturating_sub(dir_bytes);
        self.count += 1;
        true
    }
}

pub(super) fn readdir(cx: &mut Context<'_>, wire: Args<'_>) -> Done {
    let args: ReaddirArgs<'_> = args(wire)?;
    let limits = (usize::MAX, args.count);
    let outcome = list(cx, args.dir, (args.cookie, args.verifier), limits, false);
    cx.finish(outcome, |cx| ObjectFailure { attributes: cx.attributes_of(args.dir) })
}

pub(super) fn readdirplus(cx: &mut Context<'_>, wire: Args<'_>) -> Done {
    let args: ReaddirplusArgs<'_> = args(wire)?;
    let limits = (args.dir_count as usize, args.max_count);
    let outcome = list(cx, args.dir, (args.cookie, args.verifier), limits, true);
    cx.finish(outcome, |cx| ObjectFailure { attributes: cx.attributes_of(args.dir) })
}

fn list(
    cx: &mut Context<'_>,
    dir: FileHandle<'_>,
    (cookie, verifier): (u64, [u8; VERIFIER_BYTES]),
    (dir_bytes_max, bytes_max): (usize, u32),
    plus: bool,
) -> Result<(), Stop> {
    let dir = cx.handle(dir)?;
    let longest = if plus { READDIR_LOOK_BYTES_MAX } else { TRANSFER_BYTES_MAX as usize };
    let bytes_max = (bytes_max as usize).min(longest);
    let (here, listings) = (cx.wait == Wait::Never, cx.sender.listings.clone());
    if here && !listings.may(cx.sender.now_ns, bytes_max, plus) {
        return Err(Stop::Wait);
    }
    let attr = directory(cx, &dir)?;
    if cookie != 0 && verifier != COOKIE_VERIFIER {
        return Err(Status::BadCookie.into());
    }
    let start = cx.reply.len();
    let mut encoder = cx.reply.encoder();
    encoder.u32(Status::Ok.number());
    encoder.optional(Some(&attributes(&dir.fs, &attr)));
    encoder.fixed(&COOKIE_VERIFIER);
    // The limit applies to the bytes behind the status.
    let head_bytes = cx.reply.len() - start - 4;
    let Some(bytes_left) = bytes_max.checked_sub(head_bytes + TAIL_BYTES) else {
        return Err(Status::TooSmall.into());
    };
    let mut listing =
        Listing { dir, cookie, dir_bytes_left: dir_bytes_max, bytes_left, plus, count: 0 };
    let mut reply = std::mem::take(&mut cx.reply);
    let listed = entries(cx, &mut listing, &attr, &mut reply);
    cx.reply = reply;
    if here {
        listings.add(cx.reply.len() - start, plus);
    }
    let eof = listed?;
    if listing.count == 0 && !eof {
        return Err(Status::TooSmall.into());
    }
    let mut encoder = cx.reply.encoder();
    encoder.bool(false);
    encoder.bool(eof);
    Ok(())
}

/// Writes the entries that fit. Returns true when the directory ends there.
fn entries(
    cx: &Context<'_>,
    listing: &mut Listing,
    attr: &Attr,
    reply: &mut Reply,
) -> Result<bool, Stop> {
    let dir = listing.dir;
    if listing.cookie < COOKIE_SELF {
        let object = Some((dir, *attr));
        if !listing.push(reply, b".", COOKIE_SELF, attr.file_id, object) {
            return Ok(false);
        }
    }
    if listing.cookie < COOKIE_PARENT {
        let above = parent(cx, &dir)?;
        let attr = cx.service().getattr(&above)?;
        if !listing.push(reply, b"..", COOKIE_PARENT, attr.file_id, Some((above, attr))) {
            return Ok(false);
        }
    }
    let after = if listing.cookie <= COOKIE_PARENT { 0 } else { listing.cookie };
    let plus = listing.plus;
    let (origin, flavour) = (&cx.sender.origin, cx.sender.who.flavour);
    let mut sink = |entry: dafs_store::DirEntry<'_>, object: EntryObject| {
        // Attributes are optional in results. The root of an export in the directory of exports has
        // rules of its own.
        let object = object.ok().flatten().filter(|(handle, _)| {
            handle.fs == dir.fs || cx.shared.admits(handle, origin, flavour).is_ok()
        });
        listing.push(reply, entry.name, entry.cookie, entry.file_id, object)
    };
    Ok(cx.service().readdir(cx.caller(), &dir, after, plus, &mut sink)?)
}
