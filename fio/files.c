/* files.c -- the files of a job: what is there, laying them out, opening, removing.
 *
 * fio leaves the files of an engine without disks alone, so this does what it does for local ones:
 * a file that a job reads is filled, one that it only writes is made as long as it says.
 *
 * Invariants
 * - f->real_file_size is what the server said, or what it was extended to.
 * - Nothing is made or changed with --readonly or against allow_file_create=0. */

#include "engine.h"

// Bytes with which a file is filled at a time.
#define FILL_BYTES (1u << 20)

// The thing that the engine cannot do, or NULL.
static const char *unsupported(struct thread_data *td)
{
    if (td_trim(td) || td->o.trim_percentage)
        return "trim is not supported: DAFS has no way to free a range of a file";
    if (td->o.sync_file_range)
        return "sync_file_range is not supported; use fsync or fdatasync";
    if (td->o.fsync_on_close)
        return "fsync_on_close is not supported; use end_fsync";
    if (td->o.pre_read)
        return "pre_read is not supported; run a job that reads the file first";
    if (td->o.fill_device)
        return "fill_device is not supported; give a size";
    if (td->o.zone_mode == ZONE_MODE_ZBD)
        return "zonemode=zbd is not supported: there are no zoned devices behind DAFS";
    if (fio_option_is_set(&td->o, mem_type))
        return "iomem is not supported; dafs_memory says whose memory is used";
    return NULL;
}

static int is_missing(int32_t code)
{
    return code == DAP_E_NOENT;
}

static int measure(struct thread_data *td, dap_session_t session, struct fio_file *f)
{
    dap_attributes_t attributes;
    int32_t code = dap_stat(session, f->file_name, 0, &attributes);

    // Whatever has this name on this host.
    f->filetype = FIO_TYPE_FILE;
    f->real_file_size = 0;
    if (is_missing(code)) {
        if (!td->o.size && !td->o.file_size_low && !td->o.read_iolog_file) {
            log_err("dafs: %s is not there, and without size= it cannot be made\n",
                f->file_name);
            td_verror(td, ENOENT, "dafs");
            return 1;
        }
        return 0;
    }
    if (code < 0)
        return dafs_failed(td, f->file_name, code);
    if (attributes.kind != DAP_TYPE_FILE) {
        log_err("dafs: %s is no regular file\n", f->file_name);
        td_verror(td, EINVAL, "dafs");
        return 1;
    }
    f->real_file_size = attributes.size;
    return 0;
}

int dafs_setup(struct thread_data *td)
{
    const struct dafs_fio_options *options = td->eo;
    const char *why = unsupported(td);
    dap_attributes_t attributes;
    dap_session_t session;
    struct fio_file *f;
    unsigned int i;
    int32_t code;
    int failed = 0;

    if (why)
        return dafs_refuse(td, EOPNOTSUPP, why);
    if (dafs_borrow(td, &session))
        return 1;
    code = dap_stat(session, "", 0, &attributes);
    if (code < 0)
        failed = dafs_failed(td, options->url, code);
    for_each_file(td, f, i) {
        if (failed)
            break;
        failed = measure(td, session, f);
    }
    dafs_return(td, session);
    return failed;
}

// Makes the directories on the way to `path`.
static int32_t make_parents(dap_session_t session, const char *path)
{
    char *copy = strdup(path), *slash = copy;
    int32_t code = copy ? 0 : DAP_E_NO_MEMORY;

    while (code == 0 && slash && (slash = strchr(slash + 1, '/'))) {
        *slash = '\0';
        code = dap_mkdir(session, copy, 0755);
        if (code == DAP_E_EXIST)
            code = 0;
        *slash = '/';
    }
    free(copy);
    return code;
}

static int32_t make(dap_session_t session, const char *path, dap_file_t *file)
{
    const uint32_t flags = DAP_OPEN_READ | DAP_OPEN_WRITE | DAP_OPEN_CREATE;
    int32_t code = dap_open(session, path, flags, 0644, file);

    if (!is_missing(code))
        return code;
    code = make_parents(session, path);
    return code < 0 ? code : dap_open(session, path, flags, 0644, file);
}

