// Tables of Markov chains for sweeps: one for all steps, or one for each step. The plain form is `chains/markov/plain.py`.
//
// Tables are divided by their largest entry. One for all steps is laid out by panels of a few vectors, and its transpose too;
// members that lie beside each other have a vector for each entry. The expected moves of a block of steps are a matrix product, of the weights before the moves and of the
// records met, both over n_t; the table's entries are multiplied with the sums of all blocks at the end:
//
//   sum_t P(s_t = i, s_t+1 = j | x) = A(i, j) G(i, j),   G = sum_t a_t b_{t+1}' / n_{t+1}
//
// A table for each step is exponentiated into the place of its moves' posterior, which replaces it when they are counted.
#pragma once
#include <numeric>

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

// out (+)= sum over k of x_k y_k, [R, N vectors]: x_k are R numbers, or one vector for members beside each other. P partial
// sums, if there are few sums, do not wait for one another.
template <class T, int R, int N, int P, bool beside, bool adds>
__attribute__((noinline)) void sum_products(int64_t depth, const T* x, int64_t by_row, int64_t by_k, const T* y, int64_t pitch,
                                            T* out, int64_t apart) {
    V<T> s[P][R][N] = {};
    const T* const rows[4] = {x, x + by_row, x + 2 * by_row, x + 3 * by_row};
    for (int64_t k = 0; k < depth; k += P)
#pragma GCC unroll 4
        for (int p = 0; p < P; p++, y += pitch) {
            V<T> row[N];  // read once
#pragma GCC unroll 8
            for (int v = 0; v < (R > 1 ? N : 0); v++) row[v] = load(y + v * W<T>);
#pragma GCC unroll 4
            for (int r = 0; r < R; r++) {
                const T* one = rows[r] + (k + p) * by_k;
                const V<T> factor = beside ? load(one) : splat(*one);
#pragma GCC unroll 8
                for (int v = 0; v < N; v++) s[p][r][v] += factor * (R > 1 ? row[v] : load(y + v * W<T>));
            }
        }
#pragma GCC unroll 4
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
        for (int v = 0; v < N; v++) {
            T* to = out + r * apart + v * W<T>;
            V<T> sum = s[0][r][v];
            if constexpr (P == 4) sum = (sum + s[1][r][v]) + (s[2][r][v] + s[3][r][v]);
            store<T>(to, adds ? sum + load(to) : sum);
        }
}

constexpr int64_t RENEW = 1024;  // steps after which counts are added to sums in double
constexpr int MOST = 4;          // lanes of a group
template <int M> constexpr int64_t PANEL = M == 1 ? 3 : 8;  // vectors of the columns of a table that are read at once

// Calls use(N, j) for panels of N vectors from the j-th number of a row on: whole ones, and the rest
template <int N, class T, class Use> INLINE void by_panels(int64_t wide, int64_t j, bool rest, Use use) {
    for (; rest ? j + N * W<T> == wide : j + N * W<T> <= wide; j += N * W<T>) use(std::integral_constant<int, N>(), j);
    if constexpr (N > 1) by_panels<N - 1, T>(wide, j, true, use);
}

// The tables of a lane's members, divided by their largest entries, and their transposes
template <class T, int M> struct Panels {
    T *forward, *backward;
    const T* logs[M] = {};  // where they lie
    T top[M], least[M];

    // Where entry (i, j) of a member lies
    static INLINE int64_t at(const Sizes<T>& of, int64_t i, int64_t j, int m) {
        const int64_t place = j * M + m, first = place / (PANEL<M> * W<T>) * PANEL<M> * W<T>;
        return first * of.rows + i * std::min(of.wide - first, PANEL<M> * W<T>) + place - first;
    }
    void fill(const Sizes<T>& of, const T* log_table, int m, T* row) {
        if (logs[m] == log_table) return;
        for (T* table : {forward, backward})
            if (M == 1) std::fill(table, table + of.rows * of.wide, T(0));
        logs[m] = log_table;
        top[m] = largest_finite(log_table, of.k * of.k);
        least[m] = 1;
        for (int64_t i = 0; i < of.k; i++)
            for (int64_t j = 0; j < of.k; j += W<T>) {
                const int64_t n = std::min(of.k - j, W<T>);
                store<T>(row, exp_not_positive<T>(load_some(log_table + i * of.k + j, n) - top[m]));
                for (int64_t e = 0; e < n; e++) {
                    forward[at(of, i, j + e, m)] = backward[at(of, j + e, i, m)] = row[e];
                    least[m] = row[e] < least[m] ? row[e] : least[m];
                }
            }
    }
};

