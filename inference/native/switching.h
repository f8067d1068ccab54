// Switching linear models: the steps of filters and smoothers that keep few normal densities.
//
//   s_t = A_z s_t-1 + c_z + N(0, Q_z),   x_t = C_z s_t + d_z + N(0, R_z),   z = z_t
//
//   move      m <- A m + c,   P <- A P A' + Q
//   observe   S = C P C' + R = U U',  G = P C' S^-1;   m <- m + G (x - C m - d),   P <- (I - G C) P (I - G C)' + G R G'
//   merge     w = sum w_i,  m = sum w_i/w m_i,  P = sum w_i/w (P_i + (m_i - m)(m_i - m)')
//
// Densities stand side by side in the lanes of vectors: a table has a row of their log-weights, and a row for each entry of a
// mean or a covariance. So lanes stay full for any number of latents. Densities beyond the last have weight 0.
// (`switching_choice.h`: the next regime in the recurrent kind; `switching_filter.h` and `switching_smoother.h`.)
//
// The plain form is `chains/switching_gaussian/plain.py`.
#pragma once
#include <algorithm>

#include "sums.h"

namespace {

using Lanes = V<double>;
constexpr int64_t WIDE = W<double>;
constexpr double INFINITE = std::numeric_limits<double>::infinity(), NOWHERE = -INFINITE;
constexpr double HALF_LOG_2PI = 0.91893853320467274178;

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

    static int64_t stride_of(int64_t n) { return round_up(n, WIDE) + 8; }
    static int64_t size(int64_t n, int64_t L) { return (1 + L + L * L) * stride_of(n); }
    Densities(double* at, int64_t n, int64_t L) : log_weight(at), n(n), L(L), stride(stride_of(n)) {}

    INLINE double* entry(int64_t e) const { return log_weight + (1 + e) * stride; }  // L of the mean, L L of the covariance
    INLINE double* mean(int64_t a) const { return entry(a); }
    INLINE double* covariance(int64_t a, int64_t b) const { return entry(L + a * L + b); }
    void clear() const {
        std::fill_n(log_weight, size(n, L), 0.0);
        std::fill_n(log_weight, stride, NOWHERE);
    }
    void put(int64_t h, const double* m, const double* v) const {
        for (int64_t a = 0; a < L; a++) mean(a)[h] = m[a];
        for (int64_t a = 0; a < L * L; a++) entry(L + a)[h] = v[a];
    }
    void get(int64_t h, double* m, double* v) const {
        for (int64_t a = 0; a < L; a++) m[a] = mean(a)[h];
        for (int64_t a = 0; a < L * L; a++) v[a] = entry(L + a)[h];
    }
};

INLINE Lanes root(Lanes x) {
    for (int64_t j = 0; j < WIDE; j++) x[j] = std::sqrt(x[j]);
    return x;
}

// log sum exp of n numbers `step` apart
inline double log_sum(const double* x, int64_t n, int64_t step) {
    double top = NOWHERE, total = 0;
    for (int64_t i = 0; i < n; i++) top = x[i * step] > top ? x[i * step] : top;
    if (top == NOWHERE) return top;
    for (int64_t i = 0; i < n; i++) total += std::exp(x[i * step] - top);
    return top + std::log(total);
}

