/* fileop.c -- one file operation at a time, for tests whose shell has no word for it. Built by
 * ../../nfs.sh into a static program, so that it starts quickly in the guest.
 *
 * Every command exits with 0 when it did what it says, with 1 and a message when not. Commands that
 * go on for a while print a line when they have begun, and end on SIGTERM.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define RECORD_BYTES 64

/* The bytes that measurements write at once, and the distance of those that they look for. */
#define LARGE_BYTES (2 << 20)
#define STAMP_BYTES 8192

static void fail(const char *format, ...)
{
    int error = errno;
    va_list args;

    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    printf(": %s\n", strerror(error));
    exit(1);
}

static void wrong(const char *format, ...)
{
    va_list args;

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
        fail("open %s", path);
    return fd;
}

static void say(const char *text)
{
    puts(text);
    fflush(stdout);
}

static double now_seconds(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec / 1e9;
}

static volatile sig_atomic_t must_end;

static void on_term(int number)
{
    (void)number;
    must_end = 1;
}

/* From here on SIGTERM interrupts no call: Linux gives up even a removal that was told to wait, such as for
 * the end of the grace period, when a signal comes. `is_asked_to_end` looks for it instead. */
static void work_undisturbed(void)
{
    sigset_t term;

    sigemptyset(&term);
    sigaddset(&term, SIGTERM);
    if (sigprocmask(SIG_BLOCK, &term, NULL))
        fail("sigprocmask");
}

static int is_asked_to_end(void)
{
    sigset_t pending;

    return sigpending(&pending) == 0 && sigismember(&pending, SIGTERM);
}

static struct flock range(const char *kind, const char *start, const char *length)
{
    struct flock lock = { .l_type = *kind == 'r' ? F_RDLCK : *kind == 'w' ? F_WRLCK : F_UNLCK,
                          .l_whence = SEEK_SET, .l_start = atoll(start),
                          .l_len = atoll(length) };
    return lock;
}

/* lock FILE r|w START LENGTH -- take the lock or fail at once, then hold it until SIGTERM.
 * lock-wait: the same, but wait for it. */
static void lock(char **args, int command)
{
    struct flock lock = range(args[1], args[2], args[3]);
    int fd = opened(args[0], O_RDWR);

    if (fcntl(fd, command, &lock) < 0)
        fail("lock");
    say("locked");
    while (!must_end)
        pause();
}

/* try FILE r|w START LENGTH -- can it be locked now? Exits with 3 if somebody else holds it. */
static void try(char **args)
{
    struct flock lock = range(args[1], args[2], args[3]);
    int fd = opened(args[0], O_RDWR);

    if (fcntl(fd, F_SETLK, &lock) == 0)
        exit(0);
    if (errno != EAGAIN && errno != EACCES)
        fail("lock");
    say("denied");
    exit(3);
}

/* holder FILE r|w START LENGTH -- print what stands in the way of such a lock. */
static void holder(char **args)
{
    struct flock lock = range(args[1], args[2], args[3]);
    int fd = opened(args[0], O_RDWR);

    if (fcntl(fd, F_GETLK, &lock) < 0)
        fail("F_GETLK");
    if (lock.l_type == F_UNLCK)
        printf("free\n");
    else
        printf("%s %lld %lld\n", lock.l_type == F_WRLCK ? "w" : "r", (long long)lock.l_start,
               (long long)lock.l_len);
}

/* ranges FILE -- lock, split, merge and let go of ranges, and then hold what is left:
 * a write lock on [0,100) and [200,300), a read lock on [300,400). */
static void ranges(char **args)
{
    int fd = opened(args[0], O_RDWR);
    static const char *steps[][3] = { { "w", "0", "400" },   { "u", "100", "50" },
                                      { "u", "150", "50" },  { "r", "200", "200" },
                                      { "w", "200", "50" },  { "w", "240", "60" },
                                      { "u", "400", "0" } };
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        struct flock lock = range(steps[i][0], steps[i][1], steps[i][2]);
        if (fcntl(fd, F_SETLK, &lock) < 0)
            fail("step %zu", i);
    }
    say("locked");
    while (!must_end)
        pause();
}

