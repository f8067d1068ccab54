#include "one_series.h"

#include "export.h"

// Under the parameters of the blocks `part[0] : part[1]`, of eight each. `lacking` becomes 1 where the system has no memory.
EXPORT void one_series_evidence(const int64_t* part, const Series* given, const int64_t* series, int64_t n, double* out,
                                int64_t* lacking) {
    const int64_t of_block = 8 / W<double>, groups = (given->parameters + W<double> - 1) / W<double>;
    const auto all = [&](Sweep& sweep) {
        for (int64_t group = part[0] * of_block; group < std::min(part[1] * of_block, groups); group++) sweep.go(group, out);
    };
    if (!in_memory<Sweep>(all, *given, series, n)) *lacking = 1;
}
