/* Copy memory past the caches, without taking cache lines away from the cores that have read them.
 *
 * A plain store first fetches the cache line and, if another core holds a copy, takes it away from that core.
 * A preprocessor overwrites only lines that trainers have just read, so it would pay for this with every
 * line. Streaming (non-temporal) stores write whole lines without fetching them.
 *
 * x86-64 only, which always has SSE2; elsewhere `copy` is memcpy.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) || defined(_M_X64)
#include <emmintrin.h>
#define STREAMS 1

enum { LINE_BYTES = 64 };

static void copy_bytes(char *target, const char *source, size_t num_bytes)
{
    /* Stream whole lines only: a partial line would be fetched after all. */
    size_t head = (LINE_BYTES - (uintptr_t)target % LINE_BYTES) % LINE_BYTES;
    if (head > num_bytes)
        head = num_bytes;
    memcpy(target, source, head);
    size_t streamed = (num_bytes - head) / LINE_BYTES * LINE_BYTES;
    const char *from = source + head;
    __m128i *to = (__m128i *)(target + head);
    for (size_t done = 0; done < streamed; done += LINE_BYTES, from += LINE_BYTES, to += 4) {
        const __m128i *words = (const __m128i *)from; /* at any address: loadu */
        __m128i a = _mm_loadu_si128(words), b = _mm_loadu_si128(words + 1);
        __m128i c = _mm_loadu_si128(words + 2), d = _mm_loadu_si128(words + 3);
        _mm_stream_si128(to, a);
        _mm_stream_si128(to + 1, b);
        _mm_stream_si128(to + 2, c);
        _mm_stream_si128(to + 3, d);
    }
    memcpy((char *)to, from, num_bytes - head - streamed);
    /* Streaming stores are not ordered: without this fence a stamp could be seen before its block. */
    _mm_sfence();
}
#else
#define STREAMS 0

static void copy_bytes(char *target, const char *source, size_t num_bytes)
{
    memcpy(target, source, num_bytes);
}
#endif

static int can_copy(const Py_buffer *target, const Py_buffer *source)
{
    if (target->len != source->len) {
        PyErr_Format(PyExc_ValueError, "the target has %zd bytes, the source has %zd; both must be equal",
                     target->len, source->len);
        return 0;
    }
    uintptr_t to = (uintptr_t)target->buf, from = (uintptr_t)source->buf, length = (uintptr_t)target->len;
    if (to < from + length && from < to + length) {
        PyErr_Format(PyExc_ValueError, "target and source overlap in memory (%zd bytes each); copy the source "
                     "to memory of its own first", target->len);
        return 0;
    }
    return 1;
}

static PyObject *copy(PyObject *module, PyObject *const *args, Py_ssize_t num_args)
{
    Py_buffer target, source;
    (void)module;
    if (num_args != 2)
        return PyErr_Format(PyExc_TypeError, "copy(target, source) takes 2 arguments, got %zd", num_args);
    /* Both requests need C-contiguous bytes; other objects raise BufferError or ValueError. */
    if (PyObject_GetBuffer(args[0], &target, PyBUF_WRITABLE) < 0)
        return NULL;
    if (PyObject_GetBuffer(args[1], &source, PyBUF_SIMPLE) < 0) {
        PyBuffer_Release(&target);
        return NULL;
    }
    int allowed = can_copy(&target, &source);
    if (allowed) {
        Py_BEGIN_ALLOW_THREADS
        copy_bytes(target.buf, source.buf, (size_t)target.len);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&source);
    PyBuffer_Release(&target);
    if (!allowed)
        return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"copy", (PyCFunction)(void (*)(void))copy, METH_FASTCALL,
     "copy(target, source)\n--\n\nCopy the bytes of one C-contiguous buffer into another of equal size."},
    {NULL, NULL, 0, NULL},
};

static int add_names(PyObject *module)
{
    return PyModule_AddObjectRef(module, "STREAMS", STREAMS ? Py_True : Py_False);
}

static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, add_names}, {0, NULL}};

static struct PyModuleDef definition = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "_streaming",
    .m_doc = "Copy memory past the caches.",
    .m_methods = methods,
    .m_slots = module_slots,
};

PyMODINIT_FUNC PyInit__streaming(void)
{
    return PyModuleDef_Init(&definition);
}
