// The weighted pushdown recursion, and its adjoint. The plain form is `stacks/automaton/plain.py`; `stacks/automaton/op.py`
// has the equations and the names. A configuration r G + y is a state r with a symbol y; K configurations, Q states.
//
// Tables hold logarithms. Rows (element c, configuration a it was pushed in) are contiguous, and of an earlier time a prefix
// of them is in use, beyond which they are -inf. So each sum over split points k is a sweep of long vectors:
//
//   segment[t, j, c, a]   from element c newly on top in configuration a to c on top again in j at time t
//   matched[t, i, r, k]   an element pushed at step k on configuration i and popped at step t into state r
//   below[c, a]           everything that ends with pushing c in configuration a (c = 0: the initial weight)
//   top[t, c, j]          all runs with element c on top at time t in configuration j
//
// A sum takes two sweeps: the largest term of each number, then all terms relative to it. A derivative of a logarithm is a
// share of a posterior, exp(term - sum), which stays in [0, 1] however far the weights range.
#pragma once
#include <algorithm>
#include <vector>

#include "sums.h"

namespace {

constexpr double NONE = -std::numeric_limits<double>::infinity();
using Numbers = std::vector<double>;

// Sweeps go over whole vectors, past the n numbers that count: x is -inf there, or belongs to a later row, and the rows of
// scratch memory are long enough. In a sweep of the `first` numbers of a row, others follow that count.
template <bool first = false, class Each> INLINE void sweep(int64_t n, Each each) {
    for (int64_t i = 0; i < n; i += W<double>) each(i, first ? n - i : W<double>);
}

template <bool first = false> INLINE void raise(int64_t n, double* most, const double* x, double weight) {
    sweep<first>(n, [&](int64_t i, int64_t left) {
        store_some<double>(most + i, larger<double>(load_some(x + i, left) + weight, load_some(most + i, left)), left);
    });
}

template <bool first = false> INLINE void gather(int64_t n, double* sum, const double* x, double weight, const double* most) {
    sweep<first>(n, [&](int64_t i, int64_t left) {
        const V<double> term = load_some(x + i, left) + weight - load_some(most + i, left);
        store_some<double>(sum + i, load_some(sum + i, left) + exp_not_positive<double>(term), left);
    });
}

// Adds the share amount exp(x + weight - sum) of each number to its gradient; returns the sum of the shares.
template <bool first = false>
INLINE double spread(int64_t n, const double* amount, const double* x, double weight, const double* sum, double* gradient) {
    V<double> all{};
    sweep<first>(n, [&](int64_t i, int64_t left) {
        const V<double> term = load_some(x + i, left) + weight - load_some(sum + i, left);
        const V<double> share = load_some(amount + i, left) * exp_not_positive<double>(term);
        store_some<double>(gradient + i, load_some(gradient + i, left) + share, left);
        all += share;
    });
    return total<double>(all);
}

// What -inf is replaced by is a number that can be subtracted: +inf where a share is to be 0.
INLINE void without_none(int64_t n, double* x, double number) {
    for (int64_t i = 0; i < n; i++) x[i] = x[i] == NONE ? number : x[i];
}

struct Sizes {
    int64_t K, Q, times, pushes, steps, elements, best;  // `elements`: of the evidence, 0 if there is none
    int64_t row() const { return times * K; }
};

// Weights of a sequence: push [pushes, K, K], of all steps so far, since what was pushed long ago is popped now; of some
// steps replace and bottom [steps, K, K], pop [steps, K, Q], evidence [steps, elements, K]
template <class Real> struct PushdownWeights {
    Real *push, *replace, *bottom, *pop, *evidence;
    PushdownWeights of(const Sizes& s, int64_t b, int64_t n) const {
        const int64_t at = b * s.steps + n, K = s.K;
        return {push + b * s.pushes * K * K, replace + at * K * K, bottom + at * K * K, pop + at * K * s.Q,
                evidence ? evidence + at * s.elements * K : nullptr};
    }
};

template <class Real> struct PushdownTables {
    Real *segment, *matched, *below, *top;  // no adjoint of `matched` if nothing reads it
    PushdownTables of(const Sizes& s, int64_t b) const {
        const int64_t n = s.times;
        return {segment + b * n * s.K * s.row(), matched ? matched + b * n * s.K * s.Q * n : nullptr, below + b * s.row(),
                top + b * n * s.row()};
    }
};

// Memory for the steps of a sequence
struct Pushdown {
    const Sizes s;
    const int64_t row;  // with room for whole vectors
    Numbers most, sum, back, terms, amount, d_back, d_matched, by_number;

