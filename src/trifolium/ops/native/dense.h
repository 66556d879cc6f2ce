// One pass of a dense transformer over any mix of commit and preview rows: every layer, in one call.
//
// What model/transformer.py composes of torch operations, without their overhead; that composition is the reference. Each row's
// results depend on the row itself and on the rows it sees alone, bit for bit: commit rows of all requests, drafts,
// prompt chunks of any length and previews share a pass freely.
//
// Letters: N rows, D hidden size, H query heads, K key heads, G = H / K, d head size, F feed-forward size.
// Structs are mirrored by ops/native/structs.py.

#pragma once

#include <algorithm>
#include <vector>

#include "products.h"
#include "team.h"

namespace trifolium {

struct Delta {  // y += scale * (x down^T) up^T on preview rows; none if down.packed is null
    Product down, up;
    float scale;
};

struct Layer {
    const float *mixer_norm, *q_norm, *k_norm, *ffn_norm;  // factors; q_norm and k_norm [d] or null
    Product qkv, out, gate_up, down;
    Delta qkv_delta, out_delta, gate_up_delta, down_delta;
};

struct Model {
    int64_t layers, hidden, heads, kv_heads, head_dim, rotary, ffn;
    float eps;
    const Layer* layer;
    const float* final_norm;
};

// Cells hold keys and values [layers, 2, K, capacity, d].
struct Cells {
    float* at;
    int64_t capacity, length;  // length: committed positions, which all of the request's rows see
};

struct Pass {
    int64_t rows, commit;            // commit rows come first
    const int64_t* request;          // [N] index into cells
    const int64_t* tail_start;       // [N + 1] into tails
    const int32_t* tails;            // rows of this pass that a row sees after its request's cells, in order
    const float *cos, *sin;          // [N, rotary / 2]
    const Cells* cells;
    float* x;                        // [N, D] in: embeddings; out: normalised final hidden vectors
    float* scratch;                  // [layers, 2, N, K, d]: keys and values of all rows
    char* workspace;
};

inline void rms_norm(const float* x, const float* weight, int64_t size, float eps, float* y) {
    Floats squares = all(0.0f);
    const int64_t whole = size - size % LANES;
    for (int64_t i = 0; i < whole; i += LANES) squares = multiply_add(load<Floats>(x + i), load<Floats>(x + i), squares);
    float total = sum(squares);
    for (int64_t i = whole; i < size; ++i) total = std::fma(x[i], x[i], total);
    const float factor = 1.0f / std::sqrt(total / static_cast<float>(size) + eps);
    for (int64_t i = 0; i < whole; i += LANES)
        store(y + i, load<Floats>(x + i) * all(factor) * load<Floats>(weight + i));
    for (int64_t i = whole; i < size; ++i) y[i] = x[i] * factor * weight[i];
}

// Turns the pairs (x_i, x_{i + half}) of the first 2 * half values by their angles.
inline void rotate(float* x, const float* cos, const float* sin, int64_t half) {
    for (int64_t i = 0; i < half; ++i) {
        const float a = x[i], b = x[half + i];
        x[i] = a * cos[i] - b * sin[i];
        x[half + i] = b * cos[i] + a * sin[i];
    }
}

// Attention of one row and `heads` query heads of one key head over its request's cells, then its tail.
//
// Scores are independent sums; their maximum, the sum of exponentials and the weighted values run along positions in
// one order, so it makes no difference whether a position's keys lie in the cells or in this pass's scratch.
class Attend {
  public:
    static constexpr int MOST = 8;  // heads at a time

