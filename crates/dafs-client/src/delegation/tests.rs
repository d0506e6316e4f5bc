//! Delegations against the real server, over both transports.

use super::*;
use crate::served::{Served, TRANSPORTS, Wire};
use crate::{FileHandle, OpenOptions, ShareAccess, ShareDeny, Stability};
use dafs_wire::dafs as wire;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

/// A notice that a holder has got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Notice {
    Recall { truncate: bool },
    Lost,
}

/// An open file that bypasses the cache, which would keep its delegation.
#[derive(Clone, Copy)]
struct Opened {
    handle: FileHandle,
    state_id: StateId,
}

impl Opened {
    fn write(&self, client: &Client, data: &[u8]) {
        let request = Request::WriteInline(wire::WriteInline {
            fh: self.handle,
            state_id: self.state_id,
            offset: 0,
            stable: Stability::Unstable,
            padded_to: None,
            cache_hint: wire::HintWord::NONE,
            data,
        });
        client.ask(&request, |reply| matches!(reply, Reply::WriteInline(_)).then_some(())).unwrap();
    }

    fn close(&self, client: &Client) {
        let request = Request::Close(wire::Close { fh: self.handle, state_id: self.state_id });
        client.ask(&request, |reply| matches!(reply, Reply::Close).then_some(())).unwrap();
    }
}

/// A holder that writes something and then returns a recalled delegation.
struct Holder {
    client: Client,
    file: Opened,
    name: StateId,
    told: Sender<Notice>,
    /// Written before the delegation is returned.
    late: Option<&'static [u8]>,
    size: Option<u64>,
}

impl DelegationHolder for Holder {
    fn recall(&self, truncate: bool) {
        if let Some(late) = self.late {
            self.file.write(&self.client, late);
        }
        self.told.send(Notice::Recall { truncate }).unwrap();
        self.client.return_delegation(self.name).unwrap();
    }

    fn attributes(&self) -> Option<HeldAttributes> {
        let size = self.size?;
        Some(HeldAttributes { change: u64::MAX, size, modified: None })
    }

    fn lost(&self) {
        self.told.send(Notice::Lost).unwrap();
    }
}

/// A server with a file that nobody has written lately.
fn served() -> Served {
    let served = Served::new();
    std::fs::write(served.path().join("file"), b"0123456789").unwrap();
    served
}

/// Opens a file and keeps the delegation that comes along.
fn open(client: &Client, name: &[u8]) -> (Opened, Option<Granted>) {
    let path = [name];
    let request = Request::Open(wire::Open {
        claim: wire::OpenClaim::Null { dir: client.root(), path: wire::Path::new(&path) },
        create: None,
        delete_disposition: wire::DeleteDisposition::DontCare,
        owner: name,
        share_access: ShareAccess::Both,
        share_deny: ShareDeny::None,
        share_key: wire::ShareKey::None,
    });
    let reply = client.shared().call_open(&request, true).unwrap();
    let opened = client.shared().taken(&reply, |reply| {
        let reply = reply.open()?;
        let opened = Opened { handle: reply.fh, state_id: reply.state_id };
        Some((opened, Granted::of(reply)))
    });
    opened.unwrap()
}

/// Opens the file until a delegation comes along: the server may not know yet that the back-control
/// channel works.
fn open_granted(client: &Client) -> (Opened, Granted) {
    loop {
        match open(client, b"file") {
            (file, Some(granted)) => return (file, granted),
            (file, None) => file.close(client),
        }
    }
}

/// A client that holds a write delegation of the file.
fn hold(
    client: &Client,
    late: Option<&'static [u8]>,
    size: Option<u64>,
) -> (Arc<Holder>, Receiver<Notice>) {
    let (file, granted) = open_granted(client);
    assert_eq!((granted.kind, granted.recall), (DelegationKind::Write, false));
    let (told, news) = channel();
    let name = granted.state_id;
    let holder = Arc::new(Holder { client: client.clone(), file, name, told, late, size });
    let weak: Weak<dyn DelegationHolder> =
        Arc::downgrade(&(holder.clone() as Arc<dyn DelegationHolder>));
    assert!(client.hold(&granted, weak).unwrap());
    (holder, news)
}

