// Rules that choose the kernels, the split and the order of one paged-attention call on a GPU.
#include "plan/gpu_attention.hpp"

#include <algorithm>
#include <limits>

#include "core/status.hpp"

namespace pamx::plan {

namespace {

constexpr auto kLarge = static_cast<int32_t>(limits::PARTITION_SIZE);
constexpr auto kSmall = static_cast<int32_t>(limits::SMALL_PARTITION_SIZE);
constexpr auto kScratchCap = static_cast<int64_t>(limits::SCRATCH_CAP);
constexpr int64_t kScratchAlignment = 256;  // bytes: what buffer offsets must have on any Mac

constexpr const char* kSharing = "gqa_decode, group-sharing";
constexpr const char* kHeads = "gqa_decode, one simdgroup a query head";
constexpr const char* kSplit = "split-KV";
constexpr const char* kUnified = "unified";
constexpr const char* kTiled = "tiled prefill";
constexpr const char* kNax = "NAX prefill";
constexpr const char* kMlaSplit = "MLA decode, split";
constexpr const char* kMlaUnsplit = "MLA decode, not split";
constexpr const char* kMlaPrefill = "MLA prefill";

// Of what is not negative; the sum of both may be more than Integer holds.
template <class Integer>
Integer ceil_div(Integer a, Integer b) {
  return a / b + (a % b != 0);
}

// Where products of counts stop: a few of these can still be added.
constexpr int64_t kCountless = std::numeric_limits<int64_t>::max() / 8;

int64_t product(int64_t a, int64_t b) {
  int64_t result = 0;
  return __builtin_mul_overflow(a, b, &result) ? kCountless : std::min(result, kCountless);
}

std::string number(int64_t n) { return std::to_string(n); }

// What one query token sees: the positions [low, end).
struct Span {
  int32_t low, end;
};

// The sequences of one part, and what each of their query tokens sees.
struct Input {
  std::vector<int32_t> sequences;
  std::vector<Span> spans;
  int32_t longest = 0;

  int64_t full_partitions(int32_t partition) const {
    int64_t count = 0;
    for (const Span& s : spans) count += full(s, partition);
    return count;
  }
  int32_t most_full_partitions(int32_t partition) const {
    int32_t most = 0;
    for (const Span& s : spans) most = std::max(most, full(s, partition));
    return most;
  }

 private:
  static int32_t full(const Span& s, int32_t partition) {
    return std::max(0, s.end / partition - ceil_div(s.low, partition));
  }
};

struct Context {
  const GpuAttention& call;
  const AttentionSequences& sequences;
  const GpuMachine& machine;
  const Overrides& overrides;
  const Abilities& abilities;

  int32_t group() const { return call.geometry.heads / call.geometry.kv_heads; }
  int64_t budget(int32_t cores) const { return int64_t{limits::SIMDGROUPS_PER_CORE} * cores; }
};

Input input_of(const Context& c, bool decode) {
  Input in;
  const int32_t window = c.call.geometry.window;
  for (int32_t s = 0; s < c.sequences.count; ++s) {
    const int32_t queries = c.sequences.query_starts[s + 1] - c.sequences.query_starts[s];
    if ((queries == 1) != decode) continue;
    const int32_t context = c.sequences.context_lens[s];
    in.sequences.push_back(s);
    in.longest = std::max(in.longest, context);
    for (int32_t unseen = queries - 1; unseen >= 0; --unseen) {
      const int32_t end = context - unseen;
      in.spans.push_back({window > 0 ? std::max(0, end - window) : 0, end});
    }
  }
  return in;
}

std::vector<WorkRow> rows_of(const Context& c, const Input& in, int32_t tokens_a_row) {
  std::vector<WorkRow> rows;
  for (const int32_t s : in.sequences) {
    const int64_t end = c.sequences.query_starts[s + 1];
    for (int64_t at = c.sequences.query_starts[s]; at < end; at += tokens_a_row) {
      rows.push_back({static_cast<uint32_t>(s), static_cast<uint32_t>(at),
                      static_cast<uint32_t>(std::min<int64_t>(tokens_a_row, end - at))});
    }
  }
  return rows;
}

// Dispatches that would serve a part, or why there are none.
struct Fit {
  std::string why_not;
  std::vector<GpuDispatch> dispatches;
  int32_t partition = 0;
  int32_t num_partitions = 0;
  int32_t tokens_a_row = 1;
  int64_t simdgroups = 0;     // that the producer launches
  int64_t scratch_end = 0;    // of the call, this part included
  int64_t scratch_bytes = 0;  // of this part

