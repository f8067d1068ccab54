#include "copy_paths.h"
#include "export.h"

#define COPY(T, name) \
    EXPORT void name(copy_posterior)(int64_t* task, const int64_t* of, const T* log_initial, const T* log_fresh, \
                                     const T* log_held, const int64_t* lengths, T* value, T* state, T* redraw, T* fresh, \
                                     T* held, T* initial, int64_t* failed) { \
        const CopyBatch<T> batch = {log_initial, log_fresh, log_held, of}; \
        const Posteriors<T> results = {value, state, redraw, fresh, held, initial, nullptr, of[2]}; \
        posterior<T>(task, batch, lengths, results, failed); \
    } \
    EXPORT void name(copy_filter)(int64_t* task, const int64_t* of, const T* log_initial, const T* log_fresh, \
                                  const T* log_held, const int64_t* lengths, double* increment, T* state, T* redraw, \
                                  int64_t* failed) { \
        const CopyBatch<T> batch = {log_initial, log_fresh, log_held, of}; \
        filtered<T>(task, batch, lengths, static_cast<T*>(nullptr), increment, state, redraw, failed); \
    } \
    EXPORT void name(copy_viterbi)(int64_t* task, const int64_t* of, const T* log_initial, const T* log_fresh, \
                                   const T* log_held, const int64_t* lengths, int64_t* path, bool* redraw, T* value, \
                                   int64_t* failed) { \
        best_paths<T>(task, {log_initial, log_fresh, log_held, of}, lengths, path, redraw, value, failed); \
    } \
    EXPORT void name(copy_sample)(int64_t* task, const int64_t* of, const T* log_initial, const T* log_fresh, \
                                  const T* log_held, const int64_t* lengths, const int64_t* draws, const double* uniform, \
                                  int64_t* path, bool* redraw, int64_t* failed) { \
        draw_paths<T>(task, {log_initial, log_fresh, log_held, of}, lengths, draws, uniform, path, redraw, failed); \
    }
FOR_BOTH(COPY)
