/* transfer.c -- fio's units as operations of a completion group.
 *
 * Invariants
 * - A unit that was queued is either in `submitted` until commit(), or has been told to fio as
 *   issued. None is fetched before that.
 * - Every unit that was queued comes back through getevents(), also after a cancel.
 * - Nothing comes back short: what the library has moved of a unit is followed by the rest. fio 3.33
 *   would ask for the rest itself, but of a buffer that it has filled anew when it verifies. */

#include "engine.h"

#include <assert.h>

// The most completions that the library hands out at a time.
#define COMPLETIONS_MAX 4096

int dafs_unit_init(struct thread_data *td, struct io_u *io_u)
{
    io_u->engine_data = calloc(1, sizeof(struct dafs_operation));
    return io_u->engine_data ? 0 : ENOMEM;
}

void dafs_unit_free(struct thread_data *td, struct io_u *io_u)
{
    free(io_u->engine_data);
    io_u->engine_data = NULL;
}

// The stability of writes that sync= asks for.
static uint32_t stability(const struct thread_data *td)
{
    if ((td->o.sync_io & O_SYNC) == O_SYNC)
        return DAP_FILE_SYNC;
    return td->o.sync_io & O_DSYNC ? DAP_DATA_SYNC : DAP_UNSTABLE;
}

// Submits a unit, or what is left of it.
static int32_t submit(struct thread_data *td, struct io_u *io_u)
{
    const struct dafs_job *job = td->io_ops_data;
    struct dafs_open *open = io_u->file->engine_data;
    struct dafs_operation *operation = io_u->engine_data;
    uint64_t unit = (uintptr_t)io_u;
    size_t at = (uintptr_t)io_u->xfer_buf - (uintptr_t)job->memory + operation->done;
    size_t bytes = io_u->xfer_buflen - operation->done;
    uint64_t offset = io_u->offset + operation->done;

    switch (io_u->ddir) {
    case DDIR_READ:
        return dap_async_read(job->group, unit, open->file, job->buffer, at, bytes, offset,
                      &operation->name);
    case DDIR_WRITE:
        open->is_unsynced = 1;
        return dap_async_write(job->group, unit, open->file, job->buffer, at, bytes, offset,
                       stability(td), &operation->name);
    case DDIR_SYNC:
    case DDIR_DATASYNC:
        open->is_unsynced = 0;
        return dap_async_commit(job->group, unit, open->file, 0, 0, &operation->name);
    default:
        // setup() has refused the jobs that come here.
        return DAP_E_NOTSUPP;
    }
}

enum fio_q_status dafs_queue(struct thread_data *td, struct io_u *io_u)
{
    struct dafs_job *job = td->io_ops_data;
    struct dafs_operation *operation = io_u->engine_data;
    int32_t code;

    fio_ro_check(td, io_u);
    operation->result = 0;
    operation->done = 0;
    code = submit(td, io_u);
    if (code == DAP_E_TOO_MANY && dap_io_in_flight(job->group) > 0)
        return FIO_Q_BUSY;
    if (code < 0) {
        operation->result = code;
        io_u->error = dafs_errno(code);
        log_err("dafs: %s: %s\n", io_u->file->file_name,
            code == DAP_E_NOTSUPP ? "only reads, writes and syncs are supported" :
                        dap_last_error());
        return FIO_Q_COMPLETED;
    }
    assert(job->submitted_count < job->depth);
    job->submitted[job->submitted_count++] = io_u;
    return FIO_Q_QUEUED;
}

// Tells fio when its units left.
static void issued(struct thread_data *td, struct dafs_job *job)
{
    unsigned int i;
    struct timespec now;

    if (fio_fill_issue_time(td)) {
        fio_gettime(&now, NULL);
        for (i = 0; i < job->submitted_count; i++) {
            job->submitted[i]->issue_time = now;
            io_u_queued(td, job->submitted[i]);
        }
    }
    job->submitted_count = 0;
}

