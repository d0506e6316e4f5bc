//! The present server, which hands over.

use super::message::{receive, send, send_sockets};
use crate::limits::{HAND_OVER_END_TIME, HAND_OVER_TIME};
use crate::server::Sockets;
use dafs_wire::hand_over::{Message, Released};
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

/// Ends the server for the next one.
type GiveWay = Box<dyn Fn(Successor) + Send + Sync>;

/// Offers the sockets of a server to processes that ask for them.
pub(crate) struct Giving {
    sockets: Arc<Sockets>,
    give_way: OnceLock<GiveWay>,
    /// A process is taking over.
    is_busy: Arc<AtomicBool>,
}

/// The right to take over, which one process has at a time.
struct Turn(Arc<AtomicBool>);

impl Turn {
    fn take(is_busy: &Arc<AtomicBool>) -> Option<Self> {
        (!is_busy.swap(true, Ordering::SeqCst)).then(|| Self(is_busy.clone()))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

impl Giving {
    pub(crate) fn of(sockets: Arc<Sockets>) -> Self {
        Self { sockets, give_way: OnceLock::new(), is_busy: Arc::default() }
    }

    /// Answers processes from now on.
    pub(crate) fn begin(&self, give_way: GiveWay) {
        let _first = self.give_way.set(give_way);
    }

    /// Answers a process that has asked for the sockets. The server goes on until that process is
    /// ready to start, and if it fails before.
    ///
    /// # Errors
    /// Those of the connection.
    pub(crate) fn offer(&self, stream: UnixStream) -> io::Result<()> {
        let refuse = |reason: &str| send(&stream, &Message::Failed(reason.to_owned()));
        let Some(give_way) = self.give_way.get() else {
            return refuse("it is about to start; try again");
        };
        let Some(turn) = Turn::take(&self.is_busy) else {
            return refuse("another process is taking it over");
        };
        if let Err(error) = send_sockets(&stream, self.sockets.in_use()) {
            return refuse(&error.to_string());
        }
        match receive(&stream)? {
            (Message::Go, _) => {
                give_way(Successor { stream, _turn: turn });
                Ok(())
            }
            (other, _) => Err(io::Error::other(format!("the next server says {other:?}"))),
        }
    }
}

/// The next server: it waits until the present one has ended.
pub struct Successor {
    stream: UnixStream,
    _turn: Turn,
}

impl Successor {
    /// Lets the next server start; the present one has ended in order. Waits until it serves. Returns false
    /// when it has failed or ended before: then the present one is to start again. A process that
    /// does not start in time ends itself, and until it has ended it may use the state.
    pub fn takes_over(self, released: Released) -> bool {
        let released = Message::Released(released);
        let wait = || {
            self.stream.set_read_timeout(Some(HAND_OVER_TIME))?;
            send(&self.stream, &released)?;
            loop {
                match receive(&self.stream) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        tracing::error!(
                            "the next server hangs; this one goes on when you have ended it"
                        );
                    }
                    other => break other,
                }
            }
        };
        match wait() {
            Ok((Message::Serving, _)) => return true,
            Ok((Message::Failed(reason), _)) => {
                tracing::error!(reason, "the next server cannot start; this one goes on");
            }
            Ok((other, _)) => {
                tracing::error!(?other, "the next server is of another version; this one goes on");
            }
            Err(error) => {
                tracing::error!(%error, "the next server has ended before it served; this one goes on");
            }
        }
        // Its process ends, and the kernel closes its files one after the other.
        std::thread::sleep(HAND_OVER_END_TIME);
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, channel};

    fn giving() -> (Arc<Giving>, Receiver<Successor>) {
        let giving = Arc::new(Giving::of(Arc::default()));
        let (sender, receiver) = channel();
        giving.begin(Box::new(move |successor| sender.send(successor).unwrap()));
        (giving, receiver)
    }

    /// Asks as the next server does.
    fn ask(giving: &Arc<Giving>) -> (UnixStream, Message) {
        let (own, other) = UnixStream::pair().unwrap();
        let giving = giving.clone();
        std::thread::spawn(move || drop(giving.offer(other)));
        let (message, _) = receive(&own).unwrap();
        (own, message)
    }

    fn is_offer(message: &Message) -> bool {
        *message == Message::Sockets(Vec::new())
    }

    #[test]
    fn one_process_takes_over_at_a_time() {
        let (giving, successors) = giving();
        let (first, offer) = ask(&giving);
        assert!(is_offer(&offer));
        let (_second, refusal) = ask(&giving);
        assert!(matches!(&refusal, Message::Failed(text) if text.contains("another process")));
        send(&first, &Message::Go).unwrap();
        let successor = successors.recv().unwrap();
        assert!(matches!(ask(&giving).1, Message::Failed(_)), "the first one has not ended");
        drop(successor);
        assert!(is_offer(&ask(&giving).1));
    }

    #[test]
    fn a_process_that_fails_before_it_is_ready_changes_nothing() {
        let (giving, successors) = giving();
        for last in [None, Some(Message::Failed("no port".to_owned())), Some(Message::Serving)] {
            // The one before has gone, and its thread is about to notice.
            let (stream, offer) = loop {
                let (stream, answer) = ask(&giving);
                if is_offer(&answer) {
                    break (stream, answer);
                }
            };
            assert!(is_offer(&offer));
            if let Some(last) = last {
                send(&stream, &last).unwrap();
            }
            drop(stream);
        }
        assert!(successors.try_recv().is_err());
    }

    #[test]
    fn a_server_that_has_not_started_is_not_taken_over() {
        let giving = Arc::new(Giving::of(Arc::default()));
        assert!(matches!(ask(&giving).1, Message::Failed(text) if text.contains("try again")));
    }

    #[test]
    fn the_present_server_is_told_if_the_next_one_serves() {
        for (last, serves) in [
            (Some(Message::Serving), true),
            (Some(Message::Failed("no port".to_owned())), false),
            (Some(Message::Go), false),
            (None, false),
        ] {
            let (giving, successors) = giving();
            let (stream, _) = ask(&giving);
            send(&stream, &Message::Go).unwrap();
            let successor = successors.recv().unwrap();
            let released = Released { write_verifier: Some(*b"verifier"), states: vec![1] };
            let told = released.clone();
            let waits = std::thread::spawn(move || successor.takes_over(told));
            assert_eq!(receive(&stream).unwrap().0, Message::Released(released));
            if let Some(last) = last {
                send(&stream, &last).unwrap();
            }
            drop(stream);
            assert_eq!(waits.join().unwrap(), serves);
        }
    }
}
