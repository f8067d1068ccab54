// The best path of a copy chain, and draws of its path, at O(K) a step.
//
//   v_t(s) = max(held_t(s) + v_{t-1}(s), fresh_t(s) + max v_{t-1}),  in logarithms relative to max v_{t-1}
//
// A path that redraws at t ends at the best state of t - 1 before it. Draws go backward from the filtered beliefs a_t: the
// gate of step t has odds fresh_t(s) : held_t(s) a_{t-1}(s), and a redraw leaves the state before it to a_{t-1}.
#pragma once
#include "copy_batch.h"

namespace {

typedef int8_t Choices __attribute__((vector_size(VECTOR_BYTES / sizeof(double))));

template <class T> struct BestPath {
    const CopyTables<T>& tables;
    int64_t k, steps;
    double* best;   // of each state
    int64_t* ends;  // the best state of each step
    char* drawn;    // whether the best path to a state redraws there
    Evidence sum;

    // The first step that is impossible, or -1
    int64_t forward(const double* start) {
        std::copy(start, start + k, best);
        double top = 0;
        for (int64_t t = 0; t < steps; t++) {
            top = step(t, top);
            if (!(top > -INFINITY && top < INFINITY)) return t;
            sum.add(top);
            ends[t] = std::find(best, best + k, top) - best;
        }
        return -1;
    }
    // `best` after step t, relative to `offset` before it; its largest, NaN if one is
    double step(int64_t t, double offset) {
        const bool never = tables.redraws_first && t == 0, narrow = never || tables.log_held.width < k;
        const T *fresh = tables.log_fresh.row(t), *held = tables.log_held.row(t);
        const double common = never ? -INFINITY : double(held[0]);
        char* choice = drawn + t * k;
        V<double> top = splat(-double(INFINITY)), sum{};
        int64_t s = 0;
        for (; s + W<double> <= k; s += W<double>) {
            const V<double> before = load(best + s) - offset, drawing = load_wide(fresh + s);
            const V<double> kept = (narrow ? splat(common) : load_wide(held + s)) + before;
            const Bits<double> draws = drawing > kept;
            const V<double> now = draws ? drawing : kept;
            sum += kept == kept ? drawing : kept;  // NaN if a number is
            top = larger<double>(now, top);
            store(best + s, now);
            const Choices chosen = __builtin_convertvector(draws & 1, Choices);
            std::memcpy(choice + s, &chosen, sizeof chosen);
        }
        double known = sum_of<double>(sum), largest = everywhere<double>(top, larger<double>)[0];
        for (; s < k; s++) {
            const double kept = (narrow ? common : double(held[s])) + (best[s] - offset), drawing = fresh[s];
            choice[s] = drawing > kept;
            best[s] = choice[s] ? drawing : kept;
            known += kept == kept ? drawing : kept;
            largest = best[s] > largest ? best[s] : largest;
        }
        return known == known ? largest : NAN;
    }
    void backward(int64_t* path, bool* redraw) const {
        int64_t s = ends[steps - 1];
        for (int64_t t = steps - 1; t >= 0; t--) {
            path[t] = s, redraw[t] = drawn[t * k + s];
            if (redraw[t] && t > 0) s = ends[t - 1];
        }
    }
};

template <class T>
void best_paths(int64_t* task, const CopyBatch<T>& batch, const int64_t* lengths, int64_t* path, bool* redraw, T* value,
                int64_t* failed) {
    const int64_t steps = batch.steps(), k = batch.states();
    CopyTables<T> tables;
    Start start(k, k);
    Room<double> numbers(k, 1);
    Room<int64_t> ends(steps, 1);
    Room<char> drawn(steps * k, 1);
    if (numbers.full() || ends.full() || drawn.full()) return no_memory(task);
    BestPath<T> best = {tables, k, 0, numbers.take(k), ends.take(steps), drawn.take(steps * k), {}};
    for (int64_t i = task[0]; i < task[1]; i++) {
        const int64_t n = inside(lengths[i], steps);
        batch.read(i, n, tables);
        start.read(batch.initial(i));
        best.steps = n, best.sum = Evidence();
        failed[i] = best.forward(start.logs.data());
        std::fill(path + i * steps, path + (i + 1) * steps, int64_t(-1));
        std::fill(redraw + i * steps, redraw + (i + 1) * steps, false);
        if (failed[i] < 0 && n) best.backward(path + i * steps, redraw + i * steps);
        value[i] = T(best.sum.value() + start.log_sum);
    }
}

// Draws of the path of one sequence from its filtered beliefs, [steps + 1, K] with the one before the first step
template <class T> struct Draws {
    const CopyTables<T>& tables;
    int64_t k, count, apart;  // the draws, and how far apart their steps lie
    bool logs;                // whether beliefs are logarithms
    std::vector<double> cumulative;
    std::vector<int64_t> state;
    std::vector<char> drawn;

    void sample(const double* belief, int64_t steps, const double* uniform, int64_t* path, bool* redraw) {
        std::fill(drawn.begin(), drawn.end(), 1);
        for (int64_t t = steps - 1; t >= 0; t--) {
            if (std::find(drawn.begin(), drawn.end(), 1) != drawn.end()) accumulate(belief + (t + 1) * k);
            for (int64_t j = 0; j < count; j++) {
                const int64_t at = j * apart + t;
                const double* numbers = uniform + 2 * at;
                if (drawn[j])
                    state[j] = std::upper_bound(cumulative.begin(), cumulative.end() - 1, numbers[1]) - cumulative.begin();
                drawn[j] = numbers[0] < 1 / (1 + odds(t, belief[t * k + state[j]], state[j]));
                path[at] = state[j], redraw[at] = drawn[j];
            }
        }
    }
    void accumulate(const double* belief) {
        double total = 0;
        for (int64_t s = 0; s < k; s++) cumulative[s] = total += logs ? std::exp(belief[s]) : belief[s];
        for (double& x : cumulative) x /= total;
    }
    // Of holding against a redraw
    double odds(int64_t t, double before, int64_t s) const {
        const double held = tables.held_at(t, s) - tables.fresh_at(t, s);
        if (logs) return before > -INFINITY ? std::exp(before + held) : 0;
        return before > 0 ? before * std::exp(held) : 0;
    }
};

template <class T>
void draw_paths(int64_t* task, const CopyBatch<T>& batch, const int64_t* lengths, const int64_t* draws, const double* uniform,
                int64_t* path, bool* redraw, int64_t* failed) {
    const int64_t steps = batch.steps(), k = batch.states(), p = round_up(k, W<double>);
    CopySweep sweep(k, CopySweep::rows_of(steps, p, 0), 0);
    if (sweep.room.full()) return no_memory(task);
    CopyTables<T> tables;
    Room<double> room((steps + 1) * k + steps, 2);
    if (room.full()) return no_memory(task);
    double *belief = room.take((steps + 1) * k), *unused = room.take(steps);
    Start start(k, p);
    Draws<T> drawn = {tables, k, draws[0], draws[1] * steps, false, std::vector<double>(k), std::vector<int64_t>(draws[0]),
                      std::vector<char>(draws[0])};
    for (int64_t i = task[0]; i < task[1]; i++) {
        const int64_t n = inside(lengths[i], steps), at = i * steps;
        batch.read(i, n, tables);
        start.read(batch.initial(i));
        for (int64_t j = 0; j < draws[0]; j++) {
            std::fill_n(path + at + j * drawn.apart, steps, int64_t(-1));
            std::fill_n(redraw + at + j * drawn.apart, steps, false);
        }
        std::copy(start.belief.begin(), start.belief.begin() + k, belief);
        drawn.logs = sweep.filter(tables, n, start.belief.data(), belief + k, unused, unused) == RISKY;
        failed[i] = sweep.failed;
        if (drawn.logs) {
            InLogs<CopyTables<T>> logs(tables, k, n, start.logs.data());
            if (logs.room.full()) return no_memory(task);
            failed[i] = logs.forward();
            std::copy(logs.belief, logs.belief + (n + 1) * k, belief);
        }
        if (failed[i] < 0) drawn.sample(belief, n, uniform + 2 * at, path + at, redraw + at);
    }
}

}  // namespace
