#include "export.h"
#include "switching_filter.h"
#include "switching_smoother.h"

namespace {

// Of sequences part[0] up to part[1], steps part[2] up to part[3]
template <class Of> void run_steps(const int64_t* part, Given* given) {
    const auto all = [&](Of& run) {
        for (int64_t s = part[0]; s < part[1]; s++) run.steps(s, part[2], part[3]);
    };
    if (!in_memory<Of>(all, *given)) given->lacking = 1;
}

}  // namespace

EXPORT void switching_filter(const int64_t* part, Given* given) { run_steps<Filter>(part, given); }
EXPORT void switching_smoother(const int64_t* part, Given* given) { run_steps<Smoother>(part, given); }
