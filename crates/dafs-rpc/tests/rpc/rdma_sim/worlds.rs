//! Worlds made from a seed: some of the product's clients, the product's server, and a network with
//! delays, reordering between connections and failures.
//!
//! `DAFS_RDMA_SEED=7 cargo test -p dafs-rpc --test rpc rdma_sim` runs one world again.

use super::caller::{Caller, Tally};
use super::net::{Net, SERVER_HOST};
use dafs_dat::sim::{SimFaults, SimNetwork, SimRng, seeds_of_the_day};
use dafs_rpc::client::Options;
use dafs_rpc::server::Config;
use std::time::Duration;

/// Worlds of the day, and with `DAFS_TEST_LONG`.
const WORLDS: u64 = 150;
const WORLDS_LONG: u64 = 5000;
/// Steps of a world before it is brought to its end.
const STEPS: u32 = 4000;
/// Steps within which it must end.
const END_STEPS_MAX: u32 = 400_000;
/// Registrations that an idle client may keep: staging memory.
const CLIENT_REGIONS_MAX: usize = 80;

struct World {
    rng: SimRng,
    net: Net,
    callers: Vec<Caller>,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut rng = SimRng::new(seed);
        let mut faults = if rng.chance(600_000) { SimFaults::rough() } else { SimFaults::none() };
        faults.piece_bytes_max = 1 << rng.between(8, 17);
        // The world breaks its connections mostly itself, at moments that it chooses.
        faults.loss_ppm /= 2;
        let config = Config {
            rdma_inline_bytes: [1024, 4096, 16 << 10][rng.below(3) as usize],
            rdma_credits_max: [1, 3, 64][rng.below(3) as usize],
            pending_bytes_max: [100 << 10, 32 << 20][rng.below(2) as usize],
            waiting_bytes_max: [500 << 10, 64 << 20][rng.below(2) as usize],
            ..Config::default()
        };
        let network = SimNetwork::new(rng.bits(), faults);
        let maps = rng.chance(250_000);
        network.map_memory(maps);
        let net = Net::new(network, config);
        let callers = (0..rng.between(1, 3)).map(|number| {
            let options = Options {
                inline_bytes: [1024, 4096, 16 << 10][rng.below(3) as usize],
                credits: [1, 8, 64][rng.below(3) as usize],
                ..Options::default()
            };
            // A server that maps its clients' memory may use it long after a call is lost.
            Caller::new(&net.network, 10 + number as u32, options, !maps)
        });
        let callers = callers.collect();
        Self { rng, net, callers }
    }

    fn run(mut self) -> (u64, Tally) {
        for _ in 0..STEPS {
            self.step();
        }
        self.end();
        let tally = self.callers.iter().fold(Tally::default(), |all, one| all.plus(&one.tally));
        (self.net.network.digest(), tally)
    }

    fn step(&mut self) {
        let rng = &mut self.rng;
        let at = rng.below(self.callers.len() as u64) as usize;
        match rng.below(100) {
            0..20 => self.callers[at].act(rng),
            20..26 => {
                let held = self.net.program.account().held.len() as u64;
                if held > 0 {
                    let which = rng.below(held) as usize;
                    self.net.program.release(which);
                }
            }
            26 => {
                if rng.chance(100_000) {
                    self.callers[at].give_up(rng);
                }
            }
            27 => {
                let host = if rng.chance(500_000) { SERVER_HOST } else { self.callers[at].host };
                let endpoints = self.net.network.endpoints(host);
                if rng.chance(100_000) && !endpoints.is_empty() {
                    let which = endpoints[rng.below(endpoints.len() as u64) as usize];
                    self.net.network.lose(which);
                }
            }
            28 => {
                if rng.chance(20_000) {
                    self.callers[at].close();
                }
            }
            29 => {
                let until = self.net.now() + Duration::from_micros(rng.log_below(100_000));
                if rng.chance(50_000) {
                    self.net.network.pause(self.callers[at].host, until);
                }
            }
            30..60 => drop(self.net.serve_once()),
            60..80 => {
                if !self.net.network.is_paused(self.callers[at].host) {
                    self.callers[at].poll(self.net.now(), &self.net.program);
                }
            }
            _ => drop(self.net.travel()),
        }
    }

    /// Ends the trouble; every call must end, and no resource may be left.
    fn end(&mut self) {
        self.net.network.calm();
        for _ in 0..END_STEPS_MAX {
            while !self.net.program.account().held.is_empty() {
                self.net.program.release(0);
            }
            self.net.serve_once();
            for caller in &mut self.callers {
                caller.poll(self.net.now(), &self.net.program);
            }
            self.net.travel();
            if self.callers.iter().all(|caller| caller.under_way() == 0) {
                break;
            }
        }
        for caller in &mut self.callers {
            assert_eq!(caller.under_way(), 0, "calls without an answer");
            caller.close();
            caller.forget_memory();
        }
        let callers = &self.callers;
        self.net
            .settle_with(&mut [], |now| callers.iter().for_each(|caller| caller.port.poll(now)));
        self.net.assert_idle(64 * self.callers.len());
        for caller in &self.callers {
            let regions = self.net.network.region_count(caller.host);
            assert!(regions <= CLIENT_REGIONS_MAX, "{regions} registrations are left");
        }
        assert_eq!(self.net.network.connection_count(), 0);
        assert!(self.net.program.account().done.values().all(|&times| times == 1));
    }
}

fn run(seed: u64) -> (u64, Tally) {
    let before = dafs_dat::confine::faults();
    let result = std::panic::catch_unwind(|| {
        let seen = World::new(seed).run();
        assert_eq!(dafs_dat::confine::faults(), before, "a panic was confined to a connection");
        seen
    });
    result.unwrap_or_else(|panic| {
        eprintln!("the world of DAFS_RDMA_SEED={seed} has failed");
        std::panic::resume_unwind(panic)
    })
}

#[test]
fn every_call_is_answered_once_or_lost_with_its_connection() {
    if let Ok(seed) = std::env::var("DAFS_RDMA_SEED") {
        println!("{:?}", run(seed.parse().unwrap()));
        return;
    }
    let seeds = seeds_of_the_day(WORLDS, WORLDS_LONG);
    let seen = seeds.fold(Tally::default(), |all, seed| all.plus(&run(seed).1));
    // A test of worlds without events would show nothing.
    assert!(seen.is_rich(), "{seen:?}");
}

#[test]
fn a_seed_is_one_world() {
    for seed in 0..5 {
        assert_eq!(run(seed), run(seed));
    }
}
