/* Coordinate descent for the Lasso and for non-negative factors; `descend` and `improve` in descent.py say what
 * is minimised.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

typedef struct {
    int64_t num_features, num_rows, num_terms;
    const int64_t *places; /* the row of each term; NULL: each feature has a term for every row */
    const int64_t *starts; /* feature j has the terms starts[j] to starts[j + 1] - 1 */
    const double *values;
    const double *mean_squares; /* of the features */
    double *weights;
    const double *residual;
    double *expected; /* the residual after these features; equal to `residual` before and after every call */
    double *change;   /* of the residual; what the features change is added */
    double l1, damping, num_observations;
    int64_t passes;
} Problem;

static double product(const Problem *p, int64_t j, const double *at)
{
    /* Four sums, which a processor adds side by side. */
    double a = 0.0, b = 0.0, c = 0.0, d = 0.0;
    const double *values = p->values + p->starts[j];
    int64_t length = p->starts[j + 1] - p->starts[j], t = 0;
    if (!p->places) {
        for (; t + 4 <= length; t += 4) {
            a += values[t] * at[t];
            b += values[t + 1] * at[t + 1];
            c += values[t + 2] * at[t + 2];
            d += values[t + 3] * at[t + 3];
        }
        for (; t < length; t++)
            a += values[t] * at[t];
        return (a + b) + (c + d);
    }
    const int64_t *places = p->places + p->starts[j];
    for (; t + 4 <= length; t += 4) {
        a += values[t] * at[places[t]];
        b += values[t + 1] * at[places[t + 1]];
        c += values[t + 2] * at[places[t + 2]];
        d += values[t + 3] * at[places[t + 3]];
    }
    for (; t < length; t++)
        a += values[t] * at[places[t]];
    return (a + b) + (c + d);
}

static void subtract(const Problem *p, int64_t j, double by, double *from)
{
    const double *values = p->values + p->starts[j];
    int64_t length = p->starts[j + 1] - p->starts[j];
    if (!p->places) {
        for (int64_t t = 0; t < length; t++)
            from[t] -= by * values[t];
        return;
    }
    const int64_t *places = p->places + p->starts[j];
    for (int64_t t = 0; t < length; t++)
        from[places[t]] -= by * values[t];
}

static void restore(const Problem *p, int64_t j)
{
    for (int64_t t = p->starts[j]; t < p->starts[j + 1]; t++)
        p->expected[p->places[t]] = p->residual[p->places[t]];
}

static int improve(const Problem *p, int64_t j)
{
    /* Minimise over one weight; whether it changed. */
    double curvature = p->damping * p->mean_squares[j];
    if (!(curvature > 0.0))
        curvature = 1.0;
    double old = p->weights[j];
    double goal = old + product(p, j, p->expected) / p->num_observations / curvature;
    double size = fabs(goal) - p->l1 / curvature;
    double weight = size > 0.0 ? copysign(size, goal) : size <= 0.0 ? 0.0 : size; /* NaN stays NaN */
    if (weight == old)
        return 0;
    subtract(p, j, p->damping * (weight - old), p->expected);
    p->weights[j] = weight;
    return 1;
}

static int run(const Problem *p)
{
    double *before = malloc((size_t)p->num_features * sizeof *before + 1);
    int64_t *active = malloc((size_t)p->num_features * sizeof *active + 1);
    int has_memory = before && active;
    if (has_memory) {
        int64_t num_active = 0, num_changed = 0;
        memcpy(before, p->weights, (size_t)p->num_features * sizeof *before);
        for (int64_t j = 0; j < p->num_features; j++) {
            num_changed += improve(p, j);
            if (p->weights[j] != 0.0)
                active[num_active++] = j;
        }
        for (int64_t pass = 1; pass < p->passes && num_changed; pass++) {
            num_changed = 0;
            for (int64_t i = 0; i < num_active; i++)
                num_changed += improve(p, active[i]);
        }
        /* A weight that went away and came back has changed `expected` by rounding, and was active. */
        int64_t next = 0;
        for (int64_t j = 0; j < p->num_features; j++) {
            int was_active = next < num_active && active[next] == j;
            next += was_active;
            if (p->weights[j] != before[j])
                subtract(p, j, p->weights[j] - before[j], p->change);
            if (p->places && (was_active || p->weights[j] != before[j]))
                restore(p, j);
        }
        if (!p->places)
            memcpy(p->expected, p->residual, (size_t)p->num_rows * sizeof *p->expected);
    }
    free(active);
    free(before);
    return has_memory;
}

enum { PLACES, STARTS, VALUES, MEAN_SQUARES, WEIGHTS, RESIDUAL, EXPECTED, CHANGE, NUM_ARRAYS };

static int are_consistent(const Problem *p, const Py_buffer *arrays)
{
    int is_right = p->num_features >= 0 && arrays[MEAN_SQUARES].len == arrays[WEIGHTS].len &&
                   arrays[EXPECTED].len == arrays[RESIDUAL].len && arrays[CHANGE].len == arrays[RESIDUAL].len &&
                   (!p->places || arrays[PLACES].len == arrays[VALUES].len) &&
                   arrays[STARTS].len == 8 * (p->num_features + 1) && p->num_observations > 0.0;
    is_right = is_right && p->starts[0] >= 0 && p->starts[p->num_features] <= p->num_terms;
    for (int64_t j = 0; is_right && j < p->num_features; j++) {
        int64_t length = p->starts[j + 1] - p->starts[j];
        is_right = p->places ? length >= 0 : length == p->num_rows;
    }
    if (is_right && p->places)
        for (int64_t t = p->starts[0]; is_right && t < p->starts[p->num_features]; t++)
            is_right = p->places[t] >= 0 && p->places[t] < p->num_rows;
    if (!is_right)
        PyErr_SetString(PyExc_ValueError, "descend: the arrays do not fit together");
    return is_right;
}

