#include "clusters.h"

#include "export.h"

#define KMEANS(T, name)                                                                                                     \
    EXPORT void name(kmeans)(const T* x, const int64_t* sizes, const T* draws, T* means) {                                  \
        KMeans<T> found(x, sizes[0], sizes[1], sizes[2]);                                                                   \
        found.spread(draws, sizes[3]);                                                                                      \
        for (int64_t i = 0; i < sizes[4]; i++) {                                                                            \
            found.assign();                                                                                                 \
            if (!found.update()) break;                                                                                     \
        }                                                                                                                   \
        std::copy(found.means.begin(), found.means.end(), means);                                                           \
    }                                                                                                                       \
    EXPORT void name(nearest)(const T* x, const int64_t* sizes, const T* means, int64_t* label) {                           \
        KMeans<T> found(x, sizes[0], sizes[1], sizes[2]);                                                                   \
        std::copy(means, means + sizes[1] * sizes[2], found.means.begin());                                                 \
        found.assign();                                                                                                     \
        std::copy(found.label.begin(), found.label.end(), label);                                                           \
    }
FOR_BOTH(KMEANS)
