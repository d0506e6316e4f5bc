//! Reassembly of records from a stream of bytes (RFC 5531 section 11), without I/O.
//!
//! Invariants
//! * The records do not depend on how the stream is cut into pieces.
//! * A record that lies completely in one piece of input is not copied. For other records, the
//!   reader can place later pieces directly ([`RecordReader::space`]).
//! * A partial record takes memory in proportion to the bytes that have arrived, or out of the
//!   [`Budget`]. A host gets memory of the budget only while it holds less than is left, so that
//!   some is left for every other host.
//! * Data that was placed ([`RecordReader::place_data`]) and its padding are not in the record.

use crate::client::PlacedData;
use crate::limits::{FRAGMENTS_PER_RECORD_MAX, HEAD_TO_SEARCH_BYTES_MAX, LARGE_RECORD_BYTES};
use crate::memory::{Block, block_bytes};
use dafs_dat::connections::Origin;
use dafs_mem::{Site, VolatileSlice};
use dafs_wire::rpc::FragmentMark;
use dafs_wire::rpc::limits::FRAGMENT_MARK_BYTES;
use rustc_hash::FxHashMap;
use std::io;
use thiserror::Error;

/// The memory budget for partial records of all connections of one reactor.
#[derive(Debug)]
pub(crate) struct Budget {
    held: usize,
    max: usize,
    by_host: FxHashMap<Origin, usize>,
}

impl Budget {
    pub(crate) fn new(max: usize) -> Self {
        Self { held: 0, max, by_host: FxHashMap::default() }
    }

    /// True when no large record may begin.
    pub(crate) fn is_spent(&self) -> bool {
        self.held >= self.max
    }

    /// True if the host may take `more` bytes within its share.
    fn has(&self, host: Origin, more: usize) -> bool {
        let own = self.by_host.get(&host).copied().unwrap_or(0);
        own.saturating_add(more) <= self.max.saturating_sub(self.held)
    }

    /// The host that holds the most memory.
    pub(crate) fn largest_holder(&self) -> Option<Origin> {
        self.by_host.iter().max_by_key(|&(host, held)| (held, host)).map(|(host, _)| *host)
    }

    fn take(&mut self, host: Origin, bytes: usize) {
        self.held += bytes;
        *self.by_host.entry(host).or_default() += bytes;
    }

    fn give_back(&mut self, host: Origin, bytes: usize) {
        self.held = self.held.saturating_sub(bytes);
        if let Some(held) = self.by_host.get_mut(&host) {
            *held = held.saturating_sub(bytes);
            if *held == 0 {
                self.by_host.remove(&host);
            }
        }
    }

    /// Replaces memory that a host has of the budget.
    pub(crate) fn exchange(&mut self, host: Origin, before: usize, after: usize) {
        match after > before {
            true => self.take(host, after - before),
            false if before > after => self.give_back(host, before - after),
            false => {}
        }
    }

    /// True when little memory is left; then holders get short timeouts.
    pub(crate) fn is_tight(&self) -> bool {
        self.held > self.max - self.max / 4
    }
}

/// The reason why a stream of bytes is not one of records; the connection must end.
#[derive(Debug, Error)]
pub(crate) enum RecordError {
    #[error("a record of {len} bytes where {max} are allowed")]
    TooLong { len: usize, max: usize },
    #[error(
        "an iWARP request (MPA): it is an RDMA client on the port of plain TCP; NFS over RDMA is on \
         another one, by default 20049"
    )]
    Iwarp,
    #[error("a record of more than {FRAGMENTS_PER_RECORD_MAX} fragments")]
    TooManyFragments,
    #[error("no memory for a record: {0}")]
    NoMemory(#[from] io::Error),
}

/// A complete record.
#[derive(Debug)]
pub(crate) enum Record<'b> {
    /// It lies in the input.
    Here(&'b [u8]),
    /// It was reassembled.
    Block(Block),
}

/// Reassembles records.
#[derive(Debug)]
pub(crate) struct RecordReader {
    record_bytes_max: usize,
    host: Origin,
    /// The record mark of a fragment, until it has arrived completely.
    mark: [u8; FRAGMENT_MARK_BYTES],
    mark_bytes: u8,
    /// The partial record: some of its fragments have not arrived.
    partial: Option<Box<Partial>>,
    /// The data that was placed of the last reassembled record.
    placed: Option<PlacedData>,
}

