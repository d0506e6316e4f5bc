//! Connects as the command line says. Operands that name the same server share a session.

use crate::cli::SessionOptions;
use crate::cli::TransportName;
use crate::failure::Failure;
use crate::limits::{DEADLINE_SECONDS, EVER_SECONDS, PASSWORD_BYTES_MAX, RECOVERY_SECONDS};
use crate::output::complain;
use crate::remote::{Error, Remote, RemoteUrl};
use dafs_client::{Authentication, Client, ClientIdentity, ConnectOptions, DafsUrl, WaitPolicy};
use dafs_nfs_client::mount::{Mount, MountOptions, NfsUrl, RdmaTransport, UrlOptions};
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::Duration;

/// The sessions of one run of the command.
#[derive(Debug)]
pub(crate) struct Sessions<'a> {
    options: &'a SessionOptions,
    /// The wait policy if the command line gives none.
    wait: WaitPolicy,
    /// No timeouts, unless the command line gives them.
    retries_forever: bool,
    /// Each with the URL that it was opened for.
    open: Vec<(RemoteUrl, Remote)>,
}

impl<'a> Sessions<'a> {
    pub(crate) fn new(options: &'a SessionOptions) -> Self {
        Self { options, wait: WaitPolicy::default(), retries_forever: false, open: Vec::new() }
    }

    /// Prepares for many threads with outstanding operations at all times. Polling gains nothing
    /// then, and would only waste processor time.
    pub(crate) fn expect_many_threads(&mut self) {
        self.wait = WaitPolicy::Sleep;
    }

    /// Makes the sessions survive any absence of the server.
    pub(crate) fn retry_forever(&mut self) {
        self.retries_forever = true;
    }

    /// The deadline of an answer, and the time of retries after a lost connection, in seconds.
    fn timeouts(&self) -> (u64, u64) {
        let (deadline, recovery) = match self.retries_forever {
            true => (0, EVER_SECONDS),
            false => (DEADLINE_SECONDS, RECOVERY_SECONDS),
        };
        let given = &self.options;
        (given.deadline.unwrap_or(deadline), given.recovery.unwrap_or(recovery))
    }

    /// The session for `url`, opened if there is none yet.
    pub(crate) fn client(&mut self, url: &RemoteUrl) -> Result<Remote, Failure> {
        let fits = |(known, _): &&(RemoteUrl, Remote)| known.is_same_session(url);
        if let Some((_, remote)) = self.open.iter().find(fits) {
            return Ok(remote.clone());
        }
        let remote = match url {
            RemoteUrl::Dafs(url) => Remote::Dafs(self.connect(url, None)?),
            RemoteUrl::Nfs(url) => Remote::Nfs(mount(self.options, url)?),
        };
        if self.options.verbose {
            let (transport, why) = remote.transport();
            complain!("dafs: {}: transport {transport}: {why}", remote.server());
        }
        self.open.push((url.clone(), remote.clone()));
        Ok(remote)
    }

    pub(crate) fn dafs_client(&mut self, url: &DafsUrl) -> Result<Client, Failure> {
        match self.client(&RemoteUrl::Dafs(url.clone()))? {
            Remote::Dafs(client) => Ok(client),
            Remote::Nfs(_) => Err(Failure::Usage(format!("{url} is no DAFS server"))),
        }
    }

    /// A DAFS session for `url` under the identity of another process's client.
    pub(crate) fn dafs_client_as(
        &mut self,
        url: &DafsUrl,
        identity: ClientIdentity,
    ) -> Result<Client, Failure> {
        let client = self.connect(url, Some(identity))?;
        self.open.push((RemoteUrl::Dafs(url.clone()), Remote::Dafs(client.clone())));
        Ok(client)
    }

    /// Drops all sessions without a disconnect, as if the process had died.
    pub(crate) fn abandon(&mut self) {
        self.open.drain(..).for_each(std::mem::forget);
    }

    /// Ends all sessions in order, so that the server need not detect it.
    pub(crate) fn close(&mut self) {
        for (_, remote) in self.open.drain(..) {
            match remote {
                // All requests have been answered, or their failures reported.
                Remote::Dafs(client) => drop(client.disconnect()),
                // It ends with its last handle.
                Remote::Nfs(_) => {}
            }
        }
    }

    /// The session for `from`, which must also serve `to`.
    pub(crate) fn shared(&mut self, from: &RemoteUrl, to: &RemoteUrl) -> Result<Remote, Failure> {
        if !from.is_same_server(to) {
            return Err(Failure::Usage(format!(
                "{from} and {to} are on different servers; name both by the same host and port, \
                 or use get and put"
            )));
        }
        self.client(from)
    }
}

