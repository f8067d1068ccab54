// Groups of sequences, or of parts of long ones, that are swept together: their memory and lanes, and where results go.
#pragma once
#include "markov.h"

namespace {

// Results of B sequences, or of parts of them
template <class T> struct Results {
    T *total, *state, *further;  // [B], [B, T, K], and increments [B, T] or moves [B, S, K, K]
    int64_t* failed;             // [B]: -1, or 0 where digits may have been lost
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

// Parts of sequences: steps low <= t < high, and the numbers of the meetings at both ends, or -1 where a sequence begins or
// ends. A meeting is the messages and the weights that they were pushed from, forward and backward, [2, 2, K].
template <class T> struct Parts {
    const int64_t* of;  // [n, 5]; null: whole sequences
    const T* meetings;
    T* ended;  // the last messages of the parts
};
template <class T> struct Part {
    int64_t sequence, low, high;
    const T *before, *after;
};

// An approach sweeps parts to their middles, as if nothing was known before and after, for the messages there.
enum Work { FILTER, SMOOTH, APPROACH };

constexpr int64_t KEPT = 1 << 23;  // bytes of rows that are kept between two sweeps, the size of a cache

// What sweeps G lanes at once in each direction, with M members each
template <class T, int NV, int G, class Tables, int M = 1> struct Team {
    Chains<T>& x;
    const Results<T>& to;
    const Sizes<T> of;
    const int64_t k, rows;  // that each lane keeps
    const bool keeps;
    Room<T> room;
    Room<double> sums;
    Tables tables;
    Sweep<T, NV, Tables, M> sweep;
    Lane<T, M> up[G], down[G];
    T* first;

    // For sweeps over so many steps at most; 0: no lane meets another. The tables are made for `size`.
    template <class Size>
    Team(Chains<T>& x, const Results<T>& to, const Sizes<T>& of, const Size& size, int64_t steps)
        : x(x), to(to), of(of), k(of.k), rows((steps + 1) / 2),
          keeps(steps > 0 && 4 * G * rows * of.pitch * int64_t(sizeof(T)) <= KEPT),
          room(2 * G * sweep.numbers(of, keeps ? rows : of.block) + Tables::numbers(of, size) + of.pitch,
               2 * G * sweep.TABLES + 3 * G + 4),
          sums(Tables::doubles(of, size), G + 1), tables(of, room, sums, size), sweep{of, tables, keeps} {
        for (int g = 0; g < G; g++) {
            sweep.place(up[g], room, g, 1, keeps ? rows : of.block);
            sweep.place(down[g], room, g, -1, keeps ? rows : of.block);
        }
        first = room.take(of.pitch);
    }

    Part<T> part(const Parts<T>& parts, int64_t at) const {
        if (!parts.of) return {x.at(at), 0, x.length(x.at(at)), nullptr, nullptr};
        const int64_t* p = parts.of + 5 * at;
        const auto meeting = [&](int64_t number) { return number < 0 ? nullptr : parts.meetings + number * 4 * k; };
        return {p[0], p[1], p[2], meeting(p[3]), meeting(p[4])};
    }

    // The i-th member of a group, forward and backward
    void begin(int i, const Part<T>& part, Work work, bool idle) {
        const int64_t b = part.sequence, size = idle ? 0 : part.high - part.low, half = work == FILTER ? size : size / 2;
        const T *initial = x.initial(b), top = largest_finite(initial, k);
        for (int64_t j = 0; j < k; j++) first[j] = exp_not_positive<T>(T(initial[j] - top));
        Member<T> one{x.likelihood(b), to.state + b * x.n_steps * k, nullptr, part.low, part.high, size - half, top};
        down[i / M].of[i % M] = one;
        if (work == FILTER) one.increment = to.further + b * x.n_steps;
        one.records = half;
        up[i / M].of[i % M] = one;
        sweep.start(up[i / M], i % M, part.low ? part.before : first);
        sweep.start(down[i / M], i % M, part.after ? part.after + 2 * k : nullptr);
        tables.take(x, b, i / M, i % M);
    }

    // Sweeps n members in some of the lanes
    template <int lanes> void sweep_some(const Part<T>* parts, int n, Work work) {
        for (int i = 0; i < lanes * M; i++) begin(i, parts[std::min(i, n - 1)], work, i >= n);
        if (work == SMOOTH) sweep.template smooth<lanes>(up, down);
        else sweep.template advance<lanes, false>(up, down);
    }

    // Results of the i-th member
    void write(int i, int64_t place, Work work) {
        const Member<T>&forward = up[i / M].of[i % M], &backward = down[i / M].of[i % M];
        to.total[place] = T(forward.evidence.value());
        if (work == SMOOTH) tables.write(i / M, i % M, place, to.further + place * to.further_size);
        // a filter does not meet what comes later, but no step can need what it dropped if tables mix
        const bool sure = forward.sure && backward.sure && (work == SMOOTH || tables.least(i / M, i % M) >= Limits<T>::mixes);
        to.failed[place] = sure ? -1 : 0;
    }
    // The last messages of the members of a lane; and the moves into the parts that follow are counted
    void write_ends(int g, const Part<T>* parts, int n, T* ended, Work work) {
        const T* next[M] = {};
        for (int m = 0; m < n; m++) {
            sweep.last(up[g], m, ended + m * 4 * k);
            sweep.last(down[g], m, ended + m * 4 * k + 2 * k);
            if (parts[m].after) next[m] = parts[m].after + 3 * k;
        }
        if (work == SMOOTH) sweep.join(up[g], next);
    }

    // Sweeps sequences or parts of a range. Then calls done(b) for each sequence.
    template <class Done> void run(int64_t from, int64_t end, Work work, const Parts<T>& parts, Done done) {
        if (room.full() || sums.full()) {
            x.lacking = 1;
            return;
        }
        for (int64_t at = from; at < end;) {
            const int n = end - at < G * M ? std::min<int64_t>(M, end - at) : G * M;
            Part<T> some[G * M];
            for (int i = 0; i < n; i++) some[i] = part(parts, at + i);
            if (n > M) sweep_some<G>(some, n, work);
            else sweep_some<1>(some, n, work);
            for (int i = 0; parts.of && i < n; i += M)
                write_ends(i / M, some + i, std::min(M, n - i), parts.ended + (at + i) * 4 * k, work);
            for (int i = 0; work != APPROACH && i < n; i++) {
                const int64_t b = some[i].sequence;
                write(i, parts.of ? at + i : b, work);
                if (!parts.of) done(b);
                if (!some[i].after) clear_beyond(x, to, b, work == SMOOTH);
            }
            at += n;
        }
    }
};

}  // namespace
