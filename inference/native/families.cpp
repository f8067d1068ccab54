#include "families.h"

#include "export.h"

namespace {

enum Kind { SIMPLEX, GAMMA, NORMAL_GAMMA, NORMAL_WISHART };

struct Sizes {
    int64_t kind, width, dim, plates0;  // of the prior, which is repeated
    int64_t failed, lacking;  // set to 1 if a matrix has no factor, or the system had no memory
};

// Calls `work` of each plate of a range until it fails.
template <class Work> void each_plate(const int64_t* plates, Sizes* s, Work&& work) {
    const auto all = [&](Square& room) {
        for (int64_t n = plates[0]; n < plates[1] && !s->failed; n++)
            if (!work(n, room)) s->failed = 1;
    };
    if (!in_memory<Square>(all, s->dim)) s->lacking = 1;
}

}  // namespace

EXPORT void relative(const int64_t* plates, Sizes* s, const double* eta, const double* eta0, double* divergence, double* mean) {
    const int64_t P = s->width;
    each_plate(plates, s, [&](int64_t n, Square& room) {
        const Plate plate = {eta + n * P, eta0 + n % s->plates0 * P, P, divergence + n, mean + n * P};
        if (s->kind == NORMAL_WISHART) return of_normal_wishart(plate, room);
        (s->kind == SIMPLEX ? of_simplex : s->kind == GAMMA ? of_gamma : of_normal_gamma)(plate);
        return true;
    });
}

EXPORT void expected_normals(const int64_t* plates, Sizes* s, const double* statistics, double* loc, double* chol,
                             double* constant, double* log_volume) {
    const int64_t D = s->dim;
    each_plate(plates, s, [&](int64_t n, Square& room) {
        return expected_normal(statistics + n * s->width, room, loc + n * D, chol + n * D * D, constant + n, log_volume + n);
    });
}

EXPORT void mean_points(const int64_t* plates, Sizes* s, const double* eta, double* loc, double* precision) {
    const int64_t D = s->dim;
    each_plate(plates, s, [&](int64_t n, Square& room) {
        return mean_point(eta + n * s->width, room, loc + n * D, precision + n * D * D);
    });
}

EXPORT void peaks(const int64_t* plates, Sizes* s, const double* message, const double* floor, const double* least, double* loc,
                  double* precision) {
    const int64_t D = s->dim;
    each_plate(plates, s, [&](int64_t n, Square& room) {
        return peak(message + n * s->width, floor, *least, room, loc + n * D, precision + n * D * D);
    });
}
