//! Delegations: conflicting requests through any front end recall them, and the server revokes
//! those that are not returned.

use super::dafs_holder::Holder;
use super::harness::{Event, Served, existing, open_wanting, refused};
use dafs_client::{CacheOptions, Client, ConnectOptions, Create, OpenOptions, Stability};
use dafs_nfs_client::patiently;
use dafs_testkit::eventually;
use dafs_wire::nfs3;
use dafs_wire::nfs4::{
    DENY_NONE, DelegationType, SequenceStatus, SetAttributes, ShareAccess, StableHow, Status, Want,
};
use std::process::Command;
use std::time::Duration;

const READ: u32 = ShareAccess::READ;
const BOTH: u32 = ShareAccess::BOTH;

/// Retries a call of NFSv3 while the server delays it.
fn patiently3<T>(
    mut call: impl FnMut() -> Result<T, dafs_nfs_client::NfsError>,
) -> Result<T, dafs_nfs_client::NfsError> {
    for _ in 0..2000 {
        match call() {
            Err(error) if error.status3() == Some(nfs3::Status::Jukebox) => {
                std::thread::sleep(Duration::from_millis(5));
            }
            other => return other,
        }
    }
    call()
}

#[test]
fn readers_share_read_delegations_until_somebody_writes() {
    let served = Served::new();
    std::fs::write(served.path().join("file"), "data").unwrap();
    let (a, root, heard_a) = served.v4_listening(b"a");
    let (b, _, heard_b) = served.v4_listening(b"b");
    let file_a = open_wanting(&a, &root, b"file", READ, Want::Any);
    assert_eq!(file_a.delegation.map(|given| given.kind), Some(DelegationType::Read));
    let file_b = open_wanting(&b, &root, b"file", READ, Want::Any);
    assert_eq!(file_b.delegation.map(|given| given.kind), Some(DelegationType::Read));
    assert!(heard_a.is_silent());
    let (c, _) = served.v4(b"c");
    let opened = heard_a.while_returning(&a, &file_a, || {
        heard_b.while_returning(&b, &file_b, || {
            patiently(|| c.open(&root, b"file", &existing(BOTH, DENY_NONE)))
        })
    });
    c.close(&opened.unwrap()).unwrap();
}

#[test]
fn a_write_delegation_is_recalled_by_every_front_door() {
    let served = Served::new();
    let (holder, root, heard) = served.v4_listening(b"holder");
    let dafs = served.dafs();
    let (v3, root3) = served.v3();
    let (other, _) = served.v4(b"other");
    for (number, who) in ["dafs open", "v4 open", "v3 write", "v3 read", "v4 setattr", "dafs size"]
        .into_iter()
        .enumerate()
    {
        let name = format!("file{number}").into_bytes();
        let file = open_wanting(&holder, &root, &name, BOTH, Want::Write);
        let delegation = file.delegation.unwrap_or_else(|| panic!("{who}: no delegation"));
        assert_eq!(delegation.kind, DelegationType::Write, "{who}");
        heard.while_returning(&holder, &file, || match who {
            "dafs open" => drop(dafs.open(&name, &OpenOptions::read()).unwrap()),
            "v4 open" => {
                drop(patiently(|| other.open(&root, &name, &existing(READ, DENY_NONE))).unwrap());
            }
            "v3 write" => {
                let handle = v3.lookup(&root3, &name).unwrap();
                let write = || v3.write(&handle, 0, b"x", nfs3::Stability::FileSync);
                patiently3(write).unwrap();
            }
            "v3 read" => {
                let handle = v3.lookup(&root3, &name).unwrap();
                drop(patiently3(|| v3.read(&handle, 0, 1)).unwrap());
            }
            "v4 setattr" => {
                let new = SetAttributes { mode: Some(0o640), ..SetAttributes::default() };
                let stateid = dafs_wire::nfs4::Stateid::ANONYMOUS;
                patiently(|| other.setattr(&file.handle, stateid, &new)).unwrap();
            }
            _ => {
                let handle = dafs.lookup(&dafs.root(), &name).unwrap();
                let size = dafs_client::SetAttributes {
                    size: Some(3),
                    ..dafs_client::SetAttributes::default()
                };
                dafs.set_attributes(&handle, &size).unwrap();
            }
        });
        holder.close(&file).unwrap();
    }
}

