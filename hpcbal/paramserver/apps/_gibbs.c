/* Collapsed Gibbs sampling of topics, a part of a batch at a time; `sample` in gibbs.py says what is drawn.
 *
 * The weight of topic k for a token is (own[k] + alpha) * (count[k] + beta) / (total[k] + beta_sum), where `own`
 * counts the document's tokens, `count` those of the word and `total` all. SparseLDA splits the sum of the weights
 * into three: of the word's topics, of the document's topics, and a remainder that hardly changes. Nearly all draws
 * touch the first two only, which are short lists.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

typedef struct {
    int64_t num_topics, num_rows, num_tokens, num_documents;
    const int32_t *rows;   /* the row of each token's word */
    const int64_t *starts; /* document d has the tokens starts[d] to starts[d + 1] - 1 */
    const double *uniforms;
    int32_t *topics; /* of the tokens */
    int32_t *counts; /* of each row, num_topics side by side */
    int64_t *totals;
    int32_t *listed;     /* topics of each row whose counts are, or were, above 0 */
    int32_t *num_listed; /* -1: the row has no list yet */
    int32_t *deltas;
    int64_t *total_deltas;
    double alpha, beta, beta_sum;
} Part;

typedef struct {
    double smoothing, documents; /* sums of weights: the remainder, and the document's topics */
    double *inverse;             /* 1 / (total + beta_sum) */
    double *factor;              /* (own + alpha) * inverse */
    double *sums;                /* of the weights of the word's topics, up to each */
    int64_t *own;
    int32_t *own_listed; /* topics of the document */
    int64_t num_own;
    int32_t *before; /* topics of the tokens when the part began */
} Work;

static void start_document(const Part *part, Work *work, int64_t first, int64_t last)
{
    work->num_own = 0;
    for (int64_t t = first; t < last; t++) {
        int32_t k = part->topics[t];
        if (work->own[k]++ == 0)
            work->own_listed[work->num_own++] = k;
    }
    double sum = 0.0;
    for (int64_t k = 0; k < part->num_topics; k++)
        sum += work->inverse[k];
    work->smoothing = part->alpha * part->beta * sum;
    sum = 0.0;
    for (int64_t i = 0; i < work->num_own; i++) {
        int32_t k = work->own_listed[i];
        sum += (double)work->own[k] * work->inverse[k];
        work->factor[k] = ((double)work->own[k] + part->alpha) * work->inverse[k];
    }
    work->documents = part->beta * sum;
}

static void end_document(const Part *part, Work *work)
{
    for (int64_t i = 0; i < work->num_own; i++) {
        int32_t k = work->own_listed[i];
        work->own[k] = 0;
        work->factor[k] = part->alpha * work->inverse[k];
    }
}

static void count_token(const Part *part, Work *work, int32_t k, int64_t by)
{
    /* Add the token to topic k, or take it away. */
    double smoothing = part->alpha * part->beta, old = work->inverse[k];
    part->totals[k] += by;
    double inverse = 1.0 / ((double)part->totals[k] + part->beta_sum);
    work->smoothing += smoothing * (inverse - old);
    work->documents -= part->beta * ((double)work->own[k] * old);
    work->own[k] += by;
    work->documents += part->beta * ((double)work->own[k] * inverse);
    work->inverse[k] = inverse;
    work->factor[k] = ((double)work->own[k] + part->alpha) * inverse;
    if (by > 0 && work->own[k] == 1)
        work->own_listed[work->num_own++] = k;
    if (by < 0 && work->own[k] == 0) {
        int64_t i = 0;
        while (work->own_listed[i] != k)
            i++;
        work->own_listed[i] = work->own_listed[--work->num_own];
    }
}

static int32_t list_row(const Part *part, const int32_t *counts, int32_t *listed)
{
    int32_t length = 0;
    for (int64_t k = 0; k < part->num_topics; k++) {
        listed[length] = (int32_t)k;
        length += counts[k] > 0;
    }
    return length;
}

