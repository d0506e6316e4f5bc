//! What a files layout and a device look like to a client: byte 0 chooses (bit 0); the body follows.

#![no_main]

use dafs_wire::nfs4::{FilesDevice, FilesLayout};
use dafs_wire::xdr::{Decode, Decoder, Encode, Encoder};
use libfuzzer_sys::fuzz_target;

fn round<'a, T: Decode<'a> + Encode>(bytes: &'a [u8]) {
    let Ok(value) = T::decode(&mut Decoder::new(bytes)) else { return };
    let mut again = Vec::new();
    value.encode(&mut Encoder::new(&mut again));
    assert!(bytes.starts_with(&again), "what was read is what is written");
}

fuzz_target!(|input: &[u8]| {
    let Some((choice, body)) = input.split_first() else { return };
    if choice & 1 == 0 { round::<FilesLayout<'_>>(body) } else { round::<FilesDevice<'_>>(body) }
});
