//! Properties of the NFSv4 codec: a decoded value encodes to the same value, a truncated message is
//! refused, and no bytes make a decoder panic. Messages are generated from words that are mostly
//! small numbers, so that many of them are valid.

use dafs_wire::nfs4::*;
use dafs_wire::xdr::{Decode, Decoder, Encode, Encoder};
use proptest::prelude::*;

/// True if the value holds a bitmap with unknown numbers, which are not encoded.
fn has_unknown(value: &impl std::fmt::Debug) -> bool {
    format!("{value:?}").contains("unknown}")
}

/// Words of which most are small.
fn words() -> impl Strategy<Value = Vec<u8>> {
    let word = prop_oneof![6 => 0u32..4, 2 => 0u32..32, 1 => any::<u32>()];
    proptest::collection::vec(word, 0..80)
        .prop_map(|words| words.into_iter().flat_map(u32::to_be_bytes).collect())
}

fn op_number() -> impl Strategy<Value = u32> {
    prop_oneof![10 => 0u32..80, 1 => any::<u32>()]
}

fn message(number: u32, rest: &[u8]) -> Vec<u8> {
    [&number.to_be_bytes()[..], rest].concat()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn operations_survive(number in op_number(), rest in words()) {
        let wire = message(number, &rest);
        let mut d = Decoder::new(&wire);
        let Ok(op) = Op::decode(&mut d, 2) else { return Ok(()) };
        let used = d.position();
        let again = op.encoded();
        let mut d = Decoder::new(&again);
        let twice = Op::decode(&mut d, 2).unwrap();
        prop_assert!(twice == op || has_unknown(&op), "{:?} became {:?}", op, twice);
        prop_assert_eq!(&twice.encoded(), &again);
        prop_assert_eq!(d.remaining(), 0);
        for cut in 0..used {
            let part = Op::decode(&mut Decoder::new(&wire[..cut]), 2);
            prop_assert!(part.is_err(), "cut at {} of {}: {:?}", cut, used, part);
        }
    }

    #[test]
    fn results_survive(number in op_number(), rest in words()) {
        let wire = message(number, &rest);
        let mut d = Decoder::new(&wire);
        let Ok(result) = OpResult::decode(&mut d) else { return Ok(()) };
        let used = d.position();
        let again = result.encoded();
        let mut d = Decoder::new(&again);
        let twice = OpResult::decode(&mut d).unwrap();
        prop_assert_eq!(d.remaining(), 0);
        prop_assert_eq!(&twice.encoded(), &again);
        for cut in 0..used {
            prop_assert!(OpResult::decode(&mut Decoder::new(&wire[..cut])).is_err());
        }
    }

    #[test]
    fn successes_survive(number in 3u32..76, rest in words()) {
        // As above, with the status OK, which random words seldom start with.
        let wire = message(number, &[&[0; 4][..], &rest].concat());
        let mut d = Decoder::new(&wire);
        let Ok(result) = OpResult::decode(&mut d) else { return Ok(()) };
        let again = result.encoded();
        let twice = OpResult::decode(&mut Decoder::new(&again)).unwrap();
        prop_assert_eq!(&twice.encoded(), &again);
    }

    #[test]
    fn callbacks_survive(number in 0u32..18, rest in words()) {
        let wire = message(number, &rest);
        let mut d = Decoder::new(&wire);
        if let Ok(op) = CbOp::decode(&mut d) {
            let used = d.position();
            let again = op.encoded();
            let twice = CbOp::decode(&mut Decoder::new(&again)).unwrap();
            prop_assert!(twice == op || has_unknown(&op), "{:?} became {:?}", op, twice);
            prop_assert_eq!(&twice.encoded(), &again);
            for cut in 0..used {
                prop_assert!(CbOp::decode(&mut Decoder::new(&wire[..cut])).is_err());
            }
        }
        if let Ok(result) = CbOpResult::decode(&mut Decoder::new(&wire)) {
            let again = result.encoded();
            let twice = CbOpResult::decode(&mut Decoder::new(&again)).unwrap();
            prop_assert!(twice == result || has_unknown(&result));
        }
    }

    #[test]
    fn attributes_survive(numbers in proptest::collection::vec(0u32..87, 0..6), values in words()) {
        let mask: Bitmap = numbers.iter().copied().collect();
        // Cut the values at the end of the attributes; only a trial finds it.
        for length in (0..=values.len()).step_by(4) {
            let fattr = Fattr { mask, values: &values[..length] };
            if let Ok(read) = Attributes::decode(&fattr) {
                prop_assert_eq!(read.mask(), mask);
                let again = Fattr { mask, values: &read.to_values() }.encoded();
                let mut direct = Vec::new();
                read.encode(&mut Encoder::new(&mut direct));
                prop_assert_eq!(&direct, &again);
                let fattr = Fattr::decode(&mut Decoder::new(&again)).unwrap();
                let twice = Attributes::decode(&fattr).unwrap();
                prop_assert!(twice == read || has_unknown(&read));
            }
            if let Ok(set) = SetAttributes::decode(&fattr, Attr::KNOWN) {
                let values = set.to_values();
                let fattr = Fattr { mask, values: &values };
                prop_assert_eq!(SetAttributes::decode(&fattr, Attr::KNOWN).unwrap(), set);
            }
        }
    }

    #[test]
    fn no_bytes_panic(number in op_number(), rest: Vec<u8>) {
        let wire = message(number, &rest);
        let _ = Op::decode(&mut Decoder::new(&wire), 2);
        let _ = OpResult::decode(&mut Decoder::new(&wire));
        let _ = CbOp::decode(&mut Decoder::new(&wire));
        let _ = CbOpResult::decode(&mut Decoder::new(&wire));
        let _ = CompoundArgs::decode(&mut Decoder::new(&wire));
        if let Ok(fattr) = Fattr::decode(&mut Decoder::new(&rest)) {
            let _ = SetAttributes::decode(&fattr, Attr::KNOWN);
        }
        prop_assert!(Decoder::new(&wire).remaining() == wire.len());
    }

    #[test]
    fn bitmaps_are_sets(numbers in proptest::collection::vec(0u32..96, 0..20), other in 0u32..96) {
        let set: Bitmap = numbers.iter().copied().collect();
        let mut sorted = numbers.clone();
        sorted.sort_unstable();
        sorted.dedup();
        prop_assert_eq!(set.iter().collect::<Vec<_>>(), sorted);
        prop_assert_eq!(set.contains(other), numbers.contains(&other));
        prop_assert!(set.with(other).contains(other) && !set.without(other).contains(other));
        prop_assert_eq!(Bitmap::decode(&mut Decoder::new(&set.encoded())).unwrap(), set);
    }
}
