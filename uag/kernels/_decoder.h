/* A decoder's whole pass, from ids to logits, in one call and one parallel region: steps of a list that Python writes
   (decoder.py). Activations are float32. Each step is shared by all threads, which then wait for each other. A token's logits
   depend neither on the other tokens of the pass nor on the number of threads. `_rows.c` includes this file. */

enum { EMBED, LINEAR, ROTATE, ATTEND, ADD };              /* kinds of steps */
enum { STORE, ACTIVATE, GATE_FIRST, ACCUMULATE };         /* what LINEAR does with its results */
#define OUTPUTS 256 /* most outputs that a thread computes before it stores them */
#define ROWS 64 /* the most of weights whose inputs follow each other: few enough for the second cache */
#define TOKENS 8   /* rows of a product that a thread computes before it stores them */
#define SMALL (48 << 10) /* bytes of weights that are read again for the next rows: few enough for the second cache */

typedef struct { const void *data; const float *scales, *bias; int64_t num_out, num_in; int type; int64_t stride; } Weight;
/* Q8 has `scales`. `stride` is 0 if the inputs of an output follow each other, and else from one input to the next, as in Conv1D. */
typedef struct { const float *weight, *bias; float eps; int center, in_use; } Norm;
typedef struct {
    Weight w[3]; /* EMBED: the table, and the table of positions; LINEAR: of one input, whose outputs follow each other */
    Norm norm, key_norm; /* of the input; ROTATE: of queries and keys */
    const float *cos, *sin, *sinks; /* [positions, rotated / 2] */
    float factor, softcap, a, b; /* of ADD and ACCUMULATE, and of attention's scores; of the activation, see Gate */
    int64_t window, layer, shift; /* attention: 0 for all keys; the place of the cache; of learned positions */
    int32_t kind, from, to, num_weights, then, act, is_head, rotated, whole; /* buffers; `whole`: q and k are normed over all heads */
} Step;
typedef struct { const void *k, *v; int64_t k_stride[3], v_stride[3], end; int32_t type, unused; } Past; /* keys of another cache */
typedef struct {
    const Step *steps;
    const int64_t *ids, *positions, *sequences, *wanted; /* of each token; the tokens whose logits are wanted */
    const int64_t *counts, *first; /* of each sequence: its tokens in this pass, and the number of the first one */
    const int64_t *base, *places; /* of each sequence: the position of the first token in `cache`; those before are in `past`, in this place */
    const Past *past; /* of each layer, or null */
    char *cache; /* [layers, 2, sequences, kv_heads, capacity, dim] */
    float *buffers[5]; /* hidden, normed or added, q k v, attention, gate: [tokens, sizes] */
    float *logits; /* [wanted, vocab] */
    int64_t sizes[5], num_steps, num_tokens, num_wanted, num_sequences, heads, kv_heads, dim, capacity;
    int32_t cache_type, level, threads, unused;
} Pass;
typedef struct { const Pass *p; const Kernel *kernel, *coded; char *inputs; float *scratch; int64_t input_size, scratch_size; } Work;

static int is_coded(int type) { return type >= Q8; }
/* The type of a product's inputs and weights: with PAIRS, inputs are rounded to bfloat16, as a model in bfloat16 rounds them itself. */
static int product_type(const Work *k, const Weight *w) { return w->stride ? w->type : dots_type(w->type, k->p->level); }
static int64_t row_size(const Work *k, const Weight *w) { /* bytes of a row of inputs, as products take it */
    return is_coded(w->type) ? blocks(blocks(w->num_in, 32) * 40, 64) * 64 : packed(w->num_in, product_type(k, w)) * 4;
}
static int64_t block_size(const Weight *w, int lanes) { /* bytes of the coded weights of one vector of outputs */
    return blocks(w->num_in, 32) * lanes * (w->type == Q8 ? 32 : 20);
}

