//! `write_and_read URL` writes a file on a DAFS server, and reads it back.

use dafs_client::{Client, ConnectOptions, Create, DafsUrl, OpenOptions, Stability};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1).ok_or("usage: write_and_read dafs://HOST/PATH")?;
    let url = DafsUrl::parse(&url)?;
    let client = Client::connect(&url, &ConnectOptions::default())?;
    let folder = url.path().strip_suffix(b"/").unwrap_or(url.path());
    let options = OpenOptions::read_write().create(Create::IfMissing).mode(0o644);
    let file = client.open(&[folder, b"/hello"].concat(), &options)?;
    file.write_at(b"hello, server\n", 0, Stability::FileSync)?;
    let mut memory = [0; 64];
    let bytes = file.read_at(&mut memory, 0)?;
    file.close()?;
    print!("{}", String::from_utf8_lossy(&memory[..bytes]));
    Ok(())
}
