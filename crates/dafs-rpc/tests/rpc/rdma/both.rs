//! The RDMA client against the RDMA server, each on threads of its own that sleep when they have no
//! work.

use super::common::*;
use crate::peer::{iwarp, shm};
use dafs_dat::{Address, Wake};
use dafs_mem::Site;
use dafs_rpc::Reply;
use dafs_rpc::client::{BackHandler, Options, Port, Procedure, Request, RpcClient, SendData};
use dafs_rpc::server::{Config, Group};
use std::thread::JoinHandle;
use std::time::Duration;

struct Running {
    group: Group,
    thread: JoinHandle<()>,
    address: Address,
    port: Port,
}

fn start(kind: Kind, wake: Wake) -> Running {
    let World { group, server, address, .. } =
        World::with(kind, Config { wake, ..Config::default() });
    let thread = std::thread::spawn(|| server.run());
    let adapter = if kind == Kind::Iwarp { iwarp() } else { shm() };
    Running { group, thread, address, port: Port::new(adapter).unwrap() }
}

/// One server over each transport of this host, started when its turn comes.
fn start_all(wake: Wake) -> impl Iterator<Item = Running> {
    [Kind::Iwarp, Kind::Shm].into_iter().map(move |kind| start(kind, wake))
}

impl Running {
    fn client(&self, back: Option<BackHandler>) -> RpcClient {
        let options = Options { call_timeout: Duration::from_secs(50), ..Options::default() };
        RpcClient::connect_rdma(&self.port, &self.address, options, back).unwrap()
    }

    fn stop(self) -> Group {
        self.group.stop();
        self.thread.join().unwrap();
        self.group
    }
}

fn procedure(procedure: u32) -> Procedure {
    Procedure { program: PROGRAM, version: 1, procedure }
}

/// Calls of every shape, one after the other.
fn use_it(client: &RpcClient, rounds: u32) {
    let memory = client.allocate(300_000).unwrap();
    for round in 0..rounds {
        let small = pattern(4 * (round as usize % 100));
        assert_eq!(*client.call(procedure(ECHO), &small).unwrap(), *small);
        assert_eq!(*client.call(procedure(LONG), &words(&[20_000])).unwrap(), *pattern(20_000));
        let long = pattern(9000);
        assert_eq!(*client.call(procedure(ECHO), &long).unwrap(), *long);

        let len = 1 + (round * 7919) % 150_000;
        let args = words(&[len, round]);
        let sink = memory.slice(0..len as usize).unwrap();
        let sinks = [sink.clone()];
        let args = [&args[..]];
        let request = Request { sinks: &sinks, ..Request::new(procedure(BULK), &args, 1000) };
        let results = client.submit_request(&request).unwrap().wait().unwrap();
        assert_eq!(*results, *words(&[len, 7]));
        assert!(sink.view().to_vec(Site::Inspect).iter().all(|&byte| byte == round as u8));

        let data = pattern(len as usize);
        let source = memory.slice(150_000..150_000 + len as usize).unwrap();
        source.view().copy_from(&data, Site::Inspect);
        let args = words(&[len]);
        let args = [&args[..]];
        for (target, want) in [
            (procedure(TAKE), words(&[len])),
            (procedure(LATER), {
                let mut want = words(&[len]);
                want.extend_from_slice(&data);
                want.resize(want.len().next_multiple_of(4), 0);
                want
            }),
        ] {
            let data = Some(SendData { position: 4, memory: source.clone() });
            let request = Request { data, ..Request::new(target, &args, 160_000) };
            let results = client.submit_request(&request).unwrap().wait().unwrap();
            assert!(*results == *want);
        }
    }
}

#[test]
fn many_clients_make_many_calls() {
    for running in start_all(Wake::Adaptive) {
        std::thread::scope(|scope| {
            for _ in 0..4 {
                let client = running.client(None);
                scope.spawn(move || use_it(&client, 60));
            }
            let shared = running.client(None);
            for _ in 0..4 {
                let client = shared.clone();
                scope.spawn(move || use_it(&client, 30));
            }
        });
        let statistics = running.group.statistics();
        assert_eq!((statistics.rdma_errors, statistics.broken), (0, 0), "{}", running.address);
        running.stop();
    }
}

#[test]
fn a_server_that_sleeps_is_woken() {
    for running in start_all(Wake::Sleep) {
        let client = running.client(None);
        for _ in 0..5 {
            use_it(&client, 1);
            // Long enough for both sides to fall asleep; the result does not depend on it.
            std::thread::sleep(Duration::from_millis(5));
        }
        running.stop();
    }
}

#[test]
fn a_server_calls_its_client() {
    for running in start_all(Wake::Adaptive) {
        let client = running.client(Some(Box::new(|request| {
            let text = [b"answer to ", &request.args[..]].concat();
            request.answer(Ok(Reply::from_bytes(&text)));
        })));
        let pending: Vec<_> = (0..20u32)
            .map(|number| {
                let text = format!("call {number:03}");
                (client.submit(procedure(CALL_BACK), &[text.as_bytes()]).unwrap(), text)
            })
            .collect();
        for (pending, text) in pending {
            assert_eq!(*pending.wait().unwrap(), *format!("answer to {text}").as_bytes());
        }
        running.stop();
    }
}

#[test]
fn a_server_that_stops_does_not_wait_for_those_who_go_on_calling() {
    for running in start_all(Wake::Adaptive) {
        let clients: Vec<_> = (0..3).map(|_| running.client(None)).collect();
        std::thread::scope(|scope| {
            for client in &clients {
                scope.spawn(|| while client.call(procedure(ECHO), b"args").is_ok() {});
            }
            while running.group.statistics().calls < 1000 {
                std::thread::yield_now();
            }
            running.stop();
        });
    }
}

#[test]
fn a_server_that_stops_answers_first_and_its_clients_notice() {
    for running in start_all(Wake::Adaptive) {
        let client = running.client(None);
        use_it(&client, 1);
        let group = running.stop();
        assert_eq!(group.statistics().connections, 0);
        assert!(client.call(procedure(ECHO), b"args").is_err());
    }
}
