// Rows of Markov chains that depend on inputs, for sweeps. The plain form is `chains/markov/plain_rows.py`.
//
//   A_t[i, j] = exp(P_ij + w_ij' c_t) / sum_k exp(P_ik + w_ik' c_t)
//
// A table is made by columns when a lane reaches its move, a vector holding old states. All tables of short sequences are
// kept; of a long one, the last few of each lane, which makes them again on its way from the middle. The moves of a block
// of steps are counted to the records that a lane met. With x_t = (1, c_t), the sums are
//
//   sum_t n_t(i, j) x_t,           n_t(i, j) = a_t(i) A_t[i, j] b_{t+1}(j) / n_{t+1},
//   sum_t m_t(i) A_t[i, j] x_t,    m_t(i) = sum_j n_t(i, j).
#pragma once
#include "markov.h"

namespace {

// What rows depend on, beside `Chains` whose transition table is P; every field has 8 bytes
struct Inputs {
    const double *weights, *inputs;         // [.., K, K, C], [.., T - 1, C]
    const int64_t *weights_of, *inputs_of;  // as in `Chains`
    int64_t weights_apart, inputs_apart, n_inputs;
};

constexpr int64_t KEPT_TABLES = 1 << 22;  // bytes of tables of a group that are kept between its two sweeps
constexpr int64_t LONGEST = 64;           // steps of a block, at most
constexpr int64_t AHEAD = 4;              // tables that are made at once: they do not wait for one another

// The memory of a group of sequences
struct DrivenSize {
    const Inputs& given;
    int64_t members, n_inputs, columns, table, slots, rings;  // numbers of a table; tables of a ring; rings of a member
    double* expected;                                         // of all sequences; null: none are wanted

