/* Replay a program in virtual time; see program.py.
 *
 * Each worker has 3 M + 1 queues, M being the number of servers: for each server the downlink, the uplink and its
 * computation for this worker, and the worker's own computation. A queue serves one operation at a time, in the order
 * in which they became ready; the worker's own computations that are ready go in the order of the trace, in which they
 * were recorded. All computations are events of their own; a direction of links has one event, the end of the transfer
 * that ends next. Events at the same time come in the order downlink, uplink, workers, servers, delays; of workers and
 * servers in the order of workers, of delays as they began. Delays have no queue. A worker that starts later than at 0
 * has a delay before its first step.
 *
 * Where links carry messages in turn, transfers have no queues of workers. Each has two events, its start and its
 * arrival; those at the same time come in the order in which the messages became ready. A message takes the sender's
 * link when that is free, and the receiver's from the same moment on, or when that is free: it does not wait there for
 * its last byte. It has arrived when both have carried all of it. A receiver carries messages in the order in which
 * they start.
 *
 * What can end next has a slot: the downlinks together, the uplinks together, each worker's computation, each
 * server's computation for each worker. The slots are the leaves of a tournament tree. Its root is the slot that
 * ends first; ties go to the lowest slot.
 * Where links carry messages in turn, the slot of a direction is the first start or arrival in a heap of its own.
 * Delays share the last slot in the same way.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { DOWN, UP, WORKER, SERVER, DELAY };

enum {
    KIND,
    SERVERS,
    BYTES,
    WAITS,
    STARTS,
    DEPENDENTS,
    ROOTS,
    DURATIONS,
    DRAWN,
    WORKER_SLOWNESS,
    SERVER_SLOWNESS,
    LIMITS,
    BEGINS,
    STOP,
    ENDS,
    DONE,
    MOVED,
    BUSY,
    COMMUNICATING,
    EXPOSED,
    COMPUTING,
    SERVING,
    END,
    NUM_ARRAYS
};

#define CHECK_EVERY (1 << 20) /* events between two looks for Ctrl-C: a fraction of a second */
#define NOTHING_ENDS 2        /* instead of whether a worker has done all its steps */
#define NOTHING (-1.0)        /* instead of the bytes of a stream that has not been served */
#define START (-1)            /* instead of the operation of a delay: a worker starts */

typedef struct {
    int32_t *positions; /* a ring; a worker's computations are in `ready` instead */
    int32_t first, count, capacity;
    int32_t running; /* the operation that is served; -1: none */
    double began;    /* when its service began */
} Queue;

typedef struct {
    int64_t *active; /* connections, in order */
    int64_t num_active;
    int64_t *per_server; /* number of active connections */
    char *is_active, *is_shared; /* now, and when `rates` were found */
    int64_t num_different;       /* between these two */
    double *left, *rates;        /* by connection */
    double at_s;
    int64_t ends_next;
    int is_changed;
} Link;

typedef struct {
    double time; /* of a transfer: of its start, then of its arrival */
    int64_t number;
    double began; /* of a transfer: when the sender's link took it */
    double left;  /* when its last byte has left */
    int32_t worker, position, has_begun;
} Event;

typedef struct {
    Event *events; /* by time, then number */
    int64_t count, num_made;
} Heap;

typedef struct {
    Heap heap;
    double *free; /* when the link of each worker and each server is free */
} Turns;

typedef struct {
    uint64_t time; /* its bits: they are in the order of the numbers, which are 0 or more */
    int64_t slot;
} Entry;

typedef struct {
    const int64_t *kind, *server, *num_waits, *starts, *dependents, *roots, *drawn;
    const double *bytes, *durations, *worker_slowness, *server_slowness, *limits, *begins;
    const volatile char *stop;
    double *ends, *moved, *busy, *communicating, *exposed, *computing, *serving;
    int64_t *done;
    int64_t num_operations, num_roots, num_workers, num_servers, num_steps, num_queues, num_leaves;
    double window;
    int in_turn;
    Turns turns[2];
    Heap delays;
    Queue *queues;
    int32_t *positions; /* memory of all rings */
    uint64_t *ready;    /* computations that wait, a bit for each position: `num_words` words for each worker */
    int64_t num_words;
    Link links[2];
    int32_t *waits, *first_waits; /* of each worker, and of a step that starts */
    int64_t *open, *transfers;
    double *own_durations; /* of each worker's step: side by side, so that they stay in the cache */
    double *rest;
    char *computes;
    double *since;
    Entry *tree;
    int32_t *worker_of, *end_of; /* of a connection; its end is W + the server */
    int64_t *users, *growing;    /* for sharing */
    double *room, *fair;
    PyObject *observe; /* is called with every chunk; NULL: nothing is */
    int has_failed;    /* it raised */
} Replay;

