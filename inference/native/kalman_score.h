// The part of the gradient of log p(x) that depends on covariances of a linear Gaussian chain: see `kalman.h`.
//
// With r and (r r' - N) / 2 the gradients of log p(x) in the predicted mean and covariance (de Jong 1989; Koopman & Shephard
// 1992), and K the gain,
//
//   N_t = C' F^-1 C + (I - K C)' A' N_{t+1} A (I - K C),   F = H' H.
//
// The gradients in A, Q, C and R are products of means, of which `chains/linear_gaussian/gradient.py` makes them, less
//
//   N_{t+1} A P+,   N_{t+1},   K' (I - A' N_{t+1} A P+),   F^-1 + K' A' N_{t+1} A K,   P+ = V' V,
//
// summed over steps where a parameter is constant. Over diffuse coordinates, products of means have covariances too, which
// are taken from these tables.
#pragma once
#include "kalman_covariances.h"

namespace {

struct Taken {
    double *transition, *state, *emission, *observation, *initial;
    const int64_t* steps;  // of each table
};

struct Score {
    const Chain& chain;
    const int64_t F, L, q;
    Table future, before, reference, covariance, back, step, filtered, of_move, rest, transition;
    Table of_sight, emission, turned, whitened, gain, inverse, of_noise;
    Table later, ahead, state, moved, past, error, spread, effect, white;

    Score(Memory& memory, const Chain& given)
        : chain(given), F(given.features), L(given.states), q(given.open), spread(matrix(memory, q, q)) {
        for (Table* table : {&future, &before, &reference, &covariance, &back, &step, &filtered, &of_move, &rest, &transition})
            *table = matrix(memory, L, L);
        for (Table* table : {&of_sight, &emission, &turned, &whitened, &gain}) *table = matrix(memory, F, L);
        for (Table* table : {&inverse, &of_noise}) *table = matrix(memory, F, F);
        for (Table* table : {&later, &ahead, &state, &moved, &past, &effect}) *table = matrix(memory, L, q);
        for (Table* table : {&error, &white}) *table = matrix(memory, F, q);
    }

    // out += table - left right', where each step has its own entry of `out` or all have one
    void put_step(Table table, Table left, Table right, double* out, int64_t set, int64_t steps, int64_t t) {
        out = of_step(out, set, steps, steps > 1 ? t : 0, table.rows * table.columns);
        for (int64_t i = 0; i < table.rows; i++)
            for (int64_t j = 0; j < table.columns; j++)
                out[i * table.columns + j] += table[i][j] - (q ? dot(left[i], right[j], q) : 0.0);
    }

    // From A' N A, N before the observation, and the tables of C and R
    void pass_sight(const Seen& seen, int64_t t) {
        product(inverse, gain, turned);  // K'
        product_transposed(turned, emission, rest);
        for (int64_t i = 0; i < L; i++) {
            scale_row(-1.0, rest[i], L);
            rest[i][i] += 1;
        }
        product(back, rest, step);
        product_transposed(rest, step, future);
        product_transposed(inverse, emission, whitened);
        product_by(inverse, inverse, of_noise);
        product(turned, back, of_sight);
        product_transposed(whitened, whitened, rest);
        add(rest, future);
        add_product_by(of_sight, turned, of_noise);
        product(of_sight, covariance, whitened);
        for (int64_t f = 0; f < F; f++) {
            scale_row(-1.0, whitened[f], L);
            add_row(1.0, turned[f], whitened[f], L);
        }
        std::swap(of_sight, whitened);
        for (int64_t f = 0; f < F; f++) {
            if (seen(t, f)) continue;
            std::fill_n(of_sight[f], L, 0.0);
            for (int64_t g = 0; g < F; g++) of_noise[f][g] = of_noise[g][f] = 0;
        }
    }

    // The diffuse columns of the smoothed state, of u, and of r before the observation
    void pass_columns(int64_t set, int64_t t, const Seen& seen) {
        read_packed(chain.solution(set, chain.length(set) - 1).spread, spread);
        read_packed(chain.diffuse_at(set, t).white, white);
        read_packed(chain.diffuse_at(set, t).filtered, effect);
        product(white, spread, error);
        product(effect, spread, state);
        product(filtered, ahead, effect);
        product_transposed(filtered, effect, moved);
        add(moved, state);
        product(gain, ahead, white);
        for (int64_t f = 0; f < F; f++) add_row(-1.0, white[f], error[f], q);
        product(inverse, error, white);
        std::swap(error, white);
        for (int64_t f = 0; f < F; f++)
            if (!seen(t, f)) std::fill_n(error[f], q, 0.0);
        product_transposed(emission, error, later);
        add(ahead, later);
    }

    void read_sight(View<double> table, const Seen& seen, int64_t t, Record record) {
        read_step(table, t, emission);
        for (int64_t f = 0; f < F; f++)
            if (!seen(t, f)) std::fill_n(emission[f], L, 0.0);
        read_packed(record.inverse, inverse);
        read_packed(record.gain, gain);
        read_packed(record.filtered, filtered);
    }

    // Adds to tables of zeros.
    void all(int64_t set, const Taken& out) {
        const auto moves = chain.view<double>(TRANSITION, set), sights = chain.view<double>(EMISSION, set);
        const Seen seen(chain, set);
        const int64_t last = chain.length(set) - 1, steady = chain.steady[set];
        Steady<double> clock{reference};
        for (Table table : {future, back, later, ahead}) clear(table);
        bool rests = false;
        for (int64_t t = last; t >= 0; t--) {
            const bool fresh = t < steady || !rests;
            if (fresh || q) read_sight(sights, seen, t, chain.resting(set, t));
            if (t < last) {
                put_step(future, later, later, out.state, set, out.steps[1], t);
                if (fresh || q) read_step(moves, t, transition);
                product_transposed(transition, later, ahead);
            }
            if (fresh) {
                copy(future, before);
                product_transposed(filtered, filtered, covariance);
                if (t < last) {
                    product(future, transition, step);
                    product(step, covariance, of_move);
                    product_transposed(transition, step, back);
                }
                pass_sight(seen, t);
                rests = t > steady && clock.reached(future, before, last + 1 - t);
            }
            if (q) {
                copy(later, past);
                pass_columns(set, t, seen);
            }
            if (t < last) put_step(of_move, past, state, out.transition, set, out.steps[0], t);
            put_step(of_sight, error, state, out.emission, set, out.steps[2], t);
            put_step(of_noise, error, error, out.observation, set, out.steps[3], t);
        }
        put_step(future, later, later, out.initial, set, 1, 0);
    }
};

}  // namespace
