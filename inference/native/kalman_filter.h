// Factors of covariances of linear Gaussian chains forward in time: see `kalman.h`.
#pragma once
#include "kalman.h"

namespace {

struct Filter {
    const Chain& chain;
    const int64_t F, L, right, turned;  // where the blocks of the sight begin
    Table factor, sight, move, shown, moved, noise, narrow, inverse, state_noise, reference, turn;
    double *row, *scale;

    Filter(Memory& memory, const Chain& given)
        : chain(given), F(given.features), L(given.states), right(stride_of<double>(F)), turned(right + stride_of<double>(L)),
          factor(matrix(memory, L, L)), sight(matrix(memory, L + F, given.smoothing ? turned + L : right + L)),
          move(matrix(memory, 2 * L, given.smoothing ? stride_of<double>(L) + L : L)), shown(matrix(memory, L, F)),
          moved(matrix(memory, L, L)), noise(matrix(memory, F, F)), narrow(matrix(memory, F, F)), inverse(matrix(memory, F, F)),
          state_noise(matrix(memory, L, L)), reference(matrix(memory, L, L)), turn(matrix(memory, std::max(F, L), L)),
          row(memory.take(sight.stride + move.stride)), scale(memory.take(F)) {}

    Table ahead() const { return move.part(0, L, 0, L); }
    Table after() const { return sight.part(F, L, right, L); }

    // An upper triangle for the noise of the features that are seen, and unit noise for the others
    void read_noise(View<double> table, const Seen& seen, int64_t t) {
        int64_t count = 0;
        for (int64_t f = 0; f < F; f++) count += seen(t, f);
        if (count == F) return read_transposed(table, t, noise);
        const Table rows = {narrow.at, F, count, narrow.stride};
        clear(narrow);
        clear(noise);
        const double* given = table(t);
        for (int64_t f = 0, k = 0; f < F; f++) {
            if (!seen(t, f)) continue;
            for (int64_t g = 0; g < F; g++) rows[g][k] = given[f * table.row + g * table.column];
            k++;
        }
        triangularize(rows, count, row);
        for (int64_t f = 0, k = 0; f < F; f++) {
            if (!seen(t, f)) noise[f][f] = 1;
            for (int64_t g = 0, j = 0; g <= f && seen(t, f); g++)
                if (seen(t, g)) noise[g][f] = rows[j++][k];
            k += seen(t, f);
        }
    }

    // out = triangle table, of an upper triangle
    void times_triangle(Table triangle, Table table, Table out) {
        for (int64_t i = 0; i < L; i++)
            for (int64_t j = 0; j < table.columns; j += W<double>) {
                V<double> sums{};
                for (int64_t k = i; k < L; k++) sums += triangle[i][k] * load(table[k] + j);
                store(out[i] + j, sums);
            }
    }

    void see() {
        clear(sight);
        times_triangle(factor, shown, sight);
        copy(factor, sight.part(0, L, right, L));
        copy(noise, sight.part(L, F, 0, F));
        for (int64_t i = 0; chain.smoothing && i < L; i++) sight[i][turned + i] = 1;
        for (int64_t f = 0; f < F; f++) {
            scale[f] = 0;
            for (int64_t i = 0; i < L + F; i++) scale[f] = std::max(scale[f], std::fabs(sight[i][f]));
        }
        triangularize(sight, F, row);
        triangularize(sight.part(F, L, right, sight.columns - right), L, row);
    }

    void go() {
        clear(move);
        times_triangle(after(), moved, move);
        copy(state_noise, move.part(L, L, 0, L));
        for (int64_t i = 0; chain.smoothing && i < L; i++) move[i][stride_of<double>(L) + i] = 1;
        triangularize(move, L, row);
    }

    bool overflows() const {
        const double largest = chain.single ? std::numeric_limits<float>::max() : std::numeric_limits<double>::max();
        for (int64_t j = 0; j < L; j++) {
            double variance = 0;
            for (int64_t i = 0; i <= j; i++) variance += factor[i][j] * factor[i][j];
            if (!(variance <= largest)) return true;
        }
        return false;
    }

