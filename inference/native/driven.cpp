#include "driven.h"

#include "export.h"
#include "markov_team.h"
#include "row_sums.h"

namespace {

constexpr int64_t CACHED = 1 << 13;  // numbers of the tables of a block, which are read for each sum

template <int NV, int G>
void sweep_rows(const int64_t* task, Chains<double>& x, const Inputs& given, const Results<double>& to, double* expected) {
    Sizes<double> of(x.n_states);
    of.block = std::clamp<int64_t>(CACHED / (of.k * of.wide), 4, of.block);
    const DrivenSize size(of, G, x.n_steps, given, expected);
    Team<double, NV, G, RowsByInputs<NV>> team(x, to, of, size, expected ? x.n_steps : 0);
    team.run(task[0], task[1], expected ? SMOOTH : FILTER, {}, [](int64_t) {});
}

// `expected` is null for a filter
void sweep_rows(const int64_t* task, Chains<double>& x, const Inputs& given, const Results<double>& to, double* expected) {
    if (Sizes<double>(x.n_states).wide > W<double>) sweep_rows<0, 1>(task, x, given, to, expected);
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
