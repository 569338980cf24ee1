// Validation of packed batches: a wrong block table is an error here, not a stray read later.
#include "core/batch.hpp"

#include <unordered_map>

namespace pamx {

namespace {

std::string sequence(int32_t s) { return "sequence " + std::to_string(s); }

void check_lengths(const Batch& b) {
  require(b.query_starts[0] == 0,
          "query_starts must begin at 0, not " + std::to_string(b.query_starts[0]));
  for (int32_t s = 0; s < b.num_sequences(); ++s) {
    const int64_t queries = int64_t{b.query_starts[s + 1]} - b.query_starts[s];
    const int32_t context = b.context_lens[s];
    require(queries >= 1, sequence(s) + " has " + std::to_string(queries) +
                              " query tokens; each needs at least 1");
    require(context >= queries, sequence(s) + " is " + std::to_string(context) +
                                    " tokens long but brings " + std::to_string(queries) +
                                    " query tokens");
    const int64_t blocks = (int64_t{context} + b.block_size - 1) / b.block_size;
    require(blocks <= b.max_blocks, sequence(s) + " needs " + std::to_string(blocks) +
                                        " blocks but its block table has room for " +
                                        std::to_string(b.max_blocks));
  }
}

// A block may be shared for reading; the blocks that a step writes belong to one sequence.
void check_tables(const Batch& b) {
  struct Use {
    int32_t sequence;
    bool written;
  };
  std::unordered_map<int32_t, Use> uses;
  for (int32_t s = 0; s < b.num_sequences(); ++s) {
    const int32_t context = b.context_lens[s];
    const int32_t first_written =
        (context - (b.query_starts[s + 1] - b.query_starts[s])) / b.block_size;
    const int32_t blocks =
        static_cast<int32_t>((int64_t{context} + b.block_size - 1) / b.block_size);
    for (int32_t i = 0; i < blocks; ++i) {
      const int32_t id = b.block_tables[int64_t{s} * b.max_blocks + i];
      require(id >= 0 && id < b.num_blocks, "block table of " + sequence(s) + " holds block " +
                                                std::to_string(id) + " at index " +
                                                std::to_string(i) + "; the pool has blocks 0 to " +
                                                std::to_string(b.num_blocks - 1));
      const bool written = i >= first_written;
      const auto [use, is_new] = uses.try_emplace(id, Use{s, written});
      if (is_new) continue;
      require(use->second.sequence != s,
              "block table of " + sequence(s) + " holds block " + std::to_string(id) + " twice");
      require(!written && !use->second.written, "block " + std::to_string(id) + " is shared by " +
                                                    sequence(use->second.sequence) + " and " +
                                                    sequence(s) + " while one of them writes it");
      use->second.sequence = s;
    }
  }
}

}  // namespace

std::shared_ptr<const Batch> Batch::create(const pamx_batch_desc* desc) {
  require(desc != nullptr, "the batch description is null");
  require(desc->num_sequences >= 1,
          "a batch needs at least 1 sequence, not " + std::to_string(desc->num_sequences));
  require(desc->block_size == 8 || desc->block_size == 16 || desc->block_size == 32,
          "block_size must be 8, 16 or 32, not " + std::to_string(desc->block_size));
  require(desc->num_blocks >= 1,
          "num_blocks must be at least 1, not " + std::to_string(desc->num_blocks));
  require(desc->max_blocks >= 1,
          "max_blocks must be at least 1, not " + std::to_string(desc->max_blocks));
  require(desc->query_starts && desc->context_lens && desc->block_tables,
          "query_starts, context_lens and block_tables must not be null");
  auto batch = std::make_shared<Batch>();
  const auto sequences = static_cast<size_t>(desc->num_sequences);
  batch->num_blocks = desc->num_blocks;
  batch->block_size = desc->block_size;
  batch->max_blocks = desc->max_blocks;
  batch->query_starts.assign(desc->query_starts, desc->query_starts + sequences + 1);
  batch->context_lens.assign(desc->context_lens, desc->context_lens + sequences);
  batch->block_tables.assign(
      desc->block_tables, desc->block_tables + sequences * static_cast<size_t>(desc->max_blocks));
  check_lengths(*batch);
  check_tables(*batch);
  return batch;
}

}  // namespace pamx

extern "C" int pamx_batch_create(const pamx_batch_desc* desc, pamx_batch** batch) {
  return pamx::guarded([&] {
    pamx::require(batch != nullptr, "the place for the new batch is null");
    *batch = nullptr;
    *batch = new pamx_batch{pamx::Batch::create(desc)};
  });
}

extern "C" void pamx_batch_free(pamx_batch* batch) { delete batch; }
