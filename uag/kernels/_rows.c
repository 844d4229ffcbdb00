/* Products, attention, experts and gates for few rows. Weights, keys and values are read once, whatever the number of rows, and
   no row's result depends on the other rows, on the number of threads, on masked keys or on padding.

   Written in the vector types of GCC and Clang; `_rows_tile.h` is compiled once for each instruction set. Intrinsics serve where
   a compiler could choose otherwise in one tile than in another (FMA), or where the types have no operation (float16).
   Needs -ffp-contract=off, so that there is no FMA but those in the source. Python's side is kernel.py, which checks all
   arguments. The functions that it calls return OK, or why they did nothing. */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { OK, NO_MEMORY, NO_EXPERT };
enum { F32, BF16, F16, PAIRS, Q8, Q4 }; /* PAIRS: bfloat16 where the processor has an instruction for pairs of products */
enum { GATED, SIGMOID, NORMAL, SOFTPLUS };
#define SIZE(type) ((type) == F32 ? 4 : 2)
#define GROUP 32 /* rows of a product that are computed before they are rounded and stored */
#define BLOCK 24 /* weight rows that a thread takes at once; a multiple of all AT_ONCE, and small for an even share */
#define WIDE 256 /* most columns of Conv1D weights that a thread takes at once: long enough to be read in sequence */
#define KEYS 64  /* keys, or inputs of Conv1D, read at once: few enough for the first cache */
#define VALUES 64 /* columns of the values that a thread takes at once */
#define MOST_SCORES (1 << 24) /* scores of attention in memory at once; with more, fewer queries are taken at a time */
#define UNROLLED _Pragma("GCC unroll 8")

typedef float v4 __attribute__((vector_size(16)));
typedef struct { /* what one instruction set has to offer; see _rows_tile.h */
    void (*pack)(const void *, float *, int64_t, int, int);
    void (*dots)(const float *, int64_t, int64_t, const void *, int64_t, float *, int64_t, int64_t, int64_t, int);
    void (*mix)(const float *, int64_t, int64_t, const void *, int64_t, float *, int64_t, int64_t, int64_t, int);
    void (*finish)(const float *, float, const char *, char *, int64_t, int);
    float (*softmax)(float *, int64_t, float, float, const char *, const char *, int, const float *);
    void (*gate)(const void *, void *, int64_t, float, float, int, int);
    void (*norm)(const float *, float *, int64_t, const float *, const float *, float, int);
    void (*code)(const float *, char *, int64_t);
    void (*encode)(const float *, int64_t, char *, int, float *, int);
    void (*coded)(const char *, int64_t, int64_t, const char *, int64_t, float *, int64_t, int);
    int lanes;
} Kernel;

static inline const char *offset(const void *p, int64_t n, int type) { return p ? (const char *)p + n * SIZE(type) : 0; }
static inline int64_t at_most(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t blocks(int64_t n, int64_t size) { return (n + size - 1) / size; }
#if defined(__clang__) || __GNUC__ >= 12
#define SHUFFLE __builtin_shufflevector
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (__attribute__((vector_size(16))) int){__VA_ARGS__})
#endif
static inline v4 sum4(v4 a, v4 b, v4 c, v4 d) { /* the sums over the lanes of each */
    v4 ab = SHUFFLE(a, b, 0, 1, 4, 5) + SHUFFLE(a, b, 2, 3, 6, 7), cd = SHUFFLE(c, d, 0, 1, 4, 5) + SHUFFLE(c, d, 2, 3, 6, 7);
    return SHUFFLE(ab, cd, 0, 2, 4, 6) + SHUFFLE(ab, cd, 1, 3, 5, 7);
}

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>

/* 32 registers. AT_ONCE was fastest. GCC would read x again for each product without KEEP, but only one read fits in a cycle.
   `dots` of PAIRS runs only where `rows_level` is 3; nothing else compiles to AVX512-BF16. */
