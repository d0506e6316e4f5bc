/*
 * siw_order.c -- what an RDMA device keeps of the promises about completions: two processes, plain
 * libibverbs and librdmacm. One side listens and checks, the other tries.
 *
 *   siw_order listen ADDRESS PORT
 *   siw_order try ADDRESS PORT [ROUNDS]
 *
 * The trying side prints a line for each promise and exits with 1 if one is broken.
 * Both machines must have the same byte order.
 */
#include <errno.h>
#include <inttypes.h>
#include <sched.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#define PAGE 4096u
/* Memory that the other side may read and write. Reads use the first half, writes the second. */
#define HALF (4u << 20)
#define AREA (2 * HALF)
#define POISON 0xEE
#define READ_BYTES (1u << 20)
#define MESSAGE_BYTES 64u
#define RECEIVES 16u
#define SEGMENTS 6
#define QUEUE 64
#define READS 8
#define WAIT_SECONDS 30

/* Numbers of requests; those of reads of READS are READ + index. */
enum { SEND = 1000, WRITE, SHORT, READ };
enum { NOTE = 1, CHECK, BYE };

struct message {
	uint32_t kind;
	uint32_t round;
	/* The bytes to compare with the pattern of the round. */
	uint64_t at;
	uint64_t len;
	/* The answer: how many differ, and the first of them. */
	uint64_t wrong;
	uint64_t first;
};

/* The private data of the listening side. */
struct grant {
	uint64_t address;
	uint32_t key;
	uint32_t unused;
};

struct side {
	struct rdma_cm_id *id;
	uint8_t *area;
	uint8_t *box; /* RECEIVES messages to receive into, and one to send from */
	struct ibv_mr *area_mr;
	struct ibv_mr *box_mr;
	struct grant peer;
};

static int broken;

static void __attribute__((noreturn, format(printf, 1, 2))) fail(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	vfprintf(stderr, format, arguments);
	va_end(arguments);
	fputc('\n', stderr);
	exit(2);
}

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec + time.tv_nsec / 1e9;
}

/* Depends on the round and on the place, so that old bytes and misplaced bytes are seen. */
static uint8_t pattern(uint32_t round, uint64_t at)
{
	return (uint8_t)(round * 101 + at * 7 + (at >> 8) * 13 + (at >> 16));
}

static void fill(struct side *side, uint32_t round, uint64_t at, uint64_t len)
{
	for (uint64_t i = at; i < at + len; i++)
		side->area[i] = pattern(round, i);
}

/* Counts from the end, where bytes arrive last. */
static uint64_t differing(const struct side *side, uint32_t round, uint64_t at, uint64_t len,
			  uint64_t *first)
{
	uint64_t count = 0;

	*first = 0;
	for (uint64_t i = at + len; i-- > at;) {
		if (side->area[i] != pattern(round, i)) {
			count++;
			*first = i;
		}
	}
	return count;
}

static struct ibv_wc next_completion(struct ibv_cq *queue, const char *what)
{
	double until = now() + WAIT_SECONDS;
	struct ibv_wc wc;
	int count;

	/* The kernel, which emulates the device, may need this processor. */
	while ((count = ibv_poll_cq(queue, 1, &wc)) == 0) {
		if (now() > until)
			fail("%s: no completion within %d seconds", what, WAIT_SECONDS);
		sched_yield();
	}
	if (count < 0)
		fail("%s: the completion queue has failed", what);
	if (wc.status != IBV_WC_SUCCESS)
		fail("%s: request %" PRIu64 ": %s", what, wc.wr_id, ibv_wc_status_str(wc.status));
	return wc;
}

static void must_be(struct side *side, uint64_t number, const char *what)
{
	struct ibv_wc wc = next_completion(side->id->send_cq, what);

	if (wc.wr_id != number)
		fail("%s: completion of %" PRIu64 ", expected %" PRIu64, what, wc.wr_id, number);
}

static void post(struct side *side, struct ibv_send_wr *first)
{
	struct ibv_send_wr *bad = NULL;
	int error = ibv_post_send(side->id->qp, first, &bad);

	if (error)
		fail("ibv_post_send: %s", strerror(abs(error)));
}

static void post_receive(struct side *side, uint64_t slot)
{
	struct ibv_sge segment = {
		.addr = (uintptr_t)(side->box + slot * MESSAGE_BYTES),
		.length = MESSAGE_BYTES,
		.lkey = side->box_mr->lkey,
	};
	struct ibv_recv_wr request = { .wr_id = slot, .sg_list = &segment, .num_sge = 1 };
	struct ibv_recv_wr *bad = NULL;
	int error = ibv_post_recv(side->id->qp, &request, &bad);

	if (error)
		fail("ibv_post_recv: %s", strerror(abs(error)));
}

