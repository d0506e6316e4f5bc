//! The final audit: a fresh session reads everything and compares it with the models.

use crate::actor::Actor;
use crate::actor::names::{link_text, name};
use crate::limits::{AUDITOR_HOST, LARGE_SLOT_BYTES, SERVER_HOST, SHARED_FILES};
use crate::model::content::Observation;
use crate::model::names::{Entry, FileNumber, Place, Tree};
use crate::world::World;
use dafs_client::core::{
    Completed, CredentialIds, Done, Piece, ReadCall, RegisteredMemory, ReplyMessage, SessionConfig,
    SessionCore, Stage,
};
use dafs_dat::sim::SimAdapter;
use dafs_dat::{Adapter, Address, Event};
use dafs_mem::{Buffer, Site};
use dafs_wire::dafs::{
    AttrMask, FileHandle, GetAttrInline, HintWord, Lookup, ObjectType, Path, ReadDirInline,
    ReadLinkInline, Reply, Request, StateId, Status, Verifier,
};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Steps that one request of a calm world may take.
const STEPS_MAX: usize = 10_000;

struct Auditor {
    adapter: SimAdapter,
    session: SessionCore,
    events: Vec<Event>,
}

/// The content of a directory.
type Names = BTreeMap<u8, (Option<ObjectType>, Option<FileHandle>)>;

/// Compares everything.
pub(crate) fn run(world: &mut World) -> Result<(), String> {
    world.common.note(|| "audit".to_owned());
    let (mut auditor, memory) = Auditor::connect(world, None)?;
    for file in 0..SHARED_FILES {
        let number = format!("s{file}").into_bytes();
        let root = auditor.session.info().root;
        let handle = auditor
            .lookup(world, root, &[b"shared".to_vec(), number])?
            .map_err(|status| format!("shared file {file}: {status}"))?;
        auditor.file(world, &memory, file, handle, None)?;
    }
    drop(memory);
    auditor.leave(world)?;
    for number in 0..world.actors.len() {
        // Only the owner may read everything.
        let credential = world.actors[number].credential();
        let (mut auditor, memory) = Auditor::connect(world, credential)?;
        auditor.home(world, &memory, number)?;
        drop(memory);
        auditor.leave(world)?;
    }
    Ok(())
}

impl Auditor {
    fn connect(
        world: &mut World,
        credential: Option<CredentialIds>,
    ) -> Result<(Self, Arc<RegisteredMemory>), String> {
        let mut adapter = world.common.network.adapter(AUDITOR_HOST);
        let mut config = SessionConfig::new(b"auditor".to_vec(), Verifier([1; 8]));
        config.credential = credential;
        let address = Address::Sim(SERVER_HOST);
        let session = SessionCore::connect(&mut adapter, config, &address, world.common.now)
            .map_err(|error| error.to_string())?;
        let mut auditor = Self { adapter, session, events: Vec::new() };
        auditor.until(world, |session| session.stage() == Stage::Ready)?;
        let buffer = Arc::new(Buffer::zeroed(LARGE_SLOT_BYTES).map_err(|e| e.to_string())?);
        let memory = auditor.session.register(&mut auditor.adapter, buffer);
        Ok((auditor, memory.map_err(|error| error.to_string())?))
    }

    /// Runs the world until `reached`.
    fn until(
        &mut self,
        world: &mut World,
        reached: impl Fn(&SessionCore) -> bool,
    ) -> Result<(), String> {
        for _ in 0..STEPS_MAX {
            self.turn(world);
            if reached(&self.session) {
                return Ok(());
            }
            if let Some(failure) = self.session.failure() {
                return Err(format!("the last session failed: {failure}"));
            }
            world.step()?;
        }
        Err("the last session got no answer".to_owned())
    }

    fn turn(&mut self, world: &World) {
        let now = world.common.now;
        self.adapter.poll(now, &mut self.events);
        for event in std::mem::take(&mut self.events) {
            self.session.handle(&mut self.adapter, event, now);
        }
        self.session.on_time(&mut self.adapter, now);
        self.adapter.flush();
    }

    fn wait(&mut self, world: &mut World) -> Result<Done, String> {
        for _ in 0..STEPS_MAX {
            self.turn(world);
            if let Some(Completed { done, .. }) = self.session.take_completed() {
                return Ok(done);
            }
            world.step()?;
        }
        Err("the last session got no answer".to_owned())
    }

