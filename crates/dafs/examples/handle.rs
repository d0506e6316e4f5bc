//! Shows that a file handle outlives sessions and servers.
//!
//! `handle URL` prints the handle of an object. `handle URL HANDLE [shm|iwarp]` prints the object
//! of that handle, without any name.

use dafs_client::{Client, ConnectOptions, DafsUrl, FileHandle, Follow, TransportChoice};
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments) {
        Ok(text) => {
            println!("{text}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("handle: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[String]) -> Result<String, Box<dyn std::error::Error>> {
    let url = arguments.first().ok_or("usage: handle URL [HANDLE [shm|iwarp]]")?;
    let url = DafsUrl::parse(url)?;
    let transport = match arguments.get(2).map(String::as_str) {
        None => TransportChoice::Auto,
        Some("shm") => TransportChoice::Shm,
        Some("iwarp") => TransportChoice::Iwarp,
        Some(_) => return Err("the transport is shm or iwarp".into()),
    };
    let options = ConnectOptions { transport, ..ConnectOptions::default() };
    let client = Client::connect(&url, &options)?;
    let Some(text) = arguments.get(1) else {
        let found = client.resolve(url.path(), Follow::No)?;
        return Ok(to_text(&found.handle));
    };
    let attributes = client.attributes(&from_text(text).ok_or("that is no handle")?)?;
    let kind = if attributes.is_directory() { "directory" } else { "file" };
    Ok(format!("{kind} of {} bytes", attributes.size))
}

fn to_text(handle: &FileHandle) -> String {
    handle.fs.iter().chain(&handle.file).map(|byte| format!("{byte:02x}")).collect()
}

fn from_text(text: &str) -> Option<FileHandle> {
    let digits = text.get(..2 * FileHandle::BYTES).filter(|digits| digits.len() == text.len())?;
    let mut handle = FileHandle::ZERO;
    for (index, byte) in handle.fs.iter_mut().chain(&mut handle.file).enumerate() {
        *byte = u8::from_str_radix(digits.get(2 * index..2 * index + 2)?, 16).ok()?;
    }
    Some(handle)
}
