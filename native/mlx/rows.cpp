// From an array's shape and strides to rows along its last axis.
#include "mlx/rows.hpp"

#include "core/status.hpp"
#include "mlx/pool.hpp"

namespace pamx {

namespace mx = mlx::core;

void check_rows_of(const mx::array& a, const char* name) {
  require(served_dtype(a.dtype()), [&] {
    return std::string(name) + " is " + dtype_string(a.dtype()) +
           "; float32, float16 and bfloat16 are served";
  });
  require(a.ndim() >= 1 && a.ndim() <= cpu::RowView::kMaxAxes, [&] {
    return std::string(name) + " has " + std::to_string(a.ndim()) + " axes; 1 to " +
           std::to_string(cpu::RowView::kMaxAxes) + " are served";
  });
}

cpu::RowView row_view(const mx::array& a) {
  cpu::RowView view;
  view.data = a.data<char>();
  view.dtype = cpu_dtype(a.dtype());
  const int last = static_cast<int>(a.ndim()) - 1;
  view.width = a.shape(last);
  view.stride = view.width == 1 ? 1 : a.strides(last);
  for (int i = 0; i < last; ++i) {
    const int64_t length = a.shape(i), stride = a.strides(i);
    if (length == 1) continue;
    // An axis that continues the one before it is no axis of its own.
    if (view.axes > 0 && view.strides[view.axes - 1] == stride * length) {
      view.lengths[view.axes - 1] *= length;
      view.strides[view.axes - 1] = stride;
    } else {
      view.lengths[view.axes] = length;
      view.strides[view.axes++] = stride;
    }
  }
  return view;
}

}  // namespace pamx
