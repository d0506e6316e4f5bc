//! Bodies of layouts and devices, of LAYOUTRETURN and LAYOUTSTATS, and network addresses: byte 0
//! chooses the type; the body follows.

use dafs_wire::nfs4::{
    FilesDevice, FilesLayout, FlexDevice, FlexLayout, FlexReturned, FlexUpdate, NetworkAddress,
};
use dafs_wire::xdr::{Decode, Decoder, Encode};

/// A decoded value decodes to itself after it is encoded. The bytes may differ in padding.
macro_rules! round {
    ($body:expr, $what:ident) => {{
        let Ok(value) = $what::decode(&mut Decoder::new($body)) else { return };
        let again = value.encoded();
        assert!(again.len() <= $body.len());
        assert_eq!($what::decode(&mut Decoder::new(&again)), Ok(value));
    }};
}

pub fn run(input: &[u8]) {
    let Some((choice, body)) = input.split_first() else { return };
    match choice % 7 {
        5 => {
            let (network, address) = body.split_at(body.len().min(5));
            let network = network.trim_ascii_end();
            // An address that is read leads somewhere.
            if let Some((socket, _)) = (NetworkAddress { network, address }).socket_address() {
                assert!(socket.port() != 0 && !socket.ip().is_unspecified());
            }
        }
        0 => round!(body, FilesLayout),
        1 => round!(body, FilesDevice),
        2 => round!(body, FlexLayout),
        3 => round!(body, FlexDevice),
        6 => round!(body, FlexUpdate),
        _ => round!(body, FlexReturned),
    }
}
