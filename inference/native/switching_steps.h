// Steps of switching linear models, of one normal belief about the latents at a time.
//
//   s_1 | z ~ N(m_z, P_z),   s_t+1 | z ~ N(A_z s_t + c_z, Q_z),   x_t | z ~ N(C_z s_t + d_z, R_z)
//
//   predict   m <- A m + c,   P <- A P A' + Q
//   update    S = C P C' + R = H H',   K = P C' S^-1,   m <- m + K v with v = x - d - C m,
//             P <- (I - K C) P (I - K C)' + K R K',   log p(x) = -(|H^-1 v|^2 + log det S + F log 2 pi) / 2
//
// What is missing leaves the rows that it would have had. The plain forms are `predict` and `update` in
// `chains/switching_gaussian/plain.py`.
#pragma once
#include "matrices.h"

namespace {

using Table = Matrix<double>;
constexpr double LOG_2PI = 1.83787706640934548356, IMPOSSIBLE = -std::numeric_limits<double>::infinity();
constexpr double NONE = 1e-12;  // of a direction's length, that others explain but for rounding

// The tables of K regimes, L latents, F features and J sticks, as Python gives them: contiguous, in the order of `Tables`
struct Given {
    int64_t regimes, latents, features, sticks;
    const double *log_initial, *log_transition, *initial_mean, *initial_covariance, *transition, *transition_offset;
    const double *state_noise, *emission, *emission_offset, *observation_noise, *recurrence, *recurrence_offset;
};

struct Belief {
    double* mean;
    Table covariance;
};
INLINE void copy(Belief from, Belief to) {
    std::copy_n(from.mean, stride_of<double>(to.covariance.columns), to.mean);
    copy(from.covariance, to.covariance);
}

// A square matrix or a row for each of some regimes or beliefs
struct Stack {
    Table all;
    int64_t rows;
    INLINE Table operator[](int64_t z) const { return all.part(z * rows, rows, 0, all.columns); }
};
INLINE int64_t stack_room(int64_t n, int64_t rows, int64_t columns) { return room_of<double>(n * rows, columns); }
inline Stack stack(Room<double>& room, int64_t n, int64_t rows, int64_t columns) {
    return {matrix(room, n * rows, columns), rows};
}

// Of a table [n, rows, columns], or of one [n, columns, rows] with `turned`
inline Stack stack(Room<double>& room, const double* table, int64_t n, int64_t rows, int64_t columns, bool turned = false) {
    const Stack made = stack(room, n, rows, columns);
    for (int64_t z = 0; z < n; z++) {
        const double* from = table + z * rows * columns;
        turned ? read(from, 1, rows, made[z]) : read(from, columns, 1, made[z]);
    }
    return made;
}

struct Beliefs {
    Stack means, covariances;
    INLINE Belief operator[](int64_t i) const { return {means.all[i], covariances[i]}; }
};
INLINE int64_t beliefs_room(int64_t n, int64_t L) { return room_of<double>(n, L) + stack_room(n, L, L); }
inline Beliefs beliefs(Room<double>& room, int64_t n, int64_t L) { return {stack(room, n, 1, L), stack(room, n, L, L)}; }

// The tables of a model, each row with room for full vectors
class Model {
    Room<double> room;

public:
    const Given& given;
    const int64_t K, L, F, J;
    Beliefs initial;
    Stack move, turned, offset, state_noise, emission, noise;  // `turned`: A'
    Table recurrence;

    explicit Model(const Given& g)
        : room(beliefs_room(g.regimes, g.latents) + 3 * stack_room(g.regimes, g.latents, g.latents) +
                   room_of<double>(g.regimes, g.latents) + stack_room(g.regimes, g.features, g.latents) +
                   stack_room(g.regimes, g.features, g.features) + room_of<double>(g.sticks, g.latents), 9),
          given(g), K(g.regimes), L(g.latents), F(g.features), J(g.sticks) {
        if (full()) return;
        initial = {stack(room, g.initial_mean, K, 1, L), stack(room, g.initial_covariance, K, L, L)};
        move = stack(room, g.transition, K, L, L);
        turned = stack(room, g.transition, K, L, L, true);
        offset = stack(room, g.transition_offset, K, 1, L);
        state_noise = stack(room, g.state_noise, K, L, L);
        emission = stack(room, g.emission, K, F, L);
        noise = stack(room, g.observation_noise, K, F, F);
        recurrence = stack(room, g.recurrence, 1, J, L).all;
    }
    bool full() const { return room.full(); }
};

// What a step writes over. After an update of n rows: the factor H, the innovation H^-1 v, the emission, H^-1 C P, and I - K C
struct Work {
    Room<double> room;
    Stack emission, noise, shown, gain, noisy, root;
    Table rest, turned, half, square, seen;
    double* gap;

