// The sequences of one call: their tables, and the beliefs before their first steps.
#pragma once
#include <vector>

#include "copy.h"

namespace {

// The belief before the first step, normalised: as logarithms, and as numbers, which are 0 only if impossible
struct Start {
    std::vector<double> logs, belief;
    double log_sum = 0;  // the divisor

    Start(int64_t k, int64_t p) : logs(k, -INFINITY), belief(p, 0.0) {}
    template <class T> APART void read(const T* initial) {
        const int64_t k = logs.size();
        if (!initial) return;
        const double top = finite_or_0(*std::max_element(initial, initial + k));
        for (int64_t s = 0; s < k; s++) logs[s] = double(initial[s]) - top;
        const double rest = log_total(logs.data(), k);
        for (int64_t s = 0; s < k; s++) {
            logs[s] -= rest;
            belief[s] = logs[s] > -INFINITY ? std::fmax(std::exp(logs[s]), FLOOR) : logs[s] == logs[s] ? 0 : logs[s];
        }
        log_sum = top + rest;
    }
};

// The tables of all sequences: where those of one begin. `log_initial` may be null.
template <class T> struct CopyBatch {
    using Tables = CopyTables<T>;
    const T *log_initial, *log_fresh, *log_held;
    const int64_t* of;  // steps, states, columns of log_held, strides, and the weights of a block
    int64_t steps() const { return of[0]; }
    int64_t states() const { return of[1]; }
    int64_t block() const { return of[8]; }
    const T* initial(int64_t i) const { return log_initial ? log_initial + i * of[3] : nullptr; }
    APART void read(int64_t i, int64_t n, Tables& tables) const {
        tables.log_fresh = {log_fresh + i * of[4], of[5], of[1], n};
        tables.log_held = {log_held + i * of[6], of[7], of[2], n};
        tables.redraws_first = !log_initial;
    }
};

// The batch axes of factored tables broadcast: each table has a stride for each axis.
template <class T> struct FactoredBatch {
    using Tables = FactoredTables<T>;
    const T *log_redraw, *log_hold, *log_state, *log_likelihood;
    const int64_t* of;  // steps, states, strides of time, the weights of a block, and for each axis its size and strides; then 0
    int64_t steps() const { return of[0]; }
    int64_t states() const { return of[1]; }
    int64_t block() const { return of[5]; }
    const T* initial(int64_t) const { return nullptr; }
    APART void read(int64_t i, int64_t n, Tables& tables) const {
        int64_t at[4] = {};
        for (const int64_t* entry = of + 6; *entry; entry += 5) {  // the last axis first
            const int64_t index = i % entry[0];
            i /= entry[0];
            for (int table = 0; table < 4; table++) at[table] += index * entry[1 + table];
        }
        tables.log_redraw = {log_redraw + at[0], of[2], 1, n};
        tables.log_hold = {log_hold + at[1], of[3], 1, n};
        tables.log_state = log_state + at[2];
        tables.log_likelihood = {log_likelihood + at[3], of[4], of[1], n};
        tables.read_states(round_up(of[1], W<double>));
    }
};

inline int64_t inside(int64_t length, int64_t steps) { return std::max<int64_t>(0, std::min(length, steps)); }

// A task says which sequences are its own, and whether the system had no memory for them.
inline void no_memory(int64_t* task) { task[2] = 1; }

template <class T> APART void clear(T* table, int64_t from, int64_t to) {
    if (table) std::fill(table + from, table + to, T(0));
}

// Results of all sequences, of which any may be null
template <class T> struct Posteriors {
    T *value, *state, *redraw, *fresh, *held, *initial, *drawn;
    int64_t held_width;

    Wanted<T> of(int64_t i, int64_t steps, int64_t k) const {
        const auto at = [i](T* table, int64_t size) { return table ? table + i * size : nullptr; };
        return {at(state, steps * k),         at(redraw, steps), at(fresh, steps * k),
                at(held, steps * held_width), at(initial, k),    at(drawn, k),         held_width};
    }
};

template <class T, class Batch>
void posterior(int64_t* task, const Batch& batch, const int64_t* lengths, const Posteriors<T>& results, int64_t* failed) {
    using Tables = typename Batch::Tables;
    const int64_t steps = batch.steps(), k = batch.states(), p = round_up(k, W<double>);
    const int64_t rows = CopySweep::rows_of(steps, p, results.state || results.fresh ? batch.block() : 0);
    CopySweep sweep(k, rows, Tables::numbers(p) + (steps / rows + 2) * p);
    if (sweep.room.full()) return no_memory(task);
    Tables tables{};
    tables.place(sweep.room, p);
    double* kept = sweep.room.take((steps / rows + 2) * p);
    Start start(k, p);
    for (int64_t i = task[0]; i < task[1]; i++) {
        const int64_t n = inside(lengths[i], steps);
        const Wanted<T> out = results.of(i, steps, k);
        clear(out.state, n * k, steps * k), clear(out.redraw, n, steps), clear(out.fresh, n * k, steps * k);
        clear(out.held, n * out.held_width, steps * out.held_width);
        batch.read(i, n, tables);
        start.read(batch.initial(i));
        double value = 0;
        const Verdict verdict = sweep.smooth(tables, n, start.belief.data(), out, kept, value);
        failed[i] = sweep.failed;
        if (verdict == RISKY) {
            InLogs<Tables> logs(tables, k, n, start.logs.data());
            if (logs.room.full()) return no_memory(task);
            failed[i] = logs.forward();
            value = logs.value();
            if (failed[i] < 0 && out.any()) logs.backward(out);
        }
        results.value[i] = failed[i] < 0 ? T(value + start.log_sum) : std::numeric_limits<T>::quiet_NaN();
    }
}

template <class T, class Batch, class I>
void filtered(int64_t* task, const Batch& batch, const int64_t* lengths, T* value, I* increment, T* state, T* redraw,
              int64_t* failed) {
    using Tables = typename Batch::Tables;
    const int64_t steps = batch.steps(), k = batch.states(), p = round_up(k, W<double>);
    CopySweep sweep(k, CopySweep::rows_of(steps, p, 0), Tables::numbers(p));
    if (sweep.room.full()) return no_memory(task);
    Tables tables{};
    tables.place(sweep.room, p);
    Start start(k, p);
    for (int64_t i = task[0]; i < task[1]; i++) {
        const int64_t n = inside(lengths[i], steps);
        batch.read(i, n, tables);
        start.read(batch.initial(i));
        T *own_state = state + i * steps * k, *own_redraw = redraw + i * steps;
        I* own = increment + i * steps;
        clear(own_state, n * k, steps * k), clear(own_redraw, n, steps), clear(own, n, steps);
        const Verdict verdict = sweep.filter(tables, n, start.belief.data(), own_state, own_redraw, own);
        failed[i] = sweep.failed;
        if (verdict == RISKY) {
            InLogs<Tables> logs(tables, k, n, start.logs.data());
            if (logs.room.full()) return no_memory(task);
            failed[i] = logs.forward();
            if (failed[i] < 0) logs.write_filtered(own_state, own_redraw, own);
        }
        own[0] += I(start.log_sum);
        if (value) {
            Evidence sum;
            for (int64_t t = 0; t < n; t++) sum.add(own[t]);
            value[i] = T(sum.value());
        }
    }
}

}  // namespace
