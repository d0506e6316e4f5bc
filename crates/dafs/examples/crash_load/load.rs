//! A client that works until it is killed.

use crate::Result;
use crate::history::History;
use crate::locked::Locked;
use dafs_client::{
    Client, ConnectOptions, Create, DafsUrl, File, FileHandle, Follow, OpenOptions, SetAttributes,
    Stability,
};
use std::path::Path;
use std::time::{Duration, Instant};

/// An appended record, newline included.
pub(crate) const APPEND_BYTES: usize = 64;
/// A write in place.
pub(crate) const SLOT_BYTES: usize = 4096;
const SLOTS: u64 = 16;

/// A client, and the number of its life.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Life {
    pub(crate) number: u32,
    pub(crate) life: u32,
}

pub(crate) fn append_record(name: &str) -> Vec<u8> {
    format!("{name:.<width$}\n", width = APPEND_BYTES - 1).into_bytes()
}

/// The content of a slot that was written with this value.
pub(crate) fn slot_content(value: &str) -> Vec<u8> {
    value.bytes().chain([b'.']).cycle().take(SLOT_BYTES).collect()
}

/// Pseudorandom numbers from the name of a life, so that a life can be replayed.
struct Draw(u64);

impl Draw {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

struct Worker {
    who: String,
    client: Client,
    history: History,
    draw: Draw,
    names: FileHandle,
    append: File,
    locked: Locked,
    own: File,
    /// Files of this life, by name.
    made: Vec<String>,
    count: u64,
}

impl Life {
    fn name(self) -> String {
        format!("{}-{}", self.number, self.life)
    }
}

/// Time that a call waits for an unreachable server.
const PATIENCE: Duration = Duration::from_secs(120);

fn connect(url: &str, name: &str) -> Result<Client> {
    let options = ConnectOptions {
        client_id: Some(format!("crash-{name}")),
        connect_timeout: PATIENCE,
        deadline: Some(PATIENCE),
        recovery: Some(PATIENCE),
        ..ConnectOptions::default()
    };
    let started = Instant::now();
    loop {
        match Client::connect(&DafsUrl::parse(url)?, &options) {
            Ok(client) => return Ok(client),
            // The server is down, or has not yet ended the last life of this client.
            Err(_) if started.elapsed() < PATIENCE => std::thread::sleep(Duration::from_millis(50)),
            Err(error) => return Err(error.into()),
        }
    }
}

fn open_shared(client: &Client, name: &str) -> Result<File> {
    let how = OpenOptions::read_write().create(Create::IfMissing).mode(0o666);
    Ok(client.open(format!("/shared/{name}").as_bytes(), &how)?)
}

/// Works until the time is over.
///
/// # Errors
/// All errors: recovery must have hidden each failure of a server.
pub(crate) fn run(url: &str, histories: &Path, life: Life, span: Duration) -> Result<()> {
    let end = Instant::now() + span;
    let who = life.name();
    let client = connect(url, &life.number.to_string())?;
    let mut worker = Worker {
        names: client.resolve(b"/names", Follow::No)?.handle,
        append: open_shared(&client, "append")?,
        locked: Locked::open(&client)?,
        own: {
            let how = OpenOptions::read_write().create(Create::IfMissing).mode(0o666);
            client.open(format!("/own/{who}").as_bytes(), &how)?
        },
        history: History::begin(histories, &who)?,
        draw: Draw(u64::from(life.number) << 32 | u64::from(life.life)),
        made: Vec::new(),
        count: 0,
        client,
        who,
    };
    while Instant::now() < end {
        worker.step()?;
    }
    Ok(())
}

/// Takes the lock once more, which reports a last holder that died with it.
///
/// # Errors
/// As [`run`].
pub(crate) fn settle(url: &str, histories: &Path) -> Result<()> {
    let client = connect(url, "settle")?;
    let mut history = History::begin(histories, "settle")?;
    Locked::open(&client)?.step(&mut history)
}

impl Worker {
    fn step(&mut self) -> Result<()> {
        self.count += 1;
        match self.draw.below(10) {
            0..2 => self.make(),
            2..5 => self.move_or_remove(),
            5..7 => self.append(),
            7 => self.write(),
            _ => self.locked.step(&mut self.history),
        }
    }

    fn name(&self, prefix: &str) -> String {
        format!("{prefix}-{}-{}", self.who, self.count)
    }

    fn make(&mut self) -> Result<()> {
        let (client, names) = (&self.client, &self.names);
        match self.draw.below(4) {
            0 => {
                let name = self.name("d");
                self.history.ask(format_args!("mkdir {name}"))?;
                client.mkdir(names, name.as_bytes(), &SetAttributes::default())?;
                self.made.push(name);
            }
            1 if !self.made.is_empty() => {
                let name = self.name("s");
                self.history.ask(format_args!("symlink {name}"))?;
                client.symlink(names, name.as_bytes(), b"somewhere")?;
                self.made.push(name);
            }
            _ => {
                let name = self.name("c");
                let how = OpenOptions::write().create(Create::New).mode(0o666);
                self.history.ask(format_args!("create {name}"))?;
                client.open_at(names, name.as_bytes(), &how)?.close()?;
                self.made.push(name);
            }
        }
        self.history.answered("done")
    }

    fn move_or_remove(&mut self) -> Result<()> {
        let Some(last) = (self.made.len() as u64).checked_sub(1) else { return Ok(()) };
        let name = self.made.swap_remove(self.draw.below(last + 1) as usize);
        if self.draw.below(2) == 0 {
            self.history.ask(format_args!("remove {name}"))?;
            self.client.remove(&self.names, name.as_bytes())?;
        } else {
            let to = self.name("r");
            self.history.ask(format_args!("rename {name} {to}"))?;
            self.client.rename(&self.names, name.as_bytes(), &self.names, to.as_bytes())?;
            self.made.push(to);
        }
        self.history.answered("done")
    }

    fn append(&mut self) -> Result<()> {
        let name = self.name("a");
        self.history.ask(format_args!("append {name}"))?;
        let offset = self.append.append(&append_record(&name), Stability::FileSync)?;
        self.history.answered(offset)
    }

    fn write(&mut self) -> Result<()> {
        let (slot, value) = (self.draw.below(SLOTS), self.name("w"));
        self.history.ask(format_args!("write {slot} {value}"))?;
        let content = slot_content(&value);
        let at = slot * SLOT_BYTES as u64;
        let written = self.own.write_at(&content, at, Stability::FileSync)?;
        if written != content.len() {
            return Err(format!("{written} bytes written of {}", content.len()).into());
        }
        self.history.answered("done")
    }
}
