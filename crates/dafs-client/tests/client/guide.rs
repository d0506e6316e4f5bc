//! The examples of docs/rust.md, run: the page shows parts of this file as they stand here.

#![allow(clippy::needless_borrow, reason = "on the page files and buffers are no references")]

use crate::served::{Served, TRANSPORTS, pattern};
use dafs_client::{
    AccessPattern, Authentication, Client, ConnectOptions, Create, Credential, DafsUrl, Error,
    File, Follow, HintWord, IoBuffer, LockError, LockRange, OpenOptions, SetAttributes, Site,
    Stability, Status, Step, StepIn, StepOn, Stepped, User, acting_as, within,
};
use std::time::Duration;

type Tested = Result<(), Box<dyn std::error::Error>>;

/// The lines of a text without their indentation.
fn plain(text: &str) -> String {
    text.lines().map(|line| line.trim().to_owned() + "\n").collect()
}

#[test]
fn the_page_shows_what_is_run_here() {
    let page = include_str!("../../../../docs/rust.md");
    let here = plain(include_str!("guide.rs"));
    let examples: Vec<&str> = page
        .split("\n```rust\n")
        .skip(1)
        .map(|rest| rest.split_once("\n```\n").unwrap().0)
        .collect();
    assert!(examples.len() > 8);
    for example in examples {
        // Only the name of the server differs.
        let example = plain(example).replace("\"dafs://server/tree?", "&format!(\"{server}tree?");
        let example = example.replace("recovery=120\")?", "recovery=120\"))?");
        assert!(here.contains(&example), "not run:\n{example}");
    }
}

fn connected(server: &DafsUrl) -> Result<Client, Error> {
    let url = DafsUrl::parse(&format!("{server}tree?deadline=30&recovery=120"))?;
    let client = Client::connect(&url, &ConnectOptions::default())?;
    assert_eq!((url.path(), url.deadline()), (&b"/tree"[..], Some(Duration::from_secs(30))));
    Ok(client)
}

fn files(client: &Client) -> Tested {
    let root = client.root();
    client.mkdir(&root, b"results", &SetAttributes::mode(0o755))?;
    let options = OpenOptions::read_write().create(Create::IfMissing).mode(0o640);
    let file = client.open(b"/results/first", &options)?;
    file.write_at(b"hello", 0, Stability::FileSync)?;
    let mut memory = [0; 100];
    assert_eq!(file.read_at(&mut memory, 0)?, 5);
    assert_eq!(file.attributes()?.size, 5);
    file.close()?;
    for entry in client.read_dir(&client.resolve(b"/results", Follow::Yes)?.handle) {
        println!("{}", String::from_utf8_lossy(&entry?.name));
    }
    Ok(())
}

fn operations(client: &Client, file: &File, content: &[u8]) -> Tested {
    let buffer = client.buffer(1 << 20)?;
    let read = file.read_into(&buffer, 0..4096, 0)?;
    let mut copy = vec![0; read];
    buffer.slice(0, read).unwrap().copy_to(&mut copy, Site::Inspect);
    assert!(copy == content[..4096]);

    let first = file.submit_read(&buffer, 0..4096, 0)?;
    let mut second = file.submit_read(&buffer, 4096..8192, 4096)?;
    assert_eq!(first.wait()?, 4096);
    match second.wait_deadline(Duration::from_secs(5)) {
        Err(Error::TimedOut(_)) => println!("later"),
        done => assert_eq!(done?, 4096),
    }

    let group = client.completion_group();
    for block in 0..16 {
        let at = block * 4096;
        group.read(block as u64, &file, &buffer, at..at + 4096, at as u64)?;
    }
    let mut completions = Vec::new();
    group.wait(&mut completions, usize::MAX, Some(Duration::from_secs(5)))?;
    for completion in completions {
        println!("block {}: {} bytes", completion.user_data, completion.result?);
    }
    buffer.slice(0, 4096).unwrap().copy_to(&mut copy, Site::Inspect);
    assert!(copy == content[..4096]);
    let runtime = tokio::runtime::Runtime::new()?;
    let time = Duration::from_secs(5);
    let read =
        runtime.block_on(async { tokio::time::timeout(time, read_both(&file, &buffer)).await });
    assert_eq!(read??, 8192);
    assert_eq!(runtime.block_on(write_safely(&file, &buffer))?, content.len() as u64);
    batch(client, file, &buffer)?;
    buffer.slice(0, 10).unwrap().copy_to(&mut copy[..10], Site::Inspect);
    assert!(copy[..5] == content[100..105] && copy[5..10] == content[200..205]);
    Ok(())
}

async fn read_both(file: &File, buffer: &IoBuffer) -> dafs_client::Result<usize> {
    let first = file.submit_read(buffer, 0..4096, 0)?;
    let second = file.submit_read(buffer, 4096..8192, 4096)?;
    Ok(first.await? + second.await?)
}