fn content(client: &Client) -> Vec<u8> {
    let file = client.open(b"/file", &OpenOptions::read()).unwrap();
    let mut bytes = [0; 100];
    let count = file.read_at(&mut bytes, 0).unwrap();
    file.close().unwrap();
    bytes[..count].to_vec()
}

#[test]
fn a_reader_waits_for_the_holder_and_sees_its_writes() {
    for transport in TRANSPORTS {
        let served = served();
        let (one, two) = (served.client(transport), served.client(transport));
        let (holder, news) = hold(&one, Some(b"late"), None);
        assert!(one.is_in_lease());
        assert_eq!(content(&two), b"late456789");
        assert_eq!(news.try_recv(), Ok(Notice::Recall { truncate: false }));
        assert!(news.try_recv().is_err(), "it was told once");
        // Returning it again does nothing, and its open stays valid.
        one.return_delegation(holder.name).unwrap();
        holder.file.write(&one, b"more");
        assert_eq!(content(&two), b"more456789");
        two.disconnect().unwrap();
    }
}

#[test]
fn the_holder_speaks_for_its_file() {
    for transport in TRANSPORTS {
        let served = served();
        let (one, two) = (served.client(transport), served.client(transport));
        let (holder, news) = hold(&one, None, Some(7777));
        let ask = |client: &Client| client.attributes(&holder.file.handle).unwrap().size;
        assert_eq!(ask(&two), 7777);
        assert_eq!(ask(&one), 10, "the holder knows better than to ask itself");
        assert!(news.try_recv().is_err());
    }
}

#[test]
fn a_holder_that_does_not_know_is_recalled() {
    let served = served();
    let (one, two) = (served.client(TRANSPORTS[0]), served.client(TRANSPORTS[0]));
    let (holder, news) = hold(&one, None, None);
    let found = two.attributes(&holder.file.handle).unwrap();
    assert_eq!(found.size, 10);
    assert_eq!(news.recv(), Ok(Notice::Recall { truncate: false }));
}

#[test]
fn a_delegation_without_a_holder_is_returned() {
    for transport in TRANSPORTS {
        let served = served();
        let (one, two) = (served.client(transport), served.client(transport));
        // A delegation that is granted and never held, one of a dropped holder, and one that is not
        // recalled.
        let (file, granted) = open_granted(&one);
        assert_eq!(content(&two), b"0123456789");
        let (told, _news) = channel();
        let name = granted.state_id;
        let holder = Holder { client: one.clone(), file, name, told, late: None, size: None };
        let holder: Arc<dyn DelegationHolder> = Arc::new(holder);
        assert!(!one.hold(&granted, Arc::downgrade(&holder)).unwrap(), "it was wanted back");
        drop(holder);
        std::fs::write(served.path().join("other"), b"other").unwrap();
        let (file, granted) = open(&one, b"other");
        let granted = granted.unwrap();
        let (told, _news) = channel();
        let name = granted.state_id;
        let holder = Holder { client: one.clone(), file, name, told, late: None, size: None };
        let holder: Arc<dyn DelegationHolder> = Arc::new(holder);
        assert!(one.hold(&granted, Arc::downgrade(&holder)).unwrap());
        drop(holder);
        let file = two.open(b"/other", &OpenOptions::read_write()).unwrap();
        file.close().unwrap();
        std::fs::write(served.path().join("third"), b"third").unwrap();
        let kept = one.open(b"/third", &OpenOptions::read_write()).unwrap();
        let file = two.open(b"/third", &OpenOptions::read_write()).unwrap();
        file.close().unwrap();
        drop(kept);
    }
}

