// Products y = x W^T on packed weights, in four number formats.
//
// A weight [out, in] is packed in blocks of OUTPUTS outputs that lie interleaved, step by step along `in`, so that a
// vector holds eight outputs' next weights and its sums need no adding up across lanes. Every row of x is prepared once
// for all outputs (floats; 16-bit integers with one scale; 8-bit integers with a scale for every 32). A row's sums run
// along `in` in one fixed order, whatever rows stand beside it: a product is exact in the sense of the engine.
//
// Letters: N rows, I inputs, O outputs, R rows of one tile.

#pragma once

#include <algorithm>
#include <cstddef>

#include "vectors.h"

namespace trifolium {

constexpr int OUTPUTS = 16;
constexpr int VECTORS = OUTPUTS / LANES;
constexpr int TILE = 6;  // rows of a tile: 2 * 6 sums and what they are made of fit the registers
constexpr int GROUP = 32;  // inputs that share a scale in int4

constexpr int64_t AHEAD = 2048;  // bytes that a short tile, which waits for memory, asks for in advance

enum Format : int32_t { FLOAT32 = 0, BFLOAT16 = 1, INT8 = 2, INT4 = 3 };

inline int64_t round_up(int64_t x, int64_t multiple) { return (x + multiple - 1) / multiple * multiple; }

constexpr float TINY = 1e-30f;  // rows whose largest value is below count as zeros: its inverse would overflow

// x * inverse to the nearest whole numbers, ties to even; zeros for rows that aren't finite.
inline Ints rounded(Floats x, Floats inverse, bool finite) {
    const Floats shift = all(12582912.0f);  // 1.5 * 2^23
    const Floats y = multiply_add(x, inverse, shift) - shift;
    return __builtin_convertvector(finite ? y : all(0.0f), Ints);
}

// float32 and bfloat16 weights: [block][i][OUTPUTS]; rows are the floats themselves.
struct Float32 {
    static int64_t block_bytes(int64_t I) { return I * OUTPUTS * 4; }
    static int64_t row_bytes(int64_t I) { return round_up(I * 4, 64); }

    static void prepare(const float* x, int64_t I, void* row) { std::memcpy(row, x, static_cast<size_t>(I) * 4); }

    static void pack(const float* w, int64_t I, int64_t count, void* block) {
        float* to = static_cast<float*>(block);
        for (int64_t i = 0; i < I; ++i)
            for (int o = 0; o < OUTPUTS; ++o) to[i * OUTPUTS + o] = o < count ? w[o * I + i] : 0.0f;
    }

    static inline Floats weights(const void* block, int64_t at) { return load<Floats>(static_cast<const float*>(block) + at); }
};

struct BFloat16 {
    static int64_t block_bytes(int64_t I) { return I * OUTPUTS * 2; }
    static int64_t row_bytes(int64_t I) { return Float32::row_bytes(I); }
    static void prepare(const float* x, int64_t I, void* row) { Float32::prepare(x, I, row); }

    static uint16_t round(float x) {  // to nearest, ties to even; NaN stays NaN
        uint32_t bits;
        std::memcpy(&bits, &x, sizeof bits);
        if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 64u);
        return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
    }

    static void pack(const float* w, int64_t I, int64_t count, void* block) {
        uint16_t* to = static_cast<uint16_t*>(block);
        for (int64_t i = 0; i < I; ++i)
            for (int o = 0; o < OUTPUTS; ++o) to[i * OUTPUTS + o] = o < count ? round(w[o * I + i]) : 0;
    }

    static inline Floats weights(const void* block, int64_t at) {
        const Halves halves = load<Halves>(static_cast<const uint16_t*>(block) + at);
        return (Floats)(__builtin_convertvector(halves, Words) << 16);
    }
};