// Merges densities o n + c for all o into density c of n; without weight it is 0. `shares` holds a vector for each o.
inline void merge(const Densities& from, const Densities& to, double* shares) {
    const int64_t n = to.n, groups = from.n / n, L = from.L;
    for (int64_t c = 0; c < n; c += WIDE) {
        Lanes top = splat(NOWHERE), total{};
        for (int64_t o = 0; o < groups; o++) top = larger<double>(load(from.log_weight + o * n + c), top);
        const auto none = top == NOWHERE;
        top = none ? Lanes{} : top;
        for (int64_t o = 0; o < groups; o++) {
            const Lanes share = exp_not_positive<double>(load(from.log_weight + o * n + c) - top);
            store(shares + o * WIDE, share);
            total += share;
        }
        store(to.log_weight + c, Lanes(none ? splat(NOWHERE) : top + log<double>(total)));
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
    for (int64_t c = n; c < round_up(n, WIDE); c++) to.log_weight[c] = NOWHERE;
}

// Divides weights by their sum; returns its logarithm. `shares` become the weights.
inline double normalise(const Densities& of, double* shares) {
    Lanes top = splat(NOWHERE), sum{};
    for (int64_t h = 0; h < of.n; h += WIDE) top = larger<double>(load(of.log_weight + h), top);
    const double most = largest<double>(top);
    if (!(std::fabs(most) < INFINITE)) return most;
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

// Tables of regimes in lanes: vector b of `count` has those of the regimes `of(lane)` of lanes b WIDE up to (b + 1) WIDE.
struct Spread {
    double* at;
    int64_t entries, count;

    template <class Of> Spread(Room<double>& room, const double* table, int64_t entries, int64_t count, Of of)
        : at(room.take(entries * count * WIDE)), entries(entries), count(count) {
        for (int64_t lane = 0; lane < count * WIDE; lane++)
            for (int64_t e = 0; e < entries; e++)
                at[(lane / WIDE * entries + e) * WIDE + lane % WIDE] = table[of(lane) * entries + e];
    }
    INLINE const Lanes* operator[](int64_t block) const { return reinterpret_cast<const Lanes*>(at) + block % count * entries; }
};

INLINE Lanes* take_lanes(Room<double>& room, int64_t n) { return reinterpret_cast<Lanes*>(room.take(n * WIDE)); }

// A vector of densities before a move and after it, and what the steps write over
struct Block {
    static constexpr int64_t TABLES = 12;
    const int64_t L, F;
    Lanes *mean, *covariance, *ahead, *ahead_covariance, *half, *rest, *shown, *gain, *chol, *inverse, *gap;
    int64_t* seen;

    static int64_t size(int64_t L, int64_t F) { return (2 * L + 4 * L * L + 2 * F * L + F * F + 2 * F) * WIDE + F; }
    Block(Room<double>& room, int64_t L, int64_t F)
        : L(L), F(F), mean(take_lanes(room, L)), covariance(take_lanes(room, L * L)), ahead(take_lanes(room, L)),
          ahead_covariance(take_lanes(room, L * L)), half(take_lanes(room, L * L)), rest(take_lanes(room, L * L)),
          shown(take_lanes(room, F * L)), gain(take_lanes(room, L * F)), chol(take_lanes(room, F * F)),
          inverse(take_lanes(room, F)), gap(take_lanes(room, F)), seen(reinterpret_cast<int64_t*>(room.take(F))) {}

    void read(const Densities& of, int64_t h, Lanes* m, Lanes* v) const {
        for (int64_t a = 0; a < L; a++) m[a] = load(of.mean(a) + h);
        for (int64_t a = 0; a < L * L; a++) v[a] = load(of.entry(L + a) + h);
    }
    void write(const Lanes* m, const Lanes* v, const Densities& of, int64_t h) const {
        for (int64_t a = 0; a < L; a++) store(of.mean(a) + h, m[a]);
        for (int64_t a = 0; a < L * L; a++) store(of.entry(L + a) + h, v[a]);
    }

    // A symmetric table of entries `of(i, j)`
    template <class Of> INLINE void symmetric(Lanes* out, Of of) const {
        for (int64_t i = 0; i < L; i++)
            for (int64_t j = 0; j <= i; j++) out[i * L + j] = out[j * L + i] = of(i, j);
    }

    // Leaves A P in `half`.
    void move(const Lanes* a, const Lanes* offset, const Lanes* noise) const {
        for (int64_t i = 0; i < L; i++) {
            Lanes value = offset[i];
            for (int64_t k = 0; k < L; k++) value += a[i * L + k] * mean[k];
            ahead[i] = value;
            for (int64_t j = 0; j < L; j++) {
                Lanes sum{};
                for (int64_t k = 0; k < L; k++) sum += a[i * L + k] * covariance[k * L + j];
                half[i * L + j] = sum;
            }
        }
        symmetric(ahead_covariance, [&](int64_t i, int64_t j) {
            Lanes value = noise[i * L + j];
            for (int64_t k = 0; k < L; k++) value += half[i * L + k] * a[j * L + k];
            return value;
        });
    }

    // Conditions what is ahead on the features that are no NaN; returns log p(x), NaN where there is no such density.
    Lanes observe(const double* x, const Lanes* c, const Lanes* offset, const Lanes* noise) const {
        int64_t n = 0;
        for (int64_t f = 0; f < F; f++)
            if (!std::isnan(x[f])) seen[n++] = f;
        if (n == 0) return Lanes{};
        for (int64_t i = 0; i < n; i++) {
            const Lanes* row = c + seen[i] * L;
            Lanes value = x[seen[i]] - offset[seen[i]];
            for (int64_t k = 0; k < L; k++) value -= row[k] * ahead[k];
            gap[i] = value;
            for (int64_t j = 0; j < L; j++) {
                Lanes sum{};
                for (int64_t k = 0; k < L; k++) sum += row[k] * ahead_covariance[k * L + j];
                shown[i * L + j] = sum;
            }
        }
        const Lanes log_density = whiten(n, c, noise);
        find_gain(n);
        correct(n, c, noise);
        return log_density;
    }

private:
    // The innovation's covariance into its factor, and the innovation into a white one; returns its log density.
    Lanes whiten(int64_t n, const Lanes* c, const Lanes* noise) const {
        Lanes squares{}, logs{};
        Bits<double> none{};
        for (int64_t i = 0; i < n; i++) {
            for (int64_t j = 0; j <= i; j++) {
                Lanes value = noise[seen[i] * F + seen[j]];
                for (int64_t k = 0; k < L; k++) value += shown[i * L + k] * c[seen[j] * L + k];
                for (int64_t k = 0; k < j; k++) value -= chol[i * F + k] * chol[j * F + k];
                if (j < i) {
                    chol[i * F + j] = value * inverse[j];
                    continue;
                }
                const auto fine = (value > 0) & (value < INFINITE);
                none |= ~fine;
                value = fine ? value : splat(1.0);
                inverse[i] = 1 / root(value);
                logs += log<double>(value);
            }
            for (int64_t k = 0; k < i; k++) gap[i] -= chol[i * F + k] * gap[k];
            gap[i] *= inverse[i];
            squares += gap[i] * gap[i];
        }
        const Lanes found = -0.5 * (squares + logs) - HALF_LOG_2PI * n;
        return none ? splat(std::numeric_limits<double>::quiet_NaN()) : found;
    }

    // The gain, and the mean with it.
    void find_gain(int64_t n) const {
        for (int64_t j = 0; j < L; j++) {
            Lanes* row = gain + j * F;
            for (int64_t i = 0; i < n; i++) {
                Lanes value = shown[i * L + j];
                for (int64_t k = 0; k < i; k++) value -= chol[i * F + k] * row[k];
                row[i] = value * inverse[i];
                ahead[j] += row[i] * gap[i];
            }
            for (int64_t i = n - 1; i >= 0; i--) {
                for (int64_t k = i + 1; k < n; k++) row[i] -= chol[k * F + i] * row[k];
                row[i] *= inverse[i];
            }
        }
    }

    void correct(int64_t n, const Lanes* c, const Lanes* noise) const {
        for (int64_t i = 0; i < L; i++) {
            for (int64_t j = 0; j < L; j++) {
                Lanes value = splat(i == j ? 1.0 : 0.0);
                for (int64_t k = 0; k < n; k++) value -= gain[i * F + k] * c[seen[k] * L + j];
                rest[i * L + j] = value;
            }
            for (int64_t j = 0; j < L; j++) {
                Lanes value{};
                for (int64_t k = 0; k < L; k++) value += rest[i * L + k] * ahead_covariance[k * L + j];
                half[i * L + j] = value;
            }
            for (int64_t k = 0; k < n; k++) {
                Lanes value{};
                for (int64_t f = 0; f < n; f++) value += gain[i * F + f] * noise[seen[f] * F + seen[k]];
                shown[k * L + i] = value;
            }
        }
        symmetric(ahead_covariance, [&](int64_t i, int64_t j) {
            Lanes value{};
            for (int64_t k = 0; k < L; k++) value += half[i * L + k] * rest[j * L + k];
            for (int64_t k = 0; k < n; k++) value += shown[k * L + i] * gain[j * F + k];
            return value;
        });
    }
};

}  // namespace
