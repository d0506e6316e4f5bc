//! Reading an input, and damaging a message as it says.

/// Reads the input; zeros when it is used up.
pub struct Input<'a>(pub &'a [u8]);

impl Input<'_> {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn byte(&mut self) -> u8 {
        match self.0.split_first() {
            Some((first, rest)) => {
                self.0 = rest;
                *first
            }
            None => 0,
        }
    }

    pub fn short(&mut self) -> u16 {
        u16::from_be_bytes([self.byte(), self.byte()])
    }

    pub fn take(&mut self, len: usize) -> Vec<u8> {
        let (taken, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        taken.to_vec()
    }
}

/// Changes a byte, or cuts the end off.
pub fn spoil(input: &mut Input<'_>, bytes: &mut Vec<u8>) {
    let at = usize::from(input.short()) % bytes.len();
    match input.byte() {
        0 => bytes.truncate(at),
        change => bytes[at] ^= change,
    }
}
