//! READDIR: moves entries from the store into the reply, or over a staging chunk to the client.
//!
//! Invariants
//! * The attributes of an export's root are told only to sessions that may use the export.
//! * In one turn the reactor makes about as much as one short listing. The pool makes the others,
//!   where clients take turns.

use super::attr::send_direct;
use crate::engine::convert::{self, OwnerText};
use crate::engine::request::{Call, Context, Done};
use crate::limits::{
    BUFFERS_PER_REQUEST_MAX, LISTING_PLAIN_SHARE, LISTING_TURN_BYTES, STAGING_CHUNK_BYTES,
};
use dafs_mem::{Site, VolatileSlice};
use dafs_service::{
    Caller, EntryObject, Handle, Namespace, Service, SessionProof, TransportSecurity,
};
use dafs_wire::dafs::{
    AttrMask, Attributes, ByteOrder, DirEntriesLength, DirEntriesWriter, DirEntry, DirectBuffer,
    READDIR_INLINE_REPLY_ENTRIES_AT, ReadDirDirect, ReadDirDirectReply, ReadDirInline, Reply,
    Status, Verifier, encode_readdir_inline_head,
};
use smallvec::SmallVec;

/// The verifier of all directories. Cookies stay valid as long as their entries exist, so one
/// suffices.
const COOKIE_VERIFIER: Verifier = Verifier(*b"dafsdir1");

/// The length of the entries, and true if the end was reached.
type Listed = Result<(DirEntriesLength, bool), Status>;

/// The position and the content of a listing.
struct Listing {
    dir: Handle,
    cookie: u64,
    attributes: AttrMask,
    /// The protection of the session, for the rules of exports.
    proof: SessionProof,
    security: TransportSecurity,
}

impl Listing {
    /// True if the session may know the object of an entry: an object of its directory's export, or
    /// the root of another export that the session may use.
    fn may_tell(&self, namespace: &Namespace, object: &Handle) -> bool {
        let may_use = || {
            let admits = &namespace.export(object).ok()?.options().admits;
            Some(admits.is_secure_enough(self.security) && admits.admits_session(self.proof))
        };
        object.fs == self.dir.fs || may_use() == Some(true)
    }

    /// True if each entry needs an access to its object. The number of an object is in the
    /// directory itself.
    fn looks(&self) -> bool {
        !AttrMask::FILE_ID.contains(self.attributes)
    }

    /// Returns the cost of so many bytes of it.
    fn cost(&self, bytes: usize) -> usize {
        if self.looks() { bytes } else { bytes / LISTING_PLAIN_SHARE }
    }

    /// Writes the entries into `area`.
    fn make(
        &self,
        service: &Service,
        caller: Caller<'_>,
        area: &mut [u8],
        order: ByteOrder,
    ) -> Listed {
        let mut writer = DirEntriesWriter::new(area, order).map_err(|_| Status::ReadDirNoSpc)?;
        let (wanted, namespace) = (self.attributes, service.namespace());
        let mut push = |entry: dafs_store::DirEntry<'_>, object: EntryObject| {
            let text;
            let told = object.ok().flatten();
            let told = told.filter(|(handle, _)| self.may_tell(&namespace, handle));
            let attributes = match &told {
                Some((handle, attr)) => {
                    text = OwnerText::new(attr);
                    convert::attributes(handle, attr, &text, wanted)
                }
                // DAFS O59: an entry without attributes, not a failed call.
                None => Attributes { file_id: Some(entry.file_id), ..Attributes::default() }
                    .only(wanted),
            };
            writer.push(&DirEntry { cookie: entry.cookie, attributes, name: entry.name })
        };
        let eof = service.readdir(caller, &self.dir, self.cookie, self.looks(), &mut push);
        let eof = eof.map_err(convert::status)?;
        if writer.count() == 0 && !eof {
            return Err(Status::ReadDirNoSpc);
        }
        Ok((writer.finish().map_err(|_| Status::ServerFault)?, eof))
    }
}

pub(crate) fn readdir_inline(cx: &mut Context<'_>, call: &Call, args: &ReadDirInline) -> Done {
    let listing =
        listing(cx, convert::handle(&args.fh), args.cookie, args.cookieverf, args.attributes)?;
    let max = cx.response_bytes_max();
    let room = max.saturating_sub(READDIR_INLINE_REPLY_ENTRIES_AT).min(args.maxcount as usize);
    if !may_list(cx, call, &listing, room)? {
        return list_elsewhere(cx, call, listing, room, |cx, call, entries, listed| {
            send_listing(cx, call, |_, _, area, _| {
                let (length, eof) = listed?;
                let place = VolatileSlice::from_mut(area);
                place.copy_from(&entries[..length.bytes], Site::ServerInline);
                Ok((length, eof))
            })
        });
    }
    send_listing(cx, call, |cx, call, area, order| {
        list(cx, call, &listing, &mut area[..room], order)
    })
}

