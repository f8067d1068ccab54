// Linear Gaussian chains: their tables, and factors of covariances forward in time.
//
//   s_1 ~ N(m, P),   s_{t+1} = A s_t + c + N(0, Q),   x_t = C s_t + d + N(0, R)
//
// A covariance is kept as an upper triangle U with P = U' U; R = N' N and Q = M' M are given by factors as well. A step
// makes two arrays triangular (QR), one for what is seen and one for the move:
//
//   | U C'  U  I |   | H  G  E |        | V A'  I |   | U+  J1 |
//   | N     0  0 | = | 0  V  D | ,      | M     0 | = | 0   J2 |
//
// H' H = C P C' + R is the covariance of the innovation, G' H^-T its gain, V the factor after the observation. The unit
// matrices, of the smoother alone, keep how whitened states turn into each other: with s_t = m + V' e_t,
// e_t = (D J1)' e_{t+1} + (E J1)' w_{t+1} + J2' noise, where w are whitened innovations.
//
// (`kalman_filter.h`; `kalman_means.h` has the means, `kalman_covariances.h` covariances backward in time, `kalman_score.h`
// the gradient, `kalman_diffuse.h` the diffuse coordinates.)
//
// Covariances do not depend on observations. So there is one set of them for each combination of parameters, lengths
// and missing features. A feature that is missing counts as an observation of 0 of pure unit noise.
//
// Diffuse coordinates: means are affine in them, and so are whitened innovations, whose rows are those of a regression. It
// is kept as a triangle that each step rotates into itself with its own rows. Its singular values tell which coordinates
// are determined. The plain form is `chains/linear_gaussian/plain.py`.
#pragma once
#include "matrices.h"

namespace {

using Table = Matrix<double>;

// What is the same for all steps from `at` has strides of 0
template <class T> struct View {
    const T* at;
    int64_t step, row, column;

    INLINE const T* operator()(int64_t t) const { return at + t * step; }
    INLINE T operator()(int64_t t, int64_t i) const { return at[t * step + i * row]; }
};

// A step of a filtered set: H^-1, G, U, V, (D J1), (E J1), J2, and log |H|
struct Record {
    double *inverse, *gain, *predicted, *filtered, *log_det, *back, *drift, *noise;
};

// What diffuse coordinates do to predicted and filtered means and to whitened innovations, and the rotation of the rows
// of the regression so far and of those of a step
struct Diffuse {
    double *predicted, *filtered, *white, *turn;
};

// The regression after some step: from its right side to the coordinates, a factor of their covariance, directions that
// are not determined, the projection on the part that is not explained, and log |triangle|
struct Solution {
    double *weight, *spread, *open, *rest, *log_det;
};

// Tables in the order in which they are given; PLACE has the strides of results
enum Name {
    X, SEEN, LENGTHS, TRANSITION, TRANSITION_OFFSET, STATE_FACTOR, EMISSION, EMISSION_OFFSET, OBSERVATION_FACTOR, INITIAL_MEAN,
    INITIAL_FACTOR, PLACE
};
enum Fault { OVERFLOWS, SINGULAR, OPEN };  // a fault is 4 times the step plus one of these, or -1

// What a call is given, and after it the sizes of the batch axes, those that sets have (1 if they have not), and of every
// table its address and strides along these axes, steps, rows and columns
struct Chain {
    int64_t axes, steps, features, states, open, sets, sequences, lanes, smoothing, by_step, single;
    const double* directions;
    double *records, *diffuse, *solutions;
    int64_t *steady, *fault, *lacking;  // `lacking` becomes 1 where the system has no memory

    template <class T> View<T> view(Name name, int64_t set, int64_t sequence = 0) const {
        const int64_t *sizes = reinterpret_cast<const int64_t*>(this + 1), *shared = sizes + axes;
        const int64_t* given = shared + axes + name * (axes + 4);
        int64_t offset = 0;
        for (int64_t k = axes - 1; k >= 0; k--) {
            int64_t& left = shared[k] > 1 ? set : sequence;
            const int64_t size = shared[k] > 1 ? shared[k] : std::max<int64_t>(1, sizes[k]);  // a set may have no sequences
            offset += left % size * given[1 + k];
            left /= size;
        }
        return {reinterpret_cast<const T*>(given[0]) + offset, given[axes + 1], given[axes + 2], given[axes + 3]};
    }

    int64_t record_size() const {
        const int64_t F = features, L = states;
        return F * F + F * L + 2 * L * L + 1 + (smoothing ? 2 * L * L + F * L : 0);
    }
    INLINE Record record(int64_t set, int64_t t) const {
        const int64_t F = features, L = states;
        double *inverse = records + (set * steps + t) * record_size(), *gain = inverse + F * F, *predicted = gain + F * L;
        double *filtered = predicted + L * L, *log_det = filtered + L * L, *back = log_det + 1, *drift = back + L * L;
        return {inverse, gain, predicted, filtered, log_det, back, drift, drift + F * L};
    }
    INLINE Record resting(int64_t set, int64_t t) const { return record(set, std::min(t, steady[set])); }
    INLINE Diffuse diffuse_at(int64_t set, int64_t t) const {
        const int64_t F = features, L = states, q = open;
        double* at = diffuse + (set * steps + t) * (2 * L * q + F * q + (q + F) * (q + F));
        return {at, at + L * q, at + 2 * L * q, at + 2 * L * q + F * q};
    }
    INLINE Solution solution(int64_t set, int64_t t) const {
        const int64_t square = open * open;
        double* at = solutions + (by_step ? set * steps + t : set) * (4 * square + 1);
        return {at, at + square, at + 2 * square, at + 3 * square, at + 4 * square};
    }
    int64_t length(int64_t set) const {
        const auto lengths = view<int64_t>(LENGTHS, set);
        return lengths.at ? std::max<int64_t>(1, std::min(*lengths.at, steps)) : steps;
    }
};

// Which features of a step are seen
struct Seen {
    View<uint8_t> table;
    INLINE bool operator()(int64_t t, int64_t f) const { return !table.at || table(t, f); }
    INLINE bool constant() const { return !table.at || table.step == 0; }
    INLINE Seen(const Chain& chain, int64_t set) : table(chain.view<uint8_t>(SEEN, set)) {}
};

INLINE void read_step(View<double> table, int64_t t, Table out) { read(table(t), table.row, table.column, out); }
INLINE void read_transposed(View<double> table, int64_t t, Table out) { read(table(t), table.column, table.row, out); }
INLINE void read_packed(const double* table, Table out) { read(table, out.columns, 1, out); }
template <class T> INLINE void write_packed(Table table, T* out) { write(table, out, table.columns, 1); }

}  // namespace
