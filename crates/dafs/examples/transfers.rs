//! Moves data in every way that a client has, and checks all of it: for tests of a transport, which
//! the URL or the host chooses.
//!
//! `transfers URL data|batches|delegations|locks` works in the folder of the URL. `transfers URL append
//! COUNT` appends lines and checks that each is there once. `transfers URL load SECONDS` writes and
//! reads for so long. Each prints the transport at first, and `load` again at the end.
//!
//! The others read blocks of a file that `data` has written. `hits COUNT` reads so many in a round, until
//! most of them need no request, as with `optimistic=yes` in the URL. `reads COUNT` reads them once. Both
//! print the numbers of reads and hits. `fence COUNT` does as `hits`, then is shut out of the file. `watch
//! SECONDS` reads for so long, and tells of its first hit.

use dafs_client::{
    CacheOptions, Client, ConnectOptions, Create, DafsUrl, FenceChange, FenceObject, File,
    IoBuffer, LockError, LockRange, OpenOptions, RdmaDevices, Site, Stability, Status,
};
use std::process::ExitCode;
use std::time::{Duration, Instant};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const USAGE: &str = "usage: transfers URL data|batches|delegations|locks|append|load|hits|reads|\
                     fence|watch [NUMBER]";

/// Transfers under way at a time.
const DEPTH: usize = 32;

/// Reads of which none may need a request, and the attempts to see that.
const CACHED_READS: usize = 10;
const CACHE_ATTEMPTS: usize = 200;
const CACHE_PAUSE: Duration = Duration::from_millis(50);

/// A block that a server shows, and the file of `data` that is read in blocks.
const BLOCK_BYTES: usize = 4096;
const SHOWN_BYTES: usize = 1 << 20;

/// Rounds of reads until most of one need no request, and reads behind a fence.
const SHOWN_ROUNDS: usize = 100;
const FENCED_READS: usize = 100;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("transfers: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[String]) -> Result<()> {
    let (Some(url), Some(what)) = (arguments.first(), arguments.get(1)) else {
        return Err(USAGE.into());
    };
    let number: u32 = arguments.get(2).map_or(Ok(1), |text| text.parse())?;
    let url = DafsUrl::parse(url)?;
    let place = Place::connect_as(&url, None, Some("this client"))?;
    println!("{what} by {}", place.client.transport());
    match what.as_str() {
        "data" => sizes(&place).and_then(|()| many_reads(&place)),
        "batches" => batches(&place),
        "delegations" => delegations(&place),
        "locks" => locks(&place),
        "append" => append(&place, number),
        "load" => load(&place, Duration::from_secs(number.into())),
        "hits" => hits(&place, number),
        "reads" => reads(&place, number),
        "fence" => fence(&place, number),
        "watch" => watch(&place, Duration::from_secs(number.into())),
        _ => Err(USAGE.into()),
    }
}

/// A session, and a folder of the server.
struct Place {
    client: Client,
    url: DafsUrl,
}

impl Place {
    fn connect(url: &DafsUrl, cache: Option<CacheOptions>) -> Result<Self> {
        Self::connect_as(url, cache, None)
    }

    fn connect_as(
        url: &DafsUrl,
        cache: Option<CacheOptions>,
        fence_id: Option<&str>,
    ) -> Result<Self> {
        // Hosts of tests have devices in software alone.
        let (rdma_devices, fence_id) = (RdmaDevices::All, fence_id.map(str::to_owned));
        let options = ConnectOptions { cache, rdma_devices, fence_id, ..ConnectOptions::default() };
        Ok(Self { client: Client::connect(url, &options)?, url: url.clone() })
    }

    fn file(&self, name: &str) -> Result<File> {
        let options = OpenOptions::read_write().create(Create::IfMissing).mode(0o644);
        Ok(self.client.open(self.url.join(name.as_bytes())?.path(), &options)?)
    }

