/* The kernels of one instruction set. `_rows.c` includes this file once for each, and defines before: ISA(name), TARGET, BYTES
   of a vector, FMA, DOT, MORE_CASES (of types that `dots` multiplies), FROM_HALF, TO_HALF, KEEP, MOST_ROWS and AT_ONCE(R).

   Every sum is one chain of FMAs in each lane, in a fixed order. So a result depends neither on the other rows, nor on the
   shape of the tile that computes it. `type`, R (rows of x) and J (weight rows, or vectors of columns) are constants once the
   functions are inlined. Strides of weights are in bytes, others in floats. */

#define INLINE TARGET static inline __attribute__((always_inline))
#define LANES (BYTES / 4)
#define vf ISA(vf)
#define vi ISA(vi)
#define vu ISA(vu)
#define vh ISA(vh)
typedef float vf __attribute__((vector_size(BYTES)));
typedef int32_t vi __attribute__((vector_size(BYTES)));
typedef uint32_t vu __attribute__((vector_size(BYTES)));
typedef uint16_t vh __attribute__((vector_size(BYTES / 2)));

INLINE vf ISA(floats)(const void *p) { vf v; memcpy(&v, p, BYTES); return v; }
INLINE void ISA(store)(void *p, vf v) { memcpy(p, &v, BYTES); }
INLINE vf ISA(all)(float value) { return (vf){0} + value; }
INLINE vf ISA(select)(vi condition, vf a, vf b) { return (vf)(((vi)a & condition) | ((vi)b & ~condition)); }
INLINE vf ISA(load)(const void *p, const int type) { /* as many values as there are lanes, as float32 */
    if (type == F32) return ISA(floats)(p);
    vh half;
    memcpy(&half, p, BYTES / 2);
    return type == F16 ? (vf)FROM_HALF(half) : (vf)(__builtin_convertvector(half, vu) << 16);
}
INLINE vf ISA(load_first)(const void *p, int n, int type) { /* n values, then zeros */
    if (n >= LANES) return ISA(load)(p, type);
    char line[BYTES] = {0};
    memcpy(line, p, n * SIZE(type));
    return ISA(load)(line, type);
}
INLINE void ISA(store_first)(void *p, vf v, int n, int type) { /* rounded to nearest, ties to even */
    vh half;
    if (type == F16) half = (vh)TO_HALF(v);
    else {
        vu bits = (vu)v, is_nan = (vu)(v != v);
        half = __builtin_convertvector((((bits + 0x7fff + ((bits >> 16) & 1)) >> 16) & ~is_nan) | (0x7fc0 & is_nan), vh);
    }
    const void *from = type == F32 ? (void *)&v : (void *)&half;
    if (n >= LANES) memcpy(p, from, type == F32 ? BYTES : BYTES / 2);
    else memcpy(p, from, n * SIZE(type));
}

/* A row of x for `dots`: as float32, padded with zeros to whole lines. With BF16, whose values `step` reads in pairs, the
   even values of two vectors come before the odd ones, unless `plain`; PAIRS stay as they are. */
TARGET static void ISA(pack)(const void *from, float *to, int64_t n, int type, int plain) {
    const char *x = from;
    for (int64_t left = n * SIZE(type); left > 0; left -= 64, x += 64) {
        char line[64] = {0};
        if (left >= 64) memcpy(line, x, 64);
        else memcpy(line, x, left);
        if (type == PAIRS) { memcpy(to, line, 64); to += 16; continue; }
        for (char *at = line; at < line + 64; at += LANES * SIZE(type), to += LANES) {
            if (type != BF16 || plain) { ISA(store)(to, ISA(load)(at, type)); continue; }
            vu pairs = (vu)ISA(floats)(at);
            ISA(store)(to, (vf)(pairs << 16));
            ISA(store)(to += LANES, (vf)(pairs & 0xffff0000u));
            at += LANES * SIZE(type);
        }
    }
}

/* Adds the products of a vector of each of J weight rows with R rows of packed x; BF16 has two halves, even and odd. */
INLINE void ISA(step)(vf acc[8][8], const float *x, int64_t x_stride, const char *w, int64_t w_stride, const int type,
                      const int R, const int J) {
    const int halves = type == BF16 ? 2 : 1;
    UNROLLED for (int half = 0; half < halves; half++, x += LANES) {
        vf of_w[8];
        UNROLLED for (int j = 0; j < J; j++) {
            const char *at = w + j * w_stride;
            if (type == BF16) of_w[j] = (vf)(half ? (vu)ISA(floats)(at) & 0xffff0000u : (vu)ISA(floats)(at) << 16);
            else of_w[j] = ISA(load)(at, type == F16 ? F16 : F32);
            if (!half) __builtin_prefetch(at + J * w_stride, 0, 2); /* of the next tile */
        }
        UNROLLED for (int r = 0; r < R; r++) {
            vf of_x = ISA(floats)(x + r * x_stride);
            KEEP(of_x, type, R, J);
            UNROLLED for (int j = 0; j < J; j++) acc[j][r] = type == PAIRS ? DOT(acc[j][r], of_x, of_w[j]) : FMA(of_x, of_w[j], acc[j][r]);
        }
    }
}

