#include "export.h"
#include "markov_logs.h"

namespace {

template <class T> void best_paths(const int64_t* task, Chains<T>& x, int64_t* path, int64_t* failed) {
    Room<double> room(Logs<T>::numbers(x.n_states) + x.n_steps * Sizes<double>(x.n_states).wide, Logs<T>::TABLES + 1);
    if (room.full()) {
        x.lacking = 1;
        return;
    }
    Logs<T> logs(x, room);
    double* best = room.take(x.n_steps * logs.wide);
    for (int64_t at = task[0]; at < task[1]; at++) {
        const int64_t b = x.at(at);
        logs.start(b);
        failed[b] = logs.best_path(best, path + b * x.n_steps);
        std::fill(path + b * x.n_steps + x.length(b), path + (b + 1) * x.n_steps, int64_t(-1));
    }
}

// Paths [n, B, T], of B sequences
template <class T>
void draw_paths(const int64_t* task, Chains<T>& x, int64_t n, int64_t sequences, const double* uniform, int64_t* path,
                int64_t* failed) {
    const int64_t k = x.n_states, n_steps = x.n_steps, wide = Sizes<double>(k).wide;
    Room<double> room(Logs<T>::numbers(k) + (n_steps + k) * wide, Logs<T>::TABLES + 2);
    Room<int64_t> marks(k, 1);
    if (room.full() || marks.full()) {
        x.lacking = 1;
        return;
    }
    Logs<T> logs(x, room);
    double *states = room.take(n_steps * wide), *columns = room.take(k * wide);
    int64_t* made = marks.take(k);
    for (int64_t at = task[0]; at < task[1]; at++) {
        const int64_t b = x.at(at), first = b * n_steps;
        Evidence evidence;
        logs.start(b);
        failed[b] = logs.filter(states, wide, evidence, [](int64_t, const double*, double) {});
        if (failed[b] < 0) logs.draw(states, uniform + first, n, sequences * n_steps, columns, made, path + first);
        const int64_t known = failed[b] < 0 ? x.length(b) : 0;
        for (int64_t* one = path + first; one < path + n * sequences * n_steps; one += sequences * n_steps)
            std::fill(one + known, one + n_steps, int64_t(-1));
    }
}

}  // namespace

#define PATHS(T, name)                                                                                                   \
    EXPORT void name(markov_viterbi)(const int64_t* task, Chains<T>* x, int64_t* path, int64_t* failed) {                   \
        best_paths<T>(task, *x, path, failed);                                                                              \
    }                                                                                                                       \
    EXPORT void name(markov_sample)(const int64_t* task, Chains<T>* x, const int64_t* of, const double* uniform,            \
                                    int64_t* path, int64_t* failed) {                                                       \
        draw_paths<T>(task, *x, of[0], of[1], uniform, path, failed);                                                       \
    }
FOR_BOTH(PATHS)