#[test]
fn a_delegation_is_recalled_by_changes_of_names() {
    let served = Served::new();
    let (holder, root, heard) = served.v4_listening(b"holder");
    let dafs = served.dafs();
    let (v3, root3) = served.v3();
    let (other, _) = served.v4(b"other");
    for (number, who) in
        ["dafs remove", "v3 rename", "v4 remove", "v4 link", "v3 remove"].into_iter().enumerate()
    {
        let name = format!("file{number}").into_bytes();
        let file = open_wanting(&holder, &root, &name, BOTH, Want::Write);
        assert!(file.delegation.is_some(), "{who}");
        heard.while_returning(&holder, &file, || match who {
            "dafs remove" => dafs.remove(&dafs.root(), &name).unwrap(),
            "v3 rename" => {
                patiently3(|| v3.rename(&root3, &name, &root3, b"elsewhere")).unwrap();
            }
            "v4 remove" => drop(patiently(|| other.remove(&root, &name)).unwrap()),
            "v4 link" => {
                patiently(|| other.link(&file.handle, &root, b"second name")).unwrap();
            }
            _ => patiently3(|| v3.remove(&root3, &name)).unwrap(),
        });
        holder.close(&file).unwrap();
    }
}

#[test]
fn the_server_asks_the_holder_for_size_and_change() {
    let served = Served::new();
    let (holder, root, heard) = served.v4_listening(b"holder");
    let file = open_wanting(&holder, &root, b"file", BOTH, Want::Write);
    assert!(file.delegation.is_some());
    let before = holder.stat(&file.handle).unwrap();
    assert!(heard.is_silent(), "the holder itself asked");
    heard.tell_size(before.change + 1, 12_345);
    let (other, _) = served.v4(b"other");
    let seen = patiently(|| other.stat(&file.handle)).unwrap();
    assert_eq!(heard.next(), Event::Asked);
    assert_eq!(seen.size, 12_345);
    assert!(seen.change > before.change);
    let (v3, _) = served.v3();
    assert_eq!(patiently3(|| v3.getattr(&file.handle)).unwrap().size, 12_345);
    let dafs = served.dafs();
    let handle = dafs.lookup(&dafs.root(), b"file").unwrap();
    assert_eq!(dafs.attributes(&handle).unwrap().size, 12_345);
}

#[test]
fn reading_and_writing_under_a_delegation_works_without_an_open() {
    let served = Served::new();
    let (holder, root, heard) = served.v4_listening(b"holder");
    let file = open_wanting(&holder, &root, b"file", BOTH, Want::Write);
    let delegation = file.delegation.unwrap();
    let stable = StableHow::FileSync;
    holder.write(&file.handle, delegation.stateid, 0, b"under", stable).unwrap();
    let read = holder.read(&file.handle, delegation.stateid, 0, 9).unwrap();
    assert_eq!(read, (b"under".to_vec(), true));
    holder.close(&file).unwrap();
    holder.write(&file.handle, delegation.stateid, 0, b"later", stable).unwrap();
    let dafs = served.dafs();
    let seen = heard.while_returning(&holder, &file, || {
        let other = dafs.open(b"file", &OpenOptions::read()).unwrap();
        let mut data = [0; 5];
        other.read_at(&mut data, 0).unwrap();
        data
    });
    assert_eq!(&seen, b"later");
    let after = holder.read(&file.handle, delegation.stateid, 0, 9);
    assert_eq!(refused(after), Status::BadStateId);
}