    DrivenSize(const Sizes<double>& of, int64_t members, int64_t n_steps, const Inputs& given, double* expected)
        : given(given), members(members), n_inputs(given.n_inputs), columns(round_up(of.k, W<double>)), table(columns * of.wide),
          expected(expected) {
        const bool keeps = expected && members * n_steps * table * int64_t(sizeof(double)) <= KEPT_TABLES;
        for (slots = 1; slots < (keeps ? n_steps : of.block + AHEAD + 1);) slots *= 2;
        rings = keeps || !expected ? 1 : 2;
    }
    int64_t ring() const { return slots * table; }
    int64_t sums() const { return (1 + n_inputs) * table; }  // also of what tables are made from
};

// A sequence of a group: the tables of its moves, and its expected moves
struct Driven {
    const double* inputs;
    double *logits, *tables[2];    // P and w, [1 + C, K, K] by columns; A_t of the forward and of the backward lane
    double *moves, *expected;      // [1 + C, K, K] by columns
    int64_t n_moves, below, from;  // the forward lane has made the tables below one move, the backward lane from another on
    V<double> least;               // transition probability
};

template <int NV> struct RowsByInputs {
    const Sizes<double> of;
    const DrivenSize size;
    Driven members[MOST];
    double *leaving, *design;  // of the steps of a block: m_t, and three numbers of x_t

    static int64_t numbers(const Sizes<double>& of, const DrivenSize& size) {
        return size.members * (size.rings * size.ring() + size.sums()) + of.block * (of.pitch + 3);
    }
    static int64_t doubles(const Sizes<double>&, const DrivenSize& size) { return size.members * 2 * size.sums(); }

    RowsByInputs(const Sizes<double>& of, Room<double>& room, Room<double>& wide, const DrivenSize& size) : of(of), size(size) {
        leaving = room.take(of.block * of.pitch);
        design = room.take(3 * of.block);
        for (int64_t g = 0; g < size.members; g++) {
            Driven& m = members[g];
            m.tables[0] = room.take(size.rings * size.ring());
            m.tables[1] = m.tables[0] + (size.rings - 1) * size.ring();
            m.logits = room.take(size.sums());
            m.moves = wide.take(2 * size.sums());
            m.expected = m.moves + size.sums();
        }
    }

    INLINE int64_t wide() const { return NV ? NV * W<double> : of.wide; }
    INLINE int64_t reach() const { return NV ? NV * W<double> : size.columns; }  // of a column
    double scale(const Lane<double, 1>&, int, int64_t, int64_t) const { return 0; }
    double least(int64_t g, int) const {
        double least = 1;
        for (int64_t u = 0; u < W<double>; u++) least = std::min(least, members[g].least[u]);
        return least;
    }

    void take(const Chains<double>& x, int64_t b, int g, int) {
        const Inputs& given = size.given;
        Driven& m = members[g];
        const double *base = x.transition(b), *weights = given.weights + place(given.weights_of, b) * given.weights_apart;
        m.inputs = given.inputs + place(given.inputs_of, b) * given.inputs_apart;
        m.below = 0;
        m.from = m.n_moves = x.length(b) - 1;
        m.least = splat(1.0);
        std::fill(m.moves, m.moves + 2 * size.sums(), 0.0);
        std::fill(m.logits, m.logits + size.sums(), 0.0);
        for (int64_t i = 0; i < of.k; i++)
            for (int64_t j = 0; j < of.k; j++) {
                double* to = m.logits + j * of.wide + i;
                *to = *base++;
                for (int64_t d = 0; d < size.n_inputs; d++) *(to += size.table) = *weights++;
            }
    }
    static int64_t place(const int64_t* numbers, int64_t b) { return numbers ? numbers[b] : b; }

    INLINE double* table(const Driven& m, int64_t way, int64_t t) const {
        return m.tables[way < 0] + (t & (size.slots - 1)) * size.table;
    }

    void make(Driven& m, int64_t way, int64_t t) const {
        const double* inputs = m.inputs + t * size.n_inputs;
        for (int64_t i = 0; i < reach(); i += W<double>) {
            double *to = table(m, way, t) + i, *end = to + of.k * wide();
            const double* from = m.logits + i;
            V<double> top = splat(-std::numeric_limits<double>::infinity()), mass{};
            for (double* p = to; p < end; p += wide(), from += wide()) {
                V<double> logit = load(from);
                for (int64_t d = 0; d < size.n_inputs; d++) logit += inputs[d] * load(from + (d + 1) * size.table);
                top = larger<double>(top, logit);
                store(p, logit);
            }
            for (double* p = to; p < end; p += wide()) {
                const V<double> x = exp_not_positive<double>(load(p) - top);
                mass += x;
                store(p, x);
            }
            const V<double> inverse = 1.0 / mass;
            for (double* p = to; p < end; p += wide()) {
                const V<double> x = load(p) * inverse;
                m.least = x < m.least ? x : m.least;
                store(p, x);
            }
            for (double* p = end; p < to + size.table; p += wide()) store(p, V<double>{});
        }
    }
    // Has the table of a move made, unless it is there, and some that follow
    INLINE void need(Driven& m, int64_t way, int64_t t) const {
        const bool shared = size.rings == 1;
        if (way > 0) {
            if (t < m.below || (shared && t >= m.from)) return;
            m.below = std::min(t + AHEAD, shared ? m.from : m.n_moves);
            for (; t < m.below; t++) make(m, way, t);
        } else {
            if (t >= m.from || (shared && t < m.below)) return;
            m.from = std::max(t + 1 - AHEAD, shared ? m.below : 0);
            for (; t >= m.from; t--) make(m, way, t);
        }
    }

    template <int G, bool meets> INLINE void move(Lane<double, 1>* lanes, int64_t n) {
        for (int g = 0; g < G; g++) {
            Lane<double, 1>& a = lanes[g];
            Driven& m = members[a.place];
            const int64_t t = a.way > 0 ? a.t + n : a.t - n - 1;
            if (!a.active || t < 0 || t >= m.n_moves) continue;
            need(m, a.way, t);
            a.way > 0 ? push_forward(a, table(m, 1, t)) : push_backward(a, table(m, -1, t));
        }
    }
    // message <- weights over their sum, times a table
    INLINE void push_forward(Lane<double, 1>& a, const double* p) const {
        for (int64_t j = 0; j < reach(); j += W<double>, p += W<double> * wide()) {
            V<double> s[W<double>] = {}, sums{};
            for (int64_t i = 0; i < reach(); i += W<double>) {
                const V<double> weights = load(a.weights + i);
                for (int u = 0; u < W<double>; u++) s[u] += weights * load(p + u * wide() + i);
            }
            for (int u = 0; u < W<double>; u++) sums[u] = total<double>(s[u]);
            store<double>(a.message + j, sums);
        }
    }
    INLINE void push_backward(Lane<double, 1>& a, const double* p) const {
        for (int64_t i = 0; i < reach(); i += W<double>) {
            V<double> s[2] = {};  // which do not wait for each other
            for (int64_t j = 0; j < reach(); j += 2)
                for (int u = 0; u < 2; u++) s[u] += a.weights[j + u] * load(p + (j + u) * wide() + i);
            store<double>(a.message + i, s[0] + s[1]);
        }
    }

    // Adds the moves of a block, and those that the tables expect, both times x_t
    void count(const Lane<double, 1>& a, int64_t steps) const {
        const Driven& m = members[a.place];
        const double *left = a.way > 0 ? a.own : a.met, *right = a.way > 0 ? a.met : a.own;
        const int64_t first = a.linked ? 0 : 1;
        const double* p[LONGEST];
        for (int64_t n = first; n < steps; n++) {
            p[n] = table(m, a.way, moved(a, n));
            leave(p[n], left + n * of.pitch, right + n * of.pitch, leaving + n * of.pitch);
        }
        for (int64_t d = 0; d <= size.n_inputs; d += 3) {
            for (int64_t n = first; n < steps; n++)
                for (int64_t e = d; e < d + 3 && e <= size.n_inputs; e++)
                    design[3 * n + e - d] = e ? m.inputs[moved(a, n) * size.n_inputs + e - 1] : 1;
            switch (size.n_inputs - d) {
            case 0: add<1>(m, p, left, right, first, steps, d); break;
            case 1: add<2>(m, p, left, right, first, steps, d); break;
            default: add<3>(m, p, left, right, first, steps, d);
            }
        }
    }
    // The move that a lane counts at the n-th step of its block
    INLINE int64_t moved(const Lane<double, 1>& a, int64_t n) const { return a.way > 0 ? a.t + n - 1 : a.t - n; }

    // The moves times N entries of x_t, from the d-th
    template <int N>
    void add(const Driven& m, const double* const* p, const double* left, const double* right, int64_t first, int64_t steps,
             int64_t d) const {
        for (int64_t j = 0; j < of.k; j++)
            for (int64_t i = 0; i < reach(); i += W<double>) {
                V<double> moves[N] = {}, expected[N] = {};
                for (int64_t n = first; n < steps; n++) {
                    const V<double> row = load(p[n] + j * wide() + i), out = load(leaving + n * of.pitch + i) * row;
                    const V<double> pair = load(left + n * of.pitch + i) * row * right[n * of.pitch + j];
                    for (int v = 0; v < N; v++) {
                        moves[v] += design[3 * n + v] * pair;
                        expected[v] += design[3 * n + v] * out;
                    }
                }
                for (int v = 0; v < N; v++) {
                    const int64_t at = (d + v) * size.table + j * wide() + i;
                    store<double>(m.moves + at, load(m.moves + at) + moves[v]);
                    store<double>(m.expected + at, load(m.expected + at) + expected[v]);
                }
            }
    }
    // m_t, of which a move is counted
    INLINE void leave(const double* p, const double* left, const double* right, double* to) const {
        for (int64_t i = 0; i < reach(); i += W<double>) {
            V<double> onward{};
            for (int64_t j = 0; j < (NV ? reach() : of.k); j++) onward += right[j] * load(p + j * wide() + i);
            store<double>(to + i, load(left + i) * onward);
        }
    }

    // The sums of a member, both [K, K, 1 + C], as those of a sequence
    void write(int64_t g, int, int64_t b, double* moves) const {
        double* expected = size.expected + b * of.k * of.k * (1 + size.n_inputs);
        for (int64_t i = 0; i < of.k; i++)
            for (int64_t j = 0; j < of.k; j++)
                for (int64_t d = 0; d <= size.n_inputs; d++) {
                    const int64_t at = d * size.table + j * of.wide + i;
                    *moves++ = members[g].moves[at];
                    *expected++ = members[g].expected[at];
                }
    }
};

}  // namespace
