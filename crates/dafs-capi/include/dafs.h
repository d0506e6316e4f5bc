/* dafs.h -- the direct access file system client for C; dafs(3) tells how to begin.
 *
 * Made from the sources of the library; do not edit. Modelled on the published
 * description of the DAFS API, not on its specification.
 *
 * Functions return 0 or a number, or a negative DAP_E_...; dap_last_error() has the
 * sentence. Offsets, lengths and sizes are in bytes. Handles are numbers: a closed one is
 * DAP_E_BAD_HANDLE, and in a fork of the process that opened it DAP_E_FORKED. Memory for
 * data that is null is DAP_E_INVALID, and not mapped DAP_E_FAULT. */

#ifndef DAFS_H
#define DAFS_H

#include <stddef.h>
#include <stdint.h>

// Success.
#define DAP_OK 0

// The handle is closed, was never open, or is of another kind.
#define DAP_E_BAD_HANDLE -1

// An argument is not valid: null, too long, out of its range.
#define DAP_E_INVALID -2

// Memory is not mapped, or does not allow this access.
#define DAP_E_FAULT -3

// The object is in use by an operation or by another thread.
#define DAP_E_BUSY -4

// The object belongs to the process that this one was forked from: connect again.
#define DAP_E_FORKED -5

// The library failed.
#define DAP_E_INTERNAL -6

// Memory could not be allocated or registered.
#define DAP_E_NO_MEMORY -7

// Too many operations, handles or completions: wait for some, or close some.
#define DAP_E_TOO_MANY -8

// The timeout of a wait has expired. The operation goes on.
#define DAP_E_TIMED_OUT -9

// The server has not answered in time. The outcome of the request is unknown.
#define DAP_E_DEADLINE -10

// Not sent in time; the request has no effect and will have none.
#define DAP_E_NOT_SENT -11

// The connection was lost, and the outcome of the request is unknown.
#define DAP_E_IN_DOUBT -12

// The session is over.
#define DAP_E_LOST -13

// The server broke the protocol; the session is over.
#define DAP_E_PROTOCOL -14

// The session could not be opened.
#define DAP_E_CONNECT -15

// The operation was cancelled.
#define DAP_E_CANCELED -16

// The request was not executed because of another one, or does not fit one chain.
#define DAP_E_CHAIN -17

// The server lost data that was written and not committed: write it again.
#define DAP_E_WRITES_LOST -18

// The connection string cannot be understood.
#define DAP_E_URL -19

// The file, buffer, group or batch belongs to another session.
#define DAP_E_FOREIGN -20

// Another owner holds a conflicting lock.
#define DAP_E_LOCK_HELD -21

// Too many symbolic links in one path.
#define DAP_E_LOOP -22

// The buffer for a result is too small.
#define DAP_E_SHORT -23

// Another error; dap_last_error() describes it.
#define DAP_E_OTHER -24

// Codes from here downwards are the server's answers: this minus the number of the status.
#define DAP_E_STATUS -1000

// The server: only the owner or a privileged caller may do this.
#define DAP_E_PERM -1001

// The server: there is no such file or directory.
#define DAP_E_NOENT -1002

// The server: the server could not read or write its storage.
#define DAP_E_IO -1005

// The server: the device behind the file does not exist.
#define DAP_E_NXIO -1006

// The server: the caller's permissions do not allow this.
#define DAP_E_ACCES -1013

// The server: an object of that name exists already.
#define DAP_E_EXIST -1017

// The server: both names have to be in one file system.
#define DAP_E_XDEV -1018

// The server: the device does not support this.
#define DAP_E_NODEV -1019

// The server: a directory is needed here, and the object is none.
#define DAP_E_NOTDIR -1020

// The server: the object is a directory.
#define DAP_E_ISDIR -1021

// The server: an argument is not valid.
#define DAP_E_INVAL -1022

// The server: the file would become larger than the server allows.
#define DAP_E_FBIG -1027

// The server: the file system is full.
#define DAP_E_NOSPC -1028

// The server: the file system is read-only.
#define DAP_E_ROFS -1030

// The server: the file has as many links as it can have.
#define DAP_E_MLINK -1031

// The server: the name is longer than the server allows.
#define DAP_E_NAMETOOLONG -1063

// The server: the directory is not empty.
#define DAP_E_NOTEMPTY -1066

// The server: the caller's quota is used up.
#define DAP_E_DQUOT -1069

// The server: the file behind the handle is gone.
#define DAP_E_STALE -1070

// The server: the file handle is not one of this server.
#define DAP_E_BADHANDLE -11001

// The server: the directory position is not valid any more; read it from the start.
#define DAP_E_BAD_COOKIE -11003

// The server: the server does not support this.
#define DAP_E_NOTSUPP -11004

// The server: the result does not fit the message or buffer offered.
#define DAP_E_TOOSMALL -11005

// The server: the server failed internally.
#define DAP_E_SERVERFAULT -11006

// The server: an object of that type cannot be used or made so.
#define DAP_E_BADTYPE -11007

// The server: the server needs more time; try again.
#define DAP_E_DELAY -11008

// The server: the attributes are the same.
#define DAP_E_SAME -11009

// The server: another owner holds a conflicting lock or share.
#define DAP_E_DENIED -11010

// The server: the lease ran out and its state is gone.
#define DAP_E_EXPIRED -11011

// The server: the range is locked by another owner.
#define DAP_E_LOCKED -11012

// The server: the server has restarted and waits for its former clients; try again.
#define DAP_E_GRACE -11013

// The server: the file handle has expired; look the name up again.
#define DAP_E_FHEXPIRED -11014

// The server: another open denies this access.
#define DAP_E_SHARE_DENIED -11015

// The server: the security in use is not allowed here.
#define DAP_E_WRONGSEC -11016

// The server: the client id string belongs to another principal.
#define DAP_E_CLID_INUSE -11017

// The server: the server has run out of a resource.
#define DAP_E_RESOURCE -11018

// The server: the file system has moved to another server.
#define DAP_E_MOVED -11019

// The server: the request lacks a file handle.
#define DAP_E_NOFILEHANDLE -11020

// The server: the server does not speak this minor version.
#define DAP_E_MINOR_VERS_MISMATCH -11021

// The server: the server does not know this client any more; connect again.
#define DAP_E_STALE_CLIENTID -11022

// The server: the state-id is from before a server restart or was freed.
#define DAP_E_STALE_STATEID -11023

// The server: the state-id has been replaced by a newer one.
#define DAP_E_OLD_STATEID -11024

// The server: the state-id is not one of this server.
#define DAP_E_BAD_STATEID -11025

// The server: the sequence number is out of order.
#define DAP_E_BAD_SEQID -11026

// The server: the attributes differ.
#define DAP_E_NOT_SAME -11027

// The server: the range does not match the lock held.
#define DAP_E_LOCK_RANGE -11028

// The server: the last component is a symbolic link.
#define DAP_E_SYMLINK -11029

// The server: not even one directory entry fits the space offered.
#define DAP_E_READDIR_NOSPC -11030

// The server: a lease has moved to another server.
#define DAP_E_LEASE_MOVED -11031

// The server: the server does not speak this protocol version.
#define DAP_E_ILLEGAL_PROT -16002

// The server: the request is not allowed in the present state of the session.
#define DAP_E_ILLEGAL_STATE -16003

// The server: the server knows nothing of that session any more.
#define DAP_E_UNKNOWN_SESSION -16004

// The server: the request in question was not executed.
#define DAP_E_NOXID_MATCH -16005

// The server: the proof of identity was not accepted.
#define DAP_E_NOT_AUTHORIZED -16006

