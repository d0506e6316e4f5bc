//! Panic confinement: a panic in the work for one connection ends that connection only.
//!
//! Arithmetic on numbers that peers choose is checked, in release builds too. A failed check is a
//! bug of this program and must not end the thread that serves all other connections.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    static FAULTS: Cell<usize> = const { Cell::new(0) };
}

/// The reason that the owner of the connection gets.
pub(crate) const FAULT: &str =
    "this side failed at what the peer sent (please report it: the log tells where)";

/// Runs work for one connection; returns none when it panics. The panic has been reported where it
/// happened. The connection may be in any state and has to end.
#[inline]
pub fn confined<T>(step: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(step)).inspect_err(|_| FAULTS.set(FAULTS.get() + 1)).ok()
}

/// Panics confined in this thread so far. Simulations use it, so that they do not take a bug for a
/// lost connection.
pub fn faults() -> usize {
    FAULTS.get()
}

#[cfg(test)]
pub(crate) mod fault {
    //! An injected fault, after the next message.

    use std::cell::Cell;

    thread_local! {
        static ARMED: Cell<bool> = const { Cell::new(false) };
    }

    /// Injects a fault after the next message that this thread takes.
    pub(crate) fn arm() {
        ARMED.set(true);
    }

    pub(crate) fn strike() {
        assert!(!ARMED.take(), "on purpose");
    }

    /// Two clients of one server; the message of the first one triggers the fault.
    pub(crate) fn check(server: &mut dyn crate::Adapter, clients: [&mut dyn crate::Adapter; 2]) {
        use crate::{Access, Event, Instant, WorkStatus};
        let ([one, other], before) = (clients, super::faults());
        let address = server.listener_address(crate::ListenerId(0)).unwrap();
        let domain = server.protection_domain();
        let mut ends = Vec::new();
        let mut dialed = Vec::new();
        let mut events = Vec::new();
        for client in [&mut *one, &mut *other] {
            let own = client.protection_domain();
            dialed.push((client.connect(own, &address, b"hello").unwrap(), own));
            let mut up = false;
            while !up {
                client.poll(Instant::now(), &mut events);
                up = events.drain(..).any(|event| matches!(event, Event::Established { .. }));
                client.flush();
                server.poll(Instant::now(), &mut events);
                for event in events.drain(..) {
                    if let Event::ConnectRequest { request, .. } = event {
                        ends.push(server.accept(request, domain, b"").unwrap());
                    }
                }
                server.flush();
            }
        }
        for (work, end) in ends.iter().enumerate() {
            let buffer = server.allocate(64).unwrap();
            let region = server.register(domain, buffer, Access::LOCAL_WRITE).unwrap();
            server.post_receive(*end, work as u64, region.local(0, 64)).unwrap();
        }
        arm();
        let (mut fault, mut served) = (None, false);
        for (at, client) in [one, other].into_iter().enumerate() {
            let (endpoint, own) = dialed[at];
            let buffer = client.allocate(64).unwrap();
            let region = client.register(own, buffer, Access::empty()).unwrap();
            client.post_send(endpoint, 7, &[region.local(0, 8)]).unwrap();
            while if at == 0 { fault.is_none() } else { !served } {
                client.poll(Instant::now(), &mut events);
                client.flush();
                events.clear();
                server.poll(Instant::now(), &mut events);
                for event in events.drain(..) {
                    match event {
                        Event::Disconnected { endpoint, reason } => {
                            fault = Some((endpoint, reason.to_string()));
                        }
                        Event::Completion(done) if done.endpoint == ends[1] => {
                            assert_eq!(done.work, 1, "what the other one has sent");
                            served = done.status == WorkStatus::Ok(8);
                        }
                        _ => {}
                    }
                }
                server.flush();
            }
        }
        let (endpoint, reason) = fault.unwrap();
        assert_eq!(endpoint, ends[0]);
        assert!(reason.contains("please report"), "{reason}");
        assert_eq!(super::faults(), before + 1);
    }
}