/* The inputs of a product: normed, and in the form that products with `w` take. `line` has room for a row. */
static void prepare(const Work *k, const Step *s, int64_t token, char *to, float *line) {
    const Pass *p = k->p;
    const Weight *w = s->w;
    const float *x = p->buffers[s->from] + token * p->sizes[s->from];
    if (s->norm.in_use) k->kernel->norm(x, line, w->num_in, s->norm.weight, s->norm.bias, s->norm.eps, s->norm.center), x = line;
    if (is_coded(w->type)) { k->coded->code(x, to, w->num_in); return; }
    float *out = (float *)to;
    int64_t width = packed(w->num_in, product_type(k, w)), half = k->kernel->lanes;
    memset(out, 0, width * sizeof *out);
    if (product_type(k, w) == PAIRS) { k->kernel->finish(x == line ? x : memcpy(line, x, w->num_in * sizeof *x), 1, 0, to, w->num_in, BF16); return; }
    if (w->type != BF16 || w->stride) { memcpy(out, x, w->num_in * sizeof *x); return; }
    for (int64_t i = 0; i < w->num_in; i++) out[i / (2 * half) * 2 * half + i % 2 * half + i % (2 * half) / 2] = x[i];
}
static void multiply(const Work *k, const Weight *w, const char *x, int64_t size, int64_t rows, int64_t from, int64_t n, float (*y)[OUTPUTS]) {
    if (w->stride) {
        for (int64_t r = 0; r < rows; r++) memset(y[r], 0, sizeof *y);
        k->kernel->mix((const float *)x, size / 4, rows, offset(w->data, from, w->type), w->stride * SIZE(w->type), y[0], OUTPUTS, n, w->num_in, w->type);
    } else if (!is_coded(w->type)) {
        k->kernel->dots((const float *)x, size / 4, rows, offset(w->data, from * w->num_in, w->type), w->num_in * SIZE(w->type), y[0], OUTPUTS, n, w->num_in, product_type(k, w));
    } else {
        int64_t lanes = k->coded->lanes, bytes = block_size(w, (int)lanes);
        for (int64_t o = 0; o < n; o += lanes)
            k->coded->coded(x, size, rows, (const char *)w->data + (from + o) / lanes * bytes, blocks(w->num_in, 32), y[0] + o, OUTPUTS, w->type);
    }
    for (int64_t r = 0; r < rows; r++)
        for (int64_t o = 0; o < n; o++) y[r][o] = y[r][o] * (w->scales ? w->scales[from + o] : 1) + (w->bias ? w->bias[from + o] : 0);
}
static void activate(const Work *k, const Step *s, float *y, int64_t n) {
    if (s->act < 0) for (int64_t i = 0; i < n; i++) y[i] = y[i] > 0 ? y[i] : 0;
    else k->kernel->gate(y, y, n, s->a, s->b, s->act, F32);
}
static void linear_step(const Work *k, const Step *s, int me, int all) {
    const Pass *p = k->p;
    const int64_t tokens = s->is_head ? p->num_wanted : p->num_tokens, size = row_size(k, s->w);
    const int each_prepares = tokens <= TOKENS; /* a barrier costs more than to prepare few rows in every thread */
    char *x = k->inputs + (each_prepares ? me * TOKENS * k->input_size : 0);
    float *line = k->scratch + me * k->scratch_size, *out = s->is_head ? p->logits : p->buffers[s->to];
    for (int64_t t = each_prepares ? 0 : tokens * me / all, end = each_prepares ? tokens : tokens * (me + 1) / all; t < end; t++)
        prepare(k, s, s->is_head ? p->wanted[t] : t, x + t * size, line);
    if (!each_prepares && all > 1) barrier();
    const int64_t stride = s->is_head ? s->w[0].num_out : p->sizes[s->to], parts = s->then == GATE_FIRST ? 1 : s->num_weights;
    for (int64_t part = 0, shift = 0; part < parts; shift += s->w[part++].num_out) {
        const Weight *w = s->w + part;
        int64_t unit = is_coded(w->type) ? k->coded->lanes : 8, fit = SMALL / (block_size(w, 1) + 1) / unit * unit;
        int64_t chunk = fit < unit ? unit : at_most(fit, w->stride ? OUTPUTS : ROWS), units = blocks(w->num_out, unit), n;
        int64_t o = units * me / all * unit, end = at_most(units * (me + 1) / all * unit, w->num_out);
        for (; o < end; o += n) {
            n = at_most(end - o, chunk);
            for (int64_t t = 0, rows; t < tokens; t += rows) {
                float y[TOKENS][OUTPUTS], up[TOKENS][OUTPUTS];
                rows = at_most(tokens - t, TOKENS);
                multiply(k, w, x + t * size, size, rows, o, n, y);
                if (s->then == GATE_FIRST) multiply(k, w + 1, x + t * size, size, rows, o, n, up);
                for (int64_t r = 0; r < rows; r++) {
                    float *to = out + (t + r) * stride + shift + o;
                    if (s->then == ACTIVATE || s->then == GATE_FIRST) activate(k, s, y[r], n);
                    if (s->then == GATE_FIRST) for (int64_t j = 0; j < n; j++) to[j] = y[r][j] * up[r][j];
                    else if (s->then == ACCUMULATE) for (int64_t j = 0; j < n; j++) to[j] += s->factor * y[r][j];
                    else memcpy(to, y[r], n * sizeof **y);
                }
            }
        }
    }
}

