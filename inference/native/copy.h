// Copy chains: filtering, smoothing and the evidence, at O(K) a step.
//
//   a_t = held_t a_{t-1} + fresh_t sum(a_{t-1}),   b_{t-1} = held_t b_t + <fresh_t, b_t>,   P(s_t | x) ~ a_t b_t,
//   P(s_t, z_t = 1 | x) ~ fresh_t sum(a_{t-1}) b_t,   P(s_t, z_t = 0 | x) ~ held_t a_{t-1} b_t,   p(x) = sum(a_T)
//
// A sequence is swept from both ends to its middle, and on to the other ends: the sweeps do not wait for each other, so
// a processor computes them at once. Each records its messages in one half, and meets those of the other in the other
// half. A half is swept in blocks. The message at the border of two blocks is kept, and a block is filled again before
// it is met, unless it was filled last.
//
// Weights have the precision of the tables, messages that of double. A message is rescaled only where its sum leaves
// MASSES. No number may underflow to a 0 that means "impossible". So a weight below `lowest` is raised to it, and a
// belief below FLOOR likewise. Such a state is lost: its belief is an upper bound, not a value. This is harmless while a
// lost state gains only from redraws. If one rises above `lost` by being held, or the weight of a step is below `least`,
// the sequence is risky, and is computed in logarithms. Futures that are found before the belief are trusted if they are
// within 1 / calm of the sum of their redraws; otherwise the sequence is swept forward as a whole, and then back.
//
// `copy_tables.h` reads the tables, and `copy_half.h` has the steps. The plain forms are `chains/copy/plain.py` and
// `chains/factored_copy/plain.py`.
#pragma once
#include "copy_half.h"

