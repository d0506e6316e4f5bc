/* direct.c -- reads and writes with O_DIRECT, whose content must be right: operations at random in the
 * manner of fsx, and reads of files that were laid out beforehand. Built by ../nfs-direct.sh into a
 * static program, so that it starts quickly in the guest; the host runs it, too.
 *
 * Every command exits with 0 when all was as it must be, with 1 and a message when not.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* How large the file of `fsx` becomes, and how much one of its operations is about. */
#define FILE_BYTES_MAX (512 << 10)
#define WRITE_BYTES_MAX (20 << 10)
#define SPAN_BYTES_MAX (64 << 10)
/* Extents meet at multiples of a block; ranges end that close to these. */
#define EDGE_BYTES 16
/* How much a failure tells of what went before. */
#define TRACE_LINES 12
#define TRACE_LINE_BYTES 80

/* A file, and what must be in it. All behind its size is zero in `wanted`. */
struct subject {
    int fd;
    char *wanted, *got;
    size_t size;
};

static char trace[TRACE_LINES][TRACE_LINE_BYTES];
static unsigned traced;

static void note(const char *format, ...)
{
    va_list args;

    va_start(args, format);
    vsnprintf(trace[traced++ % TRACE_LINES], TRACE_LINE_BYTES, format, args);
    va_end(args);
}

static void fail(const char *format, ...)
{
    va_list args;

    for (unsigned line = traced > TRACE_LINES ? traced - TRACE_LINES : 0; line < traced; line++)
        printf("%u: %s\n", line, trace[line % TRACE_LINES]);
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    printf("\n");
    exit(1);
}

static int opened(const char *path, int flags)
{
    int fd = open(path, flags, 0644);

    if (fd < 0)
        fail("open %s: %s", path, strerror(errno));
    return fd;
}

static void *memory(size_t bytes)
{
    void *space = calloc(1, bytes + 1);

    if (!space)
        fail("no memory");
    return space;
}

static void write_all(int fd, const char *from, size_t length, off_t offset)
{
    while (length) {
        ssize_t written = pwrite(fd, from, length, offset);
        if (written <= 0)
            fail("write of %zu at %lld: %s", length, (long long)offset, strerror(errno));
        from += written, length -= written, offset += written;
    }
}

/* One system call gets all that the file has there. */
static void read_and_compare(struct subject *file, size_t offset, size_t length)
{
    size_t left = offset < file->size ? file->size - offset : 0;
    size_t expected = length < left ? length : left;
    ssize_t count = pread(file->fd, file->got, length, offset);

    if (count < 0)
        fail("read of %zu at %zu: %s", length, offset, strerror(errno));
    if ((size_t)count != expected)
        fail("read of %zu at %zu: %zd bytes instead of %zu", length, offset, count, expected);
    for (size_t at = 0; at < expected; at++)
        if (file->got[at] != file->wanted[offset + at])
            fail("read of %zu at %zu: wrong from byte %zu on", length, offset, offset + at);
}

/* Up to `max`, mostly where extents may meet. */
static size_t somewhere(size_t max)
{
    size_t at = random() % (max + 1), block = random() % 2 ? 1024 : 4096;

    if (random() % 4) {
        at = at / block * block + random() % (2 * EDGE_BYTES + 1);
        at = at < EDGE_BYTES ? 0 : at - EDGE_BYTES;
    }
    return at < max ? at : max;
}

/* The length of what begins at `offset`, at least 1. */
static size_t some_length(size_t offset, size_t max, size_t end)
{
    size_t length = end - offset < max ? end - offset : max, until = offset + somewhere(length);

    return until > offset ? until - offset : 1;
}

static void grow(struct subject *file, size_t size)
{
    file->size = size > file->size ? size : file->size;
}

static void write_some(struct subject *file)
{
    size_t offset = somewhere(FILE_BYTES_MAX - 1);
    size_t length = some_length(offset, WRITE_BYTES_MAX, FILE_BYTES_MAX);

    note("write %zu at %zu", length, offset);
    for (size_t at = offset; at < offset + length; at++)
        file->wanted[at] = random() % 255 + 1;
    write_all(file->fd, file->wanted + offset, length, offset);
    grow(file, offset + length);
}

static void allocate(struct subject *file)
{
    size_t offset = somewhere(FILE_BYTES_MAX - 1);
    size_t length = some_length(offset, SPAN_BYTES_MAX, FILE_BYTES_MAX);

    note("allocate %zu at %zu", length, offset);
    if (fallocate(file->fd, 0, offset, length))
        fail("allocate: %s", strerror(errno));
    grow(file, offset + length);
}

static void punch(struct subject *file)
{
    size_t offset, length;

    if (!file->size)
        return;
    offset = somewhere(file->size - 1);
    length = some_length(offset, SPAN_BYTES_MAX, file->size);
    note("punch %zu at %zu", length, offset);
    if (fallocate(file->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, length))
        fail("punch: %s", strerror(errno));
    memset(file->wanted + offset, 0, length);
}