    /// A buffer with these bytes.
    fn buffer(&self, content: &[u8]) -> Result<IoBuffer> {
        let buffer = self.client.buffer(content.len())?;
        buffer.view().copy_from(content, Site::Inspect);
        Ok(buffer)
    }
}

/// Bytes that differ by seed and position.
fn pattern(bytes: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (state >> 56) as u8
    };
    (0..bytes).map(|_| next()).collect()
}

fn expect(moved: usize, wanted: usize) -> Result<()> {
    if moved == wanted { Ok(()) } else { Err(format!("{moved} bytes moved, not {wanted}").into()) }
}

fn compare(found: &[u8], wanted: &[u8]) -> Result<()> {
    match found.iter().zip(wanted).position(|(found, wanted)| found != wanted) {
        None => expect(found.len(), wanted.len()),
        Some(at) => Err(format!("byte {at} of {} is wrong", wanted.len()).into()),
    }
}

fn compare_buffer(buffer: &IoBuffer, wanted: &[u8]) -> Result<()> {
    let mut found = vec![0; wanted.len()];
    let view = buffer.slice(0, wanted.len()).ok_or("the buffer is too short")?;
    view.copy_to(&mut found, Site::Inspect);
    compare(&found, wanted)
}

/// Transfers from 4 KiB to 16 MiB, of registered memory and of any.
fn sizes(place: &Place) -> Result<()> {
    for bytes in (12..=24).step_by(2).map(|shift| 1_usize << shift) {
        let file = place.file(&format!("data-{bytes}"))?;
        let wanted = pattern(bytes, bytes as u64);
        let buffer = place.buffer(&wanted)?;
        expect(file.write_from(&buffer, 0..bytes, 0, Stability::Unstable)?, bytes)?;
        file.commit(0, 0)?;
        buffer.view().fill(0);
        expect(file.read_into(&buffer, 0..bytes, 0)?, bytes)?;
        compare_buffer(&buffer, &wanted)?;
        let wanted = pattern(bytes, bytes as u64 + 1);
        expect(file.write_at(&wanted, 0, Stability::FileSync)?, bytes)?;
        let mut found = vec![0; bytes];
        expect(file.read_at(&mut found, 0)?, bytes)?;
        compare(&found, &wanted)?;
        file.close()?;
    }
    Ok(())
}

/// Many reads under way at a time.
fn many_reads(place: &Place) -> Result<()> {
    const BLOCK: usize = 64 << 10;
    const BLOCKS: usize = 4 * DEPTH;
    let file = place.file("many")?;
    let wanted = pattern(BLOCKS * BLOCK, 7);
    expect(file.write_at(&wanted, 0, Stability::FileSync)?, wanted.len())?;
    let buffer = place.client.buffer(DEPTH * BLOCK)?;
    for (number, wanted) in wanted.chunks(DEPTH * BLOCK).enumerate() {
        let mut reads = Vec::new();
        for slot in 0..DEPTH {
            let offset = (number * DEPTH + slot) * BLOCK;
            let range = slot * BLOCK..(slot + 1) * BLOCK;
            reads.push(file.submit_read(&buffer, range, offset as u64)?);
        }
        for read in reads {
            expect(read.wait()?, BLOCK)?;
        }
        compare_buffer(&buffer, wanted)?;
    }
    Ok(file.close()?)
}

/// Batches that are answered together, and one that is answered on the back-control channel.
fn batches(place: &Place) -> Result<()> {
    const PART: usize = 16 << 10;
    let file = place.file("batches")?;
    let wanted = pattern(DEPTH * PART, 9);
    let buffer = place.buffer(&wanted)?;
    let mut writes = place.client.batch();
    for part in 0..DEPTH {
        let range = part * PART..(part + 1) * PART;
        writes.write(&file, &[(range.start as u64, PART)], &[(&buffer, range)])?;
    }
    for moved in writes.run()? {
        expect(moved?, PART)?;
    }
    for asynchronous in [false, true] {
        buffer.view().fill(0);
        let mut reads = place.client.batch();
        for part in 0..DEPTH {
            let range = part * PART..(part + 1) * PART;
            reads.read(&file, &[(range.start as u64, PART)], &[(&buffer, range)])?;
        }
        if asynchronous {
            reads = reads.asynchronous(Duration::from_millis(5), 8);
        }
        for moved in reads.run()? {
            expect(moved?, PART)?;
        }
        compare_buffer(&buffer, &wanted)?;
    }
    Ok(file.close()?)
}

