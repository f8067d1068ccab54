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

// Filters or smooths n sequences of which each has one table for all steps
template <class T, int NV, int G, int n, class Team>
void sweep_group(Team& team, const Results<T>& to, bool smoothing, int64_t at) {
    Chains<T>& x = team.x;
    int64_t group[n], lengths[n];
    for (int g = 0; g < n; g++) {
        group[g] = x.at(at + g);
        lengths[g] = x.length(group[g]);
        team.begin(g, group[g], to.state, 0, lengths[g]);
        if (!smoothing) team.up[g].increment = to.further + group[g] * to.further_size;
    }
    team.tables.take(x, group, n);
    if (smoothing) team.sweep.template smooth<n>(team.up, team.down, lengths);
    else team.sweep.template filter<n>(team.up, lengths);
    for (int g = 0; g < n; g++) {
        const int64_t b = group[g];
        to.total[b] = T(team.up[g].evidence.value());
        to.failed[b] = -1;
        if (smoothing) team.tables.write(g, to.further + b * to.further_size);
        // a filter does not meet what comes later, but no step can need what it dropped if tables mix
        if (!team.sure(g) || !(smoothing || team.tables.table(g).least >= Limits<T>::mixes)) exactly(x, to, b, smoothing);
        clear_beyond(x, to, b, smoothing);
    }
}
template <class T, int NV, int G>
void sweep_groups(Chains<T>& x, const Results<T>& to, bool smoothing, int64_t from, int64_t end) {
    Team<T, NV, G, OneTable<T, NV>> team(x, Sizes<T>(x.n_states), G, smoothing ? x.n_steps : 0);
    if (!team.stands()) return;
    for (; end - from >= G; from += G) sweep_group<T, NV, G, G>(team, to, smoothing, from);
    for (; from < end; from++) sweep_group<T, NV, G, 1>(team, to, smoothing, from);
}

// Smooths some sequences with a table for each step
template <class T> void smooth_by_step(Chains<T>& x, const Results<T>& to, int64_t from, int64_t end) {
    Team<T, 0, 1, TableByStep<T>> team(x, Sizes<T>(x.n_states), x.n_steps, x.n_steps);
    if (!team.stands()) return;
    for (int64_t at = from; at < end; at++) {
        const int64_t b = x.at(at), length = x.length(b);
        team.begin(0, b, to.state, 0, length);
        team.tables.take(x, b, to.further + b * to.further_size);
        team.sweep.template smooth<1>(team.up, team.down, &length);
        to.total[b] = T(team.up[0].evidence.value());
        to.failed[b] = -1;
        if (!team.sure(0)) exactly(x, to, b, true);
        clear_beyond(x, to, b, true);
    }
}

// A part of a sequence: `begun` are the messages and the weights that they were pushed from, forward and backward, at its
// ends; null where the sequence begins or ends. If there are no results, the sweeps go to its middle, as if nothing was known.
template <class T> struct Part {
    const int64_t* of;  // the sequence, and low <= t < high
    const T *before, *after;
    double* total;
    T *state, *moves, *ended;
    int64_t* sure;
};

template <class T, int NV> void sweep_part(Chains<T>& x, const Part<T>& part) {
    const int64_t k = x.n_states, b = part.of[0], low = part.of[1], high = part.of[2], size = high - low;
    Team<T, NV, 1, OneTable<T, NV>> team(x, Sizes<T>(x.n_states), 1, part.moves ? size : 0);
    if (!team.stands()) return;
    auto& sweep = team.sweep;
    Lane<T>&up = team.up[0], &down = team.down[0];
    team.begin(0, b, part.state, low, high);
    team.tables.take(x, &b, 1);
    if (part.moves) {
        if (part.before) sweep.start(up, low, part.before);
        if (part.after) sweep.start(down, high - 1, part.after + 2 * k);
        sweep.template smooth<1>(&up, &down, &size);
    } else sweep.template advance<1, false>(&up, &down, size / 2, size / 2);
    sweep.last(up, part.ended);
    sweep.last(down, part.ended + 2 * k);
    if (!part.moves) return;
    if (part.after) sweep.join(up, part.after + 3 * k);
    else std::fill(up.state + high * k, up.state + x.n_steps * k, T(0));
    *part.total = up.evidence.value();
    *part.sure = team.sure(0);
    team.tables.write(0, part.moves);
}

// Sequences side by side hide the time that a step waits for the one before it; few are left to several threads.
template <class T, int NV> void sweep_all(Chains<T>& x, const Results<T>& to, bool smoothing, const int64_t* task) {
    if (task[2] == MOST) sweep_groups<T, NV, MOST>(x, to, smoothing, task[0], task[1]);
    else sweep_groups<T, NV, 1>(x, to, smoothing, task[0], task[1]);
}

template <class T> void filter_or_smooth(const int64_t* task, Chains<T>& x, const Results<T>& to, bool smoothing) {
    const Sizes<T> of(x.n_states);
    if (x.by_step && smoothing) smooth_by_step(x, to, task[0], task[1]);
    else if (x.by_step)
        for (int64_t at = task[0]; at < task[1]; at++) {
            exactly(x, to, x.at(at), false);
            clear_beyond(x, to, x.at(at), false);
        }
    else if (of.wide == W<T>) sweep_all<T, 1>(x, to, smoothing, task);
    else if (of.wide == 2 * W<T>) sweep_all<T, 2>(x, to, smoothing, task);
    else sweep_all<T, 0>(x, to, smoothing, task);
}

template <class T> void sweep_part(Chains<T>& x, const Part<T>& part) {
    const Sizes<T> of(x.n_states);
    if (of.wide == W<T>) sweep_part<T, 1>(x, part);
    else if (of.wide == 2 * W<T>) sweep_part<T, 2>(x, part);
    else sweep_part<T, 0>(x, part);
}

}  // namespace

#define MARKOV(T, name)                                                                                                     \
    EXPORT void name(markov_filter)(const int64_t* task, Chains<T>* x, T* total, T* state, T* increment, int64_t* failed) { \
        filter_or_smooth<T>(task, *x, {total, state, increment, failed, x->n_steps}, false);                                \
    }                                                                                                                       \
    EXPORT void name(markov_posterior)(const int64_t* task, Chains<T>* x, T* total, T* state, T* moves, int64_t* failed) {  \
        const int64_t size = x->n_states * x->n_states * (x->by_step ? x->n_steps - 1 : 1);                                 \
        filter_or_smooth<T>(task, *x, {total, state, moves, failed, size}, true);                                           \
    }                                                                                                                       \
    EXPORT void name(markov_approach)(const int64_t* part, Chains<T>* x, T* state, T* ended) {                              \
        sweep_part<T>(*x, {part, nullptr, nullptr, nullptr, state, nullptr, ended, nullptr});                               \
    }                                                                                                                       \
    EXPORT void name(markov_part)(const int64_t* part, Chains<T>* x, const T* before, const T* after, double* total,        \
                                  T* state, T* moves, T* ended, int64_t* sure) {                                            \
        sweep_part<T>(*x, {part, before, after, total, state, moves, ended, sure});                                         \
    }
FOR_BOTH(MARKOV)