static int64_t queue_of(const Replay *r, int64_t worker, int64_t kind, int64_t server)
{
    return worker * r->num_queues + (kind == WORKER ? 0 : 1 + (kind == SERVER ? 2 : kind) * r->num_servers + server);
}

static int64_t slot_of(const Replay *r, int64_t worker, int64_t kind, int64_t server)
{
    if (kind == DOWN || kind == UP)
        return kind;
    return kind == WORKER ? 2 + worker : 2 + r->num_workers + worker * r->num_servers + server;
}

static int64_t slot_of_delays(const Replay *r)
{
    return 2 + r->num_workers + r->num_workers * r->num_servers;
}

__attribute__((noinline, cold)) static void show(Replay *r, int64_t worker, int64_t position, double began, double now)
{
    /* Pass a piece of work that has ended to the observer. */
    if (r->has_failed)
        return;
    PyGILState_STATE lock = PyGILState_Ensure();
    PyObject *done = PyObject_CallFunction(r->observe, "LLLdd", (long long)worker, (long long)r->done[worker],
                                           (long long)position, began, now);
    r->has_failed = done == NULL;
    Py_XDECREF(done);
    PyGILState_Release(lock);
}

static void set_time(Replay *r, int64_t slot, double time)
{
    /* Without branches, which the processor could not guess. */
    uint64_t first;
    memcpy(&first, &time, sizeof first);
    int64_t node = slot + r->num_leaves;
    Entry *tree = r->tree;
    tree[node].time = first;
    while (node > 1) {
        int64_t other = node ^ 1;
        uint64_t time_of_other = tree[other].time, slot_of_other = (uint64_t)tree[other].slot;
        uint64_t wins = (time_of_other < first) | ((time_of_other == first) & (other < node)), mask = -wins;
        first ^= (first ^ time_of_other) & mask;
        slot ^= (int64_t)(((uint64_t)slot ^ slot_of_other) & mask);
        node /= 2;
        tree[node].time = first;
        tree[node].slot = slot;
    }
}

static void note(Replay *r, int64_t worker, double now)
{
    double passed = now - r->since[worker];
    r->since[worker] = now;
    if (r->computes[worker])
        r->computing[worker] += passed;
    if (r->transfers[worker]) {
        r->communicating[worker] += passed;
        if (!r->computes[worker])
            r->exposed[worker] += passed;
    }
}

static void advance(Replay *r, int64_t kind, double now)
{
    Link *link = &r->links[kind];
    double passed = now - link->at_s;
    link->at_s = now;
    if (passed == 0.0)
        return;
    double *moved_to = r->moved + kind * r->num_servers, *busy = r->busy + kind * r->num_servers;
    for (int64_t s = 0; s < r->num_servers; s++)
        if (link->per_server[s])
            busy[s] += passed;
    for (int64_t i = 0; i < link->num_active; i++) {
        int64_t c = link->active[i];
        double moved = link->rates[c] * passed;
        if (link->left[c] <= moved)
            moved = link->left[c];
        link->left[c] -= moved;
        moved_to[r->end_of[c] - r->num_workers] += moved;
    }
}

static void share(Replay *r, int64_t kind)
{
    /* Max-min fairness by progressive filling: all connections grow at the same pace. When a link is full, its
     * connections stop; the others grow on. With one server and workers whose links do not limit, it is the equal
     * share of [ASGD] Sec. 3.1. */
    Link *link = &r->links[kind];
    int64_t num_links = r->num_workers + r->num_servers, num_growing = link->num_active;
    memcpy(r->room, r->limits + kind * num_links, (size_t)num_links * sizeof *r->room);
    memset(r->users, 0, (size_t)num_links * sizeof *r->users);
    for (int64_t i = 0; i < num_growing; i++) {
        int64_t c = r->growing[i] = link->active[i];
        r->users[r->worker_of[c]]++;
        r->users[r->end_of[c]]++;
    }
    while (num_growing) {
        double least = INFINITY;
        for (int64_t e = 0; e < num_links; e++) {
            r->fair[e] = r->users[e] ? r->room[e] / (double)r->users[e] : INFINITY;
            if (r->fair[e] < least)
                least = r->fair[e];
        }
        int64_t num_still = 0;
        for (int64_t i = 0; i < num_growing; i++) {
            int64_t c = r->growing[i], ends[2] = {r->worker_of[c], r->end_of[c]};
            if (r->fair[ends[0]] > least && r->fair[ends[1]] > least) {
                r->growing[num_still++] = c;
                continue;
            }
            link->rates[c] = least;
            for (int e = 0; e < 2; e++) {
                r->room[ends[e]] -= least;
                r->users[ends[e]]--;
            }
        }
        num_growing = num_still;
    }
    memcpy(link->is_shared, link->is_active, (size_t)(r->num_workers * r->num_servers));
    link->num_different = 0;
}