/* Takes one message and makes its slot free again. */
static struct message take(struct side *side)
{
	struct ibv_wc wc = next_completion(side->id->recv_cq, "a message");
	struct message message;

	memcpy(&message, side->box + wc.wr_id * MESSAGE_BYTES, sizeof(message));
	post_receive(side, wc.wr_id);
	return message;
}

/* A send of this message. Its slot is free, because every message is answered. */
static struct ibv_send_wr message_of(struct side *side, struct ibv_sge *segment,
				     struct message message)
{
	uint8_t *slot = side->box + RECEIVES * MESSAGE_BYTES;

	memcpy(slot, &message, sizeof(message));
	*segment = (struct ibv_sge){
		.addr = (uintptr_t)slot,
		.length = MESSAGE_BYTES,
		.lkey = side->box_mr->lkey,
	};
	return (struct ibv_send_wr){
		.wr_id = SEND,
		.sg_list = segment,
		.num_sge = 1,
		.opcode = IBV_WR_SEND,
		.send_flags = IBV_SEND_SIGNALED,
	};
}

static struct ibv_sge piece(const struct side *side, uint64_t at, uint32_t len)
{
	return (struct ibv_sge){
		.addr = (uintptr_t)(side->area + at),
		.length = len,
		.lkey = side->area_mr->lkey,
	};
}

/* A signalled read or write between the same places of both areas. */
static struct ibv_send_wr move_of(struct side *side, uint64_t number, enum ibv_wr_opcode opcode,
				  struct ibv_sge *segments, int count, uint64_t at)
{
	struct ibv_send_wr request = {
		.wr_id = number,
		.sg_list = segments,
		.num_sge = count,
		.opcode = opcode,
		.send_flags = IBV_SEND_SIGNALED,
	};

	request.wr.rdma.remote_addr = side->peer.address + at;
	request.wr.rdma.rkey = side->peer.key;
	return request;
}

static void __attribute__((format(printf, 3, 4))) judge(const char *name, int is_kept,
							const char *format, ...)
{
	va_list arguments;

	printf("%s %s: ", is_kept ? "kept  " : "BROKEN", name);
	va_start(arguments, format);
	vprintf(format, arguments);
	va_end(arguments);
	putchar('\n');
	fflush(stdout);
	broken += !is_kept;
}

/*
 * Requests of one send queue complete in the order in which they were posted, and a read has
 * completed only if its bytes are there: so they are there when a later request completes.
 */
static void try_order(struct side *side, const char *name, int is_write, int flags, int rounds)
{
	uint64_t early = 0, most_missing = 0, wrong = 0, first;

	for (int round = 0; round < rounds; round++) {
		struct ibv_sge sink = piece(side, 0, READ_BYTES);
		struct ibv_sge small = piece(side, HALF, MESSAGE_BYTES), segment;
		struct ibv_send_wr read = move_of(side, READ, IBV_WR_RDMA_READ, &sink, 1, 0);
		struct ibv_send_wr second;
		struct ibv_wc wc;

		if (is_write)
			second = move_of(side, WRITE, IBV_WR_RDMA_WRITE, &small, 1, HALF);
		else
			second = message_of(side, &segment, (struct message){ .kind = NOTE });
		second.send_flags |= flags;
		read.next = &second;
		memset(side->area, POISON, READ_BYTES);
		post(side, &read);
		wc = next_completion(side->id->send_cq, name);
		if (wc.wr_id != READ) {
			uint64_t missing = differing(side, 0, 0, READ_BYTES, &first);

			early++;
			if (missing > most_missing)
				most_missing = missing;
			must_be(side, READ, name);
		} else {
			must_be(side, second.wr_id, name);
		}
		wrong += differing(side, 0, 0, READ_BYTES, &first);
		if (!is_write)
			take(side);
	}
	judge(name, early == 0 && wrong == 0,
	      "%" PRIu64 " of %d later requests completed before the read, up to %" PRIu64
	      " of %u bytes missing then; %" PRIu64 " bytes wrong after the read's own completion",
	      early, rounds, most_missing, READ_BYTES, wrong);
}