INLINE v4 ISA(quarter)(vf v) { /* the sum over a vector's lanes but for four, over which `sum4` adds */
    v4 part[BYTES / 16];
    memcpy(part, &v, BYTES);
    for (int half = BYTES / 32; half; half /= 2)
        for (int i = 0; i < half; i++) part[i] += part[i + half];
    return part[0];
}

INLINE void ISA(tile)(const float *x, int64_t x_stride, const char *w, int64_t w_stride, float *y, int64_t y_stride,
                      int64_t num_in, const int type, const int R, const int J) {
    vf acc[8][8];
    UNROLLED for (int j = 0; j < J; j++) UNROLLED for (int r = 0; r < R; r++) acc[j][r] = (vf){0};
    const int64_t bytes = num_in * SIZE(type), width = type == F16 ? BYTES / 2 : BYTES;
    const char *end = w + bytes - bytes % width;
    for (; w < end; w += width, x += type == BF16 ? 2 * LANES : LANES) ISA(step)(acc, x, x_stride, w, w_stride, type, R, J);
    if (bytes % width) {
        char tail[16 * BYTES] = {0}; /* twice J rows: the second half is prefetched */
        for (int j = 0; j < J; j++) memcpy(tail + j * BYTES, w + j * w_stride, bytes % width);
        ISA(step)(acc, x, x_stride, tail, BYTES, type, R, J);
    }
    UNROLLED for (int j = 0; j < J; j += 4) UNROLLED for (int r = 0; r < R; r++) {
        const int n = J - j < 4 ? J - j : 4;
        v4 sums = sum4(ISA(quarter)(acc[j][r]), ISA(quarter)(acc[n > 1 ? j + 1 : j][r]), ISA(quarter)(acc[n > 2 ? j + 2 : j][r]),
                       ISA(quarter)(acc[n > 3 ? j + 3 : j][r]));
        memcpy(y + r * y_stride + j, &sums, n * sizeof *y);
    }
}

INLINE void ISA(dots_of)(const float *x, int64_t x_stride, const char *w, int64_t w_stride, float *y, int64_t y_stride,
                         int64_t num_out, int64_t num_in, const int type, const int R) {
    int64_t o = 0;
    for (; o + AT_ONCE(R) <= num_out; o += AT_ONCE(R))
        ISA(tile)(x, x_stride, w + o * w_stride, w_stride, y + o, y_stride, num_in, type, R, AT_ONCE(R));
    for (; o < num_out; o++) ISA(tile)(x, x_stride, w + o * w_stride, w_stride, y + o, y_stride, num_in, type, R, 1);
}

INLINE void ISA(mix_tile)(const float *x, int64_t x_stride, const char *w, int64_t w_stride, float *y, int64_t y_stride,
                          int64_t num_in, const int type, const int R, const int J) {
    vf acc[8][2], of_w[2];
    UNROLLED for (int r = 0; r < R; r++) UNROLLED for (int j = 0; j < J; j++) acc[r][j] = ISA(floats)(y + r * y_stride + j * LANES);
    for (int64_t k = 0; k < num_in; k++, w += w_stride) {
        UNROLLED for (int j = 0; j < J; j++) of_w[j] = ISA(load)(w + j * LANES * SIZE(type), type);
        UNROLLED for (int r = 0; r < R; r++) UNROLLED for (int j = 0; j < J; j++)
            acc[r][j] = FMA(of_w[j], ISA(all)(x[r * x_stride + k]), acc[r][j]);
    }
    UNROLLED for (int r = 0; r < R; r++) UNROLLED for (int j = 0; j < J; j++) ISA(store)(y + r * y_stride + j * LANES, acc[r][j]);
}

