//! Patterns of applications, after figure 8 of the paper, by a client of NFS. `native.py` has the
//! same, with the same random numbers.
//!
//! * "atlas": writes anywhere in a file, of which 19 of 20 are small and the twentieth has 95 % of
//!   the bytes; made stable at the end.
//! * "oltp": reads, changes and writes a record of 8 KiB anywhere in a file; each is stable.
//! * "postmark": reads small files as a whole or appends to them, and makes or removes others;
//!   writes are stable before a file is closed.
//! * "btio": processes write small pieces of one file in turn, and read them back (`checkpoint`).
//! * "unpack", "configure" and "build": the stages of a build of a C program (`build`).
//! * "files": makes small files, and then reads them, one after the other, each in one call where
//!   NFSv4 is in use; for kernel clients, which have no other patterns here.
//!
//! Not obvious
//! * A client does as a kernel does for its program: it keeps the handle of its folder, and it makes what
//!   fits one request stable by that request. CephFS's client keeps its folder as well.

use super::load::{Load, WINDOW, finish, go, piece};
use super::{UNIT_BYTES, build, checkpoint};
use anyhow::{Context, Result, ensure};
use dafs_mem::Site;
use dafs_nfs_client::mount::{
    Create, File, Handle, Memory, Mount, NewFile, OpenOptions, SetAttributes, StableHow,
};
use std::collections::VecDeque;

const RECORD_BYTES: usize = 8192;

/// The amount of each client in the paper, and its transactions, and the fewest. Other amounts have as
/// many for each byte.
const PAPER_BYTES: u64 = 500_000_000;
const OLTP_TRANSACTIONS: u64 = 20_000;
const OLTP_TRANSACTIONS_MIN: u64 = 128;
const POSTMARK_TRANSACTIONS: u64 = 2000;
const POSTMARK_TRANSACTIONS_MIN: u64 = 64;

/// Files that one client of postmark begins with, as above, and their lengths.
const FILES: u64 = 100;
const FILES_MIN: u64 = 16;
const FILE_BYTES_MAX: u64 = 500_000;
const APPEND_BYTES_MAX: u64 = 65_536;

/// Number of small files of "files", and bytes of each. The program of kernel clients gets the same
/// numbers from `kernel`.
pub(super) const SMALL_FILES: u64 = 200;
pub(super) const SMALL_FILE_BYTES: u64 = 16_384;

/// The large request of the ATLAS mix, and the longest small one.
const LARGE_BYTES: u64 = 4 << 20;
const SMALL_BYTES_MAX: u64 = 23_000;

/// The last component of a path.
pub(super) fn last_of(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// A number of the paper for an amount of data.
fn scaled(paper: u64, least: u64, bytes: u64) -> u64 {
    (paper * bytes / PAPER_BYTES).max(least)
}

/// xorshift, which is short in every language.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

/// The work done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Done {
    pub(crate) bytes: u64,
    pub(crate) transactions: u64,
}

/// The names of all patterns.
pub(crate) const PATTERNS: [&str; 7] =
    ["atlas", "oltp", "postmark", "btio", "unpack", "configure", "build"];

/// Number of times that the clients of a pattern wait for each other after the start.
pub(crate) fn meetings(pattern: &str) -> u64 {
    match pattern {
        "btio" => checkpoint::STEPS,
        "files" => 1,
        _ => 0,
    }
}

/// True if all clients of a pattern use the same file.
pub(crate) fn is_of_one_file(pattern: &str) -> bool {
    pattern == "btio"
}

/// True if a pattern is rated by bytes, false if by transactions.
pub(crate) fn is_of_bytes(pattern: &str) -> bool {
    ["atlas", "btio"].contains(&pattern)
}

/// The bytes of a pattern that `dafs-nfs-client` can move past the server: it requests the layout
/// of a file after its first 64 KiB.
pub(crate) fn bytes_past_server(pattern: &str, bytes: u64) -> u64 {
    if ["unpack", "configure", "build"].contains(&pattern) { 0 } else { bytes }
}