// The server: what was asked for was not found.
#define DAP_E_NOT_FOUND -16007

// The server: direct transfers need an RDMA-read channel, and there is none.
#define DAP_E_RDMA_READ_CHANNEL_UNUSABLE -16008

// The server: the chain of requests is not well formed.
#define DAP_E_CHAIN_FORM -16009

// The server: an earlier request of the chain failed.
#define DAP_E_CHAIN_BROKEN -16010

// The server: authentication needs another round.
#define DAP_E_GSS_CONTINUE_INIT -16011

// The server: the session is being closed.
#define DAP_E_BAD_SESSION -16012

// The server: the server's credential table is full.
#define DAP_E_NO_CREDS -16013

// The server: the credential handle is unknown or belongs to another client.
#define DAP_E_CRHAND_CONFLICT -16014

// The server: an open of the file forbids its removal.
#define DAP_E_DENYDISP_CONFLICT -16015

// The server: the server cannot forbid removal or know about all opens.
#define DAP_E_DENYDISP_NOTSUPP -16016

// The server: the file is open under a share key that this open lacks.
#define DAP_E_KEY_MISMATCH -16017

// The server: the write or append is larger than the server allows.
#define DAP_E_WRITE_TOOBIG -16018

// The server: this needs a back-control channel, and there is none.
#define DAP_E_BACK_CHANNEL_UNUSABLE -16019

// The server: the checksum does not match the data.
#define DAP_E_CHKSUM -16020

// The server: the last owner of the lock failed; the data may need repair.
#define DAP_E_LOCK_BROKEN -16021

// The server: the session has to be authenticated first.
#define DAP_E_NOT_AUTHENTICATED -16022

// The server: no outstanding batch request has that id.
#define DAP_E_BATCH_REQUEST_NOT_FOUND -16023

// The server: the server does not prefetch.
#define DAP_E_PREFETCH_NOT_SUPPORTED -16024

// The server: the server cannot say how far it came.
#define DAP_E_NO_PARTIAL_INFO -16025

// The server: too many batch requests are outstanding; wait for a completion.
#define DAP_E_WHOA_COWBOY -16026

// The server: the protocol versions do not match.
#define DAP_E_VERS_MISMATCH -16027

// The server: this client is fenced from the object.
#define DAP_E_FENCED -16100

// The server: no layout allows this; read and write through the metadata server.
#define DAP_E_X_NO_LAYOUT -16101

// The server: the layout is asked back and has to be given back first.
#define DAP_E_X_LAYOUT_RECALLED -16102

// The server: the client has written elsewhere since this session began; a new one may write here.
#define DAP_E_X_SESSION_OLD -16103

// The server: the client has cancelled this; nothing of it was done.
#define DAP_E_X_CANCELED -16104

// Shared memory when the server is on this host and offers it, an RDMA adapter when one leads to a
// server that listens there, else iWARP over TCP. A device in software (rxe) is not chosen.
#define DAP_TRANSPORT_AUTO 0

// iWARP over TCP.
#define DAP_TRANSPORT_IWARP 1

// Shared memory.
#define DAP_TRANSPORT_SHM 2

// An RDMA device.
#define DAP_TRANSPORT_VERBS 3

// Waiting threads poll for a while, then sleep.
#define DAP_WAIT_ADAPTIVE 0

// Waiting threads poll until the answer comes: least latency, and all of a processor.
#define DAP_WAIT_POLL 1

// Waiting threads sleep at once.
#define DAP_WAIT_SLEEP 2

// DAFS checksums over messages and data.
#define DAP_CONNECT_CHECKSUMS 1

// CRC32C on iWARP.
#define DAP_CONNECT_CRC 2

// Caches file content in this process as far as the server's delegations allow.
#define DAP_CONNECT_CACHE 4

// Size of the buffer of a name or a password, with its end.
#define DAP_PASSWORD_BYTES 256

// A regular file.
#define DAP_TYPE_FILE 1

// A directory.
#define DAP_TYPE_DIRECTORY 2

// A block device.
#define DAP_TYPE_BLOCK 3

// A character device.
#define DAP_TYPE_CHARACTER 4

// A symbolic link.
#define DAP_TYPE_SYMLINK 5

// A socket.
#define DAP_TYPE_SOCKET 6

// A named pipe.
#define DAP_TYPE_FIFO 7

// An owner or group whose number is not known.
#define DAP_NO_ID UINT32_MAX

// Sets the permission bits.
#define DAP_SET_MODE 1

// Sets the owner.
#define DAP_SET_OWNER 2

// Sets the group.
#define DAP_SET_GROUP 4

// Sets the length.
#define DAP_SET_SIZE 8

// Sets the time of the last access.
#define DAP_SET_ACCESSED 16

// Sets the time of the last access from the server's clock.
#define DAP_SET_ACCESSED_NOW 32

// Sets the time of the last change.
#define DAP_SET_MODIFIED 64

// Sets the time of the last change from the server's clock.
#define DAP_SET_MODIFIED_NOW 128

// The symbolic link itself, not its target.
#define DAP_NO_FOLLOW 1

// May read, or list.
#define DAP_ACCESS_READ 1

// May look up names.
#define DAP_ACCESS_LOOKUP 2

// May overwrite, or change entries.
#define DAP_ACCESS_MODIFY 4

// May lengthen, or add entries.
#define DAP_ACCESS_EXTEND 8

// May delete entries.
#define DAP_ACCESS_DELETE 16

// May execute.
#define DAP_ACCESS_EXECUTE 32

// Opens for reading.
#define DAP_OPEN_READ 1

// Opens for writing.
#define DAP_OPEN_WRITE 2

// Makes the file if it does not exist.
#define DAP_OPEN_CREATE 4

// With DAP_OPEN_CREATE: fails if the file exists, unless this very call has made it.
#define DAP_OPEN_EXCLUSIVE 8

// Truncates the file to length 0.
#define DAP_OPEN_TRUNCATE 16

// Denies other opens for reading.
#define DAP_OPEN_DENY_READ 32

// Denies other opens for writing.
#define DAP_OPEN_DENY_WRITE 64

// Denies removal while it is open.
#define DAP_OPEN_DENY_DELETE 128

// Bypasses the session's cache.
#define DAP_OPEN_DIRECT 256

// With dap_open_with_key(): excludes everybody without the key, too.
#define DAP_OPEN_STRICT_KEY 1024

// The file will be used from front to back.
#define DAP_OPEN_SEQUENTIAL 2048

// The file will be used at random places.
#define DAP_OPEN_RANDOM 4096

// Data that is read or written will not be used again: DAP_HINT_DONE rides on each transfer.
#define DAP_OPEN_ONCE 8192

// The program, or the session's cache, keeps what is read or written: DAP_HINT_CACHED rides on each
// transfer.
#define DAP_OPEN_CACHED 16384

// A write that a later dap_commit() makes stable.
#define DAP_UNSTABLE 0

// A write whose data is stable when it completes.
#define DAP_DATA_SYNC 1

// A write whose data and attributes are stable when it completes.
#define DAP_FILE_SYNC 2

// Says nothing.
#define DAP_HINT_NONE 0

// The program is done with the range: it leaves the server's cache.
#define DAP_HINT_DONE 18

// The program keeps the range itself: it leaves the server's cache first.
#define DAP_HINT_CACHED 36

// The program will use the range again.
#define DAP_HINT_AGAIN 126

// The range is to be read ahead; only for dap_hint().
#define DAP_HINT_PREFETCH 15

// No particular pattern; beside a prediction it says nothing.
#define DAP_PATTERN_NORMAL 0

