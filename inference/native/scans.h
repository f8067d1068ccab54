// Linear recurrences over time, element by element, and their adjoints.
//
//   h_t = hold_t h_{t-1} + draw_t v_t
//
// Three readings of it: h = a h + b (`Linear`); h = (1 - g) h + g v (`Lerp`); hold, draw and v from the pre-activations
// of a gated network (`Gated`). The adjoint runs backward in time: with H_t the gradient of a loss with respect to h_t
// through all that comes after,
//
//   H_t = dL/dh_t + hold_{t+1} H_{t+1},   d hold_t = H_t h_{t-1},   d draw_t = H_t v_t,   d v_t = H_t draw_t.
//
// Gates and candidates are activated again in the backward pass: that costs less than reading them from memory. The
// plain forms are `scans/linear/plain.py` and `scans/gated/plain.py`. Tables are contiguous: first and second, h and
// their gradients [N, T, D], pre [N, T, parts * D], h0 [N, D].
#pragma once
#include <vector>

#include "vec.h"

namespace {

constexpr int64_t ROWS_AHEAD = 4;  // that are asked for before their turn: no processor predicts a pass backward in time

// Sequences n0..n1 and columns d0..d1 of tables [N, steps, width]
struct Part {
    int64_t n0, n1, d0, d1, steps, width;
};

// Written as (1 - gate) h + gate v, a gate of 0 keeps h and a gate of 1 makes v, both exactly; h + gate (v - h) does not.
template <class T, bool lerp> void scan_forward(Part p, const T* first, const T* second, const T* h0, T* h) {
    const int64_t D = p.width, size = p.d1 - p.d0;
    for (int64_t n = p.n0; n < p.n1; n++) {
        const T* before = h0 + n * D + p.d0;
        for (int64_t t = 0; t < p.steps; t++) {
            const int64_t at = (n * p.steps + t) * D + p.d0;
            const T *x = first + at, *y = second + at;
            T* now = h + at;
#pragma GCC ivdep
            for (int64_t d = 0; d < size; d++) {
                const T held = (lerp ? T(1) - x[d] : x[d]) * before[d];
                now[d] = held + (lerp ? x[d] * y[d] : y[d]);
            }
            before = now;
        }
    }
}

template <class T, bool lerp>
void scan_backward(Part p, const T* first, const T* second, const T* h0, const T* h, const T* d_h, T* d_first, T* d_second, T* d_h0) {
    const int64_t D = p.width, size = p.d1 - p.d0;
    for (int64_t n = p.n0; n < p.n1; n++) {
        T* through = d_h0 + n * D + p.d0;  // the gradient of h_t from later steps, and at the end that of h0
        for (int64_t d = 0; d < size; d++) through[d] = 0;
        for (int64_t t = p.steps - 1; t >= 0; t--) {
            const int64_t at = (n * p.steps + t) * D + p.d0;
            const T *x = first + at, *y = second + at, *grad = d_h + at, *before = t ? h + at - D : h0 + n * D + p.d0;
            T *d_x = d_first + at, *d_y = d_second + at;
#pragma GCC ivdep
            for (int64_t d = 0; d < size; d++) {
                const T total = grad[d] + through[d];
                d_x[d] = total * (lerp ? y[d] - before[d] : before[d]);
                d_y[d] = lerp ? total * x[d] : total;
                through[d] = total * (lerp ? T(1) - x[d] : x[d]);
            }
        }
    }
}

enum Gate { REDRAW, HOLD, RATIO, FREE };
enum Candidate { LINEAR, TANH, POSITIVE, SIMPLEX };

// What is the same for all rows of pre-activations
struct Layout {
    int64_t gate, candidate, block;
    int64_t parts() const { return gate == REDRAW || gate == HOLD ? 2 : 3; }
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

template <class T>
INLINE void gate_gradients(int64_t kind, const Gates<T>& g, V<T> d_hold, V<T> d_draw, T* out, int64_t units, int64_t n) {
    if (kind == REDRAW) return store_some<T>(out, (d_draw - d_hold) * g.hold * g.draw, n);
    if (kind == HOLD) return store_some<T>(out, (d_hold - d_draw) * g.hold * g.draw, n);
    const V<T> of_first = kind == RATIO ? d_hold - d_draw : d_hold, of_second = kind == RATIO ? d_draw - d_hold : d_draw;
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

template <class T> void gated_forward(Part p, Layout of, const T* pre, const T* h0, T* h) {
    const int64_t D = p.width, size = p.d1 - p.d0, row = of.parts() * D, candidate = row - D;
    std::vector<T> shares(of.candidate == SIMPLEX ? size : 0);
    for (int64_t n = p.n0; n < p.n1; n++) {
        const T* before = h0 + n * D + p.d0;
        for (int64_t t = 0; t < p.steps; t++) {
            const T* x = pre + (n * p.steps + t) * row + p.d0;
            T* now = h + (n * p.steps + t) * D + p.d0;
            if (of.candidate == SIMPLEX) shares_of(x + candidate, size, of.block, shares.data());
            for (int64_t d = 0; d < size; d += W<T>) {
                prefetch(now + d + ROWS_AHEAD * D);
                for (int64_t part = 0; part < row; part += D) prefetch(x + d + ROWS_AHEAD * row + part);
                const Gates<T> g = gates<T>(of.gate, x + d, D, size - d);
                const V<T> value = candidates<T>(of.candidate, x + candidate + d, shares.data() + d, size - d);
                store_some<T>(now + d, g.hold * load_some(before + d, size - d) + g.draw * value, size - d);
            }
            before = now;
        }
    }
}

template <class T>
void gated_backward(Part p, Layout of, const T* pre, const T* h0, const T* h, const T* d_h, T* d_pre, T* d_h0) {
    const int64_t D = p.width, size = p.d1 - p.d0, row = of.parts() * D, candidate = row - D;
    std::vector<T> shares(of.candidate == SIMPLEX ? size : 0);
    for (int64_t n = p.n0; n < p.n1; n++) {
        T* through = d_h0 + n * D + p.d0;
        for (int64_t d = 0; d < size; d++) through[d] = 0;
        for (int64_t t = p.steps - 1; t >= 0; t--) {
            const T *x = pre + (n * p.steps + t) * row + p.d0, *grad = d_h + (n * p.steps + t) * D + p.d0;
            const T* before = t ? h + (n * p.steps + t - 1) * D + p.d0 : h0 + n * D + p.d0;
            T* d_x = d_pre + (n * p.steps + t) * row + p.d0;
            if (of.candidate == SIMPLEX) shares_of(x + candidate, size, of.block, shares.data());
            for (int64_t d = 0; d < size; d += W<T>) {
                const int64_t left = size - d;
                prefetch(grad + d - ROWS_AHEAD * D);
                prefetch(before + d - ROWS_AHEAD * D);
                for (int64_t part = 0; part < row; part += D) {
                    prefetch(x + d - ROWS_AHEAD * row + part);
                    prefetch(d_x + d - ROWS_AHEAD * row + part);
                }
                const Gates<T> g = gates<T>(of.gate, x + d, D, left);
                const V<T> value = candidates<T>(of.candidate, x + candidate + d, shares.data() + d, left);
                const V<T> total = load_some(grad + d, left) + load_some(through + d, left);
                store_some<T>(through + d, total * g.hold, left);
                gate_gradients<T>(of.gate, g, total * load_some(before + d, left), total * value, d_x + d, D, left);
                candidate_gradients<T>(of.candidate, x + candidate + d, value, total * g.draw, d_x + candidate + d, left);
            }
            if (of.candidate == SIMPLEX) share_gradients(shares.data(), size, of.block, d_x + candidate);
        }
    }
}

}  // namespace
