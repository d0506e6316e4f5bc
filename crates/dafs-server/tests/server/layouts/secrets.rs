//! The secret of the cluster changes while clients have handles and tickets that were made with it.

use super::harness::*;
use dafs_wire::dafs::*;

/// Writes to the first stripe at its data server, by a handle and over a new session. A delay ends with
/// the change of a connection between servers.
fn write(client: &Caller, place: &Place, by: &Place, file: File) -> Result<u32, Status> {
    let at = place.at(0);
    let mut data = Peer::with_ticket(place.servers[at], &client.name, &by.ticket)?;
    let mut write = || {
        let written = data.write(by.component(at, file), 0, b"data", Stability::DataSync);
        written.map(|written| written.count)
    };
    soon(|| Some(write()).filter(|written| *written != Err(Status::Delay)))
}

#[test]
fn what_clients_have_is_valid_while_its_secret_is_accepted() {
    let cluster = Cluster::start(Where::Remote, 1);
    let (old, new) = (std::fs::read(cluster.secret()).unwrap(), vec![7; 32]);
    let put = |secrets: &[&[u8]]| std::fs::write(cluster.secret(), secrets.concat()).unwrap();
    let reloaded = || {
        let told = cluster.server.reload().unwrap();
        assert!(told.contains("applied: the file of cluster.secret"), "{told}");
    };
    let mut client = cluster.client("one");
    let file = client.peer.open(b"f");
    let place = client.layout_soon(file, LayoutMode::ReadWrite);
    // A second secret is accepted, first by the metadata server.
    put(&[&old, &new]);
    reloaded();
    assert_eq!(write(&client, &place, &place, file), Ok(4));
    cluster.data_servers_read_secret();
    assert_eq!(write(&client, &place, &place, file), Ok(4));
    let same = client.layout(file, LayoutMode::ReadWrite).unwrap();
    assert_eq!((&same.ticket, &same.components), (&place.ticket, &place.components));
    // They are swapped. The layout by the old one is recalled, and valid until its return.
    put(&[&new, &old]);
    reloaded();
    let call = client.channel.called();
    let Request::XBcLayoutRecall(recall) = call.request() else { panic!("{:?}", call.request()) };
    client.channel.client.answer(&call, 4, &Reply::XBcLayoutRecall);
    client.channel.turn();
    assert_eq!(write(&client, &place, &place, file), Ok(4));
    cluster.data_servers_read_secret();
    assert_eq!(write(&client, &place, &place, file), Ok(4));
    assert_eq!(client.give_back(file, recall.state_id, recall.seqid), Status::Ok);
    let renewed = client.layout_soon(file, LayoutMode::ReadWrite);
    assert_ne!(renewed.ticket, place.ticket);
    assert_ne!(renewed.components, place.components);
    assert_eq!(write(&client, &place, &renewed, file), Ok(4));
    // The old one goes.
    put(&[&new]);
    reloaded();
    assert_eq!(write(&client, &place, &renewed, file), Ok(4));
    cluster.data_servers_read_secret();
    assert_eq!(write(&client, &place, &renewed, file), Ok(4));
    assert_eq!(write(&client, &place, &place, file), Err(Status::NotAuthorized));
    let mut forged = place.clone();
    forged.ticket = renewed.ticket.clone();
    assert_eq!(write(&client, &place, &forged, file), Err(Status::BadHandle));
    assert_eq!(client.commit_layout(file, &renewed, 4), Ok(4));
    assert_eq!(client.peer.read_soon(file, 10), b"data");
    cluster.stop();
}

#[test]
fn a_file_without_right_secrets_changes_nothing() {
    let cluster = Cluster::start(Where::Remote, 1);
    let old = std::fs::read(cluster.secret()).unwrap();
    let mut client = cluster.client("one");
    let file = client.peer.open(b"f");
    let place = client.layout_soon(file, LayoutMode::ReadWrite);
    for (times, remedy) in
        [(0, "dafs cluster init"), (2, "cat OLD NEW"), (3, "of the new one alone")]
    {
        std::fs::write(cluster.secret(), old.repeat(times)).unwrap();
        let error = cluster.server.reload().unwrap_err();
        assert!(error.contains(remedy) && error.contains("secret"), "{error}");
    }
    assert_eq!(write(&client, &place, &place, file), Ok(4));
    cluster.stop();
}
