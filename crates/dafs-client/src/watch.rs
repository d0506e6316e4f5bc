//! The table in which the library of `dafs run` counts the calls of the programs that `dafs advise`
//! watches. The command makes the file and reads it; each watched process maps it.
//!
//! ```text
//! words            content
//! 0..16            totals, by `Total`
//! 16..128          the directory whose files count; all but those of the system if it is empty
//! 128..131200      a bit for each place at which a read has begun, by a hash
//! 131200..262272   1024 records of files: 128 words each, by `Count`, then the path
//! ```
//!
//! Invariants
//! * The table is words of 64 bits in the order of bytes of the machine, each changed atomically. So a
//!   process that is killed leaves a table that can be read.
//! * A reader takes nothing for granted: each word may have any value.

/// The environment variable that names the file of the table.
pub const TABLE_VARIABLE: &str = "DAFS_WATCH_TABLE";

/// The first word of a table.
pub const MAGIC: u64 = u64::from_be_bytes(*b"dafswat1");

/// Files that have a record; further ones are counted only.
pub const FILES_MAX: usize = 1024;

/// Bytes kept of a path.
pub const PATH_BYTES_MAX: usize = 56 * 8;

/// Buckets of a histogram of sizes: bucket `n` counts calls of up to 2^n bytes, the last also longer ones.
pub const SIZES: usize = 22;

/// The first word of the path below which files count.
pub const BELOW_AT: usize = 16;

/// The first word of the bits for the places of reads, and the number of these words.
pub const SEEN_AT: usize = 128;
/// See [`SEEN_AT`].
pub const SEEN_WORDS: usize = 1 << 17;

/// Words of a file's record.
pub const FILE_WORDS: usize = 128;

const FILES_AT: usize = SEEN_AT + SEEN_WORDS;

/// Words of a table.
pub const TABLE_WORDS: usize = FILES_AT + FILES_MAX * FILE_WORDS;

/// Bytes of a table.
pub const TABLE_BYTES: usize = TABLE_WORDS * 8;

/// The word of a total.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum Total {
    /// [`MAGIC`].
    Magic,
    /// Processes that have mapped the table.
    Processes,
    /// Opens of files for which there was no record.
    FilesLeftOut,
    /// Reads from anything but files that count: pipes, sockets, files of the system.
    OtherReads,
    /// Their bytes.
    OtherReadBytes,
    /// Writes to anything else.
    OtherWrites,
    /// Their bytes.
    OtherWrittenBytes,
    /// Calls with a path, and those about an open file that ask a server: closes, locks, questions.
    Names,
    /// Programs started that are linked statically.
    Static,
    /// Programs started with other rights.
    Rights,
    /// Programs started for another kind of machine.
    Foreign,
    /// Programs started that should load the library.
    Starts,
    /// Calls on files that are under way.
    Now,
    /// The calls under way at the beginning of each call, itself included, added up.
    AtOnceSum,
    /// Calls on files so far.
    Calls,
    /// Bytes of the path at [`BELOW_AT`].
    BelowBytes,
}

/// The word of a file's record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum Count {
    /// [`FREE`], [`CLAIMED`] or [`READY`].
    State,
    /// The device of the file.
    Device,
    /// The inode of the file.
    Inode,
    /// Opens.
    Opens,
    /// Reads of at least a byte.
    Reads,
    /// Bytes read.
    ReadBytes,
    /// Reads that begin where the last one through the descriptor ended.
    ReadsInOrder,
    /// Reads that begin where another one had begun before, through any descriptor.
    ReadsAgain,
    /// Reads into memory that begins at a page.
    ReadsAligned,
    /// Nanoseconds within reads.
    ReadNanoseconds,
    /// Writes of at least a byte.
    Writes,
    /// Bytes written.
    WrittenBytes,
    /// Writes that begin where the last one through the descriptor ended.
    WritesInOrder,
    /// Writes from memory that begins at a page.
    WritesAligned,
    /// Nanoseconds within writes.
    WriteNanoseconds,
    /// Calls of `fsync` and `fdatasync`.
    Syncs,
    /// Nanoseconds within these.
    SyncNanoseconds,
    /// Bytes mapped into memory.
    MappedBytes,
    /// The furthest end of a read or write.
    End,
    /// Calls that are under way.
    Now,
    /// The most that were.
    MostAtOnce,
    /// Reads and writes that were submitted to run beside the program.
    Asynchronous,
    /// Bytes of streams of the C library, found when they were closed.
    StreamBytes,
    /// Bytes of the path.
    PathBytes,
    /// The histogram of sizes of reads: the first of [`SIZES`] words.
    ReadSizes = 24,
    /// The histogram of sizes of writes.
    WriteSizes = 24 + SIZES,
    /// The path.
    Path = FILE_WORDS - PATH_BYTES_MAX / 8,
}

const _: () = assert!(Count::WriteSizes as usize + SIZES <= Count::Path as usize);
const _: () =
    assert!(BELOW_AT + PATH_BYTES_MAX / 8 <= SEEN_AT && (Total::BelowBytes as usize) < BELOW_AT);

/// The states of a record: nobody's, taken by a process that fills it, and of a file.
pub const FREE: u64 = 0;
/// See [`FREE`].
pub const CLAIMED: u64 = 1;
/// See [`FREE`].
pub const READY: u64 = 2;

/// The first word of the record with that number.
#[must_use]
pub const fn record_at(number: usize) -> usize {
    FILES_AT + number * FILE_WORDS
}

