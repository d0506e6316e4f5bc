//! NFSv4 attributes: byte 0 chooses whether they are set (bit 0) or read; the attributes follow.

use dafs_wire::nfs4::{Attr, Attributes, Fattr, FattrError, SetAttributes};
use dafs_wire::xdr::{Decode, Decoder};

pub fn run(input: &[u8]) {
    let Some((choice, message)) = input.split_first() else { return };
    let Ok(fattr) = Fattr::decode(&mut Decoder::new(message)) else { return };
    let mask = fattr.mask;
    if choice & 1 == 0 {
        match Attributes::decode(&fattr) {
            Ok(read) => {
                assert_eq!(read.mask(), mask);
                let values = read.to_values();
                let again = Attributes::decode(&Fattr { mask, values: &values }).unwrap();
                assert_eq!(again.to_values(), values);
            }
            Err(error) => assert!(!matches!(error, FattrError::ReadOnly(_))),
        }
    } else if let Ok(set) = SetAttributes::decode(&fattr, Attr::KNOWN) {
        assert_eq!(set.mask(), mask);
        assert!(mask.is_subset_of(Attr::SETTABLE));
        let values = set.to_values();
        let fattr = Fattr { mask, values: &values };
        assert_eq!(SetAttributes::decode(&fattr, Attr::KNOWN).unwrap().to_values(), values);
    }
}
