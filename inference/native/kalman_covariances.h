// Covariances of linear Gaussian chains: filtered and smoothed.
//
// Backward in time the whitened state e_t of `kalman.h` has the covariance S' S, where S is the triangle of
//
//   | S D J1 |
//   |   J2   | ,   and so s_t has (S V)' (S V).
//
// The diffuse coordinates add M W M' for their covariance W, with M_t = M+ + V' E_t, E_{t-1} = (D J1)' E_t + (E J1)' w_t.
#pragma once
#include "kalman.h"

namespace {

// A table of a set by step, [C, T, L, L]
template <class T> INLINE T* of_step(T* table, int64_t set, int64_t steps, int64_t t, int64_t size) {
    return table + (set * steps + t) * size;
}

// Before and after each observation, and their parts that are multiplied by an infinite variance
template <class T> struct Filtered {
    const Chain& chain;
    const int64_t L, q;
    Table factor, whole, effect, spread, columns, wide;

    Filtered(Memory& memory, const Chain& given)
        : chain(given), L(given.states), q(given.open), factor(matrix(memory, L, L)), whole(matrix(memory, L, L)),
          effect(matrix(memory, L, q)), spread(matrix(memory, q, q)), columns(matrix(memory, L, q)), wide(matrix(memory, L, L)) {}

    // Of a factor, and of the effect of coordinates that are known after step s, -1 for not at all
    void put_step(int64_t set, int64_t t, int64_t s, const double* triangle, const double* means, T* covariance, T* diffuse) {
        T* out = of_step(covariance, set, chain.steps, t, L * L);
        if (!q && t > chain.steady[set]) {
            std::copy_n(out - L * L, L * L, out);
            return;
        }
        read_packed(triangle, factor);
        product_transposed(factor, factor, whole);
        if (q) {
            read_packed(means, effect);
            if (s >= 0) {
                read_packed(chain.solution(set, s).spread, spread);
                product(effect, spread, columns);
                add_product_by(columns, columns, whole);
                read_packed(chain.solution(set, s).open, spread);
                product(effect, spread, columns);
            } else copy(effect, columns);
            product_by(columns, columns, wide);
            write_packed(wide, of_step(diffuse, set, chain.steps, t, L * L));
        }
        write_packed(whole, out);
    }

    void all(int64_t set, T* covariance, T* predicted, T* diffuse, T* predicted_diffuse) {
        for (int64_t t = 0; t < chain.length(set); t++) {
            const Record record = chain.resting(set, t);
            const Diffuse effect = chain.diffuse_at(set, t);
            put_step(set, t, t, record.filtered, effect.filtered, covariance, diffuse);
            put_step(set, t, t - 1, record.predicted, effect.predicted, predicted, predicted_diffuse);
        }
    }
};

// Of each state, and of each with the one before it, given all observations
template <class T> struct Smoothed {
    const Chain& chain;
    const int64_t F, L, q;
    Table spread, wide, reference, here, later, earlier, back, filtered, noise, pair, whole, coordinates;
    Table drawn, moved, sums, means, after, white, drift;
    double* row;

    Smoothed(Memory& memory, const Chain& given)
        : chain(given), F(given.features), L(given.states), q(given.open), wide(matrix(memory, 2 * L, L)),
          coordinates(matrix(memory, q, q)), white(matrix(memory, F, q)), drift(matrix(memory, F, L)),
          row(matrix(memory, 1, L).at) {
        for (Table* table : {&spread, &reference, &here, &later, &earlier, &back, &filtered, &noise, &pair, &whole})
            *table = matrix(memory, L, L);
        for (Table* table : {&drawn, &moved, &sums, &means, &after}) *table = matrix(memory, L, q);
    }

    // The factor of the step before, and the covariance of neighbours; returns whether the factor stays the same.
    bool go_back(Steady<double>& clock, Record record, int64_t step, bool may_rest) {
        std::swap(here, later);
        read_packed(record.back, back);
        read_packed(record.filtered, filtered);
        product(spread, back, wide.part(0, L, 0, L));
        product(wide.part(0, L, 0, L), filtered, earlier);
        product_transposed(later, earlier, pair);
        read_packed(record.noise, wide.part(L, L, 0, L));
        triangularize(wide, L, row);
        const bool rests = may_rest && clock.reached(wide.part(0, L, 0, L), spread, step);
        copy(wide.part(0, L, 0, L), spread);
        multiply_out();
        return rests;
    }

    void multiply_out() {
        product(spread, filtered, here);
        product_transposed(here, here, noise);
    }

    // Columns of the diffuse coordinates of a step, times the factor of their covariance
    void add_diffuse(int64_t set, int64_t t, int64_t last) {
        const Record record = chain.resting(set, t);
        std::swap(means, after);
        if (t < last) {
            read_packed(record.back, back);
            read_packed(record.drift, drift);
            read_packed(chain.diffuse_at(set, t + 1).white, white);
            product_transposed(back, drawn, moved);
            product_transposed(drift, white, drawn);
            add(moved, drawn);
        }
        read_packed(record.filtered, filtered);
        product_transposed(filtered, drawn, sums);
        read_packed(chain.diffuse_at(set, t).filtered, moved);
        add(moved, sums);
        read_packed(chain.solution(set, last).spread, coordinates);
        product(sums, coordinates, means);
    }

    void put_sum(Table own, Table left, Table right, T* out) {
        copy(own, whole);
        if (q) add_product_by(left, right, whole);
        write_packed(whole, out);
    }

    void all(int64_t set, T* covariance, T* cross) {
        const int64_t last = chain.length(set) - 1, steady = chain.steady[set], size = L * L;
        Steady<double> clock{reference};
        clear(drawn);
        identity(spread);
        bool rests = false;
        for (int64_t t = last; t >= 0; t--) {
            T *now = of_step(covariance, set, chain.steps, t, size), *before = of_step(cross, set, chain.steps - 1, t, size);
            const Record record = chain.resting(set, t);
            const bool fresh = t == last || t < steady || !rests;
            if (t == last) {
                read_packed(record.filtered, filtered);
                multiply_out();
            } else if (fresh) rests = go_back(clock, record, last - t, t > steady);
            if (q) add_diffuse(set, t, last);
            else if (!fresh) {
                std::copy_n(now + size, size, now);
                std::copy_n(before + size, size, before);
                continue;
            }
            put_sum(noise, means, means, now);
            if (t < last) put_sum(pair, after, means, before);
        }
    }
};

}  // namespace
