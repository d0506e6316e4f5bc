//! Chains of common steps with files and names, for callers that do not build requests themselves.
//!
//! Invariants
//! * A step works on an open file, on an object whose handle is known, or on the result of the step
//!   before it; never on a name that the caller gave alone.
//! * Writes are stable, so a restart of the server loses none of them unnoticed.

use crate::attributes::{AccessMask, Attributes, FileHandle, SetAttributes, Stability};
use crate::client::Client;
use crate::convert::{self, OwnerText};
use crate::core::ReplyMessage;
use crate::error::{Error, Result};
use crate::file::File;
use crate::lock::LockRange;
use crate::names::component;
use crate::path::COMPONENTS_PER_LOOKUP;
use crate::{Chain, Takes};
use dafs_wire::dafs as wire;
use dafs_wire::dafs::{
    HintWord, LockType, READ_INLINE_REPLY_DATA_AT, Reply, Request, StateId, WRITE_INLINE_DATA_AT,
};

/// A directory that a step works in.
#[derive(Debug, Clone, Copy)]
pub enum StepIn {
    /// The directory with this handle.
    Directory(FileHandle),
    /// The result of the step before it.
    Found,
}

/// A file that a step works on.
#[derive(Debug, Clone, Copy)]
pub enum StepOn<'a> {
    /// An open file.
    File(&'a File),
    /// The result of the step before it, without opening it.
    Found,
}

/// One request of a chain.
#[derive(Debug, Clone, Copy)]
pub enum Step<'a> {
    /// Looks up up to 64 names, one below the other, from a directory. Symbolic links are not
    /// followed.
    Lookup {
        /// The first directory.
        from: StepIn,
        /// The names.
        names: &'a [&'a [u8]],
    },
    /// The attributes of the current object.
    Attributes,
    /// The subset of these rights that the caller has on the current object.
    Access(AccessMask),
    /// Reads, no more than a message holds.
    Read {
        /// The file to read.
        on: StepOn<'a>,
        /// The offset.
        offset: u64,
        /// The most bytes.
        bytes: usize,
    },
    /// Writes, no more than a message holds; stable when it is answered.
    Write {
        /// The file to write.
        on: StepOn<'a>,
        /// The offset.
        offset: u64,
        /// The data.
        data: &'a [u8],
        /// The kind of stable; not `Unstable`.
        stability: Stability,
    },
    /// Locks, without waiting for conflicting locks.
    Lock {
        /// The file.
        file: &'a File,
        /// The range.
        range: LockRange,
    },
    /// Unlocks a range.
    Unlock {
        /// The file.
        file: &'a File,
        /// First byte.
        offset: u64,
        /// Bytes; `u64::MAX` for all from there on.
        length: u64,
    },
    /// Makes a directory, which is the current object then.
    MakeDirectory {
        /// The directory above.
        within: StepIn,
        /// Its name.
        name: &'a [u8],
        /// Its permission bits.
        mode: u32,
    },
    /// Removes a name, or an empty directory.
    Remove {
        /// The directory that holds the name.
        within: StepIn,
        /// The name.
        name: &'a [u8],
    },
}

/// The result of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stepped {
    /// The rights that the caller has.
    Access(AccessMask),
    /// The attributes.
    Attributes(Box<Attributes>),
    /// The step is done, and has no result.
    Done,
    /// The handle of the object found or made.
    Found(FileHandle),
    /// The data read; fewer bytes than asked for only at the end of the file.
    Read(Vec<u8>),
    /// The bytes written, which may be fewer than given.
    Written(usize),
}

impl Client {
    /// The most bytes that one step reads.
    pub fn step_read_bytes_max(&self) -> usize {
        let message = self.session().response_bytes as usize;
        message.saturating_sub(READ_INLINE_REPLY_DATA_AT).min(self.read_bytes_max())
    }

    /// The most bytes that one step writes.
    pub fn step_write_bytes_max(&self) -> usize {
        let message = self.session().request_bytes as usize;
        message.saturating_sub(WRITE_INLINE_DATA_AT).min(self.write_bytes_max())
    }

