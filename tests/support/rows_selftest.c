/* The kernels without Python: drawn cases against float64, and each row computed alone, by one thread, and without the masked
   keys between its own, bit for bit. .ci/systems compiles and runs it:

   gcc -O3 -ffp-contract=off -Iuag/kernels tests/support/rows_selftest.c -lm -lgomp && ./a.out [cases] */
#include "_rows.c"
#include <stdio.h>

void GOMP_parallel(void (*)(void *), void *, unsigned, unsigned), GOMP_barrier(void);
int omp_get_thread_num(void), omp_get_num_threads(void);

static void *zeros(int64_t n, int64_t size) { return memset(floats(blocks(n * size, 4)), 0, n * size); } /* what `free` of _rows.c takes */

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
    char *p = zeros(n + 1, 4);
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
    char *x = drawn(R * K, type), *w = drawn(O * K, type), *b = draw(2) ? drawn(O, type) : 0, *y = zeros(R * O, 4), *alone = zeros(O, 4);
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
    char *q = drawn(B * H * R * D, type), *k = drawn(B * K * L * D, type), *v = drawn(B * K * L * V, type), *keep = zeros(B * R, L);
    char *out = zeros(B * R * H * V, 4), *alone = zeros(H * V, 4), *k1 = zeros(K * L * D, 4), *v1 = zeros(K * L * V, 4);
    float *sinks = drawn(H, F32);
    double *share = zeros(L, sizeof *share);
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
    char *x = drawn(R * H, type), *up = drawn(E * 2 * M * H, type), *down = drawn(E * H * M, type), *out = zeros(R * H, 4), *alone = zeros(H, 4);
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

/* Products over codes: of the weights and inputs that the codes say, which are read back here. */
static void coded_products(int type, int coded_type) {
    int64_t R = 1 + draw(20), O = 1 + draw(150), K = 1 + draw(200), groups = blocks(K, 32), lanes = coders[level]->lanes;
    Weight w = {0, 0, 0, O, K, coded_type};
    char *weight = drawn(O * K, type), *codes = zeros(rows_coded_size(O, K, coded_type, level), 1), *x = (char *)floats(R * row_size(0, &w) / 4);
    float *scales = zeros(O + 64, 4), *values = drawn(R * K, F32), *together = floats(R * (O + 16)), *alone = floats(O + 16);
    double *expected = zeros(O * K, sizeof *expected);
    if (draw(3) == 0) memset(weight, 0, K * SIZE(type));
    Coding c = {weight, codes, scales, O, K, type, coded_type, level, 1 + draw(3)};
    check(rows_code(&c) == OK, "codes");
    for (int64_t r = 0; r < R; r++) coders[level]->code(values + r * K, x + r * row_size(0, &w), K);
    for (int64_t o = 0; o < O; o++) for (int64_t i = 0; i < K; i++) {
        const char *block = codes + o / lanes * block_size(&w, lanes), *group = block + i / 32 * 20 * lanes;
        int64_t lane = o % lanes, at = i % 16 / 4 * 4 * lanes + lane * 4 + i % 4;
        double value, step;
        if (coded_type == Q8) step = scales[o], value = (int8_t)block[i / 4 * 4 * lanes + lane * 4 + i % 4] * step;
        else {
            step = get(group, lane, F16);
            value = ((uint8_t)group[4 * lanes + at] >> (i % 32 < 16 ? 0 : 4) & 15) * step + get(group, lanes + lane, F16);
        }
        expected[o * K + i] = value;
        check(fabs(value - get(weight, o * K + i, type)) <= 0.52 * step + 1e-3, "a code");
    }
    for (int64_t o = 0; o < O; o += lanes)
        coders[level]->coded(x, row_size(0, &w), R, codes + o / lanes * block_size(&w, lanes), groups, together + o, O + 16, coded_type);
    for (int64_t r = 0; r < R; r++) {
        const float *of_x = (const float *)(x + r * row_size(0, &w) + groups * 32);
        for (int64_t o = 0; o < O; o++) {
            double sum = 0, size = 0;
            for (int64_t i = 0; i < K; i++) {
                double read = (int8_t)x[r * row_size(0, &w) + i] * of_x[i / 32], term = read * expected[o * K + i];
                check(fabs(read - values[r * K + i]) <= 0.51 * of_x[i / 32], "an input's code");
                sum += term, size += fabs(term);
            }
            compare(together[r * (O + 16) + o] * (coded_type == Q8 ? scales[o] : 1), sum, size, F32, "coded");
        }
        for (int64_t o = 0; o < O; o += lanes)
            coders[level]->coded(x + r * row_size(0, &w), row_size(0, &w), 1, codes + o / lanes * block_size(&w, lanes), groups, alone + o, O + 16, coded_type);
        check(!memcmp(alone, together + r * (O + 16), O * 4), "a row of coded products");
    }
    free(weight), free(codes), free(x), free(scales), free(values), free(together), free(alone), free(expected);
}

