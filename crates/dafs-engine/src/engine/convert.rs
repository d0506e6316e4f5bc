//! Converts errors, handles and attributes between the service and DAFS.

use dafs_service::durable::{Change, digest};
use dafs_service::{Caller, ClientKey, Handle, Service, ServiceError, StateId, Touch};
use dafs_store::{
    Attr, FileId, FsId, Kind, SetAttr, SetTime as StoreSetTime, SetXattr,
    Stability as StoreStability, StoreError, TimeSpec,
};
use dafs_wire::dafs::{
    AttrMask, Attributes, ClientId, FileHandle, ObjectType, SetTime, SpecData, Stability, Status,
    Time, XattrHow,
};

/// Attributes that can be read.
pub(crate) const READABLE: AttrMask = AttrMask(
    AttrMask::OBJECT_TYPE.0
        | AttrMask::MODE.0
        | AttrMask::NUM_LINKS.0
        | AttrMask::CHANGE.0
        | AttrMask::OBJECT_SIZE.0
        | AttrMask::FILE_ID.0
        | AttrMask::SPACE_USED.0
        | AttrMask::TIME_ACCESS.0
        | AttrMask::TIME_CREATE.0
        | AttrMask::TIME_DELTA.0
        | AttrMask::TIME_METADATA.0
        | AttrMask::TIME_MODIFY.0
        | AttrMask::RAW_DEV.0
        | AttrMask::FILEHANDLE.0
        | AttrMask::OWNER.0
        | AttrMask::OWNER_GROUP.0,
);

/// Attributes that can be set, of existing objects and of new ones.
const WRITABLE: AttrMask = AttrMask(
    AttrMask::MODE.0
        | AttrMask::OBJECT_SIZE.0
        | AttrMask::TIME_ACCESS_SET.0
        | AttrMask::TIME_MODIFY_SET.0
        | AttrMask::OWNER.0
        | AttrMask::OWNER_GROUP.0,
);

/// Attributes that set or remove an extended attribute.
const XATTR: AttrMask =
    AttrMask(AttrMask::X_XATTR_NAME.0 | AttrMask::X_XATTR_VALUE.0 | AttrMask::X_XATTR_HOW.0);

/// Every attribute that SETATTR accepts.
pub(crate) const SETTABLE: AttrMask = WRITABLE.union(XATTR);

/// Every attribute that GETATTR or SETATTR accepts.
pub(crate) const SUPPORTED: AttrMask = READABLE.union(SETTABLE).union(AttrMask::X_XATTR_NAMES);

pub(crate) fn status(error: ServiceError) -> Status {
    match error {
        ServiceError::Store(error) => store_status(error),
        ServiceError::BadStateId => Status::BadStateId,
        ServiceError::StaleStateId | ServiceError::AdminRevoked => Status::StaleStateId,
        ServiceError::Expired => Status::Expired,
        // DAFS O38.
        ServiceError::ShareDenied => Status::Denied,
        ServiceError::OpenMode => Status::Acces,
        ServiceError::KeyMismatch => Status::KeyMismatch,
        ServiceError::DeleteDenied => Status::DenyDispConflict,
        ServiceError::ClientInUse => Status::ClIdInUse,
        ServiceError::StaleClientId => Status::StaleClientId,
        ServiceError::LockBroken => Status::Locked,
        // DAFS has no status for a reclaim that is too late, or of unknown state.
        ServiceError::NoGrace | ServiceError::ReclaimBad => Status::Expired,
        ServiceError::ReclaimConflict => Status::Denied,
        ServiceError::LockRange => Status::LockRange,
        ServiceError::Grace => Status::Grace,
        // The conflicting state of another client is being recalled, and this client retries.
        ServiceError::WouldWait | ServiceError::Delay => Status::Delay,
        ServiceError::Resource => Status::Resource,
        ServiceError::NotSupported => Status::NotSupp,
        ServiceError::Fenced => Status::Fenced,
        _ => Status::ServerFault,
    }
}

/// Returns the status for a failed OPEN. An automatic retry would fail until an application closes
/// a file, so the error goes to the application.
pub(crate) fn open_status(error: ServiceError) -> Status {
    match error {
        ServiceError::Store(StoreError::TooManyOpen) => Status::Resource,
        error => status(error),
    }
}

