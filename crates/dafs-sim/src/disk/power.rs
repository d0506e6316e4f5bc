//! What a server is plugged into: when it goes off, nothing that the server does has an effect.

use dafs_store::StoreError;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What is to happen in the moment of the end, such as cutting the network.
type AtEnd = Box<dyn Fn() + Send + Sync>;

/// Says which server is alive, and ends it in the middle of what it does. Clones share it.
#[derive(Clone)]
pub(crate) struct Power {
    state: Arc<Mutex<State>>,
    at_end: Arc<AtEnd>,
}

#[derive(Debug, Default)]
struct State {
    /// The server that may have effects now; the earlier ones are gone.
    server: u64,
    /// It ends before it has so many more effects.
    effects_left: Option<u64>,
    /// It has ended and was not followed by another one.
    off: bool,
}

impl fmt::Debug for Power {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Power").field("state", &self.state).finish_non_exhaustive()
    }
}

/// One server's hold on what outlives it.
#[derive(Debug, Clone)]
pub(crate) struct Plug {
    power: Power,
    server: u64,
}

/// The server is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Off;

impl From<Off> for StoreError {
    fn from(_: Off) -> Self {
        Self::Io
    }
}

impl Power {
    /// `at_end` is called when a server ends, in the middle of whatever it does.
    pub(crate) fn new(at_end: impl Fn() + Send + Sync + 'static) -> Self {
        Self { state: Arc::default(), at_end: Arc::new(Box::new(at_end)) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For a new server; those before it are gone.
    pub(crate) fn plug(&self) -> Plug {
        let mut state = self.lock();
        state.server += 1;
        state.off = false;
        state.effects_left = None;
        Plug { power: self.clone(), server: state.server }
    }

    /// The server ends after so many more effects.
    pub(crate) fn end_after(&self, effects: u64) {
        self.lock().effects_left = Some(effects);
    }

    /// The server does not end by itself any more.
    pub(crate) fn spare(&self) {
        self.lock().effects_left = None;
    }

    /// The server ends now.
    #[cfg(test)]
    pub(crate) fn end(&self) {
        self.lock().off = true;
        (self.at_end)();
    }

    /// No server is alive.
    pub(crate) fn is_off(&self) -> bool {
        self.lock().off
    }
}

impl Plug {
    /// To be asked before anything is done that outlives the server.
    pub(crate) fn effect(&self) -> Result<(), Off> {
        let mut state = self.power.lock();
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

    /// To be asked before anything is looked at.
    pub(crate) fn look(&self) -> Result<(), Off> {
        let state = self.power.lock();
        if state.server == self.server && !state.off { Ok(()) } else { Err(Off) }
    }
}
