/* Products of weights in 8 or 4 bits, of one instruction set; `_rows_tile.h` includes this file. Activations are rounded to 8 bits
   in groups of 32 with a scale for each, and products of whole numbers are exact, so no row's result depends on the others.
   Without PIN, GCC would add the products of a group in another order, for which it has too few registers.

   Weights are stored for one vector of outputs at a time, in the order in which they are read. Q8: for every 4 inputs, 4 bytes of
   each output. Q4: for every group of 32 inputs, a scale and a minimum of each output (float16), and 4 vectors of bytes, whose low
   halves are of the inputs 4 j to 4 j + 3, and high halves of those 16 further on. */

typedef struct { int8_t *codes; float *scales; int32_t *sums; } ISA(Row);
INLINE ISA(Row) ISA(row_of)(char *x, int64_t groups) {
    return (ISA(Row)){(int8_t *)x, (float *)(x + groups * 32), (int32_t *)(x + groups * 36)};
}
INLINE vi ISA(bytes)(const void *p) { vi v; memcpy(&v, p, BYTES); return v; }
INLINE vi ISA(four)(const int8_t *x) { int32_t v; memcpy(&v, x, 4); return (vi){0} + v; }
#define MAGIC 12582912.0f /* added to a float32, rounds it to the nearest whole number, which is then in the lowest bits */

INLINE float ISA(most)(vf v) { /* of the lanes */
    float most = v[0];
    for (int i = 1; i < LANES; i++) most = v[i] > most ? v[i] : most;
    return most;
}
INLINE vf ISA(larger)(vf a, vf b) { return ISA(select)(a > b, a, b); }
INLINE vf ISA(size)(vf v) { return (vf)((vi)v & INT32_MAX); }
INLINE vi ISA(rounded)(vf v) { return (vi)(v + MAGIC) - 0x4b400000; }
INLINE void ISA(store_codes)(int8_t *to, int64_t stride, vi codes) { /* as bytes, `stride` apart for every four */
    typedef int8_t bytes __attribute__((vector_size(LANES)));
    bytes all = __builtin_convertvector(codes, bytes);
    for (int i = 0; i < LANES; i += 4) memcpy(to + i / 4 * stride, (int8_t *)&all + i, 4);
}

TARGET static void ISA(code)(const float *x, char *to, int64_t n) { /* n values as codes; those that a group lacks are zeros */
    int64_t groups = blocks(n, 32);
    ISA(Row) row = ISA(row_of)(to, groups);
    for (int64_t g = 0; g < groups; g++) {
        float group[32] = {0};
        memcpy(group, x + g * 32, at_most(n - g * 32, 32) * sizeof *x);
        vf top = ISA(all)(0);
        for (int i = 0; i < 32; i += LANES) top = ISA(larger)(ISA(size)(ISA(floats)(group + i)), top);
        float most = ISA(most)(top), inverse = most > 1e-30f ? 127 / most : 0;
        vi sum = {0};
        for (int i = 0; i < 32; i += LANES) {
            vi codes = ISA(rounded)(ISA(floats)(group + i) * inverse);
            sum += codes;
            ISA(store_codes)(row.codes + g * 32 + i, 4, codes);
        }
        row.scales[g] = most / 127, row.sums[g] = 0;
        for (int i = 0; i < LANES; i++) row.sums[g] += sum[i];
    }
}

/* One output's weights, x [32 * groups], into its lane of a block; the scale of Q8 goes to `scale`. */
TARGET static void ISA(encode)(const float *x, int64_t groups, char *to, int lane, float *scale, int type) {
    vf top = ISA(all)(0);
    if (type == Q8) {
        for (int64_t i = 0; i < groups * 32; i += LANES) top = ISA(larger)(ISA(size)(ISA(floats)(x + i)), top);
        float most = ISA(most)(top), inverse = most > 1e-30f ? 127 / most : 0;
        for (int64_t i = 0; i < groups * 32; i += LANES)
            ISA(store_codes)((int8_t *)to + i * LANES + lane * 4, BYTES, ISA(rounded)(ISA(floats)(x + i) * inverse));
        *scale = most / 127;
        return;
    }
    for (int64_t g = 0; g < groups; g++, x += 32, to += 5 * BYTES) {
        vf low = ISA(floats)(x), high = low;
        for (int i = LANES; i < 32; i += LANES) low = -ISA(larger)(-ISA(floats)(x + i), -low), high = ISA(larger)(ISA(floats)(x + i), high);
        float least = -ISA(most)(-low), range = ISA(most)(high) - least;
        vf both = ISA(all)(range / 15);
        ISA(store_first)(to + 2 * lane, both, 1, F16);
        range = ISA(load_first)(to + 2 * lane, 1, F16)[0]; /* as they are stored, so that the codes fit them */
        ISA(store_first)(to + BYTES / 2 + 2 * lane, ISA(all)(least), 1, F16);
        least = ISA(load_first)(to + BYTES / 2 + 2 * lane, 1, F16)[0];
        float inverse = range > 0 ? 1 / range : 0;
        for (int i = 0; i < 16; i += LANES) {
            vi halves[2];
            for (int half = 0; half < 2; half++) {
                vi codes = ISA(rounded)((ISA(floats)(x + i + 16 * half) - least) * inverse);
                codes &= ~(codes >> 31);
                halves[half] = (codes & (codes < 16)) | (15 & (codes > 15));
            }
            ISA(store_codes)((int8_t *)to + BYTES + i * LANES + lane * 4, BYTES, halves[0] | halves[1] << 4);
        }
    }
}