#ifdef INSTEAD_OF_AVX512 /* a header for tests, on a processor that has no AVX-512 */
#include INSTEAD_OF_AVX512
#else
#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16,avx512vnni,fma,f16c")))
#define FMA(a, b, c) ((vf)_mm512_fmadd_ps(a, b, c))
#define DOT(c, a, b) ((vf)_mm512_dpbf16_ps(c, (__m512bh)(a), (__m512bh)(b)))
#define FROM_HALF(v) _mm512_cvtph_ps((__m256i)(v))
#define TO_HALF(v) _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT)
#define KEEP(v, type, R, J) if ((J) > 1) __asm__("" : "+v"(v))
#define PIN(v) __asm__("" : "+v"(v))
#define DOT4(acc, w, x) ((vi)_mm512_dpbusd_epi32((__m512i)(acc), (__m512i)(w), (__m512i)(x)))
#endif
#define ISA(name) name##_avx512
#define BYTES 64
#define MORE_CASES CASES(dots_of, PAIRS)
#define MOST_ROWS 8
#define AT_ONCE(R) ((R) <= 2 ? 8 : (R) <= 6 ? 4 : 3)
#define DOT8(acc, w, x) DOT4(acc, (w) ^ (int32_t)0x80808080, x) /* of bytes without a sign, which are 128 more */
#define START8(sum) ((vi){0} - 128 * (sum))
#define SUM4(acc) (acc)
#define MOST_CODED 8
#include "_rows_tile.h"

/* 16 registers. */
#define TARGET __attribute__((target("avx2,fma,f16c")))
#define FMA(a, b, c) ((vf)_mm256_fmadd_ps(a, b, c))
#define DOT FMA
#define FROM_HALF(v) _mm256_cvtph_ps((__m128i)(v))
#define TO_HALF(v) _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT)
#define KEEP(v, type, R, J) if ((J) > 1 && ((type) == F32 || (R) * (J) < 12)) __asm__("" : "+x"(v))
#define ISA(name) name##_avx2
#define BYTES 32
#define MORE_CASES
#define MOST_ROWS 6
#define AT_ONCE(R) ((R) == 1 ? 8 : (R) == 2 ? 4 : (R) <= 4 ? 3 : 2)
#define PAIRWISE(u, x) _mm256_maddubs_epi16((__m256i)(u), (__m256i)(x))
#define DOT8(acc, w, x) \
    ((acc) + (vi)_mm256_madd_epi16(PAIRWISE(_mm256_abs_epi8((__m256i)(w)), _mm256_sign_epi8((__m256i)(x), (__m256i)(w))), _mm256_set1_epi16(1)))
#define START8(sum) ((vi){0})
#define DOT4(acc, w, x) ((vi)_mm256_add_epi16((__m256i)(acc), PAIRWISE(w, x))) /* 8 sums of 2 * 15 * 127 fit in 16 bits */
#define SUM4(acc) ((vi)_mm256_madd_epi16((__m256i)(acc), _mm256_set1_epi16(1)))
#define PIN(v) __asm__("" : "+x"(v))
#define MOST_CODED 4
#include "_rows_tile.h"

static const Kernel *const kernels[] = {0, &kernel_avx2, &kernel_avx512, &kernel_avx512};
static const Kernel *const coders[] = {0, &kernel_avx2, &kernel_avx2, &kernel_avx512}; /* those with BF16 have VNNI */
/* 0 if there is no kernel for this processor, 1 for AVX2, 2 for AVX-512, 3 for that with PAIRS. Zig's __builtin_cpu_supports is always 0. */
int rows_level(void) {
    unsigned a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(b & bit_AVX2)) return 0; /* those that have it have FMA and F16C */
    if (~b & (bit_AVX512F | bit_AVX512BW | bit_AVX512VL)) return 1;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) && a & bit_AVX512BF16 ? 3 : 2;
}
#elif defined(__aarch64__)
#include <arm_neon.h>