INLINE void ISA(mix_of)(const float *x, int64_t x_stride, const char *w, int64_t w_stride, float *y, int64_t y_stride,
                        int64_t num_out, int64_t num_in, const int type, const int R) {
    for (int64_t left = num_in; left > 0; left -= KEYS, x += KEYS, w += KEYS * w_stride) { /* reads w row after row */
        int64_t n = left < KEYS ? left : KEYS, o = 0;
        for (; o + 2 * LANES <= num_out; o += 2 * LANES)
            ISA(mix_tile)(x, x_stride, w + o * SIZE(type), w_stride, y + o, y_stride, n, type, R, 2);
        for (; o + LANES <= num_out; o += LANES)
            ISA(mix_tile)(x, x_stride, w + o * SIZE(type), w_stride, y + o, y_stride, n, type, R, 1);
        for (; o < num_out; o++) /* columns that fill no vector; slow */
            for (int r = 0; r < R; r++) for (int64_t k = 0; k < n; k++)
                y[r * y_stride + o] = __builtin_fmaf(ISA(load_first)(w + k * w_stride + o * SIZE(type), 1, type)[0],
                                                     x[r * x_stride + k], y[r * y_stride + o]);
    }
}

/* dots: y = packed x @ w.T, where w is [num_out, num_in]. mix: y += x @ w, where w is [num_in, num_out]. y is float32. Rows that
   do not fit in one tile take the same few weights in turns, before these leave the cache. */
#define FOR_ROWS(name, step, w_of_step, ...)                                                                                    \
    TARGET static void ISA(name)(const float *all_x, int64_t x_stride, int64_t num_rows, const void *all_w, int64_t w_stride,    \
                                 float *all_y, int64_t y_stride, int64_t all_out, int64_t num_in, int type) {                  \
        int64_t at_once = num_rows <= MOST_ROWS ? all_out : step;                                                              \
        for (int64_t o = 0; o < all_out; o += at_once) {                                                                       \
            int64_t num_out = at_most(all_out - o, at_once);                                                                   \
            const char *w = (const char *)all_w + o * (w_of_step);                                                             \
            for (int64_t r = 0, rows; r < num_rows; r += rows) {                                                               \
                const float *x = all_x + r * x_stride;                                                                         \
                float *y = all_y + r * y_stride + o;                                                                           \
                rows = num_rows - r <= MOST_ROWS ? num_rows - r : MOST_ROWS == 8 ? 8 : 4;                                      \
                switch (type * 8 + rows) { __VA_ARGS__ }                                                                       \
            }                                                                                                                  \
        }                                                                                                                      \
    }
#define CASE(name, T, R) case T * 8 + R: ISA(name)(x, x_stride, w, w_stride, y, y_stride, num_out, num_in, T, R); break;
#define CASES(name, T) CASE(name, T, 1) CASE(name, T, 2) CASE(name, T, 3) CASE(name, T, 4) CASE(name, T, 5) CASE(name, T, 6) \
    CASE(name, T, 7) CASE(name, T, 8)
FOR_ROWS(dots, 12, w_stride, CASES(dots_of, F32) CASES(dots_of, BF16) CASES(dots_of, F16) MORE_CASES)
FOR_ROWS(mix, all_out, SIZE(type), CASES(mix_of, F32) CASES(mix_of, BF16) CASES(mix_of, F16))

/* out = scale * y + bias, rounded once. y has whole vectors. */
TARGET static void ISA(finish)(const float *y, float scale, const char *bias, char *out, int64_t n, int type) {
    for (int64_t i = 0; i < n; i += LANES) {
        int left = (int)(n - i);
        vf of_bias = bias ? ISA(load_first)(bias + i * SIZE(type), left, type) : ISA(all)(0);
        ISA(store_first)(out + i * SIZE(type), ISA(floats)(y + i) * scale + of_bias, left, type);
    }
}

INLINE vf ISA(exp)(vf x) { /* for x <= 0, within 2 units in the last place; exactly 0 below -87 */
    vi is_tiny = x < -87.0f;
    x = ISA(select)(is_tiny, ISA(all)(0), x);
    vi n = __builtin_convertvector(x * 1.44269504f - 0.5f, vi); /* the nearest integer, as conversion goes towards zero */
    vf whole = __builtin_convertvector(n, vf), r = FMA(whole, ISA(all)(2.12194440e-4f), FMA(whole, ISA(all)(-0.693359375f), x));
    static const float cephes[] = {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f};
    vf p = ISA(all)(1.9875691500e-4f);
    UNROLLED for (int i = 0; i < 5; i++) p = FMA(p, r, ISA(all)(cephes[i]));
    p = FMA(p * r, r, r) + 1.0f;
    return ISA(select)(is_tiny, ISA(all)(0), (vf)((vi)p + (n << 23)));
}

/* Turns the scores of a row into exp(score - their maximum), exactly 0 for masked keys. Returns the share of the sink. A masked
   key's score may be NaN or so large that the mask's lowest number does not outweigh it, as its key may. */
