// Markov chains in logarithms and in double: exact for every table. Best paths, and paths drawn from the posterior.
//
// With l_t the log-likelihoods of step t less the largest, and A_t the logarithms of the moves from t to t + 1,
//
//   a_t = l_t + m_t - log c_t,   m_{t+1}(j) = log sum_i exp(a_t(i) + A_t(i, j)),
//   b_t = l_t + v_t,             v_{t-1}(i) = log sum_j exp(A_{t-1}(i, j) + b_t(j)),
//   log P(s_t = i | x) = a_t(i) + v_t(i) - log n_t,
//   P(s_t = i, s_t+1 = j | x) = P(s_t = i | x) exp(A_t(i, j) + b_{t+1}(j) - v_t(i))
//
// Nothing underflows before it is a probability, so a path through an improbable state is not lost. A step takes K^2
// exponentials for each direction. The best path and draws from the posterior go backward from
//
//   d_t(j) = l_t(j) + max_i (d_{t-1}(i) + A_{t-1}(i, j)),   P(s_t = i | s_t+1 = j, x) ~ P(s_t = i | x_1..t) A_t(i, j).
//
// A backward choice needs one column of a table, so the forward pass stores one vector for each step.
#pragma once
#include "markov.h"

namespace {

constexpr double NONE = -std::numeric_limits<double>::infinity();
constexpr double LOWEST = -1e300;  // in place of -inf, which cannot be subtracted from itself

INLINE V<double> exp_of_log_probability(V<double> x) { return exp_not_positive<double>(x > 0 ? V<double>{} : x); }

// A sum of exponentials in logarithms, as the largest and the rest: two numbers keep more digits
struct LogSum {
    double top, rest;
    double both() const { return top + rest; }
};
INLINE LogSum log_sum(const double* x, int64_t wide) {
    V<double> most = load(x), mass{};
    for (int64_t j = W<double>; j < wide; j += W<double>) most = larger<double>(most, load(x + j));
    const double top = std::max(largest<double>(most), LOWEST);
    for (int64_t j = 0; j < wide; j += W<double>) mass += exp_not_positive<double>(load(x + j) - top);
    return {top, std::log(total<double>(mass))};
}

// A chain's tables in double, by rows of `wide` numbers filled up with -inf, and its recursions
template <class T> struct Logs {
    const Chains<T>& x;
    const Sizes<double> of;
    const int64_t k, wide;
    int64_t b = -1;
    double *table, *message, *row, *later, *belief;

    static constexpr int64_t TABLES = 5;
    static int64_t numbers(int64_t k) { return (Sizes<double>(k).rows + 4) * Sizes<double>(k).wide; }

    Logs(const Chains<T>& x, Room<double>& room) : x(x), of(x.n_states), k(of.k), wide(of.wide) {
        table = room.take(of.rows * wide);
        std::fill(table + k * wide, table + of.rows * wide, NONE);
        for (double** vector : {&message, &row, &later, &belief}) *vector = room.take(wide);
    }

    void copy(const T* from, double* to) const {
        for (int64_t j = 0; j < wide; j++) to[j] = j < k ? double(from[j]) : NONE;
    }
    void read_table(int64_t t) {
        const T* from = x.transition(b) + t * x.transition_step;
        for (int64_t i = 0; i < k; i++) copy(from + i * k, table + i * wide);
    }
    void start(int64_t sequence) {
        b = sequence;
        copy(x.initial(b), message);
        if (!x.by_step && x.n_steps > 1) read_table(0);
    }
    // The table of the move from step t
    void move(int64_t t) {
        if (x.by_step) read_table(t);
    }

    // out <- l_t + message, of sum 1; the largest log-likelihood, and log c_t without it
    LogSum update(int64_t t, double* out) const {
        const T* l = x.likelihood(b) + t * k;
        double shift = l[0];
        for (int64_t j = 1; j < k; j++) shift = shift > l[j] ? shift : double(l[j]);
        for (int64_t j = 0; j < wide; j++) out[j] = j < k ? (double(l[j]) - shift) + message[j] : NONE;
        return {shift, normalise(out).both()};
    }
    LogSum normalise(double* out) const {
        const LogSum sum = log_sum(out, wide);
        for (int64_t j = 0; j < wide; j += W<double>) store(out + j, (load(out + j) - sum.top) - sum.rest);
        return sum;
    }

    // message(j) <- log sum_i exp(a(i) + A(i, j))
    void push_forward(const double* a) {
        for (int64_t j = 0; j < wide; j += W<double>) {
            V<double> top = splat(LOWEST), mass{};
            for (int64_t i = 0; i < k; i++) top = larger<double>(top, a[i] + load(table + i * wide + j));
            for (int64_t i = 0; i < k; i++) mass += exp_not_positive<double>(a[i] + load(table + i * wide + j) - top);
            store(message + j, top + log<double>(mass));
        }
    }

    // message(i) <- log sum_j exp(A(i, j) + later(j))
    void push_backward() {
        for (int64_t i = 0; i < k; i++) {
            for (int64_t j = 0; j < wide; j += W<double>) store(row + j, load(table + i * wide + j) + load(later + j));
            message[i] = log_sum(row, wide).both();
        }
    }

    // moves(i, j) += exp(belief(i) + A(i, j) + later(j) - message(i)), rows of `wide`
    void add_moves(double* moves) const {
        for (int64_t i = 0; i < k; i++) {
            const double norm = std::max(message[i], LOWEST);
            for (int64_t j = 0; j < wide; j += W<double>) {
                const V<double> onward = (load(table + i * wide + j) + load(later + j)) - norm;
                store(moves + i * wide + j, load(moves + i * wide + j) + exp_of_log_probability(belief[i] + onward));
            }
        }
    }

    // For each step t: done(t, a_t, log p(x_t | x_1..t-1)); a_t goes to `states` by `stride`. The first step whose
    // increment is not a finite number, or -1.
    template <class Done> int64_t filter(double* states, int64_t stride, Evidence& evidence, Done done) {
        for (int64_t t = 0; t < x.length(b); t++) {
            double* a = states + t * stride;
            if (t) {
                move(t - 1);
                push_forward(a - stride);
            }
            const LogSum gain = update(t, a);
            if (!std::isfinite(gain.both())) return t;
            evidence.add(gain.top);
            evidence.add(gain.rest);
            done(t, a, gain.both());
        }
        return -1;
    }

    // From filtered states to P(s_t | x), [T, K], and the moves, [S, K, K]; `sums` has room for one table
    void smooth(const double* states, T* state, T* moves, double* sums) {
        std::fill(message, message + wide, 0.0);
        std::fill(sums, sums + k * wide, 0.0);
        const int64_t length = x.length(b);
        for (int64_t t = length - 1; t >= 0; t--) {
            if (t + 1 < length) {
                move(t);
                push_backward();
            }
            for (int64_t j = 0; j < wide; j += W<double>) store(belief + j, load(states + t * wide + j) + load(message + j));
            normalise(belief);
            if (t + 1 < length) {
                add_moves(sums);
                if (x.by_step) write(sums, moves + t * k * k);
            }
            update(t, later);
            for (int64_t j = 0; j < wide; j += W<double>) store(row + j, exp_of_log_probability(load(belief + j)));
            for (int64_t j = 0; j < k; j++) state[t * k + j] = T(row[j]);
        }
        if (!x.by_step) write(sums, moves);
    }
    void write(double* sums, T* moves) const {
        for (int64_t i = 0; i < k; i++)
            for (int64_t j = 0; j < k; j++) moves[i * k + j] = T(sums[i * wide + j]);
        std::fill(sums, sums + k * wide, 0.0);
    }

    // message(j) <- max_i a(i) + A(i, j), by four rows
    void push_best(const double* a) {
        std::fill(message, message + wide, NONE);
        for (int64_t i = 0; i < of.rows; i += 4)
            for (int64_t j = 0; j < wide; j += W<double>) {
                V<double> top = load(message + j);
                for (int64_t n = i; n < i + 4; n++) top = larger<double>(a[n] + load(table + n * wide + j), top);
                store(message + j, top);
            }
    }
    // best <- log-likelihoods + message, less the largest; false if that is not a finite number
    bool update_best(int64_t t, double* best) const {
        const T* l = x.likelihood(b) + t * k;
        double shift = l[0], top = NONE;
        bool known = true;
        for (int64_t j = 1; j < k; j++) shift = shift > l[j] ? shift : double(l[j]);
        for (int64_t j = 0; j < wide; j++) {
            best[j] = j < k ? (double(l[j]) - shift) + message[j] : NONE;
            top = best[j] > top ? best[j] : top;
            known &= best[j] == best[j];
        }
        for (int64_t j = 0; j < wide; j++) best[j] -= top;
        return known && std::isfinite(top);
    }

    // The first of the best paths, with room for [T, wide]; the first step that no path reaches, or -1
    int64_t best_path(double* best, int64_t* path) {
        const int64_t length = x.length(b);
        for (int64_t t = 0; t < length; t++) {
            if (t) {
                move(t - 1);
                push_best(best + (t - 1) * wide);
            }
            if (!update_best(t, best + t * wide)) return t;
        }
        const T* tables = x.transition(b);
        for (int64_t t = length - 1; t >= 0; t--) {
            const T* into = t + 1 < length ? tables + t * x.transition_step + path[t + 1] : nullptr;
            double top = NONE;
            path[t] = 0;
            for (int64_t i = 0; i < k; i++) {
                const double score = best[t * wide + i] + (into ? double(into[i * k]) : 0.0);
                if (score > top) {
                    path[t] = i;
                    top = score;
                }
            }
        }
        return -1;
    }

    // n paths, `apart` numbers from one to the next, at uniform numbers that lie like them, from filtered states. Running sums
    // of a column [K, wide] are made when a draw first needs them.
    void draw(const double* states, const double* uniform, int64_t n, int64_t apart, double* columns, int64_t* made,
              int64_t* path) {
        const int64_t length = x.length(b);
        const T* tables = x.transition(b);
        std::fill(made, made + k, length);
        for (int64_t t = length - 1; t >= 0; t--)
            for (int64_t d = 0; d < n; d++) {
                const int64_t at = d * apart + t, next = t + 1 < length ? path[at + 1] : 0;
                double* column = columns + next * wide;
                const T* into = t + 1 < length ? tables + t * x.transition_step + next : nullptr;
                if (made[next] != t) cumulate(states + t * wide, into, column);
                made[next] = t;
                path[at] = invert(column, uniform[at]);
            }
    }
    // Running sums of exp(a(i) + into(i)), up to a factor
    void cumulate(const double* a, const T* into, double* mass) const {
        for (int64_t i = 0; i < k; i++) mass[i] = a[i] + (into ? double(into[i * k]) : 0.0);
        for (int64_t i = k; i < wide; i++) mass[i] = NONE;
        const double top = *std::max_element(mass, mass + k);
        for (int64_t i = 0; i < wide; i += W<double>) store(mass + i, exp_not_positive<double>(load(mass + i) - top));
        for (int64_t i = 1; i < k; i++) mass[i] += mass[i - 1];
    }
    // The first state at which the running sum exceeds a share of all; never a state without mass
    int64_t invert(const double* mass, double share) const {
        const double all = mass[k - 1];
        for (int64_t i = 0; i < k; i++)
            if (mass[i] > share * all || mass[i] == all) return i;
        return k - 1;
    }
};

}  // namespace
