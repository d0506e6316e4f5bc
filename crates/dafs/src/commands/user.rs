//! `dafs user`: the users of a running server.
//!
//! Invariants
//! * A password is neither taken from the command line nor sent: the server gets its hash.

use super::admin::{Place, other_answer};
use super::passwd::{new_password, user_name};
use crate::commands::serve::set_umask;
use crate::failure::Failure;
use crate::limits::GENERATED_PASSWORD_CHARACTERS;
use crate::output::{say, say_json};
use dafs_engine::hash_password;
use dafs_server::{AdminReply, AdminRequest, UserOrder, UserReport};

/// Add, change, remove and list the users of a running server
///
/// Changes count at once, and are kept in the server's password_file. The clients of a user who was
/// removed, or has other ids, are ended.
#[derive(Debug, clap::Args)]
pub(crate) struct User {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Add a user; the password is asked for on the terminal, or is the first line of standard input
    Add {
        /// The name that clients give with --user
        #[arg(value_name = "USER", value_parser = user_name)]
        name: String,
        /// The user id that the files are used with
        #[arg(long)]
        uid: u32,
        /// The group id that the files are used with
        #[arg(long)]
        gid: u32,
        /// Further group ids
        #[arg(long, value_delimiter = ',', value_name = "GID,...")]
        groups: Vec<u32>,
        /// Make a password, and print it
        #[arg(long)]
        generate: bool,
        #[command(flatten)]
        place: Place,
    },
    /// Change a user; the rest stays as it is
    Set {
        /// The name that clients give with --user
        #[arg(value_name = "USER", value_parser = user_name)]
        name: String,
        /// The user id that the files are used with
        #[arg(long)]
        uid: Option<u32>,
        /// The group id that the files are used with
        #[arg(long)]
        gid: Option<u32>,
        /// All further group ids; none without a value
        #[arg(long, value_delimiter = ',', value_name = "GID,...", num_args = 0..=1)]
        groups: Option<Vec<u32>>,
        /// Ask for a new password on the terminal, or take the first line of standard input
        #[arg(long)]
        password: bool,
        /// Make a new password, and print it
        #[arg(long, conflicts_with = "password")]
        generate: bool,
        #[command(flatten)]
        place: Place,
    },
    /// Remove a user, and end the clients of that user
    Remove {
        /// The name that clients give with --user
        #[arg(value_name = "USER", value_parser = user_name)]
        name: String,
        #[command(flatten)]
        place: Place,
    },
    /// Show the users and their ids
    List {
        #[command(flatten)]
        place: Place,
        /// Print one JSON object per user
        #[arg(long)]
        json: bool,
    },
}

impl User {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        set_umask();
        match &self.action {
            Action::Add { name, uid, gid, groups, generate, place } => {
                let (uid, gid, groups) = (Some(*uid), Some(*gid), Some(groups.clone()));
                let password = choose(!generate, *generate)?;
                let user =
                    UserOrder { name: name.clone(), is_new: true, uid, gid, groups, hash: None };
                order(place, user, password)
            }
            Action::Set { name, uid, gid, groups, password, generate, place } => {
                if !password && !generate && uid.is_none() && gid.is_none() && groups.is_none() {
                    let text = "nothing is to change: give --password, --generate, --uid, --gid or --groups";
                    return Err(Failure::Usage(text.to_owned()));
                }
                let password = choose(*password, *generate)?;
                let (name, groups) = (name.clone(), groups.clone());
                let user =
                    UserOrder { name, is_new: false, uid: *uid, gid: *gid, groups, hash: None };
                order(place, user, password)
            }
            Action::Remove { name, place } => {
                place.order(&AdminRequest::RemoveUser { name: name.clone() })
            }
            Action::List { place, json } => list(place, *json),
        }
    }
}

/// A password for a user, and whether to print it.
struct Chosen {
    password: String,
    is_generated: bool,
}

/// Asks for a password, makes one, or does neither.
fn choose(asks: bool, generates: bool) -> Result<Option<Chosen>, Failure> {
    Ok(match (asks, generates) {
        (_, true) => Some(Chosen { password: generated()?, is_generated: true }),
        (true, false) => Some(Chosen { password: new_password()?, is_generated: false }),
        (false, false) => None,
    })
}

/// Returns a password of small letters and digits, without those that look alike: five random bits each.
fn generated() -> Result<String, Failure> {
    const LETTERS: &[u8; 32] = b"abcdefghijkmnpqrstuvwxyz23456789";
    let mut bytes = [0; GENERATED_PASSWORD_CHARACTERS];
    getrandom::fill(&mut bytes)
        .map_err(|error| Failure::Failed(format!("the system gives no random numbers: {error}")))?;
    Ok(bytes.iter().map(|byte| char::from(LETTERS[usize::from(byte & 31)])).collect())
}

/// Sends an order with the hash of a password, and prints the password if it was made here.
fn order(place: &Place, user: UserOrder, chosen: Option<Chosen>) -> Result<(), Failure> {
    let hash = chosen.as_ref().map(|chosen| hash_password(chosen.password.as_bytes()));
    place.order(&AdminRequest::SetUser(UserOrder { hash, ..user }))?;
    match chosen {
        Some(Chosen { password, is_generated: true }) => say!("password: {password}"),
        _ => Ok(()),
    }
}

fn list(place: &Place, json: bool) -> Result<(), Failure> {
    let AdminReply::Users(users) = place.ask(&AdminRequest::Users)? else {
        return Err(other_answer());
    };
    if json {
        return users.iter().try_for_each(say_json);
    }
    say!("{:>10} {:>10} {:<24} groups", "uid", "gid", "user")?;
    users.iter().try_for_each(|UserReport { name, uid, gid, groups }| {
        let groups: Vec<_> = groups.iter().map(u32::to_string).collect();
        say!("{uid:>10} {gid:>10} {name:<24} {}", groups.join(","))
    })
}
