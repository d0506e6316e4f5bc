/* engine.c -- a fio engine on libdafs: its options, and the life of a job.
 *
 * fio loads it as ioengine=external:/path/libdafs_fio.so; docs/fio.md tells how to use it. */

#include "engine.h"

// The requests that a session has outstanding unless it asks for more.
#define REQUESTS_USUAL 32
#define REQUESTS_MAX 65535

int dafs_errno(int64_t code)
{
    int number = dap_errno(code);

    return number ? number : EIO;
}

int dafs_failed(struct thread_data *td, const char *what, int64_t code)
{
    log_err("dafs: %s: %s\n", what, dap_last_error());
    td_verror(td, dafs_errno(code), "dafs");
    return 1;
}

int dafs_refuse(struct thread_data *td, int error, const char *why)
{
    log_err("dafs: %s\n", why);
    td_verror(td, error, "dafs");
    return 1;
}

// Whether a URL names a user, who needs a password.
static int names_user(const char *url)
{
    const char *scheme = strstr(url, "://");
    const char *host = scheme ? scheme + strlen("://") : url;
    const char *at = strchr(host, '@');

    return at && at < host + strcspn(host, "/?");
}

// The password: the first line of dafs_password_file, else what DAFS_PASSWORD says. `room` has
// DAP_PASSWORD_BYTES.
static int find_password(struct thread_data *td, char *room)
{
    const struct dafs_fio_options *options = td->eo;
    const char *given = getenv("DAFS_PASSWORD");
    FILE *file;
    size_t length;

    room[0] = '\0';
    if (options->password_file) {
        file = fopen(options->password_file, "re");
        if (!file) {
            log_err("dafs: %s: %s\n", options->password_file, strerror(errno));
            td_verror(td, errno, "dafs");
            return 1;
        }
        if (!fgets(room, DAP_PASSWORD_BYTES, file))
            room[0] = '\0';
        fclose(file);
        length = strcspn(room, "\r\n");
        if (length == DAP_PASSWORD_BYTES - 1)
            return dafs_refuse(td, EINVAL, "the first line of dafs_password_file is too long");
        room[length] = '\0';
    } else if (given) {
        if (strlen(given) >= DAP_PASSWORD_BYTES)
            return dafs_refuse(td, EINVAL, "DAFS_PASSWORD is too long");
        strcpy(room, given);
    }
    if (!room[0])
        return dafs_refuse(td, EINVAL,
                   "dafs_url names a user; give the password by dafs_password_file=FILE, "
                   "in its first line, or by the variable DAFS_PASSWORD");
    return 0;
}

int dafs_connect(struct thread_data *td, dap_session_t *session)
{
    const struct dafs_fio_options *options = td->eo;
    char password[DAP_PASSWORD_BYTES];
    dap_options_t how;
    int32_t code;

    if (!options->url)
        return dafs_refuse(td, EINVAL,
                   "there is no dafs_url; give dafs_url=dafs://HOST[:PORT]/EXPORT");
    code = dap_options_init(&how);
    if (code < 0)
        return dafs_failed(td, "options", code);
    how.transport = options->transport;
    if (td->o.iodepth > REQUESTS_USUAL)
        how.requests = td->o.iodepth < REQUESTS_MAX ? td->o.iodepth : REQUESTS_MAX;
    if (names_user(options->url)) {
        if (find_password(td, password))
            return 1;
        how.password = password;
    } else if (options->password_file) {
        return dafs_refuse(td, EINVAL,
                   "dafs_password_file needs a user: dafs_url=dafs://USER@HOST/");
    }
    code = dap_connect(options->url, &how, session);
    explicit_bzero(password, sizeof(password));
    if (code < 0)
        return dafs_failed(td, options->url, code);
    return 0;
}

int dafs_borrow(struct thread_data *td, dap_session_t *session)
{
    const struct dafs_job *job = td->io_ops_data;

    if (!job)
        return dafs_connect(td, session);
    *session = job->session;
    return 0;
}

void dafs_return(struct thread_data *td, dap_session_t session)
{
    if (!td->io_ops_data)
        dap_disconnect(session);
}

static void job_free(struct dafs_job *job)
{
    // Nothing is in flight any more, unless the server is gone and the job gives up.
    if (job->group.id)
        dap_group_free(job->group);
    dafs_memory_free(job);
    if (job->session.id)
        dap_disconnect(job->session);
    free(job->completions);
    free(job->submitted);
    free(job);
}

