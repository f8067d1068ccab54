// Copy chains: filtering, smoothing and the evidence, at O(K) a step.
//
//   a_t = held_t a_{t-1} + fresh_t sum(a_{t-1}),   b_{t-1} = held_t b_t + <fresh_t, b_t>,   P(s_t | x) ~ a_t b_t,
//   P(s_t, z_t = 1 | x) ~ fresh_t sum(a_{t-1}) b_t,   P(s_t, z_t = 0 | x) ~ held_t a_{t-1} b_t,   p(x) = sum(a_T)
//
// A sequence is swept forward, and its beliefs a_t are recorded; then backward, where the futures b_t meet the beliefs. The
// weights of a few steps are computed at once, since a belief waits for the one before it. A long sequence is swept in
// blocks: beliefs are kept at the borders of blocks, and a block is swept forward again before it is met.
//
// A belief is rescaled only where its sum leaves MASSES. No number may underflow to a 0 that means "impossible", so a belief
// below FLOOR is raised to it. Such a state is lost: its belief is an upper bound, not a value. This is harmless while a
// lost state gains only from redraws. If one rises above LOST by being held, or the weight of a step is below LEAST, the
// sequence is risky, and is computed in logarithms.
//
// `copy_tables.h` reads the tables. The plain forms are `chains/copy/plain.py` and `chains/factored_copy/plain.py`.
#pragma once
#include "copy_logs.h"

namespace {

constexpr double MASSES[] = {1e-6, 1e6};
constexpr double FLOOR = 1e-150;  // the least belief that is not 0; its product with LOWEST is a normal number
// Products of neighbouring ones of these are below the precision of numbers.
constexpr double LEAST = 1e-75;   // total weight of a step
constexpr double LOST = 1e-70;    // the belief below which a state is lost
constexpr double SHARE = 1e-17;   // the largest contribution of a lost state, relative to a redraw
constexpr double CALM = 1e-50;    // if all redraws of a step have more weight, no state is lost, and lost ones do not matter
constexpr int64_t AHEAD = 4;      // steps whose weights are computed at once
constexpr int64_t SOON = 16;      // steps, before whose results are written their memory is asked for
constexpr int64_t SMALLER = 16;   // a block that is swept again, than one that is not
constexpr int64_t FEW = 1 << 11;  // weights of a block that is not met, in the first-level cache
enum Verdict { FINE, RISKY, IMPOSSIBLE };

// Sweeps of one sequence after another, in blocks of `rows` steps. Rows have p numbers: K, rounded up to whole vectors.
struct CopySweep {
    using D = double;
    const int64_t k, p, rows;
    Room<D> room;
    D *fresh, *held, *belief, *mass, *scale, *top;  // by step; the belief before a block is in row 0, and has mass 1
    D *future, *drawn, *beyond;                     // beyond: 1 at numbers that are no state, else 0
    Evidence evidence;
    Verdict verdict = FINE;
    int64_t failed = -1;

    // Steps of a block of sequences: all, if they have at most so many weights, else so few that they stay in a cache
    static int64_t rows_of(int64_t steps, int64_t p, int64_t weights) {
        if (steps * p <= weights) return steps;
        const int64_t most = std::max<int64_t>(1, (weights ? weights / SMALLER : FEW) / p), blocks = (steps + most - 1) / most;
        return (steps + blocks - 1) / blocks;
    }
    CopySweep(int64_t k, int64_t rows, int64_t others)  // others: numbers that the caller takes from its memory
        : k(k), p(round_up(k, W<D>)), rows(rows), room((3 * rows + 4) * p + 3 * (rows + 2 * W<D>) + others, 12) {
        if (room.full()) return;
        fresh = room.take(rows * p), held = room.take(rows * p), belief = room.take((rows + 1) * p);
        for (D** x : {&mass, &scale, &top}) *x = room.take(rows + 2 * W<D>);
        for (D** x : {&future, &drawn, &beyond}) *x = room.take(p);
        for (int64_t j = 0; j < p; j++) beyond[j] = j >= k;
    }
    void restart() { evidence = Evidence(), verdict = FINE, failed = -1; }

    // Calls for the number of a row, where that is one vector or two, so that loops over it are unrolled; else for 0
    template <class Call> void by_width(Call call) const {
        if (p == W<D>) call(std::integral_constant<int64_t, W<D>>());
        else if (p == 2 * W<D>) call(std::integral_constant<int64_t, 2 * W<D>>());
        else call(std::integral_constant<int64_t, 0>());
    }

