//! The user that the calls of a thread run as.

use crate::core::User;
use std::cell::RefCell;
use std::mem::ManuallyDrop;

thread_local! {
    /// Without a destructor, so that it is there while a thread ends, too: files may be closed then.
    static USER: RefCell<ManuallyDrop<Option<User>>> =
        const { RefCell::new(ManuallyDrop::new(None)) };
}

/// Runs the calls that `work` makes on this thread, of any client, as `user`; with `None` as the
/// user of the session, as outside of this function. So one session serves many users: the server
/// judges each request by the credential of its user, which the client registers when it is needed
/// first, and keeps for later calls.
///
/// The server must trust the client to act for others
/// ([`SessionInfo::trusted`](crate::SessionInfo::trusted)). Otherwise each call ends with
/// NOT_AUTHORIZED, and is not sent, unless the session was opened for this very user.
///
/// An open file belongs to the client, whichever user has opened it: any thread may use it, and its
/// reads and writes are judged by the open. After a restart of the server the client opens the file again as
/// the user that opened it first. Names and attributes are judged by the user of each call.
///
/// Operations that were started without waiting, as by
/// [`File::submit_read`](crate::File::submit_read), run as the user that started them, also when
/// `work` is over. Batches, the client's cache and data servers act for the session.
///
/// ```no_run
/// # let url = dafs_client::DafsUrl::parse("dafs://server/")?;
/// # let client = dafs_client::Client::connect(&url, &Default::default())?;
/// use dafs_client::{OpenOptions, User, acting_as};
/// let anna = User::new(1000, 1000, &[27, 100]);
/// let file = acting_as(Some(&anna), || client.open(b"home/anna/notes", &OpenOptions::read()))?;
/// # drop(file);
/// # Ok::<(), dafs_client::Error>(())
/// ```
pub fn acting_as<T>(user: Option<&User>, work: impl FnOnce() -> T) -> T {
    /// Ends the scope, also after a panic.
    struct Scope(Option<User>);
    impl Drop for Scope {
        fn drop(&mut self) {
            drop(exchange(self.0.take()));
        }
    }
    let _outer = Scope(exchange(user.cloned()));
    work()
}

/// Sets the user of this thread; yields the one before.
fn exchange(user: Option<User>) -> Option<User> {
    ManuallyDrop::into_inner(USER.replace(ManuallyDrop::new(user)))
}

/// The user that calls of this thread run as; `None` for that of the session.
pub(crate) fn current() -> Option<User> {
    USER.with_borrow(|user| Option::clone(user))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scope_ends_with_its_work_however_that_ends() {
        let (anna, bert) = (User::new(1, 1, &[]), User::new(2, 2, &[]));
        acting_as(Some(&anna), || {
            assert_eq!(current().as_ref(), Some(&anna));
            acting_as(None, || assert_eq!(current(), None));
            let panicked =
                std::panic::catch_unwind(|| acting_as::<()>(Some(&bert), || panic!("as planned")));
            assert!(panicked.is_err());
            assert_eq!(current().as_ref(), Some(&anna));
            let elsewhere = std::thread::scope(|scope| scope.spawn(current).join().unwrap());
            assert_eq!(elsewhere, None, "it is a matter of one thread");
        });
        assert_eq!(current(), None);
    }
}