template <class W, int R>
[[gnu::noinline]] void float_tile(const char* rows, int64_t stride, int64_t I, const void* block, Floats (*y)[VECTORS]) {
    Floats acc[R][VECTORS] = {};
    for (int64_t i = 0; i < I; ++i) {
        Floats w[VECTORS];
        for (int v = 0; v < VECTORS; ++v) w[v] = W::weights(block, i * OUTPUTS + v * LANES);
        for (int r = 0; r < R; ++r) {
            const Floats x = all(reinterpret_cast<const float*>(rows + r * stride)[i]);
            for (int v = 0; v < VECTORS; ++v) acc[r][v] = multiply_add(x, w[v], acc[r][v]);
        }
    }
    for (int r = 0; r < R; ++r)
        for (int v = 0; v < VECTORS; ++v) y[r][v] = acc[r][v];
}

// int8 weights, symmetric per output: [block][i / 2][OUTPUTS][2], then the block's scales. Rows are 16-bit integers of
// as many levels as 32-bit sums allow, and one scale: half that of a float's own precision at 576 inputs.
struct Int8 {
    static int64_t pairs(int64_t I) { return (I + 1) / 2; }
    static int64_t block_bytes(int64_t I) { return pairs(I) * OUTPUTS * 2 + OUTPUTS * 4; }
    static int64_t row_bytes(int64_t I) { return round_up(64 + pairs(I) * 4, 64); }

    static float levels(int64_t I) {
        const int64_t most = ((int64_t{1} << 31) - 1) / (127 * I);
        return static_cast<float>(most < 32767 ? most : 32767);
    }

    static void prepare(const float* x, int64_t I, void* row) {
        float* scale = static_cast<float*>(row);
        int16_t* to = reinterpret_cast<int16_t*>(static_cast<char*>(row) + 64);
        const int64_t whole = I - I % LANES;
        float rest[LANES] = {};
        std::memcpy(rest, x + whole, static_cast<size_t>(I - whole) * 4);
        Floats most = absolute(load<Floats>(rest)), zeros = load<Floats>(rest) * 0.0f;
        for (int64_t i = 0; i < whole; i += LANES) {
            const Floats part = load<Floats>(x + i);
            most = maximum(absolute(part), most);
            zeros = zeros + part * 0.0f;  // NaN once anything is infinite or NaN
        }
        const float peak = largest(most), limit = levels(I);
        const bool finite = sum(zeros) == 0.0f;
        *scale = finite ? peak / limit : std::nanf("");  // whatever the integers are then, products are NaN
        const Floats inverse = all(finite && peak > TINY ? limit / peak : 0.0f);
        for (int64_t i = 0; i < whole; i += LANES)
            store(to + i, __builtin_convertvector(rounded(load<Floats>(x + i), inverse, finite), ShortsHalf));
        const Ints last = rounded(load<Floats>(rest), inverse, finite);
        for (int64_t i = whole; i < I; ++i) to[i] = static_cast<int16_t>(last[i - whole]);
        if (I % 2) to[I] = 0;
    }

    static void pack(const int8_t* w, const float* scales, int64_t I, int64_t count, void* block) {
        int8_t* to = static_cast<int8_t*>(block);
        for (int64_t p = 0; p < pairs(I); ++p)
            for (int o = 0; o < OUTPUTS; ++o)
                for (int j = 0; j < 2; ++j)
                    to[(p * OUTPUTS + o) * 2 + j] = o < count && 2 * p + j < I ? w[o * I + 2 * p + j] : 0;
        float* at = reinterpret_cast<float*>(to + pairs(I) * OUTPUTS * 2);
        for (int o = 0; o < OUTPUTS; ++o) at[o] = o < count ? scales[o] : 0.0f;
    }

