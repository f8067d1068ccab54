// Divergences from a prior, expected statistics and points of small tables of parameters, a plate at a time.
//
// Rows are natural parameters, or expected statistics, in double precision. With psi = digamma,
//
//   KL(q | p) = sum of gaps of log Gamma + gaps of rates + Mahalanobis terms of locations
//   gap of log Gamma   G(a0, a) = log Gamma(a0) - log Gamma(a) - (a0 - a) psi(a)
//   gap of rates       R(r0, r; s0, s) = s (r0 - r) / r - s0 log(r0 / r)
//
// Neither gap is negative, and like terms are combined first, so that a small one keeps its digits. The plain forms are
// `families/positive.py`, `families/normal.py`, `families/peak.py` and `families/numerics.py`.
#pragma once
#include "gammas.h"
#include "matrices.h"

namespace {

inline double rate_gap(double rate0, double rate, double shape0 = 1, double shape = 1) {
    const double ratio = rate0 / rate, excess = (rate0 - rate) / rate;
    return shape * excess - shape0 * (ratio < 0.5 ? std::log(ratio) : std::log1p(excess));
}

// Of large numbers, the gap of Stirling's formula and that of its rest, delta(a)
inline double gamma_gap(double a0, double a, double psi) {
    if (!(a0 >= FROM && a >= FROM)) return std::lgamma(a0) - std::lgamma(a) - (a0 - a) * psi;
    const Reals both = {a0, a}, rest = stirling_rest(both), slope = stirling_slope(both);
    return rest[0] - rest[1] - (a0 - a) * slope[1] - rate_gap(a0, a, a0 - 0.5, a - 0.5);
}

// A plate: natural parameters of it and of its prior, and its results
struct Plate {
    const double *eta, *eta0;
    int64_t width;
    double *divergence, *mean;
};

// Dirichlet, and Beta
inline void of_simplex(const Plate& p) {
    double total = 0, total0 = 0, gap = 0;
    for (int64_t k = 0; k < p.width; k++) total += p.eta[k], total0 += p.eta0[k];
    const double whole = digamma(total);
    for (int64_t k = 0; k < p.width; k += W<double>)
        store_some<double>(p.mean + k, digamma(load_some(p.eta + k, p.width - k)), p.width - k);
    for (int64_t k = 0; k < p.width; k++) {
        gap += gamma_gap(p.eta0[k], p.eta[k], p.mean[k]);
        p.mean[k] -= whole;
    }
    *p.divergence = gap - gamma_gap(total0, total, whole);
}

inline double gamma_divergence(double shape0, double rate0, double shape, double rate, double psi) {
    return gamma_gap(shape0, shape, psi) + rate_gap(rate0, rate, shape0, shape);
}

inline void of_gamma(const Plate& p) {
    const double shape = p.eta[0], rate = -p.eta[1], psi = digamma(shape);
    p.mean[0] = psi - std::log(rate);
    p.mean[1] = shape / rate;
    *p.divergence = gamma_divergence(p.eta0[0], -p.eta0[1], shape, rate, psi);
}

struct NormalGamma {
    double kappa, loc, shape, rate;
    explicit NormalGamma(const double* eta)
        : kappa(-2 * eta[1]), loc(eta[0] / kappa), shape(eta[2]), rate(-eta[3] - eta[0] * loc / 2) {}
};

inline void of_normal_gamma(const Plate& p) {
    const NormalGamma q(p.eta), prior(p.eta0);
    const double precision = q.shape / q.rate, shift = q.loc - prior.loc, psi = digamma(q.shape);
    p.mean[0] = precision * q.loc;
    p.mean[1] = precision * q.loc * q.loc + 1 / q.kappa;
    p.mean[2] = psi - std::log(q.rate);
    p.mean[3] = precision;
    const double of_loc = rate_gap(prior.kappa, q.kappa) / 2 + prior.kappa * precision * shift * shift / 2;
    *p.divergence = gamma_divergence(prior.shape, prior.rate, q.shape, q.rate, psi) + of_loc;
}

// The memory of a call for matrices of D rows
struct Square {
    int64_t dim;
    Matrix<double> chol, chol0, lower, inverse, ratio;  // ratio [D, D + 1]
    double *loc, *loc0;

