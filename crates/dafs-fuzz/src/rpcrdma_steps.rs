//! Damaging a message as an input says.

use crate::input::Input;

/// Changes a byte, or cuts the end off.
pub fn spoil(input: &mut Input<'_>, bytes: &mut Vec<u8>) {
    let at = usize::from(input.short()) % bytes.len();
    match input.byte() {
        0 => bytes.truncate(at),
        change => bytes[at] ^= change,
    }
}