/// Runs a pattern on files whose names begin with `path`.
pub(crate) fn run(pattern: &str, mount: &Mount, path: &str, load: &Load) -> Result<Done> {
    let memory = mount.allocate(UNIT_BYTES * (WINDOW + 1))?;
    memory.view().fill(0);
    let &Load { begin: seed, bytes, clients, .. } = load;
    match pattern {
        "btio" => {
            let rank = seed.checked_sub(1).context("clients count from 1 on")?;
            return checkpoint::run(mount, path, &memory, (rank, clients), bytes);
        }
        "unpack" => return build::unpack(mount, path, &memory, &load.tree),
        "configure" => return build::configure(mount, path, &memory),
        "build" => return build::run(mount, path, &memory, &load.tree),
        _ => {}
    }
    let random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let directory = mount.resolve_parent(path.as_bytes())?.dir;
    let run = Run { mount, path, directory, memory, random, bytes: 0 };
    match pattern {
        "atlas" => run.atlas(bytes),
        "oltp" => run.oltp(bytes),
        "postmark" => run.postmark(bytes),
        "files" => run.files(),
        other => anyhow::bail!("there is no pattern {other}"),
    }
}

/// The requests of the ATLAS mix for a file, in the order in which they are written.
fn atlas_requests(bytes: u64, random: &mut Random) -> Vec<(u64, u64)> {
    let (mut requests, mut offset) = (Vec::new(), 0);
    while offset < bytes {
        let is_large = requests.len() % 20 == 10;
        let len = if is_large { LARGE_BYTES } else { 1 + random.below(SMALL_BYTES_MAX) };
        requests.push((offset, len.min(bytes - offset)));
        offset += len;
    }
    for last in (1..requests.len()).rev() {
        requests.swap(last, random.below(last as u64 + 1) as usize);
    }
    requests
}

/// Writes the whole content of a new file, and makes it stable.
pub(super) fn write_all(file: &File, memory: &Memory, content: &[u8]) -> Result<()> {
    if (1..=UNIT_BYTES).contains(&content.len()) {
        let memory = piece(memory, 0, content.len())?;
        memory.view().copy_from(content, Site::Inspect);
        file.write(memory, 0, StableHow::FileSync)?;
        return Ok(());
    }
    let mut under_way = VecDeque::new();
    for (number, part) in content.chunks(UNIT_BYTES).enumerate() {
        if under_way.len() >= WINDOW {
            finish(under_way.pop_front())?;
        }
        let memory = piece(memory, number, part.len())?;
        memory.view().copy_from(part, Site::Inspect);
        let offset = (number * UNIT_BYTES) as u64;
        under_way.push_back(file.submit_write(memory, offset, StableHow::Unstable)?);
    }
    while !under_way.is_empty() {
        finish(under_way.pop_front())?;
    }
    file.commit()?;
    Ok(())
}

struct Run<'a> {
    mount: &'a Mount,
    path: &'a str,
    /// The folder of its files.
    directory: Handle,
    memory: Memory,
    random: Random,
    /// Bytes written and read.
    bytes: u64,
}

