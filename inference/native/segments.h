// Segments: a parameter that is drawn afresh from its prior at every change, and held between changes.
//
// With a_j the probability of a change before j given x_1..j-1, and w_t(j) that of a segment since j given x_1..t:
//
//   w_t(j) = a_j prod_{s=j..t} p(x_s | x_j..s-1) (1 - h_s) / c_s,   a_{t+1} = sum_j w_t(j) h_{t+1}(j),
//
// where c_t makes the weights sum to one (`segments_forward.h`). The best path takes the largest in place of sums. Backward
// (`segments_backward.h`), with P_j the probability of a change before j given x,
//
//   P_j = sum_{t >= j} P_{t+1} w_t(j) h_{t+1}(j) / a_{t+1},
//
// whose terms are the probabilities of the segments j..t. Beginnings lie side by side in vectors. The plain forms are
// `plain.py` and `paths.py` of `chains/segment/`. This file has what the passes read and write.
//
// A call works on some sequences until its work is spent, and tells where it stands, so that it can be interrupted.
#pragma once
#include <algorithm>

#include "plates.h"

namespace {

constexpr int64_t WORK = 1 << 23;     // numbers of a call
constexpr double UNSEEN = -708;       // logarithms of probabilities below it count as 0
constexpr double NEGLIGIBLE[] = {1e-60, 1e-100};  // probabilities that do not count in expected statistics, and in moments

enum Answer : int64_t { DONE, MORE, FULL, NO_MEMORY };

// As Python gives it: sequences first..end of N with T steps; tables of hazards by step or by run, with their strides
struct Chain {
    int64_t N, T, first, end, hazards, by_run, change_n, change_h, hold_n, hold_h;
    double tol;
    const double *base, *change, *hold, *by_hazards;  // by_hazards [N, hazards]: see `plain.of_hazards`
    const int64_t* lengths;
    int64_t moments, outs, n_blocks;  // outs: all expectations of a step, 0: none are wanted
    const Block* blocks() const { return reinterpret_cast<const Block*>(this + 1); }

    int64_t plates() const {
        int64_t sum = 0;
        for (int64_t i = 0; i < n_blocks; i++) sum += blocks()[i].plates;
        return sum;
    }
    int64_t rows() const {
        int64_t sum = 0;
        for (int64_t i = 0; i < n_blocks; i++) sum += blocks()[i].plates * blocks()[i].rows();
        return sum;
    }
    int64_t counted() const { return round_up(T + 2, W<double>); }  // entries of a table by count
};

// One sequence of a chain
struct Sequence {
    const double *base, *log_change, *log_hold, *by_hazards;
    int64_t change_h, hold_h, hazards, length;
    bool by_run;

    Sequence(const Chain& c, int64_t n)
        : base(c.base + n * c.T), log_change(c.change + n * c.change_n), log_hold(c.hold + n * c.hold_n),
          by_hazards(c.by_hazards ? c.by_hazards + n * c.hazards : nullptr), change_h(c.change_h), hold_h(c.hold_h),
          hazards(c.hazards), length(std::max<int64_t>(0, std::min(c.lengths[n], c.T))), by_run(c.by_run) {}

    INLINE int64_t of_run(int64_t run) const { return std::min(run, hazards) - 1; }
    INLINE int64_t of(int64_t t, int64_t run) const { return by_run ? of_run(run) : t; }
    // log P(a change before t) and log P(none), after a run
    INLINE double change(int64_t t, int64_t run) const { return t < length ? log_change[of(t, run) * change_h] : -INFINITE; }
    INLINE double hold(int64_t t, int64_t run) const { return t < length ? log_hold[of(t, run) * hold_h] : 0.0; }
};

// The plates of a sequence in the memory of a call; `tables`: room for the tables by count
inline Plates plates_of(const Chain& c, int64_t n, double* tables, Plate* plate, double* prior) {
    Plates found = {plate, 0, 0, c.outs, c.moments != 0, prior};
    int64_t out = 0;
    for (int64_t i = 0; i < c.n_blocks; i++) {
        const Block& b = c.blocks()[i];
        for (int64_t f = 0; f < b.plates; f++) {
            Plate p{};
            p.kind = b.kind, p.size = b.size, p.stride = b.plates * b.size, p.n_means = b.n_means;
            p.out = out, p.row = found.rows;
            p.x = b.x + (n * c.T * b.plates + f) * b.size;
            p.prior = prior + found.rows;
            if (b.kind == NORMAL) {
                double** of[] = {&p.constant, &p.rise, &p.first, &p.second};
                for (int64_t k = 0; k < (c.outs ? 4 : 2); k++, tables += c.counted()) *of[k] = tables;
            }
            read_prior(p, b.prior + (n * b.plates + f) * b.size);
            found.at[found.n++] = p;
            found.rows += b.rows();
            out += b.width;
        }
    }
    return found;
}

template <class T> T* of_row(T* table, int64_t place) { return table ? table + place : nullptr; }

// Where a pass stands, between calls
struct Progress {
    int64_t sequence, step, live, counted;
    double spent, pending;
};

// What the forward pass fills in, [N, T] or [N]; see `plain.Forward` and `tables.Filtered`. Those of 0 are not wanted.
struct Passed {
    double *increment, *change, *entropy, *weight, *left_out;  // weight: log, of the beginnings at the end
    int64_t *death, *failed, *source;                          // source: of the best path, the beginning before a change
    double *run, *begun, *expected;
    bool* path;  // whether a segment begins, on the best path
};

inline Passed of_sequence(const Passed& all, const Chain& c, int64_t n) {
    const int64_t at = n * c.T;
    return {of_row(all.increment, at), of_row(all.change, at), of_row(all.entropy, at), of_row(all.weight, at),
            all.left_out + n, of_row(all.death, at), all.failed + n, of_row(all.source, at), of_row(all.run, at),
            of_row(all.begun, at), of_row(all.expected, at * c.outs), of_row(all.path, at)};
}

}  // namespace
