//! The final audit: compares the content of the disk with the models.

use super::DIRECTORIES;
use super::client::{Client, content};
use super::model::names::Place;
use super::model::slots::{SLOT_BYTES, SLOTS, Slots};
use super::world::World;
use dafs_mem::VolatileSlice;
use dafs_store::{Cred, DirEntry, FileId, Kind, MemoryStore, OpenMode, Store, Wait};
use std::collections::BTreeMap;

/// The objects at a client's places.
type Places = BTreeMap<Place, (FileId, bool)>;

/// Compares everything.
pub(super) fn run(world: &mut World) -> Result<(), String> {
    let disk = world.disk.clone();
    let store = disk.memory();
    let mut places: Vec<Places> = world.clients.iter().map(|_| Places::new()).collect();
    for dir in 0..DIRECTORIES {
        let id = find(store, format!("d{dir}").as_bytes())?;
        for (name, file, kind) in list(store, &id)? {
            let parsed = Client::parse_name(&name);
            let (client, name) = parsed.ok_or_else(|| format!("a name {name:?} is there"))?;
            let places = places.get_mut(client).ok_or_else(|| format!("no client {client}"))?;
            let is_directory = kind == Kind::Directory;
            places.insert(Place { dir, name }, (file, is_directory));
        }
    }
    for (client, places) in world.clients.iter().zip(&places) {
        let number = client.number;
        client.names.check(places).map_err(|text| format!("c{number}: {text}"))?;
        check_modes(store, client).map_err(|text| format!("c{number}: {text}"))?;
        let data = read(store, &find(store, &Client::data_name(number))?)?;
        for slot in 0..SLOTS {
            let offset = Slots::offset(slot) as usize;
            let bytes = data.get(offset..).unwrap_or(&[]);
            let mut bytes = bytes[..bytes.len().min(SLOT_BYTES)].to_vec();
            bytes.resize(SLOT_BYTES, 0);
            let checked = client.slots.check(slot, &bytes, world.shared.cuts);
            checked.map_err(|text| format!("c{number}: {text}"))?;
        }
    }
    for (number, vault) in world.shared.vaults.iter().enumerate() {
        let bytes = read(store, &find(store, &Client::vault_name(number))?)?;
        vault.check(content(&bytes)?)?;
    }
    let tick = world.shared.common.tick();
    for (number, board) in world.shared.boards.iter_mut().enumerate() {
        let bytes = read(store, &find(store, &Client::board_name(number))?)?;
        let checked = board.check(content(&bytes)?, tick);
        checked.map_err(|text| format!("board {number}: {text}"))?;
    }
    let gate = read(store, &find(store, Client::GATE)?)?;
    world.shared.gate.check(&gate).map_err(|text| format!("gate: {text}"))?;
    let log = read(store, &find(store, b"log")?)?;
    world.shared.log.check(&log).map(drop)
}

fn check_modes(store: &MemoryStore, client: &Client) -> Result<(), String> {
    for (place, entry) in client.names.certain() {
        let (Some(modes), Some(handle)) =
            (client.names.modes.get(&entry.object), client.names.handles.get(&entry.object))
        else {
            continue;
        };
        let id = FileId(handle.file);
        let mode = store.getattr(&id).map_err(|error| format!("{place:?}: {error}"))?.mode;
        if !modes.contains(&mode) {
            return Err(format!("{place:?} has mode {mode:o}, not one of {modes:?}"));
        }
    }
    Ok(())
}

fn find(store: &MemoryStore, name: &[u8]) -> Result<FileId, String> {
    let found = store.lookup(&Cred::new(0, 0), &store.root(), name);
    found.map(|(id, _)| id).map_err(|error| format!("{}: {error}", name.escape_ascii()))
}

fn list(store: &MemoryStore, dir: &FileId) -> Result<Vec<(Vec<u8>, FileId, Kind)>, String> {
    let mut all = Vec::new();
    let mut sink = |entry: DirEntry<'_>| {
        all.push(entry.name.to_vec());
        true
    };
    let root = Cred::new(0, 0);
    store.readdir(&root, dir, 0, false, &mut sink).map_err(|error| error.to_string())?;
    let look = |name: Vec<u8>| match store.lookup(&root, dir, &name) {
        Ok((id, attr)) => Ok((name, id, attr.kind)),
        Err(error) => Err(format!("{}: {error}", name.escape_ascii())),
    };
    all.into_iter().map(look).collect()
}

fn read(store: &MemoryStore, id: &FileId) -> Result<Vec<u8>, String> {
    let mode = OpenMode { read: true, write: false };
    let read = || {
        let file = store.open(&Cred::new(0, 0), id, mode)?;
        let mut bytes = vec![0; file.attr()?.size as usize];
        file.read_at(&[VolatileSlice::from_mut(&mut bytes)], 0, Wait::Allowed)?;
        Ok(bytes)
    };
    read().map_err(|error: dafs_store::StoreError| error.to_string())
}
