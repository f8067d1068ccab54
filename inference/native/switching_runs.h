// What filters and smoothers of switching linear models share: the densities that are kept after a step, one for each history
// of n - 1 regimes, which has the oldest regime as its first digit to the base K. With n = 1 a single density is kept beside
// the weights of K regimes.
#pragma once
#include "switching_choice.h"

namespace {

// n is the number of weights that are kept.
struct Run {
    const Given& g;
    const int64_t K, L, F, n;
    Densities kept, folded, folded_next;
    double* shares;
    Choice choice;
    Block block;

    static int64_t kept_of(const Given& g) { return g.power(std::max<int64_t>(g.order - 1, 1)); }
    Run(Memory& memory, const Given& g, int64_t most)
        : g(g), K(g.regimes), L(g.latents), F(g.features), n(kept_of(g)), kept(memory, n, L),
          folded(memory, std::max<int64_t>(n / K, 1), L), folded_next(memory, std::max<int64_t>(n / K, 1), L),
          shares(memory.take(round_up(most, WIDE) + WIDE * K)), choice(memory, g), block(memory, L, F) {}

    // Densities of kept histories at a place of the kept tables
    int64_t densities() const { return g.order == 1 ? 1 : n; }
    const double* weight_at(int64_t place) const { return g.kept_weight + place * n; }
    void read_kept(int64_t place) {
        std::copy_n(weight_at(place), n, kept.log_weight);
        for (int64_t c = 0, at = place * densities(); c < densities(); c++, at++)
            kept.put(c, g.kept_mean + at * L, g.kept_covariance + at * L * L, L);
    }
    void write_kept(int64_t place) {
        std::copy_n(kept.log_weight, n, g.kept_weight + place * n);
        for (int64_t c = 0, at = place * densities(); c < densities(); c++, at++)
            kept.get(c, g.kept_mean + at * L, g.kept_covariance + at * L * L, L);
    }

    // Densities that meet each next regime z: of kept history c, density `by_history` c + `by_regime` z.
    void meet(const Densities& to, int64_t by_history, int64_t by_regime) {
        const bool one = densities() == 1;
        for (int64_t c = 0; c < n; c++) {
            const int64_t h = by_history * c;
            if (kept.log_weight[c] == IMPOSSIBLE)
                for (int64_t z = 0; z < K; z++) to.log_weight[h + by_regime * z] = IMPOSSIBLE;
            else if (g.sticks) choice.choose(c % K, kept, one ? 0 : c, to, h, by_regime);
            else
                for (int64_t z = 0; z < K; z++) to.log_weight[h + by_regime * z] = g.log_transition[c % K * K + z];
            for (int64_t z = 0; z < K; z++) to.log_weight[h + by_regime * z] += kept.log_weight[c];
        }
        if (g.sticks) return;
        for (int64_t e = 0; e < L + L * L; e++) {
            const double* from = kept.entry(e);
            double* row = to.entry(e);
            for (int64_t c = 0; c < n; c++)
                for (int64_t z = 0; z < K; z++) row[by_history * c + by_regime * z] = from[one ? 0 : c];
        }
    }

    // One density of all, by merging the oldest digit over and over; valid until the next one is made.
    Densities fold(Densities from) {
        for (bool next = false; from.n > 1; next = !next) {
            const Densities to((next ? folded_next : folded).log_weight, from.n / K, L);
            merge(from, to, shares);
            from = to;
        }
        return from;
    }
    void write_moments(int64_t row, const Densities& one) { one.get(0, g.mean + row * L, g.covariance + row * L * L, L); }
};

}  // namespace
