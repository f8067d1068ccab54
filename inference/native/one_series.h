// The evidence of series of one feature under many parameters: the Kalman filter with covariances, and with the exact
// diffuse start of Koopman 1997.
//
// With g = P h, F = h' g + r and w = P_inf h, F_inf = h' w, an observation with error v leaves
//
//   a + w v / F_inf,   P_inf - w w' / F_inf,   P + w w' F / F_inf^2 - (g w' + w g') / F_inf
//
// and counts -1/2 log 2 pi F_inf while F_inf > 0; then a + g v / F, P - g g' / F, and -1/2 (log 2 pi F + v^2 / F).
//
// Series with the same missing steps and inputs share all covariances. These stop when they no longer change, until a
// step is missing. Zeros of the transition and of the emission are left out. A vector's lanes are parameters side by side;
// lanes that are left over repeat the last ones. The plain form is `chains/one_series/plain.py`, which carries factors.
#pragma once
#include <algorithm>
#include <utility>

#include "memory.h"
#include "sums.h"

namespace {

using Numbers = V<double>;
using Flags = Bits<double>;

constexpr double LOG_2PI = 1.8378770664093454836;
constexpr double SETTLED = 1e-12;     // change of a covariance in a step, in standard deviations of its entries
constexpr double DETERMINED = 1e-10;  // diffuse variance of an observation that counts as 0, beside that of its emission
constexpr double IMPOSSIBLE = 1e-14;  // variance of an observation that counts as 0, beside the greatest so far

// What is given: series [B, T] with NaN, parameters [R, ...], rows of the emission [S, L]
struct Series {
    int64_t steps, states, rows, parameters, all;
    const double *x, *transition, *state_noise, *emission, *observation_noise, *initial;
    const bool* diffuse;
};

INLINE bool any(Flags flags) {
    int64_t found = 0;
    for (int64_t w = 0; w < W<double>; w++) found |= flags[w];
    return found != 0;
}

struct Sweep {
    const Series& given;
    const int64_t* series;  // those that share covariances
    const int64_t L, n;
    Numbers *mean, *moved, *ahead, *spread, *open, *half, *gain, *wide, *noise, *values, *total;
    int64_t *columns, *ends, *shown, n_shown = 0;  // of entries that are not 0
    Numbers observed, scale, free, most, constant, weight;
    Flags n_open, fine;

    Sweep(Memory& memory, const Series& given, const int64_t* series, int64_t n)
        : given(given), series(series), L(given.states), n(n), total(memory.take<Numbers>(n)),
          columns(memory.take<int64_t>(L * L)), ends(memory.take<int64_t>(L + 1)), shown(memory.take<int64_t>(L)) {
        for (Numbers** table : {&mean, &moved}) *table = memory.take<Numbers>(L * n);
        for (Numbers** table : {&ahead, &spread, &open, &half, &values}) *table = memory.take<Numbers>(L * L);
        for (Numbers** table : {&gain, &wide, &noise}) *table = memory.take<Numbers>(L);
    }

    // Entry i of a table [R, size] in the lanes of a group
    Numbers of_group(const double* table, int64_t group, int64_t size, int64_t i) const {
        Numbers found;
        const int64_t first = group * W<double>, last = given.parameters - 1;
        for (int64_t w = 0; w < W<double>; w++) found[w] = table[std::min(first + w, last) * size + i];
        return found;
    }

    // The entries of the transitions that are not 0 in some lane, row by row
    void list_entries(int64_t group) {
        int64_t count = 0;
        for (int64_t i = 0; i < L; i++) {
            ends[i] = count;
            for (int64_t j = 0; j < L; j++) {
                values[count] = of_group(given.transition, group, L * L, i * L + j);
                columns[count] = j;
                count += any(values[count] != 0.0);
            }
        }
        ends[L] = count;
    }

    void start(int64_t group) {
        list_entries(group);
        std::fill_n(mean, L * n, Numbers{});
        std::fill_n(total, n, Numbers{});
        std::fill_n(open, L * L, Numbers{});
        most = Numbers{};
        n_open = Flags{};
        fine = Flags{} == 0;
        for (int64_t i = 0; i < L * L; i++) ahead[i] = of_group(given.initial, group, L * L, i);
        observed = of_group(given.observation_noise, group, 1, 0);
        for (int64_t i = 0; i < L; i++) {
            noise[i] = of_group(given.state_noise, group, L, i);
            if (!given.diffuse[i]) continue;
            open[i * L + i] = splat(1.0);
            n_open += 1;
        }
    }

    // The covariances of what is seen with the states, and its variance
    Numbers project(const Numbers* table, const double* share, Numbers* with) const {
        for (int64_t i = 0; i < L; i++) {
            Numbers sum{};
            for (int64_t m = 0; m < n_shown; m++) sum += share[shown[m]] * table[shown[m] * L + i];
            with[i] = sum;
        }
        Numbers variance{};
        for (int64_t m = 0; m < n_shown; m++) variance += share[shown[m]] * with[shown[m]];
        return variance;
    }

    void see() {
        const Numbers inverse = 1.0 / scale;
        for (int64_t i = 0; i < L; i++) {
            const Numbers by = gain[i] * inverse;
            for (int64_t j = 0; j <= i; j++) spread[i * L + j] = spread[j * L + i] = ahead[i * L + j] - by * gain[j];
        }
        for (int64_t i = 0; i < L; i++) gain[i] *= inverse;
    }

