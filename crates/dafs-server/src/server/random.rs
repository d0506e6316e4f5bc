//! Random numbers of a run.

use crate::hand_over::Released;
use std::io;

/// Random numbers that distinguish one run of the server from another.
pub(super) struct Random {
    pub(super) instance: u32,
    pub(super) client_key: [u64; 2],
    pub(super) registry_key: [u64; 2],
    pub(super) write_verifier: u64,
    pub(super) secret: [u8; 16],
}

impl Random {
    /// Draws them, but for those that still hold after the former run.
    pub(super) fn draw_after(former: &Released) -> io::Result<Self> {
        let random = Self::draw()?;
        let write_verifier = former.write_verifier.map(u64::from_be_bytes);
        Ok(Self { write_verifier: write_verifier.unwrap_or(random.write_verifier), ..random })
    }

    pub(super) fn draw() -> io::Result<Self> {
        let mut bytes = [0; 60];
        getrandom::fill(&mut bytes).map_err(io::Error::other)?;
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[at..at + 8]);
            u64::from_ne_bytes(word)
        };
        Ok(Self {
            // Zero is excluded, because state-ids below 2^32 would look like small numbers.
            instance: (word(20) as u32).max(1),
            client_key: [word(44), word(52)],
            registry_key: [word(0), word(8)],
            write_verifier: word(16),
            secret: std::array::from_fn(|at| bytes[28 + at]),
        })
    }
}