#define TARGET
#define FMA(a, b, c) ((vf)vfmaq_f32((float32x4_t)(c), (float32x4_t)(a), (float32x4_t)(b)))
#define DOT(c, a, b) FMA(a, b, c)
#define FROM_HALF(v) vcvt_f32_f16((float16x4_t)(v))
#define TO_HALF(v) vcvt_f16_f32((float32x4_t)(v))
#define KEEP(v, type, R, J)
#define ISA(name) name##_neon
#define BYTES 16
#define MORE_CASES
#define MOST_ROWS 8
#define AT_ONCE(R) ((R) <= 2 ? 8 : (R) <= 6 ? 4 : 3)
#ifdef __ARM_FEATURE_DOTPROD
#define DOT8(acc, w, x) ((vi)vdotq_s32((int32x4_t)(acc), (int8x16_t)(w), (int8x16_t)(x)))
#else
#define HALF(get, w, x) vpaddlq_s16(vmull_s8(get((int8x16_t)(w)), get((int8x16_t)(x))))
#define DOT8(acc, w, x) ((acc) + (vi)vpaddq_s32(HALF(vget_low_s8, w, x), HALF(vget_high_s8, w, x)))
#endif
#define START8(sum) ((vi){0})
#define DOT4 DOT8
#define SUM4(acc) (acc)
#define PIN(v) __asm__("" : "+w"(v))
#define MOST_CODED 8
#include "_rows_tile.h"

static const Kernel *const kernels[] = {0, &kernel_neon};
static const Kernel *const coders[] = {0, &kernel_neon};
int rows_level(void) { return 1; }
#else
#error "no kernel for this processor"
#endif

static int dots_type(int type, int level) { return type == BF16 && level == 3 ? PAIRS : type; }
static int64_t packed(int64_t n, int type) { return blocks(n * SIZE(type), 64) * (type == F32 || type == PAIRS ? 16 : 32); }
/* Loops run in PyTorch's own threads. `rows_use` takes four functions of the OpenMP library that PyTorch has loaded: GCC's
   and LLVM's all have them. So nothing is linked, -fopenmp is not needed, and no second library starts more threads. */
static void (*parallel)(void (*)(void *), void *, unsigned, unsigned);
static int (*this_thread)(void), (*all_threads)(void);
static void (*barrier)(void);
void rows_use(void (*GOMP_parallel)(void (*)(void *), void *, unsigned, unsigned), int (*omp_get_thread_num)(void),
              int (*omp_get_num_threads)(void), void (*GOMP_barrier)(void)) {
    parallel = GOMP_parallel, this_thread = omp_get_thread_num, all_threads = omp_get_num_threads, barrier = GOMP_barrier;
}
#ifdef _WIN32 /* where these have other names, and PyTorch's OpenMP has the functions that MSVC's programs call */
#define aligned_alloc(alignment, size) _aligned_malloc(size, alignment)
#define free _aligned_free
static void (*vcomp_fork)(int, int, void (*)(void *), ...), (*vcomp_set)(int);
static void fork_vcomp(void (*run)(void *), void *of, unsigned threads, unsigned flags) { vcomp_set((int)threads), vcomp_fork(1, 1, run, of); }
void rows_use_vcomp(void (*fork)(int, int, void (*)(void *), ...), void (*set_num_threads)(int)) {
    vcomp_fork = fork, vcomp_set = set_num_threads, parallel = fork_vcomp; }
#endif
static float *floats(int64_t n) { return aligned_alloc(64, blocks(n + 1, 16) * 64); }

typedef struct { void (*run)(const void *, int64_t); const void *job; int64_t n; } Loop;
static void share(void *of) {
    const Loop *loop = of;
    int64_t i = loop->n * this_thread() / all_threads(), end = loop->n * (this_thread() + 1) / all_threads();
    for (; i < end; i++) loop->run(loop->job, i);
}
static void each(void (*run)(const void *, int64_t), const void *job, int64_t n, int threads) {
    Loop loop = {run, job, n};
    if (parallel && threads > 1 && n > 1) parallel(share, &loop, threads, 0);
    else for (int64_t i = 0; i < n; i++) run(job, i);
}

