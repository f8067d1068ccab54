// Gamma functions of vectors of positive numbers, by Stirling's formula:
//
//   log Gamma(a) = (a - 1/2) log a - a + log(2 pi) / 2 + delta(a),   delta(a) = 1/(12 a) - 1/(360 a^3) + ...
//
// The series has all digits from 10 on. Smaller numbers are raised by Gamma(a + 1) = a Gamma(a). The plain forms are
// `numerics/gammas.py`.
#pragma once
#include "vec.h"

namespace {

using Reals = V<double>;

constexpr double FROM = 10, HALF_LOG_2_PI = 0.9189385332046727;

INLINE bool some(Bits<double> which) {
    int64_t any = 0;
    for (int64_t i = 0; i < W<double>; i++) any |= which[i];
    return any != 0;
}

// A number from 10 on in place of a, and the product of the numbers from a up to it; NaN for negative numbers, of which
// those far below would be raised without end
struct Raised {
    Reals a, product;
};
INLINE Raised raised(Reals a) {
    const auto fits = a >= 0.0;
    Raised found = {fits ? a : splat(FROM), fits ? splat(1.0) : splat(std::numeric_limits<double>::quiet_NaN())};
    for (double least = -largest<double>(-found.a); least < FROM; least += 1) {
        found.product *= found.a < FROM ? found.a : splat(1.0);
        found.a += found.a < FROM ? splat(1.0) : Reals{};
    }
    return found;
}

INLINE Reals stirling_rest(Reals a) {
    const Reals inverse = 1.0 / a, s = inverse * inverse;
    constexpr double LATER[] = {-691.0 / 360360, 1.0 / 1188, -1.0 / 1680, 1.0 / 1260, -1.0 / 360, 1.0 / 12};
    Reals series = splat(1.0 / 156);
    for (double coefficient : LATER) series = series * s + coefficient;
    return inverse * series;
}

INLINE Reals log_gamma(Reals a) {
    const Raised at = raised(a);
    return (at.a - 0.5) * log<double>(at.a) - at.a + HALF_LOG_2_PI + stirling_rest(at.a) - log<double>(at.product);
}
inline double log_gamma(double a) { return log_gamma(splat(a))[0]; }

// log(1 + x), x > -1: the rounding of 1 + x is undone by the ratio
INLINE Reals log_one_more(Reals x) {
    const Reals u = 1.0 + x, less = u - 1.0;
    return less == 0.0 ? x : log<double>(u) * (x / (less == 0.0 ? splat(1.0) : less));
}

// log Gamma(a + x) - log Gamma(a) for x >= 0, without cancellation
INLINE Reals log_rise(Reals a, Reals x) {
    const Raised from = raised(a), to = raised(a + x);
    const Reals gap = to.a - from.a;
    const Reals rise = gap * log<double>(to.a) + (from.a - 0.5) * log_one_more(gap / from.a) - gap;
    return rise + (stirling_rest(to.a) - stirling_rest(from.a)) + log<double>(from.product / to.product);
}

// The derivative of delta
INLINE Reals stirling_slope(Reals a) {
    const Reals s = 1.0 / (a * a);
    constexpr double LATER[] = {-1.0 / 12, 691.0 / 32760, -1.0 / 132, 1.0 / 240, -1.0 / 252, 1.0 / 120, -1.0 / 12};
    Reals series = splat(3617.0 / 8160);
    for (double coefficient : LATER) series = series * s + coefficient;
    return s * series;
}

// The derivative of log Gamma; NaN at numbers that are not positive
INLINE Reals digamma(Reals x) {
    const auto positive = x > 0.0;
    Reals a = positive ? x : splat(FROM), raised{};
    for (double least = -largest<double>(-a); least < FROM; least += 1) {
        raised += a < FROM ? 1.0 / a : Reals{};
        a += a < FROM ? splat(1.0) : Reals{};
    }
    const Reals found = log<double>(a) - 0.5 / a + stirling_slope(a) - raised;
    return positive ? found : splat(std::numeric_limits<double>::quiet_NaN());
}
inline double digamma(double x) { return digamma(splat(x))[0]; }

// E[x^{-1/2}] and E[1/x] of x ~ Gamma(a, 1); about 1 / LEAST where they do not exist
constexpr double LEAST_OF_MOMENTS = 1e-200;
INLINE Reals inverse_root_moment(Reals a) {
    const Reals below = larger<double>(a - 0.5, splat(LEAST_OF_MOMENTS));
    const Reals rise = log_rise(below, splat(0.5));
    return 1.0 / (rise < 0.0 ? exp_not_positive<double>(rise) : 1.0 / exp_not_positive<double>(-rise));
}
INLINE Reals inverse_moment(Reals a) { return 1.0 / larger<double>(a - 1.0, splat(LEAST_OF_MOMENTS)); }

}  // namespace
