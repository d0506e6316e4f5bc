use super::*;
use dafs_service::{
    ClientAddress, ExchangeId, Export, ExportOptions, Host, Identity, Namespace, Protection,
    Service, ServiceConfig,
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
    table.create(NewSession { owner, made_ns: 0, fore, back, persistent: None })
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
