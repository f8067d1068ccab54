// Vectors of double from numbers of either size, and numbers joined over the lanes of a vector.
#pragma once
#include "sums.h"

#define APART __attribute__((noinline))  // compiled once, not where it is called

namespace {

// Numbers of either size as vectors of double
typedef float HalfVector __attribute__((vector_size(VECTOR_BYTES / 2)));
typedef float HalfAnywhere __attribute__((vector_size(VECTOR_BYTES / 2), aligned(4), may_alias));
INLINE V<double> load_wide(const double* p) { return load(p); }
INLINE V<double> load_wide(const float* p) {
    return __builtin_convertvector((HalfVector) * reinterpret_cast<const HalfAnywhere*>(p), V<double>);
}
INLINE void store_narrow(double* p, V<double> x) { store(p, x); }
INLINE void store_narrow(float* p, V<double> x) { *reinterpret_cast<HalfAnywhere*>(p) = __builtin_convertvector(x, HalfVector); }
template <class T> INLINE void store_narrow(T* p, V<double> x, int64_t n) {
    if (n >= W<double>) return store_narrow(p, x);
    for (int64_t j = 0; j < n; j++) p[j] = T(x[j]);
}

// Lanes i and i ^ n exchanged; numbers joined over each group of so many lanes, with the result in all of them
#ifdef __clang__
#define LANES(...) __builtin_shufflevector(x, x, __VA_ARGS__)
#else
#define LANES(...) __builtin_shuffle(x, Bits<T>{__VA_ARGS__})
#endif
template <class T, int n> INLINE V<T> exchanged(V<T> x) {
    if constexpr (W<T> == 2) return LANES(0 ^ n, 1 ^ n);
    else if constexpr (W<T> == 4) return LANES(0 ^ n, 1 ^ n, 2 ^ n, 3 ^ n);
    else if constexpr (W<T> == 8) return LANES(0 ^ n, 1 ^ n, 2 ^ n, 3 ^ n, 4 ^ n, 5 ^ n, 6 ^ n, 7 ^ n);
    else
        return LANES(0 ^ n, 1 ^ n, 2 ^ n, 3 ^ n, 4 ^ n, 5 ^ n, 6 ^ n, 7 ^ n, 8 ^ n, 9 ^ n, 10 ^ n, 11 ^ n, 12 ^ n, 13 ^ n, 14 ^ n,
                     15 ^ n);
}
#undef LANES
template <class T, int lanes = W<T>, class Join> INLINE V<T> everywhere(V<T> x, Join join) {
    if constexpr (lanes > 8) x = join(x, exchanged<T, 8>(x));
    if constexpr (lanes > 4) x = join(x, exchanged<T, 4>(x));
    if constexpr (lanes > 2) x = join(x, exchanged<T, 2>(x));
    if constexpr (lanes > 1) x = join(x, exchanged<T, 1>(x));
    return x;
}
INLINE V<double> all_of(V<double> x) { return everywhere<double>(x, [](V<double> x, V<double> y) { return x + y; }); }
template <class T> INLINE T sum_of(V<T> x) { return all_of(x)[0]; }
template <class T> INLINE V<T> smaller(V<T> x, V<T> y) { return x < y ? x : y; }

// x / y, rounded as a division is, from 1 / y: a state that is certain has probability 1.
INLINE V<double> quotient(V<double> x, double y, double inverse) {
#ifdef __FMA__
    const V<double> near = x * inverse;
    return near + (x - near * y) * inverse;
#else
    return (void)inverse, x / y;
#endif
}

}  // namespace