    fn ask(&mut self, world: &mut World, request: &Request<'_>) -> Result<ReplyMessage, String> {
        let now = world.common.now;
        self.session
            .submit(&mut self.adapter, now, 0, request, None, None)
            .map_err(|error| error.to_string())?;
        match self.wait(world)? {
            Done::Answered(message) => Ok(message),
            other => Err(format!("{:?} ended with {other:?}", request.procedure())),
        }
    }

    fn lookup(
        &mut self,
        world: &mut World,
        dir: FileHandle,
        path: &[Vec<u8>],
    ) -> Result<Result<FileHandle, Status>, String> {
        let path: Vec<&[u8]> = path.iter().map(Vec::as_slice).collect();
        let request = Request::Lookup(Lookup { dir, path: Path::new(&path) });
        let message = self.ask(world, &request)?;
        match message.decode().map_err(|error| error.to_string())?.into_result() {
            Ok(Reply::Lookup(reply)) => Ok(Ok(reply.fh)),
            Ok(other) => Err(format!("LOOKUP was answered with {other:?}")),
            Err(status) => Ok(Err(status)),
        }
    }

    fn list(&mut self, world: &mut World, fh: FileHandle) -> Result<Names, String> {
        let mut names = Names::new();
        let (mut cookie, mut cookieverf) = (0, Verifier::ZERO);
        loop {
            let attributes = AttrMask::OBJECT_TYPE | AttrMask::FILEHANDLE;
            let request = Request::ReadDirInline(ReadDirInline {
                fh,
                cookie,
                cookieverf,
                dircount: 1000,
                maxcount: 1000,
                attributes,
            });
            let message = self.ask(world, &request)?;
            let outcome = message.decode().map_err(|error| error.to_string())?;
            let Ok(Reply::ReadDirInline(reply)) = outcome.into_result() else {
                return Err(format!("READDIR was answered with {:?}", message.status()));
            };
            for entry in reply.entries.iter() {
                let name = crate::actor::names::parse_name(entry.name);
                let name = name.ok_or_else(|| format!("a name {:?} was listed", entry.name))?;
                let told = (entry.attributes.object_type, entry.attributes.filehandle);
                if names.insert(name, told).is_some() {
                    return Err(format!("name {name} was listed twice"));
                }
                cookie = entry.cookie;
            }
            if reply.eof {
                return Ok(names);
            }
            cookieverf = reply.cookieverf;
        }
    }

