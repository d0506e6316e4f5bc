/* expect.h -- the checks of these programs: one that does not hold ends the program, with its line. */
#ifndef DAFS_TESTS_EXPECT_H
#define DAFS_TESTS_EXPECT_H

#include <dafs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static inline void expect_at(int line, int64_t result, int64_t wanted)
{
    if (result != wanted) {
        fprintf(stderr, "line %d: %s (%lld) instead of %s (%lld): %s\n", line,
                dap_error_name(result), (long long)result, dap_error_name(wanted),
                (long long)wanted, dap_last_error());
        exit(1);
    }
}

static inline void check_at(int line, int holds, const char *what)
{
    if (!holds) {
        fprintf(stderr, "line %d: %s does not hold; %s\n", line, what, dap_last_error());
        exit(1);
    }
}

/* The result of a function of the library. */
#define expect(result, wanted) expect_at(__LINE__, (result), (wanted))
/* Anything else. */
#define check(condition) check_at(__LINE__, !!(condition), #condition)

#endif