pub(crate) fn store_status(error: StoreError) -> Status {
    match error {
        StoreError::Access => Status::Acces,
        StoreError::BadHandle => Status::BadHandle,
        StoreError::BadType => Status::BadType,
        StoreError::Busy | StoreError::TooManyOpen | StoreError::WouldBlock => Status::Delay,
        StoreError::CrossDevice => Status::XDev,
        StoreError::BadCookie => Status::BadCookie,
        StoreError::Exists => Status::Exist,
        StoreError::FileTooBig => Status::FBig,
        StoreError::Invalid => Status::Inval,
        StoreError::Io => Status::Io,
        StoreError::IsDirectory => Status::IsDir,
        StoreError::Symlink => Status::Symlink,
        StoreError::NameTooLong => Status::NameTooLong,
        StoreError::NoDevice | StoreError::PastEnd => Status::Nxio,
        StoreError::NoSpace => Status::NoSpc,
        StoreError::NotDirectory => Status::NotDir,
        StoreError::NotEmpty => Status::NotEmpty,
        StoreError::NotFound => Status::NoEnt,
        StoreError::NotOwner => Status::Perm,
        StoreError::NotSupported => Status::NotSupp,
        StoreError::Quota => Status::DQuot,
        StoreError::ReadOnly => Status::RoFs,
        StoreError::Stale | StoreError::MovedOut => Status::Stale,
        StoreError::TooManyLinks => Status::MLink,
        StoreError::NoXattr => Status::NoEnt,
        StoreError::XattrTooBig => Status::FBig,
        StoreError::Unvouched => Status::XNoLayout,
        StoreError::Outdated => Status::XSessionOld,
        _ => Status::ServerFault,
    }
}

pub(crate) fn handle(fh: &FileHandle) -> Handle {
    Handle { fs: FsId(fh.fs), file: FileId(fh.file) }
}

pub(crate) fn file_handle(handle: &Handle) -> FileHandle {
    FileHandle { fs: handle.fs.0, file: handle.file.0 }
}

pub(crate) fn client_id(key: ClientKey) -> ClientId {
    ClientId(key.0.to_be_bytes())
}

pub(crate) fn state_id(id: dafs_wire::dafs::StateId) -> StateId {
    StateId(u64::from_be_bytes(id.0))
}

pub(crate) fn wire_state_id(id: StateId) -> dafs_wire::dafs::StateId {
    dafs_wire::dafs::StateId(id.0.to_be_bytes())
}

pub(crate) fn stability(stable: Stability) -> StoreStability {
    match stable {
        Stability::Unstable => StoreStability::Unstable,
        Stability::DataSync => StoreStability::Data,
        Stability::FileSync => StoreStability::File,
    }
}

fn time(time: TimeSpec) -> Time {
    Time { seconds: time.seconds, nseconds: time.nanoseconds }
}

fn object_type(kind: Kind) -> ObjectType {
    match kind {
        Kind::Regular => ObjectType::Regular,
        Kind::Directory => ObjectType::Directory,
        Kind::BlockDevice => ObjectType::BlockDevice,
        Kind::CharDevice => ObjectType::CharDevice,
        Kind::Symlink => ObjectType::Symlink,
        Kind::Socket => ObjectType::Socket,
        Kind::Fifo => ObjectType::Fifo,
        Kind::AttrDirectory => ObjectType::AttrDirectory,
        Kind::NamedAttr => ObjectType::NamedAttr,
    }
}

/// A number as decimal text without an allocation. Owners travel as such text.
#[derive(Debug, Clone, Copy)]
struct Decimal {
    digits: [u8; 10],
    start: u8,
}

impl Decimal {
    fn new(mut number: u32) -> Self {
        let mut digits = [b'0'; 10];
        let mut start = digits.len();
        loop {
            start -= 1;
            digits[start] = b'0' + (number % 10) as u8;
            number /= 10;
            if number == 0 {
                return Self { digits, start: start as u8 };
            }
        }
    }