    template <int R>
    [[gnu::noinline]] static void tile(const char* rows, int64_t stride, int64_t I, const void* block, Floats (*y)[VECTORS]) {
        Ints acc[R][VECTORS] = {};
        const int8_t* w = static_cast<const int8_t*>(block);
        const int64_t count = pairs(I);
        for (int64_t p = 0; p < count; ++p) {
            if (R <= 2) __builtin_prefetch(w + p * OUTPUTS * 2 + AHEAD);
            Shorts pair[VECTORS];
            for (int v = 0; v < VECTORS; ++v) pair[v] = __builtin_convertvector(load<Bytes>(w + (p * OUTPUTS + v * LANES) * 2), Shorts);
            for (int r = 0; r < R; ++r) {
                int32_t both;
                std::memcpy(&both, rows + r * stride + 64 + p * 4, 4);
                const Shorts x = (Shorts)Ints{both, both, both, both, both, both, both, both};
                for (int v = 0; v < VECTORS; ++v) acc[r][v] = multiply_add_pairs(pair[v], x, acc[r][v]);
            }
        }
        const float* scales = reinterpret_cast<const float*>(w + count * OUTPUTS * 2);
        for (int r = 0; r < R; ++r) {
            const Floats scale = all(*reinterpret_cast<const float*>(rows + r * stride));
            for (int v = 0; v < VECTORS; ++v) y[r][v] = to_floats(acc[r][v]) * (load<Floats>(scales + v * LANES) * scale);
        }
    }
};

// int4 weights w = d q + m, q in 0 .. 15, d and m halves for every GROUP inputs of an output (llama.cpp's Q4_1 has the
// same values): [block][i / 32]{d [OUTPUTS], m [OUTPUTS], q}, two steps of four inputs in a byte's halves. Rows are
// 8-bit integers with a scale and a sum for every GROUP inputs.
struct Int4 {
    static constexpr int STEPS = GROUP / 4;
    static constexpr int64_t GROUP_BYTES = OUTPUTS * 2 * 2 + OUTPUTS * GROUP / 2;

    static int64_t groups(int64_t I) { return (I + GROUP - 1) / GROUP; }
    static int64_t block_bytes(int64_t I) { return groups(I) * GROUP_BYTES; }
    static int64_t row_bytes(int64_t I) { return round_up(groups(I) * (8 + GROUP), 64); }  // {scale, sum, 32 bytes}

    static void prepare(const float* x, int64_t I, void* row) {
        char* to = static_cast<char*>(row);
        for (int64_t g = 0; g < groups(I); ++g, to += 8 + GROUP) {
            float part[GROUP] = {};
            std::memcpy(part, x + g * GROUP, static_cast<size_t>(std::min<int64_t>(GROUP, I - g * GROUP)) * 4);
            Floats most = all(0.0f), zeros = all(0.0f);
            for (int i = 0; i < GROUP; i += LANES) {
                most = maximum(absolute(load<Floats>(part + i)), most);
                zeros = zeros + load<Floats>(part + i) * 0.0f;
            }
            const float peak = largest(most);
            const bool finite = sum(zeros) == 0.0f;
            const float scale = finite ? peak / 127.0f : std::nanf("");
            const Floats inverse = all(finite && peak > TINY ? 127.0f / peak : 0.0f);
            Ints totals = {};
            for (int i = 0; i < GROUP; i += LANES) {
                const Ints ints = rounded(load<Floats>(part + i), inverse, finite);
                totals += ints;
                store(to + 8 + i, __builtin_convertvector(ints, BytesHalf));
            }
            int32_t total = 0;
            for (int l = 0; l < LANES; ++l) total += totals[l];
            const float weighted = scale * static_cast<float>(total);
            std::memcpy(to, &scale, 4);
            std::memcpy(to + 4, &weighted, 4);
        }
    }

