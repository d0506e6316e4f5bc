//! One world: a server, some clients, a network, and the schedule.

use super::action::Action;
use super::client::{Client, Tally};
use super::server::{SERVER_HOST, Server};
use dafs_dat::Instant;
use dafs_dat::sim::{SimFaults, SimNetwork, SimRng};
use dafs_rpc::client::Options;
use dafs_rpc::server::Config;
use std::time::Duration;

const STEPS: u32 = 6000;
/// The number of steps within which every request must end.
const END_STEPS_MAX: u32 = 400_000;

pub(crate) struct World {
    rng: SimRng,
    network: SimNetwork,
    server: Server,
    clients: Vec<Client>,
}

impl World {
    pub(crate) fn new(seed: u64) -> Self {
        let mut rng = SimRng::new(seed);
        let network = SimNetwork::new(rng.bits(), SimFaults::none());
        let maps = rng.chance(300_000);
        network.map_memory(maps);
        let clients = 1 + rng.below(2) as usize;
        let mut world = Self::on(network.clone(), clients);
        let rough = SimFaults {
            piece_bytes_max: 1 << rng.between(8, 17),
            loss_bytes_max: 300 << 10,
            ..SimFaults::rough()
        };
        if rng.chance(700_000) {
            network.set_faults(rough);
        }
        world.rng = rng;
        world
    }

    /// Makes clients that are connected and have a session.
    pub(crate) fn on(network: SimNetwork, clients: usize) -> Self {
        let server = Server::new(&network, Config::default());
        let mut world = Self { rng: SimRng::new(1), network, server, clients: Vec::new() };
        for number in 0..clients {
            let options = Options { credits: 2 + number as u32, ..Options::default() };
            let mut client = Client::new(&world.network, 10 + number as u32, options);
            client.connect();
            while !client.is_connected() {
                client.poll(world.network.now());
                world.go_on();
            }
            client.set_up(|port, pending| {
                while !pending.is_answered() {
                    port.poll(world.network.now());
                    world.go_on();
                }
            });
            world.clients.push(client);
        }
        world
    }

    fn now(&self) -> Instant {
        self.network.now()
    }

    /// Runs the server and the network for one step. Returns false when no event is left.
    fn go_on(&mut self) -> bool {
        let busy = self.server.turn(self.now());
        if self.server.jobs() > 0 {
            self.server.run_job(0);
            return true;
        }
        let Some(at) = self.network.next_event() else { return busy };
        self.network.advance_to(at);
        true
    }

    pub(crate) fn run(mut self) -> Tally {
        for _ in 0..STEPS {
            self.step();
        }
        self.end();
        self.clients.iter().fold(Tally::default(), |all, client| all.plus(client.tally))
    }

    fn step(&mut self) {
        let (now, rng) = (self.network.now(), &mut self.rng);
        let at = rng.below(self.clients.len() as u64) as usize;
        let client = &mut self.clients[at];
        match rng.below(100) {
            0..5 => client.connect(),
            5..20 => client.act(rng),
            20..40 => client.poll(now),
            40..60 => drop(self.server.turn(now)),
            60..68 => {
                if self.server.jobs() > 0 {
                    let which = rng.below(self.server.jobs() as u64) as usize;
                    self.server.run_job(which);
                }
            }
            68 => {
                let endpoints = self.network.endpoints(SERVER_HOST);
                if rng.chance(150_000) && !endpoints.is_empty() {
                    let which = endpoints[rng.below(endpoints.len() as u64) as usize];
                    self.network.lose(which);
                }
            }
            69 => {
                if rng.chance(50_000) {
                    client.close();
                }
            }
            70 => {
                let until = now + Duration::from_micros(rng.log_below(200_000));
                if rng.chance(50_000) {
                    self.network.pause(client.host, until);
                }
            }
            _ => {
                if let Some(at) = self.network.next_event() {
                    self.network.advance_to(at);
                }
            }
        }
    }

    /// Faults end, every client gets its answers, and no resource is left.
    fn end(&mut self) {
        self.network.calm();
        for _ in 0..END_STEPS_MAX {
            let now = self.now();
            for client in &mut self.clients {
                client.connect();
                client.send_all();
                client.poll(now);
            }
            self.go_on();
            if self.clients.iter().all(|client| client.under_way() == 0) {
                break;
            }
        }
        for client in &mut self.clients {
            assert_eq!(client.under_way(), 0, "somebody gets no answer");
            client.close();
        }
        loop {
            let now = self.now();
            self.clients.iter_mut().for_each(|client| client.poll(now));
            if !self.go_on() {
                break;
            }
        }
        assert_eq!((self.server.connections(), self.server.jobs()), (0, 0));
        assert_eq!(self.network.connection_count(), 0);
        // Memory for outgoing messages stays.
        assert!(self.network.region_count(SERVER_HOST) <= 2);
    }

    /// Executes one request, whose connection breaks after so many steps. Returns the number of
    /// steps that it took. Checks that later requests see exactly one execution.
    pub(crate) fn act_once(mut self, action: &Action, cut: Option<u32>) -> u32 {
        let before = [
            Action::MakeDirectory(0),
            Action::Rename(0, 2),
            Action::Write { offset: 0, len: 30_000, value: 3 },
        ];
        for action in &before {
            self.finish(action, None);
        }
        let steps = self.finish(action, cut);
        let behind = [
            Action::Read { offset: 0, len: 39_000, kept: false },
            Action::MakeDirectory(0),
            Action::Remove(1),
            Action::Remove(2),
        ];
        for action in &behind {
            self.finish(action, None);
        }
        self.end();
        steps
    }

    fn finish(&mut self, action: &Action, cut: Option<u32>) -> u32 {
        self.clients[0].ask(0, action.clone());
        self.clients[0].send(0);
        let mut steps = 0;
        while self.clients[0].under_way() > 0 {
            if cut == Some(steps) {
                for endpoint in self.network.endpoints(SERVER_HOST) {
                    self.network.lose(endpoint);
                }
            }
            let now = self.now();
            self.clients[0].connect();
            self.clients[0].send(0);
            self.clients[0].poll(now);
            self.go_on();
            steps += 1;
            assert!(steps < END_STEPS_MAX, "no answer");
        }
        steps
    }
}
