// Kalman steps of switching linear models, of one normal belief about the latents (T is double) or of beliefs side by side (T is
// a vector).
//
//   s_t+1 | z ~ N(A_z s_t + c_z, Q_z),   x_t | z ~ N(C_z s_t + d_z, R_z)
//
//   predict   m <- A m + c,   P <- A P A' + Q
//   update    S = C P C' + R = H H',   K = P C' S^-1,   m <- m + K v with v = x - d - C m,
//             P <- (I - K C) P (I - K C)' + K R K',   log p(x) = -(|H^-1 v|^2 + log det S + F log 2 pi) / 2
//
// What is missing leaves the rows that it would have had. The plain forms are `predict` and `update` in
// `chains/switching_gaussian/plain.py`.
#pragma once
#include "matrices.h"

namespace {

constexpr double LOG_2PI = 1.83787706640934548356, IMPOSSIBLE = -std::numeric_limits<double>::infinity();
constexpr double NONE = 1e-12;  // of a direction's length, that others explain but for rounding

template <class T> struct Belief {
    T* mean;
    Matrix<T> covariance;
};
template <class T = double> Belief<T> belief(Memory& memory, int64_t L) {
    return {matrix<T>(memory, 1, L).at, matrix<T>(memory, L, L)};
}
template <class T> INLINE void copy(Belief<T> from, Belief<T> to) {
    std::copy_n(from.mean, stride_of<T>(to.covariance.columns), to.mean);
    copy(from.covariance, to.covariance);
}

template <class T> struct Move {
    Matrix<T> turned;  // A'
    const T* offset;
    Matrix<T> noise;
};

template <class T> struct Sight {
    Matrix<T> emission;
    const T* offset;
    Matrix<T> noise;
};

template <class T> INLINE Matrix<T> first_rows(Matrix<T> of, int64_t n) { return of.part(0, n, 0, of.columns); }

// What a step writes over. After an update of n rows: the emission, the factor H, the innovation H^-1 v, H^-1 C P, (I - K C)'
template <class T> struct Work {
    Matrix<T> emission, noise, shown, root, left, right, turned, half, seen;  // left: (I - K C)', then K'
    T* gap;

    Work(Memory& memory, int64_t R, int64_t L)
        : emission(matrix<T>(memory, R, L)), noise(matrix<T>(memory, R, R)), shown(matrix<T>(memory, R, L)),
          root(matrix<T>(memory, R, R)), left(matrix<T>(memory, L + R, L)), right(matrix<T>(memory, L + R, L)),
          turned(first_rows(left, L)), half(first_rows(right, L)), gap(memory.take<T>(R)) {}
};
// The root Z of a covariance, as Z': a row of 0 for each direction it has not
inline void root_of(Matrix<double> covariance, Matrix<double> turned) {
    const int64_t n = turned.rows;
    for (int64_t j = 0; j < n; j++) {
        double pivot = covariance[j][j];
        for (int64_t k = 0; k < j; k++) pivot -= turned[k][j] * turned[k][j];
        std::fill_n(turned[j], turned.stride, 0.0);
        if (!(pivot > NONE * covariance[j][j])) continue;
        add_row(1.0, covariance[j], turned[j], n);
        for (int64_t k = 0; k < j; k++) add_row(-turned[k][j], turned[k], turned[j], n);
        scale_row(1 / std::sqrt(pivot), turned[j], n);
        std::fill_n(turned[j], j, 0.0);
    }
}

// Leaves P A' in `work.half`.
template <class T> INLINE void predict(const Move<T>& by, Belief<T> before, Work<T>& work, Belief<T> after) {
    std::copy_n(by.offset, stride_of<T>(by.turned.columns), after.mean);
    add_times(before.mean, by.turned, after.mean);
    product(before.covariance, by.turned, work.half);
    copy(by.noise, after.covariance);
    add_symmetric(by.turned, work.half, after.covariance);
}

// Of n rows with this emission and noise, of which `work.gap` has x - d. In place; log p(x), NaN if there is no such density
template <class T> INLINE T update(Matrix<T> emission, Matrix<T> noise, Belief<T> belief, Work<T>& work) {
    const int64_t n = emission.rows, L = emission.columns;
    work.seen = emission;
    identity(work.turned);
    if (n == 0) return T{};
    const Matrix<T> shown = first_rows(work.shown, n), root = first_rows(work.root, n);
    const Matrix<T> gain = work.left.part(L, n, 0, L), noisy = work.right.part(L, n, 0, L);
    product(emission, belief.covariance, shown);
    for (int64_t i = 0; i < n; i++) {
        work.gap[i] -= dot(emission[i], belief.mean, L);
        for (int64_t j = 0; j <= i; j++) root[i][j] = noise[i][j] + dot(shown[i], emission[j], L);
    }
    const T log_det = factor(root);
    T square{};
    for (int64_t i = 0; i < n; i++) {
        for (int64_t k = 0; k < i; k++) work.gap[i] -= root[i][k] * work.gap[k];
        work.gap[i] *= root[i][i];
        square += work.gap[i] * work.gap[i];
    }
    solve(root, shown);
    add_times(work.gap, shown, belief.mean);
    copy(shown, gain);
    solve_transposed(root, gain);
    for (int64_t k = 0; k < n; k++)
        for (int64_t j = 0; j < L; j++) add_row(-emission[k][j], gain[k], work.turned[j], L);
    product(belief.covariance, work.turned, work.half);
    product(noise, gain, noisy);
    clear(belief.covariance);
    add_symmetric(work.left.part(0, L + n, 0, L), work.right, belief.covariance);
    return -0.5 * (square + log_det + LOG_2PI * n);
}

// `update` by x [F], NaN where a feature is missing
template <class T> INLINE T observe(const Sight<T>& by, const double* x, Belief<T> belief, Work<T>& work) {
    const int64_t F = by.emission.rows;
    int64_t n = 0;
    for (int64_t f = 0; f < F; f++)
        if (!std::isnan(x[f])) work.gap[n++] = x[f] - by.offset[f];
    if (n == F) return update(by.emission, by.noise, belief, work);
    const Matrix<T> emission = first_rows(work.emission, n), noise = first_rows(work.noise, n);
    for (int64_t f = 0, i = 0; f < F; f++) {
        if (std::isnan(x[f])) continue;
        std::copy_n(by.emission[f], emission.stride, emission[i]);
        for (int64_t g = 0, j = 0; g < F; g++)
            if (!std::isnan(x[g])) noise[i][j++] = by.noise[f][g];
        i++;
    }
    return update(emission, noise, belief, work);
}

// log sum exp of n numbers
inline double log_sum(const double* values, int64_t n) {
    double top = IMPOSSIBLE, sum = 0;
    for (int64_t i = 0; i < n; i++) top = std::max(top, values[i]);
    if (top == IMPOSSIBLE) return top;
    for (int64_t i = 0; i < n; i++) sum += std::exp(values[i] - top);
    return top + std::log(sum);
}

}  // namespace