    // q [count, groups * 32], d and m [count, groups] as halves.
    static void pack(const uint8_t* q, const uint16_t* d, const uint16_t* m, int64_t I, int64_t count, void* block) {
        const int64_t all_groups = groups(I);
        char* to = static_cast<char*>(block);
        for (int64_t g = 0; g < all_groups; ++g, to += GROUP_BYTES) {
            uint16_t* factors = reinterpret_cast<uint16_t*>(to);
            for (int o = 0; o < OUTPUTS; ++o) {
                factors[o] = o < count ? d[o * all_groups + g] : 0;
                factors[OUTPUTS + o] = o < count ? m[o * all_groups + g] : 0;
            }
            uint8_t* bytes = reinterpret_cast<uint8_t*>(to + OUTPUTS * 4);
            auto at = [&](int o, int i) -> uint8_t { return o < count ? q[(o * all_groups + g) * GROUP + i] : 0; };
            for (int s = 0; s < STEPS; s += 2)
                for (int o = 0; o < OUTPUTS; ++o)
                    for (int j = 0; j < 4; ++j)
                        bytes[(s / 2 * OUTPUTS + o) * 4 + j] = static_cast<uint8_t>(at(o, 4 * s + j) | at(o, 4 * s + 4 + j) << 4);
        }
    }

    template <int R>
    [[gnu::noinline]] static void tile(const char* rows, int64_t stride, int64_t I, const void* block, Floats (*y)[VECTORS]) {
        Floats acc[R][VECTORS] = {};
        const int64_t count = groups(I);
        for (int64_t g = 0; g < count; ++g) {
            const char* from = static_cast<const char*>(block) + g * GROUP_BYTES;
            const uint16_t* factors = reinterpret_cast<const uint16_t*>(from);
            const char* row = rows + g * (8 + GROUP);
            Ints ints[R][VECTORS];
            dots<R>(row, stride, from + OUTPUTS * 4, ints);
            for (int v = 0; v < VECTORS; ++v) {
                const Floats d = from_halves(factors + v * LANES), m = from_halves(factors + OUTPUTS + v * LANES);
                for (int r = 0; r < R; ++r) {
                    float scale, weighted;
                    std::memcpy(&scale, row + r * stride, 4);
                    std::memcpy(&weighted, row + r * stride + 4, 4);
                    acc[r][v] = multiply_add(to_floats(ints[r][v]) * all(scale), d, multiply_add(all(weighted), m, acc[r][v]));
                }
            }
        }
        for (int r = 0; r < R; ++r)
            for (int v = 0; v < VECTORS; ++v) y[r][v] = acc[r][v];
    }

    // One group's whole-number products of R rows and OUTPUTS outputs.
    template <int R>
    static inline void dots(const char* row, int64_t stride, const char* bytes, Ints (*ints)[VECTORS]) {
#ifdef __AVX2__
        const __m256i low = _mm256_set1_epi8(15), ones = _mm256_set1_epi16(1);
        __m256i sums[R][VECTORS];
        if (R <= 2)
            for (int64_t i = 0; i < GROUP_BYTES; i += 64) __builtin_prefetch(bytes + i + AHEAD);
        for (int s = 0; s < STEPS; s += 2) {
            __m256i w[VECTORS];
            for (int v = 0; v < VECTORS; ++v)
                w[v] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bytes + (s / 2 * OUTPUTS + v * LANES) * 4));
            for (int r = 0; r < R; ++r) {
                int32_t four;
                std::memcpy(&four, row + r * stride + 8 + 4 * s, 4);
                const __m256i x = _mm256_set1_epi32(four);
                for (int v = 0; v < VECTORS; ++v) {  // at most 8 * 2 * 15 * 127 = 30480 in the end: 16 bits hold it
                    const __m256i part = _mm256_maddubs_epi16(_mm256_and_si256(w[v], low), x);
                    sums[r][v] = s ? _mm256_add_epi16(sums[r][v], part) : part;
                }
            }
            for (int v = 0; v < VECTORS; ++v) w[v] = _mm256_and_si256(_mm256_srli_epi16(w[v], 4), low);
            for (int r = 0; r < R; ++r) {
                int32_t four;
                std::memcpy(&four, row + r * stride + 12 + 4 * s, 4);
                const __m256i x = _mm256_set1_epi32(four);
                for (int v = 0; v < VECTORS; ++v)
                    sums[r][v] = _mm256_add_epi16(sums[r][v], _mm256_maddubs_epi16(w[v], x));
            }
        }
        for (int r = 0; r < R; ++r)
            for (int v = 0; v < VECTORS; ++v) ints[r][v] = (Ints)_mm256_madd_epi16(sums[r][v], ones);
