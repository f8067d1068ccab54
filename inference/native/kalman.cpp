#include "export.h"
#include "kalman_diffuse.h"
#include "kalman_filter.h"
#include "kalman_score.h"
#include "roots.h"

namespace {

// Does the work of the sets `part[0] : part[1]` that have no fault.
template <class Work, class Each> void over_sets(const int64_t* part, const Chain& chain, Each each) {
    const auto all = [&](Work& work) {
        for (int64_t set = part[0]; set < part[1]; set++)
            if (chain.fault[set] < 0) each(work, set);
    };
    if (!in_memory<Work>(all, chain)) *chain.lacking = 1;
}

}  // namespace

EXPORT void kalman_factors(const int64_t* part, const Chain* chain) {
    std::fill(chain->fault + part[0], chain->fault + part[1], -1);
    over_sets<Filter>(part, *chain, [](Filter& work, int64_t set) { work.follow(set); });
    if (chain->open) over_sets<Regression>(part, *chain, [](Regression& work, int64_t set) { work.follow(set); });
}

EXPORT void kalman_score_covariances(const int64_t* part, const Chain* chain, double* transition, double* state, double* emission,
                                     double* observation, double* initial, const int64_t* steps) {
    const Taken taken = {transition, state, emission, observation, initial, steps};
    over_sets<Score>(part, *chain, [&](Score& work, int64_t set) { work.all(set, taken); });
}

#define KALMAN(T, name)                                                                                                     \
    EXPORT void name(kalman_filtered)(const int64_t* part, const Chain* chain, T* covariance, T* predicted, T* diffuse,     \
                                      T* predicted_diffuse) {                                                               \
        over_sets<Filtered<T>>(part, *chain, [&](Filtered<T>& work, int64_t set) {                                          \
            work.all(set, covariance, predicted, diffuse, predicted_diffuse);                                               \
        });                                                                                                                 \
    }                                                                                                                       \
    EXPORT void name(kalman_smoothed)(const int64_t* part, const Chain* chain, T* covariance, T* cross) {                   \
        over_sets<Smoothed<T>>(part, *chain, [&](Smoothed<T>& work, int64_t set) { work.all(set, covariance, cross); });    \
    }
FOR_BOTH(KALMAN)

// Of `sizes[0]` covariances of `sizes[1]` rows; writes into `sizes` how many are none, or that the system has no memory.
#define ROOTS(T, name)                                                                                                      \
    EXPORT void name(covariance_roots)(int64_t* sizes, const T* covariance, T* factor) {                                    \
        const int64_t n = sizes[1];                                                                                         \
        const auto all = [&](Roots<T>& roots) {                                                                             \
            for (int64_t k = 0; k < sizes[0]; k++)                                                                          \
                sizes[2] += !roots.factor_of(covariance + k * n * n, factor + k * n * n);                                   \
        };                                                                                                                  \
        sizes[3] = !in_memory<Roots<T>>(all, n);                                                                            \
    }
FOR_BOTH(ROOTS)
