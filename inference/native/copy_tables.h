// Two readings of the tables of a copy chain, as the weights of a step.
//
//   `CopyTables`:      fresh_t(s) and held_t(s), a table each; held_t may be one number for all states
//   `FactoredTables`:  fresh_t(s) = l_t(s) redraw_t pi(s),  held_t(s) = l_t(s) hold_t,  with the likelihoods l
//
// Where there is no state before the first step, that step redraws: its held weights are 0, and in `FactoredTables` its
// redraw_t is 1. The weights of a step are divided by a number near their largest. A weight below LOWEST is raised to it,
// since it must not underflow to a 0, which means "impossible".
#pragma once
#include <algorithm>

#include "copy_lanes.h"

namespace {

constexpr double NEVER = -INFINITY, LOWEST = 1e-150, LOG_LOWEST = -345;

// Rows of a table of one sequence, `step` apart; entries of a row lie side by side
template <class T> struct Rows {
    const T* at;
    int64_t step, width, count;
    INLINE const T* row(int64_t t) const { return at + t * step; }
    // The entries j.. of row t; -inf beyond its end. Where the next rows follow at once, a whole vector can be read.
    INLINE V<double> take(int64_t t, int64_t j) const {
        const T* x = row(t) + j;
        if (j + W<double> <= width) return load_wide(x);
        const bool within = step == width && (count - t) * width - j >= W<double>;
        V<double> lane, some{};
        for (int64_t i = 0; i < W<double>; i++) lane[i] = i;
        if (within) some = load_wide(x);
        else
            for (int64_t i = 0; i < width - j; i++) some[i] = x[i];
        return lane < double(width - j) ? some : splat(NEVER);
    }
};

// exp(x - top), at least LOWEST where it is possible
INLINE V<double> relative(V<double> x, V<double> top) {
    const V<double> y = x - top, weight = exponential<double, false, false>(y < LOG_LOWEST ? splat(LOG_LOWEST) : y);
    return y == NEVER ? V<double>{} : weight;
}
INLINE V<double> raised(V<double> x) { return (x < LOWEST) & (x > 0) ? splat(LOWEST) : x; }
INLINE double finite_or_0(double x) { return std::fabs(x) < INFINITY ? x : 0; }
// The largest number, if it is finite, else 0
INLINE V<double> divisor_of(V<double> most) {
    const V<double> top = everywhere<double>(most, larger<double>);
    return top - top == 0 ? top : V<double>{};
}

template <class T> struct CopyTables {
    Rows<T> log_fresh, log_held;
    bool redraws_first;  // there is no state before the first step

    static int64_t numbers(int64_t) { return 0; }
    void place(Room<double>&, int64_t) {}
    bool no_held(int64_t t) const { return redraws_first && t == 0; }

    // Writes the weights of step t, p of each kind; returns the logarithm of their divisor.
    INLINE double read(int64_t t, int64_t p, double* fresh, double* held) const {
        const bool never = no_held(t), one_for_all = log_held.width == 1;
        const V<double> common = splat(never ? NEVER : double(log_held.row(t)[0]));
        V<double> most = splat(NEVER);
        for (int64_t j = 0; j < p; j += W<double>) {
            const V<double> x = log_fresh.take(t, j), y = never || one_for_all ? common : log_held.take(t, j);
            most = larger<double>(larger<double>(x, y), most);
            store(fresh + j, x), store(held + j, y);
        }
        const V<double> top = divisor_of(most);
        for (int64_t j = 0; j < p; j += W<double>) {
            store(fresh + j, relative(load(fresh + j), top));
            if (!one_for_all) store(held + j, relative(load(held + j), top));
        }
        if (one_for_all) {
            const V<double> weight = relative(common, top);
            for (int64_t j = 0; j < p; j += W<double>) store(held + j, weight);
        }
        return top[0];
    }

    // The logarithms
    double fresh_at(int64_t t, int64_t s) const { return log_fresh.row(t)[s]; }
    double held_at(int64_t t, int64_t s) const { return no_held(t) ? NEVER : log_held.row(t)[log_held.width == 1 ? 0 : s]; }
};

template <class T> struct FactoredTables {
    Rows<T> log_likelihood, log_redraw, log_hold;  // gates have one column, and may be 0 apart
    const T* log_state;
    double *state = nullptr, *redraw = nullptr;  // of each state: pi(s), and redraw_t pi(s)
    double hold = 0, highest = 0, divisor = 0;   // highest: the largest logarithm of pi

    static int64_t numbers(int64_t p) { return 2 * p; }
    void place(Room<double>& room, int64_t p) { state = room.take(p), redraw = room.take(p); }

    APART void read_states(int64_t p) {
        const int64_t k = log_likelihood.width;
        highest = finite_or_0(*std::max_element(log_state, log_state + k));
        for (int64_t j = 0; j < p; j++) state[j] = j < k ? log_state[j] : NEVER;
        for (int64_t j = 0; j < p; j += W<double>) store(state + j, relative(load(state + j), splat(highest)));
    }
    // The gates of step t, relative to the larger, with a redraw of the most probable state
    INLINE void read_gates(int64_t t, int64_t p) {
        const double draws = (t ? double(*log_redraw.row(t)) : 0.0) + highest, holds = t ? double(*log_hold.row(t)) : NEVER;
        divisor = finite_or_0(holds > draws ? holds : draws);
        V<double> gates = splat(draws);
        gates[1] = holds;
        gates = relative(gates, splat(divisor));
        hold = gates[1];
        for (int64_t j = 0; j < p; j += W<double>) store(redraw + j, raised(gates[0] * load(state + j)));
    }
    INLINE double read(int64_t t, int64_t p, double* fresh, double* held) {
        if (t < 2 || log_redraw.step || log_hold.step) read_gates(t, p);
        V<double> most = splat(NEVER);
        for (int64_t j = 0; j < p; j += W<double>) {
            const V<double> x = log_likelihood.take(t, j);
            most = larger<double>(x, most);
            store(fresh + j, x);
        }
        const V<double> top = divisor_of(most);
        for (int64_t j = 0; j < p; j += W<double>) {
            const V<double> likelihood = relative(load(fresh + j), top);
            store(fresh + j, likelihood * load(redraw + j));
            store(held + j, likelihood * hold);
        }
        return divisor + top[0];
    }

    double fresh_at(int64_t t, int64_t s) const {
        return double(log_likelihood.row(t)[s]) + ((t ? double(*log_redraw.row(t)) : 0.0) + double(log_state[s]));
    }
    double held_at(int64_t t, int64_t s) const {
        return t ? double(log_likelihood.row(t)[s]) + double(*log_hold.row(t)) : NEVER;
    }
};

}  // namespace
