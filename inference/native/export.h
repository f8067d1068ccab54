// C functions for numbers of both sizes: of `name`, `name_f64` and `name_f32`.
#pragma once
#if defined(_WIN32)
#define EXPORT extern "C" __declspec(dllexport)
#else
#define EXPORT extern "C" __attribute__((visibility("default")))
#endif
#define F64(name) name##_f64
#define F32(name) name##_f32
#define FOR_BOTH(functions) functions(double, F64) functions(float, F32)
