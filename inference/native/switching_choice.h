// The next regime, where a stick is broken by regressions on the latents, and the latents given each: s ~ N(m, P), P = Z Z'
//
//   u = W s + w_j,   log P(k | s) = log sigmoid(u_k) + sum_{i<k} log sigmoid(-u_i)
//
// u depends on s by few directions: W Z = T D' with orthonormal columns D, and eta = D' Z^-1 (s - m) is standard normal. Means
// over eta are sums over nodes. With its mean e and covariance I + B given regime k:
//
//   m_k = m + Z D e,   P_k = P + (Z D) B (Z D)'
//
// The plain form is `choose` of `chains/switching_gaussian/tables.py`.
#pragma once
#include "switching.h"

namespace {

constexpr double NONE = 1e-12;  // of a direction's length, that others explain but for rounding

struct Choice {
    static constexpr int64_t TABLES = 13;
    const Given& g;
    const int64_t J, L, d, P;  // sticks, latents, directions, nodes in whole vectors
    double *mean, *covariance, *factor, *slopes, *directions, *column, *triangle, *into, *pieces, *left, *first, *second, *half;

    static int64_t size(const Given& g) {
        const int64_t J = g.sticks, L = g.latents, d = g.directions, P = round_up(g.points, WIDE);
        return 2 * L + 2 * L * L + J * L + 2 * L * d + J * d + (J + 2) * P + d + d * d + L * d;
    }
    Choice(Room<double>& room, const Given& g)
        : g(g), J(g.sticks), L(g.latents), d(g.directions), P(round_up(g.points, WIDE)), mean(room.take(L)),
          covariance(room.take(L * L)), factor(room.take(L * L)), slopes(room.take(J * L)), directions(room.take(L * d)),
          column(room.take(L)), triangle(room.take(J * d)), into(room.take(L * d)), pieces(room.take((J + 1) * P)),
          left(room.take(P)), first(room.take(d)), second(room.take(d * d)), half(room.take(L * d)) {}

    // After regime j with density `here` of `from`; writes density h0 + step k of `to` for each regime k.
    void choose(int64_t j, const Densities& from, int64_t here, const Densities& to, int64_t h0, int64_t step) {
        from.get(here, mean, covariance);
        find_factor();
        find_directions();
        break_sticks(g.recurrence_offset + j * J);
        for (int64_t k = 0; k <= J; k++) {
            to.log_weight[h0 + step * k] = find_moments(pieces + k * P);
            for (int64_t a = 0; a < L; a++) {
                double value = mean[a];
                for (int64_t e = 0; e < d; e++) {
                    value += into[a * d + e] * first[e];
                    double sum = 0;
                    for (int64_t f = 0; f < d; f++) sum += into[a * d + f] * second[f * d + e];
                    half[a * d + e] = sum;
                }
                to.mean(a)[h0 + step * k] = value;
            }
            for (int64_t a = 0; a < L; a++)
                for (int64_t b = 0; b < L; b++) {
                    double value = covariance[a * L + b];
                    for (int64_t e = 0; e < d; e++) value += half[a * d + e] * into[b * d + e];
                    to.covariance(a, b)[h0 + step * k] = value;
                }
        }
    }

private:
    // The lower Cholesky factor of a covariance that may be singular, a column of 0 for each direction it has not
    void find_factor() {
        for (int64_t j = 0; j < L; j++) {
            double pivot = covariance[j * L + j];
            for (int64_t k = 0; k < j; k++) pivot -= factor[j * L + k] * factor[j * L + k];
            const double root = pivot > NONE * covariance[j * L + j] ? std::sqrt(pivot) : 0;
            for (int64_t i = 0; i < L; i++) {
                double value = i == j ? root : 0;
                if (i > j && root > 0) {
                    value = covariance[i * L + j];
                    for (int64_t k = 0; k < j; k++) value -= factor[i * L + k] * factor[j * L + k];
                    value /= root;
                }
                factor[i * L + j] = value;
            }
        }
    }