template <class T, int M> struct OneTable {
    const Sizes<T> of;
    Panels<T, M> tables[MOST];
    int64_t used[MOST];  // the place of each lane's table
    bool together;       // whether they are one
    T *row, *counted[MOST];
    double* sums[MOST];
    int64_t uncounted[MOST];

    static int64_t numbers(const Sizes<T>& of, int64_t n) { return W<T> + 3 * n * of.rows * of.wide; }
    static int64_t doubles(const Sizes<T>& of, int64_t n) { return n * of.rows * of.wide; }

    OneTable(const Sizes<T>& of, Room<T>& room, Room<double>& wide, int64_t n) : of(of) {
        row = room.take(W<T>);
        for (int64_t g = 0; g < n; g++) {
            for (T** table : {&tables[g].forward, &tables[g].backward, &counted[g]}) *table = room.take(of.rows * of.wide);
            sums[g] = wide.take(of.rows * of.wide);
        }
    }

    double scale(const Lane<T, M>& a, int m, int64_t t, int64_t n) const {
        return (n - (t == 0)) * double(tables[used[a.place]].top[m]);
    }
    T least(int64_t g, int m) const { return tables[used[g]].least[m]; }

    // The table of the m-th member of lane g; neighbours share one
    void take(const Chains<T>& x, int64_t b, int g, int m) {
        const T* log_table = x.transition(b);
        used[g] = M == 1 && g && tables[used[g - 1]].logs[0] == log_table ? used[g - 1] : g;
        together = used[g] == 0 && (g == 0 || together);
        tables[used[g]].fill(of, log_table, m, row);
        if (m) return;
        std::fill(counted[g], counted[g] + of.rows * of.wide, T(0));
        std::fill(sums[g], sums[g] + of.rows * of.wide, 0.0);
        uncounted[g] = 0;
    }

    template <int G, bool meets> INLINE void move(Lane<T, M>* lanes, int64_t) const {
        if (G > 1 && together) return push<G>(lanes);
        for (int g = 0; g < G; g++) push<1>(lanes + g);
    }

    // message <- weights times the table
    template <int G> INLINE void push(Lane<T, M>* lanes) const {
        const auto& table = tables[used[lanes[0].place]];
        const T *p = lanes[0].way > 0 ? table.forward : table.backward, *x = lanes[0].weights;
        T* to = lanes[0].message;
        const int64_t apart = G > 1 ? lanes[1].weights - x : 0, to_apart = G > 1 ? lanes[1].message - to : 0;
        by_panels<PANEL<M>, T>(of.wide, 0, false, [&](auto n, int64_t j) {
            constexpr int N = decltype(n)::value, P = G == 1 && M == 1 ? 4 : 1;
            sum_products<T, G, N, P, (M > 1), false>(of.rows, x, apart, M, p + j * of.rows, N * W<T>, to + j, to_apart);
        });
    }

    // counted += left' right, over the moves of a block
    void count(const Lane<T, M>& a, int64_t steps) {
        constexpr int R = M == 1 ? 4 : 1;
        const T *left = a.way > 0 ? a.own : a.met, *right = a.way > 0 ? a.met : a.own;
        by_panels<PANEL<M>, T>(of.wide, 0, false, [&](auto n, int64_t j) {
            for (int64_t i = 0; i < of.rows; i += R)
                sum_products<T, R, decltype(n)::value, 1, (M > 1), true>(steps, left + i * M, 1, of.pitch, right + j, of.pitch,
                                                                        counted[a.place] + i * of.wide + j, of.wide);
        });
        uncounted[a.place] += steps;
        if (uncounted[a.place] >= RENEW) renew(a.place);
    }
    void renew(int64_t g) {
        for (int64_t e = 0; e < of.rows * of.wide; e++) {
            sums[g][e] += counted[g][e];
            counted[g][e] = 0;
        }
        uncounted[g] = 0;
    }

    // The expected moves of a member, [K, K]
    void write(int64_t g, int m, int64_t, T* moves) {
        if (uncounted[g]) renew(g);
        for (int64_t i = 0; i < of.k; i++)
            for (int64_t j = 0; j < of.k; j++)
                moves[i * of.k + j] = T(tables[used[g]].forward[tables[0].at(of, i, j, m)] * sums[g][i * of.wide + j * M + m]);
    }
};

