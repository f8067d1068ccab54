// Regimes given x, with the latents summed out: moves of a Gibbs sampler over paths.
//
//   collapsed   each regime given all others. The Kalman filter goes forward with every regime that is drawn, so that a
//               sweep costs O(T K L^3) (Carter & Kohn 1996, "Markov chain Monte Carlo in conditionally Gaussian state space
//               models"; Gerlach, Carter & Kohn 2000, "Efficient Bayesian inference for dynamic mixture models"):
//
//     P(z_t | z_-t, x) ~ P(z_t | z_t-1) P(z_t+1 | z_t) p(x_t | x_<t, z_<=t) E[p(x_>t | s_t, z_>t) | x_<=t, z_<=t]
//
//   redrawn     a whole path, by a particle filter that holds on to the path that there is. Each of N particles is a path
//               with its Kalman filter. At every step N - 1 of their N K continuations are drawn by weight, so that all
//               particles weigh the same. The path that is held takes its past from one of the particles, by how well
//               these go on with all that it holds of the future. One of the N is drawn in the end. That leaves P(z | x) as
//               it is for any N of two or more (Andrieu, Doucet & Holenstein 2010, "Particle Markov chain Monte Carlo
//               methods"; Lindsten, Jordan & Schön 2014, "Particle Gibbs with ancestor sampling"; Whiteley, Andrieu &
//               Doucet 2010 for switching models). Stretches change at once that single regimes cannot leave.
//
// The last factor is of `gibbs_future.h`. The plain forms are in `chains/switching_gaussian/sampling.py`.
#pragma once
#include "gibbs_future.h"
#include "polya_gamma.h"

namespace {

// An index by its share of the whole, never one without: the last one whose shares before it leave some of `uniform`
inline int64_t draw(const double* shares, int64_t n, double uniform) {
    int64_t chosen = -1;
    for (int64_t i = 0; i < n; i++) {
        if (shares[i] > 0 && (chosen < 0 || uniform >= 0)) chosen = i;
        uniform -= shares[i];
    }
    return chosen;
}

// exp(log weight - total)
inline void share(const double* log_weight, int64_t n, double total, double* shares) {
    for (int64_t i = 0; i < n; i++) shares[i] = std::exp(log_weight[i] - total);
}

// A belief before step t, moved into regime z and with the observation; the log-weight of the regime given the last one
inline double continued(const Model& p, int64_t t, int64_t last, int64_t z, const double* x, Belief<double> before,
                        Work<double>& work, Belief<double> after) {
    const double log_weight = t ? p.given.log_transition[last * p.K + z] : p.given.log_initial[z];
    if (log_weight == IMPOSSIBLE) return log_weight;
    t ? predict(p.move(z), before, work, after) : copy(p.initial[z], after);
    return log_weight + observe(p.sight(z), x, after, work);
}

struct Collapsed {
    const Model p;
    Beliefs after, before;
    double* log_weight;
    Work<double> work;
    Future future;

    Collapsed(Memory& memory, const Given& given, int64_t steps)
        : p(memory, given), after(beliefs(memory, p.K, p.L)), before(beliefs(memory, 1, p.L)), log_weight(memory.take(p.K)),
          work(memory, p.F, p.L), future(memory, p, steps) {}

