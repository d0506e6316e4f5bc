//! Arguments and results of NLM, and the notification of NSM: byte 0 chooses the type, its bytes
//! follow.

use dafs_wire::nlm4::{
    CancelArgs, FreeAllArgs, LockArgs, LockResult, ShareArgs, ShareResult, TestArgs, TestResult,
    UnlockArgs,
};
use dafs_wire::nsm1::NotifyArgs;
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
    match choice % 10 {
        0 => check!(LockArgs<'_>, bytes),
        1 => check!(CancelArgs<'_>, bytes),
        2 => check!(TestArgs<'_>, bytes),
        3 => check!(UnlockArgs<'_>, bytes),
        4 => check!(ShareArgs<'_>, bytes),
        5 => check!(FreeAllArgs<'_>, bytes),
        6 => check!(LockResult<'_>, bytes),
        7 => check!(TestResult<'_>, bytes),
        8 => check!(ShareResult<'_>, bytes),
        _ => check!(NotifyArgs<'_>, bytes),
    }
}
