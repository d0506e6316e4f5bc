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

// It worked.
#define DAP_OK 0

// The handle is closed, was never open, or is of another kind.
#define DAP_E_BAD_HANDLE -1

// An argument cannot be: null, too long, out of its range.
#define DAP_E_INVALID -2

// Memory is not mapped, or may not be used like that.
#define DAP_E_FAULT -3

// It is in use by an operation or by another thread.
#define DAP_E_BUSY -4

// It belongs to the process that this one was forked from: connect again.
#define DAP_E_FORKED -5

// The library failed.
#define DAP_E_INTERNAL -6

// Memory could not be had or registered.
#define DAP_E_NO_MEMORY -7

// Too many operations, handles or completions: wait for some, or close some.
#define DAP_E_TOO_MANY -8

// Not done in the time that was given for waiting. What was waited for goes on.
#define DAP_E_TIMED_OUT -9

// The server has not answered in time. It may or may not have done what was asked.
#define DAP_E_DEADLINE -10

// Not sent in time; the server has not done it and will not.
#define DAP_E_NOT_SENT -11

// The connection was lost, and nobody knows whether it was done.
#define DAP_E_IN_DOUBT -12

// The session is over.
#define DAP_E_LOST -13

// The server broke the protocol; the session is over.
#define DAP_E_PROTOCOL -14

// The session could not be opened.
#define DAP_E_CONNECT -15

// It was cancelled.
#define DAP_E_CANCELED -16

// It was not carried out because of another one, or does not fit one chain.
#define DAP_E_CHAIN -17

// The server lost data that was written and not committed: write it again.
#define DAP_E_WRITES_LOST -18

// The connection string cannot be understood.
#define DAP_E_URL -19

// The file, buffer, group or batch belongs to another session.
#define DAP_E_FOREIGN -20

// Somebody else has a lock in the way.
#define DAP_E_LOCK_HELD -21

// Too many symbolic links in one path.
#define DAP_E_LOOP -22

// The place for a result is too small.
#define DAP_E_SHORT -23

// Something else; dap_last_error() says what.
#define DAP_E_OTHER -24

// Codes from here downwards are what the server answered: this minus the number of the status.
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

// The server: the file is open with another share key.
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

// Shared memory when the server is on this host and offers it, else iWARP over TCP.
#define DAP_TRANSPORT_AUTO 0

// iWARP over TCP.
#define DAP_TRANSPORT_IWARP 1

// Shared memory.
#define DAP_TRANSPORT_SHM 2

// Threads that wait look for a while, then sleep.
#define DAP_WAIT_ADAPTIVE 0

// Threads that wait look until the answer is there: least latency, and all of a processor.
#define DAP_WAIT_POLL 1

// Threads that wait sleep at once.
#define DAP_WAIT_SLEEP 2

// DAFS checksums over messages and data.
#define DAP_CONNECT_CHECKSUMS 1

// CRC32C on iWARP.
#define DAP_CONNECT_CRC 2

// Keeps file content in this process as far as the server's delegations allow.
#define DAP_CONNECT_CACHE 4

// Room for a name or a password, with its end.
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

// Changes the permission bits.
#define DAP_SET_MODE 1

// Changes the owner.
#define DAP_SET_OWNER 2

// Changes the group.
#define DAP_SET_GROUP 4

// Changes the length.
#define DAP_SET_SIZE 8

// Changes the time of the last access.
#define DAP_SET_ACCESSED 16

// Sets the time of the last access to that of the server's clock.
#define DAP_SET_ACCESSED_NOW 32

// Changes the time of the last change.
#define DAP_SET_MODIFIED 64

// Sets the time of the last change to that of the server's clock.
#define DAP_SET_MODIFIED_NOW 128

// Looks at a symbolic link itself, not at what it points to.
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

// For reading.
#define DAP_OPEN_READ 1

// For writing.
#define DAP_OPEN_WRITE 2

// Makes the file if it is missing.
#define DAP_OPEN_CREATE 4

// With DAP_OPEN_CREATE: fails if there is such a file, unless this very call has made it.
#define DAP_OPEN_EXCLUSIVE 8

// Cuts the file to nothing.
#define DAP_OPEN_TRUNCATE 16