impl Run<'_> {
    fn create(&self, name: &str) -> Result<File> {
        let options = OpenOptions::read_write().create(Create::IfMissing).mode(0o666);
        Ok(self.mount.open_at(&self.directory, last_of(name).as_bytes(), &options)?)
    }

    /// Writes a range and makes it stable: by the request itself where one does.
    fn write_range(&mut self, file: &File, begin: u64, len: u64) -> Result<()> {
        if !(1..=UNIT_BYTES as u64).contains(&len) {
            return self.write(file, [(begin, len)].into_iter());
        }
        let memory = piece(&self.memory, 0, len as usize)?;
        file.write(memory, begin, StableHow::FileSync)?;
        self.bytes += len;
        Ok(())
    }

    /// Writes ranges, with several pieces outstanding.
    fn write(&mut self, file: &File, ranges: impl Iterator<Item = (u64, u64)>) -> Result<()> {
        let mut under_way = VecDeque::new();
        let mut number = 0;
        for (begin, len) in ranges {
            for offset in (begin..begin + len).step_by(UNIT_BYTES) {
                if under_way.len() >= WINDOW {
                    finish(under_way.pop_front())?;
                }
                let part = UNIT_BYTES.min((begin + len - offset) as usize);
                let memory = piece(&self.memory, number, part)?;
                under_way.push_back(file.submit_write(memory, offset, StableHow::Unstable)?);
                number += 1;
            }
            self.bytes += len;
        }
        while !under_way.is_empty() {
            finish(under_way.pop_front())?;
        }
        file.commit()?;
        Ok(())
    }

    fn atlas(mut self, bytes: u64) -> Result<Done> {
        let requests = atlas_requests(bytes, &mut self.random);
        let file = self.create(self.path)?;
        go()?;
        let transactions = requests.len() as u64;
        self.write(&file, requests.into_iter())?;
        file.close()?;
        Ok(Done { bytes: self.bytes, transactions })
    }

    fn files(mut self) -> Result<Done> {
        let name = |number| format!("{}-{number}", self.path);
        let names: Vec<_> = (0..SMALL_FILES).map(name).collect();
        let directory = self.directory.clone();
        let data = vec![7_u8; SMALL_FILE_BYTES as usize];
        go()?;
        names.iter().try_for_each(|name| self.make_small(&directory, name, &data))?;
        go()?;
        names.iter().try_for_each(|name| self.read_small(&directory, name))?;
        Ok(Done { bytes: self.bytes, transactions: 2 * SMALL_FILES })
    }

    fn make_small(&mut self, dir: &Handle, path: &str, data: &[u8]) -> Result<()> {
        let name = last_of(path);
        let begun = self.mount.begin_new_file(&NewFile {
            dir,
            temporary_name: format!(".{name}.part").as_bytes(),
            name: name.as_bytes(),
            data,
            attributes: &SetAttributes::mode(0o644),
        })?;
        let Some(pending) = begun else {
            let file = self.create(path)?;
            self.write(&file, [(0, data.len() as u64)].into_iter())?;
            return Ok(file.close()?);
        };
        pending.wait()?;
        self.bytes += data.len() as u64;
        Ok(())
    }

    fn read_small(&mut self, dir: &Handle, path: &str) -> Result<()> {
        let bytes_max = SMALL_FILE_BYTES as usize + 1;
        match self.mount.begin_file_start(dir, last_of(path).as_bytes(), bytes_max)? {
            Some(pending) => {
                let start = pending.wait()?;
                let got = start.data.len() as u64;
                ensure!(start.is_whole && got == SMALL_FILE_BYTES, "{path} has {got} bytes");
                self.bytes += got;
                Ok(())
            }
            None => self.read_whole(path, SMALL_FILE_BYTES),
        }
    }

    fn oltp(mut self, bytes: u64) -> Result<Done> {
        let file = self.create(self.path)?;
        let transactions = scaled(OLTP_TRANSACTIONS, OLTP_TRANSACTIONS_MIN, bytes);
        self.write(&file, [(0, bytes)].into_iter())?;
        let mut wanted = vec![0_u64; bytes as usize / RECORD_BYTES];
        let record = piece(&self.memory, 0, RECORD_BYTES)?;
        let count = record.view().slice(0, 8).context("records are longer")?;
        self.bytes = 0;
        go()?;
        for _ in 0..transactions {
            let at = self.random.below(wanted.len() as u64);
            let (offset, known) = (at * RECORD_BYTES as u64, &mut wanted[at as usize]);
            let got = file.read(record.clone(), offset)?;
            let mut found = [0; 8];
            count.copy_to(&mut found, Site::Inspect);
            let found = u64::from_le_bytes(found);
            ensure!(got == RECORD_BYTES && found == *known, "record {at} is {found} of {known}");
            *known += 1;
            count.copy_from(&known.to_le_bytes(), Site::Inspect);
            file.write(record.clone(), offset, StableHow::FileSync)?;
            self.bytes += 2 * RECORD_BYTES as u64;
        }
        file.close()?;
        Ok(Done { bytes: self.bytes, transactions })
    }

    fn make(&mut self, name: &str) -> Result<u64> {
        let file = self.create(name)?;
        let len = 1 + self.random.below(FILE_BYTES_MAX);
        self.write_range(&file, 0, len)?;
        file.close()?;
        Ok(len)
    }

    fn read_whole(&mut self, name: &str, len: u64) -> Result<()> {
        let name_in_folder = last_of(name).as_bytes();
        let file = self.mount.open_at(&self.directory, name_in_folder, &OpenOptions::read())?;
        let (mut reader, mut got) = (file.reader(0, UNIT_BYTES, WINDOW as u32)?, 0);
        while let Some(piece) = reader.next_piece()? {
            got += piece.view.len() as u64;
        }
        ensure!(got == len, "{name} has {got} bytes of {len}");
        self.bytes += got;
        Ok(file.close()?)
    }

    fn postmark(mut self, bytes: u64) -> Result<Done> {
        let transactions = scaled(POSTMARK_TRANSACTIONS, POSTMARK_TRANSACTIONS_MIN, bytes);
        let count = scaled(FILES, FILES_MIN, bytes);
        let mut files = VecDeque::new();
        for number in 0..count {
            let name = format!("{}-{number}", self.path);
            let len = self.make(&name)?;
            files.push_back((name, len));
        }
        let mut made = count;
        self.bytes = 0;
        go()?;
        for _ in 0..transactions {
            let at = self.random.below(files.len() as u64) as usize;
            let (name, len) = files[at].clone();
            if self.random.below(2) == 0 {
                self.read_whole(&name, len)?;
            } else {
                let more = 1 + self.random.below(APPEND_BYTES_MAX);
                let file = self.create(&name)?;
                self.write_range(&file, len, more)?;
                file.close()?;
                files[at].1 += more;
            }
            if self.random.below(2) == 0 || files.len() < 2 {
                let name = format!("{}-{made}", self.path);
                made += 1;
                let len = self.make(&name)?;
                files.push_back((name, len));
            } else if let Some((name, _)) = files.pop_front() {
                self.mount.remove(&self.directory, last_of(&name).as_bytes())?;
            }
        }
        Ok(Done { bytes: self.bytes, transactions })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_papers_amount_has_the_papers_transactions_and_a_small_one_has_some() {
        let oltp = |bytes| scaled(OLTP_TRANSACTIONS, OLTP_TRANSACTIONS_MIN, bytes);
        assert_eq!([oltp(PAPER_BYTES), oltp(24 << 20), oltp(1 << 20)], [20_000, 1006, 128]);
        let files = |bytes| scaled(FILES, FILES_MIN, bytes);
        assert_eq!([files(PAPER_BYTES), files(24 << 20)], [100, 16]);
    }

    #[test]
    fn of_the_atlas_mix_few_requests_have_most_bytes_and_all_bytes_are_written_once() {
        let bytes = 100 << 20;
        let mut requests = atlas_requests(bytes, &mut Random(7));
        let large = requests.iter().filter(|(_, len)| *len >= 275_000);
        let (count, sum) = large.fold((0, 0), |(count, sum), (_, len)| (count + 1, sum + len));
        assert!((0.04..0.06).contains(&(f64::from(count) / requests.len() as f64)));
        assert!((0.93..0.97).contains(&(sum as f64 / bytes as f64)));
        requests.sort_unstable();
        let end = requests.iter().fold(0, |end, &(offset, len)| {
            assert_eq!(offset, end);
            end + len
        });
        assert_eq!(end, bytes);
    }
}
