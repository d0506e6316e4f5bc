/* calls.c URL TRANSPORT -- a program that keeps many operations under way, and fetches one completion at a time:
 * its submissions gather, and its memory for results is checked once.
 *
 * The library's system calls go through the functions here, which count those of this thread. */
#include <dafs.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { DEPTH = 32, BLOCK = 4096, BLOCKS = 64, OPERATIONS = 4096 };

static __thread unsigned sends, probes, checks;

ssize_t send(int fd, const void *bytes, size_t length, int flags)
{
    sends++;
    return syscall(SYS_sendto, fd, bytes, length, flags, NULL, 0);
}

ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
    sends++;
    return syscall(SYS_sendmsg, fd, message, flags);
}

int madvise(void *memory, size_t length, int advice)
{
    probes++;
    return (int)syscall(SYS_madvise, memory, length, advice);
}

int fcntl(int fd, int command, ...)
{
    va_list list;
    void *argument;

    va_start(list, command);
    argument = va_arg(list, void *);
    va_end(list);
    checks += command == F_GETSIG;
    return (int)syscall(SYS_fcntl, fd, command, argument);
}

static void check_at(int line, int holds, const char *what)
{
    if (!holds) {
        fprintf(stderr, "line %d: %s does not hold; %u sends, %u probes, %u checks; %s\n", line, what, sends,
                probes, checks, dap_last_error());
        exit(1);
    }
}
#define check(condition) check_at(__LINE__, (condition), #condition)

/* The state that a program keeps for an operation. All of them fill several pages. */
static struct unit {
    uint64_t name;
    char more[504];
} units[DEPTH];

static dap_group_t group;
static dap_file_t file;
static dap_buffer_t buffer;

static void submit(uint64_t unit, unsigned number)
{
    check(dap_async_read(group, unit, file, buffer, unit * BLOCK, BLOCK, (uint64_t)(number % BLOCKS) * BLOCK,
                         &units[unit].name) == 0);
}

int main(int argc, char **argv)
{
    dap_completion_t *done = malloc(BLOCK);
    dap_options_t options;
    dap_session_t session;
    unsigned begun, over;
    void *memory;

    if (argc < 3)
        return 2;
    check(dap_options_init(&options) == 0);
    options.transport = (uint32_t)atoi(argv[2]);
    check(dap_connect(argv[1], &options, &session) == 0);
    check(dap_open(session, "file", DAP_OPEN_READ, 0, &file) == 0);
    check(dap_buffer_alloc(session, DEPTH * BLOCK, &buffer, &memory) == 0);
    check(dap_group_create(session, &group) == 0);
    check(probes > 0 && (options.transport != DAP_TRANSPORT_IWARP || (sends > 0 && checks > 0)));

    /* The first one leaves alone, as any one that finds no other under way. The others gather. */
    sends = probes = checks = 0;
    for (begun = 0; begun < DEPTH; begun++)
        submit(begun, begun);
    check(sends <= DEPTH / 4 && checks <= DEPTH / 2);
    for (over = 0; over < OPERATIONS; over++) {
        check(dap_io_wait(group, done, 1, 1, 60000) == 1);
        check(done->result == BLOCK);
        if (begun < OPERATIONS)
            submit(done->user_data, begun++);
    }
    check(probes <= OPERATIONS / 16);
    check(dap_io_in_flight(group) == 0);

    check(dap_group_free(group) == 0);
    check(dap_unregister(buffer) == 0);
    check(dap_close(file) == 0);
    check(dap_disconnect(session) == 0);
    free(done);
    puts("done");
    return 0;
}