static int32_t draw(const Part *part, Work *work, const int32_t *counts, const int32_t *listed, int32_t length,
                    double uniform)
{
    double sum = 0.0;
    for (int32_t i = 0; i < length; i++) {
        int32_t k = listed[i];
        sum += (double)counts[k] * work->factor[k];
        work->sums[i] = sum;
    }
    double x = uniform * (sum + work->documents + work->smoothing);
    if (x < sum) { /* as bisect_right */
        int32_t low = 0, high = length;
        while (low < high) {
            int32_t middle = (low + high) / 2;
            if (x < work->sums[middle])
                high = middle;
            else
                low = middle + 1;
        }
        return listed[low];
    }
    x -= sum;
    if (x < work->documents && work->num_own) {
        double reached = 0.0;
        for (int64_t i = 0; i < work->num_own; i++) {
            int32_t k = work->own_listed[i];
            reached += part->beta * ((double)work->own[k] * work->inverse[k]);
            if (x < reached)
                return k;
        }
        return work->own_listed[work->num_own - 1];
    }
    x -= work->documents;
    double reached = 0.0, smoothing = part->alpha * part->beta;
    for (int64_t k = 0; k < part->num_topics - 1; k++) {
        reached += smoothing * work->inverse[k];
        if (x < reached)
            return (int32_t)k;
    }
    return (int32_t)(part->num_topics - 1);
}

static int32_t with_topic(int32_t *listed, int32_t length, int64_t num_topics, int32_t k)
{
    /* The length of the list once it has topic k, whose count was 0. */
    for (int32_t i = 0; i < length; i++)
        if (listed[i] == k)
            return length;
    if (length == num_topics)
        return length; /* never with lists of `list_row`: they hold no topic twice */
    listed[length] = k;
    return length + 1;
}

static void sample_part(const Part *part, Work *work, int32_t *lengths)
{
    int64_t num_topics = part->num_topics;
    memcpy(work->before, part->topics, (size_t)part->num_tokens * sizeof *work->before);
    for (int64_t k = 0; k < num_topics; k++) {
        work->own[k] = 0;
        work->inverse[k] = 1.0 / ((double)part->totals[k] + part->beta_sum);
        work->factor[k] = part->alpha * work->inverse[k];
    }
    for (int64_t t = 0; t < part->num_tokens; t++) {
        int64_t row = part->rows[t];
        if (part->num_listed[row] < 0)
            part->num_listed[row] = list_row(part, part->counts + row * num_topics, part->listed + row * num_topics);
        lengths[row] = part->num_listed[row];
    }
    for (int64_t d = 0; d < part->num_documents; d++) {
        start_document(part, work, part->starts[d], part->starts[d + 1]);
        for (int64_t t = part->starts[d]; t < part->starts[d + 1]; t++) {
            int64_t row = part->rows[t];
            int32_t *counts = part->counts + row * num_topics, *listed = part->listed + row * num_topics;
            int32_t old = part->topics[t];
            count_token(part, work, old, -1);
            counts[old]--;
            int32_t k = draw(part, work, counts, listed, lengths[row], part->uniforms[t]);
            if (counts[k]++ == 0)
                lengths[row] = with_topic(listed, lengths[row], num_topics, k);
            count_token(part, work, k, 1);
            part->topics[t] = k;
        }
        end_document(part, work);
    }
    /* Other parts of the step must see the counts as they were pulled. Lists only grew at their ends, beyond what
     * `num_listed` counts. */
    for (int64_t t = 0; t < part->num_tokens; t++) {
        int64_t start = part->rows[t] * num_topics;
        int32_t old = work->before[t], k = part->topics[t];
        if (old == k)
            continue;
        part->counts[start + old]++;
        part->counts[start + k]--;
        part->totals[old]++;
        part->totals[k]--;
        part->deltas[start + old]--;
        part->deltas[start + k]++;
        part->total_deltas[old]--;
        part->total_deltas[k]++;
    }
}

enum { ROWS, STARTS, UNIFORMS, TOPICS, COUNTS, TOTALS, LISTED, NUM_LISTED, DELTAS, TOTAL_DELTAS, NUM_ARRAYS };

