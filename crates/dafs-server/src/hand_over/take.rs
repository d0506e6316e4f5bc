//! The next server, which takes over.

use super::message::{HAND_OVER, receive, send};
use crate::admin::socket_path;
use crate::config::{Config, ExportSource};
use crate::limits::{ADMIN_TIMEOUT, HAND_OVER_TIME};
use crate::server::{Server, Socket, Sockets, StartError, check_config, open_state_directory};
use dafs_wire::hand_over::{Message, Released};
use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;
use thiserror::Error;

/// The reason why a server cannot be taken over.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TakeOverError {
    /// The connection to the running server has failed.
    #[error("the running server has not handed over: {0}; it goes on, if it was not killed")]
    Connection(#[from] io::Error),
    /// The files of an export would be lost.
    #[error("the files of export {0:?} are in memory and end with the running server: restart it")]
    InMemory(String),
    /// The running server has not ended within this time.
    #[error(
        "the running server has not ended within {0:?}, because calls are still under way: see its log; \
         it starts again after them, so take it over later or end it"
    )]
    Late(Duration),
    /// No server of this user listens.
    #[error(
        "no server to take over answers at {path}: {error}; name its state directory and run as its \
         user, or start without --take-over",
        path = .path.display()
    )]
    NoServer {
        /// The path of the socket.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// The server belongs to another user.
    #[error("the running server belongs to user {0}: run the next one as the same user")]
    OtherUser(u32),
    /// The running server refuses.
    #[error("the running server does not hand over: {0}")]
    Refused(String),
    /// The next server cannot start.
    #[error(transparent)]
    Start(Box<StartError>),
}

impl From<StartError> for TakeOverError {
    fn from(error: StartError) -> Self {
        Self::Start(Box::new(error))
    }
}

/// A running server that waits for this process to start, and serves meanwhile.
pub struct TakeOver {
    stream: UnixStream,
    sockets: Sockets,
}

impl TakeOver {
    /// Checks the configuration, and asks the running server of its state directory for the sockets.
    /// To be called before the process is confined.
    ///
    /// # Errors
    /// The running server goes on as before.
    pub fn ask(config: &Config) -> Result<Self, TakeOverError> {
        check_config(config)?;
        for export in &config.exports {
            if matches!(export.source, ExportSource::Memory { .. }) {
                return Err(TakeOverError::InMemory(export.name.clone()));
            }
        }
        Self::ask_at(&open_state_directory(config)?)
    }

    fn ask_at(directory: &Path) -> Result<Self, TakeOverError> {
        let path = socket_path(directory);
        let mut stream =
            UnixStream::connect(&path).map_err(|error| TakeOverError::NoServer { path, error })?;
        let peer = rustix::net::sockopt::socket_peercred(&stream).map_err(io::Error::from)?.uid;
        if peer != rustix::process::geteuid() {
            return Err(TakeOverError::OtherUser(peer.as_raw()));
        }
        stream.set_read_timeout(Some(ADMIN_TIMEOUT))?;
        stream.write_all(format!("{HAND_OVER}\n").as_bytes())?;
        let (names, descriptors) = match receive(&stream)? {
            (Message::Sockets(names), descriptors) => (names, descriptors),
            (Message::Failed(reason), _) => return Err(TakeOverError::Refused(reason)),
            (other, _) => return Err(TakeOverError::Refused(format!("it says {other:?}"))),
        };
        let count = names.len();
        let adopt = names.into_iter().zip(descriptors).map(|(name, fd)| Socket::adopt(name, fd));
        let sockets: Option<Vec<_>> = adopt.collect();
        match sockets {
            Some(sockets) if sockets.len() == count => {
                Ok(Self { stream, sockets: Sockets::passed(sockets) })
            }
            _ => Err(TakeOverError::Refused("its sockets are others than it says".to_owned())),
        }
    }

    /// Lets the running server end, and starts on its sockets. Ends this process when the start takes
    /// more than a minute, because the former server waits for it.
    ///
    /// # Errors
    /// The running server goes on, or starts again.
    pub fn start(self, config: &Config) -> Result<(Server, Taken), TakeOverError> {
        let Self { stream, sockets } = self;
        send(&stream, &Message::Go)?;
        let released = await_end(&stream, HAND_OVER_TIME)?;
        let in_time = end_when_late()?;
        match Server::start_on(config, sockets, released) {
            Ok(server) => Ok((server, Taken { stream, _in_time: in_time })),
            Err(error) => {
                let _told = send(&stream, &Message::Failed(error.to_string()));
                Err(error.into())
            }
        }
    }
}

/// Waits until the running server has ended. It goes on if this process has given up meanwhile.
fn await_end(stream: &UnixStream, time: Duration) -> Result<Released, TakeOverError> {
    stream.set_read_timeout(Some(time))?;
    match receive(stream) {
        Ok((Message::Released(released), _)) => Ok(released),
        Ok((other, _)) => Err(TakeOverError::Refused(format!("it says {other:?}"))),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(TakeOverError::Late(time)),
        Err(error) => Err(error.into()),
    }
}

/// Ends this process after a while, unless the sender is dropped before.
fn end_when_late() -> io::Result<Sender<()>> {
    let (in_time, waits) = channel();
    let run = move || {
        if waits.recv_timeout(HAND_OVER_TIME) == Err(RecvTimeoutError::Timeout) {
            tracing::error!(
                "the start takes more than {HAND_OVER_TIME:?}; the former server goes on"
            );
            // Handlers of an exit could wait for the thread that hangs.
            std::process::abort();
        }
    };
    std::thread::Builder::new().name("dafs-taking".to_owned()).spawn(run)?;
    Ok(in_time)
}

/// The former server, which waits for the word that this one serves.
pub struct Taken {
    stream: UnixStream,
    _in_time: Sender<()>,
}

impl Taken {
    /// Lets the former server's process end. When this is dropped without that, and its server with
    /// it, the former one starts again.
    pub fn confirm(self) {
        if let Err(error) = send(&self.stream, &Message::Serving) {
            tracing::warn!(%error, "the former server was killed before it could end");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_running_server_that_does_not_end_in_time_goes_on() {
        let (own, other) = UnixStream::pair().unwrap();
        let late = await_end(&own, Duration::from_millis(1)).unwrap_err();
        assert!(matches!(late, TakeOverError::Late(_)), "{late}");
        send(&other, &Message::Released(Released::default())).unwrap();
        assert_eq!(await_end(&own, HAND_OVER_TIME).unwrap(), Released::default());
        drop(other);
        let gone = await_end(&own, HAND_OVER_TIME).unwrap_err();
        assert!(matches!(gone, TakeOverError::Connection(_)), "{gone}");
    }
}
