// Products of a few rows with one matrix, over and over: y = x M + offsets.
//
// The columns of M lie in panels of a few vectors, so that a panel stays in the cache while all rows pass it. Each number
// of y is summed over k in the same order, however many rows there are. x [rows, depth], M [depth, width].
#pragma once
#include <vector>

#include "sums.h"

namespace {

template <class T> class Matrix {
    static constexpr int64_t VECTORS = 3, PANEL = VECTORS * W<T>;
    std::vector<T> panels, offsets;
    int64_t depth;

    template <int rows> void multiply(const T* x, int64_t x_stride, int64_t panel, T* y, int64_t y_stride) const {
        V<T> sum[rows][VECTORS];
        for (int r = 0; r < rows; r++)
            for (int v = 0; v < VECTORS; v++) sum[r][v] = load(&offsets[panel * PANEL + v * W<T>]);
        const T* m = &panels[panel * depth * PANEL];
        for (int64_t k = 0; k < depth; k++, m += PANEL)
#pragma GCC unroll 4
            for (int r = 0; r < rows; r++)
#pragma GCC unroll 3
                for (int v = 0; v < VECTORS; v++) sum[r][v] += x[r * x_stride + k] * load(m + v * W<T>);
        for (int r = 0; r < rows; r++)
            for (int v = 0; v < VECTORS; v++) store(y + r * y_stride + panel * PANEL + v * W<T>, sum[r][v]);
    }

public:
    const int64_t stride;  // of a row of y: width, and some numbers of no meaning

    // M[k, j] = source[k * across + j * along]; without offsets, they are 0. Columns come in groups, each of which is filled
    // up with columns of 0 to a number of them.
    Matrix(const T* source, int64_t depth, int64_t width, int64_t across, int64_t along, const T* offset, int64_t group,
           int64_t filled)
        : panels(depth * round_up(width / group * filled, PANEL)), offsets(round_up(width / group * filled, PANEL)), depth(depth),
          stride(offsets.size()) {
        for (int64_t j = 0; j < width; j++) {
            const int64_t to = j / group * filled + j % group;
            T* column = &panels[to / PANEL * depth * PANEL + to % PANEL];
            for (int64_t k = 0; k < depth; k++) column[k * PANEL] = source[k * across + j * along];
            if (offset) offsets[to] = offset[j];
        }
    }
    Matrix(const T* source, int64_t depth, int64_t width, int64_t across, int64_t along, const T* offset = nullptr)
        : Matrix(source, depth, width, across, along, offset, width, width) {}

    void multiply(int64_t rows, const T* x, int64_t x_stride, T* y) const {
        for (int64_t panel = 0; panel * PANEL < stride; panel++) {
            int64_t r = 0;
            for (; r + 4 <= rows; r += 4) multiply<4>(x + r * x_stride, x_stride, panel, y + r * stride, stride);
            for (; r < rows; r++) multiply<1>(x + r * x_stride, x_stride, panel, y + r * stride, stride);
        }
    }
};

}  // namespace
