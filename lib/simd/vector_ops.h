// Small vector kernels: conversion, rotation, normalisation.
#ifndef ATTNSERVE_LIB_SIMD_VECTOR_OPS_H_
#define ATTNSERVE_LIB_SIMD_VECTOR_OPS_H_

#include <cstdint>

#include "lib/base/element_type.h"

namespace attnserve::simd {

// Name of the instruction set the kernels dispatch to on this machine, for example "AVX2".
const char* InstructionSet();

// "fma" or "mul-add": machines of one family compute the same bits.
const char* KernelFamily();

// F32 <-> F16 / BF16, the bits of lib/base/element_type.h. `source` and `target` may be misaligned.
void Widen(DType type, const void* source, int64_t count, float* target);
void Narrow(const float* source, int64_t count, DType type, void* target);

// Largest magnitude among `count` elements; NaN if any is not finite.
float LargestMagnitude(const float* source, int64_t count);

// target = source / scale to nearest, ties to even, within [-127, 127]; all 0 unless `scale` is
// above 0. For I8 caches (kv_layout.h): scale = LargestMagnitude / 127.
void Quantize(const float* source, int64_t count, float scale, int8_t* target);

// e^x with at most 2 ulp of error for x <= 0; 0 below -87.3; NaN stays NaN. The same approximation
// the attention kernels use.
void Exp(const float* source, int64_t count, float* target);

// Whether all elements are finite.
bool AllFinite(const float* source, int64_t count);

// Rotates pairs of `head` in place by cosine[i], sine[i], i < dimension / 2: half-split pairs
// (i, i + dimension / 2), or interleaved ones (2i, 2i + 1).
void Rotate(float* head, int64_t dimension, bool interleaved, const float* cosine,
            const float* sine);

// target = (source - mean) / sqrt(variance + epsilon) * weight + bias over `count` elements;
// without `center` the mean is 0 and the variance the mean square. weight null: 1; bias null: 0. In
// place is legal.
void Normalize(const float* source, int64_t count, bool center, float epsilon, const float* weight,
               const float* bias, float* target);

}  // namespace attnserve::simd

#endif  // ATTNSERVE_LIB_SIMD_VECTOR_OPS_H_