static void plan_links(Replay *r, double now)
{
    for (int64_t kind = DOWN; kind <= UP; kind++) {
        Link *link = &r->links[kind];
        if (!link->is_changed)
            continue;
        link->is_changed = 0;
        if (!link->num_active) {
            set_time(r, kind, INFINITY);
            continue;
        }
        if (link->num_different)
            share(r, kind);
        double least = INFINITY;
        for (int64_t i = 0; i < link->num_active; i++) {
            int64_t c = link->active[i];
            double seconds = link->left[c] / link->rates[c];
            if (i == 0 || seconds < least) {
                least = seconds;
                link->ends_next = c;
            }
        }
        set_time(r, kind, now + least);
    }
}

static void set_active(Replay *r, Link *link, int64_t c, int is_active)
{
    int64_t i;
    if (is_active) {
        for (i = link->num_active++; i > 0 && link->active[i - 1] > c; i--)
            link->active[i] = link->active[i - 1];
        link->active[i] = c;
    } else {
        for (i = 0; link->active[i] != c; i++)
            ;
        link->num_active--;
        for (; i < link->num_active; i++)
            link->active[i] = link->active[i + 1];
    }
    link->per_server[r->end_of[c] - r->num_workers] += is_active ? 1 : -1;
    link->is_active[c] = (char)is_active;
    link->num_different += link->is_active[c] != link->is_shared[c] ? 1 : -1;
}

static void start_transfer(Replay *r, int64_t worker, int64_t kind, int64_t server, int64_t position, double now)
{
    double *rest = &r->rest[worker * r->num_operations + position];
    double size = *rest;
    if (size == NOTHING) {
        double total = r->bytes[position];
        size = r->window < total ? r->window : total;
        *rest = total - size;
    } else {
        *rest = 0.0;
    }
    note(r, worker, now);
    r->transfers[worker]++;
    advance(r, kind, now);
    Link *link = &r->links[kind];
    int64_t c = worker * r->num_servers + server;
    set_active(r, link, c, 1);
    link->left[c] = size;
    link->is_changed = 1;
}

static int64_t dequeue(Queue *queue)
{
    int64_t position = queue->positions[queue->first];
    queue->first = queue->first + 1 == queue->capacity ? 0 : queue->first + 1;
    queue->count--;
    return position;
}

/* Computations go in the order of the trace. `first` is the first word that may have a bit. */
static int64_t take_earliest(Replay *r, int64_t worker, Queue *queue)
{
    uint64_t *ready = r->ready + worker * r->num_words;
    int64_t word = queue->first;
    while (!ready[word])
        word++;
    int64_t position = 64 * word + __builtin_ctzll(ready[word]);
    ready[word] &= ready[word] - 1;
    queue->first = (int32_t)word;
    queue->count--;
    return position;
}

static void make_ready(Replay *r, int64_t worker, Queue *queue, int64_t position)
{
    int32_t word = (int32_t)(position / 64);
    r->ready[worker * r->num_words + word] |= UINT64_C(1) << position % 64;
    if (word < queue->first || !queue->count)
        queue->first = word;
    queue->count++;
}

static void start_next(Replay *r, int64_t worker, int64_t kind, int64_t server, double now)
{
    Queue *queue = &r->queues[queue_of(r, worker, kind, server)];
    if (!queue->count)
        return;
    int64_t position = kind == WORKER ? take_earliest(r, worker, queue) : dequeue(queue);
    queue->running = (int32_t)position;
    queue->began = now;
    if (kind == DOWN || kind == UP) {
        start_transfer(r, worker, kind, server, position, now);
        return;
    }
    double seconds = r->own_durations[worker * r->num_operations + position];
    if (kind == WORKER) {
        note(r, worker, now);
        r->computes[worker] = 1;
        seconds *= r->worker_slowness[worker];
    } else {
        seconds *= r->server_slowness[server];
        r->serving[server] += seconds;
    }
    set_time(r, slot_of(r, worker, kind, server), now + seconds);
}

