// Norms, rotary positions and gates as MLX primitives.
#include <cmath>

#include "mlx/bridge.hpp"
#include "mlx/cpu_operation.hpp"
#include "mlx/pool.hpp"
#include "mlx/rows.hpp"
#include "mlx/utils.h"

namespace pamx {

namespace mx = mlx::core;

namespace {

class Norm : public CpuOperation {
 public:
  Norm(mx::Stream stream, cpu::NormKind kind, float eps, bool has_weight, bool has_bias)
      : CpuOperation(stream),
        kind_(kind),
        eps_(eps),
        has_weight_(has_weight),
        has_bias_(has_bias) {}

  const char* name() const override { return "PamxNorm"; }

 protected:
  void dispatch(mx::cpu::CommandEncoder& encoder, const std::vector<mx::array>& in,
                mx::array& out) override {
    cpu::NormCall call;
    call.kind = kind_;
    call.eps = eps_;
    call.x = row_view(in[0]);
    if (has_weight_) call.weight = row_view(in[1]);
    if (has_bias_) call.bias = row_view(in.back());
    call.out_dtype = cpu_dtype(out.dtype());
    call.out = out.data<char>();
    encoder.dispatch([call] { cpu::run(call); });
  }

 private:
  cpu::NormKind kind_;
  float eps_;
  bool has_weight_, has_bias_;
};

class Gated : public CpuOperation {
 public:
  Gated(mx::Stream stream, cpu::Gate kind) : CpuOperation(stream), kind_(kind) {}

  const char* name() const override { return "PamxGated"; }

 protected:
  void dispatch(mx::cpu::CommandEncoder& encoder, const std::vector<mx::array>& in,
                mx::array& out) override {
    cpu::GateCall call;
    call.kind = kind_;
    call.gate = row_view(in[0]);
    if (in.size() > 1) call.up = row_view(in[1]);
    call.out_dtype = cpu_dtype(out.dtype());
    call.out = out.data<char>();
    encoder.dispatch([call] { cpu::run(call); });
  }

 private:
  cpu::Gate kind_;
};

class ApplyRope : public CpuOperation {
 public:
  ApplyRope(mx::Stream stream, std::shared_ptr<const cpu::Rope> rope, int32_t offset)
      : CpuOperation(stream), rope_(std::move(rope)), offset_(offset) {}

  const char* name() const override { return "PamxRope"; }

 protected:
  void dispatch(mx::cpu::CommandEncoder& encoder, const std::vector<mx::array>& in,
                mx::array& out) override {
    const auto& x = in[0];
    cpu::RopeCall call;
    call.rope = rope_.get();
    call.x = row_view(x);
    call.batch = x.shape(0);
    call.length = x.shape(-2);
    call.offset = offset_;
    if (in.size() > 1) {
      call.offsets = in[1].data<int32_t>();
      call.offsets_stride = in[1].size() > 1 ? in[1].strides(0) : 0;
    }
    call.out = out.data<char>();
    encoder.dispatch([call, rope = rope_] { cpu::run(call); });
  }

