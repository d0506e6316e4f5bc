//! `dafs fence`: allow lists of files and file systems.

use super::admin::{Place, other_answer};
use crate::failure::Failure;
use crate::output::{say, say_json};
use crate::session::Sessions;
use dafs_client::{
    Client, DafsUrl, Error, FenceChange, FenceObject, FileHandle, Follow, Procedure, Status,
};
use dafs_server::{AdminReply, AdminRequest, FenceOrder, FenceReport};
use serde_json::json;

/// Exclude nodes from a file or a file system, and admit them again
///
/// An object without a list admits everybody. With a list, only those on it have access; an empty
/// list excludes everybody. When a command that takes access away has ended with status 0, no
/// request of an excluded node is under way any more, and none will be carried out.
///
/// A NAME is the fence id that a DAFS client gave with --fence-id; nfs:OWNER is an NFSv4 client by
/// its own name (as `dafs clients` shows it); addr:192.0.2.0/24 is NFS clients by address.
///
/// The object is a URL: the file itself, or with --filesystem the file system that holds it. On the
/// server's own host --export NAME or --all-exports replaces it, and needs no session.
#[derive(Debug, clap::Args)]
pub(crate) struct Fence {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Show the list
    Get(Target),
    /// Admit only these names; nobody without names
    Set(Target),
    /// Admit these names, too
    Add(Target),
    /// Exclude these names
    Remove(Target),
    /// Remove the list: admit everybody
    Clear(Target),
}

#[derive(Debug, clap::Args)]
struct Target {
    /// The URL, unless exports are named; then names
    #[arg(value_name = "URL|NAME")]
    operands: Vec<String>,
    /// The whole file system that holds the URL
    #[arg(long, conflicts_with_all = ["export", "all_exports"])]
    filesystem: bool,
    /// The file system of this export of a running server; may be given more than once
    #[arg(long, value_name = "NAME")]
    export: Vec<String>,
    /// The file systems of all exports of a running server
    #[arg(long, conflicts_with = "export")]
    all_exports: bool,
    #[command(flatten)]
    place: Place,
    /// Print one JSON object per file or file system
    #[arg(long)]
    json: bool,
}

/// Checks a fence id.
pub(crate) fn fence_id(text: &str) -> Result<String, String> {
    if text.is_empty() {
        return Err("name somebody".to_owned());
    }
    if text.starts_with("nfs:") || text.starts_with("addr:") {
        return Err("this is how fences name NFS clients; choose another name".to_owned());
    }
    Ok(text.to_owned())
}

impl Fence {
    pub(crate) fn run(&self, sessions: &mut Sessions<'_>) -> Result<(), Failure> {
        match &self.action {
            Action::Get(target) => target.run(sessions, None),
            Action::Set(target) => target.run(sessions, Some(FenceOrder::Set)),
            Action::Add(target) => target.run(sessions, Some(FenceOrder::Add)),
            Action::Remove(target) => target.run(sessions, Some(FenceOrder::Remove)),
            Action::Clear(target) => target.run(sessions, Some(FenceOrder::Clear)),
        }
    }
}

impl Target {
    fn run(&self, sessions: &mut Sessions<'_>, order: Option<FenceOrder>) -> Result<(), Failure> {
        let local = self.all_exports || !self.export.is_empty();
        let names = match self.operands.split_first() {
            _ if local => self.operands.as_slice(),
            Some((_, names)) => names,
            None => {
                let text = "name a URL, or --export NAME or --all-exports on the server's host";
                return Err(Failure::Usage(text.to_owned()));
            }
        };
        check_names(order, names)?;
        if local {
            return self.ask_server(order, names);
        }
        let url = &self.operands[0];
        let url = DafsUrl::parse(url).map_err(|error| {
            Failure::Usage(match url.starts_with("nfs") {
                true => "fences are set by DAFS; name the server by dafs://".to_owned(),
                false => error.to_string(),
            })
        })?;
        let client = sessions.dafs_client(&url)?;
        let fail = |error: Error| failure(&url, error);
        let what = if self.filesystem { FenceObject::FileSystem } else { FenceObject::File };
        let handle = handle(&client, &url, what).map_err(fail)?;
        if let Some(order) = order {
            let names: Vec<&[u8]> = names.iter().map(String::as_bytes).collect();
            if order == FenceOrder::Add && client.fence_list(&handle, what).map_err(fail)?.is_none()
            {
                return Err(not_fenced(&url.to_string()));
            }
            let change = match order {
                FenceOrder::Set => FenceChange::Set(&names),
                FenceOrder::Add => FenceChange::Add(&names),
                FenceOrder::Remove => FenceChange::Remove(&names),
                FenceOrder::Clear => FenceChange::Clear,
            };
            client.set_fence(&handle, what, change).map_err(fail)?;
            if !self.json {
                return Ok(());
            }
        }
        let list = client.fence_list(&handle, what).map_err(fail)?;
        let fenced = list.is_some();
        let list = list.unwrap_or_default();
        let list: Vec<_> =
            list.iter().map(|name| String::from_utf8_lossy(name).into_owned()).collect();
        if self.json {
            let object = json!({
                "url": url.to_string(),
                "filesystem": self.filesystem,
                "fenced": fenced,
                "names": list,
            });
            say!("{object}")
        } else {
            show(None, fenced, &list)
        }
    }

