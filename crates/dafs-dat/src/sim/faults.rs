//! The faults of a simulated network, and their rates.

use std::time::Duration;

/// The knobs of a world. Chances are in parts per million, delays in steps of 10 microseconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SimFaults {
    /// Every hop takes 1 to this many steps.
    pub delay_steps_max: u32,
    /// Chance per piece of a message that it is slow.
    pub slow_ppm: u32,
    /// A slow piece takes up to this many steps.
    pub slow_steps_max: u32,
    /// Messages and transfers travel in pieces of at most this many bytes.
    pub piece_bytes_max: u32,
    /// Chance per connection that it is lost at some byte.
    pub loss_ppm: u32,
    /// The byte at which it is lost, at most; small numbers are as likely as large ones.
    pub loss_bytes_max: u64,
    /// Each side learns of a loss after 1 to this many steps.
    pub notice_steps_max: u32,
    /// Chance that a side learns of a loss only after a long silence.
    pub silent_ppm: u32,
    /// The longest such silence.
    pub silence: Duration,
    /// Chance that a connection is refused although there is a listener.
    pub refuse_ppm: u32,
    /// Chance that a connection is lost during its set-up.
    pub connect_loss_ppm: u32,
    /// Danger: chance per piece of RDMA payload that one bit arrives wrong. No transport may do
    /// that; it proves that a checker notices.
    pub danger_corrupt_ppm: u32,
}

impl SimFaults {
    /// A network that delays and reorders but loses nothing.
    pub fn none() -> Self {
        Self {
            delay_steps_max: 8,
            slow_ppm: 0,
            slow_steps_max: 0,
            piece_bytes_max: 64 << 10,
            loss_ppm: 0,
            loss_bytes_max: 0,
            notice_steps_max: 100,
            silent_ppm: 0,
            silence: Duration::ZERO,
            refuse_ppm: 0,
            connect_loss_ppm: 0,
            danger_corrupt_ppm: 0,
        }
    }

    /// A network on which most connections break.
    pub fn rough() -> Self {
        Self {
            delay_steps_max: 30,
            slow_ppm: 20_000,
            slow_steps_max: 2_000,
            piece_bytes_max: 8 << 10,
            loss_ppm: 800_000,
            loss_bytes_max: 1 << 20,
            notice_steps_max: 2_000,
            silent_ppm: 100_000,
            silence: Duration::from_secs(20),
            refuse_ppm: 50_000,
            connect_loss_ppm: 50_000,
            danger_corrupt_ppm: 0,
        }
    }
}
