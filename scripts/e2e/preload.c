/* Operations on files below the prefix that is the argument: each step has an expectation, and the
 * first failure ends the program. Compiled and run by preload.sh. */
#define _GNU_SOURCE
#include <aio.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fts.h>
#include <ftw.h>
#include <glob.h>
#include <limits.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

#define EXPECT(what)                                                                       \
    do {                                                                                   \
        if (!(what)) {                                                                     \
            fprintf(stderr, "line %d: not so: %s (errno %d)\n", __LINE__, #what, errno);   \
            exit(1);                                                                       \
        }                                                                                  \
    } while (0)

static char bytes[256];

static void descriptors(void)
{
    int fd = open("file", O_RDWR | O_CREAT | O_EXCL, 0640), copy;
    struct iovec parts[2] = {{"ab", 2}, {"cdef", 4}};
    struct stat found;
    EXPECT(fd >= 0);
    EXPECT(open("file", O_RDWR | O_CREAT | O_EXCL, 0640) == -1 && errno == EEXIST);
    EXPECT(writev(fd, parts, 2) == 6);
    EXPECT(lseek(fd, 0, SEEK_CUR) == 6 && lseek(fd, -4, SEEK_END) == 2);
    copy = dup(fd);
    EXPECT(copy >= 0 && read(copy, bytes, 2) == 2 && !memcmp(bytes, "cd", 2));
    EXPECT(lseek(fd, 0, SEEK_CUR) == 4);
    EXPECT(pwrite(fd, "Z", 1, 5) == 1 && pread(copy, bytes, 10, 0) == 6 && !memcmp(bytes, "abcdeZ", 6));
    parts[0].iov_base = bytes, parts[0].iov_len = 2;
    EXPECT(preadv64v2(fd, parts, 1, 1, 0) == 2 && !memcmp(bytes, "bc", 2));
    EXPECT(preadv2(fd, parts, 1, 1, RWF_NOWAIT) == -1 && errno == EOPNOTSUPP);
    EXPECT(dup2(copy, 77) == 77 && close(copy) == 0 && lseek(77, 0, SEEK_CUR) == 4);
    EXPECT(fcntl(77, F_DUPFD, 90) >= 90 && (fcntl(77, F_GETFL) & O_ACCMODE) == O_RDWR);
    EXPECT(fcntl(fd, F_SETFL, O_APPEND) == 0 && write(77, "end", 3) == 3);
    EXPECT(fstat(fd, &found) == 0 && found.st_size == 9 && (found.st_mode & 0777) == (0640 & ~022));
    EXPECT(posix_fallocate(fd, 0, 100) == EOPNOTSUPP && fstat(fd, &found) == 0 && found.st_size == 9);
    EXPECT(ftruncate(fd, 3) == 0 && fsync(fd) == 0 && stat("file", &found) == 0 && found.st_size == 3);
    /* Calls that bypass the library fail, and do no harm. */
    EXPECT(syscall(SYS_read, fd, bytes, 4) == -1 && errno == EBADF);
    EXPECT(syscall(SYS_write, fd, bytes, 4) == -1 && errno == EPERM);
    /* A descriptor closed by a bypassing call may be reused by others. */
    EXPECT(syscall(SYS_close, 77) == 0 && open("/dev/zero", O_RDONLY) >= 0);
    EXPECT(syscall(SYS_dup2, open("/dev/zero", O_RDONLY), 77) == 77);
    EXPECT(read(77, bytes, 4) == 4 && bytes[0] == 0);
    EXPECT(close(fd) == 0 && read(fd, bytes, 1) == -1 && errno == EBADF);
}

static void children(const char *self)
{
    int fd = open("shared", O_RDWR | O_CREAT, 0600), status;
    char number[16];
    pid_t child;
    char *arguments[] = {(char *)self, "child", number, NULL}, *nothing[] = {NULL};
    EXPECT(fd >= 0 && write(fd, "0123456789", 10) == 10 && lseek(fd, 2, SEEK_SET) == 2);
    EXPECT((child = fork()) >= 0);
    if (child == 0) {
        EXPECT(read(fd, bytes, 2) == 2 && !memcmp(bytes, "23", 2));
        exit(0);
    }
    EXPECT(waitpid(child, &status, 0) == child && status == 0);
    EXPECT(lseek(fd, 0, SEEK_CUR) == 4);
    /* A child can still read a removed file. */
    EXPECT(unlink("shared") == 0);
    snprintf(number, sizeof number, "%d", fd);
    EXPECT((child = vfork()) >= 0);
    if (child == 0) {
        execve(self, arguments, nothing);
        _exit(1);
    }
    EXPECT(waitpid(child, &status, 0) == child && status == 0);
    EXPECT(lseek(fd, 0, SEEK_CUR) == 6);
    EXPECT(posix_spawn(&child, self, NULL, NULL, arguments, environ) == 0);
    EXPECT(waitpid(child, &status, 0) == child && status == 0);
    EXPECT(lseek(fd, 0, SEEK_CUR) == 8 && close(fd) == 0);
}

static void stdio(void)
{
    FILE *file = fopen("stream", "w+");
    int number = 0;
    EXPECT(file && fileno(file) > 2 && fprintf(file, "%s %d\n", "line", 42) == 8);
    rewind(file);
    EXPECT(fscanf(file, "line %d", &number) == 1 && number == 42 && fclose(file) == 0);
    EXPECT((file = fopen("stream", "a")) && fputs("more\n", file) >= 0 && fclose(file) == 0);
    EXPECT((file = fdopen(open("stream", O_RDONLY), "r")) && fgets(bytes, sizeof bytes, file));
    EXPECT(!strcmp(bytes, "line 42\n") && fgets(bytes, sizeof bytes, file) && fclose(file) == 0);
    EXPECT(!strcmp(bytes, "more\n") && !fopen("missing", "r") && errno == ENOENT);
    /* A program goes on with the stream that it has reopened. */
    EXPECT((file = fopen("stream", "w")) && fputs("first", file) >= 0);
    EXPECT(freopen("other", "w+", file) == file && fputs("second", file) >= 0);
    rewind(file);
    EXPECT(fgets(bytes, sizeof bytes, file) && !strcmp(bytes, "second") && fclose(file) == 0);
    EXPECT((file = fopen("stream", "r")) && fgets(bytes, sizeof bytes, file) && !strcmp(bytes, "first"));
    EXPECT(freopen("/dev/zero", "r", file) == file && fgetc(file) == 0 && fclose(file) == 0);
    EXPECT((file = fopen("/dev/null", "r+")) && !freopen("other", "w", file) && errno == EOPNOTSUPP);
    EXPECT(fputs("still there", file) >= 0 && fclose(file) == 0);
}

static void names(void)
{
    int directory, fd;
    DIR *stream;
    struct dirent *entry;
    struct stat found;
    int entries = 0;
    EXPECT(mkdir("dir", 0700) == 0 && (directory = open("dir", O_RDONLY | O_DIRECTORY)) >= 0);
    EXPECT((fd = openat(directory, "a", O_WRONLY | O_CREAT, 0600)) >= 0 && close(fd) == 0);
    EXPECT(renameat(directory, "a", directory, "b") == 0 && symlinkat("b", directory, "l") == 0);
    EXPECT(fstatat(directory, "l", &found, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(found.st_mode));
    EXPECT(readlinkat(directory, "l", bytes, sizeof bytes) == 1 && linkat(directory, "b", directory, "c", 0) == 0);
    EXPECT((stream = fdopendir(dup(directory))));
    while ((entry = readdir(stream)))
        entries++;
    EXPECT(entries == 5 && closedir(stream) == 0);
    EXPECT(fchdir(directory) == 0 && access("c", R_OK | W_OK) == 0 && chdir("..") == 0);
    EXPECT(rmdir("dir") == -1 && errno == ENOTEMPTY);
    EXPECT(!unlinkat(directory, "b", 0) && !unlinkat(directory, "c", 0) && !unlinkat(directory, "l", 0));
    EXPECT(rmdir("dir") == 0 && close(directory) == 0 && rename("file", "/tmp/x") == -1 && errno == EXDEV);
}

static void locks(void)
{
    int fd = open("lock", O_RDWR | O_CREAT, 0600), status;
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 10, .l_len = 5};
    pid_t child;
    EXPECT(fcntl(fd, F_SETLK, &lock) == 0 && (child = fork()) >= 0);
    if (child == 0) {
        EXPECT(fcntl(fd, F_SETLK, &lock) == -1 && errno == EAGAIN);
        lock.l_start = 20;
        EXPECT(fcntl(fd, F_SETLK, &lock) == 0);
        exit(0);
    }
    EXPECT(waitpid(child, &status, 0) == child && status == 0);
    /* Locks conflict only with those of other owners. */
    EXPECT(fcntl(fd, F_GETLK, &lock) == 0 && lock.l_type == F_UNLCK);
    EXPECT(lseek(fd, 0, SEEK_SET) == 0 && lockf(fd, F_TEST, 100) == 0);
    lock = (struct flock){.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 10, .l_len = 5};
    EXPECT((child = fork()) >= 0);
    if (child == 0) {
        EXPECT(fcntl(fd, F_GETLK, &lock) == 0 && lock.l_type == F_WRLCK && lock.l_start == 10);
        EXPECT(lockf(fd, F_TEST, 100) == -1 && errno == EACCES);
        exit(0);
    }
    EXPECT(waitpid(child, &status, 0) == child && status == 0);
    EXPECT((status = open("lock", O_RDONLY)) >= 0 && fcntl(status, F_SETLKW, &lock) == -1 && errno == EBADF);
    lock.l_type = F_UNLCK;
    EXPECT(fcntl(fd, F_SETLK, &lock) == 0 && flock(fd, LOCK_EX) == 0 && flock(fd, LOCK_UN) == 0);
    EXPECT(close(fd) == 0);
}

static void copies(void)
{
    int from = open("/etc/passwd", O_RDONLY), to = open("copy", O_RDWR | O_CREAT, 0600);
    struct stat found;
    char *mapped;
    EXPECT(fstat(from, &found) == 0 && sendfile(to, from, NULL, 1 << 20) == found.st_size);
    EXPECT(close(to) == 0 && (to = open("copy", O_RDONLY)) >= 0);
    mapped = mmap(NULL, found.st_size, PROT_READ, MAP_SHARED, to, 0);
    EXPECT(mapped != MAP_FAILED && !memcmp(mapped, "root:", 5) && munmap(mapped, found.st_size) == 0);
    EXPECT(mmap(NULL, 4096, PROT_WRITE, MAP_SHARED, open("copy", O_RDWR), 0) == MAP_FAILED && errno == ENODEV);
    EXPECT(close(to) == 0);
}

static volatile sig_atomic_t handled;

static void removes(int number)
{
    struct stat found;
    (void)number;
    if (stat("doomed", &found) == 0 && unlink("doomed") == 0)
        handled = 1;
}

static void ends(int number)
{
    (void)number;
    _exit(7);
}

static void notices(int number)
{
    (void)number;
    handled++;
}

static void after(int microseconds)
{
    struct itimerval soon = {.it_value = {.tv_usec = microseconds}};
    EXPECT(setitimer(ITIMER_REAL, &soon, NULL) == 0);
}

/* Signal handlers run while calls are served, and use served files themselves. */
static void signals(void)
{
    struct sigaction action = {.sa_handler = removes};
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    int fd = open("lock", O_RDWR | O_CREAT, 0600), status, turn, talk[2];
    pid_t child;
    EXPECT(sigaction(SIGALRM, &action, NULL) == 0);
    for (turn = 1; turn <= 20; turn++) {
        EXPECT(close(open("doomed", O_WRONLY | O_CREAT, 0600)) == 0);
        handled = 0;
        after(turn * 50);
        while (!handled)
            EXPECT(pread(fd, bytes, 1, 0) == 0);
    }
    for (turn = 1; turn <= 5; turn++) {
        EXPECT((child = fork()) >= 0);
        if (child == 0) {
            signal(SIGALRM, ends);
            after(turn * 1000);
            for (;;)
                pread(fd, bytes, 1, 0);
        }
        EXPECT(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7);
    }
    EXPECT(pipe(talk) == 0 && (child = fork()) >= 0); /* The common way to give up waiting for a lock. */
    if (child == 0) {
        EXPECT(flock(open("lock", O_RDWR), LOCK_EX) == 0 && fcntl(fd, F_SETLK, &lock) == 0);
        EXPECT(write(talk[1], "x", 1) == 1);
        pause();
    }
    EXPECT(read(talk[0], bytes, 1) == 1);
    action.sa_handler = notices;
    handled = 0;
    EXPECT(sigaction(SIGALRM, &action, NULL) == 0);
    after(50000);
    EXPECT(fcntl(fd, F_SETLKW, &lock) == -1 && errno == EINTR && handled == 1);
    after(50000);
    EXPECT(flock(fd, LOCK_EX) == -1 && errno == EINTR && handled == 2);
    EXPECT(kill(child, SIGKILL) == 0 && waitpid(child, &status, 0) == child);
    EXPECT(close(fd) == 0 && close(talk[0]) == 0 && close(talk[1]) == 0);
}

static sigjmp_buf out;

static void leaves(int number)
{
    (void)number;
    siglongjmp(out, 1);
}

/* A jump out of a served call, whose locks stay taken: calls on served files fail from then on, and do not
 * reach this machine's files; other calls work. */
static void left(const char *top)
{
    char path[200];
    glob_t matched;
    int local, status, fd = open("left", O_RDWR | O_CREAT, 0600);
    char *no_memory = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    pid_t child = fork();
    EXPECT(fd >= 0 && no_memory != MAP_FAILED && child >= 0);
    if (child == 0) {
        signal(SIGSEGV, leaves);
        if (sigsetjmp(out, 1) == 0) {
            fopen("left", no_memory);
            _exit(2);
        }
        snprintf(path, sizeof path, "%s/../%s/made", top, top + 1);
        EXPECT(open(path, O_WRONLY | O_CREAT, 0600) == -1 && errno == EDEADLK);
        EXPECT(open("made", O_WRONLY | O_CREAT, 0600) == -1 && errno == EDEADLK);
        EXPECT(unlink("left") == -1 && errno == EDEADLK);
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        EXPECT(open(path, O_RDONLY) == -1 && errno == EDEADLK);
        snprintf(path, sizeof path, "%s/*", top);
        EXPECT(glob(path, 0, NULL, &matched) == GLOB_ABORTED && errno == EDEADLK);
        /* Also from a directory of this machine. */
        EXPECT((local = open("/", O_RDONLY | O_DIRECTORY)) >= 0);
        EXPECT(openat(local, top + 1, O_RDONLY) == -1 && errno == EDEADLK);
        EXPECT(mkdirat(local, top + 1, 0700) == -1 && errno == EDEADLK);
        EXPECT(faccessat(local, "etc/passwd", R_OK, 0) == 0);
        EXPECT(glob("/etc/pass[w]d", 0, NULL, &matched) == 0 && matched.gl_pathc == 1);
        EXPECT(openat(fd, "made", O_RDONLY) == -1 && errno == EDEADLK);
        EXPECT(write(fd, "x", 1) == -1 && errno == EDEADLK);
        EXPECT((fd = open("/dev/null", O_WRONLY)) >= 0 && write(fd, "x", 1) == 1);
        _exit(0);
    }
    EXPECT(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    EXPECT(close(fd) == 0 && munmap(no_memory, 4096) == 0 && unlink("left") == 0);
}

static void looks(int number)
{
    struct stat found;
    (void)number;
    stat("lock", &found);
    handled++;
}

/* Signal handlers in the middle of a fork. */
static void forks(void)
{
    struct sigaction action = {.sa_handler = looks, .sa_flags = SA_RESTART};
    struct itimerval often = {.it_interval = {.tv_usec = 300}, .it_value = {.tv_usec = 300}};
    int turn, status;
    pid_t child;
    handled = 0;
    EXPECT(sigaction(SIGALRM, &action, NULL) == 0 && setitimer(ITIMER_REAL, &often, NULL) == 0);
    for (turn = 0; turn < 200; turn++) {
        while ((child = fork()) < 0)
            EXPECT(errno == EINTR || errno == EAGAIN);
        if (child == 0)
            _exit(0);
        while (waitpid(child, &status, 0) != child)
            EXPECT(errno == EINTR);
        EXPECT(status == 0);
    }
    often.it_interval.tv_usec = often.it_value.tv_usec = 0;
    EXPECT(setitimer(ITIMER_REAL, &often, NULL) == 0 && signal(SIGALRM, SIG_DFL) != SIG_ERR);
}

static int visits(const char *path, const struct stat *found, int kind, struct FTW *place);

static void has_no_alarm(void)
{
    struct itimerval alarm;
    struct sigaction action;
    EXPECT(getitimer(ITIMER_REAL, &alarm) == 0 && alarm.it_value.tv_sec >= 9000);
    EXPECT(sigaction(SIGALRM, NULL, &action) == 0 && action.sa_handler == notices);
    _exit(9);
}

/* The program's cleanup at its end has its own alarm, not that of the library. */
static void quick_ends(void)
{
    struct itimerval later = {.it_value = {.tv_sec = 10000}};
    int status;
    pid_t child = fork();
    EXPECT(child >= 0);
    if (child == 0) {
        EXPECT(access(".", F_OK) == 0 && signal(SIGALRM, notices) != SIG_ERR);
        EXPECT(setitimer(ITIMER_REAL, &later, NULL) == 0 && at_quick_exit(has_no_alarm) == 0);
        quick_exit(3);
    }
    EXPECT(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 9);
}

/* Calls that the C library would make on this machine's files of the same names are refused. */
static void refused(const char *top)
{
    char *const trees[] = {"/tmp", (char *)top, NULL};
    char *const here[] = {"/", NULL};
    char *const nothing[] = {NULL};
    char *const ends[] = {"true", NULL};
    char *const shell[] = {"sh", "-c", "test $(pwd) = /etc && test -f passwd && read line", NULL};
    posix_spawn_file_actions_t actions;
    int local, status;
    pid_t child;
    FTS *tree;
    errno = 0;
    EXPECT(!fts_open(trees, FTS_PHYSICAL, NULL) && errno == EOPNOTSUPP);
    EXPECT((tree = fts_open(here, FTS_PHYSICAL, NULL)) != NULL && fts_close(tree) == 0);
    EXPECT(nftw(top, visits, 4, FTW_CHDIR) == -1 && errno == EOPNOTSUPP);
    EXPECT(posix_spawn_file_actions_init(&actions) == 0);
    EXPECT(posix_spawn_file_actions_addopen(&actions, 0, "file", O_RDONLY, 0) == EOPNOTSUPP);
    EXPECT(posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0) == 0);
    /* Resolved from the child's directory at that point, which differs from its parent's. */
    EXPECT((local = open(".", O_RDONLY | O_DIRECTORY)) >= 0);
    EXPECT(posix_spawn_file_actions_addfchdir_np(&actions, local) == EOPNOTSUPP && close(local) == 0);
    EXPECT(posix_spawn_file_actions_addchdir_np(&actions, top) == EOPNOTSUPP);
    EXPECT(posix_spawn_file_actions_addchdir_np(&actions, "/etc") == 0);
    EXPECT(posix_spawn_file_actions_addopen(&actions, 0, "passwd", O_RDONLY, 0) == 0);
    EXPECT(posix_spawn(&child, "/bin/sh", &actions, NULL, shell, environ) == 0);
    EXPECT(waitpid(child, &status, 0) == child && status == 0);
    EXPECT(posix_spawn_file_actions_addchdir_np(&actions, "/bin") == 0);
    EXPECT(posix_spawnp(&child, "./true", &actions, NULL, ends, environ) == 0);
    EXPECT(waitpid(child, &status, 0) == child && status == 0);
    EXPECT(posix_spawn_file_actions_addchdir_np(&actions, "..") == 0);
    EXPECT(posix_spawn_file_actions_addopen(&actions, 0, top + 1, O_RDONLY, 0) == EOPNOTSUPP);
    EXPECT(posix_spawn_file_actions_addchdir_np(&actions, top + 1) == EOPNOTSUPP);
    EXPECT((local = open("/", O_RDONLY | O_DIRECTORY)) >= 0);
    EXPECT(posix_spawn_file_actions_destroy(&actions) == 0 && posix_spawn_file_actions_init(&actions) == 0);
    EXPECT(posix_spawn_file_actions_addfchdir_np(&actions, local) == 0 && close(local) == 0);
    EXPECT(posix_spawn_file_actions_addopen(&actions, 0, top + 1, O_RDONLY, 0) == EOPNOTSUPP);
    EXPECT(posix_spawn_file_actions_destroy(&actions) == 0);
    EXPECT(execveat(AT_FDCWD, top, nothing, environ, 0) == -1 && errno == ENOENT);
    EXPECT(execveat(AT_FDCWD, "/none", nothing, environ, 0) == -1 && errno == ENOENT);
}

static int shared_fd;

static void *reads_once(void *nothing)
{
    char byte;
    (void)read(shared_fd, &byte, 1);
    return nothing;
}

static void *reads_for_ever(void *nothing)
{
    char byte;
    /* A served call cannot be cancelled; the next other one can. */
    for (;; usleep(10))
        (void)pread(shared_fd, &byte, 1, 0);
    return nothing;
}

static void threads(void)
{
    int local = open("/dev/shm", O_TMPFILE | O_WRONLY, 0600), turn, fd;
    pthread_t thread;
    void *result;
    EXPECT((fd = open("many", O_RDWR | O_CREAT, 0600)) >= 0 && ftruncate(fd, 4096) == 0 && close(fd) == 0);
    /* A descriptor becomes another file while it is read: that file's offset stays. */
    for (turn = 0; turn < 100; turn++) {
        EXPECT((shared_fd = open("many", O_RDONLY)) >= 0);
        EXPECT(pthread_create(&thread, NULL, reads_once, NULL) == 0);
        EXPECT(dup2(local, shared_fd) == shared_fd && pthread_join(thread, NULL) == 0);
        EXPECT(lseek(local, 0, SEEK_CUR) == 0 && close(shared_fd) == 0);
    }
    EXPECT(close(local) == 0 && (shared_fd = open("many", O_RDONLY)) >= 0);
    EXPECT(pthread_create(&thread, NULL, reads_for_ever, NULL) == 0 && usleep(1000) == 0);
    EXPECT(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED);
    EXPECT(pread(shared_fd, bytes, 1, 0) == 1 && close(shared_fd) == 0);
}

/* Renamed directories stay the same objects. */
static void directories(const char *top)
{
    struct stat found;
    char path[4096], real[PATH_MAX];
    FILE *pipe;
    int directory;
    EXPECT(mkdir("moving", 0700) == 0 && chdir("moving") == 0);
    EXPECT((directory = open(".", O_RDONLY | O_DIRECTORY)) >= 0);
    EXPECT(rename("../moving", "../moved") == 0 && mkdir("../moving", 0700) == 0);
    EXPECT(close(open("mark", O_WRONLY | O_CREAT, 0600)) == 0 && stat("../moved/mark", &found) == 0);
    EXPECT(stat("../moving/mark", &found) == -1 && errno == ENOENT);
    EXPECT(fstatat(directory, "mark", &found, 0) == 0 && unlinkat(directory, "mark", 0) == 0);
    EXPECT(close(directory) == 0 && chdir("..") == 0 && rmdir("moved") == 0 && rmdir("moving") == 0);
    /* Behind a link, ".." is the parent of its target. */
    EXPECT(mkdir("deep", 0700) == 0 && mkdir("deep/dir", 0700) == 0 && symlink("deep/dir", "link") == 0);
    EXPECT(close(open("deep/mark", O_WRONLY | O_CREAT, 0600)) == 0);
    snprintf(path, sizeof path, "%s/deep/mark", top);
    EXPECT(realpath("link/../mark", real) && !strcmp(real, path));
    EXPECT((directory = open("link/..", O_RDONLY | O_DIRECTORY)) >= 0);
    EXPECT(fstatat(directory, "mark", &found, 0) == 0 && close(directory) == 0);
    *strrchr(path, '/') = 0;
    EXPECT(chdir("link/..") == 0 && getcwd(bytes, sizeof bytes) && !strcmp(bytes, path));
    EXPECT(stat("mark", &found) == 0);
    /* Programs that the C library starts internally are served, too. */
    EXPECT(system("test -f mark") == 0 && (pipe = popen("ls", "r")));
    EXPECT(fgets(bytes, sizeof bytes, pipe) && !strcmp(bytes, "dir\n") && pclose(pipe) == 0);
    EXPECT(chdir("..") == 0 && unlink("deep/mark") == 0 && unlink("link") == 0);
    /* Out of the prefix and back. */
    EXPECT(close(open("mark", O_WRONLY | O_CREAT, 0600)) == 0);
    snprintf(path, sizeof path, "%s/../../../..%s/mark", top, top);
    EXPECT(stat(path, &found) == 0 && unlink(path) == 0 && stat("mark", &found) == -1);
    EXPECT(rmdir("deep/dir") == 0 && rmdir("deep") == 0);
}

static char walked[256];

static int visits(const char *path, const struct stat *found, int kind, struct FTW *place)
{
    snprintf(walked + strlen(walked), sizeof walked - strlen(walked), "%s:%d:%d:%d ", path + place->base, kind,
             place->level, S_ISREG(found->st_mode));
    return 0;
}

static int no_dots(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

/* Functions by which the C library walks directories itself. */
static void walks(const char *top)
{
    struct dirent **entries;
    char pattern[4096];
    glob_t matched;
    EXPECT(mkdir("walk", 0700) == 0 && mkdir("walk/in", 0700) == 0);
    EXPECT(close(open("walk/b", O_WRONLY | O_CREAT, 0600)) == 0 && symlink("nothing", "walk/in/l") == 0);
    EXPECT(scandir("walk", &entries, no_dots, alphasort) == 2);
    EXPECT(!strcmp(entries[0]->d_name, "b") && !strcmp(entries[1]->d_name, "in"));
    free(entries[0]), free(entries[1]), free(entries);
    EXPECT(scandir("walk/none", &entries, NULL, NULL) == -1 && errno == ENOENT);
    snprintf(pattern, sizeof pattern, "%s/w*k/*", top);
    EXPECT(glob(pattern, 0, NULL, &matched) == 0 && matched.gl_pathc == 2 && strstr(matched.gl_pathv[0], "/walk/b"));
    globfree(&matched);
    EXPECT(glob("/etc/pass[w]d", 0, NULL, &matched) == 0 && matched.gl_pathc == 1);
    globfree(&matched);
    EXPECT(nftw("walk/in", visits, 8, FTW_PHYS) == 0 && !strcmp(walked, "in:1:0:0 l:4:1:0 "));
    *walked = 0;
    EXPECT(nftw("walk/in", visits, 8, FTW_DEPTH) == 0 && !strcmp(walked, "l:6:1:0 in:5:0:0 "));
    EXPECT(nftw("walk/none", visits, 8, 0) == -1 && errno == ENOENT);
    EXPECT(!unlink("walk/in/l") && !rmdir("walk/in") && !unlink("walk/b") && !rmdir("walk"));
}

static void asynchronous(void)
{
    int fd = open("aio", O_RDWR | O_CREAT, 0600), other = open("/dev/shm", O_TMPFILE | O_RDWR, 0600);
    struct aiocb one = {.aio_fildes = fd, .aio_buf = "0123456789", .aio_nbytes = 10};
    struct aiocb two = {.aio_fildes = other, .aio_buf = "local", .aio_nbytes = 5, .aio_lio_opcode = LIO_WRITE};
    struct aiocb *both[] = {&one, &two};
    const struct aiocb *waited[] = {&one};
    struct sigaction action = {.sa_handler = notices};
    one.aio_sigevent.sigev_notify = two.aio_sigevent.sigev_notify = SIGEV_NONE;
    EXPECT(aio_write(&one) == 0 && aio_suspend(waited, 1, NULL) == 0);
    EXPECT(aio_error(&one) == 0 && aio_return(&one) == 10);
    one.aio_buf = bytes, one.aio_nbytes = 4, one.aio_offset = 3, one.aio_lio_opcode = LIO_READ;
    EXPECT(lio_listio(LIO_WAIT, both, 2, NULL) == 0 && aio_error(&one) == 0 && aio_return(&one) == 4);
    EXPECT(!memcmp(bytes, "3456", 4) && aio_return(&two) == 5 && pread(other, bytes, 5, 0) == 5);
    EXPECT(!memcmp(bytes, "local", 5) && lseek(fd, 0, SEEK_CUR) == 0);
    EXPECT(sigaction(SIGUSR1, &action, NULL) == 0);
    handled = 0;
    one.aio_sigevent.sigev_notify = SIGEV_SIGNAL, one.aio_sigevent.sigev_signo = SIGUSR1;
    EXPECT(aio_fsync(O_SYNC, &one) == 0 && handled == 1 && aio_error(&one) == 0 && aio_return(&one) == 0);
    one.aio_sigevent.sigev_notify = SIGEV_NONE, one.aio_offset = -1;
    EXPECT(aio_read(&one) == 0 && aio_error(&one) == EINVAL && aio_return(&one) == -1);
    EXPECT(close(fd) == 0 && close(other) == 0);
}

/* Variadic arguments: more than there are registers. */
static void lists(void)
{
    char *environment[] = {"WORD=nine", NULL};
    const char *check = "test \"$1$2$3$4$5$6$7$8$9\" = 123456789 && test -f lists";
    int status, how;
    EXPECT(close(open("lists", O_WRONLY | O_CREAT, 0600)) == 0);
    for (how = 0; how < 3; how++) {
        pid_t child = fork();
        if (child == 0) {
            if (how == 0)
                execl("/bin/sh", "sh", "-ec", check, "sh", "1", "2", "3", "4", "5", "6", "7", "8", "9", NULL);
            if (how == 1)
                execlp("sh", "sh", "-ec", check, "sh", "1", "2", "3", "4", "5", "6", "7", "8", "9", NULL);
            execle("/bin/sh", "sh", "-ec", "test $WORD = nine && test -f lists", NULL, environment);
            _exit(1);
        }
        EXPECT(waitpid(child, &status, 0) == child && status == 0);
    }
    EXPECT(execl("/bin/nothing", "nothing", NULL) == -1 && errno == ENOENT);
}

/* A program that closes or reuses descriptors that it has not opened does not hit those of the sessions. */
extern ssize_t __read_chk(int fd, void *to, size_t bytes, size_t room);
extern ssize_t __readlink_chk(const char *path, char *to, size_t bytes, size_t room);
extern ssize_t __readlinkat_chk(int dir, const char *path, char *to, size_t bytes, size_t room);
extern char *__realpath_chk(const char *path, char *to, size_t room);
extern char *__getcwd_chk(char *to, size_t bytes, size_t room);

/* Unmapped memory is an error, and a buffer that is too short aborts the program. */
static void memory(void)
{
    /* Not constants, which the compiler would check. */
    void *volatile low = (void *)8, *volatile high = (void *)-4096;
    char target[PATH_MAX];
    struct iovec bad[2] = { { target, 1 }, { (void *)8, 10 } };
    const char *readable = "not to be written to";
    char *page = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int fd = open("memory", O_RDWR | O_CREAT | O_TRUNC, 0644), at;

    EXPECT(fd >= 0 && write(fd, "ten bytes.", 10) == 10);
    EXPECT(pread(fd, low, 10, 0) == -1 && errno == EFAULT);
    EXPECT(pread(fd, high, 10, 0) == -1 && errno == EFAULT);
    EXPECT(pread(fd, (void *)readable, 10, 0) == -1 && errno == EFAULT);
    EXPECT(lseek(fd, 0, SEEK_SET) == 0 && read(fd, low, 10) == -1 && errno == EFAULT);
    EXPECT(lseek(fd, 0, SEEK_CUR) == 0);
    EXPECT(write(fd, low, 10) == -1 && errno == EFAULT);
    EXPECT(pwrite(fd, readable, 10, 0) == 10);
    EXPECT(preadv(fd, bad, 2, 0) == 1 && preadv(fd, bad + 1, 1, 0) == -1 && errno == EFAULT);
    EXPECT(pwritev(fd, bad, 2, 0) == 1 && pwritev(fd, bad + 1, 1, 0) == -1 && errno == EFAULT);
    EXPECT(readv(fd, low, 2) == -1 && errno == EFAULT);
    EXPECT(munmap(page + 4096, 4096) == 0);
    EXPECT(pread(fd, page + 4090, 10, 0) == -1 && errno == EFAULT);
    EXPECT(pread(fd, page + 4086, 10, 0) == 10 && memcmp(page + 4086, "not to be ", 10) == 0);
    EXPECT(pread(fd, low, 0, 0) == 0);
    munmap(page, 4096);
    for (at = 0; at < 5; at++) {
        int status;
        pid_t child = fork();

        EXPECT(child >= 0);
        if (child == 0) {
            close(2);
            switch (at) {
            case 0:
                __read_chk(fd, target, 10, 9);
                break;
            case 1:
                __readlink_chk("symbolic", target, 10, 9);
                break;
            case 2:
                __readlinkat_chk(AT_FDCWD, "symbolic", target, 10, 9);
                break;
            case 3:
                __realpath_chk("memory", target, PATH_MAX - 1);
                break;
            default:
                __getcwd_chk(target, 100, 99);
            }
            _exit(0);
        }
        EXPECT(waitpid(child, &status, 0) == child && WIFSIGNALED(status));
        EXPECT(WTERMSIG(status) == SIGABRT);
    }
    EXPECT(symlink("memory", "symbolic") == 0);
    EXPECT(__readlink_chk("symbolic", target, 10, 10) == 6);
    EXPECT(__readlinkat_chk(AT_FDCWD, "symbolic", target, 10, 10) == 6);
    EXPECT(__realpath_chk("memory", target, PATH_MAX) == target);
    EXPECT(unlink("symbolic") == 0 && unlink("memory") == 0 && close(fd) == 0);
}

static void numbers(void)
{
    int fd = open("numbers", O_RDWR | O_CREAT, 0600), local = open("/dev/shm", O_TMPFILE | O_RDWR, 0600), other;
    pid_t child;
    int status;
    EXPECT(fd >= 0 && local >= 0 && write(fd, "before", 6) == 6 && (child = fork()) >= 0);
    if (child == 0) {
        /* With its own session, and with that of its parent still there. */
        EXPECT(pread(fd, bytes, 6, 0) == 6 && !memcmp(bytes, "before", 6));
        for (other = 3; other < 2000; other++)
            if (other != fd && other != local)
                close(other);
        EXPECT(pwrite(fd, "closed", 6, 0) == 6);
        for (other = 3; other < 1024; other++)
            EXPECT(other == fd || dup2(local, other) == other || errno == EBUSY);
        EXPECT(pwrite(fd, "copied", 6, 6) == 6 && fsync(fd) == 0);
        EXPECT(lseek(local, 0, SEEK_END) == 0);
        EXPECT(close_range(3, fd - 1, 0) == 0 && close_range(fd + 1, ~0U, 0) == 0);
        EXPECT(close_range(3, ~0U, 64) == -1 && errno == EINVAL);
        EXPECT(pread(fd, bytes, 12, 0) == 12 && !memcmp(bytes, "closedcopied", 12));
        closefrom(3);
        EXPECT(pread(fd, bytes, 1, 0) == -1 && errno == EBADF);
        EXPECT(open("/dev/null", O_RDWR) == 3);
        EXPECT((fd = open("numbers", O_RDONLY)) == 4 && read(fd, bytes, 6) == 6 && !memcmp(bytes, "closed", 6));
        exit(0);
    }
    EXPECT(waitpid(child, &status, 0) == child && status == 0);
    EXPECT(close(fd) == 0 && close(local) == 0);
}

/* The C library sends an internal signal to each thread, also to those of the sessions. */
static void users(void)
{
    alarm(30);
    EXPECT(setgid(getgid()) == 0 && setuid(getuid()) == 0);
    alarm(0);
}

int main(int count, char **arguments)
{
    if (count == 3) {
        int fd = atoi(arguments[2]);
        lseek(fd, 0, SEEK_CUR);
        return read(fd, bytes, 2) != 2 || bytes[1] != bytes[0] + 1;
    }
    /* The new session takes no descriptor number that a program would get. */
    EXPECT(count == 2 && (count = open("/dev/null", O_RDONLY)) >= 0 && close(count) == 0);
    EXPECT(chdir(arguments[1]) == 0 && open("/dev/null", O_RDONLY) == count);
    EXPECT(getcwd(bytes, sizeof bytes) && !strcmp(bytes, arguments[1]));
    descriptors();
    memory();
    numbers();
    children(arguments[0]);
    stdio();
    names();
    locks();
    copies();
    signals();
    left(arguments[1]);
    forks();
    quick_ends();
    threads();
    users();
    directories(arguments[1]);
    walks(arguments[1]);
    refused(arguments[1]);
    asynchronous();
    lists();
    puts("all as expected");
    return 0;
}
