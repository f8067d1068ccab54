// Sweeps of a discrete chain: filtering and smoothing in probabilities. The plain form is `chains/markov/plain.py`.
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
// and meet the other's records from there on, the last first. The posterior replaces the record.
//
// Numbers below `tiny` are dropped. At each step this loses evidence of at most K tiny over the sum of the weights and
// over n_t. So if both exceed `least` at all steps, every result is right to rounding for any table. A lane says whether
// they did. NaN stays NaN, and exceeds nothing.
//
// A lane sweeps M members in one direction: one sequence, or W<T> beside each other in the lanes of vectors. A step waits
// for the step before it, so the lanes of a group, G for each direction, take their steps in turn. Members of a group may
// differ in length. One whose steps are over, or have not begun, is idle: its message is put back after each block.
// A `Push` knows the tables:
//
//   move<G, meets>(lanes, n)  the messages of G lanes in one direction from the n-th step of their blocks to the next
//   count(lane, steps)        the moves of a block of steps to the records that a lane met
//   scale(lane, m, t, n)      the sum of the logarithms of the divisors of the tables into n steps of member m from t on
#pragma once
#include "rows.h"

namespace {

template <class T> struct Limits;
template <> struct Limits<double> {
    static constexpr double tiny = 1e-290, least = 1e-100, mixes = 1e-130;
};
template <> struct Limits<float> {
    static constexpr float tiny = 1e-36f, least = 1e-10f, mixes = 1e-13f;
};

// Rows of likelihoods and records by the steps of a sweep, and the largest log-likelihood of each
template <class T, int M> struct Records {
    T *like, *record;
    One<T, M>* top;
    Records from(int64_t row, int64_t pitch) const { return {like + row * pitch, record + row * pitch, top + row}; }
};

// A member of a lane: steps low <= t < high of a sequence
template <class T> struct Member {
    const T* log_likelihood;  // [T, K] of the sequence
    T *state, *increment;     // [T, K], and [T] or null
    int64_t low, high;
    int64_t records;  // steps of the lane's own
    double first;     // the logarithm of the divisor of the table of the first step
    bool sure;        // whether all digits were kept
    Evidence evidence;
};

// A sweep in one direction. Own weights, and the records that they met, are in the order of the sweep. The first own row
// has the weights before the block.
template <class T, int M> struct Lane {
    using N = One<T, M>;
    Member<T> of[M];
    Records<T, M> rows, block;            // of all own steps, or of one block; those of the block that is swept
    T *message, *own, *met, *weights;     // the weights of the last step
    T *held, *spare;                      // a message and weights that are put back, and a row that nobody reads
    N *mass, *inverse, *norm;             // of a block
    N before, held_before;                // one over the sum of the last weights
    int64_t place, way, row, t;           // in its group; 1 forward, -1 backward; the first record and step of a block
    bool active, idles, linked;           // whether a member is active, or idle; whether a first move counts

    bool has(int m, int64_t row) const { return of[m].records > row; }
    int64_t time(int m, int64_t row) const { return way > 0 ? of[m].low + row : of[m].high - 1 - row; }
};

template <class T, int NV, class Push, int M = 1> struct Sweep {
    using N = One<T, M>;
    using L = Lane<T, M>;
    using Rows = Records<T, M>;
    const Sizes<T> of;
    Push& push;
    const bool keeps;  // whether all rows are kept between the sweeps

    INLINE int64_t wide() const { return wide_of<NV>(of); }

    static constexpr int64_t TABLES = 11;  // of a lane
    static int64_t numbers(const Sizes<T>& of, int64_t rows) {
        return (of.pitch * 2 + M) * rows + (of.pitch * 2 + 3 * M) * of.block + 5 * of.pitch;
    }

    // A lane's memory, for so many rows
    void place(L& a, Room<T>& room, int64_t g, int64_t way, int64_t rows) const {
        const auto numbers = [&](int64_t n) { return reinterpret_cast<N*>(room.take(n * M)); };
        a.rows = a.block = {room.take(of.pitch * rows), room.take(of.pitch * rows), numbers(rows)};
        a.own = room.take(of.pitch * (of.block + 1));
        a.met = room.take(of.pitch * of.block);
        a.message = room.take(of.pitch);
        a.held = room.take(2 * of.pitch);
        a.spare = room.take(of.pitch);
        for (N** table : {&a.mass, &a.inverse, &a.norm}) *table = numbers(of.block);
        a.place = g;
        a.way = way;
    }

    // Before its first step, with a message of K numbers to a member; null: 1, as nothing is known
    void start(L& a, int m, const T* message) const {
        for (int64_t j = 0; j < of.pitch / M; j++) {
            a.message[j * M + m] = j < of.k ? (message ? message[j] : T(1)) : T(0);
            a.own[j * M + m] = 0;
        }
        a.before = N{} + T(1);
        a.linked = false;
        a.of[m].sure = true;
        a.of[m].evidence = Evidence();
    }

    // Meets the record of the n-th step of a block: it becomes the posterior
    INLINE void meet(L& a, int64_t n, int64_t row) const {
        const T* message = a.message;
        T *record = a.block.record + row * of.pitch, *met = a.met + n * of.pitch;
        V<T> sum{};
        for (int64_t j = 0; j < wide(); j += W<T>) sum += load(message + j) * load(record + j);
        const N whole = over_states<T, M>(sum), by = T(1) / whole;
        a.norm[n] = whole * a.before;
        for (int64_t j = 0; j < wide(); j += W<T>) {
            const V<T> x = load(record + j) * by;
            store<T>(met + j, x);
            store<T>(record + j, x * load(message + j));
        }
    }

    template <bool meets> INLINE void step(L& a, int64_t n, int64_t steps) const {
        const int64_t row = meets ? steps - 1 - n : n;
        if constexpr (meets) meet(a, n, row);
        a.weights = meets ? a.own + (n + 1) * of.pitch : a.block.record + row * of.pitch;
        const T *like = a.block.like + row * of.pitch, *message = a.message;
        V<T> sum{};
        for (int64_t j = 0; j < wide(); j += W<T>) {
            const V<T> x = load(like + j) * (load(message + j) * a.before), kept = x < Limits<T>::tiny ? V<T>{} : x;
            store<T>(a.weights + j, kept);
            sum += kept;
        }
        a.mass[n] = over_states<T, M>(sum);
        a.inverse[n] = a.before = T(1) / a.mass[n];
    }

    // Where the rows of a block lie in a table of each member; idle members have a spare row
    template <class U, class Table> Places<U, M> places(const L& a, const L& records, Table table) const {
        Places<U, M> found;
        for (int m = 0; m < M; m++) {
            const bool has = records.has(m, a.row);
            found.at[m] = has ? records.of[m].*table + records.time(m, a.row) * of.k : a.spare;
            found.apart[m] = has ? records.way * of.k : 0;
        }
        return found;
    }

    // Before a block of steps: rows from a.row on, of a lane's own records or of those that it meets
    template <bool meets> void begin(L& a, const L& records, int64_t steps) const {
        const Rows& rows = keeps ? records.rows : a.rows;
        a.block = keeps ? rows.from(a.row, of.pitch) : rows;
        a.t = records.time(0, meets ? a.row + steps - 1 : a.row);
        a.active = false;
        a.idles = false;
        for (int m = 0; m < M; m++) (records.has(m, a.row) ? a.active : a.idles) = true;
        if (a.active && !(meets && keeps))
            exponentials<NV, T, M>(places<const T>(a, records, &Member<T>::log_likelihood), steps, of, a.block.like,
                                   a.block.top);
        if (a.active && meets && !keeps)
            unpack<NV, T, M>(places<const T>(a, records, &Member<T>::state), steps, of, T(0), a.block.record);
        if (!a.idles) return;
        std::copy(a.message, a.message + of.pitch, a.held);
        std::copy(a.own, a.own + of.pitch, a.held + of.pitch);
        a.held_before = a.before;
    }

    template <bool meets> void end(L& a, const L& records, int64_t steps) {
        for (int m = 0; m < M; m++)
            if (records.has(m, a.row)) look<meets>(a, m, records.time(m, a.row + (meets ? steps - 1 : 0)), steps);
            else if (meets) clear(a, m, steps);
        if (a.active && meets) push.count(a, steps);
        if (a.active && (meets || !keeps))
            pack<NV, T, M>(a.block.record, steps, of, meets ? nullptr : a.inverse, places<T>(a, records, &Member<T>::state));
        std::copy(a.weights, a.weights + of.pitch, a.own);
        a.linked |= a.active;
        for (int m = 0; m < (a.idles ? M : 0); m++)
            if (!records.has(m, a.row)) put_back(a, m);
    }
    // Whether a member's steps, from one on, kept all digits; and their evidence
    template <bool meets> void look(L& a, int m, int64_t first, int64_t steps) const {
        const auto entry = [m](const N* numbers, int64_t n) { return reinterpret_cast<const T*>(numbers)[n * M + m]; };
        constexpr T least = Limits<T>::least;
        Member<T>& one = a.of[m];
        bool sure = one.sure;
        for (int64_t n = 0; n < steps; n++) sure &= entry(a.mass, n) >= least && (!meets || entry(a.norm, n) >= least);
        one.sure = sure;
        if (a.way < 0) return;
        double scale = push.scale(a, m, first, steps);
        for (int64_t n = 0; n < steps; n++) {
            scale += entry(a.block.top, n);
            one.evidence.times(entry(a.mass, n));
        }
        one.evidence.add(first ? scale : scale + one.first);
        for (int64_t n = 0; n < (one.increment ? steps : 0); n++) {
            const double top = entry(a.block.top, n) + (first + n ? double(push.scale(a, m, first + n, 1)) : one.first);
            one.increment[first + n] = T(top + std::log(double(entry(a.mass, n))));
        }
    }
    // An idle member has no moves, and keeps its message
    void clear(L& a, int m, int64_t steps) const {
        for (int64_t e = m; e < steps * of.pitch; e += M) a.own[e] = a.met[e] = 0;
    }
    void put_back(L& a, int m) const {
        for (int64_t e = m; e < of.pitch; e += M) {
            a.message[e] = a.held[e];
            a.own[e] = a.held[of.pitch + e];
        }
        reinterpret_cast<T*>(&a.before)[m] = reinterpret_cast<T*>(&a.held_before)[m];
    }

    // Sweeps G lanes in each direction. They record all rows of their own, or meet those of the other direction, the last first.
    template <int G, bool meets> void advance(L* up, L* down) {
        L* const sides[2] = {up, down};
        int64_t row[2] = {meets ? most<G>(down) : 0, meets ? most<G>(up) : 0}, steps[2];
        for (;;) {
            const auto each = [&](auto call) {
                for (int side = 0; side < 2; side++)
                    for (int g = 0; g < (steps[side] ? G : 0); g++)
                        call(sides[side][g], sides[meets ? 1 - side : side][g], side);
            };
            for (int side = 0; side < 2; side++) {
                steps[side] = next<G, meets>(sides[meets ? 1 - side : side], row[side]);
                if (meets) row[side] -= steps[side];
            }
            if (!steps[0] && !steps[1]) return;
            each([&](L& a, L& records, int side) {
                a.row = row[side];
                begin<meets>(a, records, steps[side]);
            });
            if (of.in_turn) take<G, meets>(sides, steps, 0, 2);
            else {
                take<G, meets>(sides, steps, 0, 1);
                take<G, meets>(sides, steps, 1, 2);
            }
            each([&](L& a, L& records, int side) { end<meets>(a, records, steps[side]); });
            if (!meets)
                for (int side = 0; side < 2; side++) row[side] += steps[side];
        }
    }
    template <int G> static int64_t most(const L* records) {
        int64_t most = 0;
        for (int g = 0; g < G; g++)
            for (const Member<T>& one : records[g].of) most = std::max(most, one.records);
        return most;
    }
    // The steps of the next block from a row on, or up to it: a member has all of its rows or none
    template <int G, bool meets> int64_t next(const L* records, int64_t row) const {
        int64_t to = meets ? std::max<int64_t>(row - of.block, 0) : std::min(row + of.block, most<G>(records));
        for (int g = 0; g < G; g++)
            for (const Member<T>& one : records[g].of)
                if (meets && one.records < row) to = std::max(to, one.records);
                else if (!meets && one.records > row) to = std::min(to, one.records);
        return meets ? row - to : to - row;
    }
    template <int G, bool meets> void take(L* const* sides, const int64_t* steps, int first, int last) {
        const int64_t most = std::max(steps[first], steps[last - 1]);
        for (int64_t n = 0; n < most; n++)
            for (int side = first; side < last; side++) {
                if (n >= steps[side]) continue;
                for (int g = 0; g < G; g++) step<meets>(sides[side][g], n, steps[side]);
                push.template move<G, meets>(sides[side], n);
            }
    }

    // From both ends of each member to its middle, and on to the other ends. The forward sweep counts the move in the middle.
    template <int G> void smooth(L* up, L* down) {
        advance<G, false>(up, down);
        for (int g = 0; g < G; g++) {
            std::fill(down[g].own, down[g].own + of.pitch, T(0));
            down[g].linked = false;
        }
        advance<G, true>(up, down);
    }

    // Counts the moves to the steps before which the members of a forward lane stand, whose backward weights are given, or null
    void join(L& a, const T* const* weights) {
        a.block = a.rows;
        for (int64_t j = 0; j < of.pitch / M; j++)
            for (int m = 0; m < M; m++) a.block.record[j * M + m] = j >= of.k ? T(0) : weights[m] ? weights[m][j] : T(1);
        meet(a, 0, 0);
        for (int m = 0; m < M; m++)
            if (weights[m]) a.of[m].sure &= reinterpret_cast<const T*>(a.norm)[m] >= Limits<T>::least;
            else clear(a, m, 1);
        push.count(a, 1);
    }

    // The message to a member's next step, and the weights that it was pushed from, of sum 1: [2, K]
    void last(const L& a, int m, T* to) const {
        const T before = reinterpret_cast<const T*>(&a.before)[m];
        for (int64_t j = 0; j < of.k; j++) {
            to[j] = a.message[j * M + m] * before;
            to[of.k + j] = a.own[j * M + m] * before;
        }
    }
};

}  // namespace
