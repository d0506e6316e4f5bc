//! Threads that the server cannot work without.
//!
//! Invariants
//! * A fault that one client causes ends only its connection. A panic that reaches this thread has
//!   left its own state broken, so the process ends at once. A supervisor restarts it, and recovery
//!   is the same as after any crash.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread::JoinHandle;

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

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Command, Stdio};

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
