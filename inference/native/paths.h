// Paths of Gaussian states by their natural parameters: block elimination forward in time, moments and draws backward.
//
//   log p(s) = sum_t a_t' s_t + s_t' B_t s_t + s_{t+1}' C_t s_t - A
//   forward    L_{t+1} = J_{t+1} - C_t G_t,   v_{t+1} = a_{t+1} + C_t m_t,   J_t = -(B_t + B_t'),   L_1 = J_1,   v_1 = a_1,
//              with m_t = L_t^-1 v_t and the gain G_t = L_t^-1 C_t';   A = sum_t (n log 2 pi - log|L_t| + v_t' m_t) / 2
//   backward   E s_t = m_t + G_t E s_{t+1},   V_t = L_t^-1 + G_t V_{t+1} G_t',   Cov(s_{t+1}, s_t) = V_{t+1} G_t'
//   a draw     s_t = m_t + G_t s_{t+1} + R_t' e_t,   where L_t^-1 = R_t' R_t
//
// All is computed in double precision. Tables are contiguous: linear a [N, T, n], square B [N, T, n, n], cross C
// [N, T - 1, n, n], noise e and draws [draws, N, T, n]. The plain form is `chains/gaussian_paths/plain.py`.
#pragma once
#include "matrices.h"

namespace {

constexpr double LOG_2PI = 1.8378770664093454836;

struct Sizes {
    int64_t sequences, steps, states, draws;
    int64_t lacking;  // memory: set to 1 if the system had none
};

template <class T> struct Tables {
    const T *linear, *square, *cross;
    const int64_t* lengths;
};

// What is kept of a step
struct Kept {
    double *mean, *inverse, *gain_transposed;  // for draws, R in place of the inverse of L_t
};

// One sequence at a time. Steps are kept without gaps, and worked on in matrices with room for whole vectors. N is the
// number of states if it is known to the compiler, which unrolls loops of a few numbers then; otherwise 0.
template <class T, int N> class Paths {
    enum Square { PRECISION, LOWER, BELOW, BETWEEN, AHEAD, GAIN, INVERSE, LATER, SQUARES };  // GAIN: transposed
    enum Row { SHIFT = SQUARES, MEAN, MEAN_LATER, ALL };

    const Sizes& s;
    const Tables<T>& tables;
    double *all_kept, *numbers[ALL];

    int64_t size() const { return N ? N : s.states; }
    int64_t stride() const { return stride_of<double>(size()); }
    Matrix<double> square(Square which) const { return {numbers[which], size(), size(), stride()}; }

    Kept at(int64_t t) const {
        const int64_t n = size();
        double* first = all_kept + t * (2 * n + 1) * n;
        return {first, first + n, first + n + n * n};
    }
    int64_t length_of(int64_t b) const { return std::max<int64_t>(0, std::min(tables.lengths[b], s.steps)); }

    // A row, with 0 beyond it: there may be NaN of an input before
    void fill(const double* from, double* row) const {
        std::copy_n(from, size(), row);
        std::fill(row + size(), row + stride(), 0.0);
    }

    // L_t and v_t, given the step before
    void gather(int64_t b, int64_t t) {
        const int64_t n = size(), row = b * s.steps + t;
        const Matrix<double> precision = square(PRECISION), below = square(BELOW), gain = square(GAIN);
        double *shift = numbers[SHIFT], *mean = numbers[MEAN];
        const T *linear = tables.linear + row * n, *both = tables.square + row * n * n;
        std::fill(shift, shift + stride(), 0.0);
        for (int64_t i = 0; i < n; i++) {
            shift[i] = linear[i];
            for (int64_t j = 0; j <= i; j++) precision[i][j] = -(double(both[i * n + j]) + both[j * n + i]);
        }
        if (t == 0) return;
        for (int64_t i = 0; i < n; i++) {
            shift[i] += dot(below[i], mean, n);
            for (int64_t j = 0; j <= i; j++) precision[i][j] -= dot(below[i], gain[j], n);
        }
    }

    // From t + 1 to t: mean, inverse become E s_t and V_t. `crossed` is E s_{t+1} s_t'.
    void step_back(T* crossed) {
        const int64_t n = size();
        const Matrix<double> gain = square(GAIN), later = square(LATER), inverse = square(INVERSE);
        const Matrix<double> between = square(BETWEEN), ahead = square(AHEAD);
        double *mean = numbers[MEAN], *mean_later = numbers[MEAN_LATER];
        for (int64_t k = 0; k < n; k++) add_row(mean_later[k], gain[k], mean, n);
        product(later, gain, between);
        for (int64_t i = 0; i < n; i++)
            for (int64_t j = 0; j < n; j++) crossed[i * n + j] = T(between[i][j] + mean_later[i] * mean[j]);
        product_transposed(gain, between, ahead);
        add(ahead, inverse);
        for (int64_t i = 0; i < n; i++)
            for (int64_t j = 0; j < i; j++) inverse[j][i] = inverse[i][j];
    }

public:
    Paths(Memory& memory, const Sizes& s, const Tables<T>& tables)
        : s(s), tables(tables), all_kept(memory.take(s.steps * (2 * size() + 1) * size())) {
        for (int i = 0; i < ALL; i++) numbers[i] = matrix(memory, i < SQUARES ? size() : 1, size()).at;
    }

    // Forward over a sequence; returns the step that failed, or -1.
    int64_t eliminate(int64_t b, bool for_draws, double& log_normalizer) {
        const int64_t n = size(), length = length_of(b);
        const Matrix<double> precision = square(PRECISION), lower = square(LOWER), inverse = square(INVERSE);
        const Matrix<double> below = square(BELOW), gain = square(GAIN);
        double *shift = numbers[SHIFT], *mean = numbers[MEAN];
        log_normalizer = 0.5 * length * n * LOG_2PI;
        for (int64_t t = 0; t < length; t++) {
            gather(b, t);
            const double log_det = factor(precision);
            if (std::isnan(log_det)) return t;
            invert(precision, lower, inverse);
            std::fill(mean, mean + stride(), 0.0);
            for (int64_t i = 0; i < n; i++) mean[i] = dot(inverse[i], shift, n);
            log_normalizer += 0.5 * (dot(shift, mean, n) - log_det);
            const Kept now = at(t);
            std::copy_n(mean, n, now.mean);
            write(for_draws ? lower : inverse, now.inverse, n, 1);
            if (t + 1 == length) break;
            read(tables.cross + (b * (s.steps - 1) + t) * n * n, n, 1, below);
            product(below, inverse, gain);
            write(gain, now.gain_transposed, n, 1);
        }
        return -1;
    }

    void moments(int64_t b, T* first, T* second, T* crossed) {
        const int64_t n = size();
        for (int64_t t = length_of(b) - 1; t >= 0; t--) {
            const int64_t row = b * s.steps + t;
            const Kept now = at(t);
            std::swap(numbers[MEAN], numbers[MEAN_LATER]);
            std::swap(numbers[INVERSE], numbers[LATER]);
            const Matrix<double> inverse = square(INVERSE);
            double* mean = numbers[MEAN];
            fill(now.mean, mean);
            read(now.inverse, n, 1, inverse);
            if (t + 1 < length_of(b)) {
                read(now.gain_transposed, n, 1, square(GAIN));
                step_back(crossed + (row - b) * n * n);
            }
            for (int64_t i = 0; i < n; i++) {
                first[row * n + i] = T(mean[i]);
                for (int64_t j = 0; j < n; j++) second[(row * n + i) * n + j] = T(inverse[i][j] + mean[i] * mean[j]);
            }
        }
    }

    void sample(int64_t b, const T* noise, T* path) {
        const int64_t n = size();
        double *now = numbers[MEAN], *after = numbers[MEAN_LATER];
        for (int64_t draw = 0; draw < s.draws; draw++)
            for (int64_t t = length_of(b) - 1; t >= 0; t--) {
                const Kept step = at(t);
                const int64_t row = ((draw * s.sequences + b) * s.steps + t) * n;
                std::swap(now, after);
                for (int64_t i = 0; i < n; i++) {
                    double value = step.mean[i];
                    for (int64_t j = i; j < n; j++) value += step.inverse[j * n + i] * double(noise[row + j]);
                    if (t + 1 < length_of(b))
                        for (int64_t j = 0; j < n; j++) value += step.gain_transposed[j * n + i] * after[j];
                    now[i] = value;
                }
                std::copy_n(now, n, path + row);
            }
    }

    // Zeros beyond the end of a sequence; everywhere, if it has no density
    void clear(int64_t b, bool proper, T* first, T* second, T* crossed) const {
        const int64_t n = size(), end = proper ? length_of(b) : 0, rest = s.steps - end, between = std::max<int64_t>(0, end - 1);
        std::fill_n(first + (b * s.steps + end) * n, rest * n, T(0));
        std::fill_n(second + (b * s.steps + end) * n * n, rest * n * n, T(0));
        const int64_t moves = std::max<int64_t>(0, s.steps - 1);
        std::fill_n(crossed + (b * moves + between) * n * n, (moves - between) * n * n, T(0));
    }
    void clear(int64_t b, bool proper, T* path) const {
        const int64_t n = size(), end = proper ? length_of(b) : 0;
        for (int64_t draw = 0; draw < s.draws; draw++)
            std::fill_n(path + ((draw * s.sequences + b) * s.steps + end) * n, (s.steps - end) * n, T(0));
    }
};

}  // namespace
