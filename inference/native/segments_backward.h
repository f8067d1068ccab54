// Segments given all observations: the recursion of P_j of `segments.h`, from the last beginnings to the first.
//
// W beginnings lie side by side: lane l has the one at g - l. All of them observe step t at once; a lane begins at its own
// step. Its segments that end before g need P of beginnings of the same vector. So these ends, the heads, are kept and
// resolved last. An expectation of a parameter counts at all steps of its segment: sums over ends, from the last one on.
#pragma once
#include "segments.h"

namespace {

// What the pass fills in: change [N, T], expected [N, T, outs], first [N, outs]; ended and last [N, T], of hazards by run
struct Smoothed {
    double *change, *expected, *first, *ended, *last;
};

struct Found {  // of the forward pass, [N, T]
    const double *increment, *change;
    const int64_t* death;
};

struct Backward {
    static constexpr int64_t L = W<double>;
    const Chain& c;
    const Sequence s;
    const Plates plates;
    const Found found;
    const Smoothed to;
    double *const state, *const heads, *const later;  // [rows, L], [L, rows, L], [outs]
    Reals *const sums, *const each;                   // [outs]
    double *shares, *by_end, *hold_of, *change_of;    // [steps, L], [steps, outs], by run from -L on
    int64_t g = 0, low = 0, stop = 0, seen = 0;           // seen: the end of the steps whose `by_end` is filled
    Reals stops{};

    int64_t longest() const {
        int64_t most = 1;
        for (int64_t j = 0; j < s.length; j++) most = std::max(most, std::min(s.length, std::max<int64_t>(0, found.death[j])) - j);
        return most;
    }

    void begin() {
        std::fill_n(to.change, c.T, 0.0);
        std::fill_n(to.expected, c.T * plates.outs, 0.0);
        std::fill_n(to.first, plates.outs, 0.0);
        if (s.by_run) std::fill_n(to.ended, c.T, 0.0), std::fill_n(to.last, c.T, 0.0);
    }

    // Hazards by run, for vectors of consecutive runs
    void read_hazards(int64_t longest) {
        for (int64_t run = -L; run < longest + L; run++) {
            const int64_t at = s.of_run(std::max<int64_t>(run, 1));
            hold_of[run + L] = s.log_hold[at * s.hold_h], change_of[run + L] = s.log_change[at * s.change_h];
        }
    }

    // The beginnings g, g - 1, ...; whether any of them is possible
    bool open(int64_t last) {
        g = last, low = std::max<int64_t>(0, g - L + 1), stop = 0, seen = g;
        stops = Reals{};
        for (int64_t b = low; b <= g; b++) {
            const int64_t end = found.change[b] > -INFINITE ? std::min(s.length, found.death[b]) : 0;
            stops[g - b] = double(end), stop = std::max(stop, end);
        }
        std::fill_n(sums, plates.outs, Reals{});
        for (int64_t l = 0; l < L; l++) plates.begin(state, L, l);
        return stop > 0;
    }

    // The log of the weights w_t of the beginnings
    Reals follow(int64_t t, Reals level) {
        level += s.by_run ? load(hold_of + L + t - g) : splat(s.log_hold[t * s.hold_h]);
        if (t <= g) {
            plates.begin(state, L, g - t);
            level[g - t] = found.change[t];
        }
        double gain[L];
        store<double>(gain, splat(s.base[t] - found.increment[t]));
        for (const Plate* p = plates.at; p < plates.at + plates.n; p++) observe(*p, t, state, L, 0, L, gain);
        return level + load(gain);
    }

    // Probabilities of segments that end at t, given a change after it, or that it is the last step
    Reals conditional(int64_t t, Reals level) const {
        if (s.by_run && t + 1 < s.length) {
            const double change = found.change[t + 1];
            level = change > -INFINITE ? level + (load(change_of + L + t + 1 - g) - change) : splat(-INFINITE);
        }
        const Reals within = double(t) < stops ? level : splat(-INFINITE);
        return largest<double>(within) > UNSEEN ? exp_not_positive<double>(within) : Reals{};
    }

    // Expectations of the ends at t >= g
    void look(int64_t t, Reals share) {
        const double least = NEGLIGIBLE[plates.moments];
        const Reals counts = share > least ? share : Reals{};
        if (!plates.outs || !(largest<double>(counts) > 0)) return;
        for (; seen < t; seen++) std::fill_n(by_end + (seen - low) * plates.outs, plates.outs, 0.0);
        std::fill_n(each, plates.outs, Reals{});
        plates.add_expected(state, L, counts, each);
        for (int64_t m = 0; m < plates.outs; m++) {
            by_end[(t - low) * plates.outs + m] = total<double>(each[m]);
            sums[m] += each[m];
        }
        seen = t + 1;
    }