/* count FILE fcntl|flock TIMES -- add one to the number in FILE so many times, under a lock. */
static void count(char **args)
{
    int by_range = strcmp(args[1], "fcntl") == 0, times = atoi(args[2]);
    int fd = opened(args[0], O_RDWR);
    char text[32];

    for (int i = 0; i < times; i++) {
        struct flock lock = range("w", "0", "0");
        long number;
        if (by_range ? fcntl(fd, F_SETLKW, &lock) : flock(fd, LOCK_EX))
            fail("lock %d", i);
        ssize_t length = pread(fd, text, sizeof text - 1, 0);
        if (length < 0)
            fail("read");
        text[length] = 0;
        number = atol(text);
        length = snprintf(text, sizeof text, "%ld\n", number + 1);
        if (pwrite(fd, text, length, 0) != length)
            fail("write");
        lock.l_type = F_UNLCK;
        if (by_range ? fcntl(fd, F_SETLK, &lock) : flock(fd, LOCK_UN))
            fail("unlock %d", i);
    }
}

/* append FILE TIMES TAG -- append so many records, each under flock: NFS has no atomic append. */
static void append(char **args)
{
    int times = atoi(args[1]), fd = opened(args[0], O_RDWR | O_APPEND | O_CREAT);

    for (int i = 0; i < times; i++) {
        char record[RECORD_BYTES + 1];
        int length = snprintf(record, sizeof record, "%s %d ", args[2], i);
        memset(record + length, '.', RECORD_BYTES - length);
        record[RECORD_BYTES - 1] = '\n';
        if (flock(fd, LOCK_EX))
            fail("flock");
        if (write(fd, record, RECORD_BYTES) != RECORD_BYTES)
            fail("append");
        if (flock(fd, LOCK_UN))
            fail("unlock");
    }
}

/* holes FILE -- the map of data and holes: `data START END` for each piece with data. */
static void holes(char **args)
{
    int fd = opened(args[0], O_RDONLY);
    off_t end = 0;

    for (;;) {
        off_t start = lseek(fd, end, SEEK_DATA);
        if (start < 0 && errno == ENXIO)
            return;
        if (start < 0)
            fail("SEEK_DATA");
        end = lseek(fd, start, SEEK_HOLE);
        if (end < 0)
            fail("SEEK_HOLE");
        printf("data %lld %lld\n", (long long)start, (long long)end);
    }
}

/* copy SOURCE OFFSET FILE OFFSET LENGTH -- by copy_file_range alone, all of it. */
static void copy(char **args)
{
    int in = opened(args[0], O_RDONLY), out = opened(args[2], O_WRONLY | O_CREAT);
    off_t from = atoll(args[1]), to = atoll(args[3]);
    long long left = atoll(args[4]);

    while (left > 0) {
        ssize_t copied = copy_file_range(in, &from, out, &to, left, 0);
        if (copied < 0)
            fail("copy_file_range");
        if (copied == 0)
            wrong("copy_file_range ended early, %lld bytes missing", left);
        left -= copied;
    }
}

/* clone SOURCE FILE -- FICLONE. Exits with 3 where the server cannot. */
static void clone_file(char **args)
{
    int in = opened(args[0], O_RDONLY), out = opened(args[1], O_WRONLY | O_CREAT);

    if (ioctl(out, FICLONE, in) == 0)
        return;
    if (errno == EOPNOTSUPP || errno == EXDEV || errno == EINVAL) {
        say("this store has no clones");
        exit(3);
    }
    fail("FICLONE");
}

