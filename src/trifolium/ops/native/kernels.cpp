// Small products and the delta rule for a few rows, each sum in one fixed order whatever else runs.
//
// Compiled at first use (build.py) for the machine at hand, with -ffp-contract=off: every fused multiply-add is written
// down, so a row's bits can't depend on how the compiler treats another loop. Weights are row-major [out, in]; x is
// float32. Letters: N rows, I inputs, O outputs, H heads, d key size, e value size.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#ifdef __FMA__
#include <immintrin.h>
#endif

namespace {

constexpr int LANES = 8;
constexpr int STEP = 2 * LANES;
constexpr int ROWS = 4;  // rows whose sums are held in registers at a time

typedef float Floats __attribute__((vector_size(4 * LANES)));
typedef uint32_t Words __attribute__((vector_size(4 * LANES)));
typedef uint16_t Halves __attribute__((vector_size(2 * LANES)));

inline Floats load_floats(const float* from) {
    Floats x;
    std::memcpy(&x, from, sizeof x);
    return x;
}

// a * b + c, in one rounding where the machine has it: always, or never.
inline Floats multiply_add(Floats a, Floats b, Floats c) {
#ifdef __FMA__
    return _mm256_fmadd_ps(a, b, c);
#else
    return a * b + c;
#endif
}

// How weights are read, STEP at a time as two vectors, and in which order inputs must lie beside them.
struct Float32 {
    using type = float;
    static inline void load(const float* w, Floats& first, Floats& second) {
        first = load_floats(w);
        second = load_floats(w + LANES);
    }
    static inline float one(float w) { return w; }
    static void arrange(float*, int64_t) {}
};

// A word holds two neighbours: the even one's bits are its lower half, the odd one's its upper half.
struct BFloat16 {
    using type = uint16_t;
    static inline void load(const uint16_t* w, Floats& even, Floats& odd) {
        Words words;
        std::memcpy(&words, w, sizeof words);
        even = reinterpret_cast<Floats>(words << 16);
        odd = reinterpret_cast<Floats>(words & 0xffff0000u);
    }
    static inline float one(uint16_t w) {
        uint32_t bits = static_cast<uint32_t>(w) << 16;
        float value;
        std::memcpy(&value, &bits, sizeof value);
        return value;
    }
    static void arrange(float* x, int64_t size) {
        for (int64_t i = 0; i + STEP <= size; i += STEP) {
            float part[STEP];
            for (int l = 0; l < LANES; ++l) part[l] = x[i + 2 * l], part[LANES + l] = x[i + 2 * l + 1];
            std::memcpy(x + i, part, sizeof part);
        }
    }
};

// y[r][o] = <x[r], w_o> for R rows and O outputs. Lanes run along I, and are added up in one fixed order.
template <class W, int R, int O>
inline void dots(const float* const* x, const typename W::type* w, int I, float (*y)[O]) {
    Floats acc[R][O] = {};
    const int whole = I - I % STEP;
    for (int i = 0; i < whole; i += STEP) {
        Floats first[O], second[O];
        for (int o = 0; o < O; ++o) W::load(w + static_cast<int64_t>(o) * I + i, first[o], second[o]);
        for (int r = 0; r < R; ++r) {
            const Floats a = load_floats(x[r] + i), b = load_floats(x[r] + i + LANES);
            for (int o = 0; o < O; ++o) acc[r][o] = multiply_add(b, second[o], multiply_add(a, first[o], acc[r][o]));
        }
    }
    for (int r = 0; r < R; ++r)
        for (int o = 0; o < O; ++o) {
            const Floats a = acc[r][o];
            float sum = ((a[0] + a[4]) + (a[2] + a[6])) + ((a[1] + a[5]) + (a[3] + a[7]));
            for (int i = whole; i < I; ++i) sum = std::fma(x[r][i], W::one(w[static_cast<int64_t>(o) * I + i]), sum);
            y[r][o] = sum;
        }
}

// Outputs o .. o + O - 1 of n rows; y[r] points to the row's outputs.
template <class W, int O>
void outputs(const float* const* x, int n, const typename W::type* w, int I, float* const* y, int o) {
    int r = 0;
    float part[ROWS][O];
    auto put = [&](int count) {
        for (int j = 0; j < count; ++j)
            for (int k = 0; k < O; ++k) y[r + j][o + k] = part[j][k];
        r += count;
    };
    while (n - r >= 4) dots<W, 4, O>(x + r, w, I, part), put(4);
    if (n - r == 3) dots<W, 3, O>(x + r, w, I, part), put(3);
    if (n - r == 2) dots<W, 2, O>(x + r, w, I, part), put(2);
    if (n - r == 1) dots<W, 1, O>(x + r, w, I, part), put(1);
}

template <class W>
void product(const float* const* x, int n, const typename W::type* w, int I, int first, int last, float* const* y) {
    int o = first;
    for (; o + 2 <= last; o += 2) outputs<W, 2>(x, n, w + static_cast<int64_t>(o) * I, I, y, o);
    if (o < last) outputs<W, 1>(x, n, w + static_cast<int64_t>(o) * I, I, y, o);
}

template <class W>
void linear(const float* x, int64_t n, const typename W::type* w, int64_t I, int64_t O, float* y, int threads) {
    std::vector<float> rows(x, x + n * I);
    std::vector<const float*> from(n);
    std::vector<float*> to(n);
    for (int64_t r = 0; r < n; ++r) {
        W::arrange(rows.data() + r * I, I);
        from[r] = rows.data() + r * I, to[r] = y + r * O;
    }
    constexpr int64_t BLOCK = 32;
    const int64_t blocks = (O + BLOCK - 1) / BLOCK;
#pragma omp parallel for num_threads(threads) schedule(dynamic)
    for (int64_t b = 0; b < blocks; ++b) {
        const int64_t last = b * BLOCK + BLOCK < O ? b * BLOCK + BLOCK : O;
        product<W>(from.data(), static_cast<int>(n), w, static_cast<int>(I), static_cast<int>(b * BLOCK),
                   static_cast<int>(last), to.data());
    }
}

// out[assignment] = down_e (silu(gate_e x) * up_e x), one expert's rows at a time.
template <class W>
void experts(const float* x, int64_t N, const int64_t* groups, const int64_t* starts, int64_t count, const int64_t* assignments,
             int64_t k, const typename W::type* gate_up, const typename W::type* down, int64_t D, int64_t F, float* out,
             int threads) {
    std::vector<float> rows(x, x + N * D);
    for (int64_t r = 0; r < N; ++r) W::arrange(rows.data() + r * D, D);
#pragma omp parallel for num_threads(threads) schedule(dynamic)
    for (int64_t g = 0; g < count; ++g) {
        const int64_t e = groups[g];
        const int n = static_cast<int>(starts[g + 1] - starts[g]);
        std::vector<float> both(static_cast<size_t>(n) * 2 * F), hidden(static_cast<size_t>(n) * F);
        std::vector<const float*> from(n), middle(n);
        std::vector<float*> wide(n), to(n);
        for (int r = 0; r < n; ++r) {
            const int64_t a = assignments[starts[g] + r];
            from[r] = rows.data() + (a / k) * D;
            wide[r] = both.data() + static_cast<int64_t>(r) * 2 * F;
            middle[r] = hidden.data() + static_cast<int64_t>(r) * F;
            to[r] = out + a * D;
        }
        product<W>(from.data(), n, gate_up + e * 2 * F * D, static_cast<int>(D), 0, static_cast<int>(2 * F), wide.data());
        for (int r = 0; r < n; ++r) {
            float* h = hidden.data() + static_cast<int64_t>(r) * F;
            for (int64_t f = 0; f < F; ++f) {
                const float gate = wide[r][f];
                h[f] = gate / (1.0f + std::exp(-gate)) * wide[r][F + f];
            }
            W::arrange(h, F);
        }
        product<W>(middle.data(), n, down + e * D * F, static_cast<int>(F), 0, static_cast<int>(D), to.data());
    }
}

// S <- decay * S + k u^T, the only place where a state changes.
inline void update(float* S, float decay, const float* k, const float* u, int64_t d, int64_t e) {
    for (int64_t i = 0; i < d; ++i) {
        float* row = S + i * e;
        const float key = k[i];
#pragma omp simd
        for (int64_t j = 0; j < e; ++j) row[j] = std::fma(key, u[j], decay * row[j]);
    }
}

}  // namespace