    static void run(const Model& m, const Pass& pass, int64_t layer, int64_t row, int64_t kv, int heads, const float* q,
                    float* y, float* scores, int64_t room) {
        const int64_t d = m.head_dim, stride = m.kv_heads * d;
        const Cells& cells = pass.cells[pass.request[row]];
        const float* keys = cells.at + (layer * 2 * m.kv_heads + kv) * cells.capacity * d;
        const float* values = keys + m.kv_heads * cells.capacity * d;
        const float* new_keys = pass.scratch + layer * 2 * pass.rows * stride + kv * d;
        const float* new_values = new_keys + pass.rows * stride;
        const int32_t* tail = pass.tails + pass.tail_start[row];
        const int64_t length = cells.length, extra = pass.tail_start[row + 1] - pass.tail_start[row];
        const int64_t total = length + extra, padded = round_up(total, LANES);
        const float scale = 1.0f / std::sqrt(static_cast<float>(d));

        for (int64_t j = 0; j < padded; j += LANES) {
            const float* key[LANES];
            for (int c = 0; c < LANES; ++c) {
                const int64_t at = std::min(j + c, total - 1);
                key[c] = at < length ? keys + at * d : new_keys + tail[at - length] * stride;
            }
            for (int h = 0; h < heads; ++h) store(scores + h * room + j, dots(q + h * d, key, d) * all(scale));
        }
        for (int h = 0; h < heads; ++h) {
            float* s = scores + h * room;
            for (int64_t j = total; j < padded; ++j) s[j] = -INFINITY;
            Floats most = load<Floats>(s);
            for (int64_t j = LANES; j < padded; j += LANES) most = maximum(load<Floats>(s + j), most);
            const Floats peak = all(largest(most));
            Floats mass = all(0.0f);
            for (int64_t j = 0; j < padded; j += LANES) {
                const Floats p = exponential(load<Floats>(s + j) - peak);
                store(s + j, p);
                mass = mass + p;
            }
            const Floats inverse = all(1.0f / sum(mass));
            for (int64_t j = 0; j < padded; j += LANES) store(s + j, load<Floats>(s + j) * inverse);
        }
        for (int h = 0; h < heads; h += 2)
            if (h + 1 < heads)
                weigh<2>(scores + h * room, room, values, new_values, stride, tail, length, extra, d, y + h * d);
            else
                weigh<1>(scores + h * room, room, values, new_values, stride, tail, length, extra, d, y + h * d);
    }

  private:
    // <q, k> for eight keys.
    static inline Floats dots(const float* q, const float* const* key, int64_t d) {
        Floats acc[LANES] = {};
        int64_t i = 0;
        for (; i + LANES <= d; i += LANES) {
            const Floats x = load<Floats>(q + i);
            for (int c = 0; c < LANES; ++c) acc[c] = multiply_add(x, load<Floats>(key[c] + i), acc[c]);
        }
        Floats y = sums(acc);
        for (; i < d; ++i)
            for (int c = 0; c < LANES; ++c) y[c] = std::fma(q[i], key[c][i], y[c]);
        return y;
    }

    // y = sum_j p_j v_j for `heads` heads, WIDE vectors of d at a time.
    template <int heads>
    static void weigh(const float* p, int64_t room, const float* values, const float* new_values, int64_t stride,
                      const int32_t* tail, int64_t length, int64_t extra, int64_t d, float* y) {
        constexpr int WIDE = 4;
        int64_t i = 0;
        for (; i + WIDE * LANES <= d; i += WIDE * LANES) {
            Floats acc[heads][WIDE] = {};
            auto add = [&](const float* value, int64_t at) {
                for (int w = 0; w < WIDE; ++w) {
                    const Floats v = load<Floats>(value + i + w * LANES);
                    for (int h = 0; h < heads; ++h) acc[h][w] = multiply_add(all(p[h * room + at]), v, acc[h][w]);
                }
            };
            for (int64_t j = 0; j < length; ++j) add(values + j * d, j);
            for (int64_t j = 0; j < extra; ++j) add(new_values + tail[j] * stride, length + j);
            for (int h = 0; h < heads; ++h)
                for (int w = 0; w < WIDE; ++w) store(y + h * d + i + w * LANES, acc[h][w]);
        }
        for (; i < d; ++i)
            for (int h = 0; h < heads; ++h) {
                float acc = 0.0f;
                for (int64_t j = 0; j < length; ++j) acc = std::fma(p[h * room + j], values[j * d + i], acc);
                for (int64_t j = 0; j < extra; ++j)
                    acc = std::fma(p[h * room + length + j], new_values[tail[j] * stride + i], acc);
                y[h * d + i] = acc;
            }
    }
};

// How a pass's workspace is cut up, in bytes from its start. One reading for its size and for its use.
struct Workspace {
    int64_t qkv, mixed, ffn, prepared, lowered, scores, room, end;

