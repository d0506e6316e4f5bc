//! Why a command fails: the text for the user and the exit status for scripts.

use crate::remote::{Error, Status};
use std::fmt::Display;

/// The reason why a command failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// An operation failed; exit status 1.
    Failed(String),
    /// Some of the operands failed and each has been reported; exit status 1.
    Reported,
    /// The reader of our output has closed it, and needs no message; exit status 1.
    OutputClosed,
    /// The command line or a configuration is wrong; exit status 2.
    Usage(String),
    /// The server cannot be reached, or the connection was lost; exit status 3.
    Unreachable(String),
    /// An outcome with an exit status of its own.
    Ended {
        /// The status.
        code: u8,
        /// The message, if any.
        text: Option<String>,
    },
    /// A signal ended the command in order; exit status 128 + its number.
    Interrupted(i32),
}

impl Failure {
    /// The exit status.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::Failed(_) | Self::Reported | Self::OutputClosed => 1,
            Self::Usage(_) => 2,
            Self::Unreachable(_) => 3,
            Self::Ended { code, .. } => *code,
            Self::Interrupted(signal) => u8::try_from(128 + signal).unwrap_or(255),
        }
    }

    /// The message, if any.
    pub(crate) fn text(&self) -> Option<&str> {
        match self {
            Self::Failed(text) | Self::Usage(text) | Self::Unreachable(text) => Some(text),
            Self::Interrupted(_) => Some("interrupted; no unfinished file has been left behind"),
            Self::Ended { text, .. } => text.as_deref(),
            Self::Reported | Self::OutputClosed => None,
        }
    }

    /// An error of a server, or of the connection to it, about `what`.
    pub(crate) fn remote(what: impl Display, error: &Error) -> Self {
        match error.is_fatal() {
            true => Self::Unreachable(error.to_string()),
            false => Self::Failed(format!("{what}: {}", words(error))),
        }
    }

    /// An error of the local system about `what`.
    pub(crate) fn local(what: impl Display, error: &std::io::Error) -> Self {
        match error.kind() {
            std::io::ErrorKind::BrokenPipe => Self::OutputClosed,
            _ => Self::Failed(format!("{what}: {error}")),
        }
    }
}

/// An error in words, with the remedy where that is known.
pub(crate) fn words(error: &Error) -> String {
    let Some((sentence, name)) = error.answer() else { return error.to_string() };
    if error.is_mount_point() {
        return format!(
            "another file system is mounted there on the server, which is no part of this export \
             ({name}); export its directory by itself"
        );
    }
    match error.status().and_then(remedy) {
        Some(remedy) => format!("{sentence} ({name}); {remedy}"),
        None => format!("{sentence} ({name})"),
    }
}

fn remedy(status: Status) -> Option<&'static str> {
    Some(match status {
        Status::Acces | Status::Perm => {
            "ask the owner, or if you are root mind that the server may treat root as nobody"
        }
        Status::Delay => {
            "if that lasts, a data server of this file may be missing: the server's administrator sees which \
             with dafs layout /EXPORT/FILE, and all of them with dafs cluster status"
        }
        Status::DQuot => "remove something or ask for more quota",
        Status::NoSpc => "free some space on the server",
        Status::NotEmpty => "remove what is in it, or use rm -r",
        Status::RoFs => "choose another place, or ask the administrator to export it writable",
        Status::ShareDenied => "wait until the other program has closed the file",
        Status::KeyMismatch => {
            "programs that share a key have it open and exclude others: wait until they have closed it"
        }
        Status::Stale => "it was removed meanwhile; list its directory again",
        Status::Fenced => {
            "somebody has fenced this node off: have it put on the list with dafs fence add, and say \
             who you are with --fence-id"
        }
        Status::Io => "the server's log and its disk tell more",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use dafs_client::{Error as DafsError, Procedure};

    #[test]
    fn a_full_disk_says_what_to_do() {
        let procedure = Procedure::Open;
        let error = DafsError::Status { procedure, status: Status::NoSpc };
        let failure = Failure::remote("dafs://h/x", &error.into());
        let expected = "dafs://h/x: the file system is full (NOSPC); free some space on the server";
        assert_eq!(failure.text(), Some(expected));
        assert_eq!(failure.exit_code(), 1);
    }

    #[test]
    fn a_server_that_has_no_time_may_miss_a_data_server() {
        let error = DafsError::Status { procedure: Procedure::Open, status: Status::Delay };
        let failure = Failure::remote("dafs://h/x", &error.into());
        let text = failure.text().expect("a text");
        assert!(text.contains("(DELAY)") && text.contains("dafs cluster status"), "{text}");
    }

    #[test]
    fn a_mount_point_is_told_from_a_rename_between_file_systems() {
        let text = |procedure| {
            let error = DafsError::Status { procedure, status: Status::XDev };
            Failure::remote("dafs://h/x", &error.into()).text().unwrap().to_owned()
        };
        assert!(text(Procedure::Lookup).contains("is mounted there on the server"));
        assert!(text(Procedure::Rename).contains("both names"), "{}", text(Procedure::Rename));
    }

    #[test]
    fn a_lost_server_has_its_own_exit_status() {
        let error = DafsError::Lost { server: "h:1".into(), reason: "reset".into() };
        assert_eq!(Failure::remote("x", &error.into()).exit_code(), 3);
        assert_eq!(Failure::Interrupted(15).exit_code(), 143);
    }
}