    /// Compares the tree of one client.
    fn home(
        &mut self,
        world: &mut World,
        memory: &Arc<RegisteredMemory>,
        number: usize,
    ) -> Result<(), String> {
        let root = self.session.info().root;
        let home = self
            .lookup(world, root, &[Actor::home_name(number)])?
            .map_err(|status| format!("the directory of c{number}: {status}"))?;
        let top = self.list(world, home)?;
        let mut inner = BTreeMap::new();
        for (&dir, &(kind, handle)) in &top {
            if kind == Some(ObjectType::Directory) {
                let handle = handle.ok_or("a directory was listed without its handle")?;
                inner.insert(dir, self.list(world, handle)?);
            }
        }
        let fits = |tree: &Tree| {
            let same = |dir: Option<u8>, names: &Names| {
                let expected = tree.list(dir);
                expected.len() == names.len()
                    && expected.iter().all(|(name, entry)| {
                        names.get(name).is_some_and(|told| is_kind(entry, told.0))
                    })
            };
            same(None, &top)
                && tree
                    .directories()
                    .iter()
                    .all(|dir| inner.get(dir).is_some_and(|names| same(Some(*dir), names)))
        };
        let tree = world.actors[number].home().candidates().find(|tree| fits(tree)).cloned();
        let tree = tree.ok_or_else(|| {
            let expected = world.actors[number].home();
            format!("c{number} has {top:?} and {inner:?}, not {expected:?}")
        })?;
        for place in tree.places().cloned().collect::<Vec<_>>() {
            let names = place.dir.and_then(|dir| inner.get(&dir)).unwrap_or(&top);
            let handle = names.get(&place.name).and_then(|told| told.1);
            let handle = handle.ok_or("an entry was listed without its handle")?;
            match tree.get(&place) {
                Some(Entry::File(file)) => {
                    self.file(world, memory, *file, handle, Some(tree.links(*file)))
                        .map_err(|text| format!("c{number} {place:?}: {text}"))?;
                }
                Some(Entry::Symlink(link)) => self.symlink(world, *link, handle, &place)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn symlink(
        &mut self,
        world: &mut World,
        number: u64,
        fh: FileHandle,
        place: &Place,
    ) -> Result<(), String> {
        let message = self.ask(world, &Request::ReadLinkInline(ReadLinkInline { fh }))?;
        let outcome = message.decode().map_err(|error| error.to_string())?;
        match outcome.into_result() {
            Ok(Reply::ReadLinkInline(reply)) if reply.text == link_text(number) => Ok(()),
            other => Err(format!("symlink {place:?} ({:?}): {other:?}", name(place.name))),
        }
    }

    /// Compares one file: handle, attributes, every byte.
    fn file(
        &mut self,
        world: &mut World,
        memory: &Arc<RegisteredMemory>,
        file: FileNumber,
        handle: FileHandle,
        links: Option<usize>,
    ) -> Result<(), String> {
        world.common.check_handle(file, handle)?;
        let begin = world.common.tick();
        let attributes = crate::actor::STAT;
        let request = Request::GetAttrInline(GetAttrInline { fh: handle, attributes });
        let message = self.ask(world, &request)?;
        let outcome = message.decode().map_err(|error| error.to_string())?;
        let Ok(Reply::GetAttrInline(reply)) = outcome.into_result() else {
            return Err(format!("GETATTR was answered with {:?}", message.status()));
        };
        let told = reply.attributes;
        let record = &world.common.files[file];
        let size = told.object_size.ok_or("no size was told")?;
        record.model.check_size(begin, size)?;
        if !told.mode.is_some_and(|mode| record.modes.contains(&mode)) {
            return Err(format!("mode {:?} where only {:?} can be", told.mode, record.modes));
        }
        if links.is_some_and(|links| told.num_links.map(|links| links as usize) != Some(links)) {
            return Err(format!("{:?} links where {links:?} must be", told.num_links));
        }
        self.content(world, memory, file, handle)
    }

    fn content(
        &mut self,
        world: &mut World,
        memory: &Arc<RegisteredMemory>,
        file: FileNumber,
        handle: FileHandle,
    ) -> Result<(), String> {
        let mut offset = 0;
        loop {
            let into = Piece::new(memory, 0, LARGE_SLOT_BYTES as u32).ok_or("a short buffer")?;
            into.view().fill(0xdb);
            let begin = world.common.tick();
            let call =
                ReadCall { handle, state_id: StateId::ZERO, offset, into, hint: HintWord::NONE };
            let now = world.common.now;
            self.session
                .submit_read(&mut self.adapter, now, 0, call, None)
                .map_err(|error| error.to_string())?;
            let (bytes, eof) = match self.wait(world)? {
                Done::Read { bytes, end_of_file } => (bytes, end_of_file),
                other => return Err(format!("the read of file {file} ended with {other:?}")),
            };
            let data = memory
                .slice(0, bytes as usize)
                .ok_or("more was read than there is memory for")?
                .to_vec(Site::Inspect);
            world.common.digest.bytes(&data);
            let end = world.common.tick();
            let asked = LARGE_SLOT_BYTES as u64;
            let seen = Observation { begin, end, offset, asked, bytes: &data, eof };
            world.common.files[file]
                .model
                .check_read(seen)
                .map_err(|text| format!("file {file}: {text}"))?;
            offset += u64::from(bytes);
            if eof {
                return Ok(());
            }
        }
    }

    fn leave(mut self, world: &mut World) -> Result<(), String> {
        let now = world.common.now;
        self.session.close(&mut self.adapter, now);
        for _ in 0..STEPS_MAX {
            self.turn(world);
            if self.session.stage() == Stage::Over {
                return Ok(());
            }
            world.step()?;
        }
        Err("the last session does not end".to_owned())
    }
}

fn is_kind(entry: &Entry, told: Option<ObjectType>) -> bool {
    let kind = match entry {
        Entry::File(_) => ObjectType::Regular,
        Entry::Directory => ObjectType::Directory,
        Entry::Symlink(_) => ObjectType::Symlink,
    };
    told == Some(kind)
}
