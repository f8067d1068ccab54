#include "scans.h"

#include "export.h"

#define SCANS(T, name)                                                                                                    \
    EXPORT void name(linear_scan)(const int64_t* part, int64_t lerp, const T* first, const T* second, const T* h0, T* h) { \
        const Part p = {part[0], part[1], part[2], part[3], part[4], part[5]};                                            \
        (lerp ? scan_forward<T, true> : scan_forward<T, false>)(p, first, second, h0, h);                                 \
    }                                                                                                                     \
    EXPORT void name(linear_scan_adjoint)(const int64_t* part, int64_t lerp, const T* first, const T* second, const T* h0, \
                                          const T* h, const T* d_h, T* d_first, T* d_second, T* d_h0) {                   \
        const Part p = {part[0], part[1], part[2], part[3], part[4], part[5]};                                            \
        (lerp ? scan_backward<T, true> : scan_backward<T, false>)(p, first, second, h0, h, d_h, d_first, d_second, d_h0);  \
    }                                                                                                                     \
    EXPORT void name(gated_scan)(const int64_t* part, const int64_t* of, const T* pre, const T* h0, T* h) {      \
        gated_forward<T>({part[0], part[1], part[2], part[3], part[4], part[5]}, {of[0], of[1], of[2]}, pre, h0, h); \
    }                                                                                                                     \
    EXPORT void name(gated_scan_adjoint)(const int64_t* part, const int64_t* of, const T* pre, const T* h0, const T* h,   \
                                         const T* d_h, T* d_pre, T* d_h0) {                                      \
        gated_backward<T>({part[0], part[1], part[2], part[3], part[4], part[5]}, {of[0], of[1], of[2]}, pre, h0, h, d_h,  \
                          d_pre, d_h0);                                                                             \
    }
FOR_BOTH(SCANS)
