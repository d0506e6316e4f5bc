/* engine.h -- what the files of the engine share.
 *
 * Invariants
 * - A job's session is opened in the process that uses it: setup() and prepopulate_file(), which fio
 *   calls before it forks, open one of their own and close it before they return.
 * - Whatever fails says so in one sentence on fio's error output and is booked with td_verror(). */

#ifndef DAFS_FIO_ENGINE_H
#define DAFS_FIO_ENGINE_H

#include "fio.h"
#include "optgroup.h"

#include <dafs.h>

enum dafs_memory { MEMORY_LIBRARY, MEMORY_REGISTERED };

struct dafs_fio_options {
    void *pad; // fio keeps its own pointer here.
    char *url;
    char *password_file;
    unsigned int transport; // DAP_TRANSPORT_...
    unsigned int memory;    // enum dafs_memory
};

// One job, in td->io_ops_data.
struct dafs_job {
    dap_session_t session;
    dap_group_t group;

    // Where fio's buffers are: in one piece, which the server can reach.
    dap_buffer_t buffer;
    void *memory;
    size_t memory_bytes;
    int memory_is_ours; // To be freed by us, not by the library.

    // Events that getevents() has fetched, for event().
    dap_completion_t *completions;
    // Submitted since the last commit(); room for `depth`, as in `completions`.
    struct io_u **submitted;
    unsigned int submitted_count;
    unsigned int depth;
};

// One of fio's units, in io_u->engine_data.
struct dafs_operation {
    uint64_t name; // As the library knows it.
    uint64_t done; // Bytes moved.
    int64_t result; // 0, or why it failed.
};

// An open file, in fio_file->engine_data.
struct dafs_open {
    dap_file_t file;
    int is_unsynced; // Written to since the last sync was sent.
};

// The number in errno.h for a code of the library, never 0.
int dafs_errno(int64_t code);

// Says that `what` has failed with `code`, as the library's last call in this thread, and returns 1.
int dafs_failed(struct thread_data *td, const char *what, int64_t code);

// Says why it cannot be done, and returns 1.
int dafs_refuse(struct thread_data *td, int error, const char *why);

// Opens a session as the job's options say. 0, or 1 when it has been said why not.
int dafs_connect(struct thread_data *td, dap_session_t *session);

// The session of a job that runs, else a new one for dafs_return().
int dafs_borrow(struct thread_data *td, dap_session_t *session);
void dafs_return(struct thread_data *td, dap_session_t session);

// files.c
int dafs_setup(struct thread_data *td);
int dafs_prepopulate(struct thread_data *td, struct fio_file *f);
int dafs_open_file(struct thread_data *td, struct fio_file *f);
int dafs_close_file(struct thread_data *td, struct fio_file *f);
int dafs_unlink_file(struct thread_data *td, struct fio_file *f);

// memory.c
int dafs_memory_alloc(struct thread_data *td, struct dafs_job *job);
int dafs_memory_give(struct thread_data *td, size_t bytes);
void dafs_memory_free(struct dafs_job *job);

// transfer.c
int dafs_unit_init(struct thread_data *td, struct io_u *io_u);
void dafs_unit_free(struct thread_data *td, struct io_u *io_u);
enum fio_q_status dafs_queue(struct thread_data *td, struct io_u *io_u);
int dafs_commit(struct thread_data *td);
int dafs_getevents(struct thread_data *td, unsigned int min, unsigned int max,
           const struct timespec *timeout);
struct io_u *dafs_event(struct thread_data *td, int event);
// Debian 13's fio names the job here, too.
#if FIO_IOOPS_VERSION >= 36
#define ERRDETAILS_ARGUMENTS struct thread_data *td, struct io_u *io_u
#else
#define ERRDETAILS_ARGUMENTS struct io_u *io_u
#endif
char *dafs_errdetails(ERRDETAILS_ARGUMENTS);
int dafs_cancel(struct thread_data *td, struct io_u *io_u);

#endif