    Square(Memory& memory, int64_t dim)
        : dim(dim), ratio(matrix(memory, dim, dim + 1)), loc(memory.take(dim)), loc0(memory.take(dim)) {
        for (Matrix<double>* of : {&chol, &chol0, &lower, &inverse}) *of = matrix(memory, dim, dim);
    }
};

// The location of a NormalWishart, and the lower factor of its inverse scale matrix; returns that one's log determinant.
inline double location_and_factor(const double* eta, int64_t dim, double* loc, Matrix<double> chol) {
    const double kappa = -2 * eta[dim], *rest = eta + dim + 2;
    for (int64_t i = 0; i < dim; i++) {
        loc[i] = eta[i] / kappa;
        for (int64_t j = 0; j <= i; j++) chol[i][j] = -(rest[i * dim + j] + rest[j * dim + i]) - eta[i] * loc[j];
    }
    return factor(chol);
}

// Expected statistics: E[L] loc, E[loc' L loc], E[log|L|], E[L] of a precision L with mean df V
inline void normal_wishart_mean(const Plate& p, const Square& m, double log_volume) {
    const double kappa = -2 * p.eta[m.dim], df = 2 * p.eta[m.dim + 1];
    double second = m.dim / kappa, *precision = p.mean + m.dim + 2;
    for (int64_t i = 0; i < m.dim; i++) {
        double first = 0;
        for (int64_t j = 0; j < m.dim; j++) {
            precision[i * m.dim + j] = df * m.inverse[i][j];
            first += precision[i * m.dim + j] * m.loc[j];
        }
        p.mean[i] = first;
        second += first * m.loc[i];
    }
    p.mean[m.dim] = second;
    p.mean[m.dim + 1] = log_volume;
}

// With P = C C' and P0 = C0 C0' the inverse scale matrices, and C^-1 C0 the ratio of their factors. False: one has no factor.
inline bool of_normal_wishart(const Plate& p, Square& m) {
    const int64_t D = m.dim;
    const double log_det = location_and_factor(p.eta, D, m.loc, m.chol);
    const double log_det0 = location_and_factor(p.eta0, D, m.loc0, m.chol0);
    if (!(std::isfinite(log_det) && std::isfinite(log_det0))) return false;
    const double kappa = -2 * p.eta[D], kappa0 = -2 * p.eta0[D], df = 2 * p.eta[D + 1], df0 = 2 * p.eta0[D + 1];
    for (int64_t i = 0; i < D; i++) {
        for (int64_t j = 0; j < D; j++) m.ratio[i][j] = j < i ? m.chol0[i][j] : j == i ? 1 / m.chol0[i][i] : 0;
        m.ratio[i][D] = m.loc[i] - m.loc0[i];
    }
    solve(m.chol, m.ratio);
    double squares = 0, shift = 0, gap = 0, log_volume = D * std::log(2.0) - log_det, *psi = m.loc0;
    Reals halves;
    for (int64_t i = 0; i < W<double>; i++) halves[i] = 0.5 * double(i);
    for (int64_t i = 0; i < D; i += W<double>) store_some<double>(psi + i, digamma(0.5 * (df - double(i)) - halves), D - i);
    for (int64_t i = 0; i < D; i++) {
        for (int64_t j = 0; j <= i; j++) squares += m.ratio[i][j] * m.ratio[i][j];
        shift += m.ratio[i][D] * m.ratio[i][D];
        log_volume += psi[i];
        gap += gamma_gap((df0 - i) / 2, (df - i) / 2, psi[i]);
    }
    invert(m.chol, m.lower, m.inverse);
    normal_wishart_mean(p, m, log_volume);
    const double log_ratio = log_det0 - log_det;
    const double of_precision = gap + df * (squares - D - log_ratio) / 2 + (df - df0) * log_ratio / 2;
    *p.divergence = of_precision + D * rate_gap(kappa0, kappa) / 2 + kappa0 * df * shift / 2;
    return true;
}

// E[log N(x; u, L^-1)] from expected statistics: E[L] = C C', and C C' loc = E[L u]. False: E[L] has no factor.
inline bool expected_normal(const double* statistics, Square& m, double* loc, double* chol, double* constant,
                            double* log_volume) {
    const int64_t D = m.dim;
    for (int64_t i = 0; i < D; i++) {
        m.ratio[i][0] = statistics[i];
        for (int64_t j = 0; j <= i; j++) m.chol[i][j] = statistics[D + 2 + i * D + j];
    }
    const double log_det = factor(m.chol);
    if (!std::isfinite(log_det)) return false;
    const Matrix<double> column = {m.ratio.at, D, 1, m.ratio.stride};
    solve(m.chol, column);
    double spread = statistics[D];
    for (int64_t i = 0; i < D; i++) spread -= column[i][0] * column[i][0];
    solve_transposed(m.chol, column);
    for (int64_t i = 0; i < D; i++) {
        loc[i] = column[i][0];
        for (int64_t j = 0; j < D; j++) chol[i * D + j] = j < i ? m.chol[i][j] : j == i ? 1 / m.chol[i][i] : 0;
    }
    *log_volume = statistics[D + 1] - spread;
    *constant = (*log_volume - log_det) / 2;
    return true;
}

inline void write_inverse(const Square& m, double factor, double* out) {
    invert(m.chol, m.lower, m.inverse);
    for (int64_t i = 0; i < m.dim; i++)
        for (int64_t j = 0; j < m.dim; j++) out[i * m.dim + j] = factor * m.inverse[i][j];
}

// The expected location and precision of a NormalWishart. False: its scale matrix has no factor.
inline bool mean_point(const double* eta, Square& m, double* loc, double* precision) {
    if (!std::isfinite(location_and_factor(eta, m.dim, loc, m.chol))) return false;
    write_inverse(m, 2 * eta[m.dim + 1], precision);
    return true;
}

// The maximum of a message of a NormalWishart. False if it has no weight, or a covariance that its floor or
// rounding may change: its excess over the diagonal of the floor must be positive definite, and its correlations less `least`.
inline bool peak(const double* message, const double* floor, double least, Square& m, double* loc, double* precision) {
    const int64_t D = m.dim;
    const double weight = -2 * message[D], *rest = message + D + 2;
    if (!(weight > 0)) return false;
    const Matrix<double> covariance = m.chol0;
    for (int64_t i = 0; i < D; i++) {
        loc[i] = message[i] / weight;
        for (int64_t j = 0; j <= i; j++) covariance[i][j] = -(rest[i * D + j] + rest[j * D + i]) / weight - loc[i] * loc[j];
    }
    const auto has_factor = [&](auto&& entry) {
        for (int64_t i = 0; i < D; i++)
            for (int64_t j = 0; j <= i; j++) m.chol[i][j] = entry(i, j);
        return bool(std::isfinite(factor(m.chol)));
    };
    const bool above = has_factor([&](int64_t i, int64_t j) {
        return covariance[i][j] / (std::sqrt(floor[i]) * std::sqrt(floor[j])) - (i == j ? 1 : 0);
    });
    const bool sound = above && has_factor([&](int64_t i, int64_t j) {
        return covariance[i][j] / std::sqrt(covariance[i][i] * covariance[j][j]) - (i == j ? least : 0);
    });
    if (!sound || !has_factor([&](int64_t i, int64_t j) { return covariance[i][j]; })) return false;
    write_inverse(m, 1, precision);
    return true;
}

}  // namespace