    explicit Pushdown(const Sizes& s)
        : s(s), row(round_up(s.row(), W<double>) + 2 * W<double>), most(row), sum(row), back(s.Q * row), terms(s.K * row),
          amount(row), d_back(row), d_matched(s.K * s.Q * row), by_number(row) {}

    // log sum exp(x + weight), number by number, into `to`: `each` calls its argument with n numbers of every x, their place
    // in the row, x and its weight. Of the first numbers of a row alone, others follow.
    template <class Each> void add_up(int64_t n, double* to, Each each) {
        std::fill(to, to + row, NONE);
        each([&](int64_t size, int64_t at, const double* x, double weight) { raise(size, to + at, x, weight); },
             [&](const double* x, double weight) { raise<true>(s.K, to, x, weight); });
        if (s.best) return;
        without_none(row, to, 0);
        std::fill(sum.begin(), sum.end(), 0);
        each([&](int64_t size, int64_t at, const double* x, double weight) { gather(size, &sum[at], x, weight, to + at); },
             [&](const double* x, double weight) { gather<true>(s.K, sum.data(), x, weight, to); });
        sweep(n, [&](int64_t i, int64_t) { store<double>(to + i, load(to + i) + log<double>(load(&sum[i]))); });
    }

    // log sum_a exp(terms[a, i]), into `most`
    void add_terms(int64_t n) {
        add_up(n, most.data(), [&](auto term, auto) {
            for (int64_t a = 0; a < s.K; a++) term(n, 0, &terms[a * row], 0.0);
        });
    }

    // back[r, k K + a]: from element k newly on top in configuration a to its pop at step t into state r
    void returns(int64_t t, const double* pop, const double* last) {
        const int64_t n = t * s.K;
        for (int64_t r = 0; r < s.Q; r++)
            add_up(n, &back[r * row], [&](auto term, auto) {
                for (int64_t j = 0; j < s.K; j++) term(n, 0, last + j * s.row(), pop[j * s.Q + r]);
            });
    }

    void match(int64_t t, const double* push, double* matched) {
        const int64_t K = s.K;
        for (int64_t i = 0; i < K; i++)
            for (int64_t r = 0; r < s.Q; r++) {
                for (int64_t a = 0; a < K; a++)
                    for (int64_t k = 1; k < t; k++)
                        terms[a * row + k] = push[((k - 1) * K + i) * K + a] + back[r * row + k * K + a];
                add_terms(t);
                std::copy(&most[1], &most[t], matched + (i * s.Q + r) * s.times + 1);
            }
    }

    // The rows of segment[t, j]. An element is held, by one table of weights at the bottom and by another above it, or was
    // covered by an element that was pushed at k and popped at t.
    void close(int64_t t, int64_t j, const PushdownWeights<const double>& w, const double* segment, const double* matched) {
        const int64_t K = s.K, G = K / s.Q, n = t * K;
        add_up(n, most.data(), [&](auto term, auto first_term) {
            for (int64_t i = 0; i < K; i++) {
                const double* last = segment + ((t - 1) * K + i) * s.row();
                first_term(last, w.bottom[i * K + j]);
                term(n - K, K, last + K, w.replace[i * K + j]);
            }
            for (int64_t i = j % G; i < K; i += G)
                for (int64_t k = 1; k < t; k++)
                    term(k * K, 0, segment + ((k - 1) * K + i) * s.row(), matched[(i * s.Q + j / G) * s.times + k]);
        });
    }

    // Fills step t >= 1 of the tables of a sequence.
    void advance(int64_t t, const PushdownWeights<const double>& w, const PushdownTables<double>& at) {
        const int64_t K = s.K;
        double* matched = at.matched + t * K * s.Q * s.times;
        returns(t, w.pop, at.segment + (t - 1) * K * s.row());
        match(t, w.push, matched);
        for (int64_t j = 0; j < K; j++) {
            double* out = at.segment + (t * K + j) * s.row();
            close(t, j, w, at.segment, matched);
            std::copy(&most[0], &most[t * K], out);
            out[t * K + j] = 0;
            for (int64_t c = 0; w.evidence && c <= t; c++)
                for (int64_t a = 0; a < K; a++) out[c * K + a] += w.evidence[c * K + j];
        }
        put_on_top(t, w.push + (t - 1) * K * K, at);
    }