/* x [rows, num_in], whose rows are x_stride values apart; weight; bias [num_out] or null; y [rows, num_out]; all of one type,
   and all but x contiguous. */
typedef struct {
    const void *x, *weight, *bias;
    void *y;
    int64_t rows, x_stride, num_out, num_in;
    int type, level, threads;
} Product;
typedef struct {
    const Product *p;
    const Kernel *kernel;
    float *x;
    int64_t width, columns; /* floats of a packed row, and columns of Conv1D weights that a thread takes at once */
    int type;
} Packed;

static int pack_rows(Packed *k, const Product *p, int plain) {
    k->p = p, k->kernel = kernels[p->level], k->type = plain ? p->type : dots_type(p->type, p->level), k->width = packed(p->num_in, k->type);
    if (!(k->x = floats(p->rows * k->width))) return NO_MEMORY;
    for (int64_t r = 0; r < p->rows; r++)
        k->kernel->pack(offset(p->x, r * p->x_stride, p->type), k->x + r * k->width, p->num_in, k->type, plain);
    return OK;
}
static void finish_rows(const Packed *k, const float *y, int64_t y_stride, int64_t first, int64_t rows, int64_t from, int64_t n) {
    const Product *p = k->p;
    for (int64_t r = 0; r < rows; r++)
        k->kernel->finish(y + r * y_stride, 1, offset(p->bias, from, p->type), (char *)offset(p->y, (first + r) * p->num_out + from, p->type), n, p->type);
}
static void linear_block(const void *job, int64_t i) {
    const Packed *k = job;
    const Product *p = k->p;
    int64_t from = i * BLOCK, n = at_most(p->num_out - from, BLOCK);
    const char *weight = offset(p->weight, from * p->num_in, p->type);
    float y[GROUP][32];
    for (int64_t r = 0, rows; r < p->rows; r += rows) {
        rows = at_most(p->rows - r, GROUP);
        k->kernel->dots(k->x + r * k->width, k->width, rows, weight, p->num_in * SIZE(p->type), y[0], 32, n, p->num_in, k->type);
        finish_rows(k, y[0], 32, r, rows, from, n);
    }
}
static void conv1d_block(const void *job, int64_t i) {
    const Packed *k = job;
    const Product *p = k->p;
    int64_t from = i * k->columns, n = at_most(p->num_out - from, k->columns);
    const char *weight = offset(p->weight, from, p->type);
    float y[8][WIDE]; /* threads may have small stacks */
    for (int64_t r = 0, rows; r < p->rows; r += rows) {
        rows = at_most(p->rows - r, 8);
        memset(y, 0, rows * sizeof *y);
        k->kernel->mix(k->x + r * k->width, k->width, rows, weight, p->num_out * SIZE(p->type), y[0], WIDE, n, p->num_in, k->type);
        finish_rows(k, y[0], WIDE, r, rows, from, n);
    }
}

int rows_linear(const Product *p) { /* y = x @ weight.T + bias; the weight is [num_out, num_in] */
    Packed k;
    if (pack_rows(&k, p, 0)) return NO_MEMORY;
    each(linear_block, &k, blocks(p->num_out, BLOCK), p->threads);
    free(k.x);
    return OK;
}
int rows_conv1d(const Product *p) { /* y = x @ weight + bias; the weight is [num_in, num_out] */
    Packed k;
    if (pack_rows(&k, p, 1)) return NO_MEMORY;
    int64_t parts = blocks(blocks(p->num_out, WIDE), p->threads) * p->threads; /* as many for each thread */
    k.columns = blocks(blocks(p->num_out, parts), 16) * 16;
    each(conv1d_block, &k, blocks(p->num_out, k.columns), p->threads);
    free(k.x);
    return OK;
}

/* y of n values: GATED is x * sigmoid(a * x + b * x^3), which is SiLU, and GELU's usual approximation; NORMAL is the exact GELU.
   PyTorch's own code for the last values of each thread's share is not that for whole vectors, so they depend on the number of rows. */
