#include "polya_gamma.h"

#include "export.h"

// PG(1, c) of rows of n numbers
EXPORT void polya_gamma_rows(const int64_t* rows, const int64_t* width, const double* c, const int64_t* seeds, double* drawn) {
    const int64_t n = *width;
    for (int64_t b = rows[0]; b < rows[1]; b++) {
        Stream stream = {uint64_t(seeds[b])};
        for (int64_t i = b * n; i < (b + 1) * n; i++) drawn[i] = polya_gamma(c[i], stream);
    }
}
