/* x @ weight.T + bias for few rows of x: reads the weights once, whatever the number of rows.

Each thread takes blocks of weight rows, and multiplies a few of them at a time with up to eight rows of x. The partial sums
of such a tile stay in registers. Meanwhile, the weights of the next tile are fetched into the L2 cache: the processor's own
prefetching stops at every page of 4 KB, and does not keep the memory busy during the multiplications of four or more rows.

A result is summed over num_in in one fixed order: lane by lane from the first input to the last, then over the lanes. So it
depends neither on the other rows of x, nor on the number of threads.

Compiled with OpenMP but linked without its library, so that the loop runs in PyTorch's own threads. */

#if !defined(__x86_64__)
#error "only x86-64"
#endif

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#define BLOCK 24 /* weight rows that a thread takes at once; a multiple of all AT_ONCE, and small for an even share */
#define INLINE static inline __attribute__((always_inline))
#define UNROLLED _Pragma("GCC unroll 8")
#define UPPER_HALF(v) _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(v), 16)) /* bfloat16 as float32 */
#define MASK(left) ((__mmask16)((1u << (left)) - 1u))

/* AVX-512: 32 registers. AT_ONCE are the weight rows of a tile of R rows of x: eight keep the memory busy; from three rows
   of x on, three were fastest, although there are registers for more. */
#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,fma")))
#define VECTOR __m512
#define AT_ONCE(R) ((R) <= 2 ? 8 : 3)
#define FMA _mm512_fmadd_ps
#define SUM _mm512_reduce_add_ps
#define LOAD_X _mm512_loadu_ps
#define LOAD_X_TAIL(p, left) _mm512_maskz_loadu_ps(MASK(left), p)

#define NAME(function) float32_avx512_##function
#define WEIGHT float
#define LOAD_W LOAD_X
#define LOAD_W_TAIL LOAD_X_TAIL
#include "_rows_tile.h"

#define NAME(function) bfloat16_avx512_##function
#define WEIGHT uint16_t
#define LOAD_W(p) UPPER_HALF(_mm256_loadu_si256((const __m256i *)(p)))
#define LOAD_W_TAIL(p, left) UPPER_HALF(_mm256_maskz_loadu_epi16(MASK(left), p))
#include "_rows_tile.h"

/* AVX2: 16 registers. */
#undef TARGET
#undef VECTOR
#undef AT_ONCE
#undef FMA
#undef SUM
#undef LOAD_X
#undef LOAD_X_TAIL
#define TARGET __attribute__((target("avx2,fma")))
#define VECTOR __m256
#define AT_ONCE(R) ((R) == 1 ? 8 : (R) == 2 ? 4 : (R) == 3 ? 3 : 2)
#define FMA _mm256_fmadd_ps
#define SUM sum_avx2
#define LOAD_X _mm256_loadu_ps
#define LOAD_X_TAIL(p, left) \
    _mm256_maskload_ps(p, _mm256_cmpgt_epi32(_mm256_set1_epi32(left), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)))

TARGET INLINE float sum_avx2(__m256 v) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
TARGET INLINE __m256 load_half_avx2(const uint16_t *p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16));
}
TARGET INLINE __m256 load_half_tail_avx2(const uint16_t *p, int left) {
    uint16_t padded[8] = {0};
    memcpy(padded, p, left * sizeof *p);
    return load_half_avx2(padded);
}

#define NAME(function) float32_avx2_##function
#define WEIGHT float
#define LOAD_W LOAD_X
#define LOAD_W_TAIL LOAD_X_TAIL
#include "_rows_tile.h"

#define NAME(function) bfloat16_avx2_##function
#define WEIGHT uint16_t
#define LOAD_W load_half_avx2
#define LOAD_W_TAIL load_half_tail_avx2
#include "_rows_tile.h"

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
        instruction_set == 512 ? (is_bfloat16 ? bfloat16_avx512_block : float32_avx512_block)
                               : (is_bfloat16 ? bfloat16_avx2_block : float32_avx2_block);
    int64_t num_blocks = (num_out + BLOCK - 1) / BLOCK;
#pragma omp parallel for schedule(static) num_threads(num_threads) if (num_threads > 1)
    for (int64_t b = 0; b < num_blocks; b++) {
        int64_t from = b * BLOCK, to = from + BLOCK < num_out ? from + BLOCK : num_out;
        for (int64_t r = 0, rows; r < num_rows; r += rows) {
            rows = num_rows - r; /* with AVX2, eight rows at once would leave registers for one weight row only */
            if (rows > (instruction_set == 512 ? 8 : 6)) rows = instruction_set == 512 ? 8 : 4;
            block(x + r * num_in, weight, bias, y + r * num_out, rows, num_out, num_in, from, to);
        }
    }
}