// Nobody else may open it for reading.
#define DAP_OPEN_DENY_READ 32

// Nobody else may open it for writing.
#define DAP_OPEN_DENY_WRITE 64

// Nobody may remove it while it is open.
#define DAP_OPEN_DENY_DELETE 128

// Leaves it out of the session's cache.
#define DAP_OPEN_DIRECT 256

// A write that a later dap_commit() makes stable.
#define DAP_UNSTABLE 0

// A write whose data is stable when it is over.
#define DAP_DATA_SYNC 1

// A write whose data and attributes are stable when it is over.
#define DAP_FILE_SYNC 2

// A name in a chain is below what the request before has found.
#define DAP_CHAIN_FOUND 1

// Against everybody else; without it, against those who lock exclusively.
#define DAP_LOCK_EXCLUSIVE 1

// Outlives its holder: if that fails, the next one gets DAP_E_LOCK_BROKEN until somebody has repaired.
#define DAP_LOCK_PERSIST 2

// What is written to the file under it is undone when the lock is lost or aborted. Only for exclusive
// locks of all bytes.
#define DAP_LOCK_AUTO_RECOVERY 4

// All bytes from an offset on.
#define DAP_TO_END UINT64_MAX

// The file itself.
#define DAP_FENCE_FILE 1

// The file system that holds it.
#define DAP_FENCE_FILE_SYSTEM 2

// Everybody has access.
#define DAP_FENCE_CLEAR 0

// Only these have access.
#define DAP_FENCE_SET 1

// These have access, too.
#define DAP_FENCE_ADD 2

// These have access no more.
#define DAP_FENCE_REMOVE 3

// Fills in who the user is and what proves it, each at most DAP_PASSWORD_BYTES with its zero; returns
// 0, or anything else if it cannot. Called at every connect, also when a lost connection is replaced,
// from whichever thread is at work then. It must not call this library.
typedef int32_t (*dap_credentials_t)(void *context, char *user, char *password);

// How to connect. Fill it in with dap_options_init() first.
typedef struct {
  // The size of this struct, as dap_options_init() has set it.
  size_t size;
  // DAP_TRANSPORT_... What the connection string says of this goes before, as of all that follows.
  uint32_t transport;
  // DAP_WAIT_...; wait=... in the connection string goes before.
  uint32_t wait;
  // DAP_CONNECT_...; checksums=yes or no in the connection string goes before DAP_CONNECT_CHECKSUMS.
  uint32_t flags;
  // Requests that may be outstanding, as proposed to the server; 0 for the usual number.
  uint32_t requests;
  // Time for connecting; 0 for the usual. connect-timeout=SECONDS in the connection string goes before.
  uint32_t connect_milliseconds;
  // Time for one operation to be answered; negative for no end. deadline=SECONDS in the connection
  // string goes before.
  int64_t deadline_milliseconds;
  // Time for replacing a lost connection; 0 for none. recovery=SECONDS in the connection string goes
  // before.
  int64_t recovery_milliseconds;
  // Who the session is to fences, or null. fence-id=NAME in the connection string goes before.
  const char *fence_id;
  // Names this client to the server across restarts, or null.
  const char *client_id;
  // The user, or null for that of the connection string; two that differ are DAP_E_INVALID.
  const char *user;
  // The user's password, or null.
  const char *password;
  // In place of user and password, or null.
  dap_credentials_t credentials;
  // For `credentials`.
  void *context;
} dap_options_t;

// A session with a server. 0 is none.
typedef struct {
  // A number that means something to the library alone.
  uint64_t id;
} dap_session_t;

// What a session agreed on.
typedef struct {
  // The longest single read, in bytes.
  uint64_t read_bytes_max;
  // The longest single write, in bytes.
  uint64_t write_bytes_max;
  // Requests that may be outstanding.
  uint32_t requests;
  // The time without a word after which the server forgets a client, in seconds.
  uint32_t lease_seconds;
  // DAP_TRANSPORT_IWARP or DAP_TRANSPORT_SHM; DAP_TRANSPORT_AUTO for another one.
  uint32_t transport;
  // 1 when messages and data carry checksums.
  uint32_t checksums;
} dap_session_info_t;

