/* Resize a part of an image of bytes; `resampled` in resampling.py says how.
 *
 * Each pixel of the result is a weighted mean of pixels of the image, along columns first, then along rows. One
 * line of the result at a time, so that what lies between the two fits into the cache of a core. Sums are taken in
 * the same order everywhere and never fused (-ffp-contract=off): all processors get the same bytes.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && defined(__GLIBC__)
#define FOR_EACH_PROCESSOR __attribute__((target_clones("avx2", "default")))
#else
#define FOR_EACH_PROCESSOR
#endif

typedef float Four __attribute__((vector_size(16)));

#define LINES 4 /* of the result, made together */
#define CHUNK 32 /* numbers that are summed together, in registers */

typedef struct {
    double low, high; /* the part of the image, in pixels */
    double half;      /* pixels that are farther from the centre have no weight */
    int64_t count;    /* pixels of the result for the whole part */
    int64_t offset;   /* the first of them that is wanted */
    int64_t wanted;   /* and how many */
} Axis;

typedef struct {
    int64_t count; /* pixels */
    int64_t most;  /* taps of a pixel */
    int64_t *first, *num;
    float *weights; /* `most` for each pixel */
} Taps;

static int make_taps(const Axis *axis, Taps *taps)
{
    double step = (axis->high - axis->low) / (double)axis->count;
    int64_t low = (int64_t)floor(axis->low), high = (int64_t)ceil(axis->high);
    taps->count = axis->wanted;
    taps->most = (int64_t)(2.0 * axis->half) + 2;
    if (taps->most > high - low)
        taps->most = high - low;
    taps->first = malloc((size_t)axis->wanted * sizeof *taps->first);
    taps->num = malloc((size_t)axis->wanted * sizeof *taps->num);
    taps->weights = malloc((size_t)(axis->wanted * taps->most) * sizeof *taps->weights);
    if (!taps->first || !taps->num || !taps->weights)
        return 0;
    for (int64_t i = 0; i < axis->wanted; i++) {
        double centre = axis->low + ((double)(axis->offset + i) + 0.5) * step;
        int64_t first = (int64_t)floor(centre - axis->half + 0.5), end = (int64_t)ceil(centre + axis->half - 0.5);
        first = first < low ? low : first;
        end = end > high ? high : end;
        float *weights = taps->weights + i * taps->most;
        double sum = 0.0;
        for (int64_t k = first; k < end; k++)
            sum += 1.0 - fabs((double)k + 0.5 - centre) / axis->half;
        for (int64_t k = first; k < end; k++)
            weights[k - first] = (float)((1.0 - fabs((double)k + 0.5 - centre) / axis->half) / sum);
        taps->first[i] = first;
        taps->num[i] = end - first;
    }
    return 1;
}

static void free_taps(Taps *taps)
{
    free(taps->weights);
    free(taps->num);
    free(taps->first);
}

static inline __attribute__((always_inline)) void mean_of_chunk(const uint8_t *lines, int64_t stride, int64_t length,
                                                                const float *weights, int64_t num, float *mean)
{
    float sums[CHUNK];
    for (int64_t j = 0; j < length; j++)
        sums[j] = weights[0] * (float)lines[j];
    for (int64_t k = 1; k < num; k++)
        for (int64_t j = 0; j < length; j++)
            sums[j] += weights[k] * (float)lines[k * stride + j];
    for (int64_t j = 0; j < length; j++)
        mean[j] = sums[j];
}

FOR_EACH_PROCESSOR
static void mean_of_lines(const uint8_t *lines, int64_t stride, int64_t length, const float *weights, int64_t num,
                          float *mean)
{
    int64_t x = 0;
    for (; length - x >= CHUNK; x += CHUNK)
        mean_of_chunk(lines + x, stride, CHUNK, weights, num, mean + x);
    if (length >= CHUNK)
        mean_of_chunk(lines + length - CHUNK, stride, CHUNK, weights, num, mean + length - CHUNK);
    else
        mean_of_chunk(lines, stride, length, weights, num, mean);
}

FOR_EACH_PROCESSOR
static void mean_of_pixels(const float *lines, int64_t length, const Taps *taps, int64_t channels, float *means,
                           int64_t mean_stride)
{
    /* Of LINES lines. Four numbers fill a register: with three channels, the fourth of them is not used. */
    for (int64_t i = 0; i < taps->count; i++) {
        const float *weights = taps->weights + i * taps->most;
        const float *pixel = lines + (taps->first[i] - taps->first[0]) * channels;
        if (channels == 1) {
            float sums[LINES] = {0};
            for (int64_t k = 0; k < taps->num[i]; k++)
                for (int64_t l = 0; l < LINES; l++)
                    sums[l] += weights[k] * pixel[k + l * length];
            for (int64_t l = 0; l < LINES; l++)
                means[i + l * mean_stride] = sums[l];
            continue;
        }
        Four sums[LINES] = {{0}};
        for (int64_t k = 0; k < taps->num[i]; k++)
            for (int64_t l = 0; l < LINES; l++) {
                Four four;
                memcpy(&four, pixel + 3 * k + l * length, sizeof four);
                sums[l] += weights[k] * four;
            }
        for (int64_t l = 0; l < LINES; l++)
            memcpy(means + 3 * i + l * mean_stride, &sums[l], sizeof sums[l]);
    }
}

