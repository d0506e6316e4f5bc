/* Sequential reads get read-ahead, and never return stale data. The file is the argument. Compiled and run by
 * preload.sh. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define EXPECT(what)                                                                       \
    do {                                                                                   \
        if (!(what)) {                                                                     \
            fprintf(stderr, "line %d: not so: %s (errno %d)\n", __LINE__, #what, errno);   \
            exit(1);                                                                       \
        }                                                                                  \
    } while (0)

enum { PIECE = 32 << 10, PIECES = 384, READ_FIRST = 256 };

static char piece[PIECE], expected[PIECE];

/* The content of the piece of this number in this version of the file. */
static void fill(char *bytes, int number, int version)
{
    memset(bytes, number * 7 + version * 101, PIECE);
}

static void write_from(int fd, int first, int version)
{
    for (int number = first; number < PIECES; number++) {
        fill(piece, number, version);
        EXPECT(pwrite(fd, piece, PIECE, (off_t)number * PIECE) == PIECE);
    }
}

static void expect_next(int fd, int number, int version)
{
    fill(expected, number, version);
    EXPECT(read(fd, piece, PIECE) == PIECE);
    EXPECT(!memcmp(piece, expected, PIECE));
}

int main(int count, char **arguments)
{
    int ask[2], told[2], fd, copy, status, number;
    char word;
    pid_t child;
    struct stat found;
    EXPECT(count == 2);
    EXPECT((fd = open(arguments[1], O_RDWR | O_CREAT | O_TRUNC, 0600)) >= 0);
    write_from(fd, 0, 1);
    EXPECT(close(fd) == 0 && pipe(ask) == 0 && pipe(told) == 0);
    EXPECT((fd = open(arguments[1], O_RDONLY)) >= 0 && (copy = dup(fd)) >= 0);
    EXPECT((child = fork()) >= 0);
    if (child == 0) {
        int own;
        /* It shares the file offset with its parent, and no other state. */
        EXPECT(read(ask[0], &word, 1) == 1);
        expect_next(fd, READ_FIRST, 1);
        EXPECT((own = open(arguments[1], O_RDWR)) >= 0);
        write_from(own, 0, 2);
        EXPECT(write(told[1], "w", 1) == 1 && read(ask[0], &word, 1) == 1);
        EXPECT(ftruncate(own, (READ_FIRST + 4) * PIECE) == 0);
        EXPECT(write(told[1], "t", 1) == 1 && read(ask[0], &word, 1) == 1);
        EXPECT(pwrite(own, "more", 4, (READ_FIRST + 4) * PIECE) == 4);
        EXPECT(write(told[1], "a", 1) == 1);
        _exit(0);
    }
    for (number = 0; number < READ_FIRST; number++)
        expect_next(number % 2 ? fd : copy, number, 1);
    /* The next piece has been read ahead, and is changed now. */
    EXPECT(write(ask[1], "w", 1) == 1 && read(told[0], &word, 1) == 1 && word == 'w');
    expect_next(fd, READ_FIRST + 1, 2);
    expect_next(copy, READ_FIRST + 2, 2);
    EXPECT(lseek(fd, PIECE, SEEK_SET) == PIECE);
    expect_next(copy, 1, 2);
    EXPECT(lseek(fd, (READ_FIRST + 3) * PIECE, SEEK_SET) == (READ_FIRST + 3) * PIECE);
    EXPECT(write(ask[1], "t", 1) == 1 && read(told[0], &word, 1) == 1 && word == 't');
    expect_next(fd, READ_FIRST + 3, 2);
    EXPECT(read(fd, piece, PIECE) == 0);
    EXPECT(fstat(fd, &found) == 0 && found.st_size == (READ_FIRST + 4) * PIECE);
    EXPECT(write(ask[1], "a", 1) == 1 && read(told[0], &word, 1) == 1 && word == 'a');
    EXPECT(read(fd, piece, PIECE) == 4 && !memcmp(piece, "more", 4));
    EXPECT(waitpid(child, &status, 0) == child && status == 0);
    return 0;
}