/// Mounts from an NFS server as the command line says.
fn mount(options: &SessionOptions, url: &NfsUrl) -> Result<Mount, Failure> {
    let unknown = [
        (options.session_user.is_some(), "--user", "NFS servers take the user of this process"),
        (options.password_file.is_some(), "--password-file", "NFS servers take no password"),
        (options.checksums, "--checksums", "NFS has none of its own"),
        (options.fence_id.is_some(), "--fence-id", "NFS clients are fenced by owner and address"),
    ];
    if let Some((_, name, why)) = unknown.into_iter().find(|(given, ..)| *given) {
        return Err(Failure::Usage(format!("{name} means nothing to {url}: {why}")));
    }
    let transport = match options.transport {
        TransportName::Auto => None,
        TransportName::Iwarp => Some(RdmaTransport::Iwarp),
        TransportName::Shm => Some(RdmaTransport::Shm),
        TransportName::Verbs => Some(RdmaTransport::Verbs),
    };
    if transport.is_some() && !url.is_rdma() {
        return Err(Failure::Usage(format!(
            "{url} says to use TCP; write nfs+rdma:// to use another transport"
        )));
    }
    let of_url = url.options().clone();
    let url = url.with_options(UrlOptions { transport: of_url.transport.or(transport), ..of_url });
    let mut mount = MountOptions::default();
    // Without a deadline it retries practically without end.
    mount.retry_timeout = match options.deadline.unwrap_or(DEADLINE_SECONDS) {
        0 => Duration::from_secs(EVER_SECONDS),
        seconds => Duration::from_secs(seconds),
    };
    // Leaves time for another attempt.
    mount.answer_timeout = mount.answer_timeout.min(mount.retry_timeout / 2);
    Mount::connect(&url, &mount).map_err(|error| Failure::remote(&url, &Error::Nfs(error)))
}

impl Sessions<'_> {
    fn connect(&self, url: &DafsUrl, identity: Option<ClientIdentity>) -> Result<Client, Failure> {
        let options = self.options;
        options.check_fence_id(url)?;
        options.check_user(url)?;
        let (deadline, recovery) = self.timeouts();
        let mut connect_options = ConnectOptions {
            transport: options.transport.into(),
            wait: options.wake.map_or(self.wait, Into::into),
            checksums: options.checksums,
            fence_id: options.fence_id.clone(),
            identity,
            deadline: (deadline != 0).then(|| Duration::from_secs(deadline)),
            recovery: (recovery != 0).then(|| Duration::from_secs(recovery)),
            ..ConnectOptions::default()
        };
        if let Some(proof) = authentication(options, url)? {
            connect_options.prove(proof);
        }
        Client::connect(url, &connect_options).map_err(|error| Failure::remote(url, &error.into()))
    }
}

fn authentication(
    options: &SessionOptions,
    url: &DafsUrl,
) -> Result<Option<Authentication>, Failure> {
    let Some(user) = options.session_user.as_deref().or(url.user()) else {
        return match options.password_file {
            Some(_) => Err(Failure::Usage("--password-file needs --user NAME".to_owned())),
            None => Ok(None),
        };
    };
    let password = match (&options.password_file, std::env::var("DAFS_PASSWORD")) {
        (Some(path), _) => password_in(path)?,
        (None, Ok(password)) => password,
        (None, Err(_)) => {
            return Err(Failure::Usage(format!(
                "there is no password for {user}; name a file with --password-file FILE, or set \
                 DAFS_PASSWORD"
            )));
        }
    };
    Ok(Some(Authentication::Text { id: user.to_owned(), password }))
}

/// The first line of a file.
fn password_in(path: &Path) -> Result<String, Failure> {
    let fail = |why: &dyn std::fmt::Display| {
        Failure::Usage(format!("cannot take the password from {}: {why}", path.display()))
    };
    let file = File::open(path).map_err(|error| fail(&error))?;
    let mut text = String::new();
    let limit = PASSWORD_BYTES_MAX as u64 + 1;
    file.take(limit).read_to_string(&mut text).map_err(|error| fail(&error))?;
    match text.lines().next() {
        None | Some("") => Err(fail(&"its first line is empty")),
        Some(line) if line.len() > PASSWORD_BYTES_MAX => Err(fail(&"its first line is too long")),
        Some(line) => Ok(line.to_owned()),
    }
}
