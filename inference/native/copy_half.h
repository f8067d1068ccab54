// The steps of sweeps of copy chains over one half of a sequence; `copy.h` has the equations.
#pragma once
#include <algorithm>

#include "copy_logs.h"

namespace {

constexpr double FLOOR = 1e-150;  // the least belief that is not 0; its product with the least weight is a normal number
constexpr double MASSES[] = {1e-6, 1e6};
enum Verdict { FINE, RISKY, IMPOSSIBLE };

// A message in registers, or in memory if there are more than two vectors
template <int NV> struct Message {
    V<double> x[NV];
    INLINE V<double> at(int64_t v) const { return x[v]; }
    INLINE void set(int64_t v, V<double> y) { x[v] = y; }
};
template <> struct Message<0> {
    double* x;
    INLINE V<double> at(int64_t v) const { return load(x + v * W<double>); }
    INLINE void set(int64_t v, V<double> y) { store(x + v * W<double>, y); }
};

// Steps begin..end of a sequence: the first half, the second, or all
template <class T, class Tables, int NV> struct Half {
    using D = double;
    Tables tables;
    Wanted<T> out;
    int64_t k, p, rows, begin = 0, end = 0;
    D *record = nullptr, *mass = nullptr, *scale = nullptr, *kept = nullptr, *drawn = nullptr, *spare = nullptr;
    Evidence evidence, of_futures;
    Verdict verdict = FINE;
    int64_t failed = -1, t0 = 0;  // t0: the first step of the block
    bool trusted = true;

    INLINE int64_t vectors() const { return NV ? NV : p / W<D>; }
    INLINE D* row(int64_t r) const { return record + r * p; }
    int64_t blocks() const { return (end - begin + rows - 1) / rows; }
    int64_t size(int64_t block) const { return std::min(rows, end - begin - block * rows); }

    static int64_t numbers(int64_t rows, int64_t p, int64_t blocks) {
        return Tables::numbers(rows, p) + (rows + 1) * p + 2 * (rows + 2 * W<D>) + (blocks + 5) * p + 128;
    }
    APART void place(Room<D>& room, int64_t blocks) {
        tables.place(room, rows, p);
        record = room.take((rows + 1) * p), mass = room.take(rows + 2 * W<D>), scale = room.take(rows + 2 * W<D>);
        kept = room.take((blocks + 1) * p), drawn = room.take(p), spare = room.take(2 * p);
    }
    APART void restart(int64_t from, int64_t to) {
        begin = from, end = to, evidence = of_futures = Evidence(), verdict = FINE, failed = -1, trusted = true;
        std::fill(drawn, drawn + p, 0.0);
    }

    // A message that begins a block, in row r of the records or, beside them, in spare memory
    Message<NV> read(const D* from, D* to) const {
        std::copy(from, from + p, to);
        Message<NV> m;
        if constexpr (NV == 0) m.x = to;
        else
            for (int64_t v = 0; v < NV; v++) m.set(v, load(to + v * W<D>));
        return m;
    }
    void write(const Message<NV>& m, D by, D* to) const {
        for (int64_t v = 0, n = vectors(); v < n; v++) store(to + v * W<D>, m.at(v) * by);
    }
    // The message of the next row: in memory it is made in its place, and registers are stored there by `record_in`.
    INLINE Message<NV> place_of(int64_t r) const {
        Message<NV> m{};
        if constexpr (NV == 0) m.x = row(r);
        return m;
    }
    INLINE void record_in(int64_t r, const Message<NV>& m) const {
        if constexpr (NV > 0)
            for (int64_t v = 0; v < NV; v++) store(row(r) + v * W<D>, m.at(v));
    }

    // The belief after step r from that before it, not yet scaled; returns its sum.
    INLINE D weigh(int64_t r, const Message<NV>& m, Message<NV>& to) {
        if (__builtin_expect(!tables.calm[r], 0)) {
            Message<NV> before = m, after = to;
            const D total = weigh_carefully(r, before, after);
            to = after;
            return total;
        }
        const auto weights = tables.at(r);
        const V<D> before = splat(mass[r]);
        V<D> sum{};
        for (int64_t v = 0, n = vectors(); v < n; v++) {
            const auto [fresh, held] = weights.at(v * W<D>);
            const V<D> x = held * m.at(v) + fresh * before;
            to.set(v, x);
            sum += x;
        }
        return sum_of<D>(sum);
    }
    // The same, which keeps beliefs from underflow, and looks for a lost state that gains by being held.
    APART D weigh_carefully(int64_t r, const Message<NV>& m, Message<NV>& to) {
        using L = Limits<T>;
        const auto weights = tables.at(r);
        const D before = mass[r];
        V<D> sum{};
        for (int64_t v = 0, n = vectors(); v < n; v++) {
            const auto [fresh, held] = weights.careful(v * W<D>);
            to.set(v, held * m.at(v) + fresh * before);
            sum += to.at(v);
        }
        const D total = sum_of<D>(sum), floor = FLOOR * total, lost = L::lost * total;
        Bits<D> rises{};
        for (int64_t v = 0, n = vectors(); v < n; v++) {
            const auto [fresh, held] = weights.careful(v * W<D>);
            const V<D> x = to.at(v), held_on = held * m.at(v);
            rises |= (m.at(v) < L::lost * before) & (x >= lost) & (held_on > L::share * before * fresh);
            to.set(v, (x < floor) & (x > 0) ? splat(floor) : x);
        }
        for (int64_t j = 0; j < W<D>; j++)
            if (rises[j]) verdict = std::max(verdict, RISKY);
        return total;
    }
    // Keeps the sum of a belief near 1.
    INLINE void settle(int64_t r, D total, Message<NV>& m) {
        D by = 1;
        if (__builtin_expect(!(total > MASSES[0] && total < MASSES[1]), 0)) {
            by = judge(r, total);
            scale_by(by, m);
            total = 1;
        }
        scale[r] = by, mass[r + 1] = total;
    }
    APART D judge(int64_t r, D total) {
        if (!(total > 0 && total < INFINITY)) {
            if (verdict != IMPOSSIBLE) failed = t0 + r, verdict = IMPOSSIBLE;
            return 1;
        }
        if (total < Limits<T>::least * mass[r]) verdict = std::max(verdict, RISKY);
        evidence.gain(0, total);
        return 1 / total;
    }
    INLINE void forward(int64_t r, Message<NV>& m) {
        Message<NV> to = place_of(r + 1);
        settle(r, weigh(r, m, to), to);
        record_in(r + 1, to);
        m = to;
    }
    // The future of the previous step, without beliefs
    INLINE void retreat(int64_t r, Message<NV>& m) {
        const auto weights = tables.at(r);
        V<D> sum{};
        for (int64_t v = 0, n = vectors(); v < n; v++) sum += weights.at(v * W<D>).fresh * m.at(v);
        V<D> all = everywhere<D>(sum, [](V<D> x, V<D> y) { return x + y; }), by = splat(D(1));
        const D total = all[0];
        if (__builtin_expect(!(total > MASSES[0] && total < MASSES[1]), 0)) {
            trusted &= total > 0 && total < INFINITY;
            of_futures.gain(0, trusted ? total : 1);
            by = splat(1 / total), all = splat(D(1));
        }
        Message<NV> to = place_of(r);
        Bits<D> beyond{};
        for (int64_t v = 0, n = vectors(); v < n; v++) {
            const V<D> x = weights.at(v * W<D>).held * m.at(v) * by + all;
            beyond |= !(x * Limits<T>::calm < all);
            to.set(v, x);
        }
        too_large |= beyond;
        record_in(r, to);
        m = to;
    }
    Bits<D> too_large{};  // lanes with a future that is

    // The posterior of step r; returns <fresh, future>. `by`: the scale of the belief after it, beside that before it.
    template <class B, class A, class F> INLINE D meet(int64_t r, const B& before, const A& after, const F& future, D by) {
        const auto weights = tables.at(r);
        const int64_t t = t0 + r, n = vectors(), width = k;  // beside stores, members would be read again and again
        const bool counts = out.drawn, sums_held = out.held && out.held_width == 1;
        const auto at = [=](T* table) { return table ? table + t * width : nullptr; };
        T *const state = at(out.state), *const drawn_now = at(out.fresh), *const held_now = sums_held ? nullptr : at(out.held);
        D* const sums = drawn;
        V<D> reached{}, redrawn{}, stayed{};
        for (int64_t v = 0; v < n; v++) {
            const auto [fresh, held] = weights.at(v * W<D>);
            reached += after.at(v) * future.at(v);
            redrawn += fresh * future.at(v);
            if (sums_held) stayed += held * before.at(v) * future.at(v);
        }
        const D met = sum_of<D>(reached), inverse = 1 / met, all_drawn = sum_of<D>(redrawn);
        const D share = by * inverse, of_fresh = mass[r] * share;
        if (out.redraw) out.redraw[t] = T(std::fmin(all_drawn * of_fresh, 1.0));
        if (sums_held) out.held[t] = T(sum_of<D>(stayed) * share);
        if (out.state)
            for (int64_t v = 0, j = 0; v < n; v++, j += W<D>) {
                store_narrow(state + j, quotient(after.at(v) * future.at(v), met, inverse), width - j);
                if (counts) store(sums + j, load(sums + j) + weights.at(j).fresh * future.at(v) * of_fresh);
            }
        if (out.fresh)
            for (int64_t v = 0, j = 0; v < n; v++, j += W<D>) {
                const auto [fresh, held] = weights.at(j);
                store_narrow(drawn_now + j, fresh * future.at(v) * of_fresh, width - j);
                if (!sums_held) store_narrow(held_now + j, held * before.at(v) * future.at(v) * share, width - j);
            }
        return all_drawn;
    }
    // The future of the previous step, where beliefs are recorded; 0 for states that cannot be reached
    INLINE void meet_beliefs(int64_t r, Message<NV>& m) {
        const Message<0> before = {row(r)}, after = {row(r + 1)};
        const V<D> by = splat(scale[r]), all = splat(meet(r, before, after, m, scale[r]) * scale[r]);
        const auto weights = tables.at(r);
        for (int64_t v = 0, n = vectors(); v < n; v++) {
            const V<D> x = weights.at(v * W<D>).held * m.at(v) * by + all;
            m.set(v, before.at(v) == 0 ? V<D>{} : x);
        }
    }
    // The belief after a step, where futures are recorded
    INLINE void meet_futures(int64_t r, Message<NV>& m, Message<NV>& to) {
        const D total = weigh(r, m, to);
        meet(r, m, to, Message<0>{row(r + 1)}, D(1));
        settle(r, total, to);
        std::swap(m, to);
    }
    void fill(int64_t block) {
        t0 = begin + block * rows;
        tables.fill(t0, size(block));
    }
    // Adds the steps of a block to log p(x).
    void gain(int64_t n, Evidence& sum) const {
        for (int64_t r = 0; r < n; r++) sum.add(tables.top[r]);
    }
    void end_forward(int64_t block, const Message<NV>& m) {
        const int64_t n = size(block);
        gain(n, evidence);
        evidence.gain(0, mass[n]);
        write(m, 1 / mass[n], kept + (block + 1) * p);
    }
    void end_retreat(int64_t block, const Message<NV>& m) {
        gain(size(block), of_futures);
        write(m, 1, kept + block * p);
        for (int64_t j = 0; j < W<D>; j++) trusted &= !too_large[j];
        too_large = Bits<D>{};
    }
    void end_meeting(int64_t n, Message<NV>& m) {
        gain(n, evidence);
        evidence.gain(0, mass[n]);
        scale_by(1 / mass[n], m);
    }
    void scale_by(D by, Message<NV>& m) const {
        for (int64_t v = 0, n = vectors(); v < n; v++) m.set(v, m.at(v) * by);
    }
    // Beside a message in spare memory, room for the next one
    Message<NV> beside(const Message<NV>& m) const {
        Message<NV> other{};
        if constexpr (NV == 0) other.x = spare + (m.x == spare ? p : 0);
        return other;
    }

    // The results of a filter for a block: beliefs, redraws and log-increments
    template <class S, class I> APART void write_filtered(int64_t n, S* state, S* redraw, I* increment) {
        for (int64_t r = 0; r < n; r++) {
            const D inverse = 1 / mass[r + 1];
            V<D> fresh{};
            for (int64_t v = 0, j = 0; v < vectors(); v++, j += W<D>) {
                fresh += tables.at(r).at(j).fresh;
                store_narrow(state + (t0 + r) * k + j, load(row(r + 1) + j) * inverse, k - j);
            }
            redraw[t0 + r] = S(std::fmin(sum_of<D>(fresh) * mass[r] * scale[r] * inverse, 1.0));
        }
        for (int64_t r = 0; r < n; r += W<D>) {
            const V<D> gained = log<D>(load(mass + r + 1) / (load(mass + r) * load(scale + r))) + load(tables.top + r);
            store_narrow(increment + t0 + r, gained, n - r);
        }
    }
};

}  // namespace
