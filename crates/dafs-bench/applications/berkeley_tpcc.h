/* The tables of TPC-C on Berkeley DB, for all parts of berkeley_tpcc. Money is in cents. */
#include <db.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DISTRICTS 10
#define LINES_MIN 5
#define LINES_MAX 15
#define LAST_NAMES 1000
#define PROCESSES_MAX 64
#define PAGE_BYTES 4096
#define CACHE_BYTES_MIN (1 << 20)
/* The cache of a table that is open without an environment. */
#define ALONE_CACHE_BYTES (8 << 20)
#define LOCKS 50000

/* The payment of each customer in new tables. */
#define FIRST_PAYMENT 1000

enum table { WAREHOUSE, DISTRICT, CUSTOMER, NAME, HISTORY, ORDER, LATEST, NEW_ORDER, LINE, ITEM, STOCK, TABLES };

/* Key: warehouse. */
struct warehouse {
    int64_t paid;
    uint32_t tax;
    char text[76];
};
/* Key: warehouse, district. */
struct district {
    int64_t paid;
    uint32_t tax, next_order;
    char text[80];
};
/* Key: warehouse, district, customer. */
struct customer {
    int64_t balance, paid;
    uint32_t discount, payments, deliveries, name;
    char text[616];
};
/* Key: warehouse, district, last name, first name, customer. The content is the customer. */
struct name {
    uint32_t customer;
};
/* Key: warehouse and district of the payment, customer, process, number. */
struct history {
    int64_t amount;
    uint32_t warehouse, district, customer;
    char text[24];
};
/* Key: warehouse, district, order. */
struct order {
    uint64_t date;
    /* A carrier of 0 is none yet. */
    uint32_t customer, lines, carrier, is_local;
};
/* Key: warehouse, district, customer. */
struct latest {
    uint32_t order;
};
/* Key: warehouse, district, order. */
struct new_order {
    uint32_t order;
};
/* Key: warehouse, district, order, line. A delivery of 0 is none yet. */
struct line {
    uint64_t delivery;
    int64_t amount;
    uint32_t item, supplier, quantity;
    char text[24];
};
/* Key: item. */
struct item {
    uint32_t price;
    char text[76];
};
/* Key: warehouse, item. */
struct stock {
    uint32_t quantity, paid, orders, remote;
    char districts[DISTRICTS][24];
    char text[52];
};

static const uint32_t RECORD_BYTES[TABLES] = {
    sizeof(struct warehouse), sizeof(struct district), sizeof(struct customer), sizeof(struct name),
    sizeof(struct history), sizeof(struct order), sizeof(struct latest), sizeof(struct new_order),
    sizeof(struct line), sizeof(struct item), sizeof(struct stock),
};

#define KEY_PARTS_MAX 5

struct key {
    unsigned char bytes[4 * KEY_PARTS_MAX];
    uint32_t size;
};

#define KEY(...) make_key((uint32_t[]){ __VA_ARGS__ }, sizeof((uint32_t[]){ __VA_ARGS__ }) / 4)

struct scale {
    /* Customers are those of a district. */
    uint32_t warehouses, items, customers;
};

extern struct scale scale;
extern DB *tables[TABLES];

/* A number in which each bit depends on all of what it is made of. */
static inline uint64_t mix(uint64_t of)
{
    of += 0x9e3779b97f4a7c15;
    of = (of ^ (of >> 30)) * 0xbf58476d1ce4e5b9;
    of = (of ^ (of >> 27)) * 0x94d049bb133111eb;
    return of ^ (of >> 31);
}

/* A number from `least` to `most`. */
static inline uint32_t random_in(uint64_t *random, uint32_t least, uint32_t most)
{
    return least + mix((*random)++) % ((uint64_t)most - least + 1);
}

/* The same, where some numbers are more frequent than others (TPC-C 2.1.6). */
static inline uint32_t uneven(uint64_t *random, uint32_t bits, uint32_t least, uint32_t most)
{
    uint64_t either = random_in(random, 0, bits) | random_in(random, least, most);
    return (either + bits / 3) % (most - least + 1) + least;
}

/* The last names that customers have. */
static inline uint32_t last_names(void)
{
    return scale.customers < LAST_NAMES ? scale.customers : LAST_NAMES;
}

void fail(const char *about, int error) __attribute__((noreturn));
void broken(int condition, const char *format, ...) __attribute__((noreturn, format(printf, 2, 3)));
struct key make_key(const uint32_t *parts, size_t count);
uint32_t key_part(const struct key *key, size_t at);

/* Read and write a record. They return an error of Berkeley DB, or 0. */
int get(enum table table, DB_TXN *txn, struct key key, void *record, uint32_t flags);
int put(enum table table, DB_TXN *txn, struct key key, const void *record, uint32_t flags);

/* Fills the tables with the first content (TPC-C 4.3.3). */
void load(void);
/* Ends the program if a consistency condition does not hold (TPC-C 3.3.2). */
void check(void);
/* Runs transactions one after the other, in the mix of TPC-C 5.2.3. */
void transact(DB_ENV *environment, uint64_t seed, uint64_t count);
