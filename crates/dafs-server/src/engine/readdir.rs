//! READDIR: entries go from the store into the reply, or over a staging chunk to the client.

use super::convert::{self, OwnerText};
use super::request::{Call, Context, Done};
use crate::limits::{BUFFERS_PER_REQUEST_MAX, STAGING_CHUNK_BYTES};
use dafs_service::Handle;
use dafs_wire::dafs::{
    AttrMask, Attributes, ByteOrder, DirEntriesLength, DirEntriesWriter, DirEntry, DirectBuffer,
    READDIR_INLINE_REPLY_ENTRIES_AT, ReadDirDirect, ReadDirDirectReply, ReadDirInline, Reply,
    ResponseHeader, Status, Verifier, encode_readdir_inline_head,
};
use smallvec::SmallVec;

/// Cookies stay valid as long as their entries exist, so one verifier does for all directories.
const COOKIE_VERIFIER: Verifier = Verifier(*b"dafsdir1");

/// Where to start and what to list.
struct Listing {
    dir: Handle,
    cookie: u64,
    attributes: AttrMask,
}

impl Context<'_> {
    pub(super) fn readdir_inline(&mut self, call: &Call, args: &ReadDirInline) -> Done {
        let listing =
            listing(convert::handle(&args.fh), args.cookie, args.cookieverf, args.attributes)?;
        let max = self.connection.response_bytes_max();
        let target = self.target(call);
        let slot = self.take_reply(max)?;
        let order = self.connection.order;
        let bytes = self.link.replies.bytes_mut(slot);
        let (ptr, room) = (bytes.as_mut_ptr(), bytes.len().min(max));
        // SAFETY: the slot's memory is private, was just taken and is not posted; the pool is not
        // touched until `area` is done with, so this is the only reference to it.
        let message = unsafe { std::slice::from_raw_parts_mut(ptr, room) };
        let (head, area) = message.split_at_mut(READDIR_INLINE_REPLY_ENTRIES_AT);
        let room = area.len().min(args.maxcount as usize);
        let listed = self.list(call, &listing, &mut area[..room], order);
        let encoded = listed.and_then(|(length, eof)| {
            let header = ResponseHeader::answering(&call.header, target);
            let verifier = COOKIE_VERIFIER;
            encode_readdir_inline_head(head, order, &header, verifier, eof, length)
                .map_err(|_| Status::ServerFault)
        });
        match encoded {
            Ok(len) => self.send(call, slot, len, target),
            Err(status) => {
                self.link.replies.give_back(slot);
                return Err(status);
            }
        }
        Ok(())
    }

    pub(super) fn readdir_direct(&mut self, call: &Call, args: &ReadDirDirect<'_>) -> Done {
        let listing =
            listing(convert::handle(&args.fh), args.cookie, args.cookieverf, args.attributes)?;
        if args.buffers.len() > BUFFERS_PER_REQUEST_MAX {
            return Err(Status::Inval);
        }
        let buffers: SmallVec<[DirectBuffer; 4]> = args.buffers.iter().collect();
        let room: usize = buffers.iter().map(|buffer| buffer.byte_count as usize).sum();
        let room = room.min(args.maxcount as usize).min(STAGING_CHUNK_BYTES);
        let order = self.connection.order;
        let mut entries = vec![0; room];
        let (length, eof) = self.list(call, &listing, &mut entries, order)?;
        let direct_checksum = self.send_direct(&buffers, |out, _| {
            out[..length.bytes].copy_from_slice(&entries[..length.bytes]);
            Ok(length.bytes)
        })?;
        let reply = ReadDirDirectReply { cookieverf: COOKIE_VERIFIER, eof, direct_checksum };
        self.reply(call, &Reply::ReadDirDirect(reply))
    }

    /// Writes the entries into `area`; their length and whether the end was reached.
    fn list(
        &self,
        call: &Call,
        listing: &Listing,
        area: &mut [u8],
        order: ByteOrder,
    ) -> Result<(DirEntriesLength, bool), Status> {
        let mut writer = DirEntriesWriter::new(area, order).map_err(|_| Status::ReadDirNoSpc)?;
        let wanted = listing.attributes;
        // The number of an object is in the directory itself; anything else costs a look at it.
        let look = !AttrMask::FILE_ID.contains(wanted);
        let eof = self.call_service(call, |service, caller| {
            service.readdir(caller, &listing.dir, listing.cookie, look, &mut |entry, object| {
                let text;
                let attributes = match &object {
                    Some((handle, attr)) => {
                        text = OwnerText::new(attr);
                        convert::attributes(handle, attr, &text, wanted)
                    }
                    // DAFS O59: an entry without attributes, not a failed call.
                    None => Attributes { file_id: Some(entry.file_id), ..Attributes::default() }
                        .only(wanted),
                };
                writer.push(&DirEntry { cookie: entry.cookie, attributes, name: entry.name })
            })
        })?;
        if writer.count() == 0 && !eof {
            return Err(Status::ReadDirNoSpc);
        }
        Ok((writer.finish().map_err(|_| Status::ServerFault)?, eof))
    }
}

fn listing(
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
    if known { Ok(Listing { dir, cookie, attributes }) } else { Err(Status::BadCookie) }
}