namespace {

constexpr int64_t SMALLER = 16;   // a block that is filled again, than one that is not
constexpr int64_t FEW = 1 << 11;  // weights of a block that is not met again, in the first-level cache

// Does steps of two sweeps by turns
template <class A, class B> INLINE void by_turns(int64_t n, int64_t m, A one, B other) {
    for (int64_t i = 0; i < std::max(n, m); i++) {
        if (i < n) one(i);
        if (i < m) other(i);
    }
}

template <class T, class Tables, int NV> struct Smoother {
    using D = double;
    Half<T, Tables, NV> near, far;

    // The steps of a block: all of a half that has at most so many weights, else so few that they stay in a cache. 0: none
    // is met again.
    static int64_t rows_of(int64_t steps, int64_t p, int64_t weights) {
        const int64_t half = (steps + 1) / 2;
        if (half * p <= weights) return half;
        const int64_t most = std::max<int64_t>(1, (weights ? weights / SMALLER : FEW) / p), blocks = (half + most - 1) / most;
        return (half + blocks - 1) / blocks;
    }
    static int64_t numbers(int64_t steps, int64_t p, int64_t rows) {
        return 2 * Half<T, Tables, NV>::numbers(rows, p, steps / rows + 2) + p;
    }
    Smoother(Room<D>& room, int64_t steps, int64_t k, int64_t p, int64_t rows) {
        for (auto half : {&near, &far}) {
            half->k = k, half->p = p, half->rows = rows;
            half->place(room, steps / rows + 2);
        }
    }

    // log p(x) of a sequence from the belief before it, and the posterior; or a verdict
    Verdict smooth(int64_t steps, const D* start, const Wanted<T>& out, D& value, int64_t& failed) {
        near.out = far.out = out;
        Verdict found = smooth_halves(steps, (steps + 1) / 2, start, value, failed);
        if (found == FINE && !(near.trusted && far.trusted)) found = smooth_halves(steps, steps, start, value, failed);
        if (found == FINE && out.drawn)
            for (int64_t j = 0; j < near.k; j++) out.drawn[j] = T(near.drawn[j] + far.drawn[j]);
        return found;
    }

    APART Verdict smooth_halves(int64_t steps, int64_t middle, const D* start, D& value, int64_t& failed) {
        near.restart(0, middle), far.restart(middle, steps);
        const int64_t n = near.blocks(), m = far.blocks(), p = near.p;
        std::copy(start, start + p, near.kept);
        std::fill(far.kept + m * p, far.kept + (m + 1) * p, 1.0);
        for (int64_t i = 0; i < std::max(n, m); i++) record(i < n ? i : -1, m - 1 - i, true);
        failed = near.failed;
        if (near.verdict != FINE || !far.trusted) return near.verdict;
        if (!near.out.any()) return meet_in_the_middle(n, value);
        Evidence whole = near.evidence;
        std::copy(near.kept + n * p, near.kept + (n + 1) * p, far.spare);
        std::copy(far.kept, far.kept + p, near.spare);
        Message<NV> future = near.read(near.spare, near.spare), belief = far.read(far.spare, far.spare);
        for (int64_t i = 0; i < std::max(n, m); i++) {
            const int64_t a = n - 1 - i, b = i < m ? i : -1;
            if (i > 0) record(a, b, false);
            meet(a, b, future, belief);
        }
        if (near.out.initial) write_initial(future);
        join(whole, far.evidence);
        value = whole.value();
        failed = far.failed;
        return far.verdict;
    }
    // Fills and sweeps a block of each half, -1 for none. Only the first time is it counted.
    APART void record(int64_t a, int64_t b, bool counts) {
        const int64_t p = near.p, n = a < 0 ? 0 : near.size(a), m = b < 0 ? 0 : far.size(b);
        Message<NV> belief{}, future{};
        if (n) near.fill(a), near.mass[0] = 1, belief = near.read(near.kept + a * p, near.row(0));
        if (m) far.fill(b), future = far.read(far.kept + (b + 1) * p, far.row(m));
        by_turns(n, m, [&](int64_t i) { near.forward(i, belief); }, [&](int64_t i) { far.retreat(m - 1 - i, future); });
        if (n && counts) near.end_forward(a, belief);
        if (m && counts) far.end_retreat(b, future);
    }
    // Meets the recorded blocks of both halves
    APART void meet(int64_t a, int64_t b, Message<NV>& future, Message<NV>& belief) {
        const int64_t n = a < 0 ? 0 : near.size(a), m = b < 0 ? 0 : far.size(b);
        Message<NV> next = far.beside(belief);
        far.mass[0] = 1;
        if (n && a + 1 < near.blocks()) near.scale_by(1 / near.mass[n], future);
        by_turns(n, m, [&](int64_t i) { near.meet_beliefs(n - 1 - i, future); },
                 [&](int64_t i) { far.meet_futures(i, belief, next); });
        if (m) far.end_meeting(m, belief);
    }
    APART Verdict meet_in_the_middle(int64_t n, D& value) const {
        Evidence whole = near.evidence;
        D met = 0;
        for (int64_t j = 0; j < near.p; j++) met += near.kept[n * near.p + j] * far.kept[j];
        join(whole, far.of_futures);
        whole.add(std::log(met));
        value = whole.value();
        return met > 0 && met < INFINITY ? FINE : RISKY;
    }
    static APART void join(Evidence& whole, const Evidence& part) {
        whole.add(part.sum);
        whole.add(part.rest + std::log(part.factor));
    }
    APART void write_initial(const Message<NV>& future) {
        const D* start = near.row(0);
        D met = 0;
        near.write(future, 1, near.spare);
        for (int64_t j = 0; j < near.k; j++) met += start[j] * near.spare[j];
        for (int64_t j = 0; j < near.k; j++) near.out.initial[j] = T(start[j] * near.spare[j] / (met > 0 ? met : 1));
    }
};

// The beliefs after each step, in one sweep
template <class T, class Tables, int NV> struct Filter {
    Half<T, Tables, NV> half;
    Room<double> room;

    static int64_t rows_of(int64_t steps, int64_t p) { return std::max<int64_t>(1, std::min(steps, FEW / p)); }
    Filter(int64_t steps, int64_t k, int64_t p) : room(Half<T, Tables, NV>::numbers(rows_of(steps, p), p, 1), 32) {
        half.k = k, half.p = p, half.rows = rows_of(steps, p);
        if (!room.full()) half.place(room, 1);
    }
    // A sequence from the belief before it
    template <class S, class I> APART Verdict run(int64_t steps, const double* start, S* state, S* redraw, I* increment) {
        half.restart(0, steps);
        std::copy(start, start + half.p, half.kept);
        for (int64_t block = 0; block < half.blocks() && half.verdict == FINE; block++) {
            half.fill(block);
            half.mass[0] = 1;
            auto belief = half.read(half.kept, half.row(0));
            const int64_t n = half.size(block);
            for (int64_t r = 0; r < n; r++) half.forward(r, belief);
            half.write_filtered(n, state, redraw, increment);
            half.write(belief, 1 / half.mass[n], half.kept);
        }
        return half.verdict;
    }
};

}  // namespace
