// What Python calls (packed.py, experts.py, dense.py) of the packed products, experts and the dense pass.

#include "dense.h"
#include "experts.h"

#include <memory>

#include <omp.h>

using namespace trifolium;

extern "C" {

int64_t trifolium_packed_bytes(int32_t format, int64_t in, int64_t out) {
    return (out + OUTPUTS - 1) / OUTPUTS * block_bytes(format, in);
}

// w [out, in]: floats for float32 and bfloat16, bytes for int8 (scales [out] beside) and int4 ([out, groups * 32], of
// which only the lower halves count; factors d and m [out, groups] as halves beside).
void trifolium_pack(int32_t format, const void* w, const void* first, const void* second, int64_t in, int64_t out,
                    char* packed, int threads) {
    const int64_t groups = Int4::groups(in);
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t from = 0; from < out; from += OUTPUTS) {
        char* block = packed + from / OUTPUTS * block_bytes(format, in);
        const int64_t count = std::min<int64_t>(OUTPUTS, out - from);
        switch (format) {
            case FLOAT32: Float32::pack(static_cast<const float*>(w) + from * in, in, count, block); break;
            case BFLOAT16: BFloat16::pack(static_cast<const float*>(w) + from * in, in, count, block); break;
            case INT8:
                Int8::pack(static_cast<const int8_t*>(w) + from * in, static_cast<const float*>(first) + from, in, count,
                           block);
                break;
            default:
                Int4::pack(static_cast<const uint8_t*>(w) + from * groups * GROUP,
                           static_cast<const uint16_t*>(first) + from * groups,
                           static_cast<const uint16_t*>(second) + from * groups, in, count, block);
        }
    }
}

// x [n, in] -> y [n, out].
void trifolium_product(const Product* p, const float* x, int64_t n, float* y, int threads) {
    const int64_t stride = row_bytes(p->format, p->in);
    std::vector<char> room(n * stride + 64);
    char* rows = reinterpret_cast<char*>(round_up(reinterpret_cast<int64_t>(room.data()), 64));
#pragma omp parallel num_threads(threads)
    {
#pragma omp for schedule(static)
        for (int64_t r = 0; r < n; ++r) prepare(p->format, x + r * p->in, p->in, rows + r * stride);
#pragma omp for schedule(dynamic, 8)
        for (int64_t b = 0; b < p->blocks(); ++b)
            block_rows(*p, b, rows, n, [&](int64_t r, const Floats* sums) {
                float* to = y + r * p->out + b * OUTPUTS;
                const int64_t count = std::min<int64_t>(OUTPUTS, p->out - b * OUTPUTS);
                float part[OUTPUTS];
                for (int v = 0; v < VECTORS; ++v) store(part + v * LANES, sums[v]);
                for (int64_t j = 0; j < count; ++j) to[j] = p->bias ? part[j] + p->bias[b * OUTPUTS + j] : part[j];
            });
    }
}

// x [N, D] -> out [N * k, D]. `groups`: the experts that have rows, `starts` [count + 1]: where each one's begin among
// `assignments`.
void trifolium_experts(const Product* gate_up, const Product* down, const float* x, int64_t N, const int64_t* groups,
                       const int64_t* starts, int64_t count, const int64_t* assignments, int64_t k, float* out,
                       int threads) {
    const Product& first = gate_up[0];
    const int64_t stride = row_bytes(first.format, first.in);
    std::vector<char> room(N * stride + 64);
    char* rows = reinterpret_cast<char*>(round_up(reinterpret_cast<int64_t>(room.data()), 64));
#pragma omp parallel num_threads(threads)
    {
#pragma omp for schedule(static)
        for (int64_t r = 0; r < N; ++r) prepare(first.format, x + r * first.in, first.in, rows + r * stride);
#pragma omp for schedule(dynamic)
        for (int64_t g = 0; g < count; ++g)
            run_expert(gate_up[groups[g]], down[groups[g]], rows, assignments + starts[g], starts[g + 1] - starts[g], k,
                       out);
    }
}

int64_t trifolium_workspace(const Model* model, int64_t rows, int64_t longest, int threads) {
    return Workspace(*model, rows, longest, threads).end;
}

// `longest`: the most positions that a row sees.
void trifolium_dense(const Model* model, const Pass* pass, int64_t longest, int threads) {
    std::unique_ptr<DensePass> run;
#pragma omp parallel num_threads(threads)
    {
#pragma omp single  // the team may be smaller than asked for
        run.reset(new DensePass(*model, *pass, longest, omp_get_num_threads()));
        run->run(omp_get_thread_num());
    }
}

// Puts the rows' keys and values from a pass's scratch, [parts] times rows of [K, d] `stride` floats apart, into the
// cells [parts, K, capacity, d] from `length` on. Parts are keys and values of every layer.
void trifolium_accept(float* cells, int64_t capacity, const float* scratch, int64_t stride, int64_t parts, int64_t K,
                      int64_t d, const int64_t* path, int64_t count, int64_t length) {
    for (int64_t part = 0; part < parts; ++part)
        for (int64_t h = 0; h < K; ++h) {
            float* to = cells + ((part * K + h) * capacity + length) * d;
            const float* from = scratch + part * stride + h * d;
            for (int64_t c = 0; c < count; ++c)
                std::memcpy(to + c * d, from + path[c] * K * d, static_cast<size_t>(d) * 4);
        }
}
}
