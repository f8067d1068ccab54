// Means of linear Gaussian chains: the part that reads observations. With known gains (`kalman.h`), forward in time
//
//   w = H'^-1 (x - d - C m),   m+ = m + G' w,   next m = A m+ + c,
//
// and backward, for smoothed means, draws and the gradient of log p(x),
//
//   e_t = (D J1)' e_{t+1} + (E J1)' w_{t+1} (+ J2' noise),   s_t = m+ + V' e_t,
//   u = H^-1 (w - G A' r_{t+1}),   r_t = C' u + A' r_{t+1},   s_t = m+ + V' V A' r_{t+1}.
//
// Means are conditional on diffuse coordinates of 0, until the last step has determined these.
#pragma once
#include "kalman_lanes.h"

namespace {

constexpr double HALF_LOG_2PI = 0.9189385332046727418;

// A table of all steps by columns, for which there is memory; one that varies with the step as it is
INLINE View<double> by_columns(View<double> table, int64_t rows, int64_t columns, double* memory) {
    if (table.step || !table.at) return table;
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++) memory[j * rows + i] = table.at[i * table.row + j * table.column];
    return {memory, 0, 1, rows};
}

// Sequences of a set that go side by side
template <class T, class N> struct Group {
    const Chain& chain;
    Lanes& at;
    const int64_t set, first, count, n, F, L, q, steps;
    const Seen seen;
    const View<double> transition, emission;
    View<T> x[MOST_LANES];
    View<double> offset[MOST_LANES], emission_offset[MOST_LANES], initial[MOST_LANES];
    int64_t place[MOST_LANES];

    Group(const Chain& chain, Lanes& at, int64_t set, int64_t first, int64_t count)
        : chain(chain), at(at), set(set), first(first), count(count), n(WIDE<N> == 1 ? 1 : round_up(count, WIDE<N>)),
          F(chain.features), L(chain.states), q(chain.open), steps(chain.length(set)), seen(chain, set),
          transition(by_columns(chain.view<double>(TRANSITION, set), L, L, at.transition)),
          emission(by_columns(chain.view<double>(EMISSION, set), F, L, at.emission)) {
        for (int64_t lane = 0; lane < n; lane++) {  // lanes that are left over repeat the last sequence
            const int64_t sequence = first + std::min(lane, count - 1);
            x[lane] = chain.view<T>(X, set, sequence);
            offset[lane] = chain.view<double>(TRANSITION_OFFSET, set, sequence);
            emission_offset[lane] = chain.view<double>(EMISSION_OFFSET, set, sequence);
            initial[lane] = chain.view<double>(INITIAL_MEAN, set, sequence);
            place[lane] = chain.view<char>(PLACE, set, sequence).at - static_cast<const char*>(nullptr);
        }
    }

    INLINE double* white(int64_t t) const { return at.kept ? at.kept + t * (F + L) * n : at.white; }
    INLINE double* filtered(int64_t t) const { return white(t) + F * n; }

    // out <- value(i, lane); of one sequence in whole vectors: numbers that are stored one by one are slow to load as a vector.
    template <class Value> INLINE void fill(double* out, int64_t rows, Value value) const {
        int64_t i = 0;
        for (; WIDE<N> == 1 && i + W<double> <= rows; i += W<double>) {
            V<double> some;
#pragma GCC unroll 8
            for (int64_t k = 0; k < W<double>; k++) some[k] = value(i + k, 0);
            store(out + i, some);
        }
        for (; i < rows; i++)
            for (int64_t lane = 0; lane < n; lane++) out[i * n + lane] = value(i, lane);
    }

    void start() {
        for (double* table : {at.total, at.rest}) std::fill_n(table, n, 0.0);
        for (double* table : {at.side, at.weights}) std::fill_n(table, q * n, 0.0);
        for (int64_t i = 0; i < L; i++)
            for (int64_t lane = 0; lane < n; lane++) at.mean[i * n + lane] = initial[lane](0, i);
    }

    INLINE void hide(double* table, int64_t t) const {
        for (int64_t f = 0; f < F; f++)
            if (!seen(t, f)) std::fill_n(table + f * n, n, 0.0);
    }

    // Whitened innovations of a step and the means that they lead to; returns the constant cost.
    INLINE double update(int64_t t) {
        const Record record = chain.resting(set, t);
        double *w = white(t), *gap = at.turned;
        fill(gap, F, [&](int64_t f, int64_t lane) { return x[lane](t, f) - emission_offset[lane](t, f); });
        add_times<N, true>(reading(emission, t, F, L), at.mean, gap, n);
        int64_t n_seen = F;
        if (seen.table.at)
            for (int64_t f = 0; f < F; f++) n_seen -= !seen(t, f);
        if (n_seen < F) hide(gap, t);
        std::fill_n(w, F * n, 0.0);
        add_times<N>(transposed(record.inverse, F, F), gap, w, n);
        add_times<N>(transposed(record.gain, F, L), w, at.mean, n);
        return *record.log_det + HALF_LOG_2PI * n_seen;
    }

    INLINE void predict(int64_t t) {
        std::swap(at.mean, at.moved);
        fill(at.mean, L, [&](int64_t i, int64_t lane) { return offset[lane](t, i); });
        add_times<N>(reading(transition, t, L, L), at.moved, at.mean, n);
    }

    // out += half the squares of rows of a table
    INLINE void add_squares(const double* table, int64_t rows, double* out) const {
        for (int64_t lane = 0; lane < n; lane += WIDE<N>) {
            N sums{};
            for (int64_t i = 0; i < rows; i++) sums += take<N>(table + i * n + lane) * take<N>(table + i * n + lane);
            put(out + lane, N(take<N>(out + lane) + 0.5 * sums));
        }
    }

    // Turns innovations of a step into the right side of the regression; what is left of them is their cost.
    INLINE void regress(int64_t t) {
        std::fill_n(at.cost, n, 0.0);
        if (!q) return add_squares(white(t), F, at.cost);
        const double* turn = chain.diffuse_at(set, t).turn;
        std::fill_n(at.turned, (q + F) * n, 0.0);
        add_times<N>({turn, q + F, q, q + F, 1}, at.side, at.turned, n);
        add_times<N>({turn + q, q + F, F, q + F, 1}, white(t), at.turned, n);
        std::copy_n(at.turned, q * n, at.side);
        add_squares(at.turned + q * n, F, at.cost);
    }

    // The diffuse coordinates from the regression after step t
    INLINE void weigh(int64_t t) {
        std::fill_n(at.weights, q * n, 0.0);
        add_times<N, true>(plain(chain.solution(set, t).weight, q, q), at.side, at.weights, n);
    }

    // Numbers of lanes into [*b, T, size]
    template <class S> INLINE void write(const double* table, int64_t t, int64_t size, S* out) const {
        for (int64_t lane = 0; lane < count; lane++) {
            S* to = out + (place[lane] * chain.steps + t) * size;
            for (int64_t i = 0; i < size; i++) to[i] = S(table[i * n + lane]);
        }
    }
    template <class S> void write_total(S* total) const {
        for (int64_t lane = 0; lane < count; lane++) total[place[lane]] = S(at.total[lane]);
    }

    // Means of a step with the diffuse coordinates known so far
    INLINE void write_means(const double* effect, int64_t t, T* out) {
        if (!q) return write(at.mean, t, L, out);
        std::copy_n(at.mean, L * n, at.moved);
        add_times<N>(plain(effect, L, q), at.weights, at.moved, n);
        write(at.moved, t, L, out);
    }

    // log p(x), diffuse coordinates and, if they are kept, innovations and means. If asked for, by step, increments of log p(x), and
    // means before and after each observation
    void forward(T* increment = nullptr, T* mean = nullptr, T* predicted = nullptr) {
        double volume = 0;
        start();
        for (int64_t t = 0; t < steps; t++) {
            const Diffuse effect = chain.diffuse_at(set, t);
            if (increment) write_means(effect.predicted, t, predicted);
            double constant = update(t);
            regress(t);
            if (q && (increment || t + 1 == steps)) {
                const Solution solution = chain.solution(set, t);
                weigh(t);
                constant += *solution.log_det - volume;
                volume = *solution.log_det;
                for (int64_t lane = 0; lane < n; lane++) at.cost[lane] -= at.rest[lane];
                std::fill_n(at.turned, q * n, 0.0);
                add_times<N>(plain(solution.rest, q, q), at.side, at.turned, n);
                std::fill_n(at.rest, n, 0.0);
                add_squares(at.turned, q, at.rest);
                for (int64_t lane = 0; lane < n; lane++) at.cost[lane] += at.rest[lane];
            }
            for (int64_t lane = 0; lane < n; lane++) {
                const double gained = -(at.cost[lane] + constant);
                at.total[lane] += gained;
                if (increment && lane < count) increment[place[lane] * chain.steps + t] = T(gained);
            }
            if (at.kept) std::copy_n(at.mean, L * n, filtered(t));
            if (increment) write_means(effect.filtered, t, mean);
            if (t + 1 < steps) predict(t);
        }
    }

    // What diffuse coordinates add to innovations and means
    void add_diffuse() {
        for (int64_t t = 0; q && t < steps; t++) {
            const Diffuse effect = chain.diffuse_at(set, t);
            add_times<N>(plain(effect.white, F, q), at.weights, white(t), n);
            add_times<N>(plain(effect.filtered, L, q), at.weights, filtered(t), n);
        }
    }

    // e_t from e_{t+1} and its innovations, in `mean`
    INLINE void step_back(const Record& record, const double* w) {
        std::swap(at.mean, at.moved);
        std::fill_n(at.mean, L * n, 0.0);
        add_times<N>(transposed(record.drift, F, L), w, at.mean, n);
        add_times<N>(transposed(record.back, L, L), at.moved, at.mean, n);
    }

    void smooth(T* mean) {
        std::fill_n(at.mean, L * n, 0.0);
        for (int64_t t = steps - 1; t >= 0; t--) {
            const Record record = chain.resting(set, t);
            if (t + 1 < steps) step_back(record, white(t + 1));
            add_times<N>(transposed(record.filtered, L, L), at.mean, filtered(t), n);
            write(filtered(t), t, L, mean);
        }
    }

    // One draw, from normal numbers of its shape
    void draw(const T* noise, T* path) {
        for (int64_t t = steps - 1; t >= 0; t--) {
            const Record record = chain.resting(set, t);
            for (int64_t i = 0; i < L; i++)
                for (int64_t lane = 0; lane < n; lane++) at.turned[i * n + lane] = noise[(place[lane] * chain.steps + t) * L + i];
            if (t + 1 < steps) {
                std::copy_n(white(t + 1), F * n, at.white);
                if (q) add_times<N>(plain(chain.diffuse_at(set, t + 1).white, F, q), at.drawn, at.white, n);
                step_back(record, at.white);
                add_times<N>(transposed(record.noise, L, L), at.turned, at.mean, n);
            } else std::copy_n(at.turned, L * n, at.mean);
            std::copy_n(filtered(t), L * n, at.moved);
            add_times<N>(transposed(record.filtered, L, L), at.mean, at.moved, n);
            if (q) add_times<N>(plain(chain.diffuse_at(set, t).filtered, L, q), at.drawn, at.moved, n);
            write(at.moved, t, L, path);
        }
    }

    // The diffuse coordinates of a draw, from normal numbers [*b, q]
    void draw_coordinates(const T* noise) {
        for (int64_t i = 0; i < q; i++)
            for (int64_t lane = 0; lane < n; lane++) at.numbers[i * n + lane] = noise[place[lane] * q + i];
        std::copy_n(at.weights, q * n, at.drawn);
        if (q) add_times<N>(plain(chain.solution(set, steps - 1).spread, q, q), at.numbers, at.drawn, n);
    }

    // Smoothed means, r and u
    void score(double* mean, double* later, double* error) {
        double* future = at.mean;  // r of the next step, and then A' r
        std::fill_n(future, L * n, 0.0);
        for (int64_t t = steps - 1; t >= 0; t--) {
            const Record record = chain.resting(set, t);
            double* w = white(t);
            if (t + 1 < steps) {
                std::fill_n(at.moved, L * n, 0.0);
                add_times<N>(reading_transposed(transition, t, L, L), future, at.moved, n);
                std::swap(future, at.moved);
                std::fill_n(at.moved, L * n, 0.0);
                add_times<N>(plain(record.filtered, L, L), future, at.moved, n);
                add_times<N>(transposed(record.filtered, L, L), at.moved, filtered(t), n);
            }
            add_times<N, true>(plain(record.gain, F, L), future, w, n);
            std::swap_ranges(w, w + F * n, at.turned);
            std::fill_n(w, F * n, 0.0);
            add_times<N>(plain(record.inverse, F, F), at.turned, w, n);
            if (seen.table.at) hide(w, t);
            add_times<N>(reading_transposed(emission, t, F, L), w, future, n);
            write(filtered(t), t, L, mean);
            write(future, t, L, later);
            write(w, t, F, error);
        }
        at.mean = future;
    }
};

}  // namespace
