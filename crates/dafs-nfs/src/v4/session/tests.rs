use super::*;
use dafs_service::{
    ClientAddress, ExchangeId, Export, ExportOptions, Host, Identity, ImportanceRule, Namespace,
    Protection, Service, ServiceConfig, Weight,
};
use dafs_store::MemoryStore;
use std::net::Ipv4Addr;
use std::time::Duration;

/// Makes a confirmed client.
fn client(service: &Service, host: u32, name: &str) -> Arc<NfsClient> {
    let request = ExchangeId {
        owner: name.as_bytes(),
        verifier: [1; 8],
        identity: Identity { mechanism: "sys", principal: b"0".to_vec() },
        host: Host::User(host),
        address: ClientAddress { ip: Ipv4Addr::LOCALHOST.into(), privileged: true },
        update: false,
        protection: Protection::None,
    };
    let key = service.clients.exchange_id(&request, 0).unwrap().client.key();
    let record = service.clients.confirm(key, 0).unwrap();
    Arc::new(NfsClient::new(record, Principal::User(0), None))
}

fn create(table: &SessionTable, owner: &Arc<NfsClient>) -> Result<Arc<Session>, Status> {
    let attributes = ChannelAttributes { requests_max: 1, ..ChannelAttributes::default() };
    let back = BackParameters { program: 0, minor: 1, attributes, credential: None };
    let (owner, fore) = (owner.clone(), attributes);
    let importance = SessionWeight::default();
    table.create(NewSession { owner, made_ns: 0, fore, back, persistent: None, importance })
}

#[test]
fn no_host_takes_all_sessions() {
    let store = Arc::new(MemoryStore::default());
    let namespace = Namespace::new(vec![Export::new("", store, ExportOptions::default())]).unwrap();
    let service = Service::new(ServiceConfig::new(Duration::from_secs(90), 1), namespace);
    let table = SessionTable { sessions_max: 8, ..SessionTable::new([1; 16]) };
    let [one, again, two, three] =
        [(1, "a"), (1, "b"), (2, "c"), (3, "d")].map(|(host, name)| client(&service, host, name));
    let fill = |owner| {
        let made = (0..8).map_while(|_| create(&table, owner).ok()).collect::<Vec<_>>();
        assert!(!table.has_room(owner) && create(&table, owner).is_err());
        made
    };
    let first = fill(&one);
    assert_eq!((first.len(), fill(&again).len()), (4, 0));
    assert_eq!((fill(&two).len(), fill(&three).len()), (2, 1));
    // Released places can be taken again.
    assert!(first.iter().all(|session| table.destroy(session)));
    assert_eq!(fill(&again).len(), 3);
}

/// Bytes of a reply in the tests of shares.
const REPLY_BYTES: usize = 8 << 10;

/// The slots of a session as a client uses them that obeys sr_target_highest_slotid.
struct Caller {
    session: Arc<Session>,
    /// The last sequence id of each slot.
    sequences: Vec<u32>,
    /// The next slot.
    next: usize,
    slots: usize,
}

impl Caller {
    /// Makes a session of a client of this name, with slots for `slots` requests.
    fn new(table: &SessionTable, service: &Service, name: &str, slots: u32) -> Self {
        let owner = client(service, 1, name);
        let fore = ChannelAttributes { requests_max: slots, ..ChannelAttributes::default() };
        let back = BackParameters { program: 0, minor: 1, attributes: fore, credential: None };
        let address = Ipv4Addr::LOCALHOST.into();
        let importance = SessionWeight::of(&service.importance, 0, address, name.as_bytes());
        let new = NewSession { owner, made_ns: 0, fore, back, persistent: None, importance };
        let session = table.create(new).unwrap();
        Self { session, sequences: vec![0; slots as usize], next: 0, slots: slots as usize }
    }

    /// Has a request carried out in the next slot. Its reply is cached.
    fn call(&mut self) {
        self.next = (self.next + 1) % self.slots;
        self.sequences[self.next] += 1;
        let request = SlotRequest {
            slot: self.next as u32,
            sequence: self.sequences[self.next],
            highest: self.slots as u32 - 1,
            who: Principal::User(0),
            digest: 7,
        };
        let (begin, left, held) = self.session.begin(request).unwrap();
        assert_eq!(begin, Begin::New);
        held.unwrap().finish(Some(Arc::from([0; REPLY_BYTES].as_slice())));
        self.slots = self.sequences.len().min(left.target as usize + 1);
    }
}

