/* The products of one instruction set and one type of weights. `_rows.c` includes this file once for each pair, and defines
   before: NAME(function), TARGET, WEIGHT, VECTOR, AT_ONCE(R), and the operations on vectors.

   R (rows of x) and J (weight rows) are constants once the functions are inlined. */

TARGET INLINE void NAME(tile)(const float *x, const WEIGHT *w, const float *bias, float *y, int64_t num_out, int64_t num_in,
                              const int R, const int J) {
    VECTOR acc[8][8];
    UNROLLED for (int j = 0; j < J; j++) UNROLLED for (int r = 0; r < R; r++) acc[j][r] = (VECTOR){0};
    const int64_t lanes = sizeof(VECTOR) / sizeof(float);
    int64_t k = 0;
    for (; k + lanes <= num_in; k += lanes)
        UNROLLED for (int j = 0; j < J; j++) {
            const WEIGHT *at = w + j * num_in + k;
            VECTOR of_w = LOAD_W(at);
            _mm_prefetch((const char *)(at + J * num_in), _MM_HINT_T1); /* of the next tile */
            UNROLLED for (int r = 0; r < R; r++) acc[j][r] = FMA(of_w, LOAD_X(x + r * num_in + k), acc[j][r]);
        }
    int left = (int)(num_in - k);
    if (left)
        UNROLLED for (int j = 0; j < J; j++) {
            VECTOR of_w = LOAD_W_TAIL(w + j * num_in + k, left);
            UNROLLED for (int r = 0; r < R; r++) acc[j][r] = FMA(of_w, LOAD_X_TAIL(x + r * num_in + k, left), acc[j][r]);
        }
    UNROLLED for (int j = 0; j < J; j++) UNROLLED for (int r = 0; r < R; r++)
        y[r * num_out + j] = SUM(acc[j][r]) + (bias ? bias[j] : 0.0f);
}

TARGET INLINE void NAME(tiles)(const float *x, const WEIGHT *w, const float *bias, float *y, int64_t num_out, int64_t num_in,
                               int64_t from, int64_t to, const int R) {
    int64_t o = from;
    for (; o + AT_ONCE(R) <= to; o += AT_ONCE(R))
        NAME(tile)(x, w + o * num_in, bias ? bias + o : 0, y + o, num_out, num_in, R, AT_ONCE(R));
    for (; o < to; o++) NAME(tile)(x, w + o * num_in, bias ? bias + o : 0, y + o, num_out, num_in, R, 1);
}

TARGET static void NAME(block)(const float *x, const void *w, const float *bias, float *y, int64_t num_rows, int64_t num_out,
                               int64_t num_in, int64_t from, int64_t to) {
    switch (num_rows) {
#define CASE(R) case R: NAME(tiles)(x, w, bias, y, num_out, num_in, from, to, R); break;
    CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8)
    }
}

#undef CASE
#undef NAME
#undef WEIGHT
#undef LOAD_W
#undef LOAD_W_TAIL