static int is_before(const Event *one, const Event *other)
{
    return one->time < other->time || (one->time == other->time && one->number < other->number);
}

/* After a push or a pop, the slot of the heap needs `set_first`. */
static void push(Heap *heap, Event event)
{
    Event *events = heap->events;
    int64_t i = heap->count++;
    for (; i > 0 && is_before(&event, &events[(i - 1) / 2]); i = (i - 1) / 2)
        events[i] = events[(i - 1) / 2];
    events[i] = event;
}

static Event pop(Heap *heap)
{
    Event *events = heap->events, first = events[0], last = events[--heap->count];
    int64_t i = 0;
    for (;;) {
        int64_t child = 2 * i + 1;
        if (child >= heap->count)
            break;
        if (child + 1 < heap->count && is_before(&events[child + 1], &events[child]))
            child++;
        if (!is_before(&events[child], &last))
            break;
        events[i] = events[child];
        i = child;
    }
    events[i] = last;
    return first;
}

static void set_first(Replay *r, int64_t slot, const Heap *heap)
{
    set_time(r, slot, heap->count ? heap->events[0].time : INFINITY);
}

static void start_delay(Replay *r, int64_t worker, int64_t position, double now, double until)
{
    Heap *delays = &r->delays;
    push(delays, (Event){.time = until,
                         .began = now,
                         .number = delays->num_made++,
                         .worker = (int32_t)worker,
                         .position = (int32_t)position});
    set_first(r, slot_of_delays(r), delays);
}

static double take_link(Replay *r, int64_t kind, const Event *transfer, int is_sender, double now, double *end)
{
    /* From when; and until when one end's link carries the message. */
    int is_server = (kind == DOWN) == is_sender;
    int64_t position = transfer->position;
    int64_t link = is_server ? r->num_workers + r->server[position] : transfer->worker;
    double *is_free = &r->turns[kind].free[link], start = now < *is_free ? *is_free : now;
    *end = *is_free = start + r->bytes[position] / r->limits[kind * (r->num_workers + r->num_servers) + link];
    return start;
}

static void send_in_turn(Replay *r, int64_t worker, int64_t position, double now)
{
    int64_t kind = r->kind[position];
    Heap *heap = &r->turns[kind].heap;
    Event transfer = {.number = heap->num_made++, .worker = (int32_t)worker, .position = (int32_t)position};
    note(r, worker, now);
    r->transfers[worker]++;
    transfer.time = transfer.began = take_link(r, kind, &transfer, 1, now, &transfer.left);
    push(heap, transfer);
    set_first(r, kind, heap);
}

static void enqueue(Queue *queue, int64_t position)
{
    int32_t last = queue->first + queue->count++;
    queue->positions[last >= queue->capacity ? last - queue->capacity : last] = (int32_t)position;
}

static void add(Replay *r, int64_t worker, int64_t position, double now)
{
    int64_t kind = r->kind[position], server = r->server[position];
    if (r->in_turn && (kind == DOWN || kind == UP)) {
        send_in_turn(r, worker, position, now);
        return;
    }
    if (kind == DELAY) {
        start_delay(r, worker, position, now, now + r->own_durations[worker * r->num_operations + position]);
        return;
    }
    Queue *queue = &r->queues[queue_of(r, worker, kind, server)];
    if (kind == WORKER)
        make_ready(r, worker, queue, position);
    else
        enqueue(queue, position);
    if (queue->running < 0)
        start_next(r, worker, kind, server, now);
}

static void complete(Replay *r, int64_t worker, int64_t position, double now)
{
    int32_t *waits = r->waits + worker * r->num_operations;
    r->open[worker]--;
    for (int64_t i = r->starts[position]; i < r->starts[position + 1]; i++) {
        int64_t dependent = r->dependents[i];
        if (!--waits[dependent])
            add(r, worker, dependent, now);
    }
}

static void start_step(Replay *r, int64_t worker, double now)
{
    int64_t count = r->num_operations, step = r->drawn[worker * r->num_steps + r->done[worker]];
    memcpy(r->waits + worker * count, r->first_waits, (size_t)count * sizeof *r->waits);
    memcpy(r->own_durations + worker * count, r->durations + step * count, (size_t)count * sizeof *r->durations);
    r->open[worker] = r->num_operations;
    for (int64_t i = 0; i < r->num_roots; i++)
        add(r, worker, r->roots[step * r->num_roots + i], now);
}

