// One step of a stack: superposed histories, or layers of fluid. The plain forms are `stacks/superposition/op.py` and
// `stacks/stratification/op.py`.
//
// A step of superposed stacks takes raw numbers of a controller.
// The softmax of the first ones is a, the probabilities of a push, a
// pop, a hold, and of popping two cells, three and so on; the sigmoid of the others, less the reading of an empty cell, is
// the pushed value v. With S[-1] = v, and S[i] = 0 beyond the last cell,
//
//   S'[i] = a_push S[i-1] + a_pop S[i+1] + a_hold S[i] + sum_{k>1} a_k S[i+k],      reading[i] = S'[i] + empty.
//
// Beside each other, v and the cells are one row p of numbers, and S'[j] = sum_n a_n p[j + moved(n)]. The adjoint is
//
//   d a_n = sum_j d S'[j] p[j + moved(n)],      d p[j] = sum_n a_n d S'[j - moved(n)],      d raw_n = a_n (d a_n - a . d a).
//
// A step of a stack of layers, oldest first, takes raw numbers as well: the sigmoids of the first two are the strength
// poured and the one drained, the tanh of the others is the value of the layer poured. With above[i] = sum_{j>i} s[j],
//
//   s'[i] = max(0, s[i] - max(0, drain - above[i])),  s'[n] = pour,      w[i] = min(s'[i], max(0, 1 - above'[i])),
//   reading = sum_i w[i] v[i].
#pragma once
#include <algorithm>
#include <vector>

#include "vec.h"