// What a session has done.
typedef struct {
  // Requests answered.
  uint64_t answered;
  // Bytes read.
  uint64_t bytes_read;
  // Bytes written.
  uint64_t bytes_written;
  // Reads and writes whose data travelled inside messages.
  uint64_t inline_transfers;
  // Reads and writes whose data was placed directly.
  uint64_t direct_transfers;
  // Connections lost and replaced.
  uint64_t recoveries;
  // Restarts of the server seen.
  uint64_t restarts;
  // Requests that the server lets the session have outstanding now.
  uint32_t credits;
  // Requests outstanding.
  uint32_t in_flight;
} dap_stats_t;

// A time since 1970.
typedef struct {
  // Seconds; negative before.
  int64_t seconds;
  // Below 10^9.
  uint32_t nanoseconds;
  // 0.
  uint32_t reserved;
} dap_time_t;

// Attributes of an object. What the server does not keep is zero.
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
  // Bytes allocated at the server.
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
  // Which, as DAP_SET_...
  uint32_t what;
  // Permission bits.
  uint32_t mode;
  // The owner's number.
  uint32_t owner;
  // The group's number.
  uint32_t group;
  // Length, in bytes: cuts, or extends with zeros.
  uint64_t size;
  // Last access.
  dap_time_t accessed;
  // Last change of the content.
  dap_time_t modified;
} dap_set_attributes_t;

// Space and limits of a file system; UINT64_MAX for what the server does not say.
typedef struct {
  // Bytes in all.
  uint64_t space_total;
  // Bytes free.
  uint64_t space_free;
  // Bytes free for this caller.
  uint64_t space_available;
  // Files in all.
  uint64_t files_total;
  // Files that can still be made.
  uint64_t files_free;
  // Files that this caller can still make.
  uint64_t files_available;
  // The longest name, in bytes.
  uint64_t name_bytes_max;
  // The longest file, in bytes.
  uint64_t file_bytes_max;
  // The longest append, in bytes.
  uint64_t append_bytes_max;
  // The size that the server likes for reads and writes, in bytes.
  uint64_t io_bytes_preferred;
} dap_fs_status_t;

// A directory that is being listed. 0 is none.
typedef struct {
  // A number that means something to the library alone.
  uint64_t id;
} dap_dir_t;

// One entry of a directory.
typedef struct {
  // The name, with a zero at its end: any bytes but that and a slash.
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
  // A number that means something to the library alone.
  uint64_t id;
} dap_file_t;

// Memory that a server can reach. 0 is none.
typedef struct {
  // A number that means something to the library alone.
  uint64_t id;
} dap_buffer_t;

// A completion group. 0 is none.
typedef struct {
  // A number that means something to the library alone.
  uint64_t id;
} dap_group_t;

// One operation that is over.
typedef struct {
  // What the caller gave with the operation.
  uint64_t user_data;
  // Its name, as it was returned when it was submitted.
  uint64_t operation;
  // The bytes moved, which may be fewer than asked for; 0 for a commit; for an append where it begins
  // in the file; or a negative DAP_E_...
  int64_t result;
} dap_completion_t;

// Transfers that are sent together. 0 is none.
typedef struct {
  // A number that means something to the library alone.
  uint64_t id;
} dap_batch_t;

// A range of a file.
typedef struct {
  // Where it begins.
  uint64_t offset;
  // Bytes.
  size_t len;
} dap_range_t;

// A piece of a buffer.
typedef struct {
  // The buffer.
  dap_buffer_t buffer;
  // Where in it.
  size_t at;
  // Bytes.
  size_t len;
} dap_piece_t;

// Requests that are sent together. 0 is none.
typedef struct {
  // A number that means something to the library alone.
  uint64_t id;
} dap_chain_t;

// Who has a lock, or had it.
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

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// What a code means, in one sentence, for any number. The text is there for ever.
//
// Threads: any, at any time.
const char *dap_strerror(int64_t code);

// The name of a code, as in this header; "?" for what is none. The text is there for ever.
//
// Threads: any, at any time.
const char *dap_error_name(int64_t code);

// The number in errno.h that comes nearest to a code; 0 for what is no error.
//
// Threads: any, at any time.
int32_t dap_errno(int64_t code);