#[test]
fn a_delegation_that_is_not_returned_is_taken_away() {
    let served = Served::with(|config| config.lease_time = Duration::from_secs(2));
    let (holder, root, heard) = served.v4_listening(b"holder");
    let file = open_wanting(&holder, &root, b"file", BOTH, Want::Write);
    let delegation = file.delegation.unwrap();
    let dafs = served.dafs();
    let opened = std::thread::scope(|scope| {
        let work = scope.spawn(|| dafs.open(b"file", &OpenOptions::read_write()));
        heard.recalled(&delegation);
        // The client is alive, renews its lease, and does not return the delegation.
        eventually("the delegation was taken away", || {
            let status = holder.renew().unwrap();
            status.contains(SequenceStatus::RECALLABLE_STATE_REVOKED)
        });
        work.join().unwrap()
    });
    opened.unwrap().write_at(b"other", 0, Stability::FileSync).unwrap();
    let statuses = holder.test_stateids(vec![delegation.stateid]).unwrap();
    assert_eq!(statuses, [Status::DelegRevoked]);
    let used = holder.read(&file.handle, delegation.stateid, 0, 1);
    assert_eq!(refused(used), Status::DelegRevoked);
    holder.free_stateid(delegation.stateid).unwrap();
    eventually("the flag went", || {
        !holder.renew().unwrap().contains(SequenceStatus::RECALLABLE_STATE_REVOKED)
    });
}

#[test]
fn a_local_change_recalls() {
    let served = Served::new();
    let (holder, root, heard) = served.v4_listening(b"holder");
    let file = open_wanting(&holder, &root, b"file", BOTH, Want::Write);
    let delegation = file.delegation.unwrap();
    // The server ignores changes of its own process, so another one has to make them.
    let script = "printf 'from below' > \"$1\"";
    let path = served.path().join("file");
    let written = Command::new("sh").args(["-c", script, "sh"]).arg(path).status().unwrap();
    assert!(written.success());
    heard.recalled(&delegation);
    holder.return_delegation(&file.handle, delegation.stateid).unwrap();
    let read = holder.read(&file.handle, file.stateid, 0, 20).unwrap();
    assert_eq!(read.0, b"from below");
}

#[test]
fn recalls_find_their_way_over_a_second_connection() {
    let served = Served::new();
    let (holder, root, heard) = served.v4_listening(b"holder");
    let file = open_wanting(&holder, &root, b"file", BOTH, Want::Write);
    assert!(file.delegation.is_some());
    let first = holder.connection();
    served.trunk(&holder);
    first.close();
    // From here on only the second connection is left.
    let only = dafs_nfs_client::Connection::open(
        served.nfs,
        dafs_nfs_client::Identity::sys("second", 0, 0, &[]),
    )
    .unwrap();
    dafs_nfs_client::bind_connection(
        &only,
        holder.minor_version(),
        holder.id(),
        dafs_wire::nfs4::ChannelFromClient::BackOrBoth,
    )
    .unwrap();
    only.answer_callbacks(holder.back_channel().clone());
    holder.replace_connections(only);
    let dafs = served.dafs();
    heard.while_returning(&holder, &file, || {
        dafs.open(b"file", &OpenOptions::read()).unwrap().close().unwrap();
    });
}