    /// Carries out steps in their order in one round trip, each only if the one before it has
    /// succeeded: one result for each. Behind the first failure, or the first write of fewer bytes
    /// than given, they are [`Error::ChainBroken`]. A busy server may answer one with DELAY: it was
    /// not done, and can be retried.
    ///
    /// # Errors
    /// Nothing was sent. [`Error::Argument`]: a step is invalid, or the steps do not form a chain
    /// (DAFS 8): behind one that reads content or attributes none may write, make or remove; locks
    /// may come anywhere. [`Error::ChainTooLong`]: the session has not a credit for each step at
    /// the moment.
    pub fn run_steps(&self, steps: &[Step<'_>]) -> Result<Vec<Result<Stepped>>> {
        if steps.len() > usize::from(self.stats().credits.max(1)) {
            let credits = self.stats().credits.into();
            return Err(Error::ChainTooLong { members: steps.len(), credits });
        }
        let paths = steps.iter().map(names_of).collect::<Result<Vec<_>>>()?;
        let modes: Vec<SetAttributes> = steps.iter().map(mode_of).collect();
        let texts: Vec<OwnerText> = modes.iter().map(OwnerText::new).collect();
        let mut chain = self.chain();
        for (place, step) in steps.iter().enumerate() {
            let attributes = texts[place].attributes(&modes[place]);
            chain = self.with_step(chain, step, paths[place], attributes)?;
        }
        let results = chain.run()?;
        // The current object of the chain.
        let mut object = FileHandle::ZERO;
        let mut taken = |(step, reply): (&Step<'_>, Result<ReplyMessage>)| {
            object = used(step).unwrap_or(object);
            let result = self.shared().taken(&reply?, |found| stepped(step, found, &object));
            if let Ok(Stepped::Found(handle)) = &result {
                object = *handle;
            }
            result
        };
        Ok(steps.iter().zip(results).map(&mut taken).collect())
    }

    fn with_step<'a>(
        &self,
        chain: Chain<'a>,
        step: &Step<'a>,
        names: &'a [&'a [u8]],
        attributes: wire::Attributes<'a>,
    ) -> Result<Chain<'a>> {
        let long = Err(Error::Argument("a step of a chain moves more than a message holds"));
        let (request, takes) = match *step {
            Step::Lookup { from, .. } => {
                let (dir, takes) = self.begun_in(from);
                (Request::Lookup(wire::Lookup { dir, path: wire::Path::new(names) }), takes)
            }
            Step::Attributes => {
                let get = wire::GetAttrInline { fh: self.root(), attributes: convert::WANTED };
                (Request::GetAttrInline(get), Takes::Handle)
            }
            Step::Access(mask) => {
                (Request::Access(wire::Access { fh: self.root(), mask }), Takes::Handle)
            }
            Step::Read { on, offset, bytes } => {
                if bytes > self.step_read_bytes_max() {
                    return long;
                }
                let (fh, state_id, takes) = self.begun_on(on)?;
                let (bytes, cache_hint) = (u32::try_from(bytes), HintWord::NONE);
                let byte_count = bytes.unwrap_or(u32::MAX);
                let read = wire::ReadInline { fh, state_id, offset, byte_count, cache_hint };
                (Request::ReadInline(read), takes)
            }
            Step::Write { on, offset, data, stability } => {
                if data.len() > self.step_write_bytes_max() {
                    return long;
                }
                if stability == Stability::Unstable {
                    return Err(Error::Argument("what a chain writes must be stable"));
                }
                let (fh, state_id, takes) = self.begun_on(on)?;
                let (stable, padded_to, cache_hint) = (stability, None, HintWord::NONE);
                let write =
                    wire::WriteInline { fh, state_id, offset, stable, padded_to, cache_hint, data };
                (Request::WriteInline(write), takes)
            }
            Step::Lock { file, range } => {
                file.check_of(self)?;
                (file.lock_request(&range), Takes::Nothing)
            }
            Step::Unlock { file, offset, length } => {
                file.check_of(self)?;
                let (fh, state_id) = (*file.handle(), file.state_id());
                let lock_type = LockType::Write;
                let unlock = wire::LockU { fh, lock_type, state_id, offset, length };
                (Request::LockU(unlock), Takes::Nothing)
            }
            Step::MakeDirectory { within, name, .. } => {
                let (dir, takes) = self.begun_in(within);
                let object = wire::NewObject::Plain(wire::ObjectType::Directory);
                let name = component(name)?;
                (Request::Create(wire::Create { dir, name, object, attributes }), takes)
            }
            Step::Remove { within, name } => {
                let (dir, takes) = self.begun_in(within);
                let (name, remove_mode) = (component(name)?, wire::RemoveMode::Unchecked);
                (Request::Remove(wire::Remove { dir, name, remove_mode }), takes)
            }
        };
        Ok(chain.then(request, takes))
    }

    fn begun_in(&self, dir: StepIn) -> (FileHandle, Takes) {
        match dir {
            StepIn::Directory(handle) => (handle, Takes::Nothing),
            StepIn::Found => (self.root(), Takes::Handle),
        }
    }

    fn begun_on(&self, file: StepOn<'_>) -> Result<(FileHandle, StateId, Takes)> {
        Ok(match file {
            StepOn::File(file) => {
                file.check_of(self)?;
                (*file.handle(), file.state_id(), Takes::Nothing)
            }
            StepOn::Found => (self.root(), StateId::ZERO, Takes::Handle),
        })
    }
}

