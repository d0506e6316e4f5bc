//! NFSv4 callback compounds, arguments and results: byte 0 chooses the direction (bit 0); the
//! message follows.

use dafs_wire::nfs4::{CbCompoundArgs, CbCompoundResult, CbOp, CbOpResult};
use dafs_wire::xdr::{Decode, Decoder, Encode};

fn args(d: &mut Decoder<'_>) {
    let Ok(head) = CbCompoundArgs::decode(d) else { return };
    for _ in 0..head.op_count {
        let Ok(op) = CbOp::decode(d) else { return };
        let again = op.encoded();
        let twice = CbOp::decode(&mut Decoder::new(&again)).unwrap();
        assert_eq!(twice.encoded(), again);
    }
}

fn results(d: &mut Decoder<'_>) {
    let Ok(head) = CbCompoundResult::decode(d) else { return };
    for _ in 0..head.op_count {
        let Ok(result) = CbOpResult::decode(d) else { return };
        let again = result.encoded();
        let twice = CbOpResult::decode(&mut Decoder::new(&again)).unwrap();
        assert_eq!(twice.encoded(), again);
    }
}

pub fn run(input: &[u8]) {
    let Some((choice, message)) = input.split_first() else { return };
    let mut d = Decoder::new(message);
    if choice & 1 == 0 { args(&mut d) } else { results(&mut d) }
}