    // Draws a path in place, and writes the distribution of each regime [B, T, K]; the step that has none, or -1
    int64_t run(const Chains& chains, int64_t b, const double* uniform, double* state) {
        const int64_t T = chains.steps, end = chains.lengths[b];
        int64_t* path = chains.path + b * T;
        const int64_t failed = future.run(chains, b, work);
        if (failed >= 0) return failed;
        for (int64_t t = 0; t < end; t++) {
            weigh(chains.x_of(b, t, p.F), path, t, end);
            const double total = log_sum(log_weight, p.K);
            if (!(std::fabs(total) < -IMPOSSIBLE)) return t;
            double* shares = state + (b * T + t) * p.K;
            share(log_weight, p.K, total, shares);
            path[t] = draw(shares, p.K, uniform[b * T + t]);
            copy(after[path[t]], before[0]);
        }
        return -1;
    }

private:
    void weigh(const double* x, const int64_t* path, int64_t t, int64_t end) {
        for (int64_t z = 0; z < p.K; z++) {
            const double ahead = t + 1 < end ? p.given.log_transition[z * p.K + path[t + 1]] : 0;
            log_weight[z] = ahead;
            if (ahead == IMPOSSIBLE) continue;
            log_weight[z] += continued(p, t, t ? path[t - 1] : 0, z, x, before[0], work, after[z]);
            if (log_weight[z] != IMPOSSIBLE) log_weight[z] += future.log_mean(t, after[z]);
        }
    }
};

struct Redrawn {
    const Model p;
    const int64_t N;  // particles, of which the last one holds the path
    Beliefs children, particles;
    double *log_weight, *shares, *pasts;
    int64_t *regimes, *parents;  // [T, N]
    Work<double> work;
    Future future;

    Redrawn(Memory& memory, const Given& given, int64_t steps, int64_t N)
        : p(memory, given), N(N), children(beliefs(memory, N * p.K, p.L)), particles(beliefs(memory, N, p.L)),
          log_weight(memory.take(N * p.K)), shares(memory.take(N * p.K)), pasts(memory.take(N)),
          regimes(memory.take<int64_t>(steps * N)), parents(memory.take<int64_t>(steps * N)), work(memory, p.F, p.L),
          future(memory, p, steps) {}

    // Draws a path in place; the step that has no density, or -1
    int64_t run(const Chains& chains, int64_t b, uint64_t seed) {
        Stream stream = {seed};
        int64_t* path = chains.path + b * chains.steps;
        const int64_t failed = future.run(chains, b, work);
        if (failed >= 0) return failed;
        for (int64_t t = 0; t < chains.lengths[b]; t++)
            if (!go_on(chains.x_of(b, t, p.F), t, path[t], stream)) return t;
        int64_t i = std::min(int64_t(stream.uniform() * N), N - 1);
        for (int64_t t = chains.lengths[b] - 1; t >= 0; t--) {
            path[t] = regimes[t * N + i];
            i = parents[t * N + i];
        }
        return -1;
    }

private:
    // All particles through step t, of which the path holds regime `held`; whether its observation has a density
    bool go_on(const double* x, int64_t t, int64_t held, Stream& stream) {
        const int64_t roots = t ? N : 1, K = p.K;
        for (int64_t i = 0; i < roots; i++)
            for (int64_t z = 0; z < K; z++)
                log_weight[i * K + z] =
                    continued(p, t, t ? regimes[(t - 1) * N + i] : 0, z, x, particles[i], work, children[i * K + z]);
        const double total = log_sum(log_weight, roots * K);
        if (!(std::fabs(total) < -IMPOSSIBLE)) return false;
        share(log_weight, roots * K, total, shares);
        for (int64_t i = 0; i + 1 < N; i++) place(t, i, draw(shares, roots * K, stream.uniform()));
        const int64_t past = past_of(t, roots, held, stream);
        place(t, N - 1, past < 0 ? draw(shares, roots * K, stream.uniform()) : past * K + held);
        return true;
    }

    void place(int64_t t, int64_t i, int64_t child) {
        regimes[t * N + i] = child % p.K, parents[t * N + i] = child / p.K;
        copy(children[child], particles[i]);
    }

    // The particle from which the held path takes its past; -1 if it can have none, and then it is let go
    int64_t past_of(int64_t t, int64_t roots, int64_t held, Stream& stream) {
        for (int64_t i = 0; i < roots; i++) {
            const int64_t c = i * p.K + held;
            pasts[i] = log_weight[c] == IMPOSSIBLE ? IMPOSSIBLE : log_weight[c] + future.log_mean(t, children[c]);
        }
        share(pasts, roots, log_sum(pasts, roots), pasts);
        return draw(pasts, roots, stream.uniform());
    }
};

}  // namespace