// What went wrong in the last call of this thread that failed, in one sentence that names what to do.
// Good until the next call that fails in this thread. Never null.
//
// Threads: each has its own.
const char *dap_last_error(void);

// Fills in what is usual.
//
// Threads: any.
//
// Pointers:
// `options` is null or good for one struct.
int32_t dap_options_init(dap_options_t *options);

// Opens a session with the server that a connection string names, as
// dafs://[USER@]HOST[:PORT]/PATH[?OPTION=VALUE&...]. There are deadline=SECONDS, recovery=SECONDS,
// connect-timeout=SECONDS, transport=auto, iwarp or shm, wait=adaptive, poll or sleep, checksums=yes or no,
// pnfs=yes or no (whether files are read and written at data servers), and fence-id=NAME; what is said there goes before `options`.
//
// Paths given to other functions begin at PATH, or at the server's root if they begin with a slash; the
// empty path is PATH itself. `options` may be null.
//
// Threads: any. All threads may use one session at the same time. A fork of the process may not; it
// opens one of its own.
//
// Pointers:
// `url` is a text or null, `options` null or made by dap_options_init(), `session` null or good for a
// handle.
int32_t dap_connect(const char *url,
                    const dap_options_t *options,
                    dap_session_t *session);

// Ends a session in order; operations in flight are waited for. Its files, buffers and groups are
// still to be closed, and all else about them fails with DAP_E_LOST. The handle is closed even if the
// server did not answer.
//
// Threads: DAP_E_BUSY while another thread is in a call that names the session.
int32_t dap_disconnect(dap_session_t session);

// Asks the server for a sign of life; tells the round trip if `nanoseconds` is not null.
//
// Threads: any.
//
// Pointers:
// `nanoseconds` is null or good for a number.
int32_t dap_ping(dap_session_t session, uint64_t *nanoseconds);

// Sends what has been submitted and not sent yet.
//
// Threads: any.
int32_t dap_flush(dap_session_t session);

// 1 when there is a connection to the server now, as far as is known; 0 while a lost one is being
// replaced, or when the session is over.
//
// Threads: any.
int32_t dap_is_connected(dap_session_t session);

// What the session agreed on.
//
// Threads: any.
//
// Pointers:
// `info` is null or good for one struct.
int32_t dap_session_info(dap_session_t session, dap_session_info_t *info);

// What the session has done so far.
//
// Threads: any.
//
// Pointers:
// `stats` is null or good for one struct.
int32_t dap_stats(dap_session_t session, dap_stats_t *stats);

// Lets every later call of this thread take no longer than so many milliseconds; a negative number
// ends that. A call that is not over by then fails with DAP_E_NOT_SENT if nothing was done, and with
// DAP_E_DEADLINE if it may have been.
//
// Threads: each has its own time.
void dap_limit_thread(int64_t milliseconds);

// The attributes of what a path names. `flags`: 0 or DAP_NO_FOLLOW.
//
// Threads: any.
//
// Pointers:
// `path` is a text or null, `attributes` null or good for one struct.
int32_t dap_stat(dap_session_t handle,
                 const char *path,
                 uint32_t flags,
                 dap_attributes_t *attributes);

// Changes attributes of what a path names. `flags`: 0 or DAP_NO_FOLLOW. When it fails, some may have
// been changed.
//
// Threads: any.
//
// Pointers:
// `path` is a text or null, `change` null or one struct.
int32_t dap_set_attributes(dap_session_t handle,
                           const char *path,
                           uint32_t flags,
                           const dap_set_attributes_t *change);

// Space and limits of the file system of what a path names.
//
// Threads: any.
//
// Pointers:
// `path` is a text or null, `status` null or good for one struct.
int32_t dap_statfs(dap_session_t handle, const char *path, dap_fs_status_t *status);

// Which of the rights in `wanted` (DAP_ACCESS_...) the caller has on what a path names.
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

// Removes a name that is no directory's. A file stays usable to those who have it open.
//
// Threads: any.
//
// Pointers:
// `path` is a text or null.
int32_t dap_remove(dap_session_t handle, const char *path);

// Renames, replacing what has the name `to` if it is of the same kind.
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