// Called in the thread or process of the job.
static int dafs_init(struct thread_data *td)
{
    struct dafs_job *job = calloc(1, sizeof(*job));
    int32_t code;

    if (!job)
        return dafs_refuse(td, ENOMEM, "there is no memory for a job");
    job->depth = td->o.iodepth;
    job->completions = calloc(job->depth, sizeof(*job->completions));
    job->submitted = calloc(job->depth, sizeof(struct io_u *));
    if (!job->completions || !job->submitted) {
        job_free(job);
        return dafs_refuse(td, ENOMEM, "there is no memory for this iodepth");
    }
    if (dafs_connect(td, &job->session)) {
        job_free(job);
        return 1;
    }
    code = dap_group_create(job->session, &job->group);
    if (code < 0)
        dafs_failed(td, "completion group", code);
    if (code < 0 || dafs_memory_alloc(td, job)) {
        job_free(job);
        return 1;
    }
    td->io_ops_data = job;
    return 0;
}

static void dafs_cleanup(struct thread_data *td)
{
    if (td->io_ops_data)
        job_free(td->io_ops_data);
    td->io_ops_data = NULL;
}

static struct fio_option options[] = {
    {
        .name = "dafs_url",
        .lname = "URL of a DAFS export",
        .type = FIO_OPT_STR_STORE,
        .off1 = offsetof(struct dafs_fio_options, url),
        .help = "dafs://[USER@]HOST[:PORT]/PATH[?OPTION=VALUE&...], where OPTION is deadline, recovery,"
            " connect-timeout, transport, wait, checksums, optimistic or fence-id",
        .category = FIO_OPT_C_ENGINE,
        .group = FIO_OPT_G_INVALID,
    },
    {
        .name = "dafs_password_file",
        .lname = "File with the password for DAFS",
        .type = FIO_OPT_STR_STORE,
        .off1 = offsetof(struct dafs_fio_options, password_file),
        .help = "A file whose first line is the password of the user in dafs_url; without it,"
            " the variable DAFS_PASSWORD is",
        .category = FIO_OPT_C_ENGINE,
        .group = FIO_OPT_G_INVALID,
    },
    {
        .name = "dafs_transport",
        .lname = "DAFS transport",
        .type = FIO_OPT_STR,
        .off1 = offsetof(struct dafs_fio_options, transport),
        .help = "How to reach the server",
        .def = "auto",
        .posval = {
            {
                .ival = "auto",
                .oval = DAP_TRANSPORT_AUTO,
                .help = "shared memory on this host, a device that leads there, else iWARP",
            },
            { .ival = "iwarp", .oval = DAP_TRANSPORT_IWARP, .help = "iWARP over TCP" },
            { .ival = "shm", .oval = DAP_TRANSPORT_SHM, .help = "shared memory" },
            { .ival = "verbs", .oval = DAP_TRANSPORT_VERBS, .help = "an RDMA device" },
        },
        .category = FIO_OPT_C_ENGINE,
        .group = FIO_OPT_G_INVALID,
    },
    {
        .name = "dafs_memory",
        .lname = "Memory for DAFS",
        .type = FIO_OPT_STR,
        .off1 = offsetof(struct dafs_fio_options, memory),
        .help = "Whose memory fio's buffers are",
        .def = "library",
        .posval = {
            {
                .ival = "library",
                .oval = MEMORY_LIBRARY,
                .help = "what the library finds best for the transport",
            },
            {
                .ival = "registered",
                .oval = MEMORY_REGISTERED,
                .help = "a program's own, registered with the library",
            },
        },
        .category = FIO_OPT_C_ENGINE,
        .group = FIO_OPT_G_INVALID,
    },
    { .name = NULL },
};

// The name by which fio finds it.
__attribute__((visibility("default"))) struct ioengine_ops ioengine = {
    .name = "dafs",
    .version = FIO_IOOPS_VERSION,
    // No offload: the workers of fio 3.33 cannot load engines that are not its own.
    .flags = FIO_DISKLESSIO | FIO_NODISKUTIL | FIO_NO_OFFLOAD | FIO_ASYNCIO_SETS_ISSUE_TIME,
    .setup = dafs_setup,
    .init = dafs_init,
    .cleanup = dafs_cleanup,
    .prepopulate_file = dafs_prepopulate,
    .open_file = dafs_open_file,
    .close_file = dafs_close_file,
    .unlink_file = dafs_unlink_file,
    .iomem_alloc = dafs_memory_give,
    .io_u_init = dafs_unit_init,
    .io_u_free = dafs_unit_free,
    .queue = dafs_queue,
    .commit = dafs_commit,
    .getevents = dafs_getevents,
    .event = dafs_event,
    .errdetails = dafs_errdetails,
    .cancel = dafs_cancel,
    .options = options,
    .option_struct_size = sizeof(struct dafs_fio_options),
};
