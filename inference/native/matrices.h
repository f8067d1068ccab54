// Small dense matrices of any size, in row-major order.
//
// Rows are `stride` numbers apart, a multiple of the width of a vector, and hold 0 from their last column up to the next
// full vector. So every loop along a row takes whole vectors, and what lies beyond a row's end changes no sum. Tables
// without this room are copied in by `read` and out by `write`. A `part` that starts at a multiple of the width, and ends with
// zeros as well, is such a matrix too. A matrix of vectors, `Matrix<V<double>>`, stands for as many matrices side by side.
//
//   product          out = a b            product_transposed     out = a' b
//   product_by       out = a b'           add_product_by         out += a b'
//   add_symmetric    out += a' b, where that is symmetric
//   solve            table <- R^-1 table, of a lower triangle R; solve_transposed  table <- R'^-1 table
//   factor           P = R R', of which R replaces the lower triangle (Cholesky), with the inverse of its diagonal there
//   decompose        table <- U s, right <- V with table = U s V' (singular values)
//   triangularize    table <- Q' table with orthogonal Q, so that the first columns become an upper triangle (QR)
#pragma once
#include <algorithm>

#include "memory.h"
#include "sums.h"

namespace {

template <> struct Vector<V<double>> {
    typedef V<double> Of, Anywhere;
};
template <class T> constexpr bool SIDE_BY_SIDE = sizeof(T) == VECTOR_BYTES;
template <class T> INLINE T number(double x) { return T(x - T{}); }
template <class T> INLINE T square_root(T x) {
    if constexpr (SIDE_BY_SIDE<T>)
        for (int64_t j = 0; j < W<double>; j++) x[j] = std::sqrt(x[j]);
    else x = std::sqrt(x);
    return x;
}
template <class T> INLINE T logarithm(T x) {
    if constexpr (SIDE_BY_SIDE<T>) return log<double>(x);
    else return std::log(x);
}

template <class T> struct Matrix {
    T* at;
    int64_t rows, columns, stride;

    INLINE T* operator[](int64_t i) const { return at + i * stride; }
    INLINE Matrix part(int64_t row, int64_t n_rows, int64_t column, int64_t n_columns) const {
        return {at + row * stride + column, n_rows, n_columns, stride};
    }
};

template <class T> INLINE int64_t stride_of(int64_t columns) { return round_up(columns, W<T>); }

// Of zeros, in the memory of a call
template <class T = double> Matrix<T> matrix(Memory& memory, int64_t rows, int64_t columns) {
    return {memory.take<T>(rows * stride_of<T>(columns)), rows, columns, stride_of<T>(columns)};
}

// Rows of n numbers, up to the next full vector
template <class T> INLINE void add_row(T factor, const T* row, T* out, int64_t n) {
    for (int64_t j = 0; j < n; j += W<T>) store(out + j, V<T>(load(out + j) + factor * load(row + j)));
}
template <class T> INLINE void scale_row(T factor, T* out, int64_t n) {
    for (int64_t j = 0; j < n; j += W<T>) store(out + j, V<T>(factor * load(out + j)));
}
template <class T> INLINE T dot(const T* a, const T* b, int64_t n) {
    V<T> sums{};
    for (int64_t j = 0; j < n; j += W<T>) sums += load(a + j) * load(b + j);
    return total<T>(sums);
}

template <class T> INLINE void clear(Matrix<T> out) { std::fill_n(out.at, out.rows * out.stride, T{}); }
template <class T> INLINE void identity(Matrix<T> out) {
    clear(out);
    for (int64_t i = 0; i < out.rows; i++) out[i][i] = number<T>(1);
}
template <class T> INLINE void copy(Matrix<T> a, Matrix<T> out) {
    for (int64_t i = 0; i < out.rows; i++)
        for (int64_t j = 0; j < out.columns; j += W<T>) store(out[i] + j, load(a[i] + j));
}
template <class T> INLINE void add(Matrix<T> a, Matrix<T> out) {
    for (int64_t i = 0; i < out.rows; i++) add_row(number<T>(1), a[i], out[i], out.columns);
}

// From and into a table whose entries (i, j) are `by_row` i + `by_column` j numbers from its first one
template <class T, class S> INLINE void read(const S* table, int64_t by_row, int64_t by_column, Matrix<T> out) {
    for (int64_t i = 0; i < out.rows; i++)
        for (int64_t j = 0; j < out.columns; j++) out[i][j] = T(table[i * by_row + j * by_column]);
}
template <class T, class S> INLINE void write(Matrix<T> a, S* table, int64_t by_row, int64_t by_column) {
    for (int64_t i = 0; i < a.rows; i++)
        for (int64_t j = 0; j < a.columns; j++) table[i * by_row + j * by_column] = S(a[i][j]);
}

template <class T, bool transposed = false> INLINE void product(Matrix<T> a, Matrix<T> b, Matrix<T> out) {
    for (int64_t i = 0; i < out.rows; i++)
        for (int64_t j = 0; j < out.columns; j += W<T>) {
            V<T> sums{};
            for (int64_t k = 0; k < b.rows; k++) sums += (transposed ? a[k][i] : a[i][k]) * load(b[k] + j);
            store(out[i] + j, sums);
        }
}
template <class T> INLINE void product_transposed(Matrix<T> a, Matrix<T> b, Matrix<T> out) { product<T, true>(a, b, out); }

template <class T> INLINE void product_by(Matrix<T> a, Matrix<T> b, Matrix<T> out) {
    for (int64_t i = 0; i < out.rows; i++)
        for (int64_t j = 0; j < out.columns; j++) out[i][j] = dot(a[i], b[j], a.columns);
}

template <class T> INLINE void add_product_by(Matrix<T> a, Matrix<T> b, Matrix<T> out) {
    for (int64_t i = 0; i < out.rows; i++)
        for (int64_t j = 0; j < out.columns; j++) out[i][j] += dot(a[i], b[j], a.columns);
}

template <class T> INLINE void add_symmetric(Matrix<T> a, Matrix<T> b, Matrix<T> out) {
    for (int64_t i = 0; i < out.rows; i++)
        for (int64_t j = 0; j <= i; j += W<T>) {
            V<T> sums = load(out[i] + j);
            for (int64_t k = 0; k < a.rows; k++) sums += a[k][i] * load(b[k] + j);
            store(out[i] + j, sums);
        }
    for (int64_t i = 1; i < out.rows; i++)
        for (int64_t j = 0; j < i; j++) out[j][i] = out[i][j];
}

// out += row table
template <class T> INLINE void add_times(const T* row, Matrix<T> table, T* out) {
    for (int64_t i = 0; i < table.columns; i += W<T>) {
        V<T> sums = load(out + i);
        for (int64_t j = 0; j < table.rows; j++) sums += row[j] * load(table[j] + i);
        store(out + i, sums);
    }
}

template <class T> INLINE void solve(Matrix<T> root, Matrix<T> table) {
    for (int64_t i = 0; i < table.rows; i++) {
        for (int64_t k = 0; k < i; k++) add_row(-root[i][k], table[k], table[i], table.columns);
        scale_row(root[i][i], table[i], table.columns);
    }
}

template <class T> INLINE void solve_transposed(Matrix<T> root, Matrix<T> table) {
    for (int64_t i = table.rows - 1; i >= 0; i--) {
        for (int64_t k = i + 1; k < table.rows; k++) add_row(-root[k][i], table[k], table[i], table.columns);
        scale_row(root[i][i], table[i], table.columns);
    }
}

// Replaces the lower triangle alone, and reads no more; returns the log determinant, NaN where there is no finite factor.
template <class T> T factor(Matrix<T> matrix) {
    constexpr double infinity = std::numeric_limits<double>::infinity();
    T log_det{};
    for (int64_t j = 0; j < matrix.rows; j++) {
        T pivot = matrix[j][j];
        for (int64_t k = 0; k < j; k++) pivot -= matrix[j][k] * matrix[j][k];
        pivot = (pivot > 0) & (pivot < infinity) ? pivot : number<T>(std::numeric_limits<double>::quiet_NaN());
        const T inverse = 1 / square_root(pivot);
        log_det += logarithm(pivot);
        matrix[j][j] = inverse;
        for (int64_t i = j + 1; i < matrix.rows; i++) {
            T value = matrix[i][j];
            for (int64_t k = 0; k < j; k++) value -= matrix[i][k] * matrix[j][k];
            matrix[i][j] = value * inverse;
        }
    }
    return log_det;
}

// The inverse of a factor R, and that of R R'.
template <class T> void invert(Matrix<T> root, Matrix<T> lower, Matrix<T> inverse) {
    identity(lower);
    solve(root, lower);
    product_transposed(lower, lower, inverse);
}

// A sum of squares that one cannot be divided by
template <class T> constexpr T NOTHING = sizeof(T) == 8 ? T(0x1p-1000) : T(0x1p-120);

// A Householder reflection a column (Golub & Van Loan 2013, 5.1.1), of the first `pivots` columns. The diagonal has no
// negative numbers afterwards, and below it are zeros. Columns beyond are rotated as well. `room` is a row.
template <class T> void triangularize(Matrix<T> table, int64_t pivots, T* room) {
    for (int64_t k = 0; k < std::min(pivots, table.rows); k++) {
        T rest = 0;
        for (int64_t i = k + 1; i < table.rows; i++) rest += table[i][k] * table[i][k];
        const T first = table[k][k];
        if (!(first >= 0 && rest < NOTHING<T>)) {
            const T norm = std::sqrt(first * first + rest), head = first <= 0 ? first - norm : -rest / (first + norm);
            const T scale = 2 / (head * head + rest);
            for (int64_t j = (k + 1) / W<T> * W<T>; j < table.columns; j += W<T>) {
                V<T> shares = head * load(table[k] + j);
                for (int64_t i = k + 1; i < table.rows; i++) shares += table[i][k] * load(table[i] + j);
                store(room + j, V<T>(-scale * shares));
            }
            // the column itself is rotated last: it holds the reflection
            for (int64_t i = k; i < table.rows; i++) {
                const T along = i == k ? head : table[i][k];
                for (int64_t j = (k + 1) / W<T> * W<T>; j < table.columns; j += W<T>)
                    store(table[i] + j, V<T>(load(table[i] + j) + along * load(room + j)));
            }
            table[k][k] = norm;
        }
        for (int64_t i = k + 1; i < table.rows; i++) table[i][k] = 0;
    }
}

// Turns two columns into each other.
template <class T> INLINE void rotate(Matrix<T> table, int64_t a, int64_t b, T cosine, T sine) {
    for (int64_t i = 0; i < table.rows; i++) {
        const T x = table[i][a], y = table[i][b];
        table[i][a] = cosine * x - sine * y;
        table[i][b] = sine * x + cosine * y;
    }
}

// Singular values: a square table becomes left vectors times values, `right` the right vectors (Hestenes 1958).
template <class T> void decompose(Matrix<T> table, Matrix<T> right) {
    identity(right);
    bool turned = true;
    for (int sweep = 0; turned && sweep < 60; sweep++) {
        turned = false;
        for (int64_t a = 0; a < table.rows; a++)
            for (int64_t b = a + 1; b < table.rows; b++) {
                T aa = 0, bb = 0, ab = 0;
                for (int64_t i = 0; i < table.rows; i++) {
                    aa += table[i][a] * table[i][a];
                    bb += table[i][b] * table[i][b];
                    ab += table[i][a] * table[i][b];
                }
                if (std::fabs(ab) <= std::numeric_limits<T>::epsilon() * std::sqrt(aa) * std::sqrt(bb)) continue;
                turned = true;
                const T zeta = (bb - aa) / (2 * ab);
                const T tangent = std::copysign(T(1), zeta) / (std::fabs(zeta) + std::hypot(T(1), zeta));
                const T cosine = 1 / std::hypot(T(1), tangent), sine = cosine * tangent;
                rotate(table, a, b, cosine, sine);
                rotate(right, a, b, cosine, sine);
            }
    }
}

// Norms of columns; returns the greatest.
template <class T> T column_norms(Matrix<T> table, T* norms) {
    T greatest = 0;
    for (int64_t j = 0; j < table.columns; j++) {
        T square = 0;
        for (int64_t i = 0; i < table.rows; i++) square += table[i][j] * table[i][j];
        greatest = std::max(greatest, norms[j] = std::sqrt(square));
    }
    return greatest;
}

// Whether a recursion has reached its fixed point, to rounding; asked after every step, counted from 1.
//
// This is so if neither the last step nor a stretch, an eighth of all steps so far, changed any entry, beside the norm of
// its column. The rest of a mode that decays by rho a step is less than its change over n steps times rho^n / (1 - rho^n).
// A mode that rotates, such as a season, changes at every step. `reference` is the table at the last check.
template <class T> struct Steady {
    Matrix<T> reference;
    int64_t next = 0;  // the step of the next check

    bool reached(Matrix<T> table, Matrix<T> before, int64_t step) {
        if (step < next) return false;
        bool same = next > 0;
        for (int64_t j = 0; j < before.columns; j++) {
            T square = 0;
            for (int64_t i = 0; i < before.rows; i++) square += before[i][j] * before[i][j];
            const T bound = 8 * std::numeric_limits<T>::epsilon() * std::sqrt(square);
            for (int64_t i = 0; i < before.rows; i++) {
                same &= std::fabs(table[i][j] - reference[i][j]) <= bound && std::fabs(table[i][j] - before[i][j]) <= bound;
                reference[i][j] = table[i][j];
            }
        }
        next = step + std::max<int64_t>(8, step / 8);
        return same;
    }
};

}  // namespace
