//! `dafs ls`: lists directories.

use super::for_each;
use crate::failure::Failure;
use crate::output::complain;
use crate::remote::{DirEntry, Follow, Handle, Remote, RemoteUrl, Status};
use crate::session::Sessions;
use crate::show;
use std::collections::VecDeque;
use std::io::{BufWriter, StdoutLock, Write};

/// List directories, sorted by name
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Ls {
    /// Directories or files
    #[arg(required = true)]
    urls: Vec<RemoteUrl>,
    /// Show mode, links, owner, group, size and time of each entry
    #[arg(short)]
    long: bool,
    /// With -l, show sizes with a unit, such as 1.5M
    #[arg(short = 'h', long)]
    human_readable: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    #[allow(dead_code, reason = "the parser prints the help and ends the process")]
    help: Option<bool>,
    /// Show names that begin with a dot
    #[arg(short)]
    all: bool,
    /// List directories inside directories too; symlinks are not followed
    #[arg(short = 'R')]
    recursive: bool,
    /// Print one JSON object per entry and line
    #[arg(long)]
    json: bool,
}

/// The output of the listing.
type Out<'a> = BufWriter<StdoutLock<'a>>;

impl Ls {
    pub(crate) fn run(&self, sessions: &mut Sessions<'_>) -> Result<(), Failure> {
        let mut out = BufWriter::new(std::io::stdout().lock());
        let titled = self.recursive || self.urls.len() > 1;
        let result = for_each(&self.urls, |url| {
            let client = sessions.client(url)?;
            self.list(&client, url, titled, &mut out)
        });
        out.flush().map_err(|error| Failure::local("standard output", &error))?;
        result
    }

    fn list(
        &self,
        client: &Remote,
        url: &RemoteUrl,
        titled: bool,
        out: &mut Out<'_>,
    ) -> Result<(), Failure> {
        let found = match client.resolve(url.path(), Follow::Yes) {
            Err(error) if !error.is_fatal() => match client.resolve(url.path(), Follow::No) {
                // A symlink that leads nowhere is shown itself.
                Ok(found) if found.attributes.is_symlink() => Ok(found),
                _ => Err(error),
            },
            other => other,
        }
        .map_err(|error| Failure::remote(url, &error))?;
        if !found.attributes.is_directory() {
            let name = show::last_name(url).to_vec();
            let entry = DirEntry { name, attributes: Some(found.attributes) };
            return self.show(client, url, &entry, out);
        }
        let mut left = VecDeque::from([(url.clone(), found.handle)]);
        let mut first = true;
        let mut result = Ok(());
        while let Some((url, directory)) = left.pop_front() {
            if titled && !self.json {
                let gap = if first { "" } else { "\n" };
                writeln!(out, "{gap}{url}:").map_err(|e| Failure::local("standard output", &e))?;
            }
            first = false;
            match self.list_directory(client, &url, &directory, out) {
                // Depth first, in the order of names.
                Ok((inner, is_whole)) => {
                    inner.into_iter().rev().for_each(|inner| left.push_front(inner));
                    if !is_whole {
                        result = Err(Failure::Reported);
                    }
                }
                Err(Failure::Failed(text)) => {
                    complain!("dafs: {text}");
                    result = Err(Failure::Reported);
                }
                Err(other) => return Err(other),
            }
        }
        result
    }

    /// Lists one directory. Returns the directories in it that are to be listed too, and true if
    /// all entries are known.
    fn list_directory(
        &self,
        client: &Remote,
        url: &RemoteUrl,
        directory: &Handle,
        out: &mut Out<'_>,
    ) -> Result<(Vec<(RemoteUrl, Handle)>, bool), Failure> {
        let entries: Result<Vec<DirEntry>, _> = client
            .read_dir(directory)
            .filter(|entry| {
                self.all || !entry.as_ref().is_ok_and(|entry| entry.name.starts_with(b"."))
            })
            .collect();
        let mut entries = entries.map_err(|error| Failure::remote(url, &error))?;
        entries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        let (mut inner, mut is_whole) = (Vec::new(), true);
        for entry in &entries {
            let inside =
                url.join(&entry.name).map_err(|error| Failure::Usage(error.to_string()))?;
            let directory_of = |entry: &DirEntry| match &entry.attributes {
                Some(found) if found.is_directory() => Some(found.handle),
                _ => None,
            };
            let below = match &entry.attributes {
                None if self.long || self.json || self.recursive => {
                    let (found, is_known) =
                        self.look_again(client, (&inside, directory), entry, out)?;
                    is_whole &= is_known;
                    found.as_ref().and_then(directory_of)
                }
                _ => {
                    self.show(client, &inside, entry, out)?;
                    directory_of(entry)
                }
            };
            if let Some(below) = below.filter(|_| self.recursive) {
                inner.push((inside, below));
            }
        }
        Ok((inner, is_whole))
    }