typedef struct { const void *x; void *y; int64_t n; float a, b; int kind, type, level, threads; } Gate;
static void gate_block(const void *job, int64_t i) {
    const Gate *g = job;
    kernels[g->level]->gate(offset(g->x, i * 4096, g->type), (char *)offset(g->y, i * 4096, g->type), at_most(g->n - i * 4096, 4096), g->a, g->b, g->kind, g->type);
}
int rows_gate(const Gate *g) { each(gate_block, g, blocks(g->n, 4096), g->threads); return OK; }

/* q [batch, heads, rows, dim], k and v [batch, kv_heads, keys, dim or value_dim], out [batch, rows, heads, value_dim]; strides
   in values, for all dimensions but the last; out is contiguous. The mask [batch, heads, rows, keys] is null, or bytes that are
   0 for masked keys (mask_type is negative), or values of mask_type to add; its strides may be 0. `sinks` is null, or one more
   logit for each head. */
typedef struct {
    const void *q, *k, *v, *mask;
    const float *sinks;
    void *out;
    int64_t batch, heads, kv_heads, rows, keys, dim, value_dim, q_stride[3], k_stride[3], v_stride[3], mask_stride[3];
    float scale, softcap;
    int mask_type, type, level, threads;
} Attention;
typedef struct {
    const Attention *a;
    const Kernel *kernel;
    float *query, *scores, *sums;
    /* the rows taken at once; in all heads and batches; those that share keys; floats of a packed one, and from row to row of scores */
    int64_t first, rows, all, group, width, stride;
    int type;
} Scores;

static int64_t at(const int64_t *stride, int64_t i, int64_t j, int64_t k) { return i * stride[0] + j * stride[1] + k * stride[2]; }
static int64_t of_row(const Scores *s, int64_t i, const int64_t *stride) {
    return at(stride, i / s->rows / s->a->heads, i / s->rows % s->a->heads, s->first + i % s->rows);
}
static void pack_query(const void *job, int64_t i) {
    const Scores *s = job;
    s->kernel->pack(offset(s->a->q, of_row(s, i, s->a->q_stride), s->a->type), s->query + i * s->width, s->a->dim, s->type, 0);
}
static void score_keys(const void *job, int64_t i) {
    const Scores *s = job;
    const Attention *a = s->a;
    int64_t head = i / blocks(a->keys, KEYS), from = i % blocks(a->keys, KEYS) * KEYS, first = head * s->group;
    const char *k = offset(a->k, at(a->k_stride, head / a->kv_heads, head % a->kv_heads, from), s->type);
    s->kernel->dots(s->query + first * s->width, s->width, s->group, k, a->k_stride[2] * SIZE(s->type),
                    s->scores + first * s->stride + from, s->stride, at_most(a->keys - from, KEYS), a->dim, s->type);
}
static void softmax_row(const void *job, int64_t i) {
    const Scores *s = job;
    const Attention *a = s->a;
    int64_t from = of_row(s, i, a->mask_stride);
    const char *keep = a->mask && a->mask_type < 0 ? (const char *)a->mask + from : 0, *add = a->mask && a->mask_type >= 0 ? offset(a->mask, from, a->mask_type) : 0;
    s->sums[i] = s->kernel->softmax(s->scores + i * s->stride, a->keys, a->scale, a->softcap, keep, add, a->mask_type, a->sinks ? a->sinks + i / s->rows % a->heads : 0);
}
/* The values' sum, weighted, and the weights' as their product with a column of ones. Masked keys add exact zeros, so neither
   padding nor other tokens between a row's keys change its result. If a sum is not finite, it is repeated without the masked
   keys, whose values may be infinite: zero times infinity is not zero. */
