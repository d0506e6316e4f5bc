//! Users of the password file, changed while the server runs.
//!
//! Invariants
//! * The file changes before the users in force do, so a change that was answered outlives the server.
//! * A file with a line that cannot be used is not changed, and changes no user.
//! * No password comes here: administrators send hashes, and no answer and no log line has one.
//! * When the removal of a user has succeeded, no request of that user is carried out any more. The sessions and
//!   their channels end soon after.

use super::administration::Administration;
use crate::admin::{UserOrder, UserReport};
use dafs_engine::{
    BY_PASSWORD, NewUsers, PasswordFileError, PasswordLine, password_lines, replace_password_line,
};
use dafs_sandbox::in_force;
use dafs_service::{ClientInfo, ServiceError};
use dafs_store::Cred;
use std::path::Path;

impl Administration {
    /// Returns the users, in the order of the file.
    pub(super) fn users(&self) -> Result<Vec<UserReport>, String> {
        let report = |line: PasswordLine| {
            let Cred { uid, gid, groups } = line.cred;
            UserReport { name: line.name, uid, gid, groups: groups.to_vec() }
        };
        let lines = password_lines(self.password_file()?).map_err(|error| error.to_string())?;
        Ok(lines.into_iter().map(report).collect())
    }

    /// Adds or changes a user. Returns a text for the administrator.
    pub(super) fn set_user(&self, order: &UserOrder) -> Result<String, String> {
        let (path, name) = (self.password_file()?, &order.name);
        let _changing = self.users_change.lock();
        let line = match (self.line_of(path, name)?, order.is_new) {
            (Some(_), true) => {
                return Err(format!("user {name:?} exists already; change it with dafs user set"));
            }
            (None, false) => {
                return Err(format!("there is no user {name:?}; add it with dafs user add"));
            }
            (old, _) => merged(old, order)?,
        };
        let ended = self.replace_line(path, name, Some(&line.text()))?;
        let done = if order.is_new { "added" } else { "changed" };
        tracing::info!(user = name, ended, "a user was {done}");
        Ok(format!("user {name:?} was {done}"))
    }

    /// Removes a user, and ends the sessions of that user. Returns a text for the administrator.
    pub(super) fn remove_user(&self, name: &str) -> Result<String, String> {
        let path = self.password_file()?;
        let _changing = self.users_change.lock();
        if self.line_of(path, name)?.is_none() {
            return Err(format!("there is no user {name:?}"));
        }
        let ended = self.replace_line(path, name, None)?;
        tracing::info!(user = name, ended, "a user was removed");
        Ok(format!("user {name:?} was removed, and {ended} clients of that user were ended"))
    }

    /// Follows a password file that was read again. Returns true if its users have changed.
    pub(super) fn follow_users(&self, new: NewUsers) -> bool {
        let changes = self.authenticator.follow_users(new);
        let ended = self.end_clients(|info| changes.ended.contains(&info.identity().principal));
        match ended {
            Ok(0) => {}
            Ok(ended) => {
                tracing::info!(
                    ended,
                    "clients of users that are gone, or have other ids, were ended"
                );
            }
            // The log has the reason.
            Err(error) => tracing::error!("{error}"),
        }
        changes.has_changed
    }

    fn password_file(&self) -> Result<&Path, String> {
        let text = "this server has no password_file: write password_file = \"users\" into its configuration \
                    file, make the first user with dafs passwd, and restart it";
        self.authenticator.password_file().ok_or_else(|| text.to_owned())
    }

    /// Returns the line of a user, if there is one. The other lines can be used, too.
    fn line_of(&self, path: &Path, name: &str) -> Result<Option<PasswordLine>, String> {
        let failed = |error: PasswordFileError| error.to_string();
        self.authenticator.read_users().map_err(failed)?;
        let lines = password_lines(path).map_err(failed)?;
        // Of several lines the last one is in force.
        Ok(lines.into_iter().rfind(|line| line.name == name))
    }