namespace {

// The sizes of one step of one stack: actions, numbers of a cell, cells before, after, and read
struct Step {
    int64_t actions, width, before, after, read;
    int64_t raw() const { return actions + width; }
    int64_t seen() const { return std::min(read, after) * width; }
    int64_t numbers() const { return (std::max(before, after) + 1 + actions) * width; }  // that the moves of p reach
    int64_t moved(int64_t n) const { return n == 0 ? 0 : n == 1 ? 2 * width : n == 2 ? width : n * width; }
};

// Step after step of stacks with the same limits
template <class T> class Superposition {
    T empty;
    int64_t margin;  // zeros before a row of gradients
    std::vector<T> raw, action, slope, row, gradient, sums;

    // Actions, and the row p
    void prepare(Step s, const T* from, const T* cells) {
        const int64_t A = s.actions, end = s.width * (s.before + 1);
        std::copy_n(from, s.raw(), raw.data());
        T highest = raw[0], sum = 0;
        for (int64_t n = 1; n < A; n++) highest = raw[n] > highest || raw[n] != raw[n] ? raw[n] : highest;
        for (int64_t n = 0; n < A; n += W<T>) store(&action[n], exp_not_positive<T>(load(&raw[n]) - highest));
        for (int64_t n = 0; n < A; n++) sum += action[n];
        for (int64_t n = 0; n < A; n++) action[n] /= sum;
        for (int64_t j = 0; j < s.width; j += W<T>) {
            const auto value = sigmoids<T>(load(&raw[A + j]));
            store(&row[j], value.of - empty);
            store(&slope[j], value.of * value.of_less);
        }
        std::copy_n(cells, s.before * s.width, &row[s.width]);
        std::fill(&row[end], &row[s.numbers() + W<T>], T(0));
    }

public:
    // For steps with up to so many cells before and after
    Superposition(Step most, T empty)
        : empty(empty), margin(most.width * most.actions), raw(most.raw() + 2 * W<T>), action(most.actions + W<T>),
          slope(most.width + W<T>), row(most.numbers() + 2 * W<T>),
          gradient(margin + row.size()), sums(most.actions) {}

    // Cells and those after may be the same
    void step(Step s, const T* from, const T* cells, T* after, T* reading) {
        prepare(s, from, cells);
        const int64_t size = s.after * s.width;
        for (int64_t j = 0; j < size; j += W<T>) {
            V<T> sum = action[0] * load(&row[j]);
            for (int64_t n = 1; n < s.actions; n++) sum += action[n] * load(&row[j + s.moved(n)]);
            store_some<T>(after + j, sum, size - j);
        }
        for (int64_t j = 0; j < s.seen(); j++) reading[j] = after[j] + empty;
        for (int64_t j = s.seen(); j < s.read * s.width; j++) reading[j] = empty;
    }

    // Gradients of what comes after may be missing; those of the cells may lie in the same place.
    void adjoint(Step s, const T* from, const T* cells, const T* d_after, const T* d_reading, T* d_raw, T* d_cells) {
        prepare(s, from, cells);
        const int64_t size = s.after * s.width, old = s.before * s.width;
        T *g = &gradient[margin], mean = 0;
        std::fill(g + (d_after ? size : 0), g + s.numbers() + W<T>, T(0));
        if (d_after) std::copy_n(d_after, size, g);
        for (int64_t j = 0; d_reading && j < s.seen(); j++) g[j] += d_reading[j];
        for (int64_t n = 0; n < s.actions; n++) {
            V<T> sum{};
            for (int64_t j = 0; j < size; j += W<T>) sum += load(g + j) * load(&row[j + s.moved(n)]);
            mean += action[n] * (sums[n] = total<T>(sum));
        }
        for (int64_t n = 0; n < s.actions; n++) d_raw[n] = action[n] * (sums[n] - mean);
        for (int64_t j = 0; j < s.width; j++) d_raw[s.actions + j] = action[0] * slope[j] * g[j];
        for (int64_t j = 0; j < old; j += W<T>) {
            V<T> sum = action[0] * load(g + j + s.width);
            for (int64_t n = 1; n < s.actions; n++) sum += action[n] * load(g + j + s.width - s.moved(n));
            store_some<T>(d_cells + j, sum, old - j);
        }
    }
};

template <class T> INLINE T positive(T x) { return x < T(0) ? T(0) : x; }
template <class T> INLINE T sigmoid(T x) { return sigmoids<T>(splat(x)).of[0]; }

// Step after step of stacks of up to so many layers, n before a step, with values of some width. A step writes the value of
// the new layer behind those of the others.
template <class T> class Layers {
    const int64_t width;
    std::vector<T> above, room, gradient, of_room;  // strength above each layer, and what it leaves of 1 after the step

    static T weight(T strength, T left) { return left < strength || left != left ? left : strength; }

    // The gradient of the weight of a layer goes to its strength or to what is above it, or half to each; that of its value
    // is added.
    void read(int64_t i, T strength, const T* value, const T* d_reading, T* d_value) {
        const T left = positive(room[i]), w = weight(strength, left);
        of_room[i] = 0;
        if (!d_reading || left == 0) return;
        T d = 0;
        for (int64_t j = 0; j < width; j++) d += d_reading[j] * value[j];
        for (int64_t j = 0; j < width; j++) d_value[j] += w * d_reading[j];
        const T share = strength < left ? T(1) : strength > left ? T(0) : T(0.5);
        gradient[i] += share * d;
        of_room[i] = (1 - share) * d;
    }

public:
    Layers(int64_t most, int64_t width) : width(width), above(most + 1), room(most + 1), gradient(most + 1), of_room(most + 1) {}

    // Strengths before and after may be the same.
    void step(int64_t n, const T* raw, const T* strength, T* values, T* after, T* reading) {
        const T pour = sigmoid(raw[0]), drain = sigmoid(raw[1]);
        T higher = 0, left = 1;
        for (int64_t j = 0; j < width; j++) values[n * width + j] = tanh<T>(splat(raw[2 + j]))[0];
        std::fill(reading, reading + width, T(0));
        for (int64_t i = n; i >= 0; i--) {
            const T before = i == n ? T(0) : strength[i];
            after[i] = i == n ? pour : positive(before - positive(drain - higher));
            const T w = weight(after[i], positive(left));
            for (int64_t j = 0; w != 0 && j < width; j++) reading[j] += w * values[i * width + j];
            left -= after[i];
            higher += before;
        }
    }

    // `after` are the strengths after the step. Gradients of what comes after may be missing; those of strengths before may
    // lie in the same place. `d_values` holds those of all values, and is added to.
    void adjoint(int64_t n, const T* raw, const T* strength, const T* after, const T* values, const T* d_after,
                 const T* d_reading, T* d_raw, T* d_strength, T* d_values) {
        const T pour = after[n], drain = sigmoid(raw[1]);
        T higher = 0, left = 1, of_drain = 0, of_left = 0, of_higher = 0;
        for (int64_t i = n; i >= 0; i--) {
            above[i] = higher, room[i] = left;
            gradient[i] = d_after ? d_after[i] : T(0);
            read(i, after[i], values + i * width, d_reading, d_values + i * width);
            left -= after[i];
            higher += i == n ? T(0) : strength[i];
        }
        for (int64_t i = 0; i < n; i++) {
            const T d = gradient[i] - of_left, drained = drain - above[i];
            const bool some = !(strength[i] - positive(drained) <= 0), reached = some && !(drained <= 0);
            d_strength[i] = of_higher + (some ? d : T(0));
            of_drain -= reached ? d : T(0);
            of_higher += reached ? d : T(0);
            of_left += of_room[i];
        }
        d_raw[0] = (gradient[n] - of_left) * pour * (1 - pour);
        d_raw[1] = of_drain * drain * (1 - drain);
        for (int64_t j = 0; j < width; j++) {
            const T value = values[n * width + j];
            d_raw[2 + j] = d_values[n * width + j] * (1 - value * value);
        }
    }
};

}  // namespace
