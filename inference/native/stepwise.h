// Mean field on one gate and one state a step, carried forward in time. With the belief h before a step,
//
//   j1 = log pi + log p(x | s, 1),   j0 = log h + log p(x | s, 0)
//   log Q(s) = q j1 + (1 - q) j0 - log Z,   logit q = logit rho + E_Q(s)[j1 - j0]
//   bound = log Z - KL(q | rho)
//
// In the conditional form, log(rho pi + (1 - rho) h) stands in place of both log pi and log h. A gate of 0 or 1 leaves
// out one of the tables, even if that one holds -inf. If no state is possible both when drawn and when held, the first
// gate is the more probable of 0 and 1. All is computed in double precision, vectors hold states, and rows of states end
// with -inf up to a whole vector. The plain form is `message_passing/stepwise/plain.py`.
//
// Tables are contiguous: redrawn and state [N, T, K], held [N, T, K or 1], fresh and initial [N, K], the others [N, T].
#pragma once
#include <algorithm>

#include "sums.h"

namespace {

using Reals = V<double>;
constexpr double INFINITE = std::numeric_limits<double>::infinity();

struct Sizes {
    int64_t steps, states, held_states, sweeps, conditional;
    int64_t lacking;  // memory: set to 1 if the system had none
};

template <class T> struct Tables {
    const T *redrawn, *held, *fresh, *odds, *initial, *gate;  // gate: null if it is inferred
    const int64_t* lengths;
    T *state, *redraw, *bound, *change;  // 0 where nothing is written
    int64_t* failed;                     // the first step at which no state is possible, or -1
};

inline double log_one_more_exp(double x) { return std::log1p(std::exp(x)); }

// log P(z = 1) and log P(z = 0)
struct LogGate {
    double drawn, held;
    explicit LogGate(double odds) {
        const double rest = log_one_more_exp(-std::fabs(odds));
        drawn = std::min(odds, 0.0) - rest;
        held = std::min(-odds, 0.0) - rest;
    }
};

// P(z = 1) and P(z = 0), both accurate
struct Gate {
    double drawn, held;
    explicit Gate(double logit) {
        const double e = std::exp(-std::fabs(logit)), large = 1 / (1 + e), small = e / (1 + e);
        drawn = logit >= 0 ? large : small;
        held = logit >= 0 ? small : large;
    }
    Gate(double drawn, double held) : drawn(drawn), held(held) {}
};

inline double divergence(double weight, double log_prior) { return weight > 0 ? weight * (std::log(weight) - log_prior) : 0; }

class Step {
    const int64_t padded;

    double top(const double* logs) const {
        Reals most = load(logs);
        for (int64_t k = W<double>; k < padded; k += W<double>) most = larger<double>(most, load(logs + k));
        return largest<double>(most);
    }
    double log_sum(const double* logs) const {
        const double most = top(logs);
        if (most == -INFINITE) return most;
        Reals sums{};
        for (int64_t k = 0; k < padded; k += W<double>) sums += exp_not_positive<double>(load(logs + k) - most);
        return most + std::log(total<double>(sums));
    }

public:
    double *j1, *j0, *log_q, *belief;

    Step(Room<double>& room, int64_t padded) : padded(padded) {
        for (double** row : {&j1, &j0, &log_q, &belief}) {
            *row = room.take(padded);
            std::fill(*row, *row + padded, -INFINITE);
        }
    }

    // The logit at which the sweeps start; NaN if no state is possible
    double first_logit(LogGate log_gate) const {
        const double drawn = log_gate.drawn + log_sum(j1), held = log_gate.held + log_sum(j0);
        if (drawn == -INFINITE && held == -INFINITE) return std::numeric_limits<double>::quiet_NaN();
        for (int64_t k = 0; k < padded; k++)
            if (j1[k] > -INFINITE && j0[k] > -INFINITE) return drawn - held;
        return drawn >= held ? INFINITE : -INFINITE;
    }

    // Q(s) and its logarithm, given the gate; returns log Z.
    double update(Gate q) const {
        for (int64_t k = 0; k < padded; k += W<double>) {
            const Reals drawn = load(j1 + k), held = load(j0 + k);
            const Reals of_drawn = q.drawn == 0 ? Reals{} : q.drawn * drawn, of_held = q.held == 0 ? Reals{} : q.held * held;
            store<double>(log_q + k, of_drawn + of_held);
        }
        const double log_mass = log_sum(log_q);
        if (log_mass == -INFINITE) return log_mass;
        for (int64_t k = 0; k < padded; k += W<double>) {
            const Reals log_belief = load(log_q + k) - log_mass;
            store<double>(log_q + k, log_belief);
            store<double>(belief + k, exp_not_positive<double>(log_belief));
        }
        return log_mass;
    }

    // E_Q(s)[j1 - j0]
    double gap() const {
        Reals sums{};
        for (int64_t k = 0; k < padded; k += W<double>) {
            const Reals weight = load(belief + k);
            sums += weight > 0.0 ? weight * (load(j1 + k) - load(j0 + k)) : Reals{};
        }
        return total<double>(sums);
    }
};

template <class T> class Stepwise {
    const Sizes& s;
    const Tables<T>& tables;
    Step step;

    // The log weights of all states at a step, under either gate
    void weigh(int64_t n, int64_t t, LogGate log_gate) {
        const int64_t K = s.states, row = n * s.steps + t;
        const T *fresh = tables.fresh + n * K, *redrawn = tables.redrawn + row * K, *held = tables.held + row * s.held_states;
        for (int64_t k = 0; k < K; k++) {
            double drawn = fresh[k], kept = step.log_q[k];
            if (s.conditional) {
                const double a = log_gate.drawn + drawn, b = log_gate.held + kept, most = std::max(a, b);
                drawn = kept = most == -INFINITE ? most : most + log_one_more_exp(std::min(a, b) - most);
            }
            step.j1[k] = drawn + redrawn[k];
            step.j0[k] = kept + held[s.held_states > 1 ? k : 0];
        }
    }

    bool take(int64_t n, int64_t t) {
        const int64_t row = n * s.steps + t;
        const double odds = tables.odds[row];
        const LogGate log_gate(odds);
        weigh(n, t, log_gate);
        const double known = tables.gate ? tables.gate[row] : 0;
        Gate q = tables.gate ? Gate(known, 1 - known) : Gate(step.first_logit(log_gate));
        double log_mass = step.update(q), moved = 0;
        const int64_t sweeps = tables.gate ? 0 : s.sweeps;
        for (int64_t i = 0; i < sweeps && log_mass > -INFINITE; i++) {
            const double before = q.drawn;
            q = Gate(odds + step.gap());
            log_mass = step.update(q);
            moved = std::fabs(q.drawn - before);
        }
        if (!(log_mass > -INFINITE && log_mass < INFINITE)) return false;
        std::copy(step.belief, step.belief + s.states, tables.state + row * s.states);
        tables.redraw[row] = T(q.drawn);
        tables.change[row] = T(moved);
        tables.bound[row] = T(log_mass - divergence(q.drawn, log_gate.drawn) - divergence(q.held, log_gate.held));
        return true;
    }

public:
    Stepwise(const Sizes& s, const Tables<T>& tables, Room<double>& room, int64_t padded)
        : s(s), tables(tables), step(room, padded) {}

    void filter(int64_t n) {
        std::copy_n(tables.initial + n * s.states, s.states, step.log_q);
        for (int64_t t = 0; t < std::min(tables.lengths[n], s.steps); t++)
            if (!take(n, t)) {
                tables.failed[n] = t;
                return;
            }
    }
};

}  // namespace
