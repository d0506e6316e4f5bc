//! Random reads, writes and changes of size of one file, checked against a model in memory: through
//! staging buffers, through a cache, from and to registered memory, and with many in flight in a
//! group. One client changes the file and another one reads it without requests, too.
//!
//! `DAFS_TEST_LONG` makes it 100,000 operations each, half of them over each transport.

use crate::served::{Served, TRANSPORTS, on_each_transport, on_each_transport_with, open_file};
use dafs_client::{
    CacheOptions, Client, Completion, CompletionGroup, File, IoBuffer, Stability, TransportChoice,
};
use dafs_dat::sim::SimRng;
use dafs_mem::Site;
use dafs_testkit::eventually;
use std::ops::Range;
use std::time::Duration;

/// The largest size of the file, in bytes.
const FILE_BYTES_MAX: u64 = 256 << 10;

/// The longest read or write, in bytes.
const TRANSFER_BYTES_MAX: u64 = 64 << 10;

/// Operations in flight in a group.
const PLACES: usize = 16;

const TIME: Option<Duration> = Some(Duration::from_secs(60));

/// Operations over each transport.
fn steps() -> u64 {
    if std::env::var_os("DAFS_TEST_LONG").is_some() { 50_000 } else { 3_000 }
}

struct Random(SimRng);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0.below(end)
    }

    /// A range of a file; short ones are as likely as long ones.
    fn range(&mut self) -> Range<u64> {
        let most = 1 << self.below(u64::from(TRANSFER_BYTES_MAX.ilog2()) + 1);
        let len = 1 + self.below(most);
        let start = self.below(FILE_BYTES_MAX - len + 1);
        start..start + len
    }

    fn bytes(&mut self, len: u64) -> Vec<u8> {
        let words = std::iter::repeat_with(|| self.0.bits().to_ne_bytes());
        words.flatten().take(len as usize).collect()
    }

    fn stability(&mut self) -> Stability {
        match self.below(8) {
            0 => Stability::FileSync,
            1 => Stability::DataSync,
            _ => Stability::Unstable,
        }
    }
}

/// A way of moving data.
trait Way {
    /// Reads a range, which must yield `expected`.
    fn read(&mut self, file: &File, range: Range<u64>, expected: &[u8], random: &mut Random);

    /// Writes at an offset of a file of `size` bytes.
    fn write(&mut self, file: &File, offset: u64, data: &[u8], size: u64, random: &mut Random);

    /// Waits for all operations in flight.
    fn settle(&mut self) {}
}

/// From and to any memory.
struct Staged;

impl Way for Staged {
    fn read(&mut self, file: &File, range: Range<u64>, expected: &[u8], _: &mut Random) {
        let mut data = vec![0xee; (range.end - range.start) as usize];
        let bytes = file.read_at(&mut data, range.start).unwrap();
        assert!(data[..bytes] == *expected, "{range:?}: {bytes} of {}", expected.len());
    }

    fn write(&mut self, file: &File, offset: u64, data: &[u8], _: u64, random: &mut Random) {
        assert_eq!(file.write_at(data, offset, random.stability()).unwrap(), data.len());
    }
}

/// From and to memory that the server can reach: the library's, or the application's.
struct Registered {
    buffer: IoBuffer,
    own: &'static mut [u8],
}

impl Registered {
    /// A range of memory for so many bytes.
    fn place(&mut self, file: &File, len: usize, random: &mut Random) -> (IoBuffer, Range<usize>) {
        let at = random.below((self.own.len() - len + 1) as u64) as usize;
        if random.below(2) == 0 {
            return (self.buffer.clone(), at..at + len);
        }
        // SAFETY: leaked, and only touched through the buffer while a transfer is under way.
        let lent = unsafe { file.client().lend(self.own[at..].as_mut_ptr(), len).unwrap() };
        (lent.buffer, lent.range)
    }
}

impl Way for Registered {
    fn read(&mut self, file: &File, range: Range<u64>, expected: &[u8], random: &mut Random) {
        let len = (range.end - range.start) as usize;
        let (buffer, place) = self.place(file, len, random);
        let bytes = file.read_into(&buffer, place.clone(), range.start).unwrap();
        let found = buffer.slice(place.start, bytes).unwrap().to_vec(Site::Inspect);
        assert!(found == expected, "{range:?}: {bytes} of {}", expected.len());
    }

    fn write(&mut self, file: &File, offset: u64, data: &[u8], _: u64, random: &mut Random) {
        let (buffer, place) = self.place(file, data.len(), random);
        buffer.slice(place.start, data.len()).unwrap().copy_from(data, Site::Inspect);
        let written = file.write_from(&buffer, place, offset, random.stability()).unwrap();
        assert_eq!(written, data.len());
    }
}

/// An operation in flight.
struct Flight {
    /// The range of the file that it depends on or changes.
    reach: Range<u64>,
    bytes: usize,
    /// For a read.
    expected: Option<Vec<u8>>,
}

