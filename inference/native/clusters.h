// K-means: means far apart by k-means++ (Arthur & Vassilvitskii 2007), then Lloyd's iterations.
//
// Each mean of k-means++ is the best of several points, each drawn by its squared distance from the means before it.
// The draws are given, so a seed gives the same means everywhere. A cluster that loses all points restarts from a point
// that is far from its mean. The plain form is `by_torch` in `switching/emissions/clusters.py`.
//
// Points lie with their coordinates as rows, [E, M]: loops run over points, whatever E is.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace {

template <class T> struct KMeans {
    const T* x;  // [E, M]
    int64_t M, E, K;
    std::vector<T> means, least, squares;  // [K, E], [M], [M]
    std::vector<int64_t> label;            // [M]

    KMeans(const T* x, int64_t M, int64_t E, int64_t K) : x(x), M(M), E(E), K(K), means(K * E), least(M), squares(M), label(M) {}

    // Squared distances of all points from one, by differences, so that equal points have equal distances
    void measure(const T* mean) {
        std::fill(squares.begin(), squares.end(), T(0));
        for (int64_t e = 0; e < E; e++)
            for (int64_t m = 0; m < M; m++) {
                const T away = x[e * M + m] - mean[e];
                squares[m] += away * away;
            }
    }

    void copy(int64_t point, T* mean) const {
        for (int64_t e = 0; e < E; e++) mean[e] = x[e * M + point];
    }

    // The first point up to which a share `draw` of all mass lies
    int64_t point_at(double draw) const {
        double total = 0, sum = 0;
        for (T mass : least) total += mass;
        for (int64_t m = 0; m < M; m++)
            if ((sum += least[m]) > draw * total) return m;
        return M - 1;
    }

    // draws [K, trials], uniform on [0, 1)
    void spread(const T* draws, int64_t trials) {
        copy(std::min<int64_t>(int64_t(draws[0] * M), M - 1), means.data());
        measure(means.data());
        least = squares;
        std::vector<T> tried(E), best;
        for (int64_t k = 1; k < K; k++) {
            double lowest = INFINITY;
            for (int64_t i = 0; i < trials; i++) {
                copy(point_at(draws[k * trials + i]), tried.data());
                measure(tried.data());
                double total = 0;
                for (int64_t m = 0; m < M; m++) total += squares[m] = std::min(squares[m], least[m]);
                if (!(total < lowest)) continue;
                lowest = total;
                best = squares;
                std::copy(tried.begin(), tried.end(), &means[k * E]);
            }
            least.swap(best);
        }
    }

    void assign() {
        std::fill(least.begin(), least.end(), T(INFINITY));
        std::fill(label.begin(), label.end(), 0);
        for (int64_t k = 0; k < K; k++) {
            measure(&means[k * E]);
            for (int64_t m = 0; m < M; m++) {
                label[m] = squares[m] < least[m] ? k : label[m];
                least[m] = std::min(squares[m], least[m]);
            }
        }
    }

    // Whether some mean moved
    bool update() {
        std::vector<double> sums(K * E), count(K);
        for (int64_t m = 0; m < M; m++) count[label[m]] += 1;
        for (int64_t e = 0; e < E; e++)
            for (int64_t m = 0; m < M; m++) sums[label[m] * E + e] += x[e * M + m];
        bool moved = false;
        for (int64_t k = 0; k < K; k++) {
            int64_t far = -1;
            if (count[k] == 0) {
                far = std::max_element(least.begin(), least.end()) - least.begin();
                least[far] = 0;
            }
            for (int64_t e = 0; e < E; e++) {
                const T now = far < 0 ? T(sums[k * E + e] / count[k]) : x[e * M + far];
                moved |= now != means[k * E + e];
                means[k * E + e] = now;
            }
        }
        return moved;
    }
};

}  // namespace
