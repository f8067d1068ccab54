// Two readings of the tables of a copy chain, and the weights of a block of its steps.
//
//   `CopyTables`:      fresh_t(s) and held_t(s), a table each; held_t may be one number for all states
//   `FactoredTables`:  fresh_t(s) = l_t(s) redraw_t pi(s),  held_t(s) = l_t(s) hold_t,  with the likelihoods l
//
// Where there is no state before the first step, that step redraws: its held weights are 0, and in `FactoredTables` its
// redraw_t is 1. The weights of a step are divided by their largest, whose logarithm is in `top`. A step is calm if all
// its redraws weigh more than `calm`, so that no state is lost in it.
#pragma once
#include "copy_lanes.h"

namespace {

// Reliable numbers; products of neighbouring ones are below the precision of the tables.
//   lowest  the least log-weight of a step, relative to its largest, other than -inf
//   least   the least total weight of a step
//   lost    the belief below which a state is lost
//   share   the largest contribution of a lost state, relative to a redraw
//   calm    if all redraws have more weight than this, no state is lost, and earlier lost states do not matter
template <class T> struct Limits;
template <> struct Limits<double> {
    static constexpr double lowest = -345, least = 1e-75, lost = 1e-70, share = 1e-17, calm = 1e-50, log_calm = -115.1;
};
template <> struct Limits<float> {
    static constexpr double lowest = -85, least = 1e-12, lost = 1e-24, share = 1e-8, calm = 1e-16, log_calm = -36.8;
};

// Rows of a table of one sequence, `step` apart; entries of a row lie side by side
template <class T> struct Rows {
    const T* at;
    int64_t step, width, count;
    INLINE const T* row(int64_t t) const { return at + t * step; }
    // The entries j.. of row t; beyond its end `filler`. Where the next rows follow at once, a whole vector can be read.
    INLINE V<T> take(int64_t t, int64_t j, T filler) const {
        const T* x = row(t) + j;
        if (j + W<T> <= width) return load(x);
        if (step == width && (count - t) * width - j >= W<T>) {
            Bits<T> lane;
            for (int i = 0; i < W<T>; i++) lane[i] = i;
            return lane < splat_bits(width - j) ? load(x) : splat(filler);
        }
        T some[W<T>];
        for (int64_t i = 0; i < W<T>; i++) some[i] = i < width - j ? x[i] : filler;
        return load(some);
    }
    static INLINE Bits<T> splat_bits(int64_t n) { return Bits<T>{} + decltype(Bits<T>{}[0] + 0)(n); }
};

// The largest and the least entry of a row
template <class T> struct Extremes {
    V<T> most, least;
    INLINE Extremes(const Rows<T>& rows, int64_t t) {
        constexpr T infinity = std::numeric_limits<T>::infinity();
        most = splat(-infinity), least = splat(infinity);
        for (int64_t j = 0; j < rows.width; j += W<T>) {
            most = larger<T>(most, rows.take(t, j, -infinity));
            least = smaller<T>(least, rows.take(t, j, infinity));
        }
    }
    INLINE T top() const { return everywhere<T>(most, [](V<T> x, V<T> y) { return larger<T>(x, y); })[0]; }
    INLINE T bottom() const { return everywhere<T>(least, [](V<T> x, V<T> y) { return smaller<T>(x, y); })[0]; }
};

// exp(x - top), at least exp(lowest) where it is possible
template <class T> INLINE V<T> relative(V<T> x, V<T> top) {
    const V<T> y = x - top, low = splat(T(Limits<T>::lowest));
    return exp_not_positive<T>((y < low) & (y > -std::numeric_limits<T>::infinity()) ? low : y);
}
template <class T> INLINE void write_relative(const Rows<T>& rows, int64_t t, T top, T* out) {
    for (int64_t j = 0; j < rows.width; j += W<T>)
        store(out + j, relative<T>(rows.take(t, j, -std::numeric_limits<T>::infinity()), splat(top)));
}
template <class T> INLINE T finite_or_0(T x) { return std::fabs(x) < std::numeric_limits<T>::infinity() ? x : T(0); }

struct Weights {
    V<double> fresh, held;
};

// Several rows in a vector, of a table with K columns: the divisors of each row, whether it is calm, and its numbers
template <class T, int K> struct Together {
    static constexpr int64_t count = W<T> / K;
    V<T> top, least;
    INLINE Together(V<T> all, V<T> fresh) {
        top = everywhere<T, K>(all, larger<T>), least = everywhere<T, K>(fresh, smaller<T>);
        const V<T> none{}, size = less_magnitude<T>(top);
        top = size > -std::numeric_limits<T>::infinity() ? top : none;
        least -= top;
    }
    static INLINE void spread(V<T> x, T* out, int64_t apart) {
        T numbers[W<T>];
        store(numbers, x);
        for (int64_t i = 0; i < count; i++) std::memcpy(out + i * apart, numbers + i * K, K * sizeof(T));
    }
    static INLINE T of(V<T> x, int64_t i) {
        T numbers[W<T>];
        store(numbers, x);
        return numbers[i * K];
    }
};

// Memory of `n` numbers of T, among doubles; a vector more, since rows are written in whole vectors
template <class T> INLINE T* take(Room<double>& room, int64_t n) {
    return reinterpret_cast<T*>(room.take((n * sizeof(T) + VECTOR_BYTES) / sizeof(double) + 1));
}
template <class T> INLINE int64_t doubles(int64_t n) { return (n * sizeof(T) + VECTOR_BYTES) / sizeof(double) + 10; }

template <class T> struct CopyTables {
    Rows<T> log_fresh, log_held;
    bool redraws_first;  // there is no state before the first step
    T *fresh = nullptr, *held = nullptr;
    double* top = nullptr;
    bool* calm = nullptr;
    int64_t padded = 0;

    static int64_t numbers(int64_t rows, int64_t p) {
        return 2 * doubles<T>(rows * p) + doubles<double>(rows) + doubles<bool>(rows);
    }
    void place(Room<double>& room, int64_t rows, int64_t p) {
        fresh = take<T>(room, rows * p), held = take<T>(room, rows * p);
        top = take<double>(room, rows), calm = take<bool>(room, rows);
        padded = p;
        if (p == W<double>) std::memset(fresh, 0, rows * p * sizeof(T)), std::memset(held, 0, rows * p * sizeof(T));
    }
    bool one_for_all() const { return log_held.width == 1 && log_fresh.width > 1; }
    int64_t held_row() const { return one_for_all() ? W<double> : padded; }

    // The weights of steps t0.. of the sequence
    APART void fill(int64_t t0, int64_t n) {
        const int64_t k = log_fresh.width, first = t0 == 0 && redraws_first;
        const bool dense = log_fresh.step == k && log_held.step == k && log_held.width == k;
        if (first && n) fill_row(0, 0);
        int64_t r = first;
        if (dense && k == 1) r = fill_together<1>(t0, r, n);
        if (dense && k == 2) r = fill_together<2>(t0, r, n);
        for (; r < n; r++) fill_row(t0 + r, r);
    }
    INLINE void fill_row(int64_t t, int64_t r) {
        const bool alone = redraws_first && t == 0;
        const Extremes<T> of_fresh(log_fresh, t), of_held(log_held, t);
        const T high = of_fresh.top(), other = of_held.top(), shift = finite_or_0(alone || !(other > high) ? high : other);
        top[r] = shift;
        calm[r] = of_fresh.bottom() - shift > T(Limits<T>::log_calm);
        write_relative(log_fresh, t, shift, fresh + r * padded);
        if (alone) std::memset(held, 0, held_row() * sizeof(T));
        else if (one_for_all()) {
            const T x = relative<T>(splat(log_held.row(t)[0]), splat(shift))[0];
            std::fill_n(held + r * W<double>, W<double>, x);
        } else write_relative(log_held, t, shift, held + r * padded);
    }
    template <int K> INLINE int64_t fill_together(int64_t t0, int64_t r, int64_t n) {
        using Rows = Together<T, K>;
        for (; r + Rows::count <= n; r += Rows::count) {
            const V<T> x = load(log_fresh.row(t0 + r)), y = load(log_held.row(t0 + r));
            const Rows rows(larger<T>(x, y), x);
            Rows::spread(relative<T>(x, rows.top), fresh + r * padded, padded);
            Rows::spread(relative<T>(y, rows.top), held + r * padded, padded);
            for (int64_t i = 0; i < Rows::count; i++) {
                top[r + i] = Rows::of(rows.top, i);
                calm[r + i] = Rows::of(rows.least, i) > T(Limits<T>::log_calm);
            }
        }
        return r;
    }
    struct Row {
        const T *fresh, *held;
        int64_t each;
        INLINE Weights at(int64_t j) const { return {load_wide(fresh + j), load_wide(held + j * each)}; }
        INLINE Weights careful(int64_t j) const { return at(j); }
    };
    INLINE Row at(int64_t r) const { return {fresh + r * padded, held + r * held_row(), !one_for_all()}; }

    // The logarithms
    double fresh_at(int64_t t, int64_t s) const { return log_fresh.row(t)[s]; }
    double held_at(int64_t t, int64_t s) const {
        return redraws_first && t == 0 ? -INFINITY : log_held.row(t)[log_held.width == 1 ? 0 : s];
    }
};

template <class T> struct FactoredTables {
    Rows<T> log_likelihood, log_redraw, log_hold;  // gates have one column, and may be 0 apart
    const T* log_state;
    T* likelihood = nullptr;
    double *state = nullptr, *redraw = nullptr, *hold = nullptr, *top = nullptr;
    double* calm_above = nullptr;  // a step is calm if its least likelihood is larger, relative to its largest, as logarithms
    bool* calm = nullptr;
    int64_t padded = 0;
    double highest = 0, least = 0;  // of the logarithms of states; the least is relative to the highest

    static int64_t numbers(int64_t rows, int64_t p) {
        return doubles<T>(rows * p) + doubles<double>(p) + 4 * doubles<double>(rows) + doubles<bool>(rows);
    }
    void place(Room<double>& room, int64_t rows, int64_t p) {
        likelihood = take<T>(room, rows * p), state = take<double>(room, p), redraw = take<double>(room, rows);
        hold = take<double>(room, rows), top = take<double>(room, rows), calm_above = take<double>(room, rows);
        calm = take<bool>(room, rows);
        padded = p;
        if (p == W<double>) std::memset(likelihood, 0, rows * p * sizeof(T));
    }
    // The weights of states relative to the largest
    APART void read_states() {
        const int64_t k = log_likelihood.width;
        highest = finite_or_0<double>(*std::max_element(log_state, log_state + k));
        least = double(*std::min_element(log_state, log_state + k)) - highest;
        for (int64_t j = 0; j < padded; j++) state[j] = j < k ? log_state[j] - highest : -INFINITY;
        exponentiate(state, padded);
    }
    static void exponentiate(double* x, int64_t n) {
        for (int64_t j = 0; j < n; j += W<double>) store(x + j, relative<double>(load(x + j), V<double>{}));
    }
    APART void fill(int64_t t0, int64_t n) {
        fill_gates(t0, n);
        const int64_t k = log_likelihood.width;
        const bool dense = log_likelihood.step == k;
        int64_t r = 0;
        if (dense && k == 1) r = fill_together<1>(t0, n);
        if (dense && k == 2) r = fill_together<2>(t0, n);
        for (; r < n; r++) {
            const Extremes<T> of_all(log_likelihood, t0 + r);
            const T shift = finite_or_0(of_all.top());
            top[r] += shift;
            calm[r] = of_all.bottom() - shift > calm_above[r];
            write_relative(log_likelihood, t0 + r, shift, likelihood + r * padded);
        }
    }
    // The gates of each step relative to the larger, with a redraw of the most probable state; where they are constant,
    // once
    INLINE void fill_gates(int64_t t0, int64_t n) {
        const bool constant = !log_redraw.step && !log_hold.step;
        const int64_t own = constant ? std::min<int64_t>(n, 2) : n;
        for (int64_t r = 0; r < own; r++) {
            const int64_t t = t0 + r;
            const double draws = (t ? double(*log_redraw.row(t)) : 0.0) + highest;
            const double holds = t ? double(*log_hold.row(t)) : -INFINITY;
            top[r] = finite_or_0(holds > draws ? holds : draws);
            redraw[r] = draws - top[r], hold[r] = holds - top[r];
            calm_above[r] = Limits<T>::log_calm - least - redraw[r];
        }
        exponentiate(redraw, own), exponentiate(hold, own);
        if (own < n)
            for (double* x : {top, redraw, hold, calm_above}) std::fill(x + own, x + n, x[own - 1]);
    }
    template <int K> INLINE int64_t fill_together(int64_t t0, int64_t n) {
        using Rows = Together<T, K>;
        int64_t r = 0;
        for (; r + Rows::count <= n; r += Rows::count) {
            const V<T> x = load(log_likelihood.row(t0 + r));
            const Rows rows(x, x);
            Rows::spread(relative<T>(x, rows.top), likelihood + r * padded, padded);
            for (int64_t i = 0; i < Rows::count; i++) {
                top[r + i] += Rows::of(rows.top, i);
                calm[r + i] = Rows::of(rows.least, i) > calm_above[r + i];
            }
        }
        return r;
    }
    struct Row {
        const T* likelihood;
        const double* state;
        double redraw, hold;
        INLINE Weights at(int64_t j) const {
            const V<double> l = load_wide(likelihood + j);
            return {l * (redraw * load(state + j)), l * hold};
        }
        // The same, where no product underflows
        INLINE Weights careful(int64_t j) const {
            const V<double> low = splat(double(exp_not_positive<T>(T(Limits<T>::lowest)))), l = load_wide(likelihood + j);
            const auto raised = [=](V<double> x) { return (x < low) & (x > 0) ? low : x; };
            return {raised(l * raised(redraw * load(state + j))), raised(l * hold)};
        }
    };
    INLINE Row at(int64_t r) const { return {likelihood + r * padded, state, redraw[r], hold[r]}; }

    double fresh_at(int64_t t, int64_t s) const {
        return double(log_likelihood.row(t)[s]) + ((t ? double(*log_redraw.row(t)) : 0.0) + double(log_state[s]));
    }
    double held_at(int64_t t, int64_t s) const {
        return t ? double(log_likelihood.row(t)[s]) + double(*log_hold.row(t)) : -INFINITY;
    }
};

}  // namespace
