// Tables of Markov chains for sweeps: one for all steps, or one for each step. The plain form is `chains/markov/plain.py`.
//
// Tables are divided by their largest entry. One for all steps is laid out by panels of one or two vectors, and its
// transpose too. The expected moves of a block of steps are a matrix product, of the weights before the moves and of the
// records met, both over n_t; the table's entries are multiplied with the sums of all blocks at the end:
//
//   sum_t P(s_t = i, s_t+1 = j | x) = A(i, j) G(i, j),   G = sum_t a_t b_{t+1}' / n_{t+1}
//
// A table for each step is exponentiated into the place of its moves' posterior, which replaces it when they are counted.
#pragma once
#include "sweep.h"

namespace {

// Tables of B sequences, as the caller lays them out; every field has 8 bytes
template <class T> struct Chains {
    const T *log_initial, *log_transition, *log_likelihood;            // [.., K], [.., S, K, K], [.., T, K]
    const int64_t *initial_of, *transition_of, *likelihood_of;         // [B], the number of a sequence's table; null: its own
    const int64_t *lengths, *order;                                    // [B]; the sequences by groups, null: as they are
    int64_t initial_apart, transition_apart, likelihood_apart;         // numbers from a table to the next; 0: there is one
    int64_t n_steps, n_states, by_step, transition_step;               // T, K, whether S is not 1; numbers of a step's table
    int64_t lacking;                                                   // set to 1 if there was no memory

    const T* initial(int64_t b) const { return log_initial + (initial_of ? initial_of[b] : b) * initial_apart; }
    const T* transition(int64_t b) const { return log_transition + (transition_of ? transition_of[b] : b) * transition_apart; }
    const T* likelihood(int64_t b) const { return log_likelihood + (likelihood_of ? likelihood_of[b] : b) * likelihood_apart; }
    int64_t length(int64_t b) const { return std::max<int64_t>(1, std::min(lengths[b], n_steps)); }
    int64_t at(int64_t place) const { return order ? order[place] : place; }
};

// The largest of n numbers; 0 if it is not finite
template <class T> T largest_finite(const T* x, int64_t n) {
    T top = x[0];
    for (int64_t j = 1; j < n; j++) top = x[j] > top ? x[j] : top;
    return std::fabs(top) < std::numeric_limits<T>::infinity() ? top : T(0);
}

// ---- one table for all steps --------------------------------------------------------------------------------------------

// A table's probabilities by panels of columns, [panel, row, column], those of its transpose, and its divisor
template <class T> struct Panels {
    T *forward, *backward;
    const T* logs = nullptr;  // where the table lies
    T top, least;

    // Where entry (i, j) lies, for panels of so many columns
    static INLINE int64_t at(const Sizes<T>& of, int64_t i, int64_t j) {
        const int64_t wide = std::min(of.wide, 2 * W<T>);
        return (j / wide * of.rows + i) * wide + j % wide;
    }
    void fill(const Sizes<T>& of, const T* log_table, T* row) {
        logs = log_table;
        top = largest_finite(log_table, of.k * of.k);
        least = 1;
        std::fill(forward, forward + of.rows * of.wide, T(0));
        std::fill(backward, backward + of.rows * of.wide, T(0));
        for (int64_t i = 0; i < of.k; i++) {
            unpack<0>(log_table + i * of.k, 1, of, -std::numeric_limits<T>::infinity(), row);
            for (int64_t j = 0; j < of.wide; j += W<T>) store(row + j, exp_not_positive<T>(load(row + j) - top));
            for (int64_t j = 0; j < of.k; j++) {
                forward[at(of, i, j)] = backward[at(of, j, i)] = row[j];
                least = row[j] < least ? row[j] : least;
            }
        }
    }
};

constexpr int64_t RENEW = 1024;  // steps after which counts are added to sums in double
constexpr int MOST = 4;          // sequences of a group

template <class T, int NV> struct OneTable {
    const Sizes<T> of;
    Panels<T> tables[MOST];
    int64_t used[MOST];  // the place of each member's table
    bool together;       // whether they are one
    T *row, *counted[MOST];
    double* sums[MOST];
    int64_t uncounted[MOST];

    static constexpr int64_t JV = NV == 1 ? 1 : 2;  // vectors of a panel
    static int64_t numbers(const Sizes<T>& of, int64_t n) { return of.pitch + 3 * n * of.rows * of.wide; }
    static int64_t doubles(const Sizes<T>& of, int64_t n) { return n * of.rows * of.wide; }

    OneTable(const Sizes<T>& of, Room<T>& room, Room<double>& wide, int64_t n) : of(of) {
        row = room.take(of.pitch);
        for (int64_t g = 0; g < n; g++) {
            for (T** table : {&tables[g].forward, &tables[g].backward, &counted[g]}) *table = room.take(of.rows * of.wide);
            sums[g] = wide.take(of.rows * of.wide);
        }
    }

    const Panels<T>& table(int64_t g) const { return tables[used[g]]; }
    T scale(const Lane<T>& a, int64_t) const { return table(a.member).top; }

    // The tables of a group's members; neighbours share one
    void take(const Chains<T>& x, const int64_t* group, int n) {
        together = true;
        for (int g = 0; g < n; g++) {
            const T* log_table = x.transition(group[g]);
            used[g] = g && x.transition(group[g - 1]) == log_table ? used[g - 1] : g;
            if (tables[used[g]].logs != log_table) tables[used[g]].fill(of, log_table, row);
            together &= used[g] == 0;
            std::fill(counted[g], counted[g] + of.rows * of.wide, T(0));
            std::fill(sums[g], sums[g] + of.rows * of.wide, 0.0);
            uncounted[g] = 0;
        }
    }

    template <int G, bool meets> INLINE void move(Lane<T>* lanes, int64_t) const {
        if (G > 1 && together) return push<G>(lanes);
        for (int g = 0; g < G; g++) push<1>(lanes + g);
    }

    // message <- weights over their sum, times the table. Sums do not wait for one another.
    template <int G> INLINE void push(Lane<T>* lanes) const {
        constexpr int U = G == 1 ? 4 : 1;
        const Panels<T>& of_all = table(lanes[0].member);
        const T* p = lanes[0].way > 0 ? of_all.forward : of_all.backward;
        const int64_t wide = NV ? NV * W<T> : of.wide;
        for (int64_t j = 0; j < wide; j += JV * W<T>) {
            V<T> s[U][G][JV] = {};
            for (int64_t i = 0; i < of.rows; i += U)
                for (int u = 0; u < U; u++, p += JV * W<T>)
                    for (int v = 0; v < JV; v++) {
                        const V<T> column = load(p + v * W<T>);
                        for (int g = 0; g < G; g++) s[u][g][v] += lanes[g].weights[i + u] * column;
                    }
            for (int g = 0; g < G; g++)
                for (int v = 0; v < JV; v++) {
                    V<T> sum = s[0][g][v];
                    if constexpr (U == 4) sum = (sum + s[1][g][v]) + (s[2][g][v] + s[3][g][v]);
                    store<T>(lanes[g].message + j + v * W<T>, sum * lanes[g].before);
                }
        }
    }

    // counted += left' right, over the moves of a block
    void count(const Lane<T>& a, int64_t steps) {
        const T *left = a.way > 0 ? a.own : a.met, *right = a.way > 0 ? a.met : a.own;
        const int64_t first = a.linked ? 0 : 1, wide = NV ? NV * W<T> : of.wide;
        T* to = counted[a.member];
        for (int64_t i = 0; i < of.rows; i += 4)
            for (int64_t j = 0; j < wide; j += JV * W<T>) {
                V<T> s[4][JV];
                for (int q = 0; q < 4; q++)
                    for (int v = 0; v < JV; v++) s[q][v] = load(to + (i + q) * wide + j + v * W<T>);
                for (int64_t n = first; n < steps; n++) {
                    const T *x = left + n * of.pitch + i, *y = right + n * of.pitch + j;
                    for (int q = 0; q < 4; q++)
                        for (int v = 0; v < JV; v++) s[q][v] += x[q] * load(y + v * W<T>);
                }
                for (int q = 0; q < 4; q++)
                    for (int v = 0; v < JV; v++) store<T>(to + (i + q) * wide + j + v * W<T>, s[q][v]);
            }
        uncounted[a.member] += steps;
        if (uncounted[a.member] >= RENEW) renew(a.member);
    }
    void renew(int64_t g) {
        for (int64_t e = 0; e < of.rows * of.wide; e++) {
            sums[g][e] += counted[g][e];
            counted[g][e] = 0;
        }
        uncounted[g] = 0;
    }

    // The expected moves of a member, [K, K]
    void write(int64_t g, T* moves) {
        renew(g);
        for (int64_t i = 0; i < of.k; i++)
            for (int64_t j = 0; j < of.k; j++)
                moves[i * of.k + j] = T(table(g).forward[Panels<T>::at(of, i, j)] * sums[g][i * of.wide + j]);
    }
};

// ---- a table for each step ----------------------------------------------------------------------------------------------

template <class T> struct TableByStep {
    const Sizes<T> of;
    T *table, *tops;  // one table, by rows; the largest logarithm of each
    const T* logs;    // [S, K, K]
    T* moves;         // [S, K, K]
    int64_t step, length;

    static int64_t numbers(const Sizes<T>& of, int64_t n_steps) { return of.pitch * of.rows + n_steps; }
    static int64_t doubles(const Sizes<T>&, int64_t) { return 0; }

    TableByStep(const Sizes<T>& of, Room<T>& room, Room<double>&, int64_t n_steps) : of(of) {
        table = room.take(of.pitch * of.rows);
        tops = room.take(n_steps);
    }

    void take(const Chains<T>& x, int64_t b, T* to) {
        logs = x.transition(b);
        moves = to;
        step = x.transition_step;
        length = x.length(b);
    }

    T scale(const Lane<T>&, int64_t t) const { return tops[t - 1]; }

    // Makes the table of the move from step t, or reads it again
    void read(int64_t t, bool again) {
        const int64_t size = of.k * of.k;
        if (again) return unpack<0>(moves + t * size, of.k, of, T(0), table);
        const T* log_table = logs + t * step;
        const T top = tops[t] = *std::max_element(log_table, log_table + size);
        unpack<0>(log_table, of.k, of, -std::numeric_limits<T>::infinity(), table);
        for (int64_t i = 0; i < of.k; i++)
            for (T* row = table + i * of.pitch; row < table + i * of.pitch + of.wide; row += W<T>)
                store(row, exp_not_positive<T>(load(row) - top));
        pack<0, T>(table, of.k, of, nullptr, moves + t * size);
    }

    template <int G, bool meets> void move(Lane<T>* lanes, int64_t n) {
        static_assert(G == 1, "lanes have tables of their own");
        Lane<T>& a = lanes[0];
        const int64_t t = a.t + a.way * n;  // the step that the message comes from
        if (a.way > 0 ? t + 1 < length : t > 0) {
            read(a.way > 0 ? t : t - 1, meets);
            a.way > 0 ? push_forward(a) : push_backward(a);
        }
    }
    void push_forward(Lane<T>& a) const {
        for (int64_t j = 0; j < of.wide; j += W<T>) {
            V<T> sum{};
            for (int64_t i = 0; i < of.k; i++) sum += a.weights[i] * load(table + i * of.pitch + j);
            store<T>(a.message + j, sum * a.before);
        }
    }
    void push_backward(Lane<T>& a) const {
        for (int64_t i = 0; i < of.k; i++) {
            V<T> sum{};
            for (int64_t j = 0; j < of.wide; j += W<T>) sum += load(table + i * of.pitch + j) * load(a.weights + j);
            a.message[i] = total<T>(sum) * a.before;
        }
    }

    void count(const Lane<T>& a, int64_t steps) {
        const T *left = a.way > 0 ? a.own : a.met, *right = a.way > 0 ? a.met : a.own;
        for (int64_t n = a.linked ? 0 : 1; n < steps; n++) {
            T* to = moves + (a.way > 0 ? a.t + n - 1 : a.t - n) * of.k * of.k;
            for (int64_t i = 0; i < of.k; i++)
                for (int64_t j = 0; j < of.k; j++) to[i * of.k + j] *= left[n * of.pitch + i] * right[n * of.pitch + j];
        }
    }
};

}  // namespace
