#include "segments_backward.h"
#include "segments_forward.h"
#include "segments_stream.h"

#include "export.h"

EXPORT int64_t segments_ordinary(const Chain* c) {
    bool well = true;
    for (int64_t i = 0; i < c->n_blocks; i++) well = well && is_ordinary(c->blocks()[i], c->N, c->T);
    for (int64_t i = 0; i < c->N * c->T; i++) well &= c->base[i] < INFINITE;
    return well;
}
EXPORT int64_t segments_forward(const Chain* c, int64_t best, const Passed* to, Progress* at, double* room, int64_t capacity,
                                double* tables) {
    return forward(*c, best != 0, *to, *at, room, capacity, tables);
}
EXPORT int64_t segments_backward(const Chain* c, const Found* found, const Smoothed* to, Progress* at, double* tables) {
    return backward(*c, *found, *to, *at, tables);
}
EXPORT int64_t segments_advance(const Stream* s, const More* more) { return advance(*s, *more); }