static int end_step_if_done(Replay *r, int64_t worker, double now)
{
    /* Whether the worker has done all its steps. */
    if (r->open[worker])
        return 0;
    r->ends[worker * r->num_steps + r->done[worker]++] = now;
    if (r->done[worker] == r->num_steps)
        return 1;
    start_step(r, worker, now);
    return 0;
}

static int end_chunk(Replay *r, int64_t worker, int64_t kind, int64_t server, double now)
{
    /* Whether the worker has done all its steps. */
    Queue *queue = &r->queues[queue_of(r, worker, kind, server)];
    int64_t position = queue->running;
    if (r->observe)
        show(r, worker, position, queue->began, now);
    if (kind == DOWN || kind == UP) {
        Link *link = &r->links[kind];
        int64_t c = worker * r->num_servers + server;
        double *rest = &r->rest[worker * r->num_operations + position];
        note(r, worker, now);
        r->transfers[worker]--;
        r->moved[kind * r->num_servers + server] += link->left[c];
        set_active(r, link, c, 0);
        if (*rest > 0.0) {
            enqueue(queue, position);
        } else {
            *rest = NOTHING;
            complete(r, worker, position, now);
        }
    } else {
        if (kind == WORKER) {
            note(r, worker, now);
            r->computes[worker] = 0;
        }
        complete(r, worker, position, now);
    }
    queue->running = -1;
    if (queue->count)
        start_next(r, worker, kind, server, now);
    else if (kind == WORKER || kind == SERVER)
        set_time(r, slot_of(r, worker, kind, server), INFINITY);
    return end_step_if_done(r, worker, now);
}

static int carry(Replay *r, int64_t kind, double now)
{
    /* A transfer in turn starts, or has arrived. Whether its worker has done all its steps. */
    Heap *heap = &r->turns[kind].heap;
    Event transfer = pop(heap);
    if (!transfer.has_begun) {
        double carried;
        take_link(r, kind, &transfer, 0, transfer.time, &carried);
        transfer.time = transfer.left < carried ? carried : transfer.left;
        transfer.has_begun = 1;
        push(heap, transfer);
        set_first(r, kind, heap);
        return 0;
    }
    set_first(r, kind, heap);
    int64_t worker = transfer.worker, server = r->server[transfer.position];
    double size = r->bytes[transfer.position];
    if (r->observe)
        show(r, worker, transfer.position, transfer.began, now);
    note(r, worker, now);
    r->transfers[worker]--;
    r->moved[kind * r->num_servers + server] += size;
    r->busy[kind * r->num_servers + server] +=
        size / r->limits[kind * (r->num_workers + r->num_servers) + r->num_workers + server];
    complete(r, worker, transfer.position, now);
    return end_step_if_done(r, worker, now);
}

static int end_delay(Replay *r, double now)
{
    /* Whether its worker has done all its steps. */
    Event delay = pop(&r->delays);
    set_first(r, slot_of_delays(r), &r->delays);
    int is_done = 0;
    if (delay.position == START) {
        start_step(r, delay.worker, now);
    } else {
        if (r->observe)
            show(r, delay.worker, delay.position, delay.began, now);
        complete(r, delay.worker, delay.position, now);
        is_done = end_step_if_done(r, delay.worker, now);
    }
    plan_links(r, now);
    return is_done;
}

static int end_first(Replay *r, double *now)
{
    int64_t slot = r->tree[1].slot, kind, worker, server = 0;
    memcpy(now, &r->tree[1].time, sizeof *now);
    if (!(*now < INFINITY))
        return NOTHING_ENDS;
    if (slot <= UP && r->in_turn)
        return carry(r, slot, *now);
    if (slot == slot_of_delays(r))
        return end_delay(r, *now);
    if (slot <= UP) {
        Link *link = &r->links[slot];
        kind = slot;
        advance(r, kind, *now);
        link->is_changed = 1;
        worker = r->worker_of[link->ends_next];
        server = r->end_of[link->ends_next] - r->num_workers;
    } else if (slot < 2 + r->num_workers) {
        kind = WORKER;
        worker = slot - 2;
    } else {
        kind = SERVER;
        worker = r->worker_of[slot - 2 - r->num_workers];
        server = r->end_of[slot - 2 - r->num_workers] - r->num_workers;
    }
    int is_done = end_chunk(r, worker, kind, server, *now);
    plan_links(r, *now);
    return is_done;
}

