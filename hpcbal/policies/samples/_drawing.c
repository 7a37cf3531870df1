/* Draw the samples of a step as CHRONICA does; `SortedParts.draw` in drawing.py says what is drawn.
 *
 * The samples of a worker lie side by side, from the smallest to the largest, and never move. `below[place]` is
 * the place itself while its sample is left; then it leads towards the next smaller one that is left. Each
 * search shortens these paths (union-find), so a draw costs little more than one binary search. The workers are
 * the leaves of a tournament tree. Its root is the worker that finishes first; ties go to the lowest number.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

typedef struct {
    uint64_t finish; /* its bits: they are in the order of the numbers, which are 0 or more */
    int64_t worker;
} Entry;

#define NEVER UINT64_MAX /* later than infinity: a worker that has no samples left */

typedef struct {
    const double *sizes;
    int32_t *below;
    const int64_t *bounds; /* worker j has places bounds[j] to bounds[j + 1] - 1 */
    int64_t *first;        /* no sample of the worker is left before this place */
    int64_t *left;         /* number of samples of the worker that are left */
} Parts;

static double longer_by(double start_s, double slope, double size)
{
    /* Rounded twice (-ffp-contract=off), so that ranks on unlike processors draw the same samples. */
    return start_s + slope * size;
}

static int64_t largest_left(const Parts *parts, int64_t place, int64_t start)
{
    /* At `place` or before; less than `start` if there is none. */
    int32_t *below = parts->below;
    while (place >= start && below[place] != place) {
        int64_t next = below[place];
        if (next >= start)
            below[place] = below[next];
        place = next;
    }
    return place;
}

static int64_t count_fitting(const double *sizes, int64_t count, double room)
{
    /* Like bisect_right, also if `room` is infinite or not a number. A version without branches was slower: the
     * processor guesses a branch and fetches from memory before it knows the answer. */
    int64_t low = 0;
    while (low < count) {
        int64_t middle = low + (count - low) / 2;
        if (room < sizes[middle])
            count = middle;
        else
            low = middle + 1;
    }
    return low;
}

static double take(const Parts *parts, int64_t worker, int64_t place)
{
    parts->below[place] = (int32_t)(place - 1);
    parts->left[worker]--;
    return parts->sizes[place];
}

static int64_t choose(const Parts *parts, int64_t worker, double room)
{
    /* The largest sample that fits into `room`; if there is none, the smallest. The worker has samples left. */
    int64_t start = parts->bounds[worker], count = parts->bounds[worker + 1] - start;
    int64_t place = start + count_fitting(parts->sizes + start, count, room) - 1;
    place = largest_left(parts, place, start);
    if (place >= start)
        return place;
    place = parts->first[worker];
    while (parts->below[place] != place)
        place++;
    parts->first[worker] = place;
    return place;
}

static Entry entry_of(int64_t worker, double finish_s, int has_samples)
{
    Entry entry = {NEVER, worker};
    finish_s += 0.0; /* never -0.0 */
    if (has_samples)
        memcpy(&entry.finish, &finish_s, sizeof finish_s);
    return entry;
}

static Entry earlier(Entry one, Entry other)
{
    int is_other = (other.finish < one.finish) | ((other.finish == one.finish) & (other.worker < one.worker));
    one.finish = is_other ? other.finish : one.finish;
    one.worker = is_other ? other.worker : one.worker;
    return one;
}

static void draw_all(const Parts *parts, const double *slopes, const double *launches, int64_t num_workers,
                     int64_t pivot_worker, int64_t pivot, int64_t num_samples, Entry *tree, int64_t num_leaves,
                     int64_t *drawn, int32_t *drawers)
{
    drawers[0] = (int32_t)pivot_worker;
    drawn[0] = pivot;
    double slowest_s = longer_by(launches[pivot_worker], slopes[pivot_worker], take(parts, pivot_worker, pivot));
    for (int64_t j = 0; j < num_leaves; j++)
        tree[num_leaves + j] = j < num_workers
            ? entry_of(j, j == pivot_worker ? slowest_s : launches[j], parts->left[j] > 0)
            : entry_of(j, 0.0, 0);
    for (int64_t node = num_leaves - 1; node > 0; node--)
        tree[node] = earlier(tree[2 * node], tree[2 * node + 1]);
    for (int64_t k = 1; k < num_samples; k++) {
        int64_t worker = tree[1].worker;
        double finish_s;
        memcpy(&finish_s, &tree[1].finish, sizeof finish_s);
        int64_t place = choose(parts, worker, (slowest_s - finish_s) / slopes[worker]);
        drawers[k] = (int32_t)worker;
        drawn[k] = place;
        finish_s = longer_by(finish_s, slopes[worker], take(parts, worker, place));
        slowest_s = finish_s > slowest_s ? finish_s : slowest_s;
        Entry now = entry_of(worker, finish_s, parts->left[worker] > 0);
        int64_t node = num_leaves + worker;
        for (tree[node] = now; node > 1; tree[node /= 2] = now)
            now = earlier(now, tree[node ^ 1]);
    }
}

