#include "scans.h"

#include "export.h"

#define SCANS(T, name)                                                                                                      \
    EXPORT void name(linear_scan)(const Part* p, int64_t lerp, const T* first, const T* second, const T* h0, T* h) {        \
        (lerp ? scan_forward<T, LERP> : scan_forward<T, FACTOR>)(*p, {}, {first, second}, h0, h);                                            \
    }                                                                                                                       \
    EXPORT void name(linear_scan_adjoint)(const Part* p, int64_t lerp, const T* first, const T* second, const T* h0,        \
                                          const T* h, const T* d_h, T* d_first, T* d_second, T* d_h0) {                     \
        (lerp ? scan_backward<T, LERP> : scan_backward<T, FACTOR>)(*p, {}, {first, second}, h0, h, d_h, {d_first, d_second}, d_h0);           \
    }                                                                                                                       \
    EXPORT void name(gated_scan)(const Part* p, const Kind* of, const T* pre, const T* h0, T* h) {                          \
        scan_forward<T, GIVEN>(*p, *of, {pre, pre + (of->parts() - 1) * p->width}, h0, h);                                         \
    }                                                                                                                       \
    EXPORT void name(gated_scan_adjoint)(const Part* p, const Kind* of, const T* pre, const T* h0, const T* h, const T* d_h, \
                                         T* d_pre, T* d_h0) {                                                               \
        const int64_t values = (of->parts() - 1) * p->width;                                                                \
        scan_backward<T, GIVEN>(*p, *of, {pre, pre + values}, h0, h, d_h, {d_pre, d_pre + values}, d_h0);                          \
    }
FOR_BOTH(SCANS)
