// Linear recurrences over time, element by element, and their adjoints.
//
//   h_t = hold_t h_{t-1} + draw_t v_t
//
// Three readings of it: h = a h + b (FACTOR); h = (1 - g) h + g v (LERP); hold, draw and v from the pre-activations of a
// gated network. The adjoint runs backward in time: with H_t the gradient of a loss with respect to h_t through all that
// comes after,
//
//   H_t = dL/dh_t + hold_{t+1} H_{t+1},   d hold_t = H_t h_{t-1},   d draw_t = H_t v_t,   d v_t = H_t draw_t.
//
// Gates and candidates are activated again in the backward pass: that costs less than reading them from memory. The
// plain forms are `scans/linear/plain.py` and `scans/gated/plain.py`. Tables of gates and of values, and of their gradients,
// have rows of some width: [N, T, D] of linear recurrences, [N, T, parts * D] of networks. h is [N, T, D], h0 [N, D].
#pragma once
#include <vector>

#include "vec.h"

namespace {

constexpr int64_t ROWS_AHEAD = 4;  // that are asked for before their turn: no processor predicts a pass backward in time

// Sequences n0..n1 and columns d0..d1 of tables [N, steps, width]
struct Part {
    int64_t n0, n1, d0, d1, steps, width;
};

enum Gate : int64_t { REDRAW, HOLD, RATIO, FREE, FACTOR, LERP, GIVEN };  // GIVEN: one of the first four, as a call says
enum Candidate { LINEAR, TANH, POSITIVE, SIMPLEX };

struct Kind {
    int64_t gate, candidate, block;
    int64_t parts() const { return gate >= FACTOR ? 1 : gate == REDRAW || gate == HOLD ? 2 : 3; }
};

// Gates and values of all steps, or their gradients
template <class T> struct Inputs {
    T *gate, *value;
};

// Holds and draws, and the two slopes that their gradients are multiplied with
template <class T> struct Gates {
    V<T> hold, draw, slope_first, slope_second;
};

template <class T> INLINE Gates<T> gates(int64_t kind, const T* x, int64_t units, int64_t n) {
    const V<T> first = load_some(x, n);
    if (kind == REDRAW || kind == HOLD) {
        const auto [of, of_less] = sigmoids<T>(first);
        return kind == REDRAW ? Gates<T>{of_less, of, of, of_less} : Gates<T>{of, of_less, of_less, of};
    }
    // a LERP of 0 keeps h and one of 1 makes v, both exactly; h + gate (v - h) does not
    if (kind == LERP) return {T(1) - first, first, first, first};
    if (kind == FACTOR) return {first, splat(T(1)), first, first};
    const V<T> second = load_some(x + units, n);
    if (kind == FREE) {
        const auto f = sigmoids<T>(first), i = sigmoids<T>(second);
        return {f.of, i.of, f.of_less, i.of_less};
    }
    // sigmoid(i) / (sigmoid(f) + sigmoid(i)); numerator and denominator are scaled, so that nothing overflows
    const V<T> less = first < second ? first : second, low = less < T(0) ? less : V<T>{};
    const V<T> both = exp_not_positive<T>(low), no_f = exp_not_positive<T>(low - first), no_i = exp_not_positive<T>(low - second);
    const V<T> scale = T(1) / (both + both + no_f + no_i);
    return {(both + no_i) * scale, (both + no_f) * scale, no_f * scale, no_i * scale};
}

// From the gradient of h, and the state and the value that gates decide between
template <class T>
INLINE void gate_gradients(int64_t kind, const Gates<T>& g, V<T> total, V<T> before, V<T> value, T* out, int64_t units, int64_t n) {
    const V<T> for_draw = total * (value - before);
    if (kind == FACTOR) return store_some<T>(out, total * before, n);
    if (kind == LERP) return store_some<T>(out, for_draw, n);
    if (kind == REDRAW) return store_some<T>(out, for_draw * g.hold * g.draw, n);
    if (kind == HOLD) return store_some<T>(out, -for_draw * g.hold * g.draw, n);
    const V<T> of_first = kind == RATIO ? -for_draw : total * before, of_second = kind == RATIO ? for_draw : total * value;
    store_some<T>(out, of_first * g.hold * g.slope_first, n);
    store_some<T>(out + units, of_second * g.draw * g.slope_second, n);
}

template <class T> INLINE V<T> candidates(int64_t kind, const T* x, const T* shares, int64_t n) {
    if (kind == SIMPLEX) return load_some(shares, n);
    const V<T> c = load_some(x, n);
    if (kind == TANH) return tanh<T>(c);
    if (kind == POSITIVE) return c >= T(0) ? c + T(0.5) : sigmoids<T>(c).of;
    return c;
}

// Writes the gradients of pre-activations; those of a simplex's shares, which `share_gradients` changes into them.
template <class T> INLINE void candidate_gradients(int64_t kind, const T* x, V<T> value, V<T> d_value, T* out, int64_t n) {
    if (kind == TANH) d_value = d_value * (T(1) - value * value);
    if (kind == POSITIVE) d_value = load_some(x, n) >= T(0) ? d_value : d_value * value * (T(1) - value);
    store_some<T>(out, d_value, n);
}

// The softmax of each block of n pre-activations
template <class T> void shares_of(const T* x, int64_t n, int64_t block, T* shares) {
    for (; n > 0; n -= block, x += block, shares += block) {
        T most = x[0], total = 0;
        for (int64_t d = 1; d < block; d++) most = x[d] > most || x[d] != x[d] ? x[d] : most;
        for (int64_t d = 0; d < block; d += W<T>) store_some<T>(shares + d, exp_not_positive<T>(load_some(x + d, block - d) - most), block - d);
        for (int64_t d = 0; d < block; d++) total += shares[d];
        for (int64_t d = 0; d < block; d++) shares[d] /= total;
    }
}

template <class T> void share_gradients(const T* shares, int64_t n, int64_t block, T* grad) {
    for (; n > 0; n -= block, grad += block, shares += block) {
        T mean = 0;
        for (int64_t d = 0; d < block; d++) mean += grad[d] * shares[d];
        for (int64_t d = 0; d < block; d++) grad[d] = shares[d] * (grad[d] - mean);
    }
}

// The state between steps is a row of whole vectors: a processor reads what it has just written at once, but for parts of one.
template <class T, Gate gate> void scan_forward(Part p, Kind of, Inputs<const T> inputs, const T* h0, T* h) {
    if constexpr (gate != GIVEN) of = {gate, LINEAR, 1};
    const int64_t D = p.width, size = p.d1 - p.d0, row = of.parts() * D;
    std::vector<T> shares(of.candidate == SIMPLEX ? size : 0);
    std::vector<V<T>> state(size / W<T> + 1);
    for (int64_t n = p.n0; n < p.n1; n++) {
        std::memcpy(state.data(), h0 + n * D + p.d0, size * sizeof(T));
        for (int64_t t = 0; t < p.steps; t++) {
            const int64_t at = (n * p.steps + t) * row + p.d0;
            const T *x = inputs.gate + at, *y = inputs.value + at;
            T* now = h + (n * p.steps + t) * D + p.d0;
            if (of.candidate == SIMPLEX) shares_of(y, size, of.block, shares.data());
            for (int64_t d = 0; d < size; d += W<T>) {
                const int64_t left = size - d;
                prefetch(now + d + ROWS_AHEAD * D);
                for (int64_t part = 0; part < row; part += D) prefetch(x + d + ROWS_AHEAD * row + part);
                const Gates<T> g = gates<T>(of.gate, x + d, D, left);
                V<T>& held = state[d / W<T>];
                held = g.hold * held + g.draw * candidates<T>(of.candidate, y + d, shares.data() + d, left);
                store_some<T>(now + d, held, left);
            }
        }
    }
}

template <class T, Gate gate>
void scan_backward(Part p, Kind of, Inputs<const T> inputs, const T* h0, const T* h, const T* d_h, Inputs<T> out, T* d_h0) {
    if constexpr (gate != GIVEN) of = {gate, LINEAR, 1};
    const int64_t D = p.width, size = p.d1 - p.d0, row = of.parts() * D;
    std::vector<T> shares(of.candidate == SIMPLEX ? size : 0);
    std::vector<V<T>> through(size / W<T> + 1);  // the gradient of h_t from later steps, and at the end that of h0
    for (int64_t n = p.n0; n < p.n1; n++) {
        std::fill(through.begin(), through.end(), V<T>{});
        for (int64_t t = p.steps - 1; t >= 0; t--) {
            const int64_t at = (n * p.steps + t) * row + p.d0;
            const T *x = inputs.gate + at, *y = inputs.value + at, *grad = d_h + (n * p.steps + t) * D + p.d0;
            const T* before = t ? h + (n * p.steps + t - 1) * D + p.d0 : h0 + n * D + p.d0;
            T *d_x = out.gate + at, *d_y = out.value + at;
            if (of.candidate == SIMPLEX) shares_of(y, size, of.block, shares.data());
            for (int64_t d = 0; d < size; d += W<T>) {
                const int64_t left = size - d;
                prefetch(grad + d - ROWS_AHEAD * D);
                prefetch(before + d - ROWS_AHEAD * D);
                for (int64_t part = 0; part < row; part += D) {
                    prefetch(x + d - ROWS_AHEAD * row + part);
                    prefetch(d_x + d - ROWS_AHEAD * row + part);
                }
                const Gates<T> g = gates<T>(of.gate, x + d, D, left);
                const V<T> value = candidates<T>(of.candidate, y + d, shares.data() + d, left);
                const V<T> total = load_some(grad + d, left) + through[d / W<T>];
                through[d / W<T>] = total * g.hold;
                gate_gradients<T>(of.gate, g, total, load_some(before + d, left), value, d_x + d, D, left);
                candidate_gradients<T>(of.candidate, y + d, value, total * g.draw, d_y + d, left);
            }
            if (of.candidate == SIMPLEX) share_gradients(shares.data(), size, of.block, d_y);
        }
        std::memcpy(d_h0 + n * D + p.d0, through.data(), size * sizeof(T));
    }
}

}  // namespace
