// Copy chains in logarithms, as the plain forms compute them: for sequences of which numbers would lose digits.
//
//   n_t = log(e^(held_t + l_{t-1}) + e^(fresh_t)),   l_t = n_t - c_t,   c_t = log sum_s e^(n_t(s))
#pragma once
#include <algorithm>

#include "copy_tables.h"

namespace {

constexpr double POSSIBLE = -5e299;  // log-weights above this belong to possible events

// What is wanted of the posterior of a sequence; null if it is not
template <class T> struct Wanted {
    T *state = nullptr, *redraw = nullptr, *fresh = nullptr, *held = nullptr, *initial = nullptr;
    T* drawn = nullptr;     // the sum of P(s_t, z_t = 1 | x) over time
    int64_t held_width = 1;  // the number of states, or 1 for the sum over them
    bool any() const { return state || fresh; }
};

INLINE double log_add(double x, double y) {
    const double high = x > y ? x : y, low = x > y ? y : x;
    return high == -INFINITY ? high : high + std::log1p(std::exp(low - high));
}
APART inline double log_total(const double* x, int64_t n) {
    double most = -INFINITY, sum = 0;
    for (int64_t j = 0; j < n; j++) most = x[j] > most ? x[j] : most;
    most = finite_or_0(most);
    for (int64_t j = 0; j < n; j++) sum += std::exp(x[j] - most);
    return std::log(sum) + most;
}

template <class Tables> struct InLogs {
    Tables tables;
    int64_t k, steps;
    Room<double> room;
    double *belief, *step;  // before and after each step, normalised; c_t with the divisors of the weights
    double *fresh, *held, *both, *future, *drawn;
    double divisor = 0;

    APART InLogs(const Tables& tables, int64_t k, int64_t steps, const double* start)
        : tables(tables), k(k), steps(steps), room((steps + 8) * k + steps, 8) {
        if (room.full()) return;
        belief = room.take((steps + 1) * k), step = room.take(steps), fresh = room.take(k), held = room.take(k);
        both = room.take(2 * k), future = room.take(k), drawn = room.take(k);
        std::copy(start, start + k, belief);
    }

    // The weights of a step, less the largest, which is in `divisor`
    APART void read(int64_t t) {
        divisor = -INFINITY;
        for (int64_t s = 0; s < k; s++) {
            fresh[s] = tables.fresh_at(t, s), held[s] = tables.held_at(t, s);
            divisor = std::fmax(divisor, std::fmax(fresh[s], held[s]));
        }
        divisor = finite_or_0(divisor);
        for (int64_t s = 0; s < k; s++) fresh[s] -= divisor, held[s] -= divisor;
    }
    double* after(int64_t t) { return belief + (t + 1) * k; }

    // The first step that is impossible, or -1
    APART int64_t forward() {
        for (int64_t t = 0; t < steps; t++) {
            read(t);
            double *before = after(t - 1), *now = after(t);
            for (int64_t s = 0; s < k; s++) now[s] = log_add(held[s] + before[s], fresh[s]);
            const double total = log_total(now, k);
            if (!(total > POSSIBLE && total < INFINITY)) return t;
            for (int64_t s = 0; s < k; s++) now[s] -= total;
            step[t] = total + divisor;
        }
        return -1;
    }
    APART double value() const {
        Evidence sum;
        for (int64_t t = 0; t < steps; t++) sum.add(step[t]);
        return sum.value();
    }

    template <class T> APART void backward(const Wanted<T>& out) {
        std::fill(future, future + k, 0.0), std::fill(drawn, drawn + k, 0.0);
        for (int64_t t = steps - 1; t >= 0; t--) {
            read(t);
            const double *before = after(t - 1), total = step[t] - divisor;
            for (int64_t s = 0; s < k; s++) {
                both[s] = fresh[s] + future[s];
                both[k + s] = held[s] + before[s] + future[s];
            }
            const double all_drawn = log_total(both, k), norm = log_total(both, 2 * k);
            for (int64_t s = 0; s < k; s++) future[s] = log_add(held[s] + future[s], all_drawn) - total;
            for (int64_t s = 0; s < 2 * k; s++) both[s] = std::exp(both[s] - norm);
            for (int64_t s = 0; s < k; s++) drawn[s] += both[s];
            write(t, std::exp(all_drawn - norm), out);
        }
        if (out.initial) {
            for (int64_t s = 0; s < k; s++) both[s] = belief[s] + future[s];
            const double norm = log_total(both, k);
            for (int64_t s = 0; s < k; s++) out.initial[s] = T(std::exp(both[s] - norm));
        }
        if (out.drawn)
            for (int64_t s = 0; s < k; s++) out.drawn[s] = T(drawn[s]);
    }
    // The results of a filter
    template <class T, class I> APART void write_filtered(T* state, T* redraw, I* increment) {
        for (int64_t t = 0; t < steps; t++) {
            read(t);
            for (int64_t s = 0; s < k; s++) state[t * k + s] = T(std::exp(after(t)[s]));
            redraw[t] = T(std::fmin(std::exp(log_total(fresh, k) - (step[t] - divisor)), 1.0));
            increment[t] = I(step[t]);
        }
    }
    template <class T> APART void write(int64_t t, double redraw, const Wanted<T>& out) const {
        double kept = 0;
        for (int64_t s = 0; s < k; s++) {
            kept += both[k + s];
            if (out.state) out.state[t * k + s] = T(both[s] + both[k + s]);
            if (out.fresh) out.fresh[t * k + s] = T(both[s]);
            if (out.held && out.held_width > 1) out.held[t * k + s] = T(both[k + s]);
        }
        if (out.redraw) out.redraw[t] = T(redraw);
        if (out.held && out.held_width == 1) out.held[t] = T(kept);
    }
};

}  // namespace