extern "C" {

void trifolium_linear(const float* x, int64_t n, const void* w, int bf16, int64_t I, int64_t O, float* y, int threads) {
    if (bf16)
        linear<BFloat16>(x, n, static_cast<const uint16_t*>(w), I, O, y, threads);
    else
        linear<Float32>(x, n, static_cast<const float*>(w), I, O, y, threads);
}

void trifolium_experts(const float* x, int64_t N, const int64_t* groups, const int64_t* starts, int64_t count,
                       const int64_t* assignments, int64_t k, const void* gate_up, const void* down, int bf16, int64_t D,
                       int64_t F, float* out, int threads) {
    if (bf16)
        experts<BFloat16>(x, N, groups, starts, count, assignments, k, static_cast<const uint16_t*>(gate_up),
                          static_cast<const uint16_t*>(down), D, F, out, threads);
    else
        experts<Float32>(x, N, groups, starts, count, assignments, k, static_cast<const float*>(gate_up),
                         static_cast<const float*>(down), D, F, out, threads);
}

// One request's rows in order: out [N, H, e], updates [N, H, e], and the state [H, d, e] after every row in `keep`
// (kept [keeps, H, d, e], in the order of keep, ascending) and after the last one. `state` is left alone.
void trifolium_delta_rows(const float* q, const float* k, const float* v, const float* decay, const float* beta,
                          const float* state, int64_t N, int64_t H, int64_t d, int64_t e, const int64_t* keep,
                          int64_t keeps, float* out, float* updates, float* kept, float* last, int threads) {
    const float scale = 1.0f / std::sqrt(static_cast<float>(d));
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t h = 0; h < H; ++h) {
        float* S = last + h * d * e;
        std::memcpy(S, state + h * d * e, static_cast<size_t>(d * e) * sizeof(float));
        std::vector<float> sum(e);
        int64_t next = 0;
        for (int64_t t = 0; t < N; ++t) {
            const float *key = k + (t * H + h) * d, *query = q + (t * H + h) * d, *value = v + (t * H + h) * e;
            const float gate = decay[t * H + h], strength = beta[t * H + h];
            float *u = updates + (t * H + h) * e, *o = out + (t * H + h) * e;
            std::memset(sum.data(), 0, static_cast<size_t>(e) * sizeof(float));
            for (int64_t i = 0; i < d; ++i) {
                const float* row = S + i * e;
                const float factor = key[i] * gate;
#pragma omp simd
                for (int64_t j = 0; j < e; ++j) sum[j] = std::fma(factor, row[j], sum[j]);
            }
#pragma omp simd
            for (int64_t j = 0; j < e; ++j) u[j] = strength * (value[j] - sum[j]);
            update(S, gate, key, u, d, e);
            std::memset(sum.data(), 0, static_cast<size_t>(e) * sizeof(float));
            for (int64_t i = 0; i < d; ++i) {
                const float* row = S + i * e;
                const float factor = query[i];
#pragma omp simd
                for (int64_t j = 0; j < e; ++j) sum[j] = std::fma(factor, row[j], sum[j]);
            }
#pragma omp simd
            for (int64_t j = 0; j < e; ++j) o[j] = sum[j] * scale;
            if (next < keeps && keep[next] == t) {
                std::memcpy(kept + (next * H + h) * d * e, S, static_cast<size_t>(d * e) * sizeof(float));
                ++next;
            }
        }
    }
}

// The state [H, d, e] after the given rows alone, bit for bit what trifolium_delta_rows would have made of them.
void trifolium_delta_apply(const float* decay, const float* k, const float* updates, const float* state,
                           const int64_t* rows, int64_t count, int64_t H, int64_t d, int64_t e, float* last,
                           int threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t h = 0; h < H; ++h) {
        float* S = last + h * d * e;
        std::memcpy(S, state + h * d * e, static_cast<size_t>(d * e) * sizeof(float));
        for (int64_t c = 0; c < count; ++c) {
            const int64_t t = rows[c];
            update(S, decay[t * H + h], k + (t * H + h) * d, updates + (t * H + h) * e, d, e);
        }
    }
}
}
