// Semi-Markov chains: filter, smoothed states and expected counts, the best path, and drawn paths, exact in logarithms. The
// plain form is `chains/semi_markov/plain.py`; `chains/semi_markov/op.py` has the tables.
//
// With l_t the likelihoods of step t over its evidence, p the durations, and A the moves, the weights of segments that enter
// state j at step u, that have run to step t, and that end at t are
//
//   enter_u(j) = log sum_i exp(ends_{u-1}(i) + A(i, j)),    run_t(j, u) = enter_u(j) + sum_{v=u..t} l_v(j),
//   ends_t(j) = log sum_u exp(run_t(j, u) + p_j(t - u + 1)).
//
// Backward, all that follows an end of i before step t, and a beginning of j at step t:
//
//   after_t(i) = log sum_j exp(A(i, j) + follows_t(j)),
//   follows_t(j) = log sum_d exp(sum_{v=t..t+d-1} l_v(j) + after_{t+d}(j) + p_j(d)).
//
// Runs lie in a row by state, the latest first, and each step adds its likelihood to those of the last D steps: so memory
// holds K numbers a step. Numbers that are not there are -inf: rows are read in whole vectors.
#pragma once
#include <algorithm>

#include "sums.h"

namespace {

constexpr double NONE = -std::numeric_limits<double>::infinity(), LOWEST = -1e300;  // which can be subtracted from itself
enum Place { MIDDLE, LAST, FIRST, ONLY, LASTS, FIRST_LASTS, PLACES };                 // of durations, and of their survivors

INLINE double log_of_sum(double most, double sum) { return most + std::log(sum); }
INLINE bool is_evidence(double x) { return x > NONE && x < -NONE; }

// log sum exp(x[i] + y[i]) of n numbers, rounded up to whole vectors
INLINE double log_sum(int64_t n, const double* x, const double* y) {
    V<double> most = splat(LOWEST), sum{};
    for (int64_t i = 0; i < n; i += W<double>) most = larger<double>(load(x + i) + load(y + i), most);
    const double top = largest<double>(most);
    for (int64_t i = 0; i < n; i += W<double>) sum += exp_not_positive<double>(load(x + i) + load(y + i) - top);
    return log_of_sum(top, total<double>(sum));
}

INLINE double one_more(double a, double b) {
    if (b == NONE) return a;
    if (a == NONE) return b;
    const double top = std::max(a, b);
    return top + std::log(std::exp(a - top) + std::exp(b - top));
}

// The place of the first of the largest numbers
INLINE int64_t best(int64_t n, const double* x) {
    int64_t place = 0;
    for (int64_t i = 1; i < n; i++) place = x[i] > x[place] ? i : place;
    return place;
}

// The first place at which the running sum of exp(x) passes a share of the whole; never one without mass
INLINE int64_t invert(int64_t n, const double* x, double share, double* mass) {
    double top = NONE, sum = 0;
    for (int64_t i = 0; i < n; i++) top = std::max(top, x[i]);
    for (int64_t i = 0; i < n; i++) mass[i] = sum += std::exp(x[i] - top);
    for (int64_t i = 0; i < n; i++)
        if (mass[i] > share * sum || mass[i] == sum) return i;
    return n - 1;
}

// Tables of many sequences: entry b of `..._of` is the number of the table of sequence b; null: all share one. log_initial
// [n, K], log_transition [n, S, K, K], durations [n, 4, K, D] by `Place`, log_likelihood [n, T, K]
struct SemiMarkov {
    const double* initial;
    const int64_t* initial_of;
    const double* transition;
    const int64_t* transition_of;
    const double* durations;
    const int64_t* durations_of;
    const double* likelihood;
    const int64_t* likelihood_of;
    const int64_t* lengths;
    int64_t T, K, S, D, lacking;  // `lacking`: whether there was no memory
};

// One sequence after another, in the same memory
class Segments {
    const SemiMarkov& of;
    const int64_t T, K, D, wide, long_row, run_row;  // numbers of a row of states, of durations, of runs
    Room<double> memory;
    Room<int64_t> places;
    double *durations, *run, *ends, *enter, *scaled, *by_step;       // by step and state
    double *since, *state, *row, *zeros, *tail, *follows, *terms, *mass;  // of a step
    int64_t *origin, *begin;
    const double *moves, *likelihood, *initial;
    int64_t length;

