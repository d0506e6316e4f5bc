/* Rare calls, below the prefix that is the first argument: the checked variants that compilers insert when
 * they do not know a length, and those that are relative to a directory. Each step has an expectation.
 * Compiled and run by preload.sh, which also checks that the compiler has inserted them. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <locale.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>
#include <wchar.h>

extern char **environ;

#define EXPECT(what)                                                                       \
    do {                                                                                   \
        if (!(what)) {                                                                     \
            fprintf(stderr, "line %d: not so: %s (errno %d)\n", __LINE__, #what, errno);   \
            exit(1);                                                                       \
        }                                                                                  \
    } while (0)

static char bytes[4096];
static char large[PATH_MAX];

/* A value that no compiler can know. */
static volatile size_t length;
static volatile int flags;

static size_t some(size_t wanted)
{
    length = wanted;
    return length;
}

static int how(int wanted)
{
    flags = wanted;
    return flags;
}

static void checked(const char *top)
{
    char path[256], made[] = "made-XXXXXX.c";
    int fd = open("checked", how(O_RDWR | O_CREAT), 0600), again;
    EXPECT(fd >= 0 && write(fd, "0123456789", 10) == 10);
    EXPECT((again = open("checked", how(O_RDONLY))) >= 0);
    EXPECT(read(again, bytes, some(4)) == 4 && !memcmp(bytes, "0123", 4));
    EXPECT(pread(again, bytes, some(3), 6) == 3 && !memcmp(bytes, "678", 3));
    EXPECT(pread64(again, bytes, some(2), 8) == 2 && !memcmp(bytes, "89", 2));
    EXPECT(close(again) == 0);
    EXPECT((again = open64("checked", how(O_RDONLY))) >= 0 && read(again, bytes, some(100)) == 10);
    EXPECT(close(again) == 0);
    EXPECT((again = openat(AT_FDCWD, "checked", how(O_WRONLY))) >= 0);
    EXPECT(read(again, bytes, some(1)) == -1 && errno == EBADF && close(again) == 0);
    EXPECT((again = openat64(AT_FDCWD, "checked", how(O_RDONLY | O_CLOEXEC))) >= 0 && close(again) == 0);
    EXPECT(open("not there", how(O_RDONLY)) == -1 && errno == ENOENT);
    EXPECT(symlink("checked", "to") == 0);
    EXPECT(readlink("to", bytes, some(sizeof bytes)) == 7 && !memcmp(bytes, "checked", 7));
    EXPECT(readlinkat(AT_FDCWD, "to", bytes, some(3)) == 3 && !memcmp(bytes, "che", 3));
    EXPECT(getcwd(bytes, some(sizeof bytes)) && !strcmp(bytes, top));
    EXPECT(!getcwd(bytes, some(2)) && errno == ERANGE);
    snprintf(path, sizeof path, "%s/checked", top);
    EXPECT(getwd(large) && !strcmp(large, top));
    EXPECT(lchmod("checked", 0640) == 0 && lchmod("to", 0640) == -1 && errno == EOPNOTSUPP);
    EXPECT(mkfifoat(AT_FDCWD, "pipe", 0600) == -1 && errno == EOPNOTSUPP);
    EXPECT((again = mkostemps64(made, 2, O_CLOEXEC)) >= 0 && !strcmp(made + 11, ".c"));
    EXPECT(access(made, F_OK) == 0 && unlink(made) == 0 && close(again) == 0);
    EXPECT(realpath("to", large) && !strcmp(large, path));
    EXPECT(close(fd) == 0);
}

static int has(const char *name, int fd)
{
    int found = 0;
    ssize_t count, at;
    EXPECT(lseek(fd, 0, SEEK_SET) == 0);
    while ((count = getdents64(fd, bytes, sizeof bytes)) > 0) {
        for (at = 0; at < count; at += ((struct dirent64 *)(bytes + at))->d_reclen) {
            struct dirent64 *entry = (struct dirent64 *)(bytes + at);
            found += !strcmp(entry->d_name, name);
        }
    }
    EXPECT(count == 0);
    return found;
}