    // The beliefs after n steps from t0
    template <class Tables> void forward(Tables& tables, int64_t t0, int64_t n) {
        by_width([&](auto width) { forward_of<width.value>(tables, t0, n); });
    }
    template <int64_t width, class Tables> APART void forward_of(Tables& tables, int64_t t0, int64_t n) {
        const int64_t p = width ? width : this->p;  // beside stores, members would be read again and again
        D *fresh = this->fresh, *held = this->held, *before = belief;
        D *const mass = this->mass, *const scale = this->scale, *const top = this->top, *const beyond = this->beyond;
        V<D> total = splat(D(1));
        mass[0] = 1;
        for (int64_t r = 0; r < n; r++, fresh += p, held += p, before += p) {
            if (r % AHEAD == 0)
                for (int64_t i = 0; i < std::min(AHEAD, n - r); i++)
                    top[r + i] = tables.read(t0 + r + i, p, fresh + i * p, held + i * p);
            D* const after = before + p;
            V<D> sum{}, least = splat(D(1));
            for (int64_t j = 0; j < p; j += W<D>) {
                const V<D> drawing = load(fresh + j), x = drawing * total + load(held + j) * load(before + j);
                store(after + j, x);
                sum += x;
                least = smaller<D>(drawing + load(beyond + j), least);
            }
            total = all_of(sum);
            const bool calm = everywhere<D>(least, smaller<D>)[0] > CALM;
            D by = 1;
            if (__builtin_expect(!calm, 0)) total = splat(weigh_carefully(fresh, held, before, mass[r], after));
            if (__builtin_expect(!(total[0] > MASSES[0] && total[0] < MASSES[1]), 0)) {
                by = judge(t0 + r, total[0], mass[r]);
                for (int64_t j = 0; j < p; j += W<D>) store(after + j, load(after + j) * by);
                total = splat(D(1));
            }
            scale[r] = by, mass[r + 1] = total[0];
        }
    }
    // A step that keeps beliefs from underflow, and looks for a lost state that gains by being held; returns the belief's sum.
    APART D weigh_carefully(const D* fresh, const D* held, const D* before, D total, D* after) {
        V<D> sum{};
        Bits<D> rises{};
        const auto drawing = [=](int64_t j) { return raised(load(fresh + j)) * total; };
        const auto staying = [=](int64_t j) { return raised(load(held + j)) * load(before + j); };
        for (int64_t j = 0; j < p; j += W<D>) sum += drawing(j) + staying(j);
        const D now = sum_of<D>(sum);
        for (int64_t j = 0; j < p; j += W<D>) {
            const V<D> x = drawing(j) + staying(j);
            rises |= (load(before + j) < LOST * total) & (x >= LOST * now) & (staying(j) > SHARE * drawing(j));
            store(after + j, (x < FLOOR * now) & (x > 0) ? splat(FLOOR * now) : x);
        }
        for (int64_t j = 0; j < W<D>; j++)
            if (rises[j]) verdict = std::max(verdict, RISKY);
        return now;
    }
    // The number that brings a belief's sum to 1
    APART D judge(int64_t t, D total, D before) {
        if (!(total > 0 && total < INFINITY)) {
            if (verdict != IMPOSSIBLE) failed = t, verdict = IMPOSSIBLE;
            return 1;
        }
        if (total < LEAST * before) verdict = std::max(verdict, RISKY);
        evidence.gain(0, total);
        return 1 / total;
    }
    // Adds a block of n steps to log p(x), and writes its last belief, of sum 1
    void end(int64_t n, D* to) {
        std::fill(top + n, top + n + W<D>, 0.0);
        V<D> sum{}, rest{};  // with the rounding errors (Knuth's sum of two numbers)
        for (int64_t r = 0; r < n; r += W<D>) {
            const V<D> x = load(top + r), after = sum + x, added = after - sum;
            rest += (sum - (after - added)) + (x - added);
            sum = after;
        }
        for (int64_t j = 0; j < W<D>; j++) evidence.add(sum[j]), evidence.add(rest[j]);
        evidence.gain(0, mass[n]);
        for (int64_t j = 0; j < p; j++) to[j] = belief[n * p + j] / mass[n];
    }

