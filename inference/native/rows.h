// Rows of K numbers, as tables have them for each step, copied to rows of whole vectors and back.
//
// A row holds the K numbers of one sequence, or those of M sequences side by side, M = W<T>: number j of member m lies at
// j M + m, so that a vector has one state of each. A sum over the states is one number, or one for each member.
#pragma once
#include <algorithm>
#include <type_traits>

#include "sums.h"

namespace {

template <class T, int M> using One = std::conditional_t<M == 1, T, V<T>>;
template <class T, int M> INLINE One<T, M> over_states(V<T> x) {
    if constexpr (M == 1) return total<T>(x);
    else return x;
}

// Sizes of rows of K numbers: `wide` is K rounded up to whole vectors; `rows` is K in fours; `pitch` is the distance of rows
// in a block. Rows of long vectors must not all fall into the same few lines of a cache.
template <class T> struct Sizes {
    int64_t k, wide, rows, pitch, block;
    bool in_turn;  // whether the two directions take turns at each step; tables that fill a cache take them at each block
    explicit Sizes(int64_t k, int64_t members = 1) : k(k) {
        wide = members > 1 ? k * members : round_up(k, std::max<int64_t>(W<T>, 4));
        rows = members > 1 ? k : round_up(k, 4);
        pitch = wide < 64 || members > 1 ? wide : wide + int64_t(64 / sizeof(T));
        block = wide < 128 ? 16 : 96;
        in_turn = wide < 64 || members > 1;
    }
};

// Where the rows of a block lie in the tables of M members: the first of each, and the distance to the next one
template <class T, int M> struct Places {
    T* at[M];
    int64_t apart[M];
};

// Rows of k numbers, up to an end, as vectors. A vector may reach into the next row, and not beyond the end.
template <class T> struct Rows {
    const int64_t k;
    decltype(V<T>{} < V<T>{}) kept;  // the numbers of the last vector of a row

    explicit Rows(int64_t k) : k(k) {
        V<T> place{};
        for (int64_t j = 0; j < W<T>; j++) place[j] = T(j);
        kept = place < T(k % W<T>);
    }
    INLINE V<T> read(const T* row, int64_t j, const T* end, T filler) const {
        if (j + W<T> <= k) return load(row + j);
        const V<T> last = row + j + W<T> <= end ? load(row + j) : load_some(row + j, k - j);
        return kept ? last : splat(filler);
    }
    // Rows are written in the order of their addresses
    INLINE void write(T* row, int64_t j, const T* end, V<T> x) const {
        if (row + j + W<T> <= end) store<T>(row + j, x);
        else store_some<T>(row + j, x, k - j);
    }
};

template <int NV, class T> INLINE int64_t wide_of(const Sizes<T>& of) { return NV ? NV * W<T> : of.wide; }

// Calls use(j, vector) for the vectors of the n-th of some rows
template <int NV, class T, int M, class Use>
INLINE void read_row(const Rows<T>& rows, const Places<const T, M>& x, int64_t n, const T* end, const Sizes<T>& of, T filler,
                     Use use) {
    if constexpr (M == 1) {
        const T* row = x.at[0] + n * x.apart[0];
        int64_t j = 0;
        if constexpr (NV == 0)
            for (; j + W<T> <= of.k; j += W<T>) use(j, load(row + j));
        for (; j < wide_of<NV>(of); j += W<T>) use(j, rows.read(row, j, end, filler));
    } else {
        const T* row[M];
        for (int m = 0; m < M; m++) row[m] = x.at[m] + n * x.apart[m];
        for (int64_t j = 0; j < (NV ? NV : of.k); j++) {
            V<T> y;
            for (int m = 0; m < M; m++) y[m] = row[m][j];
            use(j * M, y);
        }
    }
}
// Beyond the last number of n rows, the ends of which are at rising or falling addresses
template <class T, int M> INLINE T* end_of(const Places<T, M>& x, int64_t n, int64_t k) {
    return x.at[0] + (x.apart[0] > 0 ? n * k : k);
}

// Copies n rows to rows of whole vectors, filled up
template <int NV, class T, int M>
void unpack(const Places<const T, M>& x, int64_t n, const Sizes<T>& of, T filler, T* out) {
    const Rows<T> rows(of.k);
    const T* end = end_of(x, n, of.k);
    for (int64_t r = 0; r < n; r++, out += of.pitch)
        read_row<NV>(rows, x, r, end, of, filler, [&](int64_t j, V<T> y) { store<T>(out + j, y); });
}

// Copies n rows back, times a number for each row, and each member, unless `by` is null
template <int NV, class T, int M>
void pack(const T* x, int64_t n, const Sizes<T>& of, const One<T, M>* by, const Places<T, M>& out) {
    const Rows<T> rows(of.k);
    T* end = end_of(out, n, of.k);
    for (int64_t i = 0; i < n; i++) {
        const int64_t r = out.apart[0] > 0 ? i : n - 1 - i;
        const T* row = x + r * of.pitch;
        const V<T> scale = V<T>{} + (by ? by[r] : One<T, M>{} + T(1));
        if constexpr (M == 1) {
            T* to = out.at[0] + r * out.apart[0];
            int64_t j = 0;
            if constexpr (NV == 0)
                for (; j + W<T> <= of.k; j += W<T>) store<T>(to + j, load(row + j) * scale);
            for (; j < wide_of<NV>(of); j += W<T>) rows.write(to, j, end, load(row + j) * scale);
        } else {
            T* to[M];
            for (int m = 0; m < M; m++) to[m] = out.at[m] + r * out.apart[m];
            for (int64_t j = 0; j < (NV ? NV : of.k); j++) {
                const V<T> y = load(row + j * M) * scale;
                for (int m = 0; m < M; m++) to[m][j] = y[m];
            }
        }
    }
}

// n rows of exp(x - the largest of the row and member), padded by 0; and the largest
template <int NV, class T, int M>
void exponentials(const Places<const T, M>& x, int64_t n, const Sizes<T>& of, T* out, One<T, M>* top) {
    constexpr T none = -std::numeric_limits<T>::infinity();
    const Rows<T> rows(of.k);
    const T* end = end_of(x, n, of.k);
    for (int64_t r = 0; r < n; r++, out += of.pitch) {
        V<T> most = splat(none);
        read_row<NV>(rows, x, r, end, of, none, [&](int64_t j, V<T> y) {
            most = larger<T>(most, y);
            store<T>(out + j, y);
        });
        if constexpr (M == 1) most = splat(largest<T>(most));
        if constexpr (M == 1) top[r] = most[0];
        else top[r] = most;
        for (int64_t j = 0; j < wide_of<NV>(of); j += W<T>) store<T>(out + j, exp_not_positive<T>(load(out + j) - most));
    }
}

}  // namespace