// Writes what fio fills files with, from the end of the file on.
static int64_t fill(struct thread_data *td, dap_session_t session, dap_file_t file, uint64_t from,
            uint64_t to)
{
    dap_buffer_t buffer;
    void *memory;
    int64_t code = dap_buffer_alloc(session, FILL_BYTES, &buffer, &memory);

    if (code < 0)
        return code;
    while (from < to && !td->terminate) {
        size_t bytes = to - from < FILL_BYTES ? to - from : FILL_BYTES;

        fill_io_buffer(td, memory, bytes, bytes);
        code = dap_write_buffer(file, buffer, 0, bytes, from, DAP_UNSTABLE);
        if (code < 0)
            break;
        from += code;
    }
    dap_unregister(buffer);
    return code < 0 ? code : 0;
}

static int64_t lay_out(struct thread_data *td, dap_session_t session, struct fio_file *f,
               uint64_t size)
{
    const dap_set_attributes_t longer = { .what = DAP_SET_SIZE, .size = size };
    bool filled = td_read(td) || (td->o.overwrite && !td->o.file_append);
    dap_file_t file;
    int64_t code = make(session, f->file_name, &file);
    int64_t closed;

    if (code < 0)
        return code;
    if (filled)
        code = fill(td, session, file, f->real_file_size, size);
    else
        code = dap_set_attributes(session, f->file_name, 0, &longer);
    if (code == 0 && td->o.create_fsync)
        code = dap_commit(file, 0, 0);
    closed = dap_close(file);
    return code < 0 ? code : closed;
}

int dafs_prepopulate(struct thread_data *td, struct fio_file *f)
{
    uint64_t size = f->file_offset + f->io_size;
    dap_session_t session;
    int64_t code;

    if (f->real_file_size >= size)
        return 0;
    if (read_only || !td->o.allow_create) {
        log_err("dafs: %s has %llu of %llu bytes, and %s forbids to extend it\n",
            f->file_name, (unsigned long long)f->real_file_size,
            (unsigned long long)size,
            read_only ? "--readonly" : "allow_file_create=0");
        td_verror(td, f->real_file_size ? EROFS : ENOENT, "dafs");
        return 1;
    }
    if (!td->o.create_on_open) {
        if (dafs_borrow(td, &session))
            return 1;
        code = lay_out(td, session, f, size);
        if (code < 0)
            dafs_failed(td, f->file_name, code);
        dafs_return(td, session);
        if (code < 0)
            return 1;
    }
    f->real_file_size = size;
    return 0;
}

int dafs_open_file(struct thread_data *td, struct fio_file *f)
{
    const struct dafs_job *job = td->io_ops_data;
    struct dafs_open *open = calloc(1, sizeof(*open));
    int32_t code;

    if (!open)
        return dafs_refuse(td, ENOMEM, "there is no memory for an open file");
    if (td_write(td) && !read_only && td->o.allow_create)
        code = make(job->session, f->file_name, &open->file);
    else
        code = dap_open(job->session, f->file_name,
                td_write(td) && !read_only ? DAP_OPEN_READ | DAP_OPEN_WRITE :
                                 DAP_OPEN_READ,
                0, &open->file);
    if (code < 0) {
        free(open);
        return dafs_failed(td, f->file_name, code);
    }
    f->engine_data = open;
    return 0;
}

int dafs_close_file(struct thread_data *td, struct fio_file *f)
{
    struct dafs_open *open = f->engine_data;
    int32_t synced = 0, code;

    if (!open)
        return 0;
    // A file that fio closes early it opens anew for its end_fsync, which would not know then what the server
    // has lost of what was written by this open file.
    if (td->o.end_fsync && open->is_unsynced && !td->error)
        synced = dap_commit(open->file, 0, 0);
    if (synced < 0)
        dafs_failed(td, f->file_name, synced);
    code = dap_close(open->file);
    free(open);
    f->engine_data = NULL;
    if (code >= 0)
        return 0;
    // The job is over with the first failure, and this one is no news then.
    if (!td->error)
        log_err("dafs: %s: %s\n", f->file_name, dap_last_error());
    // Jobs that want stable data say so with fsync or sync, and have been told by these.
    return code == DAP_E_WRITES_LOST ? 0 : dafs_errno(code);
}

int dafs_unlink_file(struct thread_data *td, struct fio_file *f)
{
    dap_session_t session;
    int32_t code;

    if (dafs_borrow(td, &session))
        return EIO;
    code = dap_remove(session, f->file_name);
    dafs_return(td, session);
    return code < 0 ? dafs_errno(code) : 0;
}
