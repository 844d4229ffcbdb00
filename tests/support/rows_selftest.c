/* The kernels without Python: drawn cases against float64, and each row computed alone, by one thread, and without the masked
   keys between its own, bit for bit. .ci/arm compiles and runs it:

   gcc -O3 -ffp-contract=off -Iuag/kernels tests/support/rows_selftest.c -lm -lgomp && ./a.out [cases] */
#include "_rows.c"
#include <stdio.h>

void GOMP_parallel(void (*)(void *), void *, unsigned, unsigned);
int omp_get_thread_num(void), omp_get_num_threads(void);

static int level, checks, failures;
static uint32_t state = 1;

static int64_t draw(int64_t n) { return (state = state * 1664525u + 1013904223u, (state >> 8) % n); }
static void check(int is_right, const char *what) {
    checks++;
    if (!is_right && failures++ < 20) printf("FAILED at level %d: %s\n", level, what);
}
static double get(const void *p, int64_t i, int type) {
    float value;
    uint16_t half;
    uint32_t bits;
    if (type == F32) return memcpy(&value, offset(p, i, type), 4), value;
    memcpy(&half, offset(p, i, type), 2);
    if (type == BF16) return bits = (uint32_t)half << 16, memcpy(&value, &bits, 4), value;
    int exponent = half >> 10 & 31, fraction = half & 1023;
    return (half >> 15 ? -1 : 1) * (exponent ? ldexp(1024 + fraction, exponent - 25) : ldexp(fraction, -24));
}
static void *drawn(int64_t n, int type) { /* multiples of 1/128 within one, which each type has */
    char *p = calloc(n + 1, 4);
    for (int64_t i = 0; i < n; i++) {
        float value = (draw(255) - 127) / 128.0f;
        uint32_t bits;
        memcpy(&bits, &value, 4);
        uint16_t half = type == BF16 ? bits >> 16 : value == 0 ? 0 : (bits >> 16 & 0x8000) | ((bits >> 23 & 255) - 112) << 10 | (bits >> 13 & 1023);
        memcpy(p + i * SIZE(type), type == F32 ? (void *)&value : (void *)&half, SIZE(type));
    }
    return p;
}
/* `size`: the sum of the terms' sizes. */
static void compare(double value, double expected, double size, int type, const char *what) {
    double rounding = type == F32 ? 0 : type == BF16 ? 0.0041 : 0.0005;
    check(fabs(value - expected) <= rounding * fabs(expected) + 4e-6 * size + 1e-7, what);
}

static void products(int type, int (*run)(const Product *), const char *what) {
    int64_t R = 1 + draw(40), O = 1 + draw(150), K = 1 + draw(200), is_conv1d = run == rows_conv1d;
    char *x = drawn(R * K, type), *w = drawn(O * K, type), *b = draw(2) ? drawn(O, type) : 0, *y = calloc(R * O, 4), *alone = calloc(O, 4);
    Product p = {x, w, b, y, R, K, O, K, type, level, 1 + draw(3)};
    check(run(&p) == OK, what);
    for (int64_t r = 0; r < R; r++) {
        for (int64_t o = 0; o < O; o++) {
            double sum = b ? get(b, o, type) : 0, size = fabs(sum);
            for (int64_t k = 0; k < K; k++) {
                double term = get(x, r * K + k, type) * get(w, is_conv1d ? k * O + o : o * K + k, type);
                sum += term, size += fabs(term);
            }
            compare(get(y, r * O + o, type), sum, size, type, what);
        }
        Product one = p;
        one.x = x + r * K * SIZE(type), one.y = alone, one.rows = one.threads = 1;
        run(&one);
        check(!memcmp(alone, y + r * O * SIZE(type), O * SIZE(type)), what);
    }
    free(x), free(w), free(b), free(y), free(alone);
}