static int are_consistent(const Part *part, const Py_buffer *arrays)
{
    Py_ssize_t cells = (Py_ssize_t)(part->num_rows * part->num_topics) * 4;
    int is_right = part->num_topics > 0 && part->num_topics <= INT32_MAX && part->num_documents >= 0 &&
                   arrays[COUNTS].len == cells && arrays[LISTED].len == cells && arrays[DELTAS].len == cells &&
                   arrays[TOTAL_DELTAS].len == arrays[TOTALS].len && arrays[TOPICS].len == arrays[ROWS].len &&
                   arrays[UNIFORMS].len == 8 * part->num_tokens && arrays[STARTS].len == 8 * (part->num_documents + 1);
    is_right = is_right && part->starts[0] == 0 && part->starts[part->num_documents] == part->num_tokens;
    for (int64_t d = 0; is_right && d < part->num_documents; d++)
        is_right = part->starts[d] <= part->starts[d + 1];
    for (int64_t t = 0; is_right && t < part->num_tokens; t++)
        is_right = part->rows[t] >= 0 && part->rows[t] < part->num_rows && part->topics[t] >= 0 &&
                   part->topics[t] < part->num_topics;
    for (int64_t row = 0; is_right && row < part->num_rows; row++)
        is_right = part->num_listed[row] >= -1 && part->num_listed[row] <= part->num_topics;
    if (!is_right)
        PyErr_SetString(PyExc_ValueError, "sample: the arrays do not fit together");
    return is_right;
}

static int run(const Part *part)
{
    size_t num_topics = (size_t)part->num_topics;
    double *reals = malloc(3 * num_topics * sizeof *reals);
    int64_t *own = malloc(num_topics * sizeof *own);
    int32_t *own_listed = malloc(num_topics * sizeof *own_listed);
    int32_t *before = malloc((size_t)part->num_tokens * sizeof *before + 1);
    int32_t *lengths = malloc((size_t)part->num_rows * sizeof *lengths + 1);
    int has_memory = reals && own && own_listed && before && lengths;
    if (has_memory) {
        Work work = {.inverse = reals, .factor = reals + num_topics, .sums = reals + 2 * num_topics, .own = own,
                     .own_listed = own_listed, .before = before};
        sample_part(part, &work, lengths);
    }
    free(lengths);
    free(before);
    free(own_listed);
    free(own);
    free(reals);
    return has_memory;
}

static PyObject *sample(PyObject *module, PyObject *args)
{
    Py_buffer arrays[NUM_ARRAYS];
    Part part;
    (void)module;
    /* All requests need C-contiguous memory; other objects raise. */
    if (!PyArg_ParseTuple(args, "y*y*y*w*w*w*w*w*w*w*ddd:sample", &arrays[ROWS], &arrays[STARTS], &arrays[UNIFORMS],
                          &arrays[TOPICS], &arrays[COUNTS], &arrays[TOTALS], &arrays[LISTED], &arrays[NUM_LISTED],
                          &arrays[DELTAS], &arrays[TOTAL_DELTAS], &part.alpha, &part.beta, &part.beta_sum))
        return NULL;
    part.num_topics = arrays[TOTALS].len / 8;
    part.num_rows = arrays[NUM_LISTED].len / 4;
    part.num_tokens = arrays[ROWS].len / 4;
    part.num_documents = arrays[STARTS].len / 8 - 1;
    part.rows = arrays[ROWS].buf;
    part.starts = arrays[STARTS].buf;
    part.uniforms = arrays[UNIFORMS].buf;
    part.topics = arrays[TOPICS].buf;
    part.counts = arrays[COUNTS].buf;
    part.totals = arrays[TOTALS].buf;
    part.listed = arrays[LISTED].buf;
    part.num_listed = arrays[NUM_LISTED].buf;
    part.deltas = arrays[DELTAS].buf;
    part.total_deltas = arrays[TOTAL_DELTAS].buf;
    int is_done = are_consistent(&part, arrays);
    if (is_done) {
        Py_BEGIN_ALLOW_THREADS
        is_done = run(&part);
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
    {"sample", sample, METH_VARARGS,
     "sample(rows, starts, uniforms, topics, counts, totals, listed, num_listed, deltas, total_deltas, alpha, beta, "
     "beta_sum)\n--\n\nSample the topics of documents; see _gibbs.pyi."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "_gibbs",
    .m_doc = "Collapsed Gibbs sampling of topics.",
    .m_methods = methods,
};

PyMODINIT_FUNC PyInit__gibbs(void)
{
    return PyModuleDef_Init(&definition);
}