/* Reads bring the right bytes, if each completion is told apart by its number. */
static void try_reads(struct side *side, int rounds)
{
	const uint32_t len = HALF / READS;
	uint64_t wrong = 0, first;

	for (int round = 0; round < rounds; round++) {
		struct ibv_sge sinks[READS], segment;
		struct ibv_send_wr reads[READS], send;

		memset(side->area, POISON, HALF);
		send = message_of(side, &segment, (struct message){ .kind = NOTE });
		for (int i = 0; i < READS; i++) {
			sinks[i] = piece(side, (uint64_t)i * len, len);
			reads[i] = move_of(side, READ + i, IBV_WR_RDMA_READ, &sinks[i], 1,
					   (uint64_t)i * len);
			reads[i].next = i + 1 < READS ? &reads[i + 1] : &send;
		}
		post(side, &reads[0]);
		for (int i = 0; i < READS + 1; i++) {
			struct ibv_wc wc = next_completion(side->id->send_cq, "reads");

			if (wc.wr_id >= READ)
				wrong += differing(side, 0, (wc.wr_id - READ) * len, len, &first);
		}
		take(side);
	}
	judge("reads by their numbers", wrong == 0, "%" PRIu64 " bytes wrong in %d rounds of %d reads",
	      wrong, rounds, READS);
}

/*
 * The completion of a send says that the write before it is done with its buffer, even if that
 * write is not signalled. So the buffer may be changed, and the other side sees the old bytes.
 */
static void try_reuse(struct side *side, const char *name, uint32_t len, int count, int is_signalled,
		      int rounds)
{
	uint64_t wrong = 0;
	int bad_rounds = 0;

	for (int round = 1; round <= rounds; round++) {
		struct ibv_sge segments[SEGMENTS], segment;
		struct ibv_send_wr write, send;
		struct message answer;
		uint32_t part = len / count;

		fill(side, round, HALF, len);
		for (int i = 0; i < count; i++)
			segments[i] = piece(side, HALF + (uint64_t)i * part,
					    i + 1 < count ? part : len - i * part);
		write = move_of(side, WRITE, IBV_WR_RDMA_WRITE, segments, count, HALF);
		if (!is_signalled)
			write.send_flags = 0;
		send = message_of(side, &segment,
				  (struct message){ CHECK, round, HALF, len, 0, 0 });
		write.next = &send;
		post(side, &write);
		if (is_signalled)
			must_be(side, WRITE, name);
		must_be(side, SEND, name);
		memset(side->area + HALF, POISON, len);
		answer = take(side);
		wrong += answer.wrong;
		bad_rounds += answer.wrong > 0;
	}
	judge(name, wrong == 0, "%" PRIu64 " bytes wrong in %d of %d rounds of %u bytes", wrong,
	      bad_rounds, rounds, len);
}

/* A short write across a page boundary, behind a long one that keeps the queue busy. */
static void try_short(struct side *side, const char *name, int count, int rounds)
{
	const uint32_t long_bytes = 2u << 20, short_bytes = 20, before = 6;
	const uint64_t at = HALF + (3u << 20) - before;
	uint64_t wrong = 0, first = 0;

	for (int round = 1; round <= rounds; round++) {
		struct ibv_sge large = piece(side, HALF, long_bytes), segment;
		struct ibv_sge small[2] = { piece(side, at, short_bytes) };
		struct ibv_send_wr write, tail, send;
		struct message answer;

		if (count == 2) {
			small[0] = piece(side, at, before);
			small[1] = piece(side, at + before, short_bytes - before);
		}
		fill(side, round, HALF, long_bytes);
		fill(side, round, at - PAGE, 2 * PAGE);
		write = move_of(side, WRITE, IBV_WR_RDMA_WRITE, &large, 1, HALF);
		tail = move_of(side, SHORT, IBV_WR_RDMA_WRITE, small, count, at);
		send = message_of(side, &segment,
				  (struct message){ CHECK, round, at, short_bytes, 0, 0 });
		write.next = &tail;
		tail.next = &send;
		post(side, &write);
		must_be(side, WRITE, name);
		must_be(side, SHORT, name);
		must_be(side, SEND, name);
		answer = take(side);
		wrong += answer.wrong;
		if (answer.wrong)
			first = answer.first - at;
	}
	judge(name, wrong == 0, "%" PRIu64 " bytes wrong in %d rounds of %u bytes, the first at %" PRIu64,
	      wrong, rounds, short_bytes, first);
}

static void check_for_peer(struct side *side)
{
	for (;;) {
		struct message message = take(side);
		struct ibv_sge segment;
		struct ibv_send_wr answer;

		if (message.kind == BYE)
			return;
		if (message.kind == CHECK) {
			if (message.at > AREA || message.len > AREA - message.at)
				fail("a range outside of the area");
			message.wrong = differing(side, message.round, message.at, message.len,
						  &message.first);
		}
		answer = message_of(side, &segment, message);
		post(side, &answer);
		must_be(side, SEND, "an answer");
	}
}

