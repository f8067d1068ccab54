// The tables of a switching linear model with room for full vectors, and stacks of such tables: see `switching_steps.h`.
#pragma once
#include "switching_steps.h"

namespace {

using Table = Matrix<double>;

// The tables of K regimes, L latents, F features and J sticks, as Python gives them: contiguous, in the order of `Tables`
struct Given {
    int64_t regimes, latents, features, sticks;
    const double *log_initial, *log_transition, *initial_mean, *initial_covariance, *transition, *transition_offset;
    const double *state_noise, *emission, *emission_offset, *observation_noise, *recurrence, *recurrence_offset;
};

// A square matrix or a row for each of some regimes or beliefs
struct Stack {
    Table all;
    int64_t rows;
    INLINE Table operator[](int64_t z) const { return all.part(z * rows, rows, 0, all.columns); }
};
inline Stack stack(Memory& memory, int64_t n, int64_t rows, int64_t columns) { return {matrix(memory, n * rows, columns), rows}; }

// Of a table [n, rows, columns], or of one [n, columns, rows] with `turned`
inline Stack stack(Memory& memory, const double* table, int64_t n, int64_t rows, int64_t columns, bool turned = false) {
    const Stack made = stack(memory, n, rows, columns);
    for (int64_t z = 0; z < n && !memory.counts(); z++) {
        const double* from = table + z * rows * columns;
        turned ? read(from, 1, rows, made[z]) : read(from, columns, 1, made[z]);
    }
    return made;
}

struct Beliefs {
    Stack means, covariances;
    INLINE Belief<double> operator[](int64_t i) const { return {means.all[i], covariances[i]}; }
};
inline Beliefs beliefs(Memory& memory, int64_t n, int64_t L) { return {stack(memory, n, 1, L), stack(memory, n, L, L)}; }

struct Model {
    const Given& given;
    const int64_t K, L, F, J;
    Beliefs initial;
    Stack transition, turned, offset, state_noise, emission, noise;  // `turned`: A'
    Table recurrence;

    Model(Memory& memory, const Given& g)
        : given(g), K(g.regimes), L(g.latents), F(g.features), J(g.sticks),
          initial{stack(memory, g.initial_mean, K, 1, L), stack(memory, g.initial_covariance, K, L, L)},
          transition(stack(memory, g.transition, K, L, L)), turned(stack(memory, g.transition, K, L, L, true)),
          offset(stack(memory, g.transition_offset, K, 1, L)), state_noise(stack(memory, g.state_noise, K, L, L)),
          emission(stack(memory, g.emission, K, F, L)), noise(stack(memory, g.observation_noise, K, F, F)),
          recurrence(stack(memory, g.recurrence, 1, J, L).all) {}
    INLINE Move<double> move(int64_t z) const { return {turned[z], offset.all[z], state_noise[z]}; }
    INLINE Sight<double> sight(int64_t z) const { return {emission[z], given.emission_offset + z * F, noise[z]}; }
};

}  // namespace