    Work(int64_t R, int64_t L) : room(4 * room_of<double>(R, L) + 2 * room_of<double>(R, R) + 4 * room_of<double>(L, L) + R, 11) {
        if (full()) return;
        for (Stack* one : {&emission, &shown, &gain, &noisy}) *one = stack(room, 1, R, L);
        for (Stack* one : {&noise, &root}) *one = stack(room, 1, R, R);
        for (Table* one : {&rest, &turned, &half, &square}) *one = matrix(room, L, L);
        gap = room.take(R);
    }
    bool full() const { return room.full(); }
};
INLINE Table first_rows(Stack of, int64_t n) { return of.all.part(0, n, 0, of.all.columns); }

INLINE void mirror(Table table) {
    for (int64_t i = 1; i < table.rows; i++)
        for (int64_t j = 0; j < i; j++) table[j][i] = table[i][j];
}

// out += turned' row, of a matrix whose transposed is given
INLINE void add_times(const double* row, Table turned, double* out) {
    for (int64_t j = 0; j < turned.rows; j++) add_row(row[j], turned[j], out, turned.columns);
}

// The root Z of a covariance, as Z': a row of 0 for each direction it has not
inline void root_of(Table covariance, Table turned) {
    const int64_t n = turned.rows;
    for (int64_t j = 0; j < n; j++) {
        double pivot = covariance[j][j];
        for (int64_t k = 0; k < j; k++) pivot -= turned[k][j] * turned[k][j];
        std::fill_n(turned[j], turned.stride, 0.0);
        if (!(pivot > NONE * covariance[j][j])) continue;
        add_row(1.0, covariance[j], turned[j], n);
        for (int64_t k = 0; k < j; k++) add_row(-turned[k][j], turned[k], turned[j], n);
        scale_row(1 / std::sqrt(pivot), turned[j], n);
        std::fill_n(turned[j], j, 0.0);
    }
}

inline void predict(const Model& p, int64_t z, Belief before, Work& work, Belief after) {
    std::copy_n(p.offset.all[z], p.offset.all.stride, after.mean);
    add_times(before.mean, p.turned[z], after.mean);
    product(p.move[z], before.covariance, work.half);
    product(work.half, p.turned[z], after.covariance);
    add(p.state_noise[z], after.covariance);
    mirror(after.covariance);
}

// Of n rows with this emission and noise, of which `work.gap` has x - d. In place; log p(x), NaN if there is no such density
inline double update(Table emission, Table noise, Belief belief, Work& work) {
    const int64_t n = emission.rows, L = emission.columns;
    work.seen = emission;
    identity(work.rest);
    if (n == 0) return 0;
    const Table shown = first_rows(work.shown, n), gain = first_rows(work.gain, n), noisy = first_rows(work.noisy, n);
    const Table root = first_rows(work.root, n);
    product(emission, belief.covariance, shown);
    for (int64_t i = 0; i < n; i++) {
        work.gap[i] -= dot(emission[i], belief.mean, L);
        for (int64_t j = 0; j <= i; j++) root[i][j] = noise[i][j] + dot(shown[i], emission[j], L);
    }
    const double log_det = factor(root);
    if (std::isnan(log_det)) return log_det;
    double square = 0;
    for (int64_t i = 0; i < n; i++) {
        for (int64_t k = 0; k < i; k++) work.gap[i] -= root[i][k] * work.gap[k];
        work.gap[i] /= root[i][i];
        square += work.gap[i] * work.gap[i];
    }
    solve(root, shown);
    for (int64_t i = 0; i < n; i++) add_row(work.gap[i], shown[i], belief.mean, L);
    copy(shown, gain);
    solve_transposed(root, gain);
    for (int64_t i = 0; i < L; i++)
        for (int64_t k = 0; k < n; k++) add_row(-gain[k][i], emission[k], work.rest[i], L);
    for (int64_t i = 0; i < L; i++)
        for (int64_t j = 0; j < L; j++) work.turned[j][i] = work.rest[i][j];
    product(work.rest, belief.covariance, work.half);
    product(work.half, work.turned, belief.covariance);
    product(noise, gain, noisy);
    for (int64_t k = 0; k < n; k++)
        for (int64_t i = 0; i < L; i++) add_row(gain[k][i], noisy[k], belief.covariance[i], L);
    mirror(belief.covariance);
    return -0.5 * (square + log_det + LOG_2PI * n);
}

// `update` in regime z by x [F], NaN where a feature is missing
inline double observe(const Model& p, int64_t z, const double* x, Belief belief, Work& work) {
    const double* offset = p.given.emission_offset + z * p.F;
    int64_t n = 0;
    for (int64_t f = 0; f < p.F; f++)
        if (!std::isnan(x[f])) work.gap[n++] = x[f] - offset[f];
    if (n == p.F) return update(p.emission[z], p.noise[z], belief, work);
    const Table emission = first_rows(work.emission, n), noise = first_rows(work.noise, n);
    for (int64_t f = 0, i = 0; f < p.F; f++) {
        if (std::isnan(x[f])) continue;
        std::copy_n(p.emission[z][f], emission.stride, emission[i]);
        for (int64_t g = 0, j = 0; g < p.F; g++)
            if (!std::isnan(x[g])) noise[i][j++] = p.noise[z][f][g];
        i++;
    }
    return update(emission, noise, belief, work);
}

// log sum exp of n numbers
inline double log_sum(const double* values, int64_t n) {
    double top = IMPOSSIBLE, sum = 0;
    for (int64_t i = 0; i < n; i++) top = std::max(top, values[i]);
    if (top == IMPOSSIBLE) return top;
    for (int64_t i = 0; i < n; i++) sum += std::exp(values[i] - top);
    return top + std::log(sum);
}

}  // namespace
