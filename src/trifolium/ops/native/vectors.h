// Vectors of eight floats, and the few functions on them that every kernel shares.
//
// Everything here works lane by lane or adds lanes up in one written order, so a result can't depend on how many rows
// or outputs are computed beside it. Compiled with -ffp-contract=off: a fused multiply-add is one where it is written.

#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#ifdef __AVX2__
#include <immintrin.h>
#endif

namespace trifolium {

constexpr int LANES = 8;

typedef float Floats __attribute__((vector_size(4 * LANES)));
typedef int32_t Ints __attribute__((vector_size(4 * LANES)));
typedef uint32_t Words __attribute__((vector_size(4 * LANES)));
typedef uint16_t Halves __attribute__((vector_size(2 * LANES)));
typedef int16_t Shorts __attribute__((vector_size(4 * LANES)));  // sixteen
typedef int8_t Bytes __attribute__((vector_size(2 * LANES)));    // sixteen
typedef int16_t ShortsHalf __attribute__((vector_size(2 * LANES)));
typedef int8_t BytesHalf __attribute__((vector_size(LANES)));

template <class V, class T>
inline V load(const T* from) {
    V x;
    std::memcpy(&x, from, sizeof x);
    return x;
}

template <class V, class T>
inline void store(T* to, V x) {
    std::memcpy(to, &x, sizeof x);
}

inline Floats all(float x) { return Floats{x, x, x, x, x, x, x, x}; }

// a * b + c, in one rounding where the machine has it: always, or never.
inline Floats multiply_add(Floats a, Floats b, Floats c) {
#ifdef __FMA__
    return _mm256_fmadd_ps(a, b, c);
#else
    return a * b + c;
#endif
}

// acc + a_2i b_2i + a_2i+1 b_2i+1 in 32 bits, for the eight pairs.
inline Ints multiply_add_pairs(Shorts a, Shorts b, Ints acc) {
#if defined(__AVXVNNI__) || (defined(__AVX512VNNI__) && defined(__AVX512VL__))
    return (Ints)_mm256_dpwssd_epi32((__m256i)acc, (__m256i)a, (__m256i)b);
#elif defined(__AVX2__)
    return acc + (Ints)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#else
    for (int i = 0; i < LANES; ++i)
        acc[i] += static_cast<int32_t>(a[2 * i]) * b[2 * i] + static_cast<int32_t>(a[2 * i + 1]) * b[2 * i + 1];
    return acc;
#endif
}

inline Floats to_floats(Ints x) { return __builtin_convertvector(x, Floats); }

inline Floats maximum(Floats a, Floats b) { return a > b ? a : b; }

// The lanes added up, and the largest of them, in one fixed order.
inline float sum(Floats a) { return ((a[0] + a[4]) + (a[2] + a[6])) + ((a[1] + a[5]) + (a[3] + a[7])); }

// Eight vectors' sums, each in the same order: ((0 + 1) + (2 + 3)) + ((4 + 5) + (6 + 7)).
inline Floats sums(const Floats (&a)[LANES]) {
#ifdef __AVX__
    auto pairs = [](Floats x, Floats y) { return (Floats)_mm256_hadd_ps((__m256)x, (__m256)y); };
    const Floats low = pairs(pairs(a[0], a[1]), pairs(a[2], a[3])), high = pairs(pairs(a[4], a[5]), pairs(a[6], a[7]));
    return (Floats)_mm256_permute2f128_ps((__m256)low, (__m256)high, 0x20) +
           (Floats)_mm256_permute2f128_ps((__m256)low, (__m256)high, 0x31);
#else
    Floats y;
    for (int i = 0; i < LANES; ++i)
        y[i] = ((a[i][0] + a[i][1]) + (a[i][2] + a[i][3])) + ((a[i][4] + a[i][5]) + (a[i][6] + a[i][7]));
    return y;
#endif
}

inline float largest(Floats a) {
    a = maximum(a, __builtin_shuffle(a, Ints{4, 5, 6, 7, 0, 1, 2, 3}));
    a = maximum(a, __builtin_shuffle(a, Ints{2, 3, 0, 1, 6, 7, 4, 5}));
    return a[0] > a[1] ? a[0] : a[1];
}

inline Floats absolute(Floats x) { return (Floats)((Words)x & 0x7fffffffu); }

// e^x for x <= 88 to about two units in the last place; 0 below -87. Range reduction by powers of two, then a
// polynomial of degree six on [-ln 2 / 2, ln 2 / 2] (its Taylor coefficients, which are exact enough there).
inline Floats exponential(Floats x) {
    const Floats low = all(-87.0f);
    const auto tiny = x < low;
    x = tiny ? low : x;
    const Floats shift = all(12582912.0f);  // 1.5 * 2^23: adding it rounds to a whole number
    const Floats n = multiply_add(x, all(1.44269504f), shift) - shift;
    Floats r = multiply_add(n, all(-0.693359375f), x);
    r = multiply_add(n, all(2.12194440e-4f), r);
    Floats p = all(1.0f / 720);
    p = multiply_add(p, r, all(1.0f / 120));
    p = multiply_add(p, r, all(1.0f / 24));
    p = multiply_add(p, r, all(1.0f / 6));
    p = multiply_add(p, r, all(0.5f));
    p = multiply_add(p, r, all(1.0f));
    p = multiply_add(p, r, all(1.0f));
    const Ints power = (__builtin_convertvector(n, Ints) + 127) << 23;
    const Floats y = p * (Floats)power;
    return tiny ? all(0.0f) : y;
}

inline Floats silu(Floats x) {
    const Floats y = x < all(-88.0f) ? all(88.0f) : -x;  // beyond, e^-x overflows; x e^x is nothing there
    return x / (all(1.0f) + exponential(y));
}

inline float half_to_float(uint16_t h) {
    const uint32_t sign = (h & 0x8000u) << 16, exponent = (h >> 10) & 31u, fraction = h & 1023u;
    float y;
    if (exponent == 0) {
        y = std::ldexp(static_cast<float>(fraction), -24);
        return sign ? -y : y;
    }
    const uint32_t bits = sign | ((exponent == 31 ? 255u : exponent + 112u) << 23) | (fraction << 13);
    std::memcpy(&y, &bits, sizeof y);
    return y;
}

// Eight halves as floats.
inline Floats from_halves(const uint16_t* from) {
#ifdef __F16C__
    return (Floats)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
#else
    Floats y;
    for (int i = 0; i < LANES; ++i) y[i] = half_to_float(from[i]);
    return y;
#endif
}

}  // namespace trifolium