// The file is used at random places.
#define DAP_PATTERN_RANDOM 1

// The file is used from front to back.
#define DAP_PATTERN_SEQUENTIAL 2

// The path begins at the object that the request before has found.
#define DAP_CHAIN_FOUND 1

// Conflicts with all locks of others; without it, only with exclusive ones.
#define DAP_LOCK_EXCLUSIVE 1

// Survives its holder: if that fails, the next request gets DAP_E_LOCK_BROKEN until the data is
// repaired.
#define DAP_LOCK_PERSIST 2

// Writes to the file under it are undone when the lock is lost or aborted. Only for exclusive
// locks of all bytes.
#define DAP_LOCK_AUTO_RECOVERY 4

// All bytes from an offset on.
#define DAP_TO_END UINT64_MAX

// The file itself.
#define DAP_FENCE_FILE 1

// The file system that holds it.
#define DAP_FENCE_FILE_SYSTEM 2

// Removes the list: all clients have access.
#define DAP_FENCE_CLEAR 0

// Replaces the list by these names.
#define DAP_FENCE_SET 1

// Adds these names to the list.
#define DAP_FENCE_ADD 2

// Removes these names from the list.
#define DAP_FENCE_REMOVE 3

// Fills in the user's name and password, each at most DAP_PASSWORD_BYTES with its zero; returns 0,
// or another number if it cannot. Called at every connect, also when a lost connection is
// replaced, from any thread. It must not call this library.
typedef int32_t (*dap_credentials_t)(void *context, char *user, char *password);

// Options of a connection. Initialise it with dap_options_init() first.
typedef struct {
  // The size of this struct, as dap_options_init() has set it.
  size_t size;
  // DAP_TRANSPORT_... An option in the connection string takes precedence, here and for all
  // fields below.
  uint32_t transport;
  // DAP_WAIT_...; wait=... in the connection string takes precedence.
  uint32_t wait;
  // DAP_CONNECT_...; checksums=yes or no in the connection string takes precedence over
  // DAP_CONNECT_CHECKSUMS.
  uint32_t flags;
  // Most outstanding requests, as proposed to the server; 0 for the default.
  uint32_t requests;
  // Timeout of connecting; 0 for the default. connect-timeout=SECONDS in the connection string
  // takes precedence.
  uint32_t connect_milliseconds;
  // Timeout of the answer to an operation; negative for none. deadline=SECONDS in the connection
  // string takes precedence.
  int64_t deadline_milliseconds;
  // Time for replacing a lost connection; 0 for none. recovery=SECONDS in the connection string
  // takes precedence.
  int64_t recovery_milliseconds;
  // The name of the session in fences, or null. fence-id=NAME in the connection string takes
  // precedence.
  const char *fence_id;
  // The name of this client for the server across restarts, or null.
  const char *client_id;
  // The user, or null for that of the connection string; two that differ are DAP_E_INVALID.
  const char *user;
  // The user's password, or null.
  const char *password;
  // Replaces user and password, or null.
  dap_credentials_t credentials;
  // The argument of `credentials`.
  void *context;
} dap_options_t;

// A session with a server. 0 is none.
typedef struct {
  // A number that only the library interprets.
  uint64_t id;
} dap_session_t;

// The parameters that a session has negotiated.
typedef struct {
  // The longest single read, in bytes.
  uint64_t read_bytes_max;
  // The longest single write, in bytes.
  uint64_t write_bytes_max;
  // Most outstanding requests.
  uint32_t requests;
  // The lease time, in seconds: the server forgets a client that is silent for longer.
  uint32_t lease_seconds;
  // DAP_TRANSPORT_IWARP, DAP_TRANSPORT_SHM or DAP_TRANSPORT_VERBS; DAP_TRANSPORT_AUTO for another
  // one.
  uint32_t transport;
  // 1 when messages and data carry checksums.
  uint32_t checksums;
} dap_session_info_t;

// Counters of a session.
typedef struct {
  // Requests answered.
  uint64_t answered;
  // Bytes read.
  uint64_t bytes_read;
  // Bytes written.
  uint64_t bytes_written;
  // Reads and writes whose data was sent inside messages.
  uint64_t inline_transfers;
  // Reads and writes whose data was placed directly.
  uint64_t direct_transfers;
  // Connections lost and replaced.
  uint64_t recoveries;
  // Restarts of the server seen.
  uint64_t restarts;
  // Credits: requests that the session may have outstanding now.
  uint32_t credits;
  // Requests outstanding.
  uint32_t in_flight;
} dap_stats_t;

// A time, relative to 1970.
typedef struct {
  // Seconds; negative before 1970.
  int64_t seconds;
  // Below 10^9.
  uint32_t nanoseconds;
  // 0.
  uint32_t reserved;
} dap_time_t;

// Attributes of an object. Those that the server does not support are zero.
typedef struct {
  // DAP_TYPE_...; 0 for another one.
  uint32_t kind;
  // Permission bits, up to 07777.
  uint32_t mode;
  // Hard links.
  uint32_t links;
  // The owner's number, or DAP_NO_ID.
  uint32_t owner;
  // The group's number, or DAP_NO_ID.
  uint32_t group;
  // 0.
  uint32_t reserved;
  // Length, in bytes.
  uint64_t size;
  // Bytes allocated on the server.
  uint64_t space_used;
  // Inode number.
  uint64_t file_id;
  // Differs after every change.
  uint64_t change;
  // Major number of a device.
  uint64_t device_major;
  // Minor number of a device.
  uint64_t device_minor;
  // Last access.
  dap_time_t accessed;
  // Last change of the content.
  dap_time_t modified;
  // Last change of the attributes.
  dap_time_t changed;
  // Birth.
  dap_time_t created;
} dap_attributes_t;

// Attributes to change.
typedef struct {
  // The attributes to change, as DAP_SET_...
  uint32_t what;
  // Permission bits.
  uint32_t mode;
  // The owner's number.
  uint32_t owner;
  // The group's number.
  uint32_t group;
  // Length, in bytes: truncates the file, or extends it with zeros.
  uint64_t size;
  // Last access.
  dap_time_t accessed;
  // Last change of the content.
  dap_time_t modified;
} dap_set_attributes_t;

// Space and limits of a file system; UINT64_MAX for a value that the server does not report.
typedef struct {
  // Total bytes.
  uint64_t space_total;
  // Bytes free.
  uint64_t space_free;
  // Bytes free for this caller.
  uint64_t space_available;
  // Total files.
  uint64_t files_total;
  // Free files.
  uint64_t files_free;
  // Free files for this caller.
  uint64_t files_available;
  // The longest name, in bytes.
  uint64_t name_bytes_max;
  // The longest file, in bytes.
  uint64_t file_bytes_max;
  // The longest append, in bytes.
  uint64_t append_bytes_max;
  // The server's preferred size of reads and writes, in bytes.
  uint64_t io_bytes_preferred;
} dap_fs_status_t;

// A directory that is being listed. 0 is none.
typedef struct {
  // A number that only the library interprets.
  uint64_t id;
} dap_dir_t;

// One entry of a directory.
typedef struct {
  // The name, with a zero at its end: any bytes but zero and a slash.
  char name[256];
  // 1 when `attributes` is known.
  uint32_t has_attributes;
  // 0.
  uint32_t reserved;
  // The attributes.
  dap_attributes_t attributes;
} dap_entry_t;

// An open file. 0 is none.
typedef struct {
  // A number that only the library interprets.
  uint64_t id;
} dap_file_t;

// Memory that a server can access. 0 is none.
typedef struct {
  // A number that only the library interprets.
  uint64_t id;
} dap_buffer_t;

