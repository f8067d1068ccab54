// The filter of segments, some observations more: the step of `chains/segment/plain_stream.py`.
//
// Beginnings lie side by side. Their numbers are in rows: length, log weight, log-normalizer of the posterior, and the sums
// of the statistics. With A the log-normalizer, the weight of a beginning is multiplied with the predictive density of x,
//
//   log w += log(1 - h) + A(eta + x) - A(eta) + log h(x),   and a new one has the weight sum_j w_j h_j.
//
// A column of x has the statistics of a step, log h(x), and log P(a change before it) and log P(none), if they are given.
#pragma once
#include "segments.h"

namespace {

// As Python gives it
struct Stream {
    int64_t hazards, by_run, most, columns, outs, n_blocks;  // columns: statistics of a step
    double tol, evidence;                                    // log-normalizer of the priors
    const double *change, *hold, *by_hazards;
    const Block* blocks() const { return reinterpret_cast<const Block*>(this + 1); }
};

enum Row : int64_t { LENGTH, WEIGHT, EVIDENCE, SUMS };
enum Column : int64_t { TOTAL, LEFT_OUT, INCREMENT, CHANGE, RUN, EXPECTED };  // of what is found at a step

// The parameters of the posteriors of one prior, from the sums of statistics of beginnings r, r + 1, ...
struct Sums {
    const double *eta, *rows;
    int64_t capacity;
    Reals operator[](int64_t k) const { return eta[k] + load(rows + k * capacity); }
};

INLINE Reals log_normalizer(int64_t kind, int64_t size, Sums of) {
    if (kind == NORMAL) {
        const Reals weighted = of[0], kappa = -2.0 * of[1], shape = of[2], rate = -of[3] - weighted * weighted / kappa / 2.0;
        return log_gamma(shape) + HALF_LOG_2_PI - shape * log<double>(rate) - log<double>(kappa) / 2.0;
    }
    if (kind == GAMMA) return log_gamma(of[0]) - of[0] * log<double>(-of[1]);
    Reals sum{}, whole{};
    for (int64_t k = 0; k < size; k++) sum += log_gamma(of[k]), whole += of[k];
    return sum - log_gamma(whole);
}

// As those of `plates.h`
inline void add_moments(const Block& b, Sums of, Reals share, Reals* out) {
    if (b.kind == NORMAL) {
        const Reals kappa = -2.0 * of[1], loc = of[0] / kappa, shape = of[2], rate = -of[3] - of[0] * loc / 2.0;
        add_normal(loc, rate, kappa, inverse_root_moment(shape), inverse_moment(shape), share, out);
    } else if (b.kind == GAMMA) {
        add_gamma(of[0], -of[1], share, out);
    } else {
        Reals whole{};
        for (int64_t k = 0; k < b.size; k++) whole += of[k];
        for (int64_t k = 0; k < b.n_means; k++) add_share(of[k], whole, share, out[k], out[b.n_means + k]);
    }
}

// The greatest log-likelihood of sums of statistics, log h excepted; see `VectorFamily.supremum`
inline double supremum(int64_t kind, int64_t size, const double* sums, int64_t capacity) {
    const auto at = [&](int64_t k) { return sums[k * capacity]; };
    if (kind == SIMPLEX) {
        double whole = 0, value = 0;
        for (int64_t k = 0; k < size; k++) whole += at(k);
        for (int64_t k = 0; k < size; k++) value += at(k) > 0 ? at(k) * std::log(at(k) / whole) : 0.0;
        return value;
    }
    const double shape = kind == NORMAL ? at(2) : at(0), kappa = -2 * at(1), square = -at(3 * (kind == NORMAL));
    if (kind == NORMAL ? !(kappa > 0) : !(shape > 0)) return 0;
    const double rate = kind == NORMAL ? square - at(0) * at(0) / kappa / 2 - (1 + 2 * shape) * 4 * EPS * square : kappa / 2;
    return rate > 0 ? shape * (std::log(shape / rate) - 1) : INFINITE;
}

struct Filter {
    static constexpr int64_t L = W<double>;
    const Stream& s;
    double* const rows;
    const int64_t capacity;
    Reals* const expected;
    int64_t n;
    const double* x = nullptr;      // of this step
    const double* given = nullptr;  // its hazards, if they do not follow from the stream