/// Sends a reply whose entries `fill` writes.
fn send_listing(
    cx: &mut Context<'_>,
    call: &Call,
    fill: impl FnOnce(&mut Context<'_>, &Call, &mut [u8], ByteOrder) -> Listed,
) -> Done {
    let max = cx.response_bytes_max();
    let slot = cx.take_reply(max)?;
    let order = cx.transfers().order();
    let bytes = cx.replies().bytes_mut(slot);
    let (ptr, room) = (bytes.as_mut_ptr(), bytes.len().min(max));
    // SAFETY: the slot's memory is private, was just taken and is not posted. The pool is not
    // used until `area` is dropped, so this is the only reference to it.
    let message = unsafe { std::slice::from_raw_parts_mut(ptr, room) };
    match fill(cx, call, &mut message[READDIR_INLINE_REPLY_ENTRIES_AT..], order) {
        Ok((length, eof)) => cx.send_filled(call, slot, |head, order, header| {
            encode_readdir_inline_head(head, order, header, COOKIE_VERIFIER, eof, length)
        }),
        Err(status) => {
            cx.replies().give_back(slot);
            Err(status)
        }
    }
}

pub(crate) fn readdir_direct(cx: &mut Context<'_>, call: &Call, args: &ReadDirDirect<'_>) -> Done {
    let listing =
        listing(cx, convert::handle(&args.fh), args.cookie, args.cookieverf, args.attributes)?;
    if args.buffers.len() > BUFFERS_PER_REQUEST_MAX {
        return Err(Status::Inval);
    }
    let buffers: SmallVec<[DirectBuffer; 4]> = args.buffers.iter().collect();
    let room: usize = buffers.iter().map(|buffer| buffer.byte_count as usize).sum();
    let room = room.min(args.maxcount as usize).min(STAGING_CHUNK_BYTES);
    if !may_list(cx, call, &listing, room)? {
        return list_elsewhere(cx, call, listing, room, move |cx, call, entries, listed| {
            place_listing(cx, call, &buffers, &entries, listed?)
        });
    }
    let order = cx.transfers().order();
    let mut entries = vec![0; room];
    let listed = list(cx, call, &listing, &mut entries, order)?;
    place_listing(cx, call, &buffers, &entries, listed)
}

fn place_listing(
    cx: &mut Context<'_>,
    call: &Call,
    buffers: &[DirectBuffer],
    entries: &[u8],
    (length, eof): (DirEntriesLength, bool),
) -> Done {
    let direct_checksum = send_direct(cx, buffers, |out, _| {
        out[..length.bytes].copy_from_slice(&entries[..length.bytes]);
        Ok(length.bytes)
    })?;
    let reply = ReadDirDirectReply { cookieverf: COOKIE_VERIFIER, eof, direct_checksum };
    cx.reply(call, &Reply::ReadDirDirect(reply))
}

/// True if a listing is short enough for the reactor, and the turn has budget left. A client that has
/// had layouts may have written to the listed files at data servers, which are then asked.
fn may_list(
    cx: &mut Context<'_>,
    call: &Call,
    listing: &Listing,
    room: usize,
) -> Result<bool, Status> {
    let writes = |_: &Service, caller: Caller<'_>| caller.client.may_have_late_writes();
    let asks = listing.looks() && cx.call_service_raw(call, writes)?;
    Ok(!asks && listing.cost(room) <= LISTING_TURN_BYTES && *cx.listed() < LISTING_TURN_BYTES)
}

/// Makes a listing on the reactor.
fn list(
    cx: &mut Context<'_>,
    call: &Call,
    listing: &Listing,
    area: &mut [u8],
    order: ByteOrder,
) -> Listed {
    let listed =
        cx.call_service_raw(call, |service, caller| listing.make(service, caller, area, order))?;
    *cx.listed() += listed.map_or(0, |(length, _)| listing.cost(length.bytes));
    listed
}

/// Makes a listing on the pool. `then` goes on in the engine.
fn list_elsewhere(
    cx: &mut Context<'_>,
    call: &Call,
    listing: Listing,
    room: usize,
    then: impl FnOnce(&mut Context<'_>, &Call, Vec<u8>, Listed) -> Done + Send + 'static,
) -> Done {
    let order = cx.transfers().order();
    cx.call_elsewhere(
        call,
        &listing.dir.clone(),
        move |service, caller| {
            let mut entries = vec![0; room];
            let listed = listing.make(service, caller, &mut entries, order);
            (entries, listed)
        },
        |cx, call, (entries, listed)| then(cx, call, entries, listed),
    )
}

fn listing(
    cx: &Context<'_>,
    dir: Handle,
    cookie: u64,
    verifier: Verifier,
    attributes: AttrMask,
) -> Result<Listing, Status> {
    let known = match cookie {
        0 => true,
        1 | 2 => false,
        _ => verifier == COOKIE_VERIFIER,
    };
    let (proof, security) = (cx.session_proof(), cx.security());
    let listing = Listing { dir, cookie, attributes, proof, security };
    if known { Ok(listing) } else { Err(Status::BadCookie) }
}