FOR_EACH_PROCESSOR
static void round_to_bytes(const float *values, int64_t length, uint8_t *bytes)
{
    for (int64_t j = 0; j < length; j++)
        bytes[j] = (uint8_t)(int32_t)(values[j] + 0.5f);
}

static int run(const uint8_t *image, int64_t stride, int64_t channels, const Axis *rows, const Axis *columns,
               uint8_t *out)
{
    Taps down = {0}, across = {0};
    float *lines = NULL, *means = NULL;
    int64_t length = 0, mean_length = columns->wanted * channels;
    int has_memory = make_taps(rows, &down) && make_taps(columns, &across);
    if (has_memory) {
        int64_t last = columns->wanted - 1;
        length = (across.first[last] + across.num[last] - across.first[0]) * channels;
        lines = calloc((size_t)(LINES * length) + 1, sizeof *lines);
        means = malloc((size_t)(LINES * (mean_length + 1)) * sizeof *means);
        has_memory = lines && means;
    }
    for (int64_t i = 0; has_memory && i < rows->wanted; i += LINES) {
        int64_t num = rows->wanted - i < LINES ? rows->wanted - i : LINES;
        for (int64_t l = 0; l < num; l++)
            mean_of_lines(image + down.first[i + l] * stride + across.first[0] * channels, stride, length,
                          down.weights + (i + l) * down.most, down.num[i + l], lines + l * length);
        mean_of_pixels(lines, length, &across, channels, means, mean_length + 1);
        for (int64_t l = 0; l < num; l++)
            round_to_bytes(means + l * (mean_length + 1), mean_length, out + (i + l) * mean_length);
    }
    free(means);
    free(lines);
    free_taps(&across);
    free_taps(&down);
    return has_memory;
}

static int is_inside(const Axis *axis, int64_t size)
{
    return axis->low >= 0.0 && axis->low < axis->high && axis->high <= (double)size && axis->half >= 1.0 &&
           axis->half <= 65536.0 && axis->count > 0 && axis->offset >= 0 && axis->wanted > 0 &&
           axis->wanted <= axis->count - axis->offset;
}

static PyObject *resample(PyObject *module, PyObject *args)
{
    PyObject *image_object, *out_object;
    Py_buffer image, out;
    Axis rows, columns;
    long long counts[4];
    (void)module;
    if (!PyArg_ParseTuple(args, "OddddddLLLLO:resample", &image_object, &rows.low, &rows.high, &rows.half, &columns.low,
                          &columns.high, &columns.half, &counts[0], &counts[1], &counts[2], &counts[3], &out_object))
        return NULL;
    if (PyObject_GetBuffer(image_object, &image, PyBUF_C_CONTIGUOUS) < 0)
        return NULL;
    if (PyObject_GetBuffer(out_object, &out, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE) < 0) {
        PyBuffer_Release(&image);
        return NULL;
    }
    rows.count = counts[0], rows.offset = counts[1], columns.count = counts[2], columns.offset = counts[3];
    int is_right = image.ndim == 3 && out.ndim == 3 && image.itemsize == 1 && out.itemsize == 1 &&
                   image.shape[2] == out.shape[2] && (image.shape[2] == 1 || image.shape[2] == 3);
    if (is_right) {
        rows.wanted = out.shape[0], columns.wanted = out.shape[1];
        is_right = is_inside(&rows, image.shape[0]) && is_inside(&columns, image.shape[1]);
    }
    if (!is_right) {
        PyErr_SetString(PyExc_ValueError, "resample: the image, its part and the result do not fit together");
    } else {
        int64_t channels = image.shape[2];
        Py_BEGIN_ALLOW_THREADS
        is_right = run(image.buf, image.shape[1] * channels, channels, &rows, &columns, out.buf);
        Py_END_ALLOW_THREADS
        if (!is_right)
            PyErr_NoMemory();
    }
    PyBuffer_Release(&out);
    PyBuffer_Release(&image);
    if (!is_right)
        return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"resample", resample, METH_VARARGS,
     "resample(image, top, bottom, half_height, left, right, half_width, height, row, width, column, out)\n--\n\n"
     "Resize a part of an image; see _resampling.pyi."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "_resampling",
    .m_doc = "Resize a part of an image of bytes.",
    .m_methods = methods,
};

PyMODINIT_FUNC PyInit__resampling(void)
{
    return PyModuleDef_Init(&definition);
}
