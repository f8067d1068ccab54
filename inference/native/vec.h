// Vectors of one register, and elementary functions of them.
//
// A `V<T>` holds W<T> numbers. The width is that of the level of instructions that the file is compiled for, so that a
// recursion is written once for every processor. Arithmetic is the compiler's, by the vector extensions of GCC and Clang.
//
//   exp(x) for x <= 0:  x = n ln 2 + r, |r| <= ln 2 / 2;  exp(x) - 1 = (2^n - 1) + 2^n (exp(r) - 1), and exp(r) - 1 is
//   its Taylor polynomial. Adding 1.5 2^m, for m bits of a mantissa, rounds x / ln 2 to n; 2^n is made of its bits.
//   log(x):  x = 2^n m, sqrt(1/2) <= m < sqrt(2);  log m = 2 (s + s^3 / 3 + s^5 / 5 + ...) with s = (m - 1) / (m + 1).
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#ifndef VECTOR_BYTES
#if defined(__AVX512F__)
#define VECTOR_BYTES 64
#elif defined(__AVX2__)
#define VECTOR_BYTES 32
#else
#define VECTOR_BYTES 16
#endif
#endif
#define INLINE inline __attribute__((always_inline))

namespace {

template <class T> struct Vector;
template <> struct Vector<double> {
    typedef double Of __attribute__((vector_size(VECTOR_BYTES)));
    typedef int64_t Int;
    typedef Int Bits __attribute__((vector_size(VECTOR_BYTES)));
    typedef double Anywhere __attribute__((vector_size(VECTOR_BYTES), aligned(8), may_alias));
};
template <> struct Vector<float> {
    typedef float Of __attribute__((vector_size(VECTOR_BYTES)));
    typedef int32_t Int;
    typedef Int Bits __attribute__((vector_size(VECTOR_BYTES)));
    typedef float Anywhere __attribute__((vector_size(VECTOR_BYTES), aligned(4), may_alias));
};
template <class T> using V = typename Vector<T>::Of;
template <class T> using Bits = typename Vector<T>::Bits;
template <class T> constexpr int64_t W = VECTOR_BYTES / sizeof(T);

template <class T> INLINE V<T> load(const T* p) { return *reinterpret_cast<const typename Vector<T>::Anywhere*>(p); }
template <class T> INLINE void store(T* p, V<T> x) { *reinterpret_cast<typename Vector<T>::Anywhere*>(p) = x; }
template <class T> INLINE V<T> splat(T x) { return x - V<T>{}; }

// The first n numbers of a vector, from memory and back; the others are 0, and are not written.
#if defined(__AVX2__) && VECTOR_BYTES == 32
typedef long long Longs __attribute__((vector_size(32)));
template <class T> INLINE Bits<T> first_places(int64_t n) {
    Bits<T> place;
    for (int64_t i = 0; i < W<T>; i++) place[i] = i;
    return place < Bits<T>{} + typename Vector<T>::Int(n);
}
INLINE V<double> load_first(const double* p, int64_t n) {
    return __builtin_ia32_maskloadpd256(reinterpret_cast<const V<double>*>(p), (Longs)first_places<double>(n));
}
INLINE V<float> load_first(const float* p, int64_t n) {
    return __builtin_ia32_maskloadps256(reinterpret_cast<const V<float>*>(p), first_places<float>(n));
}
INLINE void store_first(double* p, V<double> x, int64_t n) {
    __builtin_ia32_maskstorepd256(reinterpret_cast<V<double>*>(p), (Longs)first_places<double>(n), x);
}
INLINE void store_first(float* p, V<float> x, int64_t n) {
    __builtin_ia32_maskstoreps256(reinterpret_cast<V<float>*>(p), first_places<float>(n), x);
}
#else
template <class T> INLINE V<T> load_first(const T* p, int64_t n) {  // one by one: vectors of 16 bytes have at most four
    V<T> x{};
    if (n > 0) x[0] = p[0];
    if (n > 1) x[1] = p[1];
    if constexpr (W<T> > 2) {
        if (n > 2) x[2] = p[2];
    }
    return x;
}
template <class T> INLINE void store_first(T* p, V<T> x, int64_t n) {
    for (int64_t j = 0; j < W<T> - 1; j++)
        if (j < n) p[j] = x[j];
}
#endif

// The same of the last, perhaps partly filled vector of a row: n numbers of it
template <class T> INLINE V<T> load_some(const T* p, int64_t n) { return n >= W<T> ? load(p) : load_first(p, n); }
template <class T> INLINE void store_some(T* p, V<T> x, int64_t n) { n >= W<T> ? store(p, x) : store_first(p, x, n); }

template <class T> INLINE V<T> larger(V<T> x, V<T> y) { return x > y ? x : y; }

// The sum and the largest of the numbers of a vector, always in the same order
template <class T> INLINE T total(V<T> x) {
    T s[W<T>];
    store(s, x);
    for (int64_t n = W<T> / 2; n; n /= 2)
        for (int64_t j = 0; j < n; j++) s[j] += s[j + n];
    return s[0];
}
template <class T> INLINE T largest(V<T> x) {
    T s[W<T>];
    store(s, x);
    for (int64_t n = W<T> / 2; n; n /= 2)
        for (int64_t j = 0; j < n; j++) s[j] = s[j] > s[j + n] ? s[j] : s[j + n];
    return s[0];
}

// Asks for the memory at p ahead of its turn; p may lie outside of a table, since nothing is read.
template <class T> INLINE void prefetch(const T* p) { __builtin_prefetch(p); }

template <class T> struct Format;
template <> struct Format<double> {
    static constexpr double shifter = 0x1.8p52, lowest = -708, ln2_high = 0x1.62e42fee00000p-1, ln2_low = 0x1.a39ef35793c76p-33;
    static constexpr int mantissa = 52, degree = 13, log_terms = 12;
    static constexpr int64_t bias = 1023;
};
template <> struct Format<float> {
    static constexpr float shifter = 0x1.8p23f, lowest = -87, ln2_high = 0.693359375f, ln2_low = -2.12194440e-4f;
    static constexpr int mantissa = 23, degree = 7, log_terms = 6;
    static constexpr int32_t bias = 127;
};

constexpr double INVERSE_FACTORIAL[] = {1.0, 1.0, 1.0 / 2, 1.0 / 6, 1.0 / 24, 1.0 / 120, 1.0 / 720, 1.0 / 5040, 1.0 / 40320, 1.0 / 362880,
                                        1.0 / 3628800, 1.0 / 39916800, 1.0 / 479001600, 1.0 / 6227020800};

// exp(x), or exp(x) - 1, for x <= 0 or NaN, to one unit in the last place; below the least normal number it is 0. Where x is
// never so low, `underflows` is false.
template <class T, bool less_one, bool underflows = true> INLINE V<T> exponential(V<T> x) {
    using F = Format<T>;
    V<T> y = x;
    if constexpr (underflows) y = x < F::lowest ? splat(F::lowest) : x;
    const V<T> shifted = y * T(1.4426950408889634) + F::shifter, n = shifted - F::shifter;
    const V<T> r = (y - n * F::ln2_high) - n * F::ln2_low;
    V<T> series = splat(T(INVERSE_FACTORIAL[F::degree]));
#pragma GCC unroll 16
    for (int k = F::degree - 1; k > 1; k--) series = series * r + T(INVERSE_FACTORIAL[k]);
    const Bits<T> exponent = ((Bits<T>)shifted + F::bias) << F::mantissa;
    V<T> power = (V<T>)exponent;
    if constexpr (underflows) power = x < F::lowest ? V<T>{} : power;
    if constexpr (less_one) return power * (r * r * series + r) + (power - T(1));
    return power * ((series * r + T(1)) * r + T(1));
}
template <class T> INLINE V<T> exp_not_positive(V<T> x) { return exponential<T, false>(x); }
template <class T> INLINE T exp_not_positive(T x) { return exponential<T, false>(splat(x))[0]; }

// log(x) to one unit in the last place: -inf at 0, NaN below it
template <class T> INLINE V<T> log(V<T> x) {
    using F = Format<T>;
    constexpr T infinity = std::numeric_limits<T>::infinity();
    const auto tiny = x < std::numeric_limits<T>::min();
    const Bits<T> bits = (Bits<T>)(tiny ? x * T(int64_t(1) << (F::mantissa + 2)) : x), ones = (Bits<T>)splat(T(1));
    const V<T> m = (V<T>)((bits & ((Bits<T>{} + 1 << F::mantissa) - 1)) | ones);
    const auto above = m >= T(1.4142135623730951);
    const V<T> less_one = above ? m * T(0.5) - T(1) : m - T(1);
    // exponents as numbers: their bits are added to those of a number without a fraction
    const V<T> shifted = (V<T>)(((bits >> F::mantissa) - F::bias) + (Bits<T>)splat(F::shifter)) - F::shifter;
    const V<T> n = shifted + (above ? splat(T(1)) : V<T>{}) - (tiny ? splat(T(F::mantissa + 2)) : V<T>{});
    const V<T> s = less_one / (less_one + T(2)), square = s * s;
    V<T> series = splat(T(2) / (2 * F::log_terms + 1));
#pragma GCC unroll 16
    for (int k = F::log_terms - 1; k > 0; k--) series = series * square + T(2) / (2 * k + 1);
    const V<T> small = n * F::ln2_low + s * square * series;
    const V<T> found = n * F::ln2_high + (small + (s + s));
    const V<T> of_rest = x == T(0) ? splat(-infinity) : x == infinity ? x : splat(std::numeric_limits<T>::quiet_NaN());
    return x > T(0) && x < infinity ? found : of_rest;
}

template <class T> INLINE V<T> less_magnitude(V<T> x) { return x >= T(0) ? -x : x; }

// sigmoid(x) and sigmoid(-x), both accurate: neither is computed as one minus the other
template <class T> struct Sigmoids { V<T> of, of_less; };
template <class T> INLINE Sigmoids<T> sigmoids(V<T> x) {
    const V<T> e = exp_not_positive<T>(less_magnitude<T>(x)), large = T(1) / (T(1) + e), small = e * large;
    return {x >= T(0) ? large : small, x >= T(0) ? small : large};
}

// tanh(x) = -m / (2 + m) with m = exp(-2|x|) - 1, with the sign of x
template <class T> INLINE V<T> tanh(V<T> x) {
    const V<T> less = less_magnitude<T>(x), m = exponential<T, true>(less + less), y = m / (m + T(2));
    return x >= T(0) ? -y : y;
}

}  // namespace