static int run(Replay *r, double *end)
{
    /* 0 if the replay was stopped, or nothing ends any more. */
    double now = 0.0;
    int is_done = 0;
    for (int64_t worker = 0; worker < r->num_workers; worker++)
        if (r->begins[worker] > 0.0)
            start_delay(r, worker, START, 0.0, r->begins[worker]);
        else
            start_step(r, worker, 0.0);
    plan_links(r, 0.0);
    while (!is_done) {
        for (int64_t i = 0; i < CHECK_EVERY && !is_done && !r->has_failed; i++)
            is_done = end_first(r, &now);
        PyGILState_STATE lock = PyGILState_Ensure();
        int has_error = r->has_failed || PyErr_CheckSignals(); /* only of the main thread; others have the flag */
        if (!has_error && *r->stop) {
            PyErr_SetNone(PyExc_KeyboardInterrupt);
            has_error = 1;
        }
        if (!has_error && is_done == NOTHING_ENDS) {
            PyErr_SetString(PyExc_ValueError, "replay: a time or a rate is no finite number");
            has_error = 1;
        }
        PyGILState_Release(lock);
        if (has_error)
            return 0;
    }
    for (int64_t kind = DOWN; kind <= UP; kind++)
        advance(r, kind, now);
    for (int64_t worker = 0; worker < r->num_workers; worker++)
        note(r, worker, now);
    *end = now;
    return 1;
}

static void make_queues(Replay *r)
{
    /* A queue has at most all operations of its resource. Computations of workers and delays need no ring. */
    for (int64_t i = 0; i < r->num_operations; i++)
        if (r->kind[i] != WORKER && r->kind[i] != DELAY)
            r->queues[queue_of(r, 0, r->kind[i], r->server[i])].capacity++;
    int32_t *next = r->positions;
    for (int64_t q = 0; q < r->num_workers * r->num_queues; q++) {
        r->queues[q].capacity = r->queues[q % r->num_queues].capacity;
        r->queues[q].positions = next;
        r->queues[q].running = -1;
        next += r->queues[q].capacity;
    }
}

static void make_tree(Replay *r)
{
    for (int64_t leaf = 0; leaf < r->num_leaves; leaf++) {
        r->tree[r->num_leaves + leaf].slot = leaf;
        set_time(r, leaf, INFINITY);
    }
}

typedef struct {
    void *parts[40];
    int num_parts, is_out;
} Memory;

static void *zeros(Memory *memory, int64_t count, size_t size)
{
    void *part = calloc((size_t)(count ? count : 1), size);
    if (part)
        memory->parts[memory->num_parts++] = part;
    else
        memory->is_out = 1;
    return part;
}

static int allocate(Replay *r, Memory *m)
{
    int64_t num_links = r->num_workers + r->num_servers, num_pairs = r->num_workers * r->num_servers;
    int64_t num_slots = slot_of_delays(r) + 1;
    for (r->num_leaves = 4; r->num_leaves < num_slots;)
        r->num_leaves *= 2;
    r->queues = zeros(m, r->num_workers * r->num_queues, sizeof *r->queues);
    r->positions = zeros(m, r->num_workers * r->num_operations, sizeof *r->positions);
    r->num_words = (r->num_operations + 63) / 64;
    r->ready = zeros(m, r->num_workers * r->num_words, sizeof *r->ready);
    r->waits = zeros(m, r->num_workers * r->num_operations, sizeof *r->waits);
    r->first_waits = zeros(m, r->num_operations, sizeof *r->first_waits);
    r->own_durations = zeros(m, r->num_workers * r->num_operations, sizeof *r->own_durations);
    r->rest = zeros(m, r->num_workers * r->num_operations, sizeof *r->rest);
    r->open = zeros(m, r->num_workers, sizeof *r->open);
    r->transfers = zeros(m, r->num_workers, sizeof *r->transfers);
    r->computes = zeros(m, r->num_workers, sizeof *r->computes);
    r->since = zeros(m, r->num_workers, sizeof *r->since);
    r->tree = zeros(m, 2 * r->num_leaves, sizeof *r->tree);
    r->users = zeros(m, num_links, sizeof *r->users);
    r->growing = zeros(m, num_pairs, sizeof *r->growing);
    r->room = zeros(m, num_links, sizeof *r->room);
    r->fair = zeros(m, num_links, sizeof *r->fair);
    r->worker_of = zeros(m, num_pairs, sizeof *r->worker_of);
    r->end_of = zeros(m, num_pairs, sizeof *r->end_of);
    for (int kind = DOWN; kind <= UP; kind++) {
        Link *link = &r->links[kind];
        link->active = zeros(m, num_pairs, sizeof *link->active);
        link->per_server = zeros(m, r->num_servers, sizeof *link->per_server);
        link->is_active = zeros(m, num_pairs, sizeof *link->is_active);
        link->is_shared = zeros(m, num_pairs, sizeof *link->is_shared);
        link->left = zeros(m, num_pairs, sizeof *link->left);
        link->rates = zeros(m, num_pairs, sizeof *link->rates);
        r->turns[kind].free = zeros(m, num_links, sizeof *r->turns[kind].free);
        if (r->in_turn) /* each operation of a worker's step is sent once */
            r->turns[kind].heap.events = zeros(m, r->num_workers * r->num_operations, sizeof(Event));
    }
    int64_t num_delays = 1; /* at least the start, which is before all others */
    for (int64_t i = 0; i < r->num_operations; i++)
        num_delays += r->kind[i] == DELAY;
    r->delays.events = zeros(m, r->num_workers * num_delays, sizeof(Event));
    if (m->is_out)
        return 0;
    for (int64_t i = 0; i < r->num_workers * r->num_operations; i++)
        r->rest[i] = NOTHING;
    for (int64_t i = 0; i < r->num_operations; i++)
        r->first_waits[i] = (int32_t)r->num_waits[i];
    for (int64_t c = 0; c < num_pairs; c++) {
        r->worker_of[c] = (int32_t)(c / r->num_servers);
        r->end_of[c] = (int32_t)(r->num_workers + c % r->num_servers);
    }
    make_queues(r);
    make_tree(r);
    return 1;
}

