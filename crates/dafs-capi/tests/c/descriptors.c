/* descriptors.c URL TRANSPORT -- a program that closes descriptors it does not own, and reuses their numbers,
 * gets an error, and the session does not access its new files. */
#include <dafs.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "expect.h"

enum { NUMBERS = 64, BYTES = 1 << 16 };

static const char *url;
static uint32_t transport;

/* The replacement of a descriptor. */
enum kind { FILE_KIND, PAIR_KIND, TCP_KIND, EPOLL_KIND, KINDS };

struct other {
    enum kind kind;
    int number;
    int peer; /* of a socket, or of the one that an epoll instance watches */
};

static int new_file(void)
{
    int fd = memfd_create("others", MFD_CLOEXEC);

    check(write(fd, "what is here stays here", 23) == 23);
    check(lseek(fd, 5, SEEK_SET) == 5);
    return fd;
}

static void tcp_pair(int pair[2])
{
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
    socklen_t size = sizeof at;
    int listener = socket(AF_INET, SOCK_STREAM, 0);

    check(bind(listener, (struct sockaddr *)&at, sizeof at) == 0 && listen(listener, 1) == 0);
    check(getsockname(listener, (struct sockaddr *)&at, &size) == 0);
    pair[0] = socket(AF_INET, SOCK_STREAM, 0);
    check(connect(pair[0], (struct sockaddr *)&at, sizeof at) == 0);
    pair[1] = accept(listener, NULL, NULL);
    close(listener);
}

static int above(int fd)
{
    int number = fcntl(fd, F_DUPFD_CLOEXEC, 200);

    check(number >= 200);
    close(fd);
    return number;
}

/* Puts another file at a number, with readable data. */
static struct other put(enum kind kind, int number)
{
    struct other other = { kind, number, -1 };
    struct epoll_event once = { .events = EPOLLIN | EPOLLET, .data.u64 = 1 };
    int pair[2], watched;

