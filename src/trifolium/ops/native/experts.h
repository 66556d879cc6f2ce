// A mixture's routed experts, each read once for all the rows that it is assigned.
//
// Letters: N rows, D hidden size, F expert size, k experts of a row; assignment a is row a / k's.

#pragma once

#include <vector>

#include "products.h"

namespace trifolium {

// out[a] = down_e (silu(gate_e x) * up_e x) for the assignments of one expert; rows are prepared already.
inline void run_expert(const Product& gate_up, const Product& down, const char* prepared, const int64_t* assignments,
                       int64_t n, int64_t k, float* out) {
    const int64_t stride = row_bytes(gate_up.format, gate_up.in), next = row_bytes(down.format, down.in);
    const int64_t F = down.in, D = down.out, width = gate_up.blocks() * OUTPUTS;
    std::vector<char> rows(n * std::max(stride, next));
    std::vector<float> both(n * width);
    for (int64_t r = 0; r < n; ++r)
        std::memcpy(rows.data() + r * stride, prepared + assignments[r] / k * stride, static_cast<size_t>(stride));
    for (int64_t b = 0; b < gate_up.blocks(); ++b)
        block_rows(gate_up, b, rows.data(), n, [&](int64_t r, const Floats* y) {
            for (int v = 0; v < VECTORS; ++v) store(both.data() + r * width + b * OUTPUTS + v * LANES, y[v]);
        });
    for (int64_t r = 0; r < n; ++r) {
        float *gate = both.data() + r * width, *up = gate + F;
        int64_t j = 0;
        for (; j + LANES <= F; j += LANES) store(gate + j, silu(load<Floats>(gate + j)) * load<Floats>(up + j));
        for (; j < F; ++j) gate[j] = silu(all(gate[j]))[0] * up[j];
        prepare(down.format, gate, F, rows.data() + r * next);
    }
    for (int64_t b = 0; b < down.blocks(); ++b)
        block_rows(down, b, rows.data(), n, [&](int64_t r, const Floats* y) {
            float part[OUTPUTS];
            for (int v = 0; v < VECTORS; ++v) store(part + v * LANES, y[v]);
            const int64_t count = std::min<int64_t>(OUTPUTS, D - b * OUTPUTS);
            std::memcpy(out + assignments[r] * D + b * OUTPUTS, part, static_cast<size_t>(count) * 4);
        });
}

}  // namespace trifolium