static void row_of_weight(const Work *k, const Weight *w, int64_t row, float *to) { /* may write up to the next line */
    if (!is_coded(w->type)) { k->kernel->pack(offset(w->data, row * w->num_in, w->type), to, w->num_in, w->type, 1); return; }
    int lanes = k->coded->lanes;
    const int8_t *at = (const int8_t *)w->data + row / lanes * block_size(w, lanes) + row % lanes * 4;
    for (int64_t i = 0; i < w->num_in; i++) to[i] = (float)at[i / 4 * 4 * lanes + i % 4] * w->scales[row];
}
static void embed_step(const Work *k, const Step *s, int64_t token, float *line) {
    const Pass *p = k->p;
    float *h = p->buffers[0] + token * p->sizes[0];
    int64_t n = s->w[0].num_in;
    row_of_weight(k, s->w, p->ids[token], line);
    for (int64_t i = 0; i < n; i++) h[i] = line[i] * s->factor;
    if (s->num_weights < 2) return;
    row_of_weight(k, s->w + 1, p->positions[token] + s->shift, line);
    for (int64_t i = 0; i < n; i++) h[i] += line[i];
}

static char *own_cache(const Pass *p, int64_t layer, int is_value, int64_t sequence, int64_t head, int64_t slot) {
    return p->cache + ((((layer * 2 + is_value) * p->num_sequences + sequence) * p->kv_heads + head) * p->capacity + slot) * p->dim * SIZE(p->cache_type);
}
static void rotate(const Step *s, float *x, int64_t position) {
    const float *cos = s->cos + position * s->rotated / 2, *sin = s->sin + position * s->rotated / 2;
    for (int64_t i = 0, half = s->rotated / 2; i < half; i++) {
        float first = x[i], second = x[i + half];
        x[i] = first * cos[i] - second * sin[i], x[i + half] = second * cos[i] + first * sin[i];
    }
}
static void norm_heads(const Work *k, const Norm *n, float *x, int64_t heads, int64_t dim) {
    for (int64_t h = 0; h < heads && n->in_use; h++, x += dim) k->kernel->norm(x, x, dim, n->weight, n->bias, n->eps, n->center);
}
static void rotate_step(const Work *k, const Step *s, int64_t token) { /* queries and keys; keys and values go into the cache */
    const Pass *p = k->p;
    float *q = p->buffers[2] + token * p->sizes[2], *key = q + p->heads * p->dim, *value = key + p->kv_heads * p->dim;
    int64_t position = p->positions[token], sequence = p->sequences[token], slot = position - p->base[sequence];
    norm_heads(k, &s->norm, q, s->whole ? 1 : p->heads, s->whole ? p->heads * p->dim : p->dim);
    norm_heads(k, &s->key_norm, key, s->whole ? 1 : p->kv_heads, s->whole ? p->kv_heads * p->dim : p->dim);
    for (int64_t h = 0; h < p->heads && s->rotated; h++) rotate(s, q + h * p->dim, position);
    for (int64_t h = 0; h < p->kv_heads; h++) {
        if (s->rotated) rotate(s, key + h * p->dim, position);
        k->kernel->finish(key + h * p->dim, 1, 0, own_cache(p, s->layer, 0, sequence, h, slot), p->dim, p->cache_type);
        k->kernel->finish(value + h * p->dim, 1, 0, own_cache(p, s->layer, 1, sequence, h, slot), p->dim, p->cache_type);
    }
}