// A completion group. 0 is none.
typedef struct {
  // A number that only the library interprets.
  uint64_t id;
} dap_group_t;

// One completed operation.
typedef struct {
  // The caller's value from the submission.
  uint64_t user_data;
  // Its name, from the submission.
  uint64_t operation;
  // The bytes moved, which may be fewer than requested; 0 for a commit; the file offset of an
  // append; or a negative DAP_E_...
  int64_t result;
} dap_completion_t;

// Transfers that are sent together. 0 is none.
typedef struct {
  // A number that only the library interprets.
  uint64_t id;
} dap_batch_t;

// A range of a file.
typedef struct {
  // The offset of its first byte.
  uint64_t offset;
  // Bytes.
  size_t len;
} dap_range_t;

// A piece of a buffer.
typedef struct {
  // The buffer.
  dap_buffer_t buffer;
  // The offset in the buffer.
  size_t at;
  // Bytes.
  size_t len;
} dap_piece_t;

// Requests that are sent together. 0 is none.
typedef struct {
  // A number that only the library interprets.
  uint64_t id;
} dap_chain_t;

// The holder of a lock, or the former one.
typedef struct {
  // The server's key of the client.
  uint64_t client;
  // First byte.
  uint64_t offset;
  // Bytes; DAP_TO_END for all from there on.
  uint64_t length;
  // 1 for an exclusive lock.
  uint32_t exclusive;
  // 0.
  uint32_t reserved;
} dap_lock_holder_t;

// A mount of an NFS server. 0 is none.
typedef struct {
  // A number that only the library interprets.
  uint64_t id;
} dap_mount_t;

// An open file of a mount. 0 is none.
typedef struct {
  // A number that only the library interprets.
  uint64_t id;
} dap_mount_file_t;

// A directory of a mount that is being listed. 0 is none.
typedef struct {
  // A number that only the library interprets.
  uint64_t id;
} dap_mount_dir_t;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// The meaning of a code, in one sentence, for any number. The text is never freed.
//
// Threads: any, at any time.
const char *dap_strerror(int64_t code);

// The name of a code, as in this header; "?" for any other number. The text is never freed.
//
// Threads: any, at any time.
const char *dap_error_name(int64_t code);

// The number in errno.h that comes nearest to a code; 0 for a number that is no error.
//
// Threads: any, at any time.
int32_t dap_errno(int64_t code);

// The error of the last call of this thread that failed, in one sentence with a remedy. Valid
// until the next call that fails in this thread. Never null.
//
// Threads: each has its own.
const char *dap_last_error(void);

// Fills in the defaults.
//
// Threads: any.
//
// Pointers:
// `options` is null or good for one struct.
int32_t dap_options_init(dap_options_t *options);

// Opens a session with the server of a connection string:
// dafs://[USER@]HOST[:PORT]/PATH[?OPTION=VALUE&...]. The options are deadline=SECONDS,
// recovery=SECONDS, connect-timeout=SECONDS, fence-id=NAME, wait=adaptive, poll or sleep, and
// checksums=yes or no. With transport=auto, iwarp, shm or verbs the caller chooses how data travels;
// verbs is an RDMA device. The option pnfs=yes or no is about reads and writes at data servers. The
// option optimistic=yes or no is about reads from memory that a server shows. The
// option inline-padding=yes or no aligns the data of writes inside messages. With sec=gss Kerberos
// proves who the client is. They take precedence over `options`; beside sec=gss there may be no
// user and password. It takes tickets from the default cache, from ccache=NAME, or from
// keytab=FILE with principal=NAME or without.
//
// Paths given to other functions begin at PATH, or at the server's root if they begin with a
// slash; the empty path is PATH itself. `options` may be null.
//
// Threads: any. All threads may use one session at the same time. A fork of the process may not;
// it opens one of its own.
//
// Pointers:
// `url` is a text or null, `options` null or made by dap_options_init(), `session` null or good for a
// handle.
int32_t dap_connect(const char *url,
                    const dap_options_t *options,
                    dap_session_t *session);

// Ends a session in order, after its outstanding operations. Its files, buffers and groups must
// still be closed; other calls with them fail with DAP_E_LOST. The handle is closed even if the
// server did not answer.
//
// Threads: DAP_E_BUSY while another thread is in a call that names the session.
int32_t dap_disconnect(dap_session_t session);

// Pings the server; returns the round trip in `nanoseconds`, if that is not null.
//
// Threads: any.
//
// Pointers:
// `nanoseconds` is null or good for a number.
int32_t dap_ping(dap_session_t session, uint64_t *nanoseconds);

// Sends submitted requests that have not been sent yet.
//
// Threads: any.
int32_t dap_flush(dap_session_t session);

// 1 if the session is connected now, as far as is known; 0 while a lost connection is being
// replaced, or after the end of the session.
//
// Threads: any.
int32_t dap_is_connected(dap_session_t session);

// The parameters that the session has negotiated.
//
// Threads: any.
//
// Pointers:
// `info` is null or good for one struct.
int32_t dap_session_info(dap_session_t session, dap_session_info_t *info);

// The counters of the session.
//
// Threads: any.
//
// Pointers:
// `stats` is null or good for one struct.
int32_t dap_stats(dap_session_t session, dap_stats_t *stats);

// Sets a timeout in milliseconds for every later call of this thread; a negative number ends that.
// A call that takes longer fails with DAP_E_NOT_SENT if it had no effect, and with DAP_E_DEADLINE
// if it may have had one.
//
// Threads: each has its own time.
void dap_limit_thread(int64_t milliseconds);

// The attributes of the object at a path. `flags`: 0 or DAP_NO_FOLLOW.
//
// Threads: any.
//
// Pointers:
// `path` is a text or null, `attributes` null or good for one struct.
int32_t dap_stat(dap_session_t handle,
                 const char *path,
                 uint32_t flags,
                 dap_attributes_t *attributes);

// Changes attributes of the object at a path. `flags`: 0 or DAP_NO_FOLLOW. If it fails, some may
// have been changed.
//
// Threads: any.
//
// Pointers:
// `path` is a text or null, `change` null or one struct.
int32_t dap_set_attributes(dap_session_t handle,
                           const char *path,
                           uint32_t flags,
                           const dap_set_attributes_t *change);

// Space and limits of the file system of the object at a path.
//
// Threads: any.
//
// Pointers:
// `path` is a text or null, `status` null or good for one struct.
int32_t dap_statfs(dap_session_t handle, const char *path, dap_fs_status_t *status);

// Returns the rights among `wanted` (DAP_ACCESS_...) that the caller has on the object at a path.
//
// Threads: any.
//
// Pointers:
// `path` is a text or null.
int32_t dap_access(dap_session_t handle, const char *path, uint32_t wanted);

// Makes a directory with the permission bits `mode`.
//
// Threads: any.
//
// Pointers:
// `path` is a text or null.
int32_t dap_mkdir(dap_session_t handle, const char *path, uint32_t mode);

// Removes an empty directory.
//
// Threads: any.
//
// Pointers:
// `path` is a text or null.
int32_t dap_rmdir(dap_session_t handle, const char *path);

// Removes a name other than a directory's. An open file stays usable.
//
// Threads: any.
//
// Pointers:
// `path` is a text or null.
int32_t dap_remove(dap_session_t handle, const char *path);

// Renames, replacing an object of the name `to` if it is of the same kind.
//
// Threads: any.
//
// Pointers:
// Both are texts or null.
int32_t dap_rename(dap_session_t handle, const char *from, const char *to);

// Gives the file at `path` another name. A symbolic link gets the name itself.
//
// Threads: any.
//
// Pointers:
// Both are texts or null.
int32_t dap_link(dap_session_t handle, const char *path, const char *other);

