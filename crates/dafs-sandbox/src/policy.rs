//! The policy: what a server needs of its host, as data.
//!
//! Invariants
//! * A part without rules names the reason why it is open.

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// The administrator's choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sandbox {
    /// The server does not start without each part.
    Required,
    /// The server takes the parts that this host has, and reports the others.
    IfPossible,
    /// There is no sandbox.
    Off,
}

impl FromStr for Sandbox {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "required" => Ok(Self::Required),
            "if possible" | "if-possible" => Ok(Self::IfPossible),
            "off" => Ok(Self::Off),
            _ => Err("use \"required\", \"if possible\" or \"off\"".to_owned()),
        }
    }
}

/// The consequence of a missing part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// An error.
    Required,
    /// A state in the report.
    IfPossible,
}

/// The reason why a part is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// A reload of the configuration may name other directories and addresses.
    Reload,
    /// The library of this storage engine uses files and connections of its own.
    Engine(&'static str),
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reload => f.write_str(
                "a reload of the configuration may name others; to confine the server to those of \
                 its start write sandbox = \"if possible\"",
            ),
            Self::Engine(engine) => write!(
                f,
                "the library of {engine} uses files and connections of its own, which the server \
                 does not know"
            ),
        }
    }
}

/// A part of a policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part<R> {
    /// These rules hold, and all else is denied.
    Confined(R),
    /// Nothing is denied.
    Open(Reason),
}

/// The use of a file, or of all files below a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Access {
    /// To read files and list directories.
    Read,
    /// To use devices: read, write, and `ioctl(2)`.
    Device,
    /// To read and change files and names. Devices among them are not usable.
    Change,
}

/// A rule for a file, or for all files below a directory.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct FileRule {
    /// The absolute path.
    pub path: PathBuf,
    /// The use.
    pub access: Access,
    /// No error if there is no such file.
    pub optional: bool,
}

/// The TCP ports of a server, and whether it sends datagrams.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ports {
    /// The ports to listen on. 0 stands for a port that the system chooses.
    pub bind: BTreeSet<u16>,
    /// The ports of other servers.
    pub connect: BTreeSet<u16>,
    /// The server calls programs on the hosts of its clients, which choose their ports. So all ports
    /// are those of other servers.
    pub clients: bool,
    /// The server asks name servers for addresses, or takes datagrams.
    pub datagrams: bool,
}

/// All that a server needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// The files, beside those of the system that every server reads.
    pub files: Part<Vec<FileRule>>,
    /// The network.
    pub network: Part<Ports>,
    /// The server opens files by handle (`open_by_handle_at(2)`).
    pub by_handle: bool,
    /// The server runs as root, for which `/etc` has secrets.
    pub is_root: bool,
    /// Threads enter network namespaces.
    pub network_namespaces: bool,
    /// The server uses RDMA devices.
    pub devices: bool,
    /// The process has rings of io_uring, each made and restricted to reads before the sandbox. It
    /// enables and uses them, and makes no others.
    pub read_rings: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_is_one_of_three() {
        assert_eq!("required".parse(), Ok(Sandbox::Required));
        assert_eq!("if possible".parse(), Ok(Sandbox::IfPossible));
        assert_eq!("off".parse(), Ok(Sandbox::Off));
        for wrong in ["yes", "", "Required", "true"] {
            let error = wrong.parse::<Sandbox>().unwrap_err();
            assert!(error.contains("\"required\""), "{error}");
        }
    }
}
