/* x @ weight.T + bias for few rows of x: reads the weights once, whatever the number of rows.

Each thread takes blocks of weight rows. For up to four weight rows at once, every row of x has one vector of partial sums;
these stay in registers. A result is summed over num_in in one fixed order: lane by lane from the first input to the last,
then over the lanes. So it depends neither on the other rows of x, nor on the number of threads.

Compiled with OpenMP but linked without its library, so that the loop runs in PyTorch's own threads. */

#if !defined(__x86_64__)
#error "only x86-64"
#endif

#include <immintrin.h>
#include <stdint.h>

#define MAX_ROWS 8   /* of x in one tile */
#define BLOCK 32     /* weight rows that a thread takes at once: 200 KB of 1,536 float32 weights */
#define LONG 4096    /* inputs from which four weight rows at once are faster than one, even for one or two rows of x */
#define INLINE static inline __attribute__((always_inline))

/* One set of functions for each pair of an instruction set and a type of weights. VEC is a vector of LANES float32. J4 to J8
   are the weight rows at once for 4, 5 and 6, 7, and 8 rows of x: as many as leave all partial sums in registers. */

#define DEFINE(NAME, TARGET, VEC, LANES, WEIGHT, ZERO, FMA, LOAD_X, LOAD_W, LOAD_X_TAIL, LOAD_W_TAIL, SUM, J4, J6, J7, J8) \
    __attribute__((target(TARGET))) INLINE void NAME##_tile(const float *x, const WEIGHT *w, const float *bias, float *y, \
                                                            int64_t num_out, int64_t num_in, const int R, const int J) { \
        VEC acc[4][MAX_ROWS];                                                                                          \
        _Pragma("GCC unroll 4") for (int j = 0; j < J; j++)                                                            \
            _Pragma("GCC unroll 8") for (int r = 0; r < R; r++)                                                        \
            acc[j][r] = ZERO;                                                                                          \
        int64_t k = 0;                                                                                                 \
        for (; k + LANES <= num_in; k += LANES) {                                                                      \
            _Pragma("GCC unroll 4") for (int j = 0; j < J; j++) {                                                      \
                VEC of_w = LOAD_W(w + j * num_in + k);                                                                 \
                _Pragma("GCC unroll 8") for (int r = 0; r < R; r++)                                                    \
                    acc[j][r] = FMA(of_w, LOAD_X(x + r * num_in + k), acc[j][r]);                                      \
            }                                                                                                          \
        }                                                                                                              \
        if (k < num_in) {                                                                                              \
            int left = (int)(num_in - k);                                                                              \
            _Pragma("GCC unroll 4") for (int j = 0; j < J; j++) {                                                      \
                VEC of_w = LOAD_W_TAIL(w + j * num_in + k, left);                                                      \
                _Pragma("GCC unroll 8") for (int r = 0; r < R; r++)                                                    \
                    acc[j][r] = FMA(of_w, LOAD_X_TAIL(x + r * num_in + k, left), acc[j][r]);                           \
            }                                                                                                          \
        }                                                                                                              \
        _Pragma("GCC unroll 4") for (int j = 0; j < J; j++)                                                            \
            _Pragma("GCC unroll 8") for (int r = 0; r < R; r++)                                                        \
            y[r * num_out + j] = SUM(acc[j][r]) + (bias ? bias[j] : 0.0f);                                             \
    }                                                                                                                  \
    __attribute__((target(TARGET))) INLINE void NAME##_rows(const float *x, const WEIGHT *w, const float *bias, float *y, \
                                                            int64_t num_out, int64_t num_in, int64_t from, int64_t to, \
                                                            const int R, const int J) {                                \
        int64_t o = from;                                                                                              \
        for (; o + J <= to; o += J)                                                                                    \
            NAME##_tile(x, w + o * num_in, bias ? bias + o : 0, y + o, num_out, num_in, R, J);                         \
        for (; o < to; o++) NAME##_tile(x, w + o * num_in, bias ? bias + o : 0, y + o, num_out, num_in, R, 1);         \
    }                                                                                                                  \
    __attribute__((target(TARGET))) INLINE void NAME##_few(const float *x, const WEIGHT *w, const float *bias, float *y, \
                                                           int64_t num_out, int64_t num_in, int64_t from, int64_t to,  \
                                                           const int R) {                                              \
        if (num_in < LONG) NAME##_rows(x, w, bias, y, num_out, num_in, from, to, R, 1);                                \
        else NAME##_rows(x, w, bias, y, num_out, num_in, from, to, R, 4);                                              \
    }                                                                                                                  \
    __attribute__((target(TARGET))) static void NAME##_block(const float *x, const void *weight, const float *bias, float *y, \
                                                             int64_t num_rows, int64_t num_out, int64_t num_in, int64_t from, \
                                                             int64_t to) {                                             \
        const WEIGHT *w = (const WEIGHT *)weight;                                                                      \
        switch (num_rows) {                                                                                            \
        case 1: NAME##_few(x, w, bias, y, num_out, num_in, from, to, 1); break;                                        \
        case 2: NAME##_few(x, w, bias, y, num_out, num_in, from, to, 2); break;                                        \
        case 3: NAME##_rows(x, w, bias, y, num_out, num_in, from, to, 3, 4); break;                                    \
        case 4: NAME##_rows(x, w, bias, y, num_out, num_in, from, to, 4, J4); break;                                   \
        case 5: NAME##_rows(x, w, bias, y, num_out, num_in, from, to, 5, J6); break;                                   \
        case 6: NAME##_rows(x, w, bias, y, num_out, num_in, from, to, 6, J6); break;                                   \
        case 7: NAME##_rows(x, w, bias, y, num_out, num_in, from, to, 7, J7); break;                                   \
        default: NAME##_rows(x, w, bias, y, num_out, num_in, from, to, 8, J8); break;                                  \
        }                                                                                                              \
    }