    // log |H|, NaN where H is singular: a feature is left with nothing beside the roundings of its scale
    double log_det() const {
        const double least = 8 * (chain.single ? std::numeric_limits<float>::epsilon() : std::numeric_limits<double>::epsilon());
        double sum = 0;
        for (int64_t f = 0; f < F; f++) {
            if (!(sight[f][f] > least * scale[f])) return std::numeric_limits<double>::quiet_NaN();
            sum += std::log(sight[f][f]);
        }
        return sum;
    }

    void keep(Record out, double log_det) {
        identity(inverse);
        for (int64_t f = F - 1; f >= 0; f--) {
            for (int64_t g = f + 1; g < F; g++) add_row(-sight[f][g], inverse[g], inverse[f], F);
            scale_row(1 / sight[f][f], inverse[f], F);
        }
        write_packed(inverse, out.inverse);
        write_packed(sight.part(0, F, right, L), out.gain);
        write_packed(factor, out.predicted);
        write_packed(after(), out.filtered);
        *out.log_det = log_det;
    }

    // How the whitened state of a step follows from that of the next one, which has been seen
    void keep_turn(Record out) {
        const Table into = move.part(0, L, stride_of<double>(L), L);
        const Table of_state = turn.part(0, L, 0, L), of_sight = turn.part(0, F, 0, L);
        product(sight.part(F, L, turned, L), into, of_state);
        write_packed(of_state, out.back);
        product(sight.part(0, F, turned, L), into, of_sight);
        write_packed(of_sight, out.drift);
    }

    void read_shown(View<double> table, const Seen& seen, int64_t t) {
        read_transposed(table, t, shown);
        for (int64_t f = 0; f < F; f++)
            for (int64_t i = 0; i < L && !seen(t, f); i++) shown[i][f] = 0;
    }

    // Goes through the steps of a set, until one fails or nothing changes any more.
    void follow(int64_t set) {
        const auto transition = chain.view<double>(TRANSITION, set), state_factor = chain.view<double>(STATE_FACTOR, set);
        const auto emission = chain.view<double>(EMISSION, set), observation = chain.view<double>(OBSERVATION_FACTOR, set);
        const auto initial = chain.view<double>(INITIAL_FACTOR, set);
        const Seen seen(chain, set);
        const bool same_sight = seen.constant() && !emission.step && !observation.step;
        const bool same_move = !transition.step && !state_factor.step;
        Steady<double> clock{reference};
        read_transposed(initial, 0, factor);
        triangularize(factor, L, row);
        const int64_t last = chain.length(set) - 1;
        chain.steady[set] = last;
        for (int64_t t = 0;; t++) {
            if (overflows()) return fail(set, t, OVERFLOWS);
            if (!t || !same_sight) {
                read_shown(emission, seen, t);
                read_noise(observation, seen, t);
            }
            see();
            const double volume = log_det();
            if (std::isnan(volume)) return fail(set, t, SINGULAR);
            keep(chain.record(set, t), volume);
            if (chain.smoothing && t) keep_turn(chain.record(set, t - 1));
            if (t == last) return;
            if (!t || !same_move) {
                read_transposed(transition, t, moved);
                read_transposed(state_factor, t, state_noise);
            }
            go();
            if (chain.smoothing) write_packed(move.part(L, L, stride_of<double>(L), L), chain.record(set, t).noise);
            const bool rests = same_sight && same_move && clock.reached(ahead(), factor, t + 1);
            copy(ahead(), factor);
            if (rests) {
                chain.steady[set] = t;
                if (chain.smoothing) keep_turn(chain.record(set, t));
                return;
            }
        }
    }

    void fail(int64_t set, int64_t t, Fault kind) { chain.fault[set] = 4 * t + kind; }
};

}  // namespace