    fn text(&self) -> &[u8] {
        &self.digits[usize::from(self.start)..]
    }
}

/// Owner and group of an object as text, which the attributes borrow.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OwnerText {
    owner: Decimal,
    group: Decimal,
}

impl OwnerText {
    pub(crate) fn new(attr: &Attr) -> Self {
        Self { owner: Decimal::new(attr.uid), group: Decimal::new(attr.gid) }
    }
}

/// Returns the attributes of an object that are in `wanted`. Missing ones take space without a
/// value, so that a client's precomputed offsets stay valid (DAFS 14).
pub(crate) fn attributes<'a>(
    handle: &Handle,
    attr: &Attr,
    text: &'a OwnerText,
    wanted: AttrMask,
) -> Attributes<'a> {
    let (major, minor) = attr.raw_device;
    let all = Attributes {
        included: wanted.intersection(AttrMask::ALL),
        object_type: Some(object_type(attr.kind)),
        mode: Some(attr.mode),
        num_links: Some(attr.links),
        change: Some(attr.change),
        object_size: Some(attr.size),
        file_id: Some(attr.file_id),
        space_used: Some(attr.space_used),
        time_access: Some(time(attr.atime)),
        time_create: attr.btime.map(time),
        time_delta: Some(Time { seconds: 0, nseconds: 1 }),
        time_metadata: Some(time(attr.ctime)),
        time_modify: Some(time(attr.mtime)),
        raw_dev: Some(SpecData { major: u64::from(major), minor: u64::from(minor) }),
        filehandle: Some(file_handle(handle)),
        owner: Some(text.owner.text()),
        owner_group: Some(text.group.text()),
        ..Attributes::default()
    };
    all.only(wanted)
}

/// The change of a SETATTR.
pub(crate) enum AttrChange {
    /// Other attributes.
    Attributes(SetAttr),
    /// An extended attribute, with the condition on its existence. Without a value it is removed.
    Xattr { name: Vec<u8>, value: Option<Vec<u8>>, how: SetXattr },
}

impl AttrChange {
    /// # Errors
    /// `NotSupp` for an attribute that cannot be set, `Inval` for invalid values.
    pub(crate) fn of(attributes: &Attributes<'_>) -> Result<Self, Status> {
        if !attributes.valid().intersects(XATTR) {
            return set_attr(attributes).map(Self::Attributes);
        }
        if !XATTR.contains(attributes.valid()) {
            return Err(Status::Inval);
        }
        let Attributes { x_xattr_name, x_xattr_value, x_xattr_how, .. } = *attributes;
        let (Some(name), Some(how)) = (x_xattr_name, x_xattr_how) else {
            return Err(Status::Inval);
        };
        let how = match (how, x_xattr_value) {
            (XattrHow::Either, Some(_)) => SetXattr::Either,
            (XattrHow::Create, Some(_)) => SetXattr::Create,
            (XattrHow::Replace, Some(_)) | (XattrHow::Remove, None) => SetXattr::Replace,
            _ => return Err(Status::Inval),
        };
        Ok(Self::Xattr { name: name.to_vec(), value: x_xattr_value.map(<[u8]>::to_vec), how })
    }

    /// Returns the change for the log.
    pub(crate) fn change<'a>(&'a self, file: &'a Handle) -> Change<'a> {
        match self {
            Self::Attributes(change) => Change::SetAttr { file, change, masked: None, acl: None },
            Self::Xattr { name, value, how } => {
                let value = value.as_ref().map(|value| digest(0, value));
                Change::SetXattr { file, name, value, how: *how }
            }
        }
    }

    /// Returns the kind of access. A modification time is kept only when the data servers that its
    /// client writes at were asked first.
    pub(crate) fn touch(&self) -> Touch {
        match self {
            Self::Attributes(change) if change.size.is_some() || change.mtime.is_some() => {
                Touch::Data
            }
            _ => Touch::Object,
        }
    }

