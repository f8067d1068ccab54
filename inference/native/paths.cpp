#include "paths.h"

#include "export.h"

namespace {

// Calls `finish` for each sequence of a range, of which the steps forward are done, and whether it has a density.
template <class T, int N, class Finish>
void each_sequence(const int64_t* sequences, Sizes* s, const Tables<T>& tables, bool for_draws, double* log_normalizer,
                   int64_t* failed, Finish&& finish) {
    const auto all = [&](Paths<T, N>& paths) {
        for (int64_t b = sequences[0]; b < sequences[1]; b++) {
            double value;
            failed[b] = paths.eliminate(b, for_draws, value);
            if (log_normalizer) log_normalizer[b] = value;
            finish(paths, b, failed[b] < 0);
        }
    };
    if (!in_memory<Paths<T, N>>(all, *s, tables)) s->lacking = 1;
}

template <class T, int N>
void path_moments(const int64_t* sequences, Sizes* s, const Tables<T>& tables, double* log_normalizer, T* first, T* second,
                  T* crossed, int64_t* failed) {
    each_sequence<T, N>(sequences, s, tables, false, log_normalizer, failed, [&](Paths<T, N>& paths, int64_t b, bool proper) {
        if (proper) paths.moments(b, first, second, crossed);
        paths.clear(b, proper, first, second, crossed);
    });
}

template <class T, int N>
void path_sample(const int64_t* sequences, Sizes* s, const Tables<T>& tables, const T* noise, T* path, int64_t* failed) {
    each_sequence<T, N>(sequences, s, tables, true, nullptr, failed, [&](Paths<T, N>& paths, int64_t b, bool proper) {
        if (proper) paths.sample(b, noise, path);
        paths.clear(b, proper, path);
    });
}

}  // namespace

#define OF_SIZE(work, T, n) ((n) == 1 ? work<T, 1> : (n) == 2 ? work<T, 2> : (n) == 3 ? work<T, 3> : work<T, 0>)
#define PATHS(T, name)                                                                                                        \
    EXPORT void name(path_moments)(const int64_t* sequences, Sizes* s, const T* linear, const T* square, const T* cross,      \
                                   const int64_t* lengths, double* log_normalizer, T* first, T* second, T* crossed,           \
                                   int64_t* failed) {                                                                         \
        const Tables<T> tables = {linear, square, cross, lengths};                                                            \
        OF_SIZE(path_moments, T, s->states)(sequences, s, tables, log_normalizer, first, second, crossed, failed);            \
    }                                                                                                                         \
    EXPORT void name(path_sample)(const int64_t* sequences, Sizes* s, const T* linear, const T* square, const T* cross,       \
                                  const int64_t* lengths, const T* noise, T* path, int64_t* failed) {                         \
        OF_SIZE(path_sample, T, s->states)(sequences, s, {linear, square, cross, lengths}, noise, path, failed);              \
    }
FOR_BOTH(PATHS)