// Makes a symbolic link at `path` that says `to`.
//
// Threads: any.
//
// Pointers:
// Both are texts or null.
int32_t dap_symlink(dap_session_t handle, const char *to, const char *path);

// What a symbolic link says, with a zero at its end; returns the bytes without that. DAP_E_SHORT when
// `size` is too small.
//
// Threads: any.
//
// Pointers:
// `path` is a text or null, `target` null or good for `size` bytes.
int64_t dap_readlink(dap_session_t handle,
                     const char *path,
                     char *target,
                     size_t size);

// Makes a file with the permission bits `mode` and `len` bytes in it, and closes it: in one round trip
// if they fit a message and `path` is a name without directories. DAP_E_EXIST if there is something of
// that name. `stable` is as for dap_write(). When it fails the file may be there, with less in it.
//
// Threads: any.
//
// Pointers:
// `path` is a text or null, `memory` null, unmapped, or good for `len` bytes that nobody changes
// meanwhile.
int32_t dap_create_file(dap_session_t handle,
                        const char *path,
                        uint32_t mode,
                        const void *memory,
                        size_t len,
                        uint32_t stable);

// Reads up to `size` bytes from the start of the file at `path` without opening it: in one round trip
// if that fits a message. Returns the bytes.
//
// Threads: any.
//
// Pointers:
// `path` is a text or null, `memory` null, unmapped, or good for `size` bytes.
int64_t dap_read_file(dap_session_t handle,
                      const char *path,
                      void *memory,
                      size_t size);

// Begins to list the directory at `path`.
//
// Threads: any.
//
// Pointers:
// `path` is a text or null, `directory` null or good for a handle.
int32_t dap_opendir(dap_session_t handle, const char *path, dap_dir_t *directory);

// The next entry, without "." and "..": returns 1, or 0 at the end. After an error it ends.
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

// Opens the file at `path`. `flags` are DAP_OPEN_...; `mode` is that of a file that is made.
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

// As dap_open(), together only with others that give the same key: DAP_E_KEY_MISMATCH while the file
// is open under another one. Opens without a key are not concerned.
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

// Closes a file. The handle is closed also when this reports DAP_E_WRITES_LOST or that the server did
// not answer; only after DAP_E_BUSY it is not. Operations of a group that are in flight should be
// waited for before.
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

// Cuts a file, or extends it with zeros.
//
// Threads: any.
int32_t dap_truncate(dap_file_t handle, uint64_t size);

// Makes `len` bytes from `offset` stable; 0 and 0 for all. DAP_E_WRITES_LOST: all that was written
// since the last time must be written again.
//
// Threads: any. Covers what was over when it was called.
int32_t dap_commit(dap_file_t handle, uint64_t offset, uint64_t len);

// Tells the server that a range will be used soon, and asks it to read it ahead.
//
// Threads: any.
int32_t dap_prefetch(dap_file_t handle, uint64_t offset, uint32_t len);

// Makes a buffer of zeros where this session's transport moves data fastest, and tells its address.
//
// Threads: any.
//
// Pointers:
// `buffer` is null or good for a handle, `address` for a pointer.
int32_t dap_buffer_alloc(dap_session_t handle, size_t bytes, dap_buffer_t *buffer, void **address);

// Registers memory of the caller's, for use in place: DAP_E_FAULT if it is not mapped or may not be
// written. It must stay mapped until dap_unregister() has succeeded.
//
// Threads: any.
//
// Pointers:
// As said above.
int32_t dap_register(dap_session_t handle, void *memory, size_t bytes, dap_buffer_t *buffer);

// As dap_register(), where the registration is kept for the next time: cheap for memory that was lent
// before. dap_unregister() closes the handle; the memory may be unmapped when dap_forget_memory()
// has succeeded. A block of a heap may be freed and used for something else without that, if the
// heap keeps it mapped.
//
// Threads: any.
//
// Pointers:
// As said above.
int32_t dap_lend(dap_session_t handle,
                 void *memory,
                 size_t bytes,
                 dap_buffer_t *buffer);

// Ends what dap_lend() and the functions on any memory have registered of this memory, so that it can
// be unmapped: when it succeeds the server cannot reach it any more. DAP_E_BUSY while an operation or a
// buffer handle uses it.
//
// Threads: any.
//
// Pointers:
// The memory is not touched: any pointer will do.
int32_t dap_forget_memory(dap_session_t handle,
                          const void *memory,
                          size_t bytes);