    Workspace(const Model& m, int64_t rows, int64_t longest, int threads) {
        const Layer& l = m.layer[0];
        int64_t at = 0;
        auto take = [&](int64_t bytes) {
            const int64_t from = at;
            at += round_up(bytes, 64);
            return from;
        };
        qkv = take(rows * l.qkv.out * 4);
        mixed = take(rows * m.heads * m.head_dim * 4);
        ffn = take(rows * 2 * m.ffn * 4);
        int64_t widest = 0, low = 0;
        for (const Product* p : {&l.qkv, &l.out, &l.gate_up, &l.down})
            widest = std::max(widest, row_bytes(p->format, p->in));
        for (const Delta* d : {&l.qkv_delta, &l.out_delta, &l.gate_up_delta, &l.down_delta})
            if (d->down.packed) low = std::max(low, row_bytes(d->up.format, d->up.in));
        prepared = take(rows * widest);
        lowered = take(rows * low);
        room = round_up(longest, LANES) + LANES;
        scores = take(threads * Attend::MOST * room * 4);
        end = at;
    }
};

class DensePass {
  public:
    DensePass(const Model& model, const Pass& pass, int64_t longest, int threads)
        : m_(model), p_(pass), w_(model, pass.rows, longest, threads), team_(threads, phases(model)) {}

  private:
    static constexpr int64_t FEW = 3;  // rows whose row by row work isn't worth sharing

    struct Member {
        int number;
        int64_t phase;
        std::vector<float> row, low;
        std::vector<char> rows;
    };

    static int64_t phases(const Model& m) { return 2 * (5 * m.layers + 1); }

    float* at(int64_t offset) const { return reinterpret_cast<float*>(p_.workspace + offset); }

    // Shares work(i) for i < count, then row by row work, rows(from, to), over all rows.
    template <class Work, class Rows>
    void step(Member& me, int64_t count, Work work, Rows rows) {
        const int64_t N = p_.rows;
        if (N <= FEW) return team_.share(me.phase, count, work, [&] { rows(0, N); });
        team_.share(me.phase, count, work, [] {});
        // Whole tiles where there are enough, so that low-rank weights are read once for a tile.
        const int64_t size = N >= 2 * TILE * team_.size() ? TILE : 1;
        team_.share(me.phase, (N + size - 1) / size, [&](int64_t i) { rows(i * size, std::min(N, (i + 1) * size)); },
                    [] {});
    }

    // Makes rows' inputs, make(row, to), ready for a product, and for preview rows the low-rank side's, too.
    template <class Make>
    auto inputs(Member& me, const Product& product, const Delta& delta, Make make) {
        return [this, &me, &product, &delta, make](int64_t from, int64_t to) {
            const int64_t stride = row_bytes(product.format, product.in);
            char* prepared = p_.workspace + w_.prepared;
            const int64_t first = delta.down.packed ? std::max(from, p_.commit) : to;
            const int64_t low = row_bytes(delta.down.format, product.in);
            if (first < to) me.rows.resize((to - first) * low);
            for (int64_t r = from; r < to; ++r) {
                make(r, me.row.data());
                prepare(product.format, me.row.data(), product.in, prepared + r * stride);
                if (r >= first) prepare(delta.down.format, me.row.data(), product.in, me.rows.data() + (r - first) * low);
            }
            if (first < to) lower(me, delta, me.rows.data(), first, to - first);
        };
    }