/// Many in flight, as long as none depends on another.
struct Grouped {
    client: Client,
    group: CompletionGroup,
    buffer: IoBuffer,
    /// The operation under way in each part of the buffer.
    flights: [Option<Flight>; PLACES],
    completions: Vec<Completion>,
}

const PLACE_BYTES: usize = TRANSFER_BYTES_MAX as usize;

impl Grouped {
    fn new(client: &Client) -> Self {
        Self {
            client: client.clone(),
            group: client.completion_group(),
            buffer: client.buffer(PLACES * PLACE_BYTES).unwrap(),
            flights: [const { None }; PLACES],
            completions: Vec::new(),
        }
    }

    fn fetch(&mut self, count: usize) {
        self.group.wait(&mut self.completions, count, TIME).unwrap();
        for done in self.completions.drain(..) {
            let place = done.user_data as usize;
            let flight = self.flights[place].take().expect("each operation is told once");
            let bytes = done.result.unwrap();
            assert_eq!(bytes, flight.bytes, "{:?}", flight.reach);
            if let Some(expected) = flight.expected {
                let found = self.buffer.slice(place * PLACE_BYTES, bytes).unwrap();
                assert!(found.to_vec(Site::Inspect) == expected, "{:?}", flight.reach);
            }
        }
    }

    fn is_free(&self, reach: &Range<u64>, is_write: bool) -> bool {
        self.flights.iter().flatten().all(|other| {
            let apart = other.reach.end <= reach.start || reach.end <= other.reach.start;
            apart || (!is_write && other.expected.is_some())
        })
    }

    /// Finds a place for an operation once it depends on none that is under way.
    fn enter(&mut self, reach: Range<u64>, bytes: usize, expected: Option<Vec<u8>>) -> usize {
        if !self.is_free(&reach, expected.is_none()) {
            self.fetch(usize::MAX);
        }
        while self.flights.iter().all(Option::is_some) {
            self.fetch(1);
        }
        let place = self.flights.iter().position(Option::is_none).unwrap();
        self.flights[place] = Some(Flight { reach, bytes, expected });
        place
    }

    /// Sends one transfer, by itself or as a batch.
    fn send(
        &mut self,
        file: &File,
        place: usize,
        range: Range<u64>,
        write: Option<Stability>,
        random: &mut Random,
    ) {
        let (start, len) = (place * PLACE_BYTES, (range.end - range.start) as usize);
        let memory = start..start + len;
        let (group, word) = (&self.group, place as u64);
        let name = match random.below(4) {
            0 => {
                let mut batch = self.client.batch();
                // Cut in two on one side and not on the other.
                let cut = random.below(len as u64 + 1);
                let ranges = [(range.start, cut as usize), (range.start + cut, len - cut as usize)];
                let memory = [(&self.buffer, memory)];
                match write {
                    Some(_) => batch.write(file, &ranges, &memory).unwrap(),
                    None => batch.read(file, &ranges, &memory).unwrap(),
                };
                if random.below(2) == 0 {
                    let window = Duration::from_micros(random.below(300));
                    batch = batch.asynchronous(window, random.below(4) as u32);
                }
                group.batch(batch, |_| word).unwrap()[0]
            }
            _ => match write {
                Some(stability) => {
                    group.write(word, file, &self.buffer, memory, range.start, stability).unwrap()
                }
                None => group.read(word, file, &self.buffer, memory, range.start).unwrap(),
            },
        };
        match random.below(16) {
            0 => group.expedite(name).unwrap(),
            1 => self.fetch(1),
            2 => self.fetch(0),
            _ => {}
        }
    }
}

impl Way for Grouped {
    fn read(&mut self, file: &File, range: Range<u64>, expected: &[u8], random: &mut Random) {
        let place = self.enter(range.clone(), expected.len(), Some(expected.to_vec()));
        self.send(file, place, range, None, random);
    }

    fn write(&mut self, file: &File, offset: u64, data: &[u8], size: u64, random: &mut Random) {
        let range = offset..offset + data.len() as u64;
        // A write behind the end of the file also makes the gap zero.
        let place = self.enter(offset.min(size)..range.end, data.len(), None);
        let memory = self.buffer.slice(place * PLACE_BYTES, data.len()).unwrap();
        memory.copy_from(data, Site::Inspect);
        self.send(file, place, range, Some(random.stability()), random);
    }

    fn settle(&mut self) {
        self.fetch(usize::MAX);
        assert!(self.flights.iter().all(Option::is_none));
    }
}

/// Reports the place at which a test has failed.
struct Place {
    seed: u64,
    step: u64,
}

impl Drop for Place {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("seed {}, step {}", self.seed, self.step);
        }
    }
}

