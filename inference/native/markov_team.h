// What sweeps of Markov chains need beside tables: where results go, and the memory and the lanes of a group of sequences.
#pragma once
#include "markov.h"

namespace {

// Results of B sequences
template <class T> struct Results {
    T *total, *state, *further;  // [B], [B, T, K], and increments [B, T] or moves [B, S, K, K]
    int64_t* failed;             // [B]
    int64_t further_size;        // of a sequence
};

template <class T> void clear_beyond(const Chains<T>& x, const Results<T>& to, int64_t b, bool smoothing) {
    const int64_t n = x.n_steps, length = x.length(b);
    std::fill(to.state + (b * n + length) * x.n_states, to.state + (b + 1) * n * x.n_states, T(0));
    if (!smoothing) std::fill(to.further + b * n + length, to.further + (b + 1) * n, T(0));
    else if (x.by_step) {
        const int64_t size = x.n_states * x.n_states;
        std::fill(to.further + b * to.further_size + (length - 1) * size, to.further + (b + 1) * to.further_size, T(0));
    }
}

constexpr int64_t KEPT = 1 << 23;  // bytes of likelihoods that are kept between two sweeps, the size of a cache

// What sweeps G sequences at once: memory, tables, and two lanes for each
template <class T, int NV, int G, class Tables> struct Team {
    Chains<T>& x;
    const Sizes<T> of;
    const int64_t kept;  // steps of each sequence whose likelihoods are kept
    Room<T> room;
    Room<double> sums;
    Tables tables;
    Sweep<T, NV, Tables> sweep;
    Lane<T> up[G], down[G];
    T* first;

    // For sweeps over so many steps at most; 0: likelihoods are not read twice. The tables are made for `size`.
    template <class Size>
    Team(Chains<T>& x, const Sizes<T>& of, const Size& size, int64_t steps)
        : x(x), of(of), kept(G * steps * (of.pitch + 1) * int64_t(sizeof(T)) <= KEPT ? steps : 0),
          room(G * (2 * sweep.numbers(of) + kept * (of.pitch + 1)) + Tables::numbers(of, size) + of.pitch,
               G * (2 * sweep.TABLES + 5) + 2),
          sums(Tables::doubles(of, size), G), tables(of, room, sums, size), sweep{of, tables} {
        for (int g = 0; g < G; g++) {
            up[g] = sweep.lane(room, 1, g);
            down[g] = sweep.lane(room, -1, g);
            if (!kept) continue;
            up[g].likes = down[g].likes = room.take(kept * of.pitch);
            up[g].tops = down[g].tops = room.take(kept);
        }
        first = room.take(of.pitch);
    }
    // Whether there was memory; if not, the caller is told
    bool stands() {
        if (room.full() || sums.full()) x.lacking = 1;
        return !room.full() && !sums.full();
    }
    bool sure(int g) const { return up[g].sure && down[g].sure; }

    // The lanes of a member that sweep steps low <= t < high: up from P(s_1), and down from what is unknown
    void begin(int g, int64_t b, T* state, int64_t low, int64_t high) {
        const T top = largest_finite(x.initial(b), of.k);
        unpack<0>(x.initial(b), 1, of, -std::numeric_limits<T>::infinity(), first);
        for (int64_t j = 0; j < of.wide; j += W<T>) store(first + j, exp_not_positive<T>(load(first + j) - top));
        for (Lane<T>* a : {&up[g], &down[g]}) {
            a->log_likelihood = x.likelihood(b);
            a->state = state + b * x.n_steps * of.k;
            a->increment = nullptr;
            a->low = low;
        }
        up[g].first = top;
        sweep.start(up[g], low, low ? nullptr : first);
        sweep.start(down[g], high - 1, static_cast<const T*>(nullptr));
    }
};

}  // namespace