    /// Changes the file, and follows it. Returns the number of clients that have ended.
    fn replace_line(&self, path: &Path, name: &str, line: Option<&str>) -> Result<usize, String> {
        replace_password_line(path, name, line).map_err(explained)?;
        let new = self.authenticator.read_users().map_err(|error| error.to_string())?;
        let changes = self.authenticator.follow_users(new);
        self.end_clients(|info| changes.ended.contains(&info.identity().principal))
    }

    /// Ends the clients that have proven a password and are meant. Returns their number.
    ///
    /// # Errors
    /// Some were not ended, because their records could not be removed from the disk.
    fn end_clients(&self, is_meant: impl Fn(&ClientInfo) -> bool) -> Result<usize, String> {
        let clients = self.service.clients.info(dafs_dat::Instant::now().0);
        let by_password = clients.iter().filter(|info| info.identity().mechanism == BY_PASSWORD);
        let (mut ended, mut left) = (0, 0);
        for info in by_password.filter(|info| is_meant(info)) {
            match self.service.clients.revoke(info.client.key()) {
                Ok(()) => {
                    self.registry.end_sessions_of(&info.client);
                    ended += 1;
                }
                // It has ended by itself.
                Err(ServiceError::StaleClientId) => {}
                Err(error) => {
                    tracing::error!(%error, client = ?info.client, "a client of a user was not ended");
                    left += 1;
                }
            }
        }
        match left {
            0 => Ok(ended),
            left => Err(format!(
                "the users have changed, but {left} clients of former users are still there: see the log, \
                 and end them with dafs expire"
            )),
        }
    }
}

/// Returns the new line of a user, with the old parts where the order has none.
fn merged(old: Option<PasswordLine>, order: &UserOrder) -> Result<PasswordLine, String> {
    let missing = |part: &str| format!("a new user needs {part}");
    let (cred, hash) = old.map(|line| (line.cred, line.hash)).unzip();
    let uid = order.uid.or(cred.as_ref().map(|cred| cred.uid)).ok_or_else(|| missing("a uid"))?;
    let gid = order.gid.or(cred.as_ref().map(|cred| cred.gid)).ok_or_else(|| missing("a gid"))?;
    let groups = match (&order.groups, cred) {
        (Some(groups), _) => groups.as_slice().into(),
        (None, Some(cred)) => cred.groups,
        (None, None) => [].into(),
    };
    let hash = order.hash.clone().or(hash).ok_or_else(|| missing("the hash of a password"))?;
    let cred = Cred { uid, gid, groups };
    PasswordLine::new(&order.name, cred, &hash).map_err(str::to_owned)
}

/// Returns the text of an error, with the sandbox if that may be its cause.
fn explained(error: PasswordFileError) -> String {
    let is_confined = in_force().is_some_and(|report| report.files.is_in_force());
    match error {
        PasswordFileError::Write { .. } if is_confined => format!(
            "{error} (the sandbox lets the server change the file only in a folder that has no other file of \
             its configuration)"
        ),
        error => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dafs_engine::hash_password;

    fn order(name: &str) -> UserOrder {
        let (uid, gid, groups, hash) = (None, None, None, None);
        UserOrder { name: name.to_owned(), is_new: true, uid, gid, groups, hash }
    }

    #[test]
    fn a_change_keeps_what_it_does_not_name() {
        let hash = Some(hash_password(b"secret"));
        let new = UserOrder { uid: Some(7), gid: Some(8), hash, ..order("anna") };
        let line = merged(None, &new).unwrap();
        assert_eq!((line.cred.uid, line.cred.gid, line.cred.groups.len()), (7, 8, 0));
        let change = UserOrder { groups: Some(vec![1, 2]), ..order("anna") };
        let changed = merged(Some(line.clone()), &change).unwrap();
        assert_eq!((changed.cred.uid, &*changed.cred.groups), (7, &[1, 2][..]));
        assert_eq!(changed.hash, line.hash);
        for wrong in [
            UserOrder { uid: None, ..new.clone() },
            UserOrder { gid: None, ..new.clone() },
            UserOrder { hash: None, ..new.clone() },
            UserOrder { hash: Some("secret".to_owned()), ..new.clone() },
            UserOrder { name: "a\nroot".to_owned(), ..new },
        ] {
            merged(None, &wrong).unwrap_err();
        }
    }
}
