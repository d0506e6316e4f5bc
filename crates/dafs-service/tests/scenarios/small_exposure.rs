//! Small files that share an exposure, for clients that may speak for any user.

use crate::common::*;
use crate::exposure::{BLOCK, FULL, Shown, optimistic, write};
use dafs_service::{
    Client, ExportOptions, ExposedFile, FenceObject, FenceRight, FenceUpdate, Opened,
    OptimisticReads, PagePlace, RemoveMode, SMALL_FILE_BYTES, ServiceError, SmallFile, SmallPart,
    Squash,
};
use dafs_store::{OpenFile, OpenMode};
use std::sync::Arc;

struct Small {
    world: World,
    shown: Arc<Shown>,
    client: Arc<Client>,
}

/// A file that a client has open.
struct Opening {
    opened: Opened,
    file: Arc<dyn OpenFile>,
}

/// The place of a small file.
struct Place {
    exposure: Arc<ExposedFile>,
    part: SmallPart,
    page: PagePlace,
}

impl Small {
    fn new() -> Self {
        let world = World::new();
        world.serve_by(optimistic());
        let shown = Arc::new(Shown::default());
        world.service.start_exposure(shown.clone());
        let client = world.dafs("a");
        Self { world, shown, client }
    }

    fn open(&self, client: &Arc<Client>, name: &str) -> Opening {
        let opened = self.world.open(client, name, BOTH).unwrap();
        let (handle, state) = (*opened.state.handle(), opened.state.reference());
        let mode = OpenMode { read: true, write: true };
        let caller = self.world.patient(client);
        let file = self.world.service.opens.io_file(caller, &handle, state, mode).unwrap();
        Opening { opened, file }
    }

    /// Opens a file of the first client, which has so many bytes then.
    fn make(&self, name: &str, bytes: usize) -> Opening {
        let opening = self.open(&self.client, name);
        write(&*opening.file, 0, bytes);
        opening
    }

    fn ask(&self, client: &Arc<Client>, opened: &Opened) -> dafs_service::Result<SmallFile> {
        let (handle, state) = (*opened.state.handle(), opened.state.reference());
        self.world.service.expose_small(self.world.patient(client), &handle, state, false)
    }

    fn place(&self, client: &Arc<Client>, opened: &Opened) -> Place {
        match self.ask(client, opened).unwrap() {
            SmallFile::Shown { exposure, part, page } => Place { exposure, part, page },
            other => panic!("{other:?}"),
        }
    }

    /// A request reads all of a file. Returns the number of blocks that it publishes.
    fn read(&self, opening: &Opening) -> usize {
        let (state, now_ns) = (&opening.opened.state, self.world.now_ns.get());
        let noted = self.world.service.note_read(state, (0, SMALL_FILE_BYTES), now_ns);
        let Some((exposed, fills)) = noted else { return 0 };
        let size = opening.file.attr().unwrap().size;
        let bytes = |block: u64| size.saturating_sub(block * BLOCK).min(BLOCK) as usize;
        fills.into_iter().filter(|fill| exposed.fill(*fill, || bytes(fill.block))).count()
    }

    /// The bytes of the first blocks of a file that are shown.
    fn entries(&self, place: &Place) -> [Option<usize>; 3] {
        let entries = self.shown.entries.lock().unwrap();
        [0, 1, 2].map(|block| {
            let at = (place.part.base() % 512) as usize + block;
            let entry = entries.get(&(place.page, at)).and_then(|entry| entry.block);
            entry.map(|(_, bytes)| bytes)
        })
    }

    /// Lets the leases of all other clients end.
    fn outlive_leases(&self, present: &[&Arc<Client>]) {
        self.world.pass_with(present, 2 * LEASE_NS);
        self.world.service.tick(self.world.now_ns.get());
    }

    /// The numbers of exposures, of small files, and of segments that were taken back.
    fn counts(&self) -> (u64, u64, usize) {
        let counts = self.world.service.exposure_counts();
        (counts.files, counts.small_files, self.shown.discarded.lock().unwrap().len())
    }
}

const SHORT: usize = 2 * BLOCK as usize + 100;