    // log p(x) of a sequence from the belief before it, and the posterior. `kept` has a row for each block, and one more.
    template <class T, class Tables>
    Verdict smooth(Tables& tables, int64_t steps, const D* start, const Wanted<T>& out, D* kept, D& value) {
        restart();
        const int64_t blocks = (steps + rows - 1) / rows, apart = out.any() ? p : 0;
        std::copy(start, start + p, kept);
        for (int64_t t = 0; t < steps && verdict == FINE; t += rows, kept += apart) {
            const int64_t n = std::min(rows, steps - t);
            std::copy(kept, kept + p, belief);
            forward(tables, t, n);
            end(n, kept + apart);
        }
        value = evidence.value();
        if (verdict != FINE || !out.any()) return verdict;
        std::fill(future, future + p, 1.0), std::fill(drawn, drawn + p, 0.0);
        for (int64_t block = blocks - 1; block >= 0; block--) {
            const int64_t t = block * rows, n = std::min(rows, steps - t);
            kept -= p;
            if (block < blocks - 1) {
                std::copy(kept, kept + p, belief);
                forward(tables, t, n);
                for (int64_t j = 0; j < p; j++) future[j] /= mass[n];
            }
            meet(out, t, n);
        }
        if (out.initial) write_initial(start, out.initial);
        if (out.drawn)
            for (int64_t j = 0; j < k; j++) out.drawn[j] = T(drawn[j]);
        return FINE;
    }
    template <class T> void write_initial(const D* start, T* to) const {
        D met = 0;
        for (int64_t j = 0; j < k; j++) met += start[j] * future[j];
        for (int64_t j = 0; j < k; j++) to[j] = T(start[j] * future[j] / (met > 0 ? met : 1));
    }
    // The posterior of n steps from t0, and the future of the step before them: 0 for states that cannot be reached
    template <class T> void meet(const Wanted<T>& out, int64_t t0, int64_t n) const {
        by_width([&](auto width) { meet_of<width.value>(out, t0, n); });
    }
    template <int64_t width, class T> APART void meet_of(const Wanted<T>& wanted, int64_t t0, int64_t n) const {
        const Wanted<T> out = wanted;
        const int64_t k = this->k, p = width ? width : this->p;
        const bool sums_held = out.held && out.held_width == 1, counts = out.drawn;
        D *const future = this->future, *const drawn = this->drawn;
        const T* written = out.state ? out.state : out.fresh;
        for (int64_t r = n - 1; r >= 0; r--) {
            const D *const fresh = this->fresh + r * p, *const held = this->held + r * p, *const before = belief + r * p;
            const int64_t t = t0 + r;
            prefetch(written + (t - SOON) * k);  // processors foresee little that goes backward in time
            V<D> reached{}, redrawn{}, stayed{};
            for (int64_t j = 0; j < p; j += W<D>) {
                const V<D> f = load(future + j);
                reached += load(before + p + j) * f;
                redrawn += load(fresh + j) * f;
                if (sums_held) stayed += load(held + j) * load(before + j) * f;
            }
            const V<D> all = all_of(redrawn);
            const D met = sum_of<D>(reached), inverse = 1 / met;
            const D by = scale[r], share = by * inverse, of_fresh = mass[r] * share;
            if (out.redraw) out.redraw[t] = T(std::min(1.0, all[0] * of_fresh));
            if (sums_held) out.held[t] = T(sum_of<D>(stayed) * share);
            for (int64_t j = 0; j < p; j += W<D>) {
                const V<D> f = load(future + j), drawing = load(fresh + j) * f, staying = load(held + j) * f;
                const V<D> x = (staying + all) * by;
                store(future + j, load(before + j) == 0 ? V<D>{} : x);
                if (counts) store(drawn + j, load(drawn + j) + drawing * of_fresh);
                if (out.state) store_narrow(out.state + t * k + j, quotient(load(before + p + j) * f, met, inverse), k - j);
                if (out.fresh) store_narrow(out.fresh + t * k + j, drawing * of_fresh, k - j);
                if (out.held && !sums_held) store_narrow(out.held + t * k + j, staying * load(before + j) * share, k - j);
            }
        }
    }

    // Beliefs, redraws and log-increments of a sequence, from the belief before it
    template <class S, class I, class Tables>
    Verdict filter(Tables& tables, int64_t steps, const D* start, S* state, S* redraw, I* increment) {
        restart();
        std::copy(start, start + p, belief);
        for (int64_t t = 0; t < steps && verdict == FINE; t += rows) {
            const int64_t n = std::min(rows, steps - t);
            forward(tables, t, n);
            write_filtered(n, state + t * k, redraw + t, increment + t);
            end(n, belief);
        }
        return verdict;
    }
    template <class S, class I> APART void write_filtered(int64_t n, S* state, S* redraw, I* increment) const {
        for (int64_t r = 0; r < n; r++) {
            const D inverse = 1 / mass[r + 1];
            V<D> drawing{};
            for (int64_t j = 0; j < p; j += W<D>) {
                drawing += load(fresh + r * p + j);
                store_narrow(state + r * k + j, load(belief + (r + 1) * p + j) * inverse, k - j);
            }
            redraw[r] = S(std::min(1.0, sum_of<D>(drawing) * mass[r] * scale[r] * inverse));
        }
        for (int64_t r = 0; r < n; r += W<D>) {
            const V<D> gained = log<D>(load(mass + r + 1) / (load(mass + r) * load(scale + r))) + load(top + r);
            store_narrow(increment + r, gained, n - r);
        }
    }
};

}  // namespace
