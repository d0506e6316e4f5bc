//! Data servers in processes of their own, without the connection between. A file's placement
//! disappears and reappears with the data server of its brick, and its writes reach the volume.

use crate::support;
use dafs_gluster::{
    DataPlace, DataServerOptions, GlusterNode, GlusterNodeOptions, GlusterOptions, GlusterStore,
    OpenError,
};
use dafs_store::node::{ComponentId, Node};
use dafs_store::*;
use dafs_testkit::stores;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

const SECRET: [u8; 16] = [9; 16];

/// A data server behind a connection that can be lost.
struct Behind {
    node: GlusterNode,
    away: AtomicBool,
    run: AtomicU64,
}

impl Behind {
    fn there(&self) -> Result<&GlusterNode> {
        if self.away.load(SeqCst) { Err(StoreError::Busy) } else { Ok(&self.node) }
    }
}

impl Node for Behind {
    fn number(&self) -> u32 {
        self.node.number()
    }

    fn addresses(&self) -> Vec<SocketAddr> {
        self.node.addresses()
    }

    fn run(&self) -> u64 {
        self.run.load(SeqCst)
    }

    fn is_reachable(&self) -> bool {
        !self.away.load(SeqCst)
    }

    fn grant_ttl(&self) -> Duration {
        Duration::from_secs(8)
    }

    fn commit(&self, id: &ComponentId) -> Result<u64> {
        self.there()?.commit(id)
    }

    fn size(&self, id: &ComponentId) -> Result<u64> {
        self.there()?.size(id)
    }

    fn drop_grants(&self, id: &ComponentId) -> Result<()> {
        self.there()?.drop_grants(id)
    }

    fn take_astray(&self) -> Result<Vec<ComponentId>> {
        self.there()?.take_astray()
    }
}

fn node_options(cluster: &support::Cluster, number: u32) -> GlusterNodeOptions {
    let net = cluster.server.strip_suffix(".1").unwrap();
    GlusterNodeOptions {
        volume: "dist".to_owned(),
        servers: vec![(cluster.server.clone(), None)],
        brick: format!("{net}.{number}:{}/{number}/brick", cluster.dir.display()),
        data_keys: DataKeys::new([9; 16], SECRET),
        number,
        addresses: vec![format!("127.0.0.1:{number}").parse().unwrap()],
    }
}

fn world() -> Option<(GlusterStore, Vec<Arc<Behind>>)> {
    let cluster = support::cluster()?;
    let (_, options) = support::fresh(&stores::me())?;
    let behind = |number| {
        let node = GlusterNode::open(&node_options(cluster, number)).unwrap();
        Arc::new(Behind { node, away: AtomicBool::new(false), run: AtomicU64::new(1) })
    };
    let nodes: Vec<_> = (1..=3).map(behind).collect();
    let far = |node: &Arc<Behind>| DataServerOptions {
        place: DataPlace::Far(node.clone()),
        brick: node_options(cluster, node.number()).brick,
    };
    let data_servers = nodes.iter().map(far).collect();
    let data_keys = Some(DataKeys::new([9; 16], SECRET));
    let options = GlusterOptions { data_servers, data_keys, ..options };
    Some((GlusterStore::open(&options).unwrap(), nodes))
}

fn moved(store: &GlusterStore) -> Vec<FileId> {
    let mut moved = Vec::new();
    while moved.is_empty() {
        std::thread::sleep(Duration::from_millis(20));
        store.layouts().unwrap().take_moved(&mut |id| moved.push(id));
    }
    moved
}