#[derive(Debug)]
struct Partial {
    block: Block,
    /// Bytes of this fragment that have not arrived.
    fragment_left: usize,
    last: bool,
    fragments: u32,
    /// Data that is read into a sink.
    placing: Option<PlacedData>,
}

impl Partial {
    /// The data to be read into a sink, if it comes next.
    fn placing_next(&mut self) -> Option<&mut PlacedData> {
        let filled = self.block.filled();
        self.placing.as_mut().filter(|placing| filled == placing.at && !placing.is_complete())
    }

    fn is_complete(&self) -> bool {
        self.last && self.fragment_left == 0
    }
}

impl RecordReader {
    pub(crate) fn new(record_bytes_max: usize, host: Origin) -> Self {
        Self {
            record_bytes_max,
            host,
            mark: [0; FRAGMENT_MARK_BYTES],
            mark_bytes: 0,
            partial: None,
            placed: None,
        }
    }

    /// True when a part of a record, or of its mark, has arrived.
    pub(crate) fn is_inside(&self) -> bool {
        self.partial.is_some() || self.mark_bytes > 0
    }

    /// Takes the next record from the front of `input`; returns none, with all input consumed, when
    /// more is needed. Call it repeatedly until it returns none, also after each
    /// [`RecordReader::filled`].
    #[inline]
    pub(crate) fn next<'b>(
        &mut self,
        input: &mut &'b [u8],
        budget: &mut Budget,
    ) -> Result<Option<Record<'b>>, RecordError> {
        if !self.is_inside()
            && let Some((mark, rest)) = input.split_first_chunk()
        {
            let mark = FragmentMark::from_bytes(*mark);
            let len = mark.len as usize;
            if mark.last && len <= rest.len() && len <= self.record_bytes_max {
                let (record, rest) = rest.split_at(len);
                *input = rest;
                return Ok(Some(Record::Here(record)));
            }
        }
        self.next_in_pieces(input, budget)
    }

    fn next_in_pieces<'b>(
        &mut self,
        input: &mut &'b [u8],
        budget: &mut Budget,
    ) -> Result<Option<Record<'b>>, RecordError> {
        loop {
            if let Some(partial) = &mut self.partial {
                let len = partial.fragment_left.min(input.len());
                let (piece, rest) = input.split_at(len);
                *input = rest;
                append(partial, piece, (budget, self.host))?;
                if partial.is_complete() {
                    return Ok(self.take_partial(budget).map(Record::Block));
                }
                if partial.fragment_left > 0 {
                    return Ok(None);
                }
            }
            let Some(mark) = self.take_mark(input) else {
                return Ok(None);
            };
            self.begin_fragment(mark, input.len(), budget)?;
        }
    }

    /// Takes a record mark, or the available part of it, from the front of `input`.
    fn take_mark(&mut self, input: &mut &[u8]) -> Option<FragmentMark> {
        let have = usize::from(self.mark_bytes);
        let len = (FRAGMENT_MARK_BYTES - have).min(input.len());
        let (piece, rest) = input.split_at(len);
        *input = rest;
        self.mark[have..have + len].copy_from_slice(piece);
        if have + len < FRAGMENT_MARK_BYTES {
            self.mark_bytes = (have + len) as u8;
            return None;
        }
        self.mark_bytes = 0;
        Some(FragmentMark::from_bytes(self.mark))
    }

    fn begin_fragment(
        &mut self,
        mark: FragmentMark,
        arrived: usize,
        budget: &mut Budget,
    ) -> Result<(), RecordError> {
        let before = self.partial.as_ref().map_or(0, |partial| partial.block.filled());
        let len = before.saturating_add(mark.len as usize);
        if len > self.record_bytes_max {
            // The key of an MPA request decodes as the mark of a record of 1.2 GiB.
            if before == 0 && mark.to_bytes() == *b"MPA " {
                return Err(RecordError::Iwarp);
            }
            return Err(RecordError::TooLong { len, max: self.record_bytes_max });
        }
        match &mut self.partial {
            Some(partial) => {
                partial.fragments += 1;
                if partial.fragments > FRAGMENTS_PER_RECORD_MAX {
                    return Err(RecordError::TooManyFragments);
                }
                partial.fragment_left = mark.len as usize;
                partial.last = mark.last;
            }
            None => {
                let room = affordable(len, arrived.min(len), 0, (budget, self.host));
                let block = Block::new(room)?;
                budget.take(self.host, block.capacity());
                self.partial = Some(Box::new(Partial {
                    block,
                    fragment_left: mark.len as usize,
                    last: mark.last,
                    fragments: 1,
                    placing: None,
                }));
            }
        }
        Ok(())
    }

    /// Ends the partial record, which is complete or discarded.
    fn take_partial(&mut self, budget: &mut Budget) -> Option<Block> {
        let partial = self.partial.take()?;
        self.placed = partial.placing;
        budget.give_back(self.host, partial.block.capacity());
        Some(partial.block)
    }

    /// True if the partial record holds memory that this host has of the budget.
    pub(crate) fn holds_for(&self, host: Origin) -> bool {
        self.partial.is_some() && self.host == host
    }

    /// Memory of the budget that the partial record holds.
    pub(crate) fn partial_bytes(&self) -> usize {
        self.partial.as_ref().map_or(0, |partial| partial.block.capacity())
    }

    pub(crate) fn discard(&mut self, budget: &mut Budget) {
        self.take_partial(budget);
        self.mark_bytes = 0;
    }

    /// The memory for the next bytes of the stream. Empty when there is none, or when they must go
    /// through the input.
    pub(crate) fn space(&mut self) -> VolatileSlice<'_> {
        match &mut self.partial {
            Some(partial) => {
                let len = partial.fragment_left;
                match &partial.placing {
                    Some(placing)
                        if partial.block.filled() == placing.at && !placing.is_complete() =>
                    {
                        // Data without a sink goes where the rest of the record will overwrite it.
                        let left = len.min(placing.left());
                        placing.space(len).unwrap_or_else(|| partial.block.space(left))
                    }
                    _ => partial.block.space(len),
                }
            }
            None => VolatileSlice::from_mut(&mut []),
        }
    }

    /// Private memory for the next `bytes` of the stream, if they belong to this fragment, and for
    /// one byte more, whose content has no meaning.
    pub(crate) fn room(&mut self, bytes: usize) -> Option<&mut [u8]> {
        let partial = self.partial.as_mut().filter(|partial| partial.placing.is_none())?;
        if bytes > partial.fragment_left {
            return None;
        }
        let room = partial.block.spare(bytes + 1);
        (room.len() == bytes + 1).then_some(room)
    }

    /// Marks the first `len` bytes of [`RecordReader::space`] as filled.
    pub(crate) fn filled(&mut self, len: usize) {
        if let Some(partial) = &mut self.partial {
            debug_assert!(len <= partial.fragment_left);
            match partial.placing_next() {
                Some(placing) => {
                    placing.filled(len);
                }
                None => partial.block.fill(len),
            }
            partial.fragment_left = partial.fragment_left.saturating_sub(len);
        }
    }

    /// The arrived bytes of the partial record, while they may show the position of data.
    pub(crate) fn head(&self) -> Option<&[u8]> {
        let partial = self.partial.as_ref().filter(|partial| partial.placing.is_none())?;
        Some(partial.block.bytes()).filter(|bytes| bytes.len() <= HEAD_TO_SEARCH_BYTES_MAX)
    }

    /// Directs data of the partial record to its sink. Returns false unless all bytes before the
    /// data have arrived, and some of the data has not.
    pub(crate) fn place_data(&mut self, mut placing: PlacedData) -> bool {
        let Some(partial) = &mut self.partial else { return false };
        let filled = partial.block.filled();
        if filled < placing.at || filled - placing.at >= placing.len {
            return false;
        }
        placing.append(&partial.block.bytes()[placing.at..]);
        partial.block.truncate(placing.at);
        partial.placing = Some(placing);
        true
    }

    /// Discards the placed data of this XID.
    pub(crate) fn forsake(&mut self, xid: u32) {
        let partial = self.partial.as_mut();
        let placing = partial.and_then(|partial| partial.placing.as_mut());
        placing.filter(|placing| placing.xid == xid).into_iter().for_each(PlacedData::forsake);
    }

    /// Takes the placed data of the last record.
    pub(crate) fn take_placed(&mut self) -> Option<PlacedData> {
        self.placed.take()
    }

    /// True when the partial record must wait for memory.
    pub(crate) fn is_starved(&self, budget: &Budget) -> bool {
        self.partial.as_ref().is_some_and(|partial| {
            let wanted = partial.block.filled() + partial.fragment_left;
            let have = partial.block.capacity();
            wanted > have && affordable(wanted, 0, have, (budget, self.host)) < wanted
        })
    }

    /// Makes room for the rest of the fragment, so that it can be read into place; false when the
    /// budget does not allow it now.
    pub(crate) fn make_room(&mut self, budget: &mut Budget) -> Result<bool, RecordError> {
        let Some(partial) = &mut self.partial else {
            return Ok(true);
        };
        let wanted = partial.block.filled() + partial.fragment_left;
        if wanted <= partial.block.capacity() {
            return Ok(true);
        }
        let have = partial.block.capacity();
        if affordable(wanted, 0, have, (budget, self.host)) < wanted {
            return Ok(false);
        }
        grow(partial, wanted, (budget, self.host))?;
        Ok(true)
    }
}