int dafs_commit(struct thread_data *td)
{
    struct dafs_job *job = td->io_ops_data;

    if (!job->submitted_count)
        return 0;
    issued(td, job);
    // Without batches fio commits each unit by itself. It asks for completions when all units are
    // under way, and before it pauses: then those that have gathered leave together, as soon as the
    // library has no completion left to hand out. Until then its own thread looks after them.
    if (td->o.iodepth_batch <= 1)
        return 0;
    // That it could not send now is told by each operation.
    dap_flush(job->session);
    return 0;
}

// Books what became of a unit. 1 when it is over, 0 when the rest of it is under way.
static int finish(struct thread_data *td, const dap_completion_t *completion)
{
    struct io_u *io_u = (struct io_u *)(uintptr_t)completion->user_data;
    struct dafs_operation *operation = io_u->engine_data;
    int64_t result = completion->result;

    if (result > 0) {
        operation->done += result;
        assert(operation->done <= io_u->xfer_buflen);
        result = operation->done < io_u->xfer_buflen ? submit(td, io_u) : 0;
        if (result == 0 && operation->done < io_u->xfer_buflen)
            return 0;
    }
    operation->result = result;
    io_u->error = result < 0 ? dafs_errno(result) : 0;
    // fio 3.33 looks at no error of a sync that was queued.
    if (io_u->error && ddir_sync(io_u->ddir)) {
        if (!td->error)
            log_err("dafs: %s: sync: %s\n", io_u->file->file_name, dap_strerror(result));
        td_verror(td, io_u->error, "dafs");
    }
    // The file ends in it; that it is short would not be noticed.
    if (ddir_rw(io_u->ddir) && operation->done < io_u->xfer_buflen && !io_u->error)
        io_u->error = EIO;
    return 1;
}

// Fetches up to `room` completions into `into`, and waits for `wanted` of them.
static int64_t fetch(struct dafs_job *job, dap_completion_t *into, unsigned int room,
             unsigned int wanted, const struct timespec *timeout)
{
    int64_t milliseconds = -1;

    if (room > COMPLETIONS_MAX)
        room = COMPLETIONS_MAX;
    if (!wanted)
        return dap_io_poll(job->group, into, room);
    if (timeout)
        milliseconds = timeout->tv_sec * 1000LL + timeout->tv_nsec / 1000000;
    return dap_io_wait(job->group, into, room, wanted < room ? wanted : room, milliseconds);
}

int dafs_getevents(struct thread_data *td, unsigned int min, unsigned int max,
           const struct timespec *timeout)
{
    struct dafs_job *job = td->io_ops_data;
    unsigned int over = 0;
    int64_t count, i;

    // To look for completions sends what waits to be sent.
    issued(td, job);
    if (max > job->depth)
        max = job->depth;
    do {
        dap_completion_t *fetched = job->completions + over;

        count = fetch(job, fetched, max - over, over < min ? min - over : 0, timeout);
        if (count == DAP_E_TIMED_OUT)
            break;
        if (count < 0) {
            log_err("dafs: waiting: %s\n", dap_last_error());
            return -dafs_errno(count);
        }
        for (i = 0; i < count; i++)
            if (finish(td, &fetched[i]))
                job->completions[over++] = fetched[i];
    } while (count && over < min);
    return over;
}

struct io_u *dafs_event(struct thread_data *td, int event)
{
    const struct dafs_job *job = td->io_ops_data;

    return (struct io_u *)(uintptr_t)job->completions[event].user_data;
}

char *dafs_errdetails(ERRDETAILS_ARGUMENTS)
{
    const struct dafs_operation *operation = io_u->engine_data;

    if (operation->result < 0)
        return strdup(dap_strerror(operation->result));
    return strdup("the file ends before what was to be read");
}

int dafs_cancel(struct thread_data *td, struct io_u *io_u)
{
    const struct dafs_job *job = td->io_ops_data;
    const struct dafs_operation *operation = io_u->engine_data;

    dap_io_cancel(job->group, operation->name);
    // Its completion comes in any case, so it is not over for fio.
    return 1;
}
