/* memory.c -- fio's buffers, all in one piece that the server can reach.
 *
 * Invariants
 * - The memory is there before fio asks for it: fio 3.33 goes on without buffers, and crashes, when
 *   it asks and is refused. */

#include "engine.h"

// At least what fio is going to ask for: a block for each unit, and room to align them.
static size_t bytes_needed(struct thread_data *td)
{
    return td_max_bs(td) * td->o.iodepth + 2 * (page_size + td->o.mem_align);
}

static int own_memory(struct dafs_job *job, size_t bytes)
{
    int32_t code;

    if (posix_memalign(&job->memory, page_size, bytes))
        return DAP_E_NO_MEMORY;
    code = dap_register(job->session, job->memory, bytes, &job->buffer);
    if (code < 0)
        free(job->memory);
    else
        job->memory_is_ours = 1;
    return code;
}

int dafs_memory_alloc(struct thread_data *td, struct dafs_job *job)
{
    const struct dafs_fio_options *options = td->eo;
    size_t bytes = bytes_needed(td);
    int32_t code;

    if (options->memory == MEMORY_REGISTERED)
        code = own_memory(job, bytes);
    else
        code = dap_buffer_alloc(job->session, bytes, &job->buffer, &job->memory);
    if (code < 0) {
        job->memory = NULL;
        log_err("dafs: %zu bytes for buffers: %s\n", bytes, dap_strerror(code));
        td_verror(td, dafs_errno(code), "dafs");
        return 1;
    }
    job->memory_bytes = bytes;
    return 0;
}

int dafs_memory_give(struct thread_data *td, size_t bytes)
{
    const struct dafs_job *job = td->io_ops_data;

    if (bytes > job->memory_bytes) {
        log_err("dafs: fio wants %zu bytes for buffers, not %zu\n", bytes,
            job->memory_bytes);
        return 1;
    }
    td->orig_buffer = job->memory;
    return 0;
}

void dafs_memory_free(struct dafs_job *job)
{
    int32_t code;

    if (!job->memory)
        return;
    code = dap_unregister(job->buffer);
    // Memory that the server can reach is not given to anybody else.
    if (code < 0)
        log_err("dafs: buffers: %s\n", dap_last_error());
    else if (job->memory_is_ours)
        free(job->memory);
    job->memory = NULL;
}