static void mix_values(const void *job, int64_t i) {
    static const float ones[16] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    const Scores *s = job;
    const Attention *a = s->a;
    int64_t parts = blocks(a->value_dim, VALUES), from = i % parts * VALUES, n = at_most(a->value_dim - from, VALUES);
    int64_t head = i / parts / blocks(s->group, 8), begin = i / parts % blocks(s->group, 8) * 8, rows = at_most(s->group - begin, 8);
    float y[8][VALUES + 16] = {{0}}, *weights = s->scores + (begin += head * s->group) * s->stride;
    for (int64_t r = 0; r < rows; r++) y[r][VALUES] = s->sums[begin + r];
    const char *v = offset(a->v, at(a->v_stride, head / a->kv_heads, head % a->kv_heads, 0) + from, a->type);
    int64_t v_stride = a->v_stride[2] * SIZE(a->type);
    s->kernel->mix(weights, s->stride, rows, ones, 0, y[0] + VALUES, VALUES + 16, 16, a->keys, F32);
    s->kernel->mix(weights, s->stride, rows, v, v_stride, y[0], VALUES + 16, n, a->keys, a->type);
    for (int64_t r = 0; r < rows; r++, weights += s->stride) {
        float odd = 0;
        for (int64_t d = 0; d < n; d++) odd += y[r][d] - y[r][d];
        if (odd != 0) { /* it is NaN */
            memset(y[r], 0, n * sizeof(float));
            for (int64_t key = 0; key < a->keys; key++)
                if (weights[key] != 0) s->kernel->mix(weights + key, 0, 1, v + key * v_stride, 0, y[r], 0, n, 1, a->type);
        }
        int64_t row = begin + r, b = row / s->rows / a->heads, h = row / s->rows % a->heads;
        int64_t to = ((b * a->rows + s->first + row % s->rows) * a->heads + h) * a->value_dim + from;
        s->kernel->finish(y[r], y[r][VALUES] ? 1 / y[r][VALUES] : 0, 0, (char *)offset(a->out, to, a->type), n, a->type);
    }
}

int rows_attention(const Attention *a) {
    int type = dots_type(a->type, a->level);
    int64_t stride = (blocks(a->keys, 16) | 1) * 16, pairs = a->batch * a->heads; /* odd, lest rows take the same place in the cache */
    int64_t most = at_most(a->rows, pairs && MOST_SCORES / stride / pairs ? MOST_SCORES / stride / pairs : 1);
    Scores s = {a, kernels[a->level], floats(pairs * most * (packed(a->dim, type) + stride + 1)), 0, 0, 0, 0, 0, 0, packed(a->dim, type), stride, type};
    if (!s.query) return NO_MEMORY;
    for (; s.first < a->rows; s.first += s.rows) {
        s.rows = at_most(a->rows - s.first, most), s.all = pairs * s.rows, s.group = a->heads / a->kv_heads * s.rows;
        s.scores = s.query + s.all * s.width, s.sums = s.scores + s.all * s.stride;
        each(pack_query, &s, s.all, a->threads);
        each(score_keys, &s, a->batch * a->kv_heads * blocks(a->keys, KEYS), a->threads);
        each(softmax_row, &s, s.all, a->threads);
        each(mix_values, &s, a->batch * a->kv_heads * blocks(s.group, 8) * blocks(a->value_dim, VALUES), a->threads);
    }
    free(s.query);
    return OK;
}

/* x [rows, hidden], chosen [rows, per_row] and their shares; gate_up [num_experts, 2 * inner, hidden], down [num_experts,
   hidden, inner], out [rows, hidden]; all contiguous and of one type, but the shares, which are float32. The gate is SiLU. */
typedef struct {
    const void *x, *gate_up, *down;
    const int64_t *chosen;
    const float *shares;
    void *out;
    int64_t rows, per_row, hidden, inner, num_experts;
    int type, level, threads;
} Experts;
typedef struct {
    const Experts *e;
    const Kernel *kernel;
    const void *weight;
    float *x, *y, *sum;
    int64_t *pairs, *first, widest, num_in, num_out; /* the pairs of a row and an expert, by expert, and the place of each expert's first */
    int type;
} Chosen;

