//! The duplicate request cache: replies to non-idempotent requests (RFC 1813 4.5).
//!
//! A client without an answer retries its request, mostly over a new connection. If the first copy
//! has removed a name, the reply to the second must not report it missing.
//!
//! Invariants
//! * A request is identified by its sender's address, its number, its procedure, its caller and a
//!   keyed digest of its arguments. The connection is not part of the key.
//! * At most one of two copies is executed at a time. The second gets the reply of the first as
//!   long as that is cached.
//! * The cache is bounded in number, bytes and time. A request under way is never dropped to make
//!   room. A host with many requests displaces replies to its own requests.

use crate::admission::CallerIdentity;
use crate::args::Args;
use crate::limits::{
    DUPLICATE_AGE_NS_MAX, DUPLICATE_REPLY_BYTES_MAX, DUPLICATE_SAMPLE_BYTES, DUPLICATE_SHARDS,
    DUPLICATES_PER_SHARD_MAX,
};
use dafs_mem::Mutex;
use dafs_mem::Shrinking as _;
use dafs_service::{FairQueue, Host};
use rustc_hash::FxHashMap;
use siphasher::sip::SipHasher13;
use std::collections::hash_map;
use std::hash::{Hash, Hasher};
use std::net::IpAddr;
use std::sync::MutexGuard;

/// The identity of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct RequestKey {
    xid: u32,
    procedure: u32,
    /// The digest of sender, caller and arguments.
    digest: u64,
    /// The host whose share its reply takes.
    host: Host,
}

/// The sender of a request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Source<'a> {
    pub(super) host: Host,
    pub(super) address: IpAddr,
    pub(super) who: &'a CallerIdentity,
}

/// The state of a request.
pub(super) enum Known {
    /// It is new, and now recorded as under way.
    New,
    /// It is being executed.
    UnderWay,
    /// It was executed, with these results.
    Done(Box<[u8]>),
}

enum Entry {
    UnderWay,
    Done { results: Box<[u8]>, at_ns: u64, number: u64 },
}

struct Shard {
    entries: FxHashMap<RequestKey, Entry>,
    /// Keys of finished requests, by their numbers.
    finished: FairQueue<RequestKey>,
}

impl Default for Shard {
    fn default() -> Self {
        let finished = FairQueue::new(DUPLICATES_PER_SHARD_MAX);
        Self { entries: FxHashMap::default(), finished }
    }
}

/// Requests under way and the results of finished ones.
pub(crate) struct Duplicates {
    keys: (u64, u64),
    shards: Vec<Mutex<Shard>>,
}

impl Duplicates {
    /// Makes an empty cache. `secret` keys its digests.
    pub(crate) fn new(secret: [u8; 16]) -> Self {
        let secret = u128::from_ne_bytes(secret);
        Self {
            keys: (secret as u64, (secret >> 64) as u64),
            shards: (0..DUPLICATE_SHARDS).map(|_| Mutex::default()).collect(),
        }
    }

    /// Returns the key of a request. Long arguments are data to be written: both ends and the
    /// length stand for them, beside file, offset and count.
    pub(super) fn key(
        &self,
        from: Source<'_>,
        xid: u32,
        procedure: u32,
        args: Args<'_>,
    ) -> RequestKey {
        let stream = args.stream();
        let mut hasher = SipHasher13::new_with_keys(self.keys.0, self.keys.1);
        from.address.hash(&mut hasher);
        hasher.write_u32(from.who.cred.uid);
        hasher.write_u32(from.who.cred.gid);
        hasher.write_u8(from.who.flavour as u8);
        from.who.principal.hash(&mut hasher);
        hasher.write_usize(stream.len());
        if stream.len() <= 2 * DUPLICATE_SAMPLE_BYTES {
            hasher.write(stream);
        } else {
            hasher.write(&stream[..DUPLICATE_SAMPLE_BYTES]);
            hasher.write(&stream[stream.len() - DUPLICATE_SAMPLE_BYTES..]);
        }
        args.sample_apart(&mut hasher, DUPLICATE_SAMPLE_BYTES);
        RequestKey { xid, procedure, digest: hasher.finish(), host: from.host }
    }

