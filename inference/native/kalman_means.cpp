#include "kalman_means.h"

#include "export.h"

namespace {

// Does the work of the groups `part[0] : part[1]` of sequences whose sets have no fault.
template <class T, class N, class Each> void in_lanes(const int64_t* part, const Chain& chain, Lanes& lanes, Each each) {
    const int64_t of_set = (chain.sequences + chain.lanes - 1) / chain.lanes;
    for (int64_t k = part[0]; k < part[1]; k++) {
        const int64_t set = k / of_set, first = k % of_set * chain.lanes;
        if (chain.fault[set] >= 0) continue;
        Group<T, N> group(chain, lanes, set, first, std::min(chain.lanes, chain.sequences - first));
        each(group, lanes);
    }
}

// `kept` has room for the innovations and means of all steps of a group.
template <class T, class Each> void over_groups(const int64_t* part, const Chain& chain, double* kept, Each each) {
    const auto all = [&](Lanes& lanes) {
        chain.lanes == 1 ? in_lanes<T, double>(part, chain, lanes, each) : in_lanes<T, V<double>>(part, chain, lanes, each);
    };
    if (!in_memory<Lanes>(all, chain, kept)) *chain.lacking = 1;
}

}  // namespace

#define KALMAN_MEANS(T, name)                                                                                            \
    EXPORT void name(kalman_evidence)(const int64_t* part, double*, const Chain* chain, T* total) {                         \
        over_groups<T>(part, *chain, nullptr, [&](auto& group, Lanes&) {                                                    \
            group.forward();                                                                                                \
            group.write_total(total);                                                                                       \
        });                                                                                                                 \
    }                                                                                                                       \
    EXPORT void name(kalman_filter)(const int64_t* part, double*, const Chain* chain, T* total, T* increment, T* mean,      \
                                    T* predicted) {                                                                         \
        over_groups<T>(part, *chain, nullptr, [&](auto& group, Lanes&) {                                                    \
            group.forward(increment, mean, predicted);                                                                       \
            group.write_total(total);                                                                                       \
        });                                                                                                                 \
    }                                                                                                                       \
    EXPORT void name(kalman_smooth)(const int64_t* part, double* kept, const Chain* chain, T* total, T* mean) {             \
        over_groups<T>(part, *chain, kept, [&](auto& group, Lanes&) {                                                       \
            group.forward();                                                                                                \
            group.add_diffuse();                                                                                            \
            group.smooth(mean);                                                                                             \
            group.write_total(total);                                                                                       \
        });                                                                                                                 \
    }                                                                                                                       \
    EXPORT void name(kalman_score)(const int64_t* part, double* kept, const Chain* chain, double* mean, double* later,      \
                                   double* error) {                                                                         \
        over_groups<T>(part, *chain, kept, [&](auto& group, Lanes&) {                                                       \
            group.forward();                                                                                                \
            group.add_diffuse();                                                                                            \
            group.score(mean, later, error);                                                                                \
        });                                                                                                                 \
    }                                                                                                                       \
    EXPORT void name(kalman_draw)(const int64_t* part, double* kept, const Chain* chain, int64_t n, const T* noise,         \
                                  const T* diffuse_noise, T* path) {                                                        \
        const int64_t all = chain->sets * chain->sequences;                                                                 \
        over_groups<T>(part, *chain, kept, [&](auto& group, Lanes&) {                                                       \
            group.forward();                                                                                                \
            for (int64_t k = 0; k < n; k++) {                                                                               \
                group.draw_coordinates(diffuse_noise + k * all * chain->open);                                              \
                const int64_t begin = k * all * chain->steps * chain->states;                                               \
                group.draw(noise + begin, path + begin);                                                                    \
            }                                                                                                               \
        });                                                                                                                 \
    }
FOR_BOTH(KALMAN_MEANS)