// Where a buffer is, and how long.
//
// Threads: any.
//
// Pointers:
// `address` is null or good for a pointer, `bytes` for a number.
int32_t dap_buffer_memory(dap_buffer_t handle, void **address, size_t *bytes);

// Ends a registration, or frees what dap_buffer_alloc() has made. When it succeeds the server cannot
// reach the memory any more. DAP_E_BUSY while an operation uses it: the buffer stays as it is.
//
// Threads: DAP_E_BUSY while another thread is in a call that names the buffer.
int32_t dap_unregister(dap_buffer_t handle);

// Reads up to `len` bytes from `offset` into any memory; returns the bytes, fewer only at the end of
// the file. Copies once; dap_read_buffer() does not.
//
// Threads: any.
//
// Pointers:
// `memory` is null, unmapped, or good for `len` bytes that nobody else uses meanwhile.
int64_t dap_read(dap_file_t handle,
                 void *memory,
                 size_t len,
                 uint64_t offset);

// Writes `len` bytes at `offset` from any memory; returns `len`. `stable` is DAP_UNSTABLE,
// DAP_DATA_SYNC or DAP_FILE_SYNC. Copies once; dap_write_buffer() does not.
//
// Threads: any.
//
// Pointers:
// `memory` is null, unmapped, or good for `len` bytes that nobody changes meanwhile.
int64_t dap_write(dap_file_t handle,
                  const void *memory,
                  size_t len,
                  uint64_t offset,
                  uint32_t stable);

// Writes `len` bytes at the end of the file, whole or not at all, with nothing of anybody else's in
// between; tells where in `offset`, if that is not null. `stable` is not DAP_UNSTABLE.
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

// As dap_append(), `len` bytes of a buffer from `at` on, which the server fetches itself.
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
// puts them itself; returns the bytes, fewer only at the end of the file.
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

// Ends a group. DAP_E_BUSY while operations are in flight in it; completions that have not been
// fetched are forgotten. Its descriptor is closed.
//
// Threads: DAP_E_BUSY while another thread is in a call that names the group.
int32_t dap_group_free(dap_group_t handle);

// Starts a read of `len` bytes from `offset` into a buffer, `at` bytes from its start. Its completion
// comes to the group with `user_data`; its name is told in `operation`, if that is not null. The bytes
// read may be fewer than asked for, also because of dap_session_info_t.read_bytes_max.
//
// It leaves at once if nothing else is in flight, else with the next call that waits or polls, or with
// dap_flush(). The memory must be left alone until the completion has been fetched.
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
// DAP_UNSTABLE, DAP_DATA_SYNC or DAP_FILE_SYNC. The bytes written may be fewer than asked for; the
// rest is the caller's to write.
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

// Starts to make `len` bytes from `offset` stable; 0 and 0 for all. Writes in flight are not covered.
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

// Starts to write `len` bytes of a buffer from `at` on at the end of the file, as dap_append_buffer() does;
// its completion tells where. Of several that are in flight the server may take any first.
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

// Waits until `min` completions have come, or nothing is in flight any more, or `milliseconds` have
// passed (negative: for ever), and hands out up to `max`, which are at most 4096: 1 waits for any, a
// number for some, SIZE_MAX for all that have a place. With 0 for either it looks once. Returns how many;
// 0 when nothing was in flight; DAP_E_TIMED_OUT when none has come in time; DAP_E_FAULT when there is no
// memory for those that have come, which the next call hands out.
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

// Hands out up to `max` completions that have come, without waiting and without a system call that the
// transport does not need: over shared memory one to wake a server that sleeps, at each 128th poll, or
// after 20 microseconds, a look whether it has gone, and at each sixteenth copy to or from memory of the
// program's own three about its signal handlers; over TCP each poll tries to receive. Returns how many.
//
// Threads: any.
//
// Pointers:
// `completions` is null or good for `max` structs.
int64_t dap_io_poll(dap_group_t handle,
                    dap_completion_t *completions,
                    size_t max);

