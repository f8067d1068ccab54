// Normal log densities of steps under states, and the weighted moments that fit them.
//
//   log N(x_n; mu_k, Lambda_k^-1) = (log|Lambda_k| - F log(2 pi) - |C_k' r|^2) / 2,   r = x_n - mu_k,   Lambda_k = C_k C_k'
//   n_k = sum_n w_nk,   f_k = sum_n w_nk (x_n - c_k),   S_k = sum_n w_nk (x_n - c_k) (x_n - c_k)'
//
// Of independent features, Lambda_k is a row of precisions, and a feature that is NaN is left out of each sum. Steps are
// taken in blocks, of which each column is copied to a row, so that vectors hold steps. Sums over a block are added in
// double precision. The plain forms are `gaussian/plain.py`.
//
// Tables are contiguous: x [steps, features]; the others have a leading axis of restarts: loc, precision, about
// [states, features], C [states, features, features], weights and densities [steps, states].
#pragma once
#include <algorithm>

#include "sums.h"

namespace {

constexpr int64_t BLOCK = 256;  // steps, of which columns and weights stay in the first-level cache
constexpr double LOG_2PI = 1.8378770664093454836;

// Each restart is cut into pieces of its steps; their number follows from sizes, since a sum is rounded by it.
struct Sizes {
    int64_t restarts, pieces, steps, states, features;
    int64_t lacking;  // memory: set to 1 if the system had none
};

struct Steps {
    int64_t restart, begin, end;
};
INLINE Steps steps_of(const Sizes& s, int64_t item) {
    const int64_t piece = item % s.pieces;
    return {item / s.pieces, s.steps * piece / s.pieces, s.steps * (piece + 1) / s.pieces};
}

// The columns of a block as rows of BLOCK numbers, with 0 beyond its steps; returns whether none is missing.
template <class T> bool columns_of(const T* x, int64_t size, int64_t width, T* columns) {
    bool complete = true;
    for (int64_t f = 0; f < width; f++) {
        T* column = columns + f * BLOCK;
        for (int64_t n = 0; n < size; n++) {
            column[n] = x[n * width + f];
            complete &= column[n] == column[n];
        }
        std::fill(column + size, column + round_up(size, 2 * W<T>), T(0));
    }
    return complete;
}

// Numbers of a vector of steps into a column of a table with rows of K numbers
template <class T> INLINE void scatter(V<T> numbers, int64_t n, int64_t K, T* out) {
    if (K == 1) return store_some<T>(out, numbers, n);
    if (n >= W<T>) n = W<T>;
    for (int64_t i = 0; i < n; i++) out[i * K] = numbers[i];
}

template <class T> INLINE V<T> if_seen(V<T> x, V<T> value) { return x == x ? value : V<T>{}; }

template <class T> class Diagonal {
    const Sizes& s;
    Room<T> room;
    T *columns, *constants;  // [features, BLOCK], and (log precision - log(2 pi)) / 2 [states, features]

    template <bool complete> void block(int64_t size, const T* loc, const T* precision, T* out) const {
        const int64_t F = s.features;
        for (int64_t k = 0; k < s.states; k++, loc += F, precision += F) {
            const T* constant = constants + k * F;
            T start = 0;
            if (complete)
                for (int64_t f = 0; f < F; f++) start += constant[f];
            for (int64_t n = 0; n < size; n += W<T>) {
                V<T> density = splat(start);
                for (int64_t f = 0; f < F; f++) {
                    const V<T> x = load(columns + f * BLOCK + n), r = x - loc[f];
                    const V<T> term = T(-0.5) * precision[f] * (r * r);
                    density += complete ? term : if_seen<T>(x, term + constant[f]);
                }
                scatter<T>(density, size - n, s.states, out + n * s.states + k);
            }
        }
    }

public:
    explicit Diagonal(const Sizes& s) : s(s), room(s.features * (BLOCK + s.states), 2) {
        columns = room.take(s.features * BLOCK);
        constants = room.take(s.features * s.states);
    }
    bool full() const { return room.full(); }

    void densities(Steps at, const T* x, const T* loc, const T* precision, const T* log_precision, T* out) const {
        const int64_t K = s.states, F = s.features, table = at.restart * K * F;
        for (int64_t i = 0; i < K * F; i++) constants[i] = T(0.5) * (log_precision[table + i] - T(LOG_2PI));
        for (int64_t n = at.begin; n < at.end; n += BLOCK) {
            const int64_t size = std::min(BLOCK, at.end - n);
            T* rows = out + (at.restart * s.steps + n) * K;
            const bool complete = columns_of(x + n * F, size, F, columns);
            if (complete) block<true>(size, loc + table, precision + table, rows);
            else block<false>(size, loc + table, precision + table, rows);
        }
    }
};

template <class T> class Full {
    const Sizes& s;
    Room<T> room;
    T *columns, *residuals;  // [features, BLOCK], [features, 2 W]

    // Of two vectors of steps, which share what is read of C: whitened residuals are C' r, and C has a lower triangle.
    void density(const T* x, const T* loc, const T* chol, T constant, V<T>* found) const {
        const int64_t F = s.features;
        V<T> squares[2] = {};
        for (int64_t f = 0; f < F; f++)
            for (int64_t i = 0; i < 2 * W<T>; i += W<T>) store<T>(residuals + 2 * f * W<T> + i, load(x + f * BLOCK + i) - loc[f]);
        for (int64_t g = 0; g < F; g++) {
            V<T> white[2] = {};
            for (int64_t f = g; f < F; f++)
                for (int64_t i = 0; i < 2; i++) white[i] += chol[f * F + g] * load(residuals + (2 * f + i) * W<T>);
            for (int64_t i = 0; i < 2; i++) squares[i] += white[i] * white[i];
        }
        for (int64_t i = 0; i < 2; i++) found[i] = constant - T(0.5) * squares[i];
    }

public:
    explicit Full(const Sizes& s) : s(s), room(s.features * (BLOCK + 2 * W<T>), 2) {
        columns = room.take(s.features * BLOCK);
        residuals = room.take(2 * s.features * W<T>);
    }
    bool full() const { return room.full(); }

    void densities(Steps at, const T* x, const T* loc, const T* chol, const T* log_det, T* out) const {
        const int64_t K = s.states, F = s.features;
        for (int64_t begin = at.begin; begin < at.end; begin += BLOCK) {
            const int64_t size = std::min(BLOCK, at.end - begin);
            columns_of(x + begin * F, size, F, columns);
            for (int64_t k = 0; k < K; k++) {
                const int64_t state = at.restart * K + k;
                const T constant = T(0.5) * (log_det[state] - T(F * LOG_2PI));
                T* rows = out + (at.restart * s.steps + begin) * K + k;
                for (int64_t n = 0; n < size; n += 2 * W<T>) {
                    V<T> found[2];
                    density(columns + n, loc + state * F, chol + state * F * F, constant, found);
                    scatter<T>(found[0], size - n, K, rows + n * K);
                    if (size - n > W<T>) scatter<T>(found[1], size - n - W<T>, K, rows + (n + W<T>) * K);
                }
            }
        }
    }
};

struct Sums {
    double of_weight = 0, of_residual = 0, of_square = 0;
};

// Sums over a block for one state and one feature; two vectors at a time, since each sum waits for itself
template <class T, bool complete> Sums feature_sums(int64_t size, const T* x, const T* weights, T centre) {
    V<T> seen[2] = {}, first[2] = {}, second[2] = {};
    for (int64_t n = 0; n < size; n += 2 * W<T>)
        for (int64_t i = 0; i < 2; i++) {
            const V<T> value = load(x + n + i * W<T>), w = load(weights + n + i * W<T>);
            const V<T> r = complete ? value - centre : if_seen<T>(value, value - centre), weighted = w * r;
            if (!complete) seen[i] += if_seen<T>(value, w);
            first[i] += weighted;
            second[i] += weighted * r;
        }
    return {total<T>(seen[0] + seen[1]), total<T>(first[0] + first[1]), total<T>(second[0] + second[1])};
}

template <class T> double sum_of(int64_t size, const T* numbers) {
    V<T> sums{};
    for (int64_t n = 0; n < size; n += W<T>) sums += load(numbers + n);
    return total<T>(sums);
}

// Sums over a block of weight * r_f, and of weight * r_f r_g for N rows g
template <class T, int N>
void product_sums(int64_t size, const T* weights, const T* r_f, const T* r_g, double* of_residual, double* of_products) {
    V<T> first{}, sums[N] = {};
    for (int64_t n = 0; n < size; n += W<T>) {
        const V<T> weighted = load(weights + n) * load(r_f + n);
        first += weighted;
        for (int g = 0; g < N; g++) sums[g] += weighted * load(r_g + g * BLOCK + n);
    }
    *of_residual = total<T>(first);
    for (int g = 0; g < N; g++) of_products[g] += total<T>(sums[g]);
}

template <class T> class Moments {
    const Sizes& s;
    const bool by_feature;
    Room<T> room;
    Room<double> sums;
    T *columns, *weights, *residuals;  // [features, BLOCK], [states, BLOCK], [features, BLOCK]
    double *count, *first, *second;    // as results are

    void of_block_by_feature(int64_t size, bool complete, const T* about) {
        for (int64_t k = 0; k < s.states; k++) {
            const T* w = weights + k * BLOCK;
            const double whole = complete ? sum_of<T>(size, w) : 0;
            for (int64_t f = 0; f < s.features; f++) {
                const int64_t at = k * s.features + f;
                const T* x = columns + f * BLOCK;
                const Sums found = (complete ? feature_sums<T, true> : feature_sums<T, false>)(size, x, w, about[at]);
                count[at] += complete ? whole : found.of_weight;
                first[at] += found.of_residual;
                second[at] += found.of_square;
            }
        }
    }

    void of_block(int64_t size, const T* about) {
        constexpr decltype(&product_sums<T, 1>) of[] = {product_sums<T, 1>, product_sums<T, 2>, product_sums<T, 3>,
                                                        product_sums<T, 4>};
        const int64_t F = s.features;
        for (int64_t k = 0; k < s.states; k++) {
            const T* w = weights + k * BLOCK;
            count[k] += sum_of<T>(size, w);
            for (int64_t f = 0; f < F; f++) {
                T* r = residuals + f * BLOCK;
                for (int64_t n = 0; n < size; n += W<T>) store<T>(r + n, load(columns + f * BLOCK + n) - about[k * F + f]);
                double of_residual = 0;
                double* row = second + (k * F + f) * F;
                for (int64_t g = 0; g <= f; g += 4)
                    of[std::min<int64_t>(f - g, 3)](size, w, r, residuals + g * BLOCK, &of_residual, row + g);
                first[k * F + f] += of_residual;
            }
        }
    }

    void write(int64_t item, T* to_count, T* to_first, T* to_second) const {
        const int64_t K = s.states, F = s.features, n = by_feature ? K * F : K, of_second = by_feature ? K * F : K * F * F;
        std::copy(count, count + n, to_count + item * n);
        std::copy(first, first + K * F, to_first + item * K * F);
        T* out = to_second + item * of_second;
        std::copy(second, second + of_second, out);
        if (by_feature) return;
        for (int64_t k = 0; k < K; k++, out += F * F)
            for (int64_t f = 0; f < F; f++)
                for (int64_t g = 0; g < f; g++) out[g * F + f] = out[f * F + g];
    }

public:
    Moments(const Sizes& s, bool by_feature)
        : s(s), by_feature(by_feature), room((2 * s.features + s.states) * BLOCK, 3),
          sums(s.states * (2 + s.features) * (1 + s.features), 3) {
        columns = room.take(s.features * BLOCK);
        residuals = room.take(s.features * BLOCK);
        weights = room.take(s.states * BLOCK);
        count = sums.take(s.states * (1 + s.features));
        first = sums.take(s.states * s.features);
        second = sums.take(s.states * s.features * (1 + s.features));
    }
    bool full() const { return room.full() || sums.full(); }

    // Of one item: a piece of the steps of a restart
    void of(int64_t item, const T* x, const T* all_weights, const T* about, T* to_count, T* to_first, T* to_second) {
        const Steps at = steps_of(s, item);
        const int64_t K = s.states, F = s.features;
        std::fill(count, count + K * (1 + F), 0.0);
        std::fill(first, first + K * F, 0.0);
        std::fill(second, second + K * F * (1 + F), 0.0);
        for (int64_t n = at.begin; n < at.end; n += BLOCK) {
            const int64_t size = std::min(BLOCK, at.end - n);
            const bool complete = columns_of(x + n * F, size, F, columns);
            columns_of(all_weights + (at.restart * s.steps + n) * K, size, K, weights);
            if (by_feature) of_block_by_feature(size, complete, about + at.restart * K * F);
            else of_block(size, about + at.restart * K * F);
        }
        write(item, to_count, to_first, to_second);
    }
};

}  // namespace