/// Memory to take for a record of `len` announced bytes, of which `arrived` have arrived, and which
/// holds `have` already. It is all of `len` if the record is small or the budget allows it.
fn affordable(len: usize, arrived: usize, have: usize, (budget, host): (&Budget, Origin)) -> usize {
    let is_small = len <= LARGE_RECORD_BYTES;
    if is_small || budget.has(host, block_bytes(len).saturating_sub(have)) { len } else { arrived }
}

/// Appends bytes that came through the input, and takes the memory for them.
fn append(
    partial: &mut Partial,
    mut piece: &[u8],
    (budget, host): (&mut Budget, Origin),
) -> Result<(), RecordError> {
    if let Some(placing) = partial.placing_next() {
        let len = placing.append(piece);
        piece = &piece[len..];
        partial.fragment_left -= len;
    }
    if piece.is_empty() {
        return Ok(());
    }
    let end = partial.block.filled() + piece.len();
    if end > partial.block.capacity() {
        let all = partial.block.filled() + partial.fragment_left;
        let len = affordable(all, end, partial.block.capacity(), (budget, host));
        grow(partial, len, (budget, host))?;
    }
    let copied = partial.block.space(piece.len()).copy_from(piece, Site::RpcStaging);
    partial.block.fill(copied);
    partial.fragment_left -= copied;
    Ok(())
}