    void put_on_top(int64_t t, const double* push, const PushdownTables<double>& at) {
        const int64_t K = s.K;
        const double* before = at.top + (t - 1) * s.row();
        for (int64_t i = 0; i < K; i++) by_number[i] = add(t, before + i, K);
        for (int64_t a = 0; a < K; a++) {
            for (int64_t i = 0; i < K; i++) terms[i] = by_number[i] + push[i * K + a];
            at.below[t * K + a] = add(K, terms.data(), 1);
        }
        for (int64_t j = 0; j < K; j++) {
            const double* segment = at.segment + (t * K + j) * s.row();
            for (int64_t a = 0; a < K; a++)
                for (int64_t c = 0; c <= t; c++) terms[a * row + c] = at.below[c * K + a] + segment[c * K + a];
            add_terms(t + 1);
            for (int64_t c = 0; c <= t; c++) at.top[(t * s.times + c) * K + j] = most[c];
        }
    }

    // log sum_i exp(x[i]) of n numbers that lie `stride` apart
    double add(int64_t n, const double* x, int64_t stride) {
        double highest = NONE;
        for (int64_t i = 0; i < n; i++) highest = std::max(highest, amount[i] = x[i * stride]);
        if (s.best || highest == NONE) return highest;
        std::fill(&amount[n], &amount[n] + W<double>, NONE);
        V<double> all{};
        sweep(n, [&](int64_t i, int64_t) { all += exp_not_positive<double>(load(&amount[i]) - highest); });
        return highest + std::log(total<double>(all));
    }

    // A row of the adjoint, with zeros behind it, and one of sums, that no share is of beyond it
    void take(int64_t n, const double* gradient, const double* sums) {
        std::copy(gradient, gradient + n, amount.begin());
        std::fill(amount.begin() + n, amount.end(), 0);
        std::copy(sums, sums + n, most.begin());
        std::fill(most.begin() + n, most.end(), NONE);
        without_none(row, most.data(), -NONE);
    }

    void retreat_top(int64_t t, const PushdownTables<const double>& at, const PushdownTables<double>& d) {
        const int64_t K = s.K, n = (t + 1) * K;
        for (int64_t j = 0; j < K; j++) {
            for (int64_t i = 0; i < n; i++) {
                const int64_t from = (t * s.times + i / K) * K + j;
                back[i] = d.top[from], sum[i] = at.top[from], terms[i] = at.segment[(t * K + j) * s.row() + i] + at.below[i];
            }
            take(n, back.data(), sum.data());
            std::fill(&terms[n], &terms[n] + W<double>, NONE);
            std::fill(by_number.begin(), by_number.end(), 0);
            spread(n, amount.data(), terms.data(), 0, most.data(), by_number.data());
            double* segment = d.segment + (t * K + j) * s.row();
            for (int64_t i = 0; i < n; i++) segment[i] += by_number[i], d.below[i] += by_number[i];
        }
    }

    void retreat_segment(int64_t t, const PushdownWeights<const double>& w, const PushdownTables<const double>& at,
                         const PushdownWeights<double>& d_w, const PushdownTables<double>& d) {
        const int64_t K = s.K, G = K / s.Q, n = t * K;
        const double* matched = at.matched + t * K * s.Q * s.times;
        for (int64_t j = 0; j < K; j++) {
            const double *sums = at.segment + (t * K + j) * s.row(), *gradient = d.segment + (t * K + j) * s.row();
            take(n, gradient, sums);
            for (int64_t i = 0; w.evidence && i < n + K; i++) {
                const double e = w.evidence[i / K * K + j];
                d_w.evidence[i / K * K + j] += gradient[i];
                if (i < n && e > NONE) most[i] -= e;
            }
            for (int64_t i = 0; i < K; i++) {
                const int64_t row = ((t - 1) * K + i) * s.row(), pair = i * K + j;
                const double* last = at.segment + row;
                double* d_last = d.segment + row;
                d_w.bottom[pair] += spread<true>(K, amount.data(), last, w.bottom[pair], most.data(), d_last);
                d_w.replace[pair] += spread(n - K, &amount[K], last + K, w.replace[pair], &most[K], d_last + K);
            }
            for (int64_t i = j % G; i < K; i += G)
                for (int64_t k = 1; k < t; k++) {
                    const int64_t before = ((k - 1) * K + i) * s.row(), pair = i * s.Q + j / G;
                    d_matched[pair * row + k] += spread(k * K, amount.data(), at.segment + before, matched[pair * s.times + k],
                                                        most.data(), d.segment + before);
                }
        }
    }

