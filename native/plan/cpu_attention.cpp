// Rules for cutting one paged-attention call into items of work for the CPU's threads.
#include "plan/cpu_attention.hpp"

#include <algorithm>
#include <tuple>

namespace pamx::plan {

namespace {

int64_t ceil_div(int64_t a, int64_t b) { return a / b + (a % b != 0); }

// floor(work * part / whole), where work * part may be more than 64 bits hold.
int64_t share_of(int64_t work, int64_t part, int64_t whole) {
  return work / whole * part + work % whole * part / whole;
}

// Query tokens of one sequence that are attended together.
struct Tile {
  int32_t sequence, begin, end;
  int32_t first_partition, last_partition;
  int64_t work;  // for each KV head
  bool few_rows;
};

int32_t tile_tokens(int32_t group) { return std::max(1, kTileRows / group); }

template <class Body>
void for_each_tile(const AttentionGeometry& g, const AttentionSequences& s, int32_t partition,
                   const Body& body) {
  const int32_t group = g.heads / g.kv_heads;
  for (int32_t i = 0; i < s.count; ++i) {
    const int32_t queries = s.query_starts[i + 1] - s.query_starts[i];
    const int32_t offset = s.context_lens[i] - queries;
    const int32_t step = int64_t{queries} * group <= kFewRows ? queries : tile_tokens(group);
    for (int32_t begin = 0; begin < queries; begin += step) {
      const int32_t end = std::min(queries, begin + step);
      const int32_t low = g.window > 0 ? std::max(0, offset + begin - g.window + 1) : 0;
      const int32_t rows = (end - begin) * group;
      // A row reads the elements it sees; fewer than two rows cost as much as two.
      const int64_t seen = offset + (begin + end + 1) / 2 - low;
      const int64_t work = seen * std::max(2, rows) * (int64_t{g.k_dim} + g.v_dim);
      body(Tile{i, begin, end, low / partition, (offset + end - 1) / partition + 1, work,
                rows <= kFewRows});
    }
  }
}

struct Cut {
  int32_t runs;    // of partitions
  int32_t shares;  // of KV heads
};

Cut cut(const Tile& tile, const AttentionGeometry& g, int64_t most_work) {
  constexpr int64_t kRatio = kItemsAThread / kItemsAThreadOfHeads;
  const int32_t group = g.heads / g.kv_heads;
  const int32_t rows = (tile.end - tile.begin) * group;
  const int32_t most_heads = tile.few_rows ? std::max(1, kWalkRows / rows) : 1;
  int32_t shares = static_cast<int32_t>(ceil_div(g.kv_heads, most_heads));
  const int64_t pieces = ceil_div(tile.work * g.kv_heads, most_work);
  const int64_t partitions = tile.last_partition - tile.first_partition;
  const auto runs =
      static_cast<int32_t>(std::clamp<int64_t>(ceil_div(pieces, shares), 1, partitions));
  const int64_t least = ceil_div(pieces, kRatio);
  if (int64_t{runs} * shares < least) {
    shares = static_cast<int32_t>(
        std::min<int64_t>(g.kv_heads, std::max<int64_t>(shares, ceil_div(least, runs))));
  }
  return {runs, shares};
}

int64_t partial_floats(const Tile& tile, const AttentionGeometry& g) {
  return (int64_t{tile.last_partition} - tile.first_partition) * (tile.end - tile.begin) * g.heads *
         (int64_t{g.v_dim} + 2);
}

// Items of the same work stay in the order of memory.
bool heavier(const AttentionItem& a, const AttentionItem& b) {
  const auto place = [](const AttentionItem& i) {
    return std::tie(i.sequence, i.begin, i.first_partition, i.first_head);
  };
  return a.work != b.work ? a.work > b.work : place(a) < place(b);
}

int64_t scratch_floats(const AttentionGeometry& g, int32_t partition) {
  const int64_t group = g.heads / g.kv_heads;
  const int64_t padded = std::max(ceil_div(g.k_dim, 16), ceil_div(g.v_dim, 16)) * 16;
  const int64_t many = std::max<int64_t>(kTileRows, group), few = std::max(kWalkRows, kFewRows);
  return std::max(many, few) * (padded + partition + 2 * (int64_t{g.v_dim} + 2)) +
         partition * padded + 16;
}

}  // namespace

int32_t attention_partition(const AttentionGeometry& g, int64_t l2_bytes) {
  const int64_t row = (int64_t{g.k_dim} + g.v_dim) * 4;
  int32_t partition = kLargestPartition;
  while (partition > kSmallestPartition && partition * row * kPartitionShareOfL2 > l2_bytes) {
    partition /= 2;
  }
  return partition;
}

std::string against_forced_partition(int32_t tokens, int32_t block_size) {
  if (tokens % block_size != 0) {
    return "partitions of " + std::to_string(tokens) +
           " tokens are forced; they must be a multiple of the block size, " +
           std::to_string(block_size);
  }
  if (tokens % kPartitionStep != 0) {
    return "partitions of " + std::to_string(tokens) +
           " tokens are forced; on a CPU they must be a multiple of " +
           std::to_string(kPartitionStep);
  }
  if (tokens > kLargestForcedPartition) {
    return "partitions of " + std::to_string(tokens) + " tokens are forced; a CPU has up to " +
           std::to_string(kLargestForcedPartition);
  }
  return "";
}

void plan_cpu_attention(const AttentionGeometry& g, const AttentionSequences& s,
                        const CpuLimits& limits, AttentionPlan* plan) {
  plan->items.clear();
  plan->folds.clear();
  plan->partition =
      limits.partition > 0 ? limits.partition : attention_partition(g, limits.l2_bytes);
  plan->scratch_floats = scratch_floats(g, plan->partition);
  plan->work = 0;
  for_each_tile(g, s, plan->partition,
                [&](const Tile& tile) { plan->work += tile.work * g.kv_heads; });

  int32_t threads = std::max(1, limits.threads);
  if (plan->work < kWorthASecondThread) threads = 1;
  int64_t most_work = std::max<int64_t>(1, plan->work);
  if (threads > 1) {
    most_work = std::max<int64_t>(1, plan->work / (int64_t{threads} * kItemsAThread));
    // Partial results must not outgrow their limit; twice the work for an item cuts half as often.
    for (;; most_work *= 2) {
      int64_t floats = 0;
      for_each_tile(g, s, plan->partition, [&](const Tile& tile) {
        if (cut(tile, g, most_work).runs > 1) floats += partial_floats(tile, g);
      });
      if (floats * 4 <= kMostPartialBytes || most_work >= plan->work) break;
    }
  }

  const int32_t group = g.heads / g.kv_heads;
  plan->partial_floats = 0;
  for_each_tile(g, s, plan->partition, [&](const Tile& tile) {
    const Cut c = cut(tile, g, most_work);
    const int32_t partitions = tile.last_partition - tile.first_partition;
    const int64_t partials = c.runs > 1 ? plan->partial_floats : -1;
    for (int32_t run = 0; run < c.runs; ++run) {
      const auto edge = [&](int32_t i) {
        return tile.first_partition + static_cast<int32_t>(int64_t{partitions} * i / c.runs);
      };
      for (int32_t share = 0; share < c.shares; ++share) {
        const auto head = [&](int32_t i) {
          return static_cast<int32_t>(int64_t{g.kv_heads} * i / c.shares);
        };
        const int64_t work = share_of(tile.work * (head(share + 1) - head(share)),
                                      edge(run + 1) - edge(run), partitions);
        plan->items.push_back({tile.sequence, tile.begin, tile.end, edge(run), edge(run + 1),
                               head(share), head(share + 1), tile.few_rows, partials,
                               tile.first_partition, work});
      }
    }
    if (c.runs == 1) return;
    plan->partial_floats += partial_floats(tile, g);
    for (int32_t h = 0; h < g.kv_heads; ++h) {
      plan->folds.push_back(
          {tile.sequence, tile.begin, tile.end, h * group, (h + 1) * group, partitions, partials});
    }
  });
  std::sort(plan->items.begin(), plan->items.end(), heavier);
  plan->threads = static_cast<int32_t>(std::min<int64_t>(threads, std::ssize(plan->items)));
}

namespace {

std::string number(int64_t n) { return std::to_string(n); }

std::string kib(int64_t bytes) { return number(bytes / 1024) + " KiB"; }

template <class Say>
void explain_partition(const AttentionGeometry& g, const CpuLimits& limits,
                       const AttentionPlan& plan, const Say& say) {
  const int64_t row = (int64_t{g.k_dim} + g.v_dim) * 4;
  const int64_t share = limits.l2_bytes / kPartitionShareOfL2;
  say("partition: " + number(plan.partition) +
      " tokens; their keys and values of one KV head take " + kib(plan.partition * row) +
      " as floats, of " + kib(share) + " (1/" + number(kPartitionShareOfL2) +
      " of an L2 cache of " + kib(limits.l2_bytes) + ").");
  if (plan.partition < kLargestPartition) {
    say("not " + number(plan.partition * 2) + " tokens: they would take " +
        kib(plan.partition * 2 * row) + ".");
  } else {
    say("not more tokens: " + number(kLargestPartition) +
        " is the most, so that short contexts "
        "can be shared out too.");
  }
  if (plan.partition == kSmallestPartition && plan.partition * row > share) {
    say("not less tokens: " + number(kSmallestPartition) +
        " is the least, below which folding "
        "partitions costs more than the cache gives.");
  }
}

}  // namespace

std::string explain_cpu_attention(const AttentionGeometry& g, const CpuLimits& limits,
                                  const AttentionPlan& plan) {
  std::string text;
  const auto say = [&](const std::string& line) { text += line + "\n"; };

  if (limits.partition > 0) {
    say("partition: " + number(plan.partition) + " tokens, which are forced; by rule it would be " +
        number(attention_partition(g, limits.l2_bytes)) + ".");
  } else {
    explain_partition(g, limits, plan, say);
  }

  int64_t few = 0, many = 0;
  for (const auto& item : plan.items) ++(item.few_rows ? few : many);
  const int32_t group = g.heads / g.kv_heads;
  if (few > 0) {
    say("pages to registers: " + number(few) + " items, whose sequences bring at most " +
        number(kFewRows) +
        " query rows for each KV head; all of an item's KV heads are read "
        "together, in the order of memory.");
  } else {
    say("not pages to registers: every sequence brings more than " + number(kFewRows) +
        " query rows for each KV head (query tokens times " + number(group) + " query heads).");
  }
  if (many > 0) {
    say("tiles of floats: " + number(many) + " items of up to " +
        number(int64_t{tile_tokens(group)} * group) +
        " query rows, for which a partition's keys "
        "and values are converted once.");
  } else {
    say("not tiles of floats: no sequence brings more than " + number(kFewRows) +
        " query rows for each KV head.");
  }

  if (plan.threads > 1) {
    say("threads: " + number(plan.threads) + " of " + number(limits.threads) + ", for " +
        number(std::ssize(plan.items)) + " items of " + number(plan.work) +
        " multiply-adds in all.");
    if (plan.threads < limits.threads) {
      say("not more threads: there are no more items.");
    }
  } else if (limits.threads > 1 && plan.work < kWorthASecondThread) {
    say("threads: 1 of " + number(limits.threads) + ".");
    say("not more threads: " + number(plan.work) + " multiply-adds are fewer than " +
        number(kWorthASecondThread) + ", from which a second thread is worth waking.");
  } else {
    say("threads: 1 of " + number(limits.threads) + ".");
    say(limits.threads > 1 ? "not more threads: there is one item."
                           : "not more threads: no more "
                             "are offered.");
  }
  if (plan.folds.empty()) {
    say("folding: on the way, since every item holds all partitions of its rows.");
    say(plan.threads > 1 ? "not cut by partition: sequences and KV heads give items enough."
                         : "not cut by partition: one thread does all.");
  } else {
    say("folding: afterwards, of " + kib(plan.partial_floats * 4) +
        " of partial results (at most " + kib(kMostPartialBytes) + "), for " +
        number(std::ssize(plan.folds)) + " groups of rows.");
  }
  say("scratch: " + kib(plan.scratch_floats * 4) + " a thread.");
  return text;
}

}  // namespace pamx::plan
