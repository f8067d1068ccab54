#include "stack_lstm.h"

#include "export.h"

// sizes: stacks m0..m1, actions, numbers of a cell, cells before, after, and read
#define STACKS(T, name)                                                                                                    \
    EXPORT void name(superposed_step)(const int64_t* part, const Step* of, double empty, const T* raw, const T* cells,      \
                                      T* after, T* reading) {                                                              \
        Superposition<T> stack(*of, T(empty));                                                                             \
        for (int64_t m = part[0]; m < part[1]; m++)                                                                        \
            stack.step(*of, raw + m * of->raw(), cells + m * of->before * of->width, after + m * of->after * of->width,     \
                       reading + m * of->read * of->width);                                                                \
    }                                                                                                                      \
    EXPORT void name(superposed_step_adjoint)(const int64_t* part, const Step* of, double empty, const T* raw,             \
                                              const T* cells, const T* d_after, const T* d_reading, T* d_raw, T* d_cells) { \
        Superposition<T> stack(*of, T(empty));                                                                             \
        for (int64_t m = part[0]; m < part[1]; m++)                                                                        \
            stack.adjoint(*of, raw + m * of->raw(), cells + m * of->before * of->width,                                    \
                          d_after ? d_after + m * of->after * of->width : nullptr,                                         \
                          d_reading ? d_reading + m * of->read * of->width : nullptr, d_raw + m * of->raw(),               \
                          d_cells + m * of->before * of->width);                                                           \
    }                                                                                                                      \
    EXPORT void name(stratified_step)(const int64_t* part, const int64_t* of, const T* raw, const T* strength, T* values,   \
                                      T* after, T* reading) {                                                              \
        const int64_t n = of[0], width = of[1];                                                                            \
        Layers<T> stack(n, width);                                                                                         \
        for (int64_t m = part[0]; m < part[1]; m++)                                                                        \
            stack.step(n, raw + m * (2 + width), strength + m * n, values + m * (n + 1) * width, after + m * (n + 1),       \
                       reading + m * width);                                                                               \
    }                                                                                                                      \
    EXPORT void name(stratified_step_adjoint)(const int64_t* part, const int64_t* of, const T* raw, const T* strength,      \
                                              const T* after, const T* values, const T* d_after, const T* d_reading,        \
                                              T* d_raw, T* d_strength, T* d_values) {                                       \
        const int64_t n = of[0], width = of[1];                                                                            \
        Layers<T> stack(n, width);                                                                                         \
        for (int64_t m = part[0]; m < part[1]; m++)                                                                        \
            stack.adjoint(n, raw + m * (2 + width), strength + m * n, after + m * (n + 1), values + m * (n + 1) * width,    \
                          d_after ? d_after + m * (n + 1) : nullptr, d_reading ? d_reading + m * width : nullptr,           \
                          d_raw + m * (2 + width), d_strength + m * n, d_values + m * (n + 1) * width);                     \
    }                                                                                                                      \
    EXPORT void name(stack_lstm)(const Range* part, const Network* of, double empty, const Weights<T>* weights,             \
                                 const Steps<T>* steps) {                                                                  \
        stack_lstm<T>(*part, *of, T(empty), *weights, *steps);                                                             \
    }                                                                                                                      \
    EXPORT void name(stack_lstm_adjoint)(const Range* part, const Network* of, double empty, const Weights<T>* weights,     \
                                         const Steps<T>* steps, const Gradients<T>* gradients) {                           \
        stack_lstm_adjoint<T>(*part, *of, T(empty), *weights, *steps, *gradients);                                         \
    }
FOR_BOTH(STACKS)