/// A table with memory for 128 replies, and sessions with 128 slots each.
fn crowd(rules: Vec<ImportanceRule>, names: &[&str]) -> (SessionTable, Service, Vec<Caller>) {
    let store = Arc::new(MemoryStore::default());
    let namespace = Namespace::new(vec![Export::new("", store, ExportOptions::default())]).unwrap();
    let service = Service::new(ServiceConfig::new(Duration::from_secs(90), 1), namespace);
    service.importance.replace_rules(rules);
    let cache = Arc::new(ReplyCache::with(128 * REPLY_BYTES));
    let table = SessionTable { cache, ..SessionTable::new([1; 16]) };
    let callers = names.iter().map(|name| Caller::new(&table, &service, name, 128)).collect();
    (table, service, callers)
}

/// All sessions call, one after the other, for some seconds. Returns their slots then.
fn load(table: &SessionTable, callers: &mut [Caller], now_ns: &mut u64) -> Vec<usize> {
    for _ in 0..1000 {
        *now_ns += 10_000_000;
        for caller in &mut *callers {
            table.share_cache(*now_ns);
            caller.call();
        }
        // Between two divisions each may add ten replies.
        let bytes_max = (128 + 11 * callers.len()) * REPLY_BYTES;
        assert!(*now_ns < 1_000_000_000 || table.counts().cached_bytes <= bytes_max);
    }
    callers.iter().map(|caller| caller.slots).collect()
}

fn rule(client: &str, weight: u32) -> ImportanceRule {
    let (client, weight) = (client.parse().ok(), Weight::new(weight).unwrap());
    ImportanceRule { user: None, network: None, client, weight }
}

#[test]
fn important_sessions_keep_their_slots_and_others_give_theirs_back() {
    let names = ["batch 1", "batch 2", "batch 3", "db"];
    let (table, _service, mut callers) = crowd(vec![rule("db", 1000)], &names);
    let mut now_ns = 0;
    // Seven eighths of the memory for weights 100, 100, 100 and 1000.
    let slots = load(&table, &mut callers, &mut now_ns);
    assert!(slots[3] >= 80, "{slots:?}");
    assert!(slots[..3].iter().all(|slots| (4..=9).contains(slots)), "{slots:?}");
    assert_eq!(load(&table, &mut callers, &mut now_ns), slots, "it stays so");
    let counts = table.counts();
    assert_eq!((counts.important_sessions, counts.important_slots), (1, slots[3]));
    assert_eq!(counts.slots_owed, 0, "clients have come down");
}

#[test]
fn sessions_without_rules_get_equal_slots_when_memory_is_short() {
    let (table, _service, mut callers) = crowd(Vec::new(), &["a", "b", "c", "d"]);
    let slots = load(&table, &mut callers, &mut 0);
    assert!(slots.iter().all(|slots| (24..=32).contains(slots)), "{slots:?}");
}

#[test]
fn the_greatest_weight_leaves_every_session_its_least_slots() {
    let rules = vec![rule("low*", 1), rule("high*", Weight::MAX)];
    let names = ["low 1", "low 2", "high 1", "high 2"];
    let (table, _service, mut callers) = crowd(rules, &names);
    let slots = load(&table, &mut callers, &mut 0);
    assert_eq!(slots[..2], [4, 4]);
    assert!(slots[2..].iter().all(|slots| *slots >= 50), "{slots:?}");
}

#[test]
fn changed_rules_move_slots_and_weigh_sessions_again() {
    let (table, service, mut callers) = crowd(vec![rule("a", 1000)], &["a", "b"]);
    let mut now_ns = 0;
    let slots = load(&table, &mut callers, &mut now_ns);
    assert!(slots[0] > 6 * slots[1], "{slots:?}");
    service.importance.replace_rules(vec![rule("b", 1000)]);
    table.weigh(&service.importance);
    let weights: Vec<u32> =
        callers.iter().map(|caller| caller.session.importance.weight().get()).collect();
    assert_eq!(weights, [100, 1000]);
    // New slots come with demand: those of "b" were given back.
    callers[1] = Caller::new(&table, &service, "b", 128);
    let slots = load(&table, &mut callers, &mut now_ns);
    assert!(slots[1] > 6 * slots[0], "{slots:?}");
}
