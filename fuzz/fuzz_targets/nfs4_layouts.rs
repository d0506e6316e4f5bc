//! What a files layout and a device look like to a client: byte 0 chooses (bit 0); the body follows.

#![no_main]

use dafs_wire::nfs4::{FilesDevice, FilesLayout};
use dafs_wire::xdr::{Decode, Decoder, Encode, Encoder};
use libfuzzer_sys::fuzz_target;

fn encoded(value: &impl Encode) -> Vec<u8> {
    let mut out = Vec::new();
    value.encode(&mut Encoder::new(&mut out));
    out
}

/// What was read is read again as it is written. The bytes may differ: padding may be anything.
fn layout(body: &[u8]) {
    let Ok(layout) = FilesLayout::decode(&mut Decoder::new(body)) else { return };
    let again = encoded(&layout);
    assert!(again.len() <= body.len());
    assert_eq!(FilesLayout::decode(&mut Decoder::new(&again)), Ok(layout));
}

fn device(body: &[u8]) {
    let Ok(device) = FilesDevice::decode(&mut Decoder::new(body)) else { return };
    let again = encoded(&device);
    assert!(again.len() <= body.len());
    assert_eq!(FilesDevice::decode(&mut Decoder::new(&again)), Ok(device));
}

fuzz_target!(|input: &[u8]| {
    let Some((choice, body)) = input.split_first() else { return };
    if choice & 1 == 0 { layout(body) } else { device(body) }
});