    // The low-rank side's middle of `count` rows, ready for its second product.
    void lower(Member& me, const Delta& delta, const char* rows, int64_t first, int64_t count) {
        const int64_t rank = delta.down.out, width = delta.down.blocks() * OUTPUTS;
        me.low.resize(count * width);
        for (int64_t b = 0; b < delta.down.blocks(); ++b)
            block_rows(delta.down, b, rows, count, [&](int64_t r, const Floats* y) {
                for (int v = 0; v < VECTORS; ++v) store(me.low.data() + r * width + b * OUTPUTS + v * LANES, y[v]);
            });
        char* to = p_.workspace + w_.lowered + (first - p_.commit) * row_bytes(delta.up.format, rank);
        for (int64_t r = 0; r < count; ++r)
            prepare(delta.up.format, me.low.data() + r * width, rank, to + r * row_bytes(delta.up.format, rank));
    }

    // to [N, out] (+)= the product of all prepared rows.
    auto product(const Product& p, const Delta& delta, float* to, bool add) {
        return [this, &p, &delta, to, add](int64_t b) {
            const int64_t previews = p_.rows - p_.commit;
            const int64_t from = b * OUTPUTS, count = std::min<int64_t>(OUTPUTS, p.out - from);
            auto put = [&](float* y, Floats part, int v, bool sum) {
                const int64_t left = count - v * LANES;
                if (left >= LANES) {
                    store(y, sum ? load<Floats>(y) + part : part);
                } else {
                    for (int64_t j = 0; j < left; ++j) y[j] = sum ? y[j] + part[j] : part[j];
                }
            };
            block_rows(p, b, p_.workspace + w_.prepared, p_.rows, [&](int64_t r, const Floats* y) {
                for (int v = 0; v < VECTORS; ++v) put(to + r * p.out + from + v * LANES, y[v], v, add);
            });
            if (delta.down.packed && previews)
                block_rows(delta.up, b, p_.workspace + w_.lowered, previews, [&](int64_t r, const Floats* y) {
                    for (int v = 0; v < VECTORS; ++v)
                        put(to + (p_.commit + r) * p.out + from + v * LANES, y[v] * all(delta.scale), v, true);
                });
            if (p.bias)
                for (int64_t r = 0; r < p_.rows; ++r)
                    for (int64_t j = 0; j < count; ++j) to[r * p.out + from + j] += p.bias[from + j];
        };
    }

    // Normalises and rotates a row's heads in place, and puts its keys and values into the scratch.
    void place(const Layer& l, int64_t layer, int64_t row, float* qkv) {
        const int64_t d = m_.head_dim, q_size = m_.heads * d, kv_size = m_.kv_heads * d;
        const int64_t half = m_.rotary / 2;
        const float *cos = p_.cos + row * half, *sin = p_.sin + row * half;
        for (int64_t h = 0; h < m_.heads + m_.kv_heads; ++h) {
            float* head = qkv + h * d;
            const float* norm = h < m_.heads ? l.q_norm : l.k_norm;
            if (norm) rms_norm(head, norm, d, m_.eps, head);
            rotate(head, cos, sin, half);
        }
        float* keys = p_.scratch + (layer * 2 * p_.rows + row) * kv_size;
        std::memcpy(keys, qkv + q_size, static_cast<size_t>(kv_size) * 4);
        std::memcpy(keys + p_.rows * kv_size, qkv + q_size + kv_size, static_cast<size_t>(kv_size) * 4);
    }

    // All heads of a key head at once where that leaves work for everyone, else one head at a time.
    int64_t heads_at_once() const {
        const int64_t group = m_.heads / m_.kv_heads;
        return p_.rows * m_.kv_heads >= 8 * team_.size() ? std::min<int64_t>(group, Attend::MOST) : 1;
    }

