// Segments forward in time: the recursion of w_t of `segments.h`, and the best path.
//
// The numbers of all beginnings are in rows of `capacity` numbers; weights beyond the last beginning are -inf. What is added
// to all weights alike waits in `pending`, so that a step passes over them once. `plain.Bound` says when a beginning may be
// left out, and `paths.viterbi` when it cannot be on the best path.
#pragma once
#include "segments.h"

namespace {

constexpr int64_t TILE = 128;         // beginnings that are observed, weighed and normalised one after another
constexpr int64_t EVERY = 8;          // steps after which beginnings are left out
constexpr double CERTAIN = 1e-280;    // of a sum of probabilities from which what counts as 0 has no digits

struct Forward {
    const Chain& c;
    const Sequence s;
    const Plates plates;
    const bool best;
    double *const start, *const weight, *const share, *const gain, *const tops;  // [capacity]
    double* const state;                                                         // [rows, capacity]
    const int64_t capacity;
    double* const change_of;  // [hazards], by run, relative to the largest
    Reals* const expected;    // [outs]
    Passed to;                // of this sequence
    int64_t n;
    double spent, most_change, pending;  // pending: what all weights are to be raised by

    bool full() const { return n + 2 * W<double> > capacity; }

    // The beginnings of each tile; of those without a probability that counts, if they are wanted. The largest weight of a
    // tile is that of its last step, and -inf if none of its probabilities counts.
    template <class F> void each_tile(bool all, F of) {
        for (int64_t first = 0; first < n; first += TILE)
            if (all || tops[first / TILE] > -INFINITE) of(first, std::min(n, first + TILE));
    }

    void raise() {
        for (int64_t r = 0; r < n; r += W<double>) store<double>(weight + r, load(weight + r) + pending);
        pending = 0;
    }

    // Logarithm of the probability of a change before t; the weights hold. `share` has the weights as probabilities.
    double before(int64_t t) {
        if (best) return best_before(t);
        if (s.by_run) return before_by_run(t);
        Reals entropy{};
        each_tile(false, [&](int64_t first, int64_t end) {
            for (int64_t r = first; r < end; r += W<double>) {
                const Reals p = load(share + r);
                entropy -= p > 0.0 ? p * (load(weight + r) + pending) : Reals{};
            }
        });
        to.entropy[t] = total<double>(entropy);
        pending += s.hold(t, 1);
        return s.change(t, 1);
    }

    double best_before(int64_t t) {
        double top = -INFINITE, source = 0;
        for (int64_t r = 0; r < n; r++) {
            const int64_t run = t - int64_t(start[r]);
            const double value = weight[r] + s.change(t, run);
            if (value > top) top = value, source = start[r];
            weight[r] += s.hold(t, run);
        }
        to.source[t] = int64_t(source);
        return top;
    }

    double before_by_run(int64_t t) {
        raise();
        double whole = 0, shift = most_change;
        for (int64_t r = 0; r < n; r++) whole += gain[r] = share[r] * change_of[s.of_run(t - int64_t(start[r]))];
        if (!(whole > CERTAIN)) {  // in logarithms
            shift = -INFINITE;
            for (int64_t r = 0; r < n; r++) shift = std::fmax(shift, gain[r] = weight[r] + s.change(t, t - int64_t(start[r])));
            whole = 0;
            for (int64_t r = 0; r < n && shift > -INFINITE; r++) whole += gain[r] = std::exp(gain[r] - shift);
        }
        for (int64_t r = n; r < n + W<double>; r++) gain[r] = 0;
        Reals entropy{};
        for (int64_t r = 0; r < n && whole > 0; r += W<double>) {
            const Reals p = load(gain + r) / whole;
            entropy -= p > 0.0 ? p * log<double>(p) : Reals{};
        }
        for (int64_t r = 0; r < n; r++) weight[r] += s.hold(t, t - int64_t(start[r]));
        to.entropy[t] = total<double>(entropy);
        return whole > 0 ? shift + std::log(whole) : -INFINITE;
    }

    void append(int64_t t, double log_change) {
        start[n] = double(t), weight[n] = log_change;
        n++;
        // numbers beyond the last beginning are those of the prior too, so that they stay in their range
        for (int64_t r = n - 1; r < round_up(n, W<double>); r++) plates.begin(state, capacity, r);
        for (int64_t r = n; r < n + W<double>; r++) weight[r] = -INFINITE;
    }

