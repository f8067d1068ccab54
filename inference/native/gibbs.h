// Latents given regimes: a move of a Gibbs sampler. `gibbs_regimes.h` has the moves of regimes.
//
// A draw of the latents is a draw from their prior, with its observations, plus the smoother's mean for the difference to
// x (Durbin & Koopman 2002, "A simple and efficient simulation smoother"). The smoother goes backward over
//
//   r_t-1 = C' S^-1 v_t + (I - K C)' A_t+1' r_t,    N_t-1 = C' S^-1 C + (I - K C)' A_t+1' N_t A_t+1 (I - K C)
//   E[s_t | x] = m_t + P_t r_t-1,                   Cov[s_t | x] = P_t - P_t N_t-1 P_t
//
// so that no covariance of latents is inverted; they may be singular. In the recurrent kind, given a Polya-Gamma number w
// the regression u of each stick is one more observation of the latents (Linderman et al. 2017): +-1/2 / w ~ N(u, 1 / w).
//
// The plain form is `latents` in `chains/switching_gaussian/sampling.py`.
#pragma once
#include "gibbs_model.h"

namespace {

enum Trouble { LACKING = 1, OUTSIDE };  // no memory; a length, a regime or a sequence that there is not

// The B chains of a call; chain b sees sequence b % N
struct Chains {
    int64_t sequences, steps;
    const double* x;                   // [N, T, F]
    const int64_t* lengths;            // [B]
    int64_t *path, *failed, *trouble;  // [B, T], [B], [1]

    void stop(Trouble why) const { *trouble = why; }
    const double* x_of(int64_t b, int64_t t, int64_t F) const { return x + (b % sequences * steps + t) * F; }
    bool is_fine(int64_t b, int64_t K) const {
        if (sequences == 0 || lengths[b] < 0 || lengths[b] > steps) return false;
        for (int64_t t = 0; t < lengths[b]; t++)
            if (path[b * steps + t] < 0 || path[b * steps + t] >= K) return false;
        return true;
    }
};

// What a call of `gibbs_latents` reads and writes besides
struct Draws {
    const double *initial_root, *state_root, *noise_root;  // factors of initial_covariance, state_noise, observation_noise
    const double* sticks;              // [B, T, J], 0 where a stick says nothing
    const double *noise, *seen_noise;  // normal numbers [B, T, L], [B, T, F + J]
    double *drawn, *mean, *covariance;  // [B, T, L], [B, T, L], [B, T, L, L]
};

class Latents {
    const Model p;
    const Draws& draws;
    const int64_t L, R;
    Stack initial_root, state_root, noise_root;  // the first two transposed
    Beliefs before;                       // of each step, before its observation
    Stack shift, rest, seen, innovation;  // the mean of the difference, I - K C, H^-1 C, and H^-1 v of x and of the difference
    Table back, moved, back_square, square, half;
    Belief<double> now;
    double *drawn, *further, *shift_now, *difference;
    int64_t* rows;  // how many each step sees
    Work<double> work;

public:
    Latents(Memory& memory, const Given& given, int64_t steps, const Draws& draws)
        : p(memory, given), draws(draws), L(p.L), R(p.F + p.J), initial_root(stack(memory, draws.initial_root, p.K, L, L, true)),
          state_root(stack(memory, draws.state_root, p.K, L, L, true)), noise_root(stack(memory, draws.noise_root, p.K, p.F, p.F)),
          before(beliefs(memory, steps, L)), shift(stack(memory, steps, 1, L)), rest(stack(memory, steps, L, L)),
          seen(stack(memory, steps, R, L)), innovation(stack(memory, steps, 2, R)), back(matrix(memory, 2, L)),
          moved(matrix(memory, 2, L)), now(belief(memory, L)), difference(memory.take(R)), rows(memory.take<int64_t>(steps)),
          work(memory, R, L) {
        for (Table* one : {&back_square, &square, &half}) *one = matrix(memory, L, L);
        for (double** one : {&drawn, &further, &shift_now}) *one = matrix(memory, 1, L).at;
    }

    // The step that has no density, or -1
    int64_t run(const Chains& chains, int64_t b) {
        const int64_t T = chains.steps, *path = chains.path + b * T;
        for (int64_t t = 0; t < chains.lengths[b]; t++) {
            const int64_t z = path[t], at = b * T + t;
            draw_prior(z, t, draws.noise + at * L, draws.drawn + at * L);
            advance(z, t);
            rows[t] = see_features(z, chains.x_of(b, t, p.F), draws.seen_noise + at * R);
            if (t + 1 < T) rows[t] = see_sticks(t, path, draws.sticks + at * p.J, draws.seen_noise + at * R + p.F);
            copy(before[t], now);
            if (std::isnan(update(first_rows(work.emission, rows[t]), first_rows(work.noise, rows[t]), now, work))) return t;
            take_in(t);
        }
        smooth(path, chains.lengths[b], b * T);
        return -1;
    }

private:
    // The latents of step t given the previous ones, without x
    void draw_prior(int64_t z, int64_t t, const double* noise, double* out) {
        const double* from = t ? p.offset.all[z] : p.initial[z].mean;
        std::copy_n(from, stride_of<double>(L), further);
        if (t) add_times(drawn, p.turned[z], further);
        add_times(noise, (t ? state_root : initial_root)[z], further);
        std::swap(drawn, further);
        std::copy_n(drawn, L, out);
    }

