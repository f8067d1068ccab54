#include "moments.h"

#include "export.h"

namespace {

template <class T, template <class> class Kind>
void densities(const int64_t* items, Sizes* s, const T* x, const T* loc, const T* spread, const T* log_volume, T* out) {
    const Kind<T> kind(*s);
    if (kind.full()) s->lacking = 1;
    else
        for (int64_t i = items[0]; i < items[1]; i++) kind.densities(steps_of(*s, i), x, loc, spread, log_volume, out);
}

template <class T>
void moments(const int64_t* items, Sizes* s, bool by_feature, const T* x, const T* weights, const T* about, T* count, T* first,
             T* second) {
    Moments<T> found(*s, by_feature);
    if (found.full()) s->lacking = 1;
    else
        for (int64_t i = items[0]; i < items[1]; i++) found.of(i, x, weights, about, count, first, second);
}

}  // namespace

#define MOMENTS(T, name)                                                                                                     \
    EXPORT void name(diagonal_density)(const int64_t* items, Sizes* sizes, const T* x, const T* loc, const T* precision,     \
                                       const T* log_precision, T* out) {                                                     \
        densities<T, Diagonal>(items, sizes, x, loc, precision, log_precision, out);                                         \
    }                                                                                                                        \
    EXPORT void name(full_density)(const int64_t* items, Sizes* sizes, const T* x, const T* loc, const T* chol,              \
                                   const T* log_det, T* out) {                                                               \
        densities<T, Full>(items, sizes, x, loc, chol, log_det, out);                                                        \
    }                                                                                                                        \
    EXPORT void name(normal_moments)(const int64_t* items, Sizes* sizes, int64_t by_feature, const T* x, const T* weights,   \
                                     const T* about, T* count, T* first, T* second) {                                        \
        moments<T>(items, sizes, by_feature, x, weights, about, count, first, second);                                       \
    }
FOR_BOTH(MOMENTS)
