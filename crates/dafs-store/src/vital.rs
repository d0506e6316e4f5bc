//! Threads that the server cannot work without, and those of them that wake now and then.
//!
//! Invariants
//! * A fault that one client causes ends only its connection. A panic that reaches this thread has
//!   left its own state broken, so the process ends at once. A supervisor restarts it, and recovery
//!   is the same as after any crash.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Starts a thread that the server cannot work without.
///
/// # Errors
/// When the system cannot start a thread.
pub fn spawn(
    name: impl Into<String>,
    run: impl FnOnce() + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    let name = name.into();
    let thread = std::thread::Builder::new().name(name.clone());
    thread.spawn(move || {
        // The panic hook has reported the cause.
        if catch_unwind(AssertUnwindSafe(run)).is_err() {
            tracing::error!(
                "the thread {name} has failed, so the server ends at once and has to be started again; \
                 please report what the log says before this"
            );
            std::process::abort();
        }
    })
}

/// A thread that works at an interval. It ends when this is dropped, or with the object of its work.
#[derive(Debug)]
pub struct Periodic {
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Periodic {
    /// Starts a thread that calls `turn` at each interval. It does not keep `object` alive.
    ///
    /// # Errors
    /// When the system cannot start a thread.
    pub fn start<T: Send + Sync + 'static>(
        name: impl Into<String>,
        interval: Duration,
        object: &Arc<T>,
        turn: impl Fn(&T) + Send + 'static,
    ) -> io::Result<Self> {
        let (end, ended) = channel();
        let object = Arc::downgrade(object);
        let run = move || {
            while ended.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
                let Some(object) = object.upgrade() else { return };
                turn(&object);
            }
        };
        Ok(Self { end: Some(end), thread: Some(spawn(name, run)?) })
    }
}

impl Drop for Periodic {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has ended the process.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Command, Stdio};

    #[test]
    fn a_periodic_thread_works_until_it_is_dropped() {
        let (turns, turned) = channel();
        let object = Arc::new(7);
        let turn = move |object: &i32| turns.send(*object).unwrap();
        let periodic = Periodic::start("turns", Duration::from_millis(1), &object, turn).unwrap();
        assert_eq!((turned.recv(), turned.recv()), (Ok(7), Ok(7)));
        drop(periodic);
        assert_eq!(Arc::strong_count(&object), 1);
        assert!(turned.iter().all(|turn| turn == 7), "the thread and its channel are gone");
    }

    #[test]
    fn a_server_that_has_lost_a_thread_is_gone() {
        const CHILD: &str = "DAFS_TEST_VITAL";
        if std::env::var_os(CHILD).is_some() {
            let _ = spawn("reactor", || panic!("on purpose")).unwrap().join();
            return;
        }
        let name = "vital::tests::a_server_that_has_lost_a_thread_is_gone";
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args([name, "--exact", "--nocapture"]).env(CHILD, "1").stderr(Stdio::null());
        let status = child.stdout(Stdio::null()).status().unwrap();
        // SIGABRT.
        assert_eq!(status.signal(), Some(6), "{status}");
    }
}