  explicit operator bool() const { return why_not.empty(); }
};

int64_t volume(const std::array<uint32_t, 3>& sides) {
  return product(product(sides[0], sides[1]), sides[2]);
}

std::string over_the_machine(const Launch& launch, const GpuMachine& machine) {
  const int64_t threads = volume(launch.threadgroup);
  if (launch.threadgroup_bytes > static_cast<uint64_t>(machine.threadgroup_memory)) {
    return launch.function + " takes " + number(launch.threadgroup_bytes) +
           " bytes of threadgroup memory, of " + number(machine.threadgroup_memory);
  }
  if (threads > machine.threadgroup_threads) {
    return launch.function + " takes " + number(threads) + " threads a threadgroup, of " +
           number(machine.threadgroup_threads);
  }
  return "";
}

Fit fit(const Context& c, const Input& in, Kernel kernel, int32_t partition, int64_t scratch_used) {
  const AttentionGeometry& g = c.call.geometry;
  Fit found;
  found.partition = partition;
  found.num_partitions = partition > 0 ? ceil_div(in.longest, partition) : 0;

  LaunchShape shape;
  shape.kernel = kernel;
  shape.dtype = c.call.dtype;
  shape.pool_dtype = c.call.pool_dtype;
  shape.heads = g.heads;
  shape.kv_heads = g.kv_heads;
  shape.k_dim = g.k_dim;
  shape.v_dim = g.v_dim;
  shape.block_size = c.call.block_size;
  shape.partition = partition;
  shape.num_partitions = found.num_partitions;
  shape.rows = static_cast<int32_t>(in.spans.size());
  shape.window = g.window > 0;
  shape.softcap = c.call.softcap;
  shape.sinks = c.call.sinks;

  Ability able = c.abilities(shape);
  if (able.why_not.empty() && able.tokens_a_row > 1) {
    found.tokens_a_row = able.tokens_a_row;
    shape.rows = static_cast<int32_t>(rows_of(c, in, able.tokens_a_row).size());
    able = c.abilities(shape);
  }
  found.why_not = able.why_not;
  if (found) found.why_not = over_the_machine(able.launch, c.machine);
  if (!found) return found;
  const Launch& launch = able.launch;
  found.simdgroups = product(volume(launch.grid),
                             ceil_div(volume(launch.threadgroup), int64_t{limits::SIMD_WIDTH}));

  LaunchShape reducer = shape;
  reducer.kernel = Kernel::split_kv_reduce;
  Ability reduces;
  int64_t partial_out = -1, partial_stats = -1;
  found.scratch_end = scratch_used;
  if (partition > 0) {
    const auto place = [&](int64_t bytes) {
      const int64_t at = ceil_div(found.scratch_end, kScratchAlignment) * kScratchAlignment;
      found.scratch_end = at + bytes;
      return at;
    };
    const int64_t partials = product(product(shape.rows, g.heads), found.num_partitions);
    partial_out = place(product(partials, int64_t{g.v_dim} * 4));
    partial_stats = place(product(partials, 8));
    found.scratch_bytes = found.scratch_end - scratch_used;
    if (found.scratch_end > kScratchCap) {
      const char* at_least = found.scratch_bytes >= kCountless ? "at least " : "";
      found.why_not = std::string("its partial results would take ") + at_least +
                      number(found.scratch_bytes >> 20) + " MiB of scratch, of " +
                      number((kScratchCap - scratch_used) >> 20) + " MiB";
      return found;
    }
    reduces = c.abilities(reducer);
    if (reduces.why_not.empty()) reduces.why_not = over_the_machine(reduces.launch, c.machine);
    if (!reduces.why_not.empty()) {
      found.why_not = "the reducer cannot merge its " + number(found.num_partitions) +
                      " partitions: " + reduces.why_not;
      return found;
    }
  }
  found.dispatches.push_back({shape, std::move(able.launch), rows_of(c, in, found.tokens_a_row),
                              found.tokens_a_row, partial_out, partial_stats});
  if (partition > 0) {
    found.dispatches.push_back({reducer, std::move(reduces.launch), found.dispatches[0].rows,
                                found.tokens_a_row, partial_out, partial_stats});
  }
  return found;
}

// A part under way.
struct Draft {
  GpuPart part;
  std::vector<GpuDispatch> dispatches;
  int64_t scratch_end = 0;