    double* row(int64_t k) const { return rows + k * capacity; }
    double change(int64_t r) const { return s.by_run ? s.change[of_run(r)] : given ? given[0] : s.change[0]; }
    double hold(int64_t r) const { return s.by_run ? s.hold[of_run(r)] : given ? given[1] : s.hold[0]; }
    int64_t of_run(int64_t r) const { return std::min(std::max<int64_t>(int64_t(row(LENGTH)[r]), 1), s.hazards) - 1; }

    template <class F> void each_block(F of) const {
        int64_t column = 0, out = 0;
        for (const Block* b = s.blocks(); b < s.blocks() + s.n_blocks; b++)
            for (int64_t f = 0; f < b->plates; f++, column += b->size, out += b->width)
                of(*b, b->prior + f * b->size, row(SUMS + column), out);
    }

    Reals evidence(int64_t r) const {
        Reals sum{};
        each_block([&](const Block& b, const double* eta, const double* sums, int64_t) {
            sum += log_normalizer(b.kind, b.size, {eta, sums + r, capacity});
        });
        return sum;
    }

    // log P(a change before x); -inf without a beginning
    double before() const {
        double top = -INFINITE, whole = 0;
        const double* weight = row(WEIGHT);
        for (int64_t r = 0; r < n; r++) top = std::fmax(top, weight[r] + change(r));
        if (top == -INFINITE) return top;
        if (s.by_run) {
            for (int64_t r = 0; r < n; r++) whole += std::exp(weight[r] + change(r) - top);
        } else {
            Reals sum{};
            const double shift = top - change(0);
            for (int64_t r = 0; r < n; r += L) sum += exp_not_positive<double>(load(weight + r) - shift);
            whole = total<double>(sum);
        }
        return top + std::log(whole);
    }

    // The bound of the share of a beginning; see `plain.Bound`
    double cost(double top, int64_t r) const {
        if (row(WEIGHT)[r] == -INFINITE) return 0;
        double ratio = s.evidence - row(EVIDENCE)[r];
        each_block([&](const Block& b, const double*, const double* sums, int64_t) {
            ratio += supremum(b.kind, b.size, sums + r, capacity);
        });
        ratio = std::fmax(0.0, ratio);
        if (s.by_hazards) {
            ratio += s.by_hazards[of_run(r)] + hold(r);
            const double above = std::fmax(ratio, change(r));
            if (above < INFINITE) ratio = above + std::log(std::exp(ratio - above) + std::exp(change(r) - above));
        }
        const double found = std::exp(row(WEIGHT)[r] + ratio - top);
        return found == found ? found : INFINITE;
    }

    // Without the beginnings that `tol` and `most` leave out; the bound of their share
    double leave_out(double top) {
        double *length = row(LENGTH), *weight = row(WEIGHT), bound = 0;
        const double least = s.tol > 0 ? std::log(s.tol / double(n)) : -INFINITE;
        int64_t left = n;
        const auto leave = [&](int64_t r, double share) { bound += share, length[r] = -1, left--; };
        for (int64_t r = 0; r < n; r++)
            if (weight[r] - top < least) {
                const double share = cost(top, r);
                if (share < s.tol / double(n)) leave(r, share);
            }
        while (left > s.most) {
            int64_t lowest = -1;
            for (int64_t r = 0; r < n; r++)
                if (length[r] >= 0 && (lowest < 0 || weight[r] < weight[lowest])) lowest = r;
            if (lowest < 0) break;  // none is left
            leave(lowest, cost(top, lowest));
        }
        if (left < n) compact();
        return bound;
    }

    void compact() {
        int64_t kept = 0;
        for (int64_t r = 0; r < n; r++) {
            if (row(LENGTH)[r] < 0) continue;
            for (int64_t k = 0; k < SUMS + s.columns && kept < r; k++) row(k)[kept] = row(k)[r];
            kept++;
        }
        n = kept;
        for (int64_t r = n; r < round_up(n, L); r++) row(WEIGHT)[r] = -INFINITE;
    }

    // A beginning at this step, and numbers in their range up to the next full vector
    void append(double log_change) {
        for (int64_t k = 0; k < SUMS + s.columns; k++) std::fill(row(k) + n, row(k) + round_up(n + 1, L), 0.0);
        std::fill(row(EVIDENCE) + n, row(EVIDENCE) + round_up(n + 1, L), s.evidence);
        std::fill(row(WEIGHT) + n, row(WEIGHT) + round_up(n + 1, L), -INFINITE);
        row(WEIGHT)[n++] = log_change;
    }

