//! The sandbox of a server: the files, the network and the system calls that remain to its process,
//! also when a client has taken over its code.
//!
//! A [`Policy`] says what the server needs. [`confine`] gives up all else, for good:
//!
//! | part | means |
//! |---|---|
//! | files of a server that opens by path | Landlock |
//! | files of a server that opens by handle | a mount namespace that has the needed files alone |
//! | network | Landlock for TCP, seccomp for other sockets |
//! | system calls | seccomp, by a list of allowed calls |
//! | all | `no_new_privs`, no core dumps, fewer capabilities, Landlock's scopes |
//!
//! Landlock cannot confine a server that opens by handle: the kernel may not know the path of such a
//! file, and Landlock then denies it.
//!
//! Invariants
//! * No part is left out in silence: the [`Report`] names each, and with [`Level::Required`] the
//!   process gets an error instead.
//! * The sandbox is for all threads. So the process has one thread when it is made.
//! * Nothing widens the sandbox later.
//! * All unsafe code is in `sys`.

mod calls;
mod landlocked;
mod limits;
mod mounts;
mod policy;
mod privileges;
mod report;
mod sys;
mod system;
#[cfg(test)]
mod tests;

pub use policy::{Access, FileRule, Level, Part, Policy, Ports, Reason, Sandbox};
pub use report::{Kernel, Lack, Means, Refused, Report, State};

use std::sync::OnceLock;

static IN_FORCE: OnceLock<Report> = OnceLock::new();

/// Returns the sandbox of this process, if there is one.
pub fn in_force() -> Option<&'static Report> {
    IN_FORCE.get()
}

/// Confines this process to a policy, until it ends.
///
/// # Errors
/// With [`Level::Required`], the first part that cannot be confined. The process should then end:
/// other parts may be confined already.
pub fn confine(policy: &Policy, level: Level) -> Result<&'static Report, Refused> {
    let report = confine_once(policy);
    if level == Level::Required {
        report.check()?;
    }
    Ok(IN_FORCE.get_or_init(|| report))
}

fn confine_once(policy: &Policy) -> Report {
    let kernel = Kernel::of_this_host();
    match threads() {
        Ok(1) => {}
        Ok(threads) => return Report::nothing(kernel, || Lack::Threads(threads)),
        Err(error) => return Report::nothing(kernel, || Lack::ThreadCount(error.to_string())),
    }
    let files = match &policy.files {
        Part::Open(reason) => State::Open(*reason),
        Part::Confined(rules) if policy.by_handle => {
            let rules = system::with_own(rules, system::Etc::Files);
            match mounts::enter(&rules) {
                Ok(()) => State::InForce(Means::Mounts),
                Err(lack) => State::Missing(lack),
            }
        }
        // Landlock's part comes below, with the network.
        Part::Confined(_) => State::InForce(Means::Landlock),
    };
    let (files, network) = landlocked::confine(policy, &kernel, files);
    let privileges = privileges::give_up(policy.devices);
    // The last step: it forbids the calls of the others.
    let calls = match calls::confine(policy) {
        Ok(()) => State::InForce(Means::Seccomp),
        Err(lack) => State::Missing(lack),
    };
    Report { kernel, files, network, calls, privileges }
}

/// Counts the threads of this process.
fn threads() -> std::io::Result<usize> {
    Ok(std::fs::read_dir("/proc/self/task")?.count())
}