fn run(served: &Served, client: &Client, way: &mut dyn Way, seed: u64) {
    let random = &mut Random(SimRng::new(seed));
    let mut content: Vec<u8> = Vec::new();
    let mut file = open_file(client);
    for step in 0..steps() {
        let size = content.len() as u64;
        let _place = Place { seed, step };
        match random.below(100) {
            0..40 => {
                let range = random.range();
                let (start, end) = (range.start.min(size), range.end.min(size));
                way.read(&file, range, &content[start as usize..end as usize], random);
            }
            40..80 => {
                let range = random.range();
                let data = random.bytes(range.end - range.start);
                way.write(&file, range.start, &data, size, random);
                content.resize(content.len().max(range.end as usize), 0);
                content[range.start as usize..range.end as usize].copy_from_slice(&data);
            }
            80..86 => {
                let size = random.below(FILE_BYTES_MAX + 1);
                way.settle();
                file.set_size(size).unwrap();
                content.resize(size as usize, 0);
            }
            86..90 if size < FILE_BYTES_MAX => {
                let len = 1 + random.below((FILE_BYTES_MAX - size).min(20_000));
                let data = random.bytes(len);
                way.settle();
                assert_eq!(file.append(&data, Stability::FileSync).unwrap(), size);
                content.extend(data);
            }
            90..94 => file.commit(0, 0).unwrap(),
            94..96 => {
                way.settle();
                file.close().unwrap();
                file = open_file(client);
            }
            96..98 => {
                way.settle();
                assert_eq!(file.attributes().unwrap().size, size);
            }
            _ => {
                way.settle();
                file.commit(0, 0).unwrap();
                let found = served.content("file");
                assert!(found == content, "the file differs");
            }
        }
    }
    way.settle();
    file.close().unwrap();
    let found = served.content("file");
    assert!(found == content, "seed {seed}: the file differs at the end");
}

#[test]
fn staged() {
    for ((served, client), seed) in on_each_transport().zip(1..) {
        run(&served, &client, &mut Staged, seed);
    }
}

#[test]
fn cached() {
    let cached = on_each_transport_with(|options| options.cache = Some(CacheOptions::default()));
    for ((served, client), seed) in cached.zip(11..) {
        run(&served, &client, &mut Staged, seed);
    }
}

#[test]
fn registered() {
    for ((served, client), seed) in on_each_transport().zip(21..) {
        let bytes = 2 * TRANSFER_BYTES_MAX as usize;
        let own = vec![0; bytes].leak();
        let mut way = Registered { buffer: client.buffer(bytes).unwrap(), own };
        run(&served, &client, &mut way, seed);
    }
}

#[test]
fn grouped() {
    for ((served, client), seed) in on_each_transport().zip(31..) {
        run(&served, &client, &mut Grouped::new(&client), seed);
    }
}

#[test]
fn grouped_beside_a_cache_with_checksums() {
    let checked = on_each_transport_with(|options| {
        options.cache = Some(CacheOptions::default());
        options.checksums = true;
    });
    for ((served, client), seed) in checked.zip(41..) {
        run(&served, &client, &mut Grouped::new(&client), seed);
    }
}

/// Changes are rare, for a block that changes again and again is not shown for some time.
#[test]
fn optimistic_beside_a_writer() {
    for (transport, seed) in TRANSPORTS.into_iter().zip(51..) {
        let served = Served::with(|setup| match transport {
            TransportChoice::Shm => setup.optimistic = true,
            _ => setup.optimistic_remotely = true,
        });
        let mut content = served.with_file("file", FILE_BYTES_MAX as usize);
        let reader = served.client_with(|options| {
            options.transport = transport;
            options.optimistic = true;
        });
        let writer = served.client(transport);
        let (shown, file) = (open_file(&reader), open_file(&writer));
        let random = &mut Random(SimRng::new(seed));
        eventually("the file is shown", || {
            Staged.read(&shown, 0..4096, &content[..4096], random);
            reader.optimistic_stats().hits > 0
        });
        for step in 0..steps() {
            let _place = Place { seed, step };
            let (range, size) = (random.range(), content.len() as u64);
            match random.below(1000) {
                0..10 => {
                    let data = random.bytes(range.end - range.start);
                    Staged.write(&file, range.start, &data, size, random);
                    content.resize(content.len().max(range.end as usize), 0);
                    content[range.start as usize..range.end as usize].copy_from_slice(&data);
                }
                10..13 => {
                    file.set_size(range.end).unwrap();
                    content.resize(range.end as usize, 0);
                }
                13..15 if size < FILE_BYTES_MAX => {
                    let len = 1 + random.below((FILE_BYTES_MAX - size).min(20_000));
                    let data = random.bytes(len);
                    assert_eq!(file.append(&data, Stability::FileSync).unwrap(), size);
                    content.extend(data);
                }
                _ => {
                    let (start, end) = (range.start.min(size), range.end.min(size));
                    Staged.read(&shown, range, &content[start as usize..end as usize], random);
                }
            }
        }
    }
}