    // The same while diffuse directions are open; `free` becomes 0 in lanes in which the step determines none.
    void see_diffuse(double length) {
        const Flags determines = (n_open > 0) & (free > DETERMINED * length);
        n_open += determines;  // -1 each
        free = determines ? free : Numbers{};
        const Numbers freed = determines ? 1.0 / free : Numbers{}, usual = determines ? Numbers{} : 1.0 / scale;
        const Numbers square = freed * freed * scale;
        for (int64_t i = 0; i < L; i++)
            for (int64_t j = 0; j <= i; j++) {
                const Numbers crossed = freed * (gain[i] * wide[j] + wide[i] * gain[j]);
                const Numbers change = square * wide[i] * wide[j] - crossed - usual * gain[i] * gain[j];
                spread[i * L + j] = spread[j * L + i] = ahead[i * L + j] + change;
                open[i * L + j] = open[j * L + i] = open[i * L + j] - freed * wide[i] * wide[j];
            }
        for (int64_t i = 0; i < L; i++) gain[i] = freed * wide[i] + usual * gain[i];
    }

    // The constant and the weight of a squared error in the log density of an observation
    void count(bool opens) {
        const Flags determines = opens ? Flags(free > 0.0) : Flags{};
        most = determines ? most : larger<double>(most, scale);
        fine &= determines | (scale > IMPOSSIBLE * most);
        constant = -0.5 * (LOG_2PI + log<double>(determines ? free : scale));
        weight = determines ? Numbers{} : 0.5 / scale;
    }

    // The means after an observation, and its log density
    void follow(const double* share, int64_t t) {
        for (int64_t k = 0; k < n; k++) {
            Numbers error = splat(given.x[series[k] * given.steps + t]);
            for (int64_t m = 0; m < n_shown; m++) error -= share[shown[m]] * mean[shown[m] * n + k];
            for (int64_t i = 0; i < L; i++) mean[i * n + k] += gain[i] * error;
            total[k] += constant - weight * error * error;
        }
    }

    // Row i of the transitions times columns of a table: out[k] = sum over j of A_ij table[j * by_row + k * by_column]; several
    // at once, so that no sum waits for another
    template <int n_columns>
    INLINE void combine_some(int64_t i, const Numbers* table, int64_t by_row, int64_t by_column, Numbers* out) const {
        Numbers sums[n_columns] = {};
        for (int64_t e = ends[i]; e < ends[i + 1]; e++) {
            const Numbers *row = table + columns[e] * by_row, value = values[e];
            for (int k = 0; k < n_columns; k++) sums[k] += value * row[k * by_column];
        }
        for (int k = 0; k < n_columns; k++) out[k] = sums[k];
    }
    void combine(int64_t i, const Numbers* table, int64_t by_row, int64_t by_column, int64_t first, int64_t size,
                 Numbers* out) const {
        int64_t k = first;
        for (; k + 4 <= size; k += 4) combine_some<4>(i, table + k * by_column, by_row, by_column, out + k);
        for (; k < size; k++) combine_some<1>(i, table + k * by_column, by_row, by_column, out + k);
    }

    // A table of covariances between the transitions and their transposes; its lower triangle mirrors the upper one.
    void predict(Numbers* table) {
        for (int64_t i = 0; i < L; i++) combine(i, table, L, 1, 0, L, half + i * L);
        for (int64_t i = 0; i < L; i++) combine(i, half, 1, L, i, L, table + i * L);
        for (int64_t i = 0; i < L; i++)
            for (int64_t k = 0; k < i; k++) table[i * L + k] = table[k * L + i];
    }

    // Whether covariances are those of the step before
    bool is_settled() const {
        for (int64_t i = 0; i < L; i++)
            for (int64_t j = 0; j <= i; j++) {
                const Numbers change = spread[i * L + j] - ahead[i * L + j], product = spread[i * L + i] * spread[j * L + j];
                for (int64_t w = 0; w < W<double>; w++)
                    if (fine[w] && !(std::fabs(change[w]) <= SETTLED * std::sqrt(product[w]))) return false;
            }
        return true;
    }

    void observe(const double* share, bool& opens) {
        scale = project(ahead, share, gain) + observed;
        if (opens) {
            double length = 0;
            for (int64_t i = 0; i < L; i++) length += share[i] * share[i];
            free = project(open, share, wide);
            see_diffuse(length);
        } else see();
        count(opens);
        opens = any(n_open > 0);
    }

    // log p(x) under a group of parameters, into [R, B]
    void go(int64_t group, double* out) {
        start(group);
        bool opens = any(n_open > 0), settled = false;
        for (int64_t t = 0; t < given.steps; t++) {
            const double* share = given.emission + (given.rows > 1 ? t * L : 0);
            const bool seen = !std::isnan(given.x[series[0] * given.steps + t]), opened = opens;
            if (!seen) std::copy_n(ahead, L * L, spread);
            else {
                n_shown = 0;
                for (int64_t i = 0; i < L; i++)
                    if (share[i] != 0) shown[n_shown++] = i;
                if (!settled) observe(share, opens);
                follow(share, t);
            }
            for (int64_t i = 0; i < L; i++) combine(i, mean, n, 1, 0, n, moved + i * n);
            std::swap(mean, moved);
            if (settled && seen) continue;
            predict(spread);
            for (int64_t i = 0; i < L; i++) spread[i * L + i] += noise[i];
            if (opens) predict(open);
            settled = seen && !opened && given.rows == 1 && is_settled();
            std::swap(ahead, spread);
        }
        const int64_t first = group * W<double>, lanes = std::min(W<double>, given.parameters - first);
        for (int64_t k = 0; k < n; k++)
            for (int64_t w = 0; w < lanes; w++) {
                const bool known = fine[w] && n_open[w] == 0 && std::isfinite(total[k][w]);
                out[(first + w) * given.all + series[k]] = known ? total[k][w] : -std::numeric_limits<double>::infinity();
            }
    }
};

}  // namespace