static void make_memory(struct side *side)
{
	const int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;
	void *area = NULL, *box = NULL;

	if (posix_memalign(&area, PAGE, AREA) || posix_memalign(&box, PAGE, PAGE))
		fail("no memory");
	memset(area, 0, AREA);
	memset(box, 0, PAGE);
	side->area = area;
	side->box = box;
	side->area_mr = ibv_reg_mr(side->id->pd, area, AREA, access);
	side->box_mr = ibv_reg_mr(side->id->pd, box, PAGE, IBV_ACCESS_LOCAL_WRITE);
	if (!side->area_mr || !side->box_mr)
		fail("ibv_reg_mr: %s (ulimit -l?)", strerror(errno));
	for (uint64_t slot = 0; slot < RECEIVES; slot++)
		post_receive(side, slot);
}

_Static_assert(sizeof(struct message) <= MESSAGE_BYTES, "a message fits its slot");
_Static_assert((RECEIVES + 1) * MESSAGE_BYTES <= PAGE, "all slots fit the box");

int main(int count, char **words)
{
	struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_TCP }, *found = NULL;
	struct ibv_qp_init_attr queues = {
		.cap = { .max_send_wr = QUEUE,
			 .max_recv_wr = QUEUE,
			 .max_send_sge = SEGMENTS,
			 .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
		.sq_sig_all = 0,
	};
	struct rdma_conn_param parameters = {
		.responder_resources = 16,
		.initiator_depth = 16,
		.retry_count = 7,
		.rnr_retry_count = 7,
	};
	const struct timespec pause = { .tv_nsec = 500 * 1000 * 1000 };
	struct side side = { 0 };
	struct rdma_cm_id *id;
	int is_listener, rounds;

	if (count < 4 || (strcmp(words[1], "listen") && strcmp(words[1], "try")))
		fail("usage: siw_order listen|try ADDRESS PORT [ROUNDS]");
	is_listener = !strcmp(words[1], "listen");
	rounds = count > 4 ? atoi(words[4]) : 20;
	if (is_listener)
		hints.ai_flags = RAI_PASSIVE;
	if (rdma_getaddrinfo(words[2], words[3], &hints, &found))
		fail("rdma_getaddrinfo: %s", strerror(errno));
	if (rdma_create_ep(&id, found, NULL, &queues))
		fail("rdma_create_ep: %s", strerror(errno));

	if (is_listener) {
		struct grant grant;

		if (rdma_listen(id, 1) || rdma_get_request(id, &side.id))
			fail("cannot listen: %s", strerror(errno));
		make_memory(&side);
		fill(&side, 0, 0, HALF);
		grant = (struct grant){ (uintptr_t)side.area, side.area_mr->rkey, 0 };
		parameters.private_data = &grant;
		parameters.private_data_len = sizeof(grant);
		if (rdma_accept(side.id, &parameters))
			fail("rdma_accept: %s", strerror(errno));
		check_for_peer(&side);
		return 0;
	}

	side.id = id;
	make_memory(&side);
	if (rdma_connect(id, &parameters))
		fail("rdma_connect: %s", strerror(errno));
	if (!id->event || id->event->param.conn.private_data_len < sizeof(side.peer))
		fail("the listening side grants no memory");
	memcpy(&side.peer, id->event->param.conn.private_data, sizeof(side.peer));
	/* siw as the listener may miss a message that comes at once. */
	nanosleep(&pause, NULL);

	try_order(&side, "order, read then send", 0, 0, rounds);
	try_order(&side, "order, read then write", 1, 0, rounds);
	try_order(&side, "order, read then fenced send", 0, IBV_SEND_FENCE, rounds);
	try_reads(&side, rounds);
	try_reuse(&side, "reuse, write not signalled", 3u << 20, 1, 0, rounds);
	try_reuse(&side, "reuse, write not signalled, 6 segments", 3u << 20, SEGMENTS, 0, rounds);
	try_reuse(&side, "reuse, write not signalled, 2 KiB", 2048, 1, 0, rounds);
	try_reuse(&side, "reuse, write signalled", 3u << 20, 1, 1, rounds);
	try_reuse(&side, "reuse, write signalled, 6 segments", 3u << 20, SEGMENTS, 1, rounds);
	try_short(&side, "short write across pages", 1, rounds);
	try_short(&side, "short write across pages, 2 segments", 2, rounds);

	{
		struct ibv_sge segment;
		struct ibv_send_wr bye =
			message_of(&side, &segment, (struct message){ .kind = BYE });

		post(&side, &bye);
		must_be(&side, SEND, "the end");
		nanosleep(&pause, NULL);
	}
	return broken ? 1 : 0;
}