/// A cache that the server recalls when another client writes.
fn delegations(place: &Place) -> Result<()> {
    const BYTES: usize = 64 << 10;
    let (old, new) = (pattern(BYTES, 1), pattern(BYTES, 2));
    let write = |content: &[u8]| -> Result<()> {
        let file = place.file("shared")?;
        expect(file.write_at(content, 0, Stability::FileSync)?, BYTES)?;
        Ok(file.close()?)
    };
    write(&old)?;
    let cached = Place::connect(&place.url, Some(CacheOptions::default()))?;
    let path = place.url.join(b"shared")?;
    let file = cached.client.open(path.path(), &OpenOptions::read())?;
    let read = |wanted: &[u8]| -> Result<()> {
        let mut found = vec![0; BYTES];
        expect(file.read_at(&mut found, 0)?, BYTES)?;
        compare(&found, wanted)
    };
    let requests = || {
        let stats = cached.client.stats();
        stats.answered - stats.nulls
    };
    let mut attempts = 0;
    loop {
        let before = requests();
        for _ in 0..CACHED_READS {
            read(&old)?;
        }
        if requests() == before {
            break;
        }
        attempts += 1;
        if attempts == CACHE_ATTEMPTS {
            return Err("every read needs a request, so there is no delegation".into());
        }
        std::thread::sleep(CACHE_PAUSE);
    }
    write(&new)?;
    read(&new)?;
    Ok(file.close()?)
}

fn locks(place: &Place) -> Result<()> {
    let other = Place::connect(&place.url, None)?;
    let (mine, theirs) = (place.file("locked")?, other.file("locked")?);
    let range = LockRange::exclusive().bytes(0, 100);
    mine.try_lock(&range)?;
    match theirs.try_lock(&range) {
        Err(LockError::Held(_)) => {}
        Err(error) => return Err(error.into()),
        Ok(()) => return Err("two clients have the same lock".into()),
    }
    mine.unlock(0, 100)?;
    theirs.try_lock(&range)?;
    theirs.unlock(0, 100)?;
    mine.close()?;
    Ok(theirs.close()?)
}

/// Appends lines, whatever happens to the server, and prints the number of some.
fn append(place: &Place, count: u32) -> Result<()> {
    let file = place.file("appended")?;
    let mut wanted = String::new();
    for number in 0..count {
        let line = format!("{number:08}\n");
        file.append(line.as_bytes(), Stability::FileSync)?;
        wanted.push_str(&line);
        if number % 10 == 0 {
            println!("{number}");
        }
    }
    let mut found = vec![0; wanted.len() + 1];
    let bytes = file.read_at(&mut found, 0)?;
    compare(&found[..bytes], wanted.as_bytes())?;
    println!("{count} lines, each once");
    Ok(file.close()?)
}

fn load(place: &Place, time: Duration) -> Result<()> {
    const BYTES: usize = 256 << 10;
    let file = place.file("load")?;
    let buffer = place.client.buffer(BYTES)?;
    let end = Instant::now() + time;
    let mut rounds = 0;
    while Instant::now() < end {
        rounds += 1;
        let wanted = pattern(BYTES, rounds);
        buffer.view().copy_from(&wanted, Site::Inspect);
        expect(file.write_from(&buffer, 0..BYTES, 0, Stability::Unstable)?, BYTES)?;
        buffer.view().fill(0);
        expect(file.read_into(&buffer, 0..BYTES, 0)?, BYTES)?;
        compare_buffer(&buffer, &wanted)?;
    }
    file.close()?;
    println!("{rounds} rounds, at last by {}", place.client.transport());
    Ok(())
}