    switch (kind) {
    case FILE_KIND:
        pair[0] = new_file();
        break;
    case PAIR_KIND:
        check(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
        break;
    case EPOLL_KIND:
        check(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
        watched = above(pair[0]);
        check((pair[0] = epoll_create1(EPOLL_CLOEXEC)) >= 0);
        check(epoll_ctl(pair[0], EPOLL_CTL_ADD, watched, &once) == 0);
        break;
    default:
        tcp_pair(pair);
    }
    /* Above the numbers that will be reused. */
    pair[0] = above(pair[0]);
    if (kind != FILE_KIND)
        other.peer = above(pair[1]);
    check(dup2(pair[0], number) == number);
    close(pair[0]);
    check(kind == FILE_KIND || send(other.peer, "for the program alone", 21, 0) == 21);
    return other;
}

/* It is unchanged. */
static void untouched(const struct other *other)
{
    struct epoll_event event;
    char bytes[64];

    check(fcntl(other->number, F_GETFD) >= 0);
    if (other->kind == FILE_KIND) {
        check(lseek(other->number, 0, SEEK_CUR) == 5);
        check(pread(other->number, bytes, sizeof bytes, 0) == 23);
        check(memcmp(bytes, "what is here stays here", 23) == 0);
        return;
    }
    if (other->kind == EPOLL_KIND) {
        /* The error is reported only once, to the first call. */
        check(epoll_wait(other->number, &event, 1, 0) == 1 && event.data.u64 == 1);
        return;
    }
    check(recv(other->peer, bytes, sizeof bytes, MSG_DONTWAIT) == -1 && errno == EAGAIN);
    check(recv(other->number, bytes, sizeof bytes, MSG_DONTWAIT) == 21);
    check(memcmp(bytes, "for the program alone", 21) == 0);
}

/* The descriptors above the standard ones, in order. */
static int open_numbers(int numbers[NUMBERS])
{
    DIR *directory = opendir("/proc/self/fd");
    struct dirent *entry;
    int count = 0;

    while ((entry = readdir(directory)) != NULL) {
        int number = atoi(entry->d_name);
        if (number > 2 && number != dirfd(directory) && count < NUMBERS)
            numbers[count++] = number;
    }
    closedir(directory);
    return count;
}

struct work {
    dap_session_t session;
    dap_file_t file;
    dap_group_t group;
    dap_buffer_t own;
    char memory[BYTES];
};

static void begin(struct work *work, uint32_t wait, int watch)
{
    dap_options_t options;
    void *address;

    check(dap_options_init(&options) == 0);
    options.transport = transport;
    options.wait = wait;
    options.deadline_milliseconds = 10000;
    check(dap_connect(url, &options, &work->session) == 0);
    check(dap_open(work->session, "file", DAP_OPEN_READ | DAP_OPEN_WRITE, 0, &work->file) == 0);
    check(dap_group_create(work->session, &work->group) == 0);
    check(dap_buffer_alloc(work->session, BYTES, &work->own, &address) == 0);
    check(dap_read(work->file, work->memory, BYTES, 0) == BYTES);
    check(dap_read_buffer(work->file, work->own, 0, BYTES, 0) == BYTES);
    if (watch)
        check(dap_group_descriptor(work->group) > 2);
}

/* Calls of every kind; all must return. Returns the number of successes. */
static int calls(struct work *work)
{
    dap_completion_t done;
    dap_buffer_t more;
    dap_attributes_t attributes;
    void *address;
    int well = 0;

    well += dap_read(work->file, work->memory, 4096, 0) == 4096;
    well += dap_write(work->file, work->memory, 4096, 0, DAP_FILE_SYNC) == 4096;
    well += dap_read_buffer(work->file, work->own, 0, BYTES, 0) == BYTES;
    well += dap_stat(work->session, "file", 0, &attributes) == 0;
    if (dap_async_read(work->group, 1, work->file, work->own, 0, BYTES, 0, NULL) == 0)
        well += dap_io_wait(work->group, &done, 1, 1, -1) == 1 && done.result == BYTES;
    if (dap_buffer_alloc(work->session, BYTES, &more, &address) == 0)
        dap_unregister(more);
    return well;
}

/* Calls fail in the end. Through shared memory alone they go on until the server has noticed that its
 * socket is closed, which takes as long as the machine is busy. */
static void until_calls_fail(struct work *work)
{
    int tries;

    for (tries = 0; calls(work) != 0; tries++) {
        check(tries < 1000);
        usleep(10000);
    }
}

/* All descriptors are closed, and their numbers reused. */
static void everything(enum kind kind, uint32_t wait)
{
    static struct work work;
    struct other others[NUMBERS];
    int numbers[NUMBERS], count, at;

    begin(&work, wait, 1);
    count = open_numbers(numbers);
    check(count > 4);
    closefrom(3);
    for (at = 0; at < count; at++)
        others[at] = put(kind, numbers[at]);
    until_calls_fail(&work);
    check(dap_read(work.file, work.memory, 1, 0) == DAP_E_LOST);
    check(strstr(dap_last_error(), "has closed descriptors of the session") != NULL);
    check(dap_disconnect(work.session) < 0);
    for (at = 0; at < count; at++)
        untouched(&others[at]);
}

/* One descriptor alone is reused; operations that do not need it may go on. */
static void one(enum kind kind, uint32_t wait, int which)
{
    static struct work work;
    struct other other;
    int numbers[NUMBERS];

    begin(&work, wait, 1);
    if (which >= open_numbers(numbers))
        exit(77);
    other = put(kind, numbers[which]);
    calls(&work);
    dap_disconnect(work.session);
    untouched(&other);
}

/* A session with the same descriptor numbers is not mistaken for the one before. */
static void another_session(uint32_t wait)
{
    static struct work first, second;

    begin(&first, wait, 0);
    closefrom(3);
    begin(&second, wait, 0);
    until_calls_fail(&first);
    check(calls(&second) == 5);
    check(dap_disconnect(first.session) < 0);
    check(calls(&second) == 5);
    check(dap_disconnect(second.session) == 0);
}

static int in_child(void (*work)(int, uint32_t, int), int kind, uint32_t wait, int which)
{
    int status;
    pid_t child = fork();

    if (child == 0) {
        alarm(60);
        work(kind, wait, which);
        exit(0);
    }
    check(waitpid(child, &status, 0) == child && WIFEXITED(status));
    check(WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == 77);
    return WEXITSTATUS(status);
}

static void all_work(int kind, uint32_t wait, int which)
{
    (void)which;
    if (kind == KINDS)
        another_session(wait);
    else
        everything((enum kind)kind, wait);
}

static void one_work(int kind, uint32_t wait, int which)
{
    one((enum kind)kind, wait, which);
}

int main(int argc, char **argv)
{
    static const uint32_t waits[] = { DAP_WAIT_ADAPTIVE, DAP_WAIT_SLEEP, DAP_WAIT_POLL };
    size_t wait;
    int kind, which;

    if (argc < 3)
        return 2;
    url = argv[1];
    transport = (uint32_t)atoi(argv[2]);
    for (wait = 0; wait < sizeof waits / sizeof waits[0]; wait++)
        for (kind = 0; kind <= KINDS; kind++)
            in_child(all_work, kind, waits[wait], 0);
    for (kind = 0; kind < KINDS; kind++)
        for (which = 0; in_child(one_work, kind, DAP_WAIT_SLEEP, which) == 0; which++)
            check(which < NUMBERS);
    puts("done");
    return 0;
}