    void retreat_matched(int64_t t, const PushdownWeights<const double>& w, const PushdownTables<const double>& at,
                         const PushdownWeights<double>& d_w, const PushdownTables<double>& d) {
        const int64_t K = s.K, n = t * K, last = (t - 1) * K * s.row();
        returns(t, w.pop, at.segment + last);
        for (int64_t r = 0; r < s.Q; r++) {
            double* out = &back[r * row];
            std::fill(d_back.begin(), d_back.end(), 0);
            for (int64_t i = 0; i < K; i++) {
                take(t, &d_matched[(i * s.Q + r) * row], at.matched + ((t * K + i) * s.Q + r) * s.times);
                for (int64_t a = 0; a < K; a++) {
                    terms[0] = NONE;
                    for (int64_t k = 1; k < t; k++) terms[k] = w.push[((k - 1) * K + i) * K + a] + out[k * K + a];
                    std::fill(&terms[t], &terms[t] + W<double>, NONE);
                    std::fill(by_number.begin(), by_number.end(), 0);
                    spread(t, amount.data(), terms.data(), 0, most.data(), by_number.data());
                    for (int64_t k = 1; k < t; k++) {
                        d_w.push[((k - 1) * K + i) * K + a] += by_number[k];
                        d_back[k * K + a] += by_number[k];
                    }
                }
            }
            without_none(row, out, -NONE);
            for (int64_t j = 0; j < K; j++)
                d_w.pop[j * s.Q + r] += spread(n, d_back.data(), at.segment + last + j * s.row(), w.pop[j * s.Q + r], out,
                                               d.segment + last + j * s.row());
        }
    }

    void retreat_below(int64_t t, const double* push, const PushdownTables<const double>& at, double* d_push,
                       const PushdownTables<double>& d) {
        const int64_t K = s.K, n = t * K;
        const double* before = at.top + (t - 1) * s.row();
        double* d_before = d.top + (t - 1) * s.row();
        for (int64_t a = 0; a < K; a++) {
            const double of = d.below[t * K + a], whole = at.below[t * K + a];
            if (of == 0 || whole == NONE) continue;
            std::fill(by_number.begin(), by_number.end(), 0);
            std::fill(amount.begin(), amount.end(), of);
            std::fill(most.begin(), most.end(), whole);
            for (int64_t i = 0; i < n; i++) terms[i] = before[i] + push[i % K * K + a];
            std::fill(&terms[n], &terms[n] + W<double>, NONE);
            spread(n, amount.data(), terms.data(), 0, most.data(), by_number.data());
            for (int64_t i = 0; i < n; i++) d_before[i] += by_number[i], d_push[i % K * K + a] += by_number[i];
        }
    }

    // The adjoint of `advance`: moves gradients from time t to what it was computed from, in place.
    void retreat(int64_t t, const PushdownWeights<const double>& w, const PushdownTables<const double>& at,
                 const PushdownWeights<double>& d_w, const PushdownTables<double>& d) {
        retreat_top(t, at, d);
        std::fill(d_matched.begin(), d_matched.end(), 0);
        for (int64_t pair = 0; d.matched && pair < s.K * s.Q; pair++)
            std::copy_n(d.matched + (t * s.K * s.Q + pair) * s.times, t, &d_matched[pair * row]);
        retreat_segment(t, w, at, d_w, d);
        retreat_matched(t, w, at, d_w, d);
        retreat_below(t, w.push + (t - 1) * s.K * s.K, at, d_w.push + (t - 1) * s.K * s.K, d);
    }
};

}  // namespace
