/* The first content of the tables of TPC-C, and the consistency conditions of their content.
 *
 * Of the conditions, 11 is about the first content alone, and is left out. */
#include <stdbool.h>

#include "berkeley_tpcc.h"

/* The date of orders that the tables begin with. */
#define FIRST_DATE 1000000000

static void add(enum table table, struct key key, const void *record)
{
    int error = put(table, NULL, key, record, DB_NOOVERWRITE);
    if (error)
        fail("a record that is made", error);
}

static void letters(uint64_t *random, char *text, size_t bytes)
{
    for (size_t at = 0; at < bytes; at++)
        text[at] = 'a' + random_in(random, 0, 25);
}

static void load_customers(uint64_t *random, uint32_t w, uint32_t d)
{
    uint32_t names = last_names();
    for (uint32_t c = 1; c <= scale.customers; c++) {
        struct customer customer = { .balance = -FIRST_PAYMENT, .paid = FIRST_PAYMENT, .payments = 1 };
        struct history history = { .amount = FIRST_PAYMENT, .warehouse = w, .district = d, .customer = c };
        struct name name = { .customer = c };
        /* Each name has a customer. */
        customer.name = c <= names ? c - 1 : uneven(random, 255, 0, names - 1);
        customer.discount = random_in(random, 0, 5000);
        letters(random, customer.text, sizeof customer.text);
        add(CUSTOMER, KEY(w, d, c), &customer);
        add(NAME, KEY(w, d, customer.name, random_in(random, 0, 1 << 30), c), &name);
        add(HISTORY, KEY(w, d, c, 0, 0), &history);
    }
}

static void load_order(uint64_t *random, uint32_t w, uint32_t d, uint32_t o, uint32_t c)
{
    bool is_delivered = o <= scale.customers * 7 / 10;
    struct order order = { .date = FIRST_DATE, .customer = c, .is_local = 1 };
    struct latest latest = { .order = o };
    struct new_order new = { .order = o };
    order.lines = random_in(random, LINES_MIN, LINES_MAX);
    order.carrier = is_delivered ? random_in(random, 1, 10) : 0;
    for (uint32_t at = 1; at <= order.lines; at++) {
        struct line line = { .supplier = w, .quantity = 5, .item = random_in(random, 1, scale.items) };
        line.delivery = is_delivered ? FIRST_DATE : 0;
        line.amount = is_delivered ? 0 : random_in(random, 1, 999999);
        letters(random, line.text, sizeof line.text);
        add(LINE, KEY(w, d, o, at), &line);
    }
    add(ORDER, KEY(w, d, o), &order);
    add(LATEST, KEY(w, d, c), &latest);
    if (!is_delivered)
        add(NEW_ORDER, KEY(w, d, o), &new);
}

static void *zeroed(size_t count, size_t bytes)
{
    void *memory = calloc(count, bytes);
    if (!memory)
        fail("memory", errno);
    return memory;
}

static void load_district(uint64_t *random, uint32_t w, uint32_t d)
{
    struct district district = { .paid = (int64_t)FIRST_PAYMENT * scale.customers };
    uint32_t *order = zeroed(scale.customers, sizeof *order);
    district.next_order = scale.customers + 1;
    district.tax = random_in(random, 0, 2000);
    letters(random, district.text, sizeof district.text);
    add(DISTRICT, KEY(w, d), &district);
    load_customers(random, w, d);
    /* Each customer has one order, in any order. */
    for (uint32_t at = 0; at < scale.customers; at++) {
        uint32_t other = random_in(random, 0, at);
        order[at] = order[other];
        order[other] = at + 1;
    }
    for (uint32_t at = 0; at < scale.customers; at++)
        load_order(random, w, d, at + 1, order[at]);
    free(order);
}

