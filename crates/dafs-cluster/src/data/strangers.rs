//! Those who have connected to a data server and not shown yet that they know the secret.
//!
//! Invariants
//! * There are at most [`HELLOS_MAX`]. Whoever comes then takes the place of the one who has been
//!   silent for longest: so nobody keeps the metadata server out by being there.

use super::lock;
use crate::limits::HELLOS_MAX;
use std::collections::VecDeque;
use std::io;
use std::net::{Shutdown, TcpStream};
use std::sync::Mutex;

/// They, in the order in which they came.
#[derive(Default)]
pub(super) struct Strangers {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    next: u64,
    here: VecDeque<(u64, TcpStream)>,
}

impl Strangers {
    /// Somebody has come. It is called by a number until it [leaves](Self::leave).
    ///
    /// # Errors
    /// Those of the system.
    pub(super) fn enter(&self, stream: &TcpStream) -> io::Result<u64> {
        let stream = stream.try_clone()?;
        let mut state = lock(&self.state);
        if state.here.len() >= HELLOS_MAX
            && let Some((_, oldest)) = state.here.pop_front()
        {
            // Its thread wakes up and ends.
            let _ = oldest.shutdown(Shutdown::Both);
        }
        let number = state.next;
        state.next += 1;
        state.here.push_back((number, stream));
        Ok(number)
    }

    /// It is known now, or gone.
    pub(super) fn leave(&self, number: u64) {
        lock(&self.state).here.retain(|(other, _)| *other != number);
    }
}
