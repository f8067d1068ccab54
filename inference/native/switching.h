// Filters and smoothers of switching linear models that keep few normal densities, with the steps of `switching_steps.h` and
//
//   merge     w = sum w_i,  m = sum w_i/w m_i,  P = sum w_i/w (P_i + (m_i - m)(m_i - m)')
//
// Densities stand side by side in the lanes of vectors: a table has a row of their log-weights, and a row for each entry of a
// mean or a covariance. So lanes stay full for any number of latents. Densities beyond the last have weight 0.
// (`switching_choice.h`: the next regime in the recurrent kind; `switching_filter.h` and `switching_smoother.h`.)
//
// The plain form is `chains/switching_gaussian/plain.py`.
#pragma once
#include "switching_steps.h"

namespace {

using Lanes = V<double>;
constexpr int64_t WIDE = W<double>;

// What a call is given; the tables of a model are those of `tables.py`, the nodes [d, P] have an axis for each direction.
struct Given {
    int64_t steps, features, latents, regimes, order, goes_on, smooths, sticks, directions, points, lacking;
    const double *log_initial, *log_transition, *initial_mean, *initial_covariance, *transition, *transition_offset, *state_noise,
        *emission, *emission_offset, *observation_noise, *recurrence, *recurrence_offset, *nodes, *log_node, *x;
    const int64_t* lengths;
    double *increment, *state, *lagged, *mean, *covariance, *pairs, *kept_weight, *kept_mean, *kept_covariance;
    int64_t* failed;

    int64_t power(int64_t n) const { return n > 0 ? regimes * power(n - 1) : 1; }
};

// n densities; rows end with room for a vector that is read from the last density on
struct Densities {
    double* log_weight;
    int64_t n, L, stride;

    Densities(double* at, int64_t n, int64_t L) : log_weight(at), n(n), L(L), stride(round_up(n, WIDE) + 8) {}
    Densities(Memory& memory, int64_t n, int64_t L) : Densities(nullptr, n, L) {
        log_weight = memory.take((1 + L + L * L) * stride);
        if (!memory.counts()) std::fill_n(log_weight, stride, IMPOSSIBLE);
    }

    INLINE double* entry(int64_t e) const { return log_weight + (1 + e) * stride; }  // L of the mean, L L of the covariance
    INLINE double* mean(int64_t a) const { return entry(a); }
    INLINE double* covariance(int64_t a, int64_t b) const { return entry(L + a * L + b); }
    // From and into a mean and a covariance whose rows are `stride` numbers apart
    void put(int64_t h, const double* m, const double* v, int64_t stride) const {
        for (int64_t a = 0; a < L; a++) mean(a)[h] = m[a];
        for (int64_t a = 0; a < L; a++)
            for (int64_t b = 0; b < L; b++) covariance(a, b)[h] = v[a * stride + b];
    }
    void get(int64_t h, double* m, double* v, int64_t stride) const {
        for (int64_t a = 0; a < L; a++) m[a] = mean(a)[h];
        for (int64_t a = 0; a < L; a++)
            for (int64_t b = 0; b < L; b++) v[a * stride + b] = covariance(a, b)[h];
    }
};

// Merges densities o n + c for all o into density c of n; without weight it is 0. `shares` holds a vector for each o.
inline void merge(const Densities& from, const Densities& to, double* shares) {
    const int64_t n = to.n, groups = from.n / n, L = from.L;
    for (int64_t c = 0; c < n; c += WIDE) {
        Lanes top = splat(IMPOSSIBLE), total{};
        for (int64_t o = 0; o < groups; o++) top = larger<double>(load(from.log_weight + o * n + c), top);
        const auto none = top == IMPOSSIBLE;
        top = none ? Lanes{} : top;
        for (int64_t o = 0; o < groups; o++) {
            const Lanes share = exp_not_positive<double>(load(from.log_weight + o * n + c) - top);
            store(shares + o * WIDE, share);
            total += share;
        }
        store(to.log_weight + c, Lanes(none ? splat(IMPOSSIBLE) : top + log<double>(total)));
        const Lanes inverse = none ? Lanes{} : 1 / total;
        for (int64_t o = 0; o < groups; o++) store(shares + o * WIDE, Lanes(load(shares + o * WIDE) * inverse));
        // densities without weight may have moments that are no numbers
        const auto mean_of = [&](auto term) {
            Lanes sum{};
            for (int64_t o = 0; o < groups; o++) {
                const Lanes share = load(shares + o * WIDE);
                sum += share > 0 ? Lanes(share * term(o * n + c)) : Lanes{};
            }
            return sum;
        };
        for (int64_t a = 0; a < L; a++) {
            const double* one = from.mean(a);
            const Lanes centre = mean_of([&](int64_t h) { return load(one + h); });
            store(to.mean(a) + c, centre);
            for (int64_t b = 0; b <= a; b++) {
                const double *other = from.mean(b), *both = from.covariance(a, b);
                const Lanes about = load(to.mean(b) + c);
                const Lanes spread =
                    mean_of([&](int64_t h) { return load(both + h) + (load(one + h) - centre) * (load(other + h) - about); });
                store(to.covariance(a, b) + c, spread);
                store(to.covariance(b, a) + c, spread);
            }
        }
    }
    for (int64_t c = n; c < round_up(n, WIDE); c++) to.log_weight[c] = IMPOSSIBLE;
}

// Divides weights by their sum; returns its logarithm. `shares` become the weights.
inline double normalise(const Densities& of, double* shares) {
    Lanes top = splat(IMPOSSIBLE), sum{};
    for (int64_t h = 0; h < of.n; h += WIDE) top = larger<double>(load(of.log_weight + h), top);
    const double most = largest<double>(top);
    if (!(std::fabs(most) < -IMPOSSIBLE)) return most;
    for (int64_t h = 0; h < of.n; h += WIDE) {
        const Lanes share = exp_not_positive<double>(load(of.log_weight + h) - most);
        store(shares + h, share);
        sum += share;
    }
    const double mass = total<double>(sum), found = most + std::log(mass);
    for (int64_t h = 0; h < of.n; h += WIDE) {
        store(shares + h, Lanes(load(shares + h) / mass));
        store(of.log_weight + h, Lanes(load(of.log_weight + h) - found));
    }
    return found;
}

// The tables of regimes side by side: vector b of `count` has those of the regimes `of(lane)` of lanes b WIDE up to (b + 1) WIDE.
struct Regimes {
    const int64_t L, F, count;
    Lanes *turned, *offset, *noise, *emission, *emission_offset, *observation_noise;

