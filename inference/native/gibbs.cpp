#include "gibbs_regimes.h"

#include "export.h"

namespace {

// Call `each` with the state of a move and each of the chains part[0] : part[1], until one is not fine.
template <class Of, class Each, class... Others>
void over_chains(const int64_t* part, const Given& given, const Chains& chains, Each each, const Others&... others) {
    const auto all = [&](Of& move) {
        for (int64_t b = part[0]; b < part[1]; b++) {
            if (!chains.is_fine(b, given.regimes)) return chains.stop(OUTSIDE);
            chains.failed[b] = each(move, b);
        }
    };
    if (!in_memory<Of>(all, given, chains.steps, others...)) chains.stop(LACKING);
}

}  // namespace

// Latents of chains given their regimes
EXPORT void gibbs_latents(const int64_t* part, const Given* given, const Chains* chains, const Draws* draws) {
    over_chains<Latents>(part, *given, *chains, [&](Latents& move, int64_t b) { return move.run(*chains, b); }, *draws);
}

struct Single {
    const double* uniform;  // [B, T]
    double* state;          // [B, T, K]
};

// Each regime of their paths given all others
EXPORT void gibbs_collapsed(const int64_t* part, const Given* given, const Chains* chains, const Single* to) {
    over_chains<Collapsed>(part, *given, *chains,
                           [&](Collapsed& move, int64_t b) { return move.run(*chains, b, to->uniform, to->state); });
}

struct Whole {
    int64_t particles;
    const int64_t* seeds;  // [B]
};

// Whole paths
EXPORT void gibbs_redrawn(const int64_t* part, const Given* given, const Chains* chains, const Whole* of) {
    if (of->particles < 1) return chains->stop(OUTSIDE);
    const auto each = [&](Redrawn& move, int64_t b) { return move.run(*chains, b, uint64_t(of->seeds[b])); };
    over_chains<Redrawn>(part, *given, *chains, each, of->particles);
}