/// The bucket of a size in bytes.
#[must_use]
pub fn bucket(bytes: u64) -> usize {
    let bits = u64::BITS - bytes.saturating_sub(1).leading_zeros();
    (bits as usize).min(SIZES - 1)
}

/// The beginning of the file of an empty table: its totals, and the directory whose files count. The
/// rest is zeros.
///
/// # Errors
/// The directory's path is longer than [`PATH_BYTES_MAX`].
pub fn head(below: &[u8]) -> Result<Vec<u8>, &'static str> {
    if below.len() > PATH_BYTES_MAX {
        return Err("the path of the directory is too long");
    }
    let mut head = vec![0_u8; SEEN_AT * 8];
    let mut put = |word: usize, value: u64| {
        head[word * 8..][..8].copy_from_slice(&value.to_ne_bytes());
    };
    put(Total::Magic as usize, MAGIC);
    put(Total::BelowBytes as usize, below.len() as u64);
    for (at, bytes) in below.chunks(8).enumerate() {
        put(BELOW_AT + at, word_of(bytes));
    }
    Ok(head)
}

/// Up to eight bytes as a word, the first lowest.
#[must_use]
pub fn word_of(bytes: &[u8]) -> u64 {
    bytes.iter().take(8).rev().fold(0, |word, byte| word << 8 | u64::from(*byte))
}

/// A table that has been read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Watched {
    words: Vec<u64>,
}

/// The record of one file.
#[derive(Debug, Clone, Copy)]
pub struct WatchedFile<'a> {
    words: &'a [u64],
}

impl Watched {
    /// Reads the bytes of a table's file. `None` if they are no table.
    #[must_use]
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let (words, rest) = bytes.as_chunks::<8>();
        if words.len() != TABLE_WORDS || !rest.is_empty() {
            return None;
        }
        let words: Vec<u64> = words.iter().map(|word| u64::from_ne_bytes(*word)).collect();
        (words[Total::Magic as usize] == MAGIC).then_some(Self { words })
    }

    /// A total.
    #[must_use]
    pub fn total(&self, total: Total) -> u64 {
        self.words[total as usize]
    }

    /// The records of files.
    pub fn files(&self) -> impl Iterator<Item = WatchedFile<'_>> {
        let records = self.words[FILES_AT..].chunks_exact(FILE_WORDS);
        records.map(|words| WatchedFile { words }).filter(|file| file.get(Count::State) == READY)
    }
}

impl WatchedFile<'_> {
    /// A count.
    #[must_use]
    pub fn get(&self, count: Count) -> u64 {
        self.words[count as usize]
    }

    /// The histogram that begins at that count: one of the two of sizes.
    #[must_use]
    pub fn sizes(&self, first: Count) -> [u64; SIZES] {
        std::array::from_fn(|at| self.words.get(first as usize + at).copied().unwrap_or(0))
    }

    /// The path, as the kernel showed it.
    #[must_use]
    pub fn path(&self) -> Vec<u8> {
        let bytes = self.words[Count::Path as usize..].iter().flat_map(|word| word.to_le_bytes());
        let count = usize::try_from(self.get(Count::PathBytes)).unwrap_or(usize::MAX);
        bytes.take(count.min(PATH_BYTES_MAX)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_hold_sizes_up_to_their_power_of_two() {
        for (bytes, wanted) in
            [(0, 0), (1, 0), (2, 1), (4096, 12), (4097, 13), (1 << 21, 21), (u64::MAX, 21)]
        {
            assert_eq!(bucket(bytes), wanted, "{bytes}");
        }
    }

    #[test]
    fn a_record_is_read_as_it_was_written_and_nothing_else_is() {
        let mut bytes = head(b"/data/tree").unwrap();
        bytes.resize(TABLE_BYTES, 0);
        let mut put = |word: usize, value: u64| {
            bytes[word * 8..][..8].copy_from_slice(&value.to_ne_bytes());
        };
        let record = record_at(FILES_MAX - 1);
        put(record, READY);
        put(record + Count::Reads as usize, 7);
        put(record + Count::ReadSizes as usize + 12, 7);
        put(record + Count::PathBytes as usize, 9);
        put(record + Count::Path as usize, word_of(b"/data/ta"));
        put(record + Count::Path as usize + 1, word_of(b"b"));
        put(record_at(0), CLAIMED);
        let watched = Watched::read(&bytes).unwrap();
        assert_eq!(watched.total(Total::BelowBytes), 10);
        let files: Vec<_> = watched.files().collect();
        assert_eq!((files.len(), files[0].path()), (1, b"/data/tab".to_vec()));
        assert_eq!((files[0].get(Count::Reads), files[0].sizes(Count::ReadSizes)[12]), (7, 7));
        assert_eq!(Watched::read(&bytes[1..]), None);
        assert_eq!(Watched::read(b""), None);
        bytes[0] ^= 1;
        assert_eq!(Watched::read(&bytes), None);
    }

    #[test]
    fn any_words_can_be_read() {
        let mut bytes = vec![0xff; TABLE_BYTES];
        bytes[..8].copy_from_slice(&MAGIC.to_ne_bytes());
        let ready = |number: usize| record_at(number) * 8;
        for number in 0..FILES_MAX {
            bytes[ready(number)..][..8].copy_from_slice(&READY.to_ne_bytes());
        }
        let watched = Watched::read(&bytes).unwrap();
        assert!(watched.files().all(|file| file.path().len() == PATH_BYTES_MAX));
        assert!(head(&[b'a'; PATH_BYTES_MAX + 1]).is_err());
    }
}