static void relative(void)
{
    struct timespec times[2] = {{1000, 5}, {2000, 7}};
    struct stat found;
    struct statx more;
    int top, fd, copy;
    EXPECT(mkdir("below", 0700) == 0 && (top = open("below", O_RDONLY | O_DIRECTORY)) >= 0);
    EXPECT(mkdirat(top, "inner", 0750) == 0);
    EXPECT(stat("below/inner", &found) == 0 && S_ISDIR(found.st_mode));
    EXPECT(mkdirat(top, "inner", 0750) == -1 && errno == EEXIST);
    EXPECT((fd = openat(top, "file", O_RDWR | O_CREAT, 0644)) >= 0 && write(fd, "content", 7) == 7);
    EXPECT(has("file", top) == 1 && has("inner", top) == 1 && has("..", top) == 1 && has("none", top) == 0);
    EXPECT(fchmodat(top, "file", 0604, 0) == 0 && fstat(fd, &found) == 0 && (found.st_mode & 07777) == 0604);
    EXPECT(utimensat(top, "file", times, 0) == 0 && fstat(fd, &found) == 0);
    EXPECT(found.st_atim.tv_sec == 1000 && found.st_mtim.tv_sec == 2000 && found.st_mtim.tv_nsec == 7);
    EXPECT(utimensat(top, "none", times, 0) == -1 && errno == ENOENT);
    EXPECT(fchownat(top, "file", found.st_uid, found.st_gid, 0) == 0);
    EXPECT(faccessat(top, "file", R_OK, 0) == 0 && faccessat(top, "none", F_OK, 0) == -1 && errno == ENOENT);
    EXPECT(statx(top, "file", 0, STATX_BASIC_STATS, &more) == 0 && more.stx_size == 7);
    EXPECT(more.stx_ino == found.st_ino && makedev(more.stx_dev_major, more.stx_dev_minor) == found.st_dev);
    EXPECT(dup3(fd, 99, O_CLOEXEC) == 99 && (fcntl(99, F_GETFD) & FD_CLOEXEC));
    EXPECT(lseek(99, 2, SEEK_SET) == 2 && read(fd, bytes, 3) == 3 && !memcmp(bytes, "nte", 3));
    EXPECT(dup3(fd, fd, 0) == -1 && errno == EINVAL && close(99) == 0);
    EXPECT((copy = openat(top, "copy", O_RDWR | O_CREAT, 0600)) >= 0);
    off_t from = 1;
    EXPECT(copy_file_range(fd, &from, copy, NULL, 5, 0) == 5 && from == 6);
    EXPECT(pread(copy, bytes, 10, 0) == 5 && !memcmp(bytes, "onten", 5));
    EXPECT(close(copy) == 0 && close(fd) == 0 && close(top) == 0);
}

/* A program of this machine by its descriptor, with an open file of the server to read. */
static void executes(void)
{
    int fd = open("below/file", O_RDONLY), program = open("/bin/cat", O_RDONLY), ends[2], status;
    char *arguments[] = {"cat", "-", NULL};
    pid_t child;
    EXPECT(fd >= 0 && program >= 0 && pipe(ends) == 0 && (child = fork()) >= 0);
    if (child == 0) {
        dup2(fd, 0);
        dup2(ends[1], 1);
        fexecve(program, arguments, environ);
        _exit(99);
    }
    EXPECT(close(ends[1]) == 0 && read(ends[0], bytes, sizeof bytes) == 7 && !memcmp(bytes, "content", 7));
    EXPECT(waitpid(child, &status, 0) == child && status == 0);
    EXPECT(close(fd) == 0 && close(program) == 0 && close(ends[0]) == 0);
}

/* A failed start, here and behind a served place of $PATH, does not release the locks that end with this
 * program's sessions. */
