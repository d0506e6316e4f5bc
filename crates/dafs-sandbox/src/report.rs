//! The outcome: the parts in force, and the reasons for the others.

use crate::policy::Reason;
use crate::sys;
use std::fmt;
use std::path::PathBuf;
use thiserror::Error;

/// The abilities of this host's kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kernel {
    /// The ABI of Landlock, 0 without Landlock.
    pub landlock_abi: u32,
    /// The kernel filters system calls.
    pub seccomp: bool,
}

impl Kernel {
    /// Asks the kernel. Changes nothing.
    pub fn of_this_host() -> Self {
        Self { landlock_abi: sys::landlock_abi().unwrap_or(0), seccomp: sys::has_seccomp() }
    }
}

/// The means by which a part is confined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Means {
    /// Capabilities and limits.
    Given,
    /// Landlock.
    Landlock,
    /// A mount namespace.
    Mounts,
    /// seccomp.
    Seccomp,
}

impl fmt::Display for Means {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Given => "given up",
            Self::Landlock => "Landlock",
            Self::Mounts => "mount namespace",
            Self::Seccomp => "seccomp",
        })
    }
}

/// The reason why a part cannot be confined, with the remedy.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Lack {
    /// The machine is of a kind without a list of calls.
    #[error("there is no list of system calls for this kind of machine")]
    Architecture,
    /// The kernel has no Landlock.
    #[error(
        "this kernel has no Landlock; boot a kernel from 6.7 on with landlock among the names of its \
         option lsm= (cat /sys/kernel/security/lsm)"
    )]
    NoLandlock,
    /// Landlock is too old for this part.
    #[error(
        "the kernel's Landlock has ABI {abi}, and {needed} is needed: boot a kernel from {linux} on"
    )]
    OldLandlock {
        /// The kernel's ABI.
        abi: u32,
        /// The least ABI.
        needed: u32,
        /// The first version of Linux with it.
        linux: &'static str,
    },
    /// Landlock refuses the rules.
    #[error("Landlock refuses the rules: {0}")]
    Rules(String),
    /// A file of a rule cannot be opened.
    #[error("{path} cannot be opened: {error}", path = .path.display())]
    File {
        /// The path.
        path: PathBuf,
        /// The system's error.
        error: String,
    },
    /// The policy contains the whole file system.
    #[error("the server needs {path}, which contains all files; export another directory", path = .0.display())]
    Everything(PathBuf),
    /// No mount namespace can be made.
    #[error(
        "a mount namespace cannot be made: {0}; the server needs CAP_SYS_ADMIN for it, and under \
         systemd RestrictNamespaces=mnt"
    )]
    Namespace(String),
    /// A mount fails.
    #[error("{path} cannot be mounted in the namespace of the server: {error}", path = .path.display())]
    Mount {
        /// The path.
        path: PathBuf,
        /// The system's error.
        error: String,
    },
    /// A privilege stays.
    #[error("a privilege cannot be given up: {0}")]
    Privilege(String),
    /// The kernel refuses the filter.
    #[error("this kernel does not filter system calls (CONFIG_SECCOMP_FILTER): {0}")]
    Seccomp(String),
    /// Other threads run already.
    #[error("{0} threads run already; the sandbox has to be made before the second one")]
    Threads(usize),
    /// The threads cannot be counted.
    #[error("the threads of this process cannot be counted: {0}; mount /proc")]
    ThreadCount(String),
}

/// The state of a part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// Confined.
    InForce(Means),
    /// Left open on purpose.
    Open(Reason),
    /// Open, because this host or this configuration does not allow it.
    Missing(Lack),
}

impl State {
    /// True if the part is confined.
    pub fn is_in_force(&self) -> bool {
        matches!(self, Self::InForce(_))
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InForce(means) => means.fmt(f),
            Self::Open(reason) => write!(f, "open: {reason}"),
            Self::Missing(lack) => write!(f, "open: {lack}"),
        }
    }
}

/// A part that is required and cannot be confined.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "sandbox = \"required\", and {part} cannot be confined: {state}. Or write sandbox = \"if \
     possible\" to start without that part"
)]
pub struct Refused {
    /// The name of the part.
    pub part: &'static str,
    /// Its state.
    pub state: State,
}

/// The sandbox of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The kernel.
    pub kernel: Kernel,
    /// The files.
    pub files: State,
    /// TCP, and sockets of other kinds.
    pub network: State,
    /// The system calls.
    pub calls: State,
    /// Capabilities, set-user-id programs and core dumps.
    pub privileges: State,
}

impl Report {
    /// A report without any part.
    pub(crate) fn nothing(kernel: Kernel, lack: impl Fn() -> Lack) -> Self {
        let missing = || State::Missing(lack());
        Self {
            kernel,
            files: missing(),
            network: missing(),
            calls: missing(),
            privileges: missing(),
        }
    }

    /// Returns the parts with their names.
    pub fn parts(&self) -> [(&'static str, &State); 4] {
        [
            ("files", &self.files),
            ("network", &self.network),
            ("system calls", &self.calls),
            ("privileges", &self.privileges),
        ]
    }

    /// Returns an error for the first part that is not in force.
    pub(crate) fn check(&self) -> Result<(), Refused> {
        match self.parts().into_iter().find(|(_, state)| !state.is_in_force()) {
            Some((part, state)) => Err(Refused { part, state: state.clone() }),
            None => Ok(()),
        }
    }
}