    // To before the observation of step t
    void advance(int64_t z, int64_t t) {
        if (t == 0) {
            copy(p.initial[z], before[0]);
            std::fill_n(shift.all[0], shift.all.stride, 0.0);
            return;
        }
        predict(p.move(z), now, work, before[t]);
        std::fill_n(shift.all[t], shift.all.stride, 0.0);
        add_times(shift_now, p.turned[z], shift.all[t]);
    }

    // The features of x in regime z: what is seen, and the difference to what comes with the prior's draw
    int64_t see_features(int64_t z, const double* x, const double* noise) {
        int64_t n = 0;
        for (int64_t f = 0; f < p.F; f++) {
            if (std::isnan(x[f])) continue;
            work.gap[n] = x[f] - p.given.emission_offset[z * p.F + f];
            difference[n] = work.gap[n] - dot(p.emission[z][f], drawn, L);
            std::copy_n(p.emission[z][f], work.emission.stride, work.emission[n]);
            for (int64_t g = 0, j = 0; g < p.F; g++) {
                difference[n] -= noise_root[z][f][g] * noise[g];
                if (!std::isnan(x[g])) work.noise[n][j++] = p.noise[z][f][g];
            }
            n++;
        }
        return n;
    }

    // The sticks that the move from step t to the next broke or left, as further rows
    int64_t see_sticks(int64_t t, const int64_t* path, const double* precision, const double* noise) {
        int64_t n = rows[t];
        for (int64_t i = 0; i < p.J; i++) {
            if (!(precision[i] > 0)) continue;
            work.gap[n] = (path[t + 1] == i ? 0.5 : -0.5) / precision[i] - p.given.recurrence_offset[path[t] * p.J + i];
            difference[n] = work.gap[n] - noise[i] / std::sqrt(precision[i]) - dot(p.recurrence[i], drawn, L);
            std::copy_n(p.recurrence[i], work.emission.stride, work.emission[n]);
            for (int64_t j = 0; j < n; j++) work.noise[n][j] = work.noise[j][n] = 0;
            work.noise[n][n] = 1 / precision[i];
            n++;
        }
        return n;
    }

    // The mean of the difference after the observation of step t, as `update` left it, and the tables for `smooth`
    void take_in(int64_t t) {
        const int64_t n = rows[t];
        const Table white = innovation[t], emission = seen[t].part(0, n, 0, L);
        for (int64_t i = 0; i < n; i++) {
            double gap = difference[i] - dot(work.emission[i], shift.all[t], L);
            for (int64_t k = 0; k < i; k++) gap -= work.root[i][k] * white[1][k];
            white[0][i] = work.gap[i];
            white[1][i] = gap * work.root[i][i];
        }
        std::copy_n(shift.all[t], shift.all.stride, shift_now);
        add_times(white[1], first_rows(work.shown, n), shift_now);
        copy(first_rows(work.emission, n), emission);
        solve(first_rows(work.root, n), emission);
        write(work.turned, rest[t].at, 1, rest[t].stride);
    }

    // The rotation of r and N through step t, after which they are those of before it
    void back_through(int64_t t) {
        const Table emission = seen[t].part(0, rows[t], 0, L);
        product(back, rest[t], moved);
        for (int64_t i = 0; i < 2; i++)
            for (int64_t k = 0; k < rows[t]; k++) add_row(innovation[t][i][k], emission[k], moved[i], L);
        product(back_square, rest[t], half);
        product_transposed(rest[t], half, square);
        for (int64_t k = 0; k < rows[t]; k++)
            for (int64_t i = 0; i < L; i++) add_row(emission[k][i], emission[k], square[i], L);
    }

    // Means and covariances given all of x; the prior's draw is moved by the mean of the difference
    void smooth(const int64_t* path, int64_t end, int64_t first) {
        clear(back), clear(back_square);
        for (int64_t t = end - 1; t >= 0; t--) {
            back_through(t);
            const Belief<double> here = before[t];
            double *out = draws.drawn + (first + t) * L, *mean = draws.mean + (first + t) * L;
            add_times(moved[0], here.covariance, here.mean);
            add_times(moved[1], here.covariance, shift.all[t]);
            for (int64_t i = 0; i < L; i++) mean[i] = here.mean[i], out[i] += shift.all[t][i];
            product(here.covariance, square, half);
            double* covariance = draws.covariance + (first + t) * L * L;
            product(half, here.covariance, work.half);
            for (int64_t i = 0; i < L; i++)
                for (int64_t j = 0; j < L; j++) covariance[i * L + j] = here.covariance[i][j] - work.half[i][j];
            product(moved, p.transition[path[t]], back);
            product(square, p.transition[path[t]], half);
            product_transposed(p.transition[path[t]], half, back_square);
        }
    }
};

}  // namespace