    fn ask_server(&self, order: Option<FenceOrder>, names: &[String]) -> Result<(), Failure> {
        let get = AdminRequest::Fences { exports: self.export.clone() };
        let request = match order {
            None => get,
            Some(change) => {
                if change == FenceOrder::Add
                    && let Some(open) = self.fences(&get)?.iter().find(|report| !report.fenced)
                {
                    return Err(not_fenced(&format!("export {:?}", open.export)));
                }
                let (exports, names) = (self.export.clone(), names.to_vec());
                AdminRequest::Fence { exports, change, names }
            }
        };
        for report in self.fences(&request)? {
            if self.json {
                say_json(&report)?;
            } else if order.is_none() {
                show(Some(&report.export), report.fenced, &report.names)?;
            }
        }
        Ok(())
    }

    fn fences(&self, request: &AdminRequest) -> Result<Vec<FenceReport>, Failure> {
        match self.place.ask(request)? {
            AdminReply::Fences(reports) => Ok(reports),
            _ => Err(other_answer()),
        }
    }
}

/// Checks the names before any request.
fn check_names(order: Option<FenceOrder>, names: &[String]) -> Result<(), Failure> {
    let usage = |text: &str| Err(Failure::Usage(text.to_owned()));
    match order {
        None | Some(FenceOrder::Clear) if !names.is_empty() => {
            usage("get and clear take no names; to shut somebody out use remove")
        }
        Some(FenceOrder::Add | FenceOrder::Remove) if names.is_empty() => {
            usage("name whom to add or remove")
        }
        _ if names.iter().any(String::is_empty) => usage("a name is empty"),
        _ => Ok(()),
    }
}

/// The object of a URL. A client that lifts a fence is most likely excluded by it, and so cannot
/// read attributes on the way.
fn handle(client: &Client, url: &DafsUrl, what: FenceObject) -> Result<FileHandle, Error> {
    let is_fenced = |error: &Error| matches!(error, Error::Status { status: Status::Fenced, .. });
    match client.resolve(url.path(), Follow::Yes) {
        Ok(found) => return Ok(found.handle),
        Err(error) if !is_fenced(&error) => return Err(error),
        Err(_) if what == FenceObject::File => {
            let place = client.resolve_parent(url.path())?;
            return client.lookup(&place.dir, &place.name);
        }
        Err(_) => {}
    }
    // Any object of the file system will do.
    let mut handle = client.root();
    for name in url.path().split(|&byte| byte == b'/').filter(|name| !name.is_empty()) {
        match client.lookup(&handle, name) {
            Ok(next) => handle = next,
            Err(error) if is_fenced(&error) => break,
            Err(error) => return Err(error),
        }
    }
    Ok(handle)
}

fn failure(url: &DafsUrl, error: Error) -> Failure {
    let status = match &error {
        Error::Status { status, .. } => *status,
        _ => return Failure::remote(url, &error.into()),
    };
    let set = matches!(error, Error::Status { procedure: Procedure::SetFencingList, .. });
    let text = match status {
        Status::Inval if set => {
            "the server refuses this (INVAL): a name makes no sense, or is still let in by a larger \
             range of addresses, or there is no list to take it off; dafs fence get shows the list"
        }
        Status::Perm => {
            "only the owner of a file, or a client that the server trusts, may see and set its \
             fence; that of a file system only a trusted client (PERM)"
        }
        Status::Fenced => {
            "this node has been fenced off itself (FENCED); ask without --fence-id, or on the \
             server's host with --export"
        }
        _ => return Failure::remote(url, &error.into()),
    };
    Failure::Failed(format!("{url}: {text}"))
}

fn not_fenced(what: &str) -> Failure {
    Failure::Failed(format!(
        "{what} has no list, so everybody has access, and a list with these names alone would shut \
         out all others; if that is meant, use dafs fence set"
    ))
}

fn show(export: Option<&str>, fenced: bool, names: &[String]) -> Result<(), Failure> {
    let at = export.map(|name| format!("/{name}: ")).unwrap_or_default();
    match (fenced, names) {
        (false, _) => say!("{at}everybody has access"),
        (true, []) => say!("{at}nobody has access"),
        (true, names) => names.iter().try_for_each(|name| say!("{at}{name}")),
    }
}
