// The diffuse coordinates of a linear Gaussian chain: their effect on means, and their posterior. See `kalman.h`.
#pragma once
#include "kalman.h"

namespace {

constexpr double ROUNDINGS = 64;  // times the number of coordinates: a singular value that is 0 beside the greatest

struct Regression {
    const Chain& chain;
    const int64_t F, L, q, beside;  // where the rotation begins in `turn`
    Table means, after, white, emission, transition, inverse, gain, gap, turn, work, right;
    double *row, *values;

    Regression(Memory& memory, const Chain& given)
        : chain(given), F(given.features), L(given.states), q(given.open), beside(stride_of<double>(q)),
          means(matrix(memory, L, q)), after(matrix(memory, L, q)), white(matrix(memory, F, q)), emission(matrix(memory, F, L)),
          transition(matrix(memory, L, L)), inverse(matrix(memory, F, F)), gain(matrix(memory, F, L)), gap(matrix(memory, F, q)),
          turn(matrix(memory, q + F, beside + q + F)), work(matrix(memory, q, q)), right(matrix(memory, q, q)),
          row(memory.take(turn.stride)), values(memory.take(q)) {}

    // The posterior of the coordinates from the triangle in `turn`; returns whether some are undetermined.
    bool solve_regression(Solution out) {
        copy(turn.part(0, q, 0, q), work);
        decompose(work, right);
        const double roundings = chain.single ? std::numeric_limits<float>::epsilon() : std::numeric_limits<double>::epsilon();
        const double least = ROUNDINGS * q * roundings * column_norms(work, values);
        std::fill_n(out.weight, 4 * q * q + 1, 0.0);
        bool open = false;
        for (int64_t i = 0; i < q; i++) out.rest[i * q + i] = 1;
        for (int64_t j = 0; j < q; j++) {
            if (values[j] <= least) {
                open = true;
                for (int64_t i = 0; i < q; i++) out.open[i * q + j] = right[i][j];
                continue;
            }
            *out.log_det += std::log(values[j]);
            for (int64_t i = 0; i < q; i++) {
                const double spread = right[i][j] / values[j], left = work[i][j] / values[j];
                out.spread[i * q + j] = spread;
                for (int64_t g = 0; g < q; g++) {
                    out.weight[i * q + g] += spread * (work[g][j] / values[j]);
                    out.rest[i * q + g] -= left * (work[g][j] / values[j]);
                }
            }
        }
        if (!open) std::fill_n(out.rest, q * q, 0.0);
        return open;
    }

    // Rows of whitened innovations, and means after them
    void see(int64_t set, int64_t t, View<double> table, const Seen& seen, Diffuse out) {
        const Record record = chain.resting(set, t);
        write_packed(means, out.predicted);
        read_step(table, t, emission);
        read_packed(record.inverse, inverse);
        read_packed(record.gain, gain);
        product(emission, means, gap);
        for (int64_t f = 0; f < F; f++) scale_row(seen(t, f) ? -1.0 : 0.0, gap[f], q);
        product_transposed(inverse, gap, white);
        product_transposed(gain, white, after);
        add(means, after);
        write_packed(white, out.white);
        write_packed(after, out.filtered);
    }

    // Rotates rows of a step into the triangle.
    void join(Diffuse out) {
        for (int64_t i = 0; i < q + F; i++) std::fill_n(turn[i] + beside, q + F, 0.0);
        for (int64_t i = 0; i < q + F; i++) turn[i][beside + i] = 1;
        copy(white, turn.part(q, F, 0, q));
        triangularize(turn, q, row);
        write_packed(turn.part(0, q + F, beside, q + F), out.turn);
    }

    // Goes through the steps of a set.
    void follow(int64_t set) {
        const auto moves = chain.view<double>(TRANSITION, set), table = chain.view<double>(EMISSION, set);
        const Seen seen(chain, set);
        const int64_t n = chain.length(set);
        read(chain.directions, q, 1, means);
        clear(turn);
        bool open = true;
        for (int64_t t = 0; t < n; t++) {
            const Diffuse out = chain.diffuse_at(set, t);
            see(set, t, table, seen, out);
            join(out);
            if (chain.by_step || t + 1 == n) open = solve_regression(chain.solution(set, t));
            if (t + 1 == n) break;
            read_step(moves, t, transition);
            product(transition, after, means);
        }
        if (open) chain.fault[set] = 4 * (n - 1) + OPEN;
    }
};

}  // namespace
