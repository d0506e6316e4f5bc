//! The map from placement groups to storage daemons, as the monitors report it.
//!
//! Notes
//! * libcephfs returns the daemons of a file only by its path, which is unknown here, and without
//!   epochs. So this module computes the groups of objects, and asks the monitors for the daemon of
//!   each.
//!
//! Invariants
//! * All cached answers are of one epoch. When another epoch begins, they are dropped.

use crate::hash::{group, object_hash};
use crate::limits::MAP_TRIES_MAX;
use crate::stripes::Stripes;
use crate::sys::Rados;
use dafs_mem::Mutex;
use dafs_store::{Result, StoreError};
use rustc_hash::FxHashMap;
use serde::Deserialize;
use std::sync::Arc;

/// The interface to the monitors.
pub(crate) trait Monitors: Send + Sync {
    /// Returns the answer to a command, in JSON.
    fn ask(&self, command: &str) -> Result<Vec<u8>>;
}

impl Monitors for Rados {
    fn ask(&self, command: &str) -> Result<Vec<u8>> {
        Self::ask(self, command)
    }
}

/// The cached part of the map of storage daemons.
pub(crate) struct OsdMap {
    monitors: Box<dyn Monitors>,
    known: Mutex<Arc<Epoch>>,
}

/// The cached answers of one epoch.
struct Epoch {
    number: u64,
    pools: FxHashMap<String, Pool>,
    /// The daemon that serves a group; `None` for a group that is not served now.
    primaries: Mutex<FxHashMap<(u64, u32), Option<u32>>>,
}

struct Pool {
    number: u64,
    /// The number of placement groups.
    count: u32,
}

#[derive(Deserialize)]
struct Stat {
    epoch: u64,
}

#[derive(Deserialize)]
struct Dump {
    epoch: u64,
    pools: Vec<DumpedPool>,
}

#[derive(Deserialize)]
struct DumpedPool {
    pool: u64,
    pool_name: String,
    #[serde(rename = "type")]
    kind: u32,
    pg_num: u32,
    object_hash: u32,
}

/// The numbers of replicated pools and of the only supported hash.
const REPLICATED: u32 = 1;
const RJENKINS: u32 = 2;

#[derive(Deserialize)]
struct Mapped {
    epoch: u64,
    acting: Vec<i64>,
}

fn parse<'a, T: Deserialize<'a>>(answer: &'a [u8]) -> Result<T> {
    serde_json::from_slice(answer).map_err(|error| {
        tracing::error!(%error, "the monitors of ceph answer something else than is known here");
        StoreError::Io
    })
}

impl OsdMap {
    pub(crate) fn new(monitors: Box<dyn Monitors>) -> Result<Self> {
        let known = Mutex::new(Arc::new(Self::fetch(&*monitors)?));
        Ok(Self { monitors, known })
    }

