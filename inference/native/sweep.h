// Sweeps of a discrete chain: filtering and smoothing in probabilities.
//
// With l_t the likelihoods of step t divided by the largest, and A_t the table of the moves from t to t + 1, forward and
// backward are one recursion in the two directions of time,
//
//   a_t ~ l_t (A_{t-1}' a_{t-1}),   b_t ~ l_t (A_t b_{t+1}),   both of sum 1:
//
// a sweep weighs a message by the likelihoods, records the weights, and pushes them through a table. A sweep in one
// direction meets the records of the other one: with the message m_t = A_t b_{t+1} and the record a_t,
//
//   P(s_t | x) = a_t m_t / n_t,  n_t = sum a_t m_t,   P(s_t = i, s_t+1 = j | x) = a_t(i) A_t(i, j) b_{t+1}(j) / n_{t+1}
//
// where n_{t+1} = sum_j (A_t' a_t)(j) b_{t+1}(j). Both sweeps start at the ends of a sequence, record up to its middle,
// and meet the other's records from there on. The posterior replaces the record, so nothing else is stored by step.
//
// Numbers below `tiny` are dropped. At each step this loses evidence of at most K tiny over the sum of the weights and
// over n_t. So if both exceed `least` at all steps, every result is right to rounding for any table. A lane says whether
// they did. NaN stays NaN, and exceeds nothing.
//
// The steps of a block are copied to rows of whole vectors, and back. A step waits for the step before it, so the lanes
// of a group, two for each sequence, take their steps in turn. A `Push` knows the tables:
//
//   move<G, meets>(lanes, n)  the messages of G lanes in one direction from the n-th step of their blocks to the next
//   count(lane, steps)        the moves of a block of steps to the records that a lane met
//   scale(lane, t)            the logarithm of the divisor of the table into step t
#pragma once
#include <algorithm>

#include "rows.h"
#include "sums.h"