    // Step t is observed; the largest weight
    double weigh(int64_t t) {
        double top = -INFINITE;
        each_tile(true, [&](int64_t first, int64_t end) {
            for (int64_t r = first; r < end; r += W<double>) store<double>(gain + r, splat(s.base[t] + pending));
            if (end == n) gain[n - 1] = s.base[t];
            for (const Plate* p = plates.at; p < plates.at + plates.n; p++) observe(*p, t, state, capacity, first, end, gain);
            Reals most = splat(-INFINITE);
            for (int64_t r = first; r < end; r += W<double>) {
                const Reals now = load(weight + r) + load(gain + r);
                store<double>(weight + r, now);
                most = larger<double>(now, most);
            }
            top = std::fmax(top, tops[first / TILE] = largest<double>(most));
        });
        pending = 0;
        return top;
    }

    // Subtract the log of the sum of the weights, which is returned; `share` gets the probabilities
    double normalise(double top) {
        if (!(std::fabs(top) < INFINITE)) return top;
        Reals whole{};
        each_tile(true, [&](int64_t first, int64_t end) {
            double& most = tops[first / TILE];
            if (!(most - top > UNSEEN)) most = -INFINITE;
            for (int64_t r = first; r < end; r += W<double>) {
                const Reals e = most > -INFINITE ? exp_not_positive<double>(load(weight + r) - top) : Reals{};
                store<double>(share + r, e);
                whole += e;
            }
        });
        const double mass = total<double>(whole), log_mass = top + std::log(mass), scale = 1 / mass;
        each_tile(false, [&](int64_t first, int64_t end) {
            for (int64_t r = first; r < end; r += W<double>) store<double>(share + r, load(share + r) * scale);
        });
        pending = -log_mass;
        return log_mass;
    }

    // What the filter says after step t
    void look(int64_t t) {
        const double least = NEGLIGIBLE[plates.moments];
        Reals run{};
        std::fill_n(expected, plates.outs, Reals{});
        each_tile(false, [&](int64_t first, int64_t end) {
            for (int64_t r = first; r < end; r += W<double>) {
                const Reals p = load(share + r), counts = p > least ? p : Reals{};
                run += p * (double(t + 1) - load(start + r));
                if (largest<double>(counts) > 0) plates.add_expected(state + r, capacity, counts, expected);
            }
        });
        to.run[t] = total<double>(run), to.begun[t] = share[n - 1];
        for (int64_t m = 0; m < plates.outs; m++) to.expected[t * plates.outs + m] = total<double>(expected[m]);
    }

    // The log of what the weights of changes after step t sum up to, or of their largest
    double change_after(int64_t t) const {
        if (!best && !s.by_run) return s.change(t + 1, 1);
        double top = -INFINITE, whole = 0;
        for (int64_t r = 0; r < n; r++) top = std::fmax(top, weight[r] + s.change(t + 1, t + 1 - int64_t(start[r])));
        if (best || top == -INFINITE) return top;
        for (int64_t r = 0; r < n; r++) whole += std::exp(weight[r] + s.change(t + 1, t + 1 - int64_t(start[r])) - top);
        return top + std::log(whole);
    }

    // The log of the greatest ratio of the evidence of all that follows under a segment, and after a change
    double greatest(int64_t t, int64_t r, double ratio) const {
        if (!s.by_run) return ratio;
        const int64_t run = t + 1 - int64_t(start[r]);
        ratio += s.by_hazards[s.of_run(run)] + s.hold(t + 1, run);
        const double change = s.change(t + 1, run), above = std::fmax(ratio, change);
        return std::fabs(above) < INFINITE ? above + std::log(std::exp(ratio - above) + std::exp(change - above)) : above;
    }

    // Leave out beginnings after step t; see `plain.Bound` and `paths.viterbi`
    void shorten(int64_t t) {
        raise();
        const double top = change_after(t);
        if (top == -INFINITE) return;
        const double most = best ? 0.0 : std::log(std::fmax((c.tol * double(t + 1) / double(c.T) - spent) / double(n), 1e-300));
        int64_t kept = 0;
        for (int64_t first = 0, end; first < n; first = end) {
            end = std::min(n, first + W<double>);
            const Reals costs = load(weight + first) - top;
            const bool some = -largest<double>(-costs) < most;
            const Reals ratios = some ? plates.log_ratio(state + first, capacity) : Reals{};
            for (int64_t r = first; r < end; r++) {
                const double cost = costs[r - first] < most ? costs[r - first] + greatest(t, r, ratios[r - first]) : INFINITE;
                if (cost < most) {
                    spent += std::exp(cost);
                    to.death[int64_t(start[r])] = t;
                } else {
                    keep(r, kept++);
                }
            }
        }
        n = kept;
        for (int64_t r = n; r < n + W<double>; r++) weight[r] = -INFINITE, share[r] = 0;
        std::fill_n(tops, n / TILE + 1, 0.0);
    }