    fn shard(&self, key: &RequestKey) -> MutexGuard<'_, Shard> {
        let index = key.digest as usize % self.shards.len();
        self.shards[index].lock()
    }

    /// Looks a request up, and records it as under way if it is new.
    pub(super) fn begin(&self, key: RequestKey, now_ns: u64) -> Known {
        let mut shard = self.shard(&key);
        let Shard { entries, finished } = &mut *shard;
        let entry = match entries.entry(key) {
            hash_map::Entry::Vacant(vacant) => {
                vacant.insert(Entry::UnderWay);
                return Known::New;
            }
            hash_map::Entry::Occupied(entry) => entry.into_mut(),
        };
        match entry {
            Entry::UnderWay => Known::UnderWay,
            Entry::Done { results, at_ns, .. }
                if now_ns.saturating_sub(*at_ns) <= DUPLICATE_AGE_NS_MAX =>
            {
                Known::Done(results.clone())
            }
            Entry::Done { number, .. } => {
                finished.remove(*number);
                *entry = Entry::UnderWay;
                Known::New
            }
        }
    }

    /// Caches the results of a request. `None` means that the client will retry it, so it is not
    /// cached.
    pub(super) fn finish(&self, key: RequestKey, results: Option<Vec<u8>>, now_ns: u64) {
        let results = results.filter(|bytes| bytes.len() <= DUPLICATE_REPLY_BYTES_MAX);
        let mut shard = self.shard(&key);
        let Some(results) = results else {
            shard.entries.remove(&key);
            return;
        };
        let (number, gone) = shard.finished.push(key.host, key);
        if let Some(gone) = gone {
            shard.entries.remove(&gone);
        }
        let entry = Entry::Done { results: results.into_boxed_slice(), at_ns: now_ns, number };
        shard.entries.insert(key, entry);
    }

    /// Drops expired replies, so that an idle server keeps none.
    pub(crate) fn tidy(&self, now_ns: u64) {
        for shard in &self.shards {
            let mut shard = shard.lock();
            while let Some((number, &oldest)) = shard.finished.oldest() {
                let young = match shard.entries.get(&oldest) {
                    Some(Entry::Done { at_ns, .. }) => {
                        now_ns.saturating_sub(*at_ns) <= DUPLICATE_AGE_NS_MAX
                    }
                    Some(Entry::UnderWay) | None => false,
                };
                if young {
                    break;
                }
                shard.finished.remove(number);
                shard.entries.remove_and_shrink(&oldest);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dafs_service::Flavour;
    use dafs_store::Cred;

    const PEER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    fn from(address: IpAddr, who: &CallerIdentity) -> Source<'_> {
        Source { host: Host::of(address), address, who }
    }

    fn sys(uid: u32) -> CallerIdentity {
        CallerIdentity::unproven(Cred::new(uid, 1), Flavour::Sys)
    }

    fn key(cache: &Duplicates, xid: u32, args: &[u8]) -> RequestKey {
        cache.key(from(PEER, &sys(1)), xid, 8, Args::plain(args))
    }

    #[test]
    fn a_copy_waits_for_the_first_and_then_gets_its_results() {
        let cache = Duplicates::new([1; 16]);
        let request = key(&cache, 7, b"args");
        assert!(matches!(cache.begin(request, 0), Known::New));
        assert!(matches!(cache.begin(request, 1), Known::UnderWay));
        cache.finish(request, Some(b"results!".to_vec()), 2);
        let Known::Done(results) = cache.begin(request, 3) else { panic!("not kept") };
        assert_eq!(*results, *b"results!");
        // A request with a delay status is executed again.
        let later = key(&cache, 8, b"args");
        assert!(matches!(cache.begin(later, 0), Known::New));
        cache.finish(later, None, 1);
        assert!(matches!(cache.begin(later, 2), Known::New));
    }

    #[test]
    fn anything_else_is_another_request() {
        let cache = Duplicates::new([1; 16]);
        let request = key(&cache, 7, b"args");
        let cred = sys(1);
        let other_peer: IpAddr = "192.0.2.1".parse().unwrap();
        let proven = |name: &[u8]| CallerIdentity {
            flavour: Flavour::Krb5,
            principal: Some(name.into()),
            ..sys(1)
        };
        let [anna, bert] = [proven(b"anna"), proven(b"bert")];
        let of = |who| cache.key(from(PEER, who), 7, 8, Args::plain(b"args"));
        assert_ne!(of(&anna), of(&bert));
        assert_ne!(of(&anna), request);
        let others = [
            key(&cache, 8, b"args"),
            key(&cache, 7, b"argz"),
            cache.key(from(PEER, &cred), 7, 9, Args::plain(b"args")),
            cache.key(from(PEER, &sys(2)), 7, 8, Args::plain(b"args")),
            cache.key(from(other_peer, &cred), 7, 8, Args::plain(b"args")),
        ];
        assert!(others.iter().all(|other| *other != request));
        let long = vec![5; 4 * DUPLICATE_SAMPLE_BYTES];
        for at in [0, DUPLICATE_SAMPLE_BYTES - 1, long.len() - 1] {
            let mut changed = long.clone();
            changed[at] = 6;
            assert_ne!(key(&cache, 1, &long), key(&cache, 1, &changed), "{at}");
        }
        assert_ne!(key(&cache, 1, &long), key(&cache, 1, &long[1..]));
    }

    #[test]
    fn old_results_go_by_number_and_by_time() {
        let cache = Duplicates::new([1; 16]);
        let total = DUPLICATE_SHARDS * DUPLICATES_PER_SHARD_MAX;
        let count = |cache: &Duplicates| -> usize {
            cache.shards.iter().map(|shard| shard.lock().entries.len()).sum()
        };
        let under_way = key(&cache, u32::MAX, b"");
        assert!(matches!(cache.begin(under_way, 0), Known::New));
        for xid in 0..2 * total as u32 {
            let request = key(&cache, xid, &xid.to_be_bytes());
            assert!(matches!(cache.begin(request, 0), Known::New));
            cache.finish(request, Some(vec![0; 4]), 0);
        }
        assert!(count(&cache) <= total + 1);
        assert!(matches!(cache.begin(under_way, 0), Known::UnderWay));
        cache.tidy(DUPLICATE_AGE_NS_MAX);
        // One host alone gets half.
        assert!(count(&cache) > total / 4);
        cache.tidy(DUPLICATE_AGE_NS_MAX + 1);
        assert_eq!(count(&cache), 1);
    }
    /// A flood of one host does not displace another's reply, whose retry would then be executed
    /// again.
    #[test]
    fn a_flood_pushes_out_replies_to_itself_alone() {
        let cache = Duplicates::new([1; 16]);
        let cred = sys(1);
        let honest = from("192.0.2.1".parse().unwrap(), &cred);
        let request = cache.key(honest, 7, 12, Args::plain(b"name"));
        assert!(matches!(cache.begin(request, 0), Known::New));
        cache.finish(request, Some(b"removed!".to_vec()), 0);
        for xid in 0..2 * (DUPLICATE_SHARDS * DUPLICATES_PER_SHARD_MAX) as u32 {
            let request = key(&cache, xid, &xid.to_be_bytes());
            assert!(matches!(cache.begin(request, 1), Known::New));
            cache.finish(request, Some(vec![0; 4]), 1);
        }
        assert!(matches!(cache.begin(request, 2), Known::Done(_)));
    }
}
