// Posteriors of the parameters of segments, of W beginnings side by side.
//
// A plate is one parameter with its conjugate prior. Its numbers lie in rows, each with a number for each beginning:
//
//   NORMAL    location m, rate b, log b, number of observations n; kappa = kappa0 + n and shape a = a0 + n/2
//   GAMMA     shape, rate, log rate
//   SIMPLEX   K concentrations, their sum
//
// An observation x adds its statistics, and its log predictive density, log h excepted, to a gain. With Welford's
// recursion no large numbers are subtracted:
//
//   e = x - m,   m += e / (kappa + 1),   b' = b + e^2 kappa / (kappa + 1) / 2,
//   gain = log Gamma(a + 1/2) - log Gamma(a) - log((kappa + 1) / kappa) / 2 + a log b - (a + 1/2) log b'
//
// Functions of n are in tables by count. The plain forms are the families of `families/`.
#pragma once
#include "gammas.h"
#include "sums.h"

namespace {

enum Kind { NORMAL, GAMMA, SIMPLEX };
constexpr int64_t FEW = 8;  // observations in one, such as counts, up to which a rise of log Gamma is the log of a product
constexpr double INFINITE = std::numeric_limits<double>::infinity(), EPS = 2.3e-16;
constexpr double LARGEST = 1e150;  // of numbers whose squares are finite

// The parameters of one prior as Python gives them: x [N, T, plates, size], prior [N, plates, size]
struct Block {
    int64_t kind, plates, size, n_means, width;  // width: expectations of a plate
    const double *x, *prior;
    int64_t rows() const { return kind == NORMAL ? 4 : kind == GAMMA ? 3 : size + 1; }
};

struct Plate {
    int64_t kind, size, stride, n_means, out, row;  // statistics of step t are at x + t stride
    const double* x;
    double* prior;  // of its rows
    double kappa, shape, evidence;  // of NORMAL; log-normalizer of the prior, of the others
    double *constant, *rise, *first, *second;  // by n: log Gamma(a) - log(kappa) / 2 less that of the prior, its next step,
                                               // and digamma(a), or E[scale] / sqrt(b) and E[scale^2] / b
};

INLINE Reals of_counts(const double* table, Reals n) {
    Reals found;
    for (int64_t i = 0; i < W<double>; i++) found[i] = table[int64_t(n[i])];
    return found;
}

// The numbers of a prior, from its natural parameters
inline void read_prior(Plate& p, const double* eta) {
    if (p.kind == NORMAL) {
        p.kappa = -2 * eta[1], p.shape = eta[2];
        p.prior[0] = eta[0] / p.kappa;
        p.prior[1] = -eta[3] - eta[0] * p.prior[0] / 2;
        p.prior[2] = std::log(p.prior[1]), p.prior[3] = 0;
    } else if (p.kind == GAMMA) {
        p.prior[0] = eta[0], p.prior[1] = -eta[1], p.prior[2] = std::log(-eta[1]);
        p.evidence = log_gamma(eta[0]) - eta[0] * p.prior[2];
    } else {
        p.prior[p.size] = 0;
        p.evidence = 0;
        for (int64_t k = 0; k < p.size; k++) p.prior[p.size] += p.prior[k] = eta[k], p.evidence += log_gamma(eta[k]);
        p.evidence -= log_gamma(p.prior[p.size]);
    }
}

// Entries from..to of the tables by count, and at most W more; `moments`: see `add_expected`
inline void count(const Plate& p, bool moments, int64_t from, int64_t to) {
    if (p.kind != NORMAL) return;
    Reals ramp;
    for (int64_t i = 0; i < W<double>; i++) ramp[i] = i;
    for (int64_t n = from; n < to; n += W<double>) {
        const Reals counts = ramp + double(n), a = p.shape + 0.5 * counts;
        store<double>(p.constant + n, log_rise(splat(p.shape), 0.5 * counts) - 0.5 * log<double>(1.0 + counts / p.kappa));
        store<double>(p.rise + n, log_rise(a, splat(0.5)) - 0.5 * log_one_more(1.0 / (p.kappa + counts)));
        if (!p.first) continue;
        store<double>(p.first + n, moments ? inverse_root_moment(a) : digamma(a));
        if (moments) store<double>(p.second + n, inverse_moment(a));
    }
}

// Add log Gamma(a + more) - log Gamma(a) to the gains, for the numbers a of a row
inline void add_rise(const double* row, double more, int64_t first, int64_t end, double* gain) {
    const bool few = more == std::floor(more) && 0 < more && more <= FEW;
    for (int64_t r = first; r < end; r += W<double>) {
        Reals a = load(row + r), rise = a;
        if (few) {
            for (int64_t i = 1; i < int64_t(more); i++) rise *= a += 1.0;
            rise = log<double>(rise);
        } else {
            rise = log_rise(a, splat(more));
        }
        store<double>(gain + r, load(gain + r) + rise);
    }
}

inline void observe_normal(const Plate& p, double x, double* state, int64_t capacity, int64_t first, int64_t end,
                           double* gain) {
    double *locs = state, *rates = state + capacity, *logs = rates + capacity, *counts = logs + capacity;
    for (int64_t r = first; r < end; r += W<double>) {
        const Reals n = load(counts + r), old = load(logs + r), loc = load(locs + r);
        const Reals kappa = p.kappa + n, a = p.shape + 0.5 * n, error = x - loc, share = error / (kappa + 1.0);
        const Reals rate = load(rates + r) + 0.5 * error * kappa * share, now = log<double>(rate);
        store<double>(gain + r, load(gain + r) + of_counts(p.rise, n) + a * (old - now) - 0.5 * now);
        store<double>(locs + r, loc + share);
        store<double>(rates + r, rate);
        store<double>(logs + r, now);
        store<double>(counts + r, n + 1.0);
    }
}

inline void observe_gamma(double more, double exposure, double* state, int64_t capacity, int64_t first, int64_t end,
                          double* gain) {
    double *shapes = state, *rates = state + capacity, *logs = rates + capacity;
    if (more != 0) add_rise(shapes, more, first, end, gain);
    for (int64_t r = first; r < end; r += W<double>) {
        const Reals shape = load(shapes + r), old = load(logs + r), rate = load(rates + r) + exposure;
        const Reals now = exposure != 0 ? log<double>(rate) : old;
        store<double>(gain + r, load(gain + r) + shape * (old - now) - more * now);
        store<double>(shapes + r, shape + more);
        store<double>(rates + r, rate);
        store<double>(logs + r, now);
    }
}

// A few observations in one have the log of a ratio of products
inline void observe_simplex(const double* x, int64_t size, double* state, int64_t capacity, int64_t first, int64_t end,
                            double* gain) {
    double whole = 0;
    bool few = true;
    for (int64_t k = 0; k < size; k++) whole += x[k], few &= x[k] == std::floor(x[k]) && x[k] >= 0;
    few &= whole <= FEW;
    for (int64_t r = first; r < end; r += W<double>) {
        Reals ratio = splat(1.0), rise{};
        for (int64_t k = 0; k <= size && few; k++) {
            Reals a = load(state + k * capacity + r), product = splat(1.0);
            for (int64_t i = 0; i < int64_t(k < size ? x[k] : whole); i++, a += 1.0) product *= a;
            ratio = k < size ? ratio * product : ratio / product;
        }
        const bool exact = few && !some(!(ratio > 1e-290) | !(ratio < 1e290));
        for (int64_t k = 0; k <= size; k++) {
            const double more = k < size ? x[k] : whole;
            const Reals a = load(state + k * capacity + r);
            if (!exact && more != 0) rise += (k < size ? 1.0 : -1.0) * log_rise(a, splat(more));
            store<double>(state + k * capacity + r, a + more);
        }
        store<double>(gain + r, load(gain + r) + (exact ? log<double>(ratio) : rise));
    }
}

// Add the statistics of step t to beginnings first..end, whose rows are `capacity` numbers apart
inline void observe(const Plate& p, int64_t t, double* state, int64_t capacity, int64_t first, int64_t end, double* gain) {
    const double* x = p.x + t * p.stride;
    state += p.row * capacity;
    if (p.kind == NORMAL) {
        if (x[1] != 0) observe_normal(p, x[0], state, capacity, first, end, gain);
    } else if (p.kind == GAMMA) {
        observe_gamma(x[0], -x[1], state, capacity, first, end, gain);
    } else {
        observe_simplex(x, p.size, state, capacity, first, end, gain);
    }
}

INLINE void add(Reals share, Reals value, Reals& out) { out += share > 0.0 ? share * value : Reals{}; }

// The means of the parameters, then their mean squares; `root` and `inverse`: E[scale] / sqrt(b), E[scale^2] / b
INLINE void add_normal(Reals loc, Reals rate, Reals kappa, Reals root, Reals inverse, Reals share, Reals* out) {
    Reals roots;
    for (int64_t i = 0; i < W<double>; i++) roots[i] = std::sqrt(rate[i]);
    add(share, loc, out[0]);
    add(share, roots * root, out[1]);
    add(share, loc * loc + rate * inverse / kappa, out[2]);
    add(share, rate * inverse, out[3]);
}
INLINE void add_gamma(Reals shape, Reals rate, Reals share, Reals* out) {
    const Reals mean = shape / rate;
    add(share, mean, out[0]);
    add(share, mean * ((shape + 1.0) / rate), out[1]);
}
INLINE void add_share(Reals a, Reals whole, Reals share, Reals& first, Reals& second) {
    const Reals mean = a / whole;
    add(share, mean, first);
    add(share, mean * ((a + 1.0) / (whole + 1.0)), second);
}

inline void add_moments(const Plate& p, const double* state, int64_t capacity, Reals share, Reals* out) {
    const auto row = [&](int64_t k) { return load(state + k * capacity); };
    if (p.kind == NORMAL)
        add_normal(row(0), row(1), p.kappa + row(3), of_counts(p.first, row(3)), of_counts(p.second, row(3)), share, out);
    else if (p.kind == GAMMA)
        add_gamma(row(0), row(1), share, out);
    else
        for (int64_t k = 0; k < p.n_means; k++) add_share(row(k), row(p.size), share, out[k], out[p.n_means + k]);
}

// The expected statistics
inline void add_means(const Plate& p, const double* state, int64_t capacity, Reals share, Reals* out) {
    const auto row = [&](int64_t k) { return load(state + k * capacity); };
    if (p.kind == NORMAL) {
        const Reals loc = row(0), n = row(3), precision = (p.shape + 0.5 * n) / row(1);
        add(share, precision * loc, out[0]);
        add(share, precision * loc * loc + 1.0 / (p.kappa + n), out[1]);
        add(share, of_counts(p.first, n) - row(2), out[2]);
        add(share, precision, out[3]);
    } else if (p.kind == GAMMA) {
        add(share, digamma(row(0)) - row(2), out[0]);
        add(share, row(0) / row(1), out[1]);
    } else {
        const Reals whole = digamma(row(p.size));
        for (int64_t k = 0; k < p.size; k++) add(share, digamma(row(k)) - whole, out[k]);
    }
}

// The log of the greatest ratio of the posterior and the prior density; see `plain.Bound`
inline Reals normal_ratio(const Plate& p, const double* state, int64_t capacity) {
    const Reals n = load(state + 3 * capacity), rate = load(state + capacity), shape = 0.5 * n;
    const Reals gap = (load(state) - p.prior[0]) * (p.kappa + n) / n;  // of the mean of the observations
    const Reals between = 0.5 * p.kappa * n / (p.kappa + n) * gap * gap;
    const Reals within = rate - p.prior[1] - between - (8.0 + n) * EPS * rate;  // or more, whatever rounding has done
    const Reals evidence = of_counts(p.constant, n) - (p.shape + shape) * load(state + 2 * capacity);
    const Reals ratio = shape * (log<double>(shape / within) - 1.0) - evidence - p.shape * p.prior[2];
    return n == 0.0 ? Reals{} : within > 0.0 ? ratio : splat(INFINITE);
}

inline Reals gamma_ratio(const Plate& p, const double* state, int64_t capacity) {
    const Reals shape = load(state), more = shape - p.prior[0], exposure = load(state + capacity) - p.prior[1];
    const Reals of_counted = exposure > 0.0 ? more * log<double>(more / exposure) - more : splat(INFINITE);
    const Reals greatest = more > 0.0 ? of_counted : Reals{};
    return greatest - (log_gamma(shape) - shape * load(state + 2 * capacity) - p.evidence);
}

inline Reals simplex_ratio(const Plate& p, const double* state, int64_t capacity) {
    const Reals whole = load(state + p.size * capacity), added = whole - p.prior[p.size];
    Reals value = log_gamma(whole) + p.evidence;
    for (int64_t k = 0; k < p.size; k++) {
        const Reals a = load(state + k * capacity), more = a - p.prior[k];
        value += (more > 0.0 ? more * log<double>(more / added) : Reals{}) - log_gamma(a);
    }
    return value;
}

// The plates of one sequence
struct Plates {
    Plate* at;
    int64_t n, rows, outs;
    bool moments;
    double* prior;  // [rows]

