// The delta rule for a few rows, each sum in one fixed order whatever else runs.
//
// Compiled at first use (build.py) with -ffp-contract=off: every fused multiply-add is written down, so a row's bits
// can't depend on how the compiler treats another loop. Letters: N rows, H heads, d key size, e value size.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

namespace {

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
