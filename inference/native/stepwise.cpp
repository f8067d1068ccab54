#include "stepwise.h"

#include "export.h"

namespace {

template <class T> void filter(const int64_t* sequences, Sizes* s, const Tables<T>& tables) {
    const int64_t padded = std::max(W<double>, round_up(s->states, W<double>));
    Room<double> room(4 * padded, 4);
    if (room.full()) {
        s->lacking = 1;
        return;
    }
    Stepwise<T> filter(*s, tables, room, padded);
    for (int64_t n = sequences[0]; n < sequences[1]; n++) filter.filter(n);
}

}  // namespace

#define STEPWISE(T, name)                                                                                                      \
    EXPORT void name(stepwise)(const int64_t* sequences, Sizes* sizes, const T* redrawn, const T* held, const T* fresh,        \
                               const T* odds, const T* initial, const T* gate, const int64_t* lengths, T* state, T* redraw,    \
                               T* bound, T* change, int64_t* failed) {                                                         \
        filter<T>(sequences, sizes, {redrawn, held, fresh, odds, initial, gate, lengths, state, redraw, bound, change, failed}); \
    }
FOR_BOTH(STEPWISE)
