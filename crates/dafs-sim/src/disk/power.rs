//! The power supply of a server. After it goes off, no action of that server has an effect.

use dafs_mem::Mutex;
use dafs_store::StoreError;
use std::fmt;
use std::sync::Arc;

/// A callback at the end of a server, such as cutting the network.
type AtEnd = Box<dyn Fn() + Send + Sync>;

/// Knows which server is alive, and ends it between two of its effects. Clones share it.
#[derive(Clone)]
pub(crate) struct Power {
    state: Arc<Mutex<State>>,
    at_end: Arc<AtEnd>,
}

#[derive(Debug, Default)]
struct State {
    /// The server that may have effects now; earlier ones have ended.
    server: u64,
    /// Effects until it ends.
    effects_left: Option<u64>,
    /// It has ended and no other has started.
    off: bool,
}

impl fmt::Debug for Power {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Power").field("state", &self.state).finish_non_exhaustive()
    }
}

/// One server's access to the state that outlives it.
#[derive(Debug, Clone)]
pub(crate) struct Plug {
    power: Power,
    server: u64,
}

/// The server has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Off;

impl From<Off> for StoreError {
    fn from(_: Off) -> Self {
        Self::Io
    }
}

impl Power {
    /// Creates a power supply. It calls `at_end` when a server ends.
    pub(crate) fn new(at_end: impl Fn() + Send + Sync + 'static) -> Self {
        Self { state: Arc::default(), at_end: Arc::new(Box::new(at_end)) }
    }

    /// A plug for a new server. Earlier servers have ended.
    pub(crate) fn plug(&self) -> Plug {
        let mut state = self.state.lock();
        state.server += 1;
        state.off = false;
        state.effects_left = None;
        Plug { power: self.clone(), server: state.server }
    }

    /// Ends the server after this many more effects.
    pub(crate) fn end_after(&self, effects: u64) {
        self.state.lock().effects_left = Some(effects);
    }

    /// Cancels a scheduled end.
    pub(crate) fn spare(&self) {
        self.state.lock().effects_left = None;
    }

    /// Ends the server now.
    #[cfg(test)]
    pub(crate) fn end(&self) {
        self.state.lock().off = true;
        (self.at_end)();
    }

    /// True while no server is alive.
    pub(crate) fn is_off(&self) -> bool {
        self.state.lock().off
    }
}

impl Plug {
    /// Call it before each change of state that outlives the server.
    pub(crate) fn effect(&self) -> Result<(), Off> {
        let mut state = self.power.state.lock();
        if state.server != self.server || state.off {
            return Err(Off);
        }
        if let Some(left) = &mut state.effects_left {
            if *left == 0 {
                state.off = true;
                drop(state);
                (self.power.at_end)();
                return Err(Off);
            }
            *left -= 1;
        }
        Ok(())
    }

    /// Call it before each read of such state.
    pub(crate) fn look(&self) -> Result<(), Off> {
        let state = self.power.state.lock();
        if state.server == self.server && !state.off { Ok(()) } else { Err(Off) }
    }
}