#[test]
fn unwritten_data_of_a_dafs_cache_is_seen_by_every_front_end() {
    let served = Served::new();
    let options = ConnectOptions { cache: Some(CacheOptions::default()), ..Default::default() };
    let holder = Client::connect(&served.url, &options).unwrap();
    let (v3, root3) = served.v3();
    let (other, root) = served.v4(b"other");
    for (number, who) in ["v3 read", "v4 read", "v3 write"].into_iter().enumerate() {
        let name = format!("file{number}").into_bytes();
        let create = OpenOptions::read_write().create(Create::New).mode(0o666);
        let file = holder.open(&name, &create).unwrap();
        file.write_at(b"kept by its client", 0, Stability::Unstable).unwrap();
        let path = served.path().join(format!("file{number}"));
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 0, "{who}: it was not kept");
        match who {
            "v3 read" => {
                let handle = v3.lookup(&root3, &name).unwrap();
                let read = patiently3(|| v3.read(&handle, 0, 100)).unwrap();
                assert_eq!(read.0, b"kept by its client");
            }
            "v4 read" => {
                let opened = patiently(|| other.open(&root, &name, &existing(READ, DENY_NONE)));
                let opened = opened.unwrap();
                let read = other.read(&opened.handle, opened.stateid, 0, 100).unwrap();
                assert_eq!(read.0, b"kept by its client");
                other.close(&opened).unwrap();
            }
            _ => {
                let handle = v3.lookup(&root3, &name).unwrap();
                let write = || v3.write(&handle, 0, b"lost", nfs3::Stability::FileSync);
                patiently3(write).unwrap();
                let mut found = [0; 18];
                file.read_at(&mut found, 0).unwrap();
                assert_eq!(&found, b"lost by its client");
            }
        }
        file.close().unwrap();
    }
}

#[test]
fn the_delegation_of_a_dafs_client_is_recalled_by_every_front_door() {
    let served = Served::new();
    let mut holder = Holder::new(&served);
    let dafs = served.dafs();
    let (v3, root3) = served.v3();
    let (v4, root) = served.v4(b"other");
    for (number, who) in
        ["v4 open", "v3 write", "v3 read", "v4 setattr", "dafs open"].into_iter().enumerate()
    {
        let name = format!("file{number}").into_bytes();
        let path = served.path().join(format!("file{number}"));
        std::fs::write(&path, b"0123456789").unwrap();
        let held = holder.hold(&name);
        std::thread::scope(|scope| {
            let work = scope.spawn(|| match who {
                "v4 open" => {
                    let open = || v4.open(&root, &name, &existing(READ, DENY_NONE));
                    let file = patiently(open).unwrap();
                    let (data, _) = v4.read(&file.handle, file.stateid, 0, 100).unwrap();
                    assert_eq!(data, b"late456789");
                    v4.close(&file).unwrap();
                }
                "v4 setattr" => {
                    let handle = v4.lookup(&root, &name).unwrap();
                    let new = SetAttributes { mode: Some(0o640), ..SetAttributes::default() };
                    let stateid = dafs_wire::nfs4::Stateid::ANONYMOUS;
                    patiently(|| v4.setattr(&handle, stateid, &new)).unwrap();
                }
                "v3 write" => {
                    let handle = v3.lookup(&root3, &name).unwrap();
                    let write = || v3.write(&handle, 9, b"x", nfs3::Stability::FileSync);
                    patiently3(write).unwrap();
                }
                "v3 read" => {
                    let handle = v3.lookup(&root3, &name).unwrap();
                    drop(patiently3(|| v3.read(&handle, 0, 1)).unwrap());
                }
                _ => drop(dafs.open(&name, &OpenOptions::read()).unwrap()),
            });
            holder.give_back(&held, b"late");
            work.join().unwrap();
        });
        let expected: &[u8] = match who {
            "v3 write" => b"late45678x",
            _ => b"late456789",
        };
        assert_eq!(std::fs::read(&path).unwrap(), expected, "{who}");
    }
}

#[test]
fn the_server_asks_a_dafs_client_for_unwritten_data() {
    let served = Served::new();
    std::fs::write(served.path().join("file"), b"0123456789").unwrap();
    let mut holder = Holder::new(&served);
    let held = holder.hold(b"file");
    let (v4, root) = served.v4(b"other");
    let handle = v4.lookup(&root, b"file").unwrap();
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| patiently(|| v4.stat(&handle)).unwrap());
        holder.tell_size(&held, u64::MAX, 12_345);
        assert_eq!(asked.join().unwrap().size, 12_345);
    });
}