    template <class Of> Regimes(Memory& memory, const Given& g, int64_t count, Of of)
        : L(g.latents), F(g.features), count(count) {
        const auto spread = [&](const double* table, int64_t rows, int64_t columns, bool turns = false) {
            const int64_t size = rows * columns;
            Lanes* made = memory.take<Lanes>(count * size);
            for (int64_t lane = 0; lane < count * WIDE && !memory.counts(); lane++)
                for (int64_t e = 0; e < size; e++) {
                    const int64_t to = turns ? e % columns * rows + e / columns : e;
                    made[lane / WIDE * size + to][lane % WIDE] = table[of(lane) * size + e];
                }
            return made;
        };
        turned = spread(g.transition, L, L, true);
        offset = spread(g.transition_offset, 1, L);
        noise = spread(g.state_noise, L, L);
        emission = spread(g.emission, F, L);
        emission_offset = spread(g.emission_offset, 1, F);
        observation_noise = spread(g.observation_noise, F, F);
    }
    static INLINE Matrix<Lanes> of(Lanes* tables, int64_t rows, int64_t columns, int64_t b) {
        return {tables + b * rows * columns, rows, columns, columns};
    }
    INLINE Move<Lanes> move(int64_t b) const {
        b %= count;
        return {of(turned, L, L, b), offset + b * L, of(noise, L, L, b)};
    }
    INLINE Sight<Lanes> sight(int64_t b) const {
        b %= count;
        return {of(emission, F, L, b), emission_offset + b * F, of(observation_noise, F, F, b)};
    }
};

// A vector of densities before a move and after it
struct Block {
    Belief<Lanes> now, ahead;
    Work<Lanes> work;

    Block(Memory& memory, int64_t L, int64_t F)
        : now(belief<Lanes>(memory, L)), ahead(belief<Lanes>(memory, L)), work(memory, F, L) {}

    void read(const Densities& from, int64_t h, Belief<Lanes> to) const {
        for (int64_t a = 0; a < from.L; a++) to.mean[a] = load(from.mean(a) + h);
        for (int64_t a = 0; a < from.L * from.L; a++) to.covariance.at[a] = load(from.entry(from.L + a) + h);
    }
    void write(Belief<Lanes> from, const Densities& to, int64_t h) const {
        for (int64_t a = 0; a < to.L; a++) store(to.mean(a) + h, from.mean[a]);
        for (int64_t a = 0; a < to.L * to.L; a++) store(to.entry(to.L + a) + h, from.covariance.at[a]);
    }
};

}  // namespace