    // Orthonormal columns that span the rows of the slopes W Z, by Gram-Schmidt, twice for its rounding; 0 beyond them
    void find_directions() {
        std::fill_n(directions, L * d, 0.0);
        for (int64_t i = 0, found = 0; i < J; i++) {
            double *row = slopes + i * L, most = 0, length = 0, rest = 0;
            for (int64_t a = 0; a < L; a++) {
                row[a] = 0;
                for (int64_t b = a; b < L; b++) row[a] += g.recurrence[i * L + b] * factor[b * L + a];
                most = std::max(most, std::fabs(row[a]));
            }
            if (found == d || most == 0) continue;
            for (int64_t a = 0; a < L; a++) {
                column[a] = row[a] / most;
                length += column[a] * column[a];
            }
            for (int64_t e = 0; e < 2 * found; e++) remove(directions + e % found);
            for (int64_t a = 0; a < L; a++) rest += column[a] * column[a];
            if (!(rest > NONE * NONE * length)) continue;
            for (int64_t a = 0; a < L; a++) directions[a * d + found] = column[a] / std::sqrt(rest);
            found++;
        }
        times_directions(slopes, J, triangle);
        times_directions(factor, L, into);
    }
    void remove(const double* direction) {
        double share = 0;
        for (int64_t a = 0; a < L; a++) share += direction[a * d] * column[a];
        for (int64_t a = 0; a < L; a++) column[a] -= share * direction[a * d];
    }
    void times_directions(const double* table, int64_t rows, double* out) {
        for (int64_t i = 0; i < rows; i++)
            for (int64_t e = 0; e < d; e++) {
                double value = 0;
                for (int64_t a = 0; a < L; a++) value += table[i * L + a] * directions[a * d + e];
                out[i * d + e] = value;
            }
    }

    // The log-weight of each node times the probability of each regime there
    void break_sticks(const double* offset) {
        std::copy_n(g.log_node, P, left);
        for (int64_t i = 0; i < J; i++) {
            double centre = offset[i];
            for (int64_t a = 0; a < L; a++) centre += g.recurrence[i * L + a] * mean[a];
            for (int64_t q = 0; q < P; q += WIDE) {
                Lanes u = splat(centre);
                for (int64_t e = 0; e < d; e++) u += triangle[i * d + e] * load(g.nodes + e * P + q);
                const Lanes less = less_magnitude<double>(u), soft = log<double>(exp_not_positive<double>(less) + 1);
                const Lanes before = load(left + q);
                store(pieces + i * P + q, Lanes(before + (u < 0 ? u : Lanes{}) - soft));
                store(left + q, Lanes(before - (u > 0 ? u : Lanes{}) - soft));
            }
        }
        std::copy_n(left, P, pieces + J * P);
    }

    // The log of the sum of weights, which are overwritten; the mean of the nodes, and their covariance less 1; 0 without weight
    double find_moments(double* weight) {
        Lanes top = splat(NOWHERE), sum{};
        for (int64_t q = 0; q < P; q += WIDE) top = larger<double>(load(weight + q), top);
        const double most = largest<double>(top);
        std::fill_n(first, d, 0.0);
        std::fill_n(second, d * d, 0.0);
        if (most == NOWHERE) return most;
        for (int64_t q = 0; q < P; q += WIDE) {
            const Lanes share = exp_not_positive<double>(load(weight + q) - most);
            store(weight + q, share);
            sum += share;
        }
        const double mass = total<double>(sum);
        for (int64_t a = 0; a < d; a++) {
            const double* node = g.nodes + a * P;
            first[a] = mean_of(weight, [&](int64_t q) { return load(node + q); }) / mass;
            for (int64_t b = 0; b <= a; b++) {
                const double* other = g.nodes + b * P;
                const double moment = mean_of(weight, [&](int64_t q) { return load(node + q) * load(other + q); }) / mass;
                second[a * d + b] = second[b * d + a] = moment - first[a] * first[b] - (a == b);
            }
        }
        return most + std::log(mass);
    }
    template <class F> INLINE double mean_of(const double* weight, F f) {
        Lanes sum{};
        for (int64_t q = 0; q < P; q += WIDE) sum += load(weight + q) * f(q);
        return total<double>(sum);
    }
};

}  // namespace
