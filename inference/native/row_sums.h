// Sums of a step of Newton's method on rows that depend on inputs. The plain form is `row_sums` of `chains/markov/plain_rows.py`.
//
// With p_j the probabilities of a row at each step, m the weight of leaving it, and x the D numbers of the design,
//
//   used(j, a, b) = sum m p_j x_a x_b,   products(j, a, h, b) = sum m p_j p_h x_a x_b.
//
// A vector holds successive steps. Each sum takes a weight, m p_j or m p_j p_h, times one of the D (D + 1) / 2 products
// x_a x_b, which all weights share.
#pragma once
#include <algorithm>

#include "sums.h"

namespace {

class RowSums {
    static constexpr int64_t STEPS = 128;  // of a block
    const int64_t k, d, n_steps, n_rows, pairs;
    Room<double> room;
    double *x, *squares, *p, *mass, *weight, *sums;

    void read(int64_t first, int64_t n, const double* design, const double* leaving) {
        const int64_t filled = round_up(n, W<double>);
        for (int64_t a = 0; a < d; a++)
            for (int64_t t = 0; t < filled; t++) x[a * STEPS + t] = t < n ? design[(first + t) * d + a] : 0.0;
        for (int64_t t = 0; t < filled; t++) mass[t] = t < n ? leaving[(first + t) * n_rows] : 0.0;
        double* to = squares;
        for (int64_t a = 0; a < d; a++)
            for (int64_t b = a; b < d; b++, to += STEPS)
                for (int64_t t = 0; t < filled; t += W<double>)
                    store<double>(to + t, load(x + a * STEPS + t) * load(x + b * STEPS + t));
    }

    void softmax(int64_t n, const double* log_base, const double* changes) {
        for (int64_t t = 0; t < n; t += W<double>) {
            V<double> top = splat(-std::numeric_limits<double>::infinity()), total{};
            for (int64_t j = 0; j < k; j++) {
                V<double> logit = splat(log_base[j]);
                for (int64_t a = 0; a < d; a++) logit += changes[j * d + a] * load(x + a * STEPS + t);
                store(p + j * STEPS + t, logit);
                top = larger<double>(top, logit);
            }
            for (int64_t j = 0; j < k; j++) {
                const V<double> y = exp_not_positive<double>(load(p + j * STEPS + t) - top);
                store(p + j * STEPS + t, y);
                total += y;
            }
            const V<double> inverse = 1.0 / total;
            for (int64_t j = 0; j < k; j++) store<double>(p + j * STEPS + t, load(p + j * STEPS + t) * inverse);
        }
    }

    template <int N> INLINE void add_some(int64_t n, const double* of, const double* with, double* to) const {
        V<double> s[N] = {};
        for (int64_t t = 0; t < n; t += W<double>) {
            const V<double> q = load(of + t);
            for (int v = 0; v < N; v++) s[v] += q * load(with + v * STEPS + t);
        }
        for (int v = 0; v < N; v++) to[v] += total<double>(s[v]);
    }
    // to[x_a x_b] += the sum of a weight times x_a x_b. A weight is read once for five products, or for three.
    void add(int64_t n, const double* of, double* to) const {
        for (int64_t e = 0; e < pairs;) {
            const int64_t rest = pairs - e, turns = rest >= 5 && rest != 6 ? 5 : rest >= 3 ? 3 : 1;
            const double* with = squares + e * STEPS;
            if (turns == 5) add_some<5>(n, of, with, to + e);
            else if (turns == 3) add_some<3>(n, of, with, to + e);
            else add_some<1>(n, of, with, to + e);
            e += turns;
        }
    }

    // Sums of a block: for each j, those of m p_j, and those of m p_j p_h for h >= j
    void add_block(int64_t n) {
        double *to = sums, *both = weight + STEPS;
        for (int64_t j = 0; j < k; j++) {
            for (int64_t t = 0; t < n; t += W<double>) store<double>(weight + t, load(mass + t) * load(p + j * STEPS + t));
            add(n, weight, to);
            to += pairs;
            for (int64_t h = j; h < k; h++, to += pairs) {
                for (int64_t t = 0; t < n; t += W<double>) store<double>(both + t, load(weight + t) * load(p + h * STEPS + t));
                add(n, both, to);
            }
        }
    }

    void write(double* used, double* products) const {
        const double* from = sums;
        const auto spread = [&](auto put) {
            for (int64_t a = 0; a < d; a++)
                for (int64_t b = a; b < d; b++, from++) {
                    put(a, b, *from);
                    put(b, a, *from);
                }
        };
        for (int64_t j = 0; j < k; j++) {
            spread([&](int64_t a, int64_t b, double sum) { used[(j * d + a) * d + b] = sum; });
            for (int64_t h = j; h < k; h++)
                spread([&](int64_t a, int64_t b, double sum) {
                    products[((j * d + a) * k + h) * d + b] = products[((h * d + a) * k + j) * d + b] = sum;
                });
        }
    }

public:
    // Of K, D, N and the rows of a table
    explicit RowSums(const int64_t* sizes)
        : k(sizes[0]), d(sizes[1]), n_steps(sizes[2]), n_rows(sizes[3]), pairs(d * (d + 1) / 2),
          room((d + pairs + k + 3) * STEPS + numbers(), 6) {
        if (lacking()) return;
        x = room.take(d * STEPS);
        squares = room.take(pairs * STEPS);
        p = room.take(k * STEPS);
        mass = room.take(STEPS);
        weight = room.take(2 * STEPS);
        sums = room.take(numbers());
    }
    bool lacking() const { return room.full(); }
    int64_t numbers() const { return (k + k * (k + 1) / 2) * pairs; }

    // The sums of one row of one table, which is counted through all tables
    void add(int64_t row, const double* log_base, const double* changes, const double* design, const double* leaving,
             double* used, double* products) {
        const double* left = leaving + row / n_rows * n_steps * n_rows + row % n_rows;
        std::fill(sums, sums + numbers(), 0.0);
        for (int64_t first = 0; first < n_steps; first += STEPS) {
            const int64_t n = std::min(STEPS, n_steps - first);
            read(first, n, design, left);
            softmax(n, log_base + row * k, changes + row * k * d);
            add_block(n);
        }
        write(used + row * k * d * d, products + row * k * d * k * d);
    }
};

}  // namespace