fn grow(
    partial: &mut Partial,
    len: usize,
    (budget, host): (&mut Budget, Origin),
) -> Result<(), RecordError> {
    let mut block = Block::new(len)?;
    let copied = block.space(len).copy_from(partial.block.bytes(), Site::RpcStaging);
    block.fill(copied);
    budget.take(host, block.capacity());
    budget.give_back(host, partial.block.capacity());
    partial.block = block;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::Memory;
    use dafs_wire::xdr::padded;
    use proptest::prelude::*;

    const MAX: usize = 100_000;

    fn stream_of(records: &[Vec<Vec<u8>>]) -> Vec<u8> {
        let mut stream = Vec::new();
        for fragments in records {
            for (i, fragment) in fragments.iter().enumerate() {
                let last = i + 1 == fragments.len();
                let mark = FragmentMark { len: fragment.len() as u32, last };
                stream.extend_from_slice(&mark.to_bytes());
                stream.extend_from_slice(fragment);
            }
        }
        stream
    }

    fn bytes_of(record: Record<'_>) -> Vec<u8> {
        match record {
            Record::Here(bytes) => bytes.to_vec(),
            Record::Block(block) => block.bytes().to_vec(),
        }
    }

    /// Feeds the pieces of the stream; with `direct`, reads into place where the reader can.
    fn read(pieces: &[&[u8]], direct: bool, budget: &mut Budget) -> Result<Vec<Vec<u8>>, String> {
        let mut reader = RecordReader::new(MAX, Origin::Unknown);
        let mut records = Vec::new();
        for &piece in pieces {
            let mut input = piece;
            if direct {
                reader.make_room(budget).unwrap();
                let len = reader.space().copy_from(input, Site::Inspect);
                reader.filled(len);
                input = &input[len..];
            }
            while let Some(record) =
                reader.next(&mut input, budget).map_err(|error| error.to_string())?
            {
                records.push(bytes_of(record));
            }
            assert!(input.is_empty());
        }
        reader.discard(budget);
        Ok(records)
    }

    fn cut<'b>(stream: &'b [u8], cuts: &[usize]) -> Vec<&'b [u8]> {
        let mut cuts: Vec<_> = cuts.iter().map(|cut| cut % (stream.len() + 1)).collect();
        cuts.sort_unstable();
        let mut pieces = Vec::new();
        let mut from = 0;
        for cut in cuts {
            pieces.push(&stream[from..cut]);
            from = cut;
        }
        pieces.push(&stream[from..]);
        pieces
    }

    fn fragment() -> impl Strategy<Value = Vec<u8>> {
        let len = prop_oneof![4 => 0usize..20, 2 => 0usize..2000, 1 => 15_000usize..30_000];
        (len, any::<u8>()).prop_map(|(len, seed)| {
            (0..len).map(|i| (i as u8).wrapping_mul(31).wrapping_add(seed)).collect()
        })
    }

    proptest! {
        #[test]
        fn a_stream_cut_anywhere_gives_the_same_records(
            records in prop::collection::vec(prop::collection::vec(fragment(), 1..4), 0..6),
            cuts in prop::collection::vec(any::<usize>(), 0..12),
            direct: bool,
            budget_max in prop_oneof![Just(0usize), Just(20_000), Just(usize::MAX / 2)],
        ) {
            let want: Vec<Vec<u8>> = records.iter().map(|fragments| fragments.concat()).collect();
            let stream = stream_of(&records);
            let mut budget = Budget::new(budget_max);
            let got = read(&cut(&stream, &cuts), direct, &mut budget);
            prop_assert_eq!(got, Ok(want));
            prop_assert_eq!(budget.held, 0);
        }

        #[test]
        fn garbage_is_an_error_or_needs_more(
            stream: Vec<u8>,
            cuts in prop::collection::vec(any::<usize>(), 0..4),
            direct: bool,
        ) {
            let whole = read(&[&stream], false, &mut Budget::new(MAX));
            let pieces = read(&cut(&stream, &cuts), direct, &mut Budget::new(MAX));
            prop_assert_eq!(whole, pieces);
        }
    }

    proptest! {
        #[test]
        fn placed_data_goes_to_its_sink_however_the_stream_is_cut(
            (before, len, behind) in (0usize..200, 1usize..40_000, 0usize..200),
            fragments in prop::collection::vec(any::<usize>(), 0..3),
            cuts in prop::collection::vec(any::<usize>(), 1..9),
            direct: bool,
            forsaken: Option<bool>,
        ) {
            let record: Vec<u8> = (0..before + padded(len) + behind).map(|i| (i / 3) as u8).collect();
            let parts = cut(&record, &fragments).iter().map(|part| part.to_vec()).collect();
            let other = vec![vec![9; 50]];
            let stream = stream_of(&[parts, other]);
            let sink = Memory::plain(len).unwrap().whole();
            let mut reader = RecordReader::new(MAX, Origin::Unknown);
            let mut budget = Budget::new(usize::MAX / 2);
            let (mut records, mut is_set, mut gone) = (Vec::new(), false, None);
            for piece in cut(&stream, &cuts) {
                let mut input = piece;
                if direct {
                    reader.make_room(&mut budget).unwrap();
                    let len = reader.space().copy_from(input, Site::Inspect);
                    reader.filled(len);
                    input = &input[len..];
                }
                while let Some(record) = reader.next(&mut input, &mut budget).unwrap() {
                    records.push((bytes_of(record), reader.take_placed()));
                }
                if records.is_empty() && reader.head().is_some() {
                    let placing = PlacedData::new(1, before, 0, len, sink.clone());
                    is_set |= reader.place_data(placing);
                }
                if is_set && forsaken.is_some() && gone.is_none() {
                    reader.forsake(1);
                    gone = Some(sink.view().to_vec(Site::Inspect));
                }
            }
            prop_assert_eq!(records.len(), 2);
            let (second, first) = (records.pop().unwrap(), records.pop().unwrap());
            prop_assert!(second.0 == [9; 50] && second.1.is_none());
            let data = &record[before..before + len];
            if is_set {
                prop_assert!(first.0 == [&record[..before], &record[before + padded(len)..]].concat());
                prop_assert!(first.1.unwrap().is_complete());
                let got = sink.view().to_vec(Site::Inspect);
                prop_assert!(got == gone.unwrap_or_else(|| data.to_vec()));
            } else {
                prop_assert!(first.0 == record && first.1.is_none());
            }
        }
    }

    #[test]
    fn a_host_with_half_records_leaves_room_for_others() {
        let (one, other, third) = (Origin::User(1), Origin::User(2), Origin::User(3));
        let mut budget = Budget::new(4 * block_bytes(MAX));
        let begin = |host, budget: &mut Budget| {
            let mut reader = RecordReader::new(MAX, host);
            let mark = FragmentMark { len: MAX as u32, last: true }.to_bytes();
            assert!(reader.next(&mut &mark[..], budget).unwrap().is_none());
            let has_room = reader.make_room(budget).unwrap();
            assert_eq!(reader.is_starved(budget), !has_room);
            (reader, has_room)
        };
        let mut half: Vec<_> = (0..50).map(|_| begin(one, &mut budget)).collect();
        assert_eq!(half.iter().filter(|(_, has_room)| *has_room).count(), 2);
        for host in [other, third] {
            let (mut honest, has_room) = begin(host, &mut budget);
            assert!(has_room, "{host:?}");
            let mut rest = &vec![7; MAX][..];
            assert!(honest.next(&mut rest, &mut budget).unwrap().is_some());
        }
        assert_eq!(budget.largest_holder(), Some(one));
        half.iter_mut().for_each(|(reader, _)| reader.discard(&mut budget));
        assert!(budget.held == 0 && budget.by_host.is_empty());
    }

    #[test]
    fn every_single_cut_is_harmless() {
        let records = vec![vec![vec![1; 5]], vec![vec![2; 3], vec![], vec![3; 9]], vec![vec![]]];
        let want: Vec<Vec<u8>> = records.iter().map(|fragments| fragments.concat()).collect();
        let stream = stream_of(&records);
        for at in 0..=stream.len() {
            for direct in [false, true] {
                let (a, b) = stream.split_at(at);
                let mut budget = Budget::new(MAX);
                assert_eq!(read(&[a, b], direct, &mut budget).as_ref(), Ok(&want));
            }
        }
        let bytes: Vec<&[u8]> = stream.chunks(1).collect();
        assert_eq!(read(&bytes, true, &mut Budget::new(0)), Ok(want));
    }

    #[test]
    fn a_record_in_one_piece_is_not_copied() {
        let stream = stream_of(&[vec![vec![7; 40]], vec![vec![8; 50]]]);
        let mut reader = RecordReader::new(MAX, Origin::Unknown);
        let mut budget = Budget::new(MAX);
        let mut input = &stream[..];
        for at in [4, 48] {
            let Ok(Some(Record::Here(record))) = reader.next(&mut input, &mut budget) else {
                panic!("not found in place");
            };
            assert_eq!(record.as_ptr(), stream[at..].as_ptr());
        }
        assert!(reader.next(&mut input, &mut budget).unwrap().is_none());
        assert!(!reader.is_inside());
    }

    #[test]
    fn too_long_and_too_many_are_errors_before_they_cost() {
        let mut budget = Budget::new(MAX);
        let mut feed = |stream: &[u8]| {
            let mut reader = RecordReader::new(MAX, Origin::Unknown);
            let error = reader.next(&mut &stream[..], &mut budget).map(|_| ()).unwrap_err();
            reader.discard(&mut budget);
            error
        };
        let mark = |len, last| FragmentMark { len, last }.to_bytes();
        assert!(matches!(feed(&mark(MAX as u32 + 1, true)), RecordError::TooLong { .. }));
        assert!(matches!(feed(&mark(0x7fff_ffff, false)), RecordError::TooLong { .. }));
        let halves = [&mark(MAX as u32, false)[..], &[0; MAX], &mark(1, true)].concat();
        assert!(matches!(feed(&halves), RecordError::TooLong { .. }));
        assert!(matches!(feed(b"MPA ID Req Frame\x10\x02"), RecordError::Iwarp));
        let endless = mark(0, false).repeat(FRAGMENTS_PER_RECORD_MAX as usize + 1);
        assert!(matches!(feed(&endless), RecordError::TooManyFragments));
    }

    #[test]
    fn without_budget_memory_follows_what_arrives() {
        let mut budget = Budget::new(0);
        let mut reader = RecordReader::new(MAX, Origin::Unknown);
        let mut stream = FragmentMark::whole(MAX).unwrap().to_bytes().to_vec();
        stream.extend_from_slice(&[1; 100]);
        assert!(reader.next(&mut &stream[..], &mut budget).unwrap().is_none());
        assert!(budget.is_spent() && budget.held < MAX);
        assert!(!reader.make_room(&mut budget).unwrap());
        budget.max = 1 << 20;
        assert!(reader.make_room(&mut budget).unwrap());
        assert_eq!(reader.space().len(), MAX - 100);
        // A small record may always begin.
        budget.max = 0;
        let mut other = RecordReader::new(MAX, Origin::Unknown);
        assert!(other.next(&mut &[0x80, 0, 1, 0, 1][..], &mut budget).unwrap().is_none());
        assert_eq!(other.space().len(), 255);
    }
}