#[test]
fn small_files_share_segments_and_stay_shown_when_they_are_closed() {
    let small = Small::new();
    let (one, two) = (small.make("one", SHORT), small.make("two", 10));
    let [first, second] = [&one, &two].map(|opening| small.place(&small.client, &opening.opened));
    assert!(Arc::ptr_eq(&first.exposure, &second.exposure) && first.page == second.page);
    assert_ne!(first.part, second.part);
    // The question counts as a request.
    assert_eq!((small.read(&one), small.read(&two)), (3, 1));
    assert_eq!(first.exposure.segments(0, Some).len(), 2, "one of pages, one of frames");
    let all = [FULL, FULL, Some(100)];
    assert_eq!((small.entries(&first), small.entries(&second)), (all, [Some(10), None, None]));
    for opening in [&one, &two] {
        small.world.close(&small.client, &opening.opened);
    }
    assert_eq!((small.entries(&first), small.counts()), (all, (1, 2, 0)));
    // A change of one takes all of its blocks away, and none of the other.
    let other = small.world.dafs("b");
    write(&*small.open(&other, "one").file, 5, 1);
    assert_eq!(
        (small.entries(&first), small.entries(&second)),
        ([None; 3], [Some(10), None, None])
    );
    // The client opens it again and asks nothing.
    let again = small.open(&small.client, "one");
    assert_eq!((small.read(&again), small.read(&again)), (0, 3));
    assert_eq!(small.entries(&first), all);
    assert_eq!(small.world.service.exposure_counts().grants, 1);
    // The requests of a client without a grant publish nothing.
    let strange = small.open(&other, "two");
    write(&*strange.file, 0, 1);
    assert_eq!([0; 3], [(); 3].map(|()| small.read(&strange)));
}

#[test]
fn only_small_files_of_exports_that_squash_no_root_share_an_exposure() {
    let small = Small::new();
    let (client, opening) = (&small.client, small.make("f", 100));
    let is_none = || matches!(small.ask(client, &opening.opened).unwrap(), SmallFile::Other);
    assert!(!is_none());
    for squash in [Squash::Root, Squash::All] {
        small.world.serve_squashing(ExportOptions { squash, ..optimistic() });
        assert_eq!(small.counts().1, 0, "the rules have changed");
        assert!(is_none());
        assert_eq!(small.read(&opening), 0);
    }
    small.world.serve_by(ExportOptions { optimistic: OptimisticReads::Off, ..optimistic() });
    assert!(is_none());
    small.world.serve_by(optimistic());
    assert!(!is_none());
    let large = small.make("large", SMALL_FILE_BYTES as usize + 1);
    assert!(matches!(small.ask(client, &large.opened), Ok(SmallFile::Other)));
    let writer = small.world.open(client, "third", WRITE).unwrap();
    assert_eq!(small.ask(client, &writer).err(), Some(ServiceError::OpenMode));
    let other = small.world.dafs("b");
    assert!(small.ask(&other, &opening.opened).is_err(), "the open of another client");
}

#[test]
fn a_file_that_has_grown_is_shown_no_further() {
    let small = Small::new();
    let opening = small.make("f", SHORT);
    let place = small.place(&small.client, &opening.opened);
    assert_eq!(small.read(&opening), 3);
    write(&*opening.file, SMALL_FILE_BYTES + 5, 1);
    assert_eq!(small.entries(&place), [None; 3]);
    let (state, now_ns) = (&opening.opened.state, small.world.now_ns.get());
    let note = |offset| small.world.service.note_read(state, (offset, 10), now_ns);
    assert!([0; 3].iter().all(|_| note(SMALL_FILE_BYTES).is_none()));
    assert!(matches!(small.ask(&small.client, &opening.opened), Ok(SmallFile::Other)));
}

#[test]
fn requests_of_an_open_fill_the_part_of_a_file_that_has_shrunk() {
    let small = Small::new();
    let opening = small.make("f", SMALL_FILE_BYTES as usize + 1);
    let (handle, state) = (*opening.opened.state.handle(), opening.opened.state.reference());
    let caller = small.world.patient(&small.client);
    let own = small.world.service.expose(caller, &handle, state, false).unwrap().unwrap();
    assert!(own.page(0).is_some());
    opening.file.set_size(SHORT as u64).unwrap();
    let place = small.place(&small.client, &opening.opened);
    assert_ne!(place.exposure.id(), own.id());
    assert_eq!(small.read(&opening), 3);
    assert_eq!((small.entries(&place), small.counts().0), ([FULL, FULL, Some(100)], 1));
}