#else
        for (int r = 0; r < R; ++r)
            for (int v = 0; v < VECTORS; ++v) {
                ints[r][v] = Ints{};
                for (int s = 0; s < STEPS; ++s)
                    for (int o = 0; o < LANES; ++o)
                        for (int j = 0; j < 4; ++j) {
                            const uint8_t pair = static_cast<uint8_t>(bytes[(s / 2 * OUTPUTS + v * LANES + o) * 4 + j]);
                            const int8_t x = static_cast<int8_t>(row[r * stride + 8 + 4 * s + j]);
                            ints[r][v][o] += (s % 2 ? pair >> 4 : pair & 15) * x;
                        }
            }
#endif
    }
};

// A packed weight [out, in]. Mirrored in layout by ops/native/structs.py.
struct Product {
    const char* packed;
    const float* bias;  // [out] or null
    int64_t in, out;
    int32_t format;

    int64_t blocks() const { return (out + OUTPUTS - 1) / OUTPUTS; }
};

inline int64_t block_bytes(int32_t format, int64_t in) {
    const int64_t bytes = format == FLOAT32    ? Float32::block_bytes(in)
                          : format == BFLOAT16 ? BFloat16::block_bytes(in)
                          : format == INT8     ? Int8::block_bytes(in)
                                               : Int4::block_bytes(in);
    return round_up(bytes, 64);
}

inline int64_t row_bytes(int32_t format, int64_t in) {
    return format == INT8 ? Int8::row_bytes(in) : format == INT4 ? Int4::row_bytes(in) : Float32::row_bytes(in);
}

inline void prepare(int32_t format, const float* x, int64_t in, void* row) {
    format == INT8 ? Int8::prepare(x, in, row) : format == INT4 ? Int4::prepare(x, in, row) : Float32::prepare(x, in, row);
}

template <int R>
inline void tile(int32_t format, const char* rows, int64_t stride, int64_t I, const void* block, Floats (*y)[VECTORS]) {
    switch (format) {
        case FLOAT32: return float_tile<Float32, R>(rows, stride, I, block, y);
        case BFLOAT16: return float_tile<BFloat16, R>(rows, stride, I, block, y);
        case INT8: return Int8::tile<R>(rows, stride, I, block, y);
        default: return Int4::tile<R>(rows, stride, I, block, y);
    }
}

// One block's outputs for rows 0 .. n - 1, handed to `put(row, y)` as VECTORS vectors.
template <class Put>
inline void block_rows(const Product& p, int64_t block, const char* rows, int64_t n, Put put) {
    const int64_t stride = row_bytes(p.format, p.in);
    const char* at = p.packed + block * block_bytes(p.format, p.in);
    Floats y[TILE][VECTORS];
    for (int64_t r = 0; r < n;) {
        const char* from = rows + r * stride;
        const int count = n - r < TILE ? static_cast<int>(n - r) : TILE;
        switch (count) {
            case 1: tile<1>(p.format, from, stride, p.in, at, y); break;
            case 2: tile<2>(p.format, from, stride, p.in, at, y); break;
            case 3: tile<3>(p.format, from, stride, p.in, at, y); break;
            case 4: tile<4>(p.format, from, stride, p.in, at, y); break;
            case 5: tile<5>(p.format, from, stride, p.in, at, y); break;
            default: tile<6>(p.format, from, stride, p.in, at, y); break;
        }
        for (int i = 0; i < count; ++i) put(r + i, y[i]);
        r += count;
    }
}

}  // namespace trifolium
