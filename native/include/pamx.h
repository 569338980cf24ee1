/* The C interface of pamx's native library: the only header that Python sees.
 *
 * cffi reads this file as it is, so it holds declarations and comments and no preprocessor
 * line. C and C++ sources include <stddef.h> and <stdint.h> before it.
 *
 * Every function that can fail returns a pamx_status; pamx_last_error() then says why, in one
 * sentence, for the calling thread. No function keeps a pointer that it was given.
 */

enum pamx_status {
  PAMX_OK = 0,
  PAMX_INVALID_ARGUMENT = 1, /* the caller broke the contract: shape, dtype, range, null */
  PAMX_UNSUPPORTED = 2,      /* well formed, but this library has no kernel for it */
  PAMX_FAILED = 3            /* MLX or the operating system refused */
};

/* Message of the last failed call on this thread; never null, valid until the next failure. */
const char* pamx_last_error(void);

/* Version of pamx that this library was built as, for example "0.1.0". */
const char* pamx_version(void);
/* Digest of the native sources that this library was built from, in hexadecimal. */
const char* pamx_build_hash(void);
/* Version of MLX whose headers this library was compiled against. */
const char* pamx_mlx_compiled(void);
/* Version of the libmlx that this process loaded. */
const char* pamx_mlx_loaded(void);

/* ---- CPU ------------------------------------------------------------------------------ */

/* Instruction set that the kernels run with on this machine: "avx512", "avx2", "neon" or
 * "portable". */
const char* pamx_cpu_isa(void);
/* Threads that a kernel may use, the caller's included (at least 1; default: all CPUs of this
 * process). Results do not depend on it. */
int pamx_set_num_threads(int32_t num_threads);
int32_t pamx_num_threads(void);

/* ---- The bridge to Python's mlx.core.array ---------------------------------------------- */

/* id() of a Python mlx.core.array. The caller keeps the object alive during the call. */
typedef uintptr_t pamx_object;

/* Tells the library how large a Python object's header and an mlx.core.array are, in bytes
 * (object.__basicsize__ and mlx.core.array.__basicsize__). Call before any other bridge call. */
int pamx_bridge_configure(int32_t object_size, int32_t array_size);
/* Checks, without trusting any pointer it has not verified, that `object` holds an mlx array
 * with this data address, shape and item size: a wrong instance layout fails here instead of
 * reading stray memory later. */
int pamx_bridge_probe(pamx_object object, uintptr_t data, int32_t ndim, const int32_t* shape,
                      int32_t itemsize);

/* Turns the placeholder `out` into an array of `shape` whose memory nobody has touched: the system
 * provides a page of it when it is first written. For block pools, which are large, are reserved
 * whole and fill slowly. `dtype_of` is any array of the wanted dtype. CPU only. */
int pamx_empty(const int32_t* shape, int32_t ndim, pamx_object dtype_of, pamx_object out);

/* ---- Packed batches --------------------------------------------------------------------- */

/* The sequences of one step, packed without padding. Sequence s brings the query tokens
 * query_starts[s] .. query_starts[s + 1]; with them it is context_lens[s] tokens long, so its
 * first query token stands at position context_lens[s] - (its number of query tokens). */
typedef struct {
  int32_t num_sequences;
  int32_t num_blocks;          /* blocks in every pool that the block tables point into */
  int32_t block_size;          /* tokens a block: 8, 16 or 32 */
  int32_t max_blocks;          /* row length of block_tables */
  const int32_t* query_starts; /* [num_sequences + 1], from 0, strictly increasing */
  const int32_t* context_lens; /* [num_sequences], tokens, the new ones included */
  const int32_t* block_tables; /* [num_sequences, max_blocks]; entries past a sequence's last
                                  block are not read */
} pamx_batch_desc;

typedef struct pamx_batch pamx_batch;

/* Copies and validates a description. Refuses a block id outside the pool, a context shorter
 * than its query, a table too short for its context, a block that one sequence writes while
 * another sequence's table holds it, and a block that a sequence holds twice. */