namespace {

template <class T> struct Limits;
template <> struct Limits<double> {
    static constexpr double tiny = 1e-290, least = 1e-100, mixes = 1e-130;
};
template <> struct Limits<float> {
    static constexpr float tiny = 1e-36f, least = 1e-10f, mixes = 1e-13f;
};

// A sweep in one direction. Rows of a block: likelihoods and records by time; own weights, and the records that they met, in
// the order of the sweep. The first own row has the weights before the block.
template <class T> struct Lane {
    const T* log_likelihood;  // [T, K] of the sequence
    T *state, *increment;     // [T, K], and [T] or null
    T *message, *like, *record, *own, *met, *top, *mass, *inverse, *norm;
    T *likes, *tops;    // likelihoods of all steps by rows, and the largest logarithms, if they are kept between the sweeps
    T* weights;         // of the last step
    T before;           // one over their sum
    int64_t t, way;     // the next step; 1 forward, -1 backward
    int64_t low;        // the first step of both sweeps
    int64_t member;     // the place of the sequence in its group
    double first;       // the logarithm of the divisor of the table of the first step
    bool sure, linked;  // whether all digits were kept; whether the move to the next step that is met counts
    Evidence evidence;

    int64_t lowest(int64_t steps) const { return way > 0 ? t : t - steps + 1; }
};

template <class T, int NV, class Push> struct Sweep {
    const Sizes<T> of;
    Push& push;

    INLINE int64_t wide() const { return NV ? NV * W<T> : of.wide; }

    static constexpr int64_t TABLES = 9;  // of a lane
    static int64_t numbers(const Sizes<T>& of) { return of.pitch * (4 * of.block + 2) + 4 * of.block; }

    // A lane's memory
    Lane<T> lane(Room<T>& room, int64_t way, int64_t member) const {
        Lane<T> a{};
        for (T** rows : {&a.like, &a.record, &a.met}) *rows = room.take(of.pitch * of.block);
        a.own = room.take(of.pitch * (of.block + 1));
        a.message = room.take(of.pitch);
        for (T** numbers : {&a.top, &a.mass, &a.inverse, &a.norm}) *numbers = room.take(of.block);
        a.way = way;
        a.member = member;
        return a;
    }

    // Before step t, with a message of K numbers; null: 1, as nothing is known
    void start(Lane<T>& a, int64_t t, const T* message) const {
        for (int64_t j = 0; j < of.pitch; j++) a.message[j] = j < of.k ? (message ? message[j] : T(1)) : T(0);
        std::fill(a.own, a.own + of.pitch, T(0));
        a.t = t;
        a.before = 0;
        a.sure = true;
        a.linked = false;
        a.evidence = Evidence();
    }

    // Meets the record of the n-th step of a block: it becomes the posterior
    INLINE void meet(Lane<T>& a, int64_t n, int64_t row) const {
        const T* message = a.message;
        T *record = a.record + row * of.pitch, *met = a.met + n * of.pitch;
        V<T> sum{};
        for (int64_t j = 0; j < wide(); j += W<T>) sum += load(message + j) * load(record + j);
        const T norm = a.norm[row] = total<T>(sum), by = T(1) / norm, scale = by * a.before;
        for (int64_t j = 0; j < wide(); j += W<T>) {
            const V<T> x = load(record + j);
            store<T>(met + j, x * scale);
            store<T>(record + j, x * load(message + j) * by);
        }
    }

    template <bool meets> INLINE void step(Lane<T>& a, int64_t n, int64_t steps) const {
        const int64_t row = a.way > 0 ? n : steps - 1 - n;
        if constexpr (meets) meet(a, n, row);
        a.weights = meets ? a.own + (n + 1) * of.pitch : a.record + row * of.pitch;
        const T *like = a.like + row * of.pitch, *message = a.message;
        V<T> sum{};
        for (int64_t j = 0; j < wide(); j += W<T>) {
            const V<T> x = load(like + j) * load(message + j), kept = x < Limits<T>::tiny ? V<T>{} : x;
            store<T>(a.weights + j, kept);
            sum += kept;
        }
        a.mass[row] = total<T>(sum);
        a.inverse[row] = a.before = T(1) / a.mass[row];
    }

    template <bool meets> void begin(Lane<T>& a, int64_t steps) const {
        const int64_t first = a.lowest(steps) * of.k;
        if (a.likes) {
            a.like = a.likes + (a.lowest(steps) - a.low) * of.pitch;
            a.top = a.tops + (a.lowest(steps) - a.low);
        }
        if (!meets || !a.likes) exponentials<NV>(a.log_likelihood + first, steps, of, a.like, a.top);
        if (meets) unpack<NV>(a.state + first, steps, of, T(0), a.record);
        // the next block: processors follow few tables at once, and none backward in time
        const int64_t size = steps * of.k, next = first + a.way * size;
        for (int64_t e = 0; e < size; e += 64 / int64_t(sizeof(T))) {
            prefetch(a.state + next + e);
            if (!meets || !a.likes) prefetch(a.log_likelihood + next + e);
            else prefetch(a.likes + (next / of.k - a.low) * of.pitch + e);
        }
    }

    template <bool meets> void end(Lane<T>& a, int64_t steps) {
        const int64_t first = a.lowest(steps);
        constexpr T least = Limits<T>::least;
        for (int64_t r = 0; r < steps; r++) a.sure &= a.mass[r] >= least && (!meets || a.norm[r] >= least);
        if (a.way > 0)
            for (int64_t r = 0; r < steps; r++) {
                const double scale = a.top[r] + (first + r ? double(push.scale(a, first + r)) : a.first);
                a.evidence.gain(scale, a.mass[r]);
                if (a.increment) a.increment[first + r] = T(scale + std::log(double(a.mass[r])));
            }
        if (meets) push.count(a, steps);
        pack<NV>(a.record, steps, of, meets ? nullptr : a.inverse, a.state + first * of.k);
        std::copy(a.weights, a.weights + of.pitch, a.own);
        a.linked = true;
        a.t += a.way * steps;
    }

    // Takes some steps of G forward and of G backward lanes
    template <int G, bool meets> void advance(Lane<T>* up, Lane<T>* down, int64_t n_up, int64_t n_down) {
        Lane<T>* const sides[2] = {up, down};
        for (; n_up > 0 || n_down > 0; n_up -= of.block, n_down -= of.block) {
            const int64_t steps[2] = {std::clamp<int64_t>(n_up, 0, of.block), std::clamp<int64_t>(n_down, 0, of.block)};
            for (int side = 0; side < 2; side++)
                for (int g = 0; g < (steps[side] ? G : 0); g++) begin<meets>(sides[side][g], steps[side]);
            if (of.in_turn) take<G, meets>(sides, steps, 0, 2);
            else {
                take<G, meets>(sides, steps, 0, 1);
                take<G, meets>(sides, steps, 1, 2);
            }
            for (int side = 0; side < 2; side++)
                for (int g = 0; g < (steps[side] ? G : 0); g++) end<meets>(sides[side][g], steps[side]);
        }
    }
    template <int G, bool meets> void take(Lane<T>* const* sides, const int64_t* steps, int first, int last) {
        const int64_t most = std::max(steps[first], steps[last - 1]);
        for (int64_t n = 0; n < most; n++)
            for (int side = first; side < last; side++) {
                if (n >= steps[side]) continue;
                for (int g = 0; g < G; g++) step<meets>(sides[side][g], n, steps[side]);
                push.template move<G, meets>(sides[side], n);
            }
    }

    // G sequences of so many steps, from both ends to the middle, and on to the other ends. Of an odd number of steps, the
    // backward sweep records one more; the forward sweep counts the move in the middle.
    template <int G> void smooth(Lane<T>* up, Lane<T>* down, const int64_t* lengths) {
        const int64_t shared = *std::min_element(lengths, lengths + G) / 2;
        advance<G, false>(up, down, shared, shared);
        for (int g = 0; g < G; g++) {
            const int64_t rest = lengths[g] / 2 - shared, odd = lengths[g] % 2;
            advance<1, false>(up + g, down + g, rest, rest + odd);
            down[g].linked = false;
        }
        advance<G, true>(up, down, shared, shared);
        for (int g = 0; g < G; g++) {
            const int64_t rest = lengths[g] / 2 - shared, odd = lengths[g] % 2;
            advance<1, true>(up + g, down + g, rest + odd, rest);
        }
    }

    // Counts the move to the step before which a forward lane stands, whose backward weights are given
    void join(Lane<T>& a, const T* weights) {
        for (int64_t j = 0; j < of.pitch; j++) a.record[j] = j < of.k ? weights[j] : T(0);
        meet(a, 0, 0);
        a.sure &= a.norm[0] >= Limits<T>::least;
        push.count(a, 1);
    }

    // The message to a lane's next step, and the weights that it was pushed from, of sum 1: [2, K]
    void last(const Lane<T>& a, T* to) const {
        for (int64_t j = 0; j < of.k; j++) {
            to[j] = a.message[j];
            to[of.k + j] = a.own[j] * a.before;
        }
    }

    template <int G> void filter(Lane<T>* up, const int64_t* lengths) {
        const int64_t shared = *std::min_element(lengths, lengths + G);
        advance<G, false>(up, up, shared, 0);
        for (int g = 0; g < G; g++) advance<1, false>(up + g, up + g, lengths[g] - shared, 0);
    }
};

}  // namespace