// How many operations of a group are in flight; those that wait to be fetched are not among them.
//
// Threads: any.
int64_t dap_io_in_flight(dap_group_t handle);

// Gives an operation up if the server cannot reach its memory now: 1 if it is over, 0 if it is with
// the server and must be waited for. Its completion comes in any case.
//
// Threads: any.
int32_t dap_io_cancel(dap_group_t handle, uint64_t operation);

// Asks the server not to wait any longer before it begins with a transfer of an asynchronous batch.
//
// Threads: any.
int32_t dap_io_expedite(dap_group_t handle, uint64_t operation);

// A descriptor that is readable while completions wait to be fetched, for poll() and epoll. It must
// not be read or closed. From the first call on a thread of the library moves the group's operations.
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

// Adds a read of ranges of a file into pieces of buffers; the two need not be cut alike, but have the
// same sum. Returns its place in the batch.
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

// Lets the server take up to so many microseconds to gather and order the transfers, and report each
// by itself, `together` at a time (0: as before).
//
// Threads: any.
int32_t dap_batch_window(dap_batch_t handle,
                         uint32_t microseconds,
                         uint32_t together);

// Sends a batch and closes its handle; each transfer's completion comes to the group. `user_data` and
// `operations` have a place for each transfer; `operations`, for their names, may be null. When this
// fails nothing was sent, and the handle is closed, except after DAP_E_BUSY. When only a part could be
// sent it succeeds, and the completions of the others tell why.
//
// Threads: DAP_E_BUSY while another thread is in a call that names the batch.
//
// Pointers:
// The arrays are null or as long as said.
int32_t dap_batch_submit(dap_batch_t handle,
                         dap_group_t to,
                         const uint64_t *user_data,
                         uint64_t *operations);

// Sends a batch, waits for all of it, and closes its handle. `results` has a place for each transfer:
// the bytes, or a negative DAP_E_...
//
// Threads: DAP_E_BUSY while another thread is in a call that names the batch.
//
// Pointers:
// `results` is null or as long as said.
int32_t dap_batch_run(dap_batch_t handle,
                      int64_t *results);

// Closes the handle of a batch that is not to be sent.
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

// Adds the search for an object by up to 64 names, which the requests behind it work on. `path` begins
// as other paths do, or with DAP_CHAIN_FOUND at what the request before has found. Symbolic links are not
// followed. Its result is 0. Returns its place in the chain.
//
// Threads: any.
//
// Pointers:
// `path` is a text or null.
int64_t dap_chain_lookup(dap_chain_t handle,
                         const char *path,
                         uint32_t flags);

// Adds the question for the attributes of what was found, which dap_chain_run() puts into `attributes`. Its
// result is 0. Returns its place in the chain.
//
// Threads: any.
//
// Pointers:
// `attributes` is null, or good for one struct until the chain has been run.
int64_t dap_chain_stat(dap_chain_t handle,
                       dap_attributes_t *attributes);

// Adds the question which of the rights in `wanted` (DAP_ACCESS_...) the caller has on what was found: that
// is its result. Returns its place in the chain.
//
// Threads: any.
int64_t dap_chain_access(dap_chain_t handle,
                         uint32_t wanted);

// Adds a read of an open file, or with the handle 0 of what was found: of no more than a message
// holds (8000 bytes always fit). dap_chain_run() puts the data into `memory`. Its result is the bytes,
// fewer only at the end of the file. Returns its place in the chain.
//
// Threads: any.
//
// Pointers:
// `memory` is null, unmapped, or good for `len` bytes that nobody else uses until the chain has been run.
int64_t dap_chain_read(dap_chain_t handle,
                       dap_file_t of,
                       void *memory,
                       size_t len,
                       uint64_t offset);

// Adds a write to an open file, or with the handle 0 to what was found: of no more than a message holds
// (8000 bytes always fit). `stable` is DAP_DATA_SYNC or DAP_FILE_SYNC. The data is copied now. Its result
// is the bytes. Returns its place in the chain.
//
// Threads: any.
//
// Pointers:
// `memory` is null, unmapped, or good for `len` bytes that nobody changes meanwhile.
int64_t dap_chain_write(dap_chain_t handle,
                        dap_file_t to,
                        const void *memory,
                        size_t len,
                        uint64_t offset,
                        uint32_t stable);