// Makes a symbolic link at `path` with the text `to`.
//
// Threads: any.
//
// Pointers:
// Both are texts or null.
int32_t dap_symlink(dap_session_t handle, const char *to, const char *path);

// The text of a symbolic link, with a zero at its end; returns its length without that.
// DAP_E_SHORT if `size` is too small.
//
// Threads: any.
//
// Pointers:
// `path` is a text or null, `target` null or good for `size` bytes.
int64_t dap_readlink(dap_session_t handle, const char *path, char *target, size_t size);

// Makes a file with the permission bits `mode` and `len` bytes in it, and closes it: in one round
// trip if they fit a message and `path` is a name without directories. DAP_E_EXIST if the name
// exists. `stable` is as for dap_write(). If it fails the file may exist, with fewer bytes.
//
// Threads: any.
//
// Pointers:
// `path` is a text or null, `memory` null, unmapped, or good for `len` bytes that no other thread
// changes meanwhile.
int32_t dap_create_file(dap_session_t handle,
                        const char *path,
                        uint32_t mode,
                        const void *memory,
                        size_t len,
                        uint32_t stable);

// Reads up to `size` bytes from the start of the file at `path` without opening it: in one round
// trip if that fits a message. Returns the number of bytes.
//
// Threads: any.
//
// Pointers:
// `path` is a text or null, `memory` null, unmapped, or good for `size` bytes.
int64_t dap_read_file(dap_session_t handle, const char *path, void *memory, size_t size);

// Begins to list the directory at `path`.
//
// Threads: any.
//
// Pointers:
// `path` is a text or null, `directory` null or good for a handle.
int32_t dap_opendir(dap_session_t handle, const char *path, dap_dir_t *directory);

// Returns the next entry, without "." and "..": 1, or 0 at the end. An error ends the listing.
//
// Threads: any; each entry goes to one of them.
//
// Pointers:
// `entry` is null or good for one struct.
int32_t dap_readdir(dap_dir_t directory, dap_entry_t *entry);

// Ends a listing.
//
// Threads: DAP_E_BUSY while another thread is in a call that names it.
int32_t dap_closedir(dap_dir_t directory);

// Opens the file at `path`. `flags` are DAP_OPEN_...; `mode` is that of a new file.
//
// Threads: any. All threads may use one file at the same time.
//
// Pointers:
// `path` is a text or null, `file` null or good for a handle.
int32_t dap_open(dap_session_t handle,
                 const char *path,
                 uint32_t flags,
                 uint32_t mode,
                 dap_file_t *file);

// As dap_open(), shared only with opens of the same key: DAP_E_KEY_MISMATCH while the file is open
// under another one. Opens without a key are not affected, unless the server's export has strict
// keys. With DAP_OPEN_STRICT_KEY they are in every export: DAP_E_KEY_MISMATCH while the file is
// open without a key, and until dap_close() clients of DAFS and NFS without the key are refused.
// That needs the right to write the file: else DAP_E_ACCES. DAP_E_INVAL from a server without that.
//
// Threads: any.
//
// Pointers:
// As dap_open().
int32_t dap_open_with_key(dap_session_t handle,
                          const char *path,
                          uint32_t flags,
                          uint32_t mode,
                          uint64_t key,
                          dap_file_t *file);

// Closes a file. The handle is closed also after DAP_E_WRITES_LOST or a missing answer of the
// server, but not after DAP_E_BUSY. Wait for outstanding operations of a group before.
//
// Threads: DAP_E_BUSY while another thread is in a call that names the file.
int32_t dap_close(dap_file_t handle);

// Attributes of an open file.
//
// Threads: any.
//
// Pointers:
// `attributes` is null or good for one struct.
int32_t dap_fstat(dap_file_t handle, dap_attributes_t *attributes);

// Changes attributes of an open file.
//
// Threads: any.
//
// Pointers:
// `change` is null or one struct.
int32_t dap_fset_attributes(dap_file_t handle, const dap_set_attributes_t *change);

// Truncates a file, or extends it with zeros.
//
// Threads: any.
int32_t dap_truncate(dap_file_t handle, uint64_t size);

// Makes `len` bytes from `offset` stable; 0 and 0 for all. DAP_E_WRITES_LOST: all writes since the
// last commit must be repeated.
//
// Threads: any. Covers the writes that had completed when it was called.
int32_t dap_commit(dap_file_t handle, uint64_t offset, uint64_t len);

// Announces that a range will be used soon, and asks the server to read it ahead. The server reads a
// bounded part, 16 MiB. DAP_E_PREFETCH_NOT_SUPPORTED where that has no use.
//
// Threads: any.
int32_t dap_prefetch(dap_file_t handle,
                     uint64_t offset,
                     uint32_t len);

// Gives the server a hint about `len` bytes from `offset` (0: to the end of the file). `pattern` is
// DAP_PATTERN_... and is about the whole file. `hint` is DAP_HINT_..., or bit 0 for a prefetch with
// weights from 1 (surely not) to 7 (surely) for further reads in bits 1 to 3 and for further writes
// in bits 4 to 6; a weight of 0 says nothing.
//
// Threads: any.
int32_t dap_hint(dap_file_t handle, uint64_t offset, uint32_t len, uint32_t pattern, uint32_t hint);

// Sets the hint that rides on each later read, write and append of a file, about the bytes that it
// moves. It fails none of them, and needs no message.
//
// Threads: any. Transfers of other threads that are under way may have either hint.
int32_t dap_set_hint(dap_file_t handle, uint32_t hint);

// Makes a buffer of zeros where this session's transport moves data fastest, and returns its
// address.
//
// Threads: any.
//
// Pointers:
// `buffer` is null or good for a handle, `address` for a pointer.
int32_t dap_buffer_alloc(dap_session_t handle, size_t bytes, dap_buffer_t *buffer, void **address);

// Registers memory of the caller, for use in place: DAP_E_FAULT if it is not mapped or not
// writable. It must stay mapped until dap_unregister() has succeeded.
//
// Threads: any.
//
// Pointers:
// As said above.
int32_t dap_register(dap_session_t handle, void *memory, size_t bytes, dap_buffer_t *buffer);

// As dap_register(), but the registration is cached: cheap for memory that was lent before.
// dap_unregister() closes the handle; the memory may be unmapped after dap_forget_memory() has
// succeeded. A heap block may be freed and used for another purpose without that, if the heap
// keeps it mapped.
//
// Threads: any.
//
// Pointers:
// As said above.
int32_t dap_lend(dap_session_t handle, void *memory, size_t bytes, dap_buffer_t *buffer);

// Ends the cached registrations of this memory, from dap_lend() and the functions on any memory,
// so that it can be unmapped: after success the server cannot access it any more. DAP_E_BUSY while
// an operation or a buffer handle uses it.
//
// Threads: any.
//
// Pointers:
// The memory is not accessed: any pointer will do.
int32_t dap_forget_memory(dap_session_t handle, const void *memory, size_t bytes);

// The address and the length of a buffer.
//
// Threads: any.
//
// Pointers:
// `address` is null or good for a pointer, `bytes` for a number.
int32_t dap_buffer_memory(dap_buffer_t handle, void **address, size_t *bytes);

// Ends a registration, or frees a buffer of dap_buffer_alloc(). After success the server cannot
// access the memory any more. DAP_E_BUSY while an operation uses it: the buffer stays as it is.
//
// Threads: DAP_E_BUSY while another thread is in a call that names the buffer.
int32_t dap_unregister(dap_buffer_t handle);

