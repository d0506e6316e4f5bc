//! The gate that holds back the threads of a server until all of it has started.
//!
//! Invariants
//! * A server whose start fails has served no client, because its gate never opened.

use dafs_store::vital;
use std::io;
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

/// Holds back threads that serve clients. The first call of `open` or `shut` decides for all of them.
#[derive(Debug, Clone, Default)]
pub struct StartGate(Arc<OnceLock<bool>>);

impl StartGate {
    /// Makes a gate that is open.
    pub fn opened() -> Self {
        let gate = Self::default();
        gate.open();
        gate
    }

    /// Lets the threads begin, unless the gate was shut.
    pub fn open(&self) {
        let _ = self.0.set(true);
    }

    /// Ends the threads that wait. It has no effect on an open gate.
    pub fn shut(&self) {
        let _ = self.0.set(false);
    }

    /// Starts a thread that the server cannot work without. It waits until the gate opens.
    ///
    /// # Errors
    /// The system has no thread left.
    pub fn spawn(
        &self,
        name: impl Into<String>,
        run: impl FnOnce() + Send + 'static,
    ) -> io::Result<JoinHandle<()>> {
        let gate = self.clone();
        vital::spawn(name, move || {
            if *gate.0.wait() {
                run();
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn a_thread_begins_behind_an_open_gate_alone() {
        let [opened, shut, both] = [(); 3].map(|()| StartGate::default());
        let begun = [(); 3].map(|()| Arc::new(AtomicBool::new(false)));
        let spawn = |gate: &StartGate, begun: &Arc<AtomicBool>| {
            let begun = begun.clone();
            gate.spawn("waits", move || begun.store(true, Ordering::SeqCst)).unwrap()
        };
        let threads = [&opened, &shut, &both].into_iter().zip(&begun);
        let threads: Vec<_> = threads.map(|(gate, begun)| spawn(gate, begun)).collect();
        assert!(begun.iter().all(|begun| !begun.load(Ordering::SeqCst)));
        opened.open();
        shut.shut();
        both.open();
        both.shut();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(begun.map(|begun| begun.load(Ordering::SeqCst)), [true, false, true]);
    }
}