    INLINE double* rows(int64_t place, int64_t j) const { return durations + (place * K + j) * long_row; }
    INLINE const double* into(int64_t t) const { return moves + (std::min(t, of.S) - 1) * K * K; }
    INLINE double* runs(int64_t j, int64_t t) const { return run + j * run_row + T - t; }  // up to step t, the latest first
    INLINE double* ahead(int64_t j, int64_t t) const { return run + j * run_row + t; }  // backward: ends before t, ...

    // log P(duration >= d)
    void survive(const double* row, double* survivors) const {
        double sum = 0;
        const double most = std::max(*std::max_element(row, row + D), LOWEST);
        for (int64_t d = D - 1; d >= 0; d--) survivors[d] = std::log(sum += std::exp(row[d] - most)) + most;
    }

    void start(int64_t b) {
        const auto entry = [b](const double* tables, const int64_t* numbers, int64_t size) {
            return tables + (numbers ? numbers[b] * size : 0);
        };
        const double* from = entry(of.durations, of.durations_of, LASTS * K * D);
        std::fill(durations, durations + PLACES * K * long_row, NONE);
        for (int64_t i = 0; i < LASTS * K; i++) std::copy_n(from + i * D, D, durations + i * long_row);
        for (int64_t j = 0; j < K; j++) survive(rows(MIDDLE, j), rows(LASTS, j)), survive(rows(FIRST, j), rows(FIRST_LASTS, j));
        std::fill(run, run + K * run_row, NONE);
        moves = entry(of.transition, of.transition_of, of.S * K * K);
        likelihood = entry(of.likelihood, of.likelihood_of, T * K);
        initial = entry(of.initial, of.initial_of, K);
        length = std::max<int64_t>(1, std::min(of.lengths[b], T));
        std::copy_n(initial, K, since);
    }

    void add(int64_t n, double* x, double number) {
        for (int64_t r = 0; r < n; r += W<double>) store<double>(x + r, load(x + r) + number);
    }

    void enter_step(int64_t t) {
        const double* table = into(t);
        for (int64_t j = 0; j < K; j++) {
            for (int64_t i = 0; i < K; i++) row[i] = ends[i * T + t - 1] + table[i * K + j];
            *runs(j, t) = enter[j * T + t] = log_sum(K, row, zeros);
        }
    }

    // Returns the first step whose evidence is not a positive finite number, or -1.
    int64_t forward(double* predicted, double* increment) {
        for (int64_t t = 0; t < length; t++) {
            const int64_t n = std::min(t, D);
            const bool last = t == length - 1, first = t < D;
            if (t) enter_step(t);
            for (int64_t j = 0; j < K; j++) {
                if (t == 0) enter[j * T] = initial[j];
                const double going = first ? since[j] + rows(FIRST_LASTS, j)[t] : NONE, l = likelihood[t * K + j];
                const double ending = first ? since[j] + rows(last ? ONLY : FIRST, j)[t] : NONE;
                predicted[t * K + j] = one_more(log_sum(n, runs(j, t), rows(LASTS, j)), going);
                ends[j * T + t] = one_more(log_sum(n, runs(j, t), rows(last ? LAST : MIDDLE, j)), ending) + l;
                state[j] = predicted[t * K + j] + l;
            }
            const double scale = increment[t] = log_sum(K, state, zeros);
            if (!is_evidence(scale)) return t;
            for (int64_t j = 0; j < K; j++) {
                const double l = scaled[j * T + t] = likelihood[t * K + j] - scale;
                add(n, runs(j, t), l);
                since[j] += l;
                ends[j * T + t] -= scale;
            }
        }
        const double end = at_end();
        if (!is_evidence(end)) return length - 1;
        increment[length - 1] += end;
        return -1;
    }

    double at_end() {
        for (int64_t j = 0; j < K; j++) row[j] = ends[j * T + length - 1];
        return log_sum(K, row, zeros);
    }

    // Adds weight times the shares of n numbers x + y in their sum to counts; returns what they add to the entropy.
    double count(int64_t n, const double* x, const double* y, double norm, double weight, double* counts) {
        V<double> entropy{};
        for (int64_t i = 0; i < n; i += W<double>) {
            const V<double> log_share = load(x + i) + load(y + i) - norm, share = exp_not_positive<double>(log_share);
            store_some<double>(counts + i, load_some(counts + i, n - i) + weight * share, n - i);
            entropy += share > 0 ? share * log_share : V<double>{};
        }
        return -weight * total<double>(entropy);
    }

