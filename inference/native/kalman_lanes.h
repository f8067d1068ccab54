// Sequences of one set of covariances side by side, n of them: entry i of lane l is at i * n + l, so that numbers of one
// kind fill vectors. Sizes alone say how many do. A set with one sequence has single numbers in place of vectors.
#pragma once
#include "kalman.h"

namespace {

constexpr int64_t MOST_LANES = 16;

template <class N> constexpr int64_t WIDE = sizeof(N) / sizeof(double);
template <class N> INLINE N take(const double* at) {
    if constexpr (WIDE<N> == 1) return *at;
    else return load(at);
}
INLINE void put(double* at, double x) { *at = x; }
INLINE void put(double* at, V<double> x) { store(at, x); }

// A table [rows, columns] that is read along either axis
struct Reading {
    const double* at;
    int64_t rows, columns, by_row, by_column;
};
INLINE Reading plain(const double* at, int64_t rows, int64_t columns) { return {at, rows, columns, columns, 1}; }
INLINE Reading transposed(const double* at, int64_t rows, int64_t columns) { return {at, columns, rows, 1, columns}; }
INLINE Reading reading(View<double> table, int64_t t, int64_t rows, int64_t columns) {
    return {table(t), rows, columns, table.row, table.column};
}
INLINE Reading reading_transposed(View<double> table, int64_t t, int64_t rows, int64_t columns) {
    return {table(t), columns, rows, table.column, table.row};
}

// n rows of it times v, more than one at once so that no sum waits for another
template <class N, bool less, int n_rows>
INLINE void add_rows(Reading table, int64_t i, const double* v, double* out, int64_t n) {
    const double* row = table.at + i * table.by_row;
    for (int64_t lane = 0; lane < n; lane += WIDE<N>) {
        N sums[n_rows];
        for (int r = 0; r < n_rows; r++) sums[r] = take<N>(out + (i + r) * n + lane);
        for (int64_t j = 0; j < table.columns; j++) {
            const N x = take<N>(v + j * n + lane);
#pragma GCC unroll 4
            for (int r = 0; r < n_rows; r++) {
                const N term = row[r * table.by_row + j * table.by_column] * x;
                sums[r] = less ? sums[r] - term : sums[r] + term;
            }
        }
        for (int r = 0; r < n_rows; r++) put(out + (i + r) * n + lane, sums[r]);
    }
}

// The same of a single sequence, where entries of a column lie side by side
template <bool less> INLINE void add_column_vectors(Reading table, int64_t i, const double* v, double* out) {
    V<double> sums = load(out + i);
    for (int64_t j = 0; j < table.columns; j++) {
        const V<double> term = v[j] * load(table.at + i + j * table.by_column);
        sums = less ? sums - term : sums + term;
    }
    store(out + i, sums);
}

template <class N, bool less> INLINE void add_all_rows(Reading table, int64_t i, const double* v, double* out, int64_t n) {
    for (; i + 4 <= table.rows; i += 4) add_rows<N, less, 4>(table, i, v, out, n);
    for (; i < table.rows; i++) add_rows<N, less, 1>(table, i, v, out, n);
}

// Of several sequences; not a part of its callers, since it would be compiled with each
template <bool less> __attribute__((noinline)) void add_rows_of_lanes(Reading table, const double* v, double* out, int64_t n) {
    add_all_rows<V<double>, less>(table, 0, v, out, n);
}

// out += table v, or -=
template <class N, bool less = false> INLINE void add_times(Reading table, const double* v, double* out, int64_t n) {
    if constexpr (WIDE<N> > 1) return add_rows_of_lanes<less>(table, v, out, n);
    int64_t i = 0;
    if (table.by_row == 1)
        for (; i + W<double> <= table.rows; i += W<double>) add_column_vectors<less>(table, i, v, out);
    add_all_rows<N, less>(table, i, v, out, 1);
}

// Memory of a group; innovations and means after each observation are kept by step, if they are
struct Lanes {
    double *white, *mean, *moved, *turned, *side, *weights, *numbers, *drawn, *total, *cost, *rest, *transition, *emission, *kept;

    Lanes(Memory& memory, const Chain& chain, double* kept)
        : white(memory.take(chain.features * MOST_LANES)),
          turned(memory.take((chain.states + chain.features + chain.open) * MOST_LANES)),
          transition(memory.take(chain.states * chain.states)), emission(memory.take(chain.states * chain.features)), kept(kept) {
        for (double** table : {&mean, &moved}) *table = memory.take(chain.states * MOST_LANES);
        for (double** table : {&side, &weights, &numbers, &drawn}) *table = memory.take(chain.open * MOST_LANES);
        for (double** table : {&total, &cost, &rest}) *table = memory.take(MOST_LANES);
    }
};

}  // namespace