/* Up to `most` queries of one sequence, from number `begin` on, that share a head of keys. */
static void attend(const Work *k, const Step *s, int64_t sequence, int64_t head, int64_t begin, int64_t most, float *scratch) {
    static const float ones[16] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    const Pass *p = k->p;
    const Past *past = p->past ? p->past + s->layer : 0;
    int64_t group = p->heads / p->kv_heads, rows = at_most(group * p->counts[sequence] - begin, most), token = p->first[sequence];
    int is_finite = 1;
    int64_t last = p->positions[token + (begin + rows - 1) / group], low = p->positions[token + begin / group] + 1 - s->window;
    low = s->window && low > 0 ? low : 0;
    int64_t n = last + 1 - low, base = p->base[sequence], num_past = past && base > low ? at_most(base, last + 1) - low : 0;
    int64_t stride = (blocks(n, 16) | 1) * 16, width = blocks(p->dim, 32) * 32;
    float *query = scratch, *scores = query + 8 * width, sums[8], y[8][VALUES + 16];
    char *keep = (char *)(scores + 8 * stride);
    const char *own_k = own_cache(p, s->layer, 0, sequence, head, low + num_past - base), *own_v = own_cache(p, s->layer, 1, sequence, head, low + num_past - base);
    int64_t own_stride = p->dim * SIZE(p->cache_type), from = past ? past->end - base + low : 0;
    for (int64_t half = 0; half < 2; half++) { /* the keys in `past`, then those in the pass's own cache */
        int64_t count = half ? n - num_past : num_past;
        if (!count) continue;
        int type = half ? p->cache_type : past->type;
        for (int64_t r = 0; r < rows; r++) {
            const float *q = p->buffers[2] + (token + (begin + r) / group) * p->sizes[2] + (head * group + (begin + r) % group) * p->dim;
            float *to = query + r * width;
            memset(to, 0, width * sizeof *to);
            if (type != BF16) { memcpy(to, q, p->dim * sizeof *q); continue; }
            for (int64_t i = 0, l = k->kernel->lanes; i < p->dim; i++) to[i / (2 * l) * 2 * l + i % 2 * l + i % (2 * l) / 2] = q[i];
        }
        const char *keys = half ? own_k : offset(past->k, p->places[sequence] * past->k_stride[0] + head * past->k_stride[1] + from * past->k_stride[2], type);
        k->kernel->dots(query, width, rows, keys, half ? own_stride : past->k_stride[2] * SIZE(type), scores + (half ? num_past : 0), stride, count, p->dim, type);
    }
    for (int64_t r = 0; r < rows; r++) {
        int64_t position = p->positions[token + (begin + r) / group], lowest = s->window ? position + 1 - s->window : 0;
        for (int64_t i = 0; i < n; i++) keep[i] = low + i <= position && low + i >= lowest;
        sums[r] = k->kernel->softmax(scores + r * stride, n, s->factor, s->softcap, keep, 0, -1, s->sinks ? s->sinks + head * group + (begin + r) % group : 0);
    }
    for (int64_t at = 0, columns; at < p->dim; at += columns) {
        columns = at_most(p->dim - at, VALUES);
        memset(y, 0, sizeof y);
        for (int64_t r = 0; r < rows; r++) y[r][VALUES] = sums[r];
        k->kernel->mix(scores, stride, rows, ones, 0, y[0] + VALUES, VALUES + 16, 16, n, F32);
        if (num_past) k->kernel->mix(scores, stride, rows, offset(past->v, p->places[sequence] * past->v_stride[0] + head * past->v_stride[1] + from * past->v_stride[2] + at, past->type),
                                     past->v_stride[2] * SIZE(past->type), y[0], VALUES + 16, columns, num_past, past->type);
        if (n > num_past) k->kernel->mix(scores + num_past, stride, rows, own_v + at * SIZE(p->cache_type), own_stride, y[0], VALUES + 16, columns, n - num_past, p->cache_type);
        for (int64_t r = 0; r < rows; r++) {
            float *to = p->buffers[3] + (token + (begin + r) / group) * p->sizes[3] + (head * group + (begin + r) % group) * p->dim + at;
            for (int64_t i = 0; i < columns; i++) to[i] = y[r][i] / y[r][VALUES], is_finite &= isfinite(to[i]) != 0;
        }
    }
    /* Keys that a query does not see have weight 0, but their values may be infinite: each query is repeated without them. */
    for (int64_t r = 0; !is_finite && rows > 1 && r < rows; r++) attend(k, s, sequence, head, begin + r, 1, scratch);
}
static void add_step(const Work *k, const Step *s, int64_t token, float *line) {
    const Pass *p = k->p;
    float *to = p->buffers[s->to] + token * p->sizes[s->to];
    int64_t n = p->sizes[0];
    k->kernel->norm(p->buffers[s->from] + token * p->sizes[s->from], line, n, s->norm.weight, s->norm.bias, s->norm.eps, s->norm.center);
    if (s->then == STORE) memcpy(to, line, n * sizeof *to);
    else for (int64_t i = 0; i < n; i++) to[i] += s->factor * line[i];
}

