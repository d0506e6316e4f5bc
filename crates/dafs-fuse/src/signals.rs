//! Whether a process that waits for an answer has been sent a signal.
//!
//! The kernel tells so by a request of its own, which the library under this crate answers for us. So
//! it is looked up where the kernel shows it to everybody.

use std::fs;

/// True when a thread has a signal to deal with, or is gone. One that cannot be looked at has none.
pub(crate) fn is_interrupted(thread: u32) -> bool {
    match fs::read_to_string(format!("/proc/{thread}/status")) {
        Ok(status) => has_signal(&status),
        Err(error) => error.kind() == std::io::ErrorKind::NotFound,
    }
}

/// A signal is pending that is neither blocked nor ignored. Signals whose default is to do nothing
/// count as well; the wait is then begun again by the program or ends with EINTR.
fn has_signal(status: &str) -> bool {
    let set = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|line| u64::from_str_radix(line.trim(), 16).ok()).unwrap_or(0)
    };
    let pending = set("SigPnd:") | set("ShdPnd:");
    pending & !(set("SigBlk:") | set("SigIgn:")) != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(pending: u64, shared: u64, blocked: u64, ignored: u64) -> String {
        format!(
            "Name:\tx\nSigPnd:\t{pending:016x}\nShdPnd:\t{shared:016x}\nSigBlk:\t{blocked:016x}\n\
             SigIgn:\t{ignored:016x}\n"
        )
    }

    #[test]
    fn only_signals_that_would_be_dealt_with_count() {
        assert!(!has_signal(&status(0, 0, 0, 0)));
        assert!(has_signal(&status(1 << 8, 0, 0, 0)));
        assert!(has_signal(&status(0, 1 << 1, 0, 0)));
        assert!(!has_signal(&status(0, 1 << 1, 1 << 1, 0)));
        assert!(!has_signal(&status(0, 1 << 1, 0, 1 << 1)));
        assert!(!has_signal("nothing that can be read"));
    }

    #[test]
    fn this_process_has_none_and_one_that_is_gone_has() {
        assert!(!is_interrupted(std::process::id()));
        // Above the highest number that the kernel gives.
        assert!(is_interrupted(1 << 30));
    }
}
