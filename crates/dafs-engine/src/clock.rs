//! The threads that give the service the time.
//!
//! The effects of time (the end of leases, grace, undone changes) must be on disk before they hold,
//! and reactors do not wait for a disk. Fencing at data servers has threads of its own, one for
//! each store, because an unreachable one blocks its thread. So has the cleanup of stores.

use crate::engine::Ticker;
use dafs_dat::Instant;
use dafs_service::Service;
use dafs_store::Store;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// The interval of calls to the ticker. It bounds the delay between the end of grace and its
/// notice.
const LOOK: Duration = Duration::from_millis(100);

/// The interval during grace, for whose end all clients wait.
const LOOK_IN_GRACE: Duration = Duration::from_millis(5);

/// A thread. When it is dropped, it ends after its present work.
pub struct Clock {
    /// Dropped to stop the thread.
    running: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Clock {
    /// Starts the thread for the effects of time.
    ///
    /// # Errors
    /// The system has no thread left.
    pub fn start(service: Arc<Service>) -> io::Result<Self> {
        let mut ticker = Ticker::default();
        Self::repeat("dafs-clock", service, move |service| ticker.turn(service, Instant::now()))
    }

    /// Starts the thread for fencing at data servers.
    ///
    /// # Errors
    /// The system has no thread left.
    pub fn start_fencing(service: Arc<Service>) -> io::Result<Self> {
        let mut fencers = Fencers(Vec::new());
        let own = service.clone();
        Self::repeat("dafs-fencing", service, move |_| fencers.turn(&own))
    }

    /// Starts the thread for the cleanup of stores.
    ///
    /// # Errors
    /// The system has no thread left.
    pub fn start_sweeping(service: Arc<Service>) -> io::Result<Self> {
        Self::repeat("dafs-sweeping", service, |service| service.sweep_stores(Instant::now().0))
    }

    /// Starts a thread that calls `turn` repeatedly.
    ///
    /// # Errors
    /// The system has no thread left.
    pub fn repeat(
        name: &str,
        service: Arc<Service>,
        mut turn: impl FnMut(&Service) + Send + 'static,
    ) -> io::Result<Self> {
        let (running, ended) = channel::<()>();
        let run = move || {
            loop {
                let look = if service.clients.in_grace() { LOOK_IN_GRACE } else { LOOK };
                if ended.recv_timeout(look) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
                if catch_unwind(AssertUnwindSafe(|| turn(&service))).is_err() {
                    tracing::error!("what is due was not done; it is tried again");
                }
            }
        };
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(run)?;
        Ok(Self { running: Some(running), thread: Some(thread) })
    }
}

/// The threads that ask stores now. When they are dropped, they end after their present work.
struct Fencers(Vec<(Arc<dyn Store>, JoinHandle<()>)>);

impl Fencers {
    fn turn(&mut self, service: &Arc<Service>) {
        self.0.retain(|(_, thread)| !thread.is_finished());
        for store in service.layouts.stores_to_fence() {
            if self.0.iter().any(|(asked, _)| Arc::ptr_eq(asked, &store)) {
                continue;
            }
            let (service, own) = (service.clone(), store.clone());
            let asks = move || service.layouts.fence_some(&own);
            match std::thread::Builder::new().name("dafs-fencing".to_owned()).spawn(asks) {
                Ok(thread) => self.0.push((store, thread)),
                Err(error) => tracing::warn!(%error, "data servers are told a little later"),
            }
        }
    }
}

impl Drop for Fencers {
    fn drop(&mut self) {
        for (_, thread) in self.0.drain(..) {
            // A failed thread has reported its panic.
            let _ = thread.join();
        }
    }
}

impl Drop for Clock {
    fn drop(&mut self) {
        drop(self.running.take());
        if let Some(thread) = self.thread.take() {
            // A failed thread has reported its panic.
            let _ = thread.join();
        }
    }
}
