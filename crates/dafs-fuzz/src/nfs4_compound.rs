//! NFSv4 compounds, arguments and results: byte 0 chooses the direction (bit 0) and the minor
//! version (bits 1 and 2); the message follows.

use dafs_wire::nfs4::{CompoundArgs, CompoundResult, Op, OpResult};
use dafs_wire::xdr::{Decode, Decoder, Encode};

fn args(d: &mut Decoder<'_>, minor_version: u32) {
    let Ok(head) = CompoundArgs::decode(d) else { return };
    for _ in 0..head.op_count {
        let Ok(op) = Op::decode(d, minor_version) else { return };
        let again = op.encoded();
        let twice = Op::decode(&mut Decoder::new(&again), minor_version).unwrap();
        assert_eq!(twice.encoded(), again);
        assert_eq!(twice.number(), op.number());
    }
}

fn results(d: &mut Decoder<'_>) {
    let Ok(head) = CompoundResult::decode(d) else { return };
    for _ in 0..head.op_count {
        let Ok(result) = OpResult::decode(d) else { return };
        let again = result.encoded();
        let twice = OpResult::decode(&mut Decoder::new(&again)).unwrap();
        assert_eq!(twice.encoded(), again);
    }
}

pub fn run(input: &[u8]) {
    let Some((choice, message)) = input.split_first() else { return };
    let mut d = Decoder::new(message);
    if choice & 1 == 0 {
        args(&mut d, u32::from(choice >> 1 & 3));
    } else {
        results(&mut d);
    }
}