INLINE void ISA(q8_of)(const char *x, int64_t x_stride, const char *w, int64_t groups, float *y, int64_t y_stride, const int R) {
    vf sums[8];
    UNROLLED for (int r = 0; r < R; r++) sums[r] = ISA(all)(0);
    for (int64_t g = 0; g < groups; g++, w += 8 * BYTES) {
        vi acc[8];
        UNROLLED for (int r = 0; r < R; r++) acc[r] = START8(ISA(row_of)((char *)x + r * x_stride, groups).sums[g]);
        __builtin_prefetch(w + 32 * BYTES, 0, 2);
        UNROLLED for (int k = 0; k < 8; k++) {
            vi of_w = ISA(bytes)(w + k * BYTES);
            UNROLLED for (int r = 0; r < R; r++) {
                acc[r] = DOT8(acc[r], of_w, ISA(four)((const int8_t *)x + r * x_stride + g * 32 + k * 4));
                PIN(acc[r]);
            }
        }
        UNROLLED for (int r = 0; r < R; r++)
            sums[r] = FMA(__builtin_convertvector(acc[r], vf), ISA(all)(ISA(row_of)((char *)x + r * x_stride, groups).scales[g]), sums[r]);
    }
    UNROLLED for (int r = 0; r < R; r++) ISA(store)(y + r * y_stride, sums[r]);
}
INLINE void ISA(q4_of)(const char *x, int64_t x_stride, const char *w, int64_t groups, float *y, int64_t y_stride, const int R) {
    vf sums[8];
    UNROLLED for (int r = 0; r < R; r++) sums[r] = ISA(all)(0);
    for (int64_t g = 0; g < groups; g++, w += 5 * BYTES) {
        vi acc[8];
        UNROLLED for (int r = 0; r < R; r++) acc[r] = (vi){0};
        __builtin_prefetch(w + 20 * BYTES, 0, 2);
        UNROLLED for (int j = 0; j < 4; j++) {
            vi both = ISA(bytes)(w + (j + 1) * BYTES), low = both & 0x0f0f0f0f, high = (vi)((vu)both >> 4) & 0x0f0f0f0f;
            UNROLLED for (int r = 0; r < R; r++) {
                const int8_t *at = (const int8_t *)x + r * x_stride + g * 32 + j * 4;
                acc[r] = DOT4(DOT4(acc[r], low, ISA(four)(at)), high, ISA(four)(at + 16));
                PIN(acc[r]);
            }
        }
        vf scale = ISA(load)(w, F16), least = ISA(load)(w + BYTES / 2, F16);
        UNROLLED for (int r = 0; r < R; r++) {
            ISA(Row) row = ISA(row_of)((char *)x + r * x_stride, groups);
            sums[r] = FMA(__builtin_convertvector(SUM4(acc[r]), vf), scale * row.scales[g], sums[r]);
            sums[r] = FMA(least, ISA(all)(row.scales[g] * (float)row.sums[g]), sums[r]);
        }
    }
    UNROLLED for (int r = 0; r < R; r++) ISA(store)(y + r * y_stride, sums[r]);
}

/* y [rows, lanes] = codes of x [rows] times one block of weights, of as many outputs as there are lanes. */
TARGET static void ISA(coded)(const char *x, int64_t x_stride, int64_t num_rows, const char *w, int64_t groups, float *y, int64_t y_stride, int type) {
    for (int64_t r = 0, rows; r < num_rows; r += rows, x += rows * x_stride, y += rows * y_stride) {
        rows = at_most(num_rows - r, MOST_CODED);
        switch ((type == Q4) * 8 + rows) {
#define CODED(R) case R: ISA(q8_of)(x, x_stride, w, groups, y, y_stride, R); break; case 8 + R: ISA(q4_of)(x, x_stride, w, groups, y, y_stride, R); break;
        CODED(1) CODED(2) CODED(3) CODED(4)
#if MOST_CODED == 8
        CODED(5) CODED(6) CODED(7)
        case 8: ISA(q8_of)(x, x_stride, w, groups, y, y_stride, 8); break;
        case 16: ISA(q4_of)(x, x_stride, w, groups, y, y_stride, 8); break;
#endif
        }
    }
}

/* y = x, normed: by its root mean square, or by its deviation from the mean if `center`. */
TARGET static void ISA(norm)(const float *x, float *y, int64_t n, const float *weight, const float *bias, float eps, int center) {
    vf sum = ISA(all)(0);
    float mean = 0, total = 0;
    if (center) {
        for (int64_t i = 0; i < n; i += LANES) sum += ISA(load_first)(x + i, (int)at_most(n - i, LANES), F32);
        for (int i = 0; i < LANES; i++) mean += sum[i];
        mean /= (float)n, sum = ISA(all)(0);
    }
    for (int64_t i = 0; i < n; i++) y[i] = x[i] - mean;
    for (int64_t i = 0; i < n; i += LANES) { vf v = ISA(load_first)(y + i, (int)at_most(n - i, LANES), F32); sum = FMA(v, v, sum); }
    for (int i = 0; i < LANES; i++) total += sum[i];
    float factor = 1 / sqrtf(total / (float)n + eps);
    for (int64_t i = 0; i < n; i++) y[i] = y[i] * factor * (weight ? weight[i] : 1) + (bias ? bias[i] : 0);
}
