#include "export.h"
#include "markov_logs.h"
#include "markov_team.h"

namespace {

template <class T> void exactly(Chains<T>& x, const Results<T>& to, int64_t b, bool smoothing) {
    const int64_t wide = Sizes<double>(x.n_states).wide, kept = smoothing ? x.length(b) : 2;
    Room<double> room(Logs<T>::numbers(x.n_states) + (kept + x.n_states) * wide, Logs<T>::TABLES + 2);
    if (room.full()) {
        x.lacking = 1;
        return;
    }
    Logs<T> logs(x, room);
    double *states = room.take(kept * wide), *sums = room.take(x.n_states * wide);
    T *state = to.state + b * x.n_steps * x.n_states, *further = to.further + b * to.further_size;
    Evidence evidence;
    logs.start(b);
    to.failed[b] = logs.filter(states, smoothing ? wide : 0, evidence, [&](int64_t t, double* a, double gain) {
        if (smoothing) return;
        further[t] = T(gain);
        for (int64_t j = 0; j < wide; j += W<double>) store(sums + j, exp_of_log_probability(load(a + j)));
        for (int64_t j = 0; j < x.n_states; j++) state[t * x.n_states + j] = T(sums[j]);
    });
    to.total[b] = T(evidence.value());
    if (smoothing && to.failed[b] < 0) logs.smooth(states, state, further, sums);
}

constexpr int64_t BESIDE = 12; // states at most of sequences that lie beside each other in vectors

template <class T, int G, int M>
void sweep(const int64_t* task, Chains<T>& x, const Results<T>& to, Work work, const Parts<T>& parts, int64_t steps) {
    Team<T, 0, G, OneTable<T, M>, M> team(x, to, Sizes<T>(x.n_states, M), G, work == SMOOTH ? steps : 0);
    team.run(task[0], task[1], work, parts, [&](int64_t b) {
        if (to.failed[b] != -1) exactly(x, to, b, work == SMOOTH);
    });
}

// A task is a range of sequences or of parts, and how many are swept at once, 1 or more; few are left to several threads.
// Those of few states lie beside each other in vectors. Others lie in lanes, which hide the time that a step waits for the
// one before it.
template <class T>
void sweep(const int64_t* task, Chains<T>& x, const Results<T>& to, Work work, const Parts<T>& parts = {}) {
    int64_t steps = parts.of ? 0 : x.n_steps;
    for (int64_t at = task[0]; parts.of && at < task[1]; at++)
        steps = std::max(steps, parts.of[5 * at + 2] - parts.of[5 * at + 1]);
    if (x.by_step && work == SMOOTH) {
        Team<T, 0, 1, TableByStep<T>> team(x, to, Sizes<T>(x.n_states), ByStepSize<T>{x.n_steps, to.further}, steps);
        team.run(task[0], task[1], work, parts, [&](int64_t b) {
            if (to.failed[b] != -1) exactly(x, to, b, true);
        });
    } else if (x.by_step)
        for (int64_t at = task[0]; at < task[1]; at++) {
            exactly(x, to, x.at(at), false);
            clear_beyond(x, to, x.at(at), false);
        }
    else if (task[2] > 1 && x.n_states <= BESIDE) sweep<T, 1, W<T>>(task, x, to, work, parts, steps);
    else if (task[2] > 1) sweep<T, MOST, 1>(task, x, to, work, parts, steps);
    else sweep<T, 1, 1>(task, x, to, work, parts, steps);
}

}  // namespace

#define MARKOV(T, name)                                                                                                     \
    EXPORT void name(markov_filter)(const int64_t* task, Chains<T>* x, T* total, T* state, T* increment, int64_t* failed) { \
        sweep<T>(task, *x, {total, state, increment, failed, x->n_steps}, FILTER);                                          \
    }                                                                                                                       \
    EXPORT void name(markov_posterior)(const int64_t* task, Chains<T>* x, T* total, T* state, T* moves, int64_t* failed) {  \
        const int64_t size = x->n_states * x->n_states * (x->by_step ? x->n_steps - 1 : 1);                                 \
        sweep<T>(task, *x, {total, state, moves, failed, size}, SMOOTH);                                                    \
    }                                                                                                                       \
    EXPORT void name(markov_approach)(const int64_t* task, Chains<T>* x, const int64_t* parts, T* state, T* ended) {        \
        sweep<T>(task, *x, {nullptr, state, nullptr, nullptr, 0}, APPROACH, {parts, nullptr, ended});                       \
    }                                                                                                                       \
    EXPORT void name(markov_parts)(const int64_t* task, Chains<T>* x, const int64_t* parts, const T* meetings, T* total,    \
                                   T* state, T* moves, int64_t* failed, T* ended) {                                         \
        const int64_t size = x->n_states * x->n_states;                                                                     \
        sweep<T>(task, *x, {total, state, moves, failed, size}, SMOOTH, {parts, meetings, ended});                          \
    }
FOR_BOTH(MARKOV)