    // The beginnings with this observation; log p(x | x before it)
    double observe() {
        Reals most = splat(-INFINITE), whole{};
        for (int64_t r = 0; r < n; r += L) {
            store<double>(row(LENGTH) + r, load(row(LENGTH) + r) + 1.0);
            for (int64_t k = 0; k < s.columns; k++) store<double>(row(SUMS + k) + r, load(row(SUMS + k) + r) + x[k]);
            const Reals now = evidence(r), weight = load(row(WEIGHT) + r) + (now - load(row(EVIDENCE) + r)) + x[s.columns];
            store<double>(row(EVIDENCE) + r, now);
            store<double>(row(WEIGHT) + r, weight);
            most = weight <= most ? most : weight;  // not a number, if any is not
        }
        const double top = largest<double>(most);
        for (int64_t r = 0; r < n; r += L) whole += exp_not_positive<double>(load(row(WEIGHT) + r) - top);
        const double increment = top + std::log(total<double>(whole));
        for (int64_t r = 0; r < n; r += L) store<double>(row(WEIGHT) + r, load(row(WEIGHT) + r) - increment);
        return increment;
    }

    void look(double* now) {
        Reals run{}, changed{};
        std::fill_n(expected, s.outs, Reals{});
        for (int64_t r = 0; r < n; r += L) {
            const Reals share = exp_not_positive<double>(load(row(WEIGHT) + r)), length = load(row(LENGTH) + r);
            run += share * length;
            changed += length == 1.0 ? share : Reals{};
            const Reals counts = share > NEGLIGIBLE[1] ? share : Reals{};
            if (s.outs && largest<double>(counts) > 0)
                each_block([&](const Block& b, const double* eta, const double* sums, int64_t out) {
                    add_moments(b, {eta, sums + r, capacity}, counts, expected + out);
                });
        }
        now[RUN] = total<double>(run), now[CHANGE] = total<double>(changed);
        for (int64_t m = 0; m < s.outs; m++) now[EXPECTED + m] = total<double>(expected[m]);
    }

    void step(const double* last, double* now) {
        double top = 0;
        now[LEFT_OUT] = last[LEFT_OUT];
        if (n > 0) {
            top = before();
            if (s.tol > 0 || n > s.most) {
                const int64_t size = n;
                now[LEFT_OUT] = std::fmin(1.0, last[LEFT_OUT] + leave_out(top));
                if (n < size) top = before();
            }
        }
        for (int64_t r = 0; r < n; r++) row(WEIGHT)[r] += hold(r);
        append(top);
        now[INCREMENT] = observe();
        now[TOTAL] = last[TOTAL] + now[INCREMENT];
        look(now);
    }
};

// As Python gives it: n beginnings, whose rows are `stride` numbers apart, and steps x [steps, width] after `last`
struct More {
    const double* old;
    int64_t stride, n;
    double* rows;
    int64_t capacity;
    const double* x;
    int64_t steps, width;
    const double* last;
    double* found;  // [steps, EXPECTED + outs]
};

// The number of beginnings at the end, which are in `rows` [SUMS + columns, capacity]; -1: there is no memory
inline int64_t advance(const Stream& s, const More& more) {
    Room<double> room(s.outs * W<double>, 1);
    if (room.full()) return -1;
    Filter filter = {s, more.rows, more.capacity, reinterpret_cast<Reals*>(room.take(s.outs * W<double>)), more.n};
    for (int64_t k = 0; k < SUMS + s.columns; k++) std::copy_n(more.old + k * more.stride, more.n, filter.row(k));
    std::fill(filter.row(WEIGHT) + more.n, filter.row(WEIGHT) + round_up(more.n, W<double>), -INFINITE);
    for (int64_t t = 0; t < more.steps; t++) {
        double* found = more.found + t * (EXPECTED + s.outs);
        filter.x = more.x + t * more.width;
        filter.given = more.width > s.columns + 1 ? filter.x + s.columns + 1 : nullptr;
        filter.step(t ? found - (EXPECTED + s.outs) : more.last, found);
    }
    return filter.n;
}

}  // namespace