// Adds a lock, which waits for nobody. `flags` are as for dap_lock(). Its result is 0. Returns its place
// in the chain.
//
// Threads: any.
int64_t dap_chain_lock(dap_chain_t handle,
                       dap_file_t of,
                       uint64_t offset,
                       uint64_t length,
                       uint32_t flags);

// Adds the end of a lock. Its result is 0. Returns its place in the chain.
//
// Threads: any.
int64_t dap_chain_unlock(dap_chain_t handle, dap_file_t of, uint64_t offset, uint64_t length);

// Adds the making of a directory, which is what is found then. `path` is one name, where the session
// begins or, with DAP_CHAIN_FOUND, in what was found. Its result is 0. Returns its place in the chain.
//
// Threads: any.
//
// Pointers:
// `path` is a text or null.
int64_t dap_chain_mkdir(dap_chain_t handle,
                        const char *path,
                        uint32_t flags,
                        uint32_t mode);

// Adds the removal of a name, or of an empty directory. `path` is as for dap_chain_mkdir(). Its result is
// 0. Returns its place in the chain.
//
// Threads: any.
//
// Pointers:
// `path` is a text or null.
int64_t dap_chain_remove(dap_chain_t handle,
                         const char *path,
                         uint32_t flags);

// Sends a chain, waits for it, and closes its handle. `results` has a place for each request: what its
// function says, or a negative DAP_E_...; DAP_E_CHAIN behind the first that failed. When this fails
// nothing was sent: DAP_E_INVALID where the requests form no chain, as when one that writes, makes or
// removes comes behind one that reads content or attributes (locks may come anywhere), or when the first
// works on what was found; DAP_E_CHAIN where the session has not a credit for each at the moment.
//
// Threads: DAP_E_BUSY while another thread is in a call that names the chain.
//
// Pointers:
// `results` is null or as long as said, and so is what dap_chain_read() and dap_chain_stat() were given.
int32_t dap_chain_run(dap_chain_t handle,
                      int64_t *results);

// Closes the handle of a chain that is not to be sent.
//
// Threads: DAP_E_BUSY while another thread is in a call that names the chain.
int32_t dap_chain_discard(dap_chain_t handle);

// Locks `length` bytes from `offset`, and waits up to `milliseconds` for those who stand in the way
// (0: not at all; negative: for ever). DAP_E_LOCK_HELD and DAP_E_LOCK_BROKEN say who in `holder`, if
// that is not null. Two opens of one process are two owners.
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

// Takes over broken locks, which the range must cover entirely, to mend what they protect;
// dap_unlock() ends the repair. Until then nobody else reads or writes the bytes: that is
// DAP_E_STALE_STATEID. DAP_E_INVAL where nothing is broken, DAP_E_LOCK_RANGE for a part of a lock.
//
// Threads: any.
int32_t dap_lock_for_repair(dap_file_t handle, uint64_t offset, uint64_t length);

// Gives up what this file has locked in a range. Closing the file gives up all.
//
// Threads: any.
int32_t dap_unlock(dap_file_t handle, uint64_t offset, uint64_t length);

// Undoes all that was written since the file was locked with DAP_LOCK_AUTO_RECOVERY, and gives the
// lock up.
//
// Threads: any.
int32_t dap_abort_lock(dap_file_t handle);

// Whether somebody would stand in the way of a lock by somebody else: 1, and who in `holder`, if that
// is not null; else 0.
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

// Changes who may use what a path names (DAP_FENCE_FILE or DAP_FENCE_FILE_SYSTEM), as DAP_FENCE_CLEAR,
// _SET, _ADD or _REMOVE and `count` names say. When it has succeeded, no request of those who are out
// is under way any more.
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

// The names on a fence, each with a zero at its end, one after the other. Returns how many there are;
// 0 for nobody. DAP_E_NOT_FOUND says that there is no fence and everybody
// has access. DAP_E_SHORT when they do not fit.
//
// Threads: any.
//
// Pointers:
// `path` is a text or null, `target` null or good for `size` bytes.
int64_t dap_fence(dap_session_t handle,
                  const char *path,
                  uint32_t what,
                  char *target,
                  size_t size);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* DAFS_H */