/* A pass of one block: a token's logits are the same alone, by one thread, and the weights' codes change them little. */
static void coded(Weight *w, int64_t num_out, int64_t num_in, const void *weight, int type, int coded_type) {
    *w = (Weight){weight, 0, 0, num_out, num_in, type};
    if (coded_type < Q8) return;
    char *codes = zeros(rows_coded_size(num_out, num_in, coded_type, level), 1);
    float *scales = zeros(num_out + 64, 4);
    Coding c = {weight, codes, scales, num_out, num_in, type, coded_type, level, 1};
    rows_code(&c);
    *w = (Weight){codes, coded_type == Q8 ? scales : (free(scales), NULL), 0, num_out, num_in, coded_type};
}
/* The last tokens of each sequence, the keys before which are in the last slots of another cache of float16 or float32. */
static void after_others(Pass *p, const float *expected, float *logits, char *other) {
    int type = draw(2) ? F16 : F32;
    int64_t bases[3], places[3], counts[3], first[3], wanted[120], size = SIZE(type), n = 0, heads = p->kv_heads, most = p->capacity, dim = p->dim;
    int64_t ids[120], positions[120], sequences[120], from[120];
    for (int64_t q = 0; q < p->num_sequences; q++) {
        bases[q] = draw(p->counts[q]), places[q] = p->num_sequences - 1 - q, counts[q] = p->counts[q] - bases[q], first[q] = n;
        for (int64_t i = bases[q]; i < p->counts[q]; i++, n++)
            from[n] = p->first[q] + i, ids[n] = p->ids[from[n]], positions[n] = i, sequences[n] = q, wanted[n] = n;
        for (int64_t part = 0; part < 2; part++) for (int64_t h = 0; h < heads; h++) for (int64_t i = 0; i < bases[q] * dim; i++) {
            const char *value = own_cache(p, 0, part, q, h, 0) + 2 * i;
            char *to = other + (((part * p->num_sequences + places[q]) * heads + h) * most + most - bases[q]) * dim * size + i * size;
            float whole = get(value, 0, F16);
            memcpy(to, type == F16 ? value : (char *)&whole, size);
        }
    }
    int64_t stride[] = {heads * most * dim, most * dim, dim};
    Past past = {other, other + p->num_sequences * stride[0] * size, {stride[0], stride[1], stride[2]}, {stride[0], stride[1], stride[2]}, most, type, 0};
    Pass last = *p;
    last.past = &past, last.places = places, last.base = bases, last.counts = counts, last.first = first, last.wanted = wanted;
    last.ids = ids, last.positions = positions, last.sequences = sequences, last.num_tokens = last.num_wanted = n, last.logits = logits;
    last.cache = zeros(2 * p->num_sequences * stride[0], 2);
    check(rows_pass(&last) == OK, "a pass after another cache");
    for (int64_t t = 0; t < n; t++) check(!memcmp(logits + t * 37, expected + from[t] * 37, 37 * 4), "a token after keys of another cache");
    free(last.cache);
}
static void pass(int type, int coded_type) {
    enum { IDS = 37, SIZE_OF = 40, HEADS = 4, KEYS_OF = 2, DIM = 8, INNER = 43, MOST = 40 };
    int64_t S = 1 + draw(3), T = 0, window = draw(2) ? 1 + draw(9) : 0, counts[3], first[3], base[3] = {0};
    int64_t ids[3 * MOST], positions[3 * MOST], sequences[3 * MOST], wanted[3 * MOST];
    for (int64_t q = 0; q < S; q++) {
        counts[q] = 1 + draw(MOST), first[q] = T;
        for (int64_t i = 0; i < counts[q]; i++, T++) ids[T] = draw(IDS), positions[T] = i, sequences[T] = q, wanted[T] = T;
    }
    static const struct { int64_t out, in; } shapes[] = {{IDS, SIZE_OF}, {HEADS * DIM, SIZE_OF}, {KEYS_OF * DIM, SIZE_OF}, {KEYS_OF * DIM, SIZE_OF},
                                                         {SIZE_OF, HEADS * DIM}, {INNER, SIZE_OF}, {INNER, SIZE_OF}, {SIZE_OF, INNER}, {IDS, SIZE_OF}};
    void *weights[9];
    Weight w[9], plain[9];
    for (int i = 0; i < 9; i++) {
        weights[i] = drawn(shapes[i].out * shapes[i].in, type);
        coded(w + i, shapes[i].out, shapes[i].in, weights[i], type, i % 8 || coded_type < Q8 ? coded_type : Q8);
        coded(plain + i, shapes[i].out, shapes[i].in, weights[i], type, type);
    }
    float *norm = drawn(SIZE_OF, F32), *angles = drawn(2 * MOST * DIM / 2, F32), *results[4], *buffers[5];
    char *cache = zeros(2 * S * KEYS_OF * MOST * DIM, 2), *other = zeros(2 * S * KEYS_OF * MOST * DIM, 4);
    for (int i = 0; i < 4; i++) results[i] = floats(T * IDS);
    int64_t sizes[5] = {SIZE_OF, SIZE_OF, (HEADS + 2 * KEYS_OF) * DIM, HEADS * DIM, INNER};
    for (int i = 0; i < 5; i++) buffers[i] = floats(T * sizes[i]);
    for (int run = 0; run < 4; run++) { /* all tokens at once; the last ones, after keys of another cache; one at a time; without codes */
        const Weight *of = run == 3 ? plain : w;
        Norm of_input = {norm, norm, 1e-5f, (int)(window % 2), 1};
        Step steps[8] = {
            {.w = {of[0]}, .factor = 2, .kind = EMBED, .num_weights = 1},
            {.w = {of[1], of[2], of[3]}, .norm = of_input, .kind = LINEAR, .to = 2, .num_weights = 3},
            {.cos = angles, .sin = angles + MOST * DIM / 2, .kind = ROTATE, .rotated = DIM},
            {.factor = 0.3f, .window = window, .kind = ATTEND},
            {.w = {of[4]}, .factor = 1, .kind = LINEAR, .from = 3, .num_weights = 1, .then = ACCUMULATE},
            {.w = {of[5], of[6]}, .norm = of_input, .a = 1, .act = GATED, .kind = LINEAR, .to = 4, .num_weights = 2, .then = GATE_FIRST},
            {.w = {of[7]}, .factor = 0.5f, .kind = LINEAR, .from = 4, .num_weights = 1, .then = ACCUMULATE},
            {.w = {of[8]}, .norm = of_input, .kind = LINEAR, .num_weights = 1, .is_head = 1}};
        Pass p = {.steps = steps, .ids = ids, .positions = positions, .sequences = sequences, .wanted = wanted, .counts = counts, .first = first,
                  .base = base, .cache = cache, .logits = results[run], .num_steps = 8, .num_tokens = T, .num_wanted = T, .num_sequences = S,
                  .heads = HEADS, .kv_heads = KEYS_OF, .dim = DIM, .capacity = MOST, .cache_type = F16, .level = level, .threads = 1 + draw(3)};
        memcpy(p.sizes, sizes, sizeof sizes), memcpy(p.buffers, buffers, sizeof buffers);
        if (run == 0 || run == 3) check(rows_pass(&p) == OK, "a pass");
        else if (run == 1) after_others(&p, results[0], results[1], other);
        else for (int64_t t = 0; t < T; t++) {
            int64_t one[3] = {0}, zero[3] = {0}, none = 0;
            one[sequences[t]] = 1;
            p.ids = ids + t, p.positions = positions + t, p.sequences = sequences + t, p.wanted = &none, p.counts = one, p.first = zero;
            p.num_tokens = p.num_wanted = p.threads = 1, p.logits = results[2] + t * IDS;
            rows_pass(&p);
        }
    }
    check(!memcmp(results[0], results[2], T * IDS * 4), "a token of a pass");
    double error = 0, size = 0;
    for (int64_t i = 0; i < T * IDS; i++) error += pow(results[0][i] - results[3][i], 2), size += pow(results[3][i], 2);
    check(error <= (coded_type == Q4 ? 0.1 : 0.003) * size && size > 0, "a pass over codes");
    for (int i = 0; i < 9; i++) {
        free(weights[i]);
        if (coded_type >= Q8) free((void *)w[i].data), free((void *)w[i].scales);
    }
    for (int i = 0; i < 4; i++) free(results[i]);
    for (int i = 0; i < 5; i++) free(buffers[i]);
    free(norm), free(angles), free(cache), free(other);
}

int main(int n, char **arguments) {
#ifndef WITHOUT_THREADS
    rows_use(GOMP_parallel, omp_get_thread_num, omp_get_num_threads, GOMP_barrier);
#endif
#ifdef INSTEAD_OF_AVX512
    int most = 3;
#else
    int most = rows_level();
#endif
    for (level = 1; level <= most; level++) {
        for (int i = n > 1 ? atoi(arguments[1]) : 10; i > 0; i--) for (int type = F32; type <= F16; type++) {
            products(type, rows_linear, "linear"), products(type, rows_conv1d, "conv1d"), attention(type);
            if (i % 4 == 0) experts(type);
            for (int coded_type = Q8; coded_type <= Q4; coded_type++) coded_products(type, coded_type), pass(type, coded_type);
            pass(type, type);
        }
        gates();
    }
    printf("%d levels, %d checks, %d failures\n", most, checks, failures);
    return failures > 0 || !checks;
}
