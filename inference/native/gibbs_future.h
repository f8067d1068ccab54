// The information of later observations about the latents at a step, given the later regimes.
//
//   p(x_>t | s_t, z_>t) ~ exp(-s' W_t s / 2 + u_t' s)
//
// goes backward without an inverse of a noise. A move is taken together with the observation that follows it: with the
// gain K and the covariance S of that observation under the move's noise alone,
//
//   s_t+1 | s_t, x_t+1 ~ N((1 - K C)(A s_t + c) + K (x - d), (1 - K C) Q),    x_t+1 | s_t ~ N(C (A s_t + c) + d, S)
//
// so that noises may be singular, as long as together they leave each observation a density. The plain form is `_future`
// in `chains/switching_gaussian/sampling.py`.
#pragma once
#include "gibbs.h"

namespace {

class Future {
    const Model& p;
    const int64_t L;
    Stack omega, mu;  // W [T] and u [T]
    Belief<double> moved;
    Table root, turned, met, less, into, half, row;  // `root` and `turned`: Z' and R^-1 Z' with R R' = 1 + Z' W Z
    double *gone, *inner;

public:
    Future(Memory& memory, const Model& p, int64_t steps)
        : p(p), L(p.L), omega(stack(memory, steps, L, L)), mu(stack(memory, steps, 1, L)), moved(belief(memory, L)),
          row(matrix(memory, p.F, L)), gone(matrix(memory, 1, L).at), inner(matrix(memory, 1, L).at) {
        for (Table* one : {&root, &turned, &met, &less, &into, &half}) *one = matrix(memory, L, L);
    }

    // Of a chain with its path; the step whose observation has no density, or -1
    int64_t run(const Chains& chains, int64_t b, Work<double>& work) {
        const int64_t end = chains.lengths[b], *path = chains.path + b * chains.steps;
        if (end == 0) return -1;
        clear(omega[end - 1]), clear(mu[end - 1]);
        for (int64_t t = end - 2; t >= 0; t--) {
            const int64_t z = path[t + 1];
            std::copy_n(p.offset.all[z], p.offset.all.stride, moved.mean);
            copy(p.state_noise[z], moved.covariance);
            if (std::isnan(observe(p.sight(z), chains.x_of(b, t + 1, p.F), moved, work))) return t + 1;
            if (!before_move(t, z, work)) return t + 1;
            add_observation(t, z, work);
        }
        return -1;
    }

    // The logarithm of the mean of exp(-s' W_t s / 2 + u_t' s) over a belief about s_t, which may be singular
    double log_mean(int64_t t, Belief<double> belief) {
        const double* of = mu.all[t];
        double value = -0.5 * condense(omega[t], belief.covariance);
        std::copy_n(of, mu.all.stride, gone);
        for (int64_t j = 0; j < L; j++) add_row(-belief.mean[j], omega[t][j], gone, L);
        for (int64_t i = 0; i < L; i++) value += 0.5 * belief.mean[i] * (of[i] + gone[i]);
        for (int64_t i = 0; i < L; i++) {
            const double sum = dot(turned[i], gone, L);
            value += 0.5 * sum * sum;
        }
        return value;
    }

private:
    // R^-1 Z' of a covariance Z Z', so that (P^-1 + W)^-1 is its square; log det(1 + Z' W Z)
    double condense(Table weight, Table covariance) {
        root_of(covariance, root);
        product(root, weight, turned);
        for (int64_t i = 0; i < L; i++)
            for (int64_t j = 0; j <= i; j++) met[i][j] = (i == j) + dot(turned[i], root[j], L);
        const double log_det = factor(met);
        copy(root, turned);
        solve(met, turned);
        return log_det;
    }

    // W and u of step t, without the observation of the next one; whether they are numbers
    bool before_move(int64_t t, int64_t z, Work<double>& work) {
        if (std::isnan(condense(omega[t + 1], moved.covariance))) return false;
        const Table explained = half;
        product(turned, omega[t + 1], explained);
        copy(omega[t + 1], less);
        std::copy_n(mu.all[t + 1], mu.all.stride, inner);
        for (int64_t j = 0; j < L; j++) {
            add_row(-dot(turned[j], mu.all[t + 1], L), explained[j], inner, L);
            for (int64_t i = 0; i < L; i++) add_row(-explained[j][i], explained[j], less[i], L);
        }
        for (int64_t j = 0; j < L; j++) add_row(-moved.mean[j], less[j], inner, L);
        product_transposed(work.turned, p.transition[z], into);
        product(less, into, half);
        product_transposed(into, half, omega[t]);
        clear(mu[t]);
        add_times(inner, into, mu.all[t]);
        return true;
    }

    // What the observation of the next step says, as `update` left it
    void add_observation(int64_t t, int64_t z, Work<double>& work) {
        const int64_t n = work.seen.rows;
        const Table rows = row.part(0, n, 0, L);
        product(work.seen, p.transition[z], rows);
        solve(first_rows(work.root, n), rows);
        for (int64_t k = 0; k < n; k++) {
            add_row(work.gap[k], rows[k], mu.all[t], L);
            for (int64_t i = 0; i < L; i++) add_row(rows[k][i], rows[k], omega[t][i], L);
        }
    }
};

}  // namespace
