// Polya-Gamma numbers, exact, by Devroye's method of alternating series; see `chains/switching_gaussian/polya_gamma.py`.
//
//   PG(1, c) = J / 4 with J ~ J*(1, |c| / 2), whose density is a sum of terms of alternating signs
//
// A proposal is a truncated inverse Gaussian number left of the cut, and an exponential one right of it. Partial sums of
// the density bound it from both sides in turn, and so accept or reject a proposal. Every row has a stream of its own.
#pragma once
#include <cmath>
#include <cstdint>

namespace {

constexpr double CUT = 0.64, PI = 3.14159265358979323846;
constexpr double FAR = 30;  // from here on no proposal is to the right of the cut, to rounding

// Numbers in (0, 1), by the SplitMix of Steele, Lea & Flood
struct Stream {
    uint64_t state;
    double uniform() {
        uint64_t bits = state += 0x9E3779B97F4A7C15;
        bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9;
        bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EB;
        bits ^= bits >> 31;
        return (double(bits >> 11) + 0.5) * 0x1p-53;
    }
    double exponential() { return -std::log(uniform()); }
    double normal() {
        const double radius = std::sqrt(2 * exponential());
        return radius * std::cos(2 * PI * uniform());
    }
};

// An inverse Gaussian number of mean 1 / z and shape 1, given that it is less than the cut
inline double left(double z, Stream& stream) {
    while (z < 1 / CUT) {
        const double a = stream.exponential(), b = stream.exponential();
        if (!(a * a <= 2 * b / CUT)) continue;
        const double x = CUT / ((1 + CUT * a) * (1 + CUT * a));
        if (stream.uniform() <= std::exp(-0.5 * z * z * x)) return x;
    }
    const double mean = 1 / z;
    for (;;) {
        const double normal = stream.normal(), y = mean * normal * normal;
        double x = mean / (1 + 0.5 * y + std::sqrt(y + 0.25 * y * y));
        if (stream.uniform() > mean / (mean + x)) x = mean * mean / x;
        if (x < CUT) return x;
    }
}

// The n-th term of the density of J*(1, 0)
inline double term(int64_t n, double x) {
    const double k = n + 0.5;
    if (x > CUT) return PI * k * std::exp(-0.5 * k * k * PI * PI * x);
    return PI * k * std::exp(1.5 * (std::log(2 / PI) - std::log(x)) - 2 * k * k / x);
}

// The probability of a proposal right of the cut, which has this rate there
inline double right(double z, double rate) {
    if (!(z < FAR)) return 0;
    const double root = std::sqrt(0.5 / CUT), tail = 0.5 * PI / rate * std::exp(-rate * CUT);
    const double below = 0.5 * std::erfc(-(CUT * z - 1) * root) + 0.5 * std::exp(2 * z) * std::erfc((CUT * z + 1) * root);
    return tail / (tail + 2 * std::exp(-z) * below);
}

inline bool accepted(double x, double uniform) {
    double total = term(0, x);
    const double bound = uniform * total;
    for (int64_t n = 1;; n += 2) {
        total -= term(n, x);
        if (bound <= total) return true;
        total += term(n + 1, x);
        if (bound > total) return false;
    }
}

inline double polya_gamma(double c, Stream& stream) {
    if (!std::isfinite(c)) return std::isnan(c) ? c : 0;
    const double z = 0.5 * std::fabs(c), rate = PI * PI / 8 + 0.5 * z * z, of_right = right(z, rate);
    for (;;) {
        double x;
        if (stream.uniform() < of_right) x = CUT + stream.exponential() / rate;
        else x = left(z, stream);
        if (accepted(x, stream.uniform())) return 0.25 * x;
    }
}

}  // namespace