    /// Executes the change, with the open `id` if that is needed.
    pub(crate) fn execute(
        &self,
        service: &Service,
        caller: Caller<'_>,
        file: &Handle,
        id: StateId,
    ) -> dafs_service::Result<()> {
        match self {
            Self::Attributes(change) => service.setattr(caller, file, id, change).map(drop),
            Self::Xattr { name, value: Some(value), how } => {
                service.set_xattr(caller, file, name, value, *how).map(drop)
            }
            Self::Xattr { name, value: None, .. } => {
                service.remove_xattr(caller, file, name).map(drop)
            }
        }
    }
}

/// Converts the attributes that a client sets.
///
/// # Errors
/// `NotSupp` for an attribute that cannot be set, `Inval` for an invalid value.
pub(crate) fn set_attr(attributes: &Attributes<'_>) -> Result<SetAttr, Status> {
    if !WRITABLE.contains(attributes.valid()) {
        return Err(Status::NotSupp);
    }
    if attributes.mode.is_some_and(|mode| mode & !0o7777 != 0) {
        return Err(Status::Inval);
    }
    Ok(SetAttr {
        mode: attributes.mode,
        uid: attributes.owner.map(number).transpose()?,
        gid: attributes.owner_group.map(number).transpose()?,
        size: attributes.object_size,
        atime: attributes.time_access_set.map(set_time).transpose()?,
        mtime: attributes.time_modify_set.map(set_time).transpose()?,
    })
}

fn number(text: &[u8]) -> Result<u32, Status> {
    let text = std::str::from_utf8(text).map_err(|_| Status::Inval)?;
    text.parse().map_err(|_| Status::Inval)
}

fn set_time(time: SetTime) -> Result<StoreSetTime, Status> {
    match time {
        SetTime::Server => Ok(StoreSetTime::Now),
        SetTime::Client(time) if time.nseconds >= 1_000_000_000 => Err(Status::Inval),
        SetTime::Client(time) => {
            Ok(StoreSetTime::To(TimeSpec { seconds: time.seconds, nanoseconds: time.nseconds }))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_become_text() {
        for value in [0, 7, 10, 65_534, u32::MAX] {
            assert_eq!(Decimal::new(value).text(), value.to_string().as_bytes());
        }
    }

    #[test]
    fn only_what_can_be_set_is_accepted() {
        let good = Attributes { mode: Some(0o4755), owner: Some(b"12"), ..Default::default() };
        assert_eq!(set_attr(&good).unwrap().uid, Some(12));
        let refuse = |attributes, status| assert_eq!(set_attr(&attributes), Err(status));
        refuse(Attributes { hidden: Some(true), ..Default::default() }, Status::NotSupp);
        refuse(Attributes { mode: Some(0o10_000), ..Default::default() }, Status::Inval);
        refuse(Attributes { owner: Some(b"anna"), ..Default::default() }, Status::Inval);
        let time = SetTime::Client(Time { seconds: 0, nseconds: 1_000_000_000 });
        refuse(Attributes { time_access_set: Some(time), ..Default::default() }, Status::Inval);
    }

    #[test]
    fn an_extended_attribute_is_set_alone_and_as_a_whole() {
        let (name, value) = (Some(&b"a/b"[..]), Some(&b"1"[..]));
        let xattr = |x_xattr_name, x_xattr_value, x_xattr_how| Attributes {
            x_xattr_name,
            x_xattr_value,
            x_xattr_how,
            ..Attributes::default()
        };
        let whole = xattr(name, value, Some(XattrHow::Create));
        assert!(matches!(
            AttrChange::of(&whole),
            Ok(AttrChange::Xattr { how: SetXattr::Create, .. })
        ));
        let gone = xattr(name, None, Some(XattrHow::Remove));
        assert!(matches!(AttrChange::of(&gone), Ok(AttrChange::Xattr { value: None, .. })));
        for wrong in [
            Attributes { mode: Some(0o600), ..whole },
            xattr(None, value, Some(XattrHow::Either)),
            xattr(name, value, None),
            xattr(name, None, Some(XattrHow::Either)),
            xattr(name, value, Some(XattrHow::Remove)),
        ] {
            assert_eq!(AttrChange::of(&wrong).err(), Some(Status::Inval), "{wrong:?}");
        }
        assert_eq!(set_attr(&whole), Err(Status::NotSupp), "no part of a new object");
    }
}