void load(void)
{
    uint64_t random = 0;
    for (uint32_t i = 1; i <= scale.items; i++) {
        struct item item = { .price = random_in(&random, 100, 10000) };
        letters(&random, item.text, sizeof item.text);
        add(ITEM, KEY(i), &item);
    }
    for (uint32_t w = 1; w <= scale.warehouses; w++) {
        struct warehouse warehouse = { .paid = (int64_t)DISTRICTS * FIRST_PAYMENT * scale.customers };
        warehouse.tax = random_in(&random, 0, 2000);
        letters(&random, warehouse.text, sizeof warehouse.text);
        add(WAREHOUSE, KEY(w), &warehouse);
        for (uint32_t i = 1; i <= scale.items; i++) {
            struct stock stock = { .quantity = random_in(&random, 10, 100) };
            letters(&random, (char *)stock.districts, sizeof stock.districts);
            letters(&random, stock.text, sizeof stock.text);
            add(STOCK, KEY(w, i), &stock);
        }
        for (uint32_t d = 1; d <= DISTRICTS; d++)
            load_district(&random, w, d);
    }
}

/* An order, as all tables together show it. */
struct seen {
    uint32_t customer, lines, lines_found;
    bool exists, is_delivered, is_new;
};

/* A district. */
struct sums {
    struct seen *orders;
    int64_t paid, paid_history;
    uint64_t lines, lines_found;
    uint32_t next_order, last_order, new_count, new_first, new_last;
};

static struct sums *districts;
/* By customer: what was delivered, and paid. */
static int64_t *delivered, *paid;

static struct sums *district_of(uint32_t w, uint32_t d)
{
    if (!w || w > scale.warehouses || !d || d > DISTRICTS)
        fail("the key of a record", 0);
    return &districts[(w - 1) * DISTRICTS + d - 1];
}

static size_t customer_of(uint32_t w, uint32_t d, uint32_t c)
{
    if (!c || c > scale.customers)
        fail("the key of a record", 0);
    return (size_t)(district_of(w, d) - districts) * scale.customers + c - 1;
}

static struct seen *order_of(const struct key *key, int condition)
{
    uint32_t w = key_part(key, 0), d = key_part(key, 1), o = key_part(key, 2);
    struct sums *district = district_of(w, d);
    if (!o || o >= district->next_order)
        broken(condition, "order %u of district %u of warehouse %u", o, d, w);
    return &district->orders[o];
}

/* Hands all records of a table to a function. */
static void walk(enum table table, void visit(const struct key *key, const void *record))
{
    union {
        uint64_t aligned;
        char bytes[1024];
    } record;
    struct key key;
    DBC *cursor;
    DBT at = { .data = key.bytes, .ulen = sizeof key.bytes, .flags = DB_DBT_USERMEM };
    DBT content = { .data = &record, .ulen = sizeof record, .flags = DB_DBT_USERMEM };
    int error = tables[table]->cursor(tables[table], NULL, &cursor, 0);
    if (error)
        fail("a cursor", error);
    while (!(error = cursor->get(cursor, &at, &content, DB_NEXT))) {
        if (content.size != RECORD_BYTES[table])
            fail("the length of a record", 0);
        key.size = at.size;
        visit(&key, &record);
    }
    if (error != DB_NOTFOUND)
        fail("the next record", error);
    if ((error = cursor->close(cursor)))
        fail("a cursor", error);
}

static void see_district(const struct key *key, const void *record)
{
    const struct district *district = record;
    struct sums *sums = district_of(key_part(key, 0), key_part(key, 1));
    sums->paid = district->paid;
    sums->next_order = district->next_order;
    sums->orders = zeroed(district->next_order, sizeof *sums->orders);
}

static void see_order(const struct key *key, const void *record)
{
    const struct order *order = record;
    struct seen *seen = order_of(key, 2);
    struct sums *sums = district_of(key_part(key, 0), key_part(key, 1));
    *seen = (struct seen){ .exists = true, .customer = order->customer, .lines = order->lines,
                           .is_delivered = order->carrier };
    sums->lines += order->lines;
    sums->last_order = key_part(key, 2);
}

static void see_new_order(const struct key *key, const void *record)
{
    const struct new_order *new = record;
    struct sums *sums = district_of(key_part(key, 0), key_part(key, 1));
    order_of(key, 5)->is_new = true;
    if (!sums->new_count++)
        sums->new_first = new->order;
    sums->new_last = new->order;
}