static PyObject *descend(PyObject *module, PyObject *args)
{
    Py_buffer arrays[NUM_ARRAYS];
    Problem problem;
    long long passes;
    (void)module;
    /* All requests need C-contiguous memory; other objects raise. Only `places` may be None. */
    if (!PyArg_ParseTuple(args, "z*y*y*y*w*y*w*w*dddL:descend", &arrays[PLACES], &arrays[STARTS], &arrays[VALUES],
                          &arrays[MEAN_SQUARES], &arrays[WEIGHTS], &arrays[RESIDUAL], &arrays[EXPECTED], &arrays[CHANGE],
                          &problem.l1, &problem.damping, &problem.num_observations, &passes))
        return NULL;
    problem.num_features = arrays[WEIGHTS].len / 8;
    problem.num_rows = arrays[RESIDUAL].len / 8;
    problem.num_terms = arrays[VALUES].len / 8;
    problem.places = arrays[PLACES].buf;
    problem.starts = arrays[STARTS].buf;
    problem.values = arrays[VALUES].buf;
    problem.mean_squares = arrays[MEAN_SQUARES].buf;
    problem.weights = arrays[WEIGHTS].buf;
    problem.residual = arrays[RESIDUAL].buf;
    problem.expected = arrays[EXPECTED].buf;
    problem.change = arrays[CHANGE].buf;
    problem.passes = passes;
    int is_done = are_consistent(&problem, arrays);
    if (is_done) {
        Py_BEGIN_ALLOW_THREADS
        is_done = run(&problem);
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

/* ---- non-negative factors ---- */

static const double NO_CURVATURE = 1e-12;

static void improve_row(double *row, const double *products, const double *gram, const double *inverse, double *slope,
                        double penalty, int64_t rank, int64_t sweeps)
{
    /* `slope` is kept up to date: a sum of vectors, which processors add faster than products. */
    for (int64_t i = 0; i < rank; i++)
        slope[i] = products[i] - penalty * row[i];
    for (int64_t k = 0; k < rank; k++)
        if (row[k] != 0.0)
            for (int64_t i = 0; i < rank; i++)
                slope[i] -= row[k] * gram[k * rank + i];
    for (int64_t sweep = 0; sweep < sweeps; sweep++)
        for (int64_t k = 0; k < rank; k++) {
            double old = row[k], goal = old + slope[k] * inverse[k];
            double weight = goal < 0.0 ? 0.0 : goal, by = weight - old; /* NaN stays NaN */
            if (inverse[k] == 0.0 || by == 0.0)
                continue;
            const double *own = gram + k * rank; /* symmetric: the column, too */
            for (int64_t i = 0; i < rank; i++)
                slope[i] -= by * own[i];
            slope[k] -= by * penalty;
            row[k] = weight;
        }
}

static int improve_rows(double *factors, const double *products, const double *gram, double penalty, int64_t num_rows,
                        int64_t rank, int64_t sweeps)
{
    double *inverse = malloc(2 * (size_t)rank * sizeof *inverse);
    if (!inverse)
        return 0;
    for (int64_t k = 0; k < rank; k++) {
        double curvature = gram[k * rank + k] + penalty;
        inverse[k] = curvature > NO_CURVATURE ? 1.0 / curvature : 0.0; /* 0: the factor stays */
    }
    for (int64_t i = 0; i < num_rows; i++)
        improve_row(factors + i * rank, products + i * rank, gram, inverse, inverse + rank, penalty, rank, sweeps);
    free(inverse);
    return 1;
}

static PyObject *improve_factors(PyObject *module, PyObject *args)
{
    Py_buffer factors, products, gram;
    double penalty;
    long long rank, sweeps;
    (void)module;
    if (!PyArg_ParseTuple(args, "w*y*y*dLL:improve_factors", &factors, &products, &gram, &penalty, &rank, &sweeps))
        return NULL;
    int is_right = rank > 0 && rank < 1 << 20 && gram.len == 8 * rank * rank && factors.len % (8 * rank) == 0 &&
                   products.len == factors.len;
    int is_done = 0;
    if (is_right) {
        Py_BEGIN_ALLOW_THREADS
        is_done = improve_rows(factors.buf, products.buf, gram.buf, penalty, factors.len / (8 * rank), rank, sweeps);
        Py_END_ALLOW_THREADS
        if (!is_done)
            PyErr_NoMemory();
    } else {
        PyErr_SetString(PyExc_ValueError, "improve_factors: the arrays do not fit together");
    }
    PyBuffer_Release(&factors);
    PyBuffer_Release(&products);
    PyBuffer_Release(&gram);
    if (!is_done)
        return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"descend", descend, METH_VARARGS,
     "descend(places, starts, values, mean_squares, weights, residual, expected, change, l1, damping, num_observations, "
     "passes)\n--\n\nImprove the weights of some features; see _descent.pyi."},
    {"improve_factors", improve_factors, METH_VARARGS,
     "improve_factors(factors, products, gram, penalty, rank, sweeps)\n--\n\nImprove rows of factors; see "
     "_descent.pyi."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "_descent",
    .m_doc = "Coordinate descent for the Lasso and for non-negative factors.",
    .m_methods = methods,
};

PyMODINIT_FUNC PyInit__descent(void)
{
    return PyModuleDef_Init(&definition);
}