    // What segments of state j that begin at step t add to the counts [4, K, D] of durations; returns their entropy.
    double begin_at(int64_t j, int64_t t, double end, double* begins, double* counts) {
        const int64_t left = length - 1 - t, n = std::min(D, left), going = t ? MIDDLE : FIRST, ending = t ? LAST : ONLY;
        double* later = ahead(j, t + 1);
        add(n, later, scaled[j * T + t]);
        tail[j] += scaled[j * T + t];
        const double rest = left < D ? tail[j] + rows(ending, j)[left] : NONE;
        follows[j] = one_more(log_sum(n, later, rows(going, j)), rest);
        const double begin = begins[t * K + j] = std::exp(enter[j * T + t] - end + follows[j]);
        if (!(begin > 0)) return 0;
        double entropy = count(n, later, rows(going, j), follows[j], begin, counts + (going * K + j) * D);
        if (const double share = std::exp(rest - follows[j]); share > 0) {
            counts[(ending * K + j) * D + left] += begin * share;
            entropy -= begin * share * (rest - follows[j]);
        }
        return t ? entropy : entropy - begin * std::log(begin);
    }

    // What moves before step t add to their counts [K, K]; returns their entropy.
    double move_before(int64_t t, double end, double* ended, double* counts) {
        double entropy = 0;
        for (int64_t i = 0; i < K; i++) {
            std::copy_n(into(t) + i * K, K, row);
            const double after = *ahead(i, t) = log_sum(K, row, follows);
            const double share = ended[i * T + t] = std::exp(ends[i * T + t - 1] - end + after);
            if (share > 0) entropy += count(K, row, follows, after, share, counts + i * K);
        }
        return entropy;
    }

    // A draw of the last segment up to step t, before one of a state: fills the path; returns the segment's first step.
    int64_t draw_segment(int64_t t, int64_t following, const double* uniform, int64_t* path) {
        const bool last = t == length - 1;
        for (int64_t i = 0; i < K; i++) row[i] = ends[i * T + t] + (last ? 0.0 : into(t + 1)[i * K + following]);
        const int64_t drawn = invert(K, row, uniform[0], mass), n = std::min(t + 1, D);
        double sum = 0;
        for (int64_t r = 0; r < n; r++) {
            const int64_t place = t == r ? (last ? ONLY : FIRST) : last ? LAST : MIDDLE;
            sum += scaled[drawn * T + t - r];
            terms[r] = enter[drawn * T + t - r] + sum + rows(place, drawn)[r];
        }
        const int64_t from = t - invert(n, terms, uniform[1], mass);
        std::fill(path + from, path + t + 1, drawn);
        return from;
    }

    // The best segments of state j that end at step t; returns the weight of the best one that may go on.
    double extend(int64_t j, int64_t t, const double* table) {
        const int64_t n = std::min(t, D);
        const bool last = t == length - 1;
        if (t) {
            for (int64_t i = 0; i < K; i++) row[i] = ends[i * T + t - 1] + table[i * K + j];
            origin[j * T + t] = best(K, row);
            *runs(j, t) = row[origin[j * T + t]];
        }
        add(n, runs(j, t), likelihood[t * K + j]);
        since[j] += likelihood[t * K + j];
        for (int64_t r = 0; r < n; r++) terms[r] = runs(j, t)[r] + rows(last ? LAST : MIDDLE, j)[r];
        const int64_t longest = n ? best(n, terms) : 0;
        const double weight = n ? terms[longest] : NONE, first = t < D ? since[j] + rows(last ? ONLY : FIRST, j)[t] : NONE;
        begin[j * T + t] = first > weight || n == 0 ? 0 : t - longest;
        ends[j * T + t] = first > weight ? first : weight;
        double top = t < D ? since[j] + rows(FIRST_LASTS, j)[t] : NONE;
        for (int64_t r = 0; r < n; r++) top = std::max(top, runs(j, t)[r] + rows(LASTS, j)[r]);
        return top;
    }

public:
    explicit Segments(const SemiMarkov& of)
        : of(of), T(of.T), K(of.K), D(of.D), wide(round_up(K, W<double>)), long_row(round_up(D, W<double>)),
          run_row(T + 2 * W<double>),
          memory(PLACES * K * long_row + K * run_row + 4 * K * T + 6 * wide + 2 * std::max(K, D), 16), places(2 * K * T, 2) {
        if (lacking()) return;
        durations = memory.take(PLACES * K * long_row), run = memory.take(K * run_row);
        for (double** x : {&ends, &enter, &scaled, &by_step}) *x = memory.take(K * T);
        for (double** x : {&since, &state, &row, &zeros, &tail, &follows}) *x = memory.take(wide);
        for (double** x : {&terms, &mass}) *x = memory.take(std::max(K, D));
        for (double* x : {state, row, follows}) std::fill(x, x + wide, NONE);
        std::fill(zeros, zeros + wide, 0);
        origin = places.take(K * T), begin = places.take(K * T);
    }
    bool lacking() const { return memory.full() || places.full(); }