// Reads up to `len` bytes from `offset` into any memory; returns the number of bytes, fewer only
// at the end of the file. Copies once; dap_read_buffer() does not.
//
// Threads: any.
//
// Pointers:
// `memory` is null, unmapped, or good for `len` bytes that no other thread uses meanwhile.
int64_t dap_read(dap_file_t handle, void *memory, size_t len, uint64_t offset);

// Writes `len` bytes at `offset` from any memory; returns `len`. `stable` is DAP_UNSTABLE,
// DAP_DATA_SYNC or DAP_FILE_SYNC. Copies once; dap_write_buffer() does not.
//
// Threads: any.
//
// Pointers:
// `memory` is null, unmapped, or good for `len` bytes that no other thread changes meanwhile.
int64_t dap_write(dap_file_t handle,
                  const void *memory,
                  size_t len,
                  uint64_t offset,
                  uint32_t stable);

// Writes `len` bytes at the end of the file, atomically and contiguously; returns their offset in
// `offset`, if that is not null. `stable` is not DAP_UNSTABLE.
//
// Threads: any.
//
// Pointers:
// As dap_write(); `offset` is null or good for a number.
int32_t dap_append(dap_file_t handle,
                   const void *memory,
                   size_t len,
                   uint32_t stable,
                   uint64_t *offset);

// As dap_append(), for `len` bytes of a buffer from `at` on, which the server fetches directly.
//
// Threads: any.
//
// Pointers:
// `offset` is null or good for a number.
int32_t dap_append_buffer(dap_file_t handle,
                          dap_buffer_t memory,
                          size_t at,
                          size_t len,
                          uint32_t stable,
                          uint64_t *offset);

// Reads up to `len` bytes from `offset` into a buffer, `at` bytes from its start, where the server
// stores them directly; returns the number of bytes, fewer only at the end of the file.
//
// Threads: any.
int64_t dap_read_buffer(dap_file_t handle,
                        dap_buffer_t memory,
                        size_t at,
                        size_t len,
                        uint64_t offset);

// Writes `len` bytes at `offset` from a buffer, `at` bytes from its start; returns `len`.
//
// Threads: any.
int64_t dap_write_buffer(dap_file_t handle,
                         dap_buffer_t memory,
                         size_t at,
                         size_t len,
                         uint64_t offset,
                         uint32_t stable);

// Makes a completion group.
//
// Threads: any. All threads may submit to one group and fetch from it at the same time.
//
// Pointers:
// `group` is null or good for a handle.
int32_t dap_group_create(dap_session_t handle, dap_group_t *group);

// Ends a group. DAP_E_BUSY while operations are outstanding in it; completions that have not been
// fetched are dropped. Its descriptor is closed.
//
// Threads: DAP_E_BUSY while another thread is in a call that names the group.
int32_t dap_group_free(dap_group_t handle);

// Starts a read of `len` bytes from `offset` into a buffer, `at` bytes from its start. Its
// completion comes to the group with `user_data`; its name is returned in `operation`, if that is
// not null. The bytes read may be fewer than requested, also because of
// dap_session_info_t.read_bytes_max.
//
// It is sent at once if no other operation is outstanding, else with the next call that waits or
// polls, or with dap_flush(). The memory must not be accessed until the completion has been
// fetched.
//
// Threads: any.
//
// Pointers:
// `operation` is null or good for a number.
int32_t dap_async_read(dap_group_t handle,
                       uint64_t user_data,
                       dap_file_t of,
                       dap_buffer_t memory,
                       size_t at,
                       size_t len,
                       uint64_t offset,
                       uint64_t *operation);

// Starts a write of `len` bytes at `offset` from a buffer, as dap_async_read() does. `stable` is
// DAP_UNSTABLE, DAP_DATA_SYNC or DAP_FILE_SYNC. The bytes written may be fewer than requested; the
// caller has to write the rest.
//
// Threads: any.
//
// Pointers:
// `operation` is null or good for a number.
int32_t dap_async_write(dap_group_t handle,
                        uint64_t user_data,
                        dap_file_t of,
                        dap_buffer_t memory,
                        size_t at,
                        size_t len,
                        uint64_t offset,
                        uint32_t stable,
                        uint64_t *operation);

// As dap_async_read(), into any memory, which is lent as by dap_lend().
//
// Threads: any.
//
// Pointers:
// As dap_lend().
int32_t dap_async_read_memory(dap_group_t handle,
                              uint64_t user_data,
                              dap_file_t of,
                              void *memory,
                              size_t len,
                              uint64_t offset,
                              uint64_t *operation);

// As dap_async_write(), from any memory that may be written, too; it is lent as by dap_lend().
//
// Threads: any.
//
// Pointers:
// As dap_lend().
int32_t dap_async_write_memory(dap_group_t handle,
                               uint64_t user_data,
                               dap_file_t of,
                               void *memory,
                               size_t len,
                               uint64_t offset,
                               uint32_t stable,
                               uint64_t *operation);

// Starts to make `len` bytes from `offset` stable; 0 and 0 for all. Outstanding writes are not
// covered.
//
// Threads: any.
//
// Pointers:
// `operation` is null or good for a number.
int32_t dap_async_commit(dap_group_t handle,
                         uint64_t user_data,
                         dap_file_t of,
                         uint64_t offset,
                         uint64_t len,
                         uint64_t *operation);

// Starts to write `len` bytes of a buffer from `at` on at the end of the file, as
// dap_append_buffer() does; its completion has the offset. The server may execute outstanding
// appends in any order.
//
// Threads: any.
//
// Pointers:
// `operation` is null or good for a number.
int32_t dap_async_append(dap_group_t handle,
                         uint64_t user_data,
                         dap_file_t of,
                         dap_buffer_t memory,
                         size_t at,
                         size_t len,
                         uint32_t stable,
                         uint64_t *operation);

// As dap_async_append(), from any memory that may be written, too; it is lent as by dap_lend().
//
// Threads: any.
//
// Pointers:
// As dap_lend().
int32_t dap_async_append_memory(dap_group_t handle,
                                uint64_t user_data,
                                dap_file_t of,
                                void *memory,
                                size_t len,
                                uint32_t stable,
                                uint64_t *operation);

// Waits until `min` completions have come, or no operation is outstanding any more, or
// `milliseconds` have passed (negative: no timeout), and returns up to `max`, which are at most
// 4096. `min` is 1 for any, a number for some, SIZE_MAX for as many as fit. With 0 for either it
// polls once. Returns the number of completions: 0 when no operation was outstanding;
// DAP_E_TIMED_OUT when none has come in time; DAP_E_FAULT when there is no memory for those that
// have come, which the next call returns.
//
// Threads: any. When several wait for one group, each completion goes to one of them.
//
// Pointers:
// `completions` is null or good for `max` structs.
int64_t dap_io_wait(dap_group_t handle,
                    dap_completion_t *completions,
                    size_t max,
                    size_t min,
                    int64_t milliseconds);

// Returns up to `max` completions that have come, and their number, without waiting. It makes only
// the system calls that the transport needs. Over TCP each poll tries to receive. Over shared
// memory there are three kinds: one call to wake a sleeping server; a check, at each 128th poll or
// after 20 microseconds, whether the server has gone; and three about the program's signal
// handlers, at each sixteenth copy to or from its own memory.
//
// Threads: any.
//
// Pointers:
// `completions` is null or good for `max` structs.
int64_t dap_io_poll(dap_group_t handle, dap_completion_t *completions, size_t max);

// The number of outstanding operations of a group, without completions that wait to be fetched.
//
// Threads: any.
int64_t dap_io_in_flight(dap_group_t handle);