static void group_by_worker(const int64_t *drawn, const int32_t *drawers, int64_t num_samples, int64_t num_workers,
                            int64_t *taken, int64_t *ends)
{
    for (int64_t j = 0; j < num_workers; j++)
        ends[j] = 0;
    for (int64_t k = 0; k < num_samples; k++)
        ends[drawers[k]]++;
    int64_t start = 0;
    for (int64_t j = 0; j < num_workers; j++) {
        int64_t count = ends[j];
        ends[j] = start;
        start += count;
    }
    for (int64_t k = 0; k < num_samples; k++)
        taken[ends[drawers[k]]++] = drawn[k]; /* at last, each start has become an end */
}

enum { SIZES, BELOW, BOUNDS, FIRST, LEFT, SLOPES, LAUNCHES, TAKEN, ENDS, NUM_ARRAYS };

static int are_consistent(const Py_buffer *arrays, int64_t worker, int64_t pivot)
{
    Py_ssize_t num_workers = arrays[ENDS].len / 8, num_places = arrays[SIZES].len / 8;
    Py_ssize_t num_samples = arrays[TAKEN].len / 8;
    const int64_t *bounds = arrays[BOUNDS].buf, *left = arrays[LEFT].buf, *first = arrays[FIRST].buf;
    int is_right = arrays[BELOW].len == 4 * num_places && arrays[BOUNDS].len == 8 * (num_workers + 1) &&
                   arrays[FIRST].len == 8 * num_workers && arrays[LEFT].len == 8 * num_workers &&
                   arrays[SLOPES].len == 8 * num_workers && arrays[LAUNCHES].len == 8 * num_workers &&
                   worker >= 0 && worker < num_workers && num_samples > 0;
    is_right = is_right && pivot >= bounds[worker] && pivot < bounds[worker + 1];
    int64_t num_left = 0;
    for (Py_ssize_t j = 0; is_right && j < num_workers; j++) {
        is_right = 0 <= bounds[j] && bounds[j] <= bounds[j + 1] && bounds[j + 1] <= num_places &&
                   left[j] >= 0 && left[j] <= bounds[j + 1] - bounds[j] && first[j] >= bounds[j] &&
                   first[j] <= bounds[j + 1];
        num_left += left[j];
    }
    if (!is_right || num_left < num_samples || ((const int32_t *)arrays[BELOW].buf)[pivot] != pivot) {
        PyErr_SetString(PyExc_ValueError, "draw: the arrays do not fit together, or the pivot is not left");
        return 0;
    }
    return 1;
}

static int run(const Py_buffer *arrays, int64_t worker, int64_t pivot)
{
    int64_t num_workers = arrays[ENDS].len / 8, num_samples = arrays[TAKEN].len / 8, num_leaves = 1;
    while (num_leaves < num_workers)
        num_leaves *= 2;
    Entry *tree = malloc((size_t)(2 * num_leaves) * sizeof *tree);
    int64_t *drawn = malloc((size_t)num_samples * sizeof *drawn);
    int32_t *drawers = malloc((size_t)num_samples * sizeof *drawers);
    int has_memory = tree && drawn && drawers;
    if (has_memory) {
        Parts parts = {arrays[SIZES].buf, arrays[BELOW].buf, arrays[BOUNDS].buf, arrays[FIRST].buf, arrays[LEFT].buf};
        draw_all(&parts, arrays[SLOPES].buf, arrays[LAUNCHES].buf, num_workers, worker, pivot, num_samples, tree,
                 num_leaves, drawn, drawers);
        group_by_worker(drawn, drawers, num_samples, num_workers, arrays[TAKEN].buf, arrays[ENDS].buf);
    }
    free(drawers);
    free(drawn);
    free(tree);
    return has_memory;
}

static PyObject *draw(PyObject *module, PyObject *args)
{
    Py_buffer arrays[NUM_ARRAYS];
    long long worker, pivot;
    (void)module;
    /* All requests need C-contiguous memory; other objects raise. */
    if (!PyArg_ParseTuple(args, "y*w*y*w*w*y*y*LLw*w*:draw", &arrays[SIZES], &arrays[BELOW], &arrays[BOUNDS],
                          &arrays[FIRST], &arrays[LEFT], &arrays[SLOPES], &arrays[LAUNCHES], &worker, &pivot,
                          &arrays[TAKEN], &arrays[ENDS]))
        return NULL;
    int is_done = are_consistent(arrays, worker, pivot);
    if (is_done) {
        Py_BEGIN_ALLOW_THREADS
        is_done = run(arrays, worker, pivot);
        Py_END_ALLOW_THREADS
        if (!is_done)
            PyErr_NoMemory();
    }
    for (int i = 0; i < NUM_ARRAYS; i++)
        PyBuffer_Release(&arrays[i]);
    if (!is_done)
        return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"draw", draw, METH_VARARGS,
     "draw(sizes, below, bounds, first, left, slopes, launches, worker, pivot, taken, ends)\n--\n\n"
     "Draw one step; see _drawing.pyi."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "_drawing",
    .m_doc = "Draw the samples of a step as CHRONICA does.",
    .m_methods = methods,
};

PyMODINIT_FUNC PyInit__drawing(void)
{
    return PyModuleDef_Init(&definition);
}