static void starts_nothing(const char *top)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    char place[] = "/tmp/dafs-XXXXXX", *arguments[] = {"tool", NULL}, *before = strdup(getenv("PATH"));
    int fd = open("lock", O_RDWR | O_CREAT, 0600), script, status;
    pid_t child;
    EXPECT(before && mkdtemp(place) && fd >= 0 && fcntl(fd, F_SETLK, &lock) == 0);
    snprintf(large, sizeof large, "%s/tool", place);
    EXPECT((script = open(large, O_WRONLY | O_CREAT, 0700)) >= 0);
    EXPECT(write(script, "#!/no/such/interpreter\n", 23) == 23 && close(script) == 0);
    EXPECT(execv(large, arguments) == -1 && errno == ENOENT);
    snprintf(bytes, sizeof bytes, "%s:%s:%s", place, top, place);
    EXPECT(setenv("PATH", bytes, 1) == 0 && execvp("tool", arguments) == -1 && errno == ENOENT);
    EXPECT(setenv("PATH", before, 1) == 0 && (child = fork()) >= 0);
    if (child == 0)
        _exit(fcntl(fd, F_SETLK, &lock) == -1 && errno == EAGAIN ? 0 : 99);
    EXPECT(waitpid(child, &status, 0) == child && status == 0);
    EXPECT(close(fd) == 0 && unlink("lock") == 0 && unlink(large) == 0 && rmdir(place) == 0);
    free(before);
}

