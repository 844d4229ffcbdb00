/* The AVX-512 kernels of _rows.c in the instructions of AVX2, two for each: their logic, for processors that lack AVX-512. */
#define TARGET __attribute__((target("avx2,fma,f16c")))

typedef float as_vector __attribute__((vector_size(64)));
typedef uint16_t as_halves __attribute__((vector_size(32)));
typedef union { as_vector v; __m256 part[2]; __m256i bits[2]; } AsVector;
typedef union { as_halves v; __m128i part[2]; } AsHalves;

TARGET static inline as_vector as_fma(as_vector a, as_vector b, as_vector c) {
    AsVector x = {a}, y = {b}, z = {c};
    for (int i = 0; i < 2; i++) z.part[i] = _mm256_fmadd_ps(x.part[i], y.part[i], z.part[i]);
    return z.v;
}
TARGET static inline as_vector as_floats(as_halves halves) {
    AsHalves from = {halves};
    AsVector to;
    for (int i = 0; i < 2; i++) to.part[i] = _mm256_cvtph_ps(from.part[i]);
    return to.v;
}
TARGET static inline as_halves as_rounded(as_vector v) {
    AsVector from = {v};
    AsHalves to;
    for (int i = 0; i < 2; i++) to.part[i] = _mm256_cvtps_ph(from.part[i], _MM_FROUND_TO_NEAREST_INT);
    return to.v;
}
TARGET static inline as_vector as_values(as_vector pairs, int is_even) { /* every second bfloat16 */
    AsVector p = {pairs};
    for (int i = 0; i < 2; i++)
        p.bits[i] = is_even ? _mm256_slli_epi32(p.bits[i], 16) : _mm256_and_si256(p.bits[i], _mm256_set1_epi32(-65536));
    return p.v;
}
typedef int32_t as_ints __attribute__((vector_size(64)));
typedef union { as_ints v; __m256i part[2]; } AsInts;
TARGET static inline __m256i as_dots(__m256i acc, __m256i w, __m256i x) { /* of 4 bytes, without a sign in w; exactly */
    for (int half = 0; half < 2; half++) { /* the even and the odd bytes, since a sum of two products may exceed 16 bits */
        __m256i of_w = half ? _mm256_srli_epi16(w, 8) : _mm256_and_si256(w, _mm256_set1_epi16(255));
        __m256i of_x = _mm256_srai_epi16(half ? x : _mm256_slli_epi16(x, 8), 8);
        acc = _mm256_add_epi32(acc, _mm256_madd_epi16(of_w, of_x));
    }
    return acc;
}
TARGET static inline as_ints as_dot4(as_ints acc, as_ints w, as_ints x) {
    AsInts a = {acc}, b = {w}, c = {x};
    for (int i = 0; i < 2; i++) a.part[i] = as_dots(a.part[i], b.part[i], c.part[i]);
    return a.v;
}

#define FMA(a, b, c) ((vf)as_fma(a, b, c))
#define DOT(c, a, b) ((vf)as_fma(as_values(a, 0), as_values(b, 0), as_fma(as_values(a, 1), as_values(b, 1), c)))
#define FROM_HALF(v) as_floats((as_halves)(v))
#define TO_HALF(v) as_rounded(v)
#define KEEP(v, type, R, J)
#define PIN(v)
#define DOT4(acc, w, x) ((vi)as_dot4((as_ints)(acc), (as_ints)(w), (as_ints)(x)))