// Cancels an operation if the server cannot access its memory now: 1 if it is cancelled. 0 if it is
// with the server, which is asked to take it out if it has not begun. Its completion comes in any
// case: DAP_E_CANCELED says that nothing of it has happened or will happen, unless the connection
// was lost meanwhile. A server without that request finishes the operation.
//
// Threads: any.
int32_t dap_io_cancel(dap_group_t handle, uint64_t operation);

// Asks the server to begin with a transfer of an asynchronous batch without further delay.
//
// Threads: any.
int32_t dap_io_expedite(dap_group_t handle, uint64_t operation);

// A descriptor that is readable while completions wait to be fetched, for poll() and epoll. It
// must not be read or closed. From the first call on a thread of the library drives the group's
// operations.
//
// Threads: any.
int32_t dap_group_descriptor(dap_group_t handle);

// Begins a batch.
//
// Threads: any.
//
// Pointers:
// `batch` is null or good for a handle.
int32_t dap_batch_create(dap_session_t handle, dap_batch_t *batch);

// Adds a read of ranges of a file into pieces of buffers. The two may be divided differently, but
// must have the same total length. Returns its index in the batch.
//
// Threads: any.
//
// Pointers:
// The arrays are null or as long as said.
int64_t dap_batch_read(dap_batch_t handle,
                       dap_file_t file,
                       const dap_range_t *ranges,
                       size_t range_count,
                       const dap_piece_t *pieces,
                       size_t piece_count);

// Adds a write of pieces of buffers to ranges of a file, as dap_batch_read() does. It is unstable:
// dap_commit() makes it stable.
//
// Threads: any.
//
// Pointers:
// The arrays are null or as long as said.
int64_t dap_batch_write(dap_batch_t handle,
                        dap_file_t file,
                        const dap_range_t *ranges,
                        size_t range_count,
                        const dap_piece_t *pieces,
                        size_t piece_count);

// Allows the server to take up to so many microseconds to gather and order the transfers, and to
// report them separately, `together` at a time (0: as before).
//
// Threads: any.
int32_t dap_batch_window(dap_batch_t handle, uint32_t microseconds, uint32_t together);

// Sends a batch and closes its handle. The completion of each transfer comes to the group.
// `user_data` and `operations` have an element for each transfer; `operations`, for their names,
// may be null. If this fails no transfer was sent, and the handle is closed, except after
// DAP_E_BUSY. If only a part could be sent it succeeds, and the completions of the others have the
// reason.
//
// Threads: DAP_E_BUSY while another thread is in a call that names the batch.
//
// Pointers:
// The arrays are null or as long as said.
int32_t dap_batch_submit(dap_batch_t handle,
                         dap_group_t to,
                         const uint64_t *user_data,
                         uint64_t *operations);

// Sends a batch, waits for all of it, and closes its handle. `results` has an element for each
// transfer: the bytes, or a negative DAP_E_...
//
// Threads: DAP_E_BUSY while another thread is in a call that names the batch.
//
// Pointers:
// `results` is null or as long as said.
int32_t dap_batch_run(dap_batch_t handle, int64_t *results);

// Closes the handle of a batch without sending it.
//
// Threads: DAP_E_BUSY while another thread is in a call that names the batch.
int32_t dap_batch_discard(dap_batch_t handle);

// Begins a chain.
//
// Threads: any.
//
// Pointers:
// `chain` is null or good for a handle.
int32_t dap_chain_create(dap_session_t handle, dap_chain_t *chain);

// Adds a lookup by up to 64 names. Later requests work on the object found. `path` begins as other
// paths do, or with DAP_CHAIN_FOUND at the object that the request before has found. Symbolic
// links are not followed. Its result is 0. Returns its index in the chain.
//
// Threads: any.
//
// Pointers:
// `path` is a text or null.
int64_t dap_chain_lookup(dap_chain_t handle, const char *path, uint32_t flags);

// Adds a request for the attributes of the object found, which dap_chain_run() stores in
// `attributes`. Its result is 0. Returns its index in the chain.
//
// Threads: any.
//
// Pointers:
// `attributes` is null, or good for one struct until the chain has been run.
int64_t dap_chain_stat(dap_chain_t handle, dap_attributes_t *attributes);

// Adds a check for the rights in `wanted` (DAP_ACCESS_...) of the caller on the object found; its
// result is the set of rights that the caller has. Returns its index in the chain.
//
// Threads: any.
int64_t dap_chain_access(dap_chain_t handle, uint32_t wanted);

// Adds a read of an open file, or with the handle 0 of the object found: of no more than a message
// holds (8000 bytes always fit). dap_chain_run() stores the data in `memory`. Its result is the
// number of bytes, fewer only at the end of the file. Returns its index in the chain.
//
// Threads: any.
//
// Pointers:
// `memory` is null, unmapped, or good for `len` bytes that no other thread uses until the chain
// has run.
int64_t dap_chain_read(dap_chain_t handle,
                       dap_file_t of,
                       void *memory,
                       size_t len,
                       uint64_t offset);

// Adds a write to an open file, or with the handle 0 to the object found: of no more than a
// message holds (8000 bytes always fit). `stable` is DAP_DATA_SYNC or DAP_FILE_SYNC. The data is
// copied now. Its result is the number of bytes. Returns its index in the chain.
//
// Threads: any.
//
// Pointers:
// `memory` is null, unmapped, or good for `len` bytes that no other thread changes meanwhile.
int64_t dap_chain_write(dap_chain_t handle,
                        dap_file_t to,
                        const void *memory,
                        size_t len,
                        uint64_t offset,
                        uint32_t stable);

// Adds a lock request, which does not wait for other locks. `flags` are as for dap_lock(). Its
// result is 0. Returns its index in the chain.
//
// Threads: any.
int64_t dap_chain_lock(dap_chain_t handle,
                       dap_file_t of,
                       uint64_t offset,
                       uint64_t length,
                       uint32_t flags);

// Adds an unlock. Its result is 0. Returns its index in the chain.
//
// Threads: any.
int64_t dap_chain_unlock(dap_chain_t handle, dap_file_t of, uint64_t offset, uint64_t length);

// Adds a mkdir; later requests work on the new directory. `path` is one name, in the session's
// directory or, with DAP_CHAIN_FOUND, in the directory found. Its result is 0. Returns its index
// in the chain.
//
// Threads: any.
//
// Pointers:
// `path` is a text or null.
int64_t dap_chain_mkdir(dap_chain_t handle, const char *path, uint32_t flags, uint32_t mode);

// Adds the removal of a name, or of an empty directory. `path` is as for dap_chain_mkdir(). Its
// result is 0. Returns its index in the chain.
//
// Threads: any.
//
// Pointers:
// `path` is a text or null.
int64_t dap_chain_remove(dap_chain_t handle, const char *path, uint32_t flags);

// Sends a chain, waits for it, and closes its handle. `results` has an element for each request:
// the result that its function documents, or a negative DAP_E_...; DAP_E_CHAIN behind the first
// that failed. If this fails no request was sent: DAP_E_INVALID if the requests form no chain,
// DAP_E_CHAIN if the session does not have a credit for each at the moment. The requests form no
// chain if a write, mkdir or remove follows a request that reads content or attributes (locks may
// come anywhere), or if the first works on an object found.
//
// Threads: DAP_E_BUSY while another thread is in a call that names the chain.
//
// Pointers:
// `results` is null or as long as said, and so are the places given to dap_chain_read() and
// dap_chain_stat().
int32_t dap_chain_run(dap_chain_t handle, int64_t *results);