/* Maps show the file after all changes of them, never zeros. */
static void maps(void)
{
    static char content[4 * 4096];
    char *map, *moved, *other;
    int fd = open("mapped", O_RDWR | O_CREAT, 0600), read_only, at;
    for (at = 0; at < (int)sizeof content; at++)
        content[at] = 'a' + at % 23;
    EXPECT(fd >= 0 && write(fd, content, sizeof content) == sizeof content && close(fd) == 0);
    EXPECT((read_only = open("mapped", O_RDONLY)) >= 0);

    /* The rest of the last page is the file's, too. */
    map = mmap(NULL, 5000, PROT_READ, MAP_SHARED, read_only, 0);
    EXPECT(map != MAP_FAILED && !memcmp(map, content, 2 * 4096));
    EXPECT(mremap(map, 5000, 8192, 0) == map && !memcmp(map, content, 2 * 4096));
    /* There is no room for a larger one. */
    EXPECT(mremap(map, 8192, 4 * 4096, MREMAP_MAYMOVE) == MAP_FAILED && errno == ENOMEM);
    EXPECT(!memcmp(map, content, 2 * 4096));
    EXPECT(mremap(map, 8192, 8192, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL) == MAP_FAILED);

    EXPECT(madvise(map, 8192, MADV_DONTNEED) == 0 && !memcmp(map, content, 2 * 4096));
    /* A call that the kernel refuses does not change the library's notes. */
    EXPECT(munmap(map, (size_t)-4096) == -1 && errno == EINVAL);
    EXPECT(mremap(map, 8192, 4096, MREMAP_FIXED, map + 1) == MAP_FAILED);
    EXPECT(madvise(map, 4096, MADV_DONTNEED) == 0 && !memcmp(map, content, 2 * 4096));
    EXPECT(madvise(map, 8192, MADV_WILLNEED) == 0);
    EXPECT(madvise(map, 4096, MADV_FREE) == -1 && errno == EINVAL && !memcmp(map, content, 4096));
    EXPECT(mprotect(map, 4096, PROT_READ | PROT_WRITE) == -1 && errno == EACCES);
    EXPECT(mprotect(map, 4096, PROT_READ) == 0);

    /* It is the same one in another place. */
    moved = mmap(NULL, 4 * 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT(moved != MAP_FAILED);
    EXPECT(mremap(map, 8192, 8192, MREMAP_MAYMOVE | MREMAP_FIXED, moved + 4096) == moved + 4096);
    EXPECT(madvise(moved + 4096, 8192, MADV_DONTNEED) == 0 && !memcmp(moved + 4096, content, 8192));
    EXPECT(mremap(moved + 4096, 8192, 4096, 0) == moved + 4096 && !memcmp(moved + 4096, content, 4096));
    EXPECT(mremap(moved + 4096, 4096, 8192, MREMAP_MAYMOVE) == MAP_FAILED && errno == ENOMEM);

    /* The new map in its place is the program's own. */
    other = mmap(moved + 4096, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    EXPECT(other == moved + 4096);
    other[0] = 1;
    EXPECT(madvise(other, 4096, MADV_DONTNEED) == 0 && other[0] == 0);
    EXPECT(munmap(moved, 4 * 4096) == 0);

    /* Writes to a private copy are not dropped: the file's content would be unknown. */
    map = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE, read_only, 8192);
    EXPECT(map != MAP_FAILED && !memcmp(map, content + 8192, 8192));
    map[0] = '!';
    EXPECT(madvise(map, 8192, MADV_DONTNEED) == -1 && errno == EINVAL && map[0] == '!');
    EXPECT(munmap(map, 4096) == 0 && map[4096] == content[3 * 4096]);
    EXPECT(munmap(map + 4096, 4096) == 0 && close(read_only) == 0);
}

static volatile int faults;
static sigjmp_buf out;

static void counted(int signal)
{
    (void)signal;
    faults++;
    siglongjmp(out, 1);
}

/* Memory that is mapped for one call and gone for the next, also where the program has a handler of its own. */
static void gone(void)
{
    char *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    void *volatile nowhere = (void *)8;
    int fd = open("memory", O_RDWR | O_CREAT, 0600), round;

    EXPECT(page != MAP_FAILED && fd >= 0 && write(fd, "ten bytes.", 10) == 10);
    EXPECT(pread(fd, page, 10, 0) == 10 && !memcmp(page, "ten bytes.", 10));
    EXPECT(munmap(page, 4096) == 0 && pread(fd, page, 10, 0) == -1 && errno == EFAULT);
    EXPECT(pwrite(fd, page, 10, 0) == -1 && errno == EFAULT);
    signal(SIGSEGV, counted);
    for (round = 0; round < 40; round++) {
        if (sigsetjmp(out, 1) == 0)
            *(volatile char *)nowhere = 1;
        EXPECT(faults == round + 1);
        EXPECT(mmap(page, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == page);
        EXPECT(pread(fd, page, 10, 0) == 10 && !memcmp(page, "ten bytes.", 10));
        if (round < 20) /* Seen within sixteen copies. */
            continue;
        EXPECT(munmap(page, 4096) == 0 && pread(fd, page, 10, 0) == -1 && errno == EFAULT);
        EXPECT(faults == round + 1);
    }
    signal(SIGSEGV, SIG_DFL);
    EXPECT(close(fd) == 0);
}

/* Appends: by a descriptor, and longer ones than the server accepts at once. */
static void appends(void)
{
    enum { MANY = 3 << 20 };
    char *all = malloc(MANY);
    struct iovec parts[2] = {{all, 10}, {all + 10, MANY - 10}};
    struct stat found;
    FILE *file;
    int fd = open("log", O_RDWR | O_CREAT, 0600), at;
    EXPECT(all && fd >= 0 && write(fd, "first\n", 6) == 6 && close(fd) == 0);
    EXPECT((fd = open("log", O_RDWR)) >= 0 && (file = fdopen(fd, "a")) && ftell(file) == 6);
    EXPECT((fcntl(fd, F_GETFL) & O_APPEND) && fputs("second\n", file) >= 0 && fclose(file) == 0);
    /* Reopening grants no more access than the descriptor has. */
    EXPECT((fd = open("log", O_RDONLY)) >= 0 && !fdopen(fd, "w") && errno == EINVAL);
    EXPECT(read(fd, bytes, some(20)) == 13 && !memcmp(bytes, "first\nsecond\n", 13) && close(fd) == 0);
    for (at = 0; at < MANY; at++)
        all[at] = at % 251;
    EXPECT((file = fopen("large", "a")) && (fd = open("large", O_WRONLY | O_APPEND)) >= 0);
    EXPECT(fwrite(all, 1, MANY, file) == MANY && !ferror(file) && fclose(file) == 0);
    EXPECT(fstat(fd, &found) == 0 && found.st_size == MANY);
    EXPECT(write(fd, all, MANY) == MANY && writev(fd, parts, 2) == MANY && close(fd) == 0);
    EXPECT((file = fopen("large", "r")) != NULL);
    for (at = 0; at < 3 * MANY; at++)
        EXPECT(getc_unlocked(file) == (unsigned char)all[at % MANY]);
    EXPECT(getc(file) == EOF && fclose(file) == 0 && unlink("large") == 0);
    free(all);
}

/* Unmapped memory for results, and invalid ranges. */
static void given(void)
{
    /* Not constants, which the compiler would check. */
    void *volatile low = (void *)8;
    volatile size_t no_room = 0;
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 10, .l_len = 5};
    int fd = open("given", O_RDWR | O_CREAT, 0600), out = open("/dev/null", O_WRONLY);
    EXPECT(fd >= 0 && out >= 0 && write(fd, "content", 7) == 7 && symlink("given", "link") == 0);
    EXPECT(stat("given", low) == -1 && errno == EFAULT && fstat(fd, low) == -1 && errno == EFAULT);
    EXPECT(statfs("given", low) == -1 && errno == EFAULT && statfs("given", (struct statfs *)large) == 0);
    EXPECT(readlink("link", low, 10) == -1 && errno == EFAULT);
    EXPECT(readlink("link", bytes, no_room) == -1 && errno == EINVAL);
    EXPECT(!getcwd(low, some(4096)) && errno == EFAULT);
    EXPECT(sendfile(out, fd, low, 4) == -1 && errno == EFAULT && close(out) == 0);
    EXPECT(fcntl(fd, F_SETLK, low) == -1 && errno == EFAULT && fcntl(fd, F_GETLK, NULL) == -1 && errno == EFAULT);
    EXPECT(fcntl(fd, F_SETLK, &lock) == 0 && fcntl(fd, F_GETLK, &lock) == 0 && lock.l_type == F_UNLCK);
    lock = (struct flock){.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 10, .l_len = LLONG_MIN};
    EXPECT(fcntl(fd, F_SETLK, &lock) == -1 && (errno == EOVERFLOW || errno == EINVAL));
    lock = (struct flock){.l_type = F_UNLCK, .l_whence = SEEK_SET, .l_start = 15, .l_len = -5};
    EXPECT(fcntl(fd, F_SETLK, &lock) == 0 && close(fd) == 0 && unlink("link") == 0);
}

/* Calls that the kernel refuses: flags, targets that append, and sources that are pipes, to which data cannot
 * be returned. */
static void copies(void)
{
    int fd = open("given", O_RDWR), append, from = open("/etc/passwd", O_RDONLY), ends[2];
    EXPECT(fd >= 0 && from >= 0 && copy_file_range(fd, NULL, from, NULL, 4, 1) == -1 && errno == EINVAL);
    EXPECT((append = open("given", O_WRONLY | O_APPEND)) >= 0);
    EXPECT(sendfile(append, from, NULL, 4) == -1 && errno == EINVAL);
    EXPECT(copy_file_range(from, NULL, append, NULL, 4, 0) == -1 && errno == EBADF && close(append) == 0);
    EXPECT(pipe(ends) == 0 && splice(fd, &(off_t){1}, ends[1], NULL, 4, 0) == 4);
    EXPECT(read(ends[0], bytes, some(10)) == 4 && !memcmp(bytes, "onte", 4) && write(ends[1], "out", 3) == 3);
    EXPECT(splice(ends[0], NULL, fd, NULL, 3, 0) == -1 && errno == EINVAL);
    /* As a shell opens it for ">>". */
    EXPECT(fcntl(ends[1], F_SETFL, O_APPEND) == 0 && splice(fd, &(off_t){0}, ends[1], NULL, 2, 0) == 2);
    EXPECT(sendfile(ends[1], fd, &(off_t){2}, 2) == 2);
    EXPECT(read(ends[0], bytes, some(10)) == 7 && !memcmp(bytes, "outcont", 7) && close(ends[0]) == 0 && close(ends[1]) == 0);
    EXPECT(close(from) == 0 && close(fd) == 0 && unlink("given") == 0);
}

/* Calls by which the kernel would make or look up paths of this machine. */
static void refused(const char *top)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct mmsghdr one = {.msg_hdr = {.msg_name = &address, .msg_namelen = sizeof address}};
    struct stat found;
    int local = socket(AF_UNIX, SOCK_STREAM, 0);
    snprintf(address.sun_path, sizeof address.sun_path, "%s/socket", top);
    EXPECT(local >= 0 && bind(local, (struct sockaddr *)&address, sizeof address) == -1 && errno == EOPNOTSUPP);
    EXPECT(connect(local, (struct sockaddr *)&address, sizeof address) == -1 && errno == EOPNOTSUPP);
    EXPECT(close(local) == 0 && (local = socket(AF_UNIX, SOCK_DGRAM, 0)) >= 0);
    EXPECT(sendto(local, "x", 1, 0, (struct sockaddr *)&address, sizeof address) == -1 && errno == EOPNOTSUPP);
    EXPECT(sendmsg(local, &one.msg_hdr, 0) == -1 && errno == EOPNOTSUPP);
    EXPECT(sendmmsg(local, &one, 1, 0) == -1 && errno == EOPNOTSUPP);
    /* Paths of this machine work. */
    snprintf(address.sun_path, sizeof address.sun_path, "/none/socket");
    EXPECT(sendto(local, "x", 1, 0, (struct sockaddr *)&address, sizeof address) == -1 && errno == ENOENT);
    EXPECT(sendmsg(local, &one.msg_hdr, 0) == -1 && errno == ENOENT);
    EXPECT(sendmmsg(local, &one, 1, 0) == -1 && errno == ENOENT);
    EXPECT(close(local) == 0 && lremovexattr(top, "user.x") == -1 && errno == EOPNOTSUPP);
    EXPECT((local = inotify_init()) >= 0 && inotify_add_watch(local, top, IN_MODIFY) == -1 && errno == EOPNOTSUPP);
    EXPECT(close(local) == 0 && stat(top, &found) == 0 && chroot(top) == -1 && errno == EOPNOTSUPP);
    EXPECT((ftok(top, 7) & 0xffff) == (key_t)(found.st_ino & 0xffff) && ftok("none", 7) == -1 && errno == ENOENT);
}