// ---- a table for each step ----------------------------------------------------------------------------------------------

template <class T> struct ByStepSize {
    int64_t n_steps;
    T* moves;  // of all sequences
};

template <class T> struct TableByStep {
    using Size = ByStepSize<T>;
    const Sizes<T> of;
    const Size size;
    T *table, *tops;  // one table, by rows; the largest logarithm of each
    const T* logs;    // [S, K, K]
    T* moves;         // [S, K, K]
    int64_t step, length;

    static int64_t numbers(const Sizes<T>& of, const Size& size) { return of.pitch * of.rows + size.n_steps; }
    static int64_t doubles(const Sizes<T>&, const Size&) { return 0; }

    TableByStep(const Sizes<T>& of, Room<T>& room, Room<double>&, const Size& size) : of(of), size(size) {
        table = room.take(of.pitch * of.rows);
        tops = room.take(size.n_steps);
    }

    void take(const Chains<T>& x, int64_t b, int, int) {
        logs = x.transition(b);
        moves = size.moves + b * (x.n_steps - 1) * of.k * of.k;
        step = x.transition_step;
        length = x.length(b);
    }

    double scale(const Lane<T, 1>&, int, int64_t t, int64_t n) const {
        return std::accumulate(tops + std::max<int64_t>(t - 1, 0), tops + t + n - 1, 0.0);
    }

    // Makes the table of the move from step t, or reads it again
    void read(int64_t t, bool again) {
        const int64_t size = of.k * of.k;
        if (again) return unpack<0, T, 1>({{moves + t * size}, {of.k}}, of.k, of, T(0), table);
        const T* log_table = logs + t * step;
        const T top = tops[t] = *std::max_element(log_table, log_table + size);
        unpack<0, T, 1>({{log_table}, {of.k}}, of.k, of, -std::numeric_limits<T>::infinity(), table);
        for (int64_t i = 0; i < of.k; i++)
            for (T* row = table + i * of.pitch; row < table + i * of.pitch + of.wide; row += W<T>)
                store(row, exp_not_positive<T>(load(row) - top));
        pack<0, T, 1>(table, of.k, of, nullptr, {{moves + t * size}, {of.k}});
    }

    template <int G, bool meets> void move(Lane<T, 1>* lanes, int64_t n) {
        static_assert(G == 1, "lanes have tables of their own");
        Lane<T, 1>& a = lanes[0];
        const int64_t t = a.t + a.way * n;  // the step that the message comes from
        if (a.way > 0 ? t + 1 < length : t > 0) {
            read(a.way > 0 ? t : t - 1, meets);
            a.way > 0 ? push_forward(a) : push_backward(a);
        }
    }
    void push_forward(Lane<T, 1>& a) const {
        for (int64_t j = 0; j < of.wide; j += W<T>) {
            V<T> sum{};
            for (int64_t i = 0; i < of.k; i++) sum += a.weights[i] * load(table + i * of.pitch + j);
            store<T>(a.message + j, sum);
        }
    }
    void push_backward(Lane<T, 1>& a) const {
        for (int64_t i = 0; i < of.k; i++) {
            V<T> sum{};
            for (int64_t j = 0; j < of.wide; j += W<T>) sum += load(table + i * of.pitch + j) * load(a.weights + j);
            a.message[i] = total<T>(sum);
        }
    }

    void write(int64_t, int, int64_t, T*) const {}
    T least(int64_t, int) const { return 0; }
    void count(const Lane<T, 1>& a, int64_t steps) {
        const T *left = a.way > 0 ? a.own : a.met, *right = a.way > 0 ? a.met : a.own;
        for (int64_t n = a.linked ? 0 : 1; n < steps; n++) {
            T* to = moves + (a.way > 0 ? a.t + n - 1 : a.t - n) * of.k * of.k;
            for (int64_t i = 0; i < of.k; i++)
                for (int64_t j = 0; j < of.k; j++) to[i * of.k + j] *= left[n * of.pitch + i] * right[n * of.pitch + j];
        }
    }
};

}  // namespace