int pamx_batch_create(const pamx_batch_desc* desc, pamx_batch** batch);
/* Releases the caller's hold; work already queued keeps its own. Null is allowed. */
void pamx_batch_free(pamx_batch* batch);

/* ---- Copying blocks ------------------------------------------------------------------------- */

/* Queues copies of whole blocks, sources[i] to targets[i] for i in [0, count), in order and in
 * place in both pools. Lazy; the placeholders become the pools to use from then on, as in
 * pamx_paged_attention. */
int pamx_copy_blocks(const int32_t* sources, const int32_t* targets, int32_t count,
                     pamx_object key_pool, pamx_object value_pool, pamx_object key_pool_out,
                     pamx_object value_pool_out);

/* ---- Paged attention ---------------------------------------------------------------------- */

typedef struct {
  float scale;    /* multiplies q.k */
  float softcap;  /* 0: none; else scores become softcap * tanh(score / softcap) */
  int32_t window; /* 0: none; else a query at position p sees positions above p - window */
} pamx_attention_params;

/* Queues one fused operation on MLX's current default stream: write the new key and value rows
 * into the pools in place, then let every query row attend causally to its sequence's pages.
 *
 *   queries     [batch, heads, length, k_dim]     float32, float16 or bfloat16
 *   keys        [batch, kv_heads, length, k_dim]  same dtype, or 0: nothing to write
 *   values      [batch, kv_heads, length, v_dim]  same dtype, or 0 together with keys
 *   key_pool    [num_blocks, block_size, kv_heads, k_dim]  row-contiguous; the same dtype, or a
 *   value_pool  [num_blocks, block_size, kv_heads, v_dim]  16-bit one below float32 rows, which
 *                                                          are rounded as they are written
 *   sinks       [heads] of any floating dtype, or 0: a logit per head that takes part in the
 *               softmax and contributes no value
 *
 * batch x length is the number of packed query tokens, and one of the two is 1. heads is a
 * multiple of kv_heads; k_dim and v_dim are multiples of 8, at most 512.
 *
 * The operation is lazy. On success the Python arrays `out`, `key_pool_out` and
 * `value_pool_out` (placeholders made by the caller) become its results: the attention output
 * [batch, heads, length, v_dim], laid out so that swapping heads and length back costs nothing,
 * and the pools after the write, which share their buffers with the pools that went in. The
 * caller must use the new pools from then on. Accumulation is in float32; a row that sees no
 * key gives zeros. */
int pamx_paged_attention(const pamx_batch* batch, const pamx_attention_params* params,
                         pamx_object queries, pamx_object keys, pamx_object values,
                         pamx_object key_pool, pamx_object value_pool, pamx_object sinks,
                         pamx_object out, pamx_object key_pool_out, pamx_object value_pool_out);

/* ---- The plan of a paged-attention call on the CPU ------------------------------------------ */

typedef struct {
  int32_t heads, kv_heads, k_dim, v_dim;
  int32_t window;   /* 0: none */
  int32_t threads;  /* 0: as many as this process uses */
  int64_t l2_bytes; /* 0: as this machine has */
} pamx_cpu_attention_desc;

typedef struct {
  int32_t partition;      /* tokens that share one softmax; set by geometry and L2 alone */
  int32_t threads;        /* of those offered, how many get work */
  int64_t items;          /* independent pieces of work */
  int64_t few_rows_items; /* those that take keys and values from the pages into registers */
  int64_t folds;          /* groups of rows whose partial results are folded afterwards */
  int64_t work;           /* multiply-adds */
  int64_t scratch_bytes;  /* for each thread */
  int64_t partial_bytes;  /* partial results of the whole call */
  const char* text;       /* the plan in sentences, with a reason against each other path; valid
                             until this thread's next call */
} pamx_cpu_attention_plan;

/* What pamx_paged_attention would do for these sequences (as in pamx_batch_desc). Runs nothing. */
int pamx_plan_cpu_attention(const pamx_cpu_attention_desc* desc, int32_t num_sequences,
                            const int32_t* query_starts, const int32_t* context_lens,
                            pamx_cpu_attention_plan* plan);
