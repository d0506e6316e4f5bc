//! The arguments of a call, with data that its transport has moved separately.
//!
//! Invariants
//! * Data that was moved separately is never taken for bytes of the stream. It may lie in memory
//!   that the client still writes to, and is read only as volatile memory.

use crate::io;
use dafs_mem::{Site, VolatileSlice};
use dafs_rpc::{Call, OwnedArgs, Reply};
use dafs_wire::xdr::{Decoder, MovedData, Payload};
use std::borrow::Cow;
use std::hash::Hasher;

/// The parts of a call besides its arguments.
pub(crate) trait Beside {
    /// Returns data that the transport has moved separately.
    fn data(&self, moved: &MovedData) -> Option<VolatileSlice<'_>>;

    /// Returns an empty reply that places bulk data where the caller wants it.
    fn reply(&self) -> Reply;
}

impl Beside for Call<'_> {
    fn data(&self, moved: &MovedData) -> Option<VolatileSlice<'_>> {
        Call::data(self, moved)
    }

    fn reply(&self) -> Reply {
        Call::reply(self)
    }
}

impl Beside for OwnedArgs {
    fn data(&self, moved: &MovedData) -> Option<VolatileSlice<'_>> {
        OwnedArgs::data(self, moved)
    }

    fn reply(&self) -> Reply {
        OwnedArgs::reply(self)
    }
}

/// Arguments in XDR.
#[derive(Clone, Copy)]
pub(crate) struct Args<'a> {
    /// Decodes from the start of the arguments.
    decoder: Decoder<'a>,
    beside: Option<&'a dyn Beside>,
}

impl<'a> Args<'a> {
    /// Wraps arguments that are in the stream as a whole.
    #[cfg(test)]
    pub(crate) fn plain(bytes: &'a [u8]) -> Self {
        Self { decoder: Decoder::new(bytes), beside: None }
    }

    /// Wraps arguments from which data was moved out.
    #[cfg(test)]
    pub(crate) fn with(decoder: Decoder<'a>, beside: &'a dyn Beside) -> Self {
        Self { decoder, beside: Some(beside) }
    }

    /// Returns the arguments of a call.
    pub(crate) fn of(call: &'a Call<'_>) -> Self {
        Self { decoder: call.decoder(), beside: Some(call) }
    }

    /// Returns the arguments of a call whose answer was deferred.
    pub(crate) fn of_owned(args: &'a OwnedArgs) -> Self {
        Self { decoder: args.decoder(), beside: Some(args) }
    }

    /// Returns a decoder at the start of the arguments.
    pub(crate) fn decoder(&self) -> Decoder<'a> {
        self.decoder
    }

    /// Returns the stream, without data that was moved out.
    pub(crate) fn stream(&self) -> &'a [u8] {
        self.decoder.rest()
    }

    /// Returns an empty reply for the call, which places bulk data where the caller wants it.
    pub(crate) fn reply(&self) -> Reply {
        self.beside.map_or_else(Reply::new, Beside::reply)
    }

    /// Returns the memory of a payload of these arguments. `None` if it belongs to other arguments.
    pub(crate) fn view(&self, payload: Payload<'a>) -> Option<VolatileSlice<'a>> {
        match payload {
            Payload::Here(data) => Some(io::source(data)),
            Payload::Moved(moved) => self.beside?.data(&moved),
        }
    }

    /// Returns the bytes of a short payload, such as the text of a symbolic link.
    pub(crate) fn text(&self, payload: Payload<'a>) -> Option<Cow<'a, [u8]>> {
        match payload {
            Payload::Here(text) => Some(Cow::Borrowed(text)),
            Payload::Moved(_) => Some(Cow::Owned(self.view(payload)?.to_vec(Site::NfsText))),
        }
    }

    /// Adds to a digest the two ends of all data that was moved out, up to `sample_bytes` each. The
    /// length of the data is part of the stream.
    pub(crate) fn sample_apart(&self, hasher: &mut impl Hasher, sample_bytes: usize) {
        for (index, item) in self.decoder.moved().iter().enumerate() {
            let data =
                self.beside.and_then(|beside| beside.data(&MovedData { index, len: item.len }));
            let Some(data) = data else { continue };
            let part = sample_bytes.min(data.len());
            for at in [0, data.len() - part] {
                if let Some(part) = data.slice(at, part) {
                    part.scan(|bytes| hasher.write(bytes));
                }
            }
        }
    }
}

impl std::fmt::Debug for Args<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Args").field("decoder", &self.decoder).finish_non_exhaustive()
    }
}