    void keep(int64_t r, int64_t place) {
        for (double* table : {start, weight, share}) table[place] = table[r];
        for (int64_t k = 0; k < plates.rows && place < r; k++) state[k * capacity + place] = state[k * capacity + r];
    }

    // Whether step t is possible
    bool step(int64_t t) {
        const double a = t ? before(t) : 0.0;
        to.change[t] = a;
        append(t, a);
        const double top = weigh(t), increment = best ? top : normalise(top);
        if (!(std::fabs(increment) < INFINITE)) return false;
        to.increment[t] = increment;
        if (best)
            for (int64_t r = 0; r < n; r++) weight[r] -= increment;
        else if (to.run) look(t);
        if ((best || c.tol > 0) && t % EVERY == EVERY - 1 && t + 1 < s.length) shorten(t);
        return true;
    }

    void begin() {
        for (double* table : {to.increment, to.entropy, to.run, to.begun})
            if (table) std::fill_n(table, c.T, 0.0);
        for (double* table : {to.change, to.weight})
            if (table) std::fill_n(table, c.T, -INFINITE);
        if (to.expected) std::fill_n(to.expected, c.T * plates.outs, 0.0);
        if (to.source) std::fill_n(to.source, c.T, 0);
        std::fill_n(to.death, c.T, c.T);
        *to.failed = -1;
    }

    void finish() {
        raise();
        *to.left_out = spent;
        for (int64_t r = 0; r < n; r++) to.weight[int64_t(start[r])] = weight[r];
        if (!best) return;
        std::fill_n(to.path, c.T, false);
        int64_t j = int64_t(start[std::max_element(weight, weight + n) - weight]);
        for (to.path[j] = true; j > 0; to.path[j] = true) j = to.source[j];
    }

    // From a step on, until the work of a call or the room is spent
    Answer run(Progress& at, int64_t& work) {
        for (; at.step < s.length && *to.failed < 0; at.step++) {
            if (full() || work > WORK) return full() ? FULL : MORE;
            if (at.step + 1 >= at.counted) {
                const int64_t end = std::min(c.T + 1, at.counted + std::max<int64_t>(TILE, at.counted));
                for (const Plate* p = plates.at; p < plates.at + plates.n; p++) count(*p, plates.moments, at.counted, end);
                at.counted = round_up(end, W<double>);
            }
            work += n * plates.rows + 1;
            if (!step(at.step)) *to.failed = at.step;
        }
        finish();
        return DONE;
    }
};

// Hazards by run, as probabilities relative to the largest, whose logarithm is returned
inline double read_hazards(const Sequence& s, int64_t runs, double* change_of) {
    double most = -INFINITE;
    for (int64_t i = 0; i < runs; i++) most = std::fmax(most, s.log_change[i * s.change_h]);
    for (int64_t i = 0; i < runs; i++) change_of[i] = most > -INFINITE ? std::exp(s.log_change[i * s.change_h] - most) : 0.0;
    return most;
}

// The pass over some sequences; `room` [5 + rows, capacity], `tables` for functions of counts
inline Answer forward(const Chain& c, bool best, const Passed& all, Progress& at, double* room, int64_t capacity,
                      double* tables) {
    const int64_t runs = c.by_run ? std::min(c.hazards, c.T) : 0;
    Room<Plate> plates(c.plates(), 1);
    Room<double> numbers(c.rows() + runs + c.outs * W<double>, 3);
    if (plates.full() || numbers.full()) return NO_MEMORY;
    Plate* plate = plates.take(c.plates());
    double *prior = numbers.take(c.rows()), *change_of = numbers.take(runs);
    Reals* expected = reinterpret_cast<Reals*>(numbers.take(c.outs * W<double>));
    const auto row = [&](int64_t k) { return room + k * capacity; };
    for (int64_t work = 0; at.sequence < c.end; at.sequence++, at.step = at.live = at.counted = 0, at.spent = at.pending = 0) {
        const Sequence s(c, at.sequence);
        const double most = read_hazards(s, runs, change_of);
        const Plates of = plates_of(c, at.sequence, tables, plate, prior);
        Forward pass = {c, s, of, best, row(0), row(1), row(2), row(3), row(4), row(5), capacity, change_of, expected,
                        of_sequence(all, c, at.sequence), at.live, at.spent, most, at.pending};
        if (at.step == 0) pass.begin();
        const Answer answer = pass.run(at, work);
        at.live = pass.n, at.spent = pass.spent, at.pending = pass.pending;
        if (answer != DONE) return answer;
    }
    return DONE;
}

}  // namespace
