#include "semi_markov.h"

#include "export.h"

// For sequences part[0]..part[1]; `lacking` of the tables says afterwards whether there was no memory.
template <class Each> static void each_sequence(const int64_t* part, SemiMarkov* of, int64_t* failed, Each each) {
    Segments memory(*of);
    if (memory.lacking()) of->lacking = 1;
    else
        for (int64_t b = part[0]; b < part[1]; b++)
            if (of->lengths[b] > 0 && of->lengths[b] <= of->T) failed[b] = each(memory, b);
}

EXPORT void semi_markov_filter(const int64_t* part, SemiMarkov* of, double* state, double* predicted, double* increment,
                               int64_t* failed) {
    const int64_t T = of->T, size = T * of->K;
    each_sequence(part, of, failed, [&](Segments& s, int64_t b) {
        return s.filter(b, state + b * size, predicted + b * size, increment + b * T);
    });
}

EXPORT void semi_markov_posterior(const int64_t* part, SemiMarkov* of, double* state, double* increment, double* begins,
                                  double* moves, double* counts, double* entropy, int64_t* failed) {
    const int64_t T = of->T, K = of->K, size = T * K, of_moves = of->S * K * K, of_counts = 4 * K * of->D;
    each_sequence(part, of, failed, [&](Segments& s, int64_t b) {
        return s.smooth(b, state + b * size, increment + b * T, begins + b * size, moves + b * of_moves, counts + b * of_counts,
                        entropy + b);
    });
}

EXPORT void semi_markov_viterbi(const int64_t* part, SemiMarkov* of, int64_t* path, int64_t* failed) {
    each_sequence(part, of, failed, [&](Segments& s, int64_t b) { return s.best_path(b, path + b * of->T); });
}

EXPORT void semi_markov_sample(const int64_t* part, SemiMarkov* of, const int64_t* sizes, const double* uniform, int64_t* path,
                               double* increment, int64_t* failed) {
    const int64_t T = of->T, stride = sizes[1] * T;
    each_sequence(part, of, failed, [&](Segments& s, int64_t b) {
        return s.draw(b, sizes[0], stride, uniform + 2 * b * T, path + b * T, increment + b * T);
    });
}