    // The prior at a place
    INLINE void begin(double* state, int64_t capacity, int64_t r) const {
        for (int64_t k = 0; k < rows; k++) state[k * capacity + r] = prior[k];
    }
    INLINE void add_expected(const double* state, int64_t capacity, Reals share, Reals* out) const {
        for (const Plate* p = at; p < at + n; p++)
            (moments ? add_moments : add_means)(*p, state + p->row * capacity, capacity, share, out + p->out);
    }
    Reals log_ratio(const double* state, int64_t capacity) const {
        Reals sum{};
        for (const Plate* p = at; p < at + n; p++) {
            const auto of = p->kind == NORMAL ? normal_ratio : p->kind == GAMMA ? gamma_ratio : simplex_ratio;
            const Reals ratio = of(*p, state + p->row * capacity, capacity);
            sum += ratio <= 0.0 ? Reals{} : ratio;  // what is not a number leaves nothing out
        }
        return sum;
    }
};

// Whether all numbers are finite and each normal entry has one observation or none: of other tables the plain form is right
inline bool is_ordinary(const Block& b, int64_t N, int64_t T) {
    bool well = true;
    for (int64_t i = 0; i < N * b.plates * b.size; i++) well &= std::fabs(b.prior[i]) < LARGEST;
    for (int64_t i = 0; i < N * T * b.plates * b.size; i++) well &= std::fabs(b.x[i]) < LARGEST;
    for (int64_t i = 0; well && b.kind == NORMAL && i < N * T * b.plates; i++) {
        const double *x = b.x + 4 * i, square = x[0] * x[0];
        const bool one = x[1] == -0.5 && x[2] == 0.5 && std::fabs(x[3] + square / 2) <= 1e-12 * square;
        well = one || (x[1] == 0 && x[0] == 0 && x[2] == 0 && x[3] == 0);
    }
    return well;
}

}  // namespace