// Closes the handle of a chain without sending it.
//
// Threads: DAP_E_BUSY while another thread is in a call that names the chain.
int32_t dap_chain_discard(dap_chain_t handle);

// Locks `length` bytes from `offset`, and waits up to `milliseconds` for conflicting locks (0: not
// at all; negative: no timeout). With DAP_E_LOCK_HELD and DAP_E_LOCK_BROKEN, the holder is stored
// in `holder`, if that is not null. Two opens of one process are two owners.
//
// Threads: any.
//
// Pointers:
// `holder` is null or good for one struct.
int32_t dap_lock(dap_file_t handle,
                 uint64_t offset,
                 uint64_t length,
                 uint32_t flags,
                 int64_t milliseconds,
                 dap_lock_holder_t *holder);

// Takes over broken locks, which the range must cover entirely, so that the caller can repair the
// data; dap_unlock() ends the repair. Until then reads and writes of others fail with
// DAP_E_STALE_STATEID. DAP_E_INVAL if no lock is broken, DAP_E_LOCK_RANGE for a part of a lock.
//
// Threads: any.
int32_t dap_lock_for_repair(dap_file_t handle, uint64_t offset, uint64_t length);

// Releases the locks of this file in a range. Closing the file releases all.
//
// Threads: any.
int32_t dap_unlock(dap_file_t handle, uint64_t offset, uint64_t length);

// Undoes all writes since the file was locked with DAP_LOCK_AUTO_RECOVERY, and releases the lock.
//
// Threads: any.
int32_t dap_abort_lock(dap_file_t handle);

// Tests for a lock that would conflict with a lock of another owner: 1, and the holder in
// `holder`, if that is not null; else 0.
//
// Threads: any.
//
// Pointers:
// `holder` is null or good for one struct.
int32_t dap_test_lock(dap_file_t handle,
                      uint64_t offset,
                      uint64_t length,
                      uint32_t flags,
                      dap_lock_holder_t *holder);

// Changes the fence of the object at a path (DAP_FENCE_FILE or DAP_FENCE_FILE_SYSTEM) by
// DAP_FENCE_CLEAR, _SET, _ADD or _REMOVE and `count` names. After success, no request of an
// excluded client is under way any more.
//
// Threads: any.
//
// Pointers:
// `path` is a text or null, `names` null or `count` texts.
int32_t dap_set_fence(dap_session_t handle,
                      const char *path,
                      uint32_t what,
                      uint32_t change,
                      const char *const *names,
                      size_t count);

// The names on a fence, each with a zero at its end, one after the other. Returns their number; 0
// if all clients are excluded. DAP_E_NOT_FOUND if there is no fence and all clients have access.
// DAP_E_SHORT if they do not fit.
//
// Threads: any.
//
// Pointers:
// `path` is a text or null, `target` null or good for `size` bytes.
int64_t dap_fence(dap_session_t handle, const char *path, uint32_t what, char *target, size_t size);

// Mounts the NFS server of a connection string: nfs://HOST[:PORT]/PATH[?OPTION=VALUE&...] over
// TCP, nfs+rdma:// over RDMA. The options are those of the command dafs, such as vers=3, 4.1 or
// 4.2, and sec=krb5. The user and the groups are those of the process.
//
// Paths given to other functions begin at PATH, or at the server's root if they begin with a
// slash; the empty path is PATH itself. While the server is away, calls wait for two minutes and
// then fail with DAP_E_LOST. dap_limit_thread() does not bound them.
//
// Threads: any. All threads may use one mount at the same time.
//
// Pointers:
// `url` is a text or null, `mount` null or good for a handle.
int32_t dap_mount(const char *url, dap_mount_t *mount);

// Ends a mount. Its open files go on until they are closed.
//
// Threads: DAP_E_BUSY while another thread is in a call that names the mount.
int32_t dap_unmount(dap_mount_t mount);

// Opens the file at `path`. `flags` are DAP_OPEN_READ, _WRITE, _CREATE, _EXCLUSIVE and _TRUNCATE;
// `mode` is that of a new file.
//
// Threads: any. All threads may use one file at the same time.
//
// Pointers:
// `path` is a text or null, `file` null or good for a handle.
int32_t dap_mount_open(dap_mount_t handle,
                       const char *path,
                       uint32_t flags,
                       uint32_t mode,
                       dap_mount_file_t *file);

// Closes a file. Written data is stable only after dap_mount_commit(). The handle is closed
// also after an error of the server.
//
// Threads: DAP_E_BUSY while another thread is in a call that names the file.
int32_t dap_mount_close(dap_mount_file_t handle);

// Reads up to `len` bytes from `offset`; returns the number of bytes, fewer only at the end of the
// file.
//
// Threads: any.
//
// Pointers:
// `memory` is null, unmapped, or good for `len` bytes that no other thread uses meanwhile.
int64_t dap_mount_read(dap_mount_file_t handle, void *memory, size_t len, uint64_t offset);

// Writes `len` bytes at `offset`; returns `len`. `stable` is DAP_UNSTABLE, DAP_DATA_SYNC or
// DAP_FILE_SYNC.
//
// Threads: any.
//
// Pointers:
// `memory` is null, unmapped, or good for `len` bytes that no other thread changes meanwhile.
int64_t dap_mount_write(dap_mount_file_t handle,
                        const void *memory,
                        size_t len,
                        uint64_t offset,
                        uint32_t stable);

// Makes stable what was written. DAP_E_WRITES_LOST: all writes since the last commit must be
// repeated.
//
// Threads: any. Covers the writes that had completed when it was called.
int32_t dap_mount_commit(dap_mount_file_t handle);

// Attributes of an open file.
//
// Threads: any.
//
// Pointers:
// `attributes` is null or good for one struct.
int32_t dap_mount_fstat(dap_mount_file_t handle, dap_attributes_t *attributes);

// The attributes of the object at a path. `flags`: 0 or DAP_NO_FOLLOW.
//
// Threads: any.
//
// Pointers:
// `path` is a text or null, `attributes` null or good for one struct.
int32_t dap_mount_stat(dap_mount_t handle,
                       const char *path,
                       uint32_t flags,
                       dap_attributes_t *attributes);

// Makes a directory.
//
// Threads: any.
//
// Pointers:
// `path` is a text or null.
int32_t dap_mount_mkdir(dap_mount_t handle, const char *path, uint32_t mode);

// Removes a name other than a directory's.
//
// Threads: any.
//
// Pointers:
// `path` is a text or null.
int32_t dap_mount_remove(dap_mount_t handle, const char *path);

// Removes an empty directory.
//
// Threads: any.
//
// Pointers:
// `path` is a text or null.
int32_t dap_mount_rmdir(dap_mount_t handle, const char *path);

// Renames an object, and replaces a target of the same kind.
//
// Threads: any.
//
// Pointers:
// `from` and `to` are texts or null.
int32_t dap_mount_rename(dap_mount_t handle, const char *from, const char *to);

// Begins to list the directory at `path`.
//
// Threads: any.
//
// Pointers:
// `path` is a text or null, `directory` null or good for a handle.
int32_t dap_mount_opendir(dap_mount_t handle, const char *path, dap_mount_dir_t *directory);

// Returns the next entry, without "." and "..": 1, or 0 at the end. An error ends the listing.
//
// Threads: any; each entry goes to one of them.
//
// Pointers:
// `entry` is null or good for one struct.
int32_t dap_mount_readdir(dap_mount_dir_t directory, dap_entry_t *entry);

// Ends a listing.
//
// Threads: DAP_E_BUSY while another thread is in a call that names it.
int32_t dap_mount_closedir(dap_mount_dir_t directory);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* DAFS_H */