TARGET static float ISA(softmax)(float *s, int64_t n, float scale, float softcap, const char *keep, const char *add, int add_type,
                                 const float *sink) {
    float lane[LANES], most = sink ? *sink : -INFINITY;
    vf highest = ISA(all)(most);
    for (int64_t i = 0; i < n; i += LANES) {
        vf v = ISA(floats)(s + i) * scale;
        if (softcap) { /* softcap * tanh(v / softcap) */
            vf t = v / softcap, e = ISA(exp)((vf)((vi)t | INT32_MIN) * 2.0f);
            v = (vf)((vi)((1.0f - e) / (1.0f + e)) | ((vi)t & INT32_MIN)) * softcap;
        }
        if (add) {
            vf more = ISA(load_first)(add + i * SIZE(add_type), (int)at_most(n - i, LANES), add_type);
            v = ISA(select)(~(v <= 65504.0f) & (more <= -65504.0f), ISA(all)(-INFINITY), v + more); /* masked, even in float16 */
        }
        ISA(store)(s + i, v);
    }
    if (keep) for (int64_t i = 0; i < n; i++) s[i] = keep[i] ? s[i] : -INFINITY;
    for (int64_t i = n; i % LANES; i++) s[i] = -INFINITY;
    for (int64_t i = 0; i < n; i += LANES) { vf v = ISA(floats)(s + i); highest = ISA(select)(v > highest, v, highest); }
    ISA(store)(lane, highest);
    for (int i = 0; i < LANES; i++) most = lane[i] > most ? lane[i] : most;
    if (most == -INFINITY) most = 0; /* all keys are masked */
    for (int64_t i = 0; i < n; i += LANES) ISA(store)(s + i, ISA(exp)(ISA(floats)(s + i) - most));
    return sink ? ISA(exp)(ISA(all)(*sink - most))[0] : 0;
}

/* y = gate(x) of n values; see `Gate`. */
TARGET static void ISA(gate)(const void *x, void *y, int64_t n, float a, float b, int kind, int type) {
    static const float hastings[] = {-1.453152027f, 1.421413741f, -0.284496736f, 0.254829592f};
    for (int64_t i = 0; i < n; i += LANES) {
        int left = (int)at_most(n - i, LANES);
        vf v = ISA(load_first)(offset(x, i, type), left, type), z = v * 0.70710678f;
        if (kind != NORMAL) z = b ? v * (a + b * (v * v)) : v * a; /* 0 times infinity is NaN */
        vf size = (vf)((vi)z & INT32_MAX), e = ISA(exp)(kind == NORMAL ? -(z * z) : -size), out;
        if (kind == NORMAL) {
            vf t = 1.0f / (1.0f + 0.3275911f * size), p = ISA(all)(1.061405429f);
            UNROLLED for (int k = 0; k < 4; k++) p = FMA(p, t, ISA(all)(hastings[k]));
            out = p * t * e * 0.5f;
            out = v * ISA(select)(z < 0.0f, out, 1.0f - out);
        } else if (kind == SOFTPLUS) { /* log(1 + e) = 2 * atanh(e / (2 + e)), by its series */
            vf t = e / (2.0f + e), p = ISA(all)(1.0f / 13);
            UNROLLED for (int k = 11; k > 0; k -= 2) p = FMA(p, t * t, ISA(all)(1.0f / k));
            out = FMA(p, 2.0f * t, ISA(select)(z < 0.0f, ISA(all)(0), z));
        } else {
            out = ISA(select)(z < 0.0f, e, ISA(all)(1)) / (1.0f + e);
            if (kind == GATED) out *= v;
        }
        ISA(store_first)((char *)offset(y, i, type), out, left, type);
    }
}

#include "_codes.h"

static const Kernel ISA(kernel) = {ISA(pack), ISA(dots), ISA(mix), ISA(finish), ISA(softmax), ISA(gate), ISA(norm), ISA(code), ISA(encode), ISA(coded), LANES};

#undef ISA
#undef TARGET
#undef BYTES
#undef FMA
#undef DOT
#undef MORE_CASES
#undef KEEP
#undef FROM_HALF
#undef TO_HALF
#undef MOST_ROWS
#undef AT_ONCE
#undef INLINE
#undef LANES
#undef vf
#undef vi
#undef vu
#undef vh
#undef FOR_ROWS
#undef CASE
#undef CASES
#undef DOT8
#undef START8
#undef DOT4
#undef SUM4
#undef MOST_CODED
#undef PAIRWISE
#undef PIN
#undef MAGIC
#undef CODED