/* map FILE OFFSET TEXT -- write through a shared mapping, read it back by read(2) after msync. */
static void map(char **args)
{
    int fd = opened(args[0], O_RDWR);
    off_t offset = atoll(args[1]);
    size_t length = strlen(args[2]);
    struct stat status;
    char *mapped, *back = malloc(length);

    if (fstat(fd, &status))
        fail("stat");
    mapped = mmap(NULL, status.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (mapped == MAP_FAILED)
        fail("mmap");
    memcpy(mapped + offset, args[2], length);
    if (msync(mapped, status.st_size, MS_SYNC))
        fail("msync");
    if (pread(fd, back, length, offset) != (ssize_t)length || memcmp(back, args[2], length))
        wrong("read does not see what the mapping wrote");
}

/* excl FILE -- O_CREAT|O_EXCL. Exits with 3 if it exists. */
static void excl(char **args)
{
    int fd = open(args[0], O_CREAT | O_EXCL | O_WRONLY, 0640);

    if (fd < 0 && errno == EEXIST)
        exit(3);
    if (fd < 0)
        fail("open");
    if (write(fd, args[0], strlen(args[0])) < 0 || close(fd))
        fail("write");
}

/* gone FILE OTHER -- a file that is removed, then one that is replaced by a rename, while open:
 * both keep their contents for who has them open, and names end as they should. */
static void gone(char **args)
{
    char back[8] = "";
    struct stat status;
    int fd = opened(args[0], O_RDWR | O_CREAT | O_TRUNC), other;

    if (unlink(args[0]))
        fail("unlink");
    if (write(fd, "removed", 7) != 7 || fsync(fd) || pread(fd, back, 7, 0) != 7 ||
        memcmp(back, "removed", 7))
        fail("a removed file does not keep its data");
    if (stat(args[0], &status) == 0)
        wrong("the removed name is still there");
    close(fd);

    fd = opened(args[0], O_RDWR | O_CREAT | O_TRUNC);
    if (write(fd, "before", 6) != 6 || fsync(fd))
        fail("write");
    other = opened(args[1], O_RDWR | O_CREAT | O_TRUNC);
    if (write(other, "after!", 6) != 6 || close(other) || rename(args[1], args[0]))
        fail("rename");
    if (pread(fd, back, 6, 0) != 6 || memcmp(back, "before", 6))
        fail("a replaced file does not keep its data");
    other = opened(args[0], O_RDONLY);
    if (read(other, back, 6) != 6 || memcmp(back, "after!", 6))
        fail("the new file has not taken the name");
    close(fd);
}

/* many DIRECTORY TIMES -- create so many empty files. */
static void many(char **args)
{
    if (mkdir(args[0], 0755) && errno != EEXIST)
        fail("mkdir");
    if (chdir(args[0]))
        fail("chdir");
    for (int i = 0; i < atoi(args[1]); i++) {
        char name[64];
        snprintf(name, sizeof name, "a-file-with-quite-a-long-name-%06d", i);
        close(opened(name, O_CREAT | O_WRONLY));
    }
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* list DIRECTORY TIMES [stat] -- all names of `many` are there, each once; with their attributes. */
static void list(char **args)
{
    int wanted = atoi(args[1]), found = 0, with_status = args[2] != NULL;
    char **names = calloc(wanted + 1, sizeof *names);
    DIR *directory = opendir(args[0]);
    struct dirent *entry;

    if (!directory)
        fail("opendir");
    for (errno = 0; (entry = readdir(directory)); errno = 0) {
        struct stat status;
        if (entry->d_name[0] == '.')
            continue;
        if (found == wanted)
            wrong("more than %d entries, such as %s", wanted, entry->d_name);
        if (with_status && fstatat(dirfd(directory), entry->d_name, &status, 0))
            fail("stat %s", entry->d_name);
        if (with_status && status.st_ino != entry->d_ino)
            wrong("%s has two file numbers", entry->d_name);
        names[found++] = strdup(entry->d_name);
    }
    if (errno)
        fail("readdir");
    if (found != wanted)
        wrong("%d entries instead of %d", found, wanted);
    qsort(names, found, sizeof *names, by_text);
    for (int i = 0; i < found; i++) {
        char name[64];
        snprintf(name, sizeof name, "a-file-with-quite-a-long-name-%06d", i);
        if (strcmp(names[i], name))
            wrong("%s is not there, but %s", name, names[i]);
    }
}

/* journal FILE LOG -- append records to FILE with fsync, and write the number of each into LOG when
 * it is safe. Prints the longest time that one took when told to end. */
static void journal(char **args)
{
    int fd = opened(args[0], O_WRONLY | O_CREAT | O_APPEND);
    int log = opened(args[1], O_WRONLY | O_CREAT | O_TRUNC);
    double longest = 0;
    int i;

    work_undisturbed();
    say("begun");
    for (i = 0; !is_asked_to_end(); i++) {
        char record[RECORD_BYTES + 1], line[32];
        double start = now_seconds(), took;
        int length = snprintf(record, sizeof record, "record %d ", i);
        memset(record + length, '.', RECORD_BYTES - length);
        record[RECORD_BYTES - 1] = '\n';
        if (write(fd, record, RECORD_BYTES) != RECORD_BYTES)
            fail("write %d", i);
        if (fsync(fd))
            fail("fsync %d", i);
        took = now_seconds() - start;
        longest = took > longest ? took : longest;
        length = snprintf(line, sizeof line, "%d\n", i);
        if (pwrite(log, line, length, 0) != length)
            fail("log");
    }
    printf("%d records, the slowest took %.0f ms\n", i, longest * 1e3);
}

/* churn DIRECTORY TAG [killed|both] -- make, fill, rename and remove files, and check each step; none may
 * happen twice or not at all. Prints the longest pause when told to end.
 *
 * A server that is killed forgets what it has just answered, so that a rename or removal that is
 * asked for again finds nothing. With `killed` that is no failure if it did happen. Nor is a file
 * that exists already: Linux asks for an exclusive create with another verifier after it was told to
 * wait for the end of the grace period. With `both` a rename that was cut short may have left the file
 * with both names, and then the one that is asked for again is refused. */
static void churn(char **args)
{
    double longest = 0;
    int i, killed = args[2] != NULL, both = killed && !strcmp(args[2], "both"), again = 0;

    if (mkdir(args[0], 0755) && errno != EEXIST)
        fail("mkdir");
    if (chdir(args[0]))
        fail("chdir");
    work_undisturbed();
    say("begun");
    for (i = 0; !is_asked_to_end(); i++) {
        char a[64], b[64];
        double start = now_seconds(), took;
        struct stat status, old;
        snprintf(a, sizeof a, "%s-%d", args[1], i);
        snprintf(b, sizeof b, "%s-%d.new", args[1], i);
        int fd = open(b, O_CREAT | O_EXCL | O_WRONLY, 0644);
        if (fd < 0 && killed && errno == EEXIST) {
            fd = open(b, O_WRONLY);
            again++;
        }
        if (fd < 0)
            fail("create %s", b);
        if (write(fd, b, strlen(b)) != (ssize_t)strlen(b) || close(fd))
            fail("write %s", b);
        if (rename(b, a)) {
            int error = errno, is_cut = error == EEXIST && both && !stat(a, &status) && !stat(b, &old) &&
                                        status.st_ino == old.st_ino;
            errno = error;
            if (!is_cut && (!killed || errno != ENOENT))
                fail("rename to %s", a);
            again++;
        }
        if (stat(a, &status) || status.st_size != (off_t)strlen(b))
            fail("stat %s, %lld bytes", a, (long long)status.st_size);
        /* Every tenth file stays, to be counted afterwards. */
        if (i % 10 && unlink(a)) {
            if (!killed || errno != ENOENT)
                fail("unlink %s", a);
            again++;
        }
        took = now_seconds() - start;
        longest = took > longest ? took : longest;
    }
    printf("%d rounds, the slowest took %.0f ms, %d answers lost\n", i, longest * 1e3, again);
}

/* Data for measurements: of every 8 KiB the first bytes are their place and what file it is. */
static void stamp(uint64_t *block, size_t length, uint64_t offset, uint64_t file)
{
    for (size_t at = 0; at < length; at += STAMP_BYTES) {
        block[at / sizeof *block] = offset + at;
        block[at / sizeof *block + 1] = file;
    }
}

static void transfer(int fd, uint64_t *block, size_t length, uint64_t offset, uint64_t file, int write_it)
{
    uint64_t wanted[2];

    if (write_it) {
        stamp(block, length, offset, file);
        if (pwrite(fd, block, length, offset) != (ssize_t)length)
            fail("write at %llu", (unsigned long long)offset);
        return;
    }
    if (pread(fd, block, length, offset) != (ssize_t)length)
        fail("read at %llu", (unsigned long long)offset);
    for (size_t at = 0; at < length; at += STAMP_BYTES) {
        wanted[0] = offset + at;
        wanted[1] = file;
        if (memcmp(block + at / sizeof *block, wanted, sizeof wanted))
            wrong("wrong content at %llu", (unsigned long long)(offset + at));
    }
}

/* put FILE NUMBER MIB -- write so many MiB, 2 MiB at a time, and make them stable; get: read and compare
 * them. Prints how many microseconds that took. The number tells contents of files apart. */
static void large(char **args, int write_it)
{
    uint64_t file = atoll(args[1]), mib = atoll(args[2]);
    uint64_t *block = calloc(1, LARGE_BYTES);
    double start = now_seconds();
    int fd = opened(args[0], write_it ? O_CREAT | O_WRONLY : O_RDONLY);

    if (!block)
        fail("memory");
    for (uint64_t offset = 0; offset < mib << 20; offset += LARGE_BYTES)
        transfer(fd, block, LARGE_BYTES, offset, file, write_it);
    if (write_it && fsync(fd))
        fail("fsync");
    if (close(fd))
        fail("close");
    printf("%.0f\n", (now_seconds() - start) * 1e6);
    free(block);
}

static void put(char **args)
{
    large(args, 1);
}

static void get(char **args)
{
    large(args, 0);
}

/* put-small PREFIX COUNT BYTES -- make so many files, each stable when it is closed; get-small: read and
 * compare them. Prints how many microseconds that took. */
static void small(char **args, int write_it)
{
    size_t length = atoll(args[2]);
    uint64_t *block = calloc(1, length);
    double start = now_seconds();

    if (!block || length % STAMP_BYTES)
        wrong("small files have some times %d bytes", STAMP_BYTES);
    for (int i = 0; i < atoi(args[1]); i++) {
        char name[256];
        int fd;

        snprintf(name, sizeof name, "%s-%d", args[0], i);
        fd = opened(name, write_it ? O_CREAT | O_WRONLY : O_RDONLY);
        transfer(fd, block, length, 0, i, write_it);
        if (write_it && fsync(fd))
            fail("fsync");
        if (close(fd))
            fail("close");
    }
    printf("%.0f\n", (now_seconds() - start) * 1e6);
    free(block);
}

static void put_small(char **args)
{
    small(args, 1);
}

static void get_small(char **args)
{
    small(args, 0);
}

int main(int count_args, char **args)
{
    static const struct {
        const char *name;
        int args_min;
        void (*run)(char **);
    } commands[] = {
        { "try", 4, try },     { "holder", 4, holder }, { "ranges", 1, ranges },
        { "count", 3, count }, { "append", 3, append }, { "holes", 1, holes },
        { "copy", 5, copy },   { "clone", 2, clone_file }, { "map", 3, map },
        { "excl", 1, excl },   { "gone", 2, gone },     { "many", 2, many },
        { "list", 2, list },   { "journal", 2, journal }, { "churn", 2, churn },
        { "put", 3, put },     { "get", 3, get },       { "put-small", 3, put_small },
        { "get-small", 3, get_small },
    };
    struct sigaction action = { .sa_handler = on_term };

    /* Without SA_RESTART, so that waiting ends, too. */
    sigaction(SIGTERM, &action, NULL);
    if (count_args == 6 && strcmp(args[1], "lock") == 0) {
        lock(args + 2, F_SETLK);
        return 0;
    }
    if (count_args == 6 && strcmp(args[1], "lock-wait") == 0) {
        lock(args + 2, F_SETLKW);
        return 0;
    }
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        if (count_args >= 2 + commands[i].args_min && strcmp(args[1], commands[i].name) == 0) {
            commands[i].run(args + 2);
            return 0;
        }
    }
    printf("fileop: no such command, or too few words\n");
    return 2;
}