static int are_within(const int64_t *values, int64_t count, int64_t least, int64_t limit)
{
    for (int64_t i = 0; i < count; i++)
        if (values[i] < least || values[i] >= limit)
            return 0;
    return 1;
}

static int are_consistent(const Replay *r, const Py_buffer *arrays)
{
    int64_t n = r->num_operations, w = r->num_workers, m = r->num_servers;
    if (n < 1 || w < 1 || m < 1 || r->num_steps < 1 || n > 1 << 28 || w > 1 << 20 || m > 1 << 20)
        return 0;
    const struct {
        int array;
        int64_t count;
    } wanted[] = {
        {SERVERS, n},       {BYTES, n},   {WAITS, n},     {STARTS, n + 1}, {DRAWN, w * r->num_steps},
        {LIMITS, 2 * (w + m)}, {BEGINS, w}, {ENDS, w * r->num_steps}, {DONE, w},      {MOVED, 2 * m},  {BUSY, 2 * m},
        {COMMUNICATING, w}, {EXPOSED, w}, {COMPUTING, w}, {SERVING, m},    {END, 1},
    };
    if (arrays[STOP].len != 1)
        return 0;
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        if (arrays[wanted[i].array].len != 8 * wanted[i].count)
            return 0;
    int64_t num_dependents = arrays[DEPENDENTS].len / 8, num_recorded = arrays[DURATIONS].len / 8 / n;
    if (arrays[DURATIONS].len != 8 * n * num_recorded || r->starts[0] != 0 || r->starts[n] != num_dependents ||
        arrays[ROOTS].len != 8 * r->num_roots * num_recorded)
        return 0;
    for (int64_t i = 0; i < n; i++)
        if (r->starts[i] > r->starts[i + 1])
            return 0;
    /* Without waits that fit the dependents, an operation could run twice and overflow its queue. */
    int64_t *waits = calloc((size_t)n, sizeof *waits);
    int is_right = waits != NULL && are_within(r->kind, n, DOWN, DELAY + 1) && are_within(r->server, n, 0, m) &&
                   are_within(r->dependents, num_dependents, 0, n) && are_within(r->roots, arrays[ROOTS].len / 8, 0, n) &&
                   are_within(r->drawn, w * r->num_steps, 0, num_recorded) && are_within(r->done, w, 0, 1);
    for (int64_t i = 0; is_right && i < n; i++)
        for (int64_t d = r->starts[i]; is_right && d < r->starts[i + 1]; d++) {
            is_right = r->dependents[d] > i; /* so that there is no circle */
            waits[r->dependents[d]]++;
        }
    for (int64_t i = 0; is_right && i < n; i++)
        is_right = waits[i] == r->num_waits[i];
    int64_t num_first = 0;
    for (int64_t step = 0; is_right && step < num_recorded; step++)
        for (int64_t i = 0; is_right && i < r->num_roots; i++) {
            int64_t root = r->roots[step * r->num_roots + i];
            is_right = r->num_waits[root] == 0 && waits[root]-- == -step; /* once in each step */
        }
    for (int64_t i = 0; is_right && i < n; i++)
        num_first += r->num_waits[i] == 0;
    free(waits);
    return is_right && num_first == r->num_roots;
}

