// The generalised pseudo-Bayesian filter of order n: see `switching.h`.
//
// Each density that is kept meets every next regime. The K^n densities that this makes are moved and observed, and those
// merged that share the last n - 1 regimes. With n = 1 those of each regime are merged before the move, and all after it.
#pragma once
#include "switching_runs.h"

namespace {

struct Filter : Run {
    const int64_t n_made;
    Densities fan, made;
    const Regimes regimes;

    Filter(Memory& memory, const Given& g)
        : Run(memory, g, g.power(g.order)), n_made(g.power(g.order)), fan(memory, n * K, L),
          made(g.order == 1 ? Densities(memory, n_made, L) : fan),
          regimes(memory, g, K, [this](int64_t lane) { return lane % K; }) {}

    void start() {
        std::fill_n(made.log_weight, made.stride, IMPOSSIBLE);
        std::copy_n(g.log_initial, K, made.log_weight);
        for (int64_t h = 0; h < n_made; h++) made.put(h, g.initial_mean + h % K * L, g.initial_covariance + h % K * L * L, L);
    }

    // The densities of a step, given its observation; returns the log density of that.
    double follow(const double* x, bool first) {
        if (first) start();
        else {
            meet(fan, K, 1);
            if (g.order == 1) merge(fan, made, shares);
        }
        for (int64_t h = 0, b = 0; h < n_made; h += WIDE, b++) {
            block.read(made, h, first ? block.ahead : block.now);
            if (!first) predict(regimes.move(b), block.now, block.work, block.ahead);
            const Lanes before = load(made.log_weight + h);
            const Lanes after = before + observe(regimes.sight(b), x, block.ahead, block.work);
            store(made.log_weight + h, Lanes(before == IMPOSSIBLE ? before : after));
            block.write(block.ahead, made, h);
        }
        return normalise(made, shares);
    }

    // Probabilities of the regimes of step t and of those before, from `shares`
    void write_states(int64_t s, int64_t t) {
        const int64_t first = s * g.steps;
        double* state = g.state + (first + t) * K;
        for (int64_t h = 0; h < n_made; h += K)
            for (int64_t z = 0; z < K; z++) state[z] += shares[h + z];
        const bool last = t == g.lengths[s] - 1;
        for (int64_t age = 0, width = 1; age < g.order && age <= t; age++, width *= K) {
            if (!last && age < g.order - 1) continue;
            double* lagged = g.lagged + (first + t - age) * K;
            for (int64_t h = 0; h < n_made; h += K * width)
                for (int64_t z = 0; z < K; z++)
                    for (int64_t i = 0; i < width; i++) lagged[z] += shares[h + z * width + i];
        }
    }

    void write_step(int64_t s, int64_t t) {
        write_states(s, t);
        if (g.order == 1) {
            const Densities one = fold(made);
            std::copy_n(made.log_weight, K, kept.log_weight);
            for (int64_t e = 0; e < L + L * L; e++) kept.entry(e)[0] = one.entry(e)[0];
            return write_moments(s * g.steps + t, one);
        }
        merge(made, kept, shares);
        write_moments(s * g.steps + t, fold(kept));
    }

    // Steps t0 up to t1; goes on from what is kept.
    void steps(int64_t s, int64_t t0, int64_t t1) {
        const int64_t end = std::min(t1, g.lengths[s]), row = s * g.steps;
        if (g.failed[s] >= 0 || t0 >= end) return;
        if (t0 > 0 || g.goes_on) read_kept(g.smooths ? row + t0 - 1 : s);
        for (int64_t t = t0; t < end; t++) {
            const double found = follow(g.x + (row + t) * F, t == 0 && !g.goes_on);
            if (!(std::fabs(found) < -IMPOSSIBLE)) {
                g.failed[s] = t;
                break;
            }
            g.increment[row + t] = found;
            if (g.smooths) {
                merge(made, kept, shares);
                write_kept(row + t);
            } else write_step(s, t);
        }
        if (!g.smooths) write_kept(s);
    }
};

}  // namespace
