//! The server: programs for peers that connect over TCP or direct access transports.
//!
//! ```no_run
//! # use dafs_rpc::{AcceptStatus, Call, Handled, Handler, Injector, Reply};
//! # use dafs_rpc::server::{Config, Group};
//! struct Nothing;
//! impl Handler for Nothing {
//!     type Message = ();
//!     fn call(&mut self, call: Call<'_>) -> Handled {
//!         match (call.program, call.procedure) {
//!             (0x2000_0001, 0) => Reply::new().into(),
//!             _ => AcceptStatus::ProgramUnavailable.into(),
//!         }
//!     }
//! }
//! let listener = std::net::TcpListener::bind("[::]:0")?;
//! let group = Group::new(vec![listener], 1, Config::default())?;
//! let reactor = group.reactor(|_: Injector<()>| Nothing)?;
//! std::thread::scope(|scope| {
//!     scope.spawn(|| reactor.run());
//!     group.stop();
//! });
//! # Ok::<(), std::io::Error>(())
//! ```

mod config;
mod group;
mod lingering;
mod peer;
mod rdma;
mod reactor;
mod tls;
mod worker;

pub use config::Config;
pub use group::{Group, Statistics};
pub use rdma::RdmaReactor;
pub use reactor::Reactor;

/// A record that injects a fault into its connection.
#[cfg(test)]
pub(crate) const FAULT: &[u8] = b"a mistake here";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::TICK_MILLISECONDS;
    use crate::{Call, Handled, Handler, Injector};
    use dafs_dat::Wake;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::time::{Duration, Instant};

    struct Nothing;

    impl Handler for Nothing {
        type Message = ();

        fn call(&mut self, _: Call<'_>) -> Handled {
            Handled::Drop
        }
    }

    /// Tells each turn, and needs the next one after some nanoseconds, or none.
    struct Turning(Sender<()>, Option<u64>);

    impl Handler for Turning {
        type Message = ();

        fn call(&mut self, _: Call<'_>) -> Handled {
            Handled::Drop
        }

        fn turn_over(&mut self, now_ns: u64) -> Option<u64> {
            let _ = self.0.send(());
            self.1.map(|after_ns| now_ns + after_ns)
        }
    }

    /// Waits for turns, each after some act. Ticks alone would take longer.
    fn take_turns(turns: &Receiver<()>, act: impl Fn()) {
        const TURNS: u32 = 200;
        let began = Instant::now();
        for _ in 0..TURNS {
            turns.try_iter().for_each(drop);
            act();
            turns.recv_timeout(Duration::from_secs(60)).unwrap();
        }
        let ticks = TURNS * Duration::from_millis(TICK_MILLISECONDS);
        assert!(began.elapsed() < ticks / 2, "{:?}", began.elapsed());
    }

    #[test]
    fn a_handler_has_its_turn_when_the_kernel_wakes_its_reactor() {
        with_reactors(None, |injector, turns| {
            take_turns(turns, || {
                rustix::io::write(injector.descriptor(), &1u64.to_ne_bytes()).unwrap();
            });
        });
    }

    #[test]
    fn a_handler_has_its_turn_at_the_time_that_it_has_named() {
        with_reactors(Some(1_000_000), |_, turns| take_turns(turns, || {}));
    }

    /// Has a look at a reactor of each kind, whose handler needs turns as often as this.
    fn with_reactors(after_ns: Option<u64>, look: fn(&Injector<()>, &Receiver<()>)) {
        let config = Config { wake: Wake::Sleep, ..Config::default() };
        let group = Group::new(Vec::new(), 2, config).unwrap();
        let (mut injectors, mut receivers, mut threads) = (Vec::new(), Vec::new(), Vec::new());
        let mut handler = |injector: Injector<()>| {
            let (turns, receiver) = channel();
            injectors.push(injector);
            receivers.push(receiver);
            Turning(turns, after_ns)
        };
        let reactor = group.reactor(&mut handler).unwrap();
        threads.push(std::thread::spawn(move || reactor.run()));
        let reactor = group.rdma_reactor(Vec::new(), &mut handler).unwrap();
        threads.push(std::thread::spawn(move || reactor.run()));
        for (injector, turns) in injectors.iter().zip(&receivers) {
            look(injector, turns);
        }
        group.stop();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }

    fn send(stream: &mut TcpStream, record: &[u8]) {
        let mark = dafs_wire::rpc::FragmentMark { len: record.len() as u32, last: true };
        stream.write_all(&[&mark.to_bytes()[..], record].concat()).unwrap();
    }

    /// Sends a call of RPC version 9, which the server denies without the handler.
    fn refused_call(stream: &mut TcpStream) {
        let words: Vec<u8> =
            [1_u32, 0, 9, 0, 0, 0, 0, 0, 0, 0].iter().flat_map(|word| word.to_be_bytes()).collect();
        send(stream, &words);
        stream.read_exact(&mut [0; 28]).unwrap();
    }

    #[test]
    fn a_fault_at_what_a_peer_sent_ends_its_connection_alone() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let group = Group::new(vec![listener], 1, Config::default()).unwrap();
        let reactor = group.reactor(|_| Nothing).unwrap();
        let thread = std::thread::spawn(move || reactor.run());
        let (mut honest, mut other) =
            (TcpStream::connect(address).unwrap(), TcpStream::connect(address).unwrap());
        refused_call(&mut honest);
        for _ in 0..3 {
            send(&mut other, FAULT);
            assert!(!matches!(other.read(&mut [0]), Ok(1..)));
            other = TcpStream::connect(address).unwrap();
            refused_call(&mut honest);
            refused_call(&mut other);
        }
        group.stop();
        thread.join().unwrap();
    }

    /// Runs `work` on a thread with the credentials of this user.
    fn as_user<T: Send>(uid: u32, work: impl FnOnce() -> T + Send) -> T {
        let run = move || {
            let uid = rustix::process::Uid::from_raw(uid);
            rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
            work()
        };
        std::thread::scope(|scope| scope.spawn(run).join().unwrap())
    }

    #[test]
    fn half_records_of_one_host_do_not_starve_another() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        // The smallest budget that a server accepts: room for two large records.
        let config = Config { assembly_bytes_max: 0, ..Config::default() };
        let group = Group::new(vec![listener], 1, config).unwrap();
        let reactor = group.reactor(|_| Nothing).unwrap();
        let thread = std::thread::spawn(move || reactor.run());
        let connect = || TcpStream::connect(address).unwrap();
        let mut crowd: Vec<_> = (0..400).map(|_| as_user(1234, connect)).collect();
        let mark = |len, last| dafs_wire::rpc::FragmentMark { len, last }.to_bytes();
        for (at, one) in crowd.iter_mut().enumerate() {
            // Some connections announce large records, others send small pieces that never
            // complete.
            let (len, piece) = if at % 4 == 0 { (1 << 20, 12_000) } else { (16_000, 15_000) };
            one.write_all(&[&mark(len, true)[..], &vec![0; piece]].concat()).unwrap();
        }
        let mut honest = as_user(1235, connect);
        // A large record that the server recognizes at its end as a call of RPC version 9.
        let words = [1_u32, 0, 9, 0, 0, 0, 0, 0, 0, 0];
        let mut record: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
        record.resize(1 << 20, 0);
        for _ in 0..3 {
            send(&mut honest, &record);
            honest.read_exact(&mut [0; 28]).unwrap();
        }
        group.stop();
        thread.join().unwrap();
    }
}