    // P of the beginnings, of whose segments that end at g or later `begun` has the probabilities
    void resolve(Reals begun) {
        for (int64_t b = g; b >= low; b--) {
            double p = begun[g - b];
            for (int64_t t = b; t < g; t++) p += shares[(t - low) * L + g - b] *= to.change[t + 1];
            to.change[b] = p;
        }
    }

    void spread() {
        const int64_t M = plates.outs;
        const double least = NEGLIGIBLE[plates.moments];
        std::fill_n(later, M, 0.0);
        for (int64_t t = seen - 1; t >= g; t--)
            for (int64_t m = 0; m < M; m++) to.expected[t * M + m] += later[m] += by_end[(t - low) * M + m];
        for (int64_t t = g - 1; t >= low && M; t--) {
            const Reals share = load(shares + (t - low) * L), counts = share > least ? share : Reals{};
            plates.add_expected(heads + (t - low) * plates.rows * L, L, counts, sums);
            for (int64_t m = 0; m < M; m++)
                for (int64_t b = low; b <= t; b++) to.expected[t * M + m] += sums[m][g - b];
        }
        for (int64_t m = 0; m < M; m++) to.first[m] += total<double>(sums[m]);
    }

    void count_ends() {
        for (int64_t t = low; t < stop; t++)
            for (int64_t b = low; b <= std::min(t, g); b++)
                (t + 1 < s.length ? to.ended : to.last)[t - b] += shares[(t - low) * L + g - b];
    }

    // The beginnings up to `last`, as many as a vector has; the work
    int64_t group(int64_t last) {
        if (!open(last)) return L;
        Reals level = splat(-INFINITE), begun{};
        for (int64_t t = low; t < stop; t++) {
            level = follow(t, level);
            Reals share = conditional(t, level);
            if (t < g) {
                std::copy(state, state + plates.rows * L, heads + (t - low) * plates.rows * L);
            } else {
                if (t + 1 < s.length) share *= to.change[t + 1];
                begun += share;
                look(t, share);
            }
            if (t < g || s.by_run) store<double>(shares + (t - low) * L, share);
        }
        resolve(begun);
        spread();
        if (s.by_run) count_ends();
        return (stop - low) * L * plates.rows;
    }
};

inline Found found_in(const Found& all, const Chain& c, int64_t n) {
    return {all.increment + n * c.T, all.change + n * c.T, all.death + n * c.T};
}
inline Smoothed of_sequence(const Smoothed& all, const Chain& c, int64_t n) {
    const int64_t at = n * c.T;
    return {all.change + at, all.expected + at * c.outs, all.first + n * c.outs, of_row(all.ended, at), of_row(all.last, at)};
}

// The pass over some sequences; a progress whose `counted` is 0 has not begun its sequence
inline Answer backward(const Chain& c, const Found& all, const Smoothed& out, Progress& at, double* tables) {
    constexpr int64_t L = W<double>;
    Room<Plate> room(c.plates(), 1);
    Room<double> few(c.rows() * (1 + L + L * L) + c.outs * (1 + 2 * L), 6);
    if (room.full() || few.full()) return NO_MEMORY;
    Plate* plate = room.take(c.plates());
    double *prior = few.take(c.rows()), *state = few.take(c.rows() * L), *heads = few.take(c.rows() * L * L);
    double *later = few.take(c.outs), *sums = few.take(c.outs * L), *each = few.take(c.outs * L);
    for (int64_t work = 0; at.sequence < c.end; at.sequence++, at.counted = 0) {
        const int64_t n = at.sequence;
        const Sequence s(c, n);
        const Plates plates = plates_of(c, n, tables, plate, prior);
        Backward pass = {c, s, plates, found_in(all, c, n), of_sequence(out, c, n), state, heads, later,
                         reinterpret_cast<Reals*>(sums), reinterpret_cast<Reals*>(each), nullptr, nullptr, nullptr, nullptr};
        const int64_t longest = pass.longest(), steps = longest + L, by_run = s.by_run;
        Room<double> many(steps * (by_run * L + c.outs + 2 * by_run) + (1 + 4 * by_run) * L * L, 4);
        if (many.full()) return NO_MEMORY;
        pass.shares = many.take(by_run ? steps * L : L * L), pass.by_end = many.take(steps * c.outs);
        pass.hold_of = many.take(by_run * (steps + 2 * L)), pass.change_of = many.take(by_run * (steps + 2 * L));
        if (by_run) pass.read_hazards(longest);
        if (at.counted == 0) {
            pass.begin();
            at.step = s.length, at.counted = std::min(c.T + 1, longest + L);
            for (const Plate* p = plates.at; p < plates.at + plates.n; p++) count(*p, plates.moments, 0, at.counted);
        }
        for (; at.step > 0; at.step = std::max<int64_t>(0, at.step - L)) {
            if (work > WORK) return MORE;
            work += pass.group(at.step - 1);
        }
    }
    return DONE;
}

}  // namespace
