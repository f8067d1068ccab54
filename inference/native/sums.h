// Memory of one call, and the sums of logarithms of many factors.
#pragma once
#include <cmath>
#include <cstdlib>

#include "vec.h"

namespace {

INLINE int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// Memory of one call: tables of T, each at the start of a cache line. Says when it is made how many.
template <class T> class Room {
    void* whole;
    T* at;

public:
    Room(int64_t numbers, int64_t tables) : whole(std::malloc(numbers * sizeof(T) + 64 * (tables + 1))) { at = static_cast<T*>(whole); }
    ~Room() { std::free(whole); }
    Room(const Room&) = delete;
    Room& operator=(const Room&) = delete;
    bool full() const { return whole == nullptr; }  // the system had no memory
    T* take(int64_t numbers) {
        at = reinterpret_cast<T*>((reinterpret_cast<uintptr_t>(at) + 63) & ~uintptr_t(63));
        T* taken = at;
        at += numbers;
        return taken;
    }
};

// A sum of logarithms of many factors, with its rounding error (Neumaier 1974). Factors are multiplied as long as their
// product is far from the limits of numbers, so that few logarithms are taken.
struct Evidence {
    double sum = 0, rest = 0, factor = 1;

    INLINE void add(double x) {
        const double after = sum + x;
        rest += std::fabs(sum) >= std::fabs(x) ? (sum - after) + x : (x - after) + sum;
        sum = after;
    }
    INLINE void gain(double log_factor, double mass) {
        add(log_factor);
        times(mass);
    }
    INLINE void times(double mass) {
        factor *= mass;
        if (!(factor > 1e-150 && factor < 1e150)) {
            add(std::log(factor));
            factor = 1;
        }
    }
    double value() const { return sum + (rest + std::log(factor)); }
};

}  // namespace