    /// Shows an entry that the server has listed without attributes: a mount point, or its
    /// attributes now. Returns these, and true if the type of the entry is known.
    fn look_again(
        &self,
        client: &Remote,
        (url, directory): (&RemoteUrl, &Handle),
        entry: &DirEntry,
        out: &mut Out<'_>,
    ) -> Result<(Option<DirEntry>, bool), Failure> {
        let found = client.lookup(directory, &entry.name);
        match found.and_then(|handle| client.attributes(&handle)) {
            Ok(found) => {
                let found = DirEntry { attributes: Some(found), ..entry.clone() };
                self.show(client, url, &found, out)?;
                Ok((Some(found), true))
            }
            Err(error) if error.status() == Some(Status::NoEnt) => Ok((None, true)),
            Err(error) if error.is_mount_point() => {
                let (name, text) = (show::name_bytes(&entry.name), url.to_string());
                let shown = if self.json {
                    let name = String::from_utf8_lossy(&entry.name);
                    let kind = "mount point";
                    writeln!(
                        out,
                        "{}",
                        serde_json::json!({"url": text, "name": name, "type": kind})
                    )
                } else {
                    let kind: &[u8] = if self.long { b"mountpoint " } else { b"" };
                    out.write_all(&[kind, &name, b"\n"].concat())
                };
                shown.map_err(|error| Failure::local("standard output", &error))?;
                Ok((None, true))
            }
            Err(error) => match Failure::remote(url, &error) {
                Failure::Failed(text) => {
                    complain!("dafs: {text}");
                    self.show(client, url, entry, out)?;
                    Ok((None, false))
                }
                other => Err(other),
            },
        }
    }

    fn show(
        &self,
        client: &Remote,
        url: &RemoteUrl,
        entry: &DirEntry,
        out: &mut Out<'_>,
    ) -> Result<(), Failure> {
        let name = show::name_bytes(&entry.name);
        let shown = match &entry.attributes {
            Some(attributes) if self.json => {
                writeln!(out, "{}", show::object_json(url, &entry.name, attributes))
            }
            Some(attributes) if self.long => {
                let target = match attributes.is_symlink() {
                    true => client.readlink(&attributes.handle).unwrap_or_default(),
                    false => Vec::new(),
                };
                let arrow = if attributes.is_symlink() { " -> " } else { "" };
                let head = format!(
                    "{} {:>3} {:>6} {:>6} {:>12} {} ",
                    show::mode_letters(attributes.kind, attributes.mode),
                    attributes.links,
                    show::owner(&attributes.owner),
                    show::owner(&attributes.group),
                    match self.human_readable {
                        true => show::human_size(attributes.size),
                        false => attributes.size.to_string(),
                    },
                    show::minute(attributes.modified),
                );
                let target = show::name_bytes(&target);
                out.write_all(&[head.as_bytes(), &name, arrow.as_bytes(), &target, b"\n"].concat())
            }
            None if self.json => {
                let name = String::from_utf8_lossy(&entry.name);
                let object = serde_json::json!({"url": url.to_string(), "name": name});
                writeln!(out, "{object}")
            }
            None if self.long => out.write_all(&[b"?????????? ".as_slice(), &name, b"\n"].concat()),
            _ => out.write_all(&[&name, b"\n".as_slice()].concat()),
        };
        shown.map_err(|error| Failure::local("standard output", &error))
    }
}
