//! Cache hints: what a program predicts of its use of a file.

use crate::boundary::call_plainly;
use crate::error::{Failure, invalid};
use crate::file::file;
use crate::handle::dap_file_t;
use dafs_client::{AccessPattern, HintWord};

/// Says nothing.
pub const DAP_HINT_NONE: u32 = 0x00;
/// The program is done with the range: it leaves the server's cache.
pub const DAP_HINT_DONE: u32 = 0x12;
/// The program keeps the range itself: it leaves the server's cache first.
pub const DAP_HINT_CACHED: u32 = 0x24;
/// The program will use the range again.
pub const DAP_HINT_AGAIN: u32 = 0x7e;
/// The range is to be read ahead; only for dap_hint().
pub const DAP_HINT_PREFETCH: u32 = 0x0f;

/// No particular pattern; beside a prediction it says nothing.
pub const DAP_PATTERN_NORMAL: u32 = 0;
/// The file is used at random places.
pub const DAP_PATTERN_RANDOM: u32 = 1;
/// The file is used from front to back.
pub const DAP_PATTERN_SEQUENTIAL: u32 = 2;

/// The bits of a hint.
const HINT_BITS: u32 = 0x7f;

fn word(hint: u32) -> Result<HintWord, Failure> {
    match hint {
        ..=HINT_BITS => Ok(HintWord::from_bits(hint)),
        _ => Err(invalid("a hint has seven bits")),
    }
}

fn pattern(number: u32) -> Result<AccessPattern, Failure> {
    match number {
        DAP_PATTERN_NORMAL => Ok(AccessPattern::Normal),
        DAP_PATTERN_RANDOM => Ok(AccessPattern::Random),
        DAP_PATTERN_SEQUENTIAL => Ok(AccessPattern::Sequential),
        _ => Err(invalid("a pattern is 0, 1 or 2")),
    }
}

/// Announces that a range will be used soon, and asks the server to read it ahead. The server reads a
/// bounded part, 16 MiB. DAP_E_PREFETCH_NOT_SUPPORTED where that has no use.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn dap_prefetch(handle: dap_file_t, offset: u64, len: u32) -> i32 {
    call_plainly(|| Ok(file(handle)?.0.prefetch(offset, len)?))
}

/// Gives the server a hint about `len` bytes from `offset` (0: to the end of the file). `pattern` is
/// DAP_PATTERN_... and is about the whole file. `hint` is DAP_HINT_..., or bit 0 for a prefetch with
/// weights from 1 (surely not) to 7 (surely) for further reads in bits 1 to 3 and for further writes
/// in bits 4 to 6; a weight of 0 says nothing.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn dap_hint(
    handle: dap_file_t,
    offset: u64,
    len: u32,
    pattern: u32,
    hint: u32,
) -> i32 {
    call_plainly(|| {
        let (pattern, word) = (self::pattern(pattern)?, word(hint)?);
        Ok(file(handle)?.0.cache_hint(offset, len, pattern, word)?)
    })
}

/// Sets the hint that rides on each later read, write and append of a file, about the bytes that it
/// moves. It fails none of them, and needs no message.
///
/// Threads: any. Transfers of other threads that are under way may have either hint.
#[unsafe(no_mangle)]
pub extern "C" fn dap_set_hint(handle: dap_file_t, hint: u32) -> i32 {
    call_plainly(|| {
        let word = word(hint)?;
        file(handle)?.0.set_hint(word);
        Ok(())
    })
}
