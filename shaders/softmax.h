// The pieces of a softmax that is computed in parts: in log2 space, in float, never NaN by itself.
//
// A part is float2(maximum, sum of exp2(score - maximum)), as in params.h's partial results; the
// merge of parts is Milakov and Gimelshein, "Online normalizer calculation for softmax"
// (arXiv:1805.02867). With log2(e) in the scale of the scores, each exponential is one exp2.
#pragma once

#include <metal_stdlib>

#include "limits.h"

namespace pamx {

using namespace metal;

inline float2 empty_part() { return float2(limits::NO_MAXIMUM, 0.0f); }

// What a part's sum and output are multiplied by when the maximum is `top` instead of its own.
inline float rescale(float maximum, float top) { return exp2(maximum - top); }

// 1 / sum; 0 for a row that saw nothing. A sum that is NaN stays NaN.
inline float inverse(float sum) { return sum == 0.0f ? 0.0f : 1.0f / sum; }

// The part with an attention sink: a logit (natural log) that takes weight and has no value.
inline float2 with_sink(float2 part, float sink) {
  const float logit = sink * limits::LOG2_E;
  const float top = max(part.x, logit);
  return float2(top, part.y * rescale(part.x, top) + exp2(logit - top));
}

// cap * tanh(score / cap); score and cap both in log2 space.
inline float capped(float score, float cap) { return cap * precise::tanh(score / cap); }

}  // namespace pamx