#define T512 "avx512f,avx512bw,avx512vl,fma"
#define MASK(left) ((__mmask16)((1u << (left)) - 1u))
#define X512(p) _mm512_loadu_ps(p)
#define X512_TAIL(p, left) _mm512_maskz_loadu_ps(MASK(left), p)
#define B512(v) _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(v), 16))
#define B512_LOAD(p) B512(_mm256_loadu_si256((const __m256i *)(p)))
#define B512_TAIL(p, left) B512(_mm256_maskz_loadu_epi16(MASK(left), p))
#define SUM512(v) _mm512_reduce_add_ps(v)
DEFINE(f512, T512, __m512, 16, float, _mm512_setzero_ps(), _mm512_fmadd_ps, X512, X512, X512_TAIL, X512_TAIL, SUM512, 4, 4, 4, 3)
DEFINE(b512, T512, __m512, 16, uint16_t, _mm512_setzero_ps(), _mm512_fmadd_ps, X512, B512_LOAD, X512_TAIL, B512_TAIL, SUM512, 4, 4, 4, 3)

#define T256 "avx2,fma"
__attribute__((target(T256))) INLINE __m256 x256_tail(const float *p, int left) {
    float padded[8] = {0};
    for (int i = 0; i < left; i++) padded[i] = p[i];
    return _mm256_loadu_ps(padded);
}
__attribute__((target(T256))) INLINE __m256 b256(__m128i v) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(v), 16));
}
__attribute__((target(T256))) INLINE __m256 b256_tail(const uint16_t *p, int left) {
    uint16_t padded[8] = {0};
    for (int i = 0; i < left; i++) padded[i] = p[i];
    return b256(_mm_loadu_si128((const __m128i *)padded));
}
__attribute__((target(T256))) INLINE float sum256(__m256 v) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
#define B256_LOAD(p) b256(_mm_loadu_si128((const __m128i *)(p)))
DEFINE(f256, T256, __m256, 8, float, _mm256_setzero_ps(), _mm256_fmadd_ps, _mm256_loadu_ps, _mm256_loadu_ps, x256_tail, x256_tail, sum256, 3, 2, 2, 1)
DEFINE(b256, T256, __m256, 8, uint16_t, _mm256_setzero_ps(), _mm256_fmadd_ps, _mm256_loadu_ps, B256_LOAD, x256_tail, b256_tail, sum256, 3, 2, 2, 1)

/* The best instruction set of this CPU: 512 for AVX-512, 256 for AVX2, 0 for none that is supported. */
int uag_instruction_set(void) {
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl"))
        return 512;
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? 256 : 0;
}

/* x [num_rows, num_in] float32, weight [num_out, num_in] float32 or bfloat16, bias [num_out] float32 or null,
   y [num_rows, num_out] float32; all contiguous. `instruction_set` is 512 or 256, as returned above. */
void uag_rows(const float *x, const void *weight, const float *bias, float *y, int64_t num_rows, int64_t num_out,
              int64_t num_in, int is_bfloat16, int instruction_set, int num_threads) {
    void (*block)(const float *, const void *, const float *, float *, int64_t, int64_t, int64_t, int64_t, int64_t) =
        instruction_set == 512 ? (is_bfloat16 ? b512_block : f512_block) : (is_bfloat16 ? b256_block : f256_block);
    int64_t num_blocks = (num_out + BLOCK - 1) / BLOCK;
#pragma omp parallel for schedule(static) num_threads(num_threads) if (num_threads > 1)
    for (int64_t b = 0; b < num_blocks; b++) {
        int64_t from = b * BLOCK, to = from + BLOCK < num_out ? from + BLOCK : num_out;
        for (int64_t r = 0; r < num_rows; r += MAX_ROWS) {
            int64_t left = num_rows - r < MAX_ROWS ? num_rows - r : MAX_ROWS;
            block(x + r * num_in, weight, bias, y + r * num_out, left, num_out, num_in, from, to);
        }
    }
}