    int64_t parts(int64_t most) const { return (m_.heads / m_.kv_heads + most - 1) / most; }

    auto attend(Member& me, int64_t layer, const float* qkv, int64_t width, float* mixed, int64_t most) {
        return [this, &me, layer, qkv, width, mixed, most](int64_t task) {
            const int64_t group = m_.heads / m_.kv_heads, each = m_.kv_heads * parts(most);
            const int64_t row = task / each, kv = task % each / parts(most), first = task % parts(most) * most;
            const int heads = static_cast<int>(std::min(most, group - first));
            const int64_t head = kv * group + first;
            Attend::run(m_, p_, layer, row, kv, heads, qkv + row * width + head * m_.head_dim,
                        mixed + (row * m_.heads + head) * m_.head_dim,
                        at(w_.scores) + me.number * Attend::MOST * w_.room, w_.room);
        };
    }

  public:
    // What one member of the team does; `number` counts them.
    void run(int number) {
        Member me{number, 0, std::vector<float>(m_.hidden + m_.heads * m_.head_dim + m_.ffn), {}, {}};
        const int64_t q_size = m_.heads * m_.head_dim, D = m_.hidden, F = m_.ffn, N = p_.rows;
        float *qkv = at(w_.qkv), *mixed = at(w_.mixed), *ffn = at(w_.ffn);
        auto normed = [&](const float* weight) {
            return [this, weight, D](int64_t row, float* to) { rms_norm(p_.x + row * D, weight, D, m_.eps, to); };
        };
        auto taken = [&](int64_t row, float* to) {
            std::memcpy(to, mixed + row * q_size, static_cast<size_t>(q_size) * 4);
        };
        auto gated = [&](int64_t row, float* to) {
            const float *gate = ffn + row * 2 * F, *up = gate + F;
            int64_t j = 0;
            for (; j + LANES <= F; j += LANES) store(to + j, silu(load<Floats>(gate + j)) * load<Floats>(up + j));
            for (; j < F; ++j) to[j] = silu(all(gate[j]))[0] * up[j];
        };
        auto first = [&](const Layer& l) { return inputs(me, l.qkv, l.qkv_delta, normed(l.mixer_norm)); };
        step(me, 0, [](int64_t) {}, first(m_.layer[0]));
        for (int64_t i = 0; i < m_.layers; ++i) {
            const Layer& l = m_.layer[i];
            const int64_t width = l.qkv.out;
            step(me, l.qkv.blocks(), product(l.qkv, l.qkv_delta, qkv, false), [&](int64_t from, int64_t to) {
                for (int64_t row = from; row < to; ++row) place(l, i, row, qkv + row * width);
            });
            const int64_t most = heads_at_once();
            step(me, N * m_.kv_heads * parts(most), attend(me, i, qkv, width, mixed, most),
                 inputs(me, l.out, l.out_delta, taken));
            step(me, l.out.blocks(), product(l.out, l.out_delta, p_.x, true),
                 inputs(me, l.gate_up, l.gate_up_delta, normed(l.ffn_norm)));
            step(me, l.gate_up.blocks(), product(l.gate_up, l.gate_up_delta, ffn, false),
                 inputs(me, l.down, l.down_delta, gated));
            auto down = product(l.down, l.down_delta, p_.x, true);
            if (i + 1 < m_.layers)
                step(me, l.down.blocks(), down, first(m_.layer[i + 1]));
            else
                step(me, l.down.blocks(), down, [&](int64_t from, int64_t to) {
                    for (int64_t row = from; row < to; ++row)
                        rms_norm(p_.x + row * D, m_.final_norm, D, m_.eps, p_.x + row * D);
                });
        }
    }

  private:
    const Model& m_;
    const Pass& p_;
    const Workspace w_;
    Team team_;
};

}  // namespace trifolium
