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

struct Choice {
    const Given& g;
    const int64_t J, L, d, P;  // sticks, latents, directions, nodes in whole vectors
    Belief<double> before, after;
    Matrix<double> recurrence, factor, slopes, directions, triangle, into, pieces, second, half;  // factor: Z'; into: (Z D)'
    double *column, *left, *first;

    Choice(Memory& memory, const Given& g)
        : g(g), J(g.sticks), L(g.latents), d(g.directions), P(round_up(g.points, WIDE)), before(belief(memory, L)),
          after(belief(memory, L)), recurrence(matrix(memory, J, L)), factor(matrix(memory, L, L)), slopes(matrix(memory, J, L)),
          directions(matrix(memory, d, L)), triangle(matrix(memory, J, d)), into(matrix(memory, d, L)),
          pieces(matrix(memory, J + 1, P)), second(matrix(memory, d, d)), half(matrix(memory, d, L)),
          column(matrix(memory, 1, L).at), left(memory.take(P)), first(memory.take(d)) {
        if (!memory.counts()) read(g.recurrence, L, 1, recurrence);
    }

    // After regime j with density `here` of `from`; writes density h0 + step k of `to` for each regime k.
    void choose(int64_t j, const Densities& from, int64_t here, const Densities& to, int64_t h0, int64_t step) {
        from.get(here, before.mean, before.covariance.at, before.covariance.stride);
        root_of(before.covariance, factor);
        find_directions();
        break_sticks(g.recurrence_offset + j * J);
        for (int64_t k = 0; k <= J; k++) {
            const int64_t h = h0 + step * k;
            to.log_weight[h] = find_moments(pieces[k]);
            copy(before, after);
            add_times(first, into, after.mean);
            product(second, into, half);
            add_symmetric(into, half, after.covariance);
            to.put(h, after.mean, after.covariance.at, after.covariance.stride);
        }
    }

private:
    // Orthonormal rows that span those of the slopes W Z, by Gram-Schmidt, twice for its rounding; 0 beyond them
    void find_directions() {
        product_by(recurrence, factor, slopes);
        clear(directions);
        for (int64_t i = 0, found = 0; i < J && found < d; i++) {
            double most = 0;
            for (int64_t a = 0; a < L; a++) most = std::max(most, std::fabs(slopes[i][a]));
            if (most == 0) continue;
            for (int64_t a = 0; a < L; a++) column[a] = slopes[i][a] / most;
            const double length = dot(column, column, L);
            for (int64_t e = 0; e < 2 * found; e++) {
                const double* direction = directions[e % found];
                add_row(-dot(direction, column, L), direction, column, L);
            }
            const double rest = dot(column, column, L);
            if (!(rest > NONE * NONE * length)) continue;
            add_row(1 / std::sqrt(rest), column, directions[found++], L);
        }
        product_by(slopes, directions, triangle);
        product(directions, factor, into);
    }

    // The log-weight of each node times the probability of each regime there
    void break_sticks(const double* offset) {
        std::copy_n(g.log_node, P, left);
        for (int64_t i = 0; i < J; i++) {
            double centre = offset[i];
            for (int64_t a = 0; a < L; a++) centre += recurrence[i][a] * before.mean[a];
            for (int64_t q = 0; q < P; q += WIDE) {
                Lanes u = splat(centre);
                for (int64_t e = 0; e < d; e++) u += triangle[i][e] * load(g.nodes + e * P + q);
                const Lanes less = less_magnitude<double>(u), soft = log<double>(exp_not_positive<double>(less) + 1);
                const Lanes rest = load(left + q);
                store(pieces[i] + q, Lanes(rest + (u < 0 ? u : Lanes{}) - soft));
                store(left + q, Lanes(rest - (u > 0 ? u : Lanes{}) - soft));
            }
        }
        std::copy_n(left, P, pieces[J]);
    }

    // The log of the sum of weights, which are overwritten; the mean of the nodes, and their covariance less 1; 0 without weight
    double find_moments(double* weight) {
        Lanes top = splat(IMPOSSIBLE), sum{};
        for (int64_t q = 0; q < P; q += WIDE) top = larger<double>(load(weight + q), top);
        const double most = largest<double>(top);
        std::fill_n(first, d, 0.0);
        clear(second);
        if (most == IMPOSSIBLE) return most;
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
                second[a][b] = second[b][a] = moment - first[a] * first[b] - (a == b);
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