#[test]
fn a_change_of_a_file_that_is_exposed_in_two_ways_takes_its_blocks_away_in_both() {
    let small = Small::new();
    let opening = small.make("f", SMALL_FILE_BYTES as usize + 1);
    let other = small.world.dafs("b");
    let second = small.open(&other, "f");
    let (handle, state) = (*second.opened.state.handle(), second.opened.state.reference());
    let caller = small.world.patient(&other);
    let own = small.world.service.expose(caller, &handle, state, false).unwrap().unwrap();
    let page = own.page(0).unwrap();
    opening.file.set_size(SHORT as u64).unwrap();
    let place = small.place(&small.client, &opening.opened);
    // The question of the first client counts as a request, that of the second one does not.
    assert_eq!([&opening, &second, &second].map(|one| small.read(one)), [3, 0, 3]);
    let shown_alone = || [0, 1, 2].map(|at| small.shown.is_shown(page, at));
    assert_eq!((small.entries(&place), shown_alone()), ([FULL, FULL, Some(100)], [true; 3]));
    write(&*second.file, 5, 1);
    assert_eq!((small.entries(&place), shown_alone()), ([None; 3], [false, true, true]));
    // Without one of the exposures, a change finds the other.
    small.world.close(&other, &second.opened);
    assert_eq!((small.read(&opening), small.read(&opening), small.counts().0), (0, 3, 1));
    write(&*opening.file, 5, 1);
    assert_eq!(small.entries(&place), [None; 3]);
}

#[test]
fn a_file_that_loses_a_name_leaves_its_part_for_good() {
    let small = Small::new();
    let (one, two) = (small.make("one", SHORT), small.make("two", SHORT));
    let [first, second] = [&one, &two].map(|opening| small.place(&small.client, &opening.opened));
    assert_eq!((small.read(&one), small.read(&two)), (3, 3));
    let (service, root) = (&small.world.service, &small.world.root);
    let caller = small.world.patient(&small.client);
    service.link(caller, one.opened.state.handle(), root, b"other").unwrap();
    service.remove(caller, root, b"one", RemoveMode::Unchecked).unwrap();
    assert_eq!((small.entries(&first), small.counts()), ([None; 3], (1, 1, 0)));
    assert_eq!([0; 3], [(); 3].map(|()| small.read(&one)));
    // It has another name.
    let again = small.place(&small.client, &one.opened);
    assert!(Arc::ptr_eq(&again.exposure, &first.exposure));
    assert!(again.part != first.part && again.part != second.part);
    assert_eq!((small.read(&one), small.entries(&first)), (3, [None; 3]));
    // Without a name it is open still.
    service.remove(caller, root, b"other", RemoveMode::Unchecked).unwrap();
    assert_eq!((small.entries(&again), small.counts()), ([None; 3], (1, 1, 0)));
    assert!(matches!(small.ask(&small.client, &one.opened), Ok(SmallFile::Other)));
    assert_eq!([0; 3], [(); 3].map(|()| small.read(&one)));
    assert!(service.rename(caller, root, b"third", root, b"two").is_err());
    assert_eq!(small.entries(&second), [FULL, FULL, Some(100)]);
    let third = small.make("third", 10);
    service.rename(caller, root, b"third", root, b"two").unwrap();
    assert_eq!(small.entries(&second), [None; 3]);
    assert_ne!(small.place(&small.client, &third.opened).part, second.part);
}