static void run_steps(void *of) {
    const Work *k = of;
    const Pass *p = k->p;
    int me = barrier && p->threads > 1 ? this_thread() : 0, all = barrier && p->threads > 1 ? all_threads() : 1;
    float *line = k->scratch + me * k->scratch_size;
    for (int64_t i = 0; i < p->num_steps; i++) {
        const Step *s = p->steps + i;
        if (s->kind == LINEAR) linear_step(k, s, me, all);
        else if (s->kind == ATTEND) {
            int64_t group = p->heads / p->kv_heads, most = 8, unit = 0; /* fewer, lest a thread has nothing to do */
            while (most > 1 && p->num_tokens * p->heads < 2 * all * most) most /= 2;
            for (int64_t q = 0; q < p->num_sequences; q++)
                for (int64_t begin = 0; begin < group * p->counts[q]; begin += most)
                    for (int64_t h = 0; h < p->kv_heads; h++)
                        if (unit++ % all == me) attend(k, s, q, h, begin, most, line);
        } else for (int64_t t = p->num_tokens * me / all; t < p->num_tokens * (me + 1) / all; t++) {
            if (s->kind == EMBED) embed_step(k, s, t, line);
            else if (s->kind == ROTATE) rotate_step(k, s, t);
            else add_step(k, s, t, line);
        }
        if (all > 1) barrier();
    }
}
int rows_pass(const Pass *p) {
    int level = p->level;
    Work k = {p, kernels[level], coders[level], 0, 0, 0, 0};
    int64_t widest = 0, most_keys = 0, threads = barrier && p->threads > 1 ? p->threads : 1;
    for (int64_t i = 0; i < p->num_steps; i++)
        for (int part = 0; part < p->steps[i].num_weights; part++) {
            const Weight *w = p->steps[i].w + part;
            if (row_size(&k, w) > k.input_size) k.input_size = row_size(&k, w);
            if (w->num_in > widest) widest = w->num_in;
        }
    for (int64_t t = 0; t < p->num_tokens; t++) if (p->positions[t] >= most_keys) most_keys = p->positions[t] + 1;
    int64_t attention = 8 * (blocks(p->dim, 32) * 32 + (blocks(most_keys, 16) | 1) * 16) + blocks(most_keys, 64) * 16 + 16;
    k.scratch_size = blocks(attention > widest + 64 ? attention : widest + 64, 16) * 16;
    int64_t rows = threads * TOKENS > p->num_tokens ? threads * TOKENS : p->num_tokens;
    k.scratch = floats(threads * k.scratch_size);
    k.inputs = (char *)floats(blocks(rows * k.input_size, 4));
    int status = k.scratch && k.inputs ? OK : NO_MEMORY;
    if (status == OK) {
        if (threads > 1) parallel(run_steps, &k, (unsigned)threads, 0);
        else run_steps(&k);
    }
    free(k.scratch);
    free(k.inputs);
    return status;
}

/* Codes of a weight [num_out, num_in] of `type`, contiguous: `to` gets its vectors of outputs, `scales` [num_out] those of Q8. */
typedef struct { const void *weight; char *to; float *scales; int64_t num_out, num_in; int type, coded_type, level, threads; } Coding;
static void code_block(const void *job, int64_t i) {
    const Coding *c = job;
    const Kernel *kernel = kernels[c->level];
    int lanes = coders[c->level]->lanes;
    Weight w = {0, 0, 0, c->num_out, c->num_in, c->coded_type};
    int64_t groups = blocks(c->num_in, 32);
    char *to = c->to + i * block_size(&w, lanes);
    float *x = floats(groups * 32 + 64);
    if (!x) return; /* the weights stay zeros: a draft may be wrong */
    for (int lane = 0; lane < lanes && i * lanes + lane < c->num_out; lane++) {
        memset(x, 0, groups * 32 * sizeof *x);
        kernel->pack(offset(c->weight, (i * lanes + lane) * c->num_in, c->type), x, c->num_in, c->type, 1);
        coders[c->level]->encode(x, groups, to, lane, c->scales + i * lanes + lane, c->coded_type);
    }
    free(x);
}
int64_t rows_layout(void) { return (int64_t)sizeof(Pass) << 20 | sizeof(Step); } /* which Python compares with its own */
int64_t rows_coded_size(int64_t num_out, int64_t num_in, int type, int level) { /* bytes of a weight's codes */
    Weight w = {0, 0, 0, num_out, num_in, type};
    return blocks(num_out, coders[level]->lanes) * block_size(&w, coders[level]->lanes);
}
int rows_code(const Coding *c) { each(code_block, c, blocks(c->num_out, coders[c->level]->lanes), c->threads); return OK; }