fn shown_file(place: &Place) -> Result<File> {
    let path = place.url.join(format!("data-{SHOWN_BYTES}").as_bytes())?;
    Ok(place.client.open(path.path(), &OpenOptions::read())?)
}

/// Reads blocks of the file, in an order that is not that of the file. Returns the number of those
/// that needed no request.
fn read_blocks(place: &Place, file: &File, count: u32) -> Result<u64> {
    let wanted = pattern(SHOWN_BYTES, SHOWN_BYTES as u64 + 1);
    let before = place.client.optimistic_stats().hits;
    let mut block = [0; BLOCK_BYTES];
    for number in 0..count as usize {
        let at = number * 7919 % (SHOWN_BYTES / BLOCK_BYTES) * BLOCK_BYTES;
        expect(file.read_at(&mut block, at as u64)?, BLOCK_BYTES)?;
        compare(&block, &wanted[at..at + BLOCK_BYTES])?;
    }
    Ok(place.client.optimistic_stats().hits - before)
}

/// Reads until most reads of a round need no request. Returns the numbers of reads and of hits.
fn until_hits(place: &Place, file: &File, count: u32) -> Result<(u64, u64)> {
    let (mut reads, mut hits) = (0, 0);
    for _ in 0..SHOWN_ROUNDS {
        let found = read_blocks(place, file, count)?;
        (reads, hits) = (reads + u64::from(count), hits + found);
        if found * 4 >= u64::from(count) * 3 {
            return Ok((reads, hits));
        }
        std::thread::sleep(CACHE_PAUSE);
    }
    Err(format!("of {reads} reads, {hits} needed no request").into())
}

fn hits(place: &Place, count: u32) -> Result<()> {
    let file = shown_file(place)?;
    let (reads, hits) = until_hits(place, &file, count)?;
    println!("{reads} reads, {hits} hits");
    Ok(file.close()?)
}

fn reads(place: &Place, count: u32) -> Result<()> {
    let file = shown_file(place)?;
    let hits = read_blocks(place, &file, count)?;
    println!("{count} reads, {hits} hits");
    Ok(file.close()?)
}

/// A fence that shuts this client out of the file: no read comes through from its answer on.
fn fence(place: &Place, count: u32) -> Result<()> {
    let file = shown_file(place)?;
    until_hits(place, &file, count)?;
    let other = Place::connect_as(&place.url, None, Some("other"))?;
    let set_fence =
        |change: FenceChange<'_>| other.client.set_fence(file.handle(), FenceObject::File, change);
    set_fence(FenceChange::Set(&[b"other"]))?;
    let before = place.client.optimistic_stats().hits;
    let mut block = [0; BLOCK_BYTES];
    for _ in 0..FENCED_READS {
        let read = file.read_at(&mut block, 0);
        if !read.as_ref().is_err_and(|error| error.status() == Some(Status::Fenced)) {
            return Err(format!("a read behind the fence: {read:?}").into());
        }
    }
    set_fence(FenceChange::Clear)?;
    match place.client.optimistic_stats().hits - before {
        0 => Ok(()),
        hits => Err(format!("{hits} hits behind the fence").into()),
    }
}

fn watch(place: &Place, time: Duration) -> Result<()> {
    const READS: u32 = 100;
    let file = shown_file(place)?;
    let end = Instant::now() + time;
    let (mut reads, mut hits) = (0, 0);
    while Instant::now() < end {
        let found = read_blocks(place, &file, READS)?;
        if hits == 0 && found > 0 {
            println!("the first hits");
        }
        (reads, hits) = (reads + READS, hits + found);
    }
    file.close()?;
    println!("{reads} reads, {hits} hits, at last by {}", place.client.transport());
    Ok(())
}