#[test]
fn files_lie_where_their_data_servers_say_and_what_these_write_is_the_volumes() {
    let Some((store, nodes)) = world() else { return };
    let layouts = store.layouts().unwrap();
    assert_eq!(layouts.grant_ttl(), Duration::from_secs(8));
    let mut used = [0; 3];
    for number in 0..24_u8 {
        let made = support::make(&store, &format!("file {number}"));
        let early = SetTime::To(TimeSpec { seconds: 7, nanoseconds: 0 });
        let early = SetAttr { mtime: Some(early), ..SetAttr::default() };
        store.setattr(&stores::me(), &made.id, &early, None).unwrap();
        let (at, id) = support::placed(&store, &made.id);
        used[at] += 1;
        let component = nodes[at].node.component(&id).unwrap();
        let file = nodes[at].node.data().open(&id).unwrap();
        layouts.recover_size(&made.id).unwrap();
        assert_eq!(store.getattr(&made.id).unwrap().mtime.seconds, 7, "nothing was written");
        stores::write(&*file, 5, &[number; 100]).unwrap();
        assert_eq!(stores::read(&*made.file, 0, 200).unwrap()[5..], [number; 100]);
        match number % 2 {
            0 => assert_eq!(layouts.commit(&made.id, Some(105)), Ok(105)),
            _ => layouts.recover_size(&made.id).unwrap(),
        }
        assert!(store.getattr(&made.id).unwrap().mtime.seconds > 7);
        assert_eq!(nodes[at].size(&component), Ok(105));
        let other = &nodes[(at + 1) % 3];
        assert_eq!(other.size(&component), Err(StoreError::NoDevice));
        assert_eq!(other.commit(&component), Err(StoreError::NoDevice));
        layouts.drop_grants(&made.id).unwrap();
    }
    assert!(used.iter().all(|&count| count > 0), "all on some bricks: {used:?}");
    let astray: u64 = nodes.iter().map(|node| node.node.data().indirect_bytes()).sum();
    assert_eq!(astray, 0);
}

#[test]
fn layouts_go_while_a_data_server_is_away_and_have_another_name_when_it_is_back() {
    let Some((store, nodes)) = world() else { return };
    let layouts = store.layouts().unwrap();
    let made = support::make(&store, "f");
    let device = || match layouts.placement(&made.id, true).unwrap()?.spread {
        Spread::Stripes(stripes) => Some(stripes.device),
        Spread::Copies(_) => panic!("stripes"),
    };
    let before = device().unwrap();
    let (at, id) = support::placed(&store, &made.id);
    let node = &nodes[at];
    node.away.store(true, SeqCst);
    assert_eq!((device(), layouts.device(&before)), (None, None));
    assert_eq!(moved(&store), [made.id]);
    // The write goes through the metadata server, as without data servers.
    stores::write(&*made.file, 0, b"by way of GlusterFS").unwrap();
    assert_eq!(layouts.drop_grants(&made.id), Err(StoreError::Busy), "it may not know yet");
    layouts.commit(&made.id, Some(19)).unwrap();
    layouts.recover_size(&made.id).unwrap();
    node.run.store(2, SeqCst);
    node.away.store(false, SeqCst);
    let after = device().unwrap();
    assert_ne!(after, before);
    assert_eq!(layouts.device(&after).unwrap().servers, [node.nfs_addresses()]);
    let file = node.node.data().open(&id).unwrap();
    assert_eq!(stores::read(&*file, 0, 50).unwrap(), b"by way of GlusterFS");
    // Layouts from before are recalled, too.
    assert_eq!(moved(&store), [made.id]);
}

#[test]
fn a_data_server_reports_files_that_it_lacks() {
    let Some((store, nodes)) = world() else { return };
    let made = support::make(&store, "f");
    let (at, id) = support::placed(&store, &made.id);
    let wrong = &nodes[(at + 1) % 3].node;
    stores::write(&*wrong.data().open(&id).unwrap(), 0, b"by way of GlusterFS").unwrap();
    assert_eq!(stores::read(&*made.file, 0, 50).unwrap(), b"by way of GlusterFS");
    let astray = wrong.take_astray();
    // The metadata server asks at the same time.
    assert!(matches!(&astray.unwrap()[..], [] | [_]));
    let forged = FileId([7; FILE_ID_BYTES]);
    assert_eq!(wrong.component(&forged), Err(StoreError::BadHandle));
    assert_eq!(wrong.component(&made.id), Err(StoreError::BadHandle), "an id is no handle");
    let cluster = support::cluster().unwrap();
    let other = GlusterNodeOptions { brick: "h:/b".to_owned(), ..node_options(cluster, 1) };
    assert!(matches!(GlusterNode::open(&other), Err(OpenError::NoBrick { .. })));
}
