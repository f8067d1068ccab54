#include "driven.h"

#include "export.h"
#include "markov_team.h"
#include "row_sums.h"

namespace {

constexpr int64_t CACHED = 1 << 13;  // numbers of the tables of a block, which are read for each sum
constexpr int64_t DOUBTFUL = 0;  // in place of -1: digits may have been lost

template <int NV, int G, int n, class Team>
void sweep_group(Team& team, const Inputs& given, const Results<double>& to, double* expected, int64_t at) {
    Chains<double>& x = team.x;
    int64_t group[n], lengths[n];
    for (int g = 0; g < n; g++) {
        group[g] = x.at(at + g);
        lengths[g] = x.length(group[g]);
        team.begin(g, group[g], to.state, 0, lengths[g]);
        team.tables.take(x, given, group[g], g);
        if (!expected) team.up[g].increment = to.further + group[g] * to.further_size;
    }
    if (expected) team.sweep.template smooth<n>(team.up, team.down, lengths);
    else team.sweep.template filter<n>(team.up, lengths);
    for (int g = 0; g < n; g++) {
        const int64_t b = group[g];
        to.total[b] = team.up[g].evidence.value();
        if (expected) team.tables.write(g, to.further + b * to.further_size, expected + b * to.further_size);
        // a filter does not meet what comes later, but no step can need what it dropped if tables mix
        const bool certain = team.sure(g) && (expected || team.tables.least(g) >= Limits<double>::mixes);
        to.failed[b] = certain ? -1 : DOUBTFUL;
        clear_beyond(x, to, b, expected);
    }
}

template <int NV, int G>
void sweep_rows(const int64_t* task, Chains<double>& x, const Inputs& given, const Results<double>& to, double* expected) {
    Sizes<double> of(x.n_states);
    of.block = std::clamp<int64_t>(CACHED / (of.k * of.wide), 4, of.block);
    const DrivenSize size(of, G, x.n_steps, given.n_inputs, expected);
    Team<double, NV, G, RowsByInputs<NV>> team(x, of, size, expected ? x.n_steps : 0);
    if (!team.stands()) return;
    int64_t at = task[0];
    for (; task[1] - at >= G; at += G) sweep_group<NV, G, G>(team, given, to, expected, at);
    for (; at < task[1]; at++) sweep_group<NV, G, 1>(team, given, to, expected, at);
}

// `expected` is null for a filter
void sweep_rows(const int64_t* task, Chains<double>& x, const Inputs& given, const Results<double>& to, double* expected) {
    if (Sizes<double>(x.n_states).wide != W<double>) sweep_rows<0, 1>(task, x, given, to, expected);
    else if (task[2] == MOST) sweep_rows<1, MOST>(task, x, given, to, expected);
    else sweep_rows<1, 1>(task, x, given, to, expected);
}

}  // namespace

EXPORT void markov_rows_filter(const int64_t* task, Chains<double>* x, const Inputs* given, double* total, double* state,
                               double* increment, int64_t* failed) {
    sweep_rows(task, *x, *given, {total, state, increment, failed, x->n_steps}, nullptr);
}

EXPORT void markov_rows_posterior(const int64_t* task, Chains<double>* x, const Inputs* given, double* total, double* state,
                                  double* moves, double* expected, int64_t* failed) {
    const int64_t size = x->n_states * x->n_states * (1 + given->n_inputs);
    sweep_rows(task, *x, *given, {total, state, moves, failed, size}, expected);
}

EXPORT void markov_row_sums(const int64_t* task, const int64_t* sizes, const double* log_base, const double* changes,
                            const double* design, const double* leaving, double* used, double* products, int64_t* lacking) {
    RowSums sums(sizes);
    if (sums.lacking()) *lacking = 1;
    else
        for (int64_t row = task[0]; row < task[1]; row++) sums.add(row, log_base, changes, design, leaving, used, products);
}