 private:
  std::shared_ptr<const cpu::Rope> rope_;
  int32_t offset_;
};

mx::array norm(cpu::NormKind kind, const mx::array& x, const mx::array* weight,
               const mx::array* bias, float eps) {
  check_rows_of(x, "x");
  require(std::isfinite(eps) && eps >= 0, "eps must be a number of at least 0");
  mx::Dtype dtype = x.dtype();
  std::vector<mx::array> inputs{x};
  for (const auto& [parameter, name] : {std::pair{weight, "weight"}, std::pair{bias, "bias"}}) {
    if (!parameter) continue;
    check_rows_of(*parameter, name);
    require(parameter->shape() == mx::Shape{x.shape(-1)}, [&x, parameter = parameter, name = name] {
      return std::string(name) + " has shape " + shape_string(parameter->shape()) +
             ", x's rows have " + std::to_string(x.shape(-1)) + " elements";
    });
    dtype = mx::promote_types(dtype, parameter->dtype());
    inputs.push_back(*parameter);
  }
  return mx::array(
      x.shape(), dtype,
      std::make_shared<Norm>(cpu_stream(), kind, eps, weight != nullptr, bias != nullptr), inputs);
}

mx::array gated(int32_t kind, const mx::array& gate, const mx::array* up) {
  require(kind >= PAMX_GATE_SILU && kind <= PAMX_GATE_RELU,
          [&] { return "there is no gate of kind " + std::to_string(kind); });
  check_rows_of(gate, "gate");
  mx::Dtype dtype = gate.dtype();
  std::vector<mx::array> inputs{gate};
  if (up) {
    check_rows_of(*up, "up");
    require(up->shape() == gate.shape(), [&] {
      return "gate has shape " + shape_string(gate.shape()) + ", up " + shape_string(up->shape());
    });
    dtype = mx::promote_types(dtype, up->dtype());
    inputs.push_back(*up);
  }
  return mx::array(gate.shape(), dtype,
                   std::make_shared<Gated>(cpu_stream(), static_cast<cpu::Gate>(kind)), inputs);
}

mx::array apply_rope(const std::shared_ptr<const cpu::Rope>& rope, const mx::array& x,
                     int32_t offset, const mx::array* offsets) {
  check_rows_of(x, "x");
  require(x.ndim() >= 3, [&] {
    return "x has shape " + shape_string(x.shape()) + " instead of [batch, ..., length, dim]";
  });
  require(x.shape(-1) >= 2 * rope->pairs(), [&] {
    return "x's rows have " + std::to_string(x.shape(-1)) + " elements; the rope rotates " +
           std::to_string(2 * rope->pairs());
  });
  std::vector<mx::array> inputs{x};
  if (offsets) {
    require(offsets->dtype() == mx::int32,
            [&] { return "offsets are " + dtype_string(offsets->dtype()) + " instead of int32"; });
    require(offsets->ndim() == 0 ||
                (offsets->ndim() == 1 && (offsets->size() == 1 || offsets->shape(0) == x.shape(0))),
            [&] {
              return "offsets have shape " + shape_string(offsets->shape()) + " instead of [" +
                     std::to_string(x.shape(0)) + "], [1] or []";
            });
    inputs.push_back(*offsets);
  }
  return mx::array(x.shape(), x.dtype(), std::make_shared<ApplyRope>(cpu_stream(), rope, offset),
                   inputs);
}

}  // namespace

}  // namespace pamx

extern "C" int pamx_rms_norm(pamx_object x, pamx_object weight, float eps, pamx_object out) {
  return pamx::guarded([&] {
    using pamx::array_of;
    auto& result = array_of(out, "out");
    result = pamx::norm(pamx::cpu::NormKind::rms, array_of(x, "x"),
                        weight ? &array_of(weight, "weight") : nullptr, nullptr, eps);
  });
}

extern "C" int pamx_layer_norm(pamx_object x, pamx_object weight, pamx_object bias, float eps,
                               pamx_object out) {
  return pamx::guarded([&] {
    using pamx::array_of;
    auto& result = array_of(out, "out");
    result = pamx::norm(pamx::cpu::NormKind::layer, array_of(x, "x"),
                        weight ? &array_of(weight, "weight") : nullptr,
                        bias ? &array_of(bias, "bias") : nullptr, eps);
  });
}

extern "C" int pamx_gated(int32_t kind, pamx_object gate, pamx_object up, pamx_object out) {
  return pamx::guarded([&] {
    using pamx::array_of;
    auto& result = array_of(out, "out");
    result = pamx::gated(kind, array_of(gate, "gate"), up ? &array_of(up, "up") : nullptr);
  });
}

extern "C" int pamx_rope_apply(const pamx_rope* rope, pamx_object x, int32_t offset,
                               pamx_object offsets, pamx_object out) {
  return pamx::guarded([&] {
    using pamx::array_of;
    pamx::require(rope != nullptr, "the rope is null");
    auto& result = array_of(out, "out");
    result = pamx::apply_rope(rope->rope, array_of(x, "x"), offset,
                              offsets ? &array_of(offsets, "offsets") : nullptr);
  });
}
