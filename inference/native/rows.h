// Rows of K numbers, as tables have them for each step, copied to rows of whole vectors and back.
#pragma once
#include "sums.h"

namespace {

// Sizes of vectors of K numbers: `wide` is K rounded up to one vector, or to pairs of them; `rows` is K in fours; `pitch` is
// the distance of rows in a block. Rows of long vectors must not all fall into the same few lines of a cache.
template <class T> struct Sizes {
    int64_t k, wide, rows, pitch, block;
    bool in_turn;  // whether the two directions take turns at each step; tables that fill a cache take them at each block
    explicit Sizes(int64_t k) : k(k) {
        wide = k <= W<T> && W<T> >= 4 ? W<T> : round_up(k, 2 * W<T>);
        rows = round_up(k, 4);
        pitch = wide < 64 ? wide : wide + int64_t(64 / sizeof(T));
        block = wide < 128 ? 16 : 48;
        in_turn = wide < 64;
    }
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
        if (j >= k) return splat(filler);
        const V<T> last = row + j + W<T> <= end ? load(row + j) : load_some(row + j, k - j);
        return kept ? last : splat(filler);
    }
    // Rows are written from the first to the last
    INLINE void write(T* row, int64_t j, const T* end, V<T> x) const {
        if (row + j + W<T> <= end) store<T>(row + j, x);
        else store_some<T>(row + j, x, k - j);
    }
};

// Calls f(j) for the vectors of a row that are whole, and g(j) for the rest of NV vectors (0: of `wide` numbers)
template <int NV, class T, class F, class G> INLINE void by_vectors(const Sizes<T>& of, F f, G g) {
    if constexpr (NV > 0) {
        for (int v = 0; v < NV; v++) g(v * W<T>);
    } else {
        int64_t j = 0;
        for (; j + W<T> <= of.k; j += W<T>) f(j);
        for (; j < of.wide; j += W<T>) g(j);
    }
}

// Copies n rows of k numbers to rows of whole vectors, filled up
template <int NV, class T> void unpack(const T* x, int64_t n, const Sizes<T>& of, T filler, T* out) {
    const Rows<T> rows(of.k);
    for (const T* end = x + n * of.k; x < end; x += of.k, out += of.pitch)
        by_vectors<NV>(
            of, [&](int64_t j) { store<T>(out + j, load(x + j)); },
            [&](int64_t j) { store<T>(out + j, rows.read(x, j, end, filler)); });
}

// Copies rows back, times a number for each row unless `by` is null
template <int NV, class T> void pack(const T* x, int64_t n, const Sizes<T>& of, const T* by, T* out) {
    const Rows<T> rows(of.k);
    for (const T* end = out + n * of.k; out < end; x += of.pitch, out += of.k) {
        const V<T> scale = splat(by ? *by++ : T(1));
        by_vectors<NV>(
            of, [&](int64_t j) { store<T>(out + j, load(x + j) * scale); },
            [&](int64_t j) {
                if (j < of.k) rows.write(out, j, end, load(x + j) * scale);
            });
    }
}

// n rows of exp(x - the largest of the row), padded by 0; and the largest
template <int NV, class T> void exponentials(const T* x, int64_t n, const Sizes<T>& of, T* out, T* top) {
    constexpr T none = -std::numeric_limits<T>::infinity();
    const Rows<T> rows(of.k);
    for (const T* end = x + n * of.k; x < end; x += of.k, out += of.pitch, top++) {
        V<T> most = splat(none);
        const auto keep = [&](int64_t j, V<T> row) {
            most = larger<T>(most, row);
            store<T>(out + j, row);
        };
        by_vectors<NV>(
            of, [&](int64_t j) { keep(j, load(x + j)); }, [&](int64_t j) { keep(j, rows.read(x, j, end, none)); });
        const V<T> height = splat(*top = largest<T>(most));
        for (int64_t j = 0; j < (NV ? NV * W<T> : of.wide); j += W<T>)
            store<T>(out + j, exp_not_positive<T>(load(out + j) - height));
    }
}

}  // namespace