static void attention(int type) {
    int64_t B = 1 + draw(2), K = 1 + draw(3), G = 1 + draw(4), H = K * G, R = 1 + draw(9), L = R + draw(150), D = 1 + draw(100), V = 1 + draw(100);
    int64_t size = SIZE(type), has_cap = draw(2), has_sinks = draw(2);
    char *q = drawn(B * H * R * D, type), *k = drawn(B * K * L * D, type), *v = drawn(B * K * L * V, type), *keep = calloc(B * R, L);
    char *out = calloc(B * R * H * V, 4), *alone = calloc(H * V, 4), *k1 = calloc(K * L * D, 4), *v1 = calloc(K * L * V, 4);
    float *sinks = drawn(H, F32);
    double *share = calloc(L, sizeof *share);
    for (int64_t i = 0; i < B * R * L; i++) keep[i] = i % L <= L - R + i / L % R && (i % L == L - R + i / L % R || draw(5));
    Attention a = {q, k, v, keep, has_sinks ? sinks : 0, out, B, H, K, R, L, D, V, {H * R * D, R * D, D}, {K * L * D, L * D, D},
                   {K * L * V, L * V, V}, {R * L, 0, L}, 0.3f, has_cap ? 3 : 0, -1, type, level, 1 + draw(3)};
    check(rows_attention(&a) == OK, "attention");
    for (int64_t b = 0; b < B; b++) for (int64_t r = 0; r < R; r++) {
        for (int64_t h = 0; h < H; h++) {
            double sum = has_sinks ? exp(sinks[h]) : 0;
            for (int64_t i = 0; i < L; i++) {
                double score = 0;
                for (int64_t d = 0; d < D; d++) score += get(q, ((b * H + h) * R + r) * D + d, type) * get(k, ((b * K + h / G) * L + i) * D + d, type);
                score *= 0.3f;
                sum += share[i] = keep[(b * R + r) * L + i] ? exp(has_cap ? 3 * tanh(score / 3) : score) : 0;
            }
            for (int64_t d = 0; d < V; d++) {
                double value = 0;
                for (int64_t i = 0; i < L; i++) value += share[i] / sum * get(v, ((b * K + h / G) * L + i) * V + d, type);
                compare(get(out, ((b * R + r) * H + h) * V + d, type), value, 1, type, "attention");
            }
        }
        int64_t seen = 0;
        for (int64_t i = 0; i < L; i++) if (keep[(b * R + r) * L + i]) {
            for (int64_t j = 0; j < K; j++) {
                memcpy(k1 + (j * L + seen) * D * size, k + ((b * K + j) * L + i) * D * size, D * size);
                memcpy(v1 + (j * L + seen) * V * size, v + ((b * K + j) * L + i) * V * size, V * size);
            }
            seen++;
        }
        Attention one = a;
        one.q = q + (b * H * R + r) * D * size, one.k = k1, one.v = v1, one.mask = 0, one.keys = seen, one.out = alone;
        one.batch = one.rows = one.threads = 1;
        rows_attention(&one);
        check(!memcmp(alone, out + (b * R + r) * H * V * size, H * V * size), "a row of attention");
    }
    free(q), free(k), free(v), free(keep), free(out), free(alone), free(k1), free(v1), free(sinks), free(share);
}

static void experts(int type) {
    int64_t R = 1 + draw(12), E = 4 + draw(8), N = 1 + draw(4), H = 1 + draw(100), M = 1 + draw(60), chosen[48];
    char *x = drawn(R * H, type), *up = drawn(E * 2 * M * H, type), *down = drawn(E * H * M, type), *out = calloc(R * H, 4), *alone = calloc(H, 4);
    float shares[48];
    for (int64_t i = 0; i < R * N; i++) shares[i] = draw(100) / 100.0f, chosen[i] = (i % N + i / N * 3) % E;
    Experts e = {x, up, down, chosen, shares, out, R, N, H, M, E, type, level, 1 + draw(3)};
    check(rows_experts(&e) == OK, "experts");
    for (int64_t r = 0; r < R; r++) {
        for (int64_t h = 0; h < H; h++) {
            double sum = 0, size = 0;
            for (int64_t n = 0; n < N; n++) for (int64_t m = 0; m < M; m++) {
                double gate = 0, other = 0;
                int64_t c = chosen[r * N + n], row = c * 2 * M + m;
                for (int64_t i = 0; i < H; i++) {
                    gate += get(x, r * H + i, type) * get(up, row * H + i, type);
                    other += get(x, r * H + i, type) * get(up, (row + M) * H + i, type);
                }
                double term = shares[r * N + n] * gate / (1 + exp(-gate)) * other * get(down, (c * H + h) * M + m, type);
                sum += term, size += fabs(term);
            }
            compare(get(out, r * H + h, type), sum, type == F32 ? 4 * size : 1100 * size, type, "experts"); /* inputs of `down` are rounded */
        }
        Experts one = e;
        one.x = x + r * H * SIZE(type), one.chosen = chosen + r * N, one.shares = shares + r * N, one.rows = one.threads = 1, one.out = alone;
        rows_experts(&one);
        check(!memcmp(alone, out + r * H * SIZE(type), H * SIZE(type)), "a row of experts");
    }
    free(x), free(up), free(down), free(out), free(alone);
}

static void gates(void) {
    for (int kind = GATED; kind <= SOFTPLUS; kind++) for (float x = -30; x < 30; x += 0.0137f) {
        float y[3], three[3] = {1, x, 2}, alone;
        Gate g = {three, y, 3, kind != NORMAL, 0, kind, F32, level, 1}, one = {&x, &alone, 1, kind != NORMAL, 0, kind, F32, level, 1};
        rows_gate(&g), rows_gate(&one);
        double sigmoid = 1 / (1 + exp(-x));
        compare(alone, kind == GATED ? x * sigmoid : kind == SIGMOID ? sigmoid : kind == NORMAL ? x * erfc(-x / sqrt(2)) / 2 : log1p(exp(x)), 1, F32, "gate");
        check(!memcmp(&alone, y + 1, 4), "a value of a gate");
    }
}

int main(int n, char **arguments) {
    rows_use(GOMP_parallel, omp_get_thread_num, omp_get_num_threads);
#ifdef INSTEAD_OF_AVX512
    int most = 3;
#else
    int most = rows_level();
#endif
    for (level = 1; level <= most; level++) {
        for (int i = n > 1 ? atoi(arguments[1]) : 10; i > 0; i--) for (int type = F32; type <= F16; type++) {
            products(type, rows_linear, "linear"), products(type, rows_conv1d, "conv1d"), attention(type);
            if (i % 4 == 0) experts(type);
        }
        gates();
    }
    printf("%d levels, %d checks, %d failures\n", most, checks, failures);
    return failures > 0;
}