async fn write_safely(file: &File, buffer: &IoBuffer) -> dafs_client::Result<u64> {
    let first = file.submit_write(buffer, 0..4096, 0, Stability::Unstable)?;
    let second = file.submit_write(buffer, 4096..8192, 4096, Stability::Unstable)?;
    assert_eq!((first.await?, second.await?), (4096, 4096));
    file.submit_commit(0, 0)?.await?;
    file.submit_append(buffer, 0..100, Stability::FileSync)?.await
}

fn batch(client: &Client, file: &File, buffer: &IoBuffer) -> Tested {
    let mut batch = client.batch();
    batch.read(&file, &[(100, 5), (200, 15)], &[(&buffer, 0..10), (&buffer, 50..60)])?;
    batch.write(&file, &[(65536, 100)], &[(&buffer, 0..100)])?;
    for moved in batch.run()? {
        println!("{} bytes", moved?);
    }
    file.commit(0, 0)?;
    Ok(())
}

fn small_files(client: &Client) -> Tested {
    let mode = SetAttributes::mode(0o640);
    client.create_file(&client.root(), b"small", &mode, b"a few bytes", Stability::FileSync)?;
    let start = client.read_file(b"/small", 4096)?;
    assert!(start.is_whole && start.data == b"a few bytes");
    Ok(())
}

fn chained(client: &Client) -> Tested {
    let from = StepIn::Directory(client.root());
    let found = StepOn::Found;
    let results = client.run_steps(&[
        Step::Lookup { from, names: &[b"results", b"first"] },
        Step::Attributes,
        Step::Read { on: found, offset: 0, bytes: 4096 },
    ])?;
    if let [_, Ok(Stepped::Attributes(attributes)), Ok(Stepped::Read(data))] = &results[..] {
        println!("{} of {} bytes", data.len(), attributes.size);
    }
    assert!(results.iter().all(Result::is_ok), "{results:?}");
    Ok(())
}

fn sharing(file: &File) -> Tested {
    let range = LockRange::exclusive().bytes(0, 100);
    match file.lock(&range, Some(Duration::from_secs(5))) {
        Ok(()) => file.unlock(0, 100)?,
        Err(LockError::Held(holder)) => println!("locked by {holder}"),
        Err(LockError::Broken(holder)) => println!("{holder} has failed: repair what it left"),
        Err(other) => return Err(other.into()),
    }
    let place = file.append(b"one record\n", Stability::FileSync)?;
    println!("the record is at {place}, and whole");
    assert_eq!(place + 11, file.attributes()?.size);
    Ok(())
}

fn hints(client: &Client) -> Tested {
    let mut memory = [0; 100];
    let options = OpenOptions::read().hint(HintWord::DONE).pattern(AccessPattern::Sequential);
    let once = client.open(b"/results/first", &options)?;
    once.read_at(&mut memory, 0)?;
    once.set_hint(HintWord::NONE);
    once.cache_hint(0, 0, AccessPattern::Normal, HintWord::CACHED)?;
    assert_eq!(&memory[..5], b"hello");
    Ok(())
}

fn users(client: &Client) -> Tested {
    let anna = User::new(1000, 1000, &[27, 100]);
    let file = acting_as(Some(&anna), || client.open(b"/results/first", &OpenOptions::read()));
    match file {
        Err(error) if error.status() == Some(Status::Acces) => println!("anna may not read it"),
        Err(error) => return Err(error.into()),
        Ok(file) => println!("anna reads {:?}", file.handle()),
    }
    Ok(())
}

fn failures(client: &Client) -> Tested {
    let found = within(Duration::from_secs(1), || client.read_file(b"/small", 4096));
    match found {
        Err(Error::NotSent { .. }) => println!("nothing was done: try again later"),
        Err(error) if error.status() == Some(Status::NoEnt) => println!("there is no such file"),
        Err(error) => return Err(error.into()),
        Ok(start) => println!("{} bytes", start.data.len()),
    }
    Ok(())
}

#[test]
fn the_examples_work() {
    let served = Served::new();
    let client = connected(&served.url).unwrap();
    failures(&client).unwrap();
    files(&client).unwrap();
    assert_eq!(std::fs::read(served.path().join("results/first")).unwrap(), b"hello");
    hints(&client).unwrap();
    users(&client).unwrap();
    chained(&client).unwrap();
    small_files(&client).unwrap();
    failures(&client).unwrap();
    let content = pattern(1 << 20);
    for transport in TRANSPORTS {
        std::fs::write(served.path().join("file"), &content).unwrap();
        let client = served.client(transport);
        let file = client.open(b"/file", &OpenOptions::read_write()).unwrap();
        operations(&client, &file, &content).unwrap();
        sharing(&file).unwrap();
    }
}

#[test]
fn a_password_that_is_not_there_is_told() {
    let served = Served::new();
    let options = ConnectOptions {
        authentication: Authentication::callback(|| {
            let password = std::env::var("TREE_PASSWORD");
            Ok(("anna".into(), password.map_err(|_| "TREE_PASSWORD is not set")?))
        }),
        credential: Credential::Session,
        ..ConnectOptions::default()
    };
    let error = Client::connect(&served.url, &options).unwrap_err();
    assert!(error.to_string().contains("TREE_PASSWORD is not set"), "{error}");
}