static void see_line(const struct key *key, const void *record)
{
    const struct line *line = record;
    uint32_t w = key_part(key, 0), d = key_part(key, 1);
    struct seen *seen = order_of(key, 6);
    if (!seen->exists)
        broken(6, "order %u of district %u of warehouse %u", key_part(key, 2), d, w);
    seen->lines_found++;
    district_of(w, d)->lines_found++;
    if (seen->is_delivered != (line->delivery != 0))
        broken(7, "order %u of district %u of warehouse %u", key_part(key, 2), d, w);
    if (line->delivery)
        delivered[customer_of(w, d, seen->customer)] += line->amount;
}

static void see_history(const struct key *key, const void *record)
{
    const struct history *history = record;
    district_of(key_part(key, 0), key_part(key, 1))->paid_history += history->amount;
    paid[customer_of(history->warehouse, history->district, history->customer)] += history->amount;
}

static void check_warehouse(const struct key *key, const void *record)
{
    const struct warehouse *warehouse = record;
    uint32_t w = key_part(key, 0);
    int64_t sum = 0, sum_history = 0;
    for (uint32_t d = 1; d <= DISTRICTS; d++) {
        sum += district_of(w, d)->paid;
        sum_history += district_of(w, d)->paid_history;
    }
    if (warehouse->paid != sum)
        broken(1, "warehouse %u", w);
    if (warehouse->paid != sum_history)
        broken(8, "warehouse %u", w);
}

static void check_customer(const struct key *key, const void *record)
{
    const struct customer *customer = record;
    uint32_t w = key_part(key, 0), d = key_part(key, 1), c = key_part(key, 2);
    size_t at = customer_of(w, d, c);
    if (customer->balance != delivered[at] - paid[at])
        broken(10, "customer %u of district %u of warehouse %u", c, d, w);
    if (customer->balance + customer->paid != delivered[at])
        broken(12, "customer %u of district %u of warehouse %u", c, d, w);
}

static void check_district(uint32_t w, uint32_t d)
{
    const struct sums *sums = district_of(w, d);
    uint32_t last = sums->next_order - 1;
    if (sums->last_order != last || (sums->new_count && sums->new_last != last))
        broken(2, "district %u of warehouse %u", d, w);
    if (sums->new_count && sums->new_last - sums->new_first + 1 != sums->new_count)
        broken(3, "district %u of warehouse %u", d, w);
    if (sums->lines != sums->lines_found)
        broken(4, "district %u of warehouse %u", d, w);
    if (sums->paid != sums->paid_history)
        broken(9, "district %u of warehouse %u", d, w);
    for (uint32_t o = 1; o < sums->next_order; o++) {
        const struct seen *seen = &sums->orders[o];
        if (!seen->exists)
            broken(2, "order %u of district %u of warehouse %u", o, d, w);
        if (seen->is_new == seen->is_delivered)
            broken(5, "order %u of district %u of warehouse %u", o, d, w);
        if (seen->lines != seen->lines_found)
            broken(6, "order %u of district %u of warehouse %u", o, d, w);
    }
}

void check(void)
{
    size_t count = (size_t)scale.warehouses * DISTRICTS;
    districts = zeroed(count, sizeof *districts);
    delivered = zeroed(count * scale.customers, sizeof *delivered);
    paid = zeroed(count * scale.customers, sizeof *paid);
    walk(DISTRICT, see_district);
    walk(ORDER, see_order);
    walk(NEW_ORDER, see_new_order);
    walk(LINE, see_line);
    walk(HISTORY, see_history);
    for (size_t at = 0; at < count; at++)
        if (!districts[at].orders)
            fail("the number of districts", 0);
    walk(WAREHOUSE, check_warehouse);
    walk(CUSTOMER, check_customer);
    for (uint32_t w = 1; w <= scale.warehouses; w++)
        for (uint32_t d = 1; d <= DISTRICTS; d++)
            check_district(w, d);
}
