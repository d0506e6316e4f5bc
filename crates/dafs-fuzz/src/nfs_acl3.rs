//! Arguments and results of NFS_ACL: byte 0 chooses the type, its bytes follow.

use dafs_wire::nfs_acl3::{GetaclArgs, GetaclOk, SetaclArgs, SetaclOk};
use dafs_wire::xdr::{Decode, Decoder, Encode};

/// A decoded value must encode to bytes that decode to the same value.
macro_rules! check {
    ($type:ty, $bytes:expr) => {{
        let mut decoder = Decoder::new($bytes);
        let Ok(value) = <$type>::decode(&mut decoder) else { return };
        let again = value.encoded();
        assert_eq!(again.len(), decoder.position());
        assert_eq!(<$type>::decode(&mut Decoder::new(&again)), Ok(value));
    }};
}

pub fn run(input: &[u8]) {
    let Some((choice, bytes)) = input.split_first() else { return };
    match choice % 4 {
        0 => check!(GetaclArgs<'_>, bytes),
        1 => check!(SetaclArgs<'_>, bytes),
        2 => check!(GetaclOk, bytes),
        _ => check!(SetaclOk, bytes),
    }
}
