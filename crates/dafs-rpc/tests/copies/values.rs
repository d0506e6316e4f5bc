//! The example with large values works over every transport.

use crate::alone;
use crate::client::{Client, Transport};
use crate::protocol::{LIST_BYTES_MAX, VALUE_BYTES_MAX};
use crate::server::Server;
use dafs_mem::{Site, copied_bytes};

fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 3 / 2 + seed) as u8).collect()
}

#[test]
fn values_and_keys_over_every_transport() {
    let _alone = alone();
    let any = "127.0.0.1:0".parse().unwrap();
    let server = Server::start(any, any).unwrap();
    let copied = || {
        let sites = [Site::RpcPlacement, Site::RpcStaging, Site::RpcRdmaLong, Site::RpcRdmaMessage];
        sites.map(copied_bytes).iter().sum::<u64>()
    };
    let lens = [0, 1, 999, 5000, 100_001, VALUE_BYTES_MAX];
    let clients = [Transport::Tcp, Transport::Iwarp, Transport::Shm].map(|transport| {
        let address = if transport == Transport::Tcp { server.tcp } else { server.rdma };
        Client::connect(transport, address).unwrap()
    });
    for (seed, writer) in clients.iter().enumerate() {
        for (number, &len) in lens.iter().enumerate() {
            let (key, value) = (format!("key {number}"), pattern(seed, len));
            writer.memory().copy_from(&value, Site::Inspect);
            assert_eq!(writer.put(&key, len).unwrap(), seed > 0, "{key}");
            let before = copied();
            for reader in &clients {
                reader.memory().fill(0);
                assert_eq!(reader.get(&key).unwrap(), Some(len), "{key}");
                assert!(reader.copy(len) == value, "{key} differs");
            }
            // Over TCP some of it comes with the head; over RDMA a short value comes inline too.
            assert!(copied() - before < 32 << 10, "{} bytes of {len}", copied() - before);
        }
    }
    for client in &clients {
        assert_eq!(client.get("unknown").unwrap(), None);
        let keys = (0..lens.len()).map(|number| format!("key {number}"));
        assert_eq!(client.list().unwrap(), keys.collect::<Vec<_>>());
    }
    // A list that is too long for a message, and at the end for any list.
    for number in 0..3000 {
        clients[0].put(&format!("{number:0200}"), 0).unwrap();
    }
    let lists = clients.each_ref().map(|client| client.list().unwrap());
    assert!(lists[0].len() > 1000 && lists[0].len() * 200 < LIST_BYTES_MAX);
    assert!(lists.iter().all(|list| *list == lists[0]));
}
