//! Compounds: operations are appended to a request, and their results taken from the answer in
//! order.
//!
//! Invariants
//! * A [`Compound`] is always whole: its count agrees with the operations appended.
//! * [`Results`] yields as many results as the server sent, and no more than the message holds.

use crate::error::NfsError;
use dafs_rpc::client::Results as Answer;
use dafs_wire::nfs4::*;
use dafs_wire::xdr::{Decode, Decoder, Encode, Encoder, UNIT_BYTES, padded};

/// A request under construction.
#[derive(Debug, Clone)]
pub struct Compound {
    bytes: Vec<u8>,
    count_at: usize,
    count: u32,
}

impl Compound {
    /// A compound without operations of this minor version.
    pub fn new(minor_version: u32) -> Self {
        Self::with_tag(minor_version, b"")
    }

    /// A compound without operations, with a tag that the server sends back.
    pub fn with_tag(minor_version: u32, tag: &[u8]) -> Self {
        let mut bytes = Vec::with_capacity(256);
        let head = CompoundArgs { tag, minor_version, op_count: 0 };
        head.encode(&mut Encoder::new(&mut bytes));
        let count_at = bytes.len() - 4;
        Self { bytes, count_at, count: 0 }
    }

    /// Appends an operation.
    pub fn op(&mut self, op: &Op<'_>) -> &mut Self {
        let mut e = Encoder::new(&mut self.bytes);
        op.encode(&mut e);
        self.count += 1;
        e.patch_u32(self.count_at, self.count);
        self
    }

    /// Appends the number of an operation and bytes in place of its arguments, valid or not.
    pub fn raw(&mut self, number: u32, args: &[u8]) -> &mut Self {
        let mut e = Encoder::new(&mut self.bytes);
        e.u32(number);
        self.bytes.extend_from_slice(args);
        self.count += 1;
        Encoder::new(&mut self.bytes).patch_u32(self.count_at, self.count);
        self
    }

    /// Appends the length of opaque data that is sent behind the compound; returns its padding.
    pub(crate) fn append_length(&mut self, length: usize) -> &'static [u8] {
        Encoder::new(&mut self.bytes).count(length);
        &[0; UNIT_BYTES][..padded(length) - length]
    }

    /// Writes another number of operations than there are.
    pub fn lie_about_count(&mut self, count: u32) -> &mut Self {
        Encoder::new(&mut self.bytes).patch_u32(self.count_at, count);
        self
    }

    /// The number of operations appended.
    pub fn len(&self) -> u32 {
        self.count
    }

    /// True when no operation was appended.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The arguments of COMPOUND.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

const ANOTHER: NfsError = NfsError::Unexpected("a result of another operation");

/// The answer to a [`Compound`].
#[derive(Debug)]
pub struct Results {
    bytes: Answer,
    at: usize,
    left: u32,
    status: Status,
}

impl Results {
    /// Reads the head of an answer.
    ///
    /// # Errors
    /// [`NfsError::Malformed`].
    pub fn new(bytes: Answer) -> Result<Self, NfsError> {
        let mut d = Decoder::new(&bytes);
        let head = CompoundResult::decode(&mut d)?;
        let (at, left, status) = (d.position(), head.op_count, head.status);
        Ok(Self { bytes, at, left, status })
    }

    /// The status of the last operation that was carried out.
    pub fn status(&self) -> Status {
        self.status
    }

    /// The number of results that have not been taken.
    pub fn left(&self) -> u32 {
        self.left
    }

    /// All bytes of the answer, to compare a repeated one.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Takes the next result, of any operation.
    ///
    /// # Errors
    /// [`NfsError::Status`] when the compound ended before, [`NfsError::Malformed`].
    pub fn next_result(&mut self) -> Result<OpResult<'_>, NfsError> {
        if self.left == 0 {
            return Err(NfsError::Status { operation: "COMPOUND", status: self.status });
        }
        let mut d = self.bytes.decoder();
        d.take(self.at)?;
        let result = OpResult::decode(&mut d)?;
        self.left -= 1;
        self.at = d.position();
        Ok(result)
    }

    /// Takes the next result, which has to be the success of this operation.
    ///
    /// # Errors
    /// [`NfsError::Status`] when the operation, or one before it, was refused;
    /// [`NfsError::Unexpected`] when the result is another operation's; [`NfsError::Malformed`].
    pub fn take(&mut self, op: OpNum) -> Result<ResultBody<'_>, NfsError> {
        let result = self.next_result()?;
        if result.status != Status::Ok {
            return Err(NfsError::refused(result.number, result.status));
        }
        if result.number != op as u32 {
            return Err(ANOTHER);
        }
        Ok(result.body)
    }

    /// Skips the results of these operations, which must have succeeded.
    ///
    /// # Errors
    /// Those of [`Results::take`].
    pub fn skip(&mut self, ops: &[OpNum]) -> Result<&mut Self, NfsError> {
        for op in ops {
            self.take(*op)?;
        }
        Ok(self)
    }

    /// Skips all remaining results; every operation must have succeeded.
    ///
    /// # Errors
    /// Those of [`Results::take`].
    pub fn finish(mut self) -> Result<(), NfsError> {
        while self.left > 0 {
            let result = self.next_result()?;
            if result.status != Status::Ok {
                return Err(NfsError::refused(result.number, result.status));
            }
        }
        match self.status {
            Status::Ok => Ok(()),
            status => Err(NfsError::Status { operation: "COMPOUND", status }),
        }
    }
}

macro_rules! results {
    ($( $take:ident: $op:ident => $result:ty; )*) => {
        impl Results { $(
            #[doc = concat!("Takes the next result, the success of a ", stringify!($op), ".")]
            ///
            /// # Errors
            /// Those of [`Results::take`].
            pub fn $take(&mut self) -> Result<$result, NfsError> {
                match self.take(OpNum::$op)? {
                    ResultBody::$op(result) => Ok(result),
                    _ => Err(ANOTHER),
                }
            }
        )* }
    };
}

results! {
    take_access: Access => AccessResult;
    take_bind_conn_to_session: BindConnToSession => BindConnToSessionResult;
    take_commit: Commit => CommitResult;
    take_create_session: CreateSession => CreateSessionResult;
    take_exchange_id: ExchangeId => ExchangeIdResult<'_>;
    take_getattr: Getattr => GetattrResult<'_>;
    take_getdeviceinfo: Getdeviceinfo => GetdeviceinfoResult<'_>;
    take_getfh: Getfh => GetfhResult<'_>;
    take_getxattr: Getxattr => GetxattrResult<'_>;
    take_layoutcommit: Layoutcommit => LayoutcommitResult;
    take_layoutget: Layoutget => LayoutgetResult<'_>;
    take_locku: Locku => StateidResult;
    take_open: Open => OpenResult<'_>;
    take_open_downgrade: OpenDowngrade => StateidResult;
    take_read: Read => ReadResult<'_>;
    take_readdir: Readdir => ReaddirResult<'_>;
    take_readlink: Readlink => ReadlinkResult<'_>;
    take_remove: Remove => RemoveResult;
    take_secinfo: Secinfo => SecinfoResult<'_>;
    take_secinfo_no_name: SecinfoNoName => SecinfoResult<'_>;
    take_seek: Seek => SeekResult;
    take_sequence: Sequence => SequenceResult;
    take_setattr: Setattr => SetattrResult;
    take_test_stateid: TestStateid => TestStateidResult;
    take_write: Write => WriteResult;
}
