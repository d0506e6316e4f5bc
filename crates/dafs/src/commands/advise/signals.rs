//! Signals to `dafs advise`. During a measurement the first ends it in order, so that its server ends,
//! too. While the program runs it gets those that were meant for it, and its counts are shown
//! afterwards.

use crate::failure::Failure;
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;
use std::ffi::c_int;
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

/// The signals so far, from the start of the command to its end.
#[derive(Debug)]
pub(super) struct Signalled {
    /// The number of the first signal; zero before it.
    first: Arc<AtomicI32>,
    /// The process of the program while it runs; else zero.
    program: Arc<AtomicI32>,
}

impl Signalled {
    /// Handles signals from now on.
    pub(super) fn watch() -> Result<Self, Failure> {
        let failed = |error: &std::io::Error| Failure::local("cannot handle signals", error);
        let this = Self { first: Arc::default(), program: Arc::default() };
        let (first, program) = (this.first.clone(), this.program.clone());
        let handled = [SIGINT, SIGQUIT, SIGTERM, SIGHUP];
        let handled = handled.into_iter().filter(|signal| !is_ignored(*signal));
        let mut signals = Signals::new(handled).map_err(|error| failed(&error))?;
        let work = move || {
            for signal in signals.forever() {
                match Pid::from_raw(program.load(Ordering::Acquire)) {
                    // The terminal sends those of keys to the program, too.
                    Some(pid) if signal == SIGTERM => drop(kill_process(pid, Signal::TERM)),
                    Some(pid) if signal == SIGHUP => drop(kill_process(pid, Signal::HUP)),
                    Some(_) => {}
                    None => {
                        if first.swap(signal, Ordering::Relaxed) != 0 {
                            std::process::exit(128 + signal);
                        }
                    }
                }
            }
        };
        std::thread::Builder::new()
            .name("signals".to_owned())
            .spawn(work)
            .map_err(|error| failed(&error))?;
        Ok(this)
    }

    /// Fails if a signal has come.
    pub(super) fn check(&self) -> Result<(), Failure> {
        match self.first.load(Ordering::Relaxed) {
            0 => Ok(()),
            signal => {
                Err(Failure::Ended { code: u8::try_from(128 + signal).unwrap_or(255), text: None })
            }
        }
    }

    /// Passes signals on to the program, until [`release`](Self::release).
    pub(super) fn pass_to(&self, program: &Child) {
        let pid = Pid::from_child(program).as_raw_nonzero().get();
        self.program.store(pid, Ordering::Release);
    }

    pub(super) fn release(&self) {
        self.program.store(0, Ordering::Release);
    }
}

/// True if this command began with a signal ignored, as after `nohup` and in the background of a shell's
/// script. The program must inherit that, which a handler would prevent.
fn is_ignored(signal: c_int) -> bool {
    // SAFETY: all zero is a valid value of this plain structure. The call fills it and changes nothing.
    unsafe {
        let mut now: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, std::ptr::null(), &mut now) == 0
            && now.sa_sigaction == libc::SIG_IGN
    }
}