  void turn_down(const std::string& path, const std::string& reason) {
    part.turned_down.push_back({path, reason});
  }
  void take(Fit found, const char* path, DispatchKind kind, int64_t work, std::string why) {
    part.kind = kind;
    part.kernel = found.dispatches[0].shape.kernel;
    part.rows = found.dispatches[0].shape.rows;
    part.partition = found.partition;
    part.num_partitions = found.num_partitions;
    part.work = work;
    part.scratch_bytes = found.scratch_bytes;
    part.path = path;
    part.why = std::move(why);
    scratch_end = found.scratch_end;
    dispatches = std::move(found.dispatches);
  }
  [[noreturn]] void fail(const std::string& what) const {
    std::string text = what;
    const char* before = ": ";
    for (const TurnedDown& t : part.turned_down) {
      text += before + ("not " + t.path) + ", since " + t.reason;
      before = "; ";
    }
    throw Error(PAMX_UNSUPPORTED, text);
  }
};

std::string of_tokens(const char* path, int32_t partition) {
  return std::string(path) + ", of " + number(partition) + " tokens";
}

// ---- gqa_decode -------------------------------------------------------------------------------

struct Rule {
  std::vector<int32_t> partitions;  // to be tried in order; empty: none
  std::string why;                  // this choice, or none
};

std::string in_budget(const Context& c) {
  return number(c.budget(c.machine.cores)) + " (" + number(limits::SIMDGROUPS_PER_CORE) +
         " for each of " + number(c.machine.cores) + " cores)";
}

// The work of gqa_decode, in simdgroups: only partitions that are seen whole count.
int64_t gqa_work(const Context& c, const Input& in, int32_t partition) {
  return product(c.call.geometry.heads, in.full_partitions(partition));
}

bool is_calibrated_m3(const Context& c) {
  return c.machine.architecture == "applegpu_g15g" &&
         c.machine.cores == static_cast<int32_t>(limits::M3_CORES);
}

Rule gqa_rule(const Context& c, const Input& in) {
  const AttentionGeometry& g = c.call.geometry;
  if (c.machine.cores <= 0) {
    return {{}, "the GPU's cores are not known, and the work that is worth it depends on them"};
  }
  const int64_t budget = c.budget(c.machine.cores);
  const int64_t large = gqa_work(c, in, kLarge), small = gqa_work(c, in, kSmall);
  if (std::max(large, small) < budget) {
    return {{},
            "the full partitions of " + number(kSmall) + " tokens make " + number(small) +
                " simdgroups for " + number(g.heads) + " query heads, fewer than " + in_budget(c)};
  }
  const auto requests = static_cast<uint32_t>(in.sequences.size());
  const auto longest = static_cast<uint32_t>(in.longest);
  const bool several_on_m3 = is_calibrated_m3(c) && requests > 1;
  if (several_on_m3 && g.heads == 32 && g.kv_heads == 8 && g.k_dim == 128 && g.v_dim == 128 &&
      requests == limits::M3_SLOW_REQUESTS && longest < limits::M3_SLOW_CONTEXT) {
    return {{},
            "on a 10-core M3 it measured slower for 6 requests whose longest has fewer than " +
                number(limits::M3_SLOW_CONTEXT) + " tokens"};
  }
  const auto enough = [&](int32_t partition, int64_t work) {
    return "the full partitions of " + number(partition) + " tokens make " + number(work) +
           " simdgroups for " + number(g.heads) + " query heads, at least " + in_budget(c);
  };
  if (large < budget) {
    return {
        {kSmall, kLarge},
        enough(kSmall, small) + "; those of " + number(kLarge) + " tokens make " + number(large)};
  }
  const uint32_t small_from = c.call.block_size == 16   ? limits::M3_SMALL_FROM_16
                              : c.call.block_size == 32 ? limits::M3_SMALL_FROM_32
                                                        : UINT32_MAX;
  if (several_on_m3 && g.k_dim == static_cast<int32_t>(limits::M3_SMALL_HEAD_DIM) &&
      g.v_dim == g.k_dim && longest >= small_from) {
    return {{kSmall, kLarge},
            "on a 10-core M3, " + number(kSmall) + " tokens measured faster than " +
                number(kLarge) + " for head size 256 and blocks of " + number(c.call.block_size) +
                " once the longest of several requests has " + number(small_from) + " tokens"};
  }
  return {{kLarge}, enough(kLarge, large)};
}

// Why the group-sharing form should not be taken, wherever its kernel could.
std::string against_sharing(const Context& c) {
  const int64_t floats = int64_t{c.group()} * c.call.geometry.v_dim;
  if (c.group() == 1) return "a KV head has one query head, so nothing is shared";
  if (floats > int64_t{limits::LARGEST_SHARED_OUTPUT}) {
    return "a group's outputs are " + number(floats) + " floats, and registers hold " +
           number(limits::LARGEST_SHARED_OUTPUT);
  }
  return "";
}

bool take_gqa(const Context& c, const Input& in, int32_t forced, int64_t scratch_used,
              Draft* draft) {
  const auto neither = [&](const std::string& why) {
    draft->turn_down(kSharing, why);
    draft->turn_down(kHeads, why);
    return false;
  };
  if (c.overrides.disable_gqa_decode) return neither("PAMX_DISABLE_GQA_DECODE is set");
  if (c.group() > static_cast<int32_t>(limits::LARGEST_GQA_GROUP)) {
    return neither("a KV head has " + number(c.group()) + " query heads, more than " +
                   number(limits::LARGEST_GQA_GROUP));
  }
  const Rule rule =
      forced > 0 ? Rule{{forced}, number(forced) + " tokens are forced"} : gqa_rule(c, in);
  if (rule.partitions.empty()) return neither(rule.why);

  const std::string unshared = against_sharing(c);
  if (!unshared.empty()) draft->turn_down(kSharing, unshared);
  for (const int32_t partition : rule.partitions) {
    const bool fewer = partition != rule.partitions[0];
    const std::string why = fewer ? "fewer partitions do fit" : rule.why;
    if (unshared.empty()) {
      Fit found = fit(c, in, Kernel::gqa_decode, partition, scratch_used);
      if (found) {
        draft->take(std::move(found), kSharing, DispatchKind::gqa_decode,
                    gqa_work(c, in, partition), why);
        draft->turn_down(kHeads, "it reads a page once for each of the " + number(c.group()) +
                                     " query heads of a group");
        return true;
      }
      draft->turn_down(of_tokens(kSharing, partition), found.why_not);
    }
    Fit found = fit(c, in, Kernel::gqa_decode_heads, partition, scratch_used);
    if (found) {
      draft->take(std::move(found), kHeads, DispatchKind::gqa_decode, gqa_work(c, in, partition),
                  why);
      return true;
    }
    draft->turn_down(of_tokens(kHeads, partition), found.why_not);
  }
  return false;
}

// ---- kernels that take any row, split or not --------------------------------------------------

Rule split_rule(const Context& c, const Input& in, const Fit& unsplit) {
  const bool known = c.machine.cores > 0;
  const int64_t budget =
      c.budget(known ? c.machine.cores : static_cast<int32_t>(limits::FEWEST_CORES));
  const std::string cores =
      known ? number(c.machine.cores) + " cores"
            : "the " + number(limits::FEWEST_CORES) + " that any GPU has, its own being unknown";
  if (unsplit.simdgroups >= budget) {
    return {{},
            number(unsplit.simdgroups) + " simdgroups fill the GPU without it: " + number(budget) +
                " do (" + number(limits::SIMDGROUPS_PER_CORE) + " for each of " + cores + ")"};
  }
  const auto rows = static_cast<int64_t>(in.spans.size());
  const auto work = [&](int32_t partition) {
    return product(unsplit.simdgroups, in.full_partitions(partition)) / rows;
  };
  const auto pays = [&](int32_t partition) {
    return in.most_full_partitions(partition) >=
           static_cast<int32_t>(limits::FEWEST_SPLIT_PARTITIONS);
  };
  const std::string idle = number(unsplit.simdgroups) +
                           " simdgroups would not fill the GPU: " + number(budget) + " do (" +
                           number(limits::SIMDGROUPS_PER_CORE) + " for each of " + cores + ")";
  if (pays(kLarge) && (!known || work(kLarge) >= budget)) return {{kLarge}, idle};
  if (known && pays(kSmall)) {
    return {{kSmall, kLarge}, idle + "; nor would partitions of " + number(kLarge) + " tokens"};
  }
  return {{},
          "no row sees " + number(limits::FEWEST_SPLIT_PARTITIONS) + " full partitions of " +
              number(known ? kSmall : kLarge) + " tokens"};
}

// Split or not, by the rule; false: the kernel serves neither.
bool take_any(const Context& c, const Input& in, Kernel kernel, int32_t forced,
              int64_t scratch_used, Draft* draft) {
  const bool mla = kernel == Kernel::mla_decode;
  const char* split_path = mla ? kMlaSplit : kSplit;
  const char* unsplit_path = mla ? kMlaUnsplit : kUnified;
  Fit unsplit = fit(c, in, kernel, 0, 0);
  if (!unsplit && forced == 0) {
    draft->turn_down(split_path, unsplit.why_not);
    draft->turn_down(unsplit_path, unsplit.why_not);
    return false;
  }
  const Rule rule = forced > 0 ? Rule{{forced}, number(forced) + " tokens are forced"}
                               : split_rule(c, in, unsplit);
  if (rule.partitions.empty()) draft->turn_down(split_path, rule.why);
  for (const int32_t partition : rule.partitions) {
    Fit found = fit(c, in, kernel, partition, scratch_used);
    if (found) {
      const int64_t work = found.simdgroups;
      draft->take(std::move(found), split_path, mla ? DispatchKind::mla : DispatchKind::split_kv,
                  work, partition == rule.partitions[0] ? rule.why : "fewer partitions do fit");
      if (forced == 0) {
        draft->turn_down(unsplit_path, "it has one threadgroup read the whole context of a row");
      }
      return true;
    }
    draft->turn_down(of_tokens(split_path, partition), found.why_not);
  }
  if (forced > 0) return false;
  const int64_t work = unsplit.simdgroups;
  unsplit.scratch_end = scratch_used;
  draft->take(std::move(unsplit), unsplit_path, mla ? DispatchKind::mla : DispatchKind::unified,
              work, "it serves any row, and splitting was turned down");
  return true;
}

// ---- tiled kernels ----------------------------------------------------------------------------

bool take_tiled(const Context& c, const Input& in, Kernel kernel, const char* path,
                DispatchKind kind, const std::string& why, int64_t scratch_used, Draft* draft) {
  Fit found = fit(c, in, kernel, 0, scratch_used);
  if (!found) {
    draft->turn_down(path, found.why_not);
    return false;
  }
  const auto tokens = static_cast<int64_t>(in.spans.size());
  const int64_t room = product(found.dispatches[0].shape.rows, found.tokens_a_row);
  if (tokens * limits::LEAST_TILE_SHARE < room) {
    draft->turn_down(path, "its tiles of " + number(found.tokens_a_row) + " tokens would be " +
                               number(tokens * 100 / room) + "% full, less than 1/" +
                               number(limits::LEAST_TILE_SHARE));
    return false;
  }
  const int64_t work = found.simdgroups;
  draft->take(std::move(found), path, kind, work, why);
  return true;
}

std::string against_nax(const Context& c) {
  if (c.overrides.disable_nax) return "PAMX_DISABLE_NAX is set";
  if (!c.machine.tensor_units) return "this GPU has no tensor units";
  if (!c.machine.tensor_compiler) {
    return "this system's Metal cannot compile for the GPU's tensor units";
  }
  return "";
}

// ---- the two parts ----------------------------------------------------------------------------

Draft decode_part(const Context& c, const Input& in) {
  Draft draft;
  const int32_t forced = c.overrides.force_partition;
  const Kernel any = c.call.mla ? Kernel::mla_decode : Kernel::paged_attention;
  if (!c.call.mla && take_gqa(c, in, forced, 0, &draft)) {
    if (forced > 0) return draft;
    draft.turn_down(kSplit, "its query heads do not share what they read");
    draft.turn_down(kUnified, "it has one threadgroup read the whole context of a row");
    return draft;
  }
  if (take_any(c, in, any, forced, 0, &draft)) return draft;
  if (forced > 0) {
    draft.fail("partitions of " + number(forced) + " tokens are forced, and no kernel has them");
  }
  draft.fail("no kernel serves the decode rows");
}

Draft prefill_part(const Context& c, const Input& in, int64_t scratch_used) {
  Draft draft;
  draft.scratch_end = scratch_used;
  if (c.call.mla) {
    if (take_tiled(c, in, Kernel::mla_prefill, kMlaPrefill, DispatchKind::mla,
                   "tiles of query tokens share what they read", scratch_used, &draft)) {
      return draft;
    }
    if (take_any(c, in, Kernel::mla_decode, 0, scratch_used, &draft)) return draft;
    draft.fail("no kernel serves the prefill rows");
  }
  const auto against_unified = [&] {
    draft.turn_down(kSplit, "it takes query tokens one by one");
    draft.turn_down(kUnified, "it takes query tokens one by one");
  };
  if (const std::string why = against_nax(c); !why.empty()) {
    draft.turn_down(kNax, why);
  } else if (take_tiled(c, in, Kernel::prefill_nax, kNax, DispatchKind::nax_prefill,
                        "this GPU has tensor units", scratch_used, &draft)) {
    draft.turn_down(kTiled, "it leaves the tensor units idle");
    against_unified();
    return draft;
  }
  if (take_tiled(c, in, Kernel::prefill_tiled, kTiled, DispatchKind::tiled_prefill,
                 "tiles of query tokens share what they read", scratch_used, &draft)) {
    against_unified();
    return draft;
  }
  if (take_any(c, in, Kernel::paged_attention, 0, scratch_used, &draft)) return draft;
  draft.fail("no kernel serves the prefill rows");
}

void check(const Context& c) {
  const int32_t forced = c.overrides.force_partition;
  if (forced > 0 && forced % c.call.block_size != 0) {
    throw Error(PAMX_INVALID_ARGUMENT, "partitions of " + number(forced) +
                                           " tokens are forced; they must be a multiple of the "
                                           "block size, " +
                                           number(c.call.block_size));
  }
}

}  // namespace

Ability library_ability(const LaunchShape& shape) {
  Ability able;
  able.why_not = turned_down(shape);
  if (!able.why_not.empty()) return able;
  able.launch = launch_of(shape);
  able.tokens_a_row = tokens_a_row(shape);
  return able;
}

GpuPlan plan_gpu_attention(const GpuAttention& call, const AttentionSequences& sequences,
                           const GpuMachine& machine, const Overrides& overrides,
                           const Abilities& abilities) {
  const Context c{call, sequences, machine, overrides, abilities};
  check(c);
  GpuPlan plan;
  const auto add = [&](const Input& in, GpuPart* part, Draft draft) {
    *part = std::move(draft.part);
    part->sequences = static_cast<int32_t>(in.sequences.size());
    part->longest = in.longest;
    plan.scratch_bytes = draft.scratch_end;
    for (GpuDispatch& d : draft.dispatches) plan.dispatches.push_back(std::move(d));
  };
  const Input decode = input_of(c, true), prefill = input_of(c, false);
  if (!decode.sequences.empty()) add(decode, &plan.decode, decode_part(c, decode));
  if (!prefill.sequences.empty()) {
    add(prefill, &plan.prefill, prefill_part(c, prefill, plan.scratch_bytes));
  }
  // The unified kernel takes both kinds of rows in one launch.
  if (plan.dispatches.size() == 2 && plan.decode.sequences > 0 && plan.prefill.sequences > 0 &&
      plan.decode.path == kUnified && plan.prefill.path == kUnified) {
    GpuDispatch& both = plan.dispatches[0];
    const auto& more = plan.dispatches[1].rows;
    both.rows.insert(both.rows.end(), more.begin(), more.end());
    both.shape.rows = static_cast<int32_t>(both.rows.size());
    Ability able = abilities(both.shape);
    if (!able.why_not.empty()) throw Error(PAMX_UNSUPPORTED, able.why_not);
    both.launch = std::move(able.launch);
    plan.dispatches.pop_back();
  }
  return plan;
}

}  // namespace pamx::plan