static void experts_pack(const void *job, int64_t p) {
    const Chosen *c = job;
    c->kernel->pack(offset(c->e->x, c->pairs[p] / c->e->per_row * c->e->hidden, c->type), c->x + p * packed(c->e->hidden, c->type), c->e->hidden, c->type, 0);
}
static void experts_block(const void *job, int64_t i) { /* of the outputs, for each expert in turn */
    const Chosen *c = job;
    int64_t from = i * BLOCK, n = at_most(c->num_out - from, BLOCK), width = packed(c->num_in, c->type);
    for (int64_t expert = 0; expert < c->e->num_experts; expert++) {
        int64_t p = c->first[expert], rows = c->first[expert + 1] - p;
        if (rows) c->kernel->dots(c->x + p * width, width, rows, offset(c->weight, (expert * c->num_out + from) * c->num_in, c->type),
                                  c->num_in * SIZE(c->type), c->y + p * c->widest + from, c->widest, n, c->num_in, c->type);
    }
}
static void experts_gate(const void *job, int64_t p) { /* rounds, since `pack` takes the model's type */
    const Chosen *c = job;
    float *gate = c->y + p * c->widest;
    c->kernel->gate(gate, gate, c->e->inner, 1, 0, GATED, F32);
    for (int64_t i = 0; i < c->e->inner; i++) gate[i] *= gate[i + c->e->inner];
    c->kernel->finish(gate, 1, 0, (char *)gate, c->e->inner, c->e->type);
    c->kernel->pack(gate, c->x + p * packed(c->e->inner, c->type), c->e->inner, c->type, 0);
}
static void experts_row(const void *job, int64_t row) {
    const Chosen *c = job;
    const Experts *e = c->e;
    float *sum = c->sum + row * c->widest;
    memset(sum, 0, e->hidden * sizeof *sum);
    for (int64_t p = 0; p < e->rows * e->per_row; p++)
        if (c->pairs[p] / e->per_row == row)
            c->kernel->mix(e->shares + c->pairs[p], 0, 1, c->y + p * c->widest, 0, sum, 0, e->hidden, 1, F32);
    c->kernel->finish(sum, 1, 0, (char *)offset(e->out, row * e->hidden, e->type), e->hidden, e->type);
}

/* out = the sum of share * down @ (silu(gate @ x) * (up @ x)) over the chosen experts, in the order of their numbers. */
int rows_experts(const Experts *e) {
    int64_t all = e->rows * e->per_row, widest = packed(e->hidden > 2 * e->inner ? e->hidden : 2 * e->inner, F16);
    for (int64_t p = 0; p < all; p++) if (e->chosen[p] < 0 || e->chosen[p] >= e->num_experts) return NO_EXPERT;
    int64_t *first = calloc(e->num_experts + 2 + all, sizeof *first), *pairs = first + e->num_experts + 2;
    float *x = floats((2 * all + e->rows) * widest);
    if (!first || !x) { free(first); free(x); return NO_MEMORY; }
    for (int64_t p = 0; p < all; p++) first[e->chosen[p] + 2]++; /* places are one further on until the pairs are in theirs */
    for (int64_t i = 2; i < e->num_experts + 2; i++) first[i] += first[i - 1];
    for (int64_t p = 0; p < all; p++) pairs[first[e->chosen[p] + 1]++] = p;
    Chosen c = {e, kernels[e->level], e->gate_up, x, x + all * widest, x + 2 * all * widest, pairs, first, widest, e->hidden, 2 * e->inner, dots_type(e->type, e->level)};
    each(experts_pack, &c, all, e->threads);
    each(experts_block, &c, blocks(c.num_out, BLOCK), e->threads);
    each(experts_gate, &c, all, e->threads);
    c.weight = e->down, c.num_in = e->inner, c.num_out = e->hidden;
    each(experts_block, &c, blocks(c.num_out, BLOCK), e->threads);
    each(experts_row, &c, e->rows, e->threads);
    free(first);
    free(x);
    return OK;
}

#include "_decoder.h"
