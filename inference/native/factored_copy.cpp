#include "copy_batch.h"
#include "export.h"

#define FACTORED_COPY(T, name) \
    EXPORT void name(factored_copy_posterior)(int64_t* task, const int64_t* of, const T* log_redraw, const T* log_hold, \
                                              const T* log_state, const T* log_likelihood, const int64_t* lengths, T* value, \
                                              T* state, T* redraw, T* held, T* drawn, int64_t* failed) { \
        const FactoredBatch<T> batch = {log_redraw, log_hold, log_state, log_likelihood, of}; \
        const Posteriors<T> results = {value, state, redraw, nullptr, held, nullptr, drawn, 1}; \
        posterior<T>(task, batch, lengths, results, failed); \
    } \
    EXPORT void name(factored_copy_filter)(int64_t* task, const int64_t* of, const T* log_redraw, const T* log_hold, \
                                           const T* log_state, const T* log_likelihood, const int64_t* lengths, T* value, \
                                           T* state, T* increment, T* redraw, int64_t* failed) { \
        const FactoredBatch<T> batch = {log_redraw, log_hold, log_state, log_likelihood, of}; \
        filtered<T>(task, batch, lengths, value, increment, state, redraw, failed); \
    }
FOR_BOTH(FACTORED_COPY)