fn names_of<'a>(step: &Step<'a>) -> Result<&'a [&'a [u8]]> {
    let Step::Lookup { names, .. } = *step else { return Ok(&[]) };
    if names.is_empty() || names.len() > COMPONENTS_PER_LOOKUP {
        return Err(Error::Argument("a step looks up from 1 to 64 names"));
    }
    for name in names {
        component(name)?;
    }
    Ok(names)
}

fn mode_of(step: &Step<'_>) -> SetAttributes {
    match step {
        Step::MakeDirectory { mode, .. } => SetAttributes::mode(mode & 0o7777),
        _ => SetAttributes::default(),
    }
}

/// The object that a step names itself.
fn used(step: &Step<'_>) -> Option<FileHandle> {
    match step {
        Step::Read { on: StepOn::File(file), .. }
        | Step::Write { on: StepOn::File(file), .. }
        | Step::Lock { file, .. }
        | Step::Unlock { file, .. } => Some(*file.handle()),
        Step::Remove { within: StepIn::Directory(handle), .. } => Some(*handle),
        _ => None,
    }
}

/// The result of a step, from its answer; `None` if the answer does not hold it.
fn stepped(step: &Step<'_>, found: &Reply<'_>, object: &FileHandle) -> Option<Stepped> {
    Some(match (step, found) {
        (Step::Lookup { .. }, Reply::Lookup(found)) => Stepped::Found(found.fh),
        (Step::MakeDirectory { .. }, Reply::Create(found)) => Stepped::Found(found.fh),
        (Step::Attributes, Reply::GetAttrInline(found)) => {
            Stepped::Attributes(Box::new(convert::attributes(&found.attributes, object)))
        }
        (Step::Access(wanted), Reply::Access(found)) => Stepped::Access(found.access & *wanted),
        (Step::Read { bytes, .. }, Reply::ReadInline(found)) if found.data.len() <= *bytes => {
            Stepped::Read(found.data.to_vec())
        }
        (Step::Write { data, .. }, Reply::WriteInline(found))
            if found.count as usize <= data.len() =>
        {
            Stepped::Written(found.count as usize)
        }
        (Step::Lock { .. }, Reply::Lock)
        | (Step::Unlock { .. }, Reply::LockU)
        | (Step::Remove { .. }, Reply::Remove(_)) => Stepped::Done,
        _ => return None,
    })
}
