#include "pushdown.h"

#include "export.h"

// part: sequences b0..b1, and steps from the first to the last; the weights are those of these steps.
EXPORT void pushdown(const int64_t* part, const Sizes* sizes, const PushdownWeights<const double>* weights,
                     const PushdownTables<double>* tables) {
    Pushdown steps(*sizes);
    for (int64_t b = part[0]; b < part[1]; b++)
        for (int64_t t = part[2]; t <= part[3]; t++)
            steps.advance(t, weights->of(*sizes, b, t - part[4]), tables->of(*sizes, b));
}

EXPORT void pushdown_adjoint(const int64_t* part, const Sizes* sizes, const PushdownWeights<const double>* weights,
                             const PushdownTables<const double>* tables, const PushdownWeights<double>* d_weights,
                             const PushdownTables<double>* d_tables) {
    Pushdown steps(*sizes);
    for (int64_t b = part[0]; b < part[1]; b++)
        for (int64_t t = part[3]; t >= part[2]; t--)
            steps.retreat(t, weights->of(*sizes, b, t - part[4]), tables->of(*sizes, b), d_weights->of(*sizes, b, t - part[4]),
                          d_tables->of(*sizes, b));
}
