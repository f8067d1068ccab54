// The elementary functions of `vec.h`, for tests of their digits.
// Rows of the result [5, n]: exp(-|x|), sigmoid(x), sigmoid(-x), tanh(x), log|x|.
#include "export.h"
#include "vec.h"

#define ELEMENTARY(T, name)                                                               \
    EXPORT void name(elementary)(const int64_t* size, const T* x, T* out) {               \
        const int64_t n = size[0];                                                        \
        for (int64_t i = 0; i < n; i += W<T>) {                                           \
            const V<T> at = load_some(x + i, n - i), less = less_magnitude<T>(at);        \
            const auto [of, of_less] = sigmoids<T>(at);                                   \
            const V<T> rows[] = {exp_not_positive<T>(less), of, of_less, tanh<T>(at), log<T>(-less)}; \
            for (int64_t row = 0; row < 5; row++) store_some<T>(out + row * n + i, rows[row], n - i); \
        }                                                                                 \
    }
FOR_BOTH(ELEMENTARY)