#[test]
fn delegations_outlive_a_restart_of_the_server() {
    for transport in TRANSPORTS {
        let mut served = Served::with(|setup| setup.grace_time = Some(Duration::from_secs(2)));
        std::fs::write(served.path().join("file"), b"0123456789").unwrap();
        let one = served.client(transport);
        let (holder, news) = hold(&one, Some(b"late"), Some(7777));
        served.stop();
        served.start();
        one.ping().unwrap();
        assert_eq!(one.stats().restarts, 1);
        // It is not lost but recalled: by the other client, or earlier, when the restarted server
        // takes the end of its former run for a local user of the file.
        let two = served.client(transport);
        assert_eq!(content(&two), b"late456789");
        assert_eq!(news.try_recv(), Ok(Notice::Recall { truncate: false }));
        assert!(news.try_recv().is_err());
        one.return_delegation(holder.name).unwrap();
    }
}

#[test]
fn recalls_come_over_the_next_channel_when_one_is_lost() {
    let served = served();
    let mut number = 0;
    // The second connection is the back-control channel; it breaks with the first recall, or
    // before.
    let wire = Wire::new(served.address, move || {
        number += 1;
        (number == 2).then_some(700)
    });
    let (one, two) = (wire.client(), served.client(TRANSPORTS[0]));
    let (_holder, news) = hold(&one, Some(b"late"), None);
    assert_eq!(content(&two), b"late456789");
    assert_eq!(news.try_recv(), Ok(Notice::Recall { truncate: false }));
    assert_eq!(one.stats().recoveries, 0, "the session was not concerned");
}

#[test]
fn a_client_that_leaves_keeps_nobody_waiting() {
    let served = served();
    let (one, two) = (served.client(TRANSPORTS[0]), served.client(TRANSPORTS[0]));
    let (_holder, news) = hold(&one, None, None);
    one.disconnect().unwrap();
    assert_eq!(content(&two), b"0123456789");
    assert!(news.try_recv().is_err());
}

/// A holder whose recall blocks.
struct Slow {
    begun: Sender<()>,
    go_on: Mutex<Receiver<()>>,
}

impl DelegationHolder for Slow {
    fn recall(&self, _truncate: bool) {
        self.begun.send(()).unwrap();
        self.go_on.lock().unwrap().recv().unwrap();
    }

    fn attributes(&self) -> Option<HeldAttributes> {
        None
    }

    fn lost(&self) {
        self.begun.send(()).unwrap();
    }
}

#[test]
fn nothing_kept_is_believed_before_a_loss_has_been_heard_of() {
    let served = served();
    let one = served.client(TRANSPORTS[0]);
    let (_holder, _news) = hold(&one, None, None);
    assert!(one.is_in_lease());
    let (begun, begins) = channel();
    let (go, go_on) = channel();
    let slow = Arc::new(Slow { begun, go_on: Mutex::new(go_on) });
    let names = [StateId([0xee; 8]), StateId([0xef; 8])];
    {
        let mut driver = one.shared().lock().unwrap();
        for name in names {
            let weak: Weak<dyn DelegationHolder> =
                Arc::downgrade(&(slow.clone() as Arc<dyn DelegationHolder>));
            driver.holders().insert(name, weak, one.shared()).unwrap();
        }
        assert!(driver.holders().tell(names[0], DelegationNotice::Recall { truncate: false }));
    }
    begins.recv().unwrap();
    assert!(one.is_in_lease(), "whose file is recalled knows it");
    assert!(one.shared().lock().unwrap().holders().tell(names[1], DelegationNotice::Lost));
    assert!(!one.is_in_lease(), "the loss waits behind the recall");
    go.send(()).unwrap();
    begins.recv().unwrap();
    while !one.is_in_lease() {
        std::thread::yield_now();
    }
}

#[test]
fn the_end_of_the_session_is_told_to_holders() {
    let mut served = served();
    let one = served.client_with(|options| options.recovery = None);
    let (_holder, news) = hold(&one, None, None);
    served.stop();
    assert!(one.ping().is_err());
    assert_eq!(news.recv(), Ok(Notice::Lost));
    assert!(!one.is_in_lease());
}
