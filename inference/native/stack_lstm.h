// An LSTM cell that drives stacks: superposed ones, or such of layers. The plain form is `models/networks/stack_lstm/op.py`.
//
// With x_t the inputs, r the readings of all stacks of a sequence, and gates i, f, o and candidate g:
//
//   [i, f, g, o]_t = W [x_t, r_{t-1}, h_{t-1}] + b,   c_t = s(f) c_{t-1} + s(i) tanh(g),   h_t = s(o) tanh(c_t),
//   raw_t = U h_t + d,   (S_t, r_t) = step(raw_t, S_{t-1}).
#pragma once
#include "products.h"
#include "stacks.h"

namespace {

// Sequences b0..b1, and steps t0..t1
struct Range {
    int64_t b0, b1, t0, t1;
};

// The sizes of a network: sequences, all steps, columns of inputs, hidden states, and their number rounded up to whole
// vectors; stacks, and actions, numbers of a cell, and cells read of each; cells at the start, and their limit; whether
// stacks have layers, each of which is a cell with a strength; whether tables of all steps are kept for an adjoint.
struct Network {
    int64_t B, T, inputs, hidden, units, stacks, actions, width, read, first, limit, layered, kept;
    int64_t readings() const { return stacks * read * width; }
    int64_t row() const { return inputs + readings() + hidden; }
    int64_t own() const { return actions + width; }  // raw numbers of a stack
    int64_t raw() const { return stacks * own(); }
    int64_t cells(int64_t t) const { return t == 0 ? first : std::min(std::min(first, limit) + t, limit); }
    int64_t most() const { return std::max(first, cells(T)); }
    // How many cells there are before step t of those of all steps: they grow by one a step, up to the limit.
    int64_t at(int64_t t) const {
        if (t == 0 || !kept) return 0;
        const int64_t least = std::min(first, limit), rises = std::min(t - 1, limit - least);
        return first + rises * least + rises * (rises + 1) / 2 + (t - 1 - rises) * limit;
    }
};

// The steps of a stack in its memory: the cells of each step; or the values of all layers, and their strengths at each step.
// Gradients have the same memory, but of one step.
template <class T> class Stack {
    const Network of;
    Superposition<T> superposed;
    Layers<T> layers;

    Step size(int64_t t) const { return {of.actions, of.width, of.cells(t), of.cells(t + 1), of.read}; }

public:
    Stack(const Network& of, T empty)
        : of(of), superposed({of.actions, of.width, of.most(), of.most(), of.read}, empty), layers(of.most(), of.width) {}

    void step(int64_t t, const T* raw, T* memory, T* reading) {
        T* strengths = memory + of.most() * of.width;
        if (of.layered) layers.step(of.cells(t), raw, strengths + of.at(t), memory, strengths + of.at(t + 1), reading);
        else superposed.step(size(t), raw, memory + of.at(t) * of.width, memory + of.at(t + 1) * of.width, reading);
    }
    void adjoint(int64_t t, const T* raw, const T* memory, const T* d_reading, T* d_raw, T* d) {
        const T* strengths = memory + of.most() * of.width;
        T* of_strengths = d + of.most() * of.width;
        if (of.layered)
            layers.adjoint(of.cells(t), raw, strengths + of.at(t), strengths + of.at(t + 1), memory, of_strengths, d_reading,
                           d_raw, of_strengths, d);
        else superposed.adjoint(size(t), raw, memory + of.at(t) * of.width, d, d_reading, d_raw, d);
    }
};

enum { INPUT, FORGET, CANDIDATE, OUTPUT };  // an LSTM's gates, as torch orders them

// Replaces logits [4, units] by gates.
template <class T> void lstm_step(int64_t units, T* gates, const T* before, T* cell, T* hidden) {
    for (int64_t k = 0; k < units; k += W<T>) {
        T* at = gates + k;
        const V<T> i = sigmoids<T>(load(at)).of, f = sigmoids<T>(load(at + units)).of;
        const V<T> g = tanh<T>(load(at + 2 * units)), o = sigmoids<T>(load(at + 3 * units)).of;
        const V<T> c = f * load(before + k) + i * g;
        store(at, i), store(at + units, f), store(at + 2 * units, g), store(at + 3 * units, o);
        store(cell + k, c);
        store<T>(hidden + k, o * tanh<T>(c));
    }
}

// Replaces the gradient of a cell by that of the cell before.
template <class T>
void lstm_adjoint(int64_t units, const T* gates, const T* before, const T* cell, const T* d_hidden, T* d_cell, T* d_logits) {
    for (int64_t k = 0; k < units; k += W<T>) {
        const V<T> i = load(gates + k), f = load(gates + units + k);
        const V<T> g = load(gates + 2 * units + k), o = load(gates + 3 * units + k);
        const V<T> c = tanh<T>(load(cell + k)), h = load(d_hidden + k);
        const V<T> d = load(d_cell + k) + h * o * (T(1) - c * c);
        store<T>(d_logits + k, d * g * i * (T(1) - i));
        store<T>(d_logits + units + k, d * load(before + k) * f * (T(1) - f));
        store<T>(d_logits + 2 * units + k, d * i * (T(1) - g * g));
        store<T>(d_logits + 3 * units + k, h * c * o * (T(1) - o));
        store<T>(d_cell + k, d * f);
    }
}

// W [4 hidden, row], b [4 hidden], U [raw, hidden], d [raw]
template <class T> struct Weights {
    const T *gates, *gates_offset, *actions, *actions_offset;
};

// By step: inputs [T + 1, B, row], gates [T, B, 4, units], cell [T + 1, B, units], hidden [T, B, hidden], raw [T, B, raw],
// reading [T, B, readings]. By stack: its memory. Of inputs, gates and what a stack has by step,
// there is one step if not `kept`. Past the end of a sequence [T, B], raw actions are `idle` [raw].
template <class T> struct Steps {
    const T* x;
    T *inputs, *gates, *cell, *hidden, *raw, *reading, *stacks;
    int64_t of_stack;
    const uint8_t* past;
    const T* idle;
};

template <class T> void stack_lstm(const Range& part, const Network& of, T empty, const Weights<T>& w, const Steps<T>& at) {
    const int64_t rows = part.b1 - part.b0, gates_row = 4 * of.units, seen = of.read * of.width;
    const Matrix<T> gates(w.gates, of.row(), 4 * of.hidden, 1, of.row(), w.gates_offset, of.hidden, of.units);
    const Matrix<T> actions(w.actions, of.hidden, of.raw(), 1, of.hidden, w.actions_offset);
    std::vector<T> logits(rows * gates.stride), acted(rows * actions.stride), hidden(of.units);
    Stack<T> stack(of, empty);
    for (int64_t t = part.t0; t < part.t1; t++) {
        const int64_t now = of.kept ? t : 0, next = of.kept ? t + 1 : 0;
        for (int64_t b = part.b0; b < part.b1; b++)
            std::copy_n(at.x + (t * of.B + b) * of.inputs, of.inputs, at.inputs + (now * of.B + b) * of.row());
        gates.multiply(rows, at.inputs + (now * of.B + part.b0) * of.row(), of.row(), logits.data());
        for (int64_t b = part.b0; b < part.b1; b++) {
            T* gate = at.gates + (now * of.B + b) * gates_row;
            std::copy_n(&logits[(b - part.b0) * gates.stride], gates_row, gate);
            T* cell = at.cell + (t * of.B + b) * of.units;
            lstm_step(of.units, gate, cell, cell + of.B * of.units, hidden.data());
            std::copy_n(hidden.data(), of.hidden, at.hidden + (t * of.B + b) * of.hidden);
        }
        actions.multiply(rows, at.hidden + (t * of.B + part.b0) * of.hidden, of.hidden, acted.data());
        for (int64_t b = part.b0; b < part.b1; b++) {
            T *raw = at.raw + (t * of.B + b) * of.raw(), *reading = at.reading + (t * of.B + b) * of.readings();
            const bool past = at.past && at.past[t * of.B + b];
            std::copy_n(past ? at.idle : &acted[(b - part.b0) * actions.stride], of.raw(), raw);
            for (int64_t s = 0; s < of.stacks; s++) {
                T* memory = at.stacks + (b * of.stacks + s) * at.of_stack;
                stack.step(t, raw + s * of.own(), memory, reading + s * seen);
            }
            T* following = at.inputs + (next * of.B + b) * of.row() + of.inputs;
            std::copy_n(reading, of.readings(), following);
            std::copy_n(at.hidden + (t * of.B + b) * of.hidden, of.hidden, following + of.readings());
        }
    }
}

// Gradients of results [T, B, ...], which may be missing, and of what the steps computed: logits [T, B, 4, hidden], raw.
// `through` [B, readings + hidden], `cell` [B, units] and `stacks` hold those that later steps bring, and in the end those of
// the start.
template <class T> struct Gradients {
    const T *of_hidden, *of_reading, *of_raw, *of_cell;
    T *logits, *raw, *through, *cell, *stacks;
    int64_t of_stack;
};

template <class T>
void stack_lstm_adjoint(const Range& part, const Network& of, T empty, const Weights<T>& w, const Steps<T>& at,
                        const Gradients<T>& d) {
    const int64_t rows = part.b1 - part.b0, gates_row = 4 * of.units, seen = of.read * of.width;
    const int64_t fed = of.readings() + of.hidden;
    const Matrix<T> gates(w.gates + of.inputs, 4 * of.hidden, fed, of.row(), 1);
    const Matrix<T> actions(w.actions, of.raw(), of.hidden, of.hidden, 1);
    std::vector<T> d_fed(rows * gates.stride), d_hidden(rows * actions.stride), reading(of.readings()), hidden(of.units);
    std::vector<T> logits(4 * of.units);
    Stack<T> stack(of, empty);
    for (int64_t t = part.t1 - 1; t >= part.t0; t--) {
        for (int64_t b = part.b0; b < part.b1; b++) {
            const int64_t n = t * of.B + b;
            T* d_raw = d.raw + n * of.raw();
            for (int64_t j = 0; j < of.readings(); j++)
                reading[j] = d.through[b * fed + j] + (d.of_reading ? d.of_reading[n * of.readings() + j] : T(0));
            for (int64_t s = 0; s < of.stacks; s++) {
                const int64_t m = b * of.stacks + s;
                stack.adjoint(t, at.raw + n * of.raw() + s * of.own(), at.stacks + m * at.of_stack, &reading[s * seen],
                              d_raw + s * of.own(), d.stacks + m * d.of_stack);
            }
            for (int64_t j = 0; d.of_raw && j < of.raw(); j++) d_raw[j] += d.of_raw[n * of.raw() + j];
            if (at.past && at.past[n]) std::fill(d_raw, d_raw + of.raw(), T(0));
        }
        actions.multiply(rows, d.raw + (t * of.B + part.b0) * of.raw(), of.raw(), d_hidden.data());
        for (int64_t b = part.b0; b < part.b1; b++) {
            const int64_t n = t * of.B + b;
            const T *by_actions = &d_hidden[(b - part.b0) * actions.stride], *fed_back = d.through + b * fed + of.readings();
            for (int64_t k = 0; k < of.hidden; k++)
                hidden[k] = by_actions[k] + fed_back[k] + (d.of_hidden ? d.of_hidden[n * of.hidden + k] : T(0));
            for (int64_t k = 0; d.of_cell && k < of.hidden; k++) d.cell[b * of.units + k] += d.of_cell[n * of.hidden + k];
            const T* cell = at.cell + n * of.units;
            lstm_adjoint(of.units, at.gates + n * gates_row, cell, cell + of.B * of.units, hidden.data(), d.cell + b * of.units,
                         logits.data());
            for (int64_t g = 0; g < 4; g++)
                std::copy_n(&logits[g * of.units], of.hidden, d.logits + (n * 4 + g) * of.hidden);
        }
        gates.multiply(rows, d.logits + (t * of.B + part.b0) * 4 * of.hidden, 4 * of.hidden, d_fed.data());
        for (int64_t b = part.b0; b < part.b1; b++) std::copy_n(&d_fed[(b - part.b0) * gates.stride], fed, d.through + b * fed);
    }
}

}  // namespace
