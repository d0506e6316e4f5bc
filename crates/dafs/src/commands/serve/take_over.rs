//! `dafs serve`: a server from its start to its end, or until another process has taken it over.
//!
//! Invariants
//! * A process that takes over says so to the service manager before the former one ends. So the
//!   manager never sees the end of its main process.

use super::{Serve, log_counts, start_failure};
use crate::cli::WakeName;
use crate::failure::Failure;
use crate::manager::Manager;
use dafs_server::{Config, Released, Server, Sockets, Successor, TakeOver, TakeOverError};
use signal_hook::consts::{SIGHUP, SIGUSR1};
use signal_hook::iterator::Signals;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

/// How often the former server tries to start again when the next one has failed. The process of that
/// one may be about to end, and have the state locked until then.
const STARTS: u32 = 10;

/// The time between two of these.
const START_PAUSE: Duration = Duration::from_secs(1);

/// An event that a running server waits for.
pub(super) enum Event {
    Signal(i32),
    Successor(Successor),
}

/// The events of this process, and the way for further ones.
pub(super) struct Events {
    receiver: Receiver<Event>,
    pub(super) sender: Sender<Event>,
}

impl Events {
    /// Begins to wait for signals, by a thread. So it comes after the sandbox.
    pub(super) fn of(mut signals: Signals) -> Result<Self, Failure> {
        let (sender, receiver) = channel();
        let events = sender.clone();
        let run = move || {
            for signal in signals.forever() {
                // The receiver is there as long as the process.
                let _sent = events.send(Event::Signal(signal));
            }
        };
        let thread = std::thread::Builder::new().name("dafs-signals".to_owned()).spawn(run);
        thread.map_err(|error| Failure::local("cannot start a thread", &error))?;
        Ok(Self { receiver, sender })
    }
}

impl Serve {
    /// Asks the running server for its sockets, if this one is to take over.
    pub(super) fn ask_running(&self, config: &Config) -> Result<Option<TakeOver>, Failure> {
        let taking = self.take_over.then(|| TakeOver::ask(config)).transpose();
        taking.map_err(|error| take_over_failure(&error))
    }

    /// Starts a server, in the place of the running one if there is one. The running one starts again
    /// if `announce` fails.
    pub(super) fn start(
        config: &Config,
        taking: Option<TakeOver>,
        manager: &Manager,
        announce: impl FnOnce(&Server) -> Result<(), Failure>,
    ) -> Result<Server, Failure> {
        let Some(taking) = taking else {
            let server = Server::start(config).map_err(|error| start_failure(&error))?;
            announce(&server)?;
            return Ok(server);
        };
        let (server, taken) = taking.start(config).map_err(|error| take_over_failure(&error))?;
        if let Err(failure) = announce(&server) {
            // Before `taken`, at whose end the former server starts again, and with all late writes.
            let _released = server.release();
            return Err(failure);
        }
        manager.took_over();
        taken.confirm();
        tracing::info!("the former server has handed over");
        Ok(server)
    }

    /// Serves until a signal ends the server, or another process has taken it over. The server has
    /// been prepared.
    pub(super) fn serve(
        &self,
        mut server: Server,
        (config, wake): (&Config, Option<WakeName>),
        events: Events,
        (again, manager): (&AtomicBool, &Manager),
    ) -> Result<(), Failure> {
        let Events { receiver, sender } = events;
        for event in receiver {
            match event {
                Event::Signal(SIGUSR1) => log_counts(&server),
                Event::Signal(SIGHUP) => {
                    if let Err(text) = server.reload() {
                        tracing::error!("the configuration was not taken: {text}");
                    }
                }
                Event::Signal(signal) => {
                    again.store(true, Ordering::Relaxed);
                    manager.stopping();
                    tracing::info!(signal, "ending; a second signal ends at once");
                    break;
                }
                Event::Successor(successor) => {
                    tracing::info!("another process takes over: ending all connections");
                    let sockets = server.sockets();
                    // A disk that hangs delays the end, and a signal ends this process all the same.
                    again.store(true, Ordering::Relaxed);
                    let released = server.release();
                    if successor.takes_over(released) {
                        tracing::info!("the next server serves");
                        return Ok(());
                    }
                    again.store(false, Ordering::Relaxed);
                    server = self.start_again((config, wake), &sockets)?;
                    self.prepare(&server, wake, &sender);
                    tracing::info!("serving again");
                }
            }
        }
        log_counts(&server);
        server.stop();
        Ok(())
    }

    /// Lets a server follow its configuration, and other processes.
    pub(super) fn prepare(&self, server: &Server, wake: Option<WakeName>, sender: &Sender<Event>) {
        let options = self.clone();
        server.set_read_config(Box::new(move || {
            options.configuration(wake).map_err(|failure| {
                failure.text().unwrap_or("the configuration cannot be read").to_owned()
            })
        }));
        let sender = sender.clone();
        server.set_give_way(move |successor| {
            // The receiver is there as long as the process.
            let _sent = sender.send(Event::Successor(successor));
        });
    }

    /// Starts after a failed hand-over: by the present configuration, which may be one for the next
    /// version, or else by that of the first start.
    fn start_again(
        &self,
        (first, wake): (&Config, Option<WakeName>),
        sockets: &Sockets,
    ) -> Result<Server, Failure> {
        let copies =
            || sockets.copies().map_err(|error| Failure::local("listening sockets", &error));
        // The next server may have met a failure of the disk, so nothing holds any more.
        let former = Released::default;
        for _ in 0..STARTS {
            if let Ok(present) = self.configuration(wake) {
                match Server::start_on(&present, copies()?, former()) {
                    Ok(server) => return Ok(server),
                    Err(error) => {
                        tracing::error!(%error, "starting by the configuration of the first start");
                    }
                }
            }
            match Server::start_on(first, copies()?, former()) {
                Ok(server) => return Ok(server),
                Err(error) => tracing::error!(%error, "the server cannot start again yet"),
            }
            std::thread::sleep(START_PAUSE);
        }
        Server::start_on(first, copies()?, former()).map_err(|error| start_failure(&error))
    }
}

fn take_over_failure(error: &TakeOverError) -> Failure {
    match error {
        TakeOverError::Start(error) => start_failure(error),
        TakeOverError::NoServer { .. } => Failure::Unreachable(error.to_string()),
        TakeOverError::InMemory(_) | TakeOverError::OtherUser(_) => {
            Failure::Usage(error.to_string())
        }
        _ => Failure::Failed(error.to_string()),
    }
}