static Replay replay_of(const Py_buffer *arrays, double window, int in_turn, PyObject *observe)
{
    Replay r = {
        .kind = arrays[KIND].buf,
        .server = arrays[SERVERS].buf,
        .bytes = arrays[BYTES].buf,
        .num_waits = arrays[WAITS].buf,
        .starts = arrays[STARTS].buf,
        .dependents = arrays[DEPENDENTS].buf,
        .roots = arrays[ROOTS].buf,
        .durations = arrays[DURATIONS].buf,
        .drawn = arrays[DRAWN].buf,
        .worker_slowness = arrays[WORKER_SLOWNESS].buf,
        .server_slowness = arrays[SERVER_SLOWNESS].buf,
        .limits = arrays[LIMITS].buf,
        .begins = arrays[BEGINS].buf,
        .stop = arrays[STOP].buf,
        .ends = arrays[ENDS].buf,
        .done = arrays[DONE].buf,
        .moved = arrays[MOVED].buf,
        .busy = arrays[BUSY].buf,
        .communicating = arrays[COMMUNICATING].buf,
        .exposed = arrays[EXPOSED].buf,
        .computing = arrays[COMPUTING].buf,
        .serving = arrays[SERVING].buf,
        .window = window,
        .in_turn = in_turn,
        .observe = observe == Py_None ? NULL : observe,
        .num_operations = arrays[KIND].len / 8,
        .num_workers = arrays[WORKER_SLOWNESS].len / 8,
        .num_servers = arrays[SERVER_SLOWNESS].len / 8,
    };
    r.num_steps = r.num_workers ? arrays[DRAWN].len / 8 / r.num_workers : 0;
    int64_t num_recorded = r.num_operations ? arrays[DURATIONS].len / 8 / r.num_operations : 0;
    r.num_roots = num_recorded ? arrays[ROOTS].len / 8 / num_recorded : 0;
    r.num_queues = 1 + 3 * r.num_servers;
    return r;
}

static PyObject *replay(PyObject *module, PyObject *args)
{
    Py_buffer a[NUM_ARRAYS];
    double window;
    int in_turn;
    PyObject *observe;
    (void)module;
    /* All requests need C-contiguous memory; other objects raise. */
    if (!PyArg_ParseTuple(args, "y*y*y*y*y*y*y*y*y*y*y*y*y*y*w*w*w*w*w*w*w*w*w*dpO:replay", &a[KIND], &a[SERVERS], &a[BYTES],
                          &a[WAITS], &a[STARTS], &a[DEPENDENTS], &a[ROOTS], &a[DURATIONS], &a[DRAWN],
                          &a[WORKER_SLOWNESS], &a[SERVER_SLOWNESS], &a[LIMITS], &a[BEGINS], &a[STOP], &a[ENDS], &a[DONE], &a[MOVED], &a[BUSY],
                          &a[COMMUNICATING], &a[EXPOSED], &a[COMPUTING], &a[SERVING], &a[END], &window, &in_turn, &observe))
        return NULL;
    Replay r = replay_of(a, window, in_turn, observe);
    Memory memory = {.num_parts = 0};
    int is_done = 0;
    if (!are_consistent(&r, a)) {
        PyErr_SetString(PyExc_ValueError, "replay: the arrays do not fit together");
    } else if (!allocate(&r, &memory)) {
        PyErr_NoMemory();
    } else {
        Py_BEGIN_ALLOW_THREADS
        is_done = run(&r, a[END].buf);
        Py_END_ALLOW_THREADS
    }
    for (int i = 0; i < memory.num_parts; i++)
        free(memory.parts[i]);
    for (int i = 0; i < NUM_ARRAYS; i++)
        PyBuffer_Release(&a[i]);
    if (!is_done)
        return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"replay", replay, METH_VARARGS,
     "replay(kind, server, num_bytes, num_waits, starts, dependents, roots, durations_s, drawn, worker_slowness, "
     "server_slowness, bytes_per_s, begins_s, stop, ends_s, num_done, bytes_moved, busy_s, communicating_s, exposed_s, computing_s, "
     "serving_s, end_s, window_bytes, in_turn, observe)\n--\n\nReplay a program; see _replaying.pyi."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "_replaying",
    .m_doc = "Replay a program in virtual time.",
    .m_methods = methods,
};

PyMODINIT_FUNC PyInit__replaying(void)
{
    return PyModuleDef_Init(&definition);
}