    int64_t filter(int64_t b, double* state, double* predicted, double* increment) {
        start(b);
        const int64_t failed = forward(predicted, increment);
        if (failed >= 0) return failed;
        const double end = at_end();
        for (int64_t t = 0; t < length; t++)
            for (int64_t j = 0; j < K; j++) {
                double& before = predicted[t * K + j];
                state[t * K + j] = std::exp(t == length - 1 ? row[j] - end : before + scaled[j * T + t]);
                before = std::exp(before);
            }
        return failed;
    }

    // Of tables that begin with zeros; `state` is the sum of beginnings less that of ends.
    int64_t smooth(int64_t b, double* state, double* increment, double* begins, double* moved, double* counts, double* entropy) {
        start(b);
        const int64_t failed = forward(state, increment);
        if (failed >= 0) return failed;
        const double end = at_end();
        double *ended = by_step, surprise = 0;
        std::fill(run, run + K * run_row, NONE);
        std::fill(tail, tail + wide, 0);
        for (int64_t t = length - 1; t >= 0; t--) {
            for (int64_t j = 0; j < K; j++) surprise += begin_at(j, t, end, begins, counts);
            if (t) surprise += move_before(t, end, ended, moved + (std::min(t, of.S) - 1) * K * K);
        }
        *entropy = surprise;
        for (int64_t j = 0; j < K; j++) {
            double sum = 0;
            for (int64_t t = 0; t < length; t++) {
                double& now = state[t * K + j];
                sum += begins[t * K + j] - (t ? ended[j * T + t] : 0);
                now = now + scaled[j * T + t] > NONE ? std::min(std::max(sum, 0.0), 1.0) : 0;
            }
        }
        return failed;
    }

    // The most probable path; returns the first step that no path reaches, or -1.
    int64_t best_path(int64_t b, int64_t* path) {
        start(b);
        int64_t failed = -1;
        for (int64_t t = 0; t < length; t++) {
            double top = NONE;
            bool known = true;
            for (int64_t j = 0; j < K; j++) {
                known &= likelihood[t * K + j] == likelihood[t * K + j];
                top = std::max(top, extend(j, t, t ? into(t) : nullptr));
            }
            if (failed < 0 && !(known && is_evidence(top))) failed = t;
        }
        at_end();
        int64_t now = best(K, row), t = length - 1;
        if (failed < 0 && !is_evidence(row[now])) failed = t;
        std::fill(path + length, path + T, -1);
        while (t >= 0) {
            const int64_t from = begin[now * T + t];
            std::fill(path + from, path + t + 1, now);
            if (from) now = origin[now * T + from];
            t = from - 1;
        }
        return failed;
    }

    // Paths [n, ., T] at uniform numbers [n, ., T, 2], both of which lie `stride` steps apart
    int64_t draw(int64_t b, int64_t n, int64_t stride, const double* uniform, int64_t* path, double* increment) {
        start(b);
        const int64_t failed = forward(by_step, increment);
        for (int64_t k = 0; failed < 0 && k < n; k++) {
            int64_t* here = path + k * stride;
            std::fill(here + length, here + T, -1);
            for (int64_t t = length - 1, following = 0; t >= 0;) {
                const int64_t from = draw_segment(t, following, uniform + 2 * (k * stride + t), here);
                following = here[from];
                t = from - 1;
            }
        }
        return failed;
    }
};

}  // namespace