static void cut(struct subject *file)
{
    size_t size = somewhere(FILE_BYTES_MAX);

    note("truncate to %zu", size);
    if (ftruncate(file->fd, size))
        fail("truncate: %s", strerror(errno));
    if (size < file->size)
        memset(file->wanted + size, 0, file->size - size);
    file->size = size;
}

static void read_some(struct subject *file)
{
    size_t offset = somewhere(file->size), length = some_length(offset, SPAN_BYTES_MAX, FILE_BYTES_MAX);

    note("read %zu at %zu", length, offset);
    read_and_compare(file, offset, length);
}

/* fsx FILE WANTED SEED OPERATIONS -- so many operations at random on FILE, of which WANTED gets what it
 * must then have. */
static void fsx(char **args)
{
    struct subject file = { .fd = opened(args[0], O_CREAT | O_TRUNC | O_RDWR | O_DIRECT),
                            .wanted = memory(FILE_BYTES_MAX), .got = memory(FILE_BYTES_MAX) };
    int result;

    srandom(atoi(args[2]));
    note("seed %s", args[2]);
    for (int i = 0; i < atoi(args[3]); i++) {
        switch (random() % 20) {
        case 0: cut(&file); break;
        case 1: case 2: punch(&file); break;
        case 3: case 4: case 5: allocate(&file); break;
        case 6: case 7: case 8: case 9: write_some(&file); break;
        default: read_some(&file);
        }
    }
    read_and_compare(&file, 0, FILE_BYTES_MAX);
    if (close(file.fd))
        fail("close: %s", strerror(errno));
    result = opened(args[1], O_CREAT | O_TRUNC | O_WRONLY);
    write_all(result, file.wanted, file.size, 0);
}

/* lay FILE PIECE PIECES -- write so many pieces, of so many bytes each and as far apart; what FILE has in
 * between stays. */
static void lay(char **args)
{
    size_t length = atoll(args[1]), pieces = atoll(args[2]);
    char *piece = memory(length);
    int fd = opened(args[0], O_CREAT | O_WRONLY);

    for (size_t i = 0; i < pieces; i++) {
        memset(piece, i % 255 + 1, length);
        write_all(fd, piece, length, 2 * i * length);
    }
    if (fsync(fd))
        fail("fsync: %s", strerror(errno));
}

/* forget FILE -- write its content to the disk, and take it out of the page cache, where what is allocated
 * and never written counts as data. */
static void forget(char **args)
{
    int fd = opened(args[0], O_RDONLY);

    if (fsync(fd) || posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED))
        fail("forget %s: %s", args[0], strerror(errno));
}

static struct subject laid(char **args)
{
    struct subject file = { .fd = opened(args[0], O_RDONLY | O_DIRECT) };
    int wanted = opened(args[1], O_RDONLY);
    struct stat status;
    size_t at = 0;

    if (fstat(wanted, &status))
        fail("stat %s: %s", args[1], strerror(errno));
    file.size = status.st_size;
    file.wanted = memory(file.size);
    file.got = memory(file.size);
    while (at < file.size) {
        ssize_t count = read(wanted, file.wanted + at, file.size - at);
        if (count <= 0)
            fail("read %s: %s", args[1], strerror(errno));
        at += count;
    }
    return file;
}

/* lengths FILE WANTED OFFSET FIRST LAST -- read FIRST bytes at OFFSET, and one more, and so on. */
static void lengths(char **args)
{
    struct subject file = laid(args);

    for (size_t length = atoll(args[3]); length <= (size_t)atoll(args[4]); length++)
        read_and_compare(&file, atoll(args[2]), length);
}

/* ranges FILE WANTED SEED READS -- read the whole file at once, and then ranges at random. */
static void ranges(char **args)
{
    struct subject file = laid(args);

    read_and_compare(&file, 0, file.size);
    srandom(atoi(args[2]));
    note("seed %s", args[2]);
    for (int i = 0; i < atoi(args[3]); i++) {
        size_t offset = somewhere(file.size - 1);
        read_and_compare(&file, offset, some_length(offset, SPAN_BYTES_MAX, file.size));
    }
}

int main(int count_args, char **args)
{
    static const struct {
        const char *name;
        int args;
        void (*run)(char **);
    } commands[] = {
        { "fsx", 4, fsx },         { "lay", 3, lay },       { "forget", 1, forget },
        { "lengths", 5, lengths }, { "ranges", 4, ranges },
    };

    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        if (count_args == 2 + commands[i].args && strcmp(args[1], commands[i].name) == 0) {
            commands[i].run(args + 2);
            return 0;
        }
    }
    printf("direct: no such command, or not as many words\n");
    return 2;
}
