// Factors of covariances, singular ones too: P = Z Z' with Z = D V w^1/2, where D has the standard deviations, and the
// correlations D^-1 P D^-1 have eigenvectors V and eigenvalues w. Those are 0 that are 0 to rounding.
//
// The plain form is `_plain_root` in `chains/linear_gaussian/parameters.py`.
#pragma once
#include "matrices.h"

namespace {

template <class T> struct Roots {
    const int64_t n;
    Matrix<double> table, right;
    double* scale;

    Roots(Memory& memory, int64_t n) : n(n), table(matrix(memory, n, n)), right(matrix(memory, n, n)), scale(memory.take(n)) {}

    // Whether a covariance is symmetric, to rounding, and has no negative variance
    bool is_fine(const T* covariance) const {
        for (int64_t i = 0; i < n; i++) {
            if (covariance[i * n + i] < 0) return false;
            for (int64_t j = 0; j < i; j++) {
                const double gap = std::fabs(double(covariance[i * n + j]) - double(covariance[j * n + i]));
                const double size = std::sqrt(double(covariance[i * n + i])) * std::sqrt(double(covariance[j * n + j]));
                if (gap > 1e3 * std::numeric_limits<T>::epsilon() * size) return false;
            }
        }
        return true;
    }

    // Writes a factor; returns whether the covariance is symmetric and has no negative eigenvalue, to rounding.
    bool factor_of(const T* covariance, T* factor) {
        if (!is_fine(covariance)) return false;
        const double least = 16 * n * double(std::numeric_limits<T>::epsilon());
        for (int64_t i = 0; i < n; i++) scale[i] = covariance[i * n + i] > 0 ? std::sqrt(double(covariance[i * n + i])) : 1;
        for (int64_t i = 0; i < n; i++)
            for (int64_t j = 0; j <= i; j++) table[i][j] = table[j][i] = covariance[i * n + j] / scale[i] / scale[j];
        decompose(table, right);
        for (int64_t j = 0; j < n; j++) {
            double value = 0;  // column j of the table is this times the eigenvector
            for (int64_t i = 0; i < n; i++) value += table[i][j] * right[i][j];
            if (value < -least) return false;
            const double root = value > least ? std::sqrt(value) : 0;
            for (int64_t i = 0; i < n; i++) factor[i * n + j] = T(scale[i] * right[i][j] * root);
        }
        return true;
    }
};

}  // namespace
