// Kim's smoother of switching linear models, from the densities (w, m, P) that the filter of order 2 kept at each step. With
// those ahead of the move marked by a hat, and those given all observations by a dash:
//
//   w_jz = w_j P(z | j) / (sum_i w_i P(z | i)) w_z',   G = P_jz A_z' Phat_jz^-1
//   m_jz' = m_jz + G (m_z' - mhat_jz),   P_jz' = P_jz + G (P_z' - Phat_jz) G'
//
// of which those of all z merge to (w_j', m_j', P_j').
#pragma once
#include "matrices.h"
#include "switching_runs.h"

namespace {

constexpr double SOUND = 1e-6;  // of a variance, the share that the features before leave, to divide by it as it is

struct Smoother : Run {
    Densities pairs, later;  // h = K z + j of the regime j before and z after
    const Spread transition, offset, noise;
    Lanes *gain, *chol, *inverse;
    Matrix<double> table, right;

    static int64_t tables() { return TABLES + 10; }
    static int64_t vectors(const Given& g) { return round_up(g.regimes * g.regimes, WIDE) / WIDE; }
    static int64_t size(const Given& g) {
        const int64_t L = g.latents;
        return Run::size(g, g.regimes) + 2 * Densities::size(g.regimes * g.regimes, L) + (2 * L * L + L) * vectors(g) * WIDE +
               (2 * L * L + L) * WIDE + 2 * room_of<double>(L, L);
    }
    Smoother(Room<double>& room, const Given& g)
        : Run(room, g, g.regimes), pairs(memory(room)), later(memory(room)), transition(spread(room, g.transition, L * L)),
          offset(spread(room, g.transition_offset, L)), noise(spread(room, g.state_noise, L * L)), gain(take_lanes(room, L * L)),
          chol(take_lanes(room, L * L)), inverse(take_lanes(room, L)), table(matrix(room, L, L)), right(matrix(room, L, L)) {}
    Densities memory(Room<double>& room) const {
        const Densities found(room.take(Densities::size(K * K, L)), K * K, L);
        found.clear();
        return found;
    }
    Spread spread(Room<double>& room, const double* given, int64_t entries) const {
        return {room, given, entries, vectors(g), [this](int64_t lane) { return std::min(lane / K, K - 1); }};
    }

    // Weights of pairs given all; writes P(j, z), and beside each pair the density after it.
    void weigh(int64_t row) {
        const double* weight = weight_at(row + 1);
        for (int64_t z = 0; z < K; z++) {
            double* joint = pairs.log_weight + z * K;
            const double total = log_sum(joint, K, 1);
            for (int64_t j = 0; j < K; j++) {
                const bool none = joint[j] == NOWHERE || weight[z] == NOWHERE;
                joint[j] = none ? NOWHERE : joint[j] - total + weight[z];
                later.put(z * K + j, g.kept_mean + ((row + 1) * K + z) * L, g.kept_covariance + ((row + 1) * K + z) * L * L);
            }
        }
    }

    // The gain P A' Phat^-1 of a vector of pairs, from A P in `block.half`
    void find_gain(int64_t h) {
        const Lanes* covariance = block.ahead_covariance;
        Bits<double> sound = ~Bits<double>{};
        for (int64_t i = 0; i < L; i++)
            for (int64_t j = 0; j <= i; j++) {
                Lanes value = covariance[i * L + j];
                for (int64_t k = 0; k < j; k++) value -= chol[i * L + k] * chol[j * L + k];
                if (j < i) {
                    chol[i * L + j] = value * inverse[j];
                    continue;
                }
                const auto fine = value > SOUND * covariance[i * L + i];
                sound &= fine;
                inverse[i] = 1 / root(fine ? value : splat(1.0));
            }
        for (int64_t row = 0; row < L; row++) {
            Lanes* out = gain + row * L;
            for (int64_t i = 0; i < L; i++) {
                Lanes value = block.half[i * L + row];
                for (int64_t k = 0; k < i; k++) value -= chol[i * L + k] * out[k];
                out[i] = value * inverse[i];
            }
            for (int64_t i = L - 1; i >= 0; i--) {
                for (int64_t k = i + 1; k < L; k++) out[i] -= chol[k * L + i] * out[k];
                out[i] *= inverse[i];
            }
        }
        for (int64_t lane = 0; lane < WIDE; lane++)
            if (!sound[lane] && pairs.log_weight[h + lane] > NOWHERE) find_gain_by_values(lane);
    }

    // The same of one lane, where the covariance is near to singular: by its pseudoinverse, with the bound of `torch.linalg.pinv`
    void find_gain_by_values(int64_t lane) {
        for (int64_t i = 0; i < L; i++)
            for (int64_t j = 0; j < L; j++) {
                table[i][j] = block.ahead_covariance[i * L + j][lane];
                gain[i * L + j][lane] = 0;
            }
        decompose(table, right);
        const auto square = [&](int64_t k) {
            double sum = 0;
            for (int64_t i = 0; i < L; i++) sum += table[i][k] * table[i][k];
            return sum;
        };
        double most = 0;
        for (int64_t k = 0; k < L; k++) most = std::max(most, std::sqrt(square(k)));
        for (int64_t k = 0; k < L; k++) {
            const double value = std::sqrt(square(k));
            if (!(value > L * std::numeric_limits<double>::epsilon() * most)) continue;
            for (int64_t i = 0; i < L; i++) {
                double share = 0;
                for (int64_t a = 0; a < L; a++) share += block.half[a * L + i][lane] * right[a][k];
                for (int64_t j = 0; j < L; j++) gain[i * L + j][lane] += share / value * (table[j][k] / value);
            }
        }
    }

    // The latents before each of a vector of pairs, given all
    void step_back(int64_t h, int64_t b) {
        block.read(pairs, h, block.mean, block.covariance);
        block.move(transition[b], offset[b], noise[b]);
        find_gain(h);
        const auto gap = [&](int64_t e, const Lanes* of) { return load(later.entry(e) + h) - of[e < L ? e : e - L]; };
        for (int64_t i = 0; i < L; i++)
            for (int64_t k = 0; k < L; k++) block.mean[i] += gain[i * L + k] * gap(k, block.ahead);
        for (int64_t i = 0; i < L; i++)
            for (int64_t j = 0; j < L; j++) {
                Lanes value{};
                for (int64_t k = 0; k < L; k++) value += gain[i * L + k] * gap(L + k * L + j, block.ahead_covariance);
                block.half[i * L + j] = value;
            }
        block.symmetric(block.rest, [&](int64_t i, int64_t j) {
            Lanes value = block.covariance[i * L + j];
            for (int64_t k = 0; k < L; k++) value += block.half[i * L + k] * gain[j * L + k];
            return value;
        });
        block.write(block.mean, block.rest, pairs, h);
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