    fn fetch(monitors: &dyn Monitors) -> Result<Epoch> {
        let answer = monitors.ask(r#"{"prefix":"osd dump","format":"json"}"#)?;
        let dump: Dump = parse(&answer)?;
        // In other (erasure-coded) pools the parts of an object are on several daemons.
        let usable = |pool: &DumpedPool| {
            pool.kind == REPLICATED && pool.object_hash == RJENKINS && pool.pg_num > 0
        };
        let pools = dump.pools.into_iter().filter(usable);
        let pools = pools.map(|p| (p.pool_name, Pool { number: p.pool, count: p.pg_num }));
        Ok(Epoch { number: dump.epoch, pools: pools.collect(), primaries: Mutex::default() })
    }

    fn known(&self) -> Arc<Epoch> {
        self.known.lock().clone()
    }

    /// Returns the number of the cached epoch.
    pub(crate) fn number(&self) -> u64 {
        self.known().number
    }

    /// Asks for the current epoch. True if it is a new one.
    pub(crate) fn refresh(&self) -> Result<bool> {
        let answer = self.monitors.ask(r#"{"prefix":"osd stat","format":"json"}"#)?;
        let stat: Stat = parse(&answer)?;
        if stat.epoch <= self.known().number {
            return Ok(false);
        }
        self.renew()?;
        Ok(true)
    }

    fn renew(&self) -> Result<()> {
        let fresh = Arc::new(Self::fetch(&*self.monitors)?);
        let mut known = self.known.lock();
        if fresh.number > known.number {
            *known = fresh;
        }
        Ok(())
    }

    /// Returns the daemon for each of the units of a file, all of one epoch. `None` if one of them
    /// is not served now, or if the pool is not supported.
    ///
    /// # Errors
    /// [`StoreError::Busy`] while the map changes faster than it can be read; the monitors'.
    pub(crate) fn daemons(
        &self,
        ino: u64,
        stripes: &Stripes,
        units: std::ops::Range<u64>,
    ) -> Result<Option<Vec<u32>>> {
        for _ in 0..MAP_TRIES_MAX {
            let epoch = self.known();
            let Some(pool) = epoch.pools.get(&stripes.pool) else { return Ok(None) };
            let daemon = |unit| {
                let group = group(object_hash(&stripes.key(ino, unit)), pool.count);
                self.primary(&epoch, pool, group)
            };
            match units.clone().map(daemon).collect::<Result<Option<Vec<_>>>>() {
                Err(StoreError::Stale) => self.renew()?,
                found => return found,
            }
        }
        Err(StoreError::Busy)
    }

    /// Returns the daemon of a unit if it is cached; `Some(None)` if it is not served.
    pub(crate) fn known_daemon(
        &self,
        ino: u64,
        stripes: &Stripes,
        unit: u64,
    ) -> Option<Option<u32>> {
        let epoch = self.known();
        let pool = epoch.pools.get(&stripes.pool)?;
        let group = group(object_hash(&stripes.key(ino, unit)), pool.count);
        epoch.primaries.lock().get(&(pool.number, group)).copied()
    }

    /// Returns the daemon of a group. [`StoreError::Stale`] when there is a newer epoch.
    fn primary(&self, epoch: &Epoch, pool: &Pool, group: u32) -> Result<Option<u32>> {
        let key = (pool.number, group);
        if let Some(&primary) = epoch.primaries.lock().get(&key) {
            return Ok(primary);
        }
        let command =
            format!(r#"{{"prefix":"pg map","pgid":"{}.{group:x}","format":"json"}}"#, pool.number);
        let answer = self.monitors.ask(&command)?;
        let mapped: Mapped = parse(&answer)?;
        if mapped.epoch != epoch.number {
            return Err(StoreError::Stale);
        }
        // In replicated pools the first acting daemon serves.
        let primary = mapped.acting.first().and_then(|&daemon| u32::try_from(daemon).ok());
        epoch.primaries.lock().insert(key, primary);
        Ok(primary)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

    /// Monitors of a cluster in which daemon `epoch + group` modulo 3 serves a group, and the last
    /// group is not served. With `hurry`, each question begins a new epoch.
    #[derive(Default)]
    struct Fake {
        epoch: AtomicU64,
        asked: AtomicU64,
        hurry: AtomicBool,
    }

    impl Monitors for Arc<Fake> {
        fn ask(&self, command: &str) -> Result<Vec<u8>> {
            self.asked.fetch_add(1, SeqCst);
            if self.hurry.load(SeqCst) {
                self.epoch.fetch_add(1, SeqCst);
            }
            let epoch = self.epoch.load(SeqCst);
            let command: serde_json::Value = serde_json::from_str(command).unwrap();
            let answer = match command["prefix"].as_str().unwrap() {
                "osd stat" => format!(r#"{{"epoch":{epoch},"num_osds":3}}"#),
                "osd dump" => {
                    let pool = |number: u32, name: &str, kind: u32| {
                        format!(
                            r#"{{"pool":{number},"pool_name":"{name}","type":{kind},"pg_num":8,
                                "object_hash":2,"size":1}}"#
                        )
                    };
                    let (data, coded) = (pool(2, "data", 1), pool(3, "coded", 3));
                    format!(r#"{{"epoch":{epoch},"pools":[{data},{coded}]}}"#)
                }
                "pg map" => {
                    let name = command["pgid"].as_str().unwrap().strip_prefix("2.").unwrap();
                    let group = u64::from_str_radix(name, 16).unwrap();
                    let acting = match group {
                        7 => String::new(),
                        _ => ((epoch + group) % 3).to_string(),
                    };
                    format!(r#"{{"epoch":{epoch},"up":[],"acting":[{acting}]}}"#)
                }
                other => panic!("{other}"),
            };
            Ok(answer.into_bytes())
        }
    }

    fn stripes(pool: &str) -> Stripes {
        let text = format!("stripe_unit=65536 stripe_count=1 object_size=65536 pool={pool}");
        Stripes::parse(text.as_bytes()).unwrap()
    }

    /// Returns a file whose first `units` units are served.
    fn served(units: u64) -> u64 {
        let is_served = |&ino: &u64| {
            let mut keys = (0..units).map(|unit| stripes("data").key(ino, unit));
            keys.all(|key| group(object_hash(&key), 8) != 7)
        };
        (1..).find(is_served).unwrap()
    }

    #[test]
    fn all_daemons_are_of_one_epoch_and_are_asked_for_once() {
        let fake = Arc::new(Fake::default());
        let map = OsdMap::new(Box::new(fake.clone())).unwrap();
        let ino = served(4);
        let daemons = |epoch: u64| -> Vec<u32> {
            let group = |unit| group(object_hash(&stripes("data").key(ino, unit)), 8);
            (0..4).map(|unit| ((epoch + u64::from(group(unit))) % 3) as u32).collect()
        };
        let ask = || map.daemons(ino, &stripes("data"), 0..4).unwrap();
        assert_eq!(ask(), Some(daemons(0)));
        let asked = fake.asked.load(SeqCst);
        assert_eq!(ask(), Some(daemons(0)));
        assert_eq!(fake.asked.load(SeqCst), asked, "what is known is not asked for");
        let known = |ino, unit| map.known_daemon(ino, &stripes("data"), unit);
        let all: Vec<_> = (0..4).map(|unit| known(ino, unit)).collect();
        assert!(all.into_iter().eq(daemons(0).into_iter().map(|daemon| Some(Some(daemon)))));
        let group = |ino| group(object_hash(&stripes("data").key(ino, 0)), 8);
        let seen: Vec<_> = (0..4)
            .map(|unit| super::group(object_hash(&stripes("data").key(ino, unit)), 8))
            .collect();
        let other = (1..).find(|&ino| !seen.contains(&group(ino))).unwrap();
        assert_eq!(known(other, 0), None);
        assert_eq!(fake.asked.load(SeqCst), asked, "nor is what is not known");
        assert_eq!(map.refresh(), Ok(false));
        fake.epoch.store(1, SeqCst);
        assert_eq!(ask(), Some(daemons(0)), "nobody has looked");
        assert_eq!(map.refresh(), Ok(true));
        fake.epoch.store(2, SeqCst);
        assert_eq!(ask(), Some(daemons(2)), "not half of the one and half of the other");
        fake.hurry.store(true, SeqCst);
        fake.epoch.store(9, SeqCst);
        assert_eq!(map.refresh(), Ok(true));
        assert_eq!(map.daemons(ino, &stripes("data"), 0..4), Err(StoreError::Busy));
    }

    #[test]
    fn unserved_and_erasure_coded_objects_have_no_daemons() {
        let map = OsdMap::new(Box::new(Arc::new(Fake::default()))).unwrap();
        let unserved = |ino: &u64| group(object_hash(&stripes("data").key(*ino, 0)), 8) == 7;
        let ino = (1..).find(unserved).unwrap();
        assert_eq!(map.daemons(ino, &stripes("data"), 0..1), Ok(None));
        assert_eq!(map.daemons(1, &stripes("coded"), 0..1), Ok(None));
        assert_eq!(map.daemons(1, &stripes("unknown"), 0..1), Ok(None));
    }
}