#define MANY_ARGUMENTS 1, 2.5, 3L, 4.5, "five", L"s\u20acx", 'x', 8.5, 9, 10.5, 11, 12.5, 13, 14.5, 15, 16.5, 17, 18.5, 19, 20.5
#define MANY_FORMATS L"%d %g %ld %g %s %ls %c %g %d %g %d %g %d %g %d %g %d %g %d %g\n"

/* Multibyte characters, on streams that are byte streams for the C library. */
static void wide(void)
{
    /* Not the replacements of the compiler. */
    int (*volatile print)(FILE *, const wchar_t *, ...) = fwprintf;
    int (*volatile print_here)(const wchar_t *, ...) = wprintf;
    wchar_t wanted[200], line[200];
    FILE *file = fopen("wide", "w+");
    int fd, length, local = dup(1);

    EXPECT(file && local >= 0 && setlocale(LC_ALL, "C.UTF-8"));
    EXPECT(fwide(file, 0) == 0 && fwide(file, 1) > 0 && fwide(file, -1) < 0);
    EXPECT(fputwc(0xe4, file) == 0xe4 && putwc(0x4e2d, file) == 0x4e2d && fputws(L"\u20ac\n", file) >= 0);
    length = swprintf(wanted, 200, MANY_FORMATS, MANY_ARGUMENTS);
    EXPECT(length > 60 && fwprintf(file, MANY_FORMATS, MANY_ARGUMENTS) == length);
    EXPECT(print(file, MANY_FORMATS, MANY_ARGUMENTS) == length && fputs("bytes\n", file) >= 0);
    EXPECT(print(file, L"lost %s", "\xff") == -1 && errno == EILSEQ && !ferror(file));
    rewind(file);
    EXPECT(fgetwc(file) == 0xe4 && ungetwc(0x20ac, file) == 0x20ac && ungetwc('u', file) == 'u');
    EXPECT(getwc(file) == 'u' && getwc(file) == 0x20ac && ungetwc(WEOF, file) == WEOF);
    EXPECT(fgetws(line, some(2), file) == line && !wcscmp(line, L"\u4e2d"));
    EXPECT(fgetws(line, some(1), file) == line && !*line && !fgetws(line, some(0), file));
    EXPECT(fgetws(line, some(200), file) == line && !wcscmp(line, L"\u20ac\n"));
    EXPECT(fgetws(line, 200, file) == line && !wcscmp(line, wanted));
    EXPECT(fgetws_unlocked(line, some(200), file) == line && !wcscmp(line, wanted));
    EXPECT(fgets(bytes, sizeof bytes, file) && !strcmp(bytes, "bytes\n"));
    EXPECT(fgetws(line, some(200), file) == line && !wcscmp(line, L"lost ") && feof(file));
    EXPECT(!fgetws(line, some(200), file) && fgetwc(file) == WEOF && !ferror(file));
    EXPECT(fwscanf(file, L"%d", &length) == -1 && errno == EOPNOTSUPP && fclose(file) == 0);
    EXPECT(!fopen("wide", "r,ccs=UTF-16") && errno == EOPNOTSUPP);

    /* Invalid characters, and those that the locale lacks. */
    EXPECT((file = fopen("wide", "w+")) && fputs("a\xff", file) >= 0 && fflush(file) == 0);
    rewind(file);
    EXPECT(fgetwc(file) == 'a' && fgetwc(file) == WEOF && errno == EILSEQ && ferror(file) && !feof(file));
    clearerr(file);
    EXPECT(fgetc(file) == 0xff && fgetc(file) == EOF && setlocale(LC_ALL, "C"));
    EXPECT(fseek(file, 0, SEEK_SET) == 0 && fputws(L"<\u20ac\u4e2d>", file) >= 0 && fclose(file) == 0);
    EXPECT((file = fopen("wide", "r")) && fgets(bytes, sizeof bytes, file) && !strcmp(bytes, "<EUR?>"));
    EXPECT(fclose(file) == 0 && setlocale(LC_ALL, "C.UTF-8"));

    /* The standard streams, and back to those of the C library. */
    EXPECT((fd = open("wide", O_RDWR | O_TRUNC)) >= 0 && fflush(stdout) == 0 && dup2(fd, 1) == 1);
    EXPECT(print_here(L"%ls %.1f\n", L"\u4e2d", 1.5) == 6 && wprintf(L"%d\n", 2) == 2 && putwchar(0xe4) == 0xe4);
    EXPECT(fflush(stdout) == 0 && dup2(local, 1) == 1 && close(local) == 0);
    EXPECT((local = dup(0)) >= 0 && lseek(fd, 0, SEEK_SET) == 0 && dup2(fd, 0) == 0 && close(fd) == 0);
    EXPECT(fgetws(line, some(200), stdin) == line && !wcscmp(line, L"\u4e2d 1.5\n"));
    EXPECT(getwchar() == '2' && getwchar() == '\n' && getwchar() == 0xe4 && getwchar() == WEOF && feof(stdin));
    EXPECT(dup2(local, 0) == 0 && close(local) == 0);
    /* A stream of this machine is left to the C library. */
    EXPECT((file = tmpfile()) && print(file, MANY_FORMATS, MANY_ARGUMENTS) == length);
    rewind(file);
    EXPECT(fgetws(line, some(200), file) && !wcscmp(line, wanted) && fwide(file, 0) > 0 && fclose(file) == 0);
    EXPECT(setlocale(LC_ALL, "C"));
}

static volatile int cleaned;

static void cleans(int *number)
{
    (void)number;
    cleaned++;
}

static void *waits(void *nothing)
{
    int number __attribute__((cleanup(cleans))) = 0;
    wscanf(L"%d", &number);
    return nothing;
}

/* A thread that is cancelled while it waits in one of those functions runs the cleanup handlers above it. */
static void cancelled(void)
{
    int ends[2], local = dup(0);
    pthread_t thread;
    void *result;
    EXPECT(local >= 0 && pipe(ends) == 0 && dup2(ends[0], 0) == 0);
    EXPECT(pthread_create(&thread, NULL, waits, NULL) == 0 && pthread_cancel(thread) == 0);
    EXPECT(pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED && cleaned == 1);
    EXPECT(dup2(local, 0) == 0 && close(local) == 0 && close(ends[0]) == 0 && close(ends[1]) == 0);
}

int main(int count, char **arguments)
{
    EXPECT(count == 2 && chdir(arguments[1]) == 0);
    checked(arguments[1]);
    relative();
    executes();
    starts_nothing(arguments[1]);
    maps();
    gone();
    appends();
    given();
    copies();
    refused(arguments[1]);
    wide();
    cancelled();
    puts("all as expected");
    return 0;
}
