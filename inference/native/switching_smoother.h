// Kim's smoother of switching linear models, from the densities (w, m, P) that the filter of order 2 kept at each step. With
// those ahead of the move marked by a hat, and those given all observations by a dash:
//
//   w_jz = w_j P(z | j) / (sum_i w_i P(z | i)) w_z',   G = P_jz A_z' Phat_jz^-1
//   m_jz' = m_jz + G (m_z' - mhat_jz),   P_jz' = P_jz + G (P_z' - Phat_jz) G'
//
// of which those of all z merge to (w_j', m_j', P_j').
#pragma once
#include "switching_runs.h"

namespace {

constexpr double SOUND = 1e-6;  // of a variance, the share that the features before leave, to divide by it as it is

struct Smoother : Run {
    Densities pairs, later;  // h = K z + j of the regime j before and z after
    const Regimes regimes;
    Matrix<double> table, right;
    Matrix<Lanes> gain;
    double* values;

    Smoother(Memory& memory, const Given& g)
        : Run(memory, g, g.regimes), pairs(memory, K * K, L), later(memory, K * K, L),
          regimes(memory, g, round_up(K * K, WIDE) / WIDE, [this](int64_t lane) { return std::min(lane / K, K - 1); }),
          table(matrix(memory, L, L)), right(matrix(memory, L, L)), gain(matrix<Lanes>(memory, L, L)),
          values(memory.take(L)) {}

    // Weights of pairs given all; writes P(j, z), and beside each pair the density after it.
    void weigh(int64_t row) {
        const double* weight = weight_at(row + 1);
        for (int64_t z = 0; z < K; z++) {
            double* joint = pairs.log_weight + z * K;
            const double total = log_sum(joint, K);
            for (int64_t j = 0; j < K; j++) {
                const bool none = joint[j] == IMPOSSIBLE || weight[z] == IMPOSSIBLE;
                joint[j] = none ? IMPOSSIBLE : joint[j] - total + weight[z];
                later.put(z * K + j, g.kept_mean + ((row + 1) * K + z) * L, g.kept_covariance + ((row + 1) * K + z) * L * L, L);
            }
        }
    }

    // G' = Phat^-1 A P of a vector of pairs, transposed from P A' in `work.half`
    void find_gain(int64_t h) {
        const Matrix<Lanes> root = block.work.turned, covariance = block.ahead.covariance;
        write(block.work.half, gain.at, 1, L);
        copy(covariance, root);
        factor(root);
        Bits<double> sound = ~Bits<double>{};
        for (int64_t i = 0; i < L; i++) sound &= SOUND * covariance[i][i] * root[i][i] * root[i][i] < 1;
        solve(root, gain);
        solve_transposed(root, gain);
        for (int64_t lane = 0; lane < WIDE; lane++)
            if (!sound[lane] && pairs.log_weight[h + lane] > IMPOSSIBLE) find_gain_by_values(lane);
    }

    // The same of one lane, where the covariance is near to singular: by its pseudoinverse, with the bound of `torch.linalg.pinv`
    void find_gain_by_values(int64_t lane) {
        for (int64_t i = 0; i < L; i++)
            for (int64_t j = 0; j < L; j++) {
                table[i][j] = block.ahead.covariance[i][j][lane];
                gain[i][j][lane] = 0;
            }
        decompose(table, right);
        const double least = L * std::numeric_limits<double>::epsilon() * column_norms(table, values);
        for (int64_t k = 0; k < L; k++) {
            const double value = values[k];
            if (!(value > least)) continue;
            for (int64_t i = 0; i < L; i++) {
                double share = 0;
                for (int64_t a = 0; a < L; a++) share += block.work.half[i][a][lane] * right[a][k];
                for (int64_t j = 0; j < L; j++) gain[j][i][lane] += share / value * (table[j][k] / value);
            }
        }
    }

    // The latents before each of a vector of pairs, given all
    void step_back(int64_t h, int64_t b) {
        const Matrix<Lanes> gap = block.work.half;
        const Belief<Lanes> now = block.now, ahead = block.ahead;
        block.read(pairs, h, now);
        predict(regimes.move(b), now, block.work, ahead);
        find_gain(h);
        for (int64_t i = 0; i < L; i++) {
            ahead.mean[i] = load(later.mean(i) + h) - ahead.mean[i];
            for (int64_t j = 0; j < L; j++) ahead.covariance[i][j] = load(later.covariance(i, j) + h) - ahead.covariance[i][j];
        }
        add_times(ahead.mean, gain, now.mean);
        product(ahead.covariance, gain, gap);
        add_symmetric(gain, gap, now.covariance);
        block.write(now, pairs, h);
    }

    // Steps t1 - 1 down to t0
    void steps(int64_t s, int64_t t0, int64_t t1) {
        const int64_t last = std::max<int64_t>(0, std::min(g.lengths[s], g.steps)) - 1, first = s * g.steps;
        if (g.failed[s] >= 0) return;
        for (int64_t t = std::min(t1 - 1, last); t >= t0; t--) {
            const int64_t row = first + t;
            read_kept(row);
            if (t < last) {
                meet(pairs, 1, K);
                weigh(row);
                double* out = g.pairs + (row - s) * K * K;
                for (int64_t z = 0; z < K; z++)
                    for (int64_t j = 0; j < K; j++) out[j * K + z] = std::exp(pairs.log_weight[z * K + j]);
                for (int64_t h = 0, b = 0; h < K * K; h += WIDE, b++) step_back(h, b);
                merge(pairs, kept, shares);
                write_kept(row);
            }
            for (int64_t z = 0; z < K; z++) g.state[row * K + z] = std::exp(kept.log_weight[z]);
            write_moments(row, fold(kept));
        }
    }
};

}  // namespace