#[test]
fn a_fence_on_one_file_takes_the_memory_of_all_back() {
    let small = Small::new();
    let (one, two) = (small.make("one", SHORT), small.make("two", 10));
    let first = small.place(&small.client, &one.opened);
    small.place(&small.client, &two.opened);
    assert_eq!(small.read(&one), 3);
    let object = FenceObject::File(*two.opened.state.handle());
    let fence = |update| {
        let service = &small.world.service;
        service.set_fence(FenceRight::Administrator, &object, update, Box::new(|| {}))
    };
    fence(FenceUpdate::Install(&[b"n1"])).unwrap();
    assert_eq!((small.entries(&first), small.counts()), ([None; 3], (0, 0, 2)));
    assert!(matches!(small.ask(&small.client, &two.opened), Ok(SmallFile::Hidden)));
    let again = small.place(&small.client, &one.opened);
    assert_ne!(again.exposure.id(), first.exposure.id());
    // Questions about the fenced file take nothing away.
    assert!(matches!(small.ask(&small.client, &two.opened), Ok(SmallFile::Hidden)));
    assert_eq!((small.read(&one), small.counts().0), (3, 1));
}

#[test]
fn the_end_of_a_lease_ends_the_right_to_read_small_files() {
    let small = Small::new();
    let (one, other) = (small.make("one", SHORT), small.world.dafs("b"));
    let first = small.place(&small.client, &one.opened);
    assert_eq!(small.read(&one), 3);
    let theirs = small.open(&other, "one");
    let known = small.place(&other, &theirs.opened);
    assert!(Arc::ptr_eq(&known.exposure, &first.exposure) && known.part == first.part);
    small.world.close(&other, &theirs.opened);
    small.outlive_leases(&[&small.client]);
    // The other client may have been held up, and go on to read.
    assert_eq!((small.entries(&first), small.counts()), ([None; 3], (0, 0, 2)));
    let again = small.place(&small.client, &one.opened);
    assert_eq!((small.read(&one), small.entries(&again)), (3, [FULL, FULL, Some(100)]));
    small.outlive_leases(&[]);
    assert_eq!((small.counts().0, small.counts().1), (0, 0));
}

#[test]
fn the_end_of_the_last_session_ends_the_right_to_read_small_files() {
    let small = Small::new();
    let one = small.make("one", SHORT);
    small.client.session_started();
    small.client.session_started();
    let first = small.place(&small.client, &one.opened);
    assert_eq!(small.read(&one), 3);
    small.client.session_ended();
    assert_eq!((small.entries(&first), small.counts()), ([FULL, FULL, Some(100)], (1, 1, 0)));
    small.client.session_ended();
    assert_eq!((small.entries(&first), small.counts()), ([None; 3], (0, 0, 2)));
}

#[test]
fn small_files_stay_shown_to_others_when_the_sessions_of_a_client_end() {
    let small = Small::new();
    let (one, other) = (small.make("one", SHORT), small.world.dafs("b"));
    let first = small.place(&small.client, &one.opened);
    assert_eq!(small.read(&one), 3);
    other.session_started();
    let theirs = small.open(&other, "one");
    let known = small.place(&other, &theirs.opened);
    assert!(Arc::ptr_eq(&known.exposure, &first.exposure) && known.part == first.part);
    small.world.close(&other, &theirs.opened);
    let segments = first.exposure.segments(0, Some);
    other.session_ended();
    let all = [FULL, FULL, Some(100)];
    assert_eq!(small.entries(&first), all);
    // Frames that the other client may know are filled no more.
    write(&*one.file, 0, 1);
    assert_eq!((small.read(&one), small.read(&one), small.counts()), (0, 3, (1, 1, 0)));
    assert_eq!((small.entries(&first), first.exposure.segments(0, Some).len()), (all, 3));
    let entries: Vec<_> = small.shown.entries.lock().unwrap().values().copied().collect();
    let mut frames = entries.iter().filter_map(|entry| entry.block);
    assert!(frames.all(|(place, _)| !segments.contains(&place.segment)));
}

#[test]
fn a_client_that_may_no_longer_speak_for_any_user_loses_small_files() {
    let small = Small::new();
    let one = small.make("one", SHORT);
    let first = small.place(&small.client, &one.opened);
    assert_eq!(small.read(&one), 3);
    // At once, also if another client has the right.
    let other = small.world.dafs("b");
    small.place(&other, &small.open(&other, "one").opened);
    small.world.service.end_small_grants(&small.client);
    assert_eq!((small.entries(&first), small.counts()), ([None; 3], (0, 0, 2)));
    assert_eq!([0; 3], [(); 3].map(|()| small.read(&one)));
}
