// The layout of packed matrices: from MLX's arrays, back to them, and single rows.
//
// A panel holds 16 consecutive outputs; the last one is filled up with zeros. In a dense panel
// input k's 16 elements stand together, k ascending. In a quantised panel the groups follow each
// other, and each begins with its 16 scales and 16 biases. Then come its units of 32 inputs, in
// lines of 64 bytes: four bytes for each of the 16 outputs. Bytes hold bit planes: the unit is
// thought of as 8 vectors of 16 x 4 values (vector v has inputs 4v to 4v + 3), and a plane of b
// bits keeps 8 / b vectors in each line, the first in the lowest bits. 8, 4 and 2 bits are one
// plane; 6 bits are the lower 4 and then the upper 2, 3 bits the lower 2 and then the upper 1.
//
// MLX keeps a row's integers as one string of bits, least significant first, in which 3 and 6 bit
// values may cross bytes.
#include <atomic>
#include <cstring>
#include <string>

#include "core/status.hpp"
#include "cpu/linear/linear.hpp"
#include "cpu/worker_pool.hpp"

namespace pamx::cpu {

namespace {
#include "cpu/isa/simd.hpp"

constexpr int32_t kUnit = 32;
constexpr int32_t kLine = 64;

struct Plane {
  int32_t bits;
  int32_t from;  // the value's bit that the plane's lowest one is
  int32_t line;  // the unit's line that it begins with
};

struct Planes {
  Plane planes[2];
  int32_t count;
};

Planes planes_of(int32_t bits) {
  switch (bits) {
    case 3:
      return {{{2, 0, 0}, {1, 2, 2}}, 2};
    case 6:
      return {{{4, 0, 0}, {2, 4, 4}}, 2};
    default:
      return {{{bits, 0, 0}, {}}, 1};
  }
}

void put_unit(const Planes& planes, const uint8_t* values, int32_t lane, uint8_t* unit) {
  for (int32_t i = 0; i < planes.count; ++i) {
    const Plane& p = planes.planes[i];
    const int32_t mask = (1 << p.bits) - 1, per_line = 8 / p.bits;
    for (int32_t k = 0; k < kUnit; ++k) {
      const int32_t v = k / 4;
      uint8_t& byte = unit[(p.line + v / per_line) * kLine + lane * 4 + k % 4];
      byte = static_cast<uint8_t>(byte | ((values[k] >> p.from) & mask) << v % per_line * p.bits);
    }
  }
}

void get_unit(const Planes& planes, const uint8_t* unit, int32_t lane, uint8_t* values) {
  std::memset(values, 0, kUnit);
  for (int32_t i = 0; i < planes.count; ++i) {
    const Plane& p = planes.planes[i];
    const int32_t mask = (1 << p.bits) - 1, per_line = 8 / p.bits;
    for (int32_t k = 0; k < kUnit; ++k) {
      const int32_t v = k / 4;
      const int32_t byte = unit[(p.line + v / per_line) * kLine + lane * 4 + k % 4];
      values[k] =
          static_cast<uint8_t>(values[k] | ((byte >> v % per_line * p.bits) & mask) << p.from);
    }
  }
}

// 32 integers of a row as MLX keeps them: bits * 4 bytes.
void from_string(const uint8_t* string, int32_t bits, uint8_t* values) {
  uint8_t padded[kUnit + 1] = {};
  std::memcpy(padded, string, static_cast<size_t>(bits) * 4);
  for (int32_t k = 0; k < kUnit; ++k) {
    const int32_t at = k * bits;
    const int32_t two = padded[at / 8] | padded[at / 8 + 1] << 8;
    values[k] = static_cast<uint8_t>((two >> at % 8) & ((1 << bits) - 1));
  }
}

void to_string(const uint8_t* values, int32_t bits, uint8_t* string) {
  uint8_t padded[kUnit + 1] = {};
  for (int32_t k = 0; k < kUnit; ++k) {
    const int32_t at = k * bits;
    const int32_t two = values[k] << at % 8;
    padded[at / 8] = static_cast<uint8_t>(padded[at / 8] | two);
    padded[at / 8 + 1] = static_cast<uint8_t>(padded[at / 8 + 1] | two >> 8);
  }
  std::memcpy(string, padded, static_cast<size_t>(bits) * 4);
}

float to_float(Dtype type, const uint8_t* from) {
  if (type == Dtype::float32) {
    float f;
    std::memcpy(&f, from, 4);
    return f;
  }
  uint16_t h;
  std::memcpy(&h, from, 2);
  if (type == Dtype::float16) return float16_to_float(h);
  const uint32_t bits = static_cast<uint32_t>(h) << 16;
  float f;
  std::memcpy(&f, &bits, 4);
  return f;
}

// False when the target cannot hold the number.
bool convert(Dtype from_type, const uint8_t* from, Dtype to_type, uint8_t* to) {
  if (from_type == to_type) {
    std::memcpy(to, from, static_cast<size_t>(size_of(from_type)));
    return true;
  }
  const float f = to_float(from_type, from);
  if (to_type == Dtype::float32) {
    std::memcpy(to, &f, 4);
    return true;
  }
  const uint16_t h = to_type == Dtype::float16 ? float_to_float16(f) : float_to_bfloat16(f);
  std::memcpy(to, &h, 2);
  const float back = to_float(to_type, to);
  return std::memcmp(&back, &f, 4) == 0;
}

void refuse_inexact(bool inexact, Dtype type) {
  static const char* const names[] = {"float32", "float16", "bfloat16"};
  require(!inexact, std::string("a scale, bias or element is no ") +
                        names[static_cast<int32_t>(type)] + " number");
}

int32_t smaller(int32_t a, int32_t b) { return a < b ? a : b; }

}  // namespace

void check(const MatrixFormat& f) {
  const auto text = [](int32_t n) { return std::to_string(n); };
  require(f.outputs >= 1 && f.inputs >= 1,
          "a matrix of " + text(f.outputs) + " x " + text(f.inputs) + " is none");
  require(f.outputs <= kLargestSide && f.inputs <= kLargestSide,
          "a matrix of " + text(f.outputs) + " x " + text(f.inputs) +
              " is too large; the most are " + text(kLargestSide) + " each way");
  require(f.scale_type == Dtype::float32 || f.scale_type == Dtype::float16 ||
              f.scale_type == Dtype::bfloat16,
          "there is no scale_type " + text(static_cast<int32_t>(f.scale_type)));
  if (f.bits == 0) {
    require(f.group_size == 0, "a dense matrix has no groups, not " + text(f.group_size));
    return;
  }
  require(f.bits == 2 || f.bits == 3 || f.bits == 4 || f.bits == 6 || f.bits == 8,
          "bits must be 2, 3, 4, 6 or 8, not " + text(f.bits));
  require(f.group_size == 32 || f.group_size == 64 || f.group_size == 128,
          "group_size must be 32, 64 or 128, not " + text(f.group_size));
  require(f.inputs % f.group_size == 0, text(f.inputs) + " inputs are not a multiple of " +
                                            text(f.group_size) + ", the group size");
}

namespace {

// Goes through panel `panel`, whose bytes begin at p, in the layout's order, over the rows that the
// matrix has. Dense: element(i, at) for element i of the matrix. Quantised: group(i, scale, bias)
// for group i, and unit(at, lane, unit) for the unit whose string of bits begins at byte `at` of
// the matrix.
template <class Byte, class Element, class Group, class Unit>
void for_panel(const MatrixFormat& f, int64_t panel, Byte* p, const Element& element,
               const Group& group, const Unit& unit) {
  const int64_t size = size_of(f.scale_type), first = panel * kPanel;
  const int32_t lanes = smaller(kPanel, f.outputs - static_cast<int32_t>(first));
  if (f.bits == 0) {
    for (int32_t lane = 0; lane < lanes; ++lane) {
      for (int64_t k = 0; k < f.inputs; ++k) {
        element((first + lane) * f.inputs + k, p + (k * kPanel + lane) * size);
      }
    }
    return;
  }
  const int64_t groups = f.inputs / f.group_size, row_bytes = int64_t{f.inputs} * f.bits / 8;
  for (int64_t g = 0; g < groups; ++g) {
    for (int32_t lane = 0; lane < lanes; ++lane) {
      group((first + lane) * groups + g, p + lane * size, p + (kPanel + lane) * size);
    }
    p += f.scale_bytes();
    for (int32_t u = 0; u < f.group_size / kUnit; ++u, p += f.bits * kLine) {
      const int64_t at = (g * f.group_size + u * kUnit) * f.bits / 8;
      for (int32_t lane = 0; lane < lanes; ++lane) unit((first + lane) * row_bytes + at, lane, p);
    }
  }
}

void check_arrays(const MatrixFormat& f, const void* weight, const void* scales, const void* biases,
                  const void* panels) {
  check(f);
  require(weight && panels, "weight and panels must not be null");
  require(f.bits == 0 || (scales && biases), "a quantised matrix needs scales and biases");
}

}  // namespace

void pack(const MatrixFormat& f, const void* weight, const void* scales, const void* biases,
          Dtype type, uint8_t* panels) {
  check_arrays(f, weight, scales, biases, panels);
  const auto* w = static_cast<const uint8_t*>(weight);
  const auto* s = static_cast<const uint8_t*>(scales);
  const auto* b = static_cast<const uint8_t*>(biases);
  const int64_t size = size_of(type);
  const Planes planes = planes_of(f.bits);
  std::atomic<bool> inexact{false};
  worker_pool()->run(f.panels(), [&](int64_t panel) {
    uint8_t* p = panels + panel * f.panel_bytes();
    std::memset(p, 0, static_cast<size_t>(f.panel_bytes()));
    bool fits = true;
    for_panel(
        f, panel, p,
        [&](int64_t i, uint8_t* to) { fits &= convert(type, w + i * size, f.scale_type, to); },
        [&](int64_t i, uint8_t* scale, uint8_t* bias) {
          fits &= convert(type, s + i * size, f.scale_type, scale);
          fits &= convert(type, b + i * size, f.scale_type, bias);
        },
        [&](int64_t at, int32_t lane, uint8_t* unit) {
          uint8_t values[kUnit];
          from_string(w + at, f.bits, values);
          put_unit(planes, values, lane, unit);
        });
    if (!fits) inexact = true;
  });
  refuse_inexact(inexact, f.scale_type);
}

void unpack(const MatrixFormat& f, const uint8_t* panels, void* weight, void* scales, void* biases,
            Dtype type) {
  check_arrays(f, weight, scales, biases, panels);
  auto* w = static_cast<uint8_t*>(weight);
  auto* s = static_cast<uint8_t*>(scales);
  auto* b = static_cast<uint8_t*>(biases);
  const int64_t size = size_of(type);
  const Planes planes = planes_of(f.bits);
  std::atomic<bool> inexact{false};
  worker_pool()->run(f.panels(), [&](int64_t panel) {
    bool fits = true;
    for_panel(
        f, panel, panels + panel * f.panel_bytes(),
        [&](int64_t i, const uint8_t* from) {
          fits &= convert(f.scale_type, from, type, w + i * size);
        },
        [&](int64_t i, const uint8_t* scale, const uint8_t* bias) {
          fits &= convert(f.scale_type, scale, type, s + i * size);
          fits &= convert(f.scale_type, bias, type, b + i * size);
        },
        [&](int64_t at, int32_t lane, const uint8_t* unit) {
          uint8_t values[kUnit];
          get_unit(planes, unit, lane, values);
          to_string(values, f.bits, w + at);
        });
    if (!fits) inexact = true;
  });
  refuse_inexact(inexact, type);
}

namespace {

// q * scale + bias with the roundings of arithmetic in `type`.
float dequantised(uint8_t q, float scale, float bias, Dtype type) {
  const float product = static_cast<float>(q) * scale;
  if (type == Dtype::float32) return product + bias;
  const auto rounded = [&](float f) {
    const uint16_t h = type == Dtype::float16 ? float_to_float16(f) : float_to_bfloat16(f);
    uint8_t bytes[2];
    std::memcpy(bytes, &h, 2);
    return to_float(type, bytes);
  };
  return rounded(rounded(product) + bias);
}

void embed_row(const Matrix& m, int32_t id, Dtype arithmetic, float* out) {
  const MatrixFormat& f = m.format;
  const uint8_t* p = m.panels + id / kPanel * f.panel_bytes();
  const int32_t lane = id % kPanel;
  const int64_t size = size_of(f.scale_type);
  if (f.bits == 0) {
    for (int64_t k = 0; k < f.inputs; ++k) {
      out[k] = to_float(f.scale_type, p + (k * kPanel + lane) * size);
    }
    return;
  }
  const Planes planes = planes_of(f.bits);
  for (int32_t k = 0; k < f.inputs;) {
    const float scale = to_float(f.scale_type, p + lane * size);
    const float bias = to_float(f.scale_type, p + (kPanel + lane) * size);
    p += f.scale_bytes();
    for (int32_t u = 0; u < f.group_size / kUnit; ++u, p += f.bits * kLine) {
      uint8_t values[kUnit];
      get_unit(planes, p, lane, values);
      for (const uint8_t q : values) out[k++] = dequantised(q, scale, bias, arithmetic);
    }
  }
}

}  // namespace

void embed(const Matrix& m, const int32_t* ids, int32_t count, Dtype arithmetic, float* out,
           int64_t out_stride) {
  constexpr int32_t kAtOnce = 4;
  worker_pool()->run((count + kAtOnce - 1) / kAtOnce, [&](int64_t item) {
    const int32_t begin = static_cast<int32_t>(item) * kAtOnce;
    for (int32_t i = begin; i < smaller(count, begin + kAtOnce); ++i) {
      embed_row(m, ids[i], arithmetic, out + i * out_stride);
    }
  });
}

}  // namespace pamx::cpu
