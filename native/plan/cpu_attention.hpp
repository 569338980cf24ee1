// The plan of one paged-attention call on the CPU: pure arithmetic, no device, no MLX.
//
// What a plan decides never changes a row's bits, but for the partition: that depends on the
// geometry and the L2 cache alone, so it is the same in every call of a process; unless one is
// forced, for the calls that it is forced on.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace pamx::plan {

struct AttentionGeometry {
  int32_t heads = 0;
  int32_t kv_heads = 0;
  int32_t k_dim = 0;
  int32_t v_dim = 0;
  int32_t window = 0;  // 0: none
};

struct AttentionSequences {
  int32_t count = 0;
  const int32_t* query_starts = nullptr;  // [count + 1]
  const int32_t* context_lens = nullptr;  // [count]
};

struct CpuLimits {
  int32_t threads = 1;
  int64_t l2_bytes = 0;
  int32_t partition = 0;  // tokens; 0: by rule
};

// ---- thresholds -------------------------------------------------------------------------------

constexpr int32_t kSmallestPartition = 64;
constexpr int32_t kLargestPartition = 256;
// Kernels keep a row's scores of a partition in whole vectors of this many.
constexpr int32_t kPartitionStep = 16;
constexpr int32_t kLargestForcedPartition = 16384;  // a thread's scratch grows with it
// The share of L2 that a partition's keys and values of one KV head, as floats, may take.
constexpr int64_t kPartitionShareOfL2 = 4;
// Query rows of one KV head (tokens times query heads) up to which keys and values are not worth
// converting to floats in memory.
constexpr int32_t kFewRows = 8;
// Query rows of an item with few rows for each KV head, over all of its KV heads.
constexpr int32_t kWalkRows = 64;
// Query rows of a tile with many rows, and the floats that its queries may take.
constexpr int32_t kTileRows = 64;
// Multiply-adds, one for each element of K or V and query row, below which one thread is faster
// than waking another.
constexpr int64_t kWorthASecondThread = 1 << 18;
// Items for each thread, where the work can be cut so: late threads then cost little.
constexpr int32_t kItemsAThread = 8;
// Items for each thread for which KV heads are dealt to different items where partitions are too
// few: an item with a share of the heads reads memory with gaps.
constexpr int32_t kItemsAThreadOfHeads = 2;
// What partial results may take; past it, sequences are cut less.
constexpr int64_t kMostPartialBytes = int64_t{64} << 20;

// ---- the plan ---------------------------------------------------------------------------------

// One independent piece: query tokens [begin, end) of a sequence, against the partitions
// [first_partition, last_partition), for the KV heads [first_head, last_head).
struct AttentionItem {
  int32_t sequence, begin, end;
  int32_t first_partition, last_partition;
  int32_t first_head, last_head;
  bool few_rows;
  // Where its tile's partial results begin, in floats, and the partition that they begin with;
  // -1: the item holds all partitions of its rows and writes the output itself.
  int64_t partials;
  int32_t tile_partition;
  int64_t work;
};

// Rows whose partial results are folded once all items are done; heads are query heads here.
struct AttentionFold {
  int32_t sequence, begin, end;
  int32_t first_head, last_head;
  int32_t partitions;
  int64_t partials;
};

struct AttentionPlan {
  int32_t partition = 0;             // tokens
  int32_t threads = 1;               // of those offered, how many have something to do
  int64_t work = 0;                  // multiply-adds
  int64_t scratch_floats = 0;        // for each thread
  int64_t partial_floats = 0;        // for the call
  std::vector<AttentionItem> items;  // heaviest first
  std::vector<AttentionFold> folds;
};

int32_t attention_partition(const AttentionGeometry& geometry, int64_t l2_bytes);

// Why calls in pages of this size cannot have this partition, in one sentence without its end;
// empty: they can.
std::string against_forced_partition(int32_t tokens, int32_t block_size);

// Plans a call. `plan` is overwritten; its vectors keep their memory.
void plan_cpu_attention(const AttentionGeometry& geometry, const AttentionSequences& sequences,
                        const CpuLimits& limits, AttentionPlan* plan);

// What the plan is and why, in sentences: the choice, and the reason against each other path.
std::string explain_cpu_attention(const AttentionGeometry& geometry, const CpuLimits& limits,
                                  const AttentionPlan& plan);

}  // namespace pamx::plan
