//! Connecting as the command line says. Operands that name the same server share a session.

use crate::cli::SessionOptions;
use crate::failure::Failure;
use crate::limits::PASSWORD_BYTES_MAX;
use dafs_client::{Authentication, Client, ConnectOptions, Credential, DafsUrl, WaitPolicy};
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::Duration;

/// The sessions of one run of the command.
#[derive(Debug)]
pub(crate) struct Sessions<'a> {
    options: &'a SessionOptions,
    /// How to wait if the command line does not say.
    wait: WaitPolicy,
    open: Vec<(Server, Client)>,
}

/// What makes two URLs name the same session: user, host, port.
type Server = (Option<String>, String, u16);

impl<'a> Sessions<'a> {
    pub(crate) fn new(options: &'a SessionOptions) -> Self {
        Self { options, wait: WaitPolicy::default(), open: Vec::new() }
    }

    /// Says that many threads will have operations under way at all times. Then nothing is gained
    /// by looking for answers, and the processor has better things to do.
    pub(crate) fn expect_many_threads(&mut self) {
        self.wait = WaitPolicy::Sleep;
    }

    /// The session for `url`, opened if there is none yet.
    pub(crate) fn client(&mut self, url: &DafsUrl) -> Result<Client, Failure> {
        let server = (url.user().map(str::to_owned), url.host().to_owned(), url.port());
        if let Some((_, client)) = self.open.iter().find(|(known, _)| *known == server) {
            return Ok(client.clone());
        }
        let client = connect(self.options, self.wait, url)?;
        self.open.push((server, client.clone()));
        Ok(client)
    }

    /// Ends all sessions in order, so that the server need not find out.
    pub(crate) fn close(&mut self) {
        for (_, client) in self.open.drain(..) {
            // All that was asked for has been answered, or its failure has been told.
            let _ = client.disconnect();
        }
    }

    /// The session for `from`, which must also serve `to`.
    pub(crate) fn shared(&mut self, from: &DafsUrl, to: &DafsUrl) -> Result<Client, Failure> {
        if (from.user(), from.host(), from.port()) != (to.user(), to.host(), to.port()) {
            return Err(Failure::Usage(format!(
                "{from} and {to} are on different servers; name both by the same host and port, \
                 or use get and put"
            )));
        }
        self.client(from)
    }
}

fn connect(options: &SessionOptions, wait: WaitPolicy, url: &DafsUrl) -> Result<Client, Failure> {
    let authentication = authentication(options, url)?;
    // Whoever proves to be a user wants to act as that user, also where a server would believe
    // this process to be another one.
    let credential = match authentication {
        Authentication::None => Credential::Process,
        _ => Credential::Session,
    };
    let connect_options = ConnectOptions {
        transport: options.transport.into(),
        wait: options.wake.map_or(wait, Into::into),
        authentication,
        credential,
        checksums: options.checksums,
        deadline: (options.deadline != 0).then(|| Duration::from_secs(options.deadline)),
        ..ConnectOptions::default()
    };
    let client = Client::connect(url, &connect_options)
        .map_err(|error| Failure::client(url.to_string(), &error))?;
    if options.verbose {
        eprintln!("dafs: {}: transport {}", client.server(), client.transport());
    }
    Ok(client)
}

fn authentication(options: &SessionOptions, url: &DafsUrl) -> Result<Authentication, Failure> {
    let Some(user) = options.session_user.as_deref().or(url.user()) else {
        return match options.password_file {
            Some(_) => Err(Failure::Usage("--password-file needs --user NAME".to_owned())),
            None => Ok(Authentication::None),
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
    Ok(Authentication::Text { id: user.to_owned(), password })
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
