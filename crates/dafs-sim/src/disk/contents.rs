//! The contents of the files of a disk, with every version that a power failure may leave.
//!
//! Invariants
//! * The first size and the first version of a page are stable, the last ones are current.
//! * An absent page reads as zeros.

use dafs_dat::sim::SimRng;
use dafs_mem::VolatileSlice;
use dafs_store::{FileId, MemoryContent, OpenFile, Result, Wait};
use std::collections::BTreeMap;

/// Bytes of a page. A power failure keeps or loses each page independently.
const PAGE_BYTES: u64 = 4096;

/// Bytes that a device writes atomically. A page can be torn between sectors.
const SECTOR_BYTES: usize = 512;

/// Chance in a million that a page which is neither all old nor all new is torn.
const TORN_PPM: u32 = 250_000;

/// The bytes of a page; none: zeros.
type Page = Option<Box<[u8]>>;

#[derive(Debug, Default)]
pub(super) struct Contents {
    files: BTreeMap<FileId, FileContent>,
}

#[derive(Debug)]
struct FileContent {
    sizes: Vec<u64>,
    pages: BTreeMap<u64, Vec<Page>>,
}

impl Default for FileContent {
    fn default() -> Self {
        Self { sizes: vec![0], pages: BTreeMap::new() }
    }
}

impl Contents {
    /// Takes over the current content of `file`, which may have changed from `offset` to `end`, or
    /// up to an earlier size.
    pub(super) fn changed(
        &mut self,
        id: &FileId,
        file: &dyn OpenFile,
        offset: u64,
        end: u64,
    ) -> Result<()> {
        let size = file.attr()?.size;
        let content = self.files.entry(*id).or_default();
        let before = content.sizes.last().copied().unwrap_or_default();
        if size != before {
            content.sizes.push(size);
        }
        // The range between the two sizes has changed as well.
        let (offset, end) = if size == before {
            (offset, end.min(size))
        } else {
            (offset.min(size.min(before)), end.max(size).max(before).min(size.max(before)))
        };
        for page in offset / PAGE_BYTES..end.div_ceil(PAGE_BYTES) {
            let mut bytes = vec![0; PAGE_BYTES as usize];
            let view = VolatileSlice::from_mut(&mut bytes);
            file.read_at(&[view], page * PAGE_BYTES, Wait::Allowed)?;
            let zero = bytes.iter().all(|byte| *byte == 0);
            let now: Page = (!zero).then(|| bytes.into_boxed_slice());
            let versions = content.pages.entry(page).or_insert_with(|| vec![None]);
            if versions.last() != Some(&now) {
                versions.push(now);
            }
        }
        Ok(())
    }

    /// Makes the current content of a range stable; length 0 means to the end.
    pub(super) fn settle(&mut self, id: &FileId, offset: u64, len: u64) {
        let Some(content) = self.files.get_mut(id) else { return };
        content.sizes.drain(..content.sizes.len() - 1);
        let last = if len == 0 { u64::MAX } else { (offset + len).div_ceil(PAGE_BYTES) };
        for (_, versions) in content.pages.range_mut(offset / PAGE_BYTES..last) {
            versions.drain(..versions.len() - 1);
        }
    }

    /// Makes the current size stable.
    pub(super) fn settle_size(&mut self, id: &FileId) {
        if let Some(content) = self.files.get_mut(id) {
            content.sizes.drain(..content.sizes.len() - 1);
        }
    }

    #[cfg(test)]
    pub(super) fn settle_all(&mut self) {
        let ids: Vec<FileId> = self.files.keys().copied().collect();
        ids.iter().for_each(|id| self.settle(id, 0, 0));
    }

    /// Forgets files that are not `needed`.
    pub(super) fn keep(&mut self, needed: impl Fn(&FileId) -> bool) {
        self.files.retain(|id, _| needed(id));
    }

    /// Applies a power failure: a random part of the unstable versions is kept. Files that are not
    /// `there` any more are gone.
    pub(super) fn cut_power(&mut self, rng: &mut SimRng, there: impl Fn(&FileId) -> bool) {
        self.keep(there);
        for content in self.files.values_mut() {
            let size = choose(rng, &content.sizes).copied().unwrap_or_default();
            content.sizes = vec![size];
            content.pages.retain(|number, versions| {
                let mut page = choose_page(rng, versions);
                cut_off(&mut page, size.saturating_sub(number * PAGE_BYTES));
                let some = page.is_some();
                *versions = vec![page];
                some
            });
        }
    }

    /// The current content of a file.
    pub(super) fn content(&self, id: &FileId) -> MemoryContent {
        let Some(content) = self.files.get(id) else { return (0, Vec::new()) };
        let size = content.sizes.last().copied().unwrap_or_default();
        let pages = content.pages.iter().filter_map(|(number, versions)| {
            let offset = number * PAGE_BYTES;
            let bytes = versions.last()?.as_ref()?;
            let len = usize::try_from(size.checked_sub(offset)?).unwrap_or(usize::MAX);
            Some((offset, bytes[..len.min(bytes.len())].to_vec()))
        });
        (size, pages.collect())
    }
}

fn choose<'a, T>(rng: &mut SimRng, all: &'a [T]) -> Option<&'a T> {
    all.get(rng.below(all.len() as u64) as usize)
}

fn choose_page(rng: &mut SimRng, versions: &[Page]) -> Page {
    if versions.len() < 2 {
        return versions.first().cloned().flatten();
    }
    let chosen = rng.below(versions.len() as u64) as usize;
    let mut page = versions[chosen].clone();
    if let Some(next) = versions.get(chosen + 1).filter(|_| rng.chance(TORN_PPM)) {
        let zeros = vec![0; PAGE_BYTES as usize].into_boxed_slice();
        let mut bytes = page.unwrap_or_else(|| zeros.clone());
        let next = next.clone().unwrap_or(zeros);
        for (sector, newer) in bytes.chunks_mut(SECTOR_BYTES).zip(next.chunks(SECTOR_BYTES)) {
            if rng.chance(500_000) {
                sector.copy_from_slice(newer);
            }
        }
        page = Some(bytes);
    }
    page
}

/// Zeros the bytes of a page from `size` on.
fn cut_off(page: &mut Page, size: u64) {
    let size = usize::try_from(size).unwrap_or(usize::MAX);
    if size == 0 {
        *page = None;
    }
    if let Some(tail) = page.as_mut().and_then(|bytes| bytes.get_mut(size..)) {
        tail.fill(0);
    }
}
